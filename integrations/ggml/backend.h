/* SPDX-License-Identifier: Apache-2.0 */
/* One ggml backend: a context of libgdn, and what the ops need beside it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gdn.h"
#include "ggml.h"

struct gdn_ggml {
    gdn_ctx *ctx; /* NULL: to be made, with n_threads */
    int n_threads;
    void *room; /* what one op needs for its duration; it grows */
    size_t room_bytes;
};

/* The room, at least so large; NULL: no memory. */
void *gdn_ggml_room(struct gdn_ggml *backend, size_t bytes);

/* Whether libgdn computes a node, and the call that does. */
bool gdn_ggml_takes_rule(const struct ggml_tensor *node);
bool gdn_ggml_takes_conv(const struct ggml_tensor *node);
bool gdn_ggml_takes_norm(const struct ggml_tensor *node);
gdn_status gdn_ggml_rule(struct gdn_ggml *backend, const struct ggml_tensor *node);
gdn_status gdn_ggml_conv(struct gdn_ggml *backend, const struct ggml_tensor *node);
gdn_status gdn_ggml_norm(struct gdn_ggml *backend, const struct ggml_tensor *node);
