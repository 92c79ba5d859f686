/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=3, gpu, sm_80 --every=5, sm_90 --every=11 */
/*
 * gdn_prefill of 16 bits with gates per channel, beside float64: gates of any strength in single
 * channels, padded and packed batches of several chunks, state layouts; and what is not finite.
 */
#include <math.h>
#include <string.h>

#include "gdn_research.h"
#include "oracle.h"
#include "oracle_family.h"
#include "ring2.h"
#include "ring2_device.h"

enum { HK = 2, HV = 4 };

/* ---- Calls --------------------------------------------------------------------------------- */

static const struct rule {
    const char *name;
    bool g_rows, beta_rows, write;
} rules[] = { { "kda", true, false, false },
              { "gdn2", true, true, true },
              { "erase", false, true, false } };
enum { N_RULES = sizeof rules / sizeof *rules };

/* Log gates of token t and channel x. */
static double none(int64_t t, int64_t x) { return (void)t, (void)x, 0; }
static double mild(int64_t t, int64_t x) { return (void)t, (void)x, ring2_uniform(-0.04, 0); }
/* the product of 16 such gates is e^-40 to e^-69, so one reference serves 32 tokens */
static double bounded(int64_t t, int64_t x) { return (void)t, (void)x, ring2_uniform(-5, 0); }
static double near_limit(int64_t t, int64_t x) { return (void)t, x % 5 ? -4.3 : -0.01; }
static double five(int64_t t, int64_t x) { return (void)t, (void)x, -5; }
static double apart(int64_t t, int64_t x) { return (void)t, x % 3 == 1 ? -60 : 0; }
static double once(int64_t t, int64_t x)
{
    return t % 50 == 7 && x % 4 < 2 ? -(double)INFINITY : ring2_uniform(-0.1, 0);
}
static double mixed(int64_t t, int64_t x)
{
    switch ((t * 5 + x * 3) % 9) {
    case 0: return 0;
    case 1: return -60;
    case 2: return t % 16 == 9 ? -(double)INFINITY : -0.01;
    case 3: return -5;
    case 4: return t % 7 ? -0.02 : -200;
    default: return ring2_uniform(-2, 0);
    }
}
static double (*const gates[])(int64_t t, int64_t x) = { none, mild,  bounded, near_limit,
                                                         five, apart, once,    mixed };
enum { N_GATES = sizeof gates / sizeof *gates };

static const int64_t sizes[][2] = { { 40, 24 }, { 128, 128 }, { 64, 136 }, { 96, 16 } };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Tokens of the sequences. */
struct batch {
    bool padded, k_first;
    int n;
    int64_t lengths[4];
};
static const struct batch batches[] = {
    { false, false, 3, { 70, 1, 150 } },
    { true, true, 2, { 130, 130 } },
    { false, true, 4, { 64, 0, 190, 65 } },
    { true, false, 1, { 200 } },
};
enum { N_BATCHES = sizeof batches / sizeof *batches };

struct call {
    const struct rule *rule;
    const struct batch *batch;
    gdn_rule_args a;
    int64_t K, V, N;
    int64_t first[5]; /* tokens of the sequences */
};

/* A tensor [tokens][H] or, with D, [tokens][H][D]. */
static gdn_tensor rows(int32_t dtype, const struct call *c, int64_t H, int64_t D)
{
    const struct batch *b = c->batch;
    gdn_tensor t = ring2_new(dtype, 0, D ? 3 : 2, c->N, H, D, 0);
    if (!b->padded) return t;
    for (int i = t.ndim; i > 0; i--) t.size[i] = t.size[i - 1], t.stride[i] = t.stride[i - 1];
    t.ndim++;
    t.size[0] = b->n, t.size[1] = b->lengths[0];
    t.stride[0] = t.size[1] * t.stride[1];
    return t;
}

