/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every op; see entry.h. */
#include "ops/entry.h"

static gdn_status plan(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args,
                       struct gdn_plan_room *room, struct gdn_call *call)
{
    const struct gdn_op_backend *backend = ctx->backend->ops[entry->op];
    TRY(entry->describe(ctx, args, call));
    call->op = entry->name;
    call->room = room;
    call->bytes = 0;
    if (!backend->run)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "backend: %s does not have gdn_%s",
                        ctx->backend->name, entry->name);
    return backend->plan ? backend->plan(ctx, call) : GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, const struct gdn_entry *entry, struct gdn_call *call)
{
    void *memory;
    TRY(ctx->backend->get_workspace(ctx, call->workspace, call->workspace_bytes, call->bytes,
                                    &memory));
    return ctx->backend->ops[entry->op]->run(ctx, call, memory);
}

gdn_status gdn_entry_call(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args, void *call)
{
    struct gdn_plan_room room;
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    gdn_status status = plan(ctx, entry, args, &room, call);
    if (status == GDN_OK) status = run(ctx, entry, call);
    return gdn_leave(ctx, fp, status);
}

gdn_status gdn_entry_check(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args,
                           void *call, size_t *bytes)
{
    struct gdn_plan_room room;
    TRY(plan(ctx, entry, args, &room, call));
    *bytes = ((const struct gdn_call *)call)->bytes;
    return GDN_OK;
}

gdn_status gdn_entry_part(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args, void *call)
{
    struct gdn_plan_room room;
    TRY(plan(ctx, entry, args, &room, call));
    return run(ctx, entry, call);
}
