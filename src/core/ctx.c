/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: instruction set, threads and memory, chosen once.
 *
 * A context is first drafted on the stack, so that every error on the way has a place for its
 * text before any memory was asked for.
 */
#include "core/ctx.h"

#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "core/os/os.h"
#include "cpu/loops/bf16.h"
#include "cpu/loops/fpenv.h"
#include "gdn_blob.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

enum {
    MAX_THREADS = 1024,
    MAX_ARGS_BYTES = 1 << 16 /* above any struct to come: the size was never set */
};

/* Sizes that structs of gdn.h had in earlier versions, by the name that gdn_copy_args() gets. A
 * change that appends fields to a struct adds a row with the first of them. */
static const struct gdn_old_size old_sizes[] = {
    { "gdn_blob_args", offsetof(gdn_blob_args, state_scales) }, /* 0.1.0 */
    { "gdn_blob_info", offsetof(gdn_blob_info, state_scales) },
    { "batch", offsetof(gdn_batch, first_slot) },
    { "gdn_rule_args", offsetof(gdn_rule_args, write_gate) },
    { "gdn_prefill_backward_args", offsetof(gdn_prefill_backward_args, write_gate) },
    { "gdn_summary_args", offsetof(gdn_summary_args, write_gate) },
    { "gdn_step_args", offsetof(gdn_step_args, record_k) },
    { "gdn_block_args", offsetof(gdn_block_args, beta_kind) },
    { "gdn_record_fold_args", offsetof(gdn_record_fold_args, norm_eps) },
    { "gdn_block_backward_args", offsetof(gdn_block_backward_args, activation) },
    { NULL, 0 },
};

/* The context that refused this thread's last call because it was busy. The error text in that
 * context belongs to the other call. */
static _Thread_local const gdn_ctx *busy_ctx;

/* ---- Memory and log ------------------------------------------------------------------------ */

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return gdn_os_alloc(bytes, align);
}

static void default_release(void *user, void *memory)
{
    (void)user;
    gdn_os_free(memory);
}

void gdn_log_line(const gdn_ctx *ctx, const char *line)
{
    if (ctx->options.log) ctx->options.log(ctx->options.log_user, line);
}

void gdn_log_workspace(const gdn_ctx *ctx, size_t bytes)
{
    char line[80];
    snprintf(line, sizeof line, "workspace: %zu bytes", bytes);
    gdn_log_line(ctx, line);
}

const char *gdn_environment(const char *name)
{
    const char *value = gdn_os_environment(name);
    return value && *value ? value : NULL;
}

/* ---- Options ------------------------------------------------------------------------------- */

static gdn_status read_options(gdn_ctx *ctx, const gdn_options *given)
{
    gdn_options *o = &ctx->options;
    if (given) TRY(gdn_copy_args(ctx, o, sizeof *o, given, "options"));
    if (o->backend != GDN_BACKEND_CPU && o->backend != GDN_BACKEND_CUDA)
        return gdn_fail(ctx, GDN_E_ARG, "backend: %d, wanted 0 (CPU) or 1 (CUDA)", (int)o->backend);
    if (o->flags & ~(uint32_t)GDN_CTX_CHECK_CONTENTS)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted gdn_ctx_flag", (unsigned)o->flags);
    if (o->backend == GDN_BACKEND_CUDA) o->n_threads = 1;
    if (o->n_threads < 0 || o->n_threads > MAX_THREADS)
        return gdn_fail(ctx, GDN_E_ARG, "n_threads: %d, wanted 0 to %d", (int)o->n_threads,
                        MAX_THREADS);
    if (!o->alloc != !o->release)
        return gdn_fail(ctx, GDN_E_ARG, "%s: NULL, wanted both alloc and release or neither",
                        o->alloc ? "release" : "alloc");
    if (!o->alloc) {
        o->alloc = default_alloc;
        o->release = default_release;
    }
    return GDN_OK;
}

static int count_processors(void)
{
    const int n = gdn_os_processors();
    return n > MAX_THREADS ? MAX_THREADS : n;
}

static gdn_status fail_isa(gdn_ctx *ctx, uint32_t flags, const char *source, const char *name)
{
    char names[64] = "";
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++)
        if (!((*t)->needs & ~flags)) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, " %s", (*t)->name);
        }
    return gdn_fail(ctx, GDN_E_ARG, "%s: \"%.64s\", this machine runs:%s", source, name, names);
}

/* Lowers the choice to the named table. If the table chosen so far is the weaker one, it stays. */
static gdn_status lower_isa(gdn_ctx *ctx, uint32_t flags, const char *source, const char *name)
{
    if (!name) return GDN_OK;
    const struct gdn_kernels *named = gdn_cpu_select(flags, name);
    if (!named) return fail_isa(ctx, flags, source, name);
    const struct gdn_kernels *const *t = gdn_cpu_tables;
    while (*t != named && *t != ctx->kr) t++;
    ctx->kr = *t;
    return GDN_OK;
}

