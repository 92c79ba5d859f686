/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* The stages of the chunked form: guarantees, each a test of its name, and refusals. */
#include <math.h>

#include "stages_call.h"

/* ---- Guarantees ---- */

static void call_all(gdn_ctx *ctx, const struct stages *s)
{
    gdn_chunk_uw_args uw = uw_args(s);
    gdn_chunk_states_args st = states_args(s);
    gdn_chunk_output_args o = output_args(s);
    ring2_status(ctx, "uw", gdn_chunk_uw(ctx, &uw), GDN_OK);
    ring2_status(ctx, "states", gdn_chunk_states(ctx, &st), GDN_OK);
    ring2_status(ctx, "output", gdn_chunk_output(ctx, &o), GDN_OK);
}

static struct stages fresh(const struct stages *s)
{
    struct stages f = *s;
    gdn_tensor *t[] = { &f.u, &f.w, &f.t, &f.states, &f.state_out, &f.out };
    for (int i = 0; i < 6; i++) *t[i] = ring2_clone(t[i]);
    return f;
}

static void expect_same(const char *what, const struct stages *a, const struct stages *b)
{
    ring2_expect_bits(what, &a->u, &b->u), ring2_expect_bits(what, &a->w, &b->w);
    ring2_expect_bits(what, &a->t, &b->t), ring2_expect_bits(what, &a->states, &b->states);
    ring2_expect_bits(what, &a->state_out, &b->state_out);
    ring2_expect_bits(what, &a->out, &b->out);
}

/* Prefill and the stages leave alike what belongs to an empty sequence, final state and all, and
 * what a sequence of masked tokens alone starts from is its final state. */
static void empty_sequences(void)
{
    static const int64_t cu[5] = { 0, 20, 20, 37, 37 }, counts[4] = { 20, 0, 0, 0 };
    struct stages s;
    gdn_ctx *ctx = ring2_ctx(2);
    make_stages(&s, 16, 32, true);
    s.batch.cu_seqlens = ring2_indices(GDN_I64, 5, cu);
    s.batch.token_count = ring2_indices(GDN_I32, 4, counts);
    const gdn_tensor before = ring2_clone(&s.state_out);
    gdn_rule_args p = gdn_rule_args_init();
    p.q = s.q, p.k = s.k, p.v = s.v, p.g = s.g, p.beta = s.beta;
    p.out = ring2_clone(&s.out), p.state = s.state, p.state_out = ring2_clone(&s.state_out);
    p.batch = &s.batch, p.head_map = s.map, p.state_layout = s.layout;
    ring2_status(ctx, "prefill", gdn_prefill(ctx, &p), GDN_OK);
    call_all(ctx, &s);
    for (int b = 1; b < 4; b++) {
        const gdn_tensor left = ring2_narrow(b == 2 ? &s.state : &before, 0, b, 1);
        gdn_tensor want = ring2_clone(&left);
        gdn_tensor its = ring2_narrow(&s.state_out, 0, b, 1);
        gdn_tensor of_prefill = ring2_narrow(&p.state_out, 0, b, 1);
        ring2_expect_bits("stages", &its, &want);
        ring2_expect_bits("prefill", &of_prefill, &want);
    }
}

/* G7: a gate of -inf in a chunk, NaN in the state and the values before it; G8: NaN in v where
 * beta is 0. Behind the gate all is as if the sequence began there. */
