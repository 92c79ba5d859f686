/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_record_commit, gdn_record_fold, and the contents of a gdn_decode with a record. */
#include "calls/op_backends.h"
#include "cuda/decode/select.h"
#include "cuda/driver/contents.h"

enum { THREADS = 128 }; /* of a block (kernels.def) */

static gdn_status launch(gdn_ctx *ctx, const char *op, const struct gdn_cu_record *args,
                         void *stream)
{
    const int64_t B = args->batch.B, most = args->H > args->Hk ? args->H : args->Hk;
    const struct gdn_cuda_call move = {
        .kernel = GDN_CU_decode_record_move,
        .grid = { B * most, 1, 1 },
        .stream = stream,
        .args = args,
    };
    const struct gdn_cuda_call count = {
        .kernel = GDN_CU_decode_record_count,
        .grid = { (B + THREADS - 1) / THREADS, 1, 1 },
        .stream = stream,
        .args = args,
    };
    const enum gdn_kernel_id kernels[] = { move.kernel, count.kernel };
    const bool moves = args->path.data;
    if (moves) TRY(gdn_cuda_launch(ctx, &move));
    TRY(gdn_cuda_launch(ctx, &count));
    return gdn_cuda_note_all(ctx, op, kernels + !moves, 1 + moves);
}

/* Returns the arguments that commit and fold share. */
static struct gdn_cu_record args_of(const struct gdn_record_call *c, int Hk, int H)
{
    const struct gdn_plan_pools pools = { .read = c->record.P, .write = -1, .checkpoint = -1 };
    struct gdn_cu_record a = {
        .k = c->record.k,
        .u = c->record.u,
        .g = c->record.g,
        .count = gdn_cuda_array(&c->record.count),
        .n_rows = c->record.R,
        .Hk = Hk,
        .H = H,
        .n_gates = (int32_t)c->record.channels,
    };
    gdn_cuda_fill_batch(&a.batch, &c->plan, &c->tokens, &pools);
    return a;
}

/* Empties the records of slots that a call reads or writes. */
static gdn_status forget(gdn_ctx *ctx, const struct gdn_cu_rule *r, bool has_checkpoints,
                         void *stream)
{
    struct gdn_cu_record a = {
        .batch = r->batch,
        .count = r->record_count,
        .n_rows = r->record_rows,
    };
    if (!has_checkpoints) a.batch.checkpoint_pool = -1;
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_decode_record_forget,
        .grid = { (r->batch.B + THREADS / 32 - 1) / (THREADS / 32), 1, 1 },
        .stream = stream,
        .args = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "record_fold", call.kernel);
}

gdn_status gdn_cuda_fold_first(gdn_ctx *ctx, const struct gdn_cu_rule *r, bool has_checkpoints,
                               void *stream)
{
    struct gdn_cu_rule fold = *r;
    fold.out.data = fold.checkpoints.data = NULL;
    fold.batch.checkpoint_pool = -1;
    TRY(gdn_cuda_fold(ctx, &fold, stream));
    return forget(ctx, r, has_checkpoints, stream);
}

/* ---- Contents, if the context checks them -------------------------------------------------- */

