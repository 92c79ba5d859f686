/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/limits.h"
#include "ops/op_table.h"

/* ---- The rows ------------------------------------------------------------------------------ */

#define FLAGS(flags) GDN_FIELD_FLAGS, flags
#define ONE_OF(bits) GDN_FIELD_ENUM, bits
#define UP_TO(last) ONE_OF((2u << (last)) - 1)
#define ZERO ONE_OF(1)
#define COUNT ONE_OF((2u << GDN_MAX_UPDATES) - 1)
#define FINITE GDN_FIELD_FINITE, 0
#define FROM_0 GDN_FIELD_FROM_0, 0
#define TO_0 GDN_FIELD_TO_0, 0

static const struct gdn_field_row rows[] = {
#define GDN_FIELD(args, field, is) { #field, offsetof(gdn_##args##_args, field), is },
#include "calls/ops.def"
};

enum {
#define GDN_FIELD(args, field, is) ROW_##args##_##field,
#include "calls/ops.def"
    N_ROWS
};
/* The first row of each op's struct, by the op's number: that of flags, the field that comes
 * first. */
static const int first_of[GDN_N_OPS] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = ROW_##args##_flags,
#include "calls/ops.def"
};

const struct gdn_field_row *gdn_field_rows(gdn_op op, int *n)
{
    const int first = first_of[op];
    for (*n = 1; first + *n < N_ROWS && rows[first + *n].at > rows[first].at; ++*n) {
    }
    return &rows[first];
}

/* ---- What is taken ------------------------------------------------------------------------- */

struct text {
    char of[200];
    size_t used;
};

static void add(struct text *t, const char *separator, const char *more)
{
    const int n = snprintf(t->of + t->used, sizeof t->of - t->used, "%s%s", separator, more);
    if (n > 0 && (size_t)n < sizeof t->of - t->used) t->used += (size_t)n;
}

/* "0", "0 or GDN_A", "0 or any of GDN_A, GDN_B". */
static void list_flags(struct text *t, uint32_t takes)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } flags[] = {
#define FLAG(name) { name, #name }
        FLAG(GDN_EXACT),           FLAG(GDN_BF16_PRODUCTS), FLAG(GDN_BATCH_INVARIANT),
        FLAG(GDN_NO_EARLY_STOP),   FLAG(GDN_ACCUMULATE),    FLAG(GDN_ZERO_AS_GIVEN),
        FLAG(GDN_SPLIT_INVARIANT),
    };
    const char *separator = takes & (takes - 1) ? " or any of " : " or ";
    add(t, "", "0");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (!(takes & flags[i].flag)) continue;
        add(t, separator, flags[i].name);
        separator = ", ";
    }
}

/* "0", "0 or 1", "0 to 3", "0, 1 or 3". */
static void list_numbers(struct text *t, uint32_t takes)
{
    char number[16];
    const int last = 31 - __builtin_clz(takes);
    const bool is_range = last > 1 && takes == (2u << last) - 1;
    for (int i = 0; i <= last; i++) {
        if (!(takes >> i & 1) || (is_range && i > 0 && i < last)) continue;
        snprintf(number, sizeof number, "%d", i);
        add(t, i == 0 ? "" : i < last ? ", " : is_range ? " to " : " or ", number);
    }
}

/* ---- The checks ---------------------------------------------------------------------------- */

static gdn_status check_bits(gdn_ctx *ctx, const struct gdn_field_row *row, uint32_t value)
{
    struct text t = { .used = 0 };
    if (row->kind == GDN_FIELD_FLAGS) {
        if (!(value & ~row->takes)) return GDN_OK;
        list_flags(&t, row->takes);
        return gdn_fail(ctx, GDN_E_ARG, "%s: 0x%x, wanted %s", row->name, (unsigned)value, t.of);
    }
    if (value < 32 && row->takes >> value & 1) return GDN_OK;
    list_numbers(&t, row->takes);
    return gdn_fail(ctx, GDN_E_ARG, "%s: %d, wanted %s", row->name, (int)value, t.of);
}

static gdn_status check_float(gdn_ctx *ctx, const struct gdn_field_row *row, float value)
{
    static const char *const wanted[] = { [GDN_FIELD_FINITE] = "a finite number",
                                          [GDN_FIELD_FROM_0] = "at least 0",
                                          [GDN_FIELD_TO_0] = "at most 0" };
    const bool is_beyond =
        (row->kind == GDN_FIELD_FROM_0 && value < 0) || (row->kind == GDN_FIELD_TO_0 && value > 0);
    if (isfinite(value) && !is_beyond) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: %g, wanted %s", row->name, (double)value,
                    wanted[row->kind]);
}

gdn_status gdn_check_fields(gdn_ctx *ctx, gdn_op op, const void *args)
{
    int n;
    const struct gdn_field_row *row = gdn_field_rows(op, &n);
    for (int i = 0; i < n; i++) {
        const char *at = (const char *)args + row[i].at;
        uint32_t bits;
        float value;
        memcpy(&bits, at, sizeof bits);
        memcpy(&value, at, sizeof value);
        TRY(row[i].kind <= GDN_FIELD_ENUM ? check_bits(ctx, &row[i], bits)
                                          : check_float(ctx, &row[i], value));
    }
    return GDN_OK;
}
