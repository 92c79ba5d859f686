/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"

enum { PACK = 8, LONGEST_ROW = 1024, THREADS = 256, LEAST_LANES = 4 };

static struct gdn_cu_l2norm_backward args_of(const struct gdn_l2norm_backward *s)
{
    const gdn_l2norm_backward_args *a = &s->args;
    struct gdn_cu_l2norm_backward args = {
        .n_lines = s->n_rows,
        .D = s->D,
        .formula = a->norm,
        .eps = a->eps,
        .adds = (a->flags & GDN_ACCUMULATE) != 0,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &a->x, &a->dout, &a->dx }, 3, &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.dout, &args.dx });
    return args;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_l2norm_backward *s = call;
    struct gdn_cu_l2norm_backward args = args_of(s);
    const bool wide = args.D > LONGEST_ROW;
    const struct gdn_cuda_form list[] = {
        { "row", wide ? "rows are of more than 1024 elements" : NULL }, { "wide", NULL }
    };
    (void)memory;
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_GRADIENTS_CHOICE, s->base.op, list);
    args.lanes = LEAST_LANES;
    while (args.lanes < 32 && args.lanes * PACK < args.D) args.lanes *= 2;
    const int64_t lines = wide ? 1 : THREADS / args.lanes; /* of a block */
    const struct gdn_cuda_call launch = {
        .kernel = wide ? GDN_CU_l2norm_backward_wide : GDN_CU_l2norm_backward_row,
        .grid = { (args.n_lines + lines - 1) / lines, 1, 1 },
        .stream = s->base.stream,
        .args = &args,
    };
    TRY(gdn_cuda_launch(ctx, &launch));
    return gdn_cuda_note(ctx, s->base.op, launch.kernel);
}

const struct gdn_op_backend gdn_cuda_op_l2norm_backward = { .run = run };
