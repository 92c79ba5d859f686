/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrent form of the rule: token by token, on the state where it lies. An item goes
 * through its heads in blocks of at most 128 columns; what the heads of a group share (k, q,
 * k . q) is loaded once.
 *
 * Trees, records, checkpoints, states of 8 bits and states that are dense in no dimension need
 * states that the loops do not have at hand. Such a sequence is walked: its states are float32 in
 * scratch, one for each level of the tree, and the loops only move them on. What is stored is
 * stored from there.
 *
 * If tokens are accepted at once with a record, the state stays as it lies (pending.h): it is read
 * once, and the tokens become rows. If they fill the record, all rows then go into the state.
 */
#include <math.h>
#include <string.h>

#include "batch/tree.h"
#include "cpu/record/pending.h"
#include "cpu/record/record.h"
#include "cpu/rule.h"

enum { TOKENS = GDN_CHUNK, COLUMNS = GDN_RECUR_COLUMNS };
enum { STATE = GDN_MAX_HEAD * COLUMNS, TREE_STATES = 3 * STATE }; /* floats */

/* Scratch of one thread. */
struct step_scratch {
    float kq[2 * TOKENS * GDN_MAX_HEAD]; /* rows of k, then of q, K floats apart */
    float v[TOKENS * COLUMNS], o[TOKENS * COLUMNS], u[TOKENS * COLUMNS];
    float alpha[TOKENS], beta[TOKENS], dots[TOKENS];
    void *to[TOKENS];
    int head;                   /* whose gates are loaded, of tokens from t0 */
    int64_t t0;                 /* whose k and q are loaded */
    uint64_t changed;           /* a bit for each level whose state is not the one that was read */
    float *a, *ak, *aq;         /* [TOKENS][K] behind the state, in the family */
    struct gdn_pending pending; /* its arrays are behind those */
    bool has_codes; /* the block's state as 8 bits, with GDN_EXACT; in a tree what was read */
    float scales[COLUMNS];
    uint8_t codes[STATE];
    _Alignas(64) float state[]; /* of a block; in a tree, of its levels one after the other */
};

static size_t state_floats(const struct gdn_rule *r) { return r->tree ? TREE_STATES : STATE; }

static size_t vector_floats(const struct gdn_rule *r)
{
    return r->family.is ? (size_t)(TOKENS * r->K) : 0;
}

size_t gdn_decode_scratch(const struct gdn_rule *r)
{
    const size_t floats = state_floats(r) + 3 * vector_floats(r);
    return gdn_align64(sizeof(struct step_scratch) + floats * sizeof(float) +
                       gdn_pending_scratch(r));
}

/* Returns the tokens of a window, whose updates are TOKENS rows at most. */
static int window_tokens(const struct gdn_rule *r) { return TOKENS / gdn_rule_updates(r); }

/* Columns [col, col + n) of one head. */
struct block {
    int head, col, n;
    struct gdn_place from;
    const struct gdn_pool_view *to_view;
};

/* Returns the visit number i of a sequence. */
static struct gdn_visit visit_at(const struct gdn_rule *r, const struct gdn_seq *seq, int64_t i)
{
    if (!r->visits) return (struct gdn_visit){ .token = i };
    return r->visits[gdn_tree_at(r->tokens, seq) + i];
}

/* Returns a place's memory from column col on; NULL: it has none. */
static char *column_at(const struct gdn_place *p, int col)
{
    const int64_t elem = (int64_t)gdn_dtype_bytes(p->view->dtype);
    return p->data ? p->data + (p->view->k_first ? col : col * p->view->ld) * elem : NULL;
}

/* Loads k and q, and gates, of n visits from t0 on; of a tree one by one. */
static void load_kq(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, int64_t t0, int n)
{
    const int some = r->visits ? 1 : n;
    for (int t = 0; t < n; t += some)
        gdn_rule_load_kq(r, kr, item, visit_at(r, item->seq, t0 + t).token, some, c->kq + t * r->K,
                         r->K, n * gdn_rule_updates(r));
}

