/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a call on Hopper goes in segments (segments.cuh) or whole: whichever takes less
 * time by plan_model.h, and segments only where they win clearly. If shapes give the lengths of all
 * sequences, the cut is found here. The lengths of a packed batch are in device memory, so a kernel
 * finds its cut (choose_cut.cuh). Then host code decides what must be launched and the room for
 * it. */
#include "cuda/prefill/sm90/args.h"
#include "cuda/prefill/sm90/plan_model.h"
#include "cuda/prefill/sm90/plan_segments.h"

/* The workspace has room for so many segments of a head for each multiprocessor, however long
 * sequences are (gdn.h). */
enum { CHUNK = 64, MOST_ROOM = 5 };

/* Sequences of a packed batch may be cut, or have a launch of their own in clusters, under two
 * conditions. They have UNEVEN hundredths of the mean length. In a cluster they would take LONG
 * hundredths of the time that all tokens take on the whole device; LONG_APART if the others have
 * wide blocks. A wide block takes 1.6 times as long. If the call gives no lengths, an even batch
 * must take LEAST_UNEVEN nanoseconds: launches without work are then a small part. */
enum { UNEVEN = 125, LONG = 80, LONG_APART = 60, LEAST_UNEVEN = 70000, LEAST_APART = 120000 };

/* A packed batch of at most STEP_TOKENS tokens, and STEP_MEAN for each sequence, counts as a step
 * of an engine. That is one prompt, and sequences of one token, which decode takes. STEP_DECODE,
 * IDLE: nanoseconds of decode for a head of such a sequence, and of launches without work. */
enum { STEP_TOKENS = 16384, STEP_MEAN = 256, STEP_DECODE = 31, IDLE = 15000 };

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
static int64_t at_least(int64_t least, int64_t x) { return x < least ? least : x; }
static int64_t at_most(int64_t most, int64_t x) { return x > most ? most : x; }

/* Returns the batch as n sequences of so many tokens, and others that share the remaining
 * tokens. */
static struct gdn_plan_batch describe(const struct gdn_cuda_shape *s, int64_t n, int64_t tokens)
{
    const struct gdn_cu_batch *b = s->b;
    const int64_t others = b->B - n, left = b->padded ? 0 : b->N - n * tokens;
    const int64_t rest = others > 0 ? at_least(others, divide_up(at_least(0, left), CHUNK)) : 0;
    struct gdn_plan_batch p = {
        .H = (float)s->H, .sms = (float)s->sm_count, .small = s->small, .stops = s->stops
    };
    p.longest = (float)divide_up(tokens, CHUNK);
    p.n = (float)(n * s->H);
    p.chunks = p.n * p.longest;
    p.others = (float)(others * s->H);
    p.rest = (float)(rest * s->H);
    p.n_long = n;
    p.tokens = n * tokens;
    p.least_long = tokens;
    p.most_units = s->sm_count * MOST_ROOM / at_least(1, s->H);
    return p;
}

/* Returns the batch, if all sequences have one length. */
static struct gdn_plan_batch describe_even(const struct gdn_cuda_shape *s)
{
    const struct gdn_cu_batch *b = s->b;
    return describe(s, b->B, b->padded ? b->T : b->B ? divide_up(b->N, b->B) : 0);
}

static struct gdn_cuda_cut no_cut(const struct gdn_plan_batch *p)
{
    return (struct gdn_cuda_cut){ .whole = INT64_MAX,
                                  .first = INT64_MAX,
                                  .each = CHUNK,
                                  .wide = !p->small && plan_whole(p, true) < plan_whole(p, false),
                                  .small = p->small };
}

struct gdn_cuda_cut gdn_cuda_no_cut(const struct gdn_cuda_shape *s)
{
    const struct gdn_plan_batch p = describe_even(s);
    return no_cut(&p);
}

/* Returns true if n later segments are faster in wide blocks. */
static bool is_later_wide(const struct gdn_plan_batch *p, float n, float chunks)
{
    return !p->small && plan_rounds(p, true, n, chunks) < plan_rounds(p, false, n, chunks);
}

/* Counts the most segments behind first ones, and the sequences that have one or two of them. */
static void count_later(struct gdn_cuda_cut *c, const struct gdn_cu_batch *b)
{
    /* At most `some` sequences round up, by `up` each. The number of tokens limits how many
     * there are. */
    const int64_t up = c->each - 1 - c->first, some = at_most(b->B, b->N / (c->whole + 1));
    c->n_long = b->padded ? b->B : some;
    if (b->padded) {
        c->units = b->T > c->first ? b->B * divide_up(b->T - c->first, c->each) : 0;
        c->several = b->T > c->first + c->each ? b->B : 0;
        return;
    }
    c->units = some ? (b->N + up * (up < 0 ? 1 : some)) / c->each : 0;
    c->several = at_most(some, b->N / (c->first + c->each + 1));
}

/* Returns true if the best cut is clearly faster than whole sequences in either form. */
static bool wins(const struct gdn_plan_batch *p, struct gdn_plan_tried best)
{
    return plan_wins(&best, fminf(plan_whole(p, true), plan_whole(p, false)), GDN_PLAN_WIN);
}

/* Makes c a cut of all sequences at the same places. */
static void cut_all(struct gdn_cuda_cut *c, const struct gdn_cu_batch *b,
                    const struct gdn_plan_batch *p, const struct gdn_plan_cut *cut)
{
    c->wide = false;
    c->whole = c->first = (int64_t)cut->first * CHUNK;
    c->each = (int64_t)cut->each * CHUNK;
    c->later_wide = is_later_wide(p, p->n * cut->s, cut->each);
    count_later(c, b);
}

