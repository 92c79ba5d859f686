/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A result beside its expected value, judged by the limits of tests/vectors/README.md. They
 * follow from the least exact dtype among the activations and the state:
 *
 *     all f32               largest error  2e-5 RMS + 1e-6
 *     any f16, no bf16      RMS error 8e-4 RMS, largest 3 units of 2^-11 of the largest value
 *     any bf16              RMS error 6e-3 RMS, largest 3 units of 2^-8  of the largest value
 *
 * RMS and largest value are those of the expected tensor. Where it is not finite, the result
 * must be the same infinity, or NaN for NaN.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include <stdbool.h>

#include "gdn.h"

struct comparison {
    double rms;       /* of the expected values */
    double max_error; /* largest absolute error */
    double rms_error; /* root mean square of the error */
    double max_limit;
    double rms_limit; /* INFINITY: none */
    bool ok;
};

/* The two tensors have the same sizes. precision: the least exact float dtype involved. */
struct comparison compare(const gdn_tensor *got, const gdn_tensor *want, int32_t precision);

/*
 * The same for a gradient, of activations of that dtype; of_gate: it is of a gate or of a beta.
 *
 *     f32    largest error  5e-5 RMS + 1e-6
 *     f16    RMS error 2e-3 RMS, largest 6 units of 2^-11 of the largest value
 *     bf16   RMS error 8e-3 RMS, of gates and betas 1.5e-2, largest 6 units of 2^-8
 */
struct comparison compare_gradient(const gdn_tensor *got, const gdn_tensor *want, int32_t dtype,
                                   bool of_gate);

struct comparison compare_gradient_doubles(const double *got, const double *want, int64_t n,
                                           int32_t dtype, bool of_gate);

/* The same for results in float64. */
struct comparison compare_doubles(const double *got, const double *want, int64_t n,
                                  int32_t precision);

/* The same for values whose rounding on the way is known, as a root mean square of each: the noise.
 * A value may err by 8 times its noise. The root mean square error may be twice that of the noise.
 * Either has the limit of float32 beside it. The largest error is the one nearest to its limit. */
struct comparison compare_noisy(const double *got, const double *want, const double *noise,
                                int64_t n);

/* Returns the less exact of two float dtypes. */
int32_t compare_precision(int32_t a, int32_t b);

/* Compares an error in units of the expected RMS; 0 for 0 / 0. */
double compare_relative(double error, double rms);

#endif
