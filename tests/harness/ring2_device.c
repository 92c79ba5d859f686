/* SPDX-License-Identifier: Apache-2.0 */
#include "ring2_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ctx.h"
#include "core/os/os.h"
#include "core/os/program.h"
#include "cuda/driver/launch.h"
#include "cuda/prefill/wanted.h"
#include "ring2.h"

static struct {
    bool asked, on;
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*map)(void *, size_t, unsigned);
    int (*unmap)(void *);
} cu;

static void give_up(const char *call, int result)
{
    printf("GDN_TEST_BACKEND=cuda: %s failed (%d)\n", call, result);
    exit(1);
}

static void find(void *library, const char *name, void *pointer)
{
    void *symbol = library ? gdn_os_library_symbol(library, name) : NULL;
    if (!symbol) give_up(name, -1);
    memcpy(pointer, &symbol, sizeof symbol);
}

static void open_driver(void)
{
    void *library = gdn_os_library_open("libcuda.so.1"), *context = NULL;
    int device = 0, r;
    gdn_os_set_environment("CUDA_LAUNCH_BLOCKING", "1");
    if (!library) {
        printf("skipped: no libcuda.so.1\n");
        exit(77);
    }
    find(library, "cuInit", &cu.init);
    find(library, "cuDeviceGet", &cu.device);
    find(library, "cuDevicePrimaryCtxRetain", &cu.retain);
    find(library, "cuCtxSetCurrent", &cu.set_current);
    find(library, "cuMemHostRegister_v2", &cu.map);
    find(library, "cuMemHostUnregister", &cu.unmap);
    if ((r = cu.init(0))) give_up("cuInit", r);
    if ((r = cu.device(&device, 0))) give_up("cuDeviceGet", r);
    if ((r = cu.retain(&context, device))) give_up("cuDevicePrimaryCtxRetain", r);
    if ((r = cu.set_current(context))) give_up("cuCtxSetCurrent", r);
}

bool ring2_on_device(void)
{
    if (!cu.asked) {
        const char *backend = getenv("GDN_TEST_BACKEND");
        cu.asked = true;
        cu.on = backend && strcmp(backend, "cuda") == 0;
        if (cu.on) open_driver();
    }
    return cu.on;
}

bool ring2_on_hopper(void) { return ring2_on_device() && gdn_cuda_runs_sm_90a(ring2_ctx(1)->cuda); }

/* The cut that a test wants, and the context that has it. */
static struct gdn_cuda_wanted wanted;
static const gdn_ctx *wanted_of;

const struct gdn_cuda_wanted *gdn_cuda_wanted(const gdn_ctx *ctx)
{
    static const struct gdn_cuda_wanted nothing;
    return ctx == wanted_of ? &wanted : &nothing;
}

gdn_ctx *ring2_segments(int64_t first, int64_t each)
{
    if (!ring2_on_device()) {
        ring2_skip("on a GPU");
        return NULL;
    }
    gdn_ctx *ctx = ring2_ctx(1);
    wanted_of = ctx;
    wanted.cut = (struct gdn_cuda_cut){ .first = first, .each = each };
    return ctx;
}

gdn_ctx *ring2_hopper(int64_t first, int64_t each)
{
    if (ring2_on_hopper()) return ring2_segments(first, each);
    ring2_skip("on Hopper");
    return NULL;
}

gdn_ctx *ring2_hopper_apart(int64_t whole, int win, int64_t first, int64_t each)
{
    gdn_ctx *ctx = ring2_hopper(first, each);
    if (!ctx) return NULL;
    wanted.cut.whole = whole;
    wanted.cut.win = win;
    wanted.cut.apart = true;
    return ctx;
}

bool ring2_windows(int64_t chunks)
{
    if (!ring2_on_device()) return false;
    wanted_of = ring2_ctx(1);
    wanted.window_chunks = chunks;
    return true;
}

void ring2_gradient_segments(int64_t n)
{
    if (!ring2_on_device()) return;
    wanted_of = ring2_ctx(1);
    wanted.segments = n;
}

void ring2_open_chunks(int64_t n)
{
    if (!ring2_on_device()) return;
    wanted_of = ring2_ctx(1);
    wanted.open_chunks = n;
}

void ring2_device_map(void *pages, size_t bytes)
{
    enum { PORTABLE_AND_MAPPED = 3 };
    if (!ring2_on_device()) return;
    const int r = cu.map(pages, bytes, PORTABLE_AND_MAPPED);
    if (r) give_up("cuMemHostRegister", r);
}

void ring2_device_unmap(void *pages)
{
    if (ring2_on_device()) cu.unmap(pages);
}
