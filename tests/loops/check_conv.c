/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

struct problem {
    int dtype, W, n, T;
    int ld_x, ld_y, ld_w;
    bool silu;
    void *x;                       /* [T][n] */
    float *window, *weight, *bias; /* [W-1][n], [W][n], [n] or NULL */
};

static size_t row_bytes(const struct problem *p, int64_t rows, int64_t ld)
{
    return (size_t)((rows - 1) * ld + p->n) * gdn_dtype_bytes(p->dtype);
}

static struct problem make(int dtype, int W, int n, int T)
{
    struct problem p = { .dtype = dtype, .W = W, .n = n, .T = T };
    p.silu = check_below(2);
    p.ld_x = n + check_below(4);
    p.ld_y = n + check_below(4);
    p.ld_w = n + check_below(4);
    p.x = check_bytes(row_bytes(&p, T, p.ld_x), ELEMENT);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < n; c++)
            oracle_store(p.x, dtype, t * p.ld_x + c,
                         check_uniform(-1, 1) * (check_below(8) ? 4 : 100));
    oracle_store(p.x, dtype, check_below(n), dtype == GDN_F16 ? -6e4 : -3e38);
    p.window = check_matrix(W - 1, n, p.ld_w, -4, 4);
    p.weight = check_matrix(W, n, p.ld_w, -1, 1);
    p.bias = check_below(2) ? check_floats((size_t)n, -1, 1) : NULL;
    return p;
}

static size_t window_bytes(const struct problem *p)
{
    return (size_t)((p->W - 2) * p->ld_w + p->n) * sizeof(float);
}

/* Tokens t0 .. t0+T-1 of channels c0 .. c0+n-1. */
static void run_part(const struct gdn_kernels *kr, const struct problem *p, void *y, int ld_y,
                     const void *x, float *window, int t0, int T, int c0, int n)
{
    const ptrdiff_t size = (ptrdiff_t)gdn_dtype_bytes(p->dtype);
    CALL(kr->conv[p->dtype])
    ((char *)y + (t0 * ld_y + c0) * size, ld_y, (const char *)x + (t0 * p->ld_x + c0) * size,
     p->ld_x, window + c0, p->weight + c0, p->bias ? p->bias + c0 : NULL, p->ld_w, p->W, p->silu, T,
     n);
}

static void check_oracle(const struct problem *p, const void *y)
{
    const size_t T = (size_t)p->T, n = (size_t)p->n, W = (size_t)p->W;
    double *x = check_doubles(T * n), *history = check_doubles((W - 1) * n);
    double *weight = check_doubles(n * W);
    double *want = check_doubles(T * n), *mag = check_doubles(T * n);
    for (int c = 0; c < p->n; c++) {
        for (int t = 0; t < p->T; t++)
            x[t * p->n + c] = oracle_load(p->x, p->dtype, t * p->ld_x + c);
        for (int w = 0; w < p->W; w++) weight[c * p->W + w] = p->weight[w * p->ld_w + c];
        for (int w = 0; w < p->W - 1; w++) history[w * p->n + c] = p->window[w * p->ld_w + c];
    }
    oracle_conv(want, mag, x, history, weight, p->bias ? check_widen(p->bias, n) : NULL, p->silu,
                p->T, p->n, p->W);
    const struct check_view view = { y, p->dtype, p->T, p->n, p->ld_y };
    check_error("y", view, want, mag, 8 + p->W);
}

/* The window that remains holds the last W - 1 inputs, exactly. */
static void check_window(const struct problem *p, const float *moved)
{
    const size_t n = (size_t)(p->W - 1) * (size_t)p->n;
    double *want = check_doubles(n), *zero = check_doubles(n);
    for (int w = 0; w < p->W - 1; w++)
        for (int c = 0; c < p->n; c++) {
            const int at = w + p->T; /* of the old window followed by x */
            want[w * p->n + c] = at < p->W - 1
                                     ? p->window[at * p->ld_w + c]
                                     : oracle_load(p->x, p->dtype, (at - p->W + 1) * p->ld_x + c);
            zero[w * p->n + c] = 0;
        }
    check_error("window", f32_matrix(moved, p->W - 1, p->n, p->ld_w), want, zero, 0);
}

