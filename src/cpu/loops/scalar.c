/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every inner loop in plain C. The other tables are compared with it, and it runs on machines
 * without a table. It is written to be read. Innermost loops are over contiguous floats, so that a
 * compiler may use the vectors that every machine of its target has.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/loops/kernels.h"
#include "gdn.h"

enum { C = GDN_CHUNK, STRIP = 8 };

/* ---- Storage dtypes ---- */

static uint32_t float_bits(float x)
{
    uint32_t i;
    memcpy(&i, &x, sizeof i);
    return i;
}

static float bits_float(uint32_t i)
{
    float x;
    memcpy(&x, &i, sizeof x);
    return x;
}

static float from_bf16(uint16_t h) { return bits_float((uint32_t)h << 16); }

static uint16_t to_bf16(float x)
{
    const uint32_t i = float_bits(x);
    if (x != x) return (uint16_t)((i | 0x400000) >> 16);
    return (uint16_t)((i + 0x7fff + (i >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 0) return bits_float(sign | float_bits((float)m * 0x1p-24f));
    if (e == 31) return bits_float(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
    return bits_float(sign | (e + 112) << 23 | m << 13);
}

static uint16_t to_f16(float x)
{
    const uint32_t i = float_bits(x), sign = i >> 16 & 0x8000, a = i & 0x7fffffff;
    uint32_t h;
    if (a > 0x7f800000)
        h = 0x7e00 | (a >> 13 & 1023);
    else if (a >= 0x477ff000) /* 65520, half way to the next power of two: even is infinity */
        h = 0x7c00;
    else if (a < 0x38800000) /* below 2^-14: 0.5 has the spacing of f16 denormals */
        h = float_bits(bits_float(a) + 0.5f) - float_bits(0.5f);
    else
        h = (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
    return (uint16_t)(sign | h);
}

static void load_row_f32(float *dst, const void *src, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void load_row_bf16(float *dst, const void *src, size_t n)
{
    const uint16_t *h = src;
    for (size_t i = 0; i < n; i++) dst[i] = from_bf16(h[i]);
}

static void load_row_f16(float *dst, const void *src, size_t n)
{
    const uint16_t *h = src;
    for (size_t i = 0; i < n; i++) dst[i] = from_f16(h[i]);
}

static void store_row_f32(void *dst, const float *src, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}

static void store_row_bf16(void *dst, const float *src, size_t n)
{
    uint16_t *h = dst;
    for (size_t i = 0; i < n; i++) h[i] = to_bf16(src[i]);
}

static void store_row_f16(void *dst, const float *src, size_t n)
{
    uint16_t *h = dst;
    for (size_t i = 0; i < n; i++) h[i] = to_f16(src[i]);
}

/* The functions of a loop with a dtype in it. */
struct storage {
    ptrdiff_t bytes;
    void (*load)(float *dst, const void *src, size_t n);
    void (*store)(void *dst, const float *src, size_t n);
};

static const struct storage f32 = { sizeof(float), load_row_f32, store_row_f32 };
static const struct storage bf16 = { sizeof(uint16_t), load_row_bf16, store_row_bf16 };
static const struct storage f16 = { sizeof(uint16_t), load_row_f16, store_row_f16 };

/* ---- Rows ---- */

/* Adds products to eight sums: rounding errors grow with n / 8. */
static void add_products(float s[8], const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++) s[l] += a[i + l] * b[i + l];
    for (; i < n; i++) s[i % 8] += a[i] * b[i];
}

static float sum_8(const float s[8])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static float dot(const float *a, const float *b, size_t n)
{
    float s[8] = { 0 };
    add_products(s, a, b, n);
    return sum_8(s);
}

/* Returns m sigmoid(x). In double, where exp(-x) neither overflows nor loses digits as a
 * denormal. */
static float times_sigmoid(float m, float x) { return (float)(m / (1 + exp(-(double)x))); }

/* The bound keeps -inf from outweighing its sigmoid. */
static float silu_of(float x) { return times_sigmoid(x < -1000 ? -1000 : x, x); }

static void norm_row(float *y, const float *x, float s, const float *w, const float *z,
                     bool sigmoid, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float v = x[i] * s * (w ? w[i] : 1);
        y[i] = !z ? v : sigmoid ? times_sigmoid(v, z[i]) : v * silu_of(z[i]);
    }
}

static void exp_row(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = expf(x[i]);
}

static void sigmoid_row(float *y, const float *x, float m, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = times_sigmoid(m, x[i]);
}

static void slope_row(float *act, float *slope, const float *z, bool sigmoid, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = z[i] > 200 ? 200 : z[i] < -1000 ? -1000 : (double)z[i];
        const double s = 1 / (1 + exp(-x)), rest = 1 / (1 + exp(x));
        const float y = sigmoid ? (float)s : z[i] > 200 ? z[i] : (float)(x * s);
        if (slope) slope[i] = (float)(sigmoid ? s * rest : s * (1 + x * rest));
        if (act) act[i] = y;
    }
}

static void gate_row(float *g, const float *a, const float *neg_exp_A, const float *dt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x = a[i] + dt[i];
        g[i] = neg_exp_A[i] * (x > 20 ? x : log1pf(expf(x)));
    }
}

/* ---- Matrices ---- */

static void transpose(float *b, ptrdiff_t ldb, const float *a, ptrdiff_t lda, int rows, int cols)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) b[j * ldb + i] = a[i * lda + j];
}

