/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op tests on a GPU, with GDN_TEST_BACKEND=cuda: the tests stay as they are. Their guarded
 * buffers are mapped for the device, which reads and writes them across the bus, and every launch
 * ends before it returns (CUDA_LAUNCH_BLOCKING). What lies outside a buffer's pages faults there
 * too, as an error of the call.
 */
#ifndef RING2_DEVICE_H
#define RING2_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "gdn.h"

/* Returns true if the contexts of ring2_ctx() compute on a GPU. */
bool ring2_on_device(void);

/* Returns true if the device is a Hopper that runs Hopper's kernels. */
bool ring2_on_hopper(void);

/* A context on a GPU, which cuts sequences into segments of so many tokens (first 0: as the planner
 * wants them); NULL, and the test is skipped: no device. */
gdn_ctx *ring2_segments(int64_t first, int64_t each);

/* The same on Hopper; NULL, too: another GPU. */
gdn_ctx *ring2_hopper(int64_t first, int64_t each);

/* The same, where sequences of up to `whole` tokens stay whole, and the others have launches of
 * their own. win: 0, or a kernel finds the sizes of segments, which take at most so many hundredths
 * of the time of whole sequences, by the model; first and each only say how much room there is. */
gdn_ctx *ring2_hopper_apart(int64_t whole, int win, int64_t first, int64_t each);

/* Lets ring2_ctx(1) take gradients in windows of so many chunks of each sequence, -n: of n chunks
 * through the batch, if it is packed or has shorter sequences, 0: as it would. Returns false if
 * there is no device. Only tensor cores have such windows. */
bool ring2_windows(int64_t chunks);

/* Lets ring2_ctx(1) cut what such a window has of a sequence into n segments, where one kernel
 * walks in reverse and makes gradients; -1: two kernels do; 0: as it would. */
void ring2_gradient_segments(int64_t n);

/* Lets blocks of ring2_ctx(1) have so many open chunks with GDN_SPLIT_INVARIANT, where Hopper's
 * kernels take them; 0: as many as it would. */
void ring2_open_chunks(int64_t n);

/* Maps whole pages, and back. */
void ring2_device_map(void *pages, size_t bytes);
void ring2_device_unmap(void *pages);

#endif
