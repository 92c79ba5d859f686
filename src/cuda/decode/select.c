/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a form for gdn_decode. `forms` lists them, the fastest first. The first form whose
 * function has no reason against a call takes it. docs/gpu/decode-kernels.md lists the conditions.
 *
 * A why_not function returns a reason as text for the log, or NULL.
 */
#include "cuda/decode/select.h"

#include <stdio.h>

#include "cuda/driver/choice.h"

enum {
    SLOTS_K = 128,
    PACKED_K = 128,
    SINGLE_K = 128,
    EIGHT_K = 128,
    WINDOW_K = 128,
    LAZY_K = 128,
    CHANNELS_K = 128
};

/* With more blocks on a multiprocessor, the token slots kernel is no faster than the token kernel
 * (docs/log/cuda-speed.md). Both give the same bits (G2). */
enum { SLOTS_BLOCKS = 64 };

/* ---- Conditions of the token forms and of window k128 -------------------------------------- */

static const char *why_not_slots(const struct gdn_cu_warp *a)
{
    const struct gdn_cu_array *read = &a->read_slots, *write = &a->write_slots;
    if ((read->data && read->dtype != GDN_I32) || (write->data && write->dtype != GDN_I32))
        return "slots are int64";
    if (!gdn_decode_is_near_list(read) || !gdn_decode_is_near_list(write))
        return "slots are too far apart";
    if (read->data) return NULL;
    /* Without read_slots the kernels do not check that a slot exists. */
    if (write->data && !a->each) return "write_slots without read_slots";
    return gdn_decode_has_slots(a) ? NULL : "fewer slots than sequences";
}

/* Returns true if the tensor is absent, float32 or of dtype io. */
static bool is_either(const void *data, int32_t dtype, int32_t io)
{
    return !data || dtype == GDN_F32 || dtype == io;
}

static const char *why_not_dtypes(const struct gdn_cu_warp *a, const struct gdn_pool_view *pool)
{
    const int32_t io = a->k.dtype;
    const bool is_other = pool->dtype == GDN_BF16 || pool->dtype == GDN_F16;
    if (io == GDN_F32) return "q, k and v are float32";
    if (a->q.dtype != io || a->v.dtype != io || (a->out.data && a->out.dtype != io) ||
        (is_other && pool->dtype != io))
        return "q, k, v, out and states mix two dtypes of 16 bits";
    if (!is_either(a->g.data, a->g.dtype, io) || !is_either(a->beta.data, a->beta.dtype, io) ||
        !is_either(a->A_log.data, a->A_log.dtype, io) ||
        !is_either(a->dt_bias.data, a->dt_bias.dtype, io))
        return "a gate is neither float32 nor of the dtype of k";
    return NULL;
}

static const char *why_not_small(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    const struct gdn_pool_view *pool = gdn_decode_pool(r);
    const char *why = a->from.data ? why_not_slots(a) : "no states are read";
    if (!why && a->B > MOST_ROWS) why = "more than 65535 sequences";
    if (!why) why = why_not_dtypes(a, pool);
    if (!why && pool->k_first && r->V % TOKEN_COLUMNS) why = "V is not a multiple of 64";
    if (!why && r->V % WARP_COLUMNS) why = "V is not a multiple of 16";
    return why;
}

/* ---- Token --------------------------------------------------------------------------------- */

/* Returns why the states are not `whole`. gdn_cuda_fill_warp() sets that without rows of q and k,
 * because gdn_step reads none. */
static const char *why_not_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (a->whole) return NULL;
    return a->each ? "every token's state is kept" : gdn_decode_why_not_tiles(r, a);
}

/* Returns why the sequences do not have 1 to `most` tokens each. */
static const char *why_not_rows_of(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a,
                                   int most)
{
    if (a->cu_seqlens.data) return "cu_seqlens is given";
    if (most == 1 && a->T != 1) return "T is not 1";
    if (a->T < 1 || a->T > most) return "T is 0, or more than the form takes";
    if (a->has_initial_state.data) return "has_initial_state is given";
    if (a->num_accepted_tokens.data) return "num_accepted_tokens is given";
    return why_not_whole(r, a);
}

