/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the work of a call falls to threads, counted and not timed: each item goes to the thread
 * that is done first, as in the pool, and costs its tokens times gdn_rule_cost().
 */
#include <stdio.h>

#include "cpu/rule.h"
#include "ring2.h"

enum { MOST_THREADS = 64, MOST_SEQS = 64 };

struct shape {
    const char *what;
    int Hk, Hv, K, V, n_seqs;
    int64_t lengths[5]; /* of the first sequences; all later ones have the last of these */
};

static const struct shape shapes[] = {
    { "1 sequence, heads 8/8", 8, 8, 128, 128, 1, { 2048 } },
    { "1 sequence, heads 2/8", 2, 8, 128, 128, 1, { 2048 } },
    { "1 sequence, heads 16/32", 16, 32, 128, 128, 1, { 2048 } },
    { "1 sequence, heads 16/48", 16, 48, 128, 128, 1, { 2048 } },
    { "1 sequence, heads 1/1", 1, 1, 256, 256, 1, { 2048 } },
    { "3 sequences, heads 4/12", 4, 12, 128, 64, 3, { 500, 500, 500 } },
    { "64 sequences, heads 16/32", 16, 32, 128, 128, 64, { 1, 1, 1, 1, 1 } },
    { "a prompt and 16 tokens, heads 4/8", 4, 8, 64, 64, 17, { 512, 1, 1, 1, 1 } },
    { "16 tokens and a prompt, heads 16/32", 16, 32, 128, 128, 17, { 1, 2048, 1, 1, 1 } },
    { "2 prompts and 30 tokens, heads 2/8", 2, 8, 128, 128, 32, { 700, 1, 900, 1, 1 } },
    { "5 prompts, heads 2/8", 2, 8, 128, 128, 5, { 300, 2000, 17, 900, 1200 } },
};

/* The rule of sequences [from, to) of a shape. */
static struct gdn_rule rule_of(const struct shape *s, struct gdn_seq *seqs, int from, int to)
{
    for (int b = from; b < to; b++) {
        const int64_t T = s->lengths[b < 4 ? b : 4];
        seqs[b - from] = (struct gdn_seq){ .n_tokens = T, .n_valid = T, .total = T };
    }
    return (struct gdn_rule){
        .Hq = s->Hk, .Hk = s->Hk, .Hv = s->Hv, .H = s->Hv, .K = s->K, .V = s->V, .n_seqs = to - from
    };
}

static int longest(const struct gdn_rule *r)
{
    int at = 0;
    for (int b = 1; b < r->n_seqs; b++)
        if (r->seqs[b].n_valid > r->seqs[at].n_valid) at = b;
    return at;
}

struct times {
    int64_t last, first; /* when the last thread is done, and the first */
    double least;        /* no schedule of whole strips has its last thread done before */
};

static struct times simulate(struct gdn_rule *r, const struct gdn_seq *seqs,
                             const struct gdn_kernels *kr, int n_threads)
{
    int64_t busy[MOST_THREADS] = { 0 }, sum = 0;
    struct times t = { 0 };
    gdn_rule_cut(r, kr, n_threads); /* what the workspace is made for */
    const int before = r->part_strips;
    r->seqs = seqs;
    gdn_rule_cut(r, kr, n_threads);
    CHECK(r->part_strips <= before, "%d strips, but scratch for %d", r->part_strips, before);
    const int first = longest(r);
    for (int64_t i = 0; i < gdn_rule_items(r); i++) {
        const struct gdn_rule_item item = gdn_rule_item_at(r, first, i);
        int next = 0;
        for (int n = 1; n < n_threads; n++)
            if (busy[n] < busy[next]) next = n;
        busy[next] += item.seq->n_valid * gdn_rule_cost(kr, item.last - item.first);
    }
    t.first = t.last = busy[0];
    for (int n = 1; n < n_threads; n++) {
        t.first = busy[n] < t.first ? busy[n] : t.first;
        t.last = busy[n] > t.last ? busy[n] : t.last;
    }
    int64_t n_long = 0;
    for (int b = 0; b < r->n_seqs; b++) {
        sum += seqs[b].n_valid;
        n_long += seqs[b].n_valid == seqs[first].n_valid;
    }
    const int64_t strips = r->group_heads * r->n_strips, all = n_long * r->n_groups * strips;
    const double even = (double)(sum * r->n_groups * gdn_rule_cost(kr, strips)) / n_threads;
    const int64_t one = seqs[first].n_valid * gdn_rule_cost(kr, (all + n_threads - 1) / n_threads);
    t.least = even > (double)one ? even : (double)one;
    return t;
}

