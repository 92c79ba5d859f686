/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Padded rows of several tokens on states whose rows are k, in windows of four: window.cuh's
 * algebra on the columns of token.cuh. A block has 64 columns, each warp 32 rows of them, in
 * float32. The warps read the state before the window by raw k and q of each token, and meet. Then
 * they go through the tokens, by what these read of the state and of each other. Four lanes have a
 * column, and a warp 16 columns. They meet again, and add all of the window's u k^T.
 *
 * X = [k0 q0 k1 q1 ...]. A lane has 16 bytes of one column, which are in the warp's rows. So two
 * products of tensor cores make the warp's part of X^T X.
 */
#ifndef GDN_CUDA_DECODE_FEW_CUH
#define GDN_CUDA_DECODE_FEW_CUH

#include "cuda/decode/window.cuh"
#include "cuda/decode/token.cuh"

template <int KC, int dtype> struct few_tile : columns_shape<KC, dtype> {
    typedef columns_shape<KC, dtype> shape;
    enum {
        /* groups of 16 columns that a warp takes through the tokens; the last of many warps have
         * none */
        GROUPS = shape::WARPS < 4 ? 4 / shape::WARPS : 1,
    };
    float S[shape::N][shape::E];

    __device__ __forceinline__ float get(int n, int e) const { return S[n][e]; }
};

/* The shared memory of a block. Strides keep the lanes of a column, one for each token, in
 * different banks. */
template <class Tile> struct few_shared {
    alignas(16) float x[2 * MMA_TOKENS][Tile::KC];
    float parts[2 * MMA_TOKENS][Tile::WARPS * Tile::COLUMNS + 4]; /* S X with raw k and q, of each
                                                                     warp */
    float u[MMA_TOKENS][Tile::COLUMNS + 8];                       /* for the final state */
    float2 products[Tile::WARPS][32];
};

/* The loads of a window: the lane's part of X, v of its columns, the gates of its token. */
template <class Tile> struct few_raw {
    uint32_t x[4], v[Tile::GROUPS][2];
    struct warp_gates gates;
};

/* ---- Memory --------------------------------------------------------------------------------- */

/* Returns the address of the lane's first piece of a state in a slot. */
template <class Tile>
GDN_DEVICE char *few_at(const struct gdn_cu_pool &p, int slot, int head, int column)
{
    const int at = column * (16 / Tile::E) + threadIdx.x % Tile::LANES * 16;
    return warp_state(p, slot, head) + Tile::row() * p.row + at;
}

template <class Tile> GDN_DEVICE void few_expand(Tile &tile, const uint32_t (&x)[Tile::N][4])
{
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::E; i++)
        tile.S[i / Tile::E][i % Tile::E] = Tile::piece::get(x[i / Tile::E], i % Tile::E);
}

template <class Tile> GDN_DEVICE void few_store(const Tile &tile, char *to, int row)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        uint32_t x[4];
        Tile::piece::set(x, tile.S[n]);
        token_store(to + n * row, x);
    }
}

/* Copies bits (G9). */
template <class Tile> GDN_DEVICE void few_copy(char *to, int to_row, const char *from, int from_row)
{
#pragma unroll 1
    for (int n = 0; n < Tile::N; n++)
        *(uint4 *)(to + n * to_row) = *(const uint4 *)(from + n * from_row);
}

/* Returns the lane's first column in a group. Its other column is 8 further. */
template <class Tile> GDN_DEVICE int few_column(int group)
{
    return (threadIdx.x / 32 + group * Tile::WARPS) * 16 % Tile::COLUMNS + threadIdx.x % 32 / 4;
}

template <class Tile>
GDN_DEVICE void few_fetch(struct few_raw<Tile> &raw, const struct gdn_cu_warp &a,
                          const struct warp_seq &s, int head, int column)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *x = g & 1 ? warp_row(a.q, s, g / 2, by(head, a.group_q))
                          : warp_row(a.k, s, g / 2, by(head, a.group_k));
    const char *v = warp_row(a.v, s, t, by(head, a.group_v)) + 2 * column;
    ld_keep_v4(raw.x, x + threadIdx.x / 32 * 64 + t * 16, g / 2 < s.T);
