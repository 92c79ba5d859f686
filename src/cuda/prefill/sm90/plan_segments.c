/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on Hopper as segments (segments.cuh), or whole: what takes less time by a model
 * fitted to what an H200 took (docs/gpu/hopper-prefill.md), segments only where they win clearly.
 * Lengths are contents of device memory: sequences count as of one length, or some as long as the
 * longest, if the call says how long that is.
 *
 * First segments run in clusters, or as the whole batch would where nothing is known of lengths;
 * beside them, on the multiprocessors that these leave free, go M and U of the segments between
 * first and last. So the first one is longer or shorter than the others, such that both are done at
 * once. Small heads (k64.cu) have one form, of one block, for whole sequences and
 * for all segments.
 *
 * Most summaries may be brief (early_stop.cuh), but whether they are follows from gates,
 * which are not read here. So where they may be, that counts as twice as likely as not.
 */
#include "cuda/prefill/sm90/args.h"
#include "cuda/prefill/sm90/plan_segments.h"

/* MOST: segments of a sequence; how often all of them fill the device, if sequences are as long as
 * they are taken to be; how much longer first ones are; and segments of a head per multiprocessor,
 * however long sequences are: for so many the workspace has room (gdn.h). */
enum { CHUNK = 64, LEAST_CHUNKS = 4 };
enum { MOST_SEGMENTS = 32, MOST_FILLS = 2, MOST_LONGER = 4, MOST_ROOM = 5 };

/* If lengths are unknown, sequences of UNEVEN hundredths of the mean length may be cut, or have a
 * launch of their own, provided that an even batch takes so many nanoseconds: launches without work
 * are then a small part. _APART: where the others have wide blocks. */
enum { UNEVEN = 125, LEAST_UNEVEN = 50000, LEAST_APART = 100000 };

/* Hundredths of all tokens that the longest sequence is then taken to have; and of the time that
 * all tokens take on the whole device, from which on a sequence is long. */
enum { LONGEST = 80, LONG = 80 };

/* Hundredths of the time of whole sequences that segments may take. WIN_UNEVEN: if only the longest
 * length is known, because the lengths between are not. */
enum { WIN = 95, WIN_UNEVEN = 80 };

/* Summaries that may stop early: hundredths of them that do, and the chunks that they have then. */
enum { BRIEF = 75, BRIEF_CHUNKS = 8 };

/* Nanoseconds. A kernel takes .._START for every round of blocks that there is room for, and so
 * much for a chunk, more where many run at once: _MORE where they take 0.7 of the room or more. */
enum {
    START = 9265, CLUSTER = 1246, CLUSTER_MORE = 148,
    WIDE_START = 10819, WIDE = 2069, WIDE_MORE = 215, /* by blocks of one multiprocessor */
    SMALL_START = 6779, SMALL = 1119, SMALL_MORE = 104, /* small heads */
    FIRST_START = 17137, FIRST = 1266, FIRST_MORE = 28, /* first segments, beside summaries */
    SMALL_FIRST_START = 13462, SMALL_FIRST = 1151,
    SUMMARY_START = 15049, SUMMARY = 1365,
    SMALL_SUMMARY_START = 12368, SMALL_SUMMARY = 1303,
    STEPS_START = 835, STEP = 1801, /* from segment to segment */
    CALL = 6000, LAUNCHES = 549 /* of any call; of three launches more */
};

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
static int64_t at_least(int64_t least, int64_t x) { return x < least ? least : x; }
static int64_t at_most(int64_t most, int64_t x) { return x > most ? most : x; }

/* Returns how many run at once. Clusters have two multiprocessors, wide blocks one. */
static int64_t count_room(bool wide, int sm_count)
{
    return at_least(1, sm_count / (wide ? 1 : 2));
}

/* The sizes of a call, and a cut: n sequences and heads of so many chunks, and
 * `others` with `rest` chunks in all; s segments after the first of each of the n. Sequences of up
 * to `whole` tokens stay whole. */
struct trial {
    const struct gdn_cu_batch *b;
    int64_t                    H, n, chunks, others, rest, s, each, whole;
    int                        sm_count;
    bool                       small, stops; /* stops: summaries may stop early */
};

/* Describes the call. If the longest length is unknown, all sequences have one length. Otherwise as
 * many as the tokens allow have the longest length, and the others share the rest. */
