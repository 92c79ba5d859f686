/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the family and their gates, to draw calls of. */
#ifndef FAMILY_CALLS_H
#define FAMILY_CALLS_H

#include <math.h>
#include <stdbool.h>

#include "ring2.h"

/* The tensors that have channels, and how many updates a token has. */
static const struct rule {
    const char *name;
    bool g_rows, beta_rows, write;
    int updates;
} rules[] = {
    { "kda", true, false, false, 1 },   { "gdn2", true, true, true, 1 },
    { "gdp2", false, false, false, 2 }, { "gdp3", true, false, true, 3 },
    { "erase", false, true, false, 1 },
};
enum { N_RULES = sizeof rules / sizeof *rules };

/* Log gates of token t and channel x. */
static double none(int64_t t, int64_t x) { return (void)t, (void)x, 0; }
static double five(int64_t t, int64_t x) { return (void)t, (void)x, -5; }
static double apart(int64_t t, int64_t x) { return (void)t, x % 3 == 1 ? -60 : 0; }
static double once(int64_t t, int64_t x)
{
    return t == 7 && x % 4 < 2 ? -(double)INFINITY : ring2_uniform(-0.1, 0);
}
static double mixed(int64_t t, int64_t x)
{
    switch ((t * 5 + x * 3) % 9) {
    case 0: return 0;
    case 1: return -60;
    case 2: return t % 16 == 9 ? -(double)INFINITY : -0.01;
    case 3: return -5;
    case 4: return t % 7 ? -0.02 : -200;
    default: return ring2_uniform(-2, 0);
    }
}
static double (*const gates[])(int64_t t, int64_t x) = { none, five, apart, once, mixed };
enum { N_GATES = sizeof gates / sizeof *gates };

#endif
