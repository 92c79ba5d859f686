/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer in float64. A device rounds to the dtype of the activations between the steps of a layer.
 * The judge says how far that may move the output, see oracle.h.
 */
#include <math.h>
#include <stdlib.h>

#include "cases/layer.h"
#include "cli.h"
#include "internal/internal.h"
#include "oracle_family.h"

/* SHORT: the most tokens that gdn_block takes one by one (gdn.h, G2). */
enum { RUNS = 32, SHORT = 8 };

/* Returns element i of a dense tensor. */
static double at(const gdn_tensor *t, int64_t i) { return oracle_load(t->data, t->dtype, i); }

/* ---- Projections ------------------------------------------------------------------------- */

/* Computes y [T][rows] = x [T][columns] times w transposed; NULL without memory. */
static double *project(const double *x, const gdn_tensor *w, int64_t T)
{
    const int64_t rows = w->size[0], columns = w->size[1];
    double *y = malloc((size_t)(T * rows) * sizeof *y);
    double *row = malloc((size_t)columns * sizeof *row);
    for (int64_t r = 0; r < rows && y && row; r++) {
        for (int64_t i = 0; i < columns; i++) row[i] = at(w, r * columns + i);
        for (int64_t t = 0; t < T; t++)
            oracle_linear(y + t * rows + r, NULL, x + t * columns, row, 1, 1, columns);
    }
    if (!row) {
        free(y);
        y = NULL;
    }
    free(row);
    return y;
}

bool layer_project_rows(const struct block_case *c, const double *x, int64_t T,
                        struct layer_projected *p)
{
    p->mixed = project(x, &c->qkv, T);
    p->z = project(x, &c->z, T);
    p->b = project(x, &c->b, T);
    p->a = project(x, &c->a, T);
    return p->mixed && p->z && p->b && p->a;
}

bool layer_project(const struct block_case *c, int64_t T, struct layer_projected *p)
{
    const int64_t n = T * c->dims.hidden;
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n && x; i++) x[i] = at(&c->args.hidden, i);
    const bool done = x && layer_project_rows(c, x, T, p);
    free(x);
    return done;
}

void layer_free_projected(struct layer_projected *p)
{
    free(p->mixed);
    free(p->z);
    free(p->b);
    free(p->a);
}

static double *copy_of(const double *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    return y ? memcpy(y, x, (size_t)n * sizeof *y) : NULL;
}

/* Adds noise to x, if there is noise. x may be NULL. */
static double *rounded(double *x, int64_t n, struct oracle_noise *noise)
{
    if (x && noise) oracle_move_all(noise, x, n);
    return x;
}

/* Returns x, the products with `down`. If there is an `up`, returns the products of x with it. NULL
 * without memory. */
static double *raise(const double *x, const gdn_tensor *down, const gdn_tensor *up, int64_t T,
                     struct oracle_noise *noise)
{
    const int64_t n = T * down->size[0];
    if (!up->data) return copy_of(x, n);
    double *low = rounded(copy_of(x, n), n, noise);
    double *y = low ? project(low, up, T) : NULL;
    free(low);
    return y;
}

/* Copies p for a run; b and a of the gates are not rounded. */
static bool project_up(const struct block_case *c, const struct layer_projected *p, int64_t T,
                       struct oracle_noise *noise, struct layer_projected *found)
{
    const int64_t D = layer_channels(&c->dims), values = c->dims.Hv * c->dims.V;
    found->mixed = rounded(copy_of(p->mixed, T * D), T * D, noise);
    found->z = rounded(raise(p->z, &c->z, &c->z_up, T, noise), T * values, noise);
    found->b = copy_of(p->b, T * c->dims.Hv);
    found->a = raise(p->a, &c->a, &c->a_up, T, noise);
    return found->mixed && found->z && found->b && found->a;
}

/* ---- Convolution and rule ---------------------------------------------------------------- */

