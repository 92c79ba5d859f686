/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule of a checked call: arguments resolved to rows, sequences and pools. gdn_prefill,
 * gdn_decode, gdn_step, gdn_block and the stages fill one.
 */
#ifndef GDN_RULE_H
#define GDN_RULE_H

#include "batch/plan.h"
#include "core/ctx.h"
#include "core/formulas.h"
#include "core/views.h"

struct gdn_record;        /* record.h */
struct gdn_visit;         /* batch/tree.h */
struct gdn_bf16_products; /* cpu/loops/bf16.h */

/* Sequences of up to this many tokens go token by token in gdn_prefill too. */
enum { GDN_SHORT_SEQUENCE = 8 };

struct gdn_rule {
    struct gdn_rows q, k, v, g, beta, out;
    struct gdn_family family;
    struct gdn_pool_view from, to;
    struct gdn_pool_view checkpoints;
    struct gdn_pool_view carry_from, carry_to; /* one slot: between windows of a sequence */
    const struct gdn_plan
        *plan; /* read for GDN_WRITE_EACH and checkpoints; the sequences are below */
    const struct gdn_seq *seqs;
    int64_t n_seqs;
    int Hq, Hk, Hv, H, K, V;
    int head_map, gate, beta_kind, norm;
    float norm_eps, scale, bound;
    const struct gdn_tokens *tokens; /* for trees */
    const struct gdn_visit *visits;  /* the order of the tokens of a tree; NULL: their own order */
    const struct gdn_record *record; /* NULL: none */
    const float *A, *dt;             /* [H] for raw gates: -exp(A_log), or exp(A_log) with a bound;
                                      dt [H][K] for gates per channel */
    bool decode;                     /* token by token whatever the length */
    const struct gdn_bf16_products *products; /* of a CPU, for chunks; NULL: float32 */
    bool tree;                                /* tokens are a tree */
    bool exact;                               /* GDN_EXACT: sums have one order */
    bool split; /* chunks whatever the length, and a record's tokens as a part of theirs */

    /* The CPU's: how a sequence is cut into items (cpu/rule.h). A group is the heads that share q
     * and k; its columns, in strips, are dealt to n_parts items. */
    int n_groups, group_heads, n_strips, n_parts, part_strips;
};

/* Returns the updates of a token: rows of k and v. */
static inline int gdn_rule_updates(const struct gdn_rule *r)
{
    return r->family.is ? r->family.updates : 1;
}

/* Returns how many numbers a gate has: one, or one per channel. */
static inline int64_t gdn_rule_channels(const struct gdn_rule *r)
{
    return r->family.g_rows ? r->K : 1;
}

#endif
