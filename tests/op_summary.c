/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary, gdn_summary_compose, gdn_summary_apply. U is judged as the state of a prefill
 * from zero, M as that of one from the identity with v = 0, both by the model of ring2_rule.h.
 * Products are judged in float64 by the bounds that gdn.h states.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_rule.h"

static const double eps = 0x1p-24;

enum { DIMS, HEADS, LENGTHS, K_TYPE, V_TYPE, M_TYPE, U_TYPE, LAYOUT, MAP, VIEW, GATE, BETA, PARTS,
       BATCH, N_FACTORS };
enum { MILD, NO_GATE, SPRINKLED, STRONG }; /* GATE */
enum { BOTH, ONLY_M, ONLY_U };
enum { PACKED, PLAIN, PADDED, COUNTED };

static const int levels[N_FACTORS] = { 6, 5, 3, 3, 3, 3, 3, 2, 2, 2, 4, 3, 3, 4 };
static const int dims[6][2] = { { 16, 16 }, { 1, 3 }, { 33, 7 }, { 20, 65 }, { 128, 40 },
                                { 60, 100 } };
static const int heads[5][3] = { { 1, 1, 1 }, { 4, 2, 4 }, { 3, 3, 3 }, { 6, 2, 2 }, { 6, 3, 2 } };
static const int64_t lengths[3][4] = { { 40, 0, 7, 17 }, { 1, 16, 8, 9 }, { 0, 0, 70, 32 } };

static bool allowed(int i, int a, int j, int b)
{
    if (i > j) return allowed(j, b, i, a);
    return true;
}

struct call {
    gdn_summary_args args;
    gdn_batch        batch;
    int64_t          B, N;
};

/* ---- Making ---- */

static gdn_tensor rows(const struct call *c, const int *level, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = level[VIEW] ? 5 : 0;
    const int     ndim = D ? 3 : 2;
    if (level[BATCH] != PADDED) return ring2_new(dtype, D ? gap : 0, ndim, c->N, n, D, 0);
    return ring2_new(dtype, D ? gap : 0, ndim + 1, c->B, c->N / c->B, n, D);
}

static void make_batch(struct call *c, const int *level)
{
    int64_t cu[5] = { 0 }, counts[4];
    c->batch = gdn_batch_init();
    c->B     = 4;
    for (int b = 0; b < 4; b++) cu[b + 1] = cu[b] + lengths[level[LENGTHS]][b];
    for (int b = 0; b < 4; b++) counts[b] = ring2_below(cu[b + 1] - cu[b] + 1);
    c->N = cu[4] + 3; /* three tokens belong to nobody */
    if (level[BATCH] == PLAIN) c->B = 1;
    if (level[BATCH] == PADDED) c->N = 4 * lengths[level[LENGTHS]][0];
    if (level[BATCH] == PACKED || level[BATCH] == COUNTED)
        c->batch.cu_seqlens = ring2_indices(level[K_TYPE] ? GDN_I64 : GDN_I32, 5, cu);
    if (level[BATCH] == COUNTED) c->batch.token_count = ring2_indices(GDN_I32, 4, counts);
}

static gdn_tensor pool(int32_t dtype, bool swapped, int64_t B, int64_t H, int64_t r, int64_t s)
{
    const int64_t gap = swapped ? 0 : 3;
    gdn_tensor    t = ring2_new(dtype, gap, 4, B, H, swapped ? s : r, swapped ? r : s);
    return swapped ? ring2_swap(&t, 2, 3) : t;
}

