/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on a device whose tensors are in host memory: copies of them there, and back. For the
 * self-test and the command; ops themselves never copy.
 */
#ifndef GDN_MIRROR_H
#define GDN_MIRROR_H

#include "core/ctx.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

enum {
    GDN_MIRROR_BLOCKS = 64, /* a tensor may need one: op_table.c */
    GDN_BATCH_TENSORS = (sizeof(gdn_batch) - offsetof(gdn_batch, cu_seqlens)) / sizeof(gdn_tensor)
};

struct gdn_mirror {
    gdn_ctx *ctx;
    union {
        uint32_t struct_size; /* the first field of all */
#define GDN_ARGS_ROW(args, first, last, batch) gdn_##args##_args args;
#include "calls/ops.def"
    } args;          /* as the caller's, data being on the device */
    gdn_batch batch; /* as the caller's, data being on the device */
    struct gdn_mirror_block {
        char *host;
        size_t bytes;
        void *device;
    } blocks[GDN_MIRROR_BLOCKS];
    int n_blocks;
};

/* Copies to the device all that the tensors of the op's args span. Closes itself on an error. */
gdn_status gdn_mirror_open(gdn_ctx *ctx, gdn_op op, const void *args, struct gdn_mirror *mirror);
/* Waits for the device, and copies everything back. */
gdn_status gdn_mirror_back(struct gdn_mirror *mirror);
void gdn_mirror_close(struct gdn_mirror *mirror);

/* Runs gdn_run_op() on host memory, wherever the context computes. */
gdn_status gdn_call_op(gdn_ctx *ctx, gdn_op op, const void *args);

#endif
