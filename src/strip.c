/* SPDX-License-Identifier: Apache-2.0 */
/* States between memory and strips; a state whose columns are dense is transposed on its way. */
#include "strip.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

static bool is_streamed(const void *to, size_t bytes)
{
#if defined(__SSE2__)
    return (uintptr_t)to % 64 == 0 && bytes % 64 == 0;
#else
    (void)to, (void)bytes;
    return false;
#endif
}

/* Whole lines past the caches, which a plain store would fetch to overwrite them: that halves
 * the time that a checkpoint takes. */
static void stream_lines(char *to, const char *from, size_t bytes)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < bytes; i += 64) {
        __m128i       *line = (__m128i *)(void *)(to + i);
        const __m128i *x    = (const __m128i *)(const void *)(from + i);
        const __m128i  a = _mm_loadu_si128(x), b = _mm_loadu_si128(x + 1);
        const __m128i  c = _mm_loadu_si128(x + 2), d = _mm_loadu_si128(x + 3);
        _mm_stream_si128(line, a);
        _mm_stream_si128(line + 1, b);
        _mm_stream_si128(line + 2, c);
        _mm_stream_si128(line + 3, d);
    }
#else
    memcpy(to, from, bytes);
#endif
}

static void store_row(const struct gdn_kernels *kr, int32_t dtype, void *to, const float *from,
                      int n, bool stream)
{
    float        buffer[GDN_MAX_HEAD];
    const size_t bytes = (size_t)n * gdn_dtype_bytes(dtype);
    if (!stream || !is_streamed(to, bytes)) {
        kr->store_row[dtype](to, from, (size_t)n);
        return;
    }
    if (dtype != GDN_F32) kr->store_row[dtype](buffer, from, (size_t)n);
    stream_lines(to, (const char *)(dtype == GDN_F32 ? from : buffer), bytes);
}

static void store(const float *S, const struct gdn_kernels *kr, void *to,
                  const struct gdn_pool_view *view, int K, int col, int n, float *rows, bool stream)
{
    const int       strip = kr->strip;
    char           *at    = to;
    const int64_t   elem  = (int64_t)gdn_dtype_bytes(view->dtype), row = view->ld * elem;
    const ptrdiff_t ld    = gdn_strip_ld(K);
    if (view->k_first) {
        for (int x = 0; x < K; x++)
            store_row(kr, view->dtype, at + x * row + col * elem, S + x * strip, n, stream);
        return;
    }
    kr->transpose(rows, ld, S, strip, K, n);
    for (int j = 0; j < n; j++)
        store_row(kr, view->dtype, at + (col + j) * row, rows + j * ld, K, stream);
}

void gdn_store_strip(const float *S, const struct gdn_kernels *kr, void *to,
                     const struct gdn_pool_view *view, int K, int col, int n, float *rows)
{
    store(S, kr, to, view, K, col, n, rows, false);
}

void gdn_stream_strip(const float *S, const struct gdn_kernels *kr, void *to,
                      const struct gdn_pool_view *view, int K, int col, int n, float *rows)
{
    store(S, kr, to, view, K, col, n, rows, true);
}

void gdn_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
