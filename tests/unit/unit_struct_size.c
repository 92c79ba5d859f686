/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct_size: the library takes the size of each struct, sizes of earlier versions, and larger
 * ones with a zero tail. It refuses every other size, such as one that ends inside a field.
 */
#include <string.h>

#include "core/ctx.h"
#include "gdn_blob.h"
#include "gdn_research.h"
#include "gdn_train.h"
#include "ring2_calls.h"

static void refused(gdn_ctx *ctx, gdn_op op, const void *args, const char *name, uint32_t size)
{
    const gdn_status status = gdn_run_op(ctx, op, args);
    const char *text = gdn_last_error(ctx);
    CHECK(status == GDN_E_ARG && strstr(text, name) && strstr(text, "struct_size"),
          "op %d: size %u of %s: status %d, \"%s\"", (int)op, size, name, (int)status, text);
    CHECK(gdn_supported(ctx, op, args) == GDN_E_ARG, "op %d: size %u of %s is supported", (int)op,
          size, name);
}

/* Returns the size of the op's struct in 0.1.0, if it has grown since; else 0. */
static uint32_t size_before(gdn_op op)
{
    switch (op) {
    case GDN_OP_PREFILL:
    case GDN_OP_DECODE: return offsetof(gdn_rule_args, write_gate);
    case GDN_OP_PREFILL_BACKWARD: return offsetof(gdn_prefill_backward_args, write_gate);
    case GDN_OP_SUMMARY: return offsetof(gdn_summary_args, write_gate);
    case GDN_OP_RECORD_FOLD: return offsetof(gdn_record_fold_args, norm_eps);
    case GDN_OP_STEP: return offsetof(gdn_step_args, record_k);
    case GDN_OP_BLOCK: return offsetof(gdn_block_args, beta_kind);
    case GDN_OP_BLOCK_BACKWARD: return offsetof(gdn_block_backward_args, activation);
    default: return 0;
    }
}

