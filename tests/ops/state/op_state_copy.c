/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_state_copy against a copy by elements, and its guarantees by name. */
#include <math.h>
#include <string.h>

#include "ring2.h"
#include "ring2_device.h"

/* ---- Pools --------------------------------------------------------------------------------- */

enum { TIGHT, GAPS, BACKWARDS, TURNED, SPREAD, N_VIEWS };

/* [P][H][V][K] or [P][H][K][V], or with H < 0 a convolution's [P][D][S] as V x K. */
struct shape {
    int64_t P, H, V, K;
};

static gdn_tensor backwards(gdn_tensor t, int dim)
{
    t.data = (char *)t.data + (t.size[dim] - 1) * t.stride[dim] * (int64_t)gdn_dtype_bytes(t.dtype);
    t.stride[dim] = -t.stride[dim];
    return t;
}

/* Every second element of the last dimension. */
static gdn_tensor spread(int32_t dtype, int ndim, const int64_t *s)
{
    const int last = ndim - 1;
    gdn_tensor t;
    if (ndim == 3)
        t = ring2_new(dtype, 0, 3, s[0], s[1], 2 * s[2], 0);
    else
        t = ring2_new(dtype, 0, 4, s[0], s[1], s[2], 2 * s[3]);
    t.size[last] = s[last];
    t.stride[last] = 2;
    return t;
}

static gdn_tensor make_pool(int32_t dtype, const struct shape *p, int32_t layout, int view)
{
    const bool conv = p->H < 0, vk = layout == GDN_STATE_VK;
    const int64_t a = vk ? p->V : p->K, b = vk ? p->K : p->V;
    const int64_t gap = view == GAPS ? 3 : view == TURNED;
    const int64_t s[] = { p->P, conv ? p->V : p->H, conv ? p->K : a, b };
    const int n = conv ? 3 : 4;
    gdn_tensor t;
    if (view == SPREAD) return spread(dtype, n, s);
    t = ring2_turned(view == TURNED, dtype, gap, n, s[0], s[1], s[2], conv ? 0 : s[3]);
    return view == BACKWARDS ? backwards(t, 0) : t;
}

/* Element (v, k) of a slot and head, or (channel, entry). */
static gdn_tensor element(const gdn_tensor *pool, int32_t layout, int64_t slot, int64_t head,
                          int64_t v, int64_t k)
{
    gdn_tensor t = ring2_select(pool, 0, slot);
    if (pool->ndim == 4) t = ring2_select(&t, 0, head);
    if (layout == GDN_STATE_KV) t = ring2_swap(&t, 0, 1);
    t = ring2_select(&t, 0, v);
    return ring2_narrow(&t, 0, k, 1);
}

static int64_t index_of(const gdn_tensor *slots, int64_t i)
{
    return slots->data ? (int64_t)ring2_get(slots, i) : i;
}

/* ---- The model ----------------------------------------------------------------------------- */

/* One element at a time, as gdn.h says; the target is a clone. */
static void model_pair(const gdn_state_copy_args *a, const gdn_tensor *from, int64_t from_slot,
                       int64_t to_slot)
{
    const gdn_tensor *to = &a->to_pool;
    const bool conv = to->ndim == 3, vk = a->to_layout == GDN_STATE_VK;
    const int64_t H = conv ? 1 : to->size[1];
    const int64_t V = conv ? to->size[1] : to->size[vk ? 2 : 3];
    const int64_t K = conv ? to->size[2] : to->size[vk ? 3 : 2];
    const int64_t older = conv && from->data ? K - from->size[2] : 0; /* may be below 0 */
    for (int64_t i = 0; i < H * V * K; i++) {
        const int64_t h = i / (V * K), v = i / K % V, k = i % K;
        gdn_tensor e = element(to, a->to_layout, to_slot, h, v, k);
        if (!from->data || from_slot < 0 || k - older < 0) {
            ring2_set(&e, 0, 0);
            continue;
        }
        gdn_tensor f = element(from, a->from_layout, from_slot, h, v, k - older);
        ring2_copy(&e, &f);
    }
}

