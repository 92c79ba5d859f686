/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_90 */
/*
 * Padded rows, left and right: the tokens before token_start and past token_count are NaN in
 * every input, and what is left has the bits of a call without them.
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

enum { B = 5, T = 40 };

/* Each row has padding on the left, tokens, padding on the right. Rows are short and long, of
 * a few tokens and of none. */
static const int64_t starts[B] = { 0, 7, 16, 31, 40 }, counts[B] = { 30, 33, 24, 5, 0 };

static const struct {
    int32_t dtype, state;
} kinds[] = { { GDN_F32, GDN_F32 }, { GDN_BF16, GDN_F32 }, { GDN_F16, GDN_BF16 } };
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- A padded call and its rows ------------------------------------------------------------ */

static gdn_batch *new_batch(void)
{
    gdn_batch *b = ring2_heap(sizeof *b);
    *b = gdn_batch_init();
    b->token_start = ring2_indices(GDN_I64, B, starts);
    b->token_count = ring2_indices(GDN_I32, B, counts);
    return b;
}

/* Returns the tokens of row b that count, as a padded batch of one row. */
static gdn_tensor valid(const gdn_tensor *t, int64_t b)
{
    if (!t->data) return *t;
    const gdn_tensor row = ring2_narrow(t, 0, b, 1);
    return ring2_narrow(&row, 1, starts[b], counts[b]);
}

static void fill_masked(const gdn_tensor *t, double x)
{
    for (int64_t b = 0; b < B && t->data; b++) {
        const gdn_tensor row = ring2_narrow(t, 0, b, 1);
        const gdn_tensor left = ring2_narrow(&row, 1, 0, starts[b]);
        const int64_t end = starts[b] + counts[b];
        const gdn_tensor right = ring2_narrow(&row, 1, end, T - end);
        ring2_fill_value(&left, x);
        ring2_fill_value(&right, x);
    }
}

static void expect_zero(const gdn_tensor *t)
{
    for (int64_t b = 0; b < B; b++) {
        const gdn_tensor row = ring2_narrow(t, 0, b, 1);
        const int64_t n = ring2_count(&row) / T;
        for (int64_t i = 0; i < ring2_count(&row); i++)
            if (i / n < starts[b] || i / n >= starts[b] + counts[b])
                CHECK(ring2_get(&row, i) == 0, "row %d: a masked token has an output", (int)b);
    }
}

/* The results of row b against a call of it alone. */
static void expect_row(const char *what, int64_t b, const gdn_tensor *out, const gdn_tensor *state,
                       const gdn_tensor *alone_out, const gdn_tensor *alone_state)
{
    const gdn_tensor got = valid(out, b), slot = ring2_narrow(state, 0, b, 1);
    if (counts[b]) ring2_expect_bits(what, &got, alone_out);
    ring2_expect_bits(what, &slot, alone_state);
}

static gdn_tensor padded(int32_t dtype, int ndim, int64_t n, int64_t d, double low, double high)
{
    gdn_tensor t = ring2_new(dtype, 0, ndim, B, T, n, d);
    ring2_fill(&t, low, high);
    return t;
}

/* ---- The rule ------------------------------------------------------------------------------ */

static gdn_rule_args rule_call(int kind)
{
    const int32_t A = kinds[kind].dtype;
    gdn_rule_args a = gdn_rule_args_init();
    a.q = padded(A, 4, 2, 32, -0.3, 0.3);
    a.k = padded(A, 4, 2, 32, -0.3, 0.3);
    a.v = padded(A, 4, 4, 40, -1, 1);
    a.g = padded(GDN_F32, 3, 4, 0, -0.5, 0);
    a.beta = padded(GDN_F32, 3, 4, 0, 0, 1);
    a.out = ring2_new(A, 0, 4, B, T, 4, 40);
    a.state = ring2_new(kinds[kind].state, 0, 4, B, 4, 40, 32);
    ring2_fill(&a.state, -1, 1);
    return a;
}

static gdn_rule_args rule_row(const gdn_rule_args *a, int64_t b)
{
    gdn_rule_args r = *a;
    const gdn_tensor slot = ring2_narrow(&a->state, 0, b, 1);
    gdn_tensor *const t[] = { &r.q, &r.k, &r.v, &r.g, &r.beta, &r.out };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const gdn_tensor part = valid(t[i], b);
        *t[i] = ring2_clone(&part);
    }
    r.state = ring2_clone(&slot);
    r.batch = NULL;
    return r;
}

