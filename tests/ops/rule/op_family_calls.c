/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * Calls of the family in every dtype, layout and batch: gdn_decode as engines call it, gdn_step of
 * a KDA layer, and gdn_gates of channels.
 */
#include "family_calls.h"
#include "family_judge.h"
#include "gdn_record.h"

/* ---- Forms of a call ----------------------------------------------------------------------- */

enum { N_ROWS = 3, N_SLOTS = 20 };

/* A tensor of n rows for each of N_ROWS sequences, packed or padded. size 0: no last dimension. */
static gdn_tensor rows(int32_t dtype, int64_t gap, bool padded, int64_t n, int64_t H, int64_t size)
{
    gdn_tensor t;
    if (padded)
        t = size ? ring2_new(dtype, gap, 4, N_ROWS, n, H, size)
                 : ring2_new(dtype, gap, 3, N_ROWS, n, H, 0);
    else
        t = size ? ring2_new(dtype, gap, 3, N_ROWS * n, H, size, 0)
                 : ring2_new(dtype, gap, 2, N_ROWS * n, H, 0, 0);
    ring2_fill(&t, 0.1, 1);
    return t;
}

/* The same numbers packed, for the judge. */
static gdn_tensor packed(const gdn_tensor *t, bool padded)
{
    gdn_tensor p = t->data ? ring2_clone(t) : *t;
    if (!t->data || !padded) return p;
    p.size[0] *= p.size[1], p.stride[0] = p.stride[1];
    for (int i = 1; i < p.ndim - 1; i++) p.size[i] = p.size[i + 1], p.stride[i] = p.stride[i + 1];
    p.ndim--;
    return p;
}

/* Slot s of a pool as rows of V, of all heads. */
static void load_slot(double *to, const gdn_tensor *pool, int64_t s, bool kv, int64_t K, int64_t V)
{
    for (int64_t i = 0; i < HV * V * K; i++) {
        const int64_t h = i / (V * K), v = i / K % V, k = i % K;
        to[i] = ring2_get(pool, (s * HV + h) * V * K + (kv ? k * V + v : v * K + k));
    }
}

/* Returns half a unit in the last place, and what sums add to that. */
static double half_of(int32_t dtype)
{
    return dtype == GDN_F32 ? 3e-5 : dtype == GDN_BF16 ? 3e-2 : 4e-3;
}

/* Every dtype, layout and shape of a call of gdn_decode: whole rows of 128, and others. States
 * are in slots, of each token or of the last one, and are written in place or elsewhere. */
