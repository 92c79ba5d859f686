/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the stages of the chunked form: chunks of a batch with their gates, products with rows
 * of a chunk, the solution of (I + A) x = r, strips of a state. All are for blocks of 256 threads.
 * Rows of q, k and w pass through a tile of 64 x 64. What a gate forgets is left out by index
 * instead of multiplied by 0 (G7). */
#ifndef GDN_CUDA_STAGES_CUH
#define GDN_CUDA_STAGES_CUH

#include "cuda/device/rule.cuh"
#include "cuda/driver/shared_bytes.h"

enum {
    CHUNK = 64, /* tokens of the longest chunk; rows beyond a shorter one are zero */
    STEP = 16,  /* tokens that are solved for together */
    DEPTH = 64, /* columns of a tile */
    STRIP = 32, /* columns of a state */
    THREADS = 256,
    MOST_K = 256,
    PAD = 4 /* floats that keep rows aligned to 16 bytes */
};

struct stage_gates {
    double sum[CHUNK]; /* of g, since the last gate that forgets */
    float g[CHUNK], beta[CHUNK];
    float from_start[CHUNK], to_end[CHUNK], decay; /* exp of sums; see sees(), reaches() */
    int start[CHUNK]; /* for each token: the last token, up to itself, whose gate forgets; -1:
                         none */
    int n_seeing;     /* tokens before the first gate that forgets */
};

struct chunk_shared {
    struct stage_gates gates;
    alignas(16) float A[CHUNK][CHUNK + PAD]; /* [j][i]: the part of row j in row i */
    float tile[CHUNK][DEPTH + 1];
};
struct columns_shared {
    struct chunk_shared chunk;
    alignas(16) float x[CHUNK - STEP][THREADS]; /* later rows do not need the last rows */
};
struct strip_shared {
    struct chunk_shared chunk;
    alignas(16) float x[CHUNK][STRIP + PAD]; /* d or u */
    alignas(16) float S[MOST_K][STRIP + PAD];
};

static_assert(sizeof(struct columns_shared) <= GDN_CU_COLUMNS_BYTES, "columns_shared");
static_assert(sizeof(struct strip_shared) <= GDN_CU_STRIP_BYTES, "strip_shared");

extern __shared__ __align__(16) char gdn_stage_shared[];

/* ---- Chunks -------------------------------------------------------------------------------- */

struct stage_chunk {
    struct gdn_cu_seq seq;
    int64_t number, t0;
    int64_t n, n_all; /* n: valid tokens; n_all: tokens of the sequence, of which the output of the
                         others is zero */
};

GDN_DEVICE int64_t chunks_of(int64_t tokens, int64_t C) { return tokens / C + (tokens % C != 0); }

GDN_DEVICE struct gdn_cu_seq range_of(const struct gdn_cu_batch &b, int64_t row)
{
    struct gdn_cu_seq s = {};
    s.row = row;
    read_range(b, s);
    return s;
}

GDN_DEVICE void cut_chunk(struct stage_chunk &c, int64_t i, int64_t C)
{
    c.t0 = i * C;
    c.n = clamp64(c.seq.n_valid - c.t0, 0, C);
    c.n_all = clamp64(c.seq.n_tokens - c.t0, 0, C);
}

/* Counts the chunks of sequences `first` to first + 31, one in each lane. Returns those of the
 * lane's sequence and of earlier lanes. */
GDN_DEVICE long long count_chunks(const struct gdn_cu_batch &b, int64_t first, int64_t end,
                                  int64_t C)
{
    const int64_t row = first + threadIdx.x % 32;
    long long n = row < end ? chunks_of(range_of(b, row).n_tokens, C) : 0;
    for (int step = 1; step < 32; step *= 2) {
        const long long before = __shfl_up_sync(0xffffffff, n, step);
        if (threadIdx.x % 32 >= step) n += before;
    }
    return n;
}

/* Returns the number of the first chunk of a sequence. All threads of a warp call it. */
GDN_DEVICE int64_t first_chunk(const struct gdn_cu_batch &b, int64_t row, int64_t C)
{
    int64_t first = 0;
    if (!b.cu_seqlens.data) return row * chunks_of(b.T, C);
    for (int64_t i = 0; i < row; i += 32)
        first += __shfl_sync(0xffffffff, count_chunks(b, i, row, C), 31);
    return first;
}

/* Returns a first number without a sum over sequences: chunks are numbered by the start of their
 * sequence. So a sequence may have one number too many. row = B: the number after the last one. */
GDN_DEVICE int64_t first_number(const struct gdn_cu_batch &b, int64_t row, int64_t C)
{
    if (!b.cu_seqlens.data) return row * chunks_of(b.T, C);
    const int64_t start = clamp64(load_index(b.cu_seqlens, 0), 0, b.N);
    const int64_t first = clamp64(load_index(b.cu_seqlens, row), start, b.N);
    return (first - start) / C + row;
}

