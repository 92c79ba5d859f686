/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * G1: a random call (ring2_calls.h) whose tensors are moved one by one to the address of a written
 * tensor. All such calls are refused, except for the same views that gdn.h allows. Only descriptors
 * are checked: nothing runs.
 */
#include <string.h>

#include "ring2_calls.h"

enum { CALLS = 400 };

static bool is_there(const gdn_tensor *t)
{
    for (int i = 0; t->data && i < t->ndim; i++)
        if (t->size[i] == 0) return false;
    return t->data;
}

static bool is_same_view(const gdn_tensor *a, const gdn_tensor *b)
{
    bool same = a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->size[i] == b->size[i] && (a->size[i] < 2 || a->stride[i] == b->stride[i]);
    return same;
}

/* The drawn call, and counts. */
static struct {
    struct ring2_draw draw;
    union ring2_call c;
    gdn_batch batch;
    int64_t n_refused, n_same[RING2_N_PAIRS];
} now;

static size_t place_of(const void *t) { return (size_t)((const char *)t - now.c.bytes); }

/* Returns the row of ops.def that allows the two to be what they are; -1: none does. */
static int find_pair(gdn_op op, const gdn_tensor *written, const gdn_tensor *other)
{
    if (!is_same_view(written, other)) return -1;
    return ring2_find_pair(op, place_of(written), place_of(other));
}

/* Calls the op with `other` as it is now. */
static void ask(gdn_op op, const gdn_tensor *written, const gdn_tensor *other, const char *what)
{
    gdn_ctx *ctx = ring2_ctx(1);
    const gdn_status asked = gdn_supported(ctx, op, &now.c);
    const int pair = find_pair(op, written, other);
    if (pair >= 0) {
        now.n_same[pair] += asked == GDN_OK;
        return;
    }
    CHECK(asked != GDN_OK, "%s: %s at %zu lies on what is written at %zu", gdn_op_shapes[op].name,
          what, place_of(other), place_of(written));
    now.n_refused += strstr(gdn_last_error(ctx), "overlaps") != NULL;
}

/* Tries `other` at the address of `written`, and as the same view as `written`. Then puts
 * `other` back. */
static void try_at(gdn_op op, const gdn_tensor *written, gdn_tensor *other, const char *what)
{
    const gdn_tensor own = *other;
    if (other == written || !is_there(other) || own.data == written->data) return;
    other->data = written->data;
    ask(op, written, other, what);
    *other = *written;
    ask(op, written, other, what);
    *other = own;
}

/* Returns true if the call writes the tensor. With GDN_WRITE_NONE it writes no final states. */
static bool writes(gdn_op op, const gdn_tensor *t)
{
    const bool frozen = now.batch.write == GDN_WRITE_NONE;
    return is_there(t) && !(frozen && ring2_is_final(op, place_of(t)));
}

static void overlap_one(gdn_op op)
{
    const gdn_tensor *written[RING2_MAX_WRITTEN];
    const gdn_batch *batch = NULL;
    ring2_draw_call(&now.draw, op, &now.c, &now.batch);
    if (gdn_supported(ring2_ctx(1), op, &now.c) != GDN_OK) return;
    if (gdn_op_shapes[op].batch_at)
        memcpy(&batch, now.c.bytes + gdn_op_shapes[op].batch_at, sizeof batch);
    if (!batch) now.batch = gdn_batch_init();
    const int n = ring2_written(op, &now.c, written);
    for (int w = 0; w < n; w++) {
        if (!writes(op, written[w])) continue;
        for (size_t j = 0; j < gdn_op_shapes[op].n_tensors; j++)
            try_at(op, written[w], ring2_call_tensor(op, &now.c, j), "a tensor");
        gdn_tensor *arrays = &now.batch.cu_seqlens;
        for (int j = 0; batch && j < RING2_BATCH_TENSORS - 3; j++)
            try_at(op, written[w], &arrays[j], "an array of the batch");
    }
}

static void G1_overlaps(void)
{
    ring2_draw_init(&now.draw, false);
    for (int i = 0; i < GDN_N_OPS; i++) {
        const gdn_op op = (gdn_op)i;
        now.n_refused = 0;
        memset(now.n_same, 0, sizeof now.n_same);
        if (!ring2_has_op(ring2_ctx(1), op)) continue;
        for (int n = 0; n < CALLS; n++) overlap_one(op);
        CHECK(now.n_refused > CALLS / 4, "%s: %d refused", gdn_op_shapes[op].name,
              (int)now.n_refused);
        for (int p = 0; p < RING2_N_PAIRS; p++)
            CHECK(!ring2_has_pair(op, p) || now.n_same[p] > 0, "%s: pair %d is never allowed",
                  gdn_op_shapes[op].name, p);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "G1 overlaps", G1_overlaps };
    return ring2_main(argc, argv, &test, 1);
}
