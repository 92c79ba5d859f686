/* SPDX-License-Identifier: Apache-2.0 */
/* The backend takes a node of ggml if it knows every source and every parameter. */
#include "backend.h"
#include "ring2.h"

enum { T = 8 };

static struct ggml_tensor tensor(int64_t a, int64_t b, int64_t c, int64_t d)
{
    struct ggml_tensor x = { .type = GGML_TYPE_F32, .ne = { a, b, c, d }, .nb = { sizeof(float) } };
    for (int i = 1; i < GGML_MAX_DIMS; i++) x.nb[i] = x.nb[i - 1] * (size_t)x.ne[i - 1];
    return x;
}

/* An op of ggml: its node, the sources and parameters that the backend knows. */
struct node {
    const char *name;
    bool (*takes)(const struct ggml_tensor *node);
    int n_sources, n_params;
    struct ggml_tensor node, sources[GGML_MAX_SRC];
};

/* No node runs here. */
void *gdn_ggml_room(struct gdn_ggml *backend, size_t bytes)
{
    (void)backend, (void)bytes;
    return NULL;
}

static void fill_nodes(struct node nodes[3])
{
    const struct ggml_tensor heads = tensor(16, 2, T, 3), gates = tensor(1, 2, T, 3);
    nodes[0] = (struct node){
        "GATED_DELTA_NET",
        gdn_ggml_takes_rule,
        6,
        1,
        tensor(32, 3 * (T + 16), 1, 1),
        { heads, heads, heads, gates, gates, tensor(16, 16, 2, 3) },
    };
    nodes[1] = (struct node){
        "SSM_CONV", gdn_ggml_takes_conv, 2,
        0,          tensor(40, T, 3, 1), { tensor(T + 3, 40, 3, 1), tensor(4, 40, 1, 1) },
    };
    nodes[2] = (struct node){
        "L2_NORM", gdn_ggml_takes_norm, 1, 1, tensor(16, 2, T, 3), { heads },
    };
}

static void join(struct node *n)
{
    for (int i = 0; i < n->n_sources; i++) n->node.src[i] = &n->sources[i];
    for (int i = 0; i < n->n_params; i++) n->node.op_params[i] = 1;
}

static void test_takes(void)
{
    const int n_params = GGML_MAX_OP_PARAMS / (int)sizeof(int32_t);
    struct node nodes[3];
    fill_nodes(nodes);
    for (int k = 0; k < 3; k++) {
        struct node *n = &nodes[k];
        join(n);
        CHECK(n->takes(&n->node), "%s: not taken", n->name);
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            struct ggml_tensor node = n->node;
            node.src[i] = i < n->n_sources ? NULL : &n->sources[0];
            CHECK(!n->takes(&node), "%s: taken %s source %d", n->name,
                  i < n->n_sources ? "without" : "with", i);
        }
        for (int i = n->n_params; i < n_params; i++) {
            struct ggml_tensor node = n->node;
            node.op_params[i] = 1;
            CHECK(!n->takes(&node), "%s: taken with parameter %d", n->name, i);
        }
    }
}

/* A newer ggml may keep more in a source or in the output than the backend knows. */
static void test_sizes(void)
{
    struct node nodes[3];
    fill_nodes(nodes);
    struct node *rule = &nodes[0];
    join(rule);
    for (int i = 0; i <= rule->n_sources; i++) {
        struct ggml_tensor *x = i < rule->n_sources ? &rule->sources[i] : &rule->node;
        for (int d = 0; d < GGML_MAX_DIMS; d++) {
            x->ne[d]++;
            CHECK(!rule->takes(&rule->node), "taken with a larger size %d of tensor %d", d, i);
            x->ne[d]--;
        }
    }
    CHECK(rule->takes(&rule->node), "not taken");
}

/* A gate of each key channel (KDA), and a beta of each, which is another rule. */
static void test_channels(void)
{
    struct node nodes[3];
    fill_nodes(nodes);
    struct node *rule = &nodes[0];
    join(rule);
    rule->sources[3] = tensor(16, 2, T, 3);
    CHECK(rule->takes(&rule->node), "not taken with a gate of each key channel");
    rule->sources[4] = tensor(16, 2, T, 3);
    CHECK(!rule->takes(&rule->node), "taken with a beta of each channel");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "nodes with more than is known", test_takes },
        { "tensors of other sizes", test_sizes },
        { "gates of each key channel", test_channels },
    };
    return ring2_main(argc, argv, tests, 3);
}
