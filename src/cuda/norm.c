/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum { ROWS_PER_BLOCK = 8 }; /* a warp each */

gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, const struct gdn_cu_norm *args,
                         void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_NORM_row,
        .grid   = { (args->n_rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}
