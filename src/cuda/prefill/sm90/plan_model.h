/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a call on Hopper, as segments (segments.cuh) or whole: a model fitted to what an H200
 * took (docs/gpu/hopper-prefill.md). Host code uses it where shapes say all lengths
 * (plan_segments.c), a kernel where cu_seqlens does (choose_cut.cuh).
 *
 * First segments run in clusters; beside them, on the multiprocessors that these leave free, go M
 * and U of the segments between first and last. So the first one is longer or shorter than the
 * others, such that both are done at once. Small heads (k64.cu) have one form, of one block, for
 * whole sequences and for all segments.
 *
 * Most summaries may be brief (early_stop.cuh), but whether they are follows from gates, which are
 * not read here. So where they may be, that counts as twice as likely as not.
 */
#ifndef GDN_CUDA_PREFILL_PLAN_MODEL_H
#define GDN_CUDA_PREFILL_PLAN_MODEL_H

#include <math.h>
#include <stdbool.h>

#include "cuda/prefill/sm90/args.h"

#ifdef GDN_DEVICE
#define GDN_MODEL GDN_DEVICE
#else
#define GDN_MODEL static inline
#endif

/* TRIED: numbers of segments after the first that are tried, from two on. LEAST: chunks of a
 * segment. FILLS: how often all segments may fill the device. The next one: how much longer first
 * segments may be. ROUNDS: of summaries beside the first segments. */
enum { GDN_PLAN_TRIED = 31, GDN_PLAN_LEAST = 4, GDN_PLAN_FILLS = 2, GDN_PLAN_LONGER = 4 };
enum { GDN_PLAN_ROUNDS = 3 };

/* Hundredths of the time of whole sequences that segments may take. */
enum { GDN_PLAN_WIN = 95 };

/* An estimate of early stops: so many hundredths of the summaries stop, after so many chunks. */
enum { GDN_PLAN_BRIEF = 75, GDN_PLAN_BRIEF_CHUNKS = 8 };

/* Nanoseconds. ..._START: of a kernel, for every round of blocks that there is room for; then a
 * number for each chunk. ..._MORE: is added for each chunk if blocks take 0.7 of the room or
 * more. */
enum {
    PLAN_START = 9265,
    PLAN_CLUSTER = 1246,
    PLAN_CLUSTER_MORE = 148,
    PLAN_WIDE_START = 10819,
    PLAN_WIDE = 2069,
    PLAN_WIDE_MORE = 215, /* of one multiprocessor */
    PLAN_SMALL_START = 6779,
    PLAN_SMALL = 1119,
    PLAN_SMALL_MORE = 104, /* small heads */
    PLAN_FIRST_START = 17137,
    PLAN_FIRST = 1266,
    PLAN_FIRST_MORE = 28, /* beside summaries */
    PLAN_SMALL_FIRST_START = 13462,
    PLAN_SMALL_FIRST = 1151,
    PLAN_SUMMARY_START = 15049,
    PLAN_SUMMARY = 1365,
    PLAN_SMALL_SUMMARY_START = 12368,
    PLAN_SMALL_SUMMARY = 1303,
    PLAN_STEPS_START = 835,
    PLAN_STEP = 1801, /* from segment to segment */
    PLAN_CALL = 6000,
    PLAN_LAUNCHES = 549 /* of any call; of three launches more */
};

/* A batch: its long sequences, which may be cut, and the others, which stay whole. */
struct gdn_plan_batch {
    float longest;                        /* chunks of the longest sequence */
    float n, chunks;                      /* long sequences and their chunks, each times heads */
    float others, rest;                   /* the other sequences and their chunks, each times
                                             heads */
    float H, sms;                         /* heads; multiprocessors */
    int32_t small;                        /* heads of up to 64 keys and columns */
    int32_t stops;                        /* summaries may stop early */
    int64_t n_long, tokens, least_long;   /* how many sequences are long; their tokens; the least
                                             tokens of a long sequence */
    int64_t most_units;                   /* the most segments behind first ones that memory has
                                             room for */
    float apart, apart_chunks, short_one; /* sequences that may have clusters, and their chunks,
                                             both times heads; chunks of the longest sequence
                                             that may not */
};

/* The sequences of more than cut.whole tokens: how many, and their tokens. apart: those of more
 * than a->split tokens. longest: the most tokens; short_one: the most of a sequence that is not
 * apart. singles: sequences of one token, which decode takes. */
struct gdn_plan_long {
    int64_t n, tokens, apart, apart_tokens, longest, short_one, singles;
};

