/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/* gdn_block and gdn_step on a driver that computes nothing: what they launch, keep and tell. */
#include <string.h>

#include "fake_ctx.h"
#include "told.h"

/* ---- A layer --------------------------------------------------------------------------------- */

/* A layer with GDN_EXACT, so without cuBLAS; 4 tokens of each of 3 sequences. What it points to is
 * never looked at. */
static gdn_block_args layer_args(char *memory)
{
    enum { HK = 2, HV = 4, K = 16, V = 24, HIDDEN = 40, D = 2 * HK * K + HV * V };
    gdn_block_args a = gdn_block_args_init();
    char *at = memory;
    const struct {
        gdn_tensor *t;
        int64_t size[3];
    } tensors[] = {
        { &a.hidden, { 3, 4, HIDDEN } },
        { &a.out, { 3, 4, HIDDEN } },
        { &a.in_proj_qkvz, { D + HV * V, HIDDEN, 0 } },
        { &a.in_proj_ba, { 2 * HV, HIDDEN, 0 } },
        { &a.conv_weight, { D, 4, 0 } },
        { &a.A_log, { HV, 0, 0 } },
        { &a.dt_bias, { HV, 0, 0 } },
        { &a.norm_weight, { V, 0, 0 } },
        { &a.out_proj, { HIDDEN, HV * V, 0 } },
        { &a.conv_state, { 3, D, 3 } },
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const int64_t *size = tensors[i].size;
        *tensors[i].t = gdn_dense(at, GDN_F32,
                                  size[2]   ? 3
                                  : size[1] ? 2
                                            : 1,
                                  size[0], size[1], size[2], 0);
        at += ring2_count(tensors[i].t) * 4;
    }
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.flags = GDN_EXACT;
    return a;
}

/* A layer launches its kernels in order, within the bytes that were promised. */
static void test_layer(void)
{
    static char memory[1 << 20];
    enum { N_KERNELS = 7 };
    gdn_ctx *ctx = hopper_ctx();
    gdn_block_args a = layer_args(memory);
    gdn_batch b = gdn_batch_init();
    struct told told;
    size_t bytes, keeping;
    if (!ctx) return;
    a.batch = &b;
    listen(ctx, &told);
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_BLOCK, &a, &bytes), GDN_OK);
    CHECK(bytes <= 4 * 12 * (4 * 2 * 16 + 3 * 4 * 24) + 16 * 12 * 4 + 1024, "%zu bytes", bytes);
    a.workspace = (void *)(((uintptr_t)memory + sizeof memory / 2) & ~(uintptr_t)63);
    a.workspace_bytes = bytes;
    ring2_status(ctx, "the first call", gdn_block(ctx, &a), GDN_OK);
    expect_line(&told, "block: woven rows");
    expect_line(&told, "block projections: layer_project (cublas: GDN_EXACT is set)");
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    ring2_status(ctx, "the call", gdn_block(ctx, &a), GDN_OK);
    for (int i = 0; i < FAKE_N_CALLS; i++) {
        const int want = i == FAKE_cuLaunchKernelEx   ? N_KERNELS
                         : i == FAKE_cuCtxGetCurrent  ? N_KERNELS + 1
                         : i == FAKE_cuCtxPushCurrent ? 1
                         : i == FAKE_cuCtxPopCurrent  ? 1
                                                      : 0;
        CHECK(fake->n_calls[i] == want, "driver call %d: %d times, wanted %d", i, fake->n_calls[i],
              want);
    }
    CHECK(!strcmp(fake->kernel, "gdn_layer_project"), "the last kernel is %s", fake->kernel);
    CHECK(!strncmp(gdn_last_kernel(ctx), "block: gdn_layer_project gdn_layer_weave gdn_conv", 48),
          "%s", gdn_last_kernel(ctx));
    b.pad_policy = GDN_PAD_KEEP;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_BLOCK, &a, &keeping), GDN_OK);
    CHECK(keeping == bytes + 4 * 12 * 40, "%zu bytes to keep padding's output", keeping - bytes);
    a.workspace_bytes = bytes;
    ring2_status(ctx, "too little workspace", gdn_block(ctx, &a), GDN_E_MEMORY);
    a.workspace_bytes = keeping;
    ring2_status(ctx, "the call that keeps", gdn_block(ctx, &a), GDN_OK);
    CHECK(!strcmp(fake->kernel, "gdn_layer_store"), "the last kernel is %s", fake->kernel);
    gdn_ctx_destroy(ctx);
}

