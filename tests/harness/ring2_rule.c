/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_rule.h. The letters are those of gdn.h. */
#include "ring2_rule.h"

#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_batch.h"
#include "ring2_device.h"

static int64_t last_size(const gdn_tensor *t) { return t->size[t->ndim - 1]; }
static int64_t n_heads(const gdn_tensor *t) { return t->size[t->ndim - 2]; }

/* ---- One head of one sequence ---- */

struct head {
    struct oracle_rule rule;
    double units;             /* the error limit, of the oracle's magnitudes; */
    double least;             /* and of outputs beside that */
    double times;             /* what the usual error may be, of a plain implementation's */
    float cut;                /* which rounds k, q and S as factors: cut_to(); 0: they are not */
    bool moves;               /* by tensor cores: the usual error is the model's, of 16 bits */
    bool moves_k;             /* keys that are normalised are rounded too */
    float *plain_q, *plain_k; /* normalised in float32 */
    float *plain_o, *plain_state, *plain_each; /* as o, state and each */
};

static int64_t source(const gdn_rule_args *a, int64_t h, int64_t H, int64_t n)
{
    return a->head_map == GDN_HEADS_GROUPED ? h / (H / n) : h % n;
}

/* Rows of D normalised in float32, one operation after the other. */
static float *plain_rows(const gdn_rule_args *a, const double *x, int64_t n, int64_t D)
{
    const float eps = a->norm_eps != 0 ? a->norm_eps : 1e-6f;
    float *y = ring2_heap((size_t)(n * D) * sizeof *y);
    for (int64_t i = 0; i < n * D; i += D) {
        float sum = 0, length = 1;
        for (int64_t d = 0; d < D; d++) sum += (float)x[i + d] * (float)x[i + d];
        if (a->norm == GDN_NORM_L2) length = sqrtf(sum + eps);
        if (a->norm == GDN_NORM_L2_ADD) length = sqrtf(sum) + eps;
        if (a->norm == GDN_NORM_L2_MAX) length = fmaxf(sqrtf(sum), eps);
        for (int64_t d = 0; d < D; d++) y[i + d] = (float)x[i + d] / length;
    }
    return y;
}

static double *head_rows(const gdn_rule_args *a, const gdn_tensor *t,
                         const struct ring2_sequence *s, int64_t h, int64_t H, bool normalise)
{
    const int64_t n = n_heads(t), D = last_size(t);
    const double eps = a->norm_eps != 0 ? (double)a->norm_eps : 1e-6;
    double *x = ring2_heap((size_t)(s->valid * D) * sizeof *x);
    for (int64_t i = 0; i < s->valid; i++) {
        const int64_t at = ((s->first + i) * n + source(a, h, H, n)) * D;
        for (int64_t d = 0; d < D; d++) x[i * D + d] = ring2_get(t, at + d);
        if (normalise) oracle_l2norm(x + i * D, x + i * D, D, a->norm, eps);
    }
    return x;
}

/* Returns log alpha of one token and head, and in *size the size of its terms. */
static double log_gate(const gdn_rule_args *a, int64_t at, int64_t h, double *size)
{
    const double g = a->g.data ? ring2_get(&a->g, at) : 0;
    double x = g, A_log, dt;
    if (a->g.data && a->gate == GDN_GATE_LINEAR) x = log(g);
    if (a->g.data && a->gate == GDN_GATE_RAW) {
        A_log = ring2_get(&a->A_log, h);
        dt = a->dt_bias.data ? ring2_get(&a->dt_bias, h) : 0;
        x = oracle_gate(g, A_log, dt, (double)a->gate_lower_bound);
        *size = fabs(x) + exp(A_log) * (fabs(g) + fabs(dt)) *
                              (a->gate_lower_bound < 0 ? fabs((double)a->gate_lower_bound)
                                                       : oracle_sigmoid(g + dt));
        return x;
    }
    *size = isfinite(x) ? fabs(x) : 0;
    return x;
}

