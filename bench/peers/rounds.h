/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contenders timed against each other: every round runs each of them for about 30 ms, so all
 * see the machine in the same state; a round in which other processes took more than a tenth
 * of the machine is dropped; a contender's time is the median of the rounds kept.
 */
#ifndef ROUNDS_H
#define ROUNDS_H

#include <stdbool.h>

enum { ROUNDS_MAX = 64 };

struct contender {
    void (*run)(void *arg);
    void *arg;
    double seconds[ROUNDS_MAX]; /* of one run, by round */
};

struct rounds {
    int kept, dropped;
};

/* Times are processor time of this process, which only says something of one thread, and no round
 * is dropped: for machines that are never quiet. */
extern bool rounds_cpu_time;

/* At least 5 rounds and about `seconds` long, but given up after three times that and 20 s. */
struct rounds rounds_run(struct contender *contenders, int n, double seconds);

/* Of the kept rounds; sorts them. */
double rounds_median(struct contender *c, const struct rounds *rounds);

#endif
