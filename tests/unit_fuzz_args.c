/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary argument structs: valid calls of every op with a few fields changed at random.
 *
 * All tensors lie in one arena that ends at a guard page. Nothing may crash. A refused call
 * changes no byte; an accepted one only elements of what it writes. gdn_supported() is asked
 * first: what it refuses is called wherever it points to, for it must not be read; what it
 * accepts is called if it lies in the arena and is small.
 *
 * With GDN_LIBFUZZER defined this is a libFuzzer target, its bytes being the random numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring2.h"

enum { ARENA = 1 << 17, MOST_ELEMENTS = 1 << 16, N_OPS = GDN_OP_STATE_COPY + 1 };

static struct {
    unsigned char *arena, *before, *written;
    size_t         used;
    const uint8_t *data; /* of libFuzzer; NULL: ring2_bits() */
    size_t         size;
    int64_t        n_refused, n_accepted;
} fuzz;

/* ---- Random choices ---- */

static uint32_t bits(void)
{
    uint32_t x = 0;
    if (!fuzz.data) return (uint32_t)ring2_bits();
    for (int i = 0; i < 4 && fuzz.size; i++, fuzz.size--) x = x << 8 | *fuzz.data++;
    return x;
}

static int64_t below(int64_t n) { return (int64_t)bits() % n; }
static bool    one_in(int64_t n) { return below(n) == 0; }

/* ---- Valid calls ---- */

static gdn_tensor place(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    const size_t unit = gdn_dtype_bytes(dtype);
    gdn_tensor   t    = gdn_dense(NULL, dtype, ndim, s0, s1, s2, s3);
    fuzz.used = (fuzz.used + (size_t)below(3) * unit + unit - 1) / unit * unit;
    t.data    = fuzz.arena + fuzz.used;
    fuzz.used += (size_t)ring2_count(&t) * unit;
    if (fuzz.used > ARENA) abort();
    return t;
}

static int32_t any_float(void) { return (int32_t)below(3); }

static gdn_tensor index_array(int64_t n, int64_t low, int64_t high)
{
    gdn_tensor t = place(one_in(2) ? GDN_I32 : GDN_I64, 1, n, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) ring2_set(&t, i, (double)(low + below(high - low + 1)));
    return t;
}

static gdn_tensor distinct(int64_t n)
{
    gdn_tensor t = place(GDN_I32, 1, n, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) ring2_set(&t, i, (double)(n - 1 - i));
    return t;
}

/* A packed batch of B sequences over N tokens and P slots. */
static gdn_batch make_batch(int64_t B, int64_t N, int64_t P)
{
    gdn_batch t = gdn_batch_init();
    t.cu_seqlens = place(GDN_I32, 1, B + 1, 0, 0, 0);
    for (int64_t b = 0; b <= B; b++) ring2_set(&t.cu_seqlens, b, (double)(N * b / B));
    if (one_in(2)) t.read_slots = distinct(B);
    if (one_in(3)) t.read_slots = index_array(B, -1, P - 1);
    if (one_in(4)) t.write_slots = distinct(B);
    if (one_in(4)) t.has_initial_state = index_array(B, 0, 1);
    if (one_in(4)) t.token_count = index_array(B, 0, N / B);
    t.pad_policy = (int32_t)below(3);
    t.write      = one_in(4) ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
    if (one_in(6)) {
        const int64_t T = (N + B - 1) / B;
        t.write       = GDN_WRITE_EACH;
        t.write_slots = place(GDN_I32, 2, B, T, 0, 0);
        for (int64_t i = 0; i < B * T; i++)
            ring2_set(&t.write_slots, i, (double)(below(P + 1) - 1));
    }
    return t;
}

union call {
    gdn_rule_args          rule;
    gdn_conv1d_args        conv;
    gdn_gates_args         gates;
    gdn_l2norm_args        l2norm;
    gdn_rmsnorm_gated_args rmsnorm;
    gdn_block_args         block;
    gdn_state_copy_args    state;
    char                   bytes[sizeof(gdn_block_args)];
};

