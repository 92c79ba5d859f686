/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: a thread has eight heads of some lines, all blocks apart, so that what A_log and
 * dt_bias say of them is loaded once. Threads that follow each other have heads, then lines, that
 * do.
 *
 *     heads   all
 *     flat    a and b of one dtype, g and beta float32, whole packs that move at once, lines a
 *             step apart: nothing is asked
 */
#include "chunk.cuh"
#include "lines.cuh"
#include "math.cuh"

enum { floats = -1, f32 = GDN_F32, bf16 = GDN_BF16, f16 = GDN_F16 };

/* Eight heads from `head` on, n of them to the end of the line, of lines a step apart. */
struct piece {
    int64_t head, n, line, step;
};

/* The dtype of a and b is known when compiling (flat), or it is `floats`. */
template <int dtype>
GDN_DEVICE char *find(const struct gdn_cu_gates &a, const struct gdn_cu_lines &l,
                      const struct piece &p, int64_t line, int32_t type)
{
    char *at = dtype == floats ? line_at(a.leads, l, find_line(a.leads, line))
                               : l.data + line * l.step[0];
    return at + p.head * element_bytes(type);
}

template <int dtype>
GDN_DEVICE void load_line(struct gdn_pack &x, const struct gdn_cu_gates &a,
                          const struct gdn_cu_lines &from, const struct piece &p, int64_t line)
{
    const int32_t type = dtype == floats ? from.dtype : dtype;
    if (from.data && line < a.n_lines)
        load_pack(x, type, dtype == floats ? from.access : 16, find<dtype>(a, from, p, line, type),
                  p.n);
}

template <int dtype>
GDN_DEVICE void store_line(const struct gdn_cu_gates &a, const struct gdn_cu_lines &to,
                           const struct piece &p, const float (&y)[8])
{
    const int32_t   type = dtype == floats ? to.dtype : f32;
    struct gdn_pack out;
    pack(out, y, type);
    store_pack(find<dtype>(a, to, p, p.line, type), out, type, dtype == floats ? to.access : 16,
               p.n);
}

/* n elements of a vector from `first` on, zeros beyond and where it is absent. */
GDN_DEVICE void load_vector_at(uint32_t (&y)[8], const struct gdn_cu_array &v, int64_t first,
                               int64_t n)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        y[i] = load_bits(v.data, (first + i) * v.stride[0], v.dtype, v.data && i < n);
}

/* What A_log and dt_bias say of eight heads. */
struct heads {
    float A[8], dt[8];
};

GDN_DEVICE void load_heads(struct heads &h, const struct gdn_cu_gates &a, const struct piece &p)
{
    uint32_t A[8], dt[8];
    load_vector_at(A, a.A_log, p.head, p.n);
    load_vector_at(dt, a.dt_bias, p.head, p.n);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float e = expf(bits_to_f32(A[j], a.A_log.dtype));
        h.A[j]        = a.bound < 0 ? e : -e;
        h.dt[j]       = bits_to_f32(dt[j], a.dt_bias.dtype);
    }
}

template <int dtype>
GDN_DEVICE void write_g(const struct gdn_cu_gates &a, const struct piece &p,
                        const struct gdn_pack &x, const struct heads &h)
{
    float y[8];
    unpack(y, x, dtype == floats ? a.a.dtype : dtype);
    if (a.bound < 0) {
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = times_sigmoid(a.bound, h.A[j] * (y[j] + h.dt[j]));
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = h.A[j] * softplus(y[j] + h.dt[j]);
    }
    if (a.linear) {
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = expf(y[j]);
    }
    store_line<dtype>(a, a.g, p, y);
}

template <int dtype>
GDN_DEVICE void write_beta(const struct gdn_cu_gates &a, const struct piece &p,
                           const struct gdn_pack &x)
{
    float y[8];
    unpack(y, x, dtype == floats ? a.b.dtype : dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = times_sigmoid(a.factor, y[j]);
    store_line<dtype>(a, a.beta, p, y);
}

/* A line is on its way while the one before it is computed. */
template <int dtype> GDN_DEVICE void write_lines(const struct gdn_cu_gates &a, struct piece p)
{
    struct gdn_pack x = {}, b = {};
    struct heads    h;
    load_line<dtype>(x, a, a.a, p, p.line);
    load_line<dtype>(b, a, a.b, p, p.line);
    if (a.g.data) load_heads(h, a, p);
#pragma unroll 1
    for (; p.line < a.n_lines; p.line += p.step) {
        if (a.g.data) write_g<dtype>(a, p, x, h);
        load_line<dtype>(x, a, a.a, p, p.line + p.step);
        if (a.beta.data) write_beta<dtype>(a, p, b);
        load_line<dtype>(b, a, a.b, p, p.line + p.step);
    }
}

template <int dtype> GDN_DEVICE void write_gates(const struct gdn_cu_gates &a)
{
    const int    packs = (int)((a.H + GDN_PACK - 1) / GDN_PACK);
    const int    wide  = packs < (int)blockDim.x ? packs : (int)blockDim.x; /* threads of a line */
    const int    lines = (int)blockDim.x / wide;
    const int    line = (int)threadIdx.x / wide, first = (int)threadIdx.x % wide;
    struct piece p = { 0, 0, (int64_t)blockIdx.x * lines + line, (int64_t)gridDim.x * lines };
    if (line >= lines) return;
    for (int i = first; i < packs; i += wide) {
        p.head = (int64_t)i * GDN_PACK;
        p.n    = dtype == floats ? a.H - p.head : GDN_PACK;
        write_lines<dtype>(a, p);
    }
}

GDN_DEVICE void write_heads(const struct gdn_cu_gates &a) { write_gates<floats>(a); }
GDN_DEVICE void write_flat_f32(const struct gdn_cu_gates &a) { write_gates<f32>(a); }
GDN_DEVICE void write_flat_bf16(const struct gdn_cu_gates &a) { write_gates<bf16>(a); }
GDN_DEVICE void write_flat_f16(const struct gdn_cu_gates &a) { write_gates<f16>(a); }

/* Blocks that a multiprocessor has at once, by their registers; as in gates.c. */
enum { BUSY_heads = 2, BUSY_flat_f32 = 3, BUSY_flat_bf16 = 4, BUSY_flat_f16 = 4 };

#define GDN_IMAGE_gates GDN_THIS_IMAGE
#define GDN_KERNEL_gates(threads, shared, form)                                               \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##form)                        \
        gdn_gates_##form(const __grid_constant__ struct gdn_cu_gates a)                       \
    {                                                                                         \
        write_##form(a);                                                                      \
    }
#include "kernels.cuh"
