/* SPDX-License-Identifier: Apache-2.0 */
/* See check.h. First the list of loops, then buffers, judgement, timing and the options. */
#include "check.h"
#include "matches.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/os/os.h"
#include "core/os/program.h"

/* ---- The loops ---- */

typedef void loop_slot(void);

static const struct loop {
    const char *name;
    size_t offset, bytes; /* its slots in struct gdn_kernels */
    void (*check)(const struct gdn_kernels *kr);
} loops[] = {
#define LOOP(name)                                                                              \
    {                                                                                           \
#name, offsetof(struct gdn_kernels, name), sizeof gdn_kernels_scalar.name, check_##name \
    }
    LOOP(load_row),       LOOP(store_row),    LOOP(dot),
    LOOP(norm_row),       LOOP(exp_row),      LOOP(sigmoid_row),
    LOOP(slope_row),      LOOP(gate_row),     LOOP(transpose),
    LOOP(gemm_nt),        LOOP(gemv),         LOOP(strip_mul),
    LOOP(chunk_gates),    LOOP(chunk_solve),  LOOP(chunk_update),
    LOOP(chunk_write),    LOOP(chunk_return), LOOP(decay_kind),
    LOOP(channel_update), LOOP(channel_walk), LOOP(channel_scale),
    LOOP(channel_return), LOOP(recur_vk),     LOOP(recur_kv),
    LOOP(recur_strip),    LOOP(add_outer),    LOOP(conv),
    LOOP(conv_update),    LOOP(conv_sums),    LOOP(load8_vk),
    LOOP(load8_kv),       LOOP(store8_vk),    LOOP(store8_kv),
    LOOP(recur8_vk),
#undef LOOP
};

enum {
    N_LOOPS = sizeof loops / sizeof *loops,
    SLOTS =
        (sizeof(struct gdn_kernels) - offsetof(struct gdn_kernels, load_row)) / sizeof(loop_slot *)
};

/* ---- State ---- */

enum { MAX_BUFFERS = 128, MAX_SAMPLES = 1000 };

struct buffer {
    unsigned char *map; /* guard page, pages, guard page */
    size_t map_bytes;
    unsigned char *data;
    size_t bytes;
};

static struct {
    /* options */
    const char *isa, *function;
    uint64_t seed;
    int repeat;
    bool bench, verbose, list;
    /* the loop that runs */
    const struct gdn_kernels *kr;
    const struct loop *loop;
    bool marked[SLOTS];
    int cases, failures;
    char text[160]; /* of the case */
    uint64_t random;
    bool at_end; /* buffers end at the guard page, or begin after it */
    double worst, worst_limit;
    char worst_text[240];
    struct buffer buffers[MAX_BUFFERS], spare[MAX_BUFFERS];
    int n_buffers, n_spare;
    size_t page;
} now;

/* ---- Random numbers: splitmix64 ---- */

