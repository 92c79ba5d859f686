/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * The family of gdn.h: KDA, GDN-2, Gated DeltaProduct and their mixtures, beside float64, with
 * gates of any strength in single channels; and the guarantees that Gated DeltaNet has. Gradients
 * are in op_family_backward.c.
 */
#include <math.h>
#include <string.h>

#include "family_calls.h"
#include "oracle.h"
#include "oracle_family.h"
#include "ring2.h"
#include "ring2_device.h"

enum { HK = 2, HV = 4, N_SEQS = 2 };

/* ---- Calls --------------------------------------------------------------------------------- */

static const int64_t sizes[][2] = { { 40, 24 }, { 128, 48 }, { 16, 96 } };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Sequences of T and T / 2 tokens. */
static gdn_rule_args draw(const struct rule *f, int gate, int size, int64_t T)
{
    const int64_t K = sizes[size][0], V = sizes[size][1], N = T + T / 2, n = f->updates;
    const int64_t starts[] = { 0, T, N };
    gdn_rule_args a = gdn_rule_args_init();
    gdn_batch *batch = ring2_heap(sizeof *batch);
    *batch = gdn_batch_init();
    batch->cu_seqlens = ring2_indices(GDN_I64, N_SEQS + 1, starts);
    a.batch = batch;
    a.q = ring2_new(GDN_F32, 3, 3, N, HK, K, 0);
    a.k = ring2_new(GDN_F32, 0, 3, n * N, HK, K, 0);
    a.v = ring2_new(GDN_F32, 1, 3, n * N, HV, V, 0);
    a.g = f->g_rows ? ring2_new(GDN_F32, 2, 3, N, HV, K, 0) : ring2_new(GDN_F32, 0, 2, N, HV, 0, 0);
    a.beta = f->beta_rows ? ring2_new(GDN_F32, 0, 3, n * N, HV, K, 0)
                          : ring2_new(GDN_F32, 1, 2, n * N, HV, 0, 0);
    if (f->write) a.write_gate = ring2_new(GDN_F32, 2, 3, n * N, HV, V, 0);
    a.state = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, V, K);
    a.out = ring2_new(GDN_F32, 1, 3, N, HV, V, 0);
    a.norm = GDN_NORM_L2;
    a.updates = f->updates;
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.beta, 0, 1), ring2_fill(&a.state, -1, 1);
    if (f->write) ring2_fill(&a.write_gate, -1, 1);
    for (int64_t i = 0; i < ring2_count(&a.g); i++) {
        const int64_t row = f->g_rows ? i / K : i, t = row / HV;
        ring2_set(&a.g, i, gates[gate](t < T ? t : t - T, f->g_rows ? i % K : row % HV));
    }
    return a;
}

static gdn_rule_args clone(const gdn_rule_args *a)
{
    gdn_rule_args b = *a;
    gdn_tensor *all[] = { &b.q, &b.k, &b.v, &b.g, &b.beta, &b.write_gate, &b.state, &b.out };
    for (int i = 0; i < 8; i++) *all[i] = ring2_clone(all[i]);
    return b;
}

/* Tokens [first, first + n) of sequence 0, one sequence. */
static gdn_rule_args part(const gdn_rule_args *a, int64_t first, int64_t n)
{
    const int64_t u = a->updates;
    gdn_rule_args b = *a;
    gdn_tensor *tokens[] = { &b.q, &b.g, &b.out };
    gdn_tensor *rows[] = { &b.k, &b.v, &b.beta, &b.write_gate };
    for (int i = 0; i < 3; i++) *tokens[i] = ring2_narrow(tokens[i], 0, first, n);
    for (int i = 0; i < 4; i++)
        if (rows[i]->data) *rows[i] = ring2_narrow(rows[i], 0, first * u, n * u);
    b.state = ring2_narrow(&b.state, 0, 0, 1);
    b.batch = NULL;
    return b;
}

static void run(const gdn_rule_args *a, bool decode)
{
    gdn_ctx *ctx = ring2_ctx(1);
    ring2_call_begin();
    ring2_may_write(&a->out);
    ring2_may_write(&a->state);
    if (a->checkpoints.data) ring2_may_write(&a->checkpoints);
    ring2_status(ctx, "call", decode ? gdn_decode(ctx, a) : gdn_prefill(ctx, a), GDN_OK);
    ring2_call_end();
}