/* Rows further apart than cuBLAS counts are multiplied without it: nothing is refused when states
 * have moved. */
static void test_far_rows(void)
{
    static char memory[1 << 20];
    gdn_ctx *ctx = hopper_ctx();
    gdn_block_args a = layer_args(memory);
    struct told told;
    if (!ctx) return;
    a.flags = 0;
    listen(ctx, &told);
    a.hidden.data = (void *)((uintptr_t)1 << 44);
    a.out.data = (void *)((uintptr_t)1 << 45);
    a.hidden.stride[1] = a.out.stride[1] = (int64_t)1 << 31;
    a.hidden.stride[0] = a.out.stride[0] = (int64_t)4 << 31;
    ring2_status(ctx, "rows far apart", gdn_block(ctx, &a), GDN_OK);
    CHECK(strstr(gdn_last_kernel(ctx), "gdn_layer_project") &&
              !strstr(gdn_last_kernel(ctx), "cublas"),
          "%s", gdn_last_kernel(ctx));
    expect_line(&told, "block projections: layer_project (cublas: a size or stride does not fit 32 "
                       "bits)");
    gdn_ctx_destroy(ctx);
}

/* Gradients say why cuBLAS computes no product before they launch one. */
static void test_gradients(void)
{
    static char memory[1 << 20];
    gdn_ctx *ctx = hopper_ctx();
    const gdn_block_args a = layer_args(memory);
    gdn_block_backward_args back = gdn_block_backward_args_init();
    struct told told;
    if (!ctx) return;
    back.hidden = back.dout = a.hidden;
    back.in_proj_qkvz = a.in_proj_qkvz, back.in_proj_ba = a.in_proj_ba;
    back.conv_weight = a.conv_weight, back.A_log = a.A_log, back.dt_bias = a.dt_bias;
    back.norm_weight = a.norm_weight, back.out_proj = a.out_proj;
    back.dhidden = a.out;
    back.n_key_heads = a.n_key_heads, back.n_value_heads = a.n_value_heads;
    back.key_head_dim = a.key_head_dim, back.value_head_dim = a.value_head_dim;
    back.flags = GDN_EXACT;
    listen(ctx, &told);
    ring2_status(ctx, "gradients", gdn_block_backward(ctx, &back), GDN_OK);
    expect_line(&told, "block_backward products: layer_project (cublas: GDN_EXACT is set)");
    CHECK(!strcmp(fake->kernel, "gdn_layer_add"), "the last kernel is %s", fake->kernel);
    gdn_ctx_destroy(ctx);
}

/* ---- A step of several launches -------------------------------------------------------------- */

/* Returns a call of three taps, which no kernel for one launch takes. */
static gdn_step_args step_args(void)
{
    enum { B = 8, HK = 2, HV = 4, K = 128, V = 128, D = 2 * HK * K + HV * V, W = 3 };
    const char *at = (const char *)((uintptr_t)1 << 44);
    gdn_step_args a = gdn_step_args_init();
    void *data[9];
    for (size_t i = 0; i < 9; i++) data[i] = (void *)(at + (i << 40));
    a.x = gdn_dense(data[0], GDN_BF16, 3, B, 1, D, 0);
    a.a = gdn_dense(data[1], GDN_BF16, 3, B, 1, HV, 0);
    a.b = gdn_dense(data[2], GDN_BF16, 3, B, 1, HV, 0);
    a.conv_weight = gdn_dense(data[3], GDN_BF16, 2, D, W, 0, 0);
    a.A_log = gdn_dense(data[4], GDN_F32, 1, HV, 0, 0, 0);
    a.norm_weight = gdn_dense(data[5], GDN_F32, 1, V, 0, 0, 0);
    a.conv_state = gdn_dense(data[6], GDN_BF16, 3, B, D, W, 0);
    a.state = gdn_dense(data[7], GDN_F32, 4, B, HV, V, K);
    a.out = gdn_dense(data[8], GDN_BF16, 4, B, 1, HV, V);
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    return a;
}

/* The log gets six lines for equal calls: the workspace, the forms of the step and of its parts,
 * and all kernels. A call that failed has run none. */
