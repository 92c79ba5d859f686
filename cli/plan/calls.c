/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/calls.h"

#include <stdio.h>
#include <string.h>

#include "gdn_train.h"
#include "internal/internal.h"
#include "plan/chip.h"
#include "program/command_line.h"

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Makes tensors: in memory, or, memory NULL, at addresses that no call reads. */
struct maker {
    struct memory *memory;
    uintptr_t n;
    bool failed;
};

static gdn_tensor make(struct maker *m, int32_t dtype, int32_t ndim, int64_t a, int64_t b,
                       int64_t c, int64_t d)
{
    const int64_t size[] = { a, b, c, d };
    if (!m->memory) return gdn_dense((void *)(++m->n << 42), dtype, ndim, a, b, c, d);
    const gdn_tensor t = memory_tensor(m->memory, dtype, ndim, size);
    m->failed = m->failed || !t.data;
    return t;
}

/* Makes a gate: one number for each head, or for each channel of its keys. */
static gdn_tensor make_gate(struct maker *m, const struct plan_model *model, int32_t dtype,
                            int64_t N, const struct plan_sizes *s)
{
    return make(m, dtype, model->per_channel ? 3 : 2, N, s->Hv, s->K, 0);
}

static gdn_tensor make_bias(struct maker *m, const struct plan_model *model,
                            const struct plan_sizes *s)
{
    return make(m, GDN_F32, model->per_channel ? 2 : 1, s->Hv, s->K, 0, 0);
}

static gdn_tensor make_state(struct maker *m, const struct plan_sizes *s)
{
    return make(m, s->state_dtype, 4, s->B, s->Hv, s->V, s->K);
}

static bool is_q8(int32_t dtype) { return dtype >= GDN_I8; }

/* ---- Calls ----------------------------------------------------------------------------------- */

struct call {
    gdn_op op;
    gdn_batch batch;
    union {
        gdn_rule_args rule;
        gdn_step_args step;
        gdn_conv1d_args conv;
        gdn_prefill_backward_args backward;
    } args;
};

static void fill_batch(struct maker *m, gdn_batch *b, const struct plan_sizes *s, bool packed)
{
    *b = gdn_batch_init();
    b->read_slots = make(m, GDN_I32, 1, s->B, 0, 0, 0);
    if (!packed) return;
    b->cu_seqlens = make(m, GDN_I32, 1, s->B + 1, 0, 0, 0);
    b->max_seqlen = (int32_t)s->T;
    if (m->memory && !m->failed) ((int32_t *)b->cu_seqlens.data)[1] = (int32_t)s->T; /* B is 1 */
}

int64_t plan_channels(const struct plan_model *m, const struct plan_sizes *s)
{
    return s->Hk * s->K * (1 + m->updates) + m->updates * s->Hv * s->V;
}

bool plan_has_step(const struct plan_model *m) { return !m->has_no_decay; }

static int32_t beta_kind(const struct plan_model *m)
{
    return m->twice_beta ? GDN_BETA_TWICE_SIGMOID : GDN_BETA_SIGMOID;
}

static void fill_conv(struct maker *m, struct call *c, const struct plan_model *model,
                      const struct plan_sizes *s)
{
    gdn_conv1d_args *a = &c->args.conv;
    const int64_t N = s->B * s->T, D = plan_channels(model, s);
    c->op = GDN_OP_CONV1D;
    *a = gdn_conv1d_args_init();
    a->x = make(m, s->dtype, 2, N, D, 0, 0);
    a->out = make(m, s->dtype, 2, N, D, 0, 0);
    a->weight = make(m, s->dtype, 2, D, s->W, 0, 0);
    a->state = make(m, s->dtype, 3, s->B, D, s->W - 1, 0);
    a->activation = GDN_ACT_SILU;
    a->batch = &c->batch;
    fill_batch(m, &c->batch, s, true);
}

/* Fills a call of packed sequences. */
static void fill_rule(struct maker *m, struct call *c, const struct plan_model *model,
                      const struct plan_sizes *s)
{
    gdn_rule_args *a = &c->args.rule;
    const int64_t N = s->B * s->T, rows = N * model->updates;
    *a = gdn_rule_args_init();
    a->q = make(m, s->dtype, 3, N, s->Hk, s->K, 0);
    a->k = make(m, s->dtype, 3, rows, s->Hk, s->K, 0);
    a->v = make(m, s->dtype, 3, rows, s->Hv, s->V, 0);
    a->out = make(m, s->dtype, 3, N, s->Hv, s->V, 0);
    if (!model->has_no_decay) {
        a->g = make_gate(m, model, s->dtype, N, s);
        a->A_log = make(m, GDN_F32, 1, s->Hv, 0, 0, 0);
        a->dt_bias = make_bias(m, model, s);
        a->gate = GDN_GATE_RAW;
    }
    a->beta = make(m, s->dtype, model->erases ? 3 : 2, rows, s->Hv, s->K, 0);
    if (model->erases) a->write_gate = make(m, s->dtype, 3, rows, s->Hv, s->V, 0);
    if (model->updates > 1) a->updates = model->updates;
    a->state = make_state(m, s);
    if (is_q8(s->state_dtype)) a->state_scales = make(m, GDN_F32, 3, s->B, s->Hv, s->V, 0);
    a->gate_lower_bound = (float)model->lower_bound;
    a->beta_kind = beta_kind(model);
    a->norm = GDN_NORM_L2;
    a->batch = &c->batch;
    fill_batch(m, &c->batch, s, true);
}

