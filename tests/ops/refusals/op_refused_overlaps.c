/* SPDX-License-Identifier: Apache-2.0 */
/*
 * G1: calls drawn at random (ring2_calls.h), then one of their tensors put where one that is
 * written begins. All are refused but the very same views that gdn.h allows. Only descriptors are
 * looked at: nothing runs.
 */
#include <string.h>

#include "ring2_calls.h"

enum { CALLS = 400, MOST_PAIRS = 6 };

#define AT(op, written, other) \
    { offsetof(gdn_##op##_args, written), offsetof(gdn_##op##_args, other) }

/* Which may be one view: pairs by where they are in the struct of arguments. */
struct pair {
    size_t written, other;
};
static const struct pair rule[] = {
    AT(rule, out, v),
    AT(rule, state_out, state),
    AT(rule, state_out, checkpoints),
    AT(rule, state, checkpoints),
    AT(rule, checkpoints, state_out),
    AT(rule, checkpoints, state),
};
static const struct pair conv1d[] = {
    AT(conv1d, out, x),
    AT(conv1d, state_out, state),
    AT(conv1d, state_out, checkpoints),
    AT(conv1d, state, checkpoints),
    AT(conv1d, checkpoints, state_out),
    AT(conv1d, checkpoints, state),
};
static const struct pair block[] = {
    AT(block, state, checkpoints),
    AT(block, checkpoints, state),
    AT(block, conv_state, conv_checkpoints),
    AT(block, conv_checkpoints, conv_state),
};
static const struct pair gates[] = { AT(gates, g, a), AT(gates, beta, b) };
static const struct pair l2norm[] = { AT(l2norm, out, x) };
static const struct pair rmsnorm[] = { AT(rmsnorm_gated, out, x), AT(rmsnorm_gated, out, z) };

#define PAIRS(pairs) pairs, sizeof pairs / sizeof *pairs
static const struct {
    gdn_op             op;
    const struct pair *pairs;
    size_t             n_pairs;
} ops[] = {
    { GDN_OP_PREFILL, PAIRS(rule) },   { GDN_OP_DECODE, PAIRS(rule) },
    { GDN_OP_CONV1D, PAIRS(conv1d) },  { GDN_OP_BLOCK, PAIRS(block) },
    { GDN_OP_GATES, PAIRS(gates) },    { GDN_OP_L2NORM, PAIRS(l2norm) },
    { GDN_OP_RMSNORM_GATED, PAIRS(rmsnorm) },
    { GDN_OP_RECORD_COMMIT, NULL, 0 }, { GDN_OP_RECORD_FOLD, NULL, 0 },
    { GDN_OP_STEP, NULL, 0 },
};

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

/* What is drawn and what is counted. */
static struct {
    struct ring2_draw draw;
    union ring2_call  c;
    gdn_batch         batch;
    int64_t           n_refused, n_same[MOST_PAIRS];
} now;

static size_t place_of(const void *t) { return (size_t)((const char *)t - now.c.bytes); }

/* The pair that allows the two to be what they are; NULL: none does. */
static const struct pair *find_pair(size_t i, const gdn_tensor *written, const gdn_tensor *other)
{
    for (const struct pair *p = ops[i].pairs; p < ops[i].pairs + ops[i].n_pairs; p++)
        if (p->written == place_of(written) && p->other == place_of(other))
            return is_same_view(written, other) ? p : NULL;
    return NULL;
}

/* Asks with `other` as it is now. */
static void ask(size_t i, const gdn_tensor *written, const gdn_tensor *other, const char *what)
{
    gdn_ctx           *ctx   = ring2_ctx(1);
    const gdn_status   asked = gdn_supported(ctx, ops[i].op, &now.c);
    const struct pair *pair  = find_pair(i, written, other);
    if (pair) {
        now.n_same[pair - ops[i].pairs] += asked == GDN_OK;
        return;
    }
    CHECK(asked != GDN_OK, "op %d: %s at %zu lies on what is written at %zu", (int)ops[i].op, what,
          place_of(other), place_of(written));
    now.n_refused += strstr(gdn_last_error(ctx), "overlaps") != NULL;
}

/* Moves `other` to where `written` begins, makes it the very same view, and puts it back. */
static void try_at(size_t i, const gdn_tensor *written, gdn_tensor *other, const char *what)
{
    const gdn_tensor own = *other;
    if (other == written || !is_there(other) || own.data == written->data) return;
    other->data = written->data;
    ask(i, written, other, what);
    *other = *written;
    ask(i, written, other, what);
    *other = own;
}

/* Are states written, and does the op take checkpoints? Else nobody looks for them. */
static bool writes(const gdn_tensor *t)
{
    const bool frozen = now.batch.write == GDN_WRITE_NONE;
    return is_there(t) && !(frozen && (t == &now.c.rule.state || t == &now.c.rule.state_out ||
                                       t == &now.c.rule.state_scales ||
                                       t == &now.c.rule.state_out_scales ||
                                       t == &now.c.conv1d.state || t == &now.c.conv1d.state_out ||
                                       t == &now.c.block.state || t == &now.c.block.conv_state ||
                                       t == &now.c.step.state || t == &now.c.step.state_scales ||
                                       t == &now.c.step.conv_state));
}

static void overlap_one(size_t i)
{
    const gdn_op      op = ops[i].op;
    const gdn_tensor *written[RING2_MAX_WRITTEN];
    const gdn_batch  *batch = NULL;
    ring2_draw_call(&now.draw, op, &now.c, &now.batch);
    if (gdn_supported(ring2_ctx(1), op, &now.c) != GDN_OK) return;
    if (gdn_op_shapes[op].batch_at)
        memcpy(&batch, now.c.bytes + gdn_op_shapes[op].batch_at, sizeof batch);
    if (!batch) now.batch = gdn_batch_init();
    const int n = ring2_written(op, &now.c, written);
    for (int w = 0; w < n; w++) {
        if (!writes(written[w])) continue;
        for (size_t j = 0; j < gdn_op_shapes[op].n_tensors; j++)
            try_at(i, written[w], &ring2_call_tensors(&now.c)[j], "a tensor");
        gdn_tensor *arrays = &now.batch.cu_seqlens;
        for (int j = 0; batch && j < RING2_BATCH_TENSORS - 3; j++)
            try_at(i, written[w], &arrays[j], "an array of the batch");
    }
}

static void G1_overlaps(void)
{
    ring2_draw_init(&now.draw, false);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        now.n_refused = 0;
        memset(now.n_same, 0, sizeof now.n_same);
        if (!ring2_has_op(ring2_ctx(1), ops[i].op)) continue;
        for (int n = 0; n < CALLS; n++) overlap_one(i);
        CHECK(now.n_refused > CALLS / 4, "op %d: %d refused", (int)ops[i].op, (int)now.n_refused);
        for (size_t p = 0; p < ops[i].n_pairs; p++)
            CHECK(now.n_same[p] > 0, "op %d: pair %zu is never allowed", (int)ops[i].op, p);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "G1 overlaps", G1_overlaps };
    return ring2_main(argc, argv, &test, 1);
}
