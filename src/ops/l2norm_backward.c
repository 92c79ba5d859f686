/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_l2norm_backward: checks its arguments. cpu/backward/l2norm_backward.c computes it. */
#include "calls/norm.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

static gdn_status describe_l2norm_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_l2norm_backward *s = call;
    gdn_l2norm_backward_args *a = &s->args;
    *s = (struct gdn_l2norm_backward){ .n_rows = 0 };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_l2norm_backward_args"));
    s->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_L2NORM_BACKWARD, a));
    TRY(gdn_norm_check_tensors(ctx, GDN_OP_L2NORM_BACKWARD, a, &a->x));
    a->norm = gdn_norm_of(a->norm, GDN_NORM_L2);
    a->eps = gdn_eps_of(a->eps, a->flags);
    s->D = a->x.size[a->x.ndim - 1];
    s->n_rows = gdn_n_rows(&a->x);
    s->rows_per_item = gdn_rows_per_item(s->D);
    return GDN_OK;
}

GDN_OP_ENTRY(L2NORM_BACKWARD, l2norm_backward, gdn_l2norm_backward_args, struct gdn_l2norm_backward)
