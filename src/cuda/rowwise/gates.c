/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/rowwise/args.h"
#include "cuda/rowwise/rowwise.h"

enum { THREADS = 256, HEADS = 4, LINES = 4, ONES = 2 }; /* of a block; as in gates.cu */

enum { BUSY = 8 }; /* blocks that a multiprocessor still has where a thread has several lines */

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

static enum gdn_kernel_id choose(gdn_ctx *ctx, const struct gdn_cu_gates *a)
{
    static const enum gdn_kernel_id flat[] = {
        [GDN_F32] = GDN_CU_gates_flat_f32,
        [GDN_BF16] = GDN_CU_gates_flat_bf16,
        [GDN_F16] = GDN_CU_gates_flat_f16,
    };
    const struct gdn_cuda_form list[] = { { "flat", why_not_flat(a) }, { "heads", NULL } };
    gdn_cuda_log_forms(ctx, GDN_CUDA_GATES_CHOICE, "gates", list);
    return list->why_not ? GDN_CU_gates_heads : flat[a->a.data ? a->a.dtype : a->b.dtype];
}

/* Chooses the lines of a thread, `most` at most, and returns the blocks. */
static int64_t spread(struct gdn_cu_gates *a, int64_t places, int most, int sm_count)
{
    const int64_t wide = places < THREADS ? places : THREADS;
    const int64_t lines = THREADS / wide; /* of a block at once */
    a->wide = (uint32_t)wide;
    a->inverse = (uint32_t)((65536 + wide - 1) / wide);
    a->each = 1;
    while (a->each < most && a->n_lines / (2 * a->each * lines) >= (int64_t)BUSY * sm_count)
        a->each *= 2;
    return (a->n_lines + a->each * lines - 1) / (a->each * lines);
}

/* Returns the arguments of a launch for a and g (of_a), for b and beta (of_b), or for all. */
static struct gdn_cu_gates args_of(const struct gdn_gates_call *s, bool of_a, bool of_b)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_gates_args *a = &s->args;
    struct gdn_cu_gates args = {
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
    struct gdn_cu_lines *lines[] = { &args.a, &args.b, &args.g, &args.beta };
    const int first = tensors[0]->data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 4 - first, &args.leads, lines + first);
    return args;
}

static gdn_status launch(gdn_ctx *ctx, struct gdn_cu_gates a, struct gdn_cuda_ran *ran,
                         void *stream)
{
    const enum gdn_kernel_id kernel = choose(ctx, &a);
    const bool ones = kernel == GDN_CU_gates_heads;
    const int64_t places = ones ? a.H : a.H / HEADS;
    const int most = ones ? ONES : LINES;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { places ? spread(&a, places, most, ctx->cuda->sm_count) : 0, 1, 1 },
        .stream = stream,
        .args = &a,
    };
    gdn_cuda_ran_add(ran, kernel);
    return gdn_cuda_launch(ctx, &call);
}

/* With channels b has other lines than a. */
static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_call *s = call;
    const bool has_a = s->args.a.data, has_b = s->args.b.data, apart = s->K && has_b;
    struct gdn_cuda_ran ran = { .n = 0 };
    (void)memory;
    TRY(launch(ctx, args_of(s, has_a, has_b && !apart), &ran, s->base.stream));
    if (apart) TRY(launch(ctx, args_of(s, false, true), &ran, s->base.stream));
    return gdn_cuda_note_all(ctx, s->base.op, ran.kernels, ran.n);
}

const struct gdn_op_backend gdn_cuda_op_gates = { .run = run };
