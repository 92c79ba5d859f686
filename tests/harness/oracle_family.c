/* SPDX-License-Identifier: Apache-2.0 */
/* See oracle_family.h. */
#include "oracle_family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A state is [V][K]: element (j, x) belongs to value column j and key channel x. */

static void decay(const struct oracle_family *r, int64_t t, double *S)
{
    for (int j = 0; j < r->V; j++)
        for (int x = 0; x < r->K; x++) {
            const double a = exp(r->g[t * r->K + x]);
            S[j * r->K + x] = a == 0 ? 0 : a * S[j * r->K + x];
        }
}

/* Returns what an update writes to column j. */
static double written(const struct oracle_family *r, int64_t row, int j, const double *S)
{
    const double *k = r->k + row * r->K, *b = r->b + row * r->K;
    const double w = r->w[row * r->V + j];
    double u = w == 0 ? 0 : w * r->v[row * r->V + j];
    for (int x = 0; x < r->K; x++)
        if (b[x] != 0) u -= b[x] * k[x] * S[j * r->K + x];
    return u;
}

/* u [V] may be NULL. */
static void update(const struct oracle_family *r, int64_t row, double *S, double *u)
{
    for (int j = 0; j < r->V; j++) {
        const double uj = written(r, row, j, S);
        if (u) u[j] = uj;
        for (int x = 0; x < r->K && uj != 0; x++) S[j * r->K + x] += r->k[row * r->K + x] * uj;
    }
}

void oracle_family(const struct oracle_family *r)
{
    for (int64_t t = 0; t < r->T; t++) {
        decay(r, t, r->state);
        for (int i = 0; i < r->n; i++) update(r, t * r->n + i, r->state, NULL);
        for (int j = 0; r->o && j < r->V; j++) {
            double sum = 0;
            for (int x = 0; x < r->K; x++) sum += r->q[t * r->K + x] * r->state[j * r->K + x];
            r->o[t * r->V + j] = r->scale * sum;
        }
    }
}

/* The gradient J of S, the state after an update that was computed from `before`, becomes that of
 * `before`. */
static void update_backward(const struct oracle_family_backward *a, int64_t row,
                            const double *before, const double *u, double *J)
{
    const struct oracle_family *r = a->of;
    const double *k = r->k + row * r->K, *b = r->b + row * r->K;
    for (int j = 0; j < r->V; j++) {
        double du = 0;
        const double w = r->w[row * r->V + j], v = r->v[row * r->V + j];
        for (int x = 0; x < r->K; x++) du += k[x] * J[j * r->K + x];
        for (int x = 0; x < r->K; x++) {
            const double S = before[j * r->K + x];
            a->dk[row * r->K + x] += J[j * r->K + x] * u[j] - b[x] * du * S;
            a->db[row * r->K + x] -= k[x] * du * S;
            J[j * r->K + x] -= b[x] * k[x] * du;
        }
        a->dw[row * r->V + j] = du * v;
        a->dv[row * r->V + j] = du * w;
    }
}

/* The gradient J of the state after a token becomes that of the state before it. states: those
 * before each of its updates. */
static void token_backward(const struct oracle_family_backward *a, int64_t t, const double *states,
                           const double *us, double *S, double *J)
{
    const struct oracle_family *r = a->of;
    const int64_t KV = (int64_t)r->K * r->V;
    memcpy(S, states + (r->n - 1) * KV, (size_t)KV * sizeof *S);
    update(r, t * r->n + r->n - 1, S, NULL);
    for (int j = 0; j < r->V; j++)
        for (int x = 0; x < r->K; x++) {
            const double d = r->scale * a->dout[t * r->V + j];
            a->dq[t * r->K + x] += d * S[j * r->K + x];
            J[j * r->K + x] += d * r->q[t * r->K + x];
        }
    for (int i = r->n - 1; i >= 0; i--)
        update_backward(a, t * r->n + i, states + i * KV, us + i * r->V, J);
    for (int j = 0; j < r->V; j++)
        for (int x = 0; x < r->K; x++) {
            const double g = exp(r->g[t * r->K + x]);
            if (g != 0) a->dg[t * r->K + x] += J[j * r->K + x] * states[j * r->K + x];
            J[j * r->K + x] = g == 0 ? 0 : g * J[j * r->K + x];
        }
}

void oracle_family_backward(const struct oracle_family_backward *a)
{
    const struct oracle_family *r = a->of;
    const size_t KV = (size_t)(r->K * r->V), rows = (size_t)(r->T * r->n);
    double *states = calloc(rows * KV + KV, sizeof *states), *S = states + rows * KV;
    double *us = calloc(rows * (size_t)r->V + 1, sizeof *us);
    memcpy(S, r->state, KV * sizeof *S);
    for (size_t row = 0; row < rows; row++) {
        if (row % (size_t)r->n == 0) decay(r, (int64_t)row / r->n, S);
        memcpy(states + row * KV, S, KV * sizeof *S);
        update(r, (int64_t)row, S, us + row * (size_t)r->V);
    }
    memcpy(a->dstate, a->dstate_out, KV * sizeof *S);
    for (int64_t t = r->T - 1; t >= 0; t--)
        token_backward(a, t, states + (size_t)(t * r->n) * KV, us + t * r->n * r->V, S, a->dstate);
    free(states);
    free(us);
}
