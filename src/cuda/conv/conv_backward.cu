/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of the short convolution, a thread per channel:
 *
 *     tokens_<taps>   a block walks some tokens of all that the tensors hold, sequence after
 *                     sequence, writes dx and adds up what the weights and the bias get
 *     states_<taps>   a block per sequence: dstate
 *     sums_0          the blocks' sums are added in their order
 *
 * dz = dout act'(z) of a token is needed by dx of W tokens: a ring of registers has the W next
 * ones. Where a walk begins it computes W - 1 of them that another walk computes too.
 */
#include "cuda/conv/args.h"
#include "cuda/device/batch.cuh"
#include "cuda/device/math.cuh"

/* A channel: its weights, those of the oldest inputs first. */
template <int TAPS> struct channel {
    int64_t d;
    float weight[TAPS], bias;
};

GDN_DEVICE int64_t place(const struct gdn_conv_view &v, int64_t slot, int64_t d, int64_t entry)
{
    return slot * v.slot + d * v.channel + entry * v.entry;
}

GDN_DEVICE const char *row(const struct gdn_rows &r, const struct gdn_cu_seq &s, int64_t t)
{
    return r.data + s.batch * r.batch + (s.first + t) * r.token;
}

template <int TAPS>
GDN_DEVICE struct channel<TAPS> find_channel(const struct gdn_cu_conv_backward &a, int64_t d) {
    struct channel<TAPS> c;
    c.d = d;
#pragma unroll
    for (int w = 0; w < TAPS; w++)
        c.weight[w] =
            w < a.W ? load_float(a.weight.data, place(a.weight, 0, d, w), a.weight.dtype) : 0;
    c.bias = a.bias.data ? load_float(a.bias.data, place(a.bias, 0, d, 0), a.bias.dtype) : 0;
    return c;
}

/* Returns input t of a sequence. If t < 0, it is an entry of the state. */
GDN_DEVICE float
input(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s, int64_t t, int64_t d)
{
    if (t >= 0) return load_float(row(a.x, s, t), d * a.x.head, a.x.dtype);
    if (!a.state.data) return 0;
    return load_float(a.state.data, place(a.state, s.row, d, a.state.length + t), a.state.dtype);
}

/* Returns the slope of z sigmoid(z). */
GDN_DEVICE float silu_slope(float z)
{
    if (is_infinite(z)) return z > 0;
    return sigmoid(z) * (1 + z * sigmoid(-z));
}

/* Returns dz of token t; 0 behind the last valid token. */
template <int TAPS>
GDN_DEVICE float find_dz(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s,
                         int64_t t, const struct channel<TAPS> &c)
{
    if (t >= s.n_valid) return 0;
    const float dout = load_float(row(a.dout, s, t), c.d * a.dout.head, a.dout.dtype);
    if (!a.silu) return dout;
    float z = c.bias;
#pragma unroll
    for (int w = 0; w < TAPS; w++)
        if (w < a.W) z = fmaf(c.weight[w], input(a, s, t - a.W + 1 + w, c.d), z);
    return dout * silu_slope(z);
}

/* Returns the gradient of the input of token t, from dz of t, t + 1, ... If t < 0, the input is an
 * entry of the state. */
template <int TAPS>
GDN_DEVICE float find_dx(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s,
                         int64_t t, const struct channel<TAPS> &c, const float (&dz)[TAPS])
{
    float dx = 0;
#pragma unroll
    for (int w = 0; w < TAPS; w++) /* tap W - 1 - w met the input at t + w */
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            if (i == a.W - 1 - w) dx = fmaf(c.weight[i], dz[w], dx);
    const int64_t entry = t - s.n_valid + a.dstate_out.length;
    if (a.dstate_out.data && entry >= 0)
        dx += load_float(a.dstate_out.data, place(a.dstate_out, s.row, c.d, entry),
                         a.dstate_out.dtype);
    return dx;
}

template <int TAPS> GDN_DEVICE void next_dz(float (&dz)[TAPS], int W, float x)
{
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        if (i < TAPS - 1) dz[i] = dz[i + 1];
        if (i == W - 1) dz[i] = x;
    }
}

/* ---- Tokens -------------------------------------------------------------------------------- */

GDN_DEVICE void store_dx(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s,
                         int64_t t, int64_t d, float x)
{
    char *to = (char *)row(a.dx, s, t);
    const int64_t at = d * a.dx.head;
    if (a.adds) x += load_float(to, at, a.dx.dtype);
    store_float(to, at, a.dx.dtype, x);
}

/* Walks through tokens [t, end) of a sequence, all of them valid. sums: of the weights, then of the
 * bias. */
template <int TAPS>
GDN_DEVICE void walk(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s, int64_t t,
                     int64_t end, const struct channel<TAPS> &c, float (&sums)[TAPS + 1])
{
    float dz[TAPS] = {};
    for (int i = 0; i < a.W - 1; i++) next_dz(dz, a.W, find_dz(a, s, t + i, c));
    for (; t < end; t++) {
        next_dz(dz, a.W, find_dz(a, s, t + a.W - 1, c));
        if (a.dx.data) store_dx(a, s, t, c.d, find_dx(a, s, t, c, dz));
        if (a.dweight.data) {
#pragma unroll
            for (int w = 0; w < TAPS; w++)
                if (w < a.W) sums[w] = fmaf(dz[0], input(a, s, t - a.W + 1 + w, c.d), sums[w]);
        }
        sums[TAPS] += dz[0];
    }
}

