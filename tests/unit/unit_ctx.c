/* SPDX-License-Identifier: Apache-2.0 */
/* The context: options, memory hooks, workspace, texts. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core/ctx.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "ring2.h"
#include "ring2_memory.h"

/* ---- Names --------------------------------------------------------------------------------- */

static void test_names(void)
{
    CHECK(gdn_version() == GDN_VERSION, "version %#x", (unsigned)gdn_version());
    static const char *const names[] = { "GDN_OK",      "GDN_E_ARG",         "GDN_E_SHAPE",
                                         "GDN_E_DTYPE", "GDN_E_UNSUPPORTED", "GDN_E_MEMORY",
                                         "GDN_E_CUDA",  "GDN_E_SELF_TEST" };
    for (int i = -1; i < 9; i++) {
        const char *got = gdn_status_name((gdn_status)i);
        CHECK(!strcmp(got, i >= 0 && i < 8 ? names[i] : "GDN_E_?"), "status %d: %s", i, got);
    }
    static const size_t bytes[20] = {
        [GDN_F32] = 4,  [GDN_BF16] = 2, [GDN_F16] = 2, [GDN_I8] = 1, [GDN_E4M3] = 1,
        [GDN_E5M2] = 1, [GDN_I32] = 4,  [GDN_I64] = 8, [GDN_U8] = 1
    };
    for (int i = -1; i < 20; i++)
        CHECK(gdn_dtype_bytes(i) == (i >= 0 ? bytes[i] : 0), "dtype %d: %zu bytes", i,
              gdn_dtype_bytes(i));
}

/* ---- Memory that is counted and fails on demand -------------------------------------------- */

static void test_failing_memory(void)
{
    int failed = 0;
    for (int n = 1;; n++) {
        struct ring2_memory m = { .fail_at = n };
        gdn_options o = ring2_memory_options(&m, 3);
        gdn_ctx *ctx = (gdn_ctx *)&m; /* must become NULL */
        void *work = NULL;
        char text[100] = "";
        o.error_text = text;
        o.error_text_bytes = sizeof text;
        gdn_status status = gdn_ctx_create(&o, &ctx);
        if (status != GDN_OK) {
            CHECK(!ctx, "allocation %d: a context after an error", n);
            CHECK(strstr(text, "memory"), "allocation %d: text \"%s\"", n, text);
        } else {
            status = gdn_get_workspace(ctx, NULL, 0, 1000, &work);
            CHECK(status == GDN_OK || strstr(gdn_last_error(ctx), "1000"), "text \"%s\"",
                  gdn_last_error(ctx));
        }
        gdn_ctx_destroy(ctx);
        CHECK(m.n_live == 0, "allocation %d: %d blocks left", n, m.n_live);
        if (status == GDN_OK) break;
        failed++;
        CHECK(status == GDN_E_MEMORY, "allocation %d: %s", n, gdn_status_name(status));
    }
    CHECK(failed == 3, "%d allocations failed in turn, wanted 3: context, pool, workspace", failed);
}

/* ---- Options ------------------------------------------------------------------------------- */

static int processors(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return 0;
}

static void test_defaults(void)
{
    gdn_ctx *ctx = NULL;
    ring2_status(NULL, "without options", gdn_ctx_create(NULL, &ctx), GDN_OK);
    if (!ctx) return;
    CHECK(processors() == 0 || gdn_n_threads(ctx) == processors(), "%d threads",
          (int)gdn_n_threads(ctx));
    CHECK(!strcmp(gdn_last_error(ctx), ""), "error \"%s\"", gdn_last_error(ctx));
    CHECK(!strcmp(gdn_last_kernel(ctx), ""), "kernel \"%s\"", gdn_last_kernel(ctx));
    gdn_ctx_destroy(ctx);

    gdn_ctx_destroy(NULL);
    CHECK(!strcmp(gdn_last_error(NULL), ""), "error of no context");
    CHECK(!strcmp(gdn_last_kernel(NULL), ""), "kernel of no context");
    CHECK(!strcmp(gdn_isa(NULL), ""), "isa of no context");
    CHECK(gdn_n_threads(NULL) == 0, "threads of no context");
}

/* A refused creation: its status, and words of its text. */
static void expect_refused(const char *what, const gdn_options *options, gdn_status want,
                           const char *word, const char *found)
{
    char text[200] = "";
    gdn_options o = *options;
    gdn_ctx *ctx = (gdn_ctx *)text;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    ring2_status(NULL, what, gdn_ctx_create(&o, &ctx), want);
    CHECK(!ctx, "%s: a context after an error", what);
    CHECK(strstr(text, word) && strstr(text, found), "%s: text \"%s\"", what, text);
}

