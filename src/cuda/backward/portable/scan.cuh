/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks of walk.cuh by mma.sync. A block has a sequence, a head, a direction and 64 columns
 * of V. Two warps share 16 of the columns and have half of the keys each, in registers: each adds
 * the other's products of S, or J, with keys to its own. All else of tokens both compute alike.
 * What a chunk needs comes to a stage of shared memory while the block works on the chunk before,
 * if the device has room for two stages.
 *
 *     forward    R^T = beta (V^T - from_start S^T K^T)           U^T = R^T T^T
 *                S^T <- decay S^T + (to_end U)^T K
 *     reverse    dU^T = to_end J^T K^T + dO^T P                  Z^T = dU^T T
 *                J^T <- decay J^T + (q_start dO)^T Q - (from_start beta Z)^T K
 */
#ifndef GDN_CUDA_BACKWARD_PORTABLE_SCAN_CUH
#define GDN_CUDA_BACKWARD_PORTABLE_SCAN_CUH

#include "cuda/backward/portable/tiles.cuh"
#include "cuda/backward/scan.cuh"

enum { WALK_THREADS = 2 * GROUP };

struct forward_stage {
    static constexpr bool reverse = false;
    alignas(128) char K[2][TILE], T[TILE], X[TILE]; /* X: V, or dO */
    alignas(16) vectors g;
};
struct reverse_stage {
    static constexpr bool reverse = true;
    alignas(128) char K[2][TILE], Q[2][TILE], T[TILE], P[TILE], X[TILE];
    alignas(16) vectors g;
};
static_assert(sizeof(struct reverse_stage) <= GDN_CU_PORTABLE_STAGE_BYTES, "reverse_stage");

static_assert(sizeof(struct chunk_record) == sizeof(vectors) + 2 * TILE, "T and P behind vectors");

/* The memory of a walk beside its stages. */
struct walk_shared {
    union {
        float sums[32][32];     /* products of a warp for the other one of two */
        char rows[2][16 * 128]; /* 16 rows of a tile that go to memory */
    } warps[WALK_THREADS / 32];
    struct scan_way way; /* it is here, because registers are scarce */
    uint32_t dead[2];
};
static_assert(sizeof(struct walk_shared) <= GDN_CU_PORTABLE_WAY_BYTES, "walk_shared");

GDN_DEVICE struct walk_shared &walk_shared_of(void) { return *(struct walk_shared *)gdn_shared; }
template <class Stage> GDN_DEVICE Stage &stage_at(int i)
{
    return ((Stage *)(gdn_shared + GDN_CU_PORTABLE_WAY_BYTES))[i];
}
/* Returns which half of the keys a warp has. In a block two halves are four warps apart. */
GDN_DEVICE int walk_half(void) { return (int)threadIdx.x / GROUP; }

/* ---- Loads: by all threads ------------------------------------------------------------------- */

/* Begins to load chunk i of the window into a stage. Ends a group of copies, even if there is no
 * such chunk. */
template <class Stage>
GDN_DEVICE void begin_chunk(Stage &to, const struct gdn_cu_backward &a, const struct scan_way &w,
                            int64_t i)
{
    enum { N = WALK_THREADS, TILES = 2 * TILE };
    const struct gdn_cu_seq seq = w.part.in.seq;
    const int64_t number = w.part.in.first + i, n_chunks = w.part.in.n_chunks;
    const int64_t t0 = i * CHUNK, n = min(seq.n_valid - t0, (int64_t)CHUNK);
    const int head = w.head, all = form_of(a).keys * TILE;
    if (i >= 0 && i < n_chunks) {
        const char *keys = keys_of(a, number, source_head(a.rule, head, a.rule.Hk));
        const char *record = (const char *)&record_at(a, number, head);
        const char *squares = record + sizeof(vectors);
        const struct row_source rows =
            source_of(Stage::reverse ? a.dout : a.rule.v, seq, t0, n, head, w.col, a.rule.V);
        begin_copy<N, TILES>(to.K, keys, all);
        begin_rows<N>(to.X, rows);
        if constexpr (Stage::reverse) {
            begin_copy<N, 2 * TILE>(to.T, squares);
            begin_copy<N, TILES>(to.Q, keys + all, all);
        } else {
            begin_copy<N, TILE>(to.T, squares);
        }
        begin_copy<N, sizeof(vectors)>(&to.g, record);
    }
    copy_commit();
}

/* ---- What is not finite, where a gate forgets ------------------------------------------------ */

/* Cleans rows of keys and of queries (clean_rows()). Forward, queries count for nothing: U and S do
 * not depend on them. */