static void gemm_nt(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda, const float *b,
                    ptrdiff_t ldb, int m, int n, int K, bool add)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const float sum = dot(a + i * lda, b + j * ldb, (size_t)K);
            c[i * ldc + j] = add ? c[i * ldc + j] + sum : sum;
        }
}

static void gemv(const struct storage *dtype, float *y, const float *x, const void *w, ptrdiff_t ld,
                 int n, int K, bool add)
{
    enum { PIECE = 64 };
    for (int j = 0; j < n; j++) {
        const char *row = (const char *)w + j * ld * dtype->bytes;
        float s[8] = { 0 }, piece[PIECE];
        for (int k = 0; k < K; k += PIECE) {
            const size_t some = (size_t)(K - k < PIECE ? K - k : PIECE);
            dtype->load(piece, row + k * dtype->bytes, some);
            add_products(s, x + k, piece, some);
        }
        y[j] = add ? y[j] + sum_8(s) : sum_8(s);
    }
}

#define GEMV(dtype)                                                                               \
    static void gemv_##dtype(float *y, const float *x, const void *w, ptrdiff_t ld, int n, int K, \
                             bool add)                                                            \
    {                                                                                             \
        gemv(&dtype, y, x, w, ld, n, K, add);                                                     \
    }
GEMV(f32)
GEMV(bf16)
GEMV(f16)

/* ---- Blocks of the prefill ---- */

static void strip_mul(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                      ptrdiff_t ldw, int rows, int K, int width, const float *keep)
{
    for (int r = 0; r < rows; r++) {
        float sum[2 * STRIP] = { 0 };
        for (int j = 0; keep && j < width; j++) sum[j] = keep[j] * p[r * ldp + j];
        for (int x = 0; x < K; x++)
            for (int j = 0; j < width; j++) sum[j] += a[r * lda + x] * w[x * ldw + j];
        memcpy(p + r * ldp, sum, (size_t)width * sizeof *sum);
    }
}

/* G_i - G_j is summed from token i downwards, in double: no digits are lost. */
static void chunk_gates(float *A, float *B, float *from_start, float *to_end, const float *g,
                        const float *beta, const float *gram)
{
    memset(A, 0, C * C * sizeof *A);
    memset(B, 0, C * C * sizeof *B);
    for (int i = 0; i < C; i++) {
        double sum = 0; /* G_i - G_j */
        for (int j = i; j >= 0; j--) {
            const float decay = expf((float)sum);
            if (j < i) A[i * C + j] = beta[i] * (decay * gram[i * C + j]);
            B[i * C + j] = decay * gram[(C + i) * C + j];
            if (i == C - 1) to_end[j] = decay;
            sum += g[j];
        }
        from_start[i] = expf((float)sum);
    }
}

/* Solves row i of u, from the rows before it; rest: v_i - from_start_i p_i. */
static void solve_row(float u[C][STRIP], int i, const float *rest, const float *A, float beta)
{
    for (int c = 0; c < STRIP; c++) u[i][c] = beta * rest[c];
    for (int j = 0; j < i; j++)
        for (int c = 0; c < STRIP; c++) u[i][c] -= A[i * C + j] * u[j][c];
}

