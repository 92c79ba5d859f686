/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers in every op's struct (GDN_FIELD of ops.def). A number that the op does not take is
 * refused, by a message with the field, the number, and all that the op takes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/fields.h"
#include "ring2_calls.h"

static struct ring2_draw draw;

/* Calls the op with a field changed and returns the message of its refusal. */
static const char *message_of(gdn_op op, const struct gdn_field_row *row, const void *value)
{
    union ring2_call c;
    gdn_batch batch;
    ring2_draw_call(&draw, op, &c, &batch);
    memcpy(c.bytes + row->at, value, 4);
    const gdn_status status = gdn_supported(ring2_ctx(1), op, &c);
    CHECK(status == GDN_E_ARG, "%s: %s: %s", gdn_op_shapes[op].name, row->name,
          gdn_status_name(status));
    return status == GDN_OK ? "" : gdn_last_error(ring2_ctx(1));
}

static void check_message(gdn_op op, const struct gdn_field_row *row, const void *value,
                          const char *begins, const char *names)
{
    const char *got = message_of(op, row, value);
    const size_t n = strlen(row->name);
    CHECK(!strncmp(got, row->name, n) && !strncmp(got + n, begins, strlen(begins)) &&
              strstr(got, names),
          "%s: \"%s\", wanted \"%s%s ... %s\"", gdn_op_shapes[op].name, got, row->name, begins,
          names);
}

/* A flag that no op takes is refused, by a message with each flag that this op takes. */
static void refuse_flag(gdn_op op, const struct gdn_field_row *row)
{
    static const char *const names[] = { "GDN_EXACT",           "GDN_BF16_PRODUCTS",
                                         "GDN_BATCH_INVARIANT", "GDN_NO_EARLY_STOP",
                                         "GDN_ACCUMULATE",      "GDN_ZERO_AS_GIVEN" };
    const uint32_t flag = 1u << 20;
    for (int i = 0; i < 6; i++)
        if (row->takes >> i & 1) check_message(op, row, &flag, ": 0x100000, wanted 0 or", names[i]);
}

static void refuse_number(gdn_op op, const struct gdn_field_row *row)
{
    for (int32_t value = -1; value < 34; value++)
        if (value < 0 || value > 31 || !(row->takes >> value & 1)) {
            char found[24];
            snprintf(found, sizeof found, ": %d, wanted 0", (int)value);
            check_message(op, row, &value, found, "");
        }
}

static void refuse_float(gdn_op op, const struct gdn_field_row *row)
{
    const float odd[] = { NAN, INFINITY, -INFINITY, row->kind == GDN_FIELD_FROM_0 ? -1e-30f : 1 };
    const int n = row->kind == GDN_FIELD_FINITE ? 3 : 4;
    const char *wanted = row->kind == GDN_FIELD_FINITE   ? "a finite number"
                         : row->kind == GDN_FIELD_FROM_0 ? "at least 0"
                                                         : "at most 0";
    for (int i = 0; i < n; i++) check_message(op, row, &odd[i], ": ", wanted);
}

static void test_fields(void)
{
    ring2_draw_init(&draw, false);
    for (int op = 0; op < GDN_N_OPS; op++) {
        int n;
        const struct gdn_field_row *row = gdn_field_rows((gdn_op)op, &n);
        CHECK(!strcmp(row[0].name, "flags"), "%s: no flags", gdn_op_shapes[op].name);
        for (int i = 0; i < n; i++) {
            if (row[i].kind == GDN_FIELD_FLAGS)
                refuse_flag((gdn_op)op, &row[i]);
            else if (row[i].kind == GDN_FIELD_ENUM)
                refuse_number((gdn_op)op, &row[i]);
            else
                refuse_float((gdn_op)op, &row[i]);
        }
    }
}

/* Messages whole. */
static void test_texts(void)
{
    static const struct {
        gdn_op op;
        int flag;
        const char *text;
    } texts[] = {
        { GDN_OP_PREFILL_BACKWARD, GDN_EXACT,
          "flags: 0x1, wanted 0 or any of GDN_BATCH_INVARIANT, GDN_NO_EARLY_STOP, GDN_ACCUMULATE, "
          "GDN_ZERO_AS_GIVEN" },
        { GDN_OP_L2NORM, GDN_ACCUMULATE, "flags: 0x10, wanted 0 or GDN_ZERO_AS_GIVEN" },
        { GDN_OP_CONV1D, GDN_EXACT, "flags: 0x1, wanted 0" },
        { GDN_OP_DECODE, GDN_EXACT | GDN_BF16_PRODUCTS,
          "flags: GDN_EXACT and GDN_BF16_PRODUCTS, wanted one of the two" },
    };
    static const struct gdn_field_row activation = { "activation",
                                                     offsetof(gdn_conv1d_args, activation),
                                                     GDN_FIELD_ENUM, 0 };
    const int32_t sigmoid = GDN_ACT_SIGMOID;
    ring2_draw_init(&draw, false);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int n;
        const char *got = message_of(texts[i].op, gdn_field_rows(texts[i].op, &n), &texts[i].flag);
        CHECK(!strcmp(got, texts[i].text), "\"%s\", wanted \"%s\"", got, texts[i].text);
    }
    const char *got = message_of(GDN_OP_CONV1D, &activation, &sigmoid);
    CHECK(!strcmp(got, "activation: 2, wanted 0, 1 or 3"), "\"%s\"", got);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "fields: what is not taken", test_fields },
        { "fields: messages", test_texts },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
