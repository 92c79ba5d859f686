/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks on tensor views. After gdn_check_tensor() the arithmetic on sizes and strides can no
 * longer overflow, so the other checks compute plainly.
 */
#include "core/tensor_check.h"

#include <stdio.h>

#include "core/ctx.h"
#include "cpu/loops/kernels.h"

enum { N_DTYPES = GDN_U8 + 1 };

const uint8_t gdn_units[N_DTYPES] = {
    [GDN_F32] = 4,  [GDN_BF16] = 2, [GDN_F16] = 2, [GDN_I8] = 1, [GDN_E4M3] = 1,
    [GDN_E5M2] = 1, [GDN_I32] = 4,  [GDN_I64] = 8, [GDN_U8] = 1,
};

static const char *const names[N_DTYPES] = {
    [GDN_F32] = "GDN_F32", [GDN_BF16] = "GDN_BF16", [GDN_F16] = "GDN_F16",
    [GDN_I8] = "GDN_I8",   [GDN_E4M3] = "GDN_E4M3", [GDN_E5M2] = "GDN_E5M2",
    [GDN_I32] = "GDN_I32", [GDN_I64] = "GDN_I64",   [GDN_U8] = "GDN_U8",
};

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < N_DTYPES && gdn_units[dtype]; }

size_t gdn_dtype_bytes(int32_t dtype) { return is_dtype(dtype) ? gdn_units[dtype] : 0; }

/* ---- Form ---------------------------------------------------------------------------------- */

/* Bytes of a view, relative to data: from low up to high, end excluded. */
struct span {
    int64_t low, high;
};

static bool is_empty(const gdn_tensor *t)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->size[i] == 0) return true;
    return false;
}

/* Finds the span of a view that is not empty. */
static bool find_span(const gdn_tensor *t, struct span *s)
{
    const int64_t unit = gdn_unit(t->dtype);
    int64_t reach;

    *s = (struct span){ 0, unit };
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] < 2) continue; /* its stride means nothing */
        if (__builtin_mul_overflow(t->size[i] - 1, t->stride[i], &reach) ||
            __builtin_mul_overflow(reach, unit, &reach))
            return false;
        int64_t *end = reach < 0 ? &s->low : &s->high;
        if (__builtin_add_overflow(*end, reach, end)) return false;
    }
    return true;
}

/* Whether the span lies in the address space and is shorter than half of it. */
static bool span_fits(const gdn_tensor *t, const struct span *s)
{
    const uint64_t data = (uint64_t)(uintptr_t)t->data;
    int64_t length;
    return !__builtin_sub_overflow(s->high, s->low, &length) &&
           (uint64_t)0 - (uint64_t)s->low <= data && (uint64_t)s->high <= UINTPTR_MAX - data;
}

gdn_status gdn_check_tensor(gdn_ctx *ctx, const gdn_tensor *t, const char *name)
{
    struct span span;
    int64_t n = 1; /* the product of gdn_count(), in the same order */
    bool fits = true;
    if (!t->data) return GDN_OK;
    if (!is_dtype(t->dtype))
        return gdn_fail(ctx, GDN_E_DTYPE, "%s: dtype %d is none", name, (int)t->dtype);
    if (t->ndim < 1 || t->ndim > GDN_MAX_DIMS)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d dimensions, wanted 1 to %d", name, (int)t->ndim,
                        GDN_MAX_DIMS);
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] < 0)
            return gdn_fail(ctx, GDN_E_SHAPE, "%s: size[%d] is %lld, wanted 0 or more", name, i,
                            (long long)t->size[i]);
        fits = fits && !__builtin_mul_overflow(n, t->size[i], &n);
    }
    if (!fits || (n > 0 && (!find_span(t, &span) || !span_fits(t, &span))))
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: sizes and strides leave the address space", name);
    if ((uintptr_t)t->data & (uintptr_t)(gdn_unit(t->dtype) - 1))
        return gdn_fail(ctx, GDN_E_ARG, "%s: data %p, wanted a multiple of %d", name, t->data,
                        (int)gdn_unit(t->dtype));
    return GDN_OK;
}

void gdn_drop_strides(gdn_tensor *t)
{
    if (!t->data || !is_empty(t)) return;
    for (int i = 0; i < t->ndim; i++) t->stride[i] = i == t->ndim - 1;
}

static gdn_status fail_dtype(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned allowed)
{
    char list[80] = "";
    for (int i = 0; i < N_DTYPES; i++) {
        const size_t used = strlen(list);
        if (allowed >> i & 1) snprintf(list + used, sizeof list - used, " %s", names[i]);
    }
    if (!is_dtype(t->dtype))
        return gdn_fail(ctx, GDN_E_DTYPE, "%s: dtype %d, wanted:%s", name, (int)t->dtype, list);
    return gdn_fail(ctx, GDN_E_DTYPE, "%s: %s, wanted:%s", name, names[t->dtype], list);
}

