/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of gates per channel: which calls the kernels take, windows, launches. */
#include "cuda/prefill/channels/args.h"
#include "cuda/prefill/forms.h"

enum {
    CHUNK = GDN_CHANNELS_CHUNK,
    WARP_COLUMNS = 16,
    WINDOW_BYTES = 1 << 18 /* of records, for each multiprocessor: as much as L2 caches hold */
};

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Returns true if rows, and all elements at steps of `bytes`, are aligned to `bytes`. */
static bool is_aligned(const struct gdn_rows *r, uint64_t bytes)
{
    const uint64_t all =
        (uint64_t)(uintptr_t)r->data | (uint64_t)r->batch | (uint64_t)r->token | (uint64_t)r->head;
    return all % bytes == 0;
}

const char *gdn_cuda_prefill_channels_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    const int dtype = r->v.dtype;
    if (gdn_cuda_is_off(ctx, GDN_CUDA_CHANNELS)) return "it is switched off";
    if (!r->family.is) return "a gate is one number per head";
    if (r->family.updates > 1) return "a token has several updates";
    if (dtype == GDN_F32) return "q, k and v are float32";
    if (r->k.dtype != dtype || (r->out.data && (r->q.dtype != dtype || r->out.dtype != dtype)))
        return "q, k, v and out differ in dtype";
    if (r->K > GDN_CHANNELS_MOST_K) return "K is above 128";
    if (r->K % 2 || r->V % 8) return "K is odd, or V is not a multiple of 8";
    if (!is_aligned(&r->q, 4) || !is_aligned(&r->k, 4)) return "q or k is not aligned to 4 bytes";
    if (!is_aligned(&r->v, 16) || !is_aligned(&r->out, 16))
        return "v or out is not aligned to 16 bytes";
    if (r->batch.checkpoint_pool >= 0 &&
        (r->batch.checkpoint_starts.data || r->batch.checkpoint_every % CHUNK))
        return "checkpoints are not at multiples of 64 tokens";
    if (gdn_cuda_prefill_is_apart(r)) return "a state has 8 bits, or no stride of 1";
    return NULL;
}

/* ---- Windows --------------------------------------------------------------------------------- */

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static int deep_of(const struct gdn_cu_rule *r) { return r->K <= 64 ? 64 : 128; }

static bool has_hopper_scan(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    return gdn_cuda_runs_sm_90a(ctx->cuda) && r->K > 64;
}

/* Returns the bytes of records for each multiprocessor, for a call of n chunks. If windows overlap,
 * a longer window wastes less time at its ends, but two shorter ones are better than one. */
static int64_t bytes_for(const gdn_ctx *ctx, const struct gdn_cu_rule *r, int64_t n,
                         int64_t record_bytes)
{
    const int64_t parts = 2 * (int64_t)ctx->cuda->sm_count;
    const int64_t half = (n * r->H * record_bytes + parts - 1) / parts;
    return has_hopper_scan(ctx, r) ? clamp(half, WINDOW_BYTES, 2 * WINDOW_BYTES) : WINDOW_BYTES;
}

struct gdn_channels_windows gdn_cuda_prefill_channels_cut(const gdn_ctx *ctx,
                                                          const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    const int deep = deep_of(r);
    struct gdn_channels_windows w = { .through = b->cu_seqlens.data != NULL,
                                      .n_rows = b->B > 0 ? b->B : 1 };
    w.record_bytes = GDN_CHANNELS_WRITTEN(deep) + (r->family.write.data ? CHUNK * 2 * r->V : 0);
    w.n_chunks = (w.through ? b->N + (CHUNK - 1) * b->B : b->T + CHUNK - 1) / CHUNK;
    const int64_t n = w.through ? w.n_chunks : w.n_chunks * b->B;
    const int64_t bytes = bytes_for(ctx, r, n, w.record_bytes) * ctx->cuda->sm_count;
    const int64_t most = clamp(bytes / (w.record_bytes * r->H), 1, INT64_MAX);
    if (!w.through && most < b->B) w.n_rows = most;
    w.each = clamp(w.through ? most : most / w.n_rows, 1, w.n_chunks > 0 ? w.n_chunks : 1);
    w.overlap = has_hopper_scan(ctx, r) && (w.each < w.n_chunks || w.n_rows < b->B);
    return w;
}