static struct call draw(const struct rule *f, const struct batch *b, int32_t dtype, int gate,
                        int size)
{
    struct call c = { .rule = f, .batch = b, .K = sizes[size][0], .V = sizes[size][1] };
    gdn_rule_args *a = &c.a;
    *a = gdn_rule_args_init();
    for (int i = 0; i < b->n; i++) c.first[i + 1] = c.N += b->lengths[i];
    a->q = rows(dtype, &c, HK, c.K), a->k = rows(dtype, &c, HK, c.K);
    a->v = rows(dtype, &c, HV, c.V), a->out = rows(dtype, &c, HV, c.V);
    a->g = rows(GDN_F32, &c, HV, f->g_rows ? c.K : 0);
    a->beta = rows(GDN_F32, &c, HV, f->beta_rows ? c.K : 0);
    if (f->write) a->write_gate = rows(GDN_F32, &c, HV, c.V);
    a->state = b->k_first ? ring2_new(GDN_F32, 0, 4, b->n, HV, c.K, c.V)
                          : ring2_new(GDN_F32, 0, 4, b->n, HV, c.V, c.K);
    a->state_layout = b->k_first ? GDN_STATE_KV : GDN_STATE_VK;
    a->norm = GDN_NORM_L2;
    ring2_fill(&a->q, -1, 1), ring2_fill(&a->k, -1, 1), ring2_fill(&a->v, -1, 1);
    ring2_fill(&a->beta, 0, 1), ring2_fill(&a->state, -1, 1);
    if (f->write) ring2_fill(&a->write_gate, -1, 1);
    const int64_t n = f->g_rows ? c.K : 1;
    for (int s = 0; s < b->n; s++)
        for (int64_t i = c.first[s] * HV * n; i < c.first[s + 1] * HV * n; i++)
            ring2_set(&a->g, i, gates[gate](i / HV / n - c.first[s], f->g_rows ? i % n : i % HV));
    if (!b->padded) {
        gdn_batch *batch = ring2_heap(sizeof *batch);
        *batch = gdn_batch_init();
        batch->cu_seqlens = ring2_indices(GDN_I64, b->n + 1, c.first);
        a->batch = batch;
    }
    return c;
}

static struct call clone(const struct call *c)
{
    struct call d = *c;
    gdn_tensor *all[] = { &d.a.q,    &d.a.k,          &d.a.v,     &d.a.g,
                          &d.a.beta, &d.a.write_gate, &d.a.state, &d.a.out };
    for (int i = 0; i < 8; i++) *all[i] = ring2_clone(all[i]);
    return d;
}

static void run(const struct call *c)
{
    gdn_ctx *ctx = ring2_ctx(1);
    ring2_fill_value(&c->a.out, NAN);
    ring2_call_begin();
    ring2_may_write(&c->a.out);
    ring2_may_write(&c->a.state);
    ring2_status(ctx, c->rule->name, gdn_prefill(ctx, &c->a), GDN_OK);
    ring2_call_end();
}

/* ---- Beside float64 ------------------------------------------------------------------------ */

static double *rows_of(const struct call *c, const gdn_tensor *t, bool channels, int s, int64_t h,
                       int64_t H, int64_t D, double absent)
{
    const int64_t first = c->first[s], n = c->first[s + 1] - first;
    double *x = ring2_heap((size_t)(n * D + 1) * sizeof *x);
    for (int64_t i = 0; i < n * D; i++) {
        const int64_t row = (first + i / D) * H + h;
        x[i] = t->data ? ring2_get(t, channels ? row * D + i % D : row) : absent;
    }
    return x;
}

static double *normalised(const struct call *c, double *x, int64_t n)
{
    const int64_t K = c->K;
    for (int64_t i = 0; i < n && c->a.norm == GDN_NORM_L2; i++)
        oracle_l2norm(x + i * K, x + i * K, K, GDN_NORM_L2, 1e-6);
    return x;
}

static int64_t state_at(const struct call *c, int64_t s, int64_t h, int64_t v, int64_t k)
{
    return (s * HV + h) * c->K * c->V + (c->batch->k_first ? k * c->V + v : v * c->K + k);
}

