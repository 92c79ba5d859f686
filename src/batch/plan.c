/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: from descriptors (gdn_plan_describe) and contents (gdn_plan_batch) to a flat list
 * of sequences. For calls on the CPU this file checks the rules of gdn_batch; plan_slots.c checks
 * that no slot is written twice, record.c and state.c check slots of their own. On a device each
 * kernel reads the contents and skips what is wrong (cuda/batch.cuh).
 *
 * An empty sequence needs no state, so its slots are not looked at. A padding row is known by
 * its negative read slot, even where there is no state. With GDN_PAD_SINK only the first
 * padding row that has tokens uses the sink slot; several would write it at once. The others
 * are skipped as with GDN_PAD_ZERO.
 */
#include "batch/plan.h"

#include "core/ctx.h"
#include "core/tensor_check.h"

/* The most sequences, or slots written, of a call. It keeps byte counts far from overflow. */
#define MAX_ENTRIES ((int64_t)1 << 31)

/* gdn_workspace_bytes() promises 192 bytes per sequence: these, below 64 in the slot map, and
 * both are rounded up. */
_Static_assert(sizeof(struct gdn_seq) <= 112, "what gdn_workspace_bytes() promises");

/* ---- Tokens -------------------------------------------------------------------------------- */

gdn_status gdn_plan_tokens(gdn_ctx *ctx, const gdn_tensor *like, const char *name, int trailing,
                           struct gdn_tokens *tokens)
{
    if (!like->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", name);
    if (like->ndim != trailing + 1 && like->ndim != trailing + 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d dimensions, wanted %d (packed) or %d (padded)",
                        name, (int)like->ndim, trailing + 1, trailing + 2);
    memset(tokens, 0, sizeof *tokens);
    tokens->padded = like->ndim == trailing + 2;
    if (tokens->padded) {
        tokens->B = like->size[0];
        tokens->T = like->size[1];
    } else {
        tokens->B = 1;
        tokens->T = like->size[0];
    }
    if (__builtin_mul_overflow(tokens->B, tokens->T, &tokens->N))
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "%s: %lld sequences of %lld tokens, wanted at most 2^63 - 1 tokens", name,
                        (long long)tokens->B, (long long)tokens->T);
    return GDN_OK;
}

gdn_status gdn_plan_check(gdn_ctx *ctx, const struct gdn_tokens *tokens, const gdn_tensor *t,
                          const char *name, int n, const int64_t *trailing)
{
    int64_t size[GDN_MAX_DIMS + 2] = { 0 };
    int ndim = gdn_plan_leading(tokens, size);
    for (int i = 0; i < n; i++) size[ndim++] = trailing[i];
    return gdn_check_shape(ctx, t, name, ndim, size);
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* Checks an index array [B], or with columns [B][columns or more]. */
static gdn_status check_array(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned dtypes,
                              int64_t B, bool has_columns, int64_t columns)
{
    const int64_t size[] = { B, -1 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, dtypes));
    TRY(gdn_check_shape(ctx, t, name, has_columns ? 2 : 1, size));
    if (has_columns && t->size[1] < columns)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: [%lld][%lld], wanted %lld columns at least", name,
                        (long long)B, (long long)t->size[1], (long long)columns);
    return GDN_OK;
}

static gdn_status check_arrays(gdn_ctx *ctx, const struct gdn_plan *plan,
                               const struct gdn_tokens *tokens)
{
    const gdn_batch *b = &plan->batch;
    const bool accepted = b->num_accepted_tokens.data != NULL;
    /* if states are frozen, write slots may have either form: they are not read */
    const bool each =
        b->write == GDN_WRITE_EACH || (b->write == GDN_WRITE_NONE && b->write_slots.ndim == 2);
    const int64_t columns = b->write == GDN_WRITE_EACH && tokens->padded ? tokens->T : 0;

    TRY(check_array(ctx, &b->read_slots, "read_slots", GDN_INDICES, plan->B, accepted, accepted));
    TRY(check_array(ctx, &b->write_slots, "write_slots", GDN_INDICES, plan->B, each, columns));
    TRY(check_array(ctx, &b->has_initial_state, "has_initial_state", GDN_INDICES | 1 << GDN_U8,
                    plan->B, false, 0));
    TRY(check_array(ctx, &b->num_accepted_tokens, "num_accepted_tokens", GDN_INDICES, plan->B,
                    false, 0));
    TRY(check_array(ctx, &b->token_start, "token_start", GDN_INDICES, plan->B, false, 0));
    TRY(check_array(ctx, &b->token_count, "token_count", GDN_INDICES, plan->B, false, 0));
    TRY(check_array(ctx, &b->parents, "parents", GDN_INDICES, plan->B, true, 0));
    TRY(check_array(ctx, &b->path, "path", GDN_INDICES, plan->B, true, 0));
    if (accepted && !b->read_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "read_slots: absent, wanted with num_accepted_tokens");
    if (b->write == GDN_WRITE_EACH && !b->write_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "write_slots: absent, wanted with GDN_WRITE_EACH");
    if (b->path.data && !b->token_count.data)
        return gdn_fail(ctx, GDN_E_ARG, "token_count: absent, wanted with path");
    return GDN_OK;
}