static gdn_tensor model(const gdn_state_copy_args *a)
{
    gdn_state_copy_args b = *a;
    const gdn_tensor from = ring2_clone(&a->from_pool);
    const int64_t n = a->from_slots.data ? a->from_slots.size[0]
                      : a->to_slots.data ? a->to_slots.size[0]
                                         : a->to_pool.size[0];
    b.to_pool = ring2_clone(&a->to_pool);
    for (int64_t i = 0; i < n; i++)
        if (index_of(&a->to_slots, i) >= 0)
            model_pair(&b, &from, index_of(&a->from_slots, i), index_of(&a->to_slots, i));
    return b.to_pool;
}

static void may_write(const gdn_state_copy_args *a)
{
    const int64_t n = a->to_slots.data     ? a->to_slots.size[0]
                      : a->from_slots.data ? a->from_slots.size[0]
                                           : a->to_pool.size[0];
    for (int64_t i = 0; i < n; i++) {
        const int64_t slot = index_of(&a->to_slots, i);
        if (slot < 0) continue;
        const gdn_tensor t = ring2_narrow(&a->to_pool, 0, slot, 1);
        ring2_may_write(&t);
    }
}

static void check(gdn_ctx *ctx, const gdn_state_copy_args *a)
{
    const gdn_tensor want = model(a);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_STATE_COPY, a), GDN_OK);
    ring2_call_begin();
    may_write(a);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    ring2_status(ctx, "gdn_state_copy", gdn_state_copy(ctx, a), GDN_OK);
    ring2_call_end();
    ring2_expect_bits("to_pool", &a->to_pool, &want);
}

/* ---- Cases --------------------------------------------------------------------------------- */

enum { FROM, TO, FROM_LAYOUT, TO_LAYOUT, FROM_VIEW, TO_VIEW, SIZE, LISTS, LIST_DTYPE, N_FACTORS };
enum { NO_LISTS, FROM_ONLY, TO_ONLY, BOTH, FORK, IN_PLACE, NO_SOURCE };

static const int levels[N_FACTORS] = { 3, 3, 2, 2, N_VIEWS, N_VIEWS, 8, 7, 2 };

/* Three are states of the convolution; the last shape is a level of some cases once more. */
static const struct shape shapes[9] = { { 3, 1, 1, 1 },    { 4, 3, 7, 5 },     { 5, 2, 64, 16 },
                                        { 3, 2, 100, 33 }, { 2, 1, 256, 1 },   { 4, -1, 5, 3 },
                                        { 3, -1, 70, 4 },  { 2, -1, 1100, 3 }, { 2, 1, 1000, 20 } };

static bool clash(int i, int a, int j, int b)
{
    if (i == SIZE && shapes[a].H < 0 && (j == FROM_LAYOUT || j == TO_LAYOUT)) return b != 0;
    /* In place all that is said of to_pool is from_pool's. */
    return i == LISTS && a == IN_PLACE && (j == FROM || j == FROM_LAYOUT || j == FROM_VIEW) &&
           b != 0;
}

static bool allowed(int i, int a, int j, int b) { return !clash(i, a, j, b) && !clash(j, b, i, a); }

static gdn_tensor list(int32_t dtype, int64_t n, const int64_t *values)
{
    return ring2_indices(dtype, n, values);
}

/* Numbers 0..n-1 in random order. */
static void shuffle(int64_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = ring2_below(i + 1);
        x[i] = x[j];
        x[j] = i;
    }
}

