/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Hopper adds: clusters, barriers in memory, copies of tiles, products of warpgroups. A
 * copy is done some turns after it is asked for; a product when it is asked for or when it is
 * waited for, and then all its factors are read and its sums written: who does not wait, or
 * gives a place back too soon, has wrong results. One seed (run.cpp) is one choice of all that.
 */
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda.h"
#include "fibers.h"
#include "hopper.h"
#include "map.h"

enum { LANES = EMULATED_LANES, MOST_COLUMNS = 128, DEPTH = 16 };

/* ---- Places ---------------------------------------------------------------------------------- */

/* Rank of the block that an address is of. */
static int rank_of(uint32_t at) { return at >> 24 ? (int)(at >> 24) - 1 : emulated_rank(); }

char *emulated_place(uint32_t at)
{
    if ((at & 0xffffff) >= EMULATED_SHARED) emulated_give_up("an address beyond shared memory");
    return emulated_shared_of(rank_of(at)) + (at & 0xffffff);
}
char *emulated_shared(void) { return emulated_shared_of(emulated_rank()); }

/* Returns the swizzled address in a tile: the 128-byte swizzle. */
static uint32_t swizzled(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }

/* ---- Barriers -------------------------------------------------------------------------------- */

struct mbarrier {
    int32_t bytes; /* that are still to come */
    uint16_t left; /* of n, before the phase ends */
    uint16_t n : 15, phase : 1;
};
static_assert(sizeof(mbarrier) == 8, "as on the device");
static const uint64_t PHASE = 1ull << 63;

static mbarrier *barrier_at(uint32_t at)
{
    if (at % 8) emulated_give_up("a barrier is not aligned");
    return (mbarrier *)emulated_place(at);
}

static void end_phase(mbarrier *b)
{
    if (b->left || b->bytes) return;
    b->left = b->n;
    b->phase ^= 1;
}

void emulated_init_mbarrier(uint32_t barrier, int n)
{
    *barrier_at(barrier) = { 0, (uint16_t)n, (uint16_t)n, 0 };
}

void emulated_arrive(uint32_t barrier, int bytes)
{
    mbarrier *b = barrier_at(barrier);
    if (!b->left) emulated_give_up("more arrive at a barrier than it is for");
    b->bytes += bytes;
    b->left--;
    end_phase(b);
}

void emulated_wait_for_phase(uint32_t barrier, uint32_t parity)
{
    emulated_wait_while((const uint64_t *)barrier_at(barrier), PHASE, parity ? PHASE : 0);
}

bool emulated_has_ended(uint32_t barrier, uint32_t parity)
{
    return barrier_at(barrier)->phase != parity;
}

/* ---- Clusters -------------------------------------------------------------------------------- */

/* A thread arrives and later waits for all others; single blocks have no other to wait for. */
static struct {
    int n_here;
    uint64_t n_past;
} met;

/* A product that a thread has asked for; a: of a factor in registers its two rows. */
struct kept_product {
    emulated_product p;
    uint64_t number; /* of the warp's */
    float a[2][DEPTH];
};
struct hopper_thread {
    std::vector<std::vector<kept_product>> groups; /* the last one is not committed */
    uint64_t n_products;
    uint64_t arrived; /* met.n_past then */
    uint64_t n_stores, n_stored;
};
/* The second factor of a product, which all lanes of a warp read: loaded by the first of them. */
struct second_factor {
    uint64_t number;
    float b[MOST_COLUMNS][DEPTH];
};
enum { KEPT = 64 }; /* products of a warp that may be under way */
static std::vector<hopper_thread> threads;
static std::vector<second_factor> factors; /* [warps][KEPT] */

static hopper_thread &self(void) { return threads[(size_t)emulated_thread()]; }

void emulated_begin_products(int n_threads)
{
    threads.assign((size_t)n_threads, hopper_thread());
    for (hopper_thread &t : threads) t.groups.assign(1, {});
    factors.resize((size_t)(n_threads / LANES * KEPT));
    for (second_factor &f : factors) f.number = ~0ull;
    met = {};
}

void emulated_end_products(void)
{
    for (const auto &g : self().groups)
        if (!g.empty()) emulated_give_up("a thread has ended that has products under way");
    if (self().n_stored != self().n_stores)
        emulated_give_up("a thread has ended that has copies under way");
}

uint32_t emulated_cluster_rank(void) { return (uint32_t)emulated_rank(); }

void emulated_cluster_arrive(void)
{
    self().arrived = met.n_past;
    if (++met.n_here == emulated_cluster_size() * (int)blockDim.x) met.n_here = 0, met.n_past++;
}

void emulated_cluster_wait(void) { emulated_wait_while(&met.n_past, ~0ull, self().arrived); }

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Counts the bytes of a copy at a barrier of the block that they arrive in. */
static void come(uint32_t barrier, int rank, int bytes)
{
    mbarrier *b = (mbarrier *)(emulated_shared_of(rank) + (barrier & 0xffffff));
    b->bytes -= bytes;
    end_phase(b);
}

