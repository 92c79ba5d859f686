/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence, both orientations of the state: against the oracle after every token, and
 * against itself (the same bits in place, without output, in one call or several, in all
 * columns or some). In the order of recur_vk: the same bits in every orientation, on a strip,
 * and in the other vector table (G17).
 */
#include "check.h"

enum { MAX_T = 9 };

enum kind {
    ORDINARY, /* gates and beta of a model */
    MIXED,    /* alpha of 0, a half, 1; beta of 0, a half, 1, 2; k, v NaN where beta is 0 */
    FORGET,   /* alpha of token 0 is 0, the old state NaN and 1e30 */
    FROM_ZERO,
    CONSTANT, /* k, q, the state: rounding errors of a sum add up */
    TINY,     /* products below all floats: z is the sum of -0 */
    SMALL,    /* states and updates around the smallest normal floats */
    N_KINDS
};
static const char *const kind_names[] = { "ordinary", "mixed gates", "forget NaN", "from zero",
                                          "constant", "tiny",        "small" };

struct problem {
    const struct gdn_kernels *kr;
    bool k_first, exact;
    int dtype, round, updates, T, K, n;
    int64_t rows, cols, ld; /* of the state in memory */
    float *q, *k, *v, *alpha, *beta, *kq, *scratch;
    void *from;
    int ld_v;
};

/* The outputs of a run of a problem. */
struct result {
    float *o, *u;
    void *to[MAX_T];
};

/* ---- Making a problem ---- */

static size_t state_bytes(const struct problem *p)
{
    return (size_t)((p->rows - 1) * p->ld + p->cols) * gdn_dtype_bytes(p->dtype);
}

static void make_gates(const struct problem *p, enum kind kind)
{
    static const float alphas[] = { 0, 0.5f, 1 }, betas[] = { 0, 0.5f, 1, 2 };
    for (int t = 0; t < p->T; t++) {
        p->alpha[t] = (float)check_uniform(0.3, 1);
        p->beta[t] = (float)check_uniform(0, 1);
        if (kind != MIXED) continue;
        p->alpha[t] = alphas[check_below(3)];
        p->beta[t] = betas[check_below(4)];
        if (p->beta[t] != 0) continue;
        for (int j = 0; j < p->n; j++) p->v[t * p->ld_v + j] = NAN;
        p->k[t * p->K + check_below(p->K)] = NAN; /* kq stays: o = alpha z + kq u */
    }
    if (kind == FORGET) p->alpha[0] = 0;
}

static void make_state(struct problem *p, enum kind kind)
{
    static const double wild[] = { NAN, 1e30, -1e30, INFINITY, -0.0 };
    p->from = NULL;
    if (kind == FROM_ZERO) return;
    p->from = check_bytes(state_bytes(p), ELEMENT);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c++) {
            double x = check_uniform(-2, 2);
            if (kind == FORGET && check_below(3) == 0) x = wild[check_below(5)];
            if (kind == CONSTANT) x = 0.1;
            if (kind == TINY) x = 1e-30;
            if (kind == SMALL) x = ldexp(x, -126);
            oracle_store(p->from, p->dtype, r * p->ld + c, x);
        }
}

static struct problem make(const struct gdn_kernels *kr, bool k_first, int dtype, int T, int K,
                           int n, enum kind kind)
{
    struct problem p = { .kr = kr, .k_first = k_first, .dtype = dtype, .T = T, .K = K, .n = n };
    p.exact = check_below(2) || !k_first;
    p.round = dtype == GDN_F32 ? check_below(3) : check_below(2) ? dtype : GDN_F32;
    p.rows = k_first ? K : n;
    p.cols = k_first ? n : K;
    p.ld = p.cols + check_below(4);
    p.ld_v = n + check_below(4);
    p.v = check_matrix(T, n, p.ld_v, -4, 4);
    p.q = check_poison((size_t)(T * K));
    p.k = check_poison((size_t)(T * K));
    p.kq = check_poison((size_t)T);
    p.alpha = check_poison((size_t)T);
    p.beta = check_poison((size_t)T);
    p.scratch = check_bytes(sizeof(float) * GDN_MAX_HEAD * GDN_RECUR_COLUMNS, LINE);
    const double unit = 1.7 / sqrt(K); /* |k| about 1 */
    for (int i = 0; i < T * K; i++) {
        p.k[i] = (float)check_uniform(-unit, unit);
        p.q[i] = (float)check_uniform(-unit, unit);
        if (kind == CONSTANT) p.k[i] = p.q[i] = (float)unit;
        if (kind == TINY) p.k[i] = 1e-20f, p.q[i] = -1e-20f;
        if (kind == SMALL && i % K == 0) p.k[i] = ldexpf(1, -36 - check_below(4));
    }
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int x = 0; x < K; x++) sum += (double)p.k[t * K + x] * p.q[t * K + x];
        p.kq[t] = (float)sum;
        for (int j = 0; j < n && kind == TINY; j++) p.v[t * p.ld_v + j] = 0;
        for (int j = 0; j < n && kind == SMALL; j++)
            p.v[t * p.ld_v + j] = ldexpf(p.v[t * p.ld_v + j], -30 - check_below(100));
    }
    make_gates(&p, kind);
    make_state(&p, kind);
    return p;
}

