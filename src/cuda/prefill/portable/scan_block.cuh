/* SPDX-License-Identifier: Apache-2.0 */
/* The block of `scan`: its tokens, its parts of shared memory, and the barriers of its roles. */
#ifndef GDN_CUDA_PREFILL_PORTABLE_SCAN_BLOCK_CUH
#define GDN_CUDA_PREFILL_PORTABLE_SCAN_BLOCK_CUH

#include "cuda/prefill/general_loads.cuh"
#include "cuda/prefill/general_walk.cuh"
#include "cuda/prefill/portable/record.cuh"
#include "cuda/prefill/segment.cuh"

enum {
    LOAD_THREADS = 64,
    BARRIER_LOADED = 1, /* two barriers, one for the warps of each kind of load */
    BARRIER_FULL = 3,   /* three stages, and two of queries */
    BARRIER_EMPTY = 8,  /* as many */
    QUERIES = 3,        /* the number of the first barrier of queries, after those of stages */
    BARRIER_STATE = 13, /* among the warps of the state */
    BARRIER_HANDED,     /* S and U of a chunk are there for the warps of the output */
    BARRIER_TAKEN       /* the warps of the output have S and U in registers */
};

/* The start of shared memory. */
struct scan_head {
    struct gdn_cu_seq s;
    struct gdn_cu_checkpoints checkpoints;
    struct sequence_segment segment;
    struct prefill_cursor cursors[8];
    int64_t number; /* number of the first chunk's record */
    bool slow[4];   /* the output of 16 columns takes the slow path */
    bool is_map;    /* the block computes M and U */
};
static_assert(sizeof(scan_head) <= GDN_PORTABLE_HEAD_BYTES, "portable/args.h");

/* The values that every thread of a block holds. */
template <int io_, int deep_> struct scan_block {
    static constexpr int io = io_, deep = deep_, chunk = CHUNK;
    typedef mma_tiles<io> tiles;
    typedef chunk_work<io, deep, true> work;
    static constexpr int k_row = GDN_PREFILL_ROW(deep, 2), k_bytes = chunk * k_row;
    static constexpr int t_bytes = GDN_PORTABLE_SQUARE;
    static constexpr int vectors_bytes = GDN_PREFILL_VECTORS_BYTES(chunk);
    static constexpr int queries_bytes = GDN_PORTABLE_QUERIES_BYTES(deep);
    static constexpr int handed_bytes = GDN_PORTABLE_HANDED_BYTES(deep);
    static_assert(GDN_PREFILL_CHUNK(2, deep) == chunk, "chunks of the records");

    const struct gdn_cu_prefill_portable &a;
    const struct gdn_cu_rule &r;
    struct scan_head &shared;
    const struct gdn_cu_seq &s;
    int head, first_column, v_row, stage_bytes;
    bool of_M; /* the columns are those of M */
    int64_t n_chunks;

    /* Returns the address that a lane reads blocks of T or P from. */
    static __device__ uint32_t square_lane(const char *square)
    {
        return shared_address(square) + (threadIdx.x % 32) * 16;
    }

    /* Return the parts of a stage: T, gates, K and V; and of a stage of queries: P, gates and Q. */
    __device__ char *t(int i) const
    {
        return gdn_shared + GDN_PORTABLE_HEAD_BYTES + i * stage_bytes;
    }
    __device__ portable_vectors &gates(int i) const
    {
        return *(portable_vectors *)(t(i) + t_bytes);
    }
    __device__ char *k(int i) const { return t(i) + t_bytes + vectors_bytes; }
    __device__ char *v(int i) const { return k(i) + k_bytes; }
    __device__ char *p(int i) const { return t(a.n_stages) + i * queries_bytes; }
    __device__ portable_vectors &query_gates(int i) const
    {
        return *(portable_vectors *)(p(i) + t_bytes);
    }
    __device__ char *q(int i) const { return p(i) + t_bytes + vectors_bytes; }

    /* handed(): the memory in which warps of 16 columns, number i, pass operands to each other.
     * These are S^T, then R^T, then U^T, 16 bytes for each lane. output(): the output's tile. */
    __device__ char *handed(int i) const { return p(a.n_queries) + i * handed_bytes; }
    __device__ char *output() const { return handed(a.n_state); }

    __device__ bool has_output() const { return r.out.data && !shared.is_map; }
    __device__ int tokens(int64_t c) const
    {
        const int64_t rest = s.n_valid - c * chunk;
        return rest < chunk ? (int)rest : chunk;
    }
    __device__ int columns() const { return of_M ? r.K : r.V; }
    /* Return the number of threads of the state, of the output, and at the barriers that pass a
     * stage on and that free it. first: the first barrier of its kind. */
    __device__ int state_threads() const { return 64 * a.n_state; }
    __device__ int output_threads() const { return 32 * a.n_state; }
    __device__ int n_threads(int first) const
    {
        return LOAD_THREADS + (first ? output_threads() : state_threads());
    }
    __device__ void await(int first, int stage) const
    {
        barrier_wait(BARRIER_FULL + first + stage, n_threads(first));
    }
    __device__ void release(int first, int stage, int64_t c, int n) const
    {
        if (c + n < n_chunks) barrier_arrive(BARRIER_EMPTY + first + stage, n_threads(first));
    }
};

#endif
