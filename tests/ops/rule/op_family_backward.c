/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=3, gpu, sm_80 --every=11 */
/*
 * Gradients of the family of gdn.h beside float64: KDA, GDN-2, Gated DeltaProduct and their
 * mixtures, with gates of any strength in single channels, as they are given or raw, in every
 * dtype, layout and batch; what is not finite behind a gate that forgets; windows on a device.
 */
#include <math.h>
#include <string.h>

#include "family_calls.h"
#include "gdn_train.h"
#include "oracle.h"
#include "oracle_family.h"
#include "ring2_device.h"

enum { DQ, DK, DV, DG, DBETA, DWRITE, DA_LOG, DDT_BIAS, DSTATE, N_MADE };
static const char *const names[N_MADE] = { "dq",          "dk",     "dv",       "dg",    "dbeta",
                                           "dwrite_gate", "dA_log", "ddt_bias", "dstate" };

static gdn_tensor *made(gdn_prefill_backward_args *a, int i)
{
    gdn_tensor *const all[N_MADE] = { &a->dq,     &a->dk,       &a->dv,
                                      &a->dg,     &a->dbeta,    &a->dwrite_gate,
                                      &a->dA_log, &a->ddt_bias, &a->dstate };
    return all[i];
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* How a call is given: heads, sizes, dtypes, flags and lengths. */
static const struct way {
    const char *name;
    int Hk, H, K, V;
    int dtype, gate, beta, norm, layout;
    float bound;
    bool no_A, padded, masked, adds, interleaved, dense;
    int64_t lengths[4];
} ways[] = {
    { .name = "packed", .Hk = 2, .H = 4, .K = 40, .V = 24, .lengths = { 37, 0, 18 } },
    { .name = "wide", .Hk = 1, .H = 2, .K = 128, .V = 48, .lengths = { 37, 18 } },
    { .name = "whole",
      .Hk = 2,
      .H = 2,
      .K = 128,
      .V = 128,
      .dtype = GDN_BF16,
      .norm = GDN_NORM_L2,
      .lengths = { 70 } },
    { .name = "deep", .Hk = 1, .H = 1, .K = 200, .V = 70, .dtype = GDN_F16, .lengths = { 20, 3 } },
    { .name = "odd",
      .Hk = 1,
      .H = 3,
      .K = 13,
      .V = 7,
      .norm = GDN_NORM_L2_ADD,
      .layout = GDN_STATE_KV,
      .adds = true,
      .lengths = { 33, 1 } },
    { .name = "raw",
      .Hk = 2,
      .H = 4,
      .K = 36,
      .V = 24,
      .gate = GDN_GATE_RAW,
      .beta = GDN_BETA_SIGMOID,
      .norm = GDN_NORM_L2,
      .lengths = { 30, 70 } },
    { .name = "bounded",
      .Hk = 2,
      .H = 4,
      .K = 36,
      .V = 24,
      .gate = GDN_GATE_RAW,
      .beta = GDN_BETA_TWICE_SIGMOID,
      .bound = -5,
      .adds = true,
      .lengths = { 30, 70 } },
    { .name = "no A_log",
      .Hk = 1,
      .H = 2,
      .K = 16,
      .V = 16,
      .gate = GDN_GATE_RAW,
      .bound = -3,
      .no_A = true,
      .lengths = { 20 } },
    { .name = "linear",
      .Hk = 2,
      .H = 4,
      .K = 32,
      .V = 16,
      .gate = GDN_GATE_LINEAR,
      .interleaved = true,
      .lengths = { 40 } },
    { .name = "padded",
      .Hk = 2,
      .H = 2,
      .K = 24,
      .V = 40,
      .padded = true,
      .masked = true,
      .layout = GDN_STATE_KV,
      .lengths = { 50, 50, 50 } },
    { .name = "deep raw",
      .Hk = 1,
      .H = 2,
      .K = 200,
      .V = 24,
      .gate = GDN_GATE_RAW,
      .beta = GDN_BETA_SIGMOID,
      .adds = true,
      .norm = GDN_NORM_L2,
      .lengths = { 20, 66 } },
};
enum { N_WAYS = sizeof ways / sizeof *ways };
/* Calls that a device takes by chunks on tensor cores. */
static const struct way tensor_ways[] = {
    { .name = "chunks",
      .Hk = 1,
      .H = 2,
      .K = 36,
      .V = 72,
      .dtype = GDN_BF16,
      .dense = true,
      .norm = GDN_NORM_L2,
      .lengths = { 130, 0, 37 } },
    { .name = "raw chunks",
      .Hk = 2,
      .H = 2,
      .K = 128,
      .V = 48,
      .dtype = GDN_BF16,
      .dense = true,
      .gate = GDN_GATE_RAW,
      .beta = GDN_BETA_SIGMOID,
      .norm = GDN_NORM_L2,
      .adds = true,
      .lengths = { 67 } },
    { .name = "linear chunks",
      .Hk = 1,
      .H = 1,
      .K = 64,
      .V = 40,
      .dtype = GDN_BF16,
      .dense = true,
      .gate = GDN_GATE_LINEAR,
      .norm = GDN_NORM_L2,
      .padded = true,
      .masked = true,
      .layout = GDN_STATE_KV,
      .lengths = { 50, 50, 50 } },
};

static int64_t n_rows(const struct way *w)
{
    int64_t n = 4;
    while (n > 0 && !w->lengths[n - 1]) n--;
    return n;
}

/* A tensor [rows][heads][D], or with D 0 [rows][heads]; padded: [B][rows / B].. */
static gdn_tensor rows_tensor(const struct way *w, int32_t dtype, int64_t rows, int64_t heads,
                              int64_t D)
{
    const int64_t B = n_rows(w);
    if (w->padded) return ring2_new(dtype, 0, D ? 4 : 3, B, rows / B, heads, D);
    return ring2_new(dtype, w->dense ? 0 : D ? 3 : 1, D ? 3 : 2, rows, heads, D, 0);
}

static gdn_batch *draw_batch(const struct way *w)
{
    gdn_batch *batch = ring2_heap(sizeof *batch);
    int64_t cu[5] = { 0 };
    *batch = gdn_batch_init();
    for (int64_t i = 0; i < n_rows(w); i++) cu[i + 1] = cu[i] + w->lengths[i];
    if (!w->padded) batch->cu_seqlens = ring2_indices(GDN_I64, n_rows(w) + 1, cu);
    if (w->masked) {
        batch->token_start = ring2_indices(GDN_I64, n_rows(w), (int64_t[]){ 0, 7, 50, 0 });
        batch->token_count = ring2_indices(GDN_I64, n_rows(w), (int64_t[]){ 50, 20, 0, 0 });
    }
    return batch;
}

static void draw_gates(const gdn_prefill_backward_args *a, const struct rule *f, int gate)
{
    const int64_t D = f->g_rows ? a->q.size[a->q.ndim - 1] : 1;
    const int64_t H = a->dout.size[a->dout.ndim - 2];
    for (int64_t i = 0; i < ring2_count(&a->g); i++) {
        const int64_t t = i / D / H, x = f->g_rows ? i % D : i % H;
        const double g = gates[gate](t % 37, x);
        ring2_set(&a->g, i, a->gate == GDN_GATE_LINEAR ? exp(g) : g);
    }
    if (a->gate == GDN_GATE_RAW) ring2_fill(&a->g, -3, 3);
}

static gdn_prefill_backward_args draw(const struct rule *f, int gate, const struct way *w)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    int64_t N = 0;
    for (int i = 0; i < 4; i++) N += w->lengths[i];
    const int64_t n = f->updates, B = n_rows(w), H = w->H, K = w->K, V = w->V;
    const int32_t A = w->dtype ? w->dtype : GDN_F32;
    const bool kv = w->layout == GDN_STATE_KV;
    a.batch = draw_batch(w);
    a.q = rows_tensor(w, A, N, w->Hk, K), a.k = rows_tensor(w, A, n * N, w->Hk, K);
    a.v = rows_tensor(w, A, n * N, H, V), a.dout = rows_tensor(w, A, N, H, V);
    a.g = rows_tensor(w, GDN_F32, N, H, f->g_rows ? K : 0);
    a.beta = rows_tensor(w, GDN_F32, n * N, H, f->beta_rows ? K : 0);
    if (f->write) a.write_gate = rows_tensor(w, GDN_F32, n * N, H, V);
    a.state = ring2_new(GDN_F32, 0, 4, B, H, kv ? K : V, kv ? V : K);
    a.dstate_out = ring2_clone(&a.state);
    a.updates = f->updates, a.gate = w->gate, a.beta_kind = w->beta, a.norm = w->norm;
    a.state_layout = w->layout, a.gate_lower_bound = w->bound;
    a.head_map = w->interleaved ? GDN_HEADS_INTERLEAVED : GDN_HEADS_GROUPED;
    a.flags = w->adds ? GDN_ACCUMULATE : 0;
    const gdn_tensor *const random[] = { &a.q, &a.k, &a.v, &a.dout, &a.state, &a.dstate_out };
    for (int i = 0; i < 6; i++) ring2_fill(random[i], -1, 1);
    for (int64_t i = 0; !w->norm && i < ring2_count(&a.k); i++)
        ring2_set(&a.k, i, ring2_get(&a.k, i) / sqrt((double)K));
    ring2_fill(&a.beta, w->beta ? -3 : 0, w->beta ? 3 : 1);
    if (f->write) ring2_fill(&a.write_gate, -1, 1);
    draw_gates(&a, f, gate);
    if (w->gate == GDN_GATE_RAW) {
        a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), ring2_fill(&a.A_log, -1, 1);
        a.dt_bias = ring2_new(GDN_F32, 2, f->g_rows ? 2 : 1, H, f->g_rows ? K : 0, 0, 0);
        ring2_fill(&a.dt_bias, -4, 1);
        a.dA_log = ring2_clone(&a.A_log), a.ddt_bias = ring2_clone(&a.dt_bias);
        if (w->no_A) a.A_log.data = a.dA_log.data = NULL;
    }
    const gdn_tensor *const like[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.write_gate };
    for (int i = 0; i < 6; i++)
        if (like[i]->data) *made(&a, i) = ring2_clone(like[i]);
    a.dstate = ring2_clone(&a.state);
    for (int i = 0; i < N_MADE; i++)
        if (made(&a, i)->data && w->adds)
            ring2_fill(made(&a, i), -1, 1);
        else if (made(&a, i)->data)
            ring2_fill_value(made(&a, i), NAN);
    return a;
}

