/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_record.h - records of tokens beside a state. Drafts are accepted without a copy of the state.
 * Decode need not write the state each time. However a sequence is cut into calls, its bits may be
 * the same.
 *
 * This header is the manual of these calls. Letters, conventions and guarantees are those of gdn.h.
 */
#ifndef GDN_RECORDS_H
#define GDN_RECORDS_H

#include "gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Records of drafted tokens --------------------------------------------------------------- */

/*
 * Rolling back. T tokens were drafted and n of them are accepted, so the states must become the
 * states after the n-th token. There are three ways, for chains and trees, the convolution
 * included. docs/start/speculation.md shows each. Memory beside the state, for one sequence and
 * layer, with float32 states and without the states of the convolution:
 *
 *   slots     4 T H V K bytes. GDN_WRITE_EACH writes the state after every token to a slot of its
 *             own. The next call starts from the slot of the last accepted token
 *             (num_accepted_tokens). To keep the states of the last few tokens only, pass -1 for
 *             the others. If all drafts may be rejected, the slot that the sequence started from
 *             must not be one of the written ones.
 *   again     0 bytes. GDN_WRITE_NONE, then the accepted tokens once more with out absent
 *             (token_count; for a tree, move the accepted tokens together). The rule is computed
 *             twice. Inputs that the caller does not keep until then can go to windows by slot,
 *             as in FlashInfer: gdn_state_copy() of k, v, g and beta with to_slots.
 *   record    4 R (Hk K + H V + H) + 8 bytes. GDN_WRITE_NONE with record_k, record_u, record_g:
 *             what each token adds to the state. Accepting is a counter. The state is written when
 *             the record is folded.
 *
 * (T = R = 8, 16 key and 32 state heads of 128: 16 MiB for slots, 193 KiB for a record.)
 *
 * A record has R rows for each slot of the state:
 *
 *     record_k      [P][R][Hk][K]  f32, bf16 or f16, dense   k as the rule uses it: normalised
 *     record_u      [P][R][H][V]   f32, bf16 or f16, dense   u = beta (v - S^T k)
 *     record_g      [P][R][H]      f32                       alpha = exp(g); its sign bit is
 *                                                            set where beta = 0
 *                                                            (KDA: [P][R][H][K], as g)
 *     record_count  [P]            I32 or I64: rows in use, c. From 0 to R.
 *
 * gdn_decode or gdn_step with a record starts from the state S of its slot with those c rows
 * applied,
 *
 *     S <- |alpha| S + k u^T    row by row; a row with the sign set only scales, whatever its k
 *
 * and writes what token t adds to row c + t. In a tree, tokens whose parent is -1 follow the c
 * rows. The call needs all four tensors and a state. The batch has GDN_WRITE_NONE or
 * GDN_WRITE_FINAL, no has_initial_state, no num_accepted_tokens, and no slot twice. out may be
 * absent. Padding rows have no record. GDN_EXACT needs float32 states.
 *
 *     GDN_WRITE_NONE   The tokens are drafts: c stays, and c + T is at most R.
 *     GDN_WRITE_FINAL  The tokens are accepted at once (a lazy state). If c + T is less than R,
 *                      c grows by T and the state is not written. Else the call writes the state
 *                      after its tokens to the slot, and c becomes 0: the call folds. T and R are
 *                      free. Each slot has its own c. The batch has no parents and no
 *                      write_slots, and state_out is absent or state. A GPU folds in each call of
 *                      few sequences, with T above 8 or not the same for all, k-first states, or
 *                      gates per channel.
 *
 * Where the call does not fold, the pending rows are sums beside the state, which is only read.
 * Results are those of plain decode to rounding. With GDN_EXACT, and rows and states of float32,
 * they are its bits. If R is 1, each call is plain decode. docs/start/lazy-states.md shows its use.
 *
 * Other calls that read a state (for GDN_SPLIT_INVARIANT see "One set of bits"):
 *
 *     gdn_prefill   takes a record with GDN_WRITE_FINAL. It folds the slots that it reads, as
 *                   gdn_record_fold() does, before its tokens. The slots that it writes, those of
 *                   checkpoints in this pool too, then have c = 0. The batch may have
 *                   has_initial_state, write_slots and checkpoints; state_out is absent or state.
 *     gdn_block     the same. But a sequence of at most 8 tokens, whose state stays in its slot,
 *                   is lazy as in gdn_decode(). A GPU folds in each call.
 *     others        want a folded state: gdn_state_copy(), blobs, summaries. Call gdn_record_fold()
 *                   first, or copy the rows and the count with the state.
 *
 * gdn_record_commit  accepts n_accepted[b] tokens. The rows of a path (absent: the first n rows)
 *                    move to the rows from c on, and c grows by n.
 * gdn_record_fold    writes S with the c rows applied to the slot, and sets c to 0. Call it when
 *                    drafts need more rows, and before another op reads the state.
 *
 * A new sequence in a slot starts with c = 0. Sequence b has the slot read_slots[b]; without
 * read_slots, slot b. In these two ops a batch has only read_slots (pad_policy and write have no
 * effect). Negative slots are skipped, and no slot is named twice. For the convolution, call
 * gdn_conv1d() with out absent, token_count and path.
 *
 *     n_accepted    [B]     0 to R - c
 *     path          [B][T'] rows counted from c; ascending; T' at least n
 *
 * No tensor that is written may overlap another one. Guarantees: G1 to G3, G6, G7, G12, G13,
 * G20. Errors: as for gdn_decode().
 */
