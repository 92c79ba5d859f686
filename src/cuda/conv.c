/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

struct gdn_cu_conv gdn_cuda_conv_args(const struct gdn_conv *conv, const struct gdn_plan *plan,
                                      const struct gdn_tokens     *tokens,
                                      const struct gdn_plan_pools *pools)
{
    return (struct gdn_cu_conv){ gdn_cuda_batch(plan, tokens, pools), conv->x, conv->out };
}

gdn_status gdn_cuda_conv(gdn_ctx *ctx, const char *op, const struct gdn_cu_conv *args,
                         void *stream)
{
    (void)args, (void)stream;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: no kernel on a device yet", op);
}
