/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine asks of the ops on a GPU, with real device memory. Captured into a CUDA graph, a
 * call replays on other inputs, slots and lengths and gives the bits that a plain call gives then.
 * Contexts on two streams do not meet. The host's part of a call is measured.
 *
 * Nothing is read, allocated or waited for by a call, or the capture would fail.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gdn_research.h"
#include "gdn_train.h"
#include "oracle.h"
#include "ring2.h"

/* ---- The driver ---------------------------------------------------------------------------- */

typedef uint64_t device_memory;

static struct {
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*alloc)(device_memory *, size_t);
    int (*release)(device_memory);
    int (*upload)(device_memory, const void *, size_t);
    int (*download)(void *, device_memory, size_t);
    int (*stream)(void **, unsigned);
    int (*wait)(void *);
    int (*begin)(void *, int);
    int (*end)(void *, void **);
    int (*nodes)(void *, void **, size_t *);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, void *);
} cu;

static void *streams[2];

static void must(const char *what, int result)
{
    if (!result) return;
    printf("%s: error %d\n", what, result);
    exit(1);
}

static bool open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int device = 0;
    const struct {
        const char *name;
        void *call;
    } calls[] = {
        { "cuInit", &cu.init },
        { "cuDeviceGet", &cu.device },
        { "cuDevicePrimaryCtxRetain", &cu.retain },
        { "cuCtxSetCurrent", &cu.set_current },
        { "cuMemAlloc_v2", &cu.alloc },
        { "cuMemFree_v2", &cu.release },
        { "cuMemcpyHtoD_v2", &cu.upload },
        { "cuMemcpyDtoH_v2", &cu.download },
        { "cuStreamCreate", &cu.stream },
        { "cuStreamSynchronize", &cu.wait },
        { "cuStreamBeginCapture_v2", &cu.begin },
        { "cuStreamEndCapture", &cu.end },
        { "cuGraphGetNodes", &cu.nodes },
        { "cuGraphInstantiateWithFlags", &cu.instantiate },
        { "cuGraphLaunch", &cu.launch },
    };
    for (size_t i = 0; library && i < sizeof calls / sizeof *calls; i++) {
        void *symbol = dlsym(library, calls[i].name);
        if (!symbol) must(calls[i].name, -1);
        memcpy(calls[i].call, &symbol, sizeof symbol);
    }
    if (!library || cu.init(0)) return false;
    must("cuDeviceGet", cu.device(&device, 0));
    must("cuDevicePrimaryCtxRetain", cu.retain(&context, device));
    must("cuCtxSetCurrent", cu.set_current(context));
    for (int i = 0; i < 2; i++) must("cuStreamCreate", cu.stream(&streams[i], 1));
    return true;
}

static gdn_ctx *new_ctx(void)
{
    char text[256] = "";
    gdn_ctx *ctx;
    gdn_options o = gdn_options_init();
    o.backend = GDN_BACKEND_CUDA;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    if (gdn_ctx_create(&o, &ctx) == GDN_OK) return ctx;
    printf("%s\n", text);
    exit(1);
}

/* ---- Memory -------------------------------------------------------------------------------- */

/* A tensor on the device. host: its content when a call begins. */
struct buffer {
    gdn_tensor t;
    char *host, *result;
    size_t bytes;
    double low, high; /* of random values; equal: not filled with such */
    bool written;
};

enum { MOST_BUFFERS = 64 };
static struct {
    struct buffer buffers[MOST_BUFFERS];
    int n;
} heap;

static void free_buffers(void)
{
    for (int i = 0; i < heap.n; i++) {
        free(heap.buffers[i].host);
        cu.release((device_memory)(uintptr_t)heap.buffers[i].t.data);
    }
    heap.n = 0;
}

