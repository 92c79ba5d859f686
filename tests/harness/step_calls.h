/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of gdn_step, and the same by the separate ops. */
#ifndef STEP_CALLS_H
#define STEP_CALLS_H

#include "block_model.h"

/* ---- The separate calls ---- */

/* Heads [first, first + n) of rows of channels: [..][n][size]. */
static inline gdn_tensor heads_of(const gdn_tensor *rows, int64_t first, int64_t n, int64_t size)
{
    gdn_tensor t = ring2_narrow(rows, rows->ndim - 1, first, n * size);
    t.ndim++;
    t.size[t.ndim - 2] = n, t.stride[t.ndim - 2] = size;
    t.size[t.ndim - 1] = size, t.stride[t.ndim - 1] = 1;
    return t;
}

/* Returns the rows behind the convolution: x itself if the call has no weights for one. */
static inline gdn_tensor convolve_alone(gdn_ctx *ctx, const gdn_step_args *a)
{
    gdn_tensor y = ring2_clone(&a->x);
    gdn_conv1d_args c = gdn_conv1d_args_init();
    if (!a->conv_weight.data) return a->x;
    c.x = a->x;
    c.out = y;
    c.weight = a->conv_weight;
    c.bias = a->conv_bias;
    c.state = a->conv_state;
    c.activation = GDN_ACT_SILU;
    c.batch = a->batch;
    ring2_status(ctx, "gdn_conv1d", gdn_conv1d(ctx, &c), GDN_OK);
    return y;
}

/* The n updates of each token, which lie in its row behind each other from a channel on, as rows of
 * their own: [n N][heads][size], or [B][n T].. */
static inline gdn_tensor updates_of(const gdn_tensor *rows, int64_t first, int n, int64_t heads,
                                    int64_t size)
{
    const int at = rows->ndim - 2;
    const int64_t B = at ? rows->size[0] : 1, T = rows->size[at], m = heads * size;
    if (n < 2) return heads_of(rows, first, heads, size);
    gdn_tensor y = at ? ring2_new(rows->dtype, 0, 4, B, n * T, heads, size)
                      : ring2_new(rows->dtype, 0, 3, n * T, heads, size, 0);
    const gdn_tensor from = ring2_narrow(rows, rows->ndim - 1, first, n * m);
    for (int64_t i = 0; i < B * T * n * m; i++)
        memcpy(ring2_element(&y, i), ring2_element(&from, i), gdn_dtype_bytes(y.dtype));
    return y;
}

static inline void decode_alone(gdn_ctx *ctx, const gdn_step_args *a, const gdn_tensor *y)
{
    const int64_t Hk = a->n_key_heads, dk = a->key_head_dim;
    const int n = a->updates > 1 ? a->updates : 1;
    gdn_rule_args r = gdn_rule_args_init();
    r.q = heads_of(y, 0, Hk, dk);
    r.k = updates_of(y, Hk * dk, n, Hk, dk);
    r.v = updates_of(y, (1 + n) * Hk * dk, n, a->n_value_heads, a->value_head_dim);
    r.write_gate = a->write_gate;
    r.updates = a->updates;
    r.g = a->a;
    r.beta = a->b;
    r.A_log = a->A_log;
    r.dt_bias = a->dt_bias;
    r.state = a->state;
    r.state_scales = a->state_scales;
    r.record_k = a->record_k, r.record_u = a->record_u;
    r.record_g = a->record_g, r.record_count = a->record_count;
    r.out = a->out;
    r.gate = GDN_GATE_RAW;
    r.beta_kind = a->beta_kind ? a->beta_kind : GDN_BETA_SIGMOID;
    r.norm = a->norm ? a->norm : GDN_NORM_L2;
    r.norm_eps = a->norm_eps;
    r.scale = a->scale;
    r.head_map = a->head_map;
    r.state_layout = a->state_layout;
    r.flags = a->flags;
    r.rounding = a->rounding;
    r.seed = a->seed;
    r.batch = a->batch;
    r.gate_lower_bound = a->gate_lower_bound;
    ring2_status(ctx, "gdn_decode", gdn_decode(ctx, &r), GDN_OK);
}

