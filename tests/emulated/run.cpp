/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that runs kernels on this processor, a block at a time. Threads are fibers: one
 * runs until it waits for others, and the warps take turns in an order that changes from turn to
 * turn. Whoever waits for what never comes ends the program. Shared memory begins as NaN.
 */
#include "run.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#include "cuda.h"

extern "C" {
#include "cuda/api.h"
#include "oracle.h"
}

enum { LANES = 32, BARRIERS = 16, STACK = 1 << 17, SHARED = EMULATED_SHARED };

emulated_kernel *emulated_kernel::all;
emulated_index   threadIdx, blockIdx, blockDim, gridDim;

/* Every name that kernels have for dynamic shared memory. */
__shared__ __align__(128) char     gdn_shared[SHARED];
__shared__ __align__(128) char     gdn_stage_shared[SHARED];
__shared__ __align__(128) float    gdn_conv_shared[SHARED / 4];
__shared__ __align__(128) uint32_t gdn_copy_shared[SHARED / 4];

/* ---- Fibers ---------------------------------------------------------------------------------- */

struct copy_on_its_way {
    void       *to;
    const void *from;
    int         bytes, valid;
};

struct fiber {
    jmp_buf                                   at;
    ucontext_t                                start;
    std::vector<char>                         stack;
    bool                                      started, done;
    const uint64_t                           *gate; /* it waits while this is `seen`; NULL: no */
    uint64_t                                  seen;
    std::vector<std::vector<copy_on_its_way>> groups;
};
struct gathering { /* of a warp or at a barrier; n_past: how often all came */
    int      n_here;
    uint64_t n_past;
};
struct warp {
    gathering g;
    uint64_t  given[2][LANES];
};

static std::vector<fiber> fibers;
static std::vector<warp>  warps;
static gathering          barriers[BARRIERS];
static jmp_buf            scheduler;
static int                any;
static const emulated_kernel *running;
static const void        *run_args;

[[noreturn]] static void give_up(const char *what)
{
    printf("emulated: %s, block %u, thread %u\n", what, blockIdx.x, threadIdx.x);
    abort();
}

static fiber &self(void) { return fibers[threadIdx.x]; }

static void wait_for(const gathering &g, uint64_t seen)
{
    self().gate = &g.n_past, self().seen = seen;
    if (!_setjmp(self().at)) _longjmp(scheduler, 1);
    self().gate = NULL;
}

const uint64_t *emulated_exchange(uint64_t mine)
{
    warp          &w    = warps[threadIdx.x / LANES];
    const uint64_t turn = w.g.n_past;
    w.given[turn % 2][threadIdx.x % LANES] = mine;
    if (++w.g.n_here == LANES)
        w.g = { 0, turn + 1 };
    else
        wait_for(w.g, turn);
    return w.given[turn % 2];
}

void emulated_barrier(int barrier, int n_threads, bool waits)
{
    gathering     &g    = barriers[barrier];
    const uint64_t turn = g.n_past;
    if (++g.n_here == n_threads)
        g = { 0, turn + 1 };
    else if (g.n_here > n_threads)
        give_up("more threads at a barrier than it is for");
    else if (waits)
        wait_for(g, turn);
}

int __syncthreads_or(int x)
{
    __syncthreads();
    any = 0;
    __syncthreads();
    any |= x != 0;
    __syncthreads();
    return any;
}

static void run_fiber(void)
{
    running->run(running->kernel, run_args);
    self().done = true;
    _longjmp(scheduler, 1);
}

static void resume(int i)
{
    fiber &f    = fibers[(size_t)i];
    threadIdx.x = (unsigned)i;
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    setcontext(&f.start);
}

static void prepare(fiber &f)
{
    f.stack.resize(STACK);
    f.started = f.done = false;
    f.gate             = NULL;
    f.groups.assign(1, {});
    getcontext(&f.start);
    f.start.uc_stack.ss_sp   = f.stack.data();
    f.start.uc_stack.ss_size = STACK;
    makecontext(&f.start, run_fiber, 0);
}

