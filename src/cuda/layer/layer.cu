/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a layer and of its gradients between cuBLAS and the kernels of their parts:
 * Qwen3-Next's rows in the order of heads and back, rows of valid tokens, and an output that leaves
 * out rows of padding. A product of our own has what cuBLAS does not promise: a token has the same
 * bits for any number of tokens (GDN_EXACT), and weights may have another dtype than
 * activations. */
#include "cuda/device/batch.cuh"
#include "cuda/layer/args.h"

/* ---- A projection -------------------------------------------------------------------------- */

/* Computes out[t][o] (+)= sum_i x[t][i] weight[o][i]. A sum is a chain of multiply-adds in the
 * order of i. A block has TILE tokens and TILE outputs, a thread 4 x 4 of them. While pieces of
 * DEPTH elements of the rows are multiplied, the next pieces are loaded into registers. If the
 * summed elements of a row lie apart, neighbouring rows must lie side by side. */
enum { TILE = 64, DEPTH = 32, PART = 4, LOADS = TILE * DEPTH / 256 };

struct project_tile {
    float x[DEPTH][TILE + PART], weight[DEPTH][TILE + PART]; /* rows of 16 bytes */
    const char *x_rows[TILE], *weight_rows[TILE];            /* NULL: the row is beyond the last
                                                                one */
};

/* Finds the rows of the tile. */
GDN_DEVICE void find_rows(struct project_tile &tile, const struct gdn_cu_layer_project &a,
                          int64_t first, int64_t first_out)
{
    const int64_t row = first + threadIdx.x, out = first_out + threadIdx.x;
    if (threadIdx.x < TILE) {
        const char *x = a.x.data + row / a.T * a.x.batch + row % a.T * a.x.token;
        tile.x_rows[threadIdx.x] = row < a.n_rows ? x : NULL;
        tile.weight_rows[threadIdx.x] = out < a.n_out ? a.weight.data + out * a.weight.token : NULL;
    }
}

/* The place of load j in a piece: its row, and its element of that row. The lanes of a warp load
 * neighbours in memory. */
struct place {
    int row, i;
};
GDN_DEVICE struct place place_of(int j, bool apart)
{
    const int at = threadIdx.x;
    if (apart) return { at % TILE, at / TILE + j * (DEPTH / LOADS) };
    return { at / DEPTH + j * (TILE / LOADS), at % DEPTH };
}

/* Loads elements [from, from + DEPTH) of the rows, and zeros for rows that are not there. */
GDN_DEVICE void load_piece(float (&to)[LOADS], const char *const *rows, int64_t from, int64_t n,
                           int64_t step, int dtype)
{
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const struct place p = place_of(j, step != 1);
        const char *row = rows[p.row];
        to[j] = row && from + p.i < n ? load_float(row, (from + p.i) * step, dtype) : 0;
    }
}

GDN_DEVICE void store_piece(float (*to)[TILE + PART], const float (&from)[LOADS], int64_t step)
{
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const struct place p = place_of(j, step != 1);
        to[p.i][p.row] = from[j];
    }
}

GDN_DEVICE void multiply_piece(float (&sum)[PART][PART], const struct project_tile &tile)
{
    const int row = threadIdx.x / 16 * PART, out = threadIdx.x % 16 * PART;
#pragma unroll 8
    for (int i = 0; i < DEPTH; i++) {
        const float4 x = *(const float4 *)&tile.x[i][row];
        const float4 w = *(const float4 *)&tile.weight[i][out];
        const float xs[PART] = { x.x, x.y, x.z, x.w }, ws[PART] = { w.x, w.y, w.z, w.w };
#pragma unroll
        for (int r = 0; r < PART; r++)
#pragma unroll
            for (int c = 0; c < PART; c++) sum[r][c] = fmaf(xs[r], ws[c], sum[r][c]);
    }
}

GDN_DEVICE void block_project(const struct gdn_cu_layer_project &a)
{
    __shared__ __align__(16) struct project_tile tile;
    const int64_t row_tiles = (a.n_rows + TILE - 1) / TILE;
    const int64_t first = blockIdx.x % row_tiles * TILE, first_out = blockIdx.x / row_tiles * TILE;
    float sum[PART][PART] = {}, x[LOADS], weight[LOADS];
    find_rows(tile, a, first, first_out);
    __syncthreads();
    load_piece(x, tile.x_rows, 0, a.n_in, a.x_step, a.x.dtype);
    load_piece(weight, tile.weight_rows, 0, a.n_in, a.weight_step, a.weight.dtype);
    for (int64_t i = 0; i < a.n_in; i += DEPTH) {
        __syncthreads(); /* the piece before has been read */
        store_piece(tile.x, x, a.x_step);
        store_piece(tile.weight, weight, a.weight_step);
        __syncthreads();
        load_piece(x, tile.x_rows, i + DEPTH, a.n_in, a.x_step, a.x.dtype);
        load_piece(weight, tile.weight_rows, i + DEPTH, a.n_in, a.weight_step, a.weight.dtype);
        multiply_piece(sum, tile);
    }
    const int64_t row = first + threadIdx.x / 16 * PART, out = first_out + threadIdx.x % 16 * PART;
#pragma unroll
    for (int r = 0; r < PART; r++) {
        char *to = a.out.data + (row + r) / a.T * a.out.batch + (row + r) % a.T * a.out.token;
#pragma unroll
        for (int c = 0; c < PART; c++)
            if (row + r < a.n_rows && out + c < a.n_out) {
                if (a.adds) sum[r][c] += load_float(to, out + c, a.out.dtype);
                store_float(to, out + c, a.out.dtype, sum[r][c]);
            }
    }
}