typedef struct gdn_record_commit_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor record_k, record_u, record_g, record_count, n_accepted, path;
    const gdn_batch *batch;
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_record_commit_args;

GDN_DEFINE_INIT(gdn_record_commit_args, gdn_record_commit_args_init)

GDN_API gdn_status gdn_record_commit(gdn_ctx *ctx, const gdn_record_commit_args *args);

typedef struct gdn_record_fold_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ZERO_AS_GIVEN, GDN_SPLIT_INVARIANT */
    gdn_tensor state, state_scales, record_k, record_u, record_g, record_count;
    const gdn_batch *batch;
    int32_t head_map;     /* gdn_head_map */
    int32_t state_layout; /* gdn_state_layout */
    int32_t rounding;     /* gdn_rounding */
    int32_t norm;         /* gdn_norm, of k; 0: NONE. See "One set of bits" */
    uint64_t seed;        /* for GDN_ROUND_STOCHASTIC */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    float norm_eps;   /* 0: 1e-6 */
    int32_t reserved; /* 0 */
} gdn_record_fold_args;

GDN_DEFINE_INIT(gdn_record_fold_args, gdn_record_fold_args_init)

GDN_API gdn_status gdn_record_fold(gdn_ctx *ctx, const gdn_record_fold_args *args);

/* ---- One set of bits ------------------------------------------------------------------------- */

/*
 * GDN_SPLIT_INVARIANT: a flag of gdn_prefill, gdn_decode and gdn_record_fold.
 *
 *   G23  With GDN_SPLIT_INVARIANT each output of a sequence, and its state after each multiple of
 *        64 tokens, has the same bits for any split of its tokens over gdn_prefill, gdn_decode,
 *        and drafts of which some are accepted. Batch, slots, threads and the layout of the state
 *        change nothing. All these calls have the same dtypes and options, and run with one
 *        instruction set, or on one kind of GPU.
 *
 * Tokens are computed in chunks that begin at multiples of a sequence's tokens. A record holds the
 * tokens of the open chunk, so it says where in a chunk the next token stands:
 *
 *     record_k      [P][R][Hk][K]  f32, dense. On a GPU: k as the call gives it, in its dtype
 *     record_u      [P][R][H][V]   f32, dense. On a GPU: v as the call gives it, in its dtype
 *     record_g      [P][R][H][2]   f32: g = log alpha and beta, as the rule uses them
 *     record_count  [P]            rows in use, c. R is at least 64.
 *
 *     gdn_prefill, gdn_decode with GDN_WRITE_FINAL   The tokens follow the c rows. Where a chunk
 *                      is full, the state goes on to its end. c becomes the tokens of the open
 *                      chunk. gdn_prefill takes no other write with a record.
 *     gdn_decode with GDN_WRITE_NONE   The tokens are drafts, in rows from c on; c + T is at most
 *                      R. gdn_record_commit (without path) accepts the first of them.
 *     gdn_record_fold  moves the state to the end of the last full chunk, and the rows behind it
 *                      up. Call it when drafts need more rows. The open chunk stays. norm and
 *                      norm_eps are those of the other calls; a CPU, whose rows are normalised,
 *                      does not use them.
 *     gdn_prefill without a record   Sequences begin at a multiple of 64 tokens: from zero, or
 *                      from the state there. This is the call of a trainer.
 *
 * A chunk has 16 tokens on a CPU, up to 64 on a GPU. After a multiple of 64 tokens, and a fold if
 * there were drafts, c is 0, and the state alone is the sequence. Elsewhere copy its rows and its
 * count too. On a GPU gdn_prefill does not split sequences (GDN_BATCH_INVARIANT), and values that
 * are not finite, or too large, end G23 for the 63 tokens before them (docs/design/guarantees.md).
 *
 * Refused by name: states other than f32, and on a CPU such rows; the family; parents;
 * has_initial_state, write_slots and checkpoints beside a record; GDN_EXACT and GDN_BF16_PRODUCTS;
 * gdn_decode without a record. On a GPU also: q, k, v and out that differ in dtype, or are not
 * aligned to 16 bytes where its kernels want that; GDN_PAD_SINK.
 * docs/design/one-set-of-bits.md says how it works and what it costs.
 */

#ifdef __cplusplus
}
#endif

#endif
