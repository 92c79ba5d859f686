/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of a chunk and a state head, once S before it, J after it, U and Z are there. With
 * the letters of prefill/channels/chunks.cuh,
 *
 *     X = -(Z U^T below the diagonal)    Y = dO U^T on and below it: gradients of L and P
 *     dQ_i = D_i (S dO_i) + sum_j Y_ij k_j D_ij      dE_i = -D_i (S Z_i) + sum_j X_ij k_j D_ij
 *     dK_j = D^j (J U_j) + sum_i (X_ij e_i + Y_ij q_i) D_ij
 *
 * D_ij is the product of two factors of at most 1, as there. A term belongs to the dg
 * of each token whose gate is in its factors:
 *
 *     dg_l = sum of q_i dQ_i + e_i dE_i over rows i >= l, and of k_j dK_j over columns j < l
 *
 * of the block of each level that has l, and D_C (S . J). No term without a_l is in dg_l, so
 * nothing cancels, and dg becomes small where a gate does.
 *
 * A warp has 16 tokens and 64 channels. Sums come from tensor cores, and pass through shared memory
 * to lanes that have two of the channels each.
 */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_HEADS_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_HEADS_CUH

#include "cuda/backward/chunks/heads_columns.cuh"
#include "cuda/backward/chunks/heads_rows.cuh"

/* Loads keys, queries and gates. Keys get length one, and queries length one times the scale. */
template <int io, int deep>
GDN_DEVICE void load_heads(chunk_maker<io, deep> &m, struct mend_tokens &tokens)
{
    typedef typename mma_tiles<io>::pairs pairs;
    const struct gdn_cu_rule &r = m.r;
    const bool begun = m.begin_gates();
    const int t = threadIdx.x;
    m.load_keys(m.x.k, r.k, r.Hk);
    m.load_keys(m.x.q, r.q, r.Hq);
    m.begin_e();
    m.load_betas();
    m.finish_gates(begun);
    m.measure();
    if (t < CHUNK) tokens.beta[t] = m.sh.scales.l[t];
    __syncthreads();
    if (t < CHUNK) {
        float sum[2] = {};
        for (int h = 0; h < chunks_shared<deep>::halves; h++)
            sum[0] += m.sh.sums[h][0][t], sum[1] += m.sh.sums[h][1][t];
        const bool there = t < m.sh.chunk.n;
        tokens.k[t] = there ? inverse_length(sum[0], r.norm, r.norm_eps) : 0;
        tokens.q[t] = there ? inverse_length(sum[1], r.norm, r.norm_eps) * r.scale : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float k = tokens.k[m.token(i)], q = tokens.q[m.token(i)];
        m.x.k[i] = scale_word<pairs>(m.x.k[i], k, k);
        m.x.q[i] = scale_word<pairs>(m.x.q[i], q, q);
    }
    m.make_e();
    if (r.family.beta_rows) return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float beta = tokens.beta[m.token(i)];
        m.x.e[i] = scale_word<pairs>(m.x.k[i], beta, beta);
    }
}

/* Makes the compiler take gates for new ones. Otherwise it keeps their products for the next phase,
 * in registers that are needed. All lanes of a warp call it. */
GDN_DEVICE void renew(float (&a)[16][2])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        a[i / 2][i % 2] = __shfl_sync(0xffffffff, a[i / 2][i % 2], threadIdx.x % 32);
}

/* Returns the product of 16 gates. No other product takes them in this order. */
GDN_DEVICE float2 product_of(const float (&a)[16][2])
{
    float2 f[8];
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = make_float2(a[i][0] * a[15 - i][0], a[i][1] * a[15 - i][1]);
#pragma unroll
    for (int i = 1; i < 8; i++) f[0] = times(f[0], f[i]);
    return f[0];
}

/* Computes the gradients. A block has a chunk and a state head. Products with states come first,
 * because registers have room for nothing else then. */
template <int io, int deep> GDN_DEVICE void run_heads(const struct gdn_cu_backward_channels &a)
{
    heads_shared<deep> &sh = *(heads_shared<deep> *)gdn_shared;
    const struct gdn_cu_rule &r = a.base.rule;
    const int64_t number = blockIdx.x / r.H;
    const int head = (int)(blockIdx.x % r.H);
    find_shared_chunk(sh.first, a, number);
    if (sh.first.chunk.n == 0) return;
    const chunks_record<deep> record = record_of<deep>(a, number, head);
    chunk_maker<io, deep> m = share_chunk<io, deep>(r, sh.first, record.at, head);
    chunk_heads<io, deep> h = { a, sh, m };
    if (threadIdx.x == 0) sh.chunk = sh.first.chunk;
    lane_rows x, y; /* dq and de; dk at the end */
    float taint = 0;
    h.multiply_states(record, x, y);
    __syncthreads();
    if (threadIdx.x == 0) sh.first.chunk = sh.chunk;
    __syncthreads();
    load_heads(m, sh.tokens);
    *(float2 *)&sh.total[m.group][m.channel] = product_of(m.x.a);
    __syncthreads();
    h.start_rows(x, y);
    h.template own_rows<8>(x, y);
    h.template own_rows<4>(x, y);
    h.template own_rows<2>(x, y);
    h.template own_rows<1>(x, y);
#pragma unroll 1
    for (int n = 1; n <= 2; n++) h.level_rows(x, y, n);
    h.end_rows(x, y, taint);
    __syncthreads(); /* the last level has been read */
    renew(m.x.a);
    h.start_columns(y);
    h.template own_columns<8>(y);
    h.template own_columns<4>(y);
    h.template own_columns<2>(y);
    h.template own_columns<1>(y);
#pragma unroll 1
    for (int n = 1; n <= 2; n++) h.level_columns(y, n);
    __syncthreads();
    h.end_columns(y, taint);
    if (in_block(taint != 0)) mend_gradients<io, deep>(a, sh.chunk, sh.tokens, head);
}

#endif