static struct buffer *new_buffer(int32_t dtype, int32_t ndim, int64_t s0, int64_t s1, int64_t s2,
                                 int64_t s3, double low, double high)
{
    if (heap.n == MOST_BUFFERS) must("more buffers than there are", -1);
    struct buffer *b = &heap.buffers[heap.n++];
    device_memory memory;
    *b = (struct buffer){ .t = gdn_dense(NULL, dtype, ndim, s0, s1, s2, s3),
                          .low = low,
                          .high = high };
    b->bytes = (size_t)ring2_count(&b->t) * gdn_dtype_bytes(dtype);
    b->host = malloc(2 * b->bytes);
    if (!b->host) must("malloc", -1);
    b->result = b->host + b->bytes;
    memset(b->host, 0xff, b->bytes);
    must("cuMemAlloc", cu.alloc(&memory, b->bytes));
    b->t.data = (void *)(uintptr_t)memory;
    return b;
}

static gdn_tensor input(int32_t dtype, int32_t ndim, int64_t s0, int64_t s1, int64_t s2, double low,
                        double high)
{
    return new_buffer(dtype, ndim, s0, s1, s2, 0, low, high)->t;
}

/* Makes a tensor that the call reads and writes: a state, or an output whose old content counts. */
static gdn_tensor state(int32_t dtype, int32_t ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    struct buffer *b = new_buffer(dtype, ndim, s0, s1, s2, s3, -0.5, 0.5);
    b->written = true;
    return b->t;
}

static gdn_tensor output(int32_t dtype, int32_t ndim, int64_t s0, int64_t s1, int64_t s2)
{
    struct buffer *b = new_buffer(dtype, ndim, s0, s1, s2, 0, 0, 0);
    b->written = true;
    return b->t;
}

/* The gradient of a tensor, like it. */
static gdn_tensor gradient(const gdn_tensor *of, int32_t dtype)
{
    struct buffer *b =
        new_buffer(dtype, of->ndim, of->size[0], of->size[1], of->size[2], of->size[3], 0, 0);
    b->written = true;
    return b->t;
}

static gdn_tensor indices(int64_t n) { return new_buffer(GDN_I32, 1, n, 0, 0, 0, 0, 0)->t; }

static int32_t *values_of(const gdn_tensor *t)
{
    for (int i = 0; i < heap.n; i++)
        if (heap.buffers[i].t.data == t->data) return (int32_t *)(void *)heap.buffers[i].host;
    return NULL;
}

/* ---- Calls --------------------------------------------------------------------------------- */

enum {
    HQ = 2,
    HV = 4,
    K = 128,
    V = 128,
    D = 2 * HQ * K + HV * V,
    HIDDEN = 256,
    B = 5,
    P = 9,
    N = 300
};

struct call {
    gdn_op op;
    union {
        gdn_rule_args rule;
        gdn_conv1d_args conv;
        gdn_block_args block;
        gdn_step_args step;
        gdn_prefill_backward_args prefill_backward;
        gdn_conv1d_backward_args conv_backward;
        gdn_block_backward_args block_backward;
        gdn_summary_args summary;
    } args;
    gdn_batch batch;
    int64_t longest;  /* the tokens of the longest sequence; 1: a token of each sequence */
    int64_t n_tokens; /* of all sequences; 0: N */
    void **stream, **workspace;
    size_t *workspace_bytes;
    device_memory memory;
};

static void begin_call(struct call *c, gdn_op op, int64_t longest)
{
    *c = (struct call){ .op = op, .longest = longest, .batch = gdn_batch_init() };
    c->batch.read_slots = indices(B);
    if (longest > 1) c->batch.cu_seqlens = indices(B + 1);
}

/* Gradients are of states in order. */
static void begin_gradients(struct call *c, gdn_op op)
{
    *c = (struct call){ .op = op, .longest = N, .batch = gdn_batch_init() };
    c->batch.cu_seqlens = indices(B + 1);
}

/* Draws lengths whose sum is at most the tokens of the tensors, and slots. One sequence may be
 * padding. */
