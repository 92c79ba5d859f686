/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_draws.h. */
#include "ring2_draws.h"

#include <stdlib.h>
#include <string.h>

/* ---- Tensors ---- */

static void fill(struct ring2_draw *d, const gdn_tensor *t)
{
    if (t->dtype <= GDN_F16) ring2_fill(t, -1, 1);
    for (int64_t i = 0; i < ring2_count(t) && t->dtype <= GDN_F16 && d->tiny; i += 3)
        ring2_set(t, i, t->dtype == GDN_F16 ? 1e-7 : -3e-39);
    for (int64_t i = 0; i < ring2_count(t) && t->dtype > GDN_F16; i++)
        memset(ring2_element(t, i), (int)below(64), gdn_dtype_bytes(t->dtype));
}

static gdn_tensor place(struct ring2_draw *d, int32_t dtype, int ndim, int64_t s0, int64_t s1,
                        int64_t s2, int64_t s3)
{
    const size_t unit = gdn_dtype_bytes(dtype);
    gdn_tensor t = gdn_dense(NULL, dtype, ndim, s0, s1, s2, s3);
    if (d->vast) {
        d->used += (size_t)1 << 42;
        t.data = (void *)(d->used + (one_in(100) ? unit : 0));
        return t;
    }
    d->used = (d->used + (size_t)below(3) * unit + unit - 1) / unit * unit;
    t.data = d->arena + d->used;
    d->used += (size_t)ring2_count(&t) * unit;
    if (d->used > d->room) abort();
    if (d->fill) fill(d, &t);
    return t;
}

#define PLACE1(dtype, a) place(d, dtype, 1, a, 0, 0, 0)
#define PLACE2(dtype, a, b) place(d, dtype, 2, a, b, 0, 0)
#define PLACE3(dtype, a, b, c) place(d, dtype, 3, a, b, c, 0)
#define PLACE4(dtype, a, b, c, e) place(d, dtype, 4, a, b, c, e)

/* Sets element i, if the tensor has memory. */
static void set(const struct ring2_draw *d, const gdn_tensor *t, int64_t i, double x)
{
    if (!d->vast) ring2_set(t, i, x);
}

static int32_t any_float(struct ring2_draw *d)
{
    return d->vast && !one_in(7) ? GDN_BF16 : (int32_t)below(3);
}

static gdn_tensor index_array(struct ring2_draw *d, int64_t n, int64_t low, int64_t high)
{
    gdn_tensor t = PLACE1(one_in(2) ? GDN_I32 : GDN_I64, n);
    if (d->vast) return t;
    for (int64_t i = 0; i < n; i++) set(d, &t, i, (double)(low + below(high - low + 1)));
    return t;
}

static gdn_tensor distinct(struct ring2_draw *d, int64_t n)
{
    gdn_tensor t = PLACE1(GDN_I32, n);
    for (int64_t i = 0; i < n; i++) set(d, &t, i, (double)(n - 1 - i));
    return t;
}

/* [B][columns], row b ascending from low: by steps of 1, or any. */
static gdn_tensor rows_of(struct ring2_draw *d, int64_t B, int64_t columns, int64_t low, bool any)
{
    gdn_tensor t = PLACE2(GDN_I32, B, columns);
    if (d->vast) return t;
    for (int64_t i = 0; i < B * columns; i++)
        set(d, &t, i, (double)(low + (any ? below(i % columns + 1) : i % columns)));
    return t;
}

/* ---- Batches ---- */

enum { CHECKPOINTS = 3 }; /* of a sequence, at most */

static void draw_checkpoints(struct ring2_draw *d, const struct sizes *s, gdn_batch *t)
{
    const int64_t C = 2 * s->B;
    if (one_in(2)) {
        t->checkpoint_every = (s->T + CHECKPOINTS - 1) / CHECKPOINTS + below(s->T);
    } else {
        t->checkpoint_starts = PLACE1(GDN_I64, s->B + 1);
        t->checkpoint_positions = PLACE1(GDN_I32, C);
        for (int64_t b = 0; b <= s->B; b++) set(d, &t->checkpoint_starts, b, (double)(2 * b));
        for (int64_t c = 0; c < C; c += 2) {
            const int64_t first = 1 + below(s->T);
            set(d, &t->checkpoint_positions, c, (double)first);
            set(d, &t->checkpoint_positions, c + 1, (double)(first + below(s->T - first + 1)));
        }
        if (one_in(2)) t->checkpoint_slots = distinct(d, C);
    }
}

