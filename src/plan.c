/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: from descriptors (gdn_plan_describe) and contents (gdn_plan_batch) to a flat list
 * of sequences. Every rule of gdn_batch is checked here and nowhere else.
 *
 * An empty sequence needs no state, so its slots are not looked at. A padding row is known by
 * its negative read slot, even where there is no state. With GDN_PAD_SINK only the first
 * padding row that has tokens uses the sink slot; several would write it at once. The others
 * are skipped as with GDN_PAD_ZERO.
 */
#include "plan.h"

#include "ctx.h"
#include "tensor.h"

/* So many sequences, or slots written, per call: keeps byte counts far from overflow. */
#define MAX_ENTRIES ((int64_t)1 << 31)

/* gdn_workspace_bytes() promises 192 bytes per sequence: these, below 64 in the slot map, and
 * both are rounded up. */
_Static_assert(sizeof(struct gdn_seq) <= 80, "what gdn_workspace_bytes() promises");

/* ---- Tokens -------------------------------------------------------------------------------- */

gdn_status gdn_plan_tokens(gdn_ctx *ctx, const gdn_tensor *like, const char *name, int trailing,
                           bool single, struct gdn_tokens *tokens)
{
    if (!like->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", name);
    TRY(gdn_check_tensor(ctx, like, name));
    if (like->ndim != trailing + 1 && like->ndim != trailing + 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d dimensions, wanted %d (packed) or %d (padded)",
                        name, (int)like->ndim, trailing + 1, trailing + 2);
    memset(tokens, 0, sizeof *tokens);
    tokens->padded = like->ndim == trailing + 2;
    if (tokens->padded) {
        tokens->B = like->size[0];
        tokens->T = like->size[1];
    } else {
        tokens->single = single;
        tokens->B      = single ? like->size[0] : 1;
        tokens->T      = single ? 1 : like->size[0];
    }
    if (__builtin_mul_overflow(tokens->B, tokens->T, &tokens->N))
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: too many tokens", name);
    return GDN_OK;
}

gdn_status gdn_plan_check(gdn_ctx *ctx, const struct gdn_tokens *tokens, const gdn_tensor *t,
                          const char *name, int n, const int64_t *trailing)
{
    int64_t size[GDN_MAX_DIMS + 2] = { 0 };
    int     ndim                   = 0;
    if (tokens->padded) {
        size[ndim++] = tokens->B;
        size[ndim++] = tokens->T;
    } else {
        size[ndim++] = tokens->N;
    }
    for (int i = 0; i < n; i++) size[ndim++] = trailing[i];
    return gdn_check_shape(ctx, t, name, ndim, size);
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* An index array [B], or with columns [B][columns or more]. */
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
    const gdn_batch *b        = &plan->batch;
    const bool       accepted = b->num_accepted_tokens.data != NULL;
    /* Frozen states take the write slots of either form, for nobody reads them. */
    const bool each =
        b->write == GDN_WRITE_EACH || (b->write == GDN_WRITE_NONE && b->write_slots.ndim == 2);
    const int64_t columns = b->write == GDN_WRITE_EACH && tokens->padded ? tokens->T : 0;

    TRY(check_array(ctx, &b->read_slots, "read_slots", GDN_INDICES, plan->B, accepted, accepted));
    TRY(check_array(ctx, &b->write_slots, "write_slots", GDN_INDICES, plan->B, each, columns));
    TRY(check_array(ctx, &b->has_initial_state, "has_initial_state", GDN_INDICES | 1 << GDN_U8,
                    plan->B, false, 0));
    TRY(check_array(ctx, &b->num_accepted_tokens, "num_accepted_tokens", GDN_INDICES, plan->B,
                    false, 0));
    TRY(check_array(ctx, &b->token_count, "token_count", GDN_INDICES, plan->B, false, 0));
    if (accepted && !b->read_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "read_slots: absent, wanted with num_accepted_tokens");
    if (b->write == GDN_WRITE_EACH && !b->write_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "write_slots: absent, wanted with GDN_WRITE_EACH");
    return GDN_OK;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_batch *b, bool allow_each)
{
    if (b->pad_policy < GDN_PAD_ZERO || b->pad_policy > GDN_PAD_SINK)
        return gdn_fail(ctx, GDN_E_ARG, "pad_policy: %d, wanted 0 to 2", (int)b->pad_policy);
    if (b->write < GDN_WRITE_FINAL || b->write > GDN_WRITE_NONE)
        return gdn_fail(ctx, GDN_E_ARG, "write: %d, wanted 0 to 2", (int)b->write);
    if (b->write == GDN_WRITE_EACH && !allow_each)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "write: GDN_WRITE_EACH, this op has no kernel");
    if (b->reserved)
        return gdn_fail(ctx, GDN_E_ARG, "batch.reserved: %d, wanted 0", (int)b->reserved);
    if (b->pad_policy == GDN_PAD_SINK && b->sink_slot < 0)
        return gdn_fail(ctx, GDN_E_ARG, "sink_slot: %lld, wanted 0 or more",
                        (long long)b->sink_slot);
    return GDN_OK;
}

