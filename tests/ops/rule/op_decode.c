/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=4, gpu, sm_80 --every=8 */
/*
 * gdn_decode as engines call it: tensors dense, K of 64, 128 or 256; one token of each sequence, as
 * rows or by cu_seqlens; or padded rows of several; or all of their states kept. On a device
 * kernels of their own do these.
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

enum { SEQUENCES = 5, SLOTS = 9, HEAD_KINDS = 4 };

static const int heads[HEAD_KINDS][3] = { { 2, 2, 4 }, { 1, 1, 3 }, { 4, 2, 2 }, { 2, 1, 2 } };

/* dtypes of the state and of q, k, v; sizes */
static const struct shape {
    int32_t state, dtype;
    int64_t K, V;
} shapes[] = { { GDN_F32, GDN_BF16, 128, 128 }, { GDN_BF16, GDN_BF16, 128, 128 },
               { GDN_F32, GDN_F16, 128, 64 },   { GDN_F16, GDN_F16, 128, 192 },
               { GDN_F32, GDN_BF16, 64, 64 },   { GDN_BF16, GDN_BF16, 64, 128 },
               { GDN_F32, GDN_BF16, 256, 128 }, { GDN_BF16, GDN_BF16, 256, 64 },
               { GDN_F16, GDN_F16, 64, 64 },    { GDN_F16, GDN_F16, 256, 64 },
               { GDN_F32, GDN_F16, 64, 64 },    { GDN_F32, GDN_F16, 256, 64 },
               { GDN_F32, GDN_BF16, 128, 512 }, { GDN_BF16, GDN_BF16, 256, 512 },
               { GDN_F16, GDN_F16, 64, 1024 } };
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = 12 * N_SHAPES };

/* By cu_seqlens and with initial states not if these have 16 bits, k-first, and K is not 128. */
static void expect_kernel(gdn_ctx *ctx, const gdn_rule_args *a)
{
    const gdn_batch *b = a->batch;
    const bool packed = b && (b->cu_seqlens.data || b->has_initial_state.data);
    const bool is_left = a->k.size[a->k.ndim - 1] != 128 && a->state.dtype != GDN_F32 &&
                         a->state_layout == GDN_STATE_KV;
    if (ring2_on_device() && !(packed && is_left))
        CHECK(strstr(gdn_last_kernel(ctx), packed ? "gdn_decode_token_packed" : "gdn_decode_token"),
              "was %s", gdn_last_kernel(ctx));
}

static gdn_tensor pool(const struct shape *s, int64_t slots, int64_t H, bool k_first)
{
    const gdn_tensor t =
        ring2_new(s->state, 0, 4, slots, H, k_first ? s->K : s->V, k_first ? s->V : s->K);
    ring2_fill(&t, -1, 1);
    return t;
}

static gdn_rule_args plain(const struct shape *s, const int hd[3], int64_t slots, bool k_first)
{
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, SEQUENCES, 0, hd, s->K, s->V);
    a.state = pool(s, slots, a.g.size[1], k_first);
    a.state_layout = k_first ? GDN_STATE_KV : GDN_STATE_VK;
    return a;
}

/* Raw gates and inputs of sigmoids are a's; kinds of them by `kind`. */
static void give_gates(gdn_rule_args *a, int32_t dtype, int kind)
{
    const int64_t N = a->g.size[0], H = a->g.size[1];
    if (kind % 2) {
        a->g = ring2_new(dtype, 0, 2, N, H, 0, 0);
        a->beta = ring2_new(dtype, 0, 2, N, H, 0, 0);
        ring2_rule_inputs(a, true, -0.5);
    }
    if (kind == 1 || kind == 2) {
        a->gate = GDN_GATE_RAW;
        a->beta_kind = kind == 1 ? GDN_BETA_SIGMOID : GDN_BETA_TWICE_SIGMOID;
        a->gate_lower_bound = kind == 1 ? 0 : -5;
        a->A_log = ring2_new(kind == 1 ? GDN_F32 : dtype, 0, 1, H, 0, 0, 0);
        a->dt_bias = ring2_new(kind == 1 ? dtype : GDN_F32, 0, 1, H, 0, 0, 0);
        ring2_fill(&a->A_log, -1, 1);
        ring2_fill(&a->dt_bias, -1, 1);
        ring2_fill(&a->g, -4, 1);
        ring2_fill(&a->beta, -3, 3);
    }
    if (kind == 3) {
        a->gate = GDN_GATE_LINEAR;
        ring2_fill(&a->g, 0.5, 1);
    }
    if (kind == 4) a->g.data = NULL;
    if (kind == 5) a->beta.data = NULL;
}

