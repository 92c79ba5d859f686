/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of 8 bits (G21). The one idea: a call with such a state is the call with a float32 state
 * between two conversions, bit for bit, and the conversions are written here a second time, from
 * the words of gdn.h and docs/design/numerics.md. The rest are limits of one rounding, means over
 * seeds, a long decode beside float64, and what is refused.
 */
#include <math.h>
#include <string.h>

#include "gdn_blob.h"
#include "oracle.h"
#include "ring2_device.h"
#include "ring2_rule.h"

#ifndef TEST_V /* that of another program of one source (tests/CMakeLists.txt) */
#define TEST_V 40
#endif
enum { K = 20, V = TEST_V, SLOTS = 4 };
static const int heads[3] = { 2, 2, 4 };

/* A pool's content: a dtype, with scales or, floats alone, without. */
static const struct kind {
    int32_t dtype;
    bool    plain;
} kinds[] = { { GDN_I8, false }, { GDN_E4M3, false }, { GDN_E5M2, false },
              { GDN_E4M3, true }, { GDN_E5M2, true } }, wide_kind = { GDN_F32, true };
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_SCALED = 3 };

/* A dtype in numbers: bits of the mantissa, the exponent of the smallest normal number, the largest
 * code that is a number, bits that random rounding looks at, the largest value. */
static const struct {
    int   mantissa, least, most, random;
    float largest;
} formats[] = {
    [GDN_I8] = { 0, 0, 127, 24, 127 },
    [GDN_E4M3] = { 3, -6, 126, 20, 448 },
    [GDN_E5M2] = { 2, -14, 123, 21, 57344 },
};

/* ---- The conversions once more -------------------------------------------------------------- */

static double code_value(int32_t dtype, uint8_t c)
{
    const int bits = formats[dtype].mantissa, least = formats[dtype].least;
    const int most = formats[dtype].most, m = c & ((1 << bits) - 1), e = (c & 127) >> bits;
    if (dtype == GDN_I8) return (int8_t)c;
    if ((c & 127) > most)
        return dtype == GDN_E5M2 && m == 0 ? (double)(c & 128 ? -INFINITY : INFINITY) : (double)NAN;
    return (c & 128 ? -1 : 1) *
           (e ? ldexp((1 << bits) + m, least + e - 1 - bits) : ldexp(m, least - bits));
}

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Returns the random bits for element k of column v. */
static uint32_t draw(uint64_t seed, int64_t n, int64_t head, int64_t v, int64_t k)
{
    const uint64_t key = mix(mix(mix(seed + (uint64_t)n) + (uint64_t)head) + (uint64_t)v);
    uint32_t       x   = (uint32_t)(key >> 32) + (uint32_t)k * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
}

/* The greatest code at most |y|, of the codes that are not negative. */
static int code_below(int32_t dtype, double y)
{
    int c = 0;
    while (c < formats[dtype].most && code_value(dtype, (uint8_t)(c + 1)) <= y) c++;
    return c;
}

static uint8_t code_of(int32_t dtype, float y, const uint32_t *random)
{
    const double a    = fabs((double)y), all = ldexp(1, formats[dtype].random);
    const int    most = formats[dtype].most;
    if (isnan(y)) return 127;
    int          c   = code_below(dtype, a);
    const double low = code_value(dtype, (uint8_t)c);
    const double step = c < most ? code_value(dtype, (uint8_t)(c + 1)) - low : 1;
    const double part = c < most ? (a - low) / step : 0;
    if (random && dtype == GDN_I8) {
        const double fixed = trunc(fmax(-127, fmin(127, (double)y)) * 0x1p24);
        return (uint8_t)(int)floor((fixed + (*random >> 8)) * 0x1p-24);
    }
    if (random) c += floor(part * all) + (*random >> (32 - formats[dtype].random)) >= all;
    else c += part > 0.5 || (part == 0.5 && c % 2);
    if (dtype == GDN_I8) return (uint8_t)(y < 0 ? -c : c);
    return (uint8_t)(c | (signbit(y) ? 128 : 0));
}

/* A pool and its scales, if it has some. */
struct pool {
    gdn_tensor t, scales;
};

static int64_t slots_of(const struct pool *p) { return p->t.size[0]; }

/* Element (slot, head, v, k). */
static void *element(const struct pool *p, int layout, int64_t s, int64_t h, int64_t v, int64_t k)
{
    const int64_t *d = p->t.stride;
    const int64_t  at = s * d[0] + h * d[1] + (layout == GDN_STATE_VK ? v * d[2] + k * d[3]
                                                                      : k * d[2] + v * d[3]);
    return (char *)p->t.data + at * (int64_t)gdn_dtype_bytes(p->t.dtype);
}

/* NULL: the pool has no scales. */
static float *scale_at(const struct pool *p, int64_t s, int64_t h, int64_t v)
{
    if (!p->scales.data) return NULL;
    return (float *)p->scales.data + s * p->scales.stride[0] + h * p->scales.stride[1] + v;
}

static float scale_of(const struct pool *p, int64_t s, int64_t h, int64_t v)
{
    return p->scales.data ? *scale_at(p, s, h, v) : 1;
}

