/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a backend: one row per op, gdn_cpu_op_<name> of the op's file. */
#include "calls/op_backends.h"
#include "core/ctx.h"
#include "cpu/loops/kernels.h"

static const struct gdn_op_backend *const ops[] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = &gdn_cpu_op_##name,
#include "calls/ops.def"
};

/* The context has opened the loops and threads that the CPU needs. */
static gdn_status open(gdn_ctx *ctx)
{
    (void)ctx;
    return GDN_OK;
}

static void close(gdn_ctx *ctx) { (void)ctx; }

static const char *isa(const gdn_ctx *ctx) { return ctx->kr->name; }

const struct gdn_backend_table gdn_cpu_backend = {
    .name = "cpu",
    .open = open,
    .close = close,
    .isa = isa,
    .get_workspace = gdn_get_workspace,
    .ops = ops,
};
