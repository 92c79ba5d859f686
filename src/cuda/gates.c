/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum { THREADS = 256, PACK = 8, LINES = 2 }; /* of a block; heads and lines of a thread */
enum { MOST = 8 }; /* rounds of a thread */

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
    struct gdn_cu_gates a     = *args;
    const int64_t       packs = (a.H + PACK - 1) / PACK;
    const int64_t       lines = packs > 0 ? LINES * (packs < THREADS ? THREADS / packs : 1) : 0;
    const int64_t       n     = lines ? (a.n_lines + lines - 1) / lines : 0;
    const enum gdn_kernel_id kernel = choose(&a);
    const int64_t busy = busy_of(kernel) * (int64_t)ctx->cuda->sm_count;
    a.rounds                  = (int32_t)(n < MOST * busy ? (n + busy - 1) / busy : MOST);
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid   = { n ? (n + a.rounds - 1) / a.rounds : 0, 1, 1 },
        .stream = stream,
        .args   = &a,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "gates", call.kernel);
}
