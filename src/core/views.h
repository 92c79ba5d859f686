/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tokens and pools of states, as the loops of every backend walk them. Device code includes
 * this too. */
#ifndef GDN_VIEWS_H
#define GDN_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

/* A tensor [tokens]... as the ops walk it: bytes from one batch row, token, head to the next. */
struct gdn_rows {
    char *data; /* NULL: absent */
    int32_t dtype;
    int64_t batch, token, head;
};

/* A call of the family (gdn.h), as far as it is more than Gated DeltaNet. A token of k, v, beta and
 * write is its first update; the steps to the next one and from channel to channel are bytes. */
struct gdn_family {
    bool is;                /* a, b and w are rows; false: the rest of the struct is zero */
    bool g_rows, beta_rows; /* a number per channel */
    int updates;
    int64_t g_channel, beta_channel; /* bytes from channel to channel; 0: all channels share one
                                        number */
    int64_t k_update, v_update, beta_update, write_update;
    struct gdn_rows write; /* data NULL: there is no write gate */
};

/* A pool of states: slots of n_rows x n_cols, after choosing which of the two is "rows": columns
 * are dense, if one of the two is. Strides in elements. */
struct gdn_pool_view {
    char *data; /* NULL: absent */
    int32_t dtype;
    bool k_first;  /* rows are k, columns v are dense; else rows are v, columns k dense */
    bool streamed; /* written lines are not read again soon */
    bool random;   /* GDN_ROUND_STOCHASTIC */
    int64_t slot, head, ld;
    int64_t gap; /* elements between one column and the next; 0: they are dense */
    /* The scales of 8-bit states, [slot][head][V], and what random rounding starts from. */
    float *scales;
    int64_t scales_slot, scales_head;
    uint64_t seed;
};

/*
 * Rows of few numbers per channel: a pool of states [slot][channel][length], whose newest
 * input is the last, or weights (one slot, length W). Strides in elements.
 */
struct gdn_conv_view {
    char *data; /* NULL: absent */
    int32_t dtype;
    int64_t slot, channel, entry;
    int64_t length;
};

/* One of record_k, record_u and record_g; steps in bytes. channel: from one number of a head to the
 * next, in elements. */
struct gdn_record_rows {
    char *data;
    int32_t dtype, channel;
    int64_t slot, row, head;
};

#endif
