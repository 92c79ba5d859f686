/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the op tests: see ring2.h. */
#include "ring2.h"
#include "ring2_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/os/program.h"
#include "oracle.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { MAX_BLOCKS = 4096, MAX_THREADS = 8, MAX_REPORTS = 6, POISON = 0xff };
enum { SKIPPED = 77 }; /* the exit status that CTest calls skipped */

/* The memory of ring2_heap(), in a chain. */
struct heap {
    struct heap *next;
    double memory[];
};

/* The memory of ring2_alloc(). */
struct block {
    unsigned char *map;     /* the accessible pages, from their start */
    size_t bytes;           /* of the accessible pages */
    unsigned char *before;  /* their copy at ring2_call_begin() */
    unsigned char *written; /* 1: the call may change this byte */
};

static struct {
    struct block blocks[MAX_BLOCKS];
    int n_blocks;
    struct heap *heap;
    char name[200];
    const char *skipped;
    const char *filter;
    int n_reports, n_passed, n_failed, n_skipped, every, n_begun;
    uint64_t seed, state;
    gdn_ctx *ctx[MAX_THREADS + 1];
} self = { .every = 1 };

/* ---- Tests ---- */

void ring2_options(int argc, char **argv)
{
    const char *every = getenv("GDN_TEST_EVERY");
    if (every) self.every = atoi(every);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--seed=", 7))
            self.seed = strtoull(argv[i] + 7, NULL, 0);
        else if (!strncmp(argv[i], "--every=", 8))
            self.every *= atoi(argv[i] + 8);
        else
            self.filter = argv[i];
    }
    if (self.every < 1) self.every = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
}

bool ring2_begin(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(self.name, sizeof self.name, format, list);
    va_end(list);
    if (self.filter && !strstr(self.name, self.filter)) return false;
    if (self.n_begun++ % self.every) return false;
    self.n_reports = 0;
    self.skipped = NULL;
    self.state = self.seed + 0x9e3779b97f4a7c15u;
    for (const char *c = self.name; *c; c++) self.state = self.state * 31 + (unsigned char)*c;
    return true;
}

void ring2_free(void)
{
    const size_t page = gdn_os_page_bytes();
    for (int i = 0; i < self.n_blocks; i++) {
        struct block *b = &self.blocks[i];
        free(b->before);
        free(b->written);
        ring2_device_unmap(b->map);
        gdn_os_pages_free(b->map - page, b->bytes + 2 * page);
    }
    self.n_blocks = 0;
    while (self.heap) {
        struct heap *next = self.heap->next;
        free(self.heap);
        self.heap = next;
    }
}

void ring2_end(void)
{
    ring2_free();
    if (self.n_reports) {
        self.n_failed++;
        printf("%s ... FAILED\n", self.name);
    } else if (self.skipped) {
        self.n_skipped++;
        printf("%s ... skipped (%s)\n", self.name, self.skipped);
    } else {
        self.n_passed++;
        printf("%s ... ok\n", self.name);
    }
}

int ring2_summary(void)
{
    for (int i = 0; i <= MAX_THREADS; i++) gdn_ctx_destroy(self.ctx[i]);
    memset(self.ctx, 0, sizeof self.ctx);
    printf("%d passed, %d failed, %d skipped\n", self.n_passed, self.n_failed, self.n_skipped);
    if (!self.n_failed && !self.n_passed && self.n_skipped) return SKIPPED;
    return self.n_failed || !self.n_passed;
}

int ring2_main(int argc, char **argv, const struct ring2_test *tests, int n)
{
    /* GDN_TEST_EVERY thins tables of cases, but these are different tests */
    gdn_os_set_environment("GDN_TEST_EVERY", NULL);
    ring2_options(argc, argv);
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("%s", tests[i].name)) continue;
        tests[i].run();
        ring2_end();
    }
    return ring2_summary();
}

