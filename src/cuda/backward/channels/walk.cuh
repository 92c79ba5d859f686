/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks through the tokens of a window, by a block for a sequence, a head and a strip of
 * columns. The columns of a state never meet, nor do those of its gradient.
 *
 *     forward    S and u; leaves S before each piece, u, and S after the window
 *     reverse    J and z, the gradient of u; leaves J after each piece, z, and J before the window
 *
 * A warp has four columns of a state, a lane an eighth of the channels of one: groups of four
 * channels, lane % 8 and each eighth further. Rows of the next tokens come while these are worked
 * on. What a gate forgets is zeroed, not multiplied by 0 (G7).
 */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_WALK_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_WALK_CUH

#include "cuda/backward/channels/channels.cuh"
#include "cuda/device/ptx_mma.cuh"

enum { UPDATES = GDN_CU_PIECE / 2 }; /* updates at a time: half a piece */

/* Rows of half a piece. depth: the channels that a lane has, times eight. */
template <int depth> struct walk_rows {
    alignas(16) float k[UPDATES][depth], e[UPDATES][depth], a[UPDATES][depth], q[UPDATES][depth];
    float x[UPDATES][STRIP]; /* w v; or dout of tokens */
    int flags[UPDATES];
};
template <int depth> struct walk_shared {
    struct walk_rows<depth> rows[2];
    float out[2][UPDATES][STRIP]; /* u or z */
};
extern __shared__ __align__(128) char gdn_shared[];

static_assert(sizeof(struct walk_shared<128>) <= GDN_CU_CHANNELS_WALK_BYTES, "walk_shared");
static_assert(sizeof(struct walk_shared<256>) <= GDN_CU_CHANNELS_DEEP_BYTES, "walk_shared");

/* A lane's part of a state; and of a row. */
template <int depth> struct lane_state {
    enum { GROUPS = depth / 32 };
    float x[GROUPS][4];
};
template <int depth> struct lane_row {
    float4 x[depth / 32];
};

/* A walk: its sequence, head and strip, and its part of a window. */
struct channels_walk {
    struct walk_item item;
    struct backward_window in;
    int column; /* the lane's column of the state */
    bool is_there, has_column;
};
GDN_DEVICE struct channels_walk find_walk(const struct gdn_cu_backward_channels &a)
{
    struct channels_walk w = {};
    w.item = find_item(a.base);
    w.item.b = row_of_walk(a.base, w.item.b);
    if (w.item.b >= a.base.rule.batch.B) return w;
    w.in = find_window(a.base, w.item.b);
    w.column = w.item.col + (int)threadIdx.x / 8;
    w.has_column = (int)threadIdx.x / 8 < w.item.n;
    w.is_there = w.in.is_there;
    return w;
}

GDN_DEVICE int lane_group(int i) { return threadIdx.x % 8 + 8 * i; }

/* ---- States -------------------------------------------------------------------------------- */

/* Calls what(x, at) for each element x of the lane, with its place in a pool of any layout. */
template <int depth, class What>
GDN_DEVICE void each_place(struct lane_state<depth> &S, const struct gdn_cu_backward_channels &a,
                           const struct gdn_pool_view &view, const struct channels_walk &w,
                           const What &what)
{
    const int64_t first = pool_at(view, w.item.b, w.item.head);
    const int64_t near = 1 + view.gap, k = view.k_first ? view.ld : near;
    const int64_t column = w.column * (view.k_first ? near : view.ld);
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int x = 4 * lane_group(i) + j;
            if (w.has_column && x < a.base.rule.K) what(S.x[i][j], first + column + x * k);
        }
}
template <int depth>
GDN_DEVICE void load_given(struct lane_state<depth> &S, const struct gdn_cu_backward_channels &a,
                           const struct gdn_pool_view &view, const struct channels_walk &w)
{
    S = {};
    if (!view.data) return;
    each_place(S, a, view, w,
               [&](float &x, int64_t at) { x = load_float(view.data, at, view.dtype); });
}
template <int depth>
GDN_DEVICE void store_given(struct lane_state<depth> &S, const struct gdn_cu_backward_channels &a,
                            const struct gdn_pool_view &view, const struct channels_walk &w)
{
    each_place(S, a, view, w, [&](float &x, int64_t at) {
        const float old = a.base.adds ? load_float(view.data, at, view.dtype) : 0;
        store_float(view.data, at, view.dtype, a.base.adds ? old + x : x);
    });
}

