/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 batch --every=2 */
/*
 * gdn_block_backward against the chain rule in float64 over the oracle's pieces, which finite
 * differences of the forward model judge; and its guarantees by name.
 */
#include "block_model.h"
#include "gdn_train.h"

typedef gdn_block_backward_args args;

/* ---- Tensors of a call ---- */

enum {
    GQKVZ,
    GBA,
    GQKV,
    GZ,
    GB,
    GA,
    GCONV,
    GBIAS,
    GA_LOG,
    GDT,
    GNORM,
    GOUT,
    GHIDDEN,
    GCONV_STATE,
    GSTATE,
    N_GRADIENTS
};

static gdn_tensor *gradient_of(args *a, int i)
{
    gdn_tensor *const all[N_GRADIENTS] = { &a->din_proj_qkvz, &a->din_proj_ba,  &a->din_proj_qkv,
                                           &a->din_proj_z,    &a->din_proj_b,   &a->din_proj_a,
                                           &a->dconv_weight,  &a->dconv_bias,   &a->dA_log,
                                           &a->ddt_bias,      &a->dnorm_weight, &a->dout_proj,
                                           &a->dhidden,       &a->dconv_state,  &a->dstate };
    return all[i];
}

/* Returns the tensor that gradient i belongs to. */
static gdn_tensor *source_of(args *a, int i)
{
    gdn_tensor *const all[N_GRADIENTS] = { &a->in_proj_qkvz, &a->in_proj_ba,  &a->in_proj_qkv,
                                           &a->in_proj_z,    &a->in_proj_b,   &a->in_proj_a,
                                           &a->conv_weight,  &a->conv_bias,   &a->A_log,
                                           &a->dt_bias,      &a->norm_weight, &a->out_proj,
                                           &a->hidden,       &a->conv_state,  &a->state };
    return all[i];
}

static const char *const names[N_GRADIENTS] = { "din_proj_qkvz", "din_proj_ba",  "din_proj_qkv",
                                                "din_proj_z",    "din_proj_b",   "din_proj_a",
                                                "dconv_weight",  "dconv_bias",   "dA_log",
                                                "ddt_bias",      "dnorm_weight", "dout_proj",
                                                "dhidden",       "dconv_state",  "dstate" };

/* The forward call of the same layer; its output has a place of its own. */
static gdn_block_args forward_of(const args *a)
{
    gdn_block_args f = gdn_block_args_init();
    f.hidden = a->hidden, f.out = ring2_clone(&a->hidden);
    f.in_proj_qkvz = a->in_proj_qkvz, f.in_proj_ba = a->in_proj_ba;
    f.in_proj_qkv = a->in_proj_qkv, f.in_proj_z = a->in_proj_z;
    f.in_proj_b = a->in_proj_b, f.in_proj_a = a->in_proj_a;
    f.conv_weight = a->conv_weight, f.conv_bias = a->conv_bias, f.A_log = a->A_log;
    f.dt_bias = a->dt_bias, f.norm_weight = a->norm_weight, f.out_proj = a->out_proj;
    f.conv_state = a->conv_state, f.state = a->state, f.batch = a->batch;
    f.n_key_heads = HK, f.n_value_heads = HV, f.key_head_dim = K, f.value_head_dim = V;
    f.state_layout = a->state_layout;
    return f;
}

/* ---- The chain rule in float64 ---- */

enum { ALL_COLUMNS = D + HV * V + 2 * HV }; /* q, k, v, z, b, a */

struct gradients {
    double *of[N_GRADIENTS];
};

/* One sequence. dy: of what is projected, [T][ALL_COLUMNS]; dc: of the convolution's output. */
struct sequence {
    args *a;
    struct layer l;
    int64_t row, first;
    double *history, *dout, *n, *dn, *conv, *dc, *dy;
    struct gradients g;
};

static double *numbers(int64_t n) { return ring2_heap((size_t)n * 8 + 8); }