uint64_t check_bits(void)
{
    uint64_t z = now.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

int check_below(int n) { return (int)(check_bits() % (uint64_t)n); }

double check_uniform(double low, double high)
{
    return low + (high - low) * (double)(check_bits() >> 11) * 0x1p-53;
}

/* ---- Failures ---- */

enum { MAX_REPORTS = 8 }; /* per loop and table */

void check_fail(const char *format, ...)
{
    va_list args;
    if (++now.failures > MAX_REPORTS) return;
    printf("  %s.%s: %s: seed %llu: ", now.loop->name, now.kr->name, now.text,
           (unsigned long long)now.seed);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* ---- Buffers ---- */

enum { CANARY = 0xc5 };

static void out_of_memory(void)
{
    fprintf(stderr, "check: no more pages\n");
    exit(2);
}

/* A mapping of that size between two guard pages, new or used before. */
static struct buffer get_mapping(size_t map_bytes)
{
    for (int i = 0; i < now.n_spare; i++)
        if (now.spare[i].map_bytes == map_bytes) {
            const struct buffer b = now.spare[i];
            now.spare[i] = now.spare[--now.n_spare];
            return b;
        }
    struct buffer b = { NULL, map_bytes, NULL, 0 };
    b.map = gdn_os_pages(map_bytes);
    if (!b.map || !gdn_os_pages_forbid(b.map, now.page) ||
        !gdn_os_pages_forbid(b.map + map_bytes - now.page, now.page))
        out_of_memory();
    return b;
}

void *check_bytes(size_t bytes, size_t align)
{
    const size_t inner = (bytes + now.page) / now.page * now.page; /* room for a canary */
    if (now.n_buffers == MAX_BUFFERS) {
        fprintf(stderr, "check: more than %d buffers in one case\n", MAX_BUFFERS);
        exit(2);
    }
    struct buffer b = get_mapping(inner + 2 * now.page);
    unsigned char *first = b.map + now.page;
    b.bytes = bytes;
    b.data = now.at_end ? first + (inner - bytes) / align * align : first;
    memset(first, CANARY, inner);
    memset(b.data, 0xff, bytes);
    now.buffers[now.n_buffers++] = b;
    return b.data;
}

static void drop_mapping(struct buffer b)
{
    if (now.n_spare < MAX_BUFFERS)
        now.spare[now.n_spare++] = b;
    else
        gdn_os_pages_free(b.map, b.map_bytes);
}

/* The first byte outside the buffer that is no canary any more, or NULL. */
static const unsigned char *overwritten(const struct buffer *b)
{
    const unsigned char *p = b->map + now.page, *end = b->map + b->map_bytes - now.page;
    for (; p < b->data; p++)
        if (*p != CANARY) return p;
    for (p = b->data + b->bytes; p < end; p++)
        if (*p != CANARY) return p;
    return NULL;
}

/* Looks at the canaries of all buffers and frees them. */
static void end_case(void)
{
    for (int i = 0; i < now.n_buffers; i++) {
        const struct buffer *b = &now.buffers[i];
        const unsigned char *p = overwritten(b);
        if (p)
            check_fail("buffer %d of %zu bytes: wrote outside, at byte %td", i, b->bytes,
                       p - b->data);
        drop_mapping(*b);
    }
    now.n_buffers = 0;
}

void check_case(const char *format, ...)
{
    va_list args;
    end_case();
    now.cases++;
    va_start(args, format);
    vsnprintf(now.text, sizeof now.text, format, args);
    va_end(args);
}

float *check_poison(size_t n) { return check_bytes(n * sizeof(float), ELEMENT); }

double *check_doubles(size_t n) { return check_bytes(n * sizeof(double), sizeof(double)); }

float *check_floats(size_t n, double low, double high)
{
    return check_matrix(1, (int64_t)n, (int64_t)n, low, high);
}

float *check_lines(size_t n, double low, double high)
{
    float *x = check_bytes(n * sizeof *x, LINE);
    for (size_t i = 0; i < n; i++) x[i] = (float)check_uniform(low, high);
    return x;
}

float *check_matrix(int64_t rows, int64_t cols, int64_t ld, double low, double high)
{
    float *x = check_poison((size_t)(rows > 0 ? (rows - 1) * ld + cols : 0));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) x[i * ld + j] = (float)check_uniform(low, high);
    return x;
}

void *check_copy(const void *from, size_t bytes, size_t align)
{
    return memcpy(check_bytes(bytes, align), from, bytes);
}

double *check_widen(const float *x, size_t n)
{
    double *y = check_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

/* ---- Judging ---- */

/* Errors in units. An infinity stands for the first number that is too large. */
static double units(int dtype, double got, double want, double mag)
{
    const double too_large = dtype == GDN_F16 ? 0x1p16 : 0x1p128;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (got == want) return 0;
    if (isinf(want)) return INFINITY;
    if (isinf(got)) got = copysign(too_large, got);
    if (fabs(want) > too_large) want = copysign(too_large, want);
    double error = fabs(got - want) - 0x1p-149;
    if (dtype != GDN_F32) error -= oracle_half_ulp(dtype, fmax(fabs(want), fabs(got)));
    return error <= 0 ? 0 : mag > 0 ? error / (mag * 0x1p-24) : INFINITY;
}

static void note_worst(const char *what, double u, double limit)
{
    if (u * now.worst_limit <= now.worst * limit) return;
    now.worst = u;
    now.worst_limit = limit;
    snprintf(now.worst_text, sizeof now.worst_text, "%s, %s", what, now.text);
}

static void check_gap(const char *what, struct check_view got, int64_t row)
{
    const size_t size = gdn_dtype_bytes(got.dtype);
    const unsigned char *p = (const unsigned char *)got.data + (size_t)(row * got.ld) * size;
    for (size_t i = (size_t)got.cols * size; i < (size_t)got.ld * size; i++)
        if (p[i] != 0xff) {
            check_fail("%s: written after row %lld of %lld columns", what, (long long)row,
                       (long long)got.cols);
            return;
        }
}

void check_error(const char *what, struct check_view got, const double *want, const double *mag,
                 double limit)
{
    for (int64_t i = 0; i < got.rows; i++) {
        for (int64_t j = 0; j < got.cols; j++) {
            const double y = oracle_load(got.data, got.dtype, i * got.ld + j);
            const double w = want[i * got.cols + j], m = mag[i * got.cols + j];
            const double u = units(got.dtype, y, w, m);
            note_worst(what, u, limit);
            if (!(u <= limit)) {
                check_fail("%s[%lld][%lld]: got %.9g, want %.9g, %.3g units of %.3g, limit %g",
                           what, (long long)i, (long long)j, y, w, u, m * 0x1p-24, limit);
                return;
            }
        }
        if (i < got.rows - 1) check_gap(what, got, i);
    }
}

void check_same(const char *what, const void *got, const void *want, size_t bytes)
{
    const unsigned char *g = got, *w = want;
    for (size_t i = 0; i < bytes; i++)
        if (g[i] != w[i]) {
            check_fail("%s: other bits, from byte %zu of %zu on (0x%02x, want 0x%02x)", what, i,
                       bytes, g[i], w[i]);
            return;
        }
}

void check_same_numbers(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i]))) {
            check_fail("%s: element %zu is %.9g, expected %.9g to the bit", what, i, (double)got[i],
                       (double)want[i]);
            return;
        }
}

