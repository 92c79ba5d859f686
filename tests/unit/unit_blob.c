/* SPDX-License-Identifier: Apache-2.0 */
/* State blobs: round trips, conversion, the format. */
#include <string.h>

#include "blob_layer.h"
#include "gdn_blob.h"

/* ---- Round trips --------------------------------------------------------------------------- */

static void expect_slots(const char *what, const gdn_tensor *to, const gdn_tensor *to_slots,
                         const gdn_tensor *from, const gdn_tensor *from_slots)
{
    for (int64_t b = 0; b < from_slots->size[0]; b++) {
        const gdn_tensor x = ring2_select(to, 0, (int64_t)ring2_get(to_slots, b));
        const gdn_tensor y = ring2_select(from, 0, (int64_t)ring2_get(from_slots, b));
        ring2_expect_bits(what, &x, &y);
    }
}

/* Saves states, describes the blob, and loads it elsewhere: the bits are the same, and nothing
 * else changes. */
static void round_trip(const struct layer *l, int64_t P, int64_t B)
{
    gdn_blob_args a = states(l, P, B), b = pools(l, P + 2);
    int64_t slots[16];
    save(&a);
    const gdn_blob_info i = inspect(&a);
    const bool is_3 = l->state_dtype == GDN_E5M2 || l->no_scales, is_q8 = l->state_dtype > GDN_F16;
    CHECK(i.version == (is_3 ? 3 : is_q8 ? 2 : 1), "version %d", (int)i.version);
    CHECK(i.n_query_heads == l->Hq && i.n_key_heads == l->Hk && i.n_value_heads == l->Hv &&
              i.key_head_dim == l->K && i.value_head_dim == l->V && i.head_map == l->map &&
              i.state_layout == l->layout && i.rank == 0 && i.n_ranks == 1,
          "the description");
    CHECK(!i.state_scales.data == (!is_q8 || l->no_scales) && i.query_copies == 1 &&
              i.key_copies == 1 && i.value_copies == 1,
          "the fields of version 2");
    CHECK(i.state.dtype == l->state_dtype && i.conv_state.dtype == l->conv_dtype &&
              i.state.size[0] == B && i.conv_state.size[2] == l->S && i.position.size[0] == B,
          "the views");
    for (int64_t j = 0; j < B; j++) slots[j] = P + 1 - j;
    b.slots = ring2_indices(GDN_I64, B, slots);
    b.position = ring2_new(GDN_I32, 1, 1, B, 0, 0, 0);
    b.blob = a.blob, b.blob_bytes = a.blob_bytes;
    ring2_call_begin();
    for (int64_t j = 0; j < B; j++) {
        const gdn_tensor s = ring2_select(&b.state, 0, slots[j]);
        const gdn_tensor c = ring2_select(&b.conv_state, 0, slots[j]);
        ring2_may_write(&s), ring2_may_write(&c);
        if (!b.state_scales.data) continue;
        const gdn_tensor x = ring2_select(&b.state_scales, 0, slots[j]);
        ring2_may_write(&x);
    }
    ring2_may_write(&b.position);
    ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_OK);
    ring2_call_end();
    expect_slots("state", &b.state, &b.slots, &a.state, &a.slots);
    if (b.state_scales.data)
        expect_slots("state_scales", &b.state_scales, &b.slots, &a.state_scales, &a.slots);
    expect_slots("conv_state", &b.conv_state, &b.slots, &a.conv_state, &a.slots);
    for (int64_t j = 0; j < B; j++)
        CHECK(ring2_get(&b.position, j) == (double)(1000 * j + 7), "position %d", (int)j);
}

static void round_trips(void)
{
    for (int i = 0; i < 8 * 3 * 2; i++) {
        struct layer l = plain;
        l.no_scales = i % 8 > GDN_E5M2;
        l.state_dtype = i % 8 - (l.no_scales ? 2 : 0), l.conv_dtype = i / 8 % 3, l.layout = i / 24;
        round_trip(&l, 5, 3);
        round_trip(&l, 1, 1);
    }
    round_trip(&plain, 3, 0);
    round_trip(&(struct layer){ 1, 6, 2, 2, 3, 5, 1, 0, 1, 2, false }, 8, 7);
    round_trip(&(struct layer){ 0, 1, 1, 2, 7, 1024, 3, GDN_I8, 1, 0, false }, 3, 2);
}