static void fill_prefill(struct maker *m, struct call *c, const struct plan_model *model,
                         const struct plan_sizes *s)
{
    c->op = GDN_OP_PREFILL;
    fill_rule(m, c, model, s);
}

/* A token of each sequence, where gdn_step() does not take the rule. */
static void fill_decode(struct maker *m, struct call *c, const struct plan_model *model,
                        const struct plan_sizes *s)
{
    struct plan_sizes one = *s;
    one.T = 1;
    c->op = GDN_OP_DECODE;
    fill_rule(m, c, model, &one);
}

static void fill_step(struct maker *m, struct call *c, const struct plan_model *model,
                      const struct plan_sizes *s)
{
    gdn_step_args *a = &c->args.step;
    const int64_t D = plan_channels(model, s), rows = model->updates;
    c->op = GDN_OP_STEP;
    *a = gdn_step_args_init();
    a->x = make(m, s->dtype, 3, s->B, 1, D, 0);
    a->a = make(m, s->dtype, model->per_channel ? 4 : 3, s->B, 1, s->Hv, s->K);
    a->b = make(m, s->dtype, model->erases ? 4 : 3, s->B, rows, s->Hv, s->K);
    if (model->erases) a->write_gate = make(m, s->dtype, 4, s->B, rows, s->Hv, s->V);
    if (rows > 1) a->updates = model->updates;
    a->z = make(m, s->dtype, 4, s->B, 1, s->Hv, s->V);
    a->norm_weight = make(m, s->dtype, 1, s->V, 0, 0, 0);
    a->activation = model->sigmoid_gate ? GDN_ACT_SIGMOID : GDN_ACT_SILU;
    a->conv_weight = make(m, s->dtype, 2, D, s->W, 0, 0);
    a->conv_state = make(m, s->dtype, 3, s->B, D, s->W - 1, 0);
    a->A_log = make(m, GDN_F32, 1, s->Hv, 0, 0, 0);
    a->dt_bias = make_bias(m, model, s);
    a->state = make_state(m, s);
    if (is_q8(s->state_dtype)) a->state_scales = make(m, GDN_F32, 3, s->B, s->Hv, s->V, 0);
    a->out = make(m, s->dtype, 4, s->B, 1, s->Hv, s->V);
    a->n_key_heads = (int32_t)s->Hk, a->n_value_heads = (int32_t)s->Hv;
    a->key_head_dim = (int32_t)s->K, a->value_head_dim = (int32_t)s->V;
    a->gate_lower_bound = (float)model->lower_bound;
    a->beta_kind = beta_kind(model);
    a->batch = &c->batch;
    fill_batch(m, &c->batch, s, false);
}

/* Gradients of a sequence from zero, as of training. */
static void fill_backward(struct maker *m, struct call *c, const struct plan_model *model,
                          const struct plan_sizes *s)
{
    gdn_prefill_backward_args *a = &c->args.backward;
    const int64_t N = s->B * s->T, rows = N * model->updates;
    const int of_beta = model->erases ? 3 : 2;
    c->op = GDN_OP_PREFILL_BACKWARD;
    *a = gdn_prefill_backward_args_init();
    a->q = make(m, s->dtype, 3, N, s->Hk, s->K, 0), a->dq = make(m, s->dtype, 3, N, s->Hk, s->K, 0);
    a->k = make(m, s->dtype, 3, rows, s->Hk, s->K, 0);
    a->dk = make(m, s->dtype, 3, rows, s->Hk, s->K, 0);
    a->v = make(m, s->dtype, 3, rows, s->Hv, s->V, 0);
    a->dv = make(m, s->dtype, 3, rows, s->Hv, s->V, 0);
    a->beta = make(m, s->dtype, of_beta, rows, s->Hv, s->K, 0);
    a->dbeta = make(m, GDN_F32, of_beta, rows, s->Hv, s->K, 0);
    if (model->erases) {
        a->write_gate = make(m, s->dtype, 3, rows, s->Hv, s->V, 0);
        a->dwrite_gate = make(m, GDN_F32, 3, rows, s->Hv, s->V, 0);
    }
    if (model->updates > 1) a->updates = model->updates;
    if (!model->has_no_decay) {
        a->g = make_gate(m, model, s->dtype, N, s), a->dg = make_gate(m, model, GDN_F32, N, s);
        a->A_log = make(m, GDN_F32, 1, s->Hv, 0, 0, 0);
        a->dA_log = make(m, GDN_F32, 1, s->Hv, 0, 0, 0);
        a->dt_bias = make_bias(m, model, s), a->ddt_bias = make_bias(m, model, s);
        a->gate = GDN_GATE_RAW;
    }
    a->dout = make(m, s->dtype, 3, N, s->Hv, s->V, 0);
    a->gate_lower_bound = (float)model->lower_bound;
    a->beta_kind = beta_kind(model);
    a->norm = GDN_NORM_L2;
    c->batch = gdn_batch_init();
    c->batch.cu_seqlens = make(m, GDN_I32, 1, s->B + 1, 0, 0, 0);
    c->batch.max_seqlen = (int32_t)s->T;
    if (m->memory && !m->failed) ((int32_t *)c->batch.cu_seqlens.data)[1] = (int32_t)s->T;
    a->batch = &c->batch;
}

