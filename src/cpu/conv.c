/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution: items are blocks of channels times parts of the list of sequences. An
 * item converts its weights once; then, sequence by sequence, it loads the window of past
 * inputs, writes the states (all from inputs, and before out may overwrite x), and lets the
 * inner loop run over a few tokens at a time, so that whole pieces of rows stream by.
 */
#include <string.h>

#include "calls/op_backends.h"
#include "cpu/channels.h"
#include "cpu/conv.h"

enum {
    /* Channels of an item, at most. A thread's scratch is 2 W rows of them. A tree has half as many
     * channels: windows of its tokens take the other half. */
    CHANNELS = 1024,
    TOKENS = 16,             /* per call of the inner loop: few enough rows in and out at once */
    TILE = GDN_CHANNEL_TILE, /* channels of that call, if they do not lie side by side */
    LANES = 64,              /* channels of a transposed tile */
    ENTRIES = 16             /* entries of a transposed tile */
};
_Static_assert(2 * 8 * CHANNELS * sizeof(float) <= 65536, "64 KiB a thread for 8 taps");
_Static_assert((int)ENTRIES >= (int)GDN_MAX_TAPS, "weights and windows are one tile");

/* ---- Views ------------------------------------------------------------------------------- */

static void *view_at(const struct gdn_conv_view *v, int64_t slot, int64_t channel, int64_t entry)
{
    const int64_t element = slot * v->slot + channel * v->channel + entry * v->entry;
    return v->data + element * (int64_t)gdn_dtype_bytes(v->dtype);
}

/* Channels lie side by side with all their entries. */
static bool is_dense(const struct gdn_conv_view *v)
{
    return v->entry == 1 && v->channel == v->length && v->length <= ENTRIES;
}

/* The part of a view that one call moves: entries first..+count of channels channel..+n. */
struct part {
    const struct gdn_conv_view *view;
    int64_t slot, channel, first;
    int n, count;
};

/* Contiguous entries of up to LANES channels, to rows dst[entry][channel]. */
static void load_tile(const struct gdn_kernels *kr, float *dst, ptrdiff_t ld, const struct part *p)
{
    const struct gdn_conv_view *v = p->view;
    const void *from = view_at(v, p->slot, p->channel, p->first);
    _Alignas(64) float tile[LANES * ENTRIES];
    if (v->dtype == GDN_F32) {
        kr->transpose(dst, ld, from, v->channel, p->n, p->count);
    } else if (is_dense(v)) {
        from = view_at(v, p->slot, p->channel, 0);
        kr->load_row[v->dtype](tile, from, (size_t)(p->n * v->length));
        kr->transpose(dst, ld, tile + p->first, v->length, p->n, p->count);
    } else {
        for (int c = 0; c < p->n; c++)
            kr->load_row[v->dtype](tile + c * p->count,
                                   view_at(v, p->slot, p->channel + c, p->first), (size_t)p->count);
        kr->transpose(dst, ld, tile, p->count, p->n, p->count);
    }
}

static void store_tile(const struct gdn_kernels *kr, const float *src, ptrdiff_t ld,
                       const struct part *p)
{
    const struct gdn_conv_view *v = p->view;
    void *to = view_at(v, p->slot, p->channel, p->first);
    _Alignas(64) float tile[LANES * ENTRIES];
    if (v->dtype == GDN_F32) {
        kr->transpose(to, v->channel, src, ld, p->count, p->n);
        return;
    }
    kr->transpose(tile, p->count, src, ld, p->count, p->n);
    if (is_dense(v) && p->count == v->length) {
        kr->store_row[v->dtype](to, tile, (size_t)(p->n * p->count));
        return;
    }
    for (int c = 0; c < p->n; c++)
        kr->store_row[v->dtype](view_at(v, p->slot, p->channel + c, p->first), tile + c * p->count,
                                (size_t)p->count);
}