static void test_step(void)
{
    static const char *const names =
        "step: gdn_conv_walk_floats_8 gdn_decode_token_vk_F32_BF16_128 "
        "gdn_norm_flat_bf16";
    static const char *const lines[] = {
        "workspace: ",
        "step: parts (rows, pairs, general: the convolution has not 4 taps)",
        ("conv1d: walk (turned: channels lie side by side; one token: channels or their four taps "
         "are not in aligned fours; rows, tiles, tiles in place: out is absent,"),
        "step: token",
        "norm: flat",
        "step: gdn_conv_walk_floats_8 ",
    };
    enum { N_LINES = sizeof lines / sizeof *lines };
    const gdn_step_args a = step_args();
    struct told told;
    char text[512];
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    listen(ctx, &told);
    for (int i = 0; i < 3; i++) ring2_status(ctx, "step", gdn_step(ctx, &a), GDN_OK);
    CHECK(told.n == N_LINES, "%d lines", told.n);
    for (int i = 0; i < N_LINES; i++)
        CHECK(!strncmp(told.lines[i], lines[i], strlen(lines[i])), "\"%s\", wanted \"%s\"",
              told.lines[i], lines[i]);
    CHECK(!strcmp(gdn_last_kernel(ctx), names), "%s", gdn_last_kernel(ctx));
    gdn_ctx_destroy(ctx);
    fake->lacks = "gdn_norm_flat_bf16";
    ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
    if (!ctx) return;
    ring2_status(ctx, "no norm", gdn_step(ctx, &a), GDN_E_UNSUPPORTED);
    CHECK(!gdn_last_kernel(ctx)[0], "%s", gdn_last_kernel(ctx));
    gdn_ctx_destroy(ctx);
}

/* A step of one launch: the log names its form, and why the earlier forms do not take the call. */
static void test_step_forms(void)
{
    static const struct {
        int32_t layout;
        int64_t T;
        const char *line;
    } rows[] = {
        { GDN_STATE_VK, 1, "step: rows" },
        { GDN_STATE_KV, 1, "step: pairs (rows: states are not rows of 128 keys)" },
        { GDN_STATE_KV, 2,
          "step: general (rows: states are not rows of 128 keys; pairs: sequences are of several "
          "tokens, or channels not in aligned pairs)" },
        { GDN_STATE_VK, 2,
          "step: general (rows: sequences are of several tokens, or channels not in aligned pairs; "
          "pairs: states are k-last)" },
    };
    gdn_ctx *ctx = hopper_ctx();
    struct told told;
    if (!ctx) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gdn_step_args a = step_args();
        gdn_tensor *const tokens[] = { &a.x, &a.a, &a.b, &a.out };
        a.conv_weight = gdn_dense(a.conv_weight.data, GDN_BF16, 2, a.conv_weight.size[0], 4, 0, 0);
        a.state_layout = rows[i].layout;
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++)
            *tokens[j] = gdn_dense(tokens[j]->data, GDN_BF16, tokens[j]->ndim, tokens[j]->size[0],
                                   rows[i].T, tokens[j]->size[2], tokens[j]->size[3]);
        listen(ctx, &told);
        ring2_status(ctx, rows[i].line, gdn_step(ctx, &a), GDN_OK);
        expect_line(&told, rows[i].line);
    }
    gdn_ctx_destroy(ctx);
}

/* Without clusters, blocks that share q and k cannot move conv_state: the parts of the step do. */
static void test_step_without_clusters(void)
{
    gdn_step_args a = step_args();
    gdn_batch b = gdn_batch_init();
    gdn_ctx *ctx;
    char text[512];
    size_t bytes;
    struct told told;
    *fake = hopper;
    fake->major = 8;
    ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
    if (!ctx) return;
    a.conv_weight = gdn_dense(a.conv_weight.data, GDN_BF16, 2, a.conv_weight.size[0], 4, 0, 0);
    a.batch = &b;
    for (int moves = 0; moves < 2; moves++) {
        b.write = moves ? GDN_WRITE_FINAL : GDN_WRITE_NONE;
        ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_STEP, &a, &bytes), GDN_OK);
        CHECK((bytes > 0) == moves, "%zu bytes", bytes);
        listen(ctx, &told);
        ring2_status(ctx, "step", gdn_step(ctx, &a), GDN_OK);
        expect_line(&told, moves
                               ? "step: parts (rows, pairs, general: conv_state moves, but blocks "
                                 "that share q and k are no cluster)"
                               : "step: rows");
    }
    gdn_ctx_destroy(ctx);
}

