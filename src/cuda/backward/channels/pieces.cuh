/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of a piece, by a block for a state head and 64 channels, once S before it, J after
 * it, u and z are there. Then each channel, a row of S and of J, goes by itself:
 *
 *     forward     S <- a S;   S <- S + k u^T              for each update; all S are kept
 *     backward    dq = S dout,   J <- J + q dout^T        after the updates of a token
 *                 dk = J u - b (S z),   db = -k (S z)     S before the update
 *                 J <- J - e z^T;   dg = J . S,   J <- a J
 *
 * A warp has two channels at a time and goes through columns 64 at a time, a lane two of them. So a
 * lane keeps S of 16 updates in registers, and sums over columns are those of a warp. What a gate
 * forgets is zeroed, not multiplied by 0 (G7).
 */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_PIECES_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_PIECES_CUH

#include "cuda/backward/channels/channels.cuh"
#include "cuda/device/warp_sums.cuh"

enum { PIECE = GDN_CU_PIECE, WIDE = 64 }; /* channels of a block; columns at a time */

/* The sums of an update and a channel. */
enum { BY_DOUT, BY_U, BY_Z, BY_S, N_SUMS };

/* The rows of a piece. Rows of q belong to the last update of a token, rows of a to its first
 * one. */
struct pieces_shared {
    float u[PIECE][WIDE], z[PIECE][WIDE], dout[PIECE][WIDE];
    float k[PIECE][WIDE], q[PIECE][WIDE], a[PIECE][WIDE], b[PIECE][WIDE];
    float sums[N_SUMS][PIECE][WIDE];
    int flags[PIECE];
};

/* The work of a block. */
struct pieces_item {
    struct backward_chunk c;
    int64_t number; /* of the piece */
    int head, x0;   /* channels from x0 on */
    int t0, n;      /* tokens of the chunk: n from t0 on */
    int rows;       /* updates of the piece */
};
GDN_DEVICE struct pieces_item find_piece(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int slices = (r.K + WIDE - 1) / WIDE, pieces = GDN_CU_BACKWARD_CHUNK / a.tokens;
    struct pieces_item p;
    p.x0 = (int)(blockIdx.x % slices) * WIDE;
    p.head = (int)(blockIdx.x / slices % r.H);
    p.number = blockIdx.x / slices / r.H;
    p.c = chunk_in(a, p.number / pieces);
    p.t0 = (int)(p.number % pieces) * a.tokens;
    p.n = (int)clamp64(p.c.in.n - p.t0, 0, a.tokens);
    p.rows = p.n * a.n_updates;
    return p;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Loads channels of rows, and zeros beyond K. */
GDN_DEVICE void load_channels(struct pieces_shared &sh, const struct gdn_cu_backward_channels &a,
                              const struct pieces_item &p)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int hq = source_head(r, p.head, r.Hq), hk = source_head(r, p.head, r.Hk);
    for (int i = threadIdx.x; i < p.rows * WIDE; i += THREADS) {
        const int row = i / WIDE, x = p.x0 + i % WIDE, t = row / a.n_updates, j = row % a.n_updates;
        const int64_t token = token_number(p.c, p.t0 + t), update = token * a.n_updates + j;
        const bool is = x < r.K;
        sh.k[row][i % WIDE] = is ? memory_row(r.k, update, hk)[x] : 0;
        sh.q[row][i % WIDE] = is ? memory_row(r.q, token, hq)[x] : 0;
        sh.a[row][i % WIDE] = is ? memory_row(a.a, token, p.head)[x] : 0;
        sh.b[row][i % WIDE] = is ? family_b(r, p.c.in.seq, p.c.in.t0 + p.t0 + t, p.head, j, x) : 0;
        if (i % WIDE == 0) sh.flags[row] = a.flags[update * r.H + p.head];
    }
}

