/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a weight [out][in] of f32, bf16 or f16, as it is stored, with rows of float32, on the
 * program's threads. All sums are in float32. A result's bits depend on its two rows alone, so a
 * token has the same bits in a prompt, alone, and on any number of threads, per instruction set.
 */
#ifndef MATRIX_H
#define MATRIX_H

#include "compute/threads.h"
#include "program/memory.h"

struct matrix_loops;

struct matrix {
    const struct matrix_loops *loops;
    struct threads *threads;
    float *scratch; /* of each thread */
};

/* isa: as gdn_isa() names it. False where there is no memory. */
bool matrix_open(struct matrix *m, const char *isa, struct threads *threads, int n_threads,
                 struct memory *memory);

/* Computes y [tokens][out] = x [tokens][in] w^T. */
void matrix_product(const struct matrix *m, const gdn_tensor *w, const float *x, float *y,
                    int64_t tokens);

/* Converts n elements of a dtype, exactly. */
void matrix_widen(const struct matrix *m, float *to, const void *from, int32_t dtype, int64_t n);

#endif
