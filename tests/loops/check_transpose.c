/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static const int sizes[] = { 0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100 };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void check_one(const struct gdn_kernels *kr, int rows, int cols)
{
    const int lda = cols + check_below(5), ldb = rows + check_below(5);
    float *a = check_matrix(rows, cols, lda, -1, 1), *b = check_matrix(cols, rows, ldb, 0, 0);
    double *want = check_doubles((size_t)rows * (size_t)cols);
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) want[j * rows + i] = a[i * lda + j];
    CALL(kr->transpose)(b, ldb, a, lda, rows, cols);
    check_error("b", f32_matrix(b, cols, rows, ldb), want, want, 0);
}

void check_transpose(const struct gdn_kernels *kr)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int j = 0; j < N_SIZES; j++) {
            check_case("%d x %d", sizes[i], sizes[j]);
            check_one(kr, sizes[i], sizes[j]);
        }
    check_case("16 x 128");
    float *a = check_lines(16 * 128, -1, 1), *b = check_lines(16 * 128, 0, 0);
    CHECK_BENCH(8 * 16 * 128, 0, kr->transpose(b, 16, a, 128, 16, 128));
}
