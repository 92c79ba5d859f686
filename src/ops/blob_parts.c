/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a layer: whole blobs to slices and back. Heads are moved as bytes, so no value changes.
 * Everything is checked before the first byte is written.
 */
#include "state/blob.h"

#include <stdio.h>

#include "core/tensor_check.h"

/* ---- Slices -------------------------------------------------------------------------------- */

/* A blob as memory to move heads from or to. */
struct side {
    char *data;
    struct gdn_blob_header h;
    struct gdn_blob_places p;
};

static int32_t least_heads(const struct gdn_blob_header *h)
{
    const int32_t n = h->n_query_heads < h->n_key_heads ? h->n_query_heads : h->n_key_heads;
    return n < h->n_value_heads ? n : h->n_value_heads;
}

static int32_t state_heads(const struct gdn_blob_header *h)
{
    return h->n_query_heads > h->n_value_heads ? h->n_query_heads : h->n_value_heads;
}

/* Returns true if this whole can be cut into n parts. */
static gdn_status check_cut(gdn_ctx *ctx, const struct gdn_blob_header *h, int32_t n)
{
    const int32_t Hq = h->n_query_heads, Hk = h->n_key_heads, Hv = h->n_value_heads;
    const int32_t G = least_heads(h), H = state_heads(h);
    if (H % n || (Hq % n && n % Hq) || (Hk % n && n % Hk) || (Hv % n && n % Hv))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "n_ranks: %d, wanted a divisor of %d state heads, and a divisor or a "
                        "multiple of %d, %d, %d heads of q, k, v",
                        (int)n, (int)H, (int)Hq, (int)Hk, (int)Hv);
    if (h->head_map == GDN_HEADS_GROUPED) return GDN_OK;
    if (Hq % G || Hk % G || Hv % G)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "blob: interleaved, %d, %d, %d heads of q, k, v, wanted multiples of %d",
                        (int)Hq, (int)Hk, (int)Hv, (int)G);
    if (n > G && ((Hq != G && Hq != H) || (Hk != G && Hk != H) || (Hv != G && Hv != H)))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "n_ranks: %d, interleaved, %d, %d, %d heads of q, k, v, wanted %d or %d of "
                        "each",
                        (int)n, (int)Hq, (int)Hk, (int)Hv, (int)G, (int)H);
    return GDN_OK;
}

/* Heads of one kind, whole and part: where they begin, bytes of a head and of a sequence. */
struct heads {
    char *whole, *part;
    uint64_t whole_row, part_row, bytes;
    int64_t n, period;             /* of the part; of its map, see gdn_blob.h */
    int32_t rank, n_ranks, copies; /* copies: how many ranks have each head of this kind */
    int32_t most_copies;           /* of any kind */
    bool grouped;
};

/* Returns the number in the whole of the part's head i. */
static int64_t whole_head(const struct heads *s, int64_t i)
{
    const int64_t round = i / s->period, j = i % s->period;
    if (s->grouped || s->copies > 1) return (s->rank / s->copies) * s->n + i;
    if (s->most_copies == 1) return (round * s->n_ranks + s->rank) * s->period + j;
    /* heads that read one head of the smaller tensors follow each other */
    const int32_t G = s->n_ranks / s->most_copies, g = s->rank / s->most_copies;
    return g + G * ((s->rank % s->most_copies) * s->n + i);
}

static int32_t most_copies(const struct gdn_blob_header *h)
{
    int32_t most = 1;
    for (int i = 0; i < 3; i++)
        if (gdn_blob_copies(h, i) > most) most = gdn_blob_copies(h, i);
    return most;
}

/* Moves all heads of one kind of one sequence: to the part, or from it. */
static void move_heads(const struct heads *s, int64_t b, bool to_part)
{
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t of_whole = whole_head(s, i);
        char *whole = s->whole + (uint64_t)b * s->whole_row + (uint64_t)of_whole * s->bytes;
        char *part = s->part + (uint64_t)b * s->part_row + (uint64_t)i * s->bytes;
        memcpy(to_part ? part : whole, to_part ? whole : part, (size_t)s->bytes);
    }
}

