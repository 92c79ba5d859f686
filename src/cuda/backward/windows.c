/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/backward/windows.h"

#include "cuda/driver/contents.h"
#include "cuda/prefill/prefill.h"

/* LEAST_CHUNKS: of a sequence in a window. MOST_WINDOWS: of a call, because each window is several
 * launches. WINDOW_MIB: the memory of a window of forms with n_blocks, unless the caller gives
 * another. FEW: with more sequences, windows without work cost more than idle multiprocessors. */
enum { LEAST_CHUNKS = 8, MOST_WINDOWS = 32, WINDOW_MIB = 640, FEW = 16 };

/* SEGMENT_CHUNKS: the least chunks of a segment, for a sequence of mean length. SEGMENT_WAVES: the
 * most segments for each multiprocessor, unless there are more sequences. RAGGED_WAVES: the same
 * where lengths differ, so that the last blocks to end are short. LAUNCHED_CHUNKS: the least chunks
 * of a window for each block of a head that is launched, because some have no chunks. */
enum { SEGMENT_CHUNKS = 8, SEGMENT_WAVES = 3, RAGGED_WAVES = 6, LAUNCHED_CHUNKS = 4 };

/* Returns true if sequences do not all have the same length. If false, they may have: lengths are
 * on the device alone. */
static bool is_ragged(const struct gdn_cu_batch *b)
{
    return b->cu_seqlens.data && b->B > 0 && b->N % b->B;
}

/* Returns the most segments of all heads of a window, if sequences are no more than that. */
static int64_t most_segments(const struct gdn_cu_backward *a)
{
    return (is_ragged(&a->rule.batch) ? RAGGED_WAVES : SEGMENT_WAVES) * (int64_t)a->n_blocks;
}

/* Returns the most bytes of J after all segments of a window. */
static int64_t ends_of(const struct gdn_cu_backward *a)
{
    if (!a->segments) return 0;
    return (most_segments(a) + a->rule.H) * GDN_CU_BACKWARD_END;
}

/* Returns the chunks of a window of a form with n_blocks: as many as memory has room for, and at
 * least `least`. */
static int64_t chunks_in_memory(const struct gdn_cu_backward *a, struct gdn_windows_limits limits)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int64_t bytes = (int64_t)(limits.mib ? limits.mib : WINDOW_MIB) << 20;
    return max_of(limits.least, (bytes - ends_of(a)) / ((int64_t)r->H * a->record_bytes +
                                                        (int64_t)r->Hk * a->key_bytes));
}

/* Returns the chunks between checkpoints of the caller; 1: there are none. */
static int64_t chunks_between(const struct gdn_cu_backward *a)
{
    return gdn_windows_have_checkpoints(a) ? a->rule.batch.checkpoint_every / GDN_CU_BACKWARD_CHUNK
                                           : 1;
}

/* Returns the chunks of windows that are equal parts of all, at most n each. With segments, a short
 * last window would have blocks for few multiprocessors. */
static int64_t even_chunks(const struct gdn_cu_backward *a, int64_t all, int64_t n)
{
    const int64_t given = chunks_between(a), every = given <= n ? given : 1;
    if (!a->segments || n >= all) return n;
    return ceil_of(ceil_of(all, ceil_of(all, n - n % every)), every) * every;
}

/* Returns the wish of a test (prefill/wanted.h); else 0. */
static int64_t of_tests(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    return a->n_blocks ? gdn_cuda_wanted(ctx)->window_chunks : 0;
}

/* Returns the chunks of a window of one sequence, which has `most` chunks. */
static int64_t wanted_chunks(const gdn_ctx *ctx, const struct gdn_cu_backward *a,
                             struct gdn_windows_limits limits, int64_t most)
{
    const int64_t wanted = of_tests(ctx, a);
    if (!a->n_blocks) return max_of(LEAST_CHUNKS, ceil_of(most, MOST_WINDOWS));
    if (wanted > 0) return wanted;
    return max_of(LEAST_CHUNKS, chunks_in_memory(a, limits) / max_of(a->n_parts, 1));
}

/* Returns the most numbers of the chunks of a batch (backward.cuh). */
static int64_t count_numbers(const struct gdn_cu_batch *b)
{
    const int64_t C = GDN_CU_BACKWARD_CHUNK;
    return b->cu_seqlens.data ? b->N / C + b->B : b->B * ceil_of(b->T, C);
}

/*
 * Returns how many chunks windows through a packed batch should have; 0: windows should be those of
 * each sequence, as a has them. Lengths are on the device alone, so these are as many as one
 * sequence of all tokens has, and most find little work. Those through the batch are full, but may
 * have one sequence alone. Its heads, and those of as many as begin there on average, have four
 * blocks each. These should be enough for all multiprocessors, unless B is large.
 */
