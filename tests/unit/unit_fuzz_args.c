/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary argument structs: calls of every op (ring2_calls.h) with a few fields changed at
 * random.
 *
 * Nothing may crash. A refused call changes no byte of the arena; an accepted one only elements
 * of what it writes. gdn_supported() is asked first: what it refuses is called wherever it
 * points to, for it must not be read; what it accepts is called if it lies in the arena and is
 * small.
 *
 * GDN_FUZZ_SECONDS in the environment says how long, --seed=N where to start. With
 * GDN_LIBFUZZER defined this is a libFuzzer target, its bytes being the random numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_time.h"
#include "ring2_calls.h"

enum { MOST_ELEMENTS = 1 << 16, PAGE = 1 << 12 };

static struct {
    struct ring2_draw draw;
    unsigned char *before, *written;
    int64_t n_refused[RING2_N_OPS], n_accepted[RING2_N_OPS];
} fuzz;

static int64_t below(int64_t n) { return ring2_draw_below(&fuzz.draw, n); }
static bool one_in(int64_t n) { return ring2_draw_one_in(&fuzz.draw, n); }

/* ---- Mutations ---- */

static int64_t odd_number(int64_t now)
{
    static const int64_t odd[] = { 0,
                                   1,
                                   -1,
                                   2,
                                   3,
                                   7,
                                   16,
                                   255,
                                   256,
                                   257,
                                   65536,
                                   INT32_MAX,
                                   (int64_t)INT32_MAX + 1,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MAX / 2,
                                   INT64_MIN / 4,
                                   (int64_t)1 << 40 };
    switch (below(4)) {
    case 0: return odd[below((int64_t)(sizeof odd / sizeof *odd))];
    case 1: return (int64_t)((uint64_t)now + (uint64_t)below(3) - 1);
    case 2: return now < INT64_MAX / 4 && now > INT64_MIN / 4 ? -2 * now : 0;
    default: return below(40);
    }
}

static void mutate_tensor(gdn_tensor *t)
{
    const int64_t d = below(GDN_MAX_DIMS);
    switch (below(6)) {
    case 0: t->data = one_in(4) ? NULL : fuzz.draw.arena + below(RING2_ARENA); break;
    case 1: t->dtype = (int32_t)below(21) - 1; break;
    case 2: t->ndim = (int32_t)below(9) - 1; break;
    case 3: t->size[d] = odd_number(t->size[d]); break;
    case 4: t->stride[d] = odd_number(t->stride[d]); break;
    default: t->data = fuzz.draw.arena + below(RING2_ARENA / 4) * 4;
    }
}

static void mutate_word(void *where)
{
    static const float odd[] = { -1, 1e-30f, 3e38f, -5 };
    const int32_t n = (int32_t)below(6) - 2, any = (int32_t)ring2_draw_bits(&fuzz.draw);
    if (one_in(3))
        memcpy(where, &odd[below(4)], 4);
    else
        memcpy(where, one_in(4) ? &any : &n, 4);
}

/* Returns how many tensors lie before the numbers of the struct. */
static size_t leading_tensors(gdn_op op)
{
    size_t n = 0;
    while (n < gdn_op_shapes[op].n_tensors &&
           gdn_tensor_rows(op)[n].at == 8 + n * sizeof(gdn_tensor))
        n++;
    return n;
}

/* Changes one field of the struct or of its batch. A pointer changes only to memory that exists. */
static void mutate(gdn_op op, union ring2_call *c, gdn_batch *t)
{
    const struct gdn_op_shape *o = &gdn_op_shapes[op];
    const size_t first = 8 + leading_tensors(op) * sizeof(gdn_tensor) + (o->batch_at ? 8 : 0);
    const size_t end = o->workspace_at;
    const size_t word = end > first ? first + (size_t)below((int64_t)(end - first) / 4) * 4 : 4;
    switch (below(o->batch_at ? 10 : 4)) {
    case 0:
    case 1:
    case 2: mutate_tensor(ring2_call_tensor(op, c, (size_t)below((int64_t)o->n_tensors))); break;
    case 3: mutate_word(c->bytes + (one_in(9) ? 4 : word)); break;
    case 4: t->pad_policy = (int32_t)below(5) - 1; break;
    case 5: t->write = (int32_t)below(5) - 1; break;
    case 6: mutate_tensor(&t->cu_seqlens + below(RING2_BATCH_TENSORS)); break;
    case 7: t->checkpoint_every = odd_number(t->checkpoint_every); break;
    case 8: t->first_slot = odd_number(t->first_slot); break;
    default: t->sink_slot = odd_number(t->sink_slot);
    }
}

/* ---- Running ---- */

/* Elements of the view, if it is small and lies in the arena; -1 if not. */
static int64_t in_arena(const gdn_tensor *t)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(t->dtype);
    int64_t low = (unsigned char *)t->data - fuzz.draw.arena, high = low + unit, n = 1;
    if (t->ndim < 0 || t->ndim > GDN_MAX_DIMS) return -1; /* of an array that the op ignores */
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] < 0 || t->size[i] > MOST_ELEMENTS) return -1;
        n *= t->size[i];
        if (n > MOST_ELEMENTS) return -1;
        if (t->size[i] < 2) continue;
        if (t->stride[i] > RING2_ARENA || t->stride[i] < -RING2_ARENA) return -1;
        *(t->stride[i] < 0 ? &low : &high) += (t->size[i] - 1) * t->stride[i] * unit;
    }
    return n == 0 || (low >= 0 && high <= RING2_ARENA) ? n : -1;
}

