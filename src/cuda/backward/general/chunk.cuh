/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of a chunk and a head, by a block, once S, J, u and Z are there:
 *
 *     X, Y     from products over V
 *     dQ, dK   64 columns of K at a time: products with S and J over V, then with q and k by X, Y
 *     dbeta    Z . v + k . D and dg, of sums over rows
 *
 * with D = X K / beta - diag(from_start) Z S^T, which gives both dKr = beta D and what Z . R lacks
 * of Z . v. The letters are those of docs/design/math.md, section 13; X here is without beta.
 */
#ifndef GDN_CUDA_BACKWARD_CHUNK_CUH
#define GDN_CUDA_BACKWARD_CHUNK_CUH

#include "cuda/backward/gates.cuh"

enum { SLICE = 32, ROWS = 4 }; /* columns of V at a time; rows and columns of a thread */

typedef float slice_tile[CHUNK][SLICE + 1];
typedef float thread_tile[ROWS][ROWS];

struct gradients_shared {
    struct stage_gates gates;
    float dbeta[CHUNK]; /* at first Z . v */
    float X[CHUNK][CHUNK + 1], Y[CHUNK][CHUNK + 1];
    union {
        struct {
            slice_tile dout, z, u, S, J;
        } slices;
        struct {
            float q[CHUNK][DEPTH + 1], k[CHUNK][DEPTH + 1];
        } keys;
        struct {
            double sums[CHUNK][2], inner[THREADS / 32];
            float dG[CHUNK], ends[CHUNK];
        } rows;
    };
};
static_assert(sizeof(struct gradients_shared) <= GDN_CU_GRADIENTS_BYTES, "gradients_shared");

/* Return the first of a thread's rows and columns. The others are 16 apart. */
GDN_DEVICE int first_row(void) { return threadIdx.x / 16; }
GDN_DEVICE int first_column(void) { return threadIdx.x % 16; }

/* Returns true if row i is token j, or a later token that no gate parts from it. */
GDN_DEVICE bool looks_back(const struct stage_gates &g, int i, int j)
{
    return j <= i && j >= g.start[i];
}

/* Sums a thread's rows over the 16 lanes that share them. */
GDN_DEVICE void sum_rows(float (&x)[ROWS])
{
#pragma unroll
    for (int a = 0; a < ROWS; a++)
#pragma unroll
        for (int step = 8; step; step /= 2) x[a] += __shfl_xor_sync(0xffffffff, x[a], step);
}

/* Adds left right^T of one slice to sum. The slice has a sum of its own: short sums round less. */
GDN_DEVICE void multiply_slice(thread_tile &sum, const slice_tile &left, const slice_tile &right,
                               int depth)
{
    thread_tile part = {};
#pragma unroll 2
    for (int d = 0; d < depth; d++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < ROWS; j++)
                part[i][j] = fmaf(left[first_row() + 16 * i][d], right[first_column() + 16 * j][d],
                                  part[i][j]);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < ROWS; j++) sum[i][j] += part[i][j];
}

GDN_DEVICE void load_slices(struct gradients_shared &sh, const struct gdn_cu_backward &a,
                            const struct backward_chunk &c, int head, int v0)
{
    load_tile(sh.slices.dout, a.dout, c.in, head, v0, a.rule.V);
    load_tile(sh.slices.z, a.z, c.own, head, v0, a.rule.V);
    load_tile(sh.slices.u, a.u, c.own, head, v0, a.rule.V);
}

GDN_DEVICE int depth_of(int V, int v0) { return V - v0 < SLICE ? V - v0 : SLICE; }

/* ---- X and Y ------------------------------------------------------------------------------- */

/* Adds Z . v of a lane's column, for every eighth row from thread / 32 on. */
GDN_DEVICE void add_values(float (&sum)[8], const struct gradients_shared &sh,
                           const struct gdn_cu_rule &r, const struct stage_chunk &c, int head,
                           int v0)
{
    const int lane = threadIdx.x % 32, source = source_head(r, head, r.Hv);
#pragma unroll
    for (int m = 0; m < 8; m++) {
        const int t = threadIdx.x / 32 + 8 * m;
        if (t < c.n && v0 + lane < r.V)
            sum[m] = fmaf(sh.slices.z[t][lane],
                          load_float(row_at(r.v, c.seq, c.t0 + t, source), v0 + lane, r.v.dtype),
                          sum[m]);
    }
}

