/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of a record's rows with a token: the first kernel of lazy.cuh. tokens.cuh is the
 * one for several tokens. A warp has the state heads of a sequence that share k and q. It computes
 * all that has one number for each row, once:
 *
 *     G_j   the product of the decays behind row j, that of the token included; G of the state
 *     w_j   G_j (k_j . k) and G_j (k_j . q), with the factors of k and q
 *
 * and leaves it in memory. It also appends k and the gate of the token to a record that does not
 * become full.
 */
#ifndef GDN_CUDA_DECODE_LAZY_ROWS_CUH
#define GDN_CUDA_DECODE_LAZY_ROWS_CUH

#include "cuda/decode/lazy/products.cuh"

/* A head leaves for each token these numbers, and two weights for each row; then the decay of each
 * row behind which all tokens are. k and q: factors of S k and S q of raw k and q. key: that of raw
 * k alone, 0 if beta is 0. decay: that of the state. count: of the rows of the record. The tokens
 * ahead of this one in the call are rows behind them. Rows from `first` on count: a gate has
 * forgotten those before, whose u may be no number. */
struct alignas(16) lazy_facts {
    float k, q, kq, beta, key, decay;
    int32_t first, count;
};
enum { LAZY_FACTS = sizeof(struct lazy_facts) / 4 };

/* Returns the tokens of each sequence. The kernels of one token have TOKENS = 1. */
template <int TOKENS> GDN_DEVICE int lazy_tokens(const struct gdn_cu_lazy &a)
{
    return TOKENS == 1 ? 1 : a.n_tokens;
}

/* Return the memory of a head, in it that of token t, and there the weights; and the decays. */
GDN_DEVICE float *lazy_memory(const struct gdn_cu_lazy &a, const struct token_place &w)
{
    return a.memory + (int64_t)(w.row * a.n_heads + w.head) * a.step;
}
GDN_DEVICE float *lazy_at_token(float *memory, const struct gdn_cu_lazy &a, int t)
{
    return memory + t * (LAZY_FACTS + 2 * a.n_places);
}
GDN_DEVICE float *lazy_weights(float *memory) { return memory + LAZY_FACTS; }
template <int TOKENS> GDN_DEVICE float *lazy_decays(float *memory, const struct gdn_cu_lazy &a)
{
    const int last = lazy_tokens<TOKENS>(a) - 1;
    return lazy_weights(lazy_at_token(memory, a, last)) + 2 * a.n_places;
}
GDN_DEVICE struct lazy_facts lazy_load_facts(const float *memory)
{
    uint32_t x[2][4];
    ld_v4(x[0], memory), ld_v4(x[1], memory + 4);
    return { __uint_as_float(x[0][0]), __uint_as_float(x[0][1]), __uint_as_float(x[0][2]),
             __uint_as_float(x[0][3]), __uint_as_float(x[1][0]), __uint_as_float(x[1][1]),
             (int32_t)x[1][2],         (int32_t)x[1][3] };
}

GDN_DEVICE char *lazy_at(const struct gdn_cu_lazy_rows &r, int slot, int row, int head)
{
    return r.data + mad_wide(slot, r.slot, mad_wide(row, r.row, mad_wide(head, r.head, 0)));
}

template <int TOKENS> GDN_DEVICE bool lazy_folds(const struct gdn_cu_lazy &a, int count)
{
    return count + lazy_tokens<TOKENS>(a) >= a.n_rows;
}

/* Return the counter of a slot, and how many rows are in use by that counter. */
GDN_DEVICE int64_t lazy_counter(const struct gdn_cu_lazy &a, int slot)
{
    return ld_index(a.count + mad_wide(slot, a.count_step, 0), a.count_bytes, 0);
}
GDN_DEVICE int lazy_clamp(const struct gdn_cu_lazy &a, int64_t counter)
{
    return (int)clamp64(counter, 0, a.n_rows);
}

/* ---- Decays: sixteen lanes have a state head ------------------------------------------------- */

GDN_DEVICE uint32_t lazy_gate(const struct gdn_cu_lazy &a, const struct token_place &w, int first,
                              int count)
{
    const int row = first + threadIdx.x % LAZY_ROWS;
    return ld_b32_b16(lazy_at(a.g, w.from, row, w.head), row < count, false);
}

