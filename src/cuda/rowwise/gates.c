/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cuda/driver/launch.h"
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

static bool is_flat(const struct gdn_cu_gates *a)
{
    const struct gdn_cu_lines *const lines[] = { &a->a, &a->b, &a->g, &a->beta };
    const struct gdn_cu_array *const vectors[] = { &a->A_log, &a->dt_bias };
    for (int i = 0; i < 4; i++)
        if (lines[i]->data && !lines[i]->access) return false;
    for (int i = 0; i < 2; i++)
        if (vectors[i]->data && !is_quads(vectors[i], a->H)) return false;
    if (a->a.data && a->b.data && a->a.dtype != a->b.dtype) return false;
    return a->leads.n == 1 && a->H <= HEADS * THREADS;
}

static enum gdn_kernel_id choose(const struct gdn_cu_gates *a)
{
    static const enum gdn_kernel_id flat[] = {
        [GDN_F32] = GDN_CU_gates_flat_f32,
        [GDN_BF16] = GDN_CU_gates_flat_bf16,
        [GDN_F16] = GDN_CU_gates_flat_f16,
    };
    return is_flat(a) ? flat[a->a.data ? a->a.dtype : a->b.dtype] : GDN_CU_gates_heads;
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

static struct gdn_cu_gates args_of(const struct gdn_gates_call *s)
{
    const gdn_gates_args *a = &s->args;
    struct gdn_cu_gates args = {
        .A_log = gdn_cuda_array(&a->A_log),
        .dt_bias = gdn_cuda_array(&a->dt_bias),
        .n_lines = s->n_rows,
        .H = s->H,
        .bound = a->gate_lower_bound,
        .factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
        .linear = a->gate == GDN_GATE_LINEAR,
    };
    const gdn_tensor *tensors[] = { &a->a, &a->b, &a->g, &a->beta };
    struct gdn_cu_lines *lines[] = { &args.a, &args.b, &args.g, &args.beta };
    const int first = a->a.data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 4 - first, &args.leads, lines + first);
    return args;
}

gdn_status gdn_cuda_check_gates(gdn_ctx *ctx, int64_t channels, const gdn_tensor *a,
                                const gdn_tensor *A_log)
{
    if (channels) return gdn_fail(ctx, GDN_E_UNSUPPORTED, "dt_bias: [H][K], wanted [H] on a GPU");
    if (a->data && !A_log->data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "A_log: absent, wanted on a GPU");
    return GDN_OK;
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    const struct gdn_gates_call *s = call;
    return gdn_cuda_check_gates(ctx, s->K, &s->args.a, &s->args.A_log);
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_gates_call *s = call;
    struct gdn_cu_gates a = args_of(s);
    const enum gdn_kernel_id kernel = choose(&a);
    const bool ones = kernel == GDN_CU_gates_heads;
    const int64_t places = ones ? a.H : a.H / HEADS;
    const int most = ones ? ONES : LINES;
    const struct gdn_cuda_call launch = {
        .kernel = kernel,
        .grid = { places ? spread(&a, places, most, ctx->cuda->sm_count) : 0, 1, 1 },
        .stream = s->base.stream,
        .args = &a,
    };
    (void)memory;
    TRY(gdn_cuda_launch(ctx, &launch));
    return gdn_cuda_note(ctx, s->base.op, launch.kernel);
}

const struct gdn_op_backend gdn_cuda_op_gates = { plan, run };