/* Computes a head of a sequence: output and final state as the tensors have them. */
static void judge(const struct call *c, int s, int64_t h, double *out, double *state)
{
    const gdn_rule_args *a = &c->a;
    const int64_t K = c->K, V = c->V, T = c->first[s + 1] - c->first[s];
    const bool apart_w = c->rule->write || c->rule->beta_rows;
    const gdn_tensor *w = apart_w ? &a->write_gate : &a->beta;
    const struct oracle_family r = {
        .T = T,
        .K = (int)K,
        .V = (int)V,
        .n = 1,
        .scale = 1 / sqrt((double)K),
        .q = normalised(c, rows_of(c, &a->q, true, s, h / (HV / HK), HK, K, 0), T),
        .k = normalised(c, rows_of(c, &a->k, true, s, h / (HV / HK), HK, K, 0), T),
        .v = rows_of(c, &a->v, true, s, h, HV, V, 0),
        .g = rows_of(c, &a->g, c->rule->g_rows, s, h, HV, K, 0),
        .b = rows_of(c, &a->beta, c->rule->beta_rows, s, h, HV, K, 1),
        .w = rows_of(c, w, apart_w, s, h, HV, V, 1),
        .o = ring2_heap((size_t)(T * V + 1) * sizeof *out),
        .state = ring2_heap((size_t)(K * V) * sizeof *state),
    };
    for (int64_t i = 0; i < K * V; i++)
        r.state[i] = ring2_get(&a->state, state_at(c, s, h, i / K, i % K));
    oracle_family(&r);
    for (int64_t i = 0; i < T * V; i++) out[((c->first[s] + i / V) * HV + h) * V + i % V] = r.o[i];
    for (int64_t i = 0; i < K * V; i++) state[state_at(c, s, h, i / K, i % K)] = r.state[i];
}

/* Compares with the limits of gdn run, which those of the vectors are. */
static void near(const char *what, const gdn_tensor *got, const double *want, int32_t dtype)
{
    const int64_t n = ring2_count(got);
    const double share = dtype == GDN_F16 ? 8e-4 : 6e-3, unit = dtype == GDN_F16 ? 0x1p-11 : 0x1p-8;
    double sum = 0, error = 0, most = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs(ring2_get(got, i) - want[i]);
        sum += want[i] * want[i], error += e * e;
        most = fmax(most, fabs(want[i]));
        worst = isnan(e) ? (double)INFINITY : fmax(worst, e);
    }
    CHECK(sqrt(error) <= share * sqrt(sum), "%s: RMS of the error is %g of RMS, limit %g", what,
          sqrt(error / sum), share);
    CHECK(worst <= 3 * unit * most, "%s: off by %g, limit %g", what, worst, 3 * unit * most);
}

static void expect_right(const struct call *c)
{
    double *out = ring2_heap((size_t)ring2_count(&c->a.out) * sizeof *out);
    double *state = ring2_heap((size_t)ring2_count(&c->a.state) * sizeof *state);
    for (int s = 0; s < c->batch->n; s++)
        for (int64_t h = 0; h < HV; h++) judge(c, s, h, out, state);
    run(c);
    near("out", &c->a.out, out, c->a.q.dtype);
    near("state", &c->a.state, state, c->a.q.dtype);
}

static void agrees(int i)
{
    const int32_t dtype = i % 2 ? GDN_F16 : GDN_BF16;
    const struct rule *f = &rules[i / 2 % N_RULES];
    const int gate = i / 2 / N_RULES % N_GATES, rest = i / 2 / N_RULES / N_GATES;
    const struct call c = draw(f, &batches[(rest + gate) % N_BATCHES], dtype, gate, rest);
    expect_right(&c);
}

/* ---- Summaries ----------------------------------------------------------------------------- */

static gdn_summary_args summary_of(const struct call *c)
{
    const gdn_rule_args *a = &c->a;
    gdn_summary_args s = gdn_summary_args_init();
    s.k = a->k, s.v = a->v, s.g = a->g, s.beta = a->beta, s.write_gate = a->write_gate;
    s.norm = a->norm, s.batch = a->batch, s.state_layout = a->state_layout;
    s.M = ring2_new(GDN_F32, 0, 4, c->batch->n, HV, c->K, c->K);
    s.U = ring2_clone(&a->state);
    ring2_fill_value(&s.M, NAN), ring2_fill_value(&s.U, NAN);
    return s;
}

static void summarise(const gdn_summary_args *s)
{
    ring2_call_begin();
    ring2_may_write(&s->M), ring2_may_write(&s->U);
    ring2_status(ring2_ctx(1), "summary", gdn_summary(ring2_ctx(1), s), GDN_OK);
    ring2_call_end();
}

/* M S + U is the final state. */
static void summaries(int i)
{
    const int gate = i / N_RULES;
    const struct call c = draw(&rules[i % N_RULES], &batches[i % N_BATCHES],
                               (i + gate) % 2 ? GDN_F16 : GDN_BF16, gate, (i + 1) % N_SIZES);
    const gdn_summary_args s = summary_of(&c);
    gdn_summary_apply_args p = gdn_summary_apply_args_init();
    double *out = ring2_heap((size_t)ring2_count(&c.a.out) * sizeof *out);
    double *state = ring2_heap((size_t)ring2_count(&c.a.state) * sizeof *state);
    for (int b = 0; b < c.batch->n; b++)
        for (int64_t h = 0; h < HV; h++) judge(&c, b, h, out, state);
    summarise(&s);
    p.M = s.M, p.U = s.U, p.state = c.a.state, p.state_layout = c.a.state_layout;
    p.state_out = ring2_clone(&c.a.state);
    ring2_status(ring2_ctx(1), "apply", gdn_summary_apply(ring2_ctx(1), &p), GDN_OK);
    near("M S + U", &p.state_out, state, c.a.q.dtype);
}

