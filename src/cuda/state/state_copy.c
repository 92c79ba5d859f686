/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/op_backends.h"
#include "calls/state_copy.h"
#include "core/tensor_check.h"
#include "cuda/driver/contents.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/lines.h"
#include "cuda/state/args.h"

/* PACK: elements. PACKS: of a block. TILE_LOG2, SIDE_LOG2: of a tile and its longest side. COLUMNS:
 * of a block. All are as in state_copy.cu. */
enum { PACK = 8, PACKS = 4 * 256, TILE_LOG2 = 12, SIDE_LOG2 = 6, COLUMNS = 32, MOST_K = 256 };

/* A dimension of the elements that are copied. */
struct dim {
    int64_t size, to, from; /* steps in bytes */
    bool is_column;
};

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static void swap(struct dim *a, struct dim *b)
{
    const struct dim x = *a;
    *a = *b;
    *b = x;
}

/* Returns the dimension to put last: one that is dense in the target, else one that is dense in
 * the source. */
static int find_last(const struct dim *d, int64_t to_unit, int64_t from_unit)
{
    for (int i = 2; i >= 0; i--)
        if (d[i].size > 1 && d[i].to == to_unit) return i;
    for (int i = 2; i >= 0; i--)
        if (d[i].size > 1 && d[i].from == from_unit) return i;
    return 2;
}

/* Merges a dimension into the next one if both sides have the parts of it one behind the other.
 * Begins at the last dimension. */
static void merge(struct dim *d, bool keeps_columns)
{
    for (int i = 1; i >= 0; i--) {
        struct dim *upper = &d[i], *lower = &d[i + 1];
        const bool is_one = lower->size == 1 && !(keeps_columns && lower->is_column);
        if (is_one) { /* a dimension of size 1 moves up, where it costs nothing */
            swap(upper, lower);
            continue;
        }
        if (keeps_columns && (upper->is_column || lower->is_column)) continue;
        if (upper->size > 1 &&
            (upper->to != lower->to * lower->size || upper->from != lower->from * lower->size))
            continue;
        lower->size *= upper->size;
        *upper = (struct dim){ .size = 1 };
    }
}

static void set_side(struct gdn_cu_copy_side *to, const struct gdn_state_side *from,
                     const gdn_tensor *pool)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(from->dtype);
    *to = (struct gdn_cu_copy_side){ .data = from->data,
                                     .n_slots = pool->size[0],
                                     .slot = from->slot * unit,
                                     .step = { from->head * unit, from->row * unit,
                                               from->column * unit },
                                     .scales = from->scales,
                                     .scales_slot = from->scales_slot,
                                     .scales_head = from->scales_head,
                                     .dtype = from->dtype };
}

/* Returns what the descriptors say: heads (or one), rows, columns. */
static struct gdn_cu_copy box_of(const struct gdn_state_move *m)
{
    const gdn_state_copy_args *a = &m->args;
    struct gdn_cu_copy c = {
        .from_slots = gdn_cuda_array(&a->from_slots),
        .to_slots = gdn_cuda_array(&a->to_slots),
        .size = { a->to_pool.ndim == 4 ? a->to_pool.size[1] : 1, m->rows, m->n_old + m->columns },
        .n_old = m->n_old,
        .n_pairs = m->n_pairs,
        .old_dim = -1,
        .seed = a->seed,
        .same_pool = m->same_pool,
        .random = a->rounding == GDN_ROUND_STOCHASTIC,
    };
    set_side(&c.to, &m->to, &a->to_pool);
    if (!m->from.data) return c;
    set_side(&c.from, &m->from, &a->from_pool);
    /* Column n of the target is column n - n_old + n_skipped of the source. The first n_old are not
     * read. */
    c.from.data =
        (char *)((uintptr_t)c.from.data + (uintptr_t)((m->n_skipped - m->n_old) * c.from.step[2]));
    return c;
}

