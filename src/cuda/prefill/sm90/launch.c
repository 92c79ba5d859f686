/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of gdn_prefill the kernels of kernel.cuh take: those whose rows a tensor map
 * can describe, whatever the batch holds. Which it is follows from dtypes, head sizes and alignment
 * alone, so that the guarantees about bits hold across calls.
 */
#include <stdio.h>
#include <string.h>

#include "core/tensor_check.h"
#include "cuda/decode/decode.h"
#include "cuda/prefill/forms.h"

enum { SHARED = 232448, TILE = 64, COLUMNS = 2 * TILE };

/* CLUSTER: whole sequences in clusters; PART: segments in clusters; WIDE: wide blocks; EACH: wide
 * blocks of sequences of one chunk; SMALL: blocks of small heads; SUMMARY: M and U of segments;
 * DEEP: K above 128, n_blocks for every 128 columns. CLUSTER, PART, WIDE, EACH and SMALL give the
 * same bits. */
enum form { CLUSTER, PART, WIDE, EACH, SMALL, SUMMARY, DEEP };
static const struct {
    int n_blocks; /* of a sequence and head */
    enum gdn_kernel_id bf16, f16;
} forms[] = {
    [CLUSTER] = { 2, GDN_CU_prefill_sm90_cluster_BF16, GDN_CU_prefill_sm90_cluster_F16 },
    [PART] = { 2, GDN_CU_prefill_sm90_cluster_segment_BF16,
               GDN_CU_prefill_sm90_cluster_segment_F16 },
    [WIDE] = { 1, GDN_CU_prefill_sm90_wide_BF16, GDN_CU_prefill_sm90_wide_F16 },
    [EACH] = { 1, GDN_CU_prefill_sm90_each_BF16, GDN_CU_prefill_sm90_each_F16 },
    [SMALL] = { 1, GDN_CU_prefill_sm90_k64_BF16, GDN_CU_prefill_sm90_k64_F16 },
    [SUMMARY] = { 2, GDN_CU_prefill_sm90_summary_BF16, GDN_CU_prefill_sm90_summary_F16 },
    [DEEP] = { 2, GDN_CU_prefill_sm90_k256_BF16, GDN_CU_prefill_sm90_k256_F16 },
};

static enum gdn_kernel_id kernel_of(enum form f, int dtype)
{
    return dtype == GDN_BF16 ? forms[f].bf16 : forms[f].f16;
}

static bool is_small(const struct gdn_cu_rule *r) { return r->K <= TILE && r->V <= TILE; }
static bool is_deep(const struct gdn_cu_rule *r) { return r->K > 2 * TILE; }

const char *gdn_cuda_prefill_sm90_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    _Static_assert(GDN_MAX_HEAD <= 4 * TILE, "keys of any size");
    if (r->q.dtype == GDN_F32) return "q, k and v are float32";
    if (!gdn_cuda_has_kernel(ctx, kernel_of(CLUSTER, r->q.dtype))) return "no code for sm_90a runs";
    if (ctx->cuda->shared_most < SHARED) return "a block has too little shared memory";
    if (r->K % 8 || r->V % 8) return "K or V is not a multiple of 8";
    if (b->N < 1) return "there are no tokens";
    if (b->N > INT32_MAX - TILE) return "there are 2^31 tokens or more";
    if (!gdn_cuda_is_mapped(&r->q, b, r->Hq) || !gdn_cuda_is_mapped(&r->k, b, r->Hk) ||
        !gdn_cuda_is_mapped(&r->v, b, r->Hv) || !gdn_cuda_is_mapped(&r->out, b, r->H))
        return "q, k, v or out is not aligned to 16 bytes";
    return NULL;
}

/* Returns true if summaries may stop early. The length of keys that the call does not normalise is
 * unknown. */
static bool may_stop(const struct gdn_cu_rule *r, struct gdn_cuda_cut_options options)
{
    return r->norm != GDN_NO_NORM && !options.every_token;
}

/* Returns the cut of the whole call. Larger heads have no segments. Layers of a model make the same
 * call, and a cut takes up to 18 times the rest of the plan (docs/gpu/hopper-prefill.md, "The
 * planner"). So the context keeps the cut of the last shape. */
