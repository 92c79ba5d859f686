/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/*
 * Rules beyond Gated DeltaNet (gdn.h, "The family") on a device: all ops have kernels for them.
 * And GDN_SPLIT_INVARIANT, where a GPU refuses some calls by name, and launches nothing.
 */
#include <string.h>

#include "cuda/decode/args.h"
#include "fake_ctx.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

enum { B = 2, T = 16, H = 4, K = 64, V = 64, N = B * T, R = 5 };

static gdn_ctx *ctx;

/* A tensor of its own memory, which nothing here reads. */
static gdn_tensor fresh(int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    static uintptr_t n;
    n++;
    return gdn_dense((void *)(n << 36), GDN_F32, ndim, s0, s1, s2, s3);
}
static gdn_tensor per_channel(int64_t n_rows) { return fresh(4, B, n_rows / B, H, K); }

/* Checks that the valid call runs. The spoilt call must be refused, by an error that names
 * `name`, both when it runs and when its workspace is asked for. */
static void refused(const char *what, gdn_op op, const void *valid, const void *spoilt,
                    const char *name)
{
    const int *launches = &fake->n_calls[FAKE_cuLaunchKernelEx];
    ring2_status(ctx, what, gdn_run_op(ctx, op, valid), GDN_OK);
    const int before = *launches;
    size_t bytes;
    CHECK(before > 0, "%s: the valid call launched nothing", what);
    ring2_status(ctx, what, gdn_workspace_bytes(ctx, op, spoilt, &bytes), GDN_E_UNSUPPORTED);
    ring2_status(ctx, what, gdn_run_op(ctx, op, spoilt), GDN_E_UNSUPPORTED);
    const char *said = gdn_last_error(ctx);
    CHECK(strstr(said, name), "%s: \"%s\", wanted %s", what, said, name);
    CHECK(strstr(said, "on a GPU"), "%s: \"%s\"", what, said);
    CHECK(*launches == before, "%s: %d launches", what, *launches - before);
}

#define REFUSE(what, op, args, name, ...)            \
    do {                                             \
        const args##_args valid = make_##args();     \
        args##_args changed = valid, *a = &changed;  \
        __VA_ARGS__;                                 \
        refused(what, GDN_OP_##op, &valid, a, name); \
    } while (0)

/* ---- Calls of Gated DeltaNet --------------------------------------------------------------- */

static gdn_rule_args make_gdn_rule(void)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = fresh(4, B, T, H, K), a.k = fresh(4, B, T, H, K);
    a.v = fresh(4, B, T, H, V), a.out = fresh(4, B, T, H, V);
    a.g = fresh(3, B, T, H, 0), a.beta = fresh(3, B, T, H, 0);
    a.state = fresh(4, B, H, V, K);
    return a;
}

static gdn_prefill_backward_args make_gdn_prefill_backward(void)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = fresh(4, B, T, H, K), a.k = fresh(4, B, T, H, K);
    a.v = fresh(4, B, T, H, V), a.dout = fresh(4, B, T, H, V);
    a.g = fresh(3, B, T, H, 0), a.beta = fresh(3, B, T, H, 0);
    a.dq = fresh(4, B, T, H, K), a.dg = fresh(3, B, T, H, 0);
    return a;
}

static gdn_summary_args make_gdn_summary(void)
{
    gdn_summary_args a = gdn_summary_args_init();
    a.k = fresh(4, B, T, H, K), a.v = fresh(4, B, T, H, V);
    a.g = fresh(3, B, T, H, 0), a.beta = fresh(3, B, T, H, 0);
    a.M = fresh(4, B, H, K, K), a.U = fresh(4, B, H, V, K);
    return a;
}

static gdn_gates_args make_gdn_gates(void)
{
    gdn_gates_args a = gdn_gates_args_init();
    a.a = fresh(2, N, H, 0, 0), a.g = fresh(2, N, H, 0, 0);
    a.A_log = fresh(1, H, 0, 0, 0), a.dt_bias = fresh(1, H, 0, 0, 0);
    return a;
}

static gdn_gates_backward_args make_gdn_gates_backward(void)
{
    gdn_gates_backward_args a = gdn_gates_backward_args_init();
    a.a = fresh(2, N, H, 0, 0), a.dg = fresh(2, N, H, 0, 0), a.da = fresh(2, N, H, 0, 0);
    a.A_log = fresh(1, H, 0, 0, 0), a.dt_bias = fresh(1, H, 0, 0, 0);
    return a;
}

