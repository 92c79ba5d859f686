/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { PACK = 8, LONGEST_ROW = 1024, THREADS = 256, LEAST_LANES = 4 };

gdn_status gdn_cuda_l2norm_backward(gdn_ctx *ctx, struct gdn_cu_l2norm_backward *args,
                                    void *stream)
{
    const bool wide = args->D > LONGEST_ROW;
    args->lanes     = LEAST_LANES;
    while (args->lanes < 32 && args->lanes * PACK < args->D) args->lanes *= 2;
    const int64_t              lines = wide ? 1 : THREADS / args->lanes; /* of a block */
    const struct gdn_cuda_call call  = {
         .kernel = wide ? GDN_CU_l2norm_backward_wide : GDN_CU_l2norm_backward_row,
         .grid   = { (args->n_lines + lines - 1) / lines, 1, 1 },
         .stream = stream,
         .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "l2norm_backward", call.kernel);
}
