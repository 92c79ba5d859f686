/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates of four kinds, as log gates and raw: -exp(A_log) softplus(a + dt_bias). A kind's heads are
 * drawn from a seed of their own, so all cases of as many heads have the same ones.
 */
#include <math.h>
#include <string.h>

#include "cases/cases.h"
#include "oracle.h"

enum { MODEL_SEED = 31 };

const char *const case_gates_names[CASE_GATES_KINDS] = { "recipe", "none", "model", "strong" };

/* Draws a and dt_bias of the next head of a model. */
static void draw_head(uint64_t *seed, double *A, double *dt_bias)
{
    const double step = 0.001 * pow(100, case_random(seed));
    *A = 0.02 + (16 - 0.02) * case_random(seed);
    *dt_bias = log(expm1(step)); /* softplus of it is the step */
}

void case_gate_heads(struct memory *m, const struct case_dims *dims, const int64_t *H,
                     gdn_tensor *A_log, gdn_tensor *dt_bias)
{
    const bool recipe = dims->gates == CASE_GATES_RECIPE;
    uint64_t seed = MODEL_SEED;
    *A_log = case_tensor(m, GDN_F32, 1, H, 0, 2.7);
    *dt_bias = case_tensor(m, GDN_F32, 1, H, -7, -2);
    for (int64_t h = 0; h < *H && !recipe && A_log->data && dt_bias->data; h++) {
        double A = dims->gates == CASE_GATES_NONE ? 0 : 2 / log(2), bias = 0;
        if (dims->gates == CASE_GATES_MODEL) draw_head(&seed, &A, &bias);
        oracle_store(A_log->data, GDN_F32, h, A > 0 ? log(A) : -1000); /* exp: 0 */
        oracle_store(dt_bias->data, GDN_F32, h, bias);
    }
}

static double draw_normal(const void *arg, int64_t h, uint64_t *seed)
{
    return (void)arg, (void)h, case_normal(seed);
}

gdn_tensor case_raw_gates(struct memory *m, const struct case_dims *dims, int ndim,
                          const int64_t *size)
{
    switch (dims->gates) {
    case CASE_GATES_MODEL: return case_drawn(m, dims->dtype, ndim, size, draw_normal, NULL);
    case CASE_GATES_STRONG: return memory_tensor(m, dims->dtype, ndim, size);
    default: return case_tensor(m, dims->dtype, ndim, size, -1, 1);
    }
}

/* ---- Log gates ---- */

struct heads {
    int kind;
    const void *A_log, *dt_bias;
};

static double draw_log_gate(const void *arg, int64_t h, uint64_t *seed)
{
    const struct heads *heads = arg;
    switch (heads->kind) {
    case CASE_GATES_NONE: return 0;
    case CASE_GATES_STRONG: return -2;
    case CASE_GATES_RECIPE: return h % 4 == 3 ? 0 : -log1p(exp(-case_normal(seed))) / 16;
    default:
        return oracle_gate(case_normal(seed), oracle_load(heads->A_log, GDN_F32, h),
                           oracle_load(heads->dt_bias, GDN_F32, h), 0);
    }
}

gdn_tensor case_log_gates(struct memory *m, const struct case_dims *dims, const int64_t *size)
{
    struct heads heads = { .kind = dims->gates };
    gdn_tensor A_log, dt_bias;
    const gdn_tensor none = { 0 };
    if (dims->gates == CASE_GATES_MODEL) {
        case_gate_heads(m, dims, &size[1], &A_log, &dt_bias);
        if (!A_log.data || !dt_bias.data) return none;
        heads.A_log = A_log.data, heads.dt_bias = dt_bias.data;
    }
    return case_drawn(m, GDN_F32, 2, size, draw_log_gate, &heads);
}
