/* SPDX-License-Identifier: Apache-2.0 */
/*
 * L2 norm and gated RMSNorm: lines scaled by a number made of their sum of squares.
 *
 *     row    D to 256     1 to 32 lanes per line, a pack each, two lines at a time
 *     flat   the same     whole packs of 16 bits, lines a step apart: nothing is asked, four lines
 *     long   D to 1024    a warp per line, four packs per lane
 *     wide   all          a block per line, which is read twice, the second time from a cache
 *
 * A lane adds up its elements in order, lanes are added by a tree: by D alone (G2).
 */
#include "lines.cuh"
#include "math.cuh"

GDN_DEVICE float line_scale(const struct gdn_cu_norm &a, float sum)
{
    switch (a.formula) {
    case GDN_NORM_L2: return 1 / sqrtf(sum + a.eps);
    case GDN_NORM_L2_ADD: return 1 / (sqrtf(sum) + a.eps);
    case GDN_NORM_L2_MAX: return 1 / fmaxf(sqrtf(sum), a.eps);
    default: return 1 / sqrtf(sum / (float)a.D + a.eps);
    }
}

enum { floats = -1, bf16 = GDN_BF16, f16 = GDN_F16 };

/* The dtype of x, z and out is known when compiling, and then packs are whole and move at once,
 * and lines are one step apart; or it is `floats`, and everything is asked. */
template <int dtype> GDN_DEVICE int32_t type_of(const struct gdn_cu_lines &l)
{
    return dtype == floats ? l.dtype : dtype;
}
template <int dtype> GDN_DEVICE int32_t access_of(const struct gdn_cu_lines &l)
{
    return dtype == floats ? l.access : 16;
}

/* What a lane has of one line, from element `first` on. */
struct piece {
    char           *x, *z, *out;
    int64_t         first, n; /* n: elements from there to the end of the line, or below 1 */
    struct gdn_pack xs, zs;
};

template <int dtype>
GDN_DEVICE void find_piece(const struct gdn_cu_norm &a, int64_t line, struct piece &p)
{
    if (dtype == floats) {
        const struct gdn_line at = find_line(a.leads, line);
        p.x   = line_at(a.leads, a.x, at);
        p.out = line_at(a.leads, a.out, at);
        p.z   = a.z.data ? line_at(a.leads, a.z, at) : NULL;
    } else {
        p.x   = a.x.data + line * a.x.step[0];
        p.out = a.out.data + line * a.out.step[0];
        p.z   = a.z.data + line * a.z.step[0];
    }
}

template <int dtype> GDN_DEVICE void load_x(const struct gdn_cu_norm &a, struct piece &p)
{
    const int32_t type = type_of<dtype>(a.x);
    load_pack(p.xs, type, access_of<dtype>(a.x), p.x + p.first * element_bytes(type), p.n);
}

template <int dtype> GDN_DEVICE void load_z(const struct gdn_cu_norm &a, struct piece &p)
{
    const int32_t type = type_of<dtype>(a.z);
    if (a.z.data)
        load_pack(p.zs, type, access_of<dtype>(a.z), p.z + p.first * element_bytes(type), p.n);
}

