/* SPDX-License-Identifier: Apache-2.0 */
/* Computes what chunks need before a state comes: gates, T and P of each state head. A block of
 * four warps has a chunk, and some state heads that read the same rows of k and of q. So it makes
 * products of these rows once for all its heads. */
#ifndef GDN_CUDA_PREFILL_CHUNKS_CUH
#define GDN_CUDA_PREFILL_CHUNKS_CUH

#include "cuda/prefill/general_loads.cuh"
#include "cuda/prefill/portable/record.cuh"
#include "cuda/prefill/portable/turned.cuh"

#include "cuda/prefill/squares.cuh"

enum { CHUNKS_THREADS = 128, CHUNKS_DEEP = GDN_PORTABLE_DEEP };

struct chunks_shared : chunk_squares<CHUNKS_DEEP> {
    alignas(16) portable_vectors v[CHUNKS_THREADS / 32]; /* for as many heads as there are warps */
    struct stage_chunk chunk;
};
static_assert(sizeof(struct chunks_shared) <= GDN_CU_CHUNKS_BYTES, "shared_bytes.h");

/* The state heads of a block: `head`, and every `step`-th one after it. */
struct chunks_heads {
    int head, step, n;
    bool first; /* the block has the first state head of the key head */
};
GDN_DEVICE struct chunks_heads heads_of(const struct gdn_cu_prefill_portable &a, int group)
{
    const struct gdn_cu_rule &r = a.rule;
    const int readers = r.Hq == r.Hk ? r.H / r.Hk : 1; /* state heads that share k and q */
    const int splits = (readers + a.n_each - 1) / a.n_each, split = group % splits;
    const int key = group / splits, n_keys = r.H / readers, step = reader_step(r, n_keys);
    return { first_reader(r, key, n_keys) + split * a.n_each * step, step,
             min(a.n_each, readers - split * a.n_each), split == 0 };
}

/* Returns the chunk with that number. n is 0 if no sequence has it. A warp calls it. */
GDN_DEVICE struct stage_chunk find_numbered(const struct gdn_cu_batch &b, int64_t number)
{
    int64_t row = 0, end = b.B;
    while (end - row > 1) { /* the chunk belongs to one of the sequences [row, end) */
        const int64_t middle = row + (end - row) / 2;
        if (first_number(b, middle, CHUNK) <= number)
            row = middle;
        else
            end = middle;
    }
    struct stage_chunk c = {};
    c.seq = read_sequence(b, row);
    cut_chunk(c, number - first_number(b, row, CHUNK), CHUNK);
    c.seq.first += c.t0;
    return c;
}

/* Computes 1 / length of keys and queries. A thread has a row. In f16 keys are scaled to length
 * one, see write_lengths(). */
template <int io>
GDN_DEVICE void find_lengths(struct chunks_shared &sh, const struct gdn_cu_rule &r, int n)
{
    const int t = threadIdx.x % CHUNK, i = threadIdx.x / CHUNK;
    char *row = (i ? sh.keys.q : sh.keys.k) + t * sh.row;
    const bool scales = io == GDN_F16 && i == 0;
    const float inverse = t < n ? row_inverse_length<io, CHUNKS_DEEP>(row, r) : 1;
    if (scales && t < n) scale_row<io>(row, inverse, r.K);
    sh.lengths[i][t] = scales ? 1 : inverse;
}

/* Stores keys of length one. */
GDN_DEVICE void store_keys(const struct chunks_shared &sh, char *to, int bytes)
{
    for (int i = threadIdx.x; i < CHUNK * bytes / 16; i += CHUNKS_THREADS) {
        const int t = i / (bytes / 16), at = i % (bytes / 16) * 16;
        *(uint4 *)(to + t * bytes + at) = *(const uint4 *)(sh.keys.k + t * sh.row + at);
    }
}

/* Stores a square. Elements above its diagonal are zero, and those whose row and column a gate
 * parts, even if beta of the column, or the sum, is NaN. */
GDN_DEVICE void store_square(char *to, const char *from, token_mask resets)
{
    for (int x = threadIdx.x; x < SQUARE_PIECES; x += CHUNKS_THREADS) {
        const struct square_piece p = piece_of(x);
        uint4 word = *(const uint4 *)(from + p.row * CHUNK_ROW + p.byte);
        if (resets || p.byte / 2 + 7 > p.row) {
            uint16_t *e = (uint16_t *)&word;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const int column = p.byte / 2 + j;
                if (column > p.row || are_parted(resets, column, p.row)) e[j] = 0;
            }
        }
        *(uint4 *)(to + 16 * x) = word;
    }
}

