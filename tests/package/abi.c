/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the sizes of the public structs as abi.txt lists them; see abi.sh. */
#include <stdio.h>

#include "gdn.h"

#define SIZE(type) printf("struct %s %zu\n", #type, sizeof(type))

int main(void)
{
    SIZE(gdn_tensor);
    SIZE(gdn_options);
    SIZE(gdn_batch);
    SIZE(gdn_rule_args);
    SIZE(gdn_record_commit_args);
    SIZE(gdn_record_fold_args);
    SIZE(gdn_conv1d_args);
    SIZE(gdn_gates_args);
    SIZE(gdn_l2norm_args);
    SIZE(gdn_rmsnorm_gated_args);
    SIZE(gdn_step_args);
    SIZE(gdn_block_args);
    SIZE(gdn_state_copy_args);
    SIZE(gdn_blob_args);
    SIZE(gdn_blob_info);
    SIZE(gdn_summary_args);
    SIZE(gdn_summary_compose_args);
    SIZE(gdn_summary_apply_args);
    SIZE(gdn_chunk_cumsum_args);
    SIZE(gdn_chunk_uw_args);
    SIZE(gdn_chunk_states_args);
    SIZE(gdn_chunk_output_args);
    return 0;
}
