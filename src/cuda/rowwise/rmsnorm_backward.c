/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { PACK = 8, LONGEST_ROW = 256, LONGEST_LONG = 1024, LEAST_LANES = 4 };
enum { WARPS = 8 }; /* of a block of `sums` */

gdn_status gdn_cuda_rmsnorm_backward(gdn_ctx *ctx, struct gdn_cu_rmsnorm_backward *args,
                                     void *stream)
{
    args->lanes = LEAST_LANES;
    while (args->lanes < 32 && args->lanes * PACK < args->D) args->lanes *= 2;
    const struct gdn_cuda_call rows = {
        .kernel = args->D <= LONGEST_ROW    ? GDN_CU_rmsnorm_backward_row
                  : args->D <= LONGEST_LONG ? GDN_CU_rmsnorm_backward_long
                                            : GDN_CU_rmsnorm_backward_wide,
        .grid   = { args->n_blocks, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_rmsnorm_backward_sums,
        .grid   = { (args->D + WARPS - 1) / WARPS, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &rows));
    if (args->dweight.data) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note(ctx, "rmsnorm_gated_backward", rows.kernel);
}