static void chunk_solve(float *o, ptrdiff_t ld_o, float *w, const float *p, const float *v,
                        ptrdiff_t ld_v, const float *A, const float *B, const float *from_start,
                        const float *to_end, const float *beta)
{
    float u[C][STRIP], sum[STRIP];
    for (int i = 0; i < C; i++) {
        for (int c = 0; c < STRIP; c++) sum[c] = v[i * ld_v + c] - from_start[i] * p[i * STRIP + c];
        solve_row(u, i, sum, A, beta[i]);
        for (int c = 0; c < STRIP; c++) w[i * STRIP + c] = to_end[i] * u[i][c];

        for (int c = 0; c < STRIP; c++) sum[c] = from_start[i] * p[(C + i) * STRIP + c];
        for (int j = 0; j <= i; j++)
            for (int c = 0; c < STRIP; c++) sum[c] += B[i * C + j] * u[j][c];
        memcpy(o + i * ld_o, sum, sizeof sum);
    }
}

static void chunk_write(float *r, float *u, float *w, ptrdiff_t ld, const float *p, const float *v,
                        const float *A, const float *from_start, const float *to_end,
                        const float *beta)
{
    float x[C][STRIP];
    for (int i = 0; i < C; i++) {
        for (int c = 0; c < STRIP; c++)
            r[i * ld + c] = v[i * ld + c] - from_start[i] * p[i * ld + c];
        solve_row(x, i, r + i * ld, A, beta[i]);
        memcpy(u + i * ld, x[i], sizeof x[i]);
        for (int c = 0; c < STRIP; c++) w[i * ld + c] = to_end[i] * x[i][c];
    }
}

static void chunk_return(float *u, float *w, ptrdiff_t ld, const float *p, const float *v,
                         const float *A, const float *from_end, const float *scale)
{
    for (int i = C - 1; i >= 0; i--) {
        float *z = u + i * ld;
        for (int c = 0; c < STRIP; c++) z[c] = v[i * ld + c] - from_end[i] * p[i * ld + c];
        for (int j = C - 1; j > i; j--)
            for (int c = 0; c < STRIP; c++) z[c] -= A[j * C + i] * u[j * ld + c];
        for (int c = 0; c < STRIP; c++) w[i * ld + c] = scale[i] * z[c];
    }
}

static void chunk_update(float *to, const float *from, ptrdiff_t ld, float decay, const float *k,
                         ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w, int T, int K)
{
    for (int x = 0; x < K; x++)
        for (int c = 0; c < STRIP; c++) {
            float sum = decay * from[x * ld + c];
            for (int t = 0; t < T; t++) sum += k[t * ld_k + x] * w[t * ld_w + c];
            to[x * ld + c] = sum;
        }
}

static void channel_update(float *to, const float *from, ptrdiff_t ld, const float *decay,
                           const float *k, ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w, int T,
                           int K)
{
    for (int x = 0; x < K; x++)
        chunk_update(to + x * ld, from + x * ld, ld, decay[x], k + x, ld_k, w, ld_w, T, 1);
}

static void channel_walk(float *A, float *B, float *y, const float *a, const float *e,
                         const float *q, const float *k, ptrdiff_t ld, int K)
{
    memset(A, 0, C * C * sizeof *A);
    memset(B, 0, C * C * sizeof *B);
    for (int x = 0; x < K; x++, y++, a++, e++, q++, k++)
        for (int i = 0; i < C; i++) {
            for (int j = 0; j < i; j++) {
                y[j * ld] *= a[i * ld];
                A[i * C + j] += e[i * ld] * y[j * ld];
                B[i * C + j] += q[i * ld] * y[j * ld];
            }
            y[i * ld] = k[i * ld];
            B[i * C + i] += q[i * ld] * y[i * ld];
        }
}

static float decay_kind(const float *a, size_t n)
{
    bool has_zero = false, are_one = true;
    for (size_t i = 0; i < n; i++) {
        has_zero |= a[i] == 0;
        are_one &= a[i] == 1;
    }
    return has_zero ? 0 : are_one ? 1 : 0.5f;
}

static void channel_scale(float *to_e, float *to_q, float *decay, const float *a, const float *e,
                          const float *q, ptrdiff_t ld, int K)
{
    for (int x = 0; x < K; x++) {
        decay[x] = 1;
        for (ptrdiff_t at = x, i = 0; i < C; i++, at += ld) {
            decay[x] *= a[at];
            to_e[at] = e[at] * decay[x];
            to_q[at] = q[at] * decay[x];
        }
    }
}

