/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GDN_SPLIT_INVARIANT with a record (docs/design/one-set-of-bits.md): what surrounds the kernels of
 * prefill. A record holds the tokens of an open chunk as the call gave them, and the pool the state
 * before them. A call goes on from there:
 *
 *     plan   how many tokens end the open chunk, and what the state and the record become
 *     rows   the open chunk: rows of the record, then tokens of the call; and the next record
 *     ...    prefill of the open chunk, and prefill of the rest of the tokens
 *     out    the output of tokens in the open chunk
 *
 * If the rest has few tokens, it is a chunk of the same kind, the next chunk.
 */
#include "cuda/device/rule.cuh"
#include "cuda/split/args.h"

/* A sequence of the call. c: rows of its record, n: new tokens. The first `joined` new tokens end
 * the open chunk, or are all there are. */
struct split_sequence {
    struct gdn_cu_seq s;
    int64_t c, n, joined;
    bool has_slot;
};

enum { NO_CHECKPOINT = INT32_MAX }; /* a position behind all tokens */

GDN_DEVICE int64_t *number_at(const struct gdn_cu_split &a, int which, int64_t row)
{
    return a.numbers + which * (a.rule.batch.B + 1) + row;
}

/* Fills in what follows from the rows in use. */
GDN_DEVICE void join_tokens(const struct gdn_cu_split &a, struct split_sequence &x)
{
    const int64_t room = a.one ? clamp64(GDN_SPLIT_UNIT - x.c, 0, GDN_SPLIT_UNIT)
                               : GDN_SPLIT_UNIT - x.c % GDN_SPLIT_UNIT;
    x.n = a.folds ? 0 : x.s.n_valid;
    x.joined = min(x.n, room);
}

/* Returns the rows of the open chunk, and those of the next one, which begins at row 64. A fold
 * ends with the last whole chunk. Without tokens nothing happens. */
GDN_DEVICE int64_t open_rows(const struct gdn_cu_split &a, const struct split_sequence &x)
{
    if (a.folds) return x.c - x.c % GDN_SPLIT_UNIT;
    if (x.n == 0) return 0;
    return a.one ? min(x.c + x.n, (int64_t)GDN_SPLIT_UNIT) : x.c + x.joined;
}
GDN_DEVICE int64_t next_rows(const struct gdn_cu_split &a, const struct split_sequence &x)
{
    if (a.rest != GDN_SPLIT_REST_NEXT || x.n == 0) return 0;
    return clamp64(x.c + x.n - GDN_SPLIT_UNIT, 0, GDN_SPLIT_UNIT);
}

/* Returns how many tokens go into the state, if the call writes it. */
GDN_DEVICE int64_t closed_tokens(const struct split_sequence &x)
{
    return (x.c + x.n) / GDN_SPLIT_UNIT * GDN_SPLIT_UNIT;
}

/* ---- plan: a warp has a sequence ------------------------------------------------------------- */

GDN_DEVICE int64_t rows_in_use(const struct gdn_cu_rule &r, int64_t slot)
{
    return clamp64(load_index(r.record_count, slot), 0, r.record_rows);
}

GDN_DEVICE void split_plan(const struct gdn_cu_split &a)
{
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= a.rule.batch.B) return;
    struct split_sequence x = { read_sequence(a.rule.batch, row) };
    x.has_slot = !x.s.padding && x.s.read >= 0;
    x.c = x.has_slot ? rows_in_use(a.rule, x.s.read) : 0;
    join_tokens(a, x);
    const bool writes = a.accepts || a.folds;
    const int64_t open = open_rows(a, x);
    const int64_t rest = a.rest == GDN_SPLIT_REST_NEXT ? next_rows(a, x) : x.n - x.joined;
    const int64_t ended = open - open % GDN_SPLIT_UNIT, whole = rest - rest % GDN_SPLIT_UNIT;
    const int64_t slot = x.has_slot ? x.s.read : -1;
    const int64_t after = writes ? slot : rest > 0 ? row : -1; /* where the rest begins */
    const int64_t numbers[GDN_SPLIT_NUMBERS] = {
        x.has_slot ? x.c : -1,
        slot,
        ended > 0 ? after : -1,
        ended > 0 ? ended : NO_CHECKPOINT,
        x.has_slot ? open : 0,
        !x.has_slot || writes ? slot : row,
        x.s.n_before + x.joined,
        rest,
        whole > 0 && writes ? slot : -1,
        whole > 0 ? whole : NO_CHECKPOINT,
        row,
    };
    for (int i = 0; i < GDN_SPLIT_NUMBERS; i++)
        if (i == lane) *number_at(a, i, row) = numbers[i];
    if (row + 1 == a.rule.batch.B && lane == 0) *number_at(a, GDN_SPLIT_STARTS, row + 1) = row + 1;
}

