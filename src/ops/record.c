/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_record_commit, gdn_record_fold, and what gdn_decode needs of records. Accepting moves
 * rows, if any; the state itself is written by the fold alone.
 */
#include "calls/record.h"

#include <math.h>

#include "calls/chunk_stage.h"
#include "calls/rule.h"
#include "core/ctx.h"
#include "core/tensor_check.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "state/strip.h"

enum { COLUMNS = GDN_STEP_COLUMNS };

/* ---- Views --------------------------------------------------------------------------------- */

static struct gdn_record_rows rows_of(const gdn_tensor *t)
{
    return (struct gdn_record_rows){ .data  = t->data,
                                     .dtype = t->dtype,
                                     .slot  = gdn_step_bytes(t, 0),
                                     .row   = gdn_step_bytes(t, 1),
                                     .head  = gdn_step_bytes(t, 2) };
}

gdn_status gdn_record_view(gdn_ctx *ctx, const struct gdn_record_tensors *t, int64_t P, int64_t Hk,
                           int64_t H, int64_t K, int64_t V, struct gdn_record *record)
{
    const int64_t R = t->k->data && t->k->ndim == 4 ? t->k->size[1] : -1;
    const struct {
        const gdn_tensor *t;
        const char       *name;
        unsigned          dtypes;
        int               ndim;
        int64_t           size[4];
    } wanted[] = { { t->k, "record_k", GDN_FLOATS, 4, { P, R, Hk, K } },
                   { t->u, "record_u", GDN_FLOATS, 4, { P, R, H, V } },
                   { t->g, "record_g", 1u << GDN_F32, 3, { P, R, H } },
                   { t->count, "record_count", GDN_INDICES, 1, { P } } };
    for (int i = 0; i < 4; i++) {
        if (!wanted[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted with a record", wanted[i].name);
        TRY(gdn_check_tensor(ctx, wanted[i].t, wanted[i].name));
        TRY(gdn_check_dtype(ctx, wanted[i].t, wanted[i].name, wanted[i].dtypes));
        TRY(gdn_check_shape(ctx, wanted[i].t, wanted[i].name, wanted[i].ndim, wanted[i].size));
        if (i < 2) TRY(gdn_check_dense(ctx, wanted[i].t, wanted[i].name));
        TRY(gdn_check_injective(ctx, wanted[i].t, wanted[i].name));
    }
    *record = (struct gdn_record){ .k     = rows_of(t->k),
                                   .u     = rows_of(t->u),
                                   .g     = rows_of(t->g),
                                   .count = *t->count,
                                   .P     = t->count->size[0],
                                   .R     = R };
    return GDN_OK;
}

int64_t gdn_record_count(const struct gdn_record *record, int64_t slot)
{
    return gdn_index(&record->count, slot);
}

static void set_count(const struct gdn_record *record, int64_t slot, int64_t count)
{
    const gdn_tensor *t  = &record->count;
    void             *at = gdn_at(t, slot * t->stride[0]);
    if (t->dtype == GDN_I32)
        *(int32_t *)at = (int32_t)count;
    else
        *(int64_t *)at = count;
}

/* ---- Contents ------------------------------------------------------------------------------ */

size_t gdn_record_slots_bytes(const struct gdn_record *record)
{
    return gdn_align64((size_t)(record->P / 8 + 1));
}

gdn_status gdn_record_check_slots(gdn_ctx *ctx, const struct gdn_record *record,
                                  const struct gdn_plan *plan, bool append, void *memory)
{
    unsigned char *seen = memory;
    memset(seen, 0, gdn_record_slots_bytes(record));
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s    = &plan->seqs[b];
        const int64_t         slot = s->slot;
        if (slot < 0) continue;
        if (seen[slot / 8] >> slot % 8 & 1)
            return gdn_fail(ctx, GDN_E_ARG,
                            "read_slots[%lld]: slot %lld a second time, wanted once", (long long)b,
                            (long long)slot);
        seen[slot / 8] |= (unsigned char)(1 << slot % 8);
        const int64_t c = gdn_record_count(record, slot), added = append ? s->n_valid : 0;
        if (c < 0 || c > record->R - added)
            return gdn_fail(ctx, GDN_E_ARG, "record_count[%lld]: %lld, wanted 0 to %lld%s",
                            (long long)slot, (long long)c, (long long)record->R,
                            append ? " with the tokens of the sequence" : "");
    }
    return GDN_OK;
}

/* ---- Rows on a state ----------------------------------------------------------------------- */

void gdn_record_apply(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t slot,
                      int head, int col, int n, bool k_first, float *S)
{
    const struct gdn_record *rec     = r->record;
    const int64_t            n_rows  = gdn_record_count(rec, slot);
    const int64_t            u_bytes = col * (int64_t)gdn_dtype_bytes(rec->u.dtype);
    const int                hk      = gdn_rule_source(r, head, r->Hk);
    float                    k[GDN_MAX_HEAD], u[GDN_STEP_COLUMNS];
    for (int64_t row = 0; row < n_rows; row++) {
        const float g = *(const float *)gdn_record_at(&rec->g, slot, row, head), alpha = fabsf(g);
        const bool  writes = !signbit(g);
        kr->load_row[rec->k.dtype](k, gdn_record_at(&rec->k, slot, row, hk), (size_t)r->K);
        kr->load_row[rec->u.dtype](u, (char *)gdn_record_at(&rec->u, slot, row, head) + u_bytes,
                                   (size_t)n);
        if (alpha == 0) memset(S, 0, (size_t)(r->K * n) * sizeof *S);
        if (k_first)
            kr->add_outer(S, r->K, n, alpha, k, writes ? u : NULL);
        else
            kr->add_outer(S, n, r->K, alpha, u, writes ? k : NULL);
    }
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* What both ops have: a record and slots. */
struct record_call {
    struct gdn_tokens tokens; /* one for each sequence: there are none, but plans have some */
    struct gdn_plan   plan;
    struct gdn_record record;
    size_t            plan_bytes, bytes;
};

/* Returns the memory that read_contents() needs. */
static size_t contents_bytes(const struct record_call *c)
{
    return c->plan_bytes + gdn_record_slots_bytes(&c->record);
}

static gdn_status describe_plan(gdn_ctx *ctx, const gdn_batch *batch, int64_t B,
                                struct record_call *c)
{
    c->tokens = (struct gdn_tokens){ .single = true, .B = B, .T = 1, .N = B };
    TRY(gdn_plan_describe(ctx, batch, &c->tokens, 0, &c->plan));
    const gdn_batch *b = &c->plan.batch;
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } others[] = { { &b->cu_seqlens, "cu_seqlens" },
                   { &b->write_slots, "write_slots" },
                   { &b->has_initial_state, "has_initial_state" },
                   { &b->num_accepted_tokens, "num_accepted_tokens" },
                   { &b->token_start, "token_start" },
                   { &b->token_count, "token_count" } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none: a record has slots alone",
                            others[i].name);
    c->plan.batch.write      = GDN_WRITE_NONE;
    c->plan.batch.pad_policy = GDN_PAD_ZERO;
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->bytes      = contents_bytes(c);
    return GDN_OK;
}

static gdn_status read_contents(gdn_ctx *ctx, struct record_call *c, void *memory)
{
    const struct gdn_plan_pools pools = { .read = c->record.P, .write = -1, .checkpoint = -1 };
    TRY(gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan));
    return gdn_record_check_slots(ctx, &c->record, &c->plan, false, (char *)memory + c->plan_bytes);
}

