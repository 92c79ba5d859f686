/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { WARPS = 8, HEADS = 32 }; /* of a block; as in gates_backward.cu */

gdn_status gdn_cuda_gates_backward(gdn_ctx *ctx, const struct gdn_cu_gates_backward *args,
                                   void *stream)
{
    const struct gdn_cuda_call rows = {
        .kernel = GDN_CU_gates_backward_rows,
        .grid   = { args->n_blocks, (args->H + HEADS - 1) / HEADS, 1 },
        .stream = stream,
        .args   = args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_gates_backward_sums,
        .grid   = { (2 * args->H + WARPS - 1) / WARPS, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &rows));
    if (args->dA_log.data || args->ddt_bias.data) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note(ctx, "gates_backward", rows.kernel);
}
