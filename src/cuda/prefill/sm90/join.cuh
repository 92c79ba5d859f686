/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins the maps of a sequence's units (ranges.cuh) to the map of the sequence, for gdn_summary, in
 * float32. M is what becomes of a state that begins as the identity, so both U and M are
 *
 *     S <- M S + U    from unit to unit, where U of a column of M is zero
 *
 * Gradients of states pass units from the last to the first, by transposed M: J <- M^T J + D.
 *
 * A block has 32 columns of U or of M, four of them in a warp, which alone needs them: a thread has
 * four keys of these. M passes through shared memory, 32 of its columns at once. A unit that forgets
 * begins anew, so units before the last such one are not read.
 */
#ifndef GDN_CUDA_PREFILL_JOIN_CUH
#define GDN_CUDA_PREFILL_JOIN_CUH

#include "cuda/device/ptx_wgmma.cuh"
#include "cuda/prefill/sm90/segments.cuh"

enum { JOIN_COLUMNS = GDN_JOIN_COLUMNS, JOIN_KEYS = 128, JOIN_WARPS = 8, JOIN_TILE = 32 };

struct join_shared {
    alignas(16) float M[2][JOIN_TILE][JOIN_KEYS]; /* [column][key] */
    alignas(16) float S[JOIN_WARPS][JOIN_KEYS][4];
};

static_assert(sizeof(struct join_shared) <= GDN_JOIN_BYTES, "join_shared");

/* The values that a block holds. */
struct join_block {
    const struct gdn_cu_prefill_sm90 &a;
    struct join_shared &sh;
    int64_t first, n;            /* the first unit, and the number of units */
    int head, column, n_columns; /* the warp's first column, of U or of M */
    bool of_M;
};

/* Returns the number of unit i, in the order in which a state, or its gradient, passes units. */
GDN_DEVICE int64_t unit_at(const struct join_block &b, int64_t i)
{
    return b.first + (b.a.back ? b.n - 1 - i : i);
}

/* Returns the last unit that forgets, or -1. All threads of a warp call it. */
GDN_DEVICE int64_t last_forgetting(const struct join_block &b)
{
    const int64_t lane = threadIdx.x % 32;
    for (int64_t end = b.n - 1; end >= 0; end -= 32) {
        const int64_t u = unit_at(b, clamp64(end - lane, 0, end));
        const uint32_t *mark = b.a.cut.marks + (u * b.a.rule.H + b.head) * 2;
        const unsigned some =
            __ballot_sync(0xffffffff, ((mark[0] | mark[1]) & GDN_SEGMENT_FORGETS) != 0);
        if (some) return max(end - (__ffs((int)some) - 1), (int64_t)0);
    }
    return -1;
}

/* Loads the lane's keys of the warp's columns, of U or M of unit i; zeros where there are none. */
GDN_DEVICE void load_map_columns(float4 (&x)[4], const struct join_block &b, int64_t i)
{
    const struct gdn_cu_rule &r = b.a.rule;
    const float *from = b.of_M ? b.a.cut.M : b.a.cut.states;
    const int k = threadIdx.x % 32 * 4;
    from += (unit_at(b, i) * r.H + b.head) * b.n_columns * r.K + k;
#pragma unroll
    for (int v = 0; v < 4; v++)
        x[v] = k < r.K && b.column + v < b.n_columns
                   ? *(const float4 *)(from + (b.column + v) * r.K)
                   : make_float4(0, 0, 0, 0);
}

/* Begins to copy tile t of M, counted from the first tile of unit `start`; zeros beyond K. */
GDN_DEVICE void copy_tile_of_M(const struct join_block &b, int64_t start, int64_t t, int per_unit)
{
    const int K = b.a.rule.K, y0 = (int)(t % per_unit) * JOIN_TILE;
    const int64_t i = start + t / per_unit;
    const float *from = b.a.cut.M + (unit_at(b, i) * b.a.rule.H + b.head) * K * K;
    if (i < b.n)
        for (int e = threadIdx.x; e < JOIN_TILE * JOIN_KEYS / 4; e += 32 * JOIN_WARPS) {
            const int y = e / (JOIN_KEYS / 4), x = e % (JOIN_KEYS / 4) * 4;
            const bool there = y0 + y < K && x < K;
            copy_async<16>(shared_address(&b.sh.M[t % 2][y][x]),
                           from + (there ? (y0 + y) * K + x : 0), there ? 16 : 0);
        }
    copy_commit();
}

GDN_DEVICE void add_scaled(float4 &sum, const float4 &m, float x)
{
    sum.x = fmaf(m.x, x, sum.x);
    sum.y = fmaf(m.y, x, sum.y);
    sum.z = fmaf(m.z, x, sum.z);
    sum.w = fmaf(m.w, x, sum.w);
}

