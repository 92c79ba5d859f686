/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of backward_mma.cu share: the record of a chunk and a state head in memory, its
 * tiles in shared memory, and products of tiles. All in bf16, K = V = 128.
 *
 * The tensors' rows of q and k are factors as they are. 1 / length is in the vectors of the chunk,
 * whose letters are those of general_gram.cuh: in what stands for exp(G) k or exp(G_C - G) k.
 */
#ifndef GDN_CUDA_BACKWARD_MMA_CUH
#define GDN_CUDA_BACKWARD_MMA_CUH

#include "cuda/device/ptx_wgmma.cuh"
#include "cuda/prefill/backward.cuh"
#include "cuda/prefill/general_gram.cuh"

enum { DEEP = 128 }; /* K and V */

typedef mma_tiles<GDN_BF16>  tiles;
typedef chunk_vectors<CHUNK> vectors;

/* From one row of a tile to the next, bytes. */
enum {
    DEEP_ROW  = GDN_PREFILL_ROW(DEEP, 2),
    CHUNK_ROW = GDN_PREFILL_ROW(CHUNK, 2),
    STRIP_ROW = GDN_PREFILL_ROW(STRIP, 2)
};

/* A chunk and a state head in memory, as tiles: a copy moves a matrix at once. S and J are turned:
 * [v][k]. */
struct chunk_record {
    alignas(16) vectors v;
    alignas(16) char    T[CHUNK * CHUNK_ROW], P[CHUNK * CHUNK_ROW]; /* T without beta */
    char                u[CHUNK * DEEP_ROW], z[CHUNK * DEEP_ROW];   /* U and Z */
    char                S[DEEP * DEEP_ROW], J[DEEP * DEEP_ROW];
};
static_assert(sizeof(struct chunk_record) == GDN_CU_BACKWARD_RECORD, "driver/args.h");
static_assert(sizeof(vectors) % 16 == 0, "copies of 16 bytes");

/* The keys and queries of a chunk and a key head, as tiles. */
struct key_record {
    alignas(16) char k[CHUNK * DEEP_ROW], q[CHUNK * DEEP_ROW];
};
static_assert(sizeof(struct key_record) == GDN_CU_BACKWARD_KEYS, "driver/args.h");

GDN_DEVICE struct key_record &keys_of(const struct gdn_cu_backward &a, int64_t number, int key)
{
    return ((struct key_record *)a.keys)[number * a.rule.Hk + key];
}
GDN_DEVICE struct chunk_record &record_of(const struct gdn_cu_backward &a, int64_t number, int head)
{
    return ((struct chunk_record *)a.records)[number * a.rule.H + head];
}

/* Where a chunk's rows are in the tensors, without the sequence. */
GDN_DEVICE struct stage_chunk chunk_at(const struct gdn_cu_place &p, int64_t number)
{
    struct stage_chunk c = {};
    c.seq.batch = p.batch;
    c.seq.first = p.first;
    c.number    = number;
    c.n         = p.n;
    return c;
}

/* ---- Copies to shared memory ----------------------------------------------------------------- */

/* Where a thread copies from: 16 bytes of some row of a chunk in a tensor, and from one row to the
 * next. Rows have `bytes` bytes, from a column on. */
struct row_source {
    const char *at;
    int64_t     row;
};
template <int bytes>
GDN_DEVICE struct row_source source_of(const struct gdn_rows &rows, const struct stage_chunk &c,
                                       int head, int column = 0)
{
    constexpr int each = bytes / 16;
    return { row_at(rows, c.seq, c.t0 + threadIdx.x / each, head) + 2 * column +
                 threadIdx.x % each * 16,
             rows.token };
}
/* n rows, then zeros for the rest of the chunk. By a block of so many threads. */
template <int bytes, int threads>
GDN_DEVICE void copy_rows(char *to, int to_row, const struct row_source &from, int n)
{
    constexpr int each = bytes / 16, step = threads / each;
    static_assert(threads % each == 0 && CHUNK % step == 0, "copy_rows");
    const int      t = threadIdx.x / each;
    const char    *at = from.at;
    const uint32_t target = shared_address(to) + t * to_row + threadIdx.x % each * 16;
#pragma unroll
    for (int i = 0; i < CHUNK / step; i++) {
        const bool is = t + i * step < n;
        copy_async<16>(target + i * step * to_row, is ? at : from.at, is ? 16 : 0);
        at += step * from.row;
    }
}

/* Barriers at which copies are awaited, n of them. By the whole block. */
GDN_DEVICE void start_barriers(uint64_t *barriers, int n)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < n; i++) mbarrier_init(shared_address(barriers + i), 1);
        mbarrier_init_fence();
    }
    __syncthreads();
}

/* So many bytes are to come at the barrier. By a warp. */
GDN_DEVICE void copy_begin(uint64_t &barrier, int bytes)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_expect(shared_address(&barrier), bytes);
    __syncwarp();
}
/* A matrix or the vectors of a record, by a lane. */
template <class Part>
GDN_DEVICE void copy_part(Part &to, const Part &from, uint64_t &barrier, int lane)
{
    if (threadIdx.x % 32 == lane)
        copy_in(shared_address(&to), &from, sizeof(Part), shared_address(&barrier));
}

