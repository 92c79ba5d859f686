/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token by token, a warp for each part of a state:
 *
 *     S <- alpha S;    p = S^T k    z = S^T q;    u = beta (v - p);    o = z + (k . q) u;
 *     S <- S + k u^T
 *
 * A warp has 16 columns of one state of one sequence, all of K, in registers for the whole call:
 * read once, and written where the caller wants it. Warps share nothing and never wait for each
 * other. Nothing that a warp loads first depends on another load, unless there are cu_seqlens or
 * slots, so a call takes little longer than one trip to memory; and all of its loads are under way
 * before the first is used: 16 warps of 8 KB have 128 KB of a multiprocessor under way.
 *
 * Lanes share K alike in both layouts: 16 partial sums, of which number i takes the chunks of four
 * i, i + 16, ... in order, are added by these numbers' bits 3, 0, 1 and 2. Equal states give equal
 * bits, here and in the other kernels of the family (general_tokens.cuh).
 *
 *   warp_vk   rows of the pool are v. 16 lanes have a row, lane i the chunks i, i + 16, ... of it.
 *   warp_kv   rows of the pool are k. Four or two lanes have a row, one or two partial sums each.
 *
 * What engines decode most has shorter ways, without GDN_EXACT and on rows of v: up to four tokens
 * of bf16 take tensor cores (window.cuh), one token on a state of float32 is warp_one_token.cuh.
 * One token of each sequence is token.cuh, and token_slots.cuh for a few in slots; of K = 128
 * also as many tokens as sequences (token_packed.cuh) and rows of up to four (window_k128.cuh).
 * Rows of more, and tokens whose states are all kept, are window_vk.cuh; rows of several, on states
 * whose rows are k, window_kv.cuh.
 */
#ifndef GDN_CUDA_DECODE_WARP_CUH
#define GDN_CUDA_DECODE_WARP_CUH

#include "cuda/decode/window.cuh"
#include "cuda/decode/warp_one_token.cuh"

/* A lane's elements are N pieces of E. Piece n is in row row() + row_step(n) of the warp's part of
 * the pool, from column column() + column_step(n) on; its element e belongs to v number v_of() of
 * the lane's R, and to element k_element() of chunk k_chunk() of the lane's of k. Of these there
 * are J for each of its PARTS partial sums, number part() and the next ones by 8. BIT: of a lane,
 * bit 0 of part(). */

/* ---- Rows of v ------------------------------------------------------------------------------ */

template <int KC_, int dtype> struct warp_vk {
    enum {
        KC = KC_,
        J = KC / 64,
        PARTS = 1,
        R = 8,
        COLUMNS = 16,
        K_FIRST = 0,
        BIT = 1,
        E = 4,
        N = R * J,
        BLOCKS = KC == 256 ? 2 : 4,
    };
    float S[N][E];

    GDN_DEVICE int part() { return threadIdx.x % 16; }
    GDN_DEVICE int row() { return threadIdx.x % 32 / 16; }
    GDN_DEVICE int row_step(int n) { return n / J * 2; }
    GDN_DEVICE int column() { return threadIdx.x % 16 * 4; }
    GDN_DEVICE int column_step(int n) { return n % J * 64; }
    GDN_DEVICE int v_of(int n, int) { return n / J; }
    GDN_DEVICE int k_chunk(int n) { return n % J; }
    GDN_DEVICE int k_element(int, int e) { return e; }

    /* Returns column c of the lane's R, among the warp's columns. */
    GDN_DEVICE int own(int c) { return row() + 2 * c; }
};

/* ---- Rows of k ------------------------------------------------------------------------------ */

/* A tile of rows of k. If registers suffice, four lanes have a row in pieces of 16 bytes, so that
 * loads touch few rows at once; else two lanes. */
