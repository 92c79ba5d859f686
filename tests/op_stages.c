/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of the chunked form: each against its formula in float64 on the inputs that it was
 * given, T by an explicit inverse; then all of them, one after the other, against the
 * recurrence and gdn_prefill.
 *
 * Limits add up what the loops of a stage may err (src/cpu/kernels.h), in units of 2^-24 of the
 * formula on absolute values: strip_mul 8 + K / 16 (each use), chunk_gates 8 + 2 |G|,
 * chunk_solve 32, chunk_update 12 (each), products that stand alone 1 (4 counted).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_rule.h"

static const double eps = 0x1p-24, tiny = 0x1p-115;

enum { MAX_C = 64 };

/* One set of inputs and outputs for all stages. */
struct stages {
    gdn_batch  batch;
    int64_t    B, N, first[5], T[5], valid[5]; /* sequences: tokens first .. first + T */
    int64_t    NC, chunk[6];
    int        C, Hq, Hk, Hv, H, K, V, map, layout;
    bool       padded;
    gdn_tensor q, k, v, g, beta, u, w, t, state, states, state_out, out;
};

/* ---- Making ---- */

static gdn_tensor rows(const struct stages *s, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = D && ring2_below(2) ? 5 : 0;
    const int     ndim = D ? 3 : 2;
    if (!s->padded) return ring2_new(dtype, gap, ndim, s->N, n, D, 0);
    return ring2_new(dtype, gap, ndim + 1, s->B, s->N / s->B, n, D);
}

static void make_batch(struct stages *s, int number)
{
    static const int64_t lengths[3][4] = { { 40, 0, 70, 17 }, { 1, 64, 16, 33 }, { 0, 131, 0, 5 } };
    int64_t cu[5] = { 0 };
    s->batch  = gdn_batch_init();
    s->padded = number % 4 == 3;
    s->B      = 4;
    for (int b = 0; b < 4; b++) {
        s->T[b]     = s->padded ? 40 : lengths[number % 3][b];
        s->first[b] = s->N;
        s->N += s->T[b];
        cu[b + 1]       = s->N;
        s->valid[b]     = number % 4 == 2 ? ring2_below(s->T[b] + 1) : s->T[b];
        s->chunk[b + 1] = s->chunk[b] + (s->T[b] + s->C - 1) / s->C;
    }
    s->NC = s->chunk[4];
    if (!s->padded) s->N += 3, s->batch.cu_seqlens = ring2_indices(GDN_I64, 5, cu);
    if (number % 4 == 2) s->batch.token_count = ring2_indices(GDN_I32, 4, s->valid);
}

static gdn_tensor pool(const struct stages *s, int32_t dtype, int64_t P)
{
    const bool swapped = ring2_below(2), kv = s->layout == GDN_STATE_KV;
    gdn_tensor t = ring2_new(dtype, 3, 4, P, s->H, kv != swapped ? s->K : s->V,
                             kv != swapped ? s->V : s->K);
    ring2_fill(&t, -1, 1);
    return swapped ? ring2_swap(&t, 2, 3) : t;
}

