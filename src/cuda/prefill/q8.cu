/* SPDX-License-Identifier: Apache-2.0 */
/* Converts states of 8 bits, or without a stride of 1, before and after the chunks. Chunks work on
 * float32 states in the workspace: one for each sequence and one for each checkpoint. A block has
 * 32 columns of one head. */
#include "cuda/device/q8.cuh"
#include "cuda/prefill/general.h"
#include "cuda/device/family.cuh"

enum {
    THREADS = 256,
    COLUMNS = GDN_PREFILL_EIGHT_COLUMNS,
    LANES = THREADS / COLUMNS, /* lanes of a column */
    MOST_KEYS = 256,
};

struct eight_shared {
    float x[COLUMNS][MOST_KEYS + 1];
    struct eight_scale scales[COLUMNS];
    uint32_t key[COLUMNS];
};

/* The block's part: columns v to v + n - 1. */
struct eight_part {
    int64_t row;
    int head, v, n, K;
};

GDN_DEVICE struct eight_part find_part(const struct gdn_cu_prefill_q8 &a)
{
    struct eight_part p;
    p.row = blockIdx.x / a.n_parts / a.rule.H;
    p.head = (int)(blockIdx.x / a.n_parts % a.rule.H);
    p.v = (int)(blockIdx.x % a.n_parts) * COLUMNS;
    p.n = min((int)COLUMNS, a.rule.V - p.v);
    p.K = a.rule.K;
    return p;
}

/* Columns in a slot: the address of element (v, k), and their scales. */
struct eight_place {
    char *data;
    int64_t v_step, k_step; /* in elements */
    float *scales;          /* NULL: none */
    bool k_first;
};

GDN_DEVICE struct eight_place place_of(const struct gdn_pool_view &view, int64_t slot,
                                       const struct eight_part &p)
{
    struct eight_place at;
    at.v_step = view.k_first ? 1 + view.gap : view.ld;
    at.k_step = view.k_first ? view.ld : 1 + view.gap;
    at.data = view.data + (pool_at(view, slot, p.head) + p.v * at.v_step) * state_bytes(view.dtype);
    at.scales = view.scales
                    ? view.scales + slot * view.scales_slot + p.head * view.scales_head + p.v
                    : NULL;
    at.k_first = view.k_first;
    return at;
}

/* Return the column, and the key, of element i of the columns, in the order of memory. */
GDN_DEVICE int column_of(const struct eight_part &p, bool k_first, int i)
{
    return k_first ? i % p.n : i / p.K;
}
GDN_DEVICE int key_of(const struct eight_part &p, bool k_first, int i)
{
    return k_first ? i / p.n : i % p.K;
}

/* ---- States as they were read --------------------------------------------------------------- */

/* A sequence and its checkpoints. n_idle: how many of its first tokens change no bit of the
 * state (G9). */
struct eight_sequence {
    struct gdn_cu_seq s;
    struct gdn_cu_checkpoints checkpoints;
    int64_t n_idle;
};

/* Returns true if the token of a sequence changes the state of a head. Prefill takes rules of the
 * family with one update a token. */
GDN_DEVICE bool changes_state(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                              int head)
{
    if (!r.family.is) return load_gate(r, s, t, head, true) != 1 || load_beta(r, s, t, head) != 0;
    for (int k = 0; k < r.K; k++)
        if (family_gate(r, s, t, head, k, true) != 1 || family_b(r, s, t, head, 0, k) != 0)
            return true;
    for (int v = 0; v < r.V; v++)
        if (family_w(r, s, t, head, 0, v) != 0) return true;
    return false;
}

/* Returns how many first tokens leave every bit of the state; -1: the state was not read. All
 * threads call it. */
GDN_DEVICE int64_t count_idle(const struct gdn_cu_prefill_q8 &a, const struct gdn_cu_seq &s,
                              int head)
{
    __shared__ int left; /* of THREADS tokens, how many there are from the first one that changes
                            the state on */
    const struct gdn_cu_rule &r = a.rule;
    if (s.read < 0 || !a.from.data) return -1;
    for (int64_t first = 0; first < s.n_valid; first += THREADS) {
        const int64_t t = first + threadIdx.x;
        const bool changes = t < s.n_valid && changes_state(r, s, t, head);
        if (!__syncthreads_or(changes)) continue;
        if (threadIdx.x == 0) left = 0;
        __syncthreads();
        if (changes) atomicMax(&left, THREADS - (int)threadIdx.x);
        __syncthreads();
        return first + THREADS - left;
    }
    return s.n_valid;
}

