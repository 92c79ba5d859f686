/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=3 */
/*
 * Pools that have no stride of 1 in their last two dimensions. Floats are held against the float64
 * oracle, which reads any strides; states of 8 bits and checkpoints against the same call on dense
 * pools, bit for bit.
 */
#include <string.h>

#include "gdn_record.h"
#include "ring2_device.h"
#include "ring2_rule.h"

enum { K = 20, V = 12, P = 4, B = 3, H = 4 };
static const int heads[3] = { 2, 2, H };
static const int64_t lengths[2][B] = { { 5, 1, 8 }, { 33, 2, 20 } };

/* ---- Pools ---------------------------------------------------------------------------------- */

enum { GAPS, BACKWARDS, SLOTS_INSIDE, N_WAYS };

/* Returns a view of n slots with values that lie apart. */
static gdn_tensor apart(int32_t dtype, int layout, int64_t n, int way)
{
    const int64_t rows = layout == GDN_STATE_VK ? V : K, columns = layout == GDN_STATE_VK ? K : V;
    if (way == SLOTS_INSIDE) {
        gdn_tensor t = ring2_new(dtype, 1, 4, rows, columns, H, n);
        t = ring2_swap(&t, 0, 3), t = ring2_swap(&t, 1, 2);
        return ring2_swap(&t, 2, 3);
    }
    gdn_tensor t = ring2_new(dtype, 2, 4, n, H, rows, 3 * columns);
    gdn_tensor last = ring2_narrow(&t, 3, way == GAPS ? 1 : 3 * columns - 1, 1);
    last.size[3] = columns;
    last.stride[3] = way == GAPS ? 3 : -3;
    return last;
}

static gdn_tensor dense(int32_t dtype, int layout, int64_t n)
{
    return ring2_new(dtype, 0, 4, n, H, layout == GDN_STATE_VK ? V : K,
                     layout == GDN_STATE_VK ? K : V);
}

/* Copies the values, or the bits, to another view. */
static void move(const gdn_tensor *to, const gdn_tensor *from)
{
    const size_t unit = gdn_dtype_bytes(from->dtype);
    for (int64_t i = 0; i < ring2_count(from); i++)
        memcpy(ring2_element(to, i), ring2_element(from, i), unit);
}

/* ---- Floats beside float64 ------------------------------------------------------------------ */

enum { IN_PLACE, FROM_DENSE, TO_DENSE, N_PLACES };

static void floats(int number)
{
    static const int32_t dtypes[] = { GDN_F32, GDN_BF16, GDN_F16 };
    const int layout = number / 3 % 2, way = number / 6 % N_WAYS;
    const int place = number / 18 % N_PLACES;
    const bool decode = number / 54 % 2;
    const int32_t dtype = dtypes[number % 3], io = number / 5 % 2 ? GDN_BF16 : GDN_F32;
    gdn_batch *batch;
    gdn_rule_args a = ring2_rule_packed(io, dtype, B, lengths[number / 7 % 2], heads, K, V, &batch);
    gdn_tensor from = dense(dtype, layout, P), to = apart(dtype, layout, P, way);
    ring2_fill(&from, -0.5, 0.5);
    move(&to, &from);
    a.state_layout = layout;
    a.flags = dtype == GDN_F32 && number % 2 ? GDN_EXACT : 0;
    a.state = place == FROM_DENSE ? from : to;
    if (place == FROM_DENSE) a.state_out = to;
    if (place == TO_DENSE) a.state_out = dense(dtype, layout, P);
    if (place == TO_DENSE) ring2_fill_value(&a.state_out, 0);
    ring2_rule_check(ring2_ctx(1 + number % 2), &a, decode);
}

/* ---- The same call on dense pools ----------------------------------------------------------- */

/* A pool of 8 bits, with scales or without, or of floats. */
static const struct kind {
    int32_t dtype;
    bool scaled;
} kinds[] = { { GDN_I8, true }, { GDN_E4M3, true }, { GDN_E5M2, false } };

struct pool {
    gdn_tensor t, scales;
};

static struct pool dense_pool(struct kind kind, int layout)
{
    struct pool p = { .t = dense(kind.dtype, layout, P) };
    for (int64_t i = 0; i < ring2_count(&p.t); i++) {
        const uint8_t code = ring2_bits() & (kind.scaled ? 0xbf : 0xb9);
        memcpy(ring2_element(&p.t, i), &code, 1);
    }
    if (!kind.scaled) return p;
    p.scales = ring2_new(GDN_F32, 1, 3, P, H, V, 0);
    ring2_fill(&p.scales, 0.001, 0.02);
    return p;
}

static struct pool pool_apart(const struct pool *p, int layout, int way)
{
    struct pool q = { .t = apart(p->t.dtype, layout, P, way) };
    move(&q.t, &p->t);
    if (p->scales.data) q.scales = ring2_clone(&p->scales);
    return q;
}

static void expect_same(const char *what, const struct pool *got, const struct pool *want)
{
    ring2_expect_bits(what, &got->t, &want->t);
    if (want->scales.data) ring2_expect_bits("scales", &got->scales, &want->scales);
}

static void may_write(const struct pool *p)
{
    ring2_may_write(&p->t);
    if (p->scales.data) ring2_may_write(&p->scales);
}

