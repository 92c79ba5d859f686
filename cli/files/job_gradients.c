/* SPDX-License-Identifier: Apache-2.0 */
/* Files of op prefill_backward: a prefill, then the gradients of its inputs. */
#include "cli.h"
#include "files/job.h"

static const char *const tensors[] = { "q",
                                       "k",
                                       "v",
                                       "g",
                                       "g_log",
                                       "a",
                                       "beta",
                                       "b",
                                       "A_log",
                                       "dt_bias",
                                       "scale",
                                       "state",
                                       "initial_state",
                                       "cu_seqlens",
                                       "token_count",
                                       "write",
                                       "grad_output",
                                       "grad_final_state",
                                       "expected.output",
                                       "expected.final_state",
                                       "expected.new_state",
                                       "expected.dq",
                                       "expected.dk",
                                       "expected.dv",
                                       "expected.dg",
                                       "expected.da",
                                       "expected.dbeta",
                                       "expected.db",
                                       "expected.dwrite",
                                       "expected.dA_log",
                                       "expected.ddt_bias",
                                       "expected.dinitial_state",
                                       NULL };
static const char *const metadata[] = { "scale",   "gate",     "gate_lower_bound",
                                        "beta",    "head_map", "use_qk_l2norm",
                                        "norm",    "norm_eps", "state_layout",
                                        "updates", NULL };

static int add(struct job *job, const char *name, int32_t dtype, const gdn_tensor *of,
               gdn_tensor *made)
{
    return job_gradient(job, name, dtype, of, false, job->args.rule.q.dtype, made);
}
static int add_gate(struct job *job, const char *name, const gdn_tensor *of, bool of_gate,
                    gdn_tensor *made)
{
    return job_gradient(job, name, GDN_F32, of, of_gate, job->args.rule.q.dtype, made);
}

static int prepare(struct job *job)
{
    if (job_prefill.prepare(job)) return CLI_BAD;
    const gdn_rule_args *r = &job->args.rule;
    gdn_prefill_backward_args *a = &job->gradients.rule;
    const bool raw = r->gate == GDN_GATE_RAW;
    const int32_t A = r->q.dtype;
    *a = gdn_prefill_backward_args_init();
    a->q = r->q, a->k = r->k, a->v = r->v, a->g = r->g, a->beta = r->beta, a->A_log = r->A_log;
    a->dt_bias = r->dt_bias, a->batch = r->batch, a->gate = r->gate, a->beta_kind = r->beta_kind;
    a->head_map = r->head_map, a->state_layout = r->state_layout, a->norm = r->norm;
    a->norm_eps = r->norm_eps, a->scale = r->scale, a->gate_lower_bound = r->gate_lower_bound;
    a->write_gate = r->write_gate, a->updates = r->updates;
    a->dout = job_tensor(job, "grad_output");
    a->dstate_out = job_tensor(job, "grad_final_state");
    if (job_need(job, &a->dout, "grad_output") ||
        job_either(job, "initial_state", "state", &a->state))
        return CLI_BAD;
    const bool given = a->beta_kind == GDN_BETA_GIVEN;
    const bool channels = a->g.data && a->g.ndim == a->q.ndim; /* sums over them are as gates */
    return add(job, "dq", A, &a->q, &a->dq) || add(job, "dk", A, &a->k, &a->dk) ||
           add(job, "dv", A, &a->v, &a->dv) ||
           add_gate(job, raw ? "da" : "dg", &a->g, true, &a->dg) ||
           add_gate(job, given ? "dbeta" : "db", &a->beta, true, &a->dbeta) ||
           add_gate(job, "dwrite", &a->write_gate, true, &a->dwrite_gate) ||
           add_gate(job, "dA_log", &a->A_log, channels, &a->dA_log) ||
           add_gate(job, "ddt_bias", &a->dt_bias, channels, &a->ddt_bias) ||
           add(job, "dinitial_state", GDN_F32, &a->state, &a->dstate);
}

static int compute(struct job *job, gdn_ctx *ctx)
{
    const gdn_prefill_backward_args *a = &job->gradients.rule;
    const int64_t n = a->q.ndim == 4 ? a->q.size[0] * a->q.size[1] : a->q.size[0];
    job->n_phases = 2;
    return job_call_op(job, ctx, GDN_OP_PREFILL, &job->args, &job->phases[0], "prefill", n) ||
           job_call_op(job, ctx, job->kind->op, a, &job->phases[1], "backward", n);
}

const struct job_kind job_prefill_backward = {
    "prefill_backward", GDN_OP_PREFILL_BACKWARD, tensors, metadata, prepare, compute
};
