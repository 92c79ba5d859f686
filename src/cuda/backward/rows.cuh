/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps between the tensors and the chunks, a warp for a row:
 *
 *     load     rows of q and k, normalised, q with the scale; a block for a chunk and a head
 *     store    dq, dk and dv: sums over the state heads that read a row, in their order, and the
 *              gradient of the norm
 *     rest     zeros for tokens that do not count, in every gradient; a warp for a token
 */
#ifndef GDN_CUDA_BACKWARD_ROWS_CUH
#define GDN_CUDA_BACKWARD_ROWS_CUH

#include "cuda/backward/backward.cuh"

enum {
    ROW_WARPS = THREADS / 32,
    ROW_PARTS = 8,            /* elements of a row that a lane has at a time: lane, lane + 32,
                                 ... */
    ROW_WIDE = 32 * ROW_PARTS /* elements of a row at a time: all of q and k, but not of every v */
};

GDN_DEVICE void load_row(float (&x)[ROW_PARTS], const char *row, int dtype, int n)
{
#pragma unroll
    for (int i = 0; i < ROW_PARTS; i++) {
        const int at = threadIdx.x % 32 + 32 * i;
        x[i] = at < n ? load_float(row, at, dtype) : 0;
    }
}

template <int parts> GDN_DEVICE float dot_rows(const float (&x)[parts], const float (&y)[parts])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < parts; i++) sum = fmaf(x[i], y[i], sum);
    return sum_warp(sum);
}

/* ---- Load ---------------------------------------------------------------------------------- */

GDN_DEVICE void backward_load(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int item = (int)(blockIdx.x % (r.Hq + r.Hk));
    const bool is_q = item < r.Hq;
    const int head = is_q ? item : item - r.Hq;
    const struct gdn_rows &from = is_q ? a.q : a.k, &to = is_q ? r.q : r.k;
    const struct backward_chunk c = find_backward_chunk(a, blockIdx.x / (r.Hq + r.Hk));
    for (int t = threadIdx.x / 32; t < c.in.n; t += ROW_WARPS) {
        float x[ROW_PARTS];
        load_row(x, row_at(from, c.in.seq, c.in.t0 + t, head), from.dtype, r.K);
        const float scale =
            inverse_length(dot_rows(x, x), r.norm, r.norm_eps) * (is_q ? r.scale : 1);
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) {
            const int at = threadIdx.x % 32 + 32 * i;
            if (at < r.K) row_in(to, c, t, head)[at] = scale * x[i];
        }
    }
}

/* ---- Store --------------------------------------------------------------------------------- */

/* Returns the growth of a norm's divisor with |x|. */
GDN_DEVICE float norm_slope(float squares, const struct gdn_cu_rule &r)
{
    const float length = sqrtf(squares);
    if (r.norm == GDN_NORM_L2_ADD) return length > 0 ? (length + r.norm_eps) / length : 0;
    if (r.norm == GDN_NORM_L2_MAX) return length > r.norm_eps ? 1 : 0;
    return 1;
}

/* Turns dy, the gradient of y = x / |x|, into that of x: dx = f (dy - slope y (y . dy)), where f is
 * 1 / the length of the formula. */
template <int parts>
GDN_DEVICE void through_norm(float (&dy)[parts], float (&x)[parts], const struct gdn_cu_rule &r)
{
    const float squares = dot_rows(x, x);
    const float f = inverse_length(squares, r.norm, r.norm_eps);
#pragma unroll
    for (int i = 0; i < parts; i++) x[i] *= f;
    const float along = norm_slope(squares, r) * dot_rows(x, dy);
#pragma unroll
    for (int i = 0; i < parts; i++) dy[i] = f * (dy[i] - along * x[i]);
}

/* A tensor: its rows, their gradient, the gradients of state heads in memory, heads and sizes. */
struct backward_tensor {
    const struct gdn_rows *given, *to, *parts;
    int head, n_heads, D;
    bool is_v;
};
GDN_DEVICE struct backward_tensor find_tensor(const struct gdn_cu_backward &a, int item)
{
    const struct gdn_cu_rule &r = a.rule;
    if (item < r.Hq) return { &a.q, &a.dq, &a.head_dq, item, r.Hq, r.K, false };
    if (item < r.Hq + r.Hk) return { &a.k, &a.dk, &a.head_dk, item - r.Hq, r.Hk, r.K, false };
    return { &r.v, &a.dv, &a.z, item - r.Hq - r.Hk, r.Hv, r.V, true };
}

