/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=3 */
/*
 * gdn_decode of one token of each sequence with states of 8 bits, q, k and v of 16 bits: on a
 * device a kernel of its own does these. The call with the same states in float32 is the judge of
 * outputs and of what is stored; where no sum rounds, it gives every code (G21).
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

enum { K = 128, SEQUENCES = 5, SLOTS = 9 };
static const int heads[][3] = { { 2, 2, 4 }, { 1, 1, 3 }, { 4, 2, 2 } };

/* A pool of 8 bits, and the same states in float32. */
struct pools {
    gdn_tensor codes, scales, wide;
};

static gdn_tensor new_wide(int64_t H, int64_t V)
{
    return ring2_new(GDN_F32, 0, 4, SLOTS, H, V, K);
}

static void convert(const struct pools *p, bool to_codes, int32_t rounding, uint64_t seed)
{
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = to_codes ? p->wide : p->codes;
    c.to_pool = to_codes ? p->codes : p->wide;
    *(to_codes ? &c.to_scales : &c.from_scales) = p->scales;
    c.rounding = rounding;
    c.seed = seed;
    ring2_status(ring2_ctx(1), "gdn_state_copy", gdn_state_copy(ring2_ctx(1), &c), GDN_OK);
}

static struct pools new_pools(int32_t dtype, int64_t H, int64_t V)
{
    struct pools p = { ring2_new(dtype, 0, 4, SLOTS, H, V, K),
                       ring2_new(GDN_F32, 0, 3, SLOTS, H, V, 0), new_wide(H, V) };
    ring2_fill(&p.wide, -1, 1);
    convert(&p, true, GDN_ROUND_NEAREST, 0);
    convert(&p, false, GDN_ROUND_NEAREST, 0);
    return p;
}

/* A call, and the same with float32 states. */
struct pair {
    struct pools from, to;
    gdn_batch batch;
    gdn_rule_args eight, wide;
};

/* States by number, in slots, from one slot to another, to another pool, or read alone. */
static void give_batch(struct pair *c, int form)
{
    static const int64_t from[] = { 3, -1, 8, 0, 5 }, to[] = { 4, 2, -1, 1, 6 };
    static const int64_t from_1[] = { 3, 0, 8, 1, -1 };
    c->batch = gdn_batch_init();
    c->batch.first_slot = form == 1;
    if (form) c->batch.read_slots = ring2_indices(GDN_I32, SEQUENCES, form == 1 ? from_1 : from);
    if (form == 2) c->batch.write_slots = ring2_indices(GDN_I32, SEQUENCES, to);
    if (form == 4) c->batch.write = GDN_WRITE_NONE;
    if (form == 3) {
        c->to = new_pools(c->from.codes.dtype, c->eight.g.size[1], c->eight.v.size[2]);
        c->eight.state_out = c->to.codes;
        c->eight.state_out_scales = c->to.scales;
    }
}

static void make_pair(struct pair *c, int number)
{
    static const int64_t Vs[] = { 32, 64, 160 };
    const int32_t io = number % 2 ? GDN_BF16 : GDN_F16;
    const int64_t V = Vs[number / 4 % 3];
    c->eight = ring2_rule_args(io, GDN_F32, SEQUENCES, 0, heads[number / 3 % 3], K, V);
    c->from = new_pools(number / 2 % 2 ? GDN_E4M3 : GDN_I8, c->eight.g.size[1], V);
    c->to = c->from;
    c->eight.state = c->from.codes;
    c->eight.state_scales = c->from.scales;
    c->eight.state_layout = GDN_STATE_VK;
    c->eight.norm = number / 5 % 2 ? GDN_NORM_L2 : GDN_NORM_NONE;
    c->eight.rounding = number / 7 % 2 ? GDN_ROUND_STOCHASTIC : GDN_ROUND_NEAREST;
    c->eight.seed = ring2_bits();
    give_batch(c, number % 5);
    ring2_rule_pad(&c->eight, SEQUENCES);
    c->eight.batch = &c->batch;
}

static void call(const gdn_rule_args *a)
{
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), a), GDN_OK);
}