static void return_channel(float *dq, float *de, float *dk, float *dg, float carried,
                           const float *a, const float *e, const float *q, const float *k,
                           ptrdiff_t ld, const float *X, const float *Y)
{
    float G[C], D = 1;
    for (int i = C - 1; i >= 0; i--) {
        G[i] = D;
        D *= a[i * ld];
    }
    for (int i = 0; i < C; i++) {
        G[i] *= carried;
        carried = carried * a[i * ld] + k[i * ld] * dk[i * ld];
    }
    for (int i = 0; i < C; i++) {
        float to_j[C]; /* the decays after token j up to i */
        to_j[i] = 1;
        for (int j = i; j > 0; j--) to_j[j - 1] = to_j[j] * a[j * ld];
        for (int j = 0; j <= i; j++) {
            G[j] += to_j[j] * (q[i * ld] * dq[i * ld] + e[i * ld] * de[i * ld]);
            dq[i * ld] = dq[i * ld] * a[j * ld] + Y[i * C + j] * k[j * ld];
            de[i * ld] = de[i * ld] * a[j * ld] + (j < i ? X[i * C + j] * k[j * ld] : 0);
        }
    }
    for (int j = 0; j < C; j++) {
        for (int i = C - 1; i > j; i--) {
            const float sum = dk[j * ld] + X[i * C + j] * e[i * ld] + Y[i * C + j] * q[i * ld];
            dk[j * ld] = sum * a[i * ld];
        }
        dk[j * ld] += Y[j * C + j] * q[j * ld];
        dg[j * ld] = a[j * ld] == 0 ? 0 : a[j * ld] * G[j];
    }
}

static void channel_return(float *dq, float *de, float *dk, float *dg, const float *carried,
                           const float *a, const float *e, const float *q, const float *k,
                           ptrdiff_t ld, const float *X, const float *Y, int K)
{
    for (int x = 0; x < K; x++)
        return_channel(dq + x, de + x, dk + x, dg + x, carried[x], a + x, e + x, q + x, k + x, ld,
                       X, Y);
}

/* ---- The recurrence: sums over K in 16 lanes, in the order of the vector tables ---- */

enum { LANES = 16 };

static float sum_lanes(float s[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) s[l] += s[l + half];
    return s[0];
}

/* Rounds n floats as they come back from a storage dtype. */
static void round_row(float *x, size_t n, int dtype)
{
    for (size_t i = 0; i < n && dtype == GDN_BF16; i++) x[i] = from_bf16(to_bf16(x[i]));
    for (size_t i = 0; i < n && dtype == GDN_F16; i++) x[i] = from_f16(to_f16(x[i]));
}

/* Rows and their length of the state as it lies in memory and, densely, in scratch. */
struct shape {
    int rows, length;
};

static struct shape step_shape(const struct gdn_recur *s, bool k_first)
{
    return k_first ? (struct shape){ s->K, s->n } : (struct shape){ s->n, s->K };
}

static void step_load(const struct gdn_recur *s, const struct storage *dtype, bool k_first)
{
    const struct shape shape = step_shape(s, k_first);
    const char *from = s->from;
    for (int i = 0; i < shape.rows; i++) {
        float *row = s->scratch + (ptrdiff_t)i * shape.length;
        if (from)
            dtype->load(row, from + i * s->ld_from * dtype->bytes, (size_t)shape.length);
        else
            memset(row, 0, (size_t)shape.length * sizeof *row);
    }
}

static void step_store(const struct gdn_recur *s, char *to, const struct storage *dtype,
                       bool k_first)
{
    const struct shape shape = step_shape(s, k_first);
    for (int i = 0; i < shape.rows; i++)
        dtype->store(to + i * s->ld_to * dtype->bytes, s->scratch + (ptrdiff_t)i * shape.length,
                     (size_t)shape.length);
}

