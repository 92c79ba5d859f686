/* SPDX-License-Identifier: Apache-2.0 */
/* gdn.h alone, twice, in strict C11: it must compile without a warning. */
#include "gdn.h"
#include "gdn.h"

struct every_struct {
    gdn_tensor             tensor;
    gdn_options            options;
    gdn_batch              batch;
    gdn_rule_args          rule;
    gdn_conv1d_args        conv1d;
    gdn_record_commit_args record_commit;
    gdn_record_fold_args   record_fold;
    gdn_gates_args         gates;
    gdn_l2norm_args        l2norm;
    gdn_rmsnorm_gated_args rmsnorm_gated;
    gdn_step_args          step;
    gdn_block_args         block;
    gdn_state_copy_args    state_copy;
    gdn_blob_args          blob;
    gdn_blob_info          info;
    gdn_summary_args         summary;
    gdn_summary_compose_args summary_compose;
    gdn_summary_apply_args   summary_apply;
    gdn_chunk_cumsum_args    chunk_cumsum;
    gdn_chunk_uw_args        chunk_uw;
    gdn_chunk_states_args    chunk_states;
    gdn_chunk_output_args    chunk_output;
};

struct every_struct make_every_struct(void *data);

struct every_struct make_every_struct(void *data)
{
    struct every_struct all;
    all.tensor        = gdn_dense(data, GDN_F32, 2, 3, 4, 0, 0);
    all.options       = gdn_options_init();
    all.batch         = gdn_batch_init();
    all.rule          = gdn_rule_args_init();
    all.conv1d        = gdn_conv1d_args_init();
    all.record_commit = gdn_record_commit_args_init();
    all.record_fold   = gdn_record_fold_args_init();
    all.gates         = gdn_gates_args_init();
    all.l2norm        = gdn_l2norm_args_init();
    all.rmsnorm_gated = gdn_rmsnorm_gated_args_init();
    all.step          = gdn_step_args_init();
    all.block         = gdn_block_args_init();
    all.state_copy    = gdn_state_copy_args_init();
    all.blob          = gdn_blob_args_init();
    all.info          = gdn_blob_info_init();
    all.summary         = gdn_summary_args_init();
    all.summary_compose = gdn_summary_compose_args_init();
    all.summary_apply   = gdn_summary_apply_args_init();
    all.chunk_cumsum    = gdn_chunk_cumsum_args_init();
    all.chunk_uw        = gdn_chunk_uw_args_init();
    all.chunk_states    = gdn_chunk_states_args_init();
    all.chunk_output    = gdn_chunk_output_args_init();
    return all;
}
