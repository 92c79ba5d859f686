/* SPDX-License-Identifier: Apache-2.0 */
/* The checked call of gdn_state_copy, and the check of its slots. */
#ifndef GDN_STATE_H
#define GDN_STATE_H

#include <stdbool.h>

#include "batch/plan.h"
#include "core/backend.h"
#include "core/ctx.h"

enum { GDN_STATE_CHANNELS = 1024 }; /* of a convolution's state that are copied at once */

/* A pool as matrices: [slot][head] of rows (v, or a channel) x columns (k, or an entry).
 * Strides in elements. */
struct gdn_state_side {
    char *data; /* NULL: absent */
    int32_t dtype;
    int64_t slot, head, row, column;
    float *scales; /* of 8 bits: [slot][head][rows]; NULL: none */
    int64_t scales_slot, scales_head;
};

struct gdn_state_move {
    gdn_state_copy_args args;
    const struct gdn_kernels *kr;
    struct gdn_state_side from, to;
    int64_t n_pairs, n_parts; /* parts of a slot: heads, or some channels */
    int64_t rows, columns;    /* of a head, or of all channels; both sides have */
    int64_t n_old, n_skipped; /* older entries: of the target, of the source */
    bool same_pool;
    /* The arguments in errors. */
    const char *from_name, *to_name, *from_slots_name, *to_slots_name;
};

/* A checked call of gdn_state_copy. */
struct gdn_state_call {
    struct gdn_call base;
    struct gdn_state_move move;
};

/* Returns true if elements of 8 bits get another form: dtype, or scales or none. */
static inline bool gdn_state_converts_q8(const struct gdn_state_side *to,
                                         const struct gdn_state_side *from)
{
    return (gdn_is_q8(to->dtype) || gdn_is_q8(from->dtype)) &&
           (to->dtype != from->dtype || !to->scales != !from->scales);
}

/* Returns bytes of memory for gdn_state_check_slots(). */
size_t gdn_state_bytes(const struct gdn_state_move *m);
/* Checks the slots. */
gdn_status gdn_state_check_slots(gdn_ctx *ctx, const struct gdn_state_move *m, void *memory);

#endif
