/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a layer's weights that make its columns; see layer.h. */
#include "calls/layer.h"

/* Qwen3-Next keeps, per key head, the rows of its q, k, v, z together, and of its b, a. */
static struct gdn_segment fused_segment(const struct gdn_block *b, int64_t head, int part)
{
    const gdn_tensor *qkvz = &b->args->in_proj_qkvz, *ba = &b->args->in_proj_ba;
    const struct gdn_block_columns *to = &b->columns;
    const int64_t K = b->K, r = b->Hv / b->Hk, rV = r * b->V, row = head * (2 * K + 2 * rV);
    switch (part) {
    case 0: return (struct gdn_segment){ qkvz, row, K, head * K };
    case 1: return (struct gdn_segment){ qkvz, row + K, K, to->k + head * K };
    case 2: return (struct gdn_segment){ qkvz, row + 2 * K, rV, to->v + head * rV };
    case 3: return (struct gdn_segment){ qkvz, row + 2 * K + rV, rV, to->z + head * rV };
    case 4: return (struct gdn_segment){ ba, head * 2 * r, r, to->b + head * r };
    default: return (struct gdn_segment){ ba, head * 2 * r + r, r, to->a + head * r };
    }
}

int gdn_block_n_segments(const struct gdn_block *b) { return b->fused ? 6 * (int)b->Hk : 4; }

/* Qwen3.5 keeps each apart in the order of the columns. */
struct gdn_segment gdn_block_segment(const struct gdn_block *b, int i)
{
    const struct gdn_block_columns *to = &b->columns;
    const struct gdn_segment apart[] = { { &b->args->in_proj_qkv, 0, to->z, 0 },
                                         { &b->args->in_proj_z, 0, to->b - to->z, to->z },
                                         { &b->args->in_proj_b, 0, b->Hv, to->b },
                                         { &b->args->in_proj_a, 0, b->Hv, to->a } };
    return b->fused ? fused_segment(b, i / 6, i % 6) : apart[i];
}
