/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a call in chunks: its options, and its decisions. */
#ifndef GDN_CUDA_PREFILL_PLAN_H
#define GDN_CUDA_PREFILL_PLAN_H

#include "cuda/decode/decode.h"
#include "cuda/prefill/sm90/plan_segments.h"

/* The options of a call for cuts into segments. whole: no cuts; every_token: no early stop;
 * longest: the tokens of the longest sequence, 0 if unknown. */
struct gdn_cuda_cut_options {
    bool whole, every_token;
    int64_t longest;
};
static inline struct gdn_cuda_cut_options gdn_cuda_cut_options_of(uint32_t flags,
                                                                  const gdn_batch *b)
{
    return (struct gdn_cuda_cut_options){ flags & (GDN_BATCH_INVARIANT | GDN_SPLIT_INVARIANT),
                                          flags & GDN_NO_EARLY_STOP, b->max_seqlen };
}

/* Segments of prefill/portable, for sequences of more than `first` tokens. first: the tokens of the
 * first segment; each: of later ones. units: the most later segments; several: the most sequences
 * with more than one of these. units 0: all sequences are whole. */
struct gdn_portable_cut {
    int64_t first, each, units, several;
};

/* Windows of prefill/channels. A window has n_rows rows of the batch, and `each` chunks of each
 * row, or of all rows (through). overlap: the chunks of a window are made while the scan of the
 * window before runs, so there are records of two windows. */
struct gdn_channels_windows {
    bool through, overlap;
    int64_t n_chunks, each; /* n_chunks: of a row, or of the batch; each: of a window */
    int64_t n_rows;         /* rows of a window */
    int64_t record_bytes;
};

/* Sequences of more than `each` tokens are cut into units of `each` (sm90/ranges.c). several:
 * the most such sequences; units: the most units that they have together. */
struct gdn_range_cut {
    int64_t each, units, several;
};

/* How the chunks of a call are computed. */
struct gdn_cuda_chunks {
    int form; /* of the list in chunks.c */
    struct gdn_cuda_cut_options options;
    union {
        struct gdn_cuda_cut sm90;
        struct gdn_portable_cut portable;
    } cut; /* the member of the form */
    size_t bytes;
    void *memory;  /* workspace of `bytes` */
    int by_number; /* see prefill/general.h */
    bool singles;  /* decode takes the sequences of one token */
};

/* A planned call of gdn_prefill. */
struct gdn_cuda_prefill_plan {
    enum {
        GDN_PREFILL_BY_TOKENS,
        GDN_PREFILL_BY_CHANNELS,
        GDN_PREFILL_CHANNELS_APART,
        GDN_PREFILL_BY_CHUNKS,
        GDN_PREFILL_APART
    } way;
    size_t bytes; /* of workspace */
    union {
        struct gdn_cuda_decode_plan decode;  /* if the way is by tokens */
        struct gdn_channels_windows windows; /* if the way is by channels */
        struct {
            struct gdn_cuda_chunks chunks;
            struct gdn_cuda_singles singles; /* if chunks.singles */
        };
    };
};

#endif
