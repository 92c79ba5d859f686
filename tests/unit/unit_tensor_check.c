/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of views, beside lists of all their addresses. A check that misses an overlap would break
 * G1 and G6.
 */
#include "core/tensor_check.h"

#include <stdio.h>
#include <string.h>

#include "ring2.h"

static gdn_ctx *ctx;

/* Checks a status, and that its error has these words. */
static void expect(const char *what, gdn_status got, gdn_status want, const char *words)
{
    ring2_status(ctx, what, got, want);
    if (got != GDN_OK && got == want)
        CHECK(strstr(gdn_last_error(ctx), words), "%s: text \"%s\", wanted \"%s\" in it", what,
              gdn_last_error(ctx), words);
}

#define LIST(...) ((const int64_t[]){ __VA_ARGS__ })

/* ---- Form ---------------------------------------------------------------------------------- */

static float floats[4096];

static void test_absent(void)
{
    const gdn_tensor none = { .dtype = 99, .ndim = 77, .size = { -5 } };
    expect("form", gdn_check_tensor(ctx, &none, "x"), GDN_OK, "");
    expect("dtype", gdn_check_dtype(ctx, &none, "x", GDN_FLOATS), GDN_OK, "");
    expect("shape", gdn_check_shape(ctx, &none, "x", 1, LIST(3)), GDN_OK, "");
    expect("dense", gdn_check_dense(ctx, &none, "x"), GDN_OK, "");
    expect("injective", gdn_check_injective(ctx, &none, "x"), GDN_OK, "");
    expect("overlap", gdn_check_no_overlap(ctx, &none, "x", &none, "y", false), GDN_OK, "");
}

static void test_form(void)
{
    gdn_tensor t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    expect("dense", gdn_check_tensor(ctx, &t, "q"), GDN_OK, "");
    for (int32_t dtype = -1; dtype < 20; dtype++) {
        t.dtype = dtype;
        expect("dtype", gdn_check_tensor(ctx, &t, "q"),
               gdn_dtype_bytes(dtype) ? GDN_OK : GDN_E_DTYPE, "q: dtype");
    }
    for (int ndim = -1; ndim < 9; ndim++) {
        t = gdn_dense(floats, GDN_F32, 1, 1, 0, 0, 0);
        t.ndim = ndim;
        for (int i = 0; i < GDN_MAX_DIMS; i++) t.size[i] = t.stride[i] = 1;
        expect("ndim", gdn_check_tensor(ctx, &t, "q"),
               ndim >= 1 && ndim <= GDN_MAX_DIMS ? GDN_OK : GDN_E_SHAPE,
               "dimensions, wanted 1 to 6");
    }
    t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    t.size[1] = -1;
    expect("size", gdn_check_tensor(ctx, &t, "q"), GDN_E_SHAPE, "q: size[1] is -1");
    t = gdn_dense((char *)floats + 2, GDN_F32, 1, 3, 0, 0, 0);
    expect("alignment", gdn_check_tensor(ctx, &t, "q"), GDN_E_ARG, "multiple of 4");
    t.dtype = GDN_BF16;
    expect("alignment of two", gdn_check_tensor(ctx, &t, "q"), GDN_OK, "");
}