/* How states are found: 0 by number, 1 by slots from 1 on, 2 by other slots to write, of which one
 * is dropped, 3 and not written, 4 in another pool, by slots from 1 on. */
static void give_batch(gdn_rule_args *a, const struct shape *s, gdn_batch *batch, int form)
{
    static const int64_t from[] = { 3, -1, 8, 0, 5 }, to[] = { 4, 2, -1, 0, 6 };
    static const int64_t from_1[] = { 3, 0, 8, 1, -1 };
    *batch = gdn_batch_init();
    if (form == 0) return;
    batch->first_slot = form == 1 || form == 4;
    batch->read_slots = ring2_indices(GDN_I32, SEQUENCES, batch->first_slot ? from_1 : from);
    batch->pad_policy = form % 2 ? GDN_PAD_ZERO : GDN_PAD_KEEP;
    if (form == 2) batch->write_slots = ring2_indices(GDN_I32, SEQUENCES, to);
    if (form == 3) batch->write = GDN_WRITE_NONE;
    if (form == 4) a->state_out = pool(s, SLOTS, a->g.size[1], a->state_layout == GDN_STATE_KV);
    a->batch = batch;
}

/* A call per number: of shapes, gates and batches each another. */
static gdn_rule_args any_with(int number, const int hd[3], gdn_batch *batch)
{
    const struct shape *s = &shapes[number % N_SHAPES];
    const int n = number / N_SHAPES;
    gdn_rule_args a = plain(s, hd, SLOTS, n % 2);
    give_gates(&a, s->dtype, (n + number) % 6);
    give_batch(&a, s, batch, (n / 2 + number) % 5);
    return a;
}

static gdn_rule_args any_of(int number, gdn_batch *batch)
{
    return any_with(number, heads[(number / N_SHAPES + number) % HEAD_KINDS], batch);
}

static void against_the_oracle(int number)
{
    static const int norms[] = { GDN_NORM_L2, GDN_NORM_NONE, GDN_NORM_L2_ADD, GDN_NORM_L2_MAX };
    const int n = number / N_SHAPES;
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_batch batch;
    gdn_rule_args a = any_of(number, &batch);
    ring2_rule_pad(&a, SEQUENCES);
    a.norm = norms[(n / 3 + number) % 4];
    a.scale = n % 3 ? 0 : 0.3f;
    if (n == 7 && a.batch && batch.write != GDN_WRITE_NONE) a.out.data = NULL;
    ring2_rule_check(ctx, &a, true);
    expect_kernel(ctx, &a);
}

/* A call on a clone, in which one tensor is filled with x. */
static gdn_rule_args called(const gdn_rule_args *a, size_t tensor, double x)
{
    gdn_rule_args b = ring2_rule_clone(a);
    const gdn_tensor *t[] = { &b.state, &b.v };
    ring2_fill_value(t[tensor], x);
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), &b), GDN_OK);
    expect_kernel(ring2_ctx(1), &b);
    return b;
}

static void expect_same(const gdn_rule_args *a, const gdn_rule_args *b)
{
    ring2_expect_bits("out", &a->out, &b->out);
    ring2_expect_bits("state", &a->state, &b->state);
}