/* Loading converts as gdn_state_copy() does. */
static void loading_converts(void)
{
    struct layer l = plain;
    gdn_blob_args a = states(&l, 5, 5);
    a.slots.data = NULL;
    save(&a);
    l.layout = GDN_STATE_KV, l.state_dtype = GDN_F16, l.conv_dtype = GDN_F32, l.S = 3;
    gdn_blob_args b = pools(&l, 5);
    gdn_state_copy_args c = gdn_state_copy_args_init();
    b.blob = a.blob, b.blob_bytes = a.blob_bytes;
    ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_OK);
    c.from_pool = a.state, c.to_pool = ring2_clone(&b.state), c.to_layout = GDN_STATE_KV;
    ring2_fill_value(&c.to_pool, 7);
    ring2_status(ctx, "copy", gdn_state_copy(ctx, &c), GDN_OK);
    ring2_expect_bits("state", &b.state, &c.to_pool);
    c.from_pool = a.conv_state, c.to_pool = ring2_clone(&b.conv_state), c.to_layout = 0;
    ring2_fill_value(&c.to_pool, 7);
    ring2_status(ctx, "copy", gdn_state_copy(ctx, &c), GDN_OK);
    ring2_expect_bits("conv_state", &b.conv_state, &c.to_pool);
}

/* From 8 bits and to them, as gdn_state_copy() does, stochastic rounding included. */
static void eight_bits_convert(void)
{
    for (int i = 0; i < 6; i++) {
        struct layer l = plain, eight = plain;
        eight.state_dtype = GDN_I8 + i % 3, eight.layout = GDN_STATE_KV;
        eight.no_scales = i % 3 == 2;
        const bool to_eight = i / 3;
        gdn_blob_args a = states(to_eight ? &l : &eight, 3, 3), b;
        gdn_state_copy_args c = gdn_state_copy_args_init();
        a.slots.data = NULL;
        save(&a);
        b = pools(to_eight ? &eight : &l, 3);
        b.conv_state.data = NULL;
        b.blob = a.blob, b.blob_bytes = a.blob_bytes;
        b.rounding = GDN_ROUND_STOCHASTIC, b.seed = 77;
        ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_OK);
        c.from_pool = a.state, c.from_scales = a.state_scales, c.from_layout = a.state_layout;
        c.to_pool = ring2_clone(&b.state), c.to_layout = b.state_layout;
        if (b.state_scales.data) c.to_scales = ring2_clone(&b.state_scales);
        c.rounding = GDN_ROUND_STOCHASTIC, c.seed = 77;
        ring2_status(ctx, "copy", gdn_state_copy(ctx, &c), GDN_OK);
        ring2_expect_bits("state", &b.state, &c.to_pool);
        if (c.to_scales.data) ring2_expect_bits("scales", &b.state_scales, &c.to_scales);
    }
}

static void refused_scales(void)
{
    struct layer l = plain;
    l.state_dtype = GDN_I8;
    gdn_blob_args a = states(&l, 2, 2), b = a;
    size_t bytes;
    b.state_scales.data = NULL;
    ring2_status(ctx, "no scales", gdn_blob_bytes(ctx, &b, &bytes), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "state_scales: absent"), "%s", gdn_last_error(ctx));
    b = a, b.state_scales.size[2]--;
    ring2_status(ctx, "few scales", gdn_blob_bytes(ctx, &b, &bytes), GDN_E_SHAPE);
    b = states(&plain, 2, 2), b.state_scales = a.state_scales;
    ring2_status(ctx, "scales of floats", gdn_blob_bytes(ctx, &b, &bytes), GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "state_scales: given"), "%s", gdn_last_error(ctx));
    b = a, b.rounding = 2;
    ring2_status(ctx, "rounding", gdn_blob_bytes(ctx, &b, &bytes), GDN_E_ARG);
    save(&a);
    b = a, b.blob = a.state_scales.data, b.blob_bytes = 1 << 20;
    ring2_call_begin();
    ring2_status(ctx, "onto the scales", gdn_blob_save(ctx, &b), GDN_E_ARG);
    b = a, b.state_scales.data = a.state.data;
    ring2_status(ctx, "load: scales are the state", gdn_blob_load(ctx, &b), GDN_E_ARG);
    ring2_call_end();
}

