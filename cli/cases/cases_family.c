/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of cases whose rule is KDA, GDN-2 or Gated DeltaProduct. */
#include <math.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "oracle.h"
#include "oracle_family.h"

/* The inputs of n tokens of one head, as the oracle takes them. */
struct inputs {
    double *q, *k, *v, *g, *b, *w;
};

/* Copies the one value of each row to D columns, if the tensor has one value a row. */
static void widen(double *x, const gdn_tensor *t, int64_t rows, int64_t D)
{
    for (int64_t i = rows * D - 1; i >= 0 && t->ndim == 2; i--) x[i] = x[i / D];
}

/* Loads a gate of each of the D columns; one of a head holds for all of them. */
static void load_gate(double *to, const gdn_tensor *t, int64_t first, int64_t rows, int64_t h,
                      int64_t D)
{
    case_load_head(to, t, first, rows, h);
    widen(to, t, rows, D);
}

static void cook(const struct rule_case *c, const struct inputs *in, int64_t h, int64_t n)
{
    const gdn_rule_args *a = &c->args;
    const int64_t K = c->dims.K, V = c->dims.V, rows = n * case_updates(&c->dims);
    const bool channels = a->g.ndim == 3;
    for (int64_t t = 0; t < n; t++) oracle_l2norm(in->q + t * K, in->q + t * K, K, a->norm, 1e-6);
    for (int64_t r = 0; r < rows; r++)
        oracle_l2norm(in->k + r * K, in->k + r * K, K, a->norm, 1e-6);
    for (int64_t i = 0; i < n * K; i++)
        in->g[i] =
            oracle_gate(in->g[i], oracle_load(a->A_log.data, GDN_F32, h),
                        oracle_load(a->dt_bias.data, GDN_F32, channels ? h * K + i % K : h), 0);
    for (int64_t i = 0; i < rows * K; i++) in->b[i] = oracle_sigmoid(in->b[i]);
    for (int64_t i = 0; i < rows * V; i++) in->w[i] = oracle_sigmoid(in->w[i]);
}

static void load_inputs(const struct rule_case *c, const struct inputs *in, int64_t first,
                        int64_t h, int64_t n)
{
    const gdn_rule_args *a = &c->args;
    const int64_t K = c->dims.K, V = c->dims.V, u = case_updates(&c->dims);
    case_load_head(in->q, &a->q, first, n, rule_case_head_of(c, a->q.size[1], h));
    case_load_head(in->k, &a->k, first * u, n * u, rule_case_head_of(c, a->k.size[1], h));
    case_load_head(in->v, &a->v, first * u, n * u, rule_case_head_of(c, a->v.size[1], h));
    load_gate(in->g, &a->g, first, n, h, K);
    load_gate(in->b, &a->beta, first * u, n * u, h, K);
    load_gate(in->w, a->write_gate.data ? &a->write_gate : &a->beta, first * u, n * u, h, V);
    if (c->dims.raw) cook(c, in, h, n);
}

/* Describes n tokens of head h from `first` on, and writes their inputs to x. Returns the end of
 * the inputs. */
static double *load_rule(const struct rule_case *c, int64_t first, int64_t h, int64_t n, double *x,
                         struct oracle_family *r)
{
    const int64_t K = c->dims.K, V = c->dims.V, u = case_updates(&c->dims);
    const struct inputs in = { .q = x,
                               .g = x + n * K,
                               .k = x + 2 * n * K,
                               .b = x + (2 + u) * n * K,
                               .v = x + (2 + 2 * u) * n * K,
                               .w = x + (2 + 2 * u) * n * K + u * n * V };
    load_inputs(c, &in, first, h, n);
    *r = (struct oracle_family){ .T = n, .K = (int)K, .V = (int)V, .n = (int)u };
    r->scale = 1 / sqrt((double)K);
    r->q = in.q, r->g = in.g, r->k = in.k, r->b = in.b, r->v = in.v, r->w = in.w;
    return in.w + u * n * V;
}

double *family_case_inputs(const struct rule_case *c, int64_t h, int64_t n, double *x,
                           struct oracle_family *r)
{
    return load_rule(c, 0, h, n, x, r);
}

bool family_case_follow(const struct rule_case *c, int64_t b, int64_t h, int64_t n, double *state,
                        double *want, double *got)
{
    const int64_t K = c->dims.K, V = c->dims.V, u = case_updates(&c->dims);
    const int64_t first = c->tokens.cu_seqlens[b];
    double *x = malloc((size_t)(n * (2 * K + 2 * u * (K + V))) * sizeof *x);
    struct oracle_family r;
    if (!x) return false;
    load_rule(c, first, h, n, x, &r);
    case_load_head(got, &c->args.out, first, n, h);
    r.state = state, r.o = want;
    oracle_family(&r);
    free(x);
    return true;
}