void emulated_copy_to_block(uint32_t to, uint32_t from, int bytes, uint32_t barrier)
{
    char *target = emulated_place(to);
    const char *source = emulated_place(from);
    const int rank = rank_of(to);
    if (to % 16 || from % 16 || bytes % 16) emulated_give_up("a copy to a block is not aligned");
    if (rank_of(barrier) != rank) emulated_give_up("a copy and its barrier are of two blocks");
    emulated_later([=] {
        memcpy(target, source, (size_t)bytes);
        come(barrier, rank, bytes);
    });
}

void emulated_send_to_block(uint32_t to, const float (&x)[4], uint32_t barrier)
{
    char *target = emulated_place(to);
    const int rank = rank_of(to);
    const float kept[4] = { x[0], x[1], x[2], x[3] };
    if (to % 16) emulated_give_up("what is sent to a block is not aligned");
    if (rank_of(barrier) != rank) emulated_give_up("a copy and its barrier are of two blocks");
    emulated_later([=] {
        memcpy(target, kept, sizeof kept);
        come(barrier, rank, sizeof kept);
    });
}

void emulated_copy_in(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    char *target = emulated_place(to);
    const int rank = rank_of(to);
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16) emulated_give_up("a copy is not aligned");
    if (rank_of(barrier) != rank) emulated_give_up("a copy and its barrier are of two blocks");
    emulated_later([=] {
        memcpy(target, from, (size_t)bytes);
        come(barrier, rank, bytes);
    });
}

/* Calls with each element of a box that is in the tensor, or NULL, and its place in the tile. */
template <class Each>
static void walk(const emulated_map &m, const int (&at)[4], uint32_t tile, Each each)
{
    uint32_t n = 0;
    for (uint32_t i3 = 0; i3 < m.box[3]; i3++)
        for (uint32_t i2 = 0; i2 < m.box[2]; i2++)
            for (uint32_t i1 = 0; i1 < m.box[1]; i1++)
                for (uint32_t i0 = 0; i0 < m.box[0]; i0++, n++) {
                    const int64_t x[4] = { at[0] + (int64_t)i0, at[1] + (int64_t)i1,
                                           at[2] + (int64_t)i2, at[3] + (int64_t)i3 };
                    bool inside = true;
                    char *p = m.data + 2 * x[0];
                    for (int i = 0; i < 4; i++) inside &= x[i] >= 0 && x[i] < (int64_t)m.size[i];
                    for (int i = 0; i < 3; i++) p += x[i + 1] * (int64_t)m.step[i];
                    each(inside ? p : NULL, swizzled(tile + 2 * n));
                }
}

static emulated_map map_at(const void *map, uint32_t tile)
{
    emulated_map m;
    memcpy(&m, map, sizeof m);
    if (tile % 1024) emulated_give_up("a tile is not aligned");
    return m;
}

void emulated_load_tile(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier)
{
    const emulated_map m = map_at(map, to);
    char *const base = emulated_shared();
    const int rank = emulated_rank(), x[4] = { at[0], at[1], at[2], at[3] };
    emulated_later([=] {
        int bytes = 0;
        walk(m, x, to, [&](const char *from, uint32_t place) {
            memset(base + place, 0, 2);
            if (from) memcpy(base + place, from, 2);
            bytes += 2;
        });
        come(barrier, rank, bytes);
    });
}

void emulated_store_tile(const void *map, const int (&at)[4], uint32_t from)
{
    const emulated_map m = map_at(map, from);
    const char *const base = emulated_shared();
    const int x[4] = { at[0], at[1], at[2], at[3] }, thread = emulated_thread();
    self().n_stores++;
    emulated_later([=] {
        walk(m, x, from, [&](char *to, uint32_t place) {
            if (to) memcpy(to, base + place, 2);
        });
        threads[(size_t)thread].n_stored++;
    });
}

void emulated_copy_out(void *to, uint32_t from, int bytes)
{
    const char *source = emulated_place(from);
    const int thread = emulated_thread();
    if ((uintptr_t)to % 16 || from % 16 || bytes % 16) emulated_give_up("a copy is not aligned");
    self().n_stores++;
    emulated_later([=] {
        memcpy(to, source, (size_t)bytes);
        threads[(size_t)thread].n_stored++;
    });
}

void emulated_wait_for_stores(void)
{
    hopper_thread &t = self();
    while (t.n_stored != t.n_stores) emulated_wait_while(&t.n_stored, ~0ull, t.n_stored);
}