gdn_status gdn_plan_check_overlaps(gdn_ctx *ctx, const gdn_batch *b, const gdn_tensor *written,
                                   const char *name)
{
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } arrays[] = {
        { &b->cu_seqlens, "cu_seqlens" },
        { &b->read_slots, "read_slots" },
        { &b->write_slots, "write_slots" },
        { &b->has_initial_state, "has_initial_state" },
        { &b->num_accepted_tokens, "num_accepted_tokens" },
        { &b->token_count, "token_count" },
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        TRY(gdn_check_no_overlap(ctx, written, name, arrays[i].t, arrays[i].name, false));
    return GDN_OK;
}

/* Slots that a call may write, at most. */
static int64_t max_writes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    if (plan->batch.write == GDN_WRITE_NONE) return 0;
    return plan->batch.write == GDN_WRITE_EACH ? tokens->N : plan->B;
}

gdn_status gdn_plan_describe(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                             bool allow_each, struct gdn_plan *plan)
{
    static const int64_t any[] = { -1 };
    memset(plan, 0, sizeof *plan);
    gdn_batch *b = &plan->batch;
    if (batch) TRY(gdn_copy_args(ctx, b, sizeof *b, batch, "batch"));
    TRY(check_fields(ctx, b, allow_each));

    plan->padded = tokens->padded;
    plan->B      = tokens->B;
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
    if (plan->B > MAX_ENTRIES || max_writes(plan, tokens) > MAX_ENTRIES)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "batch: %lld sequences, %lld tokens, at most 2^31",
                        (long long)plan->B, (long long)tokens->N);
    return check_arrays(ctx, plan, tokens);
}

/* ---- Slots written ------------------------------------------------------------------------- */

/* Which sequence writes a slot: open addressing, at most half full. */
struct entry {
    int64_t slot; /* -1: free */
    int64_t row;
};

struct slot_map {
    struct entry *entries;
    int           log2_size;
};

static int map_log2(int64_t n)
{
    int log2 = 1;
    while (((int64_t)1 << log2) < 2 * n) log2++;
    return log2;
}

static size_t map_bytes(int64_t n)
{
    return n == 0 ? 0 : gdn_align64(sizeof(struct entry) << map_log2(n));
}

static struct slot_map map_init(void *memory, int64_t n)
{
    const struct slot_map map = { memory, map_log2(n) };
    if (n > 0) memset(memory, 0xff, sizeof(struct entry) << map.log2_size);
    return map;
}

/* The slot's entry, or the free one where it belongs. */
static struct entry *map_find(const struct slot_map *map, int64_t slot)
{
    const uint64_t mask = ((uint64_t)1 << map->log2_size) - 1;
    uint64_t       i    = ((uint64_t)slot * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - map->log2_size);
    while (map->entries[i].slot >= 0 && map->entries[i].slot != slot) i = (i + 1) & mask;
    return &map->entries[i];
}

static gdn_status add_write(gdn_ctx *ctx, struct slot_map *map, int64_t slot, int64_t row)
{
    struct entry *e = map_find(map, slot);
    if (e->slot >= 0)
        return gdn_fail(ctx, GDN_E_ARG,
                        "slot %lld: written by sequence %lld and by sequence %lld, wanted once",
                        (long long)slot, (long long)e->row, (long long)row);
    *e = (struct entry){ slot, row };
    return GDN_OK;
}

static gdn_status add_each(gdn_ctx *ctx, const struct gdn_plan *plan, const struct gdn_seq *s,
                           int64_t slots_end, struct slot_map *map)
{
    for (int64_t t = 0; t < s->n_valid; t++) {
        const int64_t slot = gdn_plan_each_slot(plan, s, t);
        if (slot >= slots_end)
            return gdn_fail(ctx, GDN_E_ARG, "write_slots[%lld][%lld]: %lld, wanted below %lld",
                            (long long)s->row, (long long)t, (long long)slot, (long long)slots_end);
        if (slot >= 0) TRY(add_write(ctx, map, slot, s->row));
    }
    return GDN_OK;
}

