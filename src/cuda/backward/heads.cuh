/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of gradients of chunks on tensor cores that do not depend on the instructions: the
 * order of work, the factors of X and Y, sums of rows, gradients of gates and of norms. 256 threads
 * multiply, four warps for each 64 columns of dq, D and dw. D is multiplied by beta. If beta is too
 * small, X and D have LEAST_BETA in its place, so that dbeta = Z . v + k . D / beta holds for every
 * beta. In f16 LEAST_BETA is not so small, and X is multiplied back to its beta before X^T K.
 * Letters: docs/design/math.md, section 13. */
#ifndef GDN_CUDA_BACKWARD_HEADS_CUH
#define GDN_CUDA_BACKWARD_HEADS_CUH

#include "cuda/backward/gates.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/backward/tiles.cuh"

#define LEAST_BETA (BACKWARD_IO == GDN_BF16 ? 0x1p-60f : 0x1p-6f)

/* The threads that multiply, as groups and warps, and their barrier. */
enum {
    HEADS_GROUPS = 2,
    HEADS_WORKERS = HEADS_GROUPS * GROUP,
    HEADS_WARPS = HEADS_WORKERS / 32,
    HEADS_BARRIER = 3
};

/* Return how many blocks share the keys of a head, and the passes over V. Heads that are not wide
 * have one of each. */
template <bool wide> GDN_DEVICE int key_blocks(const struct gdn_cu_backward &a)
{
    return wide && a.rule.K > DEEP ? 2 : 1;
}
template <bool wide> GDN_DEVICE int value_passes(const struct gdn_cu_backward &a)
{
    return wide ? (a.rule.V + DEEP - 1) / DEEP : 1;
}
GDN_DEVICE int heads_group(void) { return (int)threadIdx.x / GROUP; }
GDN_DEVICE void meet_workers(void) { barrier_wait(HEADS_BARRIER, HEADS_WORKERS); }

/* Return the row and the column of a tensor that element e of a thread's sums has. */
GDN_DEVICE int head_column(int e) { return 64 * heads_group() + sum_column(e); }

typedef float head_sums[32];
typedef uint32_t head_pairs[16];

/* Multiplies rows by factors. `selects`: if a factor is zero, the result is zero whatever x is. */
template <bool selects> GDN_DEVICE void weigh_rows(head_sums &x, const float (&factors)[2])
{
#pragma unroll
    for (int e = 0; e < 32; e++) {
        const float f = factors[e / 2 % 2];
        x[e] = selects && f == 0 ? 0 : f * x[e];
    }
}
GDN_DEVICE float beta_or_least(float beta) { return fabsf(beta) < LEAST_BETA ? LEAST_BETA : beta; }

/* The factors of the thread's two rows in products with states: those of dq, dw and D. */
struct row_factors {
    float start[2], end[2], read[2];
};
GDN_DEVICE struct row_factors factors_of_rows(const vectors &g, float drop)
{
    struct row_factors f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = sum_row(2 * r);
        f.start[r] = drop * g.q_start[t];
        f.end[r] = drop * g.to_end[t];
        f.read[r] = -drop * beta_or_least(g.beta[t]) * g.from_start[t];
    }
    return f;
}

/* Returns the factor that makes beta of beta_or_least(). */
GDN_DEVICE float beta_share(float beta) { return fabsf(beta) < LEAST_BETA ? beta / LEAST_BETA : 1; }

/* ---- The way through the work ---------------------------------------------------------------- */

/* A step of a block: state head i of the key head of a chunk. */
struct heads_step {
    int i, key, head;
    int64_t number; /* of the chunk; -1: no more */
    struct gdn_cu_place place;
};
/* Returns the first step of the next item that has tokens. Items are chunks x key heads; a block
 * takes `item` and every item that is a multiple of n_blocks further. */
GDN_DEVICE struct heads_step find_step(const struct gdn_cu_backward &a, int64_t &item, int n_blocks)
{
    const struct gdn_cu_rule &r = a.rule;
    for (; item < a.n_chunks * r.Hk; item += n_blocks) {
        const int64_t number = item / r.Hk;
        const int key = (int)(item - number * r.Hk);
        const struct gdn_cu_place place = a.places[number];
        if (place.n) return { 0, key, first_reader(r, key, r.Hk), number, place };
    }
    return { 0, 0, 0, -1, {} };
}
GDN_DEVICE struct heads_step next_step(const struct gdn_cu_backward &a, struct heads_step s,
                                       int64_t &item, int n_blocks)
{
    if (++s.i < a.rule.H / a.rule.Hk) {
        s.head += reader_step(a.rule, a.rule.Hk);
        return s;
    }
    item += n_blocks;
    return find_step(a, item, n_blocks);
}
GDN_DEVICE bool is_step(const struct heads_step &s) { return s.number >= 0; }

