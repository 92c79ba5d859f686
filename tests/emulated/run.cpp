/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the blocks of a cluster as fibers: one runs until it waits for others, and the warps
 * take turns in an order that changes from turn to turn; what goes on behind their backs is done
 * between turns. Whoever waits for what never comes ends the program. Shared memory begins as NaN.
 */
#include "run.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#include "cuda.h"
#include "fibers.h"

extern "C" {
#include "oracle.h"
}

enum { LANES = EMULATED_LANES, BARRIERS = 16, STACK = 1 << 17, SHARED = EMULATED_SHARED };

emulated_kernel *emulated_kernel::all;
emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* Every name that kernels have for dynamic shared memory; and that of a cluster's second block. */
__shared__ __align__(1024) char gdn_shared[SHARED];
__shared__ __align__(128) char gdn_stage_shared[SHARED];
__shared__ __align__(128) float gdn_conv_shared[SHARED / 4];
__shared__ __align__(128) uint32_t gdn_copy_shared[SHARED / 4];
static __shared__ __align__(1024) char second_shared[SHARED];

/* ---- Fibers ---------------------------------------------------------------------------------- */

struct copy_on_its_way {
    void *to;
    const void *from;
    int bytes, valid;
};

struct fiber {
    jmp_buf at;
    ucontext_t start;
    std::vector<char> stack;
    bool started, done;
    const uint64_t *gate; /* the thread waits while *gate, masked, is `seen`; NULL: it does not
                             wait */
    uint64_t mask, seen;
    std::vector<std::vector<copy_on_its_way>> groups;
};
struct gathering { /* of a warp or at a barrier; n_past: how often all came */
    int n_here;
    uint64_t n_past;
    bool any[2]; /* of a barrier with a vote: the result of this time and of the time before */
};
struct warp {
    gathering g;
    uint64_t given[2][LANES];
    unsigned rests; /* turns that the warp still rests */
};
struct block {
    emulated_index index;
    char *shared;
    gathering barriers[BARRIERS];
    int n_left; /* threads */
};
struct work {
    unsigned turns; /* the least turns until it is done */
    std::function<void()> run;
};

static std::vector<fiber> fibers;
static std::vector<warp> warps;
static std::vector<work> on_its_way;
static block blocks[EMULATED_BLOCKS], *here;
static int cluster_size, now; /* now: the fiber that runs */
static jmp_buf scheduler;
static const emulated_kernel *running;
static const void *run_args;

void emulated_give_up(const char *what)
{
    printf("emulated: %s, block %u, thread %u\n", what, blockIdx.x, threadIdx.x);
    abort();
}

static fiber &self(void) { return fibers[(size_t)now]; }

int emulated_thread(void) { return now; }
int emulated_rank(void) { return (int)(here - blocks); }
int emulated_cluster_size(void) { return cluster_size; }

char *emulated_shared_of(int rank)
{
    if (rank >= cluster_size || !blocks[rank].n_left)
        emulated_give_up("memory of a block that is not there");
    return blocks[rank].shared;
}

unsigned emulated_random(unsigned n)
{
    static const char *seed = getenv("GDN_EMULATED_SEED");
    static uint64_t state = seed ? strtoull(seed, NULL, 10) : 0;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % n);
}

void emulated_wait_while(const uint64_t *gate, uint64_t mask, uint64_t seen)
{
    if ((*gate & mask) != seen) return;
    self().gate = gate, self().mask = mask, self().seen = seen;
    if (!_setjmp(self().at)) _longjmp(scheduler, 1);
    self().gate = NULL;
}

const uint64_t *emulated_exchange(uint64_t mine)
{
    warp &w = warps[(size_t)now / LANES];
    const uint64_t turn = w.g.n_past;
    w.given[turn % 2][threadIdx.x % LANES] = mine;
    if (++w.g.n_here == LANES)
        w.g.n_here = 0, w.g.n_past++;
    else
        emulated_wait_while(&w.g.n_past, ~0ull, turn);
    return w.given[turn % 2];
}