static void draw_slots(struct ring2_draw *d, const struct sizes *s, gdn_batch *t)
{
    const int64_t B = s->B, T = s->T;
    if (one_in(2)) t->read_slots = distinct(d, B);
    if (one_in(3)) t->read_slots = index_array(d, B, -1, s->P - 1);
    if (one_in(4)) t->write_slots = distinct(d, B);
    if (one_in(4)) t->has_initial_state = index_array(d, B, 0, 1);
    t->pad_policy = (int32_t)below(3);
    t->write = one_in(4) ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
    if (one_in(6)) {
        t->write = GDN_WRITE_EACH;
        t->write_slots = PLACE2(GDN_I32, B, T);
        for (int64_t i = 0; i < B * T && !d->vast; i++)
            set(d, &t->write_slots, i, (double)(one_in(8) ? below(s->P) : -1));
    }
    if (one_in(8)) {
        t->num_accepted_tokens = index_array(d, B, 1, 2);
        t->read_slots = PLACE2(GDN_I64, B, 2);
        for (int64_t i = 0; i < B * 2; i++) set(d, &t->read_slots, i, (double)(i / 2));
    }
}

gdn_batch ring2_draw_batch(struct ring2_draw *d, gdn_op op, const struct sizes *s)
{
    gdn_batch t = gdn_batch_init();
    const bool is_record = op == GDN_OP_RECORD_COMMIT || op == GDN_OP_RECORD_FOLD;
    if (is_record) {
        t.read_slots = distinct(d, s->B);
        return t;
    }
    t.cu_seqlens = PLACE1(GDN_I32, s->B + 1);
    for (int64_t b = 0; b <= s->B; b++) set(d, &t.cu_seqlens, b, (double)(s->T * b));
    if (one_in(4)) t.token_count = index_array(d, s->B, 0, s->T / 2);
    if (op > GDN_OP_BLOCK && op != GDN_OP_STEP) return t;
    draw_slots(d, s, &t);
    if (one_in(4)) t.token_start = index_array(d, s->B, 0, s->T / 2);
    if (one_in(2)) draw_checkpoints(d, s, &t);
    if ((op == GDN_OP_DECODE || op == GDN_OP_CONV1D || op == GDN_OP_STEP) && one_in(6))
        t.parents = rows_of(d, s->B, s->T, -1, one_in(2));
    if (op == GDN_OP_CONV1D && one_in(6)) t.path = rows_of(d, s->B, s->T, 0, false);
    return t;
}

/* ---- The rule ---- */

/* Heads and head sizes. */
struct heads {
    int64_t q, k, v, H, K, V;
};

/* Returns a head size of a device, at most so many. */
static int64_t vast_size(struct ring2_draw *d, int64_t most)
{
    static const int64_t usual[] = { 64, 96, 128, 128, 128, 256, 640, 768, 1024 };
    const int64_t size = one_in(6) ? 1 + below(most) : ANY(usual);
    return size < most ? size : most;
}

static struct heads draw_heads(struct ring2_draw *d)
{
    static const int heads[][3] = { { 1, 1, 1 }, { 1, 1, 3 }, { 2, 1, 1 }, { 2, 2, 4 } };
    static const int vast[][3] = { { 16, 16, 32 }, { 4, 4, 4 }, { 16, 4, 4 }, { 2, 2, 64 } };
    const int *h = d->vast && one_in(2) ? ANY(vast) : ANY(heads);
    if (d->vast)
        return (struct heads){
            h[0], h[1], h[2], h[0] > h[2] ? h[0] : h[2], vast_size(d, 256), vast_size(d, 1024)
        };
    return (struct heads){ h[0], h[1], h[2], h[0] > h[2] ? h[0] : h[2], up_to(20), up_to(14) };
}

/* A pool of n slots; of 8 bits now and then, floats among them with scales or without. */
static gdn_tensor draw_pool(struct ring2_draw *d, const struct heads *h, int64_t n, int32_t dtype,
                            bool kv, gdn_tensor *scales)
{
    if (scales && one_in(8)) {
        dtype = GDN_I8 + (int32_t)below(3);
        if (dtype == GDN_I8 || one_in(2)) *scales = PLACE3(GDN_F32, n, h->H, h->V);
    }
    return PLACE4(dtype, n, h->H, kv ? h->K : h->V, kv ? h->V : h->K);
}

