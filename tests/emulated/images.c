/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the library's images: the emulated driver has the kernels itself, and that of
 * fake_cuda.c none; it looks whether an image begins as a fat binary does. */
#include "cuda/driver/images.h"

const struct gdn_image gdn_images[GDN_N_IMAGES] = {
#define GDN_IMAGE(name, chips, source) { #name, GDN_CHIPS_##chips, "\x50\xed\x55\xba" },
#include "cuda/driver/kernels.def"
};

const char *const gdn_image_chips = "80 90a 100 120 ptx";
