/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_workspace_bytes() on a CPU: it grows, stays the same and is 0 where gdn.h promises so.
 * op_guarantees (G13) shows that the bytes are enough. */
#include "ring2.h"

enum { KIB = 1024, THREADS = 3 };

/* Sizes of a call: B sequences of T tokens. Layers have K = V. */
struct sizes {
    int64_t B, T, Hk, Hv, K, V;
};

static int n_threads = THREADS;

/* Descriptors only: the queries follow no pointer. */
static gdn_tensor fake(int index, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    void *at = (void *)(((uintptr_t)index + 1) << 50);
    return gdn_dense(at, GDN_F32, ndim, s0, s1, s2, s3);
}

static gdn_tensor fake_indices(int index, int ndim, int64_t s0, int64_t s1)
{
    gdn_tensor t = fake(index, ndim, s0, s1, 0, 0);
    t.dtype = GDN_I32;
    return t;
}

static size_t bytes_of(gdn_op op, const void *args)
{
    size_t bytes = 0;
    ring2_status(ring2_ctx(n_threads), "bytes",
                 gdn_workspace_bytes(ring2_ctx(n_threads), op, args, &bytes), GDN_OK);
    return bytes;
}

static bool leaves(const gdn_batch *batch)
{
    return batch && (batch->checkpoint_every || batch->checkpoint_starts.data);
}

static gdn_rule_args rule_of(const struct sizes *s, const gdn_batch *batch)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = fake(0, 4, s->B, s->T, s->Hk, s->K);
    a.k = fake(1, 4, s->B, s->T, s->Hk, s->K);
    a.v = fake(2, 4, s->B, s->T, s->Hv, s->V);
    a.out = fake(3, 4, s->B, s->T, s->Hv, s->V);
    a.state = fake(4, 4, s->B * s->T, s->Hv, s->V, s->K);
    a.batch = batch;
    if (leaves(batch)) a.checkpoints = fake(6, 4, 9, s->Hv, s->V, s->K);
    return a;
}

static size_t prefill_bytes(const struct sizes *s, const gdn_batch *batch)
{
    const gdn_rule_args a = rule_of(s, batch);
    return bytes_of(GDN_OP_PREFILL, &a);
}

static size_t decode_bytes(const struct sizes *s, const gdn_batch *batch)
{
    const gdn_rule_args a = rule_of(s, batch);
    return bytes_of(GDN_OP_DECODE, &a);
}

static int64_t channels_of(const struct sizes *s) { return 2 * s->Hk * s->K + s->Hv * s->V; }

static size_t conv_bytes(const struct sizes *s, const gdn_batch *batch)
{
    const int64_t D = channels_of(s);
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.batch = batch;
    if (leaves(batch)) a.checkpoints = fake(6, 3, 9, D, 3, 0);
    a.x = fake(0, 3, s->B, s->T, D, 0);
    a.out = fake(1, 3, s->B, s->T, D, 0);
    a.weight = fake(2, 2, D, 4, 0, 0);
    a.state = fake(3, 3, s->B * s->T, D, 3, 0);
    return bytes_of(GDN_OP_CONV1D, &a);
}

static size_t step_bytes(const struct sizes *s, const gdn_batch *batch)
{
    const int64_t D = channels_of(s);
    gdn_step_args a = gdn_step_args_init();
    a.x = fake(0, 3, s->B, s->T, D, 0), a.out = fake(1, 4, s->B, s->T, s->Hv, s->V);
    a.a = fake(2, 3, s->B, s->T, s->Hv, 0), a.b = fake(3, 3, s->B, s->T, s->Hv, 0);
    a.conv_weight = fake(4, 2, D, 4, 0, 0), a.A_log = fake(5, 1, s->Hv, 0, 0, 0);
    a.conv_state = fake(6, 3, s->B * s->T, D, 3, 0);
    a.state = fake(7, 4, s->B * s->T, s->Hv, s->V, s->K), a.batch = batch;
    a.n_key_heads = (int32_t)s->Hk, a.n_value_heads = (int32_t)s->Hv;
    a.key_head_dim = (int32_t)s->K, a.value_head_dim = (int32_t)s->V;
    return bytes_of(GDN_OP_STEP, &a);
}