static void fill_unit(const gdn_tensor *k)
{
    const int64_t K = k->size[k->ndim - 1];
    double       *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = ring2_uniform(-1, 1);
        oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
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
    const int    *h = heads[level[HEADS]], H = h[0];
    const bool    kv = level[LAYOUT] == GDN_STATE_KV;
    make_batch(c, level);
    *a      = gdn_summary_args_init();
    a->k    = rows(c, level, level[K_TYPE], h[1], K);
    a->g    = rows(c, level, level[K_TYPE] == GDN_F16 ? GDN_F16 : GDN_F32, H, 0);
    a->beta = rows(c, level, level[V_TYPE], H, 0);
    if (level[PARTS] != ONLY_M) {
        a->v = rows(c, level, level[V_TYPE], h[2], V);
        a->U = pool(level[U_TYPE], level[VIEW], c->B, H, kv ? K : V, kv ? V : K);
    }
    if (level[PARTS] != ONLY_U) a->M = pool(level[M_TYPE], level[MAP], c->B, H, K, K);
    a->batch        = &c->batch;
    a->head_map     = level[MAP];
    a->state_layout = level[LAYOUT];
    make_values(c, level);
}

/* ---- Judging ---- */

/* k with H heads: nobody looks at what it holds, for states do not depend on q. */
static gdn_tensor any_q(const gdn_summary_args *a, int64_t H)
{
    gdn_tensor q = ring2_select(&a->k, a->k.ndim - 2, 0);
    q.size[q.ndim]   = q.size[q.ndim - 1];
    q.stride[q.ndim] = q.stride[q.ndim - 1];
    q.size[q.ndim - 1]   = H;
    q.stride[q.ndim - 1] = 0;
    q.ndim++;
    return q;
}

/* The prefill whose final states are M or U. */
static gdn_rule_args as_rule(const gdn_summary_args *a, bool transition)
{
    const gdn_tensor *to = transition ? &a->M : &a->U;
    const int64_t     B = to->size[0], H = to->size[1], K = a->k.size[a->k.ndim - 1];
    gdn_rule_args     r = gdn_rule_args_init();
    r.q = any_q(a, H), r.k = a->k, r.v = a->v, r.g = a->g, r.beta = a->beta;
    r.batch = a->batch, r.head_map = a->head_map, r.state_layout = a->state_layout;
    r.state_out = *to;
    if (!transition) return r;
    r.state_layout = GDN_STATE_KV;
    r.v            = ring2_clone(&a->k);
    r.state        = ring2_new(GDN_F32, 0, 4, B, H, K, K);
    ring2_fill_value(&r.v, 0);
    for (int64_t i = 0; i < ring2_count(&r.state); i++)
        ring2_set(&r.state, i, i / K % K == i % K);
    return r;
}

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
    gdn_rule_args     r;
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
    struct call       c;
    gdn_ctx          *ctx = ring2_ctx(1 + number % 3);
    gdn_summary_args *a   = &c.args;
    make_call(&c, level);
    if (number % 2) {
        ring2_status(ctx, "bytes",
                     gdn_workspace_bytes(ctx, GDN_OP_SUMMARY, a, &a->workspace_bytes), GDN_OK);
        CHECK(a->workspace_bytes <= (size_t)gdn_n_threads(ctx) * (640 << 10) + (272 << 10) +
                                        (size_t)c.B * 192, "%zu bytes", a->workspace_bytes);
        a->workspace = ring2_alloc((a->workspace_bytes + 63) / 64 * 64, 64);
    }
    check_call(ctx, a);
}

/* ---- Calls to start from ---- */

