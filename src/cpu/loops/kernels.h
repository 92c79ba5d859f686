/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops of the CPU backend: one complete table per instruction set. Ops know
 * layouts and batches; these loops handle rows of float32 and nothing else.
 *
 * Contracts. Pointers need the alignment of their element only, unless a parameter says
 * otherwise. Nothing outside the described elements is touched. Loops cannot fail. The
 * float environment is the default one (gdn_fp_enter()). Every element of a result is
 * computed in an order that does not depend on the other elements asked for, so cutting a
 * call into several along rows or columns changes no bit.
 *
 * Error limits, in units of 2^-24 x the magnitude (the same expression on absolute values,
 * docs/design/numerics.md), stand beside each loop and are what tests/loops/check_*.c assert. Those
 * of long sums are for data without structure; whatever the data, a sum errs by at most one unit
 * per addition of its longest chain: n / 64 + 10 for dot, K / 8 + 6 for gemm_nt (scalar n / 8 + 5),
 * K + 1 for strip_mul, K + 16 for channel_walk.
 */
#ifndef GDN_CPU_KERNELS_H
#define GDN_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/limits.h"

enum { GDN_N_FLOAT_DTYPES = 3 }; /* GDN_F32, GDN_BF16, GDN_F16 index every [dtype] below */

enum { GDN_N_Q8 = 3 }; /* GDN_I8, GDN_E4M3, GDN_E5M2: loops of 8-bit states, [dtype - GDN_I8] */

enum { GDN_CHUNK = 16 };          /* C: tokens of one chunk of the prefill */
enum { GDN_MAX_STRIP = 32 };      /* widest strip of state columns, floats */
enum { GDN_RECUR_COLUMNS = 128 }; /* most value columns of one step call */

/* The features that an instruction set needs; gdn_cpu_detect() returns those of the machine. */
enum {
    GDN_CPU_AVX2 = 1u << 0,   /* AVX2, FMA and F16C, and the OS saves YMM */
    GDN_CPU_AVX512 = 1u << 1, /* F, BW, DQ and VL, and the OS saves ZMM */
    GDN_CPU_AVX512_BF16 = 1u << 2,
    GDN_CPU_AMX = 1u << 3, /* tiles of bfloat16, which the OS lets this process use */
    GDN_CPU_NEON = 1u << 4 /* every AArch64 has it */
};

/*
 * T tokens of the recurrence on n <= 128 value columns of one head's state. k and q are normalised
 * and q carries the scale; kq[t] = k_t . q_t. For each token, S being columns 0..n-1:
 *
 *     alpha = 0: S <- 0      p = S^T k    z = S^T q       (S before the decay)
 *     u = beta (v - alpha p), 0 where beta = 0
 *     o = alpha z + kq u     S <- alpha S + k u^T, only alpha S where beta = 0
 *
 * The state starts at `from` (NULL: zero) and after token t is stored at to[t] (NULL: not
 * stored). Strides in elements: recur_vk reads columns as rows of K contiguous elements, ld
 * apart; recur_kv reads K rows of n contiguous elements, ld apart. from may equal any to[t].
 * Long sequences come in several calls: with T > 1 or resume the state is left in scratch as
 * float32, and resume starts from there instead of from `from`. There it is dense, [n][K]
 * for recur_vk and [K][n] for recur_kv.
 *
 * With a, each channel k of the state, a row of S, has a decay of its own. ak and aq are keys and
 * queries as they meet S before its decay, v holds what is to be written in place of the old value:
 *
 *     p = S^T ak    z = S^T aq    u = v - p    o = z + kq u    S <- diag(a) S + k u^T
 *
 * Then alpha[t] is 0 where a channel forgets, which zeroes its row of S before all else, 1 where
 * every a is 1, and any other number elsewhere. beta[t] is 0 where nothing is written, else 1.
 */