static int64_t chunks_through_packed(const gdn_ctx *ctx, const struct gdn_cu_backward *a,
                                     struct gdn_windows_limits limits)
{
    const int64_t B = a->rule.batch.B, numbers = count_numbers(&a->rule.batch);
    const int64_t wanted = of_tests(ctx, a);
    if (wanted < 0 && !a->cut.units) return -wanted;
    if (a->n_chunks > numbers) return numbers;
    if (!a->n_blocks || a->cut.units || a->n_windows < 2 || wanted || B < 1) return 0;
    const int64_t n = even_chunks(a, numbers, chunks_in_memory(a, limits));
    return B > FEW || 4 * a->rule.H * (numbers + B * n) >= a->n_blocks * numbers ? n : 0;
}

/* Does the same for a padded batch. Windows go through the batch if each has room for at least one
 * whole sequence, but not for all. */
static int64_t chunks_through_padded(const gdn_ctx *ctx, const struct gdn_cu_backward *a,
                                     struct gdn_windows_limits limits)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    const int64_t each = ceil_of(b->T, GDN_CU_BACKWARD_CHUNK), wanted = of_tests(ctx, a);
    if (!a->n_blocks || a->cut.units || wanted > 0 || each < 1) return 0;
    const int64_t rows = (wanted ? -wanted : chunks_in_memory(a, limits)) / each;
    return rows < 1 || rows >= b->B ? 0 : rows * each;
}

/* Cuts a batch into windows through it, of at most n chunks each. The plan on the device makes a
 * window two thirds full or fuller (plan.cuh). */
static void cut_through(struct gdn_cu_backward *a, int64_t n)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    const int64_t numbers = count_numbers(b), every = chunks_between(a);
    const bool packed = b->cu_seqlens.data != NULL;
    const int64_t full = packed && every <= n ? n - n % every : n;
    a->window_chunks = 0;
    a->n_chunks = n < numbers ? n : numbers;
    a->n_windows = packed && b->B > 1 ? ceil_of(3 * numbers, 2 * n) + 1 : ceil_of(numbers, full);
    if (n >= numbers) a->n_windows = 1;
    if (a->n_windows > 1 && a->n_parts > n) a->n_parts = n;
}

bool gdn_windows_go_through(const struct gdn_cu_backward *a)
{
    return !a->window_chunks && a->n_windows > 1;
}

/* Returns true if some sequence may go on from a window to the next. */
bool gdn_windows_have_states(const struct gdn_cu_backward *a)
{
    return a->n_windows > 1 && (a->window_chunks || a->rule.batch.cu_seqlens.data);
}

/* Cuts sequences, or parts of them, of `most` chunks into windows of n chunks of each. */
static void cut_each(struct gdn_cu_backward *a, int64_t most, int64_t n)
{
    a->window_chunks = n;
    a->n_chunks = a->n_parts * n;
    a->n_windows = most ? ceil_of(most, n) : 1;
}

/* Moves the beginnings of windows to the caller's checkpoints, if these are close enough together.
 * A window through the batch may then be up to a third shorter. */
static void cut_at_checkpoints(struct gdn_cu_backward *a, int64_t most)
{
    struct gdn_cu_batch *b = &a->rule.batch;
    const int64_t every = chunks_between(a), n = a->window_chunks;
    if (!gdn_windows_have_checkpoints(a)) return;
    if (!gdn_windows_have_states(a) || (n ? every > n : 3 * every > a->n_chunks)) {
        b->checkpoint_pool = -1;
        return;
    }
    a->starts_every = (int32_t)b->checkpoint_every;
    if (n) cut_each(a, most, n - n % every);
}

/* Cuts sequences, or parts of them (parts.cuh), into windows of window_chunks chunks of each; or a
 * batch into windows through it (backward.cuh). On tensor cores chunks_through_...() decide which.
 * There is one window through the batch if the tensors have fewer chunks than windows of each
 * sequence would. */
void gdn_windows_cut(const gdn_ctx *ctx, struct gdn_cu_backward *a,
                     struct gdn_windows_limits limits)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    const bool packed = b->cu_seqlens.data != NULL;
    int64_t most = ceil_of(packed ? b->N : b->T, GDN_CU_BACKWARD_CHUNK);
    if (a->cut.units && most > a->cut.each / GDN_CU_BACKWARD_CHUNK)
        most = a->cut.each / GDN_CU_BACKWARD_CHUNK;
    a->n_parts = b->B + a->cut.units;
    const int64_t wanted = wanted_chunks(ctx, a, limits, most);
    const int64_t even = of_tests(ctx, a) ? wanted : even_chunks(a, most, wanted);
    cut_each(a, most, wanted < most ? even : max_of(most, 1));
    const int64_t n =
        packed ? chunks_through_packed(ctx, a, limits) : chunks_through_padded(ctx, a, limits);
    if (n) cut_through(a, n);
    cut_at_checkpoints(a, most);
}