/* ---- Beside float64 ------------------------------------------------------------------------ */

/* One head of a sequence: its tokens are [first, first + T) of the batch. */
struct part {
    const gdn_prefill_backward_args *a;
    int64_t b, h, H, first, T, K, V, n, lead;
};

/* Element [row][head][x]; of a tensor without channels, element [row][head]. */
static int64_t place(const struct part *p, const gdn_tensor *t, int64_t row, int64_t x)
{
    const bool rows = t->ndim == p->lead + 2;
    const int64_t H = t->size[p->lead], D = rows ? t->size[p->lead + 1] : 1;
    const int64_t h = p->a->head_map == GDN_HEADS_INTERLEAVED ? p->h % H : p->h / (p->H / H);
    return (row * H + h) * D + (rows ? x : 0);
}

static double *numbers(int64_t n) { return ring2_heap((size_t)(n + 1) * sizeof(double)); }

/* n rows of each token as [rows][size] numbers. */
static double *rows_of(const struct part *p, const gdn_tensor *t, int64_t n, int64_t size)
{
    double *x = numbers(p->T * n * size);
    for (int64_t i = 0; i < p->T * n * size; i++)
        x[i] = t->data ? ring2_get(t, place(p, t, p->first * n + i / size, i % size)) : 1;
    return x;
}

