/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on Hopper as segments (prefill_segments.cuh), or whole: what takes less time by a model
 * fitted to what an H200 took (docs/hopper-prefill.md), segments only where they win clearly.
 * Lengths are contents of device memory, so sequences count as of one length.
 *
 * First segments run in clusters; beside them, on the multiprocessors that these leave free, go M
 * and U of the segments between first and last. So the first one is longer or shorter than the
 * others, such that both are done at once.
 */
#include "prefill_hopper.h"
#include "prefill_segments.h"

/* MOST: segments of a sequence; how often all of them fill the device; how much longer first ones
 * are. So the workspace is that of 5 segments of a head per multiprocessor at most (gdn.h). */
enum { CHUNK = 64, LEAST_CHUNKS = 4 };
enum { MOST_SEGMENTS = 32, MOST_FILLS = 2, MOST_LONGER = 4 };

/* Sequences of a batch that is better whole are cut where they are so many times as long as the
 * mean, if it takes so many nanoseconds that launches that find none are a small part. */
enum { UNEVEN = 2, LEAST_RAGGED = 100000 };

/* Nanoseconds. A kernel takes START for every round of blocks that there is room for, and so much
 * for a chunk, more where many multiprocessors work: _MORE where all do. */
enum {
    START   = 7000,
    CLUSTER = 1500, CLUSTER_MORE = 730,  /* of two multiprocessors */
    WHOLE_MORE = 600,                    /* of whole sequences, from half of them on */
    WIDE    = 3050, WIDE_START   = 5000, /* of one; beside START */
    BESIDE  = 1320,                      /* more of a first segment, beside summaries */
    SUMMARY = 1630, SUMMARY_START = 14000,
    STEP    = 2000, STEPS_START  = 2000, /* from segment to segment */
    CALL    = 6000, LAUNCHES     = 8000  /* of any call; of three launches more */
};

/* Which form is better of n blocks or clusters goes by this alone: chunks in turn. */
static const struct {
    int processors, chunk;
} forms[] = { { 2, 3240 }, { 1, 5400 } };

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
static int64_t at_least(int64_t least, int64_t x) { return x < least ? least : x; }
static int64_t at_most(int64_t most, int64_t x) { return x > most ? most : x; }

/* So many run at once. */
static int64_t count_room(bool wide, int sm_count)
{
    return at_least(1, sm_count / forms[wide].processors);
}

static int64_t cost_of(bool wide, int64_t n, int sm_count)
{
    return divide_up(n, count_room(wide, sm_count)) * forms[wide].chunk;
}
static bool is_wide_better(int64_t n, int sm_count)
{
    return cost_of(true, n, sm_count) < cost_of(false, n, sm_count);
}

/* n blocks or clusters of so many chunks. */
static int64_t time_of(bool wide, int64_t n, int64_t chunks, int sm_count)
{
    const int64_t room = count_room(wide, sm_count), rounds = divide_up(n, room);
    const int64_t chunk = wide ? WIDE : CLUSTER + CLUSTER_MORE * at_most(room, n) / room;
    return rounds * (chunks * chunk + START + wide * WIDE_START);
}

/* As sequences of a call that has fewer of them than there is room for. */
static int64_t time_of_whole(bool wide, int64_t n, int64_t chunks, int sm_count)
{
    const int64_t half = at_least(1, count_room(false, sm_count) / 2), busy = at_most(half, n);
    if (wide) return CALL + time_of(wide, n, chunks, sm_count);
    return CALL + chunks * (CLUSTER + WHOLE_MORE * busy * busy / (half * half)) + START;
}

struct gdn_cuda_cut gdn_cuda_no_cut(const struct gdn_cu_batch *b, int64_t H, int sm_count)
{
    const struct gdn_cuda_cut c = { .first = INT64_MAX, .each = CHUNK,
                                    .wide = is_wide_better(b->B * H, sm_count) };
    return c;
}

/* Segments after first ones, at most; and sequences that have two of them. */
static void count_later(struct gdn_cuda_cut *c, const struct gdn_cu_batch *b)
{
    /* A sequence that has some rounds up by so much; not more of them than there are tokens for. */
    const int64_t up = c->each - 1 - c->first, some = at_most(b->B, b->N / (c->first + 1));
    if (b->padded) {
        c->units   = b->T > c->first ? b->B * divide_up(b->T - c->first, c->each) : 0;
        c->several = b->T > c->first + c->each ? b->B : 0;
        return;
    }
    c->units   = some ? (b->N + up * (up < 0 ? 1 : some)) / c->each : 0;
    c->several = at_most(b->B, b->N / (c->first + c->each + 1));
}

/* n sequences and heads of so many chunks, s segments after the first of each, which has `least`
 * chunks or more. */
