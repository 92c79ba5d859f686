/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of gdn_block() in float64: the chain rule over the oracle's pieces. */
#ifndef BLOCK_GRADIENTS_H
#define BLOCK_GRADIENTS_H

#include "block_model.h"
#include "gdn_train.h"

typedef gdn_block_backward_args args;

/* ---- Tensors of a call ---- */

enum {
    GQKVZ,
    GBA,
    GQKV,
    GQ,
    GK,
    GV,
    GZ_DOWN,
    GA_DOWN,
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

static inline gdn_tensor *gradient_of(args *a, int i)
{
    gdn_tensor *const all[N_GRADIENTS] = {
        &a->din_proj_qkvz, &a->din_proj_ba, &a->din_proj_qkv,    &a->din_proj_q,
        &a->din_proj_k,    &a->din_proj_v,  &a->din_proj_z_down, &a->din_proj_a_down,
        &a->din_proj_z,    &a->din_proj_b,  &a->din_proj_a,      &a->dconv_weight,
        &a->dconv_bias,    &a->dA_log,      &a->ddt_bias,        &a->dnorm_weight,
        &a->dout_proj,     &a->dhidden,     &a->dconv_state,     &a->dstate
    };
    return all[i];
}

/* Returns the tensor that gradient i belongs to. */
static inline gdn_tensor *source_of(args *a, int i)
{
    gdn_tensor *const all[N_GRADIENTS] = {
        &a->in_proj_qkvz, &a->in_proj_ba,     &a->in_proj_qkv,    &a->in_proj_q,  &a->in_proj_k,
        &a->in_proj_v,    &a->in_proj_z_down, &a->in_proj_a_down, &a->in_proj_z,  &a->in_proj_b,
        &a->in_proj_a,    &a->conv_weight,    &a->conv_bias,      &a->A_log,      &a->dt_bias,
        &a->norm_weight,  &a->out_proj,       &a->hidden,         &a->conv_state, &a->state
    };
    return all[i];
}

static const char *const names[N_GRADIENTS] = {
    "din_proj_qkvz", "din_proj_ba",     "din_proj_qkv",    "din_proj_q",  "din_proj_k",
    "din_proj_v",    "din_proj_z_down", "din_proj_a_down", "din_proj_z",  "din_proj_b",
    "din_proj_a",    "dconv_weight",    "dconv_bias",      "dA_log",      "ddt_bias",
    "dnorm_weight",  "dout_proj",       "dhidden",         "dconv_state", "dstate"
};

/* Returns the forward call of the layer, with an output of its own. */
static inline gdn_block_args forward_of(const args *a)
{
    gdn_block_args f = gdn_block_args_init();
    f.hidden = a->hidden, f.out = ring2_clone(&a->hidden);
    f.in_proj_qkvz = a->in_proj_qkvz, f.in_proj_ba = a->in_proj_ba;
    f.in_proj_qkv = a->in_proj_qkv, f.in_proj_z = a->in_proj_z;
    f.in_proj_q = a->in_proj_q, f.in_proj_k = a->in_proj_k, f.in_proj_v = a->in_proj_v;
    f.in_proj_z_down = a->in_proj_z_down, f.in_proj_a_down = a->in_proj_a_down;
    f.in_proj_b = a->in_proj_b, f.in_proj_a = a->in_proj_a;
    f.conv_weight = a->conv_weight, f.conv_bias = a->conv_bias, f.A_log = a->A_log;
    f.dt_bias = a->dt_bias, f.norm_weight = a->norm_weight, f.out_proj = a->out_proj;
    f.conv_state = a->conv_state, f.state = a->state, f.batch = a->batch;
    f.n_key_heads = HK, f.n_value_heads = HV, f.key_head_dim = K, f.value_head_dim = V;
    f.state_layout = a->state_layout, f.gate_lower_bound = a->gate_lower_bound;
    return f;
}

/* ---- The chain rule in float64 ---- */

enum { FIRST_B = D + HV * V, FIRST_A = FIRST_B + HV }; /* columns of q, k, v, z, b, a */

struct gradients {
    double *of[N_GRADIENTS];
};

/* One sequence. dy: of what is projected, [T][columns]; dc: of the convolution's output. */
struct sequence {
    args *a;
    struct layer l;
    int64_t row, first, columns;
    double *history, *dout, *n, *dn, *conv, *dc, *dy;
    struct gradients g;
};

static inline double *numbers(int64_t n) { return ring2_heap((size_t)n * 8 + 8); }

/* The weight, and its row, of a column. */
static inline int weight_of(const struct sequence *s, int column, int64_t *row)
{
    const int per_head = 2 * K + 2 * R * V, k = HK * K, v = 2 * k;
    const int z = D, b = FIRST_B, a = FIRST_A;
    if (!s->a->in_proj_qkvz.data) {
        const bool apart = s->a->in_proj_q.data;
        const int qkv = !apart || column < k ? 0 : column < v ? k : v;
        const int first = column < z ? qkv : column < b ? z : column < a ? b : a;
        *row = column - first;
        if (column < z) return !apart ? GQKV : first == 0 ? GQ : first == k ? GK : GV;
        return column < b ? GZ : column < a ? GB : GA;
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
static inline double input(const struct sequence *s, int64_t t, int d)
{
    return t < 0 ? s->history[(s->l.S + t) * D + d] : s->l.qkv[t * D + d];
}

static inline int64_t conv_at(const struct sequence *s, int d, int64_t e)
{
    return (s->row * D + d) * s->l.S + e;
}

static inline void conv_backward(struct sequence *s)
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
                s->dy[t * s->columns + d] = dx;
        }
    }
}

