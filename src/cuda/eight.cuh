/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of 8 bits: codes, scales and random rounding, as docs/numerics.md says and to the bit
 * what the loops of the CPU make of them (G21).
 */
#ifndef GDN_CUDA_EIGHT_CUH
#define GDN_CUDA_EIGHT_CUH

#include "io.cuh"

GDN_DEVICE float code_value(uint8_t c, bool is_e4m3)
{
    const int      m    = c & 127;
    const uint32_t sign = (uint32_t)(c & 128) << 24;
    if (!is_e4m3) return (float)(int8_t)c;
    if (m == 127) return __uint_as_float(sign | 0x7ff00000);
    if (m < 8) return __uint_as_float(sign | __float_as_uint((float)m * 0x1p-9f));
    return __uint_as_float(sign | (((uint32_t)m << 20) + (120u << 23)));
}

/* Towards minus infinity after adding h / 2^32, or to nearest even. */
GDN_DEVICE uint8_t int8_code(float y, uint32_t h, bool random)
{
    if (!random) return (uint8_t)__float_as_uint(y + 0x1.8p23f);
    y = fmaxf(-127, fminf(127, y));
    return (uint8_t)(((int32_t)(y * 0x1p24f) + (int32_t)(h >> 8)) >> 24);
}

/* Magnitudes as fixed point with 20 bits behind the last one of the code. */
GDN_DEVICE uint8_t e4m3_code(float y, uint32_t h, bool random)
{
    const uint32_t sign = __float_as_uint(y) >> 24 & 128;
    const float    a    = fminf(448, fabsf(y));
    const bool     low  = a < 0x1p-6f;
    const uint32_t i    = __float_as_uint(a) - (120u << 23); /* of normal numbers */
    if (random) return (uint8_t)(sign | ((low ? (uint32_t)(a * 0x1p29f) : i) + (h >> 12)) >> 20);
    if (low) return (uint8_t)(sign | (__float_as_uint(a + 0x1p14f) - __float_as_uint(0x1p14f)));
    return (uint8_t)(sign | (i + 0x7ffff + (i >> 20 & 1)) >> 20);
}

GDN_DEVICE uint8_t code_of(float y, uint32_t h, bool random, bool is_e4m3)
{
    return is_e4m3 ? e4m3_code(y, h, random) : int8_code(y, h, random);
}

/* The scale of a column of which `largest` is the largest magnitude, infinite if an element is not
 * finite; `inverse`: by what to multiply its elements, 0 if all codes are to be 0. */
GDN_DEVICE float column_scale(float largest, bool is_e4m3, float &inverse)
{
    const float scale = fmaxf(largest / (is_e4m3 ? 448.0f : 127.0f), 0x1p-126f);
    const bool  keep  = largest > 0 && largest <= 0x1.fffffep127f;
    inverse           = keep ? 1 / scale : 0;
    if (largest > 0x1.fffffep127f) return __uint_as_float(0x7fc00000);
    return largest > 0 ? scale : 0;
}

/* ---- Random rounding ----------------------------------------------------------------------- */

/* One step of splitmix64. */
GDN_DEVICE uint64_t mix64(uint64_t z)
{
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* The key of value column v of a head, n_tokens of the sequence into a call. */
GDN_DEVICE uint32_t column_key(uint64_t seed, int64_t n_tokens, int64_t head, int64_t v)
{
    const uint64_t noise = mix64(mix64(seed + (uint64_t)n_tokens) + (uint64_t)head);
    return (uint32_t)(mix64(noise + (uint64_t)v) >> 32);
}

/* The random bits of element k of a column. */
GDN_DEVICE uint32_t random_bits(uint32_t key, int k)
{
    uint32_t x = key + (uint32_t)k * 0x9e3779b9;
    x          = (x ^ x >> 16) * 0x7feb352d;
    x          = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
}

#endif