static gdn_status choose_isa(gdn_ctx *ctx)
{
    const uint32_t flags = gdn_cpu_detect();
    ctx->kr = gdn_cpu_select(flags, NULL);
    TRY(lower_isa(ctx, flags, "isa", ctx->options.isa));
    TRY(lower_isa(ctx, flags, "GDN_CPU", gdn_environment("GDN_CPU")));
    ctx->options.isa = ctx->kr->name; /* the caller's string may go */
    ctx->products = gdn_cpu_bf16_products(ctx->kr, flags);
    return GDN_OK;
}

/* ---- Create and destroy -------------------------------------------------------------------- */

static gdn_status create(gdn_ctx *draft, const gdn_options *given, gdn_ctx **ctx)
{
    gdn_options *o = &draft->options;
    TRY(read_options(draft, given));
    if (!ctx) return gdn_fail(draft, GDN_E_ARG, "ctx: NULL, wanted where to put the context");
    TRY(choose_isa(draft));
    if (o->n_threads == 0) o->n_threads = count_processors();

    gdn_ctx *made = o->alloc(o->alloc_user, sizeof *made, 64);
    if (!made)
        return gdn_fail(draft, GDN_E_MEMORY, "context: no memory for %zu bytes", sizeof *made);
    const struct gdn_lender lender = { o->parallel_for, o->parallel_user };
    draft->threads = gdn_threads_create(o->n_threads, o->parallel_for ? &lender : NULL, o->alloc,
                                        o->release, o->alloc_user);
    if (!draft->threads) {
        o->release(o->alloc_user, made);
        return gdn_fail(draft, GDN_E_MEMORY, "n_threads: no memory or no threads for %d",
                        (int)o->n_threads);
    }
    draft->backend = o->backend == GDN_BACKEND_CUDA ? &gdn_cuda_backend : &gdn_cpu_backend;
    const gdn_status status = draft->backend->open(draft);
    if (status != GDN_OK) {
        gdn_threads_destroy(draft->threads);
        o->release(o->alloc_user, made);
        return status;
    }
    *made = *draft;
    made->options.error_text = NULL; /* the caller gave the text for this call alone */
    made->options.error_text_bytes = 0;
    *ctx = made;
    return GDN_OK;
}

gdn_status gdn_ctx_create(const gdn_options *options, gdn_ctx **ctx)
{
    gdn_ctx draft;
    memset(&draft, 0, sizeof draft);
    if (ctx) *ctx = NULL;
    busy_ctx = NULL; /* the new context may have the address of that old one */

    const gdn_status status = create(&draft, options, ctx);
    if (status != GDN_OK && draft.options.error_text && draft.options.error_text_bytes > 0)
        snprintf(draft.options.error_text, draft.options.error_text_bytes, "%s", draft.error);
    if (status == GDN_OK) {
        char line[80];
        snprintf(line, sizeof line, "context: %s, %d %sthreads", gdn_isa(*ctx),
                 (int)gdn_n_threads(*ctx), (*ctx)->options.parallel_for ? "lent " : "");
        gdn_log_line(*ctx, line);
    }
    return status;
}

void gdn_ctx_destroy(gdn_ctx *ctx)
{
    if (!ctx) return;
    const gdn_options o = ctx->options;
    ctx->backend->close(ctx);
    gdn_threads_destroy(ctx->threads);
    if (ctx->workspace) o.release(o.alloc_user, ctx->workspace);
    o.release(o.alloc_user, ctx);
}

gdn_status gdn_enter(gdn_ctx *ctx, uint32_t *fp)
{
    if (!ctx) return GDN_E_ARG;
    if (atomic_exchange_explicit(&ctx->is_busy, true, memory_order_acquire)) {
        busy_ctx = ctx;
        return GDN_E_ARG;
    }
    busy_ctx = NULL;
    *fp = gdn_fp_enter();
    return GDN_OK;
}

gdn_status gdn_leave(gdn_ctx *ctx, uint32_t fp, gdn_status status)
{
    gdn_fp_leave(fp);
    busy_ctx = NULL;
    atomic_store_explicit(&ctx->is_busy, false, memory_order_release);
    return status;
}

const char *gdn_last_error(const gdn_ctx *ctx)
{
    if (!ctx) return "";
    if (ctx == busy_ctx) return "ctx: another call is using it, wanted one call at a time";
    return ctx->error;
}
const char *gdn_last_kernel(const gdn_ctx *ctx) { return ctx ? ctx->kernel : ""; }
const char *gdn_isa(const gdn_ctx *ctx) { return ctx ? ctx->backend->isa(ctx) : ""; }
int32_t gdn_n_threads(const gdn_ctx *ctx) { return ctx ? gdn_threads_count(ctx->threads) : 0; }

/* ---- What ops ask for ---------------------------------------------------------------------- */

