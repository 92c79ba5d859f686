/* SPDX-License-Identifier: Apache-2.0 */
/*
 * L2 norm and gated RMSNorm: lines scaled by a number made of their sum of squares.
 *
 *     row    D to 256     1 to 32 lanes per line, a pack each, two lines at a time
 *     flat   the same     whole packs of 16 bits, lines a step apart: nothing is asked, four lines
 *     long   D to 1024    a warp per line, four packs per lane
 *     wide   all          a block per line, which is read twice, the second time from a cache;
 *                         it has no `zeros`
 *
 * A lane adds up its elements in order, lanes are added by a tree: by D alone (G2).
 */
#include "cuda/device/lines.cuh"
#include "cuda/device/math.cuh"
#include "cuda/rowwise/args.h"

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

/* Returns the dtype. If it is known when compiling, packs are whole and move at once, and lines are
 * one step apart. With `floats` the kernel reads all of that from its arguments. */
template <int dtype> GDN_DEVICE int32_t type_of(const struct gdn_cu_lines &l)
{
    return dtype == floats ? l.dtype : dtype;
}
template <int dtype> GDN_DEVICE int32_t access_of(const struct gdn_cu_lines &l)
{
    return dtype == floats ? l.access : 16;
}

/* A lane's part of one line: elements from `first` on. */
struct piece {
    char *x, *z, *out; /* element 0 of the line */
    int64_t first, n;  /* n: elements from `first` to the end of the line; below 1: none */
    struct gdn_pack xs, zs;
};

template <int dtype>
GDN_DEVICE void find_piece(const struct gdn_cu_norm &a, int64_t line, struct piece &p)
{
    if (dtype == floats) {
        const struct gdn_line at = find_line(a.leads, line);
        p.x = line_at(a.leads, a.x, at);
        p.out = line_at(a.leads, a.out, at);
        p.z = a.z.data ? line_at(a.leads, a.z, at) : NULL;
    } else {
        p.x = a.x.data + line * a.x.step[0];
        p.out = a.out.data + line * a.out.step[0];
        p.z = a.z.data + line * a.z.step[0];
    }
}

/* Moves on to the next line. */
template <int dtype>
GDN_DEVICE void find_next(const struct gdn_cu_norm &a, int64_t line, const struct piece &before,
                          struct piece &p)
{
    if (dtype == floats) {
        find_piece<dtype>(a, line, p);
    } else {
        p.x = before.x + a.x.step[0];
        p.out = before.out + a.out.step[0];
        p.z = before.z + a.z.step[0];
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

/* Loads the weights. If they lie side by side, it keeps their dtype. */
GDN_DEVICE void load_weight(struct gdn_pack &w, const struct gdn_cu_norm &a, int64_t first,
                            int64_t n)
{
    if (a.weight.data && a.weight_step == 1)
        load_pack(w, a.weight.dtype, a.weight.access,
                  a.weight.data + first * element_bytes(a.weight.dtype), n);
}
GDN_DEVICE void unpack_weight(float (&y)[8], const struct gdn_pack &w, const struct gdn_cu_norm &a,
                              int64_t first, int64_t n)
{
    if (!a.weight.data) return;
    if (a.weight_step == 1) {
        unpack(y, w, a.weight.dtype);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        y[i] = i < n ? load_float(a.weight.data, (first + i) * a.weight_step, a.weight.dtype) : 0;
}

/* Multiplies x by its gate. */
template <int dtype>
GDN_DEVICE void times_gate(float (&x)[8], const struct gdn_cu_norm &a, const struct piece &p)
{
    float z[8];
    unpack(z, p.zs, type_of<dtype>(a.z));
    if (a.sigmoid) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = times_sigmoid(x[i], z[i]);
        return;
    }
    silu_of(z);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= z[i];
}

template <int dtype, bool HAS_ZEROS>
GDN_DEVICE void store_scaled(const struct gdn_cu_norm &a, const struct piece &p,
                             const float (&w)[8], float scale)
{
    const int32_t type = type_of<dtype>(a.out);
    float x[8], y[8];
    struct gdn_pack out;
    unpack(x, p.xs, type_of<dtype>(a.x));
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = x[i] * scale;
    if (a.weight.data) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] *= w[i];
    }
    if (a.z.data) times_gate<dtype>(y, a, p);
    if (HAS_ZEROS && a.zeros) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (x[i] == 0) y[i] = 0;
    }
    pack(out, y, type);
    store_pack(p.out + p.first * element_bytes(type), out, type, access_of<dtype>(a.out), p.n);
}

