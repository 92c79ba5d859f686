/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "cli.h"
#include "internal/internal.h"

enum { MIN_ROUNDS = 13 };

static gdn_status time_calls(struct bench *b)
{
    double samples[BENCH_MAX_ROUNDS];
    for (int i = 0; i < b->n_calls; i++) {
        struct bench_call *c = &b->calls[i];
        const gdn_status status =
            gdn_internal_time_rounds(b->ctx, c->op, c->args, b->n_rounds, samples);
        if (status) return status;
        for (int r = 0; r < b->n_rounds; r++) samples[r] *= 1e3;
        c->ms = measure_summary(samples, b->n_rounds);
    }
    return GDN_OK;
}

static gdn_status time_yardsticks(struct bench *b)
{
    gdn_status status = gdn_internal_yardstick(b->ctx, GDN_YARDSTICK_PRODUCT, 0, &b->product);
    if (!status) status = gdn_internal_yardstick(b->ctx, GDN_YARDSTICK_COPY, 0, &b->copy);
    b->peak = b->product;
    if (!status && b->by_memory)
        status = gdn_internal_yardstick(b->ctx, GDN_YARDSTICK_SCALE, b->footprint, &b->peak);
    return status;
}

int device_rounds(struct bench *b)
{
    b->n_rounds = b->seconds < 2 ? MIN_ROUNDS : 3 * MIN_ROUNDS;
    gdn_status status = time_calls(b);
    if (!status) status = time_yardsticks(b);
    return status ? cli_failed(b->ctx, status) : CLI_OK;
}
