/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill on Hopper, in one launch. A block or a cluster takes one sequence and state head from
 * the first chunk of 64 tokens to the last. docs/gpu/hopper-prefill.md is the guide to these files.
 *
 * Each form includes this file with other macros. All forms of a head size give the same bits.
 *
 *     file              GROUPS  BLOCKS  form
 *     cluster.cu          1       2     a cluster: two blocks with a state warpgroup each
 *     cluster_segment.cu  1       2     the same for segments of sequences. It is a file of its own,
 *                                       because its code slows whole sequences
 *     wide.cu             2       1     a block with two state warpgroups
 *     each.cu             2       1     HOPPER_EACH: the same for sequences of one chunk, of which a
 *                                       block has several. They are the chunks of the form's
 *                                       sequence, and each has a state of its own
 *     summary.cu          2       2     without HOPPER_OUTPUTS: one block computes U, the other M
 *                                       (segments.cuh)
 *     k256.cu             2       2     HOPPER_KEYS = 4: two warpgroups share 64 columns, with half
 *                                       of up to 256 keys each (state_k256.cuh)
 *     k64.cu              1       1     HOPPER_KEYS = 1: heads of up to 64 keys and columns. Two
 *                                       warpgroups make T and P in turns
 *
 * HOPPER_GROUPS are state warpgroups of a block, HOPPER_BLOCKS blocks of a cluster, HOPPER_KEYS tiles
 * of 64 keys. HOPPER_CUTS: the form takes segments too.
 *
 * Roles of warpgroups:
 *
 *     warpgroup 0     io     loads, gates, stores (warps_io.cuh)
 *     1, or 1 and 2   state  64 columns x K of it in registers (warps_state.cuh, state_*.cuh)
 *     the last        T and P (warps_solve.cuh, solve_gram.cuh)
 *
 * T and P do not depend on the columns. In a cluster block c % 2 makes those of chunk c, and copies
 * them into the other block's memory. With a norm, lengths of keys go with T and lengths of queries
 * with P: they are on the diagonals of K K^T and Q Q^T. In f16 keys are scaled in their place
 * (prefill/general_gram.cuh).
 *
 * Division by gates. Let G = near + rest be the sums of a token's gates, and l the inverse length
 * of its key. The state's warps use V / (exp(near) l) in place of V. Their U is l / exp(near) times
 * the U of the recurrence:
 *
 *     R = V / (exp(near) l) - exp(rest) S k        U = T R, T = (I + L)^-1 diag(beta l^2)
 *     O = exp(rest) o_scale S q + P U              o_scale = exp(near) scale / length(q)
 *     S <- exp(G_end) (S + U k)
 *
 *     L_ij = beta_i l_i^2 exp(rest_i - rest_j) k_i . k_j
 *     P_ij = o_scale_i exp(rest_i - rest_j) q_i . k_j
 *
 * All terms of a sum are divided by the same number, so relative rounding errors do not change.
 *
 *     plain chunk    rest is zero. The same U serves the output and the state
 *     gated chunk    rest is not zero: S <- exp(G_end) S + exp(G_end - rest) U k. If rest is one
 *                    number for all tokens, the chunk's start (start_of()), L and P need no exp
 *     uneven chunk   rest differs between tokens
 *
 * A token's results depend on tokens before it only: the start is a power of two, which changes no
 * bit.
 *
 * Hand-over. Barriers in memory hand on a chunk. Its number c gives its places in the rings and the
 * phase of the barriers. Only the state's warps free K, Q and gates: by then they have T and P, so
 * no other warp reads these places. So one barrier says that K, Q and gates are loaded, and one
 * that they are free. The output takes the place of V.
 *
 * Code that runs for every chunk must fit the instruction cache of 32 KB. So rare code stands after
 * the loop over plain chunks (state_plain.cuh).
 *
 * Shared memory begins at a multiple of 1024 bytes: see HOPPER_... below; at most 227 KB.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_CUH
#define GDN_CUDA_PREFILL_HOPPER_CUH

#include "cuda/prefill/sm90/segments.cuh"
#include "cuda/device/ptx_wgmma.cuh"

/* The vectors of a chunk. In a cluster the warps that make T and P have the lengths, and send them
 * on: two vectors of k, and q_start. */
