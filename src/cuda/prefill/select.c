/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of kernels for gdn_prefill. `families` lists those that compute chunks, the fastest
 * first. The first one that has no reason against a call takes it. This file also cuts calls of the
 * general family (general.cuh) into blocks. */
#include <stdio.h>

#include "calls/op_backends.h"
#include "calls/rule_call.h"
#include "core/tensor_check.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/choice.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

/* COLUMNS: of a warp. AUX_WARPS: for T and P. MEAN_OF_SINGLES: the mean length of sequences, above
 * which those of one token are not left out. */
enum { COLUMNS = 16, AUX_WARPS = 4, MEAN_OF_SINGLES = 1024 };

/* A kernel: deep is the largest K, warps the most of a block. */
struct form {
    enum gdn_kernel_id kernel;
    int dtype, deep, warps;
};

static struct form find_form(int dtype, int K)
{
#define DEPTHS(family)                                                     \
    {                                                                      \
        GDN_CU_##family##_64, GDN_CU_##family##_128, GDN_CU_##family##_256 \
    }
    static const enum gdn_kernel_id kernels[][3] = {
        [GDN_F32] = DEPTHS(prefill_general_f32),
        [GDN_BF16] = DEPTHS(prefill_general_bf16),
        [GDN_F16] = DEPTHS(prefill_general_f16),
    };
    const int size = K <= 64 ? 0 : K <= 128 ? 1 : 2;
    const enum gdn_kernel_id kernel = kernels[dtype][size];
    return (struct form){ kernel, dtype, 64 << size, gdn_cuda_kernel_threads(kernel) / 32 };
}

int32_t gdn_cuda_rows_wide(const struct gdn_rows *r)
{
    const uint64_t all = (uint64_t)(uintptr_t)r->data | (uint64_t)r->batch | (uint64_t)r->token |
                         (uint64_t)r->head | 16;
    return (int32_t)(all & (~all + 1));
}

/* Chooses the warps with the state. Fewer warps make more blocks, and each of these computes T and
 * P once more. The costs of a chunk by that number are estimates. The best number has the least sum
 * over the waves of blocks. */
static void cut_columns(struct gdn_cu_prefill *p, const struct form *f, int64_t n_heads,
                        int sm_count)
{
    static const int cost[] = { 0, 10, 10, 12, 13, 16, 19, 21, 24 };
    const int groups = (p->rule.V + COLUMNS - 1) / COLUMNS, most = f->warps - AUX_WARPS;
    int64_t best = INT64_MAX;
    for (int n = most < 8 ? most : 8; n > 0; n /= 2) {
        const int slices = (groups + n - 1) / n;
        const int64_t waves = (n_heads * slices + sm_count - 1) / sm_count;
        if (waves * cost[n] >= best) continue;
        best = waves * cost[n];
        p->n_state = n;
        p->n_slices = slices;
    }
    if (p->n_state > groups) p->n_state = groups;
    p->n_aux = p->n_state + 2 * AUX_WARPS <= f->warps ? 2 * AUX_WARPS : AUX_WARPS;
}

/* Chooses the most stages that fit, and slots with them. Returns the bytes of shared memory; 0:
 * none fits. */
static size_t cut_memory(struct gdn_cu_prefill *p, const struct form *f, int shared_most)
{
    static const struct {
        int stages, slots;
    } rings[] = { { 3, 2 }, { 2, 2 }, { 2, 1 }, { 1, 1 } };
    const int bytes = (int)gdn_dtype_bytes(f->dtype), chunk = GDN_PREFILL_CHUNK(bytes, f->deep);
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        const int needed =
            GDN_PREFILL_HEAD_BYTES + GDN_PREFILL_SOLVE_BYTES(chunk) +
            rings[i].slots * GDN_PREFILL_SLOT_BYTES(chunk, bytes) +
            rings[i].stages * GDN_PREFILL_STAGE_BYTES(chunk, bytes, f->deep, p->n_state);
        p->n_stages = rings[i].stages;
        p->n_slots = rings[i].slots;
        if (needed <= shared_most) return (size_t)needed;
    }
    return 0;
}

