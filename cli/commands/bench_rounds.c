/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round times every call and then the yardstick, so that the machine has the same state for all.
 * The median of a call's rounds is compared with the best round of the yardstick. A limit is the
 * most that the machine can do, and other work on it only lowers a round. Before each timed batch
 * of calls comes an untimed one. It loads into the caches what other calls pushed out.
 */
#include <string.h>

#include "cli.h"
#include "commands/bench.h"
#include "files/job.h"

enum { MIN_ROUNDS = 5 };

static const double batch_seconds = 0.01, yardstick_seconds = 0.005;

/* Calls in a batch: about batch_seconds, one at least. CLI_BAD if the op refuses. */
static int warm_up(struct bench *b, int *n_in_batch)
{
    for (int i = 0; i < b->n_calls; i++) {
        const struct bench_call *c = &b->calls[i];
        double seconds = 0;
        for (int run = 0; run < 2; run++) {
            const double start = measure_clock();
            const gdn_status status = cli_call(b->ctx, c->op, c->args);
            seconds = measure_clock() - start;
            if (status) return cli_failed(b->ctx, status);
        }
        n_in_batch[i] = 1 + (int)(batch_seconds / (seconds + 1e-7));
    }
    return CLI_OK;
}

/* Milliseconds of one call. */
static double time_batch(const struct bench *b, int i, int n)
{
    const struct bench_call *c = &b->calls[i];
    cli_call(b->ctx, c->op, c->args);
    const double start = measure_clock();
    for (int k = 0; k < n; k++) cli_call(b->ctx, c->op, c->args);
    return 1e3 * (measure_clock() - start) / n;
}

int bench_rounds(struct bench *b)
{
    double ms[BENCH_MAX_CALLS][BENCH_MAX_ROUNDS];
    int n_in_batch[BENCH_MAX_CALLS], n = 0;
    struct measure yardstick;
    if (measure_open(&yardstick, gdn_isa(b->ctx), gdn_n_threads(b->ctx),
                     b->by_memory ? b->footprint : 0))
        return CLI_BAD;
    if (warm_up(b, n_in_batch)) {
        measure_close(&yardstick);
        return CLI_BAD;
    }
    const double start = measure_clock();
    while (n < BENCH_MAX_ROUNDS && (n < MIN_ROUNDS || measure_clock() - start < b->seconds)) {
        for (int i = 0; i < b->n_calls; i++) ms[i][n] = time_batch(b, i, n_in_batch[i]);
        const double peak =
            (b->by_memory ? measure_in_place : measure_flops)(&yardstick, yardstick_seconds);
        if (peak > b->peak) b->peak = peak;
        n++;
    }
    for (int i = 0; i < b->n_calls; i++) b->calls[i].ms = measure_summary(ms[i], n);
    b->n_rounds = n;
    measure_close(&yardstick);
    return CLI_OK;
}

double bench_share(const struct bench *b)
{
    const double seconds = 1e-3 * b->calls[0].ms.median;
    const double reached = (b->by_memory ? b->bytes : b->flops) / seconds / b->peak;
    /* on a device the time of memory or of products may be the limit; a copy reads and writes
     * each byte, so it counts twice */
    const double memory = b->copy > 0 ? b->bytes / (2 * b->copy) / seconds : 0;
    return !b->by_memory && memory > reached ? memory : reached;
}
