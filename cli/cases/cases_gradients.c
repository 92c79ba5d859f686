/* SPDX-License-Identifier: Apache-2.0 */
/* The rule's gradients. Of these, the first tokens of sequence 0 are judged, in some heads. */
#include <math.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"
#include "oracle_family.h"

enum { CHECKED_TOKENS = 192 };

static gdn_tensor like(struct gradient_case *c, const gdn_tensor *t, int32_t dtype)
{
    return memory_tensor(&c->rule.memory, dtype, t->ndim, t->size);
}

int gradient_case_make(struct gradient_case *c, const struct case_dims *dims,
                       const int64_t *lengths, int64_t B)
{
    memset(c, 0, sizeof *c);
    if (rule_case_make(&c->rule, dims, lengths, B)) return CLI_BAD;
    gdn_prefill_backward_args *a = &c->args;
    const gdn_rule_args *r = &c->rule.args;
    const int32_t A = dims->dtype;
    *a = gdn_prefill_backward_args_init();
    a->q = r->q, a->k = r->k, a->v = r->v, a->g = r->g, a->beta = r->beta, a->batch = r->batch;
    a->write_gate = r->write_gate, a->updates = r->updates;
    a->state = r->state, a->state_layout = r->state_layout;
    a->dout = case_tensor(&c->rule.memory, A, 3, r->out.size, -1, 1);
    a->dstate_out = case_tensor(&c->rule.memory, GDN_F32, 4, r->state.size, -0.1, 0.1);
    a->dq = like(c, &r->q, A), a->dk = like(c, &r->k, A), a->dv = like(c, &r->v, A);
    a->dg = like(c, &r->g, GDN_F32), a->dbeta = like(c, &r->beta, GDN_F32);
    a->dstate = like(c, &r->state, GDN_F32);
    if (r->write_gate.data) a->dwrite_gate = like(c, &r->write_gate, GDN_F32);
    c->counts = memory_tensor(&c->rule.memory, GDN_I64, 1, &B);
    if (a->dout.data && a->dstate_out.data && a->dq.data && a->dk.data && a->dv.data &&
        a->dg.data && a->dbeta.data && a->dstate.data && c->counts.data &&
        (!r->write_gate.data || a->dwrite_gate.data))
        return CLI_OK;
    return cli_bad("no memory for the gradients of %lld tokens", (long long)c->rule.tokens.N);
}

/* ---- The judge --------------------------------------------------------------------------- */

/* The findings of a check so far: the worst of all. */
struct verdict {
    struct comparison worst;
    double *got;   /* of one head, scratch */
    int32_t dtype; /* of activations */
};

/* Judges one head of a gradient beside what is wanted. */
static void judge(struct verdict *v, const gdn_tensor *t, int64_t rows, int64_t h,
                  const double *want, bool of_gate)
{
    case_load_head(v->got, t, 0, rows, h);
    const struct comparison c = compare_gradient_doubles(
        v->got, want, t->ndim == 2 ? rows : rows * t->size[2], v->dtype, of_gate);
    if (v->worst.ok &&
        (!c.ok || c.max_error * v->worst.max_limit >= v->worst.max_error * c.max_limit))
        v->worst = c;
}

/* The gradients of a state head, in its part of x: see doubles_of(). */
struct head {
    double *dq, *dk, *dv, *dg, *dbeta, *dwrite; /* dwrite: of a write gate */
};

/* Loads dout of n tokens, and the gradient of the final state. */
static void load_end(const struct gradient_case *c, int64_t n, int64_t h, double *dout,
                     double *ends)
{
    const gdn_prefill_backward_args *a = &c->args;
    const int64_t K = c->rule.dims.K, V = c->rule.dims.V;
    const bool kv = a->state_layout == GDN_STATE_KV;
    case_load_head(dout, &a->dout, 0, n, h);
    for (int64_t i = 0; i < K * V; i++)
        ends[i] =
            oracle_load(a->dstate_out.data, GDN_F32, h * K * V + (kv ? i % K * V + i / K : i));
}