/* Checks the arrays of checkpoints, for an op that leaves some. */
static gdn_status check_checkpoints(gdn_ctx *ctx, struct gdn_plan *plan,
                                    const struct gdn_tokens *tokens)
{
    const gdn_batch *b = &plan->batch;
    const gdn_tensor *starts = &b->checkpoint_starts, *positions = &b->checkpoint_positions;
    if (b->checkpoint_every < 0)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_every: %lld, wanted 0 or more",
                        (long long)b->checkpoint_every);
    if (!starts->data != !positions->data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted with %s",
                        starts->data ? "checkpoint_positions" : "checkpoint_starts",
                        starts->data ? "checkpoint_starts" : "checkpoint_positions");
    if (!starts->data && !b->checkpoint_every)
        return gdn_fail(ctx, GDN_E_ARG,
                        "checkpoint_positions: absent, and checkpoint_every is 0, "
                        "wanted one of them with checkpoints");
    if (starts->data && b->checkpoint_every)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_every: %lld, wanted 0 with a list of positions",
                        (long long)b->checkpoint_every);
    TRY(check_array(ctx, starts, "checkpoint_starts", GDN_INDICES, plan->B + 1, false, 0));
    TRY(check_array(ctx, positions, "checkpoint_positions", GDN_INDICES, -1, false, 0));
    TRY(check_array(ctx, &b->checkpoint_slots, "checkpoint_slots", GDN_INDICES, -1, false, 0));
    if (positions->data && b->checkpoint_slots.data)
        TRY(gdn_check_shape(ctx, &b->checkpoint_slots, "checkpoint_slots", 1, positions->size));
    if (positions->data) plan->max_checkpoints = positions->size[0];
    if (b->checkpoint_every) plan->max_checkpoints = tokens->N / b->checkpoint_every;
    return GDN_OK;
}

/* Refuses a batch with fields of checkpoints, if the op's tensor for checkpoints is absent. */
static gdn_status refuse_checkpoints(gdn_ctx *ctx, const gdn_batch *b)
{
    const char *given = b->checkpoint_every            ? "checkpoint_every"
                        : b->checkpoint_positions.data ? "checkpoint_positions"
                        : b->checkpoint_starts.data    ? "checkpoint_starts"
                        : b->checkpoint_slots.data     ? "checkpoint_slots"
                                                       : NULL;
    if (!given) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "checkpoints: absent, wanted with %s of the batch", given);
}

/* Removes the checkpoints of a batch for an op without checkpoints. */
static void drop_checkpoints(gdn_batch *b)
{
    b->checkpoint_every = 0;
    b->checkpoint_starts.data = b->checkpoint_positions.data = b->checkpoint_slots.data = NULL;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_batch *b, unsigned takes)
{
    const struct {
        const char *name;
        bool given;
        unsigned flag;
    } asked[] = {
        { "write: GDN_WRITE_EACH", b->write == GDN_WRITE_EACH, GDN_PLAN_EACH },
        { "parents: given", b->parents.data, GDN_PLAN_TREE },
        { "path: given", b->path.data, GDN_PLAN_PATH },
    };
    if (b->pad_policy < GDN_PAD_ZERO || b->pad_policy > GDN_PAD_SINK)
        return gdn_fail(ctx, GDN_E_ARG, "pad_policy: %d, wanted 0 to 2", (int)b->pad_policy);
    if (b->write < GDN_WRITE_FINAL || b->write > GDN_WRITE_NONE)
        return gdn_fail(ctx, GDN_E_ARG, "write: %d, wanted 0 to 2", (int)b->write);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (asked[i].given && !(takes & asked[i].flag))
            return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s, this op has no kernel", asked[i].name);
    if (b->max_seqlen < 0)
        return gdn_fail(ctx, GDN_E_ARG, "max_seqlen: %d, wanted 0 or more", (int)b->max_seqlen);
    if (b->first_slot < 0)
        return gdn_fail(ctx, GDN_E_ARG, "first_slot: %lld, wanted 0 or more",
                        (long long)b->first_slot);
    if (b->first_slot && !b->read_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "read_slots: absent, wanted with first_slot");
    if (b->pad_policy == GDN_PAD_SINK && b->sink_slot < 0)
        return gdn_fail(ctx, GDN_E_ARG, "sink_slot: %lld, wanted 0 or more",
                        (long long)b->sink_slot);
    return GDN_OK;
}