/* The weight, and its row, of a column. */
static int weight_of(const struct sequence *s, int column, int64_t *row)
{
    const int per_head = 2 * K + 2 * R * V, k = HK * K, v = 2 * k;
    const int z = D, b = D + HV * V, a = b + HV;
    if (!s->a->in_proj_qkvz.data) {
        const int first = column < z ? 0 : column < b ? z : column < a ? b : a;
        *row = column - first;
        return column < z ? GQKV : column < b ? GZ : column < a ? GB : GA;
    }
    if (column >= b) {
        const int h = (column - b) % HV;
        *row = h / R * 2 * R + (column >= a) * R + h % R;
        return GBA;
    }
    const int part = column < k ? 0 : column < v ? 1 : column < z ? 2 : 3;
    const int first[] = { 0, k, v, z }, size[] = { K, K, R * V, R * V };
    const int before[] = { 0, K, 2 * K, 2 * K + R * V }, at = column - first[part];
    *row = at / size[part] * per_head + before[part] + at % size[part];
    return GQKVZ;
}

/* Input t of the convolution's channel d, t from -S on. */
static double input(const struct sequence *s, int64_t t, int d)
{
    return t < 0 ? s->history[(s->l.S + t) * D + d] : s->l.qkv[t * D + d];
}

static int64_t conv_at(const struct sequence *s, int d, int64_t e)
{
    return (s->row * D + d) * s->l.S + e;
}

static void conv_backward(struct sequence *s)
{
    const int64_t T = s->l.T, S = s->l.S;
    const double *w = ring2_doubles(&s->a->conv_weight);
    double *dz = numbers(T);
    round_all(&s->l, s->dc, T * D);
    for (int d = 0; d < D; d++) {
        for (int64_t t = 0; t < T; t++) {
            double z = s->a->conv_bias.data ? ring2_get(&s->a->conv_bias, d) : 0;
            for (int i = 0; i < W; i++) z += w[d * W + i] * input(s, t - W + 1 + i, d);
            dz[t] = s->dc[t * D + d] * oracle_sigmoid(z) * (1 + z * oracle_sigmoid(-z));
            for (int i = 0; i < W; i++)
                s->g.of[GCONV][d * W + i] += dz[t] * input(s, t - W + 1 + i, d);
            s->g.of[GBIAS][d] += dz[t];
        }
        for (int64_t t = -S; t < T; t++) {
            const int64_t e = t - T + S; /* of the final state */
            double dx = e >= 0 && s->a->dconv_state_out.data
                            ? ring2_get(&s->a->dconv_state_out, conv_at(s, d, e))
                            : 0;
            for (int i = 0; i < W; i++) {
                const int64_t of = t + W - 1 - i;
                if (of >= 0 && of < T) dx += w[d * W + i] * dz[of];
            }
            if (t < 0)
                s->g.of[GCONV_STATE][conv_at(s, d, S + t)] += dx;
            else
                s->dy[t * ALL_COLUMNS + d] = dx;
        }
    }
}

/* dq or dk of head h through the norm, to the channels from `first` on. */
static void add_key(struct sequence *s, const double *dk, int first)
{
    double dx[K];
    for (int64_t t = 0; t < s->l.T; t++) {
        oracle_l2norm_backward(dx, s->conv + t * D + first, dk + t * K, K, GDN_NORM_L2, 1e-6);
        for (int i = 0; i < K; i++) s->dc[t * D + first + i] += dx[i];
    }
}

static double most_beta(const args *a) { return a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1; }

static void gates_backward(struct sequence *s, int h, const double *dgate, const double *dbeta)
{
    for (int64_t t = 0; t < s->l.T; t++) {
        const double b = s->l.b[t * HV + h];
        double by_A_log;
        const double da =
            dgate[t] * oracle_gate_slope(s->l.alog[t * HV + h], ring2_get(&s->a->A_log, h),
                                         ring2_get(&s->a->dt_bias, h), 0, &by_A_log);
        double *to = s->dy + t * ALL_COLUMNS + D + HV * V;
        to[h] = dbeta[t] * most_beta(s->a) * oracle_sigmoid(b) * oracle_sigmoid(-b);
        to[HV + h] = da;
        s->g.of[GDT][h] += da;
        s->g.of[GA_LOG][h] += dgate[t] * by_A_log;
    }
}

/* The gradient of o, from that of n; those of z and of the weight. */
static void norm_backward(struct sequence *s, int h, const double *o, double *dO)
{
    const double *w = ring2_doubles(&s->a->norm_weight);
    const bool sigmoid = s->a->activation == GDN_ACT_SIGMOID;
    double dw[V];
    for (int64_t t = 0; t < s->l.T; t++) {
        const struct oracle_rmsnorm n = {
            o + t * V, w, s->l.z + (t * HV + h) * V, s->dn + (t * HV + h) * V, sigmoid, 1e-6, V,
        };
        oracle_rmsnorm_backward(&n, dO + t * V, s->dy + t * ALL_COLUMNS + D + h * V, dw);
        for (int i = 0; i < V; i++) s->g.of[GNORM][i] += dw[i];
    }
}