/* If each tensor has H heads or one head, both head maps give the same bits. */
static void interleaved(int number)
{
    static const int same[][3] = { { 3, 3, 3 }, { 1, 1, 4 } };
    const struct shape *s = &shapes[number / 4];
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_rule_args a = plain(s, same[number / 2 % 2], SEQUENCES, number % 2), b;
    ring2_rule_pad(&a, SEQUENCES);
    b = ring2_rule_clone(&a);
    b.head_map = GDN_HEADS_INTERLEAVED;
    ring2_status(ctx, "grouped", gdn_decode(ctx, &a), GDN_OK);
    ring2_status(ctx, "interleaved", gdn_decode(ctx, &b), GDN_OK);
    expect_kernel(ctx, &b);
    expect_same(&a, &b);
}

/* Interleaved heads of two counts, or of these and one, run as calls of grouped heads. */
static void in_runs(int number)
{
    static const int counts[][3] = { { 2, 2, 6 }, { 3, 1, 6 }, { 4, 2, 2 }, { 2, 2, 4 } };
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_batch batch;
    gdn_rule_args a = any_with(number, counts[(number + number / N_SHAPES) % 4], &batch);
    ring2_rule_pad(&a, SEQUENCES);
    a.head_map = GDN_HEADS_INTERLEAVED;
    a.norm = number % 2 ? GDN_NORM_L2 : GDN_NORM_NONE;
    ring2_rule_check(ctx, &a, true);
    expect_kernel(ctx, &a);
}

/* alpha = 0 forgets NaN, beta = 0 lets no NaN in, both leave every bit. */
static void selection(int number)
{
    const struct shape *s = &shapes[number / 2];
    gdn_rule_args a = plain(s, heads[0], SEQUENCES, number % 2), x, y;
    ring2_rule_pad(&a, SEQUENCES);
    ring2_fill_value(&a.g, -(double)INFINITY);
    x = called(&a, 0, NAN);
    y = called(&a, 0, 0);
    expect_same(&x, &y);
    ring2_fill_value(&a.g, -0.5);
    ring2_fill_value(&a.beta, 0);
    x = called(&a, 1, NAN);
    y = called(&a, 1, 1);
    expect_same(&x, &y);
    ring2_fill_value(&a.g, 0);
    x = called(&a, 0, -0.0);
    for (int64_t i = 0; i < ring2_count(&x.state) && !ring2_failed(); i++)
        CHECK(signbit(ring2_get(&x.state, i)) && ring2_get(&x.state, i) == 0, "state[%d]", (int)i);
    a.state_out = ring2_clone(&a.state);
    ring2_fill_value(&a.state_out, 7);
    x = called(&a, 0, -0.0);
    ring2_expect_bits("state_out", &x.state_out, &x.state);
}

/* A sequence has the bits of a call of its own, whatever its slot. */
static void alone(int number)
{
    const struct shape *s = &shapes[number / 2];
    const int64_t two[] = { 2 };
    gdn_rule_args a = plain(s, heads[0], SEQUENCES, number % 2), b;
    gdn_batch batch = gdn_batch_init();
    ring2_rule_pad(&a, SEQUENCES);
    batch.read_slots = ring2_indices(GDN_I32, 1, two);
    b = ring2_rule_slice(&a, 2, 1);
    b = ring2_rule_clone(&b);
    b.batch = &batch;
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), &a), GDN_OK);
    ring2_status(ring2_ctx(1), "alone", gdn_decode(ring2_ctx(1), &b), GDN_OK);
    expect_kernel(ring2_ctx(1), &a);
    const gdn_tensor out = ring2_narrow(&a.out, 0, 2, 1), mine = ring2_narrow(&a.state, 0, 2, 1);
    const gdn_tensor other = ring2_narrow(&b.state, 0, 2, 1);
    ring2_expect_bits("out", &b.out, &out);
    ring2_expect_bits("state", &other, &mine);
}

/* Sequences by cu_seqlens of as many tokens as there are sequences, which may have others than one
 * each. */