static void G7_G8_forgets(void)
{
    for (int C = 16; C <= 64; C *= 2)
        for (int f = 1; f < C; f += 13) {
            struct stages s;
            make_stages(&s, 9, C, true); /* gates of kind 0 */
            if (!s.g.data) ring2_fail("no gates");
            ring2_fill_value(&s.state, (double)NAN);
            for (int b = 0; b < 4; b++)
                for (int64_t t = 0; t < s.T[b]; t++)
                    for (int h = 0; h < s.H; h++) {
                        const int64_t e = (s.first[b] + t) * s.H + h;
                        if (t == f) ring2_set(&s.g, e, -(double)INFINITY);
                        if (ring2_get(&s.beta, e) == 0 || t < f)
                            for (int j = 0; j < s.V; j++)
                                ring2_set(&s.v,
                                          (s.first[b] + t) * s.Hv * s.V +
                                              source(&s, h, s.Hv) * s.V + j,
                                          t < f ? (double)NAN : 0.25);
                    }
            call_all(ring2_ctx(2), &s);
            for (int b = 0; b < 4; b++) {
                if (s.T[b] <= f) continue;
                for (int64_t i = s.first[b] + f; i < s.first[b] + s.T[b]; i++)
                    for (int j = 0; j < s.H * s.V; j++)
                        CHECK(isfinite(ring2_get(&s.out, i * s.H * s.V + j)), "out[%d] at gate %d",
                              (int)i, f);
                for (int i = 0; i < s.H * s.K * s.V; i++)
                    CHECK(isfinite(ring2_get(&s.state_out, b * s.H * s.K * s.V + i)), "state");
            }
        }
}

/* Sets one number in token `at` of an input to a value that is not finite. */
static void poison(struct stages *s, int which, int64_t at, double bad)
{
    gdn_tensor *const inputs[] = { &s->q, &s->k, &s->v, &s->g, &s->beta };
    gdn_tensor *x = inputs[which];
    *x = ring2_clone(x);
    ring2_set(x, at * (ring2_count(x) / s->N), bad);
}

/* Token `at` of sequence b has a bad number, and all heads forget at `forgets` in the same
 * chunk. Only tokens between both may change. */
static void forgets_what_is_bad(struct stages *s, int b, int which, int64_t at, int64_t forgets,
                                double bad)
{
    const int64_t token = s->first[b] + at;
    for (int h = 0; h < s->H; h++) {
        ring2_set(&s->beta, token * s->H + h, 0.5);
        ring2_set(&s->g, (s->first[b] + forgets) * s->H + h, -(double)INFINITY);
    }
    struct stages spoiled = fresh(s);
    poison(&spoiled, which, token, bad);
    call_all(ring2_ctx(2), s), call_all(ring2_ctx(2), &spoiled);

    const gdn_tensor its = ring2_narrow(&spoiled.out, 0, token, 1);
    bool seen = false;
    for (int64_t i = 0; i < ring2_count(&its); i++) seen = seen || !isfinite(ring2_get(&its, i));
    CHECK(seen, "not in the output of its token");
    const gdn_tensor *clean[] = { &s->u, &s->w, &s->t, &s->out };
    const gdn_tensor *rows_of[] = { &spoiled.u, &spoiled.w, &spoiled.t, &spoiled.out };
    for (int i = 0; i < 4; i++) {
        const gdn_tensor from = ring2_narrow(clean[i], 0, token, forgets - at);
        const gdn_tensor to = ring2_narrow(rows_of[i], 0, token, forgets - at);
        ring2_copy(&to, &from);
    }
    expect_same("behind the gate", &spoiled, s);
}

static void G7_not_finite(void)
{
    static const int64_t tokens[][2] = { { 3, 10 },  { 0, 15 },  { 15, 16 }, { 3, 20 },
                                         { 14, 33 }, { 35, 40 }, { 10, 63 } };
    static const int numbers[][2] = { { 21, 2 }, { 24, 2 }, { 8, 1 } }; /* a long sequence */
    static const double bad[] = { (double)NAN, (double)INFINITY };
    for (int C = 16; C <= 64; C *= 2)
        for (int i = 0; i < 7 * 5 && !ring2_failed(); i++) {
            const int64_t *t = tokens[i / 5];
            const int *n = numbers[i % 3];
            struct stages s;
            if (t[1] >= C) break;
            make_stages(&s, n[0], C, true);
            forgets_what_is_bad(&s, n[1], i % 5, t[0], t[1], bad[i % 2]);
            ring2_free();
        }
}