static struct trial describe(const struct gdn_cuda_shape *s)
{
    const struct gdn_cu_batch *b = s->b;
    const int64_t mean = b->padded ? b->T : b->B ? divide_up(b->N, b->B) : 0, H = s->H;
    const int64_t longest = at_most(b->N, s->longest);
    struct trial  t       = { .b = b, .H = H, .n = b->B * H, .chunks = divide_up(mean, CHUNK),
                              .sm_count = s->sm_count, .small = s->small };
    if (b->padded || 2 * longest <= 3 * mean) return t;
    const int64_t many = b->N / longest, others = b->B - many, left = b->N % longest;
    t.n      = many * H;
    t.chunks = divide_up(longest, CHUNK);
    t.others = others * H;
    t.rest   = at_least(others, divide_up(left, CHUNK)) * H;
    t.whole  = divide_up(left, others);
    return t;
}

/* Returns the blocks or clusters of the call that run at once. */
static int64_t room_of(bool wide, const struct trial *t)
{
    return count_room(wide || t->small, t->sm_count);
}

/* The costs of a round of blocks: to begin, of a chunk, and more of a chunk if many run at once. */
struct costs {
    int64_t start, chunk, more;
};

/* Returns the costs if n run at once. */
static struct costs costs_of(bool wide, const struct trial *t, int64_t n)
{
    const struct costs small   = { SMALL_START, SMALL, SMALL_MORE },
                       cluster = { START, CLUSTER, CLUSTER_MORE },
                       block   = { WIDE_START, WIDE, WIDE_MORE };
    const int64_t      room    = room_of(wide, t);
    struct costs       c       = t->small ? small : wide ? block : cluster;
    c.chunk += c.more * at_most(room * room, 2 * n * n) / (room * room);
    return c;
}

static int64_t time_of_round(bool wide, const struct trial *t, int64_t n, int64_t chunks)
{
    const struct costs c = costs_of(wide, t, n);
    return n ? c.start + chunks * c.chunk : 0;
}

/* Returns the time of n sequences or segments of so many chunks each. */
static int64_t time_of_rounds(bool wide, const struct trial *t, int64_t n, int64_t chunks)
{
    const int64_t room = room_of(wide, t);
    return n / room * time_of_round(wide, t, room, chunks) +
           time_of_round(wide, t, n % room, chunks);
}

/* Returns the time of the other sequences, when all multiprocessors compute them. */
static int64_t time_of_rest(bool wide, const struct trial *t)
{
    const int64_t      room = room_of(wide, t);
    const struct costs c    = costs_of(wide, t, room);
    return (t->rest * c.chunk + t->others * c.start) / room;
}

static int64_t time_of_whole(bool wide, const struct trial *t)
{
    const int64_t room = room_of(wide, t), each = time_of_round(wide, t, room, t->chunks);
    return CALL + at_least(time_of_rounds(wide, t, t->n, t->chunks),
                           t->rest ? t->n * each / room + time_of_rest(wide, t) : 0);
}

static bool is_whole_wide(const struct trial *t)
{
    return !t->small && time_of_whole(true, t) < time_of_whole(false, t);
}

/* Returns true if n later segments are faster in wide blocks. */
static bool is_later_wide(const struct trial *t, int64_t n)
{
    return !t->small && time_of_rounds(true, t, n, t->each) < time_of_rounds(false, t, n, t->each);
}

static struct gdn_cuda_cut no_cut(const struct trial *t)
{
    return (struct gdn_cuda_cut){ .whole = INT64_MAX, .most_long = INT32_MAX, .first = INT64_MAX,
                                  .each = CHUNK, .wide = is_whole_wide(t), .small = t->small };
}

struct gdn_cuda_cut gdn_cuda_no_cut(const struct gdn_cuda_shape *s)
{
    const struct trial t = describe(s);
    return no_cut(&t);
}

/* Counts the segments after first ones, at most, and the sequences that have one or two of them. */
static void count_later(struct gdn_cuda_cut *c, const struct gdn_cu_batch *b)
{
    /* A sequence that has some rounds up by so much; not more of them than there are tokens for. */
    const int64_t up = c->each - 1 - c->first, some = at_most(b->B, b->N / (c->whole + 1));
    c->n_long = b->padded ? b->B : some;
    if (b->padded) {
        c->units   = b->T > c->first ? b->B * divide_up(b->T - c->first, c->each) : 0;
        c->several = b->T > c->first + c->each ? b->B : 0;
        return;
    }
    c->units   = some ? (b->N + up * (up < 0 ? 1 : some)) / c->each : 0;
    c->several = at_most(some, b->N / (c->first + c->each + 1));
}