static const int64_t dealt[][SEQUENCES + 1] = { { 0, 1, 2, 3, 4, 5 }, { 0, 1, 2, 3, 3, 3 },
                                                { 0, 0, 1, 2, 4, 5 }, { 0, 3, 3, 4, 4, 5 },
                                                { 0, 0, 0, 0, 0, 5 }, { 0, 0, 0, 0, 0, 0 },
                                                { 0, 1, 2, 2, 4, 4 } };
enum { N_DEALT = sizeof dealt / sizeof *dealt };

/* Odd ones have, or have not, states to start from. */
static void by_cu_seqlens(int number)
{
    static const int64_t fresh[] = { 1, 0, 0, 1, 0 };
    const int n = number / N_SHAPES;
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_batch batch;
    gdn_rule_args a = any_of(number, &batch);
    a.batch = &batch;
    if (n % 8 == 7)
        ring2_rule_pad(&a, SEQUENCES);
    else
        batch.cu_seqlens =
            ring2_indices(number % 3 ? GDN_I32 : GDN_I64, SEQUENCES + 1, dealt[n / 2 % N_DEALT]);
    if (number % 2 || n % 8 == 7)
        batch.has_initial_state = ring2_indices(number % 3 ? GDN_U8 : GDN_I32, SEQUENCES, fresh);
    a.norm = number % 2 ? GDN_NORM_L2 : GDN_NORM_L2_MAX;
    ring2_rule_check(ctx, &a, true);
    expect_kernel(ctx, &a);
}

/* The same as selection(), for two tokens. */
static void selection_of_two(int number)
{
    static const int64_t cu[] = { 0, 2, 2, 3, 3, 5 };
    const struct shape *s = &shapes[number / 2];
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a = plain(s, heads[0], SEQUENCES, number % 2), x, y;
    batch.cu_seqlens = ring2_indices(GDN_I32, SEQUENCES + 1, cu);
    a.batch = &batch;
    ring2_fill_value(&a.g, -(double)INFINITY);
    ring2_fill_value(&a.beta, 0);
    for (int i = 0; i < 2; i++) {
        x = called(&a, 0, i ? NAN : 2);
        y = called(&x, 1, NAN);
        ring2_expect_bits("out", &x.out, &y.out);
        const gdn_tensor state = ring2_select(&x.state, 0, 0);
        for (int64_t j = 0; j < ring2_count(&state) && !ring2_failed(); j++)
            CHECK(ring2_get(&state, j) == 0, "state[%d]: %g", (int)j, ring2_get(&state, j));
    }
    ring2_fill_value(&a.g, 0);
    a.state_out = ring2_clone(&a.state);
    ring2_fill_value(&a.state_out, 7);
    x = called(&a, 0, -0.0);
    for (int64_t i = 0; i < SEQUENCES; i++) {
        const gdn_tensor to = ring2_select(&x.state_out, 0, i), from = ring2_select(&x.state, 0, i);
        if (cu[i] < cu[i + 1]) ring2_expect_bits("state_out", &to, &from);
    }
}

/* A sequence of one token has the same bits alone and between sequences of none and of two. */
static void alone_by_cu_seqlens(int number)
{
    static const int64_t cu[] = { 0, 0, 1, 2, 4, 5 }, one[] = { 0, 1 };
    const struct shape *s = &shapes[number / 2];
    gdn_batch all = gdn_batch_init(), mine = gdn_batch_init();
    gdn_rule_args a = plain(s, heads[0], SEQUENCES, number % 2), b[SEQUENCES];
    a.batch = &all;
    all.cu_seqlens = ring2_indices(GDN_I32, SEQUENCES + 1, cu);
    mine.cu_seqlens = ring2_indices(GDN_I32, 2, one);
    for (int64_t i = 0; i < SEQUENCES; i++) {
        if (cu[i + 1] != cu[i] + 1) continue;
        b[i] = ring2_rule_slice(&a, cu[i], 1);
        b[i].state = ring2_narrow(&a.state, 0, i, 1);
        b[i] = ring2_rule_clone(&b[i]);
        b[i].batch = &mine;
        ring2_status(ring2_ctx(1), "alone", gdn_decode(ring2_ctx(1), &b[i]), GDN_OK);
        expect_kernel(ring2_ctx(1), &b[i]);
    }
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), &a), GDN_OK);
    for (int64_t i = 0; i < SEQUENCES; i++) {
        if (cu[i + 1] != cu[i] + 1) continue;
        const gdn_tensor out = ring2_narrow(&a.out, 0, cu[i], 1);
        const gdn_tensor state = ring2_narrow(&a.state, 0, i, 1);
        ring2_expect_bits("out", &b[i].out, &out);
        ring2_expect_bits("state", &b[i].state, &state);
    }
}

