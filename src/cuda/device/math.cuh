/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of gates and activations. Each takes one exponential, of -|x|, which cannot overflow,
 * and no branch. Their errors are below the limits of docs/design/numerics.md for the loops of the
 * CPU.
 */
#ifndef GDN_CUDA_MATH_CUH
#define GDN_CUDA_MATH_CUH

#include "cuda/device/ptx.cuh"

/* Returns m sigmoid(x). For negative x the small e is multiplied before the division, so that it
 * costs no digits. */
GDN_DEVICE float times_sigmoid(float m, float x)
{
    const float e = expf(-fabsf(x)), d = 1 + e, r = rcp_approx(d);
    return (x < 0 ? m * e : m) * fmaf(r, fmaf(-d, r, 1), r);
}

GDN_DEVICE float sigmoid(float x) { return times_sigmoid(1, x); }

GDN_DEVICE bool is_infinite(float x) { return fabsf(x) > 0x1.fffffep127f; }

/* Returns x sigmoid(x). The bound of the first x keeps -inf from giving -inf times 0. A NaN comes
 * from the second x. */
GDN_DEVICE float silu(float x) { return times_sigmoid(fmaxf(x, -1000), x); }

/* Computes silu() of several x at half the cost: x / (1 + exp(-x)). The exponential is a power of
 * two times a correction for its rounded exponent. If |x| is 80 or more, where that is not safe,
 * the result is x or x e^x. */
template <int N> GDN_DEVICE void silu_of(float (&x)[N])
{
    float y[N], most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float t = x[i] * -1.44269504f, e = ex2_approx(t);
        const float rest = fmaf(t, 1.90465430e-9f, fmaf(t, -0.693147182f, -x[i]));
        const float d = 1 + fmaf(e, rest, e), r = rcp_approx(d);
        y[i] = x[i] * fmaf(r, fmaf(-d, r, 1), r);
        most = fmaxf(most, fabsf(x[i]));
    }
    if (most >= 80) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (fabsf(x[i]) >= 80) y[i] = x[i] > 0 ? x[i] : fmaxf(x[i], -1000) * expf(x[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = y[i];
}

/*
 * The same, cheaper, for where this is most of the work: x / (1 + 2^(-x / ln 2)). The exponent's
 * two roundings make it relative 1.3 |x| units where x is negative, the rest 8; that is what
 * rounding the convolution's sum once or twice more would do, and inside its limit. From -80 down,
 * where the power overflows before the result vanishes, x e^x: that one is, the sum of powers
 * tells.
 */
template <int N> GDN_DEVICE void quick_silu(float (&x)[N])
{
    float y[N], sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float d = 1 + ex2_approx(x[i] * -1.44269504f);
        y[i] = x[i] * rcp_approx(d);
        sum = i ? sum + d : d;
    }
    if (!(sum <= 0x1p115f)) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (x[i] < -80) y[i] = fmaxf(x[i], -1000) * expf(x[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = y[i];
}

/* Returns log(1 + exp(x)) = max(x, 0) + log1p(e), where e = exp(-|x|) is from 0 to 1. log1p(e) / e
 * is a polynomial, with an error of at most 2^-27. Above 18 the result is x itself. */
GDN_DEVICE float softplus(float x)
{
    const float e = expf(-fabsf(x));
    float p = -0.0032440246083f;
    p = fmaf(p, e, 0.0198514598155f);
    p = fmaf(p, e, -0.0569595295249f);
    p = fmaf(p, e, 0.106036544123f);
    p = fmaf(p, e, -0.153055923012f);
    p = fmaf(p, e, 0.196759391696f);
    p = fmaf(p, e, -0.249541336413f);
    p = fmaf(p, e, 0.333299624158f);
    p = fmaf(p, e, -0.499999024228f);
    p = fmaf(p, e, 1.0f);
    return fmaf(e, p, fmaxf(x, 0));
}

#endif