static double *normalised(const struct part *p, const double *x, int64_t n)
{
    double *y = numbers(n * p->K);
    memcpy(y, x, (size_t)(n * p->K) * sizeof *y);
    for (int64_t i = 0; i < n && p->a->norm; i++)
        oracle_l2norm(y + i * p->K, x + i * p->K, p->K, p->a->norm, 1e-6);
    return y;
}

/* A state as [V][K] numbers, and the place of such a number. */
static int64_t state_place(const struct part *p, int64_t i)
{
    const int64_t v = i / p->K, k = i % p->K, first = (p->b * p->H + p->h) * p->K * p->V;
    return first + (p->a->state_layout == GDN_STATE_KV ? k * p->V + v : i);
}
static double *state_of(const struct part *p, const gdn_tensor *t)
{
    double *S = numbers(p->K * p->V);
    for (int64_t i = 0; i < p->K * p->V; i++) S[i] = ring2_get(t, state_place(p, i));
    return S;
}

static double A_log_of(const struct part *p)
{
    return p->a->A_log.data ? ring2_get(&p->a->A_log, p->h) : 0;
}
static double bias_of(const struct part *p, int64_t x)
{
    const gdn_tensor *t = &p->a->dt_bias;
    return ring2_get(t, t->ndim == 2 ? p->h * p->K + x : p->h);
}

