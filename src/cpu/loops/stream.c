/* SPDX-License-Identifier: Apache-2.0 */
/* See stream.h. SSE2 is part of every x86-64; elsewhere stores are plain. */
#include "cpu/loops/stream.h"

#include "gdn.h"

#if defined(__SSE2__)
#include <emmintrin.h>

/* Stores whole lines: four neighbouring stores leave the core as one. */
static void stream_lines(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        __m128i *line = (__m128i *)(void *)(to + i);
        const __m128i *x = (const __m128i *)(const void *)(from + i);
        const __m128i a = _mm_loadu_si128(x), b = _mm_loadu_si128(x + 1);
        const __m128i c = _mm_loadu_si128(x + 2), d = _mm_loadu_si128(x + 3);
        _mm_stream_si128(line, a);
        _mm_stream_si128(line + 1, b);
        _mm_stream_si128(line + 2, c);
        _mm_stream_si128(line + 3, d);
    }
}

void gdn_stream_row(const struct gdn_kernels *kr, int32_t dtype, void *to, const float *from, int n)
{
    float buffer[GDN_MAX_HEAD];
    const size_t bytes = (size_t)n * (dtype == GDN_F32 ? sizeof(float) : sizeof(uint16_t));
    if ((uintptr_t)to % 64 || bytes % 64) {
        kr->store_row[dtype](to, from, (size_t)n);
    } else if (dtype == GDN_F32) {
        stream_lines(to, (const char *)from, bytes);
    } else {
        kr->store_row[dtype](buffer, from, (size_t)n);
        stream_lines(to, (const char *)buffer, bytes);
    }
}

void gdn_stream_end(void) { _mm_sfence(); }

#else
void gdn_stream_row(const struct gdn_kernels *kr, int32_t dtype, void *to, const float *from, int n)
{
    kr->store_row[dtype](to, from, (size_t)n);
}

void gdn_stream_end(void) {}
#endif
