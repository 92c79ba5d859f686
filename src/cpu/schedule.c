/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The items of the rule: how many strips make an item, and which item comes when. None of it
 * changes a bit of any result (G2).
 */
#include <math.h>

#include "cpu/rule.h"

int64_t gdn_rule_longest(const struct gdn_rule *r)
{
    int64_t longest = 0;
    for (int64_t b = 1; b < r->n_seqs; b++)
        if (r->seqs[b].n_valid > r->seqs[longest].n_valid) longest = b;
    return longest;
}

int64_t gdn_rule_cost(const struct gdn_kernels *kr, int64_t strips)
{
    return strips * kr->strip + GDN_CHUNK;
}

/* The load of a batch, as it is cut: `whole` sequences of the longest length, and one sequence with
 * the rest of all tokens. */
struct load {
    int64_t longest, whole, rest;
};

static struct load load_of(const struct gdn_rule *r)
{
    if (!r->seqs || r->n_seqs == 0) return (struct load){ 1, r->n_seqs, 0 }; /* not read yet */
    int64_t sum = 0;
    const int64_t most = r->seqs[gdn_rule_longest(r)].n_valid, longest = most > 0 ? most : 1;
    for (int64_t b = 0; b < r->n_seqs; b++) sum += r->seqs[b].n_valid;
    return (struct load){ longest, sum / longest, sum % longest };
}

/* Returns when the last thread is done, in tokens of an item. Whole sequences take rounds of one
 * item per thread. Items of the rest fill the gaps of the last round, and then take rounds of their
 * own. */
static int64_t tokens_to_end(const struct load *l, int64_t items, int n_threads)
{
    const int64_t rounds = (l->whole * items + n_threads - 1) / n_threads;
    const int64_t gaps = rounds * n_threads - l->whole * items;
    const int64_t inside = l->rest > 0 ? gaps * (l->longest / l->rest) : items;
    const int64_t more = items > inside ? (items - inside + n_threads - 1) / n_threads : 0;
    return rounds * l->longest + more * l->rest;
}

/* Returns the strips of an item, at most `most`, with which the last thread is done soonest. Of
 * equal ones it takes the largest. */
static int64_t best_cut(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t strips,
                        int64_t most, int n_threads)
{
    const struct load l = load_of(r);
    double least = INFINITY;
    int64_t best = most;
    for (int64_t each = most; each > 0; each--) {
        const int64_t items = r->n_groups * ((strips + each - 1) / each); /* of a sequence */
        const double time =
            (double)tokens_to_end(&l, items, n_threads) * (double)gdn_rule_cost(kr, each);
        if (time >= least) continue;
        least = time;
        best = each;
    }
    return best;
}

void gdn_rule_cut(struct gdn_rule *r, const struct gdn_kernels *kr, int n_threads)
{
    const int most = r->Hq > r->Hk ? r->Hq : r->Hk, least = r->Hq + r->Hk - most;
    r->group_heads = most % least == 0 ? r->H / most : 1;
    r->n_groups = r->H / r->group_heads;
    r->n_strips = (r->V + kr->strip - 1) / kr->strip;

    /* No item with more state than the L2 cache takes, nor with more than scratch was made for. */
    const int64_t strips = (int64_t)r->group_heads * r->n_strips;
    const int64_t bytes = (int64_t)r->K * kr->strip * (int64_t)sizeof(float); /* of a strip */
    const int64_t fits = GDN_ITEM_STATE_BYTES / bytes;
    int64_t each = fits < 1 ? 1 : fits < strips ? fits : strips;
    if (r->part_strips > 0 && r->part_strips < each) each = r->part_strips;
    each = best_cut(r, kr, strips, each, n_threads);
    r->part_strips = (int)each;
    r->n_parts = (int)((strips + each - 1) / each);
}

int64_t gdn_rule_items(const struct gdn_rule *r) { return r->n_seqs * r->n_groups * r->n_parts; }

struct gdn_rule_item gdn_rule_item_at(const struct gdn_rule *r, int64_t first, int64_t i)
{
    const int64_t each = (int64_t)r->n_groups * r->n_parts;
    const int strips = r->group_heads * r->n_strips, part = (int)(i % r->n_parts);
    struct gdn_rule_item item = { .seq = &r->seqs[(i / each + first) % r->n_seqs] };
    item.group = (int)(i % each / r->n_parts);
    item.first = part * r->part_strips;
    item.last = item.first + r->part_strips < strips ? item.first + r->part_strips : strips;
    return item;
}

struct gdn_rule_piece gdn_rule_piece_at(const struct gdn_rule *r, const struct gdn_kernels *kr,
                                        const struct gdn_rule_item *item, int strip)
{
    struct gdn_rule_piece p = { .head = gdn_rule_head(r, item->group, strip / r->n_strips) };
    const int end = (strip / r->n_strips + 1) * r->n_strips;
    p.first = strip;
    p.last = end < item->last ? end : item->last;
    p.col = strip % r->n_strips * kr->strip;
    p.n = (p.last - p.first) * kr->strip;
    if (p.n > r->V - p.col) p.n = r->V - p.col;
    return p;
}
