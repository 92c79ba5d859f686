/* SPDX-License-Identifier: Apache-2.0 */
/* The loads of `scan`. Two warps copy K, V, T and gates of later chunks into stages of shared
 * memory. Two others copy Q, P and gates into stages of their own. */
#ifndef GDN_CUDA_PREFILL_PORTABLE_SCAN_LOADS_CUH
#define GDN_CUDA_PREFILL_PORTABLE_SCAN_LOADS_CUH

#include "cuda/prefill/portable/scan_block.cuh"

/* Begins to copy a part of a record. */
template <int bytes> GDN_DEVICE void load_part(void *to, const void *from)
{
#pragma unroll
    for (int at = threadIdx.x % LOAD_THREADS * 16; at < bytes; at += LOAD_THREADS * 16)
        copy_async<16>(shared_address(to) + at, (const char *)from + at, 16);
}

/* The loads of keys, values, T and gates. */
template <class Block> struct key_loads {
    const Block &b;
    const char *k, *v; /* addresses in the next chunk; v NULL: none */
    int64_t k_token, k_step;
    int k_width, k_wide, v_width, v_log_lanes;
    const struct portable_record *record;
    bool idle, forgets; /* of all chunks together */

    __device__ void start()
    {
        const struct gdn_cu_rule &r = b.r;
        const int wide = 16 * b.a.n_state, columns = b.columns() - b.first_column;
        const int key = source_head(r, b.head, r.Hk);
        record = &record_at(b.a, b.shared.number, b.head);
        k = row_at(r.k, b.s, 0, key);
        k_token = r.k.token, k_step = CHUNK * k_token;
        k_width = 2 * r.K, k_wide = b.a.k_wide;
        if (b.a.keys) {
            k = keys_at(b.a, b.shared.number, key);
            k_token = k_width = key_bytes(r);
            k_step = r.Hk * CHUNK * k_token;
            k_wide = 16;
        }
        v = b.of_M ? NULL : row_at(r.v, b.s, 0, source_head(r, b.head, r.Hv)) + 2 * b.first_column;
        v_width = 2 * (columns < wide ? columns : wide);
        v_log_lanes = min(31 - __clz(2 * b.a.n_state), 5);
        idle = true, forgets = false;
    }
    __device__ void load(int64_t c, int i)
    {
        enum { N = LOAD_THREADS };
        const int n = b.tokens(c);
        load_keys<CHUNK, 2 * Block::deep, N>(b.k(i), Block::k_row, k, k_token, n, k_width, k_wide);
        load_part<Block::t_bytes>(b.t(i), record->T);
        load_part<sizeof record->v>(&b.gates(i), &record->v);
        if (v)
            load_tile<N>(b.v(i), b.v_row, v, b.r.v.token, CHUNK, n, v_width, b.a.v_wide,
                         v_log_lanes);
        k += k_step, record += b.r.H;
        if (v) v += CHUNK * b.r.v.token;
    }
    __device__ void finish(int64_t c, int i)
    {
        portable_vectors &g = b.gates(i);
        drop_rows<LOAD_THREADS>(b.v(i), b.v_row, g, b.tokens(c));
        idle &= g.decay == 1 && !tokens_of(g.writers);
        forgets |= tokens_of(g.resets) != 0;
    }
};

/* The loads of queries, P and gates. */
template <class Block> struct query_loads {
    const Block &b;
    const char *q;
    const struct portable_record *record;

    __device__ void start()
    {
        record = &record_at(b.a, b.shared.number, b.head);
        q = row_at(b.r.q, b.s, 0, source_head(b.r, b.head, b.r.Hq));
    }
    __device__ void load(int64_t c, int i)
    {
        load_keys<CHUNK, 2 * Block::deep, LOAD_THREADS>(b.q(i), Block::k_row, q, b.r.q.token,
                                                        b.tokens(c), 2 * b.r.K, b.a.q_wide);
        load_part<Block::t_bytes>(b.p(i), record->P);
        load_part<sizeof record->v>(&b.query_gates(i), &record->v);
        q += CHUNK * b.r.q.token, record += b.r.H;
    }
    __device__ void finish(int64_t, int) {}
};

/* Loads all chunks into n stages, whose barriers begin at `first`. With three stages it waits for a
 * chunk when the load of the next one has begun. With fewer stages there is no room for a next
 * one. */
template <class Block, class Loads>
GDN_DEVICE void run_loads(const Block &b, Loads &loads, int first, int n)
{
    const int loaded = BARRIER_LOADED + (first ? 1 : 0), late = n > 2 ? 1 : 0;
    int stage = 0, passed = 0;
    loads.start();
#pragma unroll 1
    for (int64_t c = 0; c < b.n_chunks + late; c++) {
        if (c >= n && c < b.n_chunks)
            barrier_wait(BARRIER_EMPTY + first + stage, b.n_threads(first));
        if (c < b.n_chunks) loads.load(c, stage);
        copy_commit();
        stage = stage + 1 == n ? 0 : stage + 1;
        if (c < late) continue;
        if (late)
            copy_wait<1>();
        else
            copy_wait<0>();
        barrier_wait(loaded, LOAD_THREADS);
        loads.finish(c - late, passed);
        barrier_arrive(BARRIER_FULL + first + passed, b.n_threads(first));
        passed = passed + 1 == n ? 0 : passed + 1;
    }
}

template <class Block> GDN_DEVICE void run_key_loads(const Block &b)
{
    key_loads<Block> loads = { b };
    run_loads(b, loads, 0, b.a.n_stages);
    const int i = threadIdx.x % LOAD_THREADS;
    if (!b.shared.is_map || b.first_column || b.of_M || i >= 2) return;
    b.a.cut.marks[(b.shared.segment.from * b.r.H + b.head) * 2 + i] =
        (loads.idle ? GDN_SEGMENT_IDLE : 0) | (loads.forgets ? GDN_SEGMENT_FORGETS : 0);
}
template <class Block> GDN_DEVICE void run_query_loads(const Block &b)
{
    query_loads<Block> loads = { b };
    if (b.has_output()) run_loads(b, loads, QUERIES, b.a.n_queries);
}

#endif
