/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of states of 8 bits, and their conversions written a second time, from the words of gdn.h
 * and docs/design/numerics.md.
 */
#ifndef Q8_MODEL_H
#define Q8_MODEL_H

#include <math.h>
#include <string.h>

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
    bool plain;
} kinds[] = { { GDN_I8, false },
              { GDN_E4M3, false },
              { GDN_E5M2, false },
              { GDN_E4M3, true },
              { GDN_E5M2, true } },
  wide_kind = { GDN_F32, true };
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_SCALED = 3 };

/* A dtype in numbers: bits of the mantissa, the exponent of the smallest normal number, the largest
 * code that is a number, bits that random rounding looks at, the largest value. */
static const struct {
    int mantissa, least, most, random;
    float largest;
} formats[] = {
    [GDN_I8] = { 0, 0, 127, 24, 127 },
    [GDN_E4M3] = { 3, -6, 126, 20, 448 },
    [GDN_E5M2] = { 2, -14, 123, 21, 57344 },
};

/* ---- The conversions once more -------------------------------------------------------------- */

static inline double code_value(int32_t dtype, uint8_t c)
{
    const int bits = formats[dtype].mantissa, least = formats[dtype].least;
    const int most = formats[dtype].most, m = c & ((1 << bits) - 1), e = (c & 127) >> bits;
    if (dtype == GDN_I8) return (int8_t)c;
    if ((c & 127) > most)
        return dtype == GDN_E5M2 && m == 0 ? (double)(c & 128 ? -INFINITY : INFINITY) : (double)NAN;
    return (c & 128 ? -1 : 1) *
           (e ? ldexp((1 << bits) + m, least + e - 1 - bits) : ldexp(m, least - bits));
}

static inline uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Returns the random bits for element k of column v. */
static inline uint32_t draw(uint64_t seed, int64_t n, int64_t head, int64_t v, int64_t k)
{
    const uint64_t key = mix(mix(mix(seed + (uint64_t)n) + (uint64_t)head) + (uint64_t)v);
    uint32_t x = (uint32_t)(key >> 32) + (uint32_t)k * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
}

/* The greatest code at most |y|, of the codes that are not negative. */
static inline int code_below(int32_t dtype, double y)
{
    int c = 0;
    while (c < formats[dtype].most && code_value(dtype, (uint8_t)(c + 1)) <= y) c++;
    return c;
}

static inline uint8_t code_of(int32_t dtype, float y, const uint32_t *random)
{
    const double a = fabs((double)y), all = ldexp(1, formats[dtype].random);
    const int most = formats[dtype].most;
    if (isnan(y)) return 127;
    int c = code_below(dtype, a);
    const double low = code_value(dtype, (uint8_t)c);
    const double step = c < most ? code_value(dtype, (uint8_t)(c + 1)) - low : 1;
    const double part = c < most ? (a - low) / step : 0;
    if (random && dtype == GDN_I8) {
        const double fixed = trunc(fmax(-127, fmin(127, (double)y)) * 0x1p24);
        return (uint8_t)(int)floor((fixed + (*random >> 8)) * 0x1p-24);
    }
    if (random)
        c += floor(part * all) + (*random >> (32 - formats[dtype].random)) >= all;
    else
        c += part > 0.5 || (part == 0.5 && c % 2);
    if (dtype == GDN_I8) return (uint8_t)(y < 0 ? -c : c);
    return (uint8_t)(c | (signbit(y) ? 128 : 0));
}

/* A pool, and its scales if it has any. */
struct pool {
    gdn_tensor t, scales;
};

static inline int64_t slots_of(const struct pool *p) { return p->t.size[0]; }

/* Element (slot, head, v, k). */
static inline void *element(const struct pool *p, int layout, int64_t s, int64_t h, int64_t v,
                            int64_t k)
{
    const int64_t *d = p->t.stride;
    const int64_t at =
        s * d[0] + h * d[1] + (layout == GDN_STATE_VK ? v * d[2] + k * d[3] : k * d[2] + v * d[3]);
    return (char *)p->t.data + at * (int64_t)gdn_dtype_bytes(p->t.dtype);
}

/* NULL: the pool has no scales. */
static inline float *scale_at(const struct pool *p, int64_t s, int64_t h, int64_t v)
{
    if (!p->scales.data) return NULL;
    return (float *)p->scales.data + s * p->scales.stride[0] + h * p->scales.stride[1] + v;
}

static inline float scale_of(const struct pool *p, int64_t s, int64_t h, int64_t v)
{
    return p->scales.data ? *scale_at(p, s, h, v) : 1;
}

