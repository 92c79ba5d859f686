/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context serves one call at a time. While a call runs, its parallel_for makes every other call
 * of gdn.h in that context, from its own thread and from another one. All are refused at once, and
 * the running call gives its usual bits.
 */
#include <string.h>

#include "core/os/os.h"
#include "gdn_blob.h"
#include "ring2_calls.h"
#include "ring2_rule.h"

enum { N_BLOB_CALLS = 6 };

/* The results of one thread while the context is busy. */
struct intruder {
    gdn_ctx *ctx;
    gdn_status ops[RING2_N_OPS], supported, bytes, blobs[N_BLOB_CALLS], self_test;
    const char *text;
};

static void intrude(void *arg)
{
    struct intruder *i = arg;
    union ring2_call nothing;
    gdn_blob_args blob = gdn_blob_args_init();
    gdn_blob_info info = gdn_blob_info_init();
    size_t n;
    memset(&nothing, 0, sizeof nothing);
    for (int op = 0; op < RING2_N_OPS; op++) i->ops[op] = gdn_run_op(i->ctx, (gdn_op)op, &nothing);
    i->supported = gdn_supported(i->ctx, GDN_OP_GATES, &nothing);
    i->bytes = gdn_workspace_bytes(i->ctx, GDN_OP_GATES, &nothing, &n);
    i->self_test = gdn_self_test(i->ctx);
    i->blobs[0] = gdn_blob_bytes(i->ctx, &blob, &n);
    i->blobs[1] = gdn_blob_save(i->ctx, &blob);
    i->blobs[2] = gdn_blob_inspect(i->ctx, &blob, 0, &info);
    i->blobs[3] = gdn_blob_load(i->ctx, &blob);
    i->blobs[4] = gdn_blob_slice(i->ctx, &blob, 0, 0, 1, NULL, 0, &n);
    i->blobs[5] = gdn_blob_merge(i->ctx, NULL, NULL, 1, NULL, 0, &n);
    i->text = gdn_last_error(i->ctx);
}

static struct intruder here, there;
static int n_pieces;

/* The context's parallel_for. */
static void intruded(void *user, int64_t n, gdn_work work, void *arg)
{
    struct gdn_os_thread thread;
    here.ctx = there.ctx = *(gdn_ctx **)user;
    n_pieces++;
    CHECK(gdn_os_thread_start(&thread, intrude, &there), "no thread");
    intrude(&here);
    gdn_os_thread_join(&thread);
    for (int64_t i = 0; i < n; i++) work(arg, i, 0);
}

static void refused(const struct intruder *i, const char *who)
{
    for (int op = 0; op < RING2_N_OPS; op++)
        CHECK(i->ops[op] == GDN_E_ARG, "%s: op %d: status %d", who, op, (int)i->ops[op]);
    CHECK(i->supported == GDN_E_ARG && i->bytes == GDN_E_ARG, "%s: questions", who);
    CHECK(i->self_test != GDN_OK, "%s: self-test", who);
    for (int j = 0; j < N_BLOB_CALLS; j++)
        CHECK(i->blobs[j] == GDN_E_ARG, "%s: blob call %d: status %d", who, j, (int)i->blobs[j]);
    CHECK(i->text && strstr(i->text, "ctx: another call"), "%s: text \"%s\"", who,
          i->text ? i->text : "");
}

static void refused_at_once(void)
{
    static const int heads[3] = { 2, 2, 4 };
    const gdn_rule_args want = ring2_rule_args(GDN_F32, GDN_F32, 40, 3, heads, 64, 64);
    const gdn_rule_args got = ring2_rule_clone(&want);
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.n_threads = 2;
    o.parallel_for = intruded;
    o.parallel_user = &ctx;
    ring2_status(NULL, "context", gdn_ctx_create(&o, &ctx), GDN_OK);
    ring2_status(ring2_ctx(1), "alone", gdn_prefill(ring2_ctx(1), &want), GDN_OK);
    ring2_status(ctx, "the call that runs", gdn_prefill(ctx, &got), GDN_OK);
    CHECK(n_pieces > 0, "parallel_for was not called");
    refused(&here, "this thread");
    refused(&there, "another thread");
    ring2_expect_bits("out", &got.out, &want.out);
    ring2_expect_bits("state", &got.state, &want.state);
    CHECK(!strcmp(gdn_last_error(ctx), ""), "text \"%s\" after it", gdn_last_error(ctx));
    ring2_status(ctx, "the next call", gdn_prefill(ctx, &got), GDN_OK);
    gdn_ctx_destroy(ctx);
}

/* A refused call leaves the context free. */
static void free_after_refusal(void)
{
    static const int heads[3] = { 1, 1, 1 };
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 4, 1, heads, 8, 8);
    void *const q = a.q.data;
    size_t n;
    a.q.data = NULL;
    ring2_status(ctx, "no q", gdn_prefill(ctx, &a), GDN_E_ARG);
    ring2_status(ctx, "no q", gdn_supported(ctx, GDN_OP_PREFILL, &a), GDN_E_ARG);
    ring2_status(ctx, "no bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL, &a, NULL), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "bytes: NULL"), "text \"%s\"", gdn_last_error(ctx));
    a.q.data = q;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL, &a, &n), GDN_OK);
    ring2_status(ctx, "with q", gdn_prefill(ctx, &a), GDN_OK);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "a busy context refuses every call at once", refused_at_once },
        { "a refused call leaves the context free", free_after_refusal },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
