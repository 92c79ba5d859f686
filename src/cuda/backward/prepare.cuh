/* SPDX-License-Identifier: Apache-2.0 */
/* Computes vectors, T and P of a chunk's state heads. A block of four warps has a chunk and a key
 * head. It makes the products of keys and queries once for all state heads that read them. The file
 * that includes this one has included tiles.cuh of sm90/ or of portable/. */
#ifndef GDN_CUDA_BACKWARD_PREPARE_CUH
#define GDN_CUDA_BACKWARD_PREPARE_CUH

#include "cuda/backward/gates.cuh"
#include "cuda/backward/tiles.cuh"
#include "cuda/backward/parts.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/prefill/squares.cuh"

/* deep: columns of K, padded by zeros. */
template <int deep> struct prepare_shared : chunk_squares<deep> {
    alignas(16) vectors v[GROUP / 32]; /* for as many state heads as there are warps */
    struct stage_chunk chunk;          /* here, because registers are scarce */
    struct backward_part part;
};
static_assert(sizeof(chunk_gates<CHUNK>) % 8 == 0, "pairs of k_scale");
static_assert(sizeof(prepare_shared<DEEP>) <= GDN_CU_PREPARE_BYTES, "prepare_shared");
static_assert(sizeof(prepare_shared<DEEPEST>) <= GDN_CU_PREPARE_DEEP_BYTES, "prepare_shared");

/* Copies rows of K elements of a head of a tensor, with zeros beyond n and K. */
template <int deep>
GDN_DEVICE void copy_rows(char *to, const struct gdn_rows &rows, const struct stage_chunk &c,
                          int head, int K)
{
    enum { PARTS = deep / 8 }; /* parts of a row, 16 bytes each */
    const int at = threadIdx.x % PARTS * 16;
    const bool is_in = at < 2 * K;
#pragma unroll 8
    for (int t = threadIdx.x / PARTS; t < CHUNK; t += GROUP / PARTS) {
        const bool there = is_in && t < c.n;
        copy_async<16>(shared_address(to) + t * prepare_shared<deep>::row + at,
                       row_at(rows, c.seq, there ? t : 0, head) + (there ? at : 0), there ? 16 : 0);
    }
}

/* Finds the lengths of keys and queries, and the factors of their norms in gradients. A thread has
 * a row. In f16 rows are scaled to length one. */
template <int deep>
GDN_DEVICE void make_lengths(prepare_shared<deep> &sh, struct key_norms &to,
                             const struct gdn_cu_rule &r, int n)
{
    const int t = threadIdx.x % CHUNK, i = threadIdx.x / CHUNK;
    char *row = (i ? sh.keys.q : sh.keys.k) + t * sh.row;
    const float square = row_square<BACKWARD_IO, deep>(row);
    const float inverse = t < n ? inverse_length(square, r.norm, r.norm_eps) : 1;
    const float bend = -norm_slope(square, r);
    if (SCALES_ROWS) scale_row<BACKWARD_IO>(row, inverse, deep);
    sh.lengths[i][t] = inverse;
    to.outer[i][t] = SCALES_ROWS ? inverse : 1;
    to.bend[i][t] = SCALES_ROWS ? bend : bend * inverse * inverse;
}
/* Waits for keys and queries in shared memory. Stores them as tiles, if the workspace has tiles. */
template <int deep>
GDN_DEVICE void store_keys(prepare_shared<deep> &sh, const struct gdn_cu_backward &a, int n,
                           int64_t number, int key)
{
    const int bytes = form_of(a).keys * TILE;
    char *k = keys_of(a, number, key), *q = k + bytes;
    struct key_norms &norms = *(struct key_norms *)norms_at(a, k);
    copy_wait<0>();
    __syncthreads();
    if (a.rule.norm != GDN_NO_NORM) {
        make_lengths(sh, norms, a.rule, n);
        if (SCALES_ROWS) __syncthreads();
    }
    if (!has_key_tiles(a)) return;
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK * deep / 8; i += GROUP) {
        const int t = i / (deep / 8), column = i % (deep / 8) * 8, from = t * sh.row + 2 * column;
        const int place = column / 64 * TILE + tile_place(t, column % 64);
        if (place >= bytes) continue;
        *(uint4 *)(k + place) = *(uint4 *)(sh.keys.k + from);
        *(uint4 *)(q + place) = *(uint4 *)(sh.keys.q + from);
    }
}

/* Marks tokens whose q or k is not finite: then the product of the row with itself is not
 * finite. */
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

/* ---- T --------------------------------------------------------------------------------------- */

/* Stores a square as a tile. Blocks above the diagonal were not written, and become zero. Elements
 * whose row and column a gate parts become zero too, even if the sum is NaN. */
