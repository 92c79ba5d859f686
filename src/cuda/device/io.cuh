/* SPDX-License-Identifier: Apache-2.0 */
/* Moves elements between memory and float32. Other device code does not depend on dtypes. Every
 * store rounds once, to nearest even. */
#ifndef GDN_CUDA_IO_CUH
#define GDN_CUDA_IO_CUH

#include "cuda/driver/args.h"
#include "cuda/device/ptx.cuh"

GDN_DEVICE float bf16_to_f32(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }

/* Moves elements of a dtype that is known when compiling. */
template <int dtype> struct gdn_io;
template <> struct gdn_io<GDN_F32> {
    typedef float type;
    GDN_DEVICE float load(const float *p) { return *p; }
    GDN_DEVICE void store(float *p, float x) { *p = x; }
};
template <> struct gdn_io<GDN_BF16> {
    typedef uint16_t type;
    GDN_DEVICE float load(const uint16_t *p) { return bf16_to_f32(*p); }
    GDN_DEVICE void store(uint16_t *p, float x) { *p = f32_to_bf16(x); }
};
template <> struct gdn_io<GDN_F16> {
    typedef uint16_t type;
    GDN_DEVICE float load(const uint16_t *p) { return f16_to_f32(*p); }
    GDN_DEVICE void store(uint16_t *p, float x) { *p = f32_to_f16(x); }
};

/* Moves elements of a dtype that is known when the kernel runs. */
GDN_DEVICE float load_float(const void *data, int64_t element, int dtype)
{
    if (dtype == GDN_F32) return ((const float *)data)[element];
    const uint16_t x = ((const uint16_t *)data)[element];
    return dtype == GDN_BF16 ? bf16_to_f32(x) : f16_to_f32(x);
}
GDN_DEVICE void store_float(void *data, int64_t element, int dtype, float x)
{
    if (dtype == GDN_F32)
        ((float *)data)[element] = x;
    else
        ((uint16_t *)data)[element] = dtype == GDN_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/* Returns element i, or (i, j), of an array of indices; `absent` if there is no array. */
GDN_DEVICE int64_t load_index(const struct gdn_cu_array &a, int64_t i, int64_t j = 0,
                              int64_t absent = 0)
{
    const int bytes = a.dtype == GDN_I32 ? 4 : a.dtype == GDN_I64 ? 8 : 1;
    const int64_t at = i * a.stride[0] + j * a.stride[1];
    return ld_index((const char *)a.data + at * bytes, a.data ? bytes : 0, absent);
}

/* Sets element i of an array of counters, which is there. */
GDN_DEVICE void store_count(const struct gdn_cu_array &a, int64_t i, int64_t count)
{
    const int64_t at = i * a.stride[0];
    if (a.dtype == GDN_I32)
        ((int32_t *)a.data)[at] = (int32_t)count;
    else
        ((int64_t *)a.data)[at] = count;
}

/* Returns element i of a vector of floats; `absent` if there is no vector. */
GDN_DEVICE float load_vector(const struct gdn_cu_array &a, int64_t i, float absent)
{
    return a.data ? load_float(a.data, i * a.stride[0], a.dtype) : absent;
}

#endif