static void choose_slots(gdn_state_copy_args *a, int lists, int32_t dtype)
{
    const int64_t P = a->to_pool.size[0], M = lists == FORK ? P - 1 : P;
    int64_t from[8], to[8];
    shuffle(to, P);
    for (int64_t i = 0; i < M; i++) from[i] = ring2_below(P + 1) - 1;
    if (lists == FORK)
        for (int64_t i = 0; i < M; i++) from[i] = to[M];
    if (lists == BOTH) to[ring2_below(P)] = -1 - ring2_below(3);
    if (lists == IN_PLACE) { /* a fork; one is zeroed, the last stays */
        for (int64_t i = 0; i < M; i++) from[i] = i == 1 ? -1 : i == M - 1 ? to[i] : to[0];
        to[0] = -1;
    }
    if (lists == FROM_ONLY || lists >= BOTH) a->from_slots = list(dtype, M, from);
    if (lists == TO_ONLY || lists >= BOTH) a->to_slots = list(dtype, M, to);
    if (lists == NO_SOURCE) a->from_pool.data = NULL;
}

static void run_case(const int *level, int number)
{
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_state_copy_args a = gdn_state_copy_args_init();
    const struct shape *p = &shapes[level[SIZE]];
    struct shape q = *p;
    if (p->H < 0) q.K = 1 + ring2_below(6); /* another S */
    const bool in_place = level[LISTS] == IN_PLACE;
    a.to_layout = level[TO_LAYOUT];
    a.to_pool = make_pool(level[TO], p, a.to_layout, level[TO_VIEW]);
    a.from_layout = in_place ? a.to_layout : level[FROM_LAYOUT];
    a.from_pool =
        in_place ? a.to_pool : make_pool(level[FROM], &q, a.from_layout, level[FROM_VIEW]);
    ring2_fill(&a.to_pool, -3, 3);
    ring2_fill(&a.from_pool, -3, 3);
    choose_slots(&a, level[LISTS], level[LIST_DTYPE] ? GDN_I64 : GDN_I32);
    if (number % 2) {
        ring2_status(ctx, "bytes",
                     gdn_workspace_bytes(ctx, GDN_OP_STATE_COPY, &a, &a.workspace_bytes), GDN_OK);
        CHECK(a.workspace_bytes <= (size_t)a.to_pool.size[0] / 8 + 64, "%zu bytes",
              a.workspace_bytes);
        a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    }
    check(ctx, &a);
}

/* All dtypes x layouts x views, which the pairs above only sample. */
static void every_conversion(void)
{
    static const struct shape p = { 2, 2, 37, 19 };
    for (int i = 0; i < 3 * 3 * 2 * 2 * N_VIEWS * N_VIEWS; i++) {
        const int f = i % 3, t = i / 3 % 3, fl = i / 9 % 2, tl = i / 18 % 2;
        const int fv = i / 36 % N_VIEWS, tv = i / 36 / N_VIEWS;
        gdn_state_copy_args a = gdn_state_copy_args_init();
        a.from_layout = fl, a.to_layout = tl;
        a.from_pool = make_pool(f, &p, fl, fv);
        a.to_pool = make_pool(t, &p, tl, tv);
        ring2_fill(&a.from_pool, -1e-3, 1e-3);
        const gdn_tensor want = model(&a);
        ring2_status(ring2_ctx(2), "call", gdn_state_copy(ring2_ctx(2), &a), GDN_OK);
        ring2_expect_bits("to_pool", &a.to_pool, &want);
        if (ring2_failed())
            ring2_fail("%d: dtypes %d %d, layouts %d %d, views %d %d", i, f, t, fl, tl, fv, tv);
    }
}

/* ---- Guarantees ---------------------------------------------------------------------------- */

static gdn_state_copy_args make_call(int32_t from, int32_t to)
{
    static const struct shape p = { 6, 4, 48, 40 };
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = make_pool(from, &p, GDN_STATE_VK, TIGHT);
    a.to_pool = make_pool(to, &p, GDN_STATE_KV, TIGHT);
    a.to_layout = GDN_STATE_KV;
    ring2_fill(&a.from_pool, -9, 9);
    ring2_fill(&a.to_pool, -9, 9);
    return a;
}

