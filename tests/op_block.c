/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_block against a float64 composition of the oracle's pieces, prefill then decode, batches,
 * windows, and its guarantees by name.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_batch.h"

enum { HIDDEN = 40, HK = 2, HV = 4, K = 16, V = 24, W = 4, D = 2 * HK * K + HV * V, R = HV / HK };

/* ---- Calls ---- */

struct kind {
    int32_t dtype, weights, states, layout;
    bool    fused;     /* in_proj_qkvz and in_proj_ba */
    int64_t conv_rows; /* S */
};

static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, true, 3 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_KV, false, 4 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, true, 4 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, false, 7 },
    { GDN_F16, GDN_BF16, GDN_F32, GDN_STATE_KV, true, 3 },
    { GDN_F32, GDN_F16, GDN_F32, GDN_STATE_KV, false, 3 },
    { GDN_BF16, GDN_F32, GDN_BF16, GDN_STATE_VK, true, 3 },
    { GDN_F16, GDN_F16, GDN_F16, GDN_STATE_KV, false, 4 },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static gdn_tensor weight(int32_t dtype, int64_t rows, int64_t columns, double size)
{
    gdn_tensor t = columns ? ring2_new(dtype, 0, 2, rows, columns, 0, 0)
                           : ring2_new(dtype, 0, 1, rows, 0, 0, 0);
    ring2_fill(&t, -size, size);
    return t;
}

static gdn_block_args make_call(const struct kind *k, int64_t N, int64_t P)
{
    const int32_t  w = k->weights;
    gdn_block_args a = gdn_block_args_init();
    a.hidden = ring2_new(k->dtype, 3, 2, N, HIDDEN, 0, 0);
    a.out    = ring2_new(k->dtype, 5, 2, N, HIDDEN, 0, 0);
    ring2_fill(&a.hidden, -1, 1);
    if (k->fused) {
        a.in_proj_qkvz = weight(w, D + HV * V, HIDDEN, 0.4);
        a.in_proj_ba   = weight(w, 2 * HV, HIDDEN, 0.4);
    } else {
        a.in_proj_qkv = weight(w, D, HIDDEN, 0.4);
        a.in_proj_z   = weight(w, HV * V, HIDDEN, 0.4);
        a.in_proj_b   = weight(w, HV, HIDDEN, 0.4);
        a.in_proj_a   = weight(w, HV, HIDDEN, 0.4);
    }
    a.conv_weight = weight(w, D, W, 0.5);
    if (!k->fused) a.conv_bias = weight(w, D, 0, 0.1);
    a.A_log       = weight(GDN_F32, HV, 0, 1);
    a.dt_bias     = weight(w, HV, 0, 1);
    a.norm_weight = weight(w, V, 0, 2);
    a.out_proj    = weight(w, HIDDEN, HV * V, 0.2);
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.state_layout = k->layout;
    if (!P) return a;
    a.conv_state = ring2_new(k->states, 0, 3, P, D, k->conv_rows, 0);
    a.state      = k->layout == GDN_STATE_VK ? ring2_new(k->states, 0, 4, P, HV, V, K)
                                             : ring2_new(k->states, 0, 4, P, HV, K, V);
    ring2_fill(&a.conv_state, -1, 1);
    ring2_fill(&a.state, -0.5, 0.5);
    return a;
}

static gdn_block_args clone(const gdn_block_args *a)
{
    gdn_block_args b = *a;
    b.out        = ring2_clone(&a->out);
    b.state      = ring2_clone(&a->state);
    b.conv_state = ring2_clone(&a->conv_state);
    return b;
}

static gdn_block_args slice(const gdn_block_args *a, int64_t first, int64_t n)
{
    gdn_block_args b = *a;
    b.hidden = ring2_narrow(&a->hidden, 0, first, n);
    b.out    = ring2_narrow(&a->out, 0, first, n);
    b.batch  = NULL;
    return b;
}

static void on_slot(gdn_block_args *a, int64_t slot)
{
    a->state      = ring2_narrow(&a->state, 0, slot, 1);
    a->conv_state = ring2_narrow(&a->conv_state, 0, slot, 1);
}

static gdn_batch packed(int n, const int64_t *lengths)
{
    int64_t   cu[9] = { 0 };
    gdn_batch t     = gdn_batch_init();
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    t.cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    return t;
}

