/* SPDX-License-Identifier: Apache-2.0 */
/* The start of every thread of a kernel of kernel.cuh, and the roles of warpgroups. */
#ifndef GDN_CUDA_PREFILL_HOPPER_RUN_CUH
#define GDN_CUDA_PREFILL_HOPPER_RUN_CUH

#include "cuda/prefill/sm90/warps_io.cuh"
#include "cuda/prefill/sm90/warps_solve.cuh"
#include "cuda/prefill/sm90/state_plain.cuh"
#include "cuda/prefill/sm90/warps_summary.cuh"
#include "cuda/prefill/sm90/ranges.cuh"

/* Returns how many arrivals complete a barrier. The warps of the block's state free a place; the
 * warps of both blocks free T and P. The warps that make T and P announce them. The other
 * block's T arrives as one copy. The loading warp and the gates' warp announce keys. Of two halves,
 * one uses T, the other P and the output. Every other barrier has one arrival. */
GDN_DEVICE int arrivals_of(const struct hopper_block &b, int barrier)
{
    const int state = 4 * HOPPER_GROUPS, with_columns = 4 * HOPPER_WIDTH;
    if (barrier < HOPPER_DONE) return 2;
    if (barrier < HOPPER_LANDED) return state;
    if (barrier < HOPPER_T_FULL) return 1;
    if (barrier < HOPPER_T_FREE)
        return b.is_own(barrier - HOPPER_T_FULL) ? 4 : HOPPER_WITH_P ? 5 : 1;
    if (barrier < HOPPER_Q_FULL) return with_columns * HOPPER_BLOCKS;
    if (barrier < HOPPER_Q_FREE) return 1;
    if (barrier < HOPPER_V_FULL) return HOPPER_DEPTH == 2 ? state + 4 : state;
    if (barrier < HOPPER_V_FREE) return 1;
    if (barrier < HOPPER_OUT_FULL) return HOPPER_OUTPUTS ? 1 : state;
    if (barrier < HOPPER_P_FULL) return with_columns;
    if (barrier < HOPPER_P_FREE) return 4;
    return barrier < HOPPER_TAIL ? with_columns * HOPPER_BLOCKS : 1;
}

/* Makes every third barrier. One lane makes them all, with constants. If each lane made one,
 * they would run one after the other, 90 cycles apart. */
template <int first> GDN_DEVICE void init_barriers(const struct hopper_block &b)
{
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = first; i < HOPPER_N_BARRIERS; i += 3)
            mbarrier_init(b.barrier(i), arrivals_of(b, i));
        mbarrier_init_fence();
    }
}

/* Writes zeros to the block's columns of tokens [from, to), counted as row_at() does. */
GDN_DEVICE void zero_outside(const struct hopper_block &b, int64_t from, int64_t to)
{
    const int first = b.column(), n = min(64 * HOPPER_WIDTH, b.r.V - first);
    for (int64_t t = from + threadIdx.x / 32; t < to; t += blockDim.x / 32) {
        uint16_t *row = (uint16_t *)row_at(b.r.out, b.s(), t, b.head) + first;
        for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = 0;
    }
}

/* Finds the sequences and columns of the block. One warp calls it. */
GDN_DEVICE void find_part(const struct hopper_block &b)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    struct gdn_cu_segments cut = b.a.cut;
    struct gdn_cu_seq s = {};
    struct gdn_cu_checkpoints list = { 0, 0 };
    const int64_t number = blockIdx.x / HOPPER_BLOCKS / count_slices(b.r) / b.r.H;
    int64_t row = number, unit = number, i = cut.later ? number : 0, split = b.a.split;
    if (HOPPER_CUTS && cut.later) {
        cut = cut_of_call(b.a, split);
        row = find_unit(batch, cut, i);
        unit -= i++;
    } else if (HOPPER_CUTS && b.a.which == GDN_SEQUENCES_LONG)
        row = find_long(b.a, number);
    if (row < batch.B)
        s = read_sequence(batch, row);
    else if (!HOPPER_CUTS || (!cut.later && b.a.which != GDN_SEQUENCES_LONG))
        s = read_rest(batch);
    if (HOPPER_CUTS && !cut.later && s.n_valid > split) {
        cut = cut_of_call(b.a, split);
        unit = units_before(batch, cut, row);
        if (b.a.which != GDN_SEQUENCES_ALL &&
            (b.a.which == GDN_SEQUENCES_LONG) != (s.n_valid > split))
            s.n_valid = s.n_tokens = 0;
    }
    if (HOPPER_OUTPUTS) list = read_checkpoints(batch, s);
    struct sequence_segment segment = { 0, -1, -1, list.first, true };
    if (HOPPER_CUTS) segment = cut_segment(s, cut, i, unit);
    segment.checkpoint =
        HOPPER_CUTS && i ? checkpoint_after(batch, list, segment.start) : list.first;
    if (!HOPPER_OUTPUTS && segment.last) s.n_valid = s.n_tokens = 0;
    if (threadIdx.x % 32 != 0) return;
    b.common().s = s;
    b.common().segment = segment;
    b.common().checkpoints = list;
}

