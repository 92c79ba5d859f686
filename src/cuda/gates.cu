/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: a thread has eight heads of some lines, so that what A_log and dt_bias say of them is
 * loaded once. Threads that follow each other have heads, then lines, that do.
 */
#include "lines.cuh"
#include "math.cuh"

enum { LINES = 2 }; /* of a thread, all loaded before the first is computed */

/* What a thread computes. */
struct piece {
    int64_t line, step; /* lines line + i step, */
    int64_t head, n;    /* eight heads from there, n to the end of the line */
};

GDN_DEVICE void load_lines(const struct gdn_cu_gates &a, const struct gdn_cu_lines &from,
                           const struct piece &p, struct gdn_pack (&x)[LINES])
{
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        const int64_t line = p.line + i * p.step;
        const bool    is_there = line < a.n_lines;
        const char   *at = line_at(a.leads, from, find_line(a.leads, is_there ? line : 0));
        load_pack(x[i], from.dtype, from.access, at + p.head * element_bytes(from.dtype),
                  is_there ? p.n : 0);
    }
}

GDN_DEVICE void store_line(const struct gdn_cu_gates &a, const struct gdn_cu_lines &to,
                           const struct piece &p, int i, const float (&y)[8])
{
    const int64_t line = p.line + i * p.step;
    if (line >= a.n_lines) return;
    struct gdn_pack out;
    pack(out, y, to.dtype);
    store_pack(line_at(a.leads, to, find_line(a.leads, line)) + p.head * element_bytes(to.dtype), out,
               to.dtype, to.access, p.n);
}

/* n elements of a vector from `first` on, zeros beyond and where it is absent. */
GDN_DEVICE void load_vector_at(float (&y)[8], const struct gdn_cu_array &v, int64_t first,
                               int64_t n)
{
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = i < n ? load_vector(v, first + i, 0) : 0;
}

GDN_DEVICE void write_g(const struct gdn_cu_gates &a, const struct piece &p)
{
    struct gdn_pack x[LINES];
    float           A[8], dt[8], y[8];
    load_lines(a, a.a, p, x);
    load_vector_at(A, a.A_log, p.head, p.n);
    load_vector_at(dt, a.dt_bias, p.head, p.n);
#pragma unroll
    for (int j = 0; j < 8; j++) A[j] = a.bound < 0 ? expf(A[j]) : -expf(A[j]);
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        unpack(y, x[i], a.a.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            y[j] += dt[j];
            y[j] = a.bound < 0 ? times_sigmoid(a.bound, A[j] * y[j]) : A[j] * softplus(y[j]);
            if (a.linear) y[j] = expf(y[j]);
        }
        store_line(a, a.g, p, i, y);
    }
}

GDN_DEVICE void write_beta(const struct gdn_cu_gates &a, const struct piece &p)
{
    struct gdn_pack x[LINES];
    float           y[8];
    load_lines(a, a.b, p, x);
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        unpack(y, x[i], a.b.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = times_sigmoid(a.factor, y[j]);
        store_line(a, a.beta, p, i, y);
    }
}

GDN_DEVICE void write_heads(const struct gdn_cu_gates &a)
{
    const int    packs = (int)((a.H + GDN_PACK - 1) / GDN_PACK);
    const int    wide  = packs < (int)blockDim.x ? packs : (int)blockDim.x; /* threads of a line */
    const int    lines = (int)blockDim.x / wide;
    const int    line = (int)threadIdx.x / wide, first = (int)threadIdx.x % wide;
    struct piece p = { (int64_t)blockIdx.x * lines * LINES + line, lines, 0, 0 };
    if (line >= lines) return;
    for (int i = first; i < packs; i += wide) {
        p.head = (int64_t)i * GDN_PACK;
        p.n    = a.H - p.head;
        if (a.g.data) write_g(a, p);
        if (a.beta.data) write_beta(a, p);
    }
}

#define GDN_KERNEL_gates(threads, shared, form)                                               \
    extern "C" __global__ void __launch_bounds__(threads)                                     \
        gdn_gates_##form(const __grid_constant__ struct gdn_cu_gates a)                       \
    {                                                                                         \
        write_##form(a);                                                                      \
    }
#include "kernels.def"
