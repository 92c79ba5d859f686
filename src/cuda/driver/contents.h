/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GDN_CTX_CHECK_CONTENTS: the index arrays of a call on a device, copied to the host and judged by
 * the checks of the CPU, before anything is enqueued.
 */
#ifndef GDN_CUDA_CONTENTS_H
#define GDN_CUDA_CONTENTS_H

#include "batch/plan.h"

/* The arrays of a batch lie one after the other. */
enum {
    GDN_BATCH_ARRAYS = (sizeof(gdn_batch) - offsetof(gdn_batch, cu_seqlens)) / sizeof(gdn_tensor)
};

/*
 * Waits for the stream, copies n arrays of indices to the host and makes their views point there.
 * *memory: 64-aligned, `extra` bytes for the caller and then the copies, to be given to
 * gdn_cuda_contents_close(). *memory is NULL, and nothing was done, if the context does not check
 * contents or a graph is being captured from the stream.
 */
gdn_status gdn_cuda_contents_open(gdn_ctx *ctx, void *stream, gdn_tensor *const *arrays, int n,
                                  size_t extra, void **memory);
void gdn_cuda_contents_close(gdn_ctx *ctx, void *memory);

/* Opens, checks and closes the contents of a call whose only arrays of indices are those of its
 * batch. */
gdn_status gdn_cuda_check_batch(gdn_ctx *ctx, const struct gdn_plan *plan,
                                const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools,
                                void *stream);

#endif