/* The decays of sixteen rows. own: behind the lane's row. all: of all rows. */
struct lazy_decay {
    float own, all;
};

/* Returns the product of the decays of two runs of rows: 0 if either is 0, even if the other is
 * NaN. */
GDN_DEVICE float lazy_times(float x, float y) { return x == 0 || y == 0 ? 0 : x * y; }

GDN_DEVICE struct lazy_decay lazy_decay_of(float x, float behind)
{
    const int row = threadIdx.x % LAZY_ROWS;
#pragma unroll
    for (int step = 1; step < LAZY_ROWS; step *= 2) {
        const float other = __shfl_down_sync(0xffffffff, x, step);
        if (row + step < LAZY_ROWS) x = lazy_times(x, other);
    }
    const float later = __shfl_down_sync(0xffffffff, x, 1);
    const float all = __shfl_sync(0xffffffff, x, threadIdx.x & 16);
    return { row + 1 < LAZY_ROWS ? lazy_times(behind, later) : behind, lazy_times(behind, all) };
}

/* A place for the numbers of a head of a token. */
struct lazy_place {
    float *memory, *decays;
    bool stores; /* false: the head does not exist */
};

/* Leaves weights and decays of rows [first, first + n), at most sixteen, in memory: zeros for rows
 * whose sign bit is set, which only decay. key: the factor of the lane's row. products: of row
 * `first` on. Returns the decay of what is before them; behind: the decay behind them. Sets
 * `oldest` to the first that counts, if one does. */
GDN_DEVICE float lazy_leave_rows(int &oldest, const struct lazy_place &to,
                                 const struct token_factors &f, const float2 *products,
                                 uint32_t gate, int first, int n, float behind, float key = 1)
{
    const int row = threadIdx.x % LAZY_ROWS;
    const float alpha = row < n ? __uint_as_float(gate & 0x7fffffff) : 1;
    const struct lazy_decay d = lazy_decay_of(alpha, behind);
    const bool counts = row < n && d.own != 0, adds = counts && !(gate >> 31);
    const unsigned all = __ballot_sync(0xffffffff, counts) >> (threadIdx.x & 16) & 0xffff;
    if (all) oldest = first + __ffs(all) - 1;
    if (to.stores && row < n) {
        const float2 product = products[row];
        const float own = d.own * key;
        ((float2 *)lazy_weights(to.memory))[first + row] =
            adds ? make_float2(own * f.k * product.x, own * f.q * product.y) : make_float2(0, 0);
        to.decays[first + row] = adds ? d.own : 0;
    }
    return d.all;
}

/* Leaves what a state head of a token has. gate: lazy_gate() of its last rows. decay: behind the
 * rows of the record; oldest: the first of the tokens ahead that counts, if one does. */
GDN_DEVICE void lazy_leave_head(const struct lazy_place &to, const struct gdn_cu_lazy &a,
                                const struct token_place &w, const struct token_factors &f,
                                const float2 *products, uint32_t gate, int count, float beta,
                                float decay, int oldest)
{
    const int last = (count - 1) / LAZY_ROWS * LAZY_ROWS;
#pragma unroll 1
    for (int first = last; count > 0 && first >= 0; first -= LAZY_ROWS) {
        const int n = first == last ? count - last : (int)LAZY_ROWS;
        if (first < last) gate = lazy_gate(a, w, first, count);
        decay = lazy_leave_rows(oldest, to, f, products + first, gate, first, n, decay);
    }
    if (to.stores && threadIdx.x % LAZY_ROWS == 0)
        *(struct lazy_facts *)to.memory = { decay * f.k,         decay * f.q, f.kq,   beta,
                                            beta == 0 ? 0 : f.k, decay,       oldest, count };
}

/* ---- The kernel ------------------------------------------------------------------------------ */

/* Requests the part of a state that a block of the second kernel reads, before the kernel ahead has
 * ended: it goes to the L2 cache while the last states of that one come. If that one writes slots,
 * the slot may be old here. Then it is another slot's state that comes, in vain. */
