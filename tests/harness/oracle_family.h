/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge of the family (gdn.h): the rule with vectors a, b and w, and its adjoint, in float64,
 * token by token, for one sequence of one head. Rows of k, v, b and w are updates, n of each token.
 */
#ifndef GDN_TESTS_ORACLE_FAMILY_H
#define GDN_TESTS_ORACLE_FAMILY_H

#include <stdint.h>

struct oracle_family {
    int64_t T;
    int K, V, n;
    double scale;
    const double *q, *g; /* [T][K]; g: logarithms, -inf forgets by selection */
    const double *k, *b; /* [n T][K] */
    const double *v, *w; /* [n T][V]; v is not read where w is 0 */
    double *state;       /* [V][K]: in the initial, out the final state */
    double *o;           /* [T][V] */
};
void oracle_family(const struct oracle_family *r);

/* Gradients of a loss whose gradients are dout of o and dstate_out of the final state. The state
 * of `of` is the initial one, and is not changed. dg is of the logarithms, 0 where a channel
 * forgets. */
struct oracle_family_backward {
    const struct oracle_family *of;
    const double *dout, *dstate_out;     /* [T][V], [V][K] */
    double *dq, *dg, *dk, *db, *dv, *dw; /* as q, g, k, b, v, w */
    double *dstate;                      /* [V][K] */
};
void oracle_family_backward(const struct oracle_family_backward *r);

#endif