/* ---- Running it ---- */

static void call(const struct problem *p, const struct gdn_recur *s)
{
    if (p->k_first)
        CALL(p->kr->recur_kv[p->dtype])(s);
    else
        CALL(p->kr->recur_vk[p->dtype])(s);
}

static char *column(const struct problem *p, const void *state, int j)
{
    const int64_t at = p->k_first ? j : j * p->ld;
    return (char *)(uintptr_t)state + (size_t)at * gdn_dtype_bytes(p->dtype);
}

/* Tokens t0 .. t0+T-1 on columns j0 .. j0+n-1 of the problem, into r. */
static void run_part(const struct problem *p, const struct result *r, const void *from, int t0,
                     int T, int j0, int n, bool resume)
{
    void *to[MAX_T];
    struct gdn_recur s = {
        .q = p->q + t0 * p->K,
        .k = p->k + t0 * p->K,
        .v = p->v + t0 * p->ld_v + j0,
        .o = r->o ? r->o + t0 * p->ld_v + j0 : NULL,
        .alpha = p->alpha + t0,
        .u = r->u ? r->u + t0 * p->ld_v + j0 : NULL,
        .beta = p->beta + t0,
        .kq = p->kq + t0,
        .from = from ? column(p, from, j0) : NULL,
        .to = to,
        .scratch = p->scratch,
        .ld_v = p->ld_v,
        .ld_o = p->ld_v,
        .ld_from = p->ld,
        .ld_to = p->ld,
        .T = T,
        .K = p->K,
        .n = n,
        .resume = resume,
        .exact = p->exact,
        .round = p->round,
        .updates = p->updates,
    };
    for (int t = 0; t < T; t++) to[t] = r->to[t0 + t] ? column(p, r->to[t0 + t], j0) : NULL;
    call(p, &s);
}

/* Room for the outputs; states after the tokens whose bit is set in `stored`. */
static struct result make_result(const struct problem *p, unsigned stored)
{
    struct result r = { .o = check_matrix(p->T, p->n, p->ld_v, 0, 0) };
    for (int t = 0; t < p->T; t++)
        if (stored >> t & 1) r.to[t] = check_bytes(state_bytes(p), ELEMENT);
    return r;
}

/* ---- Judging it ---- */

/* The limit holds for the order of recur_vk with any data, for the other order with random data. */
static double limit_of(const struct problem *p, enum kind kind)
{
    return 8 + (kind == CONSTANT && !p->exact ? p->K : p->K / 16.0);
}

static void check_state(const struct problem *p, const char *what, const void *got,
                        const double *want, const double *mag, double limit)
{
    const struct check_view view = { got, p->dtype, p->rows, p->cols, p->ld };
    double *w = check_doubles((size_t)(p->K * p->n)), *m = check_doubles((size_t)(p->K * p->n));
    for (int j = 0; j < p->n; j++)
        for (int x = 0; x < p->K; x++) {
            const int at = p->k_first ? x * p->n + j : j * p->K + x;
            w[at] = want[j * p->K + x];
            m[at] = mag[j * p->K + x];
        }
    check_error(what, view, w, m, limit);
}

