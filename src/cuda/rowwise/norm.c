/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/rowwise.h"

enum { PACK = 8, LONGEST_ROW = 256, LONGEST_LONG = 1024, THREADS = 256, LEAST_LANES = 4 };

int gdn_cuda_lanes_of(int64_t D)
{
    int lanes = LEAST_LANES;
    while (lanes < 32 && lanes * PACK < D) lanes *= 2;
    return lanes;
}

/* A function why_not_... returns why a form does not take a call, as text for the log; NULL: it
 * does. */

/* Form `flat` takes lines of whole packs of 16 bits, which move at once. All lanes have a pack. */
static const char *why_not_flat(const struct gdn_cu_norm *a)
{
    const struct gdn_cu_lines *const lines[] = { &a->x, &a->out, &a->z };
    if (a->D > LONGEST_ROW || a->D != gdn_cuda_lanes_of(a->D) * PACK)
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
static const char *why_not_wide(const struct gdn_cu_norm *a)
{
    (void)a;
    return NULL;
}

/* The forms of a call. The first form that has no reason against the call takes it. lines: of a
 * group of lanes; 0: a block has one line. */
static const struct {
    const char *name;
    const char *(*why_not)(const struct gdn_cu_norm *a);
    enum gdn_kernel_id kernel;
    int lines;
} forms[] = {
    { "flat", why_not_flat, GDN_CU_norm_flat_bf16, 4 }, /* for f16, the kernel of f16 */
    { "row", why_not_row, GDN_CU_norm_row, 2 },
    { "long", why_not_long, GDN_CU_norm_long, 1 },
    { "wide", why_not_wide, GDN_CU_norm_wide, 0 },
};

static enum gdn_kernel_id kernel_of(const struct gdn_cuda_norm_plan *p)
{
    const enum gdn_kernel_id kernel = forms[p->form].kernel;
    return kernel == GDN_CU_norm_flat_bf16 && p->args.x.dtype == GDN_F16 ? GDN_CU_norm_flat_f16
                                                                         : kernel;
}

static void log_choice(gdn_ctx *ctx, const struct gdn_cuda_norm_plan *p)
{
    struct gdn_cuda_form list[sizeof forms / sizeof *forms];
    if (!ctx->options.log) return;
    for (int i = 0; i <= p->form; i++)
        list[i] = (struct gdn_cuda_form){ forms[i].name, forms[i].why_not(&p->args) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_NORM_CHOICE, "norm", list);
}

void gdn_cuda_fill_norm(struct gdn_cu_norm *to, const struct gdn_norm_job *s)
{
    *to = (struct gdn_cu_norm){
        .weight = gdn_cuda_line(&s->weight),
        .weight_step = s->D > 1 ? s->weight.stride[0] : 1,
        .n_lines = s->n_rows,
        .D = s->D,
        .formula = s->formula,
        .sigmoid = s->sigmoid,
        .eps = s->eps,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &s->x, &s->z, &s->out }, 3, &to->leads,
                   (struct gdn_cu_lines *const[]){ &to->x, &to->z, &to->out });
}

void gdn_cuda_norm_plan(struct gdn_cuda_norm_plan *p)
{
    p->form = 0;
    while (forms[p->form].why_not(&p->args)) p->form++;
    p->args.lanes = gdn_cuda_lanes_of(p->args.D);
}

gdn_status gdn_cuda_norm_run(gdn_ctx *ctx, const char *op, const struct gdn_cuda_norm_plan *p,
                             void *stream)
{
    const struct gdn_cu_norm *a = &p->args;
    const int64_t lines = forms[p->form].lines ? forms[p->form].lines * THREADS / a->lanes : 1;
    const struct gdn_cuda_call call = {
        .kernel = kernel_of(p),
        .grid = { (a->n_lines + lines - 1) / lines, 1, 1 },
        .stream = stream,
        .args = a,
    };
    log_choice(ctx, p);
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

/* ---- gdn_l2norm, gdn_rmsnorm_gated --------------------------------------------------------- */

_Static_assert(sizeof(struct gdn_cuda_norm_plan) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_norm(gdn_ctx *ctx, void *call)
{
    const struct gdn_norm_call *c = call;
    struct gdn_cuda_norm_plan *p = GDN_PLANNED(struct gdn_cuda_norm_plan, &c->base);
    (void)ctx;
    gdn_cuda_fill_norm(&p->args, &c->job);
    gdn_cuda_norm_plan(p);
    return GDN_OK;
}

static gdn_status run_norm(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_norm_call *c = call;
    (void)memory;
    return gdn_cuda_norm_run(ctx, c->base.op, GDN_PLANNED(struct gdn_cuda_norm_plan, &c->base),
                             c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_l2norm = { plan_norm, run_norm };
const struct gdn_op_backend gdn_cuda_op_rmsnorm_gated = { plan_norm, run_norm };
