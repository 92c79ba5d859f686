/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_self_test(): passes on every instruction set, whoever's threads; finds every inner loop
 * that is a little wrong in one element; takes its memory from the hooks.
 */
#include <stdio.h>
#include <string.h>

#include "core/ctx.h"
#include "core/os/os.h"
#include "cpu/loops/kernels.h"
#include "ring2.h"

/* ---- Loops that are wrong ------------------------------------------------------------------ */

static const struct gdn_kernels *good;

/* A fault so small that the results look right. */
static float off(float x) { return x * 1.01f + 0.001f; }

#define EACH_DTYPE(X) X(0) X(1) X(2)

#define BAD_OF_DTYPE(d)                                                                            \
    static void load_row_##d(float *dst, const void *src, size_t n)                                \
    {                                                                                              \
        good->load_row[d](dst, src, n);                                                            \
        dst[n - 1] = off(dst[n - 1]);                                                              \
    }                                                                                              \
    static void store_row_##d(void *dst, const float *src, size_t n)                               \
    {                                                                                              \
        float copy[4096];                                                                          \
        memcpy(copy, src, n * sizeof *copy);                                                       \
        copy[n - 1] = off(copy[n - 1]);                                                            \
        good->store_row[d](dst, copy, n);                                                          \
    }                                                                                              \
    static void recur_vk_##d(const struct gdn_recur *step)                                         \
    {                                                                                              \
        good->recur_vk[d](step);                                                                   \
        if (step->o) step->o[step->n - 1] = off(step->o[step->n - 1]);                             \
    }                                                                                              \
    static void recur_kv_##d(const struct gdn_recur *step)                                         \
    {                                                                                              \
        good->recur_kv[d](step);                                                                   \
        if (step->o) step->o[step->n - 1] = off(step->o[step->n - 1]);                             \
    }                                                                                              \
    static void conv_##d(void *y, ptrdiff_t ld_y, const void *x, ptrdiff_t ld_x, float *window,    \
                         const float *weight, const float *bias, ptrdiff_t ld_w, int W, bool silu, \
                         int64_t T, int n)                                                         \
    {                                                                                              \
        float wrong[4096];                                                                         \
        memcpy(wrong, weight, (size_t)((W - 1) * ld_w + n) * sizeof *wrong);                       \
        wrong[n - 1] = off(wrong[n - 1]);                                                          \
        good->conv[d](y, ld_y, x, ld_x, window, wrong, bias, ld_w, W, silu, T, n);                 \
    }
EACH_DTYPE(BAD_OF_DTYPE)

static float bad_dot(const float *a, const float *b, size_t n) { return off(good->dot(a, b, n)); }

static void bad_norm_row(float *y, const float *x, float s, const float *w, const float *z,
                         bool sigmoid, size_t n)
{
    good->norm_row(y, x, s, w, z, sigmoid, n);
    y[n - 1] = off(y[n - 1]);
}

static void bad_exp_row(float *y, const float *x, size_t n)
{
    good->exp_row(y, x, n);
    y[n - 1] = off(y[n - 1]);
}

static void bad_sigmoid_row(float *y, const float *x, float m, size_t n)
{
    good->sigmoid_row(y, x, m, n);
    y[n - 1] = off(y[n - 1]);
}

static void bad_gate_row(float *g, const float *a, const float *neg_exp_A, const float *dt,
                         size_t n)
{
    good->gate_row(g, a, neg_exp_A, dt, n);
    g[n - 1] = off(g[n - 1]);
}

static void bad_transpose(float *b, ptrdiff_t ldb, const float *a, ptrdiff_t lda, int rows,
                          int cols)
{
    good->transpose(b, ldb, a, lda, rows, cols);
    b[(cols - 1) * ldb + rows - 1] = off(b[(cols - 1) * ldb + rows - 1]);
}

static void bad_strip_mul(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                          ptrdiff_t ldw, int rows, int K, int width, const float *keep)
{
    good->strip_mul(p, ldp, a, lda, w, ldw, rows, K, width, keep);
    p[(rows - 1) * ldp] = off(p[(rows - 1) * ldp]);
}

static void bad_chunk_gates(float *A, float *B, float *from_start, float *to_end, const float *g,
                            const float *beta, const float *gram)
{
    good->chunk_gates(A, B, from_start, to_end, g, beta, gram);
    B[16 * 7] = off(B[16 * 7]);
}

static void bad_chunk_solve(float *o, ptrdiff_t ld_o, float *w, const float *p, const float *v,
                            ptrdiff_t ld_v, const float *A, const float *B, const float *from_start,
                            const float *to_end, const float *beta)
{
    good->chunk_solve(o, ld_o, w, p, v, ld_v, A, B, from_start, to_end, beta);
    w[0] = off(w[0]);
}

static void bad_chunk_update(float *to, const float *from, ptrdiff_t ld, float decay,
                             const float *k, ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w, int T,
                             int K)
{
    good->chunk_update(to, from, ld, decay, k, ld_k, w, ld_w, T, K);
    to[0] = off(to[0]);
}

static void bad_channel_update(float *to, const float *from, ptrdiff_t ld, const float *decay,
                               const float *k, ptrdiff_t ld_k, const float *w, ptrdiff_t ld_w,
                               int T, int K)
{
    good->channel_update(to, from, ld, decay, k, ld_k, w, ld_w, T, K);
    to[(K - 1) * ld] = off(to[(K - 1) * ld]);
}