/* Loads a, and e = b k in ak, of n tokens. With one beta e is a product of rows, not of vectors. */
static void load_updates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t token, int n, const float *k,
                         float *a, float *ak, float *alpha, float *beta)
{
    const size_t K = (size_t)r->K;
    const int rows = n * gdn_rule_updates(r);
    if (!gdn_family_has_one_beta(r)) {
        gdn_family_load_gates(r, kr, seq, head, token, n, a, ak, r->K, alpha, beta);
        for (int i = 0; i < rows; i++)
            kr->norm_row(ak + i * r->K, ak + i * r->K, 1, k + i * r->K, NULL, false, K);
        return;
    }
    gdn_family_load_decays(r, kr, seq, head, token, n, a, r->K);
    gdn_family_load_betas(r, kr, seq, head, token, n, beta);
    for (int i = 0; i < rows; i++) {
        kr->norm_row(ak + i * r->K, k + i * r->K, beta[i], NULL, NULL, false, K);
        alpha[i] = kr->decay_kind(a + i * r->K, K);
        beta[i] = beta[i] != 0;
    }
}

/* The same of the family; after load_kq(). */
static void load_vectors(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item, int head,
                         int64_t t0, int n)
{
    const int some = r->visits ? 1 : n, u = gdn_rule_updates(r), K = r->K;
    const float *q = c->kq + n * u * K;
    for (int t = 0; t < n; t += some)
        load_updates(r, kr, item->seq, head, visit_at(r, item->seq, t0 + t).token, some,
                     c->kq + t * u * K, c->a + t * u * K, c->ak + t * u * K, c->alpha + t * u,
                     c->beta + t * u);
    for (int i = 0; i < n * u * K; i += K) {
        kr->norm_row(c->ak + i, c->ak + i, 1, c->a + i, NULL, false, (size_t)K);
        kr->norm_row(c->aq + i, q + i, 1, c->a + i, NULL, false, (size_t)K);
    }
    if (r->family.g_rows && head + 1 < r->H)
        gdn_rule_prefetch(&r->g, item->seq, t0, head + 1, 0, K);
}

static void load_gates(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item, int head,
                       int64_t t0, int n)
{
    const int some = r->visits ? 1 : n;
    if (r->family.is) {
        load_vectors(c, r, kr, item, head, t0, n);
        return;
    }
    for (int t = 0; t < n; t += some)
        gdn_rule_load_gates(r, kr, item->seq, head, visit_at(r, item->seq, t0 + t).token, some,
                            true, c->alpha + t, c->beta + t);
}

/* Loads what visits [t0, t0 + n) need beside the state, unless scratch has it. */
static void load_tokens(struct step_scratch *c, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct gdn_rule_item *item, int head,
                        int64_t t0, int n)
{
    const int rows = n * gdn_rule_updates(r);
    if (c->t0 != t0) {
        load_kq(c, r, kr, item, t0, n);
        for (int t = 0; t < rows; t++)
            c->dots[t] = kr->dot(c->kq + t * r->K, c->kq + (rows + t) * r->K, (size_t)r->K);
    }
    if (c->t0 != t0 || c->head != head) load_gates(c, r, kr, item, head, t0, n);
    c->t0 = t0;
    c->head = head;
}

static void load_v(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, const struct block *b, int64_t t0, int n)
{
    const int hv = gdn_rule_source(r, b->head, r->Hv);
    const size_t bytes = gdn_dtype_bytes(r->v.dtype), cols = (size_t)b->n;
    const int some = r->visits ? 1 : n;
    for (int t = 0; r->family.is && t < n; t += some)
        gdn_family_load_written(r, kr, seq, b->head, visit_at(r, seq, t0 + t).token, some, b->col,
                                b->n, c->v + t * COLUMNS, COLUMNS);
    for (int t = 0; !r->family.is && t < n; t++) {
        const char *v = gdn_row(&r->v, seq, visit_at(r, seq, t0 + t).token, hv);
        kr->load_row[r->v.dtype](c->v + t * COLUMNS, v + (size_t)b->col * bytes, cols);
    }
}

static void store_o(const struct step_scratch *c, const struct gdn_rule *r,
                    const struct gdn_kernels *kr, const struct gdn_seq *seq, const struct block *b,
                    int64_t t0, int n)
{
    const size_t bytes = gdn_dtype_bytes(r->out.dtype);
    const int u = gdn_rule_updates(r);
    for (int t = 0; r->out.data && t < n; t++) {
        char *o = gdn_row(&r->out, seq, visit_at(r, seq, t0 + t).token, b->head);
        const float *from = c->o + (t * u + u - 1) * COLUMNS;
        kr->store_row[r->out.dtype](o + (size_t)b->col * bytes, from, (size_t)b->n);
    }
}

