/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { WIDE = 128, FEW_TAPS = 4 }; /* channels of a block; as in conv_backward.cu */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

gdn_status gdn_cuda_conv_backward(gdn_ctx *ctx, const struct gdn_cu_conv_backward *args,
                                  void *stream)
{
    const bool                 few = args->W <= FEW_TAPS;
    const struct gdn_cuda_call tokens = {
        .kernel = few ? GDN_CU_conv_backward_tokens_4 : GDN_CU_conv_backward_tokens_8,
        .grid   = { args->n_blocks, divide_up(args->D, WIDE), 1 },
        .stream = stream,
        .args   = args,
    };
    const struct gdn_cuda_call states = {
        .kernel = few ? GDN_CU_conv_backward_states_4 : GDN_CU_conv_backward_states_8,
        .grid   = { args->batch.B, divide_up(args->D, WIDE), 1 },
        .stream = stream,
        .args   = args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_conv_backward_sums_0,
        .grid   = { divide_up((args->W + 1) * args->D, WIDE), 1, 1 },
        .stream = stream,
        .args   = args,
    };
    TRY(gdn_cuda_launch(ctx, &tokens));
    if (args->dstate.data) TRY(gdn_cuda_launch(ctx, &states));
    if (args->dweight.data || args->dbias.data) TRY(gdn_cuda_launch(ctx, &sums));
    return gdn_cuda_note(ctx, "conv1d_backward", tokens.kernel);
}