int ring2_cases_main(int argc, char **argv, const struct ring2_cases *tests, int n)
{
    ring2_options(argc, argv);
    for (int i = 0; i < n; i++)
        for (int number = 0; number < tests[i].n; number++) {
            if (!ring2_begin("%s, %d", tests[i].name, number)) continue;
            tests[i].run(number);
            ring2_end();
        }
    return ring2_summary();
}

void ring2_fail(const char *format, ...)
{
    va_list list;
    if (self.n_reports++ >= MAX_REPORTS) return;
    printf("    %s: ", self.name);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

void ring2_skip(const char *why) { self.skipped = why; }

bool ring2_failed(void) { return self.n_reports != 0; }

void ring2_status(gdn_ctx *ctx, const char *what, gdn_status got, gdn_status want)
{
    if (got != want)
        ring2_fail("%s: %s (%s), expected %s", what, gdn_status_name(got), gdn_last_error(ctx),
                   gdn_status_name(want));
}

static void give_up(const char *why)
{
    printf("%s: %s\n", self.name, why);
    exit(1);
}

/* ---- Random numbers ---- */

uint64_t ring2_bits(void) /* splitmix64 */
{
    uint64_t z = self.state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double ring2_uniform(double low, double high)
{
    return low + (high - low) * ((double)(ring2_bits() >> 11) * 0x1p-53);
}

uint64_t ring2_seed(void) { return self.seed; }

int64_t ring2_below(int64_t n) { return (int64_t)(ring2_bits() % (uint64_t)n); }

/* ---- Contexts ---- */

gdn_ctx *ring2_ctx(int n_threads)
{
    char text[256] = "";
    gdn_options o = gdn_options_init();
    gdn_ctx **ctx = &self.ctx[n_threads];
    if (*ctx) return *ctx;
    o.n_threads = n_threads;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    o.backend = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    if (gdn_ctx_create(&o, ctx) != GDN_OK) give_up(text);
    return *ctx;
}

void ring2_give_workspace(gdn_ctx *ctx, gdn_op op, void *args)
{
    char *const at = (char *)args + gdn_op_shapes[op].workspace_at; /* and its bytes */
    size_t bytes = 0;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, op, args, &bytes), GDN_OK);
    void *const memory = ring2_alloc((bytes + 63) / 64 * 64, 64);
    memcpy(at, &memory, sizeof memory);
    memcpy(at + sizeof memory, &bytes, sizeof bytes);
}

#if defined(__SSE2__)
bool ring2_float_mode(int i, void (*call)(void *arg), void *arg)
{
    /* flush to zero and denormals are zero; toward zero; up, unmasked; down, flags set */
    static const unsigned modes[] = { 0x9fc0, 0x7f80, 0x5000, 0x3fbf };
    const unsigned before = _mm_getcsr();
    unsigned after;
    if (i >= (int)(sizeof modes / sizeof *modes)) return false;
    _mm_setcsr(modes[i]);
    call(arg);
    after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK(after == modes[i], "MXCSR was %x, is %x", modes[i], after);
    return true;
}
#elif defined(__aarch64__)
bool ring2_float_mode(int i, void (*call)(void *arg), void *arg)
{
    /* flush to zero; toward zero; up, the other half precision; down, default NaN */
    static const uint64_t modes[] = { 1 << 24, 3 << 22, 0x4400000, 0x2800000 };
    if (i >= (int)(sizeof modes / sizeof *modes)) return false;
    ring2_set_fpcr(modes[i]);
    call(arg);
    const uint64_t after = ring2_fpcr();
    ring2_set_fpcr(0);
    CHECK(after == modes[i], "FPCR was %x, is %x", (unsigned)modes[i], (unsigned)after);
    return true;
}
#else
bool ring2_float_mode(int i, void (*call)(void *arg), void *arg)
{
    (void)i, (void)call, (void)arg;
    return false;
}
#endif

/* ---- Memory ---- */

