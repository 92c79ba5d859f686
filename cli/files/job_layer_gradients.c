/* SPDX-License-Identifier: Apache-2.0 */
/* Files of op layer_backward: a layer that starts from zero, then the gradients of its parameters
 * and of hidden_states. */
#include "cli.h"
#include "files/job.h"
#include "files/layer_weights.h"

#define NAME(name, field) "layer." name,
#define EXPECTED(name, field) "expected.d" name,
#define PART(name) "layer." name,
#define EXPECTED_PART(name) "expected.d" name,
static const char *const tensors[] = { "hidden_states", "grad_output",
                                       LAYER_WEIGHTS(NAME) LAYER_WEIGHTS(EXPECTED) LAYER_CONVS(PART)
                                           LAYER_CONVS(EXPECTED_PART) "expected.output",
                                       "expected.dhidden_states", NULL };
static const char *const metadata[] = { "kind", "config", "gate_lower_bound", NULL };

#define FIELD(name, field)                                      \
    { "layer." name, "d" name, offsetof(gdn_block_args, field), \
      offsetof(gdn_block_backward_args, field), offsetof(gdn_block_backward_args, d##field) },
static const struct {
    const char *name, *gradient;
    size_t of_layer, to, to_gradient;
} weights[] = { LAYER_WEIGHTS(FIELD) };

static gdn_tensor *field(void *args, size_t at) { return (gdn_tensor *)((char *)args + at); }

static void take_inputs(gdn_block_backward_args *a, const gdn_block_args *f)
{
    *a = gdn_block_backward_args_init();
    a->hidden = f->hidden, a->rms_eps = f->rms_eps, a->activation = f->activation;
    a->beta_kind = f->beta_kind, a->gate_lower_bound = f->gate_lower_bound;
    a->n_key_heads = f->n_key_heads, a->n_value_heads = f->n_value_heads;
    a->key_head_dim = f->key_head_dim, a->value_head_dim = f->value_head_dim;
}

/* Takes a weight, and makes its gradient, which the file has in the shape of its weight. */
static int add_weight(struct job *job, size_t i)
{
    const gdn_tensor own = job_tensor(job, weights[i].name);
    gdn_tensor *weight = field(&job->gradients.block, weights[i].to);
    gdn_tensor made = { 0 }, *gradient = field(&job->gradients.block, weights[i].to_gradient);
    if (!own.data) return CLI_OK;
    *weight = *field(&job->args.block, weights[i].of_layer);
    if (job_gradient(job, weights[i].gradient, GDN_F32, &own, false, job->args.block.hidden.dtype,
                     &made))
        return CLI_BAD;
    *gradient = *weight;
    gradient->data = made.data, gradient->dtype = GDN_F32;
    return CLI_OK;
}

#define OF_PART(name) { "layer." name, "d" name },
static const struct {
    const char *name, *gradient;
} convs[] = { LAYER_CONVS(OF_PART) };

/* Adds the gradients of three convolutions that became one call. They lie side by side in the
 * call's gradient. */
static int add_convs(struct job *job)
{
    gdn_block_backward_args *a = &job->gradients.block;
    const int32_t A = job->args.block.hidden.dtype;
    gdn_tensor part = job_tensor(job, convs[0].name);
    if (!part.data) return CLI_OK;
    a->conv_weight = job->args.block.conv_weight;
    a->dconv_weight = memory_tensor(&job->memory, GDN_F32, 3, a->conv_weight.size);
    if (!a->dconv_weight.data)
        return cli_bad("%s: no memory for the dconv1d.weight", job->file.path);
    float *next = a->dconv_weight.data;
    for (int i = 0; i < 3; i++) {
        part = job_tensor(job, convs[i].name);
        const int64_t n = part.size[0] * part.size[2];
        part.data = next, part.dtype = GDN_F32;
        if (job_gradient_at(job, convs[i].gradient, part, false, A)) return CLI_BAD;
        next += n;
    }
    return CLI_OK;
}

static int prepare(struct job *job)
{
    if (job_layer.prepare(job)) return CLI_BAD;
    gdn_block_backward_args *a = &job->gradients.block;
    const int32_t A = job->args.block.hidden.dtype;
    take_inputs(a, &job->args.block);
    a->dout = job_tensor(job, "grad_output");
    if (job_need(job, &a->dout, "grad_output")) return CLI_BAD;
    int code = job_gradient(job, "dhidden_states", A, &a->hidden, false, A, &a->dhidden);
    for (size_t i = 0; i < sizeof weights / sizeof *weights && !code; i++)
        code = add_weight(job, i);
    return code ? code : add_convs(job);
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
