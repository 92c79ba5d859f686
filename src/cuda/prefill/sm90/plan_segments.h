/* SPDX-License-Identifier: Apache-2.0 */
/* How sequences of gdn_prefill are cut on Hopper, by shapes alone. */
#ifndef GDN_CUDA_PREFILL_SEGMENTS_H
#define GDN_CUDA_PREFILL_SEGMENTS_H

#include <stdbool.h>

#include "cuda/driver/args.h"

/* How sequences of more than `whole` tokens are cut. first, each: tokens of the first segment
 * (INT64_MAX: nothing is cut) and of later ones. units: later segments in all, at most. several:
 * sequences with several of them, at most. apart: sequences of more than `split` tokens have a
 * launch of their own, in clusters. n_long: how many of these there may be. planned: a kernel finds
 * the sizes of segments, which take at most `win` hundredths of the time of whole sequences
 * (choose_cut.cuh), and may set `split` aside. wide, later_wide: wide blocks in place of clusters,
 * for first segments and for later ones. small: k64.cu takes all. */
struct gdn_cuda_cut {
    int64_t whole, split, n_long, first, each, units, several;
    int win;
    bool wide, later_wide, small, apart, planned;
};

/* The inputs of a plan. longest: tokens of the longest sequence, 0: unknown; small: heads of up
 * to 64 keys and columns; stops: summaries may stop early. */
struct gdn_cuda_shape {
    const struct gdn_cu_batch *b;
    int64_t H, longest;
    bool small, stops;
    int sm_count;
};

struct gdn_cuda_cut gdn_cuda_find_cut(const struct gdn_cuda_shape *s);
struct gdn_cuda_cut gdn_cuda_no_cut(const struct gdn_cuda_shape *s);
/* Returns a cut for tests: of the given first and later segments, or with a `win` of the tests'. */
struct gdn_cuda_cut gdn_cuda_cut_like(const struct gdn_cuda_shape *s,
                                      const struct gdn_cuda_cut *like);

#endif