GDN_DEVICE void lazy_request_state(const struct gdn_cu_lazy &a, int block)
{
    enum { LINE = 128, LINES = 64 /* 8 KB */ };
    const struct gdn_cu_token &o = a.one;
    const int head = block / a.n_parts % a.n_heads, sequence = block / a.n_parts / a.n_heads;
    if (sequence >= (int)gridDim.y) return;
    int slot = sequence;
    if (o.read_slots) {
        slot = (int)ld_b32_l2(o.read_slots + sequence * o.read_step);
        if (slot < o.first_slot || slot >= o.read_pool) return;
    }
    const char *const state = token_at(o.from, slot, head);
    const int row = block % a.n_parts * (LINES / a.row_lines);
#pragma unroll
    for (int i = threadIdx.x % 32; i < LINES; i += 32)
        prefetch(state + mad_wide(row + i / a.row_lines, a.one.from_row, i % a.row_lines * LINE),
                 true);
}

/* Stores the lane's elements of k as row `row` of the record. */
template <int io>
GDN_DEVICE void lazy_append_k(const struct gdn_cu_lazy &a, const struct token_place &w,
                              const float (&k)[4], float key, int row)
{
    char *const to = lazy_at(a.k, w.from, row, token_source(w.head, a.one.group_k));
    const float x[4] = { key * k[0], key * k[1], key * k[2], key * k[3] };
    store_chunk(to + threadIdx.x % 32 * 4 * a.k.bytes, x, a.k.bytes == 4 ? GDN_F32 : io);
}

/* Returns the gate of a row. */
GDN_DEVICE float lazy_row_gate(float alpha, float beta)
{
    return copysignf(alpha, beta == 0 ? -1.0f : 1.0f);
}

/* Sets the place of the warp's first state head, and waits for the kernel ahead. Returns the number
 * of the warp's pair of heads of k and q, which may be past the last pair. */
template <int WARPS> GDN_DEVICE int lazy_begin(struct token_place &w, const struct gdn_cu_lazy &a)
{
    const int warp = threadIdx.x / 32, pair = blockIdx.x * WARPS + warp;
    w.row = blockIdx.y;
    w.head = pair * a.n_sharing;
    lazy_request_state(a, (blockIdx.y * gridDim.x + blockIdx.x) * WARPS + warp);
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    return pair;
}

template <int io, int WARPS> GDN_DEVICE void decode_lazy_rows(const struct gdn_cu_lazy &a)
{
    __shared__ float2 all_products[WARPS][LAZY_MOST];
    const int lane = threadIdx.x % 32, half = lane / LAZY_ROWS;
    float2 *const products = all_products[threadIdx.x / 32];
    struct token_place w;
    const int pair = lazy_begin<WARPS>(w, a);
    if (pair >= a.n_pairs) return;
    uint32_t raw[2][4];
    struct token_gates gates;
    float k[4], q[4];
    ld_keep_v2(raw[0], token_at(a.one.k, w.row, token_source(w.head, a.one.group_k)) + lane * 8,
               true);
    ld_keep_v2(raw[1], token_at(a.one.q, w.row, token_source(w.head, a.one.group_q)) + lane * 8,
               true);
    struct token_place mine = w;
    mine.head += half < a.n_sharing ? half : 0;
    token_fetch_gates(gates, a.one, mine);
    if (!token_slots(w, a.one)) return;
    mine.from = w.from;
    const int64_t counter = lazy_counter(a, w.from);
    int n = a.n_rows, last = 0, count = 0;
    if (!a.ahead) {
        n = count = lazy_clamp(a, counter);
        last = (n - 1) / LAZY_ROWS * LAZY_ROWS;
    }
    uint32_t gate = lazy_gate(a, mine, last, n);
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        k[e] = token_element<io>(raw[0][e / 2], e), q[e] = token_element<io>(raw[1][e / 2], e);
        kk = fmaf(k[e], k[e], kk), qq = fmaf(q[e], q[e], qq), kq = fmaf(k[e], q[e], kq);
    }
    const char *const rows = lazy_at(a.k, w.from, 0, token_source(w.head, a.one.group_k));
    if (a.k.bytes == 4)
        lazy_products<io, true>(products, rows, a.k.row, k, q, n);
    else
        lazy_products<io, false>(products, rows, a.k.row, k, q, n);
    if (a.ahead) count = lazy_clamp(a, counter);
    const bool appends = !lazy_folds<1>(a, count);
    const struct token_factors f =
        token_factors_of(token_sum<32>(kk), token_sum<32>(qq), token_sum<32>(kq), a.one);
