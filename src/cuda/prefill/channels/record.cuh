/* SPDX-License-Identifier: Apache-2.0 */
/* A record: what `chunks` computes of a chunk and head. Its matrices K~, Q~, K^, T and P lie in
 * tiles of 64 rows and 64 columns, as products of warpgroups read them (tile_place() of
 * mma.cuh). */
#ifndef GDN_CUDA_PREFILL_CHANNELS_RECORD_CUH
#define GDN_CUDA_PREFILL_CHANNELS_RECORD_CUH

#include "cuda/device/mma.cuh"
#include "cuda/prefill/channels/window.cuh"

enum {
    GROUPS = CHUNK / 16,
    SQUARE_ROW = GDN_PREFILL_ROW(64, 2), /* bytes of a row of T or P */
    TILE = CHUNK * 128                   /* bytes of a tile */
};

/* The kinds of chunks. IDLE: the state stays as it is. WALKS: an element of P is not
 * finite in 16 bits, so the chunk goes token by token (scan_state.cuh). */
enum { IDLE, BUSY, WALKS };

/* The numbers after the matrices of a record. */
template <int deep> struct channels_factors {
    float decay[deep]; /* of the state's rows */
    float w[CHUNK];    /* of v */
    uint32_t forgets;  /* some channel forgets */
    uint32_t busy;     /* IDLE, BUSY or WALKS */
    uint32_t pad[2];
};
static_assert(sizeof(channels_factors<128>) == GDN_CHANNELS_FACTORS_BYTES(128), "args.h");

#endif
