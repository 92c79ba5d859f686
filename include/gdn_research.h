/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_research.h - parts of gdn_prefill() for research: summaries of ranges of tokens, and the
 * stages of the chunked form.
 *
 * This header is the manual of these calls. Letters, conventions and guarantees are those of gdn.h.
 */
#ifndef GDN_RESEARCH_H
#define GDN_RESEARCH_H

#include "gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Summaries of ranges of tokens ----------------------------------------------------------- */

/*
 * A range of tokens changes a state by an affine map, S_out = M S_in + U. Maps compose: (M2, U2)
 * after (M1, U1) is (M2 M1, M2 U1 + U2). So ranges can be computed apart (context parallelism), or
 * kept and merged.
 *
 * gdn_summary - computes M and U of every sequence and head, by the chunks of gdn_prefill(). U is
 * the final state from a start of zero, to the bit (on a GPU to rounding). M is the final state
 * from the identity with v = 0.
 *
 *     k             [N][Hk][K]      f32, bf16 or f16, dense
 *     v             [N][Hv][V]      f32, bf16 or f16, dense; absent with U
 *     g beta        [N][H]          f32, bf16 or f16, dense; log gates; absent: 0 and 1. They,
 *                                   updates and write_gate may be those of "The family" at
 *                                   gdn_prefill()
 *     M             [B][H][K][K]    f32, bf16 or f16; M[x][y] takes S_in[y] to S_out[x]. One of its
 *                                   last two strides is 1. Absent: not wanted.
 *     U             [B][H][V][K]    f32, bf16 or f16, or [B][H][K][V] as state_layout says. One of
 *                                   its last two strides is 1. Absent: not wanted.
 *
 * H is the number of heads of M and U. Hk and Hv divide H, and head_map says which heads are read.
 * Sequences, and [B][T] instead of [N], are as for gdn_prefill(). Of batch, only cu_seqlens and
 * token_count may be set. K is 1 to 256, V 1 to 1024. Keys are normalised as norm says, without it
 * used as given. Gates are logarithms: gdn_gates() prepares them. The range of an empty sequence is
 * the identity: M = I, U = 0. After a gate of -inf M is 0.
 *
 * A GPU has two kinds of kernels. The general one computes in float32, in chunks of 64 tokens.
 * The other one uses tensor cores, on compute capability 9.0. It needs k and v of one dtype of 16
 * bits, aligned to 16 bytes, and K and V that are multiples of 8 up to 128. It rounds factors as
 * gdn_prefill() does, and may split a sequence into units. Units are computed at the same time, and
 * float32 products join them.
 *
 *   split     depends on B, N or T, H, K, V, norm, flags, the device, and which of M and U are
 *             given. With GDN_BATCH_INVARIANT units have 8192 tokens in any call. Without it G2
 *             holds to rounding on these kernels.
 *   early     If norm normalises keys, the first tokens of a sequence or of a unit may be left
 *   stop      out as in gdn_prefill(), at the same limit (docs/design/guarantees.md). U is then off
 *             by at most 2^-24 of the length that its columns had before the other tokens, and M of
 *             the sequence is 0. Its columns would have a length of at most 2^-24.
 *             With GDN_NO_EARLY_STOP every token counts.
 *
 * Rules of "The family" run there as two calls of gdn_prefill(), one for U and one for M, with its
 * kernels and its rounding. A CPU, the general kernels and these two calls ignore both flags. No
 * tensor that is written may overlap another one. Guarantees: G1, G2, G3, G6, G7, G8, G12, G13, and
 * G9 (M = I exactly, U = 0). Errors: as for gdn_prefill().
 */
typedef struct gdn_summary_args {
    uint32_t struct_size;
    uint32_t flags; /* GDN_BATCH_INVARIANT, GDN_NO_EARLY_STOP, GDN_ZERO_AS_GIVEN */
    gdn_tensor k, v, g, beta, M, U;
    const gdn_batch *batch;
    int32_t head_map;     /* gdn_head_map */
    int32_t state_layout; /* gdn_state_layout of U */
    int32_t norm;         /* gdn_norm of k; 0: NONE */
    float norm_eps;       /* 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    gdn_tensor write_gate;
    int32_t updates;  /* of each token; 0: 1 */
    int32_t reserved; /* 0 */
} gdn_summary_args;

GDN_DEFINE_INIT(gdn_summary_args, gdn_summary_args_init)

GDN_API gdn_status gdn_summary(gdn_ctx *ctx, const gdn_summary_args *args);

