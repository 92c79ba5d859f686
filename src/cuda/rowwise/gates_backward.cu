/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of gdn_gates, in two kernels that follow each other:
 *
 *     rows   a block has some lines of 32 heads: a lane is a head, its eight warps take turns. What
 *            A_log and dt_bias get is added up over its lines.
 *     sums   a warp per element of dA_log and ddt_bias adds up the blocks
 *
 * A warp adds its lines in order, warps are added in order, blocks by a tree (G3).
 */
#include "cuda/device/math.cuh"
#include "cuda/device/row_sums.cuh"
#include "cuda/rowwise/args.h"

enum { WARPS = 8 };

/* The inputs of a head, and the gradients of its A_log and dt_bias. */
struct head {
    float A, dt, dA_log, ddt_bias;
};

/* Returns gradient x, or zero if the gradient is zero, even if x is infinite. */
GDN_DEVICE float times(float gradient, float x)
{
    return gradient == 0 && is_infinite(x) ? 0 : gradient * x;
}

/* Returns da from dg, by the formulas of src/ops/gates_backward.c. */
GDN_DEVICE float gate_gradient(const struct gdn_cu_gates_backward &a, struct head &h, float x,
                               float dg)
{
    float g, slope;
    x += h.dt;
    if (a.bound < 0) {
        g = times_sigmoid(a.bound, h.A * x);
        slope = h.A * (g * sigmoid(-(h.A * x)));
    } else {
        g = -h.A * softplus(x);
        slope = times_sigmoid(-h.A, x);
    }
    if (a.linear) dg *= expf(g);
    const float da = times(dg, slope);
    h.dA_log += a.bound < 0 ? times(da, x) : times(dg, g);
    h.ddt_bias += da;
    return da;
}

GDN_DEVICE float load(const struct gdn_cu_gates_backward &a, const struct gdn_cu_lines &l,
                      struct gdn_line at, int64_t head)
{
    return load_float(line_at(a.leads, l, at), head * l.element, l.dtype);
}

GDN_DEVICE void store(const struct gdn_cu_gates_backward &a, const struct gdn_cu_lines &l,
                      struct gdn_line at, int64_t head, float x)
{
    if (a.adds) x += load(a, l, at, head);
    store_float(line_at(a.leads, l, at), head * l.element, l.dtype, x);
}

/* Returns the sums of a block: dA_log [H], then ddt_bias [H] or [H][K]. */
GDN_DEVICE int64_t n_sums(const struct gdn_cu_gates_backward &a)
{
    return a.H * (a.K ? 1 + a.K : 2);
}

/* Writes a head of one line. */
GDN_DEVICE void write_line(const struct gdn_cu_gates_backward &a, struct head &h, int64_t line,
                           int64_t head)
{
    const struct gdn_line at = find_line(a.leads, line);
    if (a.wants_a) {
        const float da = gate_gradient(a, h, load(a, a.a, at, head), load(a, a.dg, at, head));
        if (a.da.data) store(a, a.da, at, head, da);
    }
    if (a.db.data) {
        const float b = load(a, a.b, at, head);
        store(a, a.db, at, head,
              load(a, a.dbeta, at, head) * (times_sigmoid(a.factor, b) * sigmoid(-b)));
    }
}

/* Writes the channels of head blockIdx.y in the block's lines. A lane has every 32nd channel. */
GDN_DEVICE void write_channels(const struct gdn_cu_gates_backward &a)
{
    __shared__ float sums[2][WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t head = blockIdx.y, first = blockIdx.x * a.rows;
    const int64_t end = a.n_lines - first < a.rows ? a.n_lines : first + a.rows;
    const int64_t skip = head - first % a.H, start = first + (skip < 0 ? skip + a.H : skip);
    float *const block = a.sums + blockIdx.x * n_sums(a);
    float dA_log = 0;
    for (int x = 0; x < a.K; x += 32) {
        const int channel = x + lane;
        struct head h = { expf(load_vector(a.A_log, head, 0)), 0, 0, 0 };
        if (channel < a.K) {
            h.dt = load_float(a.dt_bias.data,
                              head * a.dt_bias.stride[0] + channel * a.dt_bias.stride[1],
                              a.dt_bias.dtype);
            for (int64_t line = start + warp * a.H; line < end; line += WARPS * a.H)
                write_line(a, h, line, channel);
        }
        sums[0][warp][lane] = h.dA_log;
        sums[1][warp][lane] = h.ddt_bias;
        __syncthreads();
        if (a.sums && warp < 2) {
            float sum = 0;
            for (int i = 0; i < WARPS; i++) sum += sums[warp][i][lane];
            if (warp == 1 && channel < a.K) block[a.H + head * a.K + channel] = sum;
            dA_log += sum;
        }
        __syncthreads();
    }
    dA_log = sum_lanes(dA_log, 32);
    if (a.sums && threadIdx.x == 0) block[head] = dA_log;
}

GDN_DEVICE void gates_backward_rows(const struct gdn_cu_gates_backward &a)
{
    if (a.K) {
        write_channels(a);
        return;
    }
    __shared__ float sums[2][WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t head = (int64_t)blockIdx.y * 32 + lane, first = blockIdx.x * a.rows;
    const int64_t end = a.n_lines - first < a.rows ? a.n_lines : first + a.rows;
    struct head h = { 0, 0, 0, 0 };
    if (head < a.H) {
        if (a.wants_a) {
            h.A = expf(load_vector(a.A_log, head, 0));
            h.dt = load_vector(a.dt_bias, head, 0);
        }
        for (int64_t line = first + warp; line < end; line += WARPS) write_line(a, h, line, head);
    }
    if (!a.sums) return;
    sums[0][warp][lane] = h.dA_log;
    sums[1][warp][lane] = h.ddt_bias;
    __syncthreads();
    if (warp < 2 && head < a.H) {
        float sum = 0;
        for (int i = 0; i < WARPS; i++) sum += sums[warp][i][lane];
        a.sums[(blockIdx.x * 2 + warp) * a.H + head] = sum;
    }
}

GDN_DEVICE void gates_backward_sums(const struct gdn_cu_gates_backward &a)
{
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, n = n_sums(a);
    const bool is_bias = i >= a.H;
    struct gdn_cu_array to = is_bias ? a.ddt_bias : a.dA_log;
    int64_t element = is_bias ? i - a.H : i;
    if (i >= n || !to.data) return;
    if (is_bias && a.K) { /* [H][K] */
        const int64_t head = divide(element, a.K);
        element -= head * a.K;
        to.data = (const float *)to.data + head * to.stride[0];
        to.stride[0] = to.stride[1];
    }
    add_blocks(to, element, a.sums + i, a.n_blocks, n, a.adds);
}

#define GDN_IMAGE_gates_backward GDN_THIS_IMAGE
#define GDN_KERNEL_gates_backward(threads, shared, form)                                  \
    extern "C" __global__ void __launch_bounds__(threads)                                 \
        gdn_gates_backward_##form(const __grid_constant__ struct gdn_cu_gates_backward a) \
    {                                                                                     \
        gates_backward_##form(a);                                                         \
    }
#include "cuda/driver/kernels.cuh"
