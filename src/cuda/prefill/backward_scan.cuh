/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks of backward_walk.cuh on tensor cores, by a block of eight warps for a sequence, a
 * head and a strip of 32 columns. The transposed strip of S, or of its gradient J, is in registers:
 * a warp has 16 of the columns and 32 of k. Products that need all of k take the strip from shared
 * memory, rounded once:
 *
 *     forward    R^T = beta (V^T - from_start S^T K^T)           U^T = R^T T^T
 *                S^T <- decay S^T + (to_end U)^T K
 *     reverse    dU^T = to_end J^T K^T + dO^T P                  Z^T = dU^T T
 *                J^T <- decay J^T + (q_start dO)^T Q - (from_start beta Z)^T K
 *
 * In the products of tokens a warp has 16 columns and 16 tokens.
 */
#ifndef GDN_CUDA_BACKWARD_SCAN_CUH
#define GDN_CUDA_BACKWARD_SCAN_CUH

#include "cuda/prefill/backward_mma.cuh"
#include "cuda/prefill/backward_walk.cuh"

enum { SCAN_STAGES = 3 };

struct forward_stage {
    alignas(16) char    k[CHUNK * DEEP_ROW], T[CHUNK * CHUNK_ROW], v[CHUNK * STRIP_ROW];
    alignas(16) vectors g;
};
struct forward_shared {
    struct forward_stage stages[SCAN_STAGES];
    uint64_t             loaded[SCAN_STAGES];
    alignas(16) char     S[STRIP * DEEP_ROW], r[STRIP * CHUNK_ROW], u[STRIP * CHUNK_ROW];
};
struct reverse_stage {
    struct key_record   keys;
    alignas(16) char    T[CHUNK * CHUNK_ROW], P[CHUNK * CHUNK_ROW], dout[CHUNK * STRIP_ROW];
    alignas(16) vectors g;
};
struct scan_reverse_shared {
    struct reverse_stage stages[SCAN_STAGES];
    uint64_t             loaded[SCAN_STAGES];
    alignas(16) char     J[STRIP * DEEP_ROW], du[STRIP * CHUNK_ROW];
    alignas(16) char     dout[STRIP * CHUNK_ROW], z[STRIP * CHUNK_ROW];
};
static_assert(sizeof(struct forward_shared) <= GDN_CU_SCAN_FORWARD_BYTES, "forward_shared");
static_assert(sizeof(struct scan_reverse_shared) <= GDN_CU_SCAN_REVERSE_BYTES, "reverse_shared");

/* A warp's part of a strip: columns from v on, and blocks 2 x and 2 x + 1 of k, which in products
 * of tokens is the block of tokens. */
struct scan_warp {
    int v, x;
};
GDN_DEVICE struct scan_warp scan_warp_of(void)
{
    return { (int)(threadIdx.x / 32 % 2), (int)(threadIdx.x / 64) };
}

typedef mma_block scan_state[2];

/* ---- States -------------------------------------------------------------------------------- */

/* From a pool in which rows are k, or columns; zero where there is none. */
GDN_DEVICE void load_scan(scan_state &S, const struct stage_strip &s, const struct scan_warp &w)
{
#pragma unroll
    for (int y = 0; y < 2; y++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int     v = s.col + 16 * w.v + block_row(i % 4);
            const int     k = 32 * w.x + 16 * y + block_column(i / 4, i);
            const int64_t at = s.at + (s.view.k_first ? k * s.view.ld + v : v * s.view.ld + k);
            S[y][i / 4][i % 4] = s.view.data ? load_float(s.view.data, at, s.view.dtype) : 0;
        }
}
GDN_DEVICE void store_scan(const struct stage_strip &s, const scan_state &S,
                           const struct scan_warp &w, bool adds)
{
#pragma unroll
    for (int y = 0; y < 2; y++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int     v = s.col + 16 * w.v + block_row(i % 4);
            const int     k = 32 * w.x + 16 * y + block_column(i / 4, i);
            const int64_t at = s.at + (s.view.k_first ? k * s.view.ld + v : v * s.view.ld + k);
            const float   before = adds ? load_float(s.view.data, at, s.view.dtype) : 0;
            store_float(s.view.data, at, s.view.dtype, S[y][i / 4][i % 4] + before);
        }
}

