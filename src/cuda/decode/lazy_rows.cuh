/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rows of a record have to do with a token: the first of the two kernels of lazy.cuh. A
 * warp has one state head of a sequence. It computes all that has one number for each row, once:
 *
 *     G_j   the product of the decays behind row j, that of the token included; G of the state
 *     w_j   G_j (k_j . k) and G_j (k_j . q), with the factors of k and q
 *
 * and leaves it in memory. It also appends k and the gate of the token to a record that does not
 * become full.
 */
#ifndef GDN_CUDA_DECODE_LAZY_ROWS_CUH
#define GDN_CUDA_DECODE_LAZY_ROWS_CUH

#include "cuda/decode/token.cuh"

/* The lanes of a warp, with four elements of k each, have one row of K = 128. Rows go sixteen at a
 * time, so the two products of each make one sum for each lane. */
enum { LAZY_K = 128, LAZY_ROWS = 16 };

/* What a head leaves: numbers, then two weights for each row, then the decay of each row. k and q:
 * factors of S k and S q of raw k and q. key: that of raw k alone. decay: that of the state. Rows
 * [first, count) count: a gate has forgotten those before, whose u may be no number. */
struct alignas(16) lazy_facts {
    float k, q, kq, beta, key, decay;
    int32_t first, count;
};
enum { LAZY_FACTS = sizeof(struct lazy_facts) / 4 };

GDN_DEVICE float *lazy_memory(const struct gdn_cu_lazy &a, const struct token_place &w)
{
    return a.memory + (int64_t)(w.row * a.n_heads + w.head) * a.step;
}
GDN_DEVICE struct lazy_facts lazy_load_facts(const float *memory)
{
    uint32_t x[2][4];
    ld_v4(x[0], memory), ld_v4(x[1], memory + 4);
    return { __uint_as_float(x[0][0]), __uint_as_float(x[0][1]), __uint_as_float(x[0][2]),
             __uint_as_float(x[0][3]), __uint_as_float(x[1][0]), __uint_as_float(x[1][1]),
             (int32_t)x[1][2],         (int32_t)x[1][3] };
}
GDN_DEVICE float *lazy_weights(float *memory) { return memory + LAZY_FACTS; }
GDN_DEVICE float *lazy_decays(float *memory, const struct gdn_cu_lazy &a)
{
    return memory + LAZY_FACTS + 2 * a.n_places;
}

GDN_DEVICE char *lazy_at(const struct gdn_cu_lazy_rows &r, int slot, int row, int head)
{
    return r.data + mad_wide(slot, r.slot, mad_wide(row, r.row, mad_wide(head, r.head, 0)));
}

GDN_DEVICE bool lazy_folds(const struct gdn_cu_lazy &a, int count) { return count + 1 >= a.n_rows; }

/* Returns the rows in use of a slot. */
GDN_DEVICE int lazy_count(const struct gdn_cu_lazy &a, int slot)
{
    const int64_t n = ld_index(a.count + mad_wide(slot, a.count_step, 0), a.count_bytes, 0);
    return (int)clamp64(n, 0, a.n_rows);
}

/* Returns element e of four that lie at x. */
template <int io, bool wide> GDN_DEVICE float lazy_element(const uint32_t (&x)[4], int e)
{
    return wide ? __uint_as_float(x[e]) : token_element<io>(x[e / 2], e);
}

/* Adds the lane's part of the products of n rows with k, and with q to the second half of x. */
template <int io, bool wide>
GDN_DEVICE void lazy_products(float (&x)[2 * LAZY_ROWS], const float (&k)[4], const float (&q)[4],
                              const char *rows, int step, int n)
{
    uint32_t y[LAZY_ROWS][4];
#pragma unroll
    for (int j = 0; j < LAZY_ROWS; j++) {
        const char *at = rows + mad_wide(j, step, 0) + threadIdx.x % 32 * (wide ? 16 : 8);
        if (wide)
            ld_keep_v4(y[j], at, j < n);
        else
            ld_keep_v2(y[j], at, j < n);
    }
#pragma unroll
    for (int i = 0; i < 4 * LAZY_ROWS; i++) {
        const int j = i / 4, e = i % 4;
        const float yi = lazy_element<io, wide>(y[j], e);
        x[j] = fmaf(yi, k[e], e ? x[j] : 0);
        x[LAZY_ROWS + j] = fmaf(yi, q[e], e ? x[LAZY_ROWS + j] : 0);
    }
}