/* Finds the chunks of the block, if any of them has tokens (HOPPER_EACH). One warp calls it. */
GDN_DEVICE void find_chunks(const struct hopper_block &b)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    const int lane = threadIdx.x % 32;
    const int64_t first = (int64_t)(blockIdx.x / b.r.H) * b.a.each;
    const int64_t n = clamp64(batch.B - first, 0, b.a.each);
    bool any = false;
    for (int64_t i = lane; i < n; i += 32) any |= load_index(batch.token_count, first + i) > 0;
    any = in_warp(any);
    if (lane != 0) return;
    struct gdn_cu_seq s = {};
    s.row = first;
    s.first = 64 * first;
    s.n_tokens = s.n_valid = any ? 64 * n : 0;
    s.read = s.write = -1;
    b.common().s = s;
    b.common().segment = { 0, -1, -1, 0, true };
    b.common().checkpoints = { 0, 0 };
}

/* Return true if the block has nothing to do, from the start; and once what is forgotten is left
 * out. Both blocks of a cluster do the same. */
GDN_DEVICE bool is_absent(const struct hopper_block &b)
{
    return HOPPER_OUTPUTS || !b.a.summary ? b.s().n_tokens == 0 : is_no_range(b);
}
GDN_DEVICE bool is_forgotten(struct hopper_block &b)
{
    if (HOPPER_OUTPUTS || !b.a.early_stop) return false;
    if (b.a.summary) return skip_range(b);
    skip_chunks(b, find_tail(b));
    return false;
}

/* Prefetches the tensor maps, so that the first copies do not wait for these. One warp calls it. */
GDN_DEVICE void prefetch_maps(const struct hopper_block &b)
{
    const uint32_t lane = threadIdx.x % 32;
    const bool out = HOPPER_OUTPUTS && b.r.out.data;
    if (lane == 0) prefetch_map(&b.a.k);
    if (lane == 1) prefetch_map(&b.a.v);
    if (lane == 2 && out) prefetch_map(&b.a.q);
    if (lane == 3 && out) prefetch_map(&b.a.out);
}

/* Writes zeros above the diagonal of T and P, where no role writes. All warps but the first four
 * call it. */
GDN_DEVICE void zero_squares(void)
{
    for (int i = threadIdx.x - 128; i < (HOPPER_MAIL - HOPPER_T) / 16; i += blockDim.x - 128)
        store_shared(hopper_address() + HOPPER_T + 16 * i, 0, 0, 0, 0);
    async_fence();
}

/* Fills in lengths of keys, which stay if no role writes them. The same warps call it. */
template <int io> GDN_DEVICE void fill_lengths(const struct hopper_block &b)
{
    if (io != GDN_F16 && b.r.norm != GDN_NO_NORM) return;
    for (int i = threadIdx.x - 128; i < 64 * HOPPER_GATES_RING; i += blockDim.x - 128)
        b.gates(i / 64).k_scale[i % 64] = 1;
}

/* Prepares the block. One warp reads the batch, which everything else waits for. The other warps
 * set up barriers, squares and lengths meanwhile. */
template <int io> GDN_DEVICE void prepare(struct hopper_block &b)
{
    switch (threadIdx.x / 32) {
    case 0:
        if (HOPPER_EACH)
            find_chunks(b);
        else if (!HOPPER_OUTPUTS && b.a.summary)
            find_range(b);
        else
            find_part(b);
        break;
    case 1: init_barriers<0>(b); break;
    case 2: init_barriers<1>(b); break;
    case 3: init_barriers<2>(b), prefetch_maps(b); break;
    default: zero_squares(), fill_lengths<io>(b);
    }
    __syncthreads();
    b.n_chunks = (int)((b.s().n_valid + 63) / 64);
}

/* Kernels of a call begin before the kernels ahead of them end, but must end after them. The last
 * block waits for that, because no other block waits for its place. */
GDN_DEVICE void end_after_others(void)
{
    if (HOPPER_CUTS && blockIdx.x + HOPPER_BLOCKS >= gridDim.x) griddepcontrol_wait();
}