/* Convolves mixed [T][D] in place, with SiLU, from an empty history. */
static void convolve(const struct block_case *c, double *mixed, int64_t T)
{
    const int64_t D = layer_channels(&c->dims), W = c->dims.W;
    double in[LAYER_TOKENS], out[LAYER_TOKENS], weight[16];
    for (int64_t d = 0; d < D; d++) {
        for (int64_t w = 0; w < W; w++) weight[w] = at(&c->args.conv_weight, d * W + w);
        for (int64_t t = 0; t < T; t++) in[t] = mixed[t * D + d];
        oracle_conv(out, NULL, in, NULL, weight, NULL, true, T, 1, (int)W);
        for (int64_t t = 0; t < T; t++) mixed[t * D + d] = out[t];
    }
}

/* Returns true if a device computes the rule token by token. The mean length decides. */
static bool takes_tokens(const struct block_case *c)
{
    const struct case_batch *b = &c->tokens;
    return c->dims.exact || b->N <= SHORT || b->N <= b->B;
}

/* Runs the rule with one gate for each head. With noise, it rounds where a device does. */
static void run_head_gates(const struct block_case *c, const struct oracle_rule *r, double *k,
                           struct oracle_noise *noise)
{
    if (!noise || takes_tokens(c)) {
        oracle_rule(r);
        rounded(r->o, r->T * r->V, noise);
        return;
    }
    if (c->dims.dtype == GDN_F16) oracle_move_all(noise, k, r->T * r->K);
    oracle_rule_chunks(r, LAYER_TOKENS, noise); /* later tokens of a chunk change nothing */
}

/* Runs the rule with gates g [T][K]. With noise, q and k are rounded too: a device rounds their
 * factors in chunks. */
static void run_channel_gates(const struct oracle_rule *r, const double *g, double *q, double *k,
                              struct oracle_noise *noise)
{
    double b[LAYER_TOKENS * 256], w[LAYER_TOKENS * 1024];
    for (int64_t i = 0; i < r->T * r->K; i++) b[i] = r->beta[i / r->K];
    for (int64_t i = 0; i < r->T * r->V; i++) w[i] = r->beta[i / r->V];
    struct oracle_family f = { .T = r->T, .K = r->K, .V = r->V, .n = 1, .scale = r->scale };
    f.q = rounded(q, r->T * r->K, noise), f.k = rounded(k, r->T * r->K, noise);
    f.g = g, f.b = b, f.v = r->v, f.w = w, f.state = r->state, f.o = r->o;
    oracle_family(&f);
    rounded(r->o, r->T * r->V, noise);
}

/* Loads the logarithms of the decays of head h: of a token one, or one of each channel. */
static void load_gates(const struct block_case *c, const double *a, int64_t h, int64_t T, double *g)
{
    const int64_t H = c->dims.Hv, n = case_has_channels(&c->dims) ? c->dims.K : 1;
    const double A_log = at(&c->args.A_log, h);
    for (int64_t i = 0; i < T * n; i++) {
        const int64_t channel = h * n + i % n;
        g[i] = oracle_gate(a[i / n * H * n + channel], A_log, at(&c->args.dt_bias, channel),
                           c->dims.lower_bound);
    }
}

/* Runs value head h: norms, gates, rule, gated norm, from the projections to y [T][Hv V]. */
static void run_head(const struct block_case *c, const struct layer_projected *p, int64_t h,
                     int64_t T, double *state, double *y, struct oracle_noise *noise)
{
    const struct case_dims *d = &c->dims;
    const int64_t K = d->K, V = d->V, D = layer_channels(d), kh = h / (d->Hv / d->Hq);
    const double most_beta = c->args.beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    double q[LAYER_TOKENS * 256], k[LAYER_TOKENS * 256], g[LAYER_TOKENS * 256];
    double v[LAYER_TOKENS * 1024], o[LAYER_TOKENS * 1024], w[1024];
    double alpha[LAYER_TOKENS], beta[LAYER_TOKENS];
    load_gates(c, p->a, h, T, g);
    for (int64_t t = 0; t < T; t++) {
        const double *row = p->mixed + t * D;
        oracle_l2norm(q + t * K, row + kh * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + (d->Hq + kh) * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * d->Hq * K + h * V, (size_t)V * sizeof *v);
        beta[t] = most_beta * oracle_sigmoid(p->b[t * d->Hv + h]);
        alpha[t] = exp(g[t]); /* read if a head has one gate */
    }
    memset(state, 0, (size_t)(K * V) * sizeof *state);
    struct oracle_rule r = { .T = T, .K = (int)K, .V = (int)V, .scale = 1 / sqrt((double)K) };
    r.q = q, r.k = k, r.v = v, r.alpha = alpha, r.beta = beta, r.state = state, r.o = o;
    if (case_has_channels(d))
        run_channel_gates(&r, g, q, k, noise);
    else
        run_head_gates(c, &r, k, noise);
    for (int64_t i = 0; i < V; i++) w[i] = at(&c->args.norm_weight, i);
    for (int64_t t = 0; t < T; t++)
        oracle_rmsnorm_gated(y + (t * d->Hv + h) * V, o + t * V, w, p->z + (t * d->Hv + h) * V,
                             c->args.activation == GDN_ACT_SIGMOID, 1e-6, V);
}