static gdn_tensor none(void)
{
    gdn_tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

static struct pool make_kind(struct kind kind, int layout, int64_t P)
{
    const bool  vk = layout == GDN_STATE_VK;
    struct pool p  = { ring2_new(kind.dtype, 3, 4, P, 4, vk ? V : K, vk ? K : V), none() };
    if (!kind.plain) p.scales = ring2_new(GDN_F32, 2, 3, P, 4, V, 0);
    return p;
}

static struct pool make_wide(int layout, int64_t P) { return make_kind(wide_kind, layout, P); }

static struct pool slot_of(const struct pool *p, int64_t slot)
{
    struct pool one = { ring2_narrow(&p->t, 0, slot, 1), none() };
    if (p->scales.data) one.scales = ring2_narrow(&p->scales, 0, slot, 1);
    return one;
}

#define FOR_COLUMNS(P, s, h, v)                    \
    for (int64_t s = 0; s < (P); s++)              \
        for (int64_t h = 0; h < 4; h++)            \
            for (int64_t v = 0; v < V; v++)

/* Numbers alone. Without scales they are up to 1, so that a state stays away from its largest. */
static void fill_eight(const struct pool *p, int layout)
{
    const int32_t dtype = p->t.dtype;
    FOR_COLUMNS(slots_of(p), s, h, v) {
        if (p->scales.data)
            *scale_at(p, s, h, v) = ring2_below(9) == 0 ? 0
                                                        : (float)ring2_uniform(0.127, 2.54) /
                                                              formats[dtype].largest;
        for (int64_t k = 0; k < K; k++) {
            uint8_t c = (uint8_t)ring2_bits();
            if ((c & 127) > formats[dtype].most ||
                (!p->scales.data && fabs(code_value(dtype, c)) > 1))
                c = 0;
            memcpy(element(p, layout, s, h, v, k), &c, 1);
        }
    }
}

/* Returns the values of an 8-bit pool, in float32. */
static struct pool widened(const struct pool *p, int layout)
{
    const struct pool to = make_wide(layout, slots_of(p));
    FOR_COLUMNS(slots_of(p), s, h, v)
        for (int64_t k = 0; k < K; k++) {
            const uint8_t c = *(uint8_t *)element(p, layout, s, h, v, k);
            const float   x = (float)code_value(p->t.dtype, c) * scale_of(p, s, h, v);
            memcpy(element(&to, layout, s, h, v, k), &x, sizeof x);
        }
    return to;
}

struct rounding {
    bool     random;
    uint64_t seed;
};

/* Stores column v of a float32 pool in an 8-bit one, n tokens from the start. */
static void round_column(const struct pool *to, const struct pool *from, int layout, int64_t s,
                         int64_t h, int64_t v, int64_t n, struct rounding rounding)
{
    const int32_t dtype = to->t.dtype;
    float         m = 0, x[K], scale, inverse = 1;
    bool          finite = true;
    for (int64_t k = 0; k < K; k++) {
        memcpy(&x[k], element(from, layout, s, h, v, k), sizeof *x);
        finite = finite && isfinite(x[k]);
        m      = fmaxf(m, fabsf(x[k]));
    }
    if (to->scales.data) {
        scale   = fmaxf(m / formats[dtype].largest, 0x1p-126f);
        inverse = !finite || m == 0 ? 0 : 1 / scale;
        *scale_at(to, s, h, v) = !finite ? NAN : m == 0 ? 0 : scale;
    }
    for (int64_t k = 0; k < K; k++) {
        const uint32_t r = draw(rounding.seed, n, h, v, k);
        const uint8_t  c = inverse == 0
                               ? 0
                               : code_of(dtype, x[k] * inverse, rounding.random ? &r : NULL);
        memcpy(element(to, layout, s, h, v, k), &c, 1);
    }
}

static void round_slot(const struct pool *to, const struct pool *from, int layout, int64_t s,
                       int64_t n, struct rounding rounding)
{
    for (int64_t h = 0; h < 4; h++)
        for (int64_t v = 0; v < V; v++) round_column(to, from, layout, s, h, v, n, rounding);
}

static struct pool cloned(const struct pool *p)
{
    struct pool c = { ring2_clone(&p->t), none() };
    if (p->scales.data) c.scales = ring2_clone(&p->scales);
    return c;
}

/* Bits of codes; values of scales, NaN for NaN. */
static void expect_pool(const char *what, const struct pool *got, const struct pool *want)
{
    ring2_expect_bits(what, &got->t, &want->t);
    for (int64_t i = 0; want->scales.data && i < ring2_count(&want->scales); i++) {
        const double g = ring2_get(&got->scales, i), w = ring2_get(&want->scales, i);
        if (isnan(w) ? isnan(g) : g == w) continue;
        ring2_fail("%s: scale %lld is %.9g, expected %.9g", what, (long long)i, g, w);
        return;
    }
}

static void may_write(const struct pool *p, int64_t slot)
{
    const struct pool one = slot_of(p, slot);
    ring2_may_write(&one.t);
    if (one.scales.data) ring2_may_write(&one.scales);
}

/* ---- One call between two conversions ------------------------------------------------------- */

enum { IN_PLACE, SEPARATE, EACH, CHECKPOINTS, TREE, FROZEN, N_WRITES };
enum { DRAWN, NO_G, G_ZERO, BETA_ZERO, ONE_TOKEN, N_GATES };
enum { B = 3, EVERY = 7 };
static const int64_t lengths[2][B] = { { 5, 8, 1 }, { 33, 0, 50 } };

/* The same call twice: with 8-bit pools, and with float32 ones. */
struct twin {
    gdn_rule_args eight, wide;
    gdn_batch     batch;
    int64_t       length[B], cu[B + 1];
    struct pool   from, to, left; /* of 8 bits */
    struct pool   wide_from, wide_to, wide_left;
    struct rounding rounding;
    int           layout, write, gates;
};

static void make_batch(struct twin *t)
{
    static const int64_t parents[B * 8] = { -1, 0, 1, 1, 0, 4, 2, 3,  -1, 0, 0, 1, 2, 3, 4, 5,
                                            -1, -1, 0, 1, 0, 2, 2, 6 };
    int64_t write[B * 64], slot = 1;
    t->batch = gdn_batch_init();
    for (int b = 0; b < B; b++) t->cu[b + 1] = t->cu[b] + t->length[b];
    t->batch.cu_seqlens = ring2_indices(GDN_I64, B + 1, t->cu);
    if (t->write == FROZEN) t->batch.write = GDN_WRITE_NONE;
    if (t->write == CHECKPOINTS) t->batch.checkpoint_every = EVERY;
    if (t->write == TREE) {
        t->batch.parents = ring2_new(GDN_I32, 0, 2, B, 8, 0, 0);
        for (int64_t i = 0; i < B * 8; i++) ring2_set(&t->batch.parents, i, (double)parents[i]);
    }
    if (t->write != EACH && t->write != TREE) return;
    t->batch.write       = GDN_WRITE_EACH;
    t->batch.write_slots = ring2_new(GDN_I64, 0, 2, B, 64, 0, 0);
    for (int64_t i = 0; i < B * 64; i++)
        write[i] = i % 64 < t->length[i / 64] && i % 3 ? slot++ : -1;
    for (int64_t i = 0; i < B * 64; i++) ring2_set(&t->batch.write_slots, i, (double)write[i]);
}

/* With ONE_TOKEN one token of a sequence writes: the last, or where states on the way are stored
 * the first. */
static void set_gates(struct twin *t)
{
    gdn_rule_args *a = &t->eight;
    if (t->gates == NO_G) a->g.data = NULL;
    if (t->gates == G_ZERO || t->gates == ONE_TOKEN) ring2_fill_value(&a->g, 0);
    if (t->gates == BETA_ZERO || t->gates == ONE_TOKEN) ring2_fill_value(&a->beta, 0);
    for (int b = 0; b < B && t->gates == ONE_TOKEN; b++) {
        const bool    last = t->write == IN_PLACE || t->write == SEPARATE;
        const int64_t at   = last ? t->cu[b + 1] - 1 : t->cu[b];
        for (int h = 0; h < heads[2] && t->length[b]; h++) ring2_set(&a->beta, at * 4 + h, 0.5);
    }
}

static void make_twin(struct twin *t, struct kind kind, struct kind other)
{
    const bool each = t->write == EACH || t->write == TREE;
    make_batch(t);
    t->eight = ring2_rule_args(GDN_F32, GDN_F32, t->cu[B], 0, heads, K, V);
    t->eight.batch        = &t->batch;
    t->eight.state_layout = t->layout;
    t->eight.rounding     = t->rounding.random;
    t->eight.seed         = t->rounding.seed;
    set_gates(t);
    t->from = make_kind(kind, t->layout, SLOTS);
    fill_eight(&t->from, t->layout);
    t->wide_from = widened(&t->from, t->layout);
    t->to = t->wide_to = (struct pool){ none(), none() };
    t->left = t->wide_left = t->to;
    if (t->write == SEPARATE || each) {
        t->to      = make_kind(other, t->layout, each ? 1 + t->cu[B] : SLOTS);
        t->wide_to = make_wide(t->layout, each ? 1 + t->cu[B] : SLOTS);
    }
    if (t->write == CHECKPOINTS) {
        t->left      = make_kind(other, t->layout, 1 + t->cu[B] / EVERY);
        t->wide_left = make_wide(t->layout, 1 + t->cu[B] / EVERY);
    }
    t->wide            = ring2_rule_clone(&t->eight);
    t->eight.state     = t->from.t, t->eight.state_scales = t->from.scales;
    t->eight.state_out = t->to.t, t->eight.state_out_scales = t->to.scales;
    t->eight.checkpoints = t->left.t, t->eight.checkpoint_scales = t->left.scales;
    t->wide.state = t->wide_from.t, t->wide.state_out = t->wide_to.t;
    t->wide.checkpoints = t->wide_left.t;
}

/* One state that is stored: from a slot of a float32 pool to the same one of an 8-bit pool. */
struct stored {
    const struct pool *to, *wide;
    int64_t            slot, n;
};

static int find_stored(const struct twin *t, struct stored *s)
{
    const bool in_place = t->write == IN_PLACE || t->write == CHECKPOINTS;
    int        n        = 0;
    int64_t    c        = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t T = t->length[b];
        if (T && in_place) s[n++] = (struct stored){ &t->from, &t->wide_from, b, T };
        if (T && t->write == SEPARATE) s[n++] = (struct stored){ &t->to, &t->wide_to, b, T };
        for (int64_t i = 0; i < T && (t->write == EACH || t->write == TREE); i++) {
            const int64_t slot = (int64_t)ring2_get(&t->batch.write_slots, b * 64 + i);
            if (slot >= 0) s[n++] = (struct stored){ &t->to, &t->wide_to, slot, i + 1 };
        }
        for (int64_t i = EVERY; i <= T && t->write == CHECKPOINTS; i += EVERY)
            s[n++] = (struct stored){ &t->left, &t->wide_left, c++, i };
    }
    return n;
}

