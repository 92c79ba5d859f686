/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of more than 128 elements. Two warpgroups of the state share the same 64 value columns, with
 * half of the keys each. A lane of one has the same columns and tokens as that lane of the other.
 * They exchange values through a place for each lane, the mail. In a chunk it holds, in turn:
 *
 *     second to first   its part of S^T K^T
 *     first to second   its part of S^T Q^T, then U as a factor of P, and scaled if it is gated
 *
 * The first warpgroup computes R and U, the second one the output. Each adds U to its half of the
 * state. Named barriers say that mail is written, and, before the same lane writes again, that it
 * was read.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_HALVES_CUH
#define GDN_CUDA_PREFILL_HOPPER_HALVES_CUH

#include "cuda/prefill/sm90/warps_state.cuh"

/* Steps of the mail: S^T K^T from the second half, S^T Q^T from the first, then U. */
enum { HOPPER_MAIL_K = HOPPER_BARRIER_HALVES + 1, HOPPER_MAIL_Q, HOPPER_MAIL_READ, HOPPER_MAIL_U };
GDN_DEVICE void tell_other(int mail) { barrier_arrive(mail, 256); }
GDN_DEVICE void wait_for_other(int mail) { barrier_wait(mail, 256); }

/* Returns the address of word 4 i of the lane's mail. */
GDN_DEVICE uint32_t mail_at(const struct hopper_state &w, int i)
{
    return hopper_address() + HOPPER_MAIL + (w.warp * 32 + w.lane) * 16 + i * (128 * 16);
}

GDN_DEVICE void put_mail(const struct hopper_state &w, const float (&x)[32])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        store_shared(mail_at(w, i), __float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                     __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3]));
}
/* Copies the mail to x, or adds it to x. */
template <bool add> GDN_DEVICE void take_mail(const struct hopper_state &w, float (&x)[32])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float y[4];
        load_shared(y, mail_at(w, i));
#pragma unroll
        for (int e = 0; e < 4; e++) x[4 * i + e] = add ? x[4 * i + e] + y[e] : y[e];
    }
}

/* Puts factors into the first or last 16 words. */
template <int from>
GDN_DEVICE void put_factor(const struct hopper_state &w, const uint32_t (&y)[16])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_shared(mail_at(w, from / 4 + i), y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
}
template <int from> GDN_DEVICE void take_factor(const struct hopper_state &w, uint32_t (&y)[16])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x[4];
        load_shared(x, mail_at(w, from / 4 + i));
#pragma unroll
        for (int e = 0; e < 4; e++) y[4 * i + e] = __float_as_uint(x[e]);
    }
}

/* Sums x over both halves, and gives both the sum. */
GDN_DEVICE void sum_halves(const struct hopper_state &w, float (&x)[32])
{
    barrier_shared(w); /* no warp reads there any more */
    if (w.half()) put_mail(w, x);
    barrier_shared(w);
    if (!w.half()) {
        take_mail<true>(w, x);
        put_mail(w, x);
    }
    barrier_shared(w);
    if (w.half()) take_mail<false>(w, x);
}

/* Issues the half's parts of S^T K^T and S^T Q^T, a group each. Returns true for a plain chunk. */
template <int io, bool gated>
GDN_DEVICE bool start_plain(const struct hopper_state &w, uint32_t (&a)[HOPPER_STATE / 2],
                            float (&x)[32], float (&o)[32], const hopper_share &S, int c)
{
    const struct hopper_block &b = w.b;
    const hopper_gates &g = b.gates(c);
    b.wait(HOPPER_FULL, c);
    pack<io>(a, S);
    multiply_turned<io, false>(x, a, w.k(c));
    if (is_other<gated>(g.rare)) {
        wgmma_wait<0>();
        return false;
    }
    b.wait(HOPPER_Q_FULL, c);
    multiply_turned<io, false>(o, a, w.q(c));
    return true;
}

/* Does the same as pass_plain(), in one of two halves. Both halves test the same gates and the
 * same U. They share code where they can, because they share an instruction cache. */
template <int io, bool gated>
GDN_DEVICE int pass_plain_half(const struct hopper_state &w, hopper_share &S, int c, int mark)
{
    const struct hopper_block &b = w.b;
    const bool first = in_warp(w.half() == 0);
#pragma unroll 1
    for (bool more = in_warp(c < mark); more; c++) {
        const hopper_gates &g = b.gates(c);
        uint32_t a[HOPPER_STATE / 2], r[16], y[16];
        float o[32], u[32];
        if (!start_plain<io, gated>(w, a, u, o, S, c)) return c;
        more = in_warp(c + 1 < mark);
        if (first) {
            b.wait(HOPPER_V_FULL, c);
            if (b.r.norm != GDN_NO_NORM) b.wait(HOPPER_T_FULL, c); /* lengths come with it */
            wgmma_wait<1>();
            wait_for_other(HOPPER_MAIL_K);
            take_mail<true>(w, u);
            if (gated) scale_tokens(u, factors_of(g.from_start, w.lane));
            make_rows<io>(r, u, row_terms_of(b.v(c) + w.v_lane(), g, w.lane));
            b.wait(HOPPER_T_FULL, c);
            wgmma_wait<0>();
            multiply_turned<io, false>(u, r, b.t(c));
            put_mail(w, o);
            tell_other(HOPPER_MAIL_Q);
            wgmma_wait<0>();
            make_factors<io, gated>(y, r, u, g, w.lane);
            wait_for_other(HOPPER_MAIL_READ);
            put_factor<0>(w, y);
            if (gated) put_factor<16>(w, r);
            tell_other(HOPPER_MAIL_U);
        } else {
            wgmma_wait<1>();
            put_mail(w, u);
            tell_other(HOPPER_MAIL_K);
            wgmma_wait<0>();
            wait_for_other(HOPPER_MAIL_Q);
            take_mail<true>(w, o);
            tell_other(HOPPER_MAIL_READ);
            scale_output(w, o, c);
            wait_for_other(HOPPER_MAIL_U);
            take_factor<0>(w, y);
            if (gated) take_factor<16>(w, r);
        }
        const float decay = g.decay;
        if (is_any_far<io>(w, y)) return c;
        release_queries(w, c);
        if (gated) decay_state(S, decay);
        add_tokens<io>(S, gated ? r : y, w.k(c));
        if (first) {
            release_made(w, HOPPER_T_FREE, c);
        } else {
            b.wait(HOPPER_P_FULL, c);
            multiply_turned<io, true>(o, y, b.p(c));
            wgmma_wait<0>();
            hand_out<io>(w, o, c, b.v(c) + w.v_lane());
        }
        wgmma_wait<0>();
        release(w, HOPPER_DONE, c);
        if (!gated) decay_state(S, decay);
    }
    return c;
}

#endif
