/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_walk, channel_scale and channel_return, of chunks whose channels each have decays: the
 * oracle multiplies the decays between two tokens directly, in double. Beside the limits: what a
 * token that is not finite must not reach.
 */
#include "check.h"

enum { C = GDN_CHUNK };

static const int depths[] = { 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 255, 256 };

enum kind {
    ORDINARY, /* decays of a model */
    NEAR_ONE, /* a slow model */
    ONES,     /* no decay: constant data, so that the rounding errors of a sum add up */
    ZEROS,    /* some channels forget */
    FORGET,   /* all channels of some tokens do */
    DENORMAL, /* products become denormal, then 0 */
    MIXED,    /* all of these in one chunk */
    N_KINDS
};
static const char *const kind_names[] = { "ordinary",   "near one",  "ones, constant", "zeros",
                                          "all forget", "underflow", "mixed" };

static float decay_of(enum kind kind)
{
    static const float mixed[] = { 0, -0.0f, 1, 0.5f, 1e-20f, 1e-45f, 0x1p-126f };
    switch (kind) {
    case NEAR_ONE: return (float)check_uniform(0.999, 1);
    case ONES: return 1;
    case ZEROS: return check_below(4) ? (float)check_uniform(0.3, 1) : 0;
    case DENORMAL: return (float)check_uniform(0, 2e-5);
    case MIXED: return mixed[check_below(sizeof mixed / sizeof *mixed)];
    default: return (float)check_uniform(0.3, 1);
    }
}

/* Fills a with decays; channel x of token t is at x cx + t ct. */
static void make_decays(float *a, enum kind kind, int K, ptrdiff_t cx, ptrdiff_t ct)
{
    for (int t = 0; t < C; t++) {
        const bool forgets = kind == FORGET && check_below(5) == 0;
        for (int x = 0; x < K; x++) a[x * cx + t * ct] = forgets ? 0 : decay_of(kind);
    }
}

/* The magnitude of `factor` x D: a step where D, or a product on the way to it, is denormal. */
static double magnitude(double factor, double D)
{
    return fabs(factor * D) + (D != 0 ? 0x1p-126 : 0);
}

static void check_zeros(const char *what, const float *got, const double *mag, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (mag[i] == 0 && got[i] != 0) check_fail("%s[%zu]: %.9g, want 0", what, i, got[i]);
}

/* ---- channel_walk -------------------------------------------------------------------------- */

struct walk {
    int K;
    ptrdiff_t ld;
    float *a, *e, *q, *k; /* [16][ld] */
    float *A, *B, *y;
};

static void make_room(struct walk *x)
{
    x->A = check_bytes(C * C * sizeof(float), LINE);
    x->B = check_bytes(C * C * sizeof(float), LINE);
    x->y = check_bytes((size_t)(x->ld * C) * sizeof(float), LINE);
}

static struct walk make_walk(int K, enum kind kind)
{
    const ptrdiff_t ld = K + (ptrdiff_t)check_below(5);
    const size_t n = (size_t)(ld * C);
    const double low = kind == ONES ? 0.1 : -1, high = kind == ONES ? 0.1 : 1;
    struct walk x = { K,
                      ld,
                      check_lines(n, 0, 0),
                      check_lines(n, low, high),
                      check_lines(n, low, high),
                      check_lines(n, low, high),
                      NULL,
                      NULL,
                      NULL };
    make_decays(x.a, kind, K, 1, ld);
    make_room(&x);
    return x;
}

static void walk(const struct gdn_kernels *kr, const struct walk *x)
{
    CALL(kr->channel_walk)(x->A, x->B, x->y, x->a, x->e, x->q, x->k, x->ld, x->K);
}