/* Computes token t on column j, whose state is K elements from S, `next` apart. */
static void step_token(const struct gdn_recur *s, int t, int j, float *S, ptrdiff_t next)
{
    const int K = s->K;
    const float *k = s->k + (ptrdiff_t)t * K;
    const float *a = s->a ? s->a + (ptrdiff_t)t * K : NULL;
    const float *dot_k = (a ? s->ak : s->k) + (ptrdiff_t)t * K;
    const float *dot_q = (a ? s->aq : s->q) + (ptrdiff_t)t * K;
    const float alpha = a ? 1 : s->alpha[t], beta = s->beta[t];
    float ps[LANES] = { 0 }, zs[LANES] = { 0 };
    for (int x = 0; x < K; x++) {
        if (a ? a[x] == 0 : alpha == 0) S[x * next] = 0;
        ps[x % LANES] += S[x * next] * dot_k[x];
        zs[x % LANES] += S[x * next] * dot_q[x];
    }
    const float p = sum_lanes(ps), z = sum_lanes(zs);
    const float u = beta == 0 ? 0 : beta * (s->v[t * s->ld_v + j] - alpha * p);
    if (s->o) s->o[t * s->ld_o + j] = alpha * z + s->kq[t] * u;
    if (s->u) s->u[t * s->ld_o + j] = u;

    for (int x = 0; x < K && a; x++) S[x * next] *= a[x];
    for (int x = 0; x < K && alpha != 1; x++) S[x * next] *= alpha;
    for (int x = 0; x < K && beta != 0; x++) S[x * next] += k[x] * u;
}

static void step(const struct gdn_recur *s, const struct storage *dtype, bool k_first)
{
    const ptrdiff_t column = k_first ? 1 : s->K, next = k_first ? s->n : 1;
    if (!s->resume) step_load(s, dtype, k_first);
    for (int t = 0; t < s->T; t++) {
        for (int j = 0; j < s->n; j++) step_token(s, t, j, s->scratch + j * column, next);
        if (gdn_ends_token(s, t)) round_row(s->scratch, (size_t)(s->K * s->n), s->round);
        if (s->to[t]) step_store(s, s->to[t], dtype, k_first);
    }
}

static void add_outer(float *s, int rows, int cols, float alpha, const float *a, const float *b)
{
    for (int i = 0; i < rows; i++, s += cols) {
        for (int j = 0; j < cols && alpha != 1; j++) s[j] *= alpha;
        for (int j = 0; j < cols && b; j++) s[j] += a[i] * b[j];
    }
}

static void recur_strip(float *S, const struct gdn_recur *s, int dtype)
{
    for (int t = 0; t < s->T; t++) {
        for (int j = 0; j < STRIP; j++) step_token(s, t, j, S + j, STRIP);
        if (gdn_ends_token(s, t)) round_row(S, (size_t)(s->K * STRIP), dtype);
    }
}

static void recur_strip_f32(float *S, const struct gdn_recur *s) { recur_strip(S, s, GDN_F32); }
static void recur_strip_bf16(float *S, const struct gdn_recur *s) { recur_strip(S, s, GDN_BF16); }
static void recur_strip_f16(float *S, const struct gdn_recur *s) { recur_strip(S, s, GDN_F16); }
static void recur_vk_f32(const struct gdn_recur *s) { step(s, &f32, false); }
static void recur_vk_bf16(const struct gdn_recur *s) { step(s, &bf16, false); }
static void recur_vk_f16(const struct gdn_recur *s) { step(s, &f16, false); }
static void recur_kv_f32(const struct gdn_recur *s) { step(s, &f32, true); }
static void recur_kv_bf16(const struct gdn_recur *s) { step(s, &bf16, true); }
static void recur_kv_f16(const struct gdn_recur *s) { step(s, &f16, true); }

/* ---- Convolution ---- */

enum { CHANNELS = 64 }; /* at a time: a row of them on the stack */

/* Computes one token on n <= CHANNELS channels: y from x, and the window moves on. */
static void conv_token(float *y, const float *x, float *window, const float *weight,
                       const float *bias, ptrdiff_t ld_w, int W, bool silu, int n)
{
    for (int c = 0; c < n; c++) {
        float sum = bias ? bias[c] : 0;
        for (int w = 0; w < W - 1; w++) sum += weight[w * ld_w + c] * window[w * ld_w + c];
        sum += weight[(W - 1) * ld_w + c] * x[c];
        y[c] = silu ? silu_of(sum) : sum;

        for (int w = 0; w < W - 2; w++) window[w * ld_w + c] = window[(w + 1) * ld_w + c];
        window[(W - 2) * ld_w + c] = x[c];
    }
}

static void conv(const struct storage *dtype, char *y, ptrdiff_t ld_y, const char *x,
                 ptrdiff_t ld_x, float *window, const float *weight, const float *bias,
                 ptrdiff_t ld_w, int W, bool silu, int64_t T, int n)
{
    for (int c = 0; c < n; c += CHANNELS) {
        const int m = n - c < CHANNELS ? n - c : CHANNELS;
        float in[CHANNELS], out[CHANNELS];
        for (int64_t t = 0; t < T; t++) {
            dtype->load(in, x + (t * ld_x + c) * dtype->bytes, (size_t)m);
            conv_token(out, in, window + c, weight + c, bias ? bias + c : NULL, ld_w, W, silu, m);
            dtype->store(y + (t * ld_y + c) * dtype->bytes, out, (size_t)m);
        }
    }
}

