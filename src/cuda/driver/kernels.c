/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of kernels.def, as the host reads them. */
#include "cuda/driver/launch.h"
#include "cuda/driver/shared_bytes.h"

#define TEXT(x) #x
#define TEXT_OF(name) TEXT(name)

static const struct kernel_row {
    const char *name;
    enum gdn_image_id image;
    int threads, shared_bytes; /* shared_bytes: dynamic, at most */
} rows[GDN_N_KERNELS + 1] = {
#define GDN_KERNEL(image, threads, shared, ...) \
    { TEXT_OF(GDN_CU_JOIN(gdn, __VA_ARGS__)), GDN_IMAGE_##image, threads, shared },
#include "cuda/driver/kernels.def"
    [GDN_CU_cublas] = { .name = "cublas" },
};

const char *gdn_cuda_kernel_name(enum gdn_kernel_id kernel) { return rows[kernel].name; }

enum gdn_image_id gdn_cuda_kernel_image(enum gdn_kernel_id kernel) { return rows[kernel].image; }

int gdn_cuda_kernel_threads(enum gdn_kernel_id kernel) { return rows[kernel].threads; }

int gdn_cuda_kernel_shared(enum gdn_kernel_id kernel) { return rows[kernel].shared_bytes; }