void *ring2_alloc(size_t bytes, size_t align)
{
    const size_t page = gdn_os_page_bytes();
    const size_t pages = (bytes + align + page - 1) / page * page;
    struct block *b = &self.blocks[self.n_blocks];
    unsigned char *map = gdn_os_pages(pages + 2 * page);
    if (self.n_blocks++ == MAX_BLOCKS) give_up("too many buffers");
    if (!map || !gdn_os_pages_forbid(map, page) || !gdn_os_pages_forbid(map + page + pages, page))
        give_up("no memory");
    memset(b, 0, sizeof *b);
    b->map = map + page;
    b->bytes = pages;
    memset(b->map, POISON, pages);
    ring2_device_map(b->map, pages);
    return b->map + (pages - bytes) / align * align;
}

void *ring2_heap(size_t bytes)
{
    struct heap *h = calloc(1, sizeof *h + bytes);
    if (!h) give_up("no memory");
    h->next = self.heap;
    self.heap = h;
    return h->memory;
}

/* ---- Views ---- */

gdn_tensor ring2_new(int32_t dtype, int64_t gap, int ndim, int64_t s0, int64_t s1, int64_t s2,
                     int64_t s3)
{
    const size_t unit = gdn_dtype_bytes(dtype);
    const int64_t size[] = { s0, s1, s2, s3 };
    gdn_tensor t;
    int64_t stride = 1, span = 1;
    memset(&t, 0, sizeof t);
    t.dtype = dtype;
    t.ndim = ndim;
    for (int i = ndim - 1; i >= 0; i--) {
        t.size[i] = size[i];
        t.stride[i] = stride;
        stride = stride * size[i] + gap;
        span = size[i] ? span + t.stride[i] * (size[i] - 1) : 0;
        if (!size[i]) stride = gap + 1;
    }
    for (int i = 0; i < ndim; i++)
        if (!size[i]) span = 0;
    t.data = ring2_alloc((size_t)span * unit, unit);
    return t;
}

static void drop_dim(gdn_tensor *t, int dim)
{
    for (int i = dim; i + 1 < t->ndim; i++) {
        t->size[i] = t->size[i + 1];
        t->stride[i] = t->stride[i + 1];
    }
    t->ndim--;
    t->size[t->ndim] = t->stride[t->ndim] = 0;
}

gdn_tensor ring2_narrow(const gdn_tensor *t, int dim, int64_t first, int64_t n)
{
    gdn_tensor r = *t;
    r.data = (char *)t->data + first * t->stride[dim] * (int64_t)gdn_dtype_bytes(t->dtype);
    r.size[dim] = n;
    return r;
}

gdn_tensor ring2_select(const gdn_tensor *t, int dim, int64_t i)
{
    gdn_tensor r = ring2_narrow(t, dim, i, 1);
    drop_dim(&r, dim);
    return r;
}

gdn_tensor ring2_swap(const gdn_tensor *t, int a, int b)
{
    gdn_tensor r = *t;
    r.size[a] = t->size[b];
    r.size[b] = t->size[a];
    r.stride[a] = t->stride[b];
    r.stride[b] = t->stride[a];
    return r;
}

gdn_tensor ring2_turned(bool turned, int32_t dtype, int64_t gap, int ndim, int64_t s0, int64_t s1,
                        int64_t s2, int64_t s3)
{
    int64_t size[] = { s0, s1, s2, s3 };
    const int64_t last = size[ndim - 1], other = size[ndim - 2];
    if (!turned) return ring2_new(dtype, gap, ndim, s0, s1, s2, s3);
    size[ndim - 1] = other;
    size[ndim - 2] = last;
    const gdn_tensor t = ring2_new(dtype, gap, ndim, size[0], size[1], size[2], size[3]);
    return ring2_swap(&t, ndim - 2, ndim - 1);
}

int64_t ring2_count(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

void *ring2_element(const gdn_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->ndim - 1; d > 0; d--) {
        at += i % t->size[d] * t->stride[d];
        i /= t->size[d];
    }
    at += i * t->stride[0];
    return (char *)t->data + at * (int64_t)gdn_dtype_bytes(t->dtype);
}

/* ---- Values ---- */