bool emulated_barrier(int barrier, int n_threads, bool waits, bool x)
{
    gathering &g = here->barriers[barrier];
    const uint64_t turn = g.n_past;
    g.any[turn % 2] |= x;
    if (++g.n_here == n_threads)
        g.n_here = 0, g.n_past++, g.any[g.n_past % 2] = false;
    else if (g.n_here > n_threads)
        emulated_give_up("more threads at a barrier than it is for");
    else if (waits)
        emulated_wait_while(&g.n_past, ~0ull, turn);
    return g.any[turn % 2];
}

static void run_fiber(void)
{
    running->run(running->kernel, run_args);
    emulated_end_products();
    self().done = true;
    here->n_left--;
    _longjmp(scheduler, 1);
}

static void resume(int i)
{
    fiber &f = fibers[(size_t)i];
    now = i;
    threadIdx.x = (unsigned)i % blockDim.x;
    here = &blocks[(unsigned)i / blockDim.x];
    blockIdx = here->index;
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    setcontext(&f.start);
}

static void prepare(fiber &f)
{
    f.stack.resize(STACK);
    f.started = f.done = false;
    f.gate = NULL;
    f.groups.assign(1, {});
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack.data();
    f.start.uc_stack.ss_size = STACK;
    makecontext(&f.start, run_fiber, 0);
}

/* Soon, mostly. */
void emulated_later(std::function<void()> run)
{
    on_its_way.push_back({ emulated_random(emulated_random(8) ? 4 : 1000), run });
}

/* Does what is due; returns true if something is in flight. */
static bool work_on(void)
{
    const bool some = !on_its_way.empty();
    for (size_t i = 0; i < on_its_way.size();) {
        if (on_its_way[i].turns) {
            on_its_way[i++].turns--;
            continue;
        }
        const work due = on_its_way[i];
        on_its_way.erase(on_its_way.begin() + (long)i);
        due.run();
    }
    return some;
}

/* Resumes each thread that does not wait, warp by warp, from a random warp and lane. At random a
 * warp rests for many turns. */
static bool take_turn(int n_warps)
{
    const int first = (int)emulated_random((unsigned)n_warps), lane = (int)emulated_random(LANES);
    bool moved = false;
    if (emulated_random(32) == 0)
        warps[emulated_random((unsigned)n_warps)].rests = emulated_random(300);
    for (int j = 0; j < n_warps; j++) {
        const int w = (first + j) % n_warps;
        if (warps[(size_t)w].rests) {
            warps[(size_t)w].rests--;
            moved = true;
            continue;
        }
        for (int i = 0; i < LANES; i++) {
            const int number = w * LANES + (lane + i) % LANES;
            const fiber &f = fibers[(size_t)number];
            if (f.done || (f.gate && (*f.gate & f.mask) == f.seen)) continue;
            moved = true;
            resume(number);
        }
    }
    return moved;
}

static void start_block(block &b, unsigned i, int n_threads, char *shared, unsigned shared_bytes)
{
    b = {};
    b.index = { i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y };
    b.shared = shared;
    b.n_left = n_threads;
    for (void *s : { (void *)shared, (void *)gdn_stage_shared, (void *)gdn_conv_shared,
                     (void *)gdn_copy_shared })
        memset(s, 0xff, shared_bytes);
}

void emulated_run_cluster(const emulated_kernel *kernel, const void *args, unsigned first,
                          int n_blocks, int n_threads, unsigned shared_bytes)
{
    const int n = n_blocks * n_threads;
    running = kernel, run_args = args, cluster_size = n_blocks;
    for (int i = 0; i < n_blocks; i++)
        start_block(blocks[i], first + (unsigned)i, n_threads, i ? second_shared : gdn_shared,
                    shared_bytes);
    warps.assign((size_t)n / LANES, warp());
    if (fibers.size() < (size_t)n) fibers.resize((size_t)n);
    for (int i = 0; i < n; i++) prepare(fibers[(size_t)i]);
    emulated_begin_products(n);
    while (blocks[0].n_left + (n_blocks == 2 ? blocks[1].n_left : 0)) {
        const bool worked = work_on(), moved = take_turn(n / LANES);
        if (!worked && !moved && on_its_way.empty())
            emulated_give_up("threads wait for each other");
    }
    if (!on_its_way.empty()) emulated_give_up("something is under way, and all blocks have ended");
}

/* ---- Instructions ---------------------------------------------------------------------------- */

