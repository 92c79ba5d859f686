/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token by token if a call is more than a chain on a pool of floats: trees, records, states of 8
 * bits. Tokens are those of general_tokens.cuh, the rule is that of general_tile.cuh, so the bits
 * are those of general.cuh.
 *
 * In a tree, registers hold the state of one level. If several tokens follow a token, its state is
 * also stored in memory, in the place of its level, for the tokens that come later.
 *
 * A record is applied to the state before the first token. gdn_record_fold is a walk without
 * tokens, which stores the state in its own slot.
 */
#ifndef GDN_CUDA_DECODE_WALK_CUH
#define GDN_CUDA_DECODE_WALK_CUH

#include "cuda/decode/walk/pool.cuh"
#include "cuda/device/tree.cuh"

enum { WALK_TOKENS = GDN_CU_TREE_ON_CHIP };

template <class Tile, int KC> struct walk_shared {
    struct decode_shared<Tile, KC> decode;
    struct decode_scales scales, held;
    alignas(16) float u[DECODE_WINDOW][DECODE_COLUMNS];
    struct tree_visit visits[WALK_TOKENS];
    struct tree_node nodes[WALK_TOKENS + 1];
};

/* The variables of a walk. */
template <class Tile, int KC> struct walk {
    const struct gdn_cu_walk &a;
    struct walk_shared<Tile, KC> &sh;
    Tile tile;
    struct decode_codes<Tile> codes; /* as they were read; with GDN_EXACT the codes of the
                                        current state */
    bool has_codes;                  /* the registers have the codes of the current state */
    bool intact;                     /* the slot still holds the state that was read */
    const struct tree_visit *visits; /* NULL: no tree */
    float4 *levels;                  /* [level][N][thread] */
    int level;
    uint32_t changed;      /* a bit for each level whose state is not the one that was read */
    int64_t record, count; /* the record's slot (-1: none) and its rows */
    bool appends;          /* tokens become rows */
};

template <class Tile, int KC>
GDN_DEVICE struct tree_visit visit_at(const struct walk<Tile, KC> &m, int64_t i)
{
    if (m.visits) return m.visits[i];
    return { (int)i, 0, 0 };
}

/* ---- States ---------------------------------------------------------------------------------- */

/* Returns the pool to whose dtype the state is rounded after every token with GDN_EXACT. */
GDN_DEVICE const struct gdn_pool_view &rounding_pool(const struct gdn_cu_rule &r)
{
    return r.to.data ? r.to : r.from;
}

/* Returns true if the codes in registers are the codes of this state. */
template <class Tile, int KC>
GDN_DEVICE bool holds_codes_of(const struct walk<Tile, KC> &m, const struct gdn_pool_view &view)
{
    return view.dtype == m.a.decode.rounding && store_alike(view, rounding_pool(m.a.decode.rule));
}

template <class Tile, int KC> GDN_DEVICE void enter(struct walk<Tile, KC> &m)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    m.has_codes = false;
    m.intact = true;
    if (w.seq.read < 0) {
        decay(m.tile.S, 0);
        return;
    }
    const struct decode_slot from = slot_of<Tile>(m.a, w, r.from, w.seq.read, GDN_CU_WIDE_FROM);
    if (!is_q8(r.from.dtype)) {
        load_floats(m.tile, from.p);
        return;
    }
    load_codes(m.codes, m.sh.held, from);
    decode_8bit(m.tile, m.codes, m.sh.held, r.from.dtype);
    m.has_codes = holds_codes_of(m, r.from);
}

/* Stores the state after n_tokens to a slot. If no token has changed it, it is copied from the slot
 * that was read, unless a token of another branch has overwritten that slot. */