static double beta_of(const gdn_rule_args *a, int64_t at)
{
    const double b = a->beta.data ? ring2_get(&a->beta, at) : 1;
    if (!a->beta.data || !oracle_squashes(a->beta_kind)) return b;
    return oracle_sigmoid(b) * (a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1);
}

/*
 * The limit, in units of 2^-24 of the oracle's magnitude, is the sum of the relative errors of
 * what enters a token, each from the contract of the inner loop that makes it:
 *
 *     sums over K (p, z or the grams, q . k)      2 (8 + K / 16)
 *     u, o, state: products and sums of few       8
 *     k (twice: in u and beside it) and q, if     3 (half a sum, root, product, scale:
 *       normalised here                              (8 + K / 16) / 2 + 4)
 *     beta through a sigmoid                      5
 *     alpha: exp                                  2
 *     alpha: error of g, e |g|, is relative       e |g|: raw 8, linear in prefill 2
 *     products of bfloat16 (p, z): two factors  2 x 2 x 2^15
 *     prefill, per block of 16: solve 32, update 12, gates 8 + 2 |G|, G the sum of 16 gates
 *
 *     on a device, in chunks (docs/design/numerics.md):
 *       A of 16 bits, u their unit 2^-8 or 2^-11: factors of large products are rounded: S, R, T,
 *       U, P; in f16 also normalised k  (5 or 8) u; f32: products of two halves 12, sums K / 8
 *
 * The usual error is about that of the recurrence in plain float32. 4 times that is allowed,
 * for a key's length has one error for all its elements, and a mean over few draws scatters.
 * Where keys are alike and beta is near 2, u changes sign from token to token, and prefill adds
 * up to 16 of them where the recurrence has only their small sum: twice that. What is rounded to
 * 16 bits outweighs all else: there the usual error is the model's, of bfloat16 products the plain
 * recurrence's with such factors, and only the scatter is allowed for: 3 times.
 *
 * P of f16 is a multiple of 2^-24 (docs/design/numerics.md): so much of an output is lost, times
 * |u|, for which the largest |v| stands.
 */
static void set_limits(const gdn_rule_args *a, bool prefill, const double *size, int64_t T,
                       struct head *h)
{
    const bool device = prefill && ring2_on_device(), halves = a->q.dtype != GDN_F32;
    const double sum = device ? 12 + 8 + (double)h->rule.K / 8 : 8 + (double)h->rule.K / 16;
    const int window = device && halves ? 64 : prefill ? 16 : 1;
    const double per_g = a->gate == GDN_GATE_RAW ? 8 : a->gate == GDN_GATE_LINEAR ? 2 : 0;
    double largest = 0, units = 2 * sum + 8 + 2;
    for (int64_t t = 0; t < T; t++) {
        double G = 0;
        for (int64_t i = t; i < T && i < t + window; i++) G += size[i];
        largest = fmax(largest, G);
    }
    if (oracle_normalises(a->norm)) units += 3 * (sum / 2 + 4);
    if (oracle_squashes(a->beta_kind)) units += 5;
    if (prefill) units += 32 + 12 + 8;
    if (device && halves) {
        h->moves = true;
        h->moves_k = a->q.dtype == GDN_F16 && oracle_normalises(a->norm);
        units += (h->moves_k ? 8 : 5) * (a->q.dtype == GDN_F16 ? 0x1p13 : 0x1p16);
    }
    if (prefill && !device && a->flags & GDN_BF16_PRODUCTS) {
        units += 2 * 2 * 0x1p15;
        h->cut = 0x1p16f + 1;
    }
    h->units = units + (per_g + 2) * largest;
    h->times = h->moves || h->cut != 0 ? 3 : prefill ? 8 : 4;
}

/* Returns true if the call may compute chunks; a device does where all rows have one dtype. */
static bool goes_in_chunks(const gdn_rule_args *a, bool decode)
{
    const bool mixed = a->k.dtype != a->q.dtype || a->v.dtype != a->q.dtype ||
                       (a->out.data && a->out.dtype != a->q.dtype);
    return !decode && !(a->flags & GDN_EXACT) && !(mixed && ring2_on_device());
}