/* Elements that lie side by side, from element i on. */
struct run {
    void *at;
    int64_t n;
};
static struct run run_from(const gdn_tensor *t, int64_t i)
{
    int64_t n = 1;
    for (int d = t->ndim - 1; d >= 0 && (t->stride[d] == n || t->size[d] == 1); d--)
        n *= t->size[d];
    return (struct run){ ring2_element(t, i), n - i % n };
}

/* The same of two tensors at once. */
struct two_runs {
    void *a, *b;
    int64_t n;
};
static struct two_runs two_runs_from(const gdn_tensor *a, const gdn_tensor *b, int64_t i)
{
    const struct run x = run_from(a, i), y = run_from(b, i);
    return (struct two_runs){ x.at, y.at, x.n < y.n ? x.n : y.n };
}

double ring2_get(const gdn_tensor *t, int64_t i)
{
    return oracle_load(ring2_element(t, i), t->dtype, 0);
}

void ring2_set(const gdn_tensor *t, int64_t i, double x)
{
    oracle_store(ring2_element(t, i), t->dtype, 0, x);
}

void ring2_fill(const gdn_tensor *t, double low, double high)
{
    struct run r;
    for (int64_t i = 0; i < ring2_count(t); i += r.n) {
        r = run_from(t, i);
        for (int64_t j = 0; j < r.n; j++) oracle_store(r.at, t->dtype, j, ring2_uniform(low, high));
    }
}

void ring2_fill_value(const gdn_tensor *t, double x)
{
    struct run r;
    for (int64_t i = 0; i < ring2_count(t); i += r.n) {
        r = run_from(t, i);
        for (int64_t j = 0; j < r.n; j++) oracle_store(r.at, t->dtype, j, x);
    }
}

void ring2_copy(const gdn_tensor *to, const gdn_tensor *from)
{
    struct two_runs r;
    for (int64_t i = 0; i < ring2_count(from); i += r.n) {
        r = two_runs_from(to, from, i);
        if (to->dtype == from->dtype)
            memcpy(r.a, r.b, (size_t)r.n * gdn_dtype_bytes(to->dtype));
        else
            for (int64_t j = 0; j < r.n; j++)
                oracle_store(r.a, to->dtype, j, oracle_load(r.b, from->dtype, j));
    }
}

gdn_tensor ring2_clone(const gdn_tensor *t)
{
    const int64_t *s = t->size;
    gdn_tensor r;
    if (!t->data) return *t;
    r = ring2_new(t->dtype, 0, t->ndim, s[0], s[1], s[2], s[3]);
    ring2_copy(&r, t);
    return r;
}

double *ring2_doubles(const gdn_tensor *t)
{
    const int64_t n = ring2_count(t);
    double *x = ring2_heap((size_t)n * sizeof *x);
    struct run r;
    for (int64_t i = 0; i < n; i += r.n) {
        r = run_from(t, i);
        for (int64_t j = 0; j < r.n; j++) x[i + j] = oracle_load(r.at, t->dtype, j);
    }
    return x;
}

gdn_tensor ring2_indices(int32_t dtype, int64_t n, const int64_t *values)
{
    gdn_tensor t = ring2_new(dtype, 0, 1, n, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) ring2_set(&t, i, (double)values[i]);
    return t;
}

bool ring2_same_bits(const gdn_tensor *a, const gdn_tensor *b)
{
    struct two_runs r;
    if (a->dtype != b->dtype || ring2_count(a) != ring2_count(b)) return false;
    for (int64_t i = 0; i < ring2_count(a); i += r.n) {
        r = two_runs_from(a, b, i);
        if (memcmp(r.a, r.b, (size_t)r.n * gdn_dtype_bytes(a->dtype))) return false;
    }
    return true;
}

