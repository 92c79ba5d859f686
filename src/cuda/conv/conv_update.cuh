/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution, one token each of some sequences, whose states pass through shared memory
 * so that they are read and written as they lie in memory: each byte once, lanes side by side.
 * A lane has 16 bytes of channels as the states' dtype counts them; x and out, of 16 bits, may have
 * half as many.
 */
#ifndef GDN_CUDA_CONV_STEP_CUH
#define GDN_CUDA_CONV_STEP_CUH

#include "cuda/conv/conv_row.cuh"

/* A warp's part of every state of a pool: three quads of a lane, in the order of memory if
 * entries lie side by side, else by entries. */
struct gdn_side {
    char *first; /* the lane's first quad, in slot 0 */
    bool  is_there[3];
};

GDN_DEVICE bool is_by_entry(const struct gdn_conv_view &v) { return v.entry == 1; }

template <int state>
GDN_DEVICE struct gdn_side find_side(const struct gdn_cu_conv &a, const struct gdn_conv_view &v,
                                     int64_t channel)
{
    enum { N = gdn_width<state>::LANE, UNIT = 16 / N };
    const bool      by_entry = is_by_entry(v);
    const int       lane = threadIdx.x % 32;
    const int64_t   left = a.D - channel;
    struct gdn_side s;
    s.first = v.data + ((by_entry ? 3 : 1) * channel + N * lane) * UNIT;
#pragma unroll
    for (int j = 0; j < 3; j++)
        s.is_there[j] = by_entry ? N * (j * 32 + lane) < 3 * left : N * lane < left;
    return s;
}

/* Returns quad j of a lane, in a slot. */
template <int state>
GDN_DEVICE char *quad_at(const struct gdn_conv_view &v, const struct gdn_side &s, int64_t slot,
                         int j)
{
    enum { N = gdn_width<state>::LANE, UNIT = 16 / N };
    return s.first + (slot * v.slot + j * (is_by_entry(v) ? 32 * N : v.entry)) * UNIT;
}

/* The inputs of a step from a sequence, one lane each, so that all loads are in flight at once. */
struct gdn_step_row {
    int64_t read, write; /* slots; -1: zeros, none */
    int     valid, keep; /* is there a token; may out stay if not */
};

/* A warp's sequences: n of them, every `apart`-th from `first` on, so that all warps together go
 * through memory in its order. */
struct gdn_step_rows {
    int64_t first, apart;
    int     n;
};

GDN_DEVICE struct gdn_step_row read_rows(const struct gdn_cu_conv &a, const struct gdn_step_rows &w)
{
    const int           lane = threadIdx.x % 32;
    const bool          sink = a.batch.pad_policy == GDN_PAD_SINK; /* asks all lanes */
    struct gdn_step_row r    = { -1, -1, 0, 1 };
#pragma unroll 1
    for (int i = sink ? 0 : lane; i < w.n; i += sink ? 1 : 32) {
        const struct gdn_cu_seq s = read_sequence(a.batch, w.first + i * w.apart);
        const bool writes = s.write >= 0 && a.to.data &&
                            (s.n_valid || a.from.data != a.to.data || s.read != s.write);
        if (i != lane) continue;
        r.read  = a.from.data ? s.read : -1;
        r.write = writes ? s.write : -1;
        r.valid = s.n_valid > 0;
        r.keep  = s.keep_out;
    }
    return r;
}

/* Returns the value of the lane that has it. */
GDN_DEVICE int64_t of_lane(int64_t x, int lane)
{
    return __shfl_sync(0xffffffff, (long long)x, lane);
}
GDN_DEVICE bool is_set(int x, int lane) { return __shfl_sync(0xffffffff, x, lane); }

/* Returns the token of sequence `row`. */
GDN_DEVICE char *row_of_one(const struct gdn_cu_conv &a, const struct gdn_rows &r, int64_t row)
{
    return row_at(r, a.batch.padded ? row : 0, 0);
}

/* A row on its way: the state as it lies in memory, and x. */
struct gdn_step_load {
    struct gdn_quad state[3], x;
};

template <int dtype, int state>
GDN_DEVICE void load_step(struct gdn_step_load &q, const struct gdn_cu_conv &a,
                          const struct gdn_lane &l, const struct gdn_side &from,
                          const struct gdn_step_row &rows, int64_t row, int i)
{
    const int64_t read  = of_lane(rows.read, i);
    const bool    valid = is_set(rows.valid, i);
    const char   *x = row_of_one(a, a.x, row) + bytes_to<dtype>(a, a.x, l.first + l.shift);
    if (gdn_width<dtype>::LANE == gdn_width<state>::LANE)
        ld_once_v4(q.x.word, x, l.n && valid);
    else
        ld_once_v2(q.x.word, x, l.n && valid);
#pragma unroll
    for (int j = 0; j < 3; j++)
        ld_once_v4(q.state[j].word, quad_at<state>(a.from, from, read, j),
                   read >= 0 && from.is_there[j]);
}

GDN_DEVICE void put_quad(char *p, const struct gdn_quad &q)
{
    *(uint4 *)p = *(const uint4 *)q.word;
}
GDN_DEVICE void get_quad(struct gdn_quad &q, const char *p)
{
    *(uint4 *)q.word = *(const uint4 *)p;
}

