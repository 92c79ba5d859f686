/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill on Hopper: what its host part and its kernels agree on. */
#ifndef GDN_CUDA_PREFILL_HOPPER_H
#define GDN_CUDA_PREFILL_HOPPER_H

#include "args.h"

#ifdef __cplusplus
#define GDN_CU_ALIGNED(bytes) alignas(bytes)
#else
#define GDN_CU_ALIGNED(bytes) _Alignas(bytes)
#endif

/* CUtensorMap */
struct gdn_cu_map {
    GDN_CU_ALIGNED(64) uint64_t words[16];
};

/* Tensors as columns, heads, tokens, rows of the batch; a tile is 64 columns of 64 tokens. */
struct gdn_cu_prefill_hopper {
    struct gdn_cu_map  q, k, v, out;
    struct gdn_cu_rule rule;
    int32_t            by_number; /* as in struct gdn_cu_prefill */
    int32_t            pad[11];
};
GDN_CU_SIZE(gdn_cu_map, 128);
GDN_CU_SIZE(gdn_cu_prefill_hopper, 4 * 128 + sizeof(struct gdn_cu_rule) + 48);

#endif
