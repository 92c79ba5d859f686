/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of a gated RMSNorm, the formulas of src/ops/rmsnorm_gated_backward.c. A block has
 * some lines, which are read twice, the second time from a cache:
 *
 *     row     D to 256     4 to 32 lanes per line, a pack each
 *     long    D to 1024    a warp per line, four packs per lane
 *     wide    all          all threads have the same line
 *     sums    a warp per element of dweight adds up the blocks
 *
 * A lane adds up its elements in order, lanes are added by a tree: by D alone (G2). For dweight a
 * group of lanes adds its lines in order, groups are added in order, blocks by a tree (G3).
 */
#include "cuda/device/math.cuh"
#include "cuda/device/row_sums.cuh"
#include "cuda/rowwise/args.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* The address of element 0 of a line in each tensor. Those of absent tensors are not read. */
struct lines {
    char *x, *z, *dout, *dx, *dz;
};

GDN_DEVICE struct lines find_lines(const struct gdn_cu_rmsnorm_backward &a, int64_t line)
{
    const struct gdn_line at = find_line(a.leads, line);
    return { line_at(a.leads, a.x, at), line_at(a.leads, a.z, at), line_at(a.leads, a.dout, at),
             line_at(a.leads, a.dx, at), line_at(a.leads, a.dz, at) };
}

/* Eight elements of a line, from `first` on. n of them are there, all if n is 8 or more; the others
 * are zero. */
struct piece {
    int64_t first, n;
    float x[8], z[8], dout[8], w[8];
};

GDN_DEVICE void load(float (&y)[8], const struct gdn_cu_lines &l, const char *line,
                     const struct piece &p)
{
    struct gdn_pack x;
    load_pack(x, l.dtype, l.access, line + p.first * element_bytes(l.dtype), p.n);
    unpack(y, x, l.dtype);
}

GDN_DEVICE void store(const struct gdn_cu_lines &l, char *line, const struct piece &p, bool adds,
                      float (&y)[8])
{
    struct gdn_pack out;
    float old[8];
    if (adds) {
        load(old, l, line, p);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] += old[j];
    }
    pack(out, y, l.dtype);
    store_pack(line + p.first * element_bytes(l.dtype), out, l.dtype, l.access, p.n);
}

GDN_DEVICE void load_weight(const struct gdn_cu_rmsnorm_backward &a, struct piece &p)
{
#pragma unroll
    for (int j = 0; j < 8; j++) p.w[j] = j < p.n ? load_vector(a.weight, p.first + j, 1) : 0;
}

GDN_DEVICE void load_line(const struct gdn_cu_rmsnorm_backward &a, const struct lines &l,
                          struct piece &p)
{
    load(p.x, a.x, l.x, p);
    load(p.dout, a.dout, l.dout, p);
    if (a.z.data) load(p.z, a.z, l.z, p);
}

/* Returns x act(z). */
GDN_DEVICE float times_gate(const struct gdn_cu_rmsnorm_backward &a, float x, float z)
{
    if (!a.z.data) return x;
    return a.sigmoid ? times_sigmoid(x, z) : x * silu(z);
}

/* Returns act'(z). The slope of z sigmoid(z) is sigmoid(z) (1 + z sigmoid(-z)). */
GDN_DEVICE float slope(const struct gdn_cu_rmsnorm_backward &a, float z)
{
    if (a.sigmoid) return times_sigmoid(sigmoid(-z), z);
    return is_infinite(z) ? z > 0 : sigmoid(z) * (1 + z * sigmoid(-z));
}

/* Sums of a line: of x x and of x e, where e = dout w act(z). Then dx = of_e e + of_x x. */
struct sums {
    float xx, xe;
};
struct factors {
    float of_e, of_x;
};

GDN_DEVICE void add_products(const struct gdn_cu_rmsnorm_backward &a, const struct piece &p,
                             struct sums &s)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s.xx = fmaf(p.x[j], p.x[j], s.xx);
        s.xe = fmaf(p.x[j], times_gate(a, p.dout[j] * p.w[j], p.z[j]), s.xe);
    }
}

GDN_DEVICE struct factors find_factors(const struct gdn_cu_rmsnorm_backward &a,
                                       const struct sums &s)
{
    const float r = 1 / sqrtf(s.xx / (float)a.D + a.eps);
    return { r, -(r * (s.xe / (float)a.D)) * (r * r) };
}

/* Writes a piece of dx and of dz, and adds its part of dweight to sum. */
GDN_DEVICE void write_piece(const struct gdn_cu_rmsnorm_backward &a, const struct lines &l,
                            const struct piece &p, const struct factors &f, float (&sum)[8])
{
    float y[8];
    if (a.dx.data) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] = fmaf(f.of_x, p.x[j], f.of_e * times_gate(a, p.dout[j] * p.w[j], p.z[j]));
        store(a.dx, l.dx, p, a.adds, y);
    }
    if (a.dz.data) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] = p.dout[j] * (p.x[j] * f.of_e) * (p.w[j] * slope(a, p.z[j]));
        store(a.dz, l.dz, p, a.adds, y);
    }
    if (!a.sums) return;
#pragma unroll
    for (int j = 0; j < 8; j++) sum[j] += times_gate(a, p.dout[j] * (p.x[j] * f.of_e), p.z[j]);
}