static void run_block(int n_threads)
{
    const int n_warps = n_threads / LANES;
    warps.assign((size_t)n_warps, warp());
    memset(barriers, 0, sizeof barriers);
    for (int i = 0; i < n_threads; i++) prepare(fibers[(size_t)i]);
    for (int turn = (int)blockIdx.x % n_warps, n_left = 1; n_left; turn++) {
        bool moved = false;
        n_left     = 0;
        for (int j = 0; j < n_threads; j++) {
            const int    w = (turn % 2 ? n_threads - 1 - j : j) / LANES + turn;
            const int    i = w % n_warps * LANES + j % LANES;
            const fiber &f = fibers[(size_t)i];
            n_left += !f.done;
            if (f.done || (f.gate && *f.gate == f.seen)) continue;
            moved = true;
            resume(i);
        }
        if (n_left && !moved) give_up("threads wait for each other");
    }
}

/* ---- Instructions ---------------------------------------------------------------------------- */

void emulated_load(void *to, const void *from, int n, bool there)
{
    if (there && (uintptr_t)from % (unsigned)n) give_up("an address is not aligned");
    if (there) memcpy(to, from, (size_t)n);
}

void emulated_store(void *to, const void *from, int n, bool is)
{
    if (is && (uintptr_t)to % (unsigned)n) give_up("an address is not aligned");
    if (is) memcpy(to, from, (size_t)n);
}

void emulated_copy(void *to, const void *from, int bytes, int valid)
{
    if ((uintptr_t)to % (unsigned)bytes || (valid && (uintptr_t)from % (unsigned)bytes))
        give_up("a copy is not aligned");
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

float emulated_from_f16(uint16_t x)
{
    static float values[1 << 16];
    static bool  known;
    for (int i = 0; !known && i < 1 << 16; i++) {
        const uint16_t h = (uint16_t)i;
        values[i]        = (float)oracle_load(&h, GDN_F16, 0);
    }
    known = true;
    return values[x];
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
    const unsigned  at = threadIdx.x % LANES / 4, pair = threadIdx.x % 4 * 2;
    if ((uintptr_t)row % 16) give_up("a matrix is not aligned");
    for (unsigned m = 0; m < 4; m++) {
        uint16_t e[2];
        for (unsigned i = 0; i < 2; i++)
            memcpy(&e[i], (const char *)rows[8 * m + (turned ? pair + i : at)] +
                              2 * (turned ? at : pair + i), 2);
        x[m] = e[0] | (uint32_t)e[1] << 16;
    }
    __syncwarp();
}

/* What a lane has of A and B: a word holds two of 16 bits, or one TF32. */
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
    const unsigned  row = threadIdx.x % LANES / 4, halves = format == EMULATED_TF32 ? 1 : 2;
    for (unsigned i = 0; i < 4; i++) {
        double sum = (double)d[i];
        for (unsigned k = 0; k < 8 * halves; k++) {
            const unsigned t = k / halves % 4, word = k / halves / 4, half = k % halves;
            const unsigned column = threadIdx.x % 4 * 2 + i % 2;
            const auto     left   = emulated_bits<const mma_factors *>(all[4 * row + t]);
            const auto     right  = emulated_bits<const mma_factors *>(all[4 * column + t]);
            sum += left->a[i / 2 + 2 * word][half] * right->b[word][half];
        }
        d[i] = (float)sum;
    }
    __syncwarp();
}

/* ---- The driver ------------------------------------------------------------------------------ */

static int nothing(void) { return 0; }

