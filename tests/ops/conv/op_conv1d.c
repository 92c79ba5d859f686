/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=9 */
/*
 * gdn_conv1d against the float64 oracle over cases in which every pair of levels meets, and
 * its guarantees and traps by name.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_batch.h"
#include "ring2_device.h"

/* ---- The model ---- */

struct model {
    gdn_tensor target;
    double *out, *out_limit, *state, *no_limit;
    bool *out_kept, *state_kept;
};

/* Everything of one sequence in float64. */
struct run {
    const gdn_conv1d_args *a;
    const struct ring2_sequence *s;
    int64_t D, W, S;
    double *x, *past; /* [valid][D]; [S][D], the state it starts from */
};

static void load_run(struct run *r)
{
    const gdn_conv1d_args *a = r->a;
    r->x = ring2_heap((size_t)(r->s->valid * r->D) * sizeof *r->x);
    r->past = ring2_heap((size_t)(r->S * r->D) * sizeof *r->past);
    for (int64_t i = 0; i < r->s->valid * r->D; i++)
        r->x[i] = ring2_get(&a->x, r->s->first * r->D + i);
    for (int64_t e = 0; r->s->read >= 0 && e < r->S; e++)
        for (int64_t d = 0; d < r->D; d++)
            r->past[e * r->D + d] = ring2_get(&a->state, (r->s->read * r->D + d) * r->S + e);
}

/* The state after n tokens: the last S of what came before and the inputs. */
static void expect_state(const struct run *r, struct model *m, int64_t n, int64_t slot)
{
    const int64_t S_out = m->target.size[2];
    for (int64_t d = 0; d < r->D; d++)
        for (int64_t e = 0; e < S_out; e++) {
            const int64_t t = n - S_out + e; /* the input's token */
            const int64_t at = (slot * r->D + d) * S_out + e;
            m->state[at] = t >= 0          ? r->x[t * r->D + d]
                           : t + r->S >= 0 ? r->past[(t + r->S) * r->D + d]
                                           : 0;
            m->state_kept[at] = false;
        }
}

static void run_sequence(const struct run *r, struct model *m)
{
    const gdn_conv1d_args *a = r->a;
    const size_t n = (size_t)(r->s->valid * r->D);
    double *y = ring2_heap(n * sizeof *y), *mag = ring2_heap(n * sizeof *mag);
    oracle_conv(y, mag, r->x, r->past + (r->S - (r->W - 1)) * r->D, ring2_doubles(&a->weight),
                a->bias.data ? ring2_doubles(&a->bias) : NULL, a->activation == GDN_ACT_SILU,
                r->s->valid, (int)r->D, (int)r->W);
    for (size_t i = 0; i < n; i++) {
        const size_t at = (size_t)(r->s->first * r->D) + i;
        m->out[at] = y[i];
        m->out_limit[at] = (8 + (double)r->W) * 0x1p-24 * mag[i] + 0x1p-140;
    }
    if (r->s->write >= 0 && m->target.data) expect_state(r, m, r->s->valid, r->s->write);
    for (int64_t t = 0; m->target.data && t < r->s->valid; t++) {
        const int64_t slot = ring2_each_slot(a->batch, r->s, t);
        if (slot >= 0) expect_state(r, m, t + 1, slot);
    }
}

static void make_model(const gdn_conv1d_args *a, struct model *m)
{
    struct ring2_sequence *seqs;
    const int64_t D = a->x.size[a->x.ndim - 1], W = a->weight.size[a->weight.ndim - 1];
    const int64_t B = ring2_sequences(a->batch, &a->x, 1, a->state.data != NULL, &seqs);
    const size_t n = (size_t)ring2_count(&a->x);
    size_t p;
    m->target = a->state_out.data ? a->state_out : a->state;
    p = m->target.data ? (size_t)ring2_count(&m->target) : 0;
    m->out = ring2_heap(n * sizeof(double));
    m->out_limit = ring2_heap(n * sizeof(double));
    m->out_kept = ring2_heap(n);
    m->state = ring2_heap(p * sizeof(double));
    m->no_limit = ring2_heap(p * sizeof(double));
    m->state_kept = ring2_heap(p);
    memset(m->state_kept, 1, p);
    for (int64_t b = 0; b < B; b++) {
        struct run r = { .a = a, .s = &seqs[b], .D = D, .W = W };
        r.S = a->state.data ? a->state.size[2] : W - 1;
        if (r.s->kept) memset(m->out_kept + r.s->first * D, 1, (size_t)(r.s->T * D));
        if (r.s->skipped || !r.s->T) continue;
        load_run(&r);
        run_sequence(&r, m);
    }
}