/* ---- Beside float64 ------------------------------------------------------------------------ */

/* Element [row][head][x] of a tensor that may have no channels, or be absent. */
static double at(const gdn_tensor *t, int64_t row, int64_t h, int64_t H, int64_t x, int64_t n,
                 double absent)
{
    if (!t->data) return absent;
    return ring2_get(t, t->ndim == 3 ? (row * H + h) * n + x : row * H + h);
}

/* Rows [first, first + n) of one head. */
static double *rows_of(const gdn_tensor *t, int64_t first, int64_t n, int64_t h, int64_t H,
                       int64_t size, double absent)
{
    double *x = ring2_heap((size_t)(n * size + 1) * sizeof *x);
    for (int64_t i = 0; i < n * size; i++)
        x[i] = at(t, first + i / size, h, H, i % size, size, absent);
    return x;
}

static double *normalised(double *x, int64_t n, int64_t K)
{
    for (int64_t i = 0; i < n; i++) oracle_l2norm(x + i * K, x + i * K, K, GDN_NORM_L2, 1e-6);
    return x;
}

/* Head h of sequence s, from a call's inputs. */
static struct oracle_family head_of(const gdn_rule_args *a, int s, int64_t h)
{
    const int64_t K = a->q.size[2], V = a->v.size[2], u = a->updates, hk = h / (HV / HK);
    const int64_t first = (int64_t)ring2_get(&a->batch->cu_seqlens, s);
    const int64_t T = (int64_t)ring2_get(&a->batch->cu_seqlens, s + 1) - first;
    const bool apart = a->write_gate.data || a->beta.ndim == 3; /* w is not beta */
    const gdn_tensor *write = apart ? &a->write_gate : &a->beta;
    struct oracle_family r = { .T = T, .K = (int)K, .V = (int)V, .n = (int)u };
    r.scale = 1 / sqrt((double)K);
    r.q = normalised(rows_of(&a->q, first, T, hk, HK, K, 0), T, K);
    r.k = normalised(rows_of(&a->k, first * u, T * u, hk, HK, K, 0), T * u, K);
    r.v = rows_of(&a->v, first * u, T * u, h, HV, V, 0);
    r.g = rows_of(&a->g, first, T, h, HV, K, 0);
    r.b = rows_of(&a->beta, first * u, T * u, h, HV, K, 1);
    r.w = rows_of(write, first * u, T * u, h, HV, V, 1);
    r.o = ring2_heap((size_t)(T * V + 1) * sizeof *r.o);
    r.state = ring2_heap((size_t)(K * V) * sizeof *r.state);
    for (int64_t i = 0; i < K * V; i++) r.state[i] = ring2_get(&a->state, (s * HV + h) * K * V + i);
    return r;
}

static double *zeros(const gdn_tensor *t)
{
    return ring2_heap((size_t)(ring2_count(t) + 1) * sizeof(double));
}

/* Compares with the limits of the vectors: a share of the root mean square. */
static void near(const char *what, const gdn_tensor *got, const double *want, double share)
{
    const int64_t n = ring2_count(got);
    double sum = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(ring2_get(got, i) - want[i]);
        sum += want[i] * want[i];
        worst = error <= worst ? worst : isnan(error) ? (double)INFINITY : error;
    }
    const double limit = share * sqrt(sum / (double)n) + 1e-6;
    CHECK(worst <= limit, "%s: off by %g, limit %g", what, worst, limit);
}

static void agrees(const struct rule *f, int gate, int size, int64_t T, uint32_t flags, bool decode)
{
    gdn_rule_args a = draw(f, gate, size, T);
    const int64_t K = sizes[size][0], V = sizes[size][1];
    double *out = ring2_heap((size_t)ring2_count(&a.out) * sizeof *out);
    double *state = ring2_heap((size_t)ring2_count(&a.state) * sizeof *state);
    a.flags = flags;
    for (int s = 0; s < N_SEQS; s++)
        for (int64_t h = 0; h < HV; h++) {
            struct oracle_family r = head_of(&a, s, h);
            const int64_t first = (int64_t)ring2_get(&a.batch->cu_seqlens, s);
            oracle_family(&r);
            for (int64_t i = 0; i < r.T * V; i++)
                out[((first + i / V) * HV + h) * V + i % V] = r.o[i];
            memcpy(state + (s * HV + h) * K * V, r.state, (size_t)(K * V) * sizeof *state);
        }
    run(&a, decode);
    near("out", &a.out, out, 2e-5);
    near("state", &a.state, state, 2e-5);
}

