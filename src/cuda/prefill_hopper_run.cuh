/* SPDX-License-Identifier: Apache-2.0 */
/* What every thread of a kernel of prefill_hopper.cuh does at first, and which warpgroup does what. */
#ifndef GDN_CUDA_PREFILL_HOPPER_RUN_CUH
#define GDN_CUDA_PREFILL_HOPPER_RUN_CUH

#include "prefill_hopper_io.cuh"
#include "prefill_hopper_solve.cuh"
#include "prefill_hopper_state.cuh"

GDN_DEVICE void init_barriers(const struct hopper_block &b)
{
    const struct {
        int first, arrivals;
    } rings[] = {
        { HOPPER_K_FULL, 1 },
        { HOPPER_K_FREE, 4 * HOPPER_GROUPS },
        { HOPPER_GATES_FULL, 1 },
        { HOPPER_GATES_FREE, 4 * HOPPER_GROUPS },
        { HOPPER_V_FULL, 1 },
        { HOPPER_V_FREE, 1 },
        { HOPPER_OUT_FULL, 4 * HOPPER_GROUPS },
        { HOPPER_T_FREE, 8 }, /* warps of the state of both blocks */
        { HOPPER_Q_FULL, 1 },
        { HOPPER_Q_FREE, 4 * HOPPER_GROUPS },
        { HOPPER_P_FULL, 4 },
        { HOPPER_P_FREE, 8 },
    };
    for (int k = 0; k < (int)(sizeof rings / sizeof *rings); k++)
        for (int i = 0; i < (int)b.ring(rings[k].first); i++)
            mbarrier_init(b.barrier(rings[k].first + i), rings[k].arrivals);
    /* The other block's T arrives as one copy. */
    for (int i = 0; i < HOPPER_MADE; i++)
        mbarrier_init(b.barrier(HOPPER_T_FULL + i), b.is_own(i) ? 4 : 1);
    mbarrier_init(b.barrier(HOPPER_TAIL), 1);
    mbarrier_init_fence();
}

/* Zeros for the block's columns of tokens [from, to), counted as row_at() does. */
GDN_DEVICE void zero_outside(const struct hopper_block &b, int64_t from, int64_t to)
{
    const int first = (int)b.rank * 64, n = min(64 * HOPPER_GROUPS, b.r.V - first);
    for (int64_t t = from + threadIdx.x / 32; t < to; t += blockDim.x / 32) {
        uint16_t *row = (uint16_t *)row_at(b.r.out, b.s(), t, b.head) + first;
        for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = 0;
    }
}

/* What the kernel reads of the batch, and zeros where nobody writes: above the diagonal of T and P,
 * the lists of dead tokens. */
GDN_DEVICE void prepare(struct hopper_block &b)
{
    const int64_t row = blockIdx.x / HOPPER_BLOCKS / b.r.H;
    if (threadIdx.x < 32) {
        struct gdn_cu_seq s;
        if (row == b.r.batch.B)
            s = read_rest(b.r.batch);
        else
            s = read_sequence(b.r.batch, row);
        const struct gdn_cu_checkpoints list = read_checkpoints(b.r.batch, s);
        if (threadIdx.x == 0) {
            b.common().s           = s;
            b.common().checkpoints = list;
            init_barriers(b);
        }
    }
    for (int i = threadIdx.x; i < (HOPPER_MADE + HOPPER_TURNS) * HOPPER_TILE / 16; i += blockDim.x)
        store_shared(hopper_address() + HOPPER_T + 16 * i, 0, 0, 0, 0);
    if (threadIdx.x == 0) store_shared(hopper_address() + HOPPER_L + 64 * 4, 0, 0, 0, 0);
    async_fence();
    __syncthreads();
    b.n_chunks = (int)((b.s().n_valid + 63) / 64);
}

template <int io> GDN_DEVICE void run_hopper(const struct gdn_cu_prefill_hopper &a)
{
    const int           lane = opaque((int)threadIdx.x % 32);
    const int           warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0), group = warp / 4;
    struct hopper_block b = { a, a.rule, cluster_rank(),
                              (int)(blockIdx.x / HOPPER_BLOCKS % a.rule.H), 0 };
    prepare(b);
    if (b.s().n_tokens == 0) return; /* both blocks do */
    if (b.r.out.data && !b.s().keep_out) {
        zero_outside(b, -b.s().n_before, 0);
        zero_outside(b, b.s().n_valid, b.s().n_tokens - b.s().n_before);
    }
    cluster_sync();
    if (group == 0) {
        lower_registers<HOPPER_IO_REGISTERS>();
        run_io<io>(b, warp, lane);
    } else if (group <= HOPPER_GROUPS) {
        raise_registers<HOPPER_STATE_REGISTERS>();
        run_state_warps<io>(b, warp - 4, lane);
    } else {
        lower_registers<HOPPER_SOLVE_REGISTERS>();
        run_solve<io>(b, warp % 4, lane);
    }
    __syncwarp();
    cluster_sync(); /* the other block may still signal here, or copy */
}

#endif
