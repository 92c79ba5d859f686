/* SPDX-License-Identifier: Apache-2.0 */
/* Where prefill on Hopper cuts sequences: from shapes alone, never more than there is room for. */
#include "cuda/prefill_segments.h"
#include "ring2.h"

enum { SMS = 132 };

static struct gdn_cuda_cut find(int64_t B, int64_t T, int64_t H, int sm_count)
{
    const struct gdn_cu_batch b = { .B = B, .T = B * T, .N = B * T };
    return gdn_cuda_find_cut(&b, H, 0, sm_count);
}

static int64_t segments_of(const struct gdn_cuda_cut *c, int64_t tokens)
{
    return c->units && tokens > c->first ? 1 + (tokens - c->first + c->each - 1) / c->each : 1;
}

/* Of 132 multiprocessors, as measured: whole, or between so many segments of a sequence. */
static void plans(void)
{
    static const struct {
        int64_t B, T, H, least, most; /* 1: whole */
    } calls[] = {
        { 1, 1024, 8, 1, 1 },   { 1, 2048, 8, 1, 1 },    { 1, 8192, 8, 7, 9 },
        { 1, 32768, 8, 8, 17 },  { 1, 32768, 16, 4, 8 },  { 1, 8192, 32, 2, 3 },
        { 1, 2048, 32, 1, 1 },  { 1, 32768, 32, 2, 5 },  { 1, 32768, 66, 1, 1 },
        { 1, 32768, 64, 1, 1 }, { 4, 8192, 8, 2, 3 },
        { 1, 32768, 4, 14, 18 }, { 1, 131072, 1, 9, 33 }, { 0, 0, 8, 1, 1 },
        { 1, 4096, 32, 1, 3 },  { 1, 4096, 8, 5, 9 },    { 1, 6000, 1, 4, 23 },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const struct gdn_cuda_cut c = find(calls[i].B, calls[i].T, calls[i].H, SMS);
        const int64_t T = calls[i].T, n = segments_of(&c, T);
        CHECK(n >= calls[i].least && n <= calls[i].most, "%d x %d tokens, %d heads: %d segments",
              (int)calls[i].B, (int)T, (int)calls[i].H, (int)n);
        CHECK(c.units == 0 || (c.first % 64 == 0 && c.each % 64 == 0 && !c.wide), "call %d",
              (int)i);
    }
}

/* A batch that is whole if its sequences are of one length: none of these is cut; one that is most
 * of the batch is cut as if it were alone, if the batch is large. */
static void uneven_batches(void)
{
    static const struct {
        int64_t B, T, H, least; /* least: segments of a sequence of all tokens; 1: it stays whole */
    } calls[] = {
        { 32, 4096, 16, 6 }, { 16, 32768, 8, 8 }, { 16, 4096, 32, 2 }, { 4, 8192, 32, 1 },
        { 257, 33, 32, 3 },  { 8, 4096, 64, 1 },  { 64, 8192, 4, 8 },  { 16, 2528, 8, 1 },
        { 17, 16384, 8, 8 },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int64_t             T = calls[i].T, N = calls[i].B * T;
        const struct gdn_cuda_cut c = find(calls[i].B, T, calls[i].H, SMS);
        const int64_t             n = segments_of(&c, N);
        CHECK(calls[i].least == 1 ? n == 1 : n >= calls[i].least, "call %d: %d segments", (int)i,
              (int)n);
        CHECK(c.first >= 2 * T, "call %d: first ones of %d tokens", (int)i, (int)c.first);
    }
}

/* One sequence of T tokens, the others of `others`: cut as if it were alone, where that is clearly
 * faster than a cluster for each; not if they are about as long, nor if they are all the work. */
static void longest_is_said(void)
{
    static const struct {
        int64_t T, others, B, H, least, most;
        bool    wide;
    } calls[] = {
        { 32768, 512, 16, 8, 8, 18, false }, { 20000, 4000, 5, 16, 3, 5, false },
        { 8192, 1, 256, 32, 1, 1, true },    { 65536, 512, 16, 32, 2, 5, false },
        { 32768, 33, 129, 4, 14, 18, false }, { 4096, 512, 8, 32, 1, 1, false },
        { 2048, 100, 8, 8, 1, 1, false },    { 65536, 64, 9, 66, 1, 1, false },
        { 8192, 2600, 4, 8, 2, 8, false },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int64_t             N = calls[i].T + (calls[i].B - 1) * calls[i].others;
        const struct gdn_cu_batch b = { .B = calls[i].B, .T = N, .N = N };
        const struct gdn_cuda_cut c = gdn_cuda_find_cut(&b, calls[i].H, calls[i].T, SMS);
        const int64_t             n = segments_of(&c, calls[i].T);
        CHECK(n >= calls[i].least && n <= calls[i].most, "call %d: %d segments", (int)i, (int)n);
        CHECK(segments_of(&c, calls[i].others) == 1, "call %d: short ones are cut", (int)i);
        CHECK(c.wide == calls[i].wide, "call %d: wide blocks: %d", (int)i, c.wide);
    }
}

