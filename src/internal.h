/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the library that the command uses beside gdn.h: contexts, loops, kernels, calls
 * by number. */
#ifndef GDN_INTERNAL_H
#define GDN_INTERNAL_H

#include "calls/rule.h"
#include "core/backend.h"
#include "core/ctx.h"
#include "cpu/loops/kernels.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/images.h"
#include "cuda/driver/launch.h"
#include "cuda/layer/args.h"
#include "cuda/prefill/sm90/cache.h"
#include "ops/mirror.h"
#include "ops/op_table.h"

#endif
