/* SPDX-License-Identifier: Apache-2.0 */
#include "text/bpe_merge.h"

/* ---- The table ------------------------------------------------------------------------------- */

static size_t hash_pair(int32_t left, int32_t right)
{
    const uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15;
    return (size_t)(h >> 20);
}

/* Returns the place of a pair, or the free one where it belongs. */
static struct merge *find(const struct merges *m, int32_t left, int32_t right)
{
    size_t i = hash_pair(left, right) & (m->n - 1);
    while (m->table[i].used && (m->table[i].left != left || m->table[i].right != right))
        i = (i + 1) & (m->n - 1);
    return &m->table[i];
}

bool merges_make(struct merges *m, size_t n, struct memory *memory)
{
    for (m->n = 16; m->n < 2 * n + 2;) m->n *= 2; /* at most half full */
    m->table = memory_get(memory, m->n * sizeof *m->table);
    return m->table;
}

void merges_add(struct merges *m, const struct merge *merge)
{
    *find(m, merge->left, merge->right) = *merge;
}

/* ---- The queue ------------------------------------------------------------------------------- */

/* A pair of tokens that can be merged, unless one of them has changed since. */
struct merge_pair {
    int64_t at; /* of the left token */
    int32_t rank, left, right, merged;
};

static bool comes_first(const struct merge_pair *a, const struct merge_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct merge_room *r, struct merge_pair pair)
{
    int64_t i = r->n_queue++;
    for (; i > 0 && comes_first(&pair, &r->queue[(i - 1) / 2]); i = (i - 1) / 2)
        r->queue[i] = r->queue[(i - 1) / 2];
    r->queue[i] = pair;
}

static struct merge_pair pop(struct merge_room *r)
{
    const struct merge_pair first = r->queue[0], last = r->queue[--r->n_queue];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < r->n_queue; i = child) {
        if (child + 1 < r->n_queue && comes_first(&r->queue[child + 1], &r->queue[child])) child++;
        if (!comes_first(&r->queue[child], &last)) break;
        r->queue[i] = r->queue[child];
    }
    r->queue[i] = last;
    return first;
}

/* ---- Merging --------------------------------------------------------------------------------- */

enum { GONE = -1 }; /* a token that its left neighbour has taken in */

bool merge_make_room(struct merge_room *r, int64_t n, struct memory *memory)
{
    r->queue = memory_get(memory, 3 * (size_t)n * sizeof *r->queue); /* n pairs, and 2 a merge */
    r->before = memory_get(memory, (size_t)n * sizeof *r->before);
    r->after = memory_get(memory, (size_t)n * sizeof *r->after);
    return r->queue && r->before && r->after;
}

/* Puts the pair that begins at `at` into the queue if it is in the list. */
static void consider(const struct merges *m, struct merge_room *r, const int32_t *tokens,
                     int64_t at, int64_t n)
{
    if (at < 0 || r->after[at] == n) return;
    const int32_t left = tokens[at], right = tokens[r->after[at]];
    const struct merge *found = find(m, left, right);
    if (found->used) push(r, (struct merge_pair){ at, found->rank, left, right, found->merged });
}

int64_t merge_all(const struct merges *m, struct merge_room *r, int32_t *tokens, int64_t n)
{
    int64_t left = 0;
    r->n_queue = 0;
    for (int64_t i = 0; i < n; i++) r->before[i] = i - 1, r->after[i] = i + 1;
    for (int64_t i = 0; i + 1 < n; i++) consider(m, r, tokens, i, n);
    while (r->n_queue) {
        const struct merge_pair p = pop(r);
        const int64_t next = r->after[p.at];
        if (tokens[p.at] != p.left || next == n || tokens[next] != p.right) continue;
        tokens[p.at] = p.merged;
        tokens[next] = GONE;
        r->after[p.at] = r->after[next];
        if (r->after[next] < n) r->before[r->after[next]] = p.at;
        consider(m, r, tokens, r->before[p.at], n);
        consider(m, r, tokens, p.at, n);
    }
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] != GONE) tokens[left++] = tokens[i];
    return left;
}
