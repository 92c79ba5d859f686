/* SPDX-License-Identifier: Apache-2.0 */
/* A block per sequence and state head. */
enum { HOPPER_GROUPS = 2, HOPPER_BLOCKS = 1, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 1, HOPPER_KEYS = 2 };
enum { HOPPER_EACH = 0 };
enum { HOPPER_IO_REGISTERS = 24, HOPPER_STATE_REGISTERS = 192, HOPPER_SOLVE_REGISTERS = 104 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_wide GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_wide(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_wide, threads, io)
#include "cuda/driver/kernels.cuh"