/* Return the first state head that reads a head of a tensor with n_heads, and the step to the next
 * such head. H / n_heads state heads read each head. */
GDN_DEVICE int first_reader(const struct gdn_cu_rule &r, int head, int n_heads)
{
    return r.head_map == GDN_HEADS_GROUPED ? head * (r.H / n_heads) : head;
}
GDN_DEVICE int reader_step(const struct gdn_cu_rule &r, int n_heads)
{
    return r.head_map == GDN_HEADS_GROUPED ? 1 : n_heads;
}

/* Returns chunk `number` of the batch. Chunks after the last have the tokens of no sequence, C
 * each. All threads of a warp call it. */
GDN_DEVICE struct stage_chunk find_chunk(const struct gdn_cu_batch &b, int64_t number, int64_t C)
{
    struct stage_chunk c = {};
    int64_t first = 0; /* the number of the first chunk of sequence i */
    c.number = number;
    if (!b.cu_seqlens.data) {
        const int64_t each = chunks_of(b.T, C);
        c.seq = range_of(b, number / each);
        cut_chunk(c, number % each, C);
        return c;
    }
    for (int64_t i = 0; i < b.B; i += 32) {
        const long long n = count_chunks(b, i, b.B, C);
        const int before = __popc(__ballot_sync(0xffffffff, first + n <= number)); /* sequences */
        const long long own = __shfl_sync(0xffffffff, n, before > 0 ? before - 1 : 0);
        if (before < 32) {
            c.seq = range_of(b, i + before);
            cut_chunk(c, number - first - (before ? own : 0), C);
            return c;
        }
        first += own;
    }
    c.seq.first = clamp64(load_index(b.cu_seqlens, b.B), 0, b.N);
    c.seq.n_tokens = b.N - c.seq.first;
    cut_chunk(c, number - first, C);
    return c;
}

/* sees() returns true if the state at the start of the chunk reaches row i. reaches() returns true
 * if the write of row i reaches the end of the chunk. */
GDN_DEVICE bool sees(const struct stage_gates &g, int i) { return g.start[i] < 0; }
GDN_DEVICE bool reaches(const struct stage_gates &g, int i, int n) { return i >= g.start[n - 1]; }

/* Loads gates of n > 0 tokens; later ones have gate 0 and beta 0. Sums are float64. The whole block
 * calls it. */
GDN_DEVICE void load_gates(struct stage_gates &g, const struct gdn_cu_rule &r,
                           const struct stage_chunk &c, int head)
{
    const int i = threadIdx.x, n = (int)c.n;
    __syncthreads();
    if (i < CHUNK) {
        g.g[i] = i < n ? load_gate(r, c.seq, c.t0 + i, head, false) : 0;
        g.beta[i] = i < n ? load_beta(r, c.seq, c.t0 + i, head) : 0;
    }
    __syncthreads();
    if (i < CHUNK) {
        double sum = 0;
        int start = -1, seeing = 0;
        for (int j = 0; j <= i; j++) {
            const float gate = g.g[j];
            start = gate_forgets(gate) ? j : start;
            sum = gate_forgets(gate) ? 0 : sum + gate;
            seeing += start < 0;
        }
        g.sum[i] = sum;
        g.start[i] = start;
        if (i == n - 1) g.n_seeing = seeing;
    }
    __syncthreads();
    if (i < n) {
        g.from_start[i] = sees(g, i) ? expf((float)g.sum[i]) : 0;
        g.to_end[i] = reaches(g, i, n) ? expf((float)(g.sum[n - 1] - g.sum[i])) : 0;
        if (i == n - 1) g.decay = g.from_start[i];
    }
    __syncthreads();
}

/* ---- Products ------------------------------------------------------------------------------ */

/* Loads columns of the rows of a chunk, from x0 on: as many as a row of the tile without its
 * padding. Zeros are beyond n rows and beyond K. */
template <int LD>
GDN_DEVICE void load_tile(float (*tile)[LD], const struct gdn_rows &rows,
                          const struct stage_chunk &c, int head, int x0, int K)
{
    enum { WIDE = LD - 1 };
#pragma unroll 2
    for (int i = threadIdx.x; i < CHUNK * WIDE; i += THREADS) {
        const int t = i / WIDE, x = x0 + i % WIDE;
        tile[t][i % WIDE] =
            t < c.n && x < K ? load_float(row_at(rows, c.seq, c.t0 + t, head), x, rows.dtype) : 0;
    }
}

/* Computes A[j][i] = exp(sum of g after j up to i) left_i . k_j if row i depends on row j, else 0.
 * With left = q a row depends on itself. With left = k it does not, and beta_i is a factor. Until A
 * is there, its memory is a second tile, for q. */