/* ---- Products of tiles ----------------------------------------------------------------------- */

/* The operand whose rows are rows [16 i, ...) of a tile and whose columns are [16 x, ...); turned:
 * its rows are columns of the tile and its columns are rows. */
GDN_DEVICE void load_part(tiles::operand &o, const char *tile, int row, int i, int x)
{
    tiles::load(o, shared_address(tile) + tiles::lane(row) + 16 * i * row + 32 * x, row);
}
GDN_DEVICE void load_part_turned(tiles::operand &o, const char *tile, int row, int i, int x)
{
    tiles::load_turned(o, shared_address(tile) + tiles::lane_turned(row) + 16 * x * row + 32 * i,
                       row);
}

/* The same as the right factor of a product, in the order in which mma.sync wants its registers. */
struct right_operand {
    uint32_t x[4];
};
GDN_DEVICE void load_right(right_operand &o, const char *tile, int row, int i, int x)
{
    load_matrices(o.x, shared_address(tile) + tiles::lane_turned(row) + 16 * i * row + 32 * x);
}
GDN_DEVICE void load_right_turned(right_operand &o, const char *tile, int row, int i, int x)
{
    load_matrices_turned(o.x, shared_address(tile) + tiles::lane(row) + 16 * x * row + 32 * i);
}
GDN_DEVICE void multiply(mma_block &d, const tiles::operand &a, const right_operand &b)
{
    mma_bf16(d[0], a.x, b.x[0], b.x[1]);
    mma_bf16(d[1], a.x, b.x[2], b.x[3]);
}

GDN_DEVICE void clear_block(mma_block &b)
{
#pragma unroll
    for (int i = 0; i < 8; i++) b[i / 4][i % 4] = 0;
}

/* A block of 16 bits turned: its rows become columns. */
GDN_DEVICE void turn(tiles::operand &to, const tiles::operand &from)
{
    to.x[0] = turn_matrix(from.x[0]);
    to.x[1] = turn_matrix(from.x[2]);
    to.x[2] = turn_matrix(from.x[1]);
    to.x[3] = turn_matrix(from.x[3]);
}

/* An operand to rows of 16 bits from (row, column) on. */
GDN_DEVICE void store_part(char *to, int row, const tiles::operand &o)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(to + block_row(i % 2 * 2) * row + 2 * block_column(i / 2, 0)) = o.x[i];
}

/* A lane's factors of the columns, tokens, of a block. */
struct token_factors {
    float2 h[2];
    __device__ __forceinline__ float of(int i) const { return i % 2 ? h[i / 4].y : h[i / 4].x; }
};
GDN_DEVICE struct token_factors factors_of(const float *of, int first)
{
    const float *at = of + first + block_column(0, 0);
    return { { *(const float2 *)at, *(const float2 *)(at + 8) } };
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/*
 * Something not finite must not pass a gate that forgets, but a product takes every token times
 * zero. So where a gate of the chunk forgets, rows of tokens with such elements become zeros, the
 * tokens are noted as dead, and all tokens between the same two gates get NaN in the end. Where no
 * gate forgets, NaN reaches all tokens of the chunk (G11).
 */
__device__ __noinline__ bool are_spoilt(token_mask dead, token_mask resets, int t)
{
    const token_mask next = resets & ~tokens_below(t + 1);
    const token_mask till = next ? (next & (~next + 1)) - 1 : ~(token_mask)0;
    return (dead & till & ~tokens_below(first_seen(resets, t))) != 0;
}
GDN_DEVICE float spoil_with(const vectors &v, int t)
{
    const token_mask dead = tokens_of(v.dead);
    return dead && are_spoilt(dead, tokens_of(v.resets), t) ? __int_as_float(0x7fffffff) : 0;
}

/* Rows of a tile with an element that is not finite become zeros, their tokens dead. */
GDN_DEVICE void clean_rows(char *tile, int row, int columns, vectors &v)
{
    for (int t = threadIdx.x; t < CHUNK; t += blockDim.x) {
        uint32_t taint = 0;
        for (int x = 0; x < columns; x += 2)
            taint = mma_format_bf16::taint(taint, *(const uint32_t *)(tile + t * row + 2 * x));
        if (!tiles::is_tainted(taint)) continue;
        atomicOr(&v.dead[t / 32], 1u << t % 32);
        for (int x = 0; x < columns; x += 2) *(uint32_t *)(tile + t * row + 2 * x) = 0;
    }
}
/* The same where tokens are columns. */
GDN_DEVICE void clean_columns(char *tile, int row, int rows, vectors &v)
{
    for (int t = threadIdx.x; t < CHUNK; t += blockDim.x) {
        float sum = 0;
        for (int x = 0; x < rows; x++)
            sum = fmaf(bf16_to_f32(*(const uint16_t *)(tile + x * row + 2 * t)), 0, sum);
        if (sum == 0) continue;
        atomicOr(&v.dead[t / 32], 1u << t % 32);
        for (int x = 0; x < rows; x++) *(uint16_t *)(tile + x * row + 2 * t) = 0;
    }
}

#endif