/* Returns the loop's call for `rows` updates of a block, which are loaded; no state is set. */
static struct gdn_recur recur_of(struct step_scratch *c, const struct gdn_rule *r,
                                 const struct block *b, int rows)
{
    return (struct gdn_recur){
        .q = c->kq + rows * r->K,
        .k = c->kq,
        .a = c->a,
        .ak = c->ak,
        .aq = c->aq,
        .v = c->v,
        .o = r->out.data ? c->o : NULL,
        .alpha = c->alpha,
        .beta = c->beta,
        .kq = c->dots,
        .to = c->to,
        .scratch = c->state,
        .ld_v = COLUMNS,
        .ld_o = COLUMNS,
        .T = rows,
        .K = r->K,
        .n = b->n,
        .round = gdn_rule_rounding(r),
        .updates = gdn_rule_updates(r),
    };
}

/* Tokens [t0, t0 + n) of one block. */
static void step_block(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                       const struct block *b, int64_t t0, int n, bool resume)
{
    load_tokens(c, r, kr, item, b->head, t0, n);
    load_v(c, r, kr, item->seq, b, t0, n);
    const int u = gdn_rule_updates(r), rows = n * u;
    memset(c->to, 0, sizeof c->to);
    for (int t = 0; t < n; t++) {
        const struct gdn_place to = gdn_rule_to(r, item->seq, t0 + t, b->head);
        c->to[t * u + u - 1] = column_at(&to, b->col);
    }
    struct gdn_recur step = recur_of(c, r, b, rows);
    step.from = column_at(&b->from, b->col);
    step.ld_from = b->from.view->ld;
    step.ld_to = b->to_view->ld;
    step.resume = resume;
    step.exact = r->exact;
    if (b->to_view->k_first)
        kr->recur_kv[b->to_view->dtype](&step);
    else
        kr->recur_vk[b->to_view->dtype](&step);
    store_o(c, r, kr, item->seq, b, t0, n);
}

/* The state that the sequence starts from, as float32, in the orientation of to_view. */
static void stage(float *S, const struct gdn_rule *r, const struct gdn_kernels *kr,
                  const struct block *b)
{
    gdn_load_columns(S, b->to_view->k_first, kr, b->from, r->K, b->col, b->n);
}

/* Copies the state of a sequence in which no token counts: the final state is the initial one. */
static void copy_state(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_seq *seq,
                       const struct block *b)
{
    const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, b->head);
    if (!to.data || to.data == b->from.data) return;
    if (gdn_are_twins(&b->from, &to)) {
        gdn_copy_columns(to, b->col, b->from, b->col, r->K, b->n);
        return;
    }
    stage(c->state, r, kr, b);
    gdn_store_columns(c->state, b->to_view->k_first, kr, to, r->K, b->col, b->n);
}

/* ---- Walking ------------------------------------------------------------------------------- */

/* Returns true if rows are applied to the state, or written. */
static bool has_record(const struct gdn_rule *r, const struct gdn_seq *seq)
{
    return r->record && seq->slot >= 0 &&
           (!gdn_record_folds(r->record, seq) || gdn_record_pending(r->record, seq) > 0);
}

static bool is_walked(const struct gdn_rule *r, const struct gdn_seq *seq, const struct block *b)
{
    return r->visits || has_record(r, seq) || b->to_view->gap ||
           (r->checkpoints.data && seq->n_checkpoints > 0) || gdn_rule_rounding8(r) ||
           (!seq->to_carry && gdn_is_q8(r->to.dtype));
}

/* Returns the first checkpoint after token t, if its position is just there; -1: none. */
static int64_t checkpoint_at(const struct gdn_rule *r, const struct gdn_seq *seq, int64_t t)
{
    int64_t slot;
    if (!r->checkpoints.data) return -1;
    const int64_t i = gdn_plan_checkpoint_after(r->plan, seq, t);
    return i < seq->n_checkpoints && gdn_plan_checkpoint(r->plan, seq, i, &slot) == t + 1 ? i : -1;
}

