/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness of the inner loops, after checkasm: it walks the tables, not names, so that a
 * new instruction set or loop is tested the moment it is listed.
 *
 * Every buffer ends at a page that faults (or, in the second pass, begins after one), has
 * canaries on the other side, and holds NaN until it is filled. A fault inside a loop is that
 * loop's failure. Errors are judged in units of 2^-24 x magnitude (oracle.h).
 */
#ifndef GDN_TESTS_CHECK_H
#define GDN_TESTS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu/loops/kernels.h"
#include "gdn.h"
#include "oracle.h"

/* check [--isa=NAME] [--function=GLOB] [--seed=N] [--repeat=N] [--bench] [--verbose] [--list].
 * Returns 0, 1 after a failure, 2 for bad options, 77 if this machine lacks the --isa. */
int check_main(int argc, char **argv);

/* ---- One test per loop: runs its cases on one table ---- */

void check_load_row(const struct gdn_kernels *kr);
void check_store_row(const struct gdn_kernels *kr);
void check_dot(const struct gdn_kernels *kr);
void check_norm_row(const struct gdn_kernels *kr);
void check_exp_row(const struct gdn_kernels *kr);
void check_sigmoid_row(const struct gdn_kernels *kr);
void check_slope_row(const struct gdn_kernels *kr);
void check_gate_row(const struct gdn_kernels *kr);
void check_decay_kind(const struct gdn_kernels *kr);
void check_transpose(const struct gdn_kernels *kr);
void check_gemm_nt(const struct gdn_kernels *kr);
void check_gemv(const struct gdn_kernels *kr);
void check_strip_mul(const struct gdn_kernels *kr);
void check_chunk_gates(const struct gdn_kernels *kr);
void check_chunk_solve(const struct gdn_kernels *kr);
void check_chunk_update(const struct gdn_kernels *kr);
void check_channel_update(const struct gdn_kernels *kr);
void check_channel_walk(const struct gdn_kernels *kr);
void check_channel_scale(const struct gdn_kernels *kr);
void check_channel_return(const struct gdn_kernels *kr);
void check_chunk_write(const struct gdn_kernels *kr);
void check_chunk_return(const struct gdn_kernels *kr);
void check_recur_vk(const struct gdn_kernels *kr);
void check_recur_kv(const struct gdn_kernels *kr);
void check_add_outer(const struct gdn_kernels *kr);
void check_recur_strip(const struct gdn_kernels *kr);
void check_conv(const struct gdn_kernels *kr);
void check_conv_update(const struct gdn_kernels *kr);
void check_conv_sums(const struct gdn_kernels *kr);
void check_load8_vk(const struct gdn_kernels *kr);
void check_load8_kv(const struct gdn_kernels *kr);
void check_store8_vk(const struct gdn_kernels *kr);
void check_store8_kv(const struct gdn_kernels *kr);
void check_recur8_vk(const struct gdn_kernels *kr);

/* Ends the case before (its canaries are looked at, its buffers freed) and names the next. */
void check_case(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The loop in a slot of the table; counts as exercised: CALL(kr->dot)(a, b, n). */
#define CALL(slot) (check_mark(&(slot)), (slot))
void check_mark(const void *slot);

/* Returns true for the scalar table, which has limits of its own for long sums. */
static inline bool is_scalar(const struct gdn_kernels *kr) { return kr == &gdn_kernels_scalar; }

/* Returns the vector table whose rule loops must have the bits of kr's (G17), if this machine
 * runs it. */
const struct gdn_kernels *check_twin(const struct gdn_kernels *kr);

/* ---- Buffers of a case ---- */

enum { ELEMENT = 1, LINE = 64 }; /* alignment: as it falls, or a cache line */

/* Every byte 0xff, which is NaN in each float dtype; so are the next two. */
void *check_bytes(size_t bytes, size_t align);
float *check_poison(size_t n);
double *check_doubles(size_t n);
/* n random floats; the same aligned to a cache line. */
float *check_floats(size_t n, double low, double high);
float *check_lines(size_t n, double low, double high);
/* rows x cols of random floats, ld apart; what lies between rows stays NaN. */
float *check_matrix(int64_t rows, int64_t cols, int64_t ld, double low, double high);
/* The same bytes in a new buffer. */
void *check_copy(const void *from, size_t bytes, size_t align);
/* Floats as doubles, exactly. */
double *check_widen(const float *x, size_t n);

uint64_t check_bits(void);
int check_below(int n);
double check_uniform(double low, double high);

/* ---- Judging ---- */

void check_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* rows x cols elements of a dtype, ld apart. */
struct check_view {
    const void *data;
    int dtype;
    int64_t rows, cols, ld;
};
static inline struct check_view f32_row(const float *p, size_t n)
{
    const struct check_view v = { p, GDN_F32, 1, (int64_t)n, (int64_t)n };
    return v;
}
static inline struct check_view f32_matrix(const float *p, int64_t rows, int64_t cols, int64_t ld)
{
    const struct check_view v = { p, GDN_F32, rows, cols, ld };
    return v;
}

/*
 * |got - want| <= limit x 2^-24 x mag + 2^-149, and half an ulp of the dtype if it is not
 * float32; want and mag are dense. What lies between rows must still be 0xff.
 */
void check_error(const char *what, struct check_view got, const double *want, const double *mag,
                 double limit);
/* Same bits. */
void check_same(const char *what, const void *got, const void *want, size_t bytes);
/* Checks that n floats have the same bits, or are both NaN. */
void check_same_numbers(const char *what, const float *got, const float *want, size_t n);

/* ---- Timing, with --bench ---- */

/* Repeats the call and prints a row under the case's name. */
#define CHECK_BENCH(bytes, flops, call) \
    for (check_bench_begin((double)(bytes), (double)(flops)); check_bench_more();) call
void check_bench_begin(double bytes, double flops);
bool check_bench_more(void);

#endif