/* Adds a sequence. */
GDN_MODEL void plan_add(struct gdn_plan_long *s, const struct gdn_cu_prefill_sm90 *a,
                        int64_t tokens)
{
    if (tokens > a->cut.whole) s->n++, s->tokens += tokens;
    if (tokens > a->split) s->apart++, s->apart_tokens += tokens;
    if (tokens > s->longest) s->longest = tokens;
    if (tokens <= a->split && tokens > s->short_one) s->short_one = tokens;
    if (tokens == 1 && a->singles) s->singles++;
}

/* Returns the batch of a packed call with these long sequences. */
GDN_MODEL struct gdn_plan_batch plan_packed(const struct gdn_cu_prefill_sm90 *a,
                                            const struct gdn_plan_long *s)
{
    const struct gdn_cu_rule *r = &a->rule;
    const float H = (float)r->H, n = (float)s->n, longest = (float)((s->longest + 63) / 64);
    const float others = (float)(r->batch.B - s->n - s->singles);
    const float rest = (float)(r->batch.N - s->tokens - s->singles);
    const float chunks = fminf(n * longest, (float)s->tokens / 64 + n / 2);
    const struct gdn_plan_batch p = {
        .longest = longest,
        .n = n * H,
        .chunks = chunks * H,
        .others = others * H,
        .rest = fmaxf(others, fmaxf(0, rest / 64)) * H,
        .H = H,
        .sms = (float)a->sm_count,
        .small = r->K <= 64 && r->V <= 64,
        .stops = a->early_stop,
        .n_long = s->n,
        .tokens = s->tokens,
        .least_long = a->cut.whole,
        .most_units = a->cut.units,
        .apart = (float)s->apart * H,
        .apart_chunks = (float)s->apart_tokens / 64 * H,
        .short_one = (float)((s->short_one + 63) / 64),
    };
    return p;
}

/* A cut of the longest sequence, in chunks: its first segment, and s others of `each`. Other
 * sequences have the same cut. */
struct gdn_plan_cut {
    float first, each, s;
};

/* Returns how many clusters run at once. Each has two multiprocessors. */
GDN_MODEL float plan_clusters(const struct gdn_plan_batch *b)
{
    return fmaxf(1, floorf(b->sms / 2));
}

/* Returns how many heads of sequences run at once: in clusters, or on one multiprocessor each, as
 * wide blocks and small heads do. */
GDN_MODEL float plan_room(const struct gdn_plan_batch *b, bool wide)
{
    return wide || b->small ? b->sms : plan_clusters(b);
}

/* The costs of a round of blocks: to begin, and of a chunk. */
struct gdn_plan_costs {
    float start, chunk;
};

/* Returns the costs if n run at once. */
GDN_MODEL struct gdn_plan_costs plan_costs(const struct gdn_plan_batch *b, bool wide, float n)
{
    const float share = n / plan_room(b, wide), full = fminf(1, 2 * share * share);
    struct gdn_plan_costs c = { PLAN_START, PLAN_CLUSTER + PLAN_CLUSTER_MORE * full };
    if (wide) c.start = PLAN_WIDE_START, c.chunk = PLAN_WIDE + PLAN_WIDE_MORE * full;
    if (b->small) c.start = PLAN_SMALL_START, c.chunk = PLAN_SMALL + PLAN_SMALL_MORE * full;
    return c;
}

GDN_MODEL float plan_round(const struct gdn_plan_batch *b, bool wide, float n, float chunks)
{
    const struct gdn_plan_costs c = plan_costs(b, wide, n);
    return n > 0 ? c.start + chunks * c.chunk : 0;
}

/* Returns the time of n sequences or segments of so many chunks each. */
GDN_MODEL float plan_rounds(const struct gdn_plan_batch *b, bool wide, float n, float chunks)
{
    const float room = plan_room(b, wide), full = floorf(n / room);
    return full * plan_round(b, wide, room, chunks) + plan_round(b, wide, n - full * room, chunks);
}

/* Returns the time of the other sequences, when all multiprocessors compute them. */
GDN_MODEL float plan_rest(const struct gdn_plan_batch *b, bool wide)
{
    const float room = plan_room(b, wide);
    const struct gdn_plan_costs c = plan_costs(b, wide, room);
    return (b->rest * c.chunk + b->others * c.start) / room;
}

/* Returns the time of a call without segments. */
GDN_MODEL float plan_whole(const struct gdn_plan_batch *b, bool wide)
{
    const float room = plan_room(b, wide);
    const struct gdn_plan_costs c = plan_costs(b, wide, room);
    const float work = (b->chunks * c.chunk + b->n * c.start) / room + plan_rest(b, wide);
    return PLAN_CALL + fmaxf(plan_rounds(b, wide, b->n, b->longest), b->rest > 0 ? work : 0);
}

/* Returns true if sequences that are apart should have clusters, while the others have wide
 * blocks. If clusters fill the device, the other blocks begin when clusters end. */