static void fill_unit(const gdn_tensor *k)
{
    const int64_t K = k->size[k->ndim - 1];
    double       *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = ring2_uniform(-1, 1);
        oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

static void make_gates(struct stages *s, int gates)
{
    for (int64_t i = 0; i < ring2_count(&s->g); i++) {
        double g = gates == 1 ? ring2_uniform(-8, -7) : ring2_uniform(-0.1, 0);
        if (gates == 2 && ring2_below(9) == 0) g = -(double)INFINITY;
        ring2_set(&s->g, i, g);
    }
    for (int64_t i = 0; i < ring2_count(&s->beta); i++)
        ring2_set(&s->beta, i, ring2_below(6) ? ring2_uniform(0, gates ? 1 : 2) : 0);
}

/* exact: all of float32. */
static void make_stages(struct stages *s, int number, int C, bool exact)
{
    static const int heads[5][3] = { { 1, 1, 1 }, { 4, 2, 4 }, { 6, 2, 2 }, { 2, 2, 4 },
                                     { 3, 3, 3 } };
    static const int dims[6][2] = { { 16, 16 }, { 1, 3 }, { 33, 7 }, { 20, 65 }, { 128, 40 },
                                    { 60, 100 } };
    const int *h = heads[number % 5];
    const int32_t a = exact ? GDN_F32 : number % 3, b = exact ? GDN_F32 : number / 2 % 3;
    *s    = (struct stages){ .C = C, .Hq = h[0], .Hk = h[1], .Hv = h[2], .map = number % 2 };
    s->H  = h[0] > h[2] ? h[0] : h[2];
    s->K  = dims[number % 6][0], s->V = dims[number % 6][1], s->layout = number / 3 % 2;
    make_batch(s, number);
    s->q = rows(s, a, s->Hq, s->K), s->k = rows(s, a, s->Hk, s->K), s->v = rows(s, b, s->Hv, s->V);
    s->g = rows(s, GDN_F32, s->H, 0), s->beta = rows(s, b, s->H, 0);
    s->u = rows(s, b, s->H, s->V), s->w = rows(s, b, s->H, s->K);
    s->t = rows(s, number % 2 ? GDN_F32 : b, s->H, C), s->out = rows(s, a, s->H, s->V);
    s->state = pool(s, b, 4), s->states = pool(s, GDN_F32, s->NC + number % 2);
    s->state_out = pool(s, GDN_F32, 4);
    fill_unit(&s->q), fill_unit(&s->k);
    ring2_fill(&s->v, -1, 1);
    make_gates(s, number % 3);
    if (number % 7 == 4) s->g.data = NULL;
    if (number % 7 == 5) s->beta.data = NULL;
}

/* ---- Calls ---- */

static gdn_chunk_uw_args uw_args(const struct stages *s)
{
    gdn_chunk_uw_args a = gdn_chunk_uw_args_init();
    a.k = s->k, a.v = s->v, a.g = s->g, a.beta = s->beta, a.u = s->u, a.w = s->w, a.T = s->t;
    a.batch = &s->batch, a.head_map = s->map, a.chunk_size = s->C;
    return a;
}

static gdn_chunk_states_args states_args(const struct stages *s)
{
    gdn_chunk_states_args a = gdn_chunk_states_args_init();
    a.k = s->k, a.u = s->u, a.w = s->w, a.g = s->g;
    a.state = s->state, a.states = s->states, a.state_out = s->state_out;
    a.batch = &s->batch, a.head_map = s->map, a.state_layout = s->layout, a.chunk_size = s->C;
    return a;
}

static gdn_chunk_output_args output_args(const struct stages *s)
{
    gdn_chunk_output_args a = gdn_chunk_output_args_init();
    a.q = s->q, a.k = s->k, a.u = s->u, a.w = s->w, a.g = s->g, a.states = s->states;
    a.out = s->out, a.batch = &s->batch;
    a.head_map = s->map, a.state_layout = s->layout, a.chunk_size = s->C;
    return a;
}

static gdn_chunk_cumsum_args cumsum_args(const struct stages *s, const gdn_tensor *out, int C)
{
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    a.g = s->g, a.out = *out, a.batch = &s->batch, a.chunk_size = C;
    return a;
}

/* The call in memory that is watched, with a workspace of exactly the bytes asked for. */
static void run(gdn_ctx *ctx, gdn_op op, const void *args, void *const *workspace,
                size_t *workspace_bytes, const gdn_tensor *const *written, int n, int64_t B)
{
    const size_t most = (size_t)gdn_n_threads(ctx) * (512 << 10) + 320 * (size_t)B;
    size_t       bytes = 0;
    ring2_status(ctx, "supported", gdn_supported(ctx, op, args), GDN_OK);
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, op, args, &bytes), GDN_OK);
    CHECK(bytes <= (op == GDN_OP_CHUNK_CUMSUM ? 320 * (size_t)B + 128 : most), "%zu bytes", bytes);
    *(void **)(uintptr_t)workspace = ring2_alloc((bytes + 63) / 64 * 64, 64);
    *workspace_bytes               = bytes;
    ring2_call_begin();
    for (int i = 0; i < n; i++) ring2_may_write(written[i]);
    ring2_may_write_bytes(*workspace, bytes);
    ring2_status(ctx, "the call", ring2_run(ctx, op, args), GDN_OK);
    ring2_call_end();
}

#define RUN(ctx, op, a, B, ...)                                                               \
    run(ctx, op, &(a), &(a).workspace, &(a).workspace_bytes,                                  \
        (const gdn_tensor *const[]){ __VA_ARGS__ },                                           \
        (int)(sizeof((const gdn_tensor *const[]){ __VA_ARGS__ }) / sizeof(gdn_tensor *)), B)

/* ---- One chunk in float64 ---- */

struct chunk {
    int     n, h, hq, hk, hv;
    int64_t first; /* row of its first token */
    double  E[MAX_C][MAX_C]; /* exp(g_{j+1} + ... + g_i), j <= i: nothing to cancel */
    double  gamma[MAX_C], beta[MAX_C], decay, G;
};

static int source(const struct stages *s, int h, int n)
{
    return s->map == GDN_HEADS_GROUPED ? h / (s->H / n) : h % n;
}