static void rule(bool decode)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        gdn_rule_args a = rule_call(kind), alone[B];
        for (int64_t b = 0; b < B; b++) {
            alone[b] = rule_row(&a, b);
            if (counts[b])
                ring2_status(ring2_ctx(1), "alone",
                             ring2_rule_call(ring2_ctx(1), &alone[b], decode), GDN_OK);
        }
        fill_masked(&a.q, (double)NAN), fill_masked(&a.k, (double)NAN);
        fill_masked(&a.v, (double)NAN), fill_masked(&a.g, (double)NAN);
        fill_masked(&a.beta, (double)NAN);
        a.batch = new_batch();
        ring2_status(ring2_ctx(3), "padded", ring2_rule_call(ring2_ctx(3), &a, decode), GDN_OK);
        for (int64_t b = 0; b < B; b++)
            expect_row("rule", b, &a.out, &a.state, &alone[b].out, &alone[b].state);
        expect_zero(&a.out);
    }
}

static void G11_prefill(void) { rule(false); }
static void G11_decode(void) { rule(true); }

/* A state after every token: write_slots[b][t] belongs to the t-th token that counts. */
static void G11_write_each(void)
{
    gdn_rule_args a = rule_call(0), plain = a;
    gdn_batch *each = new_batch();
    plain.state = ring2_clone(&a.state);
    plain.out = ring2_clone(&a.out);
    a.state_out = ring2_new(GDN_F32, 0, 4, B * T, 4, 40, 32);
    each->write = GDN_WRITE_EACH;
    each->write_slots = ring2_new(GDN_I32, 0, 2, B, T, 0, 0);
    for (int64_t i = 0; i < B * T; i++) ring2_set(&each->write_slots, i, (double)i);
    a.batch = each;
    ring2_status(ring2_ctx(2), "each", gdn_decode(ring2_ctx(2), &a), GDN_OK);
    for (int64_t b = 0; b < B; b++) { /* the final state, from a call of the row alone */
        const gdn_rule_args row = rule_row(&plain, b);
        if (!counts[b]) continue;
        ring2_status(ring2_ctx(1), "alone", gdn_decode(ring2_ctx(1), &row), GDN_OK);
        const gdn_tensor last = ring2_narrow(&a.state_out, 0, b * T + counts[b] - 1, 1);
        ring2_expect_bits("state after the last token", &last, &row.state);
    }
}

/* ---- Convolution --------------------------------------------------------------------------- */

static void G11_conv1d(void)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        const int32_t A = kinds[kind].dtype;
        gdn_conv1d_args a = gdn_conv1d_args_init(), alone[B];
        a.x = padded(A, 3, 70, 0, -1, 1);
        a.out = ring2_new(A, 0, 3, B, T, 70, 0);
        a.weight = ring2_new(GDN_F32, 0, 2, 70, 4, 0, 0);
        a.state = ring2_new(kinds[kind].state, 0, 3, B, 70, 5, 0);
        ring2_fill(&a.weight, -1, 1), ring2_fill(&a.state, -1, 1);
        for (int64_t b = 0; b < B; b++) {
            const gdn_tensor x = valid(&a.x, b), slot = ring2_narrow(&a.state, 0, b, 1);
            alone[b] = a;
            alone[b].x = ring2_clone(&x);
            alone[b].out = ring2_clone(&x);
            alone[b].state = ring2_clone(&slot);
            if (counts[b])
                ring2_status(ring2_ctx(1), "alone", gdn_conv1d(ring2_ctx(1), &alone[b]), GDN_OK);
        }
        fill_masked(&a.x, (double)NAN);
        a.batch = new_batch();
        ring2_status(ring2_ctx(3), "padded", gdn_conv1d(ring2_ctx(3), &a), GDN_OK);
        for (int64_t b = 0; b < B; b++)
            expect_row("conv1d", b, &a.out, &a.state, &alone[b].out, &alone[b].state);
        expect_zero(&a.out);
    }
}

/* ---- The whole layer ----------------------------------------------------------------------- */

static gdn_tensor weights(int ndim, int64_t n, int64_t d)
{
    gdn_tensor t = ring2_new(GDN_F32, 0, ndim, n, d, 0, 0);
    ring2_fill(&t, -0.3, 0.3);
    return t;
}

static gdn_block_args block_call(void)
{
    enum { Hk = 1, Hv = 2, d = 16, D = 2 * Hk * d + Hv * d, HIDDEN = 24 };
    gdn_block_args a = gdn_block_args_init();
    a.hidden = padded(GDN_F32, 3, HIDDEN, 0, -1, 1);
    a.out = ring2_new(GDN_F32, 0, 3, B, T, HIDDEN, 0);
    a.in_proj_qkv = weights(2, D, HIDDEN), a.in_proj_z = weights(2, Hv * d, HIDDEN);
    a.in_proj_b = weights(2, Hv, HIDDEN), a.in_proj_a = weights(2, Hv, HIDDEN);
    a.conv_weight = weights(2, D, 4);
    a.A_log = weights(1, Hv, 0), a.dt_bias = weights(1, Hv, 0);
    a.norm_weight = weights(1, d, 0), a.out_proj = weights(2, HIDDEN, Hv * d);
    a.conv_state = ring2_new(GDN_F32, 0, 3, B, D, 3, 0);
    a.state = ring2_new(GDN_F32, 0, 4, B, Hv, d, d);
    ring2_fill(&a.conv_state, -1, 1), ring2_fill(&a.state, -1, 1);
    a.n_key_heads = Hk, a.n_value_heads = Hv;
    a.key_head_dim = a.value_head_dim = d;
    return a;
}

