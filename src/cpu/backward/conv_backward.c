/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of the short convolution. An item is a block of channels; it takes all sequences in
 * their order, and of each some tokens at a time, from the last to the first. There
 *
 *     z  = bias + conv(x)      dz = dout act'(z)
 *     dx = the convolution of dz in reverse order with the same weights
 *
 * and both convolutions are the forward's inner loop; its window carries dz of later tokens over.
 * Sums over tokens are float32 within such a group of tokens, then double.
 */
#include <string.h>

#include "calls/conv_backward.h"
#include "calls/op_backends.h"
#include "cpu/channels.h"
#include "cpu/rows.h"

enum { CHANNELS = 64, TOKENS = 32, PAST = GDN_MAX_TAPS - 1 };

typedef float rows_of_channels[CHANNELS];

struct block {
    const struct gdn_conv_backward *conv;
    const struct gdn_kernels *kr;
    const struct gdn_seq *seq;
    int64_t channel;
    int n;
    _Alignas(64) rows_of_channels weight[GDN_MAX_TAPS], bias, later[PAST];
    _Alignas(64) rows_of_channels x[PAST + TOKENS], dz[TOKENS], y[TOKENS];
    _Alignas(64) double sums[GDN_MAX_TAPS + 1][CHANNELS]; /* of weights, of the bias */
};

/* ---- Views, an entry of a block's channels ------------------------------------------------- */

static void *view_at(const struct gdn_conv_view *v, int64_t slot, int64_t channel, int64_t entry)
{
    const int64_t element = slot * v->slot + channel * v->channel + entry * v->entry;
    return v->data + element * (int64_t)gdn_dtype_bytes(v->dtype);
}

static void load_entry(const struct block *b, const struct gdn_conv_view *v, int64_t slot,
                       int64_t entry, float *to)
{
    const bool dense = v->channel == 1;
    for (int c = 0; c < b->n; c += dense ? b->n : 1)
        b->kr->load_row[v->dtype](to + c, view_at(v, slot, b->channel + c, entry),
                                  dense ? (size_t)b->n : 1);
}

static void store_entry(const struct block *b, const struct gdn_conv_view *v, int64_t slot,
                        int64_t entry, float *x)
{
    for (int c = 0; c < b->n; c++)
        gdn_put_gradient(b->kr, view_at(v, slot, b->channel + c, entry), v->dtype, x + c, 1,
                         b->conv->adds);
}

/* Loads n tokens from t on. */
static void load_tokens(const struct block *b, const struct gdn_rows *rows, int64_t t, int n,
                        rows_of_channels *to)
{
    const struct gdn_channel_tile tile = { t, b->channel, n, b->n };
    if (n > 0) gdn_load_channels(b->kr, rows, b->seq, &tile, to[0], CHANNELS);
}

/* ---- Some tokens of a sequence ------------------------------------------------------------- */

/* Loads inputs t - W + 1 to t + n - 1; b->x[0] is the first. */
static void load_inputs(struct block *b, int64_t t, int n)
{
    const struct gdn_conv_backward *c = b->conv;
    const int past = c->W - 1, n_old = t < past ? past - (int)t : 0;
    for (int i = 0; i < n_old; i++) {
        const int64_t at = t - past + i;
        if (c->state.data)
            load_entry(b, &c->state, b->seq->row, c->state.length + at, b->x[i]);
        else
            memset(b->x[i], 0, sizeof b->x[i]);
    }
    load_tokens(b, &c->x, t - past + n_old, past + n - n_old, b->x + n_old);
}

