/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a form for gdn_decode. `forms` lists them, the fastest first. The first form whose
 * function has no reason against a call takes it. docs/gpu/decode-kernels.md lists the conditions.
 *
 * A why_not function returns a reason as text for the log, or NULL.
 */
#include "cuda/decode/select.h"

#include <stdio.h>

#include "core/limits.h"
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

/* ---- Strides of 32 bits -------------------------------------------------------------------- */

bool gdn_cuda_is_near(int64_t step, int64_t n)
{
    return step >= INT32_MIN / n && step <= INT32_MAX / n;
}

bool gdn_cuda_are_near(const struct gdn_rows *r)
{
    return !r->data || (gdn_cuda_is_near(r->batch, 1) && gdn_cuda_is_near(r->token, 1) &&
                        gdn_cuda_is_near(r->head, 1));
}

bool gdn_cuda_is_near_vector(const struct gdn_cu_array *a)
{
    return !a->data || gdn_cuda_is_near(a->stride[0], (int64_t)gdn_dtype_bytes(a->dtype));
}

/* Checks that all steps from line to line of a state fit 32 bits. */
static bool is_near_pool(const struct gdn_pool_view *p, int V)
{
    const int most_lines = V > GDN_MAX_HEAD ? GDN_MAX_VALUE : GDN_MAX_HEAD;
    return !p->data || (gdn_cuda_is_near(p->slot, 4) && gdn_cuda_is_near(p->head, 4) &&
                        gdn_cuda_is_near(p->ld, 4 * most_lines));
}

/* Checks a list that has one number for each row of a grid. */
static bool is_near_list(const struct gdn_cu_array *a)
{
    return !a->data || gdn_cuda_is_near(a->stride[0], MOST_ROWS);
}

/* Checks a table by the sum of its steps along rows and along columns. */
static bool is_near_table(const struct gdn_cu_array *a)
{
    return !a->data || (gdn_cuda_is_near(a->stride[0], 2 * MOST_ROWS) &&
                        gdn_cuda_is_near(a->stride[1], 2 * ((int64_t)a->n_columns + 1)));
}

static bool are_near(const struct gdn_cu_rule *r)
{
    return gdn_cuda_are_near(&r->q) && gdn_cuda_are_near(&r->k) && gdn_cuda_are_near(&r->v) &&
           gdn_cuda_are_near(&r->g) && gdn_cuda_are_near(&r->beta) && gdn_cuda_are_near(&r->out) &&
           is_near_pool(&r->from, r->V) && is_near_pool(&r->to, r->V) &&
           gdn_cuda_is_near_vector(&r->A_log) && gdn_cuda_is_near_vector(&r->dt_bias);
}

/* ---- Alignment ----------------------------------------------------------------------------- */

bool gdn_decode_is_wide(const struct gdn_rows *rows, int K)
{
    const uint64_t all = (uint64_t)(uintptr_t)rows->data | (uint64_t)rows->batch |
                         (uint64_t)rows->token | (uint64_t)rows->head;
    return K % 4 == 0 && (all & (4 * gdn_dtype_bytes(rows->dtype) - 1)) == 0;
}

/* Checks that rows can be read in pieces of 16 bytes. */
static bool are_pieces(const struct gdn_cu_near *r)
{
    return (uintptr_t)r->data % 16 == 0 && r->row % 16 == 0 && r->token % 16 == 0 &&
           r->head % 16 == 0;
}

/* Checks that states can be read in pieces of 16 bytes. */
static bool is_pieces(const struct gdn_cu_pool *p)
{
    return (uintptr_t)p->data % 16 == 0 && p->slot % 16 == 0 && p->head % 16 == 0 &&
           p->row % 16 == 0;
}

const char *gdn_decode_why_not_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (r->exact) return "GDN_EXACT is set";
    if (r->K != 64 && r->K != 128 && r->K != 256) return "K is not 64, 128 or 256";
    if (r->V % WARP_COLUMNS) return "V is not a multiple of 16";
    if (!is_pieces(&a->from) || !is_pieces(&a->to)) return "states are not aligned to 16 bytes";
    return NULL;
}

/* Returns why the rows of q and k, or the states, are not whole tiles of 16-byte pieces. */
static const char *why_not_tiles(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (!are_pieces(&a->q) || !are_pieces(&a->k)) return "q or k is not aligned to 16 bytes";
    return gdn_decode_why_not_whole(r, a);
}

