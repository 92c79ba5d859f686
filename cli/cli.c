/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "internal/internal.h"
#include "measure.h"

gdn_status cli_call(gdn_ctx *ctx, gdn_op op, const void *args)
{
    return gdn_internal_call(ctx, op, args);
}

gdn_status cli_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds)
{
    if (gdn_internal_device(ctx)) return gdn_internal_timed_call(ctx, op, args, seconds);
    const double start = measure_clock();
    const gdn_status status = cli_call(ctx, op, args);
    *seconds = measure_clock() - start;
    return status;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *cli_version(void)
{
    return TEXT(GDN_VERSION_MAJOR) "." TEXT(GDN_VERSION_MINOR) "." TEXT(GDN_VERSION_PATCH);
}
