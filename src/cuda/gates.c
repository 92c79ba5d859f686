/* SPDX-License-Identifier: Apache-2.0 */
#include "lines.h"
#include "ops.h"

enum { THREADS = 256, HEADS = 4, LINES = 2 }; /* of a block; of a thread, as in gates.cu */

/* Do four elements of a vector move at once? */
static bool is_quads(const struct gdn_cu_array *v, int64_t n)
{
    return v->stride[0] == 1 && gdn_cuda_access(v->data, v->dtype, NULL, 0, n);
}

static bool is_flat(const struct gdn_cu_gates *a)
{
    const struct gdn_cu_lines *const lines[]   = { &a->a, &a->b, &a->g, &a->beta };
    const struct gdn_cu_array *const vectors[] = { &a->A_log, &a->dt_bias };
    for (int i = 0; i < 4; i++)
        if (lines[i]->data && !lines[i]->access) return false;
    for (int i = 0; i < 2; i++)
        if (vectors[i]->data && !is_quads(vectors[i], a->H)) return false;
    return a->leads.n == 1;
}

gdn_status gdn_cuda_gates(gdn_ctx *ctx, const struct gdn_cu_gates *args, void *stream)
{
    const int64_t fours             = (args->H + HEADS - 1) / HEADS;
    const int64_t lines             = LINES * (fours < THREADS ? THREADS / (fours ? fours : 1) : 1);
    const struct gdn_cuda_call call = {
        .kernel = is_flat(args) ? GDN_CU_gates_flat : GDN_CU_gates_heads,
        .grid   = { fours ? (args->n_lines + lines - 1) / lines : 0, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "gates", call.kernel);
}