/* dq or dk of head h through the norm, to the channels from `first` on. */
static inline void add_key(struct sequence *s, const double *dk, int first)
{
    double dx[K];
    for (int64_t t = 0; t < s->l.T; t++) {
        oracle_l2norm_backward(dx, s->conv + t * D + first, dk + t * K, K, GDN_NORM_L2, 1e-6);
        for (int i = 0; i < K; i++) s->dc[t * D + first + i] += dx[i];
    }
}

static inline double most_beta(const args *a)
{
    return a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
}

static inline void gates_backward(struct sequence *s, int h, const double *dgate,
                                  const double *dbeta)
{
    const int C = channels_of(s->l.a);
    for (int64_t t = 0; t < s->l.T; t++) {
        const double b = s->l.b[t * HV + h];
        double *to = s->dy + t * s->columns + FIRST_B;
        to[h] = dbeta[t] * most_beta(s->a) * oracle_sigmoid(b) * oracle_sigmoid(-b);
        for (int i = h * C; i < h * C + C; i++) {
            const double d = dgate[t * C + i - h * C];
            double by_A_log;
            const double da =
                d * oracle_gate_slope(s->l.alog[t * HV * C + i], ring2_get(&s->a->A_log, h),
                                      ring2_get(&s->a->dt_bias, i), s->a->gate_lower_bound,
                                      &by_A_log);
            to[HV + i] = da;
            s->g.of[GDT][i] += da;
            s->g.of[GA_LOG][h] += d * by_A_log;
        }
    }
}

/* The gradient of o, from that of n; those of z and of the weight. */
static inline void norm_backward(struct sequence *s, int h, const double *o, double *dO)
{
    const double *w = ring2_doubles(&s->a->norm_weight);
    const bool sigmoid = s->a->activation == GDN_ACT_SIGMOID;
    double dw[V];
    for (int64_t t = 0; t < s->l.T; t++) {
        const struct oracle_rmsnorm n = {
            o + t * V, w, s->l.z + (t * HV + h) * V, s->dn + (t * HV + h) * V, sigmoid, 1e-6, V,
        };
        oracle_rmsnorm_backward(&n, dO + t * V, s->dy + t * s->columns + D + h * V, dw);
        for (int i = 0; i < V; i++) s->g.of[GNORM][i] += dw[i];
    }
}

static inline double *state_of(const struct sequence *s, const gdn_tensor *t, int h)
{
    const gdn_block_args f = { .state_layout = s->a->state_layout };
    double *S = numbers(V * K);
    for (int i = 0; t->data && i < V * K; i++)
        S[i] = ring2_get(t, state_at(&f, s->row, h, i / K, i % K));
    return S;
}

