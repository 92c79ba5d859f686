/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content of blobs: pools to blob and back (blob_parts.c: whole blobs to parts and back).
 * Everything is checked before the first byte is written. The dense views of a blob are pools like
 * others, so saving and loading are copies of slots (calls/state_copy.h).
 */
#include "state/blob.h"

#include <stdio.h>

#include "calls/state_copy.h"
#include "core/backend.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "state/pool_view.h"

/* ---- What the arguments describe ----------------------------------------------------------- */

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_blob_args *a)
{
    static const int64_t any[] = { -1, -1, -1, -1 };
    const gdn_tensor *lists[] = { &a->slots, &a->position };
    const char *const names[] = { "slots", "position" };
    const gdn_tensor *pools[] = { &a->state, &a->conv_state };
    const char *const pool_name[] = { "state", "conv_state" };
    for (int i = 0; i < 2; i++) {
        TRY(gdn_check_tensor(ctx, lists[i], names[i]));
        TRY(gdn_check_dtype(ctx, lists[i], names[i], GDN_INDICES));
        TRY(gdn_check_shape(ctx, lists[i], names[i], 1, any));
        TRY(gdn_check_tensor(ctx, pools[i], pool_name[i]));
        TRY(gdn_check_dtype(ctx, pools[i], pool_name[i],
                            GDN_FLOATS | (i == 0 ? GDN_Q8_DTYPES : 0)));
        TRY(gdn_check_shape(ctx, pools[i], pool_name[i], i == 0 ? 4 : 3, any));
    }
    return GDN_OK;
}

static gdn_status check_args(gdn_ctx *ctx, const gdn_blob_args *args, gdn_blob_args *a)
{
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_blob_args"));
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    if (a->state_layout < GDN_STATE_VK || a->state_layout > GDN_STATE_KV)
        return gdn_fail(ctx, GDN_E_ARG, "state_layout: %d, wanted 0 or 1", (int)a->state_layout);
    if (a->rounding < GDN_ROUND_NEAREST || a->rounding > GDN_ROUND_STOCHASTIC)
        return gdn_fail(ctx, GDN_E_ARG, "rounding: %d, wanted 0 or 1", (int)a->rounding);
    if (a->n_query_heads == 0) a->n_query_heads = a->n_key_heads;
    if (a->n_ranks == 0) a->n_ranks = 1;
    TRY(check_tensors(ctx, a));
    if (ctx->backend->upload)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "state: in device memory, wanted a context of the "
                        "CPU and copies of the slots in its memory");
    return GDN_OK;
}

/* Finds the number of sequences, B: the number of slots, else of positions, else of slots of the
 * pools. */
static gdn_status count_sequences(gdn_ctx *ctx, const gdn_blob_args *a, int64_t *B)
{
    const gdn_tensor *const of[] = { &a->slots, &a->state, &a->conv_state, &a->position };
    *B = -1;
    for (int i = 0; i < 4 && *B < 0; i++)
        if (of[i]->data) *B = of[i]->size[0];
    for (int i = 0; i < 4; i++)
        if (of[i]->data && of[i]->size[0] != *B && (!a->slots.data || i == 3))
            return gdn_fail(ctx, GDN_E_SHAPE, "%s: size[0] is %lld, wanted %lld sequences",
                            i == 3   ? "position"
                            : i == 2 ? "conv_state"
                                     : "state",
                            (long long)of[i]->size[0], (long long)*B);
    return GDN_OK;
}

static gdn_status check_scales(gdn_ctx *ctx, const gdn_blob_args *a, int64_t H)
{
    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    return gdn_check_scales(ctx, &state, H, a->value_head_dim);
}

