/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a chunk of tokens needs before the state comes into it, from its keys, queries and gates.
 * With G the sums of the gates since the start of the chunk (or since the last one that forgets),
 * and rows of K, Q the tokens, of length one,
 *
 *     L_ij = beta_i exp(G_i - G_j) k_i . k_j  for j < i        T = (I + L)^-1 diag(beta)
 *     P_ij = scale exp(G_i - G_j) q_i . k_j   for j <= i
 *
 * Only exp of differences, which gates make no larger than 1; across a token that forgets it is not
 * computed but zero. Keys and queries stay as they are: 1 / length is a factor of rows.
 *
 * Four warps: 16 rows each of the Gram matrices, on tensor cores; the inverse in float32.
 */
#ifndef GDN_CUDA_PREFILL_CHUNK_CUH
#define GDN_CUDA_PREFILL_CHUNK_CUH

#include "cuda/device/quad.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/prefill/general.h"
#include "cuda/device/ptx_load_parts.cuh"
#include "cuda/device/rule.cuh"

typedef unsigned long long token_mask; /* bit t: token t of a chunk */

/* The gates of one chunk, in shared memory: a value for each token, 0 after the last one. */
template <int chunk> struct chunk_gates {
    float G[chunk], beta[chunk];    /* G in units of log 2 */
    float decay;                    /* of the state: exp(G_end), or 0 */
    int n;                          /* tokens that exist */
    uint32_t resets[2], writers[2]; /* bits of tokens: a token that forgets; a token with beta
                                       other than 0 */
};

/* The gates of one chunk, and factors made of gates and lengths; 0, and 1 for lengths, after the
 * last token. */
template <int chunk> struct chunk_vectors : chunk_gates<chunk> {
    float q_scale[chunk];    /* scale / length of q */
    float q_start[chunk];    /* of q . S in the output: exp(G) q_scale; 0 after a token that
                                forgets */
    float k_scale[chunk];    /* 1 / length of k */
    float from_start[chunk]; /* of k . S in R: exp(G) k_scale */
    float to_end[chunk];     /* of u in the state: exp(G_end - G) k_scale; 0 before a token that
                                forgets */
    uint32_t dead[2];        /* bits of tokens whose row of L is not finite */
};
static_assert(sizeof(chunk_vectors<64>) <= GDN_PREFILL_VECTORS_BYTES(64), "general.h");

GDN_DEVICE token_mask tokens_of(const uint32_t (&words)[2])
{
    return (token_mask)words[1] << 32 | words[0];
}
/* Returns a mask of tokens 0 to n - 1. */
GDN_DEVICE token_mask tokens_below(int n)
{
    return n >= 64 ? ~(token_mask)0 : ((token_mask)1 << n) - 1;
}
/* Returns true if one of tokens j + 1 to i forgets. */
GDN_DEVICE bool are_parted(token_mask resets, int j, int i)
{
    return resets && (resets & tokens_below(i + 1) & ~tokens_below(j + 1)) != 0;
}
/* Returns a mask of the tokens that reach token i: token i, and the tokens before it from the
 * last one that forgets on. */
GDN_DEVICE token_mask tokens_seen(token_mask resets, int i)
{
    const token_mask before = tokens_below(i + 1), forget = resets & before;
    return forget ? before & ~tokens_below(63 - __clzll((long long)forget)) : before;
}
/* Returns the first of these tokens. */
GDN_DEVICE int first_seen(token_mask resets, int i)
{
    return max(63 - __clzll((long long)(resets & tokens_below(i + 1))), 0);
}

GDN_DEVICE bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

/* ---- Gates: one warp, lane l has tokens l and l + 32 ----------------------------------------- */

/* Gates in the dtype of memory. They are loaded while the warp works on the chunk before. */
template <int chunk> struct raw_gates {
    static constexpr int each = (chunk + 31) / 32;
    uint32_t g[each], beta[each];
    float A_log, dt_bias;           /* of the head */
    const char *next_g, *next_beta; /* addresses of the lane's gates in the next chunk; NULL:
                                       none */
    int left;                       /* tokens from there on */

    __device__ __forceinline__ bool is_there(int i) const
    {
        return left > 32 * i && (chunk % 32 == 0 || threadIdx.x % 32 < chunk);
    }
};

