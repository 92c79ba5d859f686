/* SPDX-License-Identifier: Apache-2.0 */
/* State blobs: damage, wrong fields, refused arguments. */
#include <string.h>

#include "blob_layer.h"
#include "gdn_blob.h"

/* ---- Damage -------------------------------------------------------------------------------- */

/* Every call that reads a blob refuses it, and nothing changes. */
static void refused_everywhere(const void *blob, size_t bytes, const char *what)
{
    gdn_blob_info info = gdn_blob_info_init();
    gdn_blob_args b = pools(&plain, 2);
    void *out = ring2_alloc(1 << 15, 8);
    b.blob = (void *)blob, b.blob_bytes = bytes;
    b.position = ring2_new(GDN_I64, 0, 1, 2, 0, 0, 0);
    ring2_call_begin();
    const gdn_status s[] = { gdn_blob_inspect(ctx, blob, bytes, &info), gdn_blob_load(ctx, &b),
                             gdn_blob_slice(ctx, blob, bytes, 0, 2, out, 1 << 15, NULL),
                             gdn_blob_merge(ctx, &blob, &bytes, 1, out, 1 << 15, NULL) };
    ring2_call_end();
    for (int i = 0; i < 4; i++) {
        CHECK(s[i] == GDN_E_ARG || s[i] == GDN_E_UNSUPPORTED, "%s: call %d: %s", what, i,
              gdn_status_name(s[i]));
        CHECK(gdn_last_error(ctx)[0], "no text");
    }
    CHECK(info.version == 0 && !info.state.data, "%s: info was written", what);
}

static bool inspects(const void *blob, size_t bytes)
{
    gdn_blob_info info = gdn_blob_info_init();
    return gdn_blob_inspect(ctx, blob, bytes, &info) == GDN_OK || info.version != 0;
}

static void G15_cut(void)
{
    gdn_blob_args a = states(&plain, 3, 2);
    save(&a);
    unsigned char *end = (unsigned char *)ring2_alloc(a.blob_bytes, 8) + a.blob_bytes;
    for (size_t n = 0; n < a.blob_bytes; n++) { /* up to 7 bytes before what cannot be read */
        unsigned char *cut = end - (n + 7) / 8 * 8;
        memcpy(cut, a.blob, n);
        CHECK(!inspects(cut, n), "%zu of %zu bytes", n, a.blob_bytes);
        if (n % 300 == 0) refused_everywhere(cut, n, "cut");
    }
    void *longer = ring2_alloc(a.blob_bytes + 64, 8);
    memset(longer, 0, a.blob_bytes + 64);
    memcpy(longer, a.blob, a.blob_bytes);
    refused_everywhere(longer, a.blob_bytes + 64, "lengthened");
}

