/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common parts of the kernels on tensor cores: the record of a chunk and a state head in
 * memory, and tiles in shared memory and in registers. All of them have BACKWARD_IO, the dtype of
 * q, k, v and dout. K and V are padded by zeros to a multiple of 128, so loops have the same length
 * for smaller heads. If there are up to 64 keys or columns, memory has no second tile for them, and
 * the second tile in shared memory stays zero.
 *
 * In bf16 the tensors' rows of q and k are factors as they are. 1 / length is in the vectors of the
 * chunk, in those for exp(G) k and exp(G_C - G) k. Their letters are those of general_gram.cuh.
 *
 * In f16 U / length of a tiny key would be infinite, and the gradients of small outputs would be
 * zero. So rows that are factors have length one. The scale of q is divided by a power of two,
 * drop, that makes it about one. So J, Z, P and q_start are 1 / drop times as large. Results are
 * multiplied by drop in float32.
 */
#ifndef GDN_CUDA_BACKWARD_TILES_CUH
#define GDN_CUDA_BACKWARD_TILES_CUH

#include "cuda/backward/backward.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/prefill/general_gram.cuh"

/* DEEP, DEEPEST: the most of K with padding, of a warpgroup's part of a state and of all of it.
 * TILE: bytes of 64 rows of 64 elements, swizzled (tile_place()). GROUP: threads of a warpgroup. */
enum { DEEP = 128, DEEPEST = 256, TILE = 64 * 128, GROUP = 128 };

/* In f16, rows of keys and queries have length one. */
enum { SCALES_ROWS = BACKWARD_IO == GDN_F16 };

typedef mma_tiles<BACKWARD_IO> tiles;
typedef tiles::pairs pairs;

struct vectors : chunk_vectors<CHUNK> {
    float read[CHUNK]; /* -beta from_start: of k . S in U */
};

/* A chunk and a state head in memory. Neighbouring members are moved by one copy. After it are
 * tiles of U, [v / 64], and of S, [v / 64][k / 64], then the same of Z and J, which are absent if
 * one kernel makes and reads them. The tiles are transposed: their rows are columns of V. */
struct chunk_record {
    alignas(16) vectors v;
    alignas(16) char T[TILE], P[TILE]; /* rows are tokens; T without beta */
};
static_assert(sizeof(struct chunk_record) == GDN_CU_BACKWARD_SQUARES, "driver/args.h");
static_assert((int)TILE == (int)GDN_CU_BACKWARD_TILE, "driver/args.h");
static_assert(sizeof(vectors) % 16 == 0, "copies of 16 bytes");

/* The tiles of keys and of columns of V of a head, and where they are in a record. */
struct record_form {
    int keys, columns;
    __device__ __forceinline__ int u(int v) const { return sizeof(struct chunk_record) + v * TILE; }
    __device__ __forceinline__ int S(int v) const { return u(columns + v * keys); }
    __device__ __forceinline__ int z(int v) const { return S(columns) + v * TILE; }
    __device__ __forceinline__ int J(int v) const { return z(columns + v * keys); }
    __device__ __forceinline__ bool is_small(void) const { return keys < 2 || columns < 2; }
};
GDN_DEVICE int tiles_of(int n) { return n > DEEP ? (n + DEEP - 1) / DEEP * 2 : (n + 63) / 64; }
GDN_DEVICE struct record_form form_of(const struct gdn_cu_backward &a)
{
    return { tiles_of(a.rule.K), tiles_of(a.rule.V) };
}

/* Factors of a norm, for rows of k and of q. If x is the gradient of a normalised row, outer (x +
 * bend (x . row) row) is the gradient of the caller's row. */
struct key_norms {
    float outer[2][CHUNK], bend[2][CHUNK];
};
static_assert(sizeof(struct key_norms) == GDN_CU_BACKWARD_NORMS, "driver/args.h");

/* Returns the record of a chunk and a key head in memory: keys as tiles, [k / 64], rows are tokens;
 * behind them queries, then the norms. It has no tiles if rows of the tensors are factors as they
 * are, and are loaded from there. */
GDN_DEVICE char *keys_of(const struct gdn_cu_backward &a, int64_t number, int key)
{
    return a.keys + (number * a.rule.Hk + key) * a.key_bytes;
}

GDN_DEVICE bool has_key_tiles(const struct gdn_cu_backward &a)
{
    return a.key_bytes > GDN_CU_BACKWARD_NORMS;
}
template <class Char> GDN_DEVICE Char *norms_at(const struct gdn_cu_backward &a, Char *keys)
{
    return keys + a.key_bytes - GDN_CU_BACKWARD_NORMS;
}

/* Return a record, and the next record of a head. */
GDN_DEVICE struct chunk_record &record_at(const struct gdn_cu_backward &a, int64_t number, int head)
{
    return *(struct chunk_record *)(a.records + (number * a.rule.H + head) * a.record_bytes);
}
template <class Record>
GDN_DEVICE Record &next_record(const struct gdn_cu_backward &a, Record &from, int step)
{
    return *(Record *)((char *)&from + (int64_t)step * a.rule.H * a.record_bytes);
}

/* Returns the place of a chunk's rows in the tensors, without the sequence. */
GDN_DEVICE struct stage_chunk chunk_at(const struct gdn_cu_place &p, int64_t number)
{
    struct stage_chunk c = {};
    c.seq.batch = p.batch;
    c.seq.first = p.first;
    c.number = number;
    c.n = p.n;
    return c;
}

