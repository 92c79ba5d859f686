/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_state_copy: checks its arguments. cpu/state_copy.c computes it. */
#include "calls/state_copy.h"

#include "calls/rule.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"

/* As many pairs as a call may have. */
#define MAX_PAIRS ((int64_t)1 << 31)

/* ---- Descriptors --------------------------------------------------------------------------- */

/* A dimension of one element may have any stride, which is never used. */
static int64_t step(const gdn_tensor *t, int i) { return t->size[i] < 2 ? 0 : t->stride[i]; }

static struct gdn_state_side side_of(const gdn_tensor *t, const gdn_tensor *scales, int32_t layout)
{
    struct gdn_state_side s = { .data = t->data, .dtype = t->dtype };
    if (!t->data) return s;
    s.slot = step(t, 0);
    if (t->ndim == 3) {
        s.row = step(t, 1);
        s.column = step(t, 2);
    } else {
        s.head = step(t, 1);
        s.row = step(t, layout == GDN_STATE_VK ? 2 : 3);
        s.column = step(t, layout == GDN_STATE_VK ? 3 : 2);
    }
    if (!scales->data) return s;
    s.scales = scales->data;
    s.scales_slot = step(scales, 0);
    s.scales_head = step(scales, 1);
    return s;
}

static gdn_status check_pool(gdn_ctx *ctx, gdn_tensor *t, const char *name, int32_t layout)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    gdn_drop_strides(t);
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS | (t->ndim == 3 ? 0 : GDN_Q8_DTYPES)));
    if (t->ndim != 3 && t->ndim != 4)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "%s: %d dimensions, wanted 4 (of the rule) or 3 (of the convolution)", name,
                        (int)t->ndim);
    if (t->ndim == 3 && layout)
        return gdn_fail(ctx, GDN_E_ARG, "%s: layout %d, wanted 0 for 3 dimensions", name,
                        (int)layout);
    return GDN_OK;
}

static gdn_status check_pools(gdn_ctx *ctx, struct gdn_state_move *m)
{
    gdn_state_copy_args *a = &m->args;
    gdn_tensor *to = &a->to_pool, *from = &a->from_pool;
    if (!to->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", m->to_name);
    TRY(check_pool(ctx, to, m->to_name, a->to_layout));
    TRY(check_pool(ctx, from, m->from_name, a->from_layout));
    TRY(gdn_check_injective(ctx, to, m->to_name));
    if (!from->data) return GDN_OK;
    const bool turn = a->from_layout != a->to_layout;
    if (to->ndim == 3)
        TRY(gdn_check_shape(ctx, from, m->from_name, 3, (int64_t[]){ -1, to->size[1], -1 }));
    else
        TRY(gdn_check_shape(
            ctx, from, m->from_name, 4,
            (int64_t[]){ -1, to->size[1], to->size[turn ? 3 : 2], to->size[turn ? 2 : 3] }));
    TRY(gdn_check_no_overlap(ctx, to, m->to_name, from, m->from_name, true));
    m->same_pool = to->data == from->data;
    if (m->same_pool && turn)
        return gdn_fail(ctx, GDN_E_ARG, "to_layout: %d, wanted %d as in %s, the same memory",
                        (int)a->to_layout, (int)a->from_layout, m->from_name);
    return GDN_OK;
}

static gdn_status check_list(gdn_ctx *ctx, const struct gdn_state_move *m, const gdn_tensor *t,
                             const char *name)
{
    static const int64_t any[] = { -1 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_INDICES));
    TRY(gdn_check_shape(ctx, t, name, 1, any));
    TRY(gdn_check_no_overlap(ctx, &m->args.to_scales, "to_scales", t, name, false));
    return gdn_check_no_overlap(ctx, &m->args.to_pool, m->to_name, t, name, false);
}

/* Checks the scales of both pools, which have been checked. */
static gdn_status check_scales(gdn_ctx *ctx, struct gdn_state_move *m)
{
    gdn_state_copy_args *a = &m->args;
    const struct gdn_scaled from = { &a->from_pool, &a->from_scales, m->from_name, "from_scales" };
    const struct gdn_scaled to = { &a->to_pool, &a->to_scales, m->to_name, "to_scales" };
    const gdn_tensor *t = &a->to_pool;
    const bool vk = a->to_layout == GDN_STATE_VK;
    const int64_t V = t->ndim == 4 ? t->size[vk ? 2 : 3] : 0;
    const int64_t K = t->ndim == 4 ? t->size[vk ? 3 : 2] : 0;
    TRY(gdn_check_scales(ctx, &from, t->size[1], V));
    TRY(gdn_check_scales(ctx, &to, t->size[1], V));
    gdn_drop_strides(&a->from_scales), gdn_drop_strides(&a->to_scales);
    const bool is_q8 = gdn_is_q8(t->dtype) || (from.t->data && gdn_is_q8(from.t->dtype));
    if (K > GDN_MAX_HEAD && is_q8)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: head size %lld, the largest of 8 bits is %d",
                        m->to_name, (long long)K, GDN_MAX_HEAD);
    TRY(gdn_check_twins(ctx, &to, &from));
    TRY(gdn_check_no_overlap(ctx, t, m->to_name, from.scales, from.scales_name, false));
    TRY(gdn_check_no_overlap(ctx, t, m->to_name, to.scales, to.scales_name, false));
    if (!to.scales->data) return GDN_OK;
    TRY(gdn_check_injective(ctx, to.scales, to.scales_name));
    TRY(gdn_check_no_overlap(ctx, to.scales, to.scales_name, from.t, from.name, false));
    return gdn_check_no_overlap(ctx, to.scales, to.scales_name, from.scales, from.scales_name,
                                m->same_pool);
}

