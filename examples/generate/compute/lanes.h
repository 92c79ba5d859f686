/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of floats, for matrix_loops.inc. Each instruction set has a type of so many lanes and
 * these functions, whose names end with the set's name:
 *
 *     zero, load        all lanes 0; from memory
 *     bf16, f16         from memory of any alignment and type, converted
 *     store             to memory
 *     fma               a b + c by lanes, rounded once if the instruction set can
 *     sum               of all lanes: halves, then quarters, and so on
 */
#ifndef LANES_H
#define LANES_H

#include <stdint.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* ---- x86-64 ---------------------------------------------------------------------------------- */

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET_avx2 __attribute__((target("avx2,fma,f16c")))
#define TARGET_avx512 __attribute__((target("avx512f,avx2,fma,f16c")))
#define AVX2 TARGET_avx2 LANES_INLINE
#define AVX512 TARGET_avx512 LANES_INLINE

typedef __m256 lanes_avx2;

AVX2 __m256 zero_avx2(void) { return _mm256_setzero_ps(); }
AVX2 __m256 load_avx2(const float *p) { return _mm256_loadu_ps(p); }
AVX2 void store_avx2(float *p, __m256 x) { _mm256_storeu_ps(p, x); }
AVX2 __m256 fma_avx2(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
AVX2 __m256 bf16_avx2(const void *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
AVX2 __m256 f16_avx2(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
AVX2 float sum_avx2(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

typedef __m512 lanes_avx512;

AVX512 __m512 zero_avx512(void) { return _mm512_setzero_ps(); }
AVX512 __m512 load_avx512(const float *p) { return _mm512_loadu_ps(p); }
AVX512 void store_avx512(float *p, __m512 x) { _mm512_storeu_ps(p, x); }
AVX512 __m512 fma_avx512(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
AVX512 __m512 bf16_avx512(const void *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
AVX512 __m512 f16_avx512(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
AVX512 float sum_avx512(__m512 x)
{
    const __m256d high = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    return sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(high)));
}

#endif

/* ---- AArch64: eight lanes are two vectors ---------------------------------------------------- */

#ifdef __aarch64__
#include <arm_neon.h>

#define TARGET_neon

typedef struct {
    float32x4_t a, b;
} lanes_neon;

LANES_INLINE lanes_neon zero_neon(void) { return (lanes_neon){ vdupq_n_f32(0), vdupq_n_f32(0) }; }
LANES_INLINE lanes_neon load_neon(const float *p)
{
    return (lanes_neon){ vld1q_f32(p), vld1q_f32(p + 4) };
}
LANES_INLINE void store_neon(float *p, lanes_neon x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
LANES_INLINE lanes_neon fma_neon(lanes_neon a, lanes_neon b, lanes_neon c)
{
    return (lanes_neon){ vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b) };
}
LANES_INLINE lanes_neon bf16_neon(const void *p)
{
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return (lanes_neon){ vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                         vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)) };
}
LANES_INLINE lanes_neon f16_neon(const void *p)
{
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return (lanes_neon){ vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))),
                         vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h))) };
}
LANES_INLINE float sum_neon(lanes_neon x)
{
    const float32x4_t four = vaddq_f32(x.a, x.b);
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

#endif

/* ---- Any processor: eight lanes in plain C --------------------------------------------------- */

#define TARGET_plain

typedef struct {
    float x[8];
} lanes_plain;

/* Infinities, NaN and denormals of f16 too. */
LANES_INLINE float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    const uint32_t bits = rest >= 0x7c00 ? (rest << 13) + (112u << 23) + (112u << 23) : rest << 13;
    float x;
    memcpy(&x, &bits, sizeof x);
    if (rest < 0x7c00) x *= 0x1p112f;
    return sign ? -x : x;
}

LANES_INLINE lanes_plain zero_plain(void) { return (lanes_plain){ { 0 } }; }
LANES_INLINE lanes_plain load_plain(const float *p)
{
    lanes_plain x;
    memcpy(&x, p, sizeof x);
    return x;
}
LANES_INLINE void store_plain(float *p, lanes_plain x) { memcpy(p, &x, sizeof x); }
LANES_INLINE lanes_plain fma_plain(lanes_plain a, lanes_plain b, lanes_plain c)
{
    for (int i = 0; i < 8; i++) c.x[i] += a.x[i] * b.x[i];
    return c;
}
LANES_INLINE lanes_plain bf16_plain(const void *p)
{
    uint16_t h[8];
    uint32_t bits[8];
    lanes_plain x;
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 8; i++) bits[i] = (uint32_t)h[i] << 16;
    memcpy(&x, bits, sizeof x);
    return x;
}
LANES_INLINE lanes_plain f16_plain(const void *p)
{
    uint16_t h[8];
    lanes_plain x;
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 8; i++) x.x[i] = from_f16(h[i]);
    return x;
}
LANES_INLINE float sum_plain(lanes_plain x)
{
    for (int n = 4; n; n /= 2)
        for (int i = 0; i < n; i++) x.x[i] += x.x[i + n];
    return x.x[0];
}

#endif