template <int depth>
GDN_DEVICE void load_own(struct lane_state<depth> &S, const struct gdn_cu_backward_channels &a,
                         const struct gdn_pool_view &view, int64_t slot,
                         const struct channels_walk &w)
{
    S = {};
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++) {
        if (!w.has_column || 4 * lane_group(i) >= a.ld) continue;
        const float4 four =
            *(const float4 *)state_at(a, view, slot, w.item.head, lane_group(i), w.column);
        S.x[i][0] = four.x, S.x[i][1] = four.y, S.x[i][2] = four.z, S.x[i][3] = four.w;
    }
}
template <int depth>
GDN_DEVICE void
store_own(const struct lane_state<depth> &S, const struct gdn_cu_backward_channels &a,
          const struct gdn_pool_view &view, int64_t slot, const struct channels_walk &w)
{
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++)
        if (w.has_column && 4 * lane_group(i) < a.ld)
            *(float4 *)state_at(a, view, slot, w.item.head, lane_group(i), w.column) =
                make_float4(S.x[i][0], S.x[i][1], S.x[i][2], S.x[i][3]);
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* The tokens of half a piece: [t0, t0 + n) of a window. */
struct walk_half {
    int64_t t0;
    int n;
};
GDN_DEVICE int half_tokens(const struct gdn_cu_backward_channels &a) { return a.tokens / 2; }
GDN_DEVICE int64_t count_halves(const struct gdn_cu_backward_channels &a,
                                const struct channels_walk &w)
{
    return chunks_of(w.in.seq.n_valid, half_tokens(a));
}
GDN_DEVICE struct walk_half half_at(const struct gdn_cu_backward_channels &a,
                                    const struct channels_walk &w, int64_t i)
{
    const int most = half_tokens(a);
    return { i * most, (int)clamp64(w.in.seq.n_valid - i * most, 0, most) };
}

/* Begins to copy n rows in memory, from `first` on, with zeros beyond ld. */
template <int depth>
GDN_DEVICE void copy_rows(float (*to)[depth], const struct gdn_cu_backward_channels &a,
                          const struct gdn_rows &from, int64_t first, int n, int head)
{
    enum { PARTS = depth / 4 };
    for (int i = threadIdx.x; i < n * PARTS; i += THREADS) {
        const int x = i % PARTS * 4;
        const bool is = x < a.ld;
        copy_async<16>(shared_address(&to[i / PARTS][x]),
                       memory_row(from, first + i / PARTS, head) + (is ? x : 0), is ? 16 : 0);
    }
}

/* A thread's numbers that are loaded with the rows of half a piece. */
struct walk_part {
    float x;
    int flags;
};

/* Returns w v of the thread's update and column. */
GDN_DEVICE float written_at(const struct gdn_cu_backward_channels &a, const struct channels_walk &w,
                            const struct walk_half &h)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int i = threadIdx.x / STRIP, n = a.n_updates, v = w.item.col + threadIdx.x % STRIP;
    const int64_t t = h.t0 + i / n;
    if (i >= h.n * n || v >= r.V) return 0;
    const float write = family_w(r, w.in.seq, t, w.item.head, i % n, v);
    const char *row =
        row_at(r.v, w.in.seq, t, source_head(r, w.item.head, r.Hv)) + i % n * r.family.v_update;
    return write == 0 ? 0 : family_written(write, load_float(row, v, r.v.dtype));
}
GDN_DEVICE float dout_at(const struct gdn_cu_backward_channels &a, const struct channels_walk &w,
                         const struct walk_half &h)
{
    const struct gdn_rows &dout = a.base.dout;
    const int i = threadIdx.x / STRIP, v = w.item.col + threadIdx.x % STRIP;
    if (i >= h.n || v >= a.base.rule.V) return 0;
    return load_float(row_at(dout, w.in.seq, h.t0 + i, w.item.head), v, dout.dtype);
}