struct alignas(16) hopper_gates : chunk_gates<64> {
    alignas(16) float k_scale[64]; /* 1 / length of k */
    float v_scale[64];             /* of v in R: 1 / (exp(near) k_scale) */
    float o_scale[64];             /* of U in the output: shift exp(near) q_scale */
    float q_start[64];    /* of S q in the output: shift exp(G) q_scale; 0 after a token that
                             forgets */
    float from_start[64]; /* of S k in R: exp(rest) */
    float to_end[64];     /* gated: of u in S, exp(G_end - rest); 0 before a token that forgets */
    float rest[64];       /* in units of log 2 */
    float weight[64];     /* beta / length of k ^ 2, for the warps that make T */
    float start;          /* the value of rest where near is within reach (start_of()) */
    uint32_t rare;        /* HOPPER_RARE, ... */
};
/* RARE: a token forgets, or every bit of S stays. GATED: rest is not zero. UNEVEN: rest is not the
 * same for all tokens. */
enum { HOPPER_RARE = 1, HOPPER_GATED = 2, HOPPER_UNEVEN = 4 };

/* The sequence, or the block's part of it, and the place of its next checkpoint, for each warp of
 * the state. */
struct hopper_head {
    struct gdn_cu_seq s;
    struct sequence_segment segment;
    struct gdn_cu_checkpoints checkpoints;
    struct prefill_cursor cursors[4 * HOPPER_GROUPS];
};

/* HOPPER_KEYS: tiles of K and of Q of a chunk in a block. HOPPER_WIDTH: tiles of V. A warpgroup of
 * the state has HOPPER_KEYS / HOPPER_DEPTH tiles of keys, and a thread of it HOPPER_STATE floats of
 * S. */
enum {
    HOPPER_DEPTH = HOPPER_KEYS == 4 ? 2 : 1,
    HOPPER_WIDTH = HOPPER_GROUPS / HOPPER_DEPTH,
    HOPPER_STATE = 32 * HOPPER_KEYS / HOPPER_DEPTH,
    HOPPER_LATE = HOPPER_DEPTH == 2, /* P comes after T; if not, the barriers of T are of P too */
    HOPPER_WITH_P = HOPPER_OUTPUTS && !HOPPER_LATE,
    HOPPER_SOLVERS = HOPPER_KEYS == 1 ? 2 : 1,    /* warpgroups of a block that make T and P */
    HOPPER_TURN = HOPPER_BLOCKS * HOPPER_SOLVERS, /* such warpgroups of a cluster, which take
                                                     turns */
    HOPPER_PAIRS = HOPPER_TURN == 1,              /* there is one such warpgroup, which makes T of
                                                     two chunks at once */
    HOPPER_AT_ONCE = HOPPER_PAIRS ? 2 : 1,
    HOPPER_SQUARES = HOPPER_SOLVERS * HOPPER_AT_ONCE,
    /* K and Q follow each other as a factor of 128 rows: 64 columns of both, then the next 64. */
    HOPPER_STACKED = HOPPER_GROUPS == 2 && HOPPER_DEPTH == 1 && HOPPER_OUTPUTS
};
typedef float hopper_share[HOPPER_STATE];

enum {
    /* The places of each ring. If warpgroups take turns, those of T and gates are an even
     * number. */
    HOPPER_GATES_RING = HOPPER_DEPTH == 2 ? 4
                        : HOPPER_PAIRS    ? 6
                                          : 8,
    HOPPER_K_RING = HOPPER_DEPTH == 2 ? 3 : 4,
    HOPPER_Q_RING = HOPPER_DEPTH == 2                       ? 1
                    : HOPPER_SOLVERS == 2 || HOPPER_STACKED ? 4
                                                            : 3,
    HOPPER_V_RING = 2, /* V, then the output */
    HOPPER_T_RING = HOPPER_PAIRS || HOPPER_DEPTH == 2 ? 2 : 4,
    HOPPER_P_RING = HOPPER_T_RING,
    /* Barriers of chunks: as many as the longest ring has places. Barriers of Q: a warp that uses
     * every second chunk alone must not miss a phase. */
    HOPPER_CHUNKS = 8,
    HOPPER_Q_TOLD = HOPPER_DEPTH == 2 ? 2 * HOPPER_Q_RING : HOPPER_Q_RING,
    HOPPER_TILE = 64 * 128, /* bytes of 64 rows of 64 elements */

