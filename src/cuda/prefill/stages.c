/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of the chunked form, summaries and their products on a device. */
#include <stdio.h>

#include "calls/chunk_stage.h"
#include "calls/norm.h"
#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/contents.h"
#include "cuda/prefill/forms.h"
#include "cuda/rowwise/rowwise.h"

enum { STRIP = 32 }; /* columns of a state that a block has (stages.cu) */

static int strips_of(int64_t columns) { return (int)((columns + STRIP - 1) / STRIP); }

static struct gdn_cu_stage stage_args(const struct gdn_rule *rule, const struct gdn_plan *plan,
                                      const struct gdn_tokens *tokens, int64_t C)
{
    static const struct gdn_plan_pools none = { -1, -1, -1, false, false };
    static const gdn_tensor absent = { 0 };
    const int64_t each = tokens->T / C + (tokens->T % C != 0);
    struct gdn_cu_stage a = {
        .C = C,
        .n_chunks = plan->batch.cu_seqlens.data ? tokens->N / C + plan->B + 1 : plan->B * each,
    };
    gdn_cuda_fill_rule(&a.rule, rule, &absent, &absent, plan, tokens, &none);
    return a;
}

/* Launches blocks of a kernel for a call. */
static gdn_status launch(gdn_ctx *ctx, const struct gdn_call *c, enum gdn_kernel_id kernel,
                         int64_t n_blocks, size_t shared_bytes, const void *args)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { n_blocks, 1, 1 },
        .shared_bytes = shared_bytes,
        .stream = c->stream,
        .args = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, c->op, kernel);
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* Checks cu_seqlens, if the context checks contents. */
static gdn_status check_contents(gdn_ctx *ctx, const struct gdn_plan *plan,
                                 const struct gdn_tokens *tokens, void *stream)
{
    return gdn_cuda_check_batch(ctx, plan, tokens,
                                &(struct gdn_plan_pools){ -1, -1, -1, false, false }, stream);
}

static gdn_status plan_chunk_cumsum(gdn_ctx *ctx, void *call)
{
    const struct gdn_cumsum_call *c = call;
    if (c->H <= INT32_MAX) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "g: %lld heads, on a device at most 2^31 - 1",
                    (long long)c->H);
}

static gdn_status run_chunk_cumsum(gdn_ctx *ctx, void *call, void *memory)
{
    enum { WARPS = 8 };
    const struct gdn_cumsum_call *c = call;
    const struct gdn_rule rule = {
        .g = c->g, .out = c->out, .scale = (float)c->scale, .H = (int)c->H
    };
    const struct gdn_cu_stage a = stage_args(&rule, &c->plan, &c->tokens, c->args.chunk_size);
    (void)memory;
    TRY(check_contents(ctx, &c->plan, &c->tokens, c->base.stream));
    const int64_t items = a.n_chunks * ((a.rule.H + 31) / 32);
    return launch(ctx, &c->base, GDN_CU_prefill_stages_cumsum, (items + WARPS - 1) / WARPS, 0, &a);
}

static gdn_status run_chunk_uw(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_uw_call *c = call;
    struct gdn_cu_stage a = stage_args(&c->rule, &c->plan, &c->tokens, c->C);
    (void)memory;
    a.u = c->to[GDN_UW_U], a.w = c->to[GDN_UW_W], a.T = c->to[GDN_UW_T];
    TRY(check_contents(ctx, &c->plan, &c->tokens, c->base.stream));
    return launch(ctx, &c->base, GDN_CU_prefill_stages_uw, a.n_chunks * a.rule.H,
                  GDN_CU_COLUMNS_BYTES, &a);
}

static gdn_status run_chunk_states(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_states_call *c = call;
    struct gdn_cu_stage a = stage_args(&c->rule, &c->plan, &c->tokens, c->C);
    (void)memory;
    a.u = c->u, a.w = c->w, a.states = c->states;
    a.rule.from = c->state, a.rule.to = c->state_out;
    a.n_states = c->args.states.size[0];
    TRY(check_contents(ctx, &c->plan, &c->tokens, c->base.stream));
    a.n_strips = a.n_before = strips_of(a.rule.V);
    return launch(ctx, &c->base, GDN_CU_prefill_stages_states,
                  a.rule.batch.B * a.rule.H * a.n_strips, GDN_CU_STRIP_BYTES, &a);
}

