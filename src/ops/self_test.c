/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_self_test(): small cases of the ops, through the public calls, beside plain C in float64
 * that shares nothing with them.
 *
 * Inputs are multiples of 1/64 in [-1, 1], exact in every dtype, so that the reference knows
 * them. Errors are judged as in docs/design/numerics.md: limit x 2^-24 x magnitude, and half an ulp
 * of a 16-bit result. The magnitude of the rule is its vector bound (section 5) per value column.
 */
#include <math.h>
#include <stdio.h>

#include "core/ctx.h"
#include "core/backend.h"
#include "cpu/loops/fpenv.h"
#include "cpu/loops/kernels.h"
#include "ops/mirror.h"

enum {
    H = 2,
    K = 36,
    V = 40,
    T_LONG = 40,
    T_SHORT = 3, /* the rule */
    ROWS = 9,
    D = 40,
    W = 4,                               /* convolution, gates, norms */
    MOST = T_LONG * H * (K > V ? K : V), /* elements of a tensor */
    FORGETS = 21                         /* the token with a gate of -inf */
};

/* The tensors of a run by number, as numbers and as stored. */
enum { QQ, KK, VV, GG, BB, SS, OUT, N_TENSORS };

struct self_test {
    gdn_ctx *ctx;
    char name[64];
    uint32_t random;
    double x[N_TENSORS][MOST];      /* the inputs, exactly */
    float stored[N_TENSORS][MOST];  /* room for any dtype */
    double S[K], k[K], q[K], error; /* one column of a state, and the bound of its error */
};

/* ---- Storage ------------------------------------------------------------------------------- */

static double half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const double mantissa = bits & 1023, sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, -24);
    return sign * ldexp(1024 + mantissa, exponent - 25);
}

/* x = m 2^-e with a small m, so nothing is rounded. */
static uint16_t half_bits(double x)
{
    if (x == 0) return 0;
    int exponent;
    const double mantissa = frexp(fabs(x), &exponent); /* in [1/2, 1) */
    return (uint16_t)((x < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) +
                      (int)(mantissa * 2048 - 1024));
}

