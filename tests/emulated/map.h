/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated driver's form of a tensor map: of 16 bits, four dimensions. */
#ifndef GDN_TESTS_EMULATED_MAP_H
#define GDN_TESTS_EMULATED_MAP_H

#include <cstdint>

struct emulated_map {
    char *data;
    uint64_t size[4], step[3]; /* step: bytes, of dimensions 1 to 3 */
    uint32_t box[4];
};

#endif