/* Begins to copy the rows of half a piece, and loads the thread's numbers. */
template <bool reverse, int depth>
GDN_DEVICE struct walk_part start_rows(struct walk_rows<depth> &to,
                                       const struct gdn_cu_backward_channels &a,
                                       const struct channels_walk &w, const struct walk_half &h)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int64_t token = w.in.first * GDN_CU_BACKWARD_CHUNK + h.t0, first = token * a.n_updates;
    const int n = h.n * a.n_updates, head = w.item.head;
    struct walk_part part = {};
    copy_rows(to.k, a, r.k, first, n, source_head(r, head, r.Hk));
    copy_rows(to.e, a, a.e, first, n, head);
    copy_rows(to.a, a, a.a, token, h.n, head);
    if (reverse) copy_rows(to.q, a, r.q, token, h.n, source_head(r, head, r.Hq));
    copy_commit();
    part.x = reverse ? dout_at(a, w, h) : written_at(a, w, h);
    if ((int)threadIdx.x < n) part.flags = a.flags[(first + threadIdx.x) * r.H + head];
    return part;
}
template <int depth>
GDN_DEVICE void finish_rows(struct walk_rows<depth> &to, const struct walk_part &part)
{
    to.x[threadIdx.x / STRIP][threadIdx.x % STRIP] = part.x;
    if (threadIdx.x < UPDATES) to.flags[threadIdx.x] = part.flags;
    copy_wait<0>();
    __syncthreads();
}

/* Stores u or z of half a piece. A thread has one number. */
GDN_DEVICE void store_out(const struct gdn_rows &to, const float (*out)[STRIP],
                          const struct gdn_cu_backward_channels &a, const struct channels_walk &w,
                          const struct walk_half &h)
{
    const int i = threadIdx.x / STRIP, v = threadIdx.x % STRIP;
    const int64_t first = (w.in.first * GDN_CU_BACKWARD_CHUNK + h.t0) * a.n_updates;
    if (i < h.n * a.n_updates && v < w.item.n)
        memory_row(to, first + i, w.item.head)[w.item.col + v] = out[i][v];
}

/* ---- Steps --------------------------------------------------------------------------------- */

template <int depth> GDN_DEVICE void load_lane(struct lane_row<depth> &to, const float *row)
{
#pragma unroll
    for (int i = 0; i < depth / 32; i++) to.x[i] = *(const float4 *)(row + 4 * lane_group(i));
}

/* Computes S <- diag(a) S. */
template <int depth>
GDN_DEVICE void decay_rows(struct lane_state<depth> &S, const struct lane_row<depth> &a,
                           bool forgets)
{
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++) {
        S.x[i][0] *= a.x[i].x, S.x[i][1] *= a.x[i].y;
        S.x[i][2] *= a.x[i].z, S.x[i][3] *= a.x[i].w;
    }
    if (forgets)
#pragma unroll
        for (int i = 0; i < S.GROUPS; i++) {
            if (a.x[i].x == 0) S.x[i][0] = 0;
            if (a.x[i].y == 0) S.x[i][1] = 0;
            if (a.x[i].z == 0) S.x[i][2] = 0;
            if (a.x[i].w == 0) S.x[i][3] = 0;
        }
}

/* Returns the product of a row with the lane's column. The eight lanes of the column call it. */
template <int depth>
GDN_DEVICE float times_column(const struct lane_state<depth> &S, const struct lane_row<depth> &row)
{
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++) {
        sum[0] = fmaf(row.x[i].x, S.x[i][0], sum[0]), sum[1] = fmaf(row.x[i].y, S.x[i][1], sum[1]);
        sum[2] = fmaf(row.x[i].z, S.x[i][2], sum[2]), sum[3] = fmaf(row.x[i].w, S.x[i][3], sum[3]);
    }
    float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