/* Loads columns [v0, v0 + 64) of rows, and zeros beyond V. */
GDN_DEVICE void load_columns(struct pieces_shared &sh, const struct gdn_cu_backward_channels &a,
                             const struct pieces_item &p, int v0)
{
    const struct gdn_rows &dout = a.base.dout;
    for (int i = threadIdx.x; i < p.rows * WIDE; i += THREADS) {
        const int row = i / WIDE, v = v0 + i % WIDE, t = row / a.n_updates;
        const int64_t update = update_number(a, p.c, p.t0) + row;
        const bool is = v < a.base.rule.V;
        sh.u[row][i % WIDE] = is ? memory_row(a.base.u, update, p.head)[v] : 0;
        sh.z[row][i % WIDE] = is ? memory_row(a.base.z, update, p.head)[v] : 0;
        sh.dout[row][i % WIDE] =
            is ? load_float(row_at(dout, p.c.in.seq, p.c.in.t0 + p.t0 + t, p.head), v, dout.dtype)
               : 0;
    }
}

/* ---- A pair of channels -------------------------------------------------------------------- */

/* Elements of a state: two channels of a lane's two columns. */
struct pair {
    float x[2][2]; /* [channel][column] */
};

GDN_DEVICE struct pair load_pair(const struct gdn_cu_backward_channels &a,
                                 const struct gdn_pool_view &view, const struct pieces_item &p,
                                 int x, int v)
{
    struct pair S = {};
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (v + c >= a.base.rule.V) continue;
        const float2 two =
            *(const float2 *)(state_at(a, view, p.number, p.head, x / 4, v + c) + x % 4);
        S.x[0][c] = two.x, S.x[1][c] = two.y;
    }
    return S;
}

/* Compute S <- S + x y^T and S <- diag(a) S, and return the sums of S y for both channels. */
GDN_DEVICE void add(struct pair &S, float2 x, float2 y)
{
    S.x[0][0] = fmaf(x.x, y.x, S.x[0][0]), S.x[0][1] = fmaf(x.x, y.y, S.x[0][1]);
    S.x[1][0] = fmaf(x.y, y.x, S.x[1][0]), S.x[1][1] = fmaf(x.y, y.y, S.x[1][1]);
}
GDN_DEVICE void decay(struct pair &S, float2 a)
{
#pragma unroll
    for (int c = 0; c < 2; c++) {
        S.x[0][c] = a.x == 0 ? 0 : a.x * S.x[0][c];
        S.x[1][c] = a.y == 0 ? 0 : a.y * S.x[1][c];
    }
}
GDN_DEVICE void multiply(float *sum, const struct pair &S, float2 y)
{
    sum[0] = fmaf(S.x[0][0], y.x, S.x[0][1] * y.y);
    sum[1] = fmaf(S.x[1][0], y.x, S.x[1][1] * y.y);
}

GDN_DEVICE float2 two_of(const float (&rows)[PIECE][WIDE], int row, int x)
{
    return *(const float2 *)&rows[row][x];
}

/* Adds the sums of all lanes to those of earlier columns. The first columns store theirs. */
GDN_DEVICE void keep_pair(struct pieces_shared &sh, float (&sums)[2 * N_SUMS], int row, int x,
                          bool first)
{
    halve<4>(sums, 16), halve<2>(sums, 8), halve<1>(sums, 4);
    sums[0] += __shfl_xor_sync(0xffffffff, sums[0], 2);
    sums[0] += __shfl_xor_sync(0xffffffff, sums[0], 1);
    const int lane = threadIdx.x % 32;
    float &to = sh.sums[lane / 8][row][x + lane / 4 % 2];
    if (lane % 4 == 0) to = first ? sums[0] : to + sums[0];
}

/* Computes a piece. n: the updates of a token. writes: a bit for each update that writes. */
GDN_DEVICE void pass_pair(struct pieces_shared &sh, struct pair S, struct pair J, int rows, int n,
                          uint32_t writes, int x, bool first)
{
    struct pair before[PIECE];
    const int v = threadIdx.x % 32 * 2;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        if (i >= rows) break;
        if (n == 1 || i % n == 0) decay(S, two_of(sh.a, i, x));
        before[i] = S;
        if (writes >> i & 1) add(S, two_of(sh.k, i, x), two_of(sh.u, i, v));
    }