/* Describes the header of a blob with these states, and the place of each part. */
static gdn_status describe(gdn_ctx *ctx, const gdn_blob_args *a, struct gdn_blob_header *h,
                           struct gdn_blob_places *p)
{
    const bool has_state = a->state.data, has_conv = a->conv_state.data;
    *h = gdn_blob_new_header();
    h->head_map = a->head_map;
    h->n_query_heads = a->n_query_heads;
    h->n_key_heads = a->n_key_heads;
    h->n_value_heads = a->n_value_heads;
    h->key_head_dim = a->key_head_dim;
    h->value_head_dim = a->value_head_dim;
    h->state_dtype = has_state ? a->state.dtype : GDN_BLOB_NO_DTYPE;
    h->state_layout = has_state ? a->state_layout : 0;
    h->conv_dtype = has_conv ? a->conv_state.dtype : GDN_BLOB_NO_DTYPE;
    h->rank = a->rank;
    h->n_ranks = a->n_ranks;
    h->no_scales = has_state && a->state.dtype > GDN_I8 && !a->state_scales.data;
    h->copies[0] = a->query_copies, h->copies[1] = a->key_copies, h->copies[2] = a->value_copies;
    gdn_blob_set_version(h);
    if (has_conv && a->conv_state.size[2] > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "conv_state: size[2] is %lld, wanted up to 2^31 - 1",
                        (long long)a->conv_state.size[2]);
    h->conv_length = has_conv ? (int32_t)a->conv_state.size[2] : 0;
    TRY(count_sequences(ctx, a, &h->n_sequences));
    TRY(gdn_blob_place(ctx, h, "gdn_blob_args", p));
    h->total_bytes = p->total;
    const gdn_tensor state = gdn_blob_state(h, p, NULL), conv = gdn_blob_conv(h, p, NULL);
    const int64_t *s = state.size, *c = conv.size;
    TRY(gdn_check_shape(ctx, &a->state, "state", 4, (int64_t[]){ -1, s[1], s[2], s[3] }));
    TRY(check_scales(ctx, a, s[1]));
    return gdn_check_shape(ctx, &a->conv_state, "conv_state", 3, (int64_t[]){ -1, c[1], c[2] });
}

/* ---- Copies of slots ----------------------------------------------------------------------- */

/* A checked copy between one pool and its part of the blob. */
struct copy {
    struct gdn_state_call call;
    bool is_there;
};

static gdn_status get_memory(gdn_ctx *ctx, const struct copy *c, void **memory)
{
    return gdn_get_workspace(ctx, NULL, 0, c->call.base.bytes, memory);
}

static gdn_status prepare(gdn_ctx *ctx, const gdn_state_copy_args *args, const char *from,
                          const char *to, struct copy *c)
{
    void *memory;
    c->is_there = args->from_pool.data && args->to_pool.data;
    if (!c->is_there) return GDN_OK;
    c->call = (struct gdn_state_call){ .move = { .from_name = from,
                                                 .to_name = to,
                                                 .from_slots_name = "slots",
                                                 .to_slots_name = "slots" } };
    TRY(gdn_state_describe(ctx, args, &c->call.move));
    TRY(ctx->backend->ops[GDN_OP_STATE_COPY]->plan(ctx, &c->call));
    TRY(get_memory(ctx, c, &memory));
    return gdn_state_check_slots(ctx, &c->call.move, memory);
}

static gdn_status run(gdn_ctx *ctx, const char *op, struct copy *copies)
{
    for (int i = 0; i < 2; i++) {
        void *memory;
        if (!copies[i].is_there) continue;
        copies[i].call.base.op = op;
        TRY(get_memory(ctx, &copies[i], &memory));
        TRY(ctx->backend->ops[GDN_OP_STATE_COPY]->run(ctx, &copies[i].call, memory));
    }
    return GDN_OK;
}

/* ---- Saving -------------------------------------------------------------------------------- */

static gdn_status find_bytes(gdn_ctx *ctx, const gdn_blob_args *args, size_t *bytes)
{
    gdn_blob_args a;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    if (!bytes) return gdn_fail(ctx, GDN_E_ARG, "bytes: NULL");
    TRY(check_args(ctx, args, &a));
    TRY(describe(ctx, &a, &h, &p));
    *bytes = (size_t)p.total;
    return GDN_OK;
}

gdn_status gdn_blob_bytes(gdn_ctx *ctx, const gdn_blob_args *args, size_t *bytes)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, find_bytes(ctx, args, bytes));
}

/* Checks the memory of the blob, apart from all that is read. */
static gdn_status check_target(gdn_ctx *ctx, const gdn_blob_args *a, uint64_t needed)
{
    const gdn_tensor blob = gdn_blob_memory(a->blob, (size_t)needed);
    TRY(gdn_blob_check_memory(ctx, a->blob, "blob"));
    if (a->blob_bytes < needed)
        return gdn_fail(ctx, GDN_E_MEMORY, "blob_bytes: %zu, wanted at least %llu", a->blob_bytes,
                        (unsigned long long)needed);
    TRY(gdn_check_tensor(ctx, &blob, "blob"));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->state, "state", false));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->state_scales, "state_scales", false));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->conv_state, "conv_state", false));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->slots, "slots", false));
    return gdn_check_no_overlap(ctx, &blob, "blob", &a->position, "position", false);
}

