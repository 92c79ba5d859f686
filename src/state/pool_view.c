/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of states as views of a pool, with the scales of 8-bit ones. */
#include "state/pool_view.h"

#include "batch/plan.h"
#include "core/tensor_check.h"

/* Makes shape and strides; the dtype is known. If no dimension is dense, columns are the last. */
static gdn_status make_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout,
                            int64_t H, int64_t K, int64_t V, struct gdn_pool_view *view)
{
    const bool kv = layout == GDN_STATE_KV;
    TRY(gdn_check_shape(ctx, t, name, 4, (int64_t[]){ -1, H, kv ? K : V, kv ? V : K }));
    const bool last_dense = t->size[3] < 2 || t->stride[3] == 1;
    const bool upper_dense = !last_dense && (t->size[2] < 2 || t->stride[2] == 1);
    const int rows = upper_dense ? 3 : 2; /* one row may have any stride, which is not used */
    *view = (struct gdn_pool_view){ .data = t->data,
                                    .dtype = t->dtype,
                                    .k_first = upper_dense != kv,
                                    .slot = t->stride[0],
                                    .head = t->stride[1],
                                    .ld = t->size[rows] < 2 ? 0 : t->stride[rows],
                                    .gap = last_dense || upper_dense ? 0 : t->stride[3] - 1 };
    return GDN_OK;
}

gdn_status gdn_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout,
                          int64_t H, int64_t K, int64_t V, struct gdn_pool_view *view)
{
    *view = (struct gdn_pool_view){ 0 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
    TRY(make_view(ctx, t, name, layout, H, K, V, view));
    if (view->gap)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: strides %lld, %lld, wanted 1 in one of the last two",
                        name, (long long)t->stride[2], (long long)t->stride[3]);
    return GDN_OK;
}

gdn_status gdn_check_scales(gdn_ctx *ctx, const struct gdn_scaled *s, int64_t H, int64_t V)
{
    const gdn_tensor *t = s->t, *scales = s->scales;
    TRY(gdn_check_tensor(ctx, scales, s->scales_name));
    if (!scales->data && t->data && t->dtype == GDN_I8)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is GDN_I8", s->scales_name, s->name);
    if (scales->data && !(t->data && gdn_is_q8(t->dtype)))
        return gdn_fail(ctx, GDN_E_ARG, "%s: given, but %s is %s", s->scales_name, s->name,
                        t->data ? "not of 8 bits" : "absent");
    if (!scales->data) return GDN_OK;
    TRY(gdn_check_dtype(ctx, scales, s->scales_name, 1u << GDN_F32));
    TRY(gdn_check_shape(ctx, scales, s->scales_name, 3, (int64_t[]){ t->size[0], H, V }));
    return gdn_check_dense(ctx, scales, s->scales_name);
}

gdn_status gdn_scaled_view(gdn_ctx *ctx, const struct gdn_scaled *s, int32_t layout, int64_t H,
                           int64_t K, int64_t V, struct gdn_pool_view *view)
{
    const gdn_tensor *t = s->t, *scales = s->scales;
    *view = (struct gdn_pool_view){ 0 };
    if (!t->data && !scales->data) return GDN_OK;
    TRY(gdn_check_dtype(ctx, t, s->name, GDN_FLOATS | GDN_Q8_DTYPES));
    TRY(gdn_check_scales(ctx, s, H, V));
    if (!t->data) return GDN_OK;
    TRY(make_view(ctx, t, s->name, layout, H, K, V, view));
    if (!scales->data) return GDN_OK;
    view->scales = scales->data;
    view->scales_slot = scales->stride[0];
    view->scales_head = scales->stride[1];
    return GDN_OK;
}

gdn_status gdn_check_twins(gdn_ctx *ctx, const struct gdn_scaled *a, const struct gdn_scaled *b)
{
    const gdn_tensor *s = a->scales, *t = b->scales;
    if ((!s->data && !t->data) || a->t->data != b->t->data) return GDN_OK;
    if (s->data != t->data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: not %s, but %s is %s", a->scales_name, b->scales_name,
                        a->name, b->name);
    return gdn_check_no_overlap(ctx, s, a->scales_name, t, b->scales_name, true);
}
