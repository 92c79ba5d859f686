/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's tensors as gdn's. ggml counts dimensions from the innermost one and strides in bytes. */
#pragma once

#include <stdbool.h>

#include "gdn.h"
#include "ggml.h"

/* The innermost ndim dimensions of a float32 tensor. */
gdn_tensor gdn_ggml_view(const struct ggml_tensor *x, int ndim);

/* Whether a node has the first n_sources sources and no other, and no parameter beyond the first
 * n_params. A newer ggml may give an op more of either, with another meaning. */
bool gdn_ggml_has_only(const struct ggml_tensor *node, int n_sources, int n_params);

/* Whether x is float32, in rows without gaps. */
bool gdn_ggml_is_rows(const struct ggml_tensor *x);