/* Sets the registers of a thread, which begins with those of the launch bounds. */
template <int n> GDN_DEVICE void take_registers(void)
{
    if constexpr (n > 65536 / (128 * (1 + HOPPER_GROUPS + HOPPER_SOLVERS)))
        raise_registers<n>();
    else
        lower_registers<n>();
}

/* Waits until the other block has made its barriers. Warps that signal nothing to the other
 * block do not call it. */
GDN_DEVICE void meet_other(void)
{
    if (HOPPER_BLOCKS == 2) cluster_wait();
}

/* Returns true if another kernel of the call follows. With a plan, segments behind first ones
 * take two kernels: clusters, then wide blocks. Sequences of one token are the last kernel. */
GDN_DEVICE bool leads_others(const struct gdn_cu_prefill_sm90 &a)
{
    if (a.singles) return true;
    if (!HOPPER_CUTS || (!a.cut.states && a.which != GDN_SEQUENCES_LONG)) return false;
    return !HOPPER_OUTPUTS || !a.cut.later || (a.plan && HOPPER_BLOCKS == 2);
}

/* Returns true if the plan has no such unit, or has them in another form. */
GDN_DEVICE bool is_not_planned(const struct gdn_cu_prefill_sm90 &a, int64_t unit)
{
    bool wide;
    const int64_t n = wait_for_plan(a, wide);
    return unit >= n || (HOPPER_OUTPUTS && wide != (HOPPER_BLOCKS == 1));
}

/* Returns true if the block's sequence has one token, and decode takes it. All threads call it
 * first, because most blocks of a batch may end here. */
GDN_DEVICE bool is_left_to_decode(const struct gdn_cu_prefill_sm90 &a, int64_t number)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    if (!a.singles || a.cut.later || a.which == GDN_SEQUENCES_LONG || number >= b.B) return false;
    struct gdn_cu_seq s = {};
    s.row = number;
    read_range(b, s);
    return s.n_tokens == 1;
}

template <int io> GDN_DEVICE void run_hopper(const struct gdn_cu_prefill_sm90 &a)
{
    const uint32_t lane = opaque(threadIdx.x % 32);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0), group = warp / 4;
    const unsigned cluster = blockIdx.x / HOPPER_BLOCKS, n_slices = count_slices(a.rule);
    struct hopper_block b = {
        a, a.rule, cluster_rank(), (int)(cluster % n_slices), (int)(cluster / n_slices % a.rule.H),
        0, false
    };
    if (leads_others(a)) griddepcontrol_launch_dependents();
    if (HOPPER_OUTPUTS && is_left_to_decode(a, cluster / n_slices / a.rule.H)) {
        end_after_others();
        return;
    }
    if (HOPPER_CUTS && a.cut.later && a.plan && is_not_planned(a, cluster / n_slices / a.rule.H)) {
        end_after_others();
        return;
    }
    prepare<io>(b);
    if (is_absent(b) || is_forgotten(b)) {
        end_after_others();
        return;
    }
    if (HOPPER_OUTPUTS && b.r.out.data && !b.s().keep_out && b.s().n_valid < b.s().n_tokens) {
        zero_outside(b, -b.s().n_before, 0);
        zero_outside(b, b.s().n_valid, b.s().n_tokens - b.s().n_before);
    }
    if (HOPPER_BLOCKS == 2) cluster_arrive();
    if (group == 0) {
        take_registers<HOPPER_IO_REGISTERS>();
        run_io<io>(b, warp, lane);
        __syncwarp();
        meet_other();
    } else if (group <= HOPPER_GROUPS) {
        take_registers<HOPPER_STATE_REGISTERS>();
        meet_other();
        if constexpr (HOPPER_EACH)
            run_each_state<io>(b, warp - 4, lane);
        else if constexpr (HOPPER_OUTPUTS)
            run_state_warps<io>(b, warp - 4, lane);
        else
            run_keys_warps<io>(b, warp - 4, lane);
    } else {
        take_registers<HOPPER_SOLVE_REGISTERS>();
        meet_other();
        run_solve<io>(b, HOPPER_SOLVERS == 1 ? 0 : group - HOPPER_GROUPS - 1, warp % 4, lane);
    }
    __syncwarp();
    if (HOPPER_BLOCKS == 2) cluster_sync(); /* the other block may still signal here, or copy */
    end_after_others();
}

/* Defines a kernel. The including file names it for its image (kernels.cuh). */
#define HOPPER_KERNEL(name, threads, io)                                                           \
    extern "C" __global__ void __cluster_dims__(HOPPER_BLOCKS, 1, 1) __launch_bounds__(threads, 1) \
        name##_##io(const __grid_constant__ struct gdn_cu_prefill_sm90 a)                          \
    {                                                                                              \
        run_hopper<GDN_##io>(a);                                                                   \
    }

#endif
