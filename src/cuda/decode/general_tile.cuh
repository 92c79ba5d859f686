/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block's part of a state, K x 32 columns of V, in the registers of its 128 threads as float32.
 * Chunks of four elements follow the dense dimension of the pool:
 *
 *   tile_vk   rows are v. 16 lanes have a row, a warp 8 rows; lane i the chunks i, i + 16, ... of
 *             k, so that sums over K are shuffles.
 *   tile_kv   rows are k. 8 lanes have the 32 columns of a row; the 16 such groups of a block have
 *             4 rows each, every 64, and sums over K go through shared memory.
 *
 * Both sum in the order of sum_of_16(): equal states give equal bits.
 */
#ifndef GDN_CUDA_DECODE_TILE_CUH
#define GDN_CUDA_DECODE_TILE_CUH

#include "cuda/decode/general_tokens.cuh"
#include "cuda/device/warp_sums.cuh"

/* A token of a window, and where its output goes: column 0 of the head, or NULL for no output. */
template <class Window> struct decode_step {
    const Window *window;
    int i;
    void *out;
    int out_dtype, column, n_columns;
    float *u; /* [DECODE_COLUMNS] in shared memory, for u; NULL: u is not stored */
};

GDN_DEVICE void read_four(float (&to)[4], const float *from)
{
    const float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* Computes S <- alpha S. If alpha is 0 it selects zeros (G7). */
template <int N> GDN_DEVICE void decay(float (&S)[N][4], float alpha)
{
    if (alpha == 0) {
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) S[n][e] = 0;
    } else {
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) S[n][e] *= alpha;
    }
}

/* Decays the state by token i of the window. The family has a function of its own. */
template <class Tile, int KC>
GDN_DEVICE void decay(Tile &tile, const struct decode_window<KC> &w, int i)
{
    decay(tile.S, w.alpha[i]);
}

/* ---- Rows of v ------------------------------------------------------------------------------ */

template <int KC, class Window_ = struct decode_window<KC>> struct tile_vk {
    typedef Window_ Window;
    enum { J = KC / 64, N = 4 * J, K_FIRST = 0 };
    struct shared {
    };

    float S[N][4];

    /* Chunk n is in row row() + row_step(n) of the tile, from column column() + column_step(n)
     * on. */
    GDN_DEVICE int row() { return threadIdx.x / 32 * 8 + threadIdx.x % 32 / 16; }
    GDN_DEVICE int column() { return threadIdx.x % 16 * 4; }
    GDN_DEVICE int row_step(int n) { return n / J * 2; }
    GDN_DEVICE int column_step(int n) { return n % J * 64; }

    /* Loads the elements of k that the thread needs. of() returns those of chunk n and element
     * e. */
    GDN_DEVICE void read(float (&x)[J][4], const float *row)
    {
        for (int j = 0; j < J; j++) read_four(x[j], row + column() + column_step(j));
    }
    GDN_DEVICE float of(const float (&x)[J][4], int n, int e) { return x[n % J][e]; }

    __device__ __forceinline__ void step(const struct decode_step<Window> &t, struct shared &)
    {
        const Window &w = *t.window;
        const int lane = threadIdx.x % 32;
        float x[8] = {}, k[J][4], q[J][4]; /* x: p of the rows, then z */
        decay(*this, w, t.i);
        read(k, w.erased(t.i));
        read(q, w.q[t.i]);
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) {
                x[n / J] = fmaf(S[n][e], k[n % J][e], x[n / J]);
                x[4 + n / J] = fmaf(S[n][e], q[n % J][e], x[4 + n / J]);
            }
        halve<4>(x, 8);
        halve<2>(x, 1);
        halve<1>(x, 2);
        x[0] += __shfl_xor_sync(0xffffffff, x[0], 4);

        /* each lane has one sum of a row, and gets the other sum of that row */
        const float other = __shfl_xor_sync(0xffffffff, x[0], 8);
        const int mine = row() + (lane & 1) * 4 + (lane & 2);
        const float u = w.u(t.i, mine, lane & 8 ? other : x[0]);
        if (t.out && (lane & 12) == 0 && mine < t.n_columns)
            store_float(t.out, t.column + mine, t.out_dtype, rule_o(w.kq[t.i], other, u));
        if (t.u && (lane & 12) == 0) t.u[mine] = u;
        if (!w.writes(t.i)) return;
        if (Window::ERASES) read(k, w.k[t.i]);
        for (int r = 0; r < 4; r++) {
            const float u_r = __shfl_sync(0xffffffff, u, (lane & 16) | r / 2 | r % 2 * 2);
            for (int n = r * J; n < (r + 1) * J; n++)
                for (int e = 0; e < 4; e++) S[n][e] = fmaf(k[n % J][e], u_r, S[n][e]);
        }
    }
};