/* Begins to load the gates of the chunk. The next call loads those of the chunk `each` later. All
 * loads are of words: a load of two bytes into the same register would wait for the one before.
 * There are not enough registers to keep both, and the first T waits for these loads. */
template <int each, int chunk>
GDN_DEVICE void fetch_gates(raw_gates<chunk> &raw, const struct gdn_cu_rule &r)
{
    const bool g = raw.next_g && r.g.dtype == GDN_F32,
               beta = raw.next_beta && r.beta.dtype == GDN_F32;
#pragma unroll
    for (int i = 0; i < raw.each; i++) {
        raw.g[i] = raw.beta[i] = 0;
        ld_word(raw.g[i], raw.next_g + 32 * i * r.g.token, g && raw.is_there(i));
        ld_word(raw.beta[i], raw.next_beta + 32 * i * r.beta.token, beta && raw.is_there(i));
    }
    if (__any_sync(0xffffffff, !g || !beta)) {
#pragma unroll
        for (int i = 0; i < raw.each; i++) {
            ld_half(raw.g[i], raw.next_g + 32 * i * r.g.token, !g && raw.next_g && raw.is_there(i));
            ld_half(raw.beta[i], raw.next_beta + 32 * i * r.beta.token,
                    !beta && raw.next_beta && raw.is_there(i));
        }
    }
    if (raw.next_g) raw.next_g += each * chunk * r.g.token;
    if (raw.next_beta) raw.next_beta += each * chunk * r.beta.token;
    raw.left -= each * chunk;
}

/* Begins to load gates, of chunk c first. */
template <int chunk>
GDN_DEVICE void start_gates(raw_gates<chunk> &raw, const struct gdn_cu_rule &r,
                            const struct gdn_cu_seq &s, int head, int c)
{
    const int t = c * chunk + threadIdx.x % 32;
    raw.A_log = load_vector(r.A_log, head, 0);
    raw.dt_bias = load_vector(r.dt_bias, head, 0);
    raw.next_g = r.g.data ? row_at(r.g, s, t, head) : NULL;
    raw.next_beta = r.beta.data ? row_at(r.beta, s, t, head) : NULL;
    raw.left = (int)clamp64(s.n_valid - t, 0, INT32_MAX);
}

/* Returns inclusive sums over lanes. With resets, a sum starts anew at each reset. before: the sum
 * of the word before. */
GDN_DEVICE float scan_lanes(float x)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float y = __shfl_up_sync(0xffffffff, x, step);
        if (lane >= step) x += y;
    }
    return x;
}
GDN_DEVICE float scan_from_resets(float x, bool reset, float before)
{
    const int lane = threadIdx.x % 32;
    bool anew = reset;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
        const float y = __shfl_up_sync(0xffffffff, x, step);
        const int other = __shfl_up_sync(0xffffffff, (int)anew, step);
        if (lane < step) continue;
        if (!anew) x += y;
        anew |= other != 0;
    }
    return anew ? x : x + before;
}

/* Converts the gates of a chunk of n tokens: log alpha into G, beta into v, and the masks. It takes
 * one gate at a time, because the code is long, and no warp waits for it. */
template <int chunk>
GDN_DEVICE void expand_gates(float (&G)[raw_gates<chunk>::each], chunk_gates<chunk> &v,
                             const raw_gates<chunk> &raw, const struct gdn_cu_rule &r, int n)
{
    const int lane = threadIdx.x % 32;
    token_mask resets = 0, writers = 0;
#pragma unroll 1
    for (int i = 0; i < raw.each; i++) {
        const bool there = lane + 32 * i < n;
        float g = bits_to_f32(i ? raw.g[raw.each - 1] : raw.g[0], r.g.dtype);
        float beta = bits_to_f32(i ? raw.beta[raw.each - 1] : raw.beta[0], r.beta.dtype);
        g = there && r.g.data ? gate_value(r, g, raw.A_log, raw.dt_bias, false) : 0;
        beta = !there ? 0 : r.beta.data ? beta_value(r, beta) : 1;
        resets |= (token_mask)__ballot_sync(0xffffffff, gate_forgets(g)) << 32 * i;
        writers |= (token_mask)__ballot_sync(0xffffffff, beta != 0) << 32 * i;
        if (lane + 32 * i < chunk) v.beta[lane + 32 * i] = beta;
#pragma unroll
        for (int j = 0; j < raw.each; j++)
            if (j == i) G[j] = g;
    }
    if (lane != 0) return;
    v.resets[0] = (uint32_t)resets;
    v.resets[1] = (uint32_t)(resets >> 32);
    v.writers[0] = (uint32_t)writers;
    v.writers[1] = (uint32_t)(writers >> 32);
}

