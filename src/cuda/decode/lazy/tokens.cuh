/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.cuh for two to eight tokens of each sequence. Token t follows the pending rows, and behind
 * them the tokens ahead of it in the call. To it these are rows like others, but their k is raw. So
 * a head leaves for each token what it leaves for one; the decays of tokens come before those of
 * the record.
 *
 * Sixteen lanes have a state head, and lane i of them the gates of token i, and the factors of its
 * k and q. Products go four tokens at a time, by tensor cores.
 */
#ifndef GDN_CUDA_DECODE_LAZY_TOKENS_CUH
#define GDN_CUDA_DECODE_LAZY_TOKENS_CUH

#include "cuda/decode/lazy/rows.cuh"

/* Products of the rows of a record with four tokens, then of the tokens of the call. */
typedef float2 lazy_four_products[LAZY_FOUR][LAZY_MOST + LAZY_ROWS];

/* Fetches the gates of token lane % 16, or of the last token if that is less. */
GDN_DEVICE void lazy_fetch_gates(struct token_gates &f, const struct gdn_cu_lazy &a,
                                 const struct token_place &w)
{
    const struct gdn_cu_token &o = a.one;
    const int t = min((int)threadIdx.x % LAZY_ROWS, a.n_tokens - 1);
    f.g = ld_4_or_2(token_at(o.g, w.row, w.head) + mad_wide(t, a.g_token, 0), o.g_bytes);
    f.beta =
        ld_4_or_2(token_at(o.beta, w.row, w.head) + mad_wide(t, a.beta_token, 0), o.beta_bytes);
    f.A_log = token_bits(o.A_log, 0, w.head, o.A_log_bytes);
    f.dt_bias = token_bits(o.dt_bias, 0, w.head, o.dt_bias_bytes);
}

/* Computes the products of n rows of the record with four tokens. */
template <int io, bool wide>
GDN_DEVICE void lazy_four_of_rows(lazy_four_products &products, const char *rows, int step, int n,
                                  const uint32_t (&x)[4][4])
{
    const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll 1
    for (int j = lane / 4; j - lane / 4 < n; j += LAZY_ROWS) {
        const char *const row[2] = { rows + mad_wide(j, step, 0), rows + mad_wide(j + 8, step, 0) };
        const bool there[2] = { j < n, j + 8 < n };
        float d[4];
        lazy_multiply<io, wide>(d, row, there, x);
        products[t][j] = make_float2(d[0], d[1]);
        products[t][j + 8] = make_float2(d[2], d[3]);
    }
}

/* Computes the products of all tokens with four, from `first` on. Leaves those of k in memory.
 * Lanes of these four get their factors. */
template <int io>
GDN_DEVICE void lazy_four_of_tokens(struct token_factors &f, lazy_four_products &products,
                                    const struct gdn_cu_lazy &a, const struct token_place &w,
                                    int first, const uint32_t (&x)[4][4])
{
    const int lane = threadIdx.x % 32, i = lane / 4, token = lane % LAZY_ROWS;
    const char *const row[2] = { lazy_token(a.one.k, a.k_token, w, a.one.group_k, i),
                                 lazy_token(a.one.q, a.q_token, w, a.one.group_q, i) };
    const bool there[2] = { i < a.n_tokens, i < a.n_tokens };
    float d[4];
    lazy_multiply<io, false>(d, row, there, x);
    products[lane % 4][LAZY_MOST + i] = make_float2(d[0], d[1]);
    const int from = (4 * token + token % 4) % 32;
    const float kk = __shfl_sync(0xffffffff, d[0], from), kq = __shfl_sync(0xffffffff, d[1], from),
                qq = __shfl_sync(0xffffffff, d[3], from);
    if (token / LAZY_FOUR == first / LAZY_FOUR) f = token_factors_of(kk, qq, kq, a.one);
}

/* Leaves what a state head of four tokens has. f, alpha, beta: of token lane % 16. */
GDN_DEVICE void lazy_leave_four(const struct gdn_cu_lazy &a, const struct token_place &w,
                                const lazy_four_products &products, const struct token_factors &f,
                                float alpha, float beta, uint32_t gate, int first, int count,
                                bool stores)
{
    const int base = threadIdx.x & 16, end = min(first + LAZY_FOUR, a.n_tokens);
    const uint32_t own = __float_as_uint(lazy_row_gate(alpha, beta));
    float *const memory = lazy_memory(a, w);
#pragma unroll 1
    for (int t = first; t < end; t++) {
        const struct lazy_place to = { lazy_at_token(memory, a, t),
                                       lazy_decays<LAZY_TOKENS>(memory, a), stores };
        const float2 *const its = products[t - first];
        const struct token_factors of = { __shfl_sync(0xffffffff, f.k, base + t),
                                          __shfl_sync(0xffffffff, f.q, base + t),
                                          __shfl_sync(0xffffffff, f.kq, base + t) };
        float decay = __shfl_sync(0xffffffff, alpha, base + t);
        int oldest = count + t;
        decay = lazy_leave_rows(oldest, to, of, its + LAZY_MOST, own, count, t, decay, f.k);
        lazy_leave_head(to, a, w, of, its, gate, count, __shfl_sync(0xffffffff, beta, base + t),
                        decay, oldest);
    }
}