template <class Tile, int KC>
GDN_DEVICE void leave(struct walk<Tile, KC> &m, const struct gdn_pool_view &view, int64_t slot,
                      int wide, int64_t n_tokens)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    const struct decode_slot to = slot_of<Tile>(m.a, w, view, slot, wide);
    const bool is_as_read =
        !(m.changed >> m.level & 1) && w.seq.read >= 0 && store_alike(r.from, view);
    const bool has_codes = m.has_codes && holds_codes_of(m, view);
    if (is_as_read && m.intact && !has_codes) {
        const struct decode_slot from = slot_of<Tile>(m.a, w, r.from, w.seq.read, 0);
        if (is_q8(view.dtype))
            copy_codes(to, from, w.n_columns);
        else
            copy_part(to.p, from.p);
        return;
    }
    if (is_q8(view.dtype)) {
        struct decode_codes<Tile> codes = m.codes;
        const bool held = has_codes || is_as_read;
        if (!held) encode_8bit(codes, m.sh.scales, m.tile, w, view, n_tokens);
        store_codes(to, codes, held ? m.sh.held : m.sh.scales);
    } else {
        store_floats(to.p, m.tile);
    }
    if (view.data == r.from.data && slot == w.seq.read) m.intact = false;
}

/* Rounds the state for GDN_EXACT to the dtype of the pool. Codes are kept too, because rounding the
 * same state again might give other codes. */
template <class Tile, int KC>
GDN_DEVICE void round_state(struct walk<Tile, KC> &m, bool changes, int64_t n_tokens)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const int dtype = m.a.decode.rounding;
    if (dtype == GDN_F32) return;
    if (!is_q8(dtype)) {
        for (int n = 0; n < 4 * Tile::N; n++)
            m.tile.S[n / 4][n % 4] = round_to(m.tile.S[n / 4][n % 4], dtype);
    } else if (changes || !m.has_codes) {
        encode_8bit(m.codes, m.sh.held, m.tile, m.sh.decode.work, rounding_pool(r), n_tokens);
        decode_8bit(m.tile, m.codes, m.sh.held, dtype);
        m.has_codes = true;
    }
}

/* Loads the state that the visit starts from into registers. */
template <class Tile, int KC>
GDN_DEVICE void go_to(struct walk<Tile, KC> &m, const struct tree_visit &visit)
{
    const int from = visit.level - visit.copies;
    float4 *const place = m.levels + (int64_t)from * Tile::N * DECODE_THREADS + threadIdx.x;
    for (int n = 0; n < Tile::N && from != m.level; n++) {
        const float4 x = place[n * DECODE_THREADS];
        m.tile.S[n][0] = x.x, m.tile.S[n][1] = x.y, m.tile.S[n][2] = x.z, m.tile.S[n][3] = x.w;
    }
    for (int n = 0; n < Tile::N && from == m.level && visit.copies; n++)
        place[n * DECODE_THREADS] =
            make_float4(m.tile.S[n][0], m.tile.S[n][1], m.tile.S[n][2], m.tile.S[n][3]);
    m.level = visit.level;
    if (visit.copies)
        m.changed = (m.changed & ~(1u << m.level)) | (m.changed >> from & 1) << m.level;
}

/* ---- Records --------------------------------------------------------------------------------- */

GDN_DEVICE char *record_at(const struct gdn_record_rows &r, int64_t slot, int64_t row, int head)
{
    return r.data + slot * r.slot + row * r.row + head * r.head;
}

template <class Tile, int KC> GDN_DEVICE void find_record(struct walk<Tile, KC> &m)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct gdn_cu_seq &s = m.sh.decode.work.seq;
    m.record = r.record_k.data && !s.sunk && !s.padding ? s.read : -1;
    m.count = m.record < 0 ? 0 : clamp64(load_index(r.record_count, m.record), 0, r.record_rows);
    m.appends = m.record >= 0 && r.batch.write == GDN_WRITE_NONE;
}

/* load_gates() loads the gates of a row of a record as number i of the window; store_gates() stores
 * those of token t. A row whose gates have a sign only decays. A warp calls each. The family has
 * functions of its own. */
template <int KC>
GDN_DEVICE void load_gates(struct decode_window<KC> &to, int i, const struct gdn_cu_rule &,
                           const char *row)
{
    const float g = *(const float *)row;
    if (threadIdx.x % 32 != 0) return;
    to.alpha[i] = fabsf(g);
    to.beta[i] = __float_as_uint(g) >> 31 ? 0 : 1;
}
template <int KC>
GDN_DEVICE void store_gates(char *row, const struct decode_window<KC> &from, int i,
                            const struct gdn_cu_rule &, const struct decode_work &, int64_t)
{
    if (threadIdx.x % 32 == 0)
        *(float *)row = copysignf(from.alpha[i], from.writes(i) ? 1.0f : -1.0f);
}

