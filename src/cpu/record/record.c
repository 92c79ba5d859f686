/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_record_commit, gdn_record_fold, and what gdn_decode needs of records. Accepting moves
 * rows, if any; the state itself is written by the fold alone.
 */
#include "cpu/record/record.h"

#include <math.h>
#include <string.h>

#include "calls/op_backends.h"
#include "cpu/record/open_chunk.h"

enum { COLUMNS = GDN_RECUR_COLUMNS };

/* Commits the rows of one state head of one sequence, and those of a key head. Rows move only
 * towards the front. */
static void commit_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_commit_call *m = arg;
    const struct gdn_record *rec = &m->c.record;
    const int64_t most = m->H > m->Hk ? m->H : m->Hk, b = item / most, h = item % most;
    const int64_t slot = m->c.plan.seqs[b].slot;
    if (slot < 0) return;
    const int64_t c = gdn_record_count(rec, slot), n = gdn_index(&m->args.n_accepted, b);
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = c + gdn_record_row(&m->args, b, i);
        if (from == c + i) continue;
        if (h < m->Hk) gdn_record_move_row(&rec->k, slot, c + i, from, h, m->K);
        if (h < m->H) gdn_record_move_row(&rec->u, slot, c + i, from, h, m->V);
        if (h < m->H) gdn_record_move_gates(rec, slot, c + i, from, h);
    }
}

static gdn_status plan_record_commit(gdn_ctx *ctx, void *call)
{
    struct gdn_commit_call *m = call;
    (void)ctx;
    m->base.bytes = gdn_record_contents_bytes(&m->c);
    return GDN_OK;
}

static gdn_status run_record_commit(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_commit_call *m = call;
    const gdn_record_commit_args *a = &m->args;
    const int64_t most = m->H > m->Hk ? m->H : m->Hk;
    TRY(gdn_record_read_contents(ctx, &m->c, memory));
    TRY(gdn_record_check_accepted(ctx, m));
    if (a->path.data) gdn_parallel_for(ctx->threads, m->c.plan.B * most, commit_item, m);
    for (int64_t b = 0; b < m->c.plan.B; b++) {
        const int64_t slot = m->c.plan.seqs[b].slot;
        if (slot >= 0)
            gdn_record_set_count(&m->c.record, slot,
                                 gdn_record_count(&m->c.record, slot) +
                                     gdn_index(&a->n_accepted, b));
    }
    return gdn_note_kernel(ctx, m->base.op, "");
}

const struct gdn_op_backend gdn_cpu_op_record_commit = { plan_record_commit, run_record_commit };

/* ---- Fold ---------------------------------------------------------------------------------- */

static int n_blocks(const struct gdn_rule *r) { return (r->V + COLUMNS - 1) / COLUMNS; }

/* Records of some sequences, which go into the states of a pool. */
struct fold {
    const struct gdn_rule *rule;
    const struct gdn_pool_view *pool;
    const struct gdn_kernels *kr;
    const struct gdn_plan *plan;
    bool by_tokens; /* only records that are folded before the tokens; else all */
    char *scratch;  /* of each thread: the columns of a block */
    size_t thread_bytes;
};

static bool is_folded(const struct fold *f, const struct gdn_seq *seq)
{
    const struct gdn_record *rec = f->rule->record;
    return seq->slot >= 0 && (!f->by_tokens || gdn_record_folds_first(rec, seq));
}

/* Folds one block of columns of one head of one sequence. */
static void fold_item(void *arg, int64_t item, int thread)
{
    const struct fold *f = arg;
    const struct gdn_rule *r = f->rule;
    const struct gdn_pool_view *view = f->pool;
    const int col = (int)(item % n_blocks(r)) * COLUMNS, rest = r->V - col;
    const int n = rest < COLUMNS ? rest : COLUMNS;
    const int head = (int)(item / n_blocks(r) % r->H);
    const struct gdn_seq *seq = &f->plan->seqs[item / n_blocks(r) / r->H];
    const int64_t slot = seq->slot;
    if (!is_folded(f, seq) || gdn_record_count(r->record, slot) == 0) return;
    const struct gdn_place at = gdn_place_of(view, slot, head, gdn_record_count(r->record, slot));
    float *S = (float *)(void *)(f->scratch + (size_t)thread * f->thread_bytes);
    gdn_load_columns(S, view->k_first, f->kr, at, r->K, col, n);
    gdn_record_apply(r, f->kr, slot, head, col, n, view->k_first, S);
    gdn_store_columns(S, view->k_first, f->kr, at, r->K, col, n);
}

static void fold_all(gdn_ctx *ctx, const struct fold *f)
{
    const struct gdn_rule *r = f->rule;
    gdn_parallel_for(ctx->threads, f->plan->B * r->H * n_blocks(r), fold_item, (void *)f);
    for (int64_t b = 0; b < f->plan->B; b++)
        if (is_folded(f, &f->plan->seqs[b]))
            gdn_record_set_count(r->record, f->plan->seqs[b].slot, 0);
}

size_t gdn_record_fold_scratch(const struct gdn_rule *r)
{
    return gdn_align64((size_t)r->K * COLUMNS * sizeof(float));
}

gdn_status gdn_record_begin(gdn_ctx *ctx, const struct gdn_rule *r, const struct gdn_plan *plan,
                            void *memory, char *scratch, size_t thread_bytes)
{
    const struct fold f = { .rule = r,
                            .pool = &r->from,
                            .kr = ctx->kr,
                            .plan = plan,
                            .by_tokens = true,
                            .scratch = scratch,
                            .thread_bytes = thread_bytes };
    TRY(gdn_record_check_slots(ctx, r->record, plan, true, memory));
    fold_all(ctx, &f);
    return GDN_OK;
}

static size_t scratch_of(const struct gdn_ctx *ctx, const struct gdn_rule *r)
{
    return r->split ? gdn_open_scratch(r, ctx->kr) : gdn_record_fold_scratch(r);
}

static gdn_status plan_record_fold(gdn_ctx *ctx, void *call)
{
    struct gdn_fold_call *m = call;
    if (m->rule.split) {
        TRY(gdn_open_check_rows(ctx, &m->c.record));
        m->c.record.chunk = GDN_CHUNK;
        gdn_rule_cut(&m->rule, ctx->kr, gdn_threads_count(ctx->threads));
    }
    m->base.bytes = gdn_record_contents_bytes(&m->c) +
                    scratch_of(ctx, &m->rule) * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_record_fold(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_fold_call *m = call;
    const struct fold f = { .rule = &m->rule,
                            .pool = &m->rule.to,
                            .kr = ctx->kr,
                            .plan = &m->c.plan,
                            .scratch = (char *)memory + gdn_record_contents_bytes(&m->c),
                            .thread_bytes = gdn_record_fold_scratch(&m->rule) };
    TRY(gdn_record_read_contents(ctx, &m->c, memory));
    if (m->rule.split) {
        for (int64_t b = 0; b < m->c.plan.B; b++) m->c.plan.seqs[b].n_valid = 0;
        m->rule.seqs = m->c.plan.seqs;
        gdn_open_fold(ctx, &m->rule, f.scratch);
        return gdn_note_kernel(ctx, m->base.op, "chunk_update");
    }
    fold_all(ctx, &f);
    return gdn_note_kernel(ctx, m->base.op, "add_outer");
}

const struct gdn_op_backend gdn_cpu_op_record_fold = { plan_record_fold, run_record_fold };
