/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/prefill/channels/scan_few_sm90.cuh"
#include "cuda/prefill/channels/scan_sm90.cuh"

#define GDN_IMAGE_prefill_channels_scan_sm90 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_channels_scan_sm90(threads, shared, io)                                \
    extern "C" __global__ void __launch_bounds__(threads, 1) gdn_prefill_channels_scan_sm90_##io( \
        const __grid_constant__ struct gdn_cu_prefill_channels a)                                 \
    {                                                                                             \
        run_scan_sm90<GDN_##io>(a);                                                               \
    }
#define GDN_KERNEL_prefill_channels_scan_few_sm90(threads, shared, io) \
    extern "C" __global__ void __launch_bounds__(threads, 2)           \
        gdn_prefill_channels_scan_few_sm90_##io(                       \
            const __grid_constant__ struct gdn_cu_prefill_channels a)  \
    {                                                                  \
        run_scan_few_sm90<GDN_##io>(a);                                \
    }
#include "cuda/driver/kernels.cuh"
