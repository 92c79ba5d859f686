/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four elements that follow each other: 16 bytes of float32, 8 of bf16 or f16. In registers they
 * are four words as they lie in memory, so that loads can be under way before any is used.
 */
#ifndef GDN_CUDA_CHUNK_CUH
#define GDN_CUDA_CHUNK_CUH

#include "cuda/device/io.cuh"
#include "cuda/device/ptx_load_parts.cuh"

GDN_DEVICE int float_bytes(int dtype) { return dtype == GDN_F32 ? 4 : 2; }

/* Loads the bits of one element, or zero if `there` is false. bits_to_f32() makes float32 of
 * them. */
GDN_DEVICE uint32_t load_bits(const void *data, int64_t element, int dtype, bool there = true)
{
    const bool word = dtype == GDN_F32;
    return ld_b32_b16((const char *)data + element * float_bytes(dtype), there && word,
                      there && !word);
}
/* Does the same for a dtype that is known when the kernel runs. Loads after it do not wait for it
 * (ptx_load_parts.cuh). */
GDN_DEVICE uint32_t load_parts(const void *data, int64_t element, int dtype, bool there = true)
{
    return ld_4_or_2((const char *)data + element * float_bytes(dtype),
                     there ? float_bytes(dtype) : 0);
}
GDN_DEVICE float bits_to_f32(uint32_t x, int dtype)
{
    if (dtype == GDN_F32) return __uint_as_float(x);
    return dtype == GDN_BF16 ? bf16_to_f32((uint16_t)x) : f16_to_f32((uint16_t)x);
}

/* Loads four aligned elements at p; or n of them one by one, and zeros for the rest. */
GDN_DEVICE void load_chunk(uint32_t (&x)[4], const void *p, int dtype, bool there)
{
    ld_v4_v2(x, p, there && dtype == GDN_F32, there && dtype != GDN_F32);
}
GDN_DEVICE void load_part(uint32_t (&x)[4], const void *p, int dtype, int n)
{
    uint32_t e[4];
    for (int i = 0; i < 4; i++) e[i] = load_bits(p, i, dtype, i < n);
    x[0] = dtype == GDN_F32 ? e[0] : e[0] | e[1] << 16;
    x[1] = dtype == GDN_F32 ? e[1] : e[2] | e[3] << 16;
    x[2] = e[2], x[3] = e[3];
}

/* Converts n chunks to float32. */
template <int n>
GDN_DEVICE void expand_chunks(float (&to)[n][4], const uint32_t (&x)[n][4], int dtype)
{
    if (dtype == GDN_F32) {
        for (int i = 0; i < 4 * n; i++) to[i / 4][i % 4] = __uint_as_float(x[i / 4][i % 4]);
    } else if (dtype == GDN_BF16) {
        for (int i = 0; i < 4 * n; i++)
            to[i / 4][i % 4] = bf16_to_f32((uint16_t)(x[i / 4][i % 4 / 2] >> i % 2 * 16));
    } else {
        for (int i = 0; i < 4 * n; i++)
            to[i / 4][i % 4] = f16_to_f32((uint16_t)(x[i / 4][i % 4 / 2] >> i % 2 * 16));
    }
}

/* Stores four aligned elements. */
GDN_DEVICE void store_chunk(void *p, const float (&x)[4], int dtype)
{
    if (dtype == GDN_F32)
        *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
    else if (dtype == GDN_BF16)
        *(uint2 *)p = make_uint2(f32_to_bf16x2(x[0], x[1]), f32_to_bf16x2(x[2], x[3]));
    else
        *(uint2 *)p = make_uint2(f32_to_f16x2(x[0], x[1]), f32_to_f16x2(x[2], x[3]));
}

/* Returns x rounded to the dtype. */
GDN_DEVICE float round_to(float x, int dtype)
{
    if (dtype == GDN_F32) return x;
    return dtype == GDN_BF16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
}

#endif