/* ---- rows: a block has a head of each tensor ------------------------------------------------- */

/* A head's rows: those of the record, then tokens. The record is NULL if it does not hold the
 * tensor: these rows are zeros. */
struct split_rows {
    char *record;
    const char *tokens;
    int64_t record_step, token_step;

    template <class piece> __device__ __forceinline__ piece load(int64_t c, int64_t i, int at) const
    {
        if (i >= c) return ((const piece *)(tokens + (i - c) * token_step))[at];
        return record ? ((const piece *)(record + i * record_step))[at] : piece{};
    }
};

/* Puts n rows, from row `first` on, `step` bytes apart. A thread loads some pieces before it stores
 * them. */
template <class piece>
GDN_DEVICE void move_rows(char *to, int64_t step, const struct split_rows &from, int64_t c,
                          int64_t first, int64_t n, int bytes)
{
    enum { AT_ONCE = 4 };
    const int pieces = bytes / (int)sizeof(piece), all = (int)n * pieces;
    for (int begin = threadIdx.x; begin < all; begin += AT_ONCE * blockDim.x) {
        piece x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = begin + j * blockDim.x;
            if (at < all) x[j] = from.load<piece>(c, first + at / pieces, at % pieces);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = begin + j * blockDim.x;
            if (at < all) ((piece *)(to + at / pieces * step))[at % pieces] = x[j];
        }
    }
}
GDN_DEVICE void move_rows(int wide, char *to, int64_t step, const struct split_rows &from,
                          int64_t c, int64_t first, int64_t n, int bytes)
{
    if (wide == 16)
        move_rows<uint4>(to, step, from, c, first, n, bytes);
    else if (wide >= 4)
        move_rows<uint32_t>(to, step, from, c, first, n, bytes);
    else
        move_rows<uint16_t>(to, step, from, c, first, n, bytes);
}

/* Fills rows n and later, if chunks are filled up: copies of row n - 1, or zeros. Rows are
 * whole pieces of 16 bytes. A copied key has the length of a real one, which keeps its products
 * in range. */
GDN_DEVICE void fill_rows(const struct gdn_cu_split &a, char *to, int64_t step, int64_t n,
                          int bytes, bool zeros)
{
    const int pieces = bytes / 16, all = a.one ? (GDN_SPLIT_UNIT - (int)n) * pieces : 0;
    const uint4 *const last = (const uint4 *)(to + (n - 1) * step);
    if (n == 0 || all == 0) return;
    __syncthreads();
    for (int at = threadIdx.x; at < all; at += blockDim.x)
        ((uint4 *)(to + (n + at / pieces) * step))[at % pieces] =
            zeros ? make_uint4(0, 0, 0, 0) : last[at % pieces];
}

/* Rows that go into the record: n of them to row `to`, from row `first` of the chunk on. */
struct split_left {
    int64_t to, first, n;
};

/* If tokens are accepted, the rows behind the last whole chunk; else the drafts. */
GDN_DEVICE struct split_left left_rows(const struct gdn_cu_split &a, const struct split_sequence &x)
{
    const int64_t closed = closed_tokens(x), all = x.c + x.n;
    if ((a.accepts || a.folds) && closed > 0) return { 0, closed, all - closed };
    return { x.c, x.c, min(all, a.rule.record_rows) - x.c };
}

/* Puts a head of a tensor into the open chunk and into the next one, which is `next` bytes behind.
 * zeros: rows that do not exist become zeros. */