static void load_chunk(struct chunk *c, const struct stages *s, int b, int64_t i, int h)
{
    const int64_t t0 = i * s->C, left = s->valid[b] - t0;
    double        g[MAX_C];
    memset(c, 0, sizeof *c);
    c->n = left < 0 ? 0 : left < s->C ? (int)left : s->C;
    c->h = h, c->hq = source(s, h, s->Hq), c->hk = source(s, h, s->Hk), c->hv = source(s, h, s->Hv);
    c->first = s->first[b] + t0;
    c->decay = 1;
    for (int t = 0; t < c->n; t++) {
        g[t]       = s->g.data ? ring2_get(&s->g, (c->first + t) * s->H + h) : 0;
        c->beta[t] = s->beta.data ? ring2_get(&s->beta, (c->first + t) * s->H + h) : 1;
        if (g[t] > -104) c->G -= g[t];
        c->decay *= exp(g[t]);
        c->gamma[t] = c->decay;
        c->E[t][t]  = 1;
        for (int j = 0; j < t; j++) c->E[t][j] = c->E[t - 1][j] * exp(g[t]);
    }
}

static double at(const gdn_tensor *x, int64_t token, int h, int64_t d)
{
    const int64_t n = x->size[x->ndim - 2], D = x->size[x->ndim - 1];
    return ring2_get(x, (token * n + h) * D + d);
}

static double dot(const struct stages *s, const gdn_tensor *x, int64_t i, int hx,
                  const gdn_tensor *y, int64_t j, int hy, double *mag)
{
    double sum = 0;
    *mag = 0;
    for (int d = 0; d < s->K; d++) {
        const double p = at(x, i, hx, d) * at(y, j, hy, d);
        sum += p, *mag += fabs(p);
    }
    return sum;
}

/* A tensor of tokens as it must be: 0 where no chunk computes. */
struct wanted {
    double *x, *limit;
};
static struct wanted want(const gdn_tensor *t)
{
    const size_t n = (size_t)ring2_count(t);
    return (struct wanted){ ring2_heap(n * 8), ring2_heap(n * 8) };
}

/* (I + A)^-1 written out, and what of it the limits are made of. */
static void model_uw_chunk(const struct stages *s, const struct chunk *c, const struct wanted *u,
                           const struct wanted *w, const struct wanted *T)
{
    static double A[MAX_C][MAX_C], A_mag[MAX_C][MAX_C], X[MAX_C][MAX_C];
    const double  units = 32 + 8 + s->K / 16.0 + 8 + 2 * c->G + 8 + 48 / 16.0 + 4;
    memset(X, 0, sizeof X);
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < i; j++) {
            double mag;
            A[i][j] = c->beta[i] * c->E[i][j] *
                      dot(s, &s->k, c->first + i, c->hk, &s->k, c->first + j, c->hk, &mag);
            A_mag[i][j] = c->beta[i] * c->E[i][j] * mag;
        }
    for (int j = 0; j < c->n; j++) /* column j of the inverse */
        for (int i = j; i < c->n; i++) {
            X[i][j] = i == j;
            for (int l = j; l < i; l++) X[i][j] -= A[i][l] * X[l][j];
        }
    const int columns[3] = { s->V, s->K, s->C };
    for (int which = 0; which < 3; which++)
        for (int d = 0; d < columns[which]; d++) {
            double right[MAX_C], x[MAX_C], r[MAX_C];
            for (int i = 0; i < c->n; i++) {
                const double b = c->beta[i];
                right[i] = which == 2 ? i == d
                           : b == 0   ? 0
                           : which    ? b * c->gamma[i] * at(&s->k, c->first + i, c->hk, d)
                                      : b * at(&s->v, c->first + i, c->hv, d);
                x[i] = 0;
                for (int j = 0; j <= i; j++) x[i] += X[i][j] * right[j];
                r[i] = fabs(right[i]);
                for (int j = 0; j < i; j++) r[i] += A_mag[i][j] * fabs(x[j]);
            }
            for (int i = 0; i < c->n; i++) {
                const struct wanted *to = which == 0 ? u : which == 1 ? w : T;
                const int64_t        e = ((c->first + i) * s->H + c->h) * columns[which] + d;
                double               mag = 0;
                for (int j = 0; j <= i; j++) mag += fabs(X[i][j]) * r[j];
                to->x[e]     = x[i];
                to->limit[e] = units * eps * mag + tiny;
            }
        }
}

static void check_uw(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_uw_args a = uw_args(s);
    struct wanted     u = want(&s->u), w = want(&s->w), T = want(&s->t);
    static struct chunk c;
    for (int b = 0; b < 4; b++)
        for (int64_t i = 0; i < s->chunk[b + 1] - s->chunk[b]; i++)
            for (int h = 0; h < s->H; h++) {
                load_chunk(&c, s, b, i, h);
                model_uw_chunk(s, &c, &u, &w, &T);
            }
    RUN(ctx, GDN_OP_CHUNK_UW, a, s->B, &a.u, &a.w, &a.T);
    ring2_compare("u", &a.u, u.x, u.limit, NULL, NULL);
    ring2_compare("w", &a.w, w.x, w.limit, NULL, NULL);
    ring2_compare("T", &a.T, T.x, T.limit, NULL, NULL);
}

