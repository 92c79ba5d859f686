/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of a context for the prefill on Hopper. */
#ifndef GDN_CUDA_PREFILL_CACHE_H
#define GDN_CUDA_PREFILL_CACHE_H

#include "core/limits.h"
#include "cuda/prefill/sm90/args.h"
#include "cuda/prefill/sm90/plan_segments.h"

/* A map of a tensor, and its key: the address, the dtype, four sizes and three steps. */
struct gdn_cuda_map {
    struct gdn_cu_map map;
    uint64_t of[9];
};

/* The numbers of kept maps. */
enum {
    GDN_CUDA_MAP_V = 2, /* then out: a pair for each slice of columns */
    GDN_CUDA_MAP_SLICES = GDN_MAX_VALUE / 128,
    GDN_CUDA_MAP_BACK = GDN_CUDA_MAP_V + 2 * GDN_CUDA_MAP_SLICES, /* v, dout, dq, dk */
    GDN_CUDA_MAPS = GDN_CUDA_MAP_BACK + 4
};

struct gdn_cuda_sm90 {
    /* Maps of the last call of launch.c: q, k, then v and out of every 128 columns. Maps of the
     * last call of backward.c: v, dout, dq and dk. */
    struct gdn_cuda_map maps[GDN_CUDA_MAPS];
    struct gdn_cuda_cut logged; /* the cut of the last line of the log */
    struct {
        uint64_t of[9]; /* the shape of the last plan; zeros: there is no plan yet */
        struct gdn_cuda_cut cut;
    } planned;
};

/* Returns true if two keys are equal. It is no memcmp(), which reads several numbers at once and
 * would wait for numbers that were just stored. */
static inline bool gdn_cuda_is_key(const uint64_t *known, const uint64_t *of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (known[i] != of[i]) return false;
    return true;
}

/* Returns whether rows of n_heads can have a map. */
bool gdn_cuda_is_mapped(const struct gdn_rows *r, const struct gdn_cu_batch *b, int64_t n_heads);

/* Finds the map of a tensor, kept as number i of the context's. */
gdn_status gdn_cuda_find_map(gdn_ctx *ctx, const char *name, int i, const struct gdn_rows *r,
                             const struct gdn_cu_batch *b, int64_t n_heads, int64_t n_columns,
                             struct gdn_cu_map *map);

/* Returns the map from state heads to a tensor of n heads. */
struct gdn_cu_source gdn_cuda_source_of(const struct gdn_cu_rule *r, int n);

#endif
