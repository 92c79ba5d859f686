/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that several ops share. A section names the file that defines them. */
#ifndef GDN_CHECKS_H
#define GDN_CHECKS_H

#include "calls/chunk_stage.h"
#include "calls/conv.h"
#include "calls/record.h"
#include "calls/rule.h"
#include "calls/state_copy.h"
#include "core/ctx.h"
#include "core/limits.h"
#include "state/pool_view.h"

/* ---- The rule: rule.c ----------------------------------------------------------------------- */

/* The formulas as arguments name them; 0: a default. */
struct gdn_rule_formulas {
    int32_t head_map, gate, beta_kind, norm;
    float norm_eps, scale, bound;
    uint32_t flags; /* GDN_ZERO_AS_GIVEN */
};
/* Sets the formulas of a rule whose K is set. The op gives its defaults of beta_kind and norm. */
void gdn_rule_set_formulas(struct gdn_rule *r, const struct gdn_rule_formulas *f,
                           int32_t default_beta, int32_t default_norm);

/* forms: checks that flags name one form at most. products: checks also that GDN_BF16_PRODUCTS
 * takes the dtype. */
gdn_status gdn_check_forms(gdn_ctx *ctx, uint32_t flags);
gdn_status gdn_check_products(gdn_ctx *ctx, uint32_t flags, int32_t dtype);

/* ---- Batches and sizes: chunk_stage.c ------------------------------------------------------- */

/* gdn_stage_plan() is gdn_plan_describe() for a batch that may have only cu_seqlens and
 * token_count. gdn_stage_plan_padded() also allows token_start and the features `takes`. */
gdn_status gdn_stage_plan(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                          struct gdn_plan *plan);
gdn_status gdn_stage_plan_padded(gdn_ctx *ctx, const gdn_batch *batch,
                                 const struct gdn_tokens *tokens, unsigned takes,
                                 struct gdn_plan *plan);

/* A head size, the last dimension, from 1 to `most`; n heads, which become H; heads, which must
 * divide H. */
gdn_status gdn_stage_head_size(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int most,
                               int *size);
gdn_status gdn_stage_all_heads(gdn_ctx *ctx, int64_t n, const char *name, int *H);
gdn_status gdn_stage_heads(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int64_t H, int *n);

/* The sizes of u and w, which set V, K and H of the rule, and the batch of their tokens. */
gdn_status gdn_stage_describe_uw(gdn_ctx *ctx, const gdn_tensor *u, const gdn_tensor *w,
                                 const gdn_batch *batch, struct gdn_tokens *tokens,
                                 struct gdn_plan *plan, struct gdn_rule *r);

/* chunk_size, 16, 32 or 64. */
gdn_status gdn_stage_chunk_size(gdn_ctx *ctx, int32_t C);
/* Checks that there is a state for every chunk, if shapes say how many chunks there are. */
gdn_status gdn_stage_states(gdn_ctx *ctx, const gdn_tensor *states, const struct gdn_plan *plan,
                            const struct gdn_tokens *tokens, int32_t C);

/* ---- The convolution: conv.c ---------------------------------------------------------------- */

/* Checks the shape of the weights, [D][W] or [D][1][W], and fills W, weight and bias. conv->D is
 * set already. */
gdn_status gdn_conv_weights(gdn_ctx *ctx, const gdn_tensor *weight, const char *weight_name,
                            const gdn_tensor *bias, struct gdn_conv *conv);

/* Checks the shape of a state tensor, [P][D][S], S >= W - 1, and makes it a view; absent: data
 * NULL. */
gdn_status gdn_conv_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                               const struct gdn_conv *conv, struct gdn_conv_view *view);

/* ---- Rows: gates.c, norm.c ------------------------------------------------------------------ */

/* The tensors of a call. The first of a and b that is given has the shape: [...][H], or
 * [...][H][K] if dt_bias is [H][K]. Then b, and tensors of its shape, may be [...][H] too. */
struct gdn_gates_tensors {
    const gdn_tensor *a, *b, *dt_bias;
    const struct {
        const gdn_tensor *t;
        const char *name;
    } like_b[3];
};
struct gdn_gates_sizes {
    int64_t H, K, n_rows, b_rows, b_size;
};
/* Checks all shapes and what the call writes, and returns the sizes. */
gdn_status gdn_gates_check_shapes(gdn_ctx *ctx, gdn_op op, const void *args,
                                  const struct gdn_gates_tensors *t, struct gdn_gates_sizes *s);

/* Checks the tensors of a norm, or of its gradients. All have the shape of x. */
gdn_status gdn_norm_check_tensors(gdn_ctx *ctx, gdn_op op, void *args, const gdn_tensor *x);

/* ---- Layers: layer.c ------------------------------------------------------------------------ */

/* Checks heads and head sizes of a layer; two of its pools, which the same slots are of. */
gdn_status gdn_check_layer(gdn_ctx *ctx, int32_t Hk, int32_t Hv, int32_t K, int32_t V);
gdn_status gdn_check_pair(gdn_ctx *ctx, const gdn_tensor *a, const char *a_name,
                          const gdn_tensor *b, const char *b_name);

/* ---- Records and copies: record.c, state_copy.c --------------------------------------------- */

/* record_k, record_u, record_g, record_count as some argument struct has them. */
struct gdn_record_tensors {
    const gdn_tensor *k, *u, *g, *count;
};

/* Checks that all tensors are given, and that no two elements of one tensor share an address.
 * Their shapes are checked before. */
gdn_status gdn_record_view(gdn_ctx *ctx, const struct gdn_record_tensors *t,
                           struct gdn_record *record);
/* Check what GDN_SPLIT_INVARIANT needs: rows of a record; a pool of states, which may be absent. */
gdn_status gdn_check_open_rows(gdn_ctx *ctx, const gdn_tensor *k);
gdn_status gdn_check_split_state(gdn_ctx *ctx, const gdn_tensor *state, const char *name);

/* A record as a call of the rule has it. */
struct gdn_record_use {
    struct gdn_record_tensors tensors;
    const gdn_tensor *state, *state_out; /* state_out may be absent */
    const gdn_batch *batch;
    uint32_t flags;
    bool is_step;        /* gdn_decode and gdn_step: each token goes to the record */
    int64_t lazy_tokens; /* without is_step: tokens of sequences of at most so many go to the
                            record; a longer sequence folds it */
};
/* Checks the record, if any of its tensors is given, and sets it in the rule. The rule's family
 * is set before. */
gdn_status gdn_record_describe(gdn_ctx *ctx, const struct gdn_record_use *use,
                               struct gdn_rule *rule, struct gdn_record *record);

/* Checks the descriptors. The names in `m` are set. */
gdn_status gdn_state_describe(gdn_ctx *ctx, const gdn_state_copy_args *args,
                              struct gdn_state_move *m);

#endif