/* Refuses what a blob does not allow, though gdn_state_copy() does. */
static gdn_status check_contents(gdn_ctx *ctx, const gdn_blob_args *a, int64_t B)
{
    const struct {
        const gdn_tensor *t;
        const char *name;
    } lists[] = { { &a->slots, "slots" }, { &a->position, "position" } };
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; b < B && lists[i].t->data; b++)
            if (gdn_index(lists[i].t, b) < 0)
                return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: %lld, wanted 0 or more", lists[i].name,
                                (long long)b, (long long)gdn_index(lists[i].t, b));
    return GDN_OK;
}

static gdn_status save(gdn_ctx *ctx, const gdn_blob_args *args)
{
    gdn_blob_args a;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    struct copy copies[2];
    TRY(check_args(ctx, args, &a));
    TRY(describe(ctx, &a, &h, &p));
    TRY(check_target(ctx, &a, p.total));
    TRY(check_contents(ctx, &a, h.n_sequences));

    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_slots = a.slots;
    c.from_pool = a.conv_state;
    c.to_pool = gdn_blob_conv(&h, &p, a.blob);
    TRY(prepare(ctx, &c, "conv_state", "blob", &copies[0]));
    c.from_layout = c.to_layout = a.state_layout;
    c.from_pool = a.state;
    c.to_pool = gdn_blob_state(&h, &p, a.blob);
    c.from_scales = a.state_scales;
    c.to_scales = gdn_blob_scales(&h, &p, a.blob);
    TRY(prepare(ctx, &c, "state", "blob", &copies[1]));

    gdn_blob_clear(a.blob, &h, &p);
    TRY(run(ctx, "blob_save", copies));
    for (int64_t b = 0; b < h.n_sequences && a.position.data; b++) {
        const int64_t n = gdn_index(&a.position, b);
        memcpy((char *)a.blob + p.position + (size_t)b * sizeof n, &n, sizeof n);
    }
    gdn_blob_seal(a.blob, &h);
    return GDN_OK;
}

gdn_status gdn_blob_save(gdn_ctx *ctx, const gdn_blob_args *args)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, save(ctx, args));
}

/* ---- Loading ------------------------------------------------------------------------------- */

/* Checks that the blob is of the caller's layer and rank, and has the states that are asked for. */
static gdn_status check_expected(gdn_ctx *ctx, const gdn_blob_args *a,
                                 const struct gdn_blob_header *h)
{
    const struct {
        const char *name;
        int32_t found, wanted;
    } fields[] = {
        { "head_map", h->head_map, a->head_map },
        { "n_query_heads", h->n_query_heads, a->n_query_heads },
        { "n_key_heads", h->n_key_heads, a->n_key_heads },
        { "n_value_heads", h->n_value_heads, a->n_value_heads },
        { "key_head_dim", h->key_head_dim, a->key_head_dim },
        { "value_head_dim", h->value_head_dim, a->value_head_dim },
        { "rank", h->rank, a->rank },
        { "n_ranks", h->n_ranks, a->n_ranks },
        { "query_copies", gdn_blob_copies(h, 0), a->query_copies ? a->query_copies : 1 },
        { "key_copies", gdn_blob_copies(h, 1), a->key_copies ? a->key_copies : 1 },
        { "value_copies", gdn_blob_copies(h, 2), a->value_copies ? a->value_copies : 1 },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].found != fields[i].wanted)
            return gdn_fail(ctx, GDN_E_ARG, "blob: %s is %d, wanted %d", fields[i].name,
                            (int)fields[i].found, (int)fields[i].wanted);
    if (a->state.data && h->state_dtype == GDN_BLOB_NO_DTYPE)
        return gdn_fail(ctx, GDN_E_ARG, "state: given, but the blob has none");
    if (a->conv_state.data && h->conv_dtype == GDN_BLOB_NO_DTYPE)
        return gdn_fail(ctx, GDN_E_ARG, "conv_state: given, but the blob has none");
    return GDN_OK;
}

/* Checks that the pools have room for the content of the blob, each in its own layout and
 * length. */
