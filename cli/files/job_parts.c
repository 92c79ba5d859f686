/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the layer's other parts: op conv1d, gates, l2norm and rmsnorm_gated. */
#include "cli.h"
#include "files/job.h"

static int64_t elements(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

/* Computes one call, for which each row of the last dimension counts as a token. */
static int compute(struct job *job, gdn_ctx *ctx)
{
    const gdn_tensor *t = &job->outputs[0].got;
    const int64_t last = t->ndim ? t->size[t->ndim - 1] : 1;
    job->n_phases = 1;
    return job_call(job, ctx, &job->phases[0], job->kind->name, last ? elements(t) / last : 0);
}

/* ---- conv1d ------------------------------------------------------------------------------ */

static const char *const conv1d_tensors[] = { "x",
                                              "weight",
                                              "bias",
                                              "state",
                                              "initial_state",
                                              "cu_seqlens",
                                              "read_slots",
                                              "write_slots",
                                              "has_initial_state",
                                              "num_accepted_tokens",
                                              "token_count",
                                              "expected.output",
                                              "expected.final_state",
                                              "expected.new_state",
                                              NULL };
static const char *const conv1d_metadata[] = { "activation", "pad_policy", "sink_slot",
                                               "first_slot", "write",      NULL };

static int prepare_conv1d(struct job *job)
{
    gdn_conv1d_args *a = &job->args.conv1d;
    const gdn_tensor cu = job_tensor(job, "cu_seqlens");
    gdn_tensor state;

    static const char *const activations[] = { "none", "silu", NULL };
    int32_t silu = 0;

    *a = gdn_conv1d_args_init();
    a->x = job_tensor(job, "x");
    a->weight = job_tensor(job, "weight");
    a->bias = job_tensor(job, "bias");
    a->batch = &job->batch;
    if (job_need(job, &a->x, "x") || job_need(job, &a->weight, "weight") || job_batch(job) ||
        job_choice(job, "activation", activations, &silu) ||
        job_either(job, "initial_state", "state", &state))
        return CLI_BAD;
    a->activation = silu ? GDN_ACT_SILU : GDN_ACT_NONE;
    if (a->x.ndim != 2 && a->x.ndim != 3)
        return cli_bad("%s: tensor 'x': %d dimensions, wanted 2 (packed [N,D]) or 3 (padded "
                       "[B,T,D])",
                       job->file.path, (int)a->x.ndim);
    if (a->weight.ndim < 2 || a->weight.size[a->weight.ndim - 1] < 2)
        return cli_bad("%s: tensor 'weight': wanted [D,W] or [D,1,W] with W of 2 or more",
                       job->file.path);
    int64_t B = a->x.ndim == 3 ? a->x.size[0] : 1;
    const int64_t taps = a->weight.size[a->weight.ndim - 1];
    if (cu.data && cu.ndim == 1 && cu.size[0]) B = cu.size[0] - 1;
    const int64_t pool[3] = { B, a->x.size[a->x.ndim - 1], taps - 1 };
    if (job_new_output(job, "output", a->x.dtype, a->x.ndim, a->x.size, &a->out) ||
        job_pool(job, "final_state", "new_state", &state, 3, pool))
        return CLI_BAD;
    if (state.data)
        a->state = job->pool;
    else
        a->state_out = job->pool;
    job->precision = compare_precision(a->x.dtype, job->pool.dtype);
    return CLI_OK;
}

const struct job_kind job_conv1d = { "conv1d",        GDN_OP_CONV1D,  conv1d_tensors,
                                     conv1d_metadata, prepare_conv1d, compute };

/* ---- gates ------------------------------------------------------------------------------- */

static const char *const gates_tensors[] = { "a",       "b",          "A_log",
                                             "dt_bias", "expected.g", "expected.beta",
                                             NULL };
static const char *const gates_metadata[] = { "gate", "gate_lower_bound", "beta", NULL };

static int prepare_gates(struct job *job)
{
    static const char *const kinds[] = { "log", "linear", NULL };
    static const char *const betas[] = { "sigmoid", "twice_sigmoid", NULL };

    gdn_gates_args *a = &job->args.gates;
    *a = gdn_gates_args_init();
    a->a = job_tensor(job, "a");
    a->b = job_tensor(job, "b");
    a->A_log = job_tensor(job, "A_log");
    a->dt_bias = job_tensor(job, "dt_bias");
    if (job_choice(job, "gate", kinds, &a->gate) ||
        job_formula(job, "beta", betas, &a->beta_kind) ||
        job_number(job, "gate_lower_bound", &a->gate_lower_bound))
        return CLI_BAD;
    if (!a->a.data && !a->b.data) return job_need(job, &a->a, "a");
    if (a->a.data && job_new_output(job, "g", GDN_F32, a->a.ndim, a->a.size, &a->g)) return CLI_BAD;
    if (a->b.data && job_new_output(job, "beta", GDN_F32, a->b.ndim, a->b.size, &a->beta))
        return CLI_BAD;
    return CLI_OK; /* outputs are f32, and so are the limits, whatever the inputs were */
}

const struct job_kind job_gates = { "gates",        GDN_OP_GATES,  gates_tensors,
                                    gates_metadata, prepare_gates, compute };

/* ---- norms ------------------------------------------------------------------------------- */

static const char *const l2norm_tensors[] = { "x", "expected.output", NULL };
static const char *const l2norm_metadata[] = { "norm", "norm_eps", NULL };

static int prepare_l2norm(struct job *job)
{
    static const char *const norms[] = { "l2", "l2_add", "l2_max", NULL };

    gdn_l2norm_args *a = &job->args.l2norm;
    *a = gdn_l2norm_args_init();
    a->x = job_tensor(job, "x");
    job->precision = a->x.dtype;
    if (job_need(job, &a->x, "x") || job_formula(job, "norm", norms, &a->norm) ||
        job_number(job, "norm_eps", &a->eps))
        return CLI_BAD;
    return job_new_output(job, "output", a->x.dtype, a->x.ndim, a->x.size, &a->out);
}

const struct job_kind job_l2norm = { "l2norm",        GDN_OP_L2NORM,  l2norm_tensors,
                                     l2norm_metadata, prepare_l2norm, compute };

static const char *const rmsnorm_tensors[] = { "x", "z", "weight", "expected.output", NULL };
static const char *const rmsnorm_metadata[] = { "activation", "norm_eps", NULL };

static int prepare_rmsnorm_gated(struct job *job)
{
    static const char *const activations[] = { "silu", "sigmoid", NULL };

    gdn_rmsnorm_gated_args *a = &job->args.rmsnorm_gated;
    *a = gdn_rmsnorm_gated_args_init();
    a->x = job_tensor(job, "x");
    a->z = job_tensor(job, "z");
    a->weight = job_tensor(job, "weight");
    job->precision = a->x.dtype;
    if (job_need(job, &a->x, "x") || job_formula(job, "activation", activations, &a->activation) ||
        job_number(job, "norm_eps", &a->eps))
        return CLI_BAD;
    return job_new_output(job, "output", a->x.dtype, a->x.ndim, a->x.size, &a->out);
}

const struct job_kind job_rmsnorm_gated = { "rmsnorm_gated",       GDN_OP_RMSNORM_GATED,
                                            rmsnorm_tensors,       rmsnorm_metadata,
                                            prepare_rmsnorm_gated, compute };
