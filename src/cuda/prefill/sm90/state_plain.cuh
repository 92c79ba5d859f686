/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state's warps of a kernel with outputs: the choice of a loop for each chunk, and the loops
 * over plain chunks if a warpgroup has all keys (half of the keys: state_k256.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_PLAIN_CUH
#define GDN_CUDA_PREFILL_HOPPER_PLAIN_CUH

#include "cuda/prefill/sm90/state_repair.cuh"
#include "cuda/prefill/sm90/state_k256.cuh"

/* Issues S^T times keys of chunk c, and times queries behind them if x has room; a: S as a factor.
 * Returns true if the chunk needs another loop. */
template <int io, bool gated, int n>
GDN_DEVICE bool multiply_state(const struct hopper_state &w, float (&x)[n],
                               uint32_t (&a)[HOPPER_STATE / 2], const hopper_share &S, int c)
{
    const uint32_t rare = w.b.gates(c).rare;
    pack<io>(a, S);
    multiply_turned<io, false>(x, a, w.k(c));
    return is_other<gated>(rare);
}

/* Ends a plain chunk, whose output's product with P (o) is in flight, from U as a factor of keys.
 * In a wide block it also tests for the next chunk's keys: a later test would wait on the chain. */
template <int io, bool gated>
GDN_DEVICE bool end_plain(const struct hopper_state &w, hopper_share &S, const float (&o)[32],
                          const uint32_t (&u)[16], int c, uint32_t v)
{
    const struct hopper_block &b = w.b;
    const hopper_gates &g = b.gates(c);
    bool next = false;
    if (gated) decay_state(S, g.decay);
    add_tokens<io>(S, u, b.k(c));
    release_queries(w, c);
    const float decay = g.decay;
    wgmma_wait<1>();
    hand_out<io>(w, o, c, v);
    if (HOPPER_STACKED) next = b.is_there(HOPPER_FULL, c + 1);
    wgmma_wait<0>();
    release(w, HOPPER_DONE, c);
    if (!gated) decay_state(S, decay);
    return next;
}

/*
 * Passes plain chunks from c on, before `mark`: no token forgets, S changes, and all values are
 * finite. Returns the first chunk that is not passed; nothing of it has been done.
 *
 * The chain from S to S is the products with K, T and keys. The products with Q and P, and
 * everything else that can, run beside it. A value of S, R or T that is not finite leaves no column
 * of U finite, so one test of U is enough. The test for one more chunk comes early, because at the
 * end the next chunk would wait for it. Each form contains the loop: around a function of one chunk
 * the compiler would keep its result as a flag.
 */
template <int io, bool gated>
GDN_DEVICE int pass_plain(const struct hopper_state &w, hopper_share &S, int c, int mark)
{
    const struct hopper_block &b = w.b;
#pragma unroll 1
    for (bool more = in_warp(c < mark); more; c++) {
        const hopper_gates &g = b.gates(c);
        uint32_t a[HOPPER_STATE / 2], r[16], y[16];
        float o[32], u[32];
        struct row_terms with;
        b.wait(HOPPER_FULL, c);
        const bool other = multiply_state<io, gated>(w, o, a, S, c);
        const uint32_t v = b.v(c) + w.v_lane();
        more = in_warp(c + 1 < mark);
        b.wait(HOPPER_V_FULL, c);
        load_columns(with.v, v);
        b.wait(HOPPER_T_FULL, c); /* with a norm lengths come with it */
        with.f = factors_of(g.v_scale, w.lane);
        wgmma_wait<0>();
        if (other) return c;
        if (gated) scale_tokens(o, factors_of(g.from_start, w.lane));
        make_rows<io>(r, o, with);
        multiply_turned<io, false>(u, r, b.t(c));
        b.wait(HOPPER_Q_FULL, c);
        multiply_turned<io, false, true>(o, a, b.q(c));
        wgmma_wait<1>();
        make_factors<io, gated>(y, r, u, g, w.lane);
        wgmma_wait<0>();
        scale_output(w, o, c);
        if (b.r.norm != GDN_NO_NORM)
            b.wait(HOPPER_T_FULL, c); /* it is: without a branch U is copied */
        if (is_any_far<io>(w, y)) return c;
        multiply_turned<io, true>(o, y, b.p(c));
        end_plain<io, gated>(w, S, o, gated ? r : y, c, v);
    }
    return c;
}

/* Does the same with K and Q as one factor of 128 rows: fewer instructions, and a product of 128
 * columns leaves other warps more time of the registers. There are no registers for more overlap;
 * the other warpgroup fills the time. U is tested while P is multiplied; without a branch before
 * that product the assembler serialises it. */
template <int io, bool gated>
GDN_DEVICE int pass_stacked(const struct hopper_state &w, hopper_share &S, int c, int mark)
{
    const struct hopper_block &b = w.b;
    bool there = false;
#pragma unroll 1
    for (bool more = in_warp(c < mark); more; c++) {
        const hopper_gates &g = b.gates(c);
        uint32_t a[HOPPER_STATE / 2], r[16], y[16];
        float xo[64], u[32];
        float(&x)[32] = *(float(*)[32])xo;
        float(&o)[32] = *(float(*)[32])(xo + 32);
        if (!there) b.wait(HOPPER_FULL, c);
        const bool other = multiply_state<io, gated>(w, xo, a, S, c);
        const uint32_t v = b.v(c) + w.v_lane();
        more = in_warp(c + 1 < mark);
        b.wait(HOPPER_V_FULL, c);
        if (b.r.norm != GDN_NO_NORM) b.wait(HOPPER_T_FULL, c); /* lengths come with it */
        const uint32_t lane = opaque(w.lane); /* found here: later is on the chain */
        wgmma_wait<0>();
        if (other) return c;
        if (gated) scale_tokens(x, factors_of(g.from_start, lane));
        make_rows<io>(r, x, row_terms_of(v, g, lane));
        b.wait(HOPPER_T_FULL, c);
        multiply_turned<io, false>(u, r, b.t(c));
        scale_output(w, o, c);
        wgmma_wait<0>();
        make_factors<io, gated>(y, r, u, g, w.lane);
        if (in_warp(opaque(0u) != 0)) return c;
        multiply_turned<io, true>(o, y, b.p(c));
        if (is_any_far<io>(w, y)) {
            wgmma_wait<0>();
            return c;
        }
        there = end_plain<io, gated>(w, S, o, gated ? r : y, c, v);
    }
    return c;
}

/* Runs pass_plain() in the form of this kernel. */
template <int io, bool gated>
GDN_DEVICE int pass(const struct hopper_state &w, hopper_share &S, int c, int mark)
{
    if constexpr (HOPPER_DEPTH == 2)
        return pass_plain_half<io, gated>(w, S, c, mark);
    else if constexpr (HOPPER_STACKED)
        return pass_stacked<io, gated>(w, S, c, mark);
    else
        return pass_plain<io, gated>(w, S, c, mark);
}

/* Returns the chunk that contains the next checkpoint, or begins at it; at most n_chunks. */
GDN_DEVICE int next_mark(const struct hopper_state &w)
{
    const int64_t c = w.cursor.at / 64;
    return c < w.b.n_chunks ? (int)c : w.b.n_chunks;
}

/* Runs chunks that have a state of their own, each of its slot. */
template <int io>
GDN_DEVICE void run_each_state(const struct hopper_block &b, int warp, uint32_t lane)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    const int64_t first = b.s().row;
    struct hopper_state w = {
        b,   b.common().cursors[warp], { b.column() + 16 * warp, b.r.V, b.r.K }, warp / 4, warp % 4,
        lane
    };
    hopper_share S;
    move_cursor(w, 0);
    struct state_place from = place_of(b.r.from, load_index(batch.read_slots, first), b.head);
#pragma unroll 1
    for (int c = 0; in_warp(c < b.n_chunks); c++) {
        int next;
        read_state_at_once(S, from, w.part);
        if (c + 1 < b.n_chunks) {
            from = place_of(b.r.from, load_index(batch.read_slots, first + c + 1), b.head);
            prefetch_state(from, w.part);
        }
        next = pass<io, false>(w, S, c, c + 1);
        next = pass<io, true>(w, S, next, c + 1);
        if (in_warp(next == c)) pass_any<io>(w, S, c, 0);
        write_state(S, place_of(b.r.to, load_index(batch.write_slots, first + c), b.head), w.part);
    }
}

