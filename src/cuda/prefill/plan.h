/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a call in chunks: what decides it, and what is decided. */
#ifndef GDN_CUDA_PREFILL_PLAN_H
#define GDN_CUDA_PREFILL_PLAN_H

#include "cuda/decode/decode.h"
#include "cuda/prefill/sm90/plan_segments.h"

/* The options of a call for cuts into segments: none; no early stop; tokens of the longest
 * sequence, 0: unknown. */
struct gdn_cuda_cut_options {
    bool whole, every_token;
    int64_t longest;
};
static inline struct gdn_cuda_cut_options gdn_cuda_cut_options_of(uint32_t flags,
                                                                  const gdn_batch *b)
{
    return (struct gdn_cuda_cut_options){ flags & GDN_BATCH_INVARIANT, flags & GDN_NO_EARLY_STOP,
                                          b->max_seqlen };
}

/* Segments of prefill/portable, of sequences of more than `first` tokens: the first one, and later
 * ones of `each` tokens. units: later ones, at most; several: sequences with more than one of
 * these, at most. units 0: all sequences are whole. */
struct gdn_portable_cut {
    int64_t first, each, units, several;
};

/* Windows of prefill/channels: so many rows of the batch, and chunks of each, or of all of them.
 * overlap: the chunks of a window are made while the scan of the one before runs, so there are
 * records of two. */
struct gdn_channels_windows {
    bool through, overlap;
    int64_t n_chunks, each; /* of a row, or of the batch; of a window */
    int64_t n_rows;         /* of a window */
    int64_t record_bytes;
};

/* Units of `each` tokens (sm90/ranges.c). units: of all longer sequences, at most; several: of
 * these sequences, at most. */
struct gdn_range_cut {
    int64_t each, units, several;
};

/* How chunks are done. */
struct gdn_cuda_chunks {
    int form; /* of the list in select.c */
    struct gdn_cuda_cut_options options;
    union {
        struct gdn_cuda_cut sm90;
        struct gdn_portable_cut portable;
    } cut; /* of the form */
    size_t bytes;
    void *memory;  /* of the workspace: so many bytes */
    int by_number; /* see prefill/general.h */
    bool singles;  /* sequences of one token are left to decode */
};

/* A planned call. */
struct gdn_cuda_prefill_plan {
    enum {
        GDN_PREFILL_BY_TOKENS,
        GDN_PREFILL_BY_CHANNELS,
        GDN_PREFILL_BY_CHUNKS,
        GDN_PREFILL_APART
    } way;
    size_t bytes; /* of workspace */
    union {
        struct gdn_cuda_decode_plan decode;  /* by tokens */
        struct gdn_channels_windows windows; /* by channels */
        struct {
            struct gdn_cuda_chunks chunks;
            struct gdn_cuda_singles singles; /* if chunks leave them to decode */
        };
    };
};

#endif