#pragma unroll 1
    for (int i = half; i - half < a.n_sharing; i += 2) {
        const bool is = i < a.n_sharing;
        mine.head = w.head + (is ? i : 0);
        if (i >= 2) {
            token_fetch_gates(gates, a.one, mine);
            gate = lazy_gate(a, mine, last, count);
        }
        float *const memory = lazy_memory(a, mine);
        const struct lazy_place to = { memory, lazy_decays<1>(memory, a), is };
        float alpha, beta;
        token_expand_gates<io>(alpha, beta, gates, a.one);
        lazy_leave_head(to, a, mine, f, products, gate, count, beta, alpha, count);
        if (appends && is && lane % LAZY_ROWS == 0)
            *(float *)lazy_at(a.g, mine.from, count, mine.head) = lazy_row_gate(alpha, beta);
    }
    if (appends && pair % a.n_k_pairs == 0) lazy_append_k<io>(a, w, k, f.k, count);
}

/* ---- For the second kernel ------------------------------------------------------------------- */

/* Loads u at an address of a row, or zero. Returns it as float32. */
template <bool wide> GDN_DEVICE uint32_t lazy_load_u(const char *at, bool there)
{
    return ld_b32_b16(at, wide && there, !wide && there);
}
template <int io, bool wide> GDN_DEVICE float lazy_u(uint32_t x)
{
    return wide ? __uint_as_float(x) : token_half<io>(x);
}

/* Adds u of the rows that count, times their weights, of the column at u of row 0, sixteen rows at
 * a time. SHARING lanes side by side have one column, and share the rows; the sums are of the
 * lane's rows. */
template <int io, bool wide, int SHARING>
GDN_DEVICE void lazy_add_rows(float &p, float &z, const char *u, int step, const float *weights,
                              const struct lazy_facts &f)
{
    enum { N = LAZY_ROWS / SHARING };
    const int lane = threadIdx.x, mine = lane % SHARING;
#pragma unroll 1
    for (int first = f.first; first < f.count; first += LAZY_ROWS) {
        uint32_t x[N], w[4];
        ld_keep_v2(w, weights + 2 * (first + lane), lane < LAZY_ROWS && first + lane < f.count);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int j = first + n * SHARING + mine;
            x[n] = lazy_load_u<wide>(u + mad_wide(j, step, 0), j < f.count);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float un = lazy_u<io, wide>(x[n]);
            const int row = n * SHARING + mine;
            p = fmaf(__uint_as_float(__shfl_sync(0xffffffff, w[0], row)), un, p);
            z = fmaf(__uint_as_float(__shfl_sync(0xffffffff, w[1], row)), un, z);
        }
    }
}

/* Requests u from memory, from column v on, a row for each lane, before the count is known. */
GDN_DEVICE void lazy_request_rows(const struct gdn_cu_lazy &a, const struct token_place &w, int v)
{
    const int row = threadIdx.x;
    prefetch(lazy_at(a.u, w.from, row, w.head) + v * a.u.bytes, a.ahead && row < a.n_rows);
}

/* Returns the decay of row j0 + lane % 32 for a fold: 0 if it does not count, is behind the record,
 * or is not among sixteen. */
GDN_DEVICE float lazy_row_decay(const float *decays, const struct lazy_facts &f, int j0)
{
    const int lane = threadIdx.x;
    const bool there = lane < LAZY_ROWS && j0 + lane >= f.first && lane < f.count - j0;
    return __uint_as_float(ld_b32_b16(decays + j0 + lane, there, false));
}

