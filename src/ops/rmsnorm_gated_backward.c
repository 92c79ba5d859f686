/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_rmsnorm_gated_backward: what its arguments must be. */
#include "calls/norm.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "ops/parts.h"

static gdn_status check_fields(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    if (a->flags & ~(uint32_t)GDN_ACCUMULATE)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0 or GDN_ACCUMULATE",
                        (unsigned)a->flags);
    TRY(gdn_norm_check_activation(ctx, a->activation));
    return gdn_norm_check_eps(ctx, a->eps);
}

static gdn_status check_present(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    if (!a->dx.data && !a->dz.data && !a->dweight.data)
        return gdn_fail(ctx, GDN_E_ARG, "dx: absent, and every other gradient too, wanted one");
    if (!a->dout.data) return gdn_fail(ctx, GDN_E_ARG, "dout: absent");
    if (a->dz.data && !a->z.data) return gdn_fail(ctx, GDN_E_ARG, "z: absent, wanted for dz");
    return GDN_OK;
}

/* What is written overlaps nothing else, nor itself. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    enum { N = 7, FIRST = 4 }; /* the first that is written */
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } all[N] = { { &a->x, "x" },   { &a->z, "z" },   { &a->weight, "weight" }, { &a->dout, "dout" },
                 { &a->dx, "dx" }, { &a->dz, "dz" }, { &a->dweight, "dweight" } };
    for (int i = FIRST; i < N; i++) {
        if (!all[i].t->data) continue;
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = 0; j < i; j++)
            TRY(gdn_check_no_overlap(ctx, all[i].t, all[i].name, all[j].t, all[j].name, false));
    }
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    const int64_t D = a->x.size[a->x.ndim - 1];
    TRY(gdn_norm_check_like(ctx, &a->x, &a->z, "z"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dout, "dout"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dx, "dx"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dz, "dz"));
    TRY(gdn_norm_check_weight(ctx, &a->weight, "weight", GDN_FLOATS, D));
    TRY(gdn_norm_check_weight(ctx, &a->dweight, "dweight", 1 << GDN_F32, D));
    return check_overlaps(ctx, a);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_rmsnorm_backward     *s = call;
    gdn_rmsnorm_gated_backward_args *a = &s->args;
    *s                                 = (struct gdn_rmsnorm_backward){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_rmsnorm_gated_backward_args"));
    s->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(check_present(ctx, a));
    TRY(gdn_norm_check_rows(ctx, &a->x));
    TRY(check_tensors(ctx, a));
    if (a->eps == 0) a->eps = 1e-6f;
    s->D       = a->x.size[a->x.ndim - 1];
    s->n_rows  = gdn_n_rows(&a->x);
    s->sigmoid = a->activation == GDN_ACT_SIGMOID;
    s->adds    = a->flags & GDN_ACCUMULATE;
    return GDN_OK;
}

GDN_OP_ENTRY(RMSNORM_GATED_BACKWARD, rmsnorm_gated_backward, gdn_rmsnorm_gated_backward_args,
             describe, struct gdn_rmsnorm_backward)
GDN_OP_PART(rmsnorm_gated_backward, gdn_rmsnorm_gated_backward_args, struct gdn_rmsnorm_backward)