static void G8_beta_zero(void)
{
    struct stages s, clean;
    make_stages(&s, 10, 32, true);
    clean = fresh(&s);
    for (int64_t i = 0; i < ring2_count(&s.beta); i++) ring2_set(&s.beta, i, i % 3 / 2.0);
    for (int64_t t = 0; t < s.N; t++) /* heads that share a v: all have beta 0 or none */
        for (int h = 0; h < s.H; h++) ring2_set(&s.beta, t * s.H + h, t % 3 ? 0.5 : 0);
    clean.v = ring2_clone(&s.v);
    for (int64_t i = 0; i < ring2_count(&s.v); i++)
        if (i / (s.Hv * s.V) % 3 == 0) ring2_set(&s.v, i, (double)NAN);
    call_all(ring2_ctx(2), &s), call_all(ring2_ctx(2), &clean);
    expect_same("beta 0", &s, &clean);
}

/* ---- Refusals ---- */

static struct stages spoilt;
static gdn_tensor sums;

static gdn_chunk_cumsum_args chunk_cumsum(void)
{
    make_stages(&spoilt, 1, 16, true);
    sums = rows(&spoilt, GDN_F32, spoilt.H, 0);
    return cumsum_args(&spoilt, &sums, 16);
}
static gdn_chunk_uw_args chunk_uw(void)
{
    make_stages(&spoilt, 1, 16, true);
    return uw_args(&spoilt);
}
static gdn_chunk_states_args chunk_states(void)
{
    make_stages(&spoilt, 1, 16, true);
    return states_args(&spoilt);
}
static gdn_chunk_output_args chunk_output(void)
{
    make_stages(&spoilt, 1, 16, true);
    return output_args(&spoilt);
}