static int get_text(int, const char **text) { return *text = "emulated", 0; }
static int get_number(int *n) { return *n = 1, 0; }
static int get_name(char *name, int n, int) { return snprintf(name, (size_t)n, "emulated"), 0; }
static int get_attribute(int *value, int what, int)
{
    *value = what == GDN_CU_MAJOR         ? 8
             : what == GDN_CU_MINOR       ? 0
             : what == GDN_CU_SHARED_MOST ? SHARED
                                          : 4;
    return 0;
}
static int get_handle(void **handle) { return *handle = &barriers, 0; }
static int get_kernel(gdn_cu_kernel *kernel, gdn_cu_library, const char *name)
{
    for (emulated_kernel *k = emulated_kernel::all; k; k = k->next)
        if (!strcmp(k->name, name)) return *kernel = k, 0;
    return 500;
}
static int launch(const gdn_cu_config *c, gdn_cu_kernel kernel, void **parameters, void **)
{
    const unsigned *g = c->grid, n_threads = c->block[0], n = g[0] * g[1] * g[2];
    running  = (const emulated_kernel *)kernel;
    run_args = parameters[0];
    blockDim = { n_threads, 1, 1 };
    gridDim  = { g[0], g[1], g[2] };
    if (fibers.size() < n_threads) fibers.resize(n_threads);
    for (unsigned i = 0; i < n; i++) {
        blockIdx = { i % g[0], i / g[0] % g[1], i / g[0] / g[1] };
        for (void *shared : { (void *)gdn_shared, (void *)gdn_stage_shared,
                              (void *)gdn_conv_shared, (void *)gdn_copy_shared })
            memset(shared, 0xff, c->shared_bytes);
        run_block((int)n_threads);
    }
    return 0;
}
static int allocate(gdn_cu_memory *m, size_t n)
{
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    if (p) memset(p, 0xff, n);
    return *m = (gdn_cu_memory)(uintptr_t)p, !p;
}
static int release(gdn_cu_memory m) { return free((void *)(uintptr_t)m), 0; }
static int copy_to(gdn_cu_memory m, const void *from, size_t n)
{
    return memcpy((void *)(uintptr_t)m, from, n), 0;
}
static int copy_from(void *to, gdn_cu_memory m, size_t n)
{
    return memcpy(to, (const void *)(uintptr_t)m, n), 0;
}

#define EXPORT extern "C" __attribute__((visibility("default"))) int
EXPORT cuInit(unsigned) { return 0; }
EXPORT cuDeviceGet(int *device, int i) { return *device = i, 0; }
EXPORT cuDevicePrimaryCtxRetain(void **context, int) { return get_handle(context); }
EXPORT cuCtxSetCurrent(void *) { return 0; }
EXPORT cuMemHostRegister_v2(void *, size_t, unsigned) { return 0; }
EXPORT cuMemHostUnregister(void *) { return 0; }

EXPORT cuGetProcAddress_v2(const char *name, void **found, int, uint64_t, int *)
{
    static const struct {
        const char *name;
        void       *call;
    } calls[] = {
        { "cuDriverGetVersion", (void *)get_number },
        { "cuGetErrorName", (void *)get_text },
        { "cuGetErrorString", (void *)get_text },
        { "cuDeviceGet", (void *)cuDeviceGet },
        { "cuDeviceGetCount", (void *)get_number },
        { "cuDeviceGetName", (void *)get_name },
        { "cuDeviceGetAttribute", (void *)get_attribute },
        { "cuDevicePrimaryCtxRetain", (void *)cuDevicePrimaryCtxRetain },
        { "cuCtxGetCurrent", (void *)get_handle },
        { "cuLibraryLoadData", (void *)get_handle },
        { "cuLibraryGetKernel", (void *)get_kernel },
        { "cuLaunchKernelEx", (void *)launch },
        { "cuMemAlloc", (void *)allocate },
        { "cuMemFree", (void *)release },
        { "cuMemcpyHtoD", (void *)copy_to },
        { "cuMemcpyDtoH", (void *)copy_from },
    };
    *found = (void *)nothing;
    for (const auto &c : calls)
        if (!strcmp(c.name, name)) *found = c.call;
    return 0;
}