static gdn_status run_chunk_output(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_output_call *c = call;
    struct gdn_cu_stage a = stage_args(&c->rule, &c->plan, &c->tokens, c->C);
    (void)memory;
    a.u = c->u, a.w = c->w, a.states = c->states, a.n_states = c->args.states.size[0];
    TRY(check_contents(ctx, &c->plan, &c->tokens, c->base.stream));
    return launch(ctx, &c->base, GDN_CU_prefill_stages_output, a.n_chunks * a.rule.H,
                  GDN_CU_STRIP_BYTES, &a);
}

/* ---- gdn_summary ----------------------------------------------------------------------------- */

/* A run of gdn_prefill, for a rule of the family: to U from zero, or to M from the identity. */
struct summary_run {
    struct gdn_cu_rule rule;
    struct gdn_cuda_prefill_plan plan;
};

/* The decisions about a call. why_not: why the kernels of sm90 do not take it, or NULL. */
struct planned_summary {
    union {
        struct {
            struct gdn_cuda_summary summary;
            struct gdn_range_cut cut;       /* if why_not is NULL */
            struct gdn_cuda_norm_plan norm; /* of keys that have a norm, if why_not is not NULL */
        };
        struct {
            struct summary_run U, M;
        } runs;
    };
    const char *why_not;
};
_Static_assert(sizeof(struct planned_summary) <= GDN_PLAN_ROOM, "a plan has room");

/* Returns keys of length 1 in the workspace, as float32, for the general kernel. */
static gdn_tensor unit_keys(const struct gdn_summary_call *c, void *memory)
{
    gdn_tensor t = { .data = memory, .dtype = GDN_F32, .ndim = c->args.k.ndim };
    int64_t step = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
        t.size[i] = c->args.k.size[i], t.stride[i] = step;
        step *= t.size[i];
    }
    return t;
}

static size_t unit_key_bytes(const struct gdn_summary_call *c)
{
    size_t n = sizeof(float);
    if (c->offset.norm == GDN_NO_NORM) return 0;
    for (int i = 0; i < c->args.k.ndim; i++) n *= (size_t)c->args.k.size[i];
    return gdn_align64(n);
}

static void plan_unit_keys(const struct gdn_summary_call *c, struct gdn_cuda_norm_plan *plan)
{
    const struct gdn_norm_job job = { .x = c->args.k,
                                      .out = unit_keys(c, GDN_CUDA_NOWHERE),
                                      .formula = c->offset.norm,
                                      .eps = c->offset.norm_eps,
                                      .n_rows = gdn_n_rows(&c->args.k),
                                      .D = c->offset.K };
    if (c->offset.norm == GDN_NO_NORM) return;
    gdn_cuda_fill_norm(&plan->args, &job);
    gdn_cuda_norm_plan(plan);
}

static void plan_run(gdn_ctx *ctx, const struct gdn_summary_call *c, const struct gdn_rule *rule,
                     struct summary_run *run)
{
    static const gdn_tensor absent = { 0 };
    const bool from_identity = rule == &c->transition;
    const struct gdn_plan_pools pools = { .read = from_identity ? c->plan.B : -1,
                                          .write = c->plan.B,
                                          .checkpoint = -1 };
    gdn_cuda_fill_rule(&run->rule, rule, &absent, &absent, &c->plan, &c->tokens, &pools);
    if (from_identity) {
        run->rule.from = run->rule.to;
        run->rule.v = (struct gdn_rows){ .data = GDN_CUDA_NOWHERE, .dtype = rule->k.dtype };
    }
    gdn_cuda_prefill_plan(ctx, &run->rule, gdn_cuda_cut_options_of(c->args.flags, &c->plan.batch),
                          &run->plan);
}

/* Returns the bytes of a row of v for M. */
static size_t zero_bytes(const struct gdn_summary_call *c)
{
    return gdn_align64((size_t)c->offset.K * sizeof(float));
}