/* Sums gates into G, from the start of the chunk or from the last token that forgets. */
template <int each> GDN_DEVICE void sum_gates(float (&G)[each], token_mask resets)
{
    float end = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
        const bool reset = resets >> (threadIdx.x % 32 + 32 * i) & 1;
        const float g = reset ? 0 : G[i] * 1.44269504f;
        G[i] = resets ? scan_from_resets(g, reset, end) : i ? scan_lanes(g) + end : scan_lanes(g);
        end = __shfl_sync(0xffffffff, G[i], 31);
    }
}

/* Sets x for all tokens. Lengths are multiplied later. A whole warp calls it. */
template <int chunk> GDN_DEVICE void fill_tokens(float (&of)[chunk], float x)
{
    for (int t = threadIdx.x % 32; t < chunk; t += 32) of[t] = x;
}

/* Writes all vectors except k_scale and q_scale. Follows expand_gates(). */
template <int chunk>
GDN_DEVICE void write_gates(chunk_vectors<chunk> &v, float (&G)[raw_gates<chunk>::each],
                            const struct gdn_cu_rule &r, int n)
{
    constexpr int each = raw_gates<chunk>::each;
    const int lane = threadIdx.x % 32;
    __syncwarp();
    const token_mask resets = tokens_of(v.resets);
    sum_gates(G, resets);
    const float end = __shfl_sync(0xffffffff, n > 32 ? G[each - 1] : G[0], (n - 1) % 32);
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int t = lane + 32 * i;
        if (t >= chunk) continue;
        const float start = are_parted(resets, -1, t) ? 0 : ex2_approx(G[i]);
        v.G[t] = G[i];
        v.q_start[t] = start * r.scale;
        v.from_start[t] = start;
        v.to_end[t] = t >= n || are_parted(resets, t, n - 1) ? 0 : ex2_approx(end - G[i]);
    }
    if (lane != 0) return;
    v.decay = resets ? 0 : ex2_approx(end);
    v.n = n;
    v.dead[0] = v.dead[1] = 0;
}

/* ---- Lengths: a thread per row of K or Q ----------------------------------------------------- */

/* Return the square of the length of a row of a tile, which has `deep` elements; and 1 / the
 * length. */
template <int io, int deep> GDN_DEVICE float row_square(const char *row)
{
    typedef typename gdn_io<io>::type element;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < deep * (int)sizeof(element); i += 16) {
        const uint4 word = *(const uint4 *)(row + i);
        const uint32_t x[4] = { word.x, word.y, word.z, word.w };
        for (int j = 0; j < 4; j++)
            if (io == GDN_F32) {
                sum = fmaf(__uint_as_float(x[j]), __uint_as_float(x[j]), sum);
            } else {
                const float low = bits_to_f32(x[j] & 0xffff, io);
                const float high = bits_to_f32(x[j] >> 16, io);
                sum = fmaf(high, high, fmaf(low, low, sum));
            }
    }
    return sum;
}
template <int io, int deep>
GDN_DEVICE float row_inverse_length(const char *row, const struct gdn_cu_rule &r)
{
    return inverse_length(row_square<io, deep>(row), r.norm, r.norm_eps);
}

/* Multiplies the K elements of a row by `length`, in place. Elements beyond K stay zero, even if
 * length is NaN. */
template <int io> GDN_DEVICE void scale_row(char *row, float length, int K)
{
    typedef typename gdn_io<io>::type element;
    element *e = (element *)row;
#pragma unroll 4
    for (int i = 0; i < K; i++) gdn_io<io>::store(e + i, gdn_io<io>::load(e + i) * length);
}

/* Multiplies the factors of the chunk by 1 / length. In f16 the keys themselves are scaled: for
 * tiny keys u / length would not be finite. */
