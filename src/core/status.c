/* SPDX-License-Identifier: Apache-2.0 */
/* The library's version, and errors: their names and their texts. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/ctx.h"

uint32_t gdn_version(void) { return GDN_VERSION; }

const char *gdn_status_name(gdn_status status)
{
    switch (status) {
    case GDN_OK: return "GDN_OK";
    case GDN_E_ARG: return "GDN_E_ARG";
    case GDN_E_SHAPE: return "GDN_E_SHAPE";
    case GDN_E_DTYPE: return "GDN_E_DTYPE";
    case GDN_E_UNSUPPORTED: return "GDN_E_UNSUPPORTED";
    case GDN_E_MEMORY: return "GDN_E_MEMORY";
    case GDN_E_CUDA: return "GDN_E_CUDA";
    case GDN_E_SELF_TEST: return "GDN_E_SELF_TEST";
    }
    return "GDN_E_?";
}

gdn_status gdn_fail(gdn_ctx *ctx, gdn_status status, const char *format, ...)
{
    if (ctx) {
        va_list args;
        va_start(args, format);
        vsnprintf(ctx->error, sizeof ctx->error, format, args);
        va_end(args);
    }
    return status;
}
