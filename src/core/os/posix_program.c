/* SPDX-License-Identifier: Apache-2.0 */
/* program.h for POSIX: Linux and macOS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POSIX and MAP_ANONYMOUS under -std=c11 */
#endif
#include "core/os/program.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool gdn_os_set_environment(const char *name, const char *value)
{
    return (value ? setenv(name, value, 1) : unsetenv(name)) == 0;
}

void gdn_os_become(char **argv) { execv(argv[0], argv); }

void gdn_os_yield(void) { sched_yield(); }

static const struct {
    int number;
    const char *name;
} faults[] = {
    { SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" }, { SIGILL, "SIGILL" }, { SIGFPE, "SIGFPE" }
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

static sigjmp_buf fault_return;

static void on_fault(int number) { siglongjmp(fault_return, number); }

const char *gdn_os_catch(void (*run)(void *arg), void *arg)
{
    struct sigaction action, before[N_FAULTS];
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    for (int i = 0; i < N_FAULTS; i++) sigaction(faults[i].number, &action, &before[i]);
    const int number = sigsetjmp(fault_return, 1);
    if (!number) run(arg);
    const char *name = NULL;
    for (int i = 0; i < N_FAULTS; i++) {
        sigaction(faults[i].number, &before[i], NULL);
        if (number == faults[i].number) name = faults[i].name;
    }
    return name;
}

/* ---- Pages ---------------------------------------------------------------------------------- */

size_t gdn_os_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *gdn_os_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

bool gdn_os_pages_forbid(void *pages, size_t bytes) { return !mprotect(pages, bytes, PROT_NONE); }
void gdn_os_pages_free(void *pages, size_t bytes) { munmap(pages, bytes); }
