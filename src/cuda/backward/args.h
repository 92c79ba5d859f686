/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of gradients. */
#ifndef GDN_CUDA_BACKWARD_ARGS_H
#define GDN_CUDA_BACKWARD_ARGS_H

#include "cuda/driver/shared_bytes.h"
#include "cuda/prefill/args.h"

/* Tokens of a chunk; on tensor cores: bytes of a chunk and a state head in memory. */
enum {
    GDN_CU_BACKWARD_CHUNK = 64,
    GDN_CU_BACKWARD_SQUARES = 18464, /* and as many tiles as K and V need, */
    GDN_CU_BACKWARD_TILE = 8192,
    GDN_CU_BACKWARD_NORMS = 1024, /* of a key head, beside its tiles */
    GDN_CU_BACKWARD_END = 65536   /* of J behind a segment and a state head */
};

/* GRADIENTS: fused with the walk in reverse. */
enum { GDN_CU_WALK_FORWARD = 1, GDN_CU_WALK_REVERSE = 2, GDN_CU_WALK_GRADIENTS = 4 };

/* The place of a chunk's tokens in the tensors. */
struct gdn_cu_place {
    int64_t batch, first;
    int32_t n, pad;
};

/*
 * gdn_prefill_backward: backward/backward.cuh. It works on a window at a time, of which memory has
 * what the kernels hand on: the same few chunks of every sequence, or a few of all chunks, which
 * are numbered through the batch then.
 */
struct gdn_cu_backward {
    struct gdn_cu_map v_map, dout_map; /* on tensor cores */
    struct gdn_cu_rule rule;           /* q, k: of chunks, normalised and scaled; to: dstate */
    struct gdn_rows q, k;              /* as they were given */
    struct gdn_rows dout, dq, dk, dv, dg, dbeta;
    struct gdn_cu_array dA_log, ddt_bias;
    struct gdn_pool_view dstate_out;
    struct gdn_pool_view starts; /* [sequence and window]: states before a window; with a plan
                                    [window]; or checkpoints */
    struct gdn_pool_view carry;  /* [sequence]: the gradient of the state before the last window;
                                    with a plan [2]: before odd windows and even ones */
    struct gdn_pool_view S, J;   /* [chunk]: states before it, gradients of those after it; J on
                                    tensor cores: [unit]: gradients of their first states */
    struct gdn_rows u, z, head_dq, head_dk; /* of chunks and state heads */
    double *sums;                           /* [chunk][H][2], of dA_log and ddt_bias */
    char *records;                          /* [chunk][H], on tensor cores; else NULL, as are */
    char *keys;                             /* [chunk][Hk], */
    char *scratch;                          /* of the kernels of gdn_prefill, and */
    struct gdn_cu_place *places;            /* [chunk] */
    int64_t *plan;         /* of windows through the batch (backward/plan.cuh); else NULL */
    int64_t n_chunks;      /* of a window, at most; */
    int64_t window_chunks; /* and of one sequence; 0: through the batch */
    int64_t window, n_windows;
    int64_t n_tokens;                /* of the tensors */
    int32_t n_strips;                /* of a state's columns */
    int32_t adds;                    /* to what the gradients hold */
    int32_t n_blocks;                /* not 0: on tensor cores, by so many blocks at once; with
                                      walk_bytes by mma.sync, else by Hopper's products */
    int32_t walks;                   /* of those: the directions of this launch, bits */
    int32_t starts_every;            /* starts are checkpoints of gdn_prefill, after each so many
                                          tokens; the caller's if rule.batch has a pool. 0: they
                                          are of own walks */
    int32_t record_bytes;            /* from one record to the next */
    struct gdn_cu_segments cut;      /* of the walk to dstate alone: backward/parts.cuh; */
    int64_t n_parts;                 /* sequences and units in a window, at most */
    float drop;                      /* J and Z are 1 / drop times as large: a power of two */
    int32_t key_bytes;               /* the same of key heads */
    int32_t walk_bytes, heads_bytes; /* shared memory of the kernels by mma.sync; 0:
                                         not by them */
    int32_t segments;       /* not 0: the walk in reverse makes gradients too, of segments of what
                               a window has of a sequence, so many at most, */
    int32_t segment_chunks; /* of so many chunks each; */
    float *ends;            /* [n_chunks / segment_chunks + 1][H][K V]: gradients of states before
                               segments, in the order of registers */
    int32_t pad[10];
};
GDN_CU_SIZE(gdn_cu_backward,
            2 * 128 + 1336 + 8 * 40 + 2 * 32 + 5 * 80 + 4 * 40 + 11 * 8 + 6 * 4 + 88 + 8 + 72);

#endif