/* Computes X, Y and Z . v. */
GDN_DEVICE void make_products(struct gradients_shared &sh, const struct gdn_cu_backward &a,
                              const struct backward_chunk &c, int head)
{
    const struct stage_gates &g = sh.gates;
    thread_tile x = {}, y = {};
    float values[8] = {};
    for (int v0 = 0; v0 < a.rule.V; v0 += SLICE) {
        __syncthreads();
        load_slices(sh, a, c, head, v0);
        __syncthreads();
        add_values(values, sh, a.rule, c.in, head, v0);
        multiply_slice(y, sh.slices.dout, sh.slices.u, depth_of(a.rule.V, v0));
        multiply_slice(x, sh.slices.z, sh.slices.u, depth_of(a.rule.V, v0));
    }
#pragma unroll
    for (int m = 0; m < 8; m++) {
        const float sum = sum_warp(values[m]);
        if (threadIdx.x % 32 == 0) sh.dbeta[threadIdx.x / 32 + 8 * m] = sum;
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const int i = first_row() + 16 * n, j = first_column() + 16 * m;
            const bool looks = i < c.in.n && looks_back(g, i, j);
            const float decay = looks ? expf((float)(g.sum[i] - g.sum[j])) : 0;
            sh.Y[i][j] = looks ? decay * y[n][m] : 0;
            sh.X[i][j] = looks && j < i ? -decay * x[n][m] : 0;
        }
}

/* ---- dQ and dK ----------------------------------------------------------------------------- */

/* Gradients of 64 rows and 64 columns: of q, D, and dk of the keys that write. */
struct chunk_gradients {
    thread_tile dq, D, dw;
};

/* A thread's part of sums over rows of q and k, over all columns. */
struct row_sums {
    float dG[ROWS], kD[ROWS], ends[ROWS];
    double inner; /* <S, J> */
};

/* Loads rows [x0, x0 + 64) of S and J, columns [v0, v0 + 32), and adds their inner product. */
GDN_DEVICE void load_states(struct gradients_shared &sh, const struct gdn_cu_backward &a,
                            int64_t at, int x0, int v0, double &inner)
{
    const float *S = (const float *)a.S.data + at, *J = (const float *)a.J.data + at;
    float sum = 0;
    for (int i = threadIdx.x; i < CHUNK * SLICE; i += THREADS) {
        const int x = i / SLICE, v = i % SLICE;
        const bool is = x0 + x < a.rule.K && v0 + v < a.rule.V;
        const int64_t place = (int64_t)(x0 + x) * a.rule.V + v0 + v;
        sh.slices.S[x][v] = is ? S[place] : 0;
        sh.slices.J[x][v] = is ? J[place] : 0;
        sum = fmaf(sh.slices.S[x][v], sh.slices.J[x][v], sum);
    }
    inner += sum;
}

/* Adds the terms of the states. If a gate parts a row from a state, the row gets nothing of that
 * state, which may not be finite (G7). */
GDN_DEVICE void through_states(struct chunk_gradients &d, struct gradients_shared &sh,
                               const struct gdn_cu_backward &a, const struct backward_chunk &c,
                               int head, int x0, double &inner)
{
    const struct stage_gates &g = sh.gates;
    const int n = (int)c.in.n;
    for (int v0 = 0; v0 < a.rule.V; v0 += SLICE) {
        const int depth = depth_of(a.rule.V, v0);
        __syncthreads();
        load_slices(sh, a, c, head, v0);
        load_states(sh, a, pool_at(a.S, c.in.number, head), x0, v0, inner);
        __syncthreads();
        multiply_slice(d.dq, sh.slices.dout, sh.slices.S, depth);
        multiply_slice(d.D, sh.slices.z, sh.slices.S, depth);
        multiply_slice(d.dw, sh.slices.u, sh.slices.J, depth);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int t = first_row() + 16 * i;
            const bool in = t < n, start = in && sees(g, t), end = in && reaches(g, t, n);
            d.dq[i][j] = start ? g.from_start[t] * d.dq[i][j] : 0;
            d.D[i][j] = start ? -g.from_start[t] * d.D[i][j] : 0;
            d.dw[i][j] = end ? g.to_end[t] * d.dw[i][j] : 0;
        }
}

/* Adds the terms of the chunk's other tokens: Y K, X K, and Y^T Q + X^T diag(beta) K. */
GDN_DEVICE void through_tokens(struct chunk_gradients &d, const struct gradients_shared &sh, int n)
{
    const struct stage_gates &g = sh.gates;
    for (int t = 0; t < n; t++) {
        float q[ROWS], k[ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            q[j] = sh.keys.q[t][first_column() + 16 * j];
            k[j] = sh.keys.k[t][first_column() + 16 * j];
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = first_row() + 16 * i;
            if (row < n && looks_back(g, row, t)) {
                const float y = sh.Y[row][t], x = sh.X[row][t];
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    d.dq[i][j] = fmaf(y, k[j], d.dq[i][j]);
                    d.D[i][j] = fmaf(x, k[j], d.D[i][j]);
                }
            }
            if (looks_back(g, t, row)) {
                const float y = sh.Y[t][row], x = g.beta[t] * sh.X[t][row];
#pragma unroll
                for (int j = 0; j < ROWS; j++)
                    d.dw[i][j] = fmaf(x, k[j], fmaf(y, q[j], d.dw[i][j]));
            }
        }
    }
}

