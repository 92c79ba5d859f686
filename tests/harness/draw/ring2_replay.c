/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_replay.h. */
#include "ring2_replay.h"

#include <string.h>

void ring2_replay_init(struct ring2_replay *r, bool large)
{
    if (large)
        ring2_draw_init_large(&r->draw);
    else
        ring2_draw_init(&r->draw, true);
    r->before = ring2_heap(r->draw.room);
    r->want = ring2_heap(r->draw.room);
}

void ring2_replay_draw(struct ring2_replay *r, gdn_ctx *ctx, gdn_op op)
{
    gdn_status status = GDN_E_ARG;
    r->op = op;
    for (int i = 0; i < 1000 && status != GDN_OK; i++) {
        ring2_draw_call(&r->draw, op, &r->call, &r->batch);
        memcpy(r->before, r->draw.arena, r->draw.used);
        status = gdn_run_op(ctx, op, &r->call);
    }
    ring2_status(ctx, "a call of 1000", status, GDN_OK);
    memcpy(r->want, r->draw.arena, r->draw.used);
}

void ring2_replay_reset(const struct ring2_replay *r)
{
    memcpy(r->draw.arena, r->before, r->draw.used);
}

void ring2_replay_expect(const struct ring2_replay *r, const char *what)
{
    size_t at = 0;
    if (!memcmp(r->draw.arena, r->want, r->draw.used)) return;
    while (r->draw.arena[at] == r->want[at]) at++;
    ring2_fail("op %d, %s: byte %zu differs", (int)r->op, what, at);
}

void ring2_replay_run(const struct ring2_replay *r, gdn_ctx *ctx, const char *what)
{
    ring2_replay_reset(r);
    ring2_status(ctx, what, gdn_run_op(ctx, r->op, &r->call), GDN_OK);
    ring2_replay_expect(r, what);
}