/* A NaN of v reaches its column of U alone. G9: without gates and writes M = I and U = 0, in every
 * bit. */
static void summaries_of_odd_values(int i)
{
    struct call c = draw(&rules[i % 2], &batches[0], i / 2 ? GDN_F16 : GDN_BF16, 1, 1);
    enum { BAD = 100, COLUMN = 5 };
    const int64_t row = HV * c.V;
    ring2_set(&c.a.v, BAD * row + COLUMN, NAN);
    gdn_summary_args s = summary_of(&c);
    summarise(&s);
    for (int64_t j = 0; j < ring2_count(&s.M); j++)
        CHECK(isfinite(ring2_get(&s.M, j)), "M[%d] is not finite", (int)j);
    for (int64_t j = 0; j < ring2_count(&s.U); j++) {
        const bool is_lost = j / c.K == 2 * row + COLUMN; /* of sequence 2, head 0 */
        CHECK(isnan(ring2_get(&s.U, j)) == is_lost, "U[%d] is %g", (int)j, ring2_get(&s.U, j));
    }
    ring2_fill_value(&c.a.g, 0), ring2_fill_value(&c.a.beta, 0);
    if (c.a.write_gate.data) ring2_fill_value(&c.a.write_gate, 0);
    s = summary_of(&c);
    summarise(&s);
    for (int64_t j = 0; j < ring2_count(&s.M); j++)
        CHECK(ring2_get(&s.M, j) == (j / c.K % c.K == j % c.K), "M[%d] is no identity", (int)j);
    for (int64_t j = 0; j < ring2_count(&s.U); j++)
        CHECK(ring2_get(&s.U, j) == 0, "U[%d] is %g", (int)j, ring2_get(&s.U, j));
}

/* ---- Parts of a rule ----------------------------------------------------------------------- */

/* An erase gate changes a state where nothing decays and nothing is written. */
static void erases_alone(int i)
{
    const struct call c = draw(&rules[1], &batches[i / 2], i % 2 ? GDN_F16 : GDN_BF16, 0, 1);
    ring2_fill_value(&c.a.write_gate, 0);
    expect_right(&c);
}

/* ---- Guarantees ---------------------------------------------------------------------------- */

static void expect_finite(const char *what, const gdn_tensor *t, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        CHECK(isfinite(ring2_get(t, i)), "%s: element %d is %g", what, (int)i, ring2_get(t, i));
}

/* G7: a channel that forgets at the first token forgets a NaN and 1e30. */
static void forgets(int i)
{
    struct call c = draw(&rules[i % 2], &batches[3], i / 4 % 2 ? GDN_F16 : GDN_BF16, 1, i / 2 % 2);
    for (int64_t j = 0; j < HV * c.K; j++)
        if (j % c.K < 3) ring2_set(&c.a.g, j, -(double)INFINITY);
    const struct call clean = clone(&c);
    for (int64_t j = 0; j < HV * c.V; j++)
        for (int x = 0; x < 3; x++) ring2_set(&c.a.state, j * c.K + x, x == 0 ? (double)NAN : 1e30);
    run(&c), run(&clean);
    near("out", &c.a.out, ring2_doubles(&clean.a.out), c.a.q.dtype);
    near("state", &c.a.state, ring2_doubles(&clean.a.state), c.a.q.dtype);
}

/* G7, G11: what is not finite in v and k reaches no token before it, and none behind one at which
 * all channels forget. */
static void forgets_all(int i)
{
    const struct call c = draw(&rules[0], &batches[3], i % 2 ? GDN_F16 : GDN_BF16, 1, i / 2);
    const int64_t row = HV * c.V, bad = 85, end = 110;
    ring2_set(&c.a.v, bad * row, NAN);
    ring2_set(&c.a.k, (bad + 1) * HK * c.K, NAN);
    for (int64_t j = 0; j < HV * c.K; j++) ring2_set(&c.a.g, end * HV * c.K + j, -(double)INFINITY);
    run(&c);
    expect_finite("out before", &c.a.out, 0, bad * row);
    CHECK(isnan(ring2_get(&c.a.out, bad * row)), "NaN is lost");
    expect_finite("out behind", &c.a.out, end * row, ring2_count(&c.a.out));
    expect_finite("state", &c.a.state, 0, ring2_count(&c.a.state));
}

