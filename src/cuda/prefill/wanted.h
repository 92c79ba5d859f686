/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts that tests want in place of the planners'. */
#ifndef GDN_CUDA_PREFILL_WANTED_H
#define GDN_CUDA_PREFILL_WANTED_H

#include "core/ctx.h"
#include "cuda/prefill/sm90/plan_segments.h"

struct gdn_cuda_wanted {
    struct gdn_cuda_cut cut; /* segments and units; else first is 0 */
    int64_t window_chunks;   /* of a window of gradients; -n: n chunks of a window through the
                                batch; else 0 */
    int64_t segments;        /* of a sequence, if one kernel walks in reverse and makes
                                gradients; -1: two kernels; 0: any */
    int64_t open_chunks;     /* of a block that has chunks of several sequences; else 0 */
};

/* Returns what is wanted of a context's calls: nothing. Tests define this function too, and the
 * linker takes theirs (tests/harness/ring2_device.c). */
const struct gdn_cuda_wanted *gdn_cuda_wanted(const gdn_ctx *ctx);

#endif
