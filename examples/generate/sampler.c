/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler.h"

#include <math.h>

/* Returns splitmix64's mixing of a counter. */
static double random_number(uint64_t seed, uint64_t position)
{
    uint64_t z = seed * 0xd1342543de82ef95 + position * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* -1: not finite. */
static int64_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

int32_t sampler_next(const struct sampler *s, const float *logits, int64_t n, int64_t position)
{
    const int64_t best = largest(logits, n);
    double sum = 0;
    if (best < 0 || s->temperature <= 0) return (int32_t)best;
    for (int64_t i = 0; i < n; i++) sum += exp(((double)logits[i] - logits[best]) / s->temperature);
    double left = sum * random_number(s->seed, (uint64_t)position);
    for (int64_t i = 0; i < n; i++) {
        left -= exp(((double)logits[i] - logits[best]) / s->temperature);
        if (left < 0) return (int32_t)i;
    }
    return (int32_t)best; /* what rounding left over */
}