/* ---- Rows of k ------------------------------------------------------------------------------ */

template <int KC, class Window_ = struct decode_window<KC>> struct tile_kv {
    typedef Window_ Window;
    enum { J = KC / 64, N = 4 * J, K_FIRST = 1 };
    struct shared {
        /* of even tokens and of odd ones; of p and z */
        alignas(16) float sums[2][DECODE_WARPS][2][DECODE_COLUMNS];
    };

    float S[N][4];

    /* Returns which of the 16 partial sums the lane has. Bits 3 and 0 are within a warp, 1 and 2
     * between warps. */
    GDN_DEVICE int number()
    {
        return (threadIdx.x >> 4 & 1) | (threadIdx.x >> 4 & 6) | (threadIdx.x & 8);
    }
    GDN_DEVICE int row() { return number() * 4; }
    GDN_DEVICE int column() { return threadIdx.x % 8 * 4; }
    GDN_DEVICE int row_step(int n) { return n / 4 * 64 + n % 4; }
    GDN_DEVICE int column_step(int) { return 0; }

    GDN_DEVICE void read(float (&x)[J][4], const float *row_of_k)
    {
        for (int j = 0; j < J; j++) read_four(x[j], row_of_k + row() + 64 * j);
    }
    GDN_DEVICE float of(const float (&x)[J][4], int n, int) { return x[n / 4][n % 4]; }

    /* Loads the sums of this thread's four columns. */
    GDN_DEVICE void read_sums(float (&to)[4], const float (*sums)[2][DECODE_COLUMNS], int which)
    {
        float x[DECODE_WARPS][4];
        for (int warp = 0; warp < DECODE_WARPS; warp++)
            read_four(x[warp], sums[warp][which] + column());
        for (int c = 0; c < 4; c++) to[c] = (x[0][c] + x[1][c]) + (x[2][c] + x[3][c]);
    }

    __device__ __forceinline__ void step(const struct decode_step<Window> &t, struct shared &sh)
    {
        const Window &w = *t.window;
        float(*const sums)[2][DECODE_COLUMNS] = sh.sums[t.i % 2];
        float x[8] = {}, k[J][4]; /* x: p of the columns, then z */
        decay(*this, w, t.i);
        read(k, w.erased(t.i));
        for (int j = 0; j < J; j++) {
            float q[4];
            read_four(q, w.q[t.i] + row() + 64 * j);
            for (int e = 0; e < 4; e++)
                for (int c = 0; c < 4; c++) {
                    x[c] = fmaf(S[4 * j + e][c], k[j][e], x[c]);
                    x[4 + c] = fmaf(S[4 * j + e][c], q[e], x[4 + c]);
                }
        }
        halve<4>(x, 8);
        halve<2>(x, 16);
        *(float2 *)(sums[threadIdx.x / 32][threadIdx.x >> 3 & 1] + column() +
                    (threadIdx.x >> 3 & 2)) = make_float2(x[0], x[1]);
        __syncthreads(); /* one barrier is enough: sums of the next token go to another place */

        float p[4], u[4];
        read_sums(p, sums, 0);
        for (int c = 0; c < 4; c++) u[c] = w.u(t.i, column() + c, p[c]);
        if (t.out && threadIdx.x < 8) store_out(t, sums, u);
        if (t.u && threadIdx.x < 8)
            *(float4 *)(t.u + column()) = make_float4(u[0], u[1], u[2], u[3]);
        if (!w.writes(t.i)) return;
        if (Window::ERASES) read(k, w.k[t.i]);
        for (int n = 0; n < N; n++)
            for (int c = 0; c < 4; c++) S[n][c] = fmaf(of(k, n, c), u[c], S[n][c]);
    }

    GDN_DEVICE void store_out(const struct decode_step<Window> &t,
                              const float (*sums)[2][DECODE_COLUMNS], const float (&u)[4])
    {
        float z[4];
        read_sums(z, sums, 1);
        for (int c = 0; c < 4; c++)
            if (column() + c < t.n_columns)
                store_float(t.out, t.column + column() + c, t.out_dtype,
                            rule_o(t.window->kq[t.i], z[c], u[c]));
    }
};

#endif