GDN_DEVICE void store_square(char *to, const char *from, token_mask resets)
{
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 8; i += blockDim.x) {
        const int row = i / (CHUNK / 8), column = i % (CHUNK / 8) * 8;
        uint4 x = *(const uint4 *)(from + row * CHUNK_ROW + 2 * column);
        if (column / 16 > row / 16) x = make_uint4(0, 0, 0, 0);
        if (resets) {
            uint16_t *e = (uint16_t *)&x;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (column + j <= row && are_parted(resets, column + j, row)) e[j] = 0;
        }
        *(uint4 *)(to + tile_place(row, column)) = x;
    }
}

/* Returns true if the chunk counts for a head that reads the key head. */
GDN_DEVICE bool is_walked(const struct gdn_cu_backward &a, const struct backward_part &p, int key)
{
    const struct gdn_cu_rule &r = a.rule;
    int head = first_reader(r, key, r.Hk);
    for (int i = 0; a.cut.stops && i < r.H / r.Hk; i++, head += reader_step(r, r.Hk))
        if (chunks_before_stop(a, p, head) > 0) return true;
    return !a.cut.stops;
}

/* Makes T and P of a state head, whose gates are prepared. */
template <class Shared>
GDN_DEVICE void prepare_head(Shared &sh, vectors &v, struct chunk_record &to,
                             const mma_block (&keys)[CHUNK / 16],
                             const mma_block (&queries)[CHUNK / 16], bool scales, int warp)
{
    if (scales) {
        apply_lengths(v, sh.lengths);
        __syncthreads();
    }
    note_dead(v, keys, queries, warp);
    if (threadIdx.x < CHUNK) {
        const int t = threadIdx.x;
        v.read[t] = v.from_start[t];
        scale_kept(v.read[t], -v.beta[t]);
    }
    if (in_warp(tokens_of(v.resets) != 0))
        write_squares<BACKWARD_IO, true>(sh, v, keys, queries, warp);
    else
        write_squares<BACKWARD_IO, false>(sh, v, keys, queries, warp);
    __syncwarp();
    invert_diagonal<CHUNK>(sh.square, sh.diagonal, warp);
    __syncthreads();
    write_column<BACKWARD_IO, false>(sh, v, warp);
    __syncthreads();
    store_square(to.T, sh.T, tokens_of(v.resets));
    store_square(to.P, sh.P, 0);
    for (int x = threadIdx.x; x < (int)sizeof v / 16; x += blockDim.x)
        ((uint4 *)&to.v)[x] = ((const uint4 *)&v)[x];
}

template <int deep> GDN_DEVICE void prepare_chunks(const struct gdn_cu_backward &a)
{
    prepare_shared<deep> &sh = *(prepare_shared<deep> *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int key = (int)(blockIdx.x % r.Hk), warp = threadIdx.x / 32;
    const int64_t number = blockIdx.x / r.Hk;
    const int readers = r.H / r.Hk, head = first_reader(r, key, r.Hk), step = reader_step(r, r.Hk);
    if (warp == 0) {
        struct backward_part part;
        struct stage_chunk found = find_part_chunk(a, number, part);
        found.seq.first += found.t0;
        found.t0 = 0;
        if (threadIdx.x == 0) sh.part = part, sh.chunk = found;
    }
    __syncthreads();
    const struct stage_chunk &c = sh.chunk;
    if (threadIdx.x == 0 && key == 0)
        a.places[number] = { c.seq.batch, c.seq.first, (int32_t)c.n, 0 };
    if (c.n == 0) {
        for (int i = 0; i < readers && threadIdx.x == 0; i++)
            keep_sums(a, number, head + i * step, (const double(*)[2]) nullptr, 0);
        return;
    }
    if (!is_walked(a, sh.part, key) || (is_first_pass(a) && sh.part.in.is_last)) return;
    copy_rows<deep>(sh.keys.k, a.k, c, key, r.K);
    copy_rows<deep>(sh.keys.q, a.q, c, key, r.K);
    copy_commit();
    if (warp < readers) prepare_gates(sh.v[warp], r, c, head + warp * step);
    store_keys(sh, a, (int)c.n, number, key);
    mma_block keys[CHUNK / 16], queries[CHUNK / 16];
    const uint32_t k = shared_address(sh.keys.k), q = shared_address(sh.keys.q);
    multiply_rows<BACKWARD_IO, deep>(keys, k, k, warp);
    multiply_rows<BACKWARD_IO, deep>(queries, q, k, warp);
    __syncthreads(); /* keys and queries have been read */
    for (int i = 0; i < readers; i++) {
        const int at = i % (GROUP / 32);
        if (i && at == 0) { /* the next heads' gates */
            if (i + warp < readers) prepare_gates(sh.v[warp], r, c, head + (i + warp) * step);
            __syncthreads();
        }
        if (chunks_before_stop(a, sh.part, head + i * step) <= 0) continue;
        prepare_head(sh, sh.v[at], record_at(a, number, head + i * step), keys, queries,
                     r.norm != GDN_NO_NORM && !SCALES_ROWS, warp);
        __syncthreads();
    }
}

#endif