static void G11_block(void)
{
    gdn_block_args a = block_call(), alone[B];
    if (ring2_on_device()) a.flags = GDN_EXACT; /* cuBLAS may sum by the number of rows */
    for (int64_t b = 0; b < B; b++) {
        const gdn_tensor hidden = valid(&a.hidden, b);
        const gdn_tensor conv = ring2_narrow(&a.conv_state, 0, b, 1);
        const gdn_tensor S = ring2_narrow(&a.state, 0, b, 1);
        alone[b] = a;
        alone[b].hidden = ring2_clone(&hidden), alone[b].out = ring2_clone(&hidden);
        alone[b].conv_state = ring2_clone(&conv), alone[b].state = ring2_clone(&S);
        if (counts[b])
            ring2_status(ring2_ctx(1), "alone", gdn_block(ring2_ctx(1), &alone[b]), GDN_OK);
    }
    fill_masked(&a.hidden, (double)NAN);
    a.batch = new_batch();
    ring2_status(ring2_ctx(3), "padded", gdn_block(ring2_ctx(3), &a), GDN_OK);
    for (int64_t b = 0; b < B; b++) {
        const gdn_tensor conv = ring2_narrow(&a.conv_state, 0, b, 1);
        expect_row("block", b, &a.out, &a.state, &alone[b].out, &alone[b].state);
        ring2_expect_bits("conv_state", &conv, &alone[b].conv_state);
    }
    expect_zero(&a.out);
}

/* ---- Packed sequences ---------------------------------------------------------------------- */

/* token_start counts from the sequence's own first token; its neighbours are untouched. */
static void G11_packed(void)
{
    static const int64_t lengths[3] = { 20, 33, 12 }, first[3] = { 0, 20, 53 };
    static const int64_t start[3] = { 3, 17, 12 };
    static const int heads[3] = { 2, 2, 4 };
    for (int decode = 0; decode < 2; decode++) {
        gdn_batch *t;
        gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, lengths, heads, 32, 40, &t);
        gdn_rule_args alone[3];
        for (int b = 0; b < 3; b++) {
            const int64_t n = lengths[b] - start[b];
            const gdn_rule_args r = ring2_rule_slice(&a, first[b] + start[b], n);
            const gdn_rule_args masked = ring2_rule_slice(&a, first[b], start[b]);
            const gdn_tensor S = ring2_narrow(&a.state, 0, b, 1);
            const int64_t cu[2] = { 0, n };
            gdn_batch *one = ring2_heap(sizeof *one);
            *one = gdn_batch_init();
            one->cu_seqlens = ring2_indices(GDN_I32, 2, cu);
            alone[b] = ring2_rule_clone(&r);
            alone[b].state = ring2_clone(&S);
            alone[b].batch = one;
            if (n)
                ring2_status(ring2_ctx(1), "alone",
                             ring2_rule_call(ring2_ctx(1), &alone[b], decode), GDN_OK);
            ring2_fill_value(&masked.q, (double)NAN), ring2_fill_value(&masked.k, (double)NAN);
            ring2_fill_value(&masked.v, (double)NAN), ring2_fill_value(&masked.g, (double)NAN);
            ring2_fill_value(&masked.beta, (double)NAN);
        }
        t->token_start = ring2_indices(GDN_I32, 3, start);
        ring2_status(ring2_ctx(2), "packed", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
        for (int b = 0; b < 3; b++) {
            const int64_t n = lengths[b] - start[b];
            const gdn_rule_args r = ring2_rule_slice(&a, first[b] + start[b], n);
            const gdn_rule_args masked = ring2_rule_slice(&a, first[b], start[b]);
            const gdn_tensor S = ring2_narrow(&a.state, 0, b, 1);
            if (n) ring2_expect_bits("out", &r.out, &alone[b].out);
            ring2_expect_bits("state", &S, &alone[b].state);
            for (int64_t i = 0; i < ring2_count(&masked.out); i++)
                CHECK(ring2_get(&masked.out, i) == 0, "a masked token has an output");
        }
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G11 prefill, padded on both sides", G11_prefill },
        { "G11 decode, padded on both sides", G11_decode },
        { "G11 decode, a state after every token", G11_write_each },
        { "G11 conv1d, padded on both sides", G11_conv1d },
        { "G11 block, padded on both sides", G11_block },
        { "G11 packed sequences that start late", G11_packed },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
