/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the kernels of one image. The file that has said
 *
 *     #define GDN_IMAGE_norm GDN_THIS_IMAGE
 *     #define GDN_KERNEL_norm(threads, shared, form) ...
 *
 * for itself and for each of its stems includes this at its end: the rows of kernels.def that
 * are of this image become GDN_KERNEL_<stem>(threads, shared, parameters...), the others nothing.
 * The build says the first line too, so a source of several images leaves it out.
 */
#define GDN_SKIP_KERNEL(...)
#define GDN_MAKE_KERNEL(threads, shared, stem, ...) GDN_KERNEL_##stem(threads, shared, __VA_ARGS__)

/* GDN_THIS_IMAGE brings a comma, so GDN_MAKE_KERNEL becomes the second argument, in the place of
 * GDN_SKIP_KERNEL. */
#define GDN_THIS_IMAGE , GDN_MAKE_KERNEL
#define GDN_SECOND(a, b, ...) b
#define GDN_PICK(...) GDN_SECOND(__VA_ARGS__)
#define GDN_KERNEL(image, ...) GDN_PICK(GDN_IMAGE_##image, GDN_SKIP_KERNEL, )(__VA_ARGS__)
#include "cuda/driver/kernels.def"
