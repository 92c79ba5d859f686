/* SPDX-License-Identifier: Apache-2.0 */
#include "files/compare.h"

#include <math.h>

#include "oracle.h"

/* Sums over pairs of values, in any order. */
struct sums {
    double max_error, error2, want2, largest;
    int64_t n;
};

static void add(struct sums *s, double got, double want)
{
    if (!isfinite(want)) {
        if (isnan(want) ? !isnan(got) : got != want) s->max_error = INFINITY;
        return;
    }
    const double error = isfinite(got) ? fabs(got - want) : (double)INFINITY;
    s->max_error = fmax(s->max_error, error);
    s->error2 += error * error;
    s->want2 += want * want;
    s->largest = fmax(s->largest, fabs(want));
    s->n++;
}

/* Shares of the expected RMS, and units of the largest value. */
struct limits {
    double largest_f32, rms_f16, rms_bf16, units;
};
static const struct limits of_results = { 2e-5, 8e-4, 6e-3, 3 };
static const struct limits of_gradients = { 5e-5, 2e-3, 8e-3, 6 };
static const struct limits of_gates = { 5e-5, 2e-3, 1.5e-2, 6 };

static struct comparison judge_by(const struct sums *s, int32_t precision, const struct limits *l)
{
    const double n = s->n ? (double)s->n : 1;
    struct comparison c = { .rms = sqrt(s->want2 / n),
                            .max_error = s->max_error,
                            .rms_error = sqrt(s->error2 / n),
                            .rms_limit = INFINITY };
    if (precision == GDN_F32) {
        c.max_limit = l->largest_f32 * c.rms + 1e-6;
    } else {
        const bool bf16 = precision == GDN_BF16;
        c.rms_limit = (bf16 ? l->rms_bf16 : l->rms_f16) * c.rms;
        c.max_limit = l->units * s->largest * (bf16 ? 0x1p-8 : 0x1p-11);
    }
    c.ok = c.max_error <= c.max_limit && c.rms_error <= c.rms_limit;
    return c;
}

static struct comparison judge(const struct sums *s, int32_t precision)
{
    return judge_by(s, precision, &of_results);
}

static struct sums sums_of(const gdn_tensor *got, const gdn_tensor *want)
{
    struct sums s = { 0 };
    int64_t n = 1;
    for (int i = 0; i < want->ndim; i++) n *= want->size[i];
    for (int64_t i = 0; i < n; i++)
        add(&s, oracle_load(got->data, got->dtype, i), oracle_load(want->data, want->dtype, i));
    return s;
}

struct comparison compare(const gdn_tensor *got, const gdn_tensor *want, int32_t precision)
{
    const struct sums s = sums_of(got, want);
    return judge(&s, precision);
}

struct comparison compare_gradient(const gdn_tensor *got, const gdn_tensor *want, int32_t dtype,
                                   bool of_gate)
{
    const struct sums s = sums_of(got, want);
    return judge_by(&s, dtype, of_gate ? &of_gates : &of_gradients);
}

struct comparison compare_gradient_doubles(const double *got, const double *want, int64_t n,
                                           int32_t dtype, bool of_gate)
{
    struct sums s = { 0 };
    for (int64_t i = 0; i < n; i++) add(&s, got[i], want[i]);
    return judge_by(&s, dtype, of_gate ? &of_gates : &of_gradients);
}

struct comparison compare_doubles(const double *got, const double *want, int64_t n,
                                  int32_t precision)
{
    struct sums s = { 0 };
    for (int64_t i = 0; i < n; i++) add(&s, got[i], want[i]);
    return judge(&s, precision);
}

struct comparison compare_noisy(const double *got, const double *want, const double *noise,
                                int64_t n)
{
    struct sums s = { 0 };
    double noise2 = 0, worst = -1;
    for (int64_t i = 0; i < n; i++) {
        add(&s, got[i], want[i]);
        noise2 += noise[i] * noise[i];
    }
    struct comparison c = judge(&s, GDN_F32);
    const double inside = c.max_limit; /* the limit of float32 sums between roundings */
    c.rms_limit = inside + 2 * sqrt(noise2 / (double)(n ? n : 1));
    c.ok = c.rms_error <= c.rms_limit;
    for (int64_t i = 0; i < n; i++) {
        struct sums one = { 0 };
        const double limit = inside + 8 * noise[i];
        add(&one, got[i], want[i]);
        c.ok = c.ok && one.max_error <= limit;
        if (one.max_error / limit <= worst) continue;
        worst = one.max_error / limit;
        c.max_error = one.max_error, c.max_limit = limit;
    }
    return c;
}

int32_t compare_precision(int32_t a, int32_t b)
{
    if (a == GDN_BF16 || b == GDN_BF16) return GDN_BF16;
    return a == GDN_F16 || b == GDN_F16 ? GDN_F16 : GDN_F32;
}

double compare_relative(double error, double rms) { return error == 0 ? 0 : error / rms; }
