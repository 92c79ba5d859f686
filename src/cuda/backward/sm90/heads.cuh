/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of chunks by products of warpgroups. A block goes through pairs of a chunk and a
 * key head. Of each pair it goes through the state heads that read it, and adds up dq and dk of
 * these in registers:
 *
 *     X, Y    -beta (Z U^T) and dO U^T, with the gates between two tokens, by a warpgroup each
 *     states  dO S^T, Z S^T and U J^T, with the gates of one token
 *     tokens  dq += Y K      D += X K      dw += Y^T Q + X^T K         dk = D + dw
 *
 * If V is above 128 (wide), X, Y and states are sums over passes of 128 columns each. If K is, two
 * blocks of a cluster have 128 keys each: the first adds up the sums for gates, and both those of
 * norms.
 *
 * Each of two warpgroups has all tokens and 64 columns of dq, D and dw. A third one has a thread
 * that loads what the next state head needs, and three warps that store dv. One of those also
 * stores the gradients of gates. D has beta in it. LEAST_BETA stands for a smaller one in X and D,
 * so that dbeta = Z . v + k . D / beta holds for every beta. In f16 that one is not so small, and X
 * gets its beta back before X^T K. Letters: docs/design/math.md, section 13.
 */
#ifndef GDN_CUDA_BACKWARD_SM90_HEADS_CUH
#define GDN_CUDA_BACKWARD_SM90_HEADS_CUH

#include "cuda/backward/heads.cuh"
#include "cuda/backward/sm90/tiles.cuh"

/* HEADS_STORING: warps that store, of which the last one has gates. HEADS_REGISTERS: of a thread
 * that multiplies. HEADS_OTHER_REGISTERS: of another thread. */
enum { HEADS_STORING = 3 };
enum { HEADS_REGISTERS = 216, HEADS_OTHER_REGISTERS = 72 };

/* Returns the number of this block among those with the same key head. */
template <bool wide> GDN_DEVICE int own_block(void) { return wide ? (int)cluster_rank() : 0; }
/* Returns true if rows are loaded for X and Y, and again for the products with states, because
 * there are places for two passes alone. */
GDN_DEVICE bool loads_again(int passes) { return passes > 2; }
/* Return the numbers of loads: of rows for X and Y, of rows for the products with states, and of
 * states. They give the parity of barriers. */
GDN_DEVICE uint32_t rows_of_pass(uint32_t step, int passes, int pass)
{
    return step * (loads_again(passes) ? 2 * passes : passes) + pass;
}
GDN_DEVICE uint32_t rows_with_states(uint32_t step, int passes, int pass)
{
    return rows_of_pass(step, passes, loads_again(passes) ? passes + pass : pass);
}
GDN_DEVICE uint32_t states_of_pass(uint32_t step, int passes, int pass)
{
    return step * passes + pass;
}

struct head_rows {
    char dout[2][TILE], u[2][TILE], z[2][TILE]; /* [v / 64]; u and z are transposed */
};
struct head_keys {
    char k[2][TILE], q[2][TILE]; /* [k / 64] */
};
template <bool is_wide> struct heads_shared {
    static constexpr bool wide = is_wide;
    static constexpr int blocks = wide ? 2 : 1; /* the most blocks that share a head */
    struct head_rows rows[2]; /* of this state head or pass, and of the next one, as in all arrays
                                 of 2 */
    char S[2][2][TILE], J[2][2][TILE]; /* [v / 64][k / 64] */
    struct head_keys keys;
    char X[TILE], Y[TILE];
    alignas(16) struct key_norms norms_of;
    alignas(16) vectors g[4]; /* of four heads, because gates need them after rows have been read */
    struct heads_step steps[4];
    alignas(16) struct head_parts parts[2][blocks];
    alignas(16) float norms[2][blocks][HEADS_GROUPS][CHUNK]; /* of keys and queries */
    uint64_t rows_full[2], rows_free[2], states_full, states_free, keys_full, keys_free;
    uint64_t parts_full[2], parts_free[2], norms_full[2];
};
static_assert(sizeof(heads_shared<false>) <= GDN_CU_HEADS_BYTES, "heads_shared");
static_assert(sizeof(heads_shared<true>) <= GDN_CU_HEADS_WIDE_BYTES, "heads_shared");

