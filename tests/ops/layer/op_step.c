/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/*
 * gdn_step: the bits of the separate calls, over cases in which every pair of levels meets; and a
 * float64 composition of the oracle's pieces.
 */
#include "step_calls.h"

/* ---- Generated cases ---- */

enum {
    ACT = N_BATCH_FACTORS,
    STATE,
    CONV,
    SIZE,
    LAYOUT,
    MAP,
    TAPS,
    LENGTH,
    GATES,
    KIND,
    NORMED,
    EXACT,
    N_FACTORS
};

static const struct ring2_factor factors[N_FACTORS - N_BATCH_FACTORS] = {
    [ACT - N_BATCH_FACTORS] = { 3, { "f32", "bf16", "f16" } },
    [STATE - N_BATCH_FACTORS] = { 5, { "S=f32", "S=bf16", "S=f16", "S=i8", "S=e4m3" } },
    [CONV - N_BATCH_FACTORS] = { 3, { "C=f32", "C=bf16", "C=f16" } },
    [SIZE - N_BATCH_FACTORS] = { 5, { "1/1x16/24", "2/4x64", "1/3x5/3", "2/2x128", "1/2x200/40" } },
    [LAYOUT - N_BATCH_FACTORS] = { 2, { "vk", "kv" } },
    [MAP - N_BATCH_FACTORS] = { 2, { "", "interleaved" } },
    [TAPS - N_BATCH_FACTORS] = { 3, { "W2", "W4", "W16" } },
    [LENGTH - N_BATCH_FACTORS] = { 2, { "S=W-1", "S=W+2" } },
    [GATES - N_BATCH_FACTORS] = { 2, { "gates=f32", "gates=A" } },
    [KIND - N_BATCH_FACTORS] = { 3, { "", "bound", "twice" } },
    [NORMED - N_BATCH_FACTORS] = { 4, { "", "norm", "z", "weight" } },
    [EXACT - N_BATCH_FACTORS] = { 2, { "", "exact" } },
};
/* The last ones are levels of some cases once more. */
enum { N_SIZES = 5, N_ALL_SIZES = 7 };
static const int sizes[N_ALL_SIZES][4] = { { 1, 1, 16, 24 },   { 2, 4, 64, 64 },  { 1, 3, 5, 3 },
                                           { 2, 2, 128, 128 }, { 1, 2, 200, 40 }, { 1, 2, 64, 512 },
                                           { 1, 1, 20, 1000 } };

static const int taps[3] = { 2, 4, 16 };

/* States are in place: three ways to have slots are left. */
static bool allowed(int i, int a, int j, int b)
{
    const int slots = i == SLOTS ? a : j == SLOTS ? b : IN_PLACE;
    if (slots == SEPARATE || slots == OUT_ONLY || slots == READ_SEPARATE) return false;
    return !ring2_batch_clash(i, a, j, b) && !ring2_batch_clash(j, b, i, a);
}

static void make_states(gdn_step_args *a, const struct ring2_batch *b, const int *level)
{
    const int64_t S = taps[level[TAPS]] - 1 + 3 * level[LENGTH];
    const int64_t channels = a->x.size[a->x.ndim - 1];
    const int64_t Hv = a->n_value_heads, k = a->key_head_dim, v = a->value_head_dim;
    const int64_t gap = level[VIEW] == GAPS ? 4 : 0;
    if (!ring2_batch_has_state(b)) return;
    a->state = level[LAYOUT] ? ring2_new(level[STATE], gap, 4, b->P, Hv, k, v)
                             : ring2_new(level[STATE], gap, 4, b->P, Hv, v, k);
    a->conv_state = ring2_new(level[CONV], gap, 3, b->P, channels, S, 0);
    ring2_fill(&a->conv_state, -1, 1);
    if (level[STATE] <= GDN_F16) {
        ring2_fill(&a->state, -0.5, 0.5);
        return;
    }
    a->state_scales = ring2_new(GDN_F32, 0, 3, b->P, Hv, v, 0);
    ring2_fill(&a->state_scales, 0.01, 0.02);
    for (int64_t i = 0; i < ring2_count(&a->state); i++)
        *(uint8_t *)ring2_element(&a->state, i) = (uint8_t)(1 + ring2_below(50));
}

