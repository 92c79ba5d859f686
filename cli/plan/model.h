/* SPDX-License-Identifier: Apache-2.0 */
/* The layers with a delta rule, as a model's config.json has them. */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "gdn.h"

enum { PLAN_MAX_LAYERS = 1024, PLAN_MAX_WARNINGS = 16, PLAN_WARNING = 320 };

/* Lines for the reader of a plan. */
struct plan_warnings {
    char text[PLAN_MAX_WARNINGS][PLAN_WARNING];
    int n;
};
void plan_warn(struct plan_warnings *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct plan_model {
    const char *type;                    /* its model_type */
    const char *layers[PLAN_MAX_LAYERS]; /* the type of each layer; both are the JSON's */
    int32_t n_layers, n_linear;
    int32_t key_heads, value_heads, key_dim, value_dim, taps;
    int32_t dtype, state_dtype; /* gdn_dtype, of activations and states */
    bool per_channel;           /* the decay: KDA */
    bool erases;                /* by a gate per channel, and has a write gate: GDN-2 */
    bool has_no_decay;
    int32_t updates;    /* of a token: Gated DeltaProduct */
    bool twice_beta;    /* beta is 2 sigmoid(b) */
    bool sigmoid_gate;  /* of the output, not SiLU */
    bool woven;         /* projections in rows by key head */
    double lower_bound; /* of the log gate; 0: none */
};

/* "GDN", "KDA", "GDN-2" or "Gated DeltaProduct". */
const char *plan_rule_name(const struct plan_model *m);

const char *plan_layer_type(bool is_linear);
/* "linear_attention" is the type of a layer with a delta rule. */
bool plan_is_linear(const struct plan_model *m, int32_t layer);

/* From the JSON of config.json, of a whole checkpoint or of its text model. name is for errors:
 * CLI_BAD after one line that names the key. */
int plan_model_read(struct plan_model *m, struct plan_warnings *w, const cJSON *json,
                    const char *name);

#endif
