/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill by the kernels of portable/run.cuh: which calls they take, their workspace,
 * launches. */
#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/portable/plan.h"

enum { CHUNK = GDN_PORTABLE_CHUNK, COLUMNS = 16, BLOCKS_AT_ONCE = 4 };

/* The kernels of a dtype. */
struct form {
    enum gdn_kernel_id chunks, scan64, scan128, segments;
};
static const struct form *form_of(int dtype)
{
#define FORM(io)                                                                        \
    {                                                                                   \
        GDN_CU_prefill_portable_chunks_##io, GDN_CU_prefill_portable_scan64_##io,       \
            GDN_CU_prefill_portable_scan128_##io, GDN_CU_prefill_portable_segments_##io \
    }
    static const struct form bf16 = FORM(BF16), f16 = FORM(F16);
    return dtype == GDN_BF16 ? &bf16 : &f16;
}

const char *gdn_cuda_prefill_portable_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    if (gdn_cuda_is_off(ctx, GDN_CUDA_PORTABLE_PREFILL)) return "it is switched off";
    if (r->q.dtype == GDN_F32) return "q, k and v are float32";
    if (r->K > GDN_PORTABLE_DEEP) return "K is above 128";
    if (!gdn_cuda_portable_blocks(ctx, r, 1, COLUMNS).shared)
        return "a block has too little shared memory";
    return NULL;
}

/* ---- The workspace --------------------------------------------------------------------------- */

/* Returns the most chunks by number, see first_number(). */
static int64_t count_chunks(const struct gdn_cu_batch *b)
{
    if (b->padded) return b->B * ((b->T + CHUNK - 1) / CHUNK);
    return b->B ? b->N / CHUNK + b->B + 1 : 0;
}

static size_t lay_out(const struct gdn_cu_rule *r, const struct gdn_portable_cut *c,
                      struct gdn_cu_prefill_portable *p, char *memory)
{
    const size_t n = (size_t)count_chunks(&r->batch), K = (size_t)r->K;
    const size_t maps = (size_t)(c->units * r->H), row = (K + 7) / 8 * 16;
    const bool scales = r->q.dtype == GDN_F16 && r->norm != GDN_NO_NORM;
    char *records, *keys, *states, *M, *marks;
    const struct gdn_room rooms[] = {
        { &records, n * (size_t)r->H * GDN_PORTABLE_RECORD },
        { &keys, scales ? n * (size_t)r->Hk * CHUNK * row : 0 },
        { &states, maps * K * (size_t)r->V * sizeof(float) },
        { &M, maps * K * K * sizeof(float) },
        { &marks, maps * 2 * sizeof(uint32_t) },
    };
    const size_t bytes = gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (!memory) return bytes;
    p->records = records;
    p->keys = scales ? keys : NULL;
    p->cut = (struct gdn_cu_segments){ .whole = c->units ? c->first : INT64_MAX,
                                       .first = c->first,
                                       .each = c->each,
                                       .start = c->first,
                                       .states = (void *)states,
                                       .M = (void *)M,
                                       .marks = (void *)marks,
                                       .units = (int32_t)c->units };
    return bytes;
}

void gdn_cuda_prefill_portable_plan(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                    struct gdn_cuda_chunks *how)
{
    how->cut.portable = gdn_cuda_portable_cut(ctx, r, how->options);
    how->bytes = lay_out(r, &how->cut.portable, NULL, NULL);
}

/* ---- A call ---------------------------------------------------------------------------------- */

static gdn_status launch(gdn_ctx *ctx, enum gdn_kernel_id kernel, int64_t n_blocks, int n_threads,
                         size_t shared, const struct gdn_cu_prefill_portable *p,
                         struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { n_blocks, 1, 1 },
        .n_threads = n_threads,
        .shared_bytes = shared,
        .stream = stream,
        .args = p,
    };
    gdn_cuda_ran_add(ran, kernel);
    return gdn_cuda_launch(ctx, &call);
}