/* A program of 0.1.0, whose structs end before the fields of version 2. */
static void older_structs(void)
{
    gdn_blob_args a = states(&plain, 4, 2);
    gdn_blob_info i = gdn_blob_info_init();
    a.struct_size = (uint32_t)offsetof(gdn_blob_args, state_scales);
    i.struct_size = (uint32_t)offsetof(gdn_blob_info, state_scales);
    memset(&a.state_scales, 0x55, sizeof a - a.struct_size); /* past the end of the older struct */
    i.reserved = i.key_copies = 77;
    save(&a);
    ring2_status(ctx, "load", gdn_blob_load(ctx, &a), GDN_OK);
    ring2_status(ctx, "inspect", gdn_blob_inspect(ctx, a.blob, a.blob_bytes, &i), GDN_OK);
    CHECK(i.version == 1 && i.n_key_heads == 2 && i.key_copies == 77 && i.reserved == 77,
          "beyond struct_size");
}

/* One kind of state alone; a load of a part; a sequence that is left out. */
static void parts_of_a_blob(void)
{
    for (int i = 0; i < 2; i++) {
        gdn_blob_args a = states(&plain, 4, 2), b;
        (i ? &a.state : &a.conv_state)->data = NULL;
        save(&a);
        const gdn_blob_info info = inspect(&a);
        CHECK((info.state.data == NULL) == i && (info.conv_state.data == NULL) == !i, "the views");
        b = pools(&plain, 2);
        b.blob = a.blob, b.blob_bytes = a.blob_bytes;
        ring2_call_begin();
        ring2_status(ctx, "load of both", gdn_blob_load(ctx, &b), GDN_E_ARG);
        CHECK(strstr(gdn_last_error(ctx), "the blob has none"), "%s", gdn_last_error(ctx));
        ring2_call_end();
        (i ? &b.state : &b.conv_state)->data = NULL;
        ring2_status(ctx, "load of one", gdn_blob_load(ctx, &b), GDN_OK);
    }
    gdn_blob_args a = states(&plain, 4, 2), b = pools(&plain, 2);
    save(&a);
    b.blob = a.blob, b.blob_bytes = a.blob_bytes;
    b.slots = ring2_indices(GDN_I32, 2, (const int64_t[]){ -1, 0 });
    ring2_call_begin();
    const gdn_tensor s = ring2_select(&b.state, 0, 0), c = ring2_select(&b.conv_state, 0, 0);
    ring2_may_write(&s), ring2_may_write(&c);
    ring2_status(ctx, "load without the first", gdn_blob_load(ctx, &b), GDN_OK);
    ring2_call_end();
    const gdn_tensor want = ring2_select(&a.state, 0, (int64_t)ring2_get(&a.slots, 1));
    ring2_expect_bits("the second", &s, &want);
}

static void G3_equal_states_are_equal_bytes(void)
{
    gdn_blob_args a = states(&plain, 5, 3), b = a;
    save(&a);
    b.state = ring2_clone(&a.state); /* other memory, another slot order */
    save(&b);
    CHECK(!memcmp(a.blob, b.blob, a.blob_bytes), "the bytes differ");
}

/* The format as docs/start/state-blob.md has it, byte by byte. */
static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static void the_format(void)
{
    gdn_blob_args a = states(&plain, 5, 3);
    static const int64_t want[] = { 0, 2, 2, 4, 8, 6, GDN_F32, GDN_STATE_VK, GDN_BF16, 4, 0, 1 };
    CHECK(crc32c_slowly((const unsigned char *)"123456789", 9) == 0xe3069283u, "the check value");
    save(&a);
    const unsigned char *p = a.blob;
    CHECK(!memcmp(p, "GDNSTATE", 8) && number(p + 8, 4) == 1 && number(p + 12, 4) == 128, "start");
    CHECK(number(p + 16, 8) == a.blob_bytes, "total");
    CHECK(number(p + 24, 4) == crc32c_slowly(p, a.blob_bytes), "checksum");
    CHECK(number(p + 32, 8) == 3, "sequences");
    for (int i = 0; i < 12; i++)
        CHECK(number(p + 40 + 4 * i, 4) == (uint64_t)want[i], "field %d", i);
    for (int i = 0; i < 3; i++) CHECK(number(p + 128 + 8 * i, 8) == 1000u * i + 7, "position");
    const size_t conv = 192 + (3 * 4 * 6 * 8 * 4 + 63) / 64 * 64;
    CHECK(a.blob_bytes == conv + (3 * 56 * 4 * 2 + 63) / 64 * 64, "%zu bytes", a.blob_bytes);
    const gdn_tensor s = ring2_select(&a.state, 0, 1), c = ring2_select(&a.conv_state, 0, 1);
    CHECK(!memcmp(p + 192, s.data, 4 * 6 * 8 * 4) && !memcmp(p + conv, c.data, 56 * 4 * 2), "data");
}

