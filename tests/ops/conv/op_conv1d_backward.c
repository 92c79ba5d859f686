/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_conv1d_backward against float64 sums, which finite differences judge; and its guarantees by
 * name. */
#include <math.h>

#include "gdn_train.h"
#include "oracle.h"
#include "ring2_batch.h"

enum {
    X,
    DOUT,
    DX,
    TAPS,
    CHANNELS,
    LENGTH,
    ORDER,
    STATES,
    PARTS,
    LAYOUT,
    SILU,
    ADDS,
    STEPS,
    N_FACTORS
};
enum { NONE, STATE, BOTH, ONLY_OUT };                   /* STATES */
enum { ALL, ONLY_DX, ONLY_SUMS, NOT_DSTATE };           /* PARTS */
enum { PACKED_UNEVEN, ONE, ROWS, MASKED, MASKED_ROWS }; /* LAYOUT */

static const int levels[N_FACTORS] = { 3, 3, 3, 7, 5, 3, 2, 4, 4, 5, 2, 2, 2 };
static const int channels[5] = { 1, 7, 64, 131, 300 };
static const int taps[7] = { 2, 3, 4, 5, 8, 11, 16 };

static bool allowed(int i, int a, int j, int b)
{
    (void)i, (void)a, (void)j, (void)b;
    return true;
}

/* ---- The model ---- */

/* One channel of a sequence in float64; x[t] from t = -S on, dz and its limit from 0. */
struct line {
    const gdn_conv1d_backward_args *a;
    int64_t n, S;
    int W;
    double w[16], bias, *x, *dz, *limit, *final; /* final: dstate_out */
};

static double slope(double z, bool silu)
{
    return silu ? oracle_sigmoid(z) * (1 + z * oracle_sigmoid(-z)) : 1;
}

/* The sum z has the limit of gdn_conv1d, and silu'' is at most 1/2; the slope costs two sigmoids
 * and some roundings of its terms. */
static void find_dz(struct line *l, const double *dout)
{
    const bool silu = l->a->activation == GDN_ACT_SILU;
    for (int64_t t = 0; t < l->n; t++) {
        double z = l->bias, size = fabs(z);
        for (int i = 0; i < l->W; i++) {
            const double term = l->w[i] * l->x[t - l->W + 1 + i];
            z += term, size += fabs(term);
        }
        const double terms = oracle_sigmoid(z) * (1 + fabs(z) * oracle_sigmoid(-z));
        l->dz[t] = dout[t] * slope(z, silu);
        l->limit[t] = silu ? fabs(dout[t]) * (0.5 * (8 + l->W) * size + 20 * terms) : 0;
    }
}

/* The gradient of x[t], t from -S on. */
static double find_dx(const struct line *l, int64_t t, double *limit)
{
    const int64_t entry = t - l->n + l->S;
    double dx = 0, size = 0;
    *limit = 0;
    for (int i = 0; i < l->W; i++) {
        const int64_t of = t + l->W - 1 - i;
        if (of < 0 || of >= l->n) continue;
        dx += l->w[i] * l->dz[of];
        size += fabs(l->w[i] * l->dz[of]);
        *limit += fabs(l->w[i]) * l->limit[of];
    }
    if (l->final && entry >= 0) dx += l->final[entry], size += fabs(l->final[entry]);
    *limit += (10 + l->W) * size;
    return dx;
}

/* The wanted values of a tensor, and their limits, in units of 2^-24. */
struct wanted {
    const gdn_tensor *t;
    double *value, *limit;
};

static struct wanted want(const gdn_tensor *t, bool adds)
{
    const size_t n = t->data ? (size_t)ring2_count(t) : 0;
    struct wanted w = { t, ring2_heap(n * 8 + 8), ring2_heap(n * 8 + 8) };
    for (size_t i = 0; i < n; i++) {
        w.value[i] = adds ? ring2_get(t, (int64_t)i) : 0;
        w.limit[i] = fabs(w.value[i]);
    }
    return w;
}

static void add(struct wanted *w, int64_t i, double value, double limit)
{
    if (!w->t->data) return;
    w->value[i] += value;
    w->limit[i] += limit + fabs(value);
}

static void compare(const char *name, struct wanted *w)
{
    if (!w->t->data) return;
    for (int64_t i = 0; i < ring2_count(w->t); i++) w->limit[i] = w->limit[i] * 0x1p-24 + 0x1p-125;
    ring2_compare(name, w->t, w->value, w->limit, NULL, NULL);
}

