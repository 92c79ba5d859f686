/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The convolution and the whole layer, with random inputs and a float64 judge. A device rounds to
 * the dtype of the activations between the steps of a layer. The judge says how far that may move
 * the output, see oracle.h.
 */
#include <math.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "internal/internal.h"
#include "oracle.h"

/* SHORT: the most tokens that gdn_block takes one by one (gdn.h, G2). */
enum {
    CHECKED_CHANNELS = 16,
    CHECKED_CONV_TOKENS = 512,
    CHECKED_BLOCK_TOKENS = 4,
    RUNS = 32,
    SHORT = 8
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns element [i][j][l] of a dense tensor of up to three dimensions. */
static double at(const gdn_tensor *t, int64_t i, int64_t j, int64_t l)
{
    return oracle_load(t->data, t->dtype, i * t->stride[0] + j * t->stride[1] + l * t->stride[2]);
}

/* ---- Convolution ------------------------------------------------------------------------- */

/* Returns true for several sequences of one length. */
static bool is_even(const struct case_batch *b)
{
    if (b->B < 2 || !b->cu_seqlens) return false;
    for (int64_t i = 0; i < b->B; i++)
        if (b->cu_seqlens[i] * b->B != i * b->N) return false;
    return b->N > 0;
}

/* Returns channel d of token t of sequence 0. */
static double token_at(const gdn_tensor *x, int64_t t, int64_t d)
{
    return x->ndim == 3 ? at(x, 0, t, d) : at(x, t, d, 0);
}

int conv_case_make(struct conv_case *c, const struct case_dims *dims, const int64_t *lengths,
                   int64_t B)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->tokens = case_batch(&c->memory, lengths, B);
    c->batch = case_gdn_batch(&c->tokens);
    gdn_conv1d_args *a = &c->args;
    *a = gdn_conv1d_args_init();
    const bool even = is_even(&c->tokens); /* then padded, as an engine's decode step is */
    const int64_t first = even ? B : c->tokens.N;
    const int64_t x[] = { first, even ? c->tokens.N / B : dims->D, dims->D };
    const int64_t weight[] = { dims->D, dims->W };
    const int64_t state[] = { B, dims->D, dims->entries ? dims->entries : dims->W - 1 };
    if (even) c->batch = gdn_batch_init();
    a->x = case_tensor(&c->memory, dims->dtype, 2 + even, x, -1, 1);
    a->weight = case_tensor(&c->memory, dims->dtype, 2, weight, -0.5, 0.5);
    a->state = case_tensor(&c->memory, dims->state_dtype, 3, state, -1, 1);
    a->out = memory_tensor(&c->memory, dims->dtype, 2 + even, x);
    a->activation = GDN_ACT_SILU;
    a->batch = &c->batch;
    return c->tokens.cu_seqlens && a->x.data && a->weight.data && a->state.data && a->out.data
               ? CLI_OK
               : cli_bad("no memory for %lld tokens", (long long)c->tokens.N);
}

/* Returns some channels, spread over all, of the first tokens of sequence 0. */
static int64_t channel(const struct conv_case *c, int64_t i)
{
    return i * (c->dims.D - 1) / (CHECKED_CHANNELS - 1);
}

/* Loads history and weights of the checked channels, before the call. */
static void load_channels(const struct conv_case *c, double *history, double *weight)
{
    const int64_t W = c->dims.W, older = c->args.state.size[2] - (W - 1);
    for (int64_t i = 0; i < CHECKED_CHANNELS; i++) {
        const int64_t d = channel(c, i);
        for (int64_t w = 0; w < W; w++) weight[i * W + w] = at(&c->args.weight, d, w, 0);
        for (int64_t w = 0; w < W - 1; w++)
            history[w * CHECKED_CHANNELS + i] = at(&c->args.state, 0, d, older + w);
    }
}