gdn_status gdn_cuda_check_record(gdn_ctx *ctx, const struct gdn_plan *plan,
                                 const struct gdn_tokens *tokens,
                                 const struct gdn_plan_pools *pools,
                                 const struct gdn_record *record, void *stream)
{
    const size_t plan_bytes = gdn_align64(gdn_plan_bytes(plan, tokens));
    struct gdn_plan own = *plan;
    struct gdn_record its = *record;
    gdn_tensor *arrays[GDN_BATCH_ARRAYS + 1];
    void *memory;
    for (int i = 0; i < GDN_BATCH_ARRAYS; i++) arrays[i] = &own.batch.cu_seqlens + i;
    arrays[GDN_BATCH_ARRAYS] = &its.count;
    TRY(gdn_cuda_contents_open(ctx, stream, arrays, GDN_BATCH_ARRAYS + 1,
                               plan_bytes + gdn_record_slots_bytes(record), &memory));
    if (!memory) return GDN_OK;
    gdn_status status = gdn_plan_batch(ctx, tokens, pools, memory, &own);
    if (status == GDN_OK)
        status = gdn_record_check_slots(ctx, &its, &own, true, (char *)memory + plan_bytes);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

static gdn_status check_commit(gdn_ctx *ctx, const struct gdn_commit_call *m)
{
    struct gdn_commit_call own = *m;
    gdn_tensor *arrays[] = { &own.c.plan.batch.read_slots, &own.c.record.count,
                             &own.args.n_accepted, &own.args.path };
    void *memory;
    TRY(gdn_cuda_contents_open(ctx, m->base.stream, arrays, 4, gdn_record_contents_bytes(&m->c),
                               &memory));
    if (!memory) return GDN_OK;
    gdn_status status = gdn_record_read_contents(ctx, &own.c, memory);
    if (status == GDN_OK) status = gdn_record_check_accepted(ctx, &own);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

gdn_status gdn_cuda_record_fold_check(gdn_ctx *ctx, const struct gdn_fold_call *m)
{
    struct gdn_record_call own = m->c;
    gdn_tensor *arrays[] = { &own.plan.batch.read_slots, &own.record.count };
    void *memory;
    TRY(gdn_cuda_contents_open(ctx, m->base.stream, arrays, 2, gdn_record_contents_bytes(&m->c),
                               &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = gdn_record_read_contents(ctx, &own, memory);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static gdn_status plan_record_commit(gdn_ctx *ctx, void *call)
{
    const struct gdn_commit_call *m = call;
    return gdn_cuda_check_channels(ctx, &m->c.record);
}

static gdn_status plan_record_fold(gdn_ctx *ctx, void *call)
{
    const struct gdn_fold_call *m = call;
    return gdn_cuda_check_channels(ctx, &m->c.record);
}

static gdn_status run_record_commit(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_commit_call *m = call;
    struct gdn_cu_record args = args_of(&m->c, (int)m->Hk, (int)m->H);
    (void)memory;
    args.K = (int32_t)m->K;
    args.V = (int32_t)m->V;
    args.n_accepted = gdn_cuda_array(&m->args.n_accepted);
    args.path = gdn_cuda_array(&m->args.path);
    TRY(check_commit(ctx, m));
    return launch(ctx, m->base.op, &args, m->base.stream);
}

void gdn_cuda_record_fold_rule(struct gdn_cu_rule *to, const struct gdn_fold_call *m)
{
    const struct gdn_rule *r = &m->rule;
    const struct gdn_cu_record record = args_of(&m->c, r->Hk, r->H);
    *to = (struct gdn_cu_rule){
        .batch = record.batch,
        .from = r->to,
        .to = r->to,
        .record_k = record.k,
        .record_u = record.u,
        .record_g = record.g,
        .record_count = record.count,
        .record_rows = record.n_rows,
        .Hq = r->H,
        .Hk = r->Hk,
        .Hv = r->H,
        .H = r->H,
        .K = r->K,
        .V = r->V,
        .head_map = r->head_map,
        .norm = r->norm,
        .norm_eps = r->norm_eps,
        .family = { .is = record.n_gates > 1, .g_rows = true, .updates = 1 },
    };
}

static gdn_status run_record_fold(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_fold_call *m = call;
    const struct gdn_cu_record record = args_of(&m->c, m->rule.Hk, m->rule.H);
    struct gdn_cu_rule rule;
    (void)memory;
    gdn_cuda_record_fold_rule(&rule, m);
    TRY(gdn_cuda_record_fold_check(ctx, m));
    TRY(gdn_cuda_fold(ctx, &rule, m->base.stream));
    return launch(ctx, m->base.op, &record, m->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_record_commit = { plan_record_commit, run_record_commit };
const struct gdn_op_backend gdn_cuda_record_fold_op = { plan_record_fold, run_record_fold };