static struct gdn_cuda_cut find_cut(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                    struct gdn_cuda_cut_options options)
{
    const struct gdn_cu_batch *b = &r->batch;
    struct gdn_cuda_sm90 *c = ctx->cuda->sm90;
    const struct gdn_cuda_shape s = {
        b, r->H, options.longest, is_small(r), may_stop(r, options), ctx->cuda->sm_count
    };
    const struct gdn_cuda_cut *wanted = &gdn_cuda_wanted(ctx)->cut;
    const uint64_t of[] = { (uint64_t)b->B,
                            (uint64_t)b->T,
                            (uint64_t)b->N,
                            (uint64_t)b->padded,
                            (uint64_t)r->H,
                            (uint64_t)options.longest,
                            s.small,
                            s.stops,
                            (uint64_t)s.sm_count };
    _Static_assert(sizeof of == sizeof c->planned.of, "all that a plan depends on");
    if (options.whole || is_deep(r)) return gdn_cuda_no_cut(&s);
    if (wanted->first) return gdn_cuda_cut_like(&s, wanted);
    if (!gdn_cuda_is_key(c->planned.of, of, sizeof of / sizeof *of)) {
        c->planned.cut = gdn_cuda_find_cut(&s);
        memcpy(c->planned.of, of, sizeof of);
    }
    return c->planned.cut;
}

/* Lays out the memory that segments need. */
static size_t lay_out(const struct gdn_cu_rule *r, const struct gdn_cuda_cut *c,
                      struct gdn_cu_prefill_sm90 *p, char *memory)
{
    const size_t n = (size_t)(c->units * r->H), K = (size_t)r->K;
    const size_t V = r->V < COLUMNS ? (size_t)r->V : COLUMNS; /* slices, one after the other */
    char *states, *M, *marks, *plan;
    const struct gdn_room rooms[] = { { &states, n * K * V * sizeof(float) },
                                      { &M, n * K * K * sizeof(float) },
                                      { &marks, n * 2 * sizeof(uint32_t) },
                                      { &plan, c->planned ? sizeof(struct gdn_cu_plan) : 0 } };
    const size_t bytes = gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (!memory) return c->units || c->planned ? bytes : 0;
    p->cut = (struct gdn_cu_segments){
        .states = (void *)states, .M = (void *)M, .marks = (void *)marks, .units = (int32_t)c->units
    };
    if (c->planned) p->plan = (void *)plan;
    return bytes;
}

void gdn_cuda_prefill_sm90_plan(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                struct gdn_cuda_chunks *how)
{
    how->cut.sm90 = find_cut(ctx, r, how->options);
    how->bytes = lay_out(r, &how->cut.sm90, NULL, NULL);
}

static gdn_status launch(gdn_ctx *ctx, enum gdn_kernel_id kernel, int64_t n_blocks,
                         const struct gdn_cu_prefill_sm90 *p, struct gdn_cuda_ran *ran,
                         void *stream)
{
    const bool is_plan = kernel == GDN_CU_prefill_sm90_segments_plan;
    const bool is_step = is_plan || kernel == GDN_CU_prefill_sm90_segments_states;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { n_blocks, 1, 1 },
        .shared_bytes = is_step ? 0 : SHARED,
        .stream = stream,
        .args = p,
        .overlaps = p->cut.later || p->which == GDN_SEQUENCES_SHORT || (p->plan && !is_plan),
    };
    gdn_cuda_ran_add(ran, kernel);
    return gdn_cuda_launch(ctx, &call);
}

/* Logs the segments, unless the call before had the same. */
static void log_cut(gdn_ctx *ctx, const struct gdn_cuda_cut *c)
{
    struct gdn_cuda_cut *logged = &ctx->cuda->sm90->logged;
    char line[120];
    if (c->whole == logged->whole && c->first == logged->first && c->each == logged->each &&
        c->units == logged->units)
        return;
    if (c->planned)
        snprintf(line, sizeof line,
                 "prefill: segments of tokens that a kernel finds, at most %lld, above %lld tokens",
                 (long long)c->units, (long long)c->whole);
    else
        snprintf(line, sizeof line,
                 "prefill: segments of %lld tokens, then of %lld, at most %lld, above %lld tokens",
                 (long long)c->first, (long long)c->each, (long long)c->units, (long long)c->whole);
    gdn_log_line(ctx, line);
    *logged = *c;
}

