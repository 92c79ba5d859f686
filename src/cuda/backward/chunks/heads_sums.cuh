/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of a block of heads.cuh, its products with states, and the way of sums from
 * tensor cores to lanes. */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_HEADS_SUMS_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_HEADS_SUMS_CUH

#include "cuda/backward/chunks/mend.cuh"
#include "cuda/backward/chunks/prepare.cuh"

/* SUMS_LD: floats of a row of sums. Rows that lanes write at once are in different banks. PASS:
 * columns of V at a time. */
enum { SUMS_LD = 72, PASS = 64 };

/* The tiles of a pass, as in the record. Rows of dO are those of tiles. */
template <int deep> struct heads_pass {
    alignas(128) char S[PASS / 16 * (deep / 16) * BLOCK], J[PASS / 16 * (deep / 16) * BLOCK];
    alignas(128) char u[PASS / 16 * GROUPS * BLOCK], z[PASS / 16 * GROUPS * BLOCK];
    alignas(128) char dout[CHUNK * SQUARE_ROW];
};
/* Factors of a level and sums of products. A warp's own level has rows of e, rows of q, and
 * columns. A level of all warps has rows of e and columns together, and rows of q. */
template <int deep> struct heads_level {
    static constexpr int warps = chunks_shared<deep>::halves * GROUPS,
                         row = chunks_shared<deep>::row;
    union {
        alignas(16) char own[warps][24 * STAGE_ROW];
        struct {
            alignas(16) char k[CHUNK * row], q[CHUNK / 2 * row];
        };
    };
    alignas(16) float sums[warps][32 * SUMS_LD];
};
template <int deep> struct heads_shared {
    typedef chunks_shared<deep> maker;
    static constexpr int halves = maker::halves;
    union {
        alignas(128) maker first;
        heads_pass<deep> pass;
        heads_level<deep> level;
    };
    alignas(16) char X[CHUNK * SQUARE_ROW], Y[CHUNK * SQUARE_ROW];
    float2 dg[halves * GROUPS][16][32]; /* of lanes: two channels of 16 tokens */
    float total[GROUPS][deep];          /* products of all gates of 16 tokens */
    float of_rows[GROUPS][deep];        /* added to dg by 16 tokens as rows of X and Y */
    float of_columns[GROUPS][deep];     /* added to dg by 16 tokens as columns of X and Y */
    float of_half_rows[deep], of_half_columns[deep]; /* of level 32, in dg of the other 16 tokens */
    float inner[GROUPS][deep];                       /* parts of S . J */
    struct mend_tokens tokens;
    struct stage_chunk chunk;
};
static_assert(sizeof(heads_shared<64>) <= GDN_CU_HEADS_64, "heads_shared");
static_assert(sizeof(heads_shared<128>) <= GDN_CU_HEADS_128, "heads_shared");

/* A lane's gradients: two channels of 16 tokens. */
typedef float2 lane_rows[16];