/* Returns true if windows take these states and tokens. */
static bool are_for_windows(const struct shape *s)
{
    return s->dtype == GDN_BF16 && s->state != GDN_F16;
}

/* Returns true if the kernel for up to four tokens, or for all states kept, takes the call. */
static bool are_for_four(const struct shape *s, int64_t T, bool k_first, bool each)
{
    if (s->K != 128 || (T > 4 && !(each && s->state == GDN_F32))) return false;
    return s->state == GDN_F32 || each ? !k_first : s->state == GDN_BF16;
}

static void expect_kernel_named(const char *name)
{
    if (ring2_on_device())
        CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), name), "was %s, wanted %s",
              gdn_last_kernel(ring2_ctx(1)), name);
}

/* Three rows go on from the states after their accepted tokens, in `slots`. */
static void give_accepted(gdn_batch *batch, const int64_t slots[3], int64_t other)
{
    static const int64_t n[] = { 2, 1, 1 };
    batch->num_accepted_tokens = ring2_indices(GDN_I32, 3, n);
    batch->read_slots = ring2_new(GDN_I32, 0, 2, 3, 2, 0, 0);
    for (int64_t i = 0; i < 6; i++)
        ring2_set(&batch->read_slots, i, (double)(i % 2 + 1 == n[i / 2] ? slots[i / 2] : other));
}

/* Rows of 1 to 11 tokens, then of 1 to 4, of which one is padding; every fifth call changes
 * nothing. */
static void several_tokens(int number)
{
    static const int64_t slots[] = { 2, -1, 0 };
    const struct shape *s = &shapes[number % N_SHAPES];
    const int half = number / (4 * N_SHAPES), n = number / N_SHAPES % 4;
    const int T = 1 + (number + 3 * n) % (half ? 4 : 11);
    const bool k_first = n == 3, whole = n == 0;
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a =
        ring2_rule_args(s->dtype, s->state, 3 * T, 0, heads[n % HEAD_KINDS], s->K, s->V);
    ring2_rule_pad(&a, 3);
    a.state = pool(s, 3, a.g.size[2], k_first);
    a.state_layout = k_first ? GDN_STATE_KV : GDN_STATE_VK;
    if (number % 5 == 0) ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
    if (!whole) batch.read_slots = ring2_indices(GDN_I32, 3, slots), a.batch = &batch;
    if (!whole && (number + half) % 2) give_accepted(&batch, slots, 1);
    if (n == 2) a.state_out = pool(s, 3, a.g.size[2], false);
    a.norm = number % 2 ? GDN_NORM_L2 : GDN_NORM_NONE;
    ring2_rule_check(ring2_ctx(1), &a, true);
    if (T > 1 && are_for_four(s, T, k_first, false))
        expect_kernel_named("gdn_decode_window_k128");
    else if (T > 4 && !k_first && are_for_windows(s))
        expect_kernel_named("gdn_decode_window_vk");
}