static void make_rule(union call *c, int64_t N, int64_t P)
{
    static const int heads[][3] = { { 1, 1, 1 }, { 1, 1, 3 }, { 2, 1, 1 }, { 2, 2, 4 } };
    const int       *h = heads[below(4)], H = h[0] > h[2] ? h[0] : h[2];
    const int64_t    K = 1 + below(20), V = 1 + below(20);
    const int32_t    A = any_float(), S = any_float();
    const bool       kv = one_in(2);
    gdn_rule_args   *a = &c->rule;
    *a   = gdn_rule_args_init();
    a->q = place(A, 3, N, h[0], K, 0), a->k = place(A, 3, N, h[1], K, 0);
    a->v = place(A, 3, N, h[2], V, 0), a->out = place(A, 3, N, H, V, 0);
    a->g = place(GDN_F32, 2, N, H, 0, 0), a->beta = place(GDN_F32, 2, N, H, 0, 0);
    a->state        = place(S, 4, P, H, kv ? K : V, kv ? V : K);
    a->state_layout = kv;
    if (one_in(3)) a->state_out = place(S, 4, P, H, kv ? K : V, kv ? V : K);
    if (one_in(3)) {
        a->gate  = GDN_GATE_RAW;
        a->A_log = place(GDN_F32, 1, H, 0, 0, 0), a->dt_bias = place(GDN_BF16, 1, H, 0, 0, 0);
    }
    if (one_in(4)) a->out.data = NULL;
    if (one_in(8)) a->out = a->v;
    a->norm = (int32_t)below(4);
}

static void make_conv(union call *c, int64_t N, int64_t P)
{
    const int64_t    D = 1 + below(40), W = 2 + below(7), S = W - 1 + below(3);
    const int32_t    A = any_float();
    gdn_conv1d_args *a = &c->conv;
    *a        = gdn_conv1d_args_init();
    a->x      = place(A, 2, N, D, 0, 0);
    a->out    = one_in(3) ? a->x : place(A, 2, N, D, 0, 0);
    a->weight = place(any_float(), 2, D, W, 0, 0);
    a->bias   = place(GDN_F32, 1, D, 0, 0, 0);
    a->state  = place(any_float(), 3, P, D, S, 0);
    if (one_in(3)) a->state_out = place(any_float(), 3, P, D, S, 0);
    a->activation = (int32_t)below(2);
}

static void make_rows(union call *c, gdn_op op, int64_t N)
{
    const int64_t D = 1 + below(80);
    if (op == GDN_OP_GATES) {
        gdn_gates_args *a = &c->gates;
        *a = gdn_gates_args_init();
        a->a = place(any_float(), 2, N, D, 0, 0), a->b = place(any_float(), 2, N, D, 0, 0);
        a->g = one_in(3) ? a->a : place(GDN_F32, 2, N, D, 0, 0);
        a->beta  = one_in(3) ? a->b : place(GDN_F16, 2, N, D, 0, 0);
        a->A_log = place(GDN_F32, 1, D, 0, 0, 0), a->dt_bias = place(GDN_F32, 1, D, 0, 0, 0);
    } else if (op == GDN_OP_L2NORM) {
        gdn_l2norm_args *a = &c->l2norm;
        *a     = gdn_l2norm_args_init();
        a->x   = place(any_float(), 2, N, D, 0, 0);
        a->out = one_in(3) ? a->x : place(any_float(), 2, N, D, 0, 0);
    } else {
        gdn_rmsnorm_gated_args *a = &c->rmsnorm;
        *a = gdn_rmsnorm_gated_args_init();
        a->x = place(any_float(), 2, N, D, 0, 0), a->z = place(any_float(), 2, N, D, 0, 0);
        a->weight = place(any_float(), 1, D, 0, 0, 0);
        a->out    = one_in(3) ? a->z : place(any_float(), 2, N, D, 0, 0);
    }
}

