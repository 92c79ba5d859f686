/* SPDX-License-Identifier: Apache-2.0 */
/* A case of decode by a record: the tokens drafted, accepted and folded into the states; or
 * accepted at once. */
#include <string.h>

#include "cases/cases.h"
#include "cli.h"

enum { LAZY_ROWS = 8 }; /* of a record that accepts tokens */

/* [slots][R][heads][D], if there is memory for it. */
static gdn_tensor make(struct rule_case *c, int ndim, int64_t R, int64_t heads, int64_t D)
{
    const int64_t size[] = { c->args.state.size[0], R, heads, D };
    return memory_tensor(&c->memory, GDN_F32, ndim, size);
}

static gdn_tensor make_gates(struct rule_case *c, int64_t R, int64_t heads)
{
    return make(c, case_has_channels(&c->dims) ? 4 : 3, R, heads, c->dims.K);
}

/* Moves the rows of every slot up by one. Accepting them moves them back. */
static void shift_rows(const gdn_tensor *t, int64_t T)
{
    for (int64_t slot = 0; slot < t->size[0]; slot++) {
        float *row = (float *)t->data + slot * t->stride[0];
        memmove(row + t->stride[1], row, (size_t)(T * t->stride[1]) * sizeof *row);
    }
}

/* Accepts all tokens of each sequence, in the rows that they have now. */
static bool accept_all(struct rule_case *c, int64_t T, gdn_record_commit_args *a)
{
    const int64_t size[] = { c->tokens.B, T };
    a->n_accepted = memory_tensor(&c->memory, GDN_I32, 1, size);
    a->path = memory_tensor(&c->memory, GDN_I32, 2, size);
    if (!a->n_accepted.data || !a->path.data) return false;
    for (int64_t b = 0; b < c->tokens.B; b++) {
        const int64_t *cu = c->tokens.cu_seqlens;
        ((int32_t *)a->n_accepted.data)[b] = (int32_t)(cu[b + 1] - cu[b]);
        for (int64_t t = 0; t < T; t++) ((int32_t *)a->path.data)[b * T + t] = (int32_t)(t + 1);
    }
    return true;
}

static int64_t longest(const struct rule_case *c)
{
    int64_t T = 0;
    for (int64_t b = 0; b < c->tokens.B; b++) {
        const int64_t n = c->tokens.cu_seqlens[b + 1] - c->tokens.cu_seqlens[b];
        T = n > T ? n : T;
    }
    return T;
}

gdn_status record_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called)
{
    const struct case_called *each = case_called;
    const int64_t T = longest(c), H = c->args.out.size[1];
    gdn_rule_args r = c->args;
    gdn_record_commit_args m = gdn_record_commit_args_init();
    gdn_record_fold_args f = gdn_record_fold_args_init();
    gdn_batch frozen = c->batch, slots = gdn_batch_init();
    frozen.write = GDN_WRITE_NONE;
    slots.read_slots = c->batch.read_slots;
    r.batch = &frozen, m.batch = f.batch = &slots;
    r.record_k = make(c, 4, 2 * T, r.k.size[1], c->dims.K);
    r.record_u = make(c, 4, 2 * T, H, c->dims.V);
    r.record_g = make_gates(c, 2 * T, H);
    r.record_count = memory_tensor(&c->memory, GDN_I32, 1, r.state.size);
    m.record_k = f.record_k = r.record_k, m.record_u = f.record_u = r.record_u;
    m.record_g = f.record_g = r.record_g, m.record_count = f.record_count = r.record_count;
    f.state = r.state, f.state_scales = r.state_scales;
    f.head_map = r.head_map, f.state_layout = r.state_layout;
    if (!r.record_k.data || !r.record_u.data || !r.record_g.data || !r.record_count.data ||
        !accept_all(c, T, &m))
        return GDN_E_MEMORY;
    const struct {
        gdn_op op;
        const void *args;
    } calls[] = { { GDN_OP_DECODE, &r }, { GDN_OP_RECORD_COMMIT, &m }, { GDN_OP_RECORD_FOLD, &f } };
    for (int i = 0; i < 3; i++) {
        const gdn_status status = cli_call(ctx, calls[i].op, calls[i].args);
        if (status) return status;
        each->called(each->arg);
        if (i) continue;
        shift_rows(&r.record_k, T);
        shift_rows(&r.record_u, T);
        shift_rows(&r.record_g, T);
    }
    return GDN_OK;
}

