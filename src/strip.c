/* SPDX-License-Identifier: Apache-2.0 */
/* States between memory and strips; a state whose columns are dense is transposed on its way. */
#include "strip.h"

#include <string.h>

#include "stream.h"

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

static void store_row(const struct gdn_kernels *kr, const struct gdn_pool_view *view, void *to,
                      const float *from, int n)
{
    if (view->streamed)
        gdn_stream_row(kr, view->dtype, to, from, n);
    else
        kr->store_row[view->dtype](to, from, (size_t)n);
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
            store_row(kr, view, at + x * row + col * elem, S + x * strip, n);
        return;
    }
    kr->transpose(rows, ld, S, strip, K, n);
    for (int j = 0; j < n; j++)
        store_row(kr, view, at + (col + j) * row, rows + j * ld, K);
}

enum { TILE = 8 }; /* rows that are turned at a time */

/* The first of n columns in memory, and the shape of what lies there. */
struct part {
    char   *at;
    int64_t row; /* bytes from one row to the next */
    int     rows, cols;
};

static struct part part_of(const void *head, const struct gdn_pool_view *view, int K, int col,
                           int n)
{
    const int64_t elem = (int64_t)gdn_dtype_bytes(view->dtype), row = view->ld * elem;
    char *const   at   = (char *)(uintptr_t)head;
    if (view->k_first) return (struct part){ at + col * elem, row, K, n };
    return (struct part){ at + col * row, row, n, K };
}

void gdn_load_columns(float *S, bool k_first, const struct gdn_kernels *kr, const void *from,
                      const struct gdn_pool_view *view, int K, int col, int n)
{
    float tile[TILE * GDN_MAX_HEAD];
    if (!from) {
        memset(S, 0, (size_t)(K * n) * sizeof *S);
        return;
    }
    const struct part p = part_of(from, view, K, col, n);
    if (view->k_first == k_first) {
        for (int i = 0; i < p.rows; i++)
            kr->load_row[view->dtype](S + i * p.cols, p.at + i * p.row, (size_t)p.cols);
        return;
    }
    for (int i = 0; i < p.rows; i += TILE) {
        const int m = p.rows - i < TILE ? p.rows - i : TILE;
        for (int r = 0; r < m; r++)
            kr->load_row[view->dtype](tile + r * p.cols, p.at + (i + r) * p.row, (size_t)p.cols);
        kr->transpose(S + i, p.rows, tile, p.cols, m, p.cols);
    }
}

void gdn_store_columns(const float *S, bool k_first, const struct gdn_kernels *kr, void *to,
                       const struct gdn_pool_view *view, int K, int col, int n)
{
    const struct part p = part_of(to, view, K, col, n);
    float             tile[TILE * GDN_MAX_HEAD];
    if (view->k_first == k_first) {
        for (int i = 0; i < p.rows; i++)
            store_row(kr, view, p.at + i * p.row, S + i * p.cols, p.cols);
        return;
    }
    for (int i = 0; i < p.rows; i += TILE) {
        const int m = p.rows - i < TILE ? p.rows - i : TILE;
        kr->transpose(tile, p.cols, S + i, p.rows, p.cols, m);
        for (int r = 0; r < m; r++)
            store_row(kr, view, p.at + (i + r) * p.row, tile + r * p.cols, p.cols);
    }
}
