/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_decode on a device: what select.c and the launches of the forms share. */
#ifndef GDN_CUDA_DECODE_SELECT_H
#define GDN_CUDA_DECODE_SELECT_H

#include "cuda/decode/decode.h"

enum {
    MOST_ROWS = 65535,  /* the most blocks in the second dimension of a grid */
    WARP_COLUMNS = 16,  /* columns of V of a warp */
    TOKEN_COLUMNS = 64, /* columns of V of a block of token kernels, if states are k-first */
    LAZY_COLUMNS = 32,  /* columns of V of a block of lazy/half.cuh */
    EIGHT_ROWS = 32,    /* columns of V of a block of token_eight.cuh */
    FEW_COLUMNS = 64,   /* columns of V of a block of window_kv.cuh */
    FEW_TOKENS = 4      /* tokens of a window */
};

/* Returns true if a record accepts the tokens of the call at once (a lazy state). */
static inline bool gdn_decode_accepts(const struct gdn_cu_rule *r)
{
    return r->record_k.data && r->batch.write == GDN_WRITE_FINAL;
}

/* Returns why the kernels of lazy/ do not take the record. */
const char *gdn_decode_why_not_record(const struct gdn_cu_rule *r);
/* Returns why leaving the states of a call as they are is not faster; NULL: it is. */
const char *gdn_decode_lazy_why_slower(const struct gdn_decode_call *c);

/* Applies records to their states. Of the rule, only sizes, pool and record are set. */
gdn_status gdn_cuda_fold(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream);

/* Launch a call, one function for each form of select.c. */
gdn_status gdn_decode_launch_token(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_token_slots(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_token_packed(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_token_eight(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_window_k128(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_window(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_warp(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_general(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_channels_token(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_channels(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_channels_few(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_lazy(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_lazy_few(const struct gdn_decode_call *c);
gdn_status gdn_decode_launch_walk(const struct gdn_decode_call *c);

/* Return the bytes of memory that these two forms take. */
size_t gdn_decode_lazy_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *r);
size_t gdn_decode_walk_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *r);

/* Returns the launch of gdn_cuda_decode_singles(). */
struct gdn_cuda_singles gdn_decode_singles_of(const struct gdn_decode_call *c);

/* SIZES lists the kernels of K up to 64, 128 and 256. gdn_decode_size() returns the place of K in
 * such a list. */
#define SIZES(name) name##_64, name##_128, name##_256
static inline int gdn_decode_size(int K) { return K <= 64 ? 0 : K <= 128 ? 1 : 2; }

/* Returns the pool of final states, or else that of initial states. An absent pool reads as
 * float32, k-last. */
static inline const struct gdn_pool_view *gdn_decode_pool(const struct gdn_cu_rule *r)
{
    return r->to.data ? &r->to : &r->from;
}

/* Returns the sequences, and one more if a kernel must zero the output behind the last one. */
static inline int64_t gdn_decode_sequences(const struct gdn_cu_rule *r)
{
    return r->batch.B + (r->out.data && r->batch.cu_seqlens.data);
}

/* gdn_decode_runs() returns how many calls of grouped heads a call of interleaved heads runs as; 1:
 * it runs as it is. gdn_decode_run() returns call i of n_runs. Both are in interleaved.c. */
int gdn_decode_runs(const struct gdn_cu_rule *r);
struct gdn_cu_rule gdn_decode_run(const struct gdn_cu_rule *r, int n_runs, int i);

/* Returns the arguments of the general kernels, which have V in parts of GENERAL_COLUMNS. */
enum { GENERAL_COLUMNS = 32, GENERAL_WINDOW = 4 /* tokens or updates */ };
struct gdn_cu_decode gdn_decode_general_args(const struct gdn_cu_rule *r);

/* Checks that each sequence has a slot of its own number, to read and to write. */
bool gdn_decode_has_slots(const struct gdn_cu_warp *a);

/* ---- Conditions of forms: conditions.c ---- */

/* Check that steps fit 32 bits: of a list with one number for each row of a grid, of a table with
 * rows of numbers. */
bool gdn_decode_is_near_list(const struct gdn_cu_array *list);
bool gdn_decode_is_near_table(const struct gdn_cu_array *table);

/* Checks that rows can be read in pieces of 16 bytes. */
bool gdn_decode_are_pieces(const struct gdn_cu_near *rows);

/* Return a reason, or NULL: the batch is a tree or the call has a record; states have 8 bits;
 * either of these. */
const char *gdn_decode_why_not_chain(const struct gdn_cu_rule *r);
const char *gdn_decode_why_eight(const struct gdn_cu_rule *r);
const char *gdn_decode_why_walk(const struct gdn_cu_rule *r);
/* Returns why no kernel of 32-bit strides takes the call, apart from trees, records and the
 * rule. */
const char *gdn_decode_why_not_near(const struct gdn_cu_rule *r);
/* Returns why the rule is not that of Gated DeltaNet. */
const char *gdn_decode_why_not_gdn(const struct gdn_cu_rule *r);

/* Checks that rows of q or k can be read four elements at a time. */
bool gdn_decode_is_wide(const struct gdn_rows *rows, int K);

/* Returns why the states are not whole tiles of 16-byte pieces, see `whole` in struct gdn_cu_warp;
 * NULL: they are. */
const char *gdn_decode_why_not_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a);
/* Returns why the rows of q and k, or the states, are not whole tiles of 16-byte pieces. */
const char *gdn_decode_why_not_tiles(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a);

#endif