/* The gradients of the rule with gates per channel: those of log alpha are [T][K]. */
static inline void channels_backward(const struct sequence *s, const struct oracle_backward *r,
                                     int h)
{
    const int64_t T = r->T;
    double *g = numbers(T * K), *b = numbers(T * K), *w = numbers(T * V);
    double *db = numbers(T * K), *dw = numbers(T * V), *state = numbers(V * K);
    memcpy(state, r->state, V * K * 8);
    for (int64_t i = 0; i < T * K; i++) {
        g[i] = gate_of(s->l.a, s->l.alog + i / K * HV * K, h * K + (int)(i % K));
        b[i] = r->beta[i / K];
    }
    for (int64_t i = 0; i < T * V; i++) w[i] = r->beta[i / V];
    const struct oracle_family f = { .T = T,
                                     .K = K,
                                     .V = V,
                                     .n = 1,
                                     .scale = r->scale,
                                     .q = r->q,
                                     .g = g,
                                     .k = r->k,
                                     .b = b,
                                     .v = r->v,
                                     .w = w,
                                     .state = state,
                                     .o = numbers(T * V) };
    const struct oracle_family_backward back = { .of = &f,
                                                 .dout = r->dout,
                                                 .dstate_out = r->dstate_out,
                                                 .dq = r->dq,
                                                 .dg = r->dgate,
                                                 .dk = r->dk,
                                                 .db = db,
                                                 .dv = r->dv,
                                                 .dw = dw,
                                                 .dstate = r->dstate };
    oracle_family_backward(&back);
    for (int64_t i = 0; i < T * K; i++) r->dbeta[i / K] += db[i];
    for (int64_t i = 0; i < T * V; i++) r->dbeta[i / V] += dw[i];
}

static inline void head_backward(struct sequence *s, int h)
{
    const int64_t T = s->l.T;
    const int C = channels_of(s->l.a);
    double *q = numbers(T * K), *k = numbers(T * K), *v = numbers(T * V), *o = numbers(T * V);
    double *alpha = numbers(T), *beta = numbers(T), *dO = numbers(T * V);
    double *state = state_of(s, &s->a->state, h), *first = state_of(s, &s->a->state, h);
    const gdn_block_args f = { .state_layout = s->a->state_layout };
    for (int64_t t = 0; t < T; t++) {
        const double *row = s->conv + t * D;
        oracle_l2norm(q + t * K, row + h / R * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + HK * K + h / R * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * HK * K + h * V, V * 8);
        if (C == 1) alpha[t] = exp(gate_of(s->l.a, s->l.alog + t * HV, h));
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
    if (C > 1)
        run_channels(&s->l, &r, h);
    else if (s->l.noise)
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
                                       .dgate = numbers(T * C),
                                       .dbeta = numbers(T),
                                       .dstate = numbers(V * K) };
    if (C > 1)
        channels_backward(s, &b, h);
    else
        oracle_rule_backward(&b);
    add_key(s, b.dq, h / R * K);
    add_key(s, b.dk, HK * K + h / R * K);
    for (int64_t i = 0; i < T * V; i++) s->dc[i / V * D + 2 * HK * K + h * V + i % V] += b.dv[i];
    gates_backward(s, h, b.dgate, b.dbeta);
    for (int i = 0; i < V * K; i++)
        s->g.of[GSTATE][state_at(&f, s->row, h, i / K, i % K)] += b.dstate[i];
}

static inline void output_backward(struct sequence *s)
{
    const double *w = ring2_doubles(&s->a->out_proj);
    for (int64_t t = 0; t < s->l.T; t++)
        for (int i = 0; i < HIDDEN; i++)
            for (int j = 0; j < HV * V; j++)
                s->dn[t * HV * V + j] += s->dout[t * HIDDEN + i] * w[i * HV * V + j];
    round_all(&s->l, s->dn, s->l.T * HV * V);
}

/* The rows that a projection multiplies, [T][width], and their gradient. */
struct side {
    double *x, *dx;
    int64_t width;
};

