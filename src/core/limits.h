/* SPDX-License-Identifier: Apache-2.0 */
/* The largest sizes that the interface takes, on every backend. */
#ifndef GDN_LIMITS_H
#define GDN_LIMITS_H

enum {
    GDN_MAX_HEAD = 256,   /* K */
    GDN_MAX_VALUE = 1024, /* V */
    GDN_MAX_TAPS = 16,    /* W */
    GDN_MAX_UPDATES = 8,  /* of a token */
    GDN_MAX_HIDDEN = 1 << 20
};

#endif