static void call(gdn_ctx *ctx, const gdn_block_args *a)
{
    ring2_status(ctx, "gdn_block", gdn_block(ctx, a), GDN_OK);
}

static void expect_same(const char *what, const gdn_block_args *got, const gdn_block_args *want)
{
    ring2_expect_bits(what, &got->out, &want->out);
    if (want->state.data) ring2_expect_bits(what, &got->state, &want->state);
    if (want->conv_state.data) ring2_expect_bits(what, &got->conv_state, &want->conv_state);
}

/* ---- The layer in float64 ---- */

/* One sequence of T tokens; conv [S][D] and state [HV][V][K] move on. */
struct layer {
    const gdn_block_args *a;
    int64_t               T, S;
    double               *x;                  /* [T][HIDDEN] */
    double               *conv, *state, *out; /* out [T][HIDDEN] */
    double               *qkv, *z, *b, *alog; /* [T][D], [T][HV V], [T][HV]: projected */
};

static double *project(const double *x, const gdn_tensor *w, int64_t T)
{
    const int64_t n = w->size[0], m = w->size[1];
    double       *y = ring2_heap((size_t)(T * n) * sizeof *y);
    oracle_linear(y, NULL, x, ring2_doubles(w), T, n, m);
    return y;
}

/* The rows of Qwen3-Next's fused projections, key head by key head: q, k, its value heads' v
 * and z; their b and a. */
static void split_fused(struct layer *l)
{
    const double *p = project(l->x, &l->a->in_proj_qkvz, l->T);
    const double *g = project(l->x, &l->a->in_proj_ba, l->T);
    const int     per_head = 2 * K + 2 * R * V;
    for (int64_t t = 0; t < l->T; t++)
        for (int h = 0; h < HK; h++) {
            const double *from = p + (t * HK + h) * per_head, *ba = g + (t * HK + h) * 2 * R;
            double       *row  = l->qkv + t * D;
            for (int i = 0; i < K; i++) row[h * K + i] = from[i];
            for (int i = 0; i < K; i++) row[HK * K + h * K + i] = from[K + i];
            for (int i = 0; i < R * V; i++) {
                row[2 * HK * K + h * R * V + i]     = from[2 * K + i];
                l->z[t * HV * V + h * R * V + i] = from[2 * K + R * V + i];
            }
            for (int i = 0; i < R; i++) {
                l->b[t * HV + h * R + i]    = ba[i];
                l->alog[t * HV + h * R + i] = ba[R + i];
            }
        }
}

static void project_all(struct layer *l)
{
    const gdn_block_args *a = l->a;
    if (a->in_proj_qkvz.data) {
        l->qkv  = ring2_heap((size_t)(l->T * D) * 8);
        l->z    = ring2_heap((size_t)(l->T * HV * V) * 8);
        l->b    = ring2_heap((size_t)(l->T * HV) * 8);
        l->alog = ring2_heap((size_t)(l->T * HV) * 8);
        split_fused(l);
    } else {
        l->qkv  = project(l->x, &a->in_proj_qkv, l->T);
        l->z    = project(l->x, &a->in_proj_z, l->T);
        l->b    = project(l->x, &a->in_proj_b, l->T);
        l->alog = project(l->x, &a->in_proj_a, l->T);
    }
}

/* qkv through the convolution; conv moves on. */
static double *convolve(struct layer *l)
{
    const gdn_block_args *a = l->a;
    double               *y = ring2_heap((size_t)(l->T * D) * 8);
    double               *moved = ring2_heap((size_t)(l->S * D) * 8);
    oracle_conv(y, NULL, l->qkv, l->conv + (l->S - (W - 1)) * D, ring2_doubles(&a->conv_weight),
                a->conv_bias.data ? ring2_doubles(&a->conv_bias) : NULL, true, l->T, D, W);
    for (int64_t e = 0; e < l->S; e++) {
        const int64_t t = l->T - l->S + e;
        memcpy(moved + e * D, t >= 0 ? l->qkv + t * D : l->conv + (t + l->S) * D, D * 8);
    }
    memcpy(l->conv, moved, (size_t)(l->S * D) * 8);
    return y;
}

