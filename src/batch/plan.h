/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments to work: every layout of a batch ends here, as a flat list of sequences. Ops and
 * inner loops handle no cu_seqlens, slots, padding or masks.
 */
#ifndef GDN_PLAN_H
#define GDN_PLAN_H

#include <stdbool.h>

#include "core/tensor_check.h"
#include "core/views.h"
#include "gdn.h"

/* One sequence of a batch. */
struct gdn_seq {
    int64_t row;      /* b: its row of write_slots */
    int64_t batch;    /* index in the leading dimension of padded tensors, 0 in packed ones */
    int64_t first;    /* the first token that counts, in packed tensors; of a padded tensor, in
                         its row */
    int64_t n_before; /* token_start: tokens before that */
    int64_t n_tokens; /* T, n_before among them */
    int64_t n_valid;  /* the tokens that decay and write */
    int64_t slot;     /* of its row of read_slots; below 0: padding */
    int64_t read;     /* slot it starts from; -1: zero */
    int64_t write;    /* slot of its final state; -1: none */
    int64_t total;    /* n_valid of the whole sequence, of which a window may be a part */
    int64_t base;     /* tokens of the whole sequence before the window */
    int64_t first_checkpoint, n_checkpoints; /* of the whole sequence */
    bool keep_out; /* a padding row under GDN_PAD_KEEP: its output is not touched */
    /* Windows of a longer sequence (gdn_block): the state comes from, goes to, the carry. */
    bool from_carry, to_carry;
};

struct gdn_plan {
    gdn_batch batch; /* the library's copy, defaults filled in */
    int64_t B;
    int64_t longest;         /* largest n_tokens */
    int64_t start, end;      /* packed: tokens before and from there on are of no sequence */
    int64_t max_checkpoints; /* as many as a call may write; 0: it writes none */
    bool padded;
    struct gdn_seq *seqs;
};

/* How the leading dimensions of an op's tensors hold its tokens. */
struct gdn_tokens {
    bool padded; /* [B][T]..., else [N]... */
    int64_t B, T, N;
};

/* Reads the tokens of `like` (q, x or hidden), which has one or two dimensions before the last
 * `trailing` ones. It has passed gdn_check_tensor(). name: for errors. */
gdn_status gdn_plan_tokens(gdn_ctx *ctx, const gdn_tensor *like, const char *name, int trailing,
                           struct gdn_tokens *tokens);

/* Fills in the leading sizes of a tensor of these tokens and returns how many there are. */
static inline int gdn_plan_leading(const struct gdn_tokens *tokens, int64_t *size)
{
    size[0] = tokens->padded ? tokens->B : tokens->N;
    size[1] = tokens->T; /* of padded ones */
    return tokens->padded ? 2 : 1;
}

/* Checks a tensor of the same tokens: leading sizes of `tokens`, then the n trailing sizes
 * (-1: any). */
gdn_status gdn_plan_check(gdn_ctx *ctx, const struct gdn_tokens *tokens, const gdn_tensor *t,
                          const char *name, int n, const int64_t *trailing);

/* The features of a batch that an op takes. */
enum {
    GDN_PLAN_EACH = 1 << 0,        /* GDN_WRITE_EACH */
    GDN_PLAN_TREE = 1 << 1,        /* parents */
    GDN_PLAN_PATH = 1 << 2,        /* path */
    GDN_PLAN_CHECKPOINTS = 1 << 3, /* the call has a tensor for checkpoints */
    GDN_PLAN_NO_TENSOR = 1 << 4    /* the op may have such a tensor, but this call has none */
};

/*
 * Fills plan->batch, B and padded from the descriptors alone: copies the batch (NULL: the
 * default one), checks its shapes, dtypes and enums against the tokens. takes: GDN_PLAN_...
 */
gdn_status gdn_plan_describe(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                             unsigned takes, struct gdn_plan *plan);

/* The arrays of a described batch, for gdn_check_apart(). */
struct gdn_extents;
void gdn_plan_add_extents(const gdn_batch *batch, struct gdn_extents *all);

/* Returns bytes of memory for gdn_plan_batch(). */
size_t gdn_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens);

