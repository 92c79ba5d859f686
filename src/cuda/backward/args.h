/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of gradients. */
#ifndef GDN_CUDA_BACKWARD_ARGS_H
#define GDN_CUDA_BACKWARD_ARGS_H

#include "cuda/driver/shared_bytes.h"
#include "cuda/prefill/args.h"

/* CHUNK: tokens of a chunk. The others are bytes in memory, for tensor cores: of a chunk and a
 * state head. */
enum {
    GDN_CU_BACKWARD_CHUNK = 64,
    GDN_CU_BACKWARD_SQUARES = 18464, /* without the tiles, of which K and V decide the number */
    GDN_CU_BACKWARD_TILE = 8192,
    GDN_CU_BACKWARD_NORMS = 1024, /* of a key head, after its tiles if there are some */
    GDN_CU_BACKWARD_END = 65536   /* of J after a segment, of a state head */
};

/* Walks of a launch, as bits. GRADIENTS: the kernel of gradients has the walk in reverse. */
enum { GDN_CU_WALK_FORWARD = 1, GDN_CU_WALK_REVERSE = 2, GDN_CU_WALK_GRADIENTS = 4 };

/* The place of a chunk's tokens in the tensors. */
struct gdn_cu_place {
    int64_t batch, first;
    int32_t n, pad;
};

/* The arguments of gdn_prefill_backward: backward/backward.cuh. It works on one window at a time,
 * and memory has the results between kernels for that window. A window is the same few chunks of
 * every sequence, or some of the chunks of all sequences, which are then numbered through the
 * batch. */
struct gdn_cu_backward {
    struct gdn_cu_map v_map, dout_map; /* on tensor cores */
    struct gdn_cu_map q_map, k_map;    /* without tiles of q and k in memory */
    struct gdn_cu_map dq_map, dk_map;  /* see maps_out */
    struct gdn_cu_rule rule;           /* q, k: rows of chunks, normalised and scaled; to: dstate */
    struct gdn_rows q, k;              /* as the caller gave them */
    struct gdn_rows dout, dq, dk, dv, dg, dbeta;
    struct gdn_cu_array dA_log, ddt_bias;
    struct gdn_pool_view dstate_out;
    struct gdn_pool_view starts; /* states before windows, or checkpoints: [sequence and window], or
                                    [window] if there is a plan */
    struct gdn_pool_view carry;  /* the gradient of the state before the last window: [sequence]. If
                                    there is a plan: [2], before odd windows and before even ones */
    struct gdn_pool_view S, J;   /* of [chunk]: states before it, and gradients of states after
                                    it. On tensor cores J is of [unit]: gradients of first states */
    struct gdn_rows u, z, head_dq, head_dk; /* of chunks and state heads */
    double *sums;                           /* [chunk][H][2], of dA_log and ddt_bias */
    char *records;                          /* [chunk][H], on tensor cores; else NULL */
    char *keys;                             /* [chunk][Hk]; NULL without records */
    char *scratch;                          /* of the kernels of gdn_prefill; NULL without
                                               records */
    struct gdn_cu_place *places;            /* [chunk]; NULL without records */
    int64_t *plan;         /* windows through the batch (backward/plan.cuh); else NULL */
    int64_t n_chunks;      /* the most chunks of a window */
    int64_t window_chunks; /* chunks of one sequence in a window; 0: windows go through the batch */
    int64_t window, n_windows;
    int64_t n_tokens;                /* of the tensors */
    int32_t n_strips;                /* of a state's columns */
    int32_t adds;                    /* the results are added to what the gradients hold */
    int32_t n_blocks;                /* not 0: the call goes on tensor cores, by so many blocks at
                                        once: by mma.sync if walk_bytes is not 0, else by Hopper's
                                        products */
    int32_t walks;                   /* the directions of this launch, as bits */
    int32_t starts_every;            /* not 0: starts are checkpoints of gdn_prefill, so many tokens
                                        apart; they are the caller's if rule.batch has a pool. 0:
                                        walks here make starts */
    int32_t record_bytes;            /* from one record to the next */
    struct gdn_cu_segments cut;      /* units of the walk to dstate alone: backward/parts.cuh */
    int64_t n_parts;                 /* the most sequences and units of a window */
    float drop;                      /* a power of two: J and Z are 1 / drop times as large */
    int32_t key_bytes;               /* bytes from one record of a key head to the next */
    int32_t walk_bytes, heads_bytes; /* shared memory of the kernels by mma.sync; 0: the call does
                                        not go by them */
    int32_t segments;       /* not 0: the walk in reverse makes gradients too. A window's part of a
                               sequence has at most so many segments */
    int32_t segment_chunks; /* chunks of a segment */
    float *ends;            /* [n_chunks / segment_chunks + 1][H][K V]: gradients of the states
                               before segments, in the order of registers */
    int32_t maps_out;       /* bits: 1: dk has a map, 2: dq has one; with segments */
    int32_t pad[9];
};
GDN_CU_SIZE(gdn_cu_backward,
            6 * 128 + 1336 + 8 * 40 + 2 * 32 + 5 * 80 + 4 * 40 + 11 * 8 + 6 * 4 + 88 + 8 + 72);

#endif
