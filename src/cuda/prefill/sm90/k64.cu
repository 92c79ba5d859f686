/* SPDX-License-Identifier: Apache-2.0 */
/* A block per sequence and state head of up to 64 keys and columns. */
enum { HOPPER_GROUPS = 1, HOPPER_BLOCKS = 1, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 1, HOPPER_KEYS = 1 };
enum { HOPPER_EACH = 0 };
enum { HOPPER_IO_REGISTERS = 56, HOPPER_STATE_REGISTERS = 184, HOPPER_SOLVE_REGISTERS = 136 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_k64 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_k64(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_k64, threads, io)
#include "cuda/driver/kernels.cuh"