/* Sums of rows of a block, of 64 columns each. Then sums for the end of the chunk: dG of the last
 * token, of a warp; and Z . v of its tokens, of 64 columns of each pass. */
struct head_parts {
    float rows[HEADS_GROUPS][CHUNK][2];
    float ends[HEADS_WARPS];
    float zv[2][CHUNK];
};
static_assert(sizeof(struct head_parts) % 16 == 0, "copies of 16 bytes");

/* ---- Stores ---------------------------------------------------------------------------------- */

/* How a gradient is stored: two numbers of BACKWARD_IO at once, two of float32, or one at a
 * time. */
enum { STORE_16, STORE_F32, STORE_ANY };
GDN_DEVICE int store_form(const struct gdn_rows &to, bool adds)
{
    const uint64_t all =
        (uint64_t)to.data | (uint64_t)to.batch | (uint64_t)to.token | (uint64_t)to.head;
    if (adds || all % 8) return STORE_ANY;
    return to.dtype == BACKWARD_IO ? STORE_16 : to.dtype == GDN_F32 ? STORE_F32 : STORE_ANY;
}
static __device__ __noinline__ void store_any(char *row, int column, int dtype, bool adds, float x,
                                              float y)
{
    if (adds) {
        x += load_float(row, column, dtype);
        y += load_float(row, column + 1, dtype);
    }
    store_float(row, column, dtype, x);
    store_float(row, column + 1, dtype, y);
}
template <int form>
GDN_DEVICE void store_two(char *row, int column, const struct gdn_rows &to, bool adds, float x,
                          float y)
{
    if (form == STORE_16)
        *(uint32_t *)(row + 2 * column) = pairs::pair(x, y);
    else if (form == STORE_F32)
        *(float2 *)(row + 4 * column) = make_float2(x, y);
    else
        store_any(row, column, to.dtype, adds, x, y);
}

/* Returns the sum over the four threads that have a row. */
GDN_DEVICE float sum_quad(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
/* Computes dv = beta Z, and the sum of Z . v of a row, for a warp's tokens m to m + 15 and 16 times
 * `blocks` columns from `first` on, of which V exist. Z is transposed. at_once: blocks of v that
 * are loaded at once. value_of(r, column, there) returns v of the thread's row r, of this column of
 * the part and the next one. */
template <int form, int blocks, int at_once, class Value>
GDN_DEVICE void store_values(float (&sum)[2], const char *z_tile, int first, int m,
                             const vectors &g, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head, Value value_of)
{
    const int l = threadIdx.x % 32, n = a.rule.V - first;
    const uint32_t at = shared_address(z_tile) + tile_place(l % 8 + l / 16 * 8, m + l / 8 % 2 * 8);
    float beta[2], spoil[2];
    char *to[2];
    bool is[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = m + l / 4 + 8 * r;
        is[r] = t < c.n;
        to[r] = row_at(a.dv, c.seq, t, head);
        beta[r] = a.drop * g.beta[t];
        spoil[r] = spoil_with(g, t);
        sum[r] = 0;
    }
#pragma unroll
    for (int b = 0; b < blocks; b += at_once) {
        uint32_t v[at_once][4];
#pragma unroll
        for (int i = 0; i < 4 * at_once; i++) {
            const int column = 16 * (b + i / 4) + block_column(i % 4 / 2, 0);
            const bool there = 16 * b + i / 2 * 8 < n;
            v[i / 4][i % 4] = value_of(i % 2, column, there);
        }
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            uint32_t z[4];
            load_matrices_turned(z, at + 16 * 128 * (b + i));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = j % 2, column = first + 16 * (b + i) + block_column(j / 2, 0);
                const float x[2] = { pairs::low(z[j]), pairs::high(z[j]) };
                sum[r] = fmaf(x[0], pairs::low(v[i][j]), sum[r]);
                sum[r] = fmaf(x[1], pairs::high(v[i][j]), sum[r]);
                if (is[r] && a.dv.data && 16 * (b + i) + j / 2 * 8 < n)
                    store_two<form>(to[r], column, a.dv, a.adds, fmaf(beta[r], x[0], spoil[r]),
                                    fmaf(beta[r], x[1], spoil[r]));
            }
        }
    }
    sum[0] = sum_quad(sum[0]), sum[1] = sum_quad(sum[1]);
}
/* Does the same with v from memory. */
template <int form, int blocks>
GDN_DEVICE void store_values(float (&sum)[2], const char *z_tile, int first, int m,
                             const vectors &g, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head)
{
    const char *from[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = m + (int)threadIdx.x % 32 / 4 + 8 * r;
        from[r] = row_at(a.rule.v, c.seq, t < c.n ? t : 0, head);
    }
    store_values<form, blocks, blocks>(
        sum, z_tile, first, m, g, a, c, head, [&](int r, int column, bool there) {
            return there ? *(const uint32_t *)(from[r] + 2 * (first + column)) : 0;
        });
}