int conv_case_check(struct conv_case *c, gdn_ctx *ctx, struct comparison *found)
{
    enum { C = CHECKED_CHANNELS };
    const int64_t n = smaller(c->tokens.cu_seqlens[1], CHECKED_CONV_TOKENS), W = c->dims.W;
    double *x = malloc((size_t)(C * (3 * n + 2 * W)) * sizeof *x);
    if (!x) return cli_bad("no memory for the check");
    double *want = x + n * C, *got = want + n * C, *weight = got + n * C, *history = weight + W * C;
    load_channels(c, history, weight);
    for (int64_t i = 0; i < n * C; i++) x[i] = token_at(&c->args.x, i / C, channel(c, i % C));
    const gdn_status status = cli_call(ctx, GDN_OP_CONV1D, &c->args);
    for (int64_t i = 0; i < n * C && !status; i++)
        got[i] = token_at(&c->args.out, i / C, channel(c, i % C));
    if (!status) {
        oracle_conv(want, NULL, x, history, weight, NULL, true, n, C, (int)W);
        *found = compare_doubles(got, want, n * C,
                                 compare_precision(c->dims.dtype, c->dims.state_dtype));
    }
    free(x);
    return status ? cli_failed(ctx, status) : CLI_OK;
}

/* Returns a multiplication and an addition per tap. */
double conv_case_flops(const struct conv_case *c)
{
    return 2.0 * (double)(c->tokens.N * c->dims.D) * (double)c->dims.W;
}

double conv_case_bytes(const struct conv_case *c)
{
    return case_bytes(&c->args.x) + case_bytes(&c->args.out) + case_bytes(&c->args.weight) +
           2 * case_bytes(&c->args.state);
}

/* ---- The layer --------------------------------------------------------------------------- */

/* Returns a matrix whose products with vectors of size 1 have size 1. */
static gdn_tensor matrix(struct block_case *c, int64_t rows, int64_t columns)
{
    const double limit = sqrt(3.0 / (double)columns);
    const int64_t size[] = { rows, columns };
    return case_tensor(&c->memory, c->dims.dtype, 2, size, -limit, limit);
}

static int64_t channels(const struct case_dims *d) { return 2 * d->Hq * d->K + d->Hv * d->V; }

/* Moves n rows of a weight to another. */
static void move_rows(const gdn_tensor *to, int64_t row, const gdn_tensor *from, int64_t from_row,
                      int64_t n)
{
    const size_t bytes = (size_t)to->size[1] * gdn_dtype_bytes(to->dtype);
    memcpy((char *)to->data + (size_t)row * bytes,
           (const char *)from->data + (size_t)from_row * bytes, (size_t)n * bytes);
}

/* Fuses the projections as Qwen3-Next has them: rows of a key head together. */
static void fuse(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    const int64_t Hk = d->Hq, group = d->Hv / Hk, K = d->K, V = group * d->V, head = 2 * K + 2 * V;
    const gdn_tensor *qkvz = &c->args.in_proj_qkvz, *ba = &c->args.in_proj_ba;
    for (int64_t h = 0; h < Hk; h++) {
        move_rows(qkvz, h * head, &c->qkv, h * K, K);
        move_rows(qkvz, h * head + K, &c->qkv, (Hk + h) * K, K);
        move_rows(qkvz, h * head + 2 * K, &c->qkv, 2 * Hk * K + h * V, V);
        move_rows(qkvz, h * head + 2 * K + V, &c->z, h * V, V);
        move_rows(ba, h * 2 * group, &c->b, h * group, group);
        move_rows(ba, h * 2 * group + group, &c->a, h * group, group);
    }
}

/* Projections that the memory is not there for have no data. */
static void make_projections(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    gdn_block_args *a = &c->args;
    c->qkv = matrix(c, channels(d), d->hidden);
    c->z = matrix(c, d->Hv * d->V, d->hidden);
    c->b = matrix(c, d->Hv, d->hidden);
    c->a = matrix(c, d->Hv, d->hidden);
    if (!d->fused) {
        a->in_proj_qkv = c->qkv, a->in_proj_z = c->z, a->in_proj_b = c->b, a->in_proj_a = c->a;
        return;
    }
    a->in_proj_qkvz = matrix(c, channels(d) + d->Hv * d->V, d->hidden);
    a->in_proj_ba = matrix(c, 2 * d->Hv, d->hidden);
    if (c->qkv.data && c->z.data && c->b.data && c->a.data && a->in_proj_qkvz.data &&
        a->in_proj_ba.data)
        fuse(c);
}