static void allow_writes(const gdn_tensor *t, const bool *kept)
{
    for (int64_t i = 0; t->data && i < ring2_count(t); i++)
        if (!kept[i]) ring2_may_write_bytes(ring2_element(t, i), gdn_dtype_bytes(t->dtype));
}

static void check_call(gdn_ctx *ctx, const gdn_conv1d_args *a)
{
    struct model m;
    make_model(a, &m);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_CONV1D, a), GDN_OK);
    ring2_call_begin();
    allow_writes(&a->out, m.out_kept);
    allow_writes(&m.target, m.state_kept);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    ring2_status(ctx, "gdn_conv1d", gdn_conv1d(ctx, a), GDN_OK);
    ring2_call_end();
    if (ring2_failed()) return;
    ring2_compare("out", &a->out, m.out, m.out_limit, NULL, m.out_kept);
    if (m.target.data) ring2_compare("state", &m.target, m.state, m.no_limit, NULL, m.state_kept);
}

/* ---- Generated cases ---- */

enum {
    ACT = N_BATCH_FACTORS,
    STATE,
    TAPS,
    CHANNELS,
    LENGTH,
    ORDER,
    WEIGHT,
    RANK,
    BIAS,
    SILU,
    OUT,
    STEPS,
    N_FACTORS
};
enum { DENSE_ROWS, X_TURNED, BOTH_TURNED, X_ANY }; /* STEPS */

static const struct ring2_factor factors[N_FACTORS - N_BATCH_FACTORS] = {
    [ACT - N_BATCH_FACTORS] = { 3, { "f32", "bf16", "f16" } },
    [STATE - N_BATCH_FACTORS] = { 3, { "S=f32", "S=bf16", "S=f16" } },
    [TAPS - N_BATCH_FACTORS] = { 7, { "W2", "W3", "W4", "W5", "W8", "W11", "W16" } },
    [CHANNELS - N_BATCH_FACTORS] = { 5, { "D1", "D7", "D64", "D131", "D1100" } },
    [LENGTH - N_BATCH_FACTORS] = { 3, { "S=W-1", "S=W", "S=W+9" } },
    [ORDER - N_BATCH_FACTORS] = { 2, { "DS", "SD" } },
    [WEIGHT - N_BATCH_FACTORS] = { 3, { "w=f32", "w=bf16", "w=f16" } },
    [RANK - N_BATCH_FACTORS] = { 2, { "", "[D][1][W]" } },
    [BIAS - N_BATCH_FACTORS] = { 3, { "", "bias", "bias=A" } },
    [SILU - N_BATCH_FACTORS] = { 2, { "", "silu" } },
    [OUT - N_BATCH_FACTORS] = { 2, { "", "out=x" } },
    [STEPS - N_BATCH_FACTORS] = { 4, { "", "x=DT", "DT", "x=any" } },
};
static const int channels[5] = { 1, 7, 64, 131, 1100 };
static const int taps[7] = { 2, 3, 4, 5, 8, 11, 16 };

static bool allowed(int i, int a, int j, int b)
{
    return !ring2_batch_clash(i, a, j, b) && !ring2_batch_clash(j, b, i, a);
}