/* Quads of a warp's state, through its shared memory: from the order of memory, lane by lane, to
 * three that follow each other for every lane, or back. */
GDN_DEVICE void turn(struct gdn_quad (&q)[3], char *quads, bool in)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 3; j++) put_quad(quads + (in ? j * 32 + lane : lane * 3 + j) * 16, q[j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 3; j++) get_quad(q[j], quads + (in ? lane * 3 + j : j * 32 + lane) * 16);
    __syncwarp();
}

/* The past of the lane's channels. */
template <int state, int N>
GDN_DEVICE void unpack_state(float (&past)[3][N], struct gdn_quad (&q)[3],
                             const struct gdn_cu_conv &a, char *quads)
{
    if (!is_by_entry(a.from)) {
#pragma unroll
        for (int j = 0; j < 3; j++) unpack<state>(past[j], q[j], a);
        return;
    }
    turn(q, quads, true);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        float x[N];
        unpack<state>(x, q[j], a);
#pragma unroll
        for (int c = 0; c < N; c++) past[(j * N + c) % 3][(j * N + c) / 3] = x[c];
    }
}

/* And back, to a slot. */
template <int state, int N>
GDN_DEVICE void store_step(const struct gdn_cu_conv &a, const struct gdn_side &to,
                           const float (&past)[3][N], int64_t slot, char *quads)
{
    struct gdn_quad q[3];
    if (is_by_entry(a.to)) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float x[N];
#pragma unroll
            for (int c = 0; c < N; c++) x[c] = past[(j * N + c) % 3][(j * N + c) / 3];
            pack<state>(q[j], x, a);
        }
        turn(q, quads, false);
    } else {
#pragma unroll
        for (int j = 0; j < 3; j++) pack<state>(q[j], past[j], a);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (to.is_there[j]) put_quad(quad_at<state>(a.to, to, slot, j), q[j]);
}

/* Writes number i of a warp's rows: its output, and its state if that is kept. */
template <int dtype, int state, int N>
GDN_DEVICE void write_step(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const struct gdn_side &to, const struct gdn_step_row &rows,
                           int64_t row, int i, const struct gdn_taps<4, N> &taps,
                           float (&past)[3][N], const float (&x)[N], char *quads)
{
    const bool    valid = is_set(rows.valid, i), keep = is_set(rows.keep, i);
    const int64_t write = of_lane(rows.write, i);
    char         *out = row_of_one(a, a.out, row) + bytes_to<dtype>(a, a.out, l.first);
    float         y[N] = {};
    if (valid) sum_taps<4>(y, x, past, taps, a);
    if (valid || !keep) store_quad<dtype>(out, a, l, y);
    if (write >= 0) store_step<state>(a, to, past, write, quads);
}

/* a.n_steps sequences, 32 at most, or one less; AHEAD of them on their way. */
template <int dtype, int state> GDN_DEVICE void step_rows(const struct gdn_cu_conv &a)
{
    enum { N = gdn_width<state>::LANE, AHEAD = 2 };
    const int64_t item = item_of_warp(), chunks = (a.D + 32 * N - 1) / (32 * N);
    const int64_t first = item / chunks, chunk = item - first * chunks;
    if (item >= a.n_items) return;
    const struct gdn_lane l    = find_lane<state>(a, chunk);
    const struct gdn_side from = find_side<state>(a, a.from, chunk * 32 * N);
    const struct gdn_side to   = find_side<state>(a, a.to, chunk * 32 * N);
    const int64_t              apart = a.apart, rest = a.batch.B - first;
    const struct gdn_step_rows w = { first, apart,
                                     (int)a.n_steps - (rest <= (a.n_steps - 1) * apart) };
    char *quads = (char *)gdn_conv_shared + threadIdx.x / 32 * (3 * 32 * 16);
    const struct gdn_step_row rows = read_rows(a, w);
    struct gdn_taps<4, N>     taps;
    struct gdn_step_load      ring[AHEAD] = {};
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        if (u < w.n) load_step<dtype, state>(ring[u], a, l, from, rows, first + u * apart, u);
    load_taps(taps, a, l);
    int64_t row = first; /* of the batch */
#pragma unroll 1
    for (int i = 0; i < w.n; i += AHEAD)
#pragma unroll
        for (int u = 0; u < AHEAD; u++, row += apart) {
            const int next = i + u + AHEAD;
            float     past[3][N], x[N];
            if (i + u >= w.n) break;
            unpack<dtype>(x, ring[u].x, a);
            unpack_state<state>(past, ring[u].state, a, quads);
            if (next < w.n)
                load_step<dtype, state>(ring[u], a, l, from, rows, row + AHEAD * apart, next);
            write_step<dtype, state>(a, l, to, rows, row, i + u, taps, past, x, quads);
        }
}

/* States of the dtype of x, of 16 bits, or of float32. */
template <int dtype, int TAPS> GDN_DEVICE void conv_step(const struct gdn_cu_conv &a)
{
    step_rows<dtype, dtype>(a);
}
template <int dtype, int TAPS> GDN_DEVICE void conv_wide_step(const struct gdn_cu_conv &a)
{
    step_rows<dtype, f32>(a);
}

#endif
