/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next token from logits. Temperature 0 takes the largest logit, the first of equal ones. Else
 * the token is random with probabilities softmax(logits / temperature); the random number depends
 * on the seed and the token's position alone, so a text that is saved and continued is the same.
 */
#ifndef SAMPLER_H
#define SAMPLER_H

#include <stdint.h>

struct sampler {
    double temperature;
    uint64_t seed;
};

/* -1 where a logit is not finite. */
int32_t sampler_next(const struct sampler *s, const float *logits, int64_t n, int64_t position);

#endif
