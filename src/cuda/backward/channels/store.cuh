/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From rows in memory to the gradients:
 *
 *     store    dq, dk and dv: sums over the state heads that read a row, in their order, and the
 *              gradient of the norm; a warp for a row
 *     given    dg, through what makes gates of what was given, and a chunk's sums for dA_log and
 *              ddt_bias
 *     betas    dbeta and dwrite, the same way; a warp for a row
 *     rest     zeros for tokens that do not count, in every gradient; a warp for a token
 *     sums     dA_log and ddt_bias; a block for one of their numbers
 */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_STORE_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_STORE_CUH

#include "cuda/backward/channels/channels.cuh"

/* ---- Rows that heads share ------------------------------------------------------------------- */

/* A tensor, and where its gradient goes. */
struct channels_tensor {
    const struct gdn_rows &given, &to, &parts;
    int head, n_heads, D, n; /* n: rows of a token */
    int64_t step, to_step;   /* from one row of a token to the next, in the tensor and in its
                                gradient */
};
GDN_DEVICE struct channels_tensor find_channels_tensor(const struct gdn_cu_backward_channels &a,
                                                       int item)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const struct gdn_family &f = r.family;
    const struct gdn_cu_backward &b = a.base;
    if (item < r.Hq) return { b.q, b.dq, b.head_dq, item, r.Hq, r.K, 1, 0, 0 };
    item -= r.Hq;
    if (item < r.Hk)
        return { b.k, b.dk, b.head_dk, item, r.Hk, r.K, a.n_updates, f.k_update, a.dk_update };
    item -= r.Hk;
    return { r.v, b.dv, b.z, item, r.Hv, r.V, a.n_updates, f.v_update, a.dv_update };
}

/* Returns the part of a head in an element. For v it is w z, a part of dv. */
GDN_DEVICE float part_of(const struct gdn_cu_backward_channels &a, const struct channels_tensor &x,
                         const struct backward_chunk &c, int i, int head, int at)
{
    const float part = memory_row(x.parts, token_number(c, 0) * x.n + i, head)[at];
    if (&x.to != &a.base.dv) return part;
    return family_written(family_w(a.base.rule, c.in.seq, c.in.t0 + i / x.n, head, i % x.n, at),
                          part);
}

/* Stores row i of a chunk, elements from `from` on. */
GDN_DEVICE void store_channels_row(const struct gdn_cu_backward_channels &a,
                                   const struct channels_tensor &x, const struct backward_chunk &c,
                                   int i, int from)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int lane = from + threadIdx.x % 32;
    float sum[ROW_PARTS] = {}, given[ROW_PARTS];
    int reader = first_reader(r, x.head, x.n_heads);
    for (int h = 0; h < r.H / x.n_heads; h++, reader += reader_step(r, x.n_heads))
#pragma unroll
        for (int j = 0; j < ROW_PARTS; j++)
            if (lane + 32 * j < x.D) sum[j] += part_of(a, x, c, i, reader, lane + 32 * j);
    if (&x.to == &a.base.dq)
#pragma unroll
        for (int j = 0; j < ROW_PARTS; j++) sum[j] *= r.scale;
    if (&x.to != &a.base.dv && r.norm != GDN_NO_NORM) {
        load_row(given, update_at(x.given, c.in, i / x.n, x.head, i % x.n, x.step), x.given.dtype,
                 x.D);
        through_norm(sum, given, r);
    }
    char *row = update_at(x.to, c.in, i / x.n, x.head, i % x.n, x.to_step);
#pragma unroll
    for (int j = 0; j < ROW_PARTS; j++) {
        const int at = lane + 32 * j;
        if (at >= x.D) continue;
        if (a.base.adds) sum[j] += load_float(row, at, x.to.dtype);
        store_float(row, at, x.to.dtype, sum[j]);
    }
}

/* Stores dq, dk or dv. GDN_CU_ROW_BLOCKS blocks share a chunk and a head of q, k or v. */
GDN_DEVICE void channels_store(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int n_items = r.Hq + r.Hk + r.Hv;
    const struct channels_tensor x = find_channels_tensor(a, (int)(rows_item() % n_items));
    const struct backward_chunk c = chunk_in(a, rows_item() / n_items);
    if (!x.to.data) return;
    for (int i = warp_row(); i < c.in.n * x.n; i += ROW_STEP)
        for (int from = 0; from < x.D; from += ROW_WIDE) store_channels_row(a, x, c, i, from);
}

/* ---- Gates --------------------------------------------------------------------------------- */

GDN_DEVICE void put(char *to, float x, bool adds) { *(float *)to = adds ? *(float *)to + x : x; }

/* Returns the gradient of a gate of the call from dg of log a. A dg of 0 stays 0, because the gate
 * may be infinite. */
GDN_DEVICE struct gate_gradient through_channel(const struct gdn_cu_rule &r,
                                                const struct stage_chunk &c, int t, int head, int x,
                                                float dg)
{
    if (!r.g.data || r.gate == GDN_GATE_LOG || dg == 0) return { dg, 0, 0 };
    const float given =
        load_float(row_at(r.g, c.seq, c.t0 + t, head) + x * r.family.g_channel, 0, r.g.dtype);
    if (r.gate == GDN_GATE_LINEAR) return { dg / given, 0, 0 };
    return through_raw(r, head, load_bias(r, head, x), given, dg);
}