static void expect_stored(const struct twin *t, const struct stored *s)
{
    const struct pool got = slot_of(s->to, s->slot), wide = slot_of(s->wide, s->slot);
    const struct pool want = cloned(&got);
    round_slot(&want, &wide, t->layout, 0, s->n, t->rounding);
    expect_pool("a stored state", &got, &want);
}

static void run_twin(struct twin *t, gdn_ctx *ctx, bool decode)
{
    struct stored stored[B * 64];
    const int     n = find_stored(t, stored);
    ring2_status(ctx, "float32", ring2_rule_call(ctx, &t->wide, decode), GDN_OK);
    ring2_status(ctx, "supported",
                 gdn_supported(ctx, decode ? GDN_OP_DECODE : GDN_OP_PREFILL, &t->eight), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&t->eight.out);
    for (int i = 0; i < n; i++) may_write(stored[i].to, stored[i].slot);
    ring2_status(ctx, "8 bits", ring2_rule_call(ctx, &t->eight, decode), GDN_OK);
    ring2_call_end();
    ring2_expect_bits("out", &t->eight.out, &t->wide.out);
    for (int i = 0; i < n; i++) expect_stored(t, &stored[i]);
}

static void G21_float32_between_conversions(void)
{
    for (int i = 0; i < 2 * 2 * 2 * 2 * 2 * N_WRITES; i++) {
        struct twin   t      = { .layout = i / 2 % 2, .write = i / 32 };
        const bool    decode = i / 4 % 2, is_long = i / 8 % 2;
        const struct kind kind = kinds[i % N_KINDS], other = kinds[i / 3 % N_KINDS];
        t.rounding = (struct rounding){ i / 16 % 2, ring2_bits() };
        if ((!decode && (t.write == EACH || t.write == TREE)) || (t.write == TREE && is_long))
            continue;
        if (!ring2_begin("G21 float32 between two conversions, %03d", i)) continue;
        memcpy(t.length, lengths[is_long], sizeof t.length);
        make_twin(&t, kind, other);
        run_twin(&t, ring2_ctx(1 + i % 3), decode);
        ring2_end();
    }
}

/* A state that decays or is written is rounded, even if its dtype stays. */
static void G21_half_of_what_keeps_a_state(void)
{
    for (int i = 0; i < (N_GATES - 1) * 2 * 3 * FROZEN; i++) {
        struct twin   t      = { .gates = 1 + i % (N_GATES - 1), .write = i / (N_GATES - 1) / 6 };
        const bool    decode = i / (N_GATES - 1) % 2;
        const struct kind kind = kinds[(i / (N_GATES - 1) / 2 + i) % N_KINDS];
        if (!decode && (t.write == EACH || t.write == TREE)) continue;
        if (!ring2_begin("G21 half of what keeps a state, %02d", i)) continue;
        t.layout   = (int)ring2_below(2);
        t.rounding = (struct rounding){ ring2_below(2), ring2_bits() };
        memcpy(t.length, lengths[t.write != TREE && (!decode || ring2_below(2))], sizeof t.length);
        make_twin(&t, kind, kind);
        run_twin(&t, ring2_ctx(1 + i % 3), decode);
        ring2_end();
    }
}

