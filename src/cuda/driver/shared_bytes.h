/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of dynamic shared memory of a block, which rows of kernels.def name. The sources of
 * kernels check that their structs fit. */
#ifndef GDN_CUDA_SHARED_BYTES_H
#define GDN_CUDA_SHARED_BYTES_H

/* The stages: a block that solves for columns; a block with a strip of a state. */
enum { GDN_CU_COLUMNS_BYTES = 85008, GDN_CU_STRIP_BYTES = 81936 };

/* Chunks of gates per channel, K of up to 64 and 128. */
enum { GDN_CU_CHUNKS_64 = 54784, GDN_CU_CHUNKS_128 = 80896 };

/* T and P of chunks, by mma.sync. */
enum { GDN_CU_CHUNKS_BYTES = 49152 };

/* A part of a state of 16 bits, or rows of a record as 16-bit factors; WIDE: of a record in
 * float32. The kernel ahead uses none of its bytes: a multiprocessor divides its memory for each
 * kernel anew, and two kernels are there at a time only if they want the same division. */
enum { GDN_CU_LAZY_BYTES = 8704, GDN_CU_LAZY_WIDE_BYTES = 11264 };
enum { GDN_CU_LAZY_ROWS_F32_BYTES = 20480, GDN_CU_LAZY_ROWS_BYTES = 29696 };
enum { GDN_CU_LAZY_TOKENS_ROWS_F32_BYTES = 24576, GDN_CU_LAZY_TOKENS_ROWS_BYTES = 32768 };

/* Gradients in float32. */
enum { GDN_CU_REVERSE_BYTES = 91152, GDN_CU_GRADIENTS_BYTES = 77576 };
/* Walks of the family; K above 128. */
enum { GDN_CU_CHANNELS_WALK_BYTES = 36928, GDN_CU_CHANNELS_DEEP_BYTES = 69696 };
/* Chunks of the family, K of up to 64 and 128: two stages of walks, and gradients. */
enum { GDN_CU_WALKS_64 = 111904, GDN_CU_WALKS_128 = 161568 };
enum { GDN_CU_HEADS_64 = 96256, GDN_CU_HEADS_128 = 162816 };
/* On tensor cores. */
enum {
    GDN_CU_PREPARE_BYTES = 50048,
    GDN_CU_PREPARE_DEEP_BYTES = 76672, /* K above 128 */
    GDN_CU_WALK_BYTES = 225664,
    GDN_CU_HEADS_BYTES = 227840,
    GDN_CU_FUSED_BYTES = 228096,
    GDN_CU_HEADS_WIDE_BYTES = 232000 /* K or V above 128 */
};
/* By mma.sync. A walk has WAY and one or two stages. The heads have SHARED and one or two loads. */
enum {
    GDN_CU_PORTABLE_WAY_BYTES = 33280,
    GDN_CU_PORTABLE_STAGE_BYTES = 59520,
    GDN_CU_PORTABLE_SHARED_BYTES = 26112,
    GDN_CU_PORTABLE_LOAD_BYTES = 57344,
    GDN_CU_PORTABLE_WALK_LEAST = GDN_CU_PORTABLE_WAY_BYTES + GDN_CU_PORTABLE_STAGE_BYTES,
    GDN_CU_PORTABLE_WALK_BYTES = GDN_CU_PORTABLE_WALK_LEAST + GDN_CU_PORTABLE_STAGE_BYTES,
    GDN_CU_PORTABLE_HEADS_LEAST = GDN_CU_PORTABLE_SHARED_BYTES + GDN_CU_PORTABLE_LOAD_BYTES,
    GDN_CU_PORTABLE_HEADS_BYTES = GDN_CU_PORTABLE_HEADS_LEAST + GDN_CU_PORTABLE_LOAD_BYTES
};

#endif