static gdn_tensor new_pool(const struct ring2_batch *b, int32_t dtype, int64_t D, int64_t S)
{
    const int64_t gap = b->level[VIEW] == GAPS ? 3 : 0;
    const gdn_tensor t = ring2_turned(b->level[ORDER], dtype, gap, 3, b->P, D, S, 0);
    ring2_fill(&t, -1, 1);
    return t;
}

static gdn_tensor make_weight(const int *level, int64_t D, int64_t W)
{
    const int64_t gap = level[VIEW] == GAPS ? 2 : 0;
    const bool taps_first = level[VIEW] == FUSED; /* in memory */
    const int32_t dtype = level[WEIGHT];
    const gdn_tensor t = level[RANK] ? ring2_new(dtype, gap, 3, D, 1, W, 0)
                                     : ring2_turned(taps_first, dtype, gap, 2, D, W, 0, 0);
    ring2_fill(&t, -1, 1);
    return t;
}

/* Rows of D channels: channels first, or with no stride of 1. */
static gdn_tensor turned_rows(const struct ring2_batch *b, int32_t dtype, int64_t D, bool any)
{
    const bool padded = b->level[BATCH] == PADDED;
    const int64_t gap = b->level[VIEW] == GAPS ? 3 : 0;
    if (any) {
        const gdn_tensor t = padded ? ring2_new(dtype, gap, 4, b->B, b->T, D, 2)
                                    : ring2_new(dtype, gap, 3, b->N, D, 2, 0);
        return ring2_select(&t, t.ndim - 1, 1);
    }
    return padded ? ring2_turned(true, dtype, gap, 3, b->B, b->T, D, 0)
                  : ring2_turned(true, dtype, gap, 2, b->N, D, 0, 0);
}

static void run_case(const int *level, int number)
{
    struct ring2_batch b;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_conv1d_args a = gdn_conv1d_args_init();
    const int64_t D = channels[level[CHANNELS]], W = taps[level[TAPS]];
    const int64_t S = W - 1 + (level[LENGTH] == 2 ? 10 : level[LENGTH]);
    ring2_batch_make(&b, level);
    a.x = ring2_batch_rows(&b, level[ACT], level[VIEW] == FUSED ? D + 5 : D, 0);
    if (level[VIEW] == FUSED) a.x = ring2_narrow(&a.x, a.x.ndim - 1, 2, D);
    if (level[STEPS]) a.x = turned_rows(&b, level[ACT], D, level[STEPS] == X_ANY);
    ring2_fill(&a.x, -2, 2);
    a.out = level[OUT] ? a.x : ring2_batch_rows(&b, level[ACT], D, 0);
    if (level[STEPS] >= BOTH_TURNED && !level[OUT]) a.out = turned_rows(&b, level[ACT], D, false);
    a.weight = make_weight(level, D, W);
    if (level[BIAS]) {
        a.bias = ring2_new(level[BIAS] == 1 ? GDN_F32 : level[ACT], 0, 1, D, 0, 0, 0);
        ring2_fill(&a.bias, -1, 1);
    }
    if (ring2_batch_has_state(&b)) a.state = new_pool(&b, level[STATE], D, S);
    if (ring2_batch_has_state_out(&b)) a.state_out = new_pool(&b, level[STATE], D, S);
    a.activation = level[SILU] ? GDN_ACT_SILU : number % 2 ? GDN_ACT_NONE : GDN_ACT_DEFAULT;
    a.batch = &b.batch;
    if (number % 2) {
        ring2_give_workspace(ctx, GDN_OP_CONV1D, &a);
    }
    check_call(ctx, &a);
}

/* ---- Guarantees and traps ---- */

enum { N_SEQS = 4 };