/* Returns the block's state as codes in scratch, in the dtype of the pool and the layout of
 * to_view. */
static struct gdn_place codes_of(struct step_scratch *c, const struct gdn_rule *r,
                                 const struct block *b, struct gdn_pool_view *view)
{
    *view = gdn_rule_rounding8(r) ? *gdn_rule_rounding8(r) : *b->from.view;
    view->k_first = b->to_view->k_first;
    view->ld = view->k_first ? b->n : r->K;
    view->gap = 0;
    return (struct gdn_place){ .data = (char *)c->codes,
                               .scales = view->scales ? c->scales : NULL,
                               .view = view };
}

/* Rounds the state for GDN_EXACT to what 8 bits hold. The codes stay in scratch, because
 * rounding once more might give other codes. */
static void round_state(struct step_scratch *c, float *S, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct block *b, int64_t n_tokens)
{
    struct gdn_pool_view view;
    struct gdn_place codes = codes_of(c, r, b, &view);
    codes.noise = gdn_noise(view.seed, n_tokens, b->head) + (uint64_t)b->col;
    c->has_codes = true;
    gdn_store_columns(S, view.k_first, kr, codes, r->K, 0, b->n);
    gdn_load_columns(S, view.k_first, kr, codes, r->K, 0, b->n);
}

/* Copies the codes that the sequence starts from to scratch, if its state has codes. */
static void stage_codes(struct step_scratch *c, const struct gdn_rule *r, const struct block *b)
{
    struct gdn_pool_view view;
    const struct gdn_place codes = codes_of(c, r, b, &view);
    c->has_codes = gdn_are_twins(&b->from, &codes);
    if (c->has_codes) gdn_copy_columns(codes, 0, b->from, b->col, r->K, b->n);
}

/* Stores the state of a level. In a tree, codes that did not change are copied from scratch. The
 * slot that they came from may have been overwritten by a token of another branch. */
static void store_at(struct step_scratch *c, struct gdn_place to, const float *S,
                     const struct gdn_rule *r, const struct gdn_kernels *kr, const struct block *b,
                     int level)
{
    const struct gdn_pool_view *rounding = gdn_rule_rounding8(r);
    const bool rounded = rounding && c->has_codes && gdn_store_alike(to.view, rounding);
    const bool kept = !(c->changed >> level & 1) && gdn_are_twins(&b->from, &to);
    struct gdn_pool_view view;
    if (rounded || (kept && r->visits))
        gdn_copy_columns(to, b->col, codes_of(c, r, b, &view), 0, r->K, b->n);
    else if (kept)
        gdn_copy_columns(to, b->col, b->from, b->col, r->K, b->n);
    else
        gdn_store_columns(S, b->to_view->k_first, kr, to, r->K, b->col, b->n);
}

/* Stores the state after a visit to all its places: final state, slot of the token, checkpoint. */
static void store_state(struct step_scratch *c, const float *S, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct gdn_seq *seq,
                        const struct block *b, struct gdn_visit visit)
{
    const int64_t t = visit.token;
    const struct gdn_place to = gdn_rule_to(r, seq, t, b->head);
    int64_t slot, i = checkpoint_at(r, seq, t);
    if (to.data) store_at(c, to, S, r, kr, b, visit.level);
    for (; i >= 0 && i < seq->n_checkpoints; i++) {
        if (gdn_plan_checkpoint(r->plan, seq, i, &slot) != t + 1) return;
        if (slot < 0) continue;
        store_at(c, gdn_place_of(&r->checkpoints, slot, b->head, seq->base + t + 1), S, r, kr, b,
                 visit.level);
    }
}

/* Visits from i on, below `end`, whose states become one another and of which the last alone
 * may be wanted. */
static int64_t run_end(const struct gdn_rule *r, const struct gdn_seq *seq, int head, int64_t i,
                       int64_t end)
{
    const int32_t level = visit_at(r, seq, i).level;
    for (; i + 1 < end && !gdn_rule_rounding8(r); i++) {
        const int64_t t = visit_at(r, seq, i).token;
        const struct gdn_visit next = visit_at(r, seq, i + 1);
        if (next.copies || next.level != level) break;
        if (gdn_rule_to(r, seq, t, head).data || checkpoint_at(r, seq, t) >= 0) break;
    }
    return i + 1;
}