/* ---- Sums over lanes that follow each other, a tree ----------------------------------------- */

/* Returns the sum of line l in the lanes whose number ends in the bits of l: each step halves the
 * lines that a lane sums. There must be at least LINES lanes. */
template <int LINES> GDN_DEVICE float sum_lines(float (&x)[LINES], int lanes)
{
    int step = 1;
#pragma unroll
    for (int n = LINES / 2; n; n /= 2, step *= 2)
#pragma unroll
        for (int l = 0; l < n; l++) {
            const bool odd = threadIdx.x & step;
            const float give = odd ? x[2 * l] : x[2 * l + 1], keep = odd ? x[2 * l + 1] : x[2 * l];
            x[l] = keep + __shfl_xor_sync(0xffffffff, give, step);
        }
    return sum_lanes(x[0], lanes, LINES);
}

/* ---- Lines in registers -------------------------------------------------------------------- */

/* Normalises LINES lines at a time. a.lanes lanes have a line, and each has PACKS packs. Lanes
 * without a line take part. */
template <int dtype, int LINES, int PACKS> GDN_DEVICE void norm_lines(const struct gdn_cu_norm &a)
{
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & (a.lanes - 1);
    const int64_t first = (thread >> (31 - __clz(a.lanes))) * LINES;
    struct piece p[LINES][PACKS];
    struct gdn_pack ws;
    float sum[LINES], w[8];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const bool is_there = first + l < a.n_lines;
        if (l)
            find_next<dtype>(a, is_there ? first + l : 0, p[l - 1][0], p[l][0]);
        else
            find_piece<dtype>(a, is_there ? first : 0, p[0][0]);
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            if (i) p[l][i] = p[l][0];
            p[l][i].first = (int64_t)(i * a.lanes + lane) * GDN_PACK;
            p[l][i].n = !is_there ? 0 : dtype == floats ? a.D - p[l][i].first : GDN_PACK;
            load_x<dtype>(a, p[l][i]);
        }
    }
    if (a.z.data) {
#pragma unroll
        for (int l = 0; l < LINES; l++)
#pragma unroll
            for (int i = 0; i < PACKS; i++) load_z<dtype>(a, p[l][i]);
    }
    if (PACKS == 1) load_weight(ws, a, p[0][0].first, p[0][0].n);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        sum[l] = 0;
#pragma unroll
        for (int i = 0; i < PACKS; i++) sum[l] = add_squares<dtype>(a, p[l][i], sum[l]);
    }
    const float scale = line_scale(a, sum_lines<LINES>(sum, a.lanes));
#pragma unroll
    for (int l = 0; l < LINES; l++)
        sum[l] = __shfl_sync(0xffffffff, scale, (threadIdx.x & 31 & ~(LINES - 1)) + l);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        if (PACKS > 1) load_weight(ws, a, p[0][i].first, p[0][i].n);
        unpack_weight(w, ws, a, p[0][i].first, p[0][i].n);
#pragma unroll
        for (int l = 0; l < LINES; l++)
            if (p[l][i].n > 0) store_scaled<dtype, true>(a, p[l][i], w, sum[l]);
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
    struct piece p;
    struct gdn_pack ws;
    float sum = 0, w[8];
    find_piece<floats>(a, blockIdx.x, p);
    for (p.first = threadIdx.x * GDN_PACK; p.first < a.D; p.first += blockDim.x * GDN_PACK) {
        p.n = a.D - p.first;
        load_x<floats>(a, p);
        sum = add_squares<floats>(a, p, sum);
    }
    sum = line_scale(a, sum_block(sum, sums));
    for (p.first = threadIdx.x * GDN_PACK; p.first < a.D; p.first += blockDim.x * GDN_PACK) {
        p.n = a.D - p.first;
        load_x<floats>(a, p);
        if (a.z.data) load_z<floats>(a, p);
        load_weight(ws, a, p.first, p.n);
        unpack_weight(w, ws, a, p.first, p.n);
        store_scaled<floats, false>(a, p, w, sum);
    }
}

/* The blocks that a multiprocessor has at once, which registers limit. */
enum { BUSY_row = 3, BUSY_flat_bf16 = 3, BUSY_flat_f16 = 3, BUSY_long = 2, BUSY_wide = 3 };

#define GDN_IMAGE_norm GDN_THIS_IMAGE
#define GDN_KERNEL_norm(threads, shared, form)                         \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##form) \
        gdn_norm_##form(const __grid_constant__ struct gdn_cu_norm a)  \
    {                                                                  \
        norm_##form(a);                                                \
    }
#include "cuda/driver/kernels.cuh"