static double *state_of(const struct sequence *s, const gdn_tensor *t, int h)
{
    const gdn_block_args f = { .state_layout = s->a->state_layout };
    double *S = numbers(V * K);
    for (int i = 0; t->data && i < V * K; i++)
        S[i] = ring2_get(t, state_at(&f, s->row, h, i / K, i % K));
    return S;
}

static void head_backward(struct sequence *s, int h)
{
    const int64_t T = s->l.T;
    double *q = numbers(T * K), *k = numbers(T * K), *v = numbers(T * V), *o = numbers(T * V);
    double *alpha = numbers(T), *beta = numbers(T), *dO = numbers(T * V);
    double *state = state_of(s, &s->a->state, h), *first = state_of(s, &s->a->state, h);
    const gdn_block_args f = { .state_layout = s->a->state_layout };
    for (int64_t t = 0; t < T; t++) {
        const double *row = s->conv + t * D;
        oracle_l2norm(q + t * K, row + h / R * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + HK * K + h / R * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * HK * K + h * V, V * 8);
        alpha[t] = exp(oracle_gate(s->l.alog[t * HV + h], ring2_get(&s->a->A_log, h),
                                   ring2_get(&s->a->dt_bias, h), 0));
        beta[t] = most_beta(s->a) * oracle_sigmoid(s->l.b[t * HV + h]);
    }
    const struct oracle_rule r = { .T = T,
                                   .K = K,
                                   .V = V,
                                   .scale = 1 / sqrt(K),
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .o = o,
                                   .state = state };
    if (s->l.noise)
        run_rounded(&s->l, &r, k);
    else
        oracle_rule(&r);
    for (int64_t t = 0; t < T; t++)
        oracle_rmsnorm_gated(s->n + (t * HV + h) * V, o + t * V, ring2_doubles(&s->a->norm_weight),
                             s->l.z + (t * HV + h) * V, s->a->activation == GDN_ACT_SIGMOID, 1e-6,
                             V);
    norm_backward(s, h, o, dO);
    round_all(&s->l, dO, T * V);
    const struct oracle_backward b = { .T = T,
                                       .K = K,
                                       .V = V,
                                       .scale = 1 / sqrt(K),
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .alpha = alpha,
                                       .beta = beta,
                                       .state = first,
                                       .dstate_out = state_of(s, &s->a->dstate_out, h),
                                       .dout = dO,
                                       .dq = numbers(T * K),
                                       .dk = numbers(T * K),
                                       .dv = numbers(T * V),
                                       .dgate = numbers(T),
                                       .dbeta = numbers(T),
                                       .dstate = numbers(V * K) };
    oracle_rule_backward(&b);
    add_key(s, b.dq, h / R * K);
    add_key(s, b.dk, HK * K + h / R * K);
    for (int64_t i = 0; i < T * V; i++) s->dc[i / V * D + 2 * HK * K + h * V + i % V] += b.dv[i];
    gates_backward(s, h, b.dgate, b.dbeta);
    for (int i = 0; i < V * K; i++)
        s->g.of[GSTATE][state_at(&f, s->row, h, i / K, i % K)] += b.dstate[i];
}

static void output_backward(struct sequence *s)
{
    const double *w = ring2_doubles(&s->a->out_proj);
    for (int64_t t = 0; t < s->l.T; t++)
        for (int i = 0; i < HIDDEN; i++)
            for (int j = 0; j < HV * V; j++)
                s->dn[t * HV * V + j] += s->dout[t * HIDDEN + i] * w[i * HV * V + j];
    round_all(&s->l, s->dn, s->l.T * HV * V);
}