/* One sequence of N tokens, float32. */
static gdn_summary_args plain_call(int64_t N, int64_t H, int64_t K, int64_t V, double beta)
{
    gdn_summary_args a = gdn_summary_args_init();
    a.k = ring2_new(GDN_F32, 0, 3, N, H, K, 0), a.v = ring2_new(GDN_F32, 0, 3, N, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.M = ring2_new(GDN_F32, 0, 4, 1, H, K, K), a.U = ring2_new(GDN_F32, 0, 4, 1, H, V, K);
    fill_unit(&a.k);
    ring2_fill(&a.v, -1, 1), ring2_fill(&a.g, -0.05, 0), ring2_fill(&a.beta, 0, beta);
    return a;
}

static gdn_summary_args part_of(const gdn_summary_args *a, int64_t first, int64_t n)
{
    gdn_summary_args p = *a;
    gdn_tensor      *t[] = { &p.k, &p.v, &p.g, &p.beta };
    for (int i = 0; i < 4; i++) *t[i] = ring2_narrow(t[i], 0, first, n);
    p.M = ring2_clone(&a->M), p.U = ring2_clone(&a->U);
    return p;
}

static gdn_summary_args fresh(const gdn_summary_args *a)
{
    gdn_summary_args p = *a;
    p.M = ring2_clone(&a->M), p.U = ring2_clone(&a->U);
    return p;
}

static void call(gdn_ctx *ctx, const gdn_summary_args *a)
{
    ring2_status(ctx, "gdn_summary", gdn_summary(ctx, a), GDN_OK);
}

static void expect_same(const char *what, const gdn_summary_args *got,
                        const gdn_summary_args *want)
{
    ring2_expect_bits(what, &got->M, &want->M);
    ring2_expect_bits(what, &got->U, &want->U);
}

/* ---- Guarantees ---- */

static void G2_threads_and_mates(void)
{
    static const int64_t cu[] = { 0, 33, 33, 38, 120 };
    gdn_summary_args     all = plain_call(120, 3, 36, 70, 1), one = all;
    gdn_batch            batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 5, cu);
    all.batch        = &batch;
    all.M = ring2_new(GDN_F32, 0, 4, 4, 3, 36, 36), all.U = ring2_new(GDN_F32, 0, 4, 4, 3, 70, 36);
    call(ring2_ctx(1), &all);
    for (int n = 2; n <= 4; n++) {
        gdn_summary_args many = fresh(&all);
        call(ring2_ctx(n), &many);
        expect_same("threads", &many, &all);
    }
    for (int b = 0; b < 4; b++) {
        gdn_summary_args part = part_of(&one, cu[b], cu[b + 1] - cu[b]), its = all;
        its.M = ring2_narrow(&all.M, 0, b, 1), its.U = ring2_narrow(&all.U, 0, b, 1);
        call(ring2_ctx(2), &part);
        expect_same("alone", &part, &its);
    }
}

static void G3_repeat(void)
{
    gdn_summary_args a = plain_call(100, 4, 36, 70, 1);
    call(ring2_ctx(4), &a);
    for (int i = 0; i < 4; i++) {
        gdn_summary_args again = fresh(&a);
        call(ring2_ctx(4), &again);
        expect_same("again", &again, &a);
    }
}

/* To the bit, whatever the state's layout; also for short sequences. */
static void U_is_the_state_of_prefill(void)
{
    static const int64_t N[] = { 5, 8, 9, 16, 75 };
    for (int i = 0; i < 5; i++) {
        gdn_summary_args a = plain_call(N[i], 2, 33, 41, 1);
        gdn_rule_args    r = as_rule(&a, false);
        r.state_out        = ring2_clone(&a.U);
        call(ring2_ctx(2), &a);
        ring2_status(ring2_ctx(2), "prefill", gdn_prefill(ring2_ctx(2), &r), GDN_OK);
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

struct mode_call {
    gdn_ctx         *ctx;
    gdn_summary_args args;
    gdn_status       status;
};

static void call_in_mode(void *arg)
{
    struct mode_call *c = arg;
    c->status = gdn_summary(c->ctx, &c->args);
}

static void G12_float_environment(void)
{
    gdn_summary_args a = plain_call(50, 2, 20, 24, 1), plainly = fresh(&a);
    call(ring2_ctx(1), &plainly);
    for (int i = 0;; i++) {
        struct mode_call c = { ring2_ctx(1 + i % 2 * 2), fresh(&a), 0 };
        if (!ring2_float_mode(i, call_in_mode, &c)) {
            if (!i) ring2_skip("no MXCSR on this machine");
            break;
        }
        ring2_status(c.ctx, "call", c.status, GDN_OK);
        expect_same("mode", &c.args, &plainly);
    }
}

static void G13_no_allocation(void)
{
    int              n_allocs = 0, before;
    gdn_ctx         *ctx = ring2_counting_ctx(&n_allocs);
    gdn_summary_args a   = plain_call(50, 2, 20, 24, 1);
    before = n_allocs;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_SUMMARY, &a, &a.workspace_bytes),
                 GDN_OK);
    a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    call(ctx, &a);
    CHECK(n_allocs == before, "%d allocations", n_allocs - before);
    gdn_ctx_destroy(ctx);
}

