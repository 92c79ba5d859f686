/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_gates: what its arguments must be. cpu/gates.c computes it. */
#include <math.h>

#include "calls/gates.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/written.h"

/* An input and its output: both or neither, of one shape [...][H]. */
static gdn_status check_pair(gdn_ctx *ctx, const gdn_tensor *in, const char *in_name,
                             const gdn_tensor *out, const char *out_name)
{
    if (!in->data != !out->data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given",
                        in->data ? out_name : in_name, in->data ? in_name : out_name);
    if (!in->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, in, in_name));
    TRY(gdn_check_tensor(ctx, out, out_name));
    TRY(gdn_check_dtype(ctx, in, in_name, GDN_FLOATS));
    TRY(gdn_check_dtype(ctx, out, out_name, GDN_FLOATS));
    if (in->ndim < 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 1 dimension, wanted 2 to %d", in_name, GDN_MAX_DIMS);
    TRY(gdn_check_shape(ctx, out, out_name, in->ndim, in->size));
    TRY(gdn_check_dense(ctx, in, in_name));
    TRY(gdn_check_dense(ctx, out, out_name));
    return GDN_OK;
}

gdn_status gdn_gates_check_vector(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                  unsigned dtypes, int64_t H)
{
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, dtypes));
    return gdn_check_shape(ctx, t, name, 1, &H);
}

gdn_status gdn_gates_check_formula(gdn_ctx *ctx, int32_t gate, int32_t beta_kind, float bound)
{
    if (gate != GDN_GATE_LOG && gate != GDN_GATE_LINEAR)
        return gdn_fail(ctx, GDN_E_ARG, "gate: %d, wanted 0 (log) or 1 (linear)", (int)gate);
    if (beta_kind < GDN_BETA_GIVEN || beta_kind > GDN_BETA_TWICE_SIGMOID)
        return gdn_fail(ctx, GDN_E_ARG, "beta_kind: %d, wanted 0 to 2", (int)beta_kind);
    if (!(bound <= 0) || !isfinite(bound))
        return gdn_fail(ctx, GDN_E_ARG, "gate_lower_bound: %g, wanted at most 0", (double)bound);
    return GDN_OK;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_args *a)
{
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    TRY(gdn_gates_check_formula(ctx, a->gate, a->beta_kind, a->gate_lower_bound));
    if (!a->a.data && !a->b.data)
        return gdn_fail(ctx, GDN_E_ARG, "a: absent, and b too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_gates_call *s = call;
    const gdn_gates_args *a = &s->args;
    *s                      = (struct gdn_gates_call){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_args"));
    s->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(check_pair(ctx, &a->a, "a", &a->g, "g"));
    TRY(check_pair(ctx, &a->b, "b", &a->beta, "beta"));
    if (a->a.data) TRY(gdn_check_shape(ctx, &a->b, "b", a->a.ndim, a->a.size));

    const gdn_tensor *like = a->a.data ? &a->a : &a->b;
    s->H                   = like->size[like->ndim - 1];
    s->n_rows              = gdn_n_rows(like);
    s->rows_per_item       = gdn_rows_per_item(s->H);
    if (a->a.data && !a->A_log.data) return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for a");
    if (a->A_log.data) TRY(gdn_gates_check_vector(ctx, &a->A_log, "A_log", GDN_FLOATS, s->H));
    if (a->dt_bias.data)
        TRY(gdn_gates_check_vector(ctx, &a->dt_bias, "dt_bias", GDN_FLOATS, s->H));
    return gdn_check_written(ctx, GDN_OP_GATES, a, NULL);
}

GDN_OP_ENTRY(GATES, gates, gdn_gates_args, describe, struct gdn_gates_call)
GDN_OP_PART(gates, gdn_gates_args, struct gdn_gates_call)