    HOPPER_K = 0, /* tiles of 64 columns, one after the other; tiles of Q follow, or alternate with
                     those of K */
    HOPPER_Q = HOPPER_K + (HOPPER_STACKED ? 1 : HOPPER_K_RING * HOPPER_KEYS) * HOPPER_TILE,
    HOPPER_V =
        HOPPER_K + (HOPPER_K_RING + HOPPER_OUTPUTS * HOPPER_Q_RING) * HOPPER_KEYS * HOPPER_TILE,
    HOPPER_NEXT = (HOPPER_STACKED ? 2 : 1) * HOPPER_TILE, /* bytes from 64 columns to the next */
    HOPPER_PLACE = HOPPER_KEYS * HOPPER_NEXT,             /* bytes of the keys, or queries, of a
                                                             chunk */
    HOPPER_T = HOPPER_V + HOPPER_V_RING * HOPPER_WIDTH * HOPPER_TILE,
    HOPPER_P = HOPPER_T + HOPPER_T_RING * HOPPER_TILE,
    HOPPER_MAIL = HOPPER_P + HOPPER_OUTPUTS * HOPPER_P_RING * HOPPER_TILE, /* values that two halves
                                                                              of the keys
                                                                              exchange */
    HOPPER_L = HOPPER_MAIL + (HOPPER_DEPTH - 1) * 2 * HOPPER_TILE,
    HOPPER_GATES = HOPPER_L + HOPPER_SQUARES * HOPPER_TILE,
    HOPPER_BARRIERS = HOPPER_GATES + HOPPER_GATES_RING * (int)sizeof(hopper_gates),

    /* Barriers: the number of the first one of each ring. */
    HOPPER_FULL = 0,                             /* K and gates have arrived, and Q if it is
                                                    stacked */
    HOPPER_DONE = HOPPER_FULL + HOPPER_CHUNKS,   /* the state has read them */
    HOPPER_LANDED = HOPPER_DONE + HOPPER_CHUNKS, /* K has arrived, and is to be scaled in its
                                                    place */
    HOPPER_T_FULL = HOPPER_LANDED + HOPPER_CHUNKS,
    HOPPER_T_FREE = HOPPER_T_FULL + HOPPER_T_RING,
    HOPPER_Q_FULL = HOPPER_T_FREE + HOPPER_T_RING,
    HOPPER_Q_FREE = HOPPER_Q_FULL + HOPPER_Q_TOLD,
    HOPPER_V_FULL = HOPPER_Q_FREE + HOPPER_Q_RING,
    HOPPER_V_FREE = HOPPER_V_FULL + HOPPER_V_RING,
    HOPPER_OUT_FULL = HOPPER_V_FREE + HOPPER_V_RING,
    HOPPER_P_FULL = HOPPER_OUT_FULL + HOPPER_V_RING,
    HOPPER_P_FREE = HOPPER_P_FULL + HOPPER_P_RING,
    HOPPER_TAIL = HOPPER_P_FREE + HOPPER_P_RING, /* one */
    HOPPER_N_BARRIERS = HOPPER_TAIL + 1,
    HOPPER_P_TOLD = HOPPER_LATE ? HOPPER_P_FULL : HOPPER_T_FULL, /* the barriers that announce P */
    HOPPER_P_FREED = HOPPER_LATE ? HOPPER_P_FREE : HOPPER_T_FREE,

    HOPPER_HEAD = HOPPER_BARRIERS + (HOPPER_N_BARRIERS + 1) / 2 * 16,
    HOPPER_BYTES = HOPPER_HEAD + (int)sizeof(hopper_head)
};
static_assert(HOPPER_BYTES <= 232448, "shared memory");

GDN_DEVICE uint32_t hopper_address(void) { return shared_address(gdn_shared); }

/* Named barriers, of 128 threads each. For both halves of the keys they have 256, and the
 * barriers of their mail have the next numbers (state_k256.cuh), because such a kernel has no
 * second square. */
enum {
    HOPPER_BARRIER_STATE = 1,
    HOPPER_BARRIER_SOLVE = 3,
    HOPPER_BARRIER_WRITTEN,
    HOPPER_BARRIER_HALVES,
    HOPPER_BARRIER_SECOND
};

/* The values that every thread of a block holds. */
struct hopper_block {
    const struct gdn_cu_prefill_sm90 &a;
    const struct gdn_cu_rule &r;
    uint32_t rank;             /* the block's number in its cluster, which decides its columns */
    int slice, head, n_chunks; /* slice: the cluster's slice of columns */
    bool forgets;              /* all that was before the block's chunks is forgotten */

