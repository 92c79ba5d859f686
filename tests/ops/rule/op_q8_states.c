/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=5 */
/* runs as wide with TEST_V=300: cpu once --every=3, gpu, sm_80 --every=19 */
/*
 * States of 8 bits in pools: limits of one rounding, means over seeds, conversions by
 * gdn_state_copy(), what is not written, and a long decode beside float64.
 */
#include "q8_model.h"

/* ---- One rounding --------------------------------------------------------------------------- */

static void copy(const struct pool *from, int from_layout, const struct pool *to, int to_layout,
                 struct rounding r)
{
    const gdn_state_copy_args a = copy_args(from, from_layout, to, to_layout, r);
    ring2_status(ring2_ctx(2), "copy", gdn_state_copy(ring2_ctx(2), &a), GDN_OK);
}

static struct pool random_wide(int layout, int64_t P)
{
    const struct pool p = make_wide(layout, P);
    FOR_COLUMNS(P, s, h, v)
    {
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
    const int e = y >= ldexp(1, formats[dtype].least) ? ilogb(y) : formats[dtype].least;
    const double step = dtype == GDN_I8 ? 1 : ldexp(1, e - formats[dtype].mantissa);
    return (random ? 1 : 0.5) * step * scale * (1 + 0x1p-20) + 4 * 0x1p-24 * fabs(x);
}

static void one_rounding(void)
{
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const struct kind kind = kinds[i % N_KINDS];
        const int layout = i / N_KINDS % 2;
        const struct rounding r = { i / N_KINDS / 2, 99 };
        const struct pool wide = random_wide(layout, 3), p = make_kind(kind, layout, 3);
        const double largest = kind.plain ? (double)formats[kind.dtype].largest : INFINITY;
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
        const int32_t dtype = kinds[i].dtype;
        const struct pool wide = random_wide(0, 1), p = make_kind(kinds[i], 0, 1);
        double *sum = ring2_heap(4 * V * K * sizeof *sum), all = 0;
        for (uint64_t seed = 0; seed < N; seed++) {
            copy(&wide, 0, &p, 0, (struct rounding){ true, 1000 + seed });
            for (int64_t j = 0; j < 4 * V * K; j++) {
                const int64_t h = j / (V * K), v = j / K % V, k = j % K;
                const uint8_t c = *(uint8_t *)element(&p, 0, 0, h, v, k);
                const double x = (double)*(float *)element(&wide, 0, 0, h, v, k);
                const double scale = (double)*scale_at(&p, 0, h, v);
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
        const int fl = i % 2, tl = i / 2 % 2;
        const struct kind kind = kinds[i / 8];
        const struct rounding r = { i / 4 % 2, 5 };
        const struct pool wide = random_wide(fl, 4), same = random_wide(tl, 4);
        const struct pool got = make_kind(kind, tl, 4), want = make_kind(kind, tl, 4);
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
        const int layout = i / 2 % 2;
        const struct rounding r = { i % 3 == 0, 8 };
        const struct pool from = make_kind(kinds[i / N_KINDS], layout, 2);
        const struct pool to = make_kind(kinds[i % N_KINDS], layout, 2), want = cloned(&to);
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
        const int fl = i % 2, tl = i / 2 % 2;
        const struct kind kind = kinds[i / 4];
        const struct pool from = make_kind(kind, fl, 4), to = make_kind(kind, tl, 4);
        FOR_COLUMNS(4, s, h, v)
        {
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
        const int layout = i / N_KINDS;
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
    const struct pool p = make_kind(kinds[1], 1, 4), want = make_kind(kinds[1], 1, 4);
    gdn_state_copy_args a = copy_args(&p, 1, &p, 1, (struct rounding){ false, 0 });
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
        const int layout = i / N_KINDS % 2;
        const bool decode = i / N_KINDS / 2, is_nan = i % 2;
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 20, 0, heads, K, V);
        struct pool p = make_kind(kind, layout, 1);
        fill_eight(&p, layout);
        a.state_layout = layout;
        ring2_set(&a.v, 19 * 4 * V + 3, is_nan ? (double)NAN : (double)INFINITY);
        gdn_rule_args first = part_of(&a, 0, 20);
        first.state = p.t, first.state_scales = p.scales;
        ring2_status(ring2_ctx(2), "call", ring2_rule_call(ring2_ctx(2), &first, decode), GDN_OK);
        const struct pool first_left = widened(&p, layout);
        const float lost = kind.plain && !is_nan ? formats[kind.dtype].largest : NAN;
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
        const int layout = i / 3 % 2, way = i / 12 % 3;
        const bool decode = i / 6 % 2, separate = way > 0, converted = way > 1;
        const int number = i / 36;
        const struct kind kind = kinds[number], other = kinds[(number + converted) % N_KINDS];
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, tokens[i % 3], 0, heads, K, V);
        struct pool p = make_kind(kind, layout, 1), to = make_kind(other, layout, 1);
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

/* Checkpoints after idle tokens hold the codes that were read, though later tokens change the
 * state in the same slot. */
static void G9_checkpoints_of_idle_tokens(void)
{
    enum { T = 80, IDLE = 48, EACH_16 = 16 };
    static const int64_t start = 0, slots[] = { 1, 2, 3, 4, 5 };
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const int layout = i / N_KINDS % 2;
        const bool decode = i / N_KINDS / 2;
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
        const struct pool p = make_kind(kinds[i % N_KINDS], layout, 6);
        fill_eight(&p, layout);
        const struct pool before = cloned(&p);
        for (int j = 0; j < 4 * IDLE; j++) ring2_set(&a.g, j, 0), ring2_set(&a.beta, j, 0);
        a.state_layout = layout;
        gdn_rule_args call = part_of(&a, 0, T);
        gdn_batch t = *call.batch;
        call.state = call.checkpoints = p.t, call.state_scales = call.checkpoint_scales = p.scales;
        call.batch = &t;
        t.checkpoint_every = EACH_16;
        t.read_slots = ring2_indices(GDN_I32, 1, &start);
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
    const double a = 0.9;
    gdn_rule_args args = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
    const struct pool p = make_kind(kinds[0], 0, 1);
    float *largest = ring2_heap(4 * V * sizeof *largest);
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
    struct ring2_rule m;
    gdn_rule_args model = part_of(&wide, 0, T);
    model.state = ring2_new(GDN_F32, 0, 4, 1, 4, V, K);
    ring2_fill_value(&model.state, 0);
    ring2_rule_model(&model, true, &m);
    for (int i = 0; i < 4 * V; i++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            const uint8_t c = *(uint8_t *)element(&p, 0, 0, i / V, i % V, k);
            const double e =
                code_value(GDN_I8, c) * (double)*scale_at(&p, 0, i / V, i % V) - m.state[i * K + k];
            sum += e * e;
        }
        const double most = sqrt(K) / (2 * (1 - a)) * (double)largest[i] * (1 + 1e-3);
        CHECK(sqrt(sum) <= most && sum > 0, "column %d is off by %g, limit %g", i, sqrt(sum), most);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G21 codes whatever the layout", G21_same_codes_whatever_the_layout },
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
    };
    ring2_options(argc, argv);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