static void vary(struct call *c, int round)
{
    const int64_t n_tokens = c->n_tokens ? c->n_tokens : N;
    int32_t *slots = values_of(&c->batch.read_slots), *cu_seqlens = NULL;
    if (c->longest > 1) cu_seqlens = values_of(&c->batch.cu_seqlens);
    for (int b = 0; b < B && slots; b++) slots[b] = (b * 2 + round) % P;
    if (round % 2 && slots) slots[round % B] = -1;
    if (cu_seqlens) cu_seqlens[0] = 0;
    for (int b = 0; b < B && cu_seqlens; b++) {
        const int64_t most = (n_tokens - cu_seqlens[b]) / (b < B - 1 ? 2 : 1);
        cu_seqlens[b + 1] = cu_seqlens[b] + (int32_t)ring2_below(most + 1);
        if (round == 0 && b == B - 1) cu_seqlens[B] = (int32_t)n_tokens; /* all */
    }
    for (int i = 0; i < heap.n; i++) {
        struct buffer *buffer = &heap.buffers[i];
        const int64_t n = ring2_count(&buffer->t);
        for (int64_t j = 0; j < n && buffer->low < buffer->high; j++)
            oracle_store(buffer->host, buffer->t.dtype, j,
                         ring2_uniform(buffer->low, buffer->high));
    }
}

/* A small copy may still be on its way when the call returns, and the streams of the test do not
 * wait for it. */
static void upload(void)
{
    for (int i = 0; i < heap.n; i++) {
        const struct buffer *b = &heap.buffers[i];
        must("cuMemcpyHtoD", cu.upload((device_memory)(uintptr_t)b->t.data, b->host, b->bytes));
    }
    must("cuStreamSynchronize", cu.wait(NULL));
}

static void keep_results(void)
{
    for (int i = 0; i < heap.n; i++) {
        struct buffer *b = &heap.buffers[i];
        if (b->written)
            must("cuMemcpyDtoH",
                 cu.download(b->result, (device_memory)(uintptr_t)b->t.data, b->bytes));
    }
}

/* The results are those that were kept; and something was computed. */
static void expect_kept(const char *what)
{
    for (int i = 0; i < heap.n; i++) {
        struct buffer *b = &heap.buffers[i];
        char *got = b->written ? malloc(b->bytes) : NULL;
        if (!got) continue;
        must("cuMemcpyDtoH", cu.download(got, (device_memory)(uintptr_t)b->t.data, b->bytes));
        CHECK(!memcmp(got, b->result, b->bytes), "%s: other bits in buffer %d", what, i);
        CHECK(memcmp(got, b->host, b->bytes), "%s: nothing was written to buffer %d", what, i);
        free(got);
    }
}

/* [B]... as rows of one token each, [B][1]... */
static void make_rows(gdn_tensor *const *all, int n)
{
    for (int i = 0; i < n; i++) {
        gdn_tensor *t = all[i];
        for (int d = t->ndim++; d > 1; d--)
            t->size[d] = t->size[d - 1], t->stride[d] = t->stride[d - 1];
        t->size[1] = 1, t->stride[1] = t->stride[0];
    }
}

