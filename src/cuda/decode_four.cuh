/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two to four tokens on states of float32 whose rows are v: decode_one.cuh's rows with the algebra
 * of decode_mma.cuh. The tokens' raw k and q are read from shared memory, one token after the
 * other, and meet the state as it was before all of them; what they read of each other is a product
 * of tensor cores. So there is one trip through the sums, whatever T is, and then a lane has token
 * lane % 4 of its own row.
 *
 * Tensor cores for the state too would need two terms of every element, which costs as much as the
 * sums of two tokens do, and warps of twice the rows.
 */
#ifndef GDN_CUDA_DECODE_FOUR_CUH
#define GDN_CUDA_DECODE_FOUR_CUH

#include "decode_mma.cuh"
#include "decode_one.cuh"

/* A padded row, so that lanes of two columns of X store to banks of their own. */
template <int KC> struct four_shared {
    alignas(16) uint16_t x[2 * MMA_TOKENS][KC + 32];
};

/* What lane (g, t) has asked for: its part of column g of X; of token t the gates, v of the lane's
 * own row, and the slot that the state after it goes to. */
template <int KC> struct four_raw {
    uint32_t         x[KC / 8], v;
    struct one_gates gates;
};

/* Where token t of a head is. */
GDN_DEVICE char *four_at(const struct gdn_cu_at &r, int row, int head, int token, int t)
{
    return one_at(r, row, head) + (int64_t)t * token;
}

template <int KC>
GDN_DEVICE void four_fetch(struct four_raw<KC> &raw, const struct gdn_cu_four &a,
                           const struct one_place &w, int own)
{
    const struct gdn_cu_one &o = a.one;
    const int   lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const char *x = (g & 1 ? four_at(o.q, w.row, one_source(w.head, o.group_q), a.q_token, g / 2)
                           : four_at(o.k, w.row, one_source(w.head, o.group_k), a.k_token, g / 2));
    const bool  there = t < a.T;
#pragma unroll
    for (int i = 0; i < KC / 32; i++) {
        uint32_t y[4];
        ld_keep_v4(y, x + t * 16 + 64 * i, g / 2 < a.T);
        for (int j = 0; j < 4; j++) raw.x[4 * i + j] = y[j];
    }
    const int now = there ? t : 0; /* what is not there is not used */
    raw.gates.g       = ld_4_or_2(four_at(o.g, w.row, w.head, a.g_token, now), o.g_bytes);
    raw.gates.beta    = ld_4_or_2(four_at(o.beta, w.row, w.head, a.beta_token, now), o.beta_bytes);
    raw.gates.A_log   = one_bits(o.A_log, 0, w.head, o.A_log_bytes);
    raw.gates.dt_bias = one_bits(o.dt_bias, 0, w.head, o.dt_bias_bytes);
    raw.v = ld_b32_b16(four_at(o.v, w.row, one_source(w.head, o.group_v), a.v_token, now) + own * 2,
                       false, there);
}

/* G: X^T X, of row g columns k_t and q_t. */
template <int io, int PAIRS> GDN_DEVICE void four_lengths(float (&G)[4], const uint32_t (&x)[PAIRS])
{
#pragma unroll
    for (int p = 0; p < PAIRS; p += 2) {
        const uint32_t a[4] = { x[p], 0, x[p + 1], 0 };
        if (io == GDN_BF16)
            mma_bf16(G, a, x[p], x[p + 1]);
        else
            mma_f16(G, a, x[p], x[p + 1]);
    }
}

template <int KC>
GDN_DEVICE void four_share(struct four_shared<KC> &sh, const uint32_t (&x)[KC / 8])
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < KC / 8; i += 4)
        *(uint4 *)&sh.x[lane / 4][lane % 4 * 8 + 8 * i] = make_uint4(x[i], x[i + 1], x[i + 2],
                                                                     x[i + 3]);
    __syncwarp();
}

/* The lane's elements of a column of X. */
template <class Tile>
GDN_DEVICE void four_take(float (&x)[Tile::C][Tile::E], const struct four_shared<Tile::K> &sh,
                          int column)
{
#pragma unroll
    for (int c = 0; c < Tile::C; c++) {
        uint32_t y[2];
        lds_v2(y, &sh.x[column][threadIdx.x % Tile::LANES * 4 + c * Tile::LANES * 4]);
        for (int e = 0; e < 4; e++) x[c][e] = one_element<Tile::IO>(y[e / 2], e);
    }
}

