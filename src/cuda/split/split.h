/* SPDX-License-Identifier: Apache-2.0 */
/* GDN_SPLIT_INVARIANT with a record. */
#ifndef GDN_CUDA_SPLIT_H
#define GDN_CUDA_SPLIT_H

#include "calls/record.h"
#include "calls/rule_call.h"
#include "cuda/split/args.h"

/* Plan and run gdn_prefill or gdn_decode. */
gdn_status gdn_cuda_split_plan(gdn_ctx *ctx, struct gdn_rule_call *call);
gdn_status gdn_cuda_split_run(gdn_ctx *ctx, const struct gdn_rule_call *call, void *memory);

/* The same for gdn_record_fold: whole chunks of records go into the states. */
gdn_status gdn_cuda_split_plan_fold(gdn_ctx *ctx, struct gdn_fold_call *call);
gdn_status gdn_cuda_split_run_fold(gdn_ctx *ctx, const struct gdn_fold_call *call, void *memory);

#endif
