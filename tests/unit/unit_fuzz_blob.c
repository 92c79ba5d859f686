/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged and lying blobs: random bytes, truncation, fields that say something else under a right
 * checksum. Blob and results end at guard pages. Nothing may crash; what refuses a blob writes
 * nothing; what believes one agrees with all other calls.
 *
 * GDN_FUZZ_SECONDS in the environment says how long, --seed=N where to start.
 */
#include <string.h>

#include "blob_layer.h"
#include "fuzz_time.h"
#include "gdn_blob.h"

enum { MOST = 1 << 14 }; /* bytes of a blob */

static struct {
    unsigned char *end;              /* of the blob's memory: the guard page */
    unsigned char *out, *out_before; /* [MOST], for slices and merges */
    int64_t n_good, n_bad, n_lies;
} fuzz;

static struct layer any_layer(void)
{
    struct layer l = { .map = (int32_t)ring2_below(2), .Hk = 1 + (int32_t)ring2_below(2) };
    l.Hq = l.Hk, l.Hv = l.Hk * (1 + (int32_t)ring2_below(2));
    l.K = 1 + (int32_t)ring2_below(6), l.V = 1 + (int32_t)ring2_below(6);
    l.S = 1 + (int32_t)ring2_below(4);
    l.state_dtype = (int32_t)ring2_below(3), l.conv_dtype = (int32_t)ring2_below(3);
    l.layout = (int32_t)ring2_below(2);
    return l;
}

/* ---- Damage -------------------------------------------------------------------------------- */

static uint64_t odd_number(void)
{
    static const int64_t odd[] = { 0,
                                   1,
                                   -1,
                                   2,
                                   3,
                                   64,
                                   127,
                                   128,
                                   129,
                                   256,
                                   65536,
                                   INT32_MAX,
                                   INT32_MIN,
                                   INT64_MAX,
                                   INT64_MIN,
                                   (int64_t)1 << 31,
                                   (int64_t)1 << 40 };
    return ring2_below(3) ? (uint64_t)odd[ring2_below(sizeof odd / sizeof *odd)] : ring2_bits();
}

static void seal(unsigned char *blob, size_t bytes)
{
    const uint32_t sum = crc32c_slowly(blob, bytes);
    memcpy(blob + 24, &sum, sizeof sum);
}

/* Changes the blob of *bytes before fuzz.end; its length may change. */
static void damage(size_t *bytes)
{
    unsigned char *blob = fuzz.end - *bytes;
    const uint64_t x = odd_number();
    size_t n = *bytes;
    switch (ring2_below(5)) {
    case 0: /* bytes */
        for (int64_t i = ring2_below(4); i >= 0; i--)
            blob[ring2_below((int64_t)n)] ^= (unsigned char)(1 + ring2_below(255));
        return;
    case 1: /* length; a blob lies on a multiple of 8 */
        n = (size_t)ring2_below((int64_t)n + 128) & ~(size_t)7;
        memmove(fuzz.end - n, blob, n < *bytes ? n : *bytes);
        *bytes = n;
        if (n >= 128 && ring2_below(2)) memcpy(fuzz.end - n + 16, &n, sizeof n);
        break;
    case 2: memcpy(blob + 8 + 8 * ring2_below(4), &x, 8); break;    /* sizes */
    case 3: memcpy(blob + 40 + 4 * ring2_below(12), &x, 4); break;  /* fields */
    default: memcpy(blob + 8 * ring2_below((int64_t)n / 8), &x, 8); /* anything */
    }
    if (*bytes >= 128) seal(fuzz.end - *bytes, *bytes), fuzz.n_lies++;
}

/* ---- Every call that reads it -------------------------------------------------------------- */

static void expect_untouched(gdn_status status, const char *what)
{
    CHECK(status == GDN_OK || !memcmp(fuzz.out, fuzz.out_before, MOST), "%s: refused, but wrote",
          what);
    CHECK(status == GDN_OK || gdn_last_error(ctx)[0], "%s: no text", what);
    memcpy(fuzz.out, fuzz.out_before, MOST);
}

