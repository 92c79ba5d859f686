/* SPDX-License-Identifier: Apache-2.0 */
/* What gdn_gates and its gradients check alike. */
#ifndef GDN_GATES_H
#define GDN_GATES_H

#include "batch/rowwise.h"

/* A formula of the gates: what is written as g, how beta is made, the bound of g. */
gdn_status gdn_gates_check_formula(gdn_ctx *ctx, int32_t gate, int32_t beta_kind, float bound);

/* A vector [H] of parameters. */
gdn_status gdn_gates_check_vector(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                  unsigned dtypes, int64_t H);

#endif
