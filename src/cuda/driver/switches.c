/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/switches.h"

#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/driver/launch.h"

#define VARIABLE "GDN_CUDA_WITHOUT"

static const char *const names[GDN_CUDA_N_SWITCHES] = {
#define NAME(number, name) [GDN_CUDA_##number] = name,
    GDN_CUDA_SWITCHES(NAME)
};

/* A context can do without all but the last two. */
enum { N_OPTIONAL = GDN_CUDA_N_SWITCHES - 2 };

const char *gdn_cuda_switch_name(enum gdn_cuda_switch which) { return names[which]; }

static gdn_status fail_name(gdn_ctx *ctx, const char *name, size_t n)
{
    char wanted[256] = "";
    size_t used = 0;
    for (int i = 0; i < N_OPTIONAL; i++)
        used +=
            (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? ", " : "", names[i]);
    return gdn_fail(ctx, GDN_E_ARG, VARIABLE ": \"%.*s\", wanted some of: %s",
                    (int)(n < 64 ? n : 64), name, wanted);
}

static gdn_status take_name(gdn_ctx *ctx, const char *name, size_t n)
{
    for (int i = 0; i < N_OPTIONAL; i++)
        if (strlen(names[i]) == n && !strncmp(names[i], name, n)) {
            ctx->cuda->without |= UINT32_C(1) << i;
            return GDN_OK;
        }
    return fail_name(ctx, name, n);
}

gdn_status gdn_cuda_read_switches(gdn_ctx *ctx)
{
    const char *list = gdn_environment(VARIABLE);
    char line[160];
    if (!list) return GDN_OK;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        TRY(take_name(ctx, at, strcspn(at, ",")));
    snprintf(line, sizeof line, "device: without %s (" VARIABLE ")", list);
    gdn_log_line(ctx, line);
    return GDN_OK;
}
