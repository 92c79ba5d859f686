/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes of 8-bit states in numbers. Calls with a constant dtype are constants. */
#ifndef GDN_CPU_Q8_FORMAT_H
#define GDN_CPU_Q8_FORMAT_H

#include <stdint.h>

#include "gdn.h"

/*
 * Floats of 8 bits lie in the upper bits of a float32 whose exponents are `bias` higher. Below
 * `least`, the smallest normal number, codes count steps of the last place of `magic`, which are
 * 2^-shift of a unit of x `fixed`.
 */
struct q8_format {
    int shift;      /* bits of a float32 behind the last place of a code */
    uint32_t bias;  /* 2^23 of the exponents' difference */
    uint32_t least; /* as bits of a float32 */
    float fixed;
    float magic;
    uint32_t magic_bits;
};

static inline struct q8_format q8_format_of(const int dtype)
{
    return dtype == GDN_E4M3
               ? (struct q8_format){ 20, 120u << 23, 121u << 23, 0x1p29f, 0x1p14f, 141u << 23 }
               : (struct q8_format){ 21, 112u << 23, 113u << 23, 0x1p37f, 0x1p7f, 134u << 23 };
}

/* Returns the largest value of a code. */
static inline float q8_most(const int dtype)
{
    return dtype == GDN_I8 ? 127 : dtype == GDN_E4M3 ? 448 : 57344;
}

enum { Q8_NAN = 127 }; /* the code of a NaN, in floats without scales */

#endif
