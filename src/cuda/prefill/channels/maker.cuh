/* SPDX-License-Identifier: Apache-2.0 */
/* A block that makes the record of a chunk (chunks.cuh): its shared memory, the registers of its
 * threads, and the steps before products: loads, gates, lengths and e. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_MAKER_CUH
#define GDN_CUDA_PREFILL_CHANNELS_MAKER_CUH

#include "cuda/device/family.cuh"
#include "cuda/device/warp_sums.cuh"
#include "cuda/prefill/channels/inverse.cuh"
#include "cuda/prefill/channels/record.cuh"
#include "cuda/prefill/general_gram.cuh"

extern __shared__ __align__(128) char gdn_shared[];

enum {
    STAGE_ROW = GDN_PREFILL_ROW(64, 2), /* of a warp's factors, bytes */
    SQUARE_LD = GDN_PREFILL_LD(CHUNK),
    OWN_BYTES = 16 * 64 * 4, /* of a warp */
    PART_LD = 17
};
static_assert(24 * STAGE_ROW <= OWN_BYTES, "a level's rows");

/* Numbers of tokens: the factors of rows and of columns of L and P, and the diagonal of P. */
struct chunk_scales {
    alignas(16) float l[CHUNK], p[CHUNK], column[CHUNK], own[CHUNK];
};

template <int deep> struct chunks_shared {
    static constexpr int halves = deep / 64, row = GDN_PREFILL_ROW(deep, 2);
    alignas(16) float square[CHUNK * SQUARE_LD]; /* L; T is added above the diagonal, transposed */
    union {
        alignas(16) char own[halves * GROUPS][OWN_BYTES]; /* gates; later rows of e and q, and
                                                             columns */
        struct {
            alignas(16) char k[CHUNK * row], q[CHUNK / 2 * row];
        } level;
        struct {
            alignas(16) char T[CHUNK * SQUARE_ROW];
            alignas(16) float diagonal[CHUNK * GDN_PREFILL_LD_DIAGONAL];
        } inverse;
    };
    alignas(16) char P[CHUNK * SQUARE_ROW];
    float parts[halves][GROUPS][2][16 * PART_LD]; /* of blocks on the diagonals of L and P */
    union {
        float sums[halves][3][CHUNK]; /* k . k, q . q and q . k of tokens */
        float total[GROUPS][deep];    /* products of all gates of 16 tokens */
    };
    struct chunk_scales scales;
    alignas(16) channels_factors<deep> factors;
    struct stage_chunk chunk;
};
static_assert(sizeof(chunks_shared<64>) <= GDN_CU_CHUNKS_64, "chunks_shared");
static_assert(sizeof(chunks_shared<128>) <= GDN_CU_CHUNKS_128, "chunks_shared");

/* A lane's two channels of its warp's 16 tokens. e is k, or b k if b has channels. */
struct chunk_rows {
    uint32_t k[16], q[16], e[16];
    float a[16][2];
};

template <int io, int deep> struct chunk_maker {
    typedef mma_tiles<io> tiles;
    typedef typename tiles::pairs pairs;
    typedef chunks_shared<deep> shared;

    const struct gdn_cu_rule &r;
    shared &sh;
    char *record;
    int head, lane, warp, group, half;
    int channel; /* the first of two */
    int n;       /* tokens of the warp that exist; 0 if the channels are beyond K */
    chunk_rows x;

    /* Returns the number in the chunk of the warp's token t. */
    __device__ __forceinline__ int token(int t) const { return 16 * group + t; }
    __device__ __forceinline__ bool has(int t) const { return t < n; }

    __device__ __forceinline__ void load_keys(uint32_t (&to)[16], const struct gdn_rows &rows,
                                              int n_heads) const;
    __device__ __forceinline__ bool begin_gates() const;
    __device__ __forceinline__ void expand_gates(float2 *own, bool begun) const;
    __device__ __forceinline__ void finish_gates(bool begun);
    __device__ __forceinline__ void load_betas();
    __device__ __forceinline__ void measure();
    __device__ __forceinline__ void scale_tokens();
    __device__ __forceinline__ void normalise();
    __device__ __forceinline__ bool has_beta_words() const;
    __device__ __forceinline__ void begin_e();
    __device__ __forceinline__ void make_e();
    template <int s> __device__ __forceinline__ void put_level_rows(char *rows) const;
    template <int s> __device__ __forceinline__ void put_level_columns(char *rows) const;
    template <int s> __device__ __forceinline__ void own_level();
    __device__ __forceinline__ void put_row(int t, char *k, char *q, float2 f) const;
    __device__ __forceinline__ void put_rows(char *k, char *q, float2 f) const;
    __device__ __forceinline__ void put_columns(char *k, float2 f) const;
    __device__ __forceinline__ void put_sums(bool is_p, int i, int j, float u, float v) const;
    __device__ __forceinline__ void level_16();
    __device__ __forceinline__ void level_32();
    __device__ __forceinline__ void join_diagonal();
    __device__ __forceinline__ void make_T();
    __device__ __forceinline__ void store_keys() const;
    __device__ __forceinline__ float2 total(int from, int to) const;
};

