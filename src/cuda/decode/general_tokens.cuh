/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a decode block, and the loads of its tokens. Each warp loads one token of a window
 * into registers, as it lies in memory. Later it stores it to shared memory as the rule takes it:
 * float32, normalised, gates as alpha and beta. In between the block computes the window before. */
#ifndef GDN_CUDA_DECODE_TOKENS_CUH
#define GDN_CUDA_DECODE_TOKENS_CUH

#include "cuda/device/quad.cuh"
#include "cuda/device/rule.cuh"

enum {
    DECODE_THREADS = 128,
    DECODE_WARPS = DECODE_THREADS / 32,
    DECODE_COLUMNS = 32,          /* of V, of a block's part of a state */
    DECODE_WINDOW = DECODE_WARPS, /* tokens: each warp loads one */
};

/* Columns [column, column + n_columns) of one head of one sequence. The struct is in shared
 * memory, because all threads have the same work. */
struct decode_work {
    struct gdn_cu_seq seq;
    struct gdn_cu_checkpoints checkpoints;
    int head, hq, hk, hv, column, n_columns;
    float A_log, dt_bias;
};

/* A warp's rows of k and q. Lanes 0 to 15 have chunks of k, 16 apart from the lane's first on; the
 * other lanes have those of q. */
template <int KC> struct decode_fetched_rows {
    uint32_t x[KC / 64][4];
};

/* A warp's token as it lies in memory. */
template <int KC> struct decode_fetched {
    struct decode_fetched_rows<KC> rows;
    uint32_t v, g, beta;
    int64_t to;
};

/* A window of tokens. k and q are zero from K on. In the family a window is channels/tokens.cuh's,
 * and number i is one update of a token. */
template <int KC> struct decode_window {
    typedef struct decode_fetched<KC> fetched;
    enum { ERASES = false, IS_TOKEN = true }; /* p is of k itself; a row is a token */

    alignas(16) float k[DECODE_WINDOW][KC];
    float q[DECODE_WINDOW][KC];
    float v[DECODE_WINDOW][DECODE_COLUMNS];
    int64_t to[DECODE_WINDOW]; /* the slot of the state after the token; -1: none */
    float alpha[DECODE_WINDOW], beta[DECODE_WINDOW], kq[DECODE_WINDOW];

    /* Return the rows of n tokens; and the token of row `row` of a sequence if the row is its last
     * one, else -1. A row is a token here, and an update in the family. */
    GDN_DEVICE int64_t n_rows(const struct gdn_cu_rule &, int64_t n) { return n; }
    __device__ __forceinline__ int64_t ends(int, int64_t row) const { return row; }

    __device__ __forceinline__ const float *erased(int i) const { return k[i]; }
    /* Returns u of column v of number i. */
    __device__ __forceinline__ float u(int i, int column, float p) const
    {
        return rule_u(beta[i], v[i][column], p);
    }
    __device__ __forceinline__ bool writes(int i) const { return beta[i] != 0; }
    __device__ __forceinline__ bool changes(int i) const { return alpha[i] != 1 || writes(i); }
};

/* Returns the sum over 16 lanes, in the order that all kernels of decode have: partial sum i takes
 * the chunks i, i + 16, ... in order; the sums are added by bits 3, 0, 1 and 2 of i. */
GDN_DEVICE float sum_of_16(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 8);
    x += __shfl_xor_sync(0xffffffff, x, 1);
    x += __shfl_xor_sync(0xffffffff, x, 2);
    return x + __shfl_xor_sync(0xffffffff, x, 4);
}

/* Returns the slot for the state after token t; -1: none. */
GDN_DEVICE int64_t slot_after(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t)
{
    if (r.batch.write == GDN_WRITE_EACH) return each_slot(r.batch, s, t);
    return t == s.n_valid - 1 ? s.write : -1;
}

/* Returns the dtype of the row that the lane loads: sixteen lanes have k, the others q. */
GDN_DEVICE int row_dtype(const struct gdn_cu_rule &r)
{
    return threadIdx.x % 32 < 16 ? r.k.dtype : r.q.dtype;
}

