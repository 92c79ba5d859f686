/* SPDX-License-Identifier: Apache-2.0 */
/* The lines that a context logs. */
#ifndef TOLD_H
#define TOLD_H

#include <stdio.h>
#include <string.h>

#include "core/ctx.h"
#include "ring2.h"

enum { TOLD_LINES = 12 };
struct told {
    int n;
    char lines[TOLD_LINES][256];
};

static inline void tell(void *user, const char *line)
{
    struct told *t = user;
    if (t->n < TOLD_LINES) snprintf(t->lines[t->n], sizeof t->lines[0], "%s", line);
    t->n++;
}

static inline void listen(gdn_ctx *ctx, struct told *told)
{
    *told = (struct told){ 0 };
    ctx->options.log = tell;
    ctx->options.log_user = told;
}

/* Checks that a line was told. */
static inline void expect_line(const struct told *told, const char *line)
{
    for (int i = 0; i < told->n && i < TOLD_LINES; i++)
        if (!strcmp(told->lines[i], line)) return;
    CHECK(false, "no line \"%s\" among %d, the first is \"%s\"", line, told->n, told->lines[0]);
}

#endif
