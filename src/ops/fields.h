/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a call's numbers, which follow from the rows GDN_FIELD of ops.def. */
#ifndef GDN_FIELDS_H
#define GDN_FIELDS_H

#include <stddef.h>

#include "core/ctx.h"

enum gdn_field_kind {
    GDN_FIELD_FLAGS, /* any of the bits `takes` */
    GDN_FIELD_ENUM,  /* a number whose bit is in `takes` */
    GDN_FIELD_FINITE,
    GDN_FIELD_FROM_0,
    GDN_FIELD_TO_0
};

struct gdn_field_row {
    const char *name;
    size_t at; /* bytes from the struct's begin */
    enum gdn_field_kind kind;
    uint32_t takes;
};

/* Returns the rows of an op's struct, and how many they are. */
const struct gdn_field_row *gdn_field_rows(gdn_op op, int *n);

/* Checks the numbers of args. A message names what is taken. */
gdn_status gdn_check_fields(gdn_ctx *ctx, gdn_op op, const void *args);

#endif
