/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content of blobs: pools to blob and back, whole blobs to parts and back. Everything is
 * checked before the first byte is written. The dense views of a blob are pools like others,
 * so saving and loading are copies of slots (state.h).
 */
#include "blob.h"

#include <stdio.h>

#include "state.h"
#include "tensor.h"

/* Memory without a type, for the check of overlaps. */
static gdn_tensor bytes_of(const void *memory, size_t n)
{
    return gdn_dense((void *)memory, GDN_U8, 1, (int64_t)n, 0, 0, 0);
}

/* ---- What the arguments describe ----------------------------------------------------------- */

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_blob_args *a)
{
    static const int64_t any[]       = { -1, -1, -1, -1 };
    const gdn_tensor    *lists[]     = { &a->slots, &a->position };
    const char *const    names[]     = { "slots", "position" };
    const gdn_tensor    *pools[]     = { &a->state, &a->conv_state };
    const char *const    pool_name[] = { "state", "conv_state" };
    for (int i = 0; i < 2; i++) {
        TRY(gdn_check_tensor(ctx, lists[i], names[i]));
        TRY(gdn_check_dtype(ctx, lists[i], names[i], GDN_INDICES));
        TRY(gdn_check_shape(ctx, lists[i], names[i], 1, any));
        TRY(gdn_check_tensor(ctx, pools[i], pool_name[i]));
        if (pools[i]->data && 1u << pools[i]->dtype & GDN_EIGHTS)
            return gdn_fail(ctx, GDN_E_DTYPE,
                            "%s: of 8 bits, wanted floats: gdn_state_copy() first", pool_name[i]);
        TRY(gdn_check_dtype(ctx, pools[i], pool_name[i], GDN_FLOATS));
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
    if (a->n_query_heads == 0) a->n_query_heads = a->n_key_heads;
    if (a->n_ranks == 0) a->n_ranks = 1;
    TRY(check_tensors(ctx, a));
    if (ctx->cuda)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "state: in device memory, wanted a context of the "
                        "CPU and copies of the slots in its memory");
    return GDN_OK;
}

