/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: a thread has a place in some lines, all of which it asks for before it computes any.
 * Threads that follow each other have heads, then lines, that do; the second lines of a block come
 * after all its first ones, and so on. How many a thread has, the host says: where there are few,
 * one, so that they are many threads'.
 *
 *     heads           all, of any strides; a place is one head, or one channel of a line's head
 *     flat_<dtype>    a and b of that dtype; four heads, which move at once, of outputs, A_log and
 *                     dt_bias too, and lines are a step apart
 */
#include "cuda/device/lines.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/quad.cuh"
#include "cuda/rowwise/args.h"

/* As in gates.c: a thread has four heads of up to LINES lines, or one head of up to ONES. */
enum { HEADS = 4, LINES = 4, ONES = 2 };

/* The thread's lines: from `line` on, `step` apart, as far as they are less than `left` behind
 * `line`. */
struct place {
    int64_t line;
    int at, step, left; /* at: the thread's place in a line, below a.wide */
};

/* Finds the thread's place. For numbers up to 256 the product with the inverse is an exact
 * division. */
GDN_DEVICE struct place find_place(const struct gdn_cu_gates &a)
{
    const uint32_t row = threadIdx.x * a.inverse >> 16, step = blockDim.x * a.inverse >> 16;
    const int64_t line = (int64_t)blockIdx.x * (a.each * step) + row, left = a.n_lines - line;
    const int most = row < step ? (int)(a.each * step) : 0;
    return { line, (int)(threadIdx.x - row * a.wide), (int)step, left < most ? (int)left : most };
}

/* ---- Formulas, of what float32 has been made of -------------------------------------------- */

/* Returns the factor of g: exp(A_log), with the sign of the formula. */
GDN_DEVICE float factor_of_g(const struct gdn_cu_gates &a, float A_log)
{
    const float A = expf(A_log);
    return a.bound < 0 ? A : -A;
}

template <int n>
GDN_DEVICE void make_g(float (&y)[n], const struct gdn_cu_gates &a, const float (&A)[n],
                       const float (&dt)[n])
{
    if (a.bound < 0) {
#pragma unroll
        for (int j = 0; j < n; j++) y[j] = times_sigmoid(a.bound, A[j] * (y[j] + dt[j]));
    } else {
#pragma unroll
        for (int j = 0; j < n; j++) y[j] = A[j] * softplus(y[j] + dt[j]);
    }
    if (a.linear) {
#pragma unroll
        for (int j = 0; j < n; j++) y[j] = expf(y[j]);
    }
}

template <int n> GDN_DEVICE void make_beta(float (&y)[n], const struct gdn_cu_gates &a)
{
#pragma unroll
    for (int j = 0; j < n; j++) y[j] = times_sigmoid(a.factor, y[j]);
}

/* ---- Four heads, lines a step apart -------------------------------------------------------- */

template <int dtype>
GDN_DEVICE void load_fours(uint32_t (&x)[LINES][HEADS], const struct gdn_cu_lines &from,
                           const struct place &p)
{
    const char *at = from.data + p.line * from.step[0] + p.at * HEADS * float_bytes(dtype);
#pragma unroll
    for (int i = 0; i < LINES; i++)
        load_chunk(x[i], at + i * p.step * from.step[0], dtype, from.data && i * p.step < p.left);
}

GDN_DEVICE char *find_four(const struct gdn_cu_lines &to, const struct place &p)
{
    return to.data + p.line * to.step[0] + p.at * HEADS * float_bytes(to.dtype);
}

/* Loads a vector's elements for the heads; zeros if the vector is absent. */
GDN_DEVICE void load_heads(uint32_t (&x)[1][HEADS], const struct gdn_cu_array &v, int at)
{
    load_chunk(x[0], (const char *)v.data + at * HEADS * float_bytes(v.dtype), v.dtype, v.data);
}