static void test_bad_options(void)
{
    struct ring2_memory m = { 0 };
    gdn_options o = gdn_options_init();
    o.n_threads = -1;
    expect_refused("n_threads -1", &o, GDN_E_ARG, "n_threads", "-1");
    o.n_threads = 1025;
    expect_refused("n_threads 1025", &o, GDN_E_ARG, "n_threads", "1025");
    o = gdn_options_init();
    o.backend = 2;
    expect_refused("backend", &o, GDN_E_ARG, "backend", "2");
    o = gdn_options_init();
    o.flags = 2;
    expect_refused("flags", &o, GDN_E_ARG, "flags", "0x2");
    o = ring2_memory_options(&m, 0);
    o.release = NULL;
    expect_refused("alloc alone", &o, GDN_E_ARG, "release", "NULL");
    o = ring2_memory_options(&m, 0);
    o.alloc = NULL;
    expect_refused("release alone", &o, GDN_E_ARG, "alloc", "NULL");
    o = ring2_memory_options(&m, 2);
    o.isa = "none";
    expect_refused("isa", &o, GDN_E_ARG, "isa", "none");
    CHECK(m.n_calls == 0, "memory asked for before the options were checked");

    ring2_status(NULL, "no place for the context", gdn_ctx_create(NULL, NULL), GDN_E_ARG);
}

static void test_error_text_is_cut(void)
{
    char text[8];
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx;
    o.n_threads = -1;
    o.error_text = text;
    o.error_text_bytes = 5;
    memset(text, 'x', sizeof text);
    ring2_status(NULL, "n_threads -1", gdn_ctx_create(&o, &ctx), GDN_E_ARG);
    CHECK(!memcmp(text, "n_th\0xxx", 8), "cut to \"%.8s\"", text);
    o.error_text_bytes = 0;
    memset(text, 'x', sizeof text);
    ring2_status(NULL, "n_threads -1", gdn_ctx_create(&o, &ctx), GDN_E_ARG);
    CHECK(text[0] == 'x', "wrote to a text of 0 bytes");
}

/* ---- Structs of other versions ------------------------------------------------------------- */

struct newer {
    gdn_options o;
    int more[3];
};

static void test_options_of_other_versions(void)
{
    gdn_ctx *ctx = NULL;
    struct newer newer;
    memset(&newer, 0, sizeof newer);
    newer.o.struct_size = sizeof newer;
    ring2_status(NULL, "a newer struct", gdn_ctx_create(&newer.o, &ctx), GDN_OK);
    gdn_ctx_destroy(ctx);

    char text[200] = "";
    newer.more[2] = 1;
    newer.o.error_text = text;
    newer.o.error_text_bytes = sizeof text;
    ring2_status(NULL, "a newer wish", gdn_ctx_create(&newer.o, &ctx), GDN_E_ARG);
    CHECK(!ctx && strstr(text, "options"), "text \"%s\"", text);
}

static void test_copy_args(void)
{
    gdn_ctx *ctx = ring2_ctx(1);
    struct {
        uint32_t size;
        int a, b;
    } own;
    unsigned char *given = ring2_alloc(4, 4); /* ends at a page that cannot be read */
    const uint32_t sizes[] = { 0, 4, 7, 65537, UINT32_MAX };

    ring2_status(ctx, "NULL", gdn_copy_args(ctx, &own, sizeof own, NULL, "some_args"), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "some_args"), "text \"%s\"", gdn_last_error(ctx));
    for (int i = 0; i < 5; i++) {
        memcpy(given, &sizes[i], 4);
        ring2_status(ctx, "size", gdn_copy_args(ctx, &own, sizeof own, given, "some_args"),
                     GDN_E_ARG);
        CHECK(strstr(gdn_last_error(ctx), "some_args"), "text \"%s\"", gdn_last_error(ctx));
    }

    int32_t *longer = ring2_alloc(20, 4);
    for (int i = 4; i < 20; i++) { /* each byte behind the size in turn */
        const int32_t all[5] = { 20, 0, 0, 0, 0 };
        memcpy(longer, all, 20);
        ((unsigned char *)longer)[i] = 1;
        ring2_status(ctx, "20 bytes", gdn_copy_args(ctx, &own, sizeof own, longer, "s"),
                     i < 12 ? GDN_OK : GDN_E_ARG);
    }
}

/* ---- Workspace, kernel, log ---------------------------------------------------------------- */

static void test_workspace(void)
{
    struct ring2_memory m = { 0 };
    gdn_options o = ring2_memory_options(&m, 1);
    gdn_ctx *ctx;
    void *a, *b;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    const int before = m.n_live;

    ring2_status(ctx, "nothing", gdn_get_workspace(ctx, NULL, 0, 0, &a), GDN_OK);
    CHECK(m.n_live == before, "memory for nothing");
    ring2_status(ctx, "1000", gdn_get_workspace(ctx, NULL, 0, 1000, &a), GDN_OK);
    CHECK(m.last_align == 64 && (uintptr_t)a % 64 == 0, "alignment %zu, %p", m.last_align, a);
    memset(a, 1, 1000);
    const int calls = m.n_calls;
    ring2_status(ctx, "500", gdn_get_workspace(ctx, NULL, 0, 500, &b), GDN_OK);
    CHECK(a == b && m.n_calls == calls, "a smaller one asked for memory");
    ring2_status(ctx, "2000", gdn_get_workspace(ctx, NULL, 0, 2000, &b), GDN_OK);
    memset(b, 1, 2000);
    CHECK(m.n_live == before + 1, "%d blocks, wanted one", m.n_live - before);

    m.fail_at = m.n_calls + 1;
    ring2_status(ctx, "no memory", gdn_get_workspace(ctx, NULL, 0, 3000, &b), GDN_E_MEMORY);
    ring2_status(ctx, "again", gdn_get_workspace(ctx, NULL, 0, 100, &b), GDN_OK);
    memset(b, 1, 100);
    gdn_ctx_destroy(ctx);
    CHECK(m.n_live == 0, "%d blocks left", m.n_live);
}

