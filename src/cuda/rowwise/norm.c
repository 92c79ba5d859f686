/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
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

/* Return why a form does not take a call, as text for the log; NULL: it does. Lines of `flat` are
 * whole packs of 16 bits that move at once, by all their lanes. */
static const char *why_not_flat(const struct gdn_cu_norm *a)
{
    const struct gdn_cu_lines *const lines[] = { &a->x, &a->out, &a->z };
    if (a->D > LONGEST_ROW || a->D != lanes_of(a->D) * PACK)
        return "rows are not of 32, 64, 128 or 256 elements";
    if (a->x.dtype == GDN_F32 || a->leads.n != 1)
        return "rows are of float32, or not one step apart";
    for (int i = 0; i < (a->z.data ? 3 : 2); i++)
        if (lines[i]->access != 16 || lines[i]->dtype != a->x.dtype)
            return "rows are not whole 16 bytes of one dtype";
    return NULL;
}
static const char *why_not_row(const struct gdn_cu_norm *a)
{
    return a->D > LONGEST_ROW ? "rows are of more than 256 elements" : NULL;
}
static const char *why_not_long(const struct gdn_cu_norm *a)
{
    return a->D > LONGEST_LONG ? "rows are of more than 1024 elements" : NULL;
}

/* Returns the kernel, and how many lines a group of lanes has; 0: a block has one. */
static enum gdn_kernel_id choose(gdn_ctx *ctx, const struct gdn_cu_norm *a, int64_t *lines)
{
    static const struct {
        enum gdn_kernel_id kernel;
        int lines;
    } forms[] = { { GDN_CU_norm_flat_bf16, 4 },
                  { GDN_CU_norm_row, 2 },
                  { GDN_CU_norm_long, 1 },
                  { GDN_CU_norm_wide, 0 } };
    const struct gdn_cuda_form list[] = { { "flat", why_not_flat(a) },
                                          { "row", why_not_row(a) },
                                          { "long", why_not_long(a) },
                                          { "wide", NULL } };
    int i = 0;
    while (list[i].why_not) i++;
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_CHOICE, "norm", list);
    *lines = forms[i].lines;
    return i == 0 && a->x.dtype == GDN_F16 ? GDN_CU_norm_flat_f16 : forms[i].kernel;
}

gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream)
{
    int64_t lines;
    const enum gdn_kernel_id kernel = choose(ctx, args, &lines);
    args->lanes = lanes_of(args->D);
    lines = lines ? lines * THREADS / args->lanes : 1;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { (args->n_lines + lines - 1) / lines, 1, 1 },
        .stream = stream,
        .args = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s)
{
    struct gdn_cu_norm args = {
        .weight = gdn_cuda_line(&s->weight),
        .weight_step = s->D > 1 ? s->weight.stride[0] : 1,
        .n_lines = s->n_rows,
        .D = s->D,
        .formula = s->formula,
        .sigmoid = s->sigmoid,
        .eps = s->eps,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &s->x, &s->z, &s->out }, 3, &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.z, &args.out });
    return args;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_norm_call *c = call;
    struct gdn_cu_norm args = gdn_cuda_norm_args(&c->job);
    (void)memory;
    return gdn_cuda_norm(ctx, c->base.op, &args, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_l2norm = { .run = run };
const struct gdn_op_backend gdn_cuda_op_rmsnorm_gated = { .run = run };
