/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of 8 bits before and after the chunks, which work on float32 ones in the workspace: one for
 * each sequence, one for each checkpoint. A block has 32 columns of one head.
 */
#include "eight.cuh"
#include "prefill.h"
#include "rule.cuh"

enum {
    THREADS   = 256,
    COLUMNS   = GDN_PREFILL_EIGHT_COLUMNS,
    LANES     = THREADS / COLUMNS, /* of a column */
    MOST_KEYS = 256,
};

struct eight_shared {
    struct gdn_cu_seq         s;
    struct gdn_cu_checkpoints checkpoints;
    float                     x[COLUMNS][MOST_KEYS + 1];
    struct eight_scale        scales[COLUMNS];
    uint32_t                  key[COLUMNS];
};

/* What a block has: columns v to v + n - 1. */
struct eight_part {
    int64_t row;
    int     head, v, n, K;
};

GDN_DEVICE struct eight_part find_part(const struct gdn_cu_prefill_eight &a)
{
    struct eight_part p;
    p.row  = blockIdx.x / a.n_parts / a.rule.H;
    p.head = (int)(blockIdx.x / a.n_parts % a.rule.H);
    p.v    = (int)(blockIdx.x % a.n_parts) * COLUMNS;
    p.n    = min((int)COLUMNS, a.rule.V - p.v);
    p.K    = a.rule.K;
    return p;
}

/* Those columns in a slot: element (v, k), and their scales. */
struct eight_place {
    char   *data;
    int64_t v_step, k_step; /* in elements */
    float  *scales;
    bool    k_first;
};

GDN_DEVICE struct eight_place place_of(const struct gdn_pool_view &view, int64_t slot,
                                       const struct eight_part &p)
{
    struct eight_place at;
    at.v_step  = view.k_first ? 1 : view.ld;
    at.k_step  = view.k_first ? view.ld : 1;
    at.data    = view.data + (pool_at(view, slot, p.head) + p.v * at.v_step) *
                              state_bytes(view.dtype);
    at.scales  = view.scales + slot * view.scales_slot + p.head * view.scales_head + p.v;
    at.k_first = view.k_first;
    return at;
}

/* Element i of the columns in the order of memory. */
GDN_DEVICE int column_of(const struct eight_part &p, bool k_first, int i)
{
    return k_first ? i % p.n : i / p.K;
}
GDN_DEVICE int key_of(const struct eight_part &p, bool k_first, int i)
{
    return k_first ? i / p.n : i % p.K;
}

/* ---- Before ---------------------------------------------------------------------------------- */

GDN_DEVICE void prefill_eight_load(const struct gdn_cu_prefill_eight &a)
{
    __shared__ struct gdn_cu_seq s;
    const struct eight_part      p = find_part(a);
    if (threadIdx.x < 32) {
        const struct gdn_cu_seq read = read_sequence(a.rule.batch, p.row);
        if (threadIdx.x == 0) s = read;
    }
    __syncthreads();
    if (s.n_tokens == 0 || s.read < 0) return;
    const struct eight_place from = place_of(a.rule.from, s.read, p), to = place_of(a.from, p.row, p);
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int     v = column_of(p, from.k_first, i), k = key_of(p, from.k_first, i);
        const uint8_t code = from.data[v * from.v_step + k * from.k_step];
        ((float *)to.data)[v * to.v_step + k * to.k_step] =
            eight_value(code, a.rule.from.dtype) * from.scales[v];
    }
}

/* ---- After ----------------------------------------------------------------------------------- */

/* Do n tokens leave the state as it is? (G9) By all threads. */
GDN_DEVICE bool is_kept(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int head, int64_t n)
{
    for (int64_t first = 0; first < n; first += THREADS) {
        const int64_t t       = first + threadIdx.x;
        const bool    changes = t < n && (load_gate(r, s, t, head, true) != 1 ||
                                       load_beta(r, s, t, head) != 0);
        if (__syncthreads_or(changes)) return false;
    }
    return true;
}

/* Bit for bit, with the scales. */
GDN_DEVICE void copy_codes(const struct eight_place &to, const struct eight_place &from,
                           const struct eight_part &p)
{
    if (to.data == from.data) return;
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = column_of(p, to.k_first, i), k = key_of(p, to.k_first, i);
        to.data[v * to.v_step + k * to.k_step] = from.data[v * from.v_step + k * from.k_step];
    }
    if ((int)threadIdx.x < p.n) to.scales[threadIdx.x] = from.scales[threadIdx.x];
}

