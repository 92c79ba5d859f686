/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: nccl */
/* gdn_nccl_open: a group of NCCL's, with the library of fake_nccl.c. */
#include <string.h>

#include "gdn_parallel.h"
#include "ring2.h"

struct fake_comm {
    int rank, size, error;
};

static void opens(void)
{
    gdn_ctx *ctx = ring2_ctx(1);
    struct fake_comm comm = { 1, 3, 0 };
    gdn_collective group;
    ring2_status(ctx, "open", gdn_nccl_open(ctx, &comm, &group), GDN_OK);
    CHECK(group.rank == 1 && group.size == 3, "rank %d of %d", group.rank, group.size);
    const char send[4] = "abc";
    char recv[12];
    CHECK(group.all_gather(group.user, send, recv, 4, (void *)7) == GDN_OK, "an all-gather");
    CHECK(!memcmp(recv, "\0\0\0\0abc\0\0\0\0\0", 12), "what it returned");
    comm.error = 2;
    CHECK(group.all_gather(group.user, send, recv, 4, (void *)7) == GDN_E_CUDA, "an error");
    gdn_nccl_close(ctx, &group);
    CHECK(!group.user && !group.all_gather, "closed");
    gdn_nccl_close(ctx, &group);
}

static void refused(gdn_status want, const char *text, void *comm)
{
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_collective group;
    const gdn_status status = gdn_nccl_open(ctx, comm, &group);
    CHECK(status == want && strstr(gdn_last_error(ctx), text), "status %d, \"%s\"", (int)status,
          gdn_last_error(ctx));
    CHECK(!group.user && !group.all_gather, "a group after an error");
}

static void mistakes(void)
{
    struct fake_comm broken = { 0, 1, 5 };
    refused(GDN_E_ARG, "comm: NULL", NULL);
    refused(GDN_E_CUDA, "comm: NCCL's error 5", &broken);
}

int main(int argc, char **argv)
{
    const struct ring2_test tests[] = { { "nccl", opens }, { "nccl: mistakes", mistakes } };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
