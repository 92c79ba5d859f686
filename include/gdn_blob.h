/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_blob.h - states of sequences as one piece of memory, for files and other machines.
 *
 * This header is the manual of these calls. Letters, conventions and guarantees are those of gdn.h,
 * and these:
 *
 *   G15  A blob that was cut, lengthened, or changed in up to 32 bits that follow each other is
 *        refused whole. Other damage passes with a probability of 2^-32.
 *   G16  gdn_blob_merge of all slices of a blob gives that blob, bit for bit.
 *
 * Blobs are in host memory. In a context of a GPU gdn_blob_bytes(), gdn_blob_save() and
 * gdn_blob_load() return GDN_E_UNSUPPORTED.
 */
#ifndef GDN_BLOB_H
#define GDN_BLOB_H

#include "gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- State blobs ----------------------------------------------------------------------------- */

/*
 * A blob holds the states of some sequences in one layer, and describes itself: heads and their
 * map, dtypes, layout, positions, the part of the layer, a checksum. It is a piece of host memory.
 * The caller writes files (`gdn state` does so). docs/start/state-blob.md is the format. Blobs and
 * the machine are little-endian (else GDN_E_UNSUPPORTED). A blob in memory is aligned to 8 bytes
 * (else GDN_E_ARG).
 *
 * The format has one version number. A library reads the versions it knows and refuses a newer
 * one with GDN_E_UNSUPPORTED. It writes the lowest version that can hold the content: 3 for states
 * of GDN_E5M2 and states of 8 bits without scales, 2 for other states of 8 bits and for heads that
 * several ranks have, else 1.
 *
 *     state       [P][H][V][K]   f32, bf16, f16, i8, e4m3 or e5m2 in state_layout, H = max(Hq, Hv);
 *                                any strides; or absent
 *     state_scales [P][H][V]     f32, dense; for a state of 8 bits (e4m3 and e5m2 may have none),
 *                                otherwise absent
 *     conv_state  [P][D][S]      channels in the order q, k, v, D = Hq K + Hk K + Hv V; any
 *                                strides; or absent
 *     slots       [B]            the slot of sequence b. Absent: slot b, and B is P.
 *     position    [B]            I32 or I64: how many tokens sequence b has seen. Absent: 0.
 *
 * gdn_blob_bytes    sets *bytes to the size of the blob that gdn_blob_save would write. It ignores
 *                   blob.
 * gdn_blob_save     writes a blob of at most blob_bytes to blob, in the dtypes and the layout of
 *                   state and conv_state. Slots are not negative. Equal content gives equal bytes.
 * gdn_blob_inspect  checks all of a blob and describes it. The tensors are dense views of the
 *                   blob itself, to be read only, data NULL where it has none; position.size[0]
 *                   is B.
 * gdn_blob_load     checks all of a blob, then writes state, conv_state and position. Any of these
 *                   may be absent. It converts to their dtypes, layout and S as gdn_state_copy()
 *                   does. Heads, map, rank and n_ranks must equal the blob's. If the slot of a
 *                   sequence is negative, only its position is written.
 *
 * Tensor parallelism. The heads of q, k and v are cut into n equal parts. Rank r of n has the r-th
 * part, its channels, and the state heads that read it:
 *
 *     GDN_HEADS_GROUPED      heads that follow each other; n divides Hq, Hk and Hv
 *     GDN_HEADS_INTERLEAVED  with G, the least of Hq, Hk and Hv: the heads whose number modulo G
 *                            is in the r-th part of 0..G-1. n divides G, and G divides the others.
 *
 * There may be more ranks than heads of q, k or v, if n divides H. If n is c times the heads of a
 * tensor, then c ranks that follow each other have a copy of the same head. A part says so in its
 * field query_copies, key_copies or value_copies, which is c. The state heads that read this head
 * are divided among the c ranks. If the map is GDN_HEADS_INTERLEAVED and n is above G, then each
 * of Hq, Hk and Hv is G or H. A rank that saves its own part sets the fields in its gdn_blob_args.
 *
 * Any other division is GDN_E_UNSUPPORTED. Inside a part, the same map holds between its heads.
 *
 * gdn_blob_slice    writes the part of rank `rank` of `n_ranks` of a whole (n_ranks 1) blob
 * gdn_blob_merge    writes the whole, from all n parts in any order. Their positions must agree,
 *                   and so must the copies of a head.
 *
 * Both set *needed to the size of the result. If out is NULL, they do nothing else.
 *
 * Guarantees: G1, G3, G6, G12, G14 to G16. Errors: as for gdn_state_copy(). Memory that is no blob,
 * or a damaged one, is GDN_E_ARG. If out is too small, GDN_E_MEMORY.
 */
typedef struct gdn_blob_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor state, conv_state, slots, position;
    int32_t state_layout;                              /* gdn_state_layout, of state */
    int32_t head_map;                                  /* gdn_head_map */
    int32_t n_query_heads, n_key_heads, n_value_heads; /* Hq (0: Hk), Hk, Hv */
    int32_t key_head_dim, value_head_dim;              /* K, V */
    int32_t rank, n_ranks;                             /* n_ranks 0: 1, the whole layer */
    int32_t reserved;                                  /* 0 */
    void *blob;                                        /* gdn_blob_load only reads it */
    size_t blob_bytes;
    gdn_tensor state_scales;                        /* beside a state of 8 bits */
    int32_t query_copies, key_copies, value_copies; /* ranks that have each head; 0: 1 */
    int32_t rounding; /* gdn_rounding, where gdn_blob_load converts to 8 bits */
    uint64_t seed;    /* for GDN_ROUND_STOCHASTIC */
} gdn_blob_args;

GDN_DEFINE_INIT(gdn_blob_args, gdn_blob_args_init)

typedef struct gdn_blob_info {
    uint32_t struct_size;
    uint32_t version; /* of the format */
    gdn_tensor state, conv_state, position;
    int32_t state_layout;
    int32_t head_map;
    int32_t n_query_heads, n_key_heads, n_value_heads;
    int32_t key_head_dim, value_head_dim;
    int32_t rank, n_ranks;
    uint32_t checksum;
    gdn_tensor state_scales;
    int32_t query_copies, key_copies, value_copies; /* 1 or more */
    int32_t reserved;                               /* 0 */
} gdn_blob_info;

GDN_DEFINE_INIT(gdn_blob_info, gdn_blob_info_init)

GDN_API gdn_status gdn_blob_bytes(gdn_ctx *ctx, const gdn_blob_args *args, size_t *bytes);
GDN_API gdn_status gdn_blob_save(gdn_ctx *ctx, const gdn_blob_args *args);
GDN_API gdn_status gdn_blob_inspect(gdn_ctx *ctx, const void *blob, size_t bytes,
                                    gdn_blob_info *info);
GDN_API gdn_status gdn_blob_load(gdn_ctx *ctx, const gdn_blob_args *args);
GDN_API gdn_status gdn_blob_slice(gdn_ctx *ctx, const void *blob, size_t bytes, int32_t rank,
                                  int32_t n_ranks, void *out, size_t out_bytes, size_t *needed);
GDN_API gdn_status gdn_blob_merge(gdn_ctx *ctx, const void *const *blobs, const size_t *bytes,
                                  int32_t n, void *out, size_t out_bytes, size_t *needed);

#ifdef __cplusplus
}
#endif

#endif
