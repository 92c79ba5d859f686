/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary on Hopper: which calls the kernels of ranges.cuh and join.cuh take, and how long
 * units are. One cluster for each head does a sequence that is no longer than a unit.
 *
 * The walk to dstate alone (backward.c) has the same units. Each leaves D, and
 *
 *     J <- M^T J + D    from the last unit to the first
 *
 * Where keys are normalised, it begins behind the chunks that may leave anything: stops (left.cuh).
 */
#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/prefill/forms.h"

enum { SHARED = 232448, CHUNK = 64, MOST = 128, CLUSTER = 2, WARP = 32, LEFT_WARPS = 8 };

/* LEAST_CHUNKS: of a unit; FIXED_CHUNKS: of a unit with GDN_BATCH_INVARIANT. MOST_UNITS: of a
 * sequence of mean length; MOST_LONG: of all sequences. */
enum { LEAST_CHUNKS = 8, FIXED_CHUNKS = 128, MOST_UNITS = 64, MOST_LONG = 256 };

/* Nanoseconds. A round of clusters takes START and EACH_CHUNK, or LEFT_OUT if its units are left
 * out. The join takes JOIN_START, and JOIN_EACH for a unit in a round of blocks. LIKELY: if gates
 * may forget, it is four times as likely as not that three in four units are left out. */
enum { START = 20000, EACH_CHUNK = 1500, LEFT_OUT = 30000, JOIN_START = 4000, JOIN_EACH = 3300 };
enum { LIKELY = 4 };

/* Nanoseconds of a chunk of a walk back: of a block with 64 columns of a head, and with all. */
enum { WALK_HALF = 1500, WALK_WHOLE = 2300 };

static enum gdn_kernel_id kernel_of(int dtype)
{
    return dtype == GDN_BF16 ? GDN_CU_prefill_sm90_summary_BF16 : GDN_CU_prefill_sm90_summary_F16;
}

const char *gdn_cuda_summary_sm90_why_not(const gdn_ctx *ctx, const struct gdn_cuda_summary *s)
{
    const struct gdn_cu_rule *r = &s->rule;
    const struct gdn_cu_batch *b = &r->batch;
    if (r->k.dtype == GDN_F32) return "k is float32";
    if (r->v.data && r->v.dtype != r->k.dtype) return "k and v have two dtypes";
    if (!gdn_cuda_has_kernel(ctx, kernel_of(r->k.dtype))) return "no code for sm_90a runs";
    if (ctx->cuda->shared_most < SHARED) return "a block has too little shared memory";
    if (r->K > MOST || r->V > MOST) return "K or V is above 128";
    if (r->K % 8 || r->V % 8) return "K or V is not a multiple of 8";
    if (b->N < 1) return "there are no tokens";
    if (b->N > INT32_MAX - CHUNK) return "there are 2^31 tokens or more";
    if (!gdn_cuda_is_mapped(&r->k, b, r->Hk) || !gdn_cuda_is_mapped(&r->v, b, r->Hv))
        return "k or v is not aligned to 16 bytes";
    return NULL;
}

/* ---- Units --------------------------------------------------------------------------------- */

static int64_t n_tokens(const struct gdn_cu_batch *b) { return b->padded ? b->B * b->T : b->N; }

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

/* Returns true if the call may stop early, which needs keys of known length. */
static bool may_stop(const struct gdn_cuda_summary *s)
{
    return s->rule.norm != GDN_NO_NORM && !s->every_token;
}

static int n_slices(const struct gdn_cuda_summary *s)
{
    const int n_U = (int)divide_up(s->rule.to.data ? s->rule.V : 0, GDN_JOIN_COLUMNS);
    return n_U + (int)divide_up(s->M.data ? s->rule.K : 0, GDN_JOIN_COLUMNS);
}