static void make_weights(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    gdn_block_args *a = &c->args;
    const int64_t conv[] = { channels(d), d->W };
    make_projections(c);
    a->out_proj = matrix(c, d->hidden, d->Hv * d->V);
    a->conv_weight = case_tensor(&c->memory, d->dtype, 2, conv, -0.5, 0.5);
    case_gate_heads(&c->memory, d, &d->Hv, &a->A_log, &a->dt_bias);
    a->norm_weight = case_tensor(&c->memory, d->dtype, 1, &d->V, 0.5, 1.5);
}

int block_case_make(struct block_case *c, const struct case_dims *dims, const int64_t *lengths,
                    int64_t B)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->tokens = case_batch(&c->memory, lengths, B);
    c->batch = case_gdn_batch(&c->tokens);
    gdn_block_args *a = &c->args;
    *a = gdn_block_args_init();
    make_weights(c);
    const int64_t hidden[] = { c->tokens.N, dims->hidden };
    const int64_t conv[] = { B, channels(dims), dims->W - 1 };
    const bool kv = dims->state_layout == GDN_STATE_KV;
    const int64_t state[] = { B, dims->Hv, kv ? dims->K : dims->V, kv ? dims->V : dims->K };
    a->hidden = case_tensor(&c->memory, dims->dtype, 2, hidden, -1, 1);
    a->out = memory_tensor(&c->memory, dims->dtype, 2, hidden);
    a->conv_state = memory_tensor(&c->memory, dims->state_dtype, 3, conv);
    a->state = memory_tensor(&c->memory, dims->state_dtype, 4, state);
    a->n_key_heads = (int32_t)dims->Hq;
    a->n_value_heads = (int32_t)dims->Hv;
    a->key_head_dim = (int32_t)dims->K;
    a->value_head_dim = (int32_t)dims->V;
    a->state_layout = dims->state_layout;
    a->flags = case_flags(dims);
    a->batch = &c->batch;
    c->batch.pad_policy = dims->keep ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    const gdn_tensor *all[] = { &c->qkv,
                                &c->z,
                                &c->b,
                                &c->a,
                                &a->out_proj,
                                &a->conv_weight,
                                &a->A_log,
                                &a->dt_bias,
                                &a->norm_weight,
                                &a->hidden,
                                &a->out,
                                &a->conv_state,
                                &a->state,
                                dims->fused ? &a->in_proj_qkvz : &c->qkv,
                                dims->fused ? &a->in_proj_ba : &c->b };
    bool there = c->tokens.cu_seqlens;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) there = there && all[i]->data;
    if (there) return CLI_OK;
    return cli_bad("no memory for a layer of hidden size %lld", (long long)dims->hidden);
}

/* Computes y [T][rows] = x [T][columns] times w transposed; NULL without memory. */
static double *project(const double *x, const gdn_tensor *w, int64_t T)
{
    const int64_t rows = w->size[0], columns = w->size[1];
    double *y = malloc((size_t)(T * rows) * sizeof *y);
    double *row = malloc((size_t)columns * sizeof *row);
    for (int64_t r = 0; r < rows && y && row; r++) {
        for (int64_t i = 0; i < columns; i++) row[i] = at(w, r, i, 0);
        for (int64_t t = 0; t < T; t++)
            oracle_linear(y + t * rows + r, NULL, x + t * columns, row, 1, 1, columns);
    }
    if (!row) {
        free(y);
        y = NULL;
    }
    free(row);
    return y;
}

/* In place over mixed [T][D]: the convolution with SiLU from an empty history. */
static void convolve(const struct block_case *c, double *mixed, int64_t T)
{
    const int64_t D = channels(&c->dims);
    double in[CHECKED_BLOCK_TOKENS], out[CHECKED_BLOCK_TOKENS], weight[16];
    for (int64_t d = 0; d < D; d++) {
        for (int64_t w = 0; w < c->dims.W; w++) weight[w] = at(&c->args.conv_weight, d, w, 0);
        for (int64_t t = 0; t < T; t++) in[t] = mixed[t * D + d];
        oracle_conv(out, NULL, in, NULL, weight, NULL, true, T, 1, (int)c->dims.W);
        for (int64_t t = 0; t < T; t++) mixed[t * D + d] = out[t];
    }
}