static void draw_rule(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    const int32_t A = any_float(d), S = any_float(d);
    const bool kv = one_in(2);
    gdn_rule_args *a = &c->rule;
    *a = gdn_rule_args_init();
    a->q = PLACE3(A, s->N, h.q, h.K), a->k = PLACE3(A, s->N, h.k, h.K);
    a->v = PLACE3(A, s->N, h.v, h.V), a->out = PLACE3(A, s->N, h.H, h.V);
    a->g = PLACE2(GDN_F32, s->N, h.H), a->beta = PLACE2(GDN_F32, s->N, h.H);
    a->state = draw_pool(d, &h, s->P, S, kv, &a->state_scales);
    a->state_layout = kv;
    if (one_in(3)) a->state_out = draw_pool(d, &h, s->P, S, kv, &a->state_out_scales);
    if (one_in(3))
        a->checkpoints =
            draw_pool(d, &h, CHECKPOINTS * s->B, any_float(d), kv, &a->checkpoint_scales);
    if (one_in(3)) {
        a->gate = GDN_GATE_RAW;
        a->A_log = PLACE1(GDN_F32, h.H), a->dt_bias = PLACE1(GDN_BF16, h.H);
    }
    if (one_in(4)) a->out.data = NULL;
    if (one_in(8)) a->out = a->v;
    if (one_in(6)) a->flags = GDN_EXACT;
    if (one_in(6)) a->rounding = GDN_ROUND_STOCHASTIC, a->seed = ring2_draw_bits(d);
    a->norm = (int32_t)below(5);
}

/* R rows beside each of P slots. */
static void draw_record(struct ring2_draw *d, const struct heads *h, int64_t P, int64_t R,
                        gdn_tensor *k, gdn_tensor *u, gdn_tensor *g, gdn_tensor *count)
{
    *k = PLACE4(any_float(d), P, R, h->k, h->K);
    *u = PLACE4(any_float(d), P, R, h->H, h->V);
    *g = PLACE3(GDN_F32, P, R, h->H);
    *count = index_array(d, P, 0, 1);
}

/* A record beside the slots of a call of gdn_decode. */
void ring2_draw_record(struct ring2_draw *d, gdn_rule_args *a, const struct sizes *s,
                       gdn_batch *batch)
{
    const struct heads h = {
        .k = a->k.size[1], .H = a->g.size[1], .K = a->k.size[2], .V = a->v.size[2]
    };
    draw_record(d, &h, s->P, s->T + 1, &a->record_k, &a->record_u, &a->record_g, &a->record_count);
    batch->write = GDN_WRITE_NONE;
    batch->write_slots.data = NULL;
}

static void draw_record_commit(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    const int64_t T = s->T / 2 + 1;
    gdn_record_commit_args *a = &c->record_commit;
    *a = gdn_record_commit_args_init();
    draw_record(d, &h, s->P, T + 1, &a->record_k, &a->record_u, &a->record_g, &a->record_count);
    a->n_accepted = index_array(d, s->B, 0, T);
    if (one_in(2)) a->path = rows_of(d, s->B, T, 0, false);
}

static void draw_record_fold(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_record_fold_args *a = &c->record_fold;
    *a = gdn_record_fold_args_init();
    a->state_layout = one_in(2);
    a->state = draw_pool(d, &h, s->P, any_float(d), a->state_layout, &a->state_scales);
    draw_record(d, &h, s->P, 1 + below(5), &a->record_k, &a->record_u, &a->record_g,
                &a->record_count);
}

/* ---- The other ops ---- */

static int64_t draw_taps(struct ring2_draw *d)
{
    return d->vast && one_in(2) ? 4 : 2 + below(d->vast ? 15 : 7);
}

static void draw_conv1d(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t D = up_to(40), W = draw_taps(d), S = W - 1 + below(3);
    const int32_t A = any_float(d);
    gdn_conv1d_args *a = &c->conv1d;
    *a = gdn_conv1d_args_init();
    a->x = PLACE2(A, s->N, D);
    a->out = one_in(3) ? a->x : PLACE2(A, s->N, D);
    a->weight = PLACE2(any_float(d), D, W);
    a->bias = PLACE1(GDN_F32, D);
    a->state = PLACE3(any_float(d), s->P, D, S);
    if (one_in(3)) a->state_out = PLACE3(any_float(d), s->P, D, S);
    if (one_in(3)) a->checkpoints = PLACE3(any_float(d), CHECKPOINTS * s->B, D, S);
    if (one_in(4)) a->out.data = NULL;
    a->activation = GDN_ACT_SILU + 2 * (int32_t)below(2);
}

