/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution of gdn_step: the work and the shared memory of a block, and windows of up to four
 * tokens for tensors of any kind. A thread has one or two channels. See step_general.cuh. */
#ifndef GDN_CUDA_STEP_TAPS_CUH
#define GDN_CUDA_STEP_TAPS_CUH

#include "cuda/decode/warp.cuh"
#include "cuda/layer/args.h"

enum {
    STEP_TAPS = 4,
    STEP_PAST = STEP_TAPS - 1,
    STEP_WINDOW = MMA_TOKENS, /* tokens that are convolved at once */
    STEP_MOST = 128,          /* the most of K and of V */
    STEP_ROW = STEP_MOST + 4,
    STEP_CHANNELS = 2 /* the most of a thread */
};

/* The inputs of the rule and of the norm for a window, rounded to the dtype of x. x: k and q of
 * each token, in turn; gate, weight: of the norm; left: the new states of the convolution. */
struct step_shared {
    alignas(16) float x[2 * STEP_WINDOW][STEP_ROW];
    alignas(8) float v[STEP_WINDOW][STEP_MOST];
    float o[STEP_WINDOW][STEP_MOST];
    float gate[STEP_WINDOW][STEP_MOST], weight[STEP_MOST];
    alignas(8) float left[STEP_PAST][3 * STEP_MOST];
};

/* The block's work: some columns of a value head of a sequence, and the key head that these
 * read. */
struct step_work {
    struct warp_seq seq;
    int key_head, block; /* block: its number among the blocks of the key head */
    int head, column;
};

/* ---- The convolution ----------------------------------------------------------------------- */

/* Inputs of a thread's channels as they lie in memory. Those before the window come first. */
struct step_raw {
    enum { ONE = 0 };
    uint32_t x[STEP_CHANNELS][STEP_PAST + STEP_WINDOW];
    uint32_t weight[STEP_CHANNELS][STEP_TAPS], bias[STEP_CHANNELS];
    uint32_t z[STEP_WINDOW], norm_weight;
};

/* Return the number of the block's channels (K of q, K of k, its columns of v), and the channel in
 * x of number i. */
GDN_DEVICE int step_n_channels(const struct gdn_cu_step_general &a)
{
    return 2 * a.rule.K + a.n_columns;
}
GDN_DEVICE int step_channel(const struct gdn_cu_step_general &a, const struct step_work &w, int i)
{
    const int K = a.rule.K;
    if (i < K) return w.key_head * K + i;
    if (i < 2 * K) return (a.Hk + w.key_head - 1) * K + i;
    return 2 * (a.Hk - 1) * K + w.head * a.rule.V + w.column + i;
}

/* Returns the address of entry e of a channel's state in a slot. For weights and biases slot is
 * 0. */
GDN_DEVICE char *taps_at(const struct gdn_cu_taps &p, int slot, int channel, int e)
{
    return p.data + (int64_t)slot * p.slot + (channel * p.channel + e * p.entry);
}

/* Loads those of tokens [t, t + n) that exist. */
GDN_DEVICE void step_fetch(struct step_raw &f, const struct gdn_cu_step_general &a,
                           const struct step_work &w, int t, int n)
{
    const int io = a.x.dtype;
    const bool old = t == 0, has_old = a.conv.data && w.seq.read >= 0;
#pragma unroll
    for (int j = 0; j < STEP_CHANNELS; j++) {
        const int i = threadIdx.x + j * blockDim.x, channel = step_channel(a, w, i);
        const bool there = i < step_n_channels(a);
        const char *x = warp_row(a.x, w.seq, t, 0) + channel * float_bytes(io);
        const char *past = old ? taps_at(a.conv, w.seq.read, channel, a.length - STEP_PAST)
                               : x - (int64_t)STEP_PAST * a.x.token;
#pragma unroll
        for (int e = 0; e < STEP_PAST; e++)
            f.x[j][e] = load_bits(past + (int64_t)e * (old ? a.conv.entry : a.x.token), 0,
                                  old ? a.conv.dtype : io, there && (!old || has_old));
#pragma unroll
        for (int e = 0; e < STEP_WINDOW; e++)
            f.x[j][STEP_PAST + e] = load_bits(x + (int64_t)e * a.x.token, 0, io, there && e < n);
#pragma unroll
        for (int e = 0; e < STEP_TAPS; e++)
            f.weight[j][e] = load_bits(taps_at(a.weight, 0, channel, e), 0, a.weight.dtype, there);
        f.bias[j] =
            load_bits(taps_at(a.bias, 0, channel, 0), 0, a.bias.dtype, there && a.bias.data);
    }
    if (!a.normed) return;
    const int own = threadIdx.x;
    const bool there = own < a.rule.V;
#pragma unroll
    for (int e = 0; e < STEP_WINDOW; e++)
        f.z[e] = load_bits(warp_row(a.z, w.seq, t + e, w.head), own, a.z.dtype,
                           there && e < n && a.z.data);
    f.norm_weight = load_bits(a.norm_weight.data, own * a.norm_weight.stride[0],
                              a.norm_weight.dtype, there && a.norm_weight.data);
}

/* Convolves the first n outputs of a channel. */
template <int n>
GDN_DEVICE void step_convolve(float *to, int step, const struct step_raw &f, int j,
                              const struct gdn_cu_step_general &a, int past_dtype)
{
    float y[n];
#pragma unroll
    for (int i = 0; i < n; i++) {
        y[i] = bits_to_f32(f.bias[j], a.bias.dtype);
#pragma unroll
        for (int tap = 0; tap < STEP_TAPS; tap++)
            y[i] = fmaf(bits_to_f32(f.weight[j][tap], a.weight.dtype),
                        bits_to_f32(f.x[j][i + tap], i + tap < STEP_PAST ? past_dtype : a.x.dtype),
                        y[i]);
    }
    quick_silu(y);
#pragma unroll
    for (int i = 0; i < n; i++) to[i * step] = round_to(y[i], a.x.dtype);
}

