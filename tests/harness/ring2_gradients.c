/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_gradients.h. The letters are those of gdn.h. */
#include "ring2_gradients.h"

#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_batch.h"
#include "ring2_device.h"

const char *const ring2_gradient_names[N_GRADIENTS] = { "dq",    "dk",     "dv",       "dg",
                                                        "dbeta", "dA_log", "ddt_bias", "dstate" };

const gdn_tensor *ring2_gradient(const gdn_prefill_backward_args *a, int which)
{
    const gdn_tensor *all[N_GRADIENTS] = { &a->dq,    &a->dk,     &a->dv,       &a->dg,
                                           &a->dbeta, &a->dA_log, &a->ddt_bias, &a->dstate };
    return all[which];
}

/* One state head of one sequence: T tokens that count, rows from `first` on. */
struct part {
    const gdn_prefill_backward_args *a;
    const struct ring2_gradients *m;
    int64_t b, h, H, first, T;
    struct oracle_backward rule;
};

static int64_t heads_of(const gdn_tensor *t) { return t->size[t->ndim - 2]; }
static int64_t last_size(const gdn_tensor *t) { return t->size[t->ndim - 1]; }

static int64_t source(const struct part *p, const gdn_tensor *t)
{
    const int64_t n = heads_of(t);
    return p->a->head_map == GDN_HEADS_GROUPED ? p->h / (p->H / n) : p->h % n;
}

static double eps_of(const gdn_prefill_backward_args *a)
{
    return a->norm_eps > 0 ? (double)a->norm_eps : 1e-6;
}

/* Place of row i of the part in a tensor [tokens][n][D]. */
static int64_t row_at(const struct part *p, const gdn_tensor *t, int64_t i, int64_t head)
{
    return ((p->first + i) * heads_of(t) + head) * last_size(t);
}

static double *numbers(int64_t n) { return ring2_heap((size_t)n * sizeof(double) + 1); }

/* Returns the rows of the part's head; norm: normalised. */
static double *rows_of(const struct part *p, const gdn_tensor *t, bool norm)
{
    const int64_t D = last_size(t);
    double *x = numbers(p->T * D);
    for (int64_t i = 0; t->data && i < p->T; i++) {
        const int64_t at = row_at(p, t, i, source(p, t));
        for (int64_t d = 0; d < D; d++) x[i * D + d] = ring2_get(t, at + d);
        if (norm) oracle_l2norm(x + i * D, x + i * D, D, p->a->norm, eps_of(p->a));
    }
    return x;
}

/* [V][K], whatever the layout. */
static double *state_of(const struct part *p, const gdn_tensor *t)
{
    const bool kv = p->a->state_layout == GDN_STATE_KV;
    const int K = p->rule.K, V = p->rule.V;
    const int64_t from = (p->b * p->H + p->h) * K * V;
    double *S = numbers(K * V);
    if (!t->data) return NULL;
    for (int v = 0; v < V; v++)
        for (int k = 0; k < K; k++)
            S[v * K + k] = ring2_get(t, from + (kv ? k * V + v : v * K + k));
    return S;
}

/* ---- Gates and beta ------------------------------------------------------------------------ */

static double raw_x(const struct part *p, double a)
{
    return a + (p->a->dt_bias.data ? ring2_get(&p->a->dt_bias, p->h) : 0);
}

static double alpha_of(const struct part *p, int64_t i)
{
    const gdn_prefill_backward_args *a = p->a;
    const double g = a->g.data ? ring2_get(&a->g, (p->first + i) * p->H + p->h) : 0;
    double log_alpha = g;
    if (a->g.data && a->gate == GDN_GATE_LINEAR) log_alpha = log(g);
    if (a->g.data && a->gate == GDN_GATE_RAW)
        log_alpha = oracle_gate(g, ring2_get(&a->A_log, p->h),
                                a->dt_bias.data ? ring2_get(&a->dt_bias, p->h) : 0,
                                (double)a->gate_lower_bound);
    return log_alpha < -104 ? 0 : exp(log_alpha);
}