static void check_oracle(const struct problem *p, const struct result *r, double limit)
{
    const size_t T = (size_t)p->T, K = (size_t)p->K, n = (size_t)p->n;
    double *v = check_doubles(T * n), *state = check_doubles(n * K);
    for (int t = 0; t < p->T; t++)
        for (int j = 0; j < p->n; j++) v[t * p->n + j] = p->v[t * p->ld_v + j];
    for (int j = 0; j < p->n; j++)
        for (int x = 0; x < p->K; x++)
            state[j * p->K + x] =
                !p->from
                    ? 0
                    : oracle_load(p->from, p->dtype, p->k_first ? x * p->ld + j : j * p->ld + x);
    const struct oracle_rule y = {
        .T = p->T,
        .K = p->K,
        .V = p->n,
        .scale = 1,
        .q = check_widen(p->q, T * K),
        .k = check_widen(p->k, T * K),
        .v = v,
        .alpha = check_widen(p->alpha, T),
        .beta = check_widen(p->beta, T),
        .state = state,
        .o = check_doubles(T * n),
        .o_mag = check_doubles(T * n),
        .each = check_doubles(T * n * K),
        .each_mag = check_doubles(T * n * K),
    };
    oracle_rule(&y);
    check_error("o", f32_matrix(r->o, p->T, p->n, p->ld_v), y.o, y.o_mag, limit);
    for (size_t t = 0; t < T; t++)
        if (r->to[t])
            check_state(p, "state", r->to[t], y.each + t * n * K, y.each_mag + t * n * K, limit);
}

static void check_same_result(const struct problem *p, const char *what, const struct result *got,
                              const struct result *want)
{
    const size_t o_bytes = (size_t)((p->T - 1) * p->ld_v + p->n) * sizeof(float);
    if (got->o) check_same(what, got->o, want->o, o_bytes);
    for (int t = 0; t < p->T; t++)
        if (got->to[t]) check_same(what, got->to[t], want->to[t], state_bytes(p));
}

/* ---- The same bits by other ways ---- */

static void check_ways(const struct problem *p, const struct result *all)
{
    const int T = p->T, last = T - 1;
    struct result r = make_result(p, 0);
    if (p->from) { /* only the final state, in place */
        void *state = check_copy(p->from, state_bytes(p), ELEMENT);
        r.to[last] = state;
        run_part(p, &r, state, 0, T, 0, p->n, false);
        check_same_result(p, "in place", &r, all);
    }

    r = make_result(p, 1u << last);
    r.o = NULL;
    run_part(p, &r, p->from, 0, T, 0, p->n, false);
    check_same_result(p, "without o", &r, all);

    if (p->n > 1) { /* columns in two calls */
        const int cut = 1 + check_below(p->n - 1);
        r = make_result(p, 1u << last);
        run_part(p, &r, p->from, 0, T, 0, cut, false);
        run_part(p, &r, p->from, 0, T, cut, p->n - cut, false);
        check_same_result(p, "columns apart", &r, all);
    }
    if (T > 2) { /* tokens in two calls, the state staying in scratch */
        const int cut = 2 + check_below(T - 2);
        r = make_result(p, 1u << last);
        run_part(p, &r, p->from, 0, cut, 0, p->n, false);
        run_part(p, &r, NULL, cut, T - cut, 0, p->n, true);
        check_same_result(p, "resumed", &r, all);
    }
    /* tokens one by one, the state going through memory (G4) */
    if (p->dtype == GDN_F32 || p->dtype == p->round) {
        r = make_result(p, (1u << T) - 1);
        for (int t = 0; t < T; t++)
            run_part(p, &r, t ? r.to[t - 1] : p->from, t, 1, 0, p->n, false);
        check_same_result(p, "token by token", &r, all);
    }
}

/* The state by its updates alone, from k and the u that a run leaves. */
static void check_updates(const struct problem *p, const struct result *all)
{
    const size_t bytes = (size_t)(p->K * p->n) * sizeof(float);
    float *S = check_poison((size_t)(p->K * p->n));
    struct result r = make_result(p, 1u << (p->T - 1));
    r.u = check_matrix(p->T, p->n, p->ld_v, 0, 0);
    run_part(p, &r, p->from, 0, p->T, 0, p->n, false);
    check_same_result(p, "with u", &r, all);
    memset(S, 0, bytes);
    for (int64_t i = 0; p->from && i < p->rows; i++) {
        char *row = (char *)p->from + (size_t)(i * p->ld) * gdn_dtype_bytes(p->dtype);
        p->kr->load_row[p->dtype](S + i * p->cols, row, (size_t)p->cols);
    }
    for (int t = 0; t < p->T; t++) {
        const float *k = p->k + t * p->K, *u = r.u + t * p->ld_v;
        const float *a = p->k_first ? k : u, *b = p->k_first ? u : k;
        if (p->alpha[t] == 0) memset(S, 0, bytes);
        CALL(p->kr->add_outer)
        (S, (int)p->rows, (int)p->cols, p->alpha[t], a, p->beta[t] == 0 ? NULL : b);
    }
    void *got = check_copy(all->to[p->T - 1], state_bytes(p), ELEMENT);
    for (int64_t i = 0; i < p->rows; i++)
        p->kr->store_row[p->dtype]((char *)got + (size_t)(i * p->ld) * gdn_dtype_bytes(p->dtype),
                                   S + i * p->cols, (size_t)p->cols);
    check_same("updates alone", got, all->to[p->T - 1], state_bytes(p));
}