/* ---- X and Y --------------------------------------------------------------------------------- */

/* Multiplies products by their factors, which gives X or Y. Elements of two tokens that a gate or
 * their order parts are zero. */
template <bool forgets>
GDN_DEVICE void weigh_tokens(head_sums &x, const vectors &g, bool is_y, float drop)
{
    const token_mask resets = tokens_of(g.resets);
    float G_row[2], f[2];
    int end[2]; /* of the tokens that reach a row, the last one */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = sum_row(2 * r);
        G_row[r] = g.G[t];
        f[r] = drop * (is_y ? g.q_scale[t] : -beta_or_least(g.beta[t]) * g.k_scale[t]);
        end[r] = t < g.n ? t + is_y : 0;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = sum_column(4 * i);
        const float2 G = *(const float2 *)(g.G + column), k = *(const float2 *)(g.k_scale + column);
#pragma unroll
        for (int e = 4 * i; e < 4 * i + 4; e++) {
            const int r = e / 2 % 2, j = column + e % 2;
            const float decay = ex2_approx(G_row[r] - (e % 2 ? G.y : G.x));
            bool looks = j < end[r];
            if (forgets) looks = looks && !are_parted(resets, j, sum_row(2 * r));
            x[e] = looks ? x[e] * (f[r] * (e % 2 ? k.y : k.x)) * decay : 0;
        }
    }
}

/* ---- Sums of rows -------------------------------------------------------------------------- */

/* Loads a thread's elements of a tile of the group's columns. Their places are computed each time:
 * in registers they would take the room of sums. */
GDN_DEVICE void load_pairs(head_pairs &x, const char (&tile)[2][TILE])
{
    const char *at = tile[heads_group()];
    const uint32_t place = opaque(tile_place(sum_row(0), sum_column(0)));
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = *(const uint32_t *)(at + (place ^ i / 2 * 16) + i % 2 * (8 * 128));
}
GDN_DEVICE void dot_rows(float (&sum)[2], const head_sums &x, const head_pairs &with)
{
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        sum[i % 2] = fmaf(pairs::low(with[i]), x[2 * i], sum[i % 2]);
        sum[i % 2] = fmaf(pairs::high(with[i]), x[2 * i + 1], sum[i % 2]);
    }
}
/* Writes a thread's sums of its rows to part `which`. */
GDN_DEVICE void share_sums(struct head_parts &parts, const float (&sum)[2], int which)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float x = sum_quad(sum[r]);
        if (threadIdx.x % 4 == 0) parts.rows[heads_group()][sum_row(2 * r)][which] = x;
    }
}
GDN_DEVICE float all_parts(const struct head_parts *parts, int n_blocks, int t, int which)
{
    float sum = 0;
    for (int i = 0; i < n_blocks; i++)
        sum += parts[i].rows[0][t][which] + parts[i].rows[1][t][which];
    return sum;
}

/* The gradients that a state head adds to its key head. D becomes a part of dk. */
struct head_gradients {
    head_sums dq, D, dw;
};

/* The thread's parts of sums over its rows: of dq . q, D . k and dw . k. */
typedef float head_dots[3][2];