/* A packed batch in place: D channels, W taps, states of S. */
static gdn_conv1d_args make_call(int32_t dtype, int32_t state, int64_t D, int64_t W, int64_t S,
                                 gdn_batch *t)
{
    const int64_t cu[N_SEQS + 1] = { 0, 21, 21, 22, 28 };
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = ring2_new(dtype, 0, 2, 28, D, 0, 0);
    a.out = ring2_new(dtype, 0, 2, 28, D, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, D, W, 0, 0);
    a.bias = ring2_new(GDN_F32, 0, 1, D, 0, 0, 0);
    a.state = ring2_new(state, 0, 3, N_SEQS, D, S, 0);
    ring2_fill(&a.x, -1, 1), ring2_fill(&a.weight, -1, 1), ring2_fill(&a.bias, -1, 1);
    ring2_fill(&a.state, -1, 1);
    a.activation = GDN_ACT_SILU;
    *t = gdn_batch_init();
    t->cu_seqlens = ring2_indices(GDN_I32, N_SEQS + 1, cu);
    a.batch = t;
    return a;
}

static gdn_conv1d_args clone(const gdn_conv1d_args *a)
{
    gdn_conv1d_args b = *a;
    b.x = ring2_clone(&a->x);
    b.out = ring2_clone(&a->out);
    b.state = ring2_clone(&a->state);
    return b;
}

static void call(gdn_ctx *ctx, const gdn_conv1d_args *a)
{
    ring2_status(ctx, "gdn_conv1d", gdn_conv1d(ctx, a), GDN_OK);
}

static void expect_same(const char *what, const gdn_conv1d_args *got, const gdn_conv1d_args *want)
{
    ring2_expect_bits(what, &got->out, &want->out);
    ring2_expect_bits(what, &got->state, &want->state);
}

/* Tokens [first, first + n) on one slot, without a batch. */
static gdn_conv1d_args part_of(const gdn_conv1d_args *a, int64_t first, int64_t n, int64_t slot)
{
    gdn_conv1d_args b = *a;
    b.x = ring2_narrow(&a->x, 0, first, n);
    b.out = ring2_narrow(&a->out, 0, first, n);
    b.state = ring2_narrow(&a->state, 0, slot, 1);
    b.batch = NULL;
    return b;
}

/* T tokens in one call, in T calls and in parts, where the state holds x exactly. */
static void any_cut_same_bits(void)
{
    static const int64_t cuts[2][22] = { { 5, 1, 2, 13 }, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } };
    for (int i = 0; i < 12; i++) {
        gdn_batch t;
        const int32_t dtype = i % 3;
        const int64_t W = taps[i % 7], S = W - 1 + i / 4;
        const int64_t D = i % 4 < 2 ? 77 : 140;
        gdn_conv1d_args a = make_call(dtype, i % 2 ? GDN_F32 : dtype, D, W, S, &t);
        gdn_conv1d_args b = clone(&a), whole = part_of(&a, 0, 21, 0);
        int64_t first = 0;
        call(ring2_ctx(1), &whole);
        for (const int64_t *n = cuts[i & 1]; *n && first < 21; first += *n++) {
            const gdn_conv1d_args part = part_of(&b, first, *n, 0);
            call(ring2_ctx(1), &part);
        }
        b = part_of(&b, 0, 21, 0);
        expect_same("cut", &b, &whole);
    }
}

/* Channels first: the bits of the same call on rows. */
static void any_strides_same_bits(void)
{
    for (int i = 0; i < 24; i++) {
        gdn_batch t;
        const int64_t W = taps[i % 7], D = i % 4 ? 77 : 333;
        gdn_conv1d_args a = make_call(i % 3, i % 2 ? GDN_F32 : i % 3, D, W, W, &t), b = clone(&a);
        const gdn_tensor x = ring2_new(i % 3, 0, 2, D, 28, 0, 0), y = ring2_clone(&x);
        b.x = ring2_swap(&x, 0, 1);
        if (i % 8 < 4) b.out = ring2_swap(&y, 0, 1);
        if (i % 8 == 4) b.out = b.x;
        for (int64_t at = 0; at < 28 * D; at++) ring2_set(&b.x, at, ring2_get(&a.x, at));
        call(ring2_ctx(2), &a);
        call(ring2_ctx(2), &b);
        expect_same("any strides", &b, &a);
    }
}

