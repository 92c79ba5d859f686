/* SPDX-License-Identifier: Apache-2.0 */
/* The rule as the CPU runs it: a struct gdn_rule cut into items, which threads take one by one. */
#ifndef GDN_CPU_RULE_H
#define GDN_CPU_RULE_H

#include "calls/rule.h"
#include "core/ctx.h"
#include "cpu/strip.h"

enum { GDN_ITEM_STATE_BYTES = 256 * 1024 }; /* most state of one chunked item */

/* gdn_rule_cut() cuts a rule into items (schedule.c). gdn_rule_run() runs them (rule_run.c). */
void gdn_rule_cut(struct gdn_rule *rule, const struct gdn_kernels *kr, int n_threads);
size_t gdn_rule_scratch(const struct gdn_rule *rule, const struct gdn_kernels *kr); /* a thread */
void gdn_rule_run(gdn_ctx *ctx, const struct gdn_rule *rule, void *scratch);

/* Returns the names of the loops that a run uses, for gdn_note_kernel(). */
const char *gdn_rule_loops(const struct gdn_rule *rule);

/* exp(g) is 0 in float32: the state is not multiplied by it but zeroed (G7). */
static inline bool gdn_forgets(float g) { return g < -104.0f; }

/* Zeros in A and B of chunk_gates() for products with the first a of the 16 tokens, which have been
 * forgotten and may not be finite. */
void gdn_forget_tokens(float *A, float *B, int a);
/* Copies g and beta of tokens [a, m) of a chunk. The other tokens get 0, so they change nothing.
 * Returns true if one of tokens [a, m) writes. */
bool gdn_cut_gates(float *g, float *beta, const float *all_g, const float *all_beta, int a, int m);

/* Return the state head of member i of a group; the head of a tensor that a state head
 * reads. */
static inline int gdn_rule_head(const struct gdn_rule *r, int group, int i)
{
    return r->head_map == GDN_HEADS_GROUPED ? group * r->group_heads + i : i * r->n_groups + group;
}
static inline int gdn_rule_source(const struct gdn_rule *r, int head, int n_heads)
{
    return r->head_map == GDN_HEADS_GROUPED ? head / (r->H / n_heads) : head % n_heads;
}

/* Loads A and dt from A_log and dt_bias (absent: 0). dt_bias has so many channels per head.
 * decay_bytes: the bytes of both. */
void gdn_rule_load_decay(float *A, float *dt, const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                         int64_t H, int64_t channels, float bound);
static inline size_t gdn_rule_decay_bytes(const struct gdn_rule *r)
{
    return (size_t)(r->H * (1 + gdn_rule_channels(r))) * sizeof(float);
}

/* Strips [first, last) of the group: strip s is columns of head s / n_strips. */
struct gdn_rule_item {
    const struct gdn_seq *seq;
    int group, first, last;
};

/* Returns the number of the longest sequence. */
int64_t gdn_rule_longest(const struct gdn_rule *rule);

/* gdn_rule_items() returns how many items a run has; gdn_rule_item_at() returns item i, in an order
 * that begins with sequence `first`. */
int64_t gdn_rule_items(const struct gdn_rule *rule);
struct gdn_rule_item gdn_rule_item_at(const struct gdn_rule *rule, int64_t first, int64_t i);

/* Strips [first, last), all of one head: its columns [col, col + n). */
struct gdn_rule_piece {
    int head, first, last, col, n;
};

/* Returns the strips of an item from `strip` on, as far as they are of one head. */
struct gdn_rule_piece gdn_rule_piece_at(const struct gdn_rule *r, const struct gdn_kernels *kr,
                                        const struct gdn_rule_item *item, int strip);
/* Returns the columns of the strip that begins with column col: fewer if it is the last. */
static inline int gdn_strip_columns(const struct gdn_rule *r, const struct gdn_kernels *kr, int col)
{
    return r->V - col < kr->strip ? r->V - col : kr->strip;
}

/* Returns the cost of a token for an item of so many strips, in columns of state: the grams of
 * its group, which each item makes for itself, are 16 more. */
int64_t gdn_rule_cost(const struct gdn_kernels *kr, int64_t strips);

/* Returns 1 / the length of a row in the formula of `norm`. */
float gdn_rule_inverse_length(float sum_of_squares, int norm, float eps);