static void bad_channel_walk(float *A, float *B, float *y, const float *a, const float *e,
                             const float *q, const float *k, ptrdiff_t ld, int K)
{
    good->channel_walk(A, B, y, a, e, q, k, ld, K);
    A[16 * 7] = off(A[16 * 7]);
}

static void bad_channel_scale(float *to_e, float *to_q, float *decay, const float *a,
                              const float *e, const float *q, ptrdiff_t ld, int K)
{
    good->channel_scale(to_e, to_q, decay, a, e, q, ld, K);
    decay[K - 1] = off(decay[K - 1]);
}

/* ---- Each of them in turn ------------------------------------------------------------------ */

/* A copy of the table with one slot replaced; false: there is no slot i. The loops of the
 * projections, gemm_nt and gemv, belong to gdn_block alone, chunk_write, chunk_return,
 * slope_row and conv_sums to gradients alone. A wrong decay_kind costs time alone, if no decay is
 * 0: none of these is of the self-test. */
static bool plant(struct gdn_kernels *bad, int i, const char **name)
{
    *bad = *good;
    *name = "";
#define PLANT(slot, f) \
    if (i-- == 0) {    \
        bad->slot = f; \
        *name = #slot; \
        return true;   \
    }
#define PLANT_DTYPE(d)                 \
    PLANT(load_row[d], load_row_##d)   \
    PLANT(store_row[d], store_row_##d) \
    PLANT(recur_vk[d], recur_vk_##d)   \
    PLANT(recur_kv[d], recur_kv_##d)   \
    PLANT(conv[d], conv_##d)
    EACH_DTYPE(PLANT_DTYPE)
    PLANT(dot, bad_dot)
    PLANT(norm_row, bad_norm_row)
    PLANT(exp_row, bad_exp_row)
    PLANT(sigmoid_row, bad_sigmoid_row)
    PLANT(gate_row, bad_gate_row)
    PLANT(transpose, bad_transpose)
    PLANT(strip_mul, bad_strip_mul)
    PLANT(chunk_gates, bad_chunk_gates)
    PLANT(chunk_solve, bad_chunk_solve)
    PLANT(chunk_update, bad_chunk_update)
    PLANT(channel_update, bad_channel_update)
    PLANT(channel_walk, bad_channel_walk)
    PLANT(channel_scale, bad_channel_scale)
    return false;
}

static void finds_each_wrong_loop(void)
{
    const char *name;
    struct gdn_kernels bad;
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++) {
        gdn_options o = gdn_options_init();
        gdn_ctx *ctx = NULL;
        if ((*t)->needs & ~gdn_cpu_detect()) continue;
        o.n_threads = 1;
        ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
        good = *t;
        for (int i = 0; plant(&bad, i, &name); i++) {
            ctx->kr = &bad;
            CHECK(gdn_self_test(ctx) == GDN_E_SELF_TEST, "%s: a wrong %s was not found", good->name,
                  name);
            CHECK(strstr(gdn_last_error(ctx), "element") && strstr(gdn_last_error(ctx), "wanted"),
                  "text \"%s\"", gdn_last_error(ctx));
            ctx->kr = good;
            ring2_status(ctx, "the right loops again", gdn_self_test(ctx), GDN_OK);
        }
        gdn_ctx_destroy(ctx);
    }
}

/* ---- What it needs ------------------------------------------------------------------------- */

static void in_turn(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) work(arg, i, (int32_t)(i % 3));
}

static void passes(void)
{
    for (int n = 1; n <= 4; n++)
        ring2_status(ring2_ctx(n), "n", gdn_self_test(ring2_ctx(n)), GDN_OK);
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    o.n_threads = 3;
    o.parallel_for = in_turn;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    ring2_status(ctx, "lent threads", gdn_self_test(ctx), GDN_OK);
    gdn_ctx_destroy(ctx);
    CHECK(gdn_self_test(NULL) == GDN_E_ARG, "no context");
}

static void *take(void *taken, size_t bytes, size_t align)
{
    *(size_t *)taken += bytes;
    return gdn_os_alloc(bytes, align);
}

static void give(void *taken, void *memory)
{
    (void)taken;
    gdn_os_free(memory);
}

/* As gdn.h says. */
static void memory_is_bounded(void)
{
    for (int n = 1; n <= 8; n *= 2) {
        size_t taken = 0;
        gdn_options o = gdn_options_init();
        gdn_ctx *ctx = NULL;
        o.n_threads = n, o.alloc = take, o.release = give, o.alloc_user = &taken;
        ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
        taken = 0;
        ring2_status(ctx, "self-test", gdn_self_test(ctx), GDN_OK);
        CHECK(taken > 0 && taken <= 271000 + 230000 * (size_t)n, "%d threads: %zu bytes", n, taken);
        gdn_ctx_destroy(ctx);
    }
}

static void call(void *arg) { *(gdn_status *)arg = gdn_self_test(ring2_ctx(2)); }

static void float_environments(void)
{
    gdn_status status = GDN_OK;
    for (int i = 0; ring2_float_mode(i, call, &status); i++)
        ring2_status(ring2_ctx(2), "mode", status, GDN_OK);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "self-test: passes", passes },
        { "self-test: memory", memory_is_bounded },
        { "self-test: finds each wrong loop", finds_each_wrong_loop },
        { "self-test: G12 any float environment", float_environments },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
