/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_gates: what its arguments must be. cpu/gates.c computes it. */
#include "calls/gates.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* Checks an input and its output: both or neither. */
static gdn_status check_pair(gdn_ctx *ctx, const gdn_tensor *in, const char *in_name,
                             const gdn_tensor *out, const char *out_name)
{
    if (!in->data == !out->data) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", in->data ? out_name : in_name,
                    in->data ? in_name : out_name);
}

gdn_status gdn_gates_check_shapes(gdn_ctx *ctx, gdn_op op, const void *args, const gdn_tensor *like,
                                  const char *name)
{
    if (like->ndim < 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 1 dimension, wanted 2 to %d", name, GDN_MAX_DIMS);
    const struct gdn_sizes s = { .H = like->size[like->ndim - 1], .like = like };
    TRY(gdn_check_shapes(ctx, op, args, &s));
    return gdn_check_written(ctx, op, args, NULL);
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_args *a)
{
    TRY(gdn_check_fields(ctx, GDN_OP_GATES, a));
    if (!a->a.data && !a->b.data)
        return gdn_fail(ctx, GDN_E_ARG, "a: absent, and b too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_gates_call *s = call;
    const gdn_gates_args *a = &s->args;
    *s                      = (struct gdn_gates_call){ .n_rows = 0 };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_args"));
    s->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(check_pair(ctx, &a->a, "a", &a->g, "g"));
    TRY(check_pair(ctx, &a->b, "b", &a->beta, "beta"));
    if (a->a.data && !a->A_log.data) return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for a");
    TRY(gdn_check_present(ctx, GDN_OP_GATES, &s->args));
    const gdn_tensor *like = a->a.data ? &a->a : &a->b;
    TRY(gdn_gates_check_shapes(ctx, GDN_OP_GATES, a, like, a->a.data ? "a" : "b"));
    s->H                   = like->size[like->ndim - 1];
    s->n_rows              = gdn_n_rows(like);
    s->rows_per_item       = gdn_rows_per_item(s->H);
    return GDN_OK;
}

GDN_OP_ENTRY(GATES, gates, gdn_gates_args, describe, struct gdn_gates_call)
GDN_OP_PART(gates, gdn_gates_args, struct gdn_gates_call)