const struct gdn_kernels *check_twin(const struct gdn_kernels *kr)
{
    const struct gdn_kernels *twin = gdn_cpu_select(gdn_cpu_detect(), "avx2");
    return strcmp(kr->name, "avx512") == 0 && twin != kr ? twin : NULL;
}

/* ---- Timing ---- */

static struct {
    double bytes, flops;
    double samples[MAX_SAMPLES]; /* ns per call */
    int n;                       /* samples taken; -1: not timing */
    int64_t batch, left;         /* calls per sample */
    double start;
} timing;

static double ns_now(void) { return (double)gdn_os_now_ns(); }

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

static void print_timing(void)
{
    const double m = median(timing.samples, timing.n);
    for (int i = 0; i < timing.n; i++) timing.samples[i] = fabs(timing.samples[i] - m);
    printf("  %s.%s  %s  %.1f ns +- %.1f  %.1f GB/s  %.1f GFLOP/s\n", now.loop->name, now.kr->name,
           now.text, m, median(timing.samples, timing.n), timing.bytes / m, timing.flops / m);
}

void check_bench_begin(double bytes, double flops)
{
    timing.bytes = bytes;
    timing.flops = flops;
    timing.n = now.bench && now.at_end && now.failures == 0 ? 0 : -1;
    timing.batch = 1;
    timing.left = 0;
    timing.start = 0;
}