static void forms(int i)
{
    static const int64_t heads[][2] = { { 128, 128 }, { 64, 64 }, { 40, 24 }, { 256, 40 } };
    static const int64_t lengths[] = { 1, 2, 4, 7 };
    const struct rule *f = &rules[i % N_RULES];
    const int32_t io = i % 3, dtype = i / 3 % 3;
    const int64_t K = heads[i / 2 % 4][0], V = heads[i / 2 % 4][1], T = lengths[i / 4 % 4];
    const int64_t u = f->updates, gap = i % 7 == 3 ? 1 : 0;
    const bool padded = i % 4 < 3, kv = i / 2 % 2, each = padded && i % 5 == 2;
    const int64_t starts[] = { 0, T, 2 * T, 3 * T }, from[] = { 7, 2, 5 };
    gdn_rule_args a = gdn_rule_args_init(), judge;
    gdn_batch batch = gdn_batch_init(), of_judge = gdn_batch_init();
    a.q = rows(io, gap, padded, T, HK, K), a.k = rows(io, gap, padded, u * T, HK, K);
    a.v = rows(io, gap, padded, u * T, HV, V), a.out = rows(io, gap, padded, T, HV, V);
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    a.g = rows(i % 2 ? io : GDN_F32, gap, padded, T, HV, f->g_rows ? K : 0);
    ring2_fill(&a.g, -0.7, 0);
    a.beta = rows(GDN_F32, 0, padded, u * T, HV, f->beta_rows ? K : 0);
    if (f->write) a.write_gate = rows(io, gap, padded, u * T, HV, V);
    a.state = kv ? ring2_new(dtype, 4 * gap, 4, N_SLOTS + 12, HV, K, V)
                 : ring2_new(dtype, 4 * gap, 4, N_SLOTS + 12, HV, V, K);
    ring2_fill(&a.state, -1, 1);
    a.state_layout = kv ? GDN_STATE_KV : GDN_STATE_VK;
    a.norm = GDN_NORM_L2, a.updates = f->updates, a.batch = &batch;
    if (!padded) batch.cu_seqlens = ring2_indices(GDN_I32, N_ROWS + 1, starts);
    batch.read_slots = ring2_indices(i % 2 ? GDN_I64 : GDN_I32, N_ROWS, from);
    int64_t to[N_ROWS * 7];
    for (int64_t j = 0; j < N_ROWS * T; j++) to[j] = 8 + j; /* apart from what is read */
    if (each) {
        batch.write = GDN_WRITE_EACH;
        batch.write_slots = ring2_indices(GDN_I32, N_ROWS * T, to);
        batch.write_slots.ndim = 2;
        batch.write_slots.size[0] = N_ROWS, batch.write_slots.size[1] = T;
        batch.write_slots.stride[0] = T, batch.write_slots.stride[1] = 1;
    } else if (i % 3 == 1) {
        batch.write_slots = ring2_indices(GDN_I32, N_ROWS, to);
    }

    judge = a;
    gdn_tensor *of[] = { &judge.q, &judge.k, &judge.v, &judge.g, &judge.beta, &judge.write_gate };
    for (int j = 0; j < 6; j++) *of[j] = packed(of[j], padded);
    judge.batch = &of_judge;
    of_judge.cu_seqlens = ring2_indices(GDN_I64, N_ROWS + 1, starts);
    judge.state = ring2_new(GDN_F32, 0, 4, N_ROWS, HV, V, K);
    double *slot = ring2_heap((size_t)(HV * V * K) * sizeof *slot);
    for (int s = 0; s < N_ROWS; s++) {
        load_slot(slot, &a.state, from[s], kv, K, V);
        for (int64_t j = 0; j < HV * V * K; j++)
            ring2_set(&judge.state, s * HV * V * K + j, slot[j]);
    }
    run(&a, true);

    double *out = ring2_heap((size_t)(N_ROWS * T * HV * V) * sizeof *out);
    gdn_tensor ends = ring2_new(GDN_F32, 0, 4, N_ROWS, HV, V, K);
    double *want = zeros(&ends);
    for (int s = 0; s < N_ROWS; s++) {
        for (int64_t h = 0; h < HV; h++) {
            struct oracle_family r = head_of(&judge, s, h);
            oracle_family(&r);
            for (int64_t j = 0; j < T * V; j++)
                out[((s * T + j / V) * HV + h) * V + j % V] = r.o[j];
            memcpy(want + (s * HV + h) * K * V, r.state, (size_t)(K * V) * sizeof *want);
        }
        const int64_t last = each ? to[s * T + T - 1] : batch.write_slots.data ? to[s] : from[s];
        load_slot(slot, &a.state, last, kv, K, V);
        for (int64_t j = 0; j < HV * V * K; j++) ring2_set(&ends, s * HV * V * K + j, slot[j]);
    }
    near("out", &a.out, out, half_of(io));
    near("state", &ends, want, half_of(dtype));
}

/* One token of each sequence, with gates per channel: rows of 128 that are whole, states whose rows
 * are v, gates of any strength, raw ones, and NaN in channels that forget. */