/* Two to six tokens of each sequence on states whose rows are k; some gates forget. */
static void few_tokens(int number)
{
    static const int norms[] = { GDN_NORM_L2_ADD, GDN_NORM_L2, GDN_NORM_L2_MAX, GDN_NORM_NONE };
    const struct shape *s = &shapes[number % N_SHAPES];
    const int n = number / N_SHAPES, T = 2 + n % 5, kind = (n + number) % 6;
    const int64_t fresh[] = { 1, 0, 1, 1, 0 };
    gdn_batch batch;
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, SEQUENCES * T, 0,
                                      heads[(n + number) % HEAD_KINDS], s->K, s->V);
    a.state = pool(s, SLOTS, a.g.size[1], true);
    a.state_layout = GDN_STATE_KV;
    give_gates(&a, s->dtype, kind);
    give_batch(&a, s, &batch, (n / 2 + number) % 5);
    if (a.batch && n % 4 == 1) batch.has_initial_state = ring2_indices(GDN_U8, SEQUENCES, fresh);
    if (number % 7 == 0 && kind != 1 && kind != 5) ring2_fill_value(&a.beta, 0);
    for (int64_t i = n % 2; i < SEQUENCES * T && (kind == 0 || kind == 5); i += 3)
        ring2_set(&a.g, i * a.g.size[1] + i % a.g.size[1], -(double)INFINITY);
    ring2_rule_pad(&a, SEQUENCES);
    a.norm = norms[(n + number / 2) % 4];
    a.scale = n % 3 ? 0 : 0.3f;
    if (n == 7 && a.batch && batch.write != GDN_WRITE_NONE) a.out.data = NULL;
    ring2_rule_check(ring2_ctx(1), &a, true);
    const bool four = are_for_four(s, T, true, false) && !(a.batch && batch.has_initial_state.data);
    if (are_for_windows(s))
        expect_kernel_named(four ? "gdn_decode_window_k128" : "gdn_decode_window_kv");
}

/* A call of padded tokens on a clone, in which one tensor is filled with x, and if `at` is not
 * negative only its part of that token. */
static gdn_rule_args padded_call(const gdn_rule_args *a, size_t tensor, int64_t at, double x)
{
    gdn_rule_args b = ring2_rule_clone(a);
    const gdn_tensor t[] = { b.state, b.v, b.k };
    const gdn_tensor part = at < 0 ? t[tensor] : ring2_select(&t[tensor], 1, at);
    ring2_fill_value(&part, x);
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), &b), GDN_OK);
    return b;
}

/* For four and ten tokens: alpha = 0 forgets what was before, NaN too, of a state or a token,
 * beta = 0 lets no NaN in, and where nothing changes every bit stays. */
static void padded_selection(int number)
{
    const struct shape *s = &shapes[number / 4];
    const bool k_first = number % 2;
    const int64_t T = number / 2 % 2 ? 10 : 4, at = T - 1 - number / 4 % 3;
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, T, 0, heads[0], s->K, s->V), x, y;
    a.state = pool(s, 1, a.g.size[1], k_first);
    a.state_layout = k_first ? GDN_STATE_KV : GDN_STATE_VK;
    ring2_rule_pad(&a, 1);
    const gdn_tensor g = ring2_select(&a.g, 1, at), beta = ring2_select(&a.beta, 1, at);
    ring2_fill_value(&beta, 0);
    x = padded_call(&a, 1, at, NAN);
    y = padded_call(&a, 1, at, 1);
    expect_same(&x, &y);
    x = padded_call(&a, 2, at, NAN);
    y = padded_call(&a, 2, at, 1);
    ring2_expect_bits("state beside k", &x.state, &y.state);
    ring2_fill_value(&g, -(double)INFINITY);
    x = padded_call(&a, 0, -1, NAN);
    y = padded_call(&a, 0, -1, 0);
    const gdn_tensor got = ring2_narrow(&x.out, 1, at, T - at);
    const gdn_tensor want = ring2_narrow(&y.out, 1, at, T - at);
    ring2_expect_bits("out", &got, &want);
    ring2_expect_bits("state", &x.state, &y.state);
    for (size_t tensor = 1; tensor < 3; tensor++) {
        x = padded_call(&a, tensor, at - 1, NAN);
        y = padded_call(&a, tensor, at - 1, 1);
        const gdn_tensor after[] = { ring2_narrow(&x.out, 1, at, T - at),
                                     ring2_narrow(&y.out, 1, at, T - at) };
        ring2_expect_bits(tensor == 1 ? "out after v" : "out after k", &after[0], &after[1]);
        ring2_expect_bits(tensor == 1 ? "state after v" : "state after k", &x.state, &y.state);
    }
    ring2_fill_value(&a.g, 0);
    ring2_fill_value(&a.beta, 0);
    a.state_out = ring2_clone(&a.state);
    ring2_fill_value(&a.state_out, 7);
    x = padded_call(&a, 0, -1, -0.0);
    ring2_expect_bits("state_out", &x.state_out, &x.state);
}