/* Returns log gates, from gates as they were given. */
static double *log_gates(const struct part *p, const double *given)
{
    double *g = numbers(p->T * p->K);
    for (int64_t i = 0; i < p->T * p->K; i++)
        g[i] = p->a->gate == GDN_GATE_LINEAR ? log(given[i])
               : p->a->gate == GDN_GATE_RAW
                   ? oracle_gate(given[i], A_log_of(p), bias_of(p, i % p->K),
                                 (double)p->a->gate_lower_bound)
                   : given[i];
    return g;
}

/* The sigmoid of n numbers, times `most`; their slopes in *slopes. */
static double *squashed(const struct part *p, const double *given, int64_t n, double most,
                        double **slopes)
{
    const bool squash = p->a->beta_kind != GDN_BETA_DEFAULT;
    double *x = numbers(n), *slope = numbers(n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = squash ? most * oracle_sigmoid(given[i]) : given[i];
        slope[i] = squash ? x[i] * oracle_sigmoid(-given[i]) : 1;
    }
    *slopes = slope;
    return x;
}

/* Adds rows to a gradient, whose head may be shared and whose channels be summed. */
static void add_rows(const struct part *p, double *to, const gdn_tensor *t, const double *from,
                     int64_t n, int64_t size)
{
    if (t->data)
        for (int64_t i = 0; i < p->T * n * size; i++)
            to[place(p, t, p->first * n + i / size, i % size)] += from[i];
}

/* Adds dg of log gates to the gradients of the tensors that the gates were made of. */
static void add_gates(const struct part *p, double *const *want, const double *given,
                      const double *dg)
{
    const gdn_prefill_backward_args *a = p->a;
    double *da = numbers(p->T * p->K);
    for (int64_t i = 0; i < p->T * p->K; i++) {
        const int64_t x = i % p->K;
        double by_A = 0, slope = 1;
        if (a->gate == GDN_GATE_LINEAR) slope = dg[i] == 0 ? 0 : 1 / given[i];
        if (a->gate == GDN_GATE_RAW)
            slope = oracle_gate_slope(given[i], A_log_of(p), bias_of(p, x),
                                      (double)a->gate_lower_bound, &by_A);
        da[i] = dg[i] == 0 ? 0 : dg[i] * slope;
        if (a->dA_log.data) want[DA_LOG][p->h] += dg[i] * by_A;
        if (a->ddt_bias.data)
            want[DDT_BIAS][a->ddt_bias.ndim == 2 ? p->h * p->K + x : p->h] += da[i];
    }
    add_rows(p, want[DG], &a->dg, da, 1, p->K);
}