static void one_token(int i)
{
    enum { K = 128, V = 32 };
    const int32_t io = i % 2 ? GDN_BF16 : GDN_F16, dtype = i / 2 % 2 ? io : GDN_F32;
    const int64_t starts[] = { 0, 1, 2, 3 }, from[] = { 7, 2, 5 }, to[] = { 9, 2, 8 };
    const bool raw = i / 4 % 2, bounded = i / 8 % 2, apart_to = i % 3 == 1;
    gdn_rule_args a = gdn_rule_args_init(), judge;
    gdn_batch batch = gdn_batch_init(), of_judge = gdn_batch_init();
    a.q = rows(io, 0, true, 1, HK, K), a.k = rows(io, 0, true, 1, HK, K);
    a.v = rows(io, 0, true, 1, HV, V), a.out = rows(io, 0, true, 1, HV, V);
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    a.g = rows(i % 3 ? GDN_F32 : io, 0, true, 1, HV, K);
    a.beta = rows(GDN_F32, 0, true, 1, HV, 0);
    for (int64_t h = 0; h < HV; h++) ring2_set(&a.beta, h, 0); /* sequence 0 writes nothing */
    ring2_fill(&a.g, -3, 3);
    for (int64_t j = 0; !raw && j < ring2_count(&a.g); j++)
        ring2_set(&a.g, j, j % 7 == 3 ? -(double)INFINITY : gates[j / K % N_GATES](j / K, j % K));
    if (raw) {
        a.gate = GDN_GATE_RAW;
        a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&a.A_log, -1, 1);
        a.dt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0), ring2_fill(&a.dt_bias, -2, 1);
        if (bounded) a.gate_lower_bound = -5;
    }
    a.state = ring2_new(dtype, 0, 4, N_SLOTS, HV, V, K), ring2_fill(&a.state, -1, 1);
    a.norm = GDN_NORM_L2, a.updates = 1, a.batch = &batch;
    batch.read_slots = ring2_indices(GDN_I32, N_ROWS, from);
    if (apart_to) batch.write_slots = ring2_indices(GDN_I32, N_ROWS, to);

    judge = a;
    gdn_tensor *of[] = { &judge.q, &judge.k, &judge.v, &judge.beta };
    for (int j = 0; j < 4; j++) *of[j] = packed(of[j], true);
    judge.g = ring2_new(GDN_F32, 0, 3, N_ROWS, HV, K, 0);
    for (int64_t j = 0; j < N_ROWS * HV * K; j++) {
        const double g = ring2_get(&a.g, j), bound = (double)a.gate_lower_bound;
        ring2_set(&judge.g, j,
                  raw ? oracle_gate(g, ring2_get(&a.A_log, j / K % HV),
                                    ring2_get(&a.dt_bias, j % (HV * K)), bound)
                      : g);
    }
    judge.batch = &of_judge;
    of_judge.cu_seqlens = ring2_indices(GDN_I64, N_ROWS + 1, starts);
    judge.state = ring2_new(GDN_F32, 0, 4, N_ROWS, HV, V, K);
    for (int64_t j = 0; j < N_ROWS * HV * V * K; j++) {
        const int64_t s = j / (HV * V * K), h = j / (V * K) % HV, x = j % K;
        const int64_t at = from[s] * HV * V * K + j % (HV * V * K);
        const bool forgets = !raw && ring2_get(&a.g, (s * HV + h) * K + x) < -104;
        ring2_set(&judge.state, j, forgets ? 0 : ring2_get(&a.state, at));
        if (forgets) ring2_set(&a.state, at, NAN);
    }
    run(&a, true);

    double *out = ring2_heap(N_ROWS * HV * V * sizeof *out);
    gdn_tensor ends = ring2_new(GDN_F32, 0, 4, N_ROWS, HV, V, K);
    double *want = zeros(&ends), *slot = ring2_heap(HV * V * K * sizeof *slot);
    for (int s = 0; s < N_ROWS; s++) {
        for (int64_t h = 0; h < HV; h++) {
            struct oracle_family r = head_of(&judge, s, h);
            oracle_family(&r);
            memcpy(out + (s * HV + h) * V, r.o, V * sizeof *out);
            memcpy(want + (s * HV + h) * V * K, r.state, V * K * sizeof *want);
        }
        load_slot(slot, &a.state, apart_to ? to[s] : from[s], false, K, V);
        for (int64_t j = 0; j < HV * V * K; j++) ring2_set(&ends, s * HV * V * K + j, slot[j]);
    }
    near("out", &a.out, out, half_of(io));
    near("state", &ends, want, half_of(dtype));
}