static gdn_status check_conflicts(gdn_ctx *ctx, const struct gdn_plan *plan, int64_t slots_end,
                                  bool same_pool, struct slot_map *map)
{
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (plan->batch.write == GDN_WRITE_EACH)
            TRY(add_each(ctx, plan, s, slots_end, map));
        else if (s->write >= 0)
            TRY(add_write(ctx, map, s->write, b));
    }
    if (!same_pool) return GDN_OK;
    for (int64_t b = 0; b < plan->B; b++) {
        const int64_t slot = plan->seqs[b].read;
        if (slot < 0) continue;
        const struct entry *e = map_find(map, slot);
        if (e->slot >= 0 && e->row != b)
            return gdn_fail(ctx, GDN_E_ARG,
                            "slot %lld: read by sequence %lld and written by sequence %lld",
                            (long long)slot, (long long)b, (long long)e->row);
    }
    return GDN_OK;
}

/* ---- Contents ------------------------------------------------------------------------------ */

/* What the reading of one sequence needs beside the plan. */
struct reader {
    gdn_ctx                 *ctx;
    const gdn_batch         *batch;
    const struct gdn_tokens *tokens;
    int64_t                  read_end, write_end;
    bool                     sink_taken;
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

/* Where the tokens of sequence b are. */
static gdn_status read_range(const struct reader *r, int64_t b, struct gdn_seq *s)
{
    const gdn_tensor *cu = &r->batch->cu_seqlens;
    if (!cu->data) {
        s->batch    = r->tokens->padded ? b : 0;
        s->first    = r->tokens->single ? b : 0;
        s->n_tokens = r->tokens->T;
        return GDN_OK;
    }
    const int64_t first = gdn_index(cu, b), end = gdn_index(cu, b + 1);
    if (end < first)
        return gdn_fail(r->ctx, GDN_E_ARG, "cu_seqlens[%lld]: %lld after %lld, wanted no decrease",
                        (long long)b + 1, (long long)end, (long long)first);
    TRY(check_value(r->ctx, "cu_seqlens", b + 1, end, 0, r->tokens->N));
    s->first    = first;
    s->n_tokens = end - first;
    return GDN_OK;
}

/* The slot that sequence b starts from; negative: padding. */
static gdn_status read_start(const struct reader *r, int64_t b, int64_t *slot)
{
    const gdn_tensor *slots = &r->batch->read_slots, *accepted = &r->batch->num_accepted_tokens;
    if (!slots->data) {
        *slot = b;
    } else if (!accepted->data) {
        *slot = gdn_index(slots, b);
    } else {
        const int64_t n = gdn_index(accepted, b);
        TRY(check_value(r->ctx, "num_accepted_tokens", b, n, 1, slots->size[1]));
        *slot = gdn_index2(slots, b, n - 1);
    }
    return GDN_OK;
}

/* Start and end of a sequence that computes; `own`: its write slots count, else it is sunk. */
static gdn_status place_states(const struct reader *r, int64_t start, bool own, struct gdn_seq *s)
{
    const gdn_batch  *b     = r->batch;
    const gdn_tensor *slots = &b->write_slots;
    const bool        has_initial =
        !b->has_initial_state.data || gdn_index(&b->has_initial_state, s->row) != 0;

    if (r->read_end >= 0 && has_initial) {
        TRY(check_slot(r->ctx, &b->read_slots, own ? "read_slots" : "sink_slot", s->row, start,
                       r->read_end));
        s->read = start;
    }
    if (r->write_end < 0 || b->write == GDN_WRITE_NONE) return GDN_OK;
    if (b->write == GDN_WRITE_EACH && own) return GDN_OK;
    if (!own || !slots->data) {
        TRY(check_slot(r->ctx, &b->read_slots, own ? "read_slots" : "sink_slot", s->row, start,
                       r->write_end));
        s->write = start;
        return GDN_OK;
    }
    const int64_t slot = gdn_index(slots, s->row);
    TRY(check_slot(r->ctx, slots, "write_slots", s->row, slot, r->write_end));
    s->write = slot;
    return GDN_OK;
}

static gdn_status read_sequence(struct reader *r, int64_t b, struct gdn_seq *s)
{
    const gdn_tensor *count = &r->batch->token_count;
    int64_t           start;

    *s = (struct gdn_seq){ .row = b, .read = -1, .write = -1 };
    TRY(read_range(r, b, s));
    s->n_valid = s->n_tokens;
    if (count->data) {
        s->n_valid = gdn_index(count, b);
        TRY(check_value(r->ctx, "token_count", b, s->n_valid, 0, s->n_tokens));
    }
    s->total = s->n_valid;
    if (s->n_tokens == 0) return GDN_OK;

    TRY(read_start(r, b, &start));
    if (start >= 0) return place_states(r, start, true, s);
    if (r->batch->pad_policy == GDN_PAD_SINK && !r->sink_taken) {
        r->sink_taken = true;
        return place_states(r, r->batch->sink_slot, false, s);
    }
    s->n_valid  = 0;
    s->total    = 0;
    s->keep_out = r->batch->pad_policy == GDN_PAD_KEEP;
    return GDN_OK;
}

static gdn_status check_start(const struct reader *r)
{
    const gdn_tensor *cu = &r->batch->cu_seqlens;
    return cu->data ? check_value(r->ctx, "cu_seqlens", 0, gdn_index(cu, 0), 0, 0) : GDN_OK;
}

gdn_status gdn_plan_batch(gdn_ctx *ctx, const struct gdn_tokens *tokens, int64_t read_slots_end,
                          int64_t write_slots_end, bool same_pool, void *memory,
                          struct gdn_plan *plan)
{
    struct reader r        = { .ctx       = ctx,
                               .batch     = &plan->batch,
                               .tokens    = tokens,
                               .read_end  = read_slots_end,
                               .write_end = write_slots_end };
    const int64_t n_writes = write_slots_end < 0 ? 0 : max_writes(plan, tokens);

