/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 (F, BW, DQ, VL): Skylake-SP and later, Zen 4 and later. 16 floats a vector, 32
 * registers, tails by masks. */
#include <immintrin.h>

#include "cpu/loops/kernels.h"

#define VF 16
#define VF_REGS 32
#define VF_TABLE gdn_kernels_avx512
#define VF_NAME "avx512"
#define VF_NEEDS GDN_CPU_AVX512

typedef __m512 vf;

static inline __mmask16 first_n(ptrdiff_t n) { return (__mmask16)((1u << n) - 1); }

static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_load_n(const float *p, ptrdiff_t n)
{
    return _mm512_maskz_loadu_ps(first_n(n), p);
}
static inline void vf_store_n(float *p, vf x, ptrdiff_t n)
{
    _mm512_mask_storeu_ps(p, first_n(n), x);
}
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_round(vf x) { return _mm512_roundscale_ps(x, 8); }
/* Returns x 2^n for whole n, gradual underflow and overflow included. */
static inline vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
/* Returns exponent and mantissa of x > 0: x = m 2^e with m in [0.75, 1.5). */
static inline vf vf_exponent(vf x)
{
    return _mm512_getexp_ps(_mm512_mul_ps(x, _mm512_set1_ps(4.0f / 3.0f)));
}
/* Returns a > b ? x : y, by element. */
static inline vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
/* Halves, quarters, ...: a fixed tree. */
static inline float vf_sum(vf x)
{
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

static inline float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }

/* Computes to[i] = vf_sum(x[i]), eight at once. */
static inline void vf_sums(float *to, const vf x[8])
{
    static const int place[8] = { 0, 2, 1, 3, 4, 6, 5, 7 };
    __m256 y[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        y[place[i]] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps(x[i], 1));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        y[i] = _mm256_add_ps(_mm256_permute2f128_ps(y[i], y[i + 4], 0x20),
                             _mm256_permute2f128_ps(y[i], y[i + 4], 0x31));
    y[0] = _mm256_add_ps(_mm256_shuffle_ps(y[0], y[2], 0x44), _mm256_shuffle_ps(y[0], y[2], 0xee));
    y[1] = _mm256_add_ps(_mm256_shuffle_ps(y[1], y[3], 0x44), _mm256_shuffle_ps(y[1], y[3], 0xee));
    y[0] = _mm256_add_ps(_mm256_shuffle_ps(y[0], y[1], 0x88), _mm256_shuffle_ps(y[0], y[1], 0xdd));
    _mm256_storeu_ps(to, y[0]);
}

static inline vf vf_from_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static const uint16_t upper_halves[32] = { 1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                           23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                           45, 47, 49, 51, 53, 55, 57, 59, 61, 63 };
/* Nearest even by integers (VCVTNEPS2BF16 would flush denormals): 0x7fff more, 0x8000 where that
 * would leave an odd number, and the upper halves. A NaN of x replaces what became of it. */
static inline __m256i vf_to_bf16(vf x)
{
    const __m512i i = _mm512_castps_si512(x);
    const __mmask16 odd = _mm512_test_epi32_mask(i, _mm512_set1_epi32(0x10000));
    const __m512i down = _mm512_add_epi32(i, _mm512_set1_epi32(0x7fff));
    const __m512i r = _mm512_mask_add_epi32(down, odd, i, _mm512_set1_epi32(0x8000));
    const __m512 y = _mm512_fixupimm_ps(_mm512_castsi512_ps(r), x, _mm512_set1_epi32(0x22), 0);
    const __m512i to = _mm512_loadu_si512(upper_halves);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(to, _mm512_castps_si512(y)));
}
static inline vf vf_from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline __m256i vf_to_f16(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m256i load_16bit(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline __m256i load_16bit_n(const uint16_t *p, ptrdiff_t n)
{
    return _mm256_maskz_loadu_epi16(first_n(n), p);
}
static inline void store_16bit(uint16_t *p, __m256i x) { _mm256_storeu_si256((__m256i *)p, x); }
static inline void store_16bit_n(uint16_t *p, __m256i x, ptrdiff_t n)
{
    _mm256_mask_storeu_epi16(p, first_n(n), x);
}

/* Loads and stores of two vectors of bf16. Stored vectors have no NaN. */
static inline void vf_load2_bf16(const uint16_t *p, vf x[2])
{
    static const uint16_t from[2][32] = {
        { 0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
          0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15 },
        { 0, 16, 0, 17, 0, 18, 0, 19, 0, 20, 0, 21, 0, 22, 0, 23,
          0, 24, 0, 25, 0, 26, 0, 27, 0, 28, 0, 29, 0, 30, 0, 31 },
    };
    const __m512i h = _mm512_loadu_si512(p);
    for (int m = 0; m < 2; m++)
        x[m] = _mm512_castsi512_ps(
            _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_loadu_si512(from[m]), h));
}
static inline void vf_store2_bf16(uint16_t *p, const vf x[2])
{
    __m512i r[2];
    for (int m = 0; m < 2; m++) { /* no masks here: on Zen 4 only the units of the FMAs make
                                     masks */
        const __m512i i = _mm512_castps_si512(x[m]);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(i, 16), _mm512_set1_epi32(1));
        r[m] = _mm512_add_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(0x7fff)), odd);
    }
    const __m512i to = _mm512_loadu_si512(upper_halves);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(r[0], to, r[1]));
}

/* The same by AVX512_BF16, which replaces denormal elements by zeros. The caller knows that
 * there are none. */
