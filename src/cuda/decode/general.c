/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the general kernel of gdn_decode (general.cuh). */
#include "cuda/decode/select.h"

static bool is_simple(const struct gdn_cu_batch *b)
{
    return !b->has_initial_state.data && !b->num_accepted_tokens.data && !b->token_start.data &&
           !b->token_count.data && b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK;
}

struct gdn_cu_decode gdn_decode_general_args(const struct gdn_cu_rule *r)
{
    return (struct gdn_cu_decode){
        .rule = *r,
        .n_parts = (r->V + GENERAL_COLUMNS - 1) / GENERAL_COLUMNS,
        .rounding = r->exact ? gdn_decode_pool(r)->dtype : GDN_F32,
        .simple = is_simple(&r->batch),
    };
}

gdn_status gdn_decode_launch_general(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_general_vk) },
                                                      { SIZES(GDN_CU_decode_general_kv) } };
    const struct gdn_cu_decode a = gdn_decode_general_args(c->rule);
    const int64_t n = gdn_decode_sequences(c->rule);
    const int64_t rows = n < MOST_ROWS ? n : MOST_ROWS;
    const struct gdn_cuda_call call = {
        .kernel = kernels[c->pool->k_first][gdn_decode_size(c->rule->K)],
        .grid = { (int64_t)c->rule->H * a.n_parts, rows, rows ? (n + rows - 1) / rows : 0 },
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(c->ctx, &call));
    return gdn_cuda_note(c->ctx, c->op, call.kernel);
}
