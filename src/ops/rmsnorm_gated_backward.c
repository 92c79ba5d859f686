/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_rmsnorm_gated_backward: checks its arguments. */
#include "calls/norm.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

static gdn_status check_present(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    if (!a->dx.data && !a->dz.data && !a->dweight.data)
        return gdn_fail(ctx, GDN_E_ARG, "dx: absent, and every other gradient too, wanted one");
    if (a->dz.data && !a->z.data) return gdn_fail(ctx, GDN_E_ARG, "z: absent, wanted for dz");
    return GDN_OK;
}

static gdn_status describe_rmsnorm_gated_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_rmsnorm_backward *s = call;
    gdn_rmsnorm_gated_backward_args *a = &s->args;
    *s = (struct gdn_rmsnorm_backward){ .n_rows = 0 };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_rmsnorm_gated_backward_args"));
    s->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_RMSNORM_GATED_BACKWARD, a));
    TRY(check_present(ctx, a));
    TRY(gdn_norm_check_tensors(ctx, GDN_OP_RMSNORM_GATED_BACKWARD, a, &a->x));
    a->eps = gdn_eps_of(a->eps, a->flags);
    s->D = a->x.size[a->x.ndim - 1];
    s->n_rows = gdn_n_rows(&a->x);
    s->sigmoid = a->activation == GDN_ACT_SIGMOID;
    s->adds = a->flags & GDN_ACCUMULATE;
    return GDN_OK;
}

GDN_OP_ENTRY(RMSNORM_GATED_BACKWARD, rmsnorm_gated_backward, gdn_rmsnorm_gated_backward_args,
             struct gdn_rmsnorm_backward)
GDN_OP_PART(rmsnorm_gated_backward, gdn_rmsnorm_gated_backward_args, struct gdn_rmsnorm_backward)