static void judge_walk(const struct walk *w, double limit)
{
    double A[C * C] = { 0 }, B[C * C] = { 0 }, A_mag[C * C] = { 0 }, B_mag[C * C] = { 0 };
    double *y = check_doubles((size_t)(w->K * C)), *y_mag = check_doubles((size_t)(w->K * C));
    for (int x = 0; x < w->K; x++)
        for (int j = 0; j < C; j++) {
            const float *e = w->e + x, *q = w->q + x;
            const double k = w->k[j * w->ld + x];
            double D = 1;
            for (int i = j; i < C; i++) {
                if (i > j) {
                    D *= w->a[i * w->ld + x];
                    A[i * C + j] += e[i * w->ld] * k * D;
                    A_mag[i * C + j] += magnitude(e[i * w->ld] * k, D);
                }
                B[i * C + j] += q[i * w->ld] * k * D;
                B_mag[i * C + j] += magnitude(q[i * w->ld] * k, D);
            }
            y[j * w->K + x] = k * D;
            y_mag[j * w->K + x] = magnitude(k, D);
        }
    check_error("A", f32_matrix(w->A, C, C, C), A, A_mag, limit);
    check_error("B", f32_matrix(w->B, C, C, C), B, B_mag, limit);
    check_error("y", f32_matrix(w->y, C, w->K, w->ld), y, y_mag, 15);
    check_zeros("A", w->A, A_mag, C * C);
    check_zeros("B", w->B, B_mag, C * C);
    for (int i = 0; i < C; i++) check_zeros("y", w->y + i * w->ld, y_mag + i * w->K, (size_t)w->K);
}

/* y of a channel has the same bits alone. */
static void walk_alone(const struct gdn_kernels *kr, const struct walk *all)
{
    struct walk one = { .K = 1, .ld = all->ld };
    make_room(&one);
    for (ptrdiff_t x = 0; x < all->K; x++) {
        kr->channel_walk(one.A, one.B, one.y, all->a + x, all->e + x, all->q + x, all->k + x,
                         all->ld, 1);
        for (int i = 0; i < C; i++)
            check_same("y of a channel alone", all->y + i * all->ld + x, one.y + i * all->ld,
                       sizeof *one.y);
    }
}

static const float *poisoned(const float *from, const struct walk *w, int t)
{
    static const float wild[] = { NAN, INFINITY, -INFINITY };
    float *copy = check_copy(from, (size_t)(w->ld * C) * sizeof *from, LINE);
    for (int x = 0; x < w->K; x++) copy[t * w->ld + x] = wild[check_below(3)];
    return copy;
}

/* Compares those elements of A and B that a token t which is not finite does not touch: as e and q
 * its row alone, as k its column alone, as a the pairs from before t to t and later. */
static void walk_spoilt(const struct gdn_kernels *kr, const struct walk *all, int t)
{
    struct walk bad = { .K = all->K, .ld = all->ld };
    make_room(&bad);
    for (int what = 0; what < 3; what++) {
        const float *a = what == 0 ? poisoned(all->a, all, t) : all->a;
        const float *e = what == 1 ? poisoned(all->e, all, t) : all->e;
        const float *q = what == 1 ? poisoned(all->q, all, t) : all->q;
        const float *k = what == 2 ? poisoned(all->k, all, t) : all->k;
        kr->channel_walk(bad.A, bad.B, bad.y, a, e, q, k, all->ld, all->K);
        for (int i = 0; i < C; i++)
            for (int j = 0; j < C; j++) {
                const int at = i * C + j;
                if (what == 0 ? j < t && t <= i : what == 1 ? i == t : j == t) continue;
                check_same("A beside a bad token", bad.A + at, all->A + at, sizeof *bad.A);
                check_same("B beside a bad token", bad.B + at, all->B + at, sizeof *bad.B);
            }
        for (int j = 0; j < C; j++)
            for (int x = 0; x < all->K; x++) {
                const ptrdiff_t at = j * all->ld + x;
                if (what == 0 ? j < t : what == 2 && j == t) continue;
                check_same("y beside a bad token", bad.y + at, all->y + at, sizeof *bad.y);
            }
    }
}