template <int dtype>
GDN_DEVICE void write_g_fours(const struct gdn_cu_gates &a, const struct place &p,
                              const uint32_t (&x)[LINES][HEADS])
{
    uint32_t raw_A[1][HEADS], raw_dt[1][HEADS];
    float A[1][HEADS], dt[1][HEADS], y[LINES][HEADS];
    load_heads(raw_A, a.A_log, p.at);
    load_heads(raw_dt, a.dt_bias, p.at);
    expand_chunks(A, raw_A, a.A_log.dtype);
    expand_chunks(dt, raw_dt, a.dt_bias.dtype);
#pragma unroll
    for (int j = 0; j < HEADS; j++) A[0][j] = factor_of_g(a, A[0][j]);
    expand_chunks(y, x, dtype);
    char *at = find_four(a.g, p);
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        if (i * p.step >= p.left) return;
        make_g(y[i], a, A[0], dt[0]);
        store_chunk(at + i * p.step * a.g.step[0], y[i], a.g.dtype);
    }
}

template <int dtype>
GDN_DEVICE void write_beta_fours(const struct gdn_cu_gates &a, const struct place &p,
                                 const uint32_t (&x)[LINES][HEADS])
{
    float y[LINES][HEADS];
    expand_chunks(y, x, dtype);
    char *at = find_four(a.beta, p);
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        if (i * p.step >= p.left) return;
        make_beta(y[i], a);
        store_chunk(at + i * p.step * a.beta.step[0], y[i], a.beta.dtype);
    }
}

template <int dtype> GDN_DEVICE void write_fours(const struct gdn_cu_gates &a)
{
    const struct place p = find_place(a);
    uint32_t x[LINES][HEADS], b[LINES][HEADS];
    if (p.left <= 0) return;
    load_fours<dtype>(x, a.a, p);
    load_fours<dtype>(b, a.b, p);
    if (a.g.data) write_g_fours<dtype>(a, p, x);
    if (a.beta.data) write_beta_fours<dtype>(a, p, b);
}

GDN_DEVICE void write_flat_f32(const struct gdn_cu_gates &a) { write_fours<GDN_F32>(a); }
GDN_DEVICE void write_flat_bf16(const struct gdn_cu_gates &a) { write_fours<GDN_BF16>(a); }
GDN_DEVICE void write_flat_f16(const struct gdn_cu_gates &a) { write_fours<GDN_F16>(a); }

/* ---- One head ------------------------------------------------------------------------------ */

/* The addresses of the lines of each tensor. */
struct lines {
    char *a[ONES], *b[ONES], *g[ONES], *beta[ONES];
};

GDN_DEVICE void step_by(struct lines &l, int i, const struct gdn_cu_gates &a, int lead, int64_t n)
{
    l.a[i] += n * a.a.step[lead], l.b[i] += n * a.b.step[lead];
    l.g[i] += n * a.g.step[lead], l.beta[i] += n * a.beta.step[lead];
}

GDN_DEVICE void find(struct lines &l, int i, const struct gdn_cu_gates &a, int64_t line)
{
    l.a[i] = a.a.data, l.b[i] = a.b.data, l.g[i] = a.g.data, l.beta[i] = a.beta.data;
#pragma unroll 1
    for (int lead = a.leads.n - 1; lead > 0; lead--) {
        const int64_t rest = divide(line, a.leads.size[lead]);
        step_by(l, i, a, lead, line - rest * a.leads.size[lead]);
        line = rest;
    }
    step_by(l, i, a, 0, line);
}

/* Loads an element of each line. load_bits() has two loads into one register, and the second
 * would wait for the first. Behind a branch there is one load. */
GDN_DEVICE void load_ones(uint32_t (&x)[ONES], char *const (&at)[ONES],
                          const struct gdn_cu_lines &from, const struct place &p, int64_t head)
{
    const int64_t e = head * from.element;
    if (from.dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < ONES; i++)
            x[i] = load_bits(at[i], e, GDN_F32, from.data && i * p.step < p.left);
    } else {
#pragma unroll
        for (int i = 0; i < ONES; i++)
            x[i] = load_bits(at[i], e, GDN_BF16, from.data && i * p.step < p.left);
    }
}

