/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the library's images: the emulated driver has the kernels itself. */
#include "cuda/images.h"

enum { CHIPS_all = 0, CHIPS_sm_90a = 90 };

const struct gdn_image gdn_images[GDN_N_IMAGES] = {
#define GDN_IMAGE(name, chips) { #name, CHIPS_##chips, "" },
#include "cuda/kernels.def"
};
