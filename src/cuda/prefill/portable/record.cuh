/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a chunk and a state head in memory, which `chunks` writes and `scan` reads. */
#ifndef GDN_CUDA_PREFILL_RECORD_CUH
#define GDN_CUDA_PREFILL_RECORD_CUH

#include "cuda/prefill/general_gram.cuh"
#include "cuda/prefill/portable/args.h"
#include "cuda/prefill/stages.cuh"

typedef chunk_vectors<CHUNK> portable_vectors;

/* A record. A square has blocks of 16 x 16, row by row, and none above the diagonal. A block has 16
 * rows of its columns 0 to 7, then 16 rows of the others. Rows that load_matrices() reads at once
 * follow each other, so that no two are in one bank. */
struct portable_record {
    alignas(16) portable_vectors v;
    alignas(16) char T[GDN_PORTABLE_SQUARE], P[GDN_PORTABLE_SQUARE];
};
static_assert(sizeof(struct portable_record) == GDN_PORTABLE_RECORD, "portable/args.h");
static_assert((int)GDN_PORTABLE_CHUNK == (int)CHUNK, "portable/args.h");

enum { SQUARE_PIECES = GDN_PORTABLE_SQUARE / 16 };

/* The place of 16 bytes of a square, number x of them: the row, and the byte in it. */
struct square_piece {
    int row, byte;
};
GDN_DEVICE struct square_piece piece_of(int x)
{
    const int n = x / 32, i = n < 1 ? 0 : n < 3 ? 1 : n < 6 ? 2 : 3; /* the block, and its row */
    const int j = n - i * (i + 1) / 2;
    return { 16 * i + x % 16, 32 * j + x % 32 / 16 * 16 };
}

GDN_DEVICE struct portable_record &record_at(const struct gdn_cu_prefill_portable &a,
                                             int64_t number, int head)
{
    return ((struct portable_record *)a.records)[number * a.rule.H + head];
}

/* key_bytes() returns the bytes of a row of normalised keys. The other function returns the
 * address of such keys, of a chunk and a key head. */
GDN_DEVICE int key_bytes(const struct gdn_cu_rule &r) { return (r.K + 7) / 8 * 16; }
GDN_DEVICE char *keys_at(const struct gdn_cu_prefill_portable &a, int64_t number, int key)
{
    return a.keys + (number * a.rule.Hk + key) * CHUNK * key_bytes(a.rule);
}

#endif