GDN_DEVICE void multiply_keys(struct chunk_shared &sh, const struct gdn_cu_rule &r,
                              const struct stage_chunk &c, int head, bool queries)
{
    const int row = threadIdx.x / 16, col = threadIdx.x % 16;
    const struct stage_gates &g = sh.gates;
    float(*more)[DEPTH + 1] = (float(*)[DEPTH + 1]) & sh.A;
    float(*left)[DEPTH + 1] = queries ? more : sh.tile;
    float sum[4][4] = {};
    for (int x0 = 0; x0 < r.K; x0 += DEPTH) {
        __syncthreads();
        load_tile(sh.tile, r.k, c, source_head(r, head, r.Hk), x0, r.K);
        if (queries) load_tile(more, r.q, c, source_head(r, head, r.Hq), x0, r.K);
        __syncthreads();
#pragma unroll 2
        for (int x = 0; x < DEPTH && x0 + x < r.K; x++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = fmaf(left[row + 16 * i][x], sh.tile[col + 16 * j][x], sum[i][j]);
    }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const int i = row + 16 * a, j = col + 16 * b;
            const bool looks = i < c.n && j >= g.start[i] && (queries ? j <= i : j < i);
            const float e = looks ? expf((float)(g.sum[i] - g.sum[j])) * sum[a][b] : 0;
            sh.A[j][i] = queries ? e : looks ? g.beta[i] * e : 0;
        }
    __syncthreads();
}

/* Returns the thread's row i: it has rows thread / 8 and 32 more, and four columns, from 4 (thread
 * % 8) on. */
GDN_DEVICE int own_row(int i) { return threadIdx.x / 8 + 32 * i; }
GDN_DEVICE int own_column(void) { return threadIdx.x % 8 * 4; }

GDN_DEVICE void add_four(float (&sum)[4], float x, const float *y)
{
    const float4 four = *(const float4 *)y;
    sum[0] = fmaf(x, four.x, sum[0]), sum[1] = fmaf(x, four.y, sum[1]);
    sum[2] = fmaf(x, four.z, sum[2]), sum[3] = fmaf(x, four.w, sum[3]);
}

/* Computes sum = the rows of a chunk times S. */
GDN_DEVICE void multiply_state(float (&sum)[2][4], struct strip_shared &sh,
                               const struct gdn_rows &rows, const struct stage_chunk &c, int head,
                               int K)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[i][e] = 0;
    for (int x0 = 0; x0 < K; x0 += DEPTH) {
        __syncthreads();
        load_tile(sh.chunk.tile, rows, c, head, x0, K);
        __syncthreads();
#pragma unroll 4
        for (int x = 0; x < DEPTH && x0 + x < K; x++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                add_four(sum[i], sh.chunk.tile[own_row(i)][x], &sh.S[x0 + x][own_column()]);
    }
}

/* The update of a state by a chunk: S = decay S + rows^T x of tokens [first, end). */
struct stage_update {
    int first, end;
    float decay;
    bool keeps; /* if not, S is forgotten instead of multiplied by 0 (G7) */
};

GDN_DEVICE void update_state(struct strip_shared &sh, const struct gdn_rows &rows,
                             const struct stage_chunk &c, int head, int K,
                             const struct stage_update &how)
{
    for (int x0 = 0; x0 < K; x0 += DEPTH) {
        __syncthreads();
        load_tile(sh.chunk.tile, rows, c, head, x0, K);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int x = own_row(i);
            float *S = &sh.S[x0 + x][own_column()], sum[4];
            if (x0 + x >= K) break;
#pragma unroll
            for (int e = 0; e < 4; e++) sum[e] = how.keeps ? how.decay * S[e] : 0;
            for (int t = how.first; t < how.end; t++)
                add_four(sum, sh.chunk.tile[t][x], &sh.x[t][own_column()]);
            *(float4 *)S = make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
    }
    __syncthreads();
}

/* Computes the state after a chunk, from x = u. keys: the chunk, whose rows of k it reads. */
GDN_DEVICE void pass_chunk(struct strip_shared &sh, const struct gdn_cu_rule &r,
                           const struct stage_chunk &keys, int head)
{
    const struct stage_gates &g = sh.chunk.gates;
    const int n = (int)keys.n;
    const struct stage_update how = { g.start[n - 1] < 0 ? 0 : g.start[n - 1], n, g.decay,
                                      sees(g, n - 1) };
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = own_row(i);
            if (t < n) sh.x[t][own_column() + e] *= g.to_end[t];
        }
    update_state(sh, r.k, keys, source_head(r, head, r.Hk), r.K, how);
}

/* ---- Solving ------------------------------------------------------------------------------- */