/* ---- Products ---- */

/* Element (x, j) of slot and head number i of a state, as it lies in a row-major walk. */
static int64_t at(int64_t i, int64_t x, int64_t j, int64_t K, int64_t V, int layout)
{
    return i * K * V + (layout == GDN_STATE_VK ? j * K + x : x * V + j);
}

/* want = M S + U and the bound that gdn.h states; U, S data NULL: 0. */
static void model_product(const gdn_tensor *M, const gdn_tensor *S, const gdn_tensor *U,
                          int layout, int64_t V, double *want, double *limit)
{
    const int64_t K = M->size[2];
    for (int64_t i = 0; i < M->size[0] * M->size[1]; i++)
        for (int64_t x = 0; x < K; x++)
            for (int64_t j = 0; j < V; j++) {
                const int64_t to  = at(i, x, j, K, V, layout);
                double        sum = U->data ? ring2_get(U, to) : 0, mag = fabs(sum);
                for (int64_t y = 0; S->data && y < K; y++) {
                    const double p = ring2_get(M, at(i, x, y, K, K, GDN_STATE_KV)) *
                                     ring2_get(S, at(i, y, j, K, V, layout));
                    sum += p;
                    mag += fabs(p);
                }
                want[to]  = sum;
                limit[to] = (double)(K + 2) * eps * mag + 0x1p-140;
            }
}

static gdn_tensor filled(int32_t dtype, bool swapped, int64_t H, int64_t r, int64_t s)
{
    gdn_tensor t = pool(dtype, swapped, 3, H, r, s);
    ring2_fill(&t, -1, 1);
    return t;
}

static void compose_case(int number)
{
    const int64_t K = dims[number % 6][0], V = dims[number % 6][1], H = 1 + number % 3;
    const int     layout = number / 6 % 2;
    const int64_t r = layout ? K : V, s = layout ? V : K;
    const int32_t type[] = { number % 3, (number + number / 3) % 3 };
    const bool    in_place = number % 4 == 1;
    gdn_ctx      *ctx = ring2_ctx(1 + number % 3);
    gdn_tensor    none = { 0 };
    gdn_summary_compose_args a = gdn_summary_compose_args_init();
    a.state_layout = layout;
    a.M1 = filled(type[0], number & 2, H, K, K), a.M2 = filled(type[1], number & 4, H, K, K);
    a.U1 = filled(type[1], number & 4, H, r, s), a.U2 = filled(type[0], number & 2, H, r, s);
    a.M = in_place ? a.M1 : pool(type[1], number & 1, 3, H, K, K);
    a.U = in_place ? (number & 8 ? a.U1 : a.U2) : pool(type[0], number & 4, 3, H, r, s);

    const size_t nM = (size_t)ring2_count(&a.M), nU = (size_t)ring2_count(&a.U);
    double *M = ring2_heap(nM * 8), *M_limit = ring2_heap(nM * 8);
    double *U = ring2_heap(nU * 8), *U_limit = ring2_heap(nU * 8);
    model_product(&a.M2, &a.M1, &none, GDN_STATE_KV, K, M, M_limit);
    model_product(&a.M2, &a.U1, &a.U2, layout, V, U, U_limit);
    ring2_status(ctx, "bytes",
                 gdn_workspace_bytes(ctx, GDN_OP_SUMMARY_COMPOSE, &a, &a.workspace_bytes), GDN_OK);
    CHECK(a.workspace_bytes <= (size_t)gdn_n_threads(ctx) * (512 << 10), "too much workspace");
    a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    ring2_call_begin();
    ring2_may_write(&a.M), ring2_may_write(&a.U);
    ring2_may_write_bytes(a.workspace, a.workspace_bytes);
    ring2_status(ctx, "compose", gdn_summary_compose(ctx, &a), GDN_OK);
    ring2_call_end();
    ring2_compare("M", &a.M, M, M_limit, NULL, NULL);
    ring2_compare("U", &a.U, U, U_limit, NULL, NULL);
}