void check_channel_walk(const struct gdn_kernels *kr)
{
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            check_case("K %d, %s", depths[d], kind_names[kind]);
            const struct walk x = make_walk(depths[d], (enum kind)kind);
            walk(kr, &x);
            judge_walk(&x, kind == ONES ? 16 + x.K : 24 + x.K / 16.0);
            walk_alone(kr, &x);
        }
    for (int t = 0; t < C; t++) {
        check_case("K %d, token %d is not finite", depths[t], t);
        const struct walk x = make_walk(depths[t], ORDINARY);
        walk(kr, &x);
        walk_spoilt(kr, &x, t);
    }
    check_case("K 128");
    const struct walk x = make_walk(128, ORDINARY);
    CHECK_BENCH(4 * 5 * 128 * C, 5.0 * 128 * C * C / 2, walk(kr, &x));
}

/* ---- channel_scale ------------------------------------------------------------------------- */

struct scale {
    int K, ld;
    float *a, *e, *q; /* [16] rows of K, ld apart */
    float *to_e, *to_q, *decay;
};

static struct scale make_scale(int K, enum kind kind)
{
    const int ld = K + check_below(4);
    struct scale x = { K,
                       ld,
                       check_matrix(C, K, ld, 0, 0),
                       check_matrix(C, K, ld, -1, 1),
                       check_matrix(C, K, ld, -1, 1),
                       NULL,
                       NULL,
                       check_poison((size_t)K) };
    const size_t bytes = ((size_t)(C - 1) * (size_t)ld + (size_t)K) * sizeof(float);
    make_decays(x.a, kind, K, 1, ld);
    x.to_e = check_bytes(bytes, ELEMENT);
    x.to_q = check_bytes(bytes, ELEMENT);
    return x;
}

static void scale(const struct gdn_kernels *kr, const struct scale *x)
{
    CALL(kr->channel_scale)(x->to_e, x->to_q, x->decay, x->a, x->e, x->q, x->ld, x->K);
}

static void judge_scale(const struct scale *s)
{
    const size_t n = (size_t)(C * s->K);
    double *e = check_doubles(n), *e_mag = check_doubles(n), *q = check_doubles(n);
    double *q_mag = check_doubles(n), *D = check_doubles((size_t)s->K);
    double *D_mag = check_doubles((size_t)s->K);
    for (int x = 0; x < s->K; x++) {
        D[x] = 1;
        for (int i = 0; i < C; i++) {
            const int from = i * s->ld + x, to = i * s->K + x;
            D[x] *= s->a[from];
            e[to] = s->e[from] * D[x];
            e_mag[to] = magnitude(s->e[from], D[x]);
            q[to] = s->q[from] * D[x];
            q_mag[to] = magnitude(s->q[from], D[x]);
            if (D[x] == 0 && (s->to_e[from] != 0 || s->to_q[from] != 0))
                check_fail("[%d][%d] behind a decay of 0: e %.9g, q %.9g", i, x, s->to_e[from],
                           s->to_q[from]);
        }
        D_mag[x] = magnitude(1, D[x]);
    }
    check_error("to_e", f32_matrix(s->to_e, C, s->K, s->ld), e, e_mag, 17);
    check_error("to_q", f32_matrix(s->to_q, C, s->K, s->ld), q, q_mag, 17);
    check_error("decay", f32_row(s->decay, (size_t)s->K), D, D_mag, 17);
    check_zeros("decay", s->decay, D_mag, (size_t)s->K);
}

/* A channel has the same bits alone, and beside channels and later tokens that are not finite. */
static void scale_alone(const struct gdn_kernels *kr, const struct scale *all)
{
    float e[C], q[C], decay, a1[C], e1[C], q1[C];
    for (int x = 0; x < all->K; x++) {
        const int good = check_below(C + 1); /* tokens */
        for (int i = 0; i < C; i++) {
            a1[i] = i < good ? all->a[i * all->ld + x] : NAN;
            e1[i] = i < good ? all->e[i * all->ld + x] : NAN;
            q1[i] = i < good ? all->q[i * all->ld + x] : NAN;
        }
        kr->channel_scale(e, q, &decay, a1, e1, q1, 1, 1);
        for (int i = 0; i < good; i++) {
            check_same("to_e alone", all->to_e + i * all->ld + x, e + i, sizeof *e);
            check_same("to_q alone", all->to_q + i * all->ld + x, q + i, sizeof *q);
        }
        if (good == C) check_same("decay alone", all->decay + x, &decay, sizeof decay);
    }
}