/* ---- The same bits in the other orientation, in the other table, on a strip (G17) ---- */

/* Outputs and the final state in the order [n][K], as float32. */
struct numbers {
    float *o, *state;
};

static struct numbers numbers_of(const struct problem *p, const struct result *r)
{
    const struct numbers x = { check_poison((size_t)(p->T * p->n)),
                               check_poison((size_t)(p->n * p->K)) };
    for (int t = 0; t < p->T; t++)
        memcpy(x.o + t * p->n, r->o + t * p->ld_v, (size_t)p->n * sizeof *x.o);
    for (int j = 0; j < p->n; j++)
        for (int k = 0; k < p->K; k++) {
            const int64_t at = p->k_first ? k * p->ld + j : j * p->ld + k;
            x.state[j * p->K + k] = (float)oracle_load(r->to[p->T - 1], p->dtype, at);
        }
    return x;
}

static void check_numbers(const char *what, const struct problem *p, const struct numbers *got,
                          const struct numbers *want)
{
    check_same_numbers(what, got->o, want->o, (size_t)(p->T * p->n));
    check_same_numbers(what, got->state, want->state, (size_t)(p->n * p->K));
}

/* The same problem with the state the other way round. */
static void check_turned(const struct problem *p, const struct numbers *want)
{
    struct problem turned = *p;
    turned.k_first = !p->k_first;
    turned.rows = p->cols;
    turned.cols = p->rows;
    turned.ld = turned.cols + 1;
    if (p->from) turned.from = check_bytes(state_bytes(&turned), ELEMENT);
    for (int64_t r = 0; p->from && r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c++)
            oracle_store(turned.from, p->dtype, c * turned.ld + r,
                         oracle_load(p->from, p->dtype, r * p->ld + c));
    const struct result r = make_result(&turned, 1u << (p->T - 1));
    run_part(&turned, &r, turned.from, 0, p->T, 0, p->n, false);
    const struct numbers got = numbers_of(&turned, &r);
    check_numbers("G17 turned", p, &got, want);
}

static void check_other_table(const struct problem *p, const struct numbers *want)
{
    struct problem other = *p;
    other.kr = check_twin(p->kr);
    if (!other.kr) return;
    const struct result r = make_result(&other, 1u << (p->T - 1));
    void *const *to = r.to;
    struct gdn_recur s = {
        .q = p->q,
        .k = p->k,
        .v = p->v,
        .o = r.o,
        .alpha = p->alpha,
        .beta = p->beta,
        .kq = p->kq,
        .from = p->from,
        .to = to,
        .scratch = p->scratch,
        .ld_v = p->ld_v,
        .ld_o = p->ld_v,
        .ld_from = p->ld,
        .ld_to = p->ld,
        .T = p->T,
        .K = p->K,
        .n = p->n,
        .exact = p->exact,
        .round = p->round,
        .updates = p->updates,
    };
    (p->k_first ? other.kr->recur_kv : other.kr->recur_vk)[p->dtype](&s);
    const struct numbers got = numbers_of(&other, &r);
    check_numbers("G17 the other table", p, &got, want);
}

static void check_one(const struct gdn_kernels *kr, bool k_first, int dtype, int T, int K, int n,
                      enum kind kind)
{
    check_case("dtype %d, T %d, K %d, n %d, %s", dtype, T, K, n, kind_names[kind]);
    const struct problem p = make(kr, k_first, dtype, T, K, n, kind);
    const struct result all = make_result(&p, (1u << T) - 1);
    run_part(&p, &all, p.from, 0, T, 0, n, false);
    /* Limits are those of normal floats. */
    if (kind != SMALL && (p.round == GDN_F32 || (T == 1 && p.round == dtype)))
        check_oracle(&p, &all, limit_of(&p, kind));
    check_ways(&p, &all);
    if (p.round == GDN_F32) check_updates(&p, &all);
    const struct numbers numbers = numbers_of(&p, &all);
    if (p.exact) check_turned(&p, &numbers);
    check_other_table(&p, &numbers);
}

