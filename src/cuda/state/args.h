/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels that copy states. */
#ifndef GDN_CUDA_STATE_ARGS_H
#define GDN_CUDA_STATE_ARGS_H

#include "cuda/driver/args.h"

/* One side of gdn_state_copy; steps in bytes. */
struct gdn_cu_copy_side {
    char *data; /* NULL: absent */
    int64_t n_slots, slot, step[3];
    float *scales; /* of states of 8 bits: [slot][head][V], steps in elements */
    int64_t scales_slot, scales_head;
    int32_t dtype;
    int32_t access; /* bytes of lines that move at once, see gdn_cu_lines */
};
GDN_CU_SIZE(gdn_cu_copy_side, 80);

/* The arguments of gdn_state_copy. Each pair of slots has a box of elements to copy. Its dimensions
 * are merged where strides allow, and the last one lies side by side in `to`, if one does. */
struct gdn_cu_copy {
    struct gdn_cu_copy_side from, to;
    struct gdn_cu_array from_slots, to_slots;
    int64_t size[3];
    int64_t n_old, n_pairs, n_units; /* n_old: the first of dimension old_dim, which become zero;
                                        n_units: of a pair, see state_copy.cu */
    uint64_t seed;                   /* of random rounding */
    int32_t old_dim, turned;         /* turned: the dimension that lies side by side in `from`; -1:
                                        none */
    int32_t same_pool, random;
    int32_t high, wide; /* log2 of a tile's sides, along `turned` and along the last */
};
GDN_CU_SIZE(gdn_cu_copy, 2 * 80 + 2 * 32 + 6 * 8 + 8 + 24);

#endif