/* States of W - 1, W and more columns hold the newest input last and give the same output;
 * what is older than the first token moves up, or is zero. */
static void trap_7_state_widths(void)
{
    for (int64_t S = 3; S <= 6; S++) {
        gdn_conv1d_args a = gdn_conv1d_args_init();
        a.x = ring2_new(GDN_F32, 0, 2, 2, 1, 0, 0);
        a.out = ring2_new(GDN_F32, 0, 2, 2, 1, 0, 0);
        a.weight = ring2_new(GDN_F32, 0, 2, 1, 4, 0, 0);
        a.state = ring2_new(GDN_F32, 0, 3, 1, 1, S, 0);
        ring2_set(&a.x, 0, 10), ring2_set(&a.x, 1, 20);
        for (int w = 0; w < 4; w++) ring2_set(&a.weight, w, pow(100, w));
        for (int64_t e = 0; e < S; e++) ring2_set(&a.state, e, (double)(e - S + 7)); /* 4 5 6 */
        call(ring2_ctx(1), &a);
        CHECK(ring2_get(&a.out, 0) == 4 + 500 + 60000 + 10e6, "S %d: out %g", (int)S,
              ring2_get(&a.out, 0));
        CHECK(ring2_get(&a.state, S - 1) == 20 && ring2_get(&a.state, S - 2) == 10 &&
                  ring2_get(&a.state, 0) == (S == 3 ? 6 : (double)(2 - S + 7)),
              "S %d: state ends %g %g, begins %g", (int)S, ring2_get(&a.state, S - 2),
              ring2_get(&a.state, S - 1), ring2_get(&a.state, 0));
    }
}

/* Numbers that need not make sense, from -3 to n + 2. */
static gdn_tensor nonsense(int64_t rows, int64_t columns, int64_t n)
{
    const int32_t dtype = ring2_below(2) ? GDN_I32 : GDN_I64;
    gdn_tensor t = ring2_new(dtype, 2, columns ? 2 : 1, rows, columns, 0, 0);
    for (int64_t i = 0; i < ring2_count(&t); i++)
        ring2_set(&t, i, (double)(ring2_below(n + 6) - 3));
    return t;
}

/* A device does not judge contents: whatever they are, it writes to out and to states alone, reads
 * nothing beside the tensors, and comes to an end. */
static void hostile_contents(void)
{
    enum { N = 90, D = 140, S = 6, B = 7, P = 9, T = 12 };
    for (int i = 0; i < 400 && ring2_on_device() && !ring2_failed(); i++) {
        gdn_batch t;
        gdn_conv1d_args a = make_call(i % 3, (i + 1) % 3, D, 2 + i % 7, S + 1, &t);
        const bool padded = i % 2, path = i % 7 == 0;
        a.x = padded ? ring2_new(i % 3, 0, 3, B, T, D, 0) : ring2_new(i % 3, 0, 2, N, D, 0, 0);
        ring2_fill(&a.x, -1, 1);
        a.out = ring2_clone(&a.x);
        a.state = ring2_new((i + 1) % 3, 0, 3, P, D, S + 1, 0);
        ring2_fill(&a.state, -1, 1);
        a.checkpoints = ring2_clone(&a.state);
        if (i % 5 == 0) a.out = a.x;
        if (path) a.out.data = NULL;
        t.cu_seqlens = padded ? (gdn_tensor){ 0 } : nonsense(B + 1, 0, N);
        t.write = i / 3 % 2;
        t.pad_policy = i / 5 % 3;
        t.sink_slot = 20;
        t.read_slots = nonsense(B, i % 4 ? 0 : 3, P);
        if (i % 4 == 0) t.num_accepted_tokens = nonsense(B, 0, 4);
        if (t.write) t.write_slots = nonsense(B, T, P);
        if (i / 2 % 2 || path) t.token_count = nonsense(B, 0, T);
        if (i / 4 % 2) t.token_start = nonsense(B, 0, T);
        if (i / 8 % 2) t.parents = nonsense(B, 5, T);
        if (path) t.path = nonsense(B, 4, T);
        t.checkpoint_starts = nonsense(B + 1, 0, 6);
        t.checkpoint_positions = nonsense(6, 0, T);
        t.checkpoint_slots = nonsense(6, 0, P);
        ring2_call_begin();
        ring2_may_write(&a.out), ring2_may_write(&a.state), ring2_may_write(&a.checkpoints);
        ring2_status(ring2_ctx(1), "a hostile call", gdn_conv1d(ring2_ctx(1), &a), GDN_OK);
        ring2_call_end();
        ring2_free();
    }
    if (!ring2_on_device()) ring2_skip("on a device");
}

