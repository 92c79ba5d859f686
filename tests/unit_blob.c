/* SPDX-License-Identifier: Apache-2.0 */
/* State blobs: round trips, slices and merges, damage, refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring2.h"

static gdn_ctx *ctx;

/* ---- A layer's states ---------------------------------------------------------------------- */

struct layer {
    int32_t map, Hq, Hk, Hv, K, V, S;
    int32_t state_dtype, layout, conv_dtype;
};

static int64_t heads(const struct layer *l) { return l->Hq > l->Hv ? l->Hq : l->Hv; }
static int64_t channels(const struct layer *l) { return (l->Hq + l->Hk) * l->K + l->Hv * l->V; }

static gdn_blob_args args_of(const struct layer *l)
{
    gdn_blob_args a = gdn_blob_args_init();
    a.head_map      = l->map;
    a.state_layout  = l->layout;
    a.n_query_heads = l->Hq, a.n_key_heads = l->Hk, a.n_value_heads = l->Hv;
    a.key_head_dim = l->K, a.value_head_dim = l->V;
    return a;
}

/* Empty pools of P slots. */
static gdn_blob_args pools(const struct layer *l, int64_t P)
{
    gdn_blob_args a  = args_of(l);
    const bool    vk = l->layout == GDN_STATE_VK;
    a.state      = ring2_new(l->state_dtype, 0, 4, P, heads(l), vk ? l->V : l->K, vk ? l->K : l->V);
    a.conv_state = ring2_new(l->conv_dtype, 0, 3, P, channels(l), l->S, 0);
    return a;
}

/* Filled pools of P slots, of which B are saved. */
static gdn_blob_args states(const struct layer *l, int64_t P, int64_t B)
{
    gdn_blob_args a = pools(l, P);
    int64_t       slots[16], position[16];
    ring2_fill(&a.state, -2, 2);
    ring2_fill(&a.conv_state, -2, 2);
    for (int64_t b = 0; b < B; b++) {
        slots[b]    = (b * 3 + 1) % P;
        position[b] = 1000 * b + 7;
    }
    a.slots    = ring2_indices(GDN_I32, B, slots);
    a.position = ring2_indices(GDN_I64, B, position);
    return a;
}

static void save(gdn_blob_args *a)
{
    ring2_status(ctx, "bytes", gdn_blob_bytes(ctx, a, &a->blob_bytes), GDN_OK);
    a->blob = ring2_alloc(a->blob_bytes, 8);
    ring2_call_begin();
    ring2_may_write_bytes(a->blob, a->blob_bytes);
    ring2_status(ctx, "save", gdn_blob_save(ctx, a), GDN_OK);
    ring2_call_end();
}

static gdn_blob_info inspect(const gdn_blob_args *a)
{
    gdn_blob_info i = gdn_blob_info_init();
    ring2_status(ctx, "inspect", gdn_blob_inspect(ctx, a->blob, a->blob_bytes, &i), GDN_OK);
    return i;
}

static const struct layer plain = { GDN_HEADS_GROUPED, 2, 2, 4,       8,           6,
                                    4,                 0, 0, GDN_BF16 };

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

/* Saved, described, loaded elsewhere: the same bits, and nothing else is touched. */
static void round_trip(const struct layer *l, int64_t P, int64_t B)
{
    gdn_blob_args a = states(l, P, B), b = pools(l, P + 2);
    int64_t       slots[16];
    save(&a);
    const gdn_blob_info i = inspect(&a);
    CHECK(i.version == 1 && i.n_query_heads == l->Hq && i.n_key_heads == l->Hk &&
              i.n_value_heads == l->Hv && i.key_head_dim == l->K && i.value_head_dim == l->V &&
              i.head_map == l->map && i.state_layout == l->layout && i.rank == 0 && i.n_ranks == 1,
          "the description");
    CHECK(i.state.dtype == l->state_dtype && i.conv_state.dtype == l->conv_dtype &&
              i.state.size[0] == B && i.conv_state.size[2] == l->S && i.position.size[0] == B,
          "the views");
    for (int64_t j = 0; j < B; j++) slots[j] = P + 1 - j;
    b.slots    = ring2_indices(GDN_I64, B, slots);
    b.position = ring2_new(GDN_I32, 1, 1, B, 0, 0, 0);
    b.blob = a.blob, b.blob_bytes = a.blob_bytes;
    ring2_call_begin();
    for (int64_t j = 0; j < B; j++) {
        const gdn_tensor s = ring2_select(&b.state, 0, slots[j]);
        const gdn_tensor c = ring2_select(&b.conv_state, 0, slots[j]);
        ring2_may_write(&s), ring2_may_write(&c);
    }
    ring2_may_write(&b.position);
    ring2_status(ctx, "load", gdn_blob_load(ctx, &b), GDN_OK);
    ring2_call_end();
    expect_slots("state", &b.state, &b.slots, &a.state, &a.slots);
    expect_slots("conv_state", &b.conv_state, &b.slots, &a.conv_state, &a.slots);
    for (int64_t j = 0; j < B; j++)
        CHECK(ring2_get(&b.position, j) == (double)(1000 * j + 7), "position %d", (int)j);
}