/* Loads rows of k or q of one head, n tokens from t0 on. They are normalised and scaled, and lie ld
 * floats apart. */
void gdn_rule_load_rows(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, const struct gdn_rows *rows, int head,
                        int64_t t0, int n, float scale, float *to, ptrdiff_t ld);

/* Loads rows of k of one head, n tokens from t0 on, one row for each update. */
void gdn_rule_load_keys(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *to,
                        ptrdiff_t ld);

/* Rows of n tokens of q and k from token t0, normalised and scaled, into kq: k_t at row t,
 * q_t at row q_row + t, ld floats apart. A token has as many rows as updates, and q in the last of
 * them, behind zeros. */
void gdn_rule_load_kq(const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, int64_t t0, int n, float *kq, ptrdiff_t ld,
                      int q_row);
/* Asks the L2 cache for n elements of a row from col on, if there are such a tensor and token. */
void gdn_rule_prefetch(const struct gdn_rows *rows, const struct gdn_seq *seq, int64_t t, int head,
                       int col, int n);
/* Loads n numbers, `step` bytes apart. With step 0 all are one number. */
void gdn_rule_load_numbers(float *to, const struct gdn_kernels *kr, int32_t dtype, const char *from,
                           int64_t step, int n);
/* n gates of one head, logarithms or alphas, and betas. */
void gdn_rule_load_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t0, int n, bool linear,
                         float *g, float *beta);

/* Load rows of n tokens of the family, one row for each update, ld floats apart. load_gates: a (1
 * from the second update on) and b, [K] each; alpha and beta as in struct gdn_recur. */
void gdn_family_load_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct gdn_seq *seq, int head, int64_t t0, int n, float *a,
                           float *b, ptrdiff_t ld, float *alpha, float *beta);
/* The same for a alone; for beta alone, which is one number for b and w, of at most 16 tokens. */
void gdn_family_load_decays(const struct gdn_rule *r, const struct gdn_kernels *kr,
                            const struct gdn_seq *seq, int head, int64_t t0, int n, float *a,
                            ptrdiff_t ld);
void gdn_family_load_betas(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct gdn_seq *seq, int head, int64_t t0, int n, float *beta);
static inline bool gdn_family_has_one_beta(const struct gdn_rule *r)
{
    return !r->family.beta_rows && !r->family.write.data;
}
void gdn_family_load_w(const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, int64_t t0, int n, int col, int cols,
                       float *w, ptrdiff_t ld);
void gdn_family_load_v(const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, int64_t t0, int n, int col, int cols,
                       float *v, ptrdiff_t ld);
void gdn_family_load_written(const struct gdn_rule *r, const struct gdn_kernels *kr,
                             const struct gdn_seq *seq, int head, int64_t t0, int n, int col,
                             int cols, float *v, ptrdiff_t ld);

/* Return the place of a sequence's state of one head: where it is read, and where it is written
 * after token t. If the place is nowhere, its view is still that of the pool. */
struct gdn_place gdn_rule_from(const struct gdn_rule *r, const struct gdn_seq *s, int head);
struct gdn_place gdn_rule_to(const struct gdn_rule *r, const struct gdn_seq *s, int64_t t,
                             int head);

/* Stores a strip, the columns of the state from col on after n_tokens, to a pool. If no token
 * changed the state, it stores the columns that the sequence began with (G9). rows: as for
 * gdn_store_strip(). */
void gdn_rule_store_strip(const struct gdn_rule *r, const struct gdn_kernels *kr,
                          const struct gdn_seq *seq, int head, int col, const float *S,
                          struct gdn_place to, int64_t n_tokens, float *rows);

/* Return how the state is rounded after each token: to a float dtype (GDN_F32: it is not), or to
 * the 8 bits of a pool (NULL: it is not). */
int gdn_rule_rounding(const struct gdn_rule *r);
const struct gdn_pool_view *gdn_rule_rounding8(const struct gdn_rule *r);

/* The three forms: prefill.c, decode_exact.c and decode.c. */
size_t gdn_chunk_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr);
void gdn_chunk_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, void *scratch);
size_t gdn_exact_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr);
void gdn_exact_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, void *scratch);
size_t gdn_decode_scratch(const struct gdn_rule *r);
void gdn_decode_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_rule_item *item, void *scratch);

#endif