/* ---- States and output in float64 ---- */

static int64_t state_at(const struct stages *s, int64_t slot, int h, int x, int j)
{
    const int64_t inner = s->layout == GDN_STATE_VK ? (int64_t)j * s->K + x : (int64_t)x * s->V + j;
    return (slot * s->H + h) * s->K * s->V + inner;
}

/* d of token i, column j, from the state that the library itself has stored. */
static double difference(const struct stages *s, const struct chunk *c, int i, int h, int j,
                         const gdn_tensor *S, int64_t slot, double *mag)
{
    double d = at(&s->u, c->first + i, h, j);
    *mag     = fabs(d);
    for (int x = 0; x < s->K; x++) {
        const double p = at(&s->w, c->first + i, h, x) * ring2_get(S, state_at(s, slot, h, x, j));
        d -= p, *mag += fabs(p);
    }
    return d;
}

/* Chunk after chunk from the state stored before, so that no error is carried on. */
static void judge_chunk(const struct stages *s, const struct chunk *c, int64_t from,
                        const gdn_tensor *to, int64_t slot)
{
    const double units = 8 + s->K / 16.0 + 12 * (s->C / 16) + 8 + 2 * c->G + 4;
    for (int j = 0; j < s->V; j++) {
        double d[MAX_C], mag[MAX_C];
        for (int i = 0; i < c->n; i++)
            d[i] = difference(s, c, i, c->h, j, &s->states, from, &mag[i]);
        for (int x = 0; x < s->K; x++) {
            const double S = ring2_get(&s->states, state_at(s, from, c->h, x, j));
            double       y = c->decay * S, limit = fabs(y);
            for (int i = 0; i < c->n; i++) {
                const double k = at(&s->k, c->first + i, c->hk, x) * c->E[c->n - 1][i];
                y += k * d[i], limit += fabs(k) * mag[i];
            }
            const double got = ring2_get(to, state_at(s, slot, c->h, x, j));
            limit = limit * units * eps + tiny;
            CHECK(fabs(got - y) <= limit, "state [%d][%d][%d][%d]: %.9g, expected %.9g, limit %.3g",
                  (int)slot, c->h, x, j, got, y, limit);
        }
    }
}

static void check_states(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_states_args a      = states_args(s);
    gdn_tensor            used   = ring2_narrow(&s->states, 0, 0, s->NC);
    static struct chunk   c;
    RUN(ctx, GDN_OP_CHUNK_STATES, a, s->B, &used, &a.state_out);
    for (int b = 0; b < 4; b++) {
        const int64_t n = s->chunk[b + 1] - s->chunk[b];
        gdn_tensor    first = n ? ring2_narrow(&s->states, 0, s->chunk[b], 1)
                                : ring2_narrow(&s->state_out, 0, b, 1);
        gdn_tensor    start = ring2_clone(&first), given = ring2_narrow(&s->state, 0, b, 1);
        ring2_copy(&start, &given);
        ring2_expect_bits("start", &first, &start);
        for (int64_t i = 0; i < n; i++)
            for (int h = 0; h < s->H; h++) {
                const bool last = i == n - 1;
                load_chunk(&c, s, b, i, h);
                judge_chunk(s, &c, s->chunk[b] + i, last ? &s->state_out : &s->states,
                            last ? b : s->chunk[b] + i + 1);
            }
    }
}

static void model_output_chunk(const struct stages *s, const struct chunk *c, int64_t slot,
                               const struct wanted *o)
{
    const double scale = 1 / sqrt(s->K);
    const double units = 3 * (8 + s->K / 16.0) + 12 * (s->C / 16) + 8 + 2 * c->G + 32 + 4;
    for (int j = 0; j < s->V; j++) {
        double d[MAX_C], d_mag[MAX_C];
        for (int i = 0; i < c->n; i++) {
            double y = 0, mag = 0;
            d[i] = difference(s, c, i, c->h, j, &s->states, slot, &d_mag[i]);
            for (int x = 0; x < s->K; x++) {
                const double p = c->gamma[i] * at(&s->q, c->first + i, c->hq, x) *
                                 ring2_get(&s->states, state_at(s, slot, c->h, x, j));
                y += p, mag += fabs(p);
            }
            for (int l = 0; l <= i; l++) {
                double       m;
                const double qk = dot(s, &s->q, c->first + i, c->hq, &s->k, c->first + l, c->hk,
                                      &m);
                y += c->E[i][l] * qk * d[l], mag += c->E[i][l] * m * d_mag[l];
            }
            const int64_t e = ((c->first + i) * s->H + c->h) * s->V + j;
            o->x[e]     = scale * y;
            o->limit[e] = scale * mag * units * eps + tiny;
        }
    }
}