/* alpha = 1 and beta = 0 for all tokens: every bit of a state in place stays. */
static void check_keep(const struct gdn_kernels *kr, bool k_first, int dtype, int T, int K, int n)
{
    static const double odd[] = { -0.0, NAN, 0x1p-149, -0x1p-133, 0x1p-24, 65504, 1e38 };
    check_case("dtype %d, T %d, K %d, n %d, alpha 1, beta 0", dtype, T, K, n);
    struct problem p = make(kr, k_first, dtype, T, K, n, ORDINARY);
    p.round = dtype;
    for (int t = 0; t < T; t++) {
        p.alpha[t] = 1;
        p.beta[t] = 0;
        p.v[t * p.ld_v] = NAN;
    }
    for (int64_t r = 0; r < p.rows; r++)
        oracle_store(p.from, dtype, r * p.ld + check_below((int)p.cols), odd[check_below(7)]);
    void *before = check_copy(p.from, state_bytes(&p), ELEMENT);
    struct result r = make_result(&p, 0);
    r.to[T - 1] = p.from;
    run_part(&p, &r, p.from, 0, T, 0, n, false);
    check_same("kept state", p.from, before, state_bytes(&p));
}

/* As a model runs it: in place, on an aligned and dense state. */
static void bench(const struct gdn_kernels *kr, bool k_first, int dtype, int T)
{
    const int K = 128, n = GDN_RECUR_COLUMNS;
    check_case("dtype %d, T %d, K %d, n %d", dtype, T, K, n);
    struct problem p = make(kr, k_first, dtype, T, K, n, FROM_ZERO);
    p.exact = false;
    p.round = GDN_F32;
    p.ld = p.cols;
    p.from = check_bytes(state_bytes(&p), LINE);
    memset(p.from, 0, state_bytes(&p));
    struct result r = make_result(&p, 0);
    r.to[T - 1] = p.from;
    CHECK_BENCH(2 * state_bytes(&p), 8.0 * T * K * n, run_part(&p, &r, p.from, 0, T, 0, n, false));
}

static void check_step(const struct gdn_kernels *kr, bool k_first)
{
    static const int lengths[] = { 1, 2, 4, MAX_T };
    static const int depths[] = { 1, 7, 16, 31, 64, 100, 128, 256 };
    static const int columns[] = { 1, 2, 7, 8, 16, 17, 31, 64 };
    int round = 0;
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int d = 0; d < 8; d++)
            for (int c = 0; c < 8; c++, round++) {
                for (int kind = 0; kind < N_KINDS; kind++)
                    check_one(kr, k_first, dtype, lengths[(round + kind) % 4], depths[d],
                              columns[c], (enum kind)kind);
                check_keep(kr, k_first, dtype, lengths[round % 4], depths[d], columns[c]);
            }
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int t = 0; t < 4; t++) bench(kr, k_first, dtype, lengths[t]);
}

/* ---- On a strip: the bits of recur_vk, every token's rounding included ---- */

/* T tokens of the problem from token t0 on, on the columns of one strip. */
static void run_strip(const struct problem *p, float *S, float *o, int t0, int T)
{
    const struct gdn_recur s = {
        .q = p->q + t0 * p->K,
        .k = p->k + t0 * p->K,
        .v = p->v + t0 * p->ld_v,
        .o = o ? o + t0 * p->n : NULL,
        .alpha = p->alpha + t0,
        .beta = p->beta + t0,
        .kq = p->kq + t0,
        .ld_v = p->ld_v,
        .ld_o = p->n,
        .T = T,
        .K = p->K,
        .n = p->n,
        .updates = p->updates,
    };
    CALL(p->kr->recur_strip[p->dtype])(S, &s);
}

/* The strip that a run ends in, as rows of columns. */
static struct numbers strip_numbers(const struct problem *p, const float *S, float *o)
{
    const struct numbers x = { o, check_poison((size_t)(p->n * p->K)) };
    for (int j = 0; j < p->n; j++)
        for (int k = 0; k < p->K; k++) x.state[j * p->K + k] = S[k * p->n + j];
    return x;
}

