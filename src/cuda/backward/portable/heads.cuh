/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of chunks by mma.sync. A block of eight warps goes through pairs of a chunk and a
 * key head; of each, through the state heads that read it, and adds up dq and dk of these in
 * registers:
 *
 *     X, Y    -beta (Z U^T) and dO U^T, with the gates between two tokens, by four warps each
 *     states  dO S^T, Z S^T and U J^T, with the gates of one token
 *     tokens  dq += Y K      D += X K      dw += Y^T Q + X^T K         dk = D + dw
 *
 * X, Y and states are sums over passes of 64 columns of V. What is loaded for a state head is rows
 * and states of each pass, then keys and queries. If the device has room for two of these, the next
 * one comes while the block works on one. Four warps have 64 columns of dq, D and dw, 16 tokens
 * each. What is shared with Hopper's kernel is in backward/heads.cuh.
 */
#ifndef GDN_CUDA_BACKWARD_PORTABLE_HEADS_CUH
#define GDN_CUDA_BACKWARD_PORTABLE_HEADS_CUH

#include "cuda/backward/heads.cuh"
#include "cuda/backward/portable/tiles.cuh"

struct pass_tiles {
    char dout[TILE], u[TILE], z[TILE]; /* u and z are transposed */
    char S[2][TILE], J[2][TILE];       /* [k / 64] */
};
struct key_tiles {
    char k[2][TILE], q[2][TILE];
    struct key_norms norms;
};
union heads_load {
    alignas(128) struct pass_tiles pass;
    struct key_tiles keys;
};
/* A load: a pass of a state head, or its keys after the last pass. */
struct load_place {
    struct heads_step s;
    int pass;
    uint32_t number, head; /* of loads of the block; of its state heads */
};
struct heads_shared {
    static constexpr bool wide = false;
    char X[TILE], Y[TILE];
    alignas(16) vectors g[2]; /* of this state head and the next */
    struct head_parts parts[2][1];
    float norms[2][1][HEADS_GROUPS][CHUNK]; /* of keys and queries */
    struct key_norms norms_of;
    struct load_place places[4]; /* of the last loads; they are here, because registers are
                                    scarce */
};
static_assert(sizeof(struct heads_shared) <= GDN_CU_PORTABLE_SHARED_BYTES, "heads_shared");
static_assert(sizeof(union heads_load) <= GDN_CU_PORTABLE_LOAD_BYTES, "heads_load");

GDN_DEVICE union heads_load &load_at(int i)
{
    char *at = gdn_shared + GDN_CU_PORTABLE_SHARED_BYTES;
    return *(union heads_load *)(at + i * GDN_CU_PORTABLE_LOAD_BYTES);
}
GDN_DEVICE int block_of(const struct heads_shared &) { return 0; }
GDN_DEVICE void meet_norms(struct heads_shared &, int, uint32_t, int) { meet_workers(); }

/* ---- Loads: one after the other through all that a block does ------------------------------- */

