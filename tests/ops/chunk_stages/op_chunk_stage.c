/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * The stages of the chunked form: each against its formula in float64 on the inputs that it was
 * given, T by an explicit inverse; then all of them, one after the other, against the
 * recurrence and gdn_prefill.
 *
 * Limits add up what the loops of a stage may err (src/cpu/loops/kernels.h), in units of 2^-24 of
 * the formula on absolute values: strip_mul 8 + K / 16 (each use), chunk_gates 8 + 2 |G|,
 * chunk_solve 32, chunk_update 12 (each), products that stand alone 1 (4 counted).
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"
#include "stages_call.h"

static const double eps = 0x1p-24, tiny = 0x1p-115;

/* ---- One chunk in float64 ---- */

struct chunk {
    int n, h, hq, hk, hv;
    int64_t first;          /* row of its first token */
    double E[MAX_C][MAX_C]; /* exp(g_{j+1} + ... + g_i), j <= i: nothing to cancel */
    double gamma[MAX_C], beta[MAX_C], decay, G;
};

static void load_chunk(struct chunk *c, const struct stages *s, int b, int64_t i, int h)
{
    const int64_t t0 = i * s->C, left = s->valid[b] - t0;
    double g[MAX_C];
    memset(c, 0, sizeof *c);
    c->n = left < 0 ? 0 : left < s->C ? (int)left : s->C;
    c->h = h, c->hq = source(s, h, s->Hq), c->hk = source(s, h, s->Hk), c->hv = source(s, h, s->Hv);
    c->first = s->first[b] + t0;
    c->decay = 1;
    for (int t = 0; t < c->n; t++) {
        g[t] = s->g.data ? ring2_get(&s->g, (c->first + t) * s->H + h) : 0;
        c->beta[t] = s->beta.data ? ring2_get(&s->beta, (c->first + t) * s->H + h) : 1;
        if (g[t] > -104) c->G -= g[t];
        c->decay *= exp(g[t]);
        c->gamma[t] = c->decay;
        c->E[t][t] = 1;
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

/* The wanted values of a tensor of tokens: 0 where no chunk computes. */
struct wanted {
    double *x, *limit;
};
static struct wanted want(const gdn_tensor *t)
{
    const size_t n = (size_t)ring2_count(t);
    return (struct wanted){ ring2_heap(n * 8), ring2_heap(n * 8) };
}

/* Computes (I + A)^-1 term by term, with the sizes for its limits. */
static void model_uw_chunk(const struct stages *s, const struct chunk *c, const struct wanted *u,
                           const struct wanted *w, const struct wanted *T)
{
    static double A[MAX_C][MAX_C], A_mag[MAX_C][MAX_C], X[MAX_C][MAX_C];
    const double units = 32 + 8 + s->K / 16.0 + 8 + 2 * c->G + 8 + 48 / 16.0 + 4;
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
                const int64_t e = ((c->first + i) * s->H + c->h) * columns[which] + d;
                double mag = 0;
                for (int j = 0; j <= i; j++) mag += fabs(X[i][j]) * r[j];
                to->x[e] = x[i];
                to->limit[e] = units * eps * mag + tiny;
            }
        }
}

static void check_uw(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_uw_args a = uw_args(s);
    struct wanted u = want(&s->u), w = want(&s->w), T = want(&s->t);
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
    *mag = fabs(d);
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
            double y = c->decay * S, limit = fabs(y);
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
    gdn_chunk_states_args a = states_args(s);
    gdn_tensor used = ring2_narrow(&s->states, 0, 0, s->NC);
    const gdn_tensor before = ring2_clone(&a.state_out);
    static struct chunk c;
    RUN(ctx, GDN_OP_CHUNK_STATES, a, s->B, &used, &a.state_out);
    for (int b = 0; b < 4; b++) {
        const int64_t n = s->chunk[b + 1] - s->chunk[b];
        gdn_tensor first =
            n ? ring2_narrow(&s->states, 0, s->chunk[b], 1) : ring2_narrow(&s->state_out, 0, b, 1);
        gdn_tensor start = ring2_clone(&first), given = ring2_narrow(&s->state, 0, b, 1);
        gdn_tensor left = ring2_narrow(&before, 0, b, 1); /* by an empty sequence */
        ring2_copy(&start, n ? &given : &left);
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
    static double qk[MAX_C][MAX_C], qk_mag[MAX_C][MAX_C];
    const double scale = 1 / sqrt(s->K);
    const double units = 3 * (8 + s->K / 16.0) + 12 * (s->C / 16) + 8 + 2 * c->G + 32 + 4;
    for (int i = 0; i < c->n; i++)
        for (int l = 0; l <= i; l++)
            qk[i][l] =
                dot(s, &s->q, c->first + i, c->hq, &s->k, c->first + l, c->hk, &qk_mag[i][l]);
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
            for (int l = 0; l <= i; l++)
                y += c->E[i][l] * qk[i][l] * d[l], mag += c->E[i][l] * qk_mag[i][l] * d_mag[l];
            const int64_t e = ((c->first + i) * s->H + c->h) * s->V + j;
            o->x[e] = scale * y;
            o->limit[e] = scale * mag * units * eps + tiny;
        }
    }
}

static void check_output(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_output_args a = output_args(s);
    struct wanted o = want(&s->out);
    static struct chunk c;
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
    gdn_tensor out = rows(s, GDN_F32, s->H, 0);
    gdn_chunk_cumsum_args a = cumsum_args(s, &out, C);
    struct wanted y = want(&out);
    a.scale = C % 2 ? -1.5f : 0;
    for (int b = 0; b < 4; b++)
        for (int h = 0; h < s->H; h++) {
            double sum = 0;
            for (int64_t t = 0; t < s->valid[b]; t++) {
                const int64_t e = (s->first[b] + t) * s->H + h;
                sum = t % C ? sum + ring2_get(&s->g, e) : ring2_get(&s->g, e);
                y.x[e] = sum * (C % 2 ? -1.5 : 1);
            }
        }
    RUN(ctx, GDN_OP_CHUNK_CUMSUM, a, s->B, &a.out); /* a result is rounded once, so nothing is
                                                       added to the limit */
    ring2_compare("cumsum", &a.out, y.x, y.limit, NULL, NULL);
}

/* ---- Cases ---- */

static void stage_case(int number, int C)
{
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
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
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    struct stages s;
    struct ring2_rule m;
    gdn_rule_args r = gdn_rule_args_init();
    make_stages(&s, number, C, true);
    gdn_chunk_uw_args uw = uw_args(&s);
    gdn_chunk_states_args st = states_args(&s);
    gdn_chunk_output_args o = output_args(&s);
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
    if (ring2_on_device()) r.flags = GDN_EXACT; /* its chunks need not be of float32 */
    ring2_status(ctx, "prefill", gdn_prefill(ctx, &r), GDN_OK);
    for (int64_t i = 0; i < ring2_count(&s.out); i++) { /* two errors, one from each side */
        const double e = fabs(ring2_get(&o.out, i) - ring2_get(&r.out, i));
        CHECK(e <= 1.5 * m.out_limit[i], "out[%d] and prefill's differ by %g", (int)i, e);
    }
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    for (int i = 0; i < 36; i++) {
        const int C = 16 << i / 6 % 3;
        if (ring2_begin("stages %02d C %d", i, C)) stage_case(i, C), ring2_end();
        if (ring2_begin("chain %02d C %d", i, C)) chain_case(i, C), ring2_end();
    }
    return ring2_summary();
}