/* A state [P][D][S] whose channels lie side by side. */
static gdn_tensor by_channel(int32_t dtype, int64_t P, int64_t D, int64_t S)
{
    gdn_tensor t = ring2_new(dtype, 0, 3, P, S, D, 0);
    t.size[1] = D, t.size[2] = S;
    t.stride[1] = 1, t.stride[2] = D;
    return t;
}

/* Decode steps: a token each, all dtypes and states of float32, both orders of the state, whole and
 * cut warps of channels, skipped and masked tokens, states from elsewhere or from none. */
static void single_tokens(void)
{
    enum { B = 90, P = 100 };
    for (int i = 0; i < 96 && !ring2_failed(); i++) {
        const int64_t D = i % 2 ? 280 : 256, S = i % 5 == 4 ? 4 : 3;
        const int dtype = i < 48 ? i % 3 : GDN_F32; /* of states */
        gdn_batch t;
        gdn_conv1d_args a = make_call(i % 3, i % 3, D, 4, S, &t);
        int64_t slots[B], counts[B], others[B];
        a.x = ring2_new(i % 3, 0, 3, B, 1, D, 0);
        a.state = i & 8 ? by_channel(dtype, P, D, S) : ring2_new(dtype, 0, 3, P, D, S, 0);
        ring2_fill(&a.x, -1, 1), ring2_fill(&a.state, -1, 1);
        a.out = ring2_clone(&a.x);
        for (int b = 0; b < B; b++) {
            slots[b] = b % 11 == 5 ? -1 : (b * 7 + 3) % 97;
            counts[b] = b % 3 != 1;
            others[b] = (b * 5 + 1) % 97;
        }
        t.cu_seqlens = (gdn_tensor){ 0 };
        t.read_slots = ring2_indices(GDN_I32, B, slots);
        if (i & 4) t.token_count = ring2_indices(GDN_I32, B, counts);
        if (i & 16) {
            a.state_out = i & 8 ? by_channel(dtype, P, D, S) : ring2_clone(&a.state);
            t.write_slots = ring2_indices(GDN_I32, B, others);
        }
        if (i & 32) t.has_initial_state = ring2_indices(GDN_I32, B, counts);
        check_call(ring2_ctx(1), &a);
        const char *kernel = S == 4 ? "conv_one_longer" : "conv_one_";
        if (ring2_on_device())
            CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), kernel), "%s",
                  gdn_last_kernel(ring2_ctx(1)));
        ring2_free();
    }
}

/* More sequences than the second dimension of a device's grid has blocks. */
static void many_single_tokens(void)
{
    enum { B = 67000, P = 67003, D = 8, S = 3 };
    static int64_t slots[B];
    for (int b = 0; b < B; b++) slots[b] = (b * (int64_t)7 + 3) % P;
    for (int i = 0; i < 3 && !ring2_failed(); i++) {
        gdn_batch t;
        gdn_conv1d_args a = make_call(i, i, D, 4, S, &t);
        a.x = ring2_new(i, 0, 3, B, 1, D, 0);
        a.state = ring2_new(i, 0, 3, P, D, S, 0);
        ring2_fill(&a.x, -1, 1), ring2_fill(&a.state, -1, 1);
        a.out = ring2_clone(&a.x);
        t.cu_seqlens = (gdn_tensor){ 0 };
        t.read_slots = ring2_indices(GDN_I32, B, slots);
        check_call(ring2_ctx(1), &a);
        ring2_free();
    }
}

