/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/*
 * GDN_CTX_CHECK_CONTENTS with the driver of fake_cuda.c: which calls of the driver it makes, and
 * when. op_contents.c compares its refusals with those of a CPU.
 */
#include <string.h>

#include "fake_ctx.h"
#include "ring2_rule.h"

static char lines[1024]; /* of the log */

static void log_line(void *user, const char *line)
{
    (void)user;
    const size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
}

static gdn_ctx *make_ctx(uint32_t flags)
{
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.backend = GDN_BACKEND_CUDA, o.flags = flags, o.log = log_line;
    *fake = hopper;
    fake->copies = 1;
    lines[0] = 0;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    return ctx;
}

/* A decode of three sequences in slots of a pool of three; slot 1 becomes `slot`. */
static gdn_rule_args call(int64_t slot, gdn_batch **t)
{
    static const int64_t lengths[3] = { 1, 1, 1 };
    static const int heads[3] = { 1, 1, 1 };
    gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, lengths, heads, 8, 8, t);
    a.state = ring2_new(GDN_F32, 0, 4, 3, 1, 8, 8);
    (*t)->read_slots = ring2_indices(GDN_I32, 3, (const int64_t[]){ 2, slot, 0 });
    return a;
}

static void expect_calls(const char *what, int waits, int copies, int launches)
{
    const int *n = fake->n_calls;
    CHECK(n[FAKE_cuStreamSynchronize] == waits && n[FAKE_cuMemcpyDtoH] == copies &&
              n[FAKE_cuLaunchKernelEx] == launches,
          "%s: %d waits, %d copies, %d launches", what, n[FAKE_cuStreamSynchronize],
          n[FAKE_cuMemcpyDtoH], n[FAKE_cuLaunchKernelEx]);
    CHECK(fake->depth == 0, "%s: %d contexts left on the stack", what, fake->depth);
}

static void without_the_flag(void)
{
    gdn_batch *t;
    gdn_ctx *ctx = make_ctx(0);
    gdn_rule_args a = call(7, &t);
    ring2_status(ctx, "a wrong slot", gdn_decode(ctx, &a), GDN_OK);
    expect_calls("no flag", 0, 0, 1);
    gdn_ctx_destroy(ctx);
}

static void with_the_flag(void)
{
    gdn_batch *t;
    gdn_ctx *ctx = make_ctx(GDN_CTX_CHECK_CONTENTS);
    gdn_rule_args a = call(1, &t);
    ring2_status(ctx, "good slots", gdn_decode(ctx, &a), GDN_OK);
    expect_calls("good slots", 1, 2, 1); /* cu_seqlens, read_slots */
    a = call(7, &t);
    ring2_status(ctx, "a wrong slot", gdn_decode(ctx, &a), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "read_slots: slot 7 for sequence 1, wanted 0 to 2"), "\"%s\"",
          gdn_last_error(ctx));
    expect_calls("a wrong slot", 2, 4, 1);
    fake->fails = "cuMemcpyDtoH";
    ring2_status(ctx, "a copy that fails", gdn_decode(ctx, &a), GDN_E_CUDA);
    expect_calls("a copy that fails", 3, 5, 1);
    gdn_ctx_destroy(ctx);
}

/* Nothing may wait for a stream from which a graph is captured. */
static void while_a_graph_is_captured(void)
{
    gdn_batch *t;
    gdn_ctx *ctx = make_ctx(GDN_CTX_CHECK_CONTENTS);
    gdn_rule_args a = call(7, &t);
    fake->captures = 1;
    ring2_status(ctx, "a captured call", gdn_decode(ctx, &a), GDN_OK);
    expect_calls("a captured call", 0, 0, 1);
    CHECK(strstr(lines, "contents: not checked"), "log \"%s\"", lines);
    gdn_ctx_destroy(ctx);
}

/* Images for sm_90a alone are loaded on no other chip. */
static void newer_chips(void)
{
    for (int major = 8; major <= 12; major++) {
        gdn_batch *t;
        gdn_ctx *ctx = NULL;
        gdn_options o = gdn_options_init();
        o.backend = GDN_BACKEND_CUDA, o.log = log_line;
        *fake = hopper;
        fake->major = major;
        lines[0] = 0;
        ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
        if (!ctx) return;
        CHECK(!strstr(lines, "portable kernels") == (major == 9), "sm_%d0: log \"%s\"", major,
              lines);
        const gdn_rule_args a = call(1, &t);
        ring2_status(ctx, "decode", gdn_decode(ctx, &a), GDN_OK);
        CHECK((fake->launch.n_attributes > 0) == (major == 9), "sm_%d0: %u attributes", major,
              fake->launch.n_attributes);
        gdn_ctx_destroy(ctx);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "without the flag contents are not read", without_the_flag },
        { "with the flag contents are checked", with_the_flag },
        { "not while a graph is captured", while_a_graph_is_captured },
        { "newer chips run the portable code", newer_chips },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