static gdn_status launch_general(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                 const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                 void *stream)
{
    const struct form f = find_form(rule->q.dtype, rule->K);
    struct gdn_cu_prefill p = { .rule = *rule, .by_number = how->by_number };
    p.q_wide = gdn_cuda_rows_wide(&rule->q);
    p.k_wide = gdn_cuda_rows_wide(&rule->k);
    p.v_wide = gdn_cuda_rows_wide(&rule->v);
    p.out_wide = gdn_cuda_rows_wide(&rule->out);
    cut_columns(&p, &f, rule->batch.B * rule->H, ctx->cuda->sm_count);
    size_t shared = cut_memory(&p, &f, ctx->cuda->shared_most);
    while (!shared && p.n_state > 1) {
        p.n_state /= 2;
        p.n_slices = (rule->V + COLUMNS * p.n_state - 1) / (COLUMNS * p.n_state);
        shared = cut_memory(&p, &f, ctx->cuda->shared_most);
    }
    const struct gdn_cuda_call call = {
        .kernel = f.kernel,
        .grid = { (rule->batch.B + (rule->out.data && rule->batch.cu_seqlens.data)) * rule->H *
                      p.n_slices,
                  1, 1 },
        .n_threads = 32 * (p.n_aux + p.n_state),
        .shared_bytes = shared,
        .stream = stream,
        .args = &p,
    };
    gdn_cuda_ran_add(ran, call.kernel);
    return gdn_cuda_launch(ctx, &call);
}

/* ---- The families ---------------------------------------------------------------------------- */

static void plan_general(gdn_ctx *ctx, const struct gdn_cu_rule *rule, struct gdn_cuda_chunks *how)
{
    (void)ctx, (void)rule;
    how->bytes = 0;
}

static const char *why_not_general(const gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    (void)ctx, (void)rule;
    return NULL;
}

/* The families of chunks. plan() decides the cut and the bytes. */
static const struct family {
    const char *name;
    const char *(*why_not)(const gdn_ctx *ctx, const struct gdn_cu_rule *rule);
    void (*plan)(gdn_ctx *ctx, const struct gdn_cu_rule *rule, struct gdn_cuda_chunks *how);
    gdn_status (*launch)(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                         const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran, void *stream);
} families[] = {
    { "sm90", gdn_cuda_prefill_sm90_why_not, gdn_cuda_prefill_sm90_plan, gdn_cuda_prefill_sm90 },
    { "portable", gdn_cuda_prefill_portable_why_not, gdn_cuda_prefill_portable_plan,
      gdn_cuda_prefill_portable },
    { "general", why_not_general, plan_general, launch_general },
};
enum { SM90 }; /* the place of a family in the list */

/* Returns the first family that takes the call. */
static int form_of(const gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    int form = 0;
    while (families[form].why_not(ctx, rule)) form++;
    return form;
}

/* Decides the family, its cut and its bytes. how->options are set before. */
static void choose_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule, struct gdn_cuda_chunks *how)
{
    how->form = form_of(ctx, rule);
    families[how->form].plan(ctx, rule, how);
}

/* Logs the family, and why those before it do not take the call. */
static void log_choice(gdn_ctx *ctx, const struct gdn_cu_rule *rule, int form)
{
    enum { N = sizeof families / sizeof *families };
    struct gdn_cuda_form list[N];
    if (!ctx->options.log) return;
    for (int i = 0; i <= form; i++)
        list[i] = (struct gdn_cuda_form){ families[i].name, families[i].why_not(ctx, rule) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PREFILL_CHOICE, "prefill", list);
}

gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream)
{
    log_choice(ctx, rule, how->form);
    return families[how->form].launch(ctx, rule, how, ran, stream);
}

/* ---- Rules of the family --------------------------------------------------------------------- */

static void plan_windows(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                         struct gdn_cuda_prefill_plan *p)
{
    const bool apart = gdn_cuda_prefill_is_apart(args);
    p->way = apart ? GDN_PREFILL_CHANNELS_APART : GDN_PREFILL_BY_CHANNELS;
    p->windows = gdn_cuda_prefill_channels_cut(ctx, args);
    p->bytes = apart ? gdn_cuda_prefill_channels_q8_bytes(args, &p->windows)
                     : gdn_cuda_prefill_channels_bytes(args, &p->windows);
}