    __device__ __forceinline__ struct hopper_head &common() const
    {
        return *(struct hopper_head *)(gdn_shared + HOPPER_HEAD);
    }
    __device__ __forceinline__ const struct gdn_cu_seq &s() const { return common().s; }
    /* Returns the block's first column of V. For M it is 128 or more, where loads find zeros; also
     * for a U that is not wanted. */
    __device__ __forceinline__ int column() const
    {
        if (!HOPPER_OUTPUTS && r.V == 0) return 128;
        return (slice * HOPPER_BLOCKS + (int)rank) * 64 * HOPPER_WIDTH;
    }
    __device__ __forceinline__ hopper_gates &gates(int c) const
    {
        return ((hopper_gates *)(gdn_shared + HOPPER_GATES))[(uint32_t)c % HOPPER_GATES_RING];
    }
    __device__ __forceinline__ uint32_t k(int c) const
    {
        return hopper_address() + HOPPER_K + (uint32_t)c % HOPPER_K_RING * HOPPER_PLACE;
    }
    __device__ __forceinline__ uint32_t q(int c) const
    {
        return hopper_address() + HOPPER_Q + (uint32_t)c % HOPPER_Q_RING * HOPPER_PLACE;
    }
    __device__ __forceinline__ uint32_t v(int c) const
    {
        return hopper_address() + HOPPER_V +
               (uint32_t)c % HOPPER_V_RING * HOPPER_WIDTH * HOPPER_TILE;
    }
    __device__ __forceinline__ uint32_t t(int c) const
    {
        return hopper_address() + HOPPER_T + (uint32_t)c % HOPPER_T_RING * HOPPER_TILE;
    }
    __device__ __forceinline__ uint32_t p(int c) const
    {
        return hopper_address() + HOPPER_P + (uint32_t)c % HOPPER_P_RING * HOPPER_TILE;
    }
    __device__ __forceinline__ uint32_t barrier(int number) const
    {
        return hopper_address() + HOPPER_BARRIERS + 8 * number;
    }
    /* Returns the barrier of chunk c in a ring. */
    __device__ __forceinline__ uint32_t of(int first, int c) const
    {
        return barrier(first + (uint32_t)c % ring(first));
    }
    /* Returns the parity of that barrier's phase. */
    static __device__ __forceinline__ uint32_t phase(int first, int c)
    {
        return (uint32_t)c / ring(first) & 1;
    }
    /* Wait until chunk c is there, which `full` barriers say, and until its place is free. */
    __device__ __forceinline__ void wait(int first, int c) const
    {
        mbarrier_wait(of(first, c), phase(first, c));
    }
    __device__ __forceinline__ void wait_free(int first, int c) const
    {
        mbarrier_wait(of(first, c), phase(first, c) ^ 1);
    }
    /* Returns true if chunk c has arrived. */
    __device__ __forceinline__ bool is_there(int first, int c) const
    {
        return mbarrier_test(of(first, c), phase(first, c));
    }
    /* Waits for queries and P, if they arrive apart from the rest. */
    __device__ __forceinline__ void wait_q(int c) const
    {
        if (!HOPPER_STACKED) wait(HOPPER_Q_FULL, c);
    }
    __device__ __forceinline__ void wait_p(int c) const
    {
        if (HOPPER_LATE) wait(HOPPER_P_FULL, c);
    }
    /* Waits until the state has read chunk c. */
    __device__ __forceinline__ void wait_done(int c) const
    {
        if (c >= 0) wait(HOPPER_DONE, c);
    }
    static __device__ __forceinline__ uint32_t ring(int first)
    {
        return first < HOPPER_T_FULL   ? HOPPER_CHUNKS
               : first < HOPPER_Q_FULL ? HOPPER_T_RING
               : first < HOPPER_Q_FREE ? HOPPER_Q_TOLD
               : first < HOPPER_V_FULL ? HOPPER_Q_RING
               : first < HOPPER_P_FULL ? HOPPER_V_RING
                                       : HOPPER_P_RING;
    }
    /* Returns the address `at` of this block's shared memory, in the other block. */
    __device__ __forceinline__ uint32_t other(uint32_t at) const
    {
        return map_shared(at, rank ^ 1);
    }
    __device__ __forceinline__ bool is_own(int c) const
    {
        return HOPPER_BLOCKS == 1 || (uint32_t)(c & 1) == rank;
    }
    __device__ __forceinline__ int tokens(int c) const
    {
        const int64_t rest = s().n_valid - (int64_t)c * 64;
        return rest < 64 ? (int)rest : 64;
    }
};

/* Returns the mark of the segment's chunks that are even (0) or odd (1). */
GDN_DEVICE uint32_t *mark_of(const struct hopper_block &b, int odd)
{
    return b.a.cut.marks + (b.common().segment.from * b.r.H + b.head) * 2 + odd;
}

/* Returns the number of clusters of a head. */
GDN_DEVICE int count_slices(const struct gdn_cu_rule &r)
{
    const int columns = 64 * HOPPER_WIDTH * HOPPER_BLOCKS;
    return HOPPER_DEPTH == 1 ? 1 : (r.V + columns - 1) / columns;
}