static const struct {
    const char *use, *op;
} calls[PLAN_N_CALLS] = {
    [PLAN_CONV] = { "prompt", "gdn_conv1d" },
    [PLAN_PREFILL] = { "prompt", "gdn_prefill" },
    [PLAN_STEP] = { "token", "gdn_step" },
    [PLAN_BACKWARD] = { "training", "gdn_prefill_backward" },
};

static void fill(struct maker *m, struct call *c, const struct plan_model *model,
                 const struct plan_sizes *s, enum plan_call_kind kind)
{
    switch (kind) {
    case PLAN_CONV: fill_conv(m, c, model, s); break;
    case PLAN_PREFILL: fill_prefill(m, c, model, s); break;
    case PLAN_STEP: (plan_has_step(model) ? fill_step : fill_decode)(m, c, model, s); break;
    default: fill_backward(m, c, model, s);
    }
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* The address of the workspace on a chip that need not be there. */
static const uintptr_t nowhere = (uintptr_t)1 << 47;

/* Makes the call, with this workspace. */
static gdn_status run(gdn_ctx *ctx, struct call *c, void *workspace, size_t bytes)
{
#define RUN(member, name)                                                          \
    (c->args.member.workspace = workspace, c->args.member.workspace_bytes = bytes, \
     name(ctx, &c->args.member))
    switch (c->op) {
    case GDN_OP_CONV1D: return RUN(conv, gdn_conv1d);
    case GDN_OP_PREFILL: return RUN(rule, gdn_prefill);
    case GDN_OP_DECODE: return RUN(rule, gdn_decode);
    case GDN_OP_STEP: return RUN(step, gdn_step);
    default: return RUN(backward, gdn_prefill_backward);
    }
#undef RUN
}

/* Copies "op: names" without the op. */
static void note_kernels(gdn_ctx *ctx, struct plan_answer *a)
{
    const char *line = gdn_last_kernel(ctx), *names = strstr(line, ": ");
    snprintf(a->kernels, sizeof a->kernels, "%s", names ? names + 2 : line);
    const char *choice;
    for (int i = 0; a->n_choices < 4 && (choice = gdn_internal_choice(ctx, i)); i++)
        snprintf(a->choices[a->n_choices++], sizeof a->choices[0], "%s", choice);
}

/* Notes that the library refuses the call. A lack of memory on this machine is no refusal. */
static int note_refusal(gdn_ctx *ctx, struct plan_answer *a, gdn_status status)
{
    if (status == GDN_E_MEMORY) return cli_failed(ctx, status);
    a->status = status;
    snprintf(a->refused, sizeof a->refused, "%s", gdn_last_error(ctx));
    return CLI_OK;
}

/* Computes one sequence of at most 16 tokens. */
static int run_short(gdn_ctx *ctx, const struct plan_model *m, struct plan_sizes s,
                     enum plan_call_kind kind, struct plan_answer *a)
{
    struct memory memory = { NULL, 0, 0 };
    struct maker maker = { .memory = &memory };
    struct call c;
    s.B = 1;
    if (s.T > 16) s.T = 16;
    fill(&maker, &c, m, &s, kind);
    const gdn_status status = maker.failed ? GDN_OK : run(ctx, &c, NULL, 0);
    int answer = CLI_OK;
    if (maker.failed)
        answer = cli_bad("no memory for a call of 16 tokens");
    else if (status)
        answer = note_refusal(ctx, a, status);
    else
        note_kernels(ctx, a);
    memory_free(&memory);
    return answer;
}

int plan_ask(gdn_ctx *ctx, const struct plan_model *m, const struct plan_sizes *sizes,
             enum plan_call_kind kind, struct plan_answer *a)
{
    struct maker maker = { .memory = NULL };
    struct call c;
    *a = (struct plan_answer){ .use = calls[kind].use, .op = calls[kind].op };
    if (kind == PLAN_STEP && !plan_has_step(m)) a->op = "gdn_decode";
    fill(&maker, &c, m, sizes, kind);
    gdn_status status = gdn_supported(ctx, c.op, &c.args);
    if (!status) status = gdn_workspace_bytes(ctx, c.op, &c.args, &a->workspace);
    if (!status && !gdn_internal_device(ctx)) return run_short(ctx, m, *sizes, kind, a);
    if (!status) status = run(ctx, &c, (void *)nowhere, a->workspace);
    if (status) return note_refusal(ctx, a, status);
    note_kernels(ctx, a);
    return CLI_OK;
}