#pragma unroll
    for (int step = 4; step; step /= 2) all += __shfl_xor_sync(0xffffffff, all, step);
    return all;
}

/* Computes S += row x^T. */
template <int depth>
GDN_DEVICE void add_outer(struct lane_state<depth> &S, const struct lane_row<depth> &row, float x)
{
#pragma unroll
    for (int i = 0; i < S.GROUPS; i++) {
        S.x[i][0] = fmaf(row.x[i].x, x, S.x[i][0]), S.x[i][1] = fmaf(row.x[i].y, x, S.x[i][1]);
        S.x[i][2] = fmaf(row.x[i].z, x, S.x[i][2]), S.x[i][3] = fmaf(row.x[i].w, x, S.x[i][3]);
    }
}

/* Rows of an update that a lane loads before the update before it is done. If there are many
 * channels, registers have no room for them. The other rows are loaded while the update is
 * computed. */
template <int depth> struct lane_update {
    struct lane_row<depth> first, second; /* a and e, or q and k */
    float x;
    int flags;
};
template <int depth> GDN_DEVICE bool reads_ahead(void) { return depth <= 128; }

/* ---- Forward ------------------------------------------------------------------------------- */

template <int depth>
GDN_DEVICE void read_forward(struct lane_update<depth> &to, const struct walk_rows<depth> &rows,
                             int i, int n)
{
    to.flags = rows.flags[i];
    to.x = rows.x[i][threadIdx.x / 8];
    if (n == 1 || i % n == 0) load_lane(to.first, rows.a[n == 1 ? i : i / n]);
    load_lane(to.second, rows.e[i]);
}

template <int depth>
GDN_DEVICE void forward_half(struct lane_state<depth> &S, float (*out)[STRIP],
                             const struct walk_rows<depth> &rows, int n_rows, int n)
{
    struct lane_update<depth> now, next;
    read_forward(now, rows, 0, n);
    for (int i = 0; i < n_rows; i++) {
        struct lane_row<depth> k;
        float u = 0;
        load_lane(k, rows.k[i]);
        if (reads_ahead<depth>() && i + 1 < n_rows) read_forward(next, rows, i + 1, n);
        if (n == 1 || i % n == 0) decay_rows(S, now.first, now.flags & GDN_CU_FORGETS);
        if (now.flags & GDN_CU_WRITES) {
            u = now.x - times_column(S, now.second);
            add_outer(S, k, u);
        }
        if (threadIdx.x % 8 == 0) out[i][threadIdx.x / 8] = u;
        if (!reads_ahead<depth>() && i + 1 < n_rows) read_forward(next, rows, i + 1, n);
        now = next;
    }
}

template <int depth> GDN_DEVICE void channels_forward(const struct gdn_cu_backward_channels &a)
{
    struct walk_shared<depth> &sh = *(struct walk_shared<depth> *)gdn_shared;
    const struct channels_walk w = find_walk(a);
    const int64_t b = w.item.b, n = count_halves(a, w);
    struct lane_state<depth> S;
    if (!w.is_there) return;
    if (w.in.before)
        load_own(S, a, a.base.starts, own_start(a.base, b, a.base.window), w);
    else
        load_given(S, a, a.base.rule.from, w);
    struct walk_part part = start_rows<false>(sh.rows[0], a, w, half_at(a, w, 0));
    for (int64_t i = 0; i < n; i++) {
        const int at = i % 2;
        const struct walk_half h = half_at(a, w, i);
        finish_rows(sh.rows[at], part);
        if (i) store_out(a.base.u, sh.out[1 - at], a, w, half_at(a, w, i - 1));
        if (i + 1 < n) part = start_rows<false>(sh.rows[1 - at], a, w, half_at(a, w, i + 1));
        if (at == 0) store_own(S, a, a.base.S, piece_number(a, w.in, i / 2), w);
        if (a.n_updates == 1)
            forward_half(S, sh.out[at], sh.rows[at], h.n, 1);
        else
            forward_half(S, sh.out[at], sh.rows[at], h.n * a.n_updates, a.n_updates);
    }
    __syncthreads();
    if (n) store_out(a.base.u, sh.out[(n - 1) % 2], a, w, half_at(a, w, n - 1));
    if (!w.in.is_last) store_own(S, a, a.base.starts, own_start(a.base, b, a.base.window + 1), w);
}

