/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk that is not plain (state_plain.cuh): a token forgets, S stays as it is, or a value is not
 * finite. Each warp repairs its own R and U, as prefill/general_state.cuh says. If T is not finite,
 * no repair is possible, and the warpgroup goes token by token (state_by_token.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_ANY_CUH
#define GDN_CUDA_PREFILL_HOPPER_ANY_CUH

#include "cuda/prefill/sm90/state_k256.cuh"
#include "cuda/prefill/sm90/state_by_token.cuh"

/* ---- What is not finite ---------------------------------------------------------------------- */

/* Packs elements 2 i and 2 i + 1 of x, with zeros for values that are not finite, and notes their
 * places. */
template <int io>
GDN_DEVICE uint32_t mend_pair(struct spoilt_rows &s, float low, float high, int i, uint32_t lane)
{
    if (!is_finite(low)) {
        s.row[i % 2] |= (token_mask)1 << token_of(2 * i, lane);
        low = 0;
    }
    if (!is_finite(high)) {
        s.row[i % 2] |= (token_mask)1 << token_of(2 * i + 1, lane);
        high = 0;
    }
    return hopper_format<io>::pair(low, high);
}

/* slow: tokens whose R was not finite. far: a finite R was out of reach. */
struct mended {
    struct spoilt_rows spoilt;
    bool slow, far;
};

/* Computes R^T. For tokens after one that forgets it is V^T, whatever S holds. If beta is zero it
 * is zero, whatever V holds (G8). Values that are not finite become zero. v: the warp's columns of
 * the tile. */
template <int io>
GDN_DEVICE struct spoilt_rows mend_r(uint32_t (&r)[16], const hopper_gates &g, uint32_t v)
{
    typedef hopper_format<io> format;
    const token_mask resets = tokens_of(g.resets), writers = tokens_of(g.writers);
    struct spoilt_rows s = { { 0, 0 } };
    const uint32_t lane = rare_lane();
    uint32_t m[4][4];
    load_columns(m, v);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int t = token_of(2 * i, lane);
        const uint32_t V = m[i / 4][i % 4];
        float x = format::low(r[i]), y = format::high(r[i]);
        if (are_parted(resets, -1, t)) x = format::low(V) * g.v_scale[t];
        if (are_parted(resets, -1, t + 1)) y = format::high(V) * g.v_scale[t + 1];
        if (!(writers >> t & 1)) x = 0;
        if (!(writers >> (t + 1) & 1)) y = 0;
        r[i] = mend_pair<io>(s, x, y, i, lane);
    }
    share_spoilt(s);
    return s;
}

/* Replaces values of u that are not finite by zeros. */
template <int io> GDN_DEVICE struct spoilt_rows mend_u_pairs(uint32_t (&u)[16])
{
    struct spoilt_rows s = { { 0, 0 } };
    const uint32_t lane = rare_lane();
#pragma unroll
    for (int i = 0; i < 16; i++)
        u[i] =
            mend_pair<io>(s, hopper_format<io>::low(u[i]), hopper_format<io>::high(u[i]), i, lane);
    share_spoilt(s);
    return s;
}

/* Sets outputs that depend on a spoilt token to NaN. */
GDN_DEVICE void spoil_tokens(float (&x)[32], const struct spoilt_rows &s, token_mask resets)
{
    const uint32_t lane = rare_lane();
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (s.row[i % 4 / 2] & tokens_seen(resets, token_of(i, lane)))
            x[i] = __int_as_float(0x7fffffff);
}

/* Clears outputs that a forgetting token parts from S, by selection, because S may not be
 * finite. */
GDN_DEVICE void clear_parted(float (&o)[32], const hopper_gates &g)
{
    const uint32_t lane = rare_lane();
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (are_parted(tokens_of(g.resets), -1, token_of(i, lane)) ||
            ex2_approx(g.G[token_of(i, lane)]) == 0)
            o[i] = 0;
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Returns exp(near) of token t. */
GDN_DEVICE float near_factor(const hopper_gates &g, int t)
{
    return ex2_approx(g.G[t] - g.rest[t]);
}

/* Returns true if u = T R is finite, and too large only because V was divided by its gates. far: R
 * is too large. The result is the same in all warps of the warpgroup, and in those of two halves,
 * which have the same u. */
template <int io>
GDN_DEVICE bool is_t_finite(const struct hopper_state &w, const hopper_gates &g,
                            const float (&u)[32], bool far)
{
    constexpr float most = hopper_format<io>::most;
    const uint32_t lane = rare_lane();
#pragma unroll
    for (int i = 0; i < 32; i++) {
        far |= !is_finite(u[i]);
        far |= fabsf(u[i]) > most && fabsf(u[i]) * near_factor(g, token_of(i, lane)) <= most;
    }
    return !in_warp(barrier_any(HOPPER_BARRIER_STATE + w.group, 128, far));
}

/* Returns true if an element of R (r) is not finite only because V was divided. v: the warp's
 * columns, x: S^T K^T. */
template <int io>
GDN_DEVICE bool is_r_far(const hopper_gates &g, const uint32_t (&r)[16], const float (&x)[32],
                         uint32_t v)
{
    typedef hopper_format<io> format;
    const uint32_t lane = rare_lane();
    bool far = false;
    uint32_t m[4][4];
    load_columns(m, v);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int t = token_of(i, lane);
        const float near = near_factor(g, t);
        const uint32_t pair = m[i / 8][i / 2 % 4], result = r[i / 2];
        const float V = i % 2 ? format::high(pair) : format::low(pair);
        const bool spoilt = !is_finite(i % 2 ? format::high(result) : format::low(result));
        far |= spoilt && fabsf(fmaf(g.v_scale[t] * near, V, -near * x[i])) <= format::most;
    }
    return far;
}

