/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * Packed tokens before the first sequence (cu_seqlens[0] above 0): the rule against the oracle,
 * which wants outputs there left alone. Other ops are in op_guarantees.c ("parts of a batch").
 */
#include <math.h>
#include <string.h>

#include "gdn_train.h"
#include "ring2_device.h"
#include "ring2_rule.h"

enum { N_SEQS = 4, N_LEADS = 4 };

static const struct shape {
    int32_t dtype, state;
    int64_t K, V;
} shapes[] = { { GDN_F32, GDN_F32, 20, 24 },    { GDN_BF16, GDN_F32, 128, 128 },
               { GDN_F16, GDN_F16, 64, 64 },    { GDN_BF16, GDN_BF16, 128, 64 },
               { GDN_BF16, GDN_BF16, 192, 40 }, { GDN_F16, GDN_F32, 33, 7 } };
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const int64_t leads[N_LEADS] = { 1, 5, 64, 200 };

/* Lengths of prompts, of drafts, and one token each. */
static const int64_t prompts[N_SEQS] = { 65, 0, 9, 130 };
static const int64_t drafts[N_SEQS] = { 3, 0, 2, 1 }, ones[N_SEQS] = { 1, 1, 1, 1 };

/* Values of tokens before the first sequence reach nothing. */
static void spoil(const gdn_tensor *t, int64_t n)
{
    gdn_tensor before = ring2_narrow(t, 0, 0, n);
    ring2_fill_value(&before, (double)NAN);
}

static void one_call(gdn_ctx *ctx, const struct shape *s, int64_t lead, const int64_t *lengths,
                     bool decode, uint32_t flags)
{
    static const int heads[3] = { 1, 1, 2 };
    int64_t all[N_SEQS + 1];
    gdn_batch *batch;
    all[0] = lead;
    for (int i = 0; i < N_SEQS; i++) all[i + 1] = lengths[i];
    gdn_rule_args a =
        ring2_rule_packed(s->dtype, s->state, N_SEQS + 1, all, heads, s->K, s->V, &batch);
    const gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta };
    for (int i = 0; i < 5; i++) spoil(rows[i], lead);
    batch->cu_seqlens = ring2_narrow(&batch->cu_seqlens, 0, 1, N_SEQS + 1);
    a.state = ring2_narrow(&a.state, 0, 1, N_SEQS);
    a.flags = flags;
    ring2_rule_check(ctx, &a, decode);
}

static void prefill(int number)
{
    const struct shape *s = &shapes[number % N_SHAPES];
    one_call(ring2_ctx(2), s, leads[number / N_SHAPES], prompts, false,
             number % 2 ? GDN_BATCH_INVARIANT : 0);
}

/* Segments as they would be cut for few long sequences, where the device is Hopper. */
static void segments(int number)
{
    static const int64_t lengths[N_SEQS] = { 700, 0, 65, 300 };
    gdn_ctx *ctx = ring2_hopper(64, 192);
    if (ctx) one_call(ctx, &shapes[1], leads[number], lengths, false, 0);
}

static void decode(int number)
{
    const struct shape *s = &shapes[number % N_SHAPES];
    one_call(ring2_ctx(2), s, leads[number / N_SHAPES], number % 2 ? drafts : ones, true, 0);
}

static void exact(int number)
{
    one_call(ring2_ctx(2), &shapes[number], 5, drafts, number % 2, GDN_EXACT);
}

/* ---- The convolution ------------------------------------------------------------------------ */

static gdn_conv1d_args conv_call(int32_t dtype, int64_t D, int64_t lead, bool in_place,
                                 gdn_batch *batch)
{
    int64_t cu[N_SEQS + 1] = { lead }, N = lead + 3;
    for (int i = 0; i < N_SEQS; i++) cu[i + 1] = cu[i] + prompts[i], N += prompts[i];
    gdn_conv1d_args a = gdn_conv1d_args_init();
    *batch = gdn_batch_init();
    batch->cu_seqlens = ring2_indices(GDN_I32, N_SEQS + 1, cu);
    a.x = ring2_new(dtype, 0, 2, N, D, 0, 0);
    a.weight = ring2_new(dtype, 0, 2, D, 4, 0, 0);
    a.state = ring2_new(dtype, 0, 3, N_SEQS, D, 3, 0);
    ring2_fill(&a.x, -1, 1), ring2_fill(&a.weight, -1, 1), ring2_fill(&a.state, -1, 1);
    a.out = in_place ? a.x : ring2_clone(&a.x);
    a.activation = GDN_ACT_SILU, a.batch = batch;
    return a;
}

/* The call on the tensors from the first sequence on has the same bits; before it nothing
 * changes. */
