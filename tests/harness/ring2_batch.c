/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_batch.h. */
#include "ring2_batch.h"

#include <stdio.h>
#include <string.h>

/* ---- Factors ---- */

const struct ring2_factor ring2_batch_factors[N_BATCH_FACTORS] = {
    [BATCH] = { 4, { "cu32", "cu64", "plain", "padded" } },
    [LENGTHS] = { 8, { "T1", "T9", "T16", "T33", "T70", "T64", "T17", "T0" } },
    [TAIL] = { 2, { "", "tail" } },
    [VIEW] = { 4, { "dense", "gaps", "fused", "reversed" } },
    [SLOTS] = { 7,
                { "stateless", "in-place", "separate", "out-only", "read", "read-write",
                  "read-separate" } },
    [INITIAL] = { 2, { "", "initial" } },
    [COUNT] = { 2, { "", "count" } },
    [ACCEPT] = { 2, { "", "accept" } },
    [PAD] = { 4, { "", "pad-zero", "pad-keep", "pad-sink" } },
    [WRITE] = { 3, { "final", "each", "frozen" } },
};

static const int lengths[8][7] = {
    { 1, 1, 1, 1, -1 },        { 0, 1, 8, 9, -1 }, { 15, 16, -1 }, { 33, 0, -1 },
    { 70, 1, 2, 1, 3, 1, -1 }, { 64, 24, -1 },     { 7, 17, -1 },  { 0, 0, 0, -1 }
};

bool ring2_batch_clash(int i, int a, int j, int b)
{
    if (i == SLOTS && a <= OUT_ONLY && ((j == ACCEPT && b) || (j == PAD && b))) return true;
    if (i == SLOTS && (a == NO_STATE || a == OUT_ONLY) && j == INITIAL && b) return true;
    if (j == WRITE && b == GDN_WRITE_EACH)
        return (i == SLOTS && (a == NO_STATE || a == READ)) || (i == PAD && a == PAD_SINK);
    return i == TAIL && a && j == BATCH && b >= PLAIN;
}

void ring2_name_case(const int *level, const struct ring2_factor *others, int n, char *name,
                     size_t bytes)
{
    size_t used = 0;
    name[0] = 0;
    for (int f = 0; f < N_BATCH_FACTORS + n && used < bytes; f++) {
        const struct ring2_factor *x =
            f < N_BATCH_FACTORS ? &ring2_batch_factors[f] : &others[f - N_BATCH_FACTORS];
        if (!x->name[level[f]][0]) continue;
        used += (size_t)snprintf(name + used, bytes - used, " %s", x->name[level[f]]);
    }
}

/* ---- Making ---- */

static void choose_lengths(struct ring2_batch *b)
{
    const int *set = lengths[b->level[LENGTHS]], layout = b->level[BATCH];
    for (int i = 0; set[i] >= 0; i++) b->length[b->B++] = set[i];
    for (int64_t i = 0; i < b->B; i++) {
        b->T = b->T > b->length[i] ? b->T : b->length[i];
        b->N += b->length[i];
    }
    if (layout == PLAIN) {
        b->B = 1;
        b->T = b->length[0] = b->N;
    }
    if (layout == PADDED)
        for (int64_t i = 0; i < b->B; i++) b->length[i] = b->T;
    for (int64_t i = 0; i < b->B; i++) b->cu[i + 1] = b->cu[i] + b->length[i];
    if (b->level[TAIL]) b->N += 3;
}

gdn_tensor ring2_batch_rows(const struct ring2_batch *b, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = b->level[VIEW] == GAPS ? 5 : 0;
    const bool padded = b->level[BATCH] == PADDED;
    const int inner = D ? 2 : 1;
    gdn_tensor t = padded ? ring2_new(dtype, gap, 2 + inner, b->B, b->T, n, D)
                          : ring2_new(dtype, gap, 1 + inner, b->N, n, D, 0);
    if (b->level[VIEW] == REVERSED)
        for (int i = 0; i < t.ndim - 1; i++) {
            const int64_t step = t.stride[i] * (int64_t)gdn_dtype_bytes(dtype);
            if (t.size[i]) t.data = (char *)t.data + (t.size[i] - 1) * step;
            t.stride[i] = -t.stride[i];
        }
    return t;
}

static void shuffle(int64_t *x, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) x[i] = i;
    for (int64_t i = end - 1; i > first; i--) {
        const int64_t j = first + ring2_below(i - first + 1), y = x[i];
        x[i] = x[j];
        x[j] = y;
    }
}

enum { DRAFTS = 3 }; /* T' of read_slots with num_accepted_tokens */

static bool is_padding(const struct ring2_batch *b, int64_t i)
{
    return b->level[PAD] && (i == 0 || (i == 2 && b->level[PAD] != PAD_SINK));
}