/* B: as many as there are slots, or else positions, or else slots of the pools. */
static gdn_status count_sequences(gdn_ctx *ctx, const gdn_blob_args *a, int64_t *B)
{
    const gdn_tensor *const of[] = { &a->slots, &a->state, &a->conv_state, &a->position };
    *B                           = -1;
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

/* The header of a blob with these states, and where everything would be in it. */
static gdn_status describe(gdn_ctx *ctx, const gdn_blob_args *a, struct gdn_blob_header *h,
                           struct gdn_blob_places *p)
{
    const bool  has_state = a->state.data, has_conv = a->conv_state.data;
    *h                = gdn_blob_new_header();
    h->head_map       = a->head_map;
    h->n_query_heads  = a->n_query_heads;
    h->n_key_heads    = a->n_key_heads;
    h->n_value_heads  = a->n_value_heads;
    h->key_head_dim   = a->key_head_dim;
    h->value_head_dim = a->value_head_dim;
    h->state_dtype    = has_state ? a->state.dtype : GDN_BLOB_NO_DTYPE;
    h->state_layout   = has_state ? a->state_layout : 0;
    h->conv_dtype     = has_conv ? a->conv_state.dtype : GDN_BLOB_NO_DTYPE;
    h->rank           = a->rank;
    h->n_ranks        = a->n_ranks;
    if (has_conv && a->conv_state.size[2] > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "conv_state: size[2] is %lld, wanted up to 2^31 - 1",
                        (long long)a->conv_state.size[2]);
    h->conv_length = has_conv ? (int32_t)a->conv_state.size[2] : 0;
    TRY(count_sequences(ctx, a, &h->n_sequences));
    TRY(gdn_blob_place(ctx, h, "gdn_blob_args", p));
    h->total_bytes         = p->total;
    const gdn_tensor state = gdn_blob_state(h, p, NULL), conv = gdn_blob_conv(h, p, NULL);
    const int64_t   *s = state.size, *c = conv.size;
    TRY(gdn_check_shape(ctx, &a->state, "state", 4, (int64_t[]){ -1, s[1], s[2], s[3] }));
    return gdn_check_shape(ctx, &a->conv_state, "conv_state", 3, (int64_t[]){ -1, c[1], c[2] });
}

/* ---- Copies of slots ----------------------------------------------------------------------- */

/* One pool and its view in the blob, checked, to be run. */
struct copy {
    struct gdn_state_move move;
    bool                  is_there;
};

static gdn_status prepare(gdn_ctx *ctx, const gdn_state_copy_args *args, const char *from,
                          const char *to, struct copy *c)
{
    void *memory;
    c->is_there = args->from_pool.data && args->to_pool.data;
    if (!c->is_there) return GDN_OK;
    c->move = (struct gdn_state_move){
        .from_name = from, .to_name = to, .from_slots_name = "slots", .to_slots_name = "slots"
    };
    TRY(gdn_state_describe(ctx, args, &c->move));
    TRY(gdn_get_workspace(ctx, NULL, 0, gdn_state_bytes(&c->move), &memory));
    return gdn_state_check_slots(ctx, &c->move, memory);
}

static gdn_status run(gdn_ctx *ctx, struct copy *copies)
{
    for (int i = 0; i < 2; i++)
        if (copies[i].is_there) gdn_state_run(ctx, &copies[i].move);
    return gdn_check_lender(ctx);
}

/* ---- Saving -------------------------------------------------------------------------------- */

static gdn_status find_bytes(gdn_ctx *ctx, const gdn_blob_args *args, size_t *bytes)
{
    gdn_blob_args          a;
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

/* The memory of the blob, apart from all that is read. */
static gdn_status check_target(gdn_ctx *ctx, const gdn_blob_args *a, uint64_t needed)
{
    const gdn_tensor blob = bytes_of(a->blob, (size_t)needed);
    TRY(gdn_blob_check_memory(ctx, a->blob, "blob"));
    if (a->blob_bytes < needed)
        return gdn_fail(ctx, GDN_E_MEMORY, "blob_bytes: %zu, wanted at least %llu", a->blob_bytes,
                        (unsigned long long)needed);
    TRY(gdn_check_tensor(ctx, &blob, "blob"));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->state, "state", false));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->conv_state, "conv_state", false));
    TRY(gdn_check_no_overlap(ctx, &blob, "blob", &a->slots, "slots", false));
    return gdn_check_no_overlap(ctx, &blob, "blob", &a->position, "position", false);
}

/* What gdn_state_copy() would allow, but a blob does not. */
static gdn_status check_contents(gdn_ctx *ctx, const gdn_blob_args *a, int64_t B)
{
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } lists[] = { { &a->slots, "slots" }, { &a->position, "position" } };
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; b < B && lists[i].t->data; b++)
            if (gdn_index(lists[i].t, b) < 0)
                return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: %lld, wanted 0 or more", lists[i].name,
                                (long long)b, (long long)gdn_index(lists[i].t, b));
    return GDN_OK;
}

static void write_zeros(char *blob, const struct gdn_blob_header *h,
                        const struct gdn_blob_places *p)
{
    const uint64_t n = (uint64_t)h->n_sequences;
    memset(blob, 0, (size_t)p->state);
    const uint64_t state_end = p->state + n * p->state_bytes, end = p->conv + n * p->conv_bytes;
    memset(blob + state_end, 0, (size_t)(p->conv - state_end));
    memset(blob + end, 0, (size_t)(p->total - end));
}

