/* SPDX-License-Identifier: Apache-2.0 */
/* Files of op layer_backward: a layer that starts from zero, then the gradients of its parameters
 * and of hidden_states. */
#include "cli.h"
#include "files/job.h"

static const char *const tensors[] = { "hidden_states",
                                       "grad_output",
                                       "layer.in_proj_qkvz.weight",
                                       "layer.in_proj_ba.weight",
                                       "layer.in_proj_qkv.weight",
                                       "layer.in_proj_z.weight",
                                       "layer.in_proj_b.weight",
                                       "layer.in_proj_a.weight",
                                       "layer.conv1d.weight",
                                       "layer.conv1d.bias",
                                       "layer.A_log",
                                       "layer.dt_bias",
                                       "layer.norm.weight",
                                       "layer.out_proj.weight",
                                       "expected.output",
                                       "expected.dhidden_states",
                                       "expected.din_proj_qkvz.weight",
                                       "expected.din_proj_ba.weight",
                                       "expected.din_proj_qkv.weight",
                                       "expected.din_proj_z.weight",
                                       "expected.din_proj_b.weight",
                                       "expected.din_proj_a.weight",
                                       "expected.dconv1d.weight",
                                       "expected.dconv1d.bias",
                                       "expected.dA_log",
                                       "expected.ddt_bias",
                                       "expected.dnorm.weight",
                                       "expected.dout_proj.weight",
                                       NULL };
static const char *const metadata[] = { "kind", "config", NULL };

static void take_inputs(gdn_block_backward_args *a, const gdn_block_args *f)
{
    *a = gdn_block_backward_args_init();
    a->hidden = f->hidden, a->out_proj = f->out_proj, a->in_proj_qkvz = f->in_proj_qkvz;
    a->in_proj_ba = f->in_proj_ba, a->in_proj_qkv = f->in_proj_qkv, a->in_proj_z = f->in_proj_z;
    a->in_proj_b = f->in_proj_b, a->in_proj_a = f->in_proj_a, a->conv_weight = f->conv_weight;
    a->conv_bias = f->conv_bias, a->A_log = f->A_log, a->dt_bias = f->dt_bias;
    a->norm_weight = f->norm_weight, a->rms_eps = f->rms_eps, a->n_key_heads = f->n_key_heads;
    a->n_value_heads = f->n_value_heads, a->key_head_dim = f->key_head_dim;
    a->value_head_dim = f->value_head_dim;
}

static int prepare(struct job *job)
{
    if (job_layer.prepare(job)) return CLI_BAD;
    gdn_block_backward_args *a = &job->gradients.block;
    const int32_t A = job->args.block.hidden.dtype;
    take_inputs(a, &job->args.block);
    a->dout = job_tensor(job, "grad_output");
    if (job_need(job, &a->dout, "grad_output")) return CLI_BAD;
    const struct {
        const char *name;
        const gdn_tensor *of;
        gdn_tensor *made;
    } weights[] = {
        { "din_proj_qkvz.weight", &a->in_proj_qkvz, &a->din_proj_qkvz },
        { "din_proj_ba.weight", &a->in_proj_ba, &a->din_proj_ba },
        { "din_proj_qkv.weight", &a->in_proj_qkv, &a->din_proj_qkv },
        { "din_proj_z.weight", &a->in_proj_z, &a->din_proj_z },
        { "din_proj_b.weight", &a->in_proj_b, &a->din_proj_b },
        { "din_proj_a.weight", &a->in_proj_a, &a->din_proj_a },
        { "dconv1d.weight", &a->conv_weight, &a->dconv_weight },
        { "dconv1d.bias", &a->conv_bias, &a->dconv_bias },
        { "dA_log", &a->A_log, &a->dA_log },
        { "ddt_bias", &a->dt_bias, &a->ddt_bias },
        { "dnorm.weight", &a->norm_weight, &a->dnorm_weight },
        { "dout_proj.weight", &a->out_proj, &a->dout_proj },
    };
    int code = job_gradient(job, "dhidden_states", A, &a->hidden, false, A, &a->dhidden);
    for (size_t i = 0; i < sizeof weights / sizeof *weights && !code; i++)
        code =
            job_gradient(job, weights[i].name, GDN_F32, weights[i].of, false, A, weights[i].made);
    return code;
}

static int compute(struct job *job, gdn_ctx *ctx)
{
    const gdn_tensor *hidden = &job->args.block.hidden;
    if (job_layer.compute(job, ctx)) return CLI_BAD;
    job->n_phases = 2;
    return job_call_op(job, ctx, job->kind->op, &job->gradients.block, &job->phases[1], "backward",
                       hidden->size[0] * hidden->size[1]);
}

const struct job_kind job_layer_backward = { "layer_backward", GDN_OP_BLOCK_BACKWARD,
                                             tensors,          metadata,
                                             prepare,          compute };
