/* SPDX-License-Identifier: Apache-2.0 */
/* The format of state blobs, docs/start/state-blob.md: header, places of the parts, checksum. */
#ifndef GDN_BLOB_FORMAT_H
#define GDN_BLOB_FORMAT_H

#include "core/ctx.h"
#include "gdn_blob.h"

enum { GDN_BLOB_VERSION = 3, GDN_BLOB_HEADER = 128, GDN_BLOB_NO_DTYPE = -1 };

/* The first bytes of a blob as they lie there. */
struct gdn_blob_header {
    char magic[8]; /* "GDNSTATE" */
    uint32_t version, header_bytes;
    uint64_t total_bytes;
    uint32_t checksum, zero;
    int64_t n_sequences;
    int32_t head_map, n_query_heads, n_key_heads, n_value_heads, key_head_dim, value_head_dim;
    int32_t state_dtype, state_layout; /* GDN_BLOB_NO_DTYPE: there is none; layout 0 */
    int32_t conv_dtype, conv_length;   /* GDN_BLOB_NO_DTYPE: there is none; length 0 */
    int32_t rank, n_ranks;
    int32_t copies[3];    /* from version 2 on: how many ranks have each head of q, k, v; else 0 */
    int32_t no_scales;    /* from version 3 on: 1 if a state of 8 bits has no scales; else 0 */
    uint8_t reserved[24]; /* 0 */
};
_Static_assert(sizeof(struct gdn_blob_header) == GDN_BLOB_HEADER, "no padding");

/* The places of a blob's parts, in bytes from the start; sizes of one sequence. */
struct gdn_blob_places {
    uint64_t position, state, scales, conv, total;
    uint64_t state_bytes, scales_bytes, conv_bytes;
};

/* Ranks that have each head of q (0), of k (1), of v (2). */
static inline int32_t gdn_blob_copies(const struct gdn_blob_header *h, int i)
{
    return h->version < 2 ? 1 : h->copies[i];
}

/* Sets the lowest version that can hold the content, and the copies as that version has them (0:
 * 1). */
void gdn_blob_set_version(struct gdn_blob_header *h);

/* Checks what a header says of its content and finds the places. `name` is for errors. */
gdn_status gdn_blob_place(gdn_ctx *ctx, const struct gdn_blob_header *h, const char *name,
                          struct gdn_blob_places *places);

/* Magic, version and header size: a header that is otherwise zero. */
struct gdn_blob_header gdn_blob_new_header(void);

/* The machine and the alignment of a blob. */
gdn_status gdn_blob_check_memory(gdn_ctx *ctx, const void *blob, const char *name);

/* Returns memory without a type, for the check of overlaps. */
static inline gdn_tensor gdn_blob_memory(const void *memory, size_t n)
{
    return gdn_dense((void *)memory, GDN_U8, 1, (int64_t)n, 0, 0, 0);
}

/* All checks of a blob. */
gdn_status gdn_blob_open(gdn_ctx *ctx, const void *blob, size_t bytes, const char *name,
                         struct gdn_blob_header *h, struct gdn_blob_places *places);

/* Writes zeros to the places of header and positions, and to the gaps between parts and behind
 * them. */
void gdn_blob_clear(char *blob, const struct gdn_blob_header *h, const struct gdn_blob_places *p);

/* Writes header and checksum over content that is otherwise complete. */
void gdn_blob_seal(void *blob, const struct gdn_blob_header *h);

/* Return dense views of the parts of a blob. data is NULL if the blob lacks the part, or if
 * `blob` is NULL. */
gdn_tensor gdn_blob_state(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                          const void *blob);
gdn_tensor gdn_blob_scales(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                           const void *blob);
gdn_tensor gdn_blob_conv(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                         const void *blob);
gdn_tensor gdn_blob_position(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                             const void *blob);

#endif