/* A NaN in a state stays there if no gate forgets, and other columns do not change. A NaN of v
 * in such a chunk reaches no token before it. */
static void lost(int i)
{
    enum { BAD = 100 };
    const struct call c = draw(&rules[0], &batches[3], i % 2 ? GDN_F16 : GDN_BF16, 1, 1);
    const int64_t row = HV * c.V;
    if (i >= 2) ring2_set(&c.a.v, BAD * row + 5, NAN);
    const struct call clean = clone(&c);
    ring2_set(&c.a.state, 3 * c.K + 5, NAN);
    run(&c), run(&clean);
    for (int64_t j = 0; j < ring2_count(&c.a.out); j++) {
        const double x = ring2_get(&c.a.out, j), y = ring2_get(&clean.a.out, j);
        const bool is_lost = j % row == 3 || (i >= 2 && j % row == 5 && j / row >= BAD);
        CHECK(is_lost ? isnan(x) : x == y, "out[%d] is %g, without the loss %g", (int)j, x, y);
    }
}

/* G8: where w is 0, v may be NaN. G9: every bit of the state stays where g, b and w are 0. */
static void writes_nothing(int i)
{
    struct call c = draw(&rules[1], &batches[i / 2], i % 2 ? GDN_F16 : GDN_BF16, 1, 1);
    struct call d = clone(&c);
    for (int64_t j = 0; j < ring2_count(&c.a.v); j += 7) {
        ring2_set(&c.a.write_gate, j, 0), ring2_set(&d.a.write_gate, j, 0);
        ring2_set(&c.a.v, j, NAN);
    }
    run(&c), run(&d);
    ring2_expect_bits("out", &c.a.out, &d.a.out);
    ring2_expect_bits("state", &c.a.state, &d.a.state);
    for (int rule = 0; rule < 2; rule++) {
        struct call idle = draw(&rules[rule], &batches[i / 2], i % 2 ? GDN_F16 : GDN_BF16, 0, 1);
        ring2_fill_value(&idle.a.beta, 0);
        if (idle.a.write_gate.data) ring2_fill_value(&idle.a.write_gate, 0);
        ring2_set(&idle.a.state, 1, -0.0);
        ring2_fill_value(&idle.a.v, NAN);
        const gdn_tensor before = ring2_clone(&idle.a.state);
        run(&idle);
        ring2_expect_bits("idle state", &idle.a.state, &before);
    }
}

/* A state above 65504 is read as it is, and stays, if no token of a chunk changes it. */
static void reads_large_states(int i)
{
    const struct call c = draw(&rules[i / 2], &batches[3], i % 2 ? GDN_F16 : GDN_BF16, 0, 1);
    ring2_fill_value(&c.a.beta, 0);
    if (c.a.write_gate.data) ring2_fill_value(&c.a.write_gate, 0);
    for (int64_t j = 0; j < ring2_count(&c.a.state); j += 1001) ring2_set(&c.a.state, j, 7e4);
    const gdn_tensor before = ring2_clone(&c.a.state);
    expect_right(&c);
    ring2_expect_bits("idle state", &c.a.state, &before);
}

/* A key has no effect if b and w of its token are 0, even if its product with a query is beyond
 * f16. If i is odd, no token of the chunk changes the state. */
static void reads_no_long_key(int i)
{
    enum { LONG = 85, END = 128 };
    struct call c = draw(&rules[i / 2 % 2], &batches[3], GDN_F16, i % 2 ? 0 : 1, i / 4);
    const int64_t H = HV * (c.rule->beta_rows ? c.K : 1);
    c.a.norm = GDN_NORM_NONE;
    for (int64_t j = 0; j < ring2_count(&c.a.k); j++) {
        ring2_set(&c.a.k, j, ring2_get(&c.a.k, j) * sqrt(3 / (double)c.K));
        ring2_set(&c.a.q, j, fabs(ring2_get(&c.a.q, j)));
    }
    for (int64_t j = 0; j < HK * c.K; j++) ring2_set(&c.a.k, LONG * HK * c.K + j, 6e4);
    for (int64_t t = i % 2 ? 64 : LONG; t < (i % 2 ? END : LONG + 1); t++) {
        for (int64_t j = 0; j < H; j++) ring2_set(&c.a.beta, t * H + j, 0);
        for (int64_t j = 0; j < HV * c.V && c.rule->write; j++)
            ring2_set(&c.a.write_gate, t * HV * c.V + j, 0);
    }
    expect_right(&c);
}

