/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens of the family (gdn.h) for the kernels of general.cuh. A row of a window is one update
 * of a token: a stands at the token's first one, its output belongs to the last one.
 *
 *     S <- diag(a) S;    p = S^T (b k);    u = w v - p;    o = S^T q + (k . q) u;    S <- S + k u^T
 */
#ifndef GDN_CUDA_DECODE_CHANNELS_TOKENS_CUH
#define GDN_CUDA_DECODE_CHANNELS_TOKENS_CUH

#include "cuda/decode/general_tile.cuh"
#include "cuda/device/family.cuh"

/* A warp's update as it lies in memory. Lane i has the channels i, i + 32, ... of a and b, and
 * column i of v and of w. */
template <int KC> struct channels_fetched {
    struct decode_fetched_rows<KC> rows;
    uint32_t a[KC / 32], bias[KC / 32], b[KC / 32];
    uint32_t v[1], w[1];
    int64_t token, to; /* of the token, if this update is its last; else -1 */
    bool decays;       /* the update is the first one of its token */
};

/* An update's gates leave a state as it is, decay it, or forget some of its channels. */
enum channels_decay { CHANNELS_STAY, CHANNELS_DECAY, CHANNELS_FORGET };

/* A window of updates. From K on k, q, e = b k and a are 0. So where other channels forget, a NaN
 * in the padding, from u = 0, is forgotten too. */
template <int KC> struct channels_window {
    typedef struct channels_fetched<KC> fetched;
    enum { ERASES = true, IS_TOKEN = false }; /* p is of e, not of k; a row is an update */

    alignas(16) float k[DECODE_WINDOW][KC];
    float q[DECODE_WINDOW][KC], e[DECODE_WINDOW][KC], a[DECODE_WINDOW][KC];
    float v[DECODE_WINDOW][DECODE_COLUMNS];          /* w v */
    int64_t to[DECODE_WINDOW], token[DECODE_WINDOW]; /* of a token's last update; else -1 */
    float kq[DECODE_WINDOW];
    uint32_t written[DECODE_WINDOW]; /* a bit for each column of v that the update may change */
    enum channels_decay decays[DECODE_WINDOW];

    GDN_DEVICE int64_t n_rows(const struct gdn_cu_rule &r, int64_t n)
    {
        return n * r.family.updates;
    }
    __device__ __forceinline__ int64_t ends(int i, int64_t) const { return token[i]; }

    __device__ __forceinline__ const float *erased(int i) const { return e[i]; }
    /* Returns u by selection, so that a NaN of the state does not spread where nothing is written
     * (G8). */
    __device__ __forceinline__ float u(int i, int column, float p) const
    {
        return written[i] >> column & 1 ? v[i][column] - p : 0;
    }
    __device__ __forceinline__ bool writes(int i) const { return written[i]; }
    __device__ __forceinline__ bool changes(int i) const
    {
        return decays[i] != CHANNELS_STAY || writes(i);
    }
};

/* Computes S <- diag(a) S, by selection where a channel forgets (G7). */
template <class Tile, int KC>
GDN_DEVICE void decay(Tile &tile, const struct channels_window<KC> &w, int i)
{
    float a[Tile::J][4];
    if (w.decays[i] == CHANNELS_STAY) return;
    tile.read(a, w.a[i]);
    if (w.decays[i] == CHANNELS_FORGET) {
        for (int n = 0; n < Tile::N; n++)
            for (int e = 0; e < 4; e++)
                if (tile.of(a, n, e) == 0) tile.S[n][e] = 0;
    }
    for (int n = 0; n < Tile::N; n++)
        for (int e = 0; e < 4; e++) tile.S[n][e] *= tile.of(a, n, e);
}

/* Loads elements `lane`, lane + 32, ... of a row, up to element n, behind a branch
 * (ptx_load_parts.cuh). */
template <int N>
GDN_DEVICE void fetch_numbers(uint32_t (&x)[N], const struct family_row &from, int lane, int n)
{
    const char *const at = from.at + lane * from.step;
    if (from.dtype == GDN_F32) {
        for (int c = 0; c < N; c++)
            x[c] = load_bits(at + 32 * c * from.step, 0, GDN_F32, from.at && lane + 32 * c < n);
    } else {
        for (int c = 0; c < N; c++)
            x[c] = load_bits(at + 32 * c * from.step, 0, GDN_BF16, from.at && lane + 32 * c < n);
    }
}