gdn_status gdn_check_dtype(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned allowed)
{
    if (!t->data || (is_dtype(t->dtype) && allowed >> t->dtype & 1)) return GDN_OK;
    return fail_dtype(ctx, t, name, allowed);
}

/* "[3][*]", where -1 is any size. */
static void print_shape(char *text, size_t bytes, int ndim, const int64_t *size)
{
    text[0] = 0;
    for (int i = 0; i < ndim && i < GDN_MAX_DIMS; i++) {
        const size_t used = strlen(text);
        if (size[i] < 0)
            snprintf(text + used, bytes - used, "[*]");
        else
            snprintf(text + used, bytes - used, "[%lld]", (long long)size[i]);
    }
}

static gdn_status fail_shape(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int ndim,
                             const int64_t *size)
{
    char found[GDN_MAX_DIMS * 24], wanted[GDN_MAX_DIMS * 24];
    print_shape(found, sizeof found, t->ndim, t->size);
    print_shape(wanted, sizeof wanted, ndim, size);
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: %s, wanted %s", name, found, wanted);
}

gdn_status gdn_check_shape(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int ndim,
                           const int64_t *size)
{
    if (!t->data) return GDN_OK;
    if (t->ndim != ndim) return fail_shape(ctx, t, name, ndim, size);
    for (int i = 0; i < ndim; i++)
        if (size[i] >= 0 && t->size[i] != size[i]) return fail_shape(ctx, t, name, ndim, size);
    return GDN_OK;
}

gdn_status gdn_check_dense(gdn_ctx *ctx, const gdn_tensor *t, const char *name)
{
    const int last = t->ndim - 1;
    if (!t->data || t->size[last] < 2 || t->stride[last] == 1 || is_empty(t)) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: stride %lld in the last dimension, wanted 1", name,
                    (long long)t->stride[last]);
}

/* ---- Overlaps ------------------------------------------------------------------------------ */

/*
 * Sufficient and usual: from the smallest stride up, every step is longer than all that the
 * smaller ones reach together.
 */
gdn_status gdn_check_injective(gdn_ctx *ctx, const gdn_tensor *t, const char *name)
{
    int64_t step[GDN_MAX_DIMS], size[GDN_MAX_DIMS], reach = 0;
    int n = 0;
    if (!t->data || is_empty(t)) return GDN_OK;
    for (int i = t->ndim - 1; i >= 0; i--) { /* mostly in order */
        if (t->size[i] < 2) continue;
        const int64_t s = t->stride[i] < 0 ? -t->stride[i] : t->stride[i];
        int j = n++;
        for (; j > 0 && step[j - 1] > s; j--) {
            step[j] = step[j - 1];
            size[j] = size[j - 1];
        }
        step[j] = s;
        size[j] = t->size[i];
    }
    for (int i = 0; i < n; i++) {
        if (step[i] <= reach)
            return gdn_fail(ctx, GDN_E_SHAPE,
                            "%s: stride %lld, wanted above %lld, so that no two elements share "
                            "an address",
                            name, (long long)step[i], (long long)reach);
        reach += (size[i] - 1) * step[i];
    }
    return GDN_OK;
}

static bool is_same_view(const gdn_tensor *a, const gdn_tensor *b)
{
    if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->size[i] != b->size[i] || (a->size[i] > 1 && a->stride[i] != b->stride[i]))
            return false;
    return true;
}

static int64_t step_bytes(const gdn_tensor *t, int i)
{
    const int64_t step = t->stride[i] * gdn_unit(t->dtype);
    return step < 0 ? -step : step;
}

/* Finds the bytes of the view modulo `period`: `length` of them from `start` on, which may pass the
 * end. Dimensions whose steps are multiples of `period` add none. */
static void find_arc(const gdn_tensor *t, int64_t period, int64_t *start, int64_t *length)
{
    struct span span;
    gdn_tensor inner = *t;
    for (int i = 0; i < t->ndim; i++)
        if (t->size[i] > 1 && step_bytes(t, i) % period == 0) inner.size[i] = 1;
    find_span(&inner, &span);
    *length = span.high - span.low;
    *start = (int64_t)(((uint64_t)(uintptr_t)t->data + (uint64_t)span.low) % (uint64_t)period);
}

