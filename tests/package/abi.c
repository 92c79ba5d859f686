/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the sizes of the public structs as abi.txt lists them; see abi.sh. */
#include <stdio.h>

#include "gdn.h"
#include "gdn_blob.h"
#include "gdn_parallel.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

#define SIZE(type) printf("struct %s %zu\n", #type, sizeof(type))

int main(void)
{
    SIZE(gdn_tensor);
    SIZE(gdn_options);
    SIZE(gdn_batch);
    SIZE(gdn_blob_args);
    SIZE(gdn_blob_info);
    SIZE(gdn_collective);
#define GDN_ARGS_ROW(args, first, last, batch) SIZE(gdn_##args##_args);
#include "calls/ops.def"
    return 0;
}