/* The decays of sixteen rows. own: behind the lane's row, which is lane % 16. all: of all rows. */
struct lazy_decay {
    float own, all;
};

GDN_DEVICE struct lazy_decay lazy_decay_of(uint32_t gate, float behind)
{
    const int row = threadIdx.x % LAZY_ROWS;
    float x = __uint_as_float(gate & 0x7fffffff);
#pragma unroll
    for (int step = 1; step < LAZY_ROWS; step *= 2) {
        const float other = __shfl_down_sync(0xffffffff, x, step);
        if (row + step < LAZY_ROWS) x *= other;
    }
    const float later = __shfl_down_sync(0xffffffff, x, 1);
    const float own = row + 1 < LAZY_ROWS ? behind * later : behind;
    return { own, behind * __shfl_sync(0xffffffff, x, 0) };
}

/* Leaves weights and decays of rows [first, first + n) in memory, zeros for rows whose sign bit is
 * set, which only decay, and for places behind. Returns the decay of what is before them; behind: the decay behind them.
 * Sets `oldest` to the first of them that counts, if one does. */
template <int io>
GDN_DEVICE float lazy_leave_rows(int &oldest, float *memory, const struct gdn_cu_lazy &a,
                                 const struct token_place &w, const struct token_factors &f,
                                 const float (&k)[4], const float (&q)[4], int first, int n,
                                 float behind)
{
    const int lane = threadIdx.x % 32, row = lane % LAZY_ROWS;
    const char *const rows = lazy_at(a.k, w.from, first, token_source(w.head, a.one.group_k));
    const uint32_t gate = ld_b32_b16(lazy_at(a.g, w.from, first + row, w.head), row < n, false);
    float x[2 * LAZY_ROWS];
    if (a.k.bytes == 4)
        lazy_products<io, true>(x, k, q, rows, a.k.row, n);
    else
        lazy_products<io, false>(x, k, q, rows, a.k.row, n);
    const struct lazy_decay d = lazy_decay_of(row < n ? gate : __float_as_uint(1), behind);
    const float product = token_sums<32, 2 * LAZY_ROWS>(x);
    const bool counts = row < n && d.own != 0, adds = counts && !(gate >> 31);
    const float weight = d.own * (lane < LAZY_ROWS ? f.k : f.q) * product;
    const unsigned all = __ballot_sync(0xffffffff, counts);
    if (all) oldest = first + __ffs(all) - 1;
    if (first + row < a.n_places) {
        lazy_weights(memory)[2 * (first + row) + lane / LAZY_ROWS] = adds ? weight : 0;
        if (lane < LAZY_ROWS) lazy_decays(memory, a)[first + row] = adds ? d.own : 0;
    }
    return d.all;
}

/* Stores the lane's elements of k, and the gate, as row `row` of the record. */
template <int io>
GDN_DEVICE void lazy_append(const struct gdn_cu_lazy &a, const struct token_place &w,
                            const float (&k)[4], float key, float alpha, float beta, int row)
{
    const int lane = threadIdx.x % 32;
    if (lane == 0)
        *(float *)lazy_at(a.g, w.from, row, w.head) = copysignf(alpha, beta == 0 ? -1.0f : 1.0f);
    if (w.head % a.n_sharing) return;
    char *const to = lazy_at(a.k, w.from, row, token_source(w.head, a.one.group_k));
    const float x[4] = { key * k[0], key * k[1], key * k[2], key * k[3] };
    store_chunk(to + lane * 4 * a.k.bytes, x, a.k.bytes == 4 ? GDN_F32 : io);
}