static void add_betas(const struct part *p, double *const *want, double *db, double *dw,
                      const double *b_slope, const double *w_slope)
{
    const gdn_prefill_backward_args *a = p->a;
    const int64_t n = p->T * p->n;
    const bool one = a->beta.ndim == p->lead + 1; /* w is beta without a write gate */
    for (int64_t i = 0; i < n * p->K; i++) db[i] *= b_slope[i];
    for (int64_t i = 0; i < n * p->V; i++) dw[i] *= w_slope[i];
    add_rows(p, want[DBETA], &a->dbeta, db, p->n, p->K);
    if (a->write_gate.data)
        add_rows(p, want[DWRITE], &a->dwrite_gate, dw, p->n, p->V);
    else if (one)
        add_rows(p, want[DBETA], &a->dbeta, dw, p->n, p->V);
}

static void add_keys(const struct part *p, double *to, const gdn_tensor *t, const double *x,
                     double *dy, int64_t n)
{
    for (int64_t i = 0; i < p->T * n && p->a->norm; i++) {
        double *dx = numbers(p->K);
        oracle_l2norm_backward(dx, x + i * p->K, dy + i * p->K, p->K, p->a->norm, 1e-6);
        memcpy(dy + i * p->K, dx, (size_t)p->K * sizeof *dx);
    }
    add_rows(p, to, t, dy, n, p->K);
}

static void add_part(const struct part *p, double *const *want)
{
    const gdn_prefill_backward_args *a = p->a;
    const int64_t n = p->T * p->n, K = p->K, V = p->V;
    const bool one = a->beta.ndim == p->lead + 1;
    const double most = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    const double *q = rows_of(p, &a->q, 1, K), *k = rows_of(p, &a->k, p->n, K);
    const double *g = rows_of(p, &a->g, 1, K), *b = rows_of(p, &a->beta, p->n, K);
    const bool is_beta = one && !a->write_gate.data;
    const double *w = rows_of(p, is_beta ? &a->beta : &a->write_gate, p->n, V);
    double *b_slope, *w_slope;
    struct oracle_family r = { .T = p->T, .K = (int)K, .V = (int)V, .n = (int)p->n };
    r.scale = 1 / sqrt((double)K);
    r.q = normalised(p, q, p->T), r.k = normalised(p, k, n);
    r.v = rows_of(p, &a->v, p->n, V);
    r.g = log_gates(p, g);
    r.b = squashed(p, b, n * K, most, &b_slope);
    r.w = !is_beta && !a->write_gate.data ? w : squashed(p, w, n * V, is_beta ? most : 1, &w_slope);
    if (!is_beta && !a->write_gate.data) w_slope = numbers(n * V);
    r.o = numbers(p->T * V), r.state = state_of(p, &a->state);
    const struct oracle_family_backward d = {
        .of = &r,
        .dout = rows_of(p, &a->dout, 1, V),
        .dstate_out = state_of(p, &a->dstate_out),
        .dq = numbers(p->T * K),
        .dg = numbers(p->T * K),
        .dk = numbers(n * K),
        .db = numbers(n * K),
        .dv = numbers(n * V),
        .dw = numbers(n * V),
        .dstate = numbers(K * V),
    };
    oracle_family_backward(&d);
    add_keys(p, want[DQ], &a->dq, q, d.dq, 1);
    add_keys(p, want[DK], &a->dk, k, d.dk, p->n);
    add_rows(p, want[DV], &a->dv, d.dv, p->n, V);
    add_gates(p, want, g, d.dg);
    add_betas(p, want, d.db, d.dw, b_slope, w_slope);
    for (int64_t i = 0; i < K * V; i++) want[DSTATE][state_place(p, i)] += d.dstate[i];
}