/* A layer of KDA. */
enum { STEP_B = 3, STEP_K = 64, STEP_V = 48, STEP_D = 2 * HK * STEP_K + HV * STEP_V };

static gdn_step_args draw_step(int32_t io, int64_t T, bool bounded)
{
    enum { B = STEP_B, W = 4, K = STEP_K, V = STEP_V, D = STEP_D };
    gdn_step_args s = gdn_step_args_init();
    s.x = ring2_new(io, 0, 3, B, T, D, 0), ring2_fill(&s.x, -1, 1);
    s.conv_weight = ring2_new(GDN_F32, 0, 2, D, W, 0, 0), ring2_fill(&s.conv_weight, -1, 1);
    s.conv_state = ring2_new(GDN_F32, 0, 3, B, D, W - 1, 0), ring2_fill(&s.conv_state, -1, 1);
    s.a = ring2_new(io, 0, 4, B, T, HV, K), ring2_fill(&s.a, -1, 1);
    s.b = ring2_new(io, 0, 3, B, T, HV, 0), ring2_fill(&s.b, -1, 1);
    s.dt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0), ring2_fill(&s.dt_bias, -4, 1);
    s.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&s.A_log, -1, 1);
    s.state = ring2_new(GDN_F32, 0, 4, B, HV, V, K), ring2_fill(&s.state, -1, 1);
    s.gate_lower_bound = bounded ? -5 : 0;
    s.n_key_heads = HK, s.n_value_heads = HV, s.key_head_dim = K, s.value_head_dim = V;
    s.out = ring2_new(io, 0, 4, B, T, HV, V);
    return s;
}

/* gdn_step of a KDA layer is its convolution and gdn_decode of raw gates. */
static void steps(int i)
{
    enum { K = STEP_K, V = STEP_V };
    const int32_t io = i % 3;
    const gdn_step_args s = draw_step(io, 1 + i / 2 % 2, i % 2);
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_conv1d_args c = gdn_conv1d_args_init();
    gdn_rule_args a = gdn_rule_args_init();
    c.x = s.x, c.weight = s.conv_weight, c.state = ring2_clone(&s.conv_state);
    c.out = ring2_clone(&s.x), c.activation = GDN_ACT_SILU;
    a.g = s.a, a.beta = s.b, a.A_log = s.A_log, a.dt_bias = s.dt_bias;
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID, a.norm = GDN_NORM_L2;
    a.gate_lower_bound = s.gate_lower_bound, a.state = ring2_clone(&s.state);
    a.out = ring2_clone(&s.out);
    gdn_tensor *qkv[] = { &a.q, &a.k, &a.v };
    for (int j = 0; j < 3; j++) {
        gdn_tensor part = ring2_narrow(&c.out, 2, j * HK * K, j < 2 ? HK * K : HV * V);
        part.ndim = 4, part.size[2] = j < 2 ? HK : HV, part.size[3] = j < 2 ? K : V;
        part.stride[2] = part.size[3], part.stride[3] = 1;
        *qkv[j] = part;
    }
    ring2_status(ctx, "gdn_step", gdn_step(ctx, &s), GDN_OK);
    ring2_status(ctx, "gdn_conv1d", gdn_conv1d(ctx, &c), GDN_OK);
    ring2_status(ctx, "gdn_decode", gdn_decode(ctx, &a), GDN_OK);
    near("out", &s.out, ring2_doubles(&a.out), half_of(io));
    near("state", &s.state, ring2_doubles(&a.state), half_of(io));
    near("conv_state", &s.conv_state, ring2_doubles(&c.state), 1e-6);
}

