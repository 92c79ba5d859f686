/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu */
/*
 * More than 2^32 elements: tensors are spread over addresses, of which only touched pages have
 * memory. A call there gives the bits of the same call on dense tensors.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "gdn_blob.h"
#include "ring2_calls.h"
#include "ring2_rule.h"

#define GIB ((int64_t)1 << 30)

enum { MAX_TENSORS = 24 };

/* Address space, zero where nothing was written. */
static struct {
    char *base;
    int64_t bytes, used;
} space;

static bool reserve(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        ring2_skip("no address space for so much");
        return false;
    }
    space.base = p;
    space.bytes = bytes;
    space.used = 0;
    madvise(p, (size_t)bytes, MADV_NOHUGEPAGE); /* 4 KiB for a touched element, not 2 MiB */
    return true;
}

static void give_back(void)
{
    munmap(space.base, (size_t)space.bytes);
    space.base = NULL;
}

static void *take(int64_t bytes)
{
    void *p = space.base + space.used;
    space.used += (bytes + 4095) & ~(int64_t)4095;
    CHECK(space.used <= space.bytes, "the space is too small for this test");
    return p;
}

/* A dense tensor whose elements count to more than 2^31, zero. */
static gdn_tensor vast(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    gdn_tensor t = gdn_dense(space.base, dtype, ndim, s0, s1, s2, s3);
    CHECK(ring2_count(&t) > (int64_t)1 << 31, "not so many");
    t.data = take(ring2_count(&t) * (int64_t)gdn_dtype_bytes(dtype));
    return t;
}

/* ---- Every op, its tensors spread ----------------------------------------------------------- */

enum { ROOM_GIB = 40 }; /* per tensor: two rows of float32 lie 5 2^30 elements apart */

/* The same values, with a first stride so large that the last row begins past 2^32 elements. */
static gdn_tensor spread(const gdn_tensor *t)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(t->dtype);
    gdn_tensor s = *t;
    if (!t->data) return s;
    if (t->ndim < 2 || t->size[0] < 2) {
        s.data = take(ring2_count(t) * unit);
    } else {
        s.stride[0] = ROOM_GIB * GIB / t->size[0] / 64 * 64 / unit;
        s.data = take(ROOM_GIB * GIB);
        CHECK((s.size[0] - 1) * s.stride[0] > (int64_t)1 << 32, "not past 2^32");
    }
    ring2_copy(&s, t);
    return s;
}

/* Weights of a layer are dense and stay where they are. So does a list of ranges, of whose indices
 * the room holds too few. */
static bool stays(gdn_op op, const union ring2_call *c, const gdn_tensor *t)
{
    if (op == GDN_OP_SUMMARY_FOLD) return t == &c->summary_fold.order;
    return op == GDN_OP_BLOCK && t > &c->block.hidden && t < &c->block.conv_state;
}

static void spread_call(gdn_op op, const union ring2_call *c, union ring2_call *far)
{
    union ring2_call *own = (union ring2_call *)(uintptr_t)c;
    *far = *c;
    for (size_t i = 0; i < gdn_op_shapes[op].n_tensors; i++) {
        const gdn_tensor *from = ring2_call_tensor(op, own, i);
        gdn_tensor *to = ring2_call_tensor(op, far, i);
        size_t same = 0; /* two arguments with one view keep one view */
        while (same < i && (!from->data || ring2_call_tensor(op, own, same)->data != from->data))
            same++;
        if (same < i)
            *to = *ring2_call_tensor(op, far, same);
        else if (!stays(op, c, from))
            *to = spread(from);
    }
}

static void spread_one(gdn_op op, struct ring2_draw *draw)
{
    gdn_ctx *ctx = ring2_ctx(2);
    gdn_status status = GDN_E_ARG;
    union ring2_call c, far;
    gdn_batch batch;
    const gdn_tensor *near_list[RING2_MAX_WRITTEN], *far_list[RING2_MAX_WRITTEN];
    for (int i = 0; i < 1000 && status != GDN_OK; i++) {
        ring2_draw_call(draw, op, &c, &batch);
        space.used = 0;
        spread_call(op, &c, &far);
        status = gdn_run_op(ctx, op, &c);
    }
    ring2_status(ctx, "a call of 1000", status, GDN_OK);
    ring2_status(ctx, "far apart", gdn_run_op(ctx, op, &far), GDN_OK);
    const int n = ring2_written(op, &c, near_list);
    ring2_written(op, &far, far_list);
    for (int i = 0; i < n; i++)
        if (near_list[i]->data) ring2_expect_bits("far apart", far_list[i], near_list[i]);
    madvise(space.base, (size_t)space.used, MADV_DONTNEED);
}

