/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_step in one launch: convolution with SiLU, gates, L2 norm, rule, and the gated norm of o.
 *
 * A block has one value head of one sequence, and a warp 16 columns of its state, as in
 * decode/warp.cuh and decode/window.cuh. The block loads the convolution's inputs first, then the
 * state. While the state is loaded, threads convolve q, k and v into shared memory, two channels
 * each: of one token (step_pairs.cuh) or of four (step_conv.cuh). Then the warps go on as in
 * separate calls. If there are few sequences, up to four blocks share the columns of a head.
 *
 * The blocks that share q and k each convolve these. When all have read the convolution's old
 * state, each block moves its part of that state on. So they are one block or a cluster, or the
 * states do not move. Other calls run the kernels of the parts (step.c).
 */
#ifndef GDN_CUDA_STEP_CUH
#define GDN_CUDA_STEP_CUH

#include "cuda/layer/step_pairs.cuh"

/* ---- The norm of o ------------------------------------------------------------------------- */

/* Normalises token i of the window by 16 lanes, and sums in the order of norm.cu. All lanes of a
 * warp call it. Lanes without a token have no elements. */
GDN_DEVICE void step_norm(const struct step_shared &sh, const struct gdn_cu_step_general &a,
                          const struct step_work &w, int i, int t, bool wanted)
{
    enum { PACK = STEP_MOST / 16 };
    const struct gdn_cu_warp &r = a.rule;
    const int first = threadIdx.x % 16 * PACK, n = wanted ? r.V - first : 0;
    char *out = warp_row(r.out, w.seq, t, w.head);
    float x[PACK], sum = 0;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        x[j] = j < n ? round_to(sh.o[i][first + j], r.out.dtype) : 0;
        sum = fmaf(x[j], x[j], sum);
    }
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float scale = 1 / sqrtf(sum / (float)r.V + a.rms_eps);
#pragma unroll
    for (int j = 0; j < PACK; j++)
        if (j < n)
            store_float(out, first + j, r.out.dtype,
                        x[j] * scale * sh.weight[first + j] * sh.gate[i][first + j]);
}

/* Normalises n tokens from t on, after all warps have stored their o. */
GDN_DEVICE void step_norms(const struct step_shared &sh, const struct gdn_cu_step_general &a,
                           const struct step_work &w, int t, int n)
{
    __syncthreads();
    for (int i = threadIdx.x / 32 * 2; i < n; i += blockDim.x / 32 * 2) {
        const int mine = i + threadIdx.x % 32 / 16;
        step_norm(sh, a, w, mine % STEP_WINDOW, t + mine, mine < n);
    }
}

/* ---- The rule ------------------------------------------------------------------------------ */

/* Loads column g of X, of T tokens, from shared memory. mma_fetch() does it from global memory. */
template <class Tile>
GDN_DEVICE void step_columns(uint32_t (&column)[Tile::PAIRS], const struct step_shared &sh, int K,
                             int T)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *row = sh.x[g];
#pragma unroll
    for (int i = 0; i < Tile::PAIRS / 2; i++) {
        const int at = (i * 4 / Tile::PIECE * 4 + t) * Tile::PIECE + i * 4 % Tile::PIECE;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (at < K && g / 2 < T) x = *(const uint4 *)&row[at];
        column[2 * i] = x.x >> 16 | (x.y & 0xffff0000);
        column[2 * i + 1] = x.z >> 16 | (x.w & 0xffff0000);
    }
}

/* Computes up to MMA_TOKENS tokens by tensor cores. */
template <int dtype>
GDN_DEVICE void step_products(struct step_shared &sh, const struct step_raw &raw,
                              const struct gdn_cu_step_general &a, const struct step_work &w)
{
    typedef mma_tile<STEP_MOST, dtype> Tile;
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq &s = w.seq;
    const int bytes = r.K * float_bytes(dtype), t = threadIdx.x % 4;
    const int column = threadIdx.x / 32 * MMA_ROWS, own = column + threadIdx.x % 32 / 4;
    const int v = w.column + own;
    const bool has = column < a.n_columns, there = t < s.T, given = s.read >= 0;
    uint32_t x[Tile::PAIRS];
    struct warp_gates gates;
    struct mma_rows rows;
    Tile tile;
    mma_load(tile, mma_row(r.from, s.read, w.head, v), r.from.row, bytes, given && has);
    warp_fetch_gates(gates, r, s, w.head, t);
    step_put(sh, raw, a, w, 0, s.T);
    warp_expand_gates(rows.alpha, rows.beta, gates, r, there);
    __syncthreads();
    cluster_arrive_relaxed();
    if (has) {
        step_columns<Tile>(x, sh, r.K, s.T);
        for (int h = 0; h < 2; h++) rows.v[h] = sh.v[t][own + 8 * h];
        mma_rule(rows, tile, x, r, s.T);
        char *const out = warp_row(r.out, s, t, w.head);
        for (int h = 0; h < 2; h++) {
            if (a.normed)
                sh.o[t][own + 8 * h] = rows.o[h];
            else if (r.out.data && there)
                store_float(out, v + 8 * h, r.out.dtype, rows.o[h]);
        }
        mma_leave(tile, x, rows, r, s, w.head, v, bytes, given);
    }
    if (a.normed) step_norms(sh, a, w, 0, s.T);
}