/* Computes the gradients of the weights on both sides, and of hidden. */
static void projections_backward(struct sequence *s)
{
    round_all(&s->l, s->n, s->l.T * HV * V);
    round_all(&s->l, s->dy, s->l.T * ALL_COLUMNS);
    for (int64_t t = 0; t < s->l.T; t++)
        for (int i = 0; i < HIDDEN; i++)
            for (int j = 0; j < HV * V; j++)
                s->g.of[GOUT][i * HV * V + j] += s->dout[t * HIDDEN + i] * s->n[t * HV * V + j];
    for (int c = 0; c < ALL_COLUMNS; c++) {
        int64_t row;
        const int which = weight_of(s, c, &row);
        const double *w = ring2_doubles(source_of(s->a, which)) + row * HIDDEN;
        double *dw = s->g.of[which] + row * HIDDEN;
        for (int64_t t = 0; t < s->l.T; t++) {
            const double dy = s->dy[t * ALL_COLUMNS + c], *x = s->l.x + t * HIDDEN;
            double *dx = s->g.of[GHIDDEN] + (s->first + t) * HIDDEN;
            for (int i = 0; i < HIDDEN; i++) dw[i] += dy * x[i], dx[i] += dy * w[i];
        }
    }
}

static void add_sequence(args *a, const struct ring2_sequence *from, struct oracle_noise *noise,
                         const struct gradients *g)
{
    const gdn_block_args f = forward_of(a);
    const gdn_tensor *state = a->conv_state.data ? &a->conv_state : &a->dconv_state;
    struct sequence s = { .a = a, .row = from->row, .first = from->first, .g = *g };
    const int64_t T = from->valid;
    s.l = (struct layer){
        .a = &f, .T = T, .S = state->data ? state->size[2] : W - 1, .noise = noise
    };
    s.l.x = numbers(T * HIDDEN), s.dout = numbers(T * HIDDEN);
    for (int64_t i = 0; i < T * HIDDEN; i++) {
        s.l.x[i] = ring2_get(&a->hidden, s.first * HIDDEN + i);
        s.dout[i] = ring2_get(&a->dout, s.first * HIDDEN + i);
    }
    s.history = numbers(s.l.S * D), s.l.conv = numbers(s.l.S * D);
    for (int64_t i = 0; a->conv_state.data && i < s.l.S * D; i++)
        s.history[i] = s.l.conv[i] = ring2_get(&a->conv_state, conv_at(&s, (int)(i % D), i / D));
    s.n = numbers(T * HV * V), s.dn = numbers(T * HV * V);
    s.dc = numbers(T * D), s.dy = numbers(T * ALL_COLUMNS);
    project_all(&s.l);
    s.conv = convolve(&s.l);
    output_backward(&s);
    for (int h = 0; h < HV; h++) head_backward(&s, h);
    conv_backward(&s);
    projections_backward(&s);
}

static int64_t count_of(args *a, int i)
{
    const gdn_tensor *t = gradient_of(a, i)->data ? gradient_of(a, i) : source_of(a, i);
    const int64_t B = a->batch && a->batch->cu_seqlens.data ? ring2_count(&a->batch->cu_seqlens)
                                                            : a->hidden.size[0];
    if (t->data) return ring2_count(t);
    return i == GBIAS ? D : i == GSTATE ? B * HV * V * K : i == GCONV_STATE ? B * D * (W - 1) : 0;
}

/* noise: of what a device rounds; NULL: nothing is. */
static struct gradients make_gradients(args *a, struct oracle_noise *noise)
{
    struct gradients g;
    struct ring2_sequence *seqs;
    const int64_t B = ring2_sequences(a->batch, &a->hidden, 1, false, &seqs);
    for (int i = 0; i < N_GRADIENTS; i++) g.of[i] = numbers(count_of(a, i));
    for (int64_t b = 0; b < B; b++) {
        if (a->batch && a->batch->token_start.data) {
            const int64_t n = (int64_t)ring2_get(&a->batch->token_start, seqs[b].row);
            seqs[b].first += n;
            if (!a->batch->token_count.data) seqs[b].valid -= n;
        }
        add_sequence(a, &seqs[b], noise, &g);
    }
    return g;
}

/* ---- Calls ---- */

struct kind {
    int32_t dtype, weights, states, layout;
    bool fused;
    int64_t conv_rows;
    int32_t activation, beta_kind;
};

