/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of gates per channel: which calls the kernels take, the windows, the launches. */
#include "cuda/prefill/channels/args.h"
#include "cuda/prefill/forms.h"

enum {
    CHUNK = GDN_CHANNELS_CHUNK,
    WARP_COLUMNS = 16,
    WINDOW_BYTES = 1 << 18 /* of records, per multiprocessor: as much as L2 caches hold */
};

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Returns true if rows, and all elements of one `bytes` on, are aligned to so many bytes. */
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

struct gdn_channels_windows gdn_cuda_prefill_channels_cut(const gdn_ctx *ctx,
                                                          const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    const int deep = deep_of(r);
    struct gdn_channels_windows w = { .through = b->cu_seqlens.data != NULL, .n_rows = b->B };
    w.record_bytes = GDN_CHANNELS_WRITTEN(deep) + (r->family.write.data ? CHUNK * 2 * r->V : 0);
    const int64_t bytes = (int64_t)WINDOW_BYTES * ctx->cuda->sm_count;
    const int64_t most = clamp(bytes / (w.record_bytes * r->H), 1, INT64_MAX);
    w.n_chunks = w.through ? b->N / CHUNK + b->B : (b->T + CHUNK - 1) / CHUNK;
    if (!w.through && most < b->B) w.n_rows = most;
    w.each = clamp(w.through ? most : most / b->B, 1, w.n_chunks > 0 ? w.n_chunks : 1);
    return w;
}

/* Lays out records, and the states between windows: one for each row, or for two windows through
 * the batch. */
static size_t lay_out(const struct gdn_cu_rule *r, const struct gdn_channels_windows *w,
                      char **records, char **carry, char *memory)
{
    const int64_t n = (w->through ? 1 : w->n_rows) * w->each * r->H;
    const int64_t columns = (r->V + 127) / 128 * 128;
    const int64_t places = w->each >= w->n_chunks ? 0 : w->through ? 2 : w->n_rows;
    const struct gdn_room rooms[] = {
        { records, (size_t)(n * w->record_bytes) },
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

static enum gdn_kernel_id kernel_of(const struct gdn_cu_rule *r, bool scan)
{
    static const enum gdn_kernel_id kernels[2][2][2] = {
        { { GDN_CU_prefill_channels_chunks_BF16_64, GDN_CU_prefill_channels_scan_BF16_64 },
          { GDN_CU_prefill_channels_chunks_BF16_128, GDN_CU_prefill_channels_scan_BF16_128 } },
        { { GDN_CU_prefill_channels_chunks_F16_64, GDN_CU_prefill_channels_scan_F16_64 },
          { GDN_CU_prefill_channels_chunks_F16_128, GDN_CU_prefill_channels_scan_F16_128 } },
    };
    return kernels[r->v.dtype == GDN_F16][r->K > 64][scan];
}

static gdn_status launch(gdn_ctx *ctx, const struct gdn_cu_prefill_channels *a, bool scan,
                         int64_t n_blocks, int n_threads, size_t shared, struct gdn_cuda_ran *ran,
                         void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel_of(&a->rule, scan),
        .grid = { n_blocks, 1, 1 },
        .n_threads = n_threads,
        .shared_bytes = shared,
        .stream = stream,
        .args = a,
    };
    gdn_cuda_ran_add(ran, call.kernel);
    return gdn_cuda_launch(ctx, &call);
}

/* Both kernels for a window. */
static gdn_status run_window(gdn_ctx *ctx, struct gdn_cu_prefill_channels *a, int columns,
                             struct gdn_cuda_ran *ran, void *stream)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int deep = deep_of(r);
    const size_t chunks = deep == 64 ? GDN_CU_CHUNKS_64 : GDN_CU_CHUNKS_128;
    const size_t stage = (size_t)GDN_CHANNELS_STAGE_BYTES(deep, columns);
    const bool rest = a->through && a->number == 0 && r->out.data; /* tokens of no sequence */
    const int64_t n = (a->through ? 1 : a->n_rows) * a->each * r->H;
    TRY(launch(ctx, a, false, n, 0, chunks, ran, stream));
    return launch(ctx, a, true, (a->n_rows + rest) * r->H * a->n_slices, columns * 2,
                  GDN_CHANNELS_HEAD_BYTES + (size_t)a->n_stages * stage, ran, stream);
}

gdn_status gdn_cuda_prefill_channels(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                     const struct gdn_channels_windows *w, void *memory,
                                     struct gdn_cuda_ran *ran, void *stream)
{
    const int deep = deep_of(r);
    char *carry;
    struct gdn_cu_prefill_channels a = { .rule = *r,
                                         .record_bytes = w->record_bytes,
                                         .each = w->each };
    lay_out(r, w, &a.records, &carry, memory);
    a.carry = (float *)(void *)carry;
    a.through = w->through;
    /* more blocks, if so many heads do not fill the device */
    const int most = r->batch.B * r->H >= ctx->cuda->sm_count ? 128 : 64;
    const int columns = r->V <= 16 ? 16 : r->V <= 32 ? 32 : r->V <= 64 ? 64 : most;
    const size_t stage = (size_t)GDN_CHANNELS_STAGE_BYTES(deep, columns);
    a.n_slices = (r->V + columns - 1) / columns;
    a.n_stages = GDN_CHANNELS_HEAD_BYTES + 2 * stage <= (size_t)ctx->cuda->shared_most ? 2 : 1;
    for (a.row = 0; a.row < r->batch.B; a.row += w->n_rows) {
        a.n_rows = clamp(r->batch.B - a.row, 0, w->n_rows);
        a.number = 0;
        a.first = 0;
        do {
            TRY(run_window(ctx, &a, columns, ran, stream));
            a.number++;
            a.first += a.each;
        } while (a.first < w->n_chunks);
    }
    return GDN_OK;
}
