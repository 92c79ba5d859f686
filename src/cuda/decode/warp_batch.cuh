/* SPDX-License-Identifier: Apache-2.0 */
/* Finds tokens and states of a sequence, for the batches that warp.cuh takes. */
#ifndef GDN_CUDA_DECODE_ROWS_CUH
#define GDN_CUDA_DECODE_ROWS_CUH

#include "cuda/decode/args.h"
#include "cuda/device/quad.cuh"
#include "cuda/device/rule.cuh"
#include "cuda/device/warp_sums.cuh"

/* The place of a sequence. */
struct warp_seq {
    int row, T;
    int first;       /* with cu_seqlens: its first token */
    int read, write; /* slots; negative: none */
    bool padding;
};

/* Reads a sequence, as read_sequence() of batch.cuh does. Sequence B is the tokens behind the last
 * one. */
GDN_DEVICE struct warp_seq warp_read(const struct gdn_cu_warp &a, int row)
{
    struct warp_seq s = { row, a.T, 0, row, row, false };
    if (a.plain) return s;
    const bool real = row < a.B;
    const int at = real ? row : 0;
    const int64_t n = load_index(a.num_accepted_tokens, at, 0, 1);
    const int64_t first = load_index(a.cu_seqlens, row);
    const int64_t end = load_index(a.cu_seqlens, at + 1, 0, a.T);
    const bool fresh = !load_index(a.has_initial_state, at, 0, 1);
    const int64_t slot = clamp64(n, 1, a.read_slots.data ? a.read_slots.n_columns : 1) - 1;
    const int64_t start = load_index(a.read_slots, at, slot, row);
    const int64_t own = load_index(a.write_slots, at, 0, start);
    s.first = (int)clamp64(first, 0, a.N);
    s.T = (int)clamp64(real ? end : a.N, s.first, a.N) - s.first;
    s.padding = !real || start < (int)a.first_slot || (!fresh && start >= a.read_pool) ||
                (!a.each && own >= a.write_pool);
    s.read = fresh || s.padding ? -1 : (int)start;
    s.write = s.padding || own < (int)a.first_slot ? -1 : (int)own;
    return s;
}

/* Returns the slot of the state after token t, if each state is kept; -1: it is dropped. */
GDN_DEVICE int warp_each_slot(const struct gdn_cu_warp &a, const struct warp_seq &s, int t)
{
    if (t >= a.write_slots.n_columns) return -1;
    const int64_t slot = load_index(a.write_slots, s.row, t);
    return slot < (int)a.first_slot || slot >= a.write_pool ? -1 : (int)slot;
}

/* Returns the address of token t of a head. */
GDN_DEVICE char *warp_row(const struct gdn_cu_near &r, const struct warp_seq &s, int t, int head)
{
    return r.data + (int64_t)s.row * r.row + (int64_t)(s.first + t) * r.token +
           (int64_t)head * r.head;
}

/* Returns element i of a vector as it lies in memory. */
GDN_DEVICE uint32_t vector_bits(const struct gdn_cu_array &a, int i)
{
    return load_parts(a.data, (int64_t)i * (int)a.stride[0], a.dtype, a.data);
}

/* The gates of a token as they lie in memory. */
struct warp_gates {
    uint32_t g, beta, A_log, dt_bias;
};

/* Loads the gates of a token, if it exists. They mostly have 16 bits; loads in parts
 * (ptx_load_parts.cuh) would spill. */
GDN_DEVICE void warp_fetch_gates(struct warp_gates &f, const struct gdn_cu_warp &a,
                                 const struct warp_seq &s, int head, int t)
{
    const bool there = t < s.T;
    f.g = load_bits(warp_row(a.g, s, t, head), 0, a.g.dtype, a.g.data && there);
    f.beta = load_bits(warp_row(a.beta, s, t, head), 0, a.beta.dtype, a.beta.data && there);
    f.A_log = vector_bits(a.A_log, head);
    f.dt_bias = vector_bits(a.dt_bias, head);
}

/* Computes alpha and beta of a token; beta is 0 if the token does not exist. */
GDN_DEVICE void warp_expand_gates(float &alpha, float &beta, const struct warp_gates &f,
                                  const struct gdn_cu_warp &a, bool there)
{
    alpha = 1, beta = there;
    if (a.g.data && there)
        alpha = gate_value(a, bits_to_f32(f.g, a.g.dtype), bits_to_f32(f.A_log, a.A_log.dtype),
                           bits_to_f32(f.dt_bias, a.dt_bias.dtype), true);
    if (a.beta.data && there) beta = beta_value(a, bits_to_f32(f.beta, a.beta.dtype));
}

/* Returns the address of a head's state in a slot. */
GDN_DEVICE char *warp_state(const struct gdn_cu_pool &p, int slot, int head)
{
    return p.data + (int64_t)slot * p.slot + (int64_t)head * p.head;
}

#endif