/* Every bit, alone; then bursts of up to 32 bits anywhere, and random bytes. */
static void G15_changed(void)
{
    gdn_blob_args a = states(&plain, 3, 2);
    save(&a);
    unsigned char *x = a.blob;
    for (size_t i = 0; i < 8 * a.blob_bytes && !ring2_failed(); i++) {
        x[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK(!inspects(x, a.blob_bytes), "bit %zu", i);
        x[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    CHECK(inspects(x, a.blob_bytes), "the blob itself");
    for (int i = 0; i < 20000 && !ring2_failed(); i++) {
        const int64_t at = ring2_below((int64_t)a.blob_bytes - 4);
        const uint64_t burst = (ring2_bits() & UINT32_MAX) << ring2_below(8) | 1;
        for (int j = 0; j < 5; j++) x[at + j] ^= (unsigned char)(burst >> 8 * j);
        if (burst >> 32 == 0) CHECK(!inspects(x, a.blob_bytes), "a burst at %d", (int)at);
        for (int j = 0; j < 5; j++) x[at + j] ^= (unsigned char)(burst >> 8 * j);
    }
    for (int i = 0; i < 40; i++) {
        const int64_t at = ring2_below((int64_t)a.blob_bytes);
        x[at] ^= 0x55;
        refused_everywhere(x, a.blob_bytes, "changed");
        x[at] ^= 0x55;
    }
}

/* A wrong value in a header with a right checksum: each field, beyond its range. */
struct field {
    int at, bytes;
    int64_t value;
    const char *needle;
};

static void refuse_field(const gdn_blob_args *a, const struct field *f)
{
    unsigned char *x = ring2_alloc(a->blob_bytes, 8);
    memcpy(x, a->blob, a->blob_bytes);
    for (int j = 0; j < f->bytes; j++) x[f->at + j] = (unsigned char)((uint64_t)f->value >> 8 * j);
    const uint32_t sum = crc32c_slowly(x, a->blob_bytes);
    memcpy(x + 24, &sum, 4);
    gdn_blob_info info = gdn_blob_info_init();
    CHECK(gdn_blob_inspect(ctx, x, a->blob_bytes, &info) != GDN_OK, "%d at %d", (int)f->value,
          f->at);
    CHECK(strstr(gdn_last_error(ctx), f->needle), "%d at %d: \"%s\" lacks %s", (int)f->value, f->at,
          gdn_last_error(ctx), f->needle);
}

static void refuse_fields(void)
{
    static const struct field cases[] = {
        { 0, 1, 'g', "GDNSTATE" },     { 8, 4, 0, "version 0" },
        { 8, 4, 4, "version 4" },      { 8, 4, 2, "query_copies" },
        { 92, 4, 1, "key_copies" },    { 96, 4, 2, "value_copies" },
        { 12, 4, 64, "header" },       { 16, 8, 128, "cut" },
        { 28, 4, 1, "not zero" },      { 32, 8, -1, "n_sequences" },
        { 32, 8, 3, "fields need" },   { 40, 4, 2, "head_map" },
        { 44, 4, 0, "n_query_heads" }, { 44, 4, 3, "divisors" },
        { 48, 4, -1, "n_key_heads" },  { 52, 4, INT32_MAX, "divisors" },
        { 56, 4, 257, "key_head" },    { 60, 4, 0, "value_head" },
        { 60, 4, 1025, "value_head" }, { 64, 4, 3, "state_dtype" },
        { 64, 4, -2, "state_dtype" },  { 68, 4, 2, "state_layout" },
        { 72, 4, 16, "conv_dtype" },   { 76, 4, 0, "conv_length" },
        { 76, 4, 3, "fields need" },   { 76, 4, INT32_MAX, "need" },
        { 80, 4, 1, "rank" },          { 84, 4, 0, "n_ranks" },
        { 88, 4, 1, "query_copies" },  { 100, 4, 1, "no_scales" },
        { 127, 1, 1, "not zero" },     { 128, 8, -1, "position[0]" },
        { 144, 1, 1, "not zero" },
    };
    gdn_blob_args a = states(&plain, 3, 2);
    save(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse_field(&a, &cases[i]);
}

/* The same of version 2: a state of 8 bits. */
static void refuse_fields_of_version_2(void)
{
    static const struct field cases[] = {
        { 8, 4, 1, "state_dtype" },
        { 8, 4, 4, "version 4" },
        { 64, 4, 5, "state_dtype" },
        { 64, 4, 0, "version 2 of what version 1 can hold" },
        { 88, 4, 0, "query_copies" },
        { 92, 4, 2, "key_copies is 2" },
        { 96, 4, -1, "value_copies" },
        { 100, 4, 1, "no_scales" },
        { 8, 4, 3, "version 3 of what version 2 can hold" },
        { 104, 4, 1, "not zero" },
    };
    struct layer l = plain;
    l.state_dtype = GDN_I8;
    gdn_blob_args a = states(&l, 3, 2);
    save(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse_field(&a, &cases[i]);
}

/* The same of version 3: a state of 8 bits without scales. */
static void refuse_fields_of_version_3(void)
{
    static const struct field cases[] = {
        { 8, 4, 2, "no_scales" },
        { 64, 4, 3, "no_scales" },
        { 64, 4, 6, "state_dtype" },
        { 100, 4, 2, "no_scales" },
        { 100, 4, 0, "version 3 of what version 2 can hold" },
        { 104, 4, 1, "not zero" },
    };
    struct layer l = plain;
    l.state_dtype = GDN_E4M3, l.no_scales = true;
    gdn_blob_args a = states(&l, 3, 2);
    save(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse_field(&a, &cases[i]);
}

/* ---- Refused arguments --------------------------------------------------------------------- */

static struct {
    gdn_blob_args a;
    bool load;
} now;

static bool begin(bool load, const char *what)
{
    if (!ring2_begin("G1 blob_%s: %s", load ? "load" : "save", what)) return false;
    now.load = load;
    now.a = states(&plain, 4, 2);
    save(&now.a);
    if (load) ring2_fill(&now.a.state, 3, 4);
    return true;
}

static void refused(gdn_status want, const char *needle)
{
    ring2_call_begin();
    ring2_status(ctx, "call", now.load ? gdn_blob_load(ctx, &now.a) : gdn_blob_save(ctx, &now.a),
                 want);
    CHECK(strstr(gdn_last_error(ctx), needle), "\"%s\" lacks %s", gdn_last_error(ctx), needle);
    ring2_call_end();
    ring2_end();
}

#define SPOIL(load, what, want, needle, ...) \
    do {                                     \
        gdn_blob_args *a = &now.a;           \
        if (!begin(load, what)) break;       \
        __VA_ARGS__;                         \
        refused(want, needle);               \
    } while (0)
#define SAVE(...) SPOIL(false, __VA_ARGS__)
#define LOAD(...) SPOIL(true, __VA_ARGS__)
#define BOTH(...)      \
    SAVE(__VA_ARGS__); \
    LOAD(__VA_ARGS__)
#define LIST(...)                                                                           \
    ring2_indices(GDN_I32, (int64_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                  (const int64_t[]){ __VA_ARGS__ })

static void refuse_args(void)
{
    BOTH("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 1);
    BOTH("flags", GDN_E_ARG, "flags", a->flags = 1);
    BOTH("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    BOTH("layout", GDN_E_ARG, "state_layout", a->state_layout = 2);
    BOTH("head_map", GDN_E_ARG, "head_map", a->head_map = 2);
    BOTH("blob NULL", GDN_E_ARG, "blob: NULL", a->blob = NULL);
    BOTH("blob misaligned", GDN_E_ARG, "multiple of 8", a->blob = (char *)a->blob - 4);
    BOTH("state of 3 dimensions", GDN_E_SHAPE, "state", a->state.ndim = 3);
    BOTH("state of I32", GDN_E_DTYPE, "state", a->state.dtype = GDN_I32);
    BOTH("state of other heads", GDN_E_SHAPE, "state", a->state.size[1] = 2);
    BOTH("conv_state of other channels", GDN_E_SHAPE, "conv_state", a->conv_state.size[1] = 40);
    BOTH("slots of F32", GDN_E_DTYPE, "slots", a->slots.dtype = GDN_F32);
    BOTH("slots beyond", GDN_E_ARG, "slots[1]: slot 4", a->slots = LIST(0, 4));
    BOTH("position of other length", GDN_E_SHAPE, "position", a->position = LIST(1, 2, 3));
    BOTH("blob on state", GDN_E_ARG, "overlaps", a->state.data = a->blob);
    BOTH("blob on position", GDN_E_ARG, "overlaps", a->position.data = a->blob);
    SAVE("blob on slots", GDN_E_ARG, "overlaps", a->slots.data = a->blob);
    SAVE("blob_bytes", GDN_E_MEMORY, "blob_bytes", a->blob_bytes--);
    SAVE("slots negative", GDN_E_ARG, "slots[1]: -1", a->slots = LIST(0, -1));
    SAVE("position negative", GDN_E_ARG, "position[0]: -5", a->position = LIST(-5, 0));
    SAVE("no states", GDN_E_ARG, "neither", a->state.data = a->conv_state.data = NULL);
    SAVE("heads", GDN_E_SHAPE, "divisors", a->n_key_heads = 3);
    SAVE("no heads", GDN_E_ARG, "n_value_heads", a->n_value_heads = 0);
    SAVE("no key heads", GDN_E_ARG, "n_key_heads", a->n_key_heads = 0);
    SAVE("K", GDN_E_ARG, "key_head_dim", a->key_head_dim = 0);
    SAVE("rank", GDN_E_ARG, "rank", a->rank = 1);
    SAVE("pools of other slots", GDN_E_SHAPE, "conv_state", a->slots.data = a->position.data = NULL;
         a->conv_state.size[0] = 3);
    LOAD("blob_bytes", GDN_E_ARG, "blob", a->blob_bytes--);
    LOAD("Hk", GDN_E_ARG, "blob: n_key_heads is 2, wanted 4", a->n_key_heads = 4);
    LOAD("map", GDN_E_ARG, "blob: head_map is 0, wanted 1", a->head_map = 1);
    LOAD("n_ranks", GDN_E_ARG, "blob: n_ranks is 1, wanted 2", a->n_ranks = 2);
    LOAD("slots twice", GDN_E_ARG, "slots[1]: slot 3", a->slots = LIST(3, 3));
    LOAD("other sequences", GDN_E_SHAPE, "slots", a->slots = LIST(0, 1, 2));
    LOAD("no slots", GDN_E_SHAPE, "state: [4][4][6][8], wanted [2]", a->slots.data = NULL);
    LOAD("slots share memory", GDN_E_SHAPE, "state", a->state.stride[0] = 0);
    LOAD("state on conv_state", GDN_E_ARG, "state: overlaps conv_state",
         a->conv_state.data = a->state.data);
    LOAD("position on slots", GDN_E_ARG, "position: overlaps slots",
         a->position.data = a->slots.data = a->position.data);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G15 cut", G15_cut },
        { "G15 changed", G15_changed },
        { "refused fields", refuse_fields },
        { "fields of version 2", refuse_fields_of_version_2 },
        { "fields of version 3", refuse_fields_of_version_3 },
    };
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    refuse_args();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