/* A lane's token in its own row: what it reads of the state by k and by q, its output, its raw u. */
struct four_row {
    float s, z, o, u, v, alpha, beta;
};

/* mma_recur() of one row, every token's u as it was. k, q: the lane's token's factors. */
GDN_DEVICE void four_recur(struct four_row &r, const float (&G)[4], float k, float q, int T)
{
    const int lane = threadIdx.x, t = lane % 4;
#pragma unroll 1
    for (int i = 0; i < T; i++) {
        const float alpha_i = __shfl_sync(0xffffffff, r.alpha, i);
        const float kk      = __shfl_sync(0xffffffff, G[0], 8 * i + t) * k;
        const float kq      = __shfl_sync(0xffffffff, G[1], 8 * i + t) * q;
        r.s = faded(r.s, alpha_i), r.z = faded(r.z, alpha_i);
        const float mine = r.beta == 0 ? 0 : r.beta * (r.v - r.s) * k;
        const float u    = __shfl_sync(0xffffffff, mine, (lane & 28) | i);
        if (u != 0) r.s = fmaf(kk, u, r.s), r.z = fmaf(kq, u, r.z);
        if (t == i) r.o = r.z, r.u = mine;
    }
}

/* The state on through the tokens, and out after those that it is wanted of. slot: of the lane's
 * token. */
template <class Tile>
GDN_DEVICE void four_write(Tile &tile, const struct four_shared<Tile::K> &sh,
                           const struct four_row &r, const struct gdn_cu_four &a,
                           const struct one_place &w, int slot, int row, int at, const char *from)
{
    bool changed = false;
#pragma unroll 1
    for (int t = 0; t < a.T; t++) {
        const float alpha = __shfl_sync(0xffffffff, r.alpha, t);
        const float beta  = __shfl_sync(0xffffffff, r.beta, t);
        const int   to    = __shfl_sync(0xffffffff, slot, t);
        if (alpha != 1 || beta != 0) {
            changed = true;
            four_take<Tile>(tile.k, sh, 2 * t);
            if (__builtin_expect(alpha == 0, 0)) one_forget(&tile.S[0][0][0], Tile::N * Tile::C * 4);
            if (__builtin_expect(beta == 0, 0)) one_forget(&tile.k[0][0], Tile::C * Tile::E);
            one_write(tile, alpha, r.u, t);
        }
        if (to < 0) continue;
        char *const out = one_at(a.one.to, to, w.head) + row * a.one.to_row + at;
        if (changed || out != from) one_store(tile, out, a.one.to_row);
    }
}

/* The slot that the state after the lane's token goes to; -1: nowhere. */
GDN_DEVICE int four_slot(const struct gdn_cu_four &a, const struct one_place &w)
{
    const int t = threadIdx.x % 4;
    if (!a.one.to.data || t >= a.T) return -1;
    if (!a.each) return t == a.T - 1 ? w.to : -1;
    if (t >= a.n_slots) return -1;
    const int slot = a.one.write_slots[w.row * a.one.write_step + t * a.write_token];
    return slot < a.one.write_pool ? slot : -1;
}

