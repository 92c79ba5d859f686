/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of every op, drawn at random: small, well formed, every feature now and then. Contents
 * may still clash (a slot written twice), so some are refused. All tensors lie in one arena
 * that ends at a guard page; those of vast calls lie nowhere.
 */
#ifndef RING2_CALLS_H
#define RING2_CALLS_H

#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"
#include "ops/tensors.h"
#include "ring2.h"

enum { RING2_ARENA = 1 << 18, RING2_N_OPS = GDN_N_OPS, RING2_MAX_WRITTEN = 24 };
enum { RING2_LARGE_ARENA = 1 << 24 };

/* A member of the struct's name for each struct of ops.def. */
union ring2_call {
#define GDN_ARGS_ROW(args, first, last, batch) gdn_##args##_args args;
#include "calls/ops.def"
    char bytes[1];
};

struct ring2_draw {
    unsigned char *arena;
    size_t used, room;
    bool fill;           /* ordinary values in all float tensors; else whatever is there */
    bool large;          /* four times the tokens, heads and columns: work for several threads */
    bool tiny;           /* some of these values are denormal */
    bool vast;           /* shapes of a device; no memory is behind the tensors */
    int64_t B, T;        /* of the call: sequences, tokens of each */
    const uint8_t *data; /* of libFuzzer; NULL: ring2_bits() */
    size_t size;
};

/* An arena with some pattern of bytes in it; freed at the end of the test. */
void ring2_draw_init(struct ring2_draw *d, bool fill);
/* The same for large calls, filled. */
void ring2_draw_init_large(struct ring2_draw *d);

/* Starts draws of calls of any size, also padded, without memory behind the tensors. They are for a
 * driver that computes nothing. */
void ring2_draw_init_vast(struct ring2_draw *d);

/* Random numbers from libFuzzer's bytes or ring2_bits(). */
uint32_t ring2_draw_bits(struct ring2_draw *d);
int64_t ring2_draw_below(struct ring2_draw *d, int64_t n);
bool ring2_draw_one_in(struct ring2_draw *d, int64_t n);

/* Fills c, and the batch that it may point to. */
void ring2_draw_call(struct ring2_draw *d, gdn_op op, union ring2_call *c, gdn_batch *batch);

/* Returns true if this library has the op. */
bool ring2_has_op(gdn_ctx *ctx, gdn_op op);

/* Sets list to the tensors that the call may write and returns how many they are, at most
 * RING2_MAX_WRITTEN. Some may be absent. */
int ring2_written(gdn_op op, const union ring2_call *c, const gdn_tensor **list);

/* Returns true if the tensor at this offset is a pool of final states, which the op does not
 * write if batch.write is GDN_WRITE_NONE. */
bool ring2_is_final(gdn_op op, size_t at);

/* Returns the number, below RING2_N_PAIRS, of the row of ops.def that lets these two tensors be
 * one view; -1 if there is none. */
int ring2_find_pair(gdn_op op, size_t written, size_t other);
/* Returns true if that row belongs to the op. */
bool ring2_has_pair(gdn_op op, int pair);
enum {
#define GDN_MAY_BE_SAME(args, written, other) RING2_PAIR_##args##_##written##_##other,
#include "calls/ops.def"
    RING2_N_PAIRS
};

/* Tensor i of gdn_op_shapes[op].n_tensors. */
static inline gdn_tensor *ring2_call_tensor(gdn_op op, union ring2_call *c, size_t i)
{
    return gdn_tensor_of(&gdn_tensor_rows(op)[i], c);
}
/* The tensors of the call's batch. */
enum {
    RING2_BATCH_TENSORS = (sizeof(gdn_batch) - offsetof(gdn_batch, cu_seqlens)) / sizeof(gdn_tensor)
};

#endif
