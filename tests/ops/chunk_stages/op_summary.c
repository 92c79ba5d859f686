/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80, sm_90 --every=2 */
/*
 * gdn_summary: U is judged as the state of a prefill from zero, M as that of one from the
 * identity with v = 0, both by the model of ring2_rule.h.
 */
#include <math.h>

#include "ring2_device.h"
#include "ring2_rule.h"
#include "summary_call.h"

enum {
    DIMS,
    HEADS,
    LENGTHS,
    K_TYPE,
    V_TYPE,
    M_TYPE,
    U_TYPE,
    LAYOUT,
    MAP,
    VIEW,
    GATE,
    BETA,
    PARTS,
    BATCH,
    NORM,
    N_FACTORS
};
enum { MILD, NO_GATE, SPRINKLED, STRONG }; /* GATE */
enum { BOTH, ONLY_M, ONLY_U };
enum { PACKED, PLAIN, PADDED, COUNTED };

static const int levels[N_FACTORS] = {
    N_DIMS - N_WIDE_DIMS, 5, 3, 3, 3, 3, 3, 2, 2, 2, 4, 3, 3, 4, 2
};
static const int heads[5][3] = { { 1, 1, 1 }, { 4, 2, 4 }, { 3, 3, 3 }, { 6, 2, 2 }, { 6, 3, 2 } };
static const int64_t lengths[3][4] = { { 40, 0, 7, 17 }, { 1, 16, 8, 9 }, { 0, 0, 70, 32 } };

static bool allowed(int i, int a, int j, int b)
{
    if (i > j) return allowed(j, b, i, a);
    return true;
}

struct call {
    gdn_summary_args args;
    gdn_batch batch;
    int64_t B, N;
};

/* ---- Making ---- */

static gdn_tensor rows(const struct call *c, const int *level, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = level[VIEW] ? 5 : 0;
    const int ndim = D ? 3 : 2;
    if (level[BATCH] != PADDED) return ring2_new(dtype, D ? gap : 0, ndim, c->N, n, D, 0);
    return ring2_new(dtype, D ? gap : 0, ndim + 1, c->B, c->N / c->B, n, D);
}

static void make_batch(struct call *c, const int *level)
{
    int64_t cu[5] = { 0 }, counts[4];
    c->batch = gdn_batch_init();
    c->B = 4;
    for (int b = 0; b < 4; b++) cu[b + 1] = cu[b] + lengths[level[LENGTHS]][b];
    for (int b = 0; b < 4; b++) counts[b] = ring2_below(cu[b + 1] - cu[b] + 1);
    c->N = cu[4] + 3; /* three tokens of no sequence */
    if (level[BATCH] == PLAIN) c->B = 1;
    if (level[BATCH] == PADDED) c->N = 4 * lengths[level[LENGTHS]][0];
    if (level[BATCH] == PACKED || level[BATCH] == COUNTED)
        c->batch.cu_seqlens = ring2_indices(level[K_TYPE] ? GDN_I64 : GDN_I32, 5, cu);
    if (level[BATCH] == COUNTED) c->batch.token_count = ring2_indices(GDN_I32, 4, counts);
}

static void make_values(struct call *c, const int *level)
{
    gdn_summary_args *a = &c->args;
    fill_unit(&a->k);
    if (a->v.data) ring2_fill(&a->v, -1, 1);
    if (level[GATE] == NO_GATE) a->g.data = NULL;
    for (int64_t i = 0; a->g.data && i < ring2_count(&a->g); i++) {
        double g = level[GATE] == STRONG ? ring2_uniform(-8, -7) : ring2_uniform(-0.1, 0);
        if (level[GATE] == SPRINKLED && ring2_below(9) == 0) g = -(double)INFINITY;
        ring2_set(&a->g, i, g);
    }
    if (level[BETA] == 0) a->beta.data = NULL;
    for (int64_t i = 0; a->beta.data && i < ring2_count(&a->beta); i++)
        ring2_set(&a->beta, i, ring2_below(5) ? ring2_uniform(0, level[BETA]) : 0);
}

static void make_call(struct call *c, const int *level)
{
    gdn_summary_args *a = &c->args;
    const int64_t K = dims[level[DIMS]][0], V = dims[level[DIMS]][1];
    const int *h = heads[level[HEADS]], H = h[0];
    const bool kv = level[LAYOUT] == GDN_STATE_KV;
    make_batch(c, level);
    *a = gdn_summary_args_init();
    a->k = rows(c, level, level[K_TYPE], h[1], K);
    a->g = rows(c, level, level[K_TYPE] == GDN_F16 ? GDN_F16 : GDN_F32, H, 0);
    a->beta = rows(c, level, level[V_TYPE], H, 0);
    if (level[PARTS] != ONLY_M) {
        a->v = rows(c, level, level[V_TYPE], h[2], V);
        a->U = pool(level[U_TYPE], level[VIEW], c->B, H, kv ? K : V, kv ? V : K);
    }
    if (level[PARTS] != ONLY_U) a->M = pool(level[M_TYPE], level[MAP], c->B, H, K, K);
    a->batch = &c->batch;
    a->head_map = level[MAP];
    a->state_layout = level[LAYOUT];
    a->norm = level[NORM] ? GDN_NORM_L2_ADD : GDN_NORM_NONE;
    a->norm_eps = 1e-4f;
    make_values(c, level);
    for (int64_t i = 0; level[NORM] && i < ring2_count(&a->k); i++)
        ring2_set(&a->k, i, 3 * ring2_get(&a->k, i));
}