static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, true, 3, 0, 0 },
    { GDN_F32, GDN_F32, GDN_BF16, GDN_STATE_KV, false, 4, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, true, 4, 0, 0 },
    { GDN_F16, GDN_BF16, GDN_F16, GDN_STATE_KV, false, 3, 0, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, true, 3, GDN_ACT_SIGMOID, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, false, 3, 0, GDN_BETA_TWICE_SIGMOID },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, false, 3, GDN_ACT_SIGMOID,
      GDN_BETA_TWICE_SIGMOID },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static gdn_tensor filled(int32_t dtype, double size, int64_t a, int64_t b, int64_t c, int64_t d)
{
    gdn_tensor t = ring2_new(dtype, 0, d ? 4 : c ? 3 : b ? 2 : 1, a, b, c, d);
    ring2_fill(&t, -size, size);
    return t;
}

static void give_weights(args *a, const struct kind *k)
{
    const int32_t w = k->weights;
    if (k->fused) {
        a->in_proj_qkvz = filled(w, 0.4, D + HV * V, HIDDEN, 0, 0);
        a->in_proj_ba = filled(w, 0.4, 2 * HV, HIDDEN, 0, 0);
    } else {
        a->in_proj_qkv = filled(w, 0.4, D, HIDDEN, 0, 0);
        a->in_proj_z = filled(w, 0.4, HV * V, HIDDEN, 0, 0);
        a->in_proj_b = filled(w, 0.4, HV, HIDDEN, 0, 0);
        a->in_proj_a = filled(w, 0.4, HV, HIDDEN, 0, 0);
        a->conv_bias = filled(w, 0.1, D, 0, 0, 0);
    }
    a->conv_weight = filled(w, 0.5, D, W, 0, 0);
    a->A_log = filled(GDN_F32, 1, HV, 0, 0, 0);
    a->dt_bias = filled(w, 1, HV, 0, 0, 0);
    a->norm_weight = filled(w, 2, V, 0, 0, 0);
    a->out_proj = filled(w, 0.2, HIDDEN, HV * V, 0, 0);
}

/* N tokens, or B rows of N. S: sequences, that have states; 0: none has. */
static args make_call(const struct kind *k, int64_t B, int64_t N, int64_t S)
{
    const bool kv = k->layout == GDN_STATE_KV;
    args a = gdn_block_backward_args_init();
    a.hidden = ring2_new(k->dtype, 3, B ? 3 : 2, B ? B : N, B ? N : HIDDEN, HIDDEN, 0);
    a.dout = ring2_new(k->dtype, 5, B ? 3 : 2, B ? B : N, B ? N : HIDDEN, HIDDEN, 0);
    ring2_fill(&a.hidden, -1, 1);
    ring2_fill(&a.dout, -1, 1);
    give_weights(&a, k);
    if (S) {
        a.conv_state = filled(k->states, 1, S, D, k->conv_rows, 0);
        a.dconv_state_out = filled(k->states, 0.5, S, D, k->conv_rows, 0);
        a.state = filled(k->states, 0.5, S, HV, kv ? K : V, kv ? V : K);
        a.dstate_out = filled(k->states, 0.5, S, HV, kv ? K : V, kv ? V : K);
    }
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.state_layout = k->layout;
    a.activation = k->activation, a.beta_kind = k->beta_kind;
    return a;
}

/* All gradients of what is there, of random numbers. */
static void want_all(args *a)
{
    for (int i = 0; i < N_GRADIENTS; i++) {
        gdn_tensor *t = gradient_of(a, i);
        if (!source_of(a, i)->data) continue;
        *t = ring2_clone(source_of(a, i));
        if (i != GHIDDEN) {
            const gdn_tensor like = *source_of(a, i);
            *t = ring2_new(GDN_F32, 0, like.ndim, like.size[0], like.ndim > 1 ? like.size[1] : 0,
                           like.ndim > 2 ? like.size[2] : 0, like.ndim > 3 ? like.size[3] : 0);
        }
        ring2_fill(t, -1, 1);
    }
}

static args clone(const args *a)
{
    args b = *a;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (gradient_of(&b, i)->data) *gradient_of(&b, i) = ring2_clone(gradient_of(&b, i));
    return b;
}

static void call(gdn_ctx *ctx, const args *a)
{
    ring2_status(ctx, "gdn_block_backward", gdn_block_backward(ctx, a), GDN_OK);
}

enum { MOVED = 16 };