/* Returns why warps cannot take up to `most` tokens of each sequence with states in whole tiles. */
static const char *why_not_tiles_of(const struct gdn_decode_call *c, int most)
{
    const char *why = why_not_small(c->rule, &c->warp);
    if (!why) why = why_not_rows_of(c->rule, &c->warp, most);
    return why ? why : gdn_decode_why_not_tiles(c->rule, &c->warp);
}

bool gdn_cuda_takes_one(const struct gdn_cu_rule *args, const struct gdn_cu_warp *warp)
{
    return !why_not_small(args, warp) && !why_not_rows_of(args, warp, 1);
}

static const char *why_not_token(const struct gdn_decode_call *c)
{
    return c->not_token ? c->not_token : why_not_rows_of(c->rule, &c->warp, 1);
}

/* Form `token slots` takes a few blocks alone: these wait longer for slots than for bandwidth. */
static const char *why_not_token_slots(const struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    const char *why = why_not_token(c);
    if (why) return why;
    if (!c->warp.read_slots.data || c->warp.read_pool <= 0) return "no read_slots";
    if (r->K != SLOTS_K) return "K is not 128";
    if (c->pool->dtype != r->k.dtype) return "states are float32";
    if (c->pool->k_first) return "states are k-first";
    const int64_t blocks = gdn_decode_sequences(r) * r->H * (r->V / WARP_COLUMNS);
    return blocks <= (int64_t)SLOTS_BLOCKS * c->ctx->cuda->sm_count
               ? NULL
               : "more than 64 blocks for each multiprocessor";
}

/* Returns why kernels that read cu_seqlens and has_initial_state do not take these, the slots or
 * the states. most: the most sequences. */
static const char *why_not_lists(const struct gdn_decode_call *c, int most)
{
    const struct gdn_cu_warp *a = &c->warp;
    if (a->num_accepted_tokens.data) return "num_accepted_tokens is given";
    if (a->has_initial_state.data && a->has_initial_state.dtype == GDN_I64)
        return "has_initial_state is int64";
    if (a->B > most || a->read_pool <= 0) return "65535 sequences or more, or no slots";
    if (!gdn_decode_is_near_list(&a->has_initial_state) || !gdn_decode_is_near_list(&a->cu_seqlens))
        return "has_initial_state or cu_seqlens is too far apart";
    return why_not_whole(c->rule, a);
}

static const char *why_not_token_packed(const struct gdn_decode_call *c)
{
    const struct gdn_cu_warp *a = &c->warp;
    if (c->not_token) return c->not_token;
    if (c->rule->K != PACKED_K && c->pool->k_first && c->pool->dtype != GDN_F32)
        return "K is not 128, and states are k-first and of 16 bits";
    if (a->cu_seqlens.data && a->N != a->B) return "cu_seqlens with N other than B";
    if (!a->cu_seqlens.data && a->T != 1) return "T is not 1";
    return why_not_lists(c, MOST_ROWS - 1); /* one row is for the output behind the last sequence */
}

/* ---- Sequences of one token that gdn_prefill leaves out ------------------------------------ */

static const char *why_not_singles(const struct gdn_decode_call *c)
{
    if (c->not_token) return c->not_token;
    if (c->rule->K != SINGLE_K) return "K is not 128";
    return c->warp.cu_seqlens.data ? why_not_lists(c, MOST_ROWS) : "no cu_seqlens";
}

/* ---- States of 8 bits ---------------------------------------------------------------------- */

static const char *why_not_scales(const struct gdn_pool_view *p)
{
    const bool near = gdn_cuda_is_near(p->scales_slot, 4) && gdn_cuda_is_near(p->scales_head, 4);
    if (p->data && !p->scales) return "states have no scales";
    return !p->data || near ? NULL : "a stride of scales does not fit 32 bits";
}

static const char *why_not_token_eight(const struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    if (c->not_step) return c->not_step;
    if (!gdn_is_q8(c->pool->dtype)) return "states do not have 8 bits";
    if (r->K != EIGHT_K || r->V % EIGHT_ROWS) return "K is not 128, or V not a multiple of 32";
    if (c->pool->dtype == GDN_E5M2) return "states are e5m2";
    if (c->pool->k_first) return "states are k-first";
    const char *why = why_not_scales(&r->from);
    if (!why) why = why_not_scales(&r->to);
    if (!why) why = why_not_small(r, &c->warp);
    return why ? why : why_not_rows_of(r, &c->warp, 1);
}

