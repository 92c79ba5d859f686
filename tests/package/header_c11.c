/* SPDX-License-Identifier: Apache-2.0 */
/* The headers together, in strict C11: they must compile without a warning. Their structs of
 * arguments are those of ops.def. Each header alone is compiled too (tests/CMakeLists.txt). */
#include "gdn.h"
#include "gdn_blob.h"
#include "gdn_parallel.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

struct every_struct {
    gdn_tensor tensor;
    gdn_options options;
    gdn_batch batch;
    gdn_blob_args blob;
    gdn_blob_info info;
#define GDN_ARGS_ROW(args, first, last, batch) gdn_##args##_args args;
#include "calls/ops.def"
};

struct every_struct make_every_struct(void *data);

struct every_struct make_every_struct(void *data)
{
    struct every_struct all;
    all.tensor = gdn_dense(data, GDN_F32, 2, 3, 4, 0, 0);
    all.tensor = gdn_strided(data, GDN_F32, 2, all.tensor.size, all.tensor.stride);
    all.options = gdn_options_init();
    all.batch = gdn_batch_init();
    all.blob = gdn_blob_args_init();
    all.info = gdn_blob_info_init();
#define GDN_ARGS_ROW(args, first, last, batch) all.args = gdn_##args##_args_init();
#include "calls/ops.def"
    return all;
}
