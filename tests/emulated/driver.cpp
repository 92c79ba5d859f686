/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that runs kernels on this processor, a block or a cluster at a time. It is a
 * device of compute capability 8.0; of another if GDN_EMULATED=sm_90, say, is in the environment.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda.h"
#include "fibers.h"
#include "map.h"

extern "C" {
#include "cuda/driver/api.h"
}

static int nothing(void) { return 0; }

static int get_text(int, const char **text) { return *text = "emulated", 0; }
static int get_number(int *n) { return *n = 1, 0; }
static int get_name(char *name, int n, int) { return snprintf(name, (size_t)n, "emulated"), 0; }
static int get_attribute(int *value, int what, int)
{
    static const char *chip = getenv("GDN_EMULATED");
    static const int number = chip && !strncmp(chip, "sm_", 3) ? atoi(chip + 3) : 80;
    static const bool hopper = number == 90;
    *value = what == GDN_CU_MAJOR         ? number / 10
             : what == GDN_CU_MINOR       ? number % 10
             : what == GDN_CU_SHARED_MOST ? EMULATED_SHARED
             : hopper                     ? 132 /* multiprocessors */
                                          : 4;
    return 0;
}
/* The emulated Hopper runs code for Hopper, other chips run portable code. */
static int get_code(int *code, int, gdn_cu_kernel, int)
{
    int capability;
    get_attribute(&capability, GDN_CU_MAJOR, 0);
    return *code = capability == 9 ? 90 : 80, 0;
}
static int get_handle(void **handle) { return *handle = &emulated_kernel::all, 0; }
static int get_kernel(gdn_cu_kernel *kernel, gdn_cu_library, const char *name)
{
    for (emulated_kernel *k = emulated_kernel::all; k; k = k->next)
        if (!strcmp(k->name, name)) return *kernel = k, 0;
    return 500;
}
static unsigned cluster_of(const gdn_cu_config *c, const emulated_kernel *kernel)
{
    for (unsigned i = 0; i < c->n_attributes; i++)
        if (c->attributes[i].id == GDN_CU_CLUSTER_DIMENSION) {
            if (!c->shared_bytes)
                emulated_give_up("a cluster of a launch's own, of kernels that name memory");
            return c->attributes[i].value.dims[0];
        }
    return kernel->cluster;
}
static int launch(const gdn_cu_config *c, gdn_cu_kernel handle, void **parameters, void **)
{
    const auto *kernel = (const emulated_kernel *)handle;
    const unsigned n = c->grid[0] * c->grid[1] * c->grid[2], cluster = cluster_of(c, kernel);
    blockDim = { c->block[0], 1, 1 };
    gridDim = { c->grid[0], c->grid[1], c->grid[2] };
    for (unsigned i = 0; i < n; i += cluster)
        emulated_run_cluster(kernel, parameters[0], i, (int)cluster, (int)c->block[0],
                             c->shared_bytes);
    return 0;
}
/* Makes a map as the driver does, for the tiles that the library uses. */
static int encode(void *map, int type, uint32_t n, void *data, const uint64_t *size,
                  const uint64_t *step, const uint32_t *box, const uint32_t *each, int interleave,
                  int swizzle, int, int fill)
{
    emulated_map m = { (char *)data, {}, {}, {} };
    bool good = (type == GDN_CU_MAP_F16 || type == GDN_CU_MAP_BF16) && n == 4 && !interleave &&
                swizzle == GDN_CU_MAP_SWIZZLE_128B && !fill && (uintptr_t)data % 16 == 0 &&
                (uintptr_t)map % 64 == 0 && box[0] * 2 == 128;
    for (int i = 0; i < 4; i++) {
        m.size[i] = size[i], m.box[i] = box[i];
        good &= size[i] >= 1 && size[i] <= 1ull << 32;
        good &= box[i] >= 1 && box[i] <= 256 && each[i] == 1;
    }
    for (int i = 0; i < 3; i++) {
        m.step[i] = step[i];
        good &= step[i] % 16 == 0 && step[i] < 1ull << 40;
    }
    memcpy(map, &m, sizeof m);
    return !good;
}
static int allocate(gdn_cu_memory *m, size_t n)
{
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    if (p) memset(p, 0xff, n);
    return *m = (gdn_cu_memory)(uintptr_t)p, !p;
}
static int release(gdn_cu_memory m) { return free((void *)(uintptr_t)m), 0; }
static int copy_to(gdn_cu_memory m, const void *from, size_t n)
{
    return memcpy((void *)(uintptr_t)m, from, n), 0;
}
static int copy_from(void *to, gdn_cu_memory m, size_t n)
{
    return memcpy(to, (const void *)(uintptr_t)m, n), 0;
}
static int set(gdn_cu_memory m, unsigned char c, size_t n, void *)
{
    return memset((void *)(uintptr_t)m, c, n), 0;
}

#define EXPORT extern "C" __attribute__((visibility("default"))) int
EXPORT cuInit(unsigned) { return 0; }
EXPORT cuDeviceGet(int *device, int i) { return *device = i, 0; }
EXPORT cuDevicePrimaryCtxRetain(void **context, int) { return get_handle(context); }
EXPORT cuCtxSetCurrent(void *) { return 0; }
EXPORT cuMemHostRegister_v2(void *, size_t, unsigned) { return 0; }
EXPORT cuMemHostUnregister(void *) { return 0; }

EXPORT cuGetProcAddress_v2(const char *name, void **found, int, uint64_t, int *)
{
    static const struct {
        const char *name;
        void *call;
    } calls[] = {
        { "cuDriverGetVersion", (void *)get_number },
        { "cuGetErrorName", (void *)get_text },
        { "cuGetErrorString", (void *)get_text },
        { "cuDeviceGet", (void *)cuDeviceGet },
        { "cuDeviceGetCount", (void *)get_number },
        { "cuDeviceGetName", (void *)get_name },
        { "cuDeviceGetAttribute", (void *)get_attribute },
        { "cuDevicePrimaryCtxRetain", (void *)cuDevicePrimaryCtxRetain },
        { "cuCtxGetCurrent", (void *)get_handle },
        { "cuLibraryLoadData", (void *)get_handle },
        { "cuLibraryGetKernel", (void *)get_kernel },
        { "cuKernelGetAttribute", (void *)get_code },
        { "cuLaunchKernelEx", (void *)launch },
        { "cuTensorMapEncodeTiled", (void *)encode },
        { "cuMemAlloc", (void *)allocate },
        { "cuMemFree", (void *)release },
        { "cuMemcpyHtoD", (void *)copy_to },
        { "cuMemcpyDtoH", (void *)copy_from },
        { "cuMemsetD8Async", (void *)set },
    };
    *found = (void *)nothing;
    for (const auto &c : calls)
        if (!strcmp(c.name, name)) *found = c.call;
    return 0;
}