/* A batch of no sequence changes nothing but tokens behind its end, which are 0. */
static void no_sequence(int i)
{
    struct call c = draw(&rules[i % 2], &batches[i / 2 % 2], GDN_BF16, 1, 0);
    const gdn_tensor state = ring2_clone(&c.a.state);
    gdn_batch batch = gdn_batch_init();
    const int64_t zero = 0;
    gdn_tensor *rows_of_batch[] = { &c.a.q,    &c.a.k,          &c.a.v,  &c.a.g,
                                    &c.a.beta, &c.a.write_gate, &c.a.out };
    batch.cu_seqlens = ring2_indices(GDN_I64, 1, &zero);
    if (!c.batch->padded) c.a.batch = &batch;
    for (int j = 0; c.batch->padded && j < 7; j++) rows_of_batch[j]->size[0] = 0;
    c.a.state.size[0] = 0;
    run(&c);
    for (int64_t j = 0; j < ring2_count(&c.a.out); j++)
        CHECK(ring2_get(&c.a.out, j) == 0, "out[%d] is %g", (int)j, ring2_get(&c.a.out, j));
    c.a.state.size[0] = state.size[0];
    ring2_expect_bits("state", &c.a.state, &state);
}

/* G2: a sequence has the same bits in a batch as alone. */
static void alone(int i)
{
    const struct call c = draw(&rules[i / 2 % 2], &batches[0], i % 2 ? GDN_F16 : GDN_BF16, 5, 1);
    struct call one = clone(&c);
    gdn_tensor *tokens[] = { &one.a.q,    &one.a.k,          &one.a.v,  &one.a.g,
                             &one.a.beta, &one.a.write_gate, &one.a.out };
    for (int j = 0; j < 7; j++)
        if (tokens[j]->data) *tokens[j] = ring2_narrow(tokens[j], 0, c.first[2], 150);
    one.a.state = ring2_narrow(&one.a.state, 0, 2, 1);
    one.a.batch = NULL;
    run(&c), run(&one);
    const gdn_tensor out = ring2_narrow(&c.a.out, 0, c.first[2], 150);
    const gdn_tensor state = ring2_narrow(&c.a.state, 0, 2, 1);
    ring2_expect_bits("out", &one.a.out, &out);
    ring2_expect_bits("state", &one.a.state, &state);
}

/* G18: a checkpoint has the bits of the state that a call leaves which ends there. */
static void checkpoints(int i)
{
    const struct call c =
        draw(&rules[0], &batches[i / 2 ? 3 : 1], i % 2 ? GDN_F16 : GDN_BF16, 5, 1);
    const int64_t T = c.batch->lengths[0], B = c.batch->n, each = T / 64;
    gdn_batch batch = gdn_batch_init();
    batch.checkpoint_every = 64;
    struct call marked = clone(&c);
    marked.a.batch = &batch;
    marked.a.checkpoints =
        ring2_new(GDN_F32, 0, 4, B * each, HV, c.a.state.size[2], c.a.state.size[3]);
    ring2_call_begin();
    ring2_may_write(&marked.a.out);
    ring2_may_write(&marked.a.state);
    ring2_may_write(&marked.a.checkpoints);
    ring2_status(ring2_ctx(1), "checkpoints", gdn_prefill(ring2_ctx(1), &marked.a), GDN_OK);
    ring2_call_end();
    for (int64_t n = 1; n <= each; n++) {
        struct call until = clone(&c);
        gdn_tensor *tokens[] = { &until.a.q, &until.a.k,    &until.a.v,
                                 &until.a.g, &until.a.beta, &until.a.out };
        for (int j = 0; j < 6; j++) *tokens[j] = ring2_narrow(tokens[j], 1, 0, 64 * n);
        run(&until);
        for (int64_t b = 0; b < B; b++) {
            const gdn_tensor got = ring2_narrow(&marked.a.checkpoints, 0, b * each + n - 1, 1);
            const gdn_tensor want = ring2_narrow(&until.a.state, 0, b, 1);
            ring2_expect_bits("checkpoint", &got, &want);
        }
    }
    run(&c);
    ring2_expect_bits("out", &marked.a.out, &c.a.out);
}

