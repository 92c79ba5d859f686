/* SPDX-License-Identifier: Apache-2.0 */
/* How long a fuzz test goes on: GDN_FUZZ_SECONDS, but its own number of rounds at least. */
#ifndef FUZZ_TIME_H
#define FUZZ_TIME_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ring2.h"

struct fuzz_time {
    time_t end; /* 0: no time asked for */
};

static inline struct fuzz_time fuzz_begin(void)
{
    const char *seconds = getenv("GDN_FUZZ_SECONDS");
    printf("seed %" PRIu64 ", %s seconds\n", ring2_seed(), seconds ? seconds : "some");
    return (struct fuzz_time){ seconds ? time(NULL) + atol(seconds) : 0 };
}

static inline bool fuzz_goes_on(const struct fuzz_time *t) { return time(NULL) < t->end; }

#endif
