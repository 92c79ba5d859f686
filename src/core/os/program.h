/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests, `gdn check` among them, need of the operating system beside os.h: faults, pages,
 * the environment. posix_program.c and windows_program.c implement it. The library does not contain
 * them. Files are in examples/program/os.h.
 */
#ifndef GDN_OS_PROGRAM_H
#define GDN_OS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* value NULL: removes the variable. */
bool gdn_os_set_environment(const char *name, const char *value);

/* Replaces this program by another one. Returns only if that fails. */
void gdn_os_become(char **argv);

/* Lets other threads run. */
void gdn_os_yield(void);

/* Calls run(arg). Returns NULL, or the name of the fault that ended it: a bad address, a bad
 * instruction, a division. One thread at a time. */
const char *gdn_os_catch(void (*run)(void *arg), void *arg);

/* Whole pages of zeros. NULL: none are left. */
size_t gdn_os_page_bytes(void);
void *gdn_os_pages(size_t bytes);
bool gdn_os_pages_forbid(void *pages, size_t bytes); /* from now on an access is a fault */
void gdn_os_pages_free(void *pages, size_t bytes);

#endif