gdn_status gdn_record_check_contents(gdn_ctx *ctx, const struct gdn_plan *plan,
                                     const struct gdn_tokens *tokens,
                                     const struct gdn_record *record, void *stream)
{
    const struct gdn_plan_pools pools = { .read = record->P, .write = -1, .checkpoint = -1 };
    const size_t      plan_bytes = gdn_align64(gdn_plan_bytes(plan, tokens));
    struct gdn_plan   own        = *plan;
    struct gdn_record its        = *record;
    gdn_tensor       *arrays[GDN_BATCH_ARRAYS + 1];
    void             *memory;
    for (int i = 0; i < GDN_BATCH_ARRAYS; i++) arrays[i] = &own.batch.cu_seqlens + i;
    arrays[GDN_BATCH_ARRAYS] = &its.count;
    TRY(gdn_cuda_contents_open(ctx, stream, arrays, GDN_BATCH_ARRAYS + 1,
                               plan_bytes + gdn_record_slots_bytes(record), &memory));
    if (!memory) return GDN_OK;
    gdn_status status = gdn_plan_batch(ctx, tokens, &pools, memory, &own);
    if (status == GDN_OK)
        status = gdn_record_check_slots(ctx, &its, &own, true, (char *)memory + plan_bytes);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

/* No tensor that is written (bits of `written`) overlaps another or an array of the batch. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_tensor *const *t, const char *const *names,
                                 int n, unsigned written, const gdn_batch *batch)
{
    for (int i = 0; i < n; i++) {
        if (!(written >> i & 1)) continue;
        for (int j = 0; j < n; j++)
            if (j != i) TRY(gdn_check_no_overlap(ctx, t[i], names[i], t[j], names[j], false));
        TRY(gdn_plan_check_overlaps(ctx, batch, t[i], names[i]));
    }
    return GDN_OK;
}

/* A call on a device, but for what the ops have of their own. */
static struct gdn_cu_record device_record(const struct record_call *c, int Hk, int H)
{
    const struct gdn_plan_pools pools = { .read = c->record.P, .write = -1, .checkpoint = -1 };
    return (struct gdn_cu_record){
        .batch  = gdn_cuda_batch(&c->plan, &c->tokens, &pools),
        .k      = c->record.k,
        .u      = c->record.u,
        .g      = c->record.g,
        .count  = gdn_cuda_array(&c->record.count),
        .n_rows = c->record.R,
        .Hk     = Hk,
        .H      = H,
    };
}

/* ---- Commit -------------------------------------------------------------------------------- */

struct commit_call {
    gdn_record_commit_args args;
    struct record_call     c;
    int64_t                K, V, Hk, H;
};

static gdn_status describe_commit(gdn_ctx *ctx, const void *args, void *call)
{
    struct commit_call *m = call;
    *m = (struct commit_call){ 0 };
    gdn_record_commit_args *a = &m->args;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_commit_args"));
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(gdn_record_view(ctx, &t, a->record_count.size[0], -1, -1, -1, -1, &m->c.record));
    m->Hk = a->record_k.size[2], m->K = a->record_k.size[3];
    m->H = a->record_u.size[2], m->V = a->record_u.size[3];
    TRY(gdn_check_shape(ctx, &a->record_g, "record_g", 3, (int64_t[]){ -1, -1, m->H }));

    if (!a->n_accepted.data) return gdn_fail(ctx, GDN_E_ARG, "n_accepted: absent");
    TRY(gdn_check_tensor(ctx, &a->n_accepted, "n_accepted"));
    TRY(gdn_check_dtype(ctx, &a->n_accepted, "n_accepted", GDN_INDICES));
    TRY(gdn_check_shape(ctx, &a->n_accepted, "n_accepted", 1, (int64_t[]){ -1 }));
    if (a->path.data) {
        TRY(gdn_check_tensor(ctx, &a->path, "path"));
        TRY(gdn_check_dtype(ctx, &a->path, "path", GDN_INDICES));
        TRY(gdn_check_shape(ctx, &a->path, "path", 2, (int64_t[]){ a->n_accepted.size[0], -1 }));
    }
    TRY(describe_plan(ctx, a->batch, a->n_accepted.size[0], &m->c));
    const gdn_tensor *const all[]   = { &a->record_k,     &a->record_u,   &a->record_g,
                                        &a->record_count, &a->n_accepted, &a->path };
    static const char *const names[] = { "record_k",     "record_u",   "record_g",
                                         "record_count", "n_accepted", "path" };
    TRY(check_overlaps(ctx, all, names, 6, 0xf, &m->c.plan.batch));
    if (ctx->cuda) m->c.bytes = 0; /* what kernels need is on the chip */
    return GDN_OK;
}

static int64_t row_at(const gdn_record_commit_args *a, int64_t b, int64_t i)
{
    return a->path.data ? gdn_index2(&a->path, b, i) : i;
}

static gdn_status check_accepted(gdn_ctx *ctx, const struct commit_call *m)
{
    const gdn_record_commit_args *a = &m->args;
    for (int64_t b = 0; b < m->c.plan.B; b++) {
        const int64_t slot = m->c.plan.seqs[b].slot;
        if (slot < 0) continue;
        const int64_t n    = gdn_index(&a->n_accepted, b);
        const int64_t rest = m->c.record.R - gdn_record_count(&m->c.record, slot);
        if (n < 0 || n > rest)
            return gdn_fail(ctx, GDN_E_ARG, "n_accepted[%lld]: %lld, wanted 0 to %lld",
                            (long long)b, (long long)n, (long long)rest);
        if (!a->path.data) continue;
        if (n > a->path.size[1])
            return gdn_fail(ctx, GDN_E_SHAPE, "path: %lld columns, wanted %lld for sequence %lld",
                            (long long)a->path.size[1], (long long)n, (long long)b);
        for (int64_t i = 0, least = 0; i < n; i++) {
            const int64_t row = row_at(a, b, i);
            if (row < least || row >= rest)
                return gdn_fail(ctx, GDN_E_ARG, "path[%lld][%lld]: %lld, wanted %lld to %lld",
                                (long long)b, (long long)i, (long long)row, (long long)least,
                                (long long)rest - 1);
            least = row + 1;
        }
    }
    return GDN_OK;
}

static void move_head(const struct gdn_record_rows *r, int64_t slot, int64_t to, int64_t from,
                      int64_t head, int64_t n)
{
    memcpy(gdn_record_at(r, slot, to, head), gdn_record_at(r, slot, from, head),
           (size_t)n * gdn_dtype_bytes(r->dtype));
}

/* What belongs to one state head of one sequence, and a key head with it. Rows only move up. */
static void commit_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct commit_call *m    = arg;
    const struct gdn_record  *rec  = &m->c.record;
    const int64_t             most = m->H > m->Hk ? m->H : m->Hk, b = item / most, h = item % most;
    const int64_t             slot = m->c.plan.seqs[b].slot;
    if (slot < 0) return;
    const int64_t c = gdn_record_count(rec, slot), n = gdn_index(&m->args.n_accepted, b);
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = c + row_at(&m->args, b, i);
        if (from == c + i) continue;
        if (h < m->Hk) move_head(&rec->k, slot, c + i, from, h, m->K);
        if (h < m->H) move_head(&rec->u, slot, c + i, from, h, m->V);
        if (h < m->H) move_head(&rec->g, slot, c + i, from, h, 1);
    }
}

