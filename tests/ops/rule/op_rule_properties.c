/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/* The guarantees G2 to G13 of gdn.h for gdn_prefill and gdn_decode, each a test of its name. */
#define _DEFAULT_SOURCE /* mprotect */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "ring2_device.h"
#include "ring2_rule.h"

enum { N_SEQS = 6 };
static const int64_t lengths[N_SEQS] = { 70, 5, 0, 17, 1, 33 };
static const int gva[3] = { 2, 2, 4 };

/* The shapes of the tests: storage, sizes, layout. */
static const struct shape {
    int32_t dtype, state, layout;
    int64_t K, V;
} shapes[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, 64, 64 },    { GDN_F32, GDN_F32, GDN_STATE_KV, 60, 60 },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, 128, 100 }, { GDN_F16, GDN_BF16, GDN_STATE_KV, 33, 130 },
    { GDN_BF16, GDN_F16, GDN_STATE_VK, 16, 7 },    { GDN_BF16, GDN_F32, GDN_STATE_VK, 192, 136 },
    { GDN_F16, GDN_F32, GDN_STATE_KV, 32, 200 }
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

#define FOR_EACH_CASE(s, decode)                                     \
    for (const struct shape *s = shapes; s < shapes + N_SHAPES; s++) \
        for (int decode = 0; decode < 2; decode++)

static void fix_layout(gdn_tensor *t, const struct shape *s)
{
    const int64_t *n = t->size;
    if (s->layout == GDN_STATE_VK || !t->data) return;
    *t = ring2_new(t->dtype, 0, 4, n[0], n[1], n[3], n[2]);
    ring2_fill(t, -1, 1);
}

static gdn_rule_args packed(const struct shape *s, gdn_batch **batch)
{
    gdn_rule_args a =
        ring2_rule_packed(s->dtype, s->state, N_SEQS, lengths, gva, s->K, s->V, batch);
    fix_layout(&a.state, s);
    a.state_layout = s->layout;
    return a;
}

static gdn_rule_args plain(const struct shape *s, int64_t T)
{
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, T, 1, gva, s->K, s->V);
    fix_layout(&a.state, s);
    a.state_layout = s->layout;
    return a;
}

/* [N]... as one padded sequence [1][N]..., for gdn_decode. */
static void pad_one(gdn_tensor *t)
{
    if (!t->data) return;
    for (int i = t->ndim; i > 0; i--) {
        t->size[i] = t->size[i - 1];
        t->stride[i] = t->stride[i - 1];
    }
    t->size[0] = 1;
    t->stride[0] = 0;
    t->ndim++;
}

/* As gdn_decode takes one sequence. */
static gdn_rule_args one_row(const gdn_rule_args *args)
{
    gdn_rule_args a = *args;
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) pad_one(rows[i]);
    return a;
}

static void run(gdn_ctx *ctx, const gdn_rule_args *args, bool decode)
{
    gdn_rule_args a = decode && !args->batch ? one_row(args) : *args;
    a.flags |= GDN_BATCH_INVARIANT;
    ring2_status(ctx, decode ? "gdn_decode" : "gdn_prefill", ring2_rule_call(ctx, &a, decode),
                 GDN_OK);
}

static void expect_same(const char *what, const gdn_rule_args *got, const gdn_rule_args *want)
{
    if (want->out.data) ring2_expect_bits(what, &got->out, &want->out);
    if (want->state.data) ring2_expect_bits(what, &got->state, &want->state);
}

/* ---- G2, G3 ---- */