static gdn_status run_windows(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                              const struct gdn_cuda_prefill_plan *p, void *memory, void *stream)
{
    struct gdn_cuda_ran ran = { .n = 0 };
    TRY(gdn_cuda_prefill_channels(ctx, args, &p->windows, memory, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}

/* ---- Every rule ------------------------------------------------------------------------------ */

/* Returns true if decode takes the sequences of one token, and then fills in their launch. If
 * sequences are short on average, there may be many of these. Then the kernel of such a sequence
 * depends on the batch. */
static bool leaves_singles(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                           const struct gdn_cuda_chunks *how, struct gdn_cuda_singles *singles)
{
    const struct gdn_cu_batch *b = &rule->batch;
    return how->form == SM90 && b->cu_seqlens.data && b->B > 1 && b->N < b->B * MEAN_OF_SINGLES &&
           !how->options.whole && gdn_cuda_takes_singles(ctx, rule, singles);
}

static void plan_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                        struct gdn_cuda_cut_options options, struct gdn_cuda_prefill_plan *p)
{
    const bool apart = gdn_cuda_prefill_is_apart(rule);
    p->way = apart ? GDN_PREFILL_APART : GDN_PREFILL_BY_CHUNKS;
    p->chunks = (struct gdn_cuda_chunks){ .options = options };
    choose_chunks(ctx, rule, &p->chunks);
    p->bytes = apart ? gdn_cuda_prefill_q8_bytes(rule, &p->chunks) : p->chunks.bytes;
    p->chunks.singles = !apart && leaves_singles(ctx, rule, &p->chunks, &p->singles);
}

static gdn_status run_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                             struct gdn_cuda_prefill_plan *p, void *memory, void *stream)
{
    struct gdn_cuda_ran ran = { .n = 0 };
    p->chunks.memory = memory;
    TRY(gdn_cuda_prefill_chunks(ctx, rule, &p->chunks, &ran, stream));
    if (p->chunks.singles) TRY(gdn_cuda_decode_singles(ctx, &p->singles, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}

static const char *why_not_channels(const gdn_ctx *ctx, const struct gdn_cu_rule *args)
{
    const struct gdn_cu_rule wide = gdn_cuda_prefill_channels_q8_rule(args);
    return gdn_cuda_prefill_channels_why_not(ctx, gdn_cuda_prefill_is_apart(args) ? &wide : args);
}

/* Returns why no chunks take the call, which then goes token by token; NULL: some do. */
static const char *why_not_chunks(const gdn_ctx *ctx, const struct gdn_cu_rule *args)
{
    if (args->exact) return "GDN_EXACT is set";
    if (args->family.is) return why_not_channels(ctx, args);
    return gdn_cuda_mixes_dtypes(args) ? "q, k, v and out differ in dtype" : NULL;
}

/* Returns rows of n elements that every family takes. */
static struct gdn_rows aligned_rows(const struct gdn_rows *r, int64_t heads, int64_t n)
{
    const int64_t head = n * (int64_t)gdn_dtype_bytes(r->dtype);
    return (struct gdn_rows){ r->data ? GDN_CUDA_NOWHERE : NULL, r->dtype, 0, heads * head, head };
}

gdn_status gdn_cuda_prefill_check_alike(gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    struct gdn_cu_rule aligned = *rule;
    const char *why = why_not_chunks(ctx, rule);
    aligned.q = aligned_rows(&rule->q, rule->Hq, rule->K);
    aligned.k = aligned_rows(&rule->k, rule->Hk, rule->K);
    aligned.v = aligned_rows(&rule->v, rule->Hv, rule->V);
    aligned.out = aligned_rows(&rule->out, rule->H, rule->V);
    if (!why) {
        const int form = form_of(ctx, &aligned);
        if (form != form_of(ctx, rule)) why = families[form].why_not(ctx, rule);
    }
    if (!why) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "flags: GDN_SPLIT_INVARIANT on a GPU, but %s", why);
}

/* Logs whether the call goes by chunks. Chunks of Gated DeltaNet log their families themselves. */
static void log_way(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                    const struct gdn_cuda_prefill_plan *p)
{
    const bool by_forms = p->way == GDN_PREFILL_BY_CHUNKS || p->way == GDN_PREFILL_APART;
    if (!ctx->options.log || by_forms) return;
    const struct gdn_cuda_form list[] = {
        { args->family.is ? "channels" : "chunks", why_not_chunks(ctx, args) }, { "tokens", NULL }
    };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PREFILL_CHOICE, "prefill", list);
}

