/* SPDX-License-Identifier: Apache-2.0 */
/* See tensors.h. Tensors are named by their number in the struct. */
#include "ops/tensors.h"

#include <string.h>

#include "core/tensor_check.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

enum {
#define GDN_TENSOR(args, tensor, is, dtypes, shape) ROW_##args##_##tensor,
#include "calls/ops.def"
    N_ROWS
};

/* ---- The rows ------------------------------------------------------------------------------ */

enum {
    FLOATS = GDN_FLOATS,
    F32 = 1 << GDN_F32,
    INDICES = GDN_INDICES,
    STATES = GDN_FLOATS | GDN_Q8_DTYPES,
    LIKE = GDN_AS_LIKE,
    LIKE_OR_F32 = GDN_AS_LIKE | F32
};
enum { OPTIONAL, NEEDED };

#define SIZES1(a) GDN_SIZE(a)
#define SIZES2(a, b) GDN_SIZE(a), GDN_SIZE(b)
#define SIZES3(a, b, c) GDN_SIZE(a), GDN_SIZE(b), GDN_SIZE(c)
#define SIZES4(a, b, c, d) GDN_SIZE(a), GDN_SIZE(b), GDN_SIZE(c), GDN_SIZE(d)
#define PICK(a, b, c, d, use, ...) use
#define SIZES(...) PICK(__VA_ARGS__, SIZES4, SIZES3, SIZES2, SIZES1, )(__VA_ARGS__)

/* form, dense, by_update, is_short, sizes */
#define ROWS(...) \
    GDN_FORM_TOKENS, true, false, false, { SIZES(__VA_ARGS__) }
#define TOKENS(...) \
    GDN_FORM_TOKENS, false, false, false, { SIZES(__VA_ARGS__) }
#define UPDATES(...) \
    GDN_FORM_TOKENS, true, true, false, { SIZES(__VA_ARGS__) }
#define GATES(...) \
    GDN_FORM_TOKENS, false, false, true, { SIZES(__VA_ARGS__) }
#define UPDATE_GATES(...) \
    GDN_FORM_TOKENS, false, true, true, { SIZES(__VA_ARGS__) }
#define SHAPE(...) \
    GDN_FORM_WHOLE, false, false, false, { SIZES(__VA_ARGS__) }
#define HEADS(...) \
    GDN_FORM_WHOLE, false, false, true, { SIZES(__VA_ARGS__) }
#define DENSE(...) \
    GDN_FORM_WHOLE, true, false, false, { SIZES(__VA_ARGS__) }
#define LIKE_ROWS \
    GDN_FORM_LIKE, true, false, false, { 0 }
#define LIKE_SHAPE \
    GDN_FORM_LIKE, false, false, false, { 0 }
#define LIKE_GATE \
    GDN_FORM_LIKE, false, false, true, { 0 }
#define POOL \
    GDN_FORM_POOL, false, false, false, { 0 }
#define TAPS \
    GDN_FORM_ELSEWHERE, false, false, false, { 0 }
#define ELSEWHERE \
    GDN_FORM_ELSEWHERE, false, false, false, { 0 }