/* The final states of some sequences go nowhere. */
static bool is_dropped(const struct ring2_batch *b, int64_t i)
{
    return b->level[INITIAL] && i % 3 == 1;
}

/* Takes slots of no other sequence from `unused`. */
static void make_read_slots(struct ring2_batch *b, const int64_t **unused)
{
    gdn_batch *t = &b->batch;
    const int64_t n = b->level[ACCEPT] ? DRAFTS : 1;
    const int32_t dtype = ring2_below(2) ? GDN_I32 : GDN_I64;
    const bool shared = b->level[SLOTS] == READ_SEPARATE;
    t->read_slots = ring2_new(dtype, 0, b->level[ACCEPT] ? 2 : 1, b->B, n, 0, 0);
    for (int64_t i = 0; i < b->B * n; i++) {
        const int64_t slot = shared ? ring2_below(2) : *(*unused)++;
        ring2_set(&t->read_slots, i, is_padding(b, i / n) ? -1 : (double)slot);
    }
    if (!b->level[ACCEPT]) return;
    t->num_accepted_tokens = ring2_new(GDN_I32, 0, 1, b->B, 0, 0, 0);
    for (int64_t i = 0; i < b->B; i++)
        ring2_set(&t->num_accepted_tokens, i, (double)(1 + ring2_below(DRAFTS)));
}

/* Draws a slot for one of the earlier tokens: at times the slot that the sequence starts from. */
static double draft_slot(const struct ring2_batch *b, int64_t i, const int64_t **unused)
{
    if (b->level[SLOTS] == IN_PLACE && ring2_below(2)) return (double)i;
    if (b->level[SLOTS] == READ_WRITE && ring2_below(2))
        return ring2_get(&b->batch.read_slots, b->level[ACCEPT] ? i * DRAFTS : i);
    return (double)*(*unused)++;
}

static void make_write_slots(struct ring2_batch *b, const int64_t **unused)
{
    gdn_batch *t = &b->batch;
    if (b->level[WRITE] == GDN_WRITE_EACH) { /* two tokens of each sequence have a slot */
        t->write_slots = ring2_new(GDN_I32, 1, 2, b->B, b->T + 1, 0, 0);
        ring2_fill_value(&t->write_slots, -1);
        for (int64_t i = 0; i < b->B; i++) {
            const int64_t T = b->length[i], row = i * (b->T + 1);
            if (!T || is_padding(b, i)) continue;
            ring2_set(&t->write_slots, row + T - 1, (double)*(*unused)++);
            if (T == 1) continue;
            ring2_set(&t->write_slots, row + ring2_below(T - 1), draft_slot(b, i, unused));
        }
    } else if (b->level[SLOTS] >= READ_WRITE) {
        t->write_slots = ring2_new(GDN_I64, 0, 1, b->B, 0, 0, 0);
        for (int64_t i = 0; i < b->B; i++)
            ring2_set(&t->write_slots, i,
                      is_padding(b, i) || is_dropped(b, i) ? -1 : (double)*(*unused)++);
    }
}

/* Adds 1 to each slot. Some negative slots become 0, which is then padding too. */
static void shift_slots(const gdn_tensor *slots)
{
    for (int64_t i = 0; i < ring2_count(slots); i++) {
        const double slot = ring2_get(slots, i);
        ring2_set(slots, i, slot >= 0 ? slot + 1 : ring2_below(3) ? 0 : slot);
    }
}

static void pad_with_slot_0(struct ring2_batch *b)
{
    gdn_batch *t = &b->batch;
    t->first_slot = 1;
    t->sink_slot = ring2_below(2) ? t->sink_slot + 1 : 0;
    b->P++;
    shift_slots(&t->read_slots);
    if (t->write_slots.data) shift_slots(&t->write_slots);
}

static void make_slots(struct ring2_batch *b)
{
    const int *level = b->level;
    int64_t slots[64];
    const int64_t *unused = slots;
    const bool many = level[SLOTS] >= READ || level[WRITE] == GDN_WRITE_EACH;
    const int64_t reads = level[ACCEPT] ? DRAFTS : 1;
    if (level[SLOTS] == NO_STATE) return;
    b->P = many ? b->B * (reads + 2) + 2 : b->B;
    if (level[SLOTS] >= READ) {
        shuffle(slots, 0, b->P - 1);
        make_read_slots(b, &unused);
    } else if (many) { /* slot b is read by sequence b */
        shuffle(slots, b->B, b->P - 1);
        unused = slots + b->B;
    }
    make_write_slots(b, &unused);
    b->batch.pad_policy = level[PAD] ? level[PAD] - 1 : 0;
    if (level[PAD] == PAD_SINK) b->batch.sink_slot = b->P - 1;
    if (level[PAD] && ring2_below(2)) pad_with_slot_0(b);
}