static inline gdn_tensor none(void)
{
    gdn_tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

static inline struct pool make_kind(struct kind kind, int layout, int64_t P)
{
    const bool vk = layout == GDN_STATE_VK;
    struct pool p = { ring2_new(kind.dtype, 3, 4, P, 4, vk ? V : K, vk ? K : V), none() };
    if (!kind.plain) p.scales = ring2_new(GDN_F32, 2, 3, P, 4, V, 0);
    return p;
}

static inline struct pool make_wide(int layout, int64_t P)
{
    return make_kind(wide_kind, layout, P);
}

static inline struct pool slot_of(const struct pool *p, int64_t slot)
{
    struct pool one = { ring2_narrow(&p->t, 0, slot, 1), none() };
    if (p->scales.data) one.scales = ring2_narrow(&p->scales, 0, slot, 1);
    return one;
}

#define FOR_COLUMNS(P, s, h, v)         \
    for (int64_t s = 0; s < (P); s++)   \
        for (int64_t h = 0; h < 4; h++) \
            for (int64_t v = 0; v < V; v++)

/* Numbers alone. Without scales they are up to 1, so that a state stays away from its largest. */
static inline void fill_eight(const struct pool *p, int layout)
{
    const int32_t dtype = p->t.dtype;
    FOR_COLUMNS(slots_of(p), s, h, v)
    {
        if (p->scales.data)
            *scale_at(p, s, h, v) =
                ring2_below(9) == 0 ? 0
                                    : (float)ring2_uniform(0.127, 2.54) / formats[dtype].largest;
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
static inline struct pool widened(const struct pool *p, int layout)
{
    const struct pool to = make_wide(layout, slots_of(p));
    FOR_COLUMNS(slots_of(p), s, h, v)
    for (int64_t k = 0; k < K; k++) {
        const uint8_t c = *(uint8_t *)element(p, layout, s, h, v, k);
        const float x = (float)code_value(p->t.dtype, c) * scale_of(p, s, h, v);
        memcpy(element(&to, layout, s, h, v, k), &x, sizeof x);
    }
    return to;
}

struct rounding {
    bool random;
    uint64_t seed;
};

/* Stores column v of a float32 pool in an 8-bit one, n tokens from the start. */
static inline void round_column(const struct pool *to, const struct pool *from, int layout,
                                int64_t s, int64_t h, int64_t v, int64_t n,
                                struct rounding rounding)
{
    const int32_t dtype = to->t.dtype;
    float m = 0, x[K], scale, inverse = 1;
    bool finite = true;
    for (int64_t k = 0; k < K; k++) {
        memcpy(&x[k], element(from, layout, s, h, v, k), sizeof *x);
        finite = finite && isfinite(x[k]);
        m = fmaxf(m, fabsf(x[k]));
    }
    if (to->scales.data) {
        scale = fmaxf(m / formats[dtype].largest, 0x1p-126f);
        inverse = !finite || m == 0 ? 0 : 1 / scale;
        *scale_at(to, s, h, v) = !finite ? NAN : m == 0 ? 0 : scale;
    }
    for (int64_t k = 0; k < K; k++) {
        const uint32_t r = draw(rounding.seed, n, h, v, k);
        const uint8_t c =
            inverse == 0 ? 0 : code_of(dtype, x[k] * inverse, rounding.random ? &r : NULL);
        memcpy(element(to, layout, s, h, v, k), &c, 1);
    }
}

static inline void round_slot(const struct pool *to, const struct pool *from, int layout, int64_t s,
                              int64_t n, struct rounding rounding)
{
    for (int64_t h = 0; h < 4; h++)
        for (int64_t v = 0; v < V; v++) round_column(to, from, layout, s, h, v, n, rounding);
}

static inline struct pool cloned(const struct pool *p)
{
    struct pool c = { ring2_clone(&p->t), none() };
    if (p->scales.data) c.scales = ring2_clone(&p->scales);
    return c;
}

/* Bits of codes; values of scales, NaN for NaN. */
static inline void expect_pool(const char *what, const struct pool *got, const struct pool *want)
{
    ring2_expect_bits(what, &got->t, &want->t);
    for (int64_t i = 0; want->scales.data && i < ring2_count(&want->scales); i++) {
        const double g = ring2_get(&got->scales, i), w = ring2_get(&want->scales, i);
        if (isnan(w) ? isnan(g) : g == w) continue;
        ring2_fail("%s: scale %lld is %.9g, expected %.9g", what, (long long)i, g, w);
        return;
    }
}

static inline void may_write(const struct pool *p, int64_t slot)
{
    const struct pool one = slot_of(p, slot);
    ring2_may_write(&one.t);
    if (one.scales.data) ring2_may_write(&one.scales);
}

static inline gdn_state_copy_args copy_args(const struct pool *from, int from_layout,
                                            const struct pool *to, int to_layout, struct rounding r)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = from->t, a.from_scales = from->scales, a.from_layout = from_layout;
    a.to_pool = to->t, a.to_scales = to->scales, a.to_layout = to_layout;
    a.rounding = r.random, a.seed = r.seed;
    return a;
}

/* Tokens [first, first + n) of sequence 0 of packed tensors, from and to slot 0. */
static inline gdn_rule_args part_of(const gdn_rule_args *a, int64_t first, int64_t n)
{
    static gdn_batch batch;
    gdn_rule_args p = ring2_rule_slice(a, first, n);
    const int64_t cu[2] = { 0, n };
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 2, cu);
    p.batch = &batch;
    p.seed = a->seed + (uint64_t)first;
    return p;
}

/* Some tokens of SOME_STAY change nothing (G9); those of SOME_HALF write, or decay. */

#endif