void check_channel_scale(const struct gdn_kernels *kr)
{
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            check_case("K %d, %s", depths[d], kind_names[kind]);
            const struct scale x = make_scale(depths[d], (enum kind)kind);
            scale(kr, &x);
            judge_scale(&x);
            scale_alone(kr, &x);
        }
    for (size_t d = 1; d < sizeof depths / sizeof *depths; d++) {
        const int bad = check_below(depths[d]);
        check_case("K %d, channel %d is not finite", depths[d], bad);
        const struct scale x = make_scale(depths[d], ORDINARY);
        for (int i = 0; i < C; i++) x.a[i * x.ld + bad] = x.e[i * x.ld + bad] = NAN;
        scale(kr, &x);
        judge_scale(&x);
    }
    check_case("K 128");
    const struct scale x = make_scale(128, ORDINARY);
    CHECK_BENCH(4 * 5 * 128 * C, 3.0 * 128 * C, scale(kr, &x));
}

/* ---- channel_return ------------------------------------------------------------------------ */

struct back {
    int K, ld;
    float *dq, *de, *dk, *dg; /* [16] rows of K, ld apart; dg becomes */
    const float *carried, *a, *e, *q, *k, *X, *Y;
};

static struct back make_back(int K, enum kind kind)
{
    const int ld = K + check_below(4);
    const double low = kind == ONES ? 0.1 : -1, high = kind == ONES ? 0.1 : 1;
    float *rows[7], *a = check_matrix(C, K, ld, 0, 0);
    for (int i = 0; i < 7; i++) rows[i] = check_matrix(C, K, ld, low, high);
    make_decays(a, kind, K, 1, ld);
    return (struct back){ K,
                          ld,
                          rows[0],
                          rows[1],
                          rows[2],
                          rows[3],
                          check_floats((size_t)K, low, high),
                          a,
                          rows[4],
                          rows[5],
                          rows[6],
                          check_lines(C * C, low, high),
                          check_lines(C * C, low, high) };
}

static void back(const struct gdn_kernels *kr, const struct back *x)
{
    CALL(kr->channel_return)
    (x->dq, x->de, x->dk, x->dg, x->carried, x->a, x->e, x->q, x->k, x->ld, x->X, x->Y, x->K);
}

static void add(double *sum, double *mag, double factor, double D)
{
    *sum += factor * D;
    *mag += magnitude(factor, D);
}

/* The product of decays of channel x from token `from` to token `to`. */
static double decayed(const struct back *b, int x, int from, int to)
{
    double D = 1;
    for (int i = from; i <= to; i++) D *= b->a[i * b->ld + x];
    return D;
}

enum { DQ, DE, DK, DG };

/* Adds the gradients that tokens i and j (at most i) have from each other. */
static void add_pair(const struct back *b, int x, int i, int j, double **want, double **mag)
{
    const int K = b->K, at = i * b->ld + x, by = j * b->ld + x;
    const int to = i * K + x, j_to = j * K + x;
    const double D = decayed(b, x, j + 1, i), Y = b->Y[i * C + j], X = j < i ? b->X[i * C + j] : 0;
    add(&want[DQ][to], &mag[DQ][to], Y * b->k[by], D);
    add(&want[DE][to], &mag[DE][to], X * b->k[by], D);
    add(&want[DK][j_to], &mag[DK][j_to], X * b->e[at], D);
    add(&want[DK][j_to], &mag[DK][j_to], Y * b->q[at], D);
    for (int l = j + 1; l <= i; l++) {
        add(&want[DG][l * K + x], &mag[DG][l * K + x], X * b->e[at] * b->k[by], D);
        add(&want[DG][l * K + x], &mag[DG][l * K + x], Y * b->q[at] * b->k[by], D);
    }
}

