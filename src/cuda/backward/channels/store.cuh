/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From rows in memory to the gradients:
 *
 *     store    dq, dk and dv: sums over the state heads that read a row, in their order, and the
 *              gradient of the norm; a warp for some rows
 *     given    dg, through what makes gates of what was given, and a chunk's sums for dA_log and
 *              ddt_bias
 *     betas    dbeta and dwrite, the same way; a warp for some rows
 *     rest     zeros for tokens that do not count, in every gradient; a warp for a token
 *     sums     dA_log and ddt_bias; a block for one of their numbers
 */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_STORE_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_STORE_CUH

#include "cuda/backward/channels/channels.cuh"
#include "cuda/device/quad.cuh"

/* ---- Rows in quads --------------------------------------------------------------------------- */

/* A lane has quads of a row: elements 4 lane, and 128 later. A warp has ROWS_AHEAD neighbouring
 * rows at a time, whose loads are in flight together. */
enum { ROWS_AHEAD = 4, QUADS_WIDE = 128 };

GDN_DEVICE int first_row(void) { return (int)threadIdx.x / 32 * ROWS_AHEAD; }
GDN_DEVICE int quad_at(int j) { return 4 * (threadIdx.x % 32) + QUADS_WIDE * j; }

/* Checks that rows of n elements are whole aligned quads. */
GDN_DEVICE bool are_quads(const struct gdn_rows &rows, int64_t step, int n)
{
    const uint64_t all = (uint64_t)(uintptr_t)rows.data | (uint64_t)rows.batch |
                         (uint64_t)rows.token | (uint64_t)rows.head | (uint64_t)step;
    return n % 4 == 0 && all % (4 * float_bytes(rows.dtype)) == 0;
}

/* Loads elements of a row from `from` on, with zeros behind its n elements. */
template <int parts>
GDN_DEVICE void load_quads(float (&x)[parts], const char *row, int dtype, int from, int n,
                           bool wide)
{
    uint32_t bits[parts / 4][4] = {};
    float to[parts / 4][4];
#pragma unroll
    for (int j = 0; j < parts / 4; j++) {
        const int at = from + quad_at(j);
        const char *const p = row + at * float_bytes(dtype);
        if (wide)
            load_chunk(bits[j], p, dtype, at < n);
        else
            load_part(bits[j], p, dtype, n - at);
    }
    expand_chunks(to, bits, dtype);
#pragma unroll
    for (int j = 0; j < parts; j++) x[j] = to[j / 4][j % 4];
}

/* Stores elements of a row from `from` on, or adds them to it. */
template <int parts>
GDN_DEVICE void store_quads(char *row, const float (&x)[parts], int dtype, int from, int n,
                            bool wide, bool adds)
{
    float old[parts];
    if (adds) load_quads(old, row, dtype, from, n, wide);
#pragma unroll
    for (int j = 0; j < parts / 4; j++) {
        const int at = from + quad_at(j);
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = adds ? x[4 * j + i] + old[4 * j + i] : x[4 * j + i];
        if (wide && at < n) store_chunk(row + at * float_bytes(dtype), y, dtype);
        if (wide) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at + i < n) store_float(row, at + i, dtype, y[i]);
    }
}

/* Multiplies elements of z, from `from` on, by w of an update. */
template <int parts>
GDN_DEVICE void times_w(const struct gdn_cu_backward_channels &a, const struct backward_chunk &c,
                        int i, int head, int from, float (&x)[parts])
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int t = i / a.n_updates, update = i % a.n_updates;
    if (!r.family.write.data) {
        const float w = family_w(r, c.in.seq, c.in.t0 + t, head, update, 0);
#pragma unroll
        for (int y = 0; y < parts; y++) x[y] = family_written(w, x[y]);
        return;
    }
#pragma unroll
    for (int y = 0; y < parts; y++) {
        const int v = from + quad_at(y / 4) + y % 4;
        if (v < r.V)
            x[y] = family_written(family_w(r, c.in.seq, c.in.t0 + t, head, update, v), x[y]);
    }
}

/* ---- Rows that heads share ------------------------------------------------------------------- */

/* A tensor (given), its gradient (to), and parts of that from several heads. */
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