/* Every column of every head of every sequence once, in items that are not empty. */
static void items_cover_all(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int n = 1; n <= MOST_THREADS; n++) {
            const struct gdn_kernels kr = { .strip = 32 };
            struct gdn_seq seqs[MOST_SEQS];
            struct gdn_rule r = rule_of(&shapes[i], seqs, 0, shapes[i].n_seqs);
            int64_t next = 0, last_group = -1;
            r.seqs = seqs;
            gdn_rule_cut(&r, &kr, n);
            const int64_t strips = r.group_heads * r.n_strips;
            for (int64_t j = 0; j < gdn_rule_items(&r); j++) {
                const struct gdn_rule_item item = gdn_rule_item_at(&r, 0, j);
                const int64_t group = (item.seq - seqs) * r.n_groups + item.group;
                CHECK(item.last > item.first && item.last <= strips, "%s, item %d: %d to %d",
                      shapes[i].what, (int)j, item.first, item.last);
                CHECK(group * strips + item.first == next, "%s, item %d begins at %d",
                      shapes[i].what, (int)j, item.first);
                CHECK(item.first == 0 || group == last_group, "%s, item %d: other group",
                      shapes[i].what, (int)j);
                next = group * strips + item.last;
                last_group = group;
            }
            CHECK(next == r.n_seqs * r.n_groups * strips, "%s: some left", shapes[i].what);
        }
}

/*
 * Sequences of one length are done within 1 + 16 / width of a strip of the least time: single
 * strips come in ceil(strips / threads) rounds of width + 16, where no schedule takes less than
 * as many widths and 16. What is chosen is no later than that.
 */
static void equal_sequences_are_balanced(void)
{
    static const int widths[] = { 32, 16, 8 };
    for (int i = 0; i < 7 * 3; i++) {
        const struct shape *s = &shapes[i % 7];
        const struct gdn_kernels kr = { .strip = widths[i / 7] };
        double worst = 0;
        for (int n = 1; n <= MOST_THREADS; n++) {
            struct gdn_seq seqs[MOST_SEQS];
            struct gdn_rule r = rule_of(s, seqs, 0, s->n_seqs);
            const struct times t = simulate(&r, seqs, &kr, n);
            const double x = (double)t.last / t.least;
            worst = x > worst ? x : worst;
            CHECK(x <= 1 + 16.0 / kr.strip, "%s, %d threads: %.2f of the least time", s->what, n,
                  x);
        }
        if (kr.strip == 32)
            printf("  %s: 1 to 64 threads: at most %.2f of the least time\n", s->what, worst);
    }
}

/* One sequence with 8 heads, each with a key or not, keeps 16 threads at work to the end. */
static void eight_heads_fill_16_threads(void)
{
    for (int i = 0; i < 2; i++) {
        const struct gdn_kernels kr = { .strip = 32 };
        struct gdn_seq seqs[MOST_SEQS];
        struct gdn_rule r = rule_of(&shapes[i], seqs, 0, 1);
        const struct times t = simulate(&r, seqs, &kr, 16);
        CHECK(t.first == t.last, "%s: the first thread is done at %.2f", shapes[i].what,
              (double)t.first / (double)t.last);
    }
}

/*
 * A batch takes no longer than two calls: one of its longest sequence, and one of the others. (They
 * share one cut. Single strips may cost the others 16 / width more.)
 */
static void mixed_sequences_lose_nothing(void)
{
    for (size_t i = 7; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        const struct gdn_kernels kr = { .strip = 32 };
        double worst = 0;
        for (int n = 1; n <= MOST_THREADS; n++) {
            struct gdn_seq seqs[MOST_SEQS];
            struct gdn_rule all = rule_of(s, seqs, 0, s->n_seqs);
            const struct times t = simulate(&all, seqs, &kr, n);
            const int at = longest(&all);
            struct gdn_seq one[1] = { seqs[at] };
            struct gdn_rule alone = all, rest = all;
            alone.part_strips = rest.part_strips = 0;
            alone.seqs = rest.seqs = NULL;
            alone.n_seqs = 1, rest.n_seqs = all.n_seqs - 1;
            const int64_t a = simulate(&alone, one, &kr, n).last;
            seqs[at] = seqs[rest.n_seqs];
            const int64_t b = simulate(&rest, seqs, &kr, n).last;
            const double x = (double)t.last / t.least;
            worst = x > worst ? x : worst;
            CHECK(t.last <= a + b + b * GDN_CHUNK / kr.strip, "%s, %d threads: %.3f of its parts",
                  s->what, n, (double)t.last / (double)(a + b));
        }
        printf("  %s: 1 to 64 threads: at most %.2f of the least time\n", s->what, worst);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "items cover all", items_cover_all },
        { "sequences of one length: nearly even", equal_sequences_are_balanced },
        { "one sequence, 8 heads, 16 threads", eight_heads_fill_16_threads },
        { "mixed lengths lose nothing", mixed_sequences_lose_nothing },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