/* Computes the sums of column `own` of each lane. */
template <int io, int SHARING>
GDN_DEVICE void lazy_sum_rows(float &p, float &z, const struct gdn_cu_lazy &a,
                              const struct token_place &w, const float *weights,
                              const struct lazy_facts &f, int own)
{
    const char *const u = lazy_at(a.u, w.from, 0, w.head) + own * a.u.bytes;
    p = z = 0;
    if (a.u.bytes == 4)
        lazy_add_rows<io, true, SHARING>(p, z, u, a.u.row, weights, f);
    else
        lazy_add_rows<io, false, SHARING>(p, z, u, a.u.row, weights, f);
    p = token_sum<SHARING>(p), z = token_sum<SHARING>(z);
}

GDN_DEVICE void lazy_set_count(const struct gdn_cu_lazy &a, int slot, int count)
{
    char *const at = a.count + mad_wide(slot, a.count_step, 0);
    if (a.count_bytes == 4)
        *(int32_t *)at = count;
    else
        *(int64_t *)at = count;
}

/* Counts the tokens, once for each slot. Returns false if they fill the record. */
template <int TOKENS>
GDN_DEVICE bool lazy_appends(const struct gdn_cu_lazy &a, const struct token_place &w, int count)
{
    const bool folds = lazy_folds<TOKENS>(a, count);
    if (blockIdx.x == 0 && w.head == 0 && threadIdx.x == 0)
        lazy_set_count(a, w.from, folds ? 0 : count + lazy_tokens<TOKENS>(a));
    return !folds;
}

/* Stores u of column `own` as a part of row `row`. */
template <int io>
GDN_DEVICE void lazy_append_u(const struct gdn_cu_lazy &a, const struct token_place &w, int row,
                              int own, float u)
{
    char *const to = lazy_at(a.u, w.from, row, w.head) + own * a.u.bytes;
    if (a.u.bytes == 4) *(float *)to = u;
    if (a.u.bytes == 2) token_store_half<io>(to, u);
}

/* ---- Several tokens in the second kernel: u of those ahead ----------------------------------- */

/* Adds u of the tokens ahead of token t that count, times their weights. us: u of the lane's column
 * of token 0; those of the next token are `step` behind. */
GDN_DEVICE void lazy_add_tokens(float &p, float &z, const float *us, int step, const float *weights,
                                const struct lazy_facts &f, int t)
{
    const int lane = threadIdx.x, first = f.first > f.count ? f.first - f.count : 0;
    uint32_t w[4];
    ld_keep_v2(w, weights + 2 * (f.count + lane), lane >= first && lane < t);
#pragma unroll 1
    for (int i = first; i < t; i++) {
        p = fmaf(__uint_as_float(__shfl_sync(0xffffffff, w[0], i)), us[i * step], p);
        z = fmaf(__uint_as_float(__shfl_sync(0xffffffff, w[1], i)), us[i * step], z);
    }
}

/* Request data of a loop over tokens: each lane loads two bytes of a line, so that the L1 cache has
 * it. More could not be aligned. The second requests all that a head has in memory. */
GDN_DEVICE void lazy_touch(const char *data, int step, int n)
{
    const int i = threadIdx.x;
    ld_b32_b16(data + mad_wide(i, step, 0), false, i < n);
}
GDN_DEVICE void lazy_touch_memory(const struct gdn_cu_lazy &a, const float *memory)
{
    enum { LINE = 32 /* numbers */ };
    const int n = (a.step + LINE - 1) / LINE;
    for (int i = 0; i < n; i += 32) lazy_touch((const char *)(memory + i * LINE), LINE * 4, n - i);
}

/* Computes the tokens one after the other, from p and z of their raw k and q. us: gets u. column,
 * own: the lane's, of the block and of all. speaks: the lane stores. rows: sums of the record's
 * rows. f: the facts of the first token; at the end of the last. */
