/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution, four taps that lie side by side, x and out apart. A block has few tokens
 * and a lane four channels of all of them. All that a warp needs is asked for at once, the three
 * inputs before its tokens too. Where so many warps begin and end, memory always has requests, and
 * what two of them read is in L2. The code is small, so that it stays in an SM's cache.
 *
 *     start  a sequence: its first three outputs, and its state
 *     rows   the other outputs of some tokens, whatever sequences they belong to
 *
 * States that these do not write (conv.c) are a walk's, and then the first outputs too.
 */
#ifndef GDN_CUDA_CONV_ROWS_CUH
#define GDN_CUDA_CONV_ROWS_CUH

#include "cuda/conv/conv_row.cuh"
#include "cuda/device/ptx_store.cuh"

/* The tokens of a tile: a lane has the same number of bytes for each dtype. */
template <int dtype> struct gdn_rows_of {
    enum { N = dtype == f32 ? 8 : 16 };
};

/* The lane's first channel, and its place in a row of x. If the lane has no channel, `is` is false
 * and the channel is 0. */
struct gdn_four {
    int channel, from;
    bool is;
};

GDN_DEVICE struct gdn_four find_four(const struct gdn_cu_conv &a)
{
    const int channel = ((int)blockIdx.x * WARPS * 32 + (int)threadIdx.x) * 4;
    struct gdn_four f;
    f.is = channel < a.D;
    f.channel = f.is ? channel : 0;
    f.from = f.channel + shift_of(a, f.channel);
    return f;
}

template <int dtype> GDN_DEVICE void load_four(struct gdn_quad &q, const char *p, bool is)
{
    if (dtype == f32)
        ld_keep_v4(q.word, p, is);
    else
        ld_keep_v2(q.word, p, is);
}

/* Stores by predicated instructions. A branch would make other lanes and stores wait. */
template <int dtype>
GDN_DEVICE void store_four(char *p, const struct gdn_cu_conv &a, const float (&y)[4], bool is)
{
    struct gdn_quad q = {};
    pack<dtype>(q, y, a);
    if (dtype == f32)
        st_v4(p, q.word, is);
    else
        st_v2(p, q.word, is);
}

/* ---- Taps ---------------------------------------------------------------------------------- */

/* Loads channels as they lie in memory. In 16 bits, two channels share a word. */
template <int dtype>
GDN_DEVICE void unpack_taps(struct gdn_taps<4, 4> &t, const struct gdn_quad (&q)[4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t word = dtype == f32 ? q[i / 4].word[i % 4] : q[i / 8].word[i % 8 / 2];
        t.weight[i % 4][i / 4] = bits_to_f32(dtype == f32 ? word : word >> i % 2 * 16, dtype);
    }
}

/* Weights and bias while they are loaded. Their dtypes may be known when compiling. */
struct gdn_raw_taps {
    struct gdn_quad weight[4];
    uint32_t bias[1][4];
};

GDN_DEVICE void load_raw_taps(struct gdn_raw_taps &r, const struct gdn_cu_conv &a, int channel,
                              int weight, int bias)
{
    const bool wide = weight == GDN_F32;
    const char *p = (const char *)a.weight.data + (int64_t)channel * (wide ? 16 : 8);
#pragma unroll
    for (int i = 0; i < 4; i++) ld_keep_v4(r.weight[i].word, p + i * 16, i < 2 || wide);
    load_chunk(r.bias[0], a.bias.data + channel * float_bytes(bias), bias, a.bias.data);
}

GDN_DEVICE void expand_taps(struct gdn_taps<4, 4> &t, const struct gdn_raw_taps &r, int weight,
                            int bias)
{
    float b[1][4];
    expand_chunks(b, r.bias, bias);
#pragma unroll
    for (int j = 0; j < 4; j++) t.bias[j] = b[0][j];
    if (weight == GDN_F32)
        unpack_taps<f32>(t, r.weight);
    else if (weight == GDN_BF16)
        unpack_taps<bf16>(t, r.weight);
    else
        unpack_taps<f16>(t, r.weight);
}