/* Returns the time of the blocks that walk back through n_units units. */
static int64_t walk_time(int64_t sms, int64_t n_units, int64_t chunks)
{
    if (2 * n_units <= sms) return START + chunks * WALK_HALF;
    return divide_up(n_units, sms) * (START + chunks * WALK_WHOLE);
}

/* Returns the time of n sequences and heads of `units` units of `chunks` chunks each. A walk back
 * needs no M of the last unit. */
static int64_t time_of(const gdn_ctx *ctx, const struct gdn_cuda_summary *s, int64_t n,
                       int64_t units, int64_t chunks)
{
    const int64_t sms = ctx->cuda->sm_count, room = sms > 2 ? sms / 2 : 1;
    const int64_t steps = divide_up(n * n_slices(s), sms) * (units - 1);
    const int64_t maps = s->back ? n * (units - 1) : n * units;
    return (s->back ? walk_time(sms, n * units, chunks) : 0) +
           divide_up(maps, room) * (START + chunks * EACH_CHUNK) +
           (units > 1 ? JOIN_START + steps * JOIN_EACH : 0);
}

/* Returns the chunks of a unit for which sequences of the mean length take least time. */
static int64_t find_chunks(const gdn_ctx *ctx, const struct gdn_cuda_summary *s)
{
    const struct gdn_cu_batch *b = &s->rule.batch;
    const int64_t mean = divide_up(b->padded ? b->T : divide_up(b->N, b->B), CHUNK);
    const int64_t n = b->B * s->rule.H, room = divide_up(ctx->cuda->sm_count, 2);
    int64_t best = mean, least = INT64_MAX;
    for (int64_t units = 1; units <= MOST_UNITS; units++) {
        const int64_t chunks = divide_up(mean, units);
        if (units > 1 && chunks < LEAST_CHUNKS) break;
        const int64_t all = time_of(ctx, s, n, units, chunks);
        const int64_t few =
            time_of(ctx, s, divide_up(n, 4), units, chunks) + n * units * 3 / 4 / room * LEFT_OUT;
        const int64_t time = may_stop(s) ? (all + LIKELY * few) / (1 + LIKELY) : all;
        if (time >= least) continue;
        least = time;
        best = chunks;
    }
    const int64_t floor = divide_up(n_tokens(b), (int64_t)MOST_LONG * CHUNK);
    return best > floor ? best > LEAST_CHUNKS ? best : LEAST_CHUNKS : floor;
}

struct gdn_range_cut gdn_cuda_summary_sm90_cut(const gdn_ctx *ctx, const struct gdn_cuda_summary *s)
{
    const struct gdn_cu_batch *b = &s->rule.batch;
    const struct gdn_cuda_cut *wanted = &gdn_cuda_wanted(ctx)->cut;
    struct gdn_range_cut c = { 0, 0, 0 };
    if (b->B < 1) return c;
    c.each = wanted->first ? wanted->each
                           : CHUNK * (s->batch_invariant ? FIXED_CHUNKS : find_chunks(ctx, s));
    if (b->padded) {
        c.several = b->T > c.each ? b->B : 0;
        c.units = c.several * divide_up(b->T, c.each);
        return c;
    }
    c.several = b->N / (c.each + 1) < b->B ? b->N / (c.each + 1) : b->B;
    c.units = c.several ? (b->N + c.several * (c.each - 1)) / c.each : 0;
    return c;
}