/*
 * gdn_summary_compose - computes range 2 after range 1:  M = M2 M1,  U = M2 U1 + U2
 *
 *     M1 M2 M       [B][H][K][K]    f32, bf16 or f16 each, strides as for gdn_summary()
 *     U1 U2 U       [B][H][V][K]    f32, bf16 or f16 each, or [B][H][K][V]
 *
 * M1 and M may be absent together, and so may U1, U2 and U. M may be the very view M1, and U
 * the very view U1 or U2. No other tensor that is written may overlap another one.
 *
 * Precision. Each element is off by at most (K + 2) 2^-24 of the same sum of absolute values,
 * and is rounded once to its dtype. For keys of length 1, 0 <= beta <= 2 and g <= 0 the 2-norm
 * of M is at most exp(sum of g) <= 1, so the errors of composed parts add and do not grow:
 * |M2 M1 - M| <= exp(sum g of 2) |error of M1| + exp(sum g of 1) |error of M2| + the above.
 *
 * If M2 is zero, it forgets by selection: U = U2 whatever U1 holds. Guarantees: G1, G2, G3, G6,
 * G7, G12, G13. Errors: GDN_E_ARG, GDN_E_SHAPE, GDN_E_DTYPE, GDN_E_UNSUPPORTED, GDN_E_MEMORY.
 */
typedef struct gdn_summary_compose_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor M1, U1, M2, U2, M, U;
    int32_t state_layout; /* gdn_state_layout of U1, U2, U */
    int32_t reserved;     /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_summary_compose_args;

GDN_DEFINE_INIT(gdn_summary_compose_args, gdn_summary_compose_args_init)

GDN_API gdn_status gdn_summary_compose(gdn_ctx *ctx, const gdn_summary_compose_args *args);

/*
 * gdn_summary_apply - computes S_out = M S_in + U
 *
 *     M             [B][H][K][K]    f32, bf16 or f16 each, strides as for gdn_summary()
 *     U             [B][H][V][K]    f32, bf16 or f16, or [B][H][K][V]; absent: 0
 *     state         as U            absent: 0
 *     state_out     as U            may be the very view state or U
 *
 * Precision, selection, guarantees, errors: as for gdn_summary_compose().
 */
typedef struct gdn_summary_apply_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor M, U, state, state_out;
    int32_t state_layout; /* gdn_state_layout of U, state, state_out */
    int32_t reserved;     /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_summary_apply_args;

GDN_DEFINE_INIT(gdn_summary_apply_args, gdn_summary_apply_args_init)

GDN_API gdn_status gdn_summary_apply(gdn_ctx *ctx, const gdn_summary_apply_args *args);

/*
 * gdn_summary_fold - takes states through several ranges, in one launch on a GPU:
 *
 *     S = state[b];   for i in order[b]:  S = M[i] S + U[i];   state_out[b] = S
 *
 *     M             [P][H][K][K]    f32, bf16 or f16 each, strides as for gdn_summary()
 *     U             [P][H][V][K]    as M; or [P][H][K][V]
 *     order         [B][n]          indices of ranges, in the order of their tokens. A negative
 *                                   index is skipped; on a GPU also an index of P or more. Absent:
 *                                   b, b + B, b + 2 B and so on; P is then a multiple of B
 *     state         [B][H][V][K]    as U; absent: 0
 *     state_out     as state        may be the very view state
 *
 * If state is absent, M of the first range in each order is not read, because the start is zero.
 * The gradient of a state goes through the ranges from the last to the first, by the transposed
 * maps. To transpose M, exchange its last two strides. U is then the dstate that
 * gdn_prefill_backward() gives for each range, without dstate_out.
 *
 * Precision. S stays float32 between ranges. Each range is one gdn_summary_apply(). Selection,
 * guarantees, errors: as for gdn_summary_compose().
 */
typedef struct gdn_summary_fold_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor M, U, order, state, state_out;
    int32_t state_layout; /* gdn_state_layout of U, state, state_out */
    int32_t reserved;     /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_summary_fold_args;

GDN_DEFINE_INIT(gdn_summary_fold_args, gdn_summary_fold_args_init)

GDN_API gdn_status gdn_summary_fold(gdn_ctx *ctx, const gdn_summary_fold_args *args);

/* ---- Stages of the chunked form -------------------------------------------------------------- */