template <bool wide> GDN_DEVICE int block_of(const heads_shared<wide> &)
{
    return own_block<wide>();
}
/* Sends the sums of each of two blocks to the other. A place is free again when the sums of the
 * other kind are there. */
template <bool wide>
GDN_DEVICE void meet_norms(heads_shared<wide> &sh, int which, uint32_t item, int n_blocks)
{
    const int own = own_block<wide>();
    float(&to)[HEADS_GROUPS][CHUNK] = sh.norms[which][own];
    if (n_blocks > 1) async_fence();
    meet_workers();
    if (n_blocks < 2) return;
    if (threadIdx.x == 0) {
        const uint32_t full = map_shared(shared_address(&sh.norms_full[which]), own ^ 1);
        mbarrier_expect_cluster(full, sizeof to);
        copy_to_block(map_shared(shared_address(to), own ^ 1), shared_address(to), sizeof to, full);
    }
    mbarrier_wait(shared_address(&sh.norms_full[which]), item % 2);
}

/* Steps and items that a block has done. They give the parity of each barrier. */
struct heads_count {
    uint32_t step, item;
};

/* Load the rows of a pass, the states, and the keys. */
template <class Shared>
GDN_DEVICE void load_rows(Shared &sh, const struct gdn_cu_backward &a, const struct heads_step &s,
                          int pass, uint32_t step, uint32_t number, bool is_first)
{
    const int at[4] = { 0, s.head, (int)s.place.first, (int)s.place.batch };
    const int now = number % 2, tile = 2 * pass;
    const struct record_form f = form_of(a);
    const int columns = min(f.columns - tile, 2), bytes = columns * TILE;
    const char *from = (const char *)&record_at(a, s.number, s.head);
    struct head_rows &to = sh.rows[now];
    uint64_t &full = sh.rows_full[now];
    vectors &g = sh.g[step % 4];
    mbarrier_wait(shared_address(&sh.rows_free[now]), number / 2 % 2 ^ 1);
    if (is_first) sh.steps[step % 4] = s;
    if (!is_step(s)) {
        mbarrier_arrive(shared_address(&full));
        return;
    }
    mbarrier_expect(shared_address(&full), 3 * bytes + (is_first ? (int)sizeof g : 0));
#pragma unroll 1
    for (int i = 0; i < columns; i++) {
        load_tile(to.dout[i], a.dout_map, at, 64 * (tile + i), full);
        prefetch_tile(a.v_map, at, 64 * (tile + i));
    }
    load_bytes(to.u, from + f.u(tile), bytes, full);
    load_bytes(to.z, from + f.z(tile), bytes, full);
    if (is_first) load_bytes(&g, from, sizeof g, full);
}
template <class Shared>
GDN_DEVICE void load_states(Shared &sh, const struct gdn_cu_backward &a, const struct heads_step &s,
                            int pass, uint32_t number)
{
    const struct record_form f = form_of(a);
    const int tile = 2 * pass, columns = min(f.columns - tile, 2);
    const int bytes = min(f.keys, 2) * TILE;
    const char *from =
        (const char *)&record_at(a, s.number, s.head) + own_block<Shared::wide>() * 2 * TILE;
    mbarrier_wait(shared_address(&sh.states_free), number % 2 ^ 1);
    mbarrier_expect(shared_address(&sh.states_full), 2 * columns * bytes);
#pragma unroll 1
    for (int i = 0; i < columns; i++) {
        load_bytes(sh.S[i], from + f.S(tile + i), bytes, sh.states_full);
        load_bytes(sh.J[i], from + f.J(tile + i), bytes, sh.states_full);
    }
}
template <class Shared>
GDN_DEVICE void load_keys(Shared &sh, const struct gdn_cu_backward &a, const struct heads_step &s,
                          uint32_t item)
{
    const int all = form_of(a).keys * TILE, bytes = min(all, 2 * TILE);
    const char *tiles = keys_of(a, s.number, s.key);
    const char *own = tiles + own_block<Shared::wide>() * 2 * TILE;
    const int at[4] = { 0, s.key, (int)s.place.first, (int)s.place.batch };
    mbarrier_wait(shared_address(&sh.keys_free), item % 2 ^ 1);
    mbarrier_expect(shared_address(&sh.keys_full), 2 * bytes + (int)sizeof sh.norms_of);
    load_keys(sh.keys.k[0], a, a.k_map, own, at, bytes / TILE, sh.keys_full);
    load_keys(sh.keys.q[0], a, a.q_map, own + all, at, bytes / TILE, sh.keys_full);
    load_bytes(&sh.norms_of, norms_at(a, tiles), sizeof sh.norms_of, sh.keys_full);
}

