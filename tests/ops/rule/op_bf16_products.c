/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu */
/* GDN_BF16_PRODUCTS: its loops on factors that bfloat16 holds, and gdn_prefill with these loops.
 * On a machine without AMX and AVX512-BF16 the flag must change nothing. */
#include <math.h>
#include <string.h>

#include "core/ctx.h"
#include "cpu/loops/bf16.h"
#include "ring2_rule.h"

enum { ROWS = 2 * GDN_CHUNK, COLUMNS = 32, MOST = GDN_MAX_HEAD };

/* ---- The loops ----------------------------------------------------------------------------- */

static float to_bf16(float x)
{
    uint32_t i;
    memcpy(&i, &x, sizeof i);
    i = (i + 0x7fff + (i >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &i, sizeof x);
    return x;
}

static float *lines(size_t n)
{
    float *x = ring2_alloc(n * sizeof *x, 64);
    for (size_t i = 0; i < n; i++) x[i] = (float)ring2_uniform(-1, 1);
    return x;
}

/* p of rounded factors, to within the limit of bf16.h. */
static void check_products(const struct gdn_bf16_products *b, int K)
{
    const int deep = (K + 31) / 32 * 32, ldp = COLUMNS + 3;
    float *a = lines((size_t)(ROWS * K)), *s = lines((size_t)(K * COLUMNS));
    float *p = lines((size_t)(ROWS * ldp));
    uint16_t *rows = ring2_alloc((size_t)(ROWS * MOST) * sizeof *rows, 64);
    uint16_t *pairs = ring2_alloc((size_t)(deep * COLUMNS) * sizeof *pairs, 64);
    b->round_rows(rows, a, K, K);
    b->round_strip(pairs, s, K);
    b->strip_mul(p, ldp, rows, pairs, K);
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < COLUMNS; j++) {
            double sum = 0, size = 0;
            for (int x = 0; x < K; x++) {
                const double term = (double)to_bf16(a[r * K + x]) * to_bf16(s[x * COLUMNS + j]);
                sum += term;
                size += fabs(term);
            }
            const double error = fabs(p[r * ldp + j] - sum);
            CHECK(error <= (8 + K / 16.0) * 0x1p-24 * size, "%s: K %d, p[%d][%d] is off by %g",
                  b->name, K, r, j, error);
        }
}

/* The update has the bits of the table's, and the rounded strip is that of its result. */
static void check_update(const struct gdn_bf16_products *b, int K)
{
    const size_t n = (size_t)(K * COLUMNS), deep = (size_t)((K + 31) / 32 * 32 * COLUMNS);
    float *s = lines(n), *k = lines((size_t)(GDN_CHUNK * K)), *w = lines(GDN_CHUNK * COLUMNS);
    float *want = lines(n);
    uint16_t *pairs = ring2_alloc(deep * sizeof *pairs, 64);
    uint16_t *renewed = ring2_alloc(deep * sizeof *pairs, 64);
    memcpy(want, s, n * sizeof *s);
    b->round_strip(pairs, s, K);
    b->chunk_update(s, pairs, 0.75f, k, K, w, K);
    b->table->chunk_update(want, want, COLUMNS, 0.75f, k, K, w, COLUMNS, GDN_CHUNK, K);
    CHECK(!memcmp(s, want, n * sizeof *s), "%s: K %d, another state", b->name, K);
    b->round_strip(renewed, s, K);
    CHECK(!memcmp(pairs, renewed, deep * sizeof *pairs), "%s: K %d, stale pairs", b->name, K);
}

static void loops(void)
{
    static const int depths[] = { 1, 2, 7, 16, 31, 32, 33, 60, 64, 100, 128, 255, 256 };
    const uint32_t flags[] = { gdn_cpu_detect(), gdn_cpu_detect() & ~(uint32_t)GDN_CPU_AMX };
    int found = 0;
    for (int t = 0; gdn_cpu_tables[t]; t++)
        for (int f = 0; f < 2; f++) {
            const struct gdn_bf16_products *b = gdn_cpu_bf16_products(gdn_cpu_tables[t], flags[f]);
            if (!b) continue;
            found++;
            for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
                check_products(b, depths[i]);
                check_update(b, depths[i]);
            }
        }
    if (!found) ring2_skip("neither AMX nor AVX512-BF16");
}

/* ---- Calls --------------------------------------------------------------------------------- */

