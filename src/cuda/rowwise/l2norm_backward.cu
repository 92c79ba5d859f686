/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of an L2 norm. A line is read twice, the second time from a cache.
 *
 *     row    D to 1024    4 to 32 lanes per line, up to four packs each
 *     wide   all          a block per line
 *
 * A lane adds up its elements in order, lanes are added by a tree: by D alone (G2).
 */
#include "cuda/device/lines.cuh"
#include "cuda/rowwise/args.h"

/* The factors of dx = of_dout dout + of_x x, which follow from the sums of x x and of x dout. */
struct factors {
    float of_dout, of_x;
};

GDN_DEVICE struct factors find_factors(const struct gdn_cu_l2norm_backward &a, float xx, float xd)
{
    const float length = sqrtf(xx);
    float scale, slope; /* slope x is the gradient of the divisor */
    if (a.formula == GDN_NORM_L2_ADD) {
        scale = 1 / (length + a.eps);
        slope = length > 0 ? 1 / length : 0;
    } else if (a.formula == GDN_NORM_L2_MAX) {
        scale = 1 / fmaxf(length, a.eps);
        slope = length >= a.eps ? scale : 0;
    } else {
        scale = 1 / sqrtf(xx + a.eps);
        slope = scale;
    }
    const struct factors f = { scale, -(scale * xd) * (scale * slope) };
    return f;
}

GDN_DEVICE void load(float (&y)[8], const struct gdn_cu_lines &l, const char *line, int64_t first,
                     int64_t n)
{
    struct gdn_pack x;
    load_pack(x, l.dtype, l.access, line + first * element_bytes(l.dtype), n);
    unpack(y, x, l.dtype);
}

/* Computes lines, each by `lanes` threads of a warp, or by a block. */
template <bool BLOCK> GDN_DEVICE void l2norm_backward(const struct gdn_cu_l2norm_backward &a)
{
    __shared__ float sums[2][32];
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int lanes = BLOCK ? blockDim.x : a.lanes;
    const int64_t line = BLOCK ? blockIdx.x : thread >> (31 - __clz(lanes));
    const int64_t D = line < a.n_lines ? a.D : 0; /* lanes without a line take part */
    const int64_t own = (threadIdx.x & (lanes - 1)) * GDN_PACK, step = lanes * GDN_PACK;
    const struct gdn_line at = find_line(a.leads, D ? line : 0);
    const char *const x_line = line_at(a.leads, a.x, at);
    const char *const d_line = line_at(a.leads, a.dout, at);
    char *const to = line_at(a.leads, a.dx, at);
    float x[8], d[8], xx = 0, xd = 0;
    for (int64_t i = own; i < D; i += step) {
        load(x, a.x, x_line, i, D - i);
        load(d, a.dout, d_line, i, D - i);
#pragma unroll
        for (int j = 0; j < 8; j++) xx = fmaf(x[j], x[j], xx), xd = fmaf(x[j], d[j], xd);
    }
    xx = BLOCK ? sum_block(xx, sums[0]) : sum_lanes(xx, lanes);
    xd = BLOCK ? sum_block(xd, sums[1]) : sum_lanes(xd, lanes);
    const struct factors f = find_factors(a, xx, xd);
    for (int64_t i = own; i < D; i += step) {
        struct gdn_pack out;
        float old[8];
        load(x, a.x, x_line, i, D - i);
        load(d, a.dout, d_line, i, D - i);
        if (a.adds) load(old, a.dx, to, i, D - i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            d[j] = fmaf(f.of_x, x[j], f.of_dout * d[j]);
            if (a.adds) d[j] += old[j];
        }
        pack(out, d, a.dx.dtype);
        store_pack(to + i * element_bytes(a.dx.dtype), out, a.dx.dtype, a.dx.access, D - i);
    }
}

GDN_DEVICE void l2norm_backward_row(const struct gdn_cu_l2norm_backward &a)
{
    l2norm_backward<false>(a);
}
GDN_DEVICE void l2norm_backward_wide(const struct gdn_cu_l2norm_backward &a)
{
    l2norm_backward<true>(a);
}

#define GDN_IMAGE_l2norm_backward GDN_THIS_IMAGE
#define GDN_KERNEL_l2norm_backward(threads, shared, form)                                   \
    extern "C" __global__ void __launch_bounds__(threads)                                   \
        gdn_l2norm_backward_##form(const __grid_constant__ struct gdn_cu_l2norm_backward a) \
    {                                                                                       \
        l2norm_backward_##form(a);                                                          \
    }
#include "cuda/driver/kernels.cuh"
