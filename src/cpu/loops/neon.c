/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 with what ARMv8.0 has everywhere: 4 floats a vector, 32 registers, FMA by vector and
 * by element; tails element by element. */
#include <arm_neon.h>
#include <string.h>

#include "cpu/loops/kernels.h"

#define VF 4
#define VF_REGS 32
#define VF_TABLE gdn_kernels_neon
#define VF_NAME "neon"
#define VF_NEEDS GDN_CPU_NEON

typedef float32x4_t vf;

static inline vf vf_set1(float x) { return vdupq_n_f32(x); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf x) { vst1q_f32(p, x); }
static inline vf vf_load_n(const float *p, ptrdiff_t n)
{
    vf x = vdupq_n_f32(0);
    if (n > 0) x = vld1q_lane_f32(p, x, 0);
    if (n > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
static inline void vf_store_n(float *p, vf x, ptrdiff_t n)
{
    if (n > 0) vst1q_lane_f32(p, x, 0);
    if (n > 1) vst1q_lane_f32(p + 1, x, 1);
    if (n > 2) vst1q_lane_f32(p + 2, x, 2);
}
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
/* Returns a > b ? x : y, by element. */
static inline vf vf_select_gt(vf a, vf b, vf x, vf y) { return vbslq_f32(vcgtq_f32(a, b), x, y); }
/* FMAX and FMIN would give the NaN, whichever argument it is. */
static inline vf vf_max(vf a, vf b) { return vf_select_gt(a, b, a, b); }
static inline vf vf_min(vf a, vf b) { return vf_select_gt(b, a, a, b); }
static inline vf vf_round(vf x) { return vrndnq_f32(x); }
/* Returns x 2^n for whole n, |n| < 252: in two factors, so that denormal results round once. */
static inline vf vf_scale2(vf x, vf n)
{
    const int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1);
    const int32x4_t rest = vsubq_s32(i, half), bias = vdupq_n_s32(127);
    const vf a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    const vf b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(x, a), b);
}
/* Returns exponent e of normal x > 0: x = m 2^e with m in [0.75, 1.5). */
static inline vf vf_exponent(vf x)
{
    const int32x4_t i = vreinterpretq_s32_f32(vmulq_f32(x, vdupq_n_f32(4.0f / 3.0f)));
    return vcvtq_f32_s32(vsubq_s32(vshrq_n_s32(i, 23), vdupq_n_s32(127)));
}

