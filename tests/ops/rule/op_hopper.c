/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu, sm_90 "bf16" --every=8 */
/*
 * gdn_prefill on Hopper by each of its forms, with more chunks than any ring of theirs has
 * places: against float64, and once more to the same bits. On an emulated device what goes on
 * behind threads' backs takes other times in every call, so who gives a place back too soon, or
 * does not wait, is found out.
 */
#include <string.h>

#include "core/ctx.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/launch.h"
#include "ring2_device.h"
#include "ring2_rule.h"

/* Forms, and the number of multiprocessors with which the planner takes each. first 0: whole
 * sequences. */
static const struct form {
    const char *kernel;
    int64_t K, V;
    int sm_count;
    int64_t first, each;
} forms[] = {
    { "prefill_sm90_cluster", 128, 128, 132, 0, 0 },
    { "prefill_sm90_wide", 128, 128, 4, 0, 0 },
    { "prefill_sm90_k64", 64, 64, 132, 0, 0 },
    { "prefill_sm90_k256", 192, 72, 132, 0, 0 },
    { "prefill_sm90_summary", 128, 128, 132, 64, 192 },
    { "prefill_sm90_summary", 64, 48, 132, 64, 256 },
    { "prefill_sm90_cluster", 64, 264, 132, 0, 0 },
    { "prefill_sm90_k256", 256, 264, 132, 0, 0 },
    { "prefill_sm90_summary", 64, 264, 132, 64, 192 },
};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* Opens a Hopper with the properties that make the planner choose the form; NULL: another
 * device. */
static gdn_ctx *open_for(const struct form *f)
{
    gdn_ctx *ctx = ring2_hopper(f->first, f->each);
    if (!ctx) return NULL;
    ctx->cuda->sm_count = f->sm_count;
    return ctx;
}

/* Long enough that the ring of gates, the longest ring, is used again. */
static gdn_rule_args take(const struct form *f, int32_t dtype, bool norm)
{
    static const int64_t lengths[] = { 65, 0, 710 };
    static const int heads[3] = { 1, 1, 1 };
    gdn_rule_args a = ring2_rule_packed(dtype, GDN_F32, 3, lengths, heads, f->K, f->V, NULL);
    ring2_rule_inputs(&a, !norm, -0.05);
    a.norm = norm ? GDN_NORM_L2 : GDN_NORM_NONE;
    return a;
}

static void each_form(int32_t dtype, bool norm)
{
    for (const struct form *f = forms; f < forms + N_FORMS && !ring2_failed(); f++) {
        gdn_ctx *ctx = open_for(f);
        if (!ctx) return;
        gdn_rule_args a = take(f, dtype, norm), again = ring2_rule_clone(&a);
        ring2_rule_check(ctx, &a, false);
        CHECK(strstr(gdn_last_kernel(ctx), f->kernel), "%s, wanted %s", gdn_last_kernel(ctx),
              f->kernel);
        ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, &again), GDN_OK);
        ring2_expect_bits("out, again", &again.out, &a.out);
        ring2_expect_bits("state, again", &again.state, &a.state);
        ring2_free();
    }
}

static void bf16(void) { each_form(GDN_BF16, false); }
static void bf16_norm(void) { each_form(GDN_BF16, true); }
static void f16(void) { each_form(GDN_F16, false); }
static void f16_norm(void) { each_form(GDN_F16, true); }

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G3 forms: bf16", bf16 },
        { "G3 forms: bf16, keys normalised", bf16_norm },
        { "G3 forms: f16", f16 },
        { "G3 forms: f16, keys normalised", f16_norm },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