static void prefill(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 70, 0, false);
}
static void exact(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 40, GDN_EXACT, false);
}
static void decode(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 9, 0, true);
}

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

static double half_of(int32_t dtype) /* of a unit in the last place, and what sums add to it */
{
    return dtype == GDN_F32 ? 3e-5 : dtype == GDN_BF16 ? 3e-2 : 4e-3;
}

/* Every dtype, layout and shape of a call of gdn_decode: rows of 128 that are whole, and others;
 * states in slots, of each token or the last one, written to where they came from or elsewhere. */
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

/* gdn_step of a KDA layer is its convolution and gdn_decode of raw gates. */
static void steps(int i)
{
    enum { B = 3, W = 4, K = 64, V = 48, D = 2 * HK * K + HV * V };
    const int32_t io = i % 3, T = 1 + i / 2 % 2;
    const gdn_tensor out = ring2_new(io, 0, 4, B, T, HV, V);
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_step_args s = gdn_step_args_init();
    gdn_conv1d_args c = gdn_conv1d_args_init();
    gdn_rule_args a = gdn_rule_args_init();
    s.x = ring2_new(io, 0, 3, B, T, D, 0), ring2_fill(&s.x, -1, 1);
    s.conv_weight = ring2_new(GDN_F32, 0, 2, D, W, 0, 0), ring2_fill(&s.conv_weight, -1, 1);
    s.conv_state = ring2_new(GDN_F32, 0, 3, B, D, W - 1, 0), ring2_fill(&s.conv_state, -1, 1);
    s.a = ring2_new(io, 0, 4, B, T, HV, K), ring2_fill(&s.a, -1, 1);
    s.b = ring2_new(io, 0, 3, B, T, HV, 0), ring2_fill(&s.b, -1, 1);
    s.dt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0), ring2_fill(&s.dt_bias, -4, 1);
    s.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&s.A_log, -1, 1);
    s.state = ring2_new(GDN_F32, 0, 4, B, HV, V, K), ring2_fill(&s.state, -1, 1);
    s.gate_lower_bound = i % 2 ? -5 : 0;
    s.n_key_heads = HK, s.n_value_heads = HV, s.key_head_dim = K, s.value_head_dim = V;
    s.out = ring2_clone(&out);

    c.x = s.x, c.weight = s.conv_weight, c.state = ring2_clone(&s.conv_state);
    c.out = ring2_clone(&s.x), c.activation = GDN_ACT_SILU;
    a.g = s.a, a.beta = s.b, a.A_log = s.A_log, a.dt_bias = s.dt_bias;
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID, a.norm = GDN_NORM_L2;
    a.gate_lower_bound = s.gate_lower_bound, a.state = ring2_clone(&s.state);
    a.out = ring2_clone(&out);
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

/* Returns true if the backend has no kernels for the family in an op. */
static bool lacks(const char *what)
{
    if (ring2_on_device()) ring2_skip(what);
    return ring2_on_device();
}

/* ---- Guarantees ---------------------------------------------------------------------------- */

/* G4, G18: cuts at multiples of 16 tokens; a checkpoint has the bits of a call that ends there. */
static void cuts(int i)
{
    const gdn_rule_args a = draw(&rules[i % N_RULES], i / N_RULES, 0, 61);
    gdn_rule_args whole = clone(&a), first = clone(&a), rest, left = clone(&a);
    gdn_rule_args one = part(&whole, 0, 61);
    run(&one, false);
    rest = part(&first, 32, 29);
    first = part(&first, 0, 32);
    run(&first, false);
    const gdn_tensor after_32 = ring2_clone(&first.state);
    run(&rest, false);
    ring2_expect_bits("state", &rest.state, &one.state);
    gdn_tensor tail = ring2_narrow(&one.out, 0, 32, 29);
    ring2_expect_bits("out", &rest.out, &tail);

    gdn_batch batch = gdn_batch_init();
    const int64_t starts[] = { 0, 2 }, at_tokens[] = { 21, 32 };
    gdn_rule_args marked = part(&left, 0, 61), until = part(&a, 0, 21);
    batch.checkpoint_starts = ring2_indices(GDN_I64, 2, starts);
    batch.checkpoint_positions = ring2_indices(GDN_I64, 2, at_tokens);
    marked.batch = &batch;
    marked.checkpoints = ring2_new(GDN_F32, 0, 4, 2, HV, a.v.size[2], a.q.size[2]);
    run(&marked, false);
    ring2_expect_bits("state with checkpoints", &marked.state, &one.state);
    gdn_tensor c0 = ring2_narrow(&marked.checkpoints, 0, 0, 1);
    gdn_tensor c1 = ring2_narrow(&marked.checkpoints, 0, 1, 1);
    ring2_expect_bits("checkpoint after 32", &c1, &after_32);
    until = clone(&until);
    until.batch = NULL;
    run(&until, false);
    ring2_expect_bits("checkpoint after 21", &c0, &until.state);
}