GDN_DEVICE void load_four_taps(struct gdn_taps<4, 4> &t, const struct gdn_cu_conv &a, int channel)
{
    struct gdn_raw_taps r;
    load_raw_taps(r, a, channel, a.weight.dtype, a.bias.dtype);
    expand_taps(t, r, a.weight.dtype, a.bias.dtype);
}

/* ---- Starts -------------------------------------------------------------------------------- */

/* Returns quad j of the n quads that a lane has of a state of n entries: one entry after the other,
 * or as the channels lie side by side. dtype, here and below: that of v, which may be known when
 * compiling. */
template <int n>
GDN_DEVICE char *state_at(const struct gdn_conv_view &v, int64_t slot, int channel, int j,
                          int dtype)
{
    const int64_t at =
        slot * v.slot + (v.entry == 1 ? n * (int64_t)channel + 4 * j : channel + j * v.entry);
    return v.data + at * float_bytes(dtype);
}

template <int n>
GDN_DEVICE void load_state(uint32_t (&bits)[n][4], const struct gdn_conv_view &v, int64_t slot,
                           int channel, int dtype)
{
    const bool is = v.data && slot >= 0;
#pragma unroll
    for (int j = 0; j < n; j++)
        load_chunk(bits[j], state_at<n>(v, is ? slot : 0, channel, j, dtype), dtype, is);
}

template <int n>
GDN_DEVICE void expand_state(float (&state)[n][4], const uint32_t (&bits)[n][4],
                             const struct gdn_conv_view &v, int dtype)
{
    float x[n][4];
    expand_chunks(x, bits, dtype);
#pragma unroll
    for (int e = 0; e < n; e++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            state[e][c] = v.entry == 1 ? x[(c * n + e) / 4][(c * n + e) % 4] : x[e][c];
}

template <int n>
GDN_DEVICE void store_state(const float (&state)[n][4], const struct gdn_conv_view &v, int64_t slot,
                            int channel, int dtype)
{
#pragma unroll
    for (int j = 0; j < n; j++) {
        float x[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            x[c] = v.entry == 1 ? state[(4 * j + c) % n][(4 * j + c) / n] : state[j][c];
        store_chunk(state_at<n>(v, slot, channel, j, dtype), x, dtype);
    }
}

/* Returns true if the state after a sequence must be written. Without tokens that count, a state in
 * its own slot stays. */
GDN_DEVICE bool leaves_state(const struct gdn_cu_conv &a, const struct gdn_cu_seq &s)
{
    return s.write >= 0 && a.to.data &&
           (s.n_valid || a.from.data != a.to.data || s.read != s.write);
}

/* Starts a sequence. A whole warp calls it. */
template <int dtype> GDN_DEVICE void start_item(const struct gdn_cu_conv &a, int64_t row)
{
    const struct gdn_four f = find_four(a);
    const struct gdn_cu_seq s = read_sequence(a.batch, row);
    const int n = s.n_valid < 3 ? (int)s.n_valid : 3; /* outputs to compute */
    if (s.n_tokens == 0 || !f.is) return;
    const char *x = row_at(a.x, s.batch, s.first) + bytes_to<dtype>(a, a.x, f.from);
    char *out = row_at(a.out, s.batch, s.first) + bytes_to<dtype>(a, a.out, f.channel);
    struct gdn_quad first[3], last[3];
    struct gdn_taps<4, 4> taps;
    uint32_t bits[3][4];
    float past[3][4], state[3][4], y[4], xs[4];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        load_four<dtype>(first[i], x + i * a.x.token, i < n);
        load_four<dtype>(last[i], x + (s.n_valid - 3 + i) * a.x.token, i + n >= 3);
    }
    load_state(bits, a.from, s.read, f.channel, a.from.dtype);
    load_four_taps(taps, a, f.channel);
    expand_state(past, bits, a.from, a.from.dtype);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        unpack<dtype>(xs, last[i], a);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            state[i][j] = xs[j];
            if (n == 0) state[i][j] = past[i][j];
            if (i < 2 && n == 1) state[i][j] = past[i + 1][j];
            if (i < 1 && n == 2) state[i][j] = past[i + 2][j];
        }
    }
    if (leaves_state(a, s)) store_state(state, a.to, s.write, f.channel, a.to.dtype);