/* Visits [i, end) of the window [t0, t0 + n), which is loaded, on the state S. A row per update. */
static void walk_run(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct block *b, int64_t t0, int n, int64_t i, int64_t end, float *S)
{
    const int u = gdn_rule_updates(r), at = (int)(i - t0) * u;
    const ptrdiff_t vectors = c->a ? at * r->K : 0;
    const struct gdn_recur step = {
        .q = c->kq + (n * u + at) * r->K,
        .k = c->kq + at * r->K,
        .a = c->a ? c->a + vectors : NULL,
        .ak = c->a ? c->ak + vectors : NULL,
        .aq = c->a ? c->aq + vectors : NULL,
        .v = c->v + at * COLUMNS,
        .o = r->out.data ? c->o + at * COLUMNS : NULL,
        .u = r->record ? c->u + at * COLUMNS : NULL,
        .alpha = c->alpha + at,
        .beta = c->beta + at,
        .kq = c->dots + at,
        .to = c->to,
        .scratch = S,
        .ld_v = COLUMNS,
        .ld_o = COLUMNS,
        .T = (int)(end - i) * u,
        .K = r->K,
        .n = b->n,
        .resume = true,
        .exact = r->exact,
        .round = gdn_rule_rounding(r),
        .updates = gdn_rule_updates(r),
    };
    if (b->to_view->k_first)
        kr->recur_kv[GDN_F32](&step);
    else
        kr->recur_vk[GDN_F32](&step);
}

/* Returns true if visits [i, end) of the window from t0 on change a state. */
static bool are_changing(const struct step_scratch *c, const struct gdn_rule *r, int64_t t0,
                         int64_t i, int64_t end)
{
    const int u = gdn_rule_updates(r);
    for (int64_t row = (i - t0) * u; row < (end - t0) * u; row++)
        if (c->alpha[row] != 1 || c->beta[row] != 0) return true;
    return false;
}

/* The state of the visit's level is, for now, that of the level below, of `size` floats. */
static void copy_level(struct step_scratch *c, struct gdn_visit visit, ptrdiff_t size)
{
    const uint64_t bit = (uint64_t)1 << visit.level;
    float *const S = c->state + visit.level * size;
    memcpy(S, S - size, (size_t)size * sizeof *S);
    c->changed = (c->changed & ~bit) | (c->changed << 1 & bit);
}

/* Stores the window's rows of the record: u of this block, alpha, and k. A head's first columns
 * store its alpha. Those of the first head that reads a k store that k. */
static void store_record(const struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_seq *seq,
                         const struct block *b, int64_t t0, int n)
{
    const struct gdn_record *rec = r->record;
    if (gdn_record_folds(rec, seq)) return;
    const int64_t first = gdn_record_count(rec, seq->slot);
    const int64_t u_bytes = b->col * (int64_t)gdn_dtype_bytes(rec->u.dtype);
    const int hk = gdn_rule_source(r, b->head, r->Hk);
    const bool has_k =
        r->head_map == GDN_HEADS_GROUPED ? b->head % (r->H / r->Hk) == 0 : b->head < r->Hk;
    for (int t = 0; t < n; t++) {
        const int64_t row = first + visit_at(r, seq, t0 + t).token;
        kr->store_row[rec->u.dtype]((char *)gdn_record_at(&rec->u, seq->slot, row, b->head) +
                                        u_bytes,
                                    c->u + t * COLUMNS, (size_t)b->n);
        if (b->col > 0) continue;
        const float *a = c->a ? c->a + t * r->K : c->alpha + t;
        for (int64_t x = 0; x < rec->channels; x++)
            *gdn_record_gate(rec, seq->slot, row, b->head, x) =
                copysignf(a[x], c->beta[t] == 0 ? -1.0f : 1.0f);
        if (has_k)
            kr->store_row[rec->k.dtype](gdn_record_at(&rec->k, seq->slot, row, hk),
                                        c->kq + t * r->K, (size_t)r->K);
    }
}

