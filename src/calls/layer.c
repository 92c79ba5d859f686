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

/* The columns [first, end) of a weight of its own; `down` is absent, or comes before it. */
struct apart {
    const gdn_tensor *weight, *down;
    int64_t first, end;
};
enum { N_APART = 7 };

static struct apart apart_of(const struct gdn_block *b, int i)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_block_args *a = b->args;
    const struct gdn_block_columns *to = &b->columns;
    const struct apart all[N_APART] = {
        { &a->in_proj_qkv, &none, 0, to->z },
        { &a->in_proj_q, &none, 0, to->k },
        { &a->in_proj_k, &none, to->k, to->v },
        { &a->in_proj_v, &none, to->v, to->z },
        { &a->in_proj_z, &a->in_proj_z_down, to->z, to->b },
        { &a->in_proj_b, &none, to->b, to->a },
        { &a->in_proj_a, &a->in_proj_a_down, to->a, to->all },
    };
    return all[i];
}

static struct gdn_segment whole(const struct apart *x)
{
    return (struct gdn_segment){ x->weight, 0, x->end - x->first, x->first };
}

/* Finds weight number i of those that are given, of low rank or not. Returns how many are given. */
static int find_apart(const struct gdn_block *b, int i, bool low, struct apart *found)
{
    int n = 0;
    for (int j = 0; j < N_APART; j++) {
        const struct apart x = apart_of(b, j);
        if (!x.weight->data || (x.down->data != NULL) != low) continue;
        if (n++ == i) *found = x;
    }
    return n;
}

int gdn_block_n_segments(const struct gdn_block *b)
{
    return b->projections == GDN_FUSED ? 6 * (int)b->Hk : find_apart(b, -1, false, NULL);
}

struct gdn_segment gdn_block_segment(const struct gdn_block *b, int i)
{
    struct apart x = { 0 };
    if (b->projections == GDN_FUSED) return fused_segment(b, i / 6, i % 6);
    find_apart(b, i, false, &x);
    return whole(&x);
}

int gdn_block_n_low_ranks(const struct gdn_block *b) { return find_apart(b, -1, true, NULL); }

struct gdn_low_rank gdn_block_low_rank(const struct gdn_block *b, int i)
{
    struct apart x = { 0 };
    find_apart(b, i, true, &x);
    return (struct gdn_low_rank){ { x.down, 0, x.down->size[0], 0 }, whole(&x) };
}
