/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of the chunked form, summaries and their products, in float32 (formulas: gdn.h).
 * A block has 256 threads and
 *
 *     cumsum    a warp per chunk and 32 heads
 *     uw        a chunk and head: a thread solves for a column of u, w or T
 *     output    a chunk and head, strips of 32 columns one after the other
 *     states    a sequence, a head and a strip of its state, which walks the chunks
 *     summary   the same with u solved for on the way; columns of U, then those of M
 *     product   a slot, a head and a strip: products.cuh
 */
#include "cuda/prefill/products.cuh"

/* ---- The stages ---------------------------------------------------------------------------- */

/* Sets rows n to n_all of a chunk, which no token computes, to zero. */
GDN_DEVICE void zero_rest(const struct gdn_rows &rows, const struct stage_chunk &c, int head,
                          int columns)
{
    if (!rows.data) return;
    for (int64_t t = c.n; t < c.n_all; t++)
        for (int i = threadIdx.x; i < columns; i += THREADS)
            store_float(row_at(rows, c.seq, c.t0 + t, head), i, rows.dtype, 0);
}

/* Sums gates. Each thread loads eight before it stores, because g and out may be one tensor. */
GDN_DEVICE void stage_cumsum(const struct gdn_cu_stage &a)
{
    enum { LOADS = 8 };
    const struct gdn_cu_rule &r = a.rule;
    const int64_t groups = (r.H + 31) / 32;
    const int64_t item = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t head = item % groups * 32 + threadIdx.x % 32;
    if (item >= a.n_chunks * groups) return;
    const struct stage_chunk c = find_chunk(r.batch, item / groups, a.C);
    double sum = 0;
    if (head >= r.H) return;
    for (int64_t t = 0; t < c.n_all; t += LOADS) {
        float g[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            g[i] = t + i < c.n
                       ? load_float(row_at(r.g, c.seq, c.t0 + t + i, (int)head), 0, r.g.dtype)
                       : 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            if (t + i >= c.n_all) break;
            sum += g[i];
            store_float(row_at(r.out, c.seq, c.t0 + t + i, (int)head), 0, r.out.dtype,
                        t + i < c.n ? (float)(sum * (double)r.scale) : 0);
        }
    }
}

/* A column of an output of uw. */
struct uw_column {
    const struct gdn_rows *to;
    int col;
};
GDN_DEVICE struct uw_column column_at(const struct gdn_cu_stage &a, int i)
{
    const int nu = a.u.data ? a.rule.V : 0, nw = a.w.data ? a.rule.K : 0;
    if (i < nu) return { &a.u, i };
    if (i < nu + nw) return { &a.w, i - nu };
    return { &a.T, i - nu - nw };
}

/* Returns row t of the column's right side; zero if beta is 0 (G8). */
GDN_DEVICE float right_side(const struct gdn_cu_stage &a, const struct stage_gates &g,
                            const struct stage_chunk &c, int head, const struct uw_column &to,
                            int t)
{
    const struct gdn_cu_rule &r = a.rule;
    if (to.to == &a.T) return t == to.col ? 1 : 0;
    if (t >= c.n || g.beta[t] == 0) return 0;
    if (to.to == &a.u)
        return g.beta[t] * load_float(row_at(r.v, c.seq, c.t0 + t, source_head(r, head, r.Hv)),
                                      to.col, r.v.dtype);
    if (!sees(g, t)) return 0;
    return g.beta[t] * g.from_start[t] *
           load_float(row_at(r.k, c.seq, c.t0 + t, source_head(r, head, r.Hk)), to.col, r.k.dtype);
}

GDN_DEVICE void stage_uw(const struct gdn_cu_stage &a)
{
    struct columns_shared &sh = *(struct columns_shared *)gdn_stage_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int head = (int)(blockIdx.x % r.H);
    const struct stage_chunk c = find_chunk(r.batch, blockIdx.x / r.H, a.C);
    const int n = (a.u.data ? r.V : 0) + (a.w.data ? r.K : 0) + (a.T.data ? (int)a.C : 0);
    zero_rest(a.u, c, head, r.V), zero_rest(a.w, c, head, r.K), zero_rest(a.T, c, head, (int)a.C);
    if (c.n == 0) return;
    load_gates(sh.chunk.gates, r, c, head);
    multiply_keys(sh.chunk, r, c, head, false);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const struct uw_column to = column_at(a, i);
        for (int first = 0; first < c.n; first += STEP) {
            float x[STEP];
#pragma unroll
            for (int t = 0; t < STEP; t++)
                x[t] = right_side(a, sh.chunk.gates, c, head, to, first + t);
            solve(x, sh.chunk, sh.x, threadIdx.x, first, (int)c.n);
#pragma unroll
            for (int t = 0; t < STEP; t++) {
                if (first + STEP < c.n) sh.x[first + t][threadIdx.x] = x[t];
                if (first + t < c.n)
                    store_float(row_at(*to.to, c.seq, c.t0 + first + t, head), to.col, to.to->dtype,
                                x[t]);
            }
        }
    }
}

