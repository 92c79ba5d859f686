/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_summary_compose, gdn_summary_apply and gdn_summary_fold: check their arguments.
 * cpu/summary_product.c computes them. */
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* Reads B, H, K of a transition; V of a state `like` (data NULL: none). */
static gdn_status read_sizes(gdn_ctx *ctx, const gdn_tensor *M, const char *name,
                             const gdn_tensor *like, const char *like_name, int32_t layout,
                             struct gdn_product *a)
{
    static const int64_t any[] = { -1, -1, -1, -1 };
    TRY(gdn_check_shape(ctx, M, name, 4, any));
    TRY(gdn_stage_head_size(ctx, M, name, GDN_MAX_HEAD, &a->K));
    a->B = a->P = M->size[0], a->n = 1;
    if (M->size[1] > INT32_MAX || M->size[1] > (INT64_MAX >> 8) / (a->B > 0 ? a->B : 1))
        return gdn_fail(
            ctx, GDN_E_SHAPE,
            "%s: %lld heads of %lld slots, wanted at most 2^31 - 1 heads, 2^55 - 1 in all", name,
            (long long)M->size[1], (long long)a->B);
    a->H = (int)M->size[1];
    if (!like->data) return GDN_OK;
    gdn_tensor last = *like;
    TRY(gdn_check_shape(ctx, like, like_name, 4, any));
    if (layout == GDN_STATE_VK) last.size[3] = last.size[2];
    return gdn_stage_head_size(ctx, &last, like_name, GDN_MAX_VALUE, &a->V);
}

static gdn_status view_state(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout,
                             const struct gdn_product *a, struct gdn_pool_view *view)
{
    return gdn_state_view(ctx, t, name, layout, a->H, a->K, a->V, view);
}

static gdn_status view_transition(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                  const struct gdn_product *a, struct gdn_pool_view *view)
{
    return gdn_state_view(ctx, t, name, GDN_STATE_KV, a->H, a->K, a->K, view);
}

/* Sets the views of S_out = M S_in + U. */
static gdn_status view_all(gdn_ctx *ctx, const gdn_tensor *M, const gdn_tensor *U,
                           const gdn_tensor *state, const gdn_tensor *state_out, int32_t layout,
                           struct gdn_product *a)
{
    TRY(view_transition(ctx, M, "M", a, &a->M));
    TRY(view_state(ctx, U, "U", layout, a, &a->U));
    TRY(view_state(ctx, state, "state", layout, a, &a->S));
    return view_state(ctx, state_out, "state_out", layout, a, &a->out);
}

/* Checks the rows of ops.def; B: slots of states, P: ranges. */
static gdn_status check_shapes(gdn_ctx *ctx, gdn_op op, const void *args, int32_t layout,
                               const struct gdn_product *a)
{
    struct gdn_sizes s = { .B = a->B, .R = a->P, .H = a->H, .K = a->K, .V = a->V };
    gdn_set_layout(&s, layout);
    TRY(gdn_check_shapes(ctx, op, args, &s));
    return gdn_check_written(ctx, op, args, NULL);
}

static gdn_status check_presence(gdn_ctx *ctx, const gdn_summary_compose_args *a)
{
    if (!a->M1.data != !a->M.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", a->M.data ? "M1" : "M",
                        a->M.data ? "M" : "M1");
    if (!a->U1.data != !a->U.data || !a->U2.data != !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "U1 U2 U: some absent, some given, wanted all or none");
    if (!a->M.data && !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "M: absent, and U too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe_summary_compose(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_product_call *c = call;
    gdn_summary_compose_args own, *a = &own;
    struct gdn_product x = { 0 }, y;
    *c = (struct gdn_product_call){ .n = 0 };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_compose_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_SUMMARY_COMPOSE, a));
    TRY(check_presence(ctx, a));
    TRY(gdn_check_present(ctx, GDN_OP_SUMMARY_COMPOSE, a));
    TRY(read_sizes(ctx, &a->M2, "M2", &a->U, "U", a->state_layout, &x));
    TRY(check_shapes(ctx, GDN_OP_SUMMARY_COMPOSE, a, a->state_layout, &x));
    TRY(view_transition(ctx, &a->M2, "M2", &x, &x.M));
    y = x;
    TRY(view_state(ctx, &a->U1, "U1", a->state_layout, &x, &x.S));
    TRY(view_state(ctx, &a->U2, "U2", a->state_layout, &x, &x.U));
    TRY(view_state(ctx, &a->U, "U", a->state_layout, &x, &x.out));
    if (a->U.data) c->product[c->n++] = x;
    y.V = y.K;
    TRY(view_transition(ctx, &a->M1, "M1", &y, &y.S));
    TRY(view_transition(ctx, &a->M, "M", &y, &y.out));
    if (a->M.data) c->product[c->n++] = y;
    c->base = GDN_CALL_OF(a);
    return GDN_OK;
}