/* ---- Reverse ------------------------------------------------------------------------------- */

template <int depth>
GDN_DEVICE void read_reverse(struct lane_update<depth> &to, const struct walk_rows<depth> &rows,
                             int i, int n)
{
    const int t = n == 1 ? i : i / n;
    if (n == 1 || i % n == n - 1) {
        to.x = rows.x[t][threadIdx.x / 8];
        load_lane(to.first, rows.q[t]);
    }
    load_lane(to.second, rows.k[i]);
    to.flags = rows.flags[i];
}

template <int depth>
GDN_DEVICE void reverse_half(struct lane_state<depth> &J, float (*out)[STRIP],
                             const struct walk_rows<depth> &rows, int n_rows, int n)
{
    struct lane_update<depth> now, next;
    read_reverse(now, rows, n_rows - 1, n);
    for (int i = n_rows - 1; i >= 0; i--) {
        struct lane_row<depth> e, a;
        load_lane(e, rows.e[i]);
        if (n == 1 || i % n == 0) load_lane(a, rows.a[n == 1 ? i : i / n]);
        if (reads_ahead<depth>() && i) read_reverse(next, rows, i - 1, n);
        if (n == 1 || i % n == n - 1) add_outer(J, now.first, now.x);
        const float z = times_column(J, now.second);
        add_outer(J, e, -z);
        if (n == 1 || i % n == 0) decay_rows(J, a, now.flags & GDN_CU_FORGETS);
        if (threadIdx.x % 8 == 0) out[i][threadIdx.x / 8] = z;
        if (!reads_ahead<depth>() && i) read_reverse(next, rows, i - 1, n);
        now = next;
    }
}

/* Returns the slot of J before a window. With a plan, blocks may read the slot of the next window
 * while others write that of their own. */
GDN_DEVICE int64_t carried(const struct gdn_cu_backward_channels &a, int64_t row, int64_t window)
{
    return a.base.plan ? window % 2 : row;
}

template <int depth> GDN_DEVICE void channels_reverse(const struct gdn_cu_backward_channels &a)
{
    struct walk_shared<depth> &sh = *(struct walk_shared<depth> *)gdn_shared;
    const struct channels_walk w = find_walk(a);
    const int64_t b = w.item.b, window = a.base.window, n = count_halves(a, w);
    struct lane_state<depth> J;
    if (!w.is_there) return;
    if (w.in.is_last)
        load_given(J, a, a.base.dstate_out, w);
    else
        load_own(J, a, a.base.carry, carried(a, b, window + 1), w);
    struct walk_part part = start_rows<true>(sh.rows[0], a, w, half_at(a, w, n ? n - 1 : 0));
    for (int64_t i = n - 1; i >= 0; i--) {
        const struct walk_half h = half_at(a, w, i);
        const int at = (n - 1 - i) % 2;
        finish_rows(sh.rows[at], part);
        if (i + 1 < n) store_out(a.base.z, sh.out[1 - at], a, w, half_at(a, w, i + 1));
        if (i) part = start_rows<true>(sh.rows[1 - at], a, w, half_at(a, w, i - 1));
        if (i % 2 || i == n - 1) store_own(J, a, a.base.J, piece_number(a, w.in, i / 2), w);
        if (a.n_updates == 1)
            reverse_half(J, sh.out[at], sh.rows[at], h.n, 1);
        else
            reverse_half(J, sh.out[at], sh.rows[at], h.n * a.n_updates, a.n_updates);
    }
    __syncthreads();
    if (n) store_out(a.base.z, sh.out[(n - 1) % 2], a, w, half_at(a, w, 0));
    if (w.in.before)
        store_own(J, a, a.base.carry, carried(a, b, window), w);
    else if (a.base.rule.to.data)
        store_given(J, a, a.base.rule.to, w);
}

#endif