/* ---- Judging ---- */

static void compare(const char *what, const gdn_tensor *got, const struct ring2_rule *m,
                    bool transition)
{
    const int64_t K = got->size[3];
    for (int64_t i = 0; i < ring2_count(got); i++) { /* what no token computes */
        const double want = transition && i / K % K == i % K;
        if (!m->state_kept[i]) continue;
        CHECK(ring2_get(got, i) == want, "%s[%d] of no token is %g", what, (int)i,
              ring2_get(got, i));
    }
    ring2_compare(what, got, m->state, m->state_limit, m->state_noise, m->state_kept);
}

static void check_call(gdn_ctx *ctx, const gdn_summary_args *a)
{
    struct ring2_rule m[2];
    gdn_rule_args r;
    for (int i = 0; i < 2; i++)
        if (i ? a->M.data : a->U.data) r = as_rule(a, i), ring2_rule_model(&r, false, &m[i]);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_SUMMARY, a), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&a->M);
    ring2_may_write(&a->U);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    ring2_status(ctx, "gdn_summary", gdn_summary(ctx, a), GDN_OK);
    ring2_call_end();
    if (ring2_failed()) return;
    if (a->U.data) compare("U", &a->U, &m[0], false);
    if (a->M.data) compare("M", &a->M, &m[1], true);
}

static void run_case(const int *level, int number)
{
    struct call c;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_summary_args *a = &c.args;
    make_call(&c, level);
    if (number % 2) {
        ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_SUMMARY, a, &a->workspace_bytes),
                     GDN_OK);
        const int64_t V = a->v.data ? a->v.size[a->v.ndim - 1] : 0, most = V > 256 ? V : 256;
        const int64_t keys = ring2_on_device() && a->norm ? 4 * ring2_count(&a->k) : 0;
        CHECK((int64_t)a->workspace_bytes <=
                  gdn_n_threads(ctx) * (640 << 10) * most / 256 + (272 << 10) + c.B * 192 + keys,
              "%zu bytes", a->workspace_bytes);
        a->workspace = ring2_alloc((a->workspace_bytes + 63) / 64 * 64, 64);
    }
    check_call(ctx, a);
}

/* ---- Guarantees ---- */

/* Two results that each have the error of a prefill. */
static void expect_close(const gdn_tensor *a, const gdn_tensor *b, const struct ring2_rule *m)
{
    for (int64_t i = 0; i < ring2_count(a); i++) {
        const double e = fabs(ring2_get(a, i) - ring2_get(b, i));
        CHECK(e <= 2 * m->state_limit[i], "U[%d] and prefill's differ by %g", (int)i, e);
    }
}

/* To the bit, whatever the state's layout; also for short sequences. On a device to rounding. */
static void U_is_the_state_of_prefill(void)
{
    static const int64_t N[] = { 5, 8, 9, 16, 75 };
    for (int i = 0; i < 5; i++) {
        gdn_summary_args a = plain_call(N[i], 2, 33, 41, 1);
        gdn_rule_args r = as_rule(&a, false);
        r.state_out = ring2_clone(&a.U);
        struct ring2_rule m;
        ring2_rule_model(&r, false, &m);
        call(ring2_ctx(2), &a);
        if (ring2_on_device()) r.flags = GDN_EXACT; /* its chunks need not be of float32 */
        ring2_status(ring2_ctx(2), "prefill", gdn_prefill(ring2_ctx(2), &r), GDN_OK);
        if (ring2_on_device())
            expect_close(&a.U, &r.state_out, &m);
        else
            ring2_expect_bits("U", &a.U, &r.state_out);
    }
}

/* G9: no token forgets or writes. G8: then v may be NaN. G7: nothing from before remains. */
static void selection(void)
{
    gdn_summary_args a = plain_call(40, 2, 20, 24, 1), whole, after;
    ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0), ring2_fill_value(&a.v, (double)NAN);
    call(ring2_ctx(1), &a);
    for (int64_t i = 0; i < ring2_count(&a.M); i++)
        CHECK(ring2_get(&a.M, i) == (i / 20 % 20 == i % 20), "M[%d] is %g", (int)i,
              ring2_get(&a.M, i));
    for (int64_t i = 0; i < ring2_count(&a.U); i++)
        CHECK(ring2_get(&a.U, i) == 0, "U[%d] is %g", (int)i, ring2_get(&a.U, i));

    whole = plain_call(48, 2, 20, 24, 1);
    ring2_set(&whole.v, 5, (double)NAN);
    for (int h = 0; h < 2; h++) ring2_set(&whole.g, 32 * 2 + h, -(double)INFINITY);
    after = part_of(&whole, 32, 16);
    call(ring2_ctx(1), &whole);
    call(ring2_ctx(1), &after);
    ring2_expect_bits("G7", &whole.U, &after.U);
    for (int64_t i = 0; i < ring2_count(&whole.M); i++)
        CHECK(ring2_get(&whole.M, i) == 0, "M[%d] is %g", (int)i, ring2_get(&whole.M, i));
}