static gdn_step_args make_gdn_step(void)
{
    enum { W = 4, D = 2 * H * K + H * V };
    gdn_step_args a = gdn_step_args_init();
    a.x = fresh(3, B, T, D, 0), a.conv_weight = fresh(2, D, W, 0, 0);
    a.a = fresh(3, B, T, H, 0), a.b = fresh(3, B, T, H, 0), a.A_log = fresh(1, H, 0, 0, 0);
    a.conv_state = fresh(3, B, D, W, 0), a.state = fresh(4, B, H, V, K);
    a.out = fresh(4, B, T, H, V);
    a.n_key_heads = a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
    return a;
}

static gdn_record_commit_args make_gdn_record_commit(void)
{
    static gdn_batch slots;
    gdn_record_commit_args a = gdn_record_commit_args_init();
    slots = gdn_batch_init();
    slots.read_slots = gdn_dense((void *)((uintptr_t)1 << 60), GDN_I32, 1, B, 0, 0, 0);
    a.batch = &slots;
    a.record_k = fresh(4, B, R, H, K), a.record_u = fresh(4, B, R, H, V);
    a.record_g = fresh(3, B, R, H, 0);
    a.record_count = a.n_accepted = fresh(1, B, 0, 0, 0);
    a.record_count.dtype = a.n_accepted.dtype = GDN_I32;
    a.n_accepted.data = (char *)a.n_accepted.data + 64;
    return a;
}

static gdn_record_fold_args make_gdn_record_fold(void)
{
    const gdn_record_commit_args c = make_gdn_record_commit();
    gdn_record_fold_args a = gdn_record_fold_args_init();
    a.batch = c.batch;
    a.record_k = c.record_k, a.record_u = c.record_u, a.record_g = c.record_g;
    a.record_count = c.record_count;
    a.state = fresh(4, B, H, V, K);
    return a;
}

/* ---- Tests --------------------------------------------------------------------------------- */

/* Expects that a call launches kernels. */
static void runs(const char *what, gdn_op op, const void *args)
{
    const int *launches = &fake->n_calls[FAKE_cuLaunchKernelEx], before = *launches;
    ring2_status(ctx, what, gdn_run_op(ctx, op, args), GDN_OK);
    CHECK(*launches > before, "%s: launched nothing", what);
}

/* Checks that the call launches `kernel`. */
static void runs_as(const char *what, gdn_op op, const void *args, const char *kernel)
{
    runs(what, op, args);
    const char *ran = gdn_last_kernel(ctx);
    CHECK(strstr(ran, kernel), "%s: \"%s\", wanted %s", what, ran, kernel);
}

static gdn_rule_args make_kda(void)
{
    gdn_rule_args a = make_gdn_rule();
    a.g = per_channel(N);
    return a;
}

static void test_rule(gdn_op op)
{
    gdn_rule_args kda = make_kda(), a = kda;
    runs("KDA", op, &kda);
    a.beta = per_channel(N), a.write_gate = fresh(4, B, T, H, V), runs("GDN-2", op, &a);
    a = make_gdn_rule(), a.updates = 2, a.k = per_channel(2 * N), a.v = fresh(4, B, 2 * T, H, V);
    a.beta = fresh(3, B, 2 * T, H, 0), runs("DeltaProduct", op, &a);
    a = make_gdn_rule(), a.gate = GDN_GATE_RAW, a.gate_lower_bound = -5, runs("A_log", op, &a);
    a = kda, a.state.dtype = GDN_I8, a.state_scales = fresh(3, B, H, V, 0);
    runs_as("8 bits", op, &a, "gdn_decode_channels_walk_vk_64");
}

static void test_prefill(void) { test_rule(GDN_OP_PREFILL); }