/* Moves the states, their scales and the three kinds of channels. */
static void move_parts(const struct side *whole, const struct side *part, bool to_part)
{
    const struct gdn_blob_header *h = &part->h;
    const bool has_state = h->state_dtype != GDN_BLOB_NO_DTYPE;
    const bool has_conv = h->conv_dtype != GDN_BLOB_NO_DTYPE;
    const uint64_t K = (uint64_t)h->key_head_dim, V = (uint64_t)h->value_head_dim;
    const uint64_t entry = has_conv ? gdn_dtype_bytes(h->conv_dtype) * (uint64_t)h->conv_length : 0;
    const struct gdn_blob_places *p = &part->p, *w = &whole->p;
    const struct {
        int32_t n, copies;
        uint64_t bytes, part, whole, part_row, whole_row; /* part, whole: 0: behind the last */
    } kinds[] = {
        { state_heads(h), 1, has_state ? K * V * gdn_dtype_bytes(h->state_dtype) : 0, p->state,
          w->state, p->state_bytes, w->state_bytes },
        { state_heads(h), 1, p->scales_bytes ? V * sizeof(float) : 0, p->scales, w->scales,
          p->scales_bytes, w->scales_bytes },
        { h->n_query_heads, gdn_blob_copies(h, 0), K * entry, p->conv, w->conv, p->conv_bytes,
          w->conv_bytes },
        { h->n_key_heads, gdn_blob_copies(h, 1), K * entry, 0, 0, p->conv_bytes, w->conv_bytes },
        { h->n_value_heads, gdn_blob_copies(h, 2), V * entry, 0, 0, p->conv_bytes, w->conv_bytes }
    };

    struct heads s = { .rank = h->rank,
                       .n_ranks = h->n_ranks,
                       .most_copies = most_copies(h),
                       .grouped = h->head_map == GDN_HEADS_GROUPED };
    for (int i = 0; i < 5; i++) {
        if (kinds[i].part) s.part = part->data + kinds[i].part;
        if (kinds[i].whole) s.whole = whole->data + kinds[i].whole;
        s.part_row = kinds[i].part_row;
        s.whole_row = kinds[i].whole_row;
        s.n = kinds[i].n;
        s.copies = kinds[i].copies;
        s.bytes = kinds[i].bytes;
        s.period = s.grouped ? s.n : least_heads(h);
        for (int64_t b = 0; b < h->n_sequences && s.bytes; b++) move_heads(&s, b, to_part);
        s.part += (uint64_t)s.n * s.bytes; /* the next kind of channels */
        s.whole += (uint64_t)s.n * (uint64_t)(s.n_ranks / s.copies) * s.bytes;
    }
}

/* Checks room for a result, apart from its n sources. */
static gdn_status check_out(gdn_ctx *ctx, const struct side *out, size_t out_bytes,
                            const void *const *blobs, const size_t *bytes, int32_t n)
{
    const gdn_tensor to = gdn_blob_memory(out->data, (size_t)out->p.total);
    TRY(gdn_blob_check_memory(ctx, out->data, "out"));
    if (out_bytes < out->p.total)
        return gdn_fail(ctx, GDN_E_MEMORY, "out_bytes: %zu, wanted at least %llu", out_bytes,
                        (unsigned long long)out->p.total);
    TRY(gdn_check_tensor(ctx, &to, "out"));
    for (int32_t i = 0; i < n; i++) {
        const gdn_tensor from = gdn_blob_memory(blobs[i], bytes[i]);
        TRY(gdn_check_no_overlap(ctx, &to, "out", &from, "a blob that is read", false));
    }
    return GDN_OK;
}

/* Writes the header of a result and its positions, which are those of a source. */
static void begin_out(const struct side *out, const struct side *from)
{
    gdn_blob_clear(out->data, &out->h, &out->p);
    memcpy(out->data + out->p.position, from->data + from->p.position,
           (size_t)out->h.n_sequences * sizeof(int64_t));
}