    plan->seqs    = memory;
    plan->longest = 0;
    plan->end     = tokens->N;
    TRY(check_start(&r));
    for (int64_t b = 0; b < plan->B; b++) {
        TRY(read_sequence(&r, b, &plan->seqs[b]));
        if (plan->seqs[b].n_tokens > plan->longest) plan->longest = plan->seqs[b].n_tokens;
    }
    if (plan->batch.cu_seqlens.data) plan->end = gdn_index(&plan->batch.cu_seqlens, plan->B);
    if (plan->batch.write == GDN_WRITE_EACH && plan->longest > plan->batch.write_slots.size[1])
        return gdn_fail(ctx, GDN_E_SHAPE, "write_slots: %lld columns, wanted %lld at least",
                        (long long)plan->batch.write_slots.size[1], (long long)plan->longest);
    if (write_slots_end < 0) plan->batch.write = GDN_WRITE_NONE; /* nowhere to write to */
    if (n_writes == 0) return GDN_OK;

    void           *after = (char *)memory + gdn_align64((size_t)plan->B * sizeof *plan->seqs);
    struct slot_map map   = map_init(after, n_writes);
    return check_conflicts(ctx, plan, write_slots_end, same_pool, &map);
}

size_t gdn_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    return gdn_align64((size_t)plan->B * sizeof *plan->seqs) + map_bytes(max_writes(plan, tokens));
}

int64_t gdn_plan_each_slot(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t)
{
    if (s->write >= 0) return t == s->n_valid - 1 ? s->write : -1; /* sunk: the last one stays */
    const int64_t slot = gdn_index2(&plan->batch.write_slots, s->row, t);
    return slot < 0 ? -1 : slot;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Bytes of one step; a dimension of one element may have any stride, which is never used. */
static int64_t step_bytes(const gdn_tensor *t, int i)
{
    if (i >= t->ndim || t->size[i] < 2) return 0;
    return t->stride[i] * (int64_t)gdn_dtype_bytes(t->dtype);
}

struct gdn_rows gdn_rows_of(const gdn_tensor *t, const struct gdn_tokens *tokens)
{
    struct gdn_rows r = { .data = t->data, .dtype = t->dtype };
    if (!t->data) return r;
    int i = 0;
    if (tokens->padded) r.batch = step_bytes(t, i++);
    r.token = step_bytes(t, i++);
    r.head  = step_bytes(t, i);
    return r;
}

static void zero_tokens(const struct gdn_rows *out, const struct gdn_seq *s, int64_t from,
                        int64_t n_heads, int64_t n)
{
    const size_t bytes = (size_t)n * gdn_dtype_bytes(out->dtype);
    for (int64_t t = from; t < s->n_tokens; t++)
        for (int64_t h = 0; h < n_heads; h++) memset(gdn_row(out, s, t, h), 0, bytes);
}

void gdn_plan_zero_rest(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_rows *out, int64_t n_heads, int64_t n)
{
    if (!out->data) return;
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (!s->keep_out) zero_tokens(out, s, s->n_valid, n_heads, n);
    }
    const struct gdn_seq rest = { .first = plan->end, .n_tokens = tokens->N - plan->end };
    zero_tokens(out, &rest, 0, n_heads, n);
}
