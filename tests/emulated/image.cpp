/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles the image EMULATED_IMAGE for this processor, and lists its kernels by name. */
#include "run.h"

enum { HOPPER_BLOCKS = 1 }; /* of a cluster, where the image says nothing */

/* Images for Hopper are one source in several forms, so what they define is of each alone. */
#ifdef EMULATED_HOPPER
#include "hopper.h"
namespace
{
#endif

#include EMULATED_IMAGE

#define JOIN(...) SEVENTH(__VA_ARGS__, JOIN6, JOIN5, JOIN4, JOIN3, )(__VA_ARGS__)
#define SEVENTH(a, b, c, d, e, f, join, ...) join
#define JOIN3(a, b, c) a##_##b##_##c
#define JOIN4(a, b, c, d) a##_##b##_##c##_##d
#define JOIN5(a, b, c, d, e) a##_##b##_##c##_##d##_##e
#define JOIN6(a, b, c, d, e, f) a##_##b##_##c##_##d##_##e##_##f
#define ADD(...) ADD_(__VA_ARGS__)
#define ADD_(name) static emulated_kernel of_##name(#name, name, HOPPER_BLOCKS);

/* The rows of this image once more, see kernels.cuh. */
#undef GDN_MAKE_KERNEL
#define GDN_MAKE_KERNEL(threads, shared, ...) ADD(JOIN(gdn, __VA_ARGS__))
#define GDN_KERNEL(image, ...) GDN_PICK(GDN_IMAGE_##image, GDN_SKIP_KERNEL, )(__VA_ARGS__)
#include "cuda/driver/kernels.def"

#ifdef EMULATED_HOPPER
}
#endif
