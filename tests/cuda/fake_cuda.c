/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/decode/args.h"
#include "cuda/rowwise/args.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern struct fake_cuda fake_cuda;
struct fake_cuda fake_cuda = { .n_devices = 1, .major = 9, .shared_bytes = 232448 };

enum { FAILED = 700, NOT_FOUND = 500, INVALID = 1 };

/* Counts a call, and says whether it fails. */
static gdn_cu_result enter(enum fake_call call, const char *name)
{
    fake_cuda.n_calls[call]++;
    if (!fake_cuda.fails || strcmp(fake_cuda.fails, name)) return 0;
    return fake_cuda.error ? fake_cuda.error : FAILED;
}
#define ENTER(name)                                         \
    do {                                                    \
        const gdn_cu_result r_ = enter(FAKE_##name, #name); \
        if (r_) return r_;                                  \
    } while (0)

/* Something that is handed out as if it were the driver's. */
static void *handle(const void *object)
{
    union {
        const void *in;
        void *out;
    } as = { .in = object };
    return as.out;
}

static char objects[2]; /* a context and an event */
static void *current;

#define FAKE(name) static gdn_cu_result fake_##name

FAKE(cuInit)(unsigned flags)
{
    ENTER(cuInit);
    return flags ? INVALID : 0;
}
FAKE(cuDriverGetVersion)(int *v)
{
    ENTER(cuDriverGetVersion);
    *v = 13000;
    return 0;
}
FAKE(cuGetErrorName)(gdn_cu_result r, const char **s)
{
    ENTER(cuGetErrorName);
    *s = r == FAILED ? "CUDA_ERROR_FAKE" : "CUDA_ERROR_OTHER";
    return 0;
}
FAKE(cuGetErrorString)(gdn_cu_result r, const char **s)
{
    ENTER(cuGetErrorString);
    *s = r == FAILED ? "as it was told" : "something else";
    return 0;
}
FAKE(cuDeviceGet)(gdn_cu_device *d, int i)
{
    ENTER(cuDeviceGet);
    *d = i;
    return 0;
}
FAKE(cuDeviceGetCount)(int *n)
{
    ENTER(cuDeviceGetCount);
    *n = fake_cuda.n_devices;
    return 0;
}
FAKE(cuDeviceGetName)(char *name, int n, gdn_cu_device d)
{
    ENTER(cuDeviceGetName);
    (void)d;
    strncpy(name, "a fake", (size_t)n);
    return 0;
}
FAKE(cuDeviceGetAttribute)(int *v, int what, gdn_cu_device d)
{
    ENTER(cuDeviceGetAttribute);
    (void)d;
    *v = what == GDN_CU_MAJOR         ? fake_cuda.major
         : what == GDN_CU_MINOR       ? fake_cuda.minor
         : what == GDN_CU_SHARED_MOST ? fake_cuda.shared_bytes
                                      : 132;
    return 0;
}
FAKE(cuDevicePrimaryCtxRetain)(gdn_cu_context *c, gdn_cu_device d)
{
    ENTER(cuDevicePrimaryCtxRetain);
    (void)d;
    *c = &objects[0];
    return 0;
}
FAKE(cuDevicePrimaryCtxRelease)(gdn_cu_device d)
{
    ENTER(cuDevicePrimaryCtxRelease);
    (void)d;
    return 0;
}
FAKE(cuCtxGetCurrent)(gdn_cu_context *c)
{
    ENTER(cuCtxGetCurrent);
    *c = current;
    return 0;
}
FAKE(cuCtxPushCurrent)(gdn_cu_context c)
{
    ENTER(cuCtxPushCurrent);
    current = c;
    fake_cuda.depth++;
    return 0;
}
FAKE(cuCtxPopCurrent)(gdn_cu_context *c)
{
    ENTER(cuCtxPopCurrent);
    *c = current;
    current = NULL;
    fake_cuda.depth--;
    return 0;
}
/* Every image is a fat binary, which begins with this number. */
static const char image_magic[4] = "\x50\xed\x55\xba";

FAKE(cuLibraryLoadData)
(gdn_cu_library *l, const void *image, int *a, void **b, unsigned c, int *d, void **e, unsigned f)
{
    ENTER(cuLibraryLoadData);
    if (fake_cuda.load_ms) usleep((unsigned)fake_cuda.load_ms * 1000);
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *l = handle(image); /* a library is its image */
    return memcmp(image, image_magic, sizeof image_magic) ? INVALID : 0;
}
FAKE(cuLibraryUnload)(gdn_cu_library l)
{
    ENTER(cuLibraryUnload);
    (void)l;
    return 0;
}
FAKE(cuLibraryGetKernel)(gdn_cu_kernel *k, gdn_cu_library l, const char *name)
{
    ENTER(cuLibraryGetKernel);
    (void)l;
    *k = handle(name); /* a kernel is its name */
    return fake_cuda.lacks && !strcmp(fake_cuda.lacks, name) ? NOT_FOUND : 0;
}
FAKE(cuKernelGetAttribute)(int *value, int what, gdn_cu_kernel k, gdn_cu_device d)
{
    ENTER(cuKernelGetAttribute);
    (void)k, (void)d;
    if (what != GDN_CU_PTX_VERSION) return INVALID;
    *value = fake_cuda.major == 9 && !fake_cuda.from_ptx ? 90 : 80;
    return 0;
}
FAKE(cuKernelSetAttribute)(int what, int value, gdn_cu_kernel k, gdn_cu_device d)
{
    ENTER(cuKernelSetAttribute);
    (void)k, (void)d;
    if (what != GDN_CU_MAX_DYNAMIC_SHARED) return INVALID;
    return value > fake_cuda.shared_bytes ? INVALID : 0;
}
/* Returns the bytes of arguments that tests look at. No kernel takes less than the last size. */
static size_t seen_bytes(const char *kernel)
{
    if (!strncmp(kernel, "gdn_norm_", 9)) return sizeof(struct gdn_cu_norm);
    if (!strncmp(kernel, "gdn_decode_channels_vk_", 23)) return sizeof(struct gdn_cu_decode);
    return 24;
}
FAKE(cuLaunchKernelEx)
(const struct gdn_cu_config *config, gdn_cu_kernel k, void **parameters, void **extra)
{
    ENTER(cuLaunchKernelEx);
    (void)extra;
    fake_cuda.launch = *config;
    fake_cuda.kernel = k;
    memcpy(fake_cuda.args, parameters[0], seen_bytes(k));
    return current ? 0 : INVALID;
}
FAKE(cuTensorMapEncodeTiled)
(void *map, int dtype, uint32_t rank, void *data, const uint64_t *sizes, const uint64_t *steps,
 const uint32_t *box, const uint32_t *each, int interleave, int swizzle, int l2, int fill)
{
    ENTER(cuTensorMapEncodeTiled);
    (void)map, (void)dtype, (void)sizes, (void)steps, (void)box, (void)each;
    (void)interleave, (void)swizzle, (void)l2, (void)fill;
    return (uintptr_t)data % 16 || rank != 4 ? INVALID : 0;
}
FAKE(cuMemAlloc)(gdn_cu_memory *m, size_t n)
{
    ENTER(cuMemAlloc);
    *m = 4096;
    return n ? 0 : INVALID;
}
FAKE(cuMemFree)(gdn_cu_memory m)
{
    ENTER(cuMemFree);
    return m ? 0 : INVALID;
}
FAKE(cuMemcpyHtoD)(gdn_cu_memory m, const void *p, size_t n)
{
    ENTER(cuMemcpyHtoD);
    (void)m, (void)p, (void)n;
    return 0;
}
FAKE(cuMemcpyDtoH)(void *p, gdn_cu_memory m, size_t n)
{
    ENTER(cuMemcpyDtoH);
    if (fake_cuda.copies) memcpy(p, (const void *)(uintptr_t)m, n);
    return 0;
}
FAKE(cuMemcpyDtoDAsync)(gdn_cu_memory to, gdn_cu_memory from, size_t n, gdn_cu_stream s)
{
    ENTER(cuMemcpyDtoDAsync);
    (void)to, (void)from, (void)n, (void)s;
    return 0;
}
FAKE(cuMemsetD8Async)(gdn_cu_memory m, unsigned char c, size_t n, gdn_cu_stream s)
{
    ENTER(cuMemsetD8Async);
    (void)m, (void)c, (void)n, (void)s;
    return 0;
}
FAKE(cuStreamIsCapturing)(gdn_cu_stream s, int *status)
{
    ENTER(cuStreamIsCapturing);
    (void)s;
    *status = fake_cuda.captures;
    return 0;
}
FAKE(cuThreadExchangeStreamCaptureMode)(int *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode);
    const int old = fake_cuda.capture_mode;
    fake_cuda.capture_mode = *mode;
    *mode = old;
    return 0;
}
FAKE(cuStreamSynchronize)(gdn_cu_stream s)
{
    ENTER(cuStreamSynchronize);
    (void)s;
    return 0;
}
FAKE(cuCtxSynchronize)(void)
{
    ENTER(cuCtxSynchronize);
    return 0;
}
FAKE(cuEventCreate)(gdn_cu_event *e, unsigned f)
{
    ENTER(cuEventCreate);
    *e = &objects[1];
    return f;
}
FAKE(cuEventDestroy)(gdn_cu_event e)
{
    ENTER(cuEventDestroy);
    (void)e;
    return 0;
}
FAKE(cuEventRecord)(gdn_cu_event e, gdn_cu_stream s)
{
    ENTER(cuEventRecord);
    (void)e, (void)s;
    return 0;
}
FAKE(cuEventSynchronize)(gdn_cu_event e)
{
    ENTER(cuEventSynchronize);
    (void)e;
    return 0;
}
FAKE(cuEventElapsedTime)(float *ms, gdn_cu_event a, gdn_cu_event b)
{
    ENTER(cuEventElapsedTime);
    (void)a, (void)b;
    *ms = 1;
    return 0;
}

EXPORT gdn_cu_result cuGetProcAddress_v2(const char *name, void **found, int version,
                                         uint64_t flags, int *status);
gdn_cu_result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                                  int *status)
{
#define ENTRY(call, parameters) { #call, (void (*)(void))fake_##call },
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = { GDN_CU_CALLS(ENTRY) };
    (void)flags, (void)status;
    if (version != GDN_CU_VERSION) return INVALID;
    if (fake_cuda.missing && !strcmp(fake_cuda.missing, name)) return NOT_FOUND;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i].name, name)) {
            memcpy(found, &calls[i].call, sizeof *found);
            return 0;
        }
    return NOT_FOUND;
}

/* Answers the Python package about memory: fake device d has the addresses from (d + 1) 2^32. */
EXPORT gdn_cu_result cuPointerGetAttribute(void *found, int what, gdn_cu_memory m);
gdn_cu_result cuPointerGetAttribute(void *found, int what, gdn_cu_memory m)
{
    enum { DEVICE_ORDINAL = 9 };
    const int device = (int)(m >> 32) - 1;
    if (what != DEVICE_ORDINAL || device < 0 || device >= fake_cuda.n_devices) return INVALID;
    memcpy(found, &device, sizeof device);
    return 0;
}