/* Loads a row of k and a row of q. A whole warp calls it. wide: chunks of both are whole and
 * aligned. */
template <int KC, bool wide>
GDN_DEVICE void fetch_rows(struct decode_fetched_rows<KC> &f, const struct gdn_cu_rule &r,
                           const char *k, const char *q)
{
    const int lane = threadIdx.x % 32, io = row_dtype(r);
    const char *const row = lane < 16 ? k : q;
    for (int j = 0; j < KC / 64; j++) {
        const int first = lane % 16 * 4 + 64 * j;
        const char *at = row + first * float_bytes(io);
        if (wide)
            load_chunk(f.x[j], at, io, first < r.K);
        else
            load_part(f.x[j], at, io, r.K - first);
    }
}

/* Loads token t. A whole warp calls it. */
template <int KC, bool wide>
GDN_DEVICE void fetch_token(struct decode_fetched<KC> &f, const struct gdn_cu_rule &r,
                            const struct decode_work &w, int64_t t)
{
    const int lane = threadIdx.x % 32;
    fetch_rows<KC, wide>(f.rows, r, row_at(r.k, w.seq, t, w.hk), row_at(r.q, w.seq, t, w.hq));
    f.v = load_bits(row_at(r.v, w.seq, t, w.hv), w.column + lane, r.v.dtype, lane < w.n_columns);
    f.g = load_parts(row_at(r.g, w.seq, t, w.head), 0, r.g.dtype, r.g.data);
    f.beta = load_parts(row_at(r.beta, w.seq, t, w.head), 0, r.beta.dtype, r.beta.data);
    f.to = slot_after(r, w.seq, t);
}

/* Stores rows of k and q to the window: normalised, q times the scale. Returns k . q. */
template <int KC>
GDN_DEVICE float commit_rows(float *k, float *q, const struct decode_fetched_rows<KC> &f,
                             const struct gdn_cu_rule &r)
{
    const int lane = threadIdx.x % 32;
    const bool is_q = lane >= 16;
    float x[KC / 64][4], squares = 0, kq = 0, length = 1;
    expand_chunks(x, f.x, row_dtype(r));
    if (r.norm != GDN_NO_NORM) {
        for (int j = 0; j < KC / 64; j++)
            for (int e = 0; e < 4; e++) squares = fmaf(x[j][e], x[j][e], squares);
        length = inverse_length(sum_of_16(squares), r.norm, r.norm_eps);
    }
    if (is_q) length *= r.scale;
    for (int j = 0; j < KC / 64; j++) {
        float *row = (is_q ? q : k) + lane % 16 * 4 + 64 * j;
        for (int e = 0; e < 4; e++) x[j][e] *= length;
        *(float4 *)row = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
        for (int e = 0; e < 4; e++)
            kq = fmaf(x[j][e], __shfl_xor_sync(0xffffffff, x[j][e], 16), kq);
    }
    return sum_of_16(kq);
}

/* Stores the warp's token as number threadIdx.x / 32 of the window. */
template <int KC>
GDN_DEVICE void commit_token(struct decode_window<KC> &to, const struct decode_fetched<KC> &f,
                             const struct gdn_cu_rule &r, const struct decode_work &w)
{
    const int lane = threadIdx.x % 32, i = threadIdx.x / 32;
    const float kq = commit_rows<KC>(to.k[i], to.q[i], f.rows, r);
    to.v[i][lane] = bits_to_f32(f.v, r.v.dtype);
    if (lane != 0) return;
    to.kq[i] = kq;
    to.alpha[i] =
        r.g.data ? gate_value(r, bits_to_f32(f.g, r.g.dtype), w.A_log, w.dt_bias, true) : 1;
    to.beta[i] = r.beta.data ? beta_value(r, bits_to_f32(f.beta, r.beta.dtype)) : 1;
    to.to[i] = f.to;
}

#endif
