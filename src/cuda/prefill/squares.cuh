/* SPDX-License-Identifier: Apache-2.0 */
/* T and P of a chunk of 64 tokens (general_gram.cuh), on tensor cores. T is inverted in blocks, by
 * products of tf32 in two terms. Blocks of four warps make T and P for later kernels of gdn_prefill
 * and of gradients. The file that includes this one defines turned_place, turned_place_of() and
 * store_turned(), which store a block by its columns. */
#ifndef GDN_CUDA_PREFILL_SQUARES_CUH
#define GDN_CUDA_PREFILL_SQUARES_CUH

#include "cuda/prefill/general_gram.cuh"
#include "cuda/prefill/stages.cuh"

/* Bytes from one row of a factor to the next. */
enum { CHUNK_ROW = GDN_PREFILL_ROW(CHUNK, 2) };

/* The shared memory of a chunk. First it has rows of keys and queries, `deep` columns of them. Then
 * it has T and P of one state head after the other. */
template <int deep> struct chunk_squares {
    static constexpr int row = GDN_PREFILL_ROW(deep, 2); /* bytes of a row of keys or queries */
    union {
        struct {
            alignas(16) char k[CHUNK * row], q[CHUNK * row];
        } keys;
        struct {
            alignas(16) float square[CHUNK * GDN_PREFILL_LD(CHUNK)];
            alignas(16) float diagonal[CHUNK * GDN_PREFILL_LD_DIAGONAL];
            alignas(16) char T[CHUNK * CHUNK_ROW], P[CHUNK * CHUNK_ROW];
        };
    };
    float lengths[2][CHUNK]; /* 1 / length of k and q */
};

/* Prepares the gates of a state head. A warp calls it. */
template <class Vectors>
GDN_DEVICE void prepare_gates(Vectors &v, const struct gdn_cu_rule &r, const struct stage_chunk &c,
                              int head)
{
    raw_gates<CHUNK> raw;
    float G[raw_gates<CHUNK>::each] = {};
    struct gdn_cu_seq s = c.seq;
    s.n_valid = c.n;
    start_gates(raw, r, s, head, 0);
    fetch_gates<1>(raw, r);
    expand_gates<CHUNK>(G, v, raw, r, (int)c.n);
    write_gates<CHUNK>(v, G, r, (int)c.n);
    fill_tokens(v.k_scale, 1);
    fill_tokens(v.q_scale, r.scale);
}

/* Multiplies x by f. What is forgotten stays 0, even if f is NaN. */
GDN_DEVICE void scale_kept(float &x, float f)
{
    if (x != 0) x *= f;
}

/* Multiplies the vectors by lengths, as write_lengths() does. */
template <class Vectors> GDN_DEVICE void apply_lengths(Vectors &v, const float (&lengths)[2][CHUNK])
{
    const int t = threadIdx.x % CHUNK;
    const float length = lengths[threadIdx.x / CHUNK][t];
    if (threadIdx.x >= CHUNK) {
        v.q_scale[t] *= length;
        scale_kept(v.q_start[t], length);
    } else {
        v.k_scale[t] = length;
        scale_kept(v.from_start[t], length);
        scale_kept(v.to_end[t], length);
    }
}

/* Writes rows of L and P up to their diagonals, as write_l() and write_p() do, but with one exp()
 * for both. parts: some gate forgets. */