/* Loads row `row` of the record as number threadIdx.x / 32 of the window. A warp calls it. */
template <class Tile, int KC>
GDN_DEVICE void load_row(struct walk<Tile, KC> &m, typename Tile::Window &to, int64_t row)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    const int lane = threadIdx.x % 32, i = threadIdx.x / 32;
    const char *const k = record_at(r.record_k, m.record, row, w.hk);
    const char *const u = record_at(r.record_u, m.record, row, w.head);
    for (int x = lane; x < KC; x += 32)
        to.k[i][x] = x < r.K ? load_float(k, x, r.record_k.dtype) : 0;
    to.v[i][lane] = lane < w.n_columns ? load_float(u, w.column + lane, r.record_u.dtype) : 0;
    load_gates(to, i, r, record_at(r.record_g, m.record, row, w.head));
}

/* Applies the rows in use to the state. */
template <class Tile, int KC> GDN_DEVICE void apply_record(struct walk<Tile, KC> &m)
{
    typename Tile::Window &window = m.sh.decode.windows[0];
    for (int64_t row = 0; row < m.count; row += DECODE_WINDOW) {
        if (row + threadIdx.x / 32 < m.count) load_row(m, window, row + threadIdx.x / 32);
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < DECODE_WINDOW && row + i < m.count; i++) {
            decay(m.tile, window, i);
            if (!window.writes(i)) continue;
            for (int n = 0; n < 4 * Tile::N; n++) {
                const float k = window.k[i][k_of<Tile>(n / 4, n % 4)];
                m.tile.S[n / 4][n % 4] =
                    fmaf(k, window.v[i][v_of<Tile>(n / 4, n % 4)], m.tile.S[n / 4][n % 4]);
            }
        }
        __syncthreads();
    }
    if (m.count) m.changed = 1;
}

/* Stores the window's tokens to the record, from visit i on. Each warp has one. The block of a
 * head's first columns also stores gates; if the head is the first of its key head, k too. */
template <class Tile, int KC>
GDN_DEVICE void store_row(const struct walk<Tile, KC> &m, const typename Tile::Window &window,
                          int64_t visit)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    const int lane = threadIdx.x % 32, i = threadIdx.x / 32;
    const int64_t row = m.count + visit_at(m, visit).token;
    const bool has_k = r.head_map == GDN_HEADS_GROUPED ? w.head % (r.H / r.Hk) == 0 : w.head < r.Hk;
    if (row >= r.record_rows) return;
    if (lane < w.n_columns)
        store_float(record_at(r.record_u, m.record, row, w.head), w.column + lane, r.record_u.dtype,
                    m.sh.u[i][lane]);
    if (w.column > 0) return;
    store_gates(record_at(r.record_g, m.record, row, w.head), window, i, r, w,
                visit_at(m, visit).token);
    for (int x = lane; x < r.K && has_k; x += 32)
        store_float(record_at(r.record_k, m.record, row, w.hk), x, r.record_k.dtype,
                    window.k[i][x]);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

template <class Tile, int KC>
GDN_DEVICE void fetch_visit(typename Tile::Window::fetched &f, const struct walk<Tile, KC> &m,
                            int64_t i)
{
    fetch<Tile, KC>(f, m.a.decode, m.sh.decode.work, visit_at(m, i).token);
}

/* Stores the state after n_tokens: to a slot (-1: none), and to checkpoints. */
template <class Tile, int KC>
GDN_DEVICE void leave_all(struct walk<Tile, KC> &m, struct decode_checkpoints &points, int64_t slot,
                          int64_t n_tokens)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    if (m.visits) points.next = w.checkpoints.first;
    seek_checkpoint(points, r.batch, w, n_tokens);