/* Loads dst[entry][channel], ld floats apart. count is at most ENTRIES. */
static void load_part(const struct gdn_kernels *kr, float *dst, ptrdiff_t ld, const struct part *p)
{
    const struct gdn_conv_view *v = p->view;
    for (int i = 0; i < p->count && v->channel == 1; i++)
        kr->load_row[v->dtype](dst + i * ld, view_at(v, p->slot, p->channel, p->first + i),
                               (size_t)p->n);
    if (v->channel == 1) return;
    for (int c = 0; c < p->n && v->entry == 1; c += LANES) {
        struct part tile = *p;
        tile.channel += c;
        tile.n = p->n - c < LANES ? p->n - c : LANES;
        load_tile(kr, dst + c, ld, &tile);
    }
    if (v->entry == 1) return;
    for (int i = 0; i < p->count; i++)
        for (int c = 0; c < p->n; c++)
            kr->load_row[v->dtype](dst + i * ld + c,
                                   view_at(v, p->slot, p->channel + c, p->first + i), 1);
}

/* Stores the way back, of up to LANES channels. */
static void store_part(const struct gdn_kernels *kr, const float *src, ptrdiff_t ld,
                       const struct part *p)
{
    const struct gdn_conv_view *v = p->view;
    if (v->entry == 1) {
        store_tile(kr, src, ld, p);
        return;
    }
    for (int i = 0; i < p->count; i++)
        for (int c = 0; c < p->n; c++)
            kr->store_row[v->dtype](view_at(v, p->slot, p->channel + c, p->first + i),
                                    src + i * ld + c, 1);
}

/* ---- One sequence, one block of channels -------------------------------------------------- */

/* Returns true if a token may follow another token than the one before it. Tokens of a path do
 * not. */
static bool is_tree(const struct gdn_conv *c)
{
    return c->plan->batch.parents.data && !c->plan->batch.path.data;
}

struct block {
    const struct gdn_conv *conv;
    const struct gdn_kernels *kr;
    const struct gdn_seq *seq;
    const struct gdn_conv_view *from; /* where seq starts; NULL: from zero */
    int64_t from_slot;
    int64_t channel;
    int n;
    float *weight, *window, *bias; /* [W], [W - 1], [1] rows of CHANNELS */
    float *branch;                 /* window of a token of a tree */
};

static void load_weights(struct block *b)
{
    const struct gdn_conv *c = b->conv;
    struct part part = { &c->weight, 0, b->channel, 0, b->n, c->W };
    load_part(b->kr, b->weight, CHANNELS, &part);
    if (!b->bias) return;
    part.view = &c->bias;
    part.count = 1;
    load_part(b->kr, b->bias, CHANNELS, &part);
}

static void start_sequence(struct block *b, const struct gdn_seq *s)
{
    const struct gdn_conv *c = b->conv;
    const int past = c->W - 1;
    b->seq = s;
    b->from = s->from_carry ? &c->carry_from : &c->from;
    b->from_slot = s->from_carry ? 0 : s->read;
    if (!b->from->data || b->from_slot < 0) b->from = NULL;
    if (!b->from) {
        for (int i = 0; i < past; i++)
            memset(b->window + i * CHANNELS, 0, (size_t)b->n * sizeof *b->window);
        return;
    }
    const struct part part = {
        b->from, b->from_slot, b->channel, b->from->length - past, b->n, past
    };
    load_part(b->kr, b->window, CHANNELS, &part);
}

/* Returns input t of channels first..+n of the block; t < 0: before the sequence's tokens. That
 * is the row itself if it lies in memory as floats, else a copy in buffer. */
static const float *input_row(const struct block *b, int64_t t, int first, int n, float *buffer)
{
    const struct gdn_conv *c = b->conv;
    if (t >= 0 && c->strided) {
        const struct gdn_channel_tile tile = { t, b->channel + first, 1, n };
        gdn_load_channels(b->kr, &c->x, b->seq, &tile, buffer, 0);
    } else if (t >= 0) {
        const char *row = gdn_row(&c->x, b->seq, t, 0);
        row += (b->channel + first) * (int64_t)gdn_dtype_bytes(c->x.dtype);
        if (c->x.dtype == GDN_F32) return (const float *)(const void *)row;
        b->kr->load_row[c->x.dtype](buffer, row, (size_t)n);
    } else if (t >= 1 - c->W) {
        return b->window + (c->W - 1 + t) * CHANNELS + first;
    } else if (b->from && b->from->length + t >= 0) {
        const struct part part = {
            b->from, b->from_slot, b->channel + first, b->from->length + t, n, 1
        };
        load_part(b->kr, buffer, 0, &part);
    } else {
        memset(buffer, 0, (size_t)n * sizeof *buffer);
    }
    return buffer;
}

