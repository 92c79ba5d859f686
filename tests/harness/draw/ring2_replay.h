/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random call of an op (ring2_calls.h) that is run several times on the same memory: in other
 * contexts, float environments or threads. Its memory after the first run is what every later run
 * must give, byte by byte, so whatever the op writes or leaves alone is compared.
 */
#ifndef RING2_REPLAY_H
#define RING2_REPLAY_H

#include "ring2_calls.h"

struct ring2_replay {
    struct ring2_draw draw;
    unsigned char *before, *want; /* the arena before and after the first run */
    gdn_op op;
    union ring2_call call;
    gdn_batch batch;
};

/* Calls of the sizes that ring2_draw_init() or, if large, ring2_draw_init_large() gives. */
void ring2_replay_init(struct ring2_replay *r, bool large);

/* Draws calls of the op until ctx accepts one, and keeps the memory before and after that. */
void ring2_replay_draw(struct ring2_replay *r, gdn_ctx *ctx, gdn_op op);

/* Makes memory as it was before the call. */
void ring2_replay_reset(const struct ring2_replay *r);

/* Checks that memory is as the first run left it. */
void ring2_replay_expect(const struct ring2_replay *r, const char *what);

/* Reset, run, expect. */
void ring2_replay_run(const struct ring2_replay *r, gdn_ctx *ctx, const char *what);

#endif
