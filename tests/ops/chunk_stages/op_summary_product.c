/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 fold */
/*
 * gdn_summary_compose, gdn_summary_apply and gdn_summary_fold: products judged in float64 by the
 * bounds of gdn.h; and summaries of parts compose to the summary of all.
 */
#include <math.h>
#include <string.h>

#include "gdn_research.h"
#include "summary_call.h"

static const double eps = 0x1p-24;

/* ---- Products ---- */

/* Element (x, j) of slot and head number i of a state, as it lies in a row-major walk. */
static int64_t at(int64_t i, int64_t x, int64_t j, int64_t K, int64_t V, int layout)
{
    return i * K * V + (layout == GDN_STATE_VK ? j * K + x : x * V + j);
}

/* want = M S + U and the bound that gdn.h states; U, S data NULL: 0. */
static void model_product(const gdn_tensor *M, const gdn_tensor *S, const gdn_tensor *U, int layout,
                          int64_t V, double *want, double *limit)
{
    const int64_t K = M->size[2];
    for (int64_t i = 0; i < M->size[0] * M->size[1]; i++)
        for (int64_t x = 0; x < K; x++)
            for (int64_t j = 0; j < V; j++) {
                const int64_t to = at(i, x, j, K, V, layout);
                double sum = U->data ? ring2_get(U, to) : 0, mag = fabs(sum);
                for (int64_t y = 0; S->data && y < K; y++) {
                    const double p = ring2_get(M, at(i, x, y, K, K, GDN_STATE_KV)) *
                                     ring2_get(S, at(i, y, j, K, V, layout));
                    sum += p;
                    mag += fabs(p);
                }
                want[to] = sum;
                limit[to] = (double)(K + 2) * eps * mag + 0x1p-140;
            }
}

static gdn_tensor filled(int32_t dtype, bool swapped, int64_t H, int64_t r, int64_t s)
{
    gdn_tensor t = pool(dtype, swapped, 3, H, r, s);
    ring2_fill(&t, -1, 1);
    return t;
}

/* K and V of a case; some K are above 128. */
static const int *size_of(int number)
{
    static const int large[2] = { 200, 9 };
    return number % 13 == 11 ? large : dims[number % N_DIMS];
}