static gdn_status save(gdn_ctx *ctx, const gdn_blob_args *args)
{
    gdn_blob_args          a;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    struct copy            copies[2];
    TRY(check_args(ctx, args, &a));
    TRY(describe(ctx, &a, &h, &p));
    TRY(check_target(ctx, &a, p.total));
    TRY(check_contents(ctx, &a, h.n_sequences));

    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_slots          = a.slots;
    c.from_pool           = a.conv_state;
    c.to_pool             = gdn_blob_conv(&h, &p, a.blob);
    TRY(prepare(ctx, &c, "conv_state", "blob", &copies[0]));
    c.from_layout = c.to_layout = a.state_layout;
    c.from_pool                 = a.state;
    c.to_pool                   = gdn_blob_state(&h, &p, a.blob);
    TRY(prepare(ctx, &c, "state", "blob", &copies[1]));

    write_zeros(a.blob, &h, &p);
    TRY(run(ctx, copies));
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

/* The blob is of the layer that the caller expects. */
static gdn_status check_expected(gdn_ctx *ctx, const gdn_blob_args *a,
                                 const struct gdn_blob_header *h)
{
    const struct {
        const char *name;
        int32_t     found, wanted;
    } fields[] = {
        { "head_map", h->head_map, a->head_map },
        { "n_query_heads", h->n_query_heads, a->n_query_heads },
        { "n_key_heads", h->n_key_heads, a->n_key_heads },
        { "n_value_heads", h->n_value_heads, a->n_value_heads },
        { "key_head_dim", h->key_head_dim, a->key_head_dim },
        { "value_head_dim", h->value_head_dim, a->value_head_dim },
        { "rank", h->rank, a->rank },
        { "n_ranks", h->n_ranks, a->n_ranks },
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

/* The pools have room for what the blob holds, each in its own layout and length. */
static gdn_status check_pools(gdn_ctx *ctx, const gdn_blob_args *a, struct gdn_blob_header h,
                              const struct gdn_blob_places *p)
{
    h.state_layout         = a->state_layout;
    const gdn_tensor state = gdn_blob_state(&h, p, NULL), conv = gdn_blob_conv(&h, p, NULL);
    const int64_t    n = a->slots.data ? -1 : h.n_sequences, *s = state.size;
    TRY(gdn_check_shape(ctx, &a->slots, "slots", 1, &h.n_sequences));
    TRY(gdn_check_shape(ctx, &a->state, "state", 4, (int64_t[]){ n, s[1], s[2], s[3] }));
    return gdn_check_shape(ctx, &a->conv_state, "conv_state", 3,
                           (int64_t[]){ n, conv.size[1], -1 });
}

/* What is written overlaps nothing else. */
static gdn_status check_written(gdn_ctx *ctx, const gdn_blob_args *a)
{
    const gdn_tensor blob = bytes_of(a->blob, a->blob_bytes);
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } all[] = { { &a->state, "state" }, { &a->conv_state, "conv_state" },
                { &a->position, "position" }, { &a->slots, "slots" }, { &blob, "blob" } };
    for (int i = 0; i < 3; i++) {
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = i + 1; j < 5; j++)
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
        void         *at   = gdn_at(to, to->size[0] < 2 ? 0 : b * to->stride[0]);
        const int64_t wide = gdn_index(found, b);
        const int32_t n    = (int32_t)wide;
        if (to->dtype == GDN_I32)
            memcpy(at, &n, sizeof n);
        else
            memcpy(at, &wide, sizeof wide);
    }
}

static gdn_status load(gdn_ctx *ctx, const gdn_blob_args *args)
{
    gdn_blob_args          a;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    struct copy            copies[2];
    TRY(check_args(ctx, args, &a));
    TRY(gdn_blob_open(ctx, a.blob, a.blob_bytes, "blob", &h, &p));
    TRY(check_expected(ctx, &a, &h));
    TRY(check_written(ctx, &a));
    TRY(check_pools(ctx, &a, h, &p));
    const gdn_tensor position = gdn_blob_position(&h, &p, a.blob);
    TRY(check_positions(ctx, &a, &position));

    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.to_slots            = a.slots;
    c.from_pool           = gdn_blob_conv(&h, &p, a.blob);
    c.to_pool             = a.conv_state;
    TRY(prepare(ctx, &c, "blob", "conv_state", &copies[0]));
    c.from_layout = h.state_layout;
    c.to_layout   = a.state_layout;
    c.from_pool   = gdn_blob_state(&h, &p, a.blob);
    c.to_pool     = a.state;
    TRY(prepare(ctx, &c, "blob", "state", &copies[1]));

    TRY(run(ctx, copies));
    write_positions(&a.position, &position);
    return GDN_OK;
}

gdn_status gdn_blob_load(gdn_ctx *ctx, const gdn_blob_args *args)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, load(ctx, args));
}

/* ---- Slices -------------------------------------------------------------------------------- */

