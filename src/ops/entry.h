/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every op: what happens between the caller and the context's backend. */
#ifndef GDN_ENTRY_H
#define GDN_ENTRY_H

#include <stddef.h>

#include "core/backend.h"
#include "core/ctx.h"

/* Fields whose 0 means a default, unless the call has GDN_ZERO_AS_GIVEN. Then 0 for an eps means
 * 2^-126, because rows of zeros are divided by it. */
static inline float gdn_scale_of(float given, float other, uint32_t flags)
{
    return given != 0 || flags & GDN_ZERO_AS_GIVEN ? given : other;
}
static inline float gdn_eps_of(float given, uint32_t flags)
{
    return given > 0 ? given : flags & GDN_ZERO_AS_GIVEN ? 0x1p-126f : 1e-6f;
}

/* An op's front. */
struct gdn_entry {
    const char *name;
    gdn_op op;
    /* Copies and checks the caller's struct and fills *call, which begins with a struct gdn_call.
     * Reads no contents, writes nothing else. */
    gdn_status (*describe)(gdn_ctx *ctx, const void *args, void *call);
};

/* Describes a call; then the context's backend plans and runs it. */
gdn_status gdn_entry_call(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args,
                          void *call);
/* Describes and plans a call and returns its workspace in *bytes. */
gdn_status gdn_entry_check(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args,
                           void *call, size_t *bytes);

/* Defines gdn_<name>() and gdn_<name>_check() for a row of ops.def; describe_<name>() is the file's
 * own. `type` is the caller's struct, `call_type` the checked call, `base` its first field. */
#define GDN_OP_ENTRY(NUMBER, name, type, call_type)                                           \
    _Static_assert(offsetof(call_type, base) == 0, "a call begins with its base");            \
    static const struct gdn_entry entry_##name = { #name, GDN_OP_##NUMBER, describe_##name }; \
    gdn_status gdn_##name(gdn_ctx *ctx, const type *args)                                     \
    {                                                                                         \
        call_type call;                                                                       \
        return gdn_entry_call(ctx, &entry_##name, args, &call);                               \
    }                                                                                         \
    gdn_status gdn_##name##_check(gdn_ctx *ctx, const type *args, size_t *bytes)              \
    {                                                                                         \
        call_type call;                                                                       \
        return gdn_entry_check(ctx, &entry_##name, args, &call, bytes);                       \
    }

/* As a part of another op's call: describes, plans and runs without the frame of its own. */
gdn_status gdn_entry_part(gdn_ctx *ctx, const struct gdn_entry *entry, const void *args,
                          void *call);

/* Defines gdn_<name>_part() of ops/parts.h, after GDN_OP_ENTRY. */
#define GDN_OP_PART(name, type, call_type)                       \
    gdn_status gdn_##name##_part(gdn_ctx *ctx, const type *args) \
    {                                                            \
        call_type call;                                          \
        return gdn_entry_part(ctx, &entry_##name, args, &call);  \
    }

#endif