/* One value head: the rule and the gated norm, into its columns of y [T][HV V]. */
static void run_head(const struct layer *l, const double *conv, int h, double *y)
{
    const gdn_block_args *a = l->a;
    const size_t          T = (size_t)l->T;
    const double         *w = ring2_doubles(&a->norm_weight);
    double *q = ring2_heap(T * K * 8), *k = ring2_heap(T * K * 8), *v = ring2_heap(T * V * 8);
    double *alpha = ring2_heap(T * 8), *beta = ring2_heap(T * 8), *o = ring2_heap(T * V * 8);
    struct oracle_rule r = { .T = l->T, .K = K, .V = V, .scale = 1 / sqrt(K), .q = q, .k = k,
                             .v = v, .alpha = alpha, .beta = beta, .o = o,
                             .state = l->state + h * V * K };
    for (int64_t t = 0; t < l->T; t++) {
        const double *row = conv + t * D;
        oracle_l2norm(q + t * K, row + h / R * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + HK * K + h / R * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * HK * K + h * V, V * 8);
        alpha[t] = exp(oracle_gate(l->alog[t * HV + h], ring2_get(&a->A_log, h),
                                   ring2_get(&a->dt_bias, h), 0));
        beta[t]  = oracle_sigmoid(l->b[t * HV + h]);
    }
    oracle_rule(&r);
    for (int64_t t = 0; t < l->T; t++)
        oracle_rmsnorm_gated(y + (t * HV + h) * V, o + t * V, w, l->z + (t * HV + h) * V, false,
                             1e-6, V);
}

static void run_layer(struct layer *l)
{
    double *y = ring2_heap((size_t)(l->T * HV * V) * 8), *conv;
    project_all(l);
    conv = convolve(l);
    for (int h = 0; h < HV; h++) run_head(l, conv, h, y);
    l->out = project(y, &l->a->out_proj, l->T);
}

/* ---- The model ---- */

struct model {
    int64_t n;
    double *out, *state, *conv;
    bool   *out_kept, *state_kept, *conv_kept;
};

static int64_t state_at(const gdn_block_args *a, int64_t slot, int h, int j, int x)
{
    return (slot * HV + h) * V * K + (a->state_layout == GDN_STATE_VK ? j * K + x : x * V + j);
}

static void move_states(const gdn_block_args *a, struct layer *l, int64_t slot, struct model *m)
{
    for (int h = 0; a->state.data && h < HV; h++)
        for (int j = 0; j < V; j++)
            for (int x = 0; x < K; x++) {
                const int64_t at = state_at(a, slot, h, j, x);
                double       *S  = &l->state[(h * V + j) * K + x];
                if (m) m->state[at] = *S, m->state_kept[at] = false;
                else *S = ring2_get(&a->state, at);
            }
    for (int64_t e = 0; a->conv_state.data && e < l->S; e++)
        for (int d = 0; d < D; d++) {
            const int64_t at = (slot * D + d) * l->S + e;
            if (m) m->conv[at] = l->conv[e * D + d], m->conv_kept[at] = false;
            else l->conv[e * D + d] = ring2_get(&a->conv_state, at);
        }
}

static void run_sequence(const gdn_block_args *a, const struct ring2_sequence *s, struct model *m)
{
    struct layer l = { .a = a, .T = s->valid };
    l.S     = a->conv_state.data ? a->conv_state.size[2] : W - 1;
    l.conv  = ring2_heap((size_t)(l.S * D) * 8);
    l.state = ring2_heap(HV * V * K * 8);
    l.x     = ring2_heap((size_t)(s->valid * HIDDEN) * 8);
    for (int64_t i = 0; i < s->valid * HIDDEN; i++)
        l.x[i] = ring2_get(&a->hidden, s->first * HIDDEN + i);
    if (s->read >= 0) move_states(a, &l, s->read, NULL);
    run_layer(&l);
    memcpy(m->out + s->first * HIDDEN, l.out, (size_t)(s->valid * HIDDEN) * 8);
    if (s->write >= 0) move_states(a, &l, s->write, m);
}

static void make_model(const gdn_block_args *a, struct model *m)
{
    struct ring2_sequence *seqs;
    const bool    any = a->state.data || a->conv_state.data;
    const int64_t B   = ring2_sequences(a->batch, &a->hidden, 1, false, any, &seqs);
    const size_t  n   = a->state.data ? (size_t)ring2_count(&a->state) : 0;
    const size_t  c   = a->conv_state.data ? (size_t)ring2_count(&a->conv_state) : 0;
    m->n        = ring2_count(&a->out);
    m->out      = ring2_heap((size_t)m->n * 8);
    m->out_kept = ring2_heap((size_t)m->n);
    m->state = ring2_heap(n * 8), m->state_kept = ring2_heap(n);
    m->conv = ring2_heap(c * 8), m->conv_kept = ring2_heap(c);
    memset(m->state_kept, 1, n);
    memset(m->conv_kept, 1, c);
    for (int64_t b = 0; b < B; b++) {
        const struct ring2_sequence *s = &seqs[b];
        if (s->kept) memset(m->out_kept + s->first * HIDDEN, 1, (size_t)(s->T * HIDDEN));
        if (!s->skipped && s->T) run_sequence(a, s, m);
    }
}