/* Finds the tokens of sequence b that count. */
static void find_tokens(struct part *p, const gdn_batch *t)
{
    if (t->cu_seqlens.data) {
        p->first = (int64_t)ring2_get(&t->cu_seqlens, p->b);
        p->T = (int64_t)ring2_get(&t->cu_seqlens, p->b + 1) - p->first;
        return;
    }
    p->T = p->a->q.size[1], p->first = p->b * p->T;
    if (!t->token_start.data) return;
    p->first += (int64_t)ring2_get(&t->token_start, p->b);
    p->T = (int64_t)ring2_get(&t->token_count, p->b);
}

/* Compares with the limits of the vectors, a share of the root mean square, and a rounding to the
 * tensor's dtype. */
static void near(const char *what, const gdn_tensor *got, const double *want)
{
    const int64_t n = ring2_count(got);
    const double unit = got->dtype == GDN_F32 ? 0 : got->dtype == GDN_BF16 ? 0x1p-8 : 0x1p-10;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += want[i] * want[i];
    const double share = 5e-5 * sqrt(sum / (double)(n ? n : 1)) + 1e-6;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(ring2_get(got, i) - want[i]),
                     limit = share + unit * fabs(want[i]);
        if (!(error <= limit)) {
            ring2_fail("%s[%d]: %g, wanted %g, off by %g, limit %g", what, (int)i,
                       ring2_get(got, i), want[i], error, limit);
            return;
        }
    }
}

static bool is_by_chunks(void)
{
    return strstr(gdn_last_kernel(ring2_ctx(1)), "backward_chunks") != NULL;
}

/* Compares what chunks of bf16 on tensor cores made, by the limits of the vectors. */
static void near_in_chunks(int which, const gdn_tensor *got, const double *want)
{
    const int64_t n = ring2_count(got);
    const bool is_gate = which >= DG && which <= DDT_BIAS;
    double sum = 0, errors = 0, most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(ring2_get(got, i) - want[i]);
        sum += want[i] * want[i], errors += error * error;
        most = fmax(most, fabs(want[i]));
        worst = isfinite(error) ? fmax(worst, error) : (double)INFINITY;
    }
    const double share = sqrt(errors / (sum > 0 ? sum : 1)), limit = is_gate ? 1.5e-2 : 8e-3;
    CHECK(sqrt(errors) <= limit * sqrt(sum) + 1e-6, "%s: an error of %g, limit %g", names[which],
          share, limit);
    CHECK(worst <= 6 * 0x1p-8 * most + 1e-6, "%s: off by %g, the largest is %g", names[which],
          worst, most);
}

static void run(gdn_prefill_backward_args *a)
{
    gdn_ctx *ctx = ring2_ctx(1);
    ring2_call_begin();
    for (int i = 0; i < N_MADE; i++)
        if (made(a, i)->data) ring2_may_write(made(a, i));
    ring2_status(ctx, "gdn_prefill_backward", gdn_prefill_backward(ctx, a), GDN_OK);
    ring2_call_end();
}

static void agrees(const struct rule *f, int gate, const struct way *w)
{
    gdn_prefill_backward_args a = draw(f, gate, w);
    double *want[N_MADE];
    for (int i = 0; i < N_MADE; i++) {
        const gdn_tensor *t = made(&a, i);
        want[i] = numbers(t->data ? ring2_count(t) : 0);
        for (int64_t j = 0; w->adds && t->data && j < ring2_count(t); j++)
            want[i][j] = ring2_get(t, j);
    }
    for (int64_t b = 0; b < n_rows(w); b++)
        for (int64_t h = 0; h < w->H; h++) {
            struct part p = { .a = &a, .b = b, .h = h, .H = w->H, .K = w->K, .V = w->V };
            p.n = f->updates, p.lead = w->padded ? 2 : 1;
            find_tokens(&p, a.batch);
            add_part(&p, want);
        }
    run(&a);
    for (int i = 0; i < N_MADE; i++)
        if (made(&a, i)->data && is_by_chunks())
            near_in_chunks(i, made(&a, i), want[i]);
        else if (made(&a, i)->data)
            near(names[i], made(&a, i), want[i]);
}