static void apply_case(int number)
{
    const int64_t K = dims[number % 6][0], V = dims[number % 6][1], H = 1 + number % 3;
    const int     layout = number / 6 % 2;
    const int64_t r = layout ? K : V, s = layout ? V : K;
    const int32_t type[] = { number % 3, (number + number / 3) % 3 };
    gdn_ctx      *ctx = ring2_ctx(1 + number % 3);
    gdn_summary_apply_args a = gdn_summary_apply_args_init(), again;
    a.state_layout = layout;
    a.M = filled(type[0], number & 2, H, K, K);
    a.U = filled(type[1], number & 4, H, r, s), a.state = filled(type[0], number & 1, H, r, s);
    if (number % 5 == 1) a.U.data = NULL;
    if (number % 5 == 2) a.state.data = NULL;
    a.state_out = pool(type[1], number & 1, 3, H, r, s);
    if (number % 5 == 3) a.state_out = a.state;
    if (number % 5 == 4) a.state_out = a.U;

    const size_t n = (size_t)ring2_count(&a.state_out);
    double      *want = ring2_heap(n * 8), *limit = ring2_heap(n * 8);
    again           = a;
    again.state_out = ring2_clone(&a.state_out);
    model_product(&a.M, &a.state, &a.U, layout, V, want, limit);
    ring2_status(ctx, "G2", gdn_summary_apply(ring2_ctx(4), &again), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&a.state_out);
    ring2_status(ctx, "apply", gdn_summary_apply(ctx, &a), GDN_OK);
    ring2_call_end();
    ring2_compare("state_out", &a.state_out, want, limit, NULL, NULL);
    ring2_expect_bits("G2 G3 threads", &again.state_out, &a.state_out);
}

/* ---- Composition ---- */

struct map {
    double *M, *U;    /* [K][K], [K][V] */
    double  M_error, U_error; /* the library's, as Frobenius norms */
    double  decay;    /* exp(sum of g) */
};

enum { K = 24, V = 12, PART = 37 };

/* Tokens [first, first + n) of head 0 by the recurrence in float64. */
static struct map exact(const gdn_summary_args *a, int64_t first, int64_t n)
{
    struct map m = { ring2_heap(K * K * 8), ring2_heap(K * V * 8), 0, 0, 1 };
    for (int x = 0; x < K; x++) m.M[x * K + x] = 1;
    for (int64_t t = first; t < first + n; t++) {
        const double alpha = exp(ring2_get(&a->g, t)), beta = ring2_get(&a->beta, t);
        m.decay *= alpha;
        for (int j = 0; j < K + V; j++) {
            double *S = j < K ? m.M + j : m.U + (j - K), k[K], p = 0;
            const int ld = j < K ? K : V;
            for (int x = 0; x < K; x++) k[x] = ring2_get(&a->k, t * K + x);
            for (int x = 0; x < K; x++) p += alpha * k[x] * S[x * ld];
            const double v = j < K ? 0 : ring2_get(&a->v, t * V + j - K), u = beta * (v - p);
            for (int x = 0; x < K; x++) S[x * ld] = alpha * S[x * ld] + k[x] * u;
        }
    }
    return m;
}

