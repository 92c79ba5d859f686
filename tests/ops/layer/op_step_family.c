/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=4 */
/*
 * gdn_step of the family: the bits of the separate calls, with tokens padded and packed, and the
 * rule in float64 behind the convolution.
 */
#include "family_calls.h"
#include "oracle_family.h"
#include "step_calls.h"

/* ---- Calls ---- */

enum { N_SEQS = 3, N_SLOTS = 5 };

/* Sequences: the first token, how many tokens, and the slot. */
static const struct sequence {
    int64_t first, n, slot;
} padded_rows[2][N_SEQS] = { { { 0, 1, 4 }, { 1, 1, -1 }, { 2, 1, 0 } },
                             { { 0, 3, 4 }, { 3, 3, -1 }, { 6, 3, 0 } } },
  packed_rows[N_SEQS] = { { 0, 2, 4 }, { 2, 0, 1 }, { 2, 4, 0 } };

/* Tokens [B][T].., or packed [N].., of n numbers, or n rows of m. */
static gdn_tensor tokens_like(int32_t dtype, bool packed, int64_t T, int64_t n, int64_t m,
                              double size)
{
    if (!packed) return rows(dtype, N_SEQS, T, n, m, size);
    gdn_tensor t = rows(dtype, 1, T, n, m, size);
    return ring2_select(&t, 0, 0);
}

static void give_gates(gdn_step_args *a, const struct rule *f, bool packed, int64_t T, int32_t io)
{
    const int64_t Hv = a->n_value_heads, K_ = a->key_head_dim, V_ = a->value_head_dim;
    const int64_t rows_ = T * f->updates;
    a->a = tokens_like(io, packed, T, Hv, f->g_rows ? K_ : 0, 3);
    a->b = tokens_like(GDN_F32, packed, rows_, Hv, f->beta_rows ? K_ : 0, 3);
    if (f->write) a->write_gate = tokens_like(io, packed, rows_, Hv, V_, 3);
    a->A_log = vector(GDN_F32, Hv, -1, 1);
    if (f->g_rows) {
        a->dt_bias = ring2_new(GDN_F32, 0, 2, Hv, K_, 0, 0);
        ring2_fill(&a->dt_bias, -2, 1);
    } else {
        a->dt_bias = vector(GDN_F32, Hv, -2, 1);
    }
    ring2_set(&a->a, 0, 200); /* forgets */
    ring2_set(&a->b, 1, -200);
}

/* batch: of this call. Channels of x are apart in every third call. */
static gdn_step_args draw(int i, const struct rule *f, gdn_batch *batch)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 64, 48 }, { 5, 3 }, { 40, 24 } };
    static const int64_t cu[] = { 0, 2, 2, 6 }, slots[] = { 4, -1, 0 },
                         packed_slots[] = { 4, 1, 0 };
    const int32_t io = i % 3;
    const bool packed = i / 2 % 3 == 2, fused = i % 3 == 2, kv = i / 3 % 2;
    const int64_t T = packed ? 6 : i / 2 % 3 ? 3 : 1, taps = 4;
    gdn_step_args a = gdn_step_args_init();
    a.n_key_heads = 2, a.n_value_heads = i % 4 ? 4 : 2;
    a.key_head_dim = (int32_t)sizes[i / 5 % 4][0], a.value_head_dim = (int32_t)sizes[i / 5 % 4][1];
    const int64_t keys = 2 * a.key_head_dim, Hv = a.n_value_heads, V_ = a.value_head_dim;
    const int64_t channels = keys + f->updates * (keys + Hv * V_);
    a.x = tokens_like(io, packed, T, channels + (fused ? 12 : 0), 0, 2);
    if (fused) a.x = ring2_narrow(&a.x, a.x.ndim - 1, 4, channels);
    give_gates(&a, f, packed, T, io);
    if (f->updates > 1 || i % 2) a.updates = f->updates;
    a.out = tokens_like(io, packed, T, Hv, V_, 1);
    a.conv_weight = ring2_new(GDN_F32, 0, 2, channels, taps, 0, 0);
    a.conv_state = ring2_new(GDN_F32, 0, 3, N_SLOTS, channels, taps - 1, 0);
    a.state =
        ring2_new(GDN_F32, 0, 4, N_SLOTS, Hv, kv ? a.key_head_dim : V_, kv ? V_ : a.key_head_dim);
    ring2_fill(&a.conv_weight, -0.5, 0.5), ring2_fill(&a.conv_state, -1, 1);
    ring2_fill(&a.state, -0.5, 0.5);
    a.state_layout = kv;
    a.gate_lower_bound = i % 4 == 1 ? -5 : 0;
    a.beta_kind = i % 5 == 3 ? GDN_BETA_TWICE_SIGMOID : 0;
    *batch = gdn_batch_init();
    batch->read_slots = ring2_indices(GDN_I64, N_SEQS, packed ? packed_slots : slots);
    if (packed) batch->cu_seqlens = ring2_indices(GDN_I32, N_SEQS + 1, cu);
    a.batch = batch;
    return a;
}