/* ---- GDN_EXACT: rounded after every token --------------------------------------------------- */

/* Tokens [first, first + n) of sequence 0 of packed tensors, from and to slot 0. */
static gdn_rule_args part_of(const gdn_rule_args *a, int64_t first, int64_t n)
{
    static gdn_batch batch;
    gdn_rule_args    p     = ring2_rule_slice(a, first, n);
    const int64_t    cu[2] = { 0, n };
    batch            = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 2, cu);
    p.batch          = &batch;
    p.seed           = a->seed + (uint64_t)first;
    return p;
}

/* Some tokens of SOME_STAY change nothing (G9); those of SOME_HALF write, or decay. */
enum { ALL_DRAWN, SOME_STAY, SOME_HALF, WITHOUT_G, N_EXACT_GATES };
enum { STAY_FROM = 5, STAY_TO = 20 };

static void set_exact_gates(gdn_rule_args *a, int gates)
{
    for (int64_t i = STAY_FROM * 4; i < STAY_TO * 4; i++) {
        if (gates == SOME_STAY || (gates == SOME_HALF && i % 3)) ring2_set(&a->g, i, 0);
        if (gates == SOME_STAY || (gates == SOME_HALF && i % 3 == 0)) ring2_set(&a->beta, i, 0);
    }
    if (gates == WITHOUT_G) a->g.data = NULL;
}

static void G21_exact_calls_of_any_length(void)
{
    enum { T = 37 };
    static const int64_t cuts[3][6] = { { 37 }, { 1, 20, 3, 13 }, { 12, 1, 24 } };
    for (int i = 0; i < 8 * N_EXACT_GATES; i++) {
        const int     layout = i / 2 % 2, gates = i / 8;
        gdn_rule_args one    = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
        struct pool   start = make_kind(kinds[i % N_KINDS], layout, 1), state = start;
        fill_eight(&start, layout);
        one.state_layout = layout, one.rounding = i / 4 % 2, one.seed = 77 + (uint64_t)i;
        one.flags = GDN_EXACT;
        set_exact_gates(&one, gates);
        /* One by one, each a float32 call between two conversions. */
        const gdn_rule_args want = ring2_rule_clone(&one);
        state = cloned(&start);
        for (int64_t t = 0; t < T; t++) {
            const struct pool   wide = widened(&state, layout);
            gdn_rule_args       a    = part_of(&want, t, 1);
            const struct rounding rounding = { one.rounding, one.seed + (uint64_t)t };
            a.state = wide.t;
            ring2_status(ring2_ctx(1), "token", gdn_decode(ring2_ctx(1), &a), GDN_OK);
            if (gates != SOME_STAY || t < STAY_FROM || t >= STAY_TO)
                round_slot(&state, &wide, layout, 0, 1, rounding);
        }
        for (int j = 0; j < 6; j++) {
            const gdn_rule_args got = ring2_rule_clone(&one);
            const struct pool   p   = cloned(&start);
            for (int64_t t = 0, c = 0; t < T; t += cuts[j / 2][c++]) {
                gdn_rule_args a = part_of(&got, t, cuts[j / 2][c]);
                a.state = p.t, a.state_scales = p.scales;
                ring2_status(ring2_ctx(2), "part", ring2_rule_call(ring2_ctx(2), &a, j % 2),
                             GDN_OK);
            }
            ring2_expect_bits("out", &got.out, &want.out);
            expect_pool("state", &p, &state);
        }
        ring2_free();
        if (!ring2_failed()) continue;
        ring2_fail("case %d", i);
        return;
    }
}

/* ---- One rounding --------------------------------------------------------------------------- */

static gdn_state_copy_args copy_args(const struct pool *from, int from_layout,
                                     const struct pool *to, int to_layout, struct rounding r)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = from->t, a.from_scales = from->scales, a.from_layout = from_layout;
    a.to_pool = to->t, a.to_scales = to->scales, a.to_layout = to_layout;
    a.rounding = r.random, a.seed = r.seed;
    return a;
}

static void copy(const struct pool *from, int from_layout, const struct pool *to, int to_layout,
                 struct rounding r)
{
    const gdn_state_copy_args a = copy_args(from, from_layout, to, to_layout, r);
    ring2_status(ring2_ctx(2), "copy", gdn_state_copy(ring2_ctx(2), &a), GDN_OK);
}

static struct pool random_wide(int layout, int64_t P)
{
    const struct pool p = make_wide(layout, P);
    FOR_COLUMNS(P, s, h, v) {
        const double size = ldexp(1, (int)ring2_below(60) - 30);
        for (int64_t k = 0; k < K; k++) {
            const float x = (float)(ring2_uniform(-size, size) * ring2_uniform(0, 1));
            memcpy(element(&p, layout, s, h, v, k), &x, sizeof x);
        }
    }
    return p;
}

/*
 * Half a step to nearest, a step at random; a step is the scale (I8), or the scale x 2^(e - 3) for
 * y in [2^e, 2^(e+1)), e at least -6 (E4M3; E5M2: 2^(e - 2), -14). The roundings of 1 / scale, of y
 * and of the product add 3 x 2^-24 of the element.
 */
static double limit_of(int32_t dtype, double x, double scale, bool random)
{
    const double y = fabs(x) / scale;
    const int    e = y >= ldexp(1, formats[dtype].least) ? ilogb(y) : formats[dtype].least;
    const double step = dtype == GDN_I8 ? 1 : ldexp(1, e - formats[dtype].mantissa);
    return (random ? 1 : 0.5) * step * scale * (1 + 0x1p-20) + 4 * 0x1p-24 * fabs(x);
}

