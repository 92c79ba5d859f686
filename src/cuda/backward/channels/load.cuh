/* SPDX-License-Identifier: Apache-2.0 */
/* Moves rows of tensors to memory, a warp for each row. `load` stores rows of q and k, normalised,
 * q with the scale. Then `gates` stores a, e and the flags of each update. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_LOAD_CUH
#define GDN_CUDA_BACKWARD_CHANNELS_LOAD_CUH

#include "cuda/backward/channels/channels.cuh"

/* Loads the rows of q or k. GDN_CU_ROW_BLOCKS blocks share a chunk and a head. */
GDN_DEVICE void channels_load(const struct gdn_cu_backward_channels &a)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int item = (int)(rows_item() % (r.Hq + r.Hk));
    const bool is_q = item < r.Hq;
    const int head = is_q ? item : item - r.Hq, n = is_q ? 1 : a.n_updates;
    const struct gdn_rows &from = is_q ? a.base.q : a.base.k, &to = is_q ? r.q : r.k;
    const struct backward_chunk c = chunk_in(a, rows_item() / (r.Hq + r.Hk));
    for (int i = warp_row(); i < c.in.n * n; i += ROW_STEP) {
        float x[ROW_PARTS];
        load_row(x, update_at(from, c.in, i / n, head, i % n, r.family.k_update), from.dtype, r.K);
        const float scale =
            inverse_length(dot_rows(x, x), r.norm, r.norm_eps) * (is_q ? r.scale : 1);
        float *row = memory_row(to, token_number(c, 0) * n + i, head);
#pragma unroll
        for (int j = 0; j < ROW_PARTS; j++) {
            const int at = threadIdx.x % 32 + 32 * j;
            if (at < a.ld) row[at] = at < r.K ? scale * x[j] : 0;
        }
    }
}

/* Stores a of a token. Returns true if a channel forgets. */
GDN_DEVICE bool load_decays(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int t, int head)
{
    const struct gdn_cu_rule &r = a.base.rule;
    float *row = memory_row(a.a, token_number(c, t), head);
    bool forgets = false;
    for (int x = threadIdx.x % 32; x < a.ld; x += 32) {
        row[x] = x < r.K ? family_gate(r, c.in.seq, c.in.t0 + t, head, x, true) : 0;
        forgets |= x < r.K && row[x] == 0;
    }
    return __any_sync(0xffffffff, forgets);
}

/* Stores e of an update. Returns true if the update writes: not all b and w are 0. */
GDN_DEVICE bool load_erased(const struct gdn_cu_backward_channels &a,
                            const struct backward_chunk &c, int t, int head, int j)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int64_t number = update_number(a, c, t) + j;
    const float *k = memory_row(r.k, number, source_head(r, head, r.Hk));
    float *row = memory_row(a.e, number, head);
    bool writes = false;
    for (int x = threadIdx.x % 32; x < a.ld; x += 32) {
        const float b = x < r.K ? family_b(r, c.in.seq, c.in.t0 + t, head, j, x) : 0;
        row[x] = x < r.K ? b * k[x] : 0;
        writes |= b != 0;
    }
    if (__any_sync(0xffffffff, writes)) return true;
    for (int v = threadIdx.x % 32; v < r.V; v += 32)
        writes |= family_w(r, c.in.seq, c.in.t0 + t, head, j, v) != 0;
    return __any_sync(0xffffffff, writes);
}

/* Loads gates. GDN_CU_ROW_BLOCKS blocks share a chunk and a state head. */
GDN_DEVICE void channels_gates(const struct gdn_cu_backward_channels &a)
{
    const int H = a.base.rule.H, head = (int)(rows_item() % H);
    const struct backward_chunk c = chunk_in(a, rows_item() / H);
    for (int t = warp_row(); t < c.in.n; t += ROW_STEP) {
        int known = load_decays(a, c, t, head) ? GDN_CU_FORGETS : 0;
        for (int j = 0; j < a.n_updates; j++, known = 0) {
            if (load_erased(a, c, t, head, j)) known |= GDN_CU_WRITES;
            if (threadIdx.x % 32 == 0) a.flags[(update_number(a, c, t) + j) * H + head] = known;
        }
    }
}

#endif