void gdn_cuda_prefill_plan(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                           struct gdn_cuda_cut_options options, struct gdn_cuda_prefill_plan *p)
{
    if (why_not_chunks(ctx, rule)) {
        p->way = GDN_PREFILL_BY_TOKENS;
        p->bytes = 0;
        gdn_cuda_decode_plan(ctx, "prefill", rule, &p->decode);
    } else if (rule->family.is) {
        plan_windows(ctx, rule, p);
    } else {
        plan_chunks(ctx, rule, options, p);
    }
}

void gdn_cuda_prefill_move(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                           struct gdn_cuda_prefill_plan *p)
{
    if (p->way == GDN_PREFILL_BY_TOKENS)
        gdn_cuda_decode_move(&p->decode);
    else if (p->way == GDN_PREFILL_BY_CHUNKS && p->chunks.singles)
        gdn_cuda_move_singles(ctx, rule, &p->singles);
}

gdn_status gdn_cuda_prefill_run(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                struct gdn_cuda_prefill_plan *p, void *memory, void *stream)
{
    log_way(ctx, rule, p);
    switch (p->way) {
    case GDN_PREFILL_BY_TOKENS: return gdn_cuda_decode_run(&p->decode, memory, stream);
    case GDN_PREFILL_BY_CHANNELS: return run_windows(ctx, rule, p, memory, stream);
    case GDN_PREFILL_CHANNELS_APART:
        return gdn_cuda_prefill_channels_q8(ctx, rule, &p->windows, memory, stream);
    case GDN_PREFILL_APART: return gdn_cuda_prefill_q8(ctx, rule, &p->chunks, memory, stream);
    default: return run_chunks(ctx, rule, p, memory, stream);
    }
}

/* ---- gdn_prefill --------------------------------------------------------------------------- */

/* The decisions about a call. */
struct planned {
    struct gdn_cu_rule rule;
    struct gdn_cuda_prefill_plan plan;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_prefill(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_channels(ctx, c->rule.record));
    gdn_cuda_fill_call(&p->rule, c);
    if (c->rule.split) TRY(gdn_cuda_prefill_check_alike(ctx, &p->rule));
    p->rule.record_k.data = NULL; /* its rows are in the states when the tokens begin */
    gdn_cuda_prefill_plan(ctx, &p->rule, gdn_cuda_cut_options_of(c->args.flags, &c->plan.batch),
                          &p->plan);
    c->base.bytes = p->plan.bytes;
    return GDN_OK;
}

static gdn_status run_folded(gdn_ctx *ctx, const struct gdn_rule_call *c, struct planned *p,
                             void *memory)
{
    struct gdn_cuda_ran ran = { .n = 0 };
    struct gdn_cu_rule fold;
    gdn_cuda_fill_call(&fold, c);
    ctx->cuda->layer = &ran;
    gdn_status status =
        gdn_cuda_fold_first(ctx, &fold, c->pools.checkpoint_in_write, c->base.stream);
    if (status == GDN_OK)
        status = gdn_cuda_prefill_run(ctx, &p->rule, &p->plan, memory, c->base.stream);
    ctx->cuda->layer = NULL;
    return status == GDN_OK ? gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n) : status;
}

static gdn_status run_prefill(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_rule(ctx, c));
    return c->rule.record ? run_folded(ctx, c, p, memory)
                          : gdn_cuda_prefill_run(ctx, &p->rule, &p->plan, memory, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_prefill_op = { plan_prefill, run_prefill };
