/* SPDX-License-Identifier: Apache-2.0 */
/* gdn bench: what is timed, and how. bench_options.c reads the options, bench_rounds.c times. */
#ifndef BENCH_H
#define BENCH_H

#include "cases/cases.h"
#include "measure.h"

enum { BENCH_MAX_CALLS = 3, BENCH_MAX_ROUNDS = 101 };

/* An op that is called again and again. */
struct bench_call {
    gdn_op op;
    const void *args;
    struct summary ms; /* found: of one call */
};

struct bench {
    gdn_ctx *ctx;
    struct bench_call calls[BENCH_MAX_CALLS]; /* the op; then its parts, which are timed alone */
    int n_calls;
    double seconds;           /* for all of it, about */
    bool by_memory;           /* the bandwidth is the bound, else arithmetic */
    size_t footprint;         /* bytes that the bandwidth is measured on */
    double flops, bytes;      /* of calls[0] */
    struct comparison judged; /* of calls[0], by the float64 judge */
    char kernel[640];
    double peak;          /* found: flop/s or byte/s */
    double copy, product; /* of a device: byte/s copied, flop/s of a bf16 product */
    int n_rounds;
};

/* Interleaves all calls and the yardstick, round after round. CLI_OK, or CLI_BAD. */
int bench_rounds(struct bench *b);

/* Returns the share of its bound that the op reached. */
double bench_share(const struct bench *b);

#endif
