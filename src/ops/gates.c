/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_gates: checks its arguments. cpu/gates.c computes it. */
#include "calls/gates.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* Checks that an input and its output are both given, or both absent. */
static gdn_status check_pair(gdn_ctx *ctx, const gdn_tensor *in, const char *in_name,
                             const gdn_tensor *out, const char *out_name)
{
    if (!in->data == !out->data) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", in->data ? out_name : in_name,
                    in->data ? in_name : out_name);
}

gdn_status gdn_gates_check_shapes(gdn_ctx *ctx, gdn_op op, const void *args,
                                  const struct gdn_gates_tensors *t, struct gdn_gates_sizes *to)
{
    const gdn_tensor *like = t->a->data ? t->a : t->b;
    const char *const name = t->a->data ? "a" : "b";
    const bool channels = t->a->data && t->dt_bias->data && t->dt_bias->ndim == 2;
    const int heads = like->ndim - (channels ? 2 : 1), least = channels ? 3 : 2;
    if (like->ndim < least)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d dimensions, wanted %d to %d", name,
                        (int)like->ndim, least, GDN_MAX_DIMS);
    const struct gdn_sizes s = { .H = like->size[heads],
                                 .like = like,
                                 .K = channels ? like->size[heads + 1] : 0 };
    if (channels && s.K < 1)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 0 channels, wanted 1 to %d", name, GDN_MAX_HEAD);
    TRY(gdn_check_shapes(ctx, op, args, &s));
    for (int i = 0; i < 3; i++) {
        const gdn_tensor *x = t->like_b[i].t;
        if (!x || !x->data) continue;
        const bool alone = channels && x->ndim == like->ndim - 1 && t->b->ndim == x->ndim;
        TRY(gdn_check_shape(ctx, x, t->like_b[i].name, like->ndim - alone, like->size));
    }
    *to = (struct gdn_gates_sizes){ .H = s.H, .K = s.K, .n_rows = gdn_n_rows(like) };
    if (channels && s.K > GDN_MAX_HEAD)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld channels, at most %d", name,
                        (long long)s.K, GDN_MAX_HEAD);
    if (t->b->data) to->b_rows = gdn_n_rows(t->b), to->b_size = t->b->size[t->b->ndim - 1];
    return gdn_check_written(ctx, op, args, NULL);
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_args *a)
{
    TRY(gdn_check_fields(ctx, GDN_OP_GATES, a));
    if (!a->a.data && !a->b.data)
        return gdn_fail(ctx, GDN_E_ARG, "a: absent, and b too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe_gates(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_gates_call *s = call;
    const gdn_gates_args *a = &s->args;
    *s = (struct gdn_gates_call){ .n_rows = 0 };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_args"));
    s->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(check_pair(ctx, &a->a, "a", &a->g, "g"));
    TRY(check_pair(ctx, &a->b, "b", &a->beta, "beta"));
    if (a->a.data && !a->A_log.data && a->gate_lower_bound == 0)
        return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for a");
    TRY(gdn_check_present(ctx, GDN_OP_GATES, &s->args));
    const struct gdn_gates_tensors t = {
        &a->a, &a->b, &a->dt_bias, { { &a->b, "b" }, { &a->beta, "beta" } }
    };
    struct gdn_gates_sizes z;
    TRY(gdn_gates_check_shapes(ctx, GDN_OP_GATES, a, &t, &z));
    s->H = z.H, s->K = z.K, s->n_rows = z.n_rows, s->b_rows = z.b_rows, s->b_size = z.b_size;
    s->rows_per_item = gdn_rows_per_item(s->K ? s->K : s->H);
    return GDN_OK;
}

GDN_OP_ENTRY(GATES, gates, gdn_gates_args, struct gdn_gates_call)
GDN_OP_PART(gates, gdn_gates_args, struct gdn_gates_call)
