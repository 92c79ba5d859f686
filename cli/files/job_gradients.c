/* SPDX-License-Identifier: Apache-2.0 */
/* Files of op prefill_backward: a prefill, then the gradients of its inputs. */
#include "cli.h"
#include "files/job.h"

static const char *const tensors[] = {
    "q", "k", "v", "g", "g_log", "a", "beta", "b", "A_log", "dt_bias", "scale", "state",
    "initial_state", "cu_seqlens", "token_count", "grad_output", "grad_final_state",
    "expected.output", "expected.final_state", "expected.new_state", "expected.dq", "expected.dk",
    "expected.dv", "expected.dg", "expected.da", "expected.dbeta", "expected.db",
    "expected.dA_log", "expected.ddt_bias", "expected.dinitial_state", NULL
};
static const char *const metadata[] = {
    "scale", "gate", "gate_lower_bound", "beta", "head_map", "use_qk_l2norm", "norm", "norm_eps",
    "state_layout", NULL
};

/* Those of gates have the sizes of one number per head and token. */
static int add(struct job *job, const char *name, int32_t dtype, const gdn_tensor *of,
               gdn_tensor *made)
{
    const gdn_tensor *q = &job->args.rule.q;
    return job_gradient(job, name, dtype, of, of->ndim == q->ndim - 1, q->dtype, made);
}

static int prepare(struct job *job)
{
    if (job_prefill.prepare(job)) return CLI_BAD;
    const gdn_rule_args       *r = &job->args.rule;
    gdn_prefill_backward_args *a = &job->gradients.rule;
    const bool                 raw = r->gate == GDN_GATE_RAW;
    const int32_t              A = r->q.dtype;
    *a = gdn_prefill_backward_args_init();
    a->q = r->q, a->k = r->k, a->v = r->v, a->g = r->g, a->beta = r->beta, a->A_log = r->A_log;
    a->dt_bias = r->dt_bias, a->batch = r->batch, a->gate = r->gate, a->beta_kind = r->beta_kind;
    a->head_map = r->head_map, a->state_layout = r->state_layout, a->norm = r->norm;
    a->norm_eps = r->norm_eps, a->scale = r->scale, a->gate_lower_bound = r->gate_lower_bound;
    a->dout       = job_tensor(job, "grad_output");
    a->dstate_out = job_tensor(job, "grad_final_state");
    if (job_need(job, &a->dout, "grad_output") ||
        job_either(job, "initial_state", "state", &a->state))
        return CLI_BAD;
    const int32_t given = a->beta_kind == GDN_BETA_GIVEN;
    return add(job, "dq", A, &a->q, &a->dq) || add(job, "dk", A, &a->k, &a->dk) ||
           add(job, "dv", A, &a->v, &a->dv) ||
           add(job, raw ? "da" : "dg", GDN_F32, &a->g, &a->dg) ||
           add(job, given ? "dbeta" : "db", GDN_F32, &a->beta, &a->dbeta) ||
           add(job, "dA_log", GDN_F32, &a->A_log, &a->dA_log) ||
           add(job, "ddt_bias", GDN_F32, &a->dt_bias, &a->ddt_bias) ||
           add(job, "dinitial_state", GDN_F32, &a->state, &a->dstate);
}

static int compute(struct job *job, gdn_ctx *ctx)
{
    const gdn_prefill_backward_args *a = &job->gradients.rule;
    const int64_t n = a->q.ndim == 4 ? a->q.size[0] * a->q.size[1] : a->q.size[0];
    job->n_phases   = 2;
    return job_call_op(job, ctx, GDN_OP_PREFILL, &job->args, &job->phases[0], "prefill", n) ||
           job_call_op(job, ctx, job->kind->op, a, &job->phases[1], "backward", n);
}

const struct job_kind job_prefill_backward = { "prefill_backward", GDN_OP_PREFILL_BACKWARD,
                                               tensors, metadata, prepare, compute };
