/* SPDX-License-Identifier: Apache-2.0 */
/* How the kernels of prefill/portable divide a call into blocks, stages and segments. */
#ifndef GDN_CUDA_PREFILL_PORTABLE_PLAN_H
#define GDN_CUDA_PREFILL_PORTABLE_PLAN_H

#include "cuda/driver/launch.h"
#include "cuda/prefill/plan.h"
#include "cuda/prefill/portable/args.h"

/* Blocks of `scan`: groups of warps with 16 columns each, and stages of shared memory. shared 0:
 * there is no room for a block. */
struct gdn_portable_blocks {
    int n_state, n_stages, n_queries;
    size_t shared;
};

struct gdn_portable_cut gdn_cuda_portable_cut(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                              struct gdn_cuda_cut_options options);
/* Finds the blocks. n_columns: of a head of one sequence or segment. n: the number of these. */
struct gdn_portable_blocks gdn_cuda_portable_blocks(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                                    int64_t n, int n_columns);

#endif