static struct gdn_cuda_cut make_cut(const struct trial *t, bool wide)
{
    const int64_t       first = (t->chunks - t->s * t->each) * CHUNK;
    struct gdn_cuda_cut c     = { .whole      = at_least(first, t->whole),
                                  .most_long  = INT32_MAX,
                                  .first      = first,
                                  .each       = t->each * CHUNK,
                                  .wide       = wide,
                                  .later_wide = is_later_wide(t, t->n * t->s),
                                  .small      = t->small,
                                  .apart      = wide };
    count_later(&c, t->b);
    return c;
}

/* Returns the time of the first segments, which run beside the summaries. */
static int64_t time_of_first(const struct trial *t, int64_t chunks)
{
    const int64_t room  = count_room(false, t->sm_count);
    const int64_t chunk = FIRST + FIRST_MORE * t->n / room;
    return t->small ? chunks * SMALL_FIRST + SMALL_FIRST_START : chunks * chunk + FIRST_START;
}

/* Returns the end of n tasks of time b, of which `at_once` workers begin now and `others` begin at
 * time a. */
static int64_t end_of_tasks(int64_t n, int64_t b, int64_t at_once, int64_t others, int64_t a,
                            bool later)
{
    int64_t end = later ? a : 0;
    while (end / b * at_once + at_least(0, end - a) / b * others < n) end += b;
    return end;
}

static int64_t time_of_summary(const struct trial *t, int64_t chunks)
{
    return t->small ? chunks * SMALL_SUMMARY + SMALL_SUMMARY_START
                    : chunks * SUMMARY + SUMMARY_START;
}

/* The room for clusters that first segments take. Blocks of small heads go to the parts of the
 * device in turn, and a cluster is within one of them: an odd block in each takes that of two. */
enum { PARTS = 8 };
static int64_t room_taken(const struct trial *t)
{
    return t->small ? (t->n + at_most(PARTS, t->n)) / 2 : t->n;
}

/* Returns the time of first segments and of the summaries beside them, which later have all
 * multiprocessors. `hundredths` of the summaries are brief, and make room for the others. */
static int64_t time_of_summaries(const struct trial *t, int64_t hundredths)
{
    const int64_t room = count_room(false, t->sm_count), taken = room_taken(t);
    const int64_t free = room - taken;
    const int64_t all = t->n * (t->s - 1), n_brief = all * hundredths / 100, n = all - n_brief;
    const int64_t brief   = time_of_summary(t, at_most(t->each, BRIEF_CHUNKS));
    const int64_t start   = all > free ? n_brief * brief / free : 0;
    const int64_t a = time_of_first(t, t->chunks - t->s * t->each), b = time_of_summary(t, t->each);
    const int64_t later = at_least(0, a - start);
    const int64_t end   = start + at_most(end_of_tasks(n, b, free, taken, later, false),
                                          end_of_tasks(n, b, free, taken, later, true));
    const int64_t work  = n * b + n_brief * brief + taken * a;
    return at_least(at_least(a, end), work / room + time_of_rest(false, t));
}

static int64_t time_of_steps(const struct trial *t)
{
    const int64_t columns = t->small ? CHUNK : 2 * CHUNK;
    const int64_t rounds  = divide_up(t->n * (columns / GDN_SEGMENT_COLUMNS), t->sm_count);
    return t->s * rounds * STEP + STEPS_START;
}

static int64_t time_of_segments(const struct trial *t)
{
    const int64_t all = time_of_summaries(t, 0), mean = (all + 2 * time_of_summaries(t, BRIEF)) / 3;
    const int64_t n = t->n * t->s, later = time_of_rounds(is_later_wide(t, n), t, n, t->each);
    return CALL + LAUNCHES + (t->stops ? mean : all) + time_of_steps(t) + later;
}

/* Returns the chunks of a segment for which first segments and `rounds` of summaries take the same
 * time. */
static int64_t balance(const struct trial *t, int64_t rounds)
{
    const int64_t start = time_of_summary(t, 0), summary = time_of_summary(t, 1) - start;
    const int64_t chunk = time_of_first(t, 1) - time_of_first(t, 0);
    const int64_t all   = time_of_first(t, t->chunks) - rounds * start;
    return divide_up(at_least(0, all), t->s * chunk + rounds * summary);
}

/* Finds the best cut that takes less time than `least`; otherwise c stays. wide: first segments in
 * wide blocks. */