template <class Stage> GDN_DEVICE void clean_stage(struct walk_shared &sh, Stage &in)
{
    if constexpr (!Stage::reverse) {
        if (threadIdx.x < 2) in.g.dead[threadIdx.x] = 0;
        __syncthreads();
    }
    clean_rows(in.K[0], 2, in.g.dead, (int)threadIdx.x, WALK_THREADS);
    if constexpr (Stage::reverse) clean_rows(in.Q[0], 2, in.g.dead, (int)threadIdx.x, WALK_THREADS);
    __syncthreads();
    if (threadIdx.x < 2) sh.dead[threadIdx.x] = in.g.dead[threadIdx.x];
    __syncthreads();
}
GDN_DEVICE void clean_shared(struct walk_shared &sh, uint32_t (&x)[16])
{
    clean_factor(x, sh.dead);
    __syncthreads();
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

typedef float walk_state[32]; /* of 64 keys */

/* Adds the products of the warp with the same columns and the other keys. */
GDN_DEVICE void add_other_keys(struct walk_shared &sh, float (&x)[32])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float(&own)[32][32] = sh.warps[warp].sums, (&other)[32][32] = sh.warps[warp ^ 4].sums;
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 32; e++) own[e][lane] = x[e];
    barrier_wait(1 + warp % 4, 64);
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] += other[e][lane];
    barrier_wait(1 + warp % 4, 64);
}

/* Store a warp's rows of a tile. send_state() stores those of a state, of which memory has one or
 * two tiles of 64 keys. The other function stores half of U or Z, because two warps have the
 * same. */
GDN_DEVICE void send_state(struct walk_shared &sh, char *to, const uint32_t (&x)[16],
                           const struct record_form &form)
{
    char *rows = sh.warps[threadIdx.x / 32].rows[0];
    if (in_warp(walk_half() >= form.keys)) return;
    store_factor(rows, x);
    copy_rows_out(own_rows(to + walk_half() * TILE), rows);
}
GDN_DEVICE void send_rows(struct walk_shared &sh, char *to, const uint32_t (&x)[16])
{
    char *rows = sh.warps[threadIdx.x / 32].rows[1];
    if (in_warp(walk_half() == 1)) return;
    store_factor(rows, x);
    copy_rows_out(own_rows(to), rows);
}

template <bool forgets>
GDN_DEVICE void walk_chunk(struct walk_shared &sh, struct forward_stage &in, walk_state &S,
                           char *to, const struct record_form &form, int strip)
{
    vectors &g = in.g;
    const char *keys = in.K[walk_half()];
    uint32_t a[16], u[16], r[16];
    float x[32], v[32];
    if (forgets) clean_stage(sh, in);
    load_turned(u, in.X);
    unpack(v, u);
    weigh<forgets>(v, pairs_of(g.beta));
    pack(a, S);
    clear(x);
    add_rows(x, a, keys);
    add_other_keys(sh, x);
    send_state(sh, to + form.S(strip), a, form);
    make_r<forgets>(r, x, v, g);
    if (forgets) clean_shared(sh, r);
    clear(x);
    add_triangle_turned(x, r, in.T);
    if (forgets) spoil(x, sh.dead, g);
    pack(u, x);
    weigh<forgets>(x, pairs_of(g.to_end));
    pack(r, x);
    decay_scan<forgets>(S, g.decay);
    add_columns(S, r, keys);
    send_rows(sh, to + form.u(strip), u);
}

template <bool forgets, bool stores>
GDN_DEVICE void walk_chunk_back(struct walk_shared &sh, struct reverse_stage &in, walk_state &J,
                                char *to, const struct record_form &form, int strip)
{
    vectors &g = in.g;
    const char *keys = in.K[walk_half()];
    uint32_t a[16], dout[16], r[16], z[16];
    float x[32], y[32];
    if (forgets) clean_stage(sh, in);
    load_turned(dout, in.X);
    if (forgets) clean_shared(sh, dout);
    pack(a, J);
    clear(x);
    add_rows(x, a, keys);
    clear(y);
    add_triangle(y, dout, in.P);
    add_other_keys(sh, x);
    if (stores) send_state(sh, to + form.J(strip), a, form);
    const struct token_pairs end = pairs_of(g.to_end);
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = forgets && end.at(e) == 0 ? y[e] : fmaf(end.at(e), x[e], y[e]);
    pack(r, x);
    if (forgets) clean_shared(sh, r);
    clear(y);
    add_triangle(y, r, in.T);
    unpack(x, dout);
    weigh<forgets>(x, pairs_of(g.q_start));
    pack(dout, x);
    decay_scan<forgets>(J, g.decay);
    add_columns(J, dout, in.Q[walk_half()]);
    if (forgets) spoil(y, sh.dead, g);
    if (stores) pack(z, y);
    weigh<forgets>(y, pairs_of(g.read));
    pack(r, y);
    add_columns(J, r, keys);
    if (stores) send_rows(sh, to + form.z(strip), z);
}