/* Launches `chunks`. State heads that read the same key and query share products in a block, but
 * only as many as leave blocks for all multiprocessors. */
static gdn_status launch_chunks(gdn_ctx *ctx, struct gdn_cu_prefill_portable *p,
                                struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_rule *r = &p->rule;
    const int readers = r->Hq == r->Hk ? r->H / r->Hk : 1;
    const int64_t n = count_chunks(&r->batch), wanted = BLOCKS_AT_ONCE * ctx->cuda->sm_count;
    int each = readers;
    while (each > 1 && n * (r->H / readers) * ((readers + each - 1) / each) < wanted) each--;
    p->n_each = each;
    p->n_groups = r->H / readers * ((readers + each - 1) / each);
    return launch(ctx, form_of(r->q.dtype)->chunks, n * p->n_groups, 0, GDN_CU_CHUNKS_BYTES, p, ran,
                  stream);
}

/* Launches walks through n sequences or segments, and after them through n_maps maps. has_rest:
 * also through the tokens after the last sequence, which take no time. */
static gdn_status launch_scan(gdn_ctx *ctx, struct gdn_cu_prefill_portable *p, int64_t n,
                              bool has_rest, int64_t n_maps, struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_rule *r = &p->rule;
    const struct form *f = form_of(r->q.dtype);
    const struct gdn_portable_blocks b =
        gdn_cuda_portable_blocks(ctx, r, (n_maps ? n_maps : n) * r->H, n_maps ? r->V + r->K : r->V);
    const int columns = COLUMNS * b.n_state;
    p->n_state = b.n_state;
    p->n_stages = b.n_stages;
    p->n_queries = b.n_queries;
    p->n_slices = (r->V + columns - 1) / columns;
    p->n_map_slices = (r->K + columns - 1) / columns;
    return launch(ctx, r->K <= 64 ? f->scan64 : f->scan128,
                  ((n + has_rest) * p->n_slices + n_maps * (p->n_slices + p->n_map_slices)) * r->H,
                  32 * (GDN_PORTABLE_LOAD_WARPS + 3 * b.n_state), b.shared, p, ran, stream);
}

static void log_cut(gdn_ctx *ctx, const struct gdn_portable_cut *c)
{
    struct gdn_cuda_cut *logged = &ctx->cuda->sm90->logged;
    char line[120];
    if (logged->first == c->first && logged->each == c->each && logged->units == c->units) return;
    snprintf(line, sizeof line, "prefill: segments of %lld tokens, then of %lld, at most %lld",
             (long long)c->first, (long long)c->each, (long long)c->units);
    gdn_log_line(ctx, line);
    *logged = (struct gdn_cuda_cut){ .first = c->first, .each = c->each, .units = c->units };
}

gdn_status gdn_cuda_prefill_portable(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                     const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                     void *stream)
{
    const struct gdn_cu_batch *b = &r->batch;
    const struct gdn_portable_cut c = how->cut.portable;
    struct gdn_cu_prefill_portable p = { .rule = *r, .by_number = how->by_number };
    p.q_wide = gdn_cuda_rows_wide(&r->q);
    p.k_wide = gdn_cuda_rows_wide(&r->k);
    p.v_wide = gdn_cuda_rows_wide(&r->v);
    p.out_wide = gdn_cuda_rows_wide(&r->out);
    lay_out(r, &c, &p, how->memory);
    TRY(launch_chunks(ctx, &p, ran, stream));
    TRY(launch_scan(ctx, &p, b->B, r->out.data && b->cu_seqlens.data, c.units, ran, stream));
    if (!c.units) return GDN_OK;
    log_cut(ctx, &c);
    TRY(launch(ctx, form_of(r->q.dtype)->segments, r->V / GDN_SEGMENT_COLUMNS * r->H * c.several, 0,
               0, &p, ran, stream));
    p.cut.later = true;
    return launch_scan(ctx, &p, c.units, false, 0, ran, stream);
}