struct gradients {
    struct wanted dx, dweight, dbias, dstate;
};

static void load_line(struct line *l, int64_t D, int64_t d, const struct ring2_sequence *s)
{
    const gdn_conv1d_backward_args *a = l->a;
    l->n = s->valid;
    l->x = (double *)ring2_heap((size_t)(l->S + l->n) * 8) + l->S;
    l->dz = ring2_heap((size_t)l->n * 8 + 8);
    l->limit = ring2_heap((size_t)l->n * 8 + 8);
    for (int64_t t = -l->S; t < l->n; t++) {
        if (t >= 0)
            l->x[t] = ring2_get(&a->x, (s->first + t) * D + d);
        else
            l->x[t] = a->state.data ? ring2_get(&a->state, (s->row * D + d) * l->S + l->S + t) : 0;
    }
    for (int i = 0; i < l->W; i++) l->w[i] = ring2_get(&a->weight, d * l->W + i);
    l->bias = a->bias.data ? ring2_get(&a->bias, d) : 0;
    l->final = NULL;
    if (!a->dstate_out.data) return;
    l->final = ring2_heap((size_t)l->S * 8);
    for (int64_t e = 0; e < l->S; e++)
        l->final[e] = ring2_get(&a->dstate_out, (s->row * D + d) * l->S + e);
}

/* Skips what token_start leaves out. */
static void skip_start(const gdn_batch *batch, struct ring2_sequence *s)
{
    if (!batch || !batch->token_start.data) return;
    const int64_t n = (int64_t)ring2_get(&batch->token_start, s->row);
    s->first += n;
    if (!batch->token_count.data) s->valid -= n;
}

/* Adds the gradients of a line. Limits of sums are those of terms that are added one by one. */
static void add_line(struct gradients *g, const struct line *l, int64_t D, int64_t d,
                     const struct ring2_sequence *s, double n_terms)
{
    double limit;
    for (int64_t t = -l->S; t < l->n; t++) {
        const double dx = find_dx(l, t, &limit);
        if (t >= 0)
            add(&g->dx, (s->first + t) * D + d, dx, limit);
        else
            add(&g->dstate, (s->row * D + d) * l->S + l->S + t, dx, limit);
    }
    for (int64_t t = 0; t < l->n; t++) {
        for (int i = 0; i < l->W; i++) {
            const double x = l->x[t - l->W + 1 + i], term = l->dz[t] * x;
            add(&g->dweight, d * l->W + i, term, fabs(x) * l->limit[t] + n_terms * fabs(term));
        }
        add(&g->dbias, d, l->dz[t], l->limit[t] + n_terms * fabs(l->dz[t]));
    }
}

static struct gradients make_model(const gdn_conv1d_backward_args *a)
{
    const bool adds = a->flags & GDN_ACCUMULATE;
    const int64_t D = a->x.size[a->x.ndim - 1], N = ring2_count(&a->x) / (D ? D : 1);
    const int W = (int)a->weight.size[a->weight.ndim - 1];
    const gdn_tensor *states[] = { &a->state, &a->dstate_out, &a->dstate };
    struct gradients g = { want(&a->dx, adds), want(&a->dweight, adds), want(&a->dbias, adds),
                           want(&a->dstate, adds) };
    struct ring2_sequence *seqs;
    const int64_t B = ring2_sequences(a->batch, &a->x, 1, false, &seqs);
    struct line l = { .a = a, .S = W - 1, .W = W };
    for (int i = 0; i < 3; i++)
        if (states[i]->data) l.S = states[i]->size[2];
    for (int64_t b = 0; b < B; b++) skip_start(a->batch, &seqs[b]);
    for (int64_t b = 0; b < B; b++)
        for (int64_t d = 0; d < D; d++) {
            load_line(&l, D, d, &seqs[b]);
            double *dout = ring2_heap((size_t)l.n * 8 + 8);
            for (int64_t t = 0; t < l.n; t++)
                dout[t] = ring2_get(&a->dout, (seqs[b].first + t) * D + d);
            find_dz(&l, dout);
            add_line(&g, &l, D, d, &seqs[b], (double)N + 2);
        }
    return g;
}

