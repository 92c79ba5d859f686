/* SPDX-License-Identifier: Apache-2.0 */
/* GDN_SPLIT_INVARIANT with a record: two launches of prefill, of the open chunk and of the rest of
 * the tokens, and the kernels of split.cu around them. */
#include "cuda/split/split.h"

#include "core/tensor_check.h"
#include "cuda/prefill/prefill.h"

/* WARPS: of a block of plan(). */
enum { UNIT = GDN_SPLIT_UNIT, WARPS = 4 };

/* The decisions about a call. Chunks that are sequences of their own have no plan. */
struct planned {
    struct gdn_cu_rule open, rest;
    struct gdn_cuda_prefill_plan open_plan, rest_plan;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The workspace. states: after open chunks of drafts. inner: of either launch of prefill. */
struct rooms {
    char *numbers, *q, *k, *v, *out, *g, *beta, *states, *inner;
};

static size_t lay_out(const struct gdn_cu_split *a, size_t inner, struct rooms *at, char *memory)
{
    const struct gdn_cu_rule *r = &a->rule;
    const size_t n = a->rest == GDN_SPLIT_REST_NEXT ? 2 : 1,
                 size = gdn_dtype_bytes(r->record_k.dtype);
    const size_t rows = n * (size_t)(r->batch.B * a->most);
    const size_t K = (size_t)r->K * size, V = (size_t)r->V * size, H = (size_t)r->H;
    const bool keeps = !a->accepts && !a->folds && a->rest;
    const struct gdn_room rooms[] = {
        { &at->numbers, GDN_SPLIT_NUMBERS * (size_t)(r->batch.B + 1) * sizeof(int64_t) },
        { &at->q, r->out.data ? rows * (size_t)r->Hq * K : 0 },
        { &at->k, rows * (size_t)r->Hk * K },
        { &at->v, rows * H * V },
        { &at->out, r->out.data ? rows * H * V : 0 },
        { &at->g, rows * H * sizeof(float) },
        { &at->beta, rows * H * sizeof(float) },
        { &at->states,
          keeps ? (size_t)r->batch.B * H * (size_t)r->K * (size_t)r->V * sizeof(float) : 0 },
        { &at->inner, inner },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static int32_t narrow(int32_t x, int32_t y) { return x < y ? x : y; }

/* Returns the bytes of rows of n elements that move at once, to or from dense rows. */
static int32_t wide_of(const struct gdn_rows *rows, int n)
{
    const struct gdn_rows row = { .head = n * (int64_t)gdn_dtype_bytes(rows->dtype) };
    return narrow(gdn_cuda_rows_wide(rows), gdn_cuda_rows_wide(&row));
}

static int32_t wide_in_record(const struct gdn_rows *rows, const struct gdn_record_rows *record,
                              int n)
{
    const struct gdn_rows its = {
        .data = record->data, .batch = record->slot, .token = record->row, .head = record->head
    };
    return narrow(wide_of(rows, n), gdn_cuda_rows_wide(&its));
}

/* Returns dense rows [B][most][heads] of n elements. */
static struct gdn_rows dense_rows(const struct gdn_cu_split *a, char *data, int dtype, int heads,
                                  int n)
{
    const int64_t head = n * (int64_t)gdn_dtype_bytes(dtype), token = heads * head;
    return (struct gdn_rows){ data, dtype, a->most * token, token, head };
}

/* Returns whether kernels take open chunks as sequences of one chunk. */
static bool takes_one(const gdn_ctx *ctx, const struct gdn_cu_split *a)
{
    struct gdn_cu_rule r = a->rule;
    char *const at = GDN_CUDA_NOWHERE;
    r.batch.N = UNIT * r.batch.B;
    r.batch.padded = 0;
    r.q = r.k = dense_rows(a, at, r.record_k.dtype, r.Hk, r.K);
    r.Hq = r.Hk;
    r.v = r.out = dense_rows(a, at, r.record_k.dtype, r.H, r.V);
    r.Hv = r.H;
    return gdn_cuda_prefill_sm90_takes_each(ctx, &r);
}

/* Decides how open chunks and the rest are computed. Rows and tokens that are two chunks at most
 * are an open chunk and a next one. If the record has 64 rows, other tokens begin a chunk. Without
 * `one` a single token is always in the open chunk. */
static void choose(const gdn_ctx *ctx, struct gdn_cu_split *a)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    const int64_t R = a->rule.record_rows, tokens = a->folds ? 0 : b->padded ? b->T : b->N;
    const bool two = R + (a->folds ? 1 : tokens) <= 2 * UNIT;
    a->one = (two || R == UNIT) && takes_one(ctx, a);
    a->rest = a->folds || (!a->one && tokens <= 1) ? GDN_SPLIT_REST_NONE
              : a->one && two                      ? GDN_SPLIT_REST_NEXT
                                                   : GDN_SPLIT_REST_APART;
}

/* Fills in what does not depend on memory. rule is filled in before. */
static void fill(const gdn_ctx *ctx, struct gdn_cu_split *a, bool accepts, bool folds)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int64_t units = r->record_rows / UNIT;
    a->accepts = accepts;
    a->folds = folds;
    choose(ctx, a);
    a->most = UNIT * (a->one ? 1 : folds ? units : units + 1);
    a->q_wide = wide_of(&r->q, r->K);
    a->k_wide = wide_in_record(&r->k, &r->record_k, r->K);
    a->v_wide = wide_in_record(&r->v, &r->record_u, r->V);
    a->out_wide = wide_of(&r->out, r->V);
}

static void point(struct gdn_cu_split *a, const struct rooms *at)
{
    const bool outputs = a->rule.out.data;
    a->numbers = (int64_t *)(void *)at->numbers;
    a->q = outputs ? at->q : NULL;
    a->k = at->k;
    a->v = at->v;
    a->out = outputs ? at->out : NULL;
    a->g = (float *)(void *)at->g;
    a->beta = (float *)(void *)at->beta;
}

/* ---- The two launches of prefill ------------------------------------------------------------- */

static struct gdn_cu_array numbers_of(const struct gdn_cu_split *a, int which)
{
    return (struct gdn_cu_array){ .data = a->numbers + which * (a->rule.batch.B + 1),
                                  .stride = { 1 },
                                  .dtype = GDN_I64,
                                  .n_columns = 1 };
}

/* Takes from a batch all arrays that plan() has replaced. */
static void clear_arrays(struct gdn_cu_batch *b)
{
    const struct gdn_cu_array none = { 0 };
    b->read_slots = b->write_slots = b->token_start = b->token_count = none;
    b->first_slot = 0;
    b->checkpoint_pool = -1;
}

/* Makes the state after whole chunks a checkpoint. */
static void leave(struct gdn_cu_rule *r, const struct gdn_cu_split *a, int write, int positions)
{
    struct gdn_cu_batch *b = &r->batch;
    r->checkpoints = r->to;
    b->checkpoint_pool = b->write_pool;
    b->checkpoint_starts = numbers_of(a, GDN_SPLIT_STARTS);
    b->checkpoint_positions = numbers_of(a, positions);
    b->checkpoint_slots = numbers_of(a, write);
    b->n_checkpoints = b->B;
    b->checkpoint_every = UNIT;
    r->to.data = NULL;
    b->write = GDN_WRITE_NONE;
    b->write_pool = -1;
}

/* Returns the rule of the open chunk: rows of the record and tokens as one sequence each. A state
 * of drafts goes to the workspace. */
static struct gdn_cu_rule open_rule(const struct gdn_cu_split *a, const struct rooms *at)
{
    struct gdn_cu_rule r = a->rule;
    const int dtype = r.record_k.dtype;
    const struct gdn_cu_array none = { 0 };
    const bool writes = a->accepts || a->folds;
    clear_arrays(&r.batch);
    r.batch.cu_seqlens = none;
    r.batch.read_slots = numbers_of(a, GDN_SPLIT_OPEN_READ);
    r.batch.write_slots = numbers_of(a, GDN_SPLIT_OPEN_WRITE);
    r.batch.token_count = numbers_of(a, GDN_SPLIT_OPEN_COUNT);
    r.batch.T = a->most;
    r.batch.N = r.batch.B * a->most;
    r.batch.padded = 1;
    r.batch.pad_policy = GDN_PAD_ZERO;
    r.to = writes ? r.from : gdn_cuda_dense_states(&r, at->states);
    r.batch.write_pool = writes ? r.batch.read_pool : a->rest ? r.batch.B : -1;
    r.k = dense_rows(a, a->k, dtype, r.Hk, r.K);
    r.q = a->q ? dense_rows(a, a->q, dtype, r.Hq, r.K) : r.k;
    r.Hq = a->q ? r.Hq : r.Hk;
    r.v = dense_rows(a, a->v, dtype, r.H, r.V);
    r.Hv = r.H;
    r.out = dense_rows(a, a->out, dtype, r.H, r.V);
    r.g = dense_rows(a, (char *)a->g, GDN_F32, r.H, 1);
    r.beta = dense_rows(a, (char *)a->beta, GDN_F32, r.H, 1);
    r.A_log = r.dt_bias = none;
    r.gate = GDN_GATE_LOG;
    r.beta_kind = GDN_NO_SIGMOID;
    r.record_k.data = NULL;
    if (!a->one) leave(&r, a, GDN_SPLIT_OPEN_WRITE, GDN_SPLIT_OPEN_POSITIONS);
    return r;
}

/* Returns the rule of tokens behind the open chunk. */
static struct gdn_cu_rule rest_rule(const struct gdn_cu_split *a, const struct rooms *at)
{
    struct gdn_cu_rule r = a->rule;
    clear_arrays(&r.batch);
    r.batch.read_slots = numbers_of(a, GDN_SPLIT_REST_READ);
    r.batch.token_start = numbers_of(a, GDN_SPLIT_REST_START);
    r.batch.token_count = numbers_of(a, GDN_SPLIT_REST_COUNT);
    r.record_k.data = NULL;
    leave(&r, a, GDN_SPLIT_REST_WRITE, GDN_SPLIT_REST_POSITIONS);
    if (a->accepts) return r;
    r.checkpoints.data = NULL;
    r.batch.checkpoint_pool = -1;
    r.from = gdn_cuda_dense_states(&r, at->states);
    r.batch.read_pool = r.batch.B;
    return r;
}

/* Returns the rule of the next chunks. open: the rule of the open chunks. */
static struct gdn_cu_rule next_rule(const struct gdn_cu_split *a, const struct gdn_cu_rule *open)
{
    struct gdn_cu_rule r = *open;
    struct gdn_rows *const rows[] = { &r.q, &r.k, &r.v, &r.g, &r.beta, &r.out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->data) rows[i]->data += r.batch.B * rows[i]->batch;
    r.from = r.to; /* the state after the open chunk */
    r.batch.read_slots = numbers_of(a, GDN_SPLIT_REST_READ);
    r.batch.write_slots = numbers_of(a, GDN_SPLIT_REST_WRITE);
    r.batch.token_count = numbers_of(a, GDN_SPLIT_REST_COUNT);
    return r;
}

static struct gdn_cuda_cut_options options_of(int64_t longest)
{
    return (struct gdn_cuda_cut_options){ .whole = true, .every_token = true, .longest = longest };
}

/* Plans both, and returns the bytes of all memory. */
static size_t plan_launches(gdn_ctx *ctx, struct gdn_cu_split *a, struct planned *p)
{
    struct rooms at;
    size_t bytes = 0;
    lay_out(a, 0, &at, GDN_CUDA_NOWHERE);
    point(a, &at);
    p->open = open_rule(a, &at);
    if (!a->one) {
        gdn_cuda_prefill_plan(ctx, &p->open, options_of(a->most), &p->open_plan);
        bytes = p->open_plan.bytes;
    }
    if (a->rest == GDN_SPLIT_REST_APART) {
        p->rest = rest_rule(a, &at);
        gdn_cuda_prefill_plan(ctx, &p->rest, options_of(a->rule.batch.T), &p->rest_plan);
        if (p->rest_plan.bytes > bytes) bytes = p->rest_plan.bytes;
    }
    return lay_out(a, bytes, &at, NULL);
}

static gdn_status launch(gdn_ctx *ctx, enum gdn_kernel_id kernel, const struct gdn_cu_split *a,
                         int64_t blocks, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel, .grid = { blocks, 1, 1 }, .stream = stream, .args = a
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "split", kernel);
}

