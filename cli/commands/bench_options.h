/* SPDX-License-Identifier: Apache-2.0 */
/* The options of gdn bench. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "cases/cases.h"
#include "cli.h"

enum bench_op {
    PREFILL,
    DECODE,
    CONV,
    BLOCK,
    GATES,
    L2NORM,
    RMSNORM,
    STEP,
    BACKWARD,
    LAYER_BACKWARD,
    N_BENCH_OPS
};
extern const char *const bench_op_names[N_BENCH_OPS];

struct bench_options {
    struct cli_device device;
    enum bench_op op;
    const char *heads, *dim, *seqlens, *dtype, *state, *layout, *gates, *call, *rule, *model;
    int64_t batch, tokens, channels, hidden, save_every, window_mib, record;
    double seconds;
    bool json, help;
    struct case_dims dims;
    int64_t *lengths; /* [B] */
    int64_t B;
};

bool bench_is_backward(const struct bench_options *o);
bool bench_has_gates(const struct bench_options *o);
/* Returns true if the op is a layer, or its gradients. */
bool bench_has_layer(const struct bench_options *o);
/* Returns true if the op has a rule of the family. */
bool bench_has_rule(const struct bench_options *o);

/* Refuses what would be ignored, and fills in the rest from the texts. The kinds of gates to run go
 * from *first to *last. CLI_OK, or CLI_BAD after one line. */
int bench_settle(struct bench_options *o, int *first, int *last);

#endif
