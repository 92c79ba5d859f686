/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary: two runs of the rule as gdn_prefill runs it. U is the final state from zero. M
 * is the final state from the identity with v = 0: the columns of the identity are value
 * columns like any others.
 */
#include <string.h>

#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

/* A checked call. */
struct summary {
    gdn_summary_args  args;
    struct gdn_tokens tokens;
    struct gdn_plan   plan;
    struct gdn_rule   offset, transition; /* the runs that make U and M */
    size_t            plan_bytes, identity_bytes, scratch_bytes, bytes;
};

enum { K_, V_, G_, BETA_, M_, U_, N_TENSORS };

static gdn_status check_tensors(gdn_ctx *ctx, struct summary *c)
{
    const gdn_summary_args *a = &c->args;
    struct gdn_rule        *r = &c->offset;
    const gdn_tensor       *like = a->M.data ? &a->M : &a->U;
    TRY(gdn_plan_tokens(ctx, &a->k, "k", 2, false, &c->tokens));
    TRY(gdn_stage_head_size(ctx, &a->k, "k", &r->K));
    TRY(gdn_stage_plan(ctx, a->batch, &c->tokens, &c->plan));
    if (!like->data) return gdn_fail(ctx, GDN_E_ARG, "M: absent, and U too, wanted at least one");
    if (!a->v.data != !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", a->v.data ? "U" : "v",
                        a->v.data ? "v" : "U");
    if (a->v.data) {
        TRY(gdn_check_tensor(ctx, &a->v, "v"));
        TRY(gdn_plan_check(ctx, &c->tokens, &a->v, "v", 2, (int64_t[]){ -1, -1 }));
        TRY(gdn_stage_head_size(ctx, &a->v, "v", &r->V));
    }
    TRY(gdn_check_tensor(ctx, like, a->M.data ? "M" : "U"));
    TRY(gdn_check_shape(ctx, like, a->M.data ? "M" : "U", 4,
                        (int64_t[]){ c->plan.B, -1, -1, -1 }));
    const int64_t H = like->size[1], K = r->K, V = r->V;
    if (H < 1 || H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld heads, wanted at least 1",
                        a->M.data ? "M" : "U", (long long)H);
    r->H             = (int)H;
    const bool    kv = a->state_layout == GDN_STATE_KV;
    const int64_t B  = c->plan.B;
    const struct gdn_stage_tensor list[N_TENSORS] = {
        [K_]    = { &a->k, "k", true, false, true, 2, { -1, K }, 0 },
        [V_]    = { &a->v, "v", false, false, true, 2, { -1, V }, 0 },
        [G_]    = { &a->g, "g", false, false, true, 1, { H }, 0 },
        [BETA_] = { &a->beta, "beta", false, false, true, 1, { H }, 0 },
        [M_]    = { &a->M, "M", false, true, false, 4, { B, H, K, K }, 0 },
        [U_]    = { &a->U, "U", false, true, false, 4, { B, H, kv ? K : V, kv ? V : K }, 0 },
    };
    TRY(gdn_stage_check(ctx, list, N_TENSORS, &c->tokens, &c->plan.batch));
    TRY(gdn_stage_heads(ctx, &a->k, "k", H, &r->Hk));
    r->Hq = r->Hv = r->Hk;
    return a->v.data ? gdn_stage_heads(ctx, &a->v, "v", H, &r->Hv) : GDN_OK;
}

