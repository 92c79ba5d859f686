/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 padded */
/* runs as wide with TEST_V=300: cpu once, gpu --every=2, sm_80 padded --every=2 */
/*
 * gdn_block against a float64 composition of the oracle's pieces, prefill then decode, batches,
 * windows, and its guarantees by name.
 */
#include "block_model.h"

/* ---- Calls ---- */

/* in_proj_qkvz; in_proj_qkv; in_proj_q and the others; those, of KDA, with low ranks; KDA without,
 * whose gates have a bound. */
enum form { GROUPED, JOINED, APART, KDA, KDA_BOUND };

struct kind {
    int32_t dtype, weights, states, layout;
    enum form form;
    int64_t conv_rows; /* S */
    int64_t taps;
    int32_t activation, beta_kind;
};

static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, GROUPED, 3, W, 0, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_KV, JOINED, 4, W, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, GROUPED, 4, W, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, JOINED, 7, W, 0, 0 },
    { GDN_F16, GDN_BF16, GDN_F32, GDN_STATE_KV, GROUPED, 3, W, 0, 0 },
    { GDN_F32, GDN_F16, GDN_F32, GDN_STATE_KV, JOINED, 3, W, 0, 0 },
    { GDN_BF16, GDN_F32, GDN_BF16, GDN_STATE_VK, GROUPED, 3, W, 0, 0 },
    { GDN_F16, GDN_F16, GDN_F16, GDN_STATE_KV, JOINED, 4, W, 0, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, JOINED, 17, 16, 0, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, GROUPED, 3, W, GDN_ACT_SIGMOID, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, JOINED, 3, W, 0, GDN_BETA_TWICE_SIGMOID },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, JOINED, 3, W, GDN_ACT_SIGMOID,
      GDN_BETA_TWICE_SIGMOID },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, APART, 3, W, 0, GDN_BETA_TWICE_SIGMOID },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, KDA, 3, W, GDN_ACT_SIGMOID, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_KV, KDA, 4, W, GDN_ACT_SIGMOID, 0 },
    { GDN_F32, GDN_BF16, GDN_F32, GDN_STATE_KV, KDA_BOUND, 3, W, 0, 0 },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, Z_RANK = 8, A_RANK = 24 };

static gdn_tensor weight(int32_t dtype, int64_t rows, int64_t columns, double size)
{
    gdn_tensor t = columns ? ring2_new(dtype, 0, 2, rows, columns, 0, 0)
                           : ring2_new(dtype, 0, 1, rows, 0, 0, 0);
    ring2_fill(&t, -size, size);
    return t;
}

static void give_projections(gdn_block_args *a, const struct kind *k)
{
    const int32_t w = k->weights;
    const int64_t n_a = k->form < KDA ? HV : HV * K;
    const bool low = k->form == KDA;
    if (k->form == GROUPED) {
        a->in_proj_qkvz = weight(w, D + HV * V, HIDDEN, 0.4);
        a->in_proj_ba = weight(w, 2 * HV, HIDDEN, 0.4);
        return;
    }
    if (k->form == JOINED) {
        a->in_proj_qkv = weight(w, D, HIDDEN, 0.4);
    } else {
        a->in_proj_q = weight(w, HK * K, HIDDEN, 0.4);
        a->in_proj_k = weight(w, HK * K, HIDDEN, 0.4);
        a->in_proj_v = weight(w, HV * V, HIDDEN, 0.4);
    }
    if (low) a->in_proj_z_down = weight(w, Z_RANK, HIDDEN, 0.4);
    a->in_proj_z = weight(w, HV * V, low ? Z_RANK : HIDDEN, 0.4);
    a->in_proj_b = weight(w, HV, HIDDEN, 0.4);
    if (low) a->in_proj_a_down = weight(w, A_RANK, HIDDEN, 0.4);
    a->in_proj_a = weight(w, n_a, low ? A_RANK : HIDDEN, 0.4);
}