static void test_address_space(void)
{
    const int64_t most = INT64_MAX, least = INT64_MIN;
    const struct {
        const char *what;
        int64_t size[2], stride[2];
        bool fits;
    } cases[] = {
        { "stride of one element", { 1, 4 }, { most, 1 }, true },
        { "least stride of one element", { 1, 4 }, { least, 1 }, true },
        { "stride of an empty view", { 0, 4 }, { most, most }, true },
        { "broadcast", { 1 << 20, 4 }, { 0, 1 }, true },
        { "negative strides", { 3, 4 }, { -8, -1 }, true },
        { "stride", { 2, 4 }, { most, 1 }, false },
        { "least stride", { 2, 4 }, { least, 1 }, false },
        { "stride in bytes", { 2, 4 }, { most / 4, 1 }, false },
        { "size times stride", { most / 2, 1 }, { 4, 1 }, false },
        { "size", { most, 1 }, { 1, 1 }, false },
        { "count of a broadcast", { most, 3 }, { 0, 0 }, false },
        { "up and down", { 2, 2 }, { most / 8, -(most / 8) }, false },
        { "below zero", { 2, 1 }, { -((int64_t)1 << 50), 1 }, false },
        { "the whole of the half", { 2, 1 }, { (int64_t)1 << 60, 1 }, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gdn_tensor t = gdn_strided(floats, GDN_F32, 2, cases[i].size, cases[i].stride);
        expect(cases[i].what, gdn_check_tensor(ctx, &t, "k"), cases[i].fits ? GDN_OK : GDN_E_SHAPE,
               "k: sizes and strides");
    }
    const int64_t far[] = { (int64_t)1 << 60, -((int64_t)1 << 60) };
    gdn_tensor half = gdn_strided((void *)((uintptr_t)1 << 63), GDN_F32, 2, LIST(2, 2), far);
    expect("longer than half", gdn_check_tensor(ctx, &half, "k"), GDN_E_SHAPE, "k");
    half.stride[1] = -1;
    expect("shorter than half", gdn_check_tensor(ctx, &half, "k"), GDN_OK, "");

    /* a product of sizes that overflows before it is 0: gdn_count() must not compute it */
    const gdn_tensor t = gdn_strided(floats, GDN_F32, 3, LIST(most / 2, 4, 0), LIST(0, 0, 0));
    expect("count", gdn_check_tensor(ctx, &t, "k"), GDN_E_SHAPE, "k");
}

static void test_dtype(void)
{
    for (int32_t dtype = -1; dtype < 20; dtype++) {
        const gdn_tensor t = gdn_dense(floats, dtype, 1, 3, 0, 0, 0);
        const bool is_in = dtype >= GDN_F32 && dtype <= GDN_F16;
        expect("floats", gdn_check_dtype(ctx, &t, "g", GDN_FLOATS), is_in ? GDN_OK : GDN_E_DTYPE,
               "wanted: GDN_F32 GDN_BF16 GDN_F16");
        expect("indices", gdn_check_dtype(ctx, &t, "g", GDN_INDICES),
               dtype == GDN_I32 || dtype == GDN_I64 ? GDN_OK : GDN_E_DTYPE,
               "wanted: GDN_I32 GDN_I64");
    }
}

static void test_shape(void)
{
    gdn_tensor t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    expect("same", gdn_check_shape(ctx, &t, "v", 2, LIST(3, 4)), GDN_OK, "");
    expect("any", gdn_check_shape(ctx, &t, "v", 2, LIST(-1, 4)), GDN_OK, "");
    expect("size", gdn_check_shape(ctx, &t, "v", 2, LIST(-1, 5)), GDN_E_SHAPE,
           "v: [3][4], wanted [*][5]");
    expect("rank", gdn_check_shape(ctx, &t, "v", 3, LIST(3, 4, 5)), GDN_E_SHAPE,
           "v: [3][4], wanted [3][4][5]");
    t.ndim = 1;
    expect("rank", gdn_check_shape(ctx, &t, "v", 2, LIST(3, 4)), GDN_E_SHAPE, "v: [3], wanted");
    const int64_t most = INT64_MAX;
    t = gdn_strided(floats, GDN_F32, 6, LIST(most, most, most, most, most, most),
                    LIST(0, 0, 0, 0, 0, 0));
    expect("long text", gdn_check_shape(ctx, &t, "v", 6, LIST(most, most, most, most, most, 1)),
           GDN_E_SHAPE, "[9223372036854775807][1]");

    t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    expect("dense", gdn_check_dense(ctx, &t, "v"), GDN_OK, "");
    t.stride[1] = 2;
    expect("stride 2", gdn_check_dense(ctx, &t, "v"), GDN_E_SHAPE, "stride 2");
    t.stride[1] = -1;
    expect("stride -1", gdn_check_dense(ctx, &t, "v"), GDN_E_SHAPE, "stride -1");
    t.size[1] = 1;
    expect("one element", gdn_check_dense(ctx, &t, "v"), GDN_OK, "");
    t.size[1] = 0;
    expect("none", gdn_check_dense(ctx, &t, "v"), GDN_OK, "");
}

/* ---- All addresses, one by one ------------------------------------------------------------- */

enum { ARENA = 4096 };
static double arena_memory[ARENA / sizeof(double)];
static unsigned char touched[ARENA];

/* Adds 1 to each byte of each element. False if the view leaves the arena. */
static bool touch(const gdn_tensor *t)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < ring2_count(t); i++) {
        const int64_t at = (char *)ring2_element(t, i) - (char *)arena_memory;
        if (at < 0 || at + bytes > ARENA) return false;
        for (int64_t j = 0; j < bytes; j++) touched[at + j]++;
    }
    return true;
}