static void every_op_spread(void)
{
    enum { CALLS = 12 };
    struct ring2_draw draw;
    if (!reserve(MAX_TENSORS * ROOM_GIB * GIB)) return;
    ring2_draw_init(&draw, true);
    for (int i = 0; i < RING2_N_OPS * CALLS && !ring2_failed(); i++)
        if (ring2_has_op(ring2_ctx(2), (gdn_op)(i / CALLS))) {
            spread_one((gdn_op)(i / CALLS), &draw);
            if (ring2_failed()) ring2_fail("op %d", i / CALLS);
        }
    give_back();
}

/* ---- Slots whose numbers are past 2^31 ------------------------------------------------------ */

static const int one_head[3] = { 1, 1, 1 };

/* Two sequences, one of which starts and ends in a slot past 2^31, the other in slot 3. */
static void slots(void)
{
    enum { T = 12 };
    const int64_t P = ((int64_t)1 << 31) + 10, far_slots[2] = { P - 1, 3 }, lengths[2] = { T, T };
    if (!reserve(8 * GIB)) return;
    for (int decode = 0; decode < 2; decode++) {
        gdn_batch *batch;
        gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_BF16, 2, lengths, one_head, 1, 1, &batch);
        gdn_rule_args far = a;
        gdn_batch pool = *batch;
        space.used = 0;
        far.state = vast(GDN_BF16, 4, P, 1, 1, 1);
        far.out = ring2_clone(&a.out);
        far.batch = &pool;
        pool.read_slots = ring2_indices(GDN_I64, 2, far_slots);
        for (int i = 0; i < 2; i++) ring2_set(&far.state, far_slots[i], ring2_get(&a.state, i));
        ring2_status(ring2_ctx(2), "near", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
        ring2_status(ring2_ctx(2), "far", ring2_rule_call(ring2_ctx(2), &far, decode), GDN_OK);
        ring2_expect_bits("out", &far.out, &a.out);
        for (int i = 0; i < 2; i++)
            CHECK(ring2_get(&far.state, far_slots[i]) == ring2_get(&a.state, i), "state %d", i);
        madvise(space.base, (size_t)space.used, MADV_DONTNEED);
    }
    give_back();
}

/* ---- Tokens past 2^31 ----------------------------------------------------------------------- */

/* A padding row of 2^31 tokens, which nothing reads, and a sequence behind it. */
enum { TOKENS = 20 };
static const int64_t before = 2 * GIB + 100, n_tokens = 2 * GIB + 100 + TOKENS;

static gdn_batch *padding_first(void)
{
    const int64_t cu[3] = { 0, before, n_tokens }, read[2] = { -1, 0 };
    gdn_batch *b = ring2_heap(sizeof *b);
    *b = gdn_batch_init();
    b->cu_seqlens = ring2_indices(GDN_I64, 3, cu);
    b->read_slots = ring2_indices(GDN_I32, 2, read);
    b->pad_policy = GDN_PAD_KEEP;
    return b;
}

/* The last tokens of t become those of `from`. */
static gdn_tensor place_last(gdn_tensor t, const gdn_tensor *from)
{
    gdn_tensor last = ring2_narrow(&t, 0, before, TOKENS);
    ring2_copy(&last, from);
    return t;
}

