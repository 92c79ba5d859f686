/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum { PACK = 8, LONGEST_ROW = 256, LONGEST_LONG = 1024, THREADS = 256 };

/* Lanes of 8 elements that a line of D takes. */
static int lanes_of(int64_t D)
{
    int lanes = 1;
    while (lanes < 32 && lanes * PACK < D) lanes *= 2;
    return lanes;
}

gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream)
{
    const bool    is_row = args->D <= LONGEST_ROW, is_long = !is_row && args->D <= LONGEST_LONG;
    const int64_t lines = !is_row && !is_long ? 1 : (is_row ? 2 : 1) * THREADS / lanes_of(args->D);
    const struct gdn_cuda_call call = {
        .kernel = is_row ? GDN_CU_NORM_row : is_long ? GDN_CU_NORM_long : GDN_CU_NORM_wide,
        .grid   = { (args->n_lines + lines - 1) / lines, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    args->lanes = lanes_of(args->D);
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}