/* ---- Refusals ---- */

static gdn_batch refused_batch;

static gdn_summary_args summary(void)
{
    gdn_summary_args a = plain_call(9, 4, 8, 6, 1);
    refused_batch = gdn_batch_init();
    a.batch = &refused_batch;
    return a;
}

#define REFUSE_SEEN(seen, op, make, what, want, needle, ...)    \
    do {                                                        \
        if (!ring2_begin("G1 " #make ": %s", what)) break;      \
        gdn_##make##_args args = make(), *a = &args;            \
        __VA_ARGS__;                                            \
        ring2_refused(ring2_ctx(2), op, a, seen, want, needle); \
        ring2_end();                                            \
    } while (0)

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_SUMMARY, summary, __VA_ARGS__)
static void refuse_summary(void)
{
    gdn_batch *t = &refused_batch;
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("norm", GDN_E_ARG, "norm", a->norm = 5);
    REFUSE("norm_eps", GDN_E_ARG, "norm_eps", a->norm_eps = -1);
    REFUSE("head_map", GDN_E_ARG, "head_map", a->head_map = 2);
    REFUSE("state_layout", GDN_E_ARG, "state_layout", a->state_layout = -1);
    REFUSE("k absent", GDN_E_ARG, "k", a->k.data = NULL);
    REFUSE("v absent", GDN_E_ARG, "v", a->v.data = NULL);
    REFUSE("U absent", GDN_E_ARG, "U", a->U.data = NULL);
    REFUSE("M and U absent", GDN_E_ARG, "M", a->M.data = a->U.data = a->v.data = NULL);
    REFUSE("k of I32", GDN_E_DTYPE, "k", a->k.dtype = GDN_I32);
    REFUSE("k not dense", GDN_E_SHAPE, "k", a->k.stride[2] = 2);
    REFUSE("v of fewer tokens", GDN_E_SHAPE, "v", a->v.size[0]--);
    REFUSE("v of 3 heads", GDN_E_SHAPE, "v", a->v.size[1] = 3);
    REFUSE("k of 3 heads", GDN_E_SHAPE, "k", a->k.size[1] = 3);
    REFUSE("g of 3 heads", GDN_E_SHAPE, "g", a->g.size[1] = 3);
    REFUSE("K 257", GDN_E_UNSUPPORTED, "k", a->k = ring2_new(GDN_F32, 0, 3, 9, 4, 257, 0));
    REFUSE("V 1025", GDN_E_UNSUPPORTED, "v", a->v = ring2_new(GDN_F32, 0, 3, 9, 4, 1025, 0));
    REFUSE("M of 2 sequences", GDN_E_SHAPE, "M", a->M.size[0] = 2);
    REFUSE("M of another K", GDN_E_SHAPE, "M", a->M.size[2] = 7);
    REFUSE("U of the other layout", GDN_E_SHAPE, "U", a->state_layout = GDN_STATE_KV);
    REFUSE("M shares memory", GDN_E_SHAPE, "M", a->M.stride[1] = 1);
    REFUSE("M without a dense dimension", GDN_E_SHAPE, "M",
           a->M = ring2_new(GDN_F32, 0, 4, 1, 4, 8, 20);
           a->M.size[3] = 8; a->M.stride[3] = 2);
    REFUSE("U on M", GDN_E_ARG, "overlaps", a->U.data = a->M.data);
    REFUSE("M on k", GDN_E_ARG, "overlaps", a->M.data = a->k.data);
    REFUSE("read_slots", GDN_E_ARG, "read_slots",
           t->read_slots = ring2_indices(GDN_I32, 1, (int64_t[]){ 0 }));
    REFUSE("write", GDN_E_ARG, "write", t->write = GDN_WRITE_NONE);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_SUMMARY, summary, "cu_seqlens beyond N", GDN_E_ARG,
                "cu_seqlens", t->cu_seqlens = ring2_indices(GDN_I32, 2, (int64_t[]){ 0, 10 }));
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_SUMMARY, summary, "workspace too small", GDN_E_MEMORY,
                "workspace_bytes", a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 64);
}
#undef REFUSE

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "U is the state of a prefill", U_is_the_state_of_prefill },
        { "G7 G8 G9 selection", selection },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int few = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    const int n = ring2_pairs_again(&f, cases, few, 200, DIMS, N_DIMS - N_WIDE_DIMS, N_DIMS);
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("summary %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    refuse_summary();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
