/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors, T and P of a chunk's state heads, by a block of four warps for a chunk and a key head.
 * The products of keys and queries are made once for all state heads that read them.
 */
#ifndef GDN_CUDA_BACKWARD_PREPARE_CUH
#define GDN_CUDA_BACKWARD_PREPARE_CUH

#include "cuda/prefill/backward_gates.cuh"
#include "cuda/prefill/backward_mma.cuh"
#include "cuda/prefill/backward_parts.cuh"
#include "cuda/prefill/backward_rows.cuh"

/* From one row of what products take to the next, bytes. */
enum { CHUNK_ROW = GDN_PREFILL_ROW(CHUNK, 2) };

/* deep: K with zeros. */
template <int deep> struct prepare_shared {
    static constexpr int row = GDN_PREFILL_ROW(deep, 2); /* the same, of keys and queries */
    union {
        struct {
            alignas(16) char k[CHUNK * row], q[CHUNK * row];
        } keys;
        struct {
            alignas(16) float square[CHUNK * GDN_PREFILL_LD(CHUNK)];
            alignas(16) float diagonal[CHUNK * GDN_PREFILL_LD_DIAGONAL];
            alignas(16) char  P[CHUNK * CHUNK_ROW];
        };
    };
    float               lengths[2][CHUNK]; /* 1 / length of k and q */
    alignas(16) vectors v;
    struct backward_part part; /* here, because registers are scarce */
};
static_assert(sizeof(prepare_shared<DEEP>) <= GDN_CU_PREPARE_BYTES, "prepare_shared");
static_assert(sizeof(prepare_shared<DEEPEST>) <= GDN_CU_PREPARE_DEEP_BYTES, "prepare_shared");

/* Copies rows of K elements of a head of a tensor, with zeros beyond n and K. */
template <int deep>
GDN_DEVICE void copy_rows(char *to, const struct gdn_rows &rows, const struct stage_chunk &c,
                          int head, int K)
{
    enum { PARTS = deep / 8 }; /* of a row, 16 bytes each */
    const int  at    = threadIdx.x % PARTS * 16;
    const bool is_in = at < 2 * K;
#pragma unroll 8
    for (int t = threadIdx.x / PARTS; t < CHUNK; t += GROUP / PARTS) {
        const bool there = is_in && t < c.n;
        copy_async<16>(shared_address(to) + t * prepare_shared<deep>::row + at,
                       row_at(rows, c.seq, there ? t : 0, head) + (there ? at : 0),
                       there ? 16 : 0);
    }
}

/* Finds the lengths of keys and queries, and what they are in gradients; a thread for a row. In f16
 * rows become those of length one. */
template <int deep>
GDN_DEVICE void make_lengths(prepare_shared<deep> &sh, struct key_norms &to,
                             const struct gdn_cu_rule &r, int n)
{
    const int   t = threadIdx.x % CHUNK, i = threadIdx.x / CHUNK;
    char       *row = (i ? sh.keys.q : sh.keys.k) + t * sh.row;
    const float square = row_square<BACKWARD_IO, deep>(row);
    const float inverse = t < n ? inverse_length(square, r.norm, r.norm_eps) : 1;
    const float bend = -norm_slope(square, r);
    if (SCALES_ROWS) scale_row<BACKWARD_IO>(row, inverse, deep);
    sh.lengths[i][t] = inverse;
    to.outer[i][t]   = SCALES_ROWS ? inverse : 1;
    to.bend[i][t]    = SCALES_ROWS ? bend : bend * inverse * inverse;
}
/* Loads keys and queries to shared memory, and stores them as tiles in memory. */
template <int deep>
GDN_DEVICE void load_keys(prepare_shared<deep> &sh, const struct gdn_cu_backward &a,
                          const struct stage_chunk &c, int64_t number, int key)
{
    const int          bytes = form_of(a).keys * TILE;
    char              *k = keys_of(a, number, key), *q = k + bytes;
    struct key_norms  &norms = *(struct key_norms *)(q + bytes);
    copy_rows<deep>(sh.keys.k, a.k, c, key, a.rule.K);
    copy_rows<deep>(sh.keys.q, a.q, c, key, a.rule.K);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    if (a.rule.norm != GDN_NO_NORM) {
        make_lengths(sh, norms, a.rule, (int)c.n);
        if (SCALES_ROWS) __syncthreads();
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK * deep / 8; i += GROUP) {
        const int t = i / (deep / 8), column = i % (deep / 8) * 8, from = t * sh.row + 2 * column;
        const int place = column / 64 * TILE + tile_place(t, column % 64);
        if (place >= bytes) continue;
        *(uint4 *)(k + place) = *(uint4 *)(sh.keys.k + from);
        *(uint4 *)(q + place) = *(uint4 *)(sh.keys.q + from);
    }
}

