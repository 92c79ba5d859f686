/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/layer/weights.h"

#include "core/limits.h"
#include "core/tensor_check.h"

enum { ANY_BUT_FUSED = 1 << GDN_JOINED | 1 << GDN_APART };
enum { BA = 1, QKV, Q, K, V, Z_DOWN = 9, A_DOWN };

/* In the order of GDN_PROJECTIONS(); a weight is named as its gradient without the d. */
static const struct {
    const char *gradient;
    unsigned kinds;
    bool needed;
} rows[GDN_N_PROJECTIONS] = {
    { "din_proj_qkvz", 1 << GDN_FUSED, true },   { "din_proj_ba", 1 << GDN_FUSED, true },
    { "din_proj_qkv", 1 << GDN_JOINED, true },   { "din_proj_q", 1 << GDN_APART, true },
    { "din_proj_k", 1 << GDN_APART, true },      { "din_proj_v", 1 << GDN_APART, true },
    { "din_proj_z", ANY_BUT_FUSED, true },       { "din_proj_b", ANY_BUT_FUSED, true },
    { "din_proj_a", ANY_BUT_FUSED, true },       { "din_proj_z_down", ANY_BUT_FUSED, false },
    { "din_proj_a_down", ANY_BUT_FUSED, false },
};

static const char *name_of(int i) { return rows[i].gradient + 1; }

static enum gdn_projections kind_of(const struct gdn_layer_weights *w)
{
    if (w->of[0]->data || w->of[BA]->data) return GDN_FUSED;
    if (w->of[QKV]->data) return GDN_JOINED;
    return w->of[Q]->data || w->of[K]->data || w->of[V]->data ? GDN_APART : GDN_JOINED;
}

static gdn_status check_one(gdn_ctx *ctx, const struct gdn_layer_weights *w, int i,
                            enum gdn_projections kind)
{
    static const char *const first[] = { "in_proj_qkvz", "in_proj_qkv", "in_proj_q" };
    const bool is_given = w->of[i]->data, has_gradient = w->gradient[i] && w->gradient[i]->data;
    const bool is_of_kind = rows[i].kinds >> kind & 1;
    if (!is_of_kind && (is_given || has_gradient))
        return gdn_fail(ctx, GDN_E_ARG, "%s: given beside %s, wanted one kind of projections",
                        is_given ? name_of(i) : rows[i].gradient, first[kind]);
    if (is_of_kind && rows[i].needed && !is_given)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent", name_of(i));
    if (has_gradient && !is_given)
        return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none without %s", rows[i].gradient,
                        name_of(i));
    return GDN_OK;
}

gdn_status gdn_check_weights(gdn_ctx *ctx, const struct gdn_layer_weights *w,
                             enum gdn_projections *kind)
{
    *kind = kind_of(w);
    for (int i = 0; i < GDN_N_PROJECTIONS; i++) TRY(check_one(ctx, w, i, *kind));
    if (*kind == GDN_FUSED && w->dt_bias->ndim == 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "dt_bias: 2 dimensions, wanted [H] with in_proj_ba");
    return GDN_OK;
}

/* Sets the input columns of a projection: hidden, or the rows of the projection before it. */
static gdn_status find_rank(gdn_ctx *ctx, const struct gdn_layer_weights *w, int i, int64_t hidden,
                            int64_t *columns)
{
    const gdn_tensor *t = w->of[i];
    *columns = t->data && t->ndim == 2 ? t->size[0] : hidden;
    if (*columns >= 1 && *columns <= GDN_MAX_HIDDEN) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld rows, wanted 1 to 2^20", name_of(i),
                    (long long)*columns);
}

gdn_status gdn_weight_sizes(gdn_ctx *ctx, const struct gdn_layer_weights *w, int64_t Hk,
                            struct gdn_sizes *s)
{
    s->keys = Hk * s->K;
    s->z = s->H * s->V;
    s->qkv = 2 * s->keys + s->z;
    s->qkvz = s->qkv + s->z;
    s->ba = 2 * s->H;
    s->a = w->dt_bias->ndim == 2 ? s->H * s->K : s->H;
    TRY(find_rank(ctx, w, Z_DOWN, s->hidden, &s->z_in));
    return find_rank(ctx, w, A_DOWN, s->hidden, &s->a_in);
}