static gdn_block_args make_call(const struct kind *k, int64_t N, int64_t P)
{
    const int32_t w = k->weights;
    gdn_block_args a = gdn_block_args_init();
    a.hidden = ring2_new(k->dtype, 3, 2, N, HIDDEN, 0, 0);
    a.out = ring2_new(k->dtype, 5, 2, N, HIDDEN, 0, 0);
    ring2_fill(&a.hidden, -1, 1);
    give_projections(&a, k);
    a.conv_weight = weight(w, D, k->taps, 0.5);
    if (k->form != GROUPED) a.conv_bias = weight(w, D, 0, 0.1);
    a.A_log = weight(GDN_F32, HV, 0, 1);
    a.dt_bias = weight(w, HV, k->form < KDA ? 0 : K, 1);
    if (k->form == KDA_BOUND) a.gate_lower_bound = -5;
    a.norm_weight = weight(w, V, 0, 2);
    a.out_proj = weight(w, HIDDEN, HV * V, 0.2);
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.state_layout = k->layout;
    a.activation = k->activation, a.beta_kind = k->beta_kind;
    a.flags = GDN_BATCH_INVARIANT;
    if (!P) return a;
    a.conv_state = ring2_new(k->states, 0, 3, P, D, k->conv_rows, 0);
    a.state = k->layout == GDN_STATE_VK ? ring2_new(k->states, 0, 4, P, HV, V, K)
                                        : ring2_new(k->states, 0, 4, P, HV, K, V);
    ring2_fill(&a.conv_state, -1, 1);
    ring2_fill(&a.state, -0.5, 0.5);
    return a;
}

static gdn_block_args clone(const gdn_block_args *a)
{
    gdn_block_args b = *a;
    b.out = ring2_clone(&a->out);
    b.state = ring2_clone(&a->state);
    b.conv_state = ring2_clone(&a->conv_state);
    return b;
}

static gdn_block_args slice(const gdn_block_args *a, int64_t first, int64_t n)
{
    gdn_block_args b = *a;
    b.hidden = ring2_narrow(&a->hidden, 0, first, n);
    b.out = ring2_narrow(&a->out, 0, first, n);
    b.batch = NULL;
    return b;
}

static void on_slot(gdn_block_args *a, int64_t slot)
{
    a->state = ring2_narrow(&a->state, 0, slot, 1);
    a->conv_state = ring2_narrow(&a->conv_state, 0, slot, 1);
}

static gdn_batch packed(int n, const int64_t *lengths)
{
    int64_t cu[9] = { 0 };
    gdn_batch t = gdn_batch_init();
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

static void allow_writes(const gdn_tensor *t, const bool *kept)
{
    for (int64_t i = 0; t->data && i < ring2_count(t); i++)
        if (!kept[i]) ring2_may_write_bytes(ring2_element(t, i), gdn_dtype_bytes(t->dtype));
}

static void compare_all(const gdn_block_args *a, const struct model *m)
{
    compare("out", &a->out, &m->out);
    compare("state", &a->state, &m->state);
    compare("conv_state", &a->conv_state, &m->conv);
}

static void check_call(gdn_ctx *ctx, const gdn_block_args *a)
{
    struct model m;
    make_model(a, &m);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_BLOCK, a), GDN_OK);
    ring2_call_begin();
    allow_writes(&a->out, m.out.kept);
    allow_writes(&a->state, m.state.kept);
    allow_writes(&a->conv_state, m.conv.kept);
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
        gdn_batch t = packed(6, lengths);
        gdn_block_args a = make_call(k, 71, i & 1 ? 0 : 6);
        a.batch = &t;
        check_call(ring2_ctx(1 + i % 3), &a);
    }
}

/* One of the two states is absent: it starts from zero and is dropped. */
static void one_state_absent(void)
{
    static const int64_t lengths[3] = { 20, 1, 300 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_batch t = packed(3, lengths);
        gdn_block_args a = make_call(&kinds[i / 2], 321, 3);
        a.batch = &t;
        *(i & 1 ? &a.state.data : &a.conv_state.data) = NULL;
        check_call(ring2_ctx(2), &a);
    }
}

