/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the items of the rule, each by the form that its sequence takes. */
#include "cpu/loops/bf16.h"
#include "cpu/loops/stream.h"
#include "cpu/record/open_chunk.h"
#include "cpu/rule.h"

enum form { STEPS, CHUNKS, STRIPS, OPEN };

static enum form form_of(const struct gdn_rule *r, const struct gdn_seq *seq)
{
    if (r->split) return r->record && seq->slot >= 0 ? OPEN : CHUNKS;
    if (r->decode || seq->total <= GDN_SHORT_SEQUENCE) return STEPS;
    if (gdn_rule_rounding8(r)) return STEPS;
    return r->exact ? STRIPS : CHUNKS;
}

const char *gdn_rule_loops(const struct gdn_rule *r)
{
    static const char *const names[2][4] = {
        { "recur_vk", "recur_vk", "chunk_solve", "chunk_solve recur_vk" },
        { "recur_kv", "recur_kv", "chunk_solve", "chunk_solve recur_kv" },
    };
    static const char *const exact_names[2][4] = {
        { "recur_vk", "recur_vk", "recur_strip", "recur_strip recur_vk" },
        { "recur_kv", "recur_kv", "recur_strip", "recur_strip recur_kv" },
    };
    static const char *const bf16_names[2][4] = {
        { "recur_vk", "recur_vk", "bf16_mul chunk_solve", "bf16_mul chunk_solve recur_vk" },
        { "recur_kv", "recur_kv", "bf16_mul chunk_solve", "bf16_mul chunk_solve recur_kv" },
    };
    int used = 0; /* 1: steps, 2: not */
    for (int64_t b = 0; b < r->n_seqs; b++) used |= form_of(r, &r->seqs[b]) == STEPS ? 1 : 2;
    const bool kv = r->to.data ? r->to.k_first : r->from.k_first;
    return (r->exact ? exact_names : r->products ? bf16_names : names)[kv][used];
}

size_t gdn_rule_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    const size_t step = r->split && r->record ? gdn_open_scratch(r, kr) : gdn_decode_scratch(r);
    const size_t long_one = r->decode && !r->split ? 0
                            : r->exact             ? gdn_exact_scratch(r, kr)
                                                   : gdn_chunk_scratch(r, kr);
    return gdn_align64(step > long_one ? step : long_one);
}

struct run_arg {
    const struct gdn_rule *rule;
    const struct gdn_kernels *kr;
    char *scratch;
    size_t thread_bytes;
    int64_t first; /* the longest sequence, which is begun first */
};

static void run_rule_item(void *arg, int64_t i, int thread)
{
    const struct run_arg *a = arg;
    const struct gdn_rule *r = a->rule;
    void *scratch = a->scratch + (size_t)thread * a->thread_bytes;
    const struct gdn_rule_item item = gdn_rule_item_at(r, a->first, i);
    if (item.seq->n_tokens == 0) return;
    switch (form_of(r, item.seq)) {
    case CHUNKS: gdn_chunk_item(r, a->kr, &item, scratch); break;
    case OPEN: gdn_open_item(r, a->kr, &item, scratch); break;
    case STRIPS: gdn_exact_item(r, a->kr, &item, scratch); break;
    default: gdn_decode_item(r, a->kr, &item, scratch); break;
    }
    if (r->checkpoints.streamed) gdn_stream_end();
}

void gdn_rule_run(gdn_ctx *ctx, const struct gdn_rule *rule, void *scratch)
{
    struct gdn_rule r = *rule;
    gdn_rule_cut(&r, ctx->kr, gdn_threads_count(ctx->threads)); /* now by lengths: no coarser */
    struct run_arg arg = { &r, ctx->kr, scratch, gdn_rule_scratch(&r, ctx->kr),
                           gdn_rule_longest(&r) };
    gdn_parallel_for(ctx->threads, gdn_rule_items(&r), run_rule_item, &arg);
}
