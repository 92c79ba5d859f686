/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels between segments: states from one segment to the next (combine.cuh), and plans. */
#include "cuda/prefill/combine.cuh"
#include "cuda/prefill/sm90/choose_cut.cuh"
#include "cuda/prefill/sm90/join.cuh"
#include "cuda/prefill/sm90/left.cuh"

/* Sums segments. Blocks are numbered by columns, then heads, then sequences of several segments.
 * One block waits for earlier kernels, so the kernel ends after them. */
GDN_DEVICE void run_states(const struct gdn_cu_prefill_sm90 &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int slices = r.V / COLUMNS, lane = threadIdx.x % 32;
    int64_t first, row;
    griddepcontrol_launch_dependents();
    const int64_t of = blockIdx.x / slices / r.H; /* the number of the sequence among those of
                                                     several segments */
    int64_t n = 0;
    int64_t split;
    bool wide;
    if (!a.plan || of < wait_for_plan(a, wide))
        n = find_units(r.batch, cut_of_call(a, split), of, first, row);
    if (n > 1 || blockIdx.x + 1 == gridDim.x) griddepcontrol_wait();
    if (n < 2 || first + n > a.cut.units) return;
    const struct combine_block b = { r,
                                     a.cut,
                                     first,
                                     (int)n - 1,
                                     (int)(blockIdx.x / slices % r.H),
                                     (int)(blockIdx.x % slices) * COLUMNS,
                                     (int)threadIdx.x / 32,
                                     lane };
    combine(b);
}

#define GDN_IMAGE_prefill_sm90_segments GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_sm90_segments(threads, shared, form)                                \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                   \
        gdn_prefill_sm90_segments_##form(const __grid_constant__ struct gdn_cu_prefill_sm90 a) \
    {                                                                                          \
        run_##form(a);                                                                         \
    }
#include "cuda/driver/kernels.cuh"