/* Solves column `col` of STEP rows, from `first` on, of (I + A) x = r. Earlier rows of x are known,
 * and r becomes x. selects: a gate of the chunk forgets, so rows that do not depend on each other
 * may hold NaN. */
template <bool selects, int ld>
GDN_DEVICE void solve_step(float (&r)[STEP], const struct chunk_shared &sh, const float (*x)[ld],
                           int col, int first)
{
    const int *start = sh.gates.start + first;
    for (int j = 0; j < first; j++) {
        const float y = x[j][col];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            if (!selects || j >= start[i]) r[i] = fmaf(-sh.A[j][first + i], y, r[i]);
    }
#pragma unroll
    for (int j = 0; j < STEP; j++)
#pragma unroll
        for (int i = j + 1; i < STEP; i++)
            if (!selects || first + j >= start[i])
                r[i] = fmaf(-sh.A[first + j][first + i], r[j], r[i]);
}

template <int ld>
GDN_DEVICE void solve(float (&r)[STEP], const struct chunk_shared &sh, const float (*x)[ld],
                      int col, int first, int n)
{
    if (sh.gates.start[n - 1] < 0)
        solve_step<false>(r, sh, x, col, first);
    else
        solve_step<true>(r, sh, x, col, first);
}

/* ---- States -------------------------------------------------------------------------------- */

/* A strip of a head's state: columns [col, col + n) of `view`. The whole block works on it. */
struct stage_strip {
    const struct gdn_pool_view &view;
    int64_t at; /* of the head's state, in elements */
    int col, n, K;
};

/* The place of element i of K x STRIP elements, in their order in memory. */
struct strip_place {
    int x, col;
    int64_t at;
};
GDN_DEVICE struct strip_place place_of(const struct stage_strip &s, int i)
{
    struct strip_place p;
    p.x = s.view.k_first ? i / STRIP : i % s.K;
    p.col = s.view.k_first ? i % STRIP : i / s.K;
    p.at = s.at +
           (s.view.k_first ? p.x * s.view.ld + s.col + p.col : (s.col + p.col) * s.view.ld + p.x);
    return p;
}

/* Loads the strip. Without a state it is zero, or the identity. */
GDN_DEVICE void load_strip(float (*S)[STRIP + PAD], const struct stage_strip &s, bool identity)
{
    for (int i = threadIdx.x; i < s.K * STRIP; i += THREADS) {
        const struct strip_place p = place_of(s, i);
        const float start = identity && p.x == s.col + p.col ? 1 : 0;
        S[p.x][p.col] =
            s.view.data && p.col < s.n ? load_float(s.view.data, p.at, s.view.dtype) : start;
    }
    __syncthreads();
}

GDN_DEVICE void store_strip(const struct stage_strip &s, const float (*S)[STRIP + PAD])
{
    for (int i = threadIdx.x; i < s.K * STRIP; i += THREADS) {
        const struct strip_place p = place_of(s, i);
        if (p.col < s.n) store_float(s.view.data, p.at, s.view.dtype, S[p.x][p.col]);
    }
}

/* ---- Strips of u ----------------------------------------------------------------------------- */

/* Computes x = u of the strip. For M (`transition`) v is 0. keys: the chunk, whose rows of k it
 * reads. */
GDN_DEVICE void solve_strip(struct strip_shared &sh, const struct gdn_cu_rule &r,
                            const struct stage_chunk &c, const struct stage_chunk &keys, int head,
                            const struct stage_strip &s, bool transition)
{
    const struct stage_gates &g = sh.chunk.gates;
    float p[2][4];
    multiply_keys(sh.chunk, r, keys, head, false);
    multiply_state(p, sh, r.k, keys, source_head(r, head, r.Hk), r.K);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = own_row(i), col = own_column() + e;
            const bool writes = t < c.n && g.beta[t] != 0; /* if not, v may be NaN (G8) */
            float v = 0;
            if (writes && !transition && col < s.n)
                v = load_float(row_at(r.v, c.seq, c.t0 + t, source_head(r, head, r.Hv)),
                               s.col + col, r.v.dtype);
            if (writes && sees(g, t)) v = fmaf(-g.from_start[t], p[i][e], v);
            sh.x[t][col] = writes ? g.beta[t] * v : 0;
        }
    __syncthreads();
    for (int first = 0; first < c.n && threadIdx.x < STRIP; first += STEP) {
        float x[STEP];
#pragma unroll
        for (int t = 0; t < STEP; t++) x[t] = sh.x[first + t][threadIdx.x];
        solve(x, sh.chunk, sh.x, threadIdx.x, first, (int)c.n);
#pragma unroll
        for (int t = 0; t < STEP; t++) sh.x[first + t][threadIdx.x] = x[t];
    }
    __syncthreads();
}

#endif
