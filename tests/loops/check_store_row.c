/* SPDX-License-Identifier: Apache-2.0 */
/*
 * float32 to a storage dtype is one rounding to nearest even: for every 16-bit number the
 * number itself, the tie with its neighbour, and the floats on both sides of that tie; NaN
 * stays NaN, what is too large becomes infinite, the sign of zero stays.
 */
#include <float.h>

#include "check.h"

enum { PATTERNS = 65536, LONGEST = 70 };

static bool is_nan_of(int dtype, const void *p, int64_t i)
{
    return isnan(oracle_load(p, dtype, i));
}

static void check_exact(const struct gdn_kernels *kr, int dtype, const float *src, size_t n)
{
    const size_t size = gdn_dtype_bytes(dtype);
    const float *in = check_copy(src, n * sizeof *src, ELEMENT);
    void *got = check_bytes(n * size, ELEMENT), *want = check_bytes(n * size, ELEMENT);
    CALL(kr->store_row[dtype])(got, in, n);
    gdn_kernels_scalar.store_row[dtype](want, in, n);
    check_same("scalar", got, want, n * size);
    for (size_t i = 0; i < n; i++) {
        char *w = want;
        oracle_store(w, dtype, (int64_t)i, in[i]);
        if (isnan(in[i]) ? is_nan_of(dtype, got, (int64_t)i)
                         : memcmp((char *)got + i * size, w + i * size, size) == 0)
            continue;
        check_fail("element %zu of %.9g: got %.9g, want %.9g", i, in[i],
                   oracle_load(got, dtype, (int64_t)i), oracle_load(w, dtype, (int64_t)i));
        return;
    }
}

/* Writes the float with the bits of a 16-bit number, the tie above it, and the floats beside
 * both. */
static size_t around(float *x, int dtype, uint16_t h)
{
    const uint16_t next = (uint16_t)(h + 1);
    const double value = oracle_load(&h, dtype, 0), above = oracle_load(&next, dtype, 0);
    size_t n = 0;
    x[n++] = (float)value;
    if (!isfinite(value)) return n;
    /* Past the largest number the tie is with the first one that is too large. */
    const double tie = isfinite(above) ? (value + above) / 2
                                       : value + copysign(oracle_half_ulp(dtype, value), value);
    x[n++] = (float)tie;
    x[n++] = nextafterf((float)tie, 0);
    x[n++] = nextafterf((float)tie, copysignf(INFINITY, (float)tie));
    return n;
}

static const uint32_t special[] = {
    0x7f800001, 0xff800001, 0x7fbfffff, 0x7fc00000, 0xffffffff, 0x7f801000, /* NaN */
    0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff, 0x7f7f7fff, 0x7f7f8000, /* infinite, FLT_MAX */
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00008000, /* zeros, denormals */
    0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x32ffffff, 0xb3000000, /* ends of f16 */
};

void check_store_row(const struct gdn_kernels *kr)
{
    enum { N_SPECIAL = sizeof special / sizeof *special };
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++) {
        check_case("dtype %d, around every 16-bit number", dtype);
        float *all = check_poison(4 * PATTERNS + N_SPECIAL);
        size_t n = 0;
        for (int i = 0; i < PATTERNS; i++)
            n += around(all + n, dtype == GDN_F32 ? GDN_BF16 : dtype, (uint16_t)i);
        memcpy(all + n, special, sizeof special);
        check_exact(kr, dtype, all, n + N_SPECIAL);

        for (size_t len = 0; len <= LONGEST; len++) {
            check_case("dtype %d, n %zu", dtype, len);
            float *some = check_floats(LONGEST, -1e5, 1e5);
            for (int i = 0; i < LONGEST; i += 3)
                memcpy(&some[i], &special[check_below(N_SPECIAL)], sizeof *some);
            check_exact(kr, dtype, some + (LONGEST - len), len);
        }

        check_case("dtype %d, n 4096", dtype);
        const size_t size = gdn_dtype_bytes(dtype);
        float *in = check_lines(4096, -1, 1);
        void *out = check_bytes(4096 * size, LINE);
        CHECK_BENCH(4096 * (size + 4), 0, kr->store_row[dtype](out, in, 4096));
    }
}