template <int io, int COLUMNS, class Rows>
GDN_DEVICE void lazy_run_tokens(float (&us)[LAZY_TOKENS][COLUMNS], struct lazy_facts &f,
                                const float2 (&pz)[LAZY_TOKENS][COLUMNS],
                                const struct gdn_cu_lazy &a, const struct token_place &w,
                                float *memory, const char *values, int column, int own, bool speaks,
                                const Rows &rows)
{
    const struct gdn_cu_token &o = a.one;
    const bool appends = !lazy_folds<LAZY_TOKENS>(a, f.count);
#pragma unroll 1
    for (int t = 0; t < a.n_tokens; t++) {
        float *const its = lazy_at_token(memory, a, t);
        float rows_p, rows_z;
        if (t) f = lazy_load_facts(its);
        const uint32_t value = ld_b32_b16(values + mad_wide(t, a.v_token, 0), false, true);
        rows(rows_p, rows_z, lazy_weights(its), f);
        lazy_add_tokens(rows_p, rows_z, &us[0][column], COLUMNS, lazy_weights(its), f, t);
        float2 read = pz[t][column];
        if (__builtin_expect(f.decay == 0, 0)) read = make_float2(0, 0); /* NaN or not */
        const float u = rule_u(f.beta, token_half<io>(value), fmaf(f.k, read.x, rows_p));
        if (o.out.data && speaks)
            token_store_half<io>(token_at(o.out, w.row, w.head) + own * 2 +
                                     mad_wide(t, a.out_token, 0),
                                 rule_o(f.kq, fmaf(f.q, read.y, rows_z), u));
        us[t][column] = u;
        if (appends && speaks) lazy_append_u<io>(a, w, f.count + t, own, u);
    }
}

/* The part of token `lane` of a call in a fold: the factor of raw k, and the decay behind it, 0 if
 * it adds nothing. */
struct lazy_last {
    float key, decay;
};
GDN_DEVICE struct lazy_last lazy_last_of(const struct gdn_cu_lazy &a, float *memory,
                                         const float *decays, int count)
{
    const int t = threadIdx.x, last = a.n_tokens - 1;
    if (t > last) return { 0, 0 };
    const struct lazy_facts f = lazy_load_facts(lazy_at_token(memory, a, t));
    if (t == last) return { f.key, f.beta == 0 ? 0.0f : 1.0f };
    return { f.key, __uint_as_float(ld_b32(decays + count + t)) };
}

/* Return the power of two of a factor of k, and the rest of it. Where raw k is very large or small,
 * float16 has no number for u times the factor. It has them for k times the power, with all bits
 * of k, and for u times the rest. */
GDN_DEVICE float half_power(float key)
{
    return __uint_as_float(__float_as_uint(key) & 0x7f800000);
}
GDN_DEVICE float half_rest(float key)
{
    return __uint_as_float((__float_as_uint(key) & 0x007fffff) | 0x3f800000);
}

/* Finds what a fold adds of each token in column `column`: u times decays and factors of k; `half`:
 * the rest of these factors. key: gets the factor of token `lane`. us: of several tokens. u: of
 * one, in lane `from`. Returns the bits of the tokens that add. */
template <bool half, int TOKENS, int COLUMNS>
GDN_DEVICE unsigned lazy_last_us(float (&of)[TOKENS], float &key,
                                 const float (&us)[TOKENS][COLUMNS], const struct gdn_cu_lazy &a,
                                 float *memory, const struct lazy_facts &f, float u, int column,
                                 int from)
{
    if constexpr (TOKENS == 1) {
        key = f.key;
        of[0] = __shfl_sync(0xffffffff, u * (half ? half_rest(f.key) : f.key), from);
        return f.beta != 0;
    } else {
        const struct lazy_last x = lazy_last_of(a, memory, lazy_decays<TOKENS>(memory, a), f.count);
        const unsigned adds = __ballot_sync(0xffffffff, x.decay != 0);
        key = x.key;
        const float own = x.decay * (half ? half_rest(x.key) : x.key);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const float factor = __shfl_sync(0xffffffff, own, t);
            of[t] = adds >> t & 1 ? factor * us[t][column] : 0;
        }
        return adds;
    }
}

#define DECODE_LAZY_ROWS_KERNEL(threads, name, io, KC)           \
    extern "C" __global__ void __launch_bounds__(threads, 7)     \
        name(const __grid_constant__ struct gdn_cu_lazy a)       \
    {                                                            \
        static_assert(KC == LAZY_K, "a lane has four elements"); \
        decode_lazy_rows<GDN_##io, threads / 32>(a);             \
    }

#endif
