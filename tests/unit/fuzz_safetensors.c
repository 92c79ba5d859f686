/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged and lying safetensors files, read or mapped by the command's own reader
 * (examples/program/safetensors.c).
 * Headers are made of right and wrong pieces, then bytes are changed. Nothing may crash; a file
 * that is refused is refused with one line; of one that is taken every byte can be read.
 *
 * GDN_FUZZ_SECONDS in the environment says how long, --seed=N where to start.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz_time.h"
#include "program/command_line.h"
#include "program/safetensors.h"

enum { MOST = 1 << 12 };

static struct {
    int fd, n_lines;
    char path[64], line[4096];
    char text[MOST]; /* the header */
    size_t length;
    int64_t n_good, n_bad;
    unsigned sum; /* of all data, so that every byte is read */
} fuzz;

/* In place of that of command_line.c, which prints. */
int cli_bad(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(fuzz.line, sizeof fuzz.line, format, list);
    va_end(list);
    fuzz.n_lines++;
    return CLI_BAD;
}

/* ---- Headers ------------------------------------------------------------------------------- */

static void add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(fuzz.text + fuzz.length, MOST - fuzz.length, format, list);
    va_end(list);
    fuzz.length += (size_t)n;
    if (fuzz.length > MOST - 1) fuzz.length = MOST - 1;
}

static bool one_in(int64_t n) { return ring2_below(n) == 0; }

static const char *any_of(const char *const *list, int n) { return list[ring2_below(n)]; }
#define ANY_OF(...)                              \
    any_of((const char *const[]){ __VA_ARGS__ }, \
           (int)(sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *)))

static void add_number(int64_t x)
{
    if (!one_in(40)) {
        add("%lld", (long long)x);
        return;
    }
    add("%s", ANY_OF("-1", "0.5", "1e300", "9007199254740993", "18446744073709551616", "null", "[]",
                     "\"1\"", "-0", "1e-400", "4611686018427387904", "2147483648", "NaN", "{}"));
}

/* A tensor of a few elements whose data begins at *at. */
static void add_tensor(int i, int64_t *at)
{
    static const char *const names[] = { "F32", "BF16", "F16", "I32", "I64", "U8", "BOOL" };
    static const int units[] = { 4, 2, 2, 4, 8, 1, 1 };
    const int dtype = (int)ring2_below(7), ndim = (int)ring2_below(one_in(9) ? 8 : 4);
    int64_t bytes = units[dtype];
    if (one_in(40)) add("\"__metadata__\":{\"op\":%s},", ANY_OF("\"prefill\"", "1", "{}", "\"\""));
    add("\"%s%d\":{\"dtype\":\"%s\",\"shape\":[", one_in(60) ? "t1" : "t", i,
        one_in(40) ? ANY_OF("F64", "", "F8_E4M3", "f32") : names[dtype]);
    for (int d = 0; d < ndim; d++) {
        const int64_t size = ring2_below(4);
        bytes *= size;
        if (d) add(",");
        add_number(size);
    }
    add("],\"data_offsets\":[");
    add_number(*at);
    add(",");
    add_number(*at += bytes);
    add("%s", one_in(60) ? ANY_OF("]", "}", "]}}", ",1]}", "") : "]}");
}

/* Header and data into the file; what does not fit the limits of the format now and then. */
static void make_file(void)
{
    static const unsigned char data[MOST];
    int64_t bytes = 0;
    fuzz.length = 0;
    add("{");
    for (int i = 0, n = (int)ring2_below(6); i < n; i++) {
        if (i) add(",");
        add_tensor(i, &bytes);
    }
    add("%s", one_in(60) ? ANY_OF("", "}}", "} x", ",}", "}\n", "[") : "}");
    add("%*s", (int)ring2_below(9), "");
    if (one_in(3))
        for (int64_t i = ring2_below(3); i >= 0; i--)
            fuzz.text[ring2_below((int64_t)fuzz.length)] = (char)ring2_bits();
    uint64_t length = fuzz.length;
    if (one_in(20)) length += (uint64_t)ring2_below(40) - 20;
    if (one_in(60)) length = one_in(2) ? ring2_bits() : (uint64_t)ring2_below(200 << 20);
    if (one_in(20)) bytes += ring2_below(40) - 20;
    if (bytes < 0 || bytes > MOST) bytes = 0;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(length >> 8 * i);
    const size_t all = 8 + fuzz.length + (size_t)bytes;
    CHECK(ftruncate(fuzz.fd, 0) == 0 && pwrite(fuzz.fd, prefix, 8, 0) == 8 &&
              pwrite(fuzz.fd, fuzz.text, fuzz.length, 8) == (ssize_t)fuzz.length &&
              pwrite(fuzz.fd, data, (size_t)bytes, 8 + (off_t)fuzz.length) == bytes,
          "the file was not written");
    if (one_in(30)) CHECK(ftruncate(fuzz.fd, ring2_below((int64_t)all)) == 0, "not cut");
}

/* ---- Reading ------------------------------------------------------------------------------- */

static void read_everything(const struct st_file *f)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const gdn_tensor *t = &f->tensors[i].view;
        if (f->tensors[i].foreign) continue; /* it has no view */
        int64_t bytes;
        CHECK(memory_bytes(t->dtype, t->ndim, t->size, &bytes), "the size of '%s'",
              f->tensors[i].name);
        for (int64_t j = 0; j < bytes; j++) fuzz.sum += ((const unsigned char *)t->data)[j];
        CHECK(st_find(f, f->tensors[i].name) == &f->tensors[i], "'%s' is not found",
              f->tensors[i].name);
    }
    st_metadata(f, "op");
}

static void fuzz_one(void)
{
    struct st_file f;
    make_file();
    fuzz.n_lines = 0;
    const int code = (one_in(2) ? st_open : st_map)(&f, fuzz.path);
    CHECK(code == CLI_OK ? fuzz.n_lines == 0 : fuzz.n_lines == 1 && fuzz.line[0],
          "status %d with %d lines", code, fuzz.n_lines);
    if (code == CLI_OK) {
        fuzz.n_good++;
        read_everything(&f);
    } else {
        fuzz.n_bad++;
        CHECK(!f.tensors && !f.header, "a refused file was left open");
    }
    st_close(&f);
}

static void damaged_files(void)
{
    const struct fuzz_time time = fuzz_begin();
    fuzz.fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fuzz.fd < 0) {
        ring2_skip("no memfd_create");
        return;
    }
    snprintf(fuzz.path, sizeof fuzz.path, "/proc/self/fd/%d", fuzz.fd);
    for (int64_t i = 0; (i < 100000 || fuzz_goes_on(&time)) && !ring2_failed(); i++) fuzz_one();
    CHECK(fuzz.n_good > 10000 && fuzz.n_bad > 10000, "%d good, %d bad: too few", (int)fuzz.n_good,
          (int)fuzz.n_bad);
    close(fuzz.fd);
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "damaged safetensors files", damaged_files };
    return ring2_main(argc, argv, &test, 1);
}