void emulated_load(void *to, const void *from, int n, bool there)
{
    if (there && (uintptr_t)from % (unsigned)n) emulated_give_up("an address is not aligned");
    if (there) memcpy(to, from, (size_t)n);
}

void emulated_store(void *to, const void *from, int n, bool is)
{
    if (is && (uintptr_t)to % (unsigned)n) emulated_give_up("an address is not aligned");
    if (is) memcpy(to, from, (size_t)n);
}

void emulated_copy(void *to, const void *from, int bytes, int valid)
{
    if ((uintptr_t)to % (unsigned)bytes || (valid && (uintptr_t)from % (unsigned)bytes))
        emulated_give_up("a copy is not aligned");
    self().groups.back().push_back({ to, from, bytes, valid });
}
void emulated_commit(void) { self().groups.push_back({}); }
void emulated_wait(int n_groups)
{
    auto &groups = self().groups;
    while ((int)groups.size() > n_groups + 1) {
        for (const copy_on_its_way &c : groups.front()) {
            memset(c.to, 0, (size_t)c.bytes);
            if (c.valid) memcpy(c.to, c.from, (size_t)c.valid);
        }
        groups.erase(groups.begin());
    }
}

const float *emulated_f16_values(void)
{
    static std::vector<float> values;
    for (int i = 0; values.size() < 1 << 16; i++) {
        const uint16_t h = (uint16_t)i;
        values.push_back((float)oracle_load(&h, GDN_F16, 0));
    }
    return values.data();
}
uint16_t emulated_to_16(float x, bool is_f16)
{
    uint16_t y;
    oracle_store(&y, is_f16 ? GDN_F16 : GDN_BF16, 0, x);
    return y;
}

/* Lanes 8 i to 8 i + 7 give the rows of matrix i. */
void emulated_matrices(uint32_t (&x)[4], const char *row, bool turned)
{
    const uint64_t *rows = emulated_exchange(emulated_bits<uint64_t>(row));
    const unsigned at = threadIdx.x % LANES / 4, pair = threadIdx.x % 4 * 2;
    if ((uintptr_t)row % 16) emulated_give_up("a matrix is not aligned");
    for (unsigned m = 0; m < 4; m++) {
        uint16_t e[2];
        for (unsigned i = 0; i < 2; i++)
            memcpy(&e[i],
                   (const char *)rows[8 * m + (turned ? pair + i : at)] +
                       2 * (turned ? at : pair + i),
                   2);
        x[m] = e[0] | (uint32_t)e[1] << 16;
    }
    __syncwarp();
}

/* A lane's elements of A and B: a word holds two of 16 bits, or one TF32. */
struct mma_factors {
    double a[4][2], b[2][2];
};

static void unpack(double (&to)[2], uint32_t x, emulated_format format)
{
    for (int half = 0; half < 2; half++) {
        const auto bits = (uint16_t)(x >> half * 16);
        to[half] = format == EMULATED_F16    ? (double)emulated_from_f16(bits)
                   : format == EMULATED_BF16 ? (double)__uint_as_float((uint32_t)bits << 16)
                                             : (double)__uint_as_float(x & 0xffffe000u);
    }
}

/* Element k of a row of A, or of a column of B, is in lane 4 i + t, its halves side by side. */
void emulated_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  emulated_format format)
{
    mma_factors mine;
    for (int i = 0; i < 4; i++) unpack(mine.a[i], a[i], format);
    unpack(mine.b[0], b0, format), unpack(mine.b[1], b1, format);
    const uint64_t *all = emulated_exchange(emulated_bits<uint64_t>(&mine));
    const unsigned row = threadIdx.x % LANES / 4, halves = format == EMULATED_TF32 ? 1 : 2;
    for (unsigned i = 0; i < 4; i++) {
        double sum = (double)d[i];
        for (unsigned k = 0; k < 8 * halves; k++) {
            const unsigned t = k / halves % 4, word = k / halves / 4, half = k % halves;
            const unsigned column = threadIdx.x % 4 * 2 + i % 2;
            const auto left = emulated_bits<const mma_factors *>(all[4 * row + t]);
            const auto right = emulated_bits<const mma_factors *>(all[4 * column + t]);
            sum += left->a[i / 2 + 2 * word][half] * right->b[word][half];
        }
        d[i] = (float)sum;
    }
    __syncwarp();
}