static void G2_batch_mates(void)
{
    gdn_state_copy_args a = make_call(GDN_F16, GDN_BF16), c = a;
    c.to_pool = ring2_clone(&a.to_pool);
    ring2_status(ring2_ctx(1), "one", gdn_state_copy(ring2_ctx(1), &a), GDN_OK);
    for (int64_t i = 5; i >= 0; i--) {
        c.from_slots = c.to_slots = ring2_indices(GDN_I32, 1, &i);
        ring2_status(ring2_ctx(2), "alone", gdn_state_copy(ring2_ctx(2), &c), GDN_OK);
    }
    ring2_expect_bits("alone", &c.to_pool, &a.to_pool);
}

/* Every 16-bit pattern, and signalling NaN of 32 bits; through each pair of layouts and views. */
static void G14_every_bit(void)
{
    static const struct shape p = { 4, 8, 32, 64 }; /* 65536 elements */
    for (int i = 0; i < 3 * 4 * 3; i++) {
        const int dtype = i % 3;
        gdn_state_copy_args a = gdn_state_copy_args_init();
        a.from_layout = i / 3 % 2, a.to_layout = i / 6 % 2;
        a.from_pool = make_pool(dtype, &p, a.from_layout, TIGHT);
        a.to_pool = make_pool(dtype, &p, a.to_layout,
                              i / 12 == 0   ? TIGHT
                              : i / 12 == 1 ? TURNED
                                            : SPREAD);
        for (int64_t j = 0; j < 65536; j++) {
            const uint16_t half = (uint16_t)j;
            const uint32_t word = UINT32_C(0x7f800001) + (uint32_t)j * 33 + ((uint32_t)j << 31);
            if (dtype == GDN_F32)
                memcpy(ring2_element(&a.from_pool, j), &word, 4);
            else
                memcpy(ring2_element(&a.from_pool, j), &half, 2);
        }
        check(ring2_ctx(2), &a);
    }
}

/* To float32 and back nothing is lost, and to float32 nothing changes. */
static void G14_float32_is_exact(void)
{
    static const struct shape p = { 4, 8, 32, 64 };
    for (int i = 0; i < 4; i++) {
        gdn_state_copy_args a = gdn_state_copy_args_init(), b = a;
        a.from_pool = make_pool(1 + i % 2, &p, GDN_STATE_VK, TIGHT);
        a.to_layout = i / 2;
        a.to_pool = make_pool(GDN_F32, &p, a.to_layout, TIGHT);
        for (int64_t j = 0; j < 65536; j++) {
            const uint16_t half = (uint16_t)j;
            memcpy(ring2_element(&a.from_pool, j), &half, 2);
            if (isnan(ring2_get(&a.from_pool, j))) ring2_set(&a.from_pool, j, 0);
        }
        check(ring2_ctx(2), &a);
        b.from_pool = a.to_pool, b.from_layout = a.to_layout;
        b.to_pool = make_pool(1 + i % 2, &p, GDN_STATE_VK, TIGHT);
        check(ring2_ctx(2), &b);
        ring2_expect_bits("back", &b.to_pool, &a.from_pool);
    }
}

/* ---- More ---------------------------------------------------------------------------------- */

static void empty_pools(void)
{
    static const struct shape shapes_of[] = { { 0, 2, 3, 4 },  { 3, 0, 3, 4 },  { 3, 2, 0, 4 },
                                              { 0, -1, 4, 3 }, { 3, -1, 0, 3 }, { 3, -1, 4, 0 } };
    for (size_t i = 0; i < sizeof shapes_of / sizeof *shapes_of; i++) {
        gdn_state_copy_args a = gdn_state_copy_args_init();
        a.from_pool = make_pool(GDN_F32, &shapes_of[i], 0, TIGHT);
        a.to_pool = make_pool(GDN_BF16, &shapes_of[i], 0, TIGHT);
        check(ring2_ctx(2), &a);
    }
    gdn_state_copy_args a = make_call(GDN_F32, GDN_F32);
    a.from_slots = a.to_slots = ring2_indices(GDN_I32, 0, NULL);
    check(ring2_ctx(2), &a); /* no pairs */
    gdn_state_copy_args b = gdn_state_copy_args_init();
    b.from_pool = make_pool(GDN_F32, &(struct shape){ 3, -1, 4, 0 }, 0, TIGHT);
    b.to_pool = make_pool(GDN_F32, &(struct shape){ 3, -1, 4, 3 }, 0, TURNED);
    ring2_fill(&b.to_pool, 1, 2);
    check(ring2_ctx(2), &b); /* nothing is newest: zero */
}