#pragma unroll 1
    for (bool final = true;; final = false) {
        const struct gdn_pool_view &view = final ? r.to : r.checkpoints;
        const int wide = final ? GDN_CU_WIDE_TO : GDN_CU_WIDE_CHECKPOINTS;
        if (slot >= 0) leave(m, view, slot, wide, n_tokens);
        if (!final) points.next++;
        seek_checkpoint(points, r.batch, w, n_tokens);
        if (points.at != n_tokens) return;
        slot = points.slot;
    }
}

/* Applies row i of the window to the state. t: the row's token, if this is the token's last row,
 * after which the state is rounded; else -1. */
template <class Tile, int KC>
GDN_DEVICE void compute_visit(struct walk<Tile, KC> &m, const typename Tile::Window &window, int i,
                              const struct tree_visit &visit, int64_t t)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    const bool ends = Tile::Window::IS_TOKEN || t >= 0;
    void *const out = r.out.data && ends ? row_at(r.out, w.seq, t, w.head) : NULL;
    if (m.visits) go_to(m, visit);
    m.tile.step(
        { &window, i, out, r.out.dtype, w.column, w.n_columns, m.record >= 0 ? m.sh.u[i] : NULL },
        m.sh.decode.tile);
    const bool changes = window.changes(i);
    if (changes) m.changed |= 1u << m.level;
    if (ends)
        round_state(m, changes, t + 1);
    else if (changes)
        m.has_codes = false;
}

/* Computes all T visits: rows of tokens, or updates in the family. If there are none, the state
 * still goes to `slot`, as it is after n_tokens. */
template <class Tile, int KC>
GDN_DEVICE void compute_visits(struct walk<Tile, KC> &m, int64_t T, int64_t slot, int64_t n_tokens)
{
    const struct gdn_cu_rule &r = m.a.decode.rule;
    const struct decode_work &w = m.sh.decode.work;
    const int warp = threadIdx.x / 32;
    struct decode_checkpoints points = { w.checkpoints.first, 0, 0 };
    typename Tile::Window::fetched fetched;
    if (warp < T) fetch_visit(fetched, m, warp);
    for (int64_t t0 = 0; t0 == 0 || t0 < T; t0 += DECODE_WINDOW) {
        typename Tile::Window &window = m.sh.decode.windows[t0 / DECODE_WINDOW % 2];
        const int64_t next = t0 + DECODE_WINDOW;
        if (t0 + warp < T) commit_token<KC>(window, fetched, r, w);
        __syncthreads();
        if (next + warp < T) fetch_visit(fetched, m, next + warp);
#pragma unroll 1
        for (int i = 0; i < DECODE_WINDOW && (T == 0 ? i == 0 : t0 + i < T); i++) {
            if (T) {
                const struct tree_visit visit = visit_at(m, t0 + i);
                const int64_t t = window.ends(i, visit.token);
                compute_visit(m, window, i, visit, t);
                if (!Tile::Window::IS_TOKEN && t < 0) continue;
                slot = window.to[i];
                n_tokens = t + 1;
            }
            leave_all(m, points, slot, n_tokens);
        }
        if (!m.appends) continue;
        __syncthreads();
        if (t0 + warp < T) store_row(m, window, t0 + warp);
    }
}

/* Finds the order of a tree and the memory of its states. The order of a short tree is on the
 * chip. */
template <class Tile, int KC> GDN_DEVICE void plant(struct walk<Tile, KC> &m)
{
    const struct gdn_cu_batch &b = m.a.decode.rule.batch;
    const struct gdn_cu_seq &s = m.sh.decode.work.seq;
    char *const mine = m.a.memory + blockIdx.x * m.a.block_bytes;
    const bool fits = m.a.most_tokens <= WALK_TOKENS;
    struct tree_node *const nodes = fits ? m.sh.nodes : (struct tree_node *)mine;
    struct tree_visit *const visits =
        fits ? m.sh.visits : (struct tree_visit *)(nodes + m.a.most_tokens + 1);
    m.levels = (float4 *)(mine + m.a.block_bytes) - m.a.n_levels * Tile::N * DECODE_THREADS;
    m.visits = visits;
    find_order(visits, nodes, b, s.row, (int)s.n_valid);
    __syncthreads();
}

