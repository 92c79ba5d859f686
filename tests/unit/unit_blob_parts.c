/* SPDX-License-Identifier: Apache-2.0 */
/* State blobs: slices and merges. */
#include <string.h>

#include "blob_layer.h"
#include "gdn_blob.h"

/* ---- Slices -------------------------------------------------------------------------------- */

static void slice(const gdn_blob_args *a, int32_t rank, int32_t n, void **out, size_t *bytes)
{
    ring2_status(ctx, "size", gdn_blob_slice(ctx, a->blob, a->blob_bytes, rank, n, NULL, 0, bytes),
                 GDN_OK);
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
    const void *parts[32];
    size_t bytes[32], needed = 0;
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
    static const int32_t counts[][5] = {
        /* map, Hq, Hk, Hv, parts */
        { 0, 1, 1, 1, 1 },
        { 0, 2, 2, 2, 2 },
        { 0, 16, 16, 32, 8 },
        { 0, 4, 4, 12, 2 },
        { 0, 8, 2, 2, 2 },
        { 0, 8, 4, 2, 2 },
        { 0, 3, 3, 6, 3 },
        { 1, 2, 2, 4, 2 },
        { 1, 4, 4, 12, 2 },
        { 1, 4, 4, 12, 4 },
        { 1, 8, 2, 2, 2 },
        { 1, 8, 4, 4, 4 },
        { 1, 16, 16, 32, 8 },
        /* more parts than heads of q and k, of k and v, of k alone */
        { 0, 2, 2, 4, 4 },
        { 0, 2, 2, 32, 8 },
        { 0, 16, 16, 32, 32 },
        { 0, 1, 1, 6, 3 },
        { 0, 8, 2, 2, 4 },
        { 0, 8, 2, 2, 8 },
        { 0, 4, 2, 4, 4 },
        { 1, 2, 2, 8, 4 },
        { 1, 2, 2, 8, 8 },
        { 1, 8, 2, 2, 8 },
        { 1, 1, 1, 6, 2 },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int32_t *c = counts[i];
        const int32_t d = (int32_t)i % 3;
        for (int32_t e = 0; e < 2; e++) { /* floats, and 8 bits */
            const int32_t dtype = e ? GDN_I8 + d : d;
            const struct layer l = { c[0],
                                     c[1],
                                     c[2],
                                     c[3],
                                     5,
                                     3,
                                     4,
                                     dtype,
                                     d % 2,
                                     (d + 1) % 3,
                                     .no_scales = dtype > GDN_I8 && i % 2 };
            cut_and_merge(&l, c[4]);
        }
    }
}

/* Head h of q, k or v in a tensor of n heads, as seen by state head s. */
static int64_t source(int32_t map, int64_t H, int64_t n, int64_t s)
{
    return map == GDN_HEADS_GROUPED ? s / (H / n) : s % n;
}

/* Returns the heads of a part: at least one, which several parts may have. */
static int64_t part_of(int64_t heads, int64_t n) { return heads < n ? 1 : heads / n; }

/*
 * In a part, each state head reads the heads of q, k and v that it read in the whole. All values
 * are the number of their head in the whole, so values in a part show which heads it has.
 */