/* Walks through tokens [t, end) of a sequence, valid or not. t < 0: tokens before the first valid
 * one. */
template <int TAPS>
GDN_DEVICE void pass(const struct gdn_cu_conv_backward &a, const struct gdn_cu_seq &s, int64_t t,
                     int64_t end, const struct channel<TAPS> &c, float (&sums)[TAPS + 1])
{
    const int64_t from = clamp64(t, 0, s.n_valid), to = clamp64(end, from, s.n_valid);
    if (c.d >= a.D) return;
    if (from < to) walk(a, s, from, to, c, sums);
    if (!a.dx.data || a.adds) return;
    for (; t < end; t++)
        if (t < 0 || t >= s.n_valid) store_dx(a, s, t, c.d, 0);
}

template <int TAPS> GDN_DEVICE void conv_backward_tokens(const struct gdn_cu_conv_backward &a)
{
    const int64_t d = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const int64_t end = clamp64((blockIdx.x + (int64_t)1) * a.rows, 0, a.N);
    int64_t at = blockIdx.x * a.rows;
    float sums[TAPS + 1] = {};
    const struct channel<TAPS> c = find_channel<TAPS>(a, d < a.D ? d : 0);
    struct channel<TAPS> own = c;
    own.d = d; /* threads without a channel take part, because a warp reads the batch together */
    while (at < end) {
        const int64_t i = a.batch.padded ? at / a.batch.T : find_sequence(a.batch, at);
        struct gdn_cu_seq s = {};
        int64_t behind = end; /* the end of the sequence's tokens */
        if (i >= 0) {
            s = read_sequence(a.batch, i);
            const int64_t start = s.first - s.n_before; /* the sequence's first token, in its row */
            const int64_t left = start + s.n_tokens + s.batch * a.batch.T * a.batch.padded - at;
            if (left > 0 && at + left < end) behind = at + left;
            if (left <= 0) s.n_valid = 0; /* behind the last sequence */
        } else if (a.batch.B > 0) {       /* before the first one */
            behind = clamp64(load_index(a.batch.cu_seqlens, 0), at + 1, end);
        }
        const int64_t row_of = a.batch.padded ? s.batch * a.batch.T : 0;
        pass(a, s, at - row_of - s.first, behind - row_of - s.first, own, sums);
        at = behind;
    }
    if (!a.sums || d >= a.D) return;
    float *to = a.sums + (int64_t)blockIdx.x * (a.W + 1) * a.D + d;
#pragma unroll
    for (int w = 0; w < TAPS; w++)
        if (w < a.W) to[w * a.D] = sums[w];
    to[a.W * a.D] = sums[TAPS];
}

/* ---- States and sums ----------------------------------------------------------------------- */

template <int TAPS> GDN_DEVICE void conv_backward_states(const struct gdn_cu_conv_backward &a)
{
    const int64_t d = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const struct gdn_cu_seq s = read_sequence(a.batch, blockIdx.x);
    if (d >= a.D) return;
    const struct channel<TAPS> c = find_channel<TAPS>(a, d);
    float dz[TAPS] = {};
    for (int64_t e = 0; e < a.dstate.length; e++) { /* from the oldest entry on */
        const int64_t t = e - a.dstate.length;
        next_dz(dz, a.W, t + a.W - 1 >= 0 ? find_dz(a, s, t + a.W - 1, c) : 0);
        const float dx = find_dx(a, s, t, c, dz);
        float *to = (float *)(void *)a.dstate.data + place(a.dstate, blockIdx.x, d, e);
        *to = a.adds ? *to + dx : dx;
    }
}

template <int NONE> GDN_DEVICE void conv_backward_sums(const struct gdn_cu_conv_backward &a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (a.W + 1) * a.D;
    const int64_t w = i / a.D, d = i - w * a.D;
    const struct gdn_conv_view &v = w < a.W ? a.dweight : a.dbias;
    float sum = 0;
    if (i >= step || !v.data) return;
    for (int64_t block = 0; block < a.n_blocks; block++) sum += a.sums[block * step + i];
    float *to = (float *)(void *)v.data + place(v, 0, d, w < a.W ? w : 0);
    *to = a.adds ? *to + sum : sum;
}

#define GDN_IMAGE_conv_backward GDN_THIS_IMAGE
#define GDN_KERNEL_conv_backward(threads, shared, form, taps)                                    \
    extern "C" __global__ void __launch_bounds__(threads)                                        \
        gdn_conv_backward_##form##_##taps(const __grid_constant__ struct gdn_cu_conv_backward a) \
    {                                                                                            \
        conv_backward_##form<taps>(a);                                                           \
    }
#include "cuda/driver/kernels.cuh"
