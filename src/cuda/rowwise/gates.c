/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { THREADS = 256, HEADS = 4, LINES = 4, ONES = 2 }; /* of a block; as in gates.cu */

enum { BUSY = 8 }; /* blocks of a multiprocessor, at least, if a thread has several lines */

/* Returns true if four elements of a vector move at once. */
static bool is_quads(const struct gdn_cu_array *v, int64_t n)
{
    return v->stride[0] == 1 && gdn_cuda_access(v->data, v->dtype, NULL, 0, n);
}

/* Returns why a thread does not take four heads at a time, as text for the log; NULL: it does. */
static const char *why_not_flat(const struct gdn_cu_gates *a)
{
    const struct gdn_cu_lines *const lines[] = { &a->a, &a->b, &a->g, &a->beta };
    const struct gdn_cu_array *const vectors[] = { &a->A_log, &a->dt_bias };
    if (a->n_heads) return "a has channels";
    for (int i = 0; i < 4; i++)
        if (lines[i]->data && !lines[i]->access) return "four heads of a row do not move at once";
    for (int i = 0; i < 2; i++)
        if (vectors[i]->data && !is_quads(vectors[i], a->H))
            return "four heads of A_log or dt_bias do not move at once";
    if (a->a.data && a->b.data && a->a.dtype != a->b.dtype) return "a and b differ in dtype";
    if (a->leads.n != 1) return "rows are not one step apart";
    return a->H > HEADS * THREADS ? "there are more than 1024 heads" : NULL;
}

/* Chooses the lines of a thread, at most `most`, and returns the number of blocks. */
static int64_t spread(struct gdn_cu_gates *a, int64_t places, int most, int sm_count)
{
    const int64_t wide = places < THREADS ? places : THREADS;
    const int64_t lines = THREADS / wide; /* lines that a block has at once */
    a->wide = (uint32_t)wide;
    a->inverse = (uint32_t)((65536 + wide - 1) / wide);
    a->each = 1;
    while (a->each < most && a->n_lines / (2 * a->each * lines) >= (int64_t)BUSY * sm_count)
        a->each *= 2;
    return (a->n_lines + a->each * lines - 1) / (a->each * lines);
}

/* Fills in the arguments of a launch for a and g (of_a), for b and beta (of_b), or for all. */
static void fill(struct gdn_cu_gates *to, const struct gdn_gates_call *s, bool of_a, bool of_b)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_gates_args *a = &s->args;
    *to = (struct gdn_cu_gates){
        .A_log = gdn_cuda_array(of_a ? &a->A_log : &none),
        .dt_bias = gdn_cuda_array(of_a ? &a->dt_bias : &none),
        .n_lines = of_a ? s->n_rows : s->b_rows,
        .H = !of_a  ? s->b_size
             : s->K ? s->K
                    : s->H,
        .n_heads = of_a && s->K ? s->H : 0,
        .bound = a->gate_lower_bound,
        .factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
        .linear = a->gate == GDN_GATE_LINEAR,
    };
    const gdn_tensor *tensors[] = { of_a ? &a->a : &none, of_b ? &a->b : &none,
                                    of_a ? &a->g : &none, of_b ? &a->beta : &none };
    struct gdn_cu_lines *lines[] = { &to->a, &to->b, &to->g, &to->beta };
    const int first = tensors[0]->data ? 0 : 1; /* the first tensor that is given */
    gdn_cuda_lines(tensors + first, 4 - first, &to->leads, lines + first);
}

/* ---- The call ------------------------------------------------------------------------------ */

struct planned_launch {
    const char *why_not_flat; /* why form `flat` does not take the launch; then `heads` does */
    struct gdn_cu_gates args;
    enum gdn_kernel_id kernel;
    int64_t n_blocks;
};

/* The decisions about a call. */
struct planned {
    int n; /* launches: 1 for all, or 1 for a and 1 for b */
    struct planned_launch launches[2];
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* Adds the plan of a launch, see fill(). */
static void add(struct planned *p, const struct gdn_gates_call *c, bool of_a, bool of_b,
                int sm_count)
{
    static const enum gdn_kernel_id flat[] = {
        [GDN_F32] = GDN_CU_gates_flat_f32,
        [GDN_BF16] = GDN_CU_gates_flat_bf16,
        [GDN_F16] = GDN_CU_gates_flat_f16,
    };
    struct planned_launch *l = &p->launches[p->n++];
    struct gdn_cu_gates *a = &l->args;
    fill(a, c, of_a, of_b);
    l->why_not_flat = why_not_flat(a);
    const bool by_ones = l->why_not_flat;
    const int64_t places = by_ones ? a->H : a->H / HEADS;
    l->kernel = by_ones ? GDN_CU_gates_heads : flat[a->a.data ? a->a.dtype : a->b.dtype];
    l->n_blocks = places ? spread(a, places, by_ones ? ONES : LINES, sm_count) : 0;
}

/* Plans one launch; two, if a has channels and so more lines than b. */
static gdn_status plan_gates(gdn_ctx *ctx, void *call)
{
    const struct gdn_gates_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const bool has_a = c->args.a.data, has_b = c->args.b.data, apart = c->K && has_b;
    p->n = 0;
    add(p, c, has_a, has_b && !apart, ctx->cuda->sm_count);
    if (apart) add(p, c, false, true, ctx->cuda->sm_count);
    return GDN_OK;
}

static gdn_status launch(gdn_ctx *ctx, const struct planned_launch *l, void *stream)
{
    const struct gdn_cuda_form list[] = { { "flat", l->why_not_flat }, { "heads", NULL } };
    const struct gdn_cuda_call call = {
        .kernel = l->kernel, .grid = { l->n_blocks, 1, 1 }, .stream = stream, .args = &l->args
    };
    gdn_cuda_log_forms(ctx, GDN_CUDA_GATES_CHOICE, "gates", list);
    return gdn_cuda_launch(ctx, &call);
}

static gdn_status run_gates(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_call *c = call;
    const struct planned *p = GDN_PLANNED(struct planned, &c->base);
    struct gdn_cuda_ran ran = { .n = 0 };
    (void)memory;
    for (int i = 0; i < p->n; i++) {
        TRY(launch(ctx, &p->launches[i], c->base.stream));
        gdn_cuda_ran_add(&ran, p->launches[i].kernel);
    }
    return gdn_cuda_note_all(ctx, c->base.op, ran.kernels, ran.n);
}

const struct gdn_op_backend gdn_cuda_op_gates = { plan_gates, run_gates };
