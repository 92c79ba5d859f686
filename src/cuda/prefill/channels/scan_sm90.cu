/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/prefill/channels/scan_sm90.cuh"

#define GDN_IMAGE_prefill_channels_scan_sm90 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_channels_scan_sm90(threads, shared, io, columns) \
    extern "C" __global__ void __launch_bounds__(threads, 64 / columns + 1) \
        gdn_prefill_channels_scan_sm90_##io##_##columns(                    \
            const __grid_constant__ struct gdn_cu_prefill_channels a)       \
    {                                                                       \
        run_scan_sm90<GDN_##io, columns / 64>(a);                           \
    }
#include "cuda/driver/kernels.cuh"