/* Stores da of channel x, and adds to the thread's sums. */
GDN_DEVICE void store_gate(const struct gdn_cu_backward_channels &a, const struct backward_chunk &c,
                           int t, int head, int x, float dg, double (&sums)[2])
{
    const struct gate_gradient d = through_channel(a.base.rule, c.in, t, head, x, dg);
    if (a.base.dg.data)
        put(row_at(a.base.dg, c.in.seq, c.in.t0 + t, head) + x * a.dg_channel, d.g, a.base.adds);
    sums[0] += d.A_log;
    sums[1] += d.dt_bias;
}

/* Adds a chunk's sums to those that the same place had in earlier windows: of A_log, then of
 * dt_bias of each channel. */
GDN_DEVICE void keep_sum(const struct gdn_cu_backward_channels &a, int64_t place, int head,
                         int64_t channels, int64_t i, double sum)
{
    if (!a.base.sums) return;
    double *to = a.base.sums + (place * a.base.rule.H + head) * (1 + channels) + i;
    *to = a.base.window == a.base.n_windows - 1 ? sum : *to + sum;
}

enum { AHEAD = 8 }; /* tokens that are loaded at a time */

/* Stores gradients of gates per channel. A thread has a channel. */
GDN_DEVICE void store_channel_gates(const struct gdn_cu_backward_channels &a,
                                    const struct backward_chunk &c, int64_t place, int head)
{
    __shared__ double by_A[THREADS];
    const int x = threadIdx.x, K = a.base.rule.K;
    double sums[2] = {};
    for (int first = 0; first < c.in.n && x < K; first += AHEAD) {
        float dg[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i < c.in.n) dg[i] = memory_row(a.a, token_number(c, first + i), head)[x];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i < c.in.n) store_gate(a, c, first + i, head, x, dg[i], sums);
    }
    by_A[x] = sums[0];
    __syncthreads();
    if (x < K) keep_sum(a, place, head, K, 1 + x, sums[1]);
    if (x) return;
    double sum = 0;
    for (int i = 0; i < K; i++) sum += by_A[i];
    keep_sum(a, place, head, K, 0, sum);
}

/* Stores gradients of gates that all channels share. A warp has a token. */
GDN_DEVICE void store_head_gates(const struct gdn_cu_backward_channels &a,
                                 const struct backward_chunk &c, int64_t place, int head)
{
    __shared__ double parts[CHUNK][2];
    const int lane = threadIdx.x % 32;
    for (int t = threadIdx.x / 32; t < c.in.n; t += ROW_WARPS) {
        const float *dg = memory_row(a.a, token_number(c, t), head);
        double sum = 0, sums[2] = {};
        for (int x = lane; x < a.base.rule.K; x += 32) sum += (double)dg[x];
        sum = sum_warp(sum);
        if (lane) continue;
        store_gate(a, c, t, head, 0, (float)sum, sums);
        parts[t][0] = sums[0], parts[t][1] = sums[1];
    }
    __syncthreads();
    if (threadIdx.x >= 2) return;
    double sum = 0;
    for (int t = 0; t < c.in.n; t++) sum += parts[t][threadIdx.x];
    keep_sum(a, place, head, 1, threadIdx.x, sum);
}

/* Stores gradients of gates. A block has a chunk and a state head. */
GDN_DEVICE void channels_given(const struct gdn_cu_backward_channels &a)
{
    const int H = a.base.rule.H, head = (int)(blockIdx.x % H);
    const int64_t place = blockIdx.x / H;
    const struct backward_chunk c = chunk_in(a, place);
    if (a.base.rule.family.g_rows)
        store_channel_gates(a, c, place, head);
    else
        store_head_gates(a, c, place, head);
}

/* ---- Beta and the write gate ----------------------------------------------------------------- */

/* Returns the slope of `most` times a sigmoid, at a number of the call. */
GDN_DEVICE float squash_slope(const struct gdn_cu_rule &r, float given, float most)
{
    return r.beta_kind == GDN_NO_SIGMOID ? 1 : most * sigmoid(given) * sigmoid(-given);
}
GDN_DEVICE float most_of_beta(const struct gdn_cu_rule &r)
{
    return r.beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
}

/* Stores dbeta of one number of an update. */
GDN_DEVICE void store_beta(const struct gdn_cu_backward_channels &a, const struct backward_chunk &c,
                           int t, int head, int j, int x, float db)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const char *given =
        update_at(r.beta, c.in, t, head, j, r.family.beta_update) + x * r.family.beta_channel;
    const float b = load_float(given, 0, r.beta.dtype);
    put(update_at(a.base.dbeta, c.in, t, head, j, a.dbeta_update) + x * a.dbeta_channel,
        db * squash_slope(r, b, most_of_beta(r)), a.base.adds);
}