static double get(const void *p, int32_t dtype, int i)
{
    const char *at = (const char *)p + (size_t)i * gdn_dtype_bytes(dtype);
    uint16_t bits;
    float value;
    if (dtype == GDN_F32) {
        memcpy(&value, at, sizeof value);
        return (double)value;
    }
    memcpy(&bits, at, sizeof bits);
    if (dtype == GDN_F16) return half_value(bits);
    const uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

static void put(void *p, int32_t dtype, int i, double x)
{
    char *at = (char *)p + (size_t)i * gdn_dtype_bytes(dtype);
    const float value = (float)x;
    uint32_t wide;
    const uint16_t half = dtype == GDN_F16 ? half_bits(x) : 0;
    memcpy(&wide, &value, sizeof wide);
    const uint16_t bits = dtype == GDN_F16 ? half : (uint16_t)(wide >> 16);
    if (dtype == GDN_F32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &bits, sizeof bits);
}

/* Returns n numbers from low to high, in steps of 1/64. */
static gdn_tensor draw(struct self_test *s, int which, int32_t dtype, int n, double low,
                       double high)
{
    const int steps = (int)((high - low) * 64);
    for (int i = 0; i < n; i++) {
        s->random = s->random * 1664525 + 1013904223;
        s->x[which][i] = low + (double)((s->random >> 8) % (uint32_t)(steps + 1)) / 64;
        put(s->stored[which], dtype, i, s->x[which][i]);
    }
    return gdn_dense(s->stored[which], dtype, 1, n, 0, 0, 0);
}

static gdn_tensor shaped(gdn_tensor t, int ndim, int s0, int s1, int s2, int s3)
{
    return gdn_dense(t.data, t.dtype, ndim, s0, s1, s2, s3);
}

/* Returns room for a result, holding what no result is. */
static gdn_tensor room(struct self_test *s, int32_t dtype)
{
    memset(s->stored[OUT], 0xff, sizeof s->stored[OUT]);
    return gdn_dense(s->stored[OUT], dtype, 1, MOST, 0, 0, 0);
}

/* ---- Judging ------------------------------------------------------------------------------- */

/* Judges element i of t against `want`; allowed: limit x magnitude, in units of 2^-24. */
static gdn_status judge(struct self_test *s, const gdn_tensor *t, const char *what, int i,
                        double want, double allowed)
{
    static const double half_ulp[] = {
        [GDN_F32] = 0x1p-24, [GDN_BF16] = 0x1p-8, [GDN_F16] = 0x1p-11
    };
    const double got = get(t->data, t->dtype, i);
    const double limit = allowed * 0x1p-24 + half_ulp[t->dtype] * fabs(want) + 0x1p-25;
    if (fabs(got - want) <= limit) return GDN_OK;
    return gdn_fail(s->ctx, GDN_E_SELF_TEST,
                    "%s, %s: %s element %d is %.9g, wanted %.9g, error %.3g, limit %.3g", s->name,
                    gdn_isa(s->ctx), what, i, got, want, fabs(got - want), limit);
}

/* ---- Formulas ------------------------------------------------------------------------------ */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double log_gate(double a, double A_log, double dt)
{
    return -exp(A_log) * log1p(exp(a + dt));
}

static double norm_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* ---- The rule ------------------------------------------------------------------------------ */

/* Raw gates and norms inside the call, or g and beta as they are. channels: a gate for each channel
 * of a key (KDA). */
struct rule_case {
    bool decode, raw;
    int32_t dtype, state_dtype, layout;
    bool channels;
};

struct rule_inputs {
    const struct rule_case *c;
    int T;
    double A_log, dt;
};

/* Makes decays of n gates. */
static void decay_gates(struct self_test *s, const struct rule_inputs *in, int n)
{
    double *x = s->x[GG];
    for (int i = 0; i < n; i++) x[i] = exp(in->c->raw ? log_gate(x[i], in->A_log, in->dt) : x[i]);
}

/* Decays one column of the state: each element by its channel's gate, or by the head's. Returns the
 * largest decay. A gate of -inf forgets by selection. */
static double decay(struct self_test *s, const struct rule_inputs *in, int t, int h)
{
    double most = 0;
    for (int x = 0; x < K; x++) {
        const double alpha = s->x[GG][in->c->channels ? (t * H + h) * K + x : t * H + h];
        s->S[x] = alpha == 0 ? 0 : alpha * s->S[x];
        most = fmax(most, alpha);
    }
    return most;
}

/* Computes one token on one column of the state. Returns the output, and sets *magnitude, by
 * which its error is judged. */
static double step(struct self_test *s, const struct rule_inputs *in, int t, int h, int j,
                   double *magnitude)
{
    const double *k = &s->x[KK][t * K], *q = &s->x[QQ][t * K]; /* all H heads share them */
    const double v = s->x[VV][(t * H + h) * V + j], b0 = s->x[BB][t * H + h];
    const double beta = in->c->raw ? sigmoid(b0) : b0;
    const double nk = in->c->raw ? hypot(norm_of(k, K), 1e-3) : 1; /* eps is 1e-6 */
    const double nq = in->c->raw ? hypot(norm_of(q, K), 1e-3) : 1;
    const double length = norm_of(s->S, K), alpha = decay(s, in, t, h);
    const double old = alpha == 0 ? 0 : length, carry = alpha == 0 ? 0 : alpha * s->error;
    double p = 0, o = 0, kq = 0;
    for (int x = 0; x < K; x++) {
        s->k[x] = k[x] / nk, s->q[x] = q[x] / nq / sqrt(K);
        p += s->k[x] * s->S[x], kq += s->k[x] * s->q[x];
    }
    const double u = beta * (v - p), lk = norm_of(s->k, K), lq = norm_of(s->q, K);
    for (int x = 0; x < K; x++) {
        s->S[x] += s->k[x] * u;
        o += s->q[x] * s->S[x];
    }
    const double local = beta * (fabs(v) + alpha * lk * old);
    const double shrink = fabs(1 - beta * lk * lk);
    *magnitude =
        lq * (alpha * old + carry) + fabs(kq) * (local + beta * lk * carry) + lk * lq * fabs(u);
    s->error = fmax(1, shrink) * carry + lk * local + alpha * old + lk * fabs(u);
    return o;
}

/* Judges one column of one head, through all tokens. */
static gdn_status judge_column(struct self_test *s, const struct rule_inputs *in, double limit,
                               const gdn_tensor *out, const gdn_tensor *state, int h, int j)
{
    const bool kv = in->c->layout == GDN_STATE_KV;
    double magnitude;
    s->error = 0;
    for (int x = 0; x < K; x++) s->S[x] = s->x[SS][h * K * V + (kv ? x * V + j : j * K + x)];
    for (int t = 0; t < in->T; t++) {
        const double o = step(s, in, t, h, j, &magnitude);
        TRY(judge(s, out, "out", (t * H + h) * V + j, o, limit * magnitude));
    }
    for (int x = 0; x < K; x++)
        TRY(judge(s, state, "state", h * K * V + (kv ? x * V + j : j * K + x), s->S[x],
                  limit * s->error));
    return GDN_OK;
}

/* Section 8 of docs/design/numerics.md; log gates are at least -0.5, here and when made from raw
 * ones. */
static double rule_limit(const struct self_test *s, const struct rule_case *c)
{
    const bool cores = s->ctx->backend == &gdn_cuda_backend && !c->decode; /* tensor cores */
    const double sum = cores ? 20 + K / 8.0 : 8 + K / 16.0;
    const double gates = 0.5 * (c->decode ? 1 : cores ? T_LONG : GDN_CHUNK);
    const double factors = !cores || c->dtype == GDN_F32 ? 0
                           : c->dtype == GDN_BF16        ? 5 * 0x1p16
                                                         : (c->raw ? 8 : 5) * 0x1p13;
    return 2 * sum + 8 + 2 + (c->decode ? 0 : 32 + 12 + 8) + (c->raw ? 10 : 2) * gates +
           (c->raw ? 3 * (sum / 2 + 4) + 5 : 0) + factors +
           (c->channels && !c->decode ? GDN_CHUNK : 0); /* products of gates */
}

/* Returns true if a GPU has no kernel for the call. A CPU has all. */
static bool lacks(struct self_test *s, const struct rule_case *c, const gdn_rule_args *a)
{
    return s->ctx->backend == &gdn_cuda_backend &&
           gdn_supported(s->ctx, c->decode ? GDN_OP_DECODE : GDN_OP_PREFILL, a) ==
               GDN_E_UNSUPPORTED;
}

static gdn_status test_rule(struct self_test *s, const struct rule_case *c)
{
    static const char *const dtypes[] = { "f32", "bf16", "f16" };
    const int T = c->decode ? T_SHORT : T_LONG;
    struct rule_inputs in = { c, T, -0.5, 0.25 };
    const int channels = c->channels ? K : 1;
    float A_log[H] = { -0.5f, -0.5f }, dt[H * K];
    gdn_rule_args a = gdn_rule_args_init();
    for (int i = 0; i < H * K; i++) dt[i] = 0.25f;
    snprintf(s->name, sizeof s->name, "%s %s, state %s %s%s", c->decode ? "decode" : "prefill",
             dtypes[c->dtype], dtypes[c->state_dtype], c->layout ? "k-first" : "k-last",
             c->channels ? ", a gate per channel" : "");
    /* So short that the length of a key is near 1 without a norm too. */
    a.q = shaped(draw(s, QQ, c->dtype, T * K, -0.25, 0.25), 4, 1, T, 1, K);
    a.k = shaped(draw(s, KK, c->dtype, T * K, -0.25, 0.25), 4, 1, T, 1, K);
    a.v = shaped(draw(s, VV, c->dtype, T * H * V, -1, 1), 4, 1, T, H, V);
    a.g = draw(s, GG, GDN_F32, T * H * channels, -0.5, 0);
    a.g = gdn_dense(a.g.data, GDN_F32, c->channels ? 4 : 3, 1, T, H, K);
    a.beta = shaped(draw(s, BB, GDN_F32, T * H, 0, 1), 3, 1, T, H, 0);
    a.state = shaped(draw(s, SS, c->state_dtype, H * K * V, -1, 1), 4, 1, H, c->layout ? K : V,
                     c->layout ? V : K);
    a.state_layout = c->layout;
    a.out = shaped(room(s, c->dtype), 4, 1, T, H, V);
    if (c->raw) {
        a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID, a.norm = GDN_NORM_L2;
        a.A_log = gdn_dense(A_log, GDN_F32, 1, H, 0, 0, 0);
        a.dt_bias = gdn_dense(dt, GDN_F32, c->channels ? 2 : 1, H, K, 0, 0);
    } else if (!c->decode) {
        s->x[GG][(FORGETS * H + 1) * channels] = -(double)INFINITY;
        s->stored[GG][(FORGETS * H + 1) * channels] = -INFINITY;
    }
    if (c->channels && lacks(s, c, &a)) return GDN_OK;
    TRY(gdn_call_op(s->ctx, c->decode ? GDN_OP_DECODE : GDN_OP_PREFILL, &a));
    decay_gates(s, &in, T * H * channels);
    for (int h = 0; h < H; h++)
        for (int j = 0; j < V; j++)
            TRY(judge_column(s, &in, rule_limit(s, c), &a.out, &a.state, h, j));
    return GDN_OK;
}

/* ---- Convolution, gates, norms ------------------------------------------------------------- */

static gdn_status test_conv(struct self_test *s, int32_t dtype)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    snprintf(s->name, sizeof s->name, "conv1d, dtype %d", (int)dtype);
    a.x = shaped(draw(s, VV, dtype, ROWS * D, -1, 1), 2, ROWS, D, 0, 0);
    a.weight = shaped(draw(s, KK, GDN_F32, D * W, -1, 1), 2, D, W, 0, 0);
    a.bias = draw(s, BB, GDN_F32, D, -1, 1);
    a.state = shaped(draw(s, SS, GDN_F32, D * (W - 1), -1, 1), 3, 1, D, W - 1, 0);
    a.out = shaped(room(s, dtype), 2, ROWS, D, 0, 0);
    a.activation = GDN_ACT_SILU;
    TRY(gdn_call_op(s->ctx, GDN_OP_CONV1D, &a));
    for (int i = 0; i < ROWS * D; i++) {
        const int t = i / D, d = i % D;
        double y = s->x[BB][d], magnitude = fabs(y);
        for (int w = 0; w < W; w++) {
            const int at = t - W + 1 + w;
            const double x = at < 0 ? s->x[SS][d * (W - 1) + W - 1 + at] : s->x[VV][at * D + d];
            y += s->x[KK][d * W + w] * x;
            magnitude += fabs(s->x[KK][d * W + w] * x);
        }
        const double want = y * sigmoid(y);
        /* 1.1 is the largest slope of SiLU. */
        TRY(judge(s, &a.out, "out", i, want, (8 + W) * (1.1 * magnitude + fabs(want))));
    }
    for (int i = 0; i < D * (W - 1); i++)
        TRY(judge(s, &a.state, "state", i, s->x[VV][(ROWS - W + 1 + i % (W - 1)) * D + i / (W - 1)],
                  0));
    return GDN_OK;
}

