/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's matrices and a text's states in a GPU's memory, all of them float32. Products of rows
 * and gdn_block() run there. What is between them stays on the host: norms, attention over past
 * tokens, SwiGLU. So rows of activations go there and back for each part of a layer.
 */
#ifndef GPU_H
#define GPU_H

#include "compute/blas.h"
#include "compute/device.h"
#include "compute/matrix.h"

struct gpu_room {
    void *data;
    size_t bytes;
};

struct gpu {
    gdn_ctx *ctx;
    struct device device;
    struct blas blas;
    bool exact;           /* one token a product, so that its sums do not depend on other tokens */
    struct gpu_room x, y; /* rows on their way */
    void **blocks;
    size_t n_blocks;
};

/* All return CLI_OK, or CLI_BAD after one line. */
int gpu_open(struct gpu *g, bool exact);
void gpu_close(struct gpu *g); /* of a zeroed one too */

/* The dense tensor becomes a copy on the device, in float32. */
int gpu_take(struct gpu *g, const struct matrix *host, gdn_tensor *t);

/* All of a dense float32 tensor on the device, from and to the host. */
int gpu_put(struct gpu *g, const gdn_tensor *t, const void *from);
int gpu_get(struct gpu *g, const gdn_tensor *t, void *to);

/* Computes y = w x for rows of tokens; w is on the device, x and y are not. */
int gpu_product(struct gpu *g, const gdn_tensor *w, const float *x, float *y, int64_t tokens);

/* gdn_block() with hidden and out on the host, dense, and all else on the device. */
int gpu_block(struct gpu *g, const gdn_block_args *args);

#endif