struct gdn_recur {
    const float *q, *k;             /* [T][K], dense */
    const float *a, *ak, *aq;       /* [T][K], dense; a NULL: the numbers alpha and beta alone */
    const float *v;                 /* [T][n], ld_v apart */
    float *o, *u;                   /* [T][n], ld_o apart; may be NULL */
    const float *alpha, *beta, *kq; /* [T] */
    const void *from;               /* state dtype */
    void *const *to;                /* [T] */
    float *scratch;                 /* 64-byte aligned, GDN_MAX_HEAD x GDN_RECUR_COLUMNS */
    ptrdiff_t ld_v, ld_o, ld_from, ld_to;
    int T, K, n;
    bool resume;
    bool exact;  /* recur_kv: the order of summation of recur_vk */
    int round;   /* a dtype: the state is rounded to it after each token; GDN_F32: not */
    int updates; /* rows of a token, a divisor of T; 0: 1 */
};

/* Returns true if row t is the last update of its token. */
static inline bool gdn_ends_token(const struct gdn_recur *s, int t)
{
    return s->updates < 2 || (t + 1) % s->updates == 0;
}

struct gdn_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "neon" */
    uint32_t needs;   /* GDN_CPU_... */
    int strip;        /* width of a strip of state columns: 8 to GDN_MAX_STRIP floats */

    /* Row of n elements to or from float32; exact one way, nearest even the other. */
    void (*load_row[GDN_N_FLOAT_DTYPES])(float *dst, const void *src, size_t n);
    void (*store_row[GDN_N_FLOAT_DTYPES])(void *dst, const float *src, size_t n);

    /* sum a_i b_i. Limit 4 (scalar: 8 + n / 16). */
    float (*dot)(const float *a, const float *b, size_t n);
    /* y_i = x_i s w_i act(z_i); w NULL: 1; z NULL: no gate; sigmoid: act is sigmoid, else
     * SiLU. y may be x or z. Limit 8. */
    void (*norm_row)(float *y, const float *x, float s, const float *w, const float *z,
                     bool sigmoid, size_t n);
    /* y_i = exp(x_i); x from -inf to +inf, denormal results included. y may be x. Limit 2. */
    void (*exp_row)(float *y, const float *x, size_t n);
    /* y_i = m sigmoid(x_i). y may be x. Limit 5: the exponential and four roundings. */
    void (*sigmoid_row)(float *y, const float *x, float m, size_t n);
    /* act_i = act(z_i) as norm_row has it, slope_i = act'(z_i); one of them may be NULL or z.
     * Limit 8 of |act|; of |slope|, for SiLU s + |z| s (1 - s) with s = sigmoid(z). */
    void (*slope_row)(float *act, float *slope, const float *z, bool sigmoid, size_t n);
    /* g_i = neg_exp_A[i] softplus(a_i + dt[i]), softplus(x) = x for x > 20. g may be a.
     * Limit 4 of |g| + |neg_exp_A| (|a| + |dt|) sigmoid(a + dt): the sum rounds too. */
    void (*gate_row)(float *g, const float *a, const float *neg_exp_A, const float *dt, size_t n);

    /* Returns alpha of struct gdn_recur for n decays: 0 if one is 0, 1 if all are 1, else 0.5. */
    float (*decay_kind)(const float *a, size_t n);

    /* b[j][i] = a[i][j], i < rows, j < cols. */
    void (*transpose)(float *b, ptrdiff_t ldb, const float *a, ptrdiff_t lda, int rows, int cols);

    /* c[i][j] = sum_k a[i][k] b[j][k] (+ c[i][j] where add), i < m, j < n. Limit 4 + K / 256
     * (scalar: 8 + K / 16). */
    void (*gemm_nt)(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda, const float *b,
                    ptrdiff_t ldb, int m, int n, int K, bool add);
    /* y[j] = sum_k x[k] w[j][k] (+ y[j] where add), j < n; rows of w are ld elements apart. The
     * bits of gemm_nt on load_row of w. */
    void (*gemv[GDN_N_FLOAT_DTYPES])(float *y, const float *x, const void *w, ptrdiff_t ld, int n,
                                     int K, bool add);

    /* p[r][j] = keep[j] p[r][j] + sum_x a[r][x] w[x][j], r < rows, x < K, j < width; width is 16
     * or strip; keep NULL: 0, and p is not read. Limit 8 + K / 16. */
    void (*strip_mul)(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                      ptrdiff_t ldw, int rows, int K, int width, const float *keep);

    /*
     * Gates of one chunk, C = 16 tokens. gram rows 0..15 are k_i . k_j, rows 16..31
     * q_i . k_j ([32][16] dense). g is the log gate, above -inf, G its inclusive sum:
     *     A[i][j] = beta_i exp(G_i - G_j) k_i . k_j,  j < i, else 0
     *     B[i][j] = exp(G_i - G_j) q_i . k_j,         j <= i, else 0
     *     from_start[i] = exp(G_i)     to_end[i] = exp(G_15 - G_i)
     * A, B: [16][16] dense, 64-byte aligned. Limit 8 + 2 x the |exponent| (a difference of
     * large sums keeps its digits).
     */
    void (*chunk_gates)(float *A, float *B, float *from_start, float *to_end, const float *g,
                        const float *beta, const float *gram);

    /*
     * One strip of one chunk (strip columns, 64-byte aligned and dense unless ld is given).
     * p rows 0..15 are S^T k_i, rows 16..31 S^T q_i ([32][strip]):
     *     u_i = beta_i (v_i - from_start_i p_i) - sum_{j<i} A_ij u_j
     *     o_i = from_start_i p_{16+i} + sum_{j<=i} B_ij u_j
     *     w_i = to_end_i u_i
     * v and o: [16] rows of strip floats, ld apart; w: [16][strip]. Limit 32 of the
     * magnitude of this recurrence.
     */
    void (*chunk_solve)(float *o, ptrdiff_t ld_o, float *w, const float *p, const float *v,
                        ptrdiff_t ld_v, const float *A, const float *B, const float *from_start,
                        const float *to_end, const float *beta);

    /* to[x][j] = decay from[x][j] + sum_t k[t][x] w[t][j], x < K, t < T <= 32, j < strip; to,
     * which may be from, ld apart. Limit 12 (T = 32: 20). */
    void (*chunk_update)(float *to, const float *from, ptrdiff_t ld, float decay, const float *k,
                         ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w, int T, int K);

    /* The same with a decay of each row, decay[x]. */
    void (*channel_update)(float *to, const float *from, ptrdiff_t ld, const float *decay,
                           const float *k, ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w, int T,
                           int K);
    /*
     * Pairs of the 16 tokens of a chunk whose channels each have a decay a. All but A and B are
     * rows of K, ld apart. With D_ij the product of a_l for j < l <= i:
     *     A[i][j] = sum_x e_i k_j D_ij,  j < i, else 0     B[i][j] = sum_x q_i k_j D_ij, j <= i
     *     y_j = k_j D_15j
     * No quotient and no exponential: right for a from 0 on. Limit 24 + K / 16, of y 15.
     */
    void (*channel_walk)(float *A, float *B, float *y, const float *a, const float *e,
                         const float *q, const float *k, ptrdiff_t ld, int K);
    /* Rows of K, ld apart, 16 tokens each: to_e_i = e_i D_i and to_q_i = q_i D_i, with D_i the
     * product of a_l for l <= i, and decay = D_15. Limit 17. */
    void (*channel_scale)(float *to_e, float *to_q, float *decay, const float *a, const float *e,
                          const float *q, ptrdiff_t ld, int K);
    /*
     * The gradients of both. X (below the diagonal) and Y (up to it, [16][16]) are those of A and
     * B; all others rows of K, ld apart, 16 tokens each. dq, de and dk begin as the gradients of
     * q_i D_i, e_i D_i and y_i, carried [K] as that of D_15:
     *     dq_i <- D_i dq_i + sum_j Y_ij k_j D_ij     de_i <- D_i de_i + sum_j X_ij k_j D_ij
     *     dk_j <- D_15j dk_j + sum_i (X_ij e_i + Y_ij q_i) D_ij
     * dg_i, the gradient of log a_i, is a sum of the terms that have a_i in their decays. So it is
     * small if a_i is, and 0 where a_i is 0:
     *     dg_i = D_15 carried + sum_{j<i} k_j D_15j dk_j (before)
     *            + sum_{l>=i} (D_l (q_l dq_l + e_l de_l) (before)
     *                          + sum_{j<i} (Y_lj q_l + X_lj e_l) k_j D_lj)
     * Limit 40, of the magnitude of these sums.
     */
    void (*channel_return)(float *dq, float *de, float *dk, float *dg, const float *carried,
                           const float *a, const float *e, const float *q, const float *k,
                           ptrdiff_t ld, const float *X, const float *Y, int K);

    /*
     * chunk_solve without outputs, but with r_i = v_i - from_start_i p_i and with u, w and u having
     * its bits. All of them are [16] rows of strip floats, ld apart. Limits: r 2, u and w 32 of the
     * magnitude of the recurrence.
     */
    void (*chunk_write)(float *r, float *u, float *w, ptrdiff_t ld, const float *p, const float *v,
                        const float *A, const float *from_start, const float *to_end,
                        const float *beta);
    /*
     * The same system backwards, rows as above:
     *     u_i = v_i - from_end_i p_i - sum_{j>i} A_ji u_j     w_i = scale_i u_i
     * Limit 32 of the magnitude of this recurrence.
     */
    void (*chunk_return)(float *u, float *w, ptrdiff_t ld, const float *p, const float *v,
                         const float *A, const float *from_end, const float *scale);

    /* struct gdn_recur above; [dtype] is the state's. Limit 8 + K / 16 per token, for data
     * without structure where recur_kv is not exact. Tables with FMA give the same bits, but
     * for NaN; so do dot, exp_row, sigmoid_row, gate_row and norm_row. */
    void (*recur_vk[GDN_N_FLOAT_DTYPES])(const struct gdn_recur *step);
    void (*recur_kv[GDN_N_FLOAT_DTYPES])(const struct gdn_recur *step);
    /*
     * The same tokens on one strip S of the state ([K][strip] of float32, dense, 64-byte
     * aligned), which holds it before and after: n is strip, the order that of recur_vk, and S
     * is rounded to [dtype] after each token. Of the step, from, to, scratch, ld_from, ld_to,
     * resume, exact and round are not looked at. The same limit.
     */
    void (*recur_strip[GDN_N_FLOAT_DTYPES])(float *S, const struct gdn_recur *step);

    /* The update alone, to the bit: s[i][j] = alpha s[i][j] + a[i] b[j], i < rows, j < cols, s
     * dense; b NULL: alpha s. For a recur_vk state a is u and b is k, for recur_kv the reverse.
     * Limit 3. */
    void (*add_outer)(float *s, int rows, int cols, float alpha, const float *a, const float *b);

    /*
     * T tokens of n channels of the short convolution, x and y of the [dtype], ld_x and ld_y
     * elements apart; y may be x. weight [W][n] and window [W-1][n] are float32, ld_w apart
     * both; bias [n] or NULL. The window holds the inputs before the first token, oldest
     * first, and is moved on. y = act(bias + sum_w weight_w x_{t-W+1+w}), oldest tap first;
     * silu: act is x sigmoid(x), else none. Limit 8 + W.
     */
    void (*conv[GDN_N_FLOAT_DTYPES])(void *y, ptrdiff_t ld_y, const void *x, ptrdiff_t ld_x,
                                     float *window, const float *weight, const float *bias,
                                     ptrdiff_t ld_w, int W, bool silu, int64_t T, int n);

    /*
     * The same bits for one token with W = 4, on states of the [dtype] as they lie: the last three
     * inputs of a channel, oldest first, and then those of the next channel. to may be from, and y
     * may be x.
     */
    void (*conv_update[GDN_N_FLOAT_DTYPES])(void *y, const void *x, void *to, const void *from,
                                            const float *weight, const float *bias, ptrdiff_t ld_w,
                                            bool silu, int n);

    /* sum[w][j] = sum_t dz[t][j] x[t + w][j], w < W, t < T, j < n; rows of sum ld_sum apart, those
     * of dz and x ld. Limit T + 1. */
    void (*conv_sums)(float *sum, ptrdiff_t ld_sum, const float *dz, const float *x, ptrdiff_t ld,
                      int W, int T, int n);

    /*
     * n value columns of K elements of an 8-bit state: codes, ld bytes apart, and a scale per
     * column (scales NULL, with floats of 8 bits alone: 1). The floats are ld_dst or ld_src apart.
     * _vk: [n][K], a row is a column; _kv: [K][n]. Loading gives code x scale. Storing, with m the
     * largest magnitude of a column and each operation rounded to float32:
     *
     *     scale = max(m / 127, 448 or 57344, 2^-126), but 0 where m = 0, NaN where an element is
     *             not finite; the codes of such columns are 0
     *     code of y = element (1 / scale), to nearest even; or with keys (NULL: none), for y
     *             between two codes a <= y < b, to b with the probability (y - a) / (b - a)
     *
     * Without scales y is the element: beyond the largest value it is that, a NaN is code 127.
     *
     * y in units of the last place of its code is cut to 24 bits (I8), 20 (E4M3) or 21 (E5M2)
     * behind the point, as many of the upper ones of h(key + x 0x9e3779b9) are added (floats: to
     * magnitudes), x being the element's place in its column, and the sum is cut to a whole number.
     * h(x) is x ^= x >> 16, x *= 0x7feb352d, x ^= x >> 15, x *= 0x846ca68b, x ^= x >> 16. Codes and
     * scales have the same bits in all tables.
     */
    void (*load8_vk[GDN_N_Q8])(float *dst, ptrdiff_t ld_dst, const void *src, ptrdiff_t ld,
                               const float *scales, int K, int n);
    void (*load8_kv[GDN_N_Q8])(float *dst, ptrdiff_t ld_dst, const void *src, ptrdiff_t ld,
                               const float *scales, int K, int n);
    void (*store8_vk[GDN_N_Q8])(void *dst, ptrdiff_t ld, float *scales, const float *src,
                                ptrdiff_t ld_src, const uint32_t *keys, int K, int n);
    void (*store8_kv[GDN_N_Q8])(void *dst, ptrdiff_t ld, float *scales, const float *src,
                                ptrdiff_t ld_src, const uint32_t *keys, int K, int n);

    /*
     * load8_vk(), recur_vk() of one token and store8_vk() in one loop: the same bits. Of the step,
     * q, k, v, o, alpha, beta, kq, K and n count. Returns false, and has done nothing, for gates
     * and K that it is not made for; "scalar" is made for none.
     */
    bool (*recur8_vk[GDN_N_Q8])(const struct gdn_recur *step, void *codes, ptrdiff_t ld,
                                float *scales, const uint32_t *keys);
};

extern const struct gdn_kernels gdn_kernels_scalar;
#if defined(__x86_64__)
/* avx512bf16: "avx512" too, with another recur_vk of bf16. */
extern const struct gdn_kernels gdn_kernels_avx2, gdn_kernels_avx512, gdn_kernels_avx512bf16;
#elif defined(__aarch64__)
extern const struct gdn_kernels gdn_kernels_neon;
#endif

/* All tables of this build, weakest first, then NULL. */
extern const struct gdn_kernels *const gdn_cpu_tables[];

/* Returns GDN_CPU_... bits of this machine: CPUID and XCR0; on Arm what the target has. */
uint32_t gdn_cpu_detect(void);
/* Returns the last table whose needs are all met, and that comes no later than the last one named
 * at_most (NULL: no limit). NULL if the name is unknown or its needs are not met. */
const struct gdn_kernels *gdn_cpu_select(uint32_t flags, const char *at_most);

#endif
