/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves the state between memory and the registers of warps_state.cuh, in parts, by a loop. All of
 * it at once would be much code for one move per sequence. Products need the registers in place, so
 * a part is copied from and to them.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_MEMORY_CUH
#define GDN_CUDA_PREFILL_HOPPER_MEMORY_CUH

#include "cuda/prefill/sm90/kernel.cuh"

/* Returns the token of element i. Rare code passes an opaque lane, so that the compiler computes
 * nothing of it ahead of the loop over chunks and keeps no registers for it. */
GDN_DEVICE int token_of(int i, uint32_t lane) { return i / 4 * 8 + (int)(lane % 4 * 2) + i % 2; }
GDN_DEVICE uint32_t rare_lane(void) { return opaque(threadIdx.x % 32); }

/* Loads a pair of elements of a state; zero if they do not exist. */
template <int dtype> struct state_pair;
template <> struct state_pair<GDN_F32> {
    GDN_DEVICE void load(const char *p, float &x, float &y, bool there)
    {
        uint32_t z[4];
        ld_keep_v2(z, p, there);
        x = __uint_as_float(z[0]), y = __uint_as_float(z[1]);
    }
    GDN_DEVICE void store(char *p, float x, float y) { *(float2 *)p = make_float2(x, y); }
};
template <> struct state_pair<GDN_BF16> {
    GDN_DEVICE void load(const char *p, float &x, float &y, bool there)
    {
        unpack(ld_b32_b16(p, there, false), x, y);
    }
    GDN_DEVICE void unpack(uint32_t z, float &x, float &y)
    {
        x = mma_format_bf16::low(z), y = mma_format_bf16::high(z);
    }
    GDN_DEVICE void store(char *p, float x, float y) { *(uint32_t *)p = f32_to_bf16x2(x, y); }
};
template <> struct state_pair<GDN_F16> {
    GDN_DEVICE void load(const char *p, float &x, float &y, bool there)
    {
        unpack(ld_b32_b16(p, there, false), x, y);
    }
    GDN_DEVICE void unpack(uint32_t z, float &x, float &y)
    {
        x = mma_format_f16::low(z), y = mma_format_f16::high(z);
    }
    GDN_DEVICE void store(char *p, float x, float y) { *(uint32_t *)p = f32_to_f16x2(x, y); }
};

/* Returns true if keys k and k + 1 (k even) may be moved at once. */
GDN_DEVICE bool has_pairs(const struct state_place &p, const struct state_part &part)
{
    const int64_t bytes = p.dtype == GDN_F32 ? 4 : 2;
    return p.k_step == bytes && part.K % 2 == 0 &&
           (((uint64_t)p.data | (uint64_t)p.v_step) & (2 * bytes - 1)) == 0;
}

enum { HOPPER_PART = 16, HOPPER_PARTS = HOPPER_STATE / HOPPER_PART, HOPPER_PART_KEYS = 32 };
typedef float hopper_part[HOPPER_PART];

GDN_DEVICE void take_part(hopper_part &x, const hopper_share &S, int part)
{
#pragma unroll
    for (int i = 0; i < HOPPER_PART; i++) {
        x[i] = S[i];
#pragma unroll
        for (int p = 1; p < HOPPER_PARTS; p++)
            if (p == part) x[i] = S[p * HOPPER_PART + i];
    }
}
GDN_DEVICE void put_part(hopper_share &S, const hopper_part &x, int part)
{
#pragma unroll
    for (int i = 0; i < HOPPER_STATE; i++)
        if (i / HOPPER_PART == part) S[i] = x[i % HOPPER_PART];
}

/* Move a part of a state to or from memory, from key `key` on: as pairs; as pairs or single
 * elements. */
