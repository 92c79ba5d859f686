/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: the formulas of gdn.h in float64, written to be read, token by token, one head
 * at a time. No layouts, no batches, no speed.
 *
 * Beside a value may stand its magnitude: how much rounding a float32 computation of it can
 * collect, in units of 2^-24. Each operation adds the absolute values of its terms, and what
 * was added earlier is carried on through the recurrence. An error is judged as
 *
 *     |got - want| <= limit x 2^-24 x magnitude
 */
#ifndef GDN_TESTS_ORACLE_H
#define GDN_TESTS_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdn.h"

/* ---- Storage ---- */

/* Element i of an array of gdn_dtype (floats and indices), and the store with one rounding to
 * nearest even. Written without the library's conversions. */
double oracle_load(const void *p, int dtype, int64_t i);
void oracle_store(void *p, int dtype, int64_t i, double x);
/* Returns half the distance between floats of a dtype around x: the most that one rounding
 * changes. */
double oracle_half_ulp(int dtype, double x);

/* ---- The rule ---- */

/*
 * One sequence of one state head. alpha = 0 and beta = 0 act by selection (G7, G8). All arrays
 * are dense. Magnitudes assume exact inputs; inputs with a relative error of e units add e to
 * the limit.
 */
struct oracle_rule {
    int64_t T;
    int K, V;
    double scale;
    const double *q, *k;        /* [T][K]; normalised by the caller if they are to be */
    const double *v;            /* [T][V] */
    const double *alpha, *beta; /* [T] */
    double *state;              /* [V][K]: in the initial, out the final state */
    double *o;                  /* [T][V]; may be NULL */
    double *each;               /* [T][V][K], the state after each token; may be NULL */
    double *o_mag;              /* [T][V]; may be NULL */
    double *state_mag;          /* [V][K], of the final state; may be NULL */
    double *each_mag;           /* [T][V][K]; may be NULL */
};
void oracle_rule(const struct oracle_rule *r);

/*
 * What roundings to a dtype do to a result is asked of the computation itself, done once more with
 * every number that is rounded on the way moved by a random part of half its ulp.
 */
struct oracle_noise {
    int dtype;
    uint64_t seed; /* moves on */
};
double oracle_move(struct oracle_noise *n, double x);
void oracle_move_all(struct oracle_noise *n, double *x, int64_t count);

/*
 * The rule as tensor cores compute it on q and k of n->dtype: in chunks of C tokens
 * (docs/design/math.md), with S a chunk's first state, R = V - S K, U = T R, O = Q S + P U and
 * S' = S + U K, where the factors S, R, T, P and U (twice: for O, and decayed for S') move; and o.
 * Without magnitudes.
 */
void oracle_rule_chunks(const struct oracle_rule *r, int C, struct oracle_noise *n);

/*
 * Gradients of one sequence of one state head, by the recurrence in reverse: of a loss whose
 * gradients are dout of o and dstate_out of the final state. dgate is of log alpha; it is 0 where
 * alpha is. `single`: every intermediate result is rounded to float32, as a plain loop in float32
 * would; what that does to a gradient is a measure of how well it can be computed.
 */
struct oracle_backward {
    int64_t T;
    int K, V;
    bool single;
    double scale;
    const double *q, *k, *v, *alpha, *beta; /* as in oracle_rule */
    const double *state, *dstate_out;       /* [V][K]; NULL: zero */
    const double *dout;                     /* [T][V] */
    double *dq, *dk;                        /* [T][K] */
    double *dv, *dgate, *dbeta, *dstate;    /* [T][V], [T], [T], [V][K] */
    double *carried; /* [V] or NULL: the largest gradient of S on its way, times alphas */
    double *terms;   /* [T] or NULL: sums of |du v|, from which dbeta takes others away */
};
void oracle_rule_backward(const struct oracle_backward *r);

/* ---- Gates ---- */

double oracle_sigmoid(double x);
double oracle_silu(double x);
double oracle_softplus(double x); /* x above 20 */
/* The log gate of GDN_GATE_RAW; lower_bound 0: none. */
double oracle_gate(double a, double A_log, double dt_bias, double lower_bound);
/* dg / da of that gate; dg / dA_log in *by_A_log. dg / ddt_bias is dg / da. */
double oracle_gate_slope(double a, double A_log, double dt_bias, double lower_bound,
                         double *by_A_log);

/* ---- Norms ---- */

/* y = x / its length, in the formula `norm` (gdn_norm; NONE copies). y may be x. */
/* Return true if a gdn_norm scales rows, and if a gdn_beta_kind has a sigmoid: in ops whose default
 * is neither. */
static inline bool oracle_normalises(int norm)
{
    return norm >= GDN_NORM_L2 && norm <= GDN_NORM_L2_MAX;
}
static inline bool oracle_squashes(int kind)
{
    return kind == GDN_BETA_SIGMOID || kind == GDN_BETA_TWICE_SIGMOID;
}

void oracle_l2norm(double *y, const double *x, int64_t n, int norm, double eps);
/* dx from dout of y above, by the Jacobian; dx may be neither x nor dout. */
void oracle_l2norm_backward(double *dx, const double *x, const double *dout, int64_t n, int norm,
                            double eps);
/* y = x / sqrt(mean x^2 + eps) w act(z). w NULL: 1; z NULL: no gate. y may be x. */
void oracle_rmsnorm_gated(double *y, const double *x, const double *w, const double *z,
                          bool sigmoid, double eps, int64_t n);
/* Gradients of one row from dout: dx, dz (NULL: not wanted), and the row's part of dw. */
struct oracle_rmsnorm {
    const double *x, *w, *z, *dout; /* w NULL: 1; z NULL: no gate */
    bool sigmoid;
    double eps;
    int64_t n;
};
void oracle_rmsnorm_backward(const struct oracle_rmsnorm *a, double *dx, double *dz,
                             double *dweight);

/* ---- Convolution, projections ---- */

/* y [T][D] from x [T][D], weight [D][W], bias [D] (NULL: 0). history [W-1][D], oldest first,
 * is what came before x; NULL: zero. y_mag may be NULL. */
void oracle_conv(double *y, double *y_mag, const double *x, const double *history,
                 const double *weight, const double *bias, bool silu, int64_t T, int D, int W);
/* y [m][n] = x [m][K] times w [n][K] transposed. y_mag may be NULL. */
void oracle_linear(double *y, double *y_mag, const double *x, const double *w, int64_t m, int64_t n,
                   int64_t K);

#endif