/* A blob as memory to move heads from or to. */
struct side {
    char                  *data;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
};

static int32_t least_heads(const struct gdn_blob_header *h)
{
    const int32_t n = h->n_query_heads < h->n_key_heads ? h->n_query_heads : h->n_key_heads;
    return n < h->n_value_heads ? n : h->n_value_heads;
}

/* Can this whole be cut into n parts? */
static gdn_status check_cut(gdn_ctx *ctx, const struct gdn_blob_header *h, int32_t n)
{
    const int32_t Hq = h->n_query_heads, Hk = h->n_key_heads, Hv = h->n_value_heads;
    const int32_t G  = least_heads(h);
    if (Hq % n || Hk % n || Hv % n)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "n_ranks: %d, wanted a divisor of %d, %d, %d heads of q, k, v", (int)n,
                        (int)Hq, (int)Hk, (int)Hv);
    if (h->head_map == GDN_HEADS_INTERLEAVED && (Hq % G || Hk % G || Hv % G))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "blob: interleaved, %d, %d, %d heads of q, k, v, wanted multiples of %d",
                        (int)Hq, (int)Hk, (int)Hv, (int)G);
    return GDN_OK;
}

/* Heads of one kind, whole and part: where they begin, bytes of a head and of a sequence. */
struct heads {
    char    *whole, *part;
    uint64_t whole_row, part_row, bytes;
    int64_t  n, period; /* of the part; of its map, see gdn.h */
    int32_t  rank, n_ranks;
};

/* All heads of one kind of one sequence, to the part or from it. */
static void move_heads(const struct heads *s, int64_t b, bool to_part)
{
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t round = i / s->period, j = i % s->period;
        const int64_t of_whole = (round * s->n_ranks + s->rank) * s->period + j;
        char *whole = s->whole + (uint64_t)b * s->whole_row + (uint64_t)of_whole * s->bytes;
        char *part  = s->part + (uint64_t)b * s->part_row + (uint64_t)i * s->bytes;
        memcpy(to_part ? part : whole, to_part ? whole : part, (size_t)s->bytes);
    }
}

/* The states and the three kinds of channels. */
static void move_parts(const struct side *whole, const struct side *part, bool to_part)
{
    const struct gdn_blob_header *h = &part->h;
    const bool     has_state = h->state_dtype != GDN_BLOB_NO_DTYPE;
    const bool     has_conv  = h->conv_dtype != GDN_BLOB_NO_DTYPE;
    const uint64_t K = (uint64_t)h->key_head_dim, V = (uint64_t)h->value_head_dim;
    const uint64_t entry = has_conv ? gdn_dtype_bytes(h->conv_dtype) * (uint64_t)h->conv_length : 0;
    const int32_t  n_state = h->n_query_heads > h->n_value_heads ? h->n_query_heads
                                                                 : h->n_value_heads;
    const struct {
        int32_t  n;
        uint64_t bytes;
    } kinds[] = { { n_state, has_state ? K * V * gdn_dtype_bytes(h->state_dtype) : 0 },
                  { h->n_query_heads, K * entry },
                  { h->n_key_heads, K * entry },
                  { h->n_value_heads, V * entry } };

    struct heads s = { .rank = h->rank, .n_ranks = h->n_ranks };
    for (int i = 0; i < 4; i++) {
        const bool is_state = i == 0;
        if (i < 2) {
            s.whole     = whole->data + (is_state ? whole->p.state : whole->p.conv);
            s.part      = part->data + (is_state ? part->p.state : part->p.conv);
            s.whole_row = is_state ? whole->p.state_bytes : whole->p.conv_bytes;
            s.part_row  = is_state ? part->p.state_bytes : part->p.conv_bytes;
        }
        s.n      = kinds[i].n;
        s.bytes  = kinds[i].bytes;
        s.period = h->head_map == GDN_HEADS_GROUPED ? s.n : least_heads(h);
        for (int64_t b = 0; b < h->n_sequences && s.bytes; b++) move_heads(&s, b, to_part);
        s.part += (uint64_t)s.n * s.bytes; /* the next kind of channels */
        s.whole += (uint64_t)s.n * (uint64_t)s.n_ranks * s.bytes;
    }
}

