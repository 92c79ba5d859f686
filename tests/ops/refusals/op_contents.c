/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * GDN_CTX_CHECK_CONTENTS: a context of a device that checks contents refuses what a context of a
 * CPU refuses, in the same words, and then writes nothing. Calls of every op are drawn at random;
 * some of their slots clash.
 */
#include <string.h>

#include "ring2_calls.h"
#include "ring2_device.h"
#include "ring2_rule.h"

enum { CALLS = 60 };

static gdn_ctx *make_ctx(gdn_backend backend, uint32_t flags)
{
    char text[256] = "";
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.n_threads = 1;
    o.backend = backend;
    o.flags = flags;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    if (gdn_ctx_create(&o, &ctx) != GDN_OK) ring2_fail("%s", text);
    return ctx;
}

/* Runs a call in both contexts, on the same memory. Returns true if the CPU refused its
 * contents. */
static bool compare(gdn_ctx *cpu, gdn_ctx *device, struct ring2_draw *d, gdn_op op,
                    const union ring2_call *c, unsigned char *before)
{
    if (gdn_supported(cpu, op, c) != GDN_OK || gdn_supported(device, op, c) != GDN_OK) return false;
    memcpy(before, d->arena, RING2_ARENA);
    const gdn_status want = gdn_run_op(cpu, op, c);
    memcpy(d->arena, before, RING2_ARENA);
    const gdn_status got = gdn_run_op(device, op, c);
    CHECK(got == want, "op %d: %s, but on a CPU %s (%s; %s)", (int)op, gdn_status_name(got),
          gdn_status_name(want), gdn_last_error(device), gdn_last_error(cpu));
    if (want == GDN_OK) return false;
    CHECK(!strcmp(gdn_last_error(device), gdn_last_error(cpu)),
          "op %d: \"%s\", but on a CPU \"%s\"", (int)op, gdn_last_error(device),
          gdn_last_error(cpu));
    CHECK(!memcmp(d->arena, before, RING2_ARENA), "op %d: a refused call wrote", (int)op);
    return true;
}

static void as_on_a_cpu(void)
{
    if (!ring2_on_device()) {
        ring2_skip("on a CPU");
        return;
    }
    gdn_ctx *cpu = make_ctx(GDN_BACKEND_CPU, 0);
    gdn_ctx *device = make_ctx(GDN_BACKEND_CUDA, GDN_CTX_CHECK_CONTENTS);
    unsigned char *before = ring2_heap(RING2_ARENA);
    struct ring2_draw draw;
    int n_refused[RING2_N_OPS] = { 0 };
    ring2_draw_init(&draw, true);
    for (int i = 0; i < RING2_N_OPS * CALLS && !ring2_failed(); i++) {
        const gdn_op op = (gdn_op)(i / CALLS);
        union ring2_call c;
        gdn_batch batch;
        ring2_draw_call(&draw, op, &c, &batch);
        n_refused[op] += compare(cpu, device, &draw, op, &c, before);
    }
    static const gdn_op with_slots[] = { GDN_OP_PREFILL, GDN_OP_DECODE,     GDN_OP_CONV1D,
                                         GDN_OP_BLOCK,   GDN_OP_STATE_COPY, GDN_OP_STEP };
    for (size_t i = 0; i < sizeof with_slots / sizeof *with_slots; i++)
        CHECK(n_refused[with_slots[i]] > 0, "op %d: no call was refused", (int)with_slots[i]);
    gdn_ctx_destroy(cpu), gdn_ctx_destroy(device);
}

/* Without the flag such a call runs, within the tensors. On a CPU the flag changes nothing. */
static void only_with_the_flag(void)
{
    static const int64_t slots[3] = { 0, 7, 1 }, lengths[3] = { 2, 2, 2 };
    static const int heads[3] = { 2, 2, 2 };
    const gdn_backend backend = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    gdn_ctx *plain = make_ctx(backend, 0);
    gdn_ctx *checks = make_ctx(backend, GDN_CTX_CHECK_CONTENTS);
    gdn_batch *t;
    gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, lengths, heads, 8, 8, &t);
    a.state = ring2_new(GDN_F32, 0, 4, 3, 2, 8, 8);
    t->read_slots = ring2_indices(GDN_I32, 3, slots);
    ring2_fill(&a.state, -1, 1);
    for (int decode = 0; decode < 2; decode++) {
        const gdn_op op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
        if (ring2_on_device())
            ring2_status(plain, "without the flag", gdn_run_op(plain, op, &a), GDN_OK);
        ring2_call_begin();
        ring2_status(checks, "with the flag", gdn_run_op(checks, op, &a), GDN_E_ARG);
        CHECK(strstr(gdn_last_error(checks), "read_slots: slot 7 for sequence 1, wanted 0 to 2"),
              "\"%s\"", gdn_last_error(checks));
        ring2_call_end();
    }
    gdn_ctx_destroy(plain), gdn_ctx_destroy(checks);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "contents are checked as on a CPU", as_on_a_cpu },
        { "contents are checked with the flag alone", only_with_the_flag },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
