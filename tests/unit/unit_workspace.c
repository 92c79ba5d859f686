/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_workspace_bytes(): never above what gdn.h says, and the same for any number of tokens. */
#include "gdn_train.h"
#include "ring2.h"

enum { KIB = 1024, THREADS = 3 };

/* Descriptors only: the queries follow no pointer. */
static gdn_tensor fake(int index, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    void *at = (void *)(((uintptr_t)index + 1) << 50);
    return gdn_dense(at, GDN_F32, ndim, s0, s1, s2, s3);
}

static size_t bytes_of(gdn_op op, const void *args)
{
    size_t bytes = 0;
    ring2_status(ring2_ctx(THREADS), "bytes",
                 gdn_workspace_bytes(ring2_ctx(THREADS), op, args, &bytes), GDN_OK);
    return bytes;
}

static bool leaves(const gdn_batch *batch)
{
    return batch && (batch->checkpoint_every || batch->checkpoint_starts.data);
}

/* B sequences of T tokens. */
static size_t rule_bytes(gdn_op op, int64_t B, int64_t T, int64_t Hk, int64_t Hv, int64_t K,
                         int64_t V, gdn_batch *batch)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q     = fake(0, 4, B, T, Hk, K);
    a.k     = fake(1, 4, B, T, Hk, K);
    a.v     = fake(2, 4, B, T, Hv, V);
    a.out   = fake(3, 4, B, T, Hv, V);
    a.state = fake(4, 4, B * T, Hv, V, K);
    a.batch = batch;
    if (leaves(batch)) a.checkpoints = fake(6, 4, 9, Hv, V, K);
    return bytes_of(op, &a);
}

/* So many times the bytes of a thread. */
static int64_t threads_for(int64_t V) { return THREADS * (V + 255) / 256; }

static void rule_is_bounded(void)
{
    enum { N_SIZES = 7 };
    static const int64_t heads[][2] = { { 1, 1 }, { 16, 32 }, { 1, 128 }, { 3, 3 } };
    static const int64_t sizes[N_SIZES][2] = { { 1, 1 },   { 128, 128 }, { 256, 256 }, { 256, 1 },
                                               { 7, 200 }, { 256, 512 }, { 256, 1024 } };
    for (int i = 0; i < 4 * N_SIZES * 3; i++) {
        const int64_t *h = heads[i % 4], *d = sizes[i / 4 % N_SIZES], turn = i / (4 * N_SIZES);
        const int64_t  B = turn == 0 ? 1 : turn * 50;
        const size_t   limit = (size_t)(threads_for(d[1]) * 640 * KIB + 16 * h[1] + 192 * B);
        const size_t   few = rule_bytes(GDN_OP_PREFILL, B, 9, h[0], h[1], d[0], d[1], NULL);
        const size_t   many = rule_bytes(GDN_OP_PREFILL, B, 1 << 20, h[0], h[1], d[0], d[1], NULL);
        const size_t   step = rule_bytes(GDN_OP_DECODE, B, 4, h[0], h[1], d[0], d[1], NULL);
        gdn_batch      each = gdn_batch_init();
        each.write          = GDN_WRITE_EACH;
        each.write_slots    = fake(5, 2, B, 4, 0, 0);
        each.write_slots.dtype = GDN_I32;
        const size_t slots = rule_bytes(GDN_OP_DECODE, B, 4, h[0], h[1], d[0], d[1], &each);
        CHECK(few == many, "case %d: %zu bytes for 9 tokens, %zu for many", i, few, many);
        CHECK(many <= limit && step <= limit, "case %d: %zu and %zu bytes, at most %zu", i, many,
              step, limit);
        CHECK(slots <= limit + 64 * (size_t)(4 * B), "case %d: %zu bytes with each", i, slots);
    }
}