/* Loads four elements of a row of shared memory; zeros if they are not there. */
GDN_DEVICE void step_chunk(float (&to)[4], const float *row, int at, bool there)
{
    float4 x = make_float4(0, 0, 0, 0);
    if (there) x = *(const float4 *)&row[at];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* Computes one token on a state of float32. */
GDN_DEVICE void step_once(struct step_shared &sh, const struct step_raw &raw,
                          const struct gdn_cu_step_general &a, const struct step_work &w)
{
    typedef once_tile<STEP_MOST> Tile;
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq &s = w.seq;
    const int column = threadIdx.x / 32 * MMA_ROWS, own = column + once_row<Tile>();
    const int at = threadIdx.x % 32 * 4, v = w.column + column;
    const bool has = column < a.n_columns, given = s.read >= 0;
    struct warp_gates gates;
    struct once_token<Tile::C> now;
    Tile tile;
    once_load(tile, once_place<Tile>(r.from, s.read, w.head, v), r.from.row, r.K, given && has);
    warp_fetch_gates(gates, r, s, w.head, 0);
    step_put(sh, raw, a, w, 0, 1);
    warp_expand_gates(now.alpha, now.beta, gates, r, true);
    __syncthreads();
    cluster_arrive_relaxed();
    if (has) {
        step_chunk(now.k[0], sh.x[0], at, at < r.K);
        step_chunk(now.q[0], sh.x[1], at, at < r.K);
        now.v = sh.v[0][own];
        char *out = NULL;
        if (a.normed)
            out = (char *)&sh.o[0][own];
        else if (r.out.data)
            out = warp_row(r.out, s, 0, w.head) + (w.column + own) * float_bytes(r.out.dtype);
        once_rule(tile, now, r, s, w.head, v, r.K, given, out, a.normed ? GDN_F32 : r.out.dtype);
    }
    if (a.normed) step_norms(sh, a, w, 0, 1);
}

template <class Tile>
GDN_DEVICE void step_commit(struct warp_token<Tile::PARTS * Tile::J> &to,
                            const struct step_shared &sh, int i, const struct gdn_cu_warp &r)
{
#pragma unroll
    for (int j = 0; j < Tile::PARTS * Tile::J; j++) {
        const int at = Tile::part() * 4 + j % Tile::J * 64 + j / Tile::J * 32;
        step_chunk(to.k[j], sh.x[2 * i], at, at < r.K);
        step_chunk(to.q[j], sh.x[2 * i + 1], at, at < r.K);
    }
    warp_scale<Tile>(to, r);
}

/* Computes the tokens one by one, however many they are. */
template <class Tile, int dtype, class Raw>
GDN_DEVICE void step_warps(struct step_shared &sh, Raw &raw, const struct gdn_cu_step_general &a,
                           const struct step_work &w)
{
    const struct gdn_cu_warp &r = a.rule;
    const struct warp_seq &s = w.seq;
    const int first = threadIdx.x / 32 * Tile::COLUMNS, column = w.column + first;
    const int own = first + last_column<Tile>();
    const bool has = first < a.n_columns, given = s.read >= 0;
    struct warp_place from = warp_place_of<Tile, dtype>(r, r.from, s.read, w.head, column);
    uint32_t x[Tile::N][4];
    Tile tile;
    struct warp_gates gates;
    bool changed = !given;
    if (!given || !has) from.n_rows = 0;
    warp_load<Tile, dtype>(x, from);
    warp_fetch_gates(gates, r, s, w.head, threadIdx.x % STEP_WINDOW);
    step_put(sh, raw, a, w, 0, s.T < STEP_WINDOW ? s.T : STEP_WINDOW);
    warp_expand<Tile, dtype>(tile, x);
#pragma unroll 1
    for (int t0 = 0; t0 < s.T; t0 += STEP_WINDOW) {
        const int n = s.T - t0 < STEP_WINDOW ? s.T - t0 : STEP_WINDOW;
        const int mine = t0 + threadIdx.x % STEP_WINDOW;
        float alpha, beta;
        if (t0) {
            warp_fetch_gates(gates, r, s, w.head, mine);
            step_fetch(raw, a, w, t0, n);
            __syncthreads(); /* all threads have read the window before */
            step_put(sh, raw, a, w, t0, n);
        }
        warp_expand_gates(alpha, beta, gates, r, mine < s.T);
        __syncthreads();
        if (t0 == 0)
            cluster_arrive_relaxed(); /* later windows do not need the old state of the
                                                  convolution */
#pragma unroll 1
        for (int i = 0; i < n && has; i++) {
            struct warp_token<Tile::PARTS * Tile::J> now;
            step_commit<Tile>(now, sh, i, r);
            now.v = sh.v[i][own];
            now.alpha = __shfl_sync(0xffffffff, alpha, i);
            now.beta = __shfl_sync(0xffffffff, beta, i);
            char *out = NULL;
            if (a.normed)
                out = (char *)&sh.o[i][own];
            else if (r.out.data && own < a.n_columns)
                out = warp_row(r.out, s, t0 + i, w.head) +
                      (w.column + own) * float_bytes(r.out.dtype);
            warp_step(tile, now, out, a.normed ? GDN_F32 : r.out.dtype);
            changed |= now.alpha != 1 || now.beta != 0;
            warp_leave<Tile, dtype>(tile, changed, r, s, from, t0 + i, w.head, column);
        }
        if (a.normed) step_norms(sh, a, w, t0, n);
    }
}

/* ---- A block ------------------------------------------------------------------------------- */

GDN_DEVICE void step_zero(const struct gdn_cu_step_general &a, const struct step_work &w)
{
    const struct gdn_cu_warp &r = a.rule;
    if (!r.out.data || (r.keep && w.seq.row < r.B)) return;
    for (int t = 0; t < w.seq.T; t++)
        for (int i = threadIdx.x; i < a.n_columns; i += blockDim.x)
            store_float(warp_row(r.out, w.seq, t, w.head), w.column + i, r.out.dtype, 0);
}

template <class Raw, class Tile, int dtype>
GDN_DEVICE void step_head(struct step_shared &sh, const struct gdn_cu_step_general &a,
                          const struct step_work &w)
{
    const int T = w.seq.T;
    Raw raw;
    step_fetch(raw, a, w, 0, T < STEP_WINDOW ? T : STEP_WINDOW);
    if constexpr (!Tile::K_FIRST && dtype != GDN_F16) {
        if (a.rule.products && T <= MMA_TOKENS && (dtype == GDN_BF16 || T > 1)) {
            step_products<dtype>(sh, raw, a, w);
            return;
        }
    }
    if constexpr (!Tile::K_FIRST && dtype == GDN_F32) {
        if (a.rule.whole && T == 1) {
            step_once(sh, raw, a, w);
            return;
        }
    }
    step_warps<Tile, dtype>(sh, raw, a, w);
}

template <class Raw, class Tile, int dtype>
GDN_DEVICE void step_block(const struct gdn_cu_step_general &a)
{
    __shared__ struct step_shared sh;
    struct step_work w;
    const int row = blockIdx.y + blockIdx.z * gridDim.y;
    w.key_head = by(blockIdx.x, a.key_blocks);
    w.block = blockIdx.x - w.key_head * a.n_blocks;
    w.head = w.key_head * a.group + (w.block >> a.part_bits);
    w.column = (w.block & ((1 << a.part_bits) - 1)) * a.n_columns;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (row >= a.rule.n_rows) return;
    w.seq = warp_read(a.rule, row);
    if (Raw::ONE) w.seq.T = 1;
    if (w.seq.T == 0) return;
    if (w.seq.padding) {
        step_zero(a, w);
        return;
    }
    step_head<Raw, Tile, dtype>(sh, a, w);
    cluster_wait();
    if (!a.conv.data || !a.moves) return;
    if (Raw::ONE)
        step_leave_one(sh, a, w);
    else if (a.length > STEP_PAST || a.rule.each || w.seq.T > STEP_WINDOW)
        step_move_block(a, w);
    else if (w.seq.write >= 0 && w.seq.write < a.rule.write_pool)
        step_leave(sh, a, w);
}

#define STEP_KERNEL(threads, name, raw, tile, dtype)                          \
    extern "C" __global__ void __launch_bounds__(threads, 2)                  \
        name(const __grid_constant__ struct gdn_cu_step_general a)            \
    {                                                                         \
        step_block<struct raw, tile<STEP_MOST, GDN_##dtype>, GDN_##dtype>(a); \
    }

#endif