/* ---- Lines of some lanes ------------------------------------------------------------------- */

/* Adds up the parts of dweight of all groups of lanes. A lane of a group has PACKS packs. */
template <int PACKS>
GDN_DEVICE void store_sums(const struct gdn_cu_rmsnorm_backward &a, const float (&sum)[PACKS][8])
{
    __shared__ float all[THREADS * PACKS * GDN_PACK];
    const int lane = threadIdx.x & (a.lanes - 1), wide = a.lanes * PACKS * GDN_PACK;
    const int own = (threadIdx.x - lane) * PACKS * GDN_PACK + lane * GDN_PACK;
#pragma unroll
    for (int i = 0; i < PACKS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) all[own + i * a.lanes * GDN_PACK + j] = sum[i][j];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.D; i += THREADS) {
        float y = 0;
        for (int at = (int)i; at < THREADS * PACKS * GDN_PACK; at += wide) y += all[at];
        a.sums[blockIdx.x * a.D + i] = y;
    }
}

/* Writes the lines of a block. Groups of lanes take turns. Lanes without a line take part. */
template <int PACKS> GDN_DEVICE void write_lines(const struct gdn_cu_rmsnorm_backward &a)
{
    const int lane = threadIdx.x & (a.lanes - 1), group = threadIdx.x / a.lanes;
    const int64_t first = blockIdx.x * a.rows;
    const int64_t end = a.n_lines - first < a.rows ? a.n_lines : first + a.rows;
    float sum[PACKS][8] = {};
    struct piece p[PACKS] = {};
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        p[i].first = (i * a.lanes + lane) * GDN_PACK;
        p[i].n = a.D - p[i].first;
        load_weight(a, p[i]);
    }
    for (int64_t line = first; line < end; line += THREADS / a.lanes) {
        const bool is_there = line + group < end;
        const struct lines l = find_lines(a, is_there ? line + group : 0);
        struct sums s = { 0, 0 };
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            p[i].n = is_there ? a.D - p[i].first : 0;
            load_line(a, l, p[i]);
            add_products(a, p[i], s);
        }
        s.xx = sum_lanes(s.xx, a.lanes), s.xe = sum_lanes(s.xe, a.lanes);
        const struct factors f = find_factors(a, s);
#pragma unroll
        for (int i = 0; i < PACKS; i++) write_piece(a, l, p[i], f, sum[i]);
    }
    if (a.sums) store_sums<PACKS>(a, sum);
}

GDN_DEVICE void rmsnorm_backward_row(const struct gdn_cu_rmsnorm_backward &a) { write_lines<1>(a); }
GDN_DEVICE void rmsnorm_backward_long(const struct gdn_cu_rmsnorm_backward &a)
{
    write_lines<4>(a);
}

/* ---- Lines of a block ---------------------------------------------------------------------- */

/* Adds to sums in memory. A thread has the same elements in every line, so threads do not share
 * sums. */
GDN_DEVICE void add_to_sums(const struct gdn_cu_rmsnorm_backward &a, const struct piece &p,
                            const float (&sum)[8], bool is_first)
{
    float *to = a.sums + blockIdx.x * a.D + p.first;
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < p.n) to[j] = is_first ? sum[j] : to[j] + sum[j];
}

GDN_DEVICE void rmsnorm_backward_wide(const struct gdn_cu_rmsnorm_backward &a)
{
    __shared__ float sums[2][32];
    const int64_t first = blockIdx.x * a.rows, own = threadIdx.x * GDN_PACK;
    const int64_t end = a.n_lines - first < a.rows ? a.n_lines : first + a.rows;
    struct piece p = {};
    for (int64_t line = first; line < end; line++) {
        const struct lines l = find_lines(a, line);
        struct sums s = { 0, 0 };
        for (p.first = own; p.first < a.D; p.first += THREADS * GDN_PACK) {
            p.n = a.D - p.first;
            load_weight(a, p);
            load_line(a, l, p);
            add_products(a, p, s);
        }
        s.xx = sum_block(s.xx, sums[0]), s.xe = sum_block(s.xe, sums[1]);
        const struct factors f = find_factors(a, s);
        for (p.first = own; p.first < a.D; p.first += THREADS * GDN_PACK) {
            float sum[8] = {};
            p.n = a.D - p.first;
            load_weight(a, p);
            load_line(a, l, p);
            write_piece(a, l, p, f, sum);
            if (a.sums) add_to_sums(a, p, sum, line == first);
        }
    }
}

GDN_DEVICE void rmsnorm_backward_sums(const struct gdn_cu_rmsnorm_backward &a)
{
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (i < a.D) add_blocks(a.dweight, i, a.sums + i, a.n_blocks, a.D, a.adds);
}

/* The blocks that a multiprocessor has at once, which registers limit. */
enum { BUSY_row = 2, BUSY_long = 1, BUSY_wide = 2, BUSY_sums = 4 };

#define GDN_IMAGE_rmsnorm_backward GDN_THIS_IMAGE
#define GDN_KERNEL_rmsnorm_backward(threads, shared, form)                                    \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##form)                        \
        gdn_rmsnorm_backward_##form(const __grid_constant__ struct gdn_cu_rmsnorm_backward a) \
    {                                                                                         \
        rmsnorm_backward_##form(a);                                                           \
    }
#include "cuda/driver/kernels.cuh"
