/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks through the chunks of a window, by a block for a sequence, a head and a strip of
 * columns. The columns of a state never meet, nor do those of its gradient.
 *
 *     forward    S and u; leaves S before each chunk, u, and S after the window
 *     reverse    J, the gradient of S, and Z; leaves J after each chunk and Z
 *
 * The letters are those of docs/design/math.md, section 13.
 */
#ifndef GDN_CUDA_BACKWARD_WALK_CUH
#define GDN_CUDA_BACKWARD_WALK_CUH

#include "cuda/backward/backward.cuh"

struct reverse_shared {
    struct strip_shared strip;
    alignas(16) float z[CHUNK][STRIP + PAD];
};
static_assert(sizeof(struct reverse_shared) <= GDN_CU_REVERSE_BYTES, "reverse_shared");

/* The work of a block. */
struct walk_item {
    int64_t b;
    int head, col, n; /* n columns from col on */
};
GDN_DEVICE struct walk_item find_item(const struct gdn_cu_backward &a)
{
    struct walk_item w;
    w.b = blockIdx.x / a.n_strips / a.rule.H;
    w.head = (int)(blockIdx.x / a.n_strips % a.rule.H);
    w.col = (int)(blockIdx.x % a.n_strips) * STRIP;
    w.n = a.rule.V - w.col < STRIP ? a.rule.V - w.col : STRIP;
    return w;
}

GDN_DEVICE struct stage_strip strip_of(const struct gdn_cu_backward &a, const struct walk_item &w,
                                       const struct gdn_pool_view &view, int64_t slot)
{
    return { view, view.data ? pool_at(view, slot, w.head) : 0, w.col, w.n, a.rule.K };
}

/* Returns the slot of the state before a window, among states that these walks stored. */
GDN_DEVICE int64_t own_start(const struct gdn_cu_backward &a, int64_t row, int64_t window)
{
    return a.plan ? window : row * a.n_windows + window;
}

/* Returns the slot of a checkpoint. Checkpoints are numbered through the batch. All threads of a
 * warp call it. */
GDN_DEVICE int64_t checkpoint_of(const struct gdn_cu_backward &a, int64_t row, int64_t n_chunks)
{
    long long before = 0;
    for (int64_t i = threadIdx.x % 32; i < row; i += 32)
        before += range_of(a.rule.batch, i).n_valid / a.starts_every;
    return sum_warp(before) + n_chunks * GDN_CU_BACKWARD_CHUNK / a.starts_every - 1;
}

/* Returns the state before the window. It is zero if the caller's checkpoints lack it. The
 * checkpoints of gdn_prefill's kernels are numbered as windows are, if these go through the batch
 * (plan.cuh). */
GDN_DEVICE struct stage_strip state_before(const struct gdn_cu_backward &a,
                                           const struct walk_item &w,
                                           const struct backward_window &in)
{
    const int64_t pool = a.rule.batch.checkpoint_pool;
    const bool is_own = !a.starts_every || (a.plan && pool < 0);
    const int64_t slot = is_own ? own_start(a, w.b, a.window) : checkpoint_of(a, w.b, in.before);
    const bool is_there = pool < 0 || slot < pool;
    struct stage_strip s = strip_of(a, w, a.starts, is_there ? slot : 0);
    if (!is_there) s.n = 0;
    return s;
}

/* Loads a strip of rows of V, from tensors (`in`) or from memory (`own`), with zeros beyond n
 * tokens and beyond V. */
GDN_DEVICE void load_columns(float (*x)[STRIP + PAD], const struct gdn_rows &rows,
                             const struct stage_chunk &c, const struct walk_item &w)
{
    for (int i = threadIdx.x; i < CHUNK * STRIP; i += THREADS) {
        const int t = i / STRIP, col = i % STRIP;
        x[t][col] = t < c.n && col < w.n
                        ? load_float(row_at(rows, c.seq, c.t0 + t, w.head), w.col + col, rows.dtype)
                        : 0;
    }
}
GDN_DEVICE void store_columns(const struct gdn_rows &rows, const float (*x)[STRIP + PAD],
                              const struct backward_chunk &c, const struct walk_item &w)
{
    for (int i = threadIdx.x; i < c.in.n * STRIP; i += THREADS)
        if (i % STRIP < w.n)
            row_in(rows, c, i / STRIP, w.head)[w.col + i % STRIP] = x[i / STRIP][i % STRIP];
}

/* ---- Forward ------------------------------------------------------------------------------- */

GDN_DEVICE void backward_forward(const struct gdn_cu_backward &a)
{
    struct strip_shared &sh = *(struct strip_shared *)gdn_stage_shared;
    const struct gdn_cu_rule &r = a.rule;
    const struct walk_item w = find_item(a);
    const struct backward_window in = find_window(a, w.b);
    if (!in.is_there) return;
    load_strip(sh.S, in.before ? state_before(a, w, in) : strip_of(a, w, r.from, w.b), false);
    for (int64_t i = 0; i < in.n_chunks; i++) {
        const struct backward_chunk c = chunk_at(in, i);
        const struct stage_strip at = strip_of(a, w, a.S, c.in.number);
        store_strip(at, sh.S);
        load_gates(sh.chunk.gates, r, c.in, w.head);
        solve_strip(sh, r, c.in, c.own, w.head, at, false);
        store_columns(a.u, sh.x, c, w);
        __syncthreads();
        pass_chunk(sh, r, c.own, w.head);
    }
    if (!in.is_last && !a.starts_every)
        store_strip(strip_of(a, w, a.starts, own_start(a, w.b, a.window + 1)), sh.S);
}

