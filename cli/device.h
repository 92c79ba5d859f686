/* SPDX-License-Identifier: Apache-2.0 */
/* Timing on a device: the rounds of gdn bench. */
#ifndef DEVICE_H
#define DEVICE_H

#include "commands/bench.h"

/* Does what bench_rounds() does, for a context of GDN_BACKEND_CUDA. The yardsticks are scaling in
 * place and a bf16 matrix product; a copy is timed too. */
int device_rounds(struct bench *b);

#endif