/* Returns dw of a column: z v. */
GDN_DEVICE float gradient_of_w(const struct gdn_cu_backward_channels &a,
                               const struct backward_chunk &c, int t, int head, int j, int v)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const char *row = update_at(r.v, c.in, t, source_head(r, head, r.Hv), j, r.family.v_update);
    return memory_row(a.base.z, update_number(a, c, t) + j, head)[v] *
           load_float(row, v, r.v.dtype);
}

GDN_DEVICE void store_betas(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int t, int head, int j)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int lane = threadIdx.x % 32;
    const float *db = memory_row(a.e, update_number(a, c, t) + j, head);
    double sum = 0;
    if (!a.base.dbeta.data || !r.beta.data) return;
    for (int x = lane; x < r.K; x += 32)
        if (r.family.beta_rows)
            store_beta(a, c, t, head, j, x, db[x]);
        else
            sum += (double)db[x];
    if (r.family.beta_rows) return;
    for (int v = lane; v < r.V && !r.family.write.data; v += 32)
        sum += (double)gradient_of_w(a, c, t, head, j, v);
    sum = sum_warp(sum);
    if (lane == 0) store_beta(a, c, t, head, j, 0, (float)sum);
}

GDN_DEVICE void store_writes(const struct gdn_cu_backward_channels &a,
                             const struct backward_chunk &c, int t, int head, int j)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const struct gdn_rows &write = r.family.write;
    if (!a.dwrite.data) return;
    const char *given = update_at(write, c.in, t, head, j, r.family.write_update);
    char *to = update_at(a.dwrite, c.in, t, head, j, a.dwrite_update);
    for (int v = threadIdx.x % 32; v < r.V; v += 32) {
        const float slope = squash_slope(r, load_float(given, v, write.dtype), 1);
        put(to + 4 * v, gradient_of_w(a, c, t, head, j, v) * slope, a.base.adds);
    }
}

/* Stores dbeta and dwrite. GDN_CU_ROW_BLOCKS blocks share a chunk and a state head. */
GDN_DEVICE void channels_betas(const struct gdn_cu_backward_channels &a)
{
    const int H = a.base.rule.H, head = (int)(rows_item() % H), n = a.n_updates;
    const struct backward_chunk c = chunk_in(a, rows_item() / H);
    for (int i = warp_row(); i < c.in.n * n; i += ROW_STEP) {
        store_betas(a, c, i / n, head, i % n);
        store_writes(a, c, i / n, head, i % n);
    }
}

/* ---- Rest and sums --------------------------------------------------------------------------- */

/* Sets n numbers of each head to zero, `channel` bytes apart. */
GDN_DEVICE void zero_numbers(const struct gdn_rows &rows, const struct gdn_cu_seq &token, int H,
                             int n, int64_t channel, int64_t step)
{
    if (!rows.data) return;
    for (int i = threadIdx.x % 32; i < H * n; i += 32)
        put(row_at(rows, token, 0, i / n) + step + i % n * channel, 0, false);
}

/* Sets update j to zero in every gradient that has updates. */
GDN_DEVICE void zero_update(const struct gdn_cu_backward_channels &a,
                            const struct gdn_cu_seq &token, int j)
{
    const struct gdn_cu_rule &r = a.base.rule;
    struct gdn_rows dk = a.base.dk, dv = a.base.dv, dwrite = a.dwrite;
    if (dk.data) dk.data += j * a.dk_update;
    if (dv.data) dv.data += j * a.dv_update;
    if (dwrite.data) dwrite.data += j * a.dwrite_update;
    zero_row(dk, token, r.Hk, r.K), zero_row(dv, token, r.Hv, r.V);
    zero_row(dwrite, token, r.H, r.V);
    zero_numbers(a.base.dbeta, token, r.H, r.family.beta_rows ? r.K : 1, a.dbeta_channel,
                 j * a.dbeta_update);
}

GDN_DEVICE void channels_rest(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const struct gdn_cu_seq token = masked_token(a.base);
    if (token.row < 0) return;
    zero_row(a.base.dq, token, r.Hq, r.K);
    zero_numbers(a.base.dg, token, r.H, r.family.g_rows ? r.K : 1, a.dg_channel, 0);
    for (int j = 0; j < a.n_updates; j++) zero_update(a, token, j);
}

/* Computes dA_log or ddt_bias: each thread adds some chunks, then one thread adds these sums. */
GDN_DEVICE void channels_sums(const struct gdn_cu_backward_channels &a)
{
    __shared__ double parts[THREADS];
    const int64_t size = 1 + (a.base.rule.family.g_rows ? a.base.rule.K : 1);
    const int64_t head = blockIdx.x / size, which = blockIdx.x % size;
    const struct gdn_cu_array &to = which ? a.base.ddt_bias : a.base.dA_log;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.base.n_chunks; i += THREADS)
        sum += a.base.sums[(i * a.base.rule.H + head) * size + which];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x || !to.data) return;
    for (int i = 1; i < THREADS; i++) sum += parts[i];
    float *at = (float *)to.data + head * to.stride[0] + (which ? which - 1 : 0) * to.stride[1];
    *at = (float)(a.base.adds ? sum + (double)*at : sum);
}

#endif
