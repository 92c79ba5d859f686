/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of kernels for gdn_prefill. `families` lists those that compute chunks, the fastest
 * first; the first one that has no reason against a call takes it. The general family (general.cuh)
 * is cut into blocks of threads here.
 */
#include <stdio.h>

#include "calls/op_backends.h"
#include "calls/rule_call.h"
#include "core/tensor_check.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/choice.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

/* MEAN_OF_SINGLES: tokens of sequences, on average. */
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

/*
 * Warps with the state: few make more blocks, of which each does T and P once more. The costs of a
 * chunk by that number are estimates; what counts is the sum over the waves of blocks.
 */
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

/* As many stages as fit, and slots with them. The bytes of shared memory; 0: none fits. */
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

static size_t no_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                       struct gdn_cuda_cut_options options)
{
    (void)ctx, (void)rule, (void)options;
    return 0;
}

static const char *why_not_general(const gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    (void)ctx, (void)rule;
    return NULL;
}

static const struct family {
    const char *name;
    const char *(*why_not)(const gdn_ctx *ctx, const struct gdn_cu_rule *rule);
    size_t (*bytes)(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                    struct gdn_cuda_cut_options options);
    gdn_status (*launch)(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                         const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran, void *stream);
} families[] = {
    { "sm90", gdn_cuda_prefill_sm90_why_not, gdn_cuda_prefill_sm90_bytes, gdn_cuda_prefill_sm90 },
    { "portable", gdn_cuda_prefill_portable_why_not, gdn_cuda_prefill_portable_bytes,
      gdn_cuda_prefill_portable },
    { "general", why_not_general, no_bytes, launch_general },
};

size_t gdn_cuda_prefill_chunks_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                     struct gdn_cuda_cut_options options)
{
    int i = 0;
    while (families[i].why_not(ctx, rule)) i++;
    return families[i].bytes(ctx, rule, options);
}

gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream)
{
    enum { N = sizeof families / sizeof *families };
    struct gdn_cuda_form list[N];
    int i = 0;
    for (; i == 0 || list[i - 1].why_not; i++)
        list[i] = (struct gdn_cuda_form){ families[i].name, families[i].why_not(ctx, rule) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PREFILL_CHOICE, "prefill", list);
    return families[i - 1].launch(ctx, rule, how, ran, stream);
}

/* ---- Rules of the family --------------------------------------------------------------------- */

/* Returns why the kernels of prefill/channels do not take a call of the family. */
static const char *why_not_channels(const gdn_ctx *ctx, const struct gdn_cu_rule *args)
{
    return args->exact ? "GDN_EXACT is set" : gdn_cuda_prefill_channels_why_not(ctx, args);
}

/* Runs a call of the family: by chunks if they take it, else token by token. */
static gdn_status run_family(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *memory,
                             void *stream)
{
    const struct gdn_cuda_form list[] = { { "channels", why_not_channels(ctx, args) },
                                          { "tokens", NULL } };
    struct gdn_cuda_ran ran = { .n = 0 };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PREFILL_CHOICE, "prefill", list);
    if (list->why_not) return gdn_cuda_decode(ctx, "prefill", args, memory, stream);
    TRY(gdn_cuda_prefill_channels(ctx, args, memory, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}

/* ---- Every rule ------------------------------------------------------------------------------ */

size_t gdn_cuda_prefill_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                              struct gdn_cuda_cut_options options)
{
    if (rule->family.is)
        return why_not_channels(ctx, rule) ? 0 : gdn_cuda_prefill_channels_bytes(ctx, rule);
    return gdn_cuda_prefill_is_apart(rule) ? gdn_cuda_prefill_q8_bytes(ctx, rule, options)
                                           : gdn_cuda_prefill_chunks_bytes(ctx, rule, options);
}

/* Returns true if decode takes the sequences of one token, and then fills in their launch. There
 * may be many of them if sequences are short on average. How one of them is computed then depends
 * on the batch. */
static bool leaves_singles(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                           struct gdn_cuda_cut_options options, struct gdn_cuda_singles *singles)
{
    const struct gdn_cu_batch *b = &rule->batch;
    return b->cu_seqlens.data && b->B > 1 && b->N < b->B * MEAN_OF_SINGLES && !options.whole &&
           !gdn_cuda_prefill_sm90_why_not(ctx, rule) && gdn_cuda_takes_singles(ctx, rule, singles);
}

gdn_status gdn_cuda_prefill(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                            struct gdn_cuda_cut_options options, void *memory, void *stream)
{
    struct gdn_cuda_ran ran = { .n = 0 };
    if (rule->family.is) return run_family(ctx, rule, memory, stream);
    if (gdn_cuda_prefill_is_apart(rule))
        return gdn_cuda_prefill_q8(ctx, rule, options, memory, stream);
    struct gdn_cuda_singles singles;
    const struct gdn_cuda_chunks how = { .memory = memory,
                                         .options = options,
                                         .singles = leaves_singles(ctx, rule, options, &singles) };
    TRY(gdn_cuda_prefill_chunks(ctx, rule, &how, &ran, stream));
    if (how.singles) TRY(gdn_cuda_decode_singles(ctx, &singles, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}

/* ---- gdn_prefill --------------------------------------------------------------------------- */

_Static_assert(sizeof(struct gdn_cu_rule) <= GDN_PLAN_ROOM, "a plan has room");

static struct gdn_cuda_cut_options cut_options_of(const struct gdn_rule_call *c)
{
    return gdn_cuda_cut_options_of(c->args.flags, &c->plan.batch);
}

/* Returns true if the call goes token by token, as decode: with GDN_EXACT, and if rows have several
 * dtypes. Rules of the family choose for themselves. */
static bool goes_by_tokens(const struct gdn_cu_rule *args)
{
    return !args->family.is && (args->exact || gdn_cuda_mixes_dtypes(args));
}

/* Plans the workspace for segments and states of 8 bits. */
static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c = call;
    struct gdn_cu_rule *args = GDN_PLANNED(struct gdn_cu_rule, &c->base);
    TRY(gdn_cuda_check_channels(ctx, &c->rule));
    gdn_cuda_fill_call(args, c);
    if (!goes_by_tokens(args)) c->base.bytes = gdn_cuda_prefill_bytes(ctx, args, cut_options_of(c));
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rule_call *c = call;
    const struct gdn_cu_rule *args = GDN_PLANNED(struct gdn_cu_rule, &c->base);
    TRY(gdn_cuda_check_rule(ctx, c));
    if (goes_by_tokens(args)) return gdn_cuda_decode(ctx, c->base.op, args, memory, c->base.stream);
    return gdn_cuda_prefill(ctx, args, cut_options_of(c), memory, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_prefill = { plan, run };