template <int KC_, int dtype> struct warp_kv {
    enum {
        KC = KC_,
        J = KC / 64,
        PARTS = dtype == GDN_F32 && KC <= 128 ? 2 : 1,
        R = 8 / PARTS,
        COLUMNS = 16,
        K_FIRST = 1,
        BIT = COLUMNS / R,
        E = dtype == GDN_F32 ? 4 : 8,
        PIECES = R / E, /* pieces of a row */
        N = 4 * J * PARTS * PIECES,
        BLOCKS = KC == 256    ? 2
                 : PARTS == 2 ? 3
                              : 4,
    };
    float S[N][E];

    GDN_DEVICE int part() { return threadIdx.x % 32 / BIT; }
    GDN_DEVICE int row() { return part() * 4; }
    GDN_DEVICE int row_step(int n)
    {
        return n / PIECES % 4 + k_chunk(n) % J * 64 + k_chunk(n) / J * 32;
    }
    GDN_DEVICE int column() { return threadIdx.x % BIT * E; }
    GDN_DEVICE int column_step(int n) { return n % PIECES * BIT * E; }
    GDN_DEVICE int v_of(int n, int e) { return n % PIECES * E + e; }
    GDN_DEVICE int k_chunk(int n) { return n / PIECES / 4; }
    GDN_DEVICE int k_element(int n, int) { return n / PIECES % 4; }

    GDN_DEVICE int own(int c) { return column() + c / E * BIT * E + c % E; }
};

/* ---- Memory --------------------------------------------------------------------------------- */

/* A warp's columns of a state in memory: the address of the lane's first element, and the rows and
 * columns that are there from it on. */
struct warp_place {
    char *data;
    int row;
    int n_rows, n_columns;
};

/* Returns true if the column of piece n exists. */
template <class Tile> GDN_DEVICE bool is_there(const struct warp_place &p, int n)
{
    return Tile::row_step(n) < p.n_rows && Tile::column_step(n) < p.n_columns;
}

template <class Tile, int dtype> GDN_DEVICE char *piece_at(const struct warp_place &p, int n)
{
    return p.data + Tile::row_step(n) * p.row + Tile::column_step(n) * float_bytes(dtype);
}

template <class Tile, int dtype>
GDN_DEVICE void warp_load(uint32_t (&x)[Tile::N][4], const struct warp_place &p)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        const char *at = piece_at<Tile, dtype>(p, n);
        const bool there = is_there<Tile>(p, n);
        if (Tile::E * float_bytes(dtype) == 16)
            ld_once_v4(x[n], at, there);
        else
            ld_once_v2(x[n], at, there);
    }
}

template <class Tile, int dtype>
GDN_DEVICE void warp_expand(Tile &tile, const uint32_t (&x)[Tile::N][4])
{
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++) {
        const int n = i / Tile::E, e = i % Tile::E;
        tile.S[n][e] = dtype == GDN_F32 ? __uint_as_float(x[n][e % 4])
                                        : bits_to_f32(x[n][e / 2] >> e % 2 * 16 & 0xffff, dtype);
    }
}

template <class Tile, int dtype>
GDN_DEVICE void warp_store(const Tile &tile, const struct warp_place &p)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        char *at = piece_at<Tile, dtype>(p, n);
        uint32_t x[4];
        for (int e = 0; e < Tile::E; e += 2) {
            const float low = tile.S[n][e], high = tile.S[n][e + 1];
            if (dtype == GDN_F32)
                x[e] = __float_as_uint(low), x[e + 1] = __float_as_uint(high);
            else
                x[e / 2] = dtype == GDN_BF16 ? f32_to_bf16x2(low, high) : f32_to_f16x2(low, high);
        }
        if (!is_there<Tile>(p, n)) continue;
        if (Tile::E * float_bytes(dtype) == 16)
            *(uint4 *)at = make_uint4(x[0], x[1], x[2], x[3]);
        else
            *(uint2 *)at = make_uint2(x[0], x[1]);
    }
}