/* ---- Conditions of every form but general and walk ----------------------------------------- */

/* Returns why warps cannot read and write states in whole, aligned pieces of one dtype and
 * layout. */
static const char *why_not_pool(const struct gdn_cu_rule *r, const struct gdn_pool_view *view)
{
    const struct gdn_pool_view *pool = gdn_decode_pool(r);
    const int64_t bytes = (int64_t)gdn_dtype_bytes(pool->dtype);
    const int64_t piece = pool->k_first ? 16 / bytes : 4;
    if (!view->data) return NULL;
    if (view->gap) return "states have no stride of 1";
    if (view->dtype != pool->dtype || view->k_first != pool->k_first)
        return "states come and go in different dtypes or layouts";
    if ((uintptr_t)view->data % (uintptr_t)(piece * bytes) || view->slot % piece ||
        view->head % piece || view->ld % piece || (pool->k_first ? r->V : r->K) % piece)
        return "states are not in aligned pieces of 16 bytes or 4 elements";
    return NULL;
}

static const char *why_not_chain(const struct gdn_cu_rule *r)
{
    if (r->batch.parents.data) return "the batch is a tree";
    return r->record_k.data ? "the call has a record" : NULL;
}

static const char *why_eight(const struct gdn_cu_rule *r)
{
    return gdn_is_q8(r->from.dtype) || gdn_is_q8(r->to.dtype) || gdn_is_q8(r->checkpoints.dtype)
               ? "states have 8 bits"
               : NULL;
}

/* Returns why only the walk takes the call. */
static const char *why_walk(const struct gdn_cu_rule *r)
{
    const char *why = why_not_chain(r);
    return why ? why : why_eight(r);
}

static const char *why_not_batch(const struct gdn_cu_batch *b)
{
    if (b->token_start.data) return "token_start is given";
    if (b->token_count.data) return "token_count is given";
    if (b->checkpoint_pool >= 0) return "checkpoints are written";
    if (b->pad_policy == GDN_PAD_SINK) return "pad_policy is GDN_PAD_SINK";
    if (b->B >= INT32_MAX || b->N > INT32_MAX || b->T > INT32_MAX || b->read_pool >= INT32_MAX ||
        b->write_pool >= INT32_MAX || b->first_slot >= INT32_MAX)
        return "more sequences, tokens or slots than 32 bits count";
    return NULL;
}

/* Returns why no kernel of 32-bit strides takes the call, apart from trees, records and the
 * rule. */
static const char *why_not_near(const struct gdn_cu_rule *r)
{
    const char *why = why_not_batch(&r->batch);
    if (!why && r->head_map != GDN_HEADS_GROUPED) why = "head_map is interleaved";
    if (!why && gdn_cuda_mixes_dtypes(r)) why = "q, k, v and out have several dtypes";
    if (!why && r->H > 1024) why = "H is above 1024";
    if (!why) why = why_not_pool(r, &r->from);
    if (!why) why = why_not_pool(r, &r->to);
    if (!why && !are_near(r)) why = "a stride does not fit 32 bits";
    return why;
}

static const char *why_not_form(const struct gdn_cu_rule *r)
{
    const char *why = why_not_chain(r);
    return why ? why : why_not_near(r);
}

static const char *why_not_gdn(const struct gdn_cu_rule *r)
{
    return r->family.is ? "the rule has channels, a write gate or updates" : NULL;
}

static const char *why_not_warps(const struct gdn_cu_rule *r)
{
    const char *why = why_walk(r);
    if (!why) why = why_not_gdn(r);
    return why ? why : why_not_form(r);
}

bool gdn_cuda_mixes_dtypes(const struct gdn_cu_rule *r)
{
    return r->k.dtype != r->q.dtype || r->v.dtype != r->q.dtype ||
           (r->out.data && r->out.dtype != r->q.dtype);
}

bool gdn_cuda_takes_warps(const struct gdn_cu_rule *args) { return !why_not_warps(args); }

/* ---- Conditions of the token forms and of window k128 -------------------------------------- */

