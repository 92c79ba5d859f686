/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 8-bit states. The values of all 256 codes, and the nearest code of every float, from a table
 * made here in float64; the random choice between two neighbours, its formula once more; the
 * same bits as the scalar table; columns of zeros, infinities, NaN, denormals, FLT_MAX. Floats of 8
 * bits also without scales.
 */
#include <float.h>

#include "check.h"

enum { I8, E4M3, E5M2, N_DTYPES };

/* A dtype, with scales or without (floats alone). */
static const struct kind {
    int dtype;
    bool plain;
    const char *name;
} kinds[] = {
    { I8, false, "i8" },          { E4M3, false, "e4m3" },      { E5M2, false, "e5m2" },
    { E4M3, true, "e4m3 plain" }, { E5M2, true, "e5m2 plain" },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Bits behind the point of a mantissa, the exponent of the smallest normal number, the greatest
 * code, the first code that is no number, and bits that random rounding looks at. */
static const struct {
    int mantissa, least, most, special, random;
    float largest;
} formats[N_DTYPES] = {
    { 0, 0, 127, 128, 24, 127 },
    { 3, -6, 126, 127, 20, 448 },
    { 2, -14, 123, 124, 21, 57344 },
};

/* Element x of column j of a [n][K] or [K][n] matrix. */
struct form {
    bool vk;
    int K, n, ld;
};
static size_t form_at(const struct form *f, int j, int x)
{
    return (size_t)(f->vk ? j * f->ld + x : x * f->ld + j);
}
static size_t form_size(const struct form *f)
{
    const int rows = f->vk ? f->n : f->K, columns = f->vk ? f->K : f->n;
    return rows ? (size_t)((rows - 1) * f->ld + columns) : 0;
}

/* Returns the value of a code. */
static double value_of(int dtype, uint8_t code)
{
    const int bits = formats[dtype].mantissa, c = code & 127, m = c & ((1 << bits) - 1);
    const int e = c >> bits, least = formats[dtype].least;
    if (dtype == I8) return (int8_t)code;
    if (c > formats[dtype].special || (c == 127 && dtype == E4M3)) return (double)NAN;
    if (c == formats[dtype].special) return (double)(code & 128 ? -INFINITY : INFINITY);
    return (code & 128 ? -1 : 1) *
           (e ? ldexp((1 << bits) + m, least + e - 1 - bits) : ldexp(m, least - bits));
}

/* Finds the codes on both sides of |y|. If y is the value of a code, `above` is that code too. */
static void neighbours(int dtype, double y, uint8_t *below, uint8_t *above)
{
    const int largest = formats[dtype].most;
    int c = 0;
    while (c < largest && value_of(dtype, (uint8_t)(c + 1)) <= fabs(y)) c++;
    *below = (uint8_t)c;
    *above = (uint8_t)(c < largest && value_of(dtype, (uint8_t)c) < fabs(y) ? c + 1 : c);
}

static uint8_t with_sign(int dtype, uint8_t c, float y)
{
    if (dtype == I8) return (uint8_t)(y < 0 ? -c : c);
    return (uint8_t)(c | (signbit(y) ? 128 : 0));
}

static uint8_t nearest_code(int dtype, float y)
{
    uint8_t a, b;
    if (isnan(y)) return 127;
    neighbours(dtype, (double)y, &a, &b);
    const double low = fabs((double)y) - value_of(dtype, a);
    const double high = value_of(dtype, b) - fabs((double)y);
    const bool up = high < low || (high == low && !(b & 1));
    return with_sign(dtype, up ? b : a, y);
}

static uint32_t hash(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352d;
    x ^= x >> 15, x *= 0x846ca68b;
    return x ^ x >> 16;
}

/* In units of the last place of the lower neighbour, as kernels.h says. */
static uint8_t random_code(int dtype, float y, uint32_t h)
{
    const int bits = formats[dtype].random;
    const double end = ldexp(1, bits);
    uint8_t a, b;
    if (isnan(y)) return 127;
    neighbours(dtype, (double)y, &a, &b);
    if (dtype == I8) { /* of an integer the sum goes down, not to zero */
        const double fixed = trunc(fmax(-127, fmin(127, (double)y)) * 0x1p24);
        return (uint8_t)(int)floor((fixed + (h >> 8)) * 0x1p-24);
    }
    if (a == b) return with_sign(dtype, a, y);
    const double step = value_of(dtype, b) - value_of(dtype, a);
    const double part = floor((fabs((double)y) - value_of(dtype, a)) / step * end);
    return with_sign(dtype, part + (h >> (32 - bits)) >= end ? b : a, y);
}

typedef void load8(float *, ptrdiff_t, const void *, ptrdiff_t, const float *, int, int);
typedef void store8(void *, ptrdiff_t, float *, const float *, ptrdiff_t, const uint32_t *, int,
                    int);

/* ---- Loading ---- */

static load8 *load_of(const struct gdn_kernels *kr, int dtype, bool vk)
{
    return vk ? CALL(kr->load8_vk[dtype]) : CALL(kr->load8_kv[dtype]);
}

static void check_values(const struct gdn_kernels *kr, const struct kind *kind, struct form f)
{
    const int dtype = kind->dtype;
    struct form to = f;
    const size_t n = form_size(&f);
    unsigned char *code = check_bytes(n, ELEMENT);
    float *scale = kind->plain ? NULL : check_floats((size_t)f.n, -2, 2), *got, *want;
    to.ld = f.ld + 3;
    got = check_poison(form_size(&to));
    want = check_poison(form_size(&to));
    for (size_t i = 0; i < n; i++) code[i] = (unsigned char)(f.n * f.K >= 256 ? i : check_bits());
    load_of(kr, dtype, f.vk)(got, to.ld, code, f.ld, scale, f.K, f.n);
    (f.vk ? gdn_kernels_scalar.load8_vk
          : gdn_kernels_scalar.load8_kv)[dtype](want, to.ld, code, f.ld, scale, f.K, f.n);
    check_same("scalar", got, want, form_size(&to) * sizeof *got);
    for (int j = 0; j < f.n; j++)
        for (int x = 0; x < f.K; x++) {
            const uint8_t c = code[form_at(&f, j, x)];
            const float g = got[form_at(&to, j, x)];
            const float w = (float)(value_of(dtype, c) * (scale ? (double)scale[j] : 1));
            if (isnan(w) ? isnan(g) : g == w) continue;
            check_fail("code %d times %.9g: got %.9g, want %.9g", c, scale ? scale[j] : 1, g, w);
            return;
        }
}

static const int lengths[] = { 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 130 };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void check_load(const struct gdn_kernels *kr, bool vk)
{
    for (int d = 0; d < N_KINDS; d++) {
        const struct kind *kind = &kinds[d];
        for (int i = 0; i < N_LENGTHS * N_LENGTHS; i++) {
            const int K = lengths[i % N_LENGTHS], n = lengths[i / N_LENGTHS];
            check_case("%s %dx%d", kind->name, K, n);
            check_values(kr, kind, (struct form){ vk, K, n, (vk ? K : n) + i % 3 });
        }
        check_case("%s 128x128", kind->name);
        unsigned char *in = check_bytes(128 * 128, LINE);
        float *scale = check_floats(128, 1, 2), *out = check_lines(128 * 128, 0, 0);
        memset(in, 3, 128 * 128);
        CHECK_BENCH(
            128 * 128 * 5, 0,
            load_of(kr, kind->dtype, vk)(out, 128, in, 128, kind->plain ? NULL : scale, 128, 128));
    }
}

void check_load8_vk(const struct gdn_kernels *kr) { check_load(kr, true); }
void check_load8_kv(const struct gdn_kernels *kr) { check_load(kr, false); }

/* ---- Storing ---- */

static store8 *store_of(const struct gdn_kernels *kr, int dtype, bool vk)
{
    return vk ? CALL(kr->store8_vk[dtype]) : CALL(kr->store8_kv[dtype]);
}

/* Returns the scale of column j, and sets the factor of its elements; 0: all codes are 0. */
static float scale_of(int dtype, const float *src, const struct form *f, int j, float *inverse)
{
    float largest = 0, scale;
    *inverse = 0;
    for (int x = 0; x < f->K; x++) {
        const float s = src[form_at(f, j, x)];
        if (!isfinite(s)) return NAN;
        largest = fmaxf(largest, fabsf(s));
    }
    if (largest == 0) return 0;
    scale = fmaxf(largest / (formats[dtype].largest), 0x1p-126f);
    *inverse = 1 / scale;
    return scale;
}

static bool column_is_right(int dtype, const struct form *f, const struct form *from,
                            const float *src, const uint32_t *keys, int j, const uint8_t *code,
                            const float *scales)
{
    float inverse = 1;
    const float scale = scales ? scale_of(dtype, src, from, j, &inverse) : 1;
    if (scales && (isnan(scale) ? !isnan(scales[j]) : scales[j] != scale)) {
        check_fail("scale %d: got %.9g, want %.9g", j, scales[j], scale);
        return false;
    }
    for (int x = 0; x < f->K; x++) {
        const float s = src[form_at(from, j, x)], y = inverse > 0 ? s * inverse : 0;
        const uint8_t got = code[form_at(f, j, x)];
        const uint8_t want = keys ? random_code(dtype, y, hash(keys[j] + (uint32_t)x * 0x9e3779b9))
                                  : nearest_code(dtype, y);
        if (got == want) continue;
        check_fail("%.9g (%.9g) at %d, %d: got %d, want %d", s, y, j, x, got, want);
        return false;
    }
    return true;
}

static void check_codes(const struct gdn_kernels *kr, const struct kind *kind, struct form f,
                        const float *src, struct form from, bool random)
{
    const int dtype = kind->dtype;
    const size_t n = form_size(&f), columns = (size_t)f.n;
    unsigned char *got = check_bytes(n, ELEMENT), *want = check_bytes(n, ELEMENT);
    float *scales = kind->plain ? NULL : check_poison(columns);
    float *same = kind->plain ? NULL : check_poison(columns);
    uint32_t *key = check_bytes(columns * sizeof *key, ELEMENT);
    const uint32_t *keys = random ? key : NULL;
    for (size_t i = 0; i < columns; i++) key[i] = (uint32_t)check_bits();
    store_of(kr, dtype, f.vk)(got, f.ld, scales, src, from.ld, keys, f.K, f.n);
    (f.vk ? gdn_kernels_scalar.store8_vk
          : gdn_kernels_scalar.store8_kv)[dtype](want, f.ld, same, src, from.ld, keys, f.K, f.n);
    check_same("scalar's codes", got, want, n);
    if (scales) check_same("scalar's scales", scales, same, columns * sizeof *same);
    for (int j = 0; j < f.n; j++)
        if (!column_is_right(dtype, &f, &from, src, keys, j, got, scales)) return;
}

/* Columns of any size, some of zeros, some with what is not finite, some denormal or huge. */
static float *columns(const struct form *f)
{
    float *src = check_poison(form_size(f));
    for (int j = 0; j < f->n; j++) {
        const int kind = check_below(8);
        const double size = kind < 4    ? ldexp(1, check_below(40) - 20)
                            : kind == 4 ? 0
                            : kind == 5 ? 0x1p-140
                            : kind == 6 ? 0x1p127
                                        : 1;
        for (int x = 0; x < f->K; x++)
            src[form_at(f, j, x)] = (float)(check_uniform(-size, size) * check_uniform(0, 1));
        if (kind == 7) src[form_at(f, j, check_below(f->K))] = check_below(2) ? INFINITY : -NAN;
    }
    return src;
}

/* One column whose scale is 1: every code, every tie between two codes, and the floats beside a
 * tie. */
static void check_ties(const struct gdn_kernels *kr, const struct kind *kind, bool vk, bool random)
{
    enum { MOST = 256 };
    const int dtype = kind->dtype, last = formats[dtype].most;
    const float most = (float)value_of(dtype, (uint8_t)last);
    for (int c = 0; c < last; c += 60) {
        int n = 0;
        float x[MOST];
        x[n++] = -most;
        for (int i = c; i < c + 60 && i < last; i++) {
            const double a = value_of(dtype, (uint8_t)i), b = value_of(dtype, (uint8_t)(i + 1));
            const float tie = (float)((a + b) / 2), sign = i % 2 ? -1 : 1;
            x[n++] = sign * (float)a;
            x[n++] = sign * tie;
            x[n++] = sign * nextafterf(tie, 0);
            x[n++] = sign * nextafterf(tie, most);
        }
        check_case("%s%s ties from code %d", kind->name, random ? " random" : "", c);
        const struct form f = { vk, n, 1, vk ? n : 1 };
        check_codes(kr, kind, f, check_copy(x, (size_t)n * sizeof *x, ELEMENT), f, random);
    }
}

static void check_store(const struct gdn_kernels *kr, bool vk)
{
    /* Each size meets one kind, and each kind every K and every n: the judge of a case is slow. */
    for (int i = 0; i < 2 * N_LENGTHS * N_LENGTHS; i++) {
        const int random = i % 2, size = i / 2;
        const int K = lengths[size % N_LENGTHS], n = lengths[size / N_LENGTHS];
        const struct kind *kind = &kinds[(size + size / N_LENGTHS) % N_KINDS];
        check_case("%s%s %dx%d", kind->name, random ? " random" : "", K, n);
        const struct form f = { vk, K, n, (vk ? K : n) + i % 3 };
        struct form from = f;
        from.ld += 2;
        check_codes(kr, kind, f, columns(&from), from, random);
    }
    for (int i = 0; i < 2 * N_KINDS; i++) {
        const struct kind *kind = &kinds[i % N_KINDS];
        check_ties(kr, kind, vk, i / N_KINDS);
        check_case("%s%s 128x128", kind->name, i / N_KINDS ? " random" : "");
        unsigned char *out = check_bytes(128 * 128, LINE);
        float *in = check_lines(128 * 128, -1, 1), *scale = check_lines(128, 0, 0);
        uint32_t *keys = check_bytes(128 * sizeof *keys, LINE);
        CHECK_BENCH(128 * 128 * 5, 0,
                    store_of(kr, kind->dtype, vk)(out, 128, kind->plain ? NULL : scale, in, 128,
                                                  i / N_KINDS ? keys : NULL, 128, 128));
    }
}

void check_store8_vk(const struct gdn_kernels *kr) { check_store(kr, true); }
void check_store8_kv(const struct gdn_kernels *kr) { check_store(kr, false); }