static bool any_twice(void)
{
    for (int i = 0; i < ARENA; i++)
        if (touched[i] > 1) return true;
    return false;
}

static gdn_tensor random_view(void)
{
    static const int32_t dtypes[] = { GDN_F32, GDN_BF16, GDN_I64, GDN_U8 };
    static const int64_t strides[] = { 1, 1, 2, 3, 4, 6, 8, 12, 16, 24, -1, -3, -4, -8, -24, 0 };
    gdn_tensor t;
    memset(&t, 0, sizeof t);
    t.dtype = dtypes[ring2_below(4)];
    t.ndim = 1 + (int32_t)ring2_below(3);
    for (int i = 0; i < t.ndim; i++) {
        t.size[i] = ring2_below(20) ? 1 + ring2_below(4) : 0;
        t.stride[i] = strides[ring2_below(i ? 16 : 15)];
    }
    t.data = (char *)arena_memory + 2000 + 8 * ring2_below(40);
    return t;
}

static void test_injective(void)
{
    int n_accepted = 0, n_refused = 0;
    for (int i = 0; i < 20000 && !ring2_failed(); i++) {
        const gdn_tensor t = random_view();
        memset(touched, 0, sizeof touched);
        CHECK(touch(&t), "a view outside the arena");
        if (gdn_check_injective(ctx, &t, "out") == GDN_OK) {
            n_accepted++;
            CHECK(!any_twice(), "case %d: accepted, but two elements share bytes", i);
        } else {
            n_refused += any_twice();
            CHECK(strstr(gdn_last_error(ctx), "out: stride"), "text %s", gdn_last_error(ctx));
        }
    }
    CHECK(n_accepted > 5000 && n_refused > 3000, "accepted %d, rightly refused %d", n_accepted,
          n_refused);
}