GDN_DEVICE void read_eight(struct eight_sequence &q, const struct gdn_cu_prefill_q8 &a,
                           const struct eight_part &p)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    if (threadIdx.x < 32) {
        const struct gdn_cu_seq s = read_sequence(b, p.row);
        const struct gdn_cu_checkpoints list = read_checkpoints(b, s);
        if (threadIdx.x == 0) {
            q.s = s;
            q.checkpoints = list;
        }
    }
    __syncthreads();
    const int64_t n = q.s.n_tokens ? count_idle(a, q.s, p.head) : 0;
    if (threadIdx.x == 0) q.n_idle = n;
    __syncthreads();
}

/* Returns true if the state after n tokens is the one that was read from the pool. */
GDN_DEVICE bool is_kept(const struct eight_sequence &q, const struct gdn_cu_rule &r,
                        const struct gdn_pool_view &view, int64_t n)
{
    return n <= q.n_idle && store_alike(r.from, view);
}

GDN_DEVICE void copy_element(char *to, int64_t at, const char *from, int64_t from_at, int bytes)
{
    if (bytes == 1)
        to[at] = from[from_at];
    else if (bytes == 2)
        ((uint16_t *)to)[at] = ((const uint16_t *)from)[from_at];
    else
        ((uint32_t *)to)[at] = ((const uint32_t *)from)[from_at];
}

/* Copies bits and scales between pools of one dtype. */
GDN_DEVICE void copy_codes(const struct eight_place &to, const struct eight_place &from,
                           const struct eight_part &p, int bytes)
{
    if (to.data == from.data) return;
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = column_of(p, to.k_first, i), k = key_of(p, to.k_first, i);
        copy_element(to.data, v * to.v_step + k * to.k_step, from.data,
                     v * from.v_step + k * from.k_step, bytes);
    }
    if (to.scales && (int)threadIdx.x < p.n) to.scales[threadIdx.x] = from.scales[threadIdx.x];
}

/* Copies the states that change no bit, before other states overwrite them. */
GDN_DEVICE void copy_kept(const struct gdn_cu_prefill_q8 &a, const struct eight_sequence &q,
                          const struct eight_part &p)
{
    const struct gdn_cu_rule &r = a.rule;
    const struct eight_place from = place_of(r.from, q.s.read, p);
    const int bytes = state_bytes(r.from.dtype);
    for (int64_t c = q.checkpoints.first; a.checkpoints.data && c < q.checkpoints.end; c++) {
        int64_t slot;
        const int64_t n = checkpoint_at(r.batch, q.checkpoints, c, slot);
        if (!is_kept(q, r, r.checkpoints, n)) break;
        if (slot >= 0 && n > 0) copy_codes(place_of(r.checkpoints, slot, p), from, p, bytes);
    }
    if (a.to.data && q.s.write >= 0 && is_kept(q, r, r.to, q.s.n_valid))
        copy_codes(place_of(r.to, q.s.write, p), from, p, bytes);
}

/* ---- Before ---------------------------------------------------------------------------------- */

/* Channels start a sequence without an initial state from its slot too. */
GDN_DEVICE void clear(const struct eight_place &to, const struct eight_part &p)
{
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) ((float *)to.data)[i] = 0;
}

GDN_DEVICE void prefill_q8_load(const struct gdn_cu_prefill_q8 &a)
{
    __shared__ struct eight_sequence q;
    const struct eight_part p = find_part(a);
    read_eight(q, a, p);
    if (a.slots && p.head == 0 && p.v == 0 && threadIdx.x == 0)
        a.slots[p.row] = q.s.padding ? -1 : p.row;
    if (q.s.n_tokens == 0) return;
    if (q.s.read < 0) {
        if (a.slots && a.from.data) clear(place_of(a.from, p.row, p), p);
        return;
    }
    const struct eight_place from = place_of(a.rule.from, q.s.read, p);
    const struct eight_place to = place_of(a.from, p.row, p);
    const int dtype = a.rule.from.dtype;
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = column_of(p, from.k_first, i), k = key_of(p, from.k_first, i);
        const int64_t at = v * from.v_step + k * from.k_step;
        ((float *)to.data)[v * to.v_step + k * to.k_step] =
            is_q8(dtype)
                ? eight_value((uint8_t)from.data[at], dtype) * (from.scales ? from.scales[v] : 1)
                : load_float(from.data, at, dtype);
    }
    copy_kept(a, q, p);
}

