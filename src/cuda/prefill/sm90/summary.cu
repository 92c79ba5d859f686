/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster of two blocks per segment and state head: U and M, see segments.cuh. */
enum { HOPPER_GROUPS = 2, HOPPER_BLOCKS = 2, HOPPER_OUTPUTS = 0, HOPPER_CUTS = 1, HOPPER_KEYS = 2 };
enum { HOPPER_EACH = 0 };
enum { HOPPER_IO_REGISTERS = 56, HOPPER_STATE_REGISTERS = 168, HOPPER_SOLVE_REGISTERS = 120 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_summary GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_summary(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_summary, threads, io)
#include "cuda/driver/kernels.cuh"