static const struct gdn_tensor_row rows[N_ROWS] = {
#define GDN_TENSOR(args, tensor, is, dtypes, shape) \
    { #tensor, is, dtypes, shape, offsetof(gdn_##args##_args, tensor) },
#include "calls/ops.def"
};

/* For each struct of ops.def: its number, the row of its first tensor, and the number of
 * tensors. */
enum {
#define GDN_ARGS_ROW(args, first, last, batch) ARGS_##args,
#include "calls/ops.def"
};
enum {
#define GDN_ARGS_ROW(args, first, last, batch) FIRST_##args = ROW_##args##_##first,
#include "calls/ops.def"
};
#define NUMBER(args, tensor) (ROW_##args##_##tensor - FIRST_##args)
static const struct {
    int first, n;
} structs[] = {
#define GDN_ARGS_ROW(args, first, last, batch) { FIRST_##args, NUMBER(args, last) + 1 },
#include "calls/ops.def"
};
/* None of those before the numbers is left out. */
#define GDN_TENSOR(args, tensor, is, dtypes, shape)                                               \
    _Static_assert(offsetof(gdn_##args##_args, tensor) ==                                         \
                           offsetof(gdn_rule_args, q) +                                           \
                               NUMBER(args, tensor) * sizeof(gdn_tensor) ||                       \
                       offsetof(gdn_##args##_args, tensor) > offsetof(gdn_##args##_args, stream), \
                   "ops.def: " #args ", " #tensor);
#include "calls/ops.def"

/* All tensors of a call, and the arrays of its batch, are checked for overlaps at once. */
enum {
    N_BATCH_ARRAYS = (sizeof(gdn_batch) - offsetof(gdn_batch, cu_seqlens)) / sizeof(gdn_tensor)
};
#define GDN_ARGS_ROW(args, first, last, batch) \
    _Static_assert(NUMBER(args, last) + 1 + N_BATCH_ARRAYS <= GDN_MAX_EXTENTS, "extents");
#include "calls/ops.def"

static const int struct_of[] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = ARGS_##args,
#include "calls/ops.def"
};

/* A call's tensors. */
struct tensors {
    const void *of; /* the struct */
    int args;
};

static struct tensors tensors_of(gdn_op op, const void *args)
{
    return (struct tensors){ args, struct_of[op] };
}

static const gdn_tensor *tensor_at(const struct tensors *t, int number)
{
    return gdn_tensor_of(&rows[structs[t->args].first + number], t->of);
}

/* Returns the number of a tensor; -1: it is none of the struct. */
static int number_of(const struct tensors *t, const gdn_tensor *x)
{
    for (int i = 0; i < structs[t->args].n; i++)
        if (tensor_at(t, i) == x) return i;
    return -1;
}

const struct gdn_tensor_row *gdn_tensor_rows(gdn_op op)
{
    return rows + structs[struct_of[op]].first;
}

/* ---- Presence, dtypes, shapes -------------------------------------------------------------- */

gdn_status gdn_check_present(gdn_ctx *ctx, gdn_op op, void *args)
{
    const struct gdn_tensor_row *row = gdn_tensor_rows(op);
    for (int i = 0; i < structs[struct_of[op]].n; i++) {
        gdn_tensor *t = gdn_tensor_of(&row[i], args);
        if (row[i].needed && !t->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", row[i].name);
        TRY(gdn_check_tensor(ctx, t, row[i].name));
        gdn_drop_strides(t);
    }
    return GDN_OK;
}

static gdn_status check_shape(gdn_ctx *ctx, const gdn_tensor *t, const struct gdn_tensor_row *row,
                              const struct gdn_sizes *s)
{
    int64_t size[GDN_MAX_SIZES + 2];
    int n = 0;
    if (row->form == GDN_FORM_LIKE)
        return gdn_check_shape(ctx, t, row->name,
                               s->like->ndim - (row->is_short && t->ndim == s->like->ndim - 1),
                               s->like->size);
    if (row->form == GDN_FORM_TOKENS)
        n = gdn_plan_leading(row->by_update && s->updates ? s->updates : s->tokens, size);
    for (int i = 0; i < GDN_MAX_SIZES && row->size[i] != GDN_SIZE(end); i++, n++) {
        const char *const at = (const char *)s + row->size[i] * sizeof *size;
        memcpy(&size[n], at, sizeof *size);
        if (row->size[i] == GDN_SIZE(any)) size[n] = -1;
    }
    if (row->is_short && t->ndim != n) n--;
    return gdn_check_shape(ctx, t, row->name, n, size);
}

gdn_status gdn_check_shapes(gdn_ctx *ctx, gdn_op op, const void *args, const struct gdn_sizes *s)
{
    const struct tensors t = tensors_of(op, args);
    const struct gdn_tensor_row *row = gdn_tensor_rows(op);
    for (int i = 0; i < structs[t.args].n; i++) {
        const gdn_tensor *x = tensor_at(&t, i);
        if (!x->data) continue;
        const unsigned like = row[i].dtypes & GDN_AS_LIKE ? 1u << s->like->dtype : 0;
        TRY(gdn_check_dtype(ctx, x, row[i].name, (row[i].dtypes & ~(unsigned)GDN_AS_LIKE) | like));
        if (row[i].form < GDN_FORM_WHOLE) continue;
        TRY(check_shape(ctx, x, &row[i], s));
        if (row[i].dense) TRY(gdn_check_dense(ctx, x, row[i].name));
    }
    return GDN_OK;
}

/* ---- What is written ----------------------------------------------------------------------- */

/* By row: whether and when the tensor is written. */
static const struct written {
    bool is, final;
    int unless; /* the number of another tensor: written if that is absent; 0: written always */
} written[N_ROWS] = {
#define GDN_WRITES(args, tensor) [ROW_##args##_##tensor] = { true, false, 0 },
#define GDN_WRITES_FINAL(args, tensor) [ROW_##args##_##tensor] = { true, true, 0 },
#define GDN_WRITES_FINAL_UNLESS(args, tensor, other) \
    [ROW_##args##_##tensor] = { true, true, NUMBER(args, other) },
#include "calls/ops.def"
};
#define GDN_WRITES_FINAL_UNLESS(args, tensor, other) \
    _Static_assert(NUMBER(args, other) != 0, "ops.def: " #args ", " #other);
#include "calls/ops.def"

/* Two tensors of a struct. same: they may be one view. scales: `tensor` has the scales of
 * `other`. */
struct pair {
    int args, tensor, other;
};
static const struct pair same[] = {
#define GDN_MAY_BE_SAME(args, written, other) \
    { ARGS_##args, NUMBER(args, written), NUMBER(args, other) },
#include "calls/ops.def"
};
static const struct pair scales[] = {
#define GDN_SCALES(args, scales, pool) { ARGS_##args, NUMBER(args, scales), NUMBER(args, pool) },
#include "calls/ops.def"
};

static const gdn_tensor *pool_of(const struct tensors *t, int number)
{
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i].args == t->args && scales[i].tensor == number)
            return tensor_at(t, scales[i].other);
    return NULL;
}

static bool may_be_same(const void *call, const gdn_tensor *a, const gdn_tensor *b)
{
    const struct tensors *t = call;
    const int x = number_of(t, a), y = number_of(t, b);
    if (y < 0) return false; /* of the batch */
    const gdn_tensor *pool = pool_of(t, x), *other = pool_of(t, y);
    if (pool && other) return pool->data == other->data;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].args == t->args && same[i].tensor == x && same[i].other == y) return true;
    return false;
}

gdn_status gdn_check_written(gdn_ctx *ctx, gdn_op op, const void *args, const gdn_batch *batch)
{
    const struct tensors t = tensors_of(op, args);
    const struct gdn_tensor_row *row = gdn_tensor_rows(op);
    const bool final = !batch || batch->write != GDN_WRITE_NONE;
    struct gdn_extents all;
    all.n = 0;
    for (int i = 0; i < structs[t.args].n; i++)
        if (tensor_at(&t, i)->data) gdn_add_extent(&all, tensor_at(&t, i), row[i].name);
    const int n = all.n;
    if (batch) gdn_plan_add_extents(batch, &all);
    for (int i = 0; i < n; i++) {
        const struct gdn_extent *x = &all.of[i];
        const struct written *w = &written[structs[t.args].first + number_of(&t, x->t)];
        if (!w->is || (w->final && !final) || (w->unless && tensor_at(&t, w->unless)->data))
            continue;
        TRY(gdn_check_injective(ctx, x->t, x->name));
        TRY(gdn_check_apart(ctx, &all, x, may_be_same, &t));
    }
    return GDN_OK;
}
