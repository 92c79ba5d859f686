/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strides of tensors without elements mean nothing: calls of every op without tokens or slots,
 * drawn at random, answer and write the same whatever such strides are. A build with
 * UndefinedBehaviorSanitizer checks that no arithmetic on them overflows.
 */
#include <stdio.h>
#include <string.h>

#include "ops/tensors.h"
#include "ring2_calls.h"

enum { N_CALLS = 8000 };

static struct ring2_draw draw;
static unsigned char *before, *after;

static int64_t any_stride(void)
{
    static const int64_t any[] = { 0, 0, 1, -1, 7, INT64_MAX, INT64_MIN, INT64_MAX / 3 };
    return any[ring2_draw_below(&draw, 8)];
}

/* Returns whether the row begins with ranges, sequences or slots that the struct alone counts. */
static bool is_counted(gdn_op op, const struct gdn_tensor_row *row)
{
    const bool alone =
        !gdn_op_shapes[op].batch_at || op == GDN_OP_RECORD_COMMIT || op == GDN_OP_RECORD_FOLD;
    return alone && row->form == GDN_FORM_WHOLE &&
           (row->size[0] == GDN_SIZE(B) || row->size[0] == GDN_SIZE(P) ||
            row->size[0] == GDN_SIZE(R));
}

/* Takes all tokens, or rows, of a call; now and then the slots of a pool, too. */
static void empty(gdn_op op, union ring2_call *c, gdn_batch *batch)
{
    const struct gdn_tensor_row *row = gdn_tensor_rows(op);
    const bool pools = ring2_draw_one_in(&draw, 3);
    for (size_t i = 0; i < gdn_op_shapes[op].n_tensors; i++)
        if (row[i].form == GDN_FORM_TOKENS || row[i].form == GDN_FORM_LIKE ||
            is_counted(op, &row[i]) || (pools && row[i].form == GDN_FORM_POOL))
            ring2_call_tensor(op, c, i)->size[0] = 0;
    for (int64_t i = 0; batch->cu_seqlens.data && i < batch->cu_seqlens.size[0]; i++)
        ring2_set(&batch->cu_seqlens, i, 0);
    if (op == GDN_OP_RECORD_COMMIT || op == GDN_OP_RECORD_FOLD) batch->read_slots.size[0] = 0;
    batch->token_count.data = batch->token_start.data = NULL;
}

/* Gives tensors without elements other strides. Returns true if the call has such a tensor. */
static bool change_strides(gdn_op op, union ring2_call *c)
{
    bool any = false;
    for (size_t i = 0; i < gdn_op_shapes[op].n_tensors; i++) {
        gdn_tensor *t = ring2_call_tensor(op, c, i);
        if (!t->data || gdn_count(t)) continue;
        any = true;
        for (int k = 0; k < t->ndim; k++) t->stride[k] = any_stride();
    }
    return any;
}

/* Runs a call; returns its status and keeps what it wrote in `result`. The arena is as before. */
static gdn_status run(gdn_op op, const union ring2_call *c, unsigned char *result)
{
    const gdn_status status = gdn_run_op(ring2_ctx(2), op, c);
    if (result) memcpy(result, draw.arena, draw.used);
    return status;
}

static bool compare(gdn_op op)
{
    union ring2_call c;
    gdn_batch batch;
    char text[256];
    ring2_draw_call(&draw, op, &c, &batch);
    empty(op, &c, &batch);
    memcpy(before, draw.arena, draw.used);
    const gdn_status want = run(op, &c, after);
    snprintf(text, sizeof text, "%s", want == GDN_OK ? "" : gdn_last_error(ring2_ctx(2)));
    memcpy(draw.arena, before, draw.used);
    if (!change_strides(op, &c)) return false;
    const gdn_status status = run(op, &c, NULL);
    CHECK(status == want && (status == GDN_OK || !strcmp(text, gdn_last_error(ring2_ctx(2)))),
          "%s: \"%s\", and with other strides \"%s\"", gdn_op_shapes[op].name, text,
          status == GDN_OK ? "" : gdn_last_error(ring2_ctx(2)));
    CHECK(!memcmp(after, draw.arena, draw.used), "%s: other values", gdn_op_shapes[op].name);
    return status == GDN_OK;
}

static void test_strides(void)
{
    int n[GDN_N_OPS] = { 0 };
    ring2_draw_init(&draw, true);
    before = ring2_heap(RING2_ARENA), after = ring2_heap(RING2_ARENA);
    for (int i = 0; i < N_CALLS && !ring2_failed(); i++)
        n[i % GDN_N_OPS] += compare((gdn_op)(i % GDN_N_OPS));
    for (int op = 0; op < GDN_N_OPS; op++)
        CHECK(n[op] > 5, "%s: %d calls of nothing", gdn_op_shapes[op].name, n[op]);
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "strides of nothing", test_strides };
    return ring2_main(argc, argv, &test, 1);
}