/* ---- Records that accept tokens at once ------------------------------------------------------ */

/* Returns why no kernel of lazy/ for up to `most` tokens takes the call. */
static const char *why_not_of_record(const struct gdn_decode_call *c, int most)
{
    const struct gdn_cu_rule *r = c->rule;
    const char *why = gdn_decode_why_not_record(r);
    if (!why) why = gdn_decode_why_eight(r);
    if (!why) why = gdn_decode_why_not_gdn(r);
    if (!why) why = c->not_near;
    if (!why) why = why_not_tiles_of(c, most);
    return !why && r->K != LAZY_K ? "K is not 128" : why;
}

/* Form `lazy few` takes states that it saves no time not to write, and k-first ones. */
static const char *why_not_lazy_few(const struct gdn_decode_call *c)
{
    const char *why = why_not_of_record(c, 1);
    if (!why && c->warp.read_pool <= 0) why = "no slots";
    if (why || c->pool->k_first) return why;
    return gdn_decode_lazy_why_slower(c) ? NULL
                                         : "lazy saves more than 325 KiB for each multiprocessor";
}

/* Without `lazy few`, `lazy` takes any number of tokens and states (docs/gpu/decode-kernels.md). */
static const char *why_not_lazy(const struct gdn_decode_call *c)
{
    const char *why = why_not_of_record(c, GDN_CU_LAZY_TOKENS);
    const bool any = c->warp.T == 1 || gdn_cuda_is_off(c->ctx, GDN_CUDA_LAZY_FEW);
    if (!why && !any) why = gdn_decode_lazy_why_slower(c);
    if (!why && c->pool->k_first) why = "states are k-first";
    return !why && c->pool->dtype != GDN_F32 && c->rule->V % LAZY_COLUMNS
               ? "V is not a multiple of 32"
               : why;
}

/* Returns why the call is not one without a record behind a fold. */
static const char *why_not_fold(const struct gdn_decode_call *c)
{
    if (!c->rule->record_k.data) return "the call has no record";
    return gdn_decode_accepts(c->rule) ? NULL : "the tokens are drafts";
}

/* ---- Windows ------------------------------------------------------------------------------- */

/* Returns why form `window k128` does not take the states. If they are k-last, the state after
 * every token may be kept. If they are float32 too, T may be any number. */
static const char *why_not_k128_states(const struct gdn_decode_call *c)
{
    const bool f32 = c->pool->dtype == GDN_F32, each = c->warp.each;
    if (c->warp.T > FEW_TOKENS && !each) return "T is above 4";
    if (c->warp.T > FEW_TOKENS && !f32) return "T is above 4, and states are not float32";
    if (f32 || each) return c->pool->k_first ? "float32 or kept states are k-first" : NULL;
    return c->pool->dtype == GDN_BF16 ? NULL : "states are float16";
}

static const char *why_not_window_k128(const struct gdn_decode_call *c)
{
    const struct gdn_cu_warp *a = &c->warp;
    if (c->not_token) return c->not_token;
    if (c->rule->K != WINDOW_K) return "K is not 128";
    if (a->cu_seqlens.data) return "cu_seqlens is given";
    if (a->T <= 0) return "there are no tokens";
    if (a->has_initial_state.data) return "has_initial_state is given";
    if (a->num_accepted_tokens.data && a->num_accepted_tokens.dtype != GDN_I32)
        return "num_accepted_tokens is not int32";
    if (!gdn_decode_is_near_list(&a->num_accepted_tokens) ||
        !gdn_decode_is_near_table(&a->read_slots) || !gdn_decode_is_near_table(&a->write_slots))
        return "slots or num_accepted_tokens are too far apart";
    const char *why = why_not_k128_states(c);
    return why ? why : gdn_decode_why_not_tiles(c->rule, a);
}

