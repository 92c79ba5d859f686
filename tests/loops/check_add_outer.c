/* SPDX-License-Identifier: Apache-2.0 */
/* The update of the recurrence alone; that it has the bits of the step is in check_recurrence.c. */
#include "check.h"

static void check_one(const struct gdn_kernels *kr, int rows, int cols, float alpha, bool writes)
{
    const size_t size = (size_t)(rows * cols);
    float *s = check_floats(size, -2, 2), *a = check_floats((size_t)rows, -1, 1);
    float *b = check_floats((size_t)cols, -1, 1);
    double *want = check_doubles(size), *mag = check_doubles(size);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            const double kept = (double)alpha * s[i * cols + j];
            const double term = writes ? (double)a[i] * b[j] : 0;
            want[i * cols + j] = kept + term;
            mag[i * cols + j] = fabs(kept) + fabs(term);
        }
    CALL(kr->add_outer)(s, rows, cols, alpha, a, writes ? b : NULL);
    check_error("s", f32_matrix(s, rows, cols, cols), want, mag, 3);
}

void check_add_outer(const struct gdn_kernels *kr)
{
    static const int sizes[] = { 1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 128, 256 };
    static const float alphas[] = { 0, 0.7f, 1 };
    for (int r = 0; r < 12; r++)
        for (int c = 0; c < 12; c++) {
            const float alpha = alphas[(r + c) % 3];
            check_case("rows %d, columns %d, alpha %g", sizes[r], sizes[c], (double)alpha);
            check_one(kr, sizes[r], sizes[c], alpha, true);
            check_one(kr, sizes[r], sizes[c], alpha, false);
        }
}
