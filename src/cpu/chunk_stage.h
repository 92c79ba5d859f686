/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a batch, as the CPU's stages go through them. */
#ifndef GDN_CPU_STAGE_H
#define GDN_CPU_STAGE_H

#include "calls/chunk_stage.h"
#include "cpu/rule.h"

struct gdn_chunk {
    const struct gdn_seq *seq;
    int64_t number, t0;
    int64_t n; /* tokens of the chunk that count, 0 to C */
};

/* Bytes of memory for the plan and its chunks; and the plan with its chunks, made there. */
size_t gdn_stage_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens);
gdn_status gdn_stage_chunks(gdn_ctx *ctx, const struct gdn_tokens *tokens, int64_t C, void *memory,
                            struct gdn_plan *plan, struct gdn_chunk_list *list);
struct gdn_chunk gdn_chunk_at(const struct gdn_chunk_list *list, int64_t number);
struct gdn_chunk gdn_chunk_of(const struct gdn_chunk_list *list, const struct gdn_seq *seq,
                              int64_t number);
static inline int64_t gdn_chunk_total(const struct gdn_chunk_list *list)
{
    return list->first[list->plan->B];
}

/* Gates of one chunk and head; 0 and beta 0 where no token counts. What a gate forgets is
 * known by index, for products with 0 would keep a NaN. */
struct gdn_chunk_gates {
    float g[GDN_MAX_CHUNK], beta[GDN_MAX_CHUNK];
    float from_start[GDN_MAX_CHUNK]; /* exp of the sum of g up to the token, 0 from `first` on */
    float to_end[GDN_MAX_CHUNK];     /* exp of the sum of g behind the token; 0 before `last` */
    float decay;                     /* of the whole chunk */
    int first, last; /* tokens before first see the start, those from last on reach the end */
};
void gdn_load_chunk_gates(struct gdn_chunk_gates *c, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, const struct gdn_chunk *chunk, int head);

/* Loads rows [t, t + 16) of a chunk as float32, zero past its n tokens. */
void gdn_load_chunk_rows(float *to, ptrdiff_t ld, const struct gdn_kernels *kr,
                         const struct gdn_rows *rows, const struct gdn_chunk *chunk, int64_t t,
                         int64_t head, int64_t col, int64_t n);

#endif