GDN_DEVICE float2 add_to(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
GDN_DEVICE float2 times(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
GDN_DEVICE float2 fma_to(float2 x, float2 y, float2 z)
{
    return make_float2(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

template <int io, int deep> struct chunk_heads {
    typedef chunk_maker<io, deep> maker;
    typedef mma_tiles<io> tiles;
    typedef typename tiles::operand operand;
    typedef typename tiles::pairs pairs;
    typedef heads_shared<deep> shared;
    static constexpr int row = chunks_shared<deep>::row;

    const struct gdn_cu_backward_channels &a;
    shared &sh;
    maker &m;

    /* Returns the numbers of a word. As floats, they would be kept in registers from level to
     * level. */
    __device__ __forceinline__ float2 word(uint32_t x) const
    {
        x = opaque(x);
        return make_float2(pairs::low(x), pairs::high(x));
    }
    /* Returns the address of the lane's channels in rows in memory, from its first token on. It is
     * computed each time: in registers it would take the room of sums. */
    __device__ __forceinline__ char *lane_row(const struct gdn_rows &rows) const
    {
        const int64_t first = sh.chunk.number * CHUNK + 16 * m.group + opaque(0);
        return (char *)(memory_row(rows, first, m.head) + m.channel);
    }
    __device__ __forceinline__ float2 &dg(int t) const { return sh.dg[m.warp][t][m.lane]; }
    __device__ __forceinline__ void add_dg(int t, float2 x) const { dg(t) = add_to(dg(t), x); }
    __device__ __forceinline__ float2 total(int from, int to) const;
    __device__ __forceinline__ void load_pass(const chunks_record<deep> &record, int pass);
    __device__ __forceinline__ void add_pass(mma_block (&by)[3][4],
                                             mma_block (&one)[3 - shared::halves][GROUPS],
                                             float2 &inner);
    __device__ __forceinline__ void put_square(char *to, const mma_block (&x)[GROUPS], bool is_y);
    __device__ __forceinline__ void turn(lane_rows &to, const mma_block (&from)[4]);
    __device__ __forceinline__ void put_sums(int row, const mma_block (&from)[4]);
    __device__ __forceinline__ void multiply_states(const chunks_record<deep> &record,
                                                    lane_rows &dq, lane_rows &de);
    template <int s> __device__ __forceinline__ uint32_t level_pair(const char *square) const;
    __device__ __forceinline__ float diagonal(int t) const;
    __device__ __forceinline__ void multiply_block(mma_block (&to)[4], const char *square, int i,
                                                   int j, const char *tile, int first, bool turned);

    __device__ __forceinline__ void start_rows(lane_rows &dq, lane_rows &de);
    template <int s> __device__ __forceinline__ void own_rows(lane_rows &dq, lane_rows &de);
    __device__ __forceinline__ float2 add_rows(lane_rows &dq, lane_rows &de, float2 f);
    __device__ __forceinline__ void level_rows(lane_rows &dq, lane_rows &de, int n);
    __device__ __forceinline__ void put_betas(float *betas) const;
    __device__ __forceinline__ void end_rows(lane_rows &dq, lane_rows &de, float &taint) const;

    __device__ __forceinline__ void start_columns(lane_rows &dk);
    template <int s> __device__ __forceinline__ void own_columns(lane_rows &dk);
    __device__ __forceinline__ float2 add_columns(lane_rows &dk, float2 f);
    __device__ __forceinline__ void level_columns(lane_rows &dk, int n);
    __device__ __forceinline__ void end_columns(const lane_rows &dk, float &taint) const;
};

/* ---- Products with states -------------------------------------------------------------------- */

template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::load_pass(const chunks_record<deep> &record,
                                                                 int pass)
{
    const struct gdn_rows &dout = a.base.dout;
    const int v = pass * (PASS / 16), column = pass * PASS;
    begin_rows<BLOCK>(sh.pass.S, BLOCK, record.S(v), PASS / 16 * (deep / 16));
    begin_rows<BLOCK>(sh.pass.J, BLOCK, record.J(v), PASS / 16 * (deep / 16));
    begin_rows<BLOCK>(sh.pass.u, BLOCK, record.u(v), PASS / 16 * GROUPS);
    begin_rows<BLOCK>(sh.pass.z, BLOCK, record.z(v), PASS / 16 * GROUPS);
    begin_columns(sh.pass.dout, row_at(dout, sh.chunk.seq, sh.chunk.t0, m.head) + 2 * column,
                  dout.token, (int)sh.chunk.n, record.V - column);
    copy_commit();
}

/* Adds a pass: to dO S^T, Z S^T and U J^T of the warp's tokens and channels; to X, Y or both, of
 * its tokens; and to a thread's part of S . J. */
template <int io, int deep>
__device__ __forceinline__ void
chunk_heads<io, deep>::add_pass(mma_block (&by)[3][4], mma_block (&one)[3 - shared::halves][GROUPS],
                                float2 &inner)
{
    enum { BOTH = shared::halves == 1 };
    const uint32_t S = shared_address(sh.pass.S) + 4 * m.half * BLOCK;
    const uint32_t J = shared_address(sh.pass.J) + 4 * m.half * BLOCK;
    const uint32_t u = shared_address(sh.pass.u), z = shared_address(sh.pass.z);
    const uint32_t dout =
        shared_address(sh.pass.dout) + 16 * m.group * SQUARE_ROW + tiles::lane(SQUARE_ROW);
#pragma unroll 1
    for (int v = 0; v < PASS / 16; v++) {
        operand left[3], right;
        tiles::load(left[0], dout + 32 * v, SQUARE_ROW);
        load_block_turned(left[1], z + (v * GROUPS + m.group) * BLOCK);
        load_block_turned(left[2], u + (v * GROUPS + m.group) * BLOCK);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            load_block_turned(right, S + (v * (deep / 16) + y) * BLOCK);
            tiles::multiply(by[0][y], left[0], right);
            tiles::multiply(by[1][y], left[1], right);
            load_block_turned(right, J + (v * (deep / 16) + y) * BLOCK);
            tiles::multiply(by[2][y], left[2], right);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) left[2].x[i] = m.half ? left[0].x[i] : left[1].x[i];
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            if (in_warp(j > m.group)) break;
            load_block_turned(right, u + (v * GROUPS + j) * BLOCK);
            tiles::multiply(one[0][j], left[2], right);
            if (BOTH) tiles::multiply(one[BOTH][j], left[0], right);
        }
    }
    /* the thread has 16 rows of V and two channels */
    const int pair = threadIdx.x % (deep / 2), part = threadIdx.x / (deep / 2);
    const int first = (part * (deep / 16) + pair / 8) * (BLOCK / 4) + pair / 4 % 2 * 64 + pair % 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int at = first + i / 8 * 32 + (i + pair / 4) % 8 * 4;
        const float2 s = word(((const uint32_t *)sh.pass.S)[at]);
        inner = fma_to(s, word(((const uint32_t *)sh.pass.J)[at]), inner);
    }
}

/* Stores rows of Y, or of X, whose sums change their sign. */
template <int io, int deep>
__device__ __forceinline__ void
chunk_heads<io, deep>::put_square(char *to, const mma_block (&x)[GROUPS], bool is_y)
{
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (in_warp(j > m.group)) break;
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int t = 16 * m.group + block_row(i % 4), c = 16 * j + block_column(i / 4, 0);
            const float first = x[j][i / 4][i % 4], second = x[j][i / 4][i % 4 + 1];
            tiles::store_pair(to + t * SQUARE_ROW + 2 * c,
                              c < t + is_y ? (is_y ? first : -first) : 0,
                              c + 1 < t + is_y ? (is_y ? second : -second) : 0);
        }
    }
}