GDN_DEVICE struct load_place next_load(const struct gdn_cu_backward &a, struct load_place l,
                                       int passes, int64_t &item)
{
    l.number++;
    if (l.pass++ < passes) return l;
    l.pass = 0;
    l.head++;
    l.s = next_step(a, l.s, item, gridDim.x);
    return l;
}
GDN_DEVICE void begin_pass(union heads_load &to, vectors &g, const struct gdn_cu_backward &a,
                           const struct heads_step s, int pass)
{
    enum { N = HEADS_WORKERS, TILES = 2 * TILE };
    const struct stage_chunk c = chunk_at(s.place, s.number);
    const struct record_form f = form_of(a);
    const int all = f.keys * TILE;
    const char *from = (const char *)&record_at(a, s.number, s.head);
    const struct row_source rows = source_of(a.dout, c.seq, 0, c.n, s.head, 64 * pass, a.rule.V);
    begin_rows<N>(to.pass.dout, rows);
    begin_copy<N, TILE>(to.pass.u, from + f.u(pass));
    begin_copy<N, TILE>(to.pass.z, from + f.z(pass));
    begin_copy<N, TILES>(to.pass.S, from + f.S(pass), all);
    begin_copy<N, TILES>(to.pass.J, from + f.J(pass), all);
    if (pass == 0) begin_copy<N, sizeof g>(&g, from);
}
GDN_DEVICE void begin_keys(union heads_load &to, const struct gdn_cu_backward &a,
                           const struct heads_step s)
{
    enum { N = HEADS_WORKERS, TILES = 2 * TILE };
    const int all = form_of(a).keys * TILE;
    const char *from = keys_of(a, s.number, s.key);
    begin_copy<N, TILES>(to.keys.k, from, all);
    begin_copy<N, TILES>(to.keys.q, from + all, all);
    begin_copy<N, sizeof to.keys.norms>(&to.keys.norms, from + 2 * all);
}
GDN_DEVICE void begin_load(union heads_load &to, struct heads_shared &sh,
                           const struct gdn_cu_backward &a, const struct load_place &l, int passes)
{
    const int pass = l.pass;
    if (is_step(l.s)) {
        if (pass < passes)
            begin_pass(to, sh.g[l.head % 2], a, l.s, pass);
        else
            begin_keys(to, a, l.s);
    }
    copy_commit();
}
/* Waits for load n, and begins the next load if there is room. */
GDN_DEVICE union heads_load &take_load(struct heads_shared &sh, const struct gdn_cu_backward &a,
                                       uint32_t n, int passes)
{
    const bool two = a.heads_bytes == GDN_CU_PORTABLE_HEADS_BYTES;
    const int now = two ? n % 2 : 0;
    if (!two) {
        __syncthreads(); /* the load before has been read */
        begin_load(load_at(0), sh, a, sh.places[n % 4], passes);
    }
    copy_wait<0>();
    __syncthreads();
    if (two) begin_load(load_at(1 - now), sh, a, sh.places[(n + 1) % 4], passes);
    return load_at(now);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Adds the products of two factors with one tile, summed over the tile's rows. */
GDN_DEVICE void add_two(head_sums &x, head_sums &y, const head_pairs &a, const head_pairs &b,
                        const char *tile)
{
    const uint32_t at = right_place_turned(tile);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t f[4];
            load_matrices_turned(f, (at ^ j * 32) + i * (16 * 128));
            multiply_add(x + 8 * j, a + 4 * i, f);
            multiply_add(y + 8 * j, b + 4 * i, f);
        }
}

/* Adds a pass to `one`, which is X or Y, and to the gradients. Returns the thread's part of the sum
 * of S J. */
GDN_DEVICE float add_pass(head_sums &one, struct head_gradients &d, const struct pass_tiles &p)
{
    const int group = heads_group();
    head_pairs dout, z;
    float inner = 0;
    load_factor(dout, p.dout);
    load_turned(z, p.z);
    if (in_warp(group == 1))
        add_columns(one, dout, p.u);
    else
        add_columns(one, z, p.u);
    add_two(d.dq, d.D, dout, z, p.S[group]);
    load_turned(z, p.u);
    add_columns(d.dw, z, p.J[group]);
    for (int i = 4 * threadIdx.x; i < (int)sizeof p.S; i += 4 * HEADS_WORKERS) {
        const uint32_t S = *(const uint32_t *)(p.S[0] + i), J = *(const uint32_t *)(p.J[0] + i);
        inner = fmaf(pairs::low(S), pairs::low(J), inner);
        inner = fmaf(pairs::high(S), pairs::high(J), inner);
    }
    return inner;
}

