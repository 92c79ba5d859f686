/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution of gdn_step if every sequence has one token and channels lie in pairs in all
 * tensors. A thread has two channels that lie side by side, and moves them and their states at
 * once. It takes the place of the windows of step_conv.cuh. Its sums are the same. */
#ifndef GDN_CUDA_STEP_ONE_CUH
#define GDN_CUDA_STEP_ONE_CUH

#include "cuda/layer/step_conv.cuh"

/* Two channels that lie side by side, as they lie in memory. Their states are three pairs, in the
 * order of memory. */
struct step_one {
    enum { ONE = 1 };
    uint32_t past[STEP_PAST][2], x[2], weight[2][STEP_TAPS], bias[2];
    uint32_t z, norm_weight;
};

GDN_DEVICE void load_two(uint32_t (&x)[2], const void *p, int dtype, bool there)
{
    ld_v2_b32(x, p, there && dtype == GDN_F32, there && dtype != GDN_F32);
}
template <int n>
GDN_DEVICE void expand_twos(float (&to)[2 * n], const uint32_t (&x)[n][2], int dtype)
{
    if (dtype == GDN_F32) {
        for (int i = 0; i < 2 * n; i++) to[i] = __uint_as_float(x[i / 2][i % 2]);
    } else if (dtype == GDN_BF16) {
        for (int i = 0; i < 2 * n; i++) to[i] = bf16_to_f32((uint16_t)(x[i / 2][0] >> i % 2 * 16));
    } else {
        for (int i = 0; i < 2 * n; i++) to[i] = f16_to_f32((uint16_t)(x[i / 2][0] >> i % 2 * 16));
    }
}
GDN_DEVICE void store_two(char *p, float low, float high, int dtype)
{
    if (dtype == GDN_F32)
        *(float2 *)p = make_float2(low, high);
    else
        *(uint32_t *)p = dtype == GDN_BF16 ? f32_to_bf16x2(low, high) : f32_to_f16x2(low, high);
}

/* Returns true if the entries of a channel lie side by side; if not, the channels of an entry do.
 * Returns the step from a pair to the next. */
GDN_DEVICE bool is_by_entry(const struct gdn_cu_step_general &a)
{
    return a.conv.channel > a.conv.entry;
}
GDN_DEVICE int two_step(const struct gdn_cu_step_general &a)
{
    return is_by_entry(a) ? 2 * a.conv.entry : a.conv.entry;
}

GDN_DEVICE void step_fetch(struct step_one &f, const struct gdn_cu_step_general &a,
                           const struct step_work &w, int, int)
{
    const int i = 2 * threadIdx.x, channel = step_channel(a, w, i), io = a.x.dtype;
    const bool there = i < step_n_channels(a), old = a.conv.data && w.seq.read >= 0;
    if (there) {
        load_two(f.x, warp_row(a.x, w.seq, 0, 0) + channel * float_bytes(io), io, true);
#pragma unroll
        for (int j = 0; j < STEP_PAST; j++)
            load_two(f.past[j], taps_at(a.conv, w.seq.read, channel, 0) + j * two_step(a),
                     a.conv.dtype, old);
#pragma unroll
        for (int c = 0; c < 2; c++)
            load_chunk(f.weight[c], taps_at(a.weight, 0, channel + c, 0), a.weight.dtype, true);
        load_two(f.bias, taps_at(a.bias, 0, channel, 0), a.bias.dtype, a.bias.data);
    }
    if (!a.normed || threadIdx.x >= a.rule.V) return;
    f.z = load_bits(warp_row(a.z, w.seq, 0, w.head), threadIdx.x, a.z.dtype, a.z.data);
    f.norm_weight = vector_bits(a.norm_weight, threadIdx.x);
}

/* Adds the token to the state of two channels. The new state goes to its slot. If other blocks may
 * still read the old state, it goes to shared memory. */
GDN_DEVICE void step_shift(struct step_shared &sh, const float (&old)[6], const float (&x)[2],
                           const struct gdn_cu_step_general &a, const struct step_work &w, int i)
{
    const bool by_entry = is_by_entry(a);
    char *const to = taps_at(a.conv, w.seq.write, step_channel(a, w, i), 0);
#pragma unroll
    for (int j = 0; j < STEP_PAST; j++) {
        float y[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int e = 2 * j + h;
            y[h] = by_entry ? (e % 3 < 2 ? old[(e + 1) % 6] : x[e / 3])
                   : j < 2  ? old[(e + 2) % 6]
                            : x[h];
        }
        if (i < 2 * a.rule.K)
            *(float2 *)&sh.left[j][i] = make_float2(y[0], y[1]);
        else if (a.conv.data && a.moves && w.seq.write >= 0)
            store_two(to + j * two_step(a), y[0], y[1], a.conv.dtype);
    }
}

GDN_DEVICE void step_put(struct step_shared &sh, const struct step_one &f,
                         const struct gdn_cu_step_general &a, const struct step_work &w, int, int)
{
    const int i = 2 * threadIdx.x, K = a.rule.K, own = threadIdx.x;
    if (i < step_n_channels(a)) {
        float *to = i < K ? &sh.x[1][i] : i < 2 * K ? &sh.x[0][i - K] : &sh.v[0][i - 2 * K];
        float old[2 * STEP_PAST], x[2], weight[2][STEP_TAPS], y[2];
        expand_twos<STEP_PAST>(old, f.past, a.conv.dtype);
        expand_twos<1>(x, { { f.x[0], f.x[1] } }, a.x.dtype);
        expand_twos<1>(y, { { f.bias[0], f.bias[1] } }, a.bias.dtype);
        expand_chunks(weight, f.weight, a.weight.dtype);
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int e = 0; e < STEP_PAST; e++)
                y[c] = fmaf(weight[c][e], is_by_entry(a) ? old[3 * c + e] : old[2 * e + c], y[c]);
            y[c] = fmaf(weight[c][STEP_PAST], x[c], y[c]);
        }
        quick_silu(y);
        *(float2 *)to = make_float2(round_to(y[0], a.x.dtype), round_to(y[1], a.x.dtype));
        step_shift(sh, old, x, a, w, i);
    }
    if (!a.normed || own >= a.rule.V) return;
    float z[1] = { bits_to_f32(f.z, a.z.dtype) };
    silu_of(z);
    sh.weight[own] = a.norm_weight.data ? bits_to_f32(f.norm_weight, a.norm_weight.dtype) : 1;
    sh.gate[0][own] = a.z.data ? z[0] : 1;
}

/* Stores the states of q and k, when all blocks have read them. */
GDN_DEVICE void step_leave_one(const struct step_shared &sh, const struct gdn_cu_step_general &a,
                               const struct step_work &w)
{
    const int i = 2 * threadIdx.x;
    if (i >= 2 * a.rule.K || !step_owns(a, w, i) || w.seq.write < 0) return;
    char *const to = taps_at(a.conv, w.seq.write, step_channel(a, w, i), 0);
#pragma unroll
    for (int j = 0; j < STEP_PAST; j++)
        store_two(to + j * two_step(a), sh.left[j][i], sh.left[j][i + 1], a.conv.dtype);
}

#endif