static void one_rounding(void)
{
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const struct kind     kind = kinds[i % N_KINDS];
        const int             layout = i / N_KINDS % 2;
        const struct rounding r = { i / N_KINDS / 2, 99 };
        const struct pool     wide = random_wide(layout, 3), p = make_kind(kind, layout, 3);
        const double          largest = kind.plain ? (double)formats[kind.dtype].largest : INFINITY;
        copy(&wide, layout, &p, layout, r);
        const struct pool back = widened(&p, layout);
        FOR_COLUMNS(3, s, h, v)
            for (int64_t k = 0; k < K; k++) {
                const double z = (double)*(float *)element(&wide, layout, s, h, v, k);
                const double x = fmax(-largest, fmin(largest, z));
                const double y = (double)*(float *)element(&back, layout, s, h, v, k);
                const double scale = (double)scale_of(&p, s, h, v);
                const double most = limit_of(kind.dtype, x, scale, r.random);
                CHECK(fabs(y - x) <= most, "%g became %g, limit %g", x, y, most);
            }
    }
}

/*
 * The mean over N seeds of an element that is at a part f of a step: its variance is at most a
 * step^2 / 4 N, so 6 standard deviations are 3 steps / sqrt(N), passed by 2e-9 of the elements.
 * That of all elements of the pool, in units of a step, is closer by the root of their number.
 */
static void unbiased(void)
{
    enum { N = 1024 };
    for (int i = 0; i < N_SCALED; i++) {
        const int32_t     dtype = kinds[i].dtype;
        const struct pool wide = random_wide(0, 1), p = make_kind(kinds[i], 0, 1);
        double           *sum = ring2_heap(4 * V * K * sizeof *sum), all = 0;
        for (uint64_t seed = 0; seed < N; seed++) {
            copy(&wide, 0, &p, 0, (struct rounding){ true, 1000 + seed });
            for (int64_t j = 0; j < 4 * V * K; j++) {
                const int64_t h = j / (V * K), v = j / K % V, k = j % K;
                const uint8_t c = *(uint8_t *)element(&p, 0, 0, h, v, k);
                const double  x = (double)*(float *)element(&wide, 0, 0, h, v, k);
                const double  scale = (double)*scale_at(&p, 0, h, v);
                sum[j] += (code_value(dtype, c) * scale - x) / limit_of(dtype, x, scale, true);
            }
        }
        for (int64_t j = 0; j < 4 * V * K; j++) {
            CHECK(fabs(sum[j] / N) <= 3 / sqrt(N), "element %lld is off by %g steps in the mean",
                  (long long)j, sum[j] / N);
            all += sum[j] / N;
        }
        CHECK(fabs(all / (4 * V * K)) <= 3 / sqrt((double)N * 4 * V * K),
              "all are off by %g steps in the mean", all / (4 * V * K));
    }
}

/* ---- Conversions by gdn_state_copy ---------------------------------------------------------- */

static void G21_same_codes_whatever_the_layout(void)
{
    for (int i = 0; i < 8 * N_KINDS; i++) {
        const int             fl = i % 2, tl = i / 2 % 2;
        const struct kind     kind = kinds[i / 8];
        const struct rounding r = { i / 4 % 2, 5 };
        const struct pool     wide = random_wide(fl, 4), same = random_wide(tl, 4);
        const struct pool     got = make_kind(kind, tl, 4), want = make_kind(kind, tl, 4);
        copy(&wide, fl, &same, tl, r);
        ring2_call_begin();
        for (int64_t s = 0; s < 4; s++) may_write(&got, s);
        copy(&wide, fl, &got, tl, r);
        ring2_call_end();
        for (int64_t s = 0; s < 4; s++) round_slot(&want, &same, tl, s, 0, r);
        expect_pool("codes", &got, &want);
    }
}

/* Between 8-bit pools of different kinds: the values, rounded once. */
static void from_kind_to_kind(void)
{
    for (int i = 0; i < N_KINDS * N_KINDS; i++) {
        if (i / N_KINDS == i % N_KINDS) continue;
        const int             layout = i / 2 % 2;
        const struct rounding r = { i % 3 == 0, 8 };
        const struct pool     from = make_kind(kinds[i / N_KINDS], layout, 2);
        const struct pool     to = make_kind(kinds[i % N_KINDS], layout, 2), want = cloned(&to);
        fill_eight(&from, layout);
        const struct pool wide = widened(&from, layout);
        copy(&from, layout, &to, layout, r);
        for (int64_t s = 0; s < 2; s++) round_slot(&want, &wide, layout, s, 0, r);
        expect_pool("codes", &to, &want);
    }
}

/* All codes and any scales, NaN and negative ones too. */
static void G14_codes_and_scales_move(void)
{
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const int         fl = i % 2, tl = i / 2 % 2;
        const struct kind kind = kinds[i / 4];
        const struct pool from = make_kind(kind, fl, 4), to = make_kind(kind, tl, 4);
        FOR_COLUMNS(4, s, h, v) {
            const uint32_t bits = (uint32_t)ring2_bits();
            if (!kind.plain) memcpy(scale_at(&from, s, h, v), &bits, sizeof bits);
            for (int64_t k = 0; k < K; k++) {
                const uint8_t c = (uint8_t)ring2_bits();
                memcpy(element(&from, fl, s, h, v, k), &c, 1);
            }
        }
        copy(&from, fl, &to, tl, (struct rounding){ true, 3 });
        if (!kind.plain) ring2_expect_bits("scales", &to.scales, &from.scales);
        FOR_COLUMNS(4, s, h, v)
            for (int64_t k = 0; k < K; k++)
                if (*(uint8_t *)element(&from, fl, s, h, v, k) !=
                    *(uint8_t *)element(&to, tl, s, h, v, k))
                    ring2_fail("a code of column %lld changed", (long long)v);
    }
}

static void G14_to_float32(void)
{
    for (int i = 0; i < 2 * N_KINDS; i++) {
        const int         layout = i / N_KINDS;
        const struct pool from = make_kind(kinds[i % N_KINDS], layout, 3);
        const struct pool to = make_wide(layout, 3);
        fill_eight(&from, layout);
        const struct pool want = widened(&from, layout);
        copy(&from, layout, &to, layout, (struct rounding){ false, 0 });
        ring2_expect_bits("to_pool", &to.t, &want.t);
    }
}