#define VF_FLUSHING_TABLE gdn_kernels_avx512bf16
#define VF_FLUSHING_NEEDS GDN_CPU_AVX512_BF16
static inline void vf_store2_flushing(uint16_t *p, const vf x[2])
{
    __m512i h;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(h) : "v"(x[0]), "v"(x[1]));
    _mm512_storeu_si512(p, h);
}

static inline vf vf_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* As f16, which has a larger bias: 2^-8 of the value, except for the only NaN. */
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const __m256i x =
        _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    const __m256i most = _mm256_set1_epi16(0x3f80),
                  nan = _mm256_cmpeq_epi16(_mm256_and_si256(x, most), most);
    const __m256i h = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), x);
    return vf_mul(vf_from_f16(_mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7c00)))),
                  vf_set1(256));
}
/* The upper byte of an f16. */
static inline vf vf_load_e5m2(const uint8_t *p)
{
    return vf_from_f16(
        _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
}
/* Stores the low byte of each element. */
static inline void store_8bit(uint8_t *p, __m512i x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}

/* Returns 4 floats in each lane. */
static inline vf vf_load4(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }

/* Lane i, of 4 floats, to or from p + i ld: the first n floats, n > 0; zero beyond. */
static inline vf vf_load_lanes(const float *p, ptrdiff_t ld, int n)
{
    const __mmask8 m = (__mmask8)first_n(n);
    if (n == 4) {
        const __m256 low = _mm256_setr_m128(_mm_loadu_ps(p), _mm_loadu_ps(p + ld));
        const __m512 x =
            _mm512_insertf32x4(_mm512_castps256_ps512(low), _mm_loadu_ps(p + 2 * ld), 2);
        return _mm512_insertf32x4(x, _mm_loadu_ps(p + 3 * ld), 3);
    }
    vf x = _mm512_castps128_ps512(_mm_maskz_loadu_ps(m, p));
    x = _mm512_insertf32x4(x, _mm_maskz_loadu_ps(m, p + ld), 1);
    x = _mm512_insertf32x4(x, _mm_maskz_loadu_ps(m, p + 2 * ld), 2);
    return _mm512_insertf32x4(x, _mm_maskz_loadu_ps(m, p + 3 * ld), 3);
}
/* Without masked stores, which cost several times as much. */
static inline void store_lane(float *p, __m128 x, int n)
{
    if (n == 4) {
        _mm_storeu_ps(p, x);
        return;
    }
    if (n >= 2) _mm_storel_pi((__m64 *)(void *)p, x);
    if (n != 2) _mm_store_ss(p + n - 1, n == 3 ? _mm_movehl_ps(x, x) : x);
}
static inline void vf_store_lanes(float *p, ptrdiff_t ld, vf x, int n)
{
    store_lane(p, _mm512_castps512_ps128(x), n);
    store_lane(p + ld, _mm512_extractf32x4_ps(x, 1), n);
    store_lane(p + 2 * ld, _mm512_extractf32x4_ps(x, 2), n);
    store_lane(p + 3 * ld, _mm512_extractf32x4_ps(x, 3), n);
}
/* In place: r[i][j] <-> r[j][i] of the 4 x 4 tile in each lane. */
static inline void vf_transpose_lanes(vf r[4])
{
    const vf a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    const vf c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(a, c, 0x44);
    r[1] = _mm512_shuffle_ps(a, c, 0xee);
    r[2] = _mm512_shuffle_ps(b, d, 0x44);
    r[3] = _mm512_shuffle_ps(b, d, 0xee);
}

/* In place: r[i][j] <-> r[j][i] of a VF x VF tile held in registers. */
static inline void vf_transpose(vf r[VF])
{
    vf t[VF];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const vf a0 = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
        const vf a1 = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        const vf b0 = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        const vf b1 = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a0, b0, 0x88);
        t[8 + i] = _mm512_shuffle_f32x4(a0, b0, 0xdd);
        t[4 + i] = _mm512_shuffle_f32x4(a1, b1, 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(a1, b1, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VF; i++) r[i] = t[i];
}

/* Selects each vector from x[0] and x[1], and then from the result and x[2]. */
static inline void vf_pick3(vf x[3], const int32_t first[3][16], const int32_t second[3][16])
{
    vf y[3];
    for (int i = 0; i < 3; i++) {
        y[i] = _mm512_permutex2var_ps(x[0], _mm512_loadu_si512(first[i]), x[1]);
        y[i] = _mm512_permutex2var_ps(y[i], _mm512_loadu_si512(second[i]), x[2]);
    }
    for (int i = 0; i < 3; i++) x[i] = y[i];
}

/* Three vectors: of VF groups of 3 floats, one after the other, to the first of all groups, the
 * second, the third; and back. */
static inline void vf_part3(vf x[3])
{
    static const int32_t first[3][16] = {
        { 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30 },
        { 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31 },
        { 2, 5, 8, 11, 14, 17, 20, 23, 26, 29 },
    };
    static const int32_t second[3][16] = {
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29 },
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30 },
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31 },
    };
    vf_pick3(x, first, second);
}
static inline void vf_join3(vf x[3])
{
    static const int32_t first[3][16] = {
        { 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5 },
        { 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26 },
        { 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0 },
    };
    static const int32_t second[3][16] = {
        { 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15 },
        { 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15 },
        { 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31 },
    };
    vf_pick3(x, first, second);
}

#include "cpu/loops/table.inc"