/* Adds a head's rows in memory to the sums of rows from row i on: for v w z, a part of dv. */
template <int rows, int parts>
GDN_DEVICE void add_head(const struct gdn_cu_backward_channels &a, const struct channels_tensor &x,
                         const struct backward_chunk &c, int i, int head, int from,
                         float (&sum)[rows][parts])
{
    float part[rows][parts];
    const bool is_v = &x.to == &a.base.dv;
#pragma unroll
    for (int j = 0; j < rows; j++)
        if (i + j < c.in.n * x.n)
            load_quads(part[j],
                       (const char *)memory_row(x.parts, token_number(c, 0) * x.n + i + j, head),
                       GDN_F32, from, x.D, x.D % 4 == 0);
#pragma unroll
    for (int j = 0; j < rows; j++) {
        if (i + j >= c.in.n * x.n) break;
        if (is_v) times_w(a, c, i + j, head, from, part[j]);
#pragma unroll
        for (int y = 0; y < parts; y++) sum[j][y] += part[j][y];
    }
}

/* Stores rows of a chunk from row i on, elements from `from` on. */
template <int rows, int parts>
GDN_DEVICE void store_channels_rows(const struct gdn_cu_backward_channels &a,
                                    const struct channels_tensor &x, const struct backward_chunk &c,
                                    int i, int from)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const bool through = &x.to != &a.base.dv && r.norm != GDN_NO_NORM;
    const bool wide = are_quads(x.to, x.to_step, x.D);
    float sum[rows][parts] = {};
    int reader = first_reader(r, x.head, x.n_heads);
    for (int h = 0; h < r.H / x.n_heads; h++, reader += reader_step(r, x.n_heads))
        add_head(a, x, c, i, reader, from, sum);
#pragma unroll
    for (int j = 0; j < rows; j++, i++) {
        if (i >= c.in.n * x.n) break;
        if (&x.to == &a.base.dq)
#pragma unroll
            for (int y = 0; y < parts; y++) sum[j][y] *= r.scale;
        if (through) {
            float given[parts];
            load_quads(given, update_at(x.given, c.in, i / x.n, x.head, i % x.n, x.step),
                       x.given.dtype, 0, x.D, are_quads(x.given, x.step, x.D));
            through_norm(sum[j], given, r);
        }
        store_quads(update_at(x.to, c.in, i / x.n, x.head, i % x.n, x.to_step), sum[j], x.to.dtype,
                    from, x.D, wide, a.base.adds);
    }
}

/* Stores the rows of a warp: `rows` at a time, with `parts` elements of each in a lane. */
template <int rows, int parts>
GDN_DEVICE void store_all_rows(const struct gdn_cu_backward_channels &a,
                               const struct channels_tensor &x, const struct backward_chunk &c)
{
    for (int i = (int)threadIdx.x / 32 * rows; i < c.in.n * x.n; i += rows * ROW_WARPS)
        for (int from = 0; from < x.D; from += 32 * parts)
            store_channels_rows<rows, parts>(a, x, c, i, from);
}