static void draw_conv1d_backward(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t D = up_to(40), W = draw_taps(d), S = W - 1 + below(3);
    gdn_conv1d_backward_args *a = &c->conv1d_backward;
    *a = gdn_conv1d_backward_args_init();
    a->x = PLACE2(any_float(d), s->N, D);
    a->dout = PLACE2(any_float(d), s->N, D);
    a->dx = PLACE2(any_float(d), s->N, D);
    a->weight = PLACE2(any_float(d), D, W), a->bias = PLACE1(GDN_F32, D);
    a->dweight = PLACE2(GDN_F32, D, W), a->dbias = PLACE1(GDN_F32, D);
    a->state = PLACE3(any_float(d), s->B, D, S);
    a->dstate = PLACE3(GDN_F32, s->B, D, S);
    if (one_in(2)) a->dstate_out = PLACE3(any_float(d), s->B, D, S);
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
    a->activation = GDN_ACT_SILU + 2 * (int32_t)below(2);
}

static void draw_gates(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t H = d->vast ? 4 * up_to(1) : up_to(80);
    gdn_gates_args *a = &c->gates;
    *a = gdn_gates_args_init();
    a->a = PLACE2(any_float(d), s->N, H);
    a->b = PLACE2(d->vast ? a->a.dtype : any_float(d), s->N, H);
    a->g = one_in(3) ? a->a : PLACE2(GDN_F32, s->N, H);
    a->beta = one_in(3) ? a->b : PLACE2(GDN_F16, s->N, H);
    a->A_log = PLACE1(GDN_F32, H), a->dt_bias = PLACE1(GDN_F32, H);
}

static void draw_gates_backward(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t H = up_to(80);
    gdn_gates_backward_args *a = &c->gates_backward;
    *a = gdn_gates_backward_args_init();
    a->a = PLACE2(any_float(d), s->N, H), a->b = PLACE2(any_float(d), s->N, H);
    a->dg = PLACE2(GDN_F32, s->N, H), a->dbeta = PLACE2(any_float(d), s->N, H);
    a->da = PLACE2(any_float(d), s->N, H), a->db = PLACE2(any_float(d), s->N, H);
    a->A_log = PLACE1(GDN_F32, H), a->dt_bias = PLACE1(any_float(d), H);
    a->dA_log = PLACE1(GDN_F32, H), a->ddt_bias = PLACE1(GDN_F32, H);
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
}

static void draw_l2norm(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t D = up_to(80);
    gdn_l2norm_args *a = &c->l2norm;
    *a = gdn_l2norm_args_init();
    a->x = PLACE2(any_float(d), s->N, D);
    a->out = one_in(3) ? a->x : PLACE2(any_float(d), s->N, D);
}

static void draw_l2norm_backward(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t D = up_to(80);
    gdn_l2norm_backward_args *a = &c->l2norm_backward;
    *a = gdn_l2norm_backward_args_init();
    a->x = PLACE2(any_float(d), s->N, D);
    a->dout = PLACE2(any_float(d), s->N, D);
    a->dx = PLACE2(any_float(d), s->N, D);
    a->norm = (int32_t)below(4);
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
}

static void draw_rmsnorm_gated(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t D = up_to(80);
    gdn_rmsnorm_gated_args *a = &c->rmsnorm_gated;
    *a = gdn_rmsnorm_gated_args_init();
    a->x = PLACE2(any_float(d), s->N, D), a->z = PLACE2(any_float(d), s->N, D);
    a->weight = PLACE1(any_float(d), D);
    a->out = one_in(3) ? a->z : PLACE2(any_float(d), s->N, D);
}

static void draw_rmsnorm_gated_backward(struct ring2_draw *d, union ring2_call *c,
                                        const struct sizes *s)
{
    const int64_t D = up_to(80);
    gdn_rmsnorm_gated_backward_args *a = &c->rmsnorm_gated_backward;
    *a = gdn_rmsnorm_gated_backward_args_init();
    a->x = PLACE2(any_float(d), s->N, D), a->z = PLACE2(any_float(d), s->N, D);
    a->weight = PLACE1(any_float(d), D), a->dout = PLACE2(any_float(d), s->N, D);
    a->dx = PLACE2(any_float(d), s->N, D), a->dz = PLACE2(any_float(d), s->N, D);
    a->dweight = PLACE1(GDN_F32, D);
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
}

static int64_t block_size(struct ring2_draw *d, int64_t most)
{
    return d->vast ? vast_size(d, most) : up_to(8);
}

