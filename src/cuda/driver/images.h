/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled device code inside the library; possibly none. */
#ifndef GDN_CUDA_IMAGES_H
#define GDN_CUDA_IMAGES_H

#include <stddef.h>

/* The images, in the order of kernels.def. */
enum gdn_image_id {
#define GDN_IMAGE(name, chips, loaded, source) GDN_IMAGE_##name,
#include "cuda/driver/kernels.def"
    GDN_N_IMAGES
};

/* The names of chips in kernels.def: a compute capability, 10 major + minor; 0: all. */
enum { GDN_CHIPS_all = 0, GDN_CHIPS_sm_90a = 90 };

/* When an image is loaded. */
enum gdn_image_loaded { GDN_IMAGE_at_start, GDN_IMAGE_on_use };

struct gdn_image {
    const char           *name;
    int                   only; /* GDN_CHIPS_... */
    enum gdn_image_loaded loaded;
    const void           *fatbin; /* NULL: this build has no device code */
};
extern const struct gdn_image gdn_images[GDN_N_IMAGES];

#endif