/* The project's limit for float32 inside (docs/numerics.md): 2e-5 of the tensor's root mean
 * square and 1e-6; the stored dtype adds half an ulp. */
static void compare(const char *what, const gdn_tensor *got, const double *want, const bool *kept)
{
    const int64_t n = ring2_count(got);
    double       *limit = ring2_heap((size_t)n * 8), sum = 0;
    int64_t       judged = 0;
    for (int64_t i = 0; i < n; i++)
        if (!kept || !kept[i]) sum += want[i] * want[i], judged++;
    for (int64_t i = 0; judged && i < n; i++) limit[i] = 2e-5 * sqrt(sum / (double)judged) + 1e-6;
    ring2_compare(what, got, want, limit, NULL, kept);
}

static void allow_writes(const gdn_tensor *t, const bool *kept)
{
    for (int64_t i = 0; t->data && i < ring2_count(t); i++)
        if (!kept[i]) ring2_may_write_bytes(ring2_element(t, i), gdn_dtype_bytes(t->dtype));
}

static void compare_all(const gdn_block_args *a, const struct model *m)
{
    compare("out", &a->out, m->out, m->out_kept);
    if (a->state.data) compare("state", &a->state, m->state, m->state_kept);
    if (a->conv_state.data) compare("conv_state", &a->conv_state, m->conv, m->conv_kept);
}

static void check_call(gdn_ctx *ctx, const gdn_block_args *a)
{
    struct model m;
    make_model(a, &m);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_BLOCK, a), GDN_OK);
    ring2_call_begin();
    allow_writes(&a->out, m.out_kept);
    allow_writes(&a->state, m.state_kept);
    allow_writes(&a->conv_state, m.conv_kept);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    call(ctx, a);
    ring2_call_end();
    if (!ring2_failed()) compare_all(a, &m);
}

/* ---- Tests ---- */

static void against_the_oracle(void)
{
    static const int64_t lengths[6] = { 20, 0, 1, 9, 33, 8 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        const struct kind *k = &kinds[i / 2];
        gdn_batch          t = packed(6, lengths);
        gdn_block_args     a = make_call(k, 71, i & 1 ? 0 : 6);
        a.batch              = &t;
        check_call(ring2_ctx(1 + i % 3), &a);
    }
}

/* One of the two states there: the other starts from zero and is dropped. */
static void one_state_absent(void)
{
    static const int64_t lengths[3] = { 20, 1, 300 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_batch      t = packed(3, lengths);
        gdn_block_args a = make_call(&kinds[i / 2], 321, 3);
        a.batch          = &t;
        *(i & 1 ? &a.state.data : &a.conv_state.data) = NULL;
        check_call(ring2_ctx(2), &a);
    }
}

static void padded_batch_with_slots_and_masks(void)
{
    static const int64_t slots[3] = { 4, -1, 1 }, to[3] = { 4, -1, 0 }, counts[3] = { 12, 5, 7 };
    static const int64_t initial[3] = { 1, 1, 0 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_batch      t = gdn_batch_init();
        gdn_block_args a = make_call(&kinds[i / 2], 0, 5);
        a.hidden = ring2_new(a.hidden.dtype, 2, 3, 3, 12, HIDDEN, 0);
        a.out    = ring2_new(a.out.dtype, 4, 3, 3, 12, HIDDEN, 0);
        ring2_fill(&a.hidden, -1, 1);
        t.read_slots        = ring2_indices(GDN_I32, 3, slots);
        t.write_slots       = ring2_indices(GDN_I64, 3, to);
        t.token_count       = ring2_indices(GDN_I32, 3, counts);
        t.has_initial_state = ring2_indices(GDN_U8, 3, initial);
        t.pad_policy        = i & 1 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        a.batch             = &t;
        check_call(ring2_ctx(2), &a);
    }
}