static void test_given_workspace(void)
{
    gdn_ctx *ctx = ring2_ctx(1);
    char *mine = ring2_alloc(256, 64);
    void *memory;
    ring2_status(ctx, "exact", gdn_get_workspace(ctx, mine, 256, 256, &memory), GDN_OK);
    CHECK(memory == mine, "not the given memory");
    ring2_status(ctx, "small", gdn_get_workspace(ctx, mine, 255, 256, &memory), GDN_E_MEMORY);
    CHECK(strstr(gdn_last_error(ctx), "workspace_bytes: 255") && strstr(gdn_last_error(ctx), "256"),
          "text \"%s\"", gdn_last_error(ctx));
    ring2_status(ctx, "askew", gdn_get_workspace(ctx, mine + 32, 224, 10, &memory), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "workspace"), "text \"%s\"", gdn_last_error(ctx));
}

struct journal {
    int n;
    char last[200];
};

static void write_journal(void *user, const char *line)
{
    struct journal *j = user;
    j->n++;
    snprintf(j->last, sizeof j->last, "%s", line);
}

static void test_log(void)
{
    struct journal j = { 0 };
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx;
    char isa[] = "scalar";
    char long_[sizeof ctx->kernel + 100];
    void *memory;
    o.isa = isa;
    o.n_threads = 2;
    o.log = write_journal;
    o.log_user = &j;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    memset(isa, 'x', sizeof isa - 1); /* the caller's string may change afterwards */
    CHECK(j.n == 1 && strstr(j.last, "scalar") && strstr(j.last, "2"), "line \"%s\"", j.last);
    CHECK(!strcmp(gdn_isa(ctx), "scalar"), "isa %s", gdn_isa(ctx));
    CHECK(!strcmp(ctx->options.isa, "scalar"), "the option became %s", ctx->options.isa);

    ring2_status(ctx, "note", gdn_note_kernel(ctx, "decode", "recur_vk dot"), GDN_OK);
    CHECK(!strcmp(gdn_last_kernel(ctx), "decode: recur_vk.scalar dot.scalar"), "%s",
          gdn_last_kernel(ctx));
    CHECK(j.n == 2 && !strcmp(j.last, "decode: recur_vk.scalar dot.scalar"), "line \"%s\"", j.last);
    ring2_status(ctx, "note", gdn_note_kernel(ctx, "decode", "recur_vk dot"), GDN_OK);
    CHECK(j.n == 2, "the same kernel was logged twice");
    gdn_get_workspace(ctx, NULL, 0, 12345, &memory);
    CHECK(j.n == 3 && strstr(j.last, "12345"), "line \"%s\"", j.last);

    memset(long_, 'k', sizeof long_);
    long_[sizeof long_ - 1] = 0;
    ring2_status(ctx, "note", gdn_note_kernel(ctx, "op", long_), GDN_OK);
    CHECK(strlen(gdn_last_kernel(ctx)) == sizeof ctx->kernel - 1, "a long name was not cut");
    gdn_ctx_destroy(ctx);
}

static void test_fail(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    char long_[2000];
    memset(long_, 'e', sizeof long_);
    long_[1999] = 0;
    CHECK(gdn_fail(NULL, GDN_E_SHAPE, "%s", "x") == GDN_E_SHAPE, "status without a context");
    CHECK(gdn_fail(ctx, GDN_E_DTYPE, "q: %d, wanted %s", 3, "f32") == GDN_E_DTYPE, "status");
    CHECK(!strcmp(gdn_last_error(ctx), "q: 3, wanted f32"), "text \"%s\"", gdn_last_error(ctx));
    gdn_fail(ctx, GDN_E_ARG, "%s", long_);
    CHECK(strlen(gdn_last_error(ctx)) == sizeof ctx->error - 1, "a long text was not cut");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "ctx: names", test_names },
        { "ctx: defaults", test_defaults },
        { "ctx: every allocation fails in turn", test_failing_memory },
        { "ctx: bad options", test_bad_options },
        { "ctx: error text is cut", test_error_text_is_cut },
        { "ctx: options of other versions", test_options_of_other_versions },
        { "ctx: copies of args structs", test_copy_args },
        { "ctx: own workspace", test_workspace },
        { "ctx: given workspace", test_given_workspace },
        { "ctx: log and kernel", test_log },
        { "ctx: error texts", test_fail },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