static double beta_of(const struct part *p, int64_t i, double *slope)
{
    const gdn_prefill_backward_args *a = p->a;
    const double b = a->beta.data ? ring2_get(&a->beta, (p->first + i) * p->H + p->h) : 1;
    const double most = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    *slope = 1;
    if (!a->beta.data || !oracle_squashes(a->beta_kind)) return b;
    *slope = most * oracle_sigmoid(b) * oracle_sigmoid(-b);
    return most * oracle_sigmoid(b);
}

/* Makes gradients of the given tensors from dgate, that of log alpha: of g, or of a, A_log and
 * dt_bias. */
static void through_gate(const struct part *p, int64_t i, double dgate, double *dg, double *dA_log,
                         double *ddt_bias)
{
    const gdn_prefill_backward_args *a = p->a;
    const double g = a->g.data ? ring2_get(&a->g, (p->first + i) * p->H + p->h) : 0;
    *dg = dgate, *dA_log = *ddt_bias = 0;
    if (!a->g.data || a->gate == GDN_GATE_LOG || dgate == 0) return;
    if (a->gate == GDN_GATE_LINEAR) {
        *dg = dgate / g;
        return;
    }
    const double x = raw_x(p, g), A = exp(ring2_get(&a->A_log, p->h));
    double slope = -A * oracle_sigmoid(x), value = -A * oracle_softplus(x);
    if (a->gate_lower_bound < 0) {
        slope = (double)a->gate_lower_bound * oracle_sigmoid(A * x) * oracle_sigmoid(-A * x) * A;
        value = slope * x;
    }
    *dg = *ddt_bias = dgate * slope;
    *dA_log = dgate * value;
}

/* ---- One head ------------------------------------------------------------------------------ */

static void read_part(struct part *p)
{
    const gdn_prefill_backward_args *a = p->a;
    struct oracle_backward *r = &p->rule;
    double *alpha = numbers(p->T), *beta = numbers(p->T);
    r->T = p->T, r->K = (int)last_size(&a->q), r->V = (int)last_size(&a->v);
    r->scale = a->scale != 0 ? (double)a->scale : 1 / sqrt(r->K);
    r->q = rows_of(p, &a->q, true), r->k = rows_of(p, &a->k, true);
    r->v = rows_of(p, &a->v, false);
    for (int64_t i = 0; i < p->T; i++) {
        double slope;
        alpha[i] = alpha_of(p, i), beta[i] = beta_of(p, i, &slope);
    }
    r->alpha = alpha, r->beta = beta;
    r->state = state_of(p, &a->state), r->dstate_out = state_of(p, &a->dstate_out);
    double *dout = numbers(p->T * r->V);
    for (int64_t i = 0; i < p->T * r->V; i++)
        dout[i] = ring2_get(&a->dout, ((p->first + i / r->V) * p->H + p->h) * r->V + i % r->V);
    r->dout = dout;
    r->dq = numbers(p->T * r->K), r->dk = numbers(p->T * r->K), r->dv = numbers(p->T * r->V);
    r->dgate = numbers(p->T), r->dbeta = numbers(p->T), r->dstate = numbers(r->K * r->V);
    r->carried = numbers(r->V), r->terms = numbers(p->T);
}

/* Adds rows of a head to those of the head that it reads; x: the rows of q or k before their norm,
 * or NULL. */
static void add_rows(const struct part *p, double *to, const gdn_tensor *t, const double *dy,
                     const double *x)
{
    const int64_t D = last_size(t);
    double *dx = numbers(D);
    for (int64_t i = 0; to && i < p->T; i++) {
        const int64_t at = row_at(p, t, i, source(p, t));
        memcpy(dx, dy + i * D, (size_t)D * sizeof *dx);
        if (x && oracle_normalises(p->a->norm))
            oracle_l2norm_backward(dx, x + i * D, dy + i * D, D, p->a->norm, eps_of(p->a));
        for (int64_t d = 0; d < D; d++) to[at + d] += dx[d];
    }
}

