/* SPDX-License-Identifier: Apache-2.0 */
/* Layers whose states the tests of blobs save and load. */
#ifndef BLOB_LAYER_H
#define BLOB_LAYER_H

#include "gdn_blob.h"
#include "ring2.h"

static gdn_ctx *ctx; /* set by main() */

/* ---- A layer's states ---------------------------------------------------------------------- */

struct layer {
    int32_t map, Hq, Hk, Hv, K, V, S;
    int32_t state_dtype, layout, conv_dtype;
    bool no_scales; /* of a state of 8 bits */
};

static inline int64_t heads(const struct layer *l) { return l->Hq > l->Hv ? l->Hq : l->Hv; }
static inline int64_t channels(const struct layer *l)
{
    return (l->Hq + l->Hk) * l->K + l->Hv * l->V;
}

static inline gdn_blob_args args_of(const struct layer *l)
{
    gdn_blob_args a = gdn_blob_args_init();
    a.head_map = l->map;
    a.state_layout = l->layout;
    a.n_query_heads = l->Hq, a.n_key_heads = l->Hk, a.n_value_heads = l->Hv;
    a.key_head_dim = l->K, a.value_head_dim = l->V;
    return a;
}

/* Empty pools of P slots. */
static inline gdn_blob_args pools(const struct layer *l, int64_t P)
{
    gdn_blob_args a = args_of(l);
    const bool vk = l->layout == GDN_STATE_VK;
    a.state = ring2_new(l->state_dtype, 0, 4, P, heads(l), vk ? l->V : l->K, vk ? l->K : l->V);
    a.conv_state = ring2_new(l->conv_dtype, 0, 3, P, channels(l), l->S, 0);
    if (l->state_dtype > GDN_F16 && !l->no_scales)
        a.state_scales = ring2_new(GDN_F32, 0, 3, P, heads(l), l->V, 0);
    return a;
}

/* Codes of 8 bits are any that is a number. */
static inline void fill_state(const gdn_blob_args *a)
{
    const int most = a->state.dtype == GDN_E5M2 ? 124 : 127;
    if (a->state.dtype <= GDN_F16) {
        ring2_fill(&a->state, -2, 2);
        return;
    }
    unsigned char *codes = a->state.data;
    for (int64_t i = 0; i < ring2_count(&a->state); i++)
        codes[i] = (unsigned char)(ring2_below(2) << 7 | ring2_below(most));
    if (a->state_scales.data) ring2_fill(&a->state_scales, 0.001, 1);
}

/* Filled pools of P slots, of which B are saved. */
static inline gdn_blob_args states(const struct layer *l, int64_t P, int64_t B)
{
    gdn_blob_args a = pools(l, P);
    int64_t slots[16], position[16];
    fill_state(&a);
    ring2_fill(&a.conv_state, -2, 2);
    for (int64_t b = 0; b < B; b++) {
        slots[b] = (b * 3 + 1) % P;
        position[b] = 1000 * b + 7;
    }
    a.slots = ring2_indices(GDN_I32, B, slots);
    a.position = ring2_indices(GDN_I64, B, position);
    return a;
}

static inline void save(gdn_blob_args *a)
{
    ring2_status(ctx, "bytes", gdn_blob_bytes(ctx, a, &a->blob_bytes), GDN_OK);
    a->blob = ring2_alloc(a->blob_bytes, 8);
    ring2_call_begin();
    ring2_may_write_bytes(a->blob, a->blob_bytes);
    ring2_status(ctx, "save", gdn_blob_save(ctx, a), GDN_OK);
    ring2_call_end();
}

static inline gdn_blob_info inspect(const gdn_blob_args *a)
{
    gdn_blob_info i = gdn_blob_info_init();
    ring2_status(ctx, "inspect", gdn_blob_inspect(ctx, a->blob, a->blob_bytes, &i), GDN_OK);
    return i;
}

static const struct layer plain = { GDN_HEADS_GROUPED, 2, 2, 4, 8, 6, 4, 0, 0, GDN_BF16, false };

/* The checksum of a blob, bit by bit. */
static inline uint32_t crc32c_slowly(const unsigned char *p, size_t n)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        sum ^= i >= 24 && i < 28 ? 0 : p[i];
        for (int bit = 0; bit < 8; bit++) sum = sum & 1 ? sum >> 1 ^ 0x82f63b78u : sum >> 1;
    }
    return ~sum;
}

#endif
