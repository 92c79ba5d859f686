/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step as it is once checked: what src/ops/layer/step.c and src/cuda/layer/step.c compute. */
#ifndef GDN_STEP_H
#define GDN_STEP_H

#include "calls/conv.h"
#include "calls/norm.h"
#include "calls/record.h"
#include "calls/rule.h"

struct gdn_step_call {
    struct gdn_call base;
    gdn_step_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_conv conv; /* all but out; W is 0 if x is convolved already */
    struct gdn_rule rule; /* all but q, k, v */
    struct gdn_record record;
    struct gdn_norm_job norm; /* in place, of all rows of out */
    bool normed;
    struct gdn_plan_pools pools;
};

/* Returns true if the call computes the convolution. */
static inline bool gdn_step_convolves(const struct gdn_step_call *m) { return m->conv.W; }

/* Rows of the convolution's output, [tokens][D], from a channel on; `head` channels to a head. */
struct gdn_rows gdn_step_call_rows(const struct gdn_step_call *m, char *memory, int64_t channel,
                                   int64_t head);
size_t gdn_step_call_bytes(const struct gdn_step_call *m); /* of the output */

/* Points the rule's rows to the result of the convolution; or to x, if there is none. Updates of
 * a token follow each other in its row. */
void gdn_step_call_connect(const struct gdn_step_call *m, char *memory, struct gdn_rule *rule);

#endif