double *layer_run(const struct block_case *c, const struct layer_projected *p, int64_t T,
                  struct oracle_noise *noise)
{
    const struct case_dims *d = &c->dims;
    const int64_t D = layer_channels(d), n_y = T * d->Hv * d->V;
    struct layer_projected own = { NULL, NULL, NULL, NULL };
    double *y = malloc((size_t)(n_y + d->K * d->V) * sizeof *y), *out = NULL;
    if (y && project_up(c, p, T, noise, &own)) {
        convolve(c, own.mixed, T);
        rounded(own.mixed, T * D, noise);
        for (int64_t h = 0; h < d->Hv; h++) run_head(c, &own, h, T, y + n_y, y, noise);
        rounded(y, n_y, noise);
        out = rounded(project(y, &c->args.out_proj, T), T * d->hidden, noise);
    }
    layer_free_projected(&own);
    free(y);
    return out;
}

/* ---- The check --------------------------------------------------------------------------- */

/* Finds the root mean square, element by element, of what roundings do; false without memory. */
static bool find_noise(const struct block_case *c, const struct layer_projected *p, int64_t T,
                       const double *want, double *noise)
{
    struct oracle_noise source = { .dtype = c->dims.dtype };
    for (int r = 0; r < RUNS; r++) {
        double *moved = layer_run(c, p, T, &source);
        for (int64_t i = 0; i < T * c->dims.hidden && moved; i++)
            noise[i] = hypot(noise[i], (moved[i] - want[i]) / sqrt(RUNS));
        if (!moved) return false;
        free(moved);
    }
    return true;
}

/* Judges a block by the projected rows. `noise` is zero. */
static bool judge_block(const struct block_case *c, const struct layer_projected *p, int64_t T,
                        bool rounds, double *got, double *noise, struct comparison *found)
{
    const int64_t n = T * c->dims.hidden;
    double *want = layer_run(c, p, T, NULL);
    const bool done = want && (!rounds || find_noise(c, p, T, want, noise));
    for (int64_t i = 0; i < n && done; i++)
        got[i] = oracle_load(c->args.out.data, c->dims.dtype, i);
    if (done)
        *found = rounds ? compare_noisy(got, want, noise, n)
                        : compare_doubles(got, want, n,
                                          compare_precision(c->dims.dtype, c->dims.state_dtype));
    free(want);
    return done;
}

int block_case_check(struct block_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t T = layer_tokens(c->tokens.cu_seqlens[1]);
    const bool rounds = gdn_internal_device(ctx) && c->dims.dtype != GDN_F32;
    const gdn_status status = cli_call(ctx, GDN_OP_BLOCK, &c->args);
    if (status) return cli_failed(ctx, status);
    struct layer_projected p = { NULL, NULL, NULL, NULL };
    double *got = calloc((size_t)(2 * T * c->dims.hidden), sizeof *got);
    const bool judged = got && layer_project(c, T, &p) &&
                        judge_block(c, &p, T, rounds, got, got + T * c->dims.hidden, found);
    free(got);
    layer_free_projected(&p);
    return judged ? CLI_OK : cli_bad("no memory for the check");
}
