/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: a thread has four heads of two lines, all of which it asks for before it computes any.
 * Threads that follow each other have heads, then lines, that do; the second lines of a block come
 * after all its first ones.
 *
 *     heads   all
 *     flat    four heads move at once, of A_log and dt_bias too, and lines are a step apart
 */
#include "chunk.cuh"
#include "lines.cuh"
#include "math.cuh"

enum { HEADS = 4, LINES = 2 }; /* of a thread, as in gates.c */

/* Heads from `head` on, n of them to the end of the line, of lines a step apart. */
struct piece {
    int64_t head, line;
    int     n, step;
};

GDN_DEVICE bool is_there(const struct gdn_cu_gates &a, const struct piece &p, int i)
{
    return p.line + i * p.step < a.n_lines;
}

/* The heads of line i. */
template <bool is_flat>
GDN_DEVICE char *find(const struct gdn_cu_gates &a, const struct gdn_cu_lines &l,
                      const struct piece &p, int i)
{
    const int64_t line = p.line + i * p.step;
    char *at = is_flat ? l.data + line * l.step[0] : line_at(a.leads, l, find_line(a.leads, line));
    return at + p.head * float_bytes(l.dtype);
}

/* The dtype is asked once for all: in load_chunk(), where a load of each kind has the same
 * registers, the one that is not wanted would wait for the other. */
template <bool is_flat>
GDN_DEVICE void load_lines(uint32_t (&x)[LINES][HEADS], const struct gdn_cu_gates &a,
                           const struct gdn_cu_lines &from, const struct piece &p)
{
    if (!from.data) return;
    if (!is_flat && !from.access) {
#pragma unroll
        for (int i = 0; i < LINES; i++)
            load_part(x[i], find<is_flat>(a, from, p, i), from.dtype, is_there(a, p, i) ? p.n : 0);
    } else if (from.dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (is_there(a, p, i)) load_quad(x[i], find<is_flat>(a, from, p, i));
    } else {
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (is_there(a, p, i)) load_pair(x[i], find<is_flat>(a, from, p, i));
    }
}

template <bool is_flat>
GDN_DEVICE void store_lines(const struct gdn_cu_gates &a, const struct gdn_cu_lines &to,
                            const struct piece &p, const float (&y)[LINES][HEADS])
{
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        if (!is_there(a, p, i)) return;
        char *at = find<is_flat>(a, to, p, i);
        if (is_flat || to.access) {
            store_chunk(at, y[i], to.dtype);
        } else {
#pragma unroll
            for (int j = 0; j < HEADS; j++)
                if (j < p.n) store_float(at, j, to.dtype, y[i][j]);
        }
    }
}

/* What a vector says of the heads; zeros where it is absent. */
template <bool is_flat>
GDN_DEVICE void load_heads(float (&y)[HEADS], const struct gdn_cu_array &v, const struct piece &p)
{
    if (is_flat) {
        uint32_t x[1][HEADS];
        float    to[1][HEADS];
        load_chunk(x[0], (const char *)v.data + p.head * float_bytes(v.dtype), v.dtype, v.data);
        expand_chunks(to, x, v.dtype);
#pragma unroll
        for (int i = 0; i < HEADS; i++) y[i] = to[0][i];
    } else {
        uint32_t x[HEADS];
#pragma unroll
        for (int i = 0; i < HEADS; i++)
            x[i] = load_bits(v.data, (p.head + i) * v.stride[0], v.dtype, v.data && i < p.n);
#pragma unroll
        for (int i = 0; i < HEADS; i++) y[i] = bits_to_f32(x[i], v.dtype);
    }
}

/* A: exp(A_log) */
GDN_DEVICE void make_g(float (&y)[HEADS], const struct gdn_cu_gates &a, const float (&A)[HEADS],
                       const float (&dt)[HEADS])
{
    if (a.bound < 0) {
#pragma unroll
        for (int j = 0; j < HEADS; j++) y[j] = times_sigmoid(a.bound, A[j] * (y[j] + dt[j]));
    } else {
#pragma unroll
        for (int j = 0; j < HEADS; j++) y[j] = -A[j] * softplus(y[j] + dt[j]);
    }
    if (a.linear) {
#pragma unroll
        for (int j = 0; j < HEADS; j++) y[j] = expf(y[j]);
    }
}

template <bool is_flat>
GDN_DEVICE void write_g(const struct gdn_cu_gates &a, const struct piece &p,
                        const uint32_t (&x)[LINES][HEADS])
{
    float A[HEADS], dt[HEADS], y[LINES][HEADS];
    load_heads<is_flat>(A, a.A_log, p);
    load_heads<is_flat>(dt, a.dt_bias, p);
#pragma unroll
    for (int j = 0; j < HEADS; j++) A[j] = expf(A[j]);
    expand_chunks(y, x, a.a.dtype);
#pragma unroll
    for (int i = 0; i < LINES; i++) make_g(y[i], a, A, dt);
    store_lines<is_flat>(a, a.g, p, y);
}

template <bool is_flat>
GDN_DEVICE void write_beta(const struct gdn_cu_gates &a, const struct piece &p,
                           const uint32_t (&x)[LINES][HEADS])
{
    float y[LINES][HEADS];
    expand_chunks(y, x, a.b.dtype);
#pragma unroll
    for (int i = 0; i < LINES; i++)
#pragma unroll
        for (int j = 0; j < HEADS; j++) y[i][j] = times_sigmoid(a.factor, y[i][j]);
    store_lines<is_flat>(a, a.beta, p, y);
}

template <bool is_flat>
GDN_DEVICE void write_piece(const struct gdn_cu_gates &a, const struct piece &p)
{
    uint32_t x[LINES][HEADS] = {}, b[LINES][HEADS] = {};
    load_lines<is_flat>(x, a, a.a, p);
    load_lines<is_flat>(b, a, a.b, p);
    if (a.g.data) write_g<is_flat>(a, p, x);
    if (a.beta.data) write_beta<is_flat>(a, p, b);
}

/* A line of more heads than a block has threads for is written in turns. */
template <bool is_flat> GDN_DEVICE void write_gates(const struct gdn_cu_gates &a)
{
    const uint32_t fours = (uint32_t)((a.H + HEADS - 1) / HEADS);
    const uint32_t wide  = fours < blockDim.x ? fours : blockDim.x; /* threads of a line */
    const uint32_t lines = blockDim.x / wide, line = threadIdx.x / wide, first = threadIdx.x % wide;
    struct piece   p = { 0, (int64_t)blockIdx.x * LINES * lines + line, HEADS, (int)lines };
    if (line >= lines) return;
    for (uint32_t i = first; i < fours; i += wide) {
        p.head = (int64_t)i * HEADS;
        if (!is_flat && a.H - p.head < HEADS) p.n = (int)(a.H - p.head);
        write_piece<is_flat>(a, p);
    }
}

GDN_DEVICE void write_heads(const struct gdn_cu_gates &a) { write_gates<false>(a); }
GDN_DEVICE void write_flat(const struct gdn_cu_gates &a) { write_gates<true>(a); }

/* Blocks that a multiprocessor has at once, by their registers. */
enum { BUSY_heads = 4, BUSY_flat = 6 };

#define GDN_IMAGE_gates GDN_THIS_IMAGE
#define GDN_KERNEL_gates(threads, shared, form)                                               \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##form)                        \
        gdn_gates_##form(const __grid_constant__ struct gdn_cu_gates a)                       \
    {                                                                                         \
        write_##form(a);                                                                      \
    }
#include "kernels.cuh"
