/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm: y = x / sqrt(mean of x^2 + eps) (center + weight). y may be x. */
#ifndef RMSNORM_H
#define RMSNORM_H

#include <math.h>
#include <stdint.h>

static inline void rmsnorm(const float *x, const float *weight, float *y, int64_t n, float eps,
                           float center)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    const float scale = (float)(1 / sqrt(sum / (double)n + eps));
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * (center + weight[i]);
}

#endif