/* ---- Loads --------------------------------------------------------------------------------- */

template <int io, int deep>
__device__ __forceinline__ void
chunk_maker<io, deep>::load_keys(uint32_t (&to)[16], const struct gdn_rows &rows, int n_heads) const
{
    const char *at =
        row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(0), source_head(r, head, n_heads)) +
        2 * channel;
    const int count = rows.data ? n : 0;
#pragma unroll
    for (int t = 0; t < 16; t++, at += rows.token) to[t] = t < count ? *(const uint32_t *)at : 0;
}

/* Returns a from its logarithm. */
GDN_DEVICE float gate_factor(float g) { return gate_forgets(g) ? 0 : ex2_approx(g * 1.44269504f); }

/* Begins to copy the lane's gates to shared memory as they lie in memory, two for each token.
 * Returns false if the two do not lie side by side. */
template <int io, int deep>
__device__ __forceinline__ bool chunk_maker<io, deep>::begin_gates() const
{
    const struct gdn_rows &rows = r.g;
    const int bytes = rows.dtype == GDN_F32 ? 4 : 2;
    if (!rows.data || r.family.g_channel != bytes) return false;
    const char *at = row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(0), head) + channel * bytes;
    if (((uint64_t)(uintptr_t)at | (uint64_t)rows.token) % (2 * bytes) != 0) return false;
    const uint32_t to = shared_address(sh.own[warp]) + lane * 8;
#pragma unroll 4
    for (int t = 0; t < n; t++, at += rows.token) {
        if (bytes == 4)
            copy_async<8>(to + t * 256, at, 8);
        else
            copy_async<4>(to + t * 256, at, 4);
    }
    copy_commit();
    return true;
}

/* Converts the lane's gates to pairs of floats. Raw gates become logarithms. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::expand_gates(float2 *own, bool begun) const
{
    const struct gdn_rows &rows = r.g;
    const int64_t step = r.family.g_channel; /* 0: the head has one gate */
    if (begun) {
        copy_wait<0>();
        if (rows.dtype != GDN_F32) {
#pragma unroll 1
            for (int t = 0; t < n; t++) {
                const uint32_t g = *(const uint32_t *)&own[32 * t];
                own[32 * t] = make_float2(bits_to_f32(g & 0xffff, rows.dtype),
                                          bits_to_f32(g >> 16, rows.dtype));
            }
        }
    } else if (rows.data) {
        const char *at = row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(0), head) + channel * step;
#pragma unroll 1
        for (int t = 0; t < n; t++, at += rows.token)
            own[32 * t] =
                make_float2(load_float(at, 0, rows.dtype), load_float(at + step, 0, rows.dtype));
    }
    if (r.gate != GDN_GATE_RAW || !rows.data || n == 0) return;
    const float A = expf(load_vector(r.A_log, head, 0));
    const float bias[2] = { load_bias(r, head, step ? channel : 0),
                            load_bias(r, head, step ? channel + 1 : 0) };
#pragma unroll 2
    for (int t = 0; t < 2 * n; t++) {
        float *const g = (float *)(own + t / 2 * 32) + t % 2;
        const float a = *g + bias[t % 2];
        *g = r.bound < 0 ? r.bound * sigmoid(A * a) : -A * softplus(a);
    }
}

/* Computes a from the lane's gates. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::finish_gates(bool begun)
{
    float2 *const own = (float2 *)sh.own[warp] + lane;
    bool forgets = false, decays = false;
    expand_gates(own, begun);
    const int count = r.g.data ? n : 0;
    if (r.gate == GDN_GATE_LINEAR) {
#pragma unroll
        for (int t = 0; t < 16; t++) {
            const float2 a = own[32 * t];
            x.a[t][0] = t < count ? a.x : 1, x.a[t][1] = t < count ? a.y : 1;
        }
    } else {
#pragma unroll
        for (int t = 0; t < 16; t++) {
            const float2 g = own[32 * t];
            x.a[t][0] = gate_factor(t < count ? g.x : 0);
            x.a[t][1] = gate_factor(t < count ? g.y : 0);
        }
    }
#pragma unroll
    for (int t = 0; t < 16; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) forgets |= x.a[t][i] == 0, decays |= x.a[t][i] != 1;
    if (forgets) sh.factors.forgets = 1;
    if (decays) sh.factors.busy = BUSY;
    __syncwarp(); /* the warp's own memory is used again */
}

/* Loads w; and b, if a head has one number of it. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::load_betas()
{
    const int t = threadIdx.x;
    if (t >= CHUNK) return;
    const bool counts = t < sh.chunk.n, rows = r.family.beta_rows;
    const float beta = counts && !rows ? family_b(r, sh.chunk.seq, sh.chunk.t0 + t, head, 0, 0) : 0;
    const float w = r.family.write.data || rows ? 1 : beta;
    sh.scales.l[t] = counts && rows ? 1 : beta;
    sh.factors.w[t] = counts ? w : 0;
    if (beta != 0 || (counts && rows && !r.family.write.data)) sh.factors.busy = BUSY;
}

/* ---- Numbers of tokens ----------------------------------------------------------------------- */