/* Computes x = u - w S. Rows after a forgetting gate keep u. */
GDN_DEVICE void subtract_state(struct strip_shared &sh, const struct gdn_cu_stage &a,
                               const struct stage_chunk &c, int head, const struct stage_strip &s)
{
    float p[2][4];
    multiply_state(p, sh, a.w, c, head, a.rule.K);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = own_row(i), col = own_column() + e;
            float u = 0;
            if (t < c.n && col < s.n)
                u = load_float(row_at(a.u, c.seq, c.t0 + t, head), s.col + col, a.u.dtype);
            sh.x[t][col] = sees(sh.chunk.gates, t) ? u - p[i][e] : u;
        }
    __syncthreads();
}

template <bool summary> GDN_DEVICE void walk_chunks(const struct gdn_cu_stage &a)
{
    struct strip_shared &sh = *(struct strip_shared *)gdn_stage_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int64_t b = blockIdx.x / a.n_strips / r.H;
    const int head = (int)(blockIdx.x / a.n_strips % r.H), strip = blockIdx.x % a.n_strips;
    const bool transition = summary && strip >= a.n_before;
    const int col = (transition ? strip - a.n_before : strip) * STRIP;
    const int left = (transition ? r.K : r.V) - col, n = left < STRIP ? left : STRIP;
    const struct gdn_pool_view &last = transition ? a.M : r.to;
    const struct stage_strip from = { r.from, pool_at(r.from, b, head), col, n, r.K };
    const struct stage_strip to = { last, pool_at(last, b, head), col, n, r.K };
    struct stage_chunk c = {};
    c.seq = range_of(r.batch, b);
    c.number = first_chunk(r.batch, b, a.C);
    load_strip(sh.S, from, transition);
    for (int64_t i = 0; i < chunks_of(c.seq.n_tokens, a.C); i++, c.number++) {
        const struct stage_strip at = { a.states, pool_at(a.states, c.number, head), col, n, r.K };
        if (a.states.data && c.number < a.n_states) store_strip(at, sh.S);
        cut_chunk(c, i, a.C);
        if (c.n == 0) continue;
        load_gates(sh.chunk.gates, r, c, head);
        if (summary)
            solve_strip(sh, r, c, c, head, to, transition);
        else
            subtract_state(sh, a, c, head, to);
        pass_chunk(sh, r, c, head);
    }
    const bool is_left = !summary && c.seq.n_tokens <= 0; /* the states of an empty sequence */
    if (last.data && !is_left) store_strip(to, sh.S);
}

GDN_DEVICE void stage_states(const struct gdn_cu_stage &a) { walk_chunks<false>(a); }
GDN_DEVICE void stage_summary(const struct gdn_cu_stage &a) { walk_chunks<true>(a); }

/* Computes o = scale (from_start q S + A x) of one strip. */
GDN_DEVICE void write_output(struct strip_shared &sh, const struct gdn_cu_stage &a,
                             const struct stage_chunk &c, int head, const struct stage_strip &s)
{
    const struct gdn_cu_rule &r = a.rule;
    const struct stage_gates &g = sh.chunk.gates;
    float o[2][4];
    multiply_state(o, sh, r.q, c, source_head(r, head, r.Hq), r.K);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = own_row(i);
        if (t >= c.n) break;
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][e] = sees(g, t) ? g.from_start[t] * o[i][e] : 0;
        for (int j = sees(g, t) ? 0 : g.start[t]; j <= t; j++)
            add_four(o[i], sh.chunk.A[j][t], &sh.x[j][own_column()]);
        char *row = row_at(r.out, c.seq, c.t0 + t, head);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (own_column() + e < s.n)
                store_float(row, s.col + own_column() + e, r.out.dtype, r.scale * o[i][e]);
    }
    __syncthreads();
}

GDN_DEVICE void stage_output(const struct gdn_cu_stage &a)
{
    struct strip_shared &sh = *(struct strip_shared *)gdn_stage_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int head = (int)(blockIdx.x % r.H);
    const struct stage_chunk c = find_chunk(r.batch, blockIdx.x / r.H, a.C);
    zero_rest(r.out, c, head, r.V);
    if (c.n == 0 || c.number >= a.n_states) return;
    load_gates(sh.chunk.gates, r, c, head);
    multiply_keys(sh.chunk, r, c, head, true);
    for (int col = 0; col < r.V; col += STRIP) {
        const int n = r.V - col < STRIP ? r.V - col : STRIP;
        const struct stage_strip s = { a.states, pool_at(a.states, c.number, head), col, n, r.K };
        load_strip(sh.S, s, false);
        subtract_state(sh, a, c, head, s);
        write_output(sh, a, c, head, s);
    }
}

#define GDN_IMAGE_prefill_stages GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_stages(threads, shared, what)                         \
    extern "C" __global__ void __launch_bounds__(threads, 2)                     \
        gdn_prefill_stages_##what(const __grid_constant__ struct gdn_cu_stage a) \
    {                                                                            \
        stage_##what(a);                                                         \
    }
#define GDN_KERNEL_prefill_product(threads, shared, what)                           \
    extern "C" __global__ void __launch_bounds__(threads, 1)                        \
        gdn_prefill_product_##what(const __grid_constant__ struct gdn_cu_product a) \
    {                                                                               \
        product_##what(a);                                                          \
    }
#include "cuda/driver/kernels.cuh"