static void fork_and_zero(void)
{
    static const int64_t from[3] = { 2, -1, 2 }, to[3] = { 0, 1, 3 };
    const struct pool    p = make_kind(kinds[1], 1, 4), want = make_kind(kinds[1], 1, 4);
    gdn_state_copy_args  a = copy_args(&p, 1, &p, 1, (struct rounding){ false, 0 });
    fill_eight(&p, 1);
    ring2_copy(&want.t, &p.t), ring2_copy(&want.scales, &p.scales);
    a.from_slots = ring2_indices(GDN_I32, 3, from), a.to_slots = ring2_indices(GDN_I32, 3, to);
    ring2_status(ring2_ctx(2), "copy", gdn_state_copy(ring2_ctx(2), &a), GDN_OK);
    for (int i = 0; i < 3; i++) {
        const gdn_tensor c = ring2_narrow(&want.t, 0, to[i], 1);
        const gdn_tensor s = ring2_narrow(&want.scales, 0, to[i], 1);
        const gdn_tensor old = ring2_narrow(&want.t, 0, 2, 1);
        const gdn_tensor old_s = ring2_narrow(&want.scales, 0, 2, 1);
        ring2_copy(&c, &old), ring2_copy(&s, &old_s);
        if (i != 1) continue;
        for (int64_t j = 0; j < ring2_count(&c); j++) memset(ring2_element(&c, j), 0, 1);
        ring2_fill_value(&s, 0);
    }
    expect_pool("pool", &p, &want);
}

/* ---- Selection ------------------------------------------------------------------------------ */

/* Returns true if all of a column is `as`, up to its sign, or NaN. */
static bool is_lost(const struct pool *wide, int layout, int64_t v, float as)
{
    for (int64_t k = 0; k < K; k++) {
        const float x = *(float *)element(wide, layout, 0, 0, v, k);
        if (isnan(as) ? !isnan(x) : !(isnan(x) || fabsf(x) == as)) return false;
    }
    return true;
}

/* A NaN or an infinity makes its column NaN, and a gate of -inf forgets it. Without scales a NaN is
 * a NaN, and an infinity is the largest value. */
static void G7_not_finite(void)
{
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const struct kind kind = kinds[i % N_KINDS];
        const int     layout = i / N_KINDS % 2;
        const bool    decode = i / N_KINDS / 2, is_nan = i % 2;
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 20, 0, heads, K, V);
        struct pool   p = make_kind(kind, layout, 1);
        fill_eight(&p, layout);
        a.state_layout = layout;
        ring2_set(&a.v, 19 * 4 * V + 3, is_nan ? (double)NAN : (double)INFINITY);
        gdn_rule_args first = part_of(&a, 0, 20);
        first.state = p.t, first.state_scales = p.scales;
        ring2_status(ring2_ctx(2), "call", ring2_rule_call(ring2_ctx(2), &first, decode), GDN_OK);
        const struct pool first_left = widened(&p, layout);
        const float       lost = kind.plain && !is_nan ? formats[kind.dtype].largest : NAN;
        for (int64_t v = 0; v < V; v++)
            CHECK(is_lost(&first_left, layout, v, lost) == (v == 3), "column %lld", (long long)v);
        ring2_set(&a.v, 19 * 4 * V + 3, 0);
        for (int64_t h = 0; h < 4; h++) ring2_set(&a.g, h, -(double)INFINITY);
        gdn_rule_args again = part_of(&a, 0, 20);
        again.state = p.t, again.state_scales = p.scales;
        ring2_status(ring2_ctx(2), "call", ring2_rule_call(ring2_ctx(2), &again, decode), GDN_OK);
        const struct pool left = widened(&p, layout);
        FOR_COLUMNS(1, s, h, v)
            for (int64_t k = 0; k < K; k++)
                CHECK(isfinite(*(float *)element(&left, layout, s, h, v, k)), "still not finite");
    }
}

/* No bit of codes and scales changes where no token changes the state, in place or copied; into a
 * pool of another kind it is converted. */
static void G9_codes_stay(void)
{
    static const int64_t tokens[] = { 1, 7, 40 };
    for (int i = 0; i < 3 * 12 * N_KINDS; i++) {
        const int     layout = i / 3 % 2, way = i / 12 % 3;
        const bool    decode = i / 6 % 2, separate = way > 0, converted = way > 1;
        const int     number = i / 36;
        const struct kind kind = kinds[number], other = kinds[(number + converted) % N_KINDS];
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, tokens[i % 3], 0, heads, K, V);
        struct pool   p = make_kind(kind, layout, 1), to = make_kind(other, layout, 1);
        fill_eight(&p, layout);
        if (!converted) memset(element(&p, layout, 0, 1, 2, 3), 0xfe - i % 3, 1); /* no number */
        const struct pool want = cloned(converted ? &to : &p), wide = widened(&p, layout);
        ring2_fill_value(&a.g, 0);
        ring2_fill_value(&a.beta, 0);
        a.state_layout = layout, a.rounding = GDN_ROUND_STOCHASTIC;
        if (converted)
            round_slot(&want, &wide, layout, 0, tokens[i % 3], (struct rounding){ true, a.seed });
        gdn_rule_args call = part_of(&a, 0, tokens[i % 3]);
        call.state = p.t, call.state_scales = p.scales;
        if (separate) call.state_out = to.t, call.state_out_scales = to.scales;
        ring2_status(ring2_ctx(2), "call", ring2_rule_call(ring2_ctx(2), &call, decode), GDN_OK);
        expect_pool("state", separate ? &to : &p, &want);
    }
}

/* Checkpoints of idle tokens, behind which others change the state where it is: what was read. */
static void G9_checkpoints_of_idle_tokens(void)
{
    enum { T = 80, IDLE = 48, EACH_16 = 16 };
    static const int64_t start = 0, slots[] = { 1, 2, 3, 4, 5 };
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const int         layout = i / N_KINDS % 2;
        const bool        decode = i / N_KINDS / 2;
        gdn_rule_args     a = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
        const struct pool p = make_kind(kinds[i % N_KINDS], layout, 6);
        fill_eight(&p, layout);
        const struct pool before = cloned(&p);
        for (int j = 0; j < 4 * IDLE; j++) ring2_set(&a.g, j, 0), ring2_set(&a.beta, j, 0);
        a.state_layout     = layout;
        gdn_rule_args call = part_of(&a, 0, T);
        gdn_batch     t    = *call.batch;
        call.state = call.checkpoints = p.t, call.state_scales = call.checkpoint_scales = p.scales;
        call.batch         = &t;
        t.checkpoint_every = EACH_16;
        t.read_slots       = ring2_indices(GDN_I32, 1, &start);
        t.checkpoint_slots = ring2_indices(GDN_I32, 5, slots);
        ring2_status(ring2_ctx(2), "call", ring2_rule_call(ring2_ctx(2), &call, decode), GDN_OK);
        const struct pool want = slot_of(&before, 0);
        for (int s = 1; s <= IDLE / EACH_16; s++) {
            const struct pool got = slot_of(&p, s);
            expect_pool("a checkpoint", &got, &want);
        }
    }
}