/* Copies bits (G9). */
template <class Tile, int dtype>
GDN_DEVICE void warp_copy(const struct warp_place &to, const struct warp_place &from)
{
    if (to.data == from.data) return;
#pragma unroll 1
    for (int n = 0; n < Tile::N; n++) {
        if (!is_there<Tile>(to, n)) continue;
        if (Tile::E * float_bytes(dtype) == 16)
            *(uint4 *)piece_at<Tile, dtype>(to, n) = *(const uint4 *)piece_at<Tile, dtype>(from, n);
        else
            *(uint2 *)piece_at<Tile, dtype>(to, n) = *(const uint2 *)piece_at<Tile, dtype>(from, n);
    }
}

/* ---- Tokens --------------------------------------------------------------------------------- */

/* A lane's part of a token: its n chunks of k and of q, and v of its last column. */
template <int n> struct warp_token {
    float k[n][4], q[n][4];
    float v, alpha, beta, kq;
};

/* A token in the dtype of memory. */
template <int n> struct warp_raw {
    uint32_t k[n][4], q[n][4], v, g, beta;
};

/* A warp's columns of one head of one sequence, as a lane has them. What belongs to token t is t
 * steps further. */
struct warp_work {
    const char *q, *k, *v, *g, *beta;
    char *out; /* NULL: no output */
    float A_log, dt_bias;
    int n_k;  /* elements of k and q from the lane's first on */
    bool own; /* the lane's last column is there */
};

/* Returns the bit of a lane's number that says whether its last sum is of p or of z. */
template <class Tile> GDN_DEVICE int z_bit(void)
{
    return Tile::PARTS == 1 ? 8 * Tile::BIT : Tile::BIT;
}

/* Returns which of its R columns the lane has the sum of at the end. */
template <class Tile> GDN_DEVICE int last_of_own(void)
{
    const int i = Tile::part();
    return Tile::R == 8 ? (i & 1) * 4 + (i & 2) + (i >> 2 & 1) : (i & 2) + (i >> 2 & 1);
}
template <class Tile> GDN_DEVICE int last_column(void) { return Tile::own(last_of_own<Tile>()); }

/* Returns the lane that has the sum of column c of this lane's R. */
template <class Tile> GDN_DEVICE int lane_of(int c)
{
    const int i = Tile::R == 8 ? c >> 2 | (c & 2) | (c & 1) << 2 : (c & 2) | (c & 1) << 2;
    return i * Tile::BIT +
           threadIdx.x % 32 / (16 / Tile::PARTS * Tile::BIT) * (16 / Tile::PARTS * Tile::BIT) +
           threadIdx.x % Tile::BIT;
}

/* Returns the sum of all 16 partial sums of a lane's. */
template <class Tile> GDN_DEVICE float warp_sum(const float (&part)[Tile::PARTS])
{
    float x = part[0];
    if (Tile::PARTS == 2)
        x += part[Tile::PARTS - 1];
    else
        x += __shfl_xor_sync(0xffffffff, x, 8 * Tile::BIT);
    x += __shfl_xor_sync(0xffffffff, x, 1 * Tile::BIT);
    x += __shfl_xor_sync(0xffffffff, x, 2 * Tile::BIT);
    return x + __shfl_xor_sync(0xffffffff, x, 4 * Tile::BIT);
}

template <class Tile>
GDN_DEVICE float warp_product(const float (&x)[Tile::PARTS * Tile::J][4],
                              const float (&y)[Tile::PARTS * Tile::J][4])
{
    float sums[Tile::PARTS] = {};
#pragma unroll
    for (int i = 0; i < Tile::PARTS * Tile::J * 4; i++) {
        float &sum = sums[i / 4 / Tile::J];
        sum = fmaf(x[i / 4][i % 4], y[i / 4][i % 4], sum);
    }
    return warp_sum<Tile>(sums);
}

