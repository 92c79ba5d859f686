/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state on Hopper. A warpgroup has 64 value columns of S^T in registers, 16 per warp. Element
 * 4 i + 2 r + e of a thread is column g + 8 r and key 8 i + 2 t + e (g = lane / 4, t = lane % 4). A
 * chunk is five products whose first factor is always in registers:
 *
 *     R^T = v_scale V^T - S^T K^T    U^T = R^T T^T    O^T = q_start S^T Q^T + U^T P^T
 *     S^T <- decay (S^T + U^T K)
 *
 * (For gated chunks see kernel.cuh.) All four warps take part in each product. Plain chunks have a
 * loop in which products overlap (state_plain.cuh), and gated chunks have another one. All other
 * chunks take pass_any() (state_repair.cuh). If two warpgroups have half of the keys each
 * (HOPPER_DEPTH), the same lanes have the same columns, and sums over keys cover both warpgroups
 * (state_k256.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_STATE_CUH
#define GDN_CUDA_PREFILL_HOPPER_STATE_CUH

#include "cuda/prefill/sm90/state_memory.cuh"

/* ---- A chunk --------------------------------------------------------------------------------- */

/* The values that a warp of the state keeps from chunk to chunk beside S. */
struct hopper_state {
    const struct hopper_block &b;
    struct prefill_cursor &cursor;
    struct state_part part;
    int group, warp;
    uint32_t lane;

    /* Returns the place of the lane's columns of V in a tile. */
    __device__ __forceinline__ uint32_t v_lane() const
    {
        const uint32_t l = opaque(lane);
        return tile() * HOPPER_TILE + tile_place(l % 8 + l / 16 * 8, 16 * warp + l / 8 % 2 * 8);
    }
    /* Return the half of the keys and the tile of columns that the warpgroup has. */
    __device__ __forceinline__ int half() const { return HOPPER_DEPTH == 2 ? group : 0; }
    __device__ __forceinline__ int tile() const { return HOPPER_DEPTH == 2 ? 0 : group; }
    /* Returns the warpgroup's keys of chunk c. */
    __device__ __forceinline__ uint32_t k(int c) const
    {
        return HOPPER_DEPTH == 1 ? b.k(c) : b.k(c) + half() * 2 * HOPPER_TILE;
    }
    __device__ __forceinline__ uint32_t q(int c) const
    {
        return HOPPER_DEPTH == 1 ? b.q(c) : b.q(c) + half() * 2 * HOPPER_TILE;
    }
    /* Returns tiles that are free while checkpoints are stored, one for each warpgroup. */
    __device__ __forceinline__ uint32_t scratch(int c) const
    {
        return HOPPER_DEPTH == 2 ? hopper_address() + HOPPER_MAIL : b.v(c);
    }
};

/* Moves the place of a state of all keys to the first key of the warpgroup. */
GDN_DEVICE void skip_keys(const struct hopper_state &w, struct state_place &p)
{
    if (p.data) p.data += w.half() * 128 * p.k_step;
}

/* The threads that share the scratch; with two halves, those of both. */
enum { HOPPER_SHARING = HOPPER_DEPTH == 2 ? 256 : 128 };
GDN_DEVICE void barrier_shared(const struct hopper_state &w)
{
    barrier_wait(HOPPER_DEPTH == 2 ? HOPPER_BARRIER_HALVES : HOPPER_BARRIER_STATE + w.group,
                 HOPPER_SHARING);
}

/* Computes x = a times the transposed tile of 64 or 128 columns (add: adds it to x); with 64
 * accumulators also the tile behind it. tie: forces x to stay in its registers. Ends its group
 * of WGMMA. */
template <int io, bool add, bool tie = false, int m, int n>
GDN_DEVICE void multiply_turned(float (&x)[m], const uint32_t (&a)[n], uint32_t tile)
{
    const uint32_t place = wgmma_place(tile);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        const uint64_t f = wgmma_factor(place + i / 4 * (HOPPER_NEXT / 16) + i % 4 * 2);
        if (i > 0 || add)
            wgmma<io>::add_rows(x, a + 4 * i, f);
        else if constexpr (tie)
            wgmma<io>::rows_tied(x, a, f);
        else
            wgmma<io>::rows(x, a, f);
    }
    wgmma_commit();
}

/* Adds w times the tile of keys to S^T. Ends its group. */
template <int io> GDN_DEVICE void add_tokens(hopper_share &S, const uint32_t *w, uint32_t tile)
{
    const uint32_t place = wgmma_place(tile, HOPPER_NEXT);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma<io>::add_columns(S, w + 4 * i, wgmma_factor(place + i * (16 * 128 / 16)));
    wgmma_commit();
}