/* Returns the token whose input comes n before input t of the sequence, by its tree, path or row.
 * Inputs before its tokens have numbers below 0, and -1 is the newest. */
static int64_t earlier(const struct block *b, int64_t t, int64_t n)
{
    const struct gdn_plan *plan = b->conv->plan;
    if (is_tree(b->conv)) {
        for (; n > 0 && t >= 0; n--) t = gdn_plan_parent(plan, b->seq, t);
        return t - n;
    }
    return t - n < 0 ? t - n : gdn_plan_path(plan, b->seq, t - n);
}

static void store_tiles(const struct block *b, int64_t last, const struct gdn_conv_view *to,
                        int64_t slot)
{
    _Alignas(64) float tile[ENTRIES][LANES];
    for (int c = 0; c < b->n; c += LANES)
        for (int64_t first = 0; first < to->length; first += ENTRIES) {
            struct part part = { to, slot, b->channel + c, first, b->n - c, ENTRIES };
            if (part.n > LANES) part.n = LANES;
            if (part.count > to->length - first) part.count = (int)(to->length - first);
            for (int i = 0; i < part.count; i++) {
                const int64_t t = earlier(b, last, to->length - 1 - first - i);
                const float *row = input_row(b, t, c, part.n, tile[i]);
                if (row != tile[i]) memcpy(tile[i], row, (size_t)part.n * sizeof *row);
            }
            store_part(b->kr, tile[0], LANES, &part);
        }
}

/*
 * The state after token `last` (-1: before all). Entries are written from the oldest up, so
 * where the slot is the one the sequence starts from, what is still to be read lies ahead.
 */
static void store_state(const struct block *b, int64_t last, const struct gdn_conv_view *to,
                        int64_t slot)
{
    _Alignas(64) float buffer[CHANNELS];
    if (to->channel != 1) {
        store_tiles(b, last, to, slot);
        return;
    }
    for (int64_t i = 0; i < to->length; i++) {
        const int64_t t = earlier(b, last, to->length - 1 - i);
        b->kr->store_row[to->dtype](view_at(to, slot, b->channel, i),
                                    input_row(b, t, 0, b->n, buffer), (size_t)b->n);
    }
}

static bool is_start(const struct block *b, const struct gdn_conv_view *to, int64_t slot)
{
    return b->from && b->from->data == to->data && b->from_slot == slot;
}

/* Stores states for GDN_WRITE_EACH. The slot that the sequence starts from is written when it is no
 * longer needed. */
static void store_each(const struct block *b)
{
    const struct gdn_conv *c = b->conv;
    int64_t late = -1;
    for (int64_t t = 0; t < b->seq->n_valid; t++) {
        const int64_t slot = gdn_plan_each_slot(c->plan, b->seq, t);
        if (slot < 0) continue;
        if (is_start(b, &c->to, slot))
            late = t;
        else
            store_state(b, t, &c->to, slot);
    }
    if (late >= 0) store_state(b, late, &c->to, b->from_slot);
}

static void store_checkpoints(const struct block *b)
{
    const struct gdn_conv *c = b->conv;
    const struct gdn_seq *s = b->seq;
    int64_t slot;
    if (!c->checkpoints.data) return;
    for (int64_t i = gdn_plan_checkpoint_after(c->plan, s, 0); i < s->n_checkpoints; i++) {
        const int64_t n = gdn_plan_checkpoint(c->plan, s, i, &slot);
        if (n > s->n_valid) break;
        if (slot >= 0) store_state(b, n - 1, &c->checkpoints, slot);
    }
}

