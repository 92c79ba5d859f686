/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state's walk through a sequence or a segment, after chunks.cuh. A block has a head and some
 * of its columns, 16 of them for three warps (scan_state.cuh). T, P and gates come from memory, on
 * the way of K, V and Q (scan_loads.cuh).
 *
 * Long sequences take three launches (sm90/segments.cuh): first segments, with M and U of all
 * others but the last; combine.cuh; segments after the first. A column of M is the last state of a
 * walk without values that begins as a column of the identity.
 */
#ifndef GDN_CUDA_PREFILL_SCAN_CUH
#define GDN_CUDA_PREFILL_SCAN_CUH

#include "cuda/prefill/portable/scan_loads.cuh"
#include "cuda/prefill/portable/scan_state.cuh"

/* Finds a block's tokens. The first numbers are those of sequences or their first segments, then
 * come later segments. A warp calls it. */
GDN_DEVICE void find_tokens(struct scan_head &h, const struct gdn_cu_prefill_portable &a,
                            int64_t item)
{
    const struct gdn_cu_batch &batch = a.rule.batch;
    const int64_t rows = batch.B + (a.rule.out.data && batch.cu_seqlens.data);
    const bool later = a.cut.later || item >= rows;
    int64_t row = item, unit = -1, number = 0;
    if (later) {
        number = unit = a.cut.later ? item : item - rows;
        row = find_unit(batch, a.cut, number);
        unit -= number++;
        if (row >= batch.B) return;
    }
    struct gdn_cu_seq s;
    if (row == batch.B)
        s = read_rest(batch);
    else
        s = read_sequence(batch, row);
    const struct gdn_cu_checkpoints list = read_checkpoints(batch, s);
    struct sequence_segment g = { 0, -1, -1, 0, true };
    if (a.cut.units && row < batch.B && (later || later_segments(a.cut, s.n_valid) > 0)) {
        if (!later) unit = units_before(batch, a.cut, row);
        g = cut_segment(s, a.cut, number, unit);
    }
    g.checkpoint = g.start ? checkpoint_after(batch, list, g.start) : list.first;
    const bool is_map = later && !a.cut.later;
    if (is_map && g.last) s.n_tokens = s.n_valid = 0;
    if (threadIdx.x % 32 != 0) return;
    h.s = s;
    h.checkpoints = list;
    if (is_map) h.checkpoints.end = h.checkpoints.first;
    h.segment = g;
    h.number = row < batch.B ? first_number(batch, row, CHUNK) + g.start / CHUNK : 0;
    h.is_map = is_map;
}

template <int io, int deep> GDN_DEVICE void run_scan(const struct gdn_cu_prefill_portable &a)
{
    typedef scan_block<io, deep> block;
    struct scan_head &h = *(struct scan_head *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int64_t rows = a.cut.later ? 0 : r.batch.B + (r.out.data && r.batch.cu_seqlens.data);
    /* Blocks are numbered by slices of a head, then heads, then sequences and segments. Blocks
     * of maps have more slices. */
    int64_t block_number = blockIdx.x, n_slices = a.n_slices, item = 0;
    if (!a.cut.later && block_number >= rows * r.H * n_slices) {
        block_number -= rows * r.H * n_slices;
        n_slices += a.n_map_slices;
        item = rows;
    }
    item += block_number / (r.H * n_slices);
    const int slice = (int)(block_number % n_slices);
    if (threadIdx.x == 0) h.s.n_tokens = 0;
    __syncthreads();
    if (threadIdx.x < 32) find_tokens(h, a, item);
    __syncthreads();
    if (h.s.n_tokens == 0) return;
    block b = { a, r, h, h.s };
    b.head = (int)(block_number / n_slices % r.H);
    b.of_M = slice >= a.n_slices;
    b.first_column = (b.of_M ? slice - a.n_slices : slice) * 16 * a.n_state;
    b.v_row = GDN_PREFILL_ROW(16 * a.n_state, 2);
    b.stage_bytes = GDN_PORTABLE_STAGE_BYTES(deep, a.n_state);
    b.n_chunks = (h.s.n_valid + CHUNK - 1) / CHUNK;
    if (r.K < deep || b.of_M || r.V - b.first_column < 16 * a.n_state) {
        const int n = (a.n_stages * b.stage_bytes + a.n_queries * b.queries_bytes) / 16;
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            ((uint4 *)b.t(0))[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    if (threadIdx.x < LOAD_THREADS)
        run_query_loads(b);
    else if (threadIdx.x < 2 * LOAD_THREADS)
        run_key_loads(b);
    else if (threadIdx.x < 2 * LOAD_THREADS + b.state_threads())
        run_state(b);
    else if (b.has_output())
        run_output(b);
    if (!b.has_output() || h.s.keep_out) return;
    zero_tokens(b, -h.s.n_before, 0);
    zero_tokens(b, h.s.n_valid, h.s.n_tokens - h.s.n_before);
}

#endif
