/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe.h - an op as gdn/_abi.py describes it: which argument goes where in the op's struct.
 * This code knows no struct of an op. It knows gdn_tensor, gdn_options, and the beginning of
 * every struct, struct_size.
 */
#ifndef GDN_PYTHON_DESCRIBE_H
#define GDN_PYTHON_DESCRIBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdn.h"

#define MAX_FIELDS 96
#define MAX_ARGS 8192  /* bytes of the largest struct of an op */
#define MAX_BATCH 2048 /* bytes of gdn_batch */

enum field_kind {
    FIELD_TENSOR,
    FIELD_INT32,
    FIELD_UINT32,
    FIELD_INT64,
    FIELD_FLOAT,
    FIELD_POINTER,
    FIELD_BATCH
};

struct field {
    const char *name;
    uint32_t offset; /* into the struct of the op, or into the batch */
    uint8_t kind;    /* field_kind */
    bool is_output, is_needed, is_in_batch;
};

typedef gdn_status (*gdn_call)(gdn_ctx *ctx, const void *args);

struct describe {
    const char *name; /* of the op */
    gdn_op op;
    gdn_call call;
    int32_t n_fields;
    uint32_t args_bytes, batch_bytes;
    uint32_t batch_offset; /* of the pointer to the batch; 0: the op has none */
    uint32_t workspace_offset, workspace_bytes_offset, stream_offset;
    struct field fields[MAX_FIELDS]; /* in the order of positional arguments */
};

/* Room for the arguments of one call. */
struct frame {
    bool has_batch; /* a field of `batch` was written */
    bool is_outer;  /* the struct points to a batch of the caller's */
    _Alignas(16) unsigned char args[MAX_ARGS];
    _Alignas(16) unsigned char batch[MAX_BATCH];
};

/* Sets all fields to their defaults. */
static inline void frame_clear(struct frame *f, const struct describe *d)
{
    memset(f->args, 0, d->args_bytes);
    memcpy(f->args, &d->args_bytes, sizeof d->args_bytes);
    f->has_batch = f->is_outer = false;
}

/* Where the field lies. */
static inline void *frame_at(struct frame *f, const struct describe *d, const struct field *field)
{
    if (!field->is_in_batch) return f->args + field->offset;
    if (!f->has_batch) {
        void *batch = f->batch;
        memset(f->batch, 0, d->batch_bytes);
        memcpy(f->batch, &d->batch_bytes, sizeof d->batch_bytes);
        memcpy(f->args + d->batch_offset, &batch, sizeof batch);
        f->has_batch = true;
    }
    return f->batch + field->offset;
}

static inline void frame_set_pointer(struct frame *f, uint32_t offset, const void *value)
{
    memcpy(f->args + offset, &value, sizeof value);
}

/* The functions of libgdn that are called by name; the addresses come from Python. */
struct library {
    gdn_status (*ctx_create)(const gdn_options *options, gdn_ctx **ctx);
    void (*ctx_destroy)(gdn_ctx *ctx);
    const char *(*last_error)(const gdn_ctx *ctx);
    gdn_status (*workspace_bytes)(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes);
};
extern struct library gdn_library;

#endif
