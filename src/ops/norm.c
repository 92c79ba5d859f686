/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_l2norm and gdn_rmsnorm_gated: check their arguments. cpu/norm.c computes them. */
#include "calls/norm.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

enum { MAX_D = 65536 };

/* ---- Descriptors ------------------------------------------------------------------------- */

gdn_status gdn_norm_check_tensors(gdn_ctx *ctx, gdn_op op, void *args, const gdn_tensor *x)
{
    TRY(gdn_check_present(ctx, op, args));
    const struct gdn_sizes s = { .D = x->size[x->ndim - 1], .like = x };
    if (s.D < 1 || s.D > MAX_D)
        return gdn_fail(ctx, s.D < 1 ? GDN_E_SHAPE : GDN_E_UNSUPPORTED,
                        "x: rows of %lld, wanted 1 to %d", (long long)s.D, MAX_D);
    TRY(gdn_check_shapes(ctx, op, args, &s));
    return gdn_check_written(ctx, op, args, NULL);
}

static void count_rows(struct gdn_norm_job *s)
{
    s->D = s->x.size[s->x.ndim - 1];
    s->n_rows = gdn_n_rows(&s->x);
    s->rows_per_item = gdn_rows_per_item(s->D);
}

/* ---- L2 norm ----------------------------------------------------------------------------- */

static gdn_status describe_l2norm(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_norm_call *c = call;
    struct gdn_norm_job *s = &c->job;
    gdn_l2norm_args own, *a = &own;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_l2norm_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_L2NORM, a));
    TRY(gdn_norm_check_tensors(ctx, GDN_OP_L2NORM, a, &a->x));
    *c = (struct gdn_norm_call){ .base = GDN_CALL_OF(a) };
    *s = (struct gdn_norm_job){ .x = a->x, .out = a->out };
    s->formula = gdn_norm_of(a->norm, GDN_NORM_L2);
    s->eps = gdn_eps_of(a->eps, a->flags);
    count_rows(s);
    return GDN_OK;
}

GDN_OP_ENTRY(L2NORM, l2norm, gdn_l2norm_args, struct gdn_norm_call)

/* ---- Gated RMSNorm ------------------------------------------------------------------------- */

static gdn_status describe_rmsnorm_gated(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_norm_call *c = call;
    struct gdn_norm_job *s = &c->job;
    gdn_rmsnorm_gated_args own, *a = &own;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_rmsnorm_gated_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_RMSNORM_GATED, a));
    TRY(gdn_norm_check_tensors(ctx, GDN_OP_RMSNORM_GATED, a, &a->x));
    *c = (struct gdn_norm_call){ .base = GDN_CALL_OF(a) };
    *s = (struct gdn_norm_job){ .x = a->x, .z = a->z, .weight = a->weight, .out = a->out };
    s->formula = GDN_NO_NORM;
    s->sigmoid = a->activation == GDN_ACT_SIGMOID;
    s->eps = gdn_eps_of(a->eps, a->flags);
    count_rows(s);
    return GDN_OK;
}

GDN_OP_ENTRY(RMSNORM_GATED, rmsnorm_gated, gdn_rmsnorm_gated_args, struct gdn_norm_call)
GDN_OP_PART(rmsnorm_gated, gdn_rmsnorm_gated_args, struct gdn_norm_call)