static void make_weights(gdn_step_args *a, const int *level, int64_t channels, int number)
{
    a->conv_weight = ring2_new(level[CONV], 0, 2, channels, taps[level[TAPS]], 0, 0);
    ring2_fill(&a->conv_weight, -0.5, 0.5);
    if (number % 3) a->conv_bias = vector(GDN_F32, channels, -0.1, 0.1);
    a->A_log = vector(GDN_F32, a->n_value_heads, -1, 1);
    if (number % 5) a->dt_bias = vector(level[ACT], a->n_value_heads, -1, 1);
    if (level[NORMED] % 2) a->norm_weight = vector(level[CONV], a->value_head_dim, -2, 2);
}

static void run_case(const int *level, int number)
{
    struct ring2_batch b;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_step_args a = gdn_step_args_init();
    const int *s = sizes[level[SIZE]];
    const int64_t channels = 2 * s[0] * s[2] + s[1] * s[3];
    const int32_t A = level[ACT], other = A == GDN_BF16 ? GDN_F16 : GDN_BF16;
    const int32_t gates = !level[GATES] ? GDN_F32 : number % 3 ? A : other;
    a.n_key_heads = s[0], a.n_value_heads = s[1], a.key_head_dim = s[2], a.value_head_dim = s[3];
    ring2_batch_make(&b, level);
    a.x = ring2_batch_rows(&b, A, level[VIEW] == FUSED ? channels + 12 : channels, 0);
    if (level[VIEW] == FUSED) a.x = ring2_narrow(&a.x, a.x.ndim - 1, 4, channels);
    a.a = ring2_batch_rows(&b, gates, s[1], 0), a.b = ring2_batch_rows(&b, gates, s[1], 0);
    ring2_fill(&a.x, -2, 2), ring2_fill(&a.a, -3, 3), ring2_fill(&a.b, -3, 3);
    a.out = ring2_batch_rows(&b, A, s[1], s[3]);
    if (level[NORMED] % 3) {
        a.z = ring2_batch_rows(&b, A, s[1], s[3]);
        ring2_fill(&a.z, -2, 2);
    }
    make_states(&a, &b, level);
    make_weights(&a, level, channels, number);
    if (number % 6 == 5) a.conv_weight.data = a.conv_bias.data = a.conv_state.data = NULL;
    a.state_layout = level[LAYOUT];
    a.head_map = level[MAP];
    a.gate_lower_bound = level[KIND] == 1 ? -4 : 0;
    a.beta_kind = level[KIND] == 2 ? GDN_BETA_TWICE_SIGMOID : 0;
    a.norm = number % 5;
    a.activation = number % 3; /* with a z or without one */
    a.flags = level[EXACT] ? GDN_EXACT : 0;
    a.rounding = number % 7 == 3;
    a.seed = (uint64_t)number;
    a.batch = &b.batch;
    if (number % 2) {
        ring2_give_workspace(ctx, GDN_OP_STEP, &a);
    }
    expect_apart(ctx, &a);
}

static bool begin_case(const int *row, int number, bool again)
{
    char name[240];
    int level[N_FACTORS];
    memcpy(level, row, sizeof level);
    if (again) level[SIZE] = 0; /* it has no name there */
    ring2_name_case(level, factors, N_FACTORS - N_BATCH_FACTORS, name, sizeof name);
    if (!again) return ring2_begin("step %03d%s", number, name);
    return ring2_begin("step %03d K%d V%d, else%s", number, sizes[row[SIZE]][2],
                       sizes[row[SIZE]][3], name);
}

