/* SPDX-License-Identifier: Apache-2.0 */
/* See oracle.h. The letters are those of gdn.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

static double rounded(const struct oracle_backward *r, double x)
{
    return r->single ? (double)(float)x : x;
}

/* sum + a b */
static double add(const struct oracle_backward *r, double sum, double a, double b)
{
    return rounded(r, sum + rounded(r, a * b));
}

/* Returns k^T S of token t in column j, for S = alpha S before the token. */
static double found(const struct oracle_backward *r, int64_t t, const double *S)
{
    double sum = 0;
    for (int x = 0; x < r->K; x++) sum = add(r, sum, S[x], r->k[t * r->K + x]);
    return sum;
}

static double written(const struct oracle_backward *r, int64_t t, int j, const double *S)
{
    const double beta = r->beta[t];
    return beta == 0 ? 0 : rounded(r, beta * rounded(r, r->v[t * r->V + j] - found(r, t, S)));
}

/* before [T][K]: alpha S before each token; after [T][K]: S after it. */
static void walk_column(const struct oracle_backward *r, int j, double *before, double *after)
{
    const int K = r->K;
    const double *S = r->state ? r->state + (size_t)j * (size_t)K : NULL;
    for (int64_t t = 0; t < r->T; t++) {
        double *from = before + t * K, *to = after + t * K;
        for (int x = 0; x < K; x++)
            from[x] = !S || r->alpha[t] == 0 ? 0 : rounded(r, r->alpha[t] * S[x]);
        const double u = written(r, t, j, from);
        for (int x = 0; x < K; x++) to[x] = u == 0 ? from[x] : add(r, from[x], r->k[t * K + x], u);
        S = to;
    }
}

/* Turns J, the gradient of S after token t, into that of S before the token. */
static void token(const struct oracle_backward *r, int64_t t, int j, double *J,
                  const double *before, const double *after)
{
    const int K = r->K;
    const double *q = r->q + t * K, *k = r->k + t * K;
    double *dq = r->dq + t * K, *dk = r->dk + t * K;
    const double beta = r->beta[t], dout = rounded(r, r->scale * r->dout[t * r->V + j]);
    const double u = written(r, t, j, before);
    double du = 0, most = r->carried ? r->carried[j] : 0;
    for (int x = 0; x < K; x++) {
        dq[x] = add(r, dq[x], dout, after[x]);
        J[x] = add(r, J[x], dout, q[x]);
        du = add(r, du, J[x], k[x]);
        most = fmax(most, fabs(J[x]));
    }
    const double missed = rounded(r, r->v[t * r->V + j] - found(r, t, before));
    const double back = rounded(r, beta * du);
    r->dbeta[t] = add(r, r->dbeta[t], du, missed);
    if (r->terms) r->terms[t] += fabs(du * r->v[t * r->V + j]);
    r->dv[t * r->V + j] = back;
    for (int x = 0; x < K; x++) {
        dk[x] = add(r, add(r, dk[x], u, J[x]), -back, before[x]);
        J[x] = add(r, J[x], -back, k[x]);
        r->dgate[t] = add(r, r->dgate[t], J[x], before[x]);
        J[x] = r->alpha[t] == 0 ? 0 : rounded(r, r->alpha[t] * J[x]);
    }
    if (r->carried) r->carried[j] = r->alpha[t] * most;
}

void oracle_rule_backward(const struct oracle_backward *r)
{
    const size_t T = (size_t)r->T, K = (size_t)r->K;
    double *before = calloc(T * K + 1, sizeof *before);
    double *after = calloc(T * K + 1, sizeof *after);
    memset(r->dq, 0, T * K * sizeof *r->dq);
    memset(r->dk, 0, T * K * sizeof *r->dk);
    memset(r->dgate, 0, T * sizeof *r->dgate);
    memset(r->dbeta, 0, T * sizeof *r->dbeta);
    if (r->terms) memset(r->terms, 0, T * sizeof *r->terms);
    if (r->carried) memset(r->carried, 0, (size_t)r->V * sizeof *r->carried);
    for (int j = 0; j < r->V; j++) {
        double *J = r->dstate + (size_t)j * K;
        memset(J, 0, K * sizeof *J);
        if (r->dstate_out) memcpy(J, r->dstate_out + (size_t)j * K, K * sizeof *J);
        walk_column(r, j, before, after);
        for (int64_t t = r->T - 1; t >= 0; t--)
            token(r, t, j, J, before + (size_t)t * K, after + (size_t)t * K);
    }
    free(before);
    free(after);
}
