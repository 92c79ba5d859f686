/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_state_copy. A block has one unit of one pair:
 *
 *     rows   lines of the last dimension, PACKS x 256 packs of eight elements
 *     turn   a tile of 4096 between two dense dimensions, turned in shared memory
 *     eight  32 value columns of a head of which one side, or both, have 8 bits and the other has
 *            another dtype: float32 in shared memory
 *
 * What keeps its dtype never passes through arithmetic (G14).
 */
#include "cuda/device/lines.cuh"
#include "cuda/device/q8.cuh"
#include "cuda/state/args.h"

enum { THREADS = 256, PACKS = 4, TILE = 4096, COLUMNS = 32, MOST_K = 256 };

extern __shared__ uint32_t gdn_copy_shared[];

/* ---- Pairs --------------------------------------------------------------------------------- */

struct gdn_pair {
    const char *from; /* NULL: zeros */
    char *to;         /* NULL: there is nothing to do */
    int64_t from_slot, to_slot;
    uint32_t unit; /* 32 bits suffice: there are fewer than 2^31 blocks */
};

GDN_DEVICE struct gdn_pair find_pair(const struct gdn_cu_copy &a)
{
    const uint32_t n_units = (uint32_t)a.n_units, i = blockIdx.x / n_units;
    struct gdn_pair p = { NULL, NULL, i, i, blockIdx.x - i * n_units };
    if (a.from_slots.data) p.from_slot = load_index(a.from_slots, i);
    if (a.to_slots.data) p.to_slot = load_index(a.to_slots, i);
    const bool zero = !a.from.data || p.from_slot < 0;
    if (p.to_slot < 0 || p.to_slot >= a.to.n_slots) return p;
    if (!zero && (p.from_slot >= a.from.n_slots || (a.same_pool && p.from_slot == p.to_slot)))
        return p;
    p.to = a.to.data + p.to_slot * a.to.slot;
    if (!zero) p.from = a.from.data + p.from_slot * a.from.slot;
    return p;
}

/* ---- Elements ------------------------------------------------------------------------------ */

/* Returns an element as it lies in memory. */
GDN_DEVICE uint32_t load_bits(const char *p, int32_t dtype)
{
    const int64_t bytes = element_bytes(dtype);
    return bytes == 4   ? *(const uint32_t *)p
           : bytes == 2 ? *(const uint16_t *)p
                        : *(const uint8_t *)p;
}
GDN_DEVICE void store_bits(char *p, int32_t dtype, uint32_t x)
{
    const int64_t bytes = element_bytes(dtype);
    if (bytes == 4)
        *(uint32_t *)p = x;
    else if (bytes == 2)
        *(uint16_t *)p = (uint16_t)x;
    else
        *(uint8_t *)p = (uint8_t)x;
}

/* Converts the bits of one float dtype to those of another; of one dtype they stay. */
GDN_DEVICE uint32_t convert_bits(uint32_t x, int32_t from, int32_t to)
{
    if (from == to) return x;
    const float y = from == GDN_F32    ? __uint_as_float(x)
                    : from == GDN_BF16 ? bf16_to_f32((uint16_t)x)
                                       : f16_to_f32((uint16_t)x);
    return to == GDN_F32 ? __float_as_uint(y) : to == GDN_BF16 ? f32_to_bf16(y) : f32_to_f16(y);
}

/* Returns true if the element becomes zero, whatever `from` has. */
GDN_DEVICE bool is_old(const struct gdn_cu_copy &a, int dim, int64_t i)
{
    return dim == a.old_dim && i < a.n_old;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* A pack of a line: its place, and its elements as they were read. */
struct gdn_piece {
    int64_t n;               /* elements up to the end of the line; below 1: there is no pack */
    int64_t first, from, to; /* bytes */
    bool zero;
    struct gdn_pack x;
};

GDN_DEVICE void find_piece(struct gdn_piece &p, const struct gdn_cu_copy &a, bool zero,
                           int64_t index)
{
    const int64_t packs = (a.size[2] + GDN_PACK - 1) / GDN_PACK, lines = a.size[0] * a.size[1];
    const int64_t line = lines == 1 ? 0 : divide(index, packs), i = divide(line, a.size[1]);
    const int64_t j = line - i * a.size[1];
    p.first = (index - line * packs) * GDN_PACK;
    p.n = line < lines ? a.size[2] - p.first : 0;
    p.from = i * a.from.step[0] + j * a.from.step[1] + p.first * a.from.step[2];
    p.to = i * a.to.step[0] + j * a.to.step[1] + p.first * a.to.step[2];
    p.zero = zero || is_old(a, 0, i) || is_old(a, 1, j);
}

/* Returns true if packs of this side move at once. */
GDN_DEVICE bool is_dense(const struct gdn_cu_copy &a, const struct gdn_cu_copy_side &side)
{
    return side.step[2] == element_bytes(side.dtype) && a.old_dim != 2;
}

GDN_DEVICE void load_piece(struct gdn_piece &p, const struct gdn_cu_copy &a, const char *from)
{
    const bool is_code = element_bytes(a.from.dtype) == 1;
#pragma unroll
    for (int i = 0; i < 8; i++) p.x.word[i] = 0;
    if (p.n <= 0 || p.zero || !is_dense(a, a.from)) return;
    if (!is_code)
        load_pack(p.x, a.from.dtype, a.from.access, from + p.from, p.n);
    else if (a.from.access)
        load_pair(p.x.word, from + p.from);
    else
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < p.n) p.x.word[i / 4] |= (uint32_t)(uint8_t)from[p.from + i] << i % 4 * 8;
}