/* Lanes 8 i to 8 i + 7 give the rows of matrix i; lane l has two elements of row l / 4. */
void emulated_store_matrices(uint32_t row, const uint32_t (&x)[4])
{
    const uint64_t *rows = emulated_exchange(row);
    const unsigned lane = threadIdx.x % LANES;
    if (row % 16) emulated_give_up("a matrix is not aligned");
    for (unsigned m = 0; m < 4; m++)
        memcpy(emulated_place((uint32_t)rows[8 * m + lane / 4] + lane % 4 * 4), &x[m], 4);
}

/* The same turned: lane l has two elements of column l / 4. */
void emulated_store_turned(uint32_t row, const uint32_t (&x)[4])
{
    const uint64_t *rows = emulated_exchange(row);
    const unsigned column = threadIdx.x % LANES / 4, first = threadIdx.x % 4 * 2;
    if (row % 16) emulated_give_up("a matrix is not aligned");
    for (unsigned m = 0; m < 4; m++)
        for (unsigned i = 0; i < 2; i++) {
            const uint16_t e = (uint16_t)(x[m] >> 16 * i);
            memcpy(emulated_place((uint32_t)rows[8 * m + first + i] + 2 * column), &e, 2);
        }
}

/* ---- Products -------------------------------------------------------------------------------- */

static float number(uint16_t x, int dtype)
{
    return dtype == GDN_F16 ? emulated_from_f16(x) : __uint_as_float((uint32_t)x << 16);
}

/* Return the parts of a factor's word: where it begins; how far the next 64 columns are. */
static uint32_t begin_of(uint64_t factor) { return (uint32_t)(factor & 0x3fff) << 4; }
static uint32_t next_of(uint64_t factor) { return (uint32_t)(factor >> 16 & 0x3fff) << 4; }

/* Returns where column c of b begins. */
static uint32_t column_of(const emulated_product &p, unsigned c)
{
    return begin_of(p.b) + (p.turned ? c / 64 * next_of(p.b) + c % 64 * 2 : c * 128);
}

static void read(float (&x)[DEPTH], uint32_t at, uint32_t step, int dtype)
{
    const char *const base = emulated_shared();
    for (unsigned k = 0; k < DEPTH; k++) {
        uint16_t bits;
        memcpy(&bits, base + swizzled(at + k * step), 2);
        x[k] = number(bits, dtype);
    }
}

static const second_factor &factor_of(const kept_product &m)
{
    second_factor &f = factors[(size_t)(emulated_thread() / LANES * KEPT) + m.number % KEPT];
    if (f.number == m.number) return f;
    f.number = m.number;
    for (int c = 0; c < 2 * m.p.n; c++)
        read(f.b[c], column_of(m.p, (unsigned)c), m.p.turned ? 128 : 2, m.p.dtype);
    return f;
}

/* a b, each product exact */
static double multiply_rows(const float (&a)[DEPTH], const float (&b)[DEPTH])
{
    double sums[4] = {};
    for (unsigned k = 0; k < DEPTH; k++) sums[k % 4] += (double)(a[k] * b[k]);
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/* The lane's part: rows l / 4 and that + 8 of the warp's, two of every 8 columns. */
static void multiply(kept_product &m)
{
    const emulated_product &p = m.p;
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % 4;
    const second_factor &f = factor_of(m);
    for (unsigned i = 0; i < 2 && !p.a; i++) {
        const unsigned row = 16 * warp + lane / 4 + 8 * i;
        read(m.a[i], begin_of(p.a_tile) + row * (p.a_turned ? 2 : 128), p.a_turned ? 128 : 2,
             p.dtype);
    }
    for (int j = 0; j < p.n; j++) {
        const unsigned column = (unsigned)(j / 4 * 8 + j % 2) + lane % 4 * 2;
        const double before = p.adds ? (double)p.d[j] : 0;
        p.d[j] = (float)(before + multiply_rows(m.a[j / 2 % 2], f.b[column]));
    }
}

/* As many groups as are left. */
static void end_groups(int n_left)
{
    auto &groups = self().groups;
    while ((int)groups.size() > n_left + 1) {
        for (kept_product &m : groups.front()) multiply(m);
        groups.erase(groups.begin());
    }
}

void emulated_multiply(const emulated_product &p)
{
    kept_product m = { p, self().n_products++, {} };
    const unsigned first = threadIdx.x % LANES / 4 * 4; /* the first of the four lanes with the
                                                           same row */
    for (int word = 0; word < 4 && p.a; word++) {
        const uint64_t *all = emulated_exchange(p.a[word]);
        for (unsigned k = 0; k < 8; k++)
            m.a[word % 2][word / 2 * 8 + k] =
                number((uint16_t)(all[first + k / 2] >> k % 2 * 16), p.dtype);
    }
    self().groups.back().push_back(m);
}

/* All lanes of a warp do it at once, or later. */
void emulated_commit_products(void)
{
    const uint64_t now = emulated_exchange(emulated_random(2))[0];
    self().groups.push_back({});
    if (now) end_groups(0);
}

void emulated_wait_for_products(int n_groups) { end_groups(n_groups); }
