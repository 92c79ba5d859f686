/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The language of the images (src/cuda) for the host's compiler, in front of each (-include).
 * Threads of a block are fibers that run.cpp switches where they wait for each other; what a warp
 * does together, its lanes exchange. It stands in for ptx.cuh and ptx_mma.cuh, and hopper.h, of the
 * images that are for Hopper alone, for ptx_wgmma.cuh.
 */
#ifndef GDN_TESTS_EMULATED_CUDA_H
#define GDN_TESTS_EMULATED_CUDA_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __CUDACC__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ thread_local /* blocks run one by one */

struct emulated_index {
    unsigned x, y, z;
};
extern emulated_index threadIdx, blockIdx, blockDim, gridDim;

struct float2 {
    float x, y;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return { x, y, z, w };
}

using std::max;
using std::min;

template <class To, class From> static inline To emulated_bits(From x)
{
    To y = {};
    memcpy(&y, &x, sizeof x < sizeof y ? sizeof x : sizeof y);
    return y;
}
static inline uint32_t __float_as_uint(float x) { return emulated_bits<uint32_t>(x); }
static inline float __uint_as_float(uint32_t x) { return emulated_bits<float>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((uint64_t)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }

/* ---- What threads do together ---------------------------------------------------------------- */

/* Returns what every lane of the warp gave, valid until the warp's next exchange but one. */
const uint64_t *emulated_exchange(uint64_t mine);
/* Thread n_threads of a barrier that comes lets all go on; others wait unless they only arrive. Is
 * x so for one of them? */
bool emulated_barrier(int barrier, int n_threads, bool waits, bool x = false);

static inline void __syncthreads(void) { emulated_barrier(0, (int)blockDim.x, true); }
static inline void __syncwarp(void) { emulated_exchange(0); }
static inline int __syncthreads_or(int x) { return emulated_barrier(0, (int)blockDim.x, true, x); }

template <class T> static inline T emulated_shuffle(T x, int lane)
{
    return emulated_bits<T>(emulated_exchange(emulated_bits<uint64_t>(x))[lane]);
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane)
{
    return emulated_shuffle(x, lane & 31);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
    return emulated_shuffle(x, (int)(threadIdx.x % 32) ^ mask);
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, int n)
{
    const int lane = threadIdx.x % 32;
    return emulated_shuffle(x, lane < n ? lane : lane - n);
}
template <class T> static inline T __shfl_down_sync(unsigned, T x, int n)
{
    const int lane = threadIdx.x % 32;
    return emulated_shuffle(x, lane + n < 32 ? lane + n : lane);
}
static inline unsigned __ballot_sync(unsigned, int x)
{
    const uint64_t *all = emulated_exchange(x != 0);
    unsigned mask = 0;
    for (int i = 0; i < 32; i++) mask |= (unsigned)all[i] << i;
    return mask;
}
static inline int __any_sync(unsigned m, int x) { return __ballot_sync(m, x) != 0; }
static inline unsigned __reduce_or_sync(unsigned, unsigned x)
{
    const uint64_t *all = emulated_exchange(x);
    unsigned any = 0;
    for (int i = 0; i < 32; i++) any |= (unsigned)all[i];
    return any;
}

static inline int __reduce_max_sync(unsigned, int x)
{
    const uint64_t *all = emulated_exchange((uint64_t)(int64_t)x);
    for (int i = 0; i < 32; i++) x = std::max(x, (int)(int64_t)all[i]);
    return x;
}
static inline int __reduce_min_sync(unsigned m, int x) { return -__reduce_max_sync(m, -x); }

template <class T> static inline T atomicAdd(T *p, T x)
{
    const T before = *p;
    *p += x;
    return before;
}
template <class T> static inline T atomicMax(T *p, T x) { return *p = max(*p, x); }
template <class T> static inline T atomicOr(T *p, T x) { return *p |= x; }

/* ---- ptx.cuh --------------------------------------------------------------------------------- */

#define GDN_CUDA_PTX_CUH
#define GDN_DEVICE static inline

/* By the formats' definitions, in run.cpp. */
const float *emulated_f16_values(void);
static inline float emulated_from_f16(uint16_t x)
{
    static const float *const values = emulated_f16_values();
    return values[x];
}
uint16_t emulated_to_16(float x, bool is_f16);

/* n aligned bytes, or none. */
void emulated_load(void *to, const void *from, int n, bool there);
void emulated_store(void *to, const void *from, int n, bool is);

GDN_DEVICE void griddepcontrol_wait(void) {}
GDN_DEVICE void st_release(uint64_t *p, uint64_t x) { *p = x; }
GDN_DEVICE uint64_t ld_acquire(const uint64_t *p) { return *p; }
GDN_DEVICE void griddepcontrol_launch_dependents(void) {}
void emulated_cluster_arrive(void);
void emulated_cluster_wait(void);
GDN_DEVICE void cluster_arrive(void) { emulated_cluster_arrive(); }
GDN_DEVICE void cluster_arrive_relaxed(void) { emulated_cluster_arrive(); }
GDN_DEVICE void cluster_wait(void) { emulated_cluster_wait(); }
GDN_DEVICE int opaque(int x) { return x; }
GDN_DEVICE uint32_t opaque(uint32_t x) { return x; }
GDN_DEVICE void ld_v4_v2(uint32_t (&x)[4], const void *p, bool four, bool two)
{
    memset(x, 0, sizeof x);
    emulated_load(x, p, 16, four);
    emulated_load(x, p, 8, two);
}
GDN_DEVICE void ld_v2_b32(uint32_t (&x)[2], const void *p, bool two, bool one)
{
    memset(x, 0, sizeof x);
    emulated_load(x, p, 8, two);
    emulated_load(x, p, 4, one);
}
GDN_DEVICE void ld_v4(uint32_t (&x)[4], const void *p) { ld_v4_v2(x, p, true, false); }
GDN_DEVICE void ld_keep_v4(uint32_t (&x)[4], const void *p, bool is) { ld_v4_v2(x, p, is, false); }
GDN_DEVICE void ld_keep_v2(uint32_t (&x)[4], const void *p, bool there)
{
    memset(x, 0, 8);
    emulated_load(x, p, 8, there);
}
GDN_DEVICE void ld_once_v4(uint32_t (&x)[4], const void *p, bool is) { ld_keep_v4(x, p, is); }
GDN_DEVICE void ld_once_v2(uint32_t (&x)[4], const void *p, bool is) { ld_keep_v2(x, p, is); }
GDN_DEVICE uint32_t ld_b32_b16(const void *p, bool word, bool half)
{
    uint32_t x = 0;
    emulated_load(&x, p, 4, word);
    emulated_load(&x, p, 2, half);
    return x;
}
#define GDN_CUDA_PTX_STORE_CUH
GDN_DEVICE void st_v4(void *p, const uint32_t (&x)[4], bool is) { emulated_store(p, x, 16, is); }
GDN_DEVICE void st_v2(void *p, const uint32_t (&x)[4], bool is) { emulated_store(p, x, 8, is); }
GDN_DEVICE void prefetch(const void *, bool) {}
#define GDN_CUDA_PTX_PARTS_CUH
GDN_DEVICE uint32_t ld_4_or_2(const void *p, int bytes)
{
    return ld_b32_b16(p, bytes == 4, bytes == 2);
}
GDN_DEVICE uint32_t ld_b32_l2(const void *p) { return ld_b32_b16(p, true, false); }
GDN_DEVICE void ld_word(uint32_t &x, const void *p, bool there)
{
    if (there) x = ld_b32_b16(p, true, false);
}
GDN_DEVICE void ld_half(uint32_t &x, const void *p, bool there)
{
    if (there) x = ld_b32_b16(p, false, true);
}
GDN_DEVICE void ld_8_or_4(uint32_t (&x)[2], const void *p, int bytes)
{
    ld_v2_b32(x, p, bytes == 4, bytes == 2);
}
GDN_DEVICE void ld_flag(uint32_t (&x)[2], const void *p, int bytes)
{
    x[0] = bytes == 1 ? *(const uint8_t *)p : bytes == 0;
    x[1] = 0;
    emulated_load(&x[1], p, 4, bytes == 4);
}
template <class T> GDN_DEVICE uint32_t ask_arguments(const T &) { return 0; }
GDN_DEVICE void await_arguments(uint32_t) {}
GDN_DEVICE uint32_t ld_b32(const void *p) { return ld_b32_b16(p, true, false); }
GDN_DEVICE void ld_v2(uint32_t (&x)[2], const void *p) { ld_v2_b32(x, p, true, false); }
GDN_DEVICE int64_t ld_index(const void *p, int bytes, int64_t absent)
{
    if (bytes == 4) return *(const int32_t *)p;
    if (bytes == 8) return *(const int64_t *)p;
    return bytes == 1 ? *(const uint8_t *)p : absent;
}
GDN_DEVICE void lds_v2(uint32_t *x, const void *p) { memcpy(x, p, 8); }
GDN_DEVICE int64_t mad_wide(int a, int b, int64_t c) { return (int64_t)a * b + c; }
GDN_DEVICE float rcp_approx(float x) { return 1 / x; }
GDN_DEVICE float rsqrt_approx(float x) { return 1 / sqrtf(x); }
GDN_DEVICE float sqrt_approx(float x) { return sqrtf(x); }
GDN_DEVICE float ex2_approx(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}
GDN_DEVICE float f16_to_f32(uint16_t x) { return emulated_from_f16(x); }
GDN_DEVICE uint16_t f32_to_bf16(float x) { return emulated_to_16(x, false); }
GDN_DEVICE uint16_t f32_to_f16(float x) { return emulated_to_16(x, true); }
GDN_DEVICE uint32_t f32_to_bf16x2(float low, float high)
{
    return f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
}
GDN_DEVICE uint32_t f32_to_f16x2(float low, float high)
{
    return f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16;
}

#include "cuda/device/io.cuh"

/* ---- ptx_mma.cuh ----------------------------------------------------------------------------- */

#define GDN_CUDA_PTX_MMA_CUH

/* The first `valid` of `bytes`, when the thread waits for them. */
void emulated_copy(void *to, const void *from, int bytes, int valid);
void emulated_commit(void);
void emulated_wait(int n_groups);

/* d += a b of 16 rows, 8 columns and a depth of 16 elements of 16 bits or of 8 of tf32; a lane's
 * words as mma.sync has them. */
enum emulated_format { EMULATED_BF16, EMULATED_F16, EMULATED_TF32 };
void emulated_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  emulated_format format);
void emulated_matrices(uint32_t (&x)[4], const char *row, bool turned);