/* Loads a step, in the order in which places become free. */
template <class Shared>
GDN_DEVICE void load_step(Shared &sh, const struct gdn_cu_backward &a, const struct heads_step &s,
                          const struct heads_count &n)
{
    const int passes = value_passes<Shared::wide>(a);
    const uint32_t step = n.step;
    load_rows(sh, a, s, 0, step, rows_of_pass(step, passes, 0), true);
    if (!is_step(s)) return;
#pragma unroll 1
    for (int p = 1; p < passes; p++)
        load_rows(sh, a, s, p, step, rows_of_pass(step, passes, p), false);
#pragma unroll 1
    for (int p = 0; p < passes; p++) {
        if (loads_again(passes))
            load_rows(sh, a, s, p, step, rows_with_states(step, passes, p), false);
        load_states(sh, a, s, p, states_of_pass(step, passes, p));
        if (p == 0 && s.i == 0) load_keys(sh, a, s, n.item);
    }
}

/* ---- Values: dv and Z . v ------------------------------------------------------------------ */

/* A part of dv that a warp stores at a time: 16 tokens from m on, and half of a pass. */
struct value_part {
    int half, pass, m;
};
GDN_DEVICE bool has_gates(void) { return threadIdx.x / 32 == HEADS_WARPS + HEADS_STORING; }

/* Return how many parts of a pass a warp has, and part i. Two blocks have half of the tokens each.
 * If there is one block, the warp with gates takes the last tokens of both halves. */
GDN_DEVICE int count_value_parts(int n_blocks)
{
    if (has_gates()) return n_blocks == 1 ? 2 : 0;
    return n_blocks == 1 ? 3 : 2;
}
GDN_DEVICE struct value_part find_value_part(int pass, int i, int block, int n_blocks)
{
    if (has_gates()) return { i, pass, CHUNK - 16 };
    return { (int)threadIdx.x / 32 - HEADS_WARPS - 1, pass,
             block * tokens_of_block(n_blocks) + 16 * i };
}

/* Stores a warp's part of dv, and adds up Z . v of its tokens. */
template <int form, class Shared>
GDN_DEVICE void store_values(Shared &sh, uint32_t step, const struct value_part &w,
                             const struct gdn_cu_backward &a, const struct stage_chunk &c, int head)
{
    const uint32_t rows = rows_of_pass(step, value_passes<Shared::wide>(a), w.pass);
    const int l = threadIdx.x % 32, first = DEEP * w.pass + 64 * w.half;
    float sum[2];
    store_values<form, 4>(sum, sh.rows[rows % 2].z[w.half], first, w.m, sh.g[step % 4], a, c, head);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float &zv = sh.parts[step % 2][own_block<Shared::wide>()].zv[w.half][w.m + l / 4 + 8 * r];
        if (l % 4 == 0) zv = Shared::wide && w.pass ? fmaf(a.drop, sum[r], zv) : a.drop * sum[r];
    }
}
template <class Shared>
GDN_DEVICE void store_values(Shared &sh, uint32_t step, int pass, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head)
{
    const int form = store_form(a.dv, a.adds), n_blocks = key_blocks<Shared::wide>(a);
#pragma unroll 1
    for (int i = 0; i < count_value_parts(n_blocks); i++) {
        const struct value_part w = find_value_part(pass, i, own_block<Shared::wide>(), n_blocks);
        const int h = opaque(head);
        if (form == STORE_16)
            store_values<STORE_16>(sh, step, w, a, c, h);
        else if (form == STORE_F32)
            store_values<STORE_F32>(sh, step, w, a, c, h);
        else
            store_values<STORE_ANY>(sh, step, w, a, c, h);
    }
}