template <int dtype, bool to>
GDN_DEVICE void move_pairs(hopper_part &x, const struct state_place &p,
                           const struct state_part &part, int key)
{
    enum { BYTES = dtype == GDN_F32 ? 4 : 2 };
    const int lane = (int)rare_lane(), v = part.v + lane / 4, k = key + lane % 4 * 2;
    char *const at = p.data + v * p.v_step + k * BYTES;
#pragma unroll
    for (int i = 0; i < HOPPER_PART; i += 2) {
        const int rows = i % 4 / 2 * 8, keys = i / 4 * 8;
        const bool there = v + rows < part.V && k + keys < part.K;
        char *const pair = at + rows * p.v_step + keys * BYTES;
        if (!to)
            state_pair<dtype>::load(pair, x[i], x[i + 1], there);
        else if (there)
            state_pair<dtype>::store(pair, x[i], x[i + 1]);
    }
}
template <int dtype, bool to>
GDN_DEVICE void move_elements(hopper_part &x, const struct state_place &p,
                              const struct state_part &part, int key)
{
    typedef typename gdn_io<dtype>::type element;
    const int lane = (int)rare_lane(), v0 = part.v + lane / 4, k0 = key + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < HOPPER_PART; i += 2) {
        const int v = v0 + i % 4 / 2 * 8, k = k0 + i / 4 * 8;
        char *at = p.data + v * p.v_step + k * p.k_step;
        if (v >= part.V || k >= part.K) continue;
        if (to) {
            gdn_io<dtype>::store((element *)at, x[i]);
            if (k + 1 < part.K) gdn_io<dtype>::store((element *)(at + p.k_step), x[i + 1]);
        } else {
            x[i] = gdn_io<dtype>::load((const element *)at);
            if (k + 1 < part.K) x[i + 1] = gdn_io<dtype>::load((const element *)(at + p.k_step));
        }
    }
}

template <int dtype, bool to>
GDN_DEVICE void move_either(hopper_part &x, const struct state_place &p,
                            const struct state_part &part, int key, bool pairs)
{
    if (in_warp(pairs))
        move_pairs<dtype, to>(x, p, part, key);
    else
        move_elements<dtype, to>(x, p, part, key);
}

template <bool to>
GDN_DEVICE void move_part(hopper_part &x, const struct state_place &p,
                          const struct state_part &part, int key, bool pairs)
{
    switch (p.dtype) {
    case GDN_F32: move_either<GDN_F32, to>(x, p, part, key, pairs); break;
    case GDN_BF16: move_either<GDN_BF16, to>(x, p, part, key, pairs); break;
    default: move_either<GDN_F16, to>(x, p, part, key, pairs); break;
    }
}

/* Prefetches a warp's share to the L2 cache if its rows are keys: reading it takes several
 * trips. */
GDN_DEVICE void prefetch_state(const struct state_place &p, const struct state_part &part)
{
    const int lane = (int)rare_lane(), v = part.v + lane / 2, bytes = p.dtype == GDN_F32 ? 4 : 2;
    const char *row = p.data + v * p.v_step;
    if (!p.data || p.k_step != bytes || v >= part.V) return;
    for (int at = lane % 2 * 128; at < part.K * bytes; at += 256) prefetch(row + at, true);
}

GDN_DEVICE void read_state(hopper_share &S, const struct state_place &p,
                           const struct state_part &part)
{
    const bool pairs = has_pairs(p, part);
#pragma unroll
    for (int i = 0; i < HOPPER_STATE; i++) S[i] = 0;
#pragma unroll 1
    for (int i = 0; p.data && i < HOPPER_PARTS; i++) {
        hopper_part x = {};
        move_part<false>(x, p, part, i * HOPPER_PART_KEYS, pairs);
        put_part(S, x, i);
    }
}

/* Does the same with states of float32, and with all loads at once if they are of pairs. */
GDN_DEVICE void read_state_at_once(hopper_share &S, const struct state_place &p,
                                   const struct state_part &part)
{
    if (in_warp(!p.data || !has_pairs(p, part))) {
        read_state(S, p, part);
        return;
    }
#pragma unroll
    for (int i = 0; i < HOPPER_PARTS; i++) {
        hopper_part x;
        move_pairs<GDN_F32, false>(x, p, part, i * HOPPER_PART_KEYS);
        put_part(S, x, i);
    }
}

GDN_DEVICE void write_state(const hopper_share &S, const struct state_place &p,
                            const struct state_part &part)
{
#pragma unroll 1
    for (int i = 0; p.data && i < HOPPER_PARTS; i++) {
        hopper_part x;
        take_part(x, S, i);
        move_part<true>(x, p, part, i * HOPPER_PART_KEYS, has_pairs(p, part));
    }
}

#endif