static void conv_sums(float *sum, ptrdiff_t ld_sum, const float *dz, const float *x, ptrdiff_t ld,
                      int W, int T, int n)
{
    for (int w = 0; w < W; w++) {
        float *s = sum + w * ld_sum;
        memset(s, 0, (size_t)n * sizeof *s);
        for (int t = 0; t < T; t++)
            for (int j = 0; j < n; j++) s[j] += dz[t * ld + j] * x[(t + w) * ld + j];
    }
}

static void conv_update(const struct storage *dtype, char *y, const char *x, char *to,
                        const char *from, const float *weight, const float *bias, ptrdiff_t ld_w,
                        bool silu, int n)
{
    for (int c = 0; c < n; c++) {
        float state[3], in, out;
        dtype->load(state, from + 3 * c * (ptrdiff_t)dtype->bytes, 3);
        dtype->load(&in, x + c * (ptrdiff_t)dtype->bytes, 1);
        float sum = bias ? bias[c] : 0;
        for (int w = 0; w < 3; w++) sum += weight[w * ld_w + c] * state[w];
        sum += weight[3 * ld_w + c] * in;
        out = silu ? silu_of(sum) : sum;
        dtype->store(y + c * (ptrdiff_t)dtype->bytes, &out, 1);
        state[0] = state[1];
        state[1] = state[2];
        state[2] = in;
        dtype->store(to + 3 * c * (ptrdiff_t)dtype->bytes, state, 3);
    }
}

#define CONV(dtype)                                                                         \
    static void conv_##dtype(void *y, ptrdiff_t ld_y, const void *x, ptrdiff_t ld_x,        \
                             float *window, const float *weight, const float *bias,         \
                             ptrdiff_t ld_w, int W, bool silu, int64_t T, int n)            \
    {                                                                                       \
        conv(&dtype, y, ld_y, x, ld_x, window, weight, bias, ld_w, W, silu, T, n);          \
    }                                                                                       \
    static void conv_update_##dtype(void *y, const void *x, void *to, const void *from,     \
                                    const float *weight, const float *bias, ptrdiff_t ld_w, \
                                    bool silu, int n)                                       \
    {                                                                                       \
        conv_update(&dtype, y, x, to, from, weight, bias, ld_w, silu, n);                   \
    }
CONV(f32)
CONV(bf16)
CONV(f16)

/* ---- States of 8 bits ---- */

#include "cpu/loops/q8_scalar.inc"

/* ---- The table ---- */

#define BY_DTYPE(name)                                                           \
    {                                                                            \
        [GDN_F32] = name##_f32, [GDN_BF16] = name##_bf16, [GDN_F16] = name##_f16 \
    }

const struct gdn_kernels gdn_kernels_scalar = {
    .name = "scalar",
    .needs = 0,
    .strip = STRIP,
    .load_row = BY_DTYPE(load_row),
    .store_row = BY_DTYPE(store_row),
    .dot = dot,
    .norm_row = norm_row,
    .exp_row = exp_row,
    .sigmoid_row = sigmoid_row,
    .slope_row = slope_row,
    .gate_row = gate_row,
    .transpose = transpose,
    .gemm_nt = gemm_nt,
    .gemv = BY_DTYPE(gemv),
    .strip_mul = strip_mul,
    .chunk_gates = chunk_gates,
    .chunk_solve = chunk_solve,
    .chunk_update = chunk_update,
    .decay_kind = decay_kind,
    .channel_update = channel_update,
    .channel_walk = channel_walk,
    .channel_scale = channel_scale,
    .channel_return = channel_return,
    .chunk_write = chunk_write,
    .chunk_return = chunk_return,
    .recur_vk = BY_DTYPE(recur_vk),
    .recur_kv = BY_DTYPE(recur_kv),
    .add_outer = add_outer,
    .recur_strip = BY_DTYPE(recur_strip),
    .conv = BY_DTYPE(conv),
    .conv_update = BY_DTYPE(conv_update),
    .conv_sums = conv_sums,
    .recur8_vk = { recur8_vk, recur8_vk, recur8_vk },
    Q8_LINES,
};