/* ---- A long decode -------------------------------------------------------------------------- */

/*
 * With alpha = a for all tokens, unit keys and beta in [0, 1] an error of a column shrinks by a at
 * least per token, and a rounding adds at most half a step (I8: half the scale) to each of K
 * elements. So a column is off by at most sqrt(K) / (2 (1 - a)) times its largest scale, in length.
 */
static void long_decode(void)
{
    enum { T = 400 };
    const double       a = 0.9;
    gdn_rule_args      args = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
    const struct pool  p = make_kind(kinds[0], 0, 1);
    float             *largest = ring2_heap(4 * V * sizeof *largest);
    ring2_fill_value(&args.g, log(a));
    for (int64_t i = 0; i < ring2_count(&p.t); i++) memset(ring2_element(&p.t, i), 0, 1);
    ring2_fill_value(&p.scales, 0);
    for (int64_t t = 0; t < T; t++) {
        gdn_rule_args one = part_of(&args, t, 1);
        one.state = p.t, one.state_scales = p.scales;
        ring2_status(ring2_ctx(1), "token", gdn_decode(ring2_ctx(1), &one), GDN_OK);
        for (int i = 0; i < 4 * V; i++)
            largest[i] = fmaxf(largest[i], *scale_at(&p, 0, i / V, i % V));
    }
    const gdn_rule_args wide = ring2_rule_clone(&args);
    struct ring2_rule   m;
    gdn_rule_args       model = part_of(&wide, 0, T);
    model.state = ring2_new(GDN_F32, 0, 4, 1, 4, V, K);
    ring2_fill_value(&model.state, 0);
    ring2_rule_model(&model, true, &m);
    for (int i = 0; i < 4 * V; i++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            const uint8_t c = *(uint8_t *)element(&p, 0, 0, i / V, i % V, k);
            const double  e = code_value(GDN_I8, c) * (double)*scale_at(&p, 0, i / V, i % V) -
                             m.state[i * K + k];
            sum += e * e;
        }
        const double most = sqrt(K) / (2 * (1 - a)) * (double)largest[i] * (1 + 1e-3);
        CHECK(sqrt(sum) <= most && sum > 0, "column %d is off by %g, limit %g", i, sqrt(sum), most);
    }
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Folding c rows is the float32 fold between two conversions, for n = c. */
static void G21_fold(void)
{
    enum { R = 6 };
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const int             layout = i / N_KINDS % 2;
        const struct rounding r = { i / N_KINDS / 2, 321 };
        const struct pool     p = make_kind(kinds[i % N_KINDS], layout, 2);
        gdn_record_fold_args  a = gdn_record_fold_args_init(), wide;
        fill_eight(&p, layout);
        a.record_k = ring2_new(GDN_F32, 0, 4, 2, R, 2, K);
        a.record_u = ring2_new(GDN_F32, 0, 4, 2, R, 4, V);
        a.record_g = ring2_new(GDN_F32, 0, 3, 2, R, 4, 0);
        ring2_fill(&a.record_k, -0.2, 0.2), ring2_fill(&a.record_u, -1, 1);
        ring2_fill(&a.record_g, 0.5, 1);
        a.state_layout = layout, a.rounding = r.random, a.seed = r.seed;
        wide = a;
        a.record_count    = ring2_indices(GDN_I32, 2, (const int64_t[]){ 4, 0 });
        wide.record_count = ring2_clone(&a.record_count);
        const struct pool from = widened(&p, layout), want = cloned(&p);
        a.state = p.t, a.state_scales = p.scales, wide.state = from.t;
        ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &a), GDN_OK);
        ring2_status(ring2_ctx(2), "float32", gdn_record_fold(ring2_ctx(2), &wide), GDN_OK);
        round_slot(&want, &from, layout, 0, 4, r);
        expect_pool("state", &p, &want);
    }
}

/* A token that changes nothing, behind a record: its checkpoint is the state with the record. */
static void G21_checkpoint_of_a_record(void)
{
    enum { R = 6 };
    static const int64_t three[] = { 3 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        const int            layout = i / N_KINDS;
        gdn_rule_args        a = ring2_rule_args(GDN_F32, GDN_F32, 1, 0, heads, K, V);
        gdn_record_fold_args f = gdn_record_fold_args_init();
        const struct pool    p = make_kind(kinds[i % N_KINDS], layout, 1);
        fill_eight(&p, layout);
        const struct pool got = cloned(&p), want = cloned(&p);
        ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
        gdn_rule_args call = part_of(&a, 0, 1);
        gdn_batch     t = *call.batch;
        t.write = GDN_WRITE_NONE, t.checkpoint_every = 1, call.batch = &t;
        call.record_k = ring2_new(GDN_F32, 0, 4, 1, R, 2, K);
        call.record_u = ring2_new(GDN_F32, 0, 4, 1, R, 4, V);
        call.record_g = ring2_new(GDN_F32, 0, 3, 1, R, 4, 0);
        ring2_fill(&call.record_k, -0.2, 0.2), ring2_fill(&call.record_u, -1, 1);
        ring2_fill(&call.record_g, 0.5, 1);
        call.record_count = ring2_indices(GDN_I32, 1, three);
        f.record_k = ring2_clone(&call.record_k), f.record_u = ring2_clone(&call.record_u);
        f.record_g = ring2_clone(&call.record_g), f.record_count = ring2_clone(&call.record_count);
        call.state = p.t, call.state_scales = p.scales;
        call.checkpoints = got.t, call.checkpoint_scales = got.scales;
        f.state = want.t, f.state_scales = want.scales;
        call.state_layout = f.state_layout = layout;
        ring2_status(ring2_ctx(2), "token", gdn_decode(ring2_ctx(2), &call), GDN_OK);
        ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &f), GDN_OK);
        expect_pool("the checkpoint", &got, &want);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------- */

