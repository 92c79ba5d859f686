/* SPDX-License-Identifier: Apache-2.0 */
/* The rule's gradients; those of the first tokens of sequence 0 are judged, of some heads. */
#include <math.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"

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
    a->state = r->state, a->state_layout = r->state_layout;
    a->dout = case_tensor(&c->rule.memory, A, 3, r->out.size, -1, 1);
    a->dstate_out = case_tensor(&c->rule.memory, GDN_F32, 4, r->state.size, -0.1, 0.1);
    a->dq = like(c, &r->q, A), a->dk = like(c, &r->k, A), a->dv = like(c, &r->v, A);
    a->dg = like(c, &r->g, GDN_F32), a->dbeta = like(c, &r->beta, GDN_F32);
    a->dstate = like(c, &r->state, GDN_F32);
    c->counts = memory_tensor(&c->rule.memory, GDN_I64, 1, &B);
    if (a->dout.data && a->dstate_out.data && a->dq.data && a->dk.data && a->dv.data &&
        a->dg.data && a->dbeta.data && a->dstate.data && c->counts.data)
        return CLI_OK;
    return cli_bad("no memory for the gradients of %lld tokens", (long long)c->rule.tokens.N);
}

/* ---- The judge --------------------------------------------------------------------------- */

/* Loads head h of n tokens of sequence 0. */
static void load(double *to, const gdn_tensor *t, int64_t n, int64_t h)
{
    const int64_t D = t->ndim == 3 ? t->size[2] : 1;
    for (int64_t i = 0; i < n * D; i++)
        to[i] = oracle_load(t->data, t->dtype, i / D * t->stride[0] + h * D + i % D);
}

/* The findings of a check so far: the worst of all. */
struct verdict {
    struct comparison worst;
    double *got;   /* of one head, scratch */
    int32_t dtype; /* of activations */
};

/* Judges one head of a gradient beside what is wanted. */
static void judge(struct verdict *v, const gdn_tensor *t, int64_t n, int64_t h, const double *want)
{
    const bool of_gate = t->ndim == 2;
    load(v->got, t, n, h);
    const struct comparison c =
        compare_gradient_doubles(v->got, want, of_gate ? n : n * t->size[2], v->dtype, of_gate);
    if (v->worst.ok &&
        (!c.ok || c.max_error * v->worst.max_limit >= v->worst.max_error * c.max_limit))
        v->worst = c;
}

/* Follows state head h alone: inputs, then its gradients. memory: see doubles_of(). */
static void follow(const struct gradient_case *c, struct oracle_backward *r, double *x, int64_t h)
{
    const gdn_prefill_backward_args *a = &c->args;
    const int64_t n = r->T, K = r->K, V = r->V, H = a->dout.size[1];
    const bool kv = a->state_layout == GDN_STATE_KV;
    double *q = x, *k = q + n * K, *v = k + n * K, *dout = v + n * V, *alpha = dout + n * V;
    double *beta = alpha + n, *state = beta + n, *ends = state + K * V, *at = ends + K * V;
    load(q, &a->q, n, h * a->q.size[1] / H), load(k, &a->k, n, h * a->k.size[1] / H);
    load(v, &a->v, n, h * a->v.size[1] / H), load(dout, &a->dout, n, h);
    load(alpha, &a->g, n, h), load(beta, &a->beta, n, h);
    for (int64_t t = 0; t < n; t++) alpha[t] = exp(alpha[t]);
    rule_case_state(&c->rule, 0, h, state);
    for (int64_t i = 0; i < K * V; i++)
        ends[i] =
            oracle_load(a->dstate_out.data, GDN_F32, h * K * V + (kv ? i % K * V + i / K : i));
    r->q = q, r->k = k, r->v = v, r->dout = dout, r->alpha = alpha, r->beta = beta;
    r->state = state, r->dstate_out = ends;
    r->dq = at, r->dk = at += n * K, r->dv = at += n * K, r->dgate = at += n * V;
    r->dbeta = at += n, r->dstate = at + n;
    oracle_rule_backward(r);
}

static size_t doubles_of(int64_t n, int64_t K, int64_t V)
{
    return (size_t)(n * (4 * K + 3 * V + 4) + 3 * K * V);
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
    const int64_t K = c->rule.dims.K, V = c->rule.dims.V, H = a->dout.size[1];
    const int64_t each = H / a->k.size[1], rows = n * (K > V ? K : V);
    const bool own_q = a->q.size[1] == H, own_v = a->v.size[1] == H;
    struct oracle_backward r = { .T = n, .K = (int)K, .V = (int)V, .scale = 1 / sqrt((double)K) };
    double *dk = x + doubles_of(n, K, V), *dq = dk + rows, *dv = dq + rows;
    found->got = dv + rows;
    memset(dk, 0, (size_t)(3 * rows) * sizeof *dk);
    for (int64_t h = key * each; h < (key + 1) * each; h++) {
        follow(c, &r, x, h);
        add(dk, r.dk, n * K), add(dq, r.dq, n * K), add(dv, r.dv, n * V);
        judge(found, &a->dg, n, h, r.dgate);
        judge(found, &a->dbeta, n, h, r.dbeta);
        if (own_q) judge(found, &a->dq, n, h, r.dq);
        if (own_v) judge(found, &a->dv, n, h, r.dv);
    }
    judge(found, &a->dk, n, key, dk);
    if (!own_q) judge(found, &a->dq, n, key, dq);
    if (!own_v) judge(found, &a->dv, n, key, dv);
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
    const size_t n = doubles_of(count[0], K, V) + (size_t)(count[0] * 4 * (K > V ? K : V));
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
           case_bytes(&a->dk) + case_bytes(&a->dv) + case_bytes(&a->dg) + case_bytes(&a->dbeta);
}