/* The sequences of a batch in another order give the same bits, each. */
static void G2_order(void)
{
    static const int order[N_SEQS] = { 3, 5, 2, 0, 4, 1 };
    FOR_EACH_CASE(s, decode)
    {
        const gdn_rule_args a = packed(s, NULL);
        gdn_rule_args b = ring2_rule_clone(&a), done;
        int64_t from[N_SEQS + 1] = { 0 }, sizes[N_SEQS], to = 0;
        for (int i = 0; i < N_SEQS; i++) from[i + 1] = from[i] + lengths[i];
        for (int i = 0; i < N_SEQS; i++) sizes[i] = lengths[order[i]];
        done = ring2_rule_packed(s->dtype, s->state, N_SEQS, sizes, gva, s->K, s->V, NULL);
        b.batch = done.batch;
        for (int i = 0; i < N_SEQS; i++) {
            const gdn_rule_args in = ring2_rule_slice(&a, from[order[i]], sizes[i]);
            const gdn_rule_args out = ring2_rule_slice(&b, to, sizes[i]);
            const gdn_tensor S = ring2_select(&a.state, 0, order[i]);
            const gdn_tensor S_out = ring2_select(&b.state, 0, i);
            ring2_copy(&out.q, &in.q), ring2_copy(&out.k, &in.k), ring2_copy(&out.v, &in.v);
            ring2_copy(&out.g, &in.g), ring2_copy(&out.beta, &in.beta), ring2_copy(&S_out, &S);
            to += sizes[i];
        }
        run(ring2_ctx(2), &a, decode);
        run(ring2_ctx(2), &b, decode);
        to = 0;
        for (int i = 0; i < N_SEQS; i++) {
            const gdn_rule_args want = ring2_rule_slice(&a, from[order[i]], sizes[i]);
            const gdn_rule_args got = ring2_rule_slice(&b, to, sizes[i]);
            const gdn_tensor S = ring2_select(&a.state, 0, order[i]);
            const gdn_tensor S_out = ring2_select(&b.state, 0, i);
            ring2_expect_bits("out", &got.out, &want.out);
            ring2_expect_bits("state", &S_out, &S);
            to += sizes[i];
        }
    }
}

/* Checks that each of n sequences has the same bits alone as in the batch. */
static void expect_alone(const gdn_rule_args *a, const int64_t *sizes, int n, bool decode)
{
    gdn_rule_args all = ring2_rule_clone(a);
    int64_t first = 0;
    run(ring2_ctx(3), &all, decode);
    for (int i = 0; i < n; first += sizes[i++]) {
        const gdn_rule_args mine = ring2_rule_slice(a, first, sizes[i]);
        gdn_rule_args alone = ring2_rule_clone(&mine);
        gdn_rule_args want = ring2_rule_slice(&all, first, sizes[i]);
        const gdn_tensor S = ring2_narrow(&a->state, 0, i, 1);
        alone.state = ring2_clone(&S);
        want.state = ring2_narrow(&all.state, 0, i, 1);
        run(ring2_ctx(1), &alone, decode);
        expect_same("alone", &alone, &want);
    }
}

static void G2_mates(void)
{
    FOR_EACH_CASE(s, decode)
    {
        const gdn_rule_args a = packed(s, NULL);
        expect_alone(&a, lengths, N_SEQS, decode);
    }
}

/* As many as make a device choose another kernel than for one alone; a norm, too, is done there by
 * one of them only. */
static void G2_many_mates(void)
{
    enum { MANY = 20 };
    static const int32_t dtypes[] = { GDN_BF16, GDN_F16 }, norms[] = { GDN_NORM_NONE, GDN_NORM_L2 };
    int64_t many[MANY];
    for (int i = 0; i < MANY; i++) many[i] = lengths[i % N_SEQS] + (i == 7 ? 130 : 0);
    for (int form = 0; form < 8; form++) {
        const int64_t d = form < 4 ? 128 : 64;
        gdn_rule_args a =
            ring2_rule_packed(dtypes[form / 2 % 2], GDN_F32, MANY, many, gva, d, d, NULL);
        a.norm = norms[form % 2];
        expect_alone(&a, many, MANY, false);
    }
}

/* ---- G4, G5 ---- */