static void walk(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                 const struct gdn_rule_item *item, const struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    const int64_t T = seq->n_valid;
    const ptrdiff_t size = gdn_strip_ld(r->K * b->n); /* floats from level to level */
    memset(c->to, 0, sizeof c->to);
    stage(c->state, r, kr, b);
    if (gdn_rule_rounding8(r) || (r->visits && gdn_is_q8(b->from.view->dtype)))
        stage_codes(c, r, b);
    c->changed = has_record(r, seq) && gdn_record_count(r->record, seq->slot) > 0;
    if (has_record(r, seq))
        gdn_record_apply(r, kr, seq->slot, b->head, b->col, b->n, b->to_view->k_first, c->state);
    const int most = window_tokens(r);
    for (int64_t t0 = 0; t0 < T; t0 += most) {
        const int n = T - t0 < most ? (int)(T - t0) : most;
        load_tokens(c, r, kr, item, b->head, t0, n);
        load_v(c, r, kr, seq, b, t0, n);
        for (int64_t i = t0, end; i < t0 + n; i = end) {
            const struct gdn_visit visit = visit_at(r, seq, i);
            float *S = c->state + visit.level * size;
            if (visit.copies) copy_level(c, visit, size);
            end = run_end(r, seq, b->head, i, t0 + n);
            walk_run(c, r, kr, b, t0, n, i, end, S);
            const bool changes = are_changing(c, r, t0, i, end);
            if (changes) c->changed |= (uint64_t)1 << visit.level;
            if (gdn_rule_rounding8(r) && (changes || !c->has_codes))
                round_state(c, S, r, kr, b, seq->base + i + 1);
            store_state(c, S, r, kr, seq, b, visit_at(r, seq, end - 1));
        }
        store_o(c, r, kr, seq, b, t0, n);
        if (has_record(r, seq)) store_record(c, r, kr, seq, b, t0, n);
    }
}

/* ---- A state that stays -------------------------------------------------------------------- */

/* The tokens fill the record: all rows, and they, go into the state, which is in the L2 cache. */
static void fold_pending(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_seq *seq,
                         const struct block *b)
{
    struct gdn_recur tokens = recur_of(c, r, b, (int)seq->n_valid);
    const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, b->head);
    const bool there = to.view->dtype == GDN_F32 && !to.view->gap, k_first = to.view->k_first;
    float *S = there ? (float *)(void *)column_at(&to, b->col) : c->state;
    const ptrdiff_t dense = k_first ? b->n : r->K;
    tokens.u = c->u;
    if (!there) gdn_load_columns(S, k_first, kr, b->from, r->K, b->col, b->n);
    gdn_pending_fold(&c->pending, kr, &tokens, k_first, S, there ? to.view->ld : dense);
    if (!there) gdn_store_columns(S, k_first, kr, to, r->K, b->col, b->n);
}

/* Runs tokens that a record accepts at once. Returns false if the sequence has no such tokens. */
static bool step_pending(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                         const struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    const struct gdn_pool_view *view = b->from.view;
    const bool staged = view->gap || gdn_is_q8(view->dtype);
    const int T = (int)seq->n_valid;
    struct gdn_pending *p = &c->pending;
    const bool folds = gdn_record_folds(r->record, seq);
    if (!r->record->accepts || r->exact || (folds && !gdn_pending_takes(r, kr))) return false;
    if (seq->n_valid > GDN_PENDING_TOKENS || (r->checkpoints.data && seq->n_checkpoints > 0))
        return false;
    gdn_pending_prefetch(r, seq->slot, b->head);
    load_tokens(c, r, kr, item, b->head, 0, T);
    if (!gdn_pending_load(p, r, kr, seq->slot, b->head)) return false;
    load_v(c, r, kr, seq, b, 0, T);
    struct gdn_recur step = recur_of(c, r, b, T);
    step.u = c->u;
    step.from = column_at(&b->from, b->col);
    step.ld_from = view->ld;
    step.resume = staged;
    step.round = GDN_F32;
    if (!gdn_pending_begin(p, r, kr, &step, c->v, b->col)) return false;
    memset(c->to, 0, sizeof c->to);
    if (staged) stage(c->state, r, kr, b);
    if (b->head + 1 < r->H) gdn_pending_prefetch(r, seq->slot, b->head + 1);
    (view->k_first ? kr->recur_kv : kr->recur_vk)[staged ? GDN_F32 : view->dtype](&step);
    for (int t = 0; r->out.data && t < T; t++)
        for (int j = 0; j < b->n; j++) c->o[t * COLUMNS + j] += p->sums[(T + t) * b->n + j];
    store_o(c, r, kr, seq, b, 0, T);
    if (folds)
        fold_pending(c, r, kr, seq, b);
    else
        store_record(c, r, kr, seq, b, 0, T);
    return true;
}