static void rule_call(struct call *c, gdn_op op)
{
    gdn_rule_args *a = &c->args.rule;
    const bool single = op == GDN_OP_DECODE;
    const int64_t n = single ? B : N;
    begin_call(c, op, single ? 1 : N);
    *a = gdn_rule_args_init();
    a->q = input(GDN_BF16, 3, n, HQ, K, -1, 1);
    a->k = input(GDN_BF16, 3, n, HQ, K, -1, 1);
    a->v = input(GDN_BF16, 3, n, HV, V, -1, 1);
    a->g = input(GDN_BF16, 2, n, HV, 0, -1, 1);
    a->beta = input(GDN_BF16, 2, n, HV, 0, -1, 1);
    a->A_log = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->state = state(GDN_F32, 4, P, HV, V, K);
    a->out = output(GDN_BF16, 3, n, HV, V);
    a->gate = GDN_GATE_RAW, a->beta_kind = GDN_BETA_SIGMOID, a->norm = GDN_NORM_L2;
    a->batch = &c->batch;
    if (single) make_rows((gdn_tensor *[]){ &a->q, &a->k, &a->v, &a->g, &a->beta, &a->out }, 6);
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

static void conv_call(struct call *c, bool in_place)
{
    gdn_conv1d_args *a = &c->args.conv;
    begin_call(c, GDN_OP_CONV1D, N);
    *a = gdn_conv1d_args_init();
    a->x = in_place ? state(GDN_BF16, 2, N, D, 0, 0) : input(GDN_BF16, 2, N, D, 0, -1, 1);
    a->weight = input(GDN_BF16, 2, D, 4, 0, -1, 1);
    a->state = state(GDN_F32, 3, P, D, 3, 0);
    a->out = in_place ? a->x : output(GDN_BF16, 2, N, D, 0);
    a->activation = GDN_ACT_SILU;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

static void block_call(struct call *c, bool single)
{
    gdn_block_args *a = &c->args.block;
    const int64_t n = single ? B : N;
    begin_call(c, GDN_OP_BLOCK, single ? 1 : N);
    *a = gdn_block_args_init();
    a->in_proj_qkvz = input(GDN_BF16, 2, D + HV * V, HIDDEN, 0, -0.1, 0.1);
    a->in_proj_ba = input(GDN_BF16, 2, 2 * HV, HIDDEN, 0, -0.1, 0.1);
    a->conv_weight = input(GDN_BF16, 2, D, 4, 0, -0.5, 0.5);
    a->A_log = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->dt_bias = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->norm_weight = input(GDN_BF16, 1, V, 0, 0, 0.5, 1.5);
    a->out_proj = input(GDN_BF16, 2, HIDDEN, HV * V, 0, -0.1, 0.1);
    a->hidden = input(GDN_BF16, single ? 3 : 2, n, single ? 1 : HIDDEN, HIDDEN, -1, 1);
    a->out = output(GDN_BF16, single ? 3 : 2, n, single ? 1 : HIDDEN, HIDDEN);
    a->conv_state = state(GDN_BF16, 3, P, D, 3, 0);
    a->state = state(GDN_F32, 4, P, HV, V, K);
    a->n_key_heads = HQ, a->n_value_heads = HV, a->key_head_dim = K, a->value_head_dim = V;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

/* With a norm; of one token each in one launch. */
static void step_call(struct call *c, bool single)
{
    gdn_step_args *a = &c->args.step;
    const int64_t n = single ? B : N;
    begin_call(c, GDN_OP_STEP, single ? 1 : N);
    *a = gdn_step_args_init();
    a->x = input(GDN_BF16, 2, n, D, 0, -1, 1);
    a->a = input(GDN_BF16, 2, n, HV, 0, -1, 1);
    a->b = input(GDN_BF16, 2, n, HV, 0, -1, 1);
    a->z = input(GDN_BF16, 3, n, HV, V, -1, 1);
    a->conv_weight = input(GDN_BF16, 2, D, 4, 0, -0.5, 0.5);
    a->A_log = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->norm_weight = input(GDN_BF16, 1, V, 0, 0, 0.5, 1.5);
    a->out = output(GDN_BF16, 3, n, HV, V);
    a->conv_state = state(GDN_BF16, 3, P, D, 3, 0);
    a->state = state(GDN_F32, 4, P, HV, V, K);
    a->n_key_heads = HQ, a->n_value_heads = HV, a->key_head_dim = K, a->value_head_dim = V;
    a->batch = &c->batch;
    if (single) make_rows((gdn_tensor *[]){ &a->x, &a->a, &a->b, &a->z, &a->out }, 5);
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

/* All sequences, in their order. */
static gdn_tensor states(int64_t s1, int64_t s2, int64_t s3)
{
    return new_buffer(GDN_F32, s3 ? 4 : 3, B, s1, s2, s3, -0.5, 0.5)->t;
}

static void prefill_backward_call(struct call *c)
{
    gdn_prefill_backward_args *a = &c->args.prefill_backward;
    begin_gradients(c, GDN_OP_PREFILL_BACKWARD);
    *a = gdn_prefill_backward_args_init();
    a->q = input(GDN_BF16, 3, N, HQ, K, -1, 1);
    a->k = input(GDN_BF16, 3, N, HQ, K, -1, 1);
    a->v = input(GDN_BF16, 3, N, HV, V, -1, 1);
    a->dout = input(GDN_BF16, 3, N, HV, V, -1, 1);
    a->g = input(GDN_BF16, 2, N, HV, 0, -1, 1);
    a->beta = input(GDN_BF16, 2, N, HV, 0, -1, 1);
    a->A_log = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->state = states(HV, V, K);
    a->dstate_out = states(HV, V, K);
    a->dq = gradient(&a->q, GDN_BF16), a->dk = gradient(&a->k, GDN_BF16);
    a->dv = gradient(&a->v, GDN_BF16), a->dg = gradient(&a->g, GDN_F32);
    a->dbeta = gradient(&a->beta, GDN_F32), a->dA_log = gradient(&a->A_log, GDN_F32);
    a->dstate = gradient(&a->state, GDN_F32);
    a->gate = GDN_GATE_RAW, a->beta_kind = GDN_BETA_SIGMOID, a->norm = GDN_NORM_L2;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

static void conv_backward_call(struct call *c)
{
    gdn_conv1d_backward_args *a = &c->args.conv_backward;
    begin_gradients(c, GDN_OP_CONV1D_BACKWARD);
    *a = gdn_conv1d_backward_args_init();
    a->x = input(GDN_BF16, 2, N, D, 0, -1, 1);
    a->dout = input(GDN_BF16, 2, N, D, 0, -1, 1);
    a->weight = input(GDN_BF16, 2, D, 4, 0, -1, 1);
    a->state = states(D, 3, 0);
    a->dstate_out = states(D, 3, 0);
    a->dx = gradient(&a->x, GDN_BF16), a->dweight = gradient(&a->weight, GDN_F32);
    a->dstate = gradient(&a->state, GDN_F32);
    a->activation = GDN_ACT_SILU;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

static void block_backward_call(struct call *c)
{
    gdn_block_backward_args *a = &c->args.block_backward;
    begin_gradients(c, GDN_OP_BLOCK_BACKWARD);
    *a = gdn_block_backward_args_init();
    a->in_proj_qkvz = input(GDN_BF16, 2, D + HV * V, HIDDEN, 0, -0.1, 0.1);
    a->in_proj_ba = input(GDN_BF16, 2, 2 * HV, HIDDEN, 0, -0.1, 0.1);
    a->conv_weight = input(GDN_BF16, 2, D, 4, 0, -0.5, 0.5);
    a->A_log = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->dt_bias = input(GDN_F32, 1, HV, 0, 0, -1, 1);
    a->norm_weight = input(GDN_BF16, 1, V, 0, 0, 0.5, 1.5);
    a->out_proj = input(GDN_BF16, 2, HIDDEN, HV * V, 0, -0.1, 0.1);
    a->hidden = input(GDN_BF16, 2, N, HIDDEN, 0, -1, 1);
    a->dout = input(GDN_BF16, 2, N, HIDDEN, 0, -1, 1);
    a->conv_state = states(D, 3, 0);
    a->state = states(HV, V, K);
    a->dhidden = gradient(&a->hidden, GDN_BF16), a->dA_log = gradient(&a->A_log, GDN_F32);
    a->din_proj_qkvz = gradient(&a->in_proj_qkvz, GDN_F32);
    a->din_proj_ba = gradient(&a->in_proj_ba, GDN_F32);
    a->dconv_weight = gradient(&a->conv_weight, GDN_F32);
    a->ddt_bias = gradient(&a->dt_bias, GDN_F32);
    a->dnorm_weight = gradient(&a->norm_weight, GDN_F32);
    a->dout_proj = gradient(&a->out_proj, GDN_F32);
    a->dstate = gradient(&a->state, GDN_F32);
    a->n_key_heads = HQ, a->n_value_heads = HV, a->key_head_dim = K, a->value_head_dim = V;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

/* Long enough that some sequences are split on Hopper. */
static void summary_call(struct call *c)
{
    enum { TOKENS = 1500 };
    gdn_summary_args *a = &c->args.summary;
    begin_gradients(c, GDN_OP_SUMMARY);
    c->n_tokens = TOKENS;
    *a = gdn_summary_args_init();
    a->k = input(GDN_BF16, 3, TOKENS, HQ, K, -1, 1);
    a->v = input(GDN_BF16, 3, TOKENS, HV, V, -1, 1);
    a->g = input(GDN_F32, 2, TOKENS, HV, 0, -0.01, 0);
    a->beta = input(GDN_BF16, 2, TOKENS, HV, 0, 0, 1);
    a->M = state(GDN_F32, 4, B, HV, K, K);
    a->U = state(GDN_F32, 4, B, HV, V, K);
    a->norm = GDN_NORM_L2;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

/* dstate alone, of sequences as long. */
static void walk_call(struct call *c)
{
    enum { TOKENS = 3000 };
    gdn_prefill_backward_args *a = &c->args.prefill_backward;
    begin_gradients(c, GDN_OP_PREFILL_BACKWARD);
    c->n_tokens = TOKENS;
    *a = gdn_prefill_backward_args_init();
    a->q = input(GDN_BF16, 3, TOKENS, HQ, K, -1, 1);
    a->k = input(GDN_BF16, 3, TOKENS, HQ, K, -1, 1);
    a->v = input(GDN_BF16, 3, TOKENS, HV, V, -1, 1);
    a->dout = input(GDN_BF16, 3, TOKENS, HV, V, -1, 1);
    a->g = input(GDN_F32, 2, TOKENS, HV, 0, -0.05, 0);
    a->beta = input(GDN_BF16, 2, TOKENS, HV, 0, 0, 1);
    a->dstate_out = states(HV, V, K);
    a->dstate = state(GDN_F32, 4, B, HV, V, K);
    a->norm = GDN_NORM_L2;
    a->batch = &c->batch;
    c->stream = &a->stream, c->workspace = &a->workspace, c->workspace_bytes = &a->workspace_bytes;
}

static void make_call(struct call *c, int which)
{
    switch (which) {
    case 0: rule_call(c, GDN_OP_PREFILL); break;
    case 1: rule_call(c, GDN_OP_DECODE); break;
    case 2: conv_call(c, false); break;
    case 3: conv_call(c, true); break;
    case 4: block_call(c, false); break;
    case 5: block_call(c, true); break;
    case 6: step_call(c, false); break;
    case 7: step_call(c, true); break;
    case 8: prefill_backward_call(c); break;
    case 9: conv_backward_call(c); break;
    case 10: summary_call(c); break;
    case 11: walk_call(c); break;
    default: block_backward_call(c); break;
    }
}

static const char *const names[] = { "prefill",
                                     "decode",
                                     "conv1d",
                                     "conv1d in place",
                                     "block",
                                     "block, a token each",
                                     "step",
                                     "step, a token each",
                                     "prefill_backward",
                                     "conv1d_backward",
                                     "summary",
                                     "prefill_backward, dstate alone",
                                     "block_backward" };
enum { N_CALLS = sizeof names / sizeof *names };

static void give_workspace(gdn_ctx *ctx, struct call *c)
{
    ring2_status(ctx, "gdn_workspace_bytes",
                 gdn_workspace_bytes(ctx, c->op, &c->args, c->workspace_bytes), GDN_OK);
    must("cuMemAlloc", cu.alloc(&c->memory, *c->workspace_bytes + 64));
    *c->workspace = (void *)(uintptr_t)c->memory;
}

static gdn_status run(gdn_ctx *ctx, const struct call *c)
{
    return gdn_run_op(ctx, c->op, &c->args);
}

/* ---- Graphs -------------------------------------------------------------------------------- */

struct graph {
    void *exec;
    size_t n_nodes;
};

static struct graph capture(gdn_ctx *ctx, const struct call *c)
{
    enum { GLOBAL = 0 };
    struct graph g = { NULL, 0 };
    void *graph;
    must("cuStreamBeginCapture", cu.begin(streams[0], GLOBAL));
    ring2_status(ctx, "the captured call", run(ctx, c), GDN_OK);
    must("cuStreamEndCapture", cu.end(streams[0], &graph));
    must("cuGraphGetNodes", cu.nodes(graph, NULL, &g.n_nodes));
    must("cuGraphInstantiate", cu.instantiate(&g.exec, graph, 0));
    return g;
}

static void replay(int which)
{
    enum { ROUNDS = 6 };
    gdn_ctx *ctx = new_ctx();
    struct call c;
    make_call(&c, which);
    *c.stream = streams[0];
    give_workspace(ctx, &c);
    vary(&c, 0);
    upload();
    ring2_status(ctx, "the first call", run(ctx, &c), GDN_OK);
    must("after the first call", cu.wait(streams[0]));
    if (!ring2_failed()) {
        const struct graph g = capture(ctx, &c);
        for (int round = 0; round < ROUNDS && !ring2_failed(); round++) {
            vary(&c, round);
            upload();
            must("cuGraphLaunch", cu.launch(g.exec, streams[0]));
            must("after the graph", cu.wait(streams[0]));
            keep_results();
            upload();
            ring2_status(ctx, "a plain call", run(ctx, &c), GDN_OK);
            must("after a plain call", cu.wait(streams[0]));
            expect_kept(names[which]);
        }
        printf("    %s: %zu nodes\n", names[which], g.n_nodes);
    }
    cu.release(c.memory);
    free_buffers();
    gdn_ctx_destroy(ctx);
}

static void test_graphs(void)
{
    for (int i = 0; i < N_CALLS && !ring2_failed(); i++) replay(i);
}

/* ---- Two streams --------------------------------------------------------------------------- */

/* Two contexts with workspaces of their own take turns, and leave what each leaves alone. */
static void test_two_streams(void)
{
    enum { ROUNDS = 20 };
    for (int which = 0; which < N_CALLS && !ring2_failed(); which++) {
        gdn_ctx *ctx[2] = { new_ctx(), new_ctx() };
        struct call c[2];
        for (int i = 0; i < 2; i++) {
            make_call(&c[i], which);
            *c[i].stream = streams[i];
            vary(&c[i], i);
        }
        for (int together = 0; together < 2; together++) {
            upload();
            for (int round = 0; round < ROUNDS; round++)
                for (int i = 0; i < 2; i++) {
                    ring2_status(ctx[i], names[which], run(ctx[i], &c[i]), GDN_OK);
                    if (!together) must("in turn", cu.wait(streams[i]));
                }
            for (int i = 0; i < 2; i++) must("after all", cu.wait(streams[i]));
            if (!together) keep_results();
        }
        expect_kept(names[which]);
        free_buffers();
        for (int i = 0; i < 2; i++) gdn_ctx_destroy(ctx[i]);
    }
}

/* ---- The host's part ----------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Printed, not judged: 2 microseconds and 2 for each launch are what is aimed at. */
static void test_host_cost(void)
{
    enum { SAMPLES = 41, CALLS = 20 }; /* fewer calls than a stream can hold */
    for (int which = 0; which < N_CALLS && !ring2_failed(); which++) {
        gdn_ctx *ctx = new_ctx();
        double us[SAMPLES];
        struct call c;
        make_call(&c, which);
        *c.stream = streams[0];
        give_workspace(ctx, &c);
        vary(&c, 0);
        upload();
        ring2_status(ctx, names[which], run(ctx, &c), GDN_OK);
        for (int i = 0; i < SAMPLES && !ring2_failed(); i++) {
            must("before a sample", cu.wait(streams[0]));
            const double start = now();
            for (int j = 0; j < CALLS; j++) ring2_status(ctx, names[which], run(ctx, &c), GDN_OK);
            us[i] = (now() - start) / CALLS;
        }
        must("after all", cu.wait(streams[0]));
        if (!ring2_failed()) {
            const struct graph g = capture(ctx, &c);
            qsort(us, SAMPLES, sizeof *us, by_value);
            printf("    %s: %.1f us on the host, %zu nodes, so %.0f are aimed at\n", names[which],
                   us[SAMPLES / 2], g.n_nodes, 2 + 2 * (double)g.n_nodes);
        }
        cu.release(c.memory);
        free_buffers();
        gdn_ctx_destroy(ctx);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "graphs: other inputs, slots, lengths", test_graphs },
        { "two contexts on two streams", test_two_streams },
        { "the host's part of a call", test_host_cost },
    };
    if (!open_driver()) {
        printf("skipped: no NVIDIA driver or GPU\n");
        return 77;
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