static void conv1d(int number)
{
    const int32_t dtype = number % 3;
    const int64_t lead = leads[number / 3 % N_LEADS], D = number % 2 ? 64 : 7;
    const bool in_place = number / 12;
    gdn_batch batch, cut = gdn_batch_init();
    gdn_conv1d_args a = conv_call(dtype, D, lead, in_place, &batch), b = a;
    const int64_t N = a.x.size[0];
    b.x = ring2_clone(&a.x), b.state = ring2_clone(&a.state);
    b.out = in_place ? b.x : ring2_clone(&a.out);
    gdn_tensor *const rows[] = { &b.x, &b.out };
    for (int i = 0; i < 2; i++) *rows[i] = ring2_narrow(rows[i], 0, lead, N - lead);
    cut.cu_seqlens = ring2_clone(&batch.cu_seqlens), b.batch = &cut;
    for (int i = 0; i <= N_SEQS; i++)
        ring2_set(&cut.cu_seqlens, i, ring2_get(&batch.cu_seqlens, i) - (double)lead);
    const gdn_tensor after = ring2_narrow(&a.out, 0, lead, N - lead);
    ring2_call_begin();
    ring2_may_write(&after), ring2_may_write(&a.state);
    ring2_status(ring2_ctx(2), "gdn_conv1d", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
    ring2_call_end();
    ring2_status(ring2_ctx(1), "from there on", gdn_conv1d(ring2_ctx(1), &b), GDN_OK);
    ring2_expect_bits("out", &after, &b.out);
    ring2_expect_bits("state", &a.state, &b.state);
}

/* ---- Gradients ------------------------------------------------------------------------------ */

enum { N_ROWS = 10 };

static void rows_of(gdn_prefill_backward_args *a, gdn_tensor *rows[N_ROWS])
{
    gdn_tensor *const all[N_ROWS] = { &a->q,  &a->k,  &a->v,  &a->g,  &a->beta,
                                      &a->dq, &a->dk, &a->dv, &a->dg, &a->dbeta };
    memcpy(rows, all, sizeof all);
}

static gdn_prefill_backward_args gradients_of(const struct shape *s, int64_t lead,
                                              const gdn_batch *batch)
{
    const int64_t N = lead + 65 + 9 + 130 + 3; /* the last three are of no sequence */
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_tensor *rows[N_ROWS];
    rows_of(&a, rows);
    for (int i = 0; i < N_ROWS; i++) {
        const bool gate = i % 5 > 2;
        *rows[i] = gate ? ring2_new(GDN_F32, 0, 2, N, 2, 0, 0)
                        : ring2_new(s->dtype, 0, 3, N, 2, i % 5 == 2 ? s->V : s->K, 0);
        ring2_fill(rows[i], gate ? -0.1 : -1, gate ? 0 : 1);
    }
    a.dout = ring2_new(s->dtype, 0, 3, N, 2, s->V, 0);
    ring2_fill(&a.dout, -1, 1), ring2_fill(&a.beta, 0, 1);
    a.norm = GDN_NORM_L2, a.flags = GDN_BATCH_INVARIANT, a.batch = batch;
    return a;
}

/* As for the convolution, but gradients of tokens before the first sequence are zero. */
static void gradients(int number)
{
    const struct shape *s = &shapes[number % 2];
    const int64_t lead = leads[number / 2 % N_LEADS];
    int64_t cu[N_SEQS + 1] = { lead }, from_0[N_SEQS + 1] = { 0 };
    for (int i = 0; i < N_SEQS; i++) from_0[i + 1] = from_0[i] + prompts[i];
    for (int i = 0; i < N_SEQS; i++) cu[i + 1] = lead + from_0[i + 1];
    gdn_batch batch = gdn_batch_init(), cut = batch;
    batch.cu_seqlens = ring2_indices(GDN_I32, N_SEQS + 1, cu);
    cut.cu_seqlens = ring2_indices(GDN_I32, N_SEQS + 1, from_0);
    gdn_prefill_backward_args a = gradients_of(s, lead, &batch), b = a;
    gdn_tensor *as[N_ROWS], *bs[N_ROWS];
    const int64_t n = a.q.size[0] - lead;
    rows_of(&a, as), rows_of(&b, bs);
    for (int i = 5; i < N_ROWS; i++) *bs[i] = ring2_clone(as[i]);
    for (int i = 0; i < N_ROWS; i++) *bs[i] = ring2_narrow(bs[i], 0, lead, n);
    for (int i = 0; i < 5; i++) spoil(as[i], lead);
    b.dout = ring2_narrow(&a.dout, 0, lead, n), b.batch = &cut;
    ring2_status(ring2_ctx(2), "backward", gdn_prefill_backward(ring2_ctx(2), &a), GDN_OK);
    ring2_status(ring2_ctx(2), "from there on", gdn_prefill_backward(ring2_ctx(2), &b), GDN_OK);
    for (int i = 5; i < N_ROWS; i++) {
        const gdn_tensor after = ring2_narrow(as[i], 0, lead, n);
        const gdn_tensor before = ring2_narrow(as[i], 0, 0, lead);
        ring2_expect_bits("gradient", &after, bs[i]);
        for (int64_t j = 0; j < ring2_count(&before); j++)
            CHECK(ring2_get(&before, j) == 0, "gradient %d of token before: %g", i,
                  ring2_get(&before, j));
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "prefill", prefill, N_SHAPES * N_LEADS },
        { "decode", decode, N_SHAPES * N_LEADS },
        { "exact", exact, 2 },
        { "segments", segments, 2 },
        { "conv1d", conv1d, 24 },
        { "gradients", gradients, 2 * N_LEADS },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
