/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/op_backends.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/rowwise.h"

enum { PACK = 8, LONGEST_ROW = 256, LONGEST_LONG = 1024, THREADS = 256, LEAST_LANES = 4 };

/* Lanes of 8 elements that a line of D takes; not fewer than they take lines at a time. */
static int lanes_of(int64_t D)
{
    int lanes = LEAST_LANES;
    while (lanes < 32 && lanes * PACK < D) lanes *= 2;
    return lanes;
}

/* Returns true if lines are whole packs of 16 bits that move at once, by all their lanes. */
static bool is_flat(const struct gdn_cu_norm *a)
{
    const struct gdn_cu_lines *const lines[] = { &a->x, &a->out, &a->z };
    for (int i = 0; i < (a->z.data ? 3 : 2); i++)
        if (lines[i]->access != 16 || lines[i]->dtype != a->x.dtype) return false;
    return a->x.dtype != GDN_F32 && a->leads.n == 1 && a->D == lanes_of(a->D) * PACK;
}

/* Returns the kernel, and how many lines a group of lanes has; 0: a block has one. */
static enum gdn_kernel_id choose(const struct gdn_cu_norm *a, int64_t *lines)
{
    *lines = a->D <= LONGEST_ROW ? 2 : a->D <= LONGEST_LONG;
    if (a->D > LONGEST_LONG) return GDN_CU_norm_wide;
    if (a->D > LONGEST_ROW) return GDN_CU_norm_long;
    if (!is_flat(a)) return GDN_CU_norm_row;
    *lines = 4;
    return a->x.dtype == GDN_BF16 ? GDN_CU_norm_flat_bf16 : GDN_CU_norm_flat_f16;
}

gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream)
{
    int64_t                  lines;
    const enum gdn_kernel_id kernel = choose(args, &lines);
    args->lanes                     = lanes_of(args->D);
    lines                           = lines ? lines * THREADS / args->lanes : 1;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid   = { (args->n_lines + lines - 1) / lines, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s)
{
    struct gdn_cu_norm args = {
        .weight      = gdn_cuda_line(&s->weight),
        .weight_step = s->D > 1 ? s->weight.stride[0] : 1,
        .n_lines     = s->n_rows,
        .D           = s->D,
        .formula     = s->formula,
        .sigmoid     = s->sigmoid,
        .eps         = s->eps,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &s->x, &s->z, &s->out }, 3, &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.z, &args.out });
    return args;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_norm_call *c    = call;
    struct gdn_cu_norm          args = gdn_cuda_norm_args(&c->job);
    (void)memory;
    return gdn_cuda_norm(ctx, c->base.op, &args, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_l2norm        = { .run = run };
const struct gdn_op_backend gdn_cuda_op_rmsnorm_gated = { .run = run };