/* Room for a result, apart from its n sources. */
static gdn_status check_out(gdn_ctx *ctx, const struct side *out, size_t out_bytes,
                            const void *const *blobs, const size_t *bytes, int32_t n)
{
    const gdn_tensor to = bytes_of(out->data, (size_t)out->p.total);
    TRY(gdn_blob_check_memory(ctx, out->data, "out"));
    if (out_bytes < out->p.total)
        return gdn_fail(ctx, GDN_E_MEMORY, "out_bytes: %zu, wanted at least %llu", out_bytes,
                        (unsigned long long)out->p.total);
    TRY(gdn_check_tensor(ctx, &to, "out"));
    for (int32_t i = 0; i < n; i++) {
        const gdn_tensor from = bytes_of(blobs[i], bytes[i]);
        TRY(gdn_check_no_overlap(ctx, &to, "out", &from, "a blob that is read", false));
    }
    return GDN_OK;
}

/* The header of a result and its positions, which are those of a source. */
static void begin_out(const struct side *out, const struct side *from)
{
    write_zeros(out->data, &out->h, &out->p);
    memcpy(out->data + out->p.position, from->data + from->p.position,
           (size_t)out->h.n_sequences * sizeof(int64_t));
}

static gdn_status slice(gdn_ctx *ctx, const void *blob, size_t bytes, int32_t rank, int32_t n_ranks,
                        void *out, size_t out_bytes, size_t *needed)
{
    struct side whole = { .data = (char *)blob }, part = { .data = out };
    if (!out && !needed) return gdn_fail(ctx, GDN_E_ARG, "out: NULL, and needed too");
    TRY(gdn_blob_open(ctx, blob, bytes, "blob", &whole.h, &whole.p));
    if (whole.h.n_ranks != 1)
        return gdn_fail(ctx, GDN_E_ARG, "blob: rank %d of %d, wanted a whole layer",
                        (int)whole.h.rank, (int)whole.h.n_ranks);
    if (n_ranks < 1) return gdn_fail(ctx, GDN_E_ARG, "n_ranks: %d, wanted 1 or more", (int)n_ranks);
    if (rank < 0 || rank >= n_ranks)
        return gdn_fail(ctx, GDN_E_ARG, "rank: %d, wanted 0 to %d", (int)rank, (int)n_ranks - 1);
    TRY(check_cut(ctx, &whole.h, n_ranks));
    part.h = whole.h;
    part.h.n_query_heads /= n_ranks, part.h.n_key_heads /= n_ranks;
    part.h.n_value_heads /= n_ranks;
    part.h.rank    = rank;
    part.h.n_ranks = n_ranks;
    TRY(gdn_blob_place(ctx, &part.h, "out", &part.p));
    part.h.total_bytes = part.p.total;
    if (out) {
        TRY(check_out(ctx, &part, out_bytes, &blob, &bytes, 1));
        begin_out(&part, &whole);
        move_parts(&whole, &part, true);
        gdn_blob_seal(out, &part.h);
    }
    if (needed) *needed = (size_t)part.p.total;
    return GDN_OK;
}

gdn_status gdn_blob_slice(gdn_ctx *ctx, const void *blob, size_t bytes, int32_t rank,
                          int32_t n_ranks, void *out, size_t out_bytes, size_t *needed)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, slice(ctx, blob, bytes, rank, n_ranks, out, out_bytes, needed));
}

/* ---- Merging ------------------------------------------------------------------------------- */

/* Parts of one layer differ in rank alone. */
static gdn_status check_part(gdn_ctx *ctx, const struct gdn_blob_header *h,
                             const struct gdn_blob_header *first, const char *name)
{
    const struct {
        const char *name;
        int64_t     found, wanted;
    } fields[] = {
        { "n_ranks", h->n_ranks, first->n_ranks },
        { "n_sequences", h->n_sequences, first->n_sequences },
        { "head_map", h->head_map, first->head_map },
        { "n_query_heads", h->n_query_heads, first->n_query_heads },
        { "n_key_heads", h->n_key_heads, first->n_key_heads },
        { "n_value_heads", h->n_value_heads, first->n_value_heads },
        { "key_head_dim", h->key_head_dim, first->key_head_dim },
        { "value_head_dim", h->value_head_dim, first->value_head_dim },
        { "state_dtype", h->state_dtype, first->state_dtype },
        { "state_layout", h->state_layout, first->state_layout },
        { "conv_dtype", h->conv_dtype, first->conv_dtype },
        { "conv_length", h->conv_length, first->conv_length },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].found != fields[i].wanted)
            return gdn_fail(ctx, GDN_E_ARG, "%s: %s is %lld, but %lld in blobs[0]", name,
                            fields[i].name, (long long)fields[i].found,
                            (long long)fields[i].wanted);
    return GDN_OK;
}

