/* SPDX-License-Identifier: Apache-2.0 */
/* A block for a state head of several sequences of one chunk. */
enum { HOPPER_GROUPS = 2, HOPPER_BLOCKS = 1, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 0, HOPPER_KEYS = 2 };
enum { HOPPER_EACH = 1 };
enum { HOPPER_IO_REGISTERS = 24, HOPPER_STATE_REGISTERS = 192, HOPPER_SOLVE_REGISTERS = 104 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_each GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_each(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_each, threads, io)
#include "cuda/driver/kernels.cuh"
