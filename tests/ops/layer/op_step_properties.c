/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/* The guarantees of gdn_step by name. */
#include "step_calls.h"

/* Sequence s, tokens [t, t + n), without the batch. */
static gdn_step_args part_of(const gdn_step_args *a, int64_t s, int64_t t, int64_t n)
{
    gdn_step_args b = *a;
    gdn_tensor *const of[] = { &b.x, &b.a, &b.b, &b.z, &b.out };
    for (int i = 0; i < 5; i++) {
        if (!of[i]->data) continue;
        *of[i] = ring2_narrow(of[i], 0, s, 1);
        *of[i] = ring2_narrow(of[i], 1, t, n);
    }
    b.state = ring2_narrow(&b.state, 0, s, 1);
    b.conv_state = ring2_narrow(&b.conv_state, 0, s, 1);
    b.batch = NULL;
    return b;
}

/* Also G17, where a state of 16 bits is rounded after every token. */
static void G4_G17_any_split(void)
{
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_step_args a = make_call(&kinds[i % N_KINDS], 2, 9, 2), b;
        a.flags = i < N_KINDS ? 0 : GDN_EXACT;
        if (!a.flags && a.state.dtype != GDN_F32) continue;
        b = clone(&a);
        call(ring2_ctx(1), &a);
        for (int64_t t = 0, n; t < 9; t += n) {
            n = a.flags ? 1 + ring2_below(9 - t) : 1;
            for (int64_t s = 0; s < 2; s++) {
                const gdn_step_args part = part_of(&b, s, t, n);
                call(ring2_ctx(2), &part);
            }
        }
        expect_same("split", &b, &a);
    }
}

/* a = +inf: alpha is 0, and what the state held is gone. */
static void G7_forgets(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_step_args a = make_call(&kinds[i], 2, 1, 2), b = clone(&a);
        ring2_fill_value(&a.a, (double)INFINITY);
        b.a = a.a;
        ring2_fill_value(&a.state, (double)NAN);
        ring2_fill_value(&b.state, 0);
        call(ring2_ctx(1), &a);
        call(ring2_ctx(1), &b);
        expect_same("forgets", &a, &b);
    }
}

/* b = -inf: beta is 0, and v may be NaN. */
static void G8_writes_nothing(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_step_args a = make_call(&kinds[i], 2, 1, 2), b;
        gdn_tensor v = ring2_narrow(&a.x, 2, 2 * HK * K, HV * V);
        a.conv_state.data = NULL;
        a.x = ring2_clone(&a.x);
        b = clone(&a);
        b.x = ring2_clone(&a.x);
        ring2_fill_value(&a.b, -(double)INFINITY);
        v = ring2_narrow(&a.x, 2, 2 * HK * K, HV * V);
        ring2_fill_value(&v, (double)NAN);
        call(ring2_ctx(1), &a);
        call(ring2_ctx(1), &b);
        expect_same("writes nothing", &a, &b);
    }
}

static void expect_rows(const char *what, const gdn_tensor *got, const gdn_tensor *want, int64_t i)
{
    const gdn_tensor g = ring2_narrow(got, 0, i, 1), w = ring2_narrow(want, 0, i, 1);
    ring2_expect_bits(what, &g, &w);
}

/* Slots of padding and of no sequence hold NaN that is never read; masked tokens hold NaN. */
static void G10_G11_padding_and_masks(void)
{
    static const int64_t from_0[4] = { 3, -1, 1, 0 }, from_1[4] = { 3, 0, 1, 2 };
    static const int64_t counts[4] = { 2, 3, 0, 5 };
    static const int64_t starts[4] = { 1, 0, 0, 0 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_step_args a = make_call(&kinds[i % N_KINDS], 4, 5, 5), b;
        gdn_batch t = gdn_batch_init();
        const int64_t *slots = i & 1 ? from_1 : from_0;
        t.first_slot = i & 1;
        for (int64_t s = 0; s < 5; s++) {
            if (s == slots[3] || s == 1 || s == 3) continue;
            const gdn_tensor one = ring2_narrow(&a.state, 0, s, 1);
            ring2_fill_value(&one, (double)NAN);
        }
        t.read_slots = ring2_indices(GDN_I32, 4, slots);
        t.token_start = ring2_indices(GDN_I32, 4, starts);
        t.token_count = ring2_indices(GDN_I32, 4, counts);
        t.pad_policy = i < N_KINDS ? GDN_PAD_ZERO : GDN_PAD_KEEP;
        for (int64_t s = 0; s < 4; s++)
            for (int64_t at = 0; at < 5; at++) {
                gdn_step_args one = part_of(&a, s, at, 1);
                if (at >= starts[s] && at < starts[s] + counts[s] && s != 1) continue;
                ring2_fill_value(&one.x, (double)NAN), ring2_fill_value(&one.a, (double)NAN);
                if (one.z.data) ring2_fill_value(&one.z, (double)NAN);
            }
        a.batch = &t;
        b = clone(&a);
        expect_apart(ring2_ctx(2), &a);
        if (i < N_KINDS) ring2_fill_value(&b.out, 0);
        expect_rows("padding", &a.out, &b.out, 1);
        expect_rows("no token counts", &a.state, &b.state, 1);
    }
}

/* A token of a tree has the bits of the same token at the end of a chain of its ancestors. */
static void G19_tree(void)
{
    enum { T = 7 };
    static const int64_t parents[2 * T] = { -1, 0, 0, 1, -1, 4, 2, -1, 0, 1, 1, 1, 4, 0 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_step_args a = make_call(&kinds[i], 2, T, 2), b;
        gdn_batch t = gdn_batch_init();
        t.parents = ring2_new(GDN_I32, 0, 2, 2, T, 0, 0);
        for (int64_t e = 0; e < 2 * T; e++) ring2_set(&t.parents, e, (double)parents[e]);
        t.write = GDN_WRITE_NONE;
        a.batch = &t;
        b = clone(&a);
        expect_apart(ring2_ctx(2), &a);
        if (a.state.dtype != GDN_F32) continue; /* each call rounds it */
        for (int64_t e = 0; e < 2 * T; e++) {
            int64_t chain[T], n = 0;
            gdn_step_args c = clone(&b), last = c;
            for (int64_t at = e % T; at >= 0; at = parents[e / T * T + at]) chain[n++] = at;
            while (n-- > 0) {
                last = part_of(&c, e / T, chain[n], 1);
                call(ring2_ctx(1), &last);
            }
            const gdn_step_args want = part_of(&a, e / T, e % T, 1);
            ring2_expect_bits("at the end of its chain", &want.out, &last.out);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "step: G4 G17 any split", G4_G17_any_split },
        { "step: G7 forgets by selection", G7_forgets },
        { "step: G8 beta 0 writes nothing", G8_writes_nothing },
        { "step: G10 G11 padding and masks", G10_G11_padding_and_masks },
        { "step: G19 tree", G19_tree },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