/* Chunks of a device on tensor cores. */
static void tensor(int i)
{
    const struct rule *f = &rules[i % 2];
    agrees(f, i / 2 % N_GATES, &tensor_ways[i / 2 / N_GATES]);
    if (ring2_on_device()) CHECK(is_by_chunks(), "%s", gdn_last_kernel(ring2_ctx(1)));
}

/* Gates of each strength; what is raw draws its own. */
static void strengths(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, &ways[i / N_RULES / N_GATES]);
}
static void kinds(int i) { agrees(&rules[i % N_RULES], 4, &ways[2 + i / N_RULES]); }

/* ---- Guarantees ---------------------------------------------------------------------------- */

static bool is_finite(const gdn_tensor *t)
{
    for (int64_t i = 0; i < ring2_count(t); i++)
        if (!isfinite(ring2_get(t, i))) return false;
    return true;
}

/* G7: channels that forget at the first token forget a NaN and 1e30 in their rows of the state:
 * gradients are those of a state without them. A CPU cuts a chunk there only if a product is not
 * finite, so its roundings may differ. */
static void forgets(int i)
{
    const struct way *w = &ways[0];
    gdn_prefill_backward_args a = draw(&rules[i], 4, w);
    const int64_t K = w->K, first = w->H * K;
    for (int64_t j = 0; j < ring2_count(&a.g); j++)
        if (j % K < 3 && (j < first || (j >= 37 * first && j < 38 * first)))
            ring2_set(&a.g, j, -(double)INFINITY);
    gdn_prefill_backward_args clean = a;
    for (int j = 0; j < N_MADE; j++)
        if (made(&a, j)->data) *made(&clean, j) = ring2_clone(made(&a, j));
    a.state = ring2_clone(&a.state);
    for (int64_t j = 0; j < ring2_count(&a.state); j++)
        if (j % K < 3 && j / (w->H * w->V * K) != 1)
            ring2_set(&a.state, j, j % K == 1 ? 1e30 : (double)NAN);
    run(&a), run(&clean);
    for (int j = 0; j < N_MADE; j++) {
        if (!made(&a, j)->data) continue;
        if (ring2_on_device())
            ring2_expect_bits(names[j], made(&a, j), made(&clean, j));
        else
            near(names[j], made(&a, j), ring2_doubles(made(&clean, j)));
    }
}

/* G7: NaN in a token is forgotten once every channel forgets, in one token or in two of which the
 * second writes nothing. The gradients of later tokens are finite. G8: where w is 0, v may be
 * NaN. */
static void forgets_all(int i)
{
    const struct way *w = &ways[0];
    gdn_prefill_backward_args a = draw(&rules[i / 2], 1, w);
    const int64_t K = w->K, V = w->V, two = i % 2;
    ring2_set(&a.v, 5 * w->H * V, NAN);
    ring2_set(&a.k, 6 * w->Hk * K, NAN);
    for (int64_t j = 0; j < w->H * K; j++)
        ring2_set(&a.g, (10 + (two && j % 2)) * w->H * K + j, -(double)INFINITY);
    const int64_t size = ring2_count(&a.beta) / a.q.size[0];
    for (int64_t j = 0; two && j < size; j++) ring2_set(&a.beta, 10 * size + j, 0);
    for (int64_t j = 0; a.write_gate.data && j < w->H * V; j++) {
        if (two) ring2_set(&a.write_gate, 10 * w->H * V + j, 0);
        if (j % 5) continue;
        ring2_set(&a.write_gate, 15 * w->H * V + j, 0);
        ring2_set(&a.v, 15 * w->H * V + j, NAN);
    }
    run(&a);
    for (int j = DQ; j <= DBETA; j++) {
        const gdn_tensor t = ring2_narrow(made(&a, j), 0, 11, 26);
        CHECK(is_finite(&t), "%s is not finite behind the gate", names[j]);
    }
}