/* Finds dz of n tokens from t on. */
static void find_dz(struct block *b, int64_t t, int n)
{
    const struct gdn_conv_backward *c = b->conv;
    const int past = c->W - 1;
    _Alignas(64) rows_of_channels window[PAST], slope;
    memcpy(window, b->x, (size_t)past * sizeof *window);
    if (c->silu)
        b->kr->conv[GDN_F32](b->y, CHANNELS, b->x[past], CHANNELS, window[0], b->weight[0],
                             c->bias.data ? b->bias : NULL, CHANNELS, c->W, false, n, b->n);
    load_tokens(b, &c->dout, t, n, b->dz);
    for (int i = 0; i < n && c->silu; i++) {
        b->kr->slope_row(NULL, slope, b->y[i], false, (size_t)b->n);
        b->kr->norm_row(b->dz[i], b->dz[i], 1, slope, NULL, false, (size_t)b->n);
    }
}

static void add_sums(struct block *b, int n)
{
    const struct gdn_conv_backward *c = b->conv;
    _Alignas(64) rows_of_channels taps[GDN_MAX_TAPS], sum;
    if (c->dweight.data)
        b->kr->conv_sums(taps[0], CHANNELS, b->dz[0], b->x[0], CHANNELS, c->W, n, b->n);
    for (int w = 0; w < c->W && c->dweight.data; w++)
        for (int j = 0; j < b->n; j++) b->sums[w][j] += (double)taps[w][j];
    if (!c->dbias.data) return;
    memset(sum, 0, sizeof sum);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < b->n; j++) sum[j] += b->dz[i][j];
    for (int j = 0; j < b->n; j++) b->sums[GDN_MAX_TAPS][j] += (double)sum[j];
}

/* From n rows of dz, whose tokens are in their order, to y[i] of token i. */
static void convolve_back(struct block *b, int n)
{
    b->kr->conv[GDN_F32](b->y[n - 1], -CHANNELS, b->dz[n - 1], -CHANNELS, b->later[0], b->weight[0],
                         NULL, CHANNELS, b->conv->W, false, n, b->n);
}

/* Adds the final state's gradient to that of the input of token t, t < 0: of the state. */
static void add_final(const struct block *b, int64_t t, float *y)
{
    const struct gdn_conv_view *v = &b->conv->dstate_out;
    const int64_t entry = t - b->seq->n_valid + v->length;
    _Alignas(64) rows_of_channels x;
    if (!v->data || entry < 0) return;
    load_entry(b, v, b->seq->row, entry, x);
    for (int j = 0; j < b->n; j++) y[j] += x[j];
}

/* Writes dx of n tokens from t on, from y. */
static void store_dx(struct block *b, int64_t t, int n)
{
    const struct gdn_conv_backward *c = b->conv;
    const struct gdn_channel_tile tile = { t, b->channel, n, b->n };
    _Alignas(64) rows_of_channels held[TOKENS];
    for (int i = 0; i < n; i++) add_final(b, t + i, b->y[i]);
    if (c->adds) load_tokens(b, &c->dx, t, n, held);
    for (int i = 0; i < n && c->adds; i++)
        for (int j = 0; j < b->n; j++) b->y[i][j] += held[i][j];
    gdn_store_channels(b->kr, b->y[0], CHANNELS, &c->dx, b->seq, &tile);
}

/* Rows lie too far apart for the hardware to prefetch them. */
static void prefetch(const struct block *b, const struct gdn_rows *rows, int64_t t, int n)
{
    const int64_t bytes = b->n * (int64_t)gdn_dtype_bytes(rows->dtype);
    if (!rows->data || gdn_is_strided(rows, b->conv->D)) return;
    for (int i = 0; i < n; i++)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch((char *)gdn_row(rows, b->seq, t + i, b->channel) + at, 0, 2);
}

/* Prefetches the tokens before t. */
static void prefetch_next(const struct block *b, int64_t t)
{
    const int n = t < TOKENS ? (int)t : TOKENS;
    prefetch(b, &b->conv->x, t - n, n);
    prefetch(b, &b->conv->dout, t - n, n);
    prefetch(b, &b->conv->dx, t - n, n);
}

static void write_tokens(struct block *b, int64_t t, int n)
{
    prefetch_next(b, t);
    load_inputs(b, t, n);
    find_dz(b, t, n);
    add_sums(b, n);
    convolve_back(b, n);
    if (b->conv->dx.data) store_dx(b, t, n);
}

