/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks slots that a call writes: each is written once, and no other sequence of the call reads
 * it. A table of all written slots is filled before anything is computed.
 */
#include "batch/plan.h"
#include "core/ctx.h"
#include "core/tensor_check.h"

/* A table from slots to the sequences that write them: open addressing, at most half full. */
struct entry {
    int64_t key; /* -1: free */
    int64_t row;
};

struct slot_map {
    struct entry *entries;
    int log2_size;
};

static int map_log2(int64_t n)
{
    int log2 = 1;
    while (((int64_t)1 << log2) < 2 * n) log2++;
    return log2;
}

size_t gdn_plan_slots_bytes(int64_t n)
{
    return n == 0 ? 0 : gdn_align64(sizeof(struct entry) << map_log2(n));
}

static struct slot_map map_init(void *memory, int64_t n)
{
    const struct slot_map map = { memory, map_log2(n) };
    if (n > 0) memset(memory, 0xff, sizeof(struct entry) << map.log2_size);
    return map;
}

/* Returns the entry of the key, or the free entry for it. */
static struct entry *map_find(const struct slot_map *map, int64_t key)
{
    const uint64_t mask = ((uint64_t)1 << map->log2_size) - 1;
    uint64_t i = ((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - map->log2_size);
    while (map->entries[i].key >= 0 && map->entries[i].key != key) i = (i + 1) & mask;
    return &map->entries[i];
}

/* A writer of slots. The slots of two pools are in one map, under different keys. */
struct writer {
    gdn_ctx *ctx;
    struct slot_map map;
    int pool;         /* 0: of final states; 1: of checkpoints apart from it */
    const char *list; /* the argument that names the slots, and ": "; or nothing */
};

static gdn_status add_write(const struct writer *w, int64_t slot, int64_t row)
{
    struct entry *e = map_find(&w->map, 2 * slot + w->pool);
    if (e->key >= 0)
        return gdn_fail(w->ctx, GDN_E_ARG,
                        "%sslot %lld: written by sequence %lld and by sequence %lld, wanted once",
                        w->list, (long long)slot, (long long)e->row, (long long)row);
    *e = (struct entry){ 2 * slot + w->pool, row };
    return GDN_OK;
}

static gdn_status add_each(const struct writer *w, const struct gdn_plan *plan,
                           const struct gdn_seq *s, int64_t slots_end)
{
    for (int64_t t = 0; t < s->n_valid; t++) {
        const int64_t slot = gdn_plan_each_slot(plan, s, t);
        if (slot >= slots_end)
            return gdn_fail(w->ctx, GDN_E_ARG, "write_slots[%lld][%lld]: %lld, wanted below %lld",
                            (long long)s->row, (long long)t, (long long)slot, (long long)slots_end);
        if (slot >= 0) TRY(add_write(w, slot, s->row));
    }
    return GDN_OK;
}

/* Checks the slot of the checkpoint with this number. */
static gdn_status check_slot(const struct writer *w, const gdn_tensor *slots, int64_t number,
                             int64_t slot, int64_t end)
{
    if (slot < end) return GDN_OK;
    if (!slots->data)
        return gdn_fail(w->ctx, GDN_E_ARG,
                        "checkpoint_slots: absent, so slot %lld for checkpoint %lld of %lld slots",
                        (long long)slot, (long long)number, (long long)end);
    return gdn_fail(w->ctx, GDN_E_ARG, "checkpoint_slots[%lld]: %lld, wanted below %lld",
                    (long long)number, (long long)slot, (long long)end);
}

static gdn_status add_checkpoints(const struct writer *w, const struct gdn_plan *plan,
                                  const struct gdn_seq *s, int64_t slots_end)
{
    for (int64_t i = 0; i < s->n_checkpoints; i++) {
        int64_t slot;
        gdn_plan_checkpoint(plan, s, i, &slot);
        TRY(check_slot(w, &plan->batch.checkpoint_slots, s->first_checkpoint + i, slot, slots_end));
        if (slot >= 0) TRY(add_write(w, slot, s->row));
    }
    return GDN_OK;
}

/* Returns true if a read slot is written: by another sequence, or as a checkpoint of its own one,
 * if checkpoints are in the pool that is read. */
static bool conflicts(const struct entry *e, const struct gdn_seq *s, int64_t b,
                      const struct gdn_plan *plan, bool checkpoints)
{
    if (e->key < 0) return false;
    if (e->row != b) return true;
    for (int64_t i = 0; checkpoints && i < s->n_checkpoints; i++) {
        int64_t slot;
        gdn_plan_checkpoint(plan, s, i, &slot);
        if (slot == s->read) return true;
    }
    return false;
}

gdn_status gdn_plan_check_slots(gdn_ctx *ctx, const struct gdn_plan *plan,
                                const struct gdn_plan_pools *pools, int64_t n_writes, void *memory)
{
    const bool apart = !pools->checkpoint_in_write;
    const gdn_batch *const batch = &plan->batch;
    const char *const read = batch->read_slots.data ? "read_slots: " : "";
    const struct writer final = { ctx, map_init(memory, n_writes), 0,
                                  batch->write_slots.data ? "write_slots: " : read };
    const struct writer checkpoint = { ctx, final.map, apart,
                                       batch->checkpoint_slots.data ? "checkpoint_slots: " : "" };
    for (int64_t b = 0; b < plan->B && n_writes > 0; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (plan->batch.write == GDN_WRITE_EACH)
            TRY(add_each(&final, plan, s, pools->write));
        else if (s->write >= 0)
            TRY(add_write(&final, s->write, b));
        if (pools->checkpoint >= 0) TRY(add_checkpoints(&checkpoint, plan, s, pools->checkpoint));
    }
    for (int64_t b = 0; b < plan->B && n_writes > 0 && pools->same; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (s->read < 0) continue;
        const struct entry *e = map_find(&final.map, 2 * s->read);
        if (conflicts(e, s, b, plan, !apart))
            return gdn_fail(ctx, GDN_E_ARG,
                            "%sslot %lld: read by sequence %lld and written by sequence %lld", read,
                            (long long)s->read, (long long)b, (long long)e->row);
    }
    return GDN_OK;
}