static gdn_status test_gates(struct self_test *s, int32_t dtype)
{
    gdn_gates_args a = gdn_gates_args_init();
    snprintf(s->name, sizeof s->name, "gates, dtype %d", (int)dtype);
    a.a = shaped(draw(s, VV, dtype, ROWS * D, -4, 4), 2, ROWS, D, 0, 0);
    a.b = shaped(draw(s, BB, dtype, ROWS * D, -4, 4), 2, ROWS, D, 0, 0);
    a.A_log = draw(s, KK, GDN_F32, D, -1, 1);
    a.dt_bias = draw(s, QQ, GDN_F32, D, -1, 1);
    a.g = shaped(room(s, dtype), 2, ROWS, D, 0, 0);
    a.beta = gdn_dense(s->stored[SS], dtype, 2, ROWS, D, 0, 0);
    TRY(gdn_call_op(s->ctx, GDN_OP_GATES, &a));
    for (int i = 0; i < ROWS * D; i++) {
        const double x = s->x[VV][i], A = s->x[KK][i % D], dt = s->x[QQ][i % D];
        const double g = log_gate(x, A, dt), beta = sigmoid(s->x[BB][i]);
        const double inner = exp(A) * (fabs(x) + fabs(dt)) * sigmoid(x + dt);
        /* One unit more for exp(A_log). */
        TRY(judge(s, &a.g, "g", i, g, 4 * (fabs(g) + inner) + 2 * fabs(g)));
        TRY(judge(s, &a.beta, "beta", i, beta, 5 * beta));
    }
    return GDN_OK;
}