static void check_call(gdn_ctx *ctx, const gdn_conv1d_backward_args *a)
{
    struct gradients g = make_model(a);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_CONV1D_BACKWARD, a), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&a->dx);
    ring2_may_write(&a->dweight);
    ring2_may_write(&a->dbias);
    ring2_may_write(&a->dstate);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    ring2_status(ctx, "gdn_conv1d_backward", gdn_conv1d_backward(ctx, a), GDN_OK);
    ring2_call_end();
    compare("dx", &g.dx);
    compare("dweight", &g.dweight);
    compare("dbias", &g.dbias);
    compare("dstate", &g.dstate);
}

/* ---- Cases ---- */

static gdn_tensor filled(gdn_tensor t, double size)
{
    ring2_fill(&t, -size, size);
    return t;
}

static gdn_tensor rows(const int *level, int32_t dtype, int64_t D)
{
    const int64_t gap = level[ORDER] ? 3 : 0;
    const bool padded = level[LAYOUT] == ROWS || level[LAYOUT] == MASKED_ROWS;
    const bool channels_first = level[STEPS];
    return filled(padded ? ring2_turned(channels_first, dtype, gap, 3, 3, 37, D, 0)
                         : ring2_turned(channels_first, dtype, gap, 2, 90, D, 0, 0),
                  2);
}

/* Sequences of 70, 0, 1 and 12 tokens and 7 of none; one of 90; three rows of 37. */
static int64_t make_batch(gdn_batch *t, const int *level)
{
    static const int64_t cu[] = { 0, 70, 70, 71, 83 };
    const int layout = level[LAYOUT];
    const bool packed = layout == PACKED_UNEVEN || layout == MASKED;
    const int64_t B = packed ? 4 : layout == ONE ? 1 : 3;
    *t = gdn_batch_init();
    if (packed) t->cu_seqlens = ring2_indices(GDN_I32, 5, cu);
    if (layout != MASKED && layout != MASKED_ROWS) return B;
    t->token_start = ring2_indices(GDN_I32, B, (int64_t[]){ 33, 0, packed ? 0 : 1, 2 });
    t->token_count = ring2_indices(GDN_I32, B, (int64_t[]){ 3, 0, packed ? 1 : 9, 5 });
    return B;
}

static gdn_tensor states(const int *level, int32_t dtype, int64_t B, int64_t D, int64_t S)
{
    return filled(ring2_turned(level[ORDER], dtype, 0, 3, B, D, S, 0), 1);
}

static void give_workspace(gdn_ctx *ctx, gdn_conv1d_backward_args *a)
{
    const gdn_op op = GDN_OP_CONV1D_BACKWARD;
    ring2_give_workspace(ctx, op, a);
}

static void give_gradients(gdn_conv1d_backward_args *a, const int *level, int64_t B, int64_t S)
{
    const int64_t D = channels[level[CHANNELS]], W = taps[level[TAPS]];
    const int parts = level[PARTS];
    if (parts != ONLY_SUMS) a->dx = rows(level, level[DX], D);
    if (parts == ALL) a->dstate = states(level, GDN_F32, B, D, S);
    if (parts == ONLY_DX) return;
    a->dweight = filled(a->weight.ndim == 3 ? ring2_new(GDN_F32, 0, 3, D, 1, W, 0)
                                            : ring2_new(GDN_F32, 0, 2, D, W, 0, 0),
                        1);
    a->dbias = filled(ring2_new(GDN_F32, 0, 1, D, 0, 0, 0), 1);
}

static void run_case(const int *level, int number)
{
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_conv1d_backward_args a = gdn_conv1d_backward_args_init();
    gdn_batch batch;
    const int64_t D = channels[level[CHANNELS]], W = taps[level[TAPS]];
    const int64_t B = make_batch(&batch, level);
    const int64_t S = W - 1 + (level[LENGTH] == 2 ? 10 : level[LENGTH]);
    a.x = rows(level, level[X], D);
    a.dout = rows(level, level[DOUT], D);
    a.weight = filled(number % 3 ? ring2_new(level[DOUT], 0, 2, D, W, 0, 0)
                                 : ring2_new(level[DOUT], 0, 3, D, 1, W, 0),
                      1);
    if (number % 2) a.bias = filled(ring2_new(level[DX], 0, 1, D, 0, 0, 0), 1);
    if (level[STATES] == STATE || level[STATES] == BOTH) a.state = states(level, level[X], B, D, S);
    if (level[STATES] >= BOTH) a.dstate_out = states(level, level[DX], B, D, S);
    give_gradients(&a, level, B, S);
    a.activation = level[SILU] ? GDN_ACT_SILU : GDN_ACT_NONE;
    if (level[ADDS]) a.flags = GDN_ACCUMULATE;
    if (level[LAYOUT] != ONE && level[LAYOUT] != ROWS) a.batch = &batch;
    if (number % 2) give_workspace(ctx, &a);
    check_call(ctx, &a);
}

