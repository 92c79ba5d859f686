/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of all stages of the chunked form, on one set of inputs. */
#ifndef STAGES_CALL_H
#define STAGES_CALL_H

#include <math.h>

#include "gdn_research.h"
#include "oracle.h"
#include "ring2.h"

enum { MAX_C = 64 };

/* One set of inputs and outputs for all stages. */
struct stages {
    gdn_batch batch;
    int64_t B, N, first[5], T[5], valid[5]; /* sequences: tokens first .. first + T */
    int64_t NC, chunk[6];
    int C, Hq, Hk, Hv, H, K, V, map, layout;
    bool padded;
    gdn_tensor q, k, v, g, beta, u, w, t, state, states, state_out, out;
};

/* ---- Making ---- */

static inline gdn_tensor rows(const struct stages *s, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = D && ring2_below(2) ? 5 : 0;
    const int ndim = D ? 3 : 2;
    if (!s->padded) return ring2_new(dtype, gap, ndim, s->N, n, D, 0);
    return ring2_new(dtype, gap, ndim + 1, s->B, s->N / s->B, n, D);
}

static inline void make_batch(struct stages *s, int number)
{
    static const int64_t lengths[3][4] = { { 40, 0, 70, 17 }, { 1, 64, 16, 33 }, { 0, 131, 0, 5 } };
    int64_t cu[5] = { 0 };
    s->batch = gdn_batch_init();
    s->padded = number % 4 == 3;
    s->B = 4;
    for (int b = 0; b < 4; b++) {
        s->T[b] = s->padded ? 40 : lengths[number % 3][b];
        s->first[b] = s->N;
        s->N += s->T[b];
        cu[b + 1] = s->N;
        s->valid[b] = number % 4 == 2 ? ring2_below(s->T[b] + 1) : s->T[b];
        s->chunk[b + 1] = s->chunk[b] + (s->T[b] + s->C - 1) / s->C;
    }
    s->NC = s->chunk[4];
    if (!s->padded) s->N += 3, s->batch.cu_seqlens = ring2_indices(GDN_I64, 5, cu);
    if (number % 4 == 2) s->batch.token_count = ring2_indices(GDN_I32, 4, s->valid);
}

static inline gdn_tensor pool(const struct stages *s, int32_t dtype, int64_t P)
{
    const bool swapped = ring2_below(2), kv = s->layout == GDN_STATE_KV;
    const gdn_tensor t =
        ring2_turned(swapped, dtype, 3, 4, P, s->H, kv ? s->K : s->V, kv ? s->V : s->K);
    ring2_fill(&t, -1, 1);
    return t;
}

