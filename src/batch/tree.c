/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of tokens: see tree.h. All passes go through the tokens in order, for a parent comes
 * before its children. */
#include "batch/tree.h"

#include "core/ctx.h"
#include "core/tensor_check.h"

gdn_status gdn_check_tree(gdn_ctx *ctx, const gdn_batch *b, bool exact, int32_t dtype)
{
    if (!b->parents.data) return GDN_OK;
    if (exact && gdn_is_q8(dtype))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "parents: given, wanted none with GDN_EXACT and "
                        "a state of 8 bits");
    return GDN_OK;
}

/* Number 0 is the initial state, number t + 1 token t. */
struct node {
    int64_t size;     /* with all descendants */
    int64_t heir;     /* the child that comes last */
    int64_t at, next; /* when the node is visited, and when its next child is; the heir comes
                         last */
    int32_t level;
};

static int64_t longest(const struct gdn_tokens *tokens)
{
    return tokens->padded ? tokens->T : tokens->N;
}

static size_t visit_bytes(const struct gdn_tokens *tokens)
{
    return gdn_align64((size_t)tokens->N * sizeof(struct gdn_visit));
}

size_t gdn_tree_bytes(const struct gdn_tokens *tokens)
{
    return visit_bytes(tokens) + gdn_align64((size_t)(longest(tokens) + 1) * sizeof(struct node));
}

static void find_sizes(const struct gdn_plan *plan, const struct gdn_seq *s, struct node *nodes)
{
    for (int64_t i = 0; i <= s->n_valid; i++) nodes[i] = (struct node){ .size = 1 };
    for (int64_t i = s->n_valid; i > 0; i--) {
        struct node *parent = &nodes[gdn_plan_parent(plan, s, i - 1) + 1];
        parent->size += nodes[i].size;
        if (!parent->heir || nodes[i].size >= nodes[parent->heir].size) parent->heir = i;
    }
}

static void visit_all(const struct gdn_plan *plan, const struct gdn_seq *s, struct node *nodes,
                      struct gdn_visit *visits)
{
    nodes[0].at = -1;
    for (int64_t i = 1; i <= s->n_valid; i++) {
        struct node *n = &nodes[i], *parent = &nodes[gdn_plan_parent(plan, s, i - 1) + 1];
        const bool copies = parent->heir != i;
        n->at = copies ? parent->next : parent->at + parent->size - n->size;
        n->next = n->at + 1;
        n->level = parent->level + copies;
        if (copies) parent->next += n->size;
        visits[n->at] = (struct gdn_visit){ i - 1, n->level, copies };
    }
}

void gdn_tree_order(const struct gdn_plan *plan, const struct gdn_tokens *tokens, void *memory)
{
    struct gdn_visit *visits = memory;
    struct node *nodes = (struct node *)(void *)((char *)memory + visit_bytes(tokens));
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        find_sizes(plan, s, nodes);
        visit_all(plan, s, nodes, visits + gdn_tree_at(tokens, s));
    }
}