void ring2_expect_bits(const char *what, const gdn_tensor *got, const gdn_tensor *want)
{
    const int64_t n = ring2_count(want);
    const size_t unit = gdn_dtype_bytes(want->dtype);
    int64_t bad = 0, first = 0;
    if (got->dtype != want->dtype || ring2_count(got) != n) {
        ring2_fail("%s: not the same shape or dtype", what);
        return;
    }
    if (ring2_same_bits(got, want)) return;
    for (int64_t i = n - 1; i >= 0; i--)
        if (memcmp(ring2_element(got, i), ring2_element(want, i), unit)) bad++, first = i;
    ring2_fail("%s: %" PRId64 " of %" PRId64 " elements differ, first [%" PRId64
               "]: %.9g, expected %.9g",
               what, bad, n, first, ring2_get(got, first), ring2_get(want, first));
}

/* ---- What a call may touch ---- */

void ring2_call_begin(void)
{
    for (int i = 0; i < self.n_blocks; i++) {
        struct block *b = &self.blocks[i];
        free(b->before);
        free(b->written);
        b->before = malloc(b->bytes);
        b->written = calloc(b->bytes, 1);
        if (!b->before || !b->written) give_up("no memory");
        memcpy(b->before, b->map, b->bytes);
    }
}

/* Returns the buffer that holds p; NULL: no watched buffer does. Tries the last buffer first. */
static struct block *block_of(const unsigned char *p)
{
    static int last;
    for (int i = last < self.n_blocks ? -1 : 0; i < self.n_blocks; i++) {
        struct block *b = &self.blocks[i < 0 ? last : i];
        if (!b->written || p < b->map || p >= b->map + b->bytes) continue;
        last = (int)(b - self.blocks);
        return b;
    }
    return NULL;
}

void ring2_may_write_bytes(const void *memory, size_t bytes)
{
    const unsigned char *p = memory;
    struct block *b = block_of(p);
    if (b) memset(b->written + (p - b->map), 1, bytes);
}

void ring2_may_write(const gdn_tensor *t)
{
    struct run r;
    if (!t->data) return;
    for (int64_t i = 0; i < ring2_count(t); i += r.n) {
        r = run_from(t, i);
        ring2_may_write_bytes(r.at, (size_t)r.n * gdn_dtype_bytes(t->dtype));
    }
}

void ring2_call_end(void)
{
    for (int i = 0; i < self.n_blocks; i++) {
        const struct block *b = &self.blocks[i];
        size_t n = 0, first = 0;
        if (!b->before || !memcmp(b->map, b->before, b->bytes)) continue;
        for (size_t j = b->bytes; j-- > 0;)
            if (!b->written[j] && b->map[j] != b->before[j]) n++, first = j;
        if (n)
            ring2_fail("buffer %d: %zu bytes changed that are not the call's, first %zu before "
                       "the end",
                       i, n, b->bytes - first);
    }
}

/* Mean square error that the rounding of a result x may add. To a 16-bit dtype one rounding,
 * half^2 / 3 on average and below half^2 / 2 over 64 of them; to float32 four units. */
static double rounding_square(int32_t dtype, double x)
{
    const double half = oracle_half_ulp(dtype, x);
    return half * half * (dtype == GDN_F32 ? 16 : 0.5);
}

void ring2_compare(const char *what, const gdn_tensor *got, const double *want, const double *limit,
                   const double *noise, const bool *kept)
{
    const int64_t n = ring2_count(got);
    int64_t n_judged = 0;
    double sum = 0, allowed = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kept && kept[i]) continue;
        const double x = ring2_get(got, i), half = oracle_half_ulp(got->dtype, want[i]);
        const double e = fabs(x - want[i]);
        if (!(e <= limit[i] + half) && !(isnan(want[i]) && isnan(x)) && x != want[i])
            ring2_fail("%s[%" PRId64 "]: %.9g, expected %.9g, error %.3g, limit %.3g", what, i, x,
                       want[i], e, limit[i] + half);
        if (!noise || !isfinite(want[i])) continue;
        n_judged++;
        sum += e * e;
        allowed += noise[i] * noise[i] + rounding_square(got->dtype, want[i]);
    }
    if (n_judged >= 64 && sum > allowed)
        ring2_fail("%s: root mean square error %.3g, wanted at most %.3g", what,
                   sqrt(sum / (double)n_judged), sqrt(allowed / (double)n_judged));
}