/* Adds a thread's part of the sums over its rows. */
GDN_DEVICE void add_ends(struct row_sums &sums, const struct chunk_gradients &d,
                         const struct gradients_shared &sh)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            sums.ends[i] = fmaf(sh.keys.k[first_row() + 16 * i][first_column() + 16 * j],
                                d.dw[i][j], sums.ends[i]);
}
GDN_DEVICE void add_sums(struct row_sums &sums, const struct chunk_gradients &d,
                         const struct gradients_shared &sh)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = first_row() + 16 * i;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const float q = sh.keys.q[row][first_column() + 16 * j];
            const float k = sh.keys.k[row][first_column() + 16 * j];
            sums.kD[i] = fmaf(k, d.D[i][j], sums.kD[i]);
            sums.dG[i] = fmaf(q, d.dq[i][j], sums.dG[i]);
            sums.dG[i] = fmaf(k, sh.gates.beta[row] * d.D[i][j] - d.dw[i][j], sums.dG[i]);
        }
    }
}

GDN_DEVICE void store_gradients(const struct chunk_gradients &d, const struct gradients_shared &sh,
                                const struct gdn_cu_backward &a, const struct backward_chunk &c,
                                int head, int x0)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int t = first_row() + 16 * i;
        if (t >= c.in.n) break;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int x = x0 + first_column() + 16 * j;
            if (x >= a.rule.K) break;
            row_in(a.head_dq, c, t, head)[x] = d.dq[i][j];
            row_in(a.head_dk, c, t, head)[x] = fmaf(sh.gates.beta[t], d.D[i][j], d.dw[i][j]);
        }
    }
}

/* ---- Gates --------------------------------------------------------------------------------- */

/* Writes the sums of this block's threads to shared memory. */
GDN_DEVICE void share_sums(struct gradients_shared &sh, struct row_sums &sums)
{
    sum_rows(sums.dG), sum_rows(sums.kD), sum_rows(sums.ends);
    sums.inner = sum_warp(sums.inner);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sh.rows.inner[threadIdx.x / 32] = sums.inner;
    if (first_column() == 0)
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int t = first_row() + 16 * i;
            sh.rows.dG[t] = sums.dG[i];
            sh.rows.ends[t] = sums.ends[i];
            sh.dbeta[t] += sums.kD[i];
        }
    __syncthreads();
}

/* Returns dg of token t: the sum of dG from t to the next gate that forgets. If there is none, the
 * sum ends with the chunk and contains the gradient that comes from later chunks. */
GDN_DEVICE float gradient_of_gate(const struct gradients_shared &sh, int t, int n)
{
    const struct stage_gates &g = sh.gates;
    double sum = 0;
    if (g.start[t] == t) return 0;
    if (g.start[t] == g.start[n - 1]) {
        for (int w = 0; w < THREADS / 32 && sees(g, n - 1); w++) sum += sh.rows.inner[w];
        sum *= sees(g, n - 1) ? g.decay : 0;
        for (int j = n - 1; j >= 0 && reaches(g, j, n); j--) sum += sh.rows.ends[j];
    }
    for (int j = n - 1; j >= t; j--)
        if (g.start[j] == g.start[t]) sum += sh.rows.dG[j];
    return (float)sum;
}

GDN_DEVICE void store_gates(struct gradients_shared &sh, const struct gdn_cu_backward &a,
                            const struct backward_chunk &c, int head)
{
    const int t = threadIdx.x, n = (int)c.in.n;
    if (t < n) {
        const struct gate_gradient d =
            through_gate(a.rule, c.in, t, head, gradient_of_gate(sh, t, n));
        store_gradient_of(a.dg, c.in, t, head, d.g, a.adds);
        store_gradient_of(a.dbeta, c.in, t, head, through_beta(a.rule, c.in, t, head, sh.dbeta[t]),
                          a.adds);
        sh.rows.sums[t][0] = d.A_log;
        sh.rows.sums[t][1] = d.dt_bias;
    }
    __syncthreads();
    if (t == 0) keep_sums(a, c.in.number, head, sh.rows.sums, n);
}

GDN_DEVICE void backward_chunk(const struct gdn_cu_backward &a)
{
    struct gradients_shared &sh = *(struct gradients_shared *)gdn_stage_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int head = (int)(blockIdx.x % r.H);
    const int64_t number = blockIdx.x / r.H;
    const struct backward_chunk c = find_backward_chunk(a, number);
    struct row_sums sums = {};
    if (c.in.n == 0) {
        if (threadIdx.x == 0) keep_sums(a, number, head, sh.rows.sums, 0);
        return;
    }
    load_gates(sh.gates, r, c.in, head);
    make_products(sh, a, c, head);
    for (int x0 = 0; x0 < r.K; x0 += DEPTH) {
        struct chunk_gradients d = {};
        through_states(d, sh, a, c, head, x0, sums.inner);
        __syncthreads();
        load_tile(sh.keys.q, r.q, c.own, source_head(r, head, r.Hq), x0, r.K);
        load_tile(sh.keys.k, r.k, c.own, source_head(r, head, r.Hk), x0, r.K);
        __syncthreads();
        add_ends(sums, d, sh);
        through_tokens(d, sh, (int)c.in.n);
        add_sums(sums, d, sh);
        store_gradients(d, sh, a, c, head, x0);
    }
    share_sums(sh, sums);
    store_gates(sh, a, c, head);
}

#endif