/* A record beside gdn_step, which accepts each token or is folded by it. */
static void steps_of_records(int i)
{
    enum { B = STEP_B, K = STEP_K, V = STEP_V, ROWS = 3, CALLS = 4 };
    const int64_t zeros_of[B] = { 0 };
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_step_args s = draw_step(i % 3, 1, i % 2), plain = s;
    gdn_record_fold_args f = gdn_record_fold_args_init();
    plain.state = ring2_clone(&s.state), plain.conv_state = ring2_clone(&s.conv_state);
    plain.out = ring2_clone(&s.out);
    s.record_k = ring2_new(GDN_F32, 0, 4, B, ROWS, HK, K);
    s.record_u = ring2_new(GDN_F32, 0, 4, B, ROWS, HV, V);
    s.record_g = ring2_new(GDN_F32, 0, 4, B, ROWS, HV, K);
    s.record_count = ring2_indices(GDN_I32, B, zeros_of);
    for (int t = 0; t < CALLS; t++) {
        ring2_status(ctx, "gdn_step", gdn_step(ctx, &s), GDN_OK);
        ring2_status(ctx, "without", gdn_step(ctx, &plain), GDN_OK);
        near("out", &s.out, ring2_doubles(&plain.out), half_of(i % 3));
    }
    f.state = s.state, f.record_k = s.record_k, f.record_u = s.record_u;
    f.record_g = s.record_g, f.record_count = s.record_count;
    ring2_status(ctx, "fold", gdn_record_fold(ctx, &f), GDN_OK);
    near("state", &s.state, ring2_doubles(&plain.state), 1e-5);
    near("conv_state", &s.conv_state, ring2_doubles(&plain.conv_state), 1e-6);
}

/* G21: a step on states of 8 bits is one on float32 states between two conversions. */
static void steps_of_8_bits(int i)
{
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_step_args s = draw_step(i % 3, 1 + i % 2, i % 2), wide = s;
    gdn_state_copy_args to = gdn_state_copy_args_init(), from = to;
    wide.out = ring2_clone(&s.out), wide.conv_state = ring2_clone(&s.conv_state);
    s.state = ring2_new(GDN_I8 + i % 3, 0, 4, STEP_B, HV, STEP_V, STEP_K);
    s.state_scales = ring2_new(GDN_F32, 0, 3, STEP_B, HV, STEP_V, 0);
    to.from_pool = from.to_pool = wide.state;
    to.to_pool = from.from_pool = s.state, to.to_scales = from.from_scales = s.state_scales;
    ring2_status(ctx, "to 8 bits", gdn_state_copy(ctx, &to), GDN_OK);
    ring2_status(ctx, "to float32", gdn_state_copy(ctx, &from), GDN_OK);
    ring2_status(ctx, "8 bits", gdn_step(ctx, &s), GDN_OK);
    ring2_status(ctx, "float32", gdn_step(ctx, &wide), GDN_OK);
    ring2_expect_bits("out", &s.out, &wide.out);
    to.to_pool = ring2_clone(&s.state), to.to_scales = ring2_clone(&s.state_scales);
    ring2_status(ctx, "wanted", gdn_state_copy(ctx, &to), GDN_OK);
    ring2_expect_bits("state", &s.state, &to.to_pool);
    ring2_expect_bits("scales", &s.state_scales, &to.to_scales);
}

/* ---- Gates --------------------------------------------------------------------------------- */

/* gdn_gates and its gradients with b per head or channel, rows of 16 bits that are padded, and
 * A_log absent with a bound. */
