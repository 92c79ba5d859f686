/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the declarations of src/cuda/driver/api.h with the toolkit's own header. */
#include <cuda.h>
#include <stddef.h>

#include "cuda/driver/api.h"
#include "cuda/prefill/sm90/args.h"

#define SAME(what, a, b) _Static_assert((a) == (b), what)
#define FIELD(ours, theirs) \
    SAME(#ours, offsetof(struct gdn_cu_config, ours), offsetof(CUlaunchConfig, theirs))

SAME("CUlaunchConfig", sizeof(struct gdn_cu_config), sizeof(CUlaunchConfig));
FIELD(grid, gridDimX);
FIELD(block, blockDimX);
FIELD(shared_bytes, sharedMemBytes);
FIELD(stream, hStream);
FIELD(attributes, attrs);
FIELD(n_attributes, numAttrs);
SAME("CUlaunchAttribute", sizeof(struct gdn_cu_attribute), sizeof(CUlaunchAttribute));
SAME("value", offsetof(struct gdn_cu_attribute, value), offsetof(CUlaunchAttribute, value));
SAME("CUdeviceptr", sizeof(gdn_cu_memory), sizeof(CUdeviceptr));
SAME("CUdevice", sizeof(gdn_cu_device), sizeof(CUdevice));
SAME("CUresult", sizeof(gdn_cu_result), sizeof(CUresult));
SAME("CUcontext", sizeof(gdn_cu_context), sizeof(CUcontext));

SAME("sm_count", (int)GDN_CU_SM_COUNT, (int)CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME("major", (int)GDN_CU_MAJOR, (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME("minor", (int)GDN_CU_MINOR, (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME("shared most", (int)GDN_CU_SHARED_MOST,
     (int)CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME("PTX", (int)GDN_CU_PTX_VERSION, (int)CU_FUNC_ATTRIBUTE_PTX_VERSION);
SAME("shared", (int)GDN_CU_MAX_DYNAMIC_SHARED,
     (int)CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME("cluster", (int)GDN_CU_CLUSTER_DIMENSION, (int)CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME("overlap", (int)GDN_CU_PROGRAMMATIC_STREAM,
     (int)CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

SAME("relaxed", (int)GDN_CU_CAPTURE_RELAXED, (int)CU_STREAM_CAPTURE_MODE_RELAXED);

SAME("f16", (int)GDN_CU_MAP_F16, (int)CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME("bf16", (int)GDN_CU_MAP_BF16, (int)CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME("swizzle", (int)GDN_CU_MAP_SWIZZLE_128B, (int)CU_TENSOR_MAP_SWIZZLE_128B);
SAME("L2", (int)GDN_CU_MAP_L2_256B, (int)CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME("CUtensorMap", sizeof(struct gdn_cu_map), sizeof(CUtensorMap));

/* CUDA's header declares every function that the library calls (some with a version in the
 * name). */
#define DECLARED(name, parameters) (void (*)(void)) name,
void (*const gdn_cu_declared[])(void);
void (*const gdn_cu_declared[])(void) = { GDN_CU_CALLS(DECLARED) };