/* Rows from v on. */
template <class Tile>
GDN_DEVICE void four_decode(const struct gdn_cu_four &a, const struct one_place &w, int v)
{
    enum { LANES = Tile::LANES, N = Tile::N };
    static_assert(LANES / N == MMA_TOKENS, "a token for each lane that is left with a row's sums");
    __shared__ struct four_shared<Tile::K> sh;
    const struct gdn_cu_one &one = a.one;
    const int                lane = threadIdx.x, own = v + one_own<Tile>(), t = lane % 4;
    const int                row = v + lane / LANES, at = lane % LANES * 16;
    struct four_raw<Tile::K> raw;
    struct four_row          r = {};
    Tile                     tile;
    float                    G[4] = {};
    char *const              from = one_at(one.from, w.from, w.head) + row * one.from_row + at;
    one_load(tile, from, one.from_row);
    four_fetch<Tile::K>(raw, a, w, own);
    const int slot = four_slot(a, w);
    four_share(sh, raw.x);
    four_lengths<Tile::IO>(G, raw.x);
    const float                kk = __shfl_sync(0xffffffff, G[0], 9 * t);
    const float                qq = __shfl_sync(0xffffffff, G[1], 9 * t + 4);
    const struct one_factors f = one_factors_of(kk, qq, 0, one);
    one_expand_gates<Tile::IO>(r.alpha, r.beta, raw.gates, one);
    r.v = one_half<Tile::IO>(raw.v);
#pragma unroll 1
    for (int i = 0; i < a.T; i++) {
        float p, z;
        four_take<Tile>(tile.k, sh, 2 * i);
        four_take<Tile>(tile.q, sh, 2 * i + 1);
        one_read(p, z, tile);
        if (t == i) r.s = p * f.k, r.z = z * f.q;
    }
    four_recur(r, G, f.k, f.q, a.T);
    if (one.out.data && t < a.T)
        one_store_half<Tile::IO>(four_at(one.out, w.row, w.head, a.out_token, t) + own * 2, r.o);
    four_write(tile, sh, r, a, w, slot, row, at, from);
}

/* ---- States of bf16: tensor cores for the state too ------------------------------------------ */

/* Rows v to v + 15. */
template <class Tile>
GDN_DEVICE void four_products(const struct gdn_cu_four &a, const struct one_place &w, int v)
{
    const struct gdn_cu_one &one = a.one;
    const int                lane = threadIdx.x, t = lane % 4, bytes = Tile::PAIRS * 16;
    const bool               there = t < a.T;
    struct four_raw<Tile::PAIRS * 8> raw;
    struct mma_rows          r;
    Tile                     tile;
    float                    D[4] = {}, G[4] = {};
    v += lane / 4;
    char *const from = one_at(one.from, w.from, w.head) + v * one.from_row + t * 16;
    mma_load(tile, from, one.from_row, bytes, true);
    four_fetch<Tile::PAIRS * 8>(raw, a, w, v);
    const char *values = four_at(one.v, w.row, one_source(w.head, one.group_v), a.v_token, t) + 2 * v;
    const uint32_t other = ld_b32_b16(values + 16, false, there);
    mma_lengths(G, raw.x);
    one_expand_gates<GDN_BF16>(r.alpha, r.beta, raw.gates, one);
    if (!there) r.alpha = 1, r.beta = 0;
    const float              kk = __shfl_sync(0xffffffff, G[0], 9 * t);
    const float              qq = __shfl_sync(0xffffffff, G[1], 9 * t + 4);
    const struct one_factors f  = one_factors_of(kk, qq, 0, one);
    r.v[0] = one_half<GDN_BF16>(raw.v), r.v[1] = one_half<GDN_BF16>(other);
    tile.read(D, raw.x);
    for (int h = 0; h < 2; h++) r.s[h] = D[2 * h] * f.k, r.z[h] = D[2 * h + 1] * f.q, r.u[h] = 0;
    mma_recur(r, G, f.k, f.q, a.T);
    if (one.out.data && there) {
        char *const out = four_at(one.out, w.row, w.head, a.out_token, t) + 2 * v;
        for (int h = 0; h < 2; h++) one_store_half<GDN_BF16>(out + 16 * h, r.o[h]);
    }
    if (!one.to.data) return;
    char *const to      = one_at(one.to, w.to, w.head) + v * one.to_row + t * 16;
    const bool  changed = __any_sync(0xffffffff, there && (r.alpha != 1 || r.beta != 0));
    if (changed) mma_turn(raw.x), mma_update(tile, raw.x, r.u, r.total, r.beta != 0);
    if (changed || to != from) mma_store(tile, to, one.to_row, bytes);
}

/* ---- States of bf16 whose rows are k ------------------------------------------------------- */

/*
 * A block has 64 columns, each warp 32 rows of them: lane (g, t) columns 8 g to 8 g + 7 of rows 8 t
 * to 8 t + 7. Two rows' elements of a column, side by side in a word, are what products take, so
 * from there on it is as above, but for sums over warps.
 */
struct turned_tile {
    enum { COLUMNS = 64 };
    uint32_t S[4][2][4]; /* of columns 2 i and 2 i + 1 of the lane the pairs of rows */
};

