/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of a chunk and a state head, once S before it, J after it, U and Z are there. With
 * the letters of prefill/channels/chunks.cuh,
 *
 *     X = -(Z U^T below the diagonal)    Y = dO U^T on and below it: gradients of L and P
 *     dQ_i = D_i (S dO_i) + sum_j Y_ij k_j D_ij      dE_i = -D_i (S Z_i) + sum_j X_ij k_j D_ij
 *     dK_j = D^j (J U_j) + sum_i (X_ij e_i + Y_ij q_i) D_ij
 *
 * D_ij is the product of two factors of at most 1, as there: levels.cuh. A term belongs to the dg
 * of each token whose gate is in its factors:
 *
 *     dg_l = sum of q_i dQ_i + e_i dE_i over rows i >= l, and of k_j dK_j over columns j < l
 *
 * of the block of each level that has l, and D_C (S . J). No term without a_l is in dg_l, so
 * nothing cancels, and dg becomes small where a gate does.
 *
 * A warp has 16 tokens and 64 channels. Sums come from tensor cores, and pass through shared memory
 * to lanes that have two of the channels each.
 */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_HEADS_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_HEADS_CUH

#include "cuda/backward/chunks/mend.cuh"
#include "cuda/backward/chunks/prepare.cuh"

/* Floats of a row of sums: rows that lanes write at once meet in no bank. PASS: columns of V. */
enum { SUMS_LD = 72, PASS = 64 };

/* Tiles of a pass, as in the record; rows of dO are those of tiles. */
template <int deep> struct heads_pass {
    alignas(128) char S[PASS / 16 * (deep / 16) * BLOCK], J[PASS / 16 * (deep / 16) * BLOCK];
    alignas(128) char u[PASS / 16 * GROUPS * BLOCK], z[PASS / 16 * GROUPS * BLOCK];
    alignas(128) char dout[CHUNK * SQUARE_ROW];
};
/* Factors of a level and sums of products: of a warp, rows of e, rows of q and columns; of all
 * warps, rows of e and columns, and rows of q. */
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
    float2 dg[halves * GROUPS][16][32];              /* of lanes: two channels of 16 tokens */
    float total[GROUPS][deep];                       /* products of all gates of 16 tokens */
    float of_rows[GROUPS][deep];                     /* what dg gets from 16 tokens as rows */
    float of_columns[GROUPS][deep];                  /* as columns */
    float of_half_rows[deep], of_half_columns[deep]; /* of level 32, for the other 16 tokens */
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

    /* Returns the numbers of a word. As floats they would stay in registers from level to level. */
    __device__ __forceinline__ float2 word(uint32_t x) const
    {
        x = opaque(x);
        return make_float2(pairs::low(x), pairs::high(x));
    }
    /* Returns the lane's place in rows in memory, from its first token on. It is found each time:
     * in registers it would take the room of sums. */
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

/* Adds a pass to dO S^T, Z S^T and U J^T of the warp's tokens and channels; to X or Y, or both, of
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
    /* 16 rows of V, and two channels */
    const int pair = threadIdx.x % (deep / 2), part = threadIdx.x / (deep / 2);
    const int first = (part * (deep / 16) + pair / 8) * (BLOCK / 4) + pair / 4 % 2 * 64 + pair % 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int at = first + i / 8 * 32 + (i + pair / 4) % 8 * 4;
        const float2 s = word(((const uint32_t *)sh.pass.S)[at]);
        inner = fma_to(s, word(((const uint32_t *)sh.pass.J)[at]), inner);
    }
}

/* Puts rows of X, of sums with the other sign, or of Y. */
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

/* Puts sums of 16 tokens into the warp's memory, from a row on. */
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

/* Leaves X and Y. Sums of products with states come to lanes as they are; U J^T to rows of dk. */
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
        __syncthreads(); /* what was here has been read */
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

/* The product of all gates of groups [from, to). */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::total(int from, int to) const
{
    float2 f = make_float2(1, 1);
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        if (i >= from && i < to) f = times(f, *(const float2 *)&sh.total[i][m.channel]);
    return f;
}