static gdn_status run_open(gdn_ctx *ctx, const struct gdn_cu_split *a, struct planned *p,
                           void *memory, void *stream)
{
    if (a->one) return gdn_cuda_prefill_sm90_each(ctx, &p->open, stream);
    gdn_cuda_prefill_move(ctx, &p->open, &p->open_plan);
    return gdn_cuda_prefill_run(ctx, &p->open, &p->open_plan, memory, stream);
}

static gdn_status run_rest(gdn_ctx *ctx, const struct gdn_cu_split *a, struct planned *p,
                           const struct rooms *at, void *stream)
{
    if (a->rest == GDN_SPLIT_REST_NEXT) {
        p->rest = next_rule(a, &p->open);
        return gdn_cuda_prefill_sm90_each(ctx, &p->rest, stream);
    }
    if (a->rest != GDN_SPLIT_REST_APART) return GDN_OK;
    p->rest = rest_rule(a, at);
    gdn_cuda_prefill_move(ctx, &p->rest, &p->rest_plan);
    return gdn_cuda_prefill_run(ctx, &p->rest, &p->rest_plan, at->inner, stream);
}

static gdn_status run_launches(gdn_ctx *ctx, struct gdn_cu_split *a, struct planned *p,
                               void *memory, void *stream)
{
    const int64_t B = a->rule.batch.B, blocks = B * a->rule.H;
    struct rooms at;
    lay_out(a, 0, &at, memory);
    point(a, &at);
    p->open = open_rule(a, &at);
    TRY(launch(ctx, GDN_CU_split_plan, a, (B + WARPS - 1) / WARPS, stream));
    TRY(launch(ctx, GDN_CU_split_rows, a, blocks, stream));
    TRY(run_open(ctx, a, p, at.inner, stream));
    TRY(run_rest(ctx, a, p, &at, stream));
    /* Tokens behind the last sequence get zeros, here if no launch of prefill does it. */
    const bool behind = a->rule.batch.cu_seqlens.data && a->rest != GDN_SPLIT_REST_APART;
    if (!a->out) return GDN_OK;
    return launch(ctx, GDN_CU_split_out, a, behind ? blocks + a->rule.H : blocks, stream);
}