/* q is asked of by no one, so k stands in for it. */
static void fill_rules(gdn_ctx *ctx, struct summary *c)
{
    const gdn_summary_args *a = &c->args;
    struct gdn_rule        *r = &c->offset, *m = &c->transition;
    r->q = r->k = gdn_rows_of(&a->k, &c->tokens), r->v = gdn_rows_of(&a->v, &c->tokens);
    r->g = gdn_rows_of(&a->g, &c->tokens), r->beta = gdn_rows_of(&a->beta, &c->tokens);
    r->head_map = a->head_map;
    r->scale    = 1;
    r->n_seqs   = c->plan.B;

    const struct gdn_pool_view M = m->to;
    *m      = *r;
    m->to   = M;
    m->v    = (struct gdn_rows){ .dtype = GDN_F32 };
    m->Hv   = m->Hk;
    m->V    = m->K;
    m->from = (struct gdn_pool_view){ .dtype = GDN_F32, .k_first = M.k_first, .ld = m->K };

    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        struct gdn_rule *run = i ? m : r;
        if (!run->to.data) continue;
        gdn_rule_cut(run, ctx->kr, gdn_pool_threads(ctx->pool));
        const size_t bytes = gdn_rule_scratch(run, ctx->kr);
        most               = bytes > most ? bytes : most;
    }
    c->scratch_bytes = most * (size_t)gdn_pool_threads(ctx->pool);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct summary *c = call;
    *c                        = (struct summary){ 0 };
    const gdn_summary_args *a = &c->args;
    struct gdn_rule        *r = &c->offset;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_summary_args"));
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    TRY(gdn_stage_enum(ctx, "head_map", a->head_map, GDN_HEADS_INTERLEAVED));
    TRY(gdn_stage_enum(ctx, "state_layout", a->state_layout, GDN_STATE_KV));
    TRY(check_tensors(ctx, c));
    TRY(gdn_state_view(ctx, &a->U, "U", a->state_layout, r->H, r->K, r->V, &r->to));
    TRY(gdn_state_view(ctx, &a->M, "M", GDN_STATE_KV, r->H, r->K, r->K, &c->transition.to));
    fill_rules(ctx, c);
    if (ctx->cuda) return GDN_OK; /* what kernels need is on the chip */
    c->plan_bytes     = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->identity_bytes = gdn_align64(sizeof(float) * (size_t)r->K * (size_t)(r->K + 1));
    c->bytes          = c->plan_bytes + c->identity_bytes + c->scratch_bytes;
    return GDN_OK;
}

/* The range without tokens: `start`, [K][V] dense in the orientation of the pool, or zero. */
static void write_empty(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t b,
                        const float *start)
{
    const struct gdn_pool_view *to = &r->to;
    const int     n_rows = to->k_first ? r->K : r->V, n = to->k_first ? r->V : r->K;
    const int64_t elem = (int64_t)gdn_dtype_bytes(to->dtype);
    for (int h = 0; h < r->H; h++)
        for (int i = 0; i < n_rows; i++) {
            char *row = (char *)gdn_pool_at(to, b, h) + i * to->ld * elem;
            if (start) kr->store_row[to->dtype](row, start + i * n, (size_t)n);
            else memset(row, 0, (size_t)(n * elem));
        }
}

static void run_rule(gdn_ctx *ctx, const struct summary *c, struct gdn_rule *r, const float *start,
                     void *scratch)
{
    if (!r->to.data) return;
    r->plan = &c->plan;
    r->seqs = c->plan.seqs;
    gdn_rule_run(ctx, r, scratch);
    for (int64_t b = 0; b < c->plan.B; b++)
        if (r->seqs[b].n_tokens == 0) write_empty(r, ctx->kr, b, start);
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct summary *c = call;
    const gdn_summary_args *a = &c->args;
    struct gdn_rule        *m = &c->transition;
    void                   *memory;
    const struct gdn_plan_pools pools = { -1, c->plan.B, -1, false, false };
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, c->bytes, &memory));
    TRY(gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan));

    float *identity = (float *)((char *)memory + c->plan_bytes);
    float *zeros    = identity + m->K * m->K; /* a row of v */
    char  *scratch  = (char *)identity + c->identity_bytes;
    memset(identity, 0, c->identity_bytes);
    for (int x = 0; x < m->K; x++) identity[x * m->K + x] = 1;
    run_rule(ctx, c, &c->offset, NULL, scratch);
    m->from.data = (char *)identity;
    m->v.data    = (char *)zeros;
    for (int64_t b = 0; b < c->plan.B; b++) c->plan.seqs[b].read = 0;
    run_rule(ctx, c, m, identity, scratch);
    return GDN_OK;
}

/* The same on a device, by a kernel that knows the identity. */
static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct summary *c = call;
    struct gdn_cu_stage a =
        gdn_cuda_stage_args(&c->offset, &c->plan, &c->tokens, GDN_MAX_CHUNK);
    a.M = c->transition.to;
    TRY(gdn_stage_check_contents(ctx, &c->plan, &c->tokens, c->args.stream));
    return gdn_cuda_summary(ctx, &a, c->args.stream);
}

static const char *find_loops(void *call, char text[GDN_LOOPS_BYTES])
{
    (void)text;
    const struct summary *c = call;
    return gdn_rule_loops(c->args.M.data ? &c->transition : &c->offset);
}

static const struct gdn_frame frame = {
    .describe   = describe,
    .run        = run,
    .enqueue    = enqueue,
    .bytes_at   = offsetof(struct summary, bytes),
    .find_loops = find_loops,
};
GDN_OP_ENTRY(summary, gdn_summary_args, frame, struct summary)
