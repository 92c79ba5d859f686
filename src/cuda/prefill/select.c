/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a call of gdn_prefill: by chunks, which chunks.c chooses, by the chunks of a rule with
 * channels, or token by token. */
#include <stdio.h>

#include "calls/op_backends.h"
#include "calls/rule_call.h"
#include "core/tensor_check.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/choice.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

/* The mean length of sequences, above which those of one token are not left out. */
enum { MEAN_OF_SINGLES = 1024 };

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

/* Returns true if decode takes the sequences of one token, and fills in their launch. There may
 * be many of them only if sequences are short on average. So the kernel of such a sequence
 * depends on the batch. */
static bool leaves_singles(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                           const struct gdn_cuda_chunks *how, struct gdn_cuda_singles *singles)
{
    const struct gdn_cu_batch *b = &rule->batch;
    return how->form == GDN_PREFILL_SM90 && b->cu_seqlens.data && b->B > 1 &&
           b->N < b->B * MEAN_OF_SINGLES && !how->options.whole &&
           gdn_cuda_takes_singles(ctx, rule, singles);
}

static void plan_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                        struct gdn_cuda_cut_options options, struct gdn_cuda_prefill_plan *p)
{
    const bool apart = gdn_cuda_prefill_is_apart(rule);
    p->way = apart ? GDN_PREFILL_APART : GDN_PREFILL_BY_CHUNKS;
    p->chunks = (struct gdn_cuda_chunks){ .options = options };
    gdn_cuda_prefill_choose(ctx, rule, &p->chunks);
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

/* Returns rows of n elements that every form takes. */
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
        const int form = gdn_cuda_prefill_form_of(ctx, &aligned);
        if (form != gdn_cuda_prefill_form_of(ctx, rule))
            why = gdn_cuda_prefill_why_not(ctx, rule, form);
    }
    if (!why) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "flags: GDN_SPLIT_INVARIANT on a GPU, but %s", why);
}

/* Logs whether the call goes by chunks. Chunks of Gated DeltaNet log their forms themselves. */
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
    struct gdn_cuda_ran ran;
    struct gdn_cu_rule fold;
    gdn_cuda_fill_call(&fold, c);
    gdn_cuda_gather(ctx, &ran);
    gdn_status status =
        gdn_cuda_fold_first(ctx, &fold, c->pools.checkpoint_in_write, c->base.stream);
    if (status == GDN_OK)
        status = gdn_cuda_prefill_run(ctx, &p->rule, &p->plan, memory, c->base.stream);
    return gdn_cuda_note_gathered(ctx, "prefill", status);
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