/* Writes the window to shared memory. */
GDN_DEVICE void step_put(struct step_shared &sh, const struct step_raw &f,
                         const struct gdn_cu_step_general &a, const struct step_work &, int t,
                         int n)
{
    const int K = a.rule.K, past_dtype = t == 0 ? a.conv.dtype : a.x.dtype;
#pragma unroll
    for (int j = 0; j < STEP_CHANNELS; j++) {
        const int i = threadIdx.x + j * blockDim.x;
        if (i >= step_n_channels(a)) continue;
        float *to = i < K ? &sh.x[1][i] : i < 2 * K ? &sh.x[0][i - K] : &sh.v[0][i - 2 * K];
        const int step = i < 2 * K ? 2 * STEP_ROW : STEP_MOST;
        if (n == 1)
            step_convolve<1>(to, step, f, j, a, past_dtype);
        else
            step_convolve<STEP_WINDOW>(to, step, f, j, a, past_dtype);
#pragma unroll
        for (int e = 0; e < STEP_PAST; e++)
#pragma unroll
            for (int m = 1; m <= STEP_WINDOW; m++)
                if (m == n)
                    sh.left[e][i] =
                        bits_to_f32(f.x[j][m + e], m + e < STEP_PAST ? past_dtype : a.x.dtype);
    }
    const int own = threadIdx.x;
    if (!a.normed || own >= a.rule.V) return;
    sh.weight[own] = a.norm_weight.data ? bits_to_f32(f.norm_weight, a.norm_weight.dtype) : 1;
    float z[STEP_WINDOW];
#pragma unroll
    for (int e = 0; e < STEP_WINDOW; e++) z[e] = bits_to_f32(f.z[e], a.z.dtype);
    silu_of(z);
#pragma unroll
    for (int e = 0; e < STEP_WINDOW; e++) sh.gate[e][own] = a.z.data ? z[e] : 1;
}

/* ---- Its states ---------------------------------------------------------------------------- */

/* Returns true if the block writes the state of channel i: of all its channels of v, and of a share
 * of q and k. */
GDN_DEVICE bool step_owns(const struct gdn_cu_step_general &a, const struct step_work &w, int i)
{
    const int share = i - w.block * a.share;
    return i >= 2 * a.rule.K || (share >= 0 && share < a.share);
}

/* Stores the states of one window. A thread stores what it has put into shared memory. */
GDN_DEVICE void step_leave(const struct step_shared &sh, const struct gdn_cu_step_general &a,
                           const struct step_work &w)
{
#pragma unroll
    for (int j = 0; j < STEP_CHANNELS; j++) {
        const int i = threadIdx.x + j * blockDim.x, channel = step_channel(a, w, i);
        if (i >= step_n_channels(a) || !step_owns(a, w, i)) continue;
#pragma unroll
        for (int e = 0; e < STEP_PAST; e++)
            store_float(taps_at(a.conv, w.seq.write, channel, e), 0, a.conv.dtype, sh.left[e][i]);
    }
}

/* Returns the slot for the states after token t; -1: none. */
GDN_DEVICE int step_slot(const struct gdn_cu_step_general &a, const struct step_work &w, int t)
{
    if (a.rule.each) return warp_each_slot(a.rule, w.seq, t);
    return t == w.seq.T - 1 ? w.seq.write : -1;
}

/* Returns input t of the sequence. If t < 0, it is an entry of the state that the sequence starts
 * from, -1 the newest. */
GDN_DEVICE float step_input(const struct gdn_cu_step_general &a, const struct step_work &w,
                            int channel, int t)
{
    if (t >= 0) return load_float(warp_row(a.x, w.seq, t, 0), channel, a.x.dtype);
    if (w.seq.read < 0 || a.length + t < 0) return 0;
    return load_float(taps_at(a.conv, w.seq.read, channel, a.length + t), 0, a.conv.dtype);
}

/* Moves one channel's state after token t, from the oldest entry on. In place, entries that are
 * still to be read are not yet overwritten. */
GDN_DEVICE void step_move(const struct gdn_cu_step_general &a, const struct step_work &w,
                          int channel, int t, int slot)
{
#pragma unroll 1
    for (int e = 0; e < a.length; e++)
        store_float(taps_at(a.conv, slot, channel, e), 0, a.conv.dtype,
                    step_input(a, w, channel, t + 1 - a.length + e));
}

/* Moves all states of a channel. The state for the slot that the sequence starts from comes
 * last. */
GDN_DEVICE void step_move_all(const struct gdn_cu_step_general &a, const struct step_work &w,
                              int channel)
{
    int last = -1;
#pragma unroll 1
    for (int t = a.rule.each ? 0 : w.seq.T - 1; t < w.seq.T; t++) {
        const int slot = step_slot(a, w, t);
        if (slot < 0) continue;
        if (slot == w.seq.read)
            last = t;
        else
            step_move(a, w, channel, t, slot);
    }
    if (last >= 0) step_move(a, w, channel, last, w.seq.read);
}

/* Moves the states of all channels of the block. */
GDN_DEVICE void step_move_block(const struct gdn_cu_step_general &a, const struct step_work &w)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < step_n_channels(a); i += blockDim.x)
        if (step_owns(a, w, i)) step_move_all(a, w, step_channel(a, w, i));
}

#endif