/* ---- Sums of four warps: 64 rows, 64 or 128 columns -------------------------------------------
 *
 * Element 4 i + 2 r + e of a thread is in row g + 8 r of its warp's 16, and in column 8 i + 2 t + e
 * (g = lane / 4, t = lane % 4). Pairs of 16 bits are in the order in which they are a factor. */

GDN_DEVICE int sum_row(int e)
{
    return (int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) + 8 * (e / 2 % 2);
}
GDN_DEVICE int sum_column(int e) { return e / 4 * 8 + (int)(threadIdx.x % 4) * 2 + e % 2; }

template <int n> GDN_DEVICE void pack(uint32_t (&to)[n], const float (&x)[2 * n])
{
#pragma unroll
    for (int i = 0; i < n; i++) to[i] = pairs::pair(x[2 * i], x[2 * i + 1]);
}

/* Loads a factor from the transposed tile. A warp has 16 rows, or columns. */
GDN_DEVICE void load_turned(uint32_t (&x)[16], const char *tile)
{
    const uint32_t l = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t at =
        shared_address(tile) + tile_place(l % 8 + l / 16 * 8, 16 * warp + l / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t y[4];
        load_matrices_turned(y, at + 16 * 128 * i);
#pragma unroll
        for (int j = 0; j < 4; j++) x[4 * i + j] = y[j];
    }
}

/* Loads the same, with zeros from token n on: those rows belong to another sequence. */
GDN_DEVICE void load_tokens(uint32_t (&x)[16], const char *tile, int n)
{
    load_turned(x, tile);
    if (in_warp(n == CHUNK)) return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int t = sum_column(2 * i);
        x[i] &= (t < n ? 0xffffu : 0) | (t + 1 < n ? 0xffff0000u : 0);
    }
}
template <int n> GDN_DEVICE void unpack(float (&to)[2 * n], const uint32_t (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        to[2 * i] = pairs::low(x[i]);
        to[2 * i + 1] = pairs::high(x[i]);
    }
}

/* A thread's factors of columns that are tokens: of 8 i + 2 t and the next one. */
struct token_pairs {
    float2 of[8];
    __device__ __forceinline__ float at(int e) const { return e % 2 ? of[e / 4].y : of[e / 4].x; }
};
GDN_DEVICE struct token_pairs pairs_of(const float (&from)[CHUNK])
{
    struct token_pairs f;
#pragma unroll
    for (int i = 0; i < 8; i++) f.of[i] = *(const float2 *)(from + sum_column(4 * i));
    return f;
}
/* Multiplies x by factors. selects: if a factor is zero, the result is zero, whatever x is. */
template <bool selects> GDN_DEVICE void weigh(float (&x)[32], const struct token_pairs &f)
{
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] = selects && f.at(e) == 0 ? 0 : f.at(e) * x[e];
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/*
 * Returns true if token t gets NaN. A value that is not finite must not pass a gate that forgets,
 * but a product multiplies every token by zero. So if a gate of the chunk forgets, rows with such
 * values become zero and their tokens are marked dead. At the end all tokens between the same two
 * gates get NaN. If no gate forgets, NaN reaches all tokens of the chunk (G11).
 */
static __device__ __noinline__ bool are_spoilt(token_mask dead, token_mask resets, int t)
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

/* Sets rows of n_tiles consecutive tiles to zero from token n on, because they hold tokens of the
 * next sequence. n_threads threads call it; i is the number of this thread. */
GDN_DEVICE void clear_rows(char *tile, int n_tiles, int n, int i, int n_threads)
{
    for (int x = i; x < (CHUNK - n) * 8; x += n_threads)
        for (int j = 0; j < n_tiles; j++)
            *(uint4 *)(tile + j * TILE + n * 128 + x * 16) = make_uint4(0, 0, 0, 0);
}

/* Sets rows of n consecutive tiles to zero if an element is not finite, and marks their tokens
 * dead. n_threads threads call it; i is the number of this thread. */
GDN_DEVICE void clean_rows(char *tile, int n, uint32_t (&dead)[2], int i, int n_threads)
{
    for (int t = i; t < CHUNK; t += n_threads) {
        uint32_t taint = 0;
        for (int x = 0; x < 32 * n; x++)
            taint = pairs::taint(taint,
                                 *(const uint32_t *)(tile + x / 32 * TILE + t * 128 + x % 32 * 4));
        if (!tiles::is_tainted(taint)) continue;
        atomicOr(&dead[t / 32], 1u << t % 32);
        for (int x = 0; x < 32 * n; x++)
            *(uint32_t *)(tile + x / 32 * TILE + t * 128 + x % 32 * 4) = 0;
    }
}
/* Cleans the elements of a factor whose columns are tokens. */
GDN_DEVICE void clean_factor(uint32_t (&x)[16], uint32_t (&dead)[2])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int t = sum_column(2 * i);
        if (!is_finite(pairs::low(x[i]))) {
            atomicOr(&dead[t / 32], 1u << t % 32);
            x[i] &= 0xffff0000u;
        }
        if (!is_finite(pairs::high(x[i]))) {
            atomicOr(&dead[t / 32], 2u << t % 32);
            x[i] &= 0xffffu;
        }
    }
}

#endif
