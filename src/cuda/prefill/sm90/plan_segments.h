/* SPDX-License-Identifier: Apache-2.0 */
/* How sequences of gdn_prefill are cut on Hopper, from shapes alone. */
#ifndef GDN_CUDA_PREFILL_SEGMENTS_H
#define GDN_CUDA_PREFILL_SEGMENTS_H

#include <stdbool.h>

#include "cuda/driver/args.h"

/* Sequences of more than `whole` tokens are cut. apart: those of more than `split` tokens have a
 * launch of their own, in clusters. n_long: how many of these there may be. Tokens of the first
 * segment, INT64_MAX: whole sequences; of those after it; how many of them there may be in all, and
 * sequences with several. planned: a kernel finds the sizes of segments, which take at most `win`
 * hundredths of the time of whole sequences (choose_cut.cuh), and may set `split` aside. wide:
 * blocks in place of clusters, for first segments; for the others. small: k64.cu, for all. */
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
