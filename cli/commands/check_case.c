/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of gdn check --backend cuda, counted and printed. */
#include <stdio.h>
#include <string.h>

#include "commands/check_device.h"
#include "internal/internal.h"
#include "matches.h"

const char *const check_device_dtypes[] = { "f32", "bf16", "f16", "i8", "e4m3", "e5m2" };

void check_device_mark(struct check *k)
{
    const char *line = gdn_last_kernel(k->ctx);
    const char *name;
    for (int i = 0; (name = gdn_internal_kernel(i)); i++) {
        const char *at = strstr(line, name);
        const size_t n = strlen(name);
        if (at && (at[n] == 0 || at[n] == ' ')) k->has_run[i] = true;
    }
}

bool check_device_wants(const struct check *k, const char *name)
{
    return !k->pattern || matches(k->pattern, name);
}

void check_device_judge(struct check *k, const char *name, int code, const struct comparison *c)
{
    const bool ok = !code && c->ok;
    k->n_cases++;
    k->n_failed += !ok;
    check_device_mark(k);
    if (ok && !k->verbose) return;
    printf("%-64s %s  error %.3g of RMS  [%s]\n", name, ok ? "ok" : "FAILED",
           compare_relative(c->max_error, c->rms), gdn_last_kernel(k->ctx));
}