static void round_trips(void)
{
    for (int i = 0; i < 3 * 3 * 2; i++) {
        struct layer l = plain;
        l.state_dtype = i % 3, l.conv_dtype = i / 3 % 3, l.layout = i / 9;
        round_trip(&l, 5, 3);
        round_trip(&l, 1, 1);
    }
    round_trip(&plain, 3, 0);
    round_trip(&(struct layer){ 1, 6, 2, 2, 3, 5, 1, 0, 1, 2 }, 8, 7);
}

/* Loading converts as gdn_state_copy() does. */
static void loading_converts(void)
{
    struct layer  l = plain;
    gdn_blob_args a = states(&l, 5, 5);
    a.slots.data    = NULL;
    save(&a);
    l.layout = GDN_STATE_KV, l.state_dtype = GDN_F16, l.conv_dtype = GDN_F32, l.S = 3;
    gdn_blob_args       b = pools(&l, 5);
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

/* The format as docs/state-blob.md has it, byte by byte. */
static uint32_t crc32c_slowly(const unsigned char *p, size_t n)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        sum ^= i >= 24 && i < 28 ? 0 : p[i];
        for (int bit = 0; bit < 8; bit++) sum = sum & 1 ? sum >> 1 ^ 0x82f63b78u : sum >> 1;
    }
    return ~sum;
}

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static void the_format(void)
{
    gdn_blob_args        a    = states(&plain, 5, 3);
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

/* ---- Slices -------------------------------------------------------------------------------- */

static void slice(const gdn_blob_args *a, int32_t rank, int32_t n, void **out, size_t *bytes)
{
    ring2_status(ctx, "size",
                 gdn_blob_slice(ctx, a->blob, a->blob_bytes, rank, n, NULL, 0, bytes), GDN_OK);
    *out = ring2_alloc(*bytes, 8);
    ring2_call_begin();
    ring2_may_write_bytes(*out, *bytes);
    ring2_status(ctx, "slice",
                 gdn_blob_slice(ctx, a->blob, a->blob_bytes, rank, n, *out, *bytes, bytes), GDN_OK);
    ring2_call_end();
}

static void cut_and_merge(const struct layer *l, int32_t n)
{
    gdn_blob_args a = states(l, 4, 3);
    const void   *parts[8];
    size_t        bytes[8], needed = 0;
    save(&a);
    for (int32_t i = 0; i < n; i++) { /* in another order */
        void *out;
        slice(&a, (i + 1) % n, n, &out, &bytes[i]);
        parts[i] = out;
    }
    void *whole = ring2_alloc(a.blob_bytes, 8);
    ring2_status(ctx, "size", gdn_blob_merge(ctx, parts, bytes, n, NULL, 0, &needed), GDN_OK);
    CHECK(needed == a.blob_bytes, "%zu bytes, wanted %zu", needed, a.blob_bytes);
    ring2_call_begin();
    ring2_may_write_bytes(whole, a.blob_bytes);
    ring2_status(ctx, "merge", gdn_blob_merge(ctx, parts, bytes, n, whole, needed, NULL), GDN_OK);
    ring2_call_end();
    CHECK(!memcmp(whole, a.blob, a.blob_bytes), "%d heads of k in %d parts: other bytes",
          (int)l->Hk, (int)n);
}

static void G16_merge_is_the_inverse(void)
{
    static const int32_t counts[][5] = { /* map, Hq, Hk, Hv, parts */
        { 0, 1, 1, 1, 1 },  { 0, 2, 2, 2, 2 },  { 0, 16, 16, 32, 8 }, { 0, 4, 4, 12, 2 },
        { 0, 8, 2, 2, 2 },  { 0, 8, 4, 2, 2 },  { 0, 3, 3, 6, 3 },    { 1, 2, 2, 4, 2 },
        { 1, 4, 4, 12, 2 }, { 1, 4, 4, 12, 4 }, { 1, 8, 2, 2, 2 },    { 1, 8, 4, 4, 4 },
        { 1, 16, 16, 32, 8 },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int32_t *c = counts[i];
        const int32_t  d = (int32_t)i % 3;
        const struct layer l = { c[0], c[1], c[2], c[3], 5, 3, 4, d, d % 2, (d + 1) % 3 };
        cut_and_merge(&l, c[4]);
    }
}

/* Head h of q, k or v in a tensor of n heads, as seen by state head s. */
static int64_t source(int32_t map, int64_t H, int64_t n, int64_t s)
{
    return map == GDN_HEADS_GROUPED ? s / (H / n) : s % n;
}

/*
 * In a part, each state head reads the heads of q, k and v that it read in the whole: every
 * value of the whole is its head's number, so the part says where its heads came from.
 */
static void parts_keep_the_map(void)
{
    static const int32_t counts[][5] = { { 0, 4, 4, 8, 2 }, { 0, 8, 4, 4, 4 }, { 1, 4, 4, 8, 2 },
                                         { 1, 8, 4, 4, 2 }, { 1, 4, 4, 12, 4 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int32_t     *c = counts[i], n = c[4];
        const struct layer l = { c[0], c[1], c[2], c[3], 1, 1, 1, 0, 0, 0 };
        const int64_t      H = heads(&l);
        gdn_blob_args      a = states(&l, 1, 1);
        for (int64_t h = 0; h < H; h++) ring2_set(&a.state, h, (double)h);
        for (int64_t d = 0; d < channels(&l); d++)
            ring2_set(&a.conv_state, d,
                      (double)(d < l.Hq ? d : d < l.Hq + l.Hk ? d - l.Hq : d - l.Hq - l.Hk));
        save(&a);
        for (int32_t r = 0; r < n; r++) {
            gdn_blob_args p = a;
            slice(&a, r, n, &p.blob, &p.blob_bytes);
            const gdn_blob_info x = inspect(&p);
            CHECK(x.rank == r && x.n_ranks == n && x.n_key_heads == l.Hk / n, "rank %d", (int)r);
            if (l.map == GDN_HEADS_GROUPED)
                CHECK(ring2_get(&x.state, 0) == (double)(r * H / n), "not the r-th part");
            for (int64_t s = 0; s < H / n; s++) {
                const int64_t whole = (int64_t)ring2_get(&x.state, s);
                const int64_t of[3] = { l.Hq, l.Hk, l.Hv };
                int64_t       first = 0;
                for (int t = 0; t < 3; t++) {
                    const int64_t at = first + source(l.map, H / n, of[t] / n, s);
                    CHECK(ring2_get(&x.conv_state, at) == (double)source(l.map, H, of[t], whole),
                          "case %d, rank %d, state head %d, tensor %d", (int)i, (int)r, (int)s, t);
                    first += of[t] / n;
                }
            }
        }
    }
}

static void refuse_slices(void)
{
    static const struct {
        int32_t     map, Hq, Hk, Hv, rank, n;
        gdn_status  want;
        const char *needle;
    } cases[] = {
        { 0, 2, 2, 4, 0, 3, GDN_E_UNSUPPORTED, "n_ranks: 3, wanted a divisor of 2, 2, 4" },
        { 0, 2, 2, 4, 0, 4, GDN_E_UNSUPPORTED, "n_ranks: 4, wanted a divisor of 2, 2, 4" },
        { 1, 6, 4, 12, 0, 2, GDN_E_UNSUPPORTED, "wanted multiples of 4" },
        { 0, 2, 2, 4, 2, 2, GDN_E_ARG, "rank: 2, wanted 0 to 1" },
        { 0, 2, 2, 4, -1, 2, GDN_E_ARG, "rank: -1" },
        { 0, 2, 2, 4, 0, 0, GDN_E_ARG, "n_ranks: 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct layer l = { cases[i].map, cases[i].Hq, cases[i].Hk, cases[i].Hv, 2, 2, 3, 0, 0,
                                 0 };
        gdn_blob_args      a = states(&l, 2, 2);
        size_t             bytes = 77;
        save(&a);
        void *out = ring2_alloc(a.blob_bytes, 8);
        ring2_call_begin();
        ring2_status(ctx, cases[i].needle,
                     gdn_blob_slice(ctx, a.blob, a.blob_bytes, cases[i].rank, cases[i].n, out,
                                    a.blob_bytes, &bytes),
                     cases[i].want);
        CHECK(strstr(gdn_last_error(ctx), cases[i].needle), "%s", gdn_last_error(ctx));
        ring2_call_end();
        CHECK(bytes == 77, "needed was written");
    }
}

static void refused_merge(const void *const *blobs, const size_t *bytes, int32_t n, gdn_status want,
                          const char *needle)
{
    static const size_t room = 1 << 16;
    void               *out  = ring2_alloc(room, 8);
    ring2_call_begin();
    ring2_status(ctx, needle, gdn_blob_merge(ctx, blobs, bytes, n, out, room, NULL), want);
    CHECK(strstr(gdn_last_error(ctx), needle), "\"%s\" lacks %s", gdn_last_error(ctx), needle);
    ring2_call_end();
}

static void refuse_merges(void)
{
    gdn_blob_args a = states(&plain, 3, 2), b = a;
    void         *p[3];
    size_t        n[3], needed;
    save(&a);
    slice(&a, 0, 2, &p[0], &n[0]);
    slice(&a, 1, 2, &p[1], &n[1]);
    b.position = ring2_indices(GDN_I64, 2, (const int64_t[]){ 1, 2 });
    save(&b);
    slice(&b, 1, 2, &p[2], &n[2]);
    refused_merge((const void *[]){ p[0] }, n, 1, GDN_E_ARG,
                  "n: 1 blobs, but blobs[0] is one of 2");
    refused_merge((const void *[]){ p[0], p[0] }, n, 2, GDN_E_ARG, "blobs[1]: rank 0, as blobs[0]");
    refused_merge((const void *[]){ p[0], p[2] }, n, 2, GDN_E_ARG, "blobs[1]: other positions");
    refused_merge((const void *[]){ a.blob, p[1] }, (size_t[]){ a.blob_bytes, n[1] }, 2, GDN_E_ARG,
                  "n: 2 blobs, but blobs[0] is one of 1");
    refused_merge((const void *[]){ p[0], a.blob }, (size_t[]){ n[0], a.blob_bytes }, 2, GDN_E_ARG,
                  "blobs[1]: n_ranks is 1, but 2 in blobs[0]");
    refused_merge((const void *[]){ p[0], p[1] }, (size_t[]){ n[0], n[1] - 1 }, 2, GDN_E_ARG,
                  "blobs[1]: ");
    refused_merge((const void *[]){ p[0], NULL }, n, 2, GDN_E_ARG, "blobs[1]: NULL");
    refused_merge(NULL, n, 2, GDN_E_ARG, "blobs: NULL");
    refused_merge((const void *[]){ p[0] }, n, 0, GDN_E_ARG, "n: 0");
    void *out = ring2_alloc(a.blob_bytes, 8);
    ring2_call_begin();
    ring2_status(ctx, "too small",
                 gdn_blob_merge(ctx, (const void *[]){ p[0], p[1] }, n, 2, out, a.blob_bytes - 1,
                                &needed), GDN_E_MEMORY);
    ring2_status(ctx, "onto a part",
                 gdn_blob_merge(ctx, (const void *[]){ p[0], p[1] }, n, 2, p[1], a.blob_bytes,
                                &needed), GDN_E_ARG);
    ring2_status(ctx, "slice onto the whole",
                 gdn_blob_slice(ctx, a.blob, a.blob_bytes, 0, 2, a.blob, a.blob_bytes, &needed),
                 GDN_E_ARG);
    ring2_call_end();
}

/* ---- Damage -------------------------------------------------------------------------------- */

/* Every call that reads a blob refuses it, and nothing changes. */
static void refused_everywhere(const void *blob, size_t bytes, const char *what)
{
    gdn_blob_info info = gdn_blob_info_init();
    gdn_blob_args b    = pools(&plain, 2);
    void         *out  = ring2_alloc(1 << 15, 8);
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
        const int64_t  at    = ring2_below((int64_t)a.blob_bytes - 4);
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

/* A right checksum over wrong content: each field, beyond what it may be. */
static void refuse_fields(void)
{
    static const struct {
        int         at, bytes;
        int64_t     value;
        const char *needle;
    } cases[] = {
        { 0, 1, 'g', "GDNSTATE" },      { 8, 4, 0, "version 0" },     { 8, 4, 2, "version 2" },
        { 12, 4, 64, "header" },        { 16, 8, 128, "cut" },        { 28, 4, 1, "not zero" },
        { 32, 8, -1, "n_sequences" },   { 32, 8, 3, "fields need" },  { 40, 4, 2, "head_map" },
        { 44, 4, 0, "n_query_heads" },  { 44, 4, 3, "divisors" },     { 48, 4, -1, "n_key_heads" },
        { 52, 4, INT32_MAX, "divisors" }, { 56, 4, 257, "key_head" }, { 60, 4, 0, "value_head" },
        { 64, 4, 3, "state_dtype" },    { 64, 4, -2, "state_dtype" }, { 68, 4, 2, "state_layout" },
        { 72, 4, 16, "conv_dtype" },    { 76, 4, 0, "conv_length" },  { 76, 4, 3, "fields need" },
        { 76, 4, INT32_MAX, "need" },   { 80, 4, 1, "rank" },         { 84, 4, 0, "n_ranks" },
        { 88, 4, 1, "not zero" },       { 127, 1, 1, "not zero" },    { 128, 8, -1, "position[0]" },
        { 144, 1, 1, "not zero" },
    };
    gdn_blob_args a = states(&plain, 3, 2);
    save(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char *x = ring2_alloc(a.blob_bytes, 8);
        memcpy(x, a.blob, a.blob_bytes);
        for (int j = 0; j < cases[i].bytes; j++)
            x[cases[i].at + j] = (unsigned char)((uint64_t)cases[i].value >> 8 * j);
        const uint32_t sum = crc32c_slowly(x, a.blob_bytes);
        memcpy(x + 24, &sum, 4);
        gdn_blob_info info = gdn_blob_info_init();
        CHECK(gdn_blob_inspect(ctx, x, a.blob_bytes, &info) != GDN_OK, "case %d", (int)i);
        CHECK(strstr(gdn_last_error(ctx), cases[i].needle), "case %d: \"%s\" lacks %s", (int)i,
              gdn_last_error(ctx), cases[i].needle);
    }
}

/* ---- Refused arguments --------------------------------------------------------------------- */

static struct {
    gdn_blob_args a;
    bool          load;
} now;

static bool begin(bool load, const char *what)
{
    if (!ring2_begin("G1 blob_%s: %s", load ? "load" : "save", what)) return false;
    now.load = load;
    now.a    = states(&plain, 4, 2);
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
#define BOTH(...)       \
    SAVE(__VA_ARGS__);  \
    LOAD(__VA_ARGS__)
#define LIST(...)                                                                             \
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

/* A program of an older header, whose info is shorter. */
static void a_shorter_info(void)
{
    gdn_blob_args a = states(&plain, 2, 1);
    gdn_blob_info i = gdn_blob_info_init();
    save(&a);
    i.struct_size = (uint32_t)offsetof(gdn_blob_info, rank);
    i.rank        = 77;
    i.checksum    = 77;
    ring2_status(ctx, "inspect", gdn_blob_inspect(ctx, a.blob, a.blob_bytes, &i), GDN_OK);
    CHECK(i.n_key_heads == 2 && i.rank == 77 && i.checksum == 77, "beyond struct_size");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "round trips", round_trips },
        { "loading converts", loading_converts },
        { "parts of a blob", parts_of_a_blob },
        { "G3 equal states are equal bytes", G3_equal_states_are_equal_bytes },
        { "the format", the_format },
        { "G16 merge is the inverse", G16_merge_is_the_inverse },
        { "parts keep the map", parts_keep_the_map },
        { "refused slices", refuse_slices },
        { "refused merges", refuse_merges },
        { "G15 cut", G15_cut },
        { "G15 changed", G15_changed },
        { "refused fields", refuse_fields },
        { "a position too large for I32", position_too_large_for_i32 },
        { "a shorter info", a_shorter_info },
    };
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    refuse_args();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