/* ---- The oracle ---- */

/* Checks the gradients of a sum over outputs and final states. */
static double loss(struct line *l, const double *dout)
{
    double sum = 0;
    for (int64_t t = 0; t < l->n; t++) {
        double z = l->bias;
        for (int i = 0; i < l->W; i++) z += l->w[i] * l->x[t - l->W + 1 + i];
        sum += dout[t] * z * oracle_sigmoid(z);
    }
    for (int64_t e = 0; e < l->S; e++) sum += l->final[e] * l->x[l->n - l->S + e];
    return sum;
}

static void finite_differences(void)
{
    enum { S = 4, N = 6 };
    const gdn_conv1d_backward_args a = { .activation = GDN_ACT_SILU };
    const double h = 1e-5;
    double all[S + N], dz[N], limit[N], final[S], dout[N], none;
    struct line l = { .a = &a,
                      .n = N,
                      .S = S,
                      .W = 4,
                      .bias = 0.3,
                      .x = all + S,
                      .dz = dz,
                      .limit = limit,
                      .final = final };
    for (int i = 0; i < S + N; i++) all[i] = ring2_uniform(-2, 2);
    for (int i = 0; i < 4; i++) l.w[i] = ring2_uniform(-1, 1), final[i] = ring2_uniform(-1, 1);
    for (int i = 0; i < N; i++) dout[i] = ring2_uniform(-1, 1);
    find_dz(&l, dout);
    for (int i = 0; i < S + N; i++) {
        const double at = all[i];
        all[i] = at + h;
        const double above = loss(&l, dout);
        all[i] = at - h;
        const double seen = (above - loss(&l, dout)) / (2 * h), dx = find_dx(&l, i - S, &none);
        all[i] = at;
        CHECK(fabs(seen - dx) < 1e-8, "dx %g, seen %g", dx, seen);
    }
}

/* ---- Properties ---- */

enum { N_SEQS = 4, N_TOKENS = 83 };

static gdn_conv1d_backward_args make_call(gdn_batch *batch, int64_t D, int64_t W)
{
    static const int level[N_FACTORS] = { [LAYOUT] = PACKED_UNEVEN };
    gdn_conv1d_backward_args a = gdn_conv1d_backward_args_init();
    gdn_tensor *of_rows[] = { &a.x, &a.dout, &a.dx };
    gdn_tensor *pools[] = { &a.state, &a.dstate_out, &a.dstate };
    make_batch(batch, level);
    for (int i = 0; i < 3; i++)
        *of_rows[i] = filled(ring2_new(GDN_F32, 0, 2, N_TOKENS, D, 0, 0), 2);
    for (int i = 0; i < 3; i++) *pools[i] = filled(ring2_new(GDN_F32, 0, 3, N_SEQS, D, W, 0), 1);
    a.weight = filled(ring2_new(GDN_F32, 0, 2, D, W, 0, 0), 1);
    a.dweight = filled(ring2_new(GDN_F32, 0, 2, D, W, 0, 0), 1);
    a.bias = filled(ring2_new(GDN_F32, 0, 1, D, 0, 0, 0), 1);
    a.dbias = filled(ring2_new(GDN_F32, 0, 1, D, 0, 0, 0), 1);
    a.batch = batch;
    a.activation = GDN_ACT_SILU;
    return a;
}

static gdn_conv1d_backward_args clone(const gdn_conv1d_backward_args *a)
{
    gdn_conv1d_backward_args b = *a;
    b.dx = ring2_clone(&a->dx);
    b.dweight = ring2_clone(&a->dweight);
    b.dbias = ring2_clone(&a->dbias);
    b.dstate = ring2_clone(&a->dstate);
    return b;
}

struct mode_call {
    gdn_ctx *ctx;
    gdn_conv1d_backward_args args;
    gdn_status status;
};

static void run_it(void *arg)
{
    struct mode_call *c = arg;
    c->status = gdn_conv1d_backward(c->ctx, &c->args);
}

static void call(gdn_ctx *ctx, const gdn_conv1d_backward_args *a)
{
    struct mode_call c = { ctx, *a, 0 };
    run_it(&c);
    ring2_status(ctx, "gdn_conv1d_backward", c.status, GDN_OK);
}