static void check_one(const struct gdn_kernels *kr, int dtype, int W, int n, int T)
{
    const struct problem p = make(dtype, W, n, T);
    const size_t bytes = row_bytes(&p, T, p.ld_y);
    void *y = check_bytes(bytes, ELEMENT);
    float *window = check_copy(p.window, window_bytes(&p), ELEMENT);
    run_part(kr, &p, y, p.ld_y, p.x, window, 0, T, 0, n);
    check_oracle(&p, y);
    check_window(&p, window);

    /* The same bits in four parts, cut along tokens and channels, */
    const int t = check_below(T + 1), c = check_below(n + 1);
    void *parts = check_bytes(bytes, ELEMENT);
    float *moved = check_copy(p.window, window_bytes(&p), ELEMENT);
    run_part(kr, &p, parts, p.ld_y, p.x, moved, 0, t, 0, c);
    run_part(kr, &p, parts, p.ld_y, p.x, moved, 0, t, c, n - c);
    run_part(kr, &p, parts, p.ld_y, p.x, moved, t, T - t, 0, c);
    run_part(kr, &p, parts, p.ld_y, p.x, moved, t, T - t, c, n - c);
    check_same("in parts", parts, y, bytes);
    check_same("window, in parts", moved, window, window_bytes(&p));

    /* and in place. */
    struct problem in = p;
    void *xy = check_copy(p.x, row_bytes(&p, T, p.ld_x), ELEMENT);
    float *old = check_copy(p.window, window_bytes(&p), ELEMENT);
    run_part(kr, &in, xy, p.ld_x, xy, old, 0, T, 0, n);
    const size_t size = gdn_dtype_bytes(dtype);
    for (int i = 0; i < T; i++)
        check_same("in place", (char *)xy + (size_t)(i * p.ld_x) * size,
                   (char *)y + (size_t)(i * p.ld_y) * size, (size_t)n * size);
    check_same("window, in place", old, window, window_bytes(&p));
}

/* conv_update() beside conv(): the same outputs, and states that hold the inputs of the window. */
static void check_one_update(const struct gdn_kernels *kr, int dtype, int n)
{
    struct problem p = make(dtype, 4, n, 1);
    const size_t size = gdn_dtype_bytes(dtype);
    void *y = check_bytes((size_t)n * size, ELEMENT);
    void *state = check_bytes((size_t)(3 * n) * size, ELEMENT);
    void *moved = check_bytes((size_t)(3 * n) * size, ELEMENT);
    for (int c = 0; c < n; c++)
        for (int i = 0; i < 3; i++) {
            oracle_store(state, dtype, 3 * c + i, p.window[i * p.ld_w + c]);
            p.window[i * p.ld_w + c] = (float)oracle_load(state, dtype, 3 * c + i);
        }
    run_part(kr, &p, y, n, p.x, p.window, 0, 1, 0, n);

    void *alone = check_bytes((size_t)n * size, ELEMENT);
    CALL(kr->conv_update[dtype])(alone, p.x, moved, state, p.weight, p.bias, p.ld_w, p.silu, n);
    check_same("update", alone, y, (size_t)n * size);
    for (int c = 0; c < n; c++)
        for (int i = 0; i < 3; i++)
            if (oracle_load(moved, dtype, 3 * c + i) != (double)p.window[i * p.ld_w + c])
                check_fail("state of channel %d, input %d", c, i);

    /* The same bits in place. */
    void *xy = check_copy(p.x, (size_t)n * size, ELEMENT);
    CALL(kr->conv_update[dtype])(xy, xy, state, state, p.weight, p.bias, p.ld_w, p.silu, n);
    check_same("update, in place", xy, y, (size_t)n * size);
    check_same("state, in place", state, moved, (size_t)(3 * n) * size);
}

static void bench(const struct gdn_kernels *kr, int dtype)
{
    check_case("dtype %d, W 4, n 256, T 16, SiLU", dtype);
    struct problem p = make(dtype, 4, 256, 16);
    void *y = check_bytes(row_bytes(&p, 16, p.ld_y), ELEMENT);
    p.silu = true;
    for (int i = 0; i < 15 * p.ld_x + 256; i++) oracle_store(p.x, dtype, i, check_uniform(-2, 2));
    CHECK_BENCH(2 * 16 * 256 * gdn_dtype_bytes(dtype), 2.0 * 4 * 256 * 16,
                run_part(kr, &p, y, p.ld_y, p.x, p.window, 0, 16, 0, 256));
}

void check_conv(const struct gdn_kernels *kr)
{
    static const int widths[] = { 1, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100 };
    static const int lengths[] = { 1, 2, 3, 5, 7, 17, 40 };
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int W = 2; W <= GDN_MAX_TAPS; W += W < 5 ? 1 : W < 8 ? 3 : 8)
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
                for (size_t t = 0; t < sizeof lengths / sizeof *lengths; t++) {
                    check_case("dtype %d, W %d, n %d, T %d", dtype, W, widths[i], lengths[t]);
                    check_one(kr, dtype, W, widths[i], lengths[t]);
                }
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++) bench(kr, dtype);
}

void check_conv_update(const struct gdn_kernels *kr)
{
    for (int dtype = 0; dtype < GDN_N_FLOAT_DTYPES; dtype++)
        for (int n = 1; n <= 70; n++) {
            check_case("dtype %d, n %d", dtype, n);
            check_one_update(kr, dtype, n);
        }
}
