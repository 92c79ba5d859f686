/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of gdn_step: it takes the next token of each sequence through what lies between the
 * projections of a layer. Float64 is the judge. */
#include <math.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"
#include "oracle_family.h"

enum { CHECKED_TOKENS = 8, CHECKED_HEADS = 3, MOST_HEAD = 1024 };

int64_t step_case_channels(const struct case_dims *d)
{
    const int64_t keys = d->Hq * d->K;
    return keys + case_updates(d) * (keys + d->Hv * d->V);
}

/* Makes b, of a head or of each channel of its keys, and the write gate of GDN-2. */
static bool make_betas(struct step_case *c, int64_t B, int64_t T)
{
    const struct case_dims *d = &c->dims;
    const bool gdn2 = d->rule == CASE_RULE_GDN2;
    const int64_t size[] = { B, T * case_updates(d), d->Hv, gdn2 ? d->K : 1 };
    const int64_t write[] = { B, T, d->Hv, d->V };
    gdn_step_args *a = &c->args;
    a->updates = d->rule == CASE_RULE_PRODUCT ? (int32_t)case_updates(d) : 0;
    a->b = case_tensor(&c->memory, d->dtype, gdn2 ? 4 : 3, size, -3, 3);
    if (gdn2) a->write_gate = case_tensor(&c->memory, d->dtype, 4, write, -3, 3);
    return a->b.data && (!gdn2 || a->write_gate.data);
}

int step_case_make(struct step_case *c, const struct case_dims *dims, int64_t B, int64_t T)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    gdn_step_args *a = &c->args;
    *a = gdn_step_args_init();
    struct memory *m = &c->memory;
    const int64_t D = step_case_channels(dims), Hv = dims->Hv, K = dims->K, V = dims->V;
    const bool kv = dims->state_layout == GDN_STATE_KV;
    const int64_t x[] = { B, T, D }, gate[] = { B, T, Hv }, out[] = { B, T, Hv, V };
    const int64_t conv[] = { B, D, dims->W - 1 }, weight[] = { D, dims->W };
    const int64_t state[] = { B, Hv, kv ? K : V, kv ? V : K };
    a->x = case_tensor(m, dims->dtype, 3, x, -1, 1);
    a->a = case_raw_gates(m, dims, 3, gate);
    bool there = make_betas(c, B, T);
    a->conv_weight = case_tensor(m, dims->dtype, 2, weight, -0.5, 0.5);
    case_gate_heads(m, dims, &Hv, &a->A_log, &a->dt_bias);
    a->conv_state = case_tensor(m, dims->dtype, 3, conv, -1, 1);
    a->state = case_tensor(m, dims->state_dtype, 4, state, -0.1, 0.1);
    a->out = memory_tensor(m, dims->dtype, 4, out);
    if (dims->gated) a->z = case_tensor(m, dims->dtype, 4, out, -1, 1);
    if (dims->gated) a->norm_weight = case_tensor(m, dims->dtype, 1, &V, 0.5, 1.5);
    a->n_key_heads = (int32_t)dims->Hq, a->n_value_heads = (int32_t)Hv;
    a->key_head_dim = (int32_t)K, a->value_head_dim = (int32_t)V;
    a->state_layout = dims->state_layout;
    a->flags = dims->exact ? GDN_EXACT : 0;
    const gdn_tensor *all[] = { &a->x,       &a->a,          &a->conv_weight, &a->A_log,
                                &a->dt_bias, &a->conv_state, &a->state,       &a->out };
    if (dims->gated) there = there && a->z.data && a->norm_weight.data;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) there = there && all[i]->data;
    return there ? CLI_OK : cli_bad("no memory for %lld sequences", (long long)B);
}

static double load(const gdn_tensor *t, int64_t i) { return oracle_load(t->data, t->dtype, i); }

/* Computes the convolution of n channels from `first` on, for T tokens of sequence 0: rows of n,
 * ld apart. */
static void convolve(const struct step_case *c, int64_t first, int64_t n, int64_t T, double *out,
                     int64_t ld)
{
    const int64_t D = step_case_channels(&c->dims), W = c->dims.W;
    double x[CHECKED_TOKENS], y[CHECKED_TOKENS], past[16], weight[16];
    for (int64_t d = 0; d < n; d++) {
        for (int64_t w = 0; w < W; w++) weight[w] = load(&c->args.conv_weight, (first + d) * W + w);
        for (int64_t w = 0; w < W - 1; w++)
            past[w] = load(&c->args.conv_state, (first + d) * (W - 1) + w);
        for (int64_t t = 0; t < T; t++) x[t] = load(&c->args.x, t * D + first + d);
        oracle_conv(y, NULL, x, past, weight, NULL, true, T, 1, (int)W);
        for (int64_t t = 0; t < T; t++) out[t * ld + d] = y[t];
    }
}

/* The gates of T tokens of a head: log gates of its channels; of each update, b of its channels and
 * w of its columns. */