/* The gradients of two halves, the state's handed back, are those of the whole. */
static void halves(void)
{
    enum { T = 40, CUT = 17, D = 9, W = 4, S = 5 };
    gdn_batch batch;
    gdn_conv1d_backward_args a = make_call(&batch, D, W), late, early;
    gdn_tensor *of_rows[] = { &a.x, &a.dout, &a.dx };
    gdn_tensor *pools[] = { &a.state, &a.dstate_out, &a.dstate };
    a.batch = NULL;
    for (int i = 0; i < 3; i++) *of_rows[i] = ring2_narrow(of_rows[i], 0, 0, T);
    for (int i = 0; i < 3; i++) *pools[i] = filled(ring2_new(GDN_F32, 0, 3, 1, D, S, 0), 1);
    call(ring2_ctx(1), &a);
    late = early = clone(&a);
    late.state = ring2_new(GDN_F32, 0, 3, 1, D, S, 0);
    late.dstate = ring2_new(GDN_F32, 0, 3, 1, D, S, 0);
    for (int64_t d = 0; d < D; d++)
        for (int64_t e = 0; e < S; e++)
            ring2_set(&late.state, d * S + e, ring2_get(&a.x, (CUT - S + e) * D + d));
    gdn_tensor *of_late[] = { &late.x, &late.dout, &late.dx };
    gdn_tensor *of_early[] = { &early.x, &early.dout, &early.dx };
    for (int i = 0; i < 3; i++) *of_late[i] = ring2_narrow(of_late[i], 0, CUT, T - CUT);
    for (int i = 0; i < 3; i++) *of_early[i] = ring2_narrow(of_early[i], 0, 0, CUT);
    early.dstate_out = late.dstate;
    call(ring2_ctx(1), &late);
    early.flags = GDN_ACCUMULATE; /* for the sums; the other outputs begin as zeros */
    ring2_fill_value(&early.dx, 0);
    ring2_fill_value(&early.dstate, 0);
    call(ring2_ctx(1), &early);
    const struct {
        const gdn_tensor *got, *want;
    } pairs[] = { { &early.dstate, &a.dstate },
                  { &early.dweight, &a.dweight },
                  { &early.dbias, &a.dbias } };
    for (int p = 0; p < 3; p++)
        for (int64_t i = 0; i < ring2_count(pairs[p].want); i++)
            CHECK(fabs(ring2_get(pairs[p].got, i) - ring2_get(pairs[p].want, i)) < 1e-4,
                  "pair %d, element %d: %g, of the whole %g", p, (int)i, ring2_get(pairs[p].got, i),
                  ring2_get(pairs[p].want, i));
    const gdn_tensor first = ring2_narrow(&a.dx, 0, 0, CUT);
    const gdn_tensor rest = ring2_narrow(&a.dx, 0, CUT, T - CUT);
    for (int64_t i = 0; i < CUT * D; i++)
        CHECK(fabs(ring2_get(&early.dx, i) - ring2_get(&first, i)) < 1e-5, "dx %d", (int)i);
    ring2_expect_bits("dx of the second half", &late.dx, &rest);
}

/* NaN in these elements of `got`, [rows][D], and elsewhere the bits of `plain`. */
static void expect_reached(const char *what, const gdn_tensor *got, const gdn_tensor *plain,
                           bool (*reached)(int64_t row, int64_t d))
{
    const int64_t D = got->size[1];
    for (int64_t i = 0; i < ring2_count(got); i++) {
        const double x = ring2_get(got, i), y = ring2_get(plain, i);
        if (reached(i / D, i % D))
            CHECK(isnan(x), "%s %d lost NaN: %g", what, (int)i, x);
        else
            CHECK(x == y, "%s %d: %g, without NaN elsewhere %g", what, (int)i, x, y);
    }
}

/* Places of the NaN of not_a_number(); of four taps, and the last sequence begins at token 71. */
enum { IN_X = 3, IN_DOUT = 5, IN_STATE = 9, IN_FINAL = 66 };

static bool reached_dx(int64_t t, int64_t d)
{
    return (d == IN_X && t >= 7 && t <= 13) || (d == IN_DOUT && t >= 17 && t <= 20) ||
           (d == IN_STATE && t >= 71 && t <= 73) || (d == IN_FINAL && t == 69);
}