/* More tokens than walk, four taps, in whole warps of channels and cut ones, of all dtypes: rows if
 * taps lie side by side, plain or by slots and masks, and by cu_seqlens, some tokens behind the
 * last of them; states that rows start, of both orders, and longer ones; sums where SiLU is 0. */
static void tiles_of_rows(void)
{
    enum { B = 3, T = 45 };
    static const int64_t slots[] = { 2, -1, 0 }, counts[] = { 38, 45, 0 };
    static const int64_t cu[] = { 0, 61, 62, 130 }, fresh[] = { 1, 1, 0 };
    for (int i = 0; i < 192 && !ring2_failed(); i++) {
        const int64_t D = i % 2 ? 1100 : 140, S = i % 8 == 7 ? 4 : 3;
        const int form = i / 2 % 4, states = i / 5 % 3;
        const double most = i % 7 == 3 ? 120 : 1;
        gdn_batch t;
        gdn_conv1d_args a = make_call(i % 3, states, D, 4, S, &t);
        a.x =
            form == 3 ? ring2_new(i % 3, 0, 2, B * T, D, 0, 0) : ring2_new(i % 3, 0, 3, B, T, D, 0);
        a.weight =
            i & 8 ? ring2_new(i / 4 % 3, 0, 2, 4, D, 0, 0) : ring2_new(i / 4 % 3, 0, 2, D, 4, 0, 0);
        if (i & 8) a.weight = ring2_swap(&a.weight, 0, 1);
        if (i & 16) a.bias.data = NULL;
        if (i & 64) a.activation = GDN_ACT_NONE;
        a.state = i & 128 ? by_channel(states, B, D, S) : ring2_new(states, 0, 3, B, D, S, 0);
        ring2_fill(&a.x, -most, most), ring2_fill(&a.state, -1, 1), ring2_fill(&a.weight, -1, 1);
        a.out = ring2_clone(&a.x);
        t.cu_seqlens = form == 3 ? ring2_indices(GDN_I64, B + 1, cu) : (gdn_tensor){ 0 };
        t.pad_policy = i & 32 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        if (form == 1 || (form == 3 && i & 1)) t.read_slots = ring2_indices(GDN_I32, B, slots);
        if (form == 2) {
            t.token_count = ring2_indices(GDN_I32, B, counts);
            t.has_initial_state = ring2_indices(GDN_I32, B, fresh);
        }
        check_call(ring2_ctx(1), &a);
        if (ring2_on_device())
            CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), i & 8 ? "conv_tile" : "conv_rows"), "%s",
                  gdn_last_kernel(ring2_ctx(1)));
        ring2_free();
    }
}

/* Packed sequences, so many that a warp reads their bounds in several steps. Some are empty or
 * shorter than the taps. */
static void many_packed(void)
{
    enum { B = 1300, D = 8 };
    static int64_t cu[B + 1];
    for (int i = 0; i < 6 && !ring2_failed(); i++) {
        for (int b = 0; b < B; b++)
            cu[b + 1] = cu[b] + (b % 5 == 1 ? 0 : b % 5 == 2 ? 1 + b % 3 : b * 7 % 31);
        const int dtype = i % 3;
        gdn_batch t;
        gdn_conv1d_args a = make_call(dtype, dtype, D, 4, 3, &t);
        a.x = ring2_new(dtype, 0, 2, cu[B] + 20, D, 0, 0);
        a.state = ring2_new(dtype, 0, 3, B, D, 3, 0);
        ring2_fill(&a.x, -1, 1), ring2_fill(&a.state, -1, 1);
        a.out = ring2_clone(&a.x);
        t.cu_seqlens = ring2_indices(i < 3 ? GDN_I32 : GDN_I64, B + 1, cu);
        check_call(ring2_ctx(1), &a);
        if (ring2_on_device())
            CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), "conv_rows"), "%s",
                  gdn_last_kernel(ring2_ctx(1)));
        ring2_free();
    }
}

