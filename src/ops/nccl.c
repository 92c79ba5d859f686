/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_nccl_open: an all-gather of NCCL, found at run time. */
#include <string.h>

#include "core/ctx.h"
#include "core/os/os.h"
#include "gdn_parallel.h"

/* The struct that the group's `user` points to. */
struct nccl {
    void *library, *comm;
    int (*all_gather)(const void *send, void *recv, size_t count, int type, void *comm,
                      void *stream);
    int (*rank)(void *comm, int *rank);
    int (*size)(void *comm, int *size);
};

enum { NCCL_INT8 = 0 };

static gdn_status all_gather(void *user, const void *send, void *recv, size_t bytes, void *stream)
{
    const struct nccl *n = user;
    return n->all_gather(send, recv, bytes, NCCL_INT8, n->comm, stream) ? GDN_E_CUDA : GDN_OK;
}

static gdn_status find(gdn_ctx *ctx, const struct nccl *n, const char *name, void *function)
{
    void *symbol = gdn_os_library_symbol(n->library, name);
    if (!symbol)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "libnccl.so.2: no %s in this version", name);
    memcpy(function, &symbol, sizeof symbol);
    return GDN_OK;
}

static gdn_status open(gdn_ctx *ctx, struct nccl *n, gdn_collective *group)
{
    n->library = gdn_os_library_open("libnccl.so.2");
    if (!n->library)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "libnccl.so.2: not found, wanted it where dlopen() looks");
    TRY(find(ctx, n, "ncclAllGather", &n->all_gather));
    TRY(find(ctx, n, "ncclCommUserRank", &n->rank));
    TRY(find(ctx, n, "ncclCommCount", &n->size));
    int rank, size, error = n->rank(n->comm, &rank);
    if (!error) error = n->size(n->comm, &size);
    if (error) return gdn_fail(ctx, GDN_E_CUDA, "comm: NCCL's error %d", error);
    group->rank = rank, group->size = size;
    return GDN_OK;
}

gdn_status gdn_nccl_open(gdn_ctx *ctx, void *comm, gdn_collective *group)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    if (!group) return gdn_leave(ctx, fp, gdn_fail(ctx, GDN_E_ARG, "group: NULL"));
    memset(group, 0, sizeof *group);
    if (!comm) return gdn_leave(ctx, fp, gdn_fail(ctx, GDN_E_ARG, "comm: NULL"));
    struct nccl *n = ctx->options.alloc(ctx->options.alloc_user, sizeof *n, 64);
    if (!n) return gdn_leave(ctx, fp, gdn_fail(ctx, GDN_E_MEMORY, "group: no memory"));
    *n = (struct nccl){ .comm = comm };
    *group = gdn_collective_init();
    group->all_gather = all_gather, group->user = n;
    const gdn_status status = open(ctx, n, group);
    if (status != GDN_OK) gdn_nccl_close(ctx, group);
    return gdn_leave(ctx, fp, status);
}

void gdn_nccl_close(gdn_ctx *ctx, gdn_collective *group)
{
    struct nccl *n = group ? group->user : NULL;
    if (!ctx || !n) return;
    if (n->library) gdn_os_library_close(n->library);
    ctx->options.release(ctx->options.alloc_user, n);
    memset(group, 0, sizeof *group);
}
