/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"

enum { PACK = 8, LONGEST_ROW = 256, LONGEST_LONG = 1024, LEAST_LANES = 4 };
enum { WARPS = 8 };       /* of a block of `sums` */
enum { LEAST_ROWS = 64 }; /* of a block */

static struct gdn_cu_rmsnorm_backward args_of(const struct gdn_rmsnorm_backward *s, float *sums)
{
    const gdn_rmsnorm_gated_backward_args *a = &s->args;
    struct gdn_cu_rmsnorm_backward args = {
        .weight = gdn_cuda_array(&a->weight),
        .dweight = gdn_cuda_array(&a->dweight),
        .sums = sums,
        .n_lines = s->n_rows,
        .D = s->D,
        .rows = s->rows,
        .n_blocks = s->n_blocks,
        .eps = a->eps,
        .sigmoid = s->sigmoid,
        .lanes = LEAST_LANES,
        .adds = s->adds,
    };
    while (args.lanes < 32 && args.lanes * PACK < args.D) args.lanes *= 2;
    gdn_cuda_lines(
        (const gdn_tensor *const[]){ &a->x, &a->z, &a->dout, &a->dx, &a->dz }, 5, &args.leads,
        (struct gdn_cu_lines *const[]){ &args.x, &args.z, &args.dout, &args.dx, &args.dz });
    return args;
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    (void)ctx;
    gdn_rmsnorm_backward_cut(call, LEAST_ROWS);
    return GDN_OK;
}

static enum gdn_kernel_id choose(gdn_ctx *ctx, int64_t D)
{
    static const enum gdn_kernel_id kernels[] = { GDN_CU_rmsnorm_backward_row,
                                                  GDN_CU_rmsnorm_backward_long,
                                                  GDN_CU_rmsnorm_backward_wide };
    const struct gdn_cuda_form list[] = {
        { "row", D > LONGEST_ROW ? "rows are of more than 256 elements" : NULL },
        { "long", D > LONGEST_LONG ? "rows are of more than 1024 elements" : NULL },
        { "wide", NULL },
    };
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_GRADIENTS_CHOICE, "rmsnorm_gated_backward", list);
    int i = 0;
    while (list[i].why_not) i++;
    return kernels[i];
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rmsnorm_backward *s = call;
    const struct gdn_cu_rmsnorm_backward args = args_of(s, s->base.bytes ? (float *)memory : NULL);
    const struct gdn_cuda_call rows = {
        .kernel = choose(ctx, args.D),
        .grid = { args.n_blocks, 1, 1 },
        .stream = s->base.stream,
        .args = &args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_rmsnorm_backward_sums,
        .grid = { (args.D + WARPS - 1) / WARPS, 1, 1 },
        .stream = s->base.stream,
        .args = &args,
    };
    const bool adds_up = args.dweight.data;
    const enum gdn_kernel_id ran[] = { rows.kernel, sums.kernel };
    TRY(gdn_cuda_launch(ctx, &rows));
    if (adds_up) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note_all(ctx, s->base.op, ran, 1 + adds_up);
}

const struct gdn_op_backend gdn_cuda_op_rmsnorm_gated_backward = { plan, run };
