/* SPDX-License-Identifier: Apache-2.0 */
/* The line of the log about a choice among the forms of an op. */
#ifndef GDN_CUDA_CHOICE_H
#define GDN_CUDA_CHOICE_H

#include "cuda/driver/launch.h"

/* A form, and the reason that it does not take the call; NULL: it does. */
struct gdn_cuda_form {
    const char *name, *why_not;
};

/* Logs "<op>: <form> (<other>: <reason>; ...)": the first form that takes the call, and why the
 * forms before it do not. The last form takes every call. */
void gdn_cuda_log_forms(gdn_ctx *ctx, enum gdn_cuda_choice choice, const char *op,
                        const struct gdn_cuda_form *forms);

#endif
