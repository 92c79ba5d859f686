/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the stages and summaries share; see calls/chunk_stage.h. */
#include "calls/chunk_stage.h"

#include <string.h>

#include "core/tensor_check.h"
#include "cuda/driver/backend.h"

static gdn_status check_one(gdn_ctx *ctx, const struct gdn_stage_tensor *x,
                            const struct gdn_tokens *tokens)
{
    if (!x->t->data)
        return x->needed ? gdn_fail(ctx, GDN_E_ARG, "%s: absent", x->name) : GDN_OK;
    TRY(gdn_check_tensor(ctx, x->t, x->name));
    TRY(gdn_check_dtype(ctx, x->t, x->name, GDN_FLOATS));
    if (x->tokens) {
        TRY(gdn_plan_check(ctx, tokens, x->t, x->name, x->n, x->size));
        if (x->n > 1) TRY(gdn_check_dense(ctx, x->t, x->name));
    } else {
        TRY(gdn_check_shape(ctx, x->t, x->name, x->n, x->size));
    }
    return x->written ? gdn_check_injective(ctx, x->t, x->name) : GDN_OK;
}

gdn_status gdn_stage_check(gdn_ctx *ctx, const struct gdn_stage_tensor *list, int n,
                           const struct gdn_tokens *tokens, const gdn_batch *batch)
{
    for (int i = 0; i < n; i++) TRY(check_one(ctx, &list[i], tokens));
    for (int i = 0; i < n; i++) {
        const struct gdn_stage_tensor *x = &list[i];
        if (!x->written || !x->t->data) continue;
        for (int j = 0; j < n; j++)
            if (j != i)
                TRY(gdn_check_no_overlap(ctx, x->t, x->name, list[j].t, list[j].name,
                                         x->same >> j & 1));
        if (batch) TRY(gdn_plan_check_overlaps(ctx, batch, x->t, x->name));
    }
    return GDN_OK;
}

gdn_status gdn_stage_plan_padded(gdn_ctx *ctx, const gdn_batch *batch,
                                 const struct gdn_tokens *tokens, struct gdn_plan *plan)
{
    TRY(gdn_plan_describe(ctx, batch, tokens, 0, plan));
    const gdn_batch *b = &plan->batch;
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } others[] = { { &b->read_slots, "read_slots" },
                   { &b->write_slots, "write_slots" },
                   { &b->has_initial_state, "has_initial_state" },
                   { &b->num_accepted_tokens, "num_accepted_tokens" } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none: this op takes sequences alone",
                            others[i].name);
    if (b->write != GDN_WRITE_FINAL)
        return gdn_fail(ctx, GDN_E_ARG, "write: %d, wanted 0", (int)b->write);
    return GDN_OK;
}

gdn_status gdn_stage_plan(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                          struct gdn_plan *plan)
{
    TRY(gdn_stage_plan_padded(ctx, batch, tokens, plan));
    if (plan->batch.token_start.data)
        return gdn_fail(ctx, GDN_E_ARG, "token_start: given, wanted none: this op takes none");
    return GDN_OK;
}

gdn_status gdn_stage_head_size(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int *size)
{
    const int64_t n = t->size[t->ndim - 1];
    if (n < 1) return gdn_fail(ctx, GDN_E_SHAPE, "%s: head size 0, wanted 1 to 256", name);
    if (n > GDN_MAX_HEAD)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: head size %lld, the largest is %d", name,
                        (long long)n, GDN_MAX_HEAD);
    *size = (int)n;
    return GDN_OK;
}

gdn_status gdn_stage_heads(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int64_t H, int *n)
{
    const int64_t heads = t->size[t->ndim - 2];
    if (heads < 1 || heads > H || H % heads)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld heads, wanted a divisor of %lld", name,
                        (long long)heads, (long long)H);
    *n = (int)heads;
    return GDN_OK;
}

gdn_status gdn_stage_enum(gdn_ctx *ctx, const char *name, int32_t value, int32_t end)
{
    if (value >= 0 && value <= end) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: %d, wanted 0 to %d", name, (int)value, (int)end);
}

gdn_status gdn_stage_chunk_size(gdn_ctx *ctx, int32_t C)
{
    if (C == 16 || C == 32 || C == 64) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "chunk_size: %d, wanted 16, 32 or 64", (int)C);
}

gdn_status gdn_stage_check_states(gdn_ctx *ctx, const gdn_tensor *states, int64_t n_chunks)
{
    if (states->size[0] >= n_chunks) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "states: %lld chunks, wanted %lld at least",
                    (long long)states->size[0], (long long)n_chunks);
}

/* ---- Chunks -------------------------------------------------------------------------------- */

size_t gdn_stage_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens)
{
    return gdn_align64(gdn_plan_bytes(plan, tokens)) +
           gdn_align64((size_t)(plan->B + 1) * sizeof(int64_t));
}

gdn_status gdn_stage_check_contents(gdn_ctx *ctx, const struct gdn_plan *plan,
                                    const struct gdn_tokens *tokens, void *stream)
{
    return gdn_cuda_check_batch(ctx, plan, tokens,
                                &(struct gdn_plan_pools){ -1, -1, -1, false, false }, stream);
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
    c.n  = seq->n_valid - c.t0;
    c.n  = c.n < 0 ? 0 : c.n > list->C ? list->C : c.n;
    return c;
}

struct gdn_chunk gdn_chunk_at(const struct gdn_chunk_list *list, int64_t number)
{
    int64_t low = 0, high = list->plan->B; /* first[low] <= number < first[high] */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (list->first[middle] <= number) low = middle;
        else high = middle;
    }
    return gdn_chunk_of(list, &list->plan->seqs[low], number);
}

/* Sums in float64, as in the loops; what is exponentiated is never a sum past a forgetting
 * gate. */
void gdn_load_chunk_gates(struct gdn_chunk_gates *c, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, const struct gdn_chunk *chunk, int head)
{
    const int n   = (int)chunk->n;
    double    sum = 0;
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