/* Judges one state head: loads its inputs, then computes its gradients. */
static void follow(const struct gradient_case *c, double *x, int64_t h, int64_t n,
                   struct head *found)
{
    const gdn_prefill_backward_args *a = &c->args;
    const int64_t K = c->rule.dims.K, V = c->rule.dims.V, H = a->dout.size[1];
    double *q = x, *k = q + n * K, *v = k + n * K, *dout = v + n * V, *alpha = dout + n * V;
    double *beta = alpha + n, *state = beta + n, *ends = state + K * V, *at = ends + K * V;
    case_load_head(q, &a->q, 0, n, h * a->q.size[1] / H);
    case_load_head(k, &a->k, 0, n, h * a->k.size[1] / H);
    case_load_head(v, &a->v, 0, n, h * a->v.size[1] / H);
    case_load_head(alpha, &a->g, 0, n, h);
    case_load_head(beta, &a->beta, 0, n, h);
    for (int64_t t = 0; t < n; t++) alpha[t] = exp(alpha[t]);
    rule_case_state(&c->rule, 0, h, state);
    load_end(c, n, h, dout, ends);
    struct oracle_backward r = {
        .T = n,
        .K = (int)K,
        .V = (int)V,
        .scale = 1 / sqrt((double)K),
    };
    r.q = q, r.k = k, r.v = v, r.dout = dout, r.alpha = alpha, r.beta = beta;
    r.state = state, r.dstate_out = ends;
    r.dq = at, r.dk = at += n * K, r.dv = at += n * K, r.dgate = at += n * V;
    r.dbeta = at += n, r.dstate = at + n;
    oracle_rule_backward(&r);
    *found = (struct head){ r.dq, r.dk, r.dv, r.dgate, r.dbeta, NULL };
}

/* Sums rows of D to one number each. */
static void sum_rows(double *to, const double *x, int64_t rows, int64_t D)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < D; d++) to[i] += x[i * D + d];
}

/* The same for a rule of the family. A gate of a head has the sum over its channels. */
static void follow_family(const struct gradient_case *c, double *x, int64_t h, int64_t n,
                          struct head *found)
{
    const gdn_prefill_backward_args *a = &c->args;
    const int64_t K = c->rule.dims.K, V = c->rule.dims.V;
    const int64_t rows = n * case_updates(&c->rule.dims);
    struct oracle_family r;
    double *state = family_case_inputs(&c->rule, h, n, x, &r);
    r.state = state;
    double *ends = state + K * V, *dout = ends + K * V, *at = dout + n * V;
    rule_case_state(&c->rule, 0, h, state);
    load_end(c, n, h, dout, ends);
    struct oracle_family_backward b = { .of = &r, .dout = dout, .dstate_out = ends };
    b.dq = at, b.dg = at += n * K, b.dk = at += n * K, b.db = at += rows * K;
    b.dv = at += rows * K, b.dw = at += rows * V, b.dstate = at += rows * V;
    double *dg = at + K * V, *dbeta = dg + n;
    memset(b.dq, 0, (size_t)(dbeta + rows - b.dq) * sizeof *dg); /* all of these are sums */
    oracle_family_backward(&b);
    sum_rows(dg, b.dg, n, K);
    sum_rows(dbeta, b.db, rows, K);
    sum_rows(dbeta, b.dw, rows, V);
    *found = (struct head){
        b.dq, b.dk, b.dv, a->dg.ndim == 3 ? b.dg : dg, a->dbeta.ndim == 3 ? b.db : dbeta, b.dw
    };
}

/* Returns how many doubles both functions above need: as many as the second, which needs more. */
static size_t doubles_of(int64_t n, int64_t rows, int64_t K, int64_t V)
{
    return (size_t)(n * (4 * K + V + 1) + rows * (4 * (K + V) + 1) + 3 * K * V);
}

