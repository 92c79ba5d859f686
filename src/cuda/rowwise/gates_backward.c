/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { WARPS = 8, HEADS = 32 }; /* of a block; as in gates_backward.cu */
enum { LEAST_ROWS = 32 };       /* of a block */

/* Fills in the arguments of a launch for a and its gradients (of_a), for b and its gradient (of_b),
 * or for all. */
static void fill(struct gdn_cu_gates_backward *to, const struct gdn_gates_backward_call *s,
                 bool of_a, bool of_b)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_gates_backward_args *a = &s->args;
    *to = (struct gdn_cu_gates_backward){
        .A_log = gdn_cuda_array(&a->A_log),
        .dt_bias = gdn_cuda_array(&a->dt_bias),
        .dA_log = gdn_cuda_array(&a->dA_log),
        .ddt_bias = gdn_cuda_array(&a->ddt_bias),
        .n_lines = of_a ? s->n_rows : s->b_rows,
        .H = of_a ? s->H : s->b_size,
        .rows = s->rows,
        .bound = a->gate_lower_bound,
        .factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
        .linear = a->gate == GDN_GATE_LINEAR,
        .adds = s->adds,
        .wants_a = of_a && s->wants_a,
        .K = of_a ? (int32_t)s->K : 0,
    };
    to->n_blocks = (to->n_lines + to->rows - 1) / to->rows;
    const gdn_tensor *tensors[] = { of_a ? &a->a : &none,  of_b ? &a->b : &none,
                                    of_a ? &a->dg : &none, of_b ? &a->dbeta : &none,
                                    of_a ? &a->da : &none, of_b ? &a->db : &none };
    struct gdn_cu_lines *lines[] = { &to->a, &to->b, &to->dg, &to->dbeta, &to->da, &to->db };
    const int first = tensors[0]->data ? 0 : 1; /* the first tensor that is given */
    gdn_cuda_lines(tensors + first, 6 - first, &to->leads, lines + first);
}

/* The decisions about a call. */
struct planned {
    bool apart; /* a second launch is of b alone, because channels give b other lines than a */
    struct gdn_cu_gates_backward args, of_b;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_gates_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_gates_backward_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const bool has_a = c->args.a.data, has_b = c->args.b.data;
    (void)ctx;
    gdn_gates_cut(c, LEAST_ROWS);
    p->apart = c->K && c->args.db.data;
    fill(&p->args, c, has_a, has_b && !c->K);
    if (p->apart) fill(&p->of_b, c, false, true);
    return GDN_OK;
}

static gdn_status launch_rows(gdn_ctx *ctx, const struct gdn_cu_gates_backward *a,
                              struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_gates_backward_rows,
        .grid = { a->n_blocks, a->K ? a->H : (a->H + HEADS - 1) / HEADS, 1 },
        .stream = stream,
        .args = a,
    };
    gdn_cuda_ran_add(ran, call.kernel);
    return gdn_cuda_launch(ctx, &call);
}

static gdn_status launch_sums(gdn_ctx *ctx, const struct gdn_cu_gates_backward *a,
                              struct gdn_cuda_ran *ran, void *stream)
{
    const int64_t n = a->H * (a->K ? 1 + a->K : 2);
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_gates_backward_sums,
        .grid = { (n + WARPS - 1) / WARPS, 1, 1 },
        .stream = stream,
        .args = a,
    };
    if (!a->dA_log.data && !a->ddt_bias.data) return GDN_OK;
    gdn_cuda_ran_add(ran, call.kernel);
    return gdn_cuda_launch(ctx, &call);
}

static gdn_status run_gates_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_backward_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    struct gdn_cuda_ran ran = { .n = 0 };
    p->args.sums = c->base.bytes && c->args.a.data ? memory : NULL;
    TRY(launch_rows(ctx, &p->args, &ran, c->base.stream));
    TRY(launch_sums(ctx, &p->args, &ran, c->base.stream));
    if (p->apart) TRY(launch_rows(ctx, &p->of_b, &ran, c->base.stream));
    return gdn_cuda_note_all(ctx, c->base.op, ran.kernels, ran.n);
}

const struct gdn_op_backend gdn_cuda_op_gates_backward = { plan_gates_backward,
                                                           run_gates_backward };