#pragma unroll 1
    for (int t = 0; t < n; t++, out += a.out.token) {
        unpack<dtype>(xs, first[0], a);
        sum_taps<4>(y, xs, past, taps, a);
        store_four<dtype>(out, a, y, true);
        first[0] = first[1], first[1] = first[2];
    }
}

/* ---- Which tokens count -------------------------------------------------------------------- */

/* Two bits for each token of a tile. sum: the token gets its sum. zero: it is no valid token and
 * gets zeros. */
struct gdn_marks {
    uint32_t sum, zero;
};

GDN_DEVICE uint32_t bits_between(int low, int high) { return (1u << high) - (1u << low); }

/* Finds the marks for any batch. Whole warps call this function and those below. */
GDN_DEVICE struct gdn_marks find_marks(const struct gdn_cu_conv &a, const struct gdn_tile &tile)
{
    const int end = (int)(tile.end - tile.first);
    struct gdn_marks m = { 0, 0 };
#pragma unroll 1
    for (int t = 0; t < end;) {
        const struct gdn_run r = find_run(a, tile, t);
        const int low = clamp(r.first, t, r.end), high = clamp(r.to, low, r.end);
        m.sum |= bits_between(clamp(r.from, low, high), high);
        if (!r.keep) m.zero |= bits_between(t, low) | bits_between(high, r.end);
        t = r.end;
    }
    return m;
}

/* Returns bound i of packed sequences, which have less than 2^31 tokens. */
GDN_DEVICE int bound_at(const struct gdn_cu_batch &b, int i)
{
    const struct gdn_cu_array &cu = b.cu_seqlens;
    const char *p = (const char *)cu.data + i * cu.stride[0] * (cu.dtype == GDN_I32 ? 4 : 8);
    if (cu.dtype == GDN_I32) return clamp(*(const int *)p, 0, (int)b.N);
    return (int)clamp64(*(const int64_t *)p, 0, b.N);
}

/* Finds the marks of packed tokens `first` to first + end - 1, if cu_seqlens alone bounds
 * sequences. */
GDN_DEVICE struct gdn_marks find_bounds(const struct gdn_cu_batch &b, int first, int end)
{
    const int lane = threadIdx.x % 32, B = (int)b.B;
    int low = 0; /* sequences before it end at least three tokens before `first` */
#pragma unroll 1
    for (int n = B + 1; n > 32;) {
        const int step = (n + 31) / 32, i = lane * step;
        const bool before = i < n && bound_at(b, low + i) < first - 2;
        const int count = __popc(__ballot_sync(0xffffffff, before));
        if (count == 0) break;
        low += (count - 1) * step;
        n = n - (count - 1) * step < step + 1 ? n - (count - 1) * step : step + 1;
    }
    const uint32_t all = bits_between(0, end);
    uint32_t starts = 0, zero = 0; /* starts: first tokens of sequences; zero: also tokens before
                                      the first sequence */
    bool more = true;
#pragma unroll 1
    for (int i = low + lane; more; i += 32) {
        const int at = i <= B ? bound_at(b, i) - first : end;
        if (i < B && at >= -2 && at < end) starts |= 7u << (at + 2) >> 2;
        if (i == 0 && at > 0) starts |= bits_between(0, at < end ? at : end);
        if (i == B && at < end) zero = all & ~0u << (at > 0 ? at : 0);
        more = !__any_sync(0xffffffff, at >= end);
    }
    zero = __reduce_or_sync(0xffffffff, zero);
    starts = __reduce_or_sync(0xffffffff, starts);
    return { all & ~zero & ~starts, zero };
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* A tile: its tokens, its row of a padded batch, and the tokens of the row before it. */
struct gdn_few {
    int row, first, end, back;
};

template <int dtype> GDN_DEVICE struct gdn_few find_few(const struct gdn_cu_conv &a, int index)
{
    struct gdn_few t = { 0, index, 0, 0 };
    if (a.batch.padded) {
        t.row = (int)((uint32_t)index / (uint32_t)a.row_tiles);
        t.first = index - t.row * (int)a.row_tiles;
    }
    t.first *= gdn_rows_of<dtype>::N;
    t.end = min((int)gdn_rows_of<dtype>::N, (int)a.batch.T - t.first);
    t.back = min(3, t.first);
    return t;
}

/* Computes quick_silu() of several x. The caller looks at the sum of all powers, which stays small
 * if no x is below -80. */
template <int N> GDN_DEVICE void rough_silu(float (&x)[N], float &powers)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float d = 1 + ex2_approx(x[i] * -1.44269504f);
        powers += d;
        x[i] *= rcp_approx(d);
    }
}

