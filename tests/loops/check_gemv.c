/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of gemm_nt on the rows as float32, for every tail and dtype. */
#include "check.h"

enum { MAX_ROWS = 7, DEEPEST = 100 };

static void check_one(const struct gdn_kernels *kr, int dtype, int n, int K, bool add)
{
    const int ld = K + check_below(4);
    float *x = check_matrix(1, K, K, -1, 1), *rows = check_matrix(n, K, ld, -1, 1);
    const float fill = add ? 0.5F : NAN;
    float *y = check_poison((size_t)n), *want = check_poison((size_t)n);
    for (int j = 0; j < n; j++) y[j] = want[j] = fill;
    const size_t count = (size_t)((n - 1) * ld + K), size = gdn_dtype_bytes(dtype);
    unsigned char *w = check_bytes(count * size, ELEMENT);
    gdn_kernels_scalar.store_row[dtype](w, rows, count);
    gdn_kernels_scalar.load_row[dtype](rows, w, count);
    CALL(kr->gemv[dtype])(y, x, w, ld, n, K, add);
    kr->gemm_nt(want, n, x, K, rows, ld, 1, n, K, add);
    check_same("gemm_nt", y, want, (size_t)n * sizeof *y);
}

void check_gemv(const struct gdn_kernels *kr)
{
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int K = 1; K <= DEEPEST; K++) {
            const int n = 1 + check_below(MAX_ROWS);
            const bool add = check_below(2);
            check_case("dtype %d, n %d, K %d, add %d", dtype, n, K, add);
            check_one(kr, dtype, n, K, add);
        }

    /* As much as a token of a layer reads in one piece. */
    const int K = 1024, n = 96;
    float *x = check_lines(K, -1, 1), *y = check_lines(n, 0, 0), *w = check_lines(n * K, -1, 1);
    CHECK_BENCH(2 * n * K, 2.0 * n * K, kr->gemv[GDN_BF16](y, x, w, K, n, K, false));
}