static void run_cases(void)
{
    static int rows[300][RING2_MAX_FACTORS];
    int levels[N_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    for (int i = 0; i < N_FACTORS; i++)
        levels[i] = i < N_BATCH_FACTORS ? ring2_batch_factors[i].n : factors[i - N_BATCH_FACTORS].n;
    const int few = ring2_pairs(&f, rows, 300);
    const int n = ring2_pairs_again(&f, rows, few, 300, SIZE, N_SIZES, N_ALL_SIZES);
    for (int i = 0; i < n; i++) {
        if (!begin_case(rows[i], i, i >= few)) continue;
        run_case(rows[i], i);
        ring2_end();
    }
}

/* ---- What engines call ---- */

/* Gives sequences every other slot, in falling order. each: every token gets a slot. back: one
 * of these slots is the one that the sequence starts from. */
static void give_slots(gdn_step_args *a, gdn_batch *t, int64_t B, int64_t T, bool each, bool back)
{
    t->read_slots = ring2_new(GDN_I32, 0, 1, B, 0, 0, 0);
    for (int64_t s = 0; s < B; s++)
        ring2_set(&t->read_slots, s, s == 1 ? -1 : (double)(2 * (B - 1 - s)));
    if (!each) return;
    t->write = GDN_WRITE_EACH;
    t->write_slots = ring2_new(GDN_I64, 0, 2, B, T, 0, 0);
    for (int64_t i = 0; i < B * T; i++) {
        const bool own = back && i % T == (i / T) % T;
        ring2_set(&t->write_slots, i,
                  i / T == 1 ? -1
                  : own      ? ring2_get(&t->read_slots, i / T)
                             : (double)(2 * B + i));
    }
    a->batch = t;
}

/* A device computes the call in one launch, whose kernel is `one`. If blocks that share q and k are
 * no cluster, they cannot move conv_state, and the separate kernels run. */
static void expect_kernel(const gdn_step_args *a, const char *one)
{
    const int32_t group = a->n_value_heads / a->n_key_heads;
    const bool together = group == 1 || (ring2_on_hopper() && group <= 8);
    const bool parts = !together && a->batch->write != GDN_WRITE_NONE;
    if (!ring2_on_device()) return;
    const char *const kernel = gdn_last_kernel(ring2_ctx(1));
    CHECK(strstr(kernel, parts ? "gdn_decode" : one) && parts == !strstr(kernel, "gdn_step"), "%s",
          kernel);
}

/* Calls that a device computes in one launch: sizes, layouts and dtypes of models; key heads
 * whose blocks are clusters, and others; 1 to 9 tokens. */
static void as_engines_call(int number)
{
    static const int shapes[][4] = { { 2, 4, 128, 128 }, { 1, 3, 64, 64 }, { 2, 2, 128, 64 },
                                     { 1, 4, 60, 104 },  { 4, 4, 8, 16 },  { 1, 9, 16, 32 },
                                     { 1, 8, 64, 128 },  { 1, 6, 100, 16 } };
    static const int64_t tokens[] = { 1, 4, 1, 2, 9, 1, 5, 8 };
    const int *s = shapes[number % 8], form = number / 8;
    const int64_t T = tokens[(number + form) % 8], B = 1 + number % 3 * 2, P = 2 * B + B * T;
    const int32_t A = number % 3, state = (number / 3 + form) % 3;
    const int64_t channels = 2 * s[0] * s[2] + s[1] * s[3];
    const int layout = number / 2 % 2, S = 3 + number % 4 / 3 * 2;
    int level[N_FACTORS] = { 0 };
    gdn_batch t = gdn_batch_init();
    gdn_step_args a = gdn_step_args_init();
    struct ring2_batch b = { .level = level, .P = P };
    a.n_key_heads = s[0], a.n_value_heads = s[1], a.key_head_dim = s[2], a.value_head_dim = s[3];
    a.x = ring2_new(A, number % 2 ? 0 : 5, 3, B, T, channels, 0);
    const int32_t gates[] = { GDN_F32, A == GDN_F16 ? GDN_BF16 : GDN_F16, A, A, A };
    a.a = ring2_new(gates[number % 5], 0, 3, B, T, s[1], 0);
    a.b = ring2_new(a.a.dtype, 0, 3, B, T, s[1], 0);
    a.out = ring2_new(A, number % 4 ? 0 : 3, 4, B, T, s[1], s[3]);
    ring2_fill(&a.x, -2, 2), ring2_fill(&a.a, -3, 3), ring2_fill(&a.b, -3, 3);
    level[SLOTS] = READ, level[LAYOUT] = layout, level[STATE] = state, level[TAPS] = 1;
    level[CONV] = (number + form) % 3, level[NORMED] = form % 4, level[ACT] = A;
    if (level[NORMED] % 3) {
        a.z = ring2_new(A, 0, 4, B, T, s[1], s[3]);
        ring2_fill(&a.z, -2, 2);
    }
    make_states(&a, &b, level);
    a.conv_state = ring2_new(level[CONV], 0, 3, P, channels, S, 0);
    if (number % 3 == 1) { /* channels side by side */
        a.conv_state = ring2_new(level[CONV], 0, 3, P, S, channels, 0);
        a.conv_state = ring2_swap(&a.conv_state, 1, 2);
    }
    ring2_fill(&a.conv_state, -1, 1);
    make_weights(&a, level, channels, number);
    a.state_layout = layout;
    a.batch = &t;
    if (number % 4) give_slots(&a, &t, B, T, number % 4 > 1, number % 4 == 3);
    t.pad_policy = number % 5 == 2 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    if (form == 3) t.write = number % 4 > 1 ? t.write : GDN_WRITE_NONE;
    a.flags = form == 1 ? GDN_EXACT : 0;
    expect_apart(ring2_ctx(1), &a);
    expect_kernel(&a, "gdn_step");
}

/* Calls that a device computes by cuda/layer/step_rows.cuh: one token, 16 bits, K = 128; with the
 * bits of the separate calls there too. Calls of fewer slots than sequences are excluded:
 * there another kernel skips sequences without a slot, and a CPU refuses. */
static void one_token(int number)
{
    static const int shapes[][4] = { { 2, 4, 128, 128 }, { 1, 3, 128, 128 }, { 2, 2, 128, 64 },
                                     { 1, 9, 128, 32 },  { 1, 8, 128, 128 }, { 3, 6, 128, 128 } };
    const int *s = shapes[number % 6], form = number / 6;
    const bool many = s[0] == 3, few = form == 4; /* many: blocks of whole heads */
    const int64_t B = many ? 47 : 1 + form, P = few ? B - 2 : 2 * B;
    const int64_t channels = 2 * s[0] * s[2] + s[1] * s[3];
    const int32_t A = GDN_BF16 + form % 2;
    int level[N_FACTORS] = { 0 };
    gdn_batch t = gdn_batch_init();
    gdn_step_args a = gdn_step_args_init();
    struct ring2_batch b = { .level = level, .P = P };
    level[SLOTS] = READ, level[TAPS] = 1, level[CONV] = level[ACT] = A;
    level[STATE] = number % 2 ? A : GDN_F32, level[NORMED] = s[3] == 128 ? form % 4 : 0;
    a.n_key_heads = s[0], a.n_value_heads = s[1], a.key_head_dim = s[2], a.value_head_dim = s[3];
    a.x = ring2_new(A, 0, 3, B, 1, channels, 0), a.out = ring2_new(A, 0, 4, B, 1, s[1], s[3]);
    a.a = ring2_new(form > 1 ? A : GDN_F32, 0, 3, B, 1, s[1], 0);
    a.b = ring2_new(a.a.dtype, 0, 3, B, 1, s[1], 0);
    ring2_fill(&a.x, -2, 2), ring2_fill(&a.a, -3, 3), ring2_fill(&a.b, -3, 3);
    if (level[NORMED] % 3) {
        a.z = ring2_new(A, 0, 4, B, 1, s[1], s[3]);
        ring2_fill(&a.z, -2, 2);
    }
    make_states(&a, &b, level);
    make_weights(&a, level, channels, number);
    const int32_t conv = number / 2 % 2 ? A : GDN_F32;
    a.conv_state = ring2_new(conv, 0, 3, P, channels, 3, 0);
    if (number / 3 % 2) {
        a.conv_state = ring2_new(conv, 0, 3, P, 3, channels, 0);
        a.conv_state = ring2_swap(&a.conv_state, 1, 2);
    }
    ring2_fill(&a.conv_state, -1, 1);
    if (form % 3 && !few) give_slots(&a, &t, B, 1, false, false);
    t.pad_policy = form == 2 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    if (form == 3) t.write = GDN_WRITE_NONE;
    a.batch = &t;
    if (few && !ring2_on_device()) {
        ring2_status(ring2_ctx(1), "fewer slots", gdn_step(ring2_ctx(1), &a), GDN_E_ARG);
        return;
    }
    expect_apart(ring2_ctx(1), &a);
    expect_kernel(&a, few ? "gdn_step_" : "gdn_step_rows");
}

/* ---- In float64 ---- */

/* Rows of m doubles of sequence b of [B][T]... */
static double *tokens_of(const gdn_tensor *t, int64_t b, int64_t T, int64_t m)
{
    double *y = ring2_heap((size_t)(T * m) * 8);
    for (int64_t i = 0; t->data && i < T * m; i++) y[i] = ring2_get(t, b * T * m + i);
    return y;
}

/* Computes one value head from rows of the convolution, into its columns of y [T][HV V]. The
 * limit includes the rounding of o before the norm. */
static void step_head(const struct layer *l, const gdn_step_args *a, int h, double *y)
{
    const size_t T = (size_t)l->T;
    double *q = ring2_heap(T * K * 8), *k = ring2_heap(T * K * 8), *v = ring2_heap(T * V * 8);
    double *alpha = ring2_heap(T * 8), *beta = ring2_heap(T * 8), *o = ring2_heap(T * V * 8);
    struct oracle_rule r = { .T = l->T,
                             .K = K,
                             .V = V,
                             .scale = 1 / sqrt(K),
                             .q = q,
                             .k = k,
                             .v = v,
                             .alpha = alpha,
                             .beta = beta,
                             .o = o,
                             .state = l->state + h * V * K };
    for (int64_t t = 0; t < l->T; t++) {
        const double *row = l->qkv + t * D;
        oracle_l2norm(q + t * K, row + h / R * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + HK * K + h / R * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * HK * K + h * V, V * 8);
        alpha[t] = exp(oracle_gate(l->alog[t * HV + h], ring2_get(&a->A_log, h),
                                   ring2_get(&a->dt_bias, h), 0));
        beta[t] = oracle_sigmoid(l->b[t * HV + h]);
        if (a->beta_kind == GDN_BETA_TWICE_SIGMOID) beta[t] *= 2;
    }
    oracle_rule(&r);
    for (int64_t t = 0; t < l->T; t++) {
        double *to = y + (t * HV + h) * V;
        memcpy(to, o + t * V, V * 8);
        if (a->z.data || a->norm_weight.data)
            oracle_rmsnorm_gated(to, to,
                                 a->norm_weight.data ? ring2_doubles(&a->norm_weight) : NULL,
                                 a->z.data ? l->z + (t * HV + h) * V : NULL,
                                 a->activation == GDN_ACT_SIGMOID, 1e-6, V);
    }
}

/* Sequence b of T tokens in slot b. `conv` is what gdn_conv1d() gives, which op_conv1d judges. */
static void step_sequence(const gdn_step_args *a, const gdn_tensor *conv, int64_t b,
                          struct model *m)
{
    gdn_block_args shared = gdn_block_args_init(); /* as block_model.h has the states */
    const int64_t T = a->x.size[1];
    shared.state = a->state, shared.state_layout = a->state_layout;
    struct layer l = { .a = &shared, .T = T };
    l.state = ring2_heap(HV * V * K * 8);
    l.qkv = tokens_of(conv, b, T, D);
    l.z = tokens_of(&a->z, b, T, HV * V);
    l.alog = tokens_of(&a->a, b, T, HV), l.b = tokens_of(&a->b, b, T, HV);
    move_states(&shared, &l, b, NULL);
    for (int h = 0; h < HV; h++) step_head(&l, a, h, m->out.want + b * T * HV * V);
    move_states(&shared, &l, b, m);
}

/* o is rounded before its norm: by half an ulp of its own, which may be a whole one of out's where
 * the scale takes it to the bottom of a binade. The errors of a row's sum of squares are those of
 * rounding V elements, of relative 2^-9 of bf16 at most: together as much again. */
static void make_norm_room(struct expected *e, int32_t dtype)
{
    for (int64_t i = 0; i < e->n; i++) e->room[i] = 4 * oracle_half_ulp(dtype, e->want[i]);
}

static void against_the_oracle(void)
{
    for (int i = 0; i < 3 * N_KINDS && !ring2_failed(); i++) {
        const struct kind *k = &kinds[i / 3];
        gdn_step_args a = make_call(k, 3, 1 + i % 3 * 4, 4);
        a.activation = i % 2 ? GDN_ACT_SIGMOID : GDN_ACT_SILU;
        a.beta_kind = i % 4 / 2 ? GDN_BETA_TWICE_SIGMOID : GDN_BETA_SIGMOID;
        const gdn_step_args b = clone(&a);
        const gdn_tensor conv = convolve_alone(ring2_ctx(1), &b);
        struct model m;
        expect_none(&m.out, &a.out, false);
        expect_none(&m.state, &a.state, true);
        for (int64_t s = 0; s < 3; s++) step_sequence(&a, &conv, s, &m);
        if (k->dtype != GDN_F32 && (k->z || k->weight)) make_norm_room(&m.out, k->dtype);
        call(ring2_ctx(2), &a);
        compare("out", &a.out, &m.out);
        compare("state", &a.state, &m.state);
        ring2_expect_bits("conv_state", &a.conv_state, &b.conv_state);
        ring2_free();
    }
}

/* GDN_BF16_PRODUCTS is about chunks: here it means nothing, whatever the dtype. */
static void no_notice(void)
{
    gdn_step_args a = make_call(&kinds[0], 2, 3, 2), b = clone(&a);
    a.flags = GDN_BF16_PRODUCTS;
    call(ring2_ctx(1), &a);
    call(ring2_ctx(1), &b);
    ring2_expect_bits("out", &a.out, &b.out);
    ring2_expect_bits("state", &a.state, &b.state);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "step: against the oracle", against_the_oracle },
        { "step: no notice of bf16 products", no_notice },
    };
    ring2_options(argc, argv);
    run_cases();
    static const struct ring2_cases engines[] = { { "step: as engines call", as_engines_call, 32 },
                                                  { "step: one token", one_token, 30 } };
    const int status = ring2_cases_main(argc, argv, engines, 2);
    return status ? status : ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