GDN_DEVICE void put_chunks(const struct gdn_cu_split &a, const struct split_sequence &x, int wide,
                           char *chunk, int64_t step, const struct split_rows &from, int bytes,
                           bool zeros)
{
    const int64_t open = open_rows(a, x), n = next_rows(a, x);
    const int64_t next = a.rule.batch.B * a.most * step;
    move_rows(wide, chunk, step, from, x.c, 0, open, bytes);
    fill_rows(a, chunk, step, open, bytes, zeros);
    if (n == 0) return;
    move_rows(wide, chunk + next, step, from, x.c, GDN_SPLIT_UNIT, n, bytes);
    fill_rows(a, chunk + next, step, n, bytes, zeros);
}

/* Does so with a tensor that the record holds, and moves rows to the record. The record's own rows
 * are read first: rows that move up come from row 64 or behind, and go to rows before that. */
GDN_DEVICE void move_head(const struct gdn_cu_split &a, const struct split_sequence &x, int wide,
                          char *chunk, int64_t step, const struct split_rows &from, int bytes,
                          bool zeros)
{
    const struct split_left left = left_rows(a, x);
    put_chunks(a, x, wide, chunk, step, from, bytes, zeros);
    __syncthreads();
    move_rows(wide, from.record + left.to * from.record_step, from.record_step, from, x.c,
              left.first, left.n, bytes);
}

GDN_DEVICE char *record_at(const struct gdn_record_rows &r, int64_t slot, int head)
{
    return r.data + slot * r.slot + head * r.head;
}

/* The gates of row i: log alpha and beta, as the rule uses them. */
GDN_DEVICE float2 gates_of(const struct gdn_cu_split &a, const struct split_sequence &x, int64_t i,
                           int head)
{
    const struct gdn_record_rows &rows = a.rule.record_g;
    if (i >= x.c)
        return make_float2(load_gate(a.rule, x.s, i - x.c, head, false),
                           load_beta(a.rule, x.s, i - x.c, head));
    const float *const at = (const float *)(record_at(rows, x.s.read, head) + i * rows.row);
    return make_float2(at[0], at[rows.channel]);
}

/* Puts gates of n rows, from row `first` on, into a chunk. Rows that do not exist neither decay nor
 * write. */
GDN_DEVICE void put_gates(const struct gdn_cu_split &a, const struct split_sequence &x, int head,
                          int64_t row, int64_t first, int64_t n)
{
    for (int64_t i = threadIdx.x; i < (a.one ? GDN_SPLIT_UNIT : n); i += blockDim.x) {
        const float2 gates = i < n ? gates_of(a, x, first + i, head) : make_float2(0, 0);
        const int64_t at = (row * a.most + i) * a.rule.H + head;
        a.g[at] = gates.x, a.beta[at] = gates.y;
    }
}

GDN_DEVICE void move_gates(const struct gdn_cu_split &a, const struct split_sequence &x, int head)
{
    const struct gdn_record_rows &rows = a.rule.record_g;
    const struct split_left left = left_rows(a, x);
    const int64_t next = next_rows(a, x);
    put_gates(a, x, head, x.s.row, 0, open_rows(a, x));
    if (next > 0) put_gates(a, x, head, a.rule.batch.B + x.s.row, GDN_SPLIT_UNIT, next);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < left.n; i += blockDim.x) {
        const float2 gates = gates_of(a, x, left.first + i, head);
        float *const to = (float *)(record_at(rows, x.s.read, head) + (left.to + i) * rows.row);
        to[0] = gates.x, to[rows.channel] = gates.y;
    }
}

/* Reads what plan() has found. */
GDN_DEVICE struct split_sequence planned_sequence(const struct gdn_cu_split &a, int64_t row)
{
    struct split_sequence x = { read_sequence(a.rule.batch, row) };
    const int64_t c = *number_at(a, GDN_SPLIT_ROWS, row);
    x.has_slot = c >= 0;
    x.c = max(c, (int64_t)0);
    join_tokens(a, x);
    return x;
}

GDN_DEVICE char *token_at(const struct gdn_rows &rows, const struct split_sequence &x, int head)
{
    return rows.data ? row_at(rows, x.s, 0, head) : NULL;
}