template <bool stores, class Stage>
GDN_DEVICE void walk_stage(struct walk_shared &sh, Stage &in, walk_state &S, char *to,
                           const struct record_form &form, int strip)
{
    const bool forgets = in_warp(tokens_of(in.g.resets) != 0);
    if constexpr (Stage::reverse) {
        if (forgets)
            walk_chunk_back<true, stores>(sh, in, S, to, form, strip);
        else
            walk_chunk_back<false, stores>(sh, in, S, to, form, strip);
    } else {
        if (forgets)
            walk_chunk<true>(sh, in, S, to, form, strip);
        else
            walk_chunk<false>(sh, in, S, to, form, strip);
    }
}

/* ---- A block --------------------------------------------------------------------------------- */

/* load_first() loads the state that a walk begins with; store_last() stores the one that it ends
 * with. */
template <bool reverse>
GDN_DEVICE void load_first(walk_state &S, const struct gdn_cu_backward &a,
                           const struct backward_part &p, const struct walk_item &own)
{
    const int key = 64 * walk_half();
    if (reverse)
        load_scan(S, gradient_behind(a, own, p), key, 1 / a.drop);
    else if (p.in.before)
        load_scan(S, state_before(a, own, p.in), key, 1);
    else
        load_scan(S, strip_of(a, own, a.rule.from, p.row), key, 1);
}
template <bool reverse>
GDN_DEVICE void store_last(walk_state &S, const struct gdn_cu_backward &a,
                           const struct backward_part &p, const struct walk_item &own)
{
    const int key = 64 * walk_half();
    if (reverse) {
        const struct stage_strip place = gradient_before(a, own, p);
        if (place.view.data) store_scan(place, S, key, a.drop, !p.in.before && a.adds);
    } else if (!p.in.is_last && !a.starts_every) {
        store_scan(strip_of(a, own, a.starts, own_start(a, p.row, a.window + 1)), S, key, 1, false);
    }
}

template <class Stage, bool stores>
GDN_DEVICE void run_walk(const struct gdn_cu_backward &a, const struct scan_way &found)
{
    struct walk_shared &sh = walk_shared_of();
    if (threadIdx.x == 0) sh.way = found;
    __syncthreads();
    const struct scan_way &w = sh.way;
    const struct backward_window &in = w.part.in;
    const int strip = w.col / 64, room = a.walk_bytes - GDN_CU_PORTABLE_WAY_BYTES;
    const int step = Stage::reverse ? -1 : 1;
    const bool two = room >= 2 * (int)sizeof(Stage);
    const struct walk_item own = { w.part.row, w.head, w.col, min(a.rule.V - w.col, 64) };
    const struct record_form form = form_of(a);
    int64_t i = Stage::reverse ? in.n_chunks - 1 : 0;
    char *to = (char *)&record_at(a, in.first + i, w.head);
    walk_state S;
    if (two) begin_chunk(stage_at<Stage>(0), a, w, i);
    load_first<Stage::reverse>(S, a, w.part, own);
#pragma unroll 1
    for (int64_t n = 0; in_warp(n < in.n_chunks); n++, i += step) {
        const int now = two ? (int)(n % 2) : 0;
        if (!two) {
            __syncthreads(); /* the chunk before has been read */
            begin_chunk(stage_at<Stage>(0), a, w, i);
        }
        copy_wait<0>();
        __syncthreads();
        if (two) begin_chunk(stage_at<Stage>(1 - now), a, w, i + step);
        walk_stage<stores>(sh, stage_at<Stage>(now), S, to, form, strip);
        to += (int64_t)step * a.rule.H * a.record_bytes;
    }
    store_last<Stage::reverse>(S, a, w.part, own);
    copy_wait<0>();
}

/* Runs the walks of both directions, or the walk forward alone. Blocks in reverse come first,
 * because they take longer. */
GDN_DEVICE void run_walks(const struct gdn_cu_backward &a)
{
    const int64_t n_walks = a.n_parts * a.rule.H * a.n_strips;
    struct scan_way w;
    if (!find_way<1>(w, a, blockIdx.x % n_walks)) return;
    if (in_warp(a.walks != GDN_CU_WALK_FORWARD && blockIdx.x < n_walks))
        run_walk<reverse_stage, true>(a, w);
    else
        run_walk<forward_stage, true>(a, w);
}
/* Runs the walks to dstate alone. */
GDN_DEVICE void run_walks_alone(const struct gdn_cu_backward &a)
{
    struct scan_way w;
    if (find_way<1>(w, a, blockIdx.x)) run_walk<reverse_stage, false>(a, w);
}

#endif