struct gdn_cu_source gdn_cuda_source_of(const struct gdn_cu_rule *r, int n)
{
    if (r->head_map == GDN_HEADS_GROUPED)
        return (struct gdn_cu_source){ gdn_cuda_inverse(r->H / n), 0 };
    return (struct gdn_cu_source){ gdn_cuda_inverse(n), n };
}

/* Launches first segments and whole sequences: all in one form; or long sequences in clusters, and
 * then the others. */
static gdn_status launch_first(gdn_ctx *ctx, struct gdn_cu_prefill_sm90 *p, enum form form,
                               const struct gdn_cuda_cut *c, int n_slices, struct gdn_cuda_ran *ran,
                               void *stream)
{
    const struct gdn_cu_rule *r = &p->rule;
    const struct gdn_cu_batch *b = &r->batch;
    const int64_t n_rows = b->B + (r->out.data && b->cu_seqlens.data);
    const int64_t n_each = (int64_t)n_slices * r->H;
    if (c->apart) {
        p->which = GDN_SEQUENCES_LONG;
        TRY(launch(ctx, kernel_of(PART, r->q.dtype), forms[PART].n_blocks * n_each * c->n_long, p,
                   ran, stream));
        p->which = GDN_SEQUENCES_SHORT;
    }
    TRY(launch(ctx, kernel_of(form, r->q.dtype), forms[form].n_blocks * n_each * n_rows, p, ran,
               stream));
    p->which = GDN_SEQUENCES_ALL;
    return GDN_OK;
}

static void skip_columns(struct gdn_pool_view *p, int n)
{
    const int64_t step = p->k_first ? 1 : p->ld;
    if (p->data) p->data += n * step * (int64_t)gdn_dtype_bytes(p->dtype);
}

/* Narrows a rule to the columns of V from `first` on, as many as one launch takes. */
static void cut_slice(struct gdn_cu_rule *r, int first)
{
    const size_t bytes = (size_t)first * gdn_dtype_bytes(r->q.dtype);
    r->V = r->V - first < COLUMNS ? r->V - first : COLUMNS;
    r->v.data += bytes;
    if (r->out.data) r->out.data += bytes;
    skip_columns(&r->from, first);
    skip_columns(&r->to, first);
    skip_columns(&r->checkpoints, first);
}

/* Finds heads and maps of q, k, v and out. */
static gdn_status find_maps(gdn_ctx *ctx, int slice, struct gdn_cu_prefill_sm90 *p)
{
    const struct gdn_cu_rule *r = &p->rule;
    const struct gdn_cu_batch *b = &r->batch;
    const int map = GDN_CUDA_MAP_V + 2 * slice;
    p->source_q = gdn_cuda_source_of(r, r->Hq);
    p->source_k = gdn_cuda_source_of(r, r->Hk);
    p->source_v = gdn_cuda_source_of(r, r->Hv);
    TRY(gdn_cuda_find_map(ctx, "q", 0, &r->q, b, r->Hq, r->K, &p->q));
    TRY(gdn_cuda_find_map(ctx, "k", 1, &r->k, b, r->Hk, r->K, &p->k));
    TRY(gdn_cuda_find_map(ctx, "v", map, &r->v, b, r->Hv, r->V, &p->v));
    return gdn_cuda_find_map(ctx, "out", map + 1, &r->out, b, r->H, r->V, &p->out);
}