static void load_head(const gdn_rule_args *a, bool decode, const struct ring2_sequence *s,
                      int64_t hd, const struct ring2_rule *m, struct head *h)
{
    const size_t T = (size_t)s->valid, row = T * sizeof(double);
    double *alpha = ring2_heap(row), *beta = ring2_heap(row), *size = ring2_heap(row);
    for (int64_t t = 0; t < s->valid; t++) {
        const int64_t at = (s->first + t) * m->H + hd;
        alpha[t] = exp(log_gate(a, at, hd, &size[t]));
        beta[t] = beta_of(a, at);
    }
    memset(h, 0, sizeof *h);
    h->rule.T = s->valid;
    h->rule.K = (int)m->K;
    h->rule.V = (int)m->V;
    h->rule.scale = a->scale != 0 ? (double)a->scale : 1 / sqrt((double)m->K);
    h->plain_q = plain_rows(a, head_rows(a, &a->q, s, hd, m->H, false), s->valid, m->K);
    h->plain_k = plain_rows(a, head_rows(a, &a->k, s, hd, m->H, false), s->valid, m->K);
    h->rule.q = head_rows(a, &a->q, s, hd, m->H, true);
    h->rule.k = head_rows(a, &a->k, s, hd, m->H, true);
    h->rule.v = head_rows(a, &a->v, s, hd, m->H, false);
    h->rule.alpha = alpha;
    h->rule.beta = beta;
    set_limits(a, goes_in_chunks(a, decode), size, s->valid, h);
    if (goes_in_chunks(a, decode) && a->q.dtype == GDN_F16 && ring2_on_device())
        for (int64_t i = 0; i < s->valid * m->V; i++)
            if (isfinite(h->rule.v[i])) h->least = fmax(h->least, 0x1p-25 * fabs(h->rule.v[i]));
}

/* Row-major index in a pool of element (j, x) of v and k: [P][H][V][K] or [P][H][K][V]. */
static int64_t pool_at(const gdn_rule_args *a, const struct ring2_rule *m, int64_t slot, int64_t h,
                       int64_t j, int64_t x)
{
    const int64_t inner = a->state_layout == GDN_STATE_VK ? j * m->K + x : x * m->V + j;
    return (slot * m->H + h) * m->K * m->V + inner;
}

/* Below this, underflow: no bound relative to a magnitude can hold. */
static const double tiny = 0x1p-115;

static double limit_of(const struct head *h, double mag) { return h->units * 0x1p-24 * mag + tiny; }

/* x rounded to as many bits less as the factor 2^bits + 1 says (Dekker). */
static float cut_to(float x, float factor)
{
    const float large = x * factor;
    return factor == 0 ? x : large - (large - x);
}

/* Runs column j of the recurrence in float32, operation by operation. */
static void run_plain(const struct head *h, int64_t j)
{
    const struct oracle_rule *r = &h->rule;
    float *S = h->plain_state + j * r->K;
    for (int64_t t = 0; t < r->T; t++) {
        const float *k = h->plain_k + t * r->K, *q = h->plain_q + t * r->K;
        const float alpha = (float)r->alpha[t], beta = (float)r->beta[t];
        float p = 0, o = 0, u = 0;
        for (int x = 0; x < r->K; x++) S[x] = alpha == 0 ? 0 : alpha * S[x];
        for (int x = 0; x < r->K; x++) p += cut_to(S[x], h->cut) * cut_to(k[x], h->cut);
        if (beta != 0) u = beta * ((float)r->v[t * r->V + j] - p);
        for (int x = 0; x < r->K; x++) S[x] += k[x] * u;
        for (int x = 0; x < r->K; x++) o += cut_to(S[x], h->cut) * cut_to(q[x], h->cut);
        h->plain_o[t * r->V + j] = (float)r->scale * o;
        if (h->plain_each)
            memcpy(h->plain_each + (t * r->V + j) * r->K, S, (size_t)r->K * sizeof *S);
    }
}