static void compose_case(int number)
{
    const int *size = size_of(number);
    const int64_t K = size[0], V = size[1], H = 1 + number % 3;
    const int layout = number / 6 % 2;
    const int64_t r = layout ? K : V, s = layout ? V : K;
    const int32_t type[] = { number % 3, (number + number / 3) % 3 };
    const bool in_place = number % 4 == 1;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_tensor none = { 0 };
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
    const int *size = size_of(number);
    const int64_t K = size[0], V = size[1], H = 1 + number % 3;
    const int layout = number / 6 % 2;
    const int64_t r = layout ? K : V, s = layout ? V : K;
    const int32_t type[] = { number % 3, (number + number / 3) % 3 };
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
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
    double *want = ring2_heap(n * 8), *limit = ring2_heap(n * 8);
    again = a;
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

/* ---- Folds ---- */

enum { RANGES = 4, SLOTS = 3, STEPS = 3 };

/* A range for every slot and step; -1 leaves a step out. */
static gdn_tensor drawn_order(int number)
{
    gdn_tensor order = ring2_new(number & 1 ? GDN_I64 : GDN_I32, 0, 2, SLOTS, STEPS, 0, 0);
    for (int i = 0; i < SLOTS * STEPS; i++)
        ring2_set(&order, i, (i * 5 + number) % (RANGES + 1) - 1);
    return order;
}

static gdn_tensor slots_of(int32_t dtype, int64_t n, int64_t H, int64_t r, int64_t s)
{
    gdn_tensor t = pool(dtype, false, n, H, r, s);
    ring2_fill(&t, -1, 1);
    return t;
}

/* A fold has the bits of a chain of gdn_summary_apply() in float32. */
static void expect_steps(gdn_ctx *ctx, const gdn_summary_fold_args *a, const gdn_tensor *got)
{
    const int64_t H = a->M.size[1];
    for (int64_t b = 0; b < SLOTS; b++) {
        gdn_tensor now = ring2_new(GDN_F32, 0, 4, 1, H, a->U.size[2], a->U.size[3]);
        bool is_zero = !a->state.data;
        gdn_tensor start = is_zero ? now : ring2_narrow(&a->state, 0, b, 1);
        for (int64_t i = 0; i < ring2_count(&now); i++)
            ring2_set(&now, i, is_zero ? 0 : ring2_get(&start, i));
        for (int64_t i = 0; i < STEPS; i++) {
            const int64_t range = (int64_t)ring2_get(&a->order, b * STEPS + i);
            if (range < 0) continue;
            gdn_summary_apply_args one = gdn_summary_apply_args_init();
            one.state_layout = a->state_layout;
            one.M = ring2_narrow(&a->M, 0, range, 1), one.U = ring2_narrow(&a->U, 0, range, 1);
            if (!is_zero) one.state = now;
            one.state_out = now;
            ring2_status(ctx, "apply", gdn_summary_apply(ctx, &one), GDN_OK);
            is_zero = false;
        }
        gdn_tensor mine = ring2_narrow(got, 0, b, 1), want = ring2_clone(&mine);
        for (int64_t i = 0; i < ring2_count(&now); i++) ring2_set(&want, i, ring2_get(&now, i));
        ring2_expect_bits("a fold is its steps", &mine, &want);
    }
}

static void fold_case(int number)
{
    const int *size = size_of(number);
    const int64_t K = size[0], V = size[1], H = 1 + number % 2;
    const int layout = number / 6 % 2;
    const int64_t r = layout ? K : V, s = layout ? V : K;
    const int32_t type = number % 3;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_summary_fold_args a = gdn_summary_fold_args_init(), again;
    a.state_layout = layout;
    a.M = slots_of(type, RANGES, H, K, K), a.U = slots_of(type, RANGES, H, r, s);
    if (number & 2) a.M = ring2_swap(&a.M, 2, 3); /* transposed, for gradients */
    a.order = drawn_order(number);
    if (number % 4) a.state = slots_of(number % 4 == 1 ? GDN_F32 : type, SLOTS, H, r, s);
    a.state_out = number % 4 == 1 ? a.state : pool(type, false, SLOTS, H, r, s);
    again = a;
    again.state = a.state.data ? ring2_clone(&a.state) : a.state;
    again.state_out = ring2_clone(&a.state_out);
    ring2_status(ring2_ctx(4), "G2", gdn_summary_fold(ring2_ctx(4), &again), GDN_OK);
    expect_steps(ctx, &a, &again.state_out);
    ring2_call_begin();
    ring2_may_write(&a.state_out);
    ring2_status(ctx, "fold", gdn_summary_fold(ctx, &a), GDN_OK);
    ring2_call_end();
    ring2_expect_bits("G2 G3 threads", &again.state_out, &a.state_out);
}

/* Without a state, M of the first range may hold anything; a range of zeros forgets (G7). */
static void fold_reads_no_first_map(void)
{
    gdn_summary_fold_args a = gdn_summary_fold_args_init();
    gdn_tensor zero, last;
    a.M = ring2_new(GDN_F32, 0, 4, 2, 2, 20, 20); /* is NaN */
    a.U = ring2_new(GDN_F32, 0, 4, 2, 2, 7, 20);
    a.order = ring2_new(GDN_I32, 0, 2, 1, 2, 0, 0);
    a.state_out = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20);
    zero = ring2_narrow(&a.M, 0, 1, 1), last = ring2_narrow(&a.U, 0, 1, 1);
    ring2_fill_value(&zero, 0);
    ring2_fill(&last, -1, 1); /* U of the first range is NaN too */
    for (int i = 0; i < 2; i++) ring2_set(&a.order, i, i);
    ring2_status(ring2_ctx(1), "fold", gdn_summary_fold(ring2_ctx(1), &a), GDN_OK);
    ring2_expect_bits("G7", &a.state_out, &last);
    ring2_set(&a.order, 1, -1);
    a.U = ring2_new(GDN_F32, 0, 4, 2, 2, 7, 20);
    ring2_fill(&a.U, -1, 1);
    gdn_tensor first = ring2_narrow(&a.U, 0, 0, 1);
    ring2_status(ring2_ctx(1), "fold", gdn_summary_fold(ring2_ctx(1), &a), GDN_OK);
    ring2_expect_bits("the first range", &a.state_out, &first);
}

