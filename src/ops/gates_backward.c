/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_gates_backward: what its arguments must be. cpu/gates_backward.c computes it. */
#include "calls/gates.h"
#include "ops/entry.h"
#include "ops/op_table.h"

static bool wants_a(const gdn_gates_backward_args *a)
{
    return a->da.data || a->dA_log.data || a->ddt_bias.data;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    if (a->flags & ~(uint32_t)GDN_ACCUMULATE)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0 or GDN_ACCUMULATE",
                        (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    return gdn_gates_check_formula(ctx, a->gate, a->beta_kind, a->gate_lower_bound);
}

/* Gradients have what they are made of. */
static gdn_status check_present(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    const struct {
        const gdn_tensor *t;
        const char       *name;
        bool              wanted;
        const char       *by;
    } inputs[] = { { &a->a, "a", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->A_log, "A_log", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->dg, "dg", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->b, "b", a->db.data, "db" },
                   { &a->dbeta, "dbeta", a->db.data, "db" } };
    if (!wants_a(a) && !a->db.data)
        return gdn_fail(ctx, GDN_E_ARG, "da: absent, and every other gradient too, wanted one");
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].wanted && !inputs[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted for %s", inputs[i].name,
                            inputs[i].by);
    return GDN_OK;
}

static gdn_status check_rows(gdn_ctx *ctx, const gdn_tensor *like, const gdn_tensor *t,
                             const char *name)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
    if (t->ndim < 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 1 dimension, wanted 2 to %d", name, GDN_MAX_DIMS);
    TRY(gdn_check_shape(ctx, t, name, like->ndim, like->size));
    return gdn_check_dense(ctx, t, name);
}

static gdn_status check_vector(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned dtypes,
                               int64_t H)
{
    return t->data ? gdn_gates_check_vector(ctx, t, name, dtypes, H) : GDN_OK;
}

/* What is written overlaps nothing else, nor itself. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    enum { N = 10, FIRST = 6 }; /* the first that is written */
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } all[N] = { { &a->a, "a" },           { &a->b, "b" },   { &a->A_log, "A_log" },
                 { &a->dt_bias, "dt_bias" }, { &a->dg, "dg" }, { &a->dbeta, "dbeta" },
                 { &a->da, "da" },         { &a->db, "db" }, { &a->dA_log, "dA_log" },
                 { &a->ddt_bias, "ddt_bias" } };
    for (int i = FIRST; i < N; i++) {
        if (!all[i].t->data) continue;
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = 0; j < i; j++)
            TRY(gdn_check_no_overlap(ctx, all[i].t, all[i].name, all[j].t, all[j].name, false));
    }
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_gates_backward_args *a,
                                const gdn_tensor *like)
{
    const int64_t H = like->size[like->ndim - 1];
    TRY(check_rows(ctx, like, &a->b, "b"));
    TRY(check_rows(ctx, like, &a->dg, "dg"));
    TRY(check_rows(ctx, like, &a->dbeta, "dbeta"));
    TRY(check_rows(ctx, like, &a->da, "da"));
    TRY(check_rows(ctx, like, &a->db, "db"));
    TRY(check_vector(ctx, &a->A_log, "A_log", GDN_FLOATS, H));
    TRY(check_vector(ctx, &a->dt_bias, "dt_bias", GDN_FLOATS, H));
    TRY(check_vector(ctx, &a->dA_log, "dA_log", 1 << GDN_F32, H));
    TRY(check_vector(ctx, &a->ddt_bias, "ddt_bias", 1 << GDN_F32, H));
    return check_overlaps(ctx, a);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_gates_backward_call         *s = call;
    const gdn_gates_backward_args *a = &s->args;
    *s                               = (struct gdn_gates_backward_call){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_backward_args"));
    s->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(check_present(ctx, a));
    const gdn_tensor *like = a->a.data ? &a->a : &a->b;
    TRY(check_rows(ctx, like, like, a->a.data ? "a" : "b"));
    TRY(check_tensors(ctx, a, like));
    s->H       = like->size[like->ndim - 1];
    s->n_rows  = gdn_n_rows(like);
    s->adds    = a->flags & GDN_ACCUMULATE;
    s->wants_a = wants_a(a);
    return GDN_OK;
}

GDN_OP_ENTRY(GATES_BACKWARD, gates_backward, gdn_gates_backward_args, describe,
             struct gdn_gates_backward_call)