static double norm(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* How far the library's M and U (of layout VK) are from the exact ones. */
static void measure(struct map *m, const gdn_tensor *gotM, const gdn_tensor *gotU)
{
    double e[K * K], f[K * V];
    for (int i = 0; i < K * K; i++) e[i] = ring2_get(gotM, i) - m->M[i];
    for (int i = 0; i < K * V; i++) f[i] = ring2_get(gotU, i % V * K + i / V) - m->U[i];
    m->M_error = norm(e, K * K), m->U_error = norm(f, K * V);
}

/* The bound of gdn.h for range 2 after range 1, of M (columns K) or U. */
static double bound(const struct map *a, const struct map *b, bool transition)
{
    const double *S = transition ? a->M : a->U;
    const int     n = transition ? K : V;
    double        mag[K * K];
    for (int x = 0; x < K; x++)
        for (int j = 0; j < n; j++) {
            mag[x * n + j] = transition ? 0 : fabs(b->U[x * V + j]);
            for (int y = 0; y < K; y++) mag[x * n + j] += fabs(b->M[x * K + y] * S[y * n + j]);
        }
    const double rounding = (K + 2) * eps * norm(mag, K * n) * 1.001; /* of computed, not exact */
    const double e1 = transition ? a->M_error : a->U_error;
    return b->decay * e1 + b->M_error * ((transition ? a->decay : norm(a->U, K * V)) + e1) +
           (transition ? 0 : b->U_error) + rounding;
}

/* Four parts merged one by one against the whole range, keys of length 1, beta up to 2. */
static void composition(void)
{
    gdn_ctx         *ctx = ring2_ctx(2);
    gdn_summary_args a   = plain_call(4 * PART, 1, K, V, 2), all = part_of(&a, 0, PART);
    struct map       sum = exact(&a, 0, PART);
    call(ctx, &all);
    measure(&sum, &all.M, &all.U);
    for (int i = 1; i < 4; i++) {
        gdn_summary_args         part = part_of(&a, i * PART, PART);
        gdn_summary_compose_args c    = gdn_summary_compose_args_init();
        struct map               own  = exact(&a, i * PART, PART);
        struct map               both = exact(&a, 0, (i + 1) * PART);
        call(ctx, &part);
        measure(&own, &part.M, &part.U);
        CHECK(own.M_error > 0 && own.M_error < 1e-4, "a part is off by %g", own.M_error);
        c.M1 = all.M, c.U1 = all.U, c.M2 = part.M, c.U2 = part.U, c.M = all.M, c.U = all.U;
        ring2_status(ctx, "compose", gdn_summary_compose(ctx, &c), GDN_OK);
        measure(&both, &all.M, &all.U);
        CHECK(both.M_error <= bound(&sum, &own, true), "M of %d parts: error %g, bound %g", i + 1,
              both.M_error, bound(&sum, &own, true));
        CHECK(both.U_error <= bound(&sum, &own, false), "U of %d parts: error %g, bound %g", i + 1,
              both.U_error, bound(&sum, &own, false));
        sum = both;
    }
}

/* What gdn_prefill makes of a state, the map makes of it too. */
static void apply_is_prefill(void)
{
    gdn_ctx               *ctx = ring2_ctx(2);
    gdn_summary_args       a   = plain_call(90, 1, K, V, 1);
    gdn_summary_apply_args x   = gdn_summary_apply_args_init();
    gdn_rule_args          r   = as_rule(&a, false);
    struct ring2_rule      m;
    struct map             exact_map = exact(&a, 0, 90);
    double                 state_norm = 0;
    r.state     = ring2_new(GDN_F32, 0, 4, 1, 1, V, K);
    r.state_out = ring2_new(GDN_F32, 0, 4, 1, 1, V, K);
    ring2_fill(&r.state, -1, 1);
    ring2_rule_model(&r, false, &m);
    call(ctx, &a);
    measure(&exact_map, &a.M, &a.U);
    x.M = a.M, x.U = a.U, x.state = r.state, x.state_out = r.state_out;
    ring2_status(ctx, "apply", gdn_summary_apply(ctx, &x), GDN_OK);
    for (int i = 0; i < K * V; i++) state_norm += pow(ring2_get(&r.state, i), 2);
    state_norm = sqrt(state_norm);
    for (int i = 0; i < K * V; i++) /* errors of the map, its use; rows of |M| are below sqrt K */
        m.state_limit[i] = exact_map.M_error * state_norm + exact_map.U_error +
                           (K + 2) * eps * (sqrt(K) * state_norm + 10);
    ring2_compare("state", &r.state_out, m.state, m.state_limit, NULL, NULL);
}

/* G7 of products: what a range forgets may be NaN. */
static void product_forgets(void)
{
    gdn_summary_apply_args a = gdn_summary_apply_args_init();
    a.M     = ring2_new(GDN_F32, 0, 4, 1, 2, 20, 20);
    a.U     = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20);
    a.state = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20); /* is NaN */
    a.state_out = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20);
    ring2_fill_value(&a.M, 0);
    ring2_fill(&a.U, -1, 1);
    ring2_status(ring2_ctx(1), "apply", gdn_summary_apply(ring2_ctx(1), &a), GDN_OK);
    ring2_expect_bits("G7", &a.state_out, &a.U);
}