static gdn_status run_noted(gdn_ctx *ctx, const char *op, struct gdn_cu_split *a, struct planned *p,
                            void *memory, void *stream)
{
    struct gdn_cuda_ran ran;
    gdn_cuda_gather(ctx, &ran);
    return gdn_cuda_note_gathered(ctx, op, run_launches(ctx, a, p, memory, stream));
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static gdn_status check_rows(gdn_ctx *ctx, const struct gdn_record *record, int dtype,
                             const char *of)
{
    const bool k = record->k.dtype == dtype;
    if (k && record->u.dtype == dtype) return GDN_OK;
    return gdn_fail(ctx, GDN_E_DTYPE,
                    "%s: not of the dtype of %s, wanted that with GDN_SPLIT_INVARIANT on a GPU",
                    k ? "record_u" : "record_k", of);
}

static gdn_status check_padding(gdn_ctx *ctx, const struct gdn_cu_batch *b)
{
    if (b->pad_policy != GDN_PAD_SINK) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                    "pad_policy: GDN_PAD_SINK, wanted another one with GDN_SPLIT_INVARIANT and a "
                    "record on a GPU");
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void fill_call(const gdn_ctx *ctx, struct gdn_cu_split *a, const struct gdn_rule_call *c)
{
    gdn_cuda_fill_call(&a->rule, c);
    fill(ctx, a, c->record.accepts, false);
}

gdn_status gdn_cuda_split_plan(gdn_ctx *ctx, struct gdn_rule_call *c)
{
    struct gdn_cu_split a;
    TRY(gdn_cuda_check_channels(ctx, c->rule.record));
    fill_call(ctx, &a, c);
    TRY(check_rows(ctx, c->rule.record, a.rule.q.dtype, "q"));
    TRY(check_padding(ctx, &a.rule.batch));
    if (gdn_cuda_mixes_dtypes(&a.rule))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "flags: GDN_SPLIT_INVARIANT on a GPU, but q, k, v and out differ in dtype");
    if (a.rest == GDN_SPLIT_REST_APART) TRY(gdn_cuda_prefill_check_alike(ctx, &a.rule));
    c->base.bytes = plan_launches(ctx, &a, GDN_PLANNED(struct planned, &c->base));
    return GDN_OK;
}