/* Y of a token with itself: no gate is between them. */
template <int io, int deep>
__device__ __forceinline__ float chunk_heads<io, deep>::diagonal(int t) const
{
    const int at = 16 * m.group + t;
    typedef typename gdn_io<io>::type element;
    return gdn_io<io>::load((const element *)(sh.Y + at * SQUARE_ROW + 2 * at));
}

/* Returns a lane's two elements of a matrix: eight rows and eight columns that meet at a level. */
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

/* ---- Rows: dq, de and what dg gets from them ------------------------------------------------- */

/* Begins with the state before the chunk, and tokens with themselves. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::start_rows(lane_rows &dq, lane_rows &de)
{
    float2 f = total(0, m.group), sum = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        f = ::times(f, m.x.a[t]);
        dq[t] = times(f, dq[t]);
        de[t] = times(make_float2(-f.x, -f.y), de[t]);
    }
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        const float y = diagonal(t);
        sum = fma_to(word(m.x.q[t]), dq[t], fma_to(word(m.x.e[t]), de[t], sum));
        dg(t) = sum;
        dq[t] = fma_to(make_float2(y, y), word(m.x.k[t]), dq[t]);
    }
    *(float2 *)&sh.of_rows[m.group][m.channel] = sum;
}

/* Blocks of 2 s tokens (chunk_maker::put_level_columns()). */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_heads<io, deep>::own_rows(lane_rows &dq, lane_rows &de)
{
    char *const own = sh.level.own[m.warp];
    const uint32_t left[4] = { level_pair<s>(sh.X), level_pair<s>(sh.Y), 0, 0 };
    const uint32_t columns = shared_address(own) + m.lane % 8 * STAGE_ROW + m.lane / 8 * 16;
    float *const to = sh.level.sums[m.warp] + m.lane / 4 * SUMS_LD + m.lane % 4 * 2;
    const float *const from = sh.level.sums[m.warp] + 2 * m.lane;
    m.template put_level_columns<s>(own);
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 64; y += 32) {
        uint32_t k[4];
        load_matrices_turned(k, columns + 2 * y);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum[4] = {};
            pairs::mma(sum, left, k[i], 0);
            *(float2 *)(to + y + 8 * i) = make_float2(sum[0], sum[1]);
            *(float2 *)(to + 8 * SUMS_LD + y + 8 * i) = make_float2(sum[2], sum[3]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 16; block += 2 * s) {
        float2 f[s], sum = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < s; i++)
            f[i] = ::times(i ? f[i - 1] : make_float2(1, 1), m.x.a[block + s + i]);
#pragma unroll
        for (int i = s - 1; i >= 0; i--) {
            const int t = block + s + i, at = (block / 2 + i) * SUMS_LD;
            const float2 e = times(f[i], *(const float2 *)(from + at));
            const float2 q = times(f[i], *(const float2 *)(from + at + 8 * SUMS_LD));
            de[t] = add_to(de[t], e);
            dq[t] = add_to(dq[t], q);
            sum = fma_to(word(m.x.e[t]), e, fma_to(word(m.x.q[t]), q, sum));
            add_dg(t, sum);
        }
    }
    __syncwarp();
}

/* Adds what the warp's tokens get behind f, whose sums are in its memory: those of e, then those of
 * q. Returns what dg of earlier tokens gets. */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::add_rows(lane_rows &dq, lane_rows &de,
                                                                  float2 f)
{
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        float2 &part = *(float2 *)(sums + t * SUMS_LD);
        f = ::times(f, m.x.a[t]);
        const float2 e = times(f, part);
        const float2 q = times(f, *(const float2 *)(sums + (16 + t) * SUMS_LD));
        de[t] = add_to(de[t], e);
        dq[t] = add_to(dq[t], q);
        part = fma_to(word(m.x.q[t]), q, times(word(m.x.e[t]), e));
    }
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
        add_dg(t, sum);
    }
    return sum;
}

