/* SPDX-License-Identifier: Apache-2.0 */
#include "compute/product.h"

#include <string.h>

#define JOIN_OF(a, b) a##b
#define JOIN(a, b) JOIN_OF(a, b)

/* product_4(), and where there is more, product_8() and product_16(): by floats in a register. */
#define LANES 4
#define TARGET
#include "compute/product_rows.inc"
#ifdef __x86_64__
#define LANES 8
#define TARGET __attribute__((target("avx2")))
#include "compute/product_rows.inc"
#define LANES 16
#define TARGET __attribute__((target("avx512f")))
#include "compute/product_rows.inc"
#endif

product_loop *product_select(const gdn_ctx *ctx)
{
#ifdef __x86_64__
    if (!strcmp(gdn_isa(ctx), "avx512")) return product_16;
    if (!strcmp(gdn_isa(ctx), "avx2")) return product_8;
#endif
    (void)ctx;
    return product_4;
}