static const struct shape {
    int32_t state, layout;
    int heads[3];
    int64_t K, V;
} shapes[] = {
    { GDN_F32, GDN_STATE_VK, { 2, 2, 4 }, 128, 128 },
    { GDN_BF16, GDN_STATE_KV, { 1, 1, 3 }, 60, 100 },
    { GDN_F32, GDN_STATE_KV, { 4, 2, 2 }, 33, 7 },
    { GDN_F16, GDN_STATE_VK, { 1, 1, 1 }, 256, 40 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_SEQS = 5 };

static gdn_rule_args call_of(const struct shape *s)
{
    static const int64_t lengths[N_SEQS] = { 40, 0, 5, 129, 17 };
    gdn_batch *batch;
    gdn_rule_args a =
        ring2_rule_packed(GDN_BF16, s->state, N_SEQS, lengths, s->heads, s->K, s->V, &batch);
    if (s->layout == GDN_STATE_KV) {
        a.state = ring2_new(s->state, 0, 4, N_SEQS, a.state.size[1], s->K, s->V);
        ring2_fill(&a.state, -1, 1);
    }
    a.state_layout = s->layout;
    a.flags = GDN_BF16_PRODUCTS;
    return a;
}

static void against_float64(void)
{
    for (int i = 0; i < 2 * N_SHAPES; i++) {
        gdn_rule_args a = call_of(&shapes[i / 2]);
        for (int64_t j = 0; i % 2 && j < ring2_count(&a.g); j += 7)
            ring2_set(&a.g, j, -(double)INFINITY);
        ring2_rule_check(ring2_ctx(1 + i % 3), &a, false);
    }
}

static void G2_threads(void)
{
    for (int i = 0; i < N_SHAPES; i++) {
        gdn_rule_args a = call_of(&shapes[i]), b = ring2_rule_clone(&a);
        ring2_status(ring2_ctx(1), "one", ring2_rule_call(ring2_ctx(1), &a, false), GDN_OK);
        ring2_status(ring2_ctx(3), "three", ring2_rule_call(ring2_ctx(3), &b, false), GDN_OK);
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);
    }
}

/* The flag changes the loops of a context with bf16 products, and of no other context. */
static void told(void)
{
    gdn_rule_args a = call_of(&shapes[0]), plain = ring2_rule_clone(&a);
    gdn_ctx *ctx = ring2_ctx(1);
    plain.flags = 0;
    ring2_status(ctx, "flag", ring2_rule_call(ctx, &a, false), GDN_OK);
    const bool said = strstr(gdn_last_kernel(ctx), "bf16_mul") != NULL;
    CHECK(said == (ctx->products != NULL), "the kernel is \"%s\"", gdn_last_kernel(ctx));
    ring2_status(ctx, "plain", ring2_rule_call(ctx, &plain, false), GDN_OK);
    CHECK(!strstr(gdn_last_kernel(ctx), "bf16_mul"), "unasked: \"%s\"", gdn_last_kernel(ctx));
    CHECK(ring2_same_bits(&a.out, &plain.out) == !said, "out with the flag and without");

    const int heads[3] = { 1, 1, 8 };
    gdn_rule_args large = ring2_rule_args(GDN_BF16, GDN_F32, 20, 1, heads, 256, 256);
    size_t bytes = 0;
    large.flags = GDN_BF16_PRODUCTS;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL, &large, &bytes), GDN_OK);
    CHECK(bytes <= 641 * 1024, "%zu bytes of a thread", bytes);
}

/* State bits that no token changes stay, and what is NaN is forgotten (G7, G9). */
static void G7_G9_selections(void)
{
    gdn_rule_args a = call_of(&shapes[0]);
    ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
    const gdn_tensor before = ring2_clone(&a.state);
    ring2_status(ring2_ctx(1), "idle", ring2_rule_call(ring2_ctx(1), &a, false), GDN_OK);
    ring2_expect_bits("idle state", &a.state, &before);

    gdn_rule_args b = call_of(&shapes[0]);
    const int64_t H = b.g.size[1];
    ring2_fill_value(&b.state, (double)NAN);
    for (int64_t h = 0; h < H; h++) /* the first token of every sequence */
        for (int s = 0; s < N_SEQS; s++) {
            const int64_t t = (int64_t)ring2_get(&b.batch->cu_seqlens, s);
            if (t < b.g.size[0]) ring2_set(&b.g, t * H + h, -(double)INFINITY);
        }
    ring2_rule_check(ring2_ctx(1), &b, false);
}

static void G1_refused(void)
{
    const int heads[3] = { 1, 1, 1 };
    gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 20, 1, heads, 16, 16);
    a.flags = GDN_BF16_PRODUCTS;
    ring2_refused(ring2_ctx(1), GDN_OP_PREFILL, &a, RING2_STRUCT, GDN_E_DTYPE, "flags");
    a = ring2_rule_args(GDN_BF16, GDN_F32, 20, 1, heads, 16, 16);
    a.flags = GDN_BF16_PRODUCTS | GDN_EXACT;
    ring2_refused(ring2_ctx(1), GDN_OP_PREFILL, &a, RING2_STRUCT, GDN_E_ARG,
                  "flags: GDN_EXACT and GDN_BF16_PRODUCTS, wanted one of the two");
}

/* gdn_decode has no chunks, so the flag means nothing there, whatever the dtype. */
static void no_notice(void)
{
    const int heads[3] = { 2, 2, 4 };
    gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 3, 3, heads, 16, 16);
    gdn_rule_args b = ring2_rule_clone(&a);
    a.flags = GDN_BF16_PRODUCTS;
    ring2_status(ring2_ctx(1), "flag", ring2_rule_call(ring2_ctx(1), &a, true), GDN_OK);
    ring2_status(ring2_ctx(1), "plain", ring2_rule_call(ring2_ctx(1), &b, true), GDN_OK);
    ring2_expect_bits("out", &a.out, &b.out);
    ring2_expect_bits("state", &a.state, &b.state);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "loops", loops },
        { "against float64", against_float64 },
        { "G2 threads", G2_threads },
        { "told", told },
        { "G7 G9 selections", G7_G9_selections },
        { "G1 refused", G1_refused },
        { "decode takes no notice", no_notice },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
