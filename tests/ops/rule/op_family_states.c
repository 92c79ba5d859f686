/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=6 */
/*
 * The family of gdn.h where a state is not alone or not of floats: trees and records, beside plain
 * decode and float64; states of 8 bits, beside float32 between two conversions (G21).
 */
#include <math.h>
#include <string.h>

#include "family_draw.h"
#include "gdn_record.h"
#include "ring2_device.h"

/* ---- Records --------------------------------------------------------------------------------- */

/* Rules of one update, of which records are. */
static const int of_records[] = { 0, 1, 4 };
enum { N_OF_RECORDS = sizeof of_records / sizeof *of_records };

/* Sets an empty record of R rows, for one slot. turned: numbers of a head are HV apart. */
static void set_record(gdn_rule_args *a, int64_t R, bool turned)
{
    const int64_t K = a->k.size[2], V = a->v.size[2], zero[] = { 0 };
    a->record_k = ring2_new(GDN_F32, 0, 4, 1, R, HK, K);
    a->record_u = ring2_new(GDN_F32, 0, 4, 1, R, HV, V);
    a->record_g = ring2_new(GDN_F32, 2, 3, 1, R, HV, 0);
    if (a->g.ndim == 3) {
        const gdn_tensor rows = ring2_new(GDN_F32, 1, 4, 1, R, K, HV);
        a->record_g = turned ? ring2_swap(&rows, 2, 3) : ring2_new(GDN_F32, 1, 4, 1, R, HV, K);
    }
    a->record_count = ring2_indices(GDN_I64, 1, zero);
    ring2_fill_value(&a->record_k, NAN), ring2_fill_value(&a->record_u, NAN);
    ring2_fill_value(&a->record_g, NAN);
}

/* A batch of one sequence of n tokens, in slot 0. */
static gdn_batch one_sequence(int64_t n)
{
    const int64_t lengths[] = { 0, n }, zero[] = { 0 };
    gdn_batch batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I64, 2, lengths);
    batch.read_slots = ring2_indices(GDN_I64, 1, zero);
    return batch;
}

static void call(const char *what, const gdn_rule_args *a, bool decode)
{
    ring2_status(ring2_ctx(1), what,
                 decode ? gdn_decode(ring2_ctx(1), a) : gdn_prefill(ring2_ctx(1), a), GDN_OK);
}

static void fold(const gdn_rule_args *a)
{
    gdn_record_fold_args f = gdn_record_fold_args_init();
    f.state = a->state, f.state_scales = a->state_scales, f.state_layout = a->state_layout;
    f.record_k = a->record_k, f.record_u = a->record_u, f.record_g = a->record_g;
    f.record_count = a->record_count;
    ring2_status(ring2_ctx(1), "fold", gdn_record_fold(ring2_ctx(1), &f), GDN_OK);
}

/* Accepts n tokens of a tree. */
static void commit(const gdn_rule_args *a, int64_t n, const int64_t *path)
{
    gdn_record_commit_args c = gdn_record_commit_args_init();
    c.record_k = a->record_k, c.record_u = a->record_u, c.record_g = a->record_g;
    c.record_count = a->record_count;
    c.n_accepted = ring2_indices(GDN_I64, 1, &n);
    c.path = ring2_indices(GDN_I64, n, path);
    c.path.ndim = 2, c.path.size[0] = 1, c.path.size[1] = n;
    c.path.stride[0] = n, c.path.stride[1] = 1;
    ring2_status(ring2_ctx(1), "commit", gdn_record_commit(ring2_ctx(1), &c), GDN_OK);
}

/* A token that erases nothing, and writes only columns from 32 on, if there are some. */
static void set_late_write(const gdn_rule_args *a, int64_t t)
{
    const int64_t K = a->k.size[2], V = a->v.size[2];
    const int64_t n = a->beta.ndim == 3 ? K : 1;
    for (int64_t i = 0; i < HV * n; i++) ring2_set(&a->beta, t * HV * n + i, 0);
    for (int64_t i = 0; a->write_gate.data && i < HV * V; i++)
        if (i % V < 32) ring2_set(&a->write_gate, t * HV * V + i, 0);
}

