/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { LONGEST_ROW = 1024, THREADS = 256 };

/* The decisions about a call. */
struct planned {
    const char *why_not_row; /* why form `row` does not take the call, which `wide` then does */
    struct gdn_cu_l2norm_backward args;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_l2norm_backward(gdn_ctx *ctx, void *call)
{
    const struct gdn_l2norm_backward *c = call;
    const gdn_l2norm_backward_args *a = &c->args;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    struct gdn_cu_l2norm_backward *args = &p->args;
    (void)ctx;
    *args = (struct gdn_cu_l2norm_backward){
        .n_lines = c->n_rows,
        .D = c->D,
        .formula = a->norm,
        .eps = a->eps,
        .lanes = gdn_cuda_lanes_of(c->D),
        .adds = (a->flags & GDN_ACCUMULATE) != 0,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &a->x, &a->dout, &a->dx }, 3, &args->leads,
                   (struct gdn_cu_lines *const[]){ &args->x, &args->dout, &args->dx });
    p->why_not_row = args->D > LONGEST_ROW ? "rows are of more than 1024 elements" : NULL;
    return GDN_OK;
}

static gdn_status run_l2norm_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_l2norm_backward *c = call;
    const struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const struct gdn_cuda_form list[] = { { "row", p->why_not_row }, { "wide", NULL } };
    const int64_t lines = p->why_not_row ? 1 : THREADS / p->args.lanes; /* of a block */
    const struct gdn_cuda_call launch = {
        .kernel = p->why_not_row ? GDN_CU_l2norm_backward_wide : GDN_CU_l2norm_backward_row,
        .grid = { (p->args.n_lines + lines - 1) / lines, 1, 1 },
        .stream = c->base.stream,
        .args = &p->args,
    };
    (void)memory;
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_GRADIENTS_CHOICE, c->base.op, list);
    TRY(gdn_cuda_launch(ctx, &launch));
    return gdn_cuda_note(ctx, c->base.op, launch.kernel);
}

const struct gdn_op_backend gdn_cuda_op_l2norm_backward = { plan_l2norm_backward,
                                                            run_l2norm_backward };
