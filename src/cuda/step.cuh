/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's next tokens in one launch: convolution with SiLU, gates, L2 norm, rule, and the gated
 * norm of o.
 *
 * A block has one value head of one sequence, a warp of it 16 columns of the state, as in
 * decode_warp.cuh and decode_mma.cuh. What the convolution reads is asked for first, then the
 * state; while that is on its way, q, k and v of four tokens are convolved into shared memory, a
 * thread for two channels. From there the warps go on as if separate calls had left them. Where
 * there are few sequences, up to four blocks share the columns of a head.
 *
 * The blocks that share q and k each convolve these, and each moves a part of their state of the
 * convolution on, when all have read it: they are a cluster. Where there are no clusters one block
 * has all value heads of a key head, one after the other.
 */
#ifndef GDN_CUDA_STEP_CUH
#define GDN_CUDA_STEP_CUH

#include "decode_warp.cuh"

enum {
    STEP_TAPS     = 4,
    STEP_PAST     = STEP_TAPS - 1,
    STEP_WINDOW   = MMA_TOKENS, /* tokens that are convolved at once */
    STEP_MOST     = 128,        /* K and V, at most */
    STEP_ROW      = STEP_MOST + 4,
    STEP_CHANNELS = 2           /* of a thread, at most */
};

/* What the rule and the norm need of a window: values as the dtype of x holds them. x: k and q of
 * each token, in turn; gate, weight: of the norm; left: the new states of the convolution. */
struct step_shared {
    alignas(16) float x[2 * STEP_WINDOW][STEP_ROW];
    float v[STEP_WINDOW][STEP_MOST], o[STEP_WINDOW][STEP_MOST];
    float gate[STEP_WINDOW][STEP_MOST], weight[STEP_MOST];
    float left[STEP_PAST][3 * STEP_MOST];
};

/* The block's work: some columns of a value head of a sequence, and the key head that it reads. */
struct step_work {
    struct warp_seq seq;
    int             key_head, block; /* block: of those of the key head */
    int             head, column;
};

/* ---- The convolution ----------------------------------------------------------------------- */

/* Inputs of a thread's channels as they lie in memory: those before the window first. */
struct step_raw {
    uint32_t x[STEP_CHANNELS][STEP_PAST + STEP_WINDOW];
    uint32_t weight[STEP_CHANNELS][STEP_TAPS], bias[STEP_CHANNELS];
    uint32_t z[STEP_WINDOW], norm_weight;
};

/* Of the block's channels: K of q, K of k, and its columns of v. */
GDN_DEVICE int step_n_channels(const struct gdn_cu_step &a) { return 2 * a.rule.K + a.n_columns; }
GDN_DEVICE int step_channel(const struct gdn_cu_step &a, const struct step_work &w, int i)
{
    const int K = a.rule.K;
    if (i < K) return w.key_head * K + i;
    if (i < 2 * K) return (a.Hk + w.key_head - 1) * K + i;
    return 2 * (a.Hk - 1) * K + w.head * a.rule.V + w.column + i;
}

/* Entry e of a channel's state in a slot; of weights and biases, whose slot is 0. */
GDN_DEVICE char *taps_at(const struct gdn_cu_taps &p, int slot, int channel, int e)
{
    return p.data + (int64_t)slot * p.slot + (channel * p.channel + e * p.entry);
}

/* Tokens [t, t + n): what is there of them. */
GDN_DEVICE void step_fetch(struct step_raw &f, const struct gdn_cu_step &a,
                           const struct step_work &w, int t, int n)
{
    const int  io = a.x.dtype;
    const bool old = t == 0, has_old = a.conv.data && w.seq.read >= 0;
#pragma unroll
    for (int j = 0; j < STEP_CHANNELS; j++) {
        const int   i = threadIdx.x + j * blockDim.x, channel = step_channel(a, w, i);
        const bool  there = i < step_n_channels(a);
        const char *x     = warp_row(a.x, w.seq, t, 0) + channel * float_bytes(io);
        const char *past  = old ? taps_at(a.conv, w.seq.read, channel, a.length - STEP_PAST)
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
        f.bias[j] = load_bits(taps_at(a.bias, 0, channel, 0), 0, a.bias.dtype,
                              there && a.bias.data);
    }
    if (!a.normed) return;
    const int  own   = threadIdx.x;
    const bool there = own < a.rule.V;
#pragma unroll
    for (int e = 0; e < STEP_WINDOW; e++)
        f.z[e] = load_bits(warp_row(a.z, w.seq, t + e, w.head), own, a.z.dtype,
                           there && e < n && a.z.data);
    f.norm_weight = load_bits(a.norm_weight.data, own * a.norm_weight.stride[0],
                              a.norm_weight.dtype, there && a.norm_weight.data);
}