static void call_eight(const gdn_rule_args *a)
{
    call(a);
    if (ring2_on_device())
        CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), "gdn_decode_token_eight"), "was %s",
              gdn_last_kernel(ring2_ctx(1)));
}

/* Runs both calls. Then the float32 states are those after the call. */
static void run_pair(struct pair *c)
{
    c->wide = ring2_rule_clone(&c->eight);
    c->wide.state = c->from.wide;
    c->wide.state_out = c->eight.state_out.data ? c->to.wide : (gdn_tensor){ 0 };
    c->wide.state_scales = (gdn_tensor){ 0 };
    c->wide.state_out_scales = (gdn_tensor){ 0 };
    call(&c->wide);
    call_eight(&c->eight);
}

/* ---- Against float32 states ------------------------------------------------------------------ */

/* A step of the dtype at x in a column whose largest magnitude is m. */
static double step_at(int32_t dtype, double x, double m)
{
    return dtype == GDN_I8 ? m / 127 : fmax(fabs(x) / 8, m / 448 * 0x1p-9);
}

static void expect_outputs(const struct pair *c)
{
    const double unit = c->eight.out.dtype == GDN_BF16 ? 0x1p-7 : 0x1p-10;
    for (int64_t i = 0; i < ring2_count(&c->eight.out) && !ring2_failed(); i++) {
        const double got = ring2_get(&c->eight.out, i), want = ring2_get(&c->wide.out, i);
        CHECK(fabs(got - want) <= unit * fabs(want) + 1e-5, "out[%d]: %g, wanted %g", (int)i, got,
              want);
    }
}

static void expect_states(const struct pair *c)
{
    const double part = c->eight.rounding == GDN_ROUND_STOCHASTIC ? 1 : 0.5;
    struct pools got = c->to;
    got.wide = ring2_clone(&c->to.wide);
    convert(&got, false, GDN_ROUND_NEAREST, 0);
    for (int64_t i = 0; i < ring2_count(&got.wide) && !ring2_failed(); i += K) {
        double m = 0;
        for (int k = 0; k < K; k++) m = fmax(m, fabs(ring2_get(&c->to.wide, i + k)));
        for (int k = 0; k < K; k++) {
            const double x = ring2_get(&got.wide, i + k), want = ring2_get(&c->to.wide, i + k);
            CHECK(fabs(x - want) <= part * step_at(got.codes.dtype, want, m) + 1e-6 * m,
                  "state %d: %g, wanted %g of %g", (int)(i + k), x, want, m);
        }
    }
}

static void values(int number)
{
    struct pair c;
    make_pair(&c, number);
    if (number % 6 == 5) ring2_fill_value(&c.eight.g, -(double)INFINITY);
    run_pair(&c);
    expect_outputs(&c);
    expect_states(&c);
}

/* Finds the slots of sequence b. Returns false if no state of it is written. */
static bool find_slots(const struct pair *c, int b, int64_t *from, int64_t *to)
{
    const gdn_batch *t = &c->batch;
    *from = t->read_slots.data ? (int64_t)ring2_get(&t->read_slots, b) : b;
    *to = t->write_slots.data ? (int64_t)ring2_get(&t->write_slots, b) : *from;
    return *from >= t->first_slot && *to >= 0 && t->write != GDN_WRITE_NONE;
}

/* Compares a slot with a slot of others. */
static void expect_slot(const struct pools *p, int64_t slot, const struct pools *others,
                        int64_t other)
{
    const gdn_tensor codes = ring2_narrow(&p->codes, 0, slot, 1);
    const gdn_tensor scales = ring2_narrow(&p->scales, 0, slot, 1);
    const gdn_tensor want = ring2_narrow(&others->codes, 0, other, 1);
    const gdn_tensor wanted = ring2_narrow(&others->scales, 0, other, 1);
    ring2_expect_bits("codes", &codes, &want);
    ring2_expect_bits("scales", &scales, &wanted);
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* k is a unit vector, alpha and beta are 1: no sum rounds, and each code is that of the float32
 * state. Numbers of a conversion are drawn for 0 tokens, so the seed is one more. */
static void codes(int number)
{
    struct pair c;
    make_pair(&c, number);
    c.eight.norm = GDN_NORM_NONE;
    ring2_fill_value(&c.eight.k, 0);
    for (int64_t row = 0; row < ring2_count(&c.eight.k) / K; row++)
        ring2_set(&c.eight.k, row * K + 7 * row % K, 1);
    ring2_fill_value(&c.eight.g, 0);
    ring2_fill_value(&c.eight.beta, 1);
    struct pools want = c.to;
    run_pair(&c);
    want.codes = ring2_clone(&c.to.codes);
    want.scales = ring2_clone(&c.to.scales);
    convert(&want, true, c.eight.rounding, c.eight.seed + 1);
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t from, to;
        if (find_slots(&c, b, &from, &to)) expect_slot(&c.to, to, &want, to);
    }
}

