/* SPDX-License-Identifier: Apache-2.0 */
/* Storage dtype to float32 is exact: every bit pattern of 16 bits, and every tail. */
#include "check.h"

enum { PATTERNS = 65536, LONGEST = 70 };

static void check_exact(const struct gdn_kernels *kr, int dtype, const void *src, size_t n)
{
    const size_t size = gdn_dtype_bytes(dtype);
    const void *in = check_copy(src, n * size, ELEMENT);
    float *got = check_poison(n), *want = check_poison(n);
    CALL(kr->load_row[dtype])(got, in, n);
    gdn_kernels_scalar.load_row[dtype](want, in, n);
    check_same("scalar", got, want, n * sizeof *got);
    for (size_t i = 0; i < n; i++) {
        const double w = oracle_load(in, dtype, (int64_t)i);
        if (isnan(w) ? !isnan(got[i]) : got[i] != w || !signbit(got[i]) != !signbit(w)) {
            check_fail("element %zu: got %.9g, want %.9g", i, got[i], w);
            return;
        }
    }
}

void check_load_row(const struct gdn_kernels *kr)
{
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++) {
        const size_t size = gdn_dtype_bytes(dtype);
        check_case("dtype %d, %d patterns", dtype, PATTERNS);
        unsigned char *all = check_bytes(PATTERNS * size, ELEMENT);
        for (int i = 0; i < PATTERNS; i++) {
            const uint16_t h = (uint16_t)i;
            const uint32_t f = (uint32_t)check_bits();
            memcpy(all + (size_t)i * size, dtype == GDN_F32 ? (const void *)&f : &h, size);
        }
        check_exact(kr, dtype, all, PATTERNS);

        for (size_t n = 0; n <= LONGEST; n++) {
            check_case("dtype %d, n %zu", dtype, n);
            unsigned char *some = check_bytes(LONGEST * size, ELEMENT);
            for (size_t i = 0; i < LONGEST * size; i++) some[i] = (unsigned char)check_bits();
            check_exact(kr, dtype, some + (LONGEST - n) * size, n);
        }

        check_case("dtype %d, n 4096", dtype);
        unsigned char *in = check_bytes(4096 * size, LINE);
        float *out = check_bytes(4096 * sizeof *out, LINE);
        memset(in, 0, 4096 * size);
        CHECK_BENCH(4096 * (size + 4), 0, kr->load_row[dtype](out, in, 4096));
    }
}