/* Loads update `row` of a sequence. A whole warp calls it. wide: as in fetch_rows(). */
template <int KC, bool wide>
GDN_DEVICE void fetch_token(struct channels_fetched<KC> &f, const struct gdn_cu_rule &r,
                            const struct decode_work &w, int64_t row)
{
    const struct gdn_family &family = r.family;
    const int lane = opaque(threadIdx.x) % 32, n = family.updates;
    const int64_t t = n == 1 ? row : row / n;
    const int j = (int)(row - t * n), n_decays = j == 0 ? r.K : 0;
    const char *const v = row_at(r.v, w.seq, t, w.hv) + j * family.v_update;
    const bool last = j == n - 1;
    const int size = float_bytes(r.v.dtype);
    fetch_rows<KC, wide>(f.rows, r, row_at(r.k, w.seq, t, w.hk) + j * family.k_update,
                         row_at(r.q, w.seq, t, w.hq));
    fetch_numbers(f.a, find_gate(r, w.seq, t, w.head), lane, n_decays);
    fetch_numbers(f.bias, find_bias(r, w.head), lane, n_decays);
    fetch_numbers(f.b, find_b(r, w.seq, t, w.head, j), lane, r.K);
    fetch_numbers(f.v, { v + w.column * size, size, r.v.dtype }, lane, w.n_columns);
    const struct family_row write = find_w(r, w.seq, t, w.head, j);
    fetch_numbers(f.w,
                  { write.at ? write.at + w.column * write.step : NULL, write.step, write.dtype },
                  lane, w.n_columns);
    f.decays = n_decays && r.g.data;
    f.token = last ? t : -1;
    f.to = last ? slot_after(r, w.seq, t) : -1;
}

/* Computes a and e of the update in the warp. Returns true if b is not 0 in all channels. */
template <int KC>
GDN_DEVICE bool commit_channels(struct channels_window<KC> &to,
                                const struct channels_fetched<KC> &f, const struct gdn_cu_rule &r,
                                const struct decode_work &w)
{
    const int lane = threadIdx.x % 32, i = threadIdx.x / 32;
    bool changes = false, forgets = false, erases = false;
    for (int c = 0; c < KC / 32; c++) {
        const int channel = lane + 32 * c;
        const bool there = channel < r.K;
        const float b = there ? family_b_value(r, bits_to_f32(f.b[c], r.beta.dtype)) : 0;
        float a = there;
        if (f.decays && there)
            a = gate_value(r, bits_to_f32(f.a[c], r.g.dtype), w.A_log,
                           bits_to_f32(f.bias[c], r.dt_bias.dtype), true);
        to.a[i][channel] = a;
        to.e[i][channel] = b == 0 ? 0 : b * to.k[i][channel];
        changes |= there && a != 1, forgets |= there && a == 0, erases |= b != 0;
    }
    changes = __any_sync(0xffffffff, changes);
    forgets = __any_sync(0xffffffff, forgets);
    if (lane == 0)
        to.decays[i] = forgets ? CHANNELS_FORGET : changes ? CHANNELS_DECAY : CHANNELS_STAY;
    return __any_sync(0xffffffff, erases);
}

/* Stores the warp's update as number threadIdx.x / 32 of the window. */
template <int KC>
GDN_DEVICE void commit_token(struct channels_window<KC> &to, const struct channels_fetched<KC> &f,
                             const struct gdn_cu_rule &r, const struct decode_work &w)
{
    const int lane = threadIdx.x % 32, i = threadIdx.x / 32;
    const int w_dtype = r.family.write.data ? r.family.write.dtype : r.beta.dtype;
    const float kq = commit_rows<KC>(to.k[i], to.q[i], f.rows, r);
    __syncwarp(); /* to.k is read below */
    const bool erases = commit_channels<KC>(to, f, r, w);
    const float weight = family_w_value(r, bits_to_f32(f.w[0], w_dtype));
    to.v[i][lane] = family_written(weight, bits_to_f32(f.v[0], r.v.dtype));
    const uint32_t written = __ballot_sync(0xffffffff, erases || weight != 0);
    if (lane != 0) return;
    to.kq[i] = kq;
    to.written[i] = written;
    to.to[i] = f.to;
    to.token[i] = f.token;
}

/* Load the gates of a row of a record as number i of the window, and store those of token t, see
 * walk.cuh. A warp calls each. */
template <int KC>
GDN_DEVICE void load_gates(struct channels_window<KC> &to, int i, const struct gdn_cu_rule &r,
                           const char *row)
{
    const int64_t step = r.family.g_rows ? r.record_g.channel : 0;
    bool forgets = false;
    for (int x = threadIdx.x % 32; x < KC; x += 32) {
        const float a = x < r.K ? fabsf(((const float *)row)[x * step]) : 0;
        to.a[i][x] = a;
        forgets |= x < r.K && a == 0;
    }
    forgets = __any_sync(0xffffffff, forgets);
    if (threadIdx.x % 32 != 0) return;
    to.decays[i] = forgets ? CHANNELS_FORGET : CHANNELS_DECAY;
    to.written[i] = __float_as_uint(*(const float *)row) >> 31 ? 0 : 0xffffffff;
}
template <int KC>
GDN_DEVICE void store_gates(char *row, const struct channels_window<KC> &from, int i,
                            const struct gdn_cu_rule &r, const struct decode_work &w, int64_t t)
{
    const int lane = threadIdx.x % 32, n = r.family.g_rows ? r.K : 1;
    bool writes = from.writes(i); /* the block's columns; the sign is of all */
    for (int v = lane; v < r.V && !writes && r.family.write.data; v += 32)
        writes = family_w(r, w.seq, t, w.head, 0, v) != 0;
    writes = __any_sync(0xffffffff, writes);
    for (int x = lane; x < n; x += 32)
        ((float *)row)[(int64_t)x * r.record_g.channel] =
            copysignf(from.a[i][x], writes ? 1.0f : -1.0f);
}

#endif
