/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { THREADS = 128 }; /* of a block (kernels.def) */

gdn_status gdn_cuda_record(gdn_ctx *ctx, const char *op, const struct gdn_cu_record *args,
                           void *stream)
{
    const int64_t              B = args->batch.B, most = args->H > args->Hk ? args->H : args->Hk;
    const struct gdn_cuda_call move = {
        .kernel = GDN_CU_record_move, .grid = { B * most, 1, 1 }, .stream = stream, .args = args,
    };
    const struct gdn_cuda_call count = {
        .kernel = GDN_CU_record_count, .grid = { (B + THREADS - 1) / THREADS, 1, 1 },
        .stream = stream, .args = args,
    };
    const enum gdn_kernel_id kernels[] = { move.kernel, count.kernel };
    const bool               moves     = args->path.data;
    if (moves) TRY(gdn_cuda_launch(ctx, &move));
    TRY(gdn_cuda_launch(ctx, &count));
    return gdn_cuda_note_all(ctx, op, kernels + !moves, 1 + moves);
}