/* Runs a call whose records accept the tokens. */
static gdn_status run_lazy(struct rule_case *c, gdn_ctx *ctx, gdn_op op, bool folds,
                           const struct case_called *each)
{
    gdn_rule_args r = c->call;
    gdn_record_fold_args f = gdn_record_fold_args_init();
    gdn_batch slots = gdn_batch_init();
    slots.read_slots = c->batch.read_slots;
    f.record_k = r.record_k = make(c, 4, LAZY_ROWS, r.k.size[r.k.ndim - 2], c->dims.K);
    f.record_u = r.record_u = make(c, 4, LAZY_ROWS, r.state.size[1], c->dims.V);
    f.record_g = r.record_g = make_gates(c, LAZY_ROWS, r.state.size[1]);
    f.record_count = r.record_count = memory_tensor(&c->memory, GDN_I32, 1, r.state.size);
    f.state = r.state, f.head_map = r.head_map, f.state_layout = r.state_layout, f.batch = &slots;
    if (!r.record_k.data || !r.record_u.data || !r.record_g.data || !r.record_count.data)
        return GDN_E_MEMORY;
    gdn_status status = cli_call(ctx, op, &r);
    if (!status) each->called(each->arg);
    if (!status && folds) status = cli_call(ctx, GDN_OP_RECORD_FOLD, &f);
    return status;
}
gdn_status lazy_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called)
{
    return run_lazy(c, ctx, GDN_OP_DECODE, true, case_called);
}
gdn_status lazy_prompt_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called)
{
    return run_lazy(c, ctx, GDN_OP_PREFILL, false, case_called);
}

/* [slots][R][heads][D] of which the rows of a head lie together. */
static gdn_tensor make_by_head(struct rule_case *c, int32_t dtype, int64_t R, int64_t heads,
                               int64_t D)
{
    const int64_t size[] = { c->args.state.size[0], heads, R, D };
    gdn_tensor t = memory_tensor(&c->memory, dtype, 4, size);
    t.size[1] = R, t.size[2] = heads;
    t.stride[1] = D, t.stride[2] = R * D;
    return t;
}

bool rule_case_lazy(struct rule_case *c, int64_t R, gdn_rule_args *lazy)
{
    const gdn_rule_args *a = &c->args;
    const int64_t H = a->state.size[1], P = a->state.size[0];
    const bool split = c->dims.split;
    const int64_t g = case_has_channels(&c->dims) ? c->dims.K : split ? 2 : 1;
    *lazy = c->call;
    if (split) lazy->flags |= GDN_SPLIT_INVARIANT;
    lazy->state = memory_tensor(&c->memory, a->state.dtype, 4, a->state.size);
    if (a->state_scales.data)
        lazy->state_scales = memory_tensor(&c->memory, GDN_F32, 3, a->state_scales.size);
    lazy->record_k = make_by_head(c, c->dims.dtype, R, a->k.size[1], c->dims.K);
    lazy->record_u = make_by_head(c, c->dims.dtype, R, H, c->dims.V);
    lazy->record_g = make_by_head(c, GDN_F32, R, H, g);
    if (g == 1) lazy->record_g.ndim = 3;
    lazy->record_count = memory_tensor(&c->memory, GDN_I32, 1, &P);
    if (!lazy->state.data || !lazy->record_k.data || !lazy->record_u.data || !lazy->record_g.data ||
        !lazy->record_count.data)
        return false;
    for (int64_t i = 0; i < P * R * H * g; i++) ((float *)lazy->record_g.data)[i] = split ? 0 : 1;
    for (int64_t p = 0; p < P; p++) ((int32_t *)lazy->record_count.data)[p] = (int32_t)(p % R);
    return true;
}