static const char *why_not_window(const struct gdn_decode_call *c)
{
    const struct gdn_cu_warp *a = &c->warp;
    if (c->not_warp) return c->not_warp;
    if (c->rule->k.dtype != GDN_BF16 || c->rule->v.dtype != GDN_BF16)
        return "q, k and v are not bfloat16";
    if (c->pool->dtype == GDN_F16) return "states are float16";
    if (a->each && c->pool->k_first) return "every token's state is kept, and k-first";
    if (!a->each) {
        if (a->cu_seqlens.data) return "cu_seqlens is given";
        if (!c->pool->k_first && a->T <= FEW_TOKENS) return "T is at most 4";
        if (c->pool->k_first && a->T <= 0) return "there are no tokens";
        if (c->pool->k_first && a->V % FEW_COLUMNS) return "V is not a multiple of 64";
    }
    return gdn_decode_why_not_tiles(c->rule, a);
}

/* ---- A fold first --------------------------------------------------------------------------- */

static gdn_status decode_folded(const struct gdn_decode_call *c)
{
    struct gdn_cu_rule plain = *c->rule;
    struct gdn_cuda_decode_plan plan;
    TRY(gdn_cuda_fold_first(c->ctx, c->rule, false, c->stream));
    plain.record_k.data = NULL;
    gdn_cuda_decode_plan(c->ctx, c->op, &plain, &plan);
    return gdn_cuda_decode_run(&plan, c->memory, c->stream);
}

/* Folds first, then decodes as without a record. */
static gdn_status launch_fold(const struct gdn_decode_call *c)
{
    struct gdn_cuda_ran ran;
    gdn_cuda_gather(c->ctx, &ran);
    return gdn_cuda_note_gathered(c->ctx, c->op, decode_folded(c));
}

/* ---- The forms ----------------------------------------------------------------------------- */

static const char *why_not_warp(const struct gdn_decode_call *c) { return c->not_warp; }
static const char *why_not_general(const struct gdn_decode_call *c)
{
    return gdn_decode_why_walk(c->rule);
}
static const char *why_not_walk(const struct gdn_decode_call *c)
{
    (void)c;
    return NULL;
}

/* The order of forms decides which one runs: tests/cuda/unit_cuda_decode_select.c compares the
 * choice with a list. */
static const struct decode_form {
    enum gdn_cuda_switch name;
    const char *(*why_not)(const struct gdn_decode_call *c);
    gdn_status (*launch)(const struct gdn_decode_call *c);
    size_t (*bytes)(const gdn_ctx *ctx, const struct gdn_cu_rule *r); /* of memory; NULL: none */
} forms[] = {
    { GDN_CUDA_TOKEN_SLOTS, why_not_token_slots, gdn_decode_launch_token_slots, NULL },
    { GDN_CUDA_TOKEN, why_not_token, gdn_decode_launch_token, NULL },
    { GDN_CUDA_TOKEN_PACKED, why_not_token_packed, gdn_decode_launch_token_packed, NULL },
    { GDN_CUDA_WINDOW_K128, why_not_window_k128, gdn_decode_launch_window_k128, NULL },
    { GDN_CUDA_WINDOW, why_not_window, gdn_decode_launch_window, NULL },
    { GDN_CUDA_WARP, why_not_warp, gdn_decode_launch_warp, NULL },
    { GDN_CUDA_TOKEN_EIGHT, why_not_token_eight, gdn_decode_launch_token_eight, NULL },
    { GDN_CUDA_GENERAL, why_not_general, gdn_decode_launch_general, NULL },
    { GDN_CUDA_LAZY_FEW, why_not_lazy_few, gdn_decode_launch_lazy_few, NULL },
    { GDN_CUDA_LAZY, why_not_lazy, gdn_decode_launch_lazy, gdn_decode_lazy_bytes },
    { GDN_CUDA_FOLD, why_not_fold, launch_fold, NULL },
    { GDN_CUDA_WALK, why_not_walk, gdn_decode_launch_walk, gdn_decode_walk_bytes },
};

enum { N_FORMS = sizeof forms / sizeof *forms };

/* Returns why form i does not take the call, or NULL. The last form takes every call. */
static const char *why_not(const struct gdn_decode_call *c, int i)
{
    if (gdn_cuda_is_off(c->ctx, forms[i].name)) return "it is switched off";
    return forms[i].why_not(c);
}

/* Logs form i, which takes the call, and why the faster ones do not: "decode: general (head_map is
 * interleaved)", "decode: 2 runs of heads: token slots". Behind the line of a fold comes that of
 * the call without a record, so those with a record are compared with each other. */
