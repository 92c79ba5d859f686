/* SPDX-License-Identifier: Apache-2.0 */
/* The three calls, each result times 1.05: tests that still pass look at something else. */
#include "gdn.h"

gdn_status __real_gdn_prefill(gdn_ctx *ctx, const gdn_rule_args *args);
gdn_status __real_gdn_conv1d(gdn_ctx *ctx, const gdn_conv1d_args *args);
gdn_status __real_gdn_l2norm(gdn_ctx *ctx, const gdn_l2norm_args *args);
gdn_status __wrap_gdn_prefill(gdn_ctx *ctx, const gdn_rule_args *args);
gdn_status __wrap_gdn_conv1d(gdn_ctx *ctx, const gdn_conv1d_args *args);
gdn_status __wrap_gdn_l2norm(gdn_ctx *ctx, const gdn_l2norm_args *args);

/* ggml's results are dense. */
static void spoil(const gdn_tensor *x)
{
    float *data = x->data;
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++) n *= x->size[i];
    for (int64_t i = 0; i < n; i++) data[i] *= 1.05f;
}

gdn_status __wrap_gdn_prefill(gdn_ctx *ctx, const gdn_rule_args *args)
{
    const gdn_status status = __real_gdn_prefill(ctx, args);
    spoil(&args->out);
    spoil(&args->state_out);
    return status;
}

gdn_status __wrap_gdn_conv1d(gdn_ctx *ctx, const gdn_conv1d_args *args)
{
    const gdn_status status = __real_gdn_conv1d(ctx, args);
    spoil(&args->out);
    return status;
}

gdn_status __wrap_gdn_l2norm(gdn_ctx *ctx, const gdn_l2norm_args *args)
{
    const gdn_status status = __real_gdn_l2norm(ctx, args);
    spoil(&args->out);
    return status;
}