/* Stores a warp's part of dv, and adds up Z . v of its tokens. */
template <int form>
GDN_DEVICE void store_pass(struct heads_shared &sh, const struct pass_tiles &p,
                           const struct gdn_cu_backward &a, const struct load_place &at)
{
    const struct stage_chunk c = chunk_at(at.s.place, at.s.number);
    const int l = threadIdx.x % 32, m = threadIdx.x / 32 % 4 * 16, half = heads_group();
    float sum[2];
    store_values<form, 2>(sum, p.z + half * 32 * 128, 64 * at.pass + 32 * half, m,
                          sh.g[at.head % 2], a, c, at.s.head);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float &zv = sh.parts[at.head % 2][0].zv[half][m + l / 4 + 8 * r];
        if (l % 4 == 0) zv = at.pass ? fmaf(a.drop, sum[r], zv) : a.drop * sum[r];
    }
}
GDN_DEVICE void store_pass(struct heads_shared &sh, const struct pass_tiles &p,
                           const struct gdn_cu_backward &a, const struct load_place &at)
{
    const int form = store_form(a.dv, a.adds);
    if (form == STORE_16)
        store_pass<STORE_16>(sh, p, a, at);
    else if (form == STORE_F32)
        store_pass<STORE_F32>(sh, p, a, at);
    else
        store_pass<STORE_ANY>(sh, p, a, at);
}

/* Multiplies X or Y, and the gradients, by the factors of gates. */
template <bool forgets>
GDN_DEVICE void weigh_all(head_sums &one, struct head_gradients &d, const vectors &g, float drop)
{
    weigh_tokens<forgets>(one, g, heads_group() == 1, drop);
    const struct row_factors f = factors_of_rows(g, drop);
    weigh_rows<forgets>(d.dq, f.start);
    weigh_rows<forgets>(d.D, f.read);
    weigh_rows<forgets>(d.dw, f.end);
}

/* Multiplies each row of X by beta_share() of its token. */
GDN_DEVICE void give_beta_back(struct heads_shared &sh, const vectors &g)
{
    __syncthreads(); /* X has been read */
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 2; i += HEADS_WORKERS) {
        const float f = beta_share(g.beta[i / (CHUNK / 2)]);
        uint32_t *x = (uint32_t *)sh.X + i;
        if (f != 1) *x = f == 0 ? 0 : pairs::pair(f * pairs::low(*x), f * pairs::high(*x));
    }
    __syncthreads();
}

/* Adds the products over tokens. `lacks`: X has LEAST_BETA for some beta. */
GDN_DEVICE void add_tokens(struct head_gradients &d, struct heads_shared &sh,
                           const struct key_tiles &keys, const vectors &g, bool lacks)
{
    const char *k = keys.k[heads_group()], *q = keys.q[heads_group()];
    head_pairs x, y;
    load_factor(y, sh.Y);
    load_factor(x, sh.X);
    add_two(d.dq, d.D, y, x, k);
    if (lacks) give_beta_back(sh, g);
    load_turned(y, sh.Y);
    add_columns(d.dw, y, q);
    load_turned(x, sh.X);
    add_columns(d.dw, x, k);
}

/* ---- A state head ---------------------------------------------------------------------------- */

/* Sets rows that are not finite to zero, in a chunk where a gate forgets. */
GDN_DEVICE void clean_head(struct key_tiles &keys, vectors &g)
{
    clean_rows(keys.k[0], 2, g.dead, (int)threadIdx.x, HEADS_WORKERS);
    clean_rows(keys.q[0], 2, g.dead, (int)threadIdx.x, HEADS_WORKERS);
    __syncthreads();
}