/* 40 tokens by prefill, then 12 one by one: the whole sequence's oracle. */
static void G5_prefill_then_decode(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_block_args a = make_call(&kinds[i], 52, 1), part = slice(&a, 0, 40);
        struct model   m;
        if (kinds[i].states != GDN_F32) continue; /* each call rounds them */
        make_model(&a, &m);
        call(ring2_ctx(2), &part);
        for (int64_t t = 40; t < 52; t++) {
            part = slice(&a, t, 1);
            call(ring2_ctx(2), &part);
        }
        compare_all(&a, &m);
    }
}

/* Many tokens pass in windows: the oracle, and the same bits wherever the windows fall. */
static void windows(void)
{
    static const int64_t lengths[5] = { 255, 300, 1, 600, 17 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch      t = packed(5, lengths);
        gdn_block_args a = make_call(&kinds[i], 1173, 5), b = clone(&a);
        int64_t        first = 0;
        a.batch              = &t;
        check_call(ring2_ctx(2), &a);
        for (int64_t s = 0; s < 5; first += lengths[s++]) {
            gdn_block_args alone = slice(&b, first, lengths[s]);
            on_slot(&alone, s);
            call(ring2_ctx(1), &alone);
        }
        expect_same("alone", &b, &a);
    }
}

static void G2_threads(void)
{
    static const int64_t lengths[4] = { 70, 1, 0, 290 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch      t = packed(4, lengths);
        gdn_block_args a = make_call(&kinds[i], 361, 4), b;
        a.batch          = &t;
        b                = clone(&a);
        call(ring2_ctx(1), &b);
        for (int n = 2; n <= 4; n++) {
            gdn_block_args c = clone(&a);
            call(ring2_ctx(n), &c);
            expect_same("threads", &c, &b);
        }
    }
}

static void G3_repeat(void)
{
    gdn_block_args a = make_call(&kinds[2], 100, 1), b = clone(&a);
    call(ring2_ctx(4), &b);
    for (int i = 0; i < 5; i++) {
        gdn_block_args c = clone(&a);
        call(ring2_ctx(4), &c);
        expect_same("again", &c, &b);
    }
}

/* An empty sequence's slot and padding's hold NaN that nobody may meet or change. */
static void G10_no_state_touched(void)
{
    static const int64_t lengths[3] = { 9, 0, 3 }, slots[3] = { 0, 1, -1 };
    gdn_batch            t = packed(3, lengths);
    gdn_block_args       a = make_call(&kinds[0], 12, 3);
    for (int64_t s = 1; s < 3; s++) {
        gdn_block_args b = a;
        on_slot(&b, s);
        ring2_fill_value(&b.state, (double)NAN);
        ring2_fill_value(&b.conv_state, (double)NAN);
    }
    t.read_slots = ring2_indices(GDN_I32, 3, slots);
    a.batch      = &t;
    check_call(ring2_ctx(2), &a);
}

/* Masked tokens hold NaN; a sequence of which none counts keeps every bit of its states. */
static void G11_masked(void)
{
    static const int64_t lengths[2] = { 20, 300 }, counts[2] = { 0, 270 };
    gdn_batch            t = packed(2, lengths);
    gdn_block_args       a = make_call(&kinds[1], 320, 2), b, masked;
    gdn_tensor           state, conv;
    t.token_count = ring2_indices(GDN_I32, 2, counts);
    a.batch       = &t;
    masked        = slice(&a, 0, 20);
    ring2_fill_value(&masked.hidden, (double)NAN);
    masked = slice(&a, 290, 30);
    ring2_fill_value(&masked.hidden, (double)NAN);
    b = clone(&a);
    check_call(ring2_ctx(2), &a);
    on_slot(&b, 0);
    state = ring2_narrow(&a.state, 0, 0, 1);
    conv  = ring2_narrow(&a.conv_state, 0, 0, 1);
    ring2_expect_bits("state", &state, &b.state);
    ring2_expect_bits("conv_state", &conv, &b.conv_state);
}

struct mode_call {
    gdn_ctx       *ctx;
    gdn_block_args args;
    gdn_status     status;
};

static void call_in_mode(void *arg)
{
    struct mode_call *c = arg;
    c->status = gdn_block(c->ctx, &c->args);
}