/* ---- In float64 ---- */

/* Number j of row `row`, head h: of a tensor with a number for each channel, or for all of them. */
static double number_of(const gdn_tensor *t, int64_t row, int64_t H, int64_t h, int64_t n,
                        int64_t j, bool has_channels)
{
    return ring2_get(t, has_channels ? (row * H + h) * n + j : row * H + h);
}

static double *heap(int64_t n) { return ring2_heap((size_t)(n + 1) * sizeof(double)); }

/* Head h of a sequence, from rows of the convolution. */
static struct oracle_family head_of(const gdn_step_args *a, const gdn_tensor *y,
                                    const struct rule *f, const struct sequence *s, int64_t h)
{
    const int64_t H = a->n_value_heads, dk = a->key_head_dim, dv = a->value_head_dim;
    const int64_t hk = h / (H / a->n_key_heads), keys = a->n_key_heads * dk, n = f->updates;
    const int64_t D_ = y->size[y->ndim - 1], u = s->n * n;
    const double twice = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    double *q = heap(s->n * dk), *g = heap(s->n * dk), *k = heap(u * dk), *b = heap(u * dk);
    double *v = heap(u * dv), *w = heap(u * dv), *state = heap(dk * dv);
    for (int64_t i = 0; i < s->n * dk; i++) {
        const int64_t t = s->first + i / dk, x = i % dk;
        q[i] = ring2_get(y, t * D_ + hk * dk + x);
        g[i] = oracle_gate(number_of(&a->a, t, H, h, dk, x, f->g_rows), ring2_get(&a->A_log, h),
                           ring2_get(&a->dt_bias, f->g_rows ? h * dk + x : h),
                           (double)a->gate_lower_bound);
    }
    for (int64_t i = 0; i < u * dk; i++) {
        const int64_t row = s->first * n + i / dk, x = i % dk, j = row % n;
        k[i] = ring2_get(y, row / n * D_ + (1 + j) * keys + hk * dk + x);
        b[i] = twice * oracle_sigmoid(number_of(&a->b, row, H, h, dk, x, f->beta_rows));
    }
    for (int64_t i = 0; i < u * dv; i++) {
        const int64_t row = s->first * n + i / dv, x = i % dv, j = row % n;
        v[i] = ring2_get(y, row / n * D_ + (1 + n) * keys + j * H * dv + h * dv + x);
        w[i] = f->write       ? oracle_sigmoid(ring2_get(&a->write_gate, (row * H + h) * dv + x))
               : f->beta_rows ? 1
                              : twice * oracle_sigmoid(ring2_get(&a->b, row * H + h));
    }
    for (int64_t i = 0; i < s->n; i++) oracle_l2norm(q + i * dk, q + i * dk, dk, GDN_NORM_L2, 1e-6);
    for (int64_t i = 0; i < u; i++) oracle_l2norm(k + i * dk, k + i * dk, dk, GDN_NORM_L2, 1e-6);
    for (int64_t i = 0; i < dk * dv; i++) {
        const int64_t at = a->state_layout ? i % dk * dv + i / dk : i;
        state[i] = ring2_get(&a->state, (s->slot * H + h) * dk * dv + at);
    }
    return (struct oracle_family){ .T = s->n,
                                   .K = (int)dk,
                                   .V = (int)dv,
                                   .n = (int)n,
                                   .scale = 1 / sqrt((double)dk),
                                   .q = q,
                                   .g = g,
                                   .k = k,
                                   .b = b,
                                   .v = v,
                                   .w = w,
                                   .state = state,
                                   .o = heap(s->n * dv) };
}