#pragma unroll
    for (int i = 0; i < 2 * Tile::GROUPS; i++)
        raw.v[i / 2][i % 2] =
            ld_b32_b16(v + 2 * (few_column<Tile>(i / 2) + i % 2 * 8), false, t < s.T);
    warp_fetch_gates(raw.gates, a, s, head, t);
}

/* ---- A window ------------------------------------------------------------------------------- */

/* Stores X to shared memory, and the warp's part of X^T X. */
template <class Tile>
GDN_DEVICE void few_commit(struct few_shared<Tile> &sh, const uint32_t (&x)[4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float G[4] = {}, *const to = &sh.x[lane / 4][warp * 32 + lane % 4 * 8];
#pragma unroll
    for (int i = 0; i < 4; i += 2)
        *(float4 *)&to[2 * i] =
            make_float4(__uint_as_float(x[i] << 16), __uint_as_float(x[i] & 0xffff0000),
                        __uint_as_float(x[i + 1] << 16), __uint_as_float(x[i + 1] & 0xffff0000));
    mma_lengths(G, x);
    sh.products[warp][lane] = make_float2(G[0], G[1]);
}

/* Computes the tokens for the warp's columns: out and u. */
template <class Tile>
GDN_DEVICE void few_rule(struct few_shared<Tile> &sh, struct mma_rows &r,
                         const uint32_t (&v)[Tile::GROUPS][2], const struct gdn_cu_warp &a,
                         const struct warp_seq &s, int head, int column)
{
    const int t = threadIdx.x % 4, warp = threadIdx.x / 32;
    const bool there = t < s.T, own = warp < Tile::COLUMNS / 16;
    float G[4] = {}, k, q;
#pragma unroll
    for (int w = 0; w < Tile::WARPS; w++) {
        const float2 y = sh.products[w][threadIdx.x % 32];
        G[0] += y.x, G[1] += y.y;
    }
    mma_factors(k, q, G, a);
    const float beta = r.beta;
#pragma unroll 1
    for (int group = 0; group < Tile::GROUPS; group++) {
        const int first = few_column<Tile>(group);
        r.beta = beta; /* mma_recur() sets it to 0 for tokens that are forgotten */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float p = 0, z = 0;
            for (int w = 0; w < Tile::WARPS; w++) {
                p += sh.parts[2 * t][w * Tile::COLUMNS + first + 8 * h];
                z += sh.parts[2 * t + 1][w * Tile::COLUMNS + first + 8 * h];
            }
            r.s[h] = p * k, r.z[h] = z * q, r.u[h] = 0;
            r.v[h] = __uint_as_float((group ? v[Tile::GROUPS - 1][h] : v[0][h]) << 16);
        }
        mma_recur(r, G, k, q, s.T);
#pragma unroll
        for (int h = 0; h < 2 && own; h++) {
            sh.u[t][first + 8 * h] = r.u[h];
            if (a.out.data && there)
                store_float(warp_row(a.out, s, t, head), column + first + 8 * h, a.out.dtype,
                            r.o[h]);
        }
    }
}

/* Computes S <- total S + the sum of u k^T. */
template <class Tile>
GDN_DEVICE void few_update(Tile &tile, const struct few_shared<Tile> &sh, float total, int T)
{
    enum { E = Tile::E };
#pragma unroll
    for (int i = 0; i < Tile::N * E; i++) tile.S[i / E][i % E] *= total;
    if (__builtin_expect(total == 0, 0)) token_forget(&tile.S[0][0], Tile::N * E);
#pragma unroll 1
    for (int t = 0; t < T; t++) {
        float u[E];
#pragma unroll
        for (int e = 0; e < E; e++) u[e] = sh.u[t][threadIdx.x % Tile::LANES * E + e];
#pragma unroll
        for (int i = 0; i < Tile::N; i += 4) {
            const float4 k4 = *(const float4 *)&sh.x[2 * t][Tile::row() + i];
            const float k[4] = { k4.x, k4.y, k4.z, k4.w };
            for (int j = 0; j < 4 * E; j++)
                tile.S[i + j / E][j % E] = fmaf(u[j % E], k[j / E], tile.S[i + j / E][j % E]);
        }
    }
}