static void tokens_of_the_rule(void)
{
    if (!reserve(40 * GIB)) return;
    for (int decode = 0; decode < 2; decode++) {
        const int64_t N = TOKENS, cu[2] = { 0, N };
        gdn_batch plain = gdn_batch_init();
        gdn_rule_args a = ring2_rule_args(GDN_BF16, GDN_F32, N, 1, one_head, 1, 1), far = a;
        plain.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
        a.batch = &plain;
        space.used = 0;
        far.q = place_last(vast(GDN_BF16, 3, n_tokens, 1, 1, 0), &a.q);
        far.k = place_last(vast(GDN_BF16, 3, n_tokens, 1, 1, 0), &a.k);
        far.v = place_last(vast(GDN_BF16, 3, n_tokens, 1, 1, 0), &a.v);
        far.out = vast(GDN_BF16, 3, n_tokens, 1, 1, 0);
        far.g = place_last(vast(GDN_F32, 2, n_tokens, 1, 0, 0), &a.g);
        far.beta = place_last(vast(GDN_F32, 2, n_tokens, 1, 0, 0), &a.beta);
        far.state = ring2_clone(&a.state);
        far.batch = padding_first();
        ring2_status(ring2_ctx(2), "near", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
        ring2_status(ring2_ctx(2), "far", ring2_rule_call(ring2_ctx(2), &far, decode), GDN_OK);
        const gdn_tensor out = ring2_narrow(&far.out, 0, before, TOKENS);
        ring2_expect_bits("out", &out, &a.out);
        ring2_expect_bits("state", &far.state, &a.state);
        madvise(space.base, (size_t)space.used, MADV_DONTNEED);
    }
    give_back();
}

/* Masked on the left instead, and without an output: the sequence itself is that long. */
static void tokens_before_the_start(void)
{
    if (!reserve(24 * GIB)) return;
    const int64_t cu[2] = { 0, n_tokens };
    gdn_conv1d_args a = gdn_conv1d_args_init(), far;
    gdn_batch b = gdn_batch_init();
    a.x = ring2_new(GDN_F32, 0, 2, TOKENS, 1, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, 1, 4, 0, 0);
    a.state = ring2_new(GDN_F32, 0, 3, 1, 1, 5, 0);
    ring2_fill(&a.x, -1, 1), ring2_fill(&a.weight, -1, 1), ring2_fill(&a.state, -1, 1);
    far = a;
    far.x = place_last(vast(GDN_F32, 2, n_tokens, 1, 0, 0), &a.x);
    far.state = ring2_clone(&a.state);
    far.batch = &b;
    b.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
    b.token_start = ring2_indices(GDN_I64, 1, &before);
    ring2_status(ring2_ctx(2), "near", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
    ring2_status(ring2_ctx(2), "far", gdn_conv1d(ring2_ctx(2), &far), GDN_OK);
    ring2_expect_bits("state", &far.state, &a.state);

    b.token_start.data = NULL; /* now with an output, behind a padding row */
    far.batch = padding_first();
    far.out = vast(GDN_F32, 2, n_tokens, 1, 0, 0);
    a.out = ring2_clone(&a.x);
    ring2_copy(&far.state, &a.state);
    ring2_status(ring2_ctx(2), "near", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
    ring2_status(ring2_ctx(2), "far", gdn_conv1d(ring2_ctx(2), &far), GDN_OK);
    const gdn_tensor out = ring2_narrow(&far.out, 0, before, TOKENS);
    ring2_expect_bits("out", &out, &a.out);
    ring2_expect_bits("state", &far.state, &a.state);
    give_back();
}

/* ---- Blobs ---------------------------------------------------------------------------------- */

static void blob_sizes(void)
{
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_blob_args a = gdn_blob_args_init();
    size_t bytes = 0;
    if (!reserve(40 * GIB)) return;
    a.n_key_heads = 1, a.n_value_heads = 1, a.key_head_dim = 2, a.value_head_dim = 2;
    a.state = vast(GDN_F32, 4, GIB, 1, 2, 2);
    ring2_status(ctx, "2^30 slots", gdn_blob_bytes(ctx, &a, &bytes), GDN_OK);
    CHECK(bytes == 128 + (size_t)GIB * 8 + (size_t)GIB * 16, "%zu bytes", bytes);
    a.blob_bytes = bytes - 1;
    a.blob = take(64);
    ring2_status(ctx, "a blob too small", gdn_blob_save(ctx, &a), GDN_E_MEMORY);
    space.used = 0;
    a.state = vast(GDN_F32, 4, 2 * GIB + 1, 1, 2, 2);
    ring2_status(ctx, "2^31 + 1 slots", gdn_blob_bytes(ctx, &a, &bytes), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "n_sequences"), "text \"%s\"", gdn_last_error(ctx));
    give_back();
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "huge: every op, rows past 2^32 elements", every_op_spread },
        { "huge: slots past 2^31", slots },
        { "huge: the rule on tokens past 2^31", tokens_of_the_rule },
        { "huge: conv1d on tokens past 2^31", tokens_before_the_start },
        { "huge: sizes of blobs", blob_sizes },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