template <int io, bool parts, class Shared, class Vectors>
GDN_DEVICE void write_squares(Shared &sh, Vectors &v, const mma_block (&keys)[CHUNK / 16],
                              const mma_block (&queries)[CHUNK / 16], int w)
{
    const token_mask resets = parts ? tokens_of(v.resets) : 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = 16 * w + block_row(2 * r);
        const float beta = v.beta[i] * v.k_scale[i], q = v.q_scale[i], G = v.G[i];
        bool dead = false;
#pragma unroll
        for (int b = 0; b < CHUNK / 16; b++) {
            if (b > w) continue;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int j = 16 * b + block_column(h, 0);
                const float2 Gs = *(const float2 *)(v.G + j);
                const float2 k = *(const float2 *)(v.k_scale + j);
                float l[2], p[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float decay = ex2_approx(G - (e ? Gs.y : Gs.x)), scale = e ? k.y : k.x;
                    const bool parted = are_parted(resets, j + e, i);
                    l[e] = keys[b][h][2 * r + e] * (beta * scale) * decay;
                    p[e] = queries[b][h][2 * r + e] * (q * scale) * decay;
                    if (parted || j + e >= i) l[e] = 0;
                    if (parted || j + e > i) p[e] = 0;
                    if (!is_finite(l[e])) {
                        dead = true;
                        l[e] = 0;
                    }
                }
                *(float2 *)(sh.square + i * GDN_PREFILL_LD(CHUNK) + j) = make_float2(l[0], l[1]);
                mma_tiles<io>::store_pair(sh.P + i * CHUNK_ROW + 2 * j, p[0], p[1]);
            }
        }
        if (dead) atomicOr(&v.dead[i / 32], 1u << i % 32);
    }
}

/* ---- T --------------------------------------------------------------------------------------- */

/* Stores a block of T in 16 bits from its transpose. weighs: times beta of the tokens of its
 * columns. */
template <int io, bool weighs>
GDN_DEVICE void write_block(turned_place at, const mma_block &turned, const float *beta)
{
    typename mma_tiles<io>::operand o;
    mma_block x;
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e / 4][e % 4] = turned[e / 4][e % 4] * (weighs ? beta[block_row(e % 4)] : 1);
    mma_tiles<io>::pack(o, x);
    store_turned(at, CHUNK_ROW, o.x);
}

/* Computes block column c of T, from the diagonal down: T_rc = -D_r sum of L_rj T_jc over j from c
 * to r - 1, by products on the transpose of T. A warp calls it. The square has L and the transposed
 * blocks of the diagonal; blocks of the column go beside them. weighs: times beta of the column. */
template <int io, bool weighs, class Shared, class Vectors>
GDN_DEVICE void write_column(Shared &sh, const Vectors &v, int c)
{
    typedef mma_tiles<GDN_F32> wide;
    enum { BLOCKS = CHUNK / 16, LD = GDN_PREFILL_LD(CHUNK), LD_D = GDN_PREFILL_LD_DIAGONAL };
    const uint32_t square = shared_address(sh.square) + wide::lane(4 * LD);
    const uint32_t diagonal = shared_address(sh.diagonal) + wide::lane(4 * LD_D);
    const turned_place to = turned_place_of(sh.T, CHUNK_ROW) + 32 * c;
    const float *const beta = v.beta + 16 * c;
    float *const column = sh.square + (16 * c + block_row(0)) * LD + block_column(0, 0);
    wide::operand left, right;
    wide::load(left, square + 64 * c * (LD + 1), 4 * LD);
    write_block<io, weighs>(to + 16 * c * CHUNK_ROW, left.x, beta);
#pragma unroll 1
    for (int r = c + 1; r < BLOCKS; r++) {
        mma_block sum = {}, block = {};
#pragma unroll 1
        for (int j = c; j < r; j++) {
            wide::load(left, square + 64 * (c * LD + j), 4 * LD);
            wide::load(right, square + 64 * (r * LD + j), 4 * LD);
            wide::multiply(sum, left, right);
        }
        wide::load(right, diagonal + 64 * r * LD_D, 4 * LD_D);
        wide::pack(left, sum);
        wide::multiply(block, left, right);
#pragma unroll
        for (int i = 0; i < 8; i++) block[i / 4][i % 4] *= -1;
        write_block<io, weighs>(to + 16 * r * CHUNK_ROW, block, beta);
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            *(float2 *)(column + 16 * r + i / 4 * 8 + i % 4 / 2 * 8 * LD) =
                make_float2(block[i / 4][i % 4], block[i / 4][i % 4 + 1]);
        __syncwarp();
    }
}

#endif
