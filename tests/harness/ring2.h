/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixture of the op tests: named tests, guarded memory, views of any shape, comparison.
 *
 * Memory is the one idea. Every buffer ends at a page that cannot be touched and is filled
 * with bytes that read as NaN in every float dtype. ring2_call_begin() takes a copy of all of
 * it, ring2_may_write() names the elements that the call may change, ring2_call_end() finds
 * any other byte that changed: inputs, gaps between rows, slots of no sequence.
 */
#ifndef RING2_H
#define RING2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdn.h"
#include "ops/op_table.h"

/* ---- Tests ---- */

struct ring2_test {
    const char *name;
    void (*run)(void);
};

/* Runs the tests whose name contains the program's argument; without an argument all. Returns
 * the status for main(). */
int ring2_main(int argc, char **argv, const struct ring2_test *tests, int n);

/* The same for tests of n numbered cases each. */
struct ring2_cases {
    const char *name;
    void (*run)(int number);
    int n;
};
int ring2_cases_main(int argc, char **argv, const struct ring2_cases *tests, int n);

/* The same by hand, for generated tests. --every=N or GDN_TEST_EVERY=N: every Nth test begins.
 * The variable thins only tests of these two kinds. */
void ring2_options(int argc, char **argv);
bool ring2_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ring2_end(void); /* prints the line, frees every buffer */
/* Prints the closing line. Returns main's status, 77 if all tests that ran were skipped. */
int ring2_summary(void);

/* Marks the running test. */
void ring2_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ring2_skip(const char *why);
bool ring2_failed(void);

#define CHECK(cond, ...)                      \
    do {                                      \
        if (!(cond)) ring2_fail(__VA_ARGS__); \
    } while (0)

/* status, with the context's last error as the text of the failure */
void ring2_status(gdn_ctx *ctx, const char *what, gdn_status got, gdn_status want);

/* ---- Random numbers: the same on every machine, from the test's name ---- */

uint64_t ring2_bits(void);
double ring2_uniform(double low, double high);
int64_t ring2_below(int64_t n);
uint64_t ring2_seed(void); /* of the option --seed=N; 0 without */

/* ---- Pairwise cases ---- */

enum { RING2_MAX_FACTORS = 32, RING2_MAX_LEVELS = 10 };

struct ring2_factors {
    int n;
    const int *levels; /* [n], how many levels each factor has */
    bool (*allowed)(int factor_i, int level_i, int factor_j, int level_j);
};
/* Rows of levels such that every allowed pair of two factors' levels is in one of them. Returns
 * how many. Ends the test as failed if max_rows are too few or a pair is in no possible row. */
int ring2_pairs(const struct ring2_factors *f, int (*rows)[RING2_MAX_FACTORS], int max_rows);
/* Appends some of the n rows with another level of a factor, from `first` to `end` - 1 in turn:
 * levels too dear to meet all others. Returns how many rows there are, or ends the test. */
int ring2_pairs_again(const struct ring2_factors *f, int (*rows)[RING2_MAX_FACTORS], int n,
                      int max_rows, int factor, int first, int end);

/* ---- Contexts ---- */

/* One context per thread count, kept to the end of the program. */
gdn_ctx *ring2_ctx(int n_threads);

/* Gives the call, the argument struct of the op, a workspace of the bytes that it needs. */
void ring2_give_workspace(gdn_ctx *ctx, gdn_op op, void *args);

/* Runs call(arg) in unusual float environment i, and checks that the call keeps it. Returns
 * false if this machine has no environment i. */
bool ring2_float_mode(int i, void (*call)(void *arg), void *arg);

#if defined(__aarch64__)
/* The float environment of a thread. */
static inline uint64_t ring2_fpcr(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void ring2_set_fpcr(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

/* ---- Memory and views ---- */

void *ring2_alloc(size_t bytes, size_t align);
void *ring2_heap(size_t bytes); /* zeroed, unguarded, freed by ring2_end() */
void ring2_free(void);          /* frees all of it before the end, for long tests */

/* A view with a buffer of its own: each dimension but the last is followed by `gap` elements
 * that the call does not describe. */
gdn_tensor ring2_new(int32_t dtype, int64_t gap, int ndim, int64_t s0, int64_t s1, int64_t s2,
                     int64_t s3);
/* The same. turned: the last dimension but one has the least stride. */
gdn_tensor ring2_turned(bool turned, int32_t dtype, int64_t gap, int ndim, int64_t s0, int64_t s1,
                        int64_t s2, int64_t s3);
/* Returns the batch without checkpoints. */
static inline gdn_batch ring2_no_checkpoints(const gdn_batch *batch)
{
    gdn_batch b = *batch;
    b.checkpoint_every = 0;
    b.checkpoint_starts.data = b.checkpoint_positions.data = b.checkpoint_slots.data = NULL;
    return b;
}

/* View without dimension dim, at index i of it; view with n of dimension dim, from `first`. */
gdn_tensor ring2_select(const gdn_tensor *t, int dim, int64_t i);
gdn_tensor ring2_narrow(const gdn_tensor *t, int dim, int64_t first, int64_t n);
gdn_tensor ring2_swap(const gdn_tensor *t, int a, int b);

/* Copies a tensor to dense memory of its own. An absent tensor stays absent. */
gdn_tensor ring2_clone(const gdn_tensor *t);

int64_t ring2_count(const gdn_tensor *t);
/* Element number i in row-major order, whatever the strides. */
void *ring2_element(const gdn_tensor *t, int64_t i);
double ring2_get(const gdn_tensor *t, int64_t i);
void ring2_set(const gdn_tensor *t, int64_t i, double x); /* rounds to nearest even */
void ring2_fill(const gdn_tensor *t, double low, double high);
void ring2_fill_value(const gdn_tensor *t, double x);
void ring2_copy(const gdn_tensor *to, const gdn_tensor *from);
double *ring2_doubles(const gdn_tensor *t);
gdn_tensor ring2_indices(int32_t dtype, int64_t n, const int64_t *values);

/* Returns true if every bit of every element is equal. */
bool ring2_same_bits(const gdn_tensor *a, const gdn_tensor *b);
void ring2_expect_bits(const char *what, const gdn_tensor *got, const gdn_tensor *want);

/* ---- What a call may touch ---- */

void ring2_call_begin(void);
void ring2_may_write(const gdn_tensor *t);
void ring2_may_write_bytes(const void *memory, size_t bytes);
void ring2_call_end(void);

/* ---- Refusals ---- */

enum ring2_seen { RING2_STRUCT, RING2_CONTENTS, RING2_WORKSPACE };
/*
 * G1: the call is refused with that status and a text that holds `needle`; no byte of any
 * buffer changes. gdn_supported() says the same of what the struct alone tells, without
 * reading through a pointer, and accepts what only contents (or the workspace) tell.
 */
void ring2_refused(gdn_ctx *ctx, gdn_op op, const void *args, enum ring2_seen seen, gdn_status want,
                   const char *needle);

/* ---- Comparison ---- */

/*
 * |got - want| <= limit + half an ulp of the stored dtype, element by element. A limit must
 * hold in the worst case and is far above the usual error, so where `noise` is given, the
 * root mean square error may also be no more than that of the noise, plus roundings. kept:
 * elements not to be judged; NULL: none.
 */
void ring2_compare(const char *what, const gdn_tensor *got, const double *want, const double *limit,
                   const double *noise, const bool *kept);

#endif