template <int io, int deep, int chunk>
GDN_DEVICE void write_lengths(chunk_vectors<chunk> &v, char *k, char *q,
                              const struct gdn_cu_rule &r)
{
    constexpr int row = GDN_PREFILL_ROW(deep, (int)sizeof(typename gdn_io<io>::type));
    const int i = threadIdx.x, t = i % chunk;
    if (i >= 2 * chunk || t >= v.n || (i >= chunk && !q)) return;
    char *at = (i < chunk ? k : q) + t * row;
    const float length = row_inverse_length<io, deep>(at, r);
    if (i >= chunk) {
        v.q_scale[t] *= length;
        v.q_start[t] *= length;
    } else if (io == GDN_F16) {
        scale_row<io>(at, length, r.K);
    } else {
        v.k_scale[t] = length;
        v.from_start[t] *= length;
        if (v.to_end[t] != 0)
            v.to_end[t] *= length; /* what is forgotten stays 0, even if the
                                                        length is NaN */
    }
}

/* ---- Gram matrices --------------------------------------------------------------------------- */

/* Multiplies rows [16 i, 16 i + 16) of A by the rows of K up to the same one: blocks 0 to i. */
template <int io, int deep, int blocks>
GDN_DEVICE void multiply_rows(mma_block (&gram)[blocks], uint32_t a, uint32_t k, int i)
{
    typedef mma_tiles<io> tiles;
    constexpr int row = GDN_PREFILL_ROW(deep, tiles::bytes);
    a += tiles::lane(row) + 16 * i * row;
    k += tiles::lane(row);
    for (int j = 0; j < blocks; j++)
        for (int e = 0; e < 8; e++) gram[j][e / 4][e % 4] = 0;
#pragma unroll 4
    for (int x = 0; x < deep / 16; x++) {
        typename tiles::operand left, right;
        tiles::load(left, a + 16 * x * tiles::bytes, row);
#pragma unroll
        for (int j = 0; j < blocks; j++) {
            if (j > i) continue;
            tiles::load(right, k + 16 * j * row + 16 * x * tiles::bytes, row);
            tiles::multiply(gram[j], left, right);
        }
    }
}

/* Writes rows of L. Elements that are not finite become zero, and their tokens are noted in
 * `dead`. */
template <int chunk>
GDN_DEVICE void write_l(float *L, chunk_vectors<chunk> &v, const mma_block (&gram)[chunk / 16],
                        int w)
{
    const token_mask resets = tokens_of(v.resets);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = 16 * w + block_row(2 * r);
        const float beta = v.beta[i] * v.k_scale[i], G = v.G[i];
        bool dead = false;
#pragma unroll
        for (int b = 0; b < chunk / 16; b++) {
            if (b > w) continue;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int h = c / 2, e = 2 * r + c % 2, j = 16 * b + block_column(h, e);
                const float decay = ex2_approx(G - v.G[j]);
                float l = gram[b][h][e] * (beta * v.k_scale[j]) * decay;
                if (j >= i || are_parted(resets, j, i)) l = 0;
                if (!is_finite(l)) {
                    dead = true;
                    l = 0;
                }
                L[i * GDN_PREFILL_LD(chunk) + j] = l;
            }
        }
        if (dead) atomicOr(&v.dead[i / 32], 1u << i % 32);
    }
}

template <int io, int chunk>
GDN_DEVICE void write_p(char *P, const chunk_vectors<chunk> &v, const mma_block (&gram)[chunk / 16],
                        int w)
{
    typedef mma_tiles<io> tiles;
    const token_mask resets = tokens_of(v.resets);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = 16 * w + block_row(2 * r);
        const float q = v.q_scale[i], G = v.G[i];
#pragma unroll
        for (int b = 0; b < chunk / 16; b++) {
            if (b > w) continue;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float p[2];
                const int j = 16 * b + block_column(h, 0);
                for (int e = 0; e < 2; e++) {
                    const float decay = ex2_approx(G - v.G[j + e]);
                    p[e] = gram[b][h][2 * r + e] * (q * v.k_scale[j + e]) * decay;
                    if (j + e > i || are_parted(resets, j + e, i)) p[e] = 0;
                }
                tiles::store_pair(P + i * GDN_PREFILL_ROW(chunk, tiles::bytes) + j * tiles::bytes,
                                  p[0], p[1]);
            }
        }
    }
}

/* ---- The inverse ----------------------------------------------------------------------------- */

/*
 * One square of floats holds L below the diagonal and the transpose of (I + L)^-1, as far as it is
 * known, from the diagonal up; D holds its 16 x 16 blocks on the diagonal by rows.
 *
 * Block w of the diagonal, by one warp: a lane per column, forward substitution.
 */