static void add(double *sum, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* Judges the state heads that read key head `key`. Each reads values or queries of its own. */
static void judge_key(const struct gradient_case *c, int64_t key, double *x, struct verdict *found,
                      int64_t n)
{
    const gdn_prefill_backward_args *a = &c->args;
    const struct case_dims *d = &c->rule.dims;
    const int64_t K = d->K, V = d->V, H = a->dout.size[1], rows = n * case_updates(d);
    const int64_t each = H / a->k.size[1], most = rows * (K > V ? K : V);
    const bool own_q = a->q.size[1] == H, own_v = a->v.size[1] == H;
    struct head r;
    double *dk = x + doubles_of(n, rows, K, V), *dq = dk + most, *dv = dq + most;
    found->got = dv + most;
    memset(dk, 0, (size_t)(3 * most) * sizeof *dk);
    for (int64_t h = key * each; h < (key + 1) * each; h++) {
        (d->rule == CASE_RULE_GDN ? follow : follow_family)(c, x, h, n, &r);
        add(dk, r.dk, rows * K), add(dq, r.dq, n * K), add(dv, r.dv, rows * V);
        judge(found, &a->dg, n, h, r.dg, true);
        judge(found, &a->dbeta, rows, h, r.dbeta, true);
        if (a->dwrite_gate.data) judge(found, &a->dwrite_gate, rows, h, r.dwrite, true);
        if (own_q) judge(found, &a->dq, n, h, r.dq, false);
        if (own_v) judge(found, &a->dv, rows, h, r.dv, false);
    }
    judge(found, &a->dk, rows, key, dk, false);
    if (!own_q) judge(found, &a->dq, n, key, dq, false);
    if (!own_v) judge(found, &a->dv, rows, key, dv, false);
}

/* Checks a call in which all tokens that count are followed by the judge. */
int gradient_case_check(struct gradient_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t *cu = c->rule.tokens.cu_seqlens, K = c->rule.dims.K, V = c->rule.dims.V;
    gdn_prefill_backward_args cut = c->args;
    gdn_batch batch = *c->args.batch;
    int64_t *count = c->counts.data;
    for (int64_t b = 0; b < c->rule.tokens.B; b++) {
        count[b] = cu[b + 1] - cu[b];
        if (count[b] > CHECKED_TOKENS) count[b] = CHECKED_TOKENS;
    }
    batch.token_count = c->counts;
    cut.batch = &batch;
    const gdn_status status = cli_call(ctx, GDN_OP_PREFILL_BACKWARD, &cut);
    if (status) return cli_failed(ctx, status);
    const int64_t rows = count[0] * case_updates(&c->rule.dims);
    const size_t n = doubles_of(count[0], rows, K, V) + (size_t)(rows * 4 * (K > V ? K : V));
    double *x = malloc((n + 1) * sizeof *x);
    if (!x) return cli_bad("no memory for the check");
    struct verdict v = { .worst = { .ok = true, .max_limit = 1 }, .dtype = c->args.q.dtype };
    judge_key(c, 0, x, &v, count[0]);
    if (c->args.k.size[1] > 1) judge_key(c, c->args.k.size[1] - 1, x, &v, count[0]);
    *found = v.worst;
    free(x);
    return CLI_OK;
}

int gradient_case_save(struct gradient_case *c, gdn_ctx *ctx, int64_t every)
{
    struct rule_case *r = &c->rule;
    const int64_t *of = r->args.state.size, count = every ? r->tokens.N / every : 0;
    if (!count) return CLI_OK;
    const gdn_tensor saved =
        memory_tensor(&r->memory, GDN_F32, 4, (int64_t[]){ count, of[1], of[2], of[3] });
    if (!saved.data) return cli_bad("no memory for %lld states", (long long)count);
    r->args.checkpoints = r->call.checkpoints = c->args.checkpoints = saved;
    r->batch.checkpoint_every = every;
    gdn_status status = cli_call(ctx, GDN_OP_PREFILL, &r->call);
    if (!status) status = cli_call(ctx, GDN_OP_PREFILL_BACKWARD, &c->args);
    return status ? cli_failed(ctx, status) : CLI_OK;
}

double gradient_case_flops(const struct gradient_case *c)
{
    return rule_case_flops(&c->rule, false) * 16 / 6;
}

double gradient_case_bytes(const struct gradient_case *c)
{
    const gdn_prefill_backward_args *a = &c->args;
    return rule_case_bytes(&c->rule) + case_bytes(&a->dstate_out) + case_bytes(&a->dq) +
           case_bytes(&a->dk) + case_bytes(&a->dv) + case_bytes(&a->dg) + case_bytes(&a->dbeta) +
           case_bytes(&a->dwrite_gate);
}
