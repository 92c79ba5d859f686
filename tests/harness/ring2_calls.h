/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of every op, drawn at random: small, well formed, every feature now and then. Contents
 * may still clash (a slot written twice), so some are refused. All tensors lie in one arena
 * that ends at a guard page.
 */
#ifndef RING2_CALLS_H
#define RING2_CALLS_H

#include "ring2.h"

enum { RING2_ARENA = 1 << 18, RING2_N_OPS = GDN_N_OPS, RING2_MAX_WRITTEN = 8 };

/* A member of the struct's name for each struct of ops.def. */
union ring2_call {
#define GDN_ARGS_ROW(args, last, batch) gdn_##args##_args args;
#include "ops/ops.def"
    char bytes[1];
};

struct ring2_draw {
    unsigned char *arena;
    size_t         used;
    bool           fill; /* ordinary values in all float tensors; else whatever is there */
    const uint8_t *data; /* of libFuzzer; NULL: ring2_bits() */
    size_t         size;
};

/* An arena with some pattern of bytes in it; freed at the end of the test. */
void ring2_draw_init(struct ring2_draw *d, bool fill);

/* Random numbers from libFuzzer's bytes or ring2_bits(). */
uint32_t ring2_draw_bits(struct ring2_draw *d);
int64_t  ring2_draw_below(struct ring2_draw *d, int64_t n);
bool     ring2_draw_one_in(struct ring2_draw *d, int64_t n);

/* Fills c, and the batch that it may point to. */
void ring2_draw_call(struct ring2_draw *d, gdn_op op, union ring2_call *c, gdn_batch *batch);

/* Does this library have the op? */
bool ring2_has_op(gdn_ctx *ctx, gdn_op op);

/* The tensors that the call may write, of RING2_MAX_WRITTEN at most; some may be absent. */
int ring2_written(gdn_op op, const union ring2_call *c, const gdn_tensor **list);

/* The op's tensors, of gdn_op_shapes[op].n_tensors. */
static inline gdn_tensor *ring2_call_tensors(union ring2_call *c)
{
    return (gdn_tensor *)(void *)(c->bytes + 8);
}
/* Those of its batch, RING2_BATCH_TENSORS of them. */
enum { RING2_BATCH_TENSORS = (sizeof(gdn_batch) - offsetof(gdn_batch, cu_seqlens)) /
                             sizeof(gdn_tensor) };

#endif
