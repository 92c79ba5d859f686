/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step of one token for each sequence, on states whose rows are v. */
#include "cuda/layer/step_rows.cuh"

#define GDN_IMAGE_step_rows GDN_THIS_IMAGE
#define GDN_KERNEL_step_rows(threads, shared, dtype, io) \
    STEP_ROWS_KERNEL(threads, gdn_step_rows_##dtype##_##io, dtype, io)
#include "cuda/driver/kernels.cuh"