static void add_part(struct part *p, double *const *to, const double *q, const double *k)
{
    const gdn_prefill_backward_args *a = p->a;
    const struct oracle_backward *r = &p->rule;
    const bool kv = a->state_layout == GDN_STATE_KV;
    oracle_rule_backward(r);
    add_rows(p, to[DQ], &a->q, r->dq, q);
    add_rows(p, to[DK], &a->k, r->dk, k);
    add_rows(p, to[DV], &a->v, r->dv, NULL);
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t at = (p->first + i) * p->H + p->h;
        double dg, dA_log, ddt_bias, slope;
        through_gate(p, i, r->dgate[i], &dg, &dA_log, &ddt_bias);
        beta_of(p, i, &slope);
        if (to[DG]) to[DG][at] += dg;
        if (to[DBETA]) to[DBETA][at] += r->dbeta[i] * slope;
        if (to[DA_LOG]) to[DA_LOG][p->h] += dA_log;
        if (to[DDT_BIAS]) to[DDT_BIAS][p->h] += ddt_bias;
    }
    for (int v = 0; to[DSTATE] && v < r->V; v++)
        for (int x = 0; x < r->K; x++)
            to[DSTATE][(p->b * p->H + p->h) * r->K * r->V + (kv ? x * r->V + v : v * r->K + x)] +=
                r->dstate[v * r->K + x];
}

/* ---- Limits -------------------------------------------------------------------------------- */

bool ring2_gradients_on_tiles(const gdn_prefill_backward_args *a)
{
    const int64_t K = last_size(&a->q);
    return ring2_on_device() && (ring2_on_hopper() || K <= 128) && a->q.dtype != GDN_F32 &&
           a->dout.dtype == a->q.dtype && K % 8 == 0 && last_size(&a->v) % 8 == 0 &&
           heads_of(&a->q) == heads_of(&a->k) && heads_of(&a->v) == heads_of(&a->dout);
}

/* The unit of limits, which count 32 of it: a rounding of float32; or an eighth of one of 16 bits,
 * of which there are a few and those of different tokens are independent. */
static double unit_of(const gdn_prefill_backward_args *a)
{
    if (!ring2_gradients_on_tiles(a)) return 0x1p-24;
    return a->q.dtype == GDN_BF16 ? 0x1p-12 : 0x1p-15;
}

/* Elements at, at + step, ... of a gradient, n runs of D: the limit is 8 times what a plain loop
 * errs there at most, and 32 units of the largest value. */
static void limit_group(const struct ring2_gradients *m, int which, int64_t at, int64_t step,
                        int64_t n, int64_t D, double unit)
{
    const double *want = m->want[which], *plain = m->plain[which];
    double error = 0, size = 0;
    for (int64_t i = 0; want && i < n * D; i++) {
        const int64_t j = at + i / D * step + i % D;
        error = fmax(error, fabs(plain[j] - want[j]));
        size = fmax(size, fabs(want[j]));
    }
    const double limit = 8 * error + 32 * unit * size + 0x1p-120; /* subnormal numbers */
    for (int64_t i = 0; want && i < n * D; i++) {
        const int64_t j = at + i / D * step + i % D;
        m->limit[which][j] = fmax(m->limit[which][j], limit);
    }
}

/* dg is a difference of sums of q dq and k dk, which strong gates leave little of. */
static double terms_of_dg(const struct part *p)
{
    const struct oracle_backward *r = &p->rule;
    double most = 0;
    for (int64_t t = 0; t < r->T; t++) {
        double sum = 0;
        for (int64_t x = t * r->K; x < (t + 1) * r->K; x++)
            sum += fabs(r->q[x] * r->dq[x]) + fabs(r->k[x] * r->dk[x]);
        most = fmax(most, sum);
    }
    return most;
}

