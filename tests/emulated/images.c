/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the library's images: the emulated driver has the kernels itself. */
#include "cuda/images.h"

const struct gdn_image gdn_images[GDN_N_IMAGES] = {
#define GDN_IMAGE(name, chips) { #name, 0, "" },
#include "cuda/kernels.def"
};