static size_t block_bytes(const struct sizes *s, const gdn_batch *batch)
{
    const int64_t D = channels_of(s), hidden = 64;
    gdn_block_args a = gdn_block_args_init();
    a.batch = batch;
    if (leaves(batch)) a.checkpoints = fake(14, 4, 9, s->Hv, s->V, s->K);
    if (leaves(batch)) a.conv_checkpoints = fake(15, 3, 9, D, 3, 0);
    a.hidden = fake(0, 3, s->B, s->T, hidden, 0);
    a.out = fake(1, 3, s->B, s->T, hidden, 0);
    a.in_proj_qkv = fake(2, 2, D, hidden, 0, 0);
    a.in_proj_z = fake(3, 2, s->Hv * s->V, hidden, 0, 0);
    a.in_proj_b = fake(4, 2, s->Hv, hidden, 0, 0);
    a.in_proj_a = fake(5, 2, s->Hv, hidden, 0, 0);
    a.conv_weight = fake(6, 2, D, 4, 0, 0);
    a.A_log = fake(7, 1, s->Hv, 0, 0, 0);
    a.dt_bias = fake(8, 1, s->Hv, 0, 0, 0);
    a.norm_weight = fake(9, 1, s->V, 0, 0, 0);
    a.out_proj = fake(10, 2, hidden, s->Hv * s->V, 0, 0);
    a.conv_state = fake(11, 3, s->B, D, 3, 0);
    a.state = fake(12, 4, s->B, s->Hv, s->V, s->K);
    a.n_key_heads = (int32_t)s->Hk, a.n_value_heads = (int32_t)s->Hv;
    a.key_head_dim = (int32_t)s->K, a.value_head_dim = (int32_t)s->V;
    return bytes_of(GDN_OP_BLOCK, &a);
}

static const struct {
    const char *name;
    size_t (*bytes)(const struct sizes *s, const gdn_batch *batch);
} ops[] = { { "prefill", prefill_bytes },
            { "decode", decode_bytes },
            { "conv1d", conv_bytes },
            { "block", block_bytes },
            { "step", step_bytes } };

enum { PREFILL, DECODE, CONV1D, BLOCK, STEP, N_OPS };

