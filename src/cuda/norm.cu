/* SPDX-License-Identifier: Apache-2.0 */
/*
 * L2 norm and gated RMSNorm: a warp per row, lanes element by element; the row is read twice, the
 * second time from a cache.
 */
#include "io.cuh"

/* Element 0 of row `row`, rows counted with the last leading dimension fastest. */
GDN_DEVICE int64_t row_start(const gdn_tensor &t, int64_t row)
{
    int64_t element = 0;
    for (int i = t.ndim - 2; i >= 0; i--) {
        element += row % t.size[i] * t.stride[i];
        row /= t.size[i];
    }
    return element;
}

GDN_DEVICE float row_scale(const struct gdn_cu_norm &a, float sum)
{
    switch (a.formula) {
    case GDN_NORM_L2: return 1 / sqrtf(sum + a.eps);
    case GDN_NORM_L2_ADD: return 1 / (sqrtf(sum) + a.eps);
    case GDN_NORM_L2_MAX: return 1 / fmaxf(sqrtf(sum), a.eps);
    default: return 1 / sqrtf(sum / (float)a.D + a.eps);
    }
}

GDN_DEVICE void norm_row(const struct gdn_cu_norm &a, int64_t row)
{
    const int     lane = threadIdx.x % 32;
    const int64_t x = row_start(a.x, row), z = row_start(a.z, row), out = row_start(a.out, row);
    float         sum = 0;
    for (int64_t i = lane; i < a.D; i += 32) {
        const float e = load_float(a.x.data, x + i, a.x.dtype);
        sum           = fmaf(e, e, sum);
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float scale = row_scale(a, sum);
    for (int64_t i = lane; i < a.D; i += 32) {
        float e = load_float(a.x.data, x + i, a.x.dtype) * scale;
        if (a.weight.data)
            e *= load_float(a.weight.data, i * a.weight.stride[0], a.weight.dtype);
        if (a.z.data) {
            const float gate = load_float(a.z.data, z + i, a.z.dtype);
            e *= (a.sigmoid ? 1 : gate) / (1 + expf(-gate));
        }
        store_float(a.out.data, out + i, a.out.dtype, e);
    }
}

#define GDN_KERNEL_norm(threads, shared, what)                                                \
    extern "C" __global__ void __launch_bounds__(threads)                                     \
        gdn_norm_##what(const __grid_constant__ struct gdn_cu_norm a)                         \
    {                                                                                         \
        const int64_t row = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;               \
        if (row < a.n_rows) norm_row(a, row);                                                 \
    }
#include "kernels.def"
