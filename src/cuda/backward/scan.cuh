/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the two walks on tensor cores that do not depend on the instructions: the chunks
 * that a block walks through, and its part of a state, transposed, in registers. Four warps have 64
 * columns of V. */
#ifndef GDN_CUDA_BACKWARD_SCAN_CUH
#define GDN_CUDA_BACKWARD_SCAN_CUH

#include "cuda/backward/parts.cuh"
#include "cuda/backward/plan.cuh"
#include "cuda/backward/tiles.cuh"
#include "cuda/backward/walk.cuh"

/* The chunks that a block walks through. */
struct scan_way {
    struct backward_part part;
    int head, col;
    int segment_chunks; /* of a segment, in this window (sm90/fused.cuh) */
};

/* Returns the chunks of a segment. In a window of the only sequence that is not full there are
 * fewer, so that there are as many blocks as in others. */
GDN_DEVICE int find_segment(const struct gdn_cu_backward &a)
{
    if (!a.plan || !a.segments || a.rule.batch.B > 1) return a.segment_chunks;
    const int64_t n = numbers_of(a).n * a.segment_chunks;
    return (int)max((n + a.n_chunks - 1) / a.n_chunks, (int64_t)1);
}

/* Finds part `i` of a window for a head and columns. Returns false if it has no chunks. */
GDN_DEVICE bool find_way(struct scan_way &w, const struct gdn_cu_backward &a, int64_t i, int head,
                         int col)
{
    const int64_t number = row_of_walk(a, i);
    if (in_warp(number >= a.rule.batch.B + a.cut.units)) return false;
    w.part = find_part(a, number);
    w.head = head;
    w.col = col;
    w.segment_chunks = find_segment(a);
    stop_part(a, w.part, w.head);
    return in_warp(w.part.in.is_there && !(is_first_pass(a) && w.part.in.is_last));
}
/* Finds the chunks of walk `item`. columns: tiles of 64 columns of a block. */
template <int columns>
GDN_DEVICE bool find_way(struct scan_way &w, const struct gdn_cu_backward &a, int64_t item)
{
    return find_way(w, a, item / a.n_strips / a.rule.H, (int)(item / a.n_strips % a.rule.H),
                    (int)(item % a.n_strips) * 64 * columns);
}

typedef float scan_state[64];

/* ---- States -------------------------------------------------------------------------------- */

/* Calls `each` with every element of the warpgroup's part of a state, from `key` on, with its place
 * in a pool whose rows or columns are k, and with whether it exists; those that do not are zero. It
 * handles `part` elements at a time and then rotates S by so many, because a copy of the code for
 * each element would be most of the kernel. */
template <int part, int n, class Each>
GDN_DEVICE void each_element(float (&S)[n], const struct stage_strip &s, int key, Each each)
{
#pragma unroll 1
    for (int from = 0; from < n; from += part) {
        float turned[part];
#pragma unroll
        for (int e = 0; e < part; e++) {
            const int v = s.col + sum_row(e), k = key + 2 * from + sum_column(e);
            turned[e] = S[e];
            each(turned[e], s.at + (s.view.k_first ? k * s.view.ld + v : v * s.view.ld + k),
                 k < s.K && v < s.col + s.n);
        }
#pragma unroll
        for (int e = 0; e < n; e++) S[e] = e + part < n ? S[e + part] : turned[e + part - n];
    }
}
template <int n>
GDN_DEVICE void load_scan(float (&S)[n], const struct stage_strip &s, int key, float factor)
{
    const struct gdn_pool_view &from = s.view;
    each_element<16>(S, s, key, [&](float &x, int64_t at, bool there) {
        uint32_t bits = 0;
        const bool wide = from.dtype == GDN_F32;
        there &= from.data != nullptr;
        ld_word(bits, from.data + 4 * at, there && wide);
        ld_half(bits, from.data + 2 * at, there && !wide);
        x = factor * bits_to_f32(bits, from.dtype);
    });
}
template <int n>
GDN_DEVICE void store_scan(const struct stage_strip &s, float (&S)[n], int key, float factor,
                           bool adds)
{
    const struct gdn_pool_view &to = s.view;
    each_element<4>(S, s, key, [&](float &x, int64_t at, bool there) {
        if (!there) return;
        const float old = adds ? load_float(to.data, at, to.dtype) : 0;
        store_float(to.data, at, to.dtype, fmaf(factor, x, old));
    });
}

/* Computes S = decay S. If a gate may forget, zero comes by selection (G7). */
template <bool forgets, int n> GDN_DEVICE void decay_scan(float (&S)[n], float decay)
{
#pragma unroll
    for (int e = 0; e < n; e++) S[e] = forgets && decay == 0 ? 0 : decay * S[e];
}

/* ---- Places of J ----------------------------------------------------------------------------- */

/* Returns the slot of J before a window. With a plan or with segments, blocks may read the slot of
 * the next window while others write that of their own. */
GDN_DEVICE int64_t carry_of(const struct gdn_cu_backward &a, const struct backward_part &p,
                            int64_t window)
{
    if (a.plan) return window % 2;
    return p.number + (a.segments > 1 ? window % 2 * a.n_parts : 0);
}
/* Return where J after the window is, and where J before it goes: to the next window, to the join
 * of units, or to the caller. */
GDN_DEVICE struct stage_strip gradient_behind(const struct gdn_cu_backward &a,
                                              const struct walk_item &own,
                                              const struct backward_part &p)
{
    if (!p.in.is_last) return strip_of(a, own, a.carry, carry_of(a, p, a.window + 1));
    struct stage_strip ends = strip_of(a, own, a.dstate_out, p.row);
    if (!p.ends) ends.n = 0; /* the gradient is zero */
    return ends;
}
GDN_DEVICE struct stage_strip gradient_before(const struct gdn_cu_backward &a,
                                              const struct walk_item &own,
                                              const struct backward_part &p)
{
    if (p.in.before) return strip_of(a, own, a.carry, carry_of(a, p, a.window));
    return p.unit < 0 ? strip_of(a, own, a.rule.to, p.row) : strip_of(a, own, a.J, p.unit);
}

/* ---- Rows of a chunk ------------------------------------------------------------------------- */

static __device__ __noinline__ token_mask spoilt_tokens(token_mask dead, token_mask resets)
{
    token_mask all = 0;
    for (int t = 0; t < CHUNK; t++) all |= (token_mask)are_spoilt(dead, resets, t) << t;
    return all;
}
GDN_DEVICE void spoil(float (&x)[32], const uint32_t (&dead)[2], const vectors &g)
{
    const token_mask all = spoilt_tokens(tokens_of(dead), tokens_of(g.resets));
#pragma unroll
    for (int e = 0; e < 32; e++)
        if (all >> sum_column(e) & 1) x[e] = __int_as_float(0x7fffffff);
}

/* Computes R^T from S^T K^T and beta V^T. */
template <bool forgets>
GDN_DEVICE void make_r(uint32_t (&r)[16], float (&x)[32], const float (&v)[32], const vectors &g)
{
    const struct token_pairs read = pairs_of(g.read);
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = forgets && read.at(e) == 0 ? v[e] : fmaf(read.at(e), x[e], v[e]);
    pack(r, x);
}

#endif