template <int io> GDN_DEVICE void decode_lazy_rows(const struct gdn_cu_lazy &a)
{
    const int lane = threadIdx.x % 32;
    struct token_place w;
    w.head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    w.row = blockIdx.y;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (w.head >= a.n_heads || !token_slots(w, a.one)) return;
    const int count = lazy_count(a, w.from);
    uint32_t raw[2][4];
    struct token_gates gates;
    float k[4], q[4], alpha, beta;
    ld_keep_v2(raw[0], token_at(a.one.k, w.row, token_source(w.head, a.one.group_k)) + lane * 8,
               true);
    ld_keep_v2(raw[1], token_at(a.one.q, w.row, token_source(w.head, a.one.group_q)) + lane * 8,
               true);
    token_fetch_gates(gates, a.one, w);
    token_expand_gates<io>(alpha, beta, gates, a.one);
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        k[e] = token_element<io>(raw[0][e / 2], e), q[e] = token_element<io>(raw[1][e / 2], e);
        kk = fmaf(k[e], k[e], kk), qq = fmaf(q[e], q[e], qq), kq = fmaf(k[e], q[e], kq);
    }
    const struct token_factors f =
        token_factors_of(token_sum<32>(kk), token_sum<32>(qq), token_sum<32>(kq), a.one);
    float *const memory = lazy_memory(a, w);
    int oldest = count;
    float decay = alpha;
    for (int first = (count - 1) / LAZY_ROWS * LAZY_ROWS, end = count; end > 0;
         end = first, first -= LAZY_ROWS)
        decay = lazy_leave_rows<io>(oldest, memory, a, w, f, k, q, first, end - first, decay);
    if (lane == 0)
        *(struct lazy_facts *)memory = { decay * f.k, decay * f.q, f.kq,   beta,
                                         f.k,         decay,       oldest, count };
    if (!lazy_folds(a, count)) lazy_append<io>(a, w, k, f.k, alpha, beta, count);
}

/* ---- What the second kernel does with them ---------------------------------------------------- */

/* Loads u at an address of a row, or zero. Returns it as float32. */
template <bool wide> GDN_DEVICE uint32_t lazy_load_u(const char *at, bool there)
{
    return ld_b32_b16(at, wide && there, !wide && there);
}
template <int io, bool wide> GDN_DEVICE float lazy_u(uint32_t x)
{
    return wide ? __uint_as_float(x) : token_half<io>(x);
}

/* Adds u of the rows that count, times their weights, of the column at u of row 0. SHARING lanes side
 * by side have one column, and share the rows in pairs; then the sums are of the lane's rows. */
template <int io, bool wide, int SHARING>
GDN_DEVICE void lazy_add_rows(float &p, float &z, const char *u, int step, const float *weights,
                              const struct lazy_facts &f)
{
    enum { PAIRS = 4 };
    for (int first = f.first & ~1; first < f.count; first += 2 * PAIRS * SHARING) {
        uint32_t x[PAIRS][2], w[PAIRS][4];
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const int j = first + 2 * (n * SHARING + threadIdx.x % SHARING);
            const char *const at = u + mad_wide(j, step, 0);
            ld_keep_v4(w[n], weights + 2 * j, j < f.count);
            x[n][0] = lazy_load_u<wide>(at, j >= f.first && j < f.count);
            x[n][1] = lazy_load_u<wide>(at + step, j + 1 < f.count);
        }
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; n++) {
            const int i = n / 2, e = n % 2;
            const float un = lazy_u<io, wide>(x[i][e]);
            p = fmaf(__uint_as_float(w[i][2 * e]), un, p);
            z = fmaf(__uint_as_float(w[i][2 * e + 1]), un, z);
        }
    }
}

/* Computes these sums of column `own` for each of its lanes. */
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

/* Counts the token, once for each slot. If it does not fill the record, u of column `own` becomes a
 * part of its row (if the lane `speaks`); else returns false. */
template <int io>
GDN_DEVICE bool lazy_appends(const struct gdn_cu_lazy &a, const struct token_place &w, int count,
                             int own, float u, bool speaks = true)
{
    const bool folds = lazy_folds(a, count);
    if (blockIdx.x == 0 && w.head == 0 && threadIdx.x == 0)
        lazy_set_count(a, w.from, folds ? 0 : count + 1);
    if (folds) return false;
    char *const to = lazy_at(a.u, w.from, count, w.head) + own * a.u.bytes;
    if (speaks && a.u.bytes == 4) *(float *)to = u;
    if (speaks && a.u.bytes == 2) token_store_half<io>(to, u);
    return true;
}

#define DECODE_LAZY_ROWS_KERNEL(threads, name, io, KC)          \
    extern "C" __global__ void __launch_bounds__(threads)       \
        name(const __grid_constant__ struct gdn_cu_lazy a)      \
    {                                                           \
        static_assert(KC == LAZY_K, "a lane has four elements"); \
        decode_lazy_rows<GDN_##io>(a);                          \
    }

#endif
