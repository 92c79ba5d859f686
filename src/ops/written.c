/* SPDX-License-Identifier: Apache-2.0 */
/* See written.h. Tensors are named by their number in the struct. */
#include "ops/written.h"

#include "batch/plan.h"
#include "core/tensor_check.h"

#define NUMBER(args, tensor)                                                                \
    ((offsetof(gdn_##args##_args, tensor) - offsetof(gdn_rule_args, q)) / sizeof(gdn_tensor))

enum {
#define GDN_TENSOR(args, tensor) ROW_##args##_##tensor,
#include "calls/ops.def"
    N_ROWS
};
static const char *const names[N_ROWS] = {
#define GDN_TENSOR(args, tensor) #tensor,
#include "calls/ops.def"
};

/* Structs by their names of ops.def: where the names of their tensors begin, and how many. */
enum {
#define GDN_ARGS_ROW(args, last, batch) ARGS_##args,
#include "calls/ops.def"
};
enum {
#define GDN_ARGS_ROW(args, last, batch) FIRST_##args = ROW_##args##_##last - NUMBER(args, last),
#include "calls/ops.def"
};
static const struct {
    int first, n;
} structs[] = {
#define GDN_ARGS_ROW(args, last, batch) { FIRST_##args, NUMBER(args, last) + 1 },
#include "calls/ops.def"
};
#define GDN_TENSOR(args, tensor)                                                            \
    _Static_assert(ROW_##args##_##tensor - FIRST_##args == NUMBER(args, tensor),            \
                   "ops.def: " #args ", " #tensor);
#include "calls/ops.def"

static const int struct_of[] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = ARGS_##args,
#include "calls/ops.def"
};

static const struct {
    int  args, tensor, unless; /* -1: always */
    bool final;
} written[] = {
#define GDN_WRITES(args, tensor)       { ARGS_##args, NUMBER(args, tensor), -1, false },
#define GDN_WRITES_FINAL(args, tensor) { ARGS_##args, NUMBER(args, tensor), -1, true },
#define GDN_WRITES_FINAL_UNLESS(args, tensor, other) \
    { ARGS_##args, NUMBER(args, tensor), NUMBER(args, other), true },
#include "calls/ops.def"
};

/* The tensor may be the view `other`; or, of scales, belongs to it. */
struct pair {
    int args, tensor, other;
};
static const struct pair same[] = {
#define GDN_MAY_BE_SAME(args, written, other) \
    { ARGS_##args, NUMBER(args, written), NUMBER(args, other) },
#include "calls/ops.def"
};
static const struct pair scales[] = {
#define GDN_SCALES(args, scales, pool) \
    { ARGS_##args, NUMBER(args, scales), NUMBER(args, pool) },
#include "calls/ops.def"
};

/* A call's tensors. */
struct tensors {
    const gdn_tensor *first;
    int               args;
};

static const gdn_tensor *pool_of(const struct tensors *t, int number)
{
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i].args == t->args && scales[i].tensor == number)
            return &t->first[scales[i].other];
    return NULL;
}

static bool may_be_same(const void *call, const gdn_tensor *a, const gdn_tensor *b)
{
    const struct tensors *t = call;
    const uintptr_t       end = (uintptr_t)(t->first + structs[t->args].n);
    if ((uintptr_t)b < (uintptr_t)t->first || (uintptr_t)b >= end) return false; /* of the batch */
    const int         x = (int)(a - t->first), y = (int)(b - t->first);
    const gdn_tensor *pool = pool_of(t, x), *other = pool_of(t, y);
    if (pool && other) return pool->data == other->data;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].args == t->args && same[i].tensor == x && same[i].other == y) return true;
    return false;
}

gdn_status gdn_check_written(gdn_ctx *ctx, gdn_op op, const void *args, const gdn_batch *batch)
{
    const struct gdn_rule_args *like = args; /* all structs begin alike */
    const struct tensors        t    = { &like->q, struct_of[op] };
    const char *const          *name = names + structs[t.args].first;
    const bool                  final = !batch || batch->write != GDN_WRITE_NONE;
    struct gdn_extents          all;
    all.n = 0;
    for (int i = 0; i < structs[t.args].n; i++) gdn_add_extent(&all, &t.first[i], name[i]);
    if (batch) gdn_plan_add_extents(batch, &all);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        const gdn_tensor *x = &t.first[written[i].tensor];
        if (written[i].args != t.args || !x->data || (written[i].final && !final)) continue;
        if (written[i].unless >= 0 && t.first[written[i].unless].data) continue;
        TRY(gdn_check_injective(ctx, x, name[written[i].tensor]));
        TRY(gdn_check_apart(ctx, &all, x, name[written[i].tensor], may_be_same, &t));
    }
    return GDN_OK;
}
