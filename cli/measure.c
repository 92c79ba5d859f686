/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include "cli.h"
#include "core/os/os.h"
#include "core/os/program.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Independent accumulators, enough to hide the latency and few enough for the registers. */
#if defined(__aarch64__)
#define CHAINS 16
#define EACH_CHAIN(X) TWELVE(X) X(12) X(13) X(14) X(15)
#else
#define CHAINS 12
#define EACH_CHAIN(X) TWELVE(X)
#endif
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

enum {
    ROUNDS = 2048, /* between two looks at the clock */
    MAX_FOOTPRINT = 256 << 20,
    QUANTUM = 64 /* floats; a thread's part of the buffer is a multiple */
};

double measure_clock(void) { return 1e-9 * (double)gdn_os_now_ns(); }

/* ---- Loops, one of each per instruction set ---------------------------------------------- */

/* flops: a multiplication and an addition per lane, accumulator and round. scale: x *= c, four
 * registers per step. */
#define LOOPS(isa, target, vec, lanes, set1, load, store, mul)                                \
    target static float flops_##isa(float start)                                              \
    {                                                                                         \
        const vec a = set1(0.5f), b = set1(start);                                            \
        vec sum = b;                                                                          \
        float out[lanes];                                                                     \
        EACH_CHAIN(START_##isa) /* each chain elsewhere: equal ones would be computed once */ \
        for (int i = 0; i < ROUNDS; i++) {                                                    \
            EACH_CHAIN(STEP_##isa)                                                            \
        }                                                                                     \
        EACH_CHAIN(SUM_##isa)                                                                 \
        store(out, sum);                                                                      \
        return out[0];                                                                        \
    }                                                                                         \
    target static void scale_##isa(float *x, size_t n, float factor)                          \
    {                                                                                         \
        const vec c = set1(factor);                                                           \
        for (float *end = x + n; x < end; x += 4 * (lanes)) {                                 \
            const vec x0 = load(x), x1 = load(x + (lanes));                                   \
            const vec x2 = load(x + 2 * (lanes)), x3 = load(x + 3 * (lanes));                 \
            store(x, mul(x0, c));                                                             \
            store(x + (lanes), mul(x1, c));                                                   \
            store(x + 2 * (lanes), mul(x2, c));                                               \
            store(x + 3 * (lanes), mul(x3, c));                                               \
        }                                                                                     \
    }

#if defined(__x86_64__)
#define TARGET(isa) __attribute__((target(isa)))
#define START_scalar(i) __m128 s##i = _mm_set1_ps(start + i);
#define START_avx2(i) __m256 s##i = _mm256_set1_ps(start + i);
#define START_avx512(i) __m512 s##i = _mm512_set1_ps(start + i);
#define STEP_scalar(i) s##i = _mm_add_ps(_mm_mul_ps(s##i, a), b);
#define STEP_avx2(i) s##i = _mm256_fmadd_ps(s##i, a, b);
#define STEP_avx512(i) s##i = _mm512_fmadd_ps(s##i, a, b);
#define SUM_scalar(i) sum = _mm_add_ps(sum, s##i);
#define SUM_avx2(i) sum = _mm256_add_ps(sum, s##i);
#define SUM_avx512(i) sum = _mm512_add_ps(sum, s##i);
LOOPS(scalar, , __m128, 4, _mm_set1_ps, _mm_loadu_ps, _mm_storeu_ps, _mm_mul_ps)
LOOPS(avx2, TARGET("avx2,fma"), __m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
      _mm256_mul_ps)
LOOPS(avx512, TARGET("avx512f"), __m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
      _mm512_mul_ps)
#elif defined(__aarch64__)
#define START_scalar(i) float32x4_t s##i = vdupq_n_f32(start + i);
#define START_neon(i) START_scalar(i)
#define STEP_scalar(i) s##i = vaddq_f32(vmulq_f32(s##i, a), b);
#define STEP_neon(i) s##i = vfmaq_f32(s##i, a, b); /* in place; by b, a move more */
#define SUM_scalar(i) sum = vaddq_f32(sum, s##i);
#define SUM_neon(i) SUM_scalar(i)
LOOPS(scalar, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, vmulq_f32)
LOOPS(neon, , float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, vmulq_f32)
#else
#define SET1(x) (x)
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define MUL(x, y) ((x) * (y))
#define START_scalar(i) float s##i = start + i;
#define STEP_scalar(i) s##i = fmaf(s##i, a, b);
#define SUM_scalar(i) sum += s##i;
LOOPS(scalar, , float, 1, SET1, LOAD, STORE, MUL)
#endif

static const struct loops {
    const char *isa;
    int lanes; /* of a chain */
    float (*flops)(float start);
    void (*scale)(float *x, size_t n, float factor);
} all_loops[] = {
#if defined(__x86_64__)
    { "avx512", 16, flops_avx512, scale_avx512 },
    { "avx2", 8, flops_avx2, scale_avx2 },
    { "scalar", 4, flops_scalar, scale_scalar },
#elif defined(__aarch64__)
    { "neon", 4, flops_neon, scale_neon },
    { "scalar", 4, flops_scalar, scale_scalar },
#else
    { "scalar", 1, flops_scalar, scale_scalar },
#endif
};

static const struct loops *loops_of(const char *isa)
{
    for (size_t i = 0; i < sizeof all_loops / sizeof *all_loops; i++)
        if (!strcmp(all_loops[i].isa, isa)) return &all_loops[i];
    return NULL;
}

/* ---- Threads ----------------------------------------------------------------------------- */

struct worker {
    struct gdn_os_thread thread;
    atomic_bool *go;
    const struct loops *loops;
    float *x; /* its part of the buffer; NULL: arithmetic */
    size_t n;
    double seconds;
    double rate; /* found */
};

static void work(void *arg)
{
    struct worker *w = arg;
    volatile float sink, one = 1; /* hides both from the compiler */
    const size_t repeat = w->x ? 1 + ((size_t)1 << 18) / w->n : 1;
    double count = 0, now, begin;
    if (w->x) w->loops->scale(w->x, w->n, one);
    while (!atomic_load(w->go)) gdn_os_yield();
    begin = measure_clock();
    do {
        if (w->x)
            for (size_t i = 0; i < repeat; i++) w->loops->scale(w->x, w->n, one);
        else
            sink = w->loops->flops(one);
        count++;
        now = measure_clock();
    } while (now - begin < w->seconds);
    if (w->x)
        w->rate = count * (double)(repeat * w->n) * 2 * sizeof *w->x / (now - begin);
    else
        w->rate = count * 2.0 * CHAINS * ROUNDS * w->loops->lanes / (now - begin);
    (void)sink;
}

/* Returns the sum of all threads' rates. */
static double run_workers(const struct measure *m, float *buffer, double seconds)
{
    const size_t part = m->bytes / sizeof *buffer / (size_t)m->n_threads;
    struct worker *w = calloc((size_t)m->n_threads, sizeof *w);
    atomic_bool go = false;
    double sum = 0;
    int n = 0;
    if (!w) return 0;
    for (; n < m->n_threads; n++) {
        w[n].go = &go;
        w[n].loops = loops_of(m->isa);
        w[n].seconds = seconds;
        w[n].n = part;
        w[n].x = buffer ? buffer + (size_t)n * part : NULL;
        if (n && !gdn_os_thread_start(&w[n].thread, work, &w[n])) break;
    }
    atomic_store(&go, true);
    work(&w[0]);
    for (int i = 1; i < n; i++) gdn_os_thread_join(&w[i].thread);
    for (int i = 0; i < n; i++) sum += w[i].rate;
    free(w);
    return sum;
}

int measure_open(struct measure *m, const char *isa, int n_threads, size_t footprint)
{
    const size_t quantum = QUANTUM * sizeof(float) * (size_t)n_threads;
    memset(m, 0, sizeof *m);
    if (!loops_of(isa)) return cli_bad("isa: '%s', but gdn has no yardstick for it", isa);
    m->isa = isa;
    m->n_threads = n_threads;
    if (!footprint) return 0;
    if (footprint > MAX_FOOTPRINT) footprint = MAX_FOOTPRINT;
    m->bytes = (footprint + quantum - 1) / quantum * quantum;
    m->buffer = gdn_os_alloc(m->bytes, 64);
    if (!m->buffer) return cli_bad("no memory for %zu bytes", m->bytes);
    for (size_t i = 0; i < m->bytes / sizeof(float); i++) m->buffer[i] = 1;
    return 0;
}

void measure_close(struct measure *m)
{
    gdn_os_free(m->buffer);
    memset(m, 0, sizeof *m);
}

double measure_flops(const struct measure *m, double seconds)
{
    return run_workers(m, NULL, seconds);
}

double measure_in_place(const struct measure *m, double seconds)
{
    return m->buffer ? run_workers(m, m->buffer, seconds) : 0;
}

/* ---- The rest ---------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

struct summary measure_summary(double *samples, int n)
{
    struct summary s = { median(samples, n), 0 };
    for (int i = 0; i < n; i++) samples[i] = fabs(samples[i] - s.median);
    s.mad = median(samples, n);
    return s;
}

const char *measure_cpu(char *text, size_t bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(text, bytes, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(text, bytes, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f) fclose(f);
    return text;
}
