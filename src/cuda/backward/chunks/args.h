/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a chunk and a state head in memory, for gradients of the family by chunks. */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_ARGS_H
#define GDN_CUDA_BACKWARD_CHUNKS_ARGS_H

#include "cuda/backward/channels/args.h"

/* A record has what gdn_prefill's chunks have (prefill/args.h), then S before the chunk, J after
 * it, u and z, transposed, in 16 bits. These are in blocks of 16 x 16, [v / 16][k / 16] and [v /
 * 16][t / 16]. A block is four matrices of 8 x 8, as tensor cores read them. V is padded to whole
 * strips of 64 columns. */
#define GDN_CHUNKS_COLUMNS(V) (((V) + 63) / 64 * 64)
#define GDN_CHUNKS_STATE_BYTES(deep, V) (GDN_CHUNKS_COLUMNS(V) * (deep)*2)
#define GDN_CHUNKS_ROWS_BYTES(V) (GDN_CHUNKS_COLUMNS(V) * 64 * 2)
#define GDN_CHUNKS_S(deep, V, writes) (GDN_CHANNELS_WRITTEN(deep) + ((writes) ? 64 * 2 * (V) : 0))
#define GDN_CHUNKS_J(deep, V, writes) \
    (GDN_CHUNKS_S(deep, V, writes) + GDN_CHUNKS_STATE_BYTES(deep, V))
#define GDN_CHUNKS_U(deep, V, writes) \
    (GDN_CHUNKS_J(deep, V, writes) + GDN_CHUNKS_STATE_BYTES(deep, V))
#define GDN_CHUNKS_Z(deep, V, writes) (GDN_CHUNKS_U(deep, V, writes) + GDN_CHUNKS_ROWS_BYTES(V))
#define GDN_CHUNKS_BYTES(deep, V, writes) (GDN_CHUNKS_Z(deep, V, writes) + GDN_CHUNKS_ROWS_BYTES(V))

/* Bytes of shared memory of a walk: of its variables, and of a chunk. */
enum { GDN_CHUNKS_WAY_BYTES = 256 };
#define GDN_CHUNKS_STAGE_BYTES(deep) \
    (64 * 3 * 2 * ((deep) + 8 + 64 + 8) + GDN_CHANNELS_FACTORS_BYTES(deep))

#endif
