/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that the kernels of the family's gradients share: updates, pieces of a chunk, and
 * states in memory. Letters are those of family.cuh; e = b * k, and J is the gradient of S. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_CUH

#include "cuda/backward/channels/args.h"
#include "cuda/backward/gates.cuh"
#include "cuda/backward/plan.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/backward/walk.cuh"
#include "cuda/device/family.cuh"

static_assert((int)GDN_CU_CHANNELS_STRIP == (int)STRIP, "a strip of the walks");

/* Returns the address of row i of a head in memory. */
GDN_DEVICE float *memory_row(const struct gdn_rows &rows, int64_t i, int head)
{
    return (float *)(rows.data + i * rows.token + head * rows.head);
}

/* Return the number in memory of token t of a chunk, and that of its first update. */
GDN_DEVICE int64_t token_number(const struct backward_chunk &c, int64_t t)
{
    return c.in.number * GDN_CU_BACKWARD_CHUNK + t;
}
GDN_DEVICE int64_t update_number(const struct gdn_cu_backward_channels &a,
                                 const struct backward_chunk &c, int64_t t)
{
    return token_number(c, t) * a.n_updates;
}

/* Returns the chunk at a place in memory. n is 0 if there is none; windows through the batch may
 * have fewer chunks than memory has places. */
GDN_DEVICE struct backward_chunk chunk_in(const struct gdn_cu_backward_channels &a, int64_t place)
{
    const int64_t row = row_of_chunk(a.base, place);
    if (row >= a.base.rule.batch.B) return {};
    const struct backward_window w = find_window(a.base, row);
    return chunk_at(w, place - w.first);
}

/* Returns the address of update j in a row of a tensor. */
GDN_DEVICE char *update_at(const struct gdn_rows &rows, const struct stage_chunk &c, int64_t t,
                           int head, int j, int64_t step)
{
    return row_at(rows, c.seq, c.t0 + t, head) + j * step;
}

/* ROW_STEP blocks share the rows of a chunk. The functions return the block's item, the first row
 * of a warp, and the step to its next row. */
enum { ROW_STEP = GDN_CU_ROW_BLOCKS * ROW_WARPS };
GDN_DEVICE int64_t rows_item(void) { return blockIdx.x / GDN_CU_ROW_BLOCKS; }
GDN_DEVICE int warp_row(void)
{
    return (int)(blockIdx.x % GDN_CU_ROW_BLOCKS) * ROW_WARPS + (int)threadIdx.x / 32;
}

/* ---- States in memory ------------------------------------------------------------------------ */

/* Returns the address of four channels of a column of a state in memory. */
GDN_DEVICE float *state_at(const struct gdn_cu_backward_channels &a,
                           const struct gdn_pool_view &view, int64_t slot, int head, int group,
                           int column)
{
    const int64_t state = slot * a.base.rule.H + head;
    return (float *)view.data + ((state * (a.ld / 4) + group) * a.base.rule.V + column) * 4;
}

/* Returns the number in memory of piece i of a window. */
GDN_DEVICE int64_t piece_number(const struct gdn_cu_backward_channels &a,
                                const struct backward_window &w, int64_t i)
{
    return w.first * (GDN_CU_BACKWARD_CHUNK / a.tokens) + i;
}

#endif