static void raw_rows(int i)
{
    enum { N = 37, H = 3 };
    static const int64_t Ks[] = { 1, 40, 128 };
    const int64_t K = Ks[i % 3], pad = i % 2 ? 5 : 0;
    const bool linear = i / 3 % 2, bounded = i / 6 % 2, b_rows = i / 2 % 2;
    const double factor = bounded ? 2 : 1;
    gdn_gates_args g = gdn_gates_args_init();
    gdn_gates_backward_args d = gdn_gates_backward_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    g.a = ring2_new(i % 3, pad, 3, N, H, K, 0), ring2_fill(&g.a, -3, 3);
    g.g = ring2_new(GDN_F32, 1, 3, N, H, K, 0);
    g.b = b_rows ? ring2_new(i % 3, 0, 3, N, H, K, 0) : ring2_new(i % 3, pad, 2, N, H, 0, 0);
    g.beta = ring2_clone(&g.b), g.beta.dtype = g.b.dtype;
    ring2_fill(&g.b, -3, 3);
    g.dt_bias = ring2_new(GDN_F32, 3, 2, H, K, 0, 0), ring2_fill(&g.dt_bias, -2, 1);
    if (!bounded) g.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), ring2_fill(&g.A_log, -1, 1);
    if (bounded) g.gate_lower_bound = -5, g.beta_kind = GDN_BETA_TWICE_SIGMOID;
    if (linear) g.gate = GDN_GATE_LINEAR;
    d.a = g.a, d.b = g.b, d.A_log = g.A_log, d.dt_bias = g.dt_bias, d.gate = g.gate;
    d.gate_lower_bound = g.gate_lower_bound, d.beta_kind = g.beta_kind;
    d.dg = ring2_clone(&g.g), ring2_fill(&d.dg, -1, 1), d.da = ring2_clone(&g.g);
    d.dbeta = b_rows ? ring2_new(GDN_F32, 0, 3, N, H, K, 0) : ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    ring2_fill(&d.dbeta, -1, 1), d.db = ring2_clone(&d.dbeta);
    d.ddt_bias = ring2_clone(&g.dt_bias);
    if (!bounded) d.dA_log = ring2_clone(&g.A_log);
    ring2_status(ctx, "gdn_gates", gdn_gates(ctx, &g), GDN_OK);
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, &d), GDN_OK);

    double *want = zeros(&g.g), *da = zeros(&d.da), *ddt = zeros(&g.dt_bias);
    double *dA = ring2_heap(H * sizeof *dA), *beta = zeros(&g.beta), *db = zeros(&d.db);
    for (int64_t j = 0; j < ring2_count(&g.g); j++) {
        const int64_t h = j / K % H;
        const double A_log = bounded ? 0 : ring2_get(&g.A_log, h), x = ring2_get(&g.a, j);
        const double dt = ring2_get(&g.dt_bias, h * K + j % K), bound = (double)g.gate_lower_bound;
        double by_A, dg = ring2_get(&d.dg, j);
        want[j] = oracle_gate(x, A_log, dt, bound);
        if (linear) want[j] = exp(want[j]), dg *= want[j];
        da[j] = oracle_gate_slope(x, A_log, dt, bound, &by_A) * dg;
        dA[h] += by_A * dg, ddt[h * K + j % K] += da[j];
    }
    for (int64_t j = 0; j < ring2_count(&g.b); j++) {
        const double s = 1 / (1 + exp(-ring2_get(&g.b, j)));
        beta[j] = factor * s, db[j] = factor * s * (1 - s) * ring2_get(&d.dbeta, j);
    }
    near("g", &g.g, want, 1e-5);
    near("beta", &g.beta, beta, g.beta.dtype == GDN_F32 ? 1e-5 : 1e-2);
    near("da", &d.da, da, 5e-5), near("db", &d.db, db, 5e-5);
    near("ddt_bias", &d.ddt_bias, ddt, 5e-5);
    if (!bounded) near("dA_log", &d.dA_log, dA, 5e-5);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "forms", forms, 120 },
        { "one_token", one_token, 24 },
        { "steps", steps, 6 },
        { "steps_of_records", steps_of_records, 6 },
        { "steps_of_8_bits", steps_of_8_bits, 6 },
        { "raw_rows", raw_rows, 12 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