/* ---- From sums to lanes ---------------------------------------------------------------------- */

/* Stores sums of 16 tokens in the warp's memory, from row `row` on. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::put_sums(int row, const mma_block (&from)[4])
{
    float *const sums = sh.level.sums[m.warp] + row * SUMS_LD;
#pragma unroll
    for (int y = 0; y < 4; y++)
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            *(float2 *)(sums + block_row(i % 4) * SUMS_LD + 16 * y + block_column(i / 4, 0)) =
                make_float2(from[y][i / 4][i % 4], from[y][i / 4][i % 4 + 1]);
}
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::turn(lane_rows &to,
                                                            const mma_block (&from)[4])
{
    const float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    put_sums(0, from);
    __syncwarp();
#pragma unroll
    for (int t = 0; t < 16; t++) to[t] = *(const float2 *)(sums + t * SUMS_LD);
    __syncwarp();
}

/* Stores X and Y. Lanes get the sums of dO S^T and Z S^T; U J^T is stored as rows of dk. */
template <int io, int deep>
__device__ __forceinline__ void
chunk_heads<io, deep>::multiply_states(const chunks_record<deep> &record, lane_rows &dq,
                                       lane_rows &de)
{
    enum { BOTH = shared::halves == 1 };
    mma_block by[3][4], one[3 - shared::halves][GROUPS];
    float2 inner = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 3; i++) clear_blocks(by[i]);
