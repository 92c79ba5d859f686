/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a chunk and a state head in memory, which `chunks` writes and `scan` reads. */
#ifndef GDN_CUDA_PREFILL_RECORD_CUH
#define GDN_CUDA_PREFILL_RECORD_CUH

#include "cuda/prefill/general_gram.cuh"
#include "cuda/prefill/portable/args.h"
#include "cuda/prefill/stages.cuh"

typedef chunk_vectors<CHUNK> portable_vectors;

/* A record. A square has no blocks above the diagonal: row i of blocks has i + 1. */
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
    const int i = x < 32 ? 0 : x < 96 ? 1 : x < 192 ? 2 : 3; /* the row of blocks */
    const int in = x - 16 * i * (i + 1), parts = 2 * (i + 1);
    const int row = i == 0 ? in / 2 : i == 1 ? in / 4 : i == 2 ? in / 6 : in / 8;
    return { 16 * i + row, (in - row * parts) * 16 };
}

GDN_DEVICE struct portable_record &record_at(const struct gdn_cu_prefill_portable &a,
                                             int64_t number, int head)
{
    return ((struct portable_record *)a.records)[number * a.rule.H + head];
}

/* key_bytes() returns the bytes of a row of keys of length one; the other one returns the address
 * of these keys, of a chunk and a key head. */
GDN_DEVICE int key_bytes(const struct gdn_cu_rule &r) { return (r.K + 7) / 8 * 16; }
GDN_DEVICE char *keys_at(const struct gdn_cu_prefill_portable &a, int64_t number, int key)
{
    return a.keys + (number * a.rule.Hk + key) * CHUNK * key_bytes(a.rule);
}

#endif