static void log_choice(const struct gdn_decode_call *c, int i)
{
    struct gdn_cuda_form list[N_FORMS];
    char op[80];
    if (!c->ctx->options.log) return;
    for (int j = 0; j <= i; j++)
        list[j] = (struct gdn_cuda_form){ gdn_cuda_switch_name(forms[j].name), why_not(c, j) };
    snprintf(op, sizeof op, c->n_runs > 1 ? "%s: %d runs of heads" : "%s", c->op, c->n_runs);
    gdn_cuda_log_forms(
        c->ctx, c->rule->record_k.data ? GDN_CUDA_RECORD_CHOICE : GDN_CUDA_DECODE_CHOICE, op, list);
}

/* ---- The family ----------------------------------------------------------------------------- */

/* Returns why one window does not hold all updates of each sequence. */
static const char *why_not_few(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    const char *why = gdn_decode_why_walk(r);
    if (why) return why;
    const int64_t n = b->cu_seqlens.data ? b->N : b->T;
    return n <= GENERAL_WINDOW / r->family.updates ? NULL
                                                   : "a sequence may have more than 4 updates";
}

/* Returns why the rule does not have gates per channel and one beta, or why the gates do not lie in
 * pieces of 16 bytes. */
static const char *why_not_channels(const struct gdn_cu_rule *r)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(r->g.dtype);
    if (!r->family.g_rows || r->family.beta_rows || r->family.write.data || r->family.updates > 1)
        return "the rule has an erase gate, a write gate or updates";
    if (r->family.g_channel != bytes) return "gates of a head do not lie side by side";
    if (((uintptr_t)r->g.data | (uint64_t)r->g.batch | (uint64_t)r->g.token | (uint64_t)r->g.head) %
        16)
        return "gates are not aligned to 16 bytes";
    if (r->dt_bias.data && (r->dt_bias.stride[1] != 1 || (uintptr_t)r->dt_bias.data % 16 ||
                            r->dt_bias.stride[0] * (int64_t)gdn_dtype_bytes(r->dt_bias.dtype) % 16))
        return "dt_bias is not in pieces of 16 bytes";
    return NULL;
}

/* Returns why channels/token.cuh does not take the call. */
static const char *why_not_channels_token(const struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    const char *why =
        gdn_cuda_is_off(c->ctx, GDN_CUDA_TOKEN) ? "it is switched off" : gdn_decode_why_walk(r);
    if (!why) why = why_not_channels(r);
    if (!why) why = c->not_form;
    if (!why) why = why_not_tiles_of(c, 1);
    if (!why && r->K != CHANNELS_K) why = "K is not 128";
    return !why && c->pool->k_first ? "states are k-first" : why;
}

/* The family's forms. A fold logs nothing: the call without a record follows, which does. */
enum { CHANNELS_TOKEN, CHANNELS_FEW, CHANNELS, CHANNELS_FOLD, CHANNELS_WALK };

static void log_family(const struct gdn_decode_call *c)
{
    if (!c->ctx->options.log) return;
    const struct gdn_cuda_form list[] = { { "channels token", why_not_channels_token(c) },
                                          { "channels few", why_not_few(c->rule) },
                                          { "channels", gdn_decode_why_walk(c->rule) },
                                          { "channels walk", NULL } };
    gdn_cuda_log_forms(c->ctx, GDN_CUDA_DECODE_CHOICE, c->op, list);
}

static int choose_family(const struct gdn_decode_call *c)
{
    if (!why_not_fold(c)) return CHANNELS_FOLD;
    if (!why_not_channels_token(c)) return CHANNELS_TOKEN;
    if (!why_not_few(c->rule)) return CHANNELS_FEW;
    return gdn_decode_why_walk(c->rule) ? CHANNELS_WALK : CHANNELS;
}

static gdn_status launch_family(const struct gdn_decode_call *c, int form)
{
    static gdn_status (*const launches[])(const struct gdn_decode_call *c) = {
        gdn_decode_launch_channels_token, gdn_decode_launch_channels_few,
        gdn_decode_launch_channels, launch_fold, gdn_decode_launch_walk
    };
    if (form != CHANNELS_FOLD) log_family(c);
    return launches[form](c);
}

/* ---- The call ------------------------------------------------------------------------------ */

