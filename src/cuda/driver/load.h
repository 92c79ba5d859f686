/* SPDX-License-Identifier: Apache-2.0 */
/* Device code: which code a device runs, and how it is loaded. */
#ifndef GDN_CUDA_LOAD_H
#define GDN_CUDA_LOAD_H

#include "cuda/driver/launch.h"

/* Loads the smallest image and finds out which code the driver takes from images; sets chips. */
gdn_status gdn_cuda_find_code(gdn_ctx *ctx);

/* Returns true if the device runs the image: it is loaded, or this build has code of it for the
 * device. */
bool gdn_cuda_has_image(const struct gdn_cuda *c, enum gdn_image_id image);

/* Loads a kernel, and its image before its first kernel. A graph may be captured from a stream
 * meanwhile. */
gdn_status gdn_cuda_load(gdn_ctx *ctx, enum gdn_kernel_id kernel);

#endif
