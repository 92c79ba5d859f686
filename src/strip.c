/* SPDX-License-Identifier: Apache-2.0 */
/* States between memory and strips; a state whose columns are dense is transposed on its way. */
#include "strip.h"

#include <string.h>

void gdn_load_strip(float *S, const struct gdn_kernels *kr, const void *from,
                    const struct gdn_pool_view *view, int K, int col, int n, float *rows)
{
    const int       strip = kr->strip;
    const char     *at    = from;
    const int64_t   elem  = (int64_t)gdn_dtype_bytes(view->dtype), row = view->ld * elem;
    const ptrdiff_t ld    = gdn_strip_ld(K);
    if (!from || n < strip) memset(S, 0, (size_t)(K * strip) * sizeof *S);
    if (!from) return;
    if (view->k_first) {
        for (int x = 0; x < K; x++)
            kr->load_row[view->dtype](S + x * strip, at + x * row + col * elem, (size_t)n);
        return;
    }
    for (int j = 0; j < n; j++)
        kr->load_row[view->dtype](rows + j * ld, at + (col + j) * row, (size_t)K);
    kr->transpose(S, strip, rows, ld, n, K);
}

void gdn_store_strip(const float *S, const struct gdn_kernels *kr, void *to,
                     const struct gdn_pool_view *view, int K, int col, int n, float *rows)
{
    const int       strip = kr->strip;
    char           *at    = to;
    const int64_t   elem  = (int64_t)gdn_dtype_bytes(view->dtype), row = view->ld * elem;
    const ptrdiff_t ld    = gdn_strip_ld(K);
    if (view->k_first) {
        for (int x = 0; x < K; x++)
            kr->store_row[view->dtype](at + x * row + col * elem, S + x * strip, (size_t)n);
        return;
    }
    kr->transpose(rows, ld, S, strip, K, n);
    for (int j = 0; j < n; j++)
        kr->store_row[view->dtype](at + (col + j) * row, rows + j * ld, (size_t)K);
}