/* ---- Refusals ---- */

static gdn_batch refused_batch;

static gdn_summary_args summary(void)
{
    gdn_summary_args a = plain_call(9, 4, 8, 6, 1);
    refused_batch = gdn_batch_init();
    a.batch       = &refused_batch;
    return a;
}

static gdn_summary_compose_args summary_compose(void)
{
    gdn_summary_compose_args a = gdn_summary_compose_args_init();
    a.M1 = filled(0, 0, 2, 8, 8), a.M2 = filled(0, 0, 2, 8, 8), a.M = filled(0, 0, 2, 8, 8);
    a.U1 = filled(0, 0, 2, 6, 8), a.U2 = filled(0, 0, 2, 6, 8), a.U = filled(0, 0, 2, 6, 8);
    return a;
}

static gdn_summary_apply_args summary_apply(void)
{
    gdn_summary_apply_args a = gdn_summary_apply_args_init();
    a.M = filled(0, 0, 2, 8, 8), a.U = filled(0, 0, 2, 6, 8), a.state = filled(0, 0, 2, 6, 8);
    a.state_out = filled(0, 0, 2, 6, 8);
    return a;
}

#define REFUSE_SEEN(seen, op, make, what, want, needle, ...)   \
    do {                                                       \
        if (!ring2_begin("G1 " #make ": %s", what)) break;     \
        gdn_##make##_args args = make(), *a = &args;           \
        __VA_ARGS__;                                           \
        ring2_refused(ring2_ctx(2), op, a, seen, want, needle); \
        ring2_end();                                           \
    } while (0)

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_SUMMARY, summary, __VA_ARGS__)
static void refuse_summary(void)
{
    gdn_batch *t = &refused_batch;
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
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
    REFUSE("M of 2 sequences", GDN_E_SHAPE, "M", a->M.size[0] = 2);
    REFUSE("M of another K", GDN_E_SHAPE, "M", a->M.size[2] = 7);
    REFUSE("U of the other layout", GDN_E_SHAPE, "U", a->state_layout = GDN_STATE_KV);
    REFUSE("M shares memory", GDN_E_SHAPE, "M", a->M.stride[1] = 1);
    REFUSE("M without a dense dimension", GDN_E_SHAPE, "M",
           a->M = ring2_new(GDN_F32, 0, 4, 1, 4, 8, 20); a->M.size[3] = 8; a->M.stride[3] = 2);
    REFUSE("U on M", GDN_E_ARG, "overlaps", a->U.data = a->M.data);
    REFUSE("M on k", GDN_E_ARG, "overlaps", a->M.data = a->k.data);
    REFUSE("read_slots", GDN_E_ARG, "read_slots",
           t->read_slots = ring2_indices(GDN_I32, 1, (int64_t[]){ 0 }));
    REFUSE("write", GDN_E_ARG, "write", t->write = GDN_WRITE_NONE);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_SUMMARY, summary, "cu_seqlens beyond N", GDN_E_ARG,
                "cu_seqlens", t->cu_seqlens = ring2_indices(GDN_I32, 2, (int64_t[]){ 0, 10 }));
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_SUMMARY, summary, "workspace too small", GDN_E_MEMORY,
                "workspace_bytes", a->workspace = ring2_alloc(64, 64); a->workspace_bytes = 64);
}
#undef REFUSE

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_SUMMARY_COMPOSE, summary_compose, __VA_ARGS__)
static void refuse_compose(void)
{
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("state_layout", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("M2 absent", GDN_E_ARG, "M2", a->M2.data = NULL);
    REFUSE("M absent", GDN_E_ARG, "M", a->M.data = NULL);
    REFUSE("U2 absent", GDN_E_ARG, "U2", a->U2.data = NULL);
    REFUSE("all absent", GDN_E_ARG, "M",
           a->M.data = a->M1.data = a->U.data = a->U1.data = a->U2.data = NULL);
    REFUSE("M1 of another K", GDN_E_SHAPE, "M1", a->M1.size[3] = 7);
    REFUSE("U1 of fewer heads", GDN_E_SHAPE, "U1", a->U1.size[1] = 1);
    REFUSE("U of U8", GDN_E_DTYPE, "U", a->U.dtype = GDN_U8);
    REFUSE("M on M2", GDN_E_ARG, "overlaps", a->M = a->M2);
    REFUSE("U on M2", GDN_E_ARG, "overlaps", a->U.data = a->M2.data);
    REFUSE("M beside M1 by one", GDN_E_ARG, "overlaps", a->M.data = (char *)a->M1.data + 4);
}
#undef REFUSE

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_SUMMARY_APPLY, summary_apply, __VA_ARGS__)
static void refuse_apply(void)
{
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("M absent", GDN_E_ARG, "M", a->M.data = NULL);
    REFUSE("state_out absent", GDN_E_ARG, "state_out", a->state_out.data = NULL);
    REFUSE("state of another layout", GDN_E_SHAPE, "state", a->state = filled(0, 0, 2, 8, 6));
    REFUSE("M not square", GDN_E_SHAPE, "M", a->M.size[2] = 7);
    REFUSE("state_out on M", GDN_E_ARG, "overlaps", a->state_out.data = a->M.data);
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_SUMMARY_APPLY, summary_apply, "workspace misaligned",
                GDN_E_ARG, "workspace", a->workspace = (char *)ring2_alloc(128, 64) + 32;
                a->workspace_bytes = (size_t)1 << 40);
}
#undef REFUSE

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 threads and batch mates", G2_threads_and_mates },
        { "G3 repeat", G3_repeat },
        { "U is the state of a prefill", U_is_the_state_of_prefill },
        { "G7 G8 G9 selection", selection },
        { "G7 products forget", product_forgets },
        { "G12 float environment", G12_float_environment },
        { "G13 no allocation", G13_no_allocation },
        { "parts compose to the whole", composition },
        { "applied, a prefill", apply_is_prefill },
    };
    static int           cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int            n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("summary %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    for (int i = 0; i < 24; i++) {
        if (ring2_begin("compose %02d", i)) compose_case(i), ring2_end();
        if (ring2_begin("apply %02d", i)) apply_case(i), ring2_end();
    }
    refuse_summary();
    refuse_compose();
    refuse_apply();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