static void cut(const gdn_rule_args *a, bool decode, const int64_t *parts)
{
    int64_t first = 0;
    for (; *parts; first += *parts++) {
        const gdn_rule_args part = ring2_rule_slice(a, first, *parts);
        run(ring2_ctx(2), &part, decode);
    }
    CHECK(first == a->q.size[0], "the parts are not the whole");
}

/* On a device to rounding. */
static void expect_cut(const char *what, const gdn_rule_args *got, const gdn_rule_args *want,
                       const struct ring2_rule *m)
{
    if (!ring2_on_device()) {
        expect_same(what, got, want);
        return;
    }
    ring2_compare(what, &got->out, m->out, m->out_limit, m->out_noise, NULL);
    ring2_compare(what, &got->state, m->state, m->state_limit, m->state_noise, NULL);
}

static void G4_decode_cut(void)
{
    static const int64_t ones[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0 };
    static const int64_t parts[] = { 3, 7, 1, 20, 2, 0 };
    for (int i = 0; i < N_SHAPES; i++) {
        const gdn_rule_args a = plain(&shapes[i], 33);
        gdn_rule_args whole = ring2_rule_clone(&a), b = ring2_rule_clone(&a);
        const gdn_rule_args row = one_row(&a);
        struct ring2_rule m;
        if (shapes[i].state != GDN_F32) continue;
        ring2_rule_model(&row, true, &m);
        run(ring2_ctx(2), &whole, true);
        cut(&a, true, ones);
        cut(&b, true, parts);
        expect_cut("whole", &whole, &whole, &m);
        expect_cut("one by one", &a, &whole, &m);
        expect_cut("parts", &b, &whole, &m);
    }
}

static void G4_prefill_cut(void)
{
    const int64_t c = ring2_on_device() ? 64 : 16, T = 4 * c + 9;
    const int64_t cuts[][6] = {
        { c, c, c, c, 9, 0 }, { 3 * c, c + 9, 0 }, { 2 * c, 2 * c, 9, 0 }, { 4 * c, 9, 0 }
    };
    for (int i = 0; i < N_SHAPES; i++) {
        const gdn_rule_args a = plain(&shapes[i], T);
        gdn_rule_args whole = ring2_rule_clone(&a);
        if (shapes[i].state != GDN_F32) continue;
        run(ring2_ctx(2), &whole, false);
        for (size_t j = 0; j < sizeof cuts / sizeof *cuts; j++) {
            const gdn_rule_args b = ring2_rule_clone(&a);
            cut(&b, false, cuts[j]);
            expect_same("cut", &b, &whole);
        }
    }
}

static void G5_prefill_then_decode(void)
{
    static const int64_t firsts[] = { 1, 8, 9, 16, 40, 49 };
    for (int i = 0; i < N_SHAPES; i++)
        for (size_t j = 0; j < sizeof firsts / sizeof *firsts; j++) {
            const gdn_rule_args a = plain(&shapes[i], 50);
            const gdn_rule_args head = ring2_rule_slice(&a, 0, firsts[j]);
            const gdn_rule_args tail = ring2_rule_slice(&a, firsts[j], 50 - firsts[j]);
            struct ring2_rule m;
            if (shapes[i].state != GDN_F32) continue;
            ring2_rule_model(&a, false, &m);
            run(ring2_ctx(2), &head, false);
            run(ring2_ctx(2), &tail, true);
            ring2_compare("out", &a.out, m.out, m.out_limit, m.out_noise, NULL);
            ring2_compare("state", &a.state, m.state, m.state_limit, m.state_noise, NULL);
        }
}

/* ---- G6: the pool ends at a guard page and has gaps of no tensor ---- */