/* The projections of the first tokens. */
struct projected {
    double *mixed, *z, *b, *a; /* [T] each */
};

/* Returns true if a device computes the rule token by token. The mean length decides. */
static bool takes_tokens(const struct block_case *c)
{
    const struct case_batch *b = &c->tokens;
    return c->dims.exact || b->N <= SHORT || b->N <= b->B;
}

/* ... rounded on the way, where there is noise. */
static void run_rule(const struct block_case *c, const struct oracle_rule *r, double *k,
                     struct oracle_noise *noise)
{
    if (!noise || takes_tokens(c)) {
        oracle_rule(r);
        if (noise) oracle_move_all(noise, r->o, r->T * r->V);
        return;
    }
    if (c->dims.dtype == GDN_F16) oracle_move_all(noise, k, r->T * r->K);
    oracle_rule_chunks(r, CHECKED_BLOCK_TOKENS, noise); /* later tokens of a chunk change nothing */
}

/* Runs value head h: norms, gates, rule, gated norm, from the projections to y [T][Hv V]. */
static void run_head(const struct block_case *c, const struct projected *p, int64_t h, int64_t T,
                     double *state, double *y, struct oracle_noise *noise)
{
    const struct case_dims *d = &c->dims;
    const int64_t K = d->K, V = d->V, D = channels(d), kh = h / (d->Hv / d->Hq);
    double q[CHECKED_BLOCK_TOKENS * 256], k[CHECKED_BLOCK_TOKENS * 256];
    double v[CHECKED_BLOCK_TOKENS * 1024], o[CHECKED_BLOCK_TOKENS * 1024], w[1024];
    double alpha[CHECKED_BLOCK_TOKENS], beta[CHECKED_BLOCK_TOKENS];
    for (int64_t t = 0; t < T; t++) {
        const double *row = p->mixed + t * D;
        oracle_l2norm(q + t * K, row + kh * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + (d->Hq + kh) * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * d->Hq * K + h * V, (size_t)V * sizeof *v);
        beta[t] = oracle_sigmoid(p->b[t * d->Hv + h]);
        alpha[t] = exp(oracle_gate(p->a[t * d->Hv + h], at(&c->args.A_log, h, 0, 0),
                                   at(&c->args.dt_bias, h, 0, 0), 0));
    }
    memset(state, 0, (size_t)(K * V) * sizeof *state);
    const struct oracle_rule r = { .T = T,
                                   .K = (int)K,
                                   .V = (int)V,
                                   .scale = 1 / sqrt((double)K),
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .state = state,
                                   .o = o };
    run_rule(c, &r, k, noise);
    for (int64_t i = 0; i < V; i++) w[i] = at(&c->args.norm_weight, i, 0, 0);
    for (int64_t t = 0; t < T; t++)
        oracle_rmsnorm_gated(y + (t * d->Hv + h) * V, o + t * V, w, p->z + (t * d->Hv + h) * V,
                             false, 1e-6, V);
}

/* Projects x [T][hidden]. */
static bool project_rows(const struct block_case *c, const double *x, int64_t T,
                         struct projected *p)
{
    p->mixed = project(x, &c->qkv, T);
    p->z = project(x, &c->z, T);
    p->b = project(x, &c->b, T);
    p->a = project(x, &c->a, T);
    return p->mixed && p->z && p->b && p->a;
}

static bool project_all(const struct block_case *c, int64_t T, struct projected *p)
{
    const int64_t n = T * c->dims.hidden;
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n && x; i++) x[i] = oracle_load(c->args.hidden.data, c->dims.dtype, i);
    const bool done = x && project_rows(c, x, T, p);
    free(x);
    return done;
}

static void free_projected(struct projected *p)
{
    free(p->mixed);
    free(p->z);
    free(p->b);
    free(p->a);
}

/* Returns the layer over the first T tokens from what was projected, with noise where a device
 * rounds, or NULL; NULL without memory. */