/* Plans both runs. They have the same memory, behind a row of v. */
static void plan_runs(gdn_ctx *ctx, struct gdn_summary_call *c, struct planned_summary *p)
{
    size_t most = 0;
    if (c->offset.to.data) plan_run(ctx, c, &c->offset, &p->runs.U), most = p->runs.U.plan.bytes;
    if (c->transition.to.data) {
        plan_run(ctx, c, &c->transition, &p->runs.M);
        if (p->runs.M.plan.bytes > most) most = p->runs.M.plan.bytes;
    }
    c->base.bytes = zero_bytes(c) + most;
}

static gdn_status plan_summary(gdn_ctx *ctx, void *call)
{
    struct gdn_summary_call *c = call;
    struct planned_summary *p = GDN_PLANNED(struct planned_summary, &c->base);
    p->why_not = "the rule has channels, a write gate or updates";
    if (c->offset.family.is) return plan_runs(ctx, c, p), GDN_OK;
    const struct gdn_cu_stage a = stage_args(&c->offset, &c->plan, &c->tokens, GDN_MAX_CHUNK);
    p->summary = (struct gdn_cuda_summary){ .rule = a.rule,
                                            .M = c->transition.to,
                                            .batch_invariant = c->args.flags & GDN_BATCH_INVARIANT,
                                            .every_token = c->args.flags & GDN_NO_EARLY_STOP };
    p->why_not = gdn_cuda_summary_sm90_why_not(ctx, &p->summary);
    if (p->why_not) {
        c->base.bytes = unit_key_bytes(c);
        plan_unit_keys(c, &p->norm);
    } else {
        p->cut = gdn_cuda_summary_sm90_cut(ctx, &p->summary);
        c->base.bytes = gdn_cuda_summary_sm90_bytes(&p->summary, &p->cut);
    }
    return GDN_OK;
}

/* Launches the general kernel. */
static gdn_status launch_summary(gdn_ctx *ctx, const struct gdn_call *c, struct gdn_cu_stage *a)
{
    a->n_before = a->rule.to.data ? strips_of(a->rule.V) : 0;
    a->n_strips = a->n_before + (a->M.data ? strips_of(a->rule.K) : 0);
    return launch(ctx, c, GDN_CU_prefill_stages_summary, a->rule.batch.B * a->rule.H * a->n_strips,
                  GDN_CU_STRIP_BYTES, a);
}

/* Runs the general kernel, which has the identity built in. */
static gdn_status run_general_summary(gdn_ctx *ctx, const struct gdn_summary_call *c,
                                      struct planned_summary *p, void *memory)
{
    struct gdn_cu_stage a = stage_args(&c->offset, &c->plan, &c->tokens, GDN_MAX_CHUNK);
    a.M = c->transition.to;
    if (c->offset.norm != GDN_NO_NORM && c->tokens.N > 0) {
        const gdn_tensor keys = unit_keys(c, memory);
        p->norm.args.out.data = memory;
        TRY(gdn_cuda_norm_run(ctx, c->base.op, &p->norm, c->base.stream));
        a.rule.k = a.rule.q = gdn_rows_of(&keys, &c->tokens);
    }
    return launch_summary(ctx, &c->base, &a);
}

/* Writes U = 0 and M = I, the summaries of no token. */
static gdn_status write_starts(gdn_ctx *ctx, const struct gdn_summary_call *c)
{
    struct gdn_cu_stage a = stage_args(&c->offset, &c->plan, &c->tokens, GDN_MAX_CHUNK);
    a.M = c->transition.to;
    a.rule.batch.cu_seqlens.data = NULL;
    a.rule.batch.T = a.rule.batch.N = 0;
    return launch_summary(ctx, &c->base, &a);
}

static gdn_status run_both(gdn_ctx *ctx, const struct gdn_summary_call *c,
                           struct planned_summary *p, void *memory)
{
    struct summary_run *const U = &p->runs.U, *const M = &p->runs.M;
    void *const rest = (char *)memory + zero_bytes(c), *const stream = c->base.stream;
    TRY(write_starts(ctx, c));
    if (c->tokens.N == 0) return GDN_OK;
    if (c->offset.to.data) TRY(gdn_cuda_prefill_run(ctx, &U->rule, &U->plan, rest, stream));
    if (!c->transition.to.data) return GDN_OK;
    GDN_CU(ctx, "zeros", cuMemsetD8Async,
           ((gdn_cu_memory)(uintptr_t)memory, 0, zero_bytes(c), stream));
    M->rule.v.data = memory;
    gdn_cuda_prefill_move(ctx, &M->rule, &M->plan);
    return gdn_cuda_prefill_run(ctx, &M->rule, &M->plan, rest, stream);
}

