/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_backward of the family (gdn.h), in float32: gates per channel, write gates, several
 * updates of a token. Windows are those of backward.cuh, and a window is
 *
 *     load, gates       rows of q, k, a and b * k              load.cuh
 *     forward           states and u, token by token           walk.cuh
 *     reverse           their gradients J and z                walk.cuh
 *     pieces            gradients of each state head           pieces.cuh
 *     store, betas, given   sums over heads; through gates     store.cuh
 *
 * load, gates and forward go through all windows first, for the states between them. In the end
 * come `rest`, zeros for tokens that do not count, and `sums`, dA_log and ddt_bias.
 *
 * The walks alone go through the tokens one by one; they leave the states before and after pieces
 * of 16 updates, so that `pieces` works on all of these at once. No sum depends on the order in
 * which blocks run.
 */
#include "cuda/backward/channels/load.cuh"
#include "cuda/backward/channels/pieces.cuh"
#include "cuda/backward/channels/store.cuh"
#include "cuda/backward/channels/walk.cuh"

#define GDN_IMAGE_backward_channels GDN_THIS_IMAGE
#define GDN_KERNEL_backward_channels(threads, shared, what)                                     \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                    \
        gdn_backward_channels_##what(const __grid_constant__ struct gdn_cu_backward_channels a) \
    {                                                                                           \
        channels_##what(a);                                                                     \
    }
#define GDN_KERNEL_backward_channels_walk(threads, shared, what, depth) \
    extern "C" __global__ void __launch_bounds__(threads, 1)            \
        gdn_backward_channels_walk_##what##_##depth(                    \
            const __grid_constant__ struct gdn_cu_backward_channels a)  \
    {                                                                   \
        channels_##what<depth>(a);                                      \
    }
#include "cuda/driver/kernels.cuh"
