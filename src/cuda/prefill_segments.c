/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on Hopper as segments (prefill_segments.cuh), or whole: what is less by a model of four
 * constants, measured on an H200. Lengths are contents of device memory, so sequences count as of one
 * length.
 *
 * First segments run in clusters; beside them, on the multiprocessors that these leave free, go M and U
 * of the segments between first and last. So the first one is longer or shorter than the others, such
 * that both are done at once.
 */
#include "prefill_segments.h"

enum { CHUNK = 64, MOST_SEGMENTS = 64, LEAST_CHUNKS = 4 };

/* Cycles: a chunk in either form, and its multiprocessors; a chunk of M and U, on two of them; a step
 * from segment to segment; three launches more. */
static const struct {
    int processors, chunk;
} forms[] = { { 2, 3240 }, { 1, 5400 } };
enum { SUMMARY = 2300, STEP = 1600, LAUNCHES = 18000 };

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

/* A chunk of each of n, as many at a time as there is room for. */
static int64_t cost_of(int wide, int64_t n, int sm_count)
{
    const int64_t at_once = sm_count / forms[wide].processors;
    return divide_up(n, at_once ? at_once : 1) * forms[wide].chunk;
}
static bool is_wide_better(int64_t n, int sm_count)
{
    return cost_of(1, n, sm_count) < cost_of(0, n, sm_count);
}

struct gdn_cuda_cut gdn_cuda_no_cut(const struct gdn_cu_batch *b, int64_t H, int sm_count)
{
    const struct gdn_cuda_cut c = { .first = INT64_MAX, .each = CHUNK,
                                    .wide = is_wide_better(b->B * H, sm_count) };
    return c;
}

/* Segments after first ones, at most. */
static int64_t count_units(const struct gdn_cuda_cut *c, const struct gdn_cu_batch *b)
{
    if (b->padded) return b->T > c->first ? b->B * divide_up(b->T - c->first, c->each) : 0;
    if (b->N <= c->first) return 0;
    /* A sequence that has some rounds up by so much; not more of them than there are tokens for. */
    const int64_t up = c->each - 1 - c->first, most = b->N / (c->first + 1);
    return (b->N + up * (up < 0 ? 1 : most < b->B ? most : b->B)) / c->each;
}

/* n sequences and heads of so many chunks, s segments after the first of each: cycles. */
static int64_t try_segments(struct gdn_cuda_cut *c, int64_t n, int64_t chunks, int64_t s, int sm_count)
{
    const int64_t free = sm_count - forms[0].processors * n, whole = forms[0].chunk;
    if (free < 2) return INT64_MAX;
    const int64_t summary = divide_up(n * (s - 1), free / 2) * SUMMARY;
    const int64_t each = divide_up(chunks * whole, s * whole + summary), first = chunks - s * each;
    if (each < LEAST_CHUNKS || first < 1) return INT64_MAX;
    c->wide       = false;
    c->later_wide = is_wide_better(n * s, sm_count);
    c->first      = first * CHUNK;
    c->each       = each * CHUNK;
    const int64_t before = first * whole > each * summary ? first * whole : each * summary;
    return before + each * cost_of(c->later_wide, n * s, sm_count) + (s - 1) * STEP + LAUNCHES;
}

struct gdn_cuda_cut gdn_cuda_find_cut(const struct gdn_cu_batch *b, int64_t H, int sm_count,
                                      const struct gdn_cuda_cut *like)
{
    const int64_t       n = b->B * H, tokens = b->padded ? b->T : b->B ? divide_up(b->N, b->B) : 0;
    const int64_t       chunks = divide_up(tokens, CHUNK);
    struct gdn_cuda_cut best   = gdn_cuda_no_cut(b, H, sm_count), c = best;
    int64_t             least  = chunks * cost_of(best.wide, n, sm_count);
    for (int64_t s = 2; s <= MOST_SEGMENTS && s * LEAST_CHUNKS < chunks; s++) {
        const int64_t time = try_segments(&c, n, chunks, s, sm_count);
        if (time >= least) continue;
        least = time;
        best  = c;
    }
    if (like) {
        best.first = like->first, best.each = like->each;
        best.later_wide = is_wide_better(n * divide_up(tokens - like->first, like->each), sm_count);
    }
    best.units = count_units(&best, b);
    return best;
}