/* Changes the heads of the whole into those of a part. *copies: how many ranks have each head. */
static void cut_heads(int32_t *heads, int32_t *copies, int32_t n_ranks)
{
    *copies = *heads < n_ranks ? n_ranks / *heads : 1;
    *heads = *heads < n_ranks ? 1 : *heads / n_ranks;
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
    cut_heads(&part.h.n_query_heads, &part.h.copies[0], n_ranks);
    cut_heads(&part.h.n_key_heads, &part.h.copies[1], n_ranks);
    cut_heads(&part.h.n_value_heads, &part.h.copies[2], n_ranks);
    part.h.rank = rank;
    part.h.n_ranks = n_ranks;
    gdn_blob_set_version(&part.h);
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

/* Checks that parts of one layer differ in rank alone. */
static gdn_status check_part(gdn_ctx *ctx, const struct gdn_blob_header *h,
                             const struct gdn_blob_header *first, const char *name)
{
    const struct {
        const char *name;
        int64_t found, wanted;
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
        { "query_copies", gdn_blob_copies(h, 0), gdn_blob_copies(first, 0) },
        { "key_copies", gdn_blob_copies(h, 1), gdn_blob_copies(first, 1) },
        { "value_copies", gdn_blob_copies(h, 2), gdn_blob_copies(first, 2) },
        { "no_scales", h->no_scales, first->no_scales },
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

/* Returns true if two parts of one layer have the same inputs of the channels from `first` on. */
static bool are_equal_channels(const struct side *like, const void *a, const void *b,
                               uint64_t first, uint64_t n)
{
    const struct gdn_blob_header *h = &like->h;
    const uint64_t bytes = gdn_dtype_bytes(h->conv_dtype) * (uint64_t)h->conv_length;
    for (int64_t s = 0; s < h->n_sequences; s++) {
        const uint64_t at = like->p.conv + (uint64_t)s * like->p.conv_bytes + first * bytes;
        if (memcmp((const char *)a + at, (const char *)b + at, (size_t)(n * bytes))) return false;
    }
    return true;
}

/* Checks that copies of a head agree. The parts have one form, which is that of the first. */
static gdn_status check_copies(gdn_ctx *ctx, const void *const *blobs, int32_t n,
                               const struct side *like)
{
    static const char *const names[] = { "q", "k", "v" };
    const struct gdn_blob_header *h = &like->h;
    const uint64_t K = (uint64_t)h->key_head_dim, V = (uint64_t)h->value_head_dim;
    const uint64_t ends[] = { 0, (uint64_t)h->n_query_heads * K,
                              ((uint64_t)h->n_query_heads + (uint64_t)h->n_key_heads) * K };
    for (int t = 0; t < 3 && h->conv_dtype != GDN_BLOB_NO_DTYPE; t++) {
        const int32_t copies = gdn_blob_copies(h, t);
        for (int32_t i = 1; i < n && copies > 1; i++) {
            int32_t j = 0; /* the first part with the same head */
            const int32_t head = header_of(blobs[i]).rank / copies;
            while (header_of(blobs[j]).rank / copies != head) j++;
            if (!are_equal_channels(like, blobs[i], blobs[j], ends[t], t == 2 ? V : K))
                return gdn_fail(ctx, GDN_E_ARG,
                                "blobs[%d]: conv_state: other inputs of head %d "
                                "of %s than blobs[%d]",
                                (int)i, (int)head, names[t], (int)j);
        }
    }
    return GDN_OK;
}

static gdn_status check_parts(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes,
                              int32_t n, struct side *first)
{
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    char name[32];
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
    return check_copies(ctx, blobs, n, first);
}

/* Joins the heads of the whole. */
static gdn_status join_heads(gdn_ctx *ctx, int32_t *heads, int32_t copies, int32_t n)
{
    if (__builtin_mul_overflow(*heads, n / copies, heads))
        return gdn_fail(ctx, GDN_E_SHAPE, "blobs: more heads than 2^31 - 1");
    return GDN_OK;
}

static gdn_status merge(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes, int32_t n,
                        void *out, size_t out_bytes, size_t *needed)
{
    struct side whole = { .data = out }, part;
    if (!blobs || !bytes) return gdn_fail(ctx, GDN_E_ARG, "%s: NULL", blobs ? "bytes" : "blobs");
    if (n < 1) return gdn_fail(ctx, GDN_E_ARG, "n: %d, wanted 1 or more", (int)n);
    if (!out && !needed) return gdn_fail(ctx, GDN_E_ARG, "out: NULL, and needed too");
    TRY(check_parts(ctx, blobs, bytes, n, &part));
    whole.h = part.h;
    TRY(join_heads(ctx, &whole.h.n_query_heads, gdn_blob_copies(&part.h, 0), n));
    TRY(join_heads(ctx, &whole.h.n_key_heads, gdn_blob_copies(&part.h, 1), n));
    TRY(join_heads(ctx, &whole.h.n_value_heads, gdn_blob_copies(&part.h, 2), n));
    memset(whole.h.copies, 0, sizeof whole.h.copies);
    whole.h.rank = 0;
    whole.h.n_ranks = 1;
    gdn_blob_set_version(&whole.h);
    TRY(check_cut(ctx, &whole.h, n));
    TRY(gdn_blob_place(ctx, &whole.h, "out", &whole.p));
    whole.h.total_bytes = whole.p.total;
    if (out) {
        TRY(check_out(ctx, &whole, out_bytes, blobs, bytes, n));
        begin_out(&whole, &part);
        for (int32_t i = 0; i < n; i++) {
            part.data = (char *)blobs[i];
            part.h = header_of(blobs[i]);
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
