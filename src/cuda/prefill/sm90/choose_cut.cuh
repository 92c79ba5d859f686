/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut of a packed batch, by what cu_seqlens says. Every block of a call finds the same one:
 * lanes try one number of segments each, by the model of plan_model.h.
 */
#ifndef GDN_CUDA_PREFILL_CHOOSE_CUT_CUH
#define GDN_CUDA_PREFILL_CHOOSE_CUT_CUH

#include "cuda/prefill/sm90/plan_model.h"
#include "cuda/prefill/sm90/units.cuh"

/* Returns the sum of the lanes' numbers, and the largest of them. */
GDN_DEVICE long long sum_lanes(long long x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}
GDN_DEVICE long long most_of_lanes(long long x)
{
    for (int step = 16; step; step /= 2) {
        const long long other = __shfl_xor_sync(0xffffffff, x, step);
        if (other > x) x = other;
    }
    return x;
}
GDN_DEVICE float least_of_lanes(float x)
{
    for (int step = 16; step; step /= 2) x = fminf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}

/* By a warp. */
GDN_DEVICE struct gdn_plan_long find_long_ones(const struct gdn_cu_prefill_hopper &a)
{
    const struct gdn_cu_batch &b     = a.rule.batch;
    struct gdn_plan_long       found = {};
#pragma unroll 4
    for (int64_t row = threadIdx.x % 32; row < b.B; row += 32) {
        const int64_t mine = valid_tokens(b, row);
        if (mine <= a.most_short) continue;
        found.n++;
        found.tokens += mine;
        if (mine > found.longest) found.longest = mine;
    }
    found.n       = sum_lanes(found.n);
    found.tokens  = sum_lanes(found.tokens);
    found.longest = most_of_lanes(found.longest);
    return found;
}

/* Returns the cut of the batch. By a warp. Not inlined: its registers are not those of the loops. */
static __device__ __noinline__ struct gdn_cu_segments
choose_cut(const struct gdn_cu_prefill_hopper &a)
{
    struct gdn_cu_segments      cut   = a.cut;
    if (!a.win) return cut;
    const struct gdn_plan_long  found = find_long_ones(a);
    const struct gdn_plan_batch p     = plan_packed(&a, &found);
    const struct gdn_plan_tried mine  = plan_try(&p, 2 + (int)threadIdx.x % GDN_PLAN_TRIED);
    const float                 all   = least_of_lanes(mine.least.all);
    const float                 least = least_of_lanes(mine.least.mean);
    const unsigned              best  = __ballot_sync(0xffffffff, mine.least.mean == least);
    const int                   lane  = __ffs((int)best) - 1;
    cut.whole                         = INT64_MAX;
    cut.first = cut.start = (int64_t)__shfl_sync(0xffffffff, mine.cut.first, lane) * 64;
    cut.each              = (int64_t)__shfl_sync(0xffffffff, mine.cut.each, lane) * 64;
    if (all < plan_whole(&p, false) / 100 * (float)a.win) cut.whole = max(cut.first, a.most_short);
    return cut;
}

#endif