/* Factors of a thread's tokens: two consecutive ones of every eight. */
struct token_factors {
    float2 of[8];
};
GDN_DEVICE struct token_factors factors_of(const float (&from)[64], uint32_t lane)
{
    struct token_factors f;
#pragma unroll
    for (int i = 0; i < 8; i++) f.of[i] = *(const float2 *)(from + token_of(4 * i, lane));
    return f;
}

/* The terms of R^T beside the products with K: V^T and v_scale. v: the warp's columns of V. */
struct row_terms {
    uint32_t v[4][4];
    struct token_factors f;
};
GDN_DEVICE void load_columns(uint32_t (&x)[4][4], uint32_t v)
{
#pragma unroll
    for (int n = 0; n < 4; n++) load_matrices_turned(x[n], v + 16 * 128 * n);
}
GDN_DEVICE struct row_terms row_terms_of(uint32_t v, const hopper_gates &g, uint32_t lane)
{
    struct row_terms x;
    load_columns(x.v, v);
    x.f = factors_of(g.v_scale, lane);
    return x;
}
template <int io>
GDN_DEVICE void make_rows(uint32_t (&r)[16], const float (&x)[32], const struct row_terms &with)
{
    typedef hopper_format<io> format;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 f = with.f.of[i / 2];
        const uint32_t v = with.v[i / 4][i % 4];
        r[i] = format::pair(fmaf(f.x, format::low(v), -x[2 * i]),
                            fmaf(f.y, format::high(v), -x[2 * i + 1]));
    }
}

/* Multiplies the tokens of x by f. */
GDN_DEVICE void scale_tokens(float (&x)[32], const struct token_factors &f)
{
#pragma unroll
    for (int i = 0; i < 32; i++) x[i] *= i % 2 ? f.of[i / 4].y : f.of[i / 4].x;
}

/* Multiplies S by the decay; by selection (G7) if a value may not be finite. */
template <int n> GDN_DEVICE void decay_state(float (&S)[n], float decay, bool select = false)
{
#pragma unroll
    for (int i = 0; i < n; i++) S[i] *= decay;
    if (!select || decay != 0) return;
#pragma unroll
    for (int i = 0; i < n; i++) S[i] = 0;
}

/* The end of the first n tokens of a chunk, as it is without the later tokens. S is multiplied by
 * `before`, then U is added with of(t) for token t, then S is multiplied by `after`. A warp makes
 * it. */
template <int io> struct hopper_end {
    const hopper_gates &g;
    int n;
    bool gated;
    float before, after;
    float moved; /* 2^ its start relative to the chunk's */

    __device__ __forceinline__ hopper_end(const hopper_gates &gates, int tokens)
        : g(gates), n(tokens), gated(false)
    {
        const int lane = rare_lane();
        const float G[2] = { g.G[lane], g.G[lane + 32] };
        const float decay = ex2_approx(g.G[n - 1]);
        const float start = start_of<io>(G, n, lane);
        moved = hopper_format<io>::start == 0 ? 0 : start - g.start;
        for (int t = lane; t < n; t += 32) gated |= !(g.rest[t] == g.start);
        gated = in_warp(gated) || start != 0;
        before = are_parted(tokens_of(g.resets), -1, n - 1) ? 0 : gated ? decay : 1;
        after = gated ? 1 : decay;
    }
    /* Returns the factor of U of token t. U has the chunk's start; moving it to the start of the n
     * tokens changes no bit. */
    __device__ __forceinline__ float of(int t) const
    {
        const float shift = hopper_format<io>::start == 0 ? 1 : power_of_two(moved);
        if (t >= n || are_parted(tokens_of(g.resets), t, n - 1)) return 0;
        return gated ? ex2_approx(g.G[n - 1] - (g.rest[t] + moved)) * shift : shift;
    }
    /* Returns true if every bit of S stays (G9). */
    __device__ __forceinline__ bool is_idle() const
    {
        return before * after == 1 && !(tokens_of(g.writers) & tokens_below(n));
    }
};

/* Computes w = to_end U. */
template <int io>
GDN_DEVICE void weigh(uint32_t (&w)[16], const float (&u)[32], const struct token_factors &to_end)
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 f = to_end.of[i / 2];
        w[i] = hopper_format<io>::pair(f.x * u[2 * i], f.y * u[2 * i + 1]);
    }
}

/* Computes w = U times the factors of `end`. A factor of 0 gives 0, also for NaN. */
template <int io, int m>
GDN_DEVICE void weigh_some(uint32_t (&w)[m], const float (&u)[32], const hopper_end<io> &end)
{
    const uint32_t lane = rare_lane();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int t = token_of(2 * i, lane);
        const float2 f = make_float2(end.of(t), end.of(t + 1));
        w[i] = hopper_format<io>::pair(f.x == 0 ? 0 : f.x * u[2 * i],
                                       f.y == 0 ? 0 : f.y * u[2 * i + 1]);
    }
}

