/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a plan: types of layers, names of rules, warnings. */
#include "plan/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char linear[] = "linear_attention", full[] = "full_attention";

const char *plan_layer_type(bool is_linear) { return is_linear ? linear : full; }

const char *plan_rule_name(const struct plan_model *m)
{
    return m->updates > 1   ? "Gated DeltaProduct"
           : m->erases      ? "GDN-2"
           : m->per_channel ? "KDA"
                            : "GDN";
}

void plan_warn(struct plan_warnings *w, const char *format, ...)
{
    va_list list;
    if (w->n == PLAN_MAX_WARNINGS) return;
    va_start(list, format);
    vsnprintf(w->text[w->n++], PLAN_WARNING, format, list);
    va_end(list);
}

bool plan_is_linear(const struct plan_model *m, int32_t layer)
{
    return !strcmp(m->layers[layer], linear);
}