/* Shares the sums of rows that the gradients of gates need. Sets keeps to the share of D in dk. */
GDN_DEVICE void share_dots(float (&keeps)[2], struct head_parts &parts, const head_dots &dots,
                           const vectors &g)
{
    float sums[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        keeps[r] = beta_share(g.beta[sum_row(2 * r)]);
        sums[r] = dots[0][r] + ((keeps[r] == 0 ? 0 : keeps[r] * dots[1][r]) - dots[2][r]);
    }
    share_sums(parts, sums, 0);
    share_sums(parts, dots[1], 1);
}
GDN_DEVICE void share_head(float (&keeps)[2], struct head_parts &parts,
                           const struct head_gradients &d, const char (&q)[2][TILE],
                           const char (&k)[2][TILE], const vectors &g)
{
    head_pairs given;
    head_dots dots;
    load_pairs(given, q);
    dot_rows(dots[0], d.dq, given);
    load_pairs(given, k);
    dot_rows(dots[1], d.D, given);
    dot_rows(dots[2], d.dw, given);
    share_dots(keeps, parts, dots, g);
}

/* Adds to dq and dk of the key head. */
GDN_DEVICE void add_head(head_sums &dq, head_sums &dk, const struct head_gradients &d,
                         const float (&keeps)[2])
{
#pragma unroll
    for (int e = 0; e < 32; e++) {
        dq[e] += d.dq[e];
        const float keep = keeps[e / 2 % 2];
        dk[e] += (keep == 0 ? 0 : keep * d.D[e]) + d.dw[e];
    }
}

/* Returns the tokens of dv for each of n_blocks blocks. */
GDN_DEVICE int tokens_of_block(int n_blocks) { return CHUNK / n_blocks; }

/* ---- Gates --------------------------------------------------------------------------------- */

/* Computes dg of log alpha for tokens lane and lane + 32: the sum of dG from a token to the next
 * gate that forgets, or to the end of the chunk. The last token's dG contains the gradient that
 * comes from later chunks. A warp calls it. */
GDN_DEVICE void sum_back(float (&x)[2], token_mask resets, int lane)
{
#pragma unroll
    for (int i = 1; i >= 0; i--) {
        if (i == 0) {
            const float later = __shfl_sync(0xffffffff, x[1], 0);
            if (lane == 31 && !(resets >> 32 & 1)) x[0] += later;
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float y = __shfl_down_sync(0xffffffff, x[i], step);
            const int t = lane + 32 * i;
            if (lane + step < 32 && !are_parted(resets, t, t + step)) x[i] += y;
        }
    }
}

template <class Shared>
GDN_DEVICE void store_head_gates(const Shared &sh, uint32_t step, const struct gdn_cu_backward &a,
                                 const struct stage_chunk &c, int head)
{
    const int now = step % 2, n_blocks = key_blocks<Shared::wide>(a);
    const struct head_parts *parts = sh.parts[now];
    const vectors &g = sh.g[step % 4];
    const int lane = opaque((int)threadIdx.x % 32), n = g.n;
    const token_mask resets = tokens_of(g.resets);
    float ends = 0, dg[2];
    double sums[2] = {};
    for (int b = 0; b < n_blocks; b++)
        for (int i = 0; i < HEADS_WARPS; i++) ends += parts[b].ends[i];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* rows of dout behind the last token may hold anything */
        const int t = lane + 32 * i;
        dg[i] = all_parts(parts, n_blocks, t, 0) + (t == n - 1 ? ends : 0);
        if (t >= n) dg[i] = 0;
    }
    sum_back(dg, resets, lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = lane + 32 * i;
        if (t >= n) continue;
        const float spoil = spoil_with(g, t), beta = beta_or_least(g.beta[t]);
        const struct gate_gradient d =
            through_gate(a.rule, c, t, head, resets >> t & 1 ? 0 : dg[i] + spoil);
        store_gradient_of(a.dg, c, t, head, d.g, a.adds);
        const float(&zv_of)[2][CHUNK] = parts[t / tokens_of_block(n_blocks)].zv;
        const float zv = zv_of[0][t] + zv_of[1][t];
        const float dbeta = zv + all_parts(parts, n_blocks, t, 1) / beta + spoil;
        store_gradient_of(a.dbeta, c, t, head, through_beta(a.rule, c, t, head, dbeta), a.adds);
        sums[0] += d.A_log;
        sums[1] += d.dt_bias;
    }
    if (!a.sums) return;
    sums[0] = sum_warp(sums[0]), sums[1] = sum_warp(sums[1]);
    const double both[1][2] = { { sums[0], sums[1] } };
    if (lane == 0) keep_sums(a, c.number, head, both, 1);
}

/* ---- dq and dk ----------------------------------------------------------------------------- */

/* Shares the sums of an item for norms: of keys (which = 0) or of queries (1). All threads that
 * multiply call it. Shared has block_of(), the number of this block, and meet_norms(), which waits
 * for the sums of all blocks that share a head. */