/* Adds a tile of M times S to sum. The tile's columns begin at y0. */
GDN_DEVICE void add_tile(float4 (&sum)[4], const float (&M)[JOIN_TILE][JOIN_KEYS],
                         const float (&S)[JOIN_KEYS][4], int y0)
{
    const int k = threadIdx.x % 32 * 4;
#pragma unroll 8
    for (int y = 0; y < JOIN_TILE; y++) {
        const float4 m = *(const float4 *)&M[y][k], s = *(const float4 *)S[y0 + y];
        add_scaled(sum[0], m, s.x);
        add_scaled(sum[1], m, s.y);
        add_scaled(sum[2], m, s.z);
        add_scaled(sum[3], m, s.w);
    }
}

/* Stores the warp's columns for the lanes that read them next. */
GDN_DEVICE void share_columns(float (&S)[JOIN_KEYS][4], const float4 (&x)[4])
{
    const int k = threadIdx.x % 32 * 4;
    __syncwarp();
    *(float4 *)S[k] = make_float4(x[0].x, x[1].x, x[2].x, x[3].x);
    *(float4 *)S[k + 1] = make_float4(x[0].y, x[1].y, x[2].y, x[3].y);
    *(float4 *)S[k + 2] = make_float4(x[0].z, x[1].z, x[2].z, x[3].z);
    *(float4 *)S[k + 3] = make_float4(x[0].w, x[1].w, x[2].w, x[3].w);
    __syncwarp();
}

/* Applies the units from `start` on to x. */
GDN_DEVICE void pass_units(float4 (&x)[4], const struct join_block &b, int64_t start)
{
    const int per_unit = (b.a.rule.K + JOIN_TILE - 1) / JOIN_TILE, warp = threadIdx.x / 32;
    int64_t t = 0;
    copy_tile_of_M(b, start, 0, per_unit);
    for (int64_t i = start; i < b.n; i++) {
        share_columns(b.sh.S[warp], x);
#pragma unroll
        for (int v = 0; v < 4; v++) x[v] = make_float4(0, 0, 0, 0);
        if (!b.of_M) load_map_columns(x, b, i);
        for (int y0 = 0; y0 < per_unit * JOIN_TILE; y0 += JOIN_TILE, t++) {
            copy_wait<0>();
            __syncthreads(); /* this tile has arrived, and the tile before it is free */
            copy_tile_of_M(b, start, t + 1, per_unit);
            add_tile(x, b.sh.M[t % 2], b.sh.S[warp], y0);
        }
    }
    copy_wait<0>();
}

template <int dtype>
GDN_DEVICE void store_map_columns(const float4 (&x)[4], const struct state_place &p,
                                  const struct join_block &b)
{
    typedef typename gdn_io<dtype>::type element;
    const int k0 = threadIdx.x % 32 * 4;
#pragma unroll
    for (int v = 0; v < 4; v++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (b.column + v < b.n_columns && k0 + k < b.a.rule.K)
                gdn_io<dtype>::store(
                    (element *)(p.data + (b.column + v) * p.v_step + (k0 + k) * p.k_step),
                    k == 0   ? x[v].x
                    : k == 1 ? x[v].y
                    : k == 2 ? x[v].z
                             : x[v].w);
}

GDN_DEVICE void join(const struct join_block &b, const struct state_place &to)
{
    const int64_t from = last_forgetting(b);
    float4 x[4] = {};
    if (!(b.of_M && from >= 0)) {
        load_map_columns(x, b, max(from, (int64_t)0));
        pass_units(x, b, max(from, (int64_t)0) + 1);
    }
    switch (to.dtype) {
    case GDN_F32: store_map_columns<GDN_F32>(x, to, b); break;
    case GDN_BF16: store_map_columns<GDN_BF16>(x, to, b); break;
    default: store_map_columns<GDN_F16>(x, to, b); break;
    }
}

/* Joins maps. Blocks are numbered by columns of U, then by those of M; then by heads; then by
 * the sequences that are cut. */
GDN_DEVICE void run_maps(const struct gdn_cu_prefill_sm90 &a)
{
    struct join_shared &sh = *(struct join_shared *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int n_U = r.to.data ? (r.V + JOIN_COLUMNS - 1) / JOIN_COLUMNS : 0;
    const int n_M = a.M.data ? (r.K + JOIN_COLUMNS - 1) / JOIN_COLUMNS : 0;
    const int slice = blockIdx.x % (n_U + n_M),
              column = (slice < n_U ? slice : slice - n_U) * JOIN_COLUMNS;
    const int64_t number = blockIdx.x / (n_U + n_M);
    const int head = (int)(number % r.H);
    int64_t first, row;
    const int64_t n = find_units(r.batch, a.cut, number / r.H, first, row);
    if (n < 2 || first + n > a.cut.units) return;
    const struct join_block b = { a,
                                  sh,
                                  first,
                                  n,
                                  head,
                                  column + (int)threadIdx.x / 32 * 4,
                                  slice < n_U ? r.V : r.K,
                                  slice >= n_U };
    join(b, place_of(slice < n_U ? r.to : a.M, row, head));
}

#endif