/* The projections of a layer, and dt_bias. */
struct layer_weights {
    gdn_tensor *qkvz, *ba, *qkv, *q, *k, *v, *z_down, *z, *b, *a_down, *a, *dt_bias;
};
#define LAYER_WEIGHTS(args)                                                                      \
    {                                                                                            \
        &(args)->in_proj_qkvz, &(args)->in_proj_ba, &(args)->in_proj_qkv, &(args)->in_proj_q,    \
            &(args)->in_proj_k, &(args)->in_proj_v, &(args)->in_proj_z_down, &(args)->in_proj_z, \
            &(args)->in_proj_b, &(args)->in_proj_a_down, &(args)->in_proj_a, &(args)->dt_bias    \
    }

static void draw_weights(struct ring2_draw *d, const struct layer_weights *w, int64_t Hk,
                         const struct heads *h, int64_t hidden)
{
    const int64_t keys = Hk * h->K, values = h->H * h->V;
    const bool grouped = one_in(2), channels = !grouped && one_in(3);
    *w->dt_bias = channels ? PLACE2(GDN_F32, h->H, h->K) : PLACE1(GDN_F32, h->H);
    if (grouped) {
        *w->qkvz = PLACE2(GDN_BF16, 2 * keys + 2 * values, hidden);
        *w->ba = PLACE2(GDN_F32, 2 * h->H, hidden);
        return;
    }
    if (one_in(2)) {
        *w->qkv = PLACE2(GDN_F32, 2 * keys + values, hidden);
    } else {
        *w->q = PLACE2(GDN_F32, keys, hidden), *w->k = PLACE2(GDN_BF16, keys, hidden);
        *w->v = PLACE2(GDN_F16, values, hidden);
    }
    if (one_in(3)) *w->z_down = PLACE2(GDN_F32, up_to(20), hidden);
    if (one_in(3)) *w->a_down = PLACE2(GDN_BF16, up_to(20), hidden);
    *w->z = PLACE2(GDN_F16, values, w->z_down->data ? w->z_down->size[0] : hidden);
    *w->b = PLACE2(GDN_F32, h->H, hidden);
    *w->a = PLACE2(GDN_F32, channels ? h->H * h->K : h->H,
                   w->a_down->data ? w->a_down->size[0] : hidden);
}

static void draw_block(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t Hk = 1 + below(2), Hv = Hk * (1 + below(2));
    const int64_t K = block_size(d, 256), V = block_size(d, 1024);
    const int64_t D = 2 * Hk * K + Hv * V, hidden = up_to(20);
    const struct heads h = { .H = Hv, .K = K, .V = V };
    const bool kv = one_in(2);
    gdn_block_args *a = &c->block;
    *a = gdn_block_args_init();
    a->state_layout = kv;
    if (one_in(6)) a->rounding = GDN_ROUND_STOCHASTIC, a->seed = ring2_draw_bits(d);
    a->hidden = PLACE2(GDN_F32, s->N, hidden), a->out = PLACE2(GDN_F32, s->N, hidden);
    draw_weights(d, &(struct layer_weights)LAYER_WEIGHTS(a), Hk, &h, hidden);
    a->conv_weight = PLACE2(GDN_F32, D, 2 + below(7));
    a->A_log = PLACE1(GDN_F32, Hv);
    a->norm_weight = PLACE1(GDN_F32, V);
    a->out_proj = PLACE2(GDN_F32, hidden, Hv * V);
    a->conv_state = PLACE3(GDN_F32, s->P, D, a->conv_weight.size[1] - one_in(2));
    a->state = draw_pool(d, &h, s->P, GDN_F16, kv, &a->state_scales);
    if (one_in(3)) {
        a->checkpoints = draw_pool(d, &h, CHECKPOINTS * s->B, GDN_F32, kv, &a->checkpoint_scales);
        a->conv_checkpoints = PLACE3(GDN_F16, CHECKPOINTS * s->B, D, a->conv_state.size[2]);
    }
    a->n_key_heads = (int32_t)Hk, a->n_value_heads = (int32_t)Hv;
    a->key_head_dim = (int32_t)K, a->value_head_dim = (int32_t)V;
    if (one_in(3)) a->activation = GDN_ACT_SIGMOID, a->beta_kind = GDN_BETA_TWICE_SIGMOID;
}

