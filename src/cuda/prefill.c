/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

gdn_status gdn_cuda_prefill(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream)
{
    (void)args, (void)stream;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "prefill: no kernel on a device yet");
}