GDN_MODEL bool plan_is_apart(const struct gdn_plan_batch *b)
{
    const float clusters = plan_room(b, false), blocks = plan_room(b, true);
    const struct gdn_plan_costs c = plan_costs(b, false, clusters), w = plan_costs(b, true, blocks);
    const float all = b->chunks + b->rest, n = b->n + b->others;
    const float rest = (all - b->apart_chunks) * w.chunk + (n - b->apart) * w.start;
    const float long_work = b->apart_chunks * c.chunk + b->apart * c.start;
    const float long_time = plan_rounds(b, false, b->apart, b->longest);
    const float short_time = w.start + b->short_one * w.chunk;
    const float begin = 4 * b->apart > 3 * clusters ? long_time : 0;
    const float latest = fmaxf(long_time, begin + short_time);
    const float wide_time = plan_round(b, true, fminf(n, blocks), b->longest);
    return fmaxf(latest, long_work / clusters + rest / blocks) <=
           fmaxf(wide_time, (all * w.chunk + n * w.start) / blocks);
}

/* Returns the time of the first segments, which run beside the summaries. */
GDN_MODEL float plan_first(const struct gdn_plan_batch *b, float chunks)
{
    const float chunk = PLAN_FIRST + PLAN_FIRST_MORE * b->n / plan_room(b, false);
    return b->small ? chunks * PLAN_SMALL_FIRST + PLAN_SMALL_FIRST_START
                    : chunks * chunk + PLAN_FIRST_START;
}

GDN_MODEL float plan_summary(const struct gdn_plan_batch *b, float chunks)
{
    return b->small ? chunks * PLAN_SMALL_SUMMARY + PLAN_SMALL_SUMMARY_START
                    : chunks * PLAN_SUMMARY + PLAN_SUMMARY_START;
}

/* Returns the end of n tasks of time b, of which `at_once` workers begin now and `others` begin at
 * time a. */
GDN_MODEL float plan_end(float n, float b, float at_once, float others, float a, bool later)
{
    float end = later ? a : 0;
    while (floorf(end / b) * at_once + floorf(fmaxf(0, end - a) / b) * others < n) end += b;
    return end;
}

/* Returns the room for clusters that first segments take. Blocks of small heads go to the parts of
 * the device in turn, and a cluster is within one part. So an odd block in a part takes the room of
 * two. */
GDN_MODEL float plan_taken(const struct gdn_plan_batch *b)
{
    enum { PLAN_PARTS = 8 };
    return b->small ? floorf((b->n + fminf(PLAN_PARTS, b->n)) / 2) : b->n;
}

/* Returns the segments after first ones, times heads. */
GDN_MODEL float plan_units(const struct gdn_plan_batch *b, const struct gdn_plan_cut *c)
{
    return fmaxf(c->s * b->H, (b->chunks - b->n * c->first) / c->each);
}

/* Returns the time of first segments and of the summaries beside them. When first segments end,
 * summaries have all multiprocessors. brief: most summaries are brief, and make room for the
 * others. */
GDN_MODEL float plan_summaries(const struct gdn_plan_batch *b, const struct gdn_plan_cut *c,
                               bool brief)
{
    const float clusters = plan_clusters(b), taken = plan_taken(b), left = clusters - taken;
    const float all = fmaxf(b->H * (c->s - 1), plan_units(b, c) - b->n);
    const float n_brief = brief ? floorf(all * GDN_PLAN_BRIEF / 100) : 0, n = all - n_brief;
    const float short_one = plan_summary(b, fminf(c->each, GDN_PLAN_BRIEF_CHUNKS));
    const float start = all > left ? n_brief * short_one / left : 0;
    const float first = plan_first(b, c->first), summary = plan_summary(b, c->each);
    const float later = fmaxf(0, first - start);
    const float end = start + fminf(plan_end(n, summary, left, taken, later, false),
                                    plan_end(n, summary, left, taken, later, true));
    const float work = n * summary + n_brief * short_one + taken * first;
    return fmaxf(fmaxf(first, end), work / clusters + plan_rest(b, false));
}

GDN_MODEL float plan_steps(const struct gdn_plan_batch *b, const struct gdn_plan_cut *c)
{
    const float blocks = (b->small ? 64.0f : 128.0f) / GDN_SEGMENT_COLUMNS;
    return c->s * ceilf(b->n * blocks / b->sms) * PLAN_STEP + PLAN_STEPS_START;
}

/* Returns the time of the segments after first ones. */
GDN_MODEL float plan_later(const struct gdn_plan_batch *b, const struct gdn_plan_cut *c)
{
    const float n = plan_units(b, c);
    return fminf(plan_rounds(b, true, n, c->each), plan_rounds(b, false, n, c->each));
}

