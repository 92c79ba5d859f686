/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that an engine or a trainer makes for a layer, with the answers of the library. */
#ifndef PLAN_CALLS_H
#define PLAN_CALLS_H

#include "plan/model.h"
#include "program/memory.h"

enum plan_call_kind { PLAN_CONV, PLAN_PREFILL, PLAN_STEP, PLAN_BACKWARD, PLAN_N_CALLS };

/* The tensors of B sequences of T tokens; of the model's sizes, on one of its ranks. */
struct plan_sizes {
    int64_t B, T;
    int64_t Hk, Hv, K, V, W;
    int32_t dtype, state_dtype;
};

/* The channels of the convolution. */
int64_t plan_channels(const struct plan_model *m, const struct plan_sizes *s);
/* Returns true if gdn_step() takes the rule: it has a decay. Else gdn_decode() computes a token. */
bool plan_has_step(const struct plan_model *m);

/* The answer of the library to a call. */
struct plan_answer {
    const char *use, *op;
    gdn_status status;
    char refused[512]; /* if status is not GDN_OK */
    char kernels[1024];
    char choices[4][512]; /* for each part with several forms: its form, and why not a faster one */
    int n_choices;
    size_t workspace;
};

/* Asks a context of a CPU, or of plan_chip_open(). A CPU computes one short sequence, because what
 * runs is known afterwards. CLI_OK, or CLI_BAD after one line. */
int plan_ask(gdn_ctx *ctx, const struct plan_model *m, const struct plan_sizes *sizes,
             enum plan_call_kind kind, struct plan_answer *answer);

#endif