template <class Tile>
GDN_DEVICE void warp_fetch(struct warp_raw<Tile::PARTS * Tile::J> &f, const struct gdn_cu_warp &a,
                           const struct warp_work &w, int t)
{
    const int io = a.k.dtype, bytes = float_bytes(io);
    const char *k = w.k + (int64_t)t * a.k.token, *q = w.q + (int64_t)t * a.q.token;
#pragma unroll
    for (int i = 0; i < Tile::PARTS * Tile::J; i++) {
        const int at = i % Tile::J * 64 + i / Tile::J * 32; /* from the lane's first element on */
        load_chunk(f.k[i], k + at * bytes, io, at < w.n_k);
        load_chunk(f.q[i], q + at * bytes, io, at < w.n_k);
    }
    f.v = load_bits(w.v + (int64_t)t * a.v.token, 0, io, w.own);
    f.g = load_parts(w.g + (int64_t)t * a.g.token, 0, a.g.dtype, a.g.data);
    f.beta = load_parts(w.beta + (int64_t)t * a.beta.token, 0, a.beta.dtype, a.beta.data);
}

/* Multiplies k, q and k . q by the factors of k and of q. */
template <class Tile>
GDN_DEVICE void warp_scale(struct warp_token<Tile::PARTS * Tile::J> &to,
                           const struct gdn_cu_warp &a)
{
    float k = 1, q = a.scale;
    if (a.norm != GDN_NO_NORM) {
        k = inverse_length(warp_product<Tile>(to.k, to.k), a.norm, a.norm_eps);
        q = inverse_length(warp_product<Tile>(to.q, to.q), a.norm, a.norm_eps) * a.scale;
    }
#pragma unroll
    for (int i = 0; i < Tile::PARTS * Tile::J * 4; i++) {
        to.k[i / 4][i % 4] *= k;
        to.q[i / 4][i % 4] *= q;
    }
    to.kq = warp_product<Tile>(to.k, to.q);
}

template <class Tile>
GDN_DEVICE void warp_commit(struct warp_token<Tile::PARTS * Tile::J> &to,
                            const struct warp_raw<Tile::PARTS * Tile::J> &f,
                            const struct gdn_cu_warp &a, const struct warp_work &w)
{
    expand_chunks(to.k, f.k, a.k.dtype);
    expand_chunks(to.q, f.q, a.k.dtype);
    warp_scale<Tile>(to, a);
    to.v = bits_to_f32(f.v, a.v.dtype);
    to.alpha = a.g.data ? gate_value(a, bits_to_f32(f.g, a.g.dtype), w.A_log, w.dt_bias, true) : 1;
    to.beta = a.beta.data ? beta_value(a, bits_to_f32(f.beta, a.beta.dtype)) : 1;
}

/* ---- The rule ------------------------------------------------------------------------------- */

/* Computes S <- alpha S. If alpha is 0 it selects zeros (G7). */
template <class Tile> GDN_DEVICE void warp_decay(Tile &tile, float alpha)
{
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++) tile.S[i / Tile::E][i % Tile::E] *= alpha;
    if (alpha != 0) return;
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++) tile.S[i / Tile::E][i % Tile::E] = 0;
}

/* Sums over K: p and then z of a lane's columns. Returns p or z of one column. */
template <class Tile>
GDN_DEVICE float warp_sums(const Tile &tile, const struct warp_token<Tile::PARTS * Tile::J> &t)
{
    enum { R = Tile::R, BIT = Tile::BIT };
    float x[Tile::PARTS][2 * R] = {};
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++) {
        const int n = i / Tile::E, e = i % Tile::E, c = Tile::v_of(n, e);
        const int j = Tile::k_chunk(n), l = Tile::k_element(n, e);
        float *sums = x[j / Tile::J];
        sums[c] = fmaf(tile.S[n][e], t.k[j][l], sums[c]);
        sums[R + c] = fmaf(tile.S[n][e], t.q[j][l], sums[R + c]);
    }
    if (Tile::PARTS == 1) {
        halve<R>(x[0], 8 * BIT);
        halve<R / 2>(x[0], BIT);
    } else {
#pragma unroll
        for (int i = 0; i < 2 * R; i++) x[0][i] += x[Tile::PARTS - 1][i];
        halve<R>(x[0], BIT);
    }
    halve<2>(x[0], 2 * BIT);
    halve<1>(x[0], 4 * BIT);
    return x[0][0];
}

