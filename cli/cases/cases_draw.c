/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors of cases. */
#include <math.h>
#include <string.h>

#include "cases/cases.h"
#include "oracle.h"

double case_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int64_t count(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

double case_bytes(const gdn_tensor *t)
{
    return t->data ? (double)count(t) * (double)gdn_dtype_bytes(t->dtype) : 0;
}

/* Repeats the first n elements, again and again. */
static void repeat(const gdn_tensor *t, int64_t n)
{
    const size_t bytes = gdn_dtype_bytes(t->dtype);
    for (int64_t i = n; i < count(t); i += n) {
        const int64_t rest = count(t) - i < n ? count(t) - i : n;
        memcpy((char *)t->data + (size_t)i * bytes, t->data, (size_t)rest * bytes);
    }
}

/* Returns how many elements to make: whole rows, some millions at most. */
static int64_t fresh(const gdn_tensor *t)
{
    const int64_t limit = (1 << 22) / t->stride[0] * t->stride[0];
    return limit > 0 && limit < count(t) ? limit : count(t);
}

gdn_tensor case_tensor(struct memory *m, int32_t dtype, int ndim, const int64_t *size, double low,
                       double high)
{
    gdn_tensor t = memory_tensor(m, dtype, ndim, size);
    uint64_t seed = m->n;
    if (!t.data) return t;
    const int64_t n = fresh(&t);
    for (int64_t i = 0; i < n; i++)
        oracle_store(t.data, dtype, i, low + (high - low) * case_random(&seed));
    repeat(&t, n);
    return t;
}

gdn_tensor case_unit_rows(struct memory *m, int32_t dtype, const int64_t *size)
{
    gdn_tensor t = case_tensor(m, dtype, 3, size, -1, 1);
    double row[256];
    const int D = (int)size[2];
    if (!t.data) return t;
    const int64_t n = fresh(&t);
    for (int64_t r = 0; r < n; r += D) {
        for (int i = 0; i < D; i++) row[i] = oracle_load(t.data, dtype, r + i);
        oracle_l2norm(row, row, D, GDN_NORM_L2, 1e-12);
        for (int i = 0; i < D; i++) oracle_store(t.data, dtype, r + i, row[i]);
    }
    repeat(&t, n);
    return t;
}

double case_normal(uint64_t *seed)
{
    const double radius = sqrt(-2 * log(1 - case_random(seed)));
    return radius * cos(6.283185307179586 * case_random(seed));
}

gdn_tensor case_drawn(struct memory *m, int32_t dtype, int ndim, const int64_t *size,
                      case_draw draw, const void *arg)
{
    gdn_tensor t = memory_tensor(m, dtype, ndim, size);
    uint64_t seed = m->n;
    if (!t.data) return t;
    const int64_t n = fresh(&t), H = size[ndim - 1];
    for (int64_t i = 0; i < n; i++) oracle_store(t.data, dtype, i, draw(arg, i % H, &seed));
    repeat(&t, n);
    return t;
}

/* Returns any codes but the largest, which may be NaN; of E5M2 those up to 448. */
gdn_tensor case_codes(struct memory *m, int32_t dtype, const int64_t *size)
{
    gdn_tensor t = memory_tensor(m, dtype, 4, size);
    uint64_t seed = m->n;
    if (!t.data) return t;
    const int64_t n = fresh(&t);
    const int n_codes = dtype == GDN_E5M2 ? 96 : 120;
    for (int64_t i = 0; i < n; i++)
        ((uint8_t *)t.data)[i] =
            (uint8_t)((int)(case_random(&seed) * 2) * 128 + (int)(case_random(&seed) * n_codes));
    repeat(&t, n);
    return t;
}
