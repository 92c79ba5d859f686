/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guarantees that every op of ops.def gives alike, for random calls of each: any number of
 * threads (G2), runs after the first (G3), float environments (G12) and contexts with the caller's
 * workspace (G13) give the memory, byte by byte, that one thread gives.
 */
#include <string.h>

#include "ring2_device.h"
#include "ring2_replay.h"

/* Returns how many calls of an op are drawn: small ones have every feature now and then, large ones
 * are work for several threads, of which a device has no use. */
static int n_calls(bool large) { return ring2_on_device() ? 3 - 2 * large : large ? 4 : 16; }

/* A context that refuses contents that clash, on a device too. */
static gdn_ctx *strict_ctx(void)
{
    gdn_ctx    *ctx = NULL;
    gdn_options o   = gdn_options_init();
    o.n_threads     = 1;
    o.flags         = GDN_CTX_CHECK_CONTENTS;
    o.backend       = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    ring2_status(NULL, "a context", gdn_ctx_create(&o, &ctx), GDN_OK);
    return ctx;
}

/* Gives `check` calls of every op and their numbers, after their first runs. */
static void for_each_call(bool tiny, void (*check)(struct ring2_replay *r, int number))
{
    gdn_ctx *first = strict_ctx();
    for (int large = 0; large < 2; large++) {
        struct ring2_replay r;
        const int           n = n_calls(large);
        ring2_replay_init(&r, large);
        r.draw.tiny = tiny;
        for (int i = 0; i < RING2_N_OPS * n && !ring2_failed(); i++) {
            if (!ring2_has_op(first, (gdn_op)(i / n))) continue;
            ring2_replay_draw(&r, first, (gdn_op)(i / n));
            check(&r, i);
        }
    }
    gdn_ctx_destroy(first);
}

static void other_threads(struct ring2_replay *r, int number)
{
    (void)number;
    for (int n = 2; n <= 4; n++) ring2_replay_run(r, ring2_ctx(n), "threads");
}

static void G2_threads(void) { for_each_call(false, other_threads); }

static void again(struct ring2_replay *r, int number)
{
    for (int i = 0; i < 3; i++) ring2_replay_run(r, ring2_ctx(1 + number % 4), "again");
}

static void G3_repeat(void) { for_each_call(false, again); }

struct mode_call {
    gdn_ctx                   *ctx;
    const struct ring2_replay *replay;
};

static void run_in_mode(void *arg)
{
    const struct mode_call *c = arg;
    gdn_run_op(c->ctx, c->replay->op, &c->replay->call);
}

static void other_modes(struct ring2_replay *r, int number)
{
    struct mode_call c = { ring2_ctx(1 + number % 2 * 2), r };
    ring2_replay_reset(r);
    for (int mode = 0; ring2_float_mode(mode, run_in_mode, &c); mode++) {
        ring2_replay_expect(r, "mode");
        ring2_replay_reset(r);
    }
}

static void G12_float_environment(void) { for_each_call(true, other_modes); }

/* The context of 3 threads that counts its allocations. */
static struct {
    gdn_ctx *ctx;
    int      n;
} counting;

static void with_workspace(struct ring2_replay *r, int number)
{
    (void)number;
    size_t bytes = 0;
    ring2_status(counting.ctx, "bytes",
                 gdn_workspace_bytes(counting.ctx, r->op, &r->call, &bytes), GDN_OK);
    void *const  memory = ring2_alloc((bytes + 63) / 64 * 64, 64);
    const int    before = counting.n;
    const size_t at     = gdn_op_shapes[r->op].bytes - 24; /* workspace, its bytes, stream */
    memcpy(r->call.bytes + at, &memory, sizeof memory);
    memcpy(r->call.bytes + at + sizeof memory, &bytes, sizeof bytes);
    ring2_replay_run(r, counting.ctx, "with a workspace");
    CHECK(counting.n == before, "op %d: %d allocations", (int)r->op, counting.n - before);
}

static void G13_no_allocation(void)
{
    counting.ctx = ring2_counting_ctx(&counting.n);
    for_each_call(false, with_workspace);
    gdn_ctx_destroy(counting.ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 threads", G2_threads },
        { "G3 repeat", G3_repeat },
        { "G12 float environment", G12_float_environment },
        { "G13 no allocation", G13_no_allocation },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