/* Returns the effect of rounding on the way, as a root mean square: zero if all is float32. */
static struct gradients noise_of(args *a, const struct gradients *g)
{
    struct oracle_noise noise = { .dtype = a->hidden.dtype };
    const bool none = !ring2_on_device() || a->hidden.dtype == GDN_F32;
    struct gradients all;
    for (int i = 0; i < N_GRADIENTS; i++) all.of[i] = numbers(count_of(a, i));
    for (int run = 0; !none && run < MOVED; run++) {
        const struct gradients moved = make_gradients(a, &noise);
        for (int i = 0; i < N_GRADIENTS; i++)
            for (int64_t j = 0; j < count_of(a, i); j++)
                all.of[i][j] = hypot(all.of[i][j], (moved.of[i][j] - g->of[i][j]) / sqrt(MOVED));
    }
    return all;
}

/* In float32 twice the project's limit for the layer, relative to a tensor's root mean square: what
 * goes back has the errors of the forward steps and its own. A rounding error of v - S^T k comes
 * times beta, so the limit has its largest value, 1 or 2, as a factor. Where 16 bits pass from step
 * to step, 6 times the noise beside it: that of the element, and the tensor's, as the runs are
 * few. */
static void compare_gradient(args *a, int i, const double *want, const double *noise,
                             const double *old)
{
    const gdn_tensor *t = gradient_of(a, i);
    const int64_t n = ring2_count(t);
    double *value = numbers(n), *limit = numbers(n), sum = 0, moved = 0;
    for (int64_t j = 0; j < n; j++) {
        sum += want[j] * want[j] / (double)n;
        moved += noise[j] * noise[j] / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        value[j] = want[j] + old[j];
        limit[j] = 4e-5 * most_beta(a) * sqrt(sum) + 1e-6 + 6 * (noise[j] + sqrt(moved)) +
                   oracle_half_ulp(t->dtype, value[j]);
    }
    ring2_compare(names[i], t, value, limit, NULL, NULL);
}

static void check_call(gdn_ctx *ctx, args *a)
{
    struct gradients g = make_gradients(a, NULL), noise = noise_of(a, &g);
    double *old[N_GRADIENTS];
    for (int i = 0; i < N_GRADIENTS; i++)
        old[i] = !gradient_of(a, i)->data    ? NULL
                 : a->flags & GDN_ACCUMULATE ? ring2_doubles(gradient_of(a, i))
                                             : numbers(ring2_count(gradient_of(a, i)));
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_BLOCK_BACKWARD, a), GDN_OK);
    ring2_call_begin();
    for (int i = 0; i < N_GRADIENTS; i++) ring2_may_write(gradient_of(a, i));
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    call(ctx, a);
    ring2_call_end();
    for (int i = 0; i < N_GRADIENTS && !ring2_failed(); i++)
        if (gradient_of(a, i)->data) compare_gradient(a, i, g.of[i], noise.of[i], old[i]);
}

/* ---- Tests ---- */

static gdn_batch packed(int n, const int64_t *lengths)
{
    int64_t cu[9] = { 0 };
    gdn_batch t = gdn_batch_init();
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    t.cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    return t;
}

/* Three tokens of the tensors belong to no sequence. On a device, which takes long here, a part. */
static void packed_batch(void)
{
    static const int64_t lengths[5] = { 20, 0, 1, 9, 66 };
    for (int i = 0; i < 2 * N_KINDS; i += ring2_on_device() ? 3 : 1) {
        gdn_batch t = packed(5, lengths);
        args a = make_call(&kinds[i / 2], 0, 99, i & 1 ? 0 : 5);
        a.batch = &t;
        want_all(&a);
        a.flags = (i & 1 ? GDN_ACCUMULATE : 0) | (i / 2 == 1 ? GDN_EXACT : 0);
        check_call(ring2_ctx(1 + i % 3), &a);
    }
}

/* Tokens that do not count hold NaN. */
static void padded_batch_with_masks(void)
{
    static const int64_t starts[3] = { 3, 0, 6 }, counts[3] = { 9, 5, 0 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch t = gdn_batch_init();
        args a = make_call(&kinds[i], 3, 12, 3);
        t.token_start = ring2_indices(GDN_I32, 3, starts);
        t.token_count = ring2_indices(GDN_I64, 3, counts);
        a.batch = &t;
        for (int64_t row = 0; row < 36; row++) {
            const int64_t b = row / 12, n = row % 12 - starts[b];
            for (int64_t j = 0; (n < 0 || n >= counts[b]) && j < HIDDEN; j++) {
                ring2_set(&a.hidden, row * HIDDEN + j, (double)NAN);
                ring2_set(&a.dout, row * HIDDEN + j, (double)NAN);
            }
        }
        want_all(&a);
        a.flags = i & 1 ? GDN_ACCUMULATE : 0;
        check_call(ring2_ctx(2), &a);
    }
}