/* The loops that ran, by name. */
static void kernels(void)
{
    static const char *const names[9] = {
        "state_copy: transpose.%s",
        "state_copy: load_row.%s transpose.%s",
        "state_copy: load_row.%s transpose.%s",
        "state_copy: transpose.%s store_row.%s",
        "state_copy:",
        "state_copy: load_row.%s transpose.%s store_row.%s",
        "state_copy: transpose.%s store_row.%s",
        "state_copy: load_row.%s transpose.%s store_row.%s",
        "state_copy:",
    };
    for (int i = 0; i < 9; i++) {
        gdn_state_copy_args a = make_call(i % 3, i / 3);
        gdn_ctx *ctx = ring2_ctx(1);
        char want[128] = "", *at = want;
        for (const char *c = ring2_on_device() ? "state_copy: gdn_state_copy_turn" : names[i]; *c;
             c++) {
            if (*c == '%')
                at += strlen(strcpy(at, gdn_isa(ctx))), c++;
            else
                *at++ = *c, *at = 0;
        }
        check(ctx, &a);
        CHECK(!strcmp(gdn_last_kernel(ctx), want), "\"%s\", wanted \"%s\"", gdn_last_kernel(ctx),
              want);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------ */

static gdn_state_copy_args now;

static bool begin(const char *what)
{
    if (!ring2_begin("G1 state_copy: %s", what)) return false;
    now = make_call(GDN_F32, GDN_F16);
    now.from_slots = ring2_indices(GDN_I32, 3, (const int64_t[]){ 0, 1, 2 });
    now.to_slots = ring2_indices(GDN_I64, 3, (const int64_t[]){ 3, 4, 5 });
    return true;
}

/* Spoils the call by the statements, which see it as a. */
#define REFUSE_SEEN(seen, what, want, needle, ...)                             \
    do {                                                                       \
        gdn_state_copy_args *a = &now;                                         \
        if (!begin(what)) break;                                               \
        __VA_ARGS__;                                                           \
        ring2_refused(ring2_ctx(2), GDN_OP_STATE_COPY, a, seen, want, needle); \
        ring2_end();                                                           \
    } while (0)
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, __VA_ARGS__)
#define REFUSE_SLOTS(...) REFUSE_SEEN(RING2_CONTENTS, __VA_ARGS__)
#define LIST(...)                                                                           \
    ring2_indices(GDN_I32, (int64_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                  (const int64_t[]){ __VA_ARGS__ })

static void refuse_structs(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("reserved", GDN_E_ARG, "reserved: 1", a->reserved = 1);
    REFUSE("from_layout", GDN_E_ARG, "from_layout", a->from_layout = 2);
    REFUSE("to_layout", GDN_E_ARG, "to_layout", a->to_layout = -1);
    REFUSE("to_pool absent", GDN_E_ARG, "to_pool: absent", a->to_pool.data = NULL);
    REFUSE("to_pool of I32", GDN_E_DTYPE, "to_pool", a->to_pool.dtype = GDN_I32);
    REFUSE("from_pool of U8", GDN_E_DTYPE, "from_pool", a->from_pool.dtype = GDN_U8);
    REFUSE("from_pool of 2 dimensions", GDN_E_SHAPE, "from_pool", a->from_pool.ndim = 2);
    REFUSE("to_pool of 5 dimensions", GDN_E_SHAPE, "to_pool", a->to_pool.ndim = 5);
    REFUSE("one of each kind", GDN_E_SHAPE, "from_pool", a->from_pool.ndim = 3);
    REFUSE("a layout for 3 dimensions", GDN_E_ARG, "to_pool: layout",
           a->from_pool.ndim = a->to_pool.ndim = 3);
    REFUSE("other heads", GDN_E_SHAPE, "from_pool", a->from_pool.size[1]--);
    REFUSE("other K", GDN_E_SHAPE, "from_pool", a->from_pool.size[3]--);
    REFUSE("the other layout", GDN_E_SHAPE, "from_pool", a->from_layout = GDN_STATE_KV);
    REFUSE("heads share memory", GDN_E_SHAPE, "to_pool", a->to_pool.stride[1] = 1);
    REFUSE("stride leaves memory", GDN_E_SHAPE, "from_pool", a->from_pool.stride[0] = INT64_MAX);
    REFUSE("misaligned", GDN_E_ARG, "from_pool", a->from_pool.data = (char *)a->from_pool.data + 2);
    REFUSE("overlap", GDN_E_ARG, "to_pool: overlaps from_pool",
           a->to_pool.data = a->from_pool.data);
    REFUSE("one slot on", GDN_E_ARG, "to_pool: overlaps from_pool", a->to_pool = a->from_pool;
           a->to_layout = 0; a->to_pool.data = (char *)a->to_pool.data + 48 * 40 * 4 * 4);
    REFUSE("overlap with from_slots", GDN_E_ARG, "to_pool: overlaps from_slots",
           a->from_slots.data = a->to_pool.data);
    REFUSE("overlap with to_slots", GDN_E_ARG, "to_pool: overlaps to_slots",
           a->to_slots.data = a->to_pool.data);
    REFUSE("slots of 2 dimensions", GDN_E_SHAPE, "to_slots", a->to_slots.ndim = 2;
           a->to_slots.size[1] = 1);
    REFUSE("slots of F32", GDN_E_DTYPE, "from_slots", a->from_slots.dtype = GDN_F32);
    REFUSE("slots of U8", GDN_E_DTYPE, "from_slots", a->from_slots.dtype = GDN_U8);
    REFUSE("more slots than slots", GDN_E_SHAPE, "from_slots", a->to_slots = LIST(0, 1));
    REFUSE("too many pairs", GDN_E_UNSUPPORTED, "2^31",
           a->from_slots.size[0] = a->to_slots.size[0] = ((int64_t)1 << 31) + 1;
           a->from_slots.stride[0] = a->to_slots.stride[0] = 0);
    REFUSE("no lists, other slots", GDN_E_SHAPE, "from_pool: 5 slots",
           a->from_slots.data = a->to_slots.data = NULL;
           a->from_pool.size[0] = 5);
    REFUSE("few targets", GDN_E_SHAPE, "to_slots: absent", a->to_slots.data = NULL;
           a->to_pool.size[0] = 2);
    REFUSE("few sources", GDN_E_SHAPE, "from_slots: absent", a->from_slots.data = NULL;
           a->from_pool.size[0] = 2);
    REFUSE("transposed in place", GDN_E_ARG, "to_layout",
           a->to_pool = a->from_pool = make_pool(GDN_F32, &(struct shape){ 6, 1, 4, 4 }, 0, 0));
    REFUSE_SEEN(RING2_WORKSPACE, "a small workspace", GDN_E_MEMORY, "workspace_bytes",
                a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 0);
}

static void in_place(gdn_state_copy_args *a)
{
    a->to_pool = a->from_pool;
    a->to_layout = a->from_layout;
}

static void refuse_slots(void)
{
    REFUSE_SLOTS("to beyond", GDN_E_ARG, "to_slots[1]: slot 6, wanted below 6",
                 a->to_slots = LIST(3, 6, 4));
    REFUSE_SLOTS("from beyond", GDN_E_ARG, "from_slots[2]: slot 60, wanted below 6",
                 a->from_slots = LIST(3, -6, 60));
    REFUSE_SLOTS("twice", GDN_E_ARG, "to_slots[2]: slot 5, which an earlier",
                 a->to_slots = LIST(5, 4, 5));
    REFUSE_SLOTS("zeroed twice", GDN_E_ARG, "to_slots[1]: slot 5", a->to_slots = LIST(5, 5, 1);
                 a->from_slots = LIST(-1, -1, 0));
    REFUSE_SLOTS("read and written", GDN_E_ARG, "from_slots[0]: slot 1, which another", in_place(a);
                 a->from_slots = LIST(1, 0, 2); a->to_slots = LIST(3, 1, 4));
    REFUSE_SLOTS("a cycle", GDN_E_ARG, "from_slots[0]: slot 0", in_place(a);
                 a->from_slots = LIST(0, 1); a->to_slots = LIST(1, 0));
    REFUSE_SLOTS("read and zeroed", GDN_E_ARG, "from_slots[1]: slot 2", in_place(a);
                 a->from_slots = LIST(-1, 2); a->to_slots = LIST(2, 0));
}

/* A device does not judge the pairs, but whatever they are it writes to the target alone. */
static void check_hostile(gdn_ctx *ctx, const gdn_state_copy_args *a)
{
    ring2_call_begin();
    ring2_may_write(&a->to_pool);
    ring2_status(ctx, "hostile slots", gdn_state_copy(ctx, a), GDN_OK);
    ring2_call_end();
}

/* The rule of slots against all pairs of pairs. */
static void slots_against_all_pairs(void)
{
    static const struct shape p = { 9, 1, 1, 2 };
    int n_accepted = 0, n_refused = 0;
    for (int n = 0; n < 600 && !ring2_failed(); n++) {
        gdn_state_copy_args a = gdn_state_copy_args_init();
        const int64_t M = 1 + ring2_below(4);
        const bool same = ring2_below(2);
        int64_t from[4], to[4];
        bool good = true;
        a.to_pool = make_pool(GDN_F32, &p, 0, TIGHT);
        a.from_pool = same ? a.to_pool : make_pool(GDN_F32, &p, 0, TIGHT);
        ring2_fill(&a.to_pool, -1, 1);
        ring2_fill(&a.from_pool, -1, 1);
        for (int64_t i = 0; i < M; i++)
            from[i] = ring2_below(11) - 1, to[i] = ring2_below(11) - 1; /* 9 does not exist */
        for (int64_t i = 0; i < M; i++)
            good = good && (to[i] < 0 || (to[i] < p.P && from[i] < p.P));
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < M; j++) {
                if (i == j || to[i] < 0 || to[j] < 0) continue;
                good = good && to[i] != to[j] && !(same && from[i] == to[j]);
            }
        a.from_slots = ring2_indices(GDN_I32, M, from);
        a.to_slots = ring2_indices(GDN_I32, M, to);
        if (good)
            check(ring2_ctx(1), &a), n_accepted++;
        else if (ring2_on_device())
            check_hostile(ring2_ctx(1), &a), n_refused++;
        else if (gdn_state_copy(ring2_ctx(1), &a) != GDN_E_ARG)
            ring2_fail("case %d", n);
        else
            n_refused++;
    }
    CHECK(n_accepted > 100 && n_refused > 100, "%d accepted, %d refused", n_accepted, n_refused);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "every conversion", every_conversion },
        { "G2 other pairs", G2_batch_mates },
        { "G14 every bit", G14_every_bit },
        { "G14 float32 is exact", G14_float32_is_exact },
        { "empty pools", empty_pools },
        { "kernels", kernels },
        { "slots against all pairs", slots_against_all_pairs },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int few = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    const int n = ring2_pairs_again(&f, cases, few, 200, SIZE, 8, 9);
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("state_copy %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    refuse_structs();
    refuse_slots();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
