/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the cut of a packed batch, from cu_seqlens. One block tries all numbers of segments by
 * the model of plan_model.h. A lane has one number of segments, a warp one number of rounds of
 * summaries.
 *
 * Blocks of later kernels begin meanwhile, but none before `units` is 0. They read `units` until
 * the plan is there, and only where they need it (segments.cuh).
 */
#ifndef GDN_CUDA_PREFILL_CHOOSE_CUT_CUH
#define GDN_CUDA_PREFILL_CHOOSE_CUT_CUH

#include "cuda/prefill/sm90/units.cuh"

#include "cuda/prefill/sm90/plan_model.h" /* needs GDN_DEVICE */

/* Return the sum of the lanes' numbers, and the largest of them. */
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

/* Returns the best of the lanes' cuts. */
GDN_DEVICE struct gdn_plan_tried best_of_lanes(struct gdn_plan_tried x)
{
    for (int step = 16; step; step /= 2) {
        struct gdn_plan_tried other;
        other.cut.first = __shfl_xor_sync(0xffffffff, x.cut.first, step);
        other.cut.each = __shfl_xor_sync(0xffffffff, x.cut.each, step);
        other.cut.s = __shfl_xor_sync(0xffffffff, x.cut.s, step);
        other.times.all = __shfl_xor_sync(0xffffffff, x.times.all, step);
        other.times.mean = __shfl_xor_sync(0xffffffff, x.times.mean, step);
        x = threadIdx.x & step ? plan_better(&other, &x) : plan_better(&x, &other);
    }
    return x;
}

/* Finds the long sequences. A warp calls it. */
GDN_DEVICE struct gdn_plan_long find_long_ones(const struct gdn_cu_prefill_sm90 &a)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    struct gdn_plan_long found = {};
#pragma unroll 4
    for (int64_t row = threadIdx.x % 32; row < b.B; row += 32)
        plan_add(&found, &a, valid_tokens(b, row));
    found.n = sum_lanes(found.n);
    found.tokens = sum_lanes(found.tokens);
    found.longest = most_of_lanes(found.longest);
    found.apart = sum_lanes(found.apart);
    found.apart_tokens = sum_lanes(found.apart_tokens);
    found.short_one = most_of_lanes(found.short_one);
    found.singles = sum_lanes(found.singles);
    return found;
}

/* Writes the plan of the best cut, or of no cut if it gains too little. A warp calls it. */
GDN_DEVICE void write_plan(const struct gdn_cu_prefill_sm90 &a, const struct gdn_plan_batch &p,
                           const struct gdn_plan_tried &best)
{
    const float n = plan_units(&p, &best.cut), each = best.cut.each;
    const bool wide = p.small || plan_rounds(&p, true, n, each) < plan_rounds(&p, false, n, each);
    const struct gdn_cu_segments cut = plan_chosen(&a, &p, &best);
    const bool apart = cut.whole < INT64_MAX || plan_is_apart(&p);
    const int64_t units = units_before(a.rule.batch, cut, a.rule.batch.B);
    if (threadIdx.x != 0) return;
    a.plan->whole = cut.whole;
    a.plan->first = cut.first;
    a.plan->each = cut.each;
    a.plan->split = apart ? a.split : INT64_MAX;
    st_release(&a.plan->units, 2 * (uint64_t)units + wide + 2);
}

GDN_DEVICE void run_plan(const struct gdn_cu_prefill_sm90 &a)
{
    __shared__ struct gdn_plan_tried sh[GDN_PLAN_ROUNDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        st_release(&a.plan->units, 0);
        while (ld_acquire(&a.plan->units)) continue; /* waits until it is in memory */
    }
    __syncthreads();
    griddepcontrol_launch_dependents();
    const struct gdn_plan_long found = find_long_ones(a);
    const struct gdn_plan_batch p = plan_packed(&a, &found);
    const struct gdn_plan_tried tried = plan_try(&p, 2 + lane % GDN_PLAN_TRIED, 1 + warp);
    sh[warp] = best_of_lanes(tried);
    __syncthreads();
    struct gdn_plan_tried best = sh[0];
    for (int i = 1; i < GDN_PLAN_ROUNDS; i++) best = plan_better(&best, &sh[i]);
    if (warp == 0) write_plan(a, p, best);
}

#endif
