/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images as the assembler includes them. GDN_IMAGES is the folder they were built in; without
 * it this build has no device code.
 */
#include "cuda/driver/images.h"

#ifdef GDN_IMAGES

#define GDN_IMAGE(name, chips, loaded, source)                                                \
    __asm__(".pushsection .rodata, \"a\"\n"                                                   \
            ".balign 64\n"                                                                    \
            ".hidden gdn_image_" #name "\n"                                                   \
            ".globl gdn_image_" #name "\n"                                                    \
            "gdn_image_" #name ":\n"                                                          \
            ".incbin \"" GDN_IMAGES "/" #name ".fatbin\"\n"                                   \
            ".popsection\n");                                                                 \
    extern const char gdn_image_##name[] __attribute__((visibility("hidden")));
#include "cuda/driver/kernels.def"

#define FATBIN(name) gdn_image_##name

#else

#define FATBIN(name) NULL

#endif

const struct gdn_image gdn_images[GDN_N_IMAGES] = {
#define GDN_IMAGE(name, chips, loaded, source) \
    { #name, GDN_CHIPS_##chips, GDN_IMAGE_##loaded, FATBIN(name) },
#include "cuda/driver/kernels.def"
};