static void draw_block_backward(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t Hk = 1 + below(2), Hv = Hk * (1 + below(2));
    const int64_t K = block_size(d, 256), V = block_size(d, 1024);
    const int64_t D = 2 * Hk * K + Hv * V, hidden = up_to(20), W = 2 + below(7), S = W - 1;
    const struct heads h = { .H = Hv, .K = K, .V = V };
    const bool kv = one_in(2);
    const int32_t A = any_float(d);
    gdn_block_backward_args *a = &c->block_backward;
    *a = gdn_block_backward_args_init();
    a->state_layout = kv;
    a->hidden = PLACE2(A, s->N, hidden), a->dout = PLACE2(A, s->N, hidden);
    a->dhidden = PLACE2(GDN_F32, s->N, hidden);
    draw_weights(d, &(struct layer_weights)LAYER_WEIGHTS(a), Hk, &h, hidden);
    if (a->in_proj_qkvz.data) a->din_proj_qkvz = PLACE2(GDN_F32, D + Hv * V, hidden);
    if (a->in_proj_z.data) a->din_proj_z = PLACE2(GDN_F32, Hv * V, a->in_proj_z.size[1]);
    if (a->in_proj_a_down.data)
        a->din_proj_a_down = PLACE2(GDN_F32, a->in_proj_a_down.size[0], hidden);
    a->conv_weight = PLACE2(GDN_F32, D, W), a->dconv_weight = PLACE2(GDN_F32, D, W);
    a->A_log = PLACE1(GDN_F32, Hv), a->dA_log = PLACE1(GDN_F32, Hv);
    a->ddt_bias = a->dt_bias.ndim == 2 ? PLACE2(GDN_F32, Hv, K) : PLACE1(GDN_F32, Hv);
    a->norm_weight = PLACE1(GDN_F32, V), a->dnorm_weight = PLACE1(GDN_F32, V);
    a->out_proj = PLACE2(GDN_F32, hidden, Hv * V);
    a->dout_proj = PLACE2(GDN_F32, hidden, Hv * V);
    a->conv_state = PLACE3(GDN_F32, s->B, D, S), a->dconv_state = PLACE3(GDN_F32, s->B, D, S);
    a->state = PLACE4(GDN_F16, s->B, Hv, kv ? K : V, kv ? V : K);
    a->dstate = PLACE4(GDN_F32, s->B, Hv, kv ? K : V, kv ? V : K);
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
    a->n_key_heads = (int32_t)Hk, a->n_value_heads = (int32_t)Hv;
    a->key_head_dim = (int32_t)K, a->value_head_dim = (int32_t)V;
    if (one_in(3)) a->activation = GDN_ACT_SIGMOID, a->beta_kind = GDN_BETA_TWICE_SIGMOID;
}

static void draw_step(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    struct heads h = draw_heads(d);
    const int32_t A = any_float(d);
    const int64_t W = draw_taps(d);
    const bool kv = one_in(2);
    gdn_step_args *a = &c->step;
    if (d->vast && one_in(2)) h.K = h.V = 128;
    h.q = h.k; /* fewer queries, or as many */
    h.H = h.v;
    const int64_t D = 2 * h.k * h.K + h.v * h.V;
    *a = gdn_step_args_init();
    a->x = PLACE2(A, s->N, D), a->out = PLACE3(A, s->N, h.v, h.V);
    a->a = PLACE2(GDN_F32, s->N, h.v), a->b = PLACE2(A, s->N, h.v);
    if (one_in(2)) a->z = PLACE3(A, s->N, h.v, h.V);
    if (one_in(2)) a->norm_weight = PLACE1(any_float(d), h.V);
    a->conv_weight = PLACE2(any_float(d), D, W), a->conv_bias = PLACE1(GDN_F32, D);
    a->A_log = PLACE1(GDN_F32, h.v), a->dt_bias = PLACE1(GDN_BF16, h.v);
    a->conv_state = PLACE3(any_float(d), s->P, D, W - 1 + below(2));
    a->state = draw_pool(d, &h, s->P, any_float(d), kv, &a->state_scales);
    if (one_in(6)) a->conv_weight.data = a->conv_bias.data = a->conv_state.data = NULL;
    if (one_in(8)) a->out.data = NULL;
    if (one_in(6)) a->flags = GDN_EXACT;
    if (one_in(6)) a->rounding = GDN_ROUND_STOCHASTIC, a->seed = ring2_draw_bits(d);
    a->n_key_heads = (int32_t)h.k, a->n_value_heads = (int32_t)h.v;
    a->key_head_dim = (int32_t)h.K, a->value_head_dim = (int32_t)h.V;
    a->state_layout = kv, a->norm = (int32_t)below(5), a->head_map = (int32_t)below(2);
    if (one_in(3)) a->activation = GDN_ACT_SIGMOID;
}

static gdn_tensor draw_states(struct ring2_draw *d, int64_t P, const int64_t *s, bool turned,
                              bool conv)
{
    const int64_t a = s[turned ? 2 : 1], b = s[turned ? 1 : 2];
    return conv ? PLACE3(any_float(d), P, s[1], s[2] + below(3))
                : PLACE4(any_float(d), P, s[0], a, b);
}