struct gdn_cuda_cut gdn_cuda_cut_like(const struct gdn_cuda_shape *s,
                                      const struct gdn_cuda_cut *like)
{
    const struct gdn_plan_batch p = describe_even(s);
    const float each = (float)(like->each / CHUNK);
    struct gdn_cuda_cut c = no_cut(&p);
    c.whole = c.first = like->first, c.each = like->each;
    c.win = like->win, c.planned = like->win > 0;
    if (like->whole) c.whole = c.split = like->whole, c.wide = c.apart = like->apart;
    count_later(&c, s->b);
    if (c.win) c.several = c.n_long, c.units = at_most(MOST_ROOM * s->sm_count / s->H, c.units);
    c.later_wide = is_later_wide(&p, (float)(c.units * s->H), each);
    return c;
}

/* ---- Steps of an engine --------------------------------------------------------------------- */

static bool may_be_step(const struct gdn_cuda_shape *s)
{
    const struct gdn_cu_batch *b = s->b;
    return !b->padded && b->B > 1 && b->N <= STEP_TOKENS && b->N <= b->B * STEP_MEAN;
}

/* Returns the batch as one prompt, as long as it can be: the other sequences have a token each. */
static struct gdn_plan_batch describe_prompt(const struct gdn_cuda_shape *s)
{
    const int64_t most = at_least(1, s->b->N - s->b->B + 1);
    struct gdn_plan_batch p = describe(s, 1, s->longest ? at_most(most, s->longest) : most);
    p.others = p.rest = 0;
    return p;
}

/* Returns the time of a prompt, and of decode on the multiprocessors that the prompt leaves
 * free. */
static float step_time(const struct gdn_cuda_shape *s, const struct gdn_plan_batch *prompt,
                       bool wide)
{
    const float time = plan_whole(prompt, wide);
    const float share = fminf(1, prompt->n / plan_room(prompt, wide));
    const float decode = (float)((s->b->B - 1) * s->H) * STEP_DECODE;
    return fmaxf(time, time * share + decode);
}

/* Returns true if a step is faster in wide blocks. An even batch may then take 1.6 times as
 * long. */
static bool is_step_wide(const struct gdn_cuda_shape *s)
{
    const struct gdn_plan_batch prompt = describe_prompt(s);
    return step_time(s, &prompt, true) < step_time(s, &prompt, false);
}

/* Compares two losses: of a step with a long prompt if sequences stay whole, and of an even batch
 * by launches without work. Returns true if the first may be larger. */
static bool is_step_long(const struct gdn_cuda_shape *s, const struct gdn_plan_batch *even,
                         bool wide)
{
    const struct gdn_plan_batch prompt = describe_prompt(s);
    const float cut = plan_best(&prompt).times.all, time = plan_whole(even, wide);
    return step_time(s, &prompt, wide) / cut > (time + IDLE) / time;
}

/* ---- Batches of any lengths ------------------------------------------------------------------ */

/* Returns true if a batch gets a plan whose lengths the call does not give, and which as an even
 * batch is not cut. */
static bool is_worth_a_plan(const struct gdn_cuda_shape *s, const struct gdn_plan_batch *even,
                            bool wide)
{
    if (may_be_step(s)) return is_step_long(s, even, wide);
    return plan_whole(even, wide) >= (float)(wide ? LEAST_APART : LEAST_UNEVEN);
}

/* Changes c, the plan for a packed batch of one length, to one for any lengths. If even sequences
 * are cut, all but short ones may be. If not, a sequence is long if in a cluster it takes about as
 * long as all tokens do on the whole device. There is room for all such sequences, so they have
 * clusters, which are faster, whatever form the others have. */
static void leave_open(const struct gdn_cuda_shape *s, const struct gdn_plan_batch *even,
                       struct gdn_cuda_cut *c)
{
    const struct gdn_cu_batch *b = s->b;
    const int64_t N = b->N, mean = divide_up(N, b->B), room = at_least(1, s->sm_count / 2);
    const int64_t longest = s->longest ? at_most(N, s->longest) : N, all = N * s->H / room;
    const bool cuts = c->units, apart = c->wide;
    const struct gdn_plan_batch p = describe(s, 1, longest);
    struct gdn_cuda_cut open = *c;
    open.whole = cuts ? at_most(mean - 1, all * LONG / 100)
                      : at_least(mean * UNEVEN / 100, all * LONG / 100);
    open.split = apart ? at_least(mean * UNEVEN / 100, all * LONG_APART / 100) : open.whole;
    open.n_long = at_most(b->B, N / (open.split + 1));
    open.apart = apart;
    if (longest <= open.split) return;
    if (!cuts && !s->longest && !is_worth_a_plan(s, even, apart)) return;
    if (cuts || wins(&p, plan_best(&p))) {
        open.win = GDN_PLAN_WIN;
        open.several = at_most(b->B, N / (open.whole + 1));
        open.units = GDN_PLAN_FILLS * s->sm_count / s->H + open.several;
    }
    open.planned = apart || open.win;
    *c = open;
}

struct gdn_cuda_cut gdn_cuda_find_cut(const struct gdn_cuda_shape *s)
{
    const struct gdn_cu_batch *b = s->b;
    const struct gdn_plan_batch p = describe_even(s);
    struct gdn_cuda_cut c = no_cut(&p);
    if (p.n == 0) return c;
    const struct gdn_plan_tried best = plan_best(&p);
    if (wins(&p, best)) cut_all(&c, b, &p, &best.cut);
    if (b->padded || b->B == 1 || s->H >= s->sm_count / 2) return c;
    if (!c.units && !c.small && may_be_step(s)) c.wide = is_step_wide(s);
    leave_open(s, &p, &c);
    return c;
}