static double *run_layer(const struct block_case *c, const struct projected *p, int64_t T,
                         struct oracle_noise *noise)
{
    const struct case_dims *d = &c->dims;
    const int64_t n = T * channels(d), n_y = T * d->Hv * d->V;
    double *mixed = malloc((size_t)(n + 2 * n_y + d->K * d->V) * sizeof *mixed), *out = NULL;
    if (!mixed) return NULL;
    double *z = mixed + n, *y = z + n_y, *state = y + n_y;
    memcpy(mixed, p->mixed, (size_t)n * sizeof *mixed);
    memcpy(z, p->z, (size_t)n_y * sizeof *z);
    if (noise) oracle_move_all(noise, mixed, n + n_y);
    convolve(c, mixed, T);
    if (noise) oracle_move_all(noise, mixed, n);
    const struct projected rounded = { mixed, z, p->b, p->a };
    for (int64_t h = 0; h < d->Hv; h++) run_head(c, &rounded, h, T, state, y, noise);
    if (noise) oracle_move_all(noise, y, n_y);
    out = project(y, &c->args.out_proj, T);
    if (noise && out) oracle_move_all(noise, out, T * d->hidden);
    free(mixed);
    return out;
}

/* Finds the root mean square, element by element, of what roundings do; false without memory. */
static bool find_noise(const struct block_case *c, const struct projected *p, int64_t T,
                       const double *want, double *noise)
{
    struct oracle_noise source = { .dtype = c->dims.dtype };
    for (int r = 0; r < RUNS; r++) {
        double *moved = run_layer(c, p, T, &source);
        for (int64_t i = 0; i < T * c->dims.hidden && moved; i++)
            noise[i] = hypot(noise[i], (moved[i] - want[i]) / sqrt(RUNS));
        if (!moved) return false;
        free(moved);
    }
    return true;
}

/* Judges a block by the projected rows. `noise` is zero. */
static bool judge_block(const struct block_case *c, const struct projected *p, int64_t T,
                        bool rounds, double *got, double *noise, struct comparison *found)
{
    const int64_t n = T * c->dims.hidden;
    double *want = run_layer(c, p, T, NULL);
    const bool done = want && (!rounds || find_noise(c, p, T, want, noise));
    for (int64_t i = 0; i < n && done; i++)
        got[i] = oracle_load(c->args.out.data, c->dims.dtype, i);
    if (done)
        *found = rounds ? compare_noisy(got, want, noise, n)
                        : compare_doubles(got, want, n,
                                          compare_precision(c->dims.dtype, c->dims.state_dtype));
    free(want);
    return done;
}

int block_case_check(struct block_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t T = smaller(c->tokens.cu_seqlens[1], CHECKED_BLOCK_TOKENS);
    const bool rounds = gdn_internal_device(ctx) && c->dims.dtype != GDN_F32;
    const gdn_status status = cli_call(ctx, GDN_OP_BLOCK, &c->args);
    if (status) return cli_failed(ctx, status);
    struct projected p = { NULL, NULL, NULL, NULL };
    double *got = calloc((size_t)(2 * T * c->dims.hidden), sizeof *got);
    const bool judged = got && project_all(c, T, &p) &&
                        judge_block(c, &p, T, rounds, got, got + T * c->dims.hidden, found);
    free(got);
    free_projected(&p);
    return judged ? CLI_OK : cli_bad("no memory for the check");
}

double block_case_flops(const struct block_case *c, double *projections)
{
    const struct case_dims *d = &c->dims;
    const double N = (double)c->tokens.N;
    const double rows = (double)(channels(d) + 2 * d->Hv * d->V + 2 * d->Hv);
    *projections = 2 * N * (double)d->hidden * rows;
    return *projections + N * (double)(6 * d->Hv * d->K * d->V + 2 * channels(d) * d->W);
}

double block_case_bytes(const struct block_case *c)
{
    const gdn_block_args *a = &c->args;
    return case_bytes(&c->qkv) + case_bytes(&c->z) + case_bytes(&c->b) + case_bytes(&c->a) +
           case_bytes(&a->out_proj) + case_bytes(&a->conv_weight) + case_bytes(&a->hidden) +
           case_bytes(&a->out) + 2 * (case_bytes(&a->conv_state) + case_bytes(&a->state));
}

/* ---- Its gradients ------------------------------------------------------------------------- */