static void G12_float_environment(void)
{
    gdn_block_args a = make_call(&kinds[1], 30, 1), plainly = clone(&a);
    call(ring2_ctx(1), &plainly);
    for (int i = 0;; i++) {
        struct mode_call c = { ring2_ctx(1 + i % 2 * 2), clone(&a), 0 };
        if (!ring2_float_mode(i, call_in_mode, &c)) {
            if (!i) ring2_skip("no MXCSR on this machine");
            break;
        }
        ring2_status(c.ctx, "call", c.status, GDN_OK);
        expect_same("mode", &c.args, &plainly);
    }
}

static void G13_no_allocation(void)
{
    int            n_allocs = 0, before;
    gdn_ctx       *ctx = ring2_counting_ctx(&n_allocs);
    gdn_block_args a   = make_call(&kinds[0], 700, 1);
    before = n_allocs;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_BLOCK, &a, &a.workspace_bytes),
                 GDN_OK);
    a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    check_call(ctx, &a);
    CHECK(n_allocs == before, "%d allocations", n_allocs - before);
    gdn_ctx_destroy(ctx);
}

/* The same rows in Qwen3-Next's order and in Qwen3.5's are the same layer, to the bit. */
static void trap_12_channel_order(void)
{
    gdn_block_args a = make_call(&kinds[0], 20, 1), b = clone(&a);
    const int      per_head = 2 * K + 2 * R * V;
    gdn_tensor     qkv = weight(GDN_F32, D, HIDDEN, 1), z = weight(GDN_F32, HV * V, HIDDEN, 1);
    gdn_tensor     beta = weight(GDN_F32, HV, HIDDEN, 1), alog = weight(GDN_F32, HV, HIDDEN, 1);
    const struct {
        gdn_tensor *to, *from;
        int         first, n, at, step; /* n rows per key head, from row `at` of its group */
    } moves[] = { { &qkv, &a.in_proj_qkvz, 0, K, 0, per_head },
                  { &qkv, &a.in_proj_qkvz, HK * K, K, K, per_head },
                  { &qkv, &a.in_proj_qkvz, 2 * HK * K, R * V, 2 * K, per_head },
                  { &z, &a.in_proj_qkvz, 0, R * V, 2 * K + R * V, per_head },
                  { &beta, &a.in_proj_ba, 0, R, 0, 2 * R },
                  { &alog, &a.in_proj_ba, 0, R, R, 2 * R } };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        for (int h = 0; h < HK; h++) {
            const gdn_tensor to = ring2_narrow(moves[i].to, 0, moves[i].first + h * moves[i].n,
                                               moves[i].n);
            const gdn_tensor from = ring2_narrow(moves[i].from, 0, h * moves[i].step + moves[i].at,
                                                 moves[i].n);
            ring2_copy(&to, &from);
        }
    b.in_proj_qkvz.data = b.in_proj_ba.data = NULL;
    b.in_proj_qkv = qkv, b.in_proj_z = z, b.in_proj_b = beta, b.in_proj_a = alog;
    call(ring2_ctx(2), &a);
    call(ring2_ctx(2), &b);
    expect_same("order", &b, &a);
}

/* Windows, chunks and splits change no bit; a state of 16 bits is rounded after every token. */
static void G17_split(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_block_args a = make_call(&kinds[i], 300, 1), parts;
        a.flags      = GDN_EXACT;
        a.conv_state = ring2_new(GDN_F32, 0, 3, 1, D, kinds[i].conv_rows, 0);
        ring2_fill(&a.conv_state, -1, 1);
        parts = clone(&a);
        call(ring2_ctx(1), &a);
        for (int64_t t = 0, n; t < 300; t += n) {
            n = 1 + ring2_below(ring2_below(3) ? 20 : 280);
            if (n > 300 - t) n = 300 - t;
            const gdn_block_args part = slice(&parts, t, n);
            call(ring2_ctx(1 + (int)ring2_below(3)), &part);
        }
        expect_same("parts", &parts, &a);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "against the oracle", against_the_oracle },
        { "one state absent", one_state_absent },
        { "padded batch with slots and masks", padded_batch_with_slots_and_masks },
        { "windows", windows },
        { "G2 threads", G2_threads },
        { "G3 repeat", G3_repeat },
        { "G5 prefill then decode", G5_prefill_then_decode },
        { "G10 no state touched", G10_no_state_touched },
        { "G11 masked tokens", G11_masked },
        { "G12 float environment", G12_float_environment },
        { "G13 no allocation", G13_no_allocation },
        { "G17 split", G17_split },
        { "trap 12: channel order", trap_12_channel_order },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