/* A sequence of several tokens has the same bits in a padded call as alone. */
static void padded_alone(int number)
{
    const struct shape *s = &shapes[number / 4];
    const int64_t T = number / 2 % 2 ? 5 : 3;
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, 3 * T, 0, heads[0], s->K, s->V), b;
    a.state = pool(s, 3, a.g.size[1], number % 2);
    a.state_layout = number % 2 ? GDN_STATE_KV : GDN_STATE_VK;
    ring2_rule_pad(&a, 3);
    b = ring2_rule_slice(&a, 1, 1);
    b = ring2_rule_clone(&b);
    b.state = ring2_narrow(&a.state, 0, 1, 1);
    b.state = ring2_clone(&b.state);
    ring2_status(ring2_ctx(1), "gdn_decode", gdn_decode(ring2_ctx(1), &a), GDN_OK);
    ring2_status(ring2_ctx(1), "alone", gdn_decode(ring2_ctx(1), &b), GDN_OK);
    const gdn_tensor out = ring2_narrow(&a.out, 0, 1, 1), state = ring2_narrow(&a.state, 0, 1, 1);
    ring2_expect_bits("out", &b.out, &out);
    ring2_expect_bits("state", &b.state, &state);
}

/* The states after each of one to six tokens, as rows or by cu_seqlens; some are dropped, some
 * calls go on from accepted tokens, and in some nothing changes. */
static void every_state(int number)
{
    enum { ROWS = 3, MOST = 6, POOL = ROWS * MOST + 4 };
    static const int64_t start[] = { 2, -1, 0 }, cu[] = { 0, 1, 1, 6 };
    const struct shape *s = &shapes[number % N_SHAPES];
    const int n = number / N_SHAPES;
    const int64_t T = 1 + (number + n) % MOST, N = n % 3 == 2 ? 7 : ROWS * T;
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a =
        ring2_rule_args(s->dtype, s->state, N, 0, heads[(n + number) % HEAD_KINDS], s->K, s->V);
    a.state_layout = n == 3 ? GDN_STATE_KV : GDN_STATE_VK;
    const int64_t H = a.g.size[1];
    a.state = pool(s, POOL, H, n == 3);
    give_gates(&a, s->dtype, (n + number) % 6);
    if (number % 5 == 0 && a.g.data && a.beta.data && !a.gate && !a.beta_kind)
        ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
    if (n % 3 == 2)
        batch.cu_seqlens = ring2_indices(GDN_I32, ROWS + 1, cu);
    else
        ring2_rule_pad(&a, ROWS);
    a.norm = number % 2 ? GDN_NORM_L2 : GDN_NORM_NONE;
    a.batch = &batch;
    batch.write = GDN_WRITE_EACH;
    batch.read_slots = ring2_indices(GDN_I32, ROWS, start);
    batch.write_slots = ring2_new(GDN_I32, 0, 2, ROWS, MOST, 0, 0);
    for (int64_t i = 0; i < ROWS * MOST; i++)
        ring2_set(&batch.write_slots, i, i % 4 == 1 ? -1 : (double)(3 + i));
    if (n % 2) a.state_out = pool(s, POOL, H, n == 3);
    if (number % 3 == 0) give_accepted(&batch, start, POOL - 1);
    ring2_rule_check(ring2_ctx(1), &a, true);
    if (n % 3 != 2 && are_for_four(s, T, n == 3, true))
        expect_kernel_named(T > 4 ? "gdn_decode_window_k128_many" : "gdn_decode_window_k128");
    else if (n != 3 && are_for_windows(s))
        expect_kernel_named("gdn_decode_window_vk");
}

