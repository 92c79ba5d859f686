/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a layer's projections, which gdn_block and its gradients take alike. */
#ifndef GDN_LAYER_WEIGHTS_H
#define GDN_LAYER_WEIGHTS_H

#include "calls/layer.h"
#include "ops/tensors.h"

enum { GDN_N_PROJECTIONS = 11 };

struct gdn_layer_weights {
    const gdn_tensor *of[GDN_N_PROJECTIONS], *gradient[GDN_N_PROJECTIONS]; /* NULL: has none */
    const gdn_tensor *dt_bias;
};

/* The projections of a struct of arguments; d: of its gradients. */
#define GDN_PROJECTIONS(a, d)                                                                 \
    {                                                                                         \
        &(a)->d##in_proj_qkvz, &(a)->d##in_proj_ba, &(a)->d##in_proj_qkv, &(a)->d##in_proj_q, \
            &(a)->d##in_proj_k, &(a)->d##in_proj_v, &(a)->d##in_proj_z, &(a)->d##in_proj_b,   \
            &(a)->d##in_proj_a, &(a)->d##in_proj_z_down, &(a)->d##in_proj_a_down              \
    }

/* Checks that all projections are of one kind, and that the kind's tensors are given. */
gdn_status gdn_check_weights(gdn_ctx *ctx, const struct gdn_layer_weights *w,
                             enum gdn_projections *kind);

/* After that: sets the sizes of weights that follow from heads, head sizes and hidden. */
gdn_status gdn_weight_sizes(gdn_ctx *ctx, const struct gdn_layer_weights *w, int64_t Hk,
                            struct gdn_sizes *s);

#endif