/* Writes the gradient of each entry of the state. Token t < 0 is entry S + t. Entries before the
 * last W - 1 have gradient 0. */
static void write_dstate(struct block *b)
{
    const struct gdn_conv_view *v = &b->conv->dstate;
    const int past = b->conv->W - 1;
    memset(b->dz, 0, (size_t)past * sizeof *b->dz);
    convolve_back(b, past);
    for (int64_t e = 0; e < v->length; e++) {
        const int64_t t = e - v->length;
        _Alignas(64) rows_of_channels x = { 0 };
        if (t >= -past) memcpy(x, b->y[past + t], sizeof x);
        add_final(b, t, x);
        store_entry(b, v, b->seq->row, e, x);
    }
}

static void run_sequence(struct block *b)
{
    const int64_t n_valid = b->seq->n_valid;
    memset(b->later, 0, sizeof b->later);
    for (int64_t end = n_valid; end > 0; end -= TOKENS)
        write_tokens(b, end < TOKENS ? 0 : end - TOKENS, (int)(end < TOKENS ? end : TOKENS));
    if (b->conv->dstate.data) write_dstate(b);
}

/* ---- Items --------------------------------------------------------------------------------- */

static void store_sums(struct block *b)
{
    const struct gdn_conv_backward *c = b->conv;
    for (int w = 0; w <= c->W; w++) {
        const struct gdn_conv_view *v = w < c->W ? &c->dweight : &c->dbias;
        const double *sums = b->sums[w < c->W ? w : GDN_MAX_TAPS];
        _Alignas(64) rows_of_channels x;
        if (!v->data) continue;
        for (int j = 0; j < b->n; j++) x[j] = (float)sums[j];
        store_entry(b, v, 0, w < c->W ? w : 0, x);
    }
}

struct run {
    const struct gdn_conv_backward *conv;
    const struct gdn_kernels *kr;
};

static void run_conv1d_backward_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct run *r = arg;
    const struct gdn_conv_backward *c = r->conv;
    struct block b = { .conv = c, .kr = r->kr, .channel = item * CHANNELS };
    b.n = (int)(c->D - b.channel < CHANNELS ? c->D - b.channel : CHANNELS);
    for (int w = 0; w < c->W; w++) load_entry(&b, &c->weight, 0, w, b.weight[w]);
    if (c->bias.data) load_entry(&b, &c->bias, 0, 0, b.bias);
    for (int64_t i = 0; i < c->n_seqs; i++) {
        b.seq = &c->seqs[i];
        run_sequence(&b);
    }
    store_sums(&b);
}

static void run_all(gdn_ctx *ctx, const struct gdn_conv_backward *conv)
{
    struct run r = { conv, ctx->kr };
    gdn_parallel_for(ctx->threads, (conv->D + CHANNELS - 1) / CHANNELS, run_conv1d_backward_item,
                     &r);
}

/* ---- gdn_conv1d_backward ------------------------------------------------------------------- */

static gdn_status plan_conv1d_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_conv_backward_call *c = call;
    (void)ctx;
    c->base.bytes = gdn_plan_bytes(&c->plan, &c->tokens);
    return GDN_OK;
}

static gdn_status run_conv1d_backward(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_conv_backward_call *c = call;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, memory, &c->plan));
    c->work.seqs = c->plan.seqs;
    run_all(ctx, &c->work);
    const bool by_channel = gdn_is_strided(&c->work.dx, c->work.D);
    if (!c->work.adds)
        gdn_plan_zero_gradients(&c->plan, &c->tokens, &c->work.dx, by_channel ? c->work.D : 1,
                                by_channel ? 1 : c->work.D);
    return gdn_note_kernel(ctx, c->base.op, "conv");
}

const struct gdn_op_backend gdn_cpu_op_conv1d_backward = { plan_conv1d_backward,
                                                           run_conv1d_backward };
