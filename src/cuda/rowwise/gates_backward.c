/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { WARPS = 8, HEADS = 32 }; /* of a block; as in gates_backward.cu */
enum { LEAST_ROWS = 32 };       /* of a block */

/* Returns the arguments of a launch for a and its gradients (of_a), for b and its gradient (of_b),
 * or for all. */
static struct gdn_cu_gates_backward args_of(const struct gdn_gates_backward_call *s, bool of_a,
                                            bool of_b, float *sums)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_gates_backward_args *a = &s->args;
    struct gdn_cu_gates_backward args = {
        .A_log = gdn_cuda_array(&a->A_log),
        .dt_bias = gdn_cuda_array(&a->dt_bias),
        .dA_log = gdn_cuda_array(&a->dA_log),
        .ddt_bias = gdn_cuda_array(&a->ddt_bias),
        .sums = of_a ? sums : NULL,
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
    args.n_blocks = (args.n_lines + args.rows - 1) / args.rows;
    const gdn_tensor *tensors[] = { of_a ? &a->a : &none,  of_b ? &a->b : &none,
                                    of_a ? &a->dg : &none, of_b ? &a->dbeta : &none,
                                    of_a ? &a->da : &none, of_b ? &a->db : &none };
    struct gdn_cu_lines *lines[] = { &args.a, &args.b, &args.dg, &args.dbeta, &args.da, &args.db };
    const int first = tensors[0]->data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 6 - first, &args.leads, lines + first);
    return args;
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    (void)ctx;
    gdn_gates_cut(call, LEAST_ROWS);
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

/* With channels b has other lines than a. */
static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_backward_call *s = call;
    const bool has_a = s->args.a.data, has_b = s->args.b.data, apart = s->K && s->args.db.data;
    struct gdn_cuda_ran ran = { .n = 0 };
    const struct gdn_cu_gates_backward args =
        args_of(s, has_a, has_b && !s->K, s->base.bytes ? (float *)memory : NULL);
    TRY(launch_rows(ctx, &args, &ran, s->base.stream));
    TRY(launch_sums(ctx, &args, &ran, s->base.stream));
    if (apart) {
        const struct gdn_cu_gates_backward of_b = args_of(s, false, true, NULL);
        TRY(launch_rows(ctx, &of_b, &ran, s->base.stream));
    }
    return gdn_cuda_note_all(ctx, s->base.op, ran.kernels, ran.n);
}

const struct gdn_op_backend gdn_cuda_op_gates_backward = { plan, run };
