/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on the device: the address of a line, and eight elements of it at a time, as they lie in
 * memory. The elements of a thread do not depend on how they are moved, so alignment changes no
 * bit. */
#ifndef GDN_CUDA_LINES_CUH
#define GDN_CUDA_LINES_CUH

#include "cuda/device/io.cuh"

enum { GDN_PACK = 8 }; /* elements */

GDN_DEVICE int64_t element_bytes(int32_t dtype)
{
    return dtype == GDN_F32 ? 4 : dtype >= GDN_I8 && dtype <= GDN_E5M2 ? 1 : 2;
}

/* The index of a line: in the last leading dimension, and in all before that one. */
struct gdn_line {
    int64_t upper, lower;
};

/* Divides x by y, fast if both are below 2^32. */
GDN_DEVICE int64_t divide(int64_t x, int64_t y)
{
    if (((x | y) >> 32) == 0) return (uint32_t)x / (uint32_t)y;
    return x / y;
}

GDN_DEVICE struct gdn_line find_line(const struct gdn_cu_leads &leads, int64_t line)
{
    struct gdn_line at = { line, 0 };
    if (leads.n > 1) {
        at.upper = divide(line, leads.size[leads.n - 1]);
        at.lower = line - at.upper * leads.size[leads.n - 1];
    }
    return at;
}

/* Returns element 0 of a line. */
GDN_DEVICE char *line_at(const struct gdn_cu_leads &leads, const struct gdn_cu_lines &l,
                         struct gdn_line at)
{
    char *p = l.data;
    if (leads.n > 1) p += at.lower * l.step[leads.n - 1];
#pragma unroll 1
    for (int i = leads.n - 2; i > 0; i--) {
        const int64_t rest = divide(at.upper, leads.size[i]);
        p += (at.upper - rest * leads.size[i]) * l.step[i];
        at.upper = rest;
    }
    return p + at.upper * l.step[0];
}

/* ---- Packs --------------------------------------------------------------------------------- */

/* Eight elements: float32 takes all eight words, 16 bits the first four. */
struct gdn_pack {
    uint32_t word[8];
};

GDN_DEVICE void load_quad(uint32_t *word, const char *p)
{
    const uint4 x = *(const uint4 *)p;
    word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
}

GDN_DEVICE void store_quad(char *p, const uint32_t *word)
{
    *(uint4 *)p = make_uint4(word[0], word[1], word[2], word[3]);
}

GDN_DEVICE void load_pair(uint32_t *word, const char *p)
{
    const uint2 x = *(const uint2 *)p;
    word[0] = x.x, word[1] = x.y;
}

GDN_DEVICE void store_pair(char *p, const uint32_t *word)
{
    *(uint2 *)p = make_uint2(word[0], word[1]);
}

/* Loads the first n of eight elements at p, all if n is 8 or more; the others are zero. */
GDN_DEVICE void load_pack(struct gdn_pack &x, int32_t dtype, int32_t access, const char *p,
                          int64_t n)
{
#pragma unroll
    for (int i = 0; i < 8; i++) x.word[i] = 0;
    if (n <= 0) return;
    if (dtype == GDN_F32 && access) {
        load_quad(x.word, p);
        if (n > 4) load_quad(x.word + 4, p + 16);
    } else if (access == 16) {
        load_quad(x.word, p);
    } else if (access == 8) {
        load_pair(x.word, p);
        if (n > 4) load_pair(x.word + 2, p + 8);
    } else if (dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) x.word[i] = ((const uint32_t *)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) x.word[i / 2] |= (uint32_t)((const uint16_t *)p)[i] << i % 2 * 16;
    }
}

GDN_DEVICE void store_pack(char *p, const struct gdn_pack &x, int32_t dtype, int32_t access,
                           int64_t n)
{
    if (n <= 0) return;
    if (dtype == GDN_F32 && access) {
        store_quad(p, x.word);
        if (n > 4) store_quad(p + 16, x.word + 4);
    } else if (access == 16) {
        store_quad(p, x.word);
    } else if (access == 8) {
        store_pair(p, x.word);
        if (n > 4) store_pair(p + 8, x.word + 2);
    } else if (dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) ((uint32_t *)p)[i] = x.word[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) ((uint16_t *)p)[i] = (uint16_t)(x.word[i / 2] >> i % 2 * 16);
    }
}

GDN_DEVICE void unpack(float (&y)[8], const struct gdn_pack &x, int32_t dtype)
{
    if (dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = __uint_as_float(x.word[i]);
    } else if (dtype == GDN_BF16) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = bf16_to_f32((uint16_t)(x.word[i / 2] >> i % 2 * 16));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = f16_to_f32((uint16_t)(x.word[i / 2] >> i % 2 * 16));
    }
}

GDN_DEVICE void pack(struct gdn_pack &x, const float (&y)[8], int32_t dtype)
{
    if (dtype == GDN_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++) x.word[i] = __float_as_uint(y[i]);
    } else if (dtype == GDN_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) x.word[i] = f32_to_bf16x2(y[2 * i], y[2 * i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) x.word[i] = f32_to_f16x2(y[2 * i], y[2 * i + 1]);
    }
}

/* ---- Sums over threads, by a tree ---------------------------------------------------------- */

/* Adds x over the lanes of a group of `lanes`: over those that are multiples of `step` apart. All
 * lanes get their sum. */
GDN_DEVICE float sum_lanes(float x, int lanes, int step = 1)
{
    for (; step < lanes; step *= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

/* Returns the sum over a block in all of its threads. sums: shared memory, one for each warp. */
GDN_DEVICE float sum_block(float x, float *sums)
{
    const int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    x = sum_lanes(x, 32);
    if (lane == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    return sum_lanes(lane < n_warps ? sums[lane] : 0, 32);
}

#endif