static void find_best(struct trial t, int64_t least, bool wide, struct gdn_cuda_cut *c)
{
    const int64_t most = at_most(MOST_SEGMENTS, MOST_FILLS * t.sm_count / t.n);
    for (t.s = 2; t.s <= most && t.s * LEAST_CHUNKS < t.chunks; t.s++)
        for (int rounds = 1; rounds <= 3; rounds++) {
            t.each = at_most(t.chunks / t.s, balance(&t, rounds));
            const int64_t first = t.chunks - t.s * t.each;
            if (t.each < LEAST_CHUNKS || first < 1 || first > MOST_LONGER * t.each) continue;
            const int64_t time = time_of_segments(&t);
            if (time >= least) continue;
            const struct gdn_cuda_cut cut = make_cut(&t, wide);
            if (cut.units > (int64_t)MOST_ROOM * t.sm_count / t.H) continue;
            least = time;
            *c    = cut;
        }
}

/* Finds the best cut if summaries may stop early. c is the best cut if none does. */
static void find_better(struct trial t, struct gdn_cuda_cut *c)
{
    t.stops = true;
    t.each  = c->each / CHUNK;
    t.s     = (t.chunks - c->first / CHUNK) / t.each;
    find_best(t, time_of_segments(&t), c->wide, c);
}

struct gdn_cuda_cut gdn_cuda_cut_like(const struct gdn_cuda_shape *s,
                                      const struct gdn_cuda_cut   *like)
{
    struct gdn_cuda_shape even = *s;
    even.longest               = 0;
    struct trial        t      = describe(&even);
    const int64_t       rest   = t.chunks * CHUNK - like->first;
    struct gdn_cuda_cut c      = no_cut(&t);
    c.whole = c.first = like->first, c.each = like->each;
    if (like->whole) c.whole = like->whole, c.wide = c.apart = like->apart;
    if (like->most_long) c.most_long = like->most_long;
    t.each = c.each / CHUNK;
    count_later(&c, s->b);
    c.later_wide = is_later_wide(&t, rest > 0 ? t.n * divide_up(rest, c.each) : c.units * s->H);
    return c;
}

/* Changes c, the plan for sequences of one length, which takes that time, to one for a batch of
 * which one may have `longest` tokens. If c cuts all, they are cut as that one is. Otherwise those
 * are long that take about as long in a cluster as all tokens do on the whole device. So there are
 * no more of them than there is room for, and they have clusters, which are faster, whatever the
 * others have. They are cut if they take half of the room or less. */
static void expect_long(const struct gdn_cuda_shape *s, int64_t longest, int64_t time,
                        struct gdn_cuda_cut *c)
{
    struct gdn_cuda_shape uneven = *s;
    uneven.longest               = longest;
    struct trial  t     = describe(&uneven);
    const int64_t N     = s->b->N, mean = divide_up(N, s->b->B);
    const int64_t room  = room_of(false, &t), all = N * LONG / 100 * t.H / room;
    const int64_t whole = at_least(mean * UNEVEN / 100, all);
    const bool    cuts  = c->units;
    if (!t.others) t.chunks = divide_up(longest, CHUNK), t.n = t.H;
    t.whole = cuts ? 0 : whole;
    if (longest <= t.whole || time < (c->wide ? LEAST_APART : LEAST_UNEVEN)) return;
    find_best(t, time_of_whole(false, &t) / 100 * WIN_UNEVEN, c->wide, c);
    if (c->units && s->stops) find_better(t, c);
    if (c->units && !cuts) c->most_long = at_least(1, room / (2 * t.H));
    if (c->units || !c->wide) return;
    c->apart  = true;
    c->whole  = whole;
    c->n_long = at_most(s->b->B, N / (whole + 1));
}

struct gdn_cuda_cut gdn_cuda_find_cut(const struct gdn_cuda_shape *s)
{
    const struct gdn_cu_batch *b = s->b;
    const int64_t       room = count_room(false, s->sm_count), H = s->H, longest = s->longest;
    struct trial        t    = describe(s);
    struct gdn_cuda_cut c    = no_cut(&t);
    const int64_t       time = time_of_whole(c.wide, &t);
    const int64_t       win  = t.others ? WIN_UNEVEN : WIN;
    if (t.n == 0) return c;
    if (t.n < room) find_best(t, time / 100 * win, false, &c);
    if (c.units && s->stops) find_better(t, &c);
    if (t.others || b->padded || b->B == 1 || H >= room || (longest && c.units)) return c;
    expect_long(s, longest ? longest : b->N * LONGEST / 100, time, &c);
    return c;
}