/* Version 2: scales behind the state, and the copies of a part's heads. */
static void the_format_2(void)
{
    static const int64_t want[] = { 0,        1, 1, 2, 8, 6, GDN_E4M3, GDN_STATE_VK,
                                    GDN_BF16, 4, 3, 8, 4, 8, 2 };
    struct layer l = plain;
    l.state_dtype = GDN_E4M3, l.Hq = l.Hk = 1, l.Hv = 2;
    gdn_blob_args a = states(&l, 3, 3);
    a.rank = 3, a.n_ranks = 8, a.query_copies = 4, a.key_copies = 8;
    ring2_status(ctx, "copies of two heads", (a.value_copies = 2, gdn_blob_save(ctx, &a)),
                 GDN_E_ARG);
    CHECK(strstr(gdn_last_error(ctx), "value_copies is 2 for 2 heads"), "%s", gdn_last_error(ctx));
    a.value_copies = 0;
    save(&a);
    const unsigned char *p = a.blob;
    CHECK(number(p + 8, 4) == 2 && number(p + 12, 4) == 128, "version");
    for (int i = 0; i < 14; i++)
        CHECK(number(p + 40 + 4 * i, 4) == (uint64_t)want[i], "field %d", i);
    CHECK(number(p + 96, 4) == 1 && number(p + 100, 8) == 0, "fields");
    const size_t scales = 192 + (3 * 2 * 6 * 8 + 63) / 64 * 64;
    const size_t conv = scales + (3 * 2 * 6 * 4 + 63) / 64 * 64;
    CHECK(a.blob_bytes == conv + (3 * 28 * 4 * 2 + 63) / 64 * 64, "%zu bytes", a.blob_bytes);
    const int64_t slot = (int64_t)ring2_get(&a.slots, 0);
    const gdn_tensor s = ring2_select(&a.state, 0, slot);
    const gdn_tensor x = ring2_select(&a.state_scales, 0, slot);
    CHECK(!memcmp(p + 192, s.data, 2 * 6 * 8) && !memcmp(p + scales, x.data, 2 * 6 * 4), "data");
}

static void position_too_large_for_i32(void)
{
    gdn_blob_args a = states(&plain, 2, 1);
    a.position = ring2_indices(GDN_I64, 1, (const int64_t[]){ (int64_t)1 << 40 });
    save(&a);
    gdn_blob_args b = a;
    b.position = ring2_new(GDN_I32, 0, 1, 1, 0, 0, 0);
    ring2_call_begin();
    ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_E_ARG);
    ring2_call_end();
    b.position = ring2_new(GDN_I64, 0, 1, 1, 0, 0, 0);
    ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_OK);
    CHECK(ring2_get(&b.position, 0) == 0x1p40, "position %g", ring2_get(&b.position, 0));
}

/* A program of a newer header, whose info is longer. */
static void a_longer_info(void)
{
    gdn_blob_args a = states(&plain, 2, 1);
    struct {
        gdn_blob_info i;
        int64_t more;
    } newer;
    save(&a);
    memset(&newer, 0, sizeof newer);
    newer.i.struct_size = (uint32_t)sizeof newer;
    ring2_status(ctx, "inspect", gdn_blob_inspect(ctx, a.blob, a.blob_bytes, &newer.i), GDN_OK);
    CHECK(newer.i.n_key_heads == 2 && newer.i.struct_size == sizeof newer && !newer.more,
          "struct_size %u", (unsigned)newer.i.struct_size);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "round trips", round_trips },
        { "loading converts", loading_converts },
        { "parts of a blob", parts_of_a_blob },
        { "G3 equal states are equal bytes", G3_equal_states_are_equal_bytes },
        { "8 bits convert", eight_bits_convert },
        { "refused scales", refused_scales },
        { "structs of 0.1.0", older_structs },
        { "the format", the_format },
        { "the format, version 2", the_format_2 },
        { "a position too large for I32", position_too_large_for_i32 },
        { "a longer info", a_longer_info },
    };
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