/* Finds the reasons that several forms share. */
static void find_reasons(struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    c->not_near = gdn_decode_why_not_near(r);
    c->not_form = gdn_decode_why_not_chain(r);
    if (!c->not_form) c->not_form = c->not_near;
    c->not_step = gdn_decode_why_not_gdn(r);
    if (!c->not_step) c->not_step = c->not_form;
    if (!c->not_step && (!gdn_decode_is_wide(&r->q, r->K) || !gdn_decode_is_wide(&r->k, r->K)))
        c->not_step = "rows of q or k are not in aligned chunks of four";
    c->not_warp = gdn_decode_why_walk(r);
    if (!c->not_warp) c->not_warp = c->not_step;
    c->not_token = c->not_warp;
}

/* Fills in the fields that follow from the rule and from the reasons. */
static void fill(struct gdn_decode_call *c, const struct gdn_cu_rule *r)
{
    c->rule = r;
    c->pool = gdn_decode_pool(r);
    if (c->not_near) return;
    gdn_cuda_fill_warp(&c->warp, r);
    if (!gdn_decode_are_pieces(&c->warp.q) || !gdn_decode_are_pieces(&c->warp.k))
        c->warp.whole = c->warp.products = false;
}

static void describe(struct gdn_decode_call *c, gdn_ctx *ctx, const char *op,
                     const struct gdn_cu_rule *r)
{
    c->ctx = ctx;
    c->op = op;
    c->rule = r;
    find_reasons(c);
    fill(c, r);
    if (!c->not_token) c->not_token = why_not_small(r, &c->warp);
}

static int choose(const struct gdn_decode_call *c)
{
    int i = 0;
    if (c->rule->family.is) return choose_family(c);
    while (why_not(c, i)) i++;
    return i;
}

static size_t bytes_of(const gdn_ctx *ctx, const struct gdn_cu_rule *r, int form)
{
    if (r->family.is) return gdn_decode_walk_bytes(ctx, r);
    return forms[form].bytes ? forms[form].bytes(ctx, r) : 0;
}

static gdn_status launch(const struct gdn_decode_call *c, int form)
{
    if (c->rule->family.is) return launch_family(c, form);
    log_choice(c, form);
    return forms[form].launch(c);
}

/* Plans the call. Its runs differ by multiples of the strides between heads, so they have one
 * form. */
void gdn_cuda_decode_plan(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                          struct gdn_cuda_decode_plan *plan)
{
    const int n_runs = gdn_decode_runs(args);
    struct gdn_cu_rule run;
    if (n_runs > 1) run = gdn_decode_run(args, n_runs, 0);
    plan->rule = args;
    plan->call.n_runs = n_runs;
    describe(&plan->call, ctx, op, n_runs > 1 ? &run : args);
    plan->form = choose(&plan->call);
    plan->bytes = bytes_of(ctx, args, plan->form);
    plan->call.rule = args;
}

/* Fills in the call again. A call of several runs is filled in for each run anyway. */
void gdn_cuda_decode_move(struct gdn_cuda_decode_plan *plan)
{
    if (plan->call.n_runs == 1) fill(&plan->call, plan->rule);
}

gdn_status gdn_cuda_decode_run(struct gdn_cuda_decode_plan *plan, void *memory, void *stream)
{
    struct gdn_decode_call *c = &plan->call;
    struct gdn_cu_rule run;
    c->memory = memory;
    c->stream = stream;
    if (c->n_runs == 1) return launch(c, plan->form);
    for (int i = 0; i < c->n_runs; i++) {
        run = gdn_decode_run(plan->rule, c->n_runs, i);
        fill(c, &run);
        TRY(launch(c, plan->form));
    }
    return GDN_OK;
}

bool gdn_cuda_takes_singles(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                            struct gdn_cuda_singles *singles)
{
    struct gdn_decode_call c;
    if (!gdn_cuda_has_kernel(ctx, GDN_CU_decode_token_single_vk_F32_BF16_128)) return false;
    describe(&c, ctx, "prefill", args);
    if (why_not_singles(&c)) return false;
    *singles = gdn_decode_singles_of(&c);
    return true;
}

void gdn_cuda_move_singles(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                           struct gdn_cuda_singles *singles)
{
    struct gdn_decode_call c;
    describe(&c, ctx, "prefill", args);
    *singles = gdn_decode_singles_of(&c);
}
