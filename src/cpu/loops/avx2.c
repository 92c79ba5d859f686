/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 with FMA and F16C: Haswell and later, Zen and later. 8 floats a vector, 16 registers;
 * float tails by VMASKMOV, 16-bit tails through a small buffer. */
#include <immintrin.h>
#include <string.h>

#include "cpu/loops/kernels.h"

#define VF 8
#define VF_REGS 16
#define VF_TABLE gdn_kernels_avx2
#define VF_NAME "avx2"
#define VF_NEEDS GDN_CPU_AVX2

typedef __m256 vf;

static inline __m256i first_n(ptrdiff_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_load_n(const float *p, ptrdiff_t n)
{
    return _mm256_maskload_ps(p, first_n(n));
}
static inline void vf_store_n(float *p, vf x, ptrdiff_t n)
{
    _mm256_maskstore_ps(p, first_n(n), x);
}
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Returns x 2^n for whole n, |n| < 252: in two factors, so that denormal results round once. */
static inline vf vf_scale2(vf x, vf n)
{
    const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    const __m256i rest = _mm256_sub_epi32(i, half), bias = _mm256_set1_epi32(127);
    const vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, a), b);
}
/* Returns exponent e of normal x > 0: x = m 2^e with m in [0.75, 1.5). */
static inline vf vf_exponent(vf x)
{
    const __m256i i = _mm256_castps_si256(_mm256_mul_ps(x, _mm256_set1_ps(4.0f / 3.0f)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(i, 23), _mm256_set1_epi32(127)));
}
/* Returns a > b ? x : y, by element. */
static inline vf vf_select_gt(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
/* Halves, quarters, ...: a fixed tree. */
static inline float vf_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

static inline float vf_largest(vf x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

/* Computes to[i] = vf_sum(x[i]), eight at once. */
static inline void vf_sums(float *to, const vf x[8])
{
    static const int place[8] = { 0, 2, 1, 3, 4, 6, 5, 7 };
    vf y[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) y[place[i]] = x[i];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        y[i] = vf_add(_mm256_permute2f128_ps(y[i], y[i + 4], 0x20),
                      _mm256_permute2f128_ps(y[i], y[i + 4], 0x31));
    y[0] = vf_add(_mm256_shuffle_ps(y[0], y[2], 0x44), _mm256_shuffle_ps(y[0], y[2], 0xee));
    y[1] = vf_add(_mm256_shuffle_ps(y[1], y[3], 0x44), _mm256_shuffle_ps(y[1], y[3], 0xee));
    vf_store(to, vf_add(_mm256_shuffle_ps(y[0], y[1], 0x88), _mm256_shuffle_ps(y[0], y[1], 0xdd)));
}

static inline vf vf_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* Nearest even by integers; a NaN stays one. */
static inline __m128i vf_to_bf16(vf x)
{
    const __m256i i = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(i, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(i, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i q = _mm256_or_si256(i, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(r, q, nan), 16);
    const __m256i p = _mm256_packus_epi32(h, h);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(p, 0x08));
}
static inline vf vf_from_f16(__m128i h) { return _mm256_cvtph_ps(h); }
static inline __m128i vf_to_f16(vf x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m128i load_16bit(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline __m128i load_16bit_n(const uint16_t *p, ptrdiff_t n)
{
    uint16_t buffer[VF] = { 0 };
    memcpy(buffer, p, (size_t)n * sizeof *p);
    return load_16bit(buffer);
}
static inline void store_16bit(uint16_t *p, __m128i x) { _mm_storeu_si128((__m128i *)p, x); }
static inline void store_16bit_n(uint16_t *p, __m128i x, ptrdiff_t n)
{
    uint16_t buffer[VF];
    store_16bit(buffer, x);
    memcpy(p, buffer, (size_t)n * sizeof *p);
}

/* Loads and stores of two vectors of bf16. Stored vectors have no NaN. */
static inline void vf_load2_bf16(const uint16_t *p, vf x[2])
{
    const __m256i upper =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1,
                         -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    for (int m = 0; m < 2; m++)
        x[m] = _mm256_castsi256_ps(
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16bit(p + m * VF)), upper));
}
static inline void vf_store2_bf16(uint16_t *p, const vf x[2])
{
    __m256i h[2];
    for (int m = 0; m < 2; m++) {
        const __m256i i = _mm256_castps_si256(x[m]);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(i, 16), _mm256_set1_epi32(1));
        const __m256i r = _mm256_add_epi32(i, _mm256_set1_epi32(0x7fff));
        h[m] = _mm256_srli_epi32(_mm256_add_epi32(r, odd), 16);
    }
    const __m256i both = _mm256_packus_epi32(h[0], h[1]);
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

static inline vf vf_load_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* As f16, which has a larger bias: 2^-8 of the value, except for the only NaN. */
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    const __m128i most = _mm_set1_epi16(0x3f80),
                  nan = _mm_cmpeq_epi16(_mm_and_si128(x, most), most);
    const __m128i h = _mm_andnot_si128(_mm_set1_epi16(0x4000), x);
    return vf_mul(vf_from_f16(_mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7c00)))),
                  vf_set1(256));
}
/* The upper byte of an f16. */
static inline vf vf_load_e5m2(const uint8_t *p)
{
    return vf_from_f16(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p)));
}
/* Stores the low byte of each element. */
static inline void store_8bit(uint8_t *p, __m256i x)
{
    x = _mm256_and_si256(x, _mm256_set1_epi32(255));
    x = _mm256_packus_epi16(_mm256_packus_epi32(x, x), x);
    _mm_storel_epi64((__m128i *)p,
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

/* Returns 4 floats in each lane. */
static inline vf vf_load4(const float *p)
{
    return _mm256_broadcast_ps((const __m128 *)(const void *)p);
}

/* Lane i, of 4 floats, to or from p + i ld: the first n floats, n > 0; zero beyond. */
static inline vf vf_load_lanes(const float *p, ptrdiff_t ld, int n)
{
    const __m128i m = _mm256_castsi256_si128(first_n(n));
    if (n == 4) return _mm256_setr_m128(_mm_loadu_ps(p), _mm_loadu_ps(p + ld));
    return _mm256_setr_m128(_mm_maskload_ps(p, m), _mm_maskload_ps(p + ld, m));
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
    store_lane(p, _mm256_castps256_ps128(x), n);
    store_lane(p + ld, _mm256_extractf128_ps(x, 1), n);
}
/* In place: r[i][j] <-> r[j][i] of the 4 x 4 tile in each lane. */
static inline void vf_transpose_lanes(vf r[4])
{
    const vf a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const vf c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = _mm256_shuffle_ps(a, c, 0x44);
    r[1] = _mm256_shuffle_ps(a, c, 0xee);
    r[2] = _mm256_shuffle_ps(b, d, 0x44);
    r[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/* In place: r[i][j] <-> r[j][i] of a VF x VF tile held in registers. */
static inline void vf_transpose(vf r[VF])
{
    vf t[VF], s[VF];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        s[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        s[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        s[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        s[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(s[i], s[4 + i], 0x20);
        r[4 + i] = _mm256_permute2f128_ps(s[i], s[4 + i], 0x31);
    }
}

/* Three vectors: of VF groups of 3 floats, one after the other, to the first of all groups, the
 * second, the third; and back. Lanes of 4 groups part by themselves. */
static inline void vf_part3(vf x[3])
{
    const vf a = _mm256_permute2f128_ps(x[0], x[1], 0x30); /* floats 0-3 and 12-15, */
    const vf b = _mm256_permute2f128_ps(x[0], x[2], 0x21); /* 4-7 and 16-19, */
    const vf c = _mm256_permute2f128_ps(x[1], x[2], 0x30); /* 8-11 and 20-23 */
    const vf bc = _mm256_shuffle_ps(b, c, 0x9e), ab = _mm256_shuffle_ps(a, b, 0x49);
    x[0] = _mm256_shuffle_ps(a, bc, 0x8c);
    x[1] = _mm256_shuffle_ps(ab, bc, 0xd8);
    x[2] = _mm256_shuffle_ps(ab, c, 0xcd);
}
static inline void vf_join3(vf x[3])
{
    const vf xy = _mm256_shuffle_ps(x[0], x[1], 0x88), yz = _mm256_shuffle_ps(x[1], x[2], 0xdd);
    const vf zx = _mm256_shuffle_ps(x[2], x[0], 0xd8);
    const vf a = _mm256_shuffle_ps(xy, zx, 0x88);
    const vf b = _mm256_shuffle_ps(yz, xy, 0xd8);
    const vf c = _mm256_shuffle_ps(zx, yz, 0xdd);
    x[0] = _mm256_permute2f128_ps(a, b, 0x20);
    x[1] = _mm256_permute2f128_ps(c, a, 0x30);
    x[2] = _mm256_permute2f128_ps(b, c, 0x31);
}

#include "cpu/loops/table.inc"
