/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver that the library calls, declared here so that host code compiles
 * without a toolkit and runs without a driver: libcuda.so.1 is opened when a context asks for it.
 * tests/cuda/cuda_api_abi.c compares all of it with <cuda.h> where that exists.
 */
#ifndef GDN_CUDA_API_H
#define GDN_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int gdn_cu_result;      /* CUresult; 0 is success */
typedef int gdn_cu_device;      /* CUdevice */
typedef uint64_t gdn_cu_memory; /* CUdeviceptr */
typedef void *gdn_cu_context, *gdn_cu_stream, *gdn_cu_event, *gdn_cu_library, *gdn_cu_kernel;

/* CUlaunchAttribute, for the values that are used. */
struct gdn_cu_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int flag;
        uint32_t dims[3];
    } value;
};

/* CUlaunchConfig */
struct gdn_cu_config {
    unsigned grid[3], block[3], shared_bytes;
    gdn_cu_stream stream;
    struct gdn_cu_attribute *attributes;
    unsigned n_attributes;
};

enum {
    /* CUdevice_attribute */
    GDN_CU_SM_COUNT = 16,
    GDN_CU_MAJOR = 75,
    GDN_CU_MINOR = 76,
    GDN_CU_SHARED_MOST = 97, /* the most that a block can ask for */
    /* CUfunction_attribute */
    GDN_CU_PTX_VERSION = 5, /* the architecture of the code, such as 80 */
    GDN_CU_MAX_DYNAMIC_SHARED = 8,
    /* CUlaunchAttributeID */
    GDN_CU_CLUSTER_DIMENSION = 4,
    GDN_CU_PROGRAMMATIC_STREAM = 6,
    /* CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion */
    GDN_CU_MAP_F16 = 6,
    GDN_CU_MAP_BF16 = 9,
    GDN_CU_MAP_SWIZZLE_128B = 3,
    GDN_CU_MAP_L2_256B = 3,
    /* CUstreamCaptureMode */
    GDN_CU_CAPTURE_RELAXED = 2,
    /* The version of the entry points that the library loads. */
    GDN_CU_VERSION = 12000,
};

/* X(name, parameters): every driver function that is used. */
#define GDN_CU_CALLS(X)                                                                           \
    X(cuInit, (unsigned))                                                                         \
    X(cuDriverGetVersion, (int *))                                                                \
    X(cuGetErrorName, (gdn_cu_result, const char **))                                             \
    X(cuGetErrorString, (gdn_cu_result, const char **))                                           \
    X(cuDeviceGet, (gdn_cu_device *, int))                                                        \
    X(cuDeviceGetCount, (int *))                                                                  \
    X(cuDeviceGetName, (char *, int, gdn_cu_device))                                              \
    X(cuDeviceGetAttribute, (int *, int, gdn_cu_device))                                          \
    X(cuDevicePrimaryCtxRetain, (gdn_cu_context *, gdn_cu_device))                                \
    X(cuDevicePrimaryCtxRelease, (gdn_cu_device))                                                 \
    X(cuCtxGetCurrent, (gdn_cu_context *))                                                        \
    X(cuCtxPushCurrent, (gdn_cu_context))                                                         \
    X(cuCtxPopCurrent, (gdn_cu_context *))                                                        \
    X(cuLibraryLoadData,                                                                          \
      (gdn_cu_library *, const void *, int *, void **, unsigned, int *, void **, unsigned))       \
    X(cuLibraryUnload, (gdn_cu_library))                                                          \
    X(cuLibraryGetKernel, (gdn_cu_kernel *, gdn_cu_library, const char *))                        \
    X(cuKernelGetAttribute, (int *, int, gdn_cu_kernel, gdn_cu_device))                           \
    X(cuKernelSetAttribute, (int, int, gdn_cu_kernel, gdn_cu_device))                             \
    X(cuLaunchKernelEx, (const struct gdn_cu_config *, gdn_cu_kernel, void **, void **))          \
    X(cuTensorMapEncodeTiled, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, \
                               const uint32_t *, const uint32_t *, int, int, int, int))           \
    X(cuMemAlloc, (gdn_cu_memory *, size_t))                                                      \
    X(cuMemFree, (gdn_cu_memory))                                                                 \
    X(cuMemcpyHtoD, (gdn_cu_memory, const void *, size_t))                                        \
    X(cuMemcpyDtoH, (void *, gdn_cu_memory, size_t))                                              \
    X(cuMemcpyDtoDAsync, (gdn_cu_memory, gdn_cu_memory, size_t, gdn_cu_stream))                   \
    X(cuMemsetD8Async, (gdn_cu_memory, unsigned char, size_t, gdn_cu_stream))                     \
    X(cuStreamIsCapturing, (gdn_cu_stream, int *))                                                \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                 \
    X(cuStreamSynchronize, (gdn_cu_stream))                                                       \
    X(cuCtxSynchronize, (void))                                                                   \
    X(cuEventCreate, (gdn_cu_event *, unsigned))                                                  \
    X(cuEventDestroy, (gdn_cu_event))                                                             \
    X(cuEventRecord, (gdn_cu_event, gdn_cu_stream))                                               \
    X(cuEventSynchronize, (gdn_cu_event))                                                         \
    X(cuEventElapsedTime, (float *, gdn_cu_event, gdn_cu_event))

struct gdn_cu_api {
    void *library; /* of dlopen */
#define GDN_CU_POINTER(name, parameters) gdn_cu_result(*name) parameters;
    GDN_CU_CALLS(GDN_CU_POINTER)
#undef GDN_CU_POINTER
};

/* Opens the driver and finds every call. Returns 0, or sets `missing` to what is not there: the
 * driver itself, or a call that an old driver lacks. */
int gdn_cu_open(struct gdn_cu_api *api, const char **missing);
void gdn_cu_close(struct gdn_cu_api *api);

#endif
