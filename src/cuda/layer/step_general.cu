/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step in one launch, for states of each layout and dtype. */
#include "cuda/layer/step_general.cuh"

#define GDN_KERNEL_step_general(threads, shared, layout, dtype) \
    STEP_KERNEL(threads, gdn_step_general_##layout##_##dtype, step_raw, warp_##layout, dtype)
#include "cuda/driver/kernels.cuh"