static void check_output(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_output_args a = output_args(s);
    struct wanted         o = want(&s->out);
    static struct chunk   c;
    for (int b = 0; b < 4; b++)
        for (int64_t i = 0; i < s->chunk[b + 1] - s->chunk[b]; i++)
            for (int h = 0; h < s->H; h++) {
                load_chunk(&c, s, b, i, h);
                model_output_chunk(s, &c, s->chunk[b] + i, &o);
            }
    RUN(ctx, GDN_OP_CHUNK_OUTPUT, a, s->B, &a.out);
    ring2_compare("out", &a.out, o.x, o.limit, NULL, NULL);
}

static void check_cumsum(gdn_ctx *ctx, const struct stages *s, int C)
{
    gdn_tensor            out = rows(s, GDN_F32, s->H, 0);
    gdn_chunk_cumsum_args a   = cumsum_args(s, &out, C);
    struct wanted         y   = want(&out);
    a.scale = C % 2 ? -1.5f : 0;
    for (int b = 0; b < 4; b++)
        for (int h = 0; h < s->H; h++) {
            double sum = 0;
            for (int64_t t = 0; t < s->valid[b]; t++) {
                const int64_t e = (s->first[b] + t) * s->H + h;
                sum  = t % C ? sum + ring2_get(&s->g, e) : ring2_get(&s->g, e);
                y.x[e] = sum * (C % 2 ? -1.5 : 1);
            }
        }
    RUN(ctx, GDN_OP_CHUNK_CUMSUM, a, s->B, &a.out); /* one rounding: no limit beside it */
    ring2_compare("cumsum", &a.out, y.x, y.limit, NULL, NULL);
}

/* ---- Cases ---- */

static void stage_case(int number, int C)
{
    gdn_ctx      *ctx = ring2_ctx(1 + number % 3);
    struct stages s;
    make_stages(&s, number, C, false);
    if (s.g.data) check_cumsum(ctx, &s, number % 2 ? C : 1 + number);
    check_uw(ctx, &s);
    check_states(ctx, &s);
    check_output(ctx, &s);
}

/* The three in a row, float32, against the recurrence. Each chunk's d is made of two halves, u
 * and w S, each with the errors that prefill's u has: twice its limits. Both agree with the
 * oracle, so with each other. */
static void chain_case(int number, int C)
{
    gdn_ctx          *ctx = ring2_ctx(1 + number % 3);
    struct stages     s;
    struct ring2_rule m;
    gdn_rule_args     r = gdn_rule_args_init();
    make_stages(&s, number, C, true);
    gdn_chunk_uw_args     uw = uw_args(&s);
    gdn_chunk_states_args st = states_args(&s);
    gdn_chunk_output_args o  = output_args(&s);
    r.q = s.q, r.k = s.k, r.v = s.v, r.g = s.g, r.beta = s.beta, r.out = ring2_clone(&s.out);
    r.state = s.state, r.state_out = s.state_out, r.batch = &s.batch;
    r.head_map = s.map, r.state_layout = s.layout;
    uw.T.data = NULL;
    ring2_rule_model(&r, false, &m);
    ring2_status(ctx, "uw", gdn_chunk_uw(ctx, &uw), GDN_OK);
    ring2_status(ctx, "states", gdn_chunk_states(ctx, &st), GDN_OK);
    ring2_status(ctx, "output", gdn_chunk_output(ctx, &o), GDN_OK);
    for (int64_t i = 0; i < ring2_count(&s.out); i++) m.out_limit[i] *= 2, m.out_noise[i] *= 2;
    for (int64_t i = 0; i < ring2_count(&s.state_out); i++)
        m.state_limit[i] *= 2, m.state_noise[i] *= 2;
    ring2_compare("out", &o.out, m.out, m.out_limit, m.out_noise, m.out_kept);
    ring2_compare("state", &st.state_out, m.state, m.state_limit, m.state_noise, m.state_kept);
    r.state_out = ring2_clone(&s.state_out);
    ring2_status(ctx, "prefill", gdn_prefill(ctx, &r), GDN_OK);
    for (int64_t i = 0; i < ring2_count(&s.out); i++) { /* two errors, one from each side */
        const double e = fabs(ring2_get(&o.out, i) - ring2_get(&r.out, i));
        CHECK(e <= 1.5 * m.out_limit[i], "out[%d] and prefill's differ by %g", (int)i, e);
    }
}

/* ---- Guarantees ---- */

static void call_all(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_uw_args     uw = uw_args(s);
    gdn_chunk_states_args st = states_args(s);
    gdn_chunk_output_args o  = output_args(s);
    ring2_status(ctx, "uw", gdn_chunk_uw(ctx, &uw), GDN_OK);
    ring2_status(ctx, "states", gdn_chunk_states(ctx, &st), GDN_OK);
    ring2_status(ctx, "output", gdn_chunk_output(ctx, &o), GDN_OK);
}

