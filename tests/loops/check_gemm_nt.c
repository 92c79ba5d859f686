/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_nt: the errors; and an element has the same bits whatever the other rows and columns are. */
#include "check.h"

static const int sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17 };
static const int depths[] = { 1, 7, 8, 15, 16, 17, 64, 100, 513 };
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_DEPTHS = sizeof depths / sizeof *depths };

/* Element by element, by a product of one row with one. */
static void check_elements(const struct gdn_kernels *kr, const float *c, int64_t ldc,
                           const float *before, const float *a, int64_t lda, const float *b,
                           int64_t ldb, int m, int n, int K, bool add)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float one = before[i * ldc + j];
            kr->gemm_nt(&one, 1, a + i * lda, lda, b + j * ldb, ldb, 1, 1, K, add);
            if (memcmp(&one, &c[i * ldc + j], sizeof one) == 0) continue;
            check_fail("c[%d][%d]: %.9g here, %.9g alone", i, j, c[i * ldc + j], one);
            return;
        }
}

/* constant: data for which rounding errors add up, a unit per link of a chain at most. */
static void check_one(const struct gdn_kernels *kr, int m, int n, int K, bool add, bool constant)
{
    const int lda = K + check_below(4), ldb = K + check_below(4), ldc = n + check_below(4);
    const double low = constant ? 0.1 : -1, high = constant ? 0.1 : 1;
    float *a = check_matrix(m, K, lda, low, high), *b = check_matrix(n, K, ldb, low, high);
    float *c = check_matrix(m, n, ldc, -2, 2);
    float *before = check_copy(c, (size_t)((m - 1) * ldc + n) * sizeof *c, ELEMENT);
    double *want = check_doubles((size_t)(m * n)), *mag = check_doubles((size_t)(m * n));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const double old = add ? c[i * ldc + j] : 0;
            double sum = old, abs = fabs(old);
            for (int k = 0; k < K; k++) {
                const double x = (double)a[i * lda + k] * b[j * ldb + k];
                sum += x;
                abs += fabs(x);
            }
            want[i * n + j] = sum;
            mag[i * n + j] = abs;
        }
    /* without `add` the old content of c must not matter */
    for (int i = 0; i < m && !add; i++)
        for (int j = 0; j < n; j++) c[i * ldc + j] = NAN;
    CALL(kr->gemm_nt)(c, ldc, a, lda, b, ldb, m, n, K, add);
    const double usual = is_scalar(kr) ? 8 + K / 16.0 : 4 + K / 256.0;
    check_error("c", f32_matrix(c, m, n, ldc), want, mag, constant ? 6 + K / 8.0 : usual);
    check_elements(kr, c, ldc, before, a, lda, b, ldb, m, n, K, add);
}

void check_gemm_nt(const struct gdn_kernels *kr)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int j = 0; j < N_SIZES; j++)
            for (int d = check_below(3); d < N_DEPTHS; d += 3) {
                const bool add = check_below(2);
                check_case("m %d, n %d, K %d, add %d", sizes[i], sizes[j], depths[d], add);
                check_one(kr, sizes[i], sizes[j], depths[d], add, false);
            }
    for (int d = 0; d < N_DEPTHS; d++) {
        check_case("m 17, n 17, K %d, add 1", depths[d]);
        check_one(kr, 17, 17, depths[d], true, false);
    }
    for (int constant = 0; constant < 2; constant++) {
        check_case("m 16, n 25, K 4097, add 0, constant %d", constant);
        check_one(kr, 16, 25, 4097, false, constant);
    }

    check_case("m 16, n 96, K 1024");
    float *a = check_lines(16 * 1024, -1, 1), *b = check_lines(96 * 1024, -1, 1);
    float *c = check_lines(16 * 96, 0, 0);
    CHECK_BENCH(4 * (16 + 96) * 1024, 2.0 * 16 * 96 * 1024,
                kr->gemm_nt(c, 96, a, 1024, b, 1024, 16, 96, 1024, false));
}