GDN_DEVICE void store_piece(struct gdn_piece &p, const struct gdn_cu_copy &a, char *to)
{
    if (p.n <= 0) return;
    if (a.from.dtype != a.to.dtype && !p.zero) {
        float y[8];
        unpack(y, p.x, a.from.dtype);
        pack(p.x, y, a.to.dtype);
    }
    if (element_bytes(a.to.dtype) > 1)
        store_pack(to + p.to, p.x, a.to.dtype, a.to.access, p.n);
    else if (a.to.access)
        store_pair(to + p.to, p.x.word);
    else
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < p.n) to[p.to + i] = (char)(p.x.word[i / 4] >> i % 4 * 8);
}

/* Moves a pack element by element, with any steps. */
GDN_DEVICE void move_elements(const struct gdn_piece &p, const struct gdn_cu_copy &a,
                              const char *from, char *to)
{
#pragma unroll 1
    for (int i = 0; i < GDN_PACK && i < p.n; i++) {
        uint32_t x = 0;
        if (!p.zero && !is_old(a, 2, p.first + i))
            x = convert_bits(load_bits(from + p.from + i * a.from.step[2], a.from.dtype),
                             a.from.dtype, a.to.dtype);
        store_bits(to + p.to + i * a.to.step[2], a.to.dtype, x);
    }
}

GDN_DEVICE void copy_rows(const struct gdn_cu_copy &a)
{
    const struct gdn_pair pair = find_pair(a);
    struct gdn_piece p[PACKS];
    if (!pair.to) return;
    const bool is_fast = is_dense(a, a.to) && (!pair.from || is_dense(a, a.from));
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        find_piece(p[i], a, !pair.from, ((int64_t)pair.unit * PACKS + i) * THREADS + threadIdx.x);
        if (is_fast) load_piece(p[i], a, pair.from);
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        if (is_fast)
            store_piece(p[i], a, pair.to);
        else
            move_elements(p[i], a, pair.from, pair.to);
    }
}

/* ---- Tiles --------------------------------------------------------------------------------- */

/* Copies a tile. Dimension a.turned is dense in `from`, the last one in `to`; a unit has one index
 * of the third. To load, element e of a tile is number e % high along a.turned. To store, it is e %
 * wide along the last dimension. */
GDN_DEVICE void copy_turn(const struct gdn_cu_copy &a)
{
    enum { MINE = TILE / THREADS };
    const struct gdn_pair pair = find_pair(a);
    const int d = a.turned, other = 1 - d, row = (1 << a.wide) + 1;
    const uint32_t n = (uint32_t)((a.size[2] - 1) >> a.wide) + 1;
    const uint32_t m = (uint32_t)((a.size[d] - 1) >> a.high) + 1, line = pair.unit / n;
    const int64_t first = (int64_t)(line % m) << a.high, last = (int64_t)(pair.unit % n) << a.wide;
    const int64_t o = line / m;
    uint32_t bits[MINE], *tile = gdn_copy_shared;
    if (!pair.to) return;
    const char *from = pair.from + o * a.from.step[other];
    char *to = pair.to + o * a.to.step[other];
    const bool is_zero = !pair.from || is_old(a, other, o);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int e = threadIdx.x + i * THREADS;
        const int64_t x = first + (e & ((1 << a.high) - 1)), y = last + (e >> a.high);
        bits[i] = 0;
        if (!is_zero && x < a.size[d] && y < a.size[2] && !is_old(a, d, x) && !is_old(a, 2, y))
            bits[i] = load_bits(from + x * a.from.step[d] + y * a.from.step[2], a.from.dtype);
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int e = threadIdx.x + i * THREADS;
        tile[(e & ((1 << a.high) - 1)) * row + (e >> a.high)] = bits[i];
    }
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < MINE; i++) {
        const int e = threadIdx.x + i * THREADS, j = e & ((1 << a.wide) - 1);
        const int64_t x = first + (e >> a.wide), y = last + j;
        const uint32_t bit = tile[(e >> a.wide) * row + j];
        if (x < a.size[d] && y < a.size[2])
            store_bits(to + x * a.to.step[d] + y * a.to.step[2], a.to.dtype,
                       convert_bits(bit, a.from.dtype, a.to.dtype));
    }
}

/* ---- 8 bits -------------------------------------------------------------------------------- */

/* A block of value columns. Sizes and steps are of head, value column and key. A unit has a head's
 * columns from v0 on. */
struct gdn_block {
    int64_t head, v0;
    int n, K; /* columns, elements of each */
};

