/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a block computes the tokens of a tree, as tree.h has it. */
#ifndef GDN_CUDA_TREE_CUH
#define GDN_CUDA_TREE_CUH

#include "cuda/device/batch.cuh"

struct tree_visit {
    int token;
    int16_t level, copies; /* as in struct gdn_visit */
};

/* A node of a tree: number 0 is the initial state, number t + 1 is token t. */
struct tree_node {
    int parent, size, heir, at, next, level; /* as in tree.c */
};

GDN_DEVICE void visit_all(struct tree_visit *visits, struct tree_node *nodes, int T)
{
    for (int i = T; i > 0; i--) {
        const int size = nodes[i].size;
        struct tree_node &parent = nodes[nodes[i].parent];
        parent.size += size;
        if (!parent.heir || size >= nodes[parent.heir].size) parent.heir = i;
    }
    for (int i = 1; i <= T; i++) {
        struct tree_node n = nodes[i], parent = nodes[n.parent];
        const bool copies = parent.heir != i;
        n.at = copies ? parent.next : parent.at + parent.size - n.size;
        n.next = n.at + 1;
        n.level = parent.level + copies;
        if (copies) nodes[n.parent].next += n.size;
        nodes[i] = n;
        visits[n.at] = { i - 1, (int16_t)n.level, (int16_t)copies };
    }
}

/* Finds the order of the T tokens of sequence `row`. All threads call it. The result can be read
 * after the next barrier. */
GDN_DEVICE void find_order(struct tree_visit *visits, struct tree_node *nodes,
                           const struct gdn_cu_batch &b, int64_t row, int T)
{
    for (int i = threadIdx.x; i <= T; i += blockDim.x) {
        struct tree_node n = {};
        n.size = 1;
        n.at = -1;
        if (i) n.parent = (int)clamp64(load_index(b.parents, row, i - 1), -1, i - 2) + 1;
        nodes[i] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) visit_all(visits, nodes, T);
}

#endif
