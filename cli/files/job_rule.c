/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the rule: op prefill and op decode. */
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
                                       "read_slots",
                                       "write_slots",
                                       "has_initial_state",
                                       "num_accepted_tokens",
                                       "token_count",
                                       "write",
                                       "expected.output",
                                       "expected.final_state",
                                       "expected.new_state",
                                       NULL };
static const char *const metadata[] = {
    "scale",      "gate",     "gate_lower_bound", "beta",  "head_map",   "use_qk_l2norm",
    "norm",       "norm_eps", "state_layout",     "exact", "pad_policy", "sink_slot",
    "first_slot", "write",    "updates",          NULL
};

static const char *const gates[] = { "log", "linear", "raw", NULL };
static const char *const betas[] = { "sigmoid", "twice_sigmoid", "given", NULL };
static const char *const maps[] = { "grouped", "interleaved", NULL };
static const char *const layouts[] = { "k_last", "k_first", NULL };
static const char *const norms[] = { "l2", "l2_add", "l2_max", "none", NULL };
static const char *const yes_no[] = { "0", "1", NULL };

/* Reads the gate. The tensor's name says its kind; `g` is alpha unless the metadata says
 * otherwise. */
static int read_gate(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    gdn_tensor g_log = job_tensor(job, "g_log");
    if (job_either(job, "g", "a", &a->g)) return CLI_BAD;
    a->gate = st_find(&job->file, "a") ? GDN_GATE_RAW : GDN_GATE_LINEAR;
    if (g_log.data) {
        if (a->g.data)
            return cli_bad("%s: tensor 'g_log': wanted one gate, but there is another",
                           job->file.path);
        a->g = g_log;
        a->gate = GDN_GATE_LOG;
    }
    if (!a->g.data) a->gate = GDN_GATE_LOG; /* no gate at all */
    const int32_t by_name = a->gate;
    if (job_choice(job, "gate", gates, &a->gate)) return CLI_BAD;
    if (g_log.data && a->gate != by_name)
        return cli_bad("%s: metadata 'gate': '%s', but the tensor is g_log", job->file.path,
                       gates[a->gate]);
    a->A_log = job_tensor(job, "A_log");
    a->dt_bias = job_tensor(job, "dt_bias");
    return job_number(job, "gate_lower_bound", &a->gate_lower_bound);
}

static int read_beta(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    if (job_either(job, "beta", "b", &a->beta)) return CLI_BAD;
    a->beta_kind = st_find(&job->file, "b") ? GDN_BETA_SIGMOID : GDN_BETA_GIVEN;
    return job_formula(job, "beta", betas, &a->beta_kind);
}

/* Reads the write gate, and how many updates a token has. */
static int read_updates(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    float n = 1;
    a->write_gate = job_tensor(job, "write");
    if (job_number(job, "updates", &n)) return CLI_BAD;
    a->updates = (int32_t)n;
    if ((float)a->updates != n || n < 1)
        return cli_bad("%s: metadata 'updates': %g, wanted a whole number from 1 on",
                       job->file.path, (double)n);
    return CLI_OK;
}

/* Reads the scale from the metadata, or from a tensor of one element, as traces have it. */
static int read_scale(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    const gdn_tensor tensor = job_tensor(job, "scale");
    if (job_number(job, "scale", &a->scale)) return CLI_BAD;
    if (tensor.data) {
        if (st_metadata(&job->file, "scale") || tensor.dtype != GDN_F32 || tensor.ndim > 1 ||
            (tensor.ndim == 1 && tensor.size[0] != 1))
            return cli_bad("%s: tensor 'scale': wanted one F32 number, and none in the metadata",
                           job->file.path);
        a->scale = *(const float *)tensor.data;
    }
    if ((tensor.data || st_metadata(&job->file, "scale")) && a->scale == 0)
        return cli_bad("%s: scale: 0, wanted another number (absent: 1 / sqrt(K))", job->file.path);
    return CLI_OK;
}

/* Reads the norm. FlashInfer's decode normalises unless the metadata says otherwise; nothing else
 * does. */
