/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A C library with bad days, to be loaded before a program's own (LD_PRELOAD):
 *
 *   GDN_FAIL_ALLOC=N    the N-th allocation fails, from 1
 *   GDN_COUNT_ALLOC=F   their number is written to file F at the end
 *   GDN_FSYNC_SIGNAL=S  fsync() raises signal S
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static atomic_long n_calls;
static long failing; /* 0: none */

static int fails(void)
{
    const long n = atomic_fetch_add(&n_calls, 1) + 1;
    if (n != failing) return 0;
    errno = ENOMEM;
    return 1;
}

__attribute__((constructor)) static void start(void)
{
    const char *n = getenv("GDN_FAIL_ALLOC");
    n_calls = 0;
    failing = n ? atol(n) : 0;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("GDN_COUNT_ALLOC");
    const long n = n_calls;
    FILE *out = path ? fopen(path, "w") : NULL;
    if (!out) return;
    fprintf(out, "%ld\n", n);
    fclose(out);
}

void *malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return fails() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *memory, size_t bytes) { return fails() ? NULL : __libc_realloc(memory, bytes); }
void *aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(align, bytes);
}
int posix_memalign(void **memory, size_t align, size_t bytes)
{
    void *got = fails() ? NULL : __libc_memalign(align, bytes);
    if (!got) return ENOMEM;
    *memory = got;
    return 0;
}

int fsync(int fd)
{
    const char *number = getenv("GDN_FSYNC_SIGNAL");
    (void)fd;
    if (number) raise(atoi(number));
    return 0;
}
