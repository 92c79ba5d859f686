/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates of five kinds, as log gates and raw: -exp(A_log) softplus(a + dt_bias). A kind's heads are
 * drawn from a seed of their own, so all cases of as many heads have the same ones.
 */
#include <math.h>
#include <string.h>

#include "cases/cases.h"
#include "oracle.h"

enum { MODEL_SEED = 31 };

const char *const case_gates_names[CASE_GATES_KINDS] = { "recipe", "none", "model", "strong",
                                                         "trained" };

static const double trained_step = 0.02;

/* Draws a and dt_bias of the next head of a model. */
static void draw_head(uint64_t *seed, double *A, double *dt_bias)
{
    const double step = 0.001 * pow(100, case_random(seed));
    *A = 0.02 + (16 - 0.02) * case_random(seed);
    *dt_bias = log(expm1(step)); /* softplus of it is the step */
}

/* Returns how many gates a head has: one, or one for each channel of its keys. */
static int64_t values_of(const struct case_dims *dims)
{
    return case_has_channels(dims) ? dims->K : 1;
}

/* Splits the last dimension into heads and channels, if the rule has channels. */
static gdn_tensor split(gdn_tensor t, const struct case_dims *dims)
{
    if (!case_has_channels(dims) || !t.data) return t;
    t.size[t.ndim - 1] /= dims->K;
    t.stride[t.ndim - 1] = dims->K;
    t.size[t.ndim] = dims->K;
    t.stride[t.ndim++] = 1;
    return t;
}

void case_gate_heads(struct memory *m, const struct case_dims *dims, const int64_t *H,
                     gdn_tensor *A_log, gdn_tensor *dt_bias)
{
    const int64_t n = values_of(dims), all = *H * n;
    uint64_t seed = MODEL_SEED;
    *A_log = case_tensor(m, GDN_F32, 1, H, 0, 2.7);
    *dt_bias = case_tensor(m, GDN_F32, 1, &all, -7, -2);
    for (int64_t i = 0; i < all && dims->gates != CASE_GATES_RECIPE; i++) {
        double A = dims->gates == CASE_GATES_NONE ? 0 : 2 / log(2), bias = 0;
        if (!A_log->data || !dt_bias->data) break;
        if (dims->gates == CASE_GATES_MODEL) draw_head(&seed, &A, &bias);
        if (dims->gates == CASE_GATES_TRAINED) A = 1, bias = log(expm1(trained_step));
        oracle_store(dt_bias->data, GDN_F32, i, bias);
        if (i % n == 0) oracle_store(A_log->data, GDN_F32, i / n, A > 0 ? log(A) : -1000);
    }
    *dt_bias = split(*dt_bias, dims);
}

static double draw_normal(const void *arg, int64_t h, uint64_t *seed)
{
    return (void)arg, (void)h, case_normal(seed);
}

static gdn_tensor draw_raw(struct memory *m, const struct case_dims *dims, int ndim,
                           const int64_t *size)
{
    switch (dims->gates) {
    case CASE_GATES_MODEL:
    case CASE_GATES_TRAINED: return case_drawn(m, dims->dtype, ndim, size, draw_normal, NULL);
    case CASE_GATES_STRONG: return memory_tensor(m, dims->dtype, ndim, size);
    default: return case_tensor(m, dims->dtype, ndim, size, -1, 1);
    }
}

gdn_tensor case_raw_gates(struct memory *m, const struct case_dims *dims, int ndim,
                          const int64_t *size)
{
    int64_t all[4];
    memcpy(all, size, (size_t)ndim * sizeof *all);
    all[ndim - 1] *= values_of(dims);
    return split(draw_raw(m, dims, ndim, all), dims);
}

/* ---- Log gates ---- */

struct heads {
    int kind;
    int64_t values; /* of a head */
    const void *A_log, *dt_bias;
};

/* Draws the gate of column i: of a head, or of a channel. */
static double draw_log_gate(const void *arg, int64_t i, uint64_t *seed)
{
    const struct heads *heads = arg;
    switch (heads->kind) {
    case CASE_GATES_NONE: return 0;
    case CASE_GATES_STRONG: return -2;
    case CASE_GATES_TRAINED: return -trained_step * exp(case_normal(seed));
    case CASE_GATES_RECIPE: return i % 4 == 3 ? 0 : -log1p(exp(-case_normal(seed))) / 16;
    default:
        return oracle_gate(case_normal(seed), oracle_load(heads->A_log, GDN_F32, i / heads->values),
                           oracle_load(heads->dt_bias, GDN_F32, i), 0);
    }
}

gdn_tensor case_log_gates(struct memory *m, const struct case_dims *dims, const int64_t *size)
{
    struct heads heads = { .kind = dims->gates, .values = values_of(dims) };
    const int64_t all[] = { size[0], size[1] * heads.values };
    gdn_tensor A_log, dt_bias;
    const gdn_tensor none = { 0 };
    if (dims->gates == CASE_GATES_MODEL) {
        case_gate_heads(m, dims, &size[1], &A_log, &dt_bias);
        if (!A_log.data || !dt_bias.data) return none;
        heads.A_log = A_log.data, heads.dt_bias = dt_bias.data;
    }
    return split(case_drawn(m, GDN_F32, 2, all, draw_log_gate, &heads), dims);
}

/* ---- Betas, and keys that go with the gates ---- */

static double draw_beta(const void *arg, int64_t h, uint64_t *seed)
{
    const int *gates = arg;
    (void)h;
    return oracle_sigmoid(case_normal(seed) + (*gates == CASE_GATES_TRAINED ? 3 : 0));
}

gdn_tensor case_betas(struct memory *m, const struct case_dims *dims, int ndim, const int64_t *size)
{
    const double middle = dims->gates == CASE_GATES_TRAINED ? 3 : 0;
    if (dims->raw) return case_tensor(m, dims->dtype, ndim, size, middle - 3, middle + 3);
    return case_drawn(m, GDN_F32, ndim, size, draw_beta, &dims->gates);
}

/* Moves rows of length 1 towards one row of their head, until their mean cosine is 0.93. */
static void make_alike(gdn_tensor *t)
{
    const double own = sqrt(1 - 0.93), shared = sqrt(0.93);
    const int64_t H = t->size[1], K = t->size[2];
    double row[256], length;
    for (int64_t r = H; r < t->size[0] * H; r++) {
        length = 0;
        for (int64_t i = 0; i < K; i++) {
            row[i] = own * oracle_load(t->data, t->dtype, r * K + i) +
                     shared * oracle_load(t->data, t->dtype, r % H * K + i);
            length += row[i] * row[i];
        }
        for (int64_t i = 0; i < K; i++)
            oracle_store(t->data, t->dtype, r * K + i, row[i] / sqrt(length));
    }
}

gdn_tensor case_keys(struct memory *m, const struct case_dims *dims, const int64_t *size)
{
    gdn_tensor t = case_unit_rows(m, dims->dtype, size);
    if (dims->gates == CASE_GATES_TRAINED && t.data) make_alike(&t);
    return t;
}