#pragma unroll
    for (int i = 0; i < 1 + BOTH; i++) clear_blocks(one[i]);
#pragma unroll 1
    for (int pass = 0; pass * PASS < record.V; pass++) {
        __syncthreads(); /* the memory has been read */
        load_pass(record, pass);
        copy_wait<0>();
        __syncthreads();
        add_pass(by, one, inner);
    }
    if (BOTH) {
        put_square(sh.X, one[0], false);
        put_square(sh.Y, one[BOTH], true);
    } else {
        put_square(m.half ? sh.Y : sh.X, one[0], m.half);
    }
    *(float2 *)&sh.inner[threadIdx.x / (deep / 2)][threadIdx.x % (deep / 2) * 2] = inner;
    __syncthreads(); /* the pass has been read */
    turn(dq, by[2]);
    char *by_u = lane_row(a.base.head_dk);
#pragma unroll
    for (int t = 0; t < 16; t++, by_u += a.base.head_dk.token)
        if (m.has(t)) *(float2 *)by_u = dq[t];
    turn(dq, by[0]);
    turn(de, by[1]);
}

/* Returns the product of all gates of groups [from, to). */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::total(int from, int to) const
{
    float2 f = make_float2(1, 1);
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        if (i >= from && i < to) f = times(f, *(const float2 *)&sh.total[i][m.channel]);
    return f;
}

/* Returns Y of a token with itself, which has no gates. */
template <int io, int deep>
__device__ __forceinline__ float chunk_heads<io, deep>::diagonal(int t) const
{
    const int at = 16 * m.group + t;
    typedef typename gdn_io<io>::type element;
    return gdn_io<io>::load((const element *)(sh.Y + at * SQUARE_ROW + 2 * at));
}

/* Returns a lane's two elements of a matrix: the eight rows and eight columns that a level has of a
 * warp. */
template <int io, int deep>
template <int s>
__device__ __forceinline__ uint32_t chunk_heads<io, deep>::level_pair(const char *square) const
{
    const int i = m.lane / 4, j = m.lane % 4 * 2;
    const char *const at = square + (16 * m.group + i + i / s * s + s) * SQUARE_ROW + 32 * m.group;
    uint32_t x = 0;
    if (i / s == j / s) x = *(const uint16_t *)(at + 2 * (j + j / s * s));
    if (i / s == (j + 1) / s)
        x |= (uint32_t) * (const uint16_t *)(at + 2 * (j + 1 + (j + 1) / s * s)) << 16;
    return x;
}

/* Adds block (i, j) of a square, or of its transpose, times 16 rows of a tile from `first` on. */
template <int io, int deep>
__device__ __forceinline__ void
chunk_heads<io, deep>::multiply_block(mma_block (&to)[4], const char *square, int i, int j,
                                      const char *tile, int first, bool turned)
{
    const uint32_t at = shared_address(square) + 16 * i * SQUARE_ROW + 32 * j;
    const uint32_t right =
        shared_address(tile) + first * row + 128 * m.half + tiles::lane_turned(row);
    operand left, o;
    if (turned)
        tiles::load_turned(left, at + tiles::lane_turned(SQUARE_ROW), SQUARE_ROW);
    else
        tiles::load(left, at + tiles::lane(SQUARE_ROW), SQUARE_ROW);
#pragma unroll
    for (int y = 0; y < 4; y++) {
        tiles::load_turned(o, right + 32 * y, row);
        tiles::multiply(to[y], left, o);
    }
}

#endif
