/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of a batch (backward.cuh): what gradients keep in memory at a time, and its size. */
#ifndef GDN_CUDA_BACKWARD_WINDOWS_H
#define GDN_CUDA_BACKWARD_WINDOWS_H

#include "cuda/backward/args.h"
#include "cuda/driver/launch.h"

static inline int64_t ceil_of(int64_t x, int64_t n) { return x / n + (x % n != 0); }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Returns true if states before windows are checkpoints of the caller, or may be. */
static inline bool gdn_windows_have_checkpoints(const struct gdn_cu_backward *a)
{
    return a->rule.batch.checkpoint_pool >= 0;
}

/* least: chunks of a window of a form with n_blocks. mib: its memory; 0: the default. */
struct gdn_windows_limits {
    int64_t least;
    uint32_t mib;
};

/* Cuts the batch into windows. n_blocks, record_bytes and key_bytes are set before; segments is set
 * to any number but 0 if there will be some. */
void gdn_windows_cut(const gdn_ctx *ctx, struct gdn_cu_backward *a,
                     struct gdn_windows_limits limits);

/* Cuts the sequences of a window into segments: as few as keep all multiprocessors busy, or short
 * ones if lengths differ. Returns false if multiprocessors would be idle. */
bool gdn_windows_cut_segments(const gdn_ctx *ctx, struct gdn_cu_backward *a);

/* Returns the segments of a window that a launch has. */
int64_t gdn_windows_segments(const struct gdn_cu_backward *a);

/* Returns true if there are several windows that go through the batch. Then a kernel makes a
 * plan. */
bool gdn_windows_go_through(const struct gdn_cu_backward *a);

/* Returns true if some sequence may go on from a window to the next. */
bool gdn_windows_have_states(const struct gdn_cu_backward *a);

/* Returns how many sequences a window has, on average. */
int64_t gdn_windows_rows(const struct gdn_cu_backward *a);

/* Return what memory has room for: states before windows; gradients of these; gradients after
 * segments, for each state head; entries of the plan. */
int64_t gdn_windows_starts(const struct gdn_cu_backward *a);
int64_t gdn_windows_carried(const struct gdn_cu_backward *a);
int64_t gdn_windows_ends(const struct gdn_cu_backward *a);
int64_t gdn_windows_planned(const struct gdn_cu_backward *a);

#endif