static void parts_keep_the_map(void)
{
    static const int32_t counts[][5] = { { 0, 4, 4, 8, 2 }, { 0, 8, 4, 4, 4 },  { 1, 4, 4, 8, 2 },
                                         { 1, 8, 4, 4, 2 }, { 1, 4, 4, 12, 4 }, { 0, 2, 2, 8, 4 },
                                         { 0, 2, 2, 8, 8 }, { 0, 4, 2, 8, 4 },  { 0, 8, 2, 4, 8 },
                                         { 1, 2, 2, 8, 4 }, { 1, 8, 2, 2, 8 },  { 1, 2, 8, 8, 8 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int32_t *c = counts[i], n = c[4];
        const struct layer l = { c[0], c[1], c[2], c[3], 1, 1, 1, 0, 0, 0, false };
        const int64_t H = heads(&l);
        gdn_blob_args a = states(&l, 1, 1);
        for (int64_t h = 0; h < H; h++) ring2_set(&a.state, h, (double)h);
        for (int64_t d = 0; d < channels(&l); d++)
            ring2_set(&a.conv_state, d,
                      (double)(d < l.Hq          ? d
                               : d < l.Hq + l.Hk ? d - l.Hq
                                                 : d - l.Hq - l.Hk));
        save(&a);
        for (int32_t r = 0; r < n; r++) {
            gdn_blob_args p = a;
            slice(&a, r, n, &p.blob, &p.blob_bytes);
            const gdn_blob_info x = inspect(&p);
            CHECK(x.rank == r && x.n_ranks == n && x.n_key_heads == part_of(l.Hk, n) &&
                      x.key_copies == (l.Hk < n ? n / l.Hk : 1),
                  "rank %d", (int)r);
            if (l.map == GDN_HEADS_GROUPED)
                CHECK(ring2_get(&x.state, 0) == (double)(r * H / n), "not the r-th part");
            for (int64_t s = 0; s < H / n; s++) {
                const int64_t whole = (int64_t)ring2_get(&x.state, s);
                const int64_t of[3] = { l.Hq, l.Hk, l.Hv };
                int64_t first = 0;
                for (int t = 0; t < 3; t++) {
                    const int64_t at = first + source(l.map, H / n, part_of(of[t], n), s);
                    CHECK(ring2_get(&x.conv_state, at) == (double)source(l.map, H, of[t], whole),
                          "case %d, rank %d, state head %d, tensor %d", (int)i, (int)r, (int)s, t);
                    first += part_of(of[t], n);
                }
            }
        }
    }
}

static void refuse_slices(void)
{
    static const struct {
        int32_t map, Hq, Hk, Hv, rank, n;
        gdn_status want;
        const char *needle;
    } cases[] = {
        { 0, 2, 2, 4, 0, 3, GDN_E_UNSUPPORTED, "n_ranks: 3, wanted a divisor of 4 state heads" },
        { 0, 2, 2, 4, 0, 8, GDN_E_UNSUPPORTED, "n_ranks: 8, wanted a divisor of 4 state heads" },
        { 0, 4, 4, 12, 0, 6, GDN_E_UNSUPPORTED, "a multiple of 4, 4, 12 heads of q, k, v" },
        { 1, 4, 2, 8, 0, 4, GDN_E_UNSUPPORTED, "wanted 2 or 8 of each" },
        { 1, 6, 4, 12, 0, 2, GDN_E_UNSUPPORTED, "wanted multiples of 4" },
        { 0, 2, 2, 4, 2, 2, GDN_E_ARG, "rank: 2, wanted 0 to 1" },
        { 0, 2, 2, 4, -1, 2, GDN_E_ARG, "rank: -1" },
        { 0, 2, 2, 4, 0, 0, GDN_E_ARG, "n_ranks: 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct layer l = {
            cases[i].map, cases[i].Hq, cases[i].Hk, cases[i].Hv, 2, 2, 3, 0, 0, 0, false
        };
        gdn_blob_args a = states(&l, 2, 2);
        size_t bytes = 77;
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
    void *out = ring2_alloc(room, 8);
    ring2_call_begin();
    ring2_status(ctx, needle, gdn_blob_merge(ctx, blobs, bytes, n, out, room, NULL), want);
    CHECK(strstr(gdn_last_error(ctx), needle), "\"%s\" lacks %s", gdn_last_error(ctx), needle);
    ring2_call_end();
}

/* Four ranks of two heads of q and k: ranks 2 and 3 have the same head, with other inputs. */
static void refuse_other_copies(void)
{
    for (int t = 0; t < 2; t++) {
        gdn_blob_args a = states(&plain, 3, 2), b = a;
        const void *p[4];
        size_t n[4];
        void *out;
        b.conv_state = ring2_clone(&a.conv_state);
        ring2_set(&b.conv_state, /* slot 1, the last channel of head 1 */
                  (56 + t * 16 + 15) * 4 + 3, 77);
        save(&a), save(&b);
        for (int32_t i = 0; i < 4; i++) {
            slice(i == 2 ? &b : &a, i, 4, &out, &n[i]);
            p[i] = out;
        }
        refused_merge(p, n, 4, GDN_E_ARG,
                      t ? "blobs[3]: conv_state: other inputs of head 1 of k "
                          "than blobs[2]"
                        : "blobs[3]: conv_state: other inputs of head 1 of q "
                          "than blobs[2]");
    }
}

static void refuse_merges(void)
{
    gdn_blob_args a = states(&plain, 3, 2), b = a;
    void *p[3];
    size_t n[3], needed;
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
    refuse_other_copies();
    void *out = ring2_alloc(a.blob_bytes, 8);
    ring2_call_begin();
    ring2_status(
        ctx, "too small",
        gdn_blob_merge(ctx, (const void *[]){ p[0], p[1] }, n, 2, out, a.blob_bytes - 1, &needed),
        GDN_E_MEMORY);
    ring2_status(
        ctx, "onto a part",
        gdn_blob_merge(ctx, (const void *[]){ p[0], p[1] }, n, 2, p[1], a.blob_bytes, &needed),
        GDN_E_ARG);
    ring2_status(ctx, "slice onto the whole",
                 gdn_blob_slice(ctx, a.blob, a.blob_bytes, 0, 2, a.blob, a.blob_bytes, &needed),
                 GDN_E_ARG);
    ring2_call_end();
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G16 merge is the inverse", G16_merge_is_the_inverse },
        { "parts keep the map", parts_keep_the_map },
        { "refused slices", refuse_slices },
        { "refused merges", refuse_merges },
    };
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