/* ---- Columns in another order -------------------------------------------------------------- */

/* Copies an element for each thread. */
GDN_DEVICE void block_weave(const struct gdn_cu_layer_weave &a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    const int all = a.part[0] + a.part[1] + a.part[2] + a.part[3], columns = a.heads * all;
    const int64_t row = i / columns;
    const int ordered = (int)(i - row * columns);
    int rest = ordered, before = 0, part = 0; /* before: columns of a head in earlier parts */
    while (rest >= a.heads * a.part[part]) {
        rest -= a.heads * a.part[part];
        before += a.part[part++];
    }
    const int woven = rest / a.part[part] * all + before + rest % a.part[part];
    const char *from = a.from.data + row * a.from.token;
    char *to = a.to.data + row * a.to.token;
    store_float(to, a.weaves ? woven : ordered, a.to.dtype,
                load_float(from, a.weaves ? ordered : woven, a.from.dtype));
}

/* ---- An output that spares padding rows ---------------------------------------------------- */

/* Returns the sequence of a token; -1: it has none. */
GDN_DEVICE int64_t sequence_of(const struct gdn_cu_batch &b, int64_t token)
{
    if (!b.cu_seqlens.data) return b.padded ? token / b.T : 0;
    int64_t first = 0, end = b.B; /* the last sequence that begins at the token or before is in
                                     [first, end) */
    while (end - first > 1) {
        const int64_t middle = first + (end - first) / 2;
        const bool before = load_index(b.cu_seqlens, middle) <= token;
        first = before ? middle : first;
        end = before ? end : middle;
    }
    return b.B > 0 && token < load_index(b.cu_seqlens, first + 1) ? first : -1;
}

/* Stores a token for each warp. */
GDN_DEVICE void block_store(const struct gdn_cu_layer_store &a)
{
    const int64_t t = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (t >= a.batch.N) return;
    const int64_t seq = sequence_of(a.batch, t);
    if (seq >= 0 && read_sequence(a.batch, seq).keep_out) return;
    char *to = a.out.data + t / a.batch.T * a.out.batch + t % a.batch.T * a.out.token;
    for (int64_t i = threadIdx.x % 32; i < a.n; i += 32) {
        char *head = to + i / a.head * a.out.head;
        if (a.out.dtype == GDN_F32)
            ((uint32_t *)head)[i % a.head] = ((const uint32_t *)a.from)[t * a.n + i];
        else
            ((uint16_t *)head)[i % a.head] = ((const uint16_t *)a.from)[t * a.n + i];
    }
}

/* ---- Rows of tokens, dense ----------------------------------------------------------------- */

/* Loads a token for each warp; zeros if the token is not valid. */
GDN_DEVICE void block_load(const struct gdn_cu_layer_rows &a)
{
    const int64_t t = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (t >= a.batch.N) return;
    struct gdn_cu_seq s = {};
    s.row = sequence_of(a.batch, t);
    if (s.row >= 0) read_range(a.batch, s);
    const int64_t own = t - s.batch * a.batch.T - s.first;
    const bool counts = own >= 0 && own < s.n_valid;
    const char *from = a.rows.data + t / a.batch.T * a.rows.batch + t % a.batch.T * a.rows.token;
    char *to = a.dense.data + t * a.dense.token;
    for (int64_t i = threadIdx.x % 32; i < a.n; i += 32)
        store_float(to, i, a.dense.dtype, counts ? load_float(from, i, a.rows.dtype) : 0);
}

/* Stores or adds rows of all tokens. */
GDN_DEVICE void block_add(const struct gdn_cu_layer_rows &a)
{
    const int64_t t = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (t >= a.batch.N) return;
    const char *from = a.dense.data + t * a.dense.token;
    char *to = a.rows.data + t / a.batch.T * a.rows.batch + t % a.batch.T * a.rows.token;
    for (int64_t i = threadIdx.x % 32; i < a.n; i += 32) {
        const float old = a.adds ? load_float(to, i, a.rows.dtype) : 0;
        store_float(to, i, a.rows.dtype, old + load_float(from, i, a.dense.dtype));
    }
}

/* Sets rows before the first sequence, which no kernel writes, to zero. */
GDN_DEVICE void block_clear(const struct gdn_cu_layer_rows &a)
{
    const int64_t first = min(load_index(a.batch.cu_seqlens, 0), a.batch.N);
    const int64_t n = first * a.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        store_float(a.rows.data + i / a.n * a.rows.token, i % a.n, a.rows.dtype, 0);
}

using gdn_cu_layer_load = gdn_cu_layer_rows;
using gdn_cu_layer_add = gdn_cu_layer_rows;
using gdn_cu_layer_clear = gdn_cu_layer_rows;

#define GDN_IMAGE_layer GDN_THIS_IMAGE
#define GDN_KERNEL_layer(threads, shared, what)                         \
    extern "C" __global__ void __launch_bounds__(threads)               \
        gdn_layer_##what(const __grid_constant__ gdn_cu_layer_##what a) \
    {                                                                   \
        block_##what(a);                                                \
    }
#include "cuda/driver/kernels.cuh"