static void G6_memory(void)
{
    FOR_EACH_CASE(s, decode)
    {
        gdn_rule_args a = packed(s, NULL);
        const int64_t *n = a.state.size;
        a.state = ring2_new(s->state, 3, 4, n[0] + 1, n[1], n[2], n[3]);
        ring2_fill(&a.state, -1, 1);
        a.out = ring2_new(s->dtype, 1, 3, a.out.size[0], a.out.size[1], a.out.size[2], 0);
        ring2_rule_check(ring2_ctx(3), &a, decode);
    }
}

/* ---- G7 to G11 ---- */

/* Tokens from the gate of -inf on have the bits that they have behind a zero state. */
static void forgets(const struct shape *s, bool decode, int64_t at, double old)
{
    gdn_rule_args zero = plain(s, 40), stale, want, got;
    for (int h = 0; h < 4; h++) ring2_set(&zero.g, at * 4 + h, -(double)INFINITY);
    ring2_fill_value(&zero.state, 0);
    stale = ring2_rule_clone(&zero);
    ring2_fill_value(&stale.state, old);
    run(ring2_ctx(2), &zero, decode);
    run(ring2_ctx(2), &stale, decode);
    want = ring2_rule_slice(&zero, at, 40 - at);
    got = ring2_rule_slice(&stale, at, 40 - at);
    want.state = zero.state;
    expect_same(decode ? "decode" : "prefill", &got, &want);
    CHECK(isfinite(ring2_get(&want.out, 0)), "the output is not finite");
}

static void G7_forgets(void)
{
    static const int64_t at[] = { 0, 3, 15, 16, 39 };
    static const double old[] = { (double)NAN, (double)INFINITY, 1e30 };
    FOR_EACH_CASE(s, decode)
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 3; j++) forgets(s, decode, at[i], old[j]);
}

static void G8_writes_nothing(void)
{
    FOR_EACH_CASE(s, decode)
    {
        gdn_rule_args zero = plain(s, 40), poisoned;
        const int64_t row = 4 * s->V;
        for (int64_t t = 0; t < 40; t++)
            if (t % 3 == 0 || t > 20)
                for (int64_t h = 0; h < 4; h++) ring2_set(&zero.beta, t * 4 + h, 0);
        poisoned = ring2_rule_clone(&zero);
        for (int64_t t = 0; t < 40; t++)
            for (int64_t i = 0; i < row && (t % 3 == 0 || t > 20); i++) {
                ring2_set(&zero.v, t * row + i, 0);
                ring2_set(&poisoned.v, t * row + i, i % 2 ? (double)NAN : (double)INFINITY);
            }
        run(ring2_ctx(2), &zero, decode);
        run(ring2_ctx(2), &poisoned, decode);
        expect_same("beta 0", &poisoned, &zero);
        CHECK(isfinite(ring2_get(&zero.state, 0)), "the state is not finite");
    }
}

/* Any bit pattern but NaN: -0, denormals and infinities among them. */
static void fill_bits(const gdn_tensor *t)
{
    for (int64_t i = 0; i < ring2_count(t); i++) {
        const uint64_t bits = i == 0 ? 0 : ring2_bits() & (i % 5 ? ~0ull : 0x807f807full);
        memcpy(ring2_element(t, i), &bits, gdn_dtype_bytes(t->dtype));
        if (isnan(ring2_get(t, i))) ring2_set(t, i, i % 2 ? -0.0 : -(double)INFINITY);
    }
}

static void G9_every_bit_stays(void)
{
    static const int64_t tokens[] = { 1, 5, 16, 40 };
    FOR_EACH_CASE(s, decode)
    for (int i = 0; i < 8; i++) {
        gdn_rule_args a = plain(s, tokens[i % 4]);
        gdn_tensor before;
        fill_bits(&a.state);
        before = ring2_clone(&a.state);
        ring2_fill_value(&a.g, i % 2 ? -0.0 : 0);
        ring2_fill_value(&a.beta, 0);
        if (i >= 4) a.state_out = ring2_clone(&a.state), ring2_fill_value(&a.state_out, 7);
        run(ring2_ctx(2), &a, decode);
        ring2_expect_bits("state", i >= 4 ? &a.state_out : &a.state, &before);
    }
}