static const char *why_not_slots(const struct gdn_cu_warp *a)
{
    const struct gdn_cu_array *read = &a->read_slots, *write = &a->write_slots;
    if ((read->data && read->dtype != GDN_I32) || (write->data && write->dtype != GDN_I32))
        return "slots are int64";
    if (!is_near_list(read) || !is_near_list(write)) return "slots are too far apart";
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
    return a->each ? "every token's state is kept" : why_not_tiles(r, a);
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
    return why ? why : why_not_tiles(c->rule, &c->warp);
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
    if (!is_near_list(&a->has_initial_state) || !is_near_list(&a->cu_seqlens))
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
    if (!why) why = why_eight(r);
    if (!why) why = why_not_gdn(r);
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
    if (!is_near_list(&a->num_accepted_tokens) || !is_near_table(&a->read_slots) ||
        !is_near_table(&a->write_slots))
        return "slots or num_accepted_tokens are too far apart";
    const char *why = why_not_k128_states(c);
    return why ? why : why_not_tiles(c->rule, a);
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
    return why_not_tiles(c->rule, a);
}

/* ---- The forms ----------------------------------------------------------------------------- */

static const char *why_not_warp(const struct gdn_decode_call *c) { return c->not_warp; }
static const char *why_not_general(const struct gdn_decode_call *c) { return why_walk(c->rule); }
static const char *why_not_walk(const struct gdn_decode_call *c)
{
    (void)c;
    return NULL;
}

/* The order of forms decides which one runs: tests/cuda/unit_cuda_decode_select.c compares the
 * choice with a list. */
static const struct decode_form {
    enum gdn_cuda_family family;
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
    { GDN_CUDA_FOLD, why_not_fold, gdn_decode_launch_fold, NULL },
    { GDN_CUDA_WALK, why_not_walk, gdn_decode_launch_walk, gdn_decode_walk_bytes },
};

enum { N_FORMS = sizeof forms / sizeof *forms };

/* Returns why form i does not take the call, or NULL. The last form takes every call. */
static const char *why_not(const struct gdn_decode_call *c, int i)
{
    if (gdn_cuda_is_off(c->ctx, forms[i].family)) return "it is switched off";
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
        list[j] = (struct gdn_cuda_form){ gdn_cuda_family_name(forms[j].family), why_not(c, j) };
    snprintf(op, sizeof op, c->n_runs > 1 ? "%s: %d runs of heads" : "%s", c->op, c->n_runs);
    gdn_cuda_log_forms(
        c->ctx, c->rule->record_k.data ? GDN_CUDA_RECORD_CHOICE : GDN_CUDA_DECODE_CHOICE, op, list);
}

/* ---- The family ----------------------------------------------------------------------------- */

/* Returns why one window does not hold all updates of each sequence. */
static const char *why_not_few(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    const char *why = why_walk(r);
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
    const char *why = gdn_cuda_is_off(c->ctx, GDN_CUDA_TOKEN) ? "it is switched off" : why_walk(r);
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
                                          { "channels", why_walk(c->rule) },
                                          { "channels walk", NULL } };
    gdn_cuda_log_forms(c->ctx, GDN_CUDA_DECODE_CHOICE, c->op, list);
}

static int choose_family(const struct gdn_decode_call *c)
{
    if (!why_not_fold(c)) return CHANNELS_FOLD;
    if (!why_not_channels_token(c)) return CHANNELS_TOKEN;
    if (!why_not_few(c->rule)) return CHANNELS_FEW;
    return why_walk(c->rule) ? CHANNELS_WALK : CHANNELS;
}

static gdn_status launch_family(const struct gdn_decode_call *c, int form)
{
    static gdn_status (*const launches[])(const struct gdn_decode_call *c) = {
        gdn_decode_launch_channels_token, gdn_decode_launch_channels_few,
        gdn_decode_launch_channels, gdn_decode_launch_fold, gdn_decode_launch_walk
    };
    if (form != CHANNELS_FOLD) log_family(c);
    return launches[form](c);
}

/* ---- The call ------------------------------------------------------------------------------ */

/* Finds the reasons that several forms share. */
static void find_reasons(struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    c->not_near = why_not_near(r);
    c->not_form = why_not_chain(r);
    if (!c->not_form) c->not_form = c->not_near;
    c->not_step = why_not_gdn(r);
    if (!c->not_step) c->not_step = c->not_form;
    if (!c->not_step && (!gdn_decode_is_wide(&r->q, r->K) || !gdn_decode_is_wide(&r->k, r->K)))
        c->not_step = "rows of q or k are not in aligned chunks of four";
    c->not_warp = why_walk(r);
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
    if (!are_pieces(&c->warp.q) || !are_pieces(&c->warp.k))
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