static void make_block(union call *c, int64_t N, int64_t P)
{
    const int64_t   Hk = 1 + below(2), Hv = Hk * (1 + below(2)), K = 1 + below(8), V = 1 + below(8);
    const int64_t   D = 2 * Hk * K + Hv * V, hidden = 1 + below(20);
    gdn_block_args *a = &c->block;
    *a        = gdn_block_args_init();
    a->hidden = place(GDN_F32, 2, N, hidden, 0, 0), a->out = place(GDN_F32, 2, N, hidden, 0, 0);
    if (one_in(2)) {
        a->in_proj_qkvz = place(GDN_BF16, 2, D + Hv * V, hidden, 0, 0);
        a->in_proj_ba   = place(GDN_F32, 2, 2 * Hv, hidden, 0, 0);
    } else {
        a->in_proj_qkv = place(GDN_F32, 2, D, hidden, 0, 0);
        a->in_proj_z   = place(GDN_F16, 2, Hv * V, hidden, 0, 0);
        a->in_proj_b   = place(GDN_F32, 2, Hv, hidden, 0, 0);
        a->in_proj_a   = place(GDN_F32, 2, Hv, hidden, 0, 0);
    }
    a->conv_weight = place(GDN_F32, 2, D, 2 + below(7), 0, 0);
    a->A_log       = place(GDN_F32, 1, Hv, 0, 0, 0), a->dt_bias = place(GDN_F32, 1, Hv, 0, 0, 0);
    a->norm_weight = place(GDN_F32, 1, V, 0, 0, 0);
    a->out_proj    = place(GDN_F32, 2, hidden, Hv * V, 0, 0);
    a->conv_state  = place(GDN_F32, 3, P, D, a->conv_weight.size[1] - one_in(2), 0);
    a->state       = place(GDN_F16, 4, P, Hv, V, K);
    a->n_key_heads = (int32_t)Hk, a->n_value_heads = (int32_t)Hv;
    a->key_head_dim = (int32_t)K, a->value_head_dim = (int32_t)V;
}

static gdn_tensor make_states(int64_t P, const int64_t *s, bool turned, bool conv)
{
    const int64_t a = s[turned ? 2 : 1], b = s[turned ? 1 : 2];
    return conv ? place(any_float(), 3, P, s[1], s[2] + below(3), 0)
                : place(any_float(), 4, P, s[0], a, b);
}

static void make_state_copy(union call *c, int64_t P)
{
    const int64_t        s[3] = { 1 + below(3), 1 + below(40), 1 + below(8) };
    const bool           conv = one_in(3);
    gdn_state_copy_args *a    = &c->state;
    *a             = gdn_state_copy_args_init();
    a->from_layout = !conv && one_in(2), a->to_layout = !conv && one_in(2);
    a->from_pool   = make_states(P, s, a->from_layout, conv);
    a->to_pool     = make_states(P, s, a->to_layout, conv);
    if (one_in(4)) a->to_pool = a->from_pool, a->to_layout = a->from_layout;
    if (one_in(8)) a->from_pool.data = NULL;
    if (one_in(2)) a->from_slots = index_array(P, -1, P - 1);
    if (one_in(2)) a->to_slots = distinct(P);
}

static void make_call(gdn_op op, union call *c, gdn_batch *t)
{
    const int64_t    B = 1 + below(4), N = B * (1 + below(20)), P = B + below(3);
    const gdn_batch *batch = t;
    memset(c, 0, sizeof *c);
    fuzz.used = 0;
    *t = make_batch(B, N, P);
    if (op <= GDN_OP_DECODE) make_rule(c, N, P);
    else if (op == GDN_OP_CONV1D) make_conv(c, N, P);
    else if (op == GDN_OP_BLOCK) make_block(c, N, P);
    else if (op == GDN_OP_STATE_COPY) make_state_copy(c, P);
    else make_rows(c, op, N);
    if (ring2_ops[op].batch_at && !one_in(8))
        memcpy(c->bytes + ring2_ops[op].batch_at, &batch, sizeof batch);
}

/* ---- Mutations ---- */