static gdn_rule_args refusable(void)
{
    static const int64_t cu[2] = { 0, 20 };
    static gdn_batch     batch;
    gdn_rule_args        a = ring2_rule_args(GDN_F32, GDN_F32, 20, 0, heads, K, V);
    const struct pool    p = make_kind(kinds[0], 0, 2), q = make_kind(kinds[1], 0, 2);
    fill_eight(&p, 0);
    fill_eight(&q, 0);
    batch            = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 2, cu);
    a.batch          = &batch;
    a.state = p.t, a.state_scales = p.scales, a.state_out = q.t, a.state_out_scales = q.scales;
    return a;
}

#define REFUSE(what, want, needle, ...)                                                         \
    do {                                                                                        \
        if (!ring2_begin("G1 8 bits: %s", what)) break;                                         \
        gdn_rule_args a = refusable();                                                          \
        __VA_ARGS__;                                                                            \
        for (int i = 0; i < 2; i++)                                                             \
            ring2_refused(ring2_ctx(2), i ? GDN_OP_DECODE : GDN_OP_PREFILL, &a, RING2_STRUCT,   \
                          want, needle);                                                        \
        ring2_end();                                                                            \
    } while (0)

static void refuse_calls(void)
{
    REFUSE("no scales", GDN_E_ARG, "state_scales: absent, but state is GDN_I8",
           a.state_scales.data = NULL);
    REFUSE("no scales of state_out", GDN_E_ARG, "state_out_scales: absent",
           a.state_out.dtype = GDN_I8, a.state_out_scales.data = NULL);
    REFUSE("scales of a float state", GDN_E_ARG, "state_scales: given, but state is not of 8",
           a.state = ring2_new(GDN_F32, 0, 4, 2, 4, V, K));
    REFUSE("scales of no state", GDN_E_ARG, "state_scales: given, but state is absent",
           a.state.data = NULL);
    REFUSE("scales of no checkpoints", GDN_E_ARG, "checkpoint_scales: given, but checkpoints is",
           a.checkpoint_scales = ring2_clone(&a.state_scales));
    REFUSE("scales of bf16", GDN_E_DTYPE, "state_scales: GDN_BF16",
           a.state_scales.dtype = GDN_BF16);
    REFUSE("other heads", GDN_E_SHAPE, "state_scales", a.state_scales.size[1] = 3);
    REFUSE("other slots", GDN_E_SHAPE, "state_scales", a.state_scales.size[0] = 1);
    REFUSE("not dense", GDN_E_SHAPE, "state_scales", a.state_scales.stride[2] = 2);
    REFUSE("misaligned", GDN_E_ARG, "state_scales",
           a.state_scales.data = (char *)a.state_scales.data + 2);
    REFUSE("scales share memory", GDN_E_SHAPE, "state_out_scales",
           a.state_out_scales.stride[1] = 1);
    REFUSE("scales overlap scales", GDN_E_ARG, "state_out_scales: overlaps state_scales",
           a.state_out_scales = a.state_scales);
    REFUSE("scales overlap out", GDN_E_ARG, "state_out_scales",
           a.state_out_scales.data = a.out.data);
    REFUSE("one state, two scales", GDN_E_ARG, "state_out_scales: not state_scales, but state_out",
           a.state_out = a.state);
    REFUSE("one state, with scales and without", GDN_E_ARG, "state_out_scales: not state_scales",
           a.state_out = a.state = a.state_out, a.state_out_scales.data = NULL);
    REFUSE("q of i8", GDN_E_DTYPE, "q: GDN_I8", a.q.dtype = GDN_I8);
    REFUSE("rounding", GDN_E_ARG, "rounding: 2", a.rounding = 2);
}

static void refuse_others(void)
{
    const struct pool   p = make_kind(kinds[0], 0, 2), q = make_wide(0, 2);
    gdn_ctx            *ctx = ring2_ctx(1);
    gdn_state_copy_args a = copy_args(&p, 0, &q, 0, (struct rounding){ false, 0 }), b = a;
    gdn_conv1d_args     c = gdn_conv1d_args_init();
    gdn_blob_args       blob = gdn_blob_args_init();
    size_t              bytes;
    fill_eight(&p, 0);
    b.from_scales.data = NULL;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "from_scales: absent");
    b = a, b.to_scales = p.scales;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "to_scales: given");
    b = a, b.rounding = -1;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "rounding");
    b = a, b.from_pool = ring2_new(GDN_I8, 0, 3, 2, 5, 3, 0);
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_DTYPE, "from_pool: GDN_I8");
    c.x = ring2_new(GDN_F32, 0, 2, 4, 5, 0, 0), c.out = ring2_new(GDN_F32, 0, 2, 4, 5, 0, 0);
    c.weight = ring2_new(GDN_F32, 0, 2, 5, 4, 0, 0), c.state = ring2_new(GDN_I8, 0, 3, 1, 5, 3, 0);
    ring2_refused(ctx, GDN_OP_CONV1D, &c, RING2_STRUCT, GDN_E_DTYPE, "state: GDN_I8");
    blob.state = p.t, blob.n_key_heads = blob.n_value_heads = 4;
    blob.key_head_dim = K, blob.value_head_dim = V;
    if (ring2_on_device()) return; /* blobs are of the host's memory */
    CHECK(gdn_blob_bytes(ctx, &blob, &bytes) == GDN_E_ARG, "a blob without scales");
    CHECK(strstr(gdn_last_error(ctx), "state_scales: absent"), "\"%s\"", gdn_last_error(ctx));
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G21 GDN_EXACT: calls of any length", G21_exact_calls_of_any_length },
        { "G21 codes whatever the layout", G21_same_codes_whatever_the_layout },
        { "G21 records folded", G21_fold },
        { "G21 a checkpoint of a record", G21_checkpoint_of_a_record },
        { "one rounding", one_rounding },
        { "unbiased", unbiased },
        { "from kind to kind", from_kind_to_kind },
        { "G14 codes and scales move", G14_codes_and_scales_move },
        { "G14 to float32", G14_to_float32 },
        { "fork and zero", fork_and_zero },
        { "G7 not finite", G7_not_finite },
        { "G9 codes stay", G9_codes_stay },
        { "G9 checkpoints of idle tokens", G9_checkpoints_of_idle_tokens },
        { "a long decode", long_decode },
        { "G1 other ops", refuse_others },
    };
    ring2_options(argc, argv);
    refuse_calls();
    G21_float32_between_conversions();
    G21_half_of_what_keeps_a_state();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