template <int io>
GDN_DEVICE void run_state_warps(const struct hopper_block &b, int warp, uint32_t lane)
{
    const int group = warp / 4;
    struct hopper_state w = {
        b, b.common().cursors[warp], { b.column() + 16 * warp, b.r.V, b.r.K }, group, warp % 4, lane
    };
    hopper_share S;
    if (HOPPER_DEPTH == 2) w.part = { b.column() + 16 * w.warp, b.r.V, b.r.K - w.half() * 128 };
    move_cursor(w, b.common().segment.checkpoint);
    if (HOPPER_CUTS && b.common().segment.from >= 0) griddepcontrol_wait();
    if (HOPPER_DEPTH == 2) {
        struct state_place from = first_place(b);
        skip_keys(w, from);
        read_state(S, from, w.part);
    } else {
        const struct state_place from = first_place(b);
        if (HOPPER_STACKED || !HOPPER_CUTS) prefetch_state(from, w.part); /* segments lose by it */
        read_state(S, from, w.part);
    }
    int c = 0, mark = next_mark(w); /* mark < 0: -mark tokens of chunk c have been passed */
    for (;;) {
        const int first = c;
        c = pass<io, false>(w, S, c, mark);
        c = pass<io, true>(w, S, c, mark);
        if (in_warp(c != first && c < mark)) continue;
        if (in_warp(c == b.n_chunks)) break;
        int t = mark < 0 ? -mark : 0;
        const int64_t n = (int64_t)c * 64 + t;
        if (in_warp(w.cursor.at <= n))
            leave_after(w, S, n, false);
        else if (in_warp((t = pass_any<io>(w, S, c, t)) == 0))
            c++;
        mark = t ? -t : next_mark(w);
    }
    leave_after(w, S, b.s().n_valid, true);
}

#endif