GDN_DEVICE void split_rows(const struct gdn_cu_split &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int head = (int)(blockIdx.x % r.H);
    const int64_t row = blockIdx.x / r.H;
    const struct split_sequence x = planned_sequence(a, row);
    if (!x.has_slot || (x.n == 0 && !a.folds)) return;
    const int size = r.record_k.dtype == GDN_F32 ? 4 : 2, K = r.K * size, V = r.V * size;
    if (a.q && head < r.Hq)
        put_chunks(a, x, a.q_wide, a.q + (row * a.most * r.Hq + head) * K, r.Hq * K,
                   { NULL, token_at(r.q, x, head), 0, r.q.token }, K, false);
    if (head < r.Hk)
        move_head(a, x, a.k_wide, a.k + (row * a.most * r.Hk + head) * K, r.Hk * K,
                  { record_at(r.record_k, x.s.read, head), token_at(r.k, x, head), r.record_k.row,
                    r.k.token },
                  K, false);
    move_head(a, x, a.v_wide, a.v + (row * a.most * r.H + head) * V, r.H * V,
              { record_at(r.record_u, x.s.read, head), token_at(r.v, x, source_head(r, head, r.Hv)),
                r.record_u.row, r.v.token },
              V, true);
    move_gates(a, x, head);
    const struct split_left left = left_rows(a, x);
    if (head == 0 && threadIdx.x == 0 && (a.accepts || a.folds))
        store_count(r.record_count, x.s.read, left.to + left.n);
}

/* ---- out: a block has a head ----------------------------------------------------------------- */

/* Writes zeros to the head's output of n tokens. */
GDN_DEVICE void zero_out(const struct gdn_cu_split &a, char *first, int64_t n)
{
    const struct gdn_rows &out = a.rule.out;
    const struct split_rows zeros = {};
    move_rows(a.out_wide, first, out.token, zeros, n, 0, n,
              a.rule.V * (out.dtype == GDN_F32 ? 4 : 2));
}

/* Stores the output of tokens in the open chunk and the next one. If no other launch does it,
 * tokens that do not count get zeros. */
GDN_DEVICE void split_out(const struct gdn_cu_split &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int head = (int)(blockIdx.x % r.H);
    const int64_t row = blockIdx.x / r.H;
    if (row == r.batch.B) { /* a row of blocks for tokens behind the last sequence */
        const struct gdn_cu_seq s = read_rest(r.batch);
        zero_out(a, row_at(r.out, s, 0, head), s.n_tokens);
        return;
    }
    const struct split_sequence x = planned_sequence(a, row);
    const int V = r.V * (r.out.dtype == GDN_F32 ? 4 : 2);
    const int64_t step = (int64_t)r.H * V, next = r.batch.B * a.most * step;
    char *const first = token_at(r.out, x, head); /* of the first token that counts */
    const struct split_rows open = { NULL, a.out + row * a.most * step + head * V, 0, step };
    if (x.has_slot) {
        move_rows(a.out_wide, first, r.out.token, open, 0, x.c, x.joined, V);
        move_rows(a.out_wide, first + x.joined * r.out.token, r.out.token,
                  { NULL, open.tokens + next, 0, step }, 0, x.c + x.joined - GDN_SPLIT_UNIT,
                  a.rest == GDN_SPLIT_REST_NEXT ? x.n - x.joined : 0, V);
    }
    if (a.rest == GDN_SPLIT_REST_APART || x.s.keep_out) return;
    zero_out(a, first - x.s.n_before * r.out.token, x.s.n_before);
    zero_out(a, first + x.n * r.out.token, x.s.n_tokens - x.s.n_before - x.n);
}

#define GDN_IMAGE_split GDN_THIS_IMAGE
#define GDN_KERNEL_split(threads, shared, what)                         \
    extern "C" __global__ void __launch_bounds__(threads)               \
        gdn_split_##what(const __grid_constant__ struct gdn_cu_split a) \
    {                                                                   \
        split_##what(a);                                                \
    }
#include "cuda/driver/kernels.cuh"