/* reach: log2 of the largest divisor of V. start: how far below zero it may begin. most: the limit
 * of R and U after the division, which leaves room for sums of products. far: the least value that
 * becomes infinite. shift: outputs are multiplied by it until they are rounded, so that P is in the
 * range of f16. */
template <int io> struct hopper_format;
template <> struct hopper_format<GDN_BF16> : mma_format_bf16 {
    static constexpr float reach = 96, start = 96, most = 0x1p120f, shift = 1;
    static constexpr uint32_t far = 0x43804380; /* 2^8 */
};
template <> struct hopper_format<GDN_F16> : mma_format_f16 {
    static constexpr float reach = 6, start = 0, most = 65504, shift = 0x1p6f;
    static constexpr uint32_t far = 0x1c001c00; /* 2^-8 */
};

/* Returns true if an element of x is not finite or too far. */
template <int io> GDN_DEVICE bool is_far(const uint32_t (&x)[16])
{
    typedef hopper_format<io> format;
    uint32_t taint[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 16; i++) taint[i % 2] = format::add(taint[i % 2], x[i], format::far);
    return (format::taint(format::taint(0, taint[0]), taint[1]) & 0x7fff7fffu) != 0;
}
/* Returns true if all of x is finite. By a warp. */
template <int io> GDN_DEVICE bool all_finite(const uint32_t (&x)[16])
{
    uint32_t taint[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 16; i++) taint[i % 2] = hopper_format<io>::taint(taint[i % 2], x[i]);
    return !__any_sync(0xffffffff, ((taint[0] | taint[1]) & 0x7fff7fffu) != 0);
}

/* Returns 2^n for an integer n in the range of float32. */
GDN_DEVICE float power_of_two(float n) { return __int_as_float(((int)n + 127) << 23); }

/* Returns the start of a chunk's sums of gates G: an integer, zero for most chunks. If the lowest
 * sum is out of reach, the start brings it within reach, but not below -start. A warp calls it: a
 * lane has the sums of tokens `lane` and `lane + 32`, of n. A power of two changes no bit, so later
 * tokens may choose the start of earlier ones. Tokens after a positive sum have no influence: a
 * lower start may put such a sum out of reach. */
template <int io> GDN_DEVICE float start_of(const float (&G)[2], int n, int lane)
{
    typedef hopper_format<io> format;
    if (format::start == 0) return 0;
    const uint32_t first = __ballot_sync(0xffffffff, lane < n && G[0] > 0);
    const uint32_t second = __ballot_sync(0xffffffff, lane + 32 < n && G[1] > 0);
    const int end = first ? __ffs((int)first) - 1 : second ? __ffs((int)second) + 31 : n;
    const float a = lane < end && G[0] < 0 ? -G[0] : 0;
    const float b = lane + 32 < end && G[1] < 0 ? -G[1] : 0;
    const uint32_t most = __reduce_max_sync(0xffffffff, __float_as_uint(fmaxf(a, b)));
    return fminf(fmaxf(floorf(format::reach - __uint_as_float(most)), -format::start), 0);
}

/* Returns the part of G that is within reach of the start. The rest is G minus that part. */
template <int io> GDN_DEVICE float reached(float G, float start)
{
    return fminf(fmaxf(G, start - hopper_format<io>::reach), start + hopper_format<io>::reach);
}

/* Returns 2^G times a power of two. 2^G alone may be out of the range of float32. */
template <int io> GDN_DEVICE float ex2_from(float G, float power)
{
    if (hopper_format<io>::start == 0) return ex2_approx(G);
    const float half = ex2_approx(0.5f * G);
    return half * power * half;
}

/* Returns true if every bit of S stays (G9). */
GDN_DEVICE bool is_idle(const hopper_gates &g)
{
    return (g.decay == 1) & (tokens_of(g.writers) == 0);
}

/* ---- Products of two tiles of 64 tokens: rows of the result are rows of warps --------------- */

/* Computes x = a k^T over all columns, for 64 or 128 rows of k. Ends its group. */
template <int io, int n> GDN_DEVICE void multiply_tiles(float (&x)[n], uint32_t a, uint32_t k)
{
    const uint32_t from = wgmma_place(a), to = wgmma_place(k);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * HOPPER_KEYS; i++) {
        const uint32_t at = i / 4 * (HOPPER_NEXT / 16) + i % 4 * 2;
        if (i == 0)
            wgmma<io>::tiles(x, wgmma_factor(from + at), wgmma_factor(to + at));
        else
            wgmma<io>::add_tiles(x, wgmma_factor(from + at), wgmma_factor(to + at));
    }
    wgmma_commit();
}

#endif
