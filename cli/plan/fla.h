/* SPDX-License-Identifier: Apache-2.0 */
/* The configurations of FLA's own models (fla.models), which name things otherwise. */
#ifndef PLAN_FLA_H
#define PLAN_FLA_H

#include "plan/model.h"

/* The defaults of a model, for keys that its file lacks. */
struct plan_fla {
    int32_t layers, heads, head_dim;
    double expand_v;
    bool erases;         /* GDN-2 */
    bool has_updates;    /* Gated DeltaProduct */
    bool has_no_sigmoid; /* the output gate is SiLU */
};
extern const struct plan_fla plan_fla_gated_deltanet, plan_fla_kda, plan_fla_gdn2,
    plan_fla_gated_deltaproduct;

/* Reads all that plan_model_read() reads but dtypes. Type, per_channel and defaults are set. */
int plan_fla_read(struct plan_model *m, struct plan_warnings *w, const struct plan_fla *f,
                  const cJSON *json, const char *name);

#endif