/* Writes the output to the place of V. */
template <int io> GDN_DEVICE void put_output(const float (&o)[32], uint32_t v)
{
    typedef hopper_format<io> format;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = format::pair(o[8 * n + 2 * i] * (1 / format::shift),
                                o[8 * n + 2 * i + 1] * (1 / format::shift));
        store_matrices_turned(v + 16 * 128 * n, y[0], y[1], y[2], y[3]);
    }
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

/* Copies keys of the first n tokens, in tiles of 64 columns with zeros, to the place of the chunk's
 * V, which U holds by now, or to that of the mail. All warps call it. */
GDN_DEVICE void copy_keys(const struct hopper_state &w, int c, int n, int side)
{
    const char *from = gdn_shared + (w.b.k(c) - hopper_address()) + side * HOPPER_NEXT;
    char *to = gdn_shared + (w.scratch(c) - hopper_address()) + w.group * HOPPER_TILE;
    if (HOPPER_DEPTH == 2) from += w.half() * 2 * HOPPER_TILE;
    barrier_shared(w); /* products with the copy before have ended */
    for (int i = w.warp * 32 + w.lane; i < 512; i += 128) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (i / 8 < n) x = *(const uint4 *)(from + 16 * i);
        *(uint4 *)(to + 16 * i) = x;
    }
    async_fence();
    barrier_shared(w);
}

/* Computes the state after the first n tokens of chunk c, with the bits of a call that ends
 * there. */
template <int io>
GDN_DEVICE void leave_state(const struct hopper_state &w, const hopper_share &S,
                            const float (&u)[32], int c, int n, const struct state_place &to)
{
    const hopper_end<io> end(w.b.gates(c), n);
    uint32_t a[16];
    weigh_some<io>(a, u, end);
#pragma unroll 1
    for (int part = 0; part < HOPPER_PARTS; part++) {
        const uint32_t keys = wgmma_place(w.scratch(c) + w.group * HOPPER_TILE + part % 2 * 64);
        hopper_part x;
        take_part(x, S, part);
        if (part % 2 == 0) copy_keys(w, c, n, part / 2);
        if (!end.is_idle()) {
            decay_state(x, end.before, true);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                wgmma<io>::add_columns(x, a + 4 * i, wgmma_factor(keys + i * (16 * 128 / 16)));
            wgmma_commit();
            wgmma_wait<0>();
            decay_state(x, end.after);
        }
        if (HOPPER_DEPTH == 2) {
            struct state_place half = to;
            skip_keys(w, half);
            if (to.data)
                move_part<true>(x, half, w.part, part * HOPPER_PART_KEYS, has_pairs(half, w.part));
        } else if (to.data)
            move_part<true>(x, to, w.part, part * HOPPER_PART_KEYS, has_pairs(to, w.part));
    }
    barrier_shared(w); /* outputs go to the place of the copy */
}

/* Returns the place of the sequence's state in the pool of a view. pool: the bit of that pool,
 * GDN_PREFILL_FROM, ... */
GDN_DEVICE struct state_place sequence_place(const struct hopper_block &b,
                                             const struct gdn_pool_view &view, int64_t slot,
                                             int pool)
{
    return place_of(view, slot >= 0 && b.a.by_number & pool ? b.s().row : slot, b.head);
}

/* Return the places that the first token's state comes from and the last token's state goes to (the
 * block's columns). */
GDN_DEVICE struct state_place first_place(const struct hopper_block &b)
{
    const struct sequence_segment &s = b.common().segment;
    if (!HOPPER_CUTS || s.from < 0)
        return sequence_place(b, b.r.from, b.s().read, GDN_PREFILL_FROM);
    return segment_place(b.a.cut.states, b.r, b.r.V, s.from, b.head);
}
GDN_DEVICE struct state_place final_place(const struct hopper_block &b)
{
    const struct sequence_segment &s = b.common().segment;
    if (!HOPPER_CUTS || s.to < 0) return sequence_place(b, b.r.to, b.s().write, GDN_PREFILL_TO);
    return segment_place(b.a.cut.states, b.r, b.r.V, s.to, b.head);
}

/* Makes checkpoint c the next one. Its tokens count from the segment's start. A warp calls it. */
GDN_DEVICE void move_cursor(const struct hopper_state &w, int64_t c)
{
    set_cursor(w.cursor, c, w.b.r.batch, w.b.common().checkpoints);
    if (HOPPER_CUTS && w.lane == 0 && w.cursor.at != INT64_MAX)
        w.cursor.at -= w.b.common().segment.start;
    __syncwarp();
}