/* G19 and G20: a tree's tokens have the bits of their chains; a record, folded, gives them. */
static void drafts(int i)
{
    enum { T = 5, N = 3 };
    static const int64_t parents[T] = { -1, 0, 0, 2, 1 }, path[N] = { 0, 2, 3 };
    const struct rule *f = &rules[of_records[i % N_OF_RECORDS]];
    gdn_rule_args a = draw(f, i / N_OF_RECORDS % N_GATES, i % 2, T), chain;
    a.norm = GDN_NORM_NONE; /* records hold normalised keys; here they are as given */
    set_late_write(&a, path[1]);
    gdn_rule_args tree = part(&a, 0, T), start = clone(&tree);
    gdn_batch batch = one_sequence(T);
    batch.parents = ring2_indices(GDN_I64, T, parents);
    batch.parents.ndim = 2, batch.parents.size[0] = 1, batch.parents.size[1] = T;
    batch.parents.stride[0] = T, batch.parents.stride[1] = 1;
    batch.write = GDN_WRITE_NONE;
    tree.batch = &batch;
    set_record(&tree, 8, i / N_OF_RECORDS / N_GATES);
    call("tree", &tree, true);
    for (int j = 0; j < N; j++) { /* the accepted chain, one call for each token */
        chain = part(&start, path[j], 1);
        chain.state = start.state;
        run(&chain, true);
        const gdn_tensor want = ring2_narrow(&tree.out, 0, path[j], 1);
        ring2_expect_bits("out of a tree", &chain.out, &want);
    }
    commit(&tree, N, path);
    fold(&tree);
    ring2_expect_bits("folded state", &tree.state, &start.state);
}

/* Sequence 0 in float64: out, and the last state. */
static void expect_oracle(const gdn_rule_args *a, const gdn_tensor *out, const gdn_tensor *state)
{
    const int64_t K = a->q.size[2], V = a->v.size[2];
    double *o = zeros(out), *S = zeros(state);
    for (int64_t h = 0; h < HV; h++) {
        struct oracle_family r = head_of(a, 0, h);
        oracle_family(&r);
        for (int64_t i = 0; i < r.T * V; i++) o[(i / V * HV + h) * V + i % V] = r.o[i];
        memcpy(S + h * K * V, r.state, (size_t)(K * V) * sizeof *S);
    }
    near("out", out, o, 2e-5);
    near("state", state, S, 2e-5);
}

/* Tokens that are accepted at once, then gdn_prefill, which folds first; with GDN_EXACT to the bits
 * of calls without a record. */
static void lazy(int i)
{
    enum { T = 14, DECODED = 10, ROWS = 4 };
    const struct rule *f = &rules[of_records[i % N_OF_RECORDS]];
    const gdn_rule_args a = draw(f, i / N_OF_RECORDS % N_GATES, i % 2, T), twin = clone(&a);
    const bool exact = i / N_OF_RECORDS / N_GATES;
    gdn_rule_args given = clone(&a), whole = part(&twin, 0, T), some = part(&a, 0, T), rest;
    const gdn_tensor out = some.out, state = some.state;
    set_record(&some, ROWS, i % 2);
    whole.flags = some.flags = exact ? GDN_EXACT : 0;
    for (int64_t t = 0; t < DECODED; t++) {
        gdn_batch one = one_sequence(1);
        gdn_rule_args token = part(&some, t, 1);
        token.state = state, token.batch = &one;
        call("token", &token, true);
        /* A GPU folds at once. */
        const double count = ring2_on_device() ? 0 : (double)((t + 1) % ROWS);
        CHECK(ring2_get(&some.record_count, 0) == count, "count after %d: %g", (int)t,
              ring2_get(&some.record_count, 0));
    }
    gdn_batch tail = one_sequence(T - DECODED);
    rest = part(&some, DECODED, T - DECODED);
    rest.state = state, rest.batch = &tail;
    call("rest", &rest, false);
    CHECK(ring2_get(&some.record_count, 0) == 0, "a count is left");
    expect_oracle(&given, &out, &state);
    if (!exact) return;
    run(&whole, false);
    ring2_expect_bits("out", &out, &whole.out);
    ring2_expect_bits("state", &state, &whole.state);
}