/* The times of a call in segments: if no summary stops early, and on average if some may. */
struct gdn_plan_times {
    float all, mean;
};
GDN_MODEL struct gdn_plan_times plan_segments(const struct gdn_plan_batch *b,
                                              const struct gdn_plan_cut *c)
{
    const float rest = PLAN_CALL + PLAN_LAUNCHES + plan_steps(b, c) + plan_later(b, c);
    const float all = plan_summaries(b, c, false);
    struct gdn_plan_times t = { all + rest, all + rest };
    if (b->stops) t.mean = (all + 2 * plan_summaries(b, c, true)) / 3 + rest;
    return t;
}

/* Makes the cut of s segments after the first for which first segments and `rounds` of summaries
 * take the same time. Returns false if there is none. */
GDN_MODEL bool plan_cut(const struct gdn_plan_batch *b, int s, int rounds, struct gdn_plan_cut *c)
{
    const float start = plan_summary(b, 0), summary = plan_summary(b, 1) - start;
    const float chunk = plan_first(b, 1) - plan_first(b, 0);
    const float all = fmaxf(0, plan_first(b, b->longest) - (float)rounds * start);
    const float even = ceilf(all / ((float)s * chunk + (float)rounds * summary));
    c->s = (float)s;
    c->each = fminf(floorf(b->longest / c->s), even);
    c->first = b->longest - c->s * c->each;
    return b->n < plan_clusters(b) && c->each >= GDN_PLAN_LEAST && c->first >= 1 &&
           c->first <= GDN_PLAN_LONGER * c->each && c->s * b->n <= GDN_PLAN_FILLS * b->sms;
}

/* Returns true if there is room for the segments. Each long sequence rounds up by one, and its
 * first segment takes c->first chunks, or least_long tokens if these are fewer. */
GDN_MODEL bool plan_fits(const struct gdn_plan_batch *b, const struct gdn_plan_cut *c)
{
    const int64_t whole = (int64_t)c->first * 64, each = (int64_t)c->each * 64;
    const int64_t first = whole < b->least_long ? whole : b->least_long;
    return (b->tokens - b->n_long * first) / each + b->n_long <= b->most_units;
}

/* A cut, and its times. */
struct gdn_plan_tried {
    struct gdn_plan_cut cut;
    struct gdn_plan_times times;
};

/* Tries s segments after the first. Times are infinite if there is no such cut, or no room. */
GDN_MODEL struct gdn_plan_tried plan_try(const struct gdn_plan_batch *b, int s, int rounds)
{
    struct gdn_plan_tried t = { { 0, 0, 0 }, { INFINITY, INFINITY } };
    if (plan_cut(b, s, rounds, &t.cut) && plan_fits(b, &t.cut)) t.times = plan_segments(b, &t.cut);
    return t;
}

/* Returns the better of two cuts. Its times are the least of both. */
GDN_MODEL struct gdn_plan_tried plan_better(const struct gdn_plan_tried *a,
                                            const struct gdn_plan_tried *b)
{
    struct gdn_plan_tried best = b->times.mean < a->times.mean ? *b : *a;
    best.times.all = fminf(a->times.all, b->times.all);
    return best;
}

/* Returns true if segments take clearly less time than whole sequences do: less than `win`
 * hundredths. */
GDN_MODEL bool plan_wins(const struct gdn_plan_tried *best, float whole, int win)
{
    return best->times.all < whole / 100 * (float)win;
}

/* Returns a->cut for the best cut of a packed batch. If it gains too little, no sequence is cut. */
GDN_MODEL struct gdn_cu_segments plan_chosen(const struct gdn_cu_prefill_sm90 *a,
                                             const struct gdn_plan_batch *b,
                                             const struct gdn_plan_tried *best)
{
    struct gdn_cu_segments cut = a->cut;
    cut.first = cut.start = (int64_t)best->cut.first * 64;
    cut.each = (int64_t)best->cut.each * 64;
    if (cut.whole < cut.first) cut.whole = cut.first;
    if (!plan_wins(best, plan_whole(b, false), a->win)) cut.whole = INT64_MAX;
    return cut;
}

/* Tries all cuts, one after the other, and returns the best. A kernel tries them in parallel. */
GDN_MODEL struct gdn_plan_tried plan_best(const struct gdn_plan_batch *b)
{
    struct gdn_plan_tried best = { { 0, 0, 0 }, { INFINITY, INFINITY } };
    for (int n = 2; n < 2 + GDN_PLAN_TRIED; n++)
        for (int rounds = 1; rounds <= GDN_PLAN_ROUNDS; rounds++) {
            const struct gdn_plan_tried tried = plan_try(b, n, rounds);
            best = plan_better(&best, &tried);
        }
    return best;
}

#endif