static void test_decode(void)
{
    const gdn_rule_args kda = make_kda();
    gdn_batch tree = gdn_batch_init(), slots = gdn_batch_init();
    gdn_rule_args a = kda;
    test_rule(GDN_OP_DECODE);
    slots.read_slots = tree.read_slots =
        gdn_dense((void *)((uintptr_t)1 << 60), GDN_I32, 1, B, 0, 0, 0);
    slots.write = tree.write = GDN_WRITE_NONE;
    tree.parents = gdn_dense((void *)((uintptr_t)1 << 61), GDN_I32, 2, B, T, 0, 0);
    a.batch = &tree;
    runs_as("tree", GDN_OP_DECODE, &a, "gdn_decode_channels_walk_vk_64");
    a.batch = &slots;
    a.record_k = fresh(4, B, T, H, K), a.record_u = fresh(4, B, T, H, V);
    a.record_g = fresh(4, B, T, H, K), a.record_count = fresh(1, B, 0, 0, 0);
    a.record_count.dtype = GDN_I32;
    runs_as("record", GDN_OP_DECODE, &a, "gdn_decode_channels_walk_vk_64");
    a.record_g.data = (void *)((uintptr_t)1 << 55);
    a.record_g.stride[3] = (int64_t)1 << 31, a.record_g.stride[2] = (int64_t)1 << 37;
    a.record_g.stride[1] = (int64_t)1 << 39, a.record_g.stride[0] = (int64_t)1 << 43;
    refused("far channels", GDN_OP_DECODE, &kda, &a, "record_g: channels 2147483648 apart");
}

#define TAKES(what, ...)                                                           \
    do {                                                                           \
        gdn_prefill_backward_args valid = make_gdn_prefill_backward();             \
        gdn_prefill_backward_args *a = &valid;                                     \
        __VA_ARGS__;                                                               \
        runs_as(what, GDN_OP_PREFILL_BACKWARD, a, "gdn_backward_channels_pieces"); \
    } while (0)

static void test_gradients(void)
{
    gdn_prefill_backward_args plain = make_gdn_prefill_backward();
    runs_as("plain", GDN_OP_PREFILL_BACKWARD, &plain, "gdn_backward_general_chunk");
    TAKES("g", a->g = per_channel(N), a->dg = per_channel(N));
    TAKES("beta", a->beta = per_channel(N), a->dbeta = per_channel(N));
    TAKES("write", a->write_gate = fresh(4, B, T, H, V), a->dwrite_gate = fresh(4, B, T, H, V));
    TAKES("updates", a->updates = 2, a->k = per_channel(2 * N), a->v = fresh(4, B, 2 * T, H, V),
          a->beta = fresh(3, B, 2 * T, H, 0));
    TAKES("A_log", a->gate = GDN_GATE_RAW, a->gate_lower_bound = -5);
}

static void test_summary(void)
{
    gdn_summary_args a = make_gdn_summary();
    a.g = per_channel(N), runs("g", GDN_OP_SUMMARY, &a);
    a.beta = per_channel(N), runs("beta", GDN_OP_SUMMARY, &a);
    a.write_gate = fresh(4, B, T, H, V), runs("write", GDN_OP_SUMMARY, &a);
    a.k.dtype = a.v.dtype = GDN_BF16;
    runs_as("bf16", GDN_OP_SUMMARY, &a, "gdn_prefill_channels_chunks_BF16_64");
    a.M.data = NULL, runs("U", GDN_OP_SUMMARY, &a);
}

static void test_gates(void)
{
    gdn_gates_args g = make_gdn_gates();
    gdn_gates_backward_args d = make_gdn_gates_backward();
    g.a = fresh(3, N, H, K, 0), g.g = fresh(3, N, H, K, 0), g.dt_bias = fresh(2, H, K, 0, 0);
    runs("gates", GDN_OP_GATES, &g);
    g.A_log.data = NULL, g.gate_lower_bound = -5, runs("A_log", GDN_OP_GATES, &g);
    d.a = fresh(3, N, H, K, 0), d.da = fresh(3, N, H, K, 0), d.dg = fresh(3, N, H, K, 0);
    d.dt_bias = fresh(2, H, K, 0, 0);
    runs("gradients", GDN_OP_GATES_BACKWARD, &d);
    gdn_step_args s = make_gdn_step();
    s.a = per_channel(N), s.dt_bias = fresh(2, H, K, 0, 0), runs("step", GDN_OP_STEP, &s);
}