/* To the tile from which products take it. */
GDN_DEVICE void share_scan(char *tile, const scan_state &S, const struct scan_warp &w)
{
#pragma unroll
    for (int y = 0; y < 2; y++) {
        tiles::operand o;
        tiles::pack(o, S[y]);
        store_part(tile + 16 * w.v * DEEP_ROW + 2 * (32 * w.x + 16 * y), DEEP_ROW, o);
    }
}
/* The tile to a record. */
GDN_DEVICE void store_tile(char *to, const char *tile, int col)
{
    const int v = threadIdx.x / (DEEP / 8), x = threadIdx.x % (DEEP / 8) * 8;
#pragma unroll
    for (int i = 0; i < STRIP; i += THREADS / (DEEP / 8))
        *(uint4 *)(to + (col + v + i) * DEEP_ROW + 2 * x) =
            *(const uint4 *)(tile + (v + i) * DEEP_ROW + 2 * x);
}

/* ---- Products ------------------------------------------------------------------------------ */

/* The strip times the rows of the warp's tokens: all of k, in two sums that do not wait for each
 * other. */
GDN_DEVICE void multiply_strip(mma_block &sum, const char *strip, const char *rows,
                               const struct scan_warp &w)
{
    mma_block other;
    clear_block(sum);
    clear_block(other);
#pragma unroll
    for (int y = 0; y < DEEP / 16; y++) {
        tiles::operand left;
        right_operand  right;
        load_part(left, strip, DEEP_ROW, w.v, y);
        load_right(right, rows, DEEP_ROW, w.x, y);
        multiply(y % 2 ? other : sum, left, right);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i / 4][i % 4] += other[i / 4][i % 4];
}

/* S = decay S, zero by selection (G7). */
GDN_DEVICE void decay_scan(scan_state &S, float decay)
{
    if (decay == 0) {
        clear_block(S[0]), clear_block(S[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) S[i / 8][i / 4 % 2][i % 4] *= decay;
}

/* S += (a tile [v][tokens]) times rows of tokens. */
GDN_DEVICE void add_tokens(scan_state &S, const char *strip, const char *rows,
                           const struct scan_warp &w)
{
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        tiles::operand left;
        right_operand  right;
        load_part(left, strip, CHUNK_ROW, w.v, j);
#pragma unroll
        for (int y = 0; y < 2; y++) {
            load_right_turned(right, rows, DEEP_ROW, 2 * w.x + y, j);
            multiply(S[y], left, right);
        }
    }
}

/* A block [v][tokens] of the warp's to a tile, and turned to rows of tokens in memory. */
GDN_DEVICE void store_tokens(char *tile, const mma_block &x, const struct scan_warp &w)
{
    tiles::operand o;
    tiles::pack(o, x);
    store_part(tile + 16 * w.v * CHUNK_ROW + 32 * w.x, CHUNK_ROW, o);
}
GDN_DEVICE void store_turned(char *to, const mma_block &x, const struct scan_warp &w, int col)
{
    tiles::operand o, turned;
    tiles::pack(o, x);
    turn(turned, o);
    store_part(to + 16 * w.x * DEEP_ROW + 2 * (col + 16 * w.v), DEEP_ROW, turned);
}

/* The block with factors of tokens; zero where a factor is. */
GDN_DEVICE void weigh(mma_block &to, const mma_block &x, const float *factors,
                      const struct scan_warp &w)
{
    const struct token_factors f = factors_of(factors, 16 * w.x);
#pragma unroll
    for (int i = 0; i < 8; i++) to[i / 4][i % 4] = f.of(i) == 0 ? 0 : f.of(i) * x[i / 4][i % 4];
}

GDN_DEVICE void spoil_block(mma_block &x, const vectors &g, const struct scan_warp &w)
{
    if (!tokens_of(g.dead)) return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i / 4][i % 4] += spoil_with(g, 16 * w.x + block_column(i / 4, i));
}