/* Lays out the maps of units, and the sums of left.cuh for the chunks of every sequence. */
static size_t lay_out(const struct gdn_cuda_summary *call, const struct gdn_range_cut *c,
                      struct gdn_cu_segments *s, char *memory)
{
    const struct gdn_cu_rule *r = &call->rule;
    const size_t n = (size_t)(c->units * r->H), K = (size_t)r->K, V = (size_t)r->V;
    const int64_t n_left = may_stop(call) ? n_tokens(&r->batch) / CHUNK + r->batch.B + 1 : 0;
    char *states, *M, *marks, *left, *stops;
    const size_t n_stops = call->back && n_left ? (size_t)(r->batch.B * r->H) : 0;
    const struct gdn_room rooms[] = { { &states, n * K * V * sizeof(float) },
                                      { &M, n * K * K * sizeof(float) },
                                      { &marks, n * 2 * sizeof(uint32_t) },
                                      { &left, (size_t)(n_left * r->H) * sizeof(float) },
                                      { &stops, n_stops * sizeof(int32_t) } };
    const size_t bytes = gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (!memory) return c->units || n_left ? bytes : 0;
    *s = (struct gdn_cu_segments){ .whole = c->units ? c->each : INT64_MAX,
                                   .first = c->units ? c->each : INT64_MAX,
                                   .each = c->each,
                                   .states = (void *)states,
                                   .M = (void *)M,
                                   .marks = (void *)marks,
                                   .later = true,
                                   .units = (int32_t)c->units,
                                   .left = (void *)left,
                                   .n_left = n_left,
                                   .stops = n_stops ? (void *)stops : NULL };
    return bytes;
}

size_t gdn_cuda_summary_sm90_bytes(const struct gdn_cuda_summary *s, const struct gdn_range_cut *c)
{
    struct gdn_cu_segments cut;
    return lay_out(s, c, &cut, NULL);
}

/* ---- A call -------------------------------------------------------------------------------- */

/* Launches a kernel that may begin before the one ahead ends: units begin while gates are summed.
 * The join does not overlap, because its blocks would wait on the few multiprocessors that units
 * leave free. */
static gdn_status launch(gdn_ctx *ctx, enum gdn_kernel_id kernel, int64_t n_blocks, size_t shared,
                         const struct gdn_cu_prefill_sm90 *p, struct gdn_cuda_ran *ran,
                         void *stream)
{
    const bool is_join = kernel == GDN_CU_prefill_sm90_segments_maps;
    const bool overlaps = ran->n > 0 && !is_join && !p->back;
    const struct gdn_cuda_call call = { .kernel = kernel,
                                        .grid = { n_blocks, 1, 1 },
                                        .shared_bytes = shared,
                                        .stream = stream,
                                        .args = p,
                                        .overlaps = overlaps };
    gdn_cuda_ran_add(ran, kernel);
    return gdn_cuda_launch(ctx, &call);
}

static gdn_status launch_left(gdn_ctx *ctx, const struct gdn_cu_prefill_sm90 *p,
                              struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_batch *b = &p->rule.batch;
    const int64_t n_warps = (n_tokens(b) / CHUNK + b->B) * divide_up(p->rule.H, WARP);
    return launch(ctx, GDN_CU_prefill_sm90_segments_left, divide_up(n_warps, LEFT_WARPS), 0, p, ran,
                  stream);
}

/* Finds the maps. If U is not wanted, no v is given: its map is then that of k, of which no column
 * is loaded. */
static gdn_status find_maps(gdn_ctx *ctx, struct gdn_cu_prefill_sm90 *p)
{
    const struct gdn_cu_rule *r = &p->rule;
    const struct gdn_cu_batch *b = &r->batch;
    const struct gdn_rows *v = r->v.data ? &r->v : &r->k;
    TRY(gdn_cuda_find_map(ctx, "k", 1, &r->k, b, r->Hk, r->K, &p->k));
    TRY(gdn_cuda_find_map(ctx, "v", 2, v, b, r->Hv, r->v.data ? r->V : r->K, &p->v));
    p->q = p->k;
    return GDN_OK;
}

static void log_units(gdn_ctx *ctx, enum gdn_cuda_choice choice, const char *op,
                      const struct gdn_range_cut *c)
{
    char line[120];
    if (!ctx->options.log) return;
    if (c->units)
        snprintf(line, sizeof line, "%s: sm90, units of %lld tokens, at most %lld", op,
                 (long long)c->each, (long long)c->units);
    else
        snprintf(line, sizeof line, "%s: sm90, whole sequences", op);
    gdn_cuda_log_choice(ctx, choice, line);
}

