/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments to work: every layout of a batch ends here, as a flat list of sequences. Ops and
 * inner loops know no cu_seqlens, slots, padding or masks.
 */
#ifndef GDN_PLAN_H
#define GDN_PLAN_H

#include <stdbool.h>

#include "gdn.h"

/* One sequence of a batch. */
struct gdn_seq {
    int64_t row;      /* b: its row of write_slots */
    int64_t batch;    /* index in the leading dimension of padded tensors, 0 in packed ones */
    int64_t first;    /* its first token: in the packed dimension, 0 in padded ones */
    int64_t n_tokens; /* T */
    int64_t n_valid;  /* token_count: the tokens that decay and write */
    int64_t read;     /* slot it starts from; -1: zero */
    int64_t write;    /* slot of its final state; -1: none */
    int64_t total;    /* n_valid of the whole sequence, of which a window may be a part */
    bool    keep_out; /* a padding row under GDN_PAD_KEEP: its output is not touched */
    /* Windows of a longer sequence (gdn_block): the state comes from, goes to, the carry. */
    bool    from_carry, to_carry;
};

struct gdn_plan {
    gdn_batch       batch; /* the library's copy, defaults filled in */
    int64_t         B;
    int64_t         longest; /* largest n_tokens */
    int64_t         end;     /* packed: tokens from here to N belong to no sequence */
    bool            padded;
    struct gdn_seq *seqs;
};

/* How the leading dimensions of an op's tensors hold its tokens. */
struct gdn_tokens {
    bool    padded; /* [B][T]..., else [N]... */
    bool    single; /* packed without cu_seqlens: N sequences of one token (gdn_decode) */
    int64_t B, T, N;
};

/* Reads tokens from `like` (q, x or hidden), whose rank is `trailing` for one token, plus one
 * or two. name is for the error. */
gdn_status gdn_plan_tokens(gdn_ctx *ctx, const gdn_tensor *like, const char *name, int trailing,
                           bool single, struct gdn_tokens *tokens);

/* Checks a tensor of the same tokens: leading sizes of `tokens`, then the n trailing sizes
 * (-1: any). */
gdn_status gdn_plan_check(gdn_ctx *ctx, const struct gdn_tokens *tokens, const gdn_tensor *t,
                          const char *name, int n, const int64_t *trailing);

/*
 * Fills plan->batch, B and padded from the descriptors alone: copies the batch (NULL: the
 * default one), checks its shapes, dtypes and enums against the tokens. allow_each:
 * GDN_WRITE_EACH may be asked for.
 */
gdn_status gdn_plan_describe(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                             bool allow_each, struct gdn_plan *plan);

/* Refuses a written tensor that may overlap an index array of the batch. */
gdn_status gdn_plan_check_overlaps(gdn_ctx *ctx, const gdn_batch *batch, const gdn_tensor *written,
                                   const char *name);

/* Bytes of memory for gdn_plan_batch(). */
size_t gdn_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens);

/*
 * Reads the contents: cu_seqlens, slots, counts. Fills plan->seqs in `memory`. Slots are
 * checked against read_slots_end (slots of state) and write_slots_end (slots of the tensor
 * written; the same pool if same_pool); -1 for a tensor that is absent. Refuses double
 * writes, and a read of another sequence's written slot where same_pool.
 */
gdn_status gdn_plan_batch(gdn_ctx *ctx, const struct gdn_tokens *tokens, int64_t read_slots_end,
                          int64_t write_slots_end, bool same_pool, void *memory,
                          struct gdn_plan *plan);

/* The slot of the state after token t of sequence s under GDN_WRITE_EACH; -1: dropped. */
int64_t gdn_plan_each_slot(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t);

/* A tensor [tokens]... as the ops walk it: bytes from one batch row, token, head to the next. */
struct gdn_rows {
    char   *data; /* NULL: absent */
    int32_t dtype;
    int64_t batch, token, head;
};
struct gdn_rows gdn_rows_of(const gdn_tensor *t, const struct gdn_tokens *tokens);

static inline void *gdn_row(const struct gdn_rows *r, const struct gdn_seq *s, int64_t t,
                            int64_t head)
{
    return r->data + s->batch * r->batch + (s->first + t) * r->token + head * r->head;
}

/* A pool of states: slots of n_rows x n_cols with one dense dimension, after choosing which
 * of the two is "rows". Strides in elements. */
struct gdn_pool_view {
    char   *data; /* NULL: absent */
    int32_t dtype;
    bool    k_first; /* rows are k, columns v are dense; else rows are v, columns k dense */
    int64_t slot, head, ld;
};

/* One head's state in a slot of a pool. */
static inline void *gdn_pool_at(const struct gdn_pool_view *view, int64_t slot, int64_t head)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(view->dtype);
    return view->data + (slot * view->slot + head * view->head) * bytes;
}

/* Zeroes the output of what no token computes: masked tokens, padding rows, tokens past the
 * end. n_heads rows of n elements per token. */
void gdn_plan_zero_rest(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_rows *out, int64_t n_heads, int64_t n);

#endif