/* Prepares the gates. The first warp calls it. */
template <class Shared>
GDN_DEVICE void prepare_gates(Shared &sh, const struct gdn_cu_rule &r,
                              const struct stage_chunk &c, int head)
{
    raw_gates<CHUNK>  raw;
    float             G[raw_gates<CHUNK>::each] = {};
    struct gdn_cu_seq s = c.seq;
    s.n_valid           = c.n;
    start_gates(raw, r, s, head, 0);
    fetch_gates<1>(raw, r);
    expand_gates<CHUNK>(G, sh.v, raw, r, (int)c.n);
    write_gates<CHUNK>(sh.v, G, r, (int)c.n);
    fill_tokens(sh.v.k_scale, 1);
    fill_tokens(sh.v.q_scale, r.scale);
}

/* Multiplies the vectors by lengths, as write_lengths() does. */
template <class Shared> GDN_DEVICE void apply_lengths(Shared &sh)
{
    const int   t = threadIdx.x % CHUNK;
    const float length = sh.lengths[threadIdx.x / CHUNK][t];
    if (threadIdx.x >= CHUNK) {
        sh.v.q_scale[t] *= length;
        sh.v.q_start[t] *= length;
    } else {
        sh.v.k_scale[t] = length;
        sh.v.from_start[t] *= length;
        if (sh.v.to_end[t] != 0) sh.v.to_end[t] *= length; /* forgotten, were the length NaN */
    }
}

/* Marks tokens whose q or k is not finite: the product of the row with itself is not. */
GDN_DEVICE void note_dead(vectors &v, const mma_block (&keys)[CHUNK / 16],
                          const mma_block (&queries)[CHUNK / 16], int warp)
{
#pragma unroll
    for (int b = 0; b < CHUNK / 16; b++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = block_row(i % 4);
            if (b != warp || row != block_column(i / 4, i)) continue;
            if (is_finite(keys[b][i / 4][i % 4]) && is_finite(queries[b][i / 4][i % 4])) continue;
            atomicOr(&v.dead[(16 * b + row) / 32], 1u << (16 * b + row) % 32);
        }
}

/* Stores rows of T from the square, with zeros where a gate parts them. */
template <class Shared> GDN_DEVICE void store_t(struct chunk_record &to, const Shared &sh)
{
    const token_mask resets = tokens_of(sh.v.resets);
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 2; i += blockDim.x) {
        const int row = i / (CHUNK / 2), column = i % (CHUNK / 2) * 2;
        float     x[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            x[e] = column + e > row || are_parted(resets, column + e, row)
                       ? 0
                       : sh.square[(column + e) * GDN_PREFILL_LD(CHUNK) + row];
        tiles::store_pair(to.T + tile_place(row, column), x[0], x[1]);
    }
}

