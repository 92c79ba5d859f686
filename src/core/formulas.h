/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formulas of a checked call. Each op resolves its defaults on the host, when it checks the call.
 * From there on 0 means "no formula": kernels test for 0, and a struct of zeros has none. The other
 * values are those of gdn.h. Device code includes this too.
 */
#ifndef GDN_FORMULAS_H
#define GDN_FORMULAS_H

#include "gdn.h"

enum { GDN_NO_NORM = 0, GDN_NO_SIGMOID = 0 };

/* Return the formula of a gdn_norm and of a gdn_beta_kind; `otherwise` is the default of the op. */
static inline int gdn_norm_of(int32_t norm, int32_t otherwise)
{
    if (norm == GDN_NORM_DEFAULT) norm = otherwise;
    return norm == GDN_NORM_NONE ? GDN_NO_NORM : norm;
}

static inline int gdn_beta_of(int32_t kind, int32_t otherwise)
{
    if (kind == GDN_BETA_DEFAULT) kind = otherwise;
    return kind == GDN_BETA_GIVEN ? GDN_NO_SIGMOID : kind;
}

#endif