/* G17, and G4 of gdn_decode: with GDN_EXACT any split over either op. */
static void splits(int i)
{
    const gdn_rule_args a = draw(&rules[i % N_RULES], i / N_RULES, 0, 30);
    for (int exactly = 0; exactly < 2; exactly++) {
        gdn_rule_args all = clone(&a), cut = clone(&a), one = part(&all, 0, 30);
        one.flags = exactly ? GDN_EXACT : 0;
        run(&one, !exactly);
        for (int64_t t = 0, n; t < 30; t += n) {
            n = t == 0 ? 11 : t == 11 ? 1 : 18;
            gdn_rule_args some = part(&cut, t, n);
            some.flags = one.flags;
            run(&some, !exactly || n == 1);
            gdn_tensor want = ring2_narrow(&one.out, 0, t, n);
            ring2_expect_bits("out", &some.out, &want);
        }
        gdn_tensor got = ring2_narrow(&cut.state, 0, 0, 1);
        ring2_expect_bits("state", &got, &one.state);
    }
}

/* G7: a channel that forgets forgets a NaN and 1e30, in its row alone. Updates of other channels
 * before it would carry them, so it forgets at the first token. */
static void forgets(int i)
{
    const int64_t K = sizes[0][0], V = sizes[0][1];
    for (int op = 0; op < 3; op++) {
        gdn_rule_args a = draw(&rules[i % 2], i / 2, 0, op == 1 ? 5 : 40);
        for (int64_t j = 0; j < ring2_count(&a.g); j++)
            if (j % K < 3 && (j / K / HV == 0)) ring2_set(&a.g, j, -(double)INFINITY);
        gdn_rule_args clean = clone(&a);
        a = part(&a, 0, a.q.size[0] * 2 / 3), clean = part(&clean, 0, clean.q.size[0] * 2 / 3);
        for (int64_t j = 0; j < HV * V; j++)
            for (int x = 0; x < 3; x++) ring2_set(&a.state, j * K + x, x == 0 ? (double)NAN : 1e30);
        a.flags = clean.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1), run(&clean, op == 1);
        for (int64_t j = 0; j < ring2_count(&a.out); j++)
            CHECK(fabs(ring2_get(&a.out, j) - ring2_get(&clean.out, j)) < 1e-5,
                  "op %d: out[%d] is %g, wanted %g", op, (int)j, ring2_get(&a.out, j),
                  ring2_get(&clean.out, j));
        for (int64_t j = 0; j < ring2_count(&a.state); j++)
            CHECK(fabs(ring2_get(&a.state, j) - ring2_get(&clean.state, j)) < 1e-5,
                  "op %d: state[%d] is %g, wanted %g", op, (int)j, ring2_get(&a.state, j),
                  ring2_get(&clean.state, j));
    }
}

/* G7: NaN in a token is forgotten when every channel forgets, in one token or token by token
 * while nothing is written. */
static void forgets_all(int i)
{
    const int64_t K = sizes[0][0];
    for (int op = 0; op < 3; op++) {
        gdn_rule_args a = draw(&rules[0], 1, 0, 60);
        a = part(&a, 0, 60);
        ring2_set(&a.v, 5 * HV * a.v.size[2], NAN);
        ring2_set(&a.k, 6 * HK * K, NAN);
        for (int64_t h = 0; h < HV; h++)
            for (int64_t x = 0; x < K; x++)
                ring2_set(&a.g, ((10 + (i && x % 2 ? 1 : 0)) * HV + h) * K + x, -(double)INFINITY);
        for (int64_t h = 0; i && h < HV; h++) ring2_set(&a.beta, 10 * HV + h, 0);
        a.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1);
        const int64_t first = 11 * HV * a.v.size[2];
        for (int64_t j = first; j < ring2_count(&a.out); j++)
            CHECK(isfinite(ring2_get(&a.out, j)), "op %d: out[%d] is %g", op, (int)j,
                  ring2_get(&a.out, j));
        for (int64_t j = 0; j < ring2_count(&a.state); j++)
            CHECK(isfinite(ring2_get(&a.state, j)), "op %d: state[%d]", op, (int)j);
    }
}