/* ---- A piece of work ------------------------------------------------------------------------- */

template <class Tile, int KC> GDN_DEVICE void read_piece(struct walk<Tile, KC> &m, int64_t piece)
{
    const struct gdn_cu_batch &b = m.a.decode.rule.batch;
    const int n_parts = m.a.decode.rule.H * m.a.decode.n_parts;
    struct decode_work &w = m.sh.decode.work;
    if (threadIdx.x < 32) read_work(w, m.a.decode, (int)(piece % n_parts), piece / n_parts);
    if (threadIdx.x == 0 && b.parents.data && w.seq.n_valid > m.a.most_tokens)
        w.seq.n_valid = m.a.most_tokens;
    __syncthreads();
}

/* Returns true if a call that only folds applies the record: the state will change, or go to
 * another slot. */
template <class Tile, int KC> GDN_DEVICE bool folds(const struct walk<Tile, KC> &m)
{
    const struct gdn_cu_seq &s = m.sh.decode.work.seq;
    return m.count > 0 && (s.n_valid > 0 || s.read != s.write);
}

template <class Tile, int KC>
GDN_DEVICE void walk_piece(const struct gdn_cu_walk &a, struct walk_shared<Tile, KC> &sh,
                           int64_t piece)
{
    const struct gdn_cu_rule &r = a.decode.rule;
    const struct decode_work &w = sh.decode.work;
    struct walk<Tile, KC> m = {
        a, sh
    };
    read_piece(m, piece);
    find_record(m);
    if (w.seq.n_tokens == 0 || (a.fold && !folds(m))) return;
    if (m.appends) {
        __syncthreads();
        if (threadIdx.x == 0) sh.decode.work.seq.write = -1; /* the state stays */
        __syncthreads();
    }
    if (!w.seq.padding) {
        if (r.batch.parents.data) plant(m);
        enter(m);
        apply_record(m);
        const int64_t kept = r.batch.write == GDN_WRITE_FINAL ? w.seq.write : -1;
        const int64_t T = a.fold ? 0 : Tile::Window::n_rows(r, w.seq.n_valid);
        compute_visits(m, T, a.fold ? w.seq.read : kept, m.count);
    }
    if (!r.out.data || w.seq.keep_out) return;
    zero_tokens(r, w, -w.seq.n_before, 0);
    zero_tokens(r, w, w.seq.n_valid, w.seq.n_tokens - w.seq.n_before);
}

/* Returns true if there is something to do for a piece: a fold wants rows in its slot. */
GDN_DEVICE bool is_piece(const struct gdn_cu_walk &a, int64_t piece)
{
    const struct gdn_cu_rule &r = a.decode.rule;
    if (piece >= a.n_pieces || !a.fold) return piece < a.n_pieces;
    const int64_t slot = read_start(r.batch, piece / (r.H * a.decode.n_parts));
    return slot >= 0 && slot < r.batch.read_pool && load_index(r.record_count, slot) > 0;
}

/* The lanes of each warp look at 32 pieces at a time: mostly no slot has rows. */
template <class Tile, int KC> GDN_DEVICE void walk_all(const struct gdn_cu_walk &a)
{
    __shared__ struct walk_shared<Tile, KC> sh;
    const int64_t step = gridDim.x;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
#pragma unroll 1
    for (int64_t first = blockIdx.x; first < a.n_pieces; first += 32 * step) {
        unsigned some = __ballot_sync(0xffffffff, is_piece(a, first + threadIdx.x % 32 * step));
#pragma unroll 1
        for (; some; some &= some - 1) {
            walk_piece<Tile, KC>(a, sh, first + (__ffs((int)some) - 1) * step);
            __syncthreads();
        }
    }
}

#define WALK_KERNEL(threads, name, ...)                                     \
    extern "C" __global__ void __launch_bounds__(threads, 2)                \
        name(const __grid_constant__ struct gdn_cu_walk a)                  \
    {                                                                       \
        static_assert(threads == DECODE_THREADS, "as the code is written"); \
        walk_all<__VA_ARGS__>(a);                                           \
    }

#endif
