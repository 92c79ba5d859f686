/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk whose T is not finite: a product of keys, or what the inverse makes of such products, is
 * beyond the numbers that T is made of (warps_solve.cuh), or a key is not finite itself. The
 * recurrence has no such products, so it goes on token by token, in float32:
 *
 *     S <- alpha S        u = beta (v - S k)        S <- S + u k        o = scale S q
 *
 * Selection leaves out S if a token forgets, and k and v if beta is zero. Each warp has columns of
 * its own. Only sums over keys that are in two halves need another warp. This is rare, so it is
 * little code, and not fast.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_TOKENS_CUH
#define GDN_CUDA_PREFILL_HOPPER_TOKENS_CUH

#include "cuda/prefill/sm90/warps_state.cuh"

/* The lane's part of a token's key or query: elements 8 i + 2 t and the next. */
typedef uint32_t hopper_token[HOPPER_STATE / 4];

GDN_DEVICE void read_token(hopper_token &x, uint32_t tiles, int t, uint32_t lane)
{
    const char *row = gdn_shared + (tiles - hopper_address()) + t * 128 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < HOPPER_STATE / 4; i++)
        x[i] = *(const uint32_t *)(row + i / 8 * HOPPER_NEXT + ((i % 8 ^ t % 8) << 4));
}

/* Sums p over the lanes with the same columns and over both halves of the keys. All these lanes
 * get the sum. */
GDN_DEVICE void sum_over_keys(const struct hopper_state &w, float (&p)[3], uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < 3; i++)
        for (int step = 1; step < 4; step *= 2) p[i] += __shfl_xor_sync(0xffffffff, p[i], step);
    if (HOPPER_DEPTH == 1) return;
    const uint32_t mail = hopper_address() + HOPPER_MAIL + (w.warp * 32 + lane) * 16;
    float y[4];
    barrier_shared(w); /* no warp reads there any more */
    store_shared(mail + w.half() * (128 * 16), __float_as_uint(p[0]), __float_as_uint(p[1]),
                 __float_as_uint(p[2]), 0);
    barrier_shared(w);
    load_shared(y, mail + (1 - w.half()) * (128 * 16));
#pragma unroll
    for (int i = 0; i < 3; i++) p[i] += y[i];
}

/* Computes S x of the lane's two columns, and |x|^2. */
template <int io>
GDN_DEVICE void multiply_token(const struct hopper_state &w, float (&p)[3], const hopper_share &S,
                               const hopper_token &x, uint32_t lane)
{
    p[0] = p[1] = p[2] = 0;
#pragma unroll
    for (int i = 0; i < HOPPER_STATE / 4; i++) {
        const float low = hopper_format<io>::low(x[i]), high = hopper_format<io>::high(x[i]);
        p[0] = fmaf(S[4 * i + 1], high, fmaf(S[4 * i], low, p[0]));
        p[1] = fmaf(S[4 * i + 3], high, fmaf(S[4 * i + 2], low, p[1]));
        p[2] = fmaf(high, high, fmaf(low, low, p[2]));
    }
    sum_over_keys(w, p, lane);
}

/* Writes token t to S. v: the place of the values of the lane's first column. */
template <int io>
GDN_DEVICE void write_token(const struct hopper_state &w, hopper_share &S, int c, int t, uint32_t v,
                            uint32_t lane)
{
    const hopper_gates &g = w.b.gates(c);
    hopper_token k;
    float p[3], u[2];
    read_token(k, w.k(c), t, lane);
    multiply_token<io>(w, p, S, k, lane);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t x = *(const uint16_t *)(gdn_shared + ((v ^ r << 4) - hopper_address()));
        u[r] = g.beta[t] * fmaf(-g.k_scale[t], p[r], hopper_format<io>::low(x)) * g.k_scale[t];
    }
#pragma unroll
    for (int i = 0; i < HOPPER_STATE; i++) {
        const uint32_t x = k[i / 4];
        S[i] = fmaf(u[i % 4 / 2], i % 2 ? hopper_format<io>::high(x) : hopper_format<io>::low(x),
                    S[i]);
    }
}

/* Stores the output of token t in the place of its v. Only the warps that make P have the lengths
 * of queries. */
template <int io>
GDN_DEVICE void put_token(const struct hopper_state &w, const hopper_share &S, int c, int t,
                          uint32_t v, uint32_t lane)
{
    const struct gdn_cu_rule &r = w.b.r;
    hopper_token q;
    float p[3];
    read_token(q, w.q(c), t, lane);
    multiply_token<io>(w, p, S, q, lane);
    const float scale = r.scale * inverse_length(p[2], r.norm, r.norm_eps);
    const uint32_t o = hopper_format<io>::pair(scale * p[0], scale * p[1]);
    if (lane % 4 != 0 || (HOPPER_DEPTH == 2 && !w.half())) return;
    store_shared_u16(v, (uint16_t)o);
    store_shared_u16(v ^ 1 << 4, (uint16_t)(o >> 16));
}

/* Passes tokens of chunk c from token t on, up to its last one or the next checkpoint. Returns how
 * many tokens of the chunk have been passed. K, V, gates and T must be loaded. */
template <int io>
GDN_DEVICE int pass_tokens(const struct hopper_state &w, hopper_share &S, int c, int t)
{
    const hopper_gates &g = w.b.gates(c);
    const uint32_t lane = rare_lane();
    int end = g.n;
    if (HOPPER_OUTPUTS) {
        const int64_t mark = w.cursor.at - (int64_t)c * 64;
        if (mark < end) end = (int)mark;
        w.b.wait_q(c);
        w.b.wait_p(c);
    }
#pragma unroll 1
    for (; in_warp(t < end); t++) {
        const uint32_t v =
            w.b.v(c) + w.tile() * HOPPER_TILE + tile_place(t, 16 * w.warp + lane / 4);
        const bool forgets = tokens_of(g.resets) >> t & 1, writes = tokens_of(g.writers) >> t & 1;
        const float alpha = forgets ? 0 : ex2_approx(g.G[t] - (t ? g.G[t - 1] : 0));
        if (alpha != 1) decay_state(S, alpha, true);
        if (in_warp(writes)) write_token<io>(w, S, c, t, v, lane);
        if constexpr (HOPPER_OUTPUTS) put_token<io>(w, S, c, t, v, lane);
    }
    return end;
}

#endif