/* Trees of T tokens: 64 bytes a token more, however deep. */
static void trees_are_bounded(void)
{
    static const int64_t lengths[] = { 1, 4, 64, 1 << 20 };
    for (int i = 0; i < 8; i++) {
        const int64_t T = lengths[i % 4], B = i < 4 ? 1 : 30;
        gdn_batch     tree = gdn_batch_init();
        tree.parents       = fake(5, 2, B, T, 0, 0);
        tree.parents.dtype = GDN_I32;
        const size_t bytes = rule_bytes(GDN_OP_DECODE, B, T, 16, 32, 256, 256, &tree);
        const size_t limit = (size_t)(THREADS * 640 * KIB + 16 * 32 + 192 * B + 64 * B * T);
        CHECK(bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
    }
}

static void records_are_bounded(void)
{
    enum { R = 8, Hk = 2, H = 4, K = 256, V = 200 };
    for (int i = 0; i < 3; i++) {
        const int64_t B = i == 2 ? 50 : 1, P = i == 0 ? 1 : 1 << 20, T = 4;
        const size_t  slots = (size_t)(192 * B + P / 8 + 64);
        gdn_batch     batch = gdn_batch_init();
        batch.write            = GDN_WRITE_NONE;
        batch.read_slots       = fake(0, 1, B, 0, 0, 0);
        batch.read_slots.dtype = GDN_I32;
        gdn_rule_args a = gdn_rule_args_init();
        a.q = fake(1, 4, B, T, Hk, K), a.k = fake(2, 4, B, T, Hk, K);
        a.v = fake(3, 4, B, T, H, V), a.out = fake(4, 4, B, T, H, V);
        a.state = fake(5, 4, P, H, V, K), a.batch = &batch;
        a.record_k = fake(6, 4, P, R, Hk, K), a.record_u = fake(7, 4, P, R, H, V);
        a.record_g = fake(8, 3, P, R, H, 0), a.record_count = fake(9, 1, P, 0, 0, 0);
        a.record_count.dtype = GDN_I32;
        gdn_record_commit_args c = gdn_record_commit_args_init();
        c.record_k = a.record_k, c.record_u = a.record_u, c.record_g = a.record_g;
        c.record_count = a.record_count, c.n_accepted = fake(10, 1, B, 0, 0, 0);
        c.n_accepted.dtype = GDN_I32, c.batch = &batch;
        gdn_record_fold_args f = gdn_record_fold_args_init();
        f.state = a.state, f.record_k = a.record_k, f.record_u = a.record_u;
        f.record_g = a.record_g, f.record_count = a.record_count, f.batch = &batch;
        const size_t decode = bytes_of(GDN_OP_DECODE, &a);
        const size_t commit = bytes_of(GDN_OP_RECORD_COMMIT, &c);
        const size_t fold   = bytes_of(GDN_OP_RECORD_FOLD, &f);
        CHECK(decode <= THREADS * 640 * KIB + 16 * H + slots, "case %d: decode %zu", i, decode);
        CHECK(commit <= slots, "case %d: commit %zu, at most %zu", i, commit, slots);
        CHECK(fold <= THREADS * 128 * KIB + slots, "case %d: fold %zu", i, fold);
    }
}

static size_t conv_bytes(int64_t B, int64_t T, int64_t D, int64_t W, const gdn_batch *batch)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.batch  = batch;
    if (leaves(batch)) a.checkpoints = fake(6, 3, 9, D, W - 1, 0);
    a.x      = fake(0, 3, B, T, D, 0);
    a.out    = fake(1, 3, B, T, D, 0);
    a.weight = fake(2, 2, D, W, 0, 0);
    a.state  = fake(3, 3, B, D, W - 1, 0);
    return bytes_of(GDN_OP_CONV1D, &a);
}

static void conv_is_bounded(void)
{
    static const int64_t taps[] = { 2, 8, 16 };
    for (int i = 0; i < 18; i++) {
        const int64_t B = i % 2 ? 100 : 1, W = taps[i / 2 % 3], D = i / 6 == 0 ? 3 : i / 6 * 9000;
        const size_t  few = conv_bytes(B, 1, D, W, NULL);
        const size_t  many = conv_bytes(B, 1 << 20, D, W, NULL);
        CHECK(few == many, "case %d: %zu bytes for a token, %zu for many", i, few, many);
        CHECK(many <= (size_t)(THREADS * (W > 8 ? 128 : 64) * KIB + 192 * B),
              "case %d: %zu bytes", i, many);
    }
}