/* One gradient at a time has the bits that it has among all. */
static void gradients_alone(void)
{
    args all = make_call(&kinds[1], 0, 40, 1), before;
    want_all(&all);
    before = clone(&all);
    call(ring2_ctx(2), &all);
    for (int i = 0; i < N_GRADIENTS; i++) {
        args one = before;
        if (!gradient_of(&one, i)->data) continue;
        for (int j = 0; j < N_GRADIENTS; j++)
            if (j != i) gradient_of(&one, j)->data = NULL;
        call(ring2_ctx(2), &one);
        ring2_expect_bits(names[i], gradient_of(&one, i), gradient_of(&all, i));
    }
}

/* ---- The oracle ---- */

/* Multiples of 2^-12, to which a step can be added without rounding. */
static void coarsen(const gdn_tensor *t)
{
    for (int64_t i = 0; t->data && i < ring2_count(t); i++)
        ring2_set(t, i, rint(ring2_get(t, i) * 4096) / 4096);
}

static double loss(const args *a)
{
    gdn_block_args f = forward_of(a);
    struct model m;
    double sum = 0;
    run_model(&f, NULL, &m);
    for (int64_t i = 0; i < m.out.n; i++) sum += m.out.want[i] * ring2_get(&a->dout, i);
    for (int64_t i = 0; i < m.state.n; i++) sum += m.state.want[i] * ring2_get(&a->dstate_out, i);
    for (int64_t i = 0; i < m.conv.n; i++)
        sum += m.conv.want[i] * ring2_get(&a->dconv_state_out, i);
    return sum;
}

/* Along a direction of ones and minus ones, whose bits are drawn again from the seed. */
static void step_along(const gdn_tensor *t, uint64_t seed, double by)
{
    for (int64_t i = 0; i < ring2_count(t); i++) {
        ring2_set(t, i, ring2_get(t, i) + (seed >> 63 ? by : -by));
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
}

static double difference(const args *a, const gdn_tensor *t, uint64_t seed, double h)
{
    step_along(t, seed, h);
    const double above = loss(a);
    step_along(t, seed, -2 * h);
    const double below = loss(a);
    step_along(t, seed, h);
    return (above - below) / (2 * h);
}

static void finite_differences(void)
{
    for (int n = 0; n < 2; n++) {
        struct kind k = kinds[n];
        k.states = GDN_F32;
        args a = make_call(&k, 0, 7, 1);
        for (int i = 0; i < N_GRADIENTS; i++) coarsen(source_of(&a, i));
        const struct gradients g = make_gradients(&a, NULL);
        for (int i = 0; i < N_GRADIENTS; i++) {
            const gdn_tensor *t = source_of(&a, i);
            if (!t->data) continue;
            for (uint64_t seed = 1; seed <= 2; seed++) {
                gdn_tensor signs = ring2_clone(t);
                double along = 0, size = 0;
                const double h = 0x1p-11, wide = difference(&a, t, seed << 60, h);
                const double narrow = difference(&a, t, seed << 60, h / 2);
                ring2_fill_value(&signs, 0);
                step_along(&signs, seed << 60, 1);
                for (int64_t j = 0; j < ring2_count(t); j++) {
                    along += ring2_get(&signs, j) * g.of[i][j];
                    size += g.of[i][j] * g.of[i][j];
                }
                const double seen = (4 * narrow - wide) / 3;
                CHECK(fabs(along - seen) <= 1e-6 * sqrt(size), "%s: %.9g, seen %.9g of %.3g",
                      names[i], along, seen, sqrt(size));
            }
        }
    }
}

/* No tokens: sums are zero, and states have the gradients that they had. */
static void no_tokens(void)
{
    static const int64_t lengths[2] = { 0, 0 };
    gdn_batch t = packed(2, lengths);
    args a = make_call(&kinds[0], 0, 0, 2);
    a.batch = &t;
    want_all(&a);
    check_call(ring2_ctx(1), &a);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "packed batch", packed_batch },
        { "padded batch with masks", padded_batch_with_masks },
        { "gradients alone", gradients_alone },
        { "no tokens", no_tokens },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