/* Loads a vector's element for a head; zero if the vector is absent. */
GDN_DEVICE uint32_t load_head(const struct gdn_cu_array &v, int64_t head)
{
    if (v.dtype == GDN_F32) return load_bits(v.data, head * v.stride[0], GDN_F32, v.data);
    return load_bits(v.data, head * v.stride[0], GDN_BF16, v.data);
}

GDN_DEVICE void write_head(const struct gdn_cu_gates &a, const struct place &p,
                           const struct lines &l, int64_t head)
{
    uint32_t x[ONES], b[ONES];
    load_ones(x, l.a, a.a, p, head);
    load_ones(b, l.b, a.b, p, head);
    const uint32_t raw_A = load_head(a.A_log, head), raw_dt = load_head(a.dt_bias, head);
    const float A[1] = { factor_of_g(a, bits_to_f32(raw_A, a.A_log.dtype)) };
    const float dt[1] = { bits_to_f32(raw_dt, a.dt_bias.dtype) };
#pragma unroll
    for (int i = 0; i < ONES; i++) {
        if (i * p.step >= p.left) return;
        if (a.g.data) {
            float y[1] = { bits_to_f32(x[i], a.a.dtype) };
            make_g(y, a, A, dt);
            store_float(l.g[i], head * a.g.element, a.g.dtype, y[0]);
        }
        if (a.beta.data) {
            float y[1] = { bits_to_f32(b[i], a.b.dtype) };
            make_beta(y, a);
            store_float(l.beta[i], head * a.beta.element, a.beta.dtype, y[0]);
        }
    }
}

/* Writes the channels of lines. A line is of one head. */
GDN_DEVICE void write_channels(const struct gdn_cu_gates &a, const struct place &p)
{
    const struct gdn_cu_array &bias = a.dt_bias;
#pragma unroll 1
    for (int i = 0; i * p.step < p.left; i++) {
        const int64_t line = p.line + i * p.step, head = line - divide(line, a.n_heads) * a.n_heads;
        const struct gdn_line at = find_line(a.leads, line);
        const char *const from = line_at(a.leads, a.a, at);
        char *const to = line_at(a.leads, a.g, at);
        const float A[1] = { factor_of_g(a, load_vector(a.A_log, head, 0)) };
#pragma unroll 1
        for (int64_t x = p.at; x < a.H; x += a.wide) {
            const int64_t in_bias = head * bias.stride[0] + x * bias.stride[1];
            const float dt[1] = { load_float(bias.data, in_bias, bias.dtype) };
            float y[1] = { load_float(from, x * a.a.element, a.a.dtype) };
            make_g(y, a, A, dt);
            store_float(to, x * a.g.element, a.g.dtype, y[0]);
        }
    }
}

/* Writes the heads of a line. If there are more heads than threads, a thread takes several in
 * turn. */
GDN_DEVICE void write_heads(const struct gdn_cu_gates &a)
{
    const struct place p = find_place(a);
    struct lines l = {};
    if (p.left <= 0) return;
    if (a.n_heads) {
        write_channels(a, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < ONES; i++)
        if (i * p.step < p.left) find(l, i, a, p.line + i * p.step);
    for (int64_t head = p.at; head < a.H; head += a.wide) write_head(a, p, l, head);
}

/* The blocks that a multiprocessor has at once, which registers limit. */
enum { BUSY_heads = 5, BUSY_flat_f32 = 4, BUSY_flat_bf16 = 5, BUSY_flat_f16 = 5 };

#define GDN_IMAGE_gates GDN_THIS_IMAGE
#define GDN_KERNEL_gates(threads, shared, form)                         \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##form)  \
        gdn_gates_##form(const __grid_constant__ struct gdn_cu_gates a) \
    {                                                                   \
        write_##form(a);                                                \
    }
#include "cuda/driver/kernels.cuh"