static void padded_batch_with_slots_and_masks(void)
{
    static const int64_t slots[3] = { 4, -1, 1 }, to[3] = { 4, -1, 0 }, counts[3] = { 12, 5, 7 };
    static const int64_t initial[3] = { 1, 1, 0 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_batch t = gdn_batch_init();
        gdn_block_args a = make_call(&kinds[i / 2], 0, 5);
        a.hidden = ring2_new(a.hidden.dtype, 2, 3, 3, 12, HIDDEN, 0);
        a.out = ring2_new(a.out.dtype, 4, 3, 3, 12, HIDDEN, 0);
        ring2_fill(&a.hidden, -1, 1);
        t.read_slots = ring2_indices(GDN_I32, 3, slots);
        t.write_slots = ring2_indices(GDN_I64, 3, to);
        t.token_count = ring2_indices(GDN_I32, 3, counts);
        t.has_initial_state = ring2_indices(GDN_U8, 3, initial);
        t.pad_policy = i & 1 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        a.batch = &t;
        check_call(ring2_ctx(2), &a);
    }
}

/* 40 tokens by prefill, then 12 tokens one by one, beside the oracle of the whole sequence. */
static void G5_prefill_then_decode(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_block_args a = make_call(&kinds[i], 52, 1), part = slice(&a, 0, 40);
        struct model m;
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

/* Returns true if a token's bits do not depend on the number of tokens: on a device with
 * GDN_EXACT, and if cuBLAS has no product of these dtypes. */
static bool has_bits(const struct kind *k) { return !ring2_on_device() || k->dtype != k->weights; }

/* Sequences one by one give the bits of `all`, from the states and the flags of `a`. */
static void expect_alone(const gdn_block_args *a, const gdn_block_args *all, const int64_t *lengths,
                         int n)
{
    gdn_block_args b = clone(a);
    int64_t first = 0;
    for (int s = 0; s < n; first += lengths[s++]) {
        gdn_block_args alone = slice(&b, first, lengths[s]), want = slice(all, first, lengths[s]);
        on_slot(&alone, s), on_slot(&want, s);
        call(ring2_ctx(1), &alone);
        expect_same("alone", &alone, &want);
    }
}

/* Many tokens pass in windows: the oracle, and the same bits wherever the windows fall. */
static void G2_windows(void)
{
    static const int64_t lengths[5] = { 255, 300, 1, 600, 17 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch t = packed(5, lengths);
        gdn_block_args a = make_call(&kinds[i], 1173, 5), before = clone(&a), exact = clone(&a);
        a.batch = exact.batch = &t;
        check_call(ring2_ctx(2), &a);
        if (has_bits(&kinds[i])) expect_alone(&before, &a, lengths, 5);
        before.flags = exact.flags = GDN_EXACT;
        call(ring2_ctx(2), &exact);
        expect_alone(&before, &exact, lengths, 5);
    }
}

/* The slots of an empty sequence and of padding hold NaN, which must not be read or changed. */
static void G10_no_state_touched(void)
{
    static const int64_t lengths[3] = { 9, 0, 3 }, slots[2][3] = { { 0, 1, -1 }, { 2, 1, 0 } };
    for (int first = 0; first < 2; first++) {
        gdn_batch t = packed(3, lengths);
        gdn_block_args a = make_call(&kinds[0], 12, 3);
        for (int64_t s = 0; s < 3; s++) {
            gdn_block_args b = a;
            if (s == slots[first][0]) continue;
            on_slot(&b, s);
            ring2_fill_value(&b.state, (double)NAN);
            ring2_fill_value(&b.conv_state, (double)NAN);
        }
        t.read_slots = ring2_indices(GDN_I32, 3, slots[first]);
        t.first_slot = first;
        a.batch = &t;
        check_call(ring2_ctx(2), &a);
    }
}

/* Masked tokens hold NaN; a sequence of which none counts keeps every bit of its states. */
static void G11_masked(void)
{
    static const int64_t lengths[2] = { 20, 300 }, counts[2] = { 0, 270 };
    gdn_batch t = packed(2, lengths);
    gdn_block_args a = make_call(&kinds[1], 320, 2), b, masked;
    gdn_tensor state, conv;
    t.token_count = ring2_indices(GDN_I32, 2, counts);
    a.batch = &t;
    masked = slice(&a, 0, 20);
    ring2_fill_value(&masked.hidden, (double)NAN);
    masked = slice(&a, 290, 30);
    ring2_fill_value(&masked.hidden, (double)NAN);
    b = clone(&a);
    check_call(ring2_ctx(2), &a);
    on_slot(&b, 0);
    state = ring2_narrow(&a.state, 0, 0, 1);
    conv = ring2_narrow(&a.conv_state, 0, 0, 1);
    ring2_expect_bits("state", &state, &b.state);
    ring2_expect_bits("conv_state", &conv, &b.conv_state);
}

/* Rows before the first sequence are left alone on a CPU, and zero on a GPU. */
static void rows_before_sequences(void)
{
    static const int64_t cu[3] = { 7, 12, 40 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_block_args a = make_call(&kinds[i], 40, 0), own = a;
        gdn_batch t = gdn_batch_init();
        own.hidden = ring2_narrow(&a.hidden, 0, 0, 7);
        ring2_fill_value(&own.hidden, (double)NAN);
        ring2_fill_value(&a.out, 0);
        t.cu_seqlens = ring2_indices(GDN_I32, 3, cu);
        a.batch = &t;
        call(ring2_ctx(1), &a);
        for (int64_t n = 0; n < 7 * HIDDEN; n++)
            CHECK(ring2_get(&a.out, n) == 0, "out %lld: %g", (long long)n, ring2_get(&a.out, n));
    }
}

/* The same rows in Qwen3-Next's order and in Qwen3.5's are the same layer, to the bit. */
static void trap_12_channel_order(void)
{
    gdn_block_args a = make_call(&kinds[0], 20, 1), b = clone(&a);
    const int per_head = 2 * K + 2 * R * V;
    gdn_tensor qkv = weight(GDN_F32, D, HIDDEN, 1), z = weight(GDN_F32, HV * V, HIDDEN, 1);
    gdn_tensor beta = weight(GDN_F32, HV, HIDDEN, 1), alog = weight(GDN_F32, HV, HIDDEN, 1);
    const struct {
        gdn_tensor *to, *from;
        int first, n, at, step; /* n rows per key head, from row `at` of its group */
    } moves[] = { { &qkv, &a.in_proj_qkvz, 0, K, 0, per_head },
                  { &qkv, &a.in_proj_qkvz, HK * K, K, K, per_head },
                  { &qkv, &a.in_proj_qkvz, 2 * HK * K, R * V, 2 * K, per_head },
                  { &z, &a.in_proj_qkvz, 0, R * V, 2 * K + R * V, per_head },
                  { &beta, &a.in_proj_ba, 0, R, 0, 2 * R },
                  { &alog, &a.in_proj_ba, 0, R, R, 2 * R } };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        for (int h = 0; h < HK; h++) {
            const gdn_tensor to =
                ring2_narrow(moves[i].to, 0, moves[i].first + h * moves[i].n, moves[i].n);
            const gdn_tensor from =
                ring2_narrow(moves[i].from, 0, h * moves[i].step + moves[i].at, moves[i].n);
            ring2_copy(&to, &from);
        }
    b.in_proj_qkvz.data = b.in_proj_ba.data = NULL;
    b.in_proj_qkv = qkv, b.in_proj_z = z, b.in_proj_b = beta, b.in_proj_a = alog;
    a.flags = b.flags = ring2_on_device() ? GDN_EXACT : 0; /* cuBLAS sums by sizes */
    call(ring2_ctx(2), &a);
    call(ring2_ctx(2), &b);
    expect_same("order", &b, &a);
}

/* Windows, chunks and splits change no bit; a state of 16 bits is rounded after every token. */
static void G17_split(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        gdn_block_args a = make_call(&kinds[i], 300, 1), parts;
        a.flags = GDN_EXACT;
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
        { "G2 windows", G2_windows },
        { "G5 prefill then decode", G5_prefill_then_decode },
        { "G10 no state touched", G10_no_state_touched },
        { "G11 masked tokens", G11_masked },
        { "rows before sequences", rows_before_sequences },
        { "G17 split", G17_split },
        { "trap 12: channel order", trap_12_channel_order },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