/* dbeta is a difference too: of v . du and k^T S . du. */
static void limit_betas(const struct part *p)
{
    const struct oracle_backward *r = &p->rule;
    for (int64_t t = 0; p->m->want[DBETA] && t < r->T; t++) {
        double slope;
        beta_of(p, t, &slope);
        p->m->limit[DBETA][(p->first + t) * p->H + p->h] =
            8 * unit_of(p->a) * fabs(slope) * r->terms[t];
    }
}

/* Adds the effect on dg and, added up, on dA_log and ddt_bias. A dg adds up to 16 such differences,
 * whose errors have nothing to do with each other: 4 times that of one. */
static void limit_gates(const struct part *p)
{
    const double unit = 4 * 32 * unit_of(p->a) * terms_of_dg(p);
    for (int64_t i = 0; i < p->T; i++) {
        double dg, dA_log, ddt_bias;
        through_gate(p, i, unit, &dg, &dA_log, &ddt_bias);
        if (p->rule.alpha[i] == 0) continue;
        if (p->m->want[DG]) p->m->limit[DG][(p->first + i) * p->H + p->h] = fabs(dg);
        if (p->m->want[DA_LOG]) p->m->limit[DA_LOG][p->h] += fabs(dA_log);
        if (p->m->want[DDT_BIAS]) p->m->limit[DDT_BIAS][p->h] += fabs(ddt_bias);
    }
}

/* The limit of dstate follows from all that tokens add on the way: it rounds in proportion to
 * the size of these terms. */
static void limit_states(const struct part *p)
{
    const struct oracle_backward *r = &p->rule;
    const bool kv = p->a->state_layout == GDN_STATE_KV;
    for (int i = 0; p->m->want[DSTATE] && i < r->K * r->V; i++) {
        const int v = i / r->K, k = i % r->K;
        p->m->limit[DSTATE][(p->b * p->H + p->h) * r->K * r->V + (kv ? k * r->V + v : i)] =
            32 * unit_of(p->a) * r->carried[v];
    }
}

/* The gradient of a norm is a difference too, of terms as large as dy over the length. */
static void limit_norms(const struct part *p, int which, const gdn_tensor *t, const double *dy,
                        const double *x, const double *y)
{
    const int64_t D = last_size(t);
    double most = 0;
    for (int64_t i = 0; i < p->T * D; i++)
        if (x[i] != 0) most = fmax(most, fabs(dy[i] * y[i] / x[i]));
    for (int64_t i = 0; p->m->want[which] && i < p->T * D; i++)
        p->m->limit[which][row_at(p, t, i / D, source(p, t)) + i % D] += 32 * unit_of(p->a) * most;
}

static void limit_part(struct part *p)
{
    const struct ring2_gradients *m = p->m;
    const gdn_prefill_backward_args *a = p->a;
    const gdn_tensor *rows[] = { &a->q, &a->k, &a->v };
    const int64_t H = p->H, KV = last_size(&a->q) * last_size(&a->v);
    const double unit = unit_of(a);
    for (int i = DQ; i <= DV; i++)
        limit_group(m, i, row_at(p, rows[i], 0, source(p, rows[i])),
                    heads_of(rows[i]) * last_size(rows[i]), p->T, last_size(rows[i]), unit);
    limit_group(m, DG, p->first * H + p->h, H, p->T, 1, unit);
    limit_group(m, DBETA, p->first * H + p->h, H, p->T, 1, unit);
    limit_group(m, DA_LOG, p->h, 1, 1, 1, unit);
    limit_group(m, DDT_BIAS, p->h, 1, 1, 1, unit);
    limit_group(m, DSTATE, (p->b * H + p->h) * KV, 1, 1, KV, unit);
}

/* ---- All ----------------------------------------------------------------------------------- */