static void store_final(const struct block *b)
{
    const struct gdn_seq *s = b->seq;
    const struct gdn_conv_view *to = s->to_carry ? &b->conv->carry_to : &b->conv->to;
    const int64_t slot = s->to_carry ? 0 : s->write;
    if (!to->data || slot < 0 || (s->n_valid == 0 && is_start(b, to, slot))) return;
    store_state(b, s->n_valid - 1, to, slot);
}

/* The same as convolve() through a tile of floats, up to TILE tokens of up to TILE channels. */
static void convolve_tile(const struct block *b, float *window, int64_t t, int64_t n)
{
    const struct gdn_conv *c = b->conv;
    const struct gdn_channel_tile tile = { t, b->channel, (int)n, b->n };
    _Alignas(64) float rows[TILE][TILE];
    gdn_load_channels(b->kr, &c->x, b->seq, &tile, rows[0], TILE);
    b->kr->conv[GDN_F32](rows, TILE, rows, TILE, window, b->weight, b->bias, CHANNELS, c->W,
                         c->silu, n, b->n);
    gdn_store_channels(b->kr, rows[0], TILE, &c->out, b->seq, &tile);
}

/* Convolves tokens [t, t + n), which follow each other, after those of the window. */
static void convolve(const struct block *b, float *window, int64_t t, int64_t n)
{
    const struct gdn_conv *c = b->conv;
    if (c->strided) {
        convolve_tile(b, window, t, n);
        return;
    }
    const int64_t element = (int64_t)gdn_dtype_bytes(c->x.dtype);
    const int64_t offset = b->channel * element;
    b->kr->conv[c->x.dtype]((char *)gdn_row(&c->out, b->seq, t, 0) + offset, c->out.token / element,
                            (char *)gdn_row(&c->x, b->seq, t, 0) + offset, c->x.token / element,
                            window, b->weight, b->bias, CHANNELS, c->W, c->silu, n, b->n);
}

static void convolve_chain(const struct block *b)
{
    const int64_t n_valid = b->seq->n_valid, most = b->conv->strided ? TILE : TOKENS;
    for (int64_t t = 0; t < n_valid; t += most)
        convolve(b, b->window, t, n_valid - t < most ? n_valid - t : most);
}

/* From the last token back: out may be x, and a token needs the inputs of earlier ones only. */
static void convolve_tree(const struct block *b)
{
    for (int64_t t = b->seq->n_valid - 1; t >= 0; t--) {
        for (int past = b->conv->W - 1, i = 0; i < past; i++) {
            float *to = b->branch + i * CHANNELS;
            const float *row = input_row(b, earlier(b, t, past - i), 0, b->n, to);
            if (row != to) memcpy(to, row, (size_t)b->n * sizeof *to);
        }
        convolve(b, b->branch, t, 1);
    }
}

/* ---- One token on states as they lie ------------------------------------------------------- */

/* Returns true if conv_update() computes a sequence: one token, four taps, and states of the dtype
 * of x that hold three inputs of each channel side by side. */
static bool is_update(const struct gdn_conv *c, const struct gdn_seq *s)
{
    const bool plain =
        !is_tree(c) && c->plan->batch.write != GDN_WRITE_EACH && c->out.data && !c->strided;
    return plain && s->n_valid == 1 && c->W == 4 && !s->from_carry && !s->to_carry &&
           s->read >= 0 && s->write >= 0 && !(c->checkpoints.data && s->n_checkpoints) &&
           c->from.data && c->to.data && is_dense(&c->from) && is_dense(&c->to) &&
           c->from.length == 3 && c->to.length == 3 && c->from.dtype == c->x.dtype &&
           c->to.dtype == c->x.dtype;
}

static void update(const struct block *b, const struct gdn_seq *s)
{
    const struct gdn_conv *c = b->conv;
    const int64_t offset = b->channel * (int64_t)gdn_dtype_bytes(c->x.dtype);
    b->kr->conv_update[c->x.dtype](
        (char *)gdn_row(&c->out, s, 0, 0) + offset, (char *)gdn_row(&c->x, s, 0, 0) + offset,
        view_at(&c->to, s->write, b->channel, 0), view_at(&c->from, s->read, b->channel, 0),
        b->weight, b->bias, CHANNELS, c->silu, b->n);
}