static void load_gates(const struct step_case *c, int64_t h, int64_t T, double *g, double *b,
                       double *w)
{
    const struct case_dims *d = &c->dims;
    const gdn_step_args *a = &c->args;
    const bool writes = a->write_gate.data;
    const int64_t K = d->K, V = d->V, n = case_has_channels(d) ? K : 1, nb = writes ? K : 1;
    const int64_t rows = T * case_updates(d);
    for (int64_t i = 0; i < T * K; i++) {
        const int64_t at = h * n + i % K % n;
        g[i] = oracle_gate(load(&a->a, i / K * d->Hv * n + at), load(&a->A_log, h),
                           load(&a->dt_bias, at), 0);
    }
    for (int64_t i = 0; i < rows * K; i++)
        b[i] = oracle_sigmoid(load(&a->b, (i / K * d->Hv + h) * nb + i % K % nb));
    for (int64_t i = 0; i < rows * V; i++)
        w[i] = writes ? oracle_sigmoid(load(&a->write_gate, (i / V * d->Hv + h) * V + i % V))
                      : b[i / V * K];
}

/* Computes want [T][V] of value head h of sequence 0. It runs before the call, which changes the
 * states. */
static bool follow(const struct step_case *c, int64_t h, int64_t T, double *want)
{
    const struct case_dims *d = &c->dims;
    const gdn_step_args *a = &c->args;
    const int64_t K = d->K, V = d->V, Hv = d->Hv, keys = d->Hq * K, values = Hv * V;
    const int64_t kh = h / (Hv / d->Hq), u = case_updates(d), rows = u * T;
    double *q = malloc((size_t)(2 * T * K + 2 * rows * (K + V) + K * V + V) * sizeof *q);
    double z[MOST_HEAD];
    if (!q) return false;
    double *g = q + T * K, *k = g + T * K, *b = k + rows * K, *v = b + rows * K, *w = v + rows * V;
    double *S = w + rows * V, *weight = S + K * V;
    convolve(c, kh * K, K, T, q, K);
    for (int64_t j = 0; j < u; j++) {
        convolve(c, (1 + j) * keys + kh * K, K, T, k + j * K, u * K);
        convolve(c, (1 + u) * keys + j * values + h * V, V, T, v + j * V, u * V);
    }
    for (int64_t t = 0; t < T; t++) oracle_l2norm(q + t * K, q + t * K, K, GDN_NORM_L2, 1e-6);
    for (int64_t i = 0; i < rows; i++) oracle_l2norm(k + i * K, k + i * K, K, GDN_NORM_L2, 1e-6);
    load_gates(c, h, T, g, b, w);
    for (int64_t j = 0; j < V; j++)
        for (int64_t i = 0; i < K; i++)
            S[j * K + i] = load(
                &a->state, h * K * V + (d->state_layout == GDN_STATE_KV ? i * V + j : j * K + i));
    const struct oracle_family r = { .T = T,
                                     .K = (int)K,
                                     .V = (int)V,
                                     .n = (int)u,
                                     .scale = 1 / sqrt((double)K),
                                     .q = q,
                                     .g = g,
                                     .k = k,
                                     .b = b,
                                     .v = v,
                                     .w = w,
                                     .state = S,
                                     .o = want };
    oracle_family(&r);
    for (int64_t i = 0; d->gated && i < V; i++) weight[i] = load(&a->norm_weight, i);
    for (int64_t t = 0; d->gated && t < T; t++) {
        for (int64_t i = 0; i < V; i++) z[i] = load(&a->z, (t * Hv + h) * V + i);
        oracle_rmsnorm_gated(want + t * V, want + t * V, weight, z, false, 1e-6, V);
    }
    free(q);
    return true;
}

int step_case_check(struct step_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t Hv = c->dims.Hv, V = c->dims.V, all = c->args.x.size[1];
    const int64_t T = all < CHECKED_TOKENS ? all : CHECKED_TOKENS, n = CHECKED_HEADS * T * V;
    double *want = malloc(2 * (size_t)n * sizeof *want), *got = want ? want + n : NULL;
    bool there = want;
    for (int i = 0; i < CHECKED_HEADS && there; i++)
        there = follow(c, i * (Hv - 1) / (CHECKED_HEADS - 1), T, want + i * T * V);
    const gdn_status status = there ? cli_call(ctx, GDN_OP_STEP, &c->args) : GDN_OK;
    for (int64_t i = 0; there && !status && i < n; i++) {
        const int64_t h = i / (T * V) * (Hv - 1) / (CHECKED_HEADS - 1), t = i / V % T;
        got[i] = load(&c->args.out, (t * Hv + h) * V + i % V);
    }
    if (there && !status)
        *found =
            compare_doubles(got, want, n, compare_precision(c->dims.dtype, c->dims.state_dtype));
    free(want);
    if (!there) return cli_bad("no memory for the check");
    return status ? cli_failed(ctx, status) : CLI_OK;
}

double step_case_state_bytes(const struct step_case *c)
{
    return case_bytes(&c->args.state) + case_bytes(&c->args.conv_state);
}

double step_case_bytes(const struct step_case *c)
{
    const gdn_step_args *a = &c->args;
    return case_bytes(&a->x) + case_bytes(&a->a) + case_bytes(&a->b) + case_bytes(&a->write_gate) +
           case_bytes(&a->z) + case_bytes(&a->out) + case_bytes(&a->conv_weight) +
           2 * step_case_state_bytes(c);
}

/* Those of the rule and of the convolution. */
double step_case_flops(const struct step_case *c)
{
    const struct case_dims *d = &c->dims;
    const double n = (double)(c->args.x.size[0] * c->args.x.size[1]);
    const double rule = (2 + 4 * (double)case_updates(d)) * (double)(d->Hv * d->K * d->V);
    return n * (rule + 2.0 * (double)(step_case_channels(d) * d->W));
}