/* Returns the first two, then the last two elements of a and b. */
static inline vf low_halves(vf a, vf b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
static inline vf high_halves(vf a, vf b)
{
    return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}

/* Halves, then the last two: a fixed tree. */
static inline float vf_sum(vf x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }

static inline float vf_largest(vf x) { return vmaxvq_f32(x); }

/* Computes to[i] = vf_sum(x[i]), eight at once. */
static inline void vf_sums(float *to, const vf x[8])
{
    vf y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        y[i] = vf_add(low_halves(x[2 * i], x[2 * i + 1]), high_halves(x[2 * i], x[2 * i + 1]));
    vf_store(to, vpaddq_f32(y[0], y[1]));
    vf_store(to + 4, vpaddq_f32(y[2], y[3]));
}

static inline vf vf_from_bf16(uint16x4_t h)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(h), 16));
}
/* Nearest even by integers; a NaN stays one. */
static inline uint16x4_t vf_to_bf16(vf x)
{
    const uint32x4_t i = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(i, 16), vdupq_n_u32(1));
    const uint32x4_t r = vaddq_u32(i, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t q = vorrq_u32(i, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), r, q), 16);
}
static inline vf vf_from_f16(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
static inline uint16x4_t vf_to_f16(vf x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }

static inline uint16x4_t load_16bit(const uint16_t *p) { return vld1_u16(p); }
static inline uint16x4_t load_16bit_n(const uint16_t *p, ptrdiff_t n)
{
    uint16x4_t x = vdup_n_u16(0);
    if (n > 0) x = vld1_lane_u16(p, x, 0);
    if (n > 1) x = vld1_lane_u16(p + 1, x, 1);
    if (n > 2) x = vld1_lane_u16(p + 2, x, 2);
    return x;
}
static inline void store_16bit(uint16_t *p, uint16x4_t x) { vst1_u16(p, x); }
static inline void store_16bit_n(uint16_t *p, uint16x4_t x, ptrdiff_t n)
{
    if (n > 0) vst1_lane_u16(p, x, 0);
    if (n > 1) vst1_lane_u16(p + 1, x, 1);
    if (n > 2) vst1_lane_u16(p + 2, x, 2);
}

static inline int16x4_t load_8bit(const uint8_t *p)
{
    int8x8_t x = vdup_n_s8(0);
    memcpy(&x, p, VF);
    return vget_low_s16(vmovl_s8(x));
}
/* Loads and stores of two vectors of bf16. Stored vectors have no NaN. */
static inline void vf_load2_bf16(const uint16_t *p, vf x[2])
{
    const uint16x8_t h = vld1q_u16(p);
    x[0] = vf_from_bf16(vget_low_u16(h));
    x[1] = vf_from_bf16(vget_high_u16(h));
}
static inline void vf_store2_bf16(uint16_t *p, const vf x[2])
{
    uint16x4_t h[2];
    for (int m = 0; m < 2; m++) {
        const uint32x4_t i = vreinterpretq_u32_f32(x[m]);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(i, 16), vdupq_n_u32(1));
        h[m] = vshrn_n_u32(vaddq_u32(i, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    }
    vst1q_u16(p, vcombine_u16(h[0], h[1]));
}

static inline vf vf_load_i8(const uint8_t *p) { return vcvtq_f32_s32(vmovl_s16(load_8bit(p))); }
/* As f16, which has a larger bias: 2^-8 of the value, except for the only NaN. */
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const uint16x4_t x = vreinterpret_u16_s16(vshl_n_s16(load_8bit(p), 7));
    const uint16x4_t most = vdup_n_u16(0x3f80), nan = vceq_u16(vand_u16(x, most), most);
    const uint16x4_t h = vbic_u16(x, vdup_n_u16(0x4000));
    return vf_mul(vf_from_f16(vorr_u16(h, vand_u16(nan, vdup_n_u16(0x7c00)))), vf_set1(256));
}
/* The upper byte of an f16. */
static inline vf vf_load_e5m2(const uint8_t *p)
{
    return vf_from_f16(vreinterpret_u16_s16(vshl_n_s16(load_8bit(p), 8)));
}
/* The low byte of each element. */
typedef long long words __attribute__((vector_size(16)));
static inline void store_8bit(uint8_t *p, words x)
{
    const uint16x4_t low = vmovn_u32((uint32x4_t)x);
    const uint8x8_t c = vmovn_u16(vcombine_u16(low, low));
    memcpy(p, &c, VF);
}

/* In place: r[i][j] <-> r[j][i] of a VF x VF tile held in registers. */
static inline void vf_transpose(vf r[VF])
{
    const vf a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const vf c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = low_halves(a, c);
    r[1] = low_halves(b, d);
    r[2] = high_halves(a, c);
    r[3] = high_halves(b, d);
}

/* Returns 4 floats in each lane. */
static inline vf vf_load4(const float *p) { return vf_load(p); }

/* Loads the only group of 4 floats: the first n of them, n > 0, and zeros. */
static inline vf vf_load_lanes(const float *p, ptrdiff_t ld, int n)
{
    (void)ld;
    return n < VF ? vf_load_n(p, n) : vf_load(p);
}
static inline void vf_store_lanes(float *p, ptrdiff_t ld, vf x, int n)
{
    (void)ld;
    if (n < VF)
        vf_store_n(p, x, n);
    else
        vf_store(p, x);
}
static inline void vf_transpose_lanes(vf r[4]) { vf_transpose(r); }

/* Three vectors: of VF groups of 3 floats, one after the other, to the first of all groups, the
 * second, the third; and back. */
static inline void vf_part3(vf x[3])
{
    float to[3 * VF];
    for (int i = 0; i < 3; i++) vf_store(to + i * VF, x[i]);
    const float32x4x3_t y = vld3q_f32(to);
    for (int i = 0; i < 3; i++) x[i] = y.val[i];
}
static inline void vf_join3(vf x[3])
{
    const float32x4x3_t y = { { x[0], x[1], x[2] } };
    float to[3 * VF];
    vst3q_f32(to, y); /* a macro of clang, which takes no braces */
    for (int i = 0; i < 3; i++) x[i] = vf_load(to + i * VF);
}

#include "cpu/loops/table.inc"