static bool are_apart_modulo(const gdn_tensor *a, const gdn_tensor *b, int64_t period)
{
    int64_t a_start, a_length, b_start, b_length;
    find_arc(a, period, &a_start, &a_length);
    find_arc(b, period, &b_start, &b_length);
    const int64_t ahead = b_start >= a_start ? b_start - a_start : b_start - a_start + period;
    return ahead >= a_length && ahead <= period - b_length;
}

/* Two views share no address if their addresses differ modulo some number. Rows of one buffer
 * differ modulo its row stride, so the strides of both views are tried. */
static bool are_interleaved(const gdn_tensor *a, const gdn_tensor *b)
{
    const gdn_tensor *const both[] = { a, b };
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < both[n]->ndim; i++) {
            if (both[n]->size[i] < 2 || both[n]->stride[i] == 0) continue;
            if (are_apart_modulo(a, b, step_bytes(both[n], i))) return true;
        }
    return false;
}

/* Returns the extent of a tensor that passed gdn_check_tensor(). */
static struct gdn_extent extent_of(const gdn_tensor *t, const char *name)
{
    const uint64_t at = (uint64_t)(uintptr_t)t->data, unit = (uint64_t)gdn_unit(t->dtype);
    uint64_t low = 0, high = 1;
    bool empty = false; /* an empty tensor may have any strides; products may wrap */
    for (int i = 0; i < t->ndim; i++) {
        const uint64_t reach = (uint64_t)(t->size[i] - 1) * (uint64_t)t->stride[i];
        empty |= t->size[i] == 0;
        low += (int64_t)reach < 0 ? reach : 0;
        high += (int64_t)reach < 0 ? 0 : reach;
    }
    if (empty) return (struct gdn_extent){ t, name, 0, 0 };
    return (struct gdn_extent){ t, name, at + low * unit, at + high * unit };
}

static bool are_apart(const struct gdn_extent *a, const struct gdn_extent *b)
{
    return a->high <= b->low || b->high <= a->low;
}

static gdn_status check_pair(gdn_ctx *ctx, const struct gdn_extent *written,
                             const struct gdn_extent *other, bool may_be_same)
{
    if (may_be_same && is_same_view(written->t, other->t)) return GDN_OK;
    if (are_interleaved(written->t, other->t)) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: overlaps %s, wanted memory apart%s", written->name,
                    other->name, may_be_same ? " or the very same view" : "");
}

gdn_status gdn_check_no_overlap(gdn_ctx *ctx, const gdn_tensor *written, const char *name,
                                const gdn_tensor *other, const char *other_name, bool may_be_same)
{
    if (!written->data || !other->data) return GDN_OK;
    const struct gdn_extent w = extent_of(written, name), o = extent_of(other, other_name);
    return are_apart(&w, &o) ? GDN_OK : check_pair(ctx, &w, &o, may_be_same);
}

void gdn_add_extent(struct gdn_extents *all, const gdn_tensor *t, const char *name)
{
    all->of[all->n++] = extent_of(t, name);
}

gdn_status gdn_check_apart(gdn_ctx *ctx, const struct gdn_extents *all,
                           const struct gdn_extent *written,
                           bool (*may_be_same)(const void *args, const gdn_tensor *written,
                                               const gdn_tensor *other),
                           const void *args)
{
    for (int i = 0; i < all->n; i++) {
        const struct gdn_extent *o = &all->of[i];
        if (are_apart(written, o) || o->t == written->t) continue;
        TRY(check_pair(ctx, written, o, may_be_same && may_be_same(args, written->t, o->t)));
    }
    return GDN_OK;
}

/* ---- Elements ------------------------------------------------------------------------------ */

static int64_t index_at(const gdn_tensor *t, int64_t element)
{
    const char *p = gdn_at(t, element);
    if (t->dtype == GDN_I32) return *(const int32_t *)(const void *)p;
    if (t->dtype == GDN_I64) return *(const int64_t *)(const void *)p;
    return *(const uint8_t *)p;
}

int64_t gdn_index(const gdn_tensor *t, int64_t i) { return index_at(t, i * t->stride[0]); }

int64_t gdn_index2(const gdn_tensor *t, int64_t i, int64_t j)
{
    return index_at(t, i * t->stride[0] + j * t->stride[1]);
}

void gdn_load_vector(float *dst, const gdn_tensor *t, int64_t n, float absent)
{
    if (!t->data) {
        for (int64_t i = 0; i < n; i++) dst[i] = absent;
    } else if (t->stride[0] == 1) {
        gdn_kernels_scalar.load_row[t->dtype](dst, t->data, (size_t)n);
    } else {
        for (int64_t i = 0; i < n; i++)
            gdn_kernels_scalar.load_row[t->dtype](dst + i, gdn_at(t, i * t->stride[0]), 1);
    }
}