/* Slots of the pools that a call reads and writes; -1: no such pool. */
struct gdn_plan_pools {
    int64_t read, write, checkpoint;
    bool same;                /* states are written to the pool that is read */
    bool checkpoint_in_write; /* checkpoints go where final states go */
};

/* Those of the tensors that states start from, end in and are left in on the way. */
struct gdn_plan_pools gdn_plan_pools_of(const gdn_tensor *from, const gdn_tensor *to,
                                        const gdn_tensor *checkpoints);

/*
 * Reads the contents: cu_seqlens, slots, counts. Fills plan->seqs in `memory`. Refuses slots
 * that are not in their pool, double writes, and, in one pool, a read of another sequence's
 * written slot.
 */
gdn_status gdn_plan_batch(gdn_ctx *ctx, const struct gdn_tokens *tokens,
                          const struct gdn_plan_pools *pools, void *memory, struct gdn_plan *plan);

/* plan_slots.c: the part of it about slots. memory: for up to n_writes slots written. */
size_t gdn_plan_slots_bytes(int64_t n_writes);
gdn_status gdn_plan_check_slots(gdn_ctx *ctx, const struct gdn_plan *plan,
                                const struct gdn_plan_pools *pools, int64_t n_writes, void *memory);

/* Returns a slot that an array of the batch names; -1: it names none. */
static inline int64_t gdn_plan_named_slot(const gdn_batch *b, int64_t slot)
{
    return slot < b->first_slot ? -1 : slot;
}

/* Returns the slot of the state after token t of sequence s under GDN_WRITE_EACH; -1: dropped. */
int64_t gdn_plan_each_slot(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t);

/* Returns the token that token t follows (-1: the initial state), in a tree or a chain; and the
 * t-th token of a path, or t. */
int64_t gdn_plan_parent(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t);
int64_t gdn_plan_path(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t);

/*
 * Checkpoint i of s, of s->n_checkpoints: returns after how many tokens from s->first on, and
 * its slot (below 0: not wanted). Those of a window lie from 1 to s->n_valid; others come
 * before and after.
 */
int64_t gdn_plan_checkpoint(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t i,
                            int64_t *slot);
/* Returns the first of them that comes after more than t tokens; s->n_checkpoints: none does. */
int64_t gdn_plan_checkpoint_after(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t);

/* Returns a tensor [tokens]... as rows. Inline: a caller that gets them in memory waits to read
 * back in wider pieces what has just been written. */
static inline struct gdn_rows gdn_rows_of(const gdn_tensor *t, const struct gdn_tokens *tokens)
{
    const int leading = tokens->padded ? 2 : 1;
    if (!t->data) return (struct gdn_rows){ .dtype = t->dtype };
    return (struct gdn_rows){ .data = t->data,
                              .dtype = t->dtype,
                              .batch = tokens->padded ? gdn_step_bytes(t, 0) : 0,
                              .token = gdn_step_bytes(t, leading - 1),
                              .head = gdn_step_bytes(t, leading) };
}

static inline void *gdn_row(const struct gdn_rows *r, const struct gdn_seq *s, int64_t t,
                            int64_t head)
{
    return r->data + s->batch * r->batch + (s->first + t) * r->token + head * r->head;
}

static inline bool gdn_is_q8(int32_t dtype) { return dtype >= GDN_I8 && dtype <= GDN_E5M2; }

/* Returns true if bytes of both pools mean the same: one dtype, and scales in both or in
 * neither. */
static inline bool gdn_store_alike(const struct gdn_pool_view *a, const struct gdn_pool_view *b)
{
    return a->dtype == b->dtype && !a->scales == !b->scales;
}

/* Returns one head's state in a slot of a pool. */
static inline void *gdn_pool_at(const struct gdn_pool_view *view, int64_t slot, int64_t head)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(view->dtype);
    return view->data + (slot * view->slot + head * view->head) * bytes;
}

/* Zeroes the output of what no token computes: masked tokens, padding rows, tokens past the
 * end. n_heads rows of n elements per token. */
void gdn_plan_zero_rest(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_rows *out, int64_t n_heads, int64_t n);
/* The same with gradients, which are zero before the first sequence too. */
void gdn_plan_zero_gradients(const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                             const struct gdn_rows *out, int64_t n_heads, int64_t n);

#endif