/* Pools as the blob itself describes them, if it is believed. */
static void load_as_described(const void *blob, size_t bytes, const gdn_blob_info *i)
{
    gdn_blob_args a = gdn_blob_args_init();
    a.head_map = i->head_map, a.state_layout = i->state_layout;
    a.n_query_heads = i->n_query_heads, a.n_key_heads = i->n_key_heads;
    a.n_value_heads = i->n_value_heads;
    a.key_head_dim = i->key_head_dim, a.value_head_dim = i->value_head_dim;
    a.rank = i->rank, a.n_ranks = i->n_ranks;
    a.state = ring2_clone(&i->state), a.conv_state = ring2_clone(&i->conv_state);
    a.blob = (void *)(uintptr_t)blob, a.blob_bytes = bytes;
    ring2_status(ctx, "load of what inspects", gdn_blob_load(ctx, &a), GDN_OK);
}

static void read_everywhere(const void *blob, size_t bytes, const struct layer *l)
{
    gdn_blob_info i = gdn_blob_info_init();
    gdn_blob_args b = pools(l, 3);
    size_t needed = 0;
    const gdn_status inspect = gdn_blob_inspect(ctx, blob, bytes, &i);
    const int32_t rank = (int32_t)ring2_below(3) - 1, n = (int32_t)ring2_below(4);
    inspect == GDN_OK ? fuzz.n_good++ : fuzz.n_bad++;
    if (inspect == GDN_OK) load_as_described(blob, bytes, &i);

    gdn_status s = gdn_blob_slice(ctx, blob, bytes, rank, n, fuzz.out, MOST, &needed);
    CHECK(s != GDN_OK || inspect == GDN_OK, "slice believes what inspect does not");
    expect_untouched(s, "slice");
    s = gdn_blob_merge(ctx, (const void *[]){ blob, blob }, (size_t[]){ bytes, bytes },
                       1 + (int32_t)ring2_below(2), fuzz.out, MOST, &needed);
    CHECK(s != GDN_OK || inspect == GDN_OK, "merge believes what inspect does not");
    expect_untouched(s, "merge");
    b.blob = (void *)(uintptr_t)blob, b.blob_bytes = bytes;
    const gdn_tensor state = ring2_clone(&b.state);
    s = gdn_blob_load(ctx, &b);
    CHECK(s != GDN_OK || inspect == GDN_OK, "load believes what inspect does not");
    CHECK(s == GDN_OK || ring2_same_bits(&state, &b.state), "load: refused, but wrote");
}

static void fuzz_one(void)
{
    const struct layer l = any_layer();
    gdn_blob_args a = states(&l, 4, 1 + ring2_below(3));
    if (ring2_below(4) == 0)
        a.state.data = NULL;
    else if (ring2_below(4) == 0)
        a.conv_state.data = NULL;
    ring2_status(ctx, "bytes", gdn_blob_bytes(ctx, &a, &a.blob_bytes), GDN_OK);
    a.blob = fuzz.end - a.blob_bytes;
    ring2_status(ctx, "save", gdn_blob_save(ctx, &a), GDN_OK);
    unsigned char whole[MOST];
    memcpy(whole, a.blob, a.blob_bytes);
    for (int i = 0; i < 20; i++) {
        size_t bytes = a.blob_bytes;
        memcpy(fuzz.end - bytes, whole, bytes);
        for (int64_t j = ring2_below(3); j >= 0 && bytes >= 128; j--) damage(&bytes);
        read_everywhere(fuzz.end - bytes, bytes, &l);
    }
}

static void damaged_blobs(void)
{
    const struct fuzz_time time = fuzz_begin();
    int64_t n = 0;
    do {
        ring2_free();
        fuzz.end = (unsigned char *)ring2_alloc(MOST, 64) + MOST;
        fuzz.out = ring2_alloc(MOST, 64);
        fuzz.out_before = ring2_heap(MOST);
        memcpy(fuzz.out_before, fuzz.out, MOST);
        for (int i = 0; i < 10 && !ring2_failed(); i++) fuzz_one();
        n += 200;
    } while (!ring2_failed() && (n < 20000 || fuzz_goes_on(&time)));
    CHECK(fuzz.n_good > 200 && fuzz.n_bad > 200 && fuzz.n_lies > 200, "%d good, %d bad, %d lies",
          (int)fuzz.n_good, (int)fuzz.n_bad, (int)fuzz.n_lies);
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "damaged and lying blobs", damaged_blobs };
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    return ring2_main(argc, argv, &test, 1);
}