/* Stores the gradient of elements `from` on in row of token t. */
GDN_DEVICE void store_row(const struct gdn_cu_backward &a, const struct backward_tensor &x,
                          const struct backward_chunk &c, int t, int from)
{
    const struct gdn_cu_rule &r = a.rule;
    float sum[ROW_PARTS] = {}, part[ROW_PARTS];
    int reader = first_reader(r, x.head, x.n_heads);
    for (int i = 0; i < r.H / x.n_heads; i++, reader += reader_step(r, x.n_heads)) {
        const float scale = x.is_v ? load_beta(r, c.in.seq, c.in.t0 + t, reader) : 1;
        load_row(part, (const char *)(row_in(*x.parts, c, t, reader) + from), GDN_F32, x.D - from);
#pragma unroll
        for (int j = 0; j < ROW_PARTS; j++) sum[j] += scale * part[j];
    }
    if (x.to == &a.dq)
#pragma unroll
        for (int j = 0; j < ROW_PARTS; j++) sum[j] *= r.scale;
    if (!x.is_v && r.norm != GDN_NO_NORM) {
        load_row(part, row_at(*x.given, c.in.seq, c.in.t0 + t, x.head), x.given->dtype, x.D);
        through_norm(sum, part, r);
    }
    char *row = row_at(*x.to, c.in.seq, c.in.t0 + t, x.head);
#pragma unroll
    for (int j = 0; j < ROW_PARTS; j++) {
        const int at = from + threadIdx.x % 32 + 32 * j;
        if (at >= x.D) continue;
        if (a.adds) sum[j] += load_float(row, at, x.to->dtype);
        store_float(row, at, x.to->dtype, sum[j]);
    }
}

GDN_DEVICE void backward_store(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int n_items = r.Hq + r.Hk + r.Hv;
    const struct backward_tensor x = find_tensor(a, (int)(blockIdx.x % n_items));
    const struct backward_chunk c = find_backward_chunk(a, blockIdx.x / n_items);
    if (!x.to->data) return;
    for (int t = threadIdx.x / 32; t < c.in.n; t += ROW_WARPS)
        for (int from = 0; from < x.D; from += ROW_WIDE) store_row(a, x, c, t, from);
}

/* ---- Rest ---------------------------------------------------------------------------------- */

GDN_DEVICE void zero_row(const struct gdn_rows &rows, const struct gdn_cu_seq &token, int n_heads,
                         int D)
{
    if (!rows.data) return;
    for (int i = threadIdx.x % 32; i < n_heads * D; i += 32)
        store_float(row_at(rows, token, 0, i / D), i % D, rows.dtype, 0);
}

/* Returns the warp's token in the row of its tensors. row -1: the token is valid, or there is
 * none. */
GDN_DEVICE struct gdn_cu_seq masked_token(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    const int64_t number = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    struct gdn_cu_seq token = {}, none = {};
    none.row = -1;
    if (number >= a.n_tokens) return none;
    token.batch = b.padded ? number / b.T : 0;
    token.first = b.padded ? number % b.T : number;
    const int64_t row = b.padded ? token.batch : find_sequence(b, number);
    if (row >= 0) {
        const struct gdn_cu_seq s = range_of(b, row);
        if (token.first >= s.first && token.first < s.first + s.n_valid) return none;
    }
    return token;
}

GDN_DEVICE void backward_rest(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const struct gdn_cu_seq token = masked_token(a);
    if (token.row < 0) return;
    zero_row(a.dq, token, r.Hq, r.K), zero_row(a.dk, token, r.Hk, r.K);
    zero_row(a.dv, token, r.Hv, r.V);
    zero_row(a.dg, token, r.H, 1), zero_row(a.dbeta, token, r.H, 1);
}

#endif