/* Batches of at least 20 us until 5 ms are spent; shorter ones warm up and are forgotten. */
bool check_bench_more(void)
{
    static double begin;
    if (timing.n < 0) return false;
    if (timing.left-- > 0) return true;
    const double end = ns_now();
    if (timing.start == 0) {
        begin = end;
    } else if (end - timing.start < 20e3) {
        timing.batch *= 2;
    } else {
        timing.samples[timing.n++] = (end - timing.start) / (double)timing.batch;
        if (timing.n == MAX_SAMPLES || end - begin > 5e6) {
            print_timing();
            return false;
        }
    }
    timing.left = timing.batch - 1;
    timing.start = ns_now();
    return true;
}

/* ---- Running ---- */

void check_mark(const void *slot)
{
    const ptrdiff_t at = (const char *)slot - (const char *)now.kr -
                         (ptrdiff_t)offsetof(struct gdn_kernels, load_row);
    if (at >= 0 && at < (ptrdiff_t)(SLOTS * sizeof(loop_slot *)))
        now.marked[(size_t)at / sizeof(loop_slot *)] = true;
}

/* Returns the seed of a loop: its random numbers do not depend on which other loops run. */
static uint64_t loop_seed(const char *name)
{
    uint64_t h = now.seed;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3;
    return h;
}

static void run_check(void *loop) { ((const struct loop *)loop)->check(now.kr); }

static void run_pass(const struct loop *loop, bool at_end)
{
    now.at_end = at_end;
    now.random = loop_seed(loop->name);
    snprintf(now.text, sizeof now.text, "before the first case");
    const char *fault = gdn_os_catch(run_check, (void *)(uintptr_t)loop);
    if (fault)
        check_fail("%s inside the loop, buffers %s a guard page", fault,
                   now.at_end ? "ending at" : "beginning after");
    end_case();
}

static void check_coverage(const struct loop *loop)
{
    const size_t first = loop->offset - offsetof(struct gdn_kernels, load_row);
    for (size_t i = 0; i < loop->bytes / sizeof(loop_slot *); i++)
        if (!now.marked[first / sizeof(loop_slot *) + i])
            check_fail("entry %zu of the table was never called", i);
}

/* Returns whether it passed. */
static bool run_loop(const struct loop *loop)
{
    now.loop = loop;
    now.cases = now.failures = 0;
    now.worst = 0;
    now.worst_limit = 1;
    memset(now.marked, 0, sizeof now.marked);
    for (int r = 0; r < now.repeat; r++, now.seed++) {
        run_pass(loop, true);
        run_pass(loop, false);
    }
    now.seed -= (uint64_t)now.repeat;
    snprintf(now.text, sizeof now.text, "coverage");
    check_coverage(loop);

    printf("%s.%s  %d cases  ", loop->name, now.kr->name, now.cases);
    if (now.failures == 0)
        printf("ok\n");
    else
        printf("%d FAILED\n", now.failures);
    if (now.verbose && now.worst > 0)
        printf("  worst %.2f of %g units: %s\n", now.worst, now.worst_limit, now.worst_text);
    return now.failures == 0;
}

static bool is_wanted(const struct loop *loop, const struct gdn_kernels *kr)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", loop->name, kr->name);
    return (!now.isa || strcmp(now.isa, kr->name) == 0) &&
           (!now.function || matches(now.function, loop->name) || matches(now.function, name));
}

/* Every slot of the table must belong to a loop of the list above. */
static bool list_is_complete(void)
{
    size_t bytes = 0;
    for (int i = 0; i < N_LOOPS; i++) bytes += loops[i].bytes;
    if (bytes == SLOTS * sizeof(loop_slot *)) return true;
    printf("check: struct gdn_kernels has %zu entries, %zu of them are tested\n", (size_t)SLOTS,
           bytes / sizeof(loop_slot *));
    return false;
}