/* ---- X and Y ------------------------------------------------------------------------------- */

/* Adds the product of two tiles to d, or sets d to it. Rows of b are summed over, and those of a if
 * `turned`. The compiler knows `adds`. */
template <bool turned> GDN_DEVICE void add_product(head_sums &d, uint64_t a, uint64_t b, bool adds)
{
    if (turned)
        adds ? product::add_both_columns(d, a, b) : product::both_columns(d, a, b);
    else
        adds ? product::add_tile_columns(d, a, b) : product::tile_columns(d, a, b);
}

/* Computes d = a b over 128 columns of V, or adds that. b is transposed, and a if `turned`. Ends a
 * group of products. */
template <bool turned, bool adds>
GDN_DEVICE void multiply_values(head_sums &d, const char (&a)[2][TILE], const char (&b)[2][TILE])
{
    const uint32_t from = wgmma_place(shared_address(a));
    const uint32_t with = wgmma_place(shared_address(b));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t rows = i / 4 * (TILE / 16) + i % 4 * (16 * 128 / 16);
        const uint32_t at = turned ? rows : i / 4 * (TILE / 16) + i % 4 * 2;
        const uint64_t x = wgmma_factor(from + at), y = wgmma_factor(with + rows);
        add_product<turned>(d, x, y, i || adds);
    }
    wgmma_commit();
}

/* ---- Gradients of a state head ------------------------------------------------------------- */

/* Computes d = a times S, or J, or adds that. The group has half of the columns. */
template <bool turned, bool adds>
GDN_DEVICE void multiply_state(head_sums &d, const char (&a)[2][TILE], const char (&S)[2][2][TILE])
{
    const uint32_t from = wgmma_place(shared_address(a));
    const uint32_t with = wgmma_place(shared_address(S[0][heads_group()]));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t rows = i % 4 * (16 * 128 / 16);
        const uint32_t at = i / 4 * (TILE / 16) + (turned ? rows : i % 4 * 2);
        const uint64_t x = wgmma_factor(from + at);
        const uint64_t y = wgmma_factor(with + i / 4 * (2 * TILE / 16) + rows);
        add_product<turned>(d, x, y, i || adds);
    }
}
/* Multiplies columns of S and J, half of them in each group. The diagonal has parts of the sum. */
template <class Shared> GDN_DEVICE void multiply_inner(head_sums &x, const Shared &sh)
{
    const uint32_t S = wgmma_place(shared_address(sh.S[0][heads_group()]));
    const uint32_t J = wgmma_place(shared_address(sh.J[0][heads_group()]));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t rows = i / 4 * (2 * TILE / 16) + i % 4 * (16 * 128 / 16);
        const uint64_t s = wgmma_factor(S + rows), j = wgmma_factor(J + rows);
        i ? product::add_both_columns(x, s, j) : product::both_columns(x, s, j);
    }
}
/* Returns the sum of a thread's elements of the diagonal. Row g + 8 r of warp w is in columns
 * 8 (2 w + r) and on. */
GDN_DEVICE float diagonal_of(const head_sums &x)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool is_odd = lane / 4 % 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i / 2 == warp) sum += is_odd ? x[4 * i + 2 * (i % 2) + 1] : x[4 * i + 2 * (i % 2)];
    return lane % 4 == lane / 8 ? sum : 0;
}

/* Adds a b over the 64 tokens to d. Tokens are rows of b, and rows of a if `turned`. */
template <bool turned> GDN_DEVICE void add_over_tokens(head_sums &d, const char *a, const char *b)
{
    const uint32_t from = wgmma_place(shared_address(a));
    const uint32_t with = wgmma_place(shared_address(b));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t rows = i * (16 * 128 / 16);
        const uint64_t y = wgmma_factor(with + rows);
        if (turned)
            product::add_both_columns(d, wgmma_factor(from + rows), y);
        else
            product::add_tile_columns(d, wgmma_factor(from + 2 * i), y);
    }
}
/* Multiplies each row of X by beta_share() of its token. All threads that multiply call it. */
template <class Shared> GDN_DEVICE void give_beta_back(Shared &sh, const vectors &g)
{
    meet_workers(); /* X has been read */
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 2; i += HEADS_WORKERS) {
        const int t = i / (CHUNK / 2);
        const float f = beta_share(g.beta[t]);
        uint32_t *x = (uint32_t *)(sh.X + t * 128) + i % (CHUNK / 2);
        if (f != 1) *x = f == 0 ? 0 : pairs::pair(f * pairs::low(*x), f * pairs::high(*x));
    }
    async_fence();
    meet_workers();
}
/* Adds the products over tokens, and finds sums over rows while products run. `lacks`: X has
 * LEAST_BETA for some beta. Returns the thread's part of the sum of k . dw before these
 * products. */