gdn_status gdn_cuda_split_run(gdn_ctx *ctx, const struct gdn_rule_call *c, void *memory)
{
    struct gdn_cu_split a;
    TRY(gdn_cuda_check_rule(ctx, c));
    fill_call(ctx, &a, c);
    return run_noted(ctx, c->base.op, &a, GDN_PLANNED(struct planned, &c->base), memory,
                     c->base.stream);
}

static void fill_fold(const gdn_ctx *ctx, struct gdn_cu_split *a, const struct gdn_fold_call *m)
{
    gdn_cuda_record_fold_rule(&a->rule, m);
    a->rule.family = (struct gdn_family){ .is = false };
    a->rule.k.dtype = a->rule.v.dtype = m->c.record.k.dtype;
    fill(ctx, a, false, true);
}

gdn_status gdn_cuda_split_plan_fold(gdn_ctx *ctx, struct gdn_fold_call *m)
{
    struct gdn_cu_split a = { .rule = { .K = 0 } };
    TRY(gdn_cuda_check_channels(ctx, &m->c.record));
    TRY(check_rows(ctx, &m->c.record, m->c.record.k.dtype, "record_k"));
    fill_fold(ctx, &a, m);
    m->base.bytes = plan_launches(ctx, &a, GDN_PLANNED(struct planned, &m->base));
    return GDN_OK;
}

gdn_status gdn_cuda_split_run_fold(gdn_ctx *ctx, const struct gdn_fold_call *m, void *memory)
{
    struct gdn_cu_split a = { .rule = { .K = 0 } };
    TRY(gdn_cuda_record_fold_check(ctx, m));
    fill_fold(ctx, &a, m);
    return run_noted(ctx, m->base.op, &a, GDN_PLANNED(struct planned, &m->base), memory,
                     m->base.stream);
}
