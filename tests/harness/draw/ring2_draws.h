/* SPDX-License-Identifier: Apache-2.0 */
/* The struct of each op, drawn at random: the tensors of one call, for ring2_calls.c. */
#ifndef RING2_DRAWS_H
#define RING2_DRAWS_H

#include "ring2_calls.h"

/* Short names for a function with a draw d. */
#define below(n) ring2_draw_below(d, n)
#define one_in(n) ring2_draw_one_in(d, n)
/* From 1 up to n, in large calls 4n, in vast ones 64n. */
#define up_to(n) (1 + below(d->vast ? 64 * (n) : d->large ? 4 * (n) : (n)))
#define ANY(list) ((list)[below((int64_t)(sizeof(list) / sizeof *(list)))])

/* The sizes of a draw: B sequences of T tokens, P slots. */
struct sizes {
    int64_t B, T, N, P;
};

/* Fills the struct of an op. */
typedef void ring2_draw_op(struct ring2_draw *d, union ring2_call *c, const struct sizes *s);
extern ring2_draw_op *const ring2_draws[RING2_N_OPS];

gdn_batch ring2_draw_batch(struct ring2_draw *d, gdn_op op, const struct sizes *s);

/* Adds a record to a call of the rule. */
void ring2_draw_record(struct ring2_draw *d, gdn_rule_args *a, const struct sizes *s,
                       gdn_batch *batch);

#endif