/*
 * The chunked form in parts, for research code that keeps or exchanges intermediate values. For
 * each chunk of C tokens and head, G are the inclusive sums of its log gates, and gamma = exp(G).
 * The rows of K, V and Q are the tokens. S is the state at the start of the chunk.
 *
 *     A_ij = beta_i exp(G_i - G_j) k_i . k_j   for j < i, else 0        T = (I + A)^-1
 *     u = T diag(beta) V        w = T diag(beta gamma) K        d = u - w S
 *     S' = gamma_C S + sum_j exp(G_C - G_j) k_j d_j^T
 *     o_i = scale (gamma_i S^T q_i + sum_{j<=i} exp(G_i - G_j) (q_i . k_j) d_j)
 *
 * Gates enter once, inside T and in gamma. gdn_chunk_uw(), gdn_chunk_states() and
 * gdn_chunk_output(), one after the other, equal gdn_prefill() to rounding. They run on its inner
 * loops.
 *
 *     q k u v w T   [N][heads][..]  f32, bf16 or f16 each, dense
 *     g beta        [N][H]          f32, bf16 or f16, dense; log gates; absent: 0 and 1
 *     states        [NC][H][V][K]   f32, bf16 or f16, or [NC][H][K][V] as state_layout says. One of
 *                                   its last two strides is 1
 *
 * Tensors of tokens, sequences and the head map are as for gdn_prefill(). H is the number of heads
 * of u (w, T). Of batch, only cu_seqlens and token_count may be set. [N] without cu_seqlens is one
 * sequence. Keys are used as given, and gates are logarithms: gdn_l2norm() and gdn_gates() prepare
 * them. chunk_size C is 16, 32 or 64, and the same in all calls. Chunks start at the first token of
 * a sequence, and every C tokens after it. They are numbered through the sequences: a sequence of T
 * tokens has ceil(T / C) chunks, and there are NC in all. Values of masked tokens, and values past
 * the last sequence, are zero.
 *
 * A gate of -inf (or below -104) forgets by selection: A, gamma and the decays are 0 across it.
 * K is 1 to 256, V 1 to 1024. No tensor that is written may overlap another one, except where an op
 * says so. Guarantees: G1, G2, G3, G6, G7, G11, G12, G13. Errors: GDN_E_ARG, GDN_E_SHAPE (also for
 * too few states), GDN_E_DTYPE, GDN_E_UNSUPPORTED (K, V, chunk_size), GDN_E_MEMORY.
 *
 * gdn_chunk_cumsum - computes scale times the inclusive sums of g inside chunks of any size from 1.
 *
 *     g out         [N][H]          out may be the very view g
 *
 * scale 0 means 1. Sums are float64, rounded once. After -inf all sums of the chunk are -inf. The
 * other stages take g, not these sums.
 */
typedef struct gdn_chunk_cumsum_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ZERO_AS_GIVEN */
    gdn_tensor g, out;
    const gdn_batch *batch;
    int32_t chunk_size;
    float scale; /* 0: 1 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_chunk_cumsum_args;

GDN_DEFINE_INIT(gdn_chunk_cumsum_args, gdn_chunk_cumsum_args_init)

GDN_API gdn_status gdn_chunk_cumsum(gdn_ctx *ctx, const gdn_chunk_cumsum_args *args);

/*
 * gdn_chunk_uw - computes u, w and T of every chunk, by forward substitution.
 *
 *     k v           [N][Hk][K] [N][Hv][V]      v absent with u
 *     u w T         [N][H][V] [N][H][K] [N][H][C]   each may be absent, not all
 *
 * Row i of a chunk's T is stored with its token i. In a chunk that is not full, the other columns
 * are zero. If beta is 0, v may be NaN (G8).
 */
typedef struct gdn_chunk_uw_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor k, v, g, beta, u, w, T;
    const gdn_batch *batch;
    int32_t head_map;   /* gdn_head_map */
    int32_t chunk_size; /* 16, 32, 64 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_chunk_uw_args;

GDN_DEFINE_INIT(gdn_chunk_uw_args, gdn_chunk_uw_args_init)

GDN_API gdn_status gdn_chunk_uw(gdn_ctx *ctx, const gdn_chunk_uw_args *args);

/*
 * gdn_chunk_states - computes the state at the start of every chunk, and the final states.
 *
 *     k u w         [N][Hk][K] [N][H][V] [N][H][K]
 *     state         [B][H][V][K]    where sequences start; absent: zero
 *     states        [NC][H][V][K]   at the start of each chunk; may be longer; absent: not wanted
 *     state_out     [B][H][V][K]    after the last token; may be the very view state; absent: not
 *                                   wanted. An empty sequence leaves it alone, as in gdn_prefill().
 */
typedef struct gdn_chunk_states_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor k, u, w, g, state, states, state_out;
    const gdn_batch *batch;
    int32_t head_map;     /* gdn_head_map */
    int32_t state_layout; /* gdn_state_layout of all states */
    int32_t chunk_size;   /* 16, 32, 64 */
    int32_t reserved;     /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_chunk_states_args;

GDN_DEFINE_INIT(gdn_chunk_states_args, gdn_chunk_states_args_init)

GDN_API gdn_status gdn_chunk_states(gdn_ctx *ctx, const gdn_chunk_states_args *args);

/*
 * gdn_chunk_output - computes o of every token, from the state at the start of its chunk.
 *
 *     q k u w       [N][Hq][K] [N][Hk][K] [N][H][V] [N][H][K]
 *     states        [NC][H][V][K]   as gdn_chunk_states() writes them; may be longer
 *     out           [N][H][V]       f32, bf16 or f16
 */
typedef struct gdn_chunk_output_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ZERO_AS_GIVEN */
    gdn_tensor q, k, u, w, g, states, out;
    const gdn_batch *batch;
    int32_t head_map;     /* gdn_head_map */
    int32_t state_layout; /* gdn_state_layout of states */
    int32_t chunk_size;   /* 16, 32, 64 */
    float scale;          /* 0: 1 / sqrt(K) */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_chunk_output_args;

GDN_DEFINE_INIT(gdn_chunk_output_args, gdn_chunk_output_args_init)

GDN_API gdn_status gdn_chunk_output(gdn_ctx *ctx, const gdn_chunk_output_args *args);

#ifdef __cplusplus
}
#endif

#endif