/* Of a call on a device, if the context does that. */
static gdn_status check_commit_contents(gdn_ctx *ctx, const struct commit_call *m)
{
    struct commit_call own = *m;
    gdn_tensor        *arrays[] = { &own.c.plan.batch.read_slots, &own.c.record.count,
                                    &own.args.n_accepted, &own.args.path };
    void              *memory;
    TRY(gdn_cuda_contents_open(ctx, m->args.stream, arrays, 4, contents_bytes(&m->c), &memory));
    if (!memory) return GDN_OK;
    gdn_status status = read_contents(ctx, &own.c, memory);
    if (status == GDN_OK) status = check_accepted(ctx, &own);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

static gdn_status enqueue_commit(gdn_ctx *ctx, void *call)
{
    const struct commit_call *m = call;
    const gdn_record_commit_args *a    = &m->args;
    struct gdn_cu_record          args = device_record(&m->c, (int)m->Hk, (int)m->H);
    args.K          = (int32_t)m->K;
    args.V          = (int32_t)m->V;
    args.n_accepted = gdn_cuda_array(&a->n_accepted);
    args.path       = gdn_cuda_array(&a->path);
    TRY(check_commit_contents(ctx, m));
    return gdn_cuda_record(ctx, "record_commit", &args, a->stream);
}

static gdn_status run_commit(gdn_ctx *ctx, void *call)
{
    struct commit_call *m = call;
    const gdn_record_commit_args *a = &m->args;
    void                         *memory;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, m->c.bytes, &memory));
    TRY(read_contents(ctx, &m->c, memory));
    TRY(check_accepted(ctx, m));
    const int64_t most = m->H > m->Hk ? m->H : m->Hk;
    if (a->path.data) gdn_parallel_for(ctx->pool, m->c.plan.B * most, commit_item, m);
    for (int64_t b = 0; b < m->c.plan.B; b++) {
        const int64_t slot = m->c.plan.seqs[b].slot;
        if (slot >= 0)
            set_count(&m->c.record, slot,
                      gdn_record_count(&m->c.record, slot) + gdn_index(&a->n_accepted, b));
    }
    return GDN_OK;
}

