/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dense hybrid: the weights of a checkpoint by their names in Hugging Face's files.
 * Matrices stay where the checkpoint has them, f32, bf16 or f16. With a GPU they and all weights
 * of GDN layers are copied there.
 */
#ifndef MODEL_H
#define MODEL_H

#include "model/checkpoint.h"
#include "model/config.h"
#include "compute/gpu.h"
#include "compute/product.h"

/* Attention over all tokens. Rows of q_proj, per head: head_dim of q; of Qwen3.5, then head_dim of
 * a gate. MLA: k and v come from kv_a_proj, kv_norm and kv_b_proj. */
struct attention_weights {
    gdn_tensor q_proj, k_proj, v_proj, o_proj, kv_a_proj, kv_b_proj;
    const float *q_norm, *k_norm, *kv_norm;
};

struct layer {
    const float *input_norm, *post_norm;
    gdn_tensor gate_proj, up_proj, down_proj; /* SwiGLU */
    bool is_full;
    bool norms_after; /* of what a part gives; else of what it takes */
    union {
        gdn_block_args gdn; /* weights and sizes alone */
        struct attention_weights full;
    } mixer;
};

struct model {
    struct checkpoint checkpoint;
    struct config config;
    gdn_ctx *ctx;    /* on a CPU */
    struct gpu *gpu; /* NULL: none */
    struct matrix matrix;
    product_loop *loop;   /* of attention */
    uint64_t fingerprint; /* differs between models: a hash of some of the weights */
    gdn_tensor embedding, head;
    const float *norm;
    struct layer *layers;
    struct memory memory;
};

/* CLI_OK, or CLI_BAD after one line. ctx, on a CPU, its threads and gpu outlive the model; gpu may
 * be NULL. */
int model_open(struct model *m, gdn_ctx *ctx, struct threads *threads, struct gpu *gpu,
               const char *path);
void model_close(struct model *m); /* of a zeroed one too */

/* Computes y = w x for rows of tokens, on the GPU or on the threads. CLI_OK, or CLI_BAD
 * after one line. */
int model_product(const struct model *m, const gdn_tensor *w, const float *x, float *y,
                  int64_t tokens);

#endif