static bool is_runnable(gdn_op op, const union ring2_call *c)
{
    const gdn_tensor *t;
    const gdn_batch *batch = NULL;
    for (size_t i = 0; i < gdn_op_shapes[op].n_tensors; i++) {
        t = (const gdn_tensor *)(const void *)(c->bytes + gdn_tensor_rows(op)[i].at);
        if (t->data && in_arena(t) < 0) return false;
    }
    if (gdn_op_shapes[op].batch_at)
        memcpy(&batch, c->bytes + gdn_op_shapes[op].batch_at, sizeof batch);
    t = batch ? &batch->cu_seqlens : NULL;
    for (int i = 0; batch && i < RING2_BATCH_TENSORS; i++)
        if (t[i].data && in_arena(&t[i]) < 0) return false;
    return true;
}

static void mark(const gdn_tensor *t)
{
    const int64_t n = t->data ? in_arena(t) : 0, unit = (int64_t)gdn_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++)
        memset(fuzz.written + ((unsigned char *)ring2_element(t, i) - fuzz.draw.arena), 1,
               (size_t)unit);
}

static void mark_written(gdn_op op, const union ring2_call *c)
{
    const gdn_tensor *list[RING2_MAX_WRITTEN];
    const int n = ring2_written(op, c, list);
    memset(fuzz.written, 0, RING2_ARENA);
    for (int i = 0; i < n; i++) mark(list[i]);
}

static void check_unchanged(gdn_op op, const union ring2_call *c, gdn_status status)
{
    if (!memcmp(fuzz.before, fuzz.draw.arena, RING2_ARENA)) return;
    CHECK(status == GDN_OK, "op %d: refused (%s), but memory changed", (int)op,
          gdn_last_error(ring2_ctx(2)));
    mark_written(op, c);
    for (size_t at = 0; at < RING2_ARENA; at += PAGE) {
        if (!memcmp(fuzz.before + at, fuzz.draw.arena + at, PAGE)) continue;
        for (size_t i = at; i < at + PAGE; i++)
            if (!fuzz.written[i] && fuzz.before[i] != fuzz.draw.arena[i]) {
                ring2_fail("op %d: byte %zu of the arena changed", (int)op, i);
                return;
            }
        memcpy(fuzz.before + at, fuzz.draw.arena + at, PAGE);
    }
}

static void fuzz_one(void)
{
    const gdn_op op = (gdn_op)below(RING2_N_OPS);
    gdn_ctx *ctx = ring2_ctx(2);
    union ring2_call c;
    gdn_batch t;
    gdn_status asked, status;
    size_t bytes = 0;
    if (!ring2_has_op(ctx, op)) return;
    ring2_draw_call(&fuzz.draw, op, &c, &t);
    memcpy(fuzz.before, fuzz.draw.arena, fuzz.draw.used); /* the rest is as it was */
    for (int64_t n = below(4); n > 0; n--) mutate(op, &c, &t);
    asked = gdn_supported(ctx, op, &c);
    CHECK(gdn_workspace_bytes(ctx, op, &c, &bytes) == asked, "op %d: two answers", (int)op);
    if (asked == GDN_OK && !is_runnable(op, &c)) return;
    status = gdn_run_op(ctx, op, &c);
    CHECK(asked == GDN_OK || status == asked, "op %d: gdn_supported says %s, the op %s", (int)op,
          gdn_status_name(asked), gdn_status_name(status));
    CHECK(status == GDN_OK || gdn_last_error(ctx)[0], "op %d: no error text", (int)op);
    check_unchanged(op, &c, status);
    status == GDN_OK ? fuzz.n_accepted[op]++ : fuzz.n_refused[op]++;
}

static void make_arena(void)
{
    ring2_draw_init(&fuzz.draw, false);
    fuzz.before = ring2_heap(RING2_ARENA);
    fuzz.written = ring2_heap(RING2_ARENA);
    memcpy(fuzz.before, fuzz.draw.arena, RING2_ARENA);
}

#ifdef GDN_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!fuzz.draw.arena) make_arena();
    fuzz.draw.data = data;
    fuzz.draw.size = size;
    fuzz_one();
    if (ring2_failed()) abort();
    return 0;
}
#else
static void arbitrary_structs(void)
{
    const struct fuzz_time time = fuzz_begin();
    make_arena();
    for (int64_t i = 0; (i < 40000 || fuzz_goes_on(&time)) && !ring2_failed(); i++) fuzz_one();
    for (int op = 0; op < RING2_N_OPS; op++)
        CHECK(!ring2_has_op(ring2_ctx(2), (gdn_op)op) ||
                  (fuzz.n_accepted[op] > 200 && fuzz.n_refused[op] > 200),
              "op %d: %d accepted, %d refused: too few", op, (int)fuzz.n_accepted[op],
              (int)fuzz.n_refused[op]);
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "arbitrary argument structs", arbitrary_structs };
    return ring2_main(argc, argv, &test, 1);
}
#endif