static struct gdn_blob_header header_of(const void *blob)
{
    struct gdn_blob_header h;
    memcpy(&h, blob, sizeof h);
    return h;
}

static gdn_status check_parts(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes,
                              int32_t n, struct side *first)
{
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    char                   name[32];
    TRY(gdn_blob_open(ctx, blobs[0], bytes[0], "blobs[0]", &first->h, &first->p));
    first->data = (char *)blobs[0];
    if (first->h.n_ranks != n)
        return gdn_fail(ctx, GDN_E_ARG, "n: %d blobs, but blobs[0] is one of %d parts", (int)n,
                        (int)first->h.n_ranks);
    for (int32_t i = 1; i < n; i++) {
        snprintf(name, sizeof name, "blobs[%d]", (int)i);
        TRY(gdn_blob_open(ctx, blobs[i], bytes[i], name, &h, &p));
        TRY(check_part(ctx, &h, &first->h, name));
        if (memcmp((const char *)blobs[i] + p.position, first->data + p.position,
                   (size_t)h.n_sequences * sizeof(int64_t)))
            return gdn_fail(ctx, GDN_E_ARG, "%s: other positions than blobs[0]", name);
        for (int32_t j = 0; j < i; j++)
            if (header_of(blobs[j]).rank == h.rank)
                return gdn_fail(ctx, GDN_E_ARG, "%s: rank %d, as blobs[%d]", name, (int)h.rank,
                                (int)j);
    }
    return GDN_OK;
}

static gdn_status merge(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes, int32_t n,
                        void *out, size_t out_bytes, size_t *needed)
{
    struct side whole = { .data = out }, part;
    if (!blobs || !bytes)
        return gdn_fail(ctx, GDN_E_ARG, "%s: NULL", blobs ? "bytes" : "blobs");
    if (n < 1) return gdn_fail(ctx, GDN_E_ARG, "n: %d, wanted 1 or more", (int)n);
    if (!out && !needed) return gdn_fail(ctx, GDN_E_ARG, "out: NULL, and needed too");
    TRY(check_parts(ctx, blobs, bytes, n, &part));
    whole.h = part.h;
    if (__builtin_mul_overflow(whole.h.n_query_heads, n, &whole.h.n_query_heads) ||
        __builtin_mul_overflow(whole.h.n_key_heads, n, &whole.h.n_key_heads) ||
        __builtin_mul_overflow(whole.h.n_value_heads, n, &whole.h.n_value_heads))
        return gdn_fail(ctx, GDN_E_SHAPE, "blobs: more heads than 2^31 - 1");
    whole.h.rank    = 0;
    whole.h.n_ranks = 1;
    TRY(check_cut(ctx, &whole.h, n));
    TRY(gdn_blob_place(ctx, &whole.h, "out", &whole.p));
    whole.h.total_bytes = whole.p.total;
    if (out) {
        TRY(check_out(ctx, &whole, out_bytes, blobs, bytes, n));
        begin_out(&whole, &part);
        for (int32_t i = 0; i < n; i++) {
            part.data = (char *)blobs[i];
            part.h    = header_of(blobs[i]);
            move_parts(&whole, &part, false);
        }
        gdn_blob_seal(out, &whole.h);
    }
    if (needed) *needed = (size_t)whole.p.total;
    return GDN_OK;
}

gdn_status gdn_blob_merge(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes, int32_t n,
                          void *out, size_t out_bytes, size_t *needed)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, merge(ctx, blobs, bytes, n, out, out_bytes, needed));
}
