/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled device code inside the library; possibly none. */
#ifndef GDN_CUDA_IMAGES_H
#define GDN_CUDA_IMAGES_H

#include <stddef.h>

/* The images, in the order of kernels.def. */
enum gdn_image_id {
#define GDN_IMAGE(name, chips) GDN_IMAGE_##name,
#include "kernels.def"
    GDN_N_IMAGES
};

struct gdn_image {
    const char *name;
    int         only;   /* the compute capability that it is for, 10 major + minor; 0: all */
    const void *fatbin; /* NULL: this build has no device code */
};
extern const struct gdn_image gdn_images[GDN_N_IMAGES];

#endif
