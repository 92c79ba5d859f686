/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * G1: calls drawn at random (ring2_calls.h), then one of their tensors made to differ from its row
 * of ops.def: absent, of another dtype, of one dimension or element more, or of another stride.
 * All are refused, with the tensor's name in the error. Nothing runs.
 */
#include <string.h>

#include "ops/tensors.h"
#include "ring2_calls.h"

enum { CALLS = 60 };

static struct {
    struct ring2_draw draw;
    union ring2_call c;
    gdn_batch batch;
    gdn_op op;
    int n_drawn[64], n_named[64]; /* by the tensor's number */
} now;

/* Asks with tensor i as it is now, and puts it back. want GDN_OK: any refusal. */
static void ask(size_t i, const gdn_tensor *own, gdn_status want, const char *what)
{
    const char *name = gdn_tensor_rows(now.op)[i].name;
    gdn_ctx *ctx = ring2_ctx(1);
    const gdn_status got = gdn_supported(ctx, now.op, &now.c);
    CHECK(want ? got == want : got != GDN_OK, "%s: %s %s: %s (%s)", gdn_op_shapes[now.op].name,
          name, what, gdn_status_name(got), gdn_last_error(ctx));
    now.n_named[i] += strncmp(gdn_last_error(ctx), name, strlen(name)) == 0;
    *ring2_call_tensor(now.op, &now.c, i) = *own;
}

/* Returns how many tensors have rows of tokens. */
static int n_token_tensors(void)
{
    int n = 0;
    for (size_t i = 0; i < gdn_op_shapes[now.op].n_tensors; i++)
        n += ring2_call_tensor(now.op, &now.c, i)->data &&
             gdn_tensor_rows(now.op)[i].form >= GDN_FORM_TOKENS;
    return n;
}

/* No other tensor says what dimension d must be. Heads of q, k and v may be any divisors of H. */
static bool is_free(const struct gdn_tensor_row *row, int d)
{
    const int n = row->form == GDN_FORM_WHOLE ? d : d - 1;
    const uint8_t size = n < 0 ? GDN_SIZE(end) : row->size[n];
    if (row->form >= GDN_FORM_TOKENS && n_token_tensors() < 2) return true;
    return size == GDN_SIZE(any) || size == GDN_SIZE(Hq) || size == GDN_SIZE(Hk) ||
           size == GDN_SIZE(Hv);
}

static void spoil(size_t i)
{
    const struct gdn_tensor_row *row = &gdn_tensor_rows(now.op)[i];
    gdn_tensor *t = ring2_call_tensor(now.op, &now.c, i);
    const gdn_tensor own = *t;
    const int last = own.ndim - 1;
    if (row->needed) t->data = NULL, ask(i, &own, GDN_E_ARG, "absent");
    t->dtype = GDN_U8, ask(i, &own, GDN_E_DTYPE, "of bytes");
    if (row->form < GDN_FORM_WHOLE) return;
    if (!is_free(row, 0))
        t->ndim++, t->size[own.ndim] = row->is_short ? 999 : 1, t->stride[own.ndim] = 0,
                   ask(i, &own, GDN_OK, "of one dimension more");
    for (int d = 0; d < own.ndim; d++) {
        if (is_free(row, d)) continue;
        t->size[d]++, ask(i, &own, GDN_OK, "of one element more");
    }
    if (row->dense && own.size[last] > 1) t->stride[last] = 2, ask(i, &own, GDN_OK, "not dense");
}

/* Without one, the first tensor says how many sequences there are. */
static bool has_batch(void)
{
    const size_t at = gdn_op_shapes[now.op].batch_at;
    const gdn_batch *batch = &now.batch;
    return !at || !memcmp(now.c.bytes + at, &batch, sizeof batch);
}

static void G1_rows(void)
{
    ring2_draw_init(&now.draw, false);
    for (int i = 0; i < GDN_N_OPS; i++) {
        const size_t n = gdn_op_shapes[i].n_tensors;
        now.op = (gdn_op)i;
        memset(now.n_drawn, 0, sizeof now.n_drawn);
        memset(now.n_named, 0, sizeof now.n_named);
        if (!ring2_has_op(ring2_ctx(1), now.op) || now.op == GDN_OP_STATE_COPY) continue;
        for (int call = 0; call < CALLS; call++) {
            ring2_draw_call(&now.draw, now.op, &now.c, &now.batch);
            if (!has_batch() || gdn_supported(ring2_ctx(1), now.op, &now.c) != GDN_OK) continue;
            for (size_t j = 0; j < n; j++)
                if (ring2_call_tensor(now.op, &now.c, j)->data) now.n_drawn[j]++, spoil(j);
        }
        for (size_t j = 0; j < n; j++)
            CHECK(!now.n_drawn[j] || now.n_named[j], "%s: no error names %s", gdn_op_shapes[i].name,
                  gdn_tensor_rows(now.op)[j].name);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "G1 rows of ops.def", G1_rows };
    return ring2_main(argc, argv, &test, 1);
}