/* ---- After ----------------------------------------------------------------------------------- */

/* Computes the scale of each column, by neighbouring threads. */
GDN_DEVICE void make_scales(struct eight_shared &sh, const struct gdn_pool_view &view,
                            const struct eight_part &p, int64_t n_tokens)
{
    const int v = threadIdx.x / LANES;
    uint32_t largest = 0;
    for (int k = threadIdx.x % LANES; k < p.K && v < p.n; k += LANES)
        largest = max(largest, magnitude(sh.x[v][k]));
    for (int step = 1; step < LANES; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    sh.scales[v] = eight_scale_of(largest, view.dtype, view.scales);
    sh.key[v] = view.random ? eight_key(view.seed, n_tokens, p.head, p.v + v) : 0;
}

/* Stores a float32 state of the workspace to a slot. n_tokens: the tokens before it. */
GDN_DEVICE void store_codes(struct eight_shared &sh, const struct gdn_pool_view &view, int64_t slot,
                            const struct gdn_pool_view &wide, int64_t number,
                            const struct eight_part &p, int64_t n_tokens)
{
    const struct eight_place to = place_of(view, slot, p), from = place_of(wide, number, p);
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = i / p.K, k = i % p.K;
        sh.x[v][k] = ((const float *)from.data)[v * from.v_step + k * from.k_step];
    }
    __syncthreads();
    make_scales(sh, view, p, n_tokens);
    __syncthreads();
    for (int i = threadIdx.x; i < p.n * p.K; i += THREADS) {
        const int v = column_of(p, to.k_first, i), k = key_of(p, to.k_first, i);
        const int64_t at = v * to.v_step + k * to.k_step;
        if (is_q8(view.dtype))
            to.data[at] = (char)eight_code(sh.x[v][k], sh.scales[v].inverse,
                                           eight_draw(sh.key[v], k), view.random, view.dtype);
        else
            store_float(to.data, at, view.dtype, sh.x[v][k]);
    }
    if (to.scales && (int)threadIdx.x < p.n) to.scales[threadIdx.x] = sh.scales[threadIdx.x].scale;
    __syncthreads(); /* the next state uses the shared memory */
}

/* Stores the final state and the checkpoints, except those that copy_kept() has copied. Blocks of
 * equal x share the states of a sequence. */
GDN_DEVICE void prefill_q8_store(const struct gdn_cu_prefill_q8 &a)
{
    __shared__ struct eight_shared sh;
    __shared__ struct eight_sequence q;
    const struct gdn_cu_rule &r = a.rule;
    const struct eight_part p = find_part(a);
    read_eight(q, a, p);
    if (q.s.n_tokens == 0) return;
    for (int64_t c = q.checkpoints.first + blockIdx.y; a.checkpoints.data && c < q.checkpoints.end;
         c += gridDim.y) {
        int64_t slot;
        const int64_t n = checkpoint_at(r.batch, q.checkpoints, c, slot);
        if (slot >= 0 && n > 0 && n <= q.s.n_valid && !is_kept(q, r, r.checkpoints, n))
            store_codes(sh, r.checkpoints, slot, a.checkpoints, c, p, n);
    }
    if (a.to.data && blockIdx.y == 0 && q.s.write >= 0 && !is_kept(q, r, r.to, q.s.n_valid))
        store_codes(sh, r.to, q.s.write, a.to, p.row, p, q.s.n_valid);
}

#define GDN_IMAGE_prefill_q8 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_q8(threads, shared, what)                              \
    extern "C" __global__ void __launch_bounds__(threads, 2)                      \
        gdn_prefill_q8_##what(const __grid_constant__ struct gdn_cu_prefill_q8 a) \
    {                                                                             \
        prefill_q8_##what(a);                                                     \
    }
#include "cuda/driver/kernels.cuh"