/* Ends a state head, whose keys are loaded. inner: the thread's part of the sum of S J. */
GDN_DEVICE void end_head(head_sums &dq, head_sums &dk, struct heads_shared &sh,
                         struct key_tiles &keys, struct head_gradients &d, head_sums &one,
                         float inner, const struct gdn_cu_backward &a, const struct load_place &at)
{
    const int t = threadIdx.x % CHUNK, now = at.head % 2;
    vectors &g = sh.g[now];
    struct head_parts &parts = sh.parts[now][0];
    head_pairs o;
    float keeps[2], ends[2];
    const bool forgets = in_warp(tokens_of(g.resets) != 0);
    if (forgets)
        weigh_all<true>(one, d, g, a.drop);
    else
        weigh_all<false>(one, d, g, a.drop);
    pack(o, one);
    store_factor(own_rows(heads_group() == 1 ? sh.Y : sh.X), o);
    for (int i = threadIdx.x; i < (int)sizeof sh.norms_of / 16; i += HEADS_WORKERS)
        ((uint4 *)&sh.norms_of)[i] = ((const uint4 *)&keys.norms)[i];
    const bool lacks = __syncthreads_or(SCALES_ROWS && t < g.n && fabsf(g.beta[t]) < LEAST_BETA);
    if (forgets) clean_head(keys, g);
    load_pairs(o, keys.k);
    dot_rows(ends, d.dw, o);
    inner = g.decay == 0 ? 0 : a.drop * g.decay * inner;
    const float end = sum_warp(inner + ends[0] + ends[1]);
    if (threadIdx.x % 32 == 0) parts.ends[threadIdx.x / 32] = end;
    add_tokens(d, sh, keys, g, lacks);
    share_head(keeps, parts, d, keys.q, keys.k, g);
    add_head(dq, dk, d, keeps);
    __syncthreads();
    if (in_warp(threadIdx.x < 32))
        store_head_gates(sh, now, a, chunk_at(at.s.place, at.s.number), at.s.head);
}

/* The first thread finds the place of load n + 1. Waits for load n. */
GDN_DEVICE union heads_load &turn_to(struct heads_shared &sh, const struct gdn_cu_backward &a,
                                     uint32_t n, int passes, int64_t &item)
{
    if (threadIdx.x == 0) sh.places[(n + 1) % 4] = next_load(a, sh.places[n % 4], passes, item);
    return take_load(sh, a, n, passes);
}

/* Adds dq and dk of a state head, and stores its other gradients. n: the number of the head's
 * first load. */
GDN_DEVICE union heads_load &run_head(head_sums &dq, head_sums &dk, struct heads_shared &sh,
                                      const struct gdn_cu_backward &a, uint32_t n, int passes,
                                      int64_t &item)
{
    struct head_gradients d;
    head_sums one;
    float inner = 0;
#pragma unroll
    for (int e = 0; e < 32; e++) d.dq[e] = d.D[e] = d.dw[e] = one[e] = 0;
#pragma unroll 1
    for (int p = 0; p < passes; p++) {
        union heads_load &in = turn_to(sh, a, n + p, passes, item);
        inner += add_pass(one, d, in.pass);
        store_pass(sh, in.pass, a, sh.places[(n + p) % 4]);
    }
    union heads_load &in = turn_to(sh, a, n + passes, passes, item);
    end_head(dq, dk, sh, in.keys, d, one, inner, a, sh.places[(n + passes) % 4]);
    return in;
}

/* Computes the gradients of pairs of a chunk and a key head, one after the other. */
GDN_DEVICE void run_heads(const struct gdn_cu_backward &a)
{
    struct heads_shared &sh = *(struct heads_shared *)gdn_shared;
    const int readers = a.rule.H / a.rule.Hk, passes = (a.rule.V + 63) / 64;
    int64_t item = blockIdx.x;
    uint32_t n = 0;
    if (threadIdx.x == 0) sh.places[0] = { find_step(a, item, gridDim.x), 0, 0, 0 };
    __syncthreads();
    if (a.heads_bytes == GDN_CU_PORTABLE_HEADS_BYTES)
        begin_load(load_at(0), sh, a, sh.places[0], passes);
#pragma unroll 1
    while (in_warp(is_step(sh.places[n % 4].s))) {
        head_sums dq, dk;
        union heads_load *in = nullptr;
#pragma unroll
        for (int e = 0; e < 32; e++) dq[e] = dk[e] = 0;
#pragma unroll 1
        for (int i = 0; i < readers; i++, n += passes + 1)
            in = &run_head(dq, dk, sh, a, n, passes, item);
        const struct load_place &at = sh.places[(n - 1) % 4];
        const struct stage_chunk c = chunk_at(at.s.place, at.s.number);
        const vectors &g = sh.g[at.head % 2];
        store_rows(sh, dq, in->keys.q, 1, 0, a.dq, a, c, at.s.key, g);
        store_rows(sh, dk, in->keys.k, 0, 0, a.dk, a, c, at.s.key, g);
    }
    copy_wait<0>();
}

#endif