/* gdn_step of GDN-2 and of three updates; without a convolution the rule reads x. */
static void test_steps(void)
{
    enum { n = 3, D = H * K + n * (H * K + H * V) };
    gdn_step_args s = make_gdn_step();
    s.a = per_channel(N), s.b = per_channel(N), s.write_gate = fresh(4, B, T, H, V);
    s.dt_bias = fresh(2, H, K, 0, 0);
    runs_as("GDN-2", GDN_OP_STEP, &s, "gdn_decode_channels");
    s = make_gdn_step();
    s.x = fresh(3, B, T, D, 0), s.b = fresh(3, B, n * T, H, 0), s.updates = n;
    s.conv_weight = fresh(2, D, 4, 0, 0), s.conv_state = fresh(3, B, D, 4, 0);
    runs_as("updates", GDN_OP_STEP, &s, "gdn_decode_channels");
    s.conv_weight.data = s.conv_state.data = NULL;
    runs_as("updates of x", GDN_OP_STEP, &s, "gdn_decode_channels");
}

/* Rows of k go in chunks of four elements where each update's rows begin at one, not each token's
 * alone. */
static void test_chunks_of_updates(void)
{
    for (int gap = 2; gap <= 4; gap += 2) {
        gdn_rule_args a = make_gdn_rule();
        a.updates = 2;
        a.k = fresh(4, B, 2 * T, H, K), a.v = fresh(4, B, 2 * T, H, V);
        a.k.stride[1] += gap, a.k.stride[0] = 2 * T * a.k.stride[1];
        a.beta = fresh(3, B, 2 * T, H, 0);
        runs_as("updates", GDN_OP_DECODE, &a, "gdn_decode_channels_vk_64");
        const struct gdn_cu_decode *args = (const void *)fake->args;
        CHECK(!(args->wide & GDN_CU_WIDE_ROWS) == (gap == 2), "gap %d: wide %d", gap, args->wide);
    }
}

static void test_records(void)
{
    gdn_record_commit_args c = make_gdn_record_commit();
    gdn_record_fold_args f = make_gdn_record_fold();
    c.record_g = f.record_g = fresh(4, B, R, H, K);
    runs("commit", GDN_OP_RECORD_COMMIT, &c);
    runs("fold", GDN_OP_RECORD_FOLD, &f);
}

/* Adds a record with the fields that GDN_SPLIT_INVARIANT wants, and the fields of gdn_decode. */
static void set_open_chunk(gdn_rule_args *a)
{
    enum { ROWS = 64 };
    a->flags = GDN_SPLIT_INVARIANT;
    a->record_k = fresh(4, B, ROWS, H, K), a->record_u = fresh(4, B, ROWS, H, V);
    a->record_g = fresh(4, B, ROWS, H, 2), a->record_count = fresh(1, B, 0, 0, 0);
    a->record_count.dtype = GDN_I32;
}

static gdn_record_fold_args fold_of(const gdn_rule_args *a)
{
    gdn_record_fold_args f = make_gdn_record_fold();
    f.flags = a->flags, f.norm = GDN_NORM_L2;
    f.record_k = a->record_k, f.record_u = a->record_u;
    f.record_g = a->record_g, f.record_count = a->record_count;
    return f;
}

static void test_split(void)
{
    gdn_rule_args rows = make_gdn_rule();
    gdn_batch sink = gdn_batch_init();
    set_open_chunk(&rows);
    const gdn_record_fold_args fold = fold_of(&rows);
    runs("prefill", GDN_OP_PREFILL, &rows);
    runs("decode", GDN_OP_DECODE, &rows);
    runs("fold", GDN_OP_RECORD_FOLD, &fold);
    sink.pad_policy = GDN_PAD_SINK;
    REFUSE("whole", PREFILL, gdn_rule, "differ in dtype", a->flags = GDN_SPLIT_INVARIANT,
           a->v.dtype = GDN_BF16);
    REFUSE("rows", PREFILL, gdn_rule, "differ in dtype", set_open_chunk(a), a->v.dtype = GDN_BF16);
    REFUSE("sink", DECODE, gdn_rule, "pad_policy: GDN_PAD_SINK", set_open_chunk(a),
           a->batch = &sink);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "prefill", test_prefill },
        { "decode", test_decode },
        { "gradients", test_gradients },
        { "summary", test_summary },
        { "gates and steps", test_gates },
        { "records", test_records },
        { "splits", test_split },
        { "steps", test_steps },
        { "chunks", test_chunks_of_updates },
    };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    fake = driver ? dlsym(driver, "fake_cuda") : NULL;
    if (!fake) return fake_main(argc, argv, tests, 0);
    ctx = hopper_ctx();
    const int status = fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
    gdn_ctx_destroy(ctx);
    return status;
}