/* Computes rows again for which the power in SiLU was too large. x: the input of the tile's first
 * token. */
template <int dtype>
GDN_DEVICE void sum_again(const struct gdn_cu_conv &a, const struct gdn_taps<4, 4> &taps,
                          uint32_t rows, const char *x, char *out)
{
#pragma unroll 1
    for (; rows; rows &= rows - 1) {
        const int64_t u = __popc(rows ^ (rows - 1)) - 1;
        struct gdn_quad q[4];
        float past[3][4], xs[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) load_four<dtype>(q[i], x + (u - 3 + i) * a.x.token, true);
#pragma unroll
        for (int i = 0; i < 3; i++) unpack<dtype>(past[i], q[i], a);
        unpack<dtype>(xs, q[3], a);
        sum_taps<4>(y, xs, past, taps, a);
        store_four<dtype>(out + u * a.out.token, a, y, true);
    }
}

template <int dtype> GDN_DEVICE void rows_item(const struct gdn_cu_conv &a, int index)
{
    enum { ROWS = gdn_rows_of<dtype>::N };
    const struct gdn_four f = find_four(a);
    const struct gdn_few t = find_few<dtype>(a, index);
    const int token = (int)a.x.token, step = (int)a.out.token;
    const char *x = row_at(a.x, t.row, t.first) + bytes_to<dtype>(a, a.x, f.from);
    char *out = row_at(a.out, t.row, t.first) + bytes_to<dtype>(a, a.out, f.channel);
    struct gdn_quad q[3 + ROWS];
    struct gdn_taps<4, 4> taps;
    struct gdn_marks m = { bits_between(t.first ? 0 : 3, t.end), 0 }; /* rows have more than 3
                                                                         tokens */
    float past[3][4], y[4], silu[4], xs[4], powers = 0;
    const bool bounded = a.valid == GDN_CU_CONV_BOUNDED;
    if (a.valid == GDN_CU_CONV_ASK) m = find_marks(a, { t.row, t.first, t.first + t.end });
#pragma unroll
    for (int u = 0; u < 3 + ROWS; u++) { /* tokens outside of the tile are other tokens of the
                                            row */
        const int at = u < 3 ? max(u - 3, -t.back) : min(u - 3, t.end - 1);
        load_four<dtype>(q[u], x + (int64_t)at * token, true);
    }
    load_four_taps(taps, a, f.channel);
    if (bounded) m = find_bounds(a.batch, t.first, t.end); /* while loads are under way */
    if (!f.is) m = { 0, 0 };
#pragma unroll
    for (int u = 0; u < 3; u++) unpack<dtype>(past[u], q[u], a);
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        unpack<dtype>(xs, q[3 + u], a);
        add_taps<4>(y, xs, past, taps, a);
#pragma unroll
        for (int j = 0; j < 4; j++) silu[j] = y[j];
        rough_silu(silu, powers);
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = a.silu ? silu[j] : y[j];
        store_four<dtype>(out + (int64_t)u * step, a, y, m.sum >> u & 1);
    }
#pragma unroll 1
    for (; m.zero; m.zero &= m.zero - 1) {
        const float zeros[4] = {};
        const int u = __popc(m.zero ^ (m.zero - 1)) - 1;
        store_four<dtype>(out + (int64_t)u * step, a, zeros, true);
    }
    if (a.silu && !(powers <= 0x1p115f)) sum_again<dtype>(a, taps, m.sum, x, out);
}

/* The number of a block counts channels first, then the blocks that start sequences, then tiles. */
template <int dtype, int TAPS> GDN_DEVICE void conv_rows(const struct gdn_cu_conv &a)
{
    const int row = (int)(blockIdx.y + blockIdx.z * gridDim.y), index = row - a.walk_blocks;
    if (index < 0)
        start_item<dtype>(a, row);
    else if (index < a.n_tiles)
        rows_item<dtype>(a, index);
}

#endif