/* ---- States of 8 bits ------------------------------------------------------------------------ */

/* Copies states; scales NULL: of float32. */
static void copy(const gdn_tensor *from, const gdn_tensor *from_scales, const gdn_tensor *to,
                 const gdn_tensor *to_scales, int32_t layout)
{
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = *from, c.to_pool = *to, c.from_layout = c.to_layout = layout;
    if (from_scales) c.from_scales = *from_scales;
    if (to_scales) c.to_scales = *to_scales;
    ring2_status(ring2_ctx(1), "gdn_state_copy", gdn_state_copy(ring2_ctx(1), &c), GDN_OK);
}

/* A pool of codes, and the numbers that they stand for. */
struct pool {
    gdn_tensor codes, scales, wide;
};

static struct pool new_pool(const struct call *c, int32_t dtype, int64_t n)
{
    const gdn_tensor *s = &c->a.state;
    const struct pool p = { ring2_new(dtype, 0, 4, n, HV, s->size[2], s->size[3]),
                            ring2_new(GDN_F32, 0, 3, n, HV, c->V, 0),
                            ring2_new(GDN_F32, 0, 4, n, HV, s->size[2], s->size[3]) };
    ring2_fill(&p.wide, -1, 1);
    copy(&p.wide, NULL, &p.codes, &p.scales, c->a.state_layout);
    copy(&p.codes, &p.scales, &p.wide, NULL, c->a.state_layout);
    return p;
}

/* The codes are those of the float32 states (G21). A CPU sums in another order: near them. */
static void expect_codes(const char *what, const struct call *c, const struct pool *p)
{
    const gdn_tensor want = ring2_clone(&p->codes), scales = ring2_clone(&p->scales);
    const gdn_tensor wide = ring2_clone(&p->wide);
    copy(&p->wide, NULL, &want, &scales, c->a.state_layout);
    if (ring2_on_device()) {
        ring2_expect_bits(what, &p->codes, &want);
        ring2_expect_bits(what, &p->scales, &scales);
    }
    copy(&p->codes, &p->scales, &wide, NULL, c->a.state_layout);
    for (int64_t i = 0; i < ring2_count(&wide); i++) {
        const double x = ring2_get(&p->wide, i), e = fabs(ring2_get(&wide, i) - x);
        CHECK(e <= 0.02 + 0.13 * fabs(x), "%s: element %lld is off by %g", what, (long long)i, e);
    }
}

/* Slots, padding with and without a sink, a sequence from zero, one that is not kept, checkpoints;
 * the last sequence changes nothing, and its codes stay (G9), but where an erase gate alone leaves
 * w = 1. */