/* More sequences than slots, of state or of state_out alone, and no list of them: on a device those
 * without one are skipped like padding; a CPU refuses the call. */
static void fewer_slots(int number)
{
    enum { HAVE = 3 };
    static const int64_t tokens[] = { 1, 1, 3, 6, 1 }, own[] = { 0, 1, 2, -1, -1 };
    const struct shape *s = &shapes[number % N_SHAPES];
    const int form = number / N_SHAPES % 5, k_first = number / (5 * N_SHAPES);
    gdn_batch batch = gdn_batch_init(), listed;
    gdn_rule_args a = ring2_rule_args(s->dtype, s->state, SEQUENCES * tokens[form], 0,
                                      heads[form % HEAD_KINDS], s->K, s->V),
                  skips;
    const int64_t H = a.g.size[1];
    a.state = pool(s, form == 4 ? SEQUENCES : HAVE, H, k_first);
    a.state_layout = k_first ? GDN_STATE_KV : GDN_STATE_VK;
    a.batch = &batch;
    if (form == 4) a.state_out = pool(s, HAVE, H, k_first);
    if (form == 1)
        batch.cu_seqlens = ring2_indices(GDN_I32, SEQUENCES + 1, dealt[0]);
    else
        ring2_rule_pad(&a, SEQUENCES);
    listed = batch;
    listed.read_slots = ring2_indices(GDN_I32, SEQUENCES, own);
    skips = a;
    skips.batch = &listed;
    if (ring2_on_device())
        ring2_rule_check_as(ring2_ctx(1), &a, &skips, true);
    else
        ring2_status(ring2_ctx(1), "fewer slots", gdn_decode(ring2_ctx(1), &a), GDN_E_ARG);
}

/* More sequences than a grid has rows, and tokens behind them that belong to none. */
static void many_sequences(int number)
{
    enum { MANY = 65536, REST = 3 };
    static const int one[] = { 1, 1, 1 };
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, MANY + REST, MANY, one, 3, 1);
    int64_t *cu = ring2_heap((MANY + 1) * sizeof *cu);
    (void)number;
    for (int64_t i = 0; i <= MANY; i++) cu[i] = i;
    batch.cu_seqlens = ring2_indices(GDN_I32, MANY + 1, cu);
    a.batch = &batch;
    ring2_rule_check(ring2_ctx(1), &a, true);
    expect_kernel_named("gdn_decode_general");
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "against the oracle", against_the_oracle, N_CASES },
        { "interleaved", interleaved, 4 * N_SHAPES },
        { "interleaved, in runs", in_runs, 6 * N_SHAPES },
        { "selection", selection, 2 * N_SHAPES },
        { "alone", alone, 2 * N_SHAPES },
        { "by cu_seqlens", by_cu_seqlens, 16 * N_SHAPES },
        { "selection of two", selection_of_two, 2 * N_SHAPES },
        { "alone by cu_seqlens", alone_by_cu_seqlens, 2 * N_SHAPES },
        { "several tokens", several_tokens, 8 * N_SHAPES },
        { "few tokens", few_tokens, 8 * N_SHAPES },
        { "selection of padded rows", padded_selection, 4 * N_SHAPES },
        { "padded rows alone", padded_alone, 4 * N_SHAPES },
        { "every state", every_state, 4 * N_SHAPES },
        { "fewer slots than sequences", fewer_slots, 10 * N_SHAPES },
        { "many sequences", many_sequences, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