/* G8: where w is 0, v may be NaN; a row whose b and w are 0 writes nothing. G9: every bit of the
 * state stays where g, b and w are 0. */
static void writes_nothing(int i)
{
    for (int op = 0; op < 3; op++) {
        const struct rule *f = &rules[1];
        gdn_rule_args a = draw(f, 4, 0, 40);
        a = part(&a, 0, 40);
        gdn_rule_args b = clone(&a);
        for (int64_t j = 0; j < ring2_count(&a.v); j++) {
            if (j % 7) continue;
            ring2_set(&a.write_gate, j, 0), ring2_set(&b.write_gate, j, 0);
            ring2_set(&a.v, j, NAN);
        }
        a.flags = b.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1), run(&b, op == 1);
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);

        gdn_rule_args idle = draw(&rules[i], 0, 0, 40);
        idle = part(&idle, 0, 40);
        const gdn_tensor before = ring2_clone(&idle.state);
        ring2_fill_value(&idle.beta, 0);
        if (idle.write_gate.data) ring2_fill_value(&idle.write_gate, 0);
        if (idle.beta.ndim == 3 && !idle.write_gate.data) continue; /* w is 1 */
        ring2_fill_value(&idle.v, NAN);
        idle.flags = a.flags;
        run(&idle, op == 1);
        ring2_expect_bits("idle state", &idle.state, &before);
    }
}

/* G2: a sequence alone, and with several threads. */
static void alone(int i)
{
    gdn_rule_args a = draw(&rules[i % N_RULES], 4, i / N_RULES, 50), b = clone(&a), one = clone(&a);
    gdn_ctx *ctx = ring2_ctx(3);
    run(&a, false);
    ring2_status(ctx, "three threads", gdn_prefill(ctx, &b), GDN_OK);
    ring2_expect_bits("out", &b.out, &a.out);
    ring2_expect_bits("state", &b.state, &a.state);
    one = part(&one, 0, 50);
    run(&one, false);
    const gdn_tensor out = ring2_narrow(&a.out, 0, 0, 50), state = ring2_narrow(&a.state, 0, 0, 1);
    ring2_expect_bits("alone", &one.out, &out);
    ring2_expect_bits("state alone", &one.state, &state);
}

/* G19 and G20: a tree's tokens have the bits of their chains; a record, folded, gives them. */
static void drafts(int i)
{
    enum { T = 5 };
    static const int64_t parents[T] = { -1, 0, 0, 2, 1 }, path[] = { 0, 2, 3 };
    if (lacks("trees and records of the family: not on a GPU")) return;
    const struct rule *f = &rules[i % 2];
    const int64_t K = sizes[0][0], V = sizes[0][1];
    gdn_rule_args a = draw(f, 4, 0, T), chain;
    a.norm = GDN_NORM_NONE; /* records hold normalised keys; here they are as given */
    gdn_rule_args tree = part(&a, 0, T), start = clone(&tree);
    gdn_batch batch = gdn_batch_init();
    const int64_t lengths[] = { 0, T }, zero[] = { 0 };
    start.batch = NULL;
    batch.cu_seqlens = ring2_indices(GDN_I64, 2, lengths);
    batch.read_slots = ring2_indices(GDN_I64, 1, zero);
    batch.parents = ring2_indices(GDN_I64, T, parents);
    batch.parents.ndim = 2, batch.parents.size[0] = 1, batch.parents.size[1] = T;
    batch.parents.stride[0] = T, batch.parents.stride[1] = 1;
    batch.write = GDN_WRITE_NONE;
    tree.batch = &batch;
    tree.record_k = ring2_new(GDN_F32, 0, 4, 1, 8, HK, K);
    tree.record_u = ring2_new(GDN_F32, 0, 4, 1, 8, HV, V);
    tree.record_g = ring2_new(GDN_F32, 0, 4, 1, 8, HV, K);
    tree.record_count = ring2_indices(GDN_I64, 1, zero);
    ring2_status(ring2_ctx(1), "tree", gdn_decode(ring2_ctx(1), &tree), GDN_OK);
    for (int j = 0; j < 3; j++) { /* the accepted chain, one call for each token */
        chain = part(&start, path[j], 1);
        chain.state = start.state;
        run(&chain, true);
        const gdn_tensor want = ring2_narrow(&tree.out, 0, path[j], 1);
        ring2_expect_bits("out of a tree", &chain.out, &want);
    }
    gdn_record_commit_args c = gdn_record_commit_args_init();
    gdn_record_fold_args d = gdn_record_fold_args_init();
    gdn_batch slots = gdn_batch_init();
    const int64_t accepted[] = { 3 };
    slots.read_slots = batch.read_slots;
    c.record_k = d.record_k = tree.record_k, c.record_u = d.record_u = tree.record_u;
    c.record_g = d.record_g = tree.record_g, c.record_count = d.record_count = tree.record_count;
    c.n_accepted = ring2_indices(GDN_I64, 1, accepted);
    c.path = ring2_indices(GDN_I64, 3, path);
    c.path.ndim = 2, c.path.size[0] = 1, c.path.size[1] = 3;
    c.path.stride[0] = 3, c.path.stride[1] = 1;
    c.batch = d.batch = &slots;
    d.state = tree.state;
    ring2_status(ring2_ctx(1), "commit", gdn_record_commit(ring2_ctx(1), &c), GDN_OK);
    ring2_status(ring2_ctx(1), "fold", gdn_record_fold(ring2_ctx(1), &d), GDN_OK);
    ring2_expect_bits("folded state", &tree.state, &start.state);
}

