/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_parallel.h - gdn_prefill() over several ranks, each with a part of every sequence.
 *
 * This header is the manual of these calls. Letters, conventions and guarantees are those of gdn.h.
 */
#ifndef GDN_PARALLEL_H
#define GDN_PARALLEL_H

#include "gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Several ranks --------------------------------------------------------------------------- */

/*
 * gdn_collective - a group of ranks, joined by the caller's transport. Each rank has its own
 * context and fills its own struct.
 *
 * all_gather copies `bytes` from send of every rank to recv of every rank, in the order of ranks
 * (size times bytes). In a context of a GPU it enqueues the copy on stream, and send and recv are
 * in device memory. In a context of a CPU it returns when recv is complete. If all_gather returns
 * another status than GDN_OK, the call that made it returns this status. The library has no
 * timeout: the transport decides when to give up.
 */
typedef struct gdn_collective {
    uint32_t struct_size;
    int32_t rank, size;
    int32_t reserved; /* 0 */
    gdn_status (*all_gather)(void *user, const void *send, void *recv, size_t bytes, void *stream);
    void *user;
} gdn_collective;

GDN_DEFINE_INIT(gdn_collective, gdn_collective_init)

/*
 * gdn_prefill_parallel - computes gdn_prefill() of sequences whose tokens are spread over the ranks
 * of a group. Rank 0 has the first tokens of each sequence, rank 1 the next tokens, and so on.
 *
 * args describe the tokens of this rank. Sequence b of args->batch is this rank's part of sequence
 * b, so the order is the same on every rank. A part may be empty. Only cu_seqlens and token_count
 * say how long the parts are, so a captured graph replays with other lengths.
 *
 * state holds the initial states, [B][H][V][K] of f32, bf16 or f16, the same on every rank. The
 * final states of a rank are the states after its own tokens. On the last rank these are the final
 * states of the sequences.
 *
 * The call runs gdn_gates() if args ask for it, gdn_summary(), an all_gather of 4 B H K (K + V)
 * bytes, gdn_summary_fold() of the ranks before, and gdn_prefill(). To cut a batch in another way,
 * make these calls yourself. Every rank makes the same calls in the same order.
 *
 * Refused: slots, has_initial_state, token_start, states of 8 bits, GDN_GATE_LINEAR, raw gates per
 * channel without dt_bias. Results equal gdn_prefill() on one device to rounding: the state that a
 * rank starts from is float32.
 * Guarantees: G2, G3, G6, G7 for the same group and cut. Errors: as for the calls above; GDN_E_ARG
 * for the group. If a rank fails before its all_gather, the other ranks wait until their transport
 * gives up.
 *
 * gdn_prefill_parallel_bytes() sets *bytes to the workspace of the call.
 */
GDN_API gdn_status gdn_prefill_parallel(gdn_ctx *ctx, const gdn_rule_args *args,
                                        const gdn_collective *group);
GDN_API gdn_status gdn_prefill_parallel_bytes(gdn_ctx *ctx, const gdn_rule_args *args,
                                              const gdn_collective *group, size_t *bytes);

/*
 * gdn_nccl_open - fills *group for an ncclComm_t of the caller, by the libnccl.so.2 that dlopen()
 * finds. This library does not link NCCL. The caller keeps the communicator and destroys it after
 * gdn_nccl_close(), which ends the group. Errors: GDN_E_UNSUPPORTED (no such library),
 * GDN_E_MEMORY, GDN_E_CUDA (an error of NCCL); *group is zero then.
 */
GDN_API gdn_status gdn_nccl_open(gdn_ctx *ctx, void *comm, gdn_collective *group);
GDN_API void gdn_nccl_close(gdn_ctx *ctx, gdn_collective *group); /* leaves *group zero */

#ifdef __cplusplus
}
#endif

#endif
