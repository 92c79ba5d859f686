/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step of one token for each sequence, on states whose rows are k. */
#include "cuda/layer/step_general.cuh"

#define GDN_IMAGE_step_pairs GDN_THIS_IMAGE
#define GDN_KERNEL_step_pairs(threads, shared, layout, dtype) \
    STEP_KERNEL(threads, gdn_step_pairs_##layout##_##dtype, step_one, warp_##layout, dtype)
#include "cuda/driver/kernels.cuh"
