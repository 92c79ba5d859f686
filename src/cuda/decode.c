/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

gdn_status gdn_cuda_decode(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                           void *stream)
{
    (void)args, (void)stream;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: no kernel on a device yet", op);
}
