/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/family.h"

/* Returns true if the tensor has one dimension more than a number per token and head. */
static bool has_channels(const gdn_tensor *t, const struct gdn_tokens *tokens)
{
    return t->data && t->ndim == (tokens->padded ? 4 : 3);
}

static void drop_channel(gdn_tensor *t, const struct gdn_tokens *tokens)
{
    if (has_channels(t, tokens) && t->size[t->ndim - 1] == 1) t->ndim--;
}

gdn_status gdn_family_tokens(gdn_ctx *ctx, const struct gdn_family_tensors *t, int32_t n_updates,
                             const struct gdn_tokens *tokens, struct gdn_tokens *updates)
{
    const int64_t n = n_updates > 1 ? n_updates : 1;
    *updates = *tokens;
    if (__builtin_mul_overflow(tokens->T, n, &updates->T) ||
        __builtin_mul_overflow(tokens->N, n, &updates->N))
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "k: %lld tokens of %lld updates, wanted at most 2^63 - 1 rows",
                        (long long)tokens->N, (long long)n);
    drop_channel(t->g, tokens);
    drop_channel(t->beta, tokens);
    return GDN_OK;
}

int64_t gdn_family_gate_size(const struct gdn_family_tensors *t, const struct gdn_tokens *tokens,
                             int64_t K)
{
    return has_channels(t->g, tokens) ? K : -1;
}

static gdn_status check_bias(gdn_ctx *ctx, const gdn_tensor *dt_bias, bool g_rows)
{
    const int wanted = g_rows ? 2 : 1;
    if (!dt_bias || !dt_bias->data || dt_bias->ndim == wanted) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "dt_bias: %d dimensions, wanted %s", (int)dt_bias->ndim,
                    g_rows ? "[H][K], as g has channels" : "[H], as g has no channels");
}

int64_t gdn_family_rows(const gdn_tensor *t, const struct gdn_tokens *tokens, int n,
                        struct gdn_rows *rows)
{
    *rows = gdn_rows_of(t, tokens);
    const int at = tokens->padded ? 1 : 0;
    const int64_t step = t->data ? gdn_step_bytes(t, at) : 0;
    rows->token = step * n;
    return step;
}

gdn_status gdn_family_fill(gdn_ctx *ctx, const struct gdn_family_tensors *t, int32_t n_updates,
                           const struct gdn_tokens *tokens, struct gdn_rule *r)
{
    static const gdn_tensor none = { .data = NULL };
    struct gdn_family *f = &r->family;
    const gdn_tensor *write = t->write ? t->write : &none;
    const int n = n_updates > 1 ? n_updates : 1, lead = tokens->padded ? 2 : 1;
    *f = (struct gdn_family){ .updates = n,
                              .g_rows = has_channels(t->g, tokens),
                              .beta_rows = has_channels(t->beta, tokens) };
    f->is = f->g_rows || f->beta_rows || write->data || n > 1;
    TRY(check_bias(ctx, t->dt_bias, f->g_rows));
    f->k_update = gdn_family_rows(t->k, tokens, n, &r->k);
    f->v_update = gdn_family_rows(t->v, tokens, n, &r->v);
    f->beta_update = gdn_family_rows(t->beta, tokens, n, &r->beta);
    f->write_update = gdn_family_rows(write, tokens, n, &f->write);
    r->g = gdn_rows_of(t->g, tokens);
    if (f->g_rows) f->g_channel = gdn_step_bytes(t->g, lead + 1);
    if (f->beta_rows) f->beta_channel = gdn_step_bytes(t->beta, lead + 1);
    return GDN_OK;
}

gdn_status gdn_family_check_updates(gdn_ctx *ctx, int32_t n_updates, const gdn_batch *batch,
                                    const gdn_tensor *record_k)
{
    if (n_updates < 2) return GDN_OK;
    if (batch->parents.data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "updates: %d, wanted 1 with parents",
                        (int)n_updates);
    if (record_k->data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "updates: %d, wanted 1 with a record",
                        (int)n_updates);
    return GDN_OK;
}

gdn_status gdn_family_alike(gdn_ctx *ctx, const gdn_tensor *d, const char *name,
                            const gdn_tensor *of, const char *of_name)
{
    if (!d->data || !of->data || d->ndim == of->ndim) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d dimensions, wanted the %d of %s", name, (int)d->ndim,
                    (int)of->ndim, of_name);
}