void gdn_plan_add_extents(const gdn_batch *b, struct gdn_extents *all)
{
#define ARRAY(name)                      \
    {                                    \
        offsetof(gdn_batch, name), #name \
    }
    static const struct {
        size_t at;
        const char *name;
    } arrays[] = {
        ARRAY(cu_seqlens),
        ARRAY(read_slots),
        ARRAY(write_slots),
        ARRAY(has_initial_state),
        ARRAY(num_accepted_tokens),
        ARRAY(token_start),
        ARRAY(token_count),
        ARRAY(parents),
        ARRAY(path),
        ARRAY(checkpoint_starts),
        ARRAY(checkpoint_positions),
        ARRAY(checkpoint_slots),
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const gdn_tensor *t = (const void *)((const char *)b + arrays[i].at);
        if (t->data) gdn_add_extent(all, t, arrays[i].name);
    }
}

/* Returns slots that a call may write, at most. */
static int64_t max_writes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    const int64_t checkpoints = plan->max_checkpoints;
    if (plan->batch.write == GDN_WRITE_NONE) return checkpoints;
    return checkpoints + (plan->batch.write == GDN_WRITE_EACH ? tokens->N : plan->B);
}

gdn_status gdn_plan_describe(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                             unsigned takes, struct gdn_plan *plan)
{
    static const int64_t any[] = { -1 };
    gdn_batch *b = &plan->batch;
    memset(&plan->B, 0, sizeof *plan - offsetof(struct gdn_plan, B));
    if (batch)
        TRY(gdn_copy_args(ctx, b, sizeof *b, batch, "batch"));
    else
        memset(b, 0, sizeof *b);
    TRY(check_fields(ctx, b, takes));
    if (takes & GDN_PLAN_NO_TENSOR) TRY(refuse_checkpoints(ctx, b));
    if (!(takes & GDN_PLAN_CHECKPOINTS)) drop_checkpoints(b);

    plan->padded = tokens->padded;
    plan->B = tokens->B;
    if (b->cu_seqlens.data) {
        if (tokens->padded)
            return gdn_fail(ctx, GDN_E_ARG, "cu_seqlens: given, wanted none for padded tensors");
        TRY(gdn_check_tensor(ctx, &b->cu_seqlens, "cu_seqlens"));
        TRY(gdn_check_dtype(ctx, &b->cu_seqlens, "cu_seqlens", GDN_INDICES));
        TRY(gdn_check_shape(ctx, &b->cu_seqlens, "cu_seqlens", 1, any));
        if (b->cu_seqlens.size[0] < 1)
            return gdn_fail(ctx, GDN_E_SHAPE, "cu_seqlens: [0], wanted [B+1]");
        plan->B = b->cu_seqlens.size[0] - 1;
    }
    if (plan->B > MAX_ENTRIES)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "batch: %lld sequences, at most 2^31",
                        (long long)plan->B);
    TRY(check_arrays(ctx, plan, tokens));
    if (takes & GDN_PLAN_CHECKPOINTS) TRY(check_checkpoints(ctx, plan, tokens));
    if (max_writes(plan, tokens) > MAX_ENTRIES)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "batch: up to %lld slots written, at most 2^31",
                        (long long)max_writes(plan, tokens));
    return GDN_OK;
}

struct gdn_plan_pools gdn_plan_pools_of(const gdn_tensor *from, const gdn_tensor *to,
                                        const gdn_tensor *checkpoints)
{
    return (struct gdn_plan_pools){
        .read = from->data ? from->size[0] : -1,
        .write = to->data ? to->size[0] : -1,
        .checkpoint = checkpoints->data ? checkpoints->size[0] : -1,
        .same = to->data == from->data,
        .checkpoint_in_write = to->data && to->data == checkpoints->data,
    };
}