static void test_injective_layouts(void)
{
    const struct {
        const char *what;
        int64_t size[4], stride[4];
    } cases[] = {
        { "dense", { 2, 3, 4, 5 }, { 60, 20, 5, 1 } },
        { "transposed", { 2, 3, 5, 4 }, { 60, 20, 1, 5 } },
        { "padded", { 2, 3, 4, 5 }, { 1000, 200, 40, 3 } },
        { "reversed", { 2, 3, 4, 5 }, { -60, 20, -5, 1 } },
        { "heads outside", { 3, 2, 4, 5 }, { 20, 60, 5, 1 } },
        { "one element", { 1, 1, 1, 1 }, { 0, 0, 0, 0 } },
        { "empty", { 0, 3, 4, 5 }, { 0, 0, 0, 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gdn_tensor t = gdn_strided(floats + 2048, GDN_F32, 4, cases[i].size, cases[i].stride);
        expect(cases[i].what, gdn_check_injective(ctx, &t, "out"), GDN_OK, "");
    }
    gdn_tensor t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    t.stride[0] = 3;
    expect("rows too near", gdn_check_injective(ctx, &t, "out"), GDN_E_SHAPE, "stride 3");
    t.stride[0] = 0;
    expect("broadcast", gdn_check_injective(ctx, &t, "out"), GDN_E_SHAPE, "stride 0");
}

/* ---- Overlaps ------------------------------------------------------------------------------ */

static void test_overlap(void)
{
    int n_accepted = 0, n_tight = 0, n_refused = 0;
    for (int i = 0; i < 30000 && !ring2_failed(); i++) {
        const gdn_tensor a = random_view(), b = random_view();
        /* Each view may repeat its own bytes, so the two are marked apart. */
        static unsigned char mine[ARENA];
        memset(touched, 0, sizeof touched);
        CHECK(touch(&a), "a view outside the arena");
        memcpy(mine, touched, sizeof mine);
        memset(touched, 0, sizeof touched);
        CHECK(touch(&b), "a view outside the arena");
        bool meet = false;
        int a_first = ARENA, a_last = -1, b_first = ARENA, b_last = -1;
        for (int j = 0; j < ARENA; j++) {
            meet = meet || (mine[j] && touched[j]);
            if (mine[j]) a_last = j, a_first = j < a_first ? j : a_first;
            if (touched[j]) b_last = j, b_first = j < b_first ? j : b_first;
        }
        const bool apart = a_last < b_first || b_last < a_first;
        const bool ok = gdn_check_no_overlap(ctx, &a, "out", &b, "q", false) == GDN_OK;
        CHECK(!ok || !meet, "case %d: accepted, but they share bytes", i);
        CHECK(ok || !apart, "case %d: refused, but one ends before the other begins", i);
        CHECK(ok == (gdn_check_no_overlap(ctx, &b, "q", &a, "out", false) == GDN_OK),
              "case %d: depends on the order", i);
        n_accepted += ok && apart;
        n_tight += ok && !apart;
        n_refused += meet;
    }
    CHECK(n_accepted > 1000 && n_tight > 500 && n_refused > 1000,
          "apart %d, interleaved %d, overlapping %d", n_accepted, n_tight, n_refused);
}

/* A row of one buffer: Hk K of k after Hq K of q, and so on; then rows of B and T. */
static gdn_tensor columns(int64_t first, int64_t heads, int64_t n, int64_t width, int64_t B,
                          int64_t T)
{
    return gdn_strided(floats + first, GDN_F32, 4, LIST(B, T, heads, n),
                       LIST(T * width, width, n, 1));
}

static void test_interleaved(void)
{
    static const int64_t shapes[][2] = { { 1, 5 }, { 2, 5 }, { 3, 1 }, { 1, 1 } }; /* B, T */
    for (int i = 0; i < 4; i++) {
        const int64_t B = shapes[i][0], T = shapes[i][1];
        gdn_tensor part[4] = { columns(0, 2, 8, 60, B, T), columns(16, 2, 8, 60, B, T),
                               columns(32, 3, 8, 60, B, T), columns(56, 4, 1, 60, B, T) };
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                expect("columns", gdn_check_no_overlap(ctx, &part[a], "out", &part[b], "q", false),
                       a == b ? GDN_E_ARG : GDN_OK, "out: overlaps q");
        part[1].data = floats + 15;
        expect("one column shared",
               gdn_check_no_overlap(ctx, &part[1], "out", &part[0], "q", false), GDN_E_ARG, "q");
    }
    /* Slots of a pool that hold two states each, and a row that is one token of many. */
    const gdn_tensor a = gdn_strided(floats, GDN_F32, 3, LIST(4, 3, 8), LIST(64, 8, 1));
    const gdn_tensor b = gdn_strided(floats + 24, GDN_BF16, 3, LIST(4, 10, 8), LIST(128, 8, 1));
    const gdn_tensor c = gdn_strided(floats + 3 * 64 + 24, GDN_F32, 1, LIST(40), LIST(1));
    const gdn_tensor d = gdn_strided(floats + 3 * 64 + 20, GDN_F32, 1, LIST(5), LIST(1));
    expect("two pools", gdn_check_no_overlap(ctx, &a, "state", &b, "conv_state", false), GDN_OK,
           "");
    expect("a row between", gdn_check_no_overlap(ctx, &a, "state", &c, "x", false), GDN_OK, "");
    expect("a row across", gdn_check_no_overlap(ctx, &a, "state", &d, "x", false), GDN_E_ARG,
           "state: overlaps x");
}

static void test_same_view(void)
{
    const gdn_tensor t = gdn_dense(floats, GDN_F32, 2, 3, 4, 0, 0);
    gdn_tensor u = t;
    expect("may not", gdn_check_no_overlap(ctx, &t, "out", &u, "v", false), GDN_E_ARG, "v");
    expect("may", gdn_check_no_overlap(ctx, &t, "out", &u, "v", true), GDN_OK, "");
    u.stride[0] = 5;
    expect("stride", gdn_check_no_overlap(ctx, &t, "out", &u, "v", true), GDN_E_ARG,
           "or the very same view");
    u = t;
    u.size[0] = 2;
    expect("size", gdn_check_no_overlap(ctx, &t, "out", &u, "v", true), GDN_E_ARG, "v");
    u = t;
    u.data = floats + 1;
    expect("data", gdn_check_no_overlap(ctx, &t, "out", &u, "v", true), GDN_E_ARG, "v");
    u = t;
    u.dtype = GDN_I32;
    expect("dtype", gdn_check_no_overlap(ctx, &t, "out", &u, "v", true), GDN_E_ARG, "v");
    gdn_tensor one = gdn_dense(floats, GDN_F32, 2, 1, 4, 0, 0);
    u = one;
    u.stride[0] = 99;
    expect("unused stride", gdn_check_no_overlap(ctx, &one, "out", &u, "v", true), GDN_OK, "");
}

/* ---- Elements
 * ------------------------------------------------------------------------------------ */

static void test_index(void)
{
    const int32_t a[] = { 5, -1, INT32_MAX, INT32_MIN, 7, 8 };
    const int64_t b[] = { 5, -1, INT64_MAX, INT64_MIN, 7, 8 };
    const uint8_t c[] = { 5, 0, 255, 128, 7, 8 };
    const struct {
        const void *data;
        int32_t dtype;
    } all[] = { { a, GDN_I32 }, { b, GDN_I64 }, { c, GDN_U8 } };
    for (int n = 0; n < 3; n++)
        for (int64_t i = 0; i < 6; i++) {
            const int64_t want = n == 0 ? a[i] : n == 1 ? b[i] : c[i];
            gdn_tensor t = { .dtype = all[n].dtype, .ndim = 1, .size = { 6 } };
            memcpy(&t.data, &all[n].data, sizeof t.data);
            t.stride[0] = 1;
            CHECK(gdn_index(&t, i) == want, "[%d] of dtype %d", (int)i, t.dtype);
            t.ndim = 2;
            t.stride[0] = 2; /* [3][2] */
            t.stride[1] = 1;
            CHECK(gdn_index2(&t, i / 2, i % 2) == want, "[%d][%d]", (int)i / 2, (int)i % 2);
            t.data = gdn_at(&t, 5);
            t.stride[0] = -1;
            CHECK(gdn_index(&t, 5 - i) == want, "[%d] backwards", (int)i);
        }
}

static void test_load_vector(void)
{
    static const int32_t dtypes[] = { GDN_F32, GDN_BF16, GDN_F16 };
    float *dst = ring2_alloc(7 * sizeof *dst, sizeof *dst);
    for (int d = 0; d < 3; d++)
        for (int64_t stride = -2; stride < 4; stride++) {
            gdn_tensor t = ring2_new(dtypes[d], 0, 1, 21, 0, 0, 0);
            t.size[0] = 7;
            t.stride[0] = stride;
            if (stride < 0) t.data = gdn_at(&t, -6 * stride);
            for (int i = 0; i < 7; i++) ring2_set(&t, stride ? i : 0, i - 2.5);
            gdn_load_vector(dst, &t, 7, 9);
            for (int i = 0; i < 7; i++)
                CHECK(dst[i] == (float)(stride ? i : 6) - 2.5f, "dtype %d, stride %d: [%d] is %g",
                      (int)t.dtype, (int)stride, i, (double)dst[i]);
        }
    const gdn_tensor none = { .data = NULL };
    gdn_load_vector(dst, &none, 7, 0.5f);
    for (int i = 0; i < 7; i++) CHECK(dst[i] == 0.5f, "absent: [%d] is %g", i, (double)dst[i]);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "tensor: absent ones pass", test_absent },
        { "tensor: form", test_form },
        { "tensor: address space", test_address_space },
        { "tensor: dtypes", test_dtype },
        { "tensor: shapes and dense rows", test_shape },
        { "tensor: injective or not", test_injective },
        { "tensor: injective layouts", test_injective_layouts },
        { "tensor: overlapping or not", test_overlap },
        { "tensor: columns of one buffer", test_interleaved },
        { "tensor: the very same view", test_same_view },
        { "tensor: indices", test_index },
        { "tensor: vectors", test_load_vector },
    };
    ctx = ring2_ctx(1);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