/* Stores dq, dk or dv. A block has a chunk and a head of q, k or v. */
GDN_DEVICE void channels_store(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int n_items = r.Hq + r.Hk + r.Hv;
    const struct channels_tensor x = find_channels_tensor(a, (int)(blockIdx.x % n_items));
    if (!x.to.data) return;
    const struct backward_chunk c = chunk_in(a, blockIdx.x / n_items);
    if (x.D <= QUADS_WIDE)
        store_all_rows<ROWS_AHEAD, 4>(a, x, c);
    else
        store_all_rows<ROWS_AHEAD / 2, 8>(a, x, c);
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

/* Stores da of four channels of a token, and adds to the thread's sums. */
GDN_DEVICE void store_gates(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int t, int head, int from,
                            const float (&dg)[4], double (&sums)[4][2])
{
    const struct gdn_cu_rule &r = a.base.rule;
    const struct gdn_rows &to = a.base.dg;
    if (r.gate == GDN_GATE_LOG && a.dg_channel == 4) { /* dg as it is, in rows */
        if (to.data)
            store_quads(row_at(to, c.in.seq, c.in.t0 + t, head), dg, GDN_F32, from, r.K,
                        are_quads(to, 0, r.K), a.base.adds);
        return;
    }
    const int x = from + quad_at(0);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (x + i < r.K) store_gate(a, c, t, head, x + i, dg[i], sums[i]);
}

/* Adds a chunk's sum of A_log (i = 0) or of dt_bias (a channel each) to the sum of the same
 * place in earlier windows. adds: also to the sum that this window has there. */
GDN_DEVICE void keep_sum(const struct gdn_cu_backward_channels &a, int64_t place, int head,
                         int64_t channels, int64_t i, double sum, bool adds = false)
{
    if (!a.base.sums) return;
    double *to = a.base.sums + (place * a.base.rule.H + head) * (1 + channels) + i;
    *to = a.base.window == a.base.n_windows - 1 && !adds ? sum : *to + sum;
}

/* Stores gradients of gates per channel, of QUADS_WIDE channels from `from` on. A warp has some
 * tokens, and a lane four channels. */
GDN_DEVICE void store_channel_gates(const struct gdn_cu_backward_channels &a,
                                    const struct backward_chunk &c, int64_t place, int head,
                                    int from)
{
    __shared__ double by_bias[ROW_WARPS][QUADS_WIDE], by_A[ROW_WARPS][32];
    const int K = a.base.rule.K, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sums[4][2] = {};
    for (int first = first_row(); first < c.in.n; first += ROWS_AHEAD * ROW_WARPS) {
        float dg[ROWS_AHEAD][4];
#pragma unroll
        for (int i = 0; i < ROWS_AHEAD; i++)
            if (first + i < c.in.n)
                load_quads(dg[i], (const char *)memory_row(a.a, token_number(c, first + i), head),
                           GDN_F32, from, a.ld, true);
#pragma unroll
        for (int i = 0; i < ROWS_AHEAD; i++)
            if (first + i < c.in.n) store_gates(a, c, first + i, head, from, dg[i], sums);
    }
    if (!a.base.sums) return;
    __syncthreads(); /* the sums before have been read */
#pragma unroll
    for (int i = 0; i < 4; i++) by_bias[warp][4 * lane + i] = sums[i][1];
    by_A[warp][lane] = sums[0][0] + sums[1][0] + sums[2][0] + sums[3][0];
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < QUADS_WIDE)
        for (int i = 0; i < ROW_WARPS; i++) sum += by_bias[i][threadIdx.x];
    if (threadIdx.x < QUADS_WIDE && from + (int)threadIdx.x < K)
        keep_sum(a, place, head, K, 1 + from + threadIdx.x, sum);
    if (warp) return;
    sum = 0;
    for (int i = 0; i < ROW_WARPS; i++) sum += by_A[i][lane];
    sum = sum_warp(sum);
    if (lane == 0) keep_sum(a, place, head, K, 0, sum, from != 0);
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
    if (!a.base.rule.family.g_rows) return store_head_gates(a, c, place, head);
    for (int from = 0; from < a.base.rule.K; from += QUADS_WIDE)
        store_channel_gates(a, c, place, head, from);
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

/* Returns the address of v of an update. */
GDN_DEVICE const char *v_of(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int i, int head)
{
    const struct gdn_cu_rule &r = a.base.rule;
    return update_at(r.v, c.in, i / a.n_updates, source_head(r, head, r.Hv), i % a.n_updates,
                     r.family.v_update);
}

/* Adds numbers of ROWS_AHEAD updates from `from` on: db, or z v, the gradient of w. */
GDN_DEVICE void add_erased(const struct gdn_cu_backward_channels &a, const struct backward_chunk &c,
                           int i, int head, int from, double (&sum)[ROWS_AHEAD])
{
    const int K = a.base.rule.K, n = c.in.n * a.n_updates;
    float x[ROWS_AHEAD][4] = {};
#pragma unroll
    for (int j = 0; j < ROWS_AHEAD; j++)
        if (i + j < n)
            load_quads(x[j], (const char *)memory_row(a.e, update_number(a, c, 0) + i + j, head),
                       GDN_F32, from, K, K % 4 == 0);
#pragma unroll
    for (int j = 0; j < 4 * ROWS_AHEAD; j++) sum[j / 4] += (double)x[j / 4][j % 4];
}
GDN_DEVICE void add_written(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int i, int head, int from,
                            double (&sum)[ROWS_AHEAD])
{
    const struct gdn_cu_rule &r = a.base.rule;
    const bool wide = are_quads(r.v, r.family.v_update, r.V);
    const int n = c.in.n * a.n_updates;
    float z[ROWS_AHEAD][4] = {}, v[ROWS_AHEAD][4] = {};
#pragma unroll
    for (int j = 0; j < ROWS_AHEAD; j++) {
        if (i + j >= n) break;
        load_quads(z[j], (const char *)memory_row(a.base.z, update_number(a, c, 0) + i + j, head),
                   GDN_F32, from, r.V, r.V % 4 == 0);
        load_quads(v[j], v_of(a, c, i + j, head), r.v.dtype, from, r.V, wide);
    }
#pragma unroll
    for (int j = 0; j < 4 * ROWS_AHEAD; j++)
        sum[j / 4] += (double)(z[j / 4][j % 4] * v[j / 4][j % 4]);
}

/* Stores dbeta of ROWS_AHEAD updates, one number of each. */
GDN_DEVICE void store_head_betas(const struct gdn_cu_backward_channels &a,
                                 const struct backward_chunk &c, int i, int head)
{
    const struct gdn_cu_rule &r = a.base.rule;
    double sum[ROWS_AHEAD] = {};
    for (int from = 0; from < r.K; from += QUADS_WIDE) add_erased(a, c, i, head, from, sum);
    for (int from = 0; from < r.V && !r.family.write.data; from += QUADS_WIDE)
        add_written(a, c, i, head, from, sum);
#pragma unroll
    for (int j = 0; j < ROWS_AHEAD; j++, i++) {
        if (i >= c.in.n * a.n_updates) break;
        sum[j] = sum_warp(sum[j]);
        if (threadIdx.x % 32 == 0)
            store_beta(a, c, i / a.n_updates, head, i % a.n_updates, 0, (float)sum[j]);
    }
}

/* Stores dbeta of an update, a number for each channel. */
GDN_DEVICE void store_channel_betas(const struct gdn_cu_backward_channels &a,
                                    const struct backward_chunk &c, int i, int head)
{
    const float *db = memory_row(a.e, update_number(a, c, 0) + i, head);
    for (int x = threadIdx.x % 32; x < a.base.rule.K; x += 32)
        store_beta(a, c, i / a.n_updates, head, i % a.n_updates, x, db[x]);
}

/* Stores dwrite of an update: z v, through the sigmoid. */
GDN_DEVICE void store_writes(const struct gdn_cu_backward_channels &a,
                             const struct backward_chunk &c, int i, int head)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const struct gdn_rows &write = r.family.write;
    const int t = i / a.n_updates, j = i % a.n_updates;
    const char *given = update_at(write, c.in, t, head, j, r.family.write_update);
    char *to = update_at(a.dwrite, c.in, t, head, j, a.dwrite_update);
    const float *z = memory_row(a.base.z, update_number(a, c, 0) + i, head);
    const char *v = v_of(a, c, i, head);
    for (int x = threadIdx.x % 32; x < r.V; x += 32) {
        const float slope = squash_slope(r, load_float(given, x, write.dtype), 1);
        put(to + 4 * x, z[x] * load_float(v, x, r.v.dtype) * slope, a.base.adds);
    }
}

/* Stores dbeta and dwrite. A block has a chunk and a state head. */
GDN_DEVICE void channels_betas(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int head = (int)(blockIdx.x % r.H);
    const struct backward_chunk c = chunk_in(a, blockIdx.x / r.H);
    const int n = c.in.n * a.n_updates;
    const bool wants = a.base.dbeta.data && r.beta.data;
    for (int i = first_row(); i < n; i += ROWS_AHEAD * ROW_WARPS) {
        if (wants && !r.family.beta_rows) store_head_betas(a, c, i, head);
        for (int j = i; j < i + ROWS_AHEAD && j < n; j++) {
            if (wants && r.family.beta_rows) store_channel_betas(a, c, j, head);
            if (a.dwrite.data) store_writes(a, c, j, head);
        }
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

/* Computes dA_log or ddt_bias: each thread adds some chunks, then one thread adds the threads'
 * sums. */
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
