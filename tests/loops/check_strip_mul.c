/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static const int row_counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 19, 24, 31, 32 };
static const int depths[] = { 1, 2, 7, 16, 31, 64, 100, 127, 128, 255, 256 };

/* constant: data for which rounding errors add up, a unit per addition at most. */
static void check_one(const struct gdn_kernels *kr, int rows, int K, int width, bool constant,
                      bool keeps)
{
    const int lda = K + check_below(4), ldp = width + check_below(4);
    const int ldw = width + check_below(4);
    const size_t size = (size_t)(rows * width);
    const double low = constant ? 0.1 : -1, high = constant ? 0.1 : 1;
    float *a = check_matrix(rows, K, lda, low, high);
    float *p = check_matrix(rows, width, ldp, -1, 1);
    float *w = check_matrix(K, width, ldw, low, high);
    float *keep = keeps ? check_floats((size_t)width, -2, 2) : NULL;
    float *before = check_copy(p, (size_t)((rows - 1) * ldp + width) * sizeof *p, ELEMENT);
    double *want = check_doubles(size), *mag = check_doubles(size);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < width; j++) {
            double sum = keeps ? (double)keep[j] * p[r * ldp + j] : 0, abs = fabs(sum);
            for (int x = 0; x < K; x++) {
                const double term = (double)a[r * lda + x] * w[x * ldw + j];
                sum += term;
                abs += fabs(term);
            }
            want[r * width + j] = sum;
            mag[r * width + j] = abs;
        }
    CALL(kr->strip_mul)(p, ldp, a, lda, w, ldw, rows, K, width, keep);
    check_error("p", f32_matrix(p, rows, width, ldp), want, mag, constant ? 1 + K : 8 + K / 16.0);

    float one[GDN_MAX_STRIP]; /* a row has the same bits alone */
    for (int r = 0; r < rows; r++) {
        memcpy(one, before + r * ldp, (size_t)width * sizeof *one);
        kr->strip_mul(one, width, a + r * lda, lda, w, ldw, 1, K, width, keep);
        check_same("row alone", p + r * ldp, one, (size_t)width * sizeof *one);
    }
    if (rows == 32 && K == 128 && !keeps)
        CHECK_BENCH(4 * (32 * 128 + 128 * width + 32 * width), 2.0 * 32 * 128 * width,
                    kr->strip_mul(p, ldp, a, lda, w, ldw, rows, K, width, keep));
}

void check_strip_mul(const struct gdn_kernels *kr)
{
    const int widths[] = { GDN_CHUNK, kr->strip };
    for (int w = 0; w < (widths[0] == widths[1] ? 1 : 2); w++)
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++)
            for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
                const bool constant = d % 2 == 0 && r % 5 == 0;
                const bool keeps = (r + d) % 2 == 1;
                check_case("rows %d, K %d, width %d, constant %d, keeps %d", row_counts[r],
                           depths[d], widths[w], constant, keeps);
                check_one(kr, row_counts[r], depths[d], widths[w], constant, keeps);
            }
}
