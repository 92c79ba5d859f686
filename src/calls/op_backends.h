/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the backends: core/backend.h, one per op of ops.def. */
#ifndef GDN_OP_BACKENDS_H
#define GDN_OP_BACKENDS_H

#include "core/backend.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

#define GDN_OP_ROW(NUMBER, name, args) \
    extern const struct gdn_op_backend gdn_cpu_op_##name, gdn_cuda_op_##name;
#include "calls/ops.def"

#endif