/* The order in which warps and lanes walk through a block: that of memory on one side. The lanes
 * are along k or along v, whichever lies side by side. */
struct gdn_walk {
    bool by_k;
    int inner, outer;
};

GDN_DEVICE struct gdn_walk walk_of(const struct gdn_cu_copy_side &side, const struct gdn_block &b)
{
    const bool by_k = (side.step[2] < 0 ? -side.step[2] : side.step[2]) <=
                      (side.step[1] < 0 ? -side.step[1] : side.step[1]);
    return { by_k, by_k ? b.K : b.n, by_k ? b.n : b.K };
}

#define FOR_BLOCK(w, o, i)                                         \
    for (int o = threadIdx.x / 32; o < w.outer; o += THREADS / 32) \
    _Pragma("unroll 4") for (int i = threadIdx.x % 32; i < w.inner; i += 32)

GDN_DEVICE int64_t element_at(const struct gdn_cu_copy_side &side, const struct gdn_block &b, int v,
                              int k)
{
    return b.head * side.step[0] + (b.v0 + v) * side.step[1] + k * side.step[2];
}

GDN_DEVICE float *scales_at(const struct gdn_cu_copy_side &side, const struct gdn_block &b,
                            int64_t slot)
{
    if (!side.scales) return NULL;
    return side.scales + slot * side.scales_slot + b.head * side.scales_head + b.v0;
}

GDN_DEVICE void load_block(const struct gdn_cu_copy &a, const struct gdn_pair &pair,
                           const struct gdn_block &b)
{
    const struct gdn_cu_copy_side &side = a.from;
    float *S = (float *)gdn_copy_shared;
    const float *scales = scales_at(side, b, pair.from_slot);
    const struct gdn_walk w = walk_of(side, b);
    FOR_BLOCK(w, o, i)
    {
        const int v = w.by_k ? o : i, k = w.by_k ? i : o;
        float x = 0;
        const char *p = pair.from + element_at(side, b, v, k);
        if (pair.from && is_q8(side.dtype))
            x = eight_value(*(const uint8_t *)p, side.dtype) * (scales ? scales[v] : 1);
        else if (pair.from)
            x = load_float(p, 0, side.dtype);
        S[v * (MOST_K + 1) + k] = x;
    }
    __syncthreads();
}

/* Rounds columns to codes in place, a warp one column at a time. */
GDN_DEVICE void round_block(const struct gdn_cu_copy &a, const struct gdn_pair &pair,
                            const struct gdn_block &b)
{
    const int lane = threadIdx.x % 32;
    float *scales = scales_at(a.to, b, pair.to_slot);
    for (int v = threadIdx.x / 32; v < b.n; v += THREADS / 32) {
        uint32_t *S = gdn_copy_shared + v * (MOST_K + 1);
        uint32_t largest = 0;
        for (int k = lane; k < b.K; k += 32)
            largest = max(largest, magnitude(__uint_as_float(S[k])));
        for (int step = 16; step; step /= 2)
            largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
        const struct eight_scale scale = eight_scale_of(largest, a.to.dtype, scales);
        const uint32_t key = a.random ? eight_key(a.seed, 0, b.head, b.v0 + v) : 0;
        for (int k = lane; k < b.K; k += 32)
            S[k] = eight_code(__uint_as_float(S[k]), scale.inverse, eight_draw(key, k), a.random,
                              a.to.dtype);
        if (scales && lane == 0) scales[v] = scale.scale;
    }
    __syncthreads();
}

GDN_DEVICE void copy_eight(const struct gdn_cu_copy &a)
{
    const struct gdn_pair pair = find_pair(a);
    const uint32_t blocks = (uint32_t)((a.size[1] + COLUMNS - 1) / COLUMNS);
    struct gdn_block b = { pair.unit / blocks, pair.unit % blocks * COLUMNS, COLUMNS, 0 };
    if (!pair.to) return;
    if (a.size[1] - b.v0 < COLUMNS) b.n = (int)(a.size[1] - b.v0);
    b.K = (int)a.size[2];
    load_block(a, pair, b);
    if (is_q8(a.to.dtype)) round_block(a, pair, b);
    const struct gdn_walk w = walk_of(a.to, b);
    FOR_BLOCK(w, o, i)
    {
        const int v = w.by_k ? o : i, k = w.by_k ? i : o;
        const uint32_t x = gdn_copy_shared[v * (MOST_K + 1) + k];
        char *p = pair.to + element_at(a.to, b, v, k);
        if (is_q8(a.to.dtype))
            *(uint8_t *)p = (uint8_t)x;
        else
            store_float(p, 0, a.to.dtype, __uint_as_float(x));
    }
}

#define GDN_IMAGE_state_copy GDN_THIS_IMAGE
#define GDN_KERNEL_state_copy(threads, shared, form)                        \
    extern "C" __global__ void __launch_bounds__(threads, 2)                \
        gdn_state_copy_##form(const __grid_constant__ struct gdn_cu_copy a) \
    {                                                                       \
        copy_##form(a);                                                     \
    }
#include "cuda/driver/kernels.cuh"