/* Stores P from its tile, whose blocks above the diagonal were not written. */
template <class Shared> GDN_DEVICE void store_p(struct chunk_record &to, const Shared &sh)
{
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 8; i += blockDim.x) {
        const int   row = i / (CHUNK / 8), column = i % (CHUNK / 8) * 8;
        const uint4 x = *(const uint4 *)(sh.P + row * CHUNK_ROW + 2 * column);
        *(uint4 *)(to.P + tile_place(row, column)) =
            column / 16 > row / 16 ? make_uint4(0, 0, 0, 0) : x;
    }
}

/* Returns true if the chunk counts for a head that reads the key head. */
GDN_DEVICE bool is_walked(const struct gdn_cu_backward &a, const struct backward_part &p, int key)
{
    const struct gdn_cu_rule &r = a.rule;
    int                       head = first_reader(r, key, r.Hk);
    for (int i = 0; a.cut.stops && i < r.H / r.Hk; i++, head += reader_step(r, r.Hk))
        if (chunks_before_stop(a, p, head) > 0) return true;
    return !a.cut.stops;
}

template <int deep> GDN_DEVICE void prepare_chunks(const struct gdn_cu_backward &a)
{
    prepare_shared<deep>     &sh = *(prepare_shared<deep> *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int                 key = (int)(blockIdx.x % r.Hk), warp = threadIdx.x / 32;
    const int64_t             number = blockIdx.x / r.Hk;
    struct backward_part      part;
    const struct stage_chunk  c = find_part_chunk(a, number, part);
    if (threadIdx.x == 0) sh.part = part;
    if (threadIdx.x == 0 && key == 0)
        a.places[number] = { c.seq.batch, c.seq.first + c.t0, (int32_t)c.n, 0 };
    if (c.n == 0) {
        int head = first_reader(r, key, r.Hk);
        for (int i = 0; i < r.H / r.Hk && threadIdx.x == 0; i++, head += reader_step(r, r.Hk))
            keep_sums(a, number, head, (const double (*)[2]) nullptr, 0);
        return;
    }
    if (!is_walked(a, part, key)) return;
    struct stage_chunk first = c;
    first.seq.first += c.t0;
    first.t0 = 0;
    load_keys(sh, a, first, number, key);
    mma_block keys[CHUNK / 16], queries[CHUNK / 16];
    const uint32_t k = shared_address(sh.keys.k), q = shared_address(sh.keys.q);
    multiply_rows<BACKWARD_IO, deep>(keys, k, k, warp);
    multiply_rows<BACKWARD_IO, deep>(queries, q, k, warp);
    __syncthreads(); /* keys and queries are done with */
    int head = first_reader(r, key, r.Hk);
    for (int i = 0; i < r.H / r.Hk; i++, head += reader_step(r, r.Hk)) {
        struct chunk_record &to = record_at(a, number, head);
        if (chunks_before_stop(a, sh.part, head) <= 0) continue;
        if (warp == 0) prepare_gates(sh, r, first, head);
        __syncthreads();
        if (r.norm != GDN_NO_NORM && !SCALES_ROWS) {
            apply_lengths(sh);
            __syncthreads();
        }
        note_dead(sh.v, keys, queries, warp);
        if (threadIdx.x < CHUNK)
            sh.v.read[threadIdx.x] = -sh.v.beta[threadIdx.x] * sh.v.from_start[threadIdx.x];
        write_l<CHUNK>(sh.square, sh.v, keys, warp);
        write_p<BACKWARD_IO, CHUNK>(sh.P, sh.v, queries, warp);
        __syncwarp();
        invert_diagonal<CHUNK>(sh.square, sh.diagonal, warp);
        __syncthreads();
        invert_below<CHUNK>(sh.square, sh.diagonal, warp);
        __syncthreads();
        store_t(to, sh);
        store_p(to, sh);
        for (int x = threadIdx.x; x < (int)sizeof(vectors) / 4; x += blockDim.x)
            ((uint32_t *)&to.v)[x] = ((const uint32_t *)&sh.v)[x];
        __syncthreads();
    }
}

#endif