template <int chunk> GDN_DEVICE void invert_diagonal(float *L, float *D, int w)
{
    constexpr int ld = GDN_PREFILL_LD(chunk);
    const int lane = threadIdx.x % 32, c = lane % 16;
    float *at = L + (16 * w) * ld + 16 * w;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        x[i] = i == c;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 l = *(const float4 *)(at + i * ld + j);
            const float y[4] = { l.x, l.y, l.z, l.w };
            for (int e = 0; e < 4; e++)
                if (j + e < i) x[i] = fmaf(-y[e], x[j + e], x[i]);
        }
    }
    __syncwarp();
    if (lane >= 16) return;
    for (int i = 0; i < 16; i++) D[(16 * w + i) * GDN_PREFILL_LD_DIAGONAL + c] = x[i];
    for (int i = 0; i < 16; i += 4)
        *(float4 *)(at + c * ld + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

/* Adds rows p and p + 8 of a block (at `a`, ld floats apart) times a row of 16 (at `b`) to sum. */
GDN_DEVICE void add_dots(float (&sum)[2], const float *a, int ld, const float *b)
{
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
        const float4 y = *(const float4 *)(b + j);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float4 x = *(const float4 *)(a + 8 * r * ld + j);
            sum[r] = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum[r]))));
        }
    }
}

/* Computes the blocks below the diagonal: T_rc = -D_r sum of L_rj T_jc over j from c to r - 1.
 * Eight lanes have a column, two rows of a block each. Warp w has columns 4 w to 4 w + 3 of every
 * block. */
template <int chunk> GDN_DEVICE void invert_below(float *L, const float *D, int w)
{
    constexpr int ld = GDN_PREFILL_LD(chunk), blocks = chunk / 16;
    const int p = threadIdx.x % 8, q = 4 * w + threadIdx.x % 32 / 8;
#pragma unroll
    for (int r = 1; r < blocks; r++) {
        float sum[blocks][2];
#pragma unroll
        for (int c = 0; c < r; c++) {
            float *column = L + (16 * c + q) * ld;
            sum[c][0] = sum[c][1] = 0;
            for (int j = c; j < r; j++)
                add_dots(sum[c], L + (16 * r + p) * ld + 16 * j, ld, column + 16 * j);
            column[16 * r + p] = sum[c][0];
            column[16 * r + p + 8] = sum[c][1];
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < r; c++) {
            sum[c][0] = sum[c][1] = 0;
            add_dots(sum[c], D + (16 * r + p) * GDN_PREFILL_LD_DIAGONAL, GDN_PREFILL_LD_DIAGONAL,
                     L + (16 * c + q) * ld + 16 * r);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < r; c++)
            for (int e = 0; e < 2; e++) L[(16 * c + q) * ld + 16 * r + p + 8 * e] = -sum[c][e];
        __syncwarp();
    }
}

/* Stores T from the square: columns 4 w to 4 w + 3 of every block, from the block of the diagonal
 * down. Elements across a token that forgets are zero, even if beta is NaN. */
template <int io, int chunk>
GDN_DEVICE void write_t(char *T, const float *L, const chunk_vectors<chunk> &v, int w)
{
    typedef mma_tiles<io> tiles;
    constexpr int ld = GDN_PREFILL_LD(chunk), row = GDN_PREFILL_ROW(chunk, tiles::bytes);
    const token_mask resets = tokens_of(v.resets);
#pragma unroll
    for (int c = 0; c < chunk / 16; c++) {
        const int j = 16 * c + 4 * w;
        const float4 b = *(const float4 *)(v.beta + j);
        for (int i = 16 * c + (int)(threadIdx.x % 32); i < chunk; i += 32) {
            const float *x = L + j * ld + i;
            char *at = T + i * row + j * tiles::bytes;
            float t[4] = { x[0] * b.x, x[ld] * b.y, x[2 * ld] * b.z, x[3 * ld] * b.w };
            for (int e = 0; e < 4 && resets; e++)
                if (are_parted(resets, j + e, i)) t[e] = 0;
            tiles::store_pair(at, i < j ? 0 : t[0], i < j + 1 ? 0 : t[1]);
            tiles::store_pair(at + 2 * tiles::bytes, i < j + 2 ? 0 : t[2], i < j + 3 ? 0 : t[3]);
        }
    }
}

#endif