template <int WARPS> struct turned_shared {
    float4 parts[WARPS][4][32];
    float2 products[WARPS][32], u[4][32];
};

/* Halves of a and b side by side: the lower ones, the higher ones. */
GDN_DEVICE uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; }
GDN_DEVICE uint32_t high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000); }

/* Between pairs of columns as they lie in memory and pairs of rows; its own inverse. */
GDN_DEVICE void turn_pairs(struct turned_tile &tile, uint32_t (&x)[8][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int r = i / 4, c = i % 4;
        tile.S[c][0][r] = low_halves(x[2 * r][c], x[2 * r + 1][c]);
        tile.S[c][1][r] = high_halves(x[2 * r][c], x[2 * r + 1][c]);
    }
}

GDN_DEVICE void turned_update(struct turned_tile &tile, uint32_t (&x)[4], const float2 (&u)[4],
                              float total, bool used)
{
    const uint32_t shift = used ? 1 << 16 : 0;
    for (int p = 0; p < 4; p++) x[p] = turn_matrix(x[p]) * shift;
    if (__builtin_expect(total == 0, 0)) one_forget(&tile.S[0][0][0], 32);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t a[4] = { tf32_high(u[j].x), tf32_high(u[j].y), tf32_rest(u[j].x),
                                tf32_rest(u[j].y) };
#pragma unroll
        for (int p = 0; p < 4; p++) {
            float c[4];
            for (int i = 0; i < 4; i++) c[i] = one_element<GDN_BF16>(tile.S[j][i / 2][p], i) * total;
            mma_tf32(c, a, x[p], x[p]);
            for (int h = 0; h < 2; h++) tile.S[j][h][p] = f32_to_bf16x2(c[2 * h], c[2 * h + 1]);
        }
    }
}

template <int KC>
GDN_DEVICE void four_columns(const struct gdn_cu_four &a, const struct one_place &w, int column)
{
    enum { WARPS = KC / 32 };
    __shared__ struct turned_shared<WARPS> sh;
    const struct gdn_cu_one &one = a.one;
    const int   lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const bool  there = t < a.T;
    const int   row = warp * 32 + t * 8, at = (column + 8 * g) * 2, own = column + 8 * g + 2 * warp;
    char *const from = one_at(one.from, w.from, w.head) + row * one.from_row + at;
    uint32_t           S[8][4], x[4], v[2];
    struct turned_tile tile;
    struct one_gates   gates;
    struct mma_rows    r;
    float              G[4] = {};
#pragma unroll
    for (int n = 0; n < 8; n++) ld_v4(S[n], from + n * one.from_row);
    const char *rows = g & 1 ? four_at(one.q, w.row, one_source(w.head, one.group_q), a.q_token, g / 2)
                             : four_at(one.k, w.row, one_source(w.head, one.group_k), a.k_token, g / 2);
    ld_keep_v4(x, rows + row * 2, g / 2 < a.T);
    const int now = there ? t : 0;
    gates.g       = ld_4_or_2(four_at(one.g, w.row, w.head, a.g_token, now), one.g_bytes);
    gates.beta    = ld_4_or_2(four_at(one.beta, w.row, w.head, a.beta_token, now), one.beta_bytes);
    gates.A_log   = one_bits(one.A_log, 0, w.head, one.A_log_bytes);
    gates.dt_bias = one_bits(one.dt_bias, 0, w.head, one.dt_bias_bytes);
    const char *values = four_at(one.v, w.row, one_source(w.head, one.group_v), a.v_token, now) + own * 2;
    for (int h = 0; h < 2; h++) v[h] = ld_b32_b16(values + 2 * h, false, there);
    mma_lengths(G, x);
    sh.products[warp][lane] = make_float2(G[0], G[1]);
    one_expand_gates<GDN_BF16>(r.alpha, r.beta, gates, one);
    if (!there) r.alpha = 1, r.beta = 0;
    turn_pairs(tile, S);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float D[4] = {};
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
            const uint32_t y[4] = { tile.S[j][0][p], tile.S[j][1][p], tile.S[j][0][p + 1],
                                    tile.S[j][1][p + 1] };
            mma_bf16(D, y, x[p], x[p + 1]);
        }
        sh.parts[warp][j][lane] = make_float4(D[0], D[1], D[2], D[3]);
    }
    __syncthreads();
    float4 sum = make_float4(0, 0, 0, 0);
    G[0] = G[1] = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float4 part = sh.parts[i][warp][lane];
        const float2 products = sh.products[i][lane];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        G[0] += products.x, G[1] += products.y;
    }
    const float              kk = __shfl_sync(0xffffffff, G[0], 9 * t);
    const float              qq = __shfl_sync(0xffffffff, G[1], 9 * t + 4);
    const struct one_factors f  = one_factors_of(kk, qq, 0, one);
    r.s[0] = sum.x * f.k, r.s[1] = sum.z * f.k, r.z[0] = sum.y * f.q, r.z[1] = sum.w * f.q;
    for (int h = 0; h < 2; h++) r.v[h] = one_half<GDN_BF16>(v[h]), r.u[h] = 0;
    mma_recur(r, G, f.k, f.q, a.T);
    sh.u[warp][lane] = make_float2(r.u[0], r.u[1]);
    if (one.out.data && there) {
        char *const out = four_at(one.out, w.row, w.head, a.out_token, t) + own * 2;
        for (int h = 0; h < 2; h++) one_store_half<GDN_BF16>(out + 2 * h, r.o[h]);
    }
    __syncthreads();
    if (!one.to.data) return;
    char *const to      = one_at(one.to, w.to, w.head) + row * one.to_row + at;
    const bool  changed = __any_sync(0xffffffff, there && (r.alpha != 1 || r.beta != 0));
    if (!changed && to == from) return;
    float2 u[4];
    for (int j = 0; j < 4; j++) u[j] = sh.u[j][lane];
    if (changed) turned_update(tile, x, u, r.total, r.beta != 0);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t y[4];
        for (int c = 0; c < 4; c++)
            y[c] = n % 2 ? high_halves(tile.S[c][0][n / 2], tile.S[c][1][n / 2])
                         : low_halves(tile.S[c][0][n / 2], tile.S[c][1][n / 2]);
        one_store(to + n * one.to_row, y);
    }
}

