/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster of two blocks per sequence and state head. */
enum { HOPPER_GROUPS = 1, HOPPER_BLOCKS = 2, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 0, HOPPER_KEYS = 2 };
enum { HOPPER_EACH = 0 };
enum { HOPPER_IO_REGISTERS = 56, HOPPER_STATE_REGISTERS = 232, HOPPER_SOLVE_REGISTERS = 152 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_cluster GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_cluster(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_cluster, threads, io)
#include "cuda/driver/kernels.cuh"