static int read_norm(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    int32_t use_l2 = job->kind == &job_decode && st_find(&job->file, "a");
    if (st_metadata(&job->file, "norm") && st_metadata(&job->file, "use_qk_l2norm"))
        return cli_bad("%s: metadata 'norm' and 'use_qk_l2norm': wanted one of them",
                       job->file.path);
    if (job_choice(job, "use_qk_l2norm", yes_no, &use_l2)) return CLI_BAD;
    a->norm = use_l2 ? GDN_NORM_L2 : GDN_NORM_NONE;
    if (job_formula(job, "norm", norms, &a->norm)) return CLI_BAD;
    return job_number(job, "norm_eps", &a->norm_eps);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Checks ranks here, before the call: the outputs' sizes depend on them. */
static int check_ranks(const struct job *job, const gdn_tensor *q, const gdn_tensor *k,
                       const gdn_tensor *v)
{
    const struct {
        const char *name;
        const gdn_tensor *t;
    } all[] = { { "q", q }, { "k", k }, { "v", v } };
    for (int i = 0; i < 3; i++) {
        const gdn_tensor *t = all[i].t;
        if (job_need(job, t, all[i].name)) return CLI_BAD;
        if (t->ndim != q->ndim || (t->ndim != 3 && t->ndim != 4))
            return cli_bad("%s: tensor '%s': %d dimensions, wanted %s", job->file.path, all[i].name,
                           (int)t->ndim,
                           i ? "those of q" : "3 (packed [N,H,D]) or 4 (padded [B,T,H,D])");
        if (!t->size[t->ndim - 1] || !t->size[t->ndim - 2])
            return cli_bad("%s: tensor '%s': no heads, or heads of size 0", job->file.path,
                           all[i].name);
    }
    return CLI_OK;
}

/* Makes the state after the call, and the output. */
static int make_outputs(struct job *job)
{
    gdn_rule_args *a = &job->args.rule;
    const gdn_tensor *q = &a->q, *v = &a->v, *cu = &job->batch.cu_seqlens;
    const int lead = q->ndim - 2;
    const bool kv = a->state_layout == GDN_STATE_KV;
    const int64_t H = larger(q->size[lead], v->size[lead]);
    const int64_t K = q->size[lead + 1], V = v->size[lead + 1];
    int64_t out[4], B = 1;
    gdn_tensor state;
    memcpy(out, q->size, sizeof out);
    out[lead] = H, out[lead + 1] = V;
    if (lead == 2 || job->kind == &job_decode) B = q->size[0];
    if (cu->data && cu->ndim == 1) B = larger(cu->size[0] - 1, 0);
    const int64_t pool[4] = { B, H, kv ? K : V, kv ? V : K };
    if (job_either(job, "initial_state", "state", &state) ||
        job_new_output(job, "output", v->dtype, v->ndim, out, &a->out) ||
        job_pool(job, job->kind == &job_decode ? "new_state" : "final_state",
                 job->kind == &job_decode ? "final_state" : "new_state", &state, 4, pool))
        return CLI_BAD;
    if (state.data)
        a->state = job->pool;
    else
        a->state_out = job->pool;
    job->precision = compare_precision(q->dtype, job->pool.dtype);
    return CLI_OK;
}

static int prepare(struct job *job)
{
    int32_t exact = 0;
    gdn_rule_args *a = &job->args.rule;
    *a = gdn_rule_args_init();
    a->q = job_tensor(job, "q");
    a->k = job_tensor(job, "k");
    a->v = job_tensor(job, "v");
    a->batch = &job->batch;
    if (check_ranks(job, &a->q, &a->k, &a->v) || job_batch(job) || read_gate(job) ||
        read_beta(job) || read_updates(job) || read_scale(job) || read_norm(job) ||
        job_choice(job, "head_map", maps, &a->head_map) ||
        job_choice(job, "state_layout", layouts, &a->state_layout) ||
        job_choice(job, "exact", yes_no, &exact))
        return CLI_BAD;
    a->flags = exact ? GDN_EXACT : 0;
    return make_outputs(job);
}

static int compute(struct job *job, gdn_ctx *ctx)
{
    const gdn_tensor *q = &job->args.rule.q;
    job->n_phases = 1;
    return job_call(job, ctx, &job->phases[0], job->kind->name,
                    q->ndim == 4 ? q->size[0] * q->size[1] : q->size[0]);
}

const struct job_kind job_prefill = {
    "prefill", GDN_OP_PREFILL, tensors, metadata, prepare, compute
};
const struct job_kind job_decode = { "decode", GDN_OP_DECODE, tensors, metadata, prepare, compute };