/* Like a weight or an activation, of so many dimensions as that. */
static gdn_tensor like(struct layer_gradient_case *c, const gdn_tensor *t, int32_t dtype)
{
    return memory_tensor(&c->block.memory, dtype, t->ndim, t->size);
}

int layer_gradient_case_make(struct layer_gradient_case *c, const struct case_dims *dims,
                             const int64_t *lengths, int64_t B)
{
    memset(c, 0, sizeof *c);
    if (block_case_make(&c->block, dims, lengths, B)) return CLI_BAD;
    const gdn_block_args *f = &c->block.args;
    gdn_block_backward_args *a = &c->args;
    *a = gdn_block_backward_args_init();
    a->hidden = f->hidden, a->batch = f->batch, a->out_proj = f->out_proj;
    a->in_proj_qkv = f->in_proj_qkv, a->in_proj_z = f->in_proj_z;
    a->in_proj_b = f->in_proj_b, a->in_proj_a = f->in_proj_a;
    a->in_proj_qkvz = f->in_proj_qkvz, a->in_proj_ba = f->in_proj_ba;
    a->conv_weight = f->conv_weight, a->A_log = f->A_log, a->dt_bias = f->dt_bias;
    a->norm_weight = f->norm_weight, a->n_key_heads = f->n_key_heads;
    a->n_value_heads = f->n_value_heads, a->key_head_dim = f->key_head_dim;
    a->value_head_dim = f->value_head_dim;
    a->dout = case_tensor(&c->block.memory, dims->dtype, 2, f->out.size, -1, 1);
    a->dhidden = like(c, &f->hidden, dims->dtype);
    const struct {
        gdn_tensor *to;
        const gdn_tensor *from;
    } weights[] = { { &a->din_proj_qkv, &f->in_proj_qkv },   { &a->din_proj_z, &f->in_proj_z },
                    { &a->din_proj_b, &f->in_proj_b },       { &a->din_proj_a, &f->in_proj_a },
                    { &a->din_proj_qkvz, &f->in_proj_qkvz }, { &a->din_proj_ba, &f->in_proj_ba },
                    { &a->dconv_weight, &f->conv_weight },   { &a->dA_log, &f->A_log },
                    { &a->ddt_bias, &f->dt_bias },           { &a->dnorm_weight, &f->norm_weight },
                    { &a->dout_proj, &f->out_proj } };
    bool there = a->dout.data && a->dhidden.data;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        if (!weights[i].from->data) continue; /* of the other kind */
        *weights[i].to = like(c, weights[i].from, GDN_F32);
        there = there && weights[i].to->data;
    }
    c->counts = memory_tensor(&c->block.memory, GDN_I64, 1, &B);
    if (there && c->counts.data) return CLI_OK;
    return cli_bad("no memory for the gradients of %lld tokens", (long long)c->block.tokens.N);
}

/* Returns the loss of the first T tokens where what is projected moves by h times `step`; NAN
 * without memory. */
static double loss_beside(const struct layer_gradient_case *c, const struct projected *p,
                          const struct projected *step, int64_t T, double h)
{
    const struct case_dims *d = &c->block.dims;
    const int64_t sizes[] = { T * channels(d), T * d->Hv * d->V, T * d->Hv, T * d->Hv };
    const double *from[] = { p->mixed, p->z, p->b, p->a };
    const double *by[] = { step->mixed, step->z, step->b, step->a };
    double *x[4], sum = NAN;
    bool there = true;
    for (int i = 0; i < 4; i++) {
        x[i] = malloc((size_t)sizes[i] * sizeof *x[i]);
        there = there && x[i];
        for (int64_t j = 0; x[i] && j < sizes[i]; j++) x[i][j] = from[i][j] + h * by[i][j];
    }
    struct projected moved = { x[0], x[1], x[2], x[3] };
    double *out = there ? run_layer(&c->block, &moved, T, NULL) : NULL;
    if (out) sum = 0;
    for (int64_t i = 0; out && i < T * d->hidden; i++)
        sum += out[i] * oracle_load(c->args.dout.data, c->args.dout.dtype, i);
    free(out);
    free_projected(&moved);
    return sum;
}

enum { DIRECTIONS = 3 };