/* A tile [v][tokens], written by all warps, before a product over tokens. Where no gate forgets
 * it is as it is. By the whole block. */
GDN_DEVICE void settle(char *tile, vectors &g)
{
    __syncthreads();
    if (!tokens_of(g.resets)) return;
    clean_columns(tile, CHUNK_ROW, STRIP, g);
    __syncthreads();
}

/* ---- Forward ------------------------------------------------------------------------------- */

/* What the next chunk is loaded from. */
struct forward_source {
    struct row_source          v;
    const struct key_record   *keys;
    const struct chunk_record *record;
    int64_t                    n; /* tokens from there on */
};
GDN_DEVICE struct forward_source start_forward(const struct gdn_cu_backward &a,
                                               const struct backward_window &in,
                                               const struct walk_item       &w)
{
    const struct stage_chunk c = chunk_at(in, 0).in;
    return { source_of<2 * STRIP>(a.rule.v, c, w.head, w.col),
             &keys_of(a, in.first, source_head(a.rule, w.head, a.rule.Hk)),
             &record_of(a, in.first, w.head), in.seq.n_valid };
}
/* By the whole block; the first warp loads what lies in memory as it is wanted. */
GDN_DEVICE void load_forward(struct forward_stage &to, struct forward_source &from,
                             uint64_t &barrier, const struct gdn_cu_rule &r)
{
    if (from.n > 0) {
        copy_rows<2 * STRIP, THREADS>(to.v, STRIP_ROW, from.v, (int)clamp64(from.n, 0, CHUNK));
        if (threadIdx.x < 32) {
            copy_begin(barrier, sizeof to.k + sizeof to.T + sizeof to.g);
            copy_part(to.k, from.keys->k, barrier, 0);
            copy_part(to.T, from.record->T, barrier, 1);
            copy_part(to.g, from.record->v, barrier, 2);
        }
        from.v.at += CHUNK * from.v.row;
        from.keys += r.Hk;
        from.record += r.H;
        from.n -= CHUNK;
    }
    copy_commit();
}

/* The stage of a chunk, and how often the ring has been gone around. */
struct scan_ring {
    int now, next, round;
};
GDN_DEVICE void turn_ring(struct scan_ring &r)
{
    r.round += r.now + 1 == SCAN_STAGES;
    r.now  = r.now + 1 == SCAN_STAGES ? 0 : r.now + 1;
    r.next = r.next + 1 == SCAN_STAGES ? 0 : r.next + 1;
}

/* The loads of a later chunk begin behind those of the first product. */
GDN_DEVICE void forward_chunk(struct forward_shared &sh, struct forward_stage &in, scan_state &S,
                              struct chunk_record &to, const struct scan_warp &w, int col,
                              struct forward_source &from, const struct scan_ring &ring,
                              const struct gdn_cu_rule &r)
{
    vectors  &g = in.g;
    mma_block x, v;
    tiles::operand o;
    multiply_strip(x, sh.S, in.k, w);
    load_part_turned(o, in.v, STRIP_ROW, w.v, w.x);
    tiles::unpack(v, o);
    const struct token_factors start = factors_of(g.from_start, 16 * w.x);
    const struct token_factors beta = factors_of(g.beta, 16 * w.x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float given = v[i / 4][i % 4], f = start.of(i);
        const float left = f == 0 ? given : fmaf(-f, x[i / 4][i % 4], given);
        x[i / 4][i % 4] = beta.of(i) == 0 ? 0 : beta.of(i) * left;
    }
    store_tokens(sh.r, x, w);
    load_forward(sh.stages[ring.next], from, sh.loaded[ring.next], r);
    store_tile(to.S, sh.S, col);
    settle(sh.r, g);
    clear_block(x);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        tiles::operand left;
        right_operand  right;
        if (j > w.x) continue;
        load_part(left, sh.r, CHUNK_ROW, w.v, j);
        load_right(right, in.T, CHUNK_ROW, w.x, j);
        multiply(x, left, right);
    }
    spoil_block(x, g, w);
    store_turned(to.u, x, w, col);
    weigh(x, x, g.to_end, w);
    store_tokens(sh.u, x, w);
    __syncthreads();
    decay_scan(S, g.decay);
    add_tokens(S, sh.u, in.k, w);
}