/* Expects rows [from, from + n) of a gradient to be those of another call. */
static void expect_rows(int d, gdn_prefill_backward_args *got, gdn_prefill_backward_args *want,
                        int64_t from, int64_t n)
{
    const gdn_tensor a = ring2_narrow(made(got, d), 0, from, n);
    const gdn_tensor b = ring2_narrow(made(want, d), 0, from, n);
    near(names[d], &a, ring2_doubles(&b));
}

/* A NaN in a token reaches only what depends on it. If it is in v, it reaches neither gradients
 * of earlier tokens nor dv of later ones. If it is in dout, it reaches no later token. */
static void stays(int i)
{
    static const struct way w = {
        .name = "one", .Hk = 2, .H = 4, .K = 40, .V = 24, .lengths = { 50 }
    };
    const int64_t T = w.lengths[0], at = 21, size = w.H * w.V;
    gdn_prefill_backward_args a = draw(&rules[0], 1, &w), b = a;
    for (int j = 0; j < N_MADE; j++)
        if (made(&a, j)->data) *made(&b, j) = ring2_clone(made(&a, j));
    gdn_tensor *bad = i ? &b.dout : &b.v;
    *bad = ring2_clone(bad);
    for (int64_t j = 0; j < size; j++)
        if (j % 5 == 0) ring2_set(bad, at * size + j, NAN);
    run(&a), run(&b);
    for (int j = DQ; j <= DBETA; j++)
        if (i)
            expect_rows(j, &b, &a, at + 1, T - at - 1);
        else
            expect_rows(j, &b, &a, 0, at);
    if (i) return;
    expect_rows(DV, &b, &a, 0, T);
    near("dstate", &b.dstate, ring2_doubles(&a.dstate));
}

/* dstate has the same bits if it is the only gradient, and if a state is not finite. */
static void alone(int i)
{
    gdn_prefill_backward_args a = draw(&rules[i / 2], 4, &ways[0]), b = a;
    if (i % 2) ring2_set(&a.state, 7, NAN);
    for (int j = 0; j < DSTATE; j++) made(&b, j)->data = NULL;
    b.dstate = ring2_clone(&a.dstate);
    run(&a), run(&b);
    ring2_expect_bits("dstate", &b.dstate, &a.dstate);
}

/* Windows change no bit of a sequence's gradients. */
static void windows(int i)
{
    struct way w = ways[i == 1 ? N_WAYS - 1 : i % 2 ? 5 : 0];
    w.lengths[0] = 290, w.lengths[1] = 30, w.lengths[2] = 0, w.lengths[3] = 135;
    gdn_prefill_backward_args a = draw(&rules[i], 4, &w), b = a;
    if (!ring2_windows(i % 2 ? 2 : -3)) {
        ring2_skip("windows are a device's");
        return;
    }
    for (int j = 0; j < N_MADE; j++)
        if (made(&a, j)->data) *made(&b, j) = ring2_clone(made(&a, j));
    run(&a);
    const bool through = strstr(gdn_last_kernel(ring2_ctx(1)), "backward_general_plan") != NULL;
    CHECK(through == !(i % 2), "%s", gdn_last_kernel(ring2_ctx(1)));
    ring2_windows(0);
    run(&b);
    for (int j = 0; j < N_MADE; j++) {
        if (!made(&a, j)->data) continue;
        if (j == DA_LOG || j == DDT_BIAS)
            near(names[j], made(&a, j), ring2_doubles(made(&b, j)));
        else
            ring2_expect_bits(names[j], made(&a, j), made(&b, j));
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "strengths", strengths, N_RULES * N_GATES * 2 },
        { "kinds", kinds, N_RULES * (N_WAYS - 2) },
        { "tensor", tensor, 2 * N_GATES * (int)(sizeof tensor_ways / sizeof *tensor_ways) },
        { "forgets", forgets, 2 },
        { "forgets_all", forgets_all, 4 },
        { "stays", stays, 2 },
        { "alone", alone, 2 * N_RULES },
        { "windows", windows, N_RULES },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