static void draw_state_copy(struct ring2_draw *d, union ring2_call *c, const struct sizes *sizes)
{
    const int64_t s[3] = { 1 + below(3), up_to(40), 1 + below(8) }, P = sizes->P;
    const bool conv = one_in(3);
    gdn_state_copy_args *a = &c->state_copy;
    *a = gdn_state_copy_args_init();
    a->from_layout = !conv && one_in(2), a->to_layout = !conv && one_in(2);
    a->from_pool = draw_states(d, P, s, a->from_layout, conv);
    a->to_pool = draw_states(d, P, s, a->to_layout, conv);
    if (one_in(4)) a->to_pool = a->from_pool, a->to_layout = a->from_layout;
    if (one_in(8)) a->from_pool.data = NULL;
    if (one_in(2)) a->from_slots = index_array(d, P, -1, P - 1);
    if (one_in(2)) a->to_slots = distinct(d, P);
    if (!conv && one_in(8)) {
        a->to_pool = PLACE4(GDN_I8, P, s[0], s[a->to_layout ? 2 : 1], s[a->to_layout ? 1 : 2]);
        a->to_scales = PLACE3(GDN_F32, P, s[0], s[1]);
    }
}

static gdn_tensor draw_map(struct ring2_draw *d, const struct sizes *s, const struct heads *h)
{
    return PLACE4(any_float(d), s->B, h->H, h->K, h->K);
}

static void draw_summary(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_summary_args *a = &c->summary;
    *a = gdn_summary_args_init();
    a->state_layout = one_in(2);
    a->k = PLACE3(any_float(d), s->N, h.k, h.K);
    a->g = PLACE2(GDN_F32, s->N, h.H), a->beta = PLACE2(GDN_F32, s->N, h.H);
    a->M = draw_map(d, s, &h);
    if (one_in(3)) return;
    a->v = PLACE3(a->k.dtype, s->N, h.v, h.V);
    a->U = draw_pool(d, &h, s->B, any_float(d), a->state_layout, NULL);
}

static void draw_summary_compose(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_summary_compose_args *a = &c->summary_compose;
    const bool kv = one_in(2);
    *a = gdn_summary_compose_args_init();
    a->state_layout = kv;
    a->M1 = draw_map(d, s, &h), a->M2 = draw_map(d, s, &h);
    a->M = one_in(3) ? a->M1 : draw_map(d, s, &h);
    if (one_in(3)) return;
    a->U1 = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    a->U2 = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    a->U = one_in(3) ? a->U2 : draw_pool(d, &h, s->B, any_float(d), kv, NULL);
}

static void draw_summary_apply(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_summary_apply_args *a = &c->summary_apply;
    const bool kv = one_in(2);
    *a = gdn_summary_apply_args_init();
    a->state_layout = kv;
    a->M = draw_map(d, s, &h);
    if (!one_in(4)) a->U = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    if (!one_in(4)) a->state = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    a->state_out = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    if (one_in(3) && a->state.data) a->state_out = a->state;
}

static void draw_summary_fold(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_summary_fold_args *a = &c->summary_fold;
    const bool kv = one_in(2);
    *a = gdn_summary_fold_args_init();
    a->state_layout = kv;
    a->M = draw_map(d, s, &h);
    a->U = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    a->order = PLACE2(one_in(2) ? GDN_I32 : GDN_I64, s->P, 1 + below(3));
    for (int64_t i = 0; i < ring2_count(&a->order); i++)
        set(d, &a->order, i, (double)below(s->B + 1) - 1);
    if (!one_in(3)) a->state = draw_pool(d, &h, s->P, any_float(d), kv, NULL);
    a->state_out = draw_pool(d, &h, s->P, any_float(d), kv, NULL);
    if (one_in(3) && a->state.data) a->state_out = a->state;
}

static void draw_chunk_cumsum(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const int64_t H = up_to(40);
    gdn_chunk_cumsum_args *a = &c->chunk_cumsum;
    *a = gdn_chunk_cumsum_args_init();
    a->g = PLACE2(any_float(d), s->N, H);
    a->out = one_in(3) ? a->g : PLACE2(any_float(d), s->N, H);
    a->chunk_size = 1 + (int32_t)below(40);
}

