/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum { THREADS = 256, PACK = 8 }; /* of a block; heads of a thread */

enum { WAVES = 4 }; /* blocks, in times those that a device has at once; then threads take turns */

static bool is_flat(const struct gdn_cu_gates *a, int32_t dtype)
{
    const struct gdn_cu_lines *const lines[] = { &a->a, &a->b, &a->g, &a->beta };
    for (int i = 0; i < 4; i++)
        if (lines[i]->data &&
            (lines[i]->access != 16 || lines[i]->dtype != (i < 2 ? dtype : GDN_F32)))
            return false;
    return a->leads.n == 1 && a->H % PACK == 0;
}

static enum gdn_kernel_id choose(const struct gdn_cu_gates *a)
{
    static const enum gdn_kernel_id flat[] = {
        [GDN_F32]  = GDN_CU_gates_flat_f32,
        [GDN_BF16] = GDN_CU_gates_flat_bf16,
        [GDN_F16]  = GDN_CU_gates_flat_f16,
    };
    const int32_t dtype = a->g.data ? a->a.dtype : a->b.dtype;
    return is_flat(a, dtype) ? flat[dtype] : GDN_CU_gates_heads;
}

/* Blocks that a multiprocessor has at once, as in gates.cu. */
static int64_t busy_of(enum gdn_kernel_id kernel)
{
    return kernel == GDN_CU_gates_heads ? 2 : kernel == GDN_CU_gates_flat_f32 ? 3 : 4;
}

gdn_status gdn_cuda_gates(gdn_ctx *ctx, const struct gdn_cu_gates *args, void *stream)
{
    const int64_t            packs  = (args->H + PACK - 1) / PACK;
    const int64_t            lines  = packs < THREADS ? THREADS / (packs ? packs : 1) : 1;
    const int64_t            n      = packs ? (args->n_lines + lines - 1) / lines : 0;
    const enum gdn_kernel_id kernel = choose(args);
    const int64_t            most   = WAVES * busy_of(kernel) * (int64_t)ctx->cuda->sm_count;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid   = { n < most ? n : most, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "gates", call.kernel);
}