/* If there is one sequence and one slot, their strides may be any, for every form. */
static void test_one_slot(void)
{
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (int taps = 3; taps <= 4; taps++) {
        gdn_step_args a = step_args();
        gdn_tensor *const ones[] = { &a.x, &a.a, &a.b, &a.out, &a.conv_state, &a.state };
        a.conv_weight =
            gdn_dense(a.conv_weight.data, GDN_BF16, 2, a.conv_weight.size[0], taps, 0, 0);
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            ones[i]->size[0] = 1, ones[i]->stride[0] = INT64_MIN;
        ring2_status(ctx, "one slot", gdn_step(ctx, &a), GDN_OK);
    }
    gdn_ctx_destroy(ctx);
}

/* KDA: a product for each of q, k, v and b, two for z and for a. A state of 8 bits is no other
 * call. */
static void test_kda(void)
{
    enum { HK = 2, HV = 4, K = 16, V = 24, HIDDEN = 40, RANK = 8, N_KERNELS = 4 + 2 + 2 + 1 + 3 };
    static char memory[1 << 20];
    gdn_ctx *ctx = hopper_ctx();
    gdn_block_args a = layer_args(memory);
    struct told told;
    if (!ctx) return;
    a.in_proj_qkvz.data = a.in_proj_ba.data = NULL;
    a.in_proj_q = gdn_dense(memory, GDN_F32, 2, HK * K, HIDDEN, 0, 0);
    a.in_proj_k = gdn_dense(memory, GDN_F32, 2, HK * K, HIDDEN, 0, 0);
    a.in_proj_v = gdn_dense(memory, GDN_F32, 2, HV * V, HIDDEN, 0, 0);
    a.in_proj_z_down = gdn_dense(memory, GDN_F32, 2, RANK, HIDDEN, 0, 0);
    a.in_proj_z = gdn_dense(memory, GDN_F32, 2, HV * V, RANK, 0, 0);
    a.in_proj_b = gdn_dense(memory, GDN_F32, 2, HV, HIDDEN, 0, 0);
    a.in_proj_a_down = gdn_dense(memory, GDN_F32, 2, RANK, HIDDEN, 0, 0);
    a.in_proj_a = gdn_dense(memory, GDN_F32, 2, HV * K, RANK, 0, 0);
    a.dt_bias = gdn_dense(memory, GDN_F32, 2, HV, K, 0, 0);
    a.out = gdn_dense(memory + sizeof memory / 2, GDN_F32, 3, 3, 4, HIDDEN, 0);
    a.conv_state.data = NULL;
    listen(ctx, &told);
    ring2_status(ctx, "the first call", gdn_block(ctx, &a), GDN_OK);
    expect_line(&told, "block: rows of each head (woven rows: in_proj_qkvz is not given)");
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    ring2_status(ctx, "the call", gdn_block(ctx, &a), GDN_OK);
    CHECK(fake->n_calls[FAKE_cuLaunchKernelEx] == N_KERNELS, "%d kernels, wanted %d",
          fake->n_calls[FAKE_cuLaunchKernelEx], N_KERNELS);
    a.state = gdn_dense(memory + sizeof memory / 4 * 3, GDN_I8, 4, 3, HV, V, K);
    a.state_scales = gdn_dense(memory + sizeof memory / 8 * 7, GDN_F32, 3, 3, HV, V, 0);
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    ring2_status(ctx, "8 bits", gdn_block(ctx, &a), GDN_OK);
    CHECK(fake->n_calls[FAKE_cuLaunchKernelEx] == N_KERNELS, "8 bits: %d kernels, wanted %d",
          fake->n_calls[FAKE_cuLaunchKernelEx], N_KERNELS);
    gdn_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "cuda: a layer", test_layer },
        { "cuda: a layer of KDA", test_kda },
        { "cuda: a step of several launches", test_step },
        { "cuda: forms of a step of one launch", test_step_forms },
        { "cuda: a step without clusters", test_step_without_clusters },
        { "cuda: a step of one slot", test_one_slot },
        { "cuda: a layer of rows far apart", test_far_rows },
        { "cuda: gradients of a layer", test_gradients },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