static const struct gdn_frame commit = {
    .describe = describe_commit,
    .run      = run_commit,
    .enqueue  = enqueue_commit,
    .bytes_at = offsetof(struct commit_call, c.bytes),
    .loops    = "",
};
GDN_OP_ENTRY(record_commit, gdn_record_commit_args, commit, struct commit_call)

/* ---- Fold ---------------------------------------------------------------------------------- */

struct fold_call {
    gdn_record_fold_args      args;
    struct record_call        c;
    struct gdn_rule           rule; /* sizes, heads, the pool and the record */
    const struct gdn_kernels *kr;
    char                     *scratch; /* of each thread: the columns of a block */
    size_t                    thread_bytes;
};

static gdn_status describe_fold(gdn_ctx *ctx, const void *args, void *call)
{
    struct fold_call *m = call;
    *m = (struct fold_call){ .kr = ctx->kr };
    gdn_record_fold_args *a = &m->args;
    struct gdn_rule      *r = &m->rule;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_fold_args"));
    if (a->flags || a->reserved)
        return gdn_fail(ctx, GDN_E_ARG, "%s: 0x%x, wanted 0", a->flags ? "flags" : "reserved",
                        (unsigned)(a->flags ? a->flags : (uint32_t)a->reserved));
    TRY(gdn_stage_enum(ctx, "head_map", a->head_map, GDN_HEADS_INTERLEAVED));
    TRY(gdn_stage_enum(ctx, "state_layout", a->state_layout, GDN_STATE_KV));
    TRY(gdn_stage_enum(ctx, "rounding", a->rounding, GDN_ROUND_STOCHASTIC));
    if (!a->state.data) return gdn_fail(ctx, GDN_E_ARG, "state: absent");
    TRY(gdn_check_tensor(ctx, &a->state, "state"));
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(gdn_record_view(ctx, &t, -1, -1, -1, -1, -1, &m->c.record));
    TRY(gdn_stage_head_size(ctx, &a->record_k, "record_k", &r->K));
    TRY(gdn_stage_head_size(ctx, &a->record_u, "record_u", &r->V));
    const int64_t H = a->record_u.size[2];
    if (H < 1 || H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "record_u: %lld heads, wanted at least 1", (long long)H);
    r->H = (int)H;
    TRY(gdn_stage_heads(ctx, &a->record_k, "record_k", H, &r->Hk));
    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, H, r->K, r->V, &r->to));
    r->to.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->to.seed   = a->seed;
    TRY(gdn_check_injective(ctx, &a->state, "state"));
    TRY(gdn_check_injective(ctx, &a->state_scales, "state_scales"));
    TRY(gdn_record_view(ctx, &t, a->state.size[0], r->Hk, H, r->K, r->V, &m->c.record));

    gdn_batch batch = { 0 };
    if (a->batch) TRY(gdn_copy_args(ctx, &batch, sizeof batch, a->batch, "batch"));
    const gdn_tensor *slots = &batch.read_slots;
    TRY(describe_plan(ctx, a->batch, slots->data ? slots->size[0] : m->c.record.P, &m->c));
    const gdn_tensor *const  all[]   = { &a->state, &a->state_scales, &a->record_count,
                                         &a->record_k, &a->record_u, &a->record_g };
    static const char *const names[] = { "state", "state_scales", "record_count", "record_k",
                                         "record_u", "record_g" };
    TRY(check_overlaps(ctx, all, names, 6, 7, &m->c.plan.batch));
    r->head_map     = a->head_map;
    r->record       = &m->c.record;
    m->thread_bytes = gdn_align64((size_t)r->K * COLUMNS * sizeof(float));
    m->c.bytes += m->thread_bytes * (size_t)gdn_pool_threads(ctx->pool);
    if (ctx->cuda) m->c.bytes = 0; /* what kernels need is on the chip */
    return GDN_OK;
}