struct trial {
    int64_t n, chunks, s, each, least;
    int     sm_count;
};

/* The time of first segments and, beside them, summaries: both start at once, then the latter have
 * all multiprocessors. */
static int64_t time_of_summaries(const struct trial *t)
{
    const int64_t room = count_room(false, t->sm_count), n = t->n * (t->s - 1);
    const int64_t first = t->chunks - t->s * t->each;
    const int64_t a = first * (CLUSTER + BESIDE * t->n / room) + START;
    const int64_t b = t->each * SUMMARY + SUMMARY_START;
    return at_least(a, b * at_most(divide_up(n, room - t->n),
                                   divide_up(n * b + t->n * a, room * b)));
}

static int64_t time_of_steps(const struct trial *t)
{
    const int64_t rounds = divide_up(t->n * (2 * CHUNK / GDN_SEGMENT_COLUMNS), t->sm_count);
    return t->s * rounds * STEP + STEPS_START;
}

static int64_t time_of_segments(const struct trial *t)
{
    const int64_t n = t->n * t->s;
    return CALL + LAUNCHES + time_of_summaries(t) + time_of_steps(t) +
           time_of(is_wide_better(n, t->sm_count), n, t->each, t->sm_count);
}

/* The chunks of a segment so that first ones and `rounds` of summaries take the same time. */
static int64_t balance(const struct trial *t, int64_t rounds)
{
    const int64_t chunk = CLUSTER + BESIDE * t->n / count_room(false, t->sm_count);
    const int64_t more  = rounds * SUMMARY_START - START;
    return divide_up(at_least(0, t->chunks * chunk - more), t->s * chunk + rounds * SUMMARY);
}

/* The best one of few rounds. */
static int64_t find_each(struct trial *t, int64_t *least)
{
    int64_t best = 0;
    for (int rounds = 1; rounds <= 3; rounds++) {
        t->each = at_most((t->chunks - t->least) / t->s, balance(t, rounds));
        const int64_t first = t->chunks - t->s * t->each;
        if (t->each < LEAST_CHUNKS || first < 1 || first > MOST_LONGER * t->each) continue;
        const int64_t time = time_of_segments(t);
        if (time >= *least) continue;
        *least = time;
        best   = t->each;
    }
    return best;
}

/* The best cut that takes less time than `least`; else c stays. */
static void find_best(struct trial *t, int64_t least, const struct gdn_cu_batch *b,
                      struct gdn_cuda_cut *c)
{
    const int64_t most = at_most(MOST_SEGMENTS, MOST_FILLS * t->sm_count / t->n);
    for (t->s = 2; t->s <= most && t->s * LEAST_CHUNKS < t->chunks; t->s++) {
        const int64_t each = find_each(t, &least);
        if (each == 0) continue;
        c->later_wide = is_wide_better(t->n * t->s, t->sm_count);
        c->first      = (t->chunks - t->s * each) * CHUNK;
        c->each       = each * CHUNK;
        count_later(c, b);
    }
}

/* As a test wants it. */
static void cut_like(const struct trial *t, const struct gdn_cu_batch *b,
                     const struct gdn_cuda_cut *like, struct gdn_cuda_cut *c)
{
    const int64_t rest = t->chunks * CHUNK - like->first;
    c->first = like->first, c->each = like->each;
    count_later(c, b);
    c->later_wide = is_wide_better(rest > 0 ? t->n * divide_up(rest, c->each)
                                            : c->units * t->n / b->B, t->sm_count);
}

struct gdn_cuda_cut gdn_cuda_find_cut(const struct gdn_cu_batch *b, int64_t H, int sm_count,
                                      const struct gdn_cuda_cut *like)
{
    const int64_t       tokens = b->padded ? b->T : b->B ? divide_up(b->N, b->B) : 0;
    const int64_t       room   = count_room(false, sm_count);
    struct gdn_cuda_cut c      = gdn_cuda_no_cut(b, H, sm_count);
    struct trial t = { .n = b->B * H, .chunks = divide_up(tokens, CHUNK), .sm_count = sm_count };
    const int64_t time = time_of_whole(c.wide, t.n, t.chunks, sm_count);
    if (t.n == 0) return c;
    if (like) {
        cut_like(&t, b, like, &c);
        return c;
    }
    if (t.n < room) {
        find_best(&t, time / 20 * 19, b, &c);
        if (c.units) c.wide = false;
    }
    if (c.units || b->padded || b->B == 1 || H >= room || time < LEAST_RAGGED) return c;
    t = (struct trial){ .n = H, .chunks = divide_up(b->N, CHUNK), .least = UNEVEN * t.chunks,
                        .sm_count = sm_count };
    find_best(&t, time_of_whole(false, H, t.chunks, sm_count) / 20 * 19, b, &c);
    return c;
}