static void eight(int i)
{
    static const int32_t codes[] = { GDN_I8, GDN_E4M3, GDN_E5M2 };
    enum { N_CODES = sizeof codes / sizeof *codes, N = 4, P = 6 };
    const int32_t dtype = codes[i / N_RULES % N_CODES];
    struct call c = draw(&rules[i % N_RULES], &batches[2], i % 2 ? GDN_F16 : GDN_BF16, i % N_GATES,
                         i % N_SIZES);
    const int64_t last = c.first[N - 1], n = c.first[N] - last, each = HV * c.K;
    const int64_t n_g = c.a.g.ndim == 3 ? each : HV, n_beta = c.a.beta.ndim == 3 ? each : HV;
    for (int64_t j = 0; j < n * n_g; j++) ring2_set(&c.a.g, last * n_g + j, 0);
    for (int64_t j = 0; j < n * n_beta; j++) ring2_set(&c.a.beta, last * n_beta + j, 0);
    for (int64_t j = 0; c.a.write_gate.data && j < n * HV * c.V; j++)
        ring2_set(&c.a.write_gate, last * HV * c.V + j, 0);

    const int64_t reads[] = { i % 5 == 1 ? -1 : 5, 1, 0, 3 }, starts[] = { i % 4 != 2, 1, 1, 1 };
    const int64_t writes[] = { 2, 1, i % 2 ? -1 : 0, 3 }, left_at[] = { 4, -1, 0, 2, 1 };
    gdn_batch batch = *c.a.batch;
    batch.read_slots = ring2_indices(GDN_I32, N, reads);
    if (i % 4) batch.write_slots = ring2_indices(GDN_I64, N, writes);
    batch.has_initial_state = ring2_indices(GDN_I32, N, starts);
    batch.checkpoint_every = 64;
    batch.checkpoint_slots = ring2_indices(GDN_I64, 5, left_at);
    if (i % 10 == 1) batch.pad_policy = GDN_PAD_SINK, batch.sink_slot = 4;
    c.a.batch = &batch;
    struct call wide = clone(&c);
    const struct pool p = new_pool(&c, dtype, P), left = new_pool(&c, dtype, 5);
    const gdn_tensor before = ring2_clone(&p.codes);
    c.a.state = p.codes, c.a.state_scales = p.scales, wide.a.state = p.wide;
    c.a.checkpoints = left.codes, c.a.checkpoint_scales = left.scales;
    wide.a.checkpoints = left.wide;
    ring2_status(ring2_ctx(1), "8 bits", gdn_prefill(ring2_ctx(1), &c.a), GDN_OK);
    if (ring2_on_device())
        CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), "prefill_q8"), "ran %s",
              gdn_last_kernel(ring2_ctx(1)));
    ring2_status(ring2_ctx(1), "float32", gdn_prefill(ring2_ctx(1), &wide.a), GDN_OK);
    if (ring2_on_device())
        ring2_expect_bits("out", &c.a.out, &wide.a.out);
    else
        near("out", &c.a.out, ring2_doubles(&wide.a.out), c.a.out.dtype);
    const gdn_tensor kept = ring2_narrow(&p.codes, 0, 3, 1), was = ring2_narrow(&before, 0, 3, 1);
    if (c.a.beta.ndim < 3 || c.a.write_gate.data) ring2_expect_bits("kept", &kept, &was);
    expect_codes("states", &c, &p);
    expect_codes("checkpoints", &c, &left);
}

/* Raw gates of 16 bits by both formulas, and the sigmoid of beta, are those of the formulas. */
static void raw(int bounded)
{
    struct call c = draw(&rules[0], &batches[0], GDN_F16, 0, 1), d;
    ring2_fill(&c.a.g, -3, 3), ring2_fill(&c.a.beta, -3, 3);
    c.a.gate = GDN_GATE_RAW, c.a.beta_kind = GDN_BETA_SIGMOID;
    c.a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&c.a.A_log, -1, 1.5);
    c.a.dt_bias = ring2_new(GDN_F32, 3, 2, HV, c.K, 0, 0), ring2_fill(&c.a.dt_bias, -4, 1);
    c.a.gate_lower_bound = bounded ? -5 : 0;
    d = clone(&c);
    d.a.gate = GDN_GATE_LOG, d.a.beta_kind = GDN_BETA_GIVEN, d.a.gate_lower_bound = 0;
    d.a.A_log.data = d.a.dt_bias.data = NULL;
    for (int64_t j = 0; j < ring2_count(&c.a.g); j++)
        ring2_set(&d.a.g, j,
                  oracle_gate(ring2_get(&c.a.g, j), ring2_get(&c.a.A_log, j / c.K % HV),
                              ring2_get(&c.a.dt_bias, j / c.K % HV * c.K + j % c.K),
                              (double)c.a.gate_lower_bound));
    for (int64_t j = 0; j < ring2_count(&c.a.beta); j++)
        ring2_set(&d.a.beta, j, 1 / (1 + exp(-ring2_get(&c.a.beta, j))));
    run(&c), run(&d);
    near("out", &c.a.out, ring2_doubles(&d.a.out), GDN_F16);
    near("state", &c.a.state, ring2_doubles(&d.a.state), GDN_F16);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "agrees", agrees, 2 * N_RULES * N_GATES * N_SIZES },
        { "summaries", summaries, N_RULES * N_GATES },
        { "summaries_of_odd_values", summaries_of_odd_values, 4 },
        { "erases_alone", erases_alone, 4 },
        { "forgets", forgets, 8 },
        { "forgets_all", forgets_all, 4 },
        { "lost", lost, 4 },
        { "writes_nothing", writes_nothing, 4 },
        { "reads_large_states", reads_large_states, 4 },
        { "reads_no_long_key", reads_no_long_key, 8 },
        { "no_sequence", no_sequence, 4 },
        { "alone", alone, 4 },
        { "checkpoints", checkpoints, 4 },
        { "eight", eight, 24 },
        { "raw", raw, 2 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