void ring2_batch_make(struct ring2_batch *b, const int *level)
{
    static const int32_t kinds[] = { GDN_U8, GDN_I32, GDN_I64 };
    gdn_batch *t = &b->batch;
    memset(b, 0, sizeof *b);
    b->level = level;
    b->batch = gdn_batch_init();
    t->write = level[WRITE];
    choose_lengths(b);
    make_slots(b);
    if (level[BATCH] <= PACKED_I64)
        t->cu_seqlens =
            ring2_indices(level[BATCH] == PACKED_I32 ? GDN_I32 : GDN_I64, b->B + 1, b->cu);
    if (level[INITIAL]) {
        t->has_initial_state = ring2_new(kinds[ring2_below(3)], 0, 1, b->B, 0, 0, 0);
        for (int64_t i = 0; i < b->B; i++)
            ring2_set(&t->has_initial_state, i, (double)ring2_below(2));
    }
    if (level[COUNT]) {
        t->token_count = ring2_new(GDN_I32, 0, 1, b->B, 0, 0, 0);
        for (int64_t i = 0; i < b->B; i++)
            ring2_set(&t->token_count, i, (double)ring2_below(b->length[i] + 1));
    }
}

bool ring2_batch_has_state(const struct ring2_batch *b)
{
    return b->level[SLOTS] != NO_STATE && b->level[SLOTS] != OUT_ONLY;
}

bool ring2_batch_has_state_out(const struct ring2_batch *b)
{
    return b->level[SLOTS] == SEPARATE || b->level[SLOTS] == OUT_ONLY ||
           b->level[SLOTS] == READ_SEPARATE;
}

/* ---- Reading ---- */

static int64_t index_of(const gdn_tensor *t, int64_t i) { return (int64_t)ring2_get(t, i); }

static void find_tokens(const gdn_batch *t, const gdn_tensor *like, bool padded,
                        struct ring2_sequence *s)
{
    if (padded) {
        s->T = like->size[1];
        s->first = s->row * s->T;
    } else if (t->cu_seqlens.data) {
        s->first = index_of(&t->cu_seqlens, s->row);
        s->T = index_of(&t->cu_seqlens, s->row + 1) - s->first;
    } else {
        s->first = 0;
        s->T = like->size[0];
    }
    s->valid = t->token_count.data ? index_of(&t->token_count, s->row) : s->T;
}

static void find_slots(const gdn_batch *t, bool has_state, struct ring2_sequence *s)
{
    int64_t at = s->row;
    if (t->num_accepted_tokens.data)
        at = at * t->read_slots.size[1] + index_of(&t->num_accepted_tokens, s->row) - 1;
    s->read = t->read_slots.data ? index_of(&t->read_slots, at) : s->row;
    s->write = s->read;
    if (t->write == GDN_WRITE_FINAL && t->write_slots.data)
        s->write = index_of(&t->write_slots, s->row);
    if (s->write < t->first_slot) s->write = -1;
    if (s->read < t->first_slot) {
        s->skipped = t->pad_policy != GDN_PAD_SINK;
        s->kept = t->pad_policy == GDN_PAD_KEEP;
        s->read = s->write = t->pad_policy == GDN_PAD_SINK ? t->sink_slot : -1;
    }
    if (!has_state || (t->has_initial_state.data && !index_of(&t->has_initial_state, s->row)))
        s->read = -1;
    if (t->write != GDN_WRITE_FINAL) s->write = -1;
}

int64_t ring2_sequences(const gdn_batch *batch, const gdn_tensor *like, int trailing,
                        bool has_state, struct ring2_sequence **seqs)
{
    const gdn_batch none = gdn_batch_init(), *t = batch ? batch : &none;
    const bool padded = like->ndim == trailing + 2;
    int64_t B = padded ? like->size[0] : 1;
    if (t->cu_seqlens.data) B = t->cu_seqlens.size[0] - 1;
    *seqs = ring2_heap((size_t)B * sizeof **seqs);
    for (int64_t b = 0; b < B; b++) {
        struct ring2_sequence *s = *seqs + b;
        s->row = b;
        find_tokens(t, like, padded, s);
        find_slots(t, has_state, s);
    }
    return B;
}

int64_t ring2_each_slot(const gdn_batch *batch, const struct ring2_sequence *s, int64_t t)
{
    if (!batch || batch->write != GDN_WRITE_EACH) return -1;
    const int64_t at = s->row * batch->write_slots.size[1] + t;
    const int64_t slot = index_of(&batch->write_slots, at);
    return slot < batch->first_slot ? -1 : slot;
}
