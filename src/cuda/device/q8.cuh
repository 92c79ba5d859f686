/* SPDX-License-Identifier: Apache-2.0 */
/* States of 8 bits, element by element: codes, the scale of a column of V (float formats may have
 * none), and the numbers drawn for random rounding. The roundings are those of
 * cpu/loops/q8_scalar.inc, in the same order (G21). */
#ifndef GDN_CUDA_EIGHT_CUH
#define GDN_CUDA_EIGHT_CUH

#include "cuda/device/quad.cuh"

GDN_DEVICE bool is_q8(int dtype) { return dtype >= GDN_I8 && dtype <= GDN_E5M2; }
GDN_DEVICE int state_bytes(int dtype) { return is_q8(dtype) ? 1 : float_bytes(dtype); }

/* Returns true if bytes of both pools mean the same: one dtype, and scales in both or in
 * neither. */
GDN_DEVICE bool store_alike(const struct gdn_pool_view &a, const struct gdn_pool_view &b)
{
    return a.dtype == b.dtype && !a.scales == !b.scales;
}

/* ---- Values ---------------------------------------------------------------------------------- */

enum { E4M3_NAN = 127, E5M2_INFINITY = 124, FLOAT8_NAN = 127 };

/* Returns the value of a code that is not NaN. Exponent and mantissa lie as in a float, whose
 * exponents begin 120 lower. Denormal codes become denormal floats. */
GDN_DEVICE float e4m3_number(uint32_t c)
{
    return __uint_as_float((c & 128) << 24 | (c & 127) << 20) * 0x1p120f;
}

GDN_DEVICE float e5m2_number(uint32_t c)
{
    const uint32_t m = c & 127, sign = (c & 128) << 24;
    if (m >= E5M2_INFINITY)
        return __uint_as_float(sign | 0x7f800000 | (m & 3) << 21 |
                               (uint32_t)(m > E5M2_INFINITY) << 22);
    return __uint_as_float(sign | m << 21) * 0x1p112f;
}

/* Returns the value of code c, 0 to 255, without its scale. */
GDN_DEVICE float eight_value(uint32_t c, int dtype)
{
    const uint32_t m = c & 127, sign = (c & 128) << 24;
    if (dtype == GDN_I8) return (float)(int8_t)c;
    if (dtype == GDN_E5M2) return e5m2_number(c);
    if (m == E4M3_NAN) return __uint_as_float(sign | 0x7ff00000);
    return e4m3_number(c);
}

/* ---- Scales ---------------------------------------------------------------------------------- */

/* Returns the magnitude as an integer. Integers have the order of the numbers, and those of
 * infinity and NaN are above all others. */
GDN_DEVICE uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }

/* The scale of a column, and the factor that makes codes of its elements. factor 0: all codes are
 * 0. */
struct eight_scale {
    float scale, inverse;
};

GDN_DEVICE float eight_most(int dtype)
{
    return dtype == GDN_I8 ? 127.0f : dtype == GDN_E4M3 ? 448.0f : 57344.0f;
}

GDN_DEVICE struct eight_scale eight_scale_of(uint32_t largest_magnitude, int dtype,
                                             bool scaled = true)
{
    if (!scaled) return { 1, 1 };
    if (largest_magnitude >= 0x7f800000) return { __uint_as_float(0x7fc00000), 0 };
    if (largest_magnitude == 0) return { 0, 0 };
    const float s = fmaxf(__uint_as_float(largest_magnitude) / eight_most(dtype), 0x1p-126f);
    return { s, 1 / s };
}

/* ---- Random numbers -------------------------------------------------------------------------- */

/* Returns one step of splitmix64. */
GDN_DEVICE uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Return the key of column v after n_tokens, and the 32 random bits of element k of that column. */
GDN_DEVICE uint32_t eight_key(uint64_t seed, int64_t n_tokens, int head, int v)
{
    const uint64_t noise = mix(mix(seed + (uint64_t)n_tokens) + (uint64_t)head);
    return (uint32_t)(mix(noise + (uint64_t)v) >> 32);
}
GDN_DEVICE uint32_t eight_draw(uint32_t key, int k)
{
    uint32_t x = key + (uint32_t)k * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* Returns the code of y: rounded down after adding h / 2^32 if rounding is random, else to nearest
 * even. */
GDN_DEVICE uint32_t i8_code(float y, uint32_t h, bool random)
{
    if (!random) return __float_as_uint(y + 0x1.8p23f) & 255;
    y = fmaxf(-127, fminf(127, y));
    return (uint32_t)(((int)(y * 0x1p24f) + (int)(h >> 8)) >> 24) & 255;
}

/* Returns the code of y in a float format. cpu/loops/q8_format.h has the same numbers. */
GDN_DEVICE uint32_t float8_code(float y, uint32_t h, bool random, int dtype)
{
    const bool e4m3 = dtype == GDN_E4M3;
    const int shift = e4m3 ? 20 : 21;
    const float fixed = e4m3 ? 0x1p29f : 0x1p37f, magic = e4m3 ? 0x1p14f : 0x1p7f;
    const uint32_t sign = __float_as_uint(y) >> 24 & 128;
    const float a = fminf(eight_most(dtype), __uint_as_float(magnitude(y)));
    const bool low = a < (e4m3 ? 0x1p-6f : 0x1p-14f);
    const uint32_t i = __float_as_uint(a) - (e4m3 ? 120u << 23 : 112u << 23); /* normal numbers */
    if (magnitude(y) > 0x7f800000) return FLOAT8_NAN;
    if (random) return sign | ((low ? (uint32_t)(a * fixed) : i) + (h >> (32 - shift))) >> shift;
    if (low) return sign | (__float_as_uint(a + magic) - __float_as_uint(magic));
    return sign | (i + ((1u << (shift - 1)) - 1) + (i >> shift & 1)) >> shift;
}

/* Returns the code of element x of a column with this inverse scale. h: the random bits. */
GDN_DEVICE uint32_t eight_code(float x, float inverse, uint32_t h, bool random, int dtype)
{
    if (inverse == 0) return 0;
    return dtype == GDN_I8 ? i8_code(x * inverse, h, random)
                           : float8_code(x * inverse, h, random, dtype);
}

#endif