#pragma unroll
    for (int i = PIECE - 1; i >= 0; i--) {
        if (i >= rows) continue;
        float sums[2 * N_SUMS] = {};
        const float2 u = two_of(sh.u, i, v), z = two_of(sh.z, i, v);
        const float2 k = two_of(sh.k, i, x), b = two_of(sh.b, i, x);
        if (n == 1 || i % n == n - 1) {
            const float2 dout = two_of(sh.dout, i, v);
            struct pair after = before[i];
            if (writes >> i & 1) add(after, k, u);
            multiply(sums + 2 * BY_DOUT, after, dout);
            add(J, two_of(sh.q, i, x), dout);
        }
        multiply(sums + 2 * BY_U, J, u);
        multiply(sums + 2 * BY_Z, before[i], z);
        add(J, make_float2(-(b.x * k.x), -(b.y * k.y)), z);
        if (n == 1 || i % n == 0) {
#pragma unroll
            for (int c = 0; c < 2; c++)
                sums[2 * BY_S + c] =
                    fmaf(J.x[c][0], before[i].x[c][0], J.x[c][1] * before[i].x[c][1]);
            decay(J, two_of(sh.a, i, x));
        }
        keep_pair(sh, sums, i, x, first);
    }
}

/* Computes columns [v0, v0 + 64) of every channel of the block. */
GDN_DEVICE void pass_columns(struct pieces_shared &sh, const struct gdn_cu_backward_channels &a,
                             const struct pieces_item &p, int v0, int n)
{
    const int lane = threadIdx.x % 32, v = v0 + lane * 2;
    const uint32_t writes =
        __ballot_sync(0xffffffff, lane < p.rows && (sh.flags[lane % PIECE] & GDN_CU_WRITES) != 0);
    for (int x = threadIdx.x / 32 * 2; x < WIDE && p.x0 + x < a.base.rule.K; x += THREADS / 16) {
        const struct pair S = load_pair(a, a.base.S, p, p.x0 + x, v);
        const struct pair J = load_pair(a, a.base.J, p, p.x0 + x, v);
        pass_pair(sh, S, J, p.rows, n, writes, x, v0 == 0);
    }
}

/* ---- Store --------------------------------------------------------------------------------- */

/* Stores the results of the sums: dq without its scale, dk, db, and dg of log a. */
GDN_DEVICE void store_channels(const struct pieces_shared &sh,
                               const struct gdn_cu_backward_channels &a,
                               const struct pieces_item &p)
{
    const int n = a.n_updates;
    for (int i = threadIdx.x; i < p.rows * WIDE; i += THREADS) {
        const int row = i / WIDE, at = i % WIDE, x = p.x0 + at;
        const int64_t token = token_number(p.c, p.t0 + row / n);
        const int64_t update = token * n + row % n;
        const float by_z = sh.sums[BY_Z][row][at], b = sh.b[row][at];
        if (x >= a.base.rule.K) continue;
        memory_row(a.base.head_dk, update, p.head)[x] = sh.sums[BY_U][row][at] - b * by_z;
        memory_row(a.e, update, p.head)[x] = -sh.k[row][at] * by_z;
        if (row % n == n - 1)
            memory_row(a.base.head_dq, token, p.head)[x] = sh.sums[BY_DOUT][row][at];
        if (row % n == 0)
            memory_row(a.a, token, p.head)[x] = sh.a[row][at] == 0 ? 0 : sh.sums[BY_S][row][at];
    }
}

GDN_DEVICE void channels_pieces(const struct gdn_cu_backward_channels &a)
{
    __shared__ __align__(16) struct pieces_shared sh;
    const struct pieces_item p = find_piece(a);
    if (p.n == 0) return;
    load_channels(sh, a, p);
    for (int v0 = 0; v0 < a.base.rule.V; v0 += WIDE) {
        __syncthreads();
        load_columns(sh, a, p, v0);
        __syncthreads();
        if (a.n_updates == 1)
            pass_columns(sh, a, p, v0, 1);
        else
            pass_columns(sh, a, p, v0, a.n_updates);
    }
    __syncthreads();
    store_channels(sh, a, p);
}

#endif