/* More sequences than slots, and no list of them: on a device those without a slot are skipped like
 * padding; a CPU refuses the call. Walks, tiles, rows, and sequences of one token. */
static void fewer_slots(void)
{
    enum { B = 5, HAVE = 3, D = 136 };
    static const int64_t own[B] = { 0, 1, 2, -1, -1 }, tokens[] = { 1, 7, 45 };
    static const int64_t cu[B + 1] = { 0, 40, 41, 90, 131, 200 };
    for (int i = 0; i < 48 && !ring2_failed(); i++) {
        const int dtype = i % 3, form = i / 3 % 4, P = i & 1 ? HAVE : B; /* P: of states read */
        gdn_batch t, listed;
        gdn_conv1d_args a = make_call(dtype, dtype, D, 4, 3, &t), b;
        a.x = form == 3 ? ring2_new(dtype, 0, 2, 207, D, 0, 0)
                        : ring2_new(dtype, 0, 3, B, tokens[form], D, 0);
        a.weight = i & 8 ? ring2_new(dtype, 0, 2, 4, D, 0, 0) : ring2_new(dtype, 0, 2, D, 4, 0, 0);
        if (i & 8) a.weight = ring2_swap(&a.weight, 0, 1);
        a.state = ring2_new(dtype, 0, 3, P, D, 3, 0);
        if (P == B) a.state_out = ring2_new(dtype, 0, 3, HAVE, D, 3, 0);
        ring2_fill(&a.x, -1, 1), ring2_fill(&a.state, -1, 1), ring2_fill(&a.weight, -1, 1);
        a.out = ring2_clone(&a.x);
        t.cu_seqlens = form == 3 ? ring2_indices(GDN_I32, B + 1, cu) : (gdn_tensor){ 0 };
        t.pad_policy = i & 16 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        if (!ring2_on_device()) {
            ring2_status(ring2_ctx(1), "fewer slots", gdn_conv1d(ring2_ctx(1), &a), GDN_E_ARG);
            continue;
        }
        listed = t, b = a;
        listed.read_slots = ring2_indices(GDN_I32, B, own);
        b.batch = &listed;
        b.out = ring2_clone(&a.out), b.state = ring2_clone(&a.state);
        b.state_out = ring2_clone(&a.state_out);
        ring2_status(ring2_ctx(1), "listed", gdn_conv1d(ring2_ctx(1), &b), GDN_OK);
        ring2_status(ring2_ctx(1), "fewer", gdn_conv1d(ring2_ctx(1), &a), GDN_OK);
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);
        if (P == B) ring2_expect_bits("state_out", &a.state_out, &b.state_out);
        ring2_free();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "any cut, same bits", any_cut_same_bits },
        { "conv1d: any strides, same bits", any_strides_same_bits },
        { "trap 7: state widths", trap_7_state_widths },
        { "single tokens", single_tokens },
        { "many single tokens", many_single_tokens },
        { "tiles of rows", tiles_of_rows },
        { "many packed sequences", many_packed },
        { "hostile contents", hostile_contents },
        { "fewer slots than sequences", fewer_slots },
    };
    static int rows[300][RING2_MAX_FACTORS];
    int levels[N_FACTORS], n;
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    for (int i = 0; i < N_FACTORS; i++)
        levels[i] = i < N_BATCH_FACTORS ? ring2_batch_factors[i].n : factors[i - N_BATCH_FACTORS].n;
    ring2_options(argc, argv);
    n = ring2_pairs(&f, rows, 300);
    for (int i = 0; i < n; i++) {
        char name[200];
        ring2_name_case(rows[i], factors, N_FACTORS - N_BATCH_FACTORS, name, sizeof name);
        if (!ring2_begin("conv1d %03d%s", i, name)) continue;
        run_case(rows[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
