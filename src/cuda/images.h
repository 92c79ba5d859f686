/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled device code inside the library; possibly none. */
#ifndef GDN_CUDA_IMAGES_H
#define GDN_CUDA_IMAGES_H

#include <stddef.h>

struct gdn_image {
    const char *name;
    const void *fatbin;
};

/* All images, up to a name of NULL. */
extern const struct gdn_image gdn_images[];

#endif
