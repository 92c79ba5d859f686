/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_backward, in float32 (formulas: docs/design/math.md, section 13). A sequence is cut
 * into windows of a few chunks of 64 tokens. Of each window, from the last to the first:
 *
 *     load       q and k, normalised                   rows.cuh
 *     forward    states and u of its chunks            walk.cuh
 *     reverse    gradients of states, and Z            walk.cuh
 *     chunk      gradients of each state head          chunk.cuh
 *     store      sums over heads that share a row      rows.cuh
 *
 * load and forward go through all windows first, for the states between them. In the end
 *
 *     rest       zeros for tokens that do not count    rows.cuh
 *     sums       dA_log and ddt_bias                   gates.cuh
 *
 * Chunks begin at the first token of a sequence and windows at a chunk, so what a sequence gets
 * does not depend on others. No sum depends on the order in which blocks run.
 *
 *     plan       windows through the batch, for tensor cores    plan.cuh
 */
#include "cuda/backward/general/chunk.cuh"
#include "cuda/backward/plan.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/backward/walk.cuh"

#define GDN_IMAGE_backward_general GDN_THIS_IMAGE
#define GDN_KERNEL_backward_general(threads, shared, what)                            \
    extern "C" __global__ void __launch_bounds__(threads, 2)                          \
        gdn_backward_general_##what(const __grid_constant__ struct gdn_cu_backward a) \
    {                                                                                 \
        backward_##what(a);                                                           \
    }
#include "cuda/driver/kernels.cuh"