/* Without a list pair m has slot m. */
static gdn_status check_default(gdn_ctx *ctx, const gdn_tensor *list, const char *list_name,
                                const gdn_tensor *pool, const char *name, int64_t n)
{
    if (list->data || !pool->data || n <= pool->size[0]) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: absent, so %lld slots, but %s has %lld", list_name,
                    (long long)n, name, (long long)pool->size[0]);
}

static gdn_status check_lists(gdn_ctx *ctx, struct gdn_state_move *m)
{
    const gdn_state_copy_args *a = &m->args;
    const gdn_tensor *from = &a->from_slots, *to = &a->to_slots;
    TRY(check_list(ctx, m, from, m->from_slots_name));
    TRY(check_list(ctx, m, to, m->to_slots_name));
    if (from->data && to->data) TRY(gdn_check_shape(ctx, from, m->from_slots_name, 1, to->size));
    if (!from->data && !to->data && a->from_pool.data && a->from_pool.size[0] != a->to_pool.size[0])
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld slots, but %s has %lld, wanted %s or %s",
                        m->from_name, (long long)a->from_pool.size[0], m->to_name,
                        (long long)a->to_pool.size[0], m->from_slots_name, m->to_slots_name);
    m->n_pairs = from->data ? from->size[0] : to->data ? to->size[0] : a->to_pool.size[0];
    if (m->n_pairs > MAX_PAIRS)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld pairs, at most 2^31",
                        from->data ? m->from_slots_name : m->to_slots_name, (long long)m->n_pairs);
    TRY(check_default(ctx, from, m->from_slots_name, &a->from_pool, m->from_name, m->n_pairs));
    return check_default(ctx, to, m->to_slots_name, &a->to_pool, m->to_name, m->n_pairs);
}

/* Finds the rows, columns and heads of a slot. Of states of a convolution these are the newest
 * entries that both sides have. */
static void find_matrices(struct gdn_state_move *m)
{
    const gdn_state_copy_args *a = &m->args;
    const gdn_tensor *t = &a->to_pool;
    m->from = side_of(&a->from_pool, &a->from_scales, a->from_layout);
    m->to = side_of(t, &a->to_scales, a->to_layout);
    if (t->ndim == 4) {
        const bool vk = a->to_layout == GDN_STATE_VK;
        m->n_parts = t->size[1];
        m->rows = t->size[vk ? 2 : 3];
        m->columns = t->size[vk ? 3 : 2];
    } else {
        const int64_t S = t->size[2], from_S = m->from.data ? a->from_pool.size[2] : S;
        m->rows = t->size[1];
        m->n_parts = m->rows / GDN_STATE_CHANNELS + (m->rows % GDN_STATE_CHANNELS != 0);
        m->columns = S < from_S ? S : from_S;
        m->n_old = S - m->columns;
        m->n_skipped = from_S - m->columns;
    }
    if (gdn_count(t) == 0) m->n_parts = 0;
}

gdn_status gdn_state_describe(gdn_ctx *ctx, const gdn_state_copy_args *args,
                              struct gdn_state_move *m)
{
    int64_t n_items;
    m->same_pool = false;
    m->n_old = 0;
    m->n_skipped = 0;
    TRY(gdn_copy_args(ctx, &m->args, sizeof m->args, args, "gdn_state_copy_args"));
    TRY(gdn_check_fields(ctx, GDN_OP_STATE_COPY, &m->args));
    TRY(check_pools(ctx, m));
    TRY(check_scales(ctx, m));
    TRY(check_lists(ctx, m));
    find_matrices(m);
    if (__builtin_mul_overflow(m->n_pairs, m->n_parts, &n_items))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld pairs of %lld heads", m->to_name,
                        (long long)m->n_pairs, (long long)m->n_parts);
    return GDN_OK;
}

/* ---- The call ------------------------------------------------------------------------------ */

static struct gdn_state_move named(void)
{
    return (struct gdn_state_move){ .from_name = "from_pool",
                                    .to_name = "to_pool",
                                    .from_slots_name = "from_slots",
                                    .to_slots_name = "to_slots" };
}

static gdn_status describe_state_copy(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_state_call *c = call;
    c->move = named();
    TRY(gdn_state_describe(ctx, args, &c->move));
    c->base = GDN_CALL_OF(&c->move.args);
    return GDN_OK;
}

GDN_OP_ENTRY(STATE_COPY, state_copy, gdn_state_copy_args, struct gdn_state_call)
GDN_OP_PART(state_copy, gdn_state_copy_args, struct gdn_state_call)