/* Returns how many states before windows memory has: at most one sequence goes on from a window
 * through the batch. */
int64_t gdn_windows_starts(const struct gdn_cu_backward *a)
{
    if (!gdn_windows_have_states(a) || gdn_windows_have_checkpoints(a)) return 0;
    return gdn_windows_go_through(a) ? a->n_windows : a->n_parts * a->n_windows;
}

/* Returns how many gradients of states before windows memory has. */
int64_t gdn_windows_carried(const struct gdn_cu_backward *a)
{
    if (!gdn_windows_have_states(a)) return 0;
    if (gdn_windows_go_through(a)) return 2;
    return (a->segments > 1 ? 2 : 1) * a->n_parts;
}

/* Returns the entries of the plan (plan.cuh). */
int64_t gdn_windows_planned(const struct gdn_cu_backward *a)
{
    return gdn_windows_go_through(a)
               ? 2 * (a->n_windows + 1) + 2 * a->rule.batch.B + 1 + a->n_windows
               : 0;
}

/* ---- Segments ------------------------------------------------------------------------------- */

/* Returns the chunks of a sequence, on average. */
static int64_t mean_chunks(const struct gdn_cu_batch *b)
{
    return ceil_of(b->cu_seqlens.data ? ceil_of(b->N, max_of(b->B, 1)) : b->T,
                   GDN_CU_BACKWARD_CHUNK);
}

/* Returns the mean number of sequences of a window. It is rounded, or rounded up if walks have as
 * many blocks as that. */
int64_t gdn_windows_rows(const struct gdn_cu_backward *a)
{
    const int64_t B = a->rule.batch.B, numbers = count_numbers(&a->rule.batch);
    if (!gdn_windows_go_through(a)) return B;
    if (!a->segments) return ceil_of(B * a->n_chunks, numbers);
    return max_of((2 * B * a->n_chunks + numbers) / (2 * numbers), 1);
}

/* Returns true if so many blocks of equal time leave at most a tenth of the time of all
 * multiprocessors idle. */
static bool fill_device(const struct gdn_cu_backward *a, int64_t blocks)
{
    return 10 * blocks >= 9 * ceil_of(blocks, a->n_blocks) * a->n_blocks;
}

/* Returns as few segments of a sequence of `each` chunks as keep all multiprocessors busy; 0: no
 * number does. */
static int64_t fewest_segments(const struct gdn_cu_backward *a, int64_t each, int64_t heads)
{
    const int64_t most = each / SEGMENT_CHUNKS;
    for (int64_t n = 1; n <= most && (n == 1 || n * heads <= most_segments(a)); n++)
        if (fill_device(a, n * heads)) return n;
    return 0;
}

int64_t gdn_windows_segments(const struct gdn_cu_backward *a)
{
    if (a->window_chunks) return a->n_parts * a->segments;
    return a->n_chunks / a->segment_chunks + a->n_parts;
}

/* Returns the chunks of a segment; 0: no number keeps all multiprocessors busy. */
static int64_t chunks_of_segments(const gdn_ctx *ctx, const struct gdn_cu_backward *a,
                                  int64_t longest)
{
    const int64_t H = a->rule.H, all = a->n_chunks * H, wanted = gdn_cuda_wanted(ctx)->segments;
    const int64_t mean = mean_chunks(&a->rule.batch);
    const int64_t each = max_of(mean < longest ? mean : longest, 1);
    const int64_t shortest = ceil_of(all, most_segments(a));
    if (wanted) return ceil_of(each, wanted);
    if (is_ragged(&a->rule.batch))
        return all < 2 * SEGMENT_CHUNKS * a->n_blocks ? 0 : max_of(shortest, SEGMENT_CHUNKS);
    const int64_t n = fewest_segments(a, each, max_of(gdn_windows_rows(a) * H, 1));
    return n ? max_of(ceil_of(each, n), shortest) : 0;
}

bool gdn_windows_cut_segments(const gdn_ctx *ctx, struct gdn_cu_backward *a)
{
    const int64_t longest = a->window_chunks ? a->window_chunks : a->n_chunks;
    const int64_t chunks = chunks_of_segments(ctx, a, longest);
    if (!chunks) return false;
    a->segment_chunks = (int32_t)chunks;
    a->segments = (int32_t)max_of(ceil_of(longest, chunks), 1);
    return gdn_cuda_wanted(ctx)->segments ||
           gdn_windows_segments(a) * LAUNCHED_CHUNKS <= a->n_chunks;
}

int64_t gdn_windows_ends(const struct gdn_cu_backward *a)
{
    return a->segments > 1 ? a->n_chunks / a->segment_chunks + 1 : 0;
}