template <class Tile>
GDN_DEVICE void warp_step(Tile &tile, const struct warp_token<Tile::PARTS * Tile::J> &t, char *out,
                          int dtype)
{
    if (t.alpha != 1) warp_decay(tile, t.alpha);
    const float mine = warp_sums(tile, t);
    const float other = __shfl_xor_sync(0xffffffff, mine, z_bit<Tile>());
    const bool is_z = threadIdx.x & z_bit<Tile>();
    const float u = rule_u(t.beta, t.v, is_z ? other : mine);
    if (out && !is_z) store_float(out, 0, dtype, rule_o(t.kq, other, u));
    if (t.beta == 0) return;
    float all[Tile::R]; /* u of the lane's columns */
#pragma unroll
    for (int c = 0; c < Tile::R; c++) all[c] = __shfl_sync(0xffffffff, u, lane_of<Tile>(c));
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++) {
        const int n = i / Tile::E, e = i % Tile::E;
        float &S = tile.S[n][e];
        S = fmaf(t.k[Tile::k_chunk(n)][Tile::k_element(n, e)], all[Tile::v_of(n, e)], S);
    }
}

/* ---- A warp --------------------------------------------------------------------------------- */

/* Returns the address of columns from `column` on in a slot. */
template <class Tile, int dtype>
GDN_DEVICE struct warp_place warp_place_of(const struct gdn_cu_warp &a, const struct gdn_cu_pool &p,
                                           int slot, int head, int column)
{
    const int row = Tile::row() + (Tile::K_FIRST ? 0 : column);
    const int at = Tile::column() + (Tile::K_FIRST ? column : 0);
    return { warp_state(p, slot, head) + (int64_t)row * p.row + at * float_bytes(dtype), p.row,
             (Tile::K_FIRST ? a.K : a.V) - row, (Tile::K_FIRST ? a.V : a.K) - at };
}

template <class Tile>
GDN_DEVICE struct warp_work warp_find(const struct gdn_cu_warp &a, const struct warp_seq &s,
                                      int head, int column)
{
    const int io = float_bytes(a.k.dtype), mine = column + last_column<Tile>();
    const int chunk = Tile::part() * 4;
    struct warp_work w;
    w.q = warp_row(a.q, s, 0, by(head, a.group_q)) + chunk * io;
    w.k = warp_row(a.k, s, 0, by(head, a.group_k)) + chunk * io;
    w.v = warp_row(a.v, s, 0, by(head, a.group_v)) + mine * io;
    w.g = warp_row(a.g, s, 0, head);
    w.beta = warp_row(a.beta, s, 0, head);
    w.A_log = load_vector(a.A_log, head, 0);
    w.dt_bias = load_vector(a.dt_bias, head, 0);
    w.n_k = a.K - chunk;
    w.own = mine < a.V;
    w.out =
        a.out.data && w.own ? warp_row(a.out, s, 0, head) + mine * float_bytes(a.out.dtype) : NULL;
    return w;
}

/* Stores the state after token t, rounded to the pool's dtype, if a slot takes it. */
template <class Tile, int dtype>
GDN_DEVICE void warp_leave(Tile &tile, bool changed, const struct gdn_cu_warp &a,
                           const struct warp_seq &s, const struct warp_place &from, int t, int head,
                           int column)
{
    if (a.rounds && dtype != GDN_F32)
#pragma unroll
        for (int i = 0; i < Tile::N * Tile::E; i++)
            tile.S[i / Tile::E][i % Tile::E] = round_to(tile.S[i / Tile::E][i % Tile::E], dtype);
    const int slot = a.each ? warp_each_slot(a, s, t) : t == s.T - 1 ? s.write : -1;
    if (slot < 0 || !a.to.data) return;
    const struct warp_place to = warp_place_of<Tile, dtype>(a, a.to, slot, head, column);
    if (changed)
        warp_store<Tile, dtype>(tile, to);
    else
        warp_copy<Tile, dtype>(to, from);
}