static void step_is_bounded(void)
{
    for (int i = 0; i < 6; i++) {
        const int64_t B = i % 2 ? 100 : 1, T = i / 2 * 3 + 1, Hk = 2, Hv = 4, d = 64;
        const int64_t D = 2 * Hk * d + Hv * d;
        gdn_step_args a = gdn_step_args_init();
        a.x = fake(0, 3, B, T, D, 0), a.out = fake(1, 4, B, T, Hv, d);
        a.a = fake(2, 3, B, T, Hv, 0), a.b = fake(3, 3, B, T, Hv, 0);
        a.conv_weight = fake(4, 2, D, 4, 0, 0), a.A_log = fake(5, 1, Hv, 0, 0, 0);
        a.conv_state = fake(6, 3, B, D, 3, 0), a.state = fake(7, 4, B, Hv, d, d);
        a.n_key_heads = (int32_t)Hk, a.n_value_heads = (int32_t)Hv;
        a.key_head_dim = a.value_head_dim = (int32_t)d;
        const size_t bytes = bytes_of(GDN_OP_STEP, &a);
        const size_t limit = (size_t)(THREADS * 640 * KIB + 16 * Hv + 192 * B + 4 * B * T * D);
        CHECK(bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
    }
}

static size_t block_bytes(int64_t B, int64_t T, int64_t hidden, int64_t Hk, int64_t Hv, int64_t d,
                          const gdn_batch *batch)
{
    const int64_t  D = 2 * Hk * d + Hv * d;
    gdn_block_args a = gdn_block_args_init();
    a.batch        = batch;
    if (leaves(batch)) a.checkpoints = fake(14, 4, 9, Hv, d, d);
    if (leaves(batch)) a.conv_checkpoints = fake(15, 3, 9, D, 3, 0);
    a.hidden       = fake(0, 3, B, T, hidden, 0);
    a.out          = fake(1, 3, B, T, hidden, 0);
    a.in_proj_qkv  = fake(2, 2, D, hidden, 0, 0);
    a.in_proj_z    = fake(3, 2, Hv * d, hidden, 0, 0);
    a.in_proj_b    = fake(4, 2, Hv, hidden, 0, 0);
    a.in_proj_a    = fake(5, 2, Hv, hidden, 0, 0);
    a.conv_weight  = fake(6, 2, D, 4, 0, 0);
    a.A_log        = fake(7, 1, Hv, 0, 0, 0);
    a.dt_bias      = fake(8, 1, Hv, 0, 0, 0);
    a.norm_weight  = fake(9, 1, d, 0, 0, 0);
    a.out_proj     = fake(10, 2, hidden, Hv * d, 0, 0);
    a.conv_state   = fake(11, 3, B, D, 3, 0);
    a.state        = fake(12, 4, B, Hv, d, d);
    a.n_key_heads = (int32_t)Hk, a.n_value_heads = (int32_t)Hv;
    a.key_head_dim = a.value_head_dim = (int32_t)d;
    return bytes_of(GDN_OP_BLOCK, &a);
}

static void block_is_bounded(void)
{
    static const int64_t sizes[][4] = { { 64, 2, 4, 32 }, { 2048, 16, 32, 128 }, { 5, 1, 1, 1 } };
    for (int i = 0; i < 6; i++) {
        const int64_t *s = sizes[i % 3], B = i < 3 ? 1 : 40;
        const int64_t  states = 2 * 4 * (s[2] * s[3] * s[3] + 3 * (2 * s[1] + s[2]) * s[3]);
        const int64_t  row = s[0] + 2 * s[1] * s[3] + 3 * s[2] * s[3] + 3 * s[2];
        const int64_t  fixed = THREADS * 640 * KIB + 64 * KIB;
        const size_t   limit = (size_t)(fixed + 192 * B + states + KIB * row);
        const size_t   few = block_bytes(B, 257, s[0], s[1], s[2], s[3], NULL);
        const size_t   many = block_bytes(B, 1 << 20, s[0], s[1], s[2], s[3], NULL);
        CHECK(few == many, "case %d: %zu bytes for 257 tokens, %zu for many", i, few, many);
        CHECK(many <= limit, "case %d: %zu bytes, at most %zu", i, many, limit);
    }
}

/* 64 bytes for each checkpoint that there may be, beside what the call needs without. */
/* Beside its own buffers it has room for the part that needs most, by the bounds of those. */
static void block_backward_is_bounded(void)
{
    enum { H = 4, G = 2, K = 16, V = 24, VV = H * V, D = 2 * G * K + VV, HIDDEN = 40 };
    static const int64_t lengths[] = { 9, 300, 5000 };
    for (int i = 0; i < 6; i++) {
        const int64_t           N = lengths[i / 2];
        const bool              fused = i % 2;
        gdn_block_backward_args a = gdn_block_backward_args_init();
        a.hidden = fake(0, 2, N, HIDDEN, 0, 0), a.dout = fake(1, 2, N, HIDDEN, 0, 0);
        a.dhidden = fake(2, 2, N, HIDDEN, 0, 0), a.dnorm_weight = fake(3, 1, V, 0, 0, 0);
        if (fused) {
            a.in_proj_qkvz = fake(4, 2, D + VV, HIDDEN, 0, 0);
            a.in_proj_ba   = fake(5, 2, 2 * H, HIDDEN, 0, 0);
        } else {
            a.in_proj_qkv = fake(4, 2, D, HIDDEN, 0, 0);
            a.in_proj_z   = fake(5, 2, VV, HIDDEN, 0, 0);
            a.in_proj_b = fake(6, 2, H, HIDDEN, 0, 0), a.in_proj_a = fake(7, 2, H, HIDDEN, 0, 0);
        }
        a.conv_weight = fake(8, 2, D, 4, 0, 0), a.norm_weight = fake(9, 1, V, 0, 0, 0);
        a.A_log = fake(10, 1, H, 0, 0, 0), a.dt_bias = fake(11, 1, H, 0, 0, 0);
        a.dA_log = fake(12, 1, H, 0, 0, 0), a.out_proj = fake(13, 2, HIDDEN, VV, 0, 0);
        a.n_key_heads = G, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
        const int64_t rows = 4 * (2 * HIDDEN + 8 * G * K + 9 * VV) + 4 * HIDDEN + 24 * H +
                             (fused ? 8 * (G * K + VV) : 0);
        const int64_t own  = N * rows + KIB * (HIDDEN + 2 * G * K + 2 * VV) + THREADS * 192 * KIB +
                            192 + 2 * KIB;
        const int64_t prefill = THREADS * 640 * KIB + 16 * H + 192;
        const int64_t back =
            24 * H + 208 * H +
            THREADS * ((H / G) * (4 * (K + 32) * (V + 48) * (19 + N / 256) + KIB * KIB) +
                       32 * KIB * KIB);
        const int64_t most  = back > prefill ? back : prefill;
        const size_t  bytes = bytes_of(GDN_OP_BLOCK_BACKWARD, &a);
        CHECK(bytes <= (size_t)(own + most), "case %d: %zu bytes, at most %lld", i, bytes,
              (long long)(own + most));
    }
}

static void expect_more(const char *what, size_t with, size_t without, int64_t n)
{
    CHECK(with >= without && with <= without + 64 * (size_t)n,
          "%s: %zu bytes with %d checkpoints, %zu without", what, with, (int)n, without);
}

static void checkpoints_are_bounded(void)
{
    for (int i = 0; i < 12; i++) {
        const int64_t B = i % 2 ? 1 : 37, n = 5 + i * i * 17, T = 4096;
        gdn_batch     list = gdn_batch_init(), every = gdn_batch_init();
        list.checkpoint_starts    = fake(20, 1, B + 1, 0, 0, 0);
        list.checkpoint_positions = fake(21, 1, n, 0, 0, 0);
        list.checkpoint_starts.dtype = list.checkpoint_positions.dtype = GDN_I32;
        every.checkpoint_every                                         = 100 + i;
        const int64_t per = B * T / every.checkpoint_every;
        const size_t  limit = THREADS * 640 * KIB + 16 * 4 + 192 * (size_t)B;
        const size_t  conv = THREADS * 64 * KIB + 192 * (size_t)B;
        const size_t  block = block_bytes(B, T, 64, 2, 4, 32, NULL);
        for (gdn_op op = GDN_OP_PREFILL; op <= GDN_OP_DECODE; op++) {
            const size_t a = rule_bytes(op, B, T, 2, 4, 128, 128, &list);
            const size_t b = rule_bytes(op, B, T, 2, 4, 128, 128, &every);
            CHECK(a <= limit + 64 * (size_t)n, "a list: %zu bytes", a);
            CHECK(b <= limit + 64 * (size_t)per, "every: %zu bytes", b);
        }
        CHECK(conv_bytes(B, T, 3000, 8, &list) <= conv + 64 * (size_t)n, "conv1d, a list");
        CHECK(conv_bytes(B, T, 3000, 8, &every) <= conv + 64 * (size_t)per, "conv1d, every");
        expect_more("block, a list", block_bytes(B, T, 64, 2, 4, 32, &list), block, n);
        expect_more("block, every", block_bytes(B, T, 64, 2, 4, 32, &every), block, per);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "prefill and decode", rule_is_bounded },
        { "trees", trees_are_bounded },
        { "records", records_are_bounded },
        { "conv1d", conv_is_bounded },
        { "step", step_is_bounded },
        { "block", block_is_bounded },
        { "block_backward", block_backward_is_bounded },
        { "checkpoints", checkpoints_are_bounded },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