GDN_DEVICE void backward_mma_forward(const struct gdn_cu_backward &a)
{
    struct forward_shared       &sh = *(struct forward_shared *)gdn_shared;
    const struct walk_item       w = find_item(a);
    const struct scan_warp       part = scan_warp_of();
    const struct backward_window in = find_window(a, w.b);
    const int64_t                window = w.b * a.n_windows + a.window;
    scan_state                   S;
    if (!in.is_there) return;
    load_scan(S, a.window ? strip_of(a, w, a.starts, window) : strip_of(a, w, a.rule.from, w.b),
              part);
    struct forward_source from = start_forward(a, in, w);
    struct chunk_record  *to = &record_of(a, in.first, w.head);
    struct scan_ring      ring = { 0, SCAN_STAGES - 1, 0 };
    start_barriers(sh.loaded, SCAN_STAGES);
    for (int i = 0; i < ring.next; i++) load_forward(sh.stages[i], from, sh.loaded[i], a.rule);
    for (int64_t i = 0; i < in.n_chunks; i++, to += a.rule.H) {
        struct forward_stage &stage = sh.stages[ring.now];
        share_scan(sh.S, S, part);
        copy_wait<SCAN_STAGES - 2>();
        mbarrier_wait(shared_address(&sh.loaded[ring.now]), ring.round % 2);
        __syncthreads();
        if (tokens_of(stage.g.resets)) {
            clean_rows(stage.k, DEEP_ROW, DEEP, stage.g);
            async_fence();
            __syncthreads();
        }
        forward_chunk(sh, stage, S, *to, part, w.col, from, ring, a.rule);
        turn_ring(ring);
    }
    if (!in.is_last) store_scan(strip_of(a, w, a.starts, window + 1), S, part, false);
}

/* ---- Reverse ------------------------------------------------------------------------------- */

/* What the next chunk, that before, is loaded from. */
struct reverse_source {
    struct row_source          dout;
    const struct key_record   *keys;
    const struct chunk_record *record;
    int64_t                    n; /* tokens up to there */
};
GDN_DEVICE struct reverse_source start_reverse(const struct gdn_cu_backward &a,
                                               const struct backward_window &in,
                                               const struct walk_item       &w)
{
    const int64_t            last = in.n_chunks - 1;
    const struct stage_chunk c = chunk_at(in, last).in;
    return { source_of<2 * STRIP>(a.dout, c, w.head, w.col),
             &keys_of(a, in.first + last, source_head(a.rule, w.head, a.rule.Hk)),
             &record_of(a, in.first + last, w.head), in.seq.n_valid };
}
GDN_DEVICE void load_reverse(struct reverse_stage &to, struct reverse_source &from,
                             uint64_t &barrier, const struct gdn_cu_rule &r)
{
    if (from.n > 0) {
        const int n = (int)((from.n - 1) % CHUNK) + 1;
        copy_rows<2 * STRIP, THREADS>(to.dout, STRIP_ROW, from.dout, n);
        if (threadIdx.x < 32) {
            copy_begin(barrier, sizeof to.keys + sizeof to.T + sizeof to.P + sizeof to.g);
            copy_part(to.keys, *from.keys, barrier, 0);
            copy_part(to.T, from.record->T, barrier, 1);
            copy_part(to.P, from.record->P, barrier, 2);
            copy_part(to.g, from.record->v, barrier, 3);
        }
        from.dout.at -= CHUNK * from.dout.row;
        from.keys -= r.Hk;
        from.record -= r.H;
        from.n -= n;
    }
    copy_commit();
}

/* (q_start dO)^T of the warp's tokens. */
GDN_DEVICE void share_dout(struct scan_reverse_shared &sh, const struct reverse_stage &in,
                           const struct scan_warp &w)
{
    tiles::operand o;
    mma_block      x;
    load_part_turned(o, in.dout, STRIP_ROW, w.v, w.x);
    tiles::unpack(x, o);
    weigh(x, x, in.g.q_start, w);
    store_tokens(sh.dout, x, w);
}