/* Computes the diagonals of K K^T, Q Q^T and Q K^T, over the warp's channels. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::measure()
{
    char *const own = sh.own[warp] + 4 * lane;
    const uint32_t at = shared_address(sh.own[warp]) + tiles::lane(STAGE_ROW);
    typename tiles::operand k[4], q;
    mma_block sum[3] = {};
#pragma unroll
    for (int t = 0; t < 16; t++) *(uint32_t *)(own + t * STAGE_ROW) = x.k[t];
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 4; y++) tiles::load(k[y], at + 32 * y, STAGE_ROW);
    __syncwarp();
#pragma unroll
    for (int t = 0; t < 16; t++) *(uint32_t *)(own + t * STAGE_ROW) = x.q[t];
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 4; y++) {
        tiles::load(q, at + 32 * y, STAGE_ROW);
        tiles::multiply(sum[0], k[y], k[y]);
        tiles::multiply(sum[1], q, q);
        tiles::multiply(sum[2], q, k[y]);
    }
    __syncwarp();
    if (lane / 8 != lane % 4) return; /* the lane has no element of a diagonal */
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 3; i++)
            sh.sums[half][i][token(lane / 4 + 8 * h)] =
                lane & 4 ? sum[i][h][2 * h + 1] : sum[i][h][2 * h];
}

/* Computes the factors of rows and columns. A thread has a token. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::scale_tokens()
{
    const int t = threadIdx.x;
    float sum[3] = {}, k = 1, q = 1;
    if (t >= CHUNK) return;
    for (int h = 0; h < shared::halves; h++)
#pragma unroll
        for (int i = 0; i < 3; i++) sum[i] += sh.sums[h][i][t];
    if (t < sh.chunk.n) {
        k = inverse_length(sum[0], r.norm, r.norm_eps);
        q = inverse_length(sum[1], r.norm, r.norm_eps);
    }
    const bool inside = io == GDN_F16; /* keys and queries have length one already, see
                                          normalise() */
    sh.scales.own[t] = sum[2] * k * (q * r.scale);
    sh.scales.p[t] = inside ? r.scale : q * r.scale;
    sh.scales.column[t] = inside ? 1 : k;
    if (!inside) sh.scales.l[t] *= k;
    if (inside) sh.sums[0][0][t] = k, sh.sums[0][1][t] = q;
}

/* Returns a word with its two numbers multiplied. */
template <class pairs> GDN_DEVICE uint32_t scale_word(uint32_t word, float low, float high)
{
    return pairs::pair(pairs::low(word) * low, pairs::high(word) * high);
}

/* Scales keys and queries to length one. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::normalise()
{
    const float *const k = sh.sums[0][0] + token(0), *const q = sh.sums[0][1] + token(0);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        x.k[t] = scale_word<pairs>(x.k[t], k[t], k[t]);
        x.q[t] = scale_word<pairs>(x.q[t], q[t], q[t]);
    }
}

/* Returns true if b has channels that can be loaded as words. */
template <int io, int deep>
__device__ __forceinline__ bool chunk_maker<io, deep>::has_beta_words() const
{
    const struct gdn_rows &b = r.beta;
    const uint64_t at =
        (uint64_t)(uintptr_t)b.data | (uint64_t)b.batch | (uint64_t)b.token | (uint64_t)b.head;
    return r.family.beta_rows && b.data && b.dtype != GDN_F32 && r.family.beta_channel == 2 &&
           at % 4 == 0;
}

/* Begins to load these words into e. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::begin_e()
{
    if (has_beta_words()) load_keys(x.e, r.beta, r.H);
}

template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::make_e()
{
    const bool words = has_beta_words();
    uint32_t *const own = (uint32_t *)sh.own[warp] + lane;
    if (!r.family.beta_rows) {
#pragma unroll
        for (int t = 0; t < 16; t++) x.e[t] = x.k[t];
        return;
    }
#pragma unroll
    for (int t = 0; t < 16; t++) own[32 * t] = x.k[t], own[32 * (16 + t)] = x.e[t];
    bool erases = false; /* b changes the state, even if w is 0 */
#pragma unroll 1
    for (int t = 0; t < 16; t++) {
        const int64_t at = sh.chunk.t0 + token(t);
        float low = 0, high = 0;
        if (has(t) && words) {
            const uint32_t b = own[32 * (16 + t)];
            low = family_b_value(r, bits_to_f32(b & 0xffff, r.beta.dtype));
            high = family_b_value(r, bits_to_f32(b >> 16, r.beta.dtype));
        } else if (has(t)) {
            low = family_b(r, sh.chunk.seq, at, head, 0, channel);
            high = family_b(r, sh.chunk.seq, at, head, 0, channel + 1);
        }
        erases |= low != 0 || high != 0;
        own[32 * t] = scale_word<pairs>(own[32 * t], low, high);
    }
    if (erases) sh.factors.busy = BUSY;
#pragma unroll
    for (int t = 0; t < 16; t++) x.e[t] = own[32 * t];
    __syncwarp();
}

#endif