static bool reached_dstate(int64_t row, int64_t d)
{
    return d == IN_STATE && row >= 3 * 4 + 1; /* entries of the last sequence; one in no sum */
}

static bool reached_dweight(int64_t row, int64_t d)
{
    (void)row;
    return d == IN_X || d == IN_DOUT || d == IN_STATE;
}

/* [n][D][entries] as [n * entries][D]. */
static gdn_tensor as_rows(const gdn_tensor *t)
{
    const int64_t n = t->ndim == 3 ? t->size[0] : 1, D = t->size[t->ndim - 2];
    const int64_t m = t->size[t->ndim - 1];
    gdn_tensor r = ring2_new(GDN_F32, 0, 2, n * m, D, 0, 0);
    for (int64_t i = 0; i < n * D * m; i++)
        ring2_set(&r, (i / (D * m) * m + i % m) * D + i / m % D, ring2_get(t, i));
    return r;
}

/* A NaN of x, dout, the state or dstate_out reaches its channel's sums, and of dx and dstate what
 * it is part of. */
static void not_a_number(void)
{
    enum { D = 70, W = 4 };
    gdn_batch batch;
    gdn_conv1d_backward_args plain = make_call(&batch, D, W), a = clone(&plain);
    call(ring2_ctx(2), &plain);
    a.x = ring2_clone(&plain.x), a.dout = ring2_clone(&plain.dout);
    a.state = ring2_clone(&plain.state), a.dstate_out = ring2_clone(&plain.dstate_out);
    ring2_set(&a.x, 10 * D + IN_X, (double)NAN);
    ring2_set(&a.dout, 20 * D + IN_DOUT, (double)NAN);
    ring2_set(&a.state, (3 * D + IN_STATE) * W + W - 1, (double)NAN);
    ring2_set(&a.dstate_out, IN_FINAL * W + W - 1, (double)NAN);
    call(ring2_ctx(2), &a);
    const gdn_tensor got[] = { as_rows(&a.dstate), as_rows(&a.dweight) };
    const gdn_tensor want[] = { as_rows(&plain.dstate), as_rows(&plain.dweight) };
    expect_reached("dx", &a.dx, &plain.dx, reached_dx);
    expect_reached("dstate", &got[0], &want[0], reached_dstate);
    expect_reached("dweight", &got[1], &want[1], reached_dweight);
    for (int d = 0; d < D; d++)
        CHECK(reached_dweight(0, d) ? isnan(ring2_get(&a.dbias, d))
                                    : ring2_get(&a.dbias, d) == ring2_get(&plain.dbias, d),
              "dbias %d: %g", d, ring2_get(&a.dbias, d));
}

/* The slope of SiLU is 1 at infinity and 0 at minus infinity. */
static void infinite_inputs(void)
{
    enum { D = 70, W = 4, AT = 30, UP = 7, DOWN = 68 };
    gdn_batch batch;
    gdn_conv1d_backward_args a = make_call(&batch, D, W);
    for (int i = 0; i < W; i++)
        ring2_set(&a.weight, UP * W + i, 0.5), ring2_set(&a.weight, DOWN * W + i, 0.5);
    ring2_set(&a.x, AT * D + UP, (double)INFINITY);
    ring2_set(&a.x, AT * D + DOWN, -(double)INFINITY);
    call(ring2_ctx(2), &a);
    double sum = 0;
    for (int i = 0; i < W; i++) sum += 0.5 * ring2_get(&a.dout, (AT + i) * D + UP);
    CHECK(fabs(ring2_get(&a.dx, AT * D + UP) - sum) < 1e-5, "%g, wanted %g",
          ring2_get(&a.dx, AT * D + UP), sum);
    CHECK(ring2_get(&a.dx, AT * D + DOWN) == 0, "%g", ring2_get(&a.dx, AT * D + DOWN));
    for (int64_t i = 0; i < ring2_count(&a.dx); i++)
        CHECK(isfinite(ring2_get(&a.dx, i)), "dx %d", (int)i);
    for (int64_t i = 0; i < D * W; i++)
        CHECK(isfinite(ring2_get(&a.dweight, i)) == (i / W != UP && i / W != DOWN), "dweight %d",
              (int)i);
    for (int d = 0; d < D; d++) CHECK(isfinite(ring2_get(&a.dbias, d)), "dbias %d", d);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "halves", halves },
        { "NaN", not_a_number },
        { "infinite inputs", infinite_inputs },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("conv1d_backward %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