/* The factors of Z in J: -from_start beta. */
GDN_DEVICE void weigh_z(mma_block &x, const vectors &g, const struct scan_warp &w)
{
    const struct token_factors start = factors_of(g.from_start, 16 * w.x);
    const struct token_factors beta = factors_of(g.beta, 16 * w.x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float f = -start.of(i) * beta.of(i);
        x[i / 4][i % 4] = f == 0 ? 0 : f * x[i / 4][i % 4];
    }
}

GDN_DEVICE void reverse_chunk(struct scan_reverse_shared &sh, struct reverse_stage &in,
                              scan_state &J, struct chunk_record &to, const struct scan_warp &w,
                              int col, struct reverse_source &from, const struct scan_ring &ring,
                              const struct gdn_cu_rule &r)
{
    vectors       &g = in.g;
    mma_block      x;
    tiles::operand left;
    right_operand  right;
    share_dout(sh, in, w);
    multiply_strip(x, sh.J, in.keys.k, w);
    weigh(x, x, g.to_end, w);
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i++) {
        if (i < w.x) continue;
        load_part_turned(left, in.dout, STRIP_ROW, w.v, i);
        load_right_turned(right, in.P, CHUNK_ROW, w.x, i);
        multiply(x, left, right);
    }
    store_tokens(sh.du, x, w);
    load_reverse(sh.stages[ring.next], from, sh.loaded[ring.next], r);
    store_tile(to.J, sh.J, col);
    settle(sh.du, g);
    clear_block(x);
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i++) {
        if (i < w.x) continue;
        load_part(left, sh.du, CHUNK_ROW, w.v, i);
        load_right_turned(right, in.T, CHUNK_ROW, w.x, i);
        multiply(x, left, right);
    }
    spoil_block(x, g, w);
    store_turned(to.z, x, w, col);
    weigh_z(x, g, w);
    store_tokens(sh.z, x, w);
    __syncthreads();
    decay_scan(J, g.decay);
    add_tokens(J, sh.dout, in.keys.q, w);
    add_tokens(J, sh.z, in.keys.k, w);
}

GDN_DEVICE void backward_mma_reverse(const struct gdn_cu_backward &a)
{
    struct scan_reverse_shared  &sh = *(struct scan_reverse_shared *)gdn_shared;
    const struct walk_item       w = find_item(a);
    const struct scan_warp       part = scan_warp_of();
    const struct backward_window in = find_window(a, w.b);
    scan_state                   J;
    if (!in.is_there) return;
    load_scan(J, strip_of(a, w, in.is_last ? a.dstate_out : a.carry, w.b), part);
    struct reverse_source from = start_reverse(a, in, w);
    struct chunk_record  *to = &record_of(a, in.first + in.n_chunks - 1, w.head);
    struct scan_ring      ring = { 0, SCAN_STAGES - 1, 0 };
    start_barriers(sh.loaded, SCAN_STAGES);
    for (int i = 0; i < ring.next; i++) load_reverse(sh.stages[i], from, sh.loaded[i], a.rule);
    for (int64_t i = 0; i < in.n_chunks; i++, to -= a.rule.H) { /* from the last */
        struct reverse_stage &stage = sh.stages[ring.now];
        share_scan(sh.J, J, part);
        copy_wait<SCAN_STAGES - 2>();
        mbarrier_wait(shared_address(&sh.loaded[ring.now]), ring.round % 2);
        __syncthreads();
        if (tokens_of(stage.g.resets)) {
            clean_rows(stage.keys.k, DEEP_ROW, DEEP, stage.g);
            clean_rows(stage.keys.q, DEEP_ROW, DEEP, stage.g);
            clean_rows(stage.dout, STRIP_ROW, STRIP, stage.g);
            async_fence();
            __syncthreads();
        }
        reverse_chunk(sh, stage, J, *to, part, w.col, from, ring, a.rule);
        turn_ring(ring);
    }
    if (a.window) store_scan(strip_of(a, w, a.carry, w.b), J, part, false);
    else if (a.rule.to.data) store_scan(strip_of(a, w, a.rule.to, w.b), J, part, a.adds);
}

#endif