/* Blocks of 2 n groups. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::level_rows(lane_rows &dq, lane_rows &de,
                                                                  int n)
{
    const int middle = m.group / (2 * n) * 2 * n + n; /* the first group of rows */
    __syncthreads();                                  /* what was here has been read */
    if (m.group < middle)
        m.put_columns(sh.level.k + 16 * m.group * row, total(m.group + 1, middle));
    __syncthreads();
    if (in_warp(m.group < middle)) return;
#pragma unroll
    for (int y = 0; y < 2; y++) {
        mma_block x[4];
        clear_blocks(x);
#pragma unroll 1
        for (int j = middle - n; j < middle; j++)
            multiply_block(x, y ? sh.Y : sh.X, m.group, j, sh.level.k, 16 * j, false);
        put_sums(16 * y, x);
    }
    __syncwarp();
    const float2 sum = add_rows(dq, de, total(middle, m.group));
    if (n == 2 && m.group == GROUPS - 1) *(float2 *)&sh.of_half_rows[m.channel] = sum;
}

/* Leaves rows of dq and of db. de becomes what dk gets of it. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::end_rows(lane_rows &dq, lane_rows &de,
                                                                float &taint) const
{
    const struct gdn_cu_rule &r = m.r;
    char *to_q = lane_row(a.base.head_dq), *to_b = lane_row(a.e);
#pragma unroll
    for (int t = 0; t < 16; t++, to_q += a.base.head_dq.token, to_b += a.e.token) {
        if (!m.has(t)) continue;
        const float beta = sh.tokens.beta[16 * m.group + t];
        const int64_t at = sh.chunk.t0 + 16 * m.group + t;
        float2 b = make_float2(beta, beta);
        if (r.family.beta_rows) {
            b.x = family_b(r, sh.chunk.seq, at, m.head, 0, m.channel);
            b.y = family_b(r, sh.chunk.seq, at, m.head, 0, m.channel + 1);
        }
        const float2 db = times(word(m.x.k[t]), de[t]);
        *(float2 *)to_q = dq[t];
        *(float2 *)to_b = db;
        de[t] = times(b, de[t]);
        taint = fmaf(db.x + db.y + dq[t].x + dq[t].y, 0, taint);
    }
}

/* ---- Columns: dk and what dg gets from it ---------------------------------------------------- */

/* Begins with the state after the chunk, and tokens with themselves. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::start_columns(lane_rows &dk)
{
    const int64_t step = a.base.head_dk.token;
    const char *by_u = lane_row(a.base.head_dk) + 15 * step;
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 f = total(m.group + 1, GROUPS), sum = make_float2(0, 0);
    __syncwarp();
#pragma unroll
    for (int t = 15; t >= 0; t--, by_u -= step) {
        float2 k = make_float2(0, 0);
        if (m.has(t)) k = times(f, *(const float2 *)by_u);
        const float y = diagonal(t);
        dk[t] = fma_to(make_float2(y, y), word(m.x.q[t]), add_to(dk[t], k));
        *(float2 *)(sums + t * SUMS_LD) = times(word(m.x.k[t]), k);
        f = ::times(f, m.x.a[t]);
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        add_dg(t, sum);
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
    }
    *(float2 *)&sh.of_columns[m.group][m.channel] = sum;
}

/* Blocks of 2 s tokens (chunk_maker::put_level_rows()). */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_heads<io, deep>::own_columns(lane_rows &dk)
{
    char *const own = sh.level.own[m.warp];
    const uint32_t left[4] = { turn_matrix(level_pair<s>(sh.X)), 0,
                               turn_matrix(level_pair<s>(sh.Y)), 0 };
    const uint32_t rows = shared_address(own) + tiles::lane(STAGE_ROW);
    float *const to = sh.level.sums[m.warp] + m.lane / 4 * SUMS_LD + m.lane % 4 * 2;
    const float *const from = sh.level.sums[m.warp] + 2 * m.lane;
    m.template put_level_rows<s>(own);
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 64; y += 16) {
        uint32_t e[4];
        load_matrices_turned(e, rows + 2 * y);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum[4] = {};
            pairs::mma(sum, left, e[2 * i], e[2 * i + 1]);
            *(float2 *)(to + y + 8 * i) = make_float2(sum[0], sum[1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 16; block += 2 * s) {
        float2 f[s], sum = make_float2(0, 0);
#pragma unroll
        for (int j = s - 1; j >= 0; j--)
            f[j] = j == s - 1 ? make_float2(1, 1) : ::times(f[j + 1], m.x.a[block + j + 1]);
#pragma unroll
        for (int j = 0; j < s; j++) {
            const int t = block + j;
            const float2 k = times(f[j], *(const float2 *)(from + (block / 2 + j) * SUMS_LD));
            add_dg(t, sum);
            dk[t] = add_to(dk[t], k);
            sum = fma_to(word(m.x.k[t]), k, sum);
        }
    }
    __syncwarp();
}

/* Adds what the warp's tokens get before f. Returns what dg of later tokens gets. */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::add_columns(lane_rows &dk, float2 f)
{
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        float2 &part = *(float2 *)(sums + t * SUMS_LD);
        const float2 k = times(f, part);
        dk[t] = add_to(dk[t], k);
        part = times(word(m.x.k[t]), k);
        f = ::times(f, m.x.a[t]);
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        add_dg(t, sum);
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
    }
    return sum;
}