/* The scale of each column, by threads that follow each other. */
GDN_DEVICE void make_scales(struct eight_shared &sh, const struct gdn_pool_view &view,
                            const struct eight_part &p, int64_t n_tokens)
{
    const int v = threadIdx.x / LANES;
    uint32_t  largest = 0;
    for (int k = threadIdx.x % LANES; k < p.K && v < p.n; k += LANES)
        largest = max(largest, magnitude(sh.x[v][k]));
    for (int step = 1; step < LANES; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    sh.scales[v] = eight_scale_of(largest, view.dtype);
    sh.key[v]    = view.random ? eight_key(view.seed, n_tokens, p.head, p.v + v) : 0;
}

/* A float32 state of the workspace, after n_tokens, to a slot. */
GDN_DEVICE void store_codes(struct eight_shared &sh, const struct gdn_pool_view &view, int64_t slot,
                            const struct gdn_pool_view &wide, int64_t number,
                            const struct eight_part &p, int64_t n_tokens)
{
    const struct eight_place to = place_of(view, slot, p), from = place_of(wide, number, p);
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = i / p.K, k = i % p.K;
        sh.x[v][k]  = ((const float *)from.data)[v * from.v_step + k * from.k_step];
    }
    __syncthreads();
    make_scales(sh, view, p, n_tokens);
    __syncthreads();
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = column_of(p, to.k_first, i), k = key_of(p, to.k_first, i);
        to.data[v * to.v_step + k * to.k_step] =
            (char)eight_code(sh.x[v][k], sh.scales[v].inverse, eight_draw(sh.key[v], k),
                             view.random, view.dtype);
    }
    if ((int)threadIdx.x < p.n) to.scales[threadIdx.x] = sh.scales[threadIdx.x].scale;
    __syncthreads(); /* before the next one */
}

/* The state after n tokens: what was read, where they change nothing, or what the chunks left. */
GDN_DEVICE void store_state(const struct gdn_cu_prefill_eight &a, struct eight_shared &sh,
                            const struct gdn_pool_view &view, int64_t slot,
                            const struct gdn_pool_view &wide, int64_t number,
                            const struct eight_part &p, int64_t n)
{
    const struct gdn_cu_rule &r = a.rule;
    if (sh.s.read >= 0 && r.from.dtype == view.dtype && is_kept(r, sh.s, p.head, n))
        copy_codes(place_of(view, slot, p), place_of(r.from, sh.s.read, p), p);
    else
        store_codes(sh, view, slot, wide, number, p, n);
}

/* The final state, and checkpoints; blocks with the same x share those of a sequence. */
GDN_DEVICE void prefill_eight_store(const struct gdn_cu_prefill_eight &a)
{
    __shared__ struct eight_shared sh;
    const struct gdn_cu_batch     &b = a.rule.batch;
    const struct eight_part        p = find_part(a);
    if (threadIdx.x < 32) {
        const struct gdn_cu_seq         s    = read_sequence(b, p.row);
        const struct gdn_cu_checkpoints list = read_checkpoints(b, s);
        if (threadIdx.x == 0) {
            sh.s           = s;
            sh.checkpoints = list;
        }
    }
    __syncthreads();
    if (sh.s.n_tokens == 0) return;
    for (int64_t c = sh.checkpoints.first + blockIdx.y; a.checkpoints.data && c < sh.checkpoints.end;
         c += gridDim.y) {
        int64_t       slot;
        const int64_t n = checkpoint_at(b, sh.checkpoints, c, slot);
        if (slot >= 0 && n > 0 && n <= sh.s.n_valid)
            store_state(a, sh, a.rule.checkpoints, slot, a.checkpoints, c, p, n);
    }
    if (a.to.data && blockIdx.y == 0 && sh.s.write >= 0)
        store_state(a, sh, a.rule.to, sh.s.write, a.to, p.row, p, sh.s.n_valid);
}

#define GDN_IMAGE_prefill_eight GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_eight(threads, shared, what)                                       \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                  \
        gdn_prefill_eight_##what(const __grid_constant__ struct gdn_cu_prefill_eight a)       \
    {                                                                                         \
        prefill_eight_##what(a);                                                              \
    }
#include "kernels.cuh"