/* One that is hardly longer than the others makes no difference. */
static void about_one_length(void)
{
    for (int64_t T = 500; T < 70000; T += T / 2)
        for (int64_t B = 2; B < 20; B++) {
            const struct gdn_cu_batch b    = { .B = B, .T = B * T, .N = B * T };
            const struct gdn_cuda_cut even = find(B, T, 4, SMS),
                                      said = gdn_cuda_find_cut(&b, 4, T / 5 * 7, SMS);
            if (even.first > 2 * T) continue; /* for lengths that are unknown */
            CHECK(even.first == said.first && even.each == said.each, "%d x %d tokens", (int)B,
                  (int)T);
        }
}

/* gdn.h: at most five of a head for each multiprocessor. */
static void workspace_is_bounded(void)
{
    static const int sms[] = { 1, 2, 16, 33, 78, 114, 132 };
    for (int i = 0; i < 7; i++)
        for (int64_t n = 1; n < 70; n++)
            for (int64_t T = 100; T < 1 << 20; T += T / 3) {
                const struct gdn_cu_batch b   = { .B = 9, .T = T, .N = T };
                const struct gdn_cuda_cut one = find(1, T, n, sms[i]), many = find(n, T, 1, sms[i]),
                                          some = find(n, T, 7, sms[i]),
                                          said = gdn_cuda_find_cut(&b, n, T / 5 * 3, sms[i]);
                CHECK(one.units * n <= 5 * sms[i], "%d heads: %d", (int)n, (int)one.units);
                CHECK(said.units * n <= 5 * sms[i], "%d heads: %d", (int)n, (int)said.units);
                CHECK(many.units <= 5 * sms[i], "%d rows: %d", (int)n, (int)many.units);
                CHECK(some.units * 7 <= 5 * sms[i], "7 heads, %d rows: %d", (int)n,
                      (int)some.units);
            }
}

/* Rows have all their tokens, so as many segments as were said. */
static void rows(void)
{
    for (int64_t T = 1; T < 3000; T += 7) {
        const struct gdn_cuda_cut like = { .first = 192, .each = 128 };
        const struct gdn_cu_batch b    = { .B = 3, .T = T, .N = 3 * T, .padded = 1 };
        const int64_t n = T > 192 ? (T - 192 + 127) / 128 : 0;
        const struct gdn_cuda_cut c    = gdn_cuda_cut_like(&b, 4, SMS, &like);
        CHECK(c.units == 3 * n, "%d tokens: %d segments", (int)T, (int)c.units);
    }
}

/* However tokens are dealt to sequences, there are no more segments than was said. */
static void any_lengths(void)
{
    for (int i = 0; i < 20000; i++) {
        const int64_t       B = 1 + i % 9, mean = 1 + i % 7 * 1500;
        struct gdn_cuda_cut like = { .first = 64 * (1 + i % 11), .each = 64 * (1 + i % 5) };
        const struct gdn_cu_batch b = { .B = B, .T = B * mean, .N = B * mean };
        const struct gdn_cuda_cut c =
            mean > 4000 && i % 2 ? gdn_cuda_find_cut(&b, 4, i % 3 * mean * 2, SMS)
                                 : gdn_cuda_cut_like(&b, 4, SMS, &like);
        int64_t rest = B * mean, n = 0, several = 0;
        for (int64_t s = 0; s < B; s++) {
            const int64_t more   = (int64_t)ring2_uniform(0, 3) * c.each;
            int64_t       length = (int64_t)ring2_uniform(0, (double)(2 * mean));
            if (i % 3 && c.units) length = c.first + 1 + more;
            if (length > rest) length = rest;
            rest -= length;
            if (length > c.first) n += (length - c.first + c.each - 1) / c.each;
            if (c.units && length > c.first + c.each) several++;
        }
        CHECK(n <= c.units, "first %d, each %d, %d of %d tokens: %d segments, %d were said",
              (int)c.first, (int)c.each, (int)B, (int)(B * mean), (int)n, (int)c.units);
        CHECK(several <= c.several, "first %d, each %d: %d sequences of several, %d were said",
              (int)c.first, (int)c.each, (int)several, (int)c.several);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "segments: plans", plans },
        { "segments: uneven batches", uneven_batches },
        { "segments: the longest is said", longest_is_said },
        { "segments: about one length", about_one_length },
        { "segments: the workspace is bounded", workspace_is_bounded },
        { "segments: rows", rows },
        { "segments: any lengths", any_lengths },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
