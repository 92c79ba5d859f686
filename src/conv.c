/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_conv1d: items are blocks of channels times parts of the list of sequences. An item
 * converts its weights once; then, sequence by sequence, it loads the window of past inputs,
 * writes the states (all from inputs, and before out may overwrite x), and lets the inner loop
 * run over a few tokens at a time, so that whole pieces of rows stream by.
 */
#include "conv.h"

#include "ops.h"
#include "tensor.h"

enum {
    CHANNELS = 1024, /* of an item at most: 2 W rows of them are the scratch of a thread */
    TOKENS   = 16,   /* per call of the inner loop: few enough rows in and out at once */
    LANES    = 64,   /* channels per transposed tile, */
    ENTRIES  = 8     /* and entries */
};
_Static_assert(2 * GDN_MAX_TAPS * CHANNELS * sizeof(float) <= 65536, "as gdn.h promises");
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
    int64_t                     slot, channel, first;
    int                         n, count;
};

/* Contiguous entries of up to LANES channels, to rows dst[entry][channel]. */
static void load_tile(const struct gdn_kernels *kr, float *dst, ptrdiff_t ld, const struct part *p)
{
    const struct gdn_conv_view *v    = p->view;
    const void                 *from = view_at(v, p->slot, p->channel, p->first);
    float                       tile[LANES * ENTRIES];
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
    const struct gdn_conv_view *v  = p->view;
    void                       *to = view_at(v, p->slot, p->channel, p->first);
    float                       tile[LANES * ENTRIES];
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

/* dst[entry][channel], ld floats apart. count is at most ENTRIES. */
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

/* The way back, of up to LANES channels. */
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

struct block {
    const struct gdn_conv      *conv;
    const struct gdn_kernels   *kr;
    const struct gdn_seq       *seq;
    const struct gdn_conv_view *from; /* where seq starts; NULL: from zero */
    int64_t                     from_slot;
    int64_t                     channel;
    int                         n;
    float                      *weight, *window, *bias; /* [W], [W - 1], [1] rows of CHANNELS */
};

static void load_weights(struct block *b)
{
    const struct gdn_conv *c    = b->conv;
    struct part            part = { &c->weight, 0, b->channel, 0, b->n, c->W };
    load_part(b->kr, b->weight, CHANNELS, &part);
    if (!b->bias) return;
    part.view  = &c->bias;
    part.count = 1;
    load_part(b->kr, b->bias, CHANNELS, &part);
}

static void start_sequence(struct block *b, const struct gdn_seq *s)
{
    const struct gdn_conv *c    = b->conv;
    const int              past = c->W - 1;
    b->seq                      = s;
    b->from                     = s->from_carry ? &c->carry_from : &c->from;
    b->from_slot                = s->from_carry ? 0 : s->read;
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

/* Input t of channels first..+n of the block; t < 0: before the sequence's tokens. Where it
 * lies as floats already, the row itself, else its copy in buffer. */
static const float *input_row(const struct block *b, int64_t t, int first, int n, float *buffer)
{
    const struct gdn_conv *c = b->conv;
    if (t >= 0) {
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

static void store_tiles(const struct block *b, int64_t before, const struct gdn_conv_view *to,
                        int64_t slot)
{
    float tile[ENTRIES][LANES];
    for (int c = 0; c < b->n; c += LANES)
        for (int64_t first = 0; first < to->length; first += ENTRIES) {
            struct part part = { to, slot, b->channel + c, first, b->n - c, ENTRIES };
            if (part.n > LANES) part.n = LANES;
            if (part.count > to->length - first) part.count = (int)(to->length - first);
            for (int i = 0; i < part.count; i++) {
                const float *row = input_row(b, before + first + i, c, part.n, tile[i]);
                if (row != tile[i]) memcpy(tile[i], row, (size_t)part.n * sizeof *row);
            }
            store_part(b->kr, tile[0], LANES, &part);
        }
}

/*
 * The state after the first `end` tokens. Entries are written from the oldest up, so where the
 * slot is the one the sequence starts from, what is still to be read lies ahead.
 */
static void store_state(const struct block *b, int64_t end, const struct gdn_conv_view *to,
                        int64_t slot)
{
    const int64_t before = end - to->length; /* the input of entry 0 */
    float         buffer[CHANNELS];
    if (to->channel != 1) {
        store_tiles(b, before, to, slot);
        return;
    }
    for (int64_t i = 0; i < to->length; i++)
        b->kr->store_row[to->dtype](view_at(to, slot, b->channel, i),
                                    input_row(b, before + i, 0, b->n, buffer), (size_t)b->n);
}

static bool is_start(const struct block *b, const struct gdn_conv_view *to, int64_t slot)
{
    return b->from && b->from->data == to->data && b->from_slot == slot;
}

/* GDN_WRITE_EACH. The slot that the sequence starts from is written when nobody needs it. */
static void store_each(const struct block *b)
{
    const struct gdn_conv *c    = b->conv;
    int64_t                late = -1;
    for (int64_t t = 0; t < b->seq->n_valid; t++) {
        const int64_t slot = gdn_plan_each_slot(c->plan, b->seq, t);
        if (slot < 0) continue;
        if (is_start(b, &c->to, slot))
            late = t;
        else
            store_state(b, t + 1, &c->to, slot);
    }
    if (late >= 0) store_state(b, late + 1, &c->to, b->from_slot);
}

static void store_final(const struct block *b)
{
    const struct gdn_seq       *s    = b->seq;
    const struct gdn_conv_view *to   = s->to_carry ? &b->conv->carry_to : &b->conv->to;
    const int64_t               slot = s->to_carry ? 0 : s->write;
    if (!to->data || slot < 0 || (s->n_valid == 0 && is_start(b, to, slot))) return;
    store_state(b, s->n_valid, to, slot);
}

static void convolve(const struct block *b)
{
    const struct gdn_conv *c       = b->conv;
    const int64_t          element = (int64_t)gdn_dtype_bytes(c->x.dtype);
    const int64_t          offset = b->channel * element, n_valid = b->seq->n_valid;
    if (!c->out.data) return;
    for (int64_t t = 0; t < n_valid; t += TOKENS)
        b->kr->conv[c->x.dtype]((char *)gdn_row(&c->out, b->seq, t, 0) + offset,
                                c->out.token / element,
                                (char *)gdn_row(&c->x, b->seq, t, 0) + offset, c->x.token / element,
                                b->window, b->weight, b->bias, CHANNELS, c->W, c->silu,
                                n_valid - t < TOKENS ? n_valid - t : TOKENS, b->n);
}

/* ---- Items ------------------------------------------------------------------------------- */

struct run {
    const struct gdn_conv    *conv;
    const struct gdn_kernels *kr;
    char                     *scratch;
    size_t                    thread_bytes;
    int64_t                   channels, n_blocks, n_parts; /* of an item; items: the product */
};

static void run_item(void *arg, int64_t item, int thread)
{
    const struct run      *r       = arg;
    const struct gdn_conv *c       = r->conv;
    const int64_t          part    = item / r->n_blocks;
    const int64_t          channel = item % r->n_blocks * r->channels;
    float *scratch = (float *)(void *)(r->scratch + (size_t)thread * r->thread_bytes);

    struct block b = { .conv = c, .kr = r->kr, .channel = channel };
    b.n            = (int)(c->D - channel < r->channels ? c->D - channel : r->channels);
    b.weight       = scratch;
    b.window       = b.weight + c->W * CHANNELS;
    b.bias         = c->bias.data ? b.window + (c->W - 1) * CHANNELS : NULL;
    load_weights(&b);

    const bool    each = c->plan && c->plan->batch.write == GDN_WRITE_EACH;
    const int64_t end  = (part + 1) * c->n_seqs / r->n_parts;
    for (int64_t i = part * c->n_seqs / r->n_parts; i < end; i++) {
        if (c->seqs[i].n_tokens == 0) continue;
        start_sequence(&b, &c->seqs[i]);
        if (each)
            store_each(&b);
        else
            store_final(&b);
        convolve(&b);
    }
}

size_t gdn_conv_scratch(const struct gdn_conv *conv)
{
    return 2 * (size_t)conv->W * CHANNELS * sizeof(float);
}

void gdn_conv_run(gdn_ctx *ctx, const struct gdn_conv *conv, void *scratch)
{
    const int64_t wanted = 4 * (int64_t)gdn_pool_threads(ctx->pool); /* items, to balance them */
    struct run    r      = { .conv = conv, .kr = ctx->kr, .scratch = scratch };
    r.thread_bytes       = gdn_conv_scratch(conv);
    r.channels           = (conv->D / wanted + LANES) / LANES * LANES;
    if (r.channels < 2 * LANES) r.channels = 2 * LANES;
    if (r.channels > CHANNELS) r.channels = CHANNELS;
    r.n_blocks = (conv->D + r.channels - 1) / r.channels;
    r.n_parts  = r.n_blocks > 0 ? (wanted + r.n_blocks - 1) / r.n_blocks : 1;
    if (r.n_parts > conv->n_seqs) r.n_parts = conv->n_seqs;
    gdn_parallel_for(ctx->pool, r.n_blocks * r.n_parts, run_item, &r);
}

/* ---- Descriptors ------------------------------------------------------------------------- */

gdn_status gdn_conv_weights(gdn_ctx *ctx, const gdn_tensor *weight, const char *weight_name,
                            const gdn_tensor *bias, const char *bias_name, struct gdn_conv *conv)
{
    const int64_t D = conv->D, size[] = { D, -1, -1 };
    if (!weight->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", weight_name);
    TRY(gdn_check_tensor(ctx, weight, weight_name));
    TRY(gdn_check_dtype(ctx, weight, weight_name, GDN_FLOATS));
    const int last = weight->ndim - 1;
    TRY(gdn_check_shape(ctx, weight, weight_name, last == 2 ? 3 : 2, size));
    if (last == 2 && weight->size[1] != 1)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: [%lld][%lld][%lld], wanted 1 in the middle",
                        weight_name, (long long)D, (long long)weight->size[1],
                        (long long)weight->size[2]);
    const int64_t W = weight->size[last];
    if (W < 2 || W > GDN_MAX_TAPS)
        return gdn_fail(ctx, W < 2 ? GDN_E_SHAPE : GDN_E_UNSUPPORTED,
                        "%s: %lld taps, wanted 2 to %d", weight_name, (long long)W, GDN_MAX_TAPS);
    conv->W      = (int)W;
    conv->weight = (struct gdn_conv_view){ .data    = weight->data,
                                           .dtype   = weight->dtype,
                                           .channel = weight->stride[0],
                                           .entry   = weight->stride[last],
                                           .length  = W };
    conv->bias   = (struct gdn_conv_view){ 0 };
    if (!bias->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, bias, bias_name));
    TRY(gdn_check_dtype(ctx, bias, bias_name, GDN_FLOATS));
    TRY(gdn_check_shape(ctx, bias, bias_name, 1, size));
    conv->bias = (struct gdn_conv_view){
        .data = bias->data, .dtype = bias->dtype, .channel = bias->stride[0], .length = 1
    };
    return GDN_OK;
}

gdn_status gdn_conv_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                               const struct gdn_conv *conv, struct gdn_conv_view *view)
{
    const int64_t size[] = { -1, conv->D, -1 };
    *view                = (struct gdn_conv_view){ 0 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
    TRY(gdn_check_shape(ctx, t, name, 3, size));
    if (t->size[2] < conv->W - 1)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld entries per channel, wanted at least %d", name,
                        (long long)t->size[2], conv->W - 1);
    *view = (struct gdn_conv_view){ .data    = t->data,
                                    .dtype   = t->dtype,
                                    .slot    = t->stride[0],
                                    .channel = t->stride[1],
                                    .entry   = t->stride[2],
                                    .length  = t->size[2] };
    return GDN_OK;
}

/* ---- The call ------------------------------------------------------------------------------ */

struct conv_call {
    gdn_conv1d_args   args;
    struct gdn_tokens tokens;
    struct gdn_plan   plan;
    struct gdn_conv   conv;
    size_t            plan_bytes, bytes;
};

static gdn_status check_rows(gdn_ctx *ctx, struct conv_call *c)
{
    const gdn_conv1d_args *a = &c->args;
    TRY(gdn_plan_tokens(ctx, &a->x, "x", 1, false, &c->tokens));
    TRY(gdn_check_dtype(ctx, &a->x, "x", GDN_FLOATS));
    TRY(gdn_check_dense(ctx, &a->x, "x"));
    c->conv.D = a->x.size[a->x.ndim - 1];
    if (!a->out.data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, &a->out, "out"));
    TRY(gdn_check_dtype(ctx, &a->out, "out", 1u << a->x.dtype));
    TRY(gdn_plan_check(ctx, &c->tokens, &a->out, "out", 1, &c->conv.D));
    TRY(gdn_check_dense(ctx, &a->out, "out"));
    return gdn_check_injective(ctx, &a->out, "out");
}

/* What is written overlaps nothing else. */
static gdn_status check_overlaps(gdn_ctx *ctx, const struct conv_call *c, const gdn_tensor *written,
                                 const char *name)
{
    const gdn_conv1d_args *a = &c->args;
    const struct {
        const gdn_tensor *t;
        const char       *name;
        bool              may_be_same;
    } others[] = {
        { &a->x, "x", written == &a->out },    { &a->weight, "weight", false },
        { &a->bias, "bias", false },           { &a->state, "state", written == &a->state_out },
        { &a->state_out, "state_out", false }, { &a->out, "out", false },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t != written)
            TRY(gdn_check_no_overlap(ctx, written, name, others[i].t, others[i].name,
                                     others[i].may_be_same));
    return gdn_plan_check_overlaps(ctx, &c->plan.batch, written, name);
}

static gdn_status check_states(gdn_ctx *ctx, struct conv_call *c)
{
    const gdn_conv1d_args *a = &c->args;
    struct gdn_conv       *r = &c->conv;
    TRY(gdn_conv_state_view(ctx, &a->state, "state", r, &r->from));
    TRY(gdn_conv_state_view(ctx, &a->state_out, "state_out", r, &r->to));
    if (r->from.data && r->to.data && r->from.length != r->to.length)
        return gdn_fail(ctx, GDN_E_SHAPE, "state_out: %lld entries per channel, but state has %lld",
                        (long long)r->to.length, (long long)r->from.length);
    if (!r->to.data) r->to = r->from;

    const gdn_tensor *to     = a->state_out.data ? &a->state_out : &a->state;
    const char       *name   = a->state_out.data ? "state_out" : "state";
    const bool        writes = to->data && c->plan.batch.write != GDN_WRITE_NONE;
    if (!a->out.data && !writes)
        return gdn_fail(ctx, GDN_E_ARG, "out: absent, and no state is written");
    TRY(check_overlaps(ctx, c, &a->out, "out"));
    if (!writes) return GDN_OK;
    TRY(gdn_check_injective(ctx, to, name));
    return check_overlaps(ctx, c, to, name);
}

static gdn_status describe(gdn_ctx *ctx, const gdn_conv1d_args *args, struct conv_call *c)
{
    const gdn_conv1d_args *a = &c->args;
    *c                       = (struct conv_call){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_conv1d_args"));
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    if (a->activation != GDN_ACT_NONE && a->activation != GDN_ACT_SILU)
        return gdn_fail(ctx, GDN_E_ARG, "activation: %d, wanted 0 (none) or 1 (SiLU)",
                        (int)a->activation);
    TRY(check_rows(ctx, c));
    TRY(gdn_conv_weights(ctx, &a->weight, "weight", &a->bias, "bias", &c->conv));
    TRY(gdn_plan_describe(ctx, a->batch, &c->tokens, GDN_PLAN_EACH, &c->plan));
    TRY(check_states(ctx, c));

    struct gdn_conv *r = &c->conv;
    r->x               = gdn_rows_of(&a->x, &c->tokens);
    r->out             = gdn_rows_of(&a->out, &c->tokens);
    r->silu            = a->activation == GDN_ACT_SILU;
    r->n_seqs          = c->plan.B;
    c->plan_bytes      = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->bytes           = c->plan_bytes + gdn_conv_scratch(r) * (size_t)gdn_pool_threads(ctx->pool);
    return GDN_OK;
}

gdn_status gdn_conv1d_check(gdn_ctx *ctx, const gdn_conv1d_args *args, size_t *bytes)
{
    struct conv_call c;
    TRY(describe(ctx, args, &c));
    *bytes = c.bytes;
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, struct conv_call *c)
{
    const gdn_conv1d_args *a         = &c->args;
    const gdn_tensor      *to        = a->state_out.data ? &a->state_out : &a->state;
    const struct gdn_plan_pools pools = {
        .read       = a->state.data ? a->state.size[0] : -1,
        .write      = to->data ? to->size[0] : -1,
        .checkpoint = -1,
        .same       = to->data == a->state.data,
    };
    char                  *memory;
    void                  *workspace;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, c->bytes, &workspace));
    memory = workspace;
    TRY(gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan));
    c->conv.plan = &c->plan;
    c->conv.seqs = c->plan.seqs;
    gdn_conv_run(ctx, &c->conv, memory + c->plan_bytes);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->conv.out, 1, c->conv.D);
    return GDN_OK;
}

gdn_status gdn_conv1d(gdn_ctx *ctx, const gdn_conv1d_args *args)
{
    if (!ctx) return GDN_E_ARG;
    const uint32_t   fp = gdn_fp_enter();
    struct conv_call c;
    gdn_status       status = describe(ctx, args, &c);
    if (status == GDN_OK) status = run(ctx, &c);
    if (status == GDN_OK) status = gdn_note_kernel(ctx, "conv1d", "conv");
    gdn_fp_leave(fp);
    return status;
}