static gdn_status run_runs(gdn_ctx *ctx, const struct gdn_summary_call *c,
                           struct planned_summary *p, void *memory)
{
    struct gdn_cuda_ran ran;
    bool pushed;
    TRY(gdn_cuda_enter(ctx, &pushed));
    gdn_cuda_gather(ctx, &ran);
    const gdn_status status = run_both(ctx, c, p, memory);
    gdn_cuda_leave(ctx, pushed);
    return gdn_cuda_note_gathered(ctx, "summary", status);
}

static gdn_status run_summary(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_summary_call *c = call;
    struct planned_summary *p = GDN_PLANNED(struct planned_summary, &c->base);
    struct gdn_cuda_ran ran = { .n = 0 };
    TRY(check_contents(ctx, &c->plan, &c->tokens, c->base.stream));
    if (p->why_not) {
        const bool family = c->offset.family.is;
        const struct gdn_cuda_form list[] = { { "sm90", p->why_not },
                                              { "general", family ? p->why_not : NULL },
                                              { "two runs of prefill", NULL } };
        gdn_cuda_log_forms(ctx, GDN_CUDA_SUMMARY_CHOICE, "summary", list);
        return family ? run_runs(ctx, c, p, memory) : run_general_summary(ctx, c, p, memory);
    }
    TRY(gdn_cuda_summary_sm90(ctx, &p->summary, &p->cut, memory, &ran, c->base.stream));
    return gdn_cuda_note_all(ctx, "summary", ran.kernels, ran.n);
}

/* ---- Products of summaries ------------------------------------------------------------------- */

static gdn_status run_product(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_product_call *c = call;
    (void)memory;
    for (int i = 0; i < c->n; i++) {
        const struct gdn_product *x = &c->product[i];
        struct gdn_cu_product a = { .M = x->M,
                                    .S = x->S,
                                    .U = x->U,
                                    .out = x->out,
                                    .order = gdn_cuda_array(&x->order),
                                    .P = x->P,
                                    .B = x->B,
                                    .H = x->H,
                                    .K = x->K,
                                    .V = x->V };
        a.n_strips = strips_of(a.V);
        a.n = (int)gdn_product_n_ranges(x);
        TRY(launch(ctx, &c->base, GDN_CU_prefill_product_strip, x->B * a.H * a.n_strips,
                   GDN_CU_STRIP_BYTES, &a));
    }
    return GDN_OK;
}

static gdn_status run_summary_fold(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_product_call *c = call;
    struct gdn_product own = c->product[0];
    gdn_tensor *order = &own.order;
    void *copy;
    TRY(gdn_cuda_contents_open(ctx, c->base.stream, &order, 1, 0, &copy));
    const gdn_status status = copy ? gdn_product_check_order(ctx, &own) : GDN_OK;
    gdn_cuda_contents_close(ctx, copy);
    TRY(status);
    return run_product(ctx, call, memory);
}

const struct gdn_op_backend gdn_cuda_op_chunk_cumsum = { plan_chunk_cumsum, run_chunk_cumsum };
const struct gdn_op_backend gdn_cuda_op_chunk_uw = { .run = run_chunk_uw };
const struct gdn_op_backend gdn_cuda_op_chunk_states = { .run = run_chunk_states };
const struct gdn_op_backend gdn_cuda_op_chunk_output = { .run = run_chunk_output };
const struct gdn_op_backend gdn_cuda_op_summary = { plan_summary, run_summary };
const struct gdn_op_backend gdn_cuda_op_summary_compose = { .run = run_product };
const struct gdn_op_backend gdn_cuda_op_summary_apply = { .run = run_product };
const struct gdn_op_backend gdn_cuda_op_summary_fold = { .run = run_summary_fold };
