/* SPDX-License-Identifier: Apache-2.0 */
/* As much of ggml's interface as the backend asks of a node, for unit_ggml.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { GGML_MAX_DIMS = 4, GGML_MAX_SRC = 10, GGML_MAX_OP_PARAMS = 64 };
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16 };

struct ggml_tensor {
    enum ggml_type type;
    int64_t ne[GGML_MAX_DIMS];
    size_t nb[GGML_MAX_DIMS];
    int32_t op_params[GGML_MAX_OP_PARAMS / sizeof(int32_t)];
    struct ggml_tensor *src[GGML_MAX_SRC];
    void *data;
};

static inline int64_t ggml_nelements(const struct ggml_tensor *x)
{
    return x->ne[0] * x->ne[1] * x->ne[2] * x->ne[3];
}
