/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/prefill/general.cuh"

#define GDN_KERNEL_prefill_general_bf16(threads, shared, deep)                           \
    extern "C" __global__ void __launch_bounds__(threads, 1)                             \
        gdn_prefill_general_bf16_##deep(const __grid_constant__ struct gdn_cu_prefill a) \
    {                                                                                    \
        run_prefill<GDN_BF16, deep>(a);                                                  \
    }
#include "cuda/driver/kernels.cuh"
