/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { WARPS = 8, HEADS = 32 }; /* of a block; as in gates_backward.cu */
enum { LEAST_ROWS = 32 };       /* of a block */

static struct gdn_cu_gates_backward args_of(const struct gdn_gates_backward_call *s, float *sums)
{
    const gdn_gates_backward_args *a = &s->args;
    struct gdn_cu_gates_backward args = {
        .A_log = gdn_cuda_array(&a->A_log),
        .dt_bias = gdn_cuda_array(&a->dt_bias),
        .dA_log = gdn_cuda_array(&a->dA_log),
        .ddt_bias = gdn_cuda_array(&a->ddt_bias),
        .sums = sums,
        .n_lines = s->n_rows,
        .H = s->H,
        .rows = s->rows,
        .n_blocks = s->n_blocks,
        .bound = a->gate_lower_bound,
        .factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
        .linear = a->gate == GDN_GATE_LINEAR,
        .adds = s->adds,
        .wants_a = s->wants_a,
    };
    const gdn_tensor *tensors[] = { &a->a, &a->b, &a->dg, &a->dbeta, &a->da, &a->db };
    struct gdn_cu_lines *lines[] = { &args.a, &args.b, &args.dg, &args.dbeta, &args.da, &args.db };
    const int first = a->a.data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 6 - first, &args.leads, lines + first);
    return args;
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    const struct gdn_gates_backward_call *s = call;
    TRY(gdn_cuda_check_gates(ctx, s->K, &s->args.a, &s->args.A_log));
    gdn_gates_cut(call, LEAST_ROWS);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_backward_call *s = call;
    const struct gdn_cu_gates_backward args = args_of(s, s->base.bytes ? (float *)memory : NULL);
    const struct gdn_cuda_call rows = {
        .kernel = GDN_CU_gates_backward_rows,
        .grid = { args.n_blocks, (args.H + HEADS - 1) / HEADS, 1 },
        .stream = s->base.stream,
        .args = &args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_gates_backward_sums,
        .grid = { (2 * args.H + WARPS - 1) / WARPS, 1, 1 },
        .stream = s->base.stream,
        .args = &args,
    };
    const bool adds_up = args.dA_log.data || args.ddt_bias.data;
    const enum gdn_kernel_id ran[] = { rows.kernel, sums.kernel };
    TRY(gdn_cuda_launch(ctx, &rows));
    if (adds_up) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note_all(ctx, s->base.op, ran, 1 + adds_up);
}

const struct gdn_op_backend gdn_cuda_op_gates_backward = { plan, run };
