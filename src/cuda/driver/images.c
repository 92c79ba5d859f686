/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Includes the images by the assembler. GDN_IMAGES: the folder that has them; without it this build
 * has no device code. GDN_IMAGE_CHIPS: the chips that they were compiled for. GDN_NO_SM_90A: Hopper
 * is none of these.
 */
#include "cuda/driver/images.h"

#ifdef GDN_IMAGES

#define EMBED(name)                                         \
    __asm__(".pushsection .rodata, \"a\"\n"                 \
            ".balign 64\n"                                  \
            ".hidden gdn_image_" #name "\n"                 \
            ".globl gdn_image_" #name "\n"                  \
            "gdn_image_" #name ":\n"                        \
            ".incbin \"" GDN_IMAGES "/" #name ".fatbin\"\n" \
            ".popsection\n");                               \
    extern const char gdn_image_##name[] __attribute__((visibility("hidden")));
#define EMBED_all(name) EMBED(name)
#define FATBIN_all(name) gdn_image_##name
#ifdef GDN_NO_SM_90A
#define EMBED_sm_90a(name)
#define FATBIN_sm_90a(name) NULL
#else
#define EMBED_sm_90a(name) EMBED(name)
#define FATBIN_sm_90a(name) gdn_image_##name
#endif

#define GDN_IMAGE(name, chips, source) EMBED_##chips(name)
#include "cuda/driver/kernels.def"

#else

#define FATBIN_all(name) NULL
#define FATBIN_sm_90a(name) NULL
#define GDN_IMAGE_CHIPS ""

#endif

const struct gdn_image gdn_images[GDN_N_IMAGES] = {
#define GDN_IMAGE(name, chips, source) { #name, GDN_CHIPS_##chips, FATBIN_##chips(name) },
#include "cuda/driver/kernels.def"
};

const char *const gdn_image_chips = GDN_IMAGE_CHIPS;
