/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters of two blocks, one for every 128 columns of a sequence and state head; keys up to
 * 256. */
enum { HOPPER_GROUPS = 2, HOPPER_BLOCKS = 2, HOPPER_OUTPUTS = 1, HOPPER_CUTS = 0, HOPPER_KEYS = 4 };
enum { HOPPER_EACH = 0 };
enum { HOPPER_IO_REGISTERS = 24, HOPPER_STATE_REGISTERS = 208, HOPPER_SOLVE_REGISTERS = 72 };
#include "cuda/prefill/sm90/run.cuh"

#define GDN_IMAGE_prefill_sm90_k256 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_k256(threads, shared, io) \
    HOPPER_KERNEL(gdn_prefill_sm90_k256, threads, io)
#include "cuda/driver/kernels.cuh"