template <bool lacks, class Shared>
GDN_DEVICE float multiply_tokens(head_dots &dots, struct head_gradients &d, Shared &sh,
                                 const struct head_keys &in, const vectors &g)
{
    const char *k = in.k[heads_group()], *q = in.q[heads_group()];
    head_pairs given;
    float ends[2];
    wgmma_fence();
    add_over_tokens<false>(d.dq, sh.Y, k);
    add_over_tokens<false>(d.D, sh.X, k);
    wgmma_commit();
    if (lacks) {
        wgmma_wait<0>();
        give_beta_back(sh, g);
    }
    load_pairs(given, in.k);
    dot_rows(ends, d.dw, given);
    wgmma_fence();
    add_over_tokens<true>(d.dw, sh.Y, q);
    add_over_tokens<true>(d.dw, sh.X, k);
    wgmma_commit();
    wgmma_wait<1>();
    dot_rows(dots[1], d.D, given);
    load_pairs(given, in.q);
    dot_rows(dots[0], d.dq, given);
    wgmma_wait<0>();
    return ends[0] + ends[1];
}

/* ---- A state head -------------------------------------------------------------------------- */

/* Sets rows that are not finite to zero, in a chunk where a gate forgets. */
GDN_DEVICE void clean_head(struct head_keys &keys, vectors &g)
{
    clean_rows(keys.k[0], 2, g.dead, (int)threadIdx.x, HEADS_WORKERS);
    clean_rows(keys.q[0], 2, g.dead, (int)threadIdx.x, HEADS_WORKERS);
    async_fence();
    meet_workers();
}
/* Releases a place: one thread of each warp arrives at the barrier. */
GDN_DEVICE void release(uint64_t &barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&barrier));
}

/* Adds a pass of the products with states. Returns the thread's part of the sum of S J. In two
 * groups: there are no registers for all four at once. */
template <class Shared>
GDN_DEVICE float add_pass(struct head_gradients &d, const Shared &sh, const struct head_rows &in)
{
    constexpr bool adds = Shared::wide;
    head_sums x;
    wgmma_fence();
    multiply_inner(x, sh);
    multiply_state<false, adds>(d.dq, in.dout, sh.S);
    multiply_state<true, adds>(d.D, in.z, sh.S);
    wgmma_commit();
    wgmma_wait<0>();
    const float inner = diagonal_of(x);
    wgmma_fence();
    multiply_state<true, adds>(d.dw, in.u, sh.J);
    wgmma_commit();
    return inner;
}
template <class Shared> GDN_DEVICE void release_pass(Shared &sh, uint32_t rows)
{
    release(sh.states_free);
    release(sh.rows_free[rows % 2]);
}

/* Computes the products with states, with their factors; D has beta in it. Returns the thread's
 * part of the sum of S J. */