static int64_t odd_number(int64_t now)
{
    static const int64_t odd[] = { 0, 1, -1, 2, 3, 7, 16, 255, 256, 257, 65536, INT32_MAX,
                                   (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN, INT64_MAX / 2,
                                   INT64_MIN / 4, (int64_t)1 << 40 };
    switch (below(4)) {
    case 0: return odd[below((int64_t)(sizeof odd / sizeof *odd))];
    case 1: return (int64_t)((uint64_t)now + (uint64_t)below(3) - 1);
    case 2: return now < INT64_MAX / 4 && now > INT64_MIN / 4 ? -2 * now : 0;
    default: return below(40);
    }
}

static void mutate_tensor(gdn_tensor *t)
{
    const int64_t d = below(GDN_MAX_DIMS);
    switch (below(6)) {
    case 0: t->data = one_in(4) ? NULL : fuzz.arena + below(ARENA); break;
    case 1: t->dtype = (int32_t)below(9) - 1; break;
    case 2: t->ndim = (int32_t)below(9) - 1; break;
    case 3: t->size[d] = odd_number(t->size[d]); break;
    case 4: t->stride[d] = odd_number(t->stride[d]); break;
    default: t->data = fuzz.arena + below(ARENA / 4) * 4;
    }
}

static void mutate_word(void *where)
{
    static const float odd[] = { -1, 1e-30f, 3e38f, -5 };
    const int32_t      n = (int32_t)below(6) - 2, any = (int32_t)bits();
    if (one_in(3)) memcpy(where, &odd[below(4)], 4);
    else memcpy(where, one_in(4) ? &any : &n, 4);
}

/* One field of the struct or of its batch; pointers only where they stay real. */
static void mutate(gdn_op op, union call *c, gdn_batch *t)
{
    const struct ring2_op *o = &ring2_ops[op];
    gdn_tensor            *tensors = (gdn_tensor *)(void *)(c->bytes + 8);
    const size_t first = 8 + o->n_tensors * sizeof(gdn_tensor) + (o->batch_at ? 8 : 0);
    const size_t end   = o->bytes - 24; /* workspace, its bytes, stream */
    const size_t word  = first + (size_t)below((int64_t)(end - first) / 4) * 4;
    switch (below(o->batch_at ? 8 : 4)) {
    case 0:
    case 1:
    case 2: mutate_tensor(&tensors[below((int64_t)o->n_tensors)]); break;
    case 3: mutate_word(c->bytes + (one_in(9) ? 4 : word)); break;
    case 4: t->pad_policy = (int32_t)below(5) - 1; break;
    case 5: t->write = (int32_t)below(5) - 1; break;
    case 6: mutate_tensor(&t->cu_seqlens + below(6)); break;
    default: t->sink_slot = odd_number(t->sink_slot);
    }
}

/* ---- Running ---- */

/* Elements of the view, if it is small and lies in the arena; -1 if not. */
static int64_t in_arena(const gdn_tensor *t)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(t->dtype);
    int64_t low = (unsigned char *)t->data - fuzz.arena, high = low + unit, n = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] > MOST_ELEMENTS) return -1;
        n *= t->size[i];
        if (n > MOST_ELEMENTS) return -1;
        if (t->size[i] < 2) continue;
        if (t->stride[i] > ARENA || t->stride[i] < -ARENA) return -1;
        *(t->stride[i] < 0 ? &low : &high) += (t->size[i] - 1) * t->stride[i] * unit;
    }
    return n == 0 || (low >= 0 && high <= ARENA) ? n : -1;
}

static bool is_runnable(gdn_op op, const union call *c)
{
    const gdn_tensor *t = (const gdn_tensor *)(const void *)(c->bytes + 8);
    const gdn_batch  *batch = NULL;
    for (size_t i = 0; i < ring2_ops[op].n_tensors; i++)
        if (t[i].data && in_arena(&t[i]) < 0) return false;
    if (ring2_ops[op].batch_at) memcpy(&batch, c->bytes + ring2_ops[op].batch_at, sizeof batch);
    t = batch ? &batch->cu_seqlens : NULL;
    for (int i = 0; batch && i < 6; i++)
        if (t[i].data && in_arena(&t[i]) < 0) return false;
    return true;
}