/* Drawn gates; gates that leave the state; the last of them for a batch of one token each. */
static void eight_bits(int number)
{
    const struct kind kind = kinds[number % 3];
    const int layout = number / 3 % 2, way = number / 6 % N_WAYS;
    const bool decode = number / 18 % 2, idle = number / 36;
    gdn_rule_args a =
        ring2_rule_packed(GDN_F32, GDN_F32, B, lengths[number / 5 % 2], heads, K, V, NULL);
    const struct pool p = dense_pool(kind, layout), q = pool_apart(&p, layout, way);
    if (idle) ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
    a.state_layout = layout;
    a.rounding = number / 2 % 2, a.seed = ring2_bits();
    a.flags = number % 7 == 0 ? GDN_EXACT : 0;
    a.state = p.t, a.state_scales = p.scales;
    gdn_rule_args b = ring2_rule_clone(&a);
    b.state = q.t, b.state_scales = q.scales;
    ring2_status(ring2_ctx(2), "dense", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&b.out);
    may_write(&q);
    ring2_status(ring2_ctx(2), "apart", ring2_rule_call(ring2_ctx(2), &b, decode), GDN_OK);
    ring2_call_end();
    ring2_expect_bits("out", &b.out, &a.out);
    expect_same("state", &q, &p);
}

/* The state goes to a dense pool, the checkpoints to one that is not dense. */
static void checkpoints(int number)
{
    const int layout = number % 2, way = number / 2 % N_WAYS;
    const bool decode = number / 6 % 2;
    const int32_t dtype = number % 5 ? GDN_BF16 : GDN_F32;
    gdn_batch *batch;
    gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, B, lengths[1], heads, K, V, &batch);
    a.state = dense(GDN_F32, layout, P);
    ring2_fill(&a.state, -0.5, 0.5);
    a.state_layout = layout;
    batch->checkpoint_every = 16;
    a.checkpoints = dense(dtype, layout, P);
    ring2_fill_value(&a.checkpoints, 0);
    gdn_rule_args b = ring2_rule_clone(&a);
    b.checkpoints = apart(dtype, layout, P, way);
    move(&b.checkpoints, &a.checkpoints);
    ring2_status(ring2_ctx(2), "dense", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
    ring2_status(ring2_ctx(2), "apart", ring2_rule_call(ring2_ctx(2), &b, decode), GDN_OK);
    ring2_expect_bits("state", &b.state, &a.state);
    ring2_expect_bits("checkpoints", &b.checkpoints, &a.checkpoints);
}

static void folded(int number)
{
    enum { R = 5 };
    static const int64_t counts[P] = { 2, 0, 5, 1 };
    const struct kind kind = kinds[number % 3];
    const int layout = number / 3 % 2;
    gdn_record_fold_args a = gdn_record_fold_args_init(), b;
    const struct pool p = dense_pool(kind, layout), q = pool_apart(&p, layout, number % N_WAYS);
    a.record_k = ring2_new(GDN_F32, 0, 4, P, R, 2, K);
    a.record_u = ring2_new(GDN_F32, 0, 4, P, R, H, V);
    a.record_g = ring2_new(GDN_F32, 0, 3, P, R, H, 0);
    ring2_fill(&a.record_k, -0.2, 0.2), ring2_fill(&a.record_u, -1, 1);
    ring2_fill(&a.record_g, 0.5, 1);
    a.state_layout = layout;
    b = a;
    a.record_count = ring2_indices(GDN_I32, P, counts);
    b.record_count = ring2_clone(&a.record_count);
    a.state = p.t, a.state_scales = p.scales, b.state = q.t, b.state_scales = q.scales;
    ring2_status(ring2_ctx(2), "dense", gdn_record_fold(ring2_ctx(2), &a), GDN_OK);
    ring2_status(ring2_ctx(2), "apart", gdn_record_fold(ring2_ctx(2), &b), GDN_OK);
    expect_same("state", &q, &p);
}

static void layer_step(int number)
{
    enum { D = 2 * 2 * K + H * V };
    const struct kind kind = kinds[number % 3];
    const int layout = number / 3 % 2;
    const struct pool p = dense_pool(kind, layout), q = pool_apart(&p, layout, number % N_WAYS);
    gdn_step_args a = gdn_step_args_init();
    a.n_key_heads = 2, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
    a.x = ring2_new(GDN_BF16, 0, 3, B, 2, D, 0), a.out = ring2_new(GDN_BF16, 0, 4, B, 2, H, V);
    a.a = ring2_new(GDN_F32, 0, 3, B, 2, H, 0), a.b = ring2_new(GDN_F32, 0, 3, B, 2, H, 0);
    a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
    ring2_fill(&a.x, -2, 2), ring2_fill(&a.a, -3, 3), ring2_fill(&a.b, -3, 3);
    ring2_fill(&a.A_log, -2, 1);
    a.state_layout = layout;
    a.state = p.t, a.state_scales = p.scales;
    gdn_step_args b = a;
    b.out = ring2_clone(&a.out);
    b.state = q.t, b.state_scales = q.scales;
    ring2_status(ring2_ctx(2), "dense", gdn_step(ring2_ctx(2), &a), GDN_OK);
    ring2_status(ring2_ctx(2), "apart", gdn_step(ring2_ctx(2), &b), GDN_OK);
    ring2_expect_bits("out", &b.out, &a.out);
    expect_same("state", &q, &p);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "strides: floats", floats, 108 },          { "strides: 8 bits", eight_bits, 72 },
        { "strides: checkpoints", checkpoints, 12 }, { "strides: gdn_record_fold", folded, 6 },
        { "strides: gdn_step", layer_step, 6 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