/* Launches one slice of columns, after `slice` others. Deep heads are not cut into slices. */
static gdn_status run_slice(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                            const struct gdn_cuda_chunks *how, int slice, struct gdn_cuda_ran *ran,
                            void *stream)
{
    const struct gdn_cuda_cut c = how->cut.sm90;
    struct gdn_cu_prefill_sm90 p = { .rule = *rule,
                                     .by_number = how->by_number,
                                     .singles = how->singles,
                                     .early_stop = may_stop(rule, how->options) };
    if (!is_deep(rule)) cut_slice(&p.rule, slice * COLUMNS);
    const struct gdn_cu_rule *r = &p.rule;
    const int dtype = r->q.dtype;
    const enum form later = c.small ? SMALL : c.later_wide || c.planned ? WIDE : PART;
    const enum form first = is_deep(r) ? DEEP
                            : c.small  ? SMALL
                            : c.wide   ? WIDE
                            : c.units  ? PART
                                       : CLUSTER;
    const int n_slices = (r->V + COLUMNS - 1) / COLUMNS; /* of others it is one */
    TRY(find_maps(ctx, slice, &p));
    if (c.units || c.planned) lay_out(r, &c, &p, how->memory);
    if (c.units) log_cut(ctx, &c);
    p.cut.whole = c.units ? c.whole : INT64_MAX;
    p.split = c.apart || c.planned ? c.split : p.cut.whole;
    p.cut.first = c.units ? c.first : INT64_MAX;
    p.cut.start = p.cut.first;
    p.cut.each = c.each;
    p.win = (int16_t)c.win;
    p.sm_count = (int16_t)ctx->cuda->sm_count;
    if (p.plan) TRY(launch(ctx, GDN_CU_prefill_sm90_segments_plan, 1, &p, ran, stream));
    TRY(launch_first(ctx, &p, first, &c, n_slices, ran, stream));
    if (!c.units) return GDN_OK;
    p.cut.later = true;
    if (c.several) {
        TRY(launch(ctx, kernel_of(SUMMARY, dtype), forms[SUMMARY].n_blocks * r->H * c.units, &p,
                   ran, stream));
        TRY(launch(ctx, GDN_CU_prefill_sm90_segments_states,
                   r->V / GDN_SEGMENT_COLUMNS * r->H * c.several, &p, ran, stream));
    }
    if (p.plan && !c.small) /* the plan says which of the two forms takes them */
        TRY(launch(ctx, kernel_of(PART, dtype), forms[PART].n_blocks * r->H * c.units, &p, ran,
                   stream));
    return launch(ctx, kernel_of(later, dtype), forms[later].n_blocks * r->H * c.units, &p, ran,
                  stream);
}

gdn_status gdn_cuda_prefill_sm90(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                 const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                 void *stream)
{
    if (is_deep(r)) return run_slice(ctx, r, how, 0, ran, stream);
    for (int i = 0; i * COLUMNS < r->V; i++) TRY(run_slice(ctx, r, how, i, ran, stream));
    return GDN_OK;
}

/* ---- Sequences of one chunk ------------------------------------------------------------------ */

bool gdn_cuda_prefill_sm90_takes_each(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    return !gdn_cuda_prefill_sm90_why_not(ctx, r) && !is_small(r) && !is_deep(r) &&
           r->V <= COLUMNS && !gdn_cuda_prefill_is_apart(r);
}

/* Returns how many sequences a block has. Its first chunk costs as much as START others. Of the
 * numbers that give as many groups of sequences the least is best, so others are left out. */
static int64_t sequences_of_block(int64_t B, int64_t H, int64_t sm_count)
{
    enum { START = 4 };
    int64_t best = 1, least = INT64_MAX, n = 1;
    while (n <= B) {
        const int64_t groups = (B + n - 1) / n;
        const int64_t cost = (groups * H + sm_count - 1) / sm_count * (n + START);
        if (cost < least) least = cost, best = n;
        n = groups > 1 ? (B + groups - 2) / (groups - 1) : B + 1;
    }
    return best;
}

gdn_status gdn_cuda_prefill_sm90_each(gdn_ctx *ctx, const struct gdn_cu_rule *rule, void *stream)
{
    struct gdn_cu_prefill_sm90 p = { .rule = *rule };
    struct gdn_cuda_ran ran = { .n = 0 };
    struct gdn_cu_batch *b = &p.rule.batch;
    const int64_t wanted = gdn_cuda_wanted(ctx)->open_chunks;
    const int64_t n = wanted ? wanted : sequences_of_block(b->B, rule->H, ctx->cuda->sm_count);
    b->N = TILE * b->B;
    b->padded = 0;
    p.each = (int32_t)n;
    TRY(find_maps(ctx, 0, &p));
    TRY(launch(ctx, kernel_of(EACH, rule->q.dtype), (b->B + n - 1) / n * rule->H, &p, &ran,
               stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}