static double *copied(const double *x, int64_t n)
{
    return memcpy(ring2_heap((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}

/* The whole head as tensor cores compute it, in place of run_plain(). */
static void run_moved(const struct head *h, int dtype)
{
    struct oracle_rule r = h->rule;
    struct oracle_noise noise = { .dtype = dtype };
    const int64_t n_k = r.T * r.K, n_o = r.T * r.V, n_state = (int64_t)r.K * r.V;
    double *k = copied(r.k, n_k);
    if (h->moves_k) oracle_move_all(&noise, k, n_k);
    r.k = k;
    r.state = copied(r.state, n_state);
    r.o = copied(r.o, n_o);
    oracle_rule_chunks(&r, r.K > 128 ? 32 : 64, &noise);
    for (int64_t i = 0; i < n_o; i++) h->plain_o[i] = (float)r.o[i];
    for (int64_t i = 0; i < n_state; i++) h->plain_state[i] = (float)r.state[i];
}

static void expect_state(const gdn_rule_args *a, struct ring2_rule *m, int64_t slot, int64_t hd,
                         const double *S, const double *mag, const float *plain,
                         const struct head *h)
{
    for (int64_t j = 0; j < m->V; j++)
        for (int64_t x = 0; x < m->K; x++) {
            const int64_t at = pool_at(a, m, slot, hd, j, x), i = j * m->K + x;
            m->state[at] = S[i];
            m->state_limit[at] = limit_of(h, mag[i]);
            m->state_noise[at] = h->times * ((double)plain[i] - S[i]);
            m->state_kept[at] = false;
        }
}

static void expect_out(struct ring2_rule *m, const struct ring2_sequence *s, int64_t hd,
                       const struct head *h)
{
    for (int64_t i = 0; i < s->valid; i++)
        for (int64_t j = 0; j < m->V; j++) {
            const int64_t at = ((s->first + i) * m->H + hd) * m->V + j, from = i * m->V + j;
            m->out[at] = h->rule.o[from];
            m->out_limit[at] = limit_of(h, h->rule.o_mag[from]) + h->least;
            m->out_noise[at] = h->times * ((double)h->plain_o[from] - h->rule.o[from]);
            m->out_kept[at] = false;
        }
}

/* Memory for the results, and the state that the sequence starts from. */
static void start_head(const gdn_rule_args *a, const struct ring2_sequence *s, int64_t hd,
                       bool each, const struct ring2_rule *m, struct head *h)
{
    const size_t KV = (size_t)(m->K * m->V), TV = (size_t)(s->valid * m->V);
    h->rule.state = ring2_heap(KV * sizeof(double));
    h->rule.state_mag = ring2_heap(KV * sizeof(double));
    h->rule.o = ring2_heap(TV * sizeof(double));
    h->rule.o_mag = ring2_heap(TV * sizeof(double));
    h->plain_state = ring2_heap(KV * sizeof(float));
    h->plain_o = ring2_heap(TV * sizeof(float));
    if (each) {
        h->rule.each = ring2_heap(KV * (size_t)s->valid * sizeof(double));
        h->rule.each_mag = ring2_heap(KV * (size_t)s->valid * sizeof(double));
        h->plain_each = ring2_heap(KV * (size_t)s->valid * sizeof(float));
    }
    for (int64_t j = 0; s->read >= 0 && j < m->V; j++)
        for (int64_t x = 0; x < m->K; x++) {
            const double S = ring2_get(&a->state, pool_at(a, m, s->read, hd, j, x));
            h->rule.state[j * m->K + x] = S;
            h->plain_state[j * m->K + x] = (float)S;
        }
}

static void run_head(const gdn_rule_args *a, bool decode, const struct ring2_sequence *s,
                     int64_t hd, struct ring2_rule *m)
{
    const bool each = a->batch && a->batch->write == GDN_WRITE_EACH && m->target.data;
    const size_t KV = (size_t)(m->K * m->V);
    struct head h;
    load_head(a, decode, s, hd, m, &h);
    start_head(a, s, hd, each, m, &h);
    for (int64_t j = 0; j < m->V && !h.moves; j++) run_plain(&h, j);
    if (h.moves) run_moved(&h, a->q.dtype);
    oracle_rule(&h.rule);
    if (a->out.data) expect_out(m, s, hd, &h);
    if (s->write >= 0 && m->target.data)
        expect_state(a, m, s->write, hd, h.rule.state, h.rule.state_mag, h.plain_state, &h);
    for (size_t i = 0; each && i < (size_t)s->valid; i++) {
        const int64_t slot = ring2_each_slot(a->batch, s, (int64_t)i);
        if (slot >= 0)
            expect_state(a, m, slot, hd, h.rule.each + i * KV, h.rule.each_mag + i * KV,
                         h.plain_each + i * KV, &h);
    }
}

/* ---- The call ---- */

static void make_room(const gdn_rule_args *a, struct ring2_rule *m)
{
    const size_t n = a->out.data ? (size_t)ring2_count(&a->out) : 0;
    size_t p;
    m->target = a->state_out.data ? a->state_out : a->state;
    p = m->target.data ? (size_t)ring2_count(&m->target) : 0;
    m->out = ring2_heap(n * sizeof(double));
    m->out_limit = ring2_heap(n * sizeof(double));
    m->out_noise = ring2_heap(n * sizeof(double));
    m->out_kept = ring2_heap(n);
    m->state = ring2_heap(p * sizeof(double));
    m->state_limit = ring2_heap(p * sizeof(double));
    m->state_noise = ring2_heap(p * sizeof(double));
    m->state_kept = ring2_heap(p);
    memset(m->state_kept, 1, p); /* out: rows that are not computed are zero */
}

void ring2_rule_model(const gdn_rule_args *a, bool decode, struct ring2_rule *m)
{
    struct ring2_sequence *seqs;
    memset(m, 0, sizeof *m);
    m->K = last_size(&a->q);
    m->V = last_size(&a->v);
    m->H = n_heads(&a->q) > n_heads(&a->v) ? n_heads(&a->q) : n_heads(&a->v);
    m->n_rows = ring2_count(&a->q) / (n_heads(&a->q) * m->K);
    make_room(a, m);
    m->B = ring2_sequences(a->batch, &a->q, 2, a->state.data != NULL, &seqs);
    if (a->out.data && a->batch && a->batch->cu_seqlens.data) /* before the first sequence */
        memset(m->out_kept, 1, (size_t)ring2_get(&a->batch->cu_seqlens, 0) * (size_t)(m->H * m->V));
    for (const struct ring2_sequence *s = seqs; s < seqs + m->B; s++) {
        if (s->kept && a->out.data)
            memset(m->out_kept + s->first * m->H * m->V, 1, (size_t)(s->T * m->H * m->V));
        if (s->skipped || !s->T) continue;
        for (int64_t h = 0; h < m->H; h++) run_head(a, decode, s, h, m);
    }
}

static void allow_writes(const gdn_tensor *t, const bool *kept)
{
    if (!t->data) return;
    for (int64_t i = 0; i < ring2_count(t); i++)
        if (!kept[i]) ring2_may_write_bytes(ring2_element(t, i), gdn_dtype_bytes(t->dtype));
}

gdn_status ring2_rule_call(gdn_ctx *ctx, const gdn_rule_args *args, bool decode)
{
    return decode ? gdn_decode(ctx, args) : gdn_prefill(ctx, args);
}

void ring2_rule_check(gdn_ctx *ctx, const gdn_rule_args *args, bool decode)
{
    ring2_rule_check_as(ctx, args, args, decode);
}

void ring2_rule_check_as(gdn_ctx *ctx, const gdn_rule_args *args, const gdn_rule_args *other,
                         bool decode)
{
    const char *what = decode ? "gdn_decode" : "gdn_prefill";
    const gdn_op op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
    struct ring2_rule m;
    ring2_rule_model(other, decode, &m);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, op, args), GDN_OK);
    ring2_call_begin();
    if (args->out.data) allow_writes(&args->out, m.out_kept);
    if (m.target.data) allow_writes(&m.target, m.state_kept);
    ring2_may_write_bytes(args->workspace, args->workspace_bytes);
    ring2_status(ctx, what, ring2_rule_call(ctx, args, decode), GDN_OK);
    ring2_call_end();
    if (ring2_failed()) return;
    if (args->out.data)
        ring2_compare("out", &args->out, m.out, m.out_limit, m.out_noise, m.out_kept);
    if (m.target.data)
        ring2_compare("state", &m.target, m.state, m.state_limit, m.state_noise, m.state_kept);
}

/* ---- Inputs ---- */

static void fill_unit(const gdn_tensor *t, bool unit)
{
    const int64_t D = last_size(t), rows = D ? ring2_count(t) / D : 0;
    for (int64_t r = 0; r < rows; r++) {
        double *x = ring2_heap((size_t)D * sizeof *x);
        for (int64_t d = 0; d < D; d++) x[d] = ring2_uniform(-1, 1);
        if (unit) oracle_l2norm(x, x, D, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < D; d++) ring2_set(t, r * D + d, x[d]);
    }
}

void ring2_rule_inputs(const gdn_rule_args *a, bool unit, double low)
{
    fill_unit(&a->q, unit);
    fill_unit(&a->k, unit);
    ring2_fill(&a->v, -1, 1);
    if (a->g.data) ring2_fill(&a->g, low, 0);
    if (a->beta.data) ring2_fill(&a->beta, 0, 1);
    if (a->state.data) ring2_fill(&a->state, -1, 1);
}

gdn_rule_args ring2_rule_args(int32_t dtype, int32_t state_dtype, int64_t N, int64_t P,
                              const int hd[3], int64_t K, int64_t V)
{
    const int H = hd[0] > hd[2] ? hd[0] : hd[2];
    gdn_rule_args a = gdn_rule_args_init();
    a.q = ring2_new(dtype, 0, 3, N, hd[0], K, 0);
    a.k = ring2_new(dtype, 0, 3, N, hd[1], K, 0);
    a.v = ring2_new(dtype, 0, 3, N, hd[2], V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.out = ring2_new(dtype, 0, 3, N, H, V, 0);
    if (P) a.state = ring2_new(state_dtype, 0, 4, P, H, V, K);
    ring2_rule_inputs(&a, true, -0.5);
    return a;
}

gdn_rule_args ring2_rule_packed(int32_t dtype, int32_t state_dtype, int n, const int64_t *lengths,
                                const int hd[3], int64_t K, int64_t V, gdn_batch **batch)
{
    int64_t *cu = ring2_heap((size_t)(n + 1) * sizeof *cu);
    gdn_batch *t = ring2_heap(sizeof *t);
    gdn_rule_args a;
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    *t = gdn_batch_init();
    t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    a = ring2_rule_args(dtype, state_dtype, cu[n], n, hd, K, V);
    a.batch = t;
    if (batch) *batch = t;
    return a;
}

gdn_rule_args ring2_rule_clone(const gdn_rule_args *args)
{
    gdn_rule_args a = *args;
    gdn_tensor *all[] = { &a.q,       &a.k,     &a.v,         &a.g,   &a.beta,       &a.A_log,
                          &a.dt_bias, &a.state, &a.state_out, &a.out, &a.checkpoints };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = ring2_clone(all[i]);
    return a;
}

gdn_rule_args ring2_rule_slice(const gdn_rule_args *args, int64_t first, int64_t n)
{
    gdn_rule_args a = *args;
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->data) *rows[i] = ring2_narrow(rows[i], 0, first, n);
    a.batch = NULL;
    return a;
}

/* [B T]... as [B][T]... */
static void pad(gdn_tensor *t, int64_t B)
{
    for (int i = t->ndim++; i > 0; i--) {
        t->size[i] = t->size[i - 1];
        t->stride[i] = t->stride[i - 1];
    }
    t->size[0] = B;
    t->size[1] /= B;
    t->stride[0] = t->size[1] * t->stride[1];
}

void ring2_rule_pad(gdn_rule_args *args, int64_t B)
{
    gdn_tensor *rows[] = { &args->q, &args->k, &args->v, &args->g, &args->beta, &args->out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->data) pad(rows[i], B);
}