/* Blocks of 2 n groups. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::level_columns(lane_rows &dk, int n)
{
    const int middle = m.group / (2 * n) * 2 * n + n; /* the first group of rows */
    const int q = n == 1 ? m.group / 2 : m.group - n; /* where rows of q are, in groups */
    mma_block x[4];
    __syncthreads(); /* what was here has been read */
    if (m.group >= middle)
        m.put_rows(sh.level.k + 16 * m.group * row, sh.level.q + 16 * q * row,
                   total(middle, m.group));
    __syncthreads();
    if (in_warp(m.group >= middle)) return;
    clear_blocks(x);
#pragma unroll 1
    for (int i = middle; i < middle + n; i++) {
        multiply_block(x, sh.X, i, m.group, sh.level.k, 16 * i, true);
        multiply_block(x, sh.Y, i, m.group, sh.level.q, 16 * (n == 1 ? i / 2 : i - n), true);
    }
    put_sums(0, x);
    __syncwarp();
    const float2 sum = add_columns(dk, total(m.group + 1, middle));
    if (n == 2 && m.group == 0) *(float2 *)&sh.of_half_columns[m.channel] = sum;
}

/* Completes dg, and leaves rows of dg and dk. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::end_columns(const lane_rows &dk,
                                                                   float &taint) const
{
    char *to_k = lane_row(a.base.head_dk), *to_g = lane_row(a.a);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) sum = add_to(sum, *(const float2 *)&sh.inner[i][m.channel]);
    sum = times(sum, total(0, GROUPS));
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (i > m.group) sum = add_to(sum, *(const float2 *)&sh.of_rows[i][m.channel]);
        if (i < m.group) sum = add_to(sum, *(const float2 *)&sh.of_columns[i][m.channel]);
    }
    if (m.group == 2) sum = add_to(sum, *(const float2 *)&sh.of_half_rows[m.channel]);
    if (m.group == 1) sum = add_to(sum, *(const float2 *)&sh.of_half_columns[m.channel]);
#pragma unroll
    for (int t = 0; t < 16; t++, to_k += a.base.head_dk.token, to_g += a.a.token) {
        if (!m.has(t)) continue;
        float2 x = add_to(dg(t), sum);
        if (m.x.a[t][0] == 0) x.x = 0;
        if (m.x.a[t][1] == 0) x.y = 0;
        *(float2 *)to_k = dk[t];
        *(float2 *)to_g = x;
        taint = fmaf(dk[t].x + dk[t].y + x.x + x.y, 0, taint);
    }
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Loads keys, queries and gates: the former of length one, the latter times the scale. */
template <int io, int deep>
GDN_DEVICE void load_heads(chunk_maker<io, deep> &m, struct mend_tokens &tokens)
{
    typedef typename mma_tiles<io>::pairs pairs;
    const struct gdn_cu_rule &r = m.r;
    const bool begun = m.begin_gates();
    const int t = threadIdx.x;
    m.load_keys(m.x.k, r.k, r.Hk);
    m.load_keys(m.x.q, r.q, r.Hq);
    m.begin_e();
    m.load_betas();
    m.finish_gates(begun);
    m.measure();
    if (t < CHUNK) tokens.beta[t] = m.sh.scales.l[t];
    __syncthreads();
    if (t < CHUNK) {
        float sum[2] = {};
        for (int h = 0; h < chunks_shared<deep>::halves; h++)
            sum[0] += m.sh.sums[h][0][t], sum[1] += m.sh.sums[h][1][t];
        const bool there = t < m.sh.chunk.n;
        tokens.k[t] = there ? inverse_length(sum[0], r.norm, r.norm_eps) : 0;
        tokens.q[t] = there ? inverse_length(sum[1], r.norm, r.norm_eps) * r.scale : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float k = tokens.k[m.token(i)], q = tokens.q[m.token(i)];
        m.x.k[i] = scale_word<pairs>(m.x.k[i], k, k);
        m.x.q[i] = scale_word<pairs>(m.x.q[i], q, q);
    }
    m.make_e();
    if (r.family.beta_rows) return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float beta = tokens.beta[m.token(i)];
        m.x.e[i] = scale_word<pairs>(m.x.k[i], beta, beta);
    }
}