template <int dtype>
GDN_DEVICE float add_squares(const struct gdn_cu_norm &a, const struct piece &p, float sum)
{
    float x[8];
    unpack(x, p.xs, type_of<dtype>(a.x));
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

GDN_DEVICE void load_weight(const struct gdn_cu_norm &a, const struct piece &p, float (&w)[8])
{
    if (!a.weight.data) return;
    if (a.weight_step == 1) {
        struct gdn_pack ws;
        load_pack(ws, a.weight.dtype, a.weight.access,
                  a.weight.data + p.first * element_bytes(a.weight.dtype), p.n);
        unpack(w, ws, a.weight.dtype);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = i < p.n ? load_float(a.weight.data, (p.first + i) * a.weight_step, a.weight.dtype)
                       : 0;
}

template <int dtype, bool HAS_ZEROS>
GDN_DEVICE void store_scaled(const struct gdn_cu_norm &a, const struct piece &p,
                             const float (&w)[8], float scale)
{
    const int32_t   type = type_of<dtype>(a.out);
    float           x[8], y[8];
    unsigned        zeros = 0; /* which elements stay so: bits */
    struct gdn_pack out;
    unpack(x, p.xs, type_of<dtype>(a.x));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (HAS_ZEROS && a.zeros && x[i] == 0) zeros |= 1u << i;
        x[i] *= scale;
    }
    if (a.weight.data) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= w[i];
    }
    if (a.z.data) {
        unpack(y, p.zs, type_of<dtype>(a.z));
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = a.sigmoid ? times_sigmoid(x[i], y[i]) : x[i] * silu(y[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (HAS_ZEROS && zeros >> i & 1) x[i] = 0;
    pack(out, x, type);
    store_pack(p.out + p.first * element_bytes(type), out, type, access_of<dtype>(a.out), p.n);
}

/* The sum over `lanes` lanes that follow each other, in all of them. */
GDN_DEVICE float sum_lanes(float x, int lanes)
{
    for (int step = lanes / 2; step; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

/* ---- Lines in registers -------------------------------------------------------------------- */

/* LINES lines at a time by a.lanes lanes, PACKS packs of each. Lanes without a line go along. */
template <int dtype, int LINES, int PACKS>
GDN_DEVICE void norm_lines(const struct gdn_cu_norm &a)
{
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int     lane   = threadIdx.x & (a.lanes - 1);
    const int64_t first  = (thread >> (31 - __clz(a.lanes))) * LINES;
    struct piece  p[LINES][PACKS];
    float         sum[LINES], w[8];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const bool is_there = first + l < a.n_lines;
        find_piece<dtype>(a, is_there ? first + l : 0, p[l][0]);
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            if (i) p[l][i] = p[l][0];
            p[l][i].first = (int64_t)(i * a.lanes + lane) * GDN_PACK;
            p[l][i].n     = !is_there ? 0 : dtype == floats ? a.D - p[l][i].first : GDN_PACK;
            load_x<dtype>(a, p[l][i]);
        }
    }
#pragma unroll
    for (int l = 0; l < LINES; l++)
#pragma unroll
        for (int i = 0; i < PACKS; i++) load_z<dtype>(a, p[l][i]);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        sum[l] = 0;
#pragma unroll
        for (int i = 0; i < PACKS; i++) sum[l] = add_squares<dtype>(a, p[l][i], sum[l]);
        sum[l] = line_scale(a, sum_lanes(sum[l], a.lanes));
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        load_weight(a, p[0][i], w);
#pragma unroll
        for (int l = 0; l < LINES; l++)
            if (p[l][i].n > 0) store_scaled<dtype, PACKS == 1>(a, p[l][i], w, sum[l]);
    }
}

GDN_DEVICE void norm_row(const struct gdn_cu_norm &a) { norm_lines<floats, 2, 1>(a); }
GDN_DEVICE void norm_flat_bf16(const struct gdn_cu_norm &a) { norm_lines<bf16, 4, 1>(a); }
GDN_DEVICE void norm_flat_f16(const struct gdn_cu_norm &a) { norm_lines<f16, 4, 1>(a); }
GDN_DEVICE void norm_long(const struct gdn_cu_norm &a) { norm_lines<floats, 1, 4>(a); }

/* ---- A block per line ---------------------------------------------------------------------- */

GDN_DEVICE void norm_wide(const struct gdn_cu_norm &a)
{
    __shared__ float sums[32];
    const int        warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    struct piece     p;
    float            sum = 0, w[8];
    find_piece<floats>(a, blockIdx.x, p);
    for (p.first = threadIdx.x * GDN_PACK; p.first < a.D; p.first += blockDim.x * GDN_PACK) {
        p.n = a.D - p.first;
        load_x<floats>(a, p);
        sum = add_squares<floats>(a, p, sum);
    }
    sum = sum_lanes(sum, 32);
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    sum = line_scale(a, sum_lanes(threadIdx.x % 32 < n_warps ? sums[threadIdx.x % 32] : 0, 32));
    for (p.first = threadIdx.x * GDN_PACK; p.first < a.D; p.first += blockDim.x * GDN_PACK) {
        p.n = a.D - p.first;
        load_x<floats>(a, p);
        load_z<floats>(a, p);
        load_weight(a, p, w);
        store_scaled<floats, false>(a, p, w, sum);
    }
}

#define GDN_IMAGE_norm GDN_THIS_IMAGE
#define GDN_KERNEL_norm(threads, shared, form)                                                \
    extern "C" __global__ void __launch_bounds__(threads)                                     \
        gdn_norm_##form(const __grid_constant__ struct gdn_cu_norm a)                         \
    {                                                                                         \
        norm_##form(a);                                                                       \
    }
#include "kernels.cuh"