/* Orders the dimensions so that the copy is fastest. */
static void order(struct gdn_cu_copy *c)
{
    const int64_t to_unit = (int64_t)gdn_dtype_bytes(c->to.dtype);
    const int64_t from_unit = c->from.data ? (int64_t)gdn_dtype_bytes(c->from.dtype) : 0;
    struct dim d[3];
    for (int i = 0; i < 3; i++)
        d[i] = (struct dim){ c->size[i], c->to.step[i], c->from.step[i], i == 2 };
    swap(&d[2], &d[find_last(d, to_unit, from_unit)]);
    if (magnitude(d[0].to) < magnitude(d[1].to)) swap(&d[0], &d[1]);
    merge(d, c->n_old > 0);
    if (magnitude(d[0].to) < magnitude(d[1].to)) swap(&d[0], &d[1]);
    c->turned = -1;
    for (int i = 0; i < 3; i++) {
        c->size[i] = d[i].size, c->to.step[i] = d[i].to, c->from.step[i] = d[i].from;
        if (d[i].is_column && c->n_old > 0) c->old_dim = i;
        if (i < 2 && d[i].size > 1 && d[i].from == from_unit) c->turned = i;
    }
    if (d[2].to != to_unit || d[2].from == from_unit || d[2].size == 1) c->turned = -1;
    if (d[2].size == 1) { /* a dimension of size 1 counts as dense */
        c->to.step[2] = to_unit;
        c->from.step[2] = from_unit;
    }
}

/* Chooses a tile that is square, or narrower if the box is. */
static void choose_tile(struct gdn_cu_copy *c)
{
    c->high = c->wide = SIDE_LOG2;
    while (c->high > 2 && c->size[c->turned] <= 1 << (c->high - 1)) c->high--;
    while (c->high == SIDE_LOG2 && c->wide > 2 && c->size[2] <= 1 << (c->wide - 1)) c->wide--;
    if (c->high < SIDE_LOG2)
        c->wide = TILE_LOG2 - c->high;
    else
        c->high = TILE_LOG2 - c->wide;
}

/* Returns the bytes of a side's packs that move at once. */
static int32_t access_of(const struct gdn_cu_copy *c, const struct gdn_cu_copy_side *side)
{
    const int64_t steps[] = { side->slot, side->step[0], side->step[1] };
    const uint64_t all = (uint64_t)(uintptr_t)side->data | (uint64_t)steps[0] | (uint64_t)steps[1] |
                         (uint64_t)steps[2] | (uint64_t)c->size[2];
    if (gdn_dtype_bytes(side->dtype) == 1) return all % PACK == 0 ? PACK : 0;
    return gdn_cuda_access(side->data, side->dtype, steps, 3, c->size[2]);
}

/* A planned launch: of a box. */
struct box {
    struct gdn_cu_copy args;
    enum gdn_kernel_id kernel;
    size_t shared_bytes;
};

/* Plans a copy between two dtypes that are not of 8 bits, or of equal bits, or of zeros. */
static void plan_box(struct box *b)
{
    struct gdn_cu_copy *c = &b->args;
    order(c);
    if (c->turned >= 0) {
        choose_tile(c);
        b->kernel = GDN_CU_state_copy_turn;
        b->shared_bytes = sizeof(uint32_t) * ((1u << c->wide) + 1) << c->high;
        c->n_units = c->size[1 - c->turned] * (((c->size[c->turned] - 1) >> c->high) + 1) *
                     (((c->size[2] - 1) >> c->wide) + 1);
        return;
    }
    b->kernel = GDN_CU_state_copy_rows;
    b->shared_bytes = 0;
    c->n_units = (c->size[0] * c->size[1] * ((c->size[2] + PACK - 1) / PACK) + PACKS - 1) / PACKS;
    c->to.access = access_of(c, &c->to);
    c->from.access = c->from.data ? access_of(c, &c->from) : 0;
}

/* Plans a copy from 8 bits or to 8 bits, with another dtype on the other side. */
static void plan_eight(struct box *b)
{
    struct gdn_cu_copy *c = &b->args;
    b->kernel = GDN_CU_state_copy_eight;
    b->shared_bytes = COLUMNS * (MOST_K + 1) * sizeof(float);
    c->n_units = c->size[0] * ((c->size[1] + COLUMNS - 1) / COLUMNS);
}