static const struct sizes cases[] = {
    { 1, 9, 1, 1, 1, 1 },      { 37, 12, 2, 4, 64, 64 }, { 2, 70, 16, 32, 128, 128 },
    { 1, 10, 1, 128, 7, 200 }, { 50, 9, 3, 3, 256, 1 },  { 3, 9, 4, 8, 256, 1024 },
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void expect_more(const char *name, const char *of, int i, size_t more, size_t less)
{
    CHECK(more >= less, "%s, case %d: %zu bytes with more %s, %zu with less", name, i, more, of,
          less);
}

/* With more sequences, heads, larger heads and more threads. */
static void sizes_grow(void)
{
    for (int i = 0; i < N_OPS * N_CASES; i++) {
        const char *name = ops[i % N_OPS].name;
        const struct sizes s = cases[i / N_OPS];
        const size_t less = ops[i % N_OPS].bytes(&s, NULL);
        struct sizes B = s, H = s, K = s, V = s;
        B.B *= 3, H.Hk *= 2, H.Hv *= 2;
        K.K = K.K < 128 ? 2 * K.K : 256, V.V = V.V < 512 ? 2 * V.V : 1024;
        expect_more(name, "sequences", i / N_OPS, ops[i % N_OPS].bytes(&B, NULL), less);
        expect_more(name, "heads", i / N_OPS, ops[i % N_OPS].bytes(&H, NULL), less);
        expect_more(name, "K", i / N_OPS, ops[i % N_OPS].bytes(&K, NULL), less);
        expect_more(name, "V", i / N_OPS, ops[i % N_OPS].bytes(&V, NULL), less);
        n_threads = THREADS + 1;
        expect_more(name, "threads", i / N_OPS, ops[i % N_OPS].bytes(&s, NULL), less);
        n_threads = THREADS;
    }
}

/* A thread of the rule takes at most 640 KiB, and V / 256 times as much if V is above 256. */
static void a_thread_is_bounded(void)
{
    for (int i = 0; i < 2 * N_CASES; i++) {
        const struct sizes *s = &cases[i / 2];
        const int64_t limit = 640 * KIB * (s->V > 256 ? s->V : 256) / 256;
        n_threads = 1;
        const size_t one = ops[i % 2].bytes(s, NULL);
        n_threads = THREADS;
        const size_t all = ops[i % 2].bytes(s, NULL);
        CHECK(all - one <= (size_t)((THREADS - 1) * limit), "%s, case %d: %zu and %zu bytes",
              ops[i % 2].name, i / 2, one, all);
    }
}

/* Without lists of slots, trees and checkpoints tokens count in a step alone. */
static void tokens_count_in_a_step_alone(void)
{
    for (int i = 0; i < N_OPS * N_CASES; i++) {
        struct sizes few = cases[i / N_OPS], many = few;
        few.T = 257, many.T = 1 << 20;
        const size_t a = ops[i % N_OPS].bytes(&few, NULL), b = ops[i % N_OPS].bytes(&many, NULL);
        CHECK(i % N_OPS == STEP ? b > a : b == a,
              "%s, case %d: %zu bytes for 257 tokens, %zu for "
              "many",
              ops[i % N_OPS].name, i / N_OPS, a, b);
    }
}

/* Checks that the bytes grow with the tokens of a batch, and are more than without it. */
static void expect_growth(int op, const gdn_batch *few, const gdn_batch *many, int64_t T_few,
                          int64_t T_many)
{
    struct sizes s = { 30, T_few, 2, 4, 64, 64 };
    const size_t none = ops[op].bytes(&s, NULL), some = ops[op].bytes(&s, few);
    s.T = T_many;
    const size_t more = ops[op].bytes(&s, many);
    CHECK(none <= some && some < more, "%s: %zu bytes, %zu, %zu", ops[op].name, none, some, more);
}

/* A batch of 30 sequences with an entry for each of T tokens: a slot, or a parent. */
static gdn_batch entries(bool tree, int64_t T)
{
    gdn_batch batch = gdn_batch_init();
    if (!tree) batch.write = GDN_WRITE_EACH;
    *(tree ? &batch.parents : &batch.write_slots) = fake_indices(20, 2, 30, T);
    return batch;
}

static void slots_and_trees_grow(void)
{
    static const struct {
        int op;
        bool tree;
    } grow[] = {
        { DECODE, false }, { CONV1D, false }, { STEP, false }, { DECODE, true }, { STEP, true }
    };
    for (int i = 0; i < 5; i++) {
        const gdn_batch few = entries(grow[i].tree, 4), many = entries(grow[i].tree, 64);
        expect_growth(grow[i].op, &few, &many, 4, 64);
    }
}

static void checkpoints_grow(void)
{
    for (int op = 0; op < STEP; op++) {
        gdn_batch few = gdn_batch_init(), many = few, every = few, seldom = few;
        few.checkpoint_starts = many.checkpoint_starts = fake_indices(20, 1, 31, 0);
        few.checkpoint_positions = fake_indices(21, 1, 5, 0);
        many.checkpoint_positions = fake_indices(21, 1, 50000, 0);
        seldom.checkpoint_every = 2048, every.checkpoint_every = 2;
        expect_growth(op, &few, &many, 4096, 4096);
        expect_growth(op, &seldom, &every, 4096, 4096);
    }
}

static void rows_need_none(void)
{
    gdn_gates_args g = gdn_gates_args_init();
    g.a = fake(0, 2, 999, 32, 0, 0), g.g = fake(1, 2, 999, 32, 0, 0);
    g.A_log = fake(2, 1, 32, 0, 0, 0);
    CHECK(bytes_of(GDN_OP_GATES, &g) == 0, "gates");
    gdn_l2norm_args l = gdn_l2norm_args_init();
    l.x = fake(0, 2, 999, 128, 0, 0), l.out = fake(1, 2, 999, 128, 0, 0);
    CHECK(bytes_of(GDN_OP_L2NORM, &l) == 0, "l2norm");
    gdn_rmsnorm_gated_args r = gdn_rmsnorm_gated_args_init();
    r.x = fake(0, 2, 999, 128, 0, 0), r.out = fake(1, 2, 999, 128, 0, 0);
    CHECK(bytes_of(GDN_OP_RMSNORM_GATED, &r) == 0, "rmsnorm_gated");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "sizes grow", sizes_grow },
        { "a thread is bounded", a_thread_is_bounded },
        { "tokens count in a step alone", tokens_count_in_a_step_alone },
        { "slots and trees grow", slots_and_trees_grow },
        { "checkpoints grow", checkpoints_grow },
        { "rows need none", rows_need_none },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
