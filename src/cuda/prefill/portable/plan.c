/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a call so that it takes the least time, by the costs of a chunk. */
#include "cuda/prefill/portable/plan.h"

#include "cuda/prefill/wanted.h"

enum { CHUNK = GDN_PORTABLE_CHUNK, COLUMNS = 16, MOST_STATE = 4 };

/* MOST_SEGMENTS: of a sequence. LEAST_CHUNKS: of a segment. WIN: a cut must take at most that
 * percentage of the time of whole sequences. */
enum { MOST_SEGMENTS = 64, LEAST_CHUNKS = 4, WIN = 90 };

/* Nanoseconds on an H200, which are nearest to all that was measured of calls: of a chunk by the
 * number of groups of warps with 16 columns; of a chunk of a map; of a block's first loads and its
 * states; of a cut, beside the walks; of a unit in combine.cuh. */
static const int chunk_costs[] = { 0, 1800, 2200, 2600, 3000 };
enum { MAP = 1650, BLOCK = 10000, CUT = 24000, COMBINE = 200 };

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

static int deep_of(const struct gdn_cu_rule *r) { return r->K <= 64 ? 64 : GDN_PORTABLE_DEEP; }

/* Finds the most stages that shared memory has room for. */
static struct gdn_portable_blocks find_stages(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                              int n_state)
{
    static const int stages[][2] = { { 3, 2 }, { 2, 2 }, { 2, 1 }, { 1, 1 } };
    struct gdn_portable_blocks b = { n_state, 0, 0, 0 };
    for (int i = 0; i < 4 && !b.shared; i++) {
        const int bytes =
            GDN_PORTABLE_HEAD_BYTES + stages[i][0] * GDN_PORTABLE_STAGE_BYTES(deep_of(r), n_state) +
            stages[i][1] * GDN_PORTABLE_QUERIES_BYTES(deep_of(r)) +
            n_state * GDN_PORTABLE_HANDED_BYTES(deep_of(r)) + GDN_PORTABLE_OUTPUT_BYTES(n_state);
        if (bytes > ctx->cuda->shared_most) continue;
        b = (struct gdn_portable_blocks){ n_state, stages[i][0], stages[i][1], (size_t)bytes };
    }
    return b;
}

/* Returns the time of chunks of that cost in a block. Without a second stage, loads are waited
 * for. */
static int64_t time_of(const struct gdn_portable_blocks *b, int64_t chunks, int cost)
{
    const int percent = b->n_stages == 1 ? 200 : b->n_queries == 1 ? 150 : 100;
    return chunks * cost * percent / 100;
}

/* Returns how many of n equal blocks a multiprocessor has. */
static int64_t count_waves(const gdn_ctx *ctx, int64_t n)
{
    return divide_up(n, ctx->cuda->sm_count);
}

struct gdn_portable_blocks gdn_cuda_portable_blocks(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                                    int64_t n, int n_columns)
{
    const int groups = (int)divide_up(n_columns, COLUMNS);
    struct gdn_portable_blocks best = { 0, 0, 0, 0 };
    int64_t least = INT64_MAX;
    for (int i = groups < MOST_STATE ? groups : MOST_STATE; i > 0; i--) {
        const struct gdn_portable_blocks b = find_stages(ctx, r, i);
        if (!b.shared) continue;
        const int64_t waves = count_waves(ctx, n * divide_up(n_columns, COLUMNS * i));
        const int64_t time = waves * time_of(&b, 1, chunk_costs[i]);
        if (time >= least) continue;
        least = time;
        best = b;
    }
    return best;
}

/* ---- Segments -------------------------------------------------------------------------------- */

/* Returns the time of the walks of n sequences and heads. */
static int64_t walk_time(const gdn_ctx *ctx, const struct gdn_cu_rule *r, int64_t n, int64_t chunks)
{
    const struct gdn_portable_blocks b = gdn_cuda_portable_blocks(ctx, r, n, r->V);
    const int64_t waves = count_waves(ctx, n * divide_up(r->V, COLUMNS * b.n_state));
    return waves * (time_of(&b, chunks, chunk_costs[b.n_state]) + BLOCK);
}

/* Returns the time of the walks of n first segments, and of the maps of all others but the last, in
 * one launch. The launch has `units` maps, as launch.c counts them. If blocks wait for others, the
 * last one may begin when all other work is done. */
static int64_t first_time(const gdn_ctx *ctx, const struct gdn_cu_rule *r, int64_t n, int64_t units,
                          int64_t chunks)
{
    const struct gdn_portable_blocks b = gdn_cuda_portable_blocks(ctx, r, units, r->V + r->K);
    const int64_t columns = COLUMNS * b.n_state, sms = ctx->cuda->sm_count;
    const int64_t walks = n * divide_up(r->V, columns);
    const int64_t maps = (units - n) * (divide_up(r->V, columns) + divide_up(r->K, columns));
    const int64_t walk = time_of(&b, chunks, chunk_costs[b.n_state]) + BLOCK;
    const int64_t map = time_of(&b, chunks, MAP) + BLOCK;
    return walks + maps > sms ? walk + (walks * walk + maps * map) / sms : walk;
}

/* Returns the time of n sequences and heads in segments of `each` chunks. */
static int64_t cut_time(const gdn_ctx *ctx, const struct gdn_cu_rule *r, int64_t n, int64_t chunks,
                        int64_t each)
{
    const int64_t segments = divide_up(chunks, each), units = n * (segments - 1);
    const int64_t combines = count_waves(ctx, n * r->V / GDN_SEGMENT_COLUMNS) * (segments - 2);
    return first_time(ctx, r, n, units, each) + walk_time(ctx, r, units, each) + CUT +
           combines * COMBINE;
}

/* Returns the chunks of a segment that take the least time; 0: whole sequences take less. */
static int64_t find_each(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    const int64_t tokens = b->padded ? b->T : b->B ? divide_up(b->N, b->B) : 0;
    const int64_t chunks = divide_up(tokens, CHUNK), n = b->B * r->H;
    int64_t least = walk_time(ctx, r, n, chunks) * WIN / 100, best = 0;
    for (int64_t segments = 2; segments <= MOST_SEGMENTS; segments++) {
        const int64_t each = divide_up(chunks, segments);
        if (each < LEAST_CHUNKS) break;
        const int64_t time = cut_time(ctx, r, n, chunks, each);
        if (time >= least) continue;
        least = time;
        best = each;
    }
    return best;
}

static bool may_be_cut(const struct gdn_cu_rule *r, struct gdn_cuda_cut_options options)
{
    return !options.whole && r->K % 4 == 0 && r->V % GDN_SEGMENT_COLUMNS == 0;
}

struct gdn_portable_cut gdn_cuda_portable_cut(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                              struct gdn_cuda_cut_options options)
{
    const struct gdn_cu_batch *b = &r->batch;
    const struct gdn_cuda_cut *wanted = &gdn_cuda_wanted(ctx)->cut;
    struct gdn_portable_cut c = { INT64_MAX, CHUNK, 0, 0 };
    if (!may_be_cut(r, options) || b->B < 1) return c;
    const int64_t each = wanted->first ? wanted->each : CHUNK * find_each(ctx, r);
    if (!each) return c;
    c.first = wanted->first ? wanted->first : each;
    c.each = each;
    const int64_t some = b->padded                     ? b->T > c.first ? b->B : 0
                         : b->N / (c.first + 1) < b->B ? b->N / (c.first + 1)
                                                       : b->B;
    c.several = some;
    c.units = b->padded ? some * divide_up(b->T - c.first, each) : some ? b->N / each + some : 0;
    return c;
}
