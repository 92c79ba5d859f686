/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters of two blocks, one for every 128 columns of a sequence and state head; keys up to 256. */
enum { HOPPER_GROUPS = 2, HOPPER_BLOCKS = 2, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 0, HOPPER_KEYS = 4 };
enum { HOPPER_IO_REGISTERS = 24, HOPPER_STATE_REGISTERS = 208, HOPPER_SOLVE_REGISTERS = 72 };
#include "prefill_hopper_run.cuh"

#define GDN_IMAGE_prefill_hopper_deep GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_hopper_deep(threads, shared, io)                                    \
    extern "C" __global__ void __cluster_dims__(HOPPER_BLOCKS, 1, 1)                          \
        __launch_bounds__(threads, 1)                                                          \
        gdn_prefill_hopper_deep_##io(const __grid_constant__ struct gdn_cu_prefill_hopper a)   \
    {                                                                                         \
        run_hopper<GDN_##io>(a);                                                               \
    }
#include "kernels.cuh"