/* G7: a row of a record whose channel forgets, forgets a NaN of the state in that channel alone. */
static void forgets(int i)
{
    enum { T = 3, X = 7 };
    static const int64_t path[T] = { 0, 1, 2 };
    const gdn_rule_args a = draw(&rules[i], 1, 0, T), b = clone(&a);
    const int64_t K = a.k.size[2];
    gdn_rule_args calls[] = { part(&a, 0, T), part(&b, 0, T) };
    gdn_batch batch = one_sequence(T);
    batch.write = GDN_WRITE_NONE;
    for (int j = 0; j < 2; j++) {
        gdn_rule_args *c = &calls[j];
        for (int64_t h = 0; h < HV; h++) ring2_set(&c->g, h * K + X, -(double)INFINITY);
        for (int64_t x = X; j && x < ring2_count(&c->state); x += K) ring2_set(&c->state, x, NAN);
        c->batch = &batch;
        set_record(c, T, j);
        call("drafts", c, true);
        commit(c, T, path);
        fold(c);
    }
    ring2_expect_bits("out", &calls[1].out, &calls[0].out);
    ring2_expect_bits("state", &calls[1].state, &calls[0].state);
}

/* ---- States of 8 bits ------------------------------------------------------------------------ */

static const int32_t codes[] = { GDN_I8, GDN_E4M3, GDN_E5M2 };
enum { N_CODES = sizeof codes / sizeof *codes };

/* Converts between codes with scales and float32. */
static void convert(const gdn_tensor *from, const gdn_tensor *from_scales, const gdn_tensor *to,
                    const gdn_tensor *to_scales)
{
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = *from, c.to_pool = *to;
    if (from_scales) c.from_scales = *from_scales;
    if (to_scales) c.to_scales = *to_scales;
    ring2_status(ring2_ctx(1), "gdn_state_copy", gdn_state_copy(ring2_ctx(1), &c), GDN_OK);
}

/* A pool of codes, and the same numbers as float32. */
struct pool {
    gdn_tensor codes, scales, wide;
};

static struct pool new_pool(int32_t dtype, int64_t n, int64_t V, int64_t K)
{
    const struct pool p = { ring2_new(dtype, 0, 4, n, HV, V, K),
                            ring2_new(GDN_F32, 0, 3, n, HV, V, 0),
                            ring2_new(GDN_F32, 0, 4, n, HV, V, K) };
    ring2_fill(&p.wide, -1, 1);
    convert(&p.wide, NULL, &p.codes, &p.scales);
    convert(&p.codes, &p.scales, &p.wide, NULL);
    return p;
}

/* Checks that the codes are those of the float32 states. */
static void expect_codes(const char *what, const struct pool *p)
{
    const gdn_tensor want = ring2_clone(&p->codes), scales = ring2_clone(&p->scales);
    convert(&p->wide, NULL, &want, &scales);
    ring2_expect_bits(what, &p->codes, &want);
    ring2_expect_bits("scales", &p->scales, &scales);
}

/* Either op; final states and checkpoints. */
static void eight(int i)
{
    enum { T = 9, EVERY = 2, N_LEFT = T / EVERY + T / 2 / EVERY };
    const struct rule *f = &rules[i % N_RULES];
    gdn_rule_args wide = draw(f, i / N_RULES % N_GATES, 0, T), a = clone(&wide);
    const int64_t K = a.q.size[2], V = a.v.size[2];
    const int32_t dtype = codes[i % N_CODES];
    const struct pool p = new_pool(dtype, N_SEQS, V, K), left = new_pool(dtype, N_LEFT, V, K);
    gdn_batch batch = *a.batch;
    batch.checkpoint_every = EVERY;
    a.batch = wide.batch = &batch;
    a.state = p.codes, a.state_scales = p.scales, wide.state = p.wide;
    a.checkpoints = left.codes, a.checkpoint_scales = left.scales, wide.checkpoints = left.wide;
    for (int decode = 0; decode < 2; decode++) {
        call("8 bits", &a, decode);
        call("float32", &wide, decode);
        if (ring2_on_device() || decode) {
            ring2_expect_bits("out", &a.out, &wide.out);
            expect_codes("states", &p);
            expect_codes("checkpoints", &left);
        }
        convert(&p.codes, &p.scales, &p.wide, NULL);
    }
}

