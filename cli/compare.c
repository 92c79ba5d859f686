/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <math.h>

#include "oracle.h"

/* Sums over pairs of values, in any order. */
struct sums {
    double  max_error, error2, want2, largest;
    int64_t n;
};

static void add(struct sums *s, double got, double want)
{
    if (!isfinite(want)) {
        if (isnan(want) ? !isnan(got) : got != want) s->max_error = INFINITY;
        return;
    }
    const double error = isfinite(got) ? fabs(got - want) : (double)INFINITY;
    s->max_error       = fmax(s->max_error, error);
    s->error2 += error * error;
    s->want2 += want * want;
    s->largest = fmax(s->largest, fabs(want));
    s->n++;
}

static struct comparison judge(const struct sums *s, int32_t precision)
{
    const double      n = s->n ? (double)s->n : 1;
    struct comparison c = { .rms       = sqrt(s->want2 / n),
                            .max_error = s->max_error,
                            .rms_error = sqrt(s->error2 / n),
                            .rms_limit = INFINITY };
    if (precision == GDN_F32) {
        c.max_limit = 2e-5 * c.rms + 1e-6;
    } else {
        const bool bf16 = precision == GDN_BF16;
        c.rms_limit     = (bf16 ? 6e-3 : 8e-4) * c.rms;
        c.max_limit     = 3 * s->largest * (bf16 ? 0x1p-8 : 0x1p-11);
    }
    c.ok = c.max_error <= c.max_limit && c.rms_error <= c.rms_limit;
    return c;
}

struct comparison compare(const gdn_tensor *got, const gdn_tensor *want, int32_t precision)
{
    struct sums s = { 0 };
    int64_t     n = 1;
    for (int i = 0; i < want->ndim; i++) n *= want->size[i];
    for (int64_t i = 0; i < n; i++)
        add(&s, oracle_load(got->data, got->dtype, i), oracle_load(want->data, want->dtype, i));
    return judge(&s, precision);
}

struct comparison compare_doubles(const double *got, const double *want, int64_t n,
                                  int32_t precision)
{
    struct sums s = { 0 };
    for (int64_t i = 0; i < n; i++) add(&s, got[i], want[i]);
    return judge(&s, precision);
}

int32_t compare_precision(int32_t a, int32_t b)
{
    if (a == GDN_BF16 || b == GDN_BF16) return GDN_BF16;
    return a == GDN_F16 || b == GDN_F16 ? GDN_F16 : GDN_F32;
}

double compare_relative(double error, double rms) { return error == 0 ? 0 : error / rms; }