/* Returns true if all keys of chunk c are finite. (A weight of zero would not remove them from S.)
 * Each warp with a row of R that is not finite calls it; if a key is not finite, all warps do. */
template <int io> GDN_DEVICE bool are_keys_finite(const struct hopper_state &w, int c)
{
    typedef hopper_format<io> format;
    const char *k = gdn_shared + (w.b.k(c) - hopper_address());
    uint32_t taint = 0;
#pragma unroll 1
    for (int i = rare_lane(); i < HOPPER_KEYS * HOPPER_TILE / 16; i += 32) {
        const uint4 x = *(const uint4 *)(k + i / 512 * HOPPER_NEXT + i % 512 * 16);
        taint = format::taint(format::taint(taint, x.x), x.y);
        taint = format::taint(format::taint(taint, x.z), x.w);
    }
    return !in_warp((taint & 0x7fff7fffu) != 0);
}

/* Ends chunk c, from its U. slow: some tokens are spoilt. */
template <int io>
GDN_DEVICE void end_mended(const struct hopper_state &w, hopper_share &S, float (&u)[32], int c,
                           struct spoilt_rows &spoilt, bool slow)
{
    const struct hopper_block &b = w.b;
    const hopper_gates &g = b.gates(c);
    const token_mask resets = tokens_of(g.resets);
    const hopper_end<io> end(g, g.n);
    float o[32];
    uint32_t a[HOPPER_STATE / 2], r[16];
    if (slow) spoil_tokens(u, spoilt, resets);
    leave_inside<io>(w, S, u, c, g.n);
    b.wait_q(c);
    b.wait_p(c);
    pack<io>(a, S);
    multiply_turned<io, false>(o, a, w.q(c));
    wgmma_wait<0>();
    if (HOPPER_DEPTH == 2) sum_halves(w, o);
    scale_output(w, o, c);
    if (slow) clear_parted(o, g);
    weigh_some<io>(a, u, end);
    pack<io>(r, u);
    if (!all_finite<io>(r)) {
        slow = true;
        spoilt = mend_u_pairs<io>(r);
    }
    multiply_turned<io, true>(o, r, b.p(c));
    wgmma_wait<0>();
    if (!end.is_idle()) {
        decay_state(S, end.before, slow);
        add_tokens<io>(S, a, w.k(c));
        wgmma_wait<0>();
    }
    if (slow) spoil_tokens(o, spoilt, resets);
    if (HOPPER_DEPTH == 1 || w.half()) put_output<io>(o, b.v(c) + w.v_lane());
    if (!end.is_idle()) decay_state(S, end.after);
}

/* Computes U of chunk c without overlap, with zeros for values of R that are not finite. */
template <int io>
GDN_DEVICE struct mended make_mended_u(const struct hopper_state &w, const hopper_share &S, int c,
                                       float (&u)[32])
{
    const struct hopper_block &b = w.b;
    const hopper_gates &g = b.gates(c);
    const uint32_t v = b.v(c) + w.v_lane();
    uint32_t a[HOPPER_STATE / 2], r[16];
    struct mended m = {};
    b.wait(HOPPER_FULL, c);
    pack<io>(a, S);
    multiply_turned<io, false>(u, a, w.k(c));
    b.wait(HOPPER_V_FULL, c);
    b.wait(HOPPER_T_FULL, c);
    wgmma_wait<0>();
    if (HOPPER_DEPTH == 2) sum_halves(w, u);
    scale_tokens(u, factors_of(g.from_start, w.lane));
    make_rows<io>(r, u, row_terms_of(v, g, w.lane));
    m.slow = !all_finite<io>(r);
    if (m.slow) {
        m.far = is_r_far<io>(g, r, u, v);
        m.spoilt = mend_r<io>(r, g, v);
    }
    multiply_turned<io, false>(u, r, b.t(c));
    wgmma_wait<0>();
    return m;
}

/* Returns true if the chunk can be mended. Otherwise it goes token by token. */
template <int io>
GDN_DEVICE bool is_mended(const struct hopper_state &w, const float (&u)[32],
                          const struct mended &m, int c)
{
    return is_t_finite<io>(w, w.b.gates(c), u, m.far) && !(m.slow && !are_keys_finite<io>(w, c));
}

/* Computes chunk c if T and keys are finite. Otherwise it changes nothing. */
template <int io> GDN_DEVICE bool pass_mended(const struct hopper_state &w, hopper_share &S, int c)
{
    float u[32];
    struct mended m = make_mended_u<io>(w, S, c, u);
    if (!is_mended<io>(w, u, m, c)) return false;
    end_mended<io>(w, S, u, c, m.spoilt, m.slow);
    return true;
}

/* Computes any chunk, of which t tokens have been passed one by one. Returns how many have been
 * passed if a checkpoint follows; 0: the chunk is done. */
template <int io>
GDN_DEVICE int pass_any(const struct hopper_state &w, hopper_share &S, int c, int t)
{
    if (in_warp(t > 0) || !pass_mended<io>(w, S, c)) {
        t = pass_tokens<io>(w, S, c, t);
        if (in_warp(t < w.b.gates(c).n)) return t;
    }
    if (HOPPER_DEPTH == 2) barrier_shared(w); /* one frees for both */
    __syncwarp();
    if (HOPPER_DEPTH == 1 || !w.half()) release_made(w, HOPPER_T_FREE, c);
    if (HOPPER_LATE && w.half()) release_made(w, HOPPER_P_FREE, c);
    release_queries(w, c);
    release(w, HOPPER_DONE, c);
    if (HOPPER_DEPTH == 1 || w.half()) release(w, HOPPER_OUT_FULL, c);
    return 0;
}

#endif