static void run_part(struct part *p)
{
    const double *q = rows_of(p, &p->a->q, false), *k = rows_of(p, &p->a->k, false);
    read_part(p);
    p->rule.single = true;
    add_part(p, p->m->plain, q, k);
    p->rule.single = false;
    add_part(p, p->m->want, q, k);
    limit_gates(p);
    limit_betas(p);
    limit_states(p);
    if (!oracle_normalises(p->a->norm)) return;
    limit_norms(p, DQ, &p->a->q, p->rule.dq, q, p->rule.q);
    limit_norms(p, DK, &p->a->k, p->rule.dk, k, p->rule.k);
}

/* Calls f for every head of every sequence. */
static void each_part(const gdn_prefill_backward_args *a, const struct ring2_gradients *m,
                      void (*f)(struct part *))
{
    struct ring2_sequence *seqs;
    const gdn_batch none = gdn_batch_init(), *t = a->batch ? a->batch : &none;
    const int64_t B = ring2_sequences(a->batch, &a->q, 2, true, &seqs);
    const int64_t Hq = heads_of(&a->q), Hv = heads_of(&a->v), H = Hq > Hv ? Hq : Hv;
    for (int64_t b = 0; b < B; b++) {
        const int64_t skip = t->token_start.data ? (int64_t)ring2_get(&t->token_start, b) : 0;
        const int64_t n = t->token_count.data ? seqs[b].valid : seqs[b].T - skip;
        for (int64_t h = 0; h < H; h++) {
            struct part p = { a, m, b, h, H, seqs[b].first + skip, n, { 0 } };
            f(&p);
        }
    }
}

/* Adds the values that the call adds to. */
static void add_old(const gdn_tensor *t, double *want, double *plain, double *limit)
{
    for (int64_t i = 0; i < ring2_count(t); i++) {
        const double old = ring2_get(t, i);
        want[i] += old, plain[i] += old;
        limit[i] += fabs(want[i]) * 0x1p-24;
    }
}

void ring2_gradients_model(const gdn_prefill_backward_args *a, struct ring2_gradients *m)
{
    for (int i = 0; i < N_GRADIENTS; i++) {
        const gdn_tensor *t = ring2_gradient(a, i);
        m->want[i] = m->plain[i] = m->limit[i] = NULL;
        if (!t->data) continue;
        m->want[i] = numbers(ring2_count(t)), m->plain[i] = numbers(ring2_count(t));
        m->limit[i] = numbers(ring2_count(t));
    }
    each_part(a, m, run_part);
    each_part(a, m, limit_part);
    for (int i = 0; i < N_GRADIENTS && a->flags & GDN_ACCUMULATE; i++)
        if (m->want[i]) add_old(ring2_gradient(a, i), m->want[i], m->plain[i], m->limit[i]);
}

/* The root mean square error may be 8 times that of a plain loop, as for gdn_prefill, plus one
 * unit where limits have 32. On tensor cores, plus one rounding of 16 bits. */
static double *noise_of(const struct ring2_gradients *m, int which, int64_t n, bool rounded)
{
    const double part = rounded ? 4 : 32;
    double *noise = numbers(n);
    for (int64_t i = 0; i < n; i++)
        noise[i] = 8 * fabs(m->plain[which][i] - m->want[which][i]) + m->limit[which][i] / part;
    return noise;
}

void ring2_gradients_check(gdn_ctx *ctx, const gdn_prefill_backward_args *a)
{
    struct ring2_gradients m;
    ring2_gradients_model(a, &m);
    ring2_call_begin();
    for (int i = 0; i < N_GRADIENTS; i++) ring2_may_write(ring2_gradient(a, i));
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    ring2_status(ctx, "gdn_prefill_backward", gdn_prefill_backward(ctx, a), GDN_OK);
    ring2_call_end();
    for (int i = 0; i < N_GRADIENTS; i++) {
        const gdn_tensor *t = ring2_gradient(a, i);
        if (!t->data) continue;
        ring2_compare(ring2_gradient_names[i], t, m.want[i], m.limit[i],
                      noise_of(&m, i, ring2_count(t), ring2_gradients_on_tiles(a)), NULL);
    }
}