/* ---- Contents ------------------------------------------------------------------------------ */

/* The inputs of reading one sequence, beside the plan. */
struct reader {
    gdn_ctx *ctx;
    const gdn_batch *batch;
    const struct gdn_tokens *tokens;
    struct gdn_plan_pools pools;
    int64_t n_checkpoints; /* of the sequences so far */
    bool sink_taken;
};

static gdn_status check_value(gdn_ctx *ctx, const char *name, int64_t b, int64_t found, int64_t low,
                              int64_t high)
{
    if (found >= low && found <= high) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: %lld, wanted %lld to %lld", name, (long long)b,
                    (long long)found, (long long)low, (long long)high);
}

static gdn_status check_slot(gdn_ctx *ctx, const gdn_tensor *slots, const char *name, int64_t b,
                             int64_t slot, int64_t end)
{
    if (slot >= 0 && slot < end) return GDN_OK;
    if (!slots->data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, so slot %lld for sequence %lld of %lld slots",
                        name, (long long)slot, (long long)b, (long long)end);
    return gdn_fail(ctx, GDN_E_ARG, "%s: slot %lld for sequence %lld, wanted 0 to %lld", name,
                    (long long)slot, (long long)b, (long long)end - 1);
}

/* Entry t of the row of sequence b. */
static gdn_status check_entry(const struct reader *r, const char *name, int64_t b, int64_t t,
                              int64_t found, int64_t low, int64_t high)
{
    if (found >= low && found <= high) return GDN_OK;
    return gdn_fail(r->ctx, GDN_E_ARG, "%s[%lld][%lld]: %lld, wanted %lld to %lld", name,
                    (long long)b, (long long)t, (long long)found, (long long)low, (long long)high);
}

/* Reads the place of the tokens of sequence b. */
static gdn_status read_range(const struct reader *r, int64_t b, struct gdn_seq *s)
{
    const gdn_tensor *cu = &r->batch->cu_seqlens;
    if (!cu->data) {
        s->batch = r->tokens->padded ? b : 0;
        s->n_tokens = r->tokens->T;
        return GDN_OK;
    }
    const int64_t first = gdn_index(cu, b), end = gdn_index(cu, b + 1);
    if (end < first)
        return gdn_fail(r->ctx, GDN_E_ARG, "cu_seqlens[%lld]: %lld after %lld, wanted no decrease",
                        (long long)b + 1, (long long)end, (long long)first);
    TRY(check_value(r->ctx, "cu_seqlens", b + 1, end, 0, r->tokens->N));
    s->first = first;
    s->n_tokens = end - first;
    return GDN_OK;
}

/* Reads the slot that sequence b starts from; negative: padding. */
static gdn_status read_start(const struct reader *r, int64_t b, int64_t *slot)
{
    const gdn_tensor *slots = &r->batch->read_slots, *accepted = &r->batch->num_accepted_tokens;
    if (!slots->data) {
        *slot = b;
    } else if (!accepted->data) {
        *slot = gdn_plan_named_slot(r->batch, gdn_index(slots, b));
    } else {
        const int64_t n = gdn_index(accepted, b);
        TRY(check_value(r->ctx, "num_accepted_tokens", b, n, 1, slots->size[1]));
        *slot = gdn_plan_named_slot(r->batch, gdn_index2(slots, b, n - 1));
    }
    return GDN_OK;
}

/* Finds where a sequence that computes starts and ends. own: its write slots count; else it has
 * the sink's slot. */
static gdn_status place_states(const struct reader *r, int64_t start, bool own, struct gdn_seq *s)
{
    const gdn_batch *b = r->batch;
    const gdn_tensor *slots = &b->write_slots;
    const bool has_initial =
        !b->has_initial_state.data || gdn_index(&b->has_initial_state, s->row) != 0;

    if (r->pools.read >= 0 && has_initial) {
        TRY(check_slot(r->ctx, &b->read_slots, own ? "read_slots" : "sink_slot", s->row, start,
                       r->pools.read));
        s->read = start;
    }
    if (r->pools.write < 0 || b->write == GDN_WRITE_NONE) return GDN_OK;
    if (b->write == GDN_WRITE_EACH && own) return GDN_OK;
    if (!own || !slots->data) {
        TRY(check_slot(r->ctx, &b->read_slots, own ? "read_slots" : "sink_slot", s->row, start,
                       r->pools.write));
        s->write = start;
        return GDN_OK;
    }
    s->write = gdn_plan_named_slot(b, gdn_index(slots, s->row));
    if (s->write < 0) return GDN_OK;
    return check_slot(r->ctx, slots, "write_slots", s->row, s->write, r->pools.write);
}