template <class Shared>
GDN_DEVICE void share_norms(Shared &sh, const float (&sum)[2], int which, uint32_t item,
                            int n_blocks)
{
    float(&to)[HEADS_GROUPS][CHUNK] = sh.norms[which][block_of(sh)];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float x = sum_quad(sum[r]);
        if (threadIdx.x % 4 == 0) to[heads_group()][sum_row(2 * r)] = x;
    }
    meet_norms(sh, which, item, n_blocks);
}
template <class Shared> GDN_DEVICE float all_norms(const Shared &sh, int n_blocks, int t, int which)
{
    float sum = 0;
    for (int i = 0; i < n_blocks; i++) sum += sh.norms[which][i][0][t] + sh.norms[which][i][1][t];
    return sum;
}

/* Returns the factors of the norms of an item. */
template <class Shared>
GDN_DEVICE const struct key_norms &norms_of_item(const Shared &sh, uint32_t item)
{
    (void)item;
    return sh.norms_of;
}

/* A row's way through the norm: from the gradient of the normalised row to that of the caller's. */
struct row_norm {
    bool is;
    float f, outer, spoil;
    __device__ __forceinline__ float2 through(float x, float y, uint32_t given) const
    {
        const float2 z = { x + spoil, y + spoil };
        if (!is) return z;
        return { outer * fmaf(f, pairs::low(given), z.x),
                 outer * fmaf(f, pairs::high(given), z.y) };
    }
};
/* Returns that of token t, of keys (which = 0) or of queries (1). */
template <class Shared>
GDN_DEVICE struct row_norm norm_of_row(const Shared &sh, int which, uint32_t item,
                                       const struct gdn_cu_backward &a, int t, const vectors &g)
{
    const struct key_norms &norms = norms_of_item(sh, item);
    struct row_norm n = { a.rule.norm != GDN_NO_NORM, 0, 1, spoil_with(g, t) };
    if (!n.is) return n;
    n.f = norms.bend[which][t] * all_norms(sh, key_blocks<Shared::wide>(a), t, which);
    if (SCALES_ROWS) n.outer = norms.outer[which][t];
    return n;
}

/* Stores rows through the norm: x is the gradient of the rows of a tile, `given`, of keys (which is
 * 0) or of queries (1). norms has the sums of x . given over each row. */
template <int form, class Shared>
GDN_DEVICE void store_normed(const Shared &sh, const head_sums &x, const head_pairs &given,
                             int which, uint32_t item, const struct gdn_rows &to,
                             const struct gdn_cu_backward &a, const struct stage_chunk &c, int head,
                             const vectors &g)
{
    const int first = DEEP * block_of(sh);
    const int n_columns = a.rule.K - first - 64 * heads_group();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int t = opaque(sum_row(2 * h)); /* opaque: the compiler would keep masks of it in
                                                 registers */
        if (t >= c.n) continue;
        const struct row_norm norm = norm_of_row(sh, which, item, a, t, g);
        char *row = row_at(to, c.seq, t, head);
#pragma unroll
        for (int i = h; i < 16; i += 2) {
            const float2 z = norm.through(x[2 * i], x[2 * i + 1], given[i]);
            if (i / 2 * 8 < n_columns)
                store_two<form>(row, first + head_column(2 * i), to, a.adds, z.x, z.y);
        }
    }
}

/* Stores rows of dk or dq; `rows` has those of k or q. All threads that multiply call it. */
template <class Shared>
GDN_DEVICE void store_rows(Shared &sh, const head_sums &x, const char (&rows)[2][TILE], int which,
                           uint32_t item, const struct gdn_rows &to,
                           const struct gdn_cu_backward &a, const struct stage_chunk &c, int key,
                           const vectors &g)
{
    const int form = store_form(to, a.adds), n_blocks = key_blocks<Shared::wide>(a);
    head_pairs given;
    if (!to.data && n_blocks == 1) return;
    load_pairs(given, rows);
    if (a.rule.norm != GDN_NO_NORM) {
        float along[2];
        dot_rows(along, x, given);
        share_norms(sh, along, which, item, n_blocks);
    }
    if (!to.data) return;
    if (form == STORE_16)
        store_normed<STORE_16>(sh, x, given, which, item, to, a, c, key, g);
    else if (form == STORE_F32)
        store_normed<STORE_F32>(sh, x, given, which, item, to, a, c, key, g);
    else
        store_normed<STORE_ANY>(sh, x, given, which, item, to, a, c, key, g);
}

#endif
