/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of gates per channel: what the host code and the kernels share. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_ARGS_H
#define GDN_CUDA_PREFILL_CHANNELS_ARGS_H

#include "cuda/prefill/args.h"
#include "cuda/prefill/general.h"

enum { GDN_CHANNELS_CHUNK = 64, GDN_CHANNELS_MOST_K = 128 };

/* The arguments of a launch for a window of chunks (channels/window.cuh). */
struct gdn_cu_prefill_channels {
    struct gdn_cu_rule rule;
    char *records;       /* [chunks of the window][H], record_bytes each */
    float *carry;        /* states between windows, [places][H][slices] */
    int64_t first, each; /* first chunk of the window and the number of them: of every row, or of
                            the batch (through) */
    int64_t row, n_rows; /* rows of the batch in the window */
    int64_t record_bytes;
    int32_t through, number; /* through: chunks are counted through the batch; number: of the
                                window */
    int32_t n_slices;        /* of a head's value columns */
    int32_t n_stages;        /* records in shared memory */
};
GDN_CU_SIZE(gdn_cu_prefill_channels, sizeof(struct gdn_cu_rule) + 7 * 8 + 4 * 4);

/* Bytes of shared memory: of a record with `columns` of V, and of the head before the records. */
#define GDN_CHANNELS_STAGE_BYTES(deep, columns)                        \
    (64 * (3 * GDN_PREFILL_ROW(deep, 2) + 2 * GDN_PREFILL_ROW(64, 2) + \
           GDN_PREFILL_ROW(columns, 2)) +                              \
     GDN_CHANNELS_FACTORS_BYTES(deep))
enum { GDN_CHANNELS_HEAD_BYTES = 256 };

/* The same of Hopper's form, in tiles of 64 x 64. */
#define GDN_CHANNELS_SM90_STAGE_BYTES(deep, columns) \
    ((GDN_CHANNELS_WRITTEN(deep) + 1023) / 1024 * 1024 + (columns)*128)
/* And of all that Hopper's form for few heads keeps there, in units of the tiles' alignment. */
#define GDN_CHANNELS_FEW_BYTES(deep)                                          \
    ((GDN_CHANNELS_SM90_HEAD_BYTES + 2 * (3 * 128 * (deep) + 2 * 64 * 128) +  \
      4 * GDN_CHANNELS_FACTORS_BYTES(deep) + 3 * 64 * (2 * 64 + 16) + 1023) / \
     1024 * 1024)
enum { GDN_CHANNELS_SM90_HEAD_BYTES = 1024 };

#endif