enum { EMULATED_SHARED = 232448 }; /* bytes that a block may have */
extern __shared__ __align__(1024) char gdn_shared[EMULATED_SHARED];

/* Return the memory at an address of the block's shared memory, and where that begins. */
char *emulated_place(uint32_t at);
char *emulated_shared(void);

GDN_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)((const char *)p - emulated_shared());
}
GDN_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t row)
{
    emulated_matrices(x, emulated_place(row), false);
}
GDN_DEVICE void load_matrices_turned(uint32_t (&x)[4], uint32_t row)
{
    emulated_matrices(x, emulated_place(row), true);
}
/* Lane l has elements 2 (l % 4) and the next of row l / 4. */
GDN_DEVICE uint32_t turn_matrix(uint32_t x)
{
    const uint64_t *all = emulated_exchange(x);
    const unsigned column = threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
    const uint64_t low = all[4 * row + column / 2], high = all[4 * (row + 1) + column / 2];
    return (uint32_t)((low >> column % 2 * 16 & 0xffff) | (high >> column % 2 * 16 & 0xffff) << 16);
}
GDN_DEVICE void load_shared(float &x, uint32_t at) { memcpy(&x, emulated_place(at), 4); }
GDN_DEVICE void load_shared(float &x, float &y, uint32_t at)
{
    load_shared(x, at);
    load_shared(y, at + 4);
}
GDN_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated_mma(d, a, b0, b1, EMULATED_BF16);
}
GDN_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated_mma(d, a, b0, b1, EMULATED_F16);
}
GDN_DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated_mma(d, a, b0, b1, EMULATED_TF32);
}
GDN_DEVICE uint32_t round_tf32(float x)
{
    return std::isfinite(x) ? (__float_as_uint(x) + 0x1000) & 0xffffe000u : __float_as_uint(x);
}
/* z + f x: for the f = 0 of kernels here, NaN where x is not finite. */
GDN_DEVICE uint32_t add_bf16x2(uint32_t z, uint32_t x, uint32_t)
{
    for (int i = 0; i < 32; i += 16)
        if ((x >> i & 0x7f80) == 0x7f80) z |= 0x7fffu << i;
    return z;
}
GDN_DEVICE uint32_t add_f16x2(uint32_t z, uint32_t x, uint32_t)
{
    for (int i = 0; i < 32; i += 16)
        if ((x >> i & 0x7c00) == 0x7c00) z |= 0x7fffu << i;
    return z;
}
/* x f of two elements. */
GDN_DEVICE uint32_t multiply_bf16x2(uint32_t x, uint32_t f)
{
    const auto high = [](uint32_t w) { return __uint_as_float(w & 0xffff0000u); };
    return f32_to_bf16x2(high(x << 16) * high(f << 16), high(x) * high(f));
}
GDN_DEVICE uint32_t multiply_f16x2(uint32_t x, uint32_t f)
{
    const auto at = [](uint32_t w, int i) { return f16_to_f32((uint16_t)(w >> i)); };
    return f32_to_f16x2(at(x, 0) * at(f, 0), at(x, 16) * at(f, 16));
}
template <int bytes> GDN_DEVICE void copy_async(uint32_t to, const void *from, int valid)
{
    emulated_copy(emulated_place(to), from, bytes, valid);
}
GDN_DEVICE void copy_commit(void) { emulated_commit(); }
template <int n> GDN_DEVICE void copy_wait(void) { emulated_wait(n); }
GDN_DEVICE void barrier_wait(int barrier, int n) { emulated_barrier(barrier, n, true); }
GDN_DEVICE void barrier_arrive(int barrier, int n) { emulated_barrier(barrier, n, false); }

#endif