/* Summaries: M S + U is the final state. */
static void summaries(int i)
{
    if (lacks("summaries of the family: not on a GPU")) return;
    const struct rule *f = &rules[i % N_RULES];
    gdn_rule_args a = draw(f, i / N_RULES, 0, 45);
    const int64_t K = sizes[0][0], V = sizes[0][1];
    gdn_summary_args s = gdn_summary_args_init();
    gdn_summary_apply_args p = gdn_summary_apply_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    s.k = a.k, s.v = a.v, s.g = a.g, s.beta = a.beta, s.write_gate = a.write_gate;
    s.updates = a.updates, s.norm = a.norm, s.batch = a.batch;
    s.M = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, K, K);
    s.U = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, V, K);
    p.M = s.M, p.U = s.U, p.state = ring2_clone(&a.state), p.state_out = p.state;
    ring2_status(ctx, "summary", gdn_summary(ctx, &s), GDN_OK);
    ring2_status(ctx, "apply", gdn_summary_apply(ctx, &p), GDN_OK);
    run(&a, false);
    near("M S + U", &p.state, ring2_doubles(&a.state), 2e-5);
}

/* ---- Raw gates, refusals ------------------------------------------------------------------- */

/* Raw gates inside a call have the bits of gdn_gates() before it (on a GPU a bound is multiplied at
 * another place). And the gradients of gdn_gates(). */