/* ---- One token on 8 bits --------------------------------------------------------------------- */

/* Runs one token on a state of 8 bits in place, by recur8_vk(). Returns false if the call needs
 * more than that loop does. */
static bool step_q8(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, const struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, b->head);
    uint32_t keys[COLUMNS];
    if (r->family.is || seq->n_valid != 1 || r->visits) return false;
    if (has_record(r, seq) || to.view->k_first) return false;
    if (!to.data || to.data != b->from.data || !to.scales || to.view->gap) return false;
    if (r->checkpoints.data && seq->n_checkpoints > 0) return false;
    load_tokens(c, r, kr, item, b->head, 0, 1);
    load_v(c, r, kr, seq, b, 0, 1);
    const struct gdn_recur step = recur_of(c, r, b, 1);
    if (to.view->random) gdn_noise_keys(keys, to.noise, b->col, b->n);
    if (!kr->recur8_vk[to.view->dtype - GDN_I8](&step, column_at(&to, b->col), to.view->ld,
                                                to.scales + b->col, to.view->random ? keys : NULL))
        return false;
    store_o(c, r, kr, seq, b, 0, 1);
    return true;
}

/* ---- Items --------------------------------------------------------------------------------- */

/* Columns of a block: no more than there is room for the states of all levels. */
static int block_columns(const struct gdn_rule *r, const struct gdn_seq *seq)
{
    if (!r->visits) return COLUMNS;
    const int most = TREE_STATES / (gdn_tree_levels(seq->n_valid) * gdn_strip_ld(r->K));
    return most >= COLUMNS ? COLUMNS : most >= 16 ? most & ~15 : most;
}

static void step_columns(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                         struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    b->from = gdn_rule_from(r, seq, b->head);
    b->to_view = seq->to_carry ? &r->carry_to : &r->to;
    if (!b->to_view->data) b->to_view = b->from.view;
    if (seq->n_valid == 0) {
        copy_state(c, r, kr, seq, b);
        return;
    }
    if (is_walked(r, seq, b)) {
        if (step_q8(c, r, kr, item, b)) return;
        if (has_record(r, seq) && step_pending(c, r, kr, item, b)) return;
        walk(c, r, kr, item, b);
        return;
    }
    bool resume =
        b->from.data && (b->from.view->dtype != b->to_view->dtype ||
                         b->from.view->k_first != b->to_view->k_first || b->from.view->gap);
    if (resume) stage(c->state, r, kr, b);
    const int most = window_tokens(r);
    for (int64_t t0 = 0; t0 < seq->n_valid; t0 += most) {
        const int n = seq->n_valid - t0 < most ? (int)(seq->n_valid - t0) : most;
        step_block(c, r, kr, item, b, t0, n, resume);
        resume = true;
    }
}

void gdn_decode_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_rule_item *item, void *scratch)
{
    struct step_scratch *c = scratch;
    const int columns = block_columns(r, item->seq);
    c->t0 = -1;
    c->a = r->family.is ? c->state + state_floats(r) : NULL;
    c->ak = r->family.is ? c->a + vector_floats(r) : NULL;
    c->aq = r->family.is ? c->ak + vector_floats(r) : NULL;
    gdn_pending_open(&c->pending, r, c->state + state_floats(r) + 3 * vector_floats(r));
    for (int s = item->first; s < item->last;) {
        const int end = (s / r->n_strips + 1) * r->n_strips;
        const int last = end < item->last ? end : item->last;
        struct block b = { .head = gdn_rule_head(r, item->group, s / r->n_strips) };
        int last_col = (last - end + r->n_strips) * kr->strip;
        if (last_col > r->V) last_col = r->V;
        for (b.col = s % r->n_strips * kr->strip; b.col < last_col; b.col += columns) {
            b.n = last_col - b.col < columns ? last_col - b.col : columns;
            step_columns(c, r, kr, item, &b);
        }
        s = last;
    }
}