static void mark(const gdn_tensor *t)
{
    const int64_t n = t->data ? in_arena(t) : 0, unit = (int64_t)gdn_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++)
        memset(fuzz.written + ((unsigned char *)ring2_element(t, i) - fuzz.arena), 1, (size_t)unit);
}

static void mark_written(gdn_op op, const union call *c)
{
    memset(fuzz.written, 0, ARENA);
    switch (op) {
    case GDN_OP_PREFILL:
    case GDN_OP_DECODE:
        mark(&c->rule.out);
        mark(c->rule.state_out.data ? &c->rule.state_out : &c->rule.state);
        break;
    case GDN_OP_CONV1D:
        mark(&c->conv.out);
        mark(c->conv.state_out.data ? &c->conv.state_out : &c->conv.state);
        break;
    case GDN_OP_GATES: mark(&c->gates.g), mark(&c->gates.beta); break;
    case GDN_OP_L2NORM: mark(&c->l2norm.out); break;
    case GDN_OP_RMSNORM_GATED: mark(&c->rmsnorm.out); break;
    case GDN_OP_BLOCK:
        mark(&c->block.out), mark(&c->block.state), mark(&c->block.conv_state);
        break;
    case GDN_OP_STATE_COPY: mark(&c->state.to_pool); break;
    default: break;
    }
}

static void check_unchanged(gdn_op op, const union call *c, gdn_status status)
{
    if (!memcmp(fuzz.before, fuzz.arena, ARENA)) return;
    CHECK(status == GDN_OK, "op %d: refused (%s), but memory changed", (int)op,
          gdn_last_error(ring2_ctx(2)));
    mark_written(op, c);
    for (size_t i = 0; i < ARENA; i++)
        if (!fuzz.written[i] && fuzz.before[i] != fuzz.arena[i]) {
            ring2_fail("op %d: byte %zu of the arena changed", (int)op, i);
            return;
        }
}

static void fuzz_one(void)
{
    const gdn_op op  = (gdn_op)below(N_OPS);
    gdn_ctx     *ctx = ring2_ctx(2);
    union call   c;
    gdn_batch    t;
    gdn_status   asked, status;
    size_t       bytes = 0;
    make_call(op, &c, &t);
    for (int64_t n = below(4); n > 0; n--) mutate(op, &c, &t);
    asked = gdn_supported(ctx, op, &c);
    CHECK(gdn_workspace_bytes(ctx, op, &c, &bytes) == asked, "op %d: two answers", (int)op);
    if (asked == GDN_OK && !is_runnable(op, &c)) return;
    memcpy(fuzz.before, fuzz.arena, ARENA);
    status = ring2_run(ctx, op, &c);
    CHECK(asked == GDN_OK || status == asked, "op %d: gdn_supported says %s, the op %s", (int)op,
          gdn_status_name(asked), gdn_status_name(status));
    CHECK(status == GDN_OK || gdn_last_error(ctx)[0], "op %d: no error text", (int)op);
    check_unchanged(op, &c, status);
    status == GDN_OK ? fuzz.n_accepted++ : fuzz.n_refused++;
}

static void make_arena(void)
{
    fuzz.arena   = ring2_alloc(ARENA, 64);
    fuzz.before  = ring2_heap(ARENA);
    fuzz.written = ring2_heap(ARENA);
    for (int i = 0; i < ARENA; i++) fuzz.arena[i] = (unsigned char)(i * 7 + i / 251);
}

#ifdef GDN_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!fuzz.arena) make_arena();
    fuzz.data = data;
    fuzz.size = size;
    fuzz_one();
    if (ring2_failed()) abort();
    return 0;
}
#else
static void arbitrary_structs(void)
{
    make_arena();
    for (int i = 0; i < 30000 && !ring2_failed(); i++) fuzz_one();
    CHECK(fuzz.n_accepted > 3000 && fuzz.n_refused > 3000, "%d accepted, %d refused: too few",
          (int)fuzz.n_accepted, (int)fuzz.n_refused);
}

int main(int argc, char **argv)
{
    static const struct ring2_test test = { "arbitrary argument structs", arbitrary_structs };
    return ring2_main(argc, argv, &test, 1);
}
#endif