static void raw(int bounded)
{
    gdn_rule_args a = draw(&rules[0], 0, 0, 40), b;
    gdn_gates_args g = gdn_gates_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    const int64_t K = sizes[0][0];
    ring2_fill(&a.g, -3, 3), ring2_fill(&a.beta, -3, 3);
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID;
    a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&a.A_log, -1, 1.5);
    a.dt_bias = ring2_new(GDN_F32, 3, 2, HV, K, 0, 0), ring2_fill(&a.dt_bias, -4, 1);
    a.gate_lower_bound = bounded ? -5 : 0;
    b = clone(&a);
    b.gate = GDN_GATE_LOG, b.beta_kind = GDN_BETA_GIVEN, b.gate_lower_bound = 0;
    b.A_log.data = b.dt_bias.data = NULL;
    g.a = a.g, g.b = a.beta, g.A_log = a.A_log, g.dt_bias = a.dt_bias, g.g = b.g, g.beta = b.beta;
    g.gate_lower_bound = a.gate_lower_bound;
    ring2_status(ctx, "gdn_gates", gdn_gates(ctx, &g), GDN_OK);
    for (int64_t j = 0; j < ring2_count(&b.g); j++) {
        const int64_t h = j / K % HV;
        const double want =
            oracle_gate(ring2_get(&a.g, j), ring2_get(&a.A_log, h),
                        ring2_get(&a.dt_bias, h * K + j % K), (double)a.gate_lower_bound);
        CHECK(fabs(ring2_get(&b.g, j) - want) <= 1e-5 * (1 + fabs(want)), "g[%d] is %g, wanted %g",
              (int)j, ring2_get(&b.g, j), want);
    }
    run(&a, false), run(&b, false);
    near("out", &a.out, ring2_doubles(&b.out), 1e-6);
    near("state", &a.state, ring2_doubles(&b.state), 1e-6);
    if (!bounded || !ring2_on_device()) {
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);
    }

    gdn_gates_backward_args back = gdn_gates_backward_args_init();
    back.a = a.g, back.A_log = a.A_log, back.dt_bias = a.dt_bias, back.dg = ring2_clone(&a.g);
    back.gate_lower_bound = a.gate_lower_bound;
    ring2_fill(&back.dg, -1, 1);
    back.da = ring2_clone(&a.g), back.dA_log = ring2_clone(&a.A_log);
    back.ddt_bias = ring2_clone(&a.dt_bias);
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, &back), GDN_OK);
    double *da = zeros(&back.da), *dA = zeros(&back.dA_log), *ddt = zeros(&back.ddt_bias);
    for (int64_t j = 0; j < ring2_count(&back.dg); j++) {
        const int64_t h = j / K % HV;
        double by_A;
        da[j] = oracle_gate_slope(ring2_get(&a.g, j), ring2_get(&a.A_log, h),
                                  ring2_get(&a.dt_bias, h * K + j % K), (double)a.gate_lower_bound,
                                  &by_A);
        da[j] *= ring2_get(&back.dg, j);
        dA[h] += by_A * ring2_get(&back.dg, j);
        ddt[h * K + j % K] += da[j];
    }
    near("da", &back.da, da, 5e-5);
    near("dA_log", &back.dA_log, dA, 5e-5);
    near("ddt_bias", &back.ddt_bias, ddt, 5e-5);
}

/* gdn_gates and its gradients with b per head or channel, rows of 16 bits that are padded, and A_log
 * absent with a bound. */
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

static void refuse(const gdn_rule_args *a, gdn_status status, const char *name)
{
    ring2_refused(ring2_ctx(1), GDN_OP_PREFILL, a, RING2_STRUCT, status, name);
}

static void refusals(int i)
{
    (void)i;
    const gdn_rule_args a = draw(&rules[0], 0, 0, 20), two = draw(&rules[2], 0, 0, 20);
    gdn_rule_args b = a;
    b.g.size[2]--, refuse(&b, GDN_E_SHAPE, "g:");
    b = a, b.beta.size[0]--, refuse(&b, GDN_E_SHAPE, "beta:");
    b = a, b.updates = 2, refuse(&b, GDN_E_SHAPE, "k:");
    b = a, b.updates = 9, refuse(&b, GDN_E_ARG, "updates:");
    b = a, b.write_gate = a.beta, refuse(&b, GDN_E_SHAPE, "write_gate:");
    b = a, b.gate = GDN_GATE_RAW, refuse(&b, GDN_E_ARG, "A_log:");
    b.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), b.dt_bias = b.A_log;
    refuse(&b, GDN_E_SHAPE, "dt_bias:");
    b = two, b.k = ring2_narrow(&two.k, 0, 0, two.k.size[0] - 1), refuse(&b, GDN_E_SHAPE, "k:");
    b = two, b.out = two.k, refuse(&b, GDN_E_SHAPE, "out:");
}

int main(int argc, char **argv)
{
    enum { ALL = N_RULES * N_GATES };
    static const struct ring2_cases tests[] = {
        { "prefill", prefill, ALL * N_SIZES },
        { "exact", exact, ALL },
        { "decode", decode, ALL * N_SIZES },
        { "forms", forms, 120 },
        { "steps", steps, 6 },
        { "cuts", cuts, ALL },
        { "splits", splits, ALL },
        { "forgets", forgets, 2 * N_GATES },
        { "forgets_all", forgets_all, 2 },
        { "writes_nothing", writes_nothing, N_RULES },
        { "alone", alone, N_RULES * N_SIZES },
        { "drafts", drafts, 2 },
        { "summaries", summaries, ALL },
        { "raw", raw, 2 },
        { "raw_rows", raw_rows, 12 },
        { "refusals", refusals, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
