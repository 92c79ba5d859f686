/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/mirror.h"

#include "core/backend.h"
#include "core/tensor_check.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

/* Returns the bytes that a tensor spans. */
static struct gdn_mirror_block span_of(const gdn_tensor *t)
{
    int64_t low = 0, high = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] < 1) return (struct gdn_mirror_block){ .host = t->data };
        const int64_t reach = (t->size[i] - 1) * t->stride[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    const int64_t bytes = (int64_t)gdn_dtype_bytes(t->dtype);
    return (struct gdn_mirror_block){ .host = (char *)t->data + low * bytes,
                                      .bytes = (size_t)((high - low) * bytes) };
}

/* Adds a tensor's span, joined with every block that it touches. */
static void add_span(struct gdn_mirror *m, const gdn_tensor *t)
{
    if (!t->data) return;
    struct gdn_mirror_block s = span_of(t);
    for (int i = 0; i < m->n_blocks;) {
        const struct gdn_mirror_block *b = &m->blocks[i];
        char *end = s.host + s.bytes, *b_end = b->host + b->bytes;
        if (b->host > end || s.host > b_end) {
            i++;
            continue;
        }
        if (b->host < s.host) s.host = b->host;
        s.bytes = (size_t)((end > b_end ? end : b_end) - s.host);
        m->blocks[i] = m->blocks[--m->n_blocks];
        i = 0;
    }
    m->blocks[m->n_blocks++] = s;
}

/* From host memory to the device's copy of it. */
static void move(const struct gdn_mirror *m, gdn_tensor *t)
{
    for (int i = 0; t->data && i < m->n_blocks; i++) {
        const struct gdn_mirror_block *b = &m->blocks[i];
        const char *at = t->data;
        if (at < b->host || at > b->host + b->bytes) continue;
        t->data = (char *)b->device + (at - b->host);
        return;
    }
}

static gdn_status upload(struct gdn_mirror *m)
{
    for (int i = 0; i < m->n_blocks; i++) {
        struct gdn_mirror_block *b = &m->blocks[i];
        TRY(m->ctx->backend->upload(m->ctx, b->host, b->bytes, &b->device));
    }
    return GDN_OK;
}

gdn_status gdn_mirror_open(gdn_ctx *ctx, gdn_op op, const void *args, struct gdn_mirror *m)
{
    const struct gdn_op_shape *shape = &gdn_op_shapes[op];
    const gdn_batch *batch = NULL;
    memset(m, 0, sizeof *m);
    m->ctx = ctx;
    TRY(gdn_copy_args(ctx, &m->args, shape->bytes, args, shape->args));
    const struct gdn_tensor_row *own = gdn_tensor_rows(op);
    gdn_tensor *lists = &m->batch.cu_seqlens;
    if (shape->batch_at) memcpy(&batch, (char *)&m->args + shape->batch_at, sizeof(void *));
    if (batch) TRY(gdn_copy_args(ctx, &m->batch, sizeof m->batch, batch, "batch"));

    for (size_t i = 0; i < shape->n_tensors; i++) add_span(m, gdn_tensor_of(&own[i], &m->args));
    for (int i = 0; batch && i < GDN_BATCH_TENSORS; i++) add_span(m, lists + i);
    const gdn_status status = upload(m);
    if (status != GDN_OK) {
        gdn_mirror_close(m);
        return status;
    }
    for (size_t i = 0; i < shape->n_tensors; i++) move(m, gdn_tensor_of(&own[i], &m->args));
    for (int i = 0; batch && i < GDN_BATCH_TENSORS; i++) move(m, lists + i);
    batch = &m->batch;
    if (shape->batch_at && m->batch.struct_size)
        memcpy((char *)&m->args + shape->batch_at, &batch, sizeof(void *));
    return GDN_OK;
}

gdn_status gdn_mirror_back(struct gdn_mirror *m)
{
    for (int i = 0; i < m->n_blocks; i++) {
        const struct gdn_mirror_block *b = &m->blocks[i];
        TRY(m->ctx->backend->download(m->ctx, b->host, b->device, b->bytes));
    }
    return GDN_OK;
}

void gdn_mirror_close(struct gdn_mirror *m)
{
    for (int i = 0; i < m->n_blocks; i++) m->ctx->backend->release(m->ctx, m->blocks[i].device);
    m->n_blocks = 0;
}

gdn_status gdn_call_op(gdn_ctx *ctx, gdn_op op, const void *args)
{
    struct gdn_mirror m;
    if (!ctx->backend->upload) return gdn_run_op(ctx, op, args);
    TRY(gdn_mirror_open(ctx, op, args, &m));
    gdn_status status = gdn_run_op(ctx, op, &m.args);
    if (status == GDN_OK) status = gdn_mirror_back(&m);
    gdn_mirror_close(&m);
    return status;
}