static struct stages fresh(const struct stages *s)
{
    struct stages f = *s;
    gdn_tensor   *t[] = { &f.u, &f.w, &f.t, &f.states, &f.state_out, &f.out };
    for (int i = 0; i < 6; i++) *t[i] = ring2_clone(t[i]);
    return f;
}

static void expect_same(const char *what, const struct stages *a, const struct stages *b)
{
    ring2_expect_bits(what, &a->u, &b->u), ring2_expect_bits(what, &a->w, &b->w);
    ring2_expect_bits(what, &a->t, &b->t), ring2_expect_bits(what, &a->states, &b->states);
    ring2_expect_bits(what, &a->state_out, &b->state_out);
    ring2_expect_bits(what, &a->out, &b->out);
}

static void G2_G3_threads(void)
{
    for (int number = 0; number < 3; number++) {
        struct stages s, one;
        make_stages(&s, number * 6 + 4, 32, true);
        one = fresh(&s);
        call_all(ring2_ctx(1), &one);
        for (int n = 1; n <= 4; n++) {
            struct stages many = fresh(&s);
            call_all(ring2_ctx(n), &many);
            expect_same("threads", &many, &one);
        }
    }
}

/* A sequence alone gives the bits that it gives among others. */
static void G2_mates(void)
{
    struct stages s, alone;
    make_stages(&s, 16, 32, true); /* packed: 1, 64, 16, 33 tokens; no mask */
    CHECK(s.batch.cu_seqlens.data && !s.batch.token_count.data, "another batch");
    call_all(ring2_ctx(2), &s);
    for (int b = 0; b < 4; b++) {
        gdn_tensor *rows_of[] = { &alone.q, &alone.k, &alone.v, &alone.g, &alone.beta, &alone.u,
                                  &alone.w, &alone.t, &alone.out };
        struct stages its = s;
        gdn_tensor *mine[] = { &its.u, &its.w, &its.t, &its.out };
        alone       = fresh(&s);
        alone.batch = gdn_batch_init();
        for (int i = 0; i < 9; i++)
            if (rows_of[i]->data) *rows_of[i] = ring2_narrow(rows_of[i], 0, s.first[b], s.T[b]);
        alone.state     = ring2_narrow(&s.state, 0, b, 1);
        alone.states    = ring2_narrow(&alone.states, 0, s.chunk[b], s.chunk[b + 1] - s.chunk[b]);
        alone.state_out = ring2_narrow(&alone.state_out, 0, b, 1);
        call_all(ring2_ctx(3), &alone);
        for (int i = 0; i < 4; i++) *mine[i] = ring2_narrow(mine[i], 0, s.first[b], s.T[b]);
        its.states    = ring2_narrow(&s.states, 0, s.chunk[b], s.chunk[b + 1] - s.chunk[b]);
        its.state_out = ring2_narrow(&s.state_out, 0, b, 1);
        expect_same("alone", &alone, &its);
    }
}

/* G7: a gate of -inf in a chunk, NaN in the state and the values before it; G8: NaN in v where
 * beta is 0. Behind the gate all is as if the sequence began there. */
static void G7_G8_forgets(void)
{
    for (int C = 16; C <= 64; C *= 2)
        for (int f = 1; f < C; f += 13) {
            struct stages s;
            make_stages(&s, 9, C, true); /* gates of kind 0 */
            if (!s.g.data) ring2_fail("no gates");
            ring2_fill_value(&s.state, (double)NAN);
            for (int b = 0; b < 4; b++)
                for (int64_t t = 0; t < s.T[b]; t++)
                    for (int h = 0; h < s.H; h++) {
                        const int64_t e = (s.first[b] + t) * s.H + h;
                        if (t == f) ring2_set(&s.g, e, -(double)INFINITY);
                        if (ring2_get(&s.beta, e) == 0 || t < f)
                            for (int j = 0; j < s.V; j++)
                                ring2_set(&s.v, (s.first[b] + t) * s.Hv * s.V +
                                                    source(&s, h, s.Hv) * s.V + j,
                                          t < f ? (double)NAN : 0.25);
                    }
            call_all(ring2_ctx(2), &s);
            for (int b = 0; b < 4; b++) {
                if (s.T[b] <= f) continue;
                for (int64_t i = s.first[b] + f; i < s.first[b] + s.T[b]; i++)
                    for (int j = 0; j < s.H * s.V; j++)
                        CHECK(isfinite(ring2_get(&s.out, i * s.H * s.V + j)), "out[%d] at gate %d",
                              (int)i, f);
                for (int i = 0; i < s.H * s.K * s.V; i++)
                    CHECK(isfinite(ring2_get(&s.state_out, b * s.H * s.K * s.V + i)), "state");
            }
        }
}