/* The block's place; false: padding. */
GDN_DEVICE bool four_begin(struct one_place &w, const struct gdn_cu_four &a)
{
    const struct gdn_cu_one &o = a.one;
    w.head = blockIdx.y;
    w.row = w.from = w.to = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (__builtin_expect(!o.read_slots, 1)) return true;
    int token = 0;
    if (a.accepted) token = min(max(a.accepted[w.row * a.accepted_step], 1), a.n_reads) - 1;
    w.from = w.to = o.read_slots[w.row * o.read_step + token * a.read_token];
    if (o.write_slots && !a.each) w.to = o.write_slots[w.row * o.write_step];
    return w.from >= 0 && w.from < o.read_pool &&
           (a.each || (w.to >= 0 && w.to < o.write_pool));
}

template <class Tile>
GDN_DEVICE void four_zero(const struct gdn_cu_four &a, const struct one_place &w, int v)
{
    const int i = threadIdx.x % Tile::ROWS;
    if (!a.one.out.data || a.one.keep) return;
    for (int t = threadIdx.x / Tile::ROWS; t < a.T; t += 32 / Tile::ROWS)
        *(uint16_t *)(four_at(a.one.out, w.row, w.head, a.out_token, t) + (v + i) * 2) = 0;
}

template <int KC, int io> GDN_DEVICE void decode_four(const struct gdn_cu_four &a)
{
    typedef one_rows<KC, GDN_F32, io> Tile;
    const int        v = blockIdx.x * Tile::ROWS;
    struct one_place w;
    if (__builtin_expect(four_begin(w, a), 1))
        four_decode<Tile>(a, w, v);
    else
        four_zero<Tile>(a, w, v);
}

#define DECODE_FOUR_KERNEL(threads, name, io, KC)                                             \
    extern "C" __global__ void __launch_bounds__(threads, KC == 256 ? 12 : 24)                \
        name(const __grid_constant__ struct gdn_cu_four a)                                    \
    {                                                                                         \
        decode_four<KC, GDN_##io>(a);                                                         \
    }

#endif
