/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state's warps of a kernel without outputs (segments.cuh). The first block of a cluster
 * computes U, from zeros and V. The second one computes M, from the identity, with zeros for V. A
 * chunk is
 *
 *     R^T = v_scale V^T - S^T K^T    U^T = R^T T^T    S^T <- decay (S^T + U^T K)
 *
 * with the roundings of the kernels with outputs.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_KEYS_CUH
#define GDN_CUDA_PREFILL_HOPPER_KEYS_CUH

#include "cuda/prefill/sm90/state_repair.cuh"

/* Does the same as pass_plain(), up to the last chunk. */
template <int io, bool gated>
GDN_DEVICE int pass_plain_keys(const struct hopper_state &w, hopper_share &S, int c)
{
    const struct hopper_block &b = w.b;
#pragma unroll 1
    for (bool more = in_warp(c < b.n_chunks); more; c++) {
        const hopper_gates &g = b.gates(c);
        uint32_t a[HOPPER_STATE / 2], r[16], y[16];
        float x[32];
        b.wait(HOPPER_FULL, c);
        pack<io>(a, S);
        multiply_turned<io, false>(x, a, b.k(c));
        const float decay = g.decay;
        const bool other = is_other<gated>(g.rare);
        more = in_warp(c + 1 < b.n_chunks);
        b.wait(HOPPER_V_FULL, c);
        b.wait(HOPPER_T_FULL, c);
        const struct row_terms with = row_terms_of(b.v(c) + w.v_lane(), g, w.lane);
        wgmma_wait<0>();
        if (other) return c;
        if (gated) scale_tokens(x, factors_of(g.from_start, w.lane));
        make_rows<io>(r, x, with);
        multiply_turned<io, false>(x, r, b.t(c));
        wgmma_wait<0>();
        make_factors<io, gated>(y, r, x, g, w.lane);
        if (is_any_far<io>(w, y)) return c;
        if (gated) decay_state(S, decay);
        add_tokens<io>(S, gated ? r : y, b.k(c));
        release_made(w, HOPPER_T_FREE, c);
        release(w, HOPPER_V_FREE, c);
        wgmma_wait<0>();
        release(w, HOPPER_DONE, c);
        if (!gated) decay_state(S, decay);
    }
    return c;
}

/* Does the same as end_mended(). */
template <int io>
GDN_DEVICE void end_mended_keys(const struct hopper_state &w, hopper_share &S, float (&u)[32],
                                int c, const struct spoilt_rows &spoilt, bool slow)
{
    const hopper_gates &g = w.b.gates(c);
    const hopper_end<io> end(g, g.n);
    uint32_t a[16], r[16];
    if (slow) spoil_tokens(u, spoilt, tokens_of(g.resets));
    weigh_some<io>(a, u, end);
    pack<io>(r, u);
    slow |= !all_finite<io>(r);
    if (end.is_idle()) return;
    decay_state(S, end.before, slow);
    add_tokens<io>(S, a, w.b.k(c));
    wgmma_wait<0>();
    decay_state(S, end.after);
}

/* Does the same as pass_any(). */
template <int io>
GDN_DEVICE void pass_any_keys(const struct hopper_state &w, hopper_share &S, int c)
{
    float u[32];
    const struct mended m = make_mended_u<io>(w, S, c, u);
    if (is_mended<io>(w, u, m, c))
        end_mended_keys<io>(w, S, u, c, m.spoilt, m.slow);
    else
        pass_tokens<io>(w, S, c, 0);
    __syncwarp();
    release_made(w, HOPPER_T_FREE, c);
    release(w, HOPPER_V_FREE, c);
    release(w, HOPPER_DONE, c);
}

/* Sets the warp's columns of S to the identity. */
GDN_DEVICE void set_identity(hopper_share &S, int first, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < HOPPER_STATE; i++) {
        const int column = first + lane / 4 + i / 2 % 2 * 8, k = i / 4 * 8 + lane % 4 * 2 + i % 2;
        S[i] = column == k ? 1 : 0;
    }
}

/* Returns where U or M goes. Those of a unit go to the workspace, where U of a segment of
 * gdn_prefill has the place of the next unit. Those of a whole sequence of gdn_summary go to the
 * caller's tensor. For gradients M is transposed. */
GDN_DEVICE struct state_place summary_place(const struct hopper_block &b, int columns)
{
    const struct sequence_segment &s = b.common().segment;
    if (s.from < 0) return place_of(b.rank ? b.a.M : b.r.to, s.to, b.head);
    if (!b.rank) return segment_place(b.a.cut.states, b.r, columns, s.from + !b.a.summary, b.head);
    const struct state_place M = segment_place(b.a.cut.M, b.r, columns, s.from, b.head);
    const struct state_place turned = { M.data, M.k_step, M.v_step, M.dtype };
    return b.a.back ? turned : M;
}

template <int io>
GDN_DEVICE void run_keys_warps(const struct hopper_block &b, int warp, uint32_t lane)
{
    const int group = warp / 4, columns = b.rank ? b.r.K : b.r.V;
    const struct hopper_state w = {
        b, b.common().cursors[warp], { 16 * warp, columns, b.r.K }, group, warp % 4, lane
    };
    hopper_share S;
    set_identity(S, b.rank && !b.forgets ? 16 * warp : 128, lane);
    int c = 0;
    while (in_warp(c < b.n_chunks)) {
        const int first = c;
        c = pass_plain_keys<io, false>(w, S, c);
        c = pass_plain_keys<io, true>(w, S, c);
        if (in_warp(c < b.n_chunks && c == first)) pass_any_keys<io>(w, S, c++);
    }
    write_state(S, summary_place(b, columns), w.part);
}

#endif