static void check_strip(const struct gdn_kernels *kr, int dtype, int T, int K, enum kind kind)
{
    const int n = kr->strip, size = K * n;
    check_case("dtype %d, T %d, K %d, strip, %s", dtype, T, K, kind_names[kind]);
    struct problem p = make(kr, false, dtype, T, K, n, kind);
    p.round = dtype;
    p.updates = T % 2 ? 1 : 1 + check_below(2);
    const struct result all = make_result(&p, 1u << (T - 1));
    run_part(&p, &all, p.from, 0, T, 0, n, false);
    const struct numbers want = numbers_of(&p, &all);

    float *from = check_lines((size_t)size, 0, 0), *o = check_poison((size_t)(T * n));
    for (int j = 0; p.from && j < n; j++)
        for (int k = 0; k < K; k++)
            from[k * n + j] = (float)oracle_load(p.from, dtype, j * p.ld + k);
    float *S = check_copy(from, (size_t)size * sizeof *S, LINE);
    run_strip(&p, S, o, 0, T);
    const struct numbers got = strip_numbers(&p, S, o);
    check_numbers("G17 strip", &p, &got, &want);

    const int tokens = T / p.updates;
    if (tokens < 2) return;
    const int cut = p.updates * (1 + check_below(tokens - 1)); /* in two calls; without o */
    memcpy(S, from, (size_t)size * sizeof *S);
    run_strip(&p, S, o, 0, cut);
    run_strip(&p, S, o, cut, T - cut);
    const struct numbers parts = strip_numbers(&p, S, o);
    check_numbers("G17 strip in two calls", &p, &parts, &want);
    memcpy(S, from, (size_t)size * sizeof *S);
    run_strip(&p, S, NULL, 0, T);
    const struct numbers silent = strip_numbers(&p, S, o);
    check_numbers("G17 strip without o", &p, &silent, &want);
}

/* alpha = 1 and beta = 0 for all tokens: every bit of a float32 state stays. */
static void check_strip_keep(const struct gdn_kernels *kr, int T, int K)
{
    const int n = kr->strip;
    check_case("T %d, K %d, strip, alpha 1, beta 0", T, K);
    struct problem p = make(kr, false, GDN_F32, T, K, n, ORDINARY);
    float *S = check_lines((size_t)(K * n), -1, 1), *o = check_poison((size_t)(T * n));
    for (int t = 0; t < T; t++) {
        p.alpha[t] = 1;
        p.beta[t] = 0;
    }
    for (int k = 0; k < K; k++) S[k * n + check_below(n)] = k % 3 ? -0.0f : NAN;
    const void *before = check_copy(S, (size_t)(K * n) * sizeof *S, LINE);
    run_strip(&p, S, o, 0, T);
    check_same("kept strip", S, before, (size_t)(K * n) * sizeof *S);
}

static void bench_strip(const struct gdn_kernels *kr, int dtype)
{
    const int T = GDN_CHUNK / 2, K = 128;
    check_case("dtype %d, T %d, K %d, strip", dtype, T, K);
    const struct problem p = make(kr, false, dtype, T, K, kr->strip, FROM_ZERO);
    float *S = check_lines((size_t)(K * p.n), 0, 0), *o = check_poison((size_t)(T * p.n));
    CHECK_BENCH(8.0 * K * p.n, 6.0 * T * K * p.n, run_strip(&p, S, o, 0, T));
}

void check_recur_strip(const struct gdn_kernels *kr)
{
    static const int lengths[] = { 1, 2, 4, MAX_T };
    static const int depths[] = { 1, 2, 7, 15, 16, 17, 31, 64, 100, 128, 255, 256 };
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int d = 0; d < (int)(sizeof depths / sizeof *depths); d++)
            for (int t = 0; t < 4; t++) {
                for (int kind = 0; kind < N_KINDS; kind++)
                    check_strip(kr, dtype, lengths[t], depths[d], (enum kind)kind);
                check_strip_keep(kr, lengths[t], depths[d]);
            }
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++) bench_strip(kr, dtype);
}

void check_recur_vk(const struct gdn_kernels *kr) { check_step(kr, false); }
void check_recur_kv(const struct gdn_kernels *kr) { check_step(kr, true); }