#define REFUSE_SEEN(seen, op, make, what, want, needle, ...)    \
    do {                                                        \
        if (!ring2_begin("G1 " #make ": %s", what)) break;      \
        gdn_##make##_args args = make(), *a = &args;            \
        __VA_ARGS__;                                            \
        ring2_refused(ring2_ctx(2), op, a, seen, want, needle); \
        ring2_end();                                            \
    } while (0)
/* The refusals of every stage; heads: a tensor [N][H][..] of it. */
#define REFUSE_ALL(op, make, heads)                                                           \
    do {                                                                                      \
        gdn_batch *t = &spoilt.batch;                                                         \
        REFUSE_SEEN(RING2_STRUCT, op, make, "struct_size", GDN_E_ARG, "struct_size",          \
                    a->struct_size = 0);                                                      \
        REFUSE_SEEN(RING2_STRUCT, op, make, "flags", GDN_E_ARG, "flags", a->flags = 1);       \
        REFUSE_SEEN(RING2_STRUCT, op, make, #heads " of I32", GDN_E_DTYPE, #heads,            \
                    a->heads.dtype = GDN_I32);                                                \
        REFUSE_SEEN(RING2_STRUCT, op, make, #heads " of fewer tokens", GDN_E_SHAPE, "wanted", \
                    a->heads.size[0]--);                                                      \
        REFUSE_SEEN(RING2_STRUCT, op, make, "read_slots", GDN_E_ARG, "read_slots",            \
                    t->read_slots = ring2_indices(GDN_I32, 4, (int64_t[]){ 0, 1, 2, 3 }));    \
        REFUSE_SEEN(RING2_STRUCT, op, make, "write", GDN_E_ARG, "write", t->write = 2);       \
        REFUSE_SEEN(RING2_CONTENTS, op, make, "cu_seqlens", GDN_E_ARG, "cu_seqlens",          \
                    ring2_set(&t->cu_seqlens, 4, 1e6));                                       \
        REFUSE_SEEN(RING2_WORKSPACE, op, make, "workspace", GDN_E_MEMORY, "workspace_bytes",  \
                    a->workspace = ring2_alloc(64, 64);                                       \
                    a->workspace_bytes = 64);                                                 \
    } while (0)

static void refusals(void)
{
    REFUSE_ALL(GDN_OP_CHUNK_CUMSUM, chunk_cumsum, g);
    REFUSE_ALL(GDN_OP_CHUNK_UW, chunk_uw, k);
    REFUSE_ALL(GDN_OP_CHUNK_STATES, chunk_states, w);
    REFUSE_ALL(GDN_OP_CHUNK_OUTPUT, chunk_output, w);
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_CUMSUM, chunk_cumsum, __VA_ARGS__)
    REFUSE("g absent", GDN_E_ARG, "g", a->g.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("chunk_size 0", GDN_E_ARG, "chunk_size", a->chunk_size = 0);
    REFUSE("scale", GDN_E_ARG, "scale", a->scale = INFINITY);
    REFUSE("out beside g", GDN_E_ARG, "overlaps", a->out.data = (char *)a->g.data + 4);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_UW, chunk_uw, __VA_ARGS__)
    REFUSE("chunk_size 48", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 48);
    REFUSE("head_map", GDN_E_ARG, "head_map", a->head_map = 2);
    REFUSE("k absent", GDN_E_ARG, "k", a->k.data = NULL);
    REFUSE("v absent", GDN_E_ARG, "v", a->v.data = NULL);
    REFUSE("nothing wanted", GDN_E_ARG, "u", a->u.data = a->v.data = a->w.data = a->T.data = NULL);
    REFUSE("T of another C", GDN_E_SHAPE, "T", a->T.size[2] = 15);
    REFUSE("w of another K", GDN_E_SHAPE, "w", a->w.size[2]++);
    REFUSE("v of 3 heads", GDN_E_SHAPE, "v", a->v.size[1] = 3);
    REFUSE("u on v", GDN_E_ARG, "overlaps", a->u = a->v);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_STATES, chunk_states, __VA_ARGS__)
    REFUSE("chunk_size 0", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 0);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("state_layout", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("u absent", GDN_E_ARG, "u", a->u.data = NULL);
    REFUSE("w absent", GDN_E_ARG, "w", a->w.data = NULL);
    REFUSE("nothing wanted", GDN_E_ARG, "states", a->states.data = a->state_out.data = NULL);
    REFUSE("state of fewer sequences", GDN_E_SHAPE, "state", a->state.size[0]--);
    REFUSE("states on state", GDN_E_ARG, "overlaps", a->states.data = a->state.data);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_CHUNK_STATES, chunk_states, "too few states", GDN_E_SHAPE,
                "states", a->states.size[0] = spoilt.NC - 1);
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CHUNK_OUTPUT, chunk_output, __VA_ARGS__)
    REFUSE("chunk_size 8", GDN_E_UNSUPPORTED, "chunk_size", a->chunk_size = 8);
    REFUSE("scale", GDN_E_ARG, "scale", a->scale = NAN);
    REFUSE("q absent", GDN_E_ARG, "q", a->q.data = NULL);
    REFUSE("states absent", GDN_E_ARG, "states", a->states.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("q of 3 heads", GDN_E_SHAPE, "q", a->q.size[1] = 3);
    REFUSE("out on u", GDN_E_ARG, "overlaps", a->out = a->u);
    REFUSE("too few states of one sequence", GDN_E_SHAPE, "states", a->batch = NULL,
           a->states.size[0] = 1);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_CHUNK_OUTPUT, chunk_output, "too few states", GDN_E_SHAPE,
                "states", a->states.size[0] = spoilt.NC - 1);
#undef REFUSE
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "empty sequences", empty_sequences },
        { "G7 forgets", G7_G8_forgets },
        { "G7 not finite", G7_not_finite },
        { "G8 beta 0", G8_beta_zero },
    };
    ring2_options(argc, argv);
    refusals();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
