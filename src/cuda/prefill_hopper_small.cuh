/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Up to 64 keys and columns: two blocks share a multiprocessor, and its registers. So products that
 * the output alone wants come when R is done with, and the other block fills the time.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_SMALL_CUH
#define GDN_CUDA_PREFILL_HOPPER_SMALL_CUH

#include "prefill_hopper_state.cuh"

/* As pass_plain(), with S Q^T beside the sum over keys. */
template <int io>
GDN_DEVICE bool pass_plain_small(const struct hopper_state &w, float (&S)[HOPPER_STATE], int c)
{
    const struct hopper_block &b = w.b;
    const hopper_gates        &g = b.gates(c);
    const uint32_t             v = b.v(c) + w.v_lane;
    uint32_t                   a[HOPPER_STATE / 2], r[16], y[16];
    float                      o[32], u[32];
    b.wait(HOPPER_K_FULL, c);
    b.wait(HOPPER_GATES_FULL, c);
    pack<io>(a, S);
    multiply_turned<io, false>(u, a, b.k(c));
    const bool other = in_warp((tokens_of(g.resets) != 0) | is_idle(g));
    b.wait(HOPPER_V_FULL, c);
    if (b.r.norm != GDN_NORM_NONE) b.wait(HOPPER_T_FULL, c); /* lengths come with it */
    wgmma_wait<0>();
    if (other) return false;
    make_rows<io>(r, u, v, g.from_start, w.lane);
    b.wait(HOPPER_T_FULL, c);
    multiply_turned<io, false, true>(u, r, b.t(c));
    b.wait(HOPPER_Q_FULL, c);
    wgmma_wait<0>();
    make_factors<io>(y, r, u, g, w.lane);
    if (in_warp(barrier_any(HOPPER_BARRIER_STATE, 128, is_tainted<io>(y)))) return false;
    multiply_turned<io, false>(o, a, b.q(c));
    decay_state(S, g.decay, false);
    add_tokens<io>(S, r, b.k(c));
    release_made(w, HOPPER_T_FREE, c);
    wgmma_wait<1>();
    scale_output(w, o, c);
    b.wait(HOPPER_P_FULL, c);
    multiply_turned<io, true>(o, y, b.p(c));
    release(w, HOPPER_Q_FREE, c);
    wgmma_wait<1>();
    release(w, HOPPER_K_FREE, c);
    wgmma_wait<0>();
    hand_out<io>(w, o, c, v);
    release(w, HOPPER_GATES_FREE, c);
    return true;
}

#endif