/* A pool of two slots, the second one not to be touched; or the first one. */
static gdn_tensor half_a_pool(const struct shape *s, bool first)
{
    const int64_t page = sysconf(_SC_PAGESIZE), unit = (int64_t)gdn_dtype_bytes(s->state);
    const int64_t slot = 4 * s->K * s->V, bytes = (slot * unit + page - 1) / page * page;
    const bool vk = s->layout == GDN_STATE_VK;
    char *memory = ring2_alloc((size_t)(2 * bytes), (size_t)page);
    gdn_tensor t = gdn_dense(memory, s->state, 4, 1, 4, vk ? s->V : s->K, vk ? s->K : s->V);
    ring2_fill(&t, -1, 1);
    t.size[0] = 2;
    t.stride[0] = bytes / unit;
    CHECK(!mprotect(memory + bytes, (size_t)bytes, PROT_NONE), "mprotect");
    if (!first) return t;
    t.data = memory + bytes;
    t.stride[0] = -t.stride[0];
    return t;
}

static void G10_no_state_touched(void)
{
    static const int64_t sizes[4] = { 20, 0, 4, 12 };
    static const int64_t slots[2][4] = { { 0, 1, -1, -7 }, { 1, 0, 0, -7 } };
    FOR_EACH_CASE(s, decode)
    for (int i = 0; i < 4; i++) {
        const int first = i / 2;
        gdn_batch *t;
        gdn_rule_args a = ring2_rule_packed(s->dtype, s->state, 4, sizes, gva, s->K, s->V, &t);
        a.state_layout = s->layout;
        a.state = half_a_pool(s, first);
        if (i % 2) a.state_out = half_a_pool(s, first);
        t->read_slots = ring2_indices(GDN_I32, 4, slots[first]);
        t->first_slot = first;
        run(ring2_ctx(2), &a, decode);
    }
}

/* Masked tokens hold NaN everywhere; what counts has the bits of a shorter sequence. */
static void G11_masked(void)
{
    static const int64_t counts[] = { 0, 1, 8, 9, 16, 17, 39 };
    FOR_EACH_CASE(s, decode)
    for (int i = 0; i < 7; i++) {
        gdn_rule_args a = plain(s, 40), rest;
        gdn_batch t = gdn_batch_init();
        int64_t cu[2] = { 0, 40 };
        t.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
        t.token_count = ring2_indices(GDN_I32, 1, &counts[i]);
        rest = ring2_rule_slice(&a, counts[i], 40 - counts[i]);
        ring2_fill_value(&rest.q, (double)NAN), ring2_fill_value(&rest.k, (double)NAN);
        ring2_fill_value(&rest.v, (double)NAN), ring2_fill_value(&rest.g, (double)NAN);
        ring2_fill_value(&rest.beta, (double)NAN);
        a.batch = &t;
        ring2_rule_check(ring2_ctx(2), &a, decode);
        for (int64_t j = 0; j < ring2_count(&rest.out); j++)
            CHECK(ring2_get(&rest.out, j) == 0, "a masked token has an output");
    }
}

/* ---- G12, G13 ---- */

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 order of the batch", G2_order },
        { "G2 batch mates", G2_mates },
        { "G2 many batch mates", G2_many_mates },
        { "G4 decode, cut anywhere", G4_decode_cut },
        { "G4 prefill, cut at chunks", G4_prefill_cut },
        { "G5 prefill then decode", G5_prefill_then_decode },
        { "G6 memory around", G6_memory },
        { "G7 a gate of -inf forgets", G7_forgets },
        { "G8 beta 0 writes nothing", G8_writes_nothing },
        { "G9 every state bit stays", G9_every_bit_stays },
        { "G10 no state touched", G10_no_state_touched },
        { "G11 masked tokens", G11_masked },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