/* Puts what the call must give for a sequence into want. */
static void judge(const gdn_step_args *want, const gdn_tensor *y, const struct rule *f,
                  const struct sequence *s)
{
    const int64_t H = want->n_value_heads, dk = want->key_head_dim, dv = want->value_head_dim;
    for (int64_t h = 0; h < H; h++) {
        for (int64_t i = 0; i < s->n * dv && s->slot < 0; i++)
            ring2_set(&want->out, ((s->first + i / dv) * H + h) * dv + i % dv, 0);
        if (s->slot < 0) continue;
        const struct oracle_family r = head_of(want, y, f, s, h);
        oracle_family(&r);
        for (int64_t i = 0; i < s->n * dv; i++)
            ring2_set(&want->out, ((s->first + i / dv) * H + h) * dv + i % dv, r.o[i]);
        for (int64_t i = 0; i < dk * dv; i++) {
            const int64_t at = want->state_layout ? i % dk * dv + i / dk : i;
            ring2_set(&want->state, (s->slot * H + h) * dk * dv + at, r.state[i]);
        }
    }
}

static void beside_float64(int i)
{
    const struct rule *f = &rules[i % N_RULES];
    gdn_batch batch;
    const gdn_step_args a = draw(i, f, &batch), want = clone(&a);
    const struct sequence *s = batch.cu_seqlens.data ? packed_rows : padded_rows[a.x.size[1] > 1];
    const gdn_tensor y = convolve_alone(ring2_ctx(1), &want);
    for (int j = 0; j < N_SEQS; j++) judge(&want, &y, f, &s[j]);
    ring2_call_begin();
    may_write_all(&a);
    call(ring2_ctx(2), &a);
    ring2_call_end();
    expect_close("float64", &a, &want);
}

/* ---- The separate calls ---- */

static void apart_calls(int i)
{
    const struct rule *f = &rules[i % N_RULES];
    gdn_batch batch;
    gdn_step_args a = draw(i + 7, f, &batch);
    const bool packed = batch.cu_seqlens.data;
    const int64_t T = a.x.size[packed ? 0 : 1];
    if (i / 5 % 2) a.z = tokens_like(a.x.dtype, packed, T, a.n_value_heads, a.value_head_dim, 2);
    if (i / 5 % 3 == 1) a.norm_weight = vector(GDN_BF16, a.value_head_dim, -2, 2);
    if (i % 4 == 3) a.conv_weight.data = a.conv_state.data = NULL;
    a.activation = i % 2 ? GDN_ACT_SIGMOID : 0;
    a.norm = i % 5, a.head_map = i / 4 % 2;
    a.flags = i / 3 % 3 == 1 ? GDN_EXACT : 0;
    if (i % 7 == 5) batch.write = GDN_WRITE_NONE;
    if (i % 7 == 6) batch.pad_policy = GDN_PAD_KEEP;
    expect_apart(ring2_ctx(1 + i % 3), &a);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "beside_float64", beside_float64, 60 },
        { "apart_calls", apart_calls, 60 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
