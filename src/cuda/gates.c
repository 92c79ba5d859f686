/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum { THREADS = 256, PACK = 8, LINES = 2 }; /* of a block; heads and lines of a thread */

gdn_status gdn_cuda_gates(gdn_ctx *ctx, const struct gdn_cu_gates *args, void *stream)
{
    const int64_t packs = (args->H + PACK - 1) / PACK;
    const int64_t lines = packs > 0 ? LINES * (packs < THREADS ? THREADS / packs : 1) : 0;
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_GATES_heads,
        .grid   = { lines ? (args->n_lines + lines - 1) / lines : 0, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "gates", call.kernel);
}