gdn_status gdn_cuda_summary_sm90(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                                 const struct gdn_range_cut *c, void *memory,
                                 struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_rule *r = &s->rule;
    const struct gdn_cu_batch *b = &r->batch;
    struct gdn_cu_prefill_sm90 p = { .rule = *r,
                                     .M = s->M,
                                     .summary = true,
                                     .early_stop = may_stop(s),
                                     .source_k = gdn_cuda_source_of(r, r->Hk),
                                     .source_v = gdn_cuda_source_of(r, r->Hv) };
    if (c->units || p.early_stop)
        lay_out(s, c, &p.cut, memory);
    else
        p.cut = (struct gdn_cu_segments){ .whole = INT64_MAX, .each = CHUNK };
    TRY(find_maps(ctx, &p));
    log_units(ctx, GDN_CUDA_SUMMARY_CHOICE, "summary", c);
    if (p.early_stop) TRY(launch_left(ctx, &p, ran, stream));
    TRY(launch(ctx, kernel_of(r->k.dtype), CLUSTER * r->H * (b->B + c->units), SHARED, &p, ran,
               stream));
    if (!c->units) return GDN_OK;
    return launch(ctx, GDN_CU_prefill_sm90_segments_maps, n_slices(s) * r->H * c->several,
                  GDN_JOIN_BYTES, &p, ran, stream);
}

/* ---- A walk back --------------------------------------------------------------------------- */

size_t gdn_cuda_walk_cut(const struct gdn_cuda_summary *s, const struct gdn_range_cut *c,
                         struct gdn_cu_segments *cut, char *memory)
{
    const size_t bytes = lay_out(s, c, cut, memory);
    if (memory || !bytes) return bytes;
    cut->units = (int32_t)c->units;
    cut->first = c->units ? c->each : INT64_MAX;
    cut->each = c->each;
    return bytes;
}

static struct gdn_cu_prefill_sm90 walk_args(const struct gdn_cuda_summary *s,
                                            const struct gdn_cu_segments *cut)
{
    return (struct gdn_cu_prefill_sm90){ .rule = s->rule,
                                         .cut = *cut,
                                         .summary = true,
                                         .back = true,
                                         .source_k = gdn_cuda_source_of(&s->rule, s->rule.Hk),
                                         .source_v = gdn_cuda_source_of(&s->rule, s->rule.Hk) };
}

gdn_status gdn_cuda_walk_maps(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream)
{
    const struct gdn_cu_rule *r = &s->rule;
    struct gdn_cu_prefill_sm90 p = walk_args(s, cut);
    const struct gdn_range_cut c = { cut->each, cut->units, 0 };
    log_units(ctx, GDN_CUDA_BACKWARD_CHOICE, "prefill_backward", &c);
    if (cut->stops) {
        TRY(launch_left(ctx, &p, ran, stream));
        TRY(launch(ctx, GDN_CU_prefill_sm90_segments_stops, r->batch.B * r->H, 0, &p, ran, stream));
    }
    if (!cut->units) return GDN_OK;
    p.rule.V = 0;
    p.rule.Hv = r->Hk;
    p.rule.to.data = NULL;
    TRY(find_maps(ctx, &p));
    return launch(ctx, kernel_of(r->k.dtype), CLUSTER * r->H * cut->units, SHARED, &p, ran, stream);
}

gdn_status gdn_cuda_walk_join(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_range_cut *c, const struct gdn_cu_segments *cut,
                              struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_prefill_sm90 p = walk_args(s, cut);
    if (!cut->units) return GDN_OK;
    return launch(ctx, GDN_CU_prefill_sm90_segments_maps, n_slices(s) * s->rule.H * c->several,
                  GDN_JOIN_BYTES, &p, ran, stream);
}
