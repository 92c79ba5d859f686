/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of a layer: of its output and its gradients. */
#ifndef CASES_LAYER_H
#define CASES_LAYER_H

#include "cases/cases.h"
#include "oracle.h"

/* The judge follows so many tokens of sequence 0. */
enum { LAYER_TOKENS = 4 };

/* The rows [T] that hidden gives: products with c->qkv, c->z, c->b and c->a. */
struct layer_projected {
    double *mixed, *z, *b, *a;
};

static inline int64_t layer_channels(const struct case_dims *d)
{
    return 2 * d->Hq * d->K + d->Hv * d->V;
}

static inline int64_t layer_tokens(int64_t n) { return n < LAYER_TOKENS ? n : LAYER_TOKENS; }

/* Projects x [T][hidden], or the first T rows of hidden. Returns false without memory. */
bool layer_project_rows(const struct block_case *c, const double *x, int64_t T,
                        struct layer_projected *p);
bool layer_project(const struct block_case *c, int64_t T, struct layer_projected *p);
void layer_free_projected(struct layer_projected *p);

/* Returns the layer over the first T tokens from what was projected, with noise where a device
 * rounds, or NULL; NULL without memory. */
double *layer_run(const struct block_case *c, const struct layer_projected *p, int64_t T,
                  struct oracle_noise *noise);

#endif