static int n_blocks(const struct gdn_rule *r) { return (r->V + COLUMNS - 1) / COLUMNS; }

/* A block of columns of one head of one sequence. */
static void fold_item(void *arg, int64_t item, int thread)
{
    const struct fold_call     *m    = arg;
    const struct gdn_rule      *r    = &m->rule;
    const struct gdn_pool_view *view = &r->to;
    const int     col  = (int)(item % n_blocks(r)) * COLUMNS, rest = r->V - col;
    const int     n    = rest < COLUMNS ? rest : COLUMNS;
    const int     head = (int)(item / n_blocks(r) % r->H);
    const int64_t slot = m->c.plan.seqs[item / n_blocks(r) / r->H].slot;
    if (slot < 0 || gdn_record_count(r->record, slot) == 0) return;
    const struct gdn_place at =
        gdn_place_of(view, slot, head, gdn_record_count(r->record, slot));
    float *S = (float *)(void *)(m->scratch + (size_t)thread * m->thread_bytes);
    gdn_load_columns(S, view->k_first, m->kr, at, r->K, col, n);
    gdn_record_apply(r, m->kr, slot, head, col, n, view->k_first, S);
    gdn_store_columns(S, view->k_first, m->kr, at, r->K, col, n);
}

static gdn_status check_fold_contents(gdn_ctx *ctx, const struct fold_call *m)
{
    struct record_call own      = m->c;
    gdn_tensor        *arrays[] = { &own.plan.batch.read_slots, &own.record.count };
    void              *memory;
    TRY(gdn_cuda_contents_open(ctx, m->args.stream, arrays, 2, contents_bytes(&m->c), &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = read_contents(ctx, &own, memory);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

static gdn_status enqueue_fold(gdn_ctx *ctx, void *call)
{
    const struct fold_call *m = call;
    const struct gdn_rule      *r      = &m->rule;
    const struct gdn_cu_record  record = device_record(&m->c, r->Hk, r->H);
    const struct gdn_cu_rule    rule   = {
        .batch        = record.batch,
        .from         = r->to,
        .to           = r->to,
        .record_k     = record.k,
        .record_u     = record.u,
        .record_g     = record.g,
        .record_count = record.count,
        .record_rows  = record.n_rows,
        .Hq           = r->H,
        .Hk           = r->Hk,
        .Hv           = r->H,
        .H            = r->H,
        .K            = r->K,
        .V            = r->V,
        .head_map     = r->head_map,
    };
    TRY(check_fold_contents(ctx, m));
    TRY(gdn_cuda_fold(ctx, &rule, m->args.stream));
    return gdn_cuda_record(ctx, "record_fold", &record, m->args.stream);
}

static gdn_status run_fold(gdn_ctx *ctx, void *call)
{
    struct fold_call *m = call;
    const gdn_record_fold_args *a = &m->args;
    void                       *memory;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, m->c.bytes, &memory));
    TRY(read_contents(ctx, &m->c, memory));
    m->scratch = (char *)memory + m->c.bytes -
                 m->thread_bytes * (size_t)gdn_pool_threads(ctx->pool);
    gdn_parallel_for(ctx->pool, m->c.plan.B * m->rule.H * n_blocks(&m->rule), fold_item, m);
    for (int64_t b = 0; b < m->c.plan.B; b++)
        if (m->c.plan.seqs[b].slot >= 0) set_count(&m->c.record, m->c.plan.seqs[b].slot, 0);
    return GDN_OK;
}

static const struct gdn_frame fold = {
    .describe = describe_fold,
    .run      = run_fold,
    .enqueue  = enqueue_fold,
    .bytes_at = offsetof(struct fold_call, c.bytes),
    .loops    = "add_outer",
};
GDN_OP_ENTRY(record_fold, gdn_record_fold_args, fold, struct fold_call)