/* Stores k of four tokens as rows of the record. f: of token lane % 16. */
template <int io>
GDN_DEVICE void lazy_append_four(const struct gdn_cu_lazy &a, const struct token_place &w,
                                 const uint32_t (&x)[4][4], const struct token_factors &f,
                                 int first, int count)
{
    const int lane = threadIdx.x % 32, t = first + lane / 8, dtype = a.k.bytes == 4 ? GDN_F32 : io;
    char *const to = lazy_at(a.k, w.from, count + t, token_source(w.head, a.one.group_k));
    const float key = __shfl_sync(0xffffffff, f.k, t);
    if (lane / 4 % 2 || t >= a.n_tokens) return; /* a column of q, or none */
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = i / 2, e = i % 2 * 2;
        const float y[4] = { key * token_element<io>(x[c][e], 0),
                             key * token_element<io>(x[c][e], 1),
                             key * token_element<io>(x[c][e + 1], 0),
                             key * token_element<io>(x[c][e + 1], 1) };
        store_chunk(to + ((lane % 4 + 4 * c) * 8 + 2 * e) * a.k.bytes, y, dtype);
    }
}

template <int io, int WARPS> GDN_DEVICE void decode_lazy_tokens_rows(const struct gdn_cu_lazy &a)
{
    __shared__ lazy_four_products all_products[WARPS];
    const int lane = threadIdx.x % 32, half = lane / LAZY_ROWS, token = lane % LAZY_ROWS;
    lazy_four_products &products = all_products[threadIdx.x / 32];
    struct token_place w;
    const int pair = lazy_begin<WARPS>(w, a);
    if (pair >= a.n_pairs) return;
    uint32_t x[4][4];
    struct token_gates gates;
    struct token_factors f = { 0, 0, 0 };
    struct token_place mine = w;
    lazy_load_columns(x, a, w, 0);
    mine.head += half < a.n_sharing ? half : 0;
    lazy_fetch_gates(gates, a, mine);
    if (!token_slots(w, a.one)) return;
    mine.from = w.from;
    const int count = lazy_clamp(a, lazy_counter(a, w.from));
    const int last = (count - 1) / LAZY_ROWS * LAZY_ROWS;
    uint32_t gate = lazy_gate(a, mine, last, count);
    const bool appends = !lazy_folds<LAZY_TOKENS>(a, count);
    const char *const rows = lazy_at(a.k, w.from, 0, token_source(w.head, a.one.group_k));
#pragma unroll 1
    for (int first = 0; first < a.n_tokens; first += LAZY_FOUR) {
        if (first) lazy_load_columns(x, a, w, first);
        if (a.k.bytes == 4)
            lazy_four_of_rows<io, true>(products, rows, a.k.row, count, x);
        else
            lazy_four_of_rows<io, false>(products, rows, a.k.row, count, x);
        lazy_four_of_tokens<io>(f, products, a, w, first, x);
        __syncwarp();
#pragma unroll 1
        for (int i = half; i - half < a.n_sharing; i += 2) {
            const bool is = i < a.n_sharing;
            mine.head = w.head + (is ? i : 0);
            if (a.n_sharing > 2) {
                lazy_fetch_gates(gates, a, mine);
                gate = lazy_gate(a, mine, last, count);
            }
            float alpha, beta;
            token_expand_gates<io>(alpha, beta, gates, a.one);
            lazy_leave_four(a, mine, products, f, alpha, beta, gate, first, count, is);
            if (appends && is && first == 0 && token < a.n_tokens)
                *(float *)lazy_at(a.g, mine.from, count + token, mine.head) =
                    lazy_row_gate(alpha, beta);
        }
        if (appends && pair % a.n_k_pairs == 0) lazy_append_four<io>(a, w, x, f, first, count);
        __syncwarp();
    }
}

/* Five blocks leave room for those of the second kernel. */
#define DECODE_LAZY_TOKENS_ROWS_KERNEL(threads, name, io, KC)  \
    extern "C" __global__ void __launch_bounds__(threads, 5)   \
        name(const __grid_constant__ struct gdn_cu_lazy a)     \
    {                                                          \
        static_assert(KC == LAZY_K, "a lane has four pieces"); \
        decode_lazy_tokens_rows<GDN_##io, threads / 32>(a);    \
    }

#endif
