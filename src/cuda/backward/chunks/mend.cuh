/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the gradients of a chunk token by token, in float32. It is for chunks in which products
 * would spread values that are not finite to tokens or channels that do not depend on them. A
 * thread has a channel, and goes through the columns of V one by one: S before each token, then J
 * in reverse, as in channels/pieces.cuh. */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_MEND_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_MEND_CUH

#include "cuda/backward/chunks/scan.cuh"

/* Numbers of tokens: beta if a head has one; 1 / length of keys; scale / length of queries. */
struct mend_tokens {
    float beta[CHUNK], k[CHUNK], q[CHUNK];
};

GDN_DEVICE bool in_block(bool x) { return __syncthreads_or(x); }

/* The rows of a token and a channel. */
struct mend_row {
    float a[CHUNK], b[CHUNK], k[CHUNK], q[CHUNK], before[CHUNK];
};

template <int io>
GDN_DEVICE void load_mend(struct mend_row &x, const struct gdn_cu_rule &r,
                          const struct stage_chunk &c, const struct mend_tokens &tokens, int head,
                          int channel)
{
    typedef typename gdn_io<io>::type element;
    const int hk = source_head(r, head, r.Hk), hq = source_head(r, head, r.Hq);
    for (int t = 0; t < c.n; t++) {
        x.a[t] = family_gate(r, c.seq, c.t0 + t, head, channel, true);
        x.b[t] = family_b(r, c.seq, c.t0 + t, head, 0, channel);
        x.k[t] = tokens.k[t] *
                 gdn_io<io>::load((const element *)row_at(r.k, c.seq, c.t0 + t, hk) + channel);
        x.q[t] = tokens.q[t] *
                 gdn_io<io>::load((const element *)row_at(r.q, c.seq, c.t0 + t, hq) + channel);
    }
}

template <int io, int deep>
static __device__ __noinline__ void mend_gradients(const struct gdn_cu_backward_channels &a,
                                                   const struct stage_chunk &c,
                                                   const struct mend_tokens &tokens, int head)
{
    typedef typename gdn_io<io>::type element;
    const struct gdn_cu_rule &r = a.base.rule;
    const chunks_record<deep> record = record_of<deep>(a, c.number, head);
    const int64_t first = c.number * CHUNK;
    const int x = threadIdx.x, n = (int)c.n;
    struct mend_row row;
    if (x >= r.K) return;
    load_mend<io>(row, r, c, tokens, head, x);
    for (int v = 0; v < r.V; v++) {
        const int64_t place = block_place(v % 16, x);
        const char *const u = record.u(v / 16), *const z = record.z(v / 16);
        float s = gdn_io<io>::load((const element *)(record.S(v / 16) + place));
        float j = gdn_io<io>::load((const element *)(record.J(v / 16) + place));
        for (int t = 0; t < n; t++) {
            const float by = gdn_io<io>::load((const element *)(u + block_place(v % 16, t)));
            s = row.a[t] == 0 ? 0 : row.a[t] * s;
            row.before[t] = s;
            if (by != 0) s = fmaf(row.k[t], by, s);
        }
        for (int t = n - 1; t >= 0; t--) {
            const float before = row.before[t];
            const float by_u = gdn_io<io>::load((const element *)(u + block_place(v % 16, t)));
            const float by_z = gdn_io<io>::load((const element *)(z + block_place(v % 16, t)));
            const float dout =
                gdn_io<io>::load((const element *)row_at(a.base.dout, c.seq, c.t0 + t, head) + v);
            float *const dq = memory_row(a.base.head_dq, first + t, head) + x;
            float *const dk = memory_row(a.base.head_dk, first + t, head) + x;
            float *const db = memory_row(a.e, first + t, head) + x;
            float *const dg = memory_row(a.a, first + t, head) + x;
            const float after = by_u != 0 ? fmaf(row.k[t], by_u, before) : before;
            const float sum = before * by_z;
            *dq = fmaf(after, dout, v ? *dq : 0);
            j = fmaf(row.q[t], dout, j);
            *dk = fmaf(j, by_u, v ? *dk : 0) - row.b[t] * sum;
            *db = (v ? *db : 0) - row.k[t] * sum;
            if (row.b[t] != 0) j = fmaf(-(row.b[t] * row.k[t]), by_z, j);
            *dg = row.a[t] == 0 ? 0 : fmaf(j, before, v ? *dg : 0);
            j = row.a[t] == 0 ? 0 : row.a[t] * j;
        }
    }
}

#endif