/* Reads which of its tokens count. */
static gdn_status read_counts(const struct reader *r, struct gdn_seq *s)
{
    const gdn_tensor *start = &r->batch->token_start, *count = &r->batch->token_count;
    if (start->data) {
        s->n_before = gdn_index(start, s->row);
        TRY(check_value(r->ctx, "token_start", s->row, s->n_before, 0, s->n_tokens));
        s->first += s->n_before;
    }
    s->n_valid = s->n_tokens - s->n_before;
    if (count->data) {
        const int64_t n = gdn_index(count, s->row);
        TRY(check_value(r->ctx, "token_count", s->row, n, 0, s->n_valid));
        s->n_valid = n;
    }
    s->total = s->n_valid;
    return GDN_OK;
}

/* Checks a row of `parents` or `path` with an entry for every token that counts. */
static gdn_status check_row(const struct reader *r, const gdn_tensor *t, const char *name,
                            const struct gdn_seq *s)
{
    if (s->n_valid <= t->size[1]) return GDN_OK;
    return gdn_fail(r->ctx, GDN_E_SHAPE, "%s: %lld columns, wanted %lld for sequence %lld", name,
                    (long long)t->size[1], (long long)s->n_valid, (long long)s->row);
}

static gdn_status read_parents(const struct reader *r, const struct gdn_seq *s)
{
    const gdn_tensor *t = &r->batch->parents;
    if (!t->data) return GDN_OK;
    TRY(check_row(r, t, "parents", s));
    for (int64_t i = 0; i < s->n_valid; i++)
        TRY(check_entry(r, "parents", s->row, i, gdn_index2(t, s->row, i), -1, i - 1));
    return GDN_OK;
}

static gdn_status read_path(const struct reader *r, const struct gdn_seq *s)
{
    const gdn_tensor *t = &r->batch->path;
    if (!t->data) return GDN_OK;
    TRY(check_row(r, t, "path", s));
    for (int64_t i = 0, least = 0; i < s->n_valid; i++) {
        const int64_t token = gdn_index2(t, s->row, i);
        TRY(check_entry(r, "path", s->row, i, token, least, s->n_tokens - s->n_before - 1));
        least = token + 1;
    }
    return GDN_OK;
}

/* Reads the checkpoints of a list, from checkpoint_starts[b] on. */
static gdn_status read_listed(const struct reader *r, struct gdn_seq *s)
{
    const gdn_batch *b = r->batch;
    const int64_t first = gdn_index(&b->checkpoint_starts, s->row);
    const int64_t end = gdn_index(&b->checkpoint_starts, s->row + 1);
    TRY(check_value(r->ctx, "checkpoint_starts", s->row, first, r->n_checkpoints,
                    s->row ? b->checkpoint_positions.size[0] : 0));
    TRY(check_value(r->ctx, "checkpoint_starts", s->row + 1, end, first,
                    b->checkpoint_positions.size[0]));
    for (int64_t c = first, least = 1; c < end; c++) {
        const int64_t n = gdn_index(&b->checkpoint_positions, c);
        TRY(check_value(r->ctx, "checkpoint_positions", c, n, least, s->n_valid));
        least = n;
    }
    s->n_checkpoints = end - first;
    return GDN_OK;
}

static gdn_status read_checkpoints(struct reader *r, struct gdn_seq *s)
{
    const gdn_batch *b = r->batch;
    const gdn_tensor *slots = &b->checkpoint_slots;
    if (b->checkpoint_every) s->n_checkpoints = s->n_valid / b->checkpoint_every;
    if (b->checkpoint_starts.data) TRY(read_listed(r, s));
    s->first_checkpoint = r->n_checkpoints;
    r->n_checkpoints += s->n_checkpoints;
    if (slots->data && r->n_checkpoints > slots->size[0])
        return gdn_fail(r->ctx, GDN_E_SHAPE, "checkpoint_slots: [%lld], wanted %lld at least",
                        (long long)slots->size[0], (long long)r->n_checkpoints);
    return GDN_OK;
}