/* Returns the place of the next checkpoint. */
GDN_DEVICE struct state_place checkpoint_place(const struct hopper_state &w)
{
    const bool numbered = w.cursor.slot >= 0 && w.b.a.by_number & GDN_PREFILL_CHECKPOINTS;
    return place_of(w.b.r.checkpoints, numbered ? w.cursor.c : w.cursor.slot, w.b.head);
}

/* Stores the checkpoints inside chunk c, which has n tokens. leave_after() stores those at its
 * end. */
template <int io>
GDN_DEVICE void leave_inside(const struct hopper_state &w, const hopper_share &S,
                             const float (&u)[32], int c, int n)
{
    while (w.cursor.at < (int64_t)c * 64 + n) {
        const int64_t m = w.cursor.at - (int64_t)c * 64, slot = w.cursor.slot;
        if (m > 0 && slot >= 0) leave_state<io>(w, S, u, c, (int)m, checkpoint_place(w));
        move_cursor(w, w.cursor.c + 1);
    }
}

/* Stores checkpoints after the first n tokens, and the final state. */
GDN_DEVICE void leave_after(const struct hopper_state &w, const hopper_share &S, int64_t n,
                            bool is_final)
{
    for (bool more = true; more;) {
        struct state_place to = {};
        more = w.cursor.at <= n;
        if (more && w.cursor.at > 0)
            to = checkpoint_place(w);
        else if (!more && is_final)
            to = final_place(w.b);
        if (HOPPER_DEPTH == 2) skip_keys(w, to);
        write_state(S, to, w.part);
        if (more) move_cursor(w, w.cursor.c + 1);
    }
}

/* ---- The warpgroup --------------------------------------------------------------------------- */

/* Arrives at the barrier for a free place of chunk c, in the block that fills it. */
GDN_DEVICE void release(const struct hopper_state &w, int first, int c)
{
    if (w.lane == 0) mbarrier_arrive(w.b.of(first, c));
}
GDN_DEVICE void release_made(const struct hopper_state &w, int first, int c)
{
    const uint32_t barrier = w.b.of(first, c);
    if (HOPPER_BLOCKS == 1) {
        if (w.lane == 0) mbarrier_arrive(barrier);
    } else if (w.lane == 0) {
        mbarrier_arrive_cluster(w.b.is_own(c) ? barrier : w.b.other(barrier));
    }
}

/* Frees the only place of queries, before P is awaited. So the warps that made P arrive too. If
 * those are in the other block, one of the halves arrives in their place. */
GDN_DEVICE void release_queries(const struct hopper_state &w, int c)
{
    if (HOPPER_STACKED) return;
    release(w, HOPPER_Q_FREE, c);
    if (HOPPER_DEPTH == 2 && w.half() && !w.b.is_own(c)) release(w, HOPPER_Q_FREE, c);
}

template <int io, int n> GDN_DEVICE void pack(uint32_t (&y)[n / 2], const float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n / 2; i++) y[i] = hopper_format<io>::pair(x[2 * i], x[2 * i + 1]);
}

/* Converts U to a factor of P (y), and to a factor of keys if that differs: a gated chunk scales it
 * (r). */
template <int io, bool gated>
GDN_DEVICE void make_factors(uint32_t (&y)[16], uint32_t (&r)[16], const float (&u)[32],
                             const hopper_gates &g, uint32_t lane)
{
    pack<io>(y, u);
    if (gated) weigh<io>(r, u, factors_of(g.to_end, lane));
}

/* Writes the output of a chunk, whose product with P has ended, to the place of V, for the storing
 * warp. */
template <int io>
GDN_DEVICE void hand_out(const struct hopper_state &w, const float (&o)[32], int c, uint32_t v)
{
    release_made(w, HOPPER_P_FREED, c);
    put_output<io>(o, v);
    __syncwarp();
    release(w, HOPPER_OUT_FULL, c); /* the storing warp has a fence */
}

/* Returns true if one of the warpgroup's warps has an element of U that is not finite or too
 * far. */
template <int io> GDN_DEVICE bool is_any_far(const struct hopper_state &w, const uint32_t (&u)[16])
{
    return in_warp(barrier_any(HOPPER_BARRIER_STATE + w.group, 128, is_far<io>(u)));
}

/* Returns true if the chunk needs another loop. */
template <bool gated> GDN_DEVICE bool is_other(uint32_t rare)
{
    return in_warp(gated ? (rare & ~HOPPER_UNEVEN) != HOPPER_GATED : rare != 0);
}

/* Scales the queries' part of S; with a norm their lengths come with P. */
GDN_DEVICE void scale_output(const struct hopper_state &w, float (&o)[32], int c)
{
    if (w.b.r.norm != GDN_NO_NORM) w.b.wait_p(c);
    scale_tokens(o, factors_of(w.b.gates(c).q_start, w.lane));
}

#endif