/* Returns the box of the scales of 8-bit pools. */
static struct gdn_cu_copy scales_box(const struct gdn_cu_copy *c)
{
    struct gdn_cu_copy s = *c;
    struct gdn_cu_copy_side *sides[] = { &s.to, &s.from };
    for (int i = 0; i < 2; i++) {
        struct gdn_cu_copy_side *side = sides[i];
        if (!side->data) continue;
        const int64_t unit = (int64_t)sizeof(float);
        side->data = (char *)side->scales;
        side->slot = side->scales_slot * unit;
        side->step[0] = side->scales_head * unit, side->step[1] = unit, side->step[2] = 0;
        side->dtype = GDN_F32;
    }
    s.size[2] = 1;
    return s;
}

/* ---- The call ------------------------------------------------------------------------------ */

/* The decisions about a call: the box. If states of 8 bits are copied as they are, their scales are
 * a second box. */
struct planned {
    bool scaled;
    struct box box, scales;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_state_copy(gdn_ctx *ctx, void *call)
{
    const struct gdn_state_call *c = call;
    const struct gdn_state_move *m = &c->move;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    (void)ctx;
    p->scaled = false;
    if (gdn_count(&m->args.to_pool) == 0) return GDN_OK;
    p->box.args = box_of(m);
    if (m->from.data && gdn_state_converts_q8(&m->to, &m->from)) {
        plan_eight(&p->box);
        return GDN_OK;
    }
    p->scaled = p->box.args.to.scales;
    if (p->scaled) {
        p->scales.args = scales_box(&p->box.args);
        plan_box(&p->scales);
    }
    plan_box(&p->box);
    return GDN_OK;
}

static void log_form(gdn_ctx *ctx, enum gdn_kernel_id kernel)
{
    const bool is_eight = kernel == GDN_CU_state_copy_eight;
    const bool is_turn = kernel == GDN_CU_state_copy_turn;
    const struct gdn_cuda_form list[] = {
        { "eight", is_eight ? NULL : "no 8 bits become another dtype, or come of one" },
        { "turn", is_turn ? NULL : "both sides have their elements side by side in one order" },
        { "rows", NULL },
    };
    gdn_cuda_log_forms(ctx, GDN_CUDA_COPY_CHOICE, "state_copy", list);
}

static gdn_status launch(gdn_ctx *ctx, const struct box *b, void *stream)
{
    int64_t blocks;
    if (__builtin_mul_overflow(b->args.n_pairs, b->args.n_units, &blocks)) blocks = INT64_MAX;
    const struct gdn_cuda_call call = {
        .kernel = b->kernel,
        .grid = { blocks, 1, 1 },
        .shared_bytes = b->shared_bytes,
        .stream = stream,
        .args = &b->args,
    };
    return gdn_cuda_launch(ctx, &call);
}

/* Checks the slots, if the context checks contents. */
static gdn_status check_contents(gdn_ctx *ctx, const struct gdn_state_move *m)
{
    struct gdn_state_move own = *m;
    gdn_tensor *arrays[] = { &own.args.from_slots, &own.args.to_slots };
    void *memory;
    TRY(gdn_cuda_contents_open(ctx, m->args.stream, arrays, 2, gdn_state_bytes(m), &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = gdn_state_check_slots(ctx, &own, memory);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

static gdn_status run_state_copy(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_state_call *c = call;
    const struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const enum gdn_kernel_id kernels[] = { p->box.kernel, p->scales.kernel };
    (void)memory;
    TRY(check_contents(ctx, &c->move));
    if (gdn_count(&c->move.args.to_pool) == 0) return gdn_note_line(ctx, "state_copy", "");
    log_form(ctx, p->box.kernel);
    if (p->scaled) TRY(launch(ctx, &p->scales, c->base.stream));
    TRY(launch(ctx, &p->box, c->base.stream));
    return gdn_cuda_note_all(ctx, "state_copy", kernels, 1 + p->scaled);
}

const struct gdn_op_backend gdn_cuda_op_state_copy = { plan_state_copy, run_state_copy };
