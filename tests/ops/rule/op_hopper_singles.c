/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu, sm_90 --every=8 */
/*
 * gdn_prefill on Hopper of packed prompts among sequences of one token, which decode takes: all
 * against float64.
 */
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

enum { B = 9, P = 12, K = 128 };

/* Prompts before, between and behind sequences of one token; tokens behind the last sequence. */
static const int64_t batches[][B] = {
    { 1, 1, 70, 1, 0, 1, 1, 3, 1 },
    { 130, 1, 1, 1, 1, 1, 1, 1, 1 },
    { 1, 1, 1, 1, 1, 1, 1, 2, 64 },
    { 1, 0, 1, 1, 1, 1, 1, 1, 1 },
};
enum { N_BATCHES = sizeof batches / sizeof *batches };

/* Some rows are padding, by a slot that names none. */
static const int64_t slots[B] = { 3, 11, 0, -1, 5, 7, 1, 9, 2 };
static const int64_t others[B] = { 4, 10, 0, 6, 5, -1, 8, 9, 2 };
static const int64_t has[B] = { 1, 0, 0, 1, 1, 1, 1, 1, 0 };

/* Bits of i choose what a call has. */
static gdn_rule_args take(int i, gdn_batch **batch)
{
    static const int heads[3] = { 2, 2, 4 };
    const int32_t io = i & 1 ? GDN_F16 : GDN_BF16, states = i & 2 ? GDN_F32 : io;
    const int64_t V = i & 4 ? 64 : 128;
    const int64_t *lengths = batches[i / 8 % N_BATCHES];
    gdn_rule_args a = ring2_rule_packed(io, states, B, lengths, heads, K, V, batch);
    gdn_batch *b = *batch;
    const int64_t H = heads[2];
    a.state_layout = i & 8 ? GDN_STATE_KV : GDN_STATE_VK;
    a.state = i & 8 ? ring2_new(states, 0, 4, P, H, K, V) : ring2_new(states, 0, 4, P, H, V, K);
    ring2_fill(&a.state, -1, 1);
    a.norm = i & 16 ? GDN_NORM_L2 : GDN_NORM_NONE;
    b->read_slots = ring2_indices(GDN_I32, B, slots);
    b->pad_policy = i & 32 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    if (i & 64) b->has_initial_state = ring2_indices(GDN_I32, B, has);
    if (i & 128) b->write_slots = ring2_indices(GDN_I32, B, others);
    if (i & 256) a.state_out = ring2_clone(&a.state);
    if (i & 512) a.g.data = NULL;
    if (i & 1024) a.beta.data = NULL;
    ring2_rule_inputs(&a, !(i & 16), -0.5);
    return a;
}

static void against_float64(void)
{
    gdn_ctx *ctx = ring2_hopper(0, 0);
    for (int i = 0; ctx && i < 2048 && !ring2_failed(); i += 37) {
        gdn_batch *batch;
        const gdn_rule_args a = take(i, &batch);
        ring2_rule_check(ctx, &a, false);
        CHECK(strstr(gdn_last_kernel(ctx), "decode_token_single"), "%d: %s", i,
              gdn_last_kernel(ctx));
        ring2_free();
    }
}

/* With GDN_BATCH_INVARIANT prefill computes sequences of one token too, so their bits are those
 * of a call alone. */
static void batch_invariant(void)
{
    gdn_ctx *ctx = ring2_hopper(0, 0);
    gdn_batch *batch;
    if (!ctx) return;
    gdn_rule_args a = take(2, &batch);
    a.flags |= GDN_BATCH_INVARIANT;
    ring2_rule_check(ctx, &a, false);
    CHECK(!strstr(gdn_last_kernel(ctx), "decode_token_single"), "%s", gdn_last_kernel(ctx));
}

/* More of them than a lane looks at once. */
static void many(void)
{
    enum { N = 300 };
    static const int heads[3] = { 1, 1, 1 };
    static int64_t lengths[N];
    gdn_ctx *ctx = ring2_hopper(0, 0);
    if (!ctx) return;
    for (int i = 0; i < N; i++) lengths[i] = i % 41 == 17 ? 80 : i % 13 != 5;
    gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, N, lengths, heads, K, 128, NULL);
    ring2_rule_inputs(&a, true, -0.5);
    ring2_rule_check(ctx, &a, false);
    CHECK(strstr(gdn_last_kernel(ctx), "decode_token_single"), "%s", gdn_last_kernel(ctx));
}

/* A prompt is cut into segments by the plan of a kernel. */
static void beside_segments(void)
{
    static const int heads[3] = { 1, 1, 1 };
    static const int64_t lengths[] = { 1, 1, 700, 1, 90, 1 };
    gdn_ctx *ctx = ring2_hopper_apart(188, 30000, 128, 64);
    if (!ctx) return;
    gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, 6, lengths, heads, K, 128, NULL);
    ring2_rule_inputs(&a, true, -0.05);
    ring2_rule_check(ctx, &a, false);
    CHECK(strstr(gdn_last_kernel(ctx), "decode_token_single"), "%s", gdn_last_kernel(ctx));
    CHECK(strstr(gdn_last_kernel(ctx), "segments_plan"), "%s", gdn_last_kernel(ctx));
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "one token among prompts", against_float64 },
        { "one token among prompts: GDN_BATCH_INVARIANT", batch_invariant },
        { "many of one token, empty ones and prompts", many },
        { "one token beside segments", beside_segments },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