/* Decodes columns from `column` on of one head of a sequence, token by token. */
template <class Tile, int dtype>
GDN_DEVICE void warp_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head,
                            int column)
{
    enum { CHUNKS = Tile::PARTS * Tile::J };
    const bool given = a.from.data && s.read >= 0;
    struct warp_place from = warp_place_of<Tile, dtype>(a, a.from, s.read, head, column);
    uint32_t x[Tile::N][4];
    Tile tile;
    struct warp_raw<CHUNKS> raw;
    if (!given) from.n_rows = 0;
    warp_load<Tile, dtype>(x, from);
    const struct warp_work w = warp_find<Tile>(a, s, head, column);
    if (s.T > 0) warp_fetch<Tile>(raw, a, w, 0);
    warp_expand<Tile, dtype>(tile, x);
    bool changed = !given;
#pragma unroll 1
    for (int t = 0; t < s.T; t++) {
        struct warp_token<CHUNKS> now;
        if (t > 0) warp_fetch<Tile>(raw, a, w, t);
        warp_commit<Tile>(now, raw, a, w);
        warp_step(tile, now, w.out ? w.out + (int64_t)t * a.out.token : NULL, a.out.dtype);
        changed |= now.alpha != 1 || now.beta != 0;
        warp_leave<Tile, dtype>(tile, changed, a, s, from, t, head, column);
    }
}

template <class Tile>
GDN_DEVICE void warp_zero(const struct gdn_cu_warp &a, const struct warp_seq &s, int head,
                          int column)
{
    const int lane = threadIdx.x % 32;
    if (lane >= Tile::COLUMNS || column + lane >= a.V) return;
    for (int t = 0; t < s.T; t++)
        store_float(warp_row(a.out, s, t, head), column + lane, a.out.dtype, 0);
}

template <class Tile, int KC, int dtype> GDN_DEVICE void decode_warp(const struct gdn_cu_warp &a)
{
    const int row = blockIdx.y + blockIdx.z * gridDim.y, head = by(blockIdx.x, a.head_blocks);
    const int part = blockIdx.x - head * a.n_blocks; /* the part of the head's blocks */
    const int column = (part * (blockDim.x / 32) + threadIdx.x / 32) * Tile::COLUMNS;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (row >= a.n_rows) return;
    const struct warp_seq s = warp_read(a, row);
    if (s.padding) {
        if (a.out.data && !(a.keep && row < a.B)) warp_zero<Tile>(a, s, head, column);
        return;
    }
    if (s.T == 0) return;
    if constexpr (!Tile::K_FIRST && dtype != GDN_F16) {
        if (a.products && s.T <= MMA_TOKENS && (dtype == GDN_BF16 || s.T > 1)) {
            mma_decode<KC, dtype>(a, s, head, column);
            return;
        }
    }
    if constexpr (!Tile::K_FIRST && dtype == GDN_F32) {
        if (a.whole && s.T == 1) {
            once_decode<KC>(a, s, head, column);
            return;
        }
    }
    warp_decode<Tile, dtype>(a, s, head, column);
}

#define DECODE_WARP_KERNEL(threads, name, tile, dtype, KC)                               \
    extern "C" __global__ void __launch_bounds__(threads, tile<KC, GDN_##dtype>::BLOCKS) \
        name(const __grid_constant__ struct gdn_cu_warp a)                               \
    {                                                                                    \
        decode_warp<tile<KC, GDN_##dtype>, KC, GDN_##dtype>(a);                          \
    }

#endif
