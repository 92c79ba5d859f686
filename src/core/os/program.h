/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs of this project, the command and the tests, need of the operating system beside
 * os.h: files, pages, faults. posix_program.c and windows_program.c implement it. The library does
 * not contain them. Paths and names are UTF-8 everywhere.
 */
#ifndef GDN_OS_PROGRAM_H
#define GDN_OS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- The program --------------------------------------------------------------------------- */

/* Prepares standard output and returns the arguments in UTF-8. main() calls it first. */
char **gdn_os_arguments(int argc, char **argv);

bool gdn_os_is_terminal(FILE *stream);

/* value NULL: removes the variable. */
bool gdn_os_set_environment(const char *name, const char *value);

/* Runs a program in this one's place. Returns only if that fails. */
void gdn_os_become(char **argv);

/* Lets other threads run. */
void gdn_os_yield(void);

/* Calls run(arg). Returns NULL, or the name of the fault that ended it: a bad address, a bad
 * instruction, a division. One thread at a time. */
const char *gdn_os_catch(void (*run)(void *arg), void *arg);

/* ---- Memory -------------------------------------------------------------------------------- */

/* Returns what this machine has, in bytes. */
uint64_t gdn_os_memory_bytes(void);

/* Whole pages of zeros. NULL: none are left. */
size_t gdn_os_page_bytes(void);
void  *gdn_os_pages(size_t bytes);
bool   gdn_os_pages_forbid(void *pages, size_t bytes); /* from now on an access is a fault */
void   gdn_os_pages_free(void *pages, size_t bytes);

/* ---- Files --------------------------------------------------------------------------------- */

/* Functions that return int return 0, or an error of errno.h, or this: */
enum { GDN_OS_NOT_A_FILE = -1 }; /* a folder, a device, a pipe */

int gdn_os_is_folder(const char *path, bool *is_folder);

/* Calls each(user, name) for every entry of a folder. */
int gdn_os_list(const char *folder, void (*each)(void *user, const char *name), void *user);

/* A regular file that is read. */
struct gdn_os_input {
    intptr_t handle;
    int64_t  bytes;
};

int  gdn_os_input_open(struct gdn_os_input *in, const char *path);
void gdn_os_input_close(struct gdn_os_input *in);

/* *n: the bytes that were read, fewer than wanted at the end of the file, or for no reason. */
int gdn_os_input_read(const struct gdn_os_input *in, void *to, size_t bytes, int64_t offset,
                      size_t *n);

/* Maps the whole file, read-only; the map outlives the input. */
int  gdn_os_input_map(const struct gdn_os_input *in, void **map);
void gdn_os_unmap(void *map, size_t bytes);

/*
 * A file that is written beside its target and replaces it at the end. A link stays a link: the
 * file that it leads to is replaced. A target that exists keeps its permissions. A signal that ends
 * the program removes the draft. One draft at a time.
 */
enum { GDN_OS_PATH = 4096 }; /* bytes */
struct gdn_os_draft {
    FILE *out;
    char  target[GDN_OS_PATH]; /* the path without links */
    char  name[GDN_OS_PATH];   /* of the draft */
};

int gdn_os_draft_begin(struct gdn_os_draft *draft, const char *path);
int gdn_os_draft_end(struct gdn_os_draft *draft);

#endif