/* ---- Reverse ------------------------------------------------------------------------------- */

/* Computes z = B^T dO + diag(to_end) K J, the gradient of u. B is the member A of `sh`, and x is
 * dO. */
GDN_DEVICE void gradient_of_u(struct reverse_shared &sh, const struct gdn_cu_rule &r,
                              const struct backward_chunk &c, int head)
{
    struct strip_shared &s = sh.strip;
    const struct stage_gates &g = s.chunk.gates;
    const int n = (int)c.in.n;
    float p[2][4];
    multiply_state(p, s, r.k, c.own, source_head(r, head, r.Hk), r.K);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = own_row(i);
        if (t >= n) break;
#pragma unroll
        for (int e = 0; e < 4; e++) p[i][e] = reaches(g, t, n) ? g.to_end[t] * p[i][e] : 0;
        for (int j = t; j < n && g.start[j] <= t; j++)
            add_four(p[i], s.chunk.A[t][j], &s.x[j][own_column()]);
#pragma unroll
        for (int e = 0; e < 4; e++) sh.z[t][own_column() + e] = p[i][e];
    }
    __syncthreads();
}

/* Replaces z by (I + A)^-T z: STEP tokens at a time from the last, by back substitution. */
GDN_DEVICE void solve_reverse(struct reverse_shared &sh, int n)
{
    const struct chunk_shared &s = sh.strip.chunk;
    const int *start = s.gates.start;
    for (int first = (n - 1) / STEP * STEP; first >= 0; first -= STEP) {
        for (int i = threadIdx.x; i < STEP * STRIP; i += THREADS) {
            const int t = first + i / STRIP, col = i % STRIP;
            float z = t < n ? sh.z[t][col] : 0;
            for (int j = first + STEP; j < n && start[j] <= t; j++)
                z = fmaf(-s.A[t][j], sh.z[j][col], z);
            sh.z[t][col] = z;
        }
        __syncthreads();
        if (threadIdx.x < STRIP) {
            float z[STEP];
#pragma unroll
            for (int t = 0; t < STEP; t++) z[t] = sh.z[first + t][threadIdx.x];
#pragma unroll
            for (int j = STEP - 1; j > 0; j--)
#pragma unroll
                for (int t = 0; t < j; t++)
                    if (first + j < n && start[first + j] <= first + t)
                        z[t] = fmaf(-s.A[first + t][first + j], z[j], z[t]);
#pragma unroll
            for (int t = 0; t < STEP; t++) sh.z[first + t][threadIdx.x] = z[t];
        }
        __syncthreads();
    }
}

/* Computes J before the chunk. x is dO of the chunk. */
GDN_DEVICE void step_back(struct reverse_shared &sh, const struct gdn_cu_rule &r,
                          const struct backward_chunk &c, int head)
{
    struct strip_shared &s = sh.strip;
    const struct stage_gates &g = s.chunk.gates;
    const int n = (int)c.in.n;
    const struct stage_update read = { 0, g.n_seeing, g.decay, sees(g, n - 1) };
    const struct stage_update keys = { 0, g.n_seeing, 1, true };
    for (int i = threadIdx.x; i < g.n_seeing * STRIP; i += THREADS)
        s.x[i / STRIP][i % STRIP] *= g.from_start[i / STRIP];
    update_state(s, r.q, c.own, source_head(r, head, r.Hq), r.K, read);
    for (int i = threadIdx.x; i < g.n_seeing * STRIP; i += THREADS) {
        const int t = i / STRIP;
        s.x[t][i % STRIP] = -g.from_start[t] * (g.beta[t] * sh.z[t][i % STRIP]);
    }
    update_state(s, r.k, c.own, source_head(r, head, r.Hk), r.K, keys);
}

/* Stores dstate, in the window with the first chunk. */
GDN_DEVICE void store_gradient(float (*J)[STRIP + PAD], const struct stage_strip &s, bool adds)
{
    for (int i = threadIdx.x; i < s.K * STRIP && adds; i += THREADS) {
        const struct strip_place p = place_of(s, i);
        if (p.col < s.n) J[p.x][p.col] += load_float(s.view.data, p.at, s.view.dtype);
    }
    store_strip(s, J); /* a thread stores the elements that it has added to */
}

GDN_DEVICE void backward_reverse(const struct gdn_cu_backward &a)
{
    struct reverse_shared &sh = *(struct reverse_shared *)gdn_stage_shared;
    struct strip_shared &s = sh.strip;
    const struct gdn_cu_rule &r = a.rule;
    const struct walk_item w = find_item(a);
    const struct backward_window in = find_window(a, w.b);
    if (!in.is_there) return;
    load_strip(s.S, strip_of(a, w, in.is_last ? a.dstate_out : a.carry, w.b), false);
    for (int64_t i = in.n_chunks - 1; i >= 0; i--) {
        const struct backward_chunk c = chunk_at(in, i);
        store_strip(strip_of(a, w, a.J, c.in.number), s.S);
        load_gates(s.chunk.gates, r, c.in, w.head);
        load_columns(s.x, a.dout, c.in, w);
        multiply_keys(s.chunk, r, c.own, w.head, true);
        gradient_of_u(sh, r, c, w.head);
        multiply_keys(s.chunk, r, c.own, w.head, false);
        solve_reverse(sh, (int)c.in.n);
        store_columns(a.z, sh.z, c, w);
        step_back(sh, r, c, w.head);
    }
    if (in.before)
        store_strip(strip_of(a, w, a.carry, w.b), s.S);
    else if (r.to.data)
        store_gradient(s.S, strip_of(a, w, r.to, w.b), a.adds);
}

#endif