/* Along one direction of ones and minus ones: what the differences of the loss say, and dhidden. */
static bool judge_direction(const struct layer_gradient_case *c, const struct projected *p,
                            int64_t T, uint64_t *seed, double *want, double *got)
{
    const double h = 1e-4;
    const int64_t n = T * c->block.dims.hidden;
    double *x = malloc((size_t)n * sizeof *x);
    struct projected step = { NULL, NULL, NULL, NULL };
    *got = 0;
    for (int64_t i = 0; x && i < n; i++) {
        x[i] = case_random(seed) < 0.5 ? -1 : 1;
        *got += x[i] * oracle_load(c->args.dhidden.data, c->args.dhidden.dtype, i);
    }
    const bool there = x && project_rows(&c->block, x, T, &step);
    if (there) *want = (loss_beside(c, p, &step, T, h) - loss_beside(c, p, &step, T, -h)) / (2 * h);
    free(x);
    free_projected(&step);
    return there && !isnan(*want);
}

/* Checks a call in which no more tokens count than are followed. Where a GPU rounds, a dozen
 * roundings follow each other, and what they do to a sum along a direction is to that sum's usual
 * size, the length of dhidden, as it is to an element. */
int layer_gradient_case_check(struct layer_gradient_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t *cu = c->block.tokens.cu_seqlens, B = c->block.tokens.B;
    const int64_t T = smaller(cu[1], CHECKED_BLOCK_TOKENS);
    const int32_t dtype = c->block.dims.dtype;
    gdn_block_backward_args cut = c->args;
    gdn_batch batch = *c->args.batch;
    int64_t *count = c->counts.data;
    double want[DIRECTIONS], got[DIRECTIONS], noise[DIRECTIONS], size = 0;
    uint64_t seed = 35;
    for (int64_t b = 0; b < B; b++) count[b] = smaller(cu[b + 1] - cu[b], CHECKED_BLOCK_TOKENS);
    batch.token_count = c->counts;
    cut.batch = &batch;
    const gdn_status status = cli_call(ctx, GDN_OP_BLOCK_BACKWARD, &cut);
    if (status) return cli_failed(ctx, status);
    struct projected p = { NULL, NULL, NULL, NULL };
    bool done = project_all(&c->block, T, &p);
    for (int i = 0; i < DIRECTIONS && done; i++)
        done = judge_direction(c, &p, T, &seed, &want[i], &got[i]);
    for (int64_t i = 0; i < T * c->block.dims.hidden; i++)
        size = hypot(size, oracle_load(c->args.dhidden.data, c->args.dhidden.dtype, i));
    free_projected(&p);
    if (!done) return cli_bad("no memory for the check");
    for (int i = 0; i < DIRECTIONS; i++)
        noise[i] = size * sqrt(12) * (dtype == GDN_BF16 ? 0x1p-9 : 0x1p-12);
    *found = gdn_internal_device(ctx) && dtype != GDN_F32
                 ? compare_noisy(got, want, noise, DIRECTIONS)
                 : compare_doubles(got, want, DIRECTIONS, dtype);
    return CLI_OK;
}

/* Returns the input projections thrice, that of the output twice; 16 K V and two convolutions. */
double layer_gradient_case_flops(const struct layer_gradient_case *c)
{
    const struct case_dims *d = &c->block.dims;
    const double N = (double)c->block.tokens.N, hidden = (double)d->hidden;
    const double in = (double)(channels(d) + d->Hv * d->V + 2 * d->Hv);
    const double out = (double)(d->Hv * d->V);
    return N * (hidden * (6 * in + 4 * out) +
                (double)(16 * d->Hv * d->K * d->V + 6 * channels(d) * d->W));
}

double layer_gradient_case_bytes(const struct layer_gradient_case *c)
{
    const gdn_block_backward_args *a = &c->args;
    const gdn_tensor *const all[] = { &a->hidden,      &a->dout,         &a->dhidden,
                                      &a->in_proj_qkv, &a->in_proj_z,    &a->out_proj,
                                      &a->conv_weight, &a->din_proj_qkv, &a->din_proj_z,
                                      &a->dout_proj,   &a->dconv_weight };
    double bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bytes += case_bytes(all[i]);
    return bytes;
}