static void G8_beta_zero(void)
{
    struct stages s, clean;
    make_stages(&s, 10, 32, true);
    clean = fresh(&s);
    for (int64_t i = 0; i < ring2_count(&s.beta); i++) ring2_set(&s.beta, i, i % 3 / 2.0);
    for (int64_t t = 0; t < s.N; t++) /* heads that share a v: all have beta 0 or none */
        for (int h = 0; h < s.H; h++) ring2_set(&s.beta, t * s.H + h, t % 3 ? 0.5 : 0);
    clean.v = ring2_clone(&s.v);
    for (int64_t i = 0; i < ring2_count(&s.v); i++)
        if (i / (s.Hv * s.V) % 3 == 0) ring2_set(&s.v, i, (double)NAN);
    call_all(ring2_ctx(2), &s), call_all(ring2_ctx(2), &clean);
    expect_same("beta 0", &s, &clean);
}

struct mode_call {
    gdn_ctx       *ctx;
    struct stages *s;
};
static void call_in_mode(void *arg)
{
    const struct mode_call *c = arg;
    call_all(c->ctx, c->s);
}
static void G12_float_environment(void)
{
    struct stages s, plainly;
    make_stages(&s, 10, 32, true);
    plainly = fresh(&s);
    call_all(ring2_ctx(1), &plainly);
    for (int i = 0;; i++) {
        struct stages    again = fresh(&s);
        struct mode_call c     = { ring2_ctx(1 + i % 2 * 2), &again };
        if (!ring2_float_mode(i, call_in_mode, &c)) {
            if (!i) ring2_skip("no MXCSR on this machine");
            break;
        }
        expect_same("mode", &again, &plainly);
    }
}

static void G13_no_allocation(void)
{
    int           n_allocs = 0;
    gdn_ctx      *ctx = ring2_counting_ctx(&n_allocs);
    struct stages s;
    make_stages(&s, 10, 64, true);
    const int before = n_allocs;
    gdn_chunk_uw_args     uw = uw_args(&s);
    gdn_chunk_states_args st = states_args(&s);
    gdn_chunk_output_args o  = output_args(&s);
    RUN(ctx, GDN_OP_CHUNK_UW, uw, s.B, &uw.u, &uw.w, &uw.T);
    RUN(ctx, GDN_OP_CHUNK_STATES, st, s.B, &st.states, &st.state_out);
    RUN(ctx, GDN_OP_CHUNK_OUTPUT, o, s.B, &o.out);
    CHECK(n_allocs == before, "%d allocations", n_allocs - before);
    gdn_ctx_destroy(ctx);
}

/* ---- Refusals ---- */

static struct stages spoilt;
static gdn_tensor    sums;

static gdn_chunk_cumsum_args chunk_cumsum(void)
{
    make_stages(&spoilt, 1, 16, true);
    sums = rows(&spoilt, GDN_F32, spoilt.H, 0);
    return cumsum_args(&spoilt, &sums, 16);
}
static gdn_chunk_uw_args chunk_uw(void)
{
    make_stages(&spoilt, 1, 16, true);
    return uw_args(&spoilt);
}
static gdn_chunk_states_args chunk_states(void)
{
    make_stages(&spoilt, 1, 16, true);
    return states_args(&spoilt);
}
static gdn_chunk_output_args chunk_output(void)
{
    make_stages(&spoilt, 1, 16, true);
    return output_args(&spoilt);
}

