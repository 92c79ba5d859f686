/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled device code inside the library; possibly none. */
#ifndef GDN_CUDA_IMAGES_H
#define GDN_CUDA_IMAGES_H

#include <stddef.h>

/* The images, in the order of kernels.def. */
enum gdn_image_id {
#define GDN_IMAGE(name, chips, source) GDN_IMAGE_##name,
#include "cuda/driver/kernels.def"
    GDN_N_IMAGES
};

/* The chips of kernels.def: a compute capability as 10 major + minor, or 0 for all. */
enum { GDN_CHIPS_all = 0, GDN_CHIPS_sm_90a = 90 };

struct gdn_image {
    const char *name;
    int only;           /* GDN_CHIPS_... */
    const void *fatbin; /* NULL: not in this build. The first image is in each with device code. */
};
extern const struct gdn_image gdn_images[GDN_N_IMAGES];

/* The chips that images are compiled for, such as "80 90a 100 120 ptx"; "" if there is no device
 * code. */
extern const char *const gdn_image_chips;

#endif