/* Makes the compiler take gates for new ones. Otherwise it keeps their products for the next phase,
 * in registers that are needed. All lanes of a warp call it. */
GDN_DEVICE void renew(float (&a)[16][2])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        a[i / 2][i % 2] = __shfl_sync(0xffffffff, a[i / 2][i % 2], threadIdx.x % 32);
}

/* Returns the product of 16 gates, in an order that no other product of them has. */
GDN_DEVICE float2 product_of(const float (&a)[16][2])
{
    float2 f[8];
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = make_float2(a[i][0] * a[15 - i][0], a[i][1] * a[15 - i][1]);
#pragma unroll
    for (int i = 1; i < 8; i++) f[0] = times(f[0], f[i]);
    return f[0];
}

/* A block has a chunk and a state head. Products with states come first: then registers have room
 * for nothing else. */
template <int io, int deep> GDN_DEVICE void run_heads(const struct gdn_cu_backward_channels &a)
{
    heads_shared<deep> &sh = *(heads_shared<deep> *)gdn_shared;
    const struct gdn_cu_rule &r = a.base.rule;
    const int64_t number = blockIdx.x / r.H;
    const int head = (int)(blockIdx.x % r.H);
    find_shared_chunk(sh.first, a, number);
    if (sh.first.chunk.n == 0) return;
    const chunks_record<deep> record = record_of<deep>(a, number, head);
    chunk_maker<io, deep> m = share_chunk<io, deep>(r, sh.first, record.at, head);
    chunk_heads<io, deep> h = { a, sh, m };
    if (threadIdx.x == 0) sh.chunk = sh.first.chunk;
    lane_rows x, y; /* dq and de; dk in the end */
    float taint = 0;
    h.multiply_states(record, x, y);
    __syncthreads();
    if (threadIdx.x == 0) sh.first.chunk = sh.chunk;
    __syncthreads();
    load_heads(m, sh.tokens);
    *(float2 *)&sh.total[m.group][m.channel] = product_of(m.x.a);
    __syncthreads();
    h.start_rows(x, y);
    h.template own_rows<8>(x, y);
    h.template own_rows<4>(x, y);
    h.template own_rows<2>(x, y);
    h.template own_rows<1>(x, y);
    h.level_rows(x, y, 1);
    h.level_rows(x, y, 2);
    h.end_rows(x, y, taint);
    __syncthreads(); /* the last level has been read */
    renew(m.x.a);
    h.start_columns(y);
    h.template own_columns<8>(y);
    h.template own_columns<4>(y);
    h.template own_columns<2>(y);
    h.template own_columns<1>(y);
    h.level_columns(y, 1);
    h.level_columns(y, 2);
    __syncthreads();
    h.end_columns(y, taint);
    if (in_block(taint != 0)) mend_gradients<io, deep>(a, sh.chunk, sh.tokens, head);
}

#endif