static inline struct side hidden_side(struct sequence *s)
{
    return (struct side){ s->l.x, s->g.of[GHIDDEN] + s->first * HIDDEN, HIDDEN };
}

/* Returns the side of z's or a's first projection, if it is of low rank; else that of hidden. */
static inline struct side side_of(struct sequence *s, const gdn_tensor *down)
{
    if (!down->data) return hidden_side(s);
    const int64_t n = s->l.T * down->size[0];
    struct side low = { project(s->l.x, down, s->l.T), numbers(n), down->size[0] };
    round_all(&s->l, low.x, n);
    return low;
}

/* Adds the gradients of a row of weight `which`, whose products' are dy, `step` apart. */
static inline void row_backward(struct sequence *s, const struct side *in, int which, int64_t row,
                                const double *dy, int64_t step)
{
    const double *w = ring2_doubles(source_of(s->a, which)) + row * in->width;
    double *dw = s->g.of[which] + row * in->width;
    for (int64_t t = 0; t < s->l.T; t++)
        for (int64_t i = 0; i < in->width; i++) {
            dw[i] += dy[t * step] * in->x[t * in->width + i];
            in->dx[t * in->width + i] += dy[t * step] * w[i];
        }
}

static inline void low_backward(struct sequence *s, struct side *low, int which)
{
    const struct side hidden = hidden_side(s);
    if (!source_of(s->a, which)->data) return;
    round_all(&s->l, low->dx, s->l.T * low->width);
    for (int64_t i = 0; i < low->width; i++)
        row_backward(s, &hidden, which, i, low->dx + i, low->width);
}

/* Computes the gradients of the weights on both sides, and of hidden. */
static inline void projections_backward(struct sequence *s)
{
    const struct side hidden = hidden_side(s);
    struct side z = side_of(s, &s->a->in_proj_z_down), a = side_of(s, &s->a->in_proj_a_down);
    round_all(&s->l, s->n, s->l.T * HV * V);
    round_all(&s->l, s->dy, s->l.T * s->columns);
    for (int64_t t = 0; t < s->l.T; t++)
        for (int i = 0; i < HIDDEN; i++)
            for (int j = 0; j < HV * V; j++)
                s->g.of[GOUT][i * HV * V + j] += s->dout[t * HIDDEN + i] * s->n[t * HV * V + j];
    for (int c = 0; c < s->columns; c++) {
        int64_t row;
        const int which = weight_of(s, c, &row);
        row_backward(s,
                     which == GZ   ? &z
                     : which == GA ? &a
                                   : &hidden,
                     which, row, s->dy + c, s->columns);
    }
    low_backward(s, &z, GZ_DOWN);
    low_backward(s, &a, GA_DOWN);
}

static inline void add_sequence(args *a, const struct ring2_sequence *from,
                                struct oracle_noise *noise, const struct gradients *g)
{
    const gdn_block_args f = forward_of(a);
    const gdn_tensor *state = a->conv_state.data ? &a->conv_state : &a->dconv_state;
    struct sequence s = { .a = a, .row = from->row, .first = from->first, .g = *g };
    s.columns = FIRST_A + HV * channels_of(&f);
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
    s.dc = numbers(T * D), s.dy = numbers(T * s.columns);
    project_all(&s.l);
    s.conv = convolve(&s.l);
    output_backward(&s);
    for (int h = 0; h < HV; h++) head_backward(&s, h);
    conv_backward(&s);
    projections_backward(&s);
}

static inline int64_t count_of(args *a, int i)
{
    const gdn_tensor *t = gradient_of(a, i)->data ? gradient_of(a, i) : source_of(a, i);
    const int64_t B = a->batch && a->batch->cu_seqlens.data ? ring2_count(&a->batch->cu_seqlens)
                                                            : a->hidden.size[0];
    if (t->data) return ring2_count(t);
    return i == GBIAS ? D : i == GSTATE ? B * HV * V * K : i == GCONV_STATE ? B * D * (W - 1) : 0;
}

/* noise: of what a device rounds; NULL: nothing is. */
static inline struct gradients make_gradients(args *a, struct oracle_noise *noise)
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

#endif