/* Applies the norm to tokens that count; the other outputs stay. */
static inline void norm_alone(gdn_ctx *ctx, const gdn_step_args *a)
{
    struct ring2_sequence *seqs;
    gdn_tensor y = ring2_clone(&a->out);
    gdn_rmsnorm_gated_args n = gdn_rmsnorm_gated_args_init();
    n.x = a->out, n.z = a->z, n.weight = a->norm_weight, n.out = y, n.eps = a->rms_eps;
    n.activation = a->activation;
    ring2_status(ctx, "gdn_rmsnorm_gated", gdn_rmsnorm_gated(ctx, &n), GDN_OK);
    const bool any = a->state.data || a->conv_state.data;
    const int64_t row = (int64_t)a->n_value_heads * a->value_head_dim;
    const int64_t B = ring2_sequences(a->batch, &a->x, 1, any, &seqs);
    for (int64_t s = 0; s < B; s++) {
        const bool late = a->batch && a->batch->token_start.data;
        const int64_t start = late ? (int64_t)ring2_get(&a->batch->token_start, s) : 0;
        const int64_t first = (seqs[s].first + start) * row;
        for (int64_t i = first; !seqs[s].skipped && i < first + seqs[s].valid * row; i++)
            memcpy(ring2_element(&a->out, i), ring2_element(&y, i), gdn_dtype_bytes(y.dtype));
    }
}

static inline void call_apart(gdn_ctx *ctx, const gdn_step_args *a)
{
    const gdn_tensor y = convolve_alone(ctx, a);
    decode_alone(ctx, a, &y);
    if (a->out.data && (a->z.data || a->norm_weight.data)) norm_alone(ctx, a);
}

/* ---- Calls ---- */

static inline gdn_step_args clone(const gdn_step_args *a)
{
    gdn_step_args b = *a;
    b.out = ring2_clone(&a->out);
    b.state = ring2_clone(&a->state);
    b.state_scales = ring2_clone(&a->state_scales);
    b.conv_state = ring2_clone(&a->conv_state);
    return b;
}

static inline void call(gdn_ctx *ctx, const gdn_step_args *a)
{
    ring2_status(ctx, "gdn_step", gdn_step(ctx, a), GDN_OK);
}

static inline void expect_same(const char *what, const gdn_step_args *got,
                               const gdn_step_args *want)
{
    const gdn_tensor *const g[] = { &got->out, &got->state, &got->state_scales, &got->conv_state };
    const gdn_tensor *const w[] = { &want->out, &want->state, &want->state_scales,
                                    &want->conv_state };
    for (int i = 0; i < 4; i++)
        if (w[i]->data) ring2_expect_bits(what, g[i], w[i]);
}

/* Two orders of summation: the project's limit for float32 (docs/design/numerics.md), and what a
 * rounding that falls the other way costs: an ulp of what is stored, and where o is rounded before
 * a norm another one, or two where the norm's scale takes it to the bottom of a binade. */
static inline void expect_near(const char *what, const gdn_tensor *got, const gdn_tensor *want,
                               bool normed)
{
    const int64_t n = ring2_count(want);
    double sum = 0;
    int64_t judged = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(ring2_get(want, i))) sum += pow(ring2_get(want, i), 2), judged++;
    for (int64_t i = 0; i < n; i++) {
        const double g = ring2_get(got, i), w = ring2_get(want, i);
        const double ulp = 2 * oracle_half_ulp(want->dtype, w);
        const double limit = 2e-5 * sqrt(sum / (double)judged) + 1e-6 + (normed ? 3 : 1) * ulp;
        CHECK(fabs(g - w) <= limit || (isnan(g) && isnan(w)), "%s[%d]: %g, but %g", what, (int)i, g,
              w);
    }
}