#define REFUSE_SEEN(seen, op, make, what, want, needle, ...)   \
    do {                                                       \
        if (!ring2_begin("G1 " #make ": %s", what)) break;     \
        gdn_##make##_args args = make(), *a = &args;           \
        __VA_ARGS__;                                           \
        ring2_refused(ring2_ctx(2), op, a, seen, want, needle); \
        ring2_end();                                           \
    } while (0)
/* What every stage refuses; heads: a tensor [N][H][..] of it. */
#define REFUSE_ALL(op, make, heads)                                                              \
    do {                                                                                         \
        gdn_batch *t = &spoilt.batch;                                                            \
        REFUSE_SEEN(RING2_STRUCT, op, make, "struct_size", GDN_E_ARG, "struct_size",             \
                    a->struct_size = 0);                                                         \
        REFUSE_SEEN(RING2_STRUCT, op, make, "flags", GDN_E_ARG, "flags", a->flags = 1);          \
        REFUSE_SEEN(RING2_STRUCT, op, make, #heads " of I32", GDN_E_DTYPE, #heads,               \
                    a->heads.dtype = GDN_I32);                                                   \
        REFUSE_SEEN(RING2_STRUCT, op, make, #heads " of fewer tokens", GDN_E_SHAPE, "wanted",    \
                    a->heads.size[0]--);                                                         \
        REFUSE_SEEN(RING2_STRUCT, op, make, "read_slots", GDN_E_ARG, "read_slots",               \
                    t->read_slots = ring2_indices(GDN_I32, 4, (int64_t[]){ 0, 1, 2, 3 }));       \
        REFUSE_SEEN(RING2_STRUCT, op, make, "write", GDN_E_ARG, "write", t->write = 2);          \
        REFUSE_SEEN(RING2_CONTENTS, op, make, "cu_seqlens", GDN_E_ARG, "cu_seqlens",             \
                    ring2_set(&t->cu_seqlens, 4, 1e6));                                          \
        REFUSE_SEEN(RING2_WORKSPACE, op, make, "workspace", GDN_E_MEMORY, "workspace_bytes",     \
                    a->workspace = ring2_alloc(64, 64); a->workspace_bytes = 64);                \
    } while (0)

static void refusals(void)
{
    REFUSE_ALL(GDN_OP_CHUNK_CUMSUM, chunk_cumsum, g);
    REFUSE_ALL(GDN_OP_CHUNK_UW, chunk_uw, k);
    REFUSE_ALL(GDN_OP_CHUNK_STATES, chunk_states, w);
    REFUSE_ALL(GDN_OP_CHUNK_OUTPUT, chunk_output, w);
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_CUMSUM, chunk_cumsum, __VA_ARGS__)
    REFUSE("g absent", GDN_E_ARG, "g", a->g.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("chunk_size 0", GDN_E_ARG, "chunk_size", a->chunk_size = 0);
    REFUSE("scale", GDN_E_ARG, "scale", a->scale = INFINITY);
    REFUSE("out beside g", GDN_E_ARG, "overlaps", a->out.data = (char *)a->g.data + 4);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_UW, chunk_uw, __VA_ARGS__)
    REFUSE("chunk_size 48", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 48);
    REFUSE("head_map", GDN_E_ARG, "head_map", a->head_map = 2);
    REFUSE("k absent", GDN_E_ARG, "k", a->k.data = NULL);
    REFUSE("v absent", GDN_E_ARG, "v", a->v.data = NULL);
    REFUSE("nothing wanted", GDN_E_ARG, "u",
           a->u.data = a->v.data = a->w.data = a->T.data = NULL);
    REFUSE("T of another C", GDN_E_SHAPE, "T", a->T.size[2] = 15);
    REFUSE("w of another K", GDN_E_SHAPE, "w", a->w.size[2]++);
    REFUSE("v of 3 heads", GDN_E_SHAPE, "v", a->v.size[1] = 3);
    REFUSE("u on v", GDN_E_ARG, "overlaps", a->u = a->v);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_STATES, chunk_states, __VA_ARGS__)
    REFUSE("chunk_size 0", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 0);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("state_layout", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("u absent", GDN_E_ARG, "u", a->u.data = NULL);
    REFUSE("w absent", GDN_E_ARG, "w", a->w.data = NULL);
    REFUSE("nothing wanted", GDN_E_ARG, "states", a->states.data = a->state_out.data = NULL);
    REFUSE("state of fewer sequences", GDN_E_SHAPE, "state", a->state.size[0]--);
    REFUSE("states on state", GDN_E_ARG, "overlaps", a->states.data = a->state.data);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_CHUNK_STATES, chunk_states, "too few states", GDN_E_SHAPE,
                "states", a->states.size[0] = spoilt.NC - 1);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_OUTPUT, chunk_output, __VA_ARGS__)
    REFUSE("chunk_size 8", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 8);
    REFUSE("scale", GDN_E_ARG, "scale", a->scale = NAN);
    REFUSE("q absent", GDN_E_ARG, "q", a->q.data = NULL);
    REFUSE("states absent", GDN_E_ARG, "states", a->states.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("q of 3 heads", GDN_E_SHAPE, "q", a->q.size[1] = 3);
    REFUSE("out on u", GDN_E_ARG, "overlaps", a->out = a->u);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_CHUNK_OUTPUT, chunk_output, "too few states", GDN_E_SHAPE,
                "states", a->states.size[0] = spoilt.NC - 1);
#undef REFUSE
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 G3 threads", G2_G3_threads },
        { "G2 batch mates", G2_mates },
        { "G7 forgets", G7_G8_forgets },
        { "G8 beta 0", G8_beta_zero },
        { "G12 float environment", G12_float_environment },
        { "G13 no allocation", G13_no_allocation },
    };
    ring2_options(argc, argv);
    for (int i = 0; i < 36; i++) {
        const int C = 16 << i / 6 % 3;
        if (ring2_begin("stages %02d C %d", i, C)) stage_case(i, C), ring2_end();
        if (ring2_begin("chain %02d C %d", i, C)) chain_case(i, C), ring2_end();
    }
    refusals();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