/* Bytes of the records of a window. */
static int64_t window_bytes(const struct gdn_cu_rule *r, const struct gdn_channels_windows *w)
{
    return (w->through ? 1 : w->n_rows) * w->each * r->H * w->record_bytes;
}

/* Lays out records, and the states between windows. There is one such state for each row, or there
 * are two if windows go through the batch. */
static size_t lay_out(const struct gdn_cu_rule *r, const struct gdn_channels_windows *w,
                      char **records, char **carry, char *memory)
{
    const int64_t columns = (r->V + 127) / 128 * 128;
    const int64_t places = w->each >= w->n_chunks ? 0 : w->through ? 2 : w->n_rows;
    const struct gdn_room rooms[] = {
        { records, (size_t)(window_bytes(r, w) * (w->overlap ? 2 : 1)) },
        { carry, (size_t)(places * r->H * columns * deep_of(r)) * sizeof(float) },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

size_t gdn_cuda_prefill_channels_bytes(const struct gdn_cu_rule *r,
                                       const struct gdn_channels_windows *w)
{
    char *records, *carry;
    return lay_out(r, w, &records, &carry, NULL);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static enum gdn_kernel_id chunks_of(const struct gdn_cu_rule *r)
{
    static const enum gdn_kernel_id kernels[2][2] = {
        { GDN_CU_prefill_channels_chunks_BF16_64, GDN_CU_prefill_channels_chunks_BF16_128 },
        { GDN_CU_prefill_channels_chunks_F16_64, GDN_CU_prefill_channels_chunks_F16_128 },
    };
    return kernels[r->v.dtype == GDN_F16][r->K > 64];
}

/* A form of `scan`. columns: value columns of a block. */
struct scan {
    enum gdn_kernel_id kernel;
    int columns, n_threads, n_stages;
    size_t shared_bytes;
};

/* Returns the scan by mma.sync. If so many heads do not fill the device, blocks have fewer
 * columns. */
static struct scan portable_scan(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    static const enum gdn_kernel_id kernels[2][2] = {
        { GDN_CU_prefill_channels_scan_BF16_64, GDN_CU_prefill_channels_scan_BF16_128 },
        { GDN_CU_prefill_channels_scan_F16_64, GDN_CU_prefill_channels_scan_F16_128 },
    };
    const int most = r->batch.B * r->H >= ctx->cuda->sm_count ? 128 : 64;
    const int columns = r->V <= 16 ? 16 : r->V <= 32 ? 32 : r->V <= 64 ? 64 : most;
    const size_t stage = (size_t)GDN_CHANNELS_STAGE_BYTES(deep_of(r), columns);
    const bool two = GDN_CHANNELS_HEAD_BYTES + 2 * stage <= (size_t)ctx->cuda->shared_most;
    return (struct scan){ .kernel = kernels[r->v.dtype == GDN_F16][r->K > 64],
                          .columns = columns,
                          .n_threads = 2 * columns,
                          .n_stages = two ? 2 : 1,
                          .shared_bytes = GDN_CHANNELS_HEAD_BYTES + (two ? 2 : 1) * stage };
}

/* Returns the scan by WGMMA, for K from 65 on. If two blocks for each head take at most half of the
 * device, these have warps beside memory; else blocks have two warpgroups, which share a record. */
static struct scan hopper_scan(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    static const enum gdn_kernel_id kernels[2][2] = {
        { GDN_CU_prefill_channels_scan_sm90_BF16, GDN_CU_prefill_channels_scan_sm90_F16 },
        { GDN_CU_prefill_channels_scan_few_sm90_BF16, GDN_CU_prefill_channels_scan_few_sm90_F16 },
    };
    const int64_t rows = r->batch.B > 0 ? r->batch.B : 1;
    const bool few = 4 * rows * r->H <= ctx->cuda->sm_count;
    const int columns = few || r->V <= 64 ? 64 : 128;
    const size_t stage = (size_t)GDN_CHANNELS_SM90_STAGE_BYTES(128, columns);
    return (struct scan){ .kernel = kernels[few][r->v.dtype == GDN_F16],
                          .columns = columns,
                          .n_threads = few ? 256 : 2 * columns,
                          .n_stages = 2,
                          .shared_bytes = few ? (size_t)GDN_CHANNELS_FEW_BYTES(128)
                                              : GDN_CHANNELS_SM90_HEAD_BYTES + 2 * stage };
}

static gdn_status launch(gdn_ctx *ctx, const struct gdn_cuda_call *call, struct gdn_cuda_ran *ran)
{
    gdn_cuda_ran_add(ran, call->kernel);
    return gdn_cuda_launch(ctx, call);
}

/* Launches both kernels for a window. overlaps: the chunks begin while the scan of the window
 * before runs, and end after it. A scan begins when its chunks have ended. */
static gdn_status run_window(gdn_ctx *ctx, const struct gdn_cu_prefill_channels *a, bool overlaps,
                             const struct scan *s, struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_rule *r = &a->rule;
    const bool rest = a->through && a->number == 0 && r->out.data; /* the tokens of no sequence */
    const struct gdn_cuda_call chunks = {
        .kernel = chunks_of(r),
        .grid = { (a->through ? 1 : a->n_rows) * a->each * r->H, 1, 1 },
        .shared_bytes = deep_of(r) == 64 ? GDN_CU_CHUNKS_64 : GDN_CU_CHUNKS_128,
        .stream = stream,
        .args = a,
        .overlaps = overlaps,
    };
    const struct gdn_cuda_call scan = {
        .kernel = s->kernel,
        .grid = { (a->n_rows + rest) * r->H * a->n_slices, 1, 1 },
        .n_threads = s->n_threads,
        .shared_bytes = s->shared_bytes,
        .stream = stream,
        .args = a,
    };
    TRY(launch(ctx, &chunks, ran));
    return launch(ctx, &scan, ran);
}

gdn_status gdn_cuda_prefill_channels(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                     const struct gdn_channels_windows *w, void *memory,
                                     struct gdn_cuda_ran *ran, void *stream)
{
    const struct scan s = has_hopper_scan(ctx, r) ? hopper_scan(ctx, r) : portable_scan(ctx, r);
    char *records[2], *carry;
    bool second = false, overlaps = false;
    struct gdn_cu_prefill_channels a = { .rule = *r,
                                         .record_bytes = w->record_bytes,
                                         .each = w->each };
    lay_out(r, w, &records[0], &carry, memory);
    records[1] = records[0] + (w->overlap ? window_bytes(r, w) : 0);
    a.carry = (float *)(void *)carry;
    a.through = w->through;
    a.n_slices = (r->V + s.columns - 1) / s.columns;
    a.n_stages = s.n_stages;
    /* If windows go through the batch, there are tokens of no sequence even if there is no
     * sequence. */
    const int64_t rounds_end = w->through ? 1 : r->batch.B;
    for (a.row = 0; a.row < rounds_end; a.row += w->n_rows) {
        a.n_rows = clamp(r->batch.B - a.row, 0, w->n_rows);
        a.number = 0;
        a.first = 0;
        do {
            a.records = records[second];
            TRY(run_window(ctx, &a, overlaps, &s, ran, stream));
            second = !second;
            overlaps = w->overlap;
            a.number++;
            a.first += a.each;
        } while (a.first < w->n_chunks);
    }
    return GDN_OK;
}