static bool is_zero(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* A program of 0.1.0: its struct ends where the fields added since begin, at a page that cannot
 * be read. */
static void old_programs(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    struct ring2_draw draw;
    union ring2_call c;
    gdn_batch batch;
    ring2_draw_init(&draw, true);
    for (int i = 0; i < RING2_N_OPS; i++) {
        const gdn_op op = (gdn_op)i;
        const uint32_t before = size_before(op);
        if (!before) continue;
        do ring2_draw_call(&draw, op, &c, &batch);
        while (gdn_supported(ctx, op, &c) != GDN_OK ||
               !is_zero(c.bytes + before, gdn_op_shapes[op].bytes - before));
        c.rule.struct_size = before;
        const void *old = memcpy(ring2_alloc(before, 8), &c, before);
        ring2_status(ctx, gdn_op_shapes[op].args, gdn_supported(ctx, op, old), GDN_OK);
    }
}

static void each_op(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    struct ring2_draw draw;
    union ring2_call c;
    gdn_batch batch;
    ring2_draw_init(&draw, true);
    for (int i = 0; i < RING2_N_OPS; i++) {
        const gdn_op op = (gdn_op)i;
        do ring2_draw_call(&draw, op, &c, &batch);
        while (gdn_supported(ctx, op, &c) != GDN_OK);
        ring2_call_begin();
        for (uint32_t n = 0; n < gdn_op_shapes[op].bytes; n++) {
            if (n && n == size_before(op)) continue;
            c.rule.struct_size = n;
            refused(ctx, op, &c, gdn_op_shapes[op].args, n);
        }
        ring2_call_end();
    }
}

static void batches(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    struct ring2_draw draw;
    union ring2_call c;
    gdn_batch batch;
    const gdn_batch *its;
    ring2_draw_init(&draw, true);
    for (int i = 0; i < RING2_N_OPS; i++) {
        const gdn_op op = (gdn_op)i;
        const size_t at = gdn_op_shapes[op].batch_at;
        if (!at) continue;
        do {
            ring2_draw_call(&draw, op, &c, &batch);
            memcpy(&its, c.bytes + at, sizeof its);
        } while (its != &batch || gdn_supported(ctx, op, &c) != GDN_OK);
        for (uint32_t n = 0; n < sizeof batch; n++) {
            if (n == offsetof(gdn_batch, first_slot)) continue; /* of 0.1.0 */
            batch.struct_size = n;
            refused(ctx, op, &c, "batch", n);
        }
    }
}

static void options(void)
{
    for (uint32_t n = 0; n < sizeof(gdn_options); n++) {
        gdn_options o = gdn_options_init();
        gdn_ctx *ctx = NULL;
        o.struct_size = n;
        o.n_threads = 1;
        CHECK(gdn_ctx_create(&o, &ctx) == GDN_E_ARG && !ctx, "size %u of gdn_options", n);
        gdn_ctx_destroy(ctx);
    }
}

static void blobs(void)
{
    gdn_ctx *ctx = ring2_ctx(1);
    size_t bytes;
    gdn_blob_args a = gdn_blob_args_init();
    a.n_key_heads = a.n_value_heads = 1, a.key_head_dim = a.value_head_dim = 4;
    a.state = ring2_new(GDN_F32, 0, 4, 2, 1, 4, 4);
    a.blob_bytes = 4096;
    a.blob = ring2_alloc(a.blob_bytes, 8);
    ring2_fill(&a.state, -1, 1);
    ring2_status(ctx, "save", gdn_blob_save(ctx, &a), GDN_OK);
    ring2_status(ctx, "bytes", gdn_blob_bytes(ctx, &a, &bytes), GDN_OK);
    for (uint32_t n = 0; n < sizeof a; n++) {
        if (n == offsetof(gdn_blob_args, state_scales)) continue; /* of 0.1.0 */
        a.struct_size = n;
        CHECK(gdn_blob_bytes(ctx, &a, &bytes) == GDN_E_ARG, "bytes: size %u", n);
        CHECK(gdn_blob_save(ctx, &a) == GDN_E_ARG, "save: size %u", n);
        CHECK(gdn_blob_load(ctx, &a) == GDN_E_ARG, "load: size %u", n);
    }
    for (uint32_t n = 0; n < sizeof(gdn_blob_info); n++) {
        gdn_blob_info i = gdn_blob_info_init();
        if (n == offsetof(gdn_blob_info, state_scales)) continue;
        i.struct_size = n;
        CHECK(gdn_blob_inspect(ctx, a.blob, bytes, &i) == GDN_E_ARG, "inspect: size %u", n);
        CHECK(strstr(gdn_last_error(ctx), "gdn_blob_info"), "\"%s\"", gdn_last_error(ctx));
    }
}

/* A struct that has grown twice: at 8 and at 16 bytes. */
static void earlier_versions(void)
{
    struct grown {
        uint32_t size;
        int32_t a, b, c, d, e;
    };
    static const struct gdn_old_size old[] = {
        { "other", 12 }, { "grown", 8 }, { "grown", 16 }, { NULL, 0 }
    };
    gdn_ctx *ctx = ring2_ctx(1);
    int32_t *given = ring2_alloc(16, 4); /* ends at a page that cannot be read */
    for (uint32_t n = 0; n <= 16; n++) {
        const int32_t all[4] = { (int32_t)n, 1, 2, 3 };
        struct grown own;
        const gdn_status want = n == 8 || n == 16 ? GDN_OK : GDN_E_ARG;
        memcpy(given, all, sizeof all);
        memset(&own, 0x55, sizeof own);
        ring2_status(ctx, "an earlier size",
                     gdn_copy_sized(ctx, &own, sizeof own, given, "grown", old), want);
        if (want != GDN_OK) continue;
        CHECK(own.a == 1 && own.b == (n > 8 ? 2 : 0) && own.c == (n > 12 ? 3 : 0) && !own.d &&
                  !own.e,
              "size %u: copied %d %d %d %d %d", n, own.a, own.b, own.c, own.d, own.e);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "struct_size: every op", each_op },
        { "struct_size: programs of 0.1.0", old_programs },
        { "struct_size: gdn_batch", batches },
        { "struct_size: gdn_options", options },
        { "struct_size: gdn_blob_args, gdn_blob_info", blobs },
        { "struct_size: earlier versions", earlier_versions },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
