/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a batch, and their gates and rows; see chunk_stage.h. */
#include "cpu/chunk_stage.h"

#include <string.h>

#include "core/tensor_check.h"

size_t gdn_stage_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    return gdn_align64(gdn_plan_bytes(plan, tokens)) +
           gdn_align64((size_t)(plan->B + 1) * sizeof(int64_t));
}

gdn_status gdn_stage_chunks(gdn_ctx *ctx, const struct gdn_tokens *tokens, int64_t C, void *memory,
                            struct gdn_plan *plan, struct gdn_chunk_list *list)
{
    const size_t bytes = gdn_align64(gdn_plan_bytes(plan, tokens));
    TRY(gdn_plan_batch(ctx, tokens, &(struct gdn_plan_pools){ -1, -1, -1, false, false }, memory,
                       plan));
    *list = (struct gdn_chunk_list){ plan, (int64_t *)(void *)((char *)memory + bytes), C };
    list->first[0] = 0;
    for (int64_t b = 0; b < plan->B; b++) {
        const int64_t T = plan->seqs[b].n_tokens;
        list->first[b + 1] = list->first[b] + T / C + (T % C != 0);
    }
    return GDN_OK;
}

struct gdn_chunk gdn_chunk_of(const struct gdn_chunk_list *list, const struct gdn_seq *seq,
                              int64_t number)
{
    struct gdn_chunk c = { .seq = seq, .number = number };
    c.t0 = (number - list->first[seq->row]) * list->C;
    c.n = seq->n_valid - c.t0;
    c.n = c.n < 0 ? 0 : c.n > list->C ? list->C : c.n;
    return c;
}

struct gdn_chunk gdn_chunk_at(const struct gdn_chunk_list *list, int64_t number)
{
    int64_t low = 0, high = list->plan->B; /* first[low] <= number < first[high] */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (list->first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return gdn_chunk_of(list, &list->plan->seqs[low], number);
}

/* Loads sums in float64, as in the loops; what is exponentiated is never a sum past a forgetting
 * gate. */
void gdn_load_chunk_gates(struct gdn_chunk_gates *c, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, const struct gdn_chunk *chunk, int head)
{
    const int n = (int)chunk->n;
    double sum = 0;
    memset(c, 0, sizeof *c);
    gdn_rule_load_gates(r, kr, chunk->seq, head, chunk->t0, n, false, c->g, c->beta);
    for (c->first = 0; c->first < n && !gdn_forgets(c->g[c->first]); c->first++) {
        sum += c->g[c->first];
        c->from_start[c->first] = (float)sum;
    }
    kr->exp_row(c->from_start, c->from_start, (size_t)c->first);
    c->decay = c->first < n ? 0 : n ? c->from_start[n - 1] : 1;

    for (sum = 0, c->last = n; c->last > 0;) {
        c->to_end[--c->last] = (float)sum;
        if (gdn_forgets(c->g[c->last])) break;
        sum += c->g[c->last];
    }
    kr->exp_row(c->to_end + c->last, c->to_end + c->last, (size_t)(n - c->last));
}

void gdn_load_chunk_rows(float *to, ptrdiff_t ld, const struct gdn_kernels *kr,
                         const struct gdn_rows *rows, const struct gdn_chunk *chunk, int64_t t,
                         int64_t head, int64_t col, int64_t n)
{
    const int64_t elem = (int64_t)gdn_dtype_bytes(rows->dtype);
    for (int64_t i = 0; i < GDN_CHUNK; i++) {
        memset(to + i * ld, 0, (size_t)ld * sizeof *to);
        if (t + i >= chunk->n) continue;
        const char *from = gdn_row(rows, chunk->seq, chunk->t0 + t + i, head);
        kr->load_row[rows->dtype](to + i * ld, from + col * elem, (size_t)n);
    }
}