static inline void expect_close(const char *what, const gdn_step_args *got,
                                const gdn_step_args *want)
{
    expect_near(what, &got->out, &want->out, want->z.data || want->norm_weight.data);
    expect_near(what, &got->state, &want->state, false);
    if (want->conv_state.data) ring2_expect_bits(what, &got->conv_state, &want->conv_state);
}

static inline void may_write_all(const gdn_step_args *a)
{
    const gdn_tensor *const written[] = { &a->out, &a->state, &a->state_scales, &a->conv_state };
    for (int i = 0; i < 4; i++)
        if (written[i]->data) ring2_may_write(written[i]);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
}

/* Checks that the op gives what the separate calls give, and changes nothing else. */
static inline void expect_apart(gdn_ctx *ctx, const gdn_step_args *a)
{
    const gdn_step_args b = clone(a);
    call_apart(ctx, &b);
    if (ring2_failed()) return;
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_STEP, a), GDN_OK);
    ring2_call_begin();
    may_write_all(a);
    call(ctx, a);
    ring2_call_end();
    if (ring2_failed()) return;
    if (ring2_on_device() && strstr(gdn_last_kernel(ctx), "gdn_step") &&
        !strstr(gdn_last_kernel(ctx), "gdn_step_rows"))
        expect_close("apart", a, &b);
    else
        expect_same("apart", a, &b);
}

static inline gdn_tensor vector(int32_t dtype, int64_t n, double low, double high)
{
    gdn_tensor t = ring2_new(dtype, 0, 1, n, 0, 0, 0);
    ring2_fill(&t, low, high);
    return t;
}

/* ---- Calls of three dimensions, states of all kinds ---- */

struct kind {
    int32_t dtype, states, layout;
    bool z, weight;
};

static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, true, true },
    { GDN_F32, GDN_F32, GDN_STATE_KV, false, false },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, true, true },
    { GDN_F16, GDN_F32, GDN_STATE_KV, true, false },
    { GDN_BF16, GDN_BF16, GDN_STATE_KV, false, false },
    { GDN_F16, GDN_F16, GDN_STATE_VK, false, true },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static inline gdn_tensor rows(int32_t dtype, int64_t B, int64_t T, int64_t n, int64_t m,
                              double size)
{
    gdn_tensor t = m ? ring2_new(dtype, 0, 4, B, T, n, m) : ring2_new(dtype, 0, 3, B, T, n, 0);
    ring2_fill(&t, -size, size);
    return t;
}

/* B sequences of T tokens, P slots of float32 inputs of the convolution. */
static inline gdn_step_args make_call(const struct kind *k, int64_t B, int64_t T, int64_t P)
{
    gdn_step_args a = gdn_step_args_init();
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.x = rows(k->dtype, B, T, D, 0, 2);
    a.a = rows(GDN_F32, B, T, HV, 0, 3), a.b = rows(k->dtype, B, T, HV, 0, 3);
    a.out = rows(k->dtype, B, T, HV, V, 1);
    if (k->z) a.z = rows(k->dtype, B, T, HV, V, 2);
    if (k->weight) a.norm_weight = vector(GDN_BF16, V, -2, 2);
    a.conv_weight = ring2_new(GDN_F32, 0, 3, D, 1, W, 0);
    a.conv_state = ring2_new(GDN_F32, 0, 3, P, D, 3, 0);
    a.state = k->layout == GDN_STATE_VK ? ring2_new(k->states, 0, 4, P, HV, V, K)
                                        : ring2_new(k->states, 0, 4, P, HV, K, V);
    ring2_fill(&a.conv_weight, -0.5, 0.5);
    ring2_fill(&a.conv_state, -1, 1), ring2_fill(&a.state, -0.5, 0.5);
    a.conv_bias = vector(GDN_F32, D, -0.1, 0.1);
    a.A_log = vector(GDN_F32, HV, -1, 1);
    a.dt_bias = vector(GDN_F32, HV, -1, 1);
    a.state_layout = k->layout;
    return a;
}

#endif