static gdn_status test_norms(struct self_test *s, int32_t dtype)
{
    gdn_l2norm_args l = gdn_l2norm_args_init();
    gdn_rmsnorm_gated_args r = gdn_rmsnorm_gated_args_init();
    /* The factor of a row, then the loop. */
    const double limit = (8 + D / 16.0) / 2 + 4 + 8;
    snprintf(s->name, sizeof s->name, "norms, dtype %d", (int)dtype);
    l.x = shaped(draw(s, VV, dtype, ROWS * D, -1, 1), 2, ROWS, D, 0, 0);
    l.out = shaped(room(s, dtype), 2, ROWS, D, 0, 0);
    TRY(gdn_call_op(s->ctx, GDN_OP_L2NORM, &l));
    for (int i = 0; i < ROWS * D; i++) {
        const double length = norm_of(&s->x[VV][i / D * D], D);
        const double want = s->x[VV][i] / sqrt(length * length + 1e-6);
        TRY(judge(s, &l.out, "l2norm", i, want, limit * fabs(want)));
    }
    r.x = l.x;
    r.z = shaped(draw(s, BB, dtype, ROWS * D, -4, 4), 2, ROWS, D, 0, 0);
    r.weight = draw(s, KK, dtype, D, -1, 1);
    r.out = shaped(room(s, dtype), 2, ROWS, D, 0, 0);
    TRY(gdn_call_op(s->ctx, GDN_OP_RMSNORM_GATED, &r));
    for (int i = 0; i < ROWS * D; i++) {
        const double length = norm_of(&s->x[VV][i / D * D], D), z = s->x[BB][i];
        const double want =
            s->x[VV][i] / sqrt(length * length / D + 1e-6) * s->x[KK][i % D] * z * sigmoid(z);
        TRY(judge(s, &r.out, "rmsnorm_gated", i, want, limit * fabs(want)));
    }
    return GDN_OK;
}