/* was: before the call. */
static void judge_back(const struct back *was, const struct back *b)
{
    const int K = b->K;
    double *want[4], *mag[4];
    for (int i = 0; i < 4; i++) {
        want[i] = check_doubles((size_t)(C * K));
        mag[i] = check_doubles((size_t)(C * K));
        for (int j = 0; j < C * K; j++) want[i][j] = mag[i][j] = 0;
    }
    for (int x = 0; x < K; x++)
        for (int i = 0; i < C; i++) {
            const int to = i * K + x, at = i * b->ld + x;
            const double end = decayed(b, x, i + 1, C - 1), D = decayed(b, x, 0, i);
            add(&want[DQ][to], &mag[DQ][to], was->dq[at], D);
            add(&want[DE][to], &mag[DE][to], was->de[at], D);
            add(&want[DK][to], &mag[DK][to], was->dk[at], end);
            add(&want[DG][to], &mag[DG][to], b->carried[x], decayed(b, x, 0, C - 1));
            for (int l = 0; l <= i; l++) { /* gates of tokens up to i */
                add(&want[DG][l * K + x], &mag[DG][l * K + x], b->q[at] * was->dq[at], D);
                add(&want[DG][l * K + x], &mag[DG][l * K + x], b->e[at] * was->de[at], D);
            }
            for (int l = i + 1; l < C; l++) /* after it */
                add(&want[DG][l * K + x], &mag[DG][l * K + x], b->k[at] * was->dk[at], end);
            for (int j = 0; j <= i; j++) add_pair(b, x, i, j, want, mag);
        }
    for (int i = 0; i < C * K; i++)
        if (b->a[i / K * b->ld + i % K] == 0) want[DG][i] = mag[DG][i] = 0;
    const float *const got[] = { b->dq, b->de, b->dk, b->dg };
    static const char *const names[] = { "dq", "de", "dk", "dg" };
    for (int i = 0; i < 4; i++)
        check_error(names[i], f32_matrix(got[i], C, K, b->ld), want[i], mag[i], 40);
}

/* A channel has the same bits alone. */
static void back_alone(const struct gdn_kernels *kr, const struct back *was, const struct back *all)
{
    float rows[8][C]; /* dq, de, dk, dg, a, e, q, k */
    for (int x = 0; x < all->K; x++) {
        for (int i = 0; i < C; i++) {
            const int at = i * all->ld + x;
            rows[0][i] = was->dq[at], rows[1][i] = was->de[at], rows[2][i] = was->dk[at];
            rows[4][i] = all->a[at], rows[5][i] = all->e[at];
            rows[6][i] = all->q[at], rows[7][i] = all->k[at];
        }
        kr->channel_return(rows[0], rows[1], rows[2], rows[3], all->carried + x, rows[4], rows[5],
                           rows[6], rows[7], 1, all->X, all->Y, 1);
        for (int i = 0; i < C; i++) {
            const int at = i * all->ld + x;
            check_same("dq alone", all->dq + at, &rows[0][i], sizeof(float));
            check_same("de alone", all->de + at, &rows[1][i], sizeof(float));
            check_same("dk alone", all->dk + at, &rows[2][i], sizeof(float));
            check_same("dg alone", all->dg + at, &rows[3][i], sizeof(float));
        }
    }
}

void check_channel_return(const struct gdn_kernels *kr)
{
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            check_case("K %d, %s", depths[d], kind_names[kind]);
            const struct back was = make_back(depths[d], (enum kind)kind);
            struct back x = was;
            const size_t bytes = ((size_t)(C - 1) * (size_t)x.ld + (size_t)x.K) * sizeof(float);
            x.dq = check_copy(was.dq, bytes, sizeof(float));
            x.de = check_copy(was.de, bytes, sizeof(float));
            x.dk = check_copy(was.dk, bytes, sizeof(float));
            back(kr, &x);
            judge_back(&was, &x);
            back_alone(kr, &was, &x);
        }
    check_case("K 128");
    const struct back x = make_back(128, ORDINARY);
    CHECK_BENCH(4 * 11 * 128 * C, 14.0 * 128 * C * C / 2, back(kr, &x));
}