static inline void fill_unit(const gdn_tensor *k)
{
    const int64_t K = k->size[k->ndim - 1];
    double *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = ring2_uniform(-1, 1);
        oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

static inline void make_gates(struct stages *s, int gates)
{
    for (int64_t i = 0; i < ring2_count(&s->g); i++) {
        double g = gates == 1 ? ring2_uniform(-8, -7) : ring2_uniform(-0.1, 0);
        if (gates == 2 && ring2_below(9) == 0) g = -(double)INFINITY;
        ring2_set(&s->g, i, g);
    }
    for (int64_t i = 0; i < ring2_count(&s->beta); i++)
        ring2_set(&s->beta, i, ring2_below(6) ? ring2_uniform(0, gates ? 1 : 2) : 0);
}

/* exact: all of float32. */
static inline void make_stages(struct stages *s, int number, int C, bool exact)
{
    static const int heads[5][3] = {
        { 1, 1, 1 }, { 4, 2, 4 }, { 6, 2, 2 }, { 2, 2, 4 }, { 3, 3, 3 }
    };
    enum { N_DIMS = 8 };
    static const int dims[N_DIMS][2] = { { 16, 16 },  { 1, 3 },    { 33, 7 },   { 20, 65 },
                                         { 128, 40 }, { 60, 100 }, { 12, 512 }, { 7, 1000 } };
    const int *h = heads[number % 5];
    const int32_t a = exact ? GDN_F32 : number % 3, b = exact ? GDN_F32 : number / 2 % 3;
    *s = (struct stages){ .C = C, .Hq = h[0], .Hk = h[1], .Hv = h[2], .map = number % 2 };
    s->H = h[0] > h[2] ? h[0] : h[2];
    s->K = dims[number % N_DIMS][0], s->V = dims[number % N_DIMS][1], s->layout = number / 3 % 2;
    make_batch(s, number);
    s->q = rows(s, a, s->Hq, s->K), s->k = rows(s, a, s->Hk, s->K), s->v = rows(s, b, s->Hv, s->V);
    s->g = rows(s, GDN_F32, s->H, 0), s->beta = rows(s, b, s->H, 0);
    s->u = rows(s, b, s->H, s->V), s->w = rows(s, b, s->H, s->K);
    s->t = rows(s, number % 2 ? GDN_F32 : b, s->H, C), s->out = rows(s, a, s->H, s->V);
    s->state = pool(s, b, 4), s->states = pool(s, GDN_F32, s->NC + number % 2);
    s->state_out = pool(s, GDN_F32, 4);
    fill_unit(&s->q), fill_unit(&s->k);
    ring2_fill(&s->v, -1, 1);
    make_gates(s, number % 3);
    if (number % 7 == 4) s->g.data = NULL;
    if (number % 7 == 5) s->beta.data = NULL;
}

/* ---- Calls ---- */

static inline gdn_chunk_uw_args uw_args(const struct stages *s)
{
    gdn_chunk_uw_args a = gdn_chunk_uw_args_init();
    a.k = s->k, a.v = s->v, a.g = s->g, a.beta = s->beta, a.u = s->u, a.w = s->w, a.T = s->t;
    a.batch = &s->batch, a.head_map = s->map, a.chunk_size = s->C;
    return a;
}

static inline gdn_chunk_states_args states_args(const struct stages *s)
{
    gdn_chunk_states_args a = gdn_chunk_states_args_init();
    a.k = s->k, a.u = s->u, a.w = s->w, a.g = s->g;
    a.state = s->state, a.states = s->states, a.state_out = s->state_out;
    a.batch = &s->batch, a.head_map = s->map, a.state_layout = s->layout, a.chunk_size = s->C;
    return a;
}

static inline gdn_chunk_output_args output_args(const struct stages *s)
{
    gdn_chunk_output_args a = gdn_chunk_output_args_init();
    a.q = s->q, a.k = s->k, a.u = s->u, a.w = s->w, a.g = s->g, a.states = s->states;
    a.out = s->out, a.batch = &s->batch;
    a.head_map = s->map, a.state_layout = s->layout, a.chunk_size = s->C;
    return a;
}

static inline gdn_chunk_cumsum_args cumsum_args(const struct stages *s, const gdn_tensor *out,
                                                int C)
{
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    a.g = s->g, a.out = *out, a.batch = &s->batch, a.chunk_size = C;
    return a;
}

/* The call in memory that is watched, with a workspace of exactly the bytes asked for. */
static inline void run(gdn_ctx *ctx, gdn_op op, const void *args, void *const *workspace,
                       size_t *workspace_bytes, const gdn_tensor *const *written, int n, int64_t B)
{
    const size_t most = (size_t)gdn_n_threads(ctx) * (512 << 10) + 320 * (size_t)B;
    size_t bytes = 0;
    ring2_status(ctx, "supported", gdn_supported(ctx, op, args), GDN_OK);
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, op, args, &bytes), GDN_OK);
    CHECK(bytes <= (op == GDN_OP_CHUNK_CUMSUM ? 320 * (size_t)B + 128 : most), "%zu bytes", bytes);
    *(void **)(uintptr_t)workspace = ring2_alloc((bytes + 63) / 64 * 64, 64);
    *workspace_bytes = bytes;
    ring2_call_begin();
    for (int i = 0; i < n; i++) ring2_may_write(written[i]);
    ring2_may_write_bytes(*workspace, bytes);
    ring2_status(ctx, "the call", gdn_run_op(ctx, op, args), GDN_OK);
    ring2_call_end();
}

#define RUN(ctx, op, a, B, ...)                              \
    run(ctx, op, &(a), &(a).workspace, &(a).workspace_bytes, \
        (const gdn_tensor *const[]){ __VA_ARGS__ },          \
        (int)(sizeof((const gdn_tensor *const[]){ __VA_ARGS__ }) / sizeof(gdn_tensor *)), B)

/* The head of a tensor with n heads that state head h reads. */
static inline int source(const struct stages *s, int h, int n)
{
    return s->map == GDN_HEADS_GROUPED ? h / (s->H / n) : h % n;
}

#endif