static int run_all(void)
{
    const uint32_t flags = gdn_cpu_detect();
    int passed = 0, skipped = 0, failed = list_is_complete() ? 0 : 1;
    for (int t = 0; gdn_cpu_tables[t]; t++) {
        now.kr = gdn_cpu_tables[t];
        for (int i = 0; i < N_LOOPS; i++) {
            if (!is_wanted(&loops[i], now.kr)) continue;
            if (now.list)
                printf("%s.%s\n", loops[i].name, now.kr->name);
            else if (now.kr->needs & ~flags)
                printf("%s.%s  skipped: not on this machine\n", loops[i].name, now.kr->name);
            if (now.list || now.kr->needs & ~flags)
                skipped++;
            else if (run_loop(&loops[i]))
                passed++;
            else
                failed++;
        }
    }
    if (passed + failed + skipped == 0) {
        fprintf(stderr, "gdn check: no loop is called \"%s\"\n", now.function);
        return 2;
    }
    if (!now.list) printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}

/* ---- Options ---- */

/* Whether argv[*i] is "--name=text", or "--name" and the next argument is the text. */
static bool is_option(char **argv, int *i, const char *name, const char **value)
{
    const char *arg = argv[*i];
    const size_t n = strlen(name);
    if (strncmp(arg, name, n) != 0 || (arg[n] && arg[n] != '=')) return false;
    if (!arg[n] && !argv[*i + 1]) return false;
    *value = arg[n] ? arg + n + 1 : argv[++*i];
    return true;
}

/* Reads a number, decimal or 0x..; a sign is none. Returns false after one line. */
static bool parse_number(const char *name, const char *text, uint64_t low, uint64_t high,
                         uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 0);
    if (isdigit((unsigned char)*text) && !*end && !errno && *value >= low && *value <= high)
        return true;
    fprintf(stderr, "gdn check: %s: '%s', wanted a whole number from %llu to %llu\n", name, text,
            (unsigned long long)low, (unsigned long long)high);
    return false;
}

/* Reads option argv[*i], and its value from argv[++*i] if that is apart. Returns false after one
 * line. */
static bool parse(char **argv, int *i)
{
    const char *arg = argv[*i], *text;
    uint64_t value;
    bool *flag = strcmp(arg, "--bench") == 0     ? &now.bench
                 : strcmp(arg, "--verbose") == 0 ? &now.verbose
                 : strcmp(arg, "--list") == 0    ? &now.list
                                                 : NULL;
    if (flag) {
        *flag = true;
        return true;
    }
    if (is_option(argv, i, "--isa", &now.isa) || is_option(argv, i, "--function", &now.function))
        return true;
    if (is_option(argv, i, "--seed", &text))
        return parse_number("--seed", text, 0, UINT64_MAX, &now.seed);
    if (!is_option(argv, i, "--repeat", &text)) {
        fprintf(stderr, "gdn check: %s: not understood, see gdn check --help\n", arg);
        return false;
    }
    if (!parse_number("--repeat", text, 1, 1000000, &value)) return false;
    now.repeat = (int)value;
    return true;
}

/* 0: the named table exists and runs here. That of another processor is not in this build. */
static int check_isa(void)
{
    static const char *const all[] = { "scalar", "avx2", "avx512", "neon" };
    bool known = false;
    for (int t = 0; gdn_cpu_tables[t]; t++)
        if (!strcmp(now.isa, gdn_cpu_tables[t]->name) &&
            !(gdn_cpu_tables[t]->needs & ~gdn_cpu_detect()))
            return 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) known |= !strcmp(now.isa, all[i]);
    if (known) {
        printf("check: skipped: this machine lacks %s\n", now.isa);
        return 77;
    }
    fprintf(stderr, "gdn check: no instruction set is called \"%s\"\n", now.isa);
    return 2;
}

int check_main(int argc, char **argv)
{
    memset(&now, 0, sizeof now);
    now.seed = 1; /* fixed, so that a run can be repeated */
    now.repeat = 1;
    now.page = gdn_os_page_bytes();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--") && i + 1 == argc) break; /* nothing follows the options */
        if (!parse(argv, &i)) return 2;
    }
    const int missing = now.isa ? check_isa() : 0;
    if (missing) return missing;
    if (!now.list) printf("check: seed %llu\n", (unsigned long long)now.seed);
    return run_all();
}