static gdn_status read_sequence(struct reader *r, int64_t b, struct gdn_seq *s)
{
    int64_t start;
    *s = (struct gdn_seq){ .row = b, .slot = -1, .read = -1, .write = -1 };
    TRY(read_range(r, b, s));
    TRY(read_counts(r, s));
    if (r->pools.checkpoint >= 0) TRY(read_checkpoints(r, s));
    if (s->n_tokens == 0) return GDN_OK;

    TRY(read_start(r, b, &start));
    const bool own = start >= 0;
    s->slot = start;
    if (!own) s->n_checkpoints = 0;
    if (!own && (r->batch->pad_policy != GDN_PAD_SINK || r->sink_taken)) {
        s->n_valid = 0;
        s->total = 0;
        s->keep_out = r->batch->pad_policy == GDN_PAD_KEEP;
        return GDN_OK;
    }
    r->sink_taken |= !own;
    TRY(read_parents(r, s));
    TRY(read_path(r, s));
    return place_states(r, own ? start : r->batch->sink_slot, own, s);
}

static gdn_status check_start(const struct reader *r)
{
    const gdn_tensor *cu = &r->batch->cu_seqlens;
    return cu->data ? check_value(r->ctx, "cu_seqlens", 0, gdn_index(cu, 0), 0, r->tokens->N)
                    : GDN_OK;
}

gdn_status gdn_plan_batch(gdn_ctx *ctx, const struct gdn_tokens *tokens,
                          const struct gdn_plan_pools *pools, void *memory, struct gdn_plan *plan)
{
    struct reader r = { .ctx = ctx, .batch = &plan->batch, .tokens = tokens, .pools = *pools };
    if (!plan->max_checkpoints) r.pools.checkpoint = -1;

    plan->seqs = memory;
    plan->longest = 0;
    plan->start = 0;
    plan->end = tokens->N;
    TRY(check_start(&r));
    for (int64_t b = 0; b < plan->B; b++) {
        TRY(read_sequence(&r, b, &plan->seqs[b]));
        if (plan->seqs[b].n_tokens > plan->longest) plan->longest = plan->seqs[b].n_tokens;
    }
    if (plan->batch.cu_seqlens.data) {
        plan->start = gdn_index(&plan->batch.cu_seqlens, 0);
        plan->end = gdn_index(&plan->batch.cu_seqlens, plan->B);
    }
    if (plan->batch.write == GDN_WRITE_EACH && plan->longest > plan->batch.write_slots.size[1])
        return gdn_fail(ctx, GDN_E_SHAPE, "write_slots: %lld columns, wanted %lld at least",
                        (long long)plan->batch.write_slots.size[1], (long long)plan->longest);
    if (pools->write < 0) plan->batch.write = GDN_WRITE_NONE; /* nowhere to write to */
    return gdn_plan_check_slots(ctx, plan, &r.pools, max_writes(plan, tokens),
                                (char *)memory + gdn_align64((size_t)plan->B * sizeof *plan->seqs));
}

size_t gdn_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    return gdn_align64((size_t)plan->B * sizeof *plan->seqs) +
           gdn_plan_slots_bytes(max_writes(plan, tokens));
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void zero_tokens(const struct gdn_rows *out, const struct gdn_seq *s, int64_t from,
                        int64_t to, int64_t n_heads, int64_t n)
{
    const size_t bytes = (size_t)n * gdn_dtype_bytes(out->dtype);
    for (int64_t t = from; t < to; t++)
        for (int64_t h = 0; h < n_heads; h++) memset(gdn_row(out, s, t, h), 0, bytes);
}

void gdn_plan_zero_rest(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_rows *out, int64_t n_heads, int64_t n)
{
    if (!out->data) return;
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (s->keep_out) continue;
        zero_tokens(out, s, -s->n_before, 0, n_heads, n);
        zero_tokens(out, s, s->n_valid, s->n_tokens - s->n_before, n_heads, n);
    }
    const struct gdn_seq rest = { .first = plan->end };
    zero_tokens(out, &rest, 0, tokens->N - plan->end, n_heads, n);
}

void gdn_plan_zero_gradients(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                             const struct gdn_rows *out, int64_t n_heads, int64_t n)
{
    const struct gdn_seq before = { .first = 0 };
    if (out->data) zero_tokens(out, &before, 0, plan->start, n_heads, n);
    gdn_plan_zero_rest(plan, tokens, out, n_heads, n);
}