template <bool forgets, class Shared>
GDN_DEVICE float add_states(struct head_gradients &d, Shared &sh, uint32_t step, int passes,
                            float drop)
{
    const vectors &g = sh.g[step % 4];
    float inner = 0;
    if (Shared::wide)
#pragma unroll
        for (int e = 0; e < 32; e++) d.dq[e] = d.D[e] = d.dw[e] = 0;
#pragma unroll 1
    for (int p = 0; Shared::wide && p < passes; p++) {
        const uint32_t rows = rows_with_states(step, passes, p);
        if (loads_again(passes))
            mbarrier_wait(shared_address(&sh.rows_full[rows % 2]), rows / 2 % 2);
        mbarrier_wait(shared_address(&sh.states_full), states_of_pass(step, passes, p) % 2);
        inner += add_pass(d, sh, sh.rows[rows % 2]);
        wgmma_wait<0>();
        release_pass(sh, rows);
    }
    const struct row_factors f = factors_of_rows(g, drop);
    if (!Shared::wide) {
        mbarrier_wait(shared_address(&sh.states_full), step % 2);
        inner = add_pass(d, sh, sh.rows[step % 2]);
    }
    weigh_rows<forgets>(d.dq, f.start);
    weigh_rows<forgets>(d.D, f.read);
    if (!Shared::wide) {
        wgmma_wait<0>();
        release_pass(sh, step);
    }
    weigh_rows<forgets>(d.dw, f.end);
    return g.decay == 0 ? 0 : drop * g.decay * inner;
}

/* Computes the products of X in one warpgroup and those of Y in the other. The rows of the first
 * pass are there. */
template <class Shared>
GDN_DEVICE void multiply_rows_of(head_sums &x, Shared &sh, uint32_t step, int passes, bool is_y)
{
    constexpr bool adds = Shared::wide;
    if (adds)
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] = 0;
#pragma unroll 1
    for (int p = 0; p < passes; p++) {
        const uint32_t rows = rows_of_pass(step, passes, p);
        const struct head_rows &in = sh.rows[rows % 2];
        if (p) mbarrier_wait(shared_address(&sh.rows_full[rows % 2]), rows / 2 % 2);
        if (is_y)
            multiply_values<false, adds>(x, in.dout, in.u);
        else
            multiply_values<true, adds>(x, in.z, in.u);
        wgmma_wait<0>();
        if (loads_again(passes)) release(sh.rows_free[rows % 2]);
    }
}
/* Makes X, or Y, of products. */
template <bool forgets, class Shared>
GDN_DEVICE void make_tokens(Shared &sh, head_sums &x, const vectors &g, bool is_y, float drop)
{
    head_pairs o;
    weigh_tokens<forgets>(x, g, is_y, drop);
    pack(o, x);
    store_factor(is_y ? sh.Y : sh.X, o);
    async_fence();
}

/* Waits for the other threads that multiply. Returns true if X lacks beta of a token, for f16. */
GDN_DEVICE bool meet_and_ask(const vectors &g)
{
    const int t = threadIdx.x % CHUNK;
    if (SCALES_ROWS)
        return barrier_any(HEADS_BARRIER, HEADS_WORKERS, t < g.n && fabsf(g.beta[t]) < LEAST_BETA);
    meet_workers();
    return false;
}

/* Adds the products over tokens. `inner`: the thread's part of the sum of S J. All sums of rows but
 * those of dw . k are found then. */
template <class Shared>
GDN_DEVICE void add_tokens(head_dots &dots, struct head_parts &parts, struct head_gradients &d,
                           Shared &sh, struct head_keys &keys, vectors &g, bool forgets,
                           float inner)
{
    const bool lacks = meet_and_ask(g);
    if (forgets) clean_head(keys, g);
    inner += lacks ? multiply_tokens<true>(dots, d, sh, keys, g)
                   : multiply_tokens<false>(dots, d, sh, keys, g);
    const float end = sum_warp(inner);
    if (threadIdx.x % 32 == 0) parts.ends[threadIdx.x / 32] = end;
}
/* Shares the sums for the gradients of gates. Sets keeps to the share of D in dk. */
GDN_DEVICE void share_tokens(float (&keeps)[2], head_dots &dots, struct head_parts &parts,
                             const struct head_gradients &d, const struct head_keys &keys,
                             const vectors &g)
{
    head_pairs given;
    load_pairs(given, keys.k);
    dot_rows(dots[2], d.dw, given);
    share_dots(keeps, parts, dots, g);
}

/* Waits for a state head's rows, adds its dq and dk, and shares the sums for the gradients of
 * gates. */
