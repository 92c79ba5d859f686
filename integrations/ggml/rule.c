/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GATED_DELTA_NET by gdn_prefill(). The node has the outputs [N][T][H][S] and behind them n
 * snapshots of the states, [n][N][H][V][K]. Snapshot s is the state s tokens before the end.
 * Snapshot 0 is written as the final state, the others as checkpoints.
 */
#include "backend.h"
#include "tensors.h"

/* q, k, v, g, beta, state; the number of snapshots. */
enum { N_SOURCES = 6, N_PARAMS = 1, MAX_KEY = 256 };

struct extents {
    int64_t S, H, T, N;
    int64_t first; /* the first token after which a checkpoint is wanted */
    int64_t checkpoints;
};

static int64_t snapshots_of(const struct ggml_tensor *node) { return node->op_params[0]; }

static struct extents extents_of(const struct ggml_tensor *node)
{
    const int64_t *ne = node->src[2]->ne;
    struct extents x = { .S = ne[0], .H = ne[1], .T = ne[2], .N = ne[3] };
    const int64_t n = snapshots_of(node);
    x.first = n < x.T ? x.T - n + 1 : 1;
    x.checkpoints = (x.T - x.first) * x.N;
    return x;
}

static bool has_sizes(const struct ggml_tensor *x, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return x->ne[0] == a && x->ne[1] == b && x->ne[2] == c && x->ne[3] == d;
}

/* q or k: each sequence its own, or all the same. */
static bool is_key(const struct ggml_tensor *key, int64_t heads, const struct extents *x)
{
    return has_sizes(key, x->S, heads, x->T, x->N) || has_sizes(key, x->S, heads, x->T, 1);
}

/* One gate per head, or of each key channel (KDA). */
static bool is_gate(const struct ggml_tensor *g, const struct extents *x)
{
    return has_sizes(g, 1, x->H, x->T, x->N) || has_sizes(g, x->S, x->H, x->T, x->N);
}

/* A state or an output of other sizes holds more than states, such as tokens to replay. */
static bool has_known_sizes(const struct ggml_tensor *node)
{
    struct ggml_tensor *const *src = node->src;
    const struct extents x = extents_of(node);
    const int64_t states = snapshots_of(node) * x.S * x.S * x.H * x.N;
    return is_key(src[0], src[1]->ne[1], &x) && is_key(src[1], src[1]->ne[1], &x) &&
           is_gate(src[3], &x) && has_sizes(src[4], 1, x.H, x.T, x.N) &&
           has_sizes(src[5], x.S, x.S, x.H, x.N) &&
           ggml_nelements(node) == x.S * x.H * x.T * x.N + states;
}

bool gdn_ggml_takes_rule(const struct ggml_tensor *node)
{
    if (!gdn_ggml_has_only(node, N_SOURCES, N_PARAMS)) return false;
    for (int i = 0; i < N_SOURCES; i++)
        if (!gdn_ggml_is_rows(node->src[i])) return false;
    return node->src[2]->ne[0] <= MAX_KEY && ggml_nelements(node->src[2]) > 0 &&
           snapshots_of(node) > 0 && has_known_sizes(node);
}

/* q or k, read by every sequence if there is one for all. */
static gdn_tensor per_sequence(const struct ggml_tensor *x, int64_t N)
{
    gdn_tensor view = gdn_ggml_view(x, 4);
    if (view.size[0] != N) {
        view.size[0] = N;
        view.stride[0] = 0;
    }
    return view;
}

static void list_checkpoints(const struct extents *x, int32_t *starts, int32_t *positions,
                             int32_t *slots)
{
    for (int64_t n = 0, c = 0; n < x->N; n++) {
        starts[n] = (int32_t)c;
        for (int64_t t = x->first; t < x->T; t++, c++) {
            positions[c] = (int32_t)t;
            slots[c] = (int32_t)((x->T - t) * x->N + n);
        }
    }
    starts[x->N] = (int32_t)x->checkpoints;
}

/* Index arrays in the backend's room: final states to the first slots, and the checkpoints. */
static bool list_slots(struct gdn_ggml *backend, const struct extents *x, gdn_batch *batch)
{
    const int64_t N = x->N, C = x->checkpoints;
    int32_t *finals = gdn_ggml_room(backend, (size_t)(2 * N + 1 + 2 * C) * sizeof *finals);
    if (!finals) return false;
    for (int64_t n = 0; n < N; n++) finals[n] = (int32_t)n;
    batch->write_slots = gdn_dense(finals, GDN_I32, 1, N, 0, 0, 0);
    if (C == 0) return true;
    int32_t *starts = finals + N, *positions = starts + N + 1, *slots = positions + C;
    list_checkpoints(x, starts, positions, slots);
    batch->checkpoint_starts = gdn_dense(starts, GDN_I32, 1, N + 1, 0, 0, 0);
    batch->checkpoint_positions = gdn_dense(positions, GDN_I32, 1, C, 0, 0, 0);
    batch->checkpoint_slots = gdn_dense(slots, GDN_I32, 1, C, 0, 0, 0);
    return true;
}

gdn_status gdn_ggml_rule(struct gdn_ggml *backend, const struct ggml_tensor *node)
{
    struct ggml_tensor *const *src = node->src;
    const struct extents x = extents_of(node);
    gdn_rule_args a = gdn_rule_args_init();
    gdn_batch batch = gdn_batch_init();
    if (!list_slots(backend, &x, &batch)) return GDN_E_MEMORY;
    float *out = node->data, *states = out + x.S * x.H * x.T * x.N;
    a.q = per_sequence(src[0], x.N);
    a.k = per_sequence(src[1], x.N);
    a.v = gdn_ggml_view(src[2], 4);
    a.g = gdn_ggml_view(src[3], 4);
    a.beta = gdn_ggml_view(src[4], 4);
    a.head_map = GDN_HEADS_INTERLEAVED;
    a.state = gdn_ggml_view(src[5], 4);
    a.out = gdn_dense(out, GDN_F32, 4, x.N, x.T, x.H, x.S);
    a.state_out = gdn_dense(states, GDN_F32, 4, snapshots_of(node) * x.N, x.H, x.S, x.S);
    if (x.checkpoints) a.checkpoints = a.state_out;
    a.batch = &batch;
    return gdn_prefill(backend->ctx, &a);
}
