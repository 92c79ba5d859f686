/* SPDX-License-Identifier: Apache-2.0 */
/* How long a fuzz test goes on: GDN_FUZZ_SECONDS, else for its own number of rounds alone. */
#ifndef FUZZ_TIME_H
#define FUZZ_TIME_H

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

struct fuzz_time {
    time_t end; /* 0: no time asked for */
};

static inline struct fuzz_time fuzz_begin(void)
{
    const char *seconds = getenv("GDN_FUZZ_SECONDS");
    return (struct fuzz_time){ seconds ? time(NULL) + atol(seconds) : 0 };
}

static inline bool fuzz_goes_on(const struct fuzz_time *t) { return time(NULL) < t->end; }

#endif