template <class Shared>
GDN_DEVICE void run_head(head_sums &dq, head_sums &dk, Shared &sh, const struct heads_count &count,
                         int passes, float drop)
{
    const uint32_t step = count.step;
    const int now = step % 2;
    struct head_parts &parts = sh.parts[now][own_block<Shared::wide>()];
    vectors &g = sh.g[step % 4];
    struct head_gradients d;
    head_dots dots;
    float keeps[2];
    const bool forgets = in_warp(tokens_of(g.resets) != 0);
    mbarrier_wait(shared_address(&sh.parts_free[now]), step / 2 % 2 ^ 1);
    const bool is_y = in_warp(heads_group() == 1);
    head_sums x;
    multiply_rows_of(x, sh, step, passes, is_y);
    if (forgets)
        make_tokens<true>(sh, x, g, is_y, drop);
    else
        make_tokens<false>(sh, x, g, is_y, drop);
    const float inner = forgets ? add_states<true>(d, sh, step, passes, drop)
                                : add_states<false>(d, sh, step, passes, drop);
    mbarrier_wait(shared_address(&sh.keys_full), count.item % 2);
    if (in_warp(g.n < CHUNK && sh.steps[step % 4].i == 0)) {
        clear_rows(sh.keys.k[0], 4, g.n, (int)threadIdx.x, HEADS_WORKERS);
        async_fence();
    }
    add_tokens(dots, parts, d, sh, sh.keys, g, forgets, inner);
    share_tokens(keeps, dots, parts, d, sh.keys, g);
    if (Shared::wide) async_fence(); /* the parts may be copied asynchronously */
    release(sh.parts_full[now]);
    add_head(dq, dk, d, keeps);
    meet_workers(); /* X and Y have been read */
}

/* Initialises the barriers. Rows are free after the threads that multiply and those that store dv.
 * Parts are full after the same threads; in the first of two blocks also after the other block.
 * They are free after the gates. */
template <class Shared> GDN_DEVICE void start_heads(Shared &sh, int n_blocks)
{
    const int others = n_blocks > 1 && own_block<Shared::wide>() == 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(shared_address(&sh.norms_full[i]), 1);
            mbarrier_init(shared_address(&sh.rows_full[i]), 1);
            mbarrier_init(shared_address(&sh.rows_free[i]), HEADS_WARPS + HEADS_STORING);
            mbarrier_init(shared_address(&sh.parts_full[i]), HEADS_WARPS + HEADS_STORING + others);
            mbarrier_init(shared_address(&sh.parts_free[i]), 1);
        }
        mbarrier_init(shared_address(&sh.states_full), 1);
        mbarrier_init(shared_address(&sh.states_free), HEADS_WARPS);
        mbarrier_init(shared_address(&sh.keys_full), 1);
        mbarrier_init(shared_address(&sh.keys_free), HEADS_WARPS);
        mbarrier_init_fence();
    }
    if (Shared::wide)
        cluster_sync();
    else
        __syncthreads();
}

/* Loads the rows of all steps. One thread calls it. */
template <class Shared> GDN_DEVICE void load_heads(Shared &sh, const struct gdn_cu_backward &a)
{
    const int share = key_blocks<Shared::wide>(a), n_blocks = gridDim.x / share;
    int64_t item = blockIdx.x / share;
    struct heads_step s = find_step(a, item, n_blocks);
    struct heads_count count = {};
    for (; is_step(s); count.step++) {
        const struct heads_step next = next_step(a, s, item, n_blocks);
        load_step(sh, a, s, count);
        if (next.i == 0) count.item++;
        s = next;
    }
    load_step(sh, a, s, count);
}

/* Sends the second block's parts to the first. A warp calls it. */
template <class Shared> GDN_DEVICE void send_parts(Shared &sh, int now)
{
    const uint32_t from = shared_address(&sh.parts[now][1]);
    const uint32_t full = map_shared(shared_address(&sh.parts_full[now]), 0);
    if (threadIdx.x % 32) return;
    mbarrier_expect_cluster(full, sizeof sh.parts[now][1]);
    copy_to_block(map_shared(from, 0), from, sizeof sh.parts[now][1], full);
}