static bool is_old_size(const struct gdn_old_size *old, const char *name, size_t size)
{
    for (; old->name; old++)
        if (old->bytes == size && !strcmp(old->name, name)) return true;
    return false;
}

gdn_status gdn_copy_sized(gdn_ctx *ctx, void *own, size_t own_bytes, const void *args,
                          const char *name, const struct gdn_old_size *old)
{
    uint32_t size = 0;
    if (!args) return gdn_fail(ctx, GDN_E_ARG, "%s: NULL", name);
    memcpy(&size, args, sizeof size);
    if (size > MAX_ARGS_BYTES || (size < own_bytes && !is_old_size(old, name, size)))
        return gdn_fail(ctx, GDN_E_ARG, "%s: struct_size %u, wanted %zu (its _init() sets it)",
                        name, (unsigned)size, own_bytes);
    memcpy(own, args, size < own_bytes ? size : own_bytes);
    if (size < own_bytes) memset((char *)own + size, 0, own_bytes - size);
    for (size_t i = own_bytes; i < size; i++)
        if (((const unsigned char *)args)[i] != 0)
            return gdn_fail(ctx, GDN_E_ARG,
                            "%s: byte %zu of %u is set, but this library knows only %zu", name, i,
                            (unsigned)size, own_bytes);
    return GDN_OK;
}

gdn_status gdn_copy_args(gdn_ctx *ctx, void *own, size_t own_bytes, const void *args,
                         const char *name)
{
    return gdn_copy_sized(ctx, own, own_bytes, args, name, old_sizes);
}

static gdn_status grow_workspace(gdn_ctx *ctx, size_t needed)
{
    const gdn_options *o = &ctx->options;
    if (ctx->workspace) o->release(o->alloc_user, ctx->workspace);
    ctx->workspace_bytes = 0;
    ctx->workspace = o->alloc(o->alloc_user, needed, 64);
    if (!ctx->workspace)
        return gdn_fail(ctx, GDN_E_MEMORY, "workspace: no memory for %zu bytes", needed);
    ctx->workspace_bytes = needed;
    gdn_log_workspace(ctx, needed);
    return GDN_OK;
}

gdn_status gdn_get_workspace(gdn_ctx *ctx, void *given, size_t given_bytes, size_t needed,
                             void **memory)
{
    *memory = given;
    if (!given) {
        if (needed > ctx->workspace_bytes) TRY(grow_workspace(ctx, needed));
        *memory = ctx->workspace;
        return GDN_OK;
    }
    if ((uintptr_t)given % 64)
        return gdn_fail(ctx, GDN_E_ARG, "workspace: %p, wanted a multiple of 64", given);
    if (given_bytes < needed)
        return gdn_fail(ctx, GDN_E_MEMORY, "workspace_bytes: %zu, wanted at least %zu", given_bytes,
                        needed);
    return GDN_OK;
}

size_t gdn_lay_out_rooms(const struct gdn_room *rooms, size_t n, char *memory)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        char *at = memory ? memory + bytes : NULL;
        memcpy(rooms[i].at, &at, sizeof at);
        bytes += gdn_align64(rooms[i].bytes);
    }
    return bytes;
}

static gdn_status check_lender(gdn_ctx *ctx)
{
    const char *broken = gdn_threads_broken(ctx->threads);
    if (!broken) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "parallel_for: %s, wanted each item once", broken);
}

/* Keeps a line, and logs it if it is new. */
static gdn_status note(gdn_ctx *ctx, const char *line)
{
    if (strcmp(line, ctx->kernel) == 0) return GDN_OK;
    snprintf(ctx->kernel, sizeof ctx->kernel, "%s", line);
    gdn_log_line(ctx, ctx->kernel);
    return GDN_OK;
}

/* Returns true if "op: name" is what ran last. */
static bool is_noted(const gdn_ctx *ctx, const char *op, const char *name)
{
    const size_t n = strlen(op);
    return !strncmp(ctx->kernel, op, n) && !strncmp(ctx->kernel + n, ": ", 2) &&
           !strcmp(ctx->kernel + n + 2, name);
}

gdn_status gdn_note_line(gdn_ctx *ctx, const char *op, const char *name)
{
    if (is_noted(ctx, op, name)) return GDN_OK;
    char line[sizeof ctx->kernel];
    snprintf(line, sizeof line, "%s: %s", op, name);
    return note(ctx, line);
}

gdn_status gdn_note_kernel(gdn_ctx *ctx, const char *op, const char *loops)
{
    TRY(check_lender(ctx));
    char line[sizeof ctx->kernel];
    int n = snprintf(line, sizeof line, "%s:", op);
    while (*loops && n < (int)sizeof line) {
        const int length = (int)strcspn(loops, " ");
        n += snprintf(line + n, sizeof line - (size_t)n, " %.*s.%s", length, loops, ctx->kr->name);
        loops += length + (loops[length] == ' ');
    }
    return note(ctx, line);
}
