/* SPDX-License-Identifier: Apache-2.0 */
/* Errors inside the library: a status travels up, its text waits in the context. */
#ifndef GDN_STATUS_H
#define GDN_STATUS_H

#include "gdn.h"

#define TRY(expr)                    \
    do {                             \
        gdn_status s_ = (expr);      \
        if (s_ != GDN_OK) return s_; \
    } while (0)

/* Stores the text as the context's last error and returns status. "%s: found, wanted". */
gdn_status gdn_fail(gdn_ctx *ctx, gdn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