/* Stores the gradients of gates of a step. One warp calls it. */
template <class Shared>
GDN_DEVICE void store_gates(Shared &sh, const struct gdn_cu_backward &a, uint32_t step)
{
    const int now = step % 2;
    const struct heads_step &s = sh.steps[step % 4];
    mbarrier_wait(shared_address(&sh.parts_full[now]), step / 2 % 2);
    if (Shared::wide && own_block<Shared::wide>() > 0) {
        send_parts(sh, now);
        return;
    }
    store_head_gates(sh, step, a, chunk_at(s.place, s.number), s.head);
    release(sh.parts_free[now]);
    if (key_blocks<Shared::wide>(a) > 1 && threadIdx.x % 32 == 0)
        mbarrier_arrive_cluster(map_shared(shared_address(&sh.parts_free[now]), 1));
}

/* Stores a warp's parts of dv, whose rows are loaded first, and the gradients of gates one step
 * later. */
template <class Shared> GDN_DEVICE void store_all(Shared &sh, const struct gdn_cu_backward &a)
{
    const int passes = value_passes<Shared::wide>(a);
    const int loads = loads_again(passes) ? 2 * passes : passes;
#pragma unroll 1
    for (uint32_t step = 0;; step++) {
        const struct heads_step &s = sh.steps[step % 4];
        bool is = true;
#pragma unroll 1
        for (int p = 0; is && p < loads; p++) {
            const uint32_t rows = rows_of_pass(step, passes, p);
            mbarrier_wait(shared_address(&sh.rows_full[rows % 2]), rows / 2 % 2);
            is = in_warp(is_step(s));
            if (!is) break;
            if (p == 0) mbarrier_wait(shared_address(&sh.parts_free[step % 2]), step / 2 % 2 ^ 1);
            if (p < passes) store_values(sh, step, p, a, chunk_at(s.place, s.number), s.head);
            if (Shared::wide) async_fence(); /* the parts may be copied asynchronously */
            if (p == passes - 1) release(sh.parts_full[step % 2]);
            release(sh.rows_free[rows % 2]);
        }
        if (in_warp(has_gates() && step)) store_gates(sh, a, step - 1);
        if (!is) return;
    }
}

template <class Shared> GDN_DEVICE void work_heads(Shared &sh, const struct gdn_cu_backward &a)
{
    const int last = a.rule.H / a.rule.Hk - 1, passes = value_passes<Shared::wide>(a);
    struct heads_count count = {};
    head_sums dq, dk;
#pragma unroll 1
    for (;; count.step++) {
        const uint32_t rows = rows_of_pass(count.step, passes, 0);
        mbarrier_wait(shared_address(&sh.rows_full[rows % 2]), rows / 2 % 2);
        const struct heads_step &s = sh.steps[count.step % 4];
        vectors &g = sh.g[count.step % 4];
        if (in_warp(!is_step(s))) break;
        const struct stage_chunk c = chunk_at(s.place, s.number);
        if (in_warp(s.i == 0))
#pragma unroll
            for (int e = 0; e < 32; e++) dq[e] = dk[e] = 0;
        run_head(dq, dk, sh, count, passes, a.drop);
        if (in_warp(s.i == last)) {
            store_rows(sh, dq, sh.keys.q, 1, count.item, a.dq, a, c, s.key, g);
            store_rows(sh, dk, sh.keys.k, 0, count.item, a.dk, a, c, s.key, g);
            release(sh.keys_free);
            count.item++;
        }
    }
}

template <bool wide> GDN_DEVICE void run_heads(const struct gdn_cu_backward &a)
{
    heads_shared<wide> &sh = *(heads_shared<wide> *)gdn_shared;
    if (form_of(a).is_small()) clear_tiles(sh.rows[0].dout[0], (int)(sh.X - sh.rows[0].dout[0]));
    start_heads(sh, key_blocks<wide>(a));
    if (in_warp(threadIdx.x < HEADS_WORKERS)) {
        raise_registers<HEADS_REGISTERS>();
        work_heads(sh, a);
    } else {
        lower_registers<HEADS_OTHER_REGISTERS>();
        if (threadIdx.x == HEADS_WORKERS) load_heads(sh, a);
        const int warp = threadIdx.x / 32 - HEADS_WARPS;
        if (in_warp(warp > 0)) store_all(sh, a);
    }
    __syncwarp();
    if (wide) cluster_sync(); /* the other block may still signal here */
}

#endif