/* Without an order a slot passes every SLOTS-th range. */
static void fold_of_all(void)
{
    gdn_summary_fold_args a = gdn_summary_fold_args_init(), all;
    a.M = slots_of(GDN_F32, 2 * SLOTS, 2, 20, 20), a.U = slots_of(GDN_F32, 2 * SLOTS, 2, 7, 20);
    a.order = ring2_new(GDN_I32, 0, 2, SLOTS, 2, 0, 0);
    for (int i = 0; i < 2 * SLOTS; i++) ring2_set(&a.order, i, i / 2 + i % 2 * SLOTS);
    a.state = slots_of(GDN_F32, SLOTS, 2, 7, 20);
    a.state_out = pool(GDN_F32, false, SLOTS, 2, 7, 20);
    all = a, all.order = (gdn_tensor){ 0 }, all.state_out = ring2_clone(&a.state_out);
    ring2_status(ring2_ctx(1), "fold", gdn_summary_fold(ring2_ctx(1), &a), GDN_OK);
    ring2_status(ring2_ctx(1), "of all", gdn_summary_fold(ring2_ctx(1), &all), GDN_OK);
    ring2_expect_bits("no order", &all.state_out, &a.state_out);
}

/* ---- Composition ---- */

struct map {
    double *M, *U;           /* [K][K], [K][V] */
    double M_error, U_error; /* the library's, as Frobenius norms */
    double decay;            /* exp(sum of g) */
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
    const int n = transition ? K : V;
    double mag[K * K];
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
    gdn_ctx *ctx = ring2_ctx(2);
    gdn_summary_args a = plain_call(4 * PART, 1, K, V, 2), all = part_of(&a, 0, PART);
    struct map sum = exact(&a, 0, PART);
    call(ctx, &all);
    measure(&sum, &all.M, &all.U);
    for (int i = 1; i < 4; i++) {
        gdn_summary_args part = part_of(&a, i * PART, PART);
        gdn_summary_compose_args c = gdn_summary_compose_args_init();
        struct map own = exact(&a, i * PART, PART);
        struct map both = exact(&a, 0, (i + 1) * PART);
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

/* The map gives the state that gdn_prefill gives. */
static void apply_is_prefill(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    gdn_summary_args a = plain_call(90, 1, K, V, 1);
    gdn_summary_apply_args x = gdn_summary_apply_args_init();
    gdn_rule_args r = as_rule(&a, false);
    struct ring2_rule m;
    struct map exact_map = exact(&a, 0, 90);
    double state_norm = 0;
    r.state = ring2_new(GDN_F32, 0, 4, 1, 1, V, K);
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

/* Three parts folded, against a prefill of all: by the bound of composition, in any case 1e-5. */
static void fold_is_prefill(void)
{
    gdn_ctx *ctx = ring2_ctx(2);
    gdn_summary_args a = plain_call(3 * PART, 1, K, V, 2);
    gdn_summary_fold_args f = gdn_summary_fold_args_init();
    struct map all = exact(&a, 0, 3 * PART);
    double want[K * V], limit[K * V];
    f.M = ring2_new(GDN_F32, 0, 4, 3, 1, K, K), f.U = ring2_new(GDN_F32, 0, 4, 3, 1, V, K);
    f.order = ring2_new(GDN_I32, 0, 2, 1, 3, 0, 0);
    for (int i = 0; i < 3; i++) {
        gdn_summary_args part = part_of(&a, i * PART, PART);
        part.M = ring2_narrow(&f.M, 0, 2 - i, 1), part.U = ring2_narrow(&f.U, 0, 2 - i, 1);
        call(ctx, &part);
        ring2_set(&f.order, i, 2 - i);
    }
    f.state = ring2_new(GDN_F32, 0, 4, 1, 1, V, K);
    f.state_out = ring2_new(GDN_F32, 0, 4, 1, 1, V, K);
    ring2_fill(&f.state, -1, 1);
    ring2_status(ctx, "fold", gdn_summary_fold(ctx, &f), GDN_OK);
    for (int i = 0; i < K * V; i++) {
        want[i] = all.U[i % K * V + i / K];
        for (int y = 0; y < K; y++)
            want[i] += all.M[i % K * K + y] * ring2_get(&f.state, i / K * K + y);
        limit[i] = 1e-5;
    }
    ring2_compare("state", &f.state_out, want, limit, NULL, NULL);
}

/* G7 of products: what a range forgets may be NaN. */
static void product_forgets(void)
{
    gdn_summary_apply_args a = gdn_summary_apply_args_init();
    a.M = ring2_new(GDN_F32, 0, 4, 1, 2, 20, 20);
    a.U = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20);
    a.state = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20); /* is NaN */
    a.state_out = ring2_new(GDN_F32, 0, 4, 1, 2, 7, 20);
    ring2_fill_value(&a.M, 0);
    ring2_fill(&a.U, -1, 1);
    ring2_status(ring2_ctx(1), "apply", gdn_summary_apply(ring2_ctx(1), &a), GDN_OK);
    ring2_expect_bits("G7", &a.state_out, &a.U);
}

/* ---- Refusals ---- */

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

static gdn_summary_fold_args summary_fold(void)
{
    gdn_summary_fold_args a = gdn_summary_fold_args_init();
    a.M = slots_of(0, RANGES, 2, 8, 8), a.U = slots_of(0, RANGES, 2, 6, 8);
    a.state = slots_of(0, SLOTS, 2, 6, 8), a.state_out = slots_of(0, SLOTS, 2, 6, 8);
    a.order = drawn_order(0);
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

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_SUMMARY_FOLD, summary_fold, __VA_ARGS__)
static void refuse_fold(void)
{
    REFUSE("M absent", GDN_E_ARG, "M", a->M.data = NULL);
    REFUSE("U absent", GDN_E_ARG, "U", a->U.data = NULL);
    REFUSE("4 ranges of 3 slots, no order", GDN_E_SHAPE, "multiple", a->order.data = NULL);
    REFUSE("order of floats", GDN_E_DTYPE, "order", a->order.dtype = GDN_F32);
    REFUSE("order of one dimension", GDN_E_SHAPE, "order", a->order.ndim = 1);
    REFUSE("fewer states", GDN_E_SHAPE, "state_out", a->state_out.size[0] = SLOTS - 1);
    REFUSE("fewer U", GDN_E_SHAPE, "U", a->U.size[0] = RANGES - 1);
    REFUSE("state_out on U", GDN_E_ARG, "overlaps", a->state_out.data = a->U.data);
    REFUSE("state_out on order", GDN_E_ARG, "overlaps", a->order.data = a->state_out.data);
    REFUSE_SEEN(RING2_CONTENTS, GDN_OP_SUMMARY_FOLD, summary_fold, "no such range", GDN_E_ARG,
                "order[1][2]", ring2_set(&a->order, STEPS + 2, RANGES));
}
#undef REFUSE

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G7 products forget", product_forgets },  { "parts compose to the whole", composition },
        { "applied, a prefill", apply_is_prefill }, { "folded, a prefill", fold_is_prefill },
        { "G7 folds", fold_reads_no_first_map },    { "fold of all", fold_of_all },
    };
    ring2_options(argc, argv);
    for (int i = 0; i < 24; i++) {
        if (ring2_begin("compose %02d", i)) compose_case(i), ring2_end();
        if (ring2_begin("apply %02d", i)) apply_case(i), ring2_end();
        if (ring2_begin("fold %02d", i)) fold_case(i), ring2_end();
    }
    refuse_compose();
    refuse_apply();
    refuse_fold();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