/* ---- Items ------------------------------------------------------------------------------- */

struct run {
    const struct gdn_conv *conv;
    const struct gdn_kernels *kr;
    char *scratch;
    size_t thread_bytes;
    int64_t channels, n_blocks, n_parts; /* of an item; items: the product */
};

static void run_conv1d_item(void *arg, int64_t item, int thread)
{
    const struct run *r = arg;
    const struct gdn_conv *c = r->conv;
    const int64_t part = item / r->n_blocks;
    const int64_t channel = item % r->n_blocks * r->channels;
    float *scratch = (float *)(void *)(r->scratch + (size_t)thread * r->thread_bytes);

    struct block b = { .conv = c, .kr = r->kr, .channel = channel };
    b.n = (int)(c->D - channel < r->channels ? c->D - channel : r->channels);
    b.weight = scratch;
    b.window = b.weight + c->W * CHANNELS;
    b.branch = b.window + CHANNELS / 2;
    b.bias = c->bias.data ? b.window + (c->W - 1) * CHANNELS : NULL;
    load_weights(&b);

    const bool each = c->plan->batch.write == GDN_WRITE_EACH;
    const int64_t end = (part + 1) * c->n_seqs / r->n_parts;
    for (int64_t i = part * c->n_seqs / r->n_parts; i < end; i++) {
        if (c->seqs[i].n_tokens == 0) continue;
        if (is_update(c, &c->seqs[i])) {
            update(&b, &c->seqs[i]);
            continue;
        }
        start_sequence(&b, &c->seqs[i]);
        store_checkpoints(&b);
        if (each)
            store_each(&b);
        else
            store_final(&b);
        if (!c->out.data) continue;
        if (is_tree(c))
            convolve_tree(&b);
        else
            convolve_chain(&b);
    }
}

size_t gdn_conv_scratch(const struct gdn_conv *conv)
{
    return 2 * (size_t)conv->W * CHANNELS * sizeof(float);
}

void gdn_conv_run(gdn_ctx *ctx, const struct gdn_conv *conv, void *scratch)
{
    /* Items, to balance them. */
    const int64_t wanted = 4 * (int64_t)gdn_threads_count(ctx->threads);
    struct run r = { .conv = conv, .kr = ctx->kr, .scratch = scratch };
    r.thread_bytes = gdn_conv_scratch(conv);
    r.channels = (conv->D / wanted + LANES) / LANES * LANES;
    if (r.channels < 2 * LANES) r.channels = 2 * LANES;
    const int64_t most = is_tree(conv) ? CHANNELS / 2 : CHANNELS;
    if (r.channels > most) r.channels = most;
    if (conv->strided) r.channels = TILE;
    r.n_blocks = (conv->D + r.channels - 1) / r.channels;
    r.n_parts = r.n_blocks > 0 ? (wanted + r.n_blocks - 1) / r.n_blocks : 1;
    if (r.n_parts > conv->n_seqs) r.n_parts = conv->n_seqs;
    gdn_parallel_for(ctx->threads, r.n_blocks * r.n_parts, run_conv1d_item, &r);
}

/* ---- gdn_conv1d ---------------------------------------------------------------------------- */

static gdn_status plan_conv1d(gdn_ctx *ctx, void *call)
{
    struct gdn_conv_call *c = call;
    const size_t threads = (size_t)gdn_threads_count(ctx->threads);
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->base.bytes = c->plan_bytes + gdn_conv_scratch(&c->conv) * threads;
    return GDN_OK;
}

static gdn_status run_conv1d(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_conv_call *c = call;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, memory, &c->plan));
    c->conv.plan = &c->plan;
    c->conv.seqs = c->plan.seqs;
    gdn_conv_run(ctx, &c->conv, (char *)memory + c->plan_bytes);
    const bool by_channel = gdn_is_strided(&c->conv.out, c->conv.D);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->conv.out, by_channel ? c->conv.D : 1,
                       by_channel ? 1 : c->conv.D);
    return gdn_note_kernel(ctx, c->base.op, "conv");
}

const struct gdn_op_backend gdn_cpu_op_conv1d = { plan_conv1d, run_conv1d };