/* A token that changes nothing keeps codes and scales, or copies them (G9). */
static void idle(int number)
{
    struct pair c;
    make_pair(&c, number);
    ring2_fill_value(&c.eight.g, 0);
    ring2_fill_value(&c.eight.beta, 0);
    const struct pools before = { ring2_clone(&c.from.codes), ring2_clone(&c.from.scales),
                                  c.from.wide };
    call_eight(&c.eight);
    for (int b = 0; b < SEQUENCES; b++) {
        int64_t from, to;
        if (find_slots(&c, b, &from, &to)) expect_slot(&c.to, to, &before, from);
    }
}

/* ---- Not finite ------------------------------------------------------------------------------ */

/* Returns true if column (0, h, v) of the pool is NaN. */
static bool is_nan(const struct pools *p, int64_t h, int64_t v)
{
    return isnan(ring2_get(&p->scales, h * p->scales.size[2] + v));
}

/* NaN of v, of a scale and of a code reach their column alone; a gate of -inf forgets them. */
static void not_finite(int number)
{
    struct pair c;
    make_pair(&c, number * 20); /* states by number, no rounding at random */
    c.eight.rounding = GDN_ROUND_NEAREST;
    ring2_set(&c.eight.v, 3, (double)NAN);
    ring2_set(&c.from.scales, 5, (double)NAN);
    const bool has_code = c.from.codes.dtype == GDN_E4M3;
    if (has_code) memset(ring2_element(&c.from.codes, 9 * K + 77), 0x7f, 1);
    call_eight(&c.eight);
    for (int64_t v = 0; v < 32; v++)
        CHECK(is_nan(&c.from, 0, v) == (v == 3 || v == 5 || (v == 9 && has_code)), "column %d",
              (int)v);
    CHECK(isnan(ring2_get(&c.eight.out, 5)), "out[5] is a number");
    CHECK(!has_code || isnan(ring2_get(&c.eight.out, 9)), "out[9] is a number");
    ring2_fill(&c.eight.v, -1, 1);
    ring2_fill_value(&c.eight.g, -(double)INFINITY);
    call_eight(&c.eight);
    for (int64_t v = 0; v < 32; v++) {
        CHECK(!is_nan(&c.from, 0, v), "column %d is still NaN", (int)v);
        CHECK(!isnan(ring2_get(&c.eight.out, v)), "out[%d] is NaN", (int)v);
    }
}

/* Float states beside a pool of 8 bits for checkpoints, of which one token writes none. */
static void unwritten_checkpoints(int number)
{
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a =
        ring2_rule_args(GDN_BF16, number ? GDN_BF16 : GDN_F32, SEQUENCES, SLOTS, heads[0], K, 32);
    ring2_rule_pad(&a, SEQUENCES);
    const struct pools left = new_pools(GDN_E4M3, 4, 32);
    const gdn_tensor codes = ring2_clone(&left.codes);
    batch.checkpoint_every = 2;
    a.batch = &batch;
    a.checkpoints = left.codes, a.checkpoint_scales = left.scales;
    ring2_rule_check(ring2_ctx(1), &a, true);
    ring2_expect_bits("checkpoints", &left.codes, &codes);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "values", values, 84 },
        { "codes", codes, 84 },
        { "idle", idle, 20 },
        { "not finite", not_finite, 6 },
        { "unwritten checkpoints", unwritten_checkpoints, 2 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