/* G17: with GDN_EXACT a state is rounded after each token, however calls are cut. */
static void eight_exact(int i)
{
    enum { T = 9, CUT = 4 };
    const struct rule *f = &rules[i % N_RULES];
    const gdn_rule_args a = draw(f, i / N_RULES % N_GATES, 0, T), b = clone(&a);
    const int64_t K = a.q.size[2], V = a.v.size[2];
    const struct pool p = new_pool(codes[i % N_CODES], 1, V, K);
    const gdn_tensor other = ring2_clone(&p.codes), scales = ring2_clone(&p.scales);
    gdn_rule_args whole = part(&a, 0, T), first = part(&b, 0, CUT), rest = part(&b, CUT, T - CUT);
    whole.flags = first.flags = rest.flags = GDN_EXACT;
    whole.state = p.codes, whole.state_scales = p.scales;
    first.state = rest.state = other, first.state_scales = rest.state_scales = scales;
    call("whole", &whole, i % 2);
    call("first", &first, true), call("rest", &rest, i % 2);
    const gdn_tensor tail = ring2_narrow(&whole.out, 0, CUT, T - CUT);
    ring2_expect_bits("out", &rest.out, &tail);
    ring2_expect_bits("state", &p.codes, &other);
    ring2_expect_bits("scales", &p.scales, &scales);
}

/* With GDN_EXACT a state of 16 bits is rounded after each token, whatever its updates: the bits of
 * tokens with float32 states, which a conversion rounds between them. */
static void sixteen_exact(int i)
{
    enum { T = 5 };
    const struct rule *f = &rules[i % N_RULES];
    const int32_t dtype = i % 2 ? GDN_BF16 : GDN_F16;
    const gdn_rule_args a = draw(f, i / N_RULES % N_GATES, 0, T), b = clone(&a);
    gdn_rule_args whole = part(&a, 0, T);
    whole.flags = GDN_EXACT;
    whole.state = ring2_new(dtype, 0, 4, 1, HV, a.v.size[2], a.q.size[2]);
    gdn_tensor between = ring2_clone(&whole.state), wide = ring2_narrow(&b.state, 0, 0, 1);
    convert(&wide, NULL, &whole.state, NULL);
    convert(&whole.state, NULL, &wide, NULL);
    call("whole", &whole, i / N_RULES / N_GATES % 2);
    for (int64_t t = 0; t < T; t++) {
        gdn_rule_args token = part(&b, t, 1);
        token.flags = GDN_EXACT;
        call("token", &token, true);
        const gdn_tensor want = ring2_narrow(&token.out, 0, 0, 1);
        const gdn_tensor got = ring2_narrow(&whole.out, 0, t, 1);
        ring2_expect_bits("out", &got, &want);
        convert(&wide, NULL, &between, NULL);
        convert(&between, NULL, &wide, NULL);
    }
    ring2_expect_bits("state", &whole.state, &between);
}

/* A record of gates of any strength, folded. */
static void eight_folds(int i)
{
    enum { ROWS = 5 };
    gdn_rule_args a = draw(&rules[0], 0, i % 2, ROWS), wide;
    const int64_t K = a.q.size[2], V = a.v.size[2], count[] = { ROWS - 1 };
    const struct pool p = new_pool(codes[i % N_CODES], 1, V, K);
    set_record(&a, ROWS, i % 2);
    ring2_fill(&a.record_k, -0.2, 0.2), ring2_fill(&a.record_u, -1, 1);
    for (int64_t j = 0; j < ROWS * HV * K; j++)
        ring2_set(&a.record_g, j,
                  (j / K % 3 ? 1 : -1) * exp(gates[i / 2 % N_GATES](j / HV / K, j % K)));
    wide = a;
    a.record_count = ring2_indices(GDN_I64, 1, count);
    wide.record_count = ring2_indices(GDN_I64, 1, count);
    a.state = p.codes, a.state_scales = p.scales, wide.state = p.wide;
    fold(&a), fold(&wide);
    expect_codes("state", &p);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "drafts", drafts, 2 * N_OF_RECORDS * N_GATES },
        { "lazy", lazy, 2 * N_OF_RECORDS * N_GATES },
        { "forgets", forgets, 2 },
        { "eight", eight, N_RULES * N_GATES },
        { "eight_exact", eight_exact, N_RULES * N_GATES },
        { "sixteen_exact", sixteen_exact, 2 * N_RULES * N_GATES },
        { "eight_folds", eight_folds, 2 * N_GATES },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