/* Computes a window's outputs, and the state after it if asked. Returns true if it has changed. */
template <class Tile>
GDN_DEVICE bool few_step(Tile &tile, struct few_shared<Tile> &sh, const struct few_raw<Tile> &raw,
                         const struct gdn_cu_warp &a, const struct warp_seq &w, int head,
                         int column, bool wanted)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    const bool there = t < w.T;
    struct mma_rows r;
    __syncwarp();
    few_commit<Tile>(sh, raw.x);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < w.T; i++)
        columns_read(&sh.parts[2 * i][warp * Tile::COLUMNS],
                     &sh.parts[2 * i + 1][warp * Tile::COLUMNS], tile, sh.x[2 * i],
                     sh.x[2 * i + 1]);
    warp_expand_gates(r.alpha, r.beta, raw.gates, a, there);
    __syncthreads();
    few_rule<Tile>(sh, r, raw.v, a, w, head, column);
    if (r.beta == 0) /* this k must not be used */
        *(float4 *)&sh.x[2 * t][warp * 32 + lane / 4 * 4] = make_float4(0, 0, 0, 0);
    __syncthreads();
    const bool changed = __any_sync(0xffffffff, there && (r.alpha != 1 || r.beta != 0));
    if (changed && wanted) few_update(tile, sh, r.total, w.T);
    return changed;
}

/* ---- A block -------------------------------------------------------------------------------- */

/* Decodes columns from `column` on of one head of a sequence. */
template <class Tile>
GDN_DEVICE void few_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head,
                           int column)
{
    __shared__ struct few_shared<Tile> sh;
    const bool given = a.from.data && s.read >= 0;
    struct warp_seq w = window_of(s, 0);
    struct few_raw<Tile> raw;
    Tile tile;
    {
        const char *from = few_at<Tile>(a.from, s.read, head, column);
        uint32_t x[Tile::N][4];
#pragma unroll
        for (int n = 0; n < Tile::N; n++) ld_once_v4(x[n], from + n * a.from.row, given);
        few_fetch(raw, a, w, head, column);
        few_expand(tile, x);
    }
    bool changed = !given;
#pragma unroll 1
    for (int done = MMA_TOKENS;; done += MMA_TOKENS) {
        changed |= few_step(tile, sh, raw, a, w, head, column, a.to.data || done < s.T);
        if (done >= s.T) break;
        w = window_of(s, done);
        few_fetch(raw, a, w, head, column);
    }
    if (!a.to.data || s.write < 0) return;
    head = opaque(head); /* so that registers do not keep addresses meanwhile */
    const char *const from = few_at<Tile>(a.from, s.read, head, column);
    char *const to = few_at<Tile>(a.to, s.write, head, column);
    if (changed)
        few_store(tile, to, a.to.row);
    else if (to != from)
        few_copy<Tile>(to, a.to.row, from, a.from.row);
}

template <class Tile>
GDN_DEVICE void few_zero(const struct gdn_cu_warp &a, const struct warp_seq &s, int head,
                         int column)
{
    const int n = s.T * Tile::COLUMNS;
    if (!a.out.data || a.keep) return;
    for (int i = threadIdx.x; i < n; i += Tile::KC)
        store_float(warp_row(a.out, s, i / Tile::COLUMNS, head), column + i % Tile::COLUMNS,
                    a.out.dtype, 0);
}

/* Decodes a block. Blocks are numbered by parts of a head, then heads, then sequences, as states
 * lie in memory. */
template <int KC, int dtype> GDN_DEVICE void decode_window_kv(const struct gdn_cu_warp &a)
{
    typedef few_tile<KC, dtype> Tile;
    const int row = blockIdx.y + blockIdx.z * gridDim.y, head = by(blockIdx.x, a.head_blocks);
    const int column = (blockIdx.x - head * a.n_blocks) * Tile::COLUMNS;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (row >= a.n_rows) return;
    const struct warp_seq s = warp_read(a, row);
    if (s.padding)
        few_zero<Tile>(a, s, head, column);
    else
        few_decode<Tile>(a, s, head, column);
}

#define DECODE_WINDOW_KV_KERNEL(threads, name, dtype, KC)                           \
    extern "C" __global__ void __launch_bounds__(threads, KC == 128 ? 5 : 512 / KC) \
        name(const __grid_constant__ struct gdn_cu_warp a)                          \
    {                                                                               \
        decode_window_kv<KC, GDN_##dtype>(a);                                       \
    }

#endif