static gdn_status check_pools(gdn_ctx *ctx, const gdn_blob_args *a, struct gdn_blob_header h,
                              const struct gdn_blob_places *p)
{
    h.state_layout = a->state_layout;
    const gdn_tensor state = gdn_blob_state(&h, p, NULL), conv = gdn_blob_conv(&h, p, NULL);
    const int64_t n = a->slots.data ? -1 : h.n_sequences, *s = state.size;
    TRY(gdn_check_shape(ctx, &a->slots, "slots", 1, &h.n_sequences));
    TRY(gdn_check_shape(ctx, &a->state, "state", 4, (int64_t[]){ n, s[1], s[2], s[3] }));
    TRY(check_scales(ctx, a, s[1]));
    return gdn_check_shape(ctx, &a->conv_state, "conv_state", 3,
                           (int64_t[]){ n, conv.size[1], -1 });
}

/* Checks that no written tensor overlaps another tensor. */
static gdn_status check_written(gdn_ctx *ctx, const gdn_blob_args *a)
{
    const gdn_tensor blob = gdn_blob_memory(a->blob, a->blob_bytes);
    const struct {
        const gdn_tensor *t;
        const char *name;
    } all[] = { { &a->state, "state" },           { &a->state_scales, "state_scales" },
                { &a->conv_state, "conv_state" }, { &a->position, "position" },
                { &a->slots, "slots" },           { &blob, "blob" } };
    TRY(gdn_check_tensor(ctx, &a->state_scales, "state_scales"));
    for (int i = 0; i < 4; i++) {
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = i + 1; j < 6; j++)
            TRY(gdn_check_no_overlap(ctx, all[i].t, all[i].name, all[j].t, all[j].name, false));
    }
    return GDN_OK;
}

static gdn_status check_positions(gdn_ctx *ctx, const gdn_blob_args *a, const gdn_tensor *found)
{
    TRY(gdn_check_shape(ctx, &a->position, "position", 1, found->size));
    for (int64_t b = 0; b < found->size[0] && a->position.data; b++)
        if (a->position.dtype == GDN_I32 && gdn_index(found, b) > INT32_MAX)
            return gdn_fail(ctx, GDN_E_ARG, "position[%lld]: %lld, which GDN_I32 cannot hold",
                            (long long)b, (long long)gdn_index(found, b));
    return GDN_OK;
}

static void write_positions(const gdn_tensor *to, const gdn_tensor *found)
{
    for (int64_t b = 0; b < found->size[0] && to->data; b++) {
        void *at = gdn_at(to, to->size[0] < 2 ? 0 : b * to->stride[0]);
        const int64_t wide = gdn_index(found, b);
        const int32_t n = (int32_t)wide;
        if (to->dtype == GDN_I32)
            memcpy(at, &n, sizeof n);
        else
            memcpy(at, &wide, sizeof wide);
    }
}

static gdn_status load(gdn_ctx *ctx, const gdn_blob_args *args)
{
    gdn_blob_args a;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    struct copy copies[2];
    TRY(check_args(ctx, args, &a));
    TRY(gdn_blob_open(ctx, a.blob, a.blob_bytes, "blob", &h, &p));
    TRY(check_expected(ctx, &a, &h));
    TRY(check_written(ctx, &a));
    TRY(check_pools(ctx, &a, h, &p));
    const gdn_tensor position = gdn_blob_position(&h, &p, a.blob);
    TRY(check_positions(ctx, &a, &position));

    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.to_slots = a.slots;
    c.from_pool = gdn_blob_conv(&h, &p, a.blob);
    c.to_pool = a.conv_state;
    TRY(prepare(ctx, &c, "blob", "conv_state", &copies[0]));
    c.from_layout = h.state_layout;
    c.to_layout = a.state_layout;
    c.from_pool = gdn_blob_state(&h, &p, a.blob);
    c.to_pool = a.state;
    c.to_scales = a.state_scales;
    c.rounding = a.rounding;
    c.seed = a.seed;
    if (a.state.data) c.from_scales = gdn_blob_scales(&h, &p, a.blob);
    TRY(prepare(ctx, &c, "blob", "state", &copies[1]));

    TRY(run(ctx, "blob_load", copies));
    write_positions(&a.position, &position);
    return GDN_OK;
}

gdn_status gdn_blob_load(gdn_ctx *ctx, const gdn_blob_args *args)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, load(ctx, args));
}