static void draw_chunk_uw(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_chunk_uw_args *a = &c->chunk_uw;
    *a = gdn_chunk_uw_args_init();
    a->chunk_size = 16 << below(3);
    a->k = PLACE3(any_float(d), s->N, h.k, h.K), a->v = PLACE3(any_float(d), s->N, h.v, h.V);
    a->g = PLACE2(GDN_F32, s->N, h.H), a->beta = PLACE2(GDN_F32, s->N, h.H);
    a->u = PLACE3(any_float(d), s->N, h.H, h.V), a->w = PLACE3(any_float(d), s->N, h.H, h.K);
    if (one_in(2)) a->T = PLACE3(any_float(d), s->N, h.H, a->chunk_size);
    if (one_in(4)) a->u.data = a->v.data = NULL;
}

/* Chunks of C tokens of all sequences, and a few more. */
static int64_t draw_n_chunks(struct ring2_draw *d, const struct sizes *s, int64_t C)
{
    return s->B * ((s->T + C - 1) / C) + below(2);
}

static void draw_chunk_states(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_chunk_states_args *a = &c->chunk_states;
    const bool kv = one_in(2);
    *a = gdn_chunk_states_args_init();
    a->state_layout = kv;
    a->chunk_size = 16 << below(3);
    a->k = PLACE3(any_float(d), s->N, h.k, h.K), a->g = PLACE2(GDN_F32, s->N, h.H);
    a->u = PLACE3(any_float(d), s->N, h.H, h.V), a->w = PLACE3(any_float(d), s->N, h.H, h.K);
    if (!one_in(4)) a->state = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    a->states = draw_pool(d, &h, draw_n_chunks(d, s, a->chunk_size), any_float(d), kv, NULL);
    a->state_out = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    if (one_in(3) && a->state.data) a->state_out = a->state;
}

static void draw_chunk_output(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    gdn_chunk_output_args *a = &c->chunk_output;
    *a = gdn_chunk_output_args_init();
    a->state_layout = one_in(2);
    a->chunk_size = 16 << below(3);
    a->q = PLACE3(any_float(d), s->N, h.q, h.K), a->k = PLACE3(any_float(d), s->N, h.k, h.K);
    a->u = PLACE3(any_float(d), s->N, h.H, h.V), a->w = PLACE3(any_float(d), s->N, h.H, h.K);
    a->g = PLACE2(GDN_F32, s->N, h.H);
    a->states =
        draw_pool(d, &h, draw_n_chunks(d, s, a->chunk_size), any_float(d), a->state_layout, NULL);
    a->out = PLACE3(any_float(d), s->N, h.H, h.V);
}

static void draw_prefill_backward(struct ring2_draw *d, union ring2_call *c, const struct sizes *s)
{
    const struct heads h = draw_heads(d);
    const int32_t A = any_float(d);
    const bool kv = one_in(2);
    gdn_prefill_backward_args *a = &c->prefill_backward;
    *a = gdn_prefill_backward_args_init();
    a->q = PLACE3(A, s->N, h.q, h.K), a->k = PLACE3(A, s->N, h.k, h.K);
    a->v = PLACE3(A, s->N, h.v, h.V), a->dout = PLACE3(A, s->N, h.H, h.V);
    a->g = PLACE2(GDN_F32, s->N, h.H), a->beta = PLACE2(A, s->N, h.H);
    a->dq = PLACE3(A, s->N, h.q, h.K), a->dk = PLACE3(GDN_F32, s->N, h.k, h.K);
    a->dv = PLACE3(A, s->N, h.v, h.V);
    a->dg = PLACE2(GDN_F32, s->N, h.H), a->dbeta = PLACE2(GDN_F32, s->N, h.H);
    if (one_in(2)) a->state = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    if (one_in(2)) a->dstate_out = draw_pool(d, &h, s->B, any_float(d), kv, NULL);
    if (one_in(2)) a->dstate = draw_pool(d, &h, s->B, GDN_F32, kv, NULL);
    if (one_in(2)) a->checkpoints = draw_pool(d, &h, CHECKPOINTS * s->B, any_float(d), kv, NULL);
    if (one_in(3)) {
        a->gate = GDN_GATE_RAW;
        a->A_log = PLACE1(GDN_F32, h.H), a->dt_bias = PLACE1(GDN_BF16, h.H);
        a->dA_log = PLACE1(GDN_F32, h.H), a->ddt_bias = PLACE1(GDN_F32, h.H);
    }
    if (one_in(3)) a->flags = GDN_ACCUMULATE;
    a->state_layout = kv, a->norm = (int32_t)below(5), a->head_map = (int32_t)below(2);
}

ring2_draw_op *const ring2_draws[RING2_N_OPS] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = draw_##args,
#include "calls/ops.def"
};