static gdn_status describe_summary_apply(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_product_call *c = call;
    gdn_summary_apply_args own, *a = &own;
    struct gdn_product x = { 0 };
    *c = (struct gdn_product_call){ .n = 1 };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_apply_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_SUMMARY_APPLY, a));
    TRY(gdn_check_present(ctx, GDN_OP_SUMMARY_APPLY, a));
    TRY(read_sizes(ctx, &a->M, "M", &a->state_out, "state_out", a->state_layout, &x));
    TRY(check_shapes(ctx, GDN_OP_SUMMARY_APPLY, a, a->state_layout, &x));
    TRY(view_all(ctx, &a->M, &a->U, &a->state, &a->state_out, a->state_layout, &x));
    c->product[0] = x;
    c->base = GDN_CALL_OF(a);
    return GDN_OK;
}

/* No order: n times B ranges, B being the slots of state_out. */
static gdn_status count_ranges(gdn_ctx *ctx, const gdn_summary_fold_args *a, struct gdn_product *x)
{
    x->B = a->state_out.size[0];
    if (x->B < 1 || x->P % x->B || x->P / x->B > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "M: %lld ranges, wanted a multiple of the %lld slots of state_out, "
                        "without an order",
                        (long long)x->P, (long long)x->B);
    x->n = x->P / x->B;
    return GDN_OK;
}

/* Describes order, [B][n], which sets B. */
static gdn_status describe_order(gdn_ctx *ctx, const gdn_summary_fold_args *a,
                                 struct gdn_product *x)
{
    static const int64_t any[] = { -1, -1 };
    x->order = a->order;
    if (!a->order.data) return count_ranges(ctx, a, x);
    TRY(gdn_check_shape(ctx, &a->order, "order", 2, any));
    x->B = a->order.size[0];
    if (x->H > (INT64_MAX >> 8) / (x->B > 0 ? x->B : 1) || a->order.size[1] > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "order: %lld x %lld, wanted at most %lld x 2^31 - 1",
                        (long long)x->B, (long long)a->order.size[1],
                        (long long)((INT64_MAX >> 8) / (x->H > 0 ? x->H : 1)));
    return GDN_OK;
}

static gdn_status describe_summary_fold(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_product_call *c = call;
    gdn_summary_fold_args own, *a = &own;
    struct gdn_product x = { 0 };
    *c = (struct gdn_product_call){ .n = 1 };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_fold_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_SUMMARY_FOLD, a));
    TRY(gdn_check_present(ctx, GDN_OP_SUMMARY_FOLD, a));
    TRY(read_sizes(ctx, &a->M, "M", &a->state_out, "state_out", a->state_layout, &x));
    TRY(describe_order(ctx, a, &x));
    TRY(check_shapes(ctx, GDN_OP_SUMMARY_FOLD, a, a->state_layout, &x));
    TRY(view_all(ctx, &a->M, &a->U, &a->state, &a->state_out, a->state_layout, &x));
    c->product[0] = x;
    c->base = GDN_CALL_OF(a);
    return GDN_OK;
}

GDN_OP_ENTRY(SUMMARY_COMPOSE, summary_compose, gdn_summary_compose_args, struct gdn_product_call)
GDN_OP_ENTRY(SUMMARY_APPLY, summary_apply, gdn_summary_apply_args, struct gdn_product_call)
GDN_OP_ENTRY(SUMMARY_FOLD, summary_fold, gdn_summary_fold_args, struct gdn_product_call)
GDN_OP_PART(summary_fold, gdn_summary_fold_args, struct gdn_product_call)