/* ---- All of them --------------------------------------------------------------------------- */

static gdn_status run(struct self_test *s)
{
    static const struct rule_case cases[] = {
        { .dtype = GDN_F32, .channels = true },
        { .raw = true, .dtype = GDN_BF16, .layout = GDN_STATE_KV, .channels = true },
        { .decode = true, .dtype = GDN_BF16, .state_dtype = GDN_BF16, .channels = true },
        { .decode = true, .raw = true, .layout = GDN_STATE_KV, .channels = true },
        { false, false, GDN_F32, GDN_F32, GDN_STATE_VK, false },
        { false, true, GDN_BF16, GDN_F16, GDN_STATE_KV, false },
        { true, false, GDN_F32, GDN_F32, GDN_STATE_VK, false },
        { true, true, GDN_F16, GDN_F32, GDN_STATE_KV, false },
        { true, false, GDN_BF16, GDN_BF16, GDN_STATE_VK, false },
        { true, true, GDN_F32, GDN_BF16, GDN_STATE_KV, false },
        { true, true, GDN_BF16, GDN_F16, GDN_STATE_VK, false },
        { true, false, GDN_F16, GDN_F16, GDN_STATE_KV, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) TRY(test_rule(s, &cases[i]));
    for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++) {
        TRY(test_conv(s, dtype));
        TRY(test_gates(s, dtype));
        TRY(test_norms(s, dtype));
    }
    return GDN_OK;
}

gdn_status gdn_self_test(gdn_ctx *ctx)
{
    if (!ctx) return GDN_E_ARG;
    const gdn_options *o = &ctx->options;
    struct self_test *s = o->alloc(o->alloc_user, sizeof *s, 64);
    if (!s) return gdn_fail(ctx, GDN_E_MEMORY, "self-test: no memory for %zu bytes", sizeof *s);
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->random = 1;
    const uint32_t fp = gdn_fp_enter();
    const gdn_status status = run(s);
    gdn_fp_leave(fp);
    o->release(o->alloc_user, s);
    return status;
}