/* Makes the record of a state head. Its gates are prepared. */
template <int io>
GDN_DEVICE void make_record(struct chunks_shared &sh, portable_vectors &v,
                            struct portable_record &to, const mma_block (&keys)[CHUNK / 16],
                            const mma_block (&queries)[CHUNK / 16], bool has_lengths)
{
    const int warp = threadIdx.x / 32;
    if (has_lengths) {
        apply_lengths(v, sh.lengths);
        __syncthreads();
    }
    if (in_warp(tokens_of(v.resets) != 0))
        write_squares<io, true>(sh, v, keys, queries, warp);
    else
        write_squares<io, false>(sh, v, keys, queries, warp);
    __syncwarp();
    invert_diagonal<CHUNK>(sh.square, sh.diagonal, warp);
    __syncthreads();
    write_column<io, true>(sh, v, warp);
    __syncthreads();
    store_square(to.T, sh.T, tokens_of(v.resets));
    store_square(to.P, sh.P, 0);
    for (int x = threadIdx.x; x < (int)sizeof v / 16; x += CHUNKS_THREADS)
        ((uint4 *)&to.v)[x] = ((const uint4 *)&v)[x];
}

/* Loads keys and queries of a chunk, with zeros beyond K. */
GDN_DEVICE void load_rows_of(struct chunks_shared &sh, const struct gdn_cu_prefill_portable &a,
                             const struct stage_chunk &c, int head)
{
    enum { MOST = 2 * CHUNKS_DEEP };
    const struct gdn_cu_rule &r = a.rule;
    const int n = (int)c.n;
    if (r.K < CHUNKS_DEEP) {
        for (int i = threadIdx.x; i < (int)sizeof sh.keys / 16; i += CHUNKS_THREADS)
            ((uint4 *)&sh.keys)[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    load_keys<CHUNK, MOST, CHUNKS_THREADS>(sh.keys.k, sh.row,
                                           row_at(r.k, c.seq, 0, source_head(r, head, r.Hk)),
                                           r.k.token, n, 2 * r.K, a.k_wide);
    if (r.out.data)
        load_keys<CHUNK, MOST, CHUNKS_THREADS>(sh.keys.q, sh.row,
                                               row_at(r.q, c.seq, 0, source_head(r, head, r.Hq)),
                                               r.q.token, n, 2 * r.K, a.q_wide);
    copy_commit();
}

template <int io> GDN_DEVICE void run_chunks(const struct gdn_cu_prefill_portable &a)
{
    struct chunks_shared &sh = *(struct chunks_shared *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int warp = threadIdx.x / 32;
    const int64_t number = blockIdx.x / a.n_groups;
    const struct chunks_heads heads = heads_of(a, (int)(blockIdx.x % a.n_groups));
    if (warp == 0) {
        const struct stage_chunk found = find_numbered(r.batch, number);
        if (threadIdx.x == 0) sh.chunk = found;
    }
    __syncthreads();
    const struct stage_chunk &c = sh.chunk;
    if (c.n == 0) return;
    const bool has_lengths = r.norm != GDN_NO_NORM;
    load_rows_of(sh, a, c, heads.head);
    if (warp < heads.n) prepare_gates(sh.v[warp], r, c, heads.head + warp * heads.step);
    copy_wait<0>();
    __syncthreads();
    if (has_lengths) {
        find_lengths<io>(sh, r, (int)c.n);
        __syncthreads();
    }
    if (a.keys && heads.first)
        store_keys(sh, keys_at(a, number, source_head(r, heads.head, r.Hk)), key_bytes(r));
    mma_block keys[CHUNK / 16], queries[CHUNK / 16];
    const uint32_t k = shared_address(sh.keys.k), q = shared_address(sh.keys.q);
    multiply_rows<io, CHUNKS_DEEP>(keys, k, k, warp);
    multiply_rows<io, CHUNKS_DEEP>(queries, q, k, warp);
    __syncthreads(); /* keys and queries have been read */
    for (int i = 0; i < heads.n; i++) {
        const int at = i % (CHUNKS_THREADS / 32);
        if (i && at == 0) { /* the next heads' gates */
            if (i + warp < heads.n)
                prepare_gates(sh.v[warp], r, c, heads.head + (i + warp) * heads.step);
            __syncthreads();
        }
        make_record<io>(sh, sh.v[at], record_at(a, number, heads.head + i * heads.step), keys,
                        queries, has_lengths);
        __syncthreads();
    }
}

#endif
