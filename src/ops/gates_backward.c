/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_gates_backward: checks its arguments. cpu/backward/gates_backward.c computes it. */
#include "calls/gates.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

static bool wants_a(const gdn_gates_backward_args *a)
{
    return a->da.data || a->dA_log.data || a->ddt_bias.data;
}

/* Checks that the tensors which a gradient needs are given. */
static gdn_status check_present(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    const struct {
        const gdn_tensor *t;
        const char *name;
        bool wanted;
        const char *by;
    } inputs[] = { { &a->a, "a", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->A_log, "A_log", wants_a(a) && a->gate_lower_bound == 0,
                     "da, dA_log and ddt_bias" },
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

static gdn_status describe_gates_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_gates_backward_call *s = call;
    const gdn_gates_backward_args *a = &s->args;
    *s = (struct gdn_gates_backward_call){ .n_rows = 0 };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_backward_args"));
    s->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_GATES_BACKWARD, a));
    TRY(check_present(ctx, a));
    TRY(gdn_check_present(ctx, GDN_OP_GATES_BACKWARD, &s->args));
    const struct gdn_gates_tensors t = {
        &a->a, &a->b, &a->dt_bias, { { &a->b, "b" }, { &a->dbeta, "dbeta" }, { &a->db, "db" } }
    };
    struct gdn_gates_sizes z;
    TRY(gdn_gates_check_shapes(ctx, GDN_OP_GATES_BACKWARD, a, &t, &z));
    if (a->ddt_bias.data && a->ddt_bias.ndim != (z.K ? 2 : 1))
        return gdn_fail(ctx, GDN_E_SHAPE, "ddt_bias: %s as a and dt_bias have it",
                        z.K ? "[H], wanted [H][K]" : "[H][K], wanted [H]");
    s->H = z.H, s->K = z.K, s->n_rows = z.n_rows, s->b_rows = z.b_rows, s->b_size = z.b_size;
    s->adds = a->flags & GDN_ACCUMULATE;
    s->wants_a = wants_a(a);
    return GDN_OK;
}

GDN_OP_ENTRY(GATES_BACKWARD, gates_backward, gdn_gates_backward_args,
             struct gdn_gates_backward_call)