/* The first n outputs of a channel. */
template <int n>
GDN_DEVICE void step_convolve(float *to, int step, const struct step_raw &f, int j,
                              const struct gdn_cu_step &a, int past_dtype)
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

/* The window into shared memory. */
GDN_DEVICE void step_put(struct step_shared &sh, const struct step_raw &f,
                         const struct gdn_cu_step &a, int t, int n)
{
    const int K = a.rule.K, past_dtype = t == 0 ? a.conv.dtype : a.x.dtype;
#pragma unroll
    for (int j = 0; j < STEP_CHANNELS; j++) {
        const int i = threadIdx.x + j * blockDim.x;
        if (i >= step_n_channels(a)) continue;
        float *to = i < K ? &sh.x[1][i] : i < 2 * K ? &sh.x[0][i - K] : &sh.v[0][i - 2 * K];
        const int step = i < 2 * K ? 2 * STEP_ROW : STEP_MOST;
        if (n == 1) step_convolve<1>(to, step, f, j, a, past_dtype);
        else step_convolve<STEP_WINDOW>(to, step, f, j, a, past_dtype);
#pragma unroll
        for (int e = 0; e < STEP_PAST; e++)
#pragma unroll
            for (int m = 1; m <= STEP_WINDOW; m++)
                if (m == n)
                    sh.left[e][i] = bits_to_f32(f.x[j][m + e],
                                                m + e < STEP_PAST ? past_dtype : a.x.dtype);
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

/* Does the block answer for the state of channel i? For those of v, and a share of q's and k's. */
GDN_DEVICE bool step_owns(const struct gdn_cu_step &a, const struct step_work &w, int i)
{
    const int share = i - w.block * a.share;
    return i >= 2 * a.rule.K || (share >= 0 && share < a.share);
}

/* Of one window, as engines have it: from shared memory, what the same thread has put there. */
GDN_DEVICE void step_leave(const struct step_shared &sh, const struct gdn_cu_step &a,
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

/* The slot that states after token t go to; -1: none. */
GDN_DEVICE int step_slot(const struct gdn_cu_step &a, const struct step_work &w, int t)
{
    const struct gdn_cu_warp &r = a.rule;
    int64_t to = t == w.seq.T - 1 && !r.each ? w.seq.write : -1;
    if (r.each && t < r.write_slots.n_columns) to = load_index(r.write_slots, w.seq.row, t);
    return to < r.write_pool ? (int)to : -1;
}

/* Input t of the sequence; t < 0: of the state that it starts from, -1 the newest. */
GDN_DEVICE float step_input(const struct gdn_cu_step &a, const struct step_work &w, int channel,
                            int t)
{
    if (t >= 0) return load_float(warp_row(a.x, w.seq, t, 0), channel, a.x.dtype);
    if (w.seq.read < 0 || a.length + t < 0) return 0;
    return load_float(taps_at(a.conv, w.seq.read, channel, a.length + t), 0, a.conv.dtype);
}

/* One channel's state after token t, entry by entry from the oldest: in place, what is still to be
 * read lies ahead. */
GDN_DEVICE void step_move(const struct gdn_cu_step &a, const struct step_work &w, int channel,
                          int t, int slot)
{
#pragma unroll 1
    for (int e = 0; e < a.length; e++)
        store_float(taps_at(a.conv, slot, channel, e), 0, a.conv.dtype,
                    step_input(a, w, channel, t + 1 - a.length + e));
}

/* All states of a channel; the one in the slot that the sequence starts from is the last. */
GDN_DEVICE void step_move_all(const struct gdn_cu_step &a, const struct step_work &w, int channel)
{
    int last = -1;
#pragma unroll 1
    for (int t = a.rule.each ? 0 : w.seq.T - 1; t < w.seq.T; t++) {
        const int slot = step_slot(a, w, t);
        if (slot < 0) continue;
        if (slot == w.seq.read) last = t;
        else step_move(a, w, channel, t, slot);
    }
    if (last >= 0) step_move(a, w, channel, last, w.seq.read);
}

/* Any others, of all heads of the block. */
GDN_DEVICE void step_move_block(const struct gdn_cu_step &a, struct step_work &w)
{
    const int first = w.head + 1 - a.n_heads, end = w.head + 1;
#pragma unroll 1
    for (w.head = first; w.head < end; w.head++)
#pragma unroll 1
        for (int i = threadIdx.x; i < step_n_channels(a); i += blockDim.x)
            if (step_owns(a, w, i) && (w.head == first || i >= 2 * a.rule.K))
                step_move_all(a, w, step_channel(a, w, i));
}

/* ---- The norm of o ------------------------------------------------------------------------- */

/* Token i of the window, by 16 lanes, with the sum in the order of norm.cu. All lanes of a warp
 * come here; those of no token have none of its elements. */
GDN_DEVICE void step_norm(const struct step_shared &sh, const struct gdn_cu_step &a,
                          const struct step_work &w, int i, int t, bool wanted)
{
    enum { PACK = STEP_MOST / 16 };
    const struct gdn_cu_warp &r = a.rule;
    const int   first = threadIdx.x % 16 * PACK, n = wanted ? r.V - first : 0;
    char       *out = warp_row(r.out, w.seq, t, w.head);
    float       x[PACK], sum = 0;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        x[j] = j < n ? round_to(sh.o[i][first + j], r.out.dtype) : 0;
        sum  = fmaf(x[j], x[j], sum);
    }
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float scale = 1 / sqrtf(sum / (float)r.V + a.rms_eps);
#pragma unroll
    for (int j = 0; j < PACK; j++)
        if (j < n)
            store_float(out, first + j, r.out.dtype,
                        x[j] * scale * sh.weight[first + j] * sh.gate[i][first + j]);
}

/* n tokens from t on, once all warps have left their o. */
GDN_DEVICE void step_norms(const struct step_shared &sh, const struct gdn_cu_step &a,
                           const struct step_work &w, int t, int n)
{
    __syncthreads();
    for (int i = threadIdx.x / 32 * 2; i < n; i += blockDim.x / 32 * 2) {
        const int mine = i + threadIdx.x % 32 / 16;
        step_norm(sh, a, w, mine % STEP_WINDOW, t + mine, mine < n);
    }
}

/* ---- The rule ------------------------------------------------------------------------------ */

/* Column g of X, of T tokens, from shared memory: as mma_fetch() has it from global. */
template <class Tile>
GDN_DEVICE void step_columns(uint32_t (&column)[Tile::PAIRS], const struct step_shared &sh, int K,
                             int T)
{
    const int    lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *row = sh.x[g];
#pragma unroll
    for (int i = 0; i < Tile::PAIRS / 2; i++) {
        const int at = (i * 4 / Tile::PIECE * 4 + t) * Tile::PIECE + i * 4 % Tile::PIECE;
        uint4     x  = make_uint4(0, 0, 0, 0);
        if (at < K && g / 2 < T) x = *(const uint4 *)&row[at];
        column[2 * i]     = x.x >> 16 | (x.y & 0xffff0000);
        column[2 * i + 1] = x.z >> 16 | (x.w & 0xffff0000);
    }
}

/* Up to MMA_TOKENS, by tensor cores. */
template <int dtype>
GDN_DEVICE void step_products(struct step_shared &sh, const struct step_raw &raw,
                              const struct gdn_cu_step &a, const struct step_work &w, bool last)
{
    typedef mma_tile<STEP_MOST, dtype> Tile;
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq    &s = w.seq;
    const int  bytes = r.K * float_bytes(dtype), t = threadIdx.x % 4;
    const int  column = threadIdx.x / 32 * MMA_ROWS, own = column + threadIdx.x % 32 / 4;
    const int  v = w.column + own;
    const bool has = column < a.n_columns, there = t < s.T, given = s.read >= 0;
    uint32_t         x[Tile::PAIRS];
    struct warp_gates gates;
    struct mma_rows  rows;
    Tile             tile;
    mma_load(tile, mma_row(r.from, s.read, w.head, v), r.from.row, bytes, given && has);
    warp_fetch_gates(gates, r, s, w.head, t);
    step_put(sh, raw, a, 0, s.T);
    warp_expand_gates(rows.alpha, rows.beta, gates, r, there);
    __syncthreads();
    if (last) cluster_arrive();
    if (has) {
        step_columns<Tile>(x, sh, r.K, s.T);
        for (int h = 0; h < 2; h++) rows.v[h] = sh.v[t][own + 8 * h];
        mma_rule(rows, tile, x, r, s.T);
        char *const out = warp_row(r.out, s, t, w.head);
        for (int h = 0; h < 2; h++) {
            if (a.normed) sh.o[t][own + 8 * h] = rows.o[h];
            else if (r.out.data && there) store_float(out, v + 8 * h, r.out.dtype, rows.o[h]);
        }
        mma_leave(tile, x, rows, r, s, w.head, v, bytes, given);
    }
    if (a.normed) step_norms(sh, a, w, 0, s.T);
}

/* Four elements of a row of shared memory; zeros if they are not there. */
GDN_DEVICE void step_chunk(float (&to)[4], const float *row, int at, bool there)
{
    float4 x = make_float4(0, 0, 0, 0);
    if (there) x = *(const float4 *)&row[at];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* One token on a state of float32. */
GDN_DEVICE void step_once(struct step_shared &sh, const struct step_raw &raw,
                          const struct gdn_cu_step &a, const struct step_work &w, bool last)
{
    typedef once_tile<STEP_MOST> Tile;
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq    &s = w.seq;
    const int  column = threadIdx.x / 32 * MMA_ROWS, own = column + once_row<Tile>();
    const int  at = threadIdx.x % 32 * 4, v = w.column + column;
    const bool has = column < a.n_columns, given = s.read >= 0;
    struct warp_gates          gates;
    struct once_token<Tile::C> now;
    Tile                       tile;
    once_load(tile, once_place<Tile>(r.from, s.read, w.head, v), r.from.row, r.K, given && has);
    warp_fetch_gates(gates, r, s, w.head, 0);
    step_put(sh, raw, a, 0, 1);
    warp_expand_gates(now.alpha, now.beta, gates, r, true);
    __syncthreads();
    if (last) cluster_arrive();
    if (has) {
        step_chunk(now.k[0], sh.x[0], at, at < r.K);
        step_chunk(now.q[0], sh.x[1], at, at < r.K);
        now.v     = sh.v[0][own];
        char *out = NULL;
        if (a.normed) out = (char *)&sh.o[0][own];
        else if (r.out.data)
            out = warp_row(r.out, s, 0, w.head) + (w.column + own) * float_bytes(r.out.dtype);
        once_rule(tile, now, r, s, w.head, v, r.K, given, out, a.normed ? GDN_F32 : r.out.dtype);
    }
    if (a.normed) step_norms(sh, a, w, 0, 1);
}

template <class Tile>
GDN_DEVICE void step_commit(struct warp_token<Tile::PARTS * Tile::J> &to,
                            const struct step_shared &sh, int i, const struct gdn_cu_warp &r)
{
#pragma unroll
    for (int j = 0; j < Tile::PARTS * Tile::J; j++) {
        const int at = Tile::part() * 4 + j % Tile::J * 64 + j / Tile::J * 32;
        step_chunk(to.k[j], sh.x[2 * i], at, at < r.K);
        step_chunk(to.q[j], sh.x[2 * i + 1], at, at < r.K);
    }
    warp_scale<Tile>(to, r);
}

/* Any, token by token. last: of the heads of the block. */
template <class Tile, int dtype>
GDN_DEVICE void step_warps(struct step_shared &sh, struct step_raw &raw,
                           const struct gdn_cu_step &a, const struct step_work &w, bool last)
{
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq    &s = w.seq;
    const int  first = threadIdx.x / 32 * Tile::COLUMNS, column = w.column + first;
    const int  own = first + last_column<Tile>();
    const bool has = first < a.n_columns, given = s.read >= 0;
    struct warp_place from = warp_place_of<Tile, dtype>(r, r.from, s.read, w.head, column);
    uint32_t          x[Tile::N][4];
    Tile              tile;
    struct warp_gates  gates;
    bool              changed = !given;
    if (!given || !has) from.n_rows = 0;
    warp_load<Tile, dtype>(x, from);
    warp_fetch_gates(gates, r, s, w.head, threadIdx.x % STEP_WINDOW);
    step_put(sh, raw, a, 0, s.T < STEP_WINDOW ? s.T : STEP_WINDOW);
    warp_expand<Tile, dtype>(tile, x);
#pragma unroll 1
    for (int t0 = 0; t0 < s.T; t0 += STEP_WINDOW) {
        const int        n = s.T - t0 < STEP_WINDOW ? s.T - t0 : STEP_WINDOW;
        const int        mine = t0 + threadIdx.x % STEP_WINDOW;
        float            alpha, beta;
        if (t0) {
            warp_fetch_gates(gates, r, s, w.head, mine);
            step_fetch(raw, a, w, t0, n);
            __syncthreads(); /* all are through with the window before */
            step_put(sh, raw, a, t0, n);
        }
        warp_expand_gates(alpha, beta, gates, r, mine < s.T);
        __syncthreads();
        if (last && t0 == 0) cluster_arrive(); /* later windows do not need the old state */
#pragma unroll 1
        for (int i = 0; i < n && has; i++) {
            struct warp_token<Tile::PARTS * Tile::J> now;
            step_commit<Tile>(now, sh, i, r);
            now.v     = sh.v[i][own];
            now.alpha = __shfl_sync(0xffffffff, alpha, i);
            now.beta  = __shfl_sync(0xffffffff, beta, i);
            char *out = NULL;
            if (a.normed) out = (char *)&sh.o[i][own];
            else if (r.out.data && own < a.n_columns)
                out = warp_row(r.out, s, t0 + i, w.head) +
                      (w.column + own) * float_bytes(r.out.dtype);
            warp_step(tile, now, out, a.normed ? GDN_F32 : r.out.dtype);
            changed |= now.alpha != 1 || now.beta != 0;
            warp_leave<Tile, dtype>(tile, changed, r, s, from, t0 + i, w.head, column);
        }
        if (a.normed) step_norms(sh, a, w, t0, n);
    }
}

/* ---- A block ------------------------------------------------------------------------------- */

GDN_DEVICE void step_zero(const struct gdn_cu_step &a, const struct step_work &w)
{
    const struct gdn_cu_warp &r = a.rule;
    if (!r.out.data || (r.keep && w.seq.row < r.B)) return;
    for (int t = 0; t < w.seq.T; t++)
        for (int i = threadIdx.x; i < a.n_columns; i += blockDim.x)
            store_float(warp_row(r.out, w.seq, t, w.head), w.column + i, r.out.dtype, 0);
}

/* The tokens of a head. With `last` the block has no other that reads the same q and k. */
template <class Tile, int dtype>
GDN_DEVICE void step_head(struct step_shared &sh, const struct gdn_cu_step &a,
                          const struct step_work &w, bool last)
{
    const int       T = w.seq.T;
    struct step_raw raw;
    step_fetch(raw, a, w, 0, T < STEP_WINDOW ? T : STEP_WINDOW);
    if constexpr (!Tile::K_FIRST && dtype != GDN_F16) {
        if (a.rule.products && T <= MMA_TOKENS && (dtype == GDN_BF16 || T > 1)) {
            step_products<dtype>(sh, raw, a, w, last);
            return;
        }
    }
    if constexpr (!Tile::K_FIRST && dtype == GDN_F32) {
        if (a.rule.whole && T == 1) {
            step_once(sh, raw, a, w, last);
            return;
        }
    }
    step_warps<Tile, dtype>(sh, raw, a, w, last);
}

template <class Tile, int dtype> GDN_DEVICE void step_block(const struct gdn_cu_step &a)
{
    __shared__ struct step_shared sh;
    struct step_work              w;
    w.key_head = by(blockIdx.y, a.key_blocks);
    w.block    = blockIdx.y - w.key_head * a.n_blocks;
    w.head     = w.key_head * a.group + (w.block >> a.part_bits);
    w.column   = (w.block & ((1 << a.part_bits) - 1)) * a.n_columns;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    w.seq = warp_read(a.rule, blockIdx.x);
    if (w.seq.T == 0) return;
#pragma unroll 1
    for (int i = 0; i < a.n_heads; i++) {
        if (i) w.head++;
        if (w.seq.padding) {
            step_zero(a, w);
            continue;
        }
        if (i) __syncthreads();
        step_head<Tile, dtype>(sh, a, w, i == a.n_heads - 1);
    }
    if (w.seq.padding) return;
    cluster_wait();
    if (!a.conv.data || !a.writes) return;
    if (a.n_heads > 1 || a.length > STEP_PAST || a.rule.each || w.seq.T > STEP_WINDOW)
        step_move_block(a, w);
    else if (w.seq.write >= 0 && w.seq.write < a.rule.write_pool)
        step_leave(sh, a, w);
}

#define STEP_KERNEL(threads, name, tile, dtype)                                               \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                  \
        name(const __grid_constant__ struct gdn_cu_step a)                                    \
    {                                                                                         \
        step_block<tile<STEP_MOST, GDN_##dtype>, GDN_##dtype>(a);                             \
    }

#endif
