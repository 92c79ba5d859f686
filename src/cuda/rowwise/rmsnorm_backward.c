/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { LONGEST_ROW = 256, LONGEST_LONG = 1024 };
enum { WARPS = 8 };       /* of a block of `sums` */
enum { LEAST_ROWS = 64 }; /* lines of a block, at least */

static const char *why_not_row(int64_t D)
{
    return D > LONGEST_ROW ? "rows are of more than 256 elements" : NULL;
}
static const char *why_not_long(int64_t D)
{
    return D > LONGEST_LONG ? "rows are of more than 1024 elements" : NULL;
}

/* The decisions about a call. */
struct planned {
    enum gdn_kernel_id kernel;
    struct gdn_cu_rmsnorm_backward args;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static void fill(struct gdn_cu_rmsnorm_backward *to, const struct gdn_rmsnorm_backward *c)
{
    const gdn_rmsnorm_gated_backward_args *a = &c->args;
    *to = (struct gdn_cu_rmsnorm_backward){
        .weight = gdn_cuda_array(&a->weight),
        .dweight = gdn_cuda_array(&a->dweight),
        .n_lines = c->n_rows,
        .D = c->D,
        .rows = c->rows,
        .n_blocks = c->n_blocks,
        .eps = a->eps,
        .sigmoid = c->sigmoid,
        .lanes = gdn_cuda_lanes_of(c->D),
        .adds = c->adds,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &a->x, &a->z, &a->dout, &a->dx, &a->dz }, 5,
                   &to->leads,
                   (struct gdn_cu_lines *const[]){ &to->x, &to->z, &to->dout, &to->dx, &to->dz });
}

static gdn_status plan_rmsnorm_gated_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_rmsnorm_backward *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    (void)ctx;
    gdn_rmsnorm_backward_cut(c, LEAST_ROWS);
    fill(&p->args, c);
    p->kernel = !why_not_row(c->D)    ? GDN_CU_rmsnorm_backward_row
                : !why_not_long(c->D) ? GDN_CU_rmsnorm_backward_long
                                      : GDN_CU_rmsnorm_backward_wide;
    return GDN_OK;
}

static void log_choice(gdn_ctx *ctx, int64_t D)
{
    const struct gdn_cuda_form list[] = { { "row", why_not_row(D) },
                                          { "long", why_not_long(D) },
                                          { "wide", NULL } };
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_GRADIENTS_CHOICE, "rmsnorm_gated_backward", list);
}

static gdn_status run_rmsnorm_gated_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rmsnorm_backward *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const struct gdn_cuda_call rows = {
        .kernel = p->kernel,
        .grid = { p->args.n_blocks, 1, 1 },
        .stream = c->base.stream,
        .args = &p->args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_rmsnorm_backward_sums,
        .grid = { (p->args.D + WARPS - 1) / WARPS, 1, 1 },
        .stream = c->base.stream,
        .args = &p->args,
    };
    const bool adds_up = p->args.dweight.data;
    const enum gdn_kernel_id ran[] = { rows.kernel, sums.kernel };
    p->args.sums = c->base.bytes ? memory : NULL;
    log_choice(ctx, c->D);
    TRY(gdn_cuda_launch(ctx, &rows));
    if (adds_up) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note_all(ctx, c->base.op, ran, 1 + adds_up);
}

const struct gdn_op_backend gdn_cuda_op_rmsnorm_gated_backward = { plan_rmsnorm_gated_backward,
                                                                   run_rmsnorm_gated_backward };
