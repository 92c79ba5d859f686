/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel arguments, one struct per family, shared by C and CUDA. Both compilers check the sizes.
 */
#ifndef GDN_CUDA_ARGS_H
#define GDN_CUDA_ARGS_H

#include "gdn.h"
#include "core/formulas.h"
#include "core/views.h"

/* A vector or a small matrix in device memory; data NULL: absent. Strides in elements. */
struct gdn_cu_array {
    const void *data;
    int64_t     stride[2];
    int32_t     dtype, n_columns;
};

/* gdn_batch as kernels read it, by batch.cuh. The host has not checked the contents. */
struct gdn_cu_batch {
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state,
        num_accepted_tokens, token_start, token_count, parents, path, checkpoint_starts,
        checkpoint_positions, checkpoint_slots;
    int64_t B, T, N; /* T: tokens of a padded row; N: tokens of the tensors */
    int64_t read_pool, write_pool, checkpoint_pool; /* slots; -1: no such pool */
    int64_t checkpoint_every, sink_slot, n_checkpoints; /* n_: as many as there are slots for */
    int64_t first_slot; /* slots in arrays below it are none */
    int32_t pad_policy, write;
    int32_t padded, pad;    /* [B][T] */
};

/* x[i] *= factor, n times 16 bytes. */
struct gdn_cu_yardstick {
#ifdef __CUDACC__
    float4 *x;
#else
    void *x;
#endif
    int64_t n;
    float   factor;
    int32_t pad;
};

/* ---- Tensors as lines: rows of the last dimension, for ops that take each by itself ---- */

enum { GDN_CU_LEADS = GDN_MAX_DIMS - 1 };

/* The dimensions before the last that an op's tensors share, merged where strides allow, at least
 * one; the last is the fastest. Together they count the lines. */
struct gdn_cu_leads {
    int64_t size[GDN_CU_LEADS];
    int32_t n, pad;
};

struct gdn_cu_lines {
    char   *data; /* NULL: absent */
    int64_t step[GDN_CU_LEADS]; /* bytes */
    int32_t dtype;
    int32_t access; /* bytes that may be moved at once, 16 or 8, whole quads of elements then;
                       0: single elements */
    int64_t element; /* from one element to the next, in elements; not 1 only in gdn_gates and
                        its gradients */
};

/* gdn_gates: a with g, b with beta, or both. */
struct gdn_cu_gates {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, g, beta;
    struct gdn_cu_array A_log, dt_bias;
    int64_t             n_lines, H;
    float               bound, factor; /* of beta: 1 or 2 */
    int32_t             linear;
    int32_t             each;          /* lines of a thread */
    uint32_t            wide, inverse; /* threads of a line, up to 256; 65536 / wide, rounded up */
};

/* gdn_gates_backward. Blocks of `rows` lines write to sums[block][2][H] what dA_log and ddt_bias
 * get from them. */
struct gdn_cu_gates_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, dg, dbeta, da, db;
    struct gdn_cu_array A_log, dt_bias, dA_log, ddt_bias;
    float              *sums; /* NULL: neither is wanted */
    int64_t             n_lines, H, rows, n_blocks;
    float               bound, factor; /* of beta: 1 or 2 */
    int32_t             linear;
    int32_t             adds;    /* to what the gradients hold */
    int32_t             wants_a; /* da, dA_log or ddt_bias */
    int32_t             pad;
};

/* gdn_l2norm, gdn_rmsnorm_gated: z and weight may be absent. */
struct gdn_cu_norm {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, out, weight; /* weight: one line, */
    int64_t             weight_step;       /* elements that far apart */
    int64_t             n_lines, D;
    int32_t             formula; /* gdn_norm; GDN_NO_NORM: root mean square */
    int32_t             sigmoid;
    float               eps;
    int32_t             lanes; /* that share a line, a power of two; in the forms that do */
    int32_t             zeros; /* lines up to 256: an element of 0 stays 0, whatever its gate */
    int32_t             pad;
};

/* gdn_l2norm_backward. */
struct gdn_cu_l2norm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, dout, dx;
    int64_t             n_lines, D;
    int32_t             formula; /* gdn_norm, not GDN_NO_NORM */
    float               eps;
    int32_t             lanes; /* that share a line, a power of two; in form `row` */
    int32_t             adds;  /* to what dx holds */
};

/* gdn_rmsnorm_gated_backward. Blocks of `rows` lines write to sums[block][D] what dweight gets from
 * them. */
struct gdn_cu_rmsnorm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, dout, dx, dz;
    struct gdn_cu_array weight, dweight;
    float              *sums; /* NULL: dweight is not wanted */
    int64_t             n_lines, D, rows, n_blocks;
    float               eps;
    int32_t             sigmoid;
    int32_t             lanes; /* that share a line, a power of two; in the forms that do */
    int32_t             adds;  /* to what the gradients hold */
};

/* gdn_conv1d. An item is a warp's: some channels of a sequence, a tile or an edge. */
struct gdn_cu_conv {
    struct gdn_cu_batch  batch;
    struct gdn_rows      x, out; /* heads: the steps of channels */
    struct gdn_conv_view weight, bias, from, to, checkpoints;
    /* In place: the inputs before a tile, then the first outputs of a sequence, which wait until
     * the inputs there have been read: [tiles, then sequences][W - 1][D]. Else NULL. */
    float  *edges;
    int64_t D, n_items, n_walks; /* n_walks: the first items that are walks */
    int64_t tile, n_tiles; /* tokens of a tile; tiles in all, */
    int64_t row_tiles;     /* and of one row of a padded batch */
    int32_t W, silu;
    int32_t kept;   /* entries of a state in shared memory, see conv/conv_walk.cuh */
    int32_t access; /* of x and out: 16, 8: channels lie side by side and so many bytes, or four
                       elements at least, move at once; 0: single elements */
    /* key_head not 0 (then access is set): the channels, q of all heads, k of all, v of all, lie in
     * x as Qwen3-Next projects them: each of Hk key heads has K of q, K of k and V of v in
     * key_head elements. */
    int32_t key_head, Hk, K, V;
    /* By rows: those of blocks that walk, before the others; and whether all tokens are valid. */
    int32_t walk_blocks, plain;
};

/* gdn_conv1d_backward. Blocks of `rows` tokens, of all N that the tensors hold, write to
 * sums[block][W + 1][D] what the weights and the bias get from them. */
struct gdn_cu_conv_backward {
    struct gdn_cu_batch  batch;
    struct gdn_rows      x, dout, dx; /* heads: the steps of channels, in elements */
    struct gdn_conv_view weight, bias, dweight, dbias, state, dstate_out, dstate;
    float               *sums; /* NULL: neither is wanted */
    int64_t              D, N, rows, n_blocks;
    int32_t              W, silu;
    int32_t              adds, pad; /* adds: to what the gradients hold */
};

/* One side of gdn_state_copy; steps in bytes. */
struct gdn_cu_copy_side {
    char   *data; /* NULL: absent */
    int64_t n_slots, slot, step[3];
    float  *scales; /* of 8 bits: [slot][head][V], steps in elements */
    int64_t scales_slot, scales_head;
    int32_t dtype;
    int32_t access; /* of lines of the last dimension, see gdn_cu_lines */
};

/*
 * gdn_state_copy: of every pair a box of elements, its dimensions in such an order that those of
 * the last lie side by side in `to`, if in any; merged where strides allow.
 */
struct gdn_cu_copy {
    struct gdn_cu_copy_side from, to;
    struct gdn_cu_array     from_slots, to_slots;
    int64_t  size[3];
    int64_t  n_old, n_pairs, n_units; /* in dimension old_dim the first n_old are zero; units of a
                                         pair, see state_copy.cu */
    uint64_t seed;                    /* of random rounding */
    int32_t  old_dim, turned;         /* turned: the dimension that lies side by side in `from` */
    int32_t  same_pool, random;
    int32_t  high, wide; /* log2 of a tile's sides, along `turned` and along the last */
};

/* The rule: gdn_prefill and gdn_decode, the record ops too. */
struct gdn_cu_rule {
    struct gdn_cu_batch    batch;
    struct gdn_rows        q, k, v, g, beta, out;
    struct gdn_pool_view   from, to, checkpoints;
    struct gdn_cu_array    A_log, dt_bias; /* for raw gates */
    struct gdn_record_rows record_k, record_u, record_g; /* data NULL: no record */
    struct gdn_cu_array    record_count;
    int64_t                record_rows;
    int32_t                Hq, Hk, Hv, H, K, V;
    int32_t                head_map, gate, beta_kind, norm;
    float                  norm_eps, scale, bound;
    int32_t                exact;
};

/* gdn_decode, and gdn_prefill with GDN_EXACT. */
struct gdn_cu_decode {
    struct gdn_cu_rule rule;
    int32_t            n_parts;  /* blocks of a state */
    int32_t            rounding; /* the dtype of the state after each token; GDN_F32: as it is */
    int32_t            simple;   /* nothing in the batch but cu_seqlens and slots */
    int32_t            pad;
};

/* The pools and rows that can be read and written in whole, aligned chunks. */
enum {
    GDN_CU_WIDE_FROM        = 1,
    GDN_CU_WIDE_TO          = 2,
    GDN_CU_WIDE_CHECKPOINTS = 4,
    GDN_CU_WIDE_ROWS        = 8, /* of q and k */
    GDN_CU_WIDE_ALL         = 15
};

enum { GDN_CU_TREE_ON_CHIP = 64 }; /* tokens of a tree whose order needs no memory */

/* gdn_rows and gdn_pool_view with steps of 32 bits, in bytes, which cost a kernel an instruction
 * each. row: from one sequence to the next. */
struct gdn_cu_near {
    char   *data;
    int32_t dtype, row, token, head;
};
struct gdn_cu_pool {
    char   *data;
    int32_t slot, head, row, pad;
};

/* gdn_decode of what engines decode: decode/warp.cuh. */
struct gdn_cu_warp {
    struct gdn_cu_near  q, k, v, g, beta, out;
    struct gdn_cu_pool  from, to;
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state,
        num_accepted_tokens, A_log, dt_bias;
    int64_t             first_slot;
    int32_t             read_pool, write_pool; /* slots; a pool that is not there has any */
    int32_t             N, B, T, K, V;
    int32_t             each, keep, rounds; /* keep: outputs of padding; rounds: every token */
    int32_t             plain;    /* sequence i is row i of the tensors and slot i */
    int32_t             whole;    /* no GDN_EXACT, and whole tiles of 16-byte pieces */
    int32_t             products; /* whole, and q, k, v of bf16: tensor cores may be used */
    int32_t             n_rows;   /* sequences, and one for what is behind the last */
    int32_t             n_blocks; /* of a head, and the inverse of that */
    uint32_t            head_blocks;
    uint32_t            group_q, group_k, group_v; /* 2^32 / heads of a group, rounded up; 0: 1 */
    int32_t             gate, beta_kind, norm;
    float               norm_eps, scale, bound;
};

/* A tensor by sequence (or slot) and head, steps in bytes. */
struct gdn_cu_at {
    char   *data;
    int32_t row, head;
};

/* gdn_decode of one token for each sequence: decode/token.cuh. */
struct gdn_cu_one {
    struct gdn_cu_at from, to, k, q, v, g, beta, A_log, dt_bias, out; /* to, out: data NULL: no */
    int32_t          from_row, to_row; /* of a state, in bytes */
    uint32_t         group_k, group_q, group_v; /* 2^22 / heads of a group, rounded up */
    int32_t          g_bytes, beta_bytes, A_log_bytes, dt_bias_bytes; /* 4 or 2; 0: absent */
    int32_t          gate, beta_kind, norm; /* of absent gates: those that make 1 of 0 */
    float            norm_eps, scale, bound;
    const int32_t   *read_slots, *write_slots; /* NULL: as row; as read_slots */
    int32_t          read_step, write_step, read_pool, write_pool;
    int32_t          first_slot;
    int32_t          keep; /* outputs of padding */
};

/* The same for as many tokens as sequences by cu_seqlens, or with has_initial_state. `head` holds
 * the bytes of an entry of either; data NULL: absent. */
struct gdn_cu_packed {
    struct gdn_cu_one one;
    struct gdn_cu_at  cu_seqlens, initial;
    int32_t           initial_bytes; /* 4 or 1 */
    int32_t           n; /* sequences; block row n has what is behind the last one */
};

/* The same for those of n packed sequences that have one token: decode/token_single.cuh. */
struct gdn_cu_singles {
    struct gdn_cu_one one;
    struct gdn_cu_at  cu_seqlens, initial;
    int32_t           initial_bytes, n;
    int32_t           n_tokens, pad; /* n_tokens: of all */
};

/* The same for states of 8 bits: decode/token_eight.cuh. */
struct gdn_cu_eight {
    struct gdn_cu_one one;
    struct gdn_cu_at  from_scales, to_scales;
    uint64_t          seed;
    int32_t           random, pad; /* random: GDN_ROUND_STOCHASTIC from this seed */
};

/* The same for up to four tokens of each sequence, without initial states: decode/window_k128.cuh.
 * ..._token: step from one token to the next, in bytes; for slots in elements. each: the state
 * after every token is kept, in its slot of write_slots. */
struct gdn_cu_four {
    struct gdn_cu_one one;
    int32_t           k_token, q_token, v_token, g_token, beta_token, out_token;
    int32_t           T, each;
    int32_t           write_token, n_writes; /* n_: so many tokens have a slot */
    const int32_t    *accepted; /* NULL: none */
    int32_t           accepted_step, read_token, n_reads;
    int32_t           pad;
};

/* gdn_conv_view with steps of 32 bits, in bytes. All steps inside a slot fit. */
struct gdn_cu_taps {
    char   *data;
    int32_t dtype, slot, channel, entry;
};

/* gdn_step in one launch: layer/step_general.cuh. It does not read q, k and v of the rule. */
struct gdn_cu_step {
    struct gdn_cu_warp  rule;
    struct gdn_cu_near  x, z; /* z absent: no gate */
    struct gdn_cu_taps  weight, bias, conv; /* conv: the pool of its states */
    struct gdn_cu_array norm_weight;
    int32_t             Hk, group; /* key heads, and value heads of one */
    int32_t             n_columns; /* of a state that a block has */
    int32_t             part_bits; /* log2 of the blocks of a value head */
    int32_t             n_blocks;  /* of a key head, and the inverse of that */
    uint32_t            key_blocks;
    int32_t             share;     /* channels of q and k whose states a block moves, of 2 K */
    int32_t             length;    /* of a state of the convolution */
    int32_t             moves;     /* its states are moved on */
    int32_t             normed;
    float               rms_eps;
};

/* gdn_step of one token for each sequence: layer/step_vk.cuh. It does not read q, k and v of
 * `one`. */
struct gdn_cu_step_rows {
    struct gdn_cu_one  one;
    struct gdn_cu_at   x, z, norm_weight; /* z, norm_weight absent: none */
    struct gdn_cu_taps weight, bias, conv; /* conv: the pool of its states */
    int32_t            norm_weight_bytes;
    int32_t            Hk, group, V; /* key heads, and value heads of one */
    int32_t            n_columns; /* of a state that a block has */
    int32_t            part_bits; /* log2 of the blocks of a value head */
    int32_t            n_blocks;  /* of a key head */
    int32_t            share;     /* channels of q and k whose states a block moves, of 2 K */
    int32_t            pair_step; /* from a pair of entries of two channels to the next, in bytes */
    int32_t            by_entry;  /* the entries of a channel lie side by side */
    int32_t            moves;     /* the convolution's states are moved on */
    int32_t            normed;
    float              rms_eps;
    int32_t            pad;
};

/* gdn_decode with a tree, a record or states of 8 bits; gdn_record_fold. */
struct gdn_cu_walk {
    struct gdn_cu_decode decode;
    char                *memory;      /* of a tree: block_bytes for each block of the grid */
    int64_t              block_bytes;
    int64_t              n_pieces;    /* of work: parts of all states of all sequences */
    int64_t              most_tokens; /* of a tree */
    int32_t              wide;        /* GDN_CU_WIDE_... */
    int32_t              fold;        /* there are no tokens: the record goes into the state */
    int32_t              n_levels;    /* of a tree: states that have a place in memory */
    int32_t              pad;
};

/* gdn_record_commit; gdn_record_fold, of which n_accepted is absent. */
struct gdn_cu_record {
    struct gdn_cu_batch    batch;
    struct gdn_record_rows k, u, g;
    struct gdn_cu_array    count, n_accepted, path;
    int64_t                n_rows;
    int32_t                Hk, H, K, V;
};

/* gdn_block, layer/layer.cu: out (+)= x weight^T. Rows of n_in and n_out elements, and T of them
 * are a row of the batch; weight.token: from one output to the next; ..._step: in elements, from
 * one of the summed to the next. */
struct gdn_cu_block_project {
    struct gdn_rows x, weight, out;
    int64_t         T, n_rows, n_out, n_in, x_step, weight_step;
    int32_t         adds, pad;
};

/* Rows in another order of columns, see calls/layer_backward.h. */
struct gdn_cu_block_weave {
    struct gdn_rows from, to;
    int64_t         n; /* elements of all rows */
    int32_t         heads, part[4], weaves;
};

/* Rows of n elements of tokens, and those of a dense buffer; adds: what is stored, to what is
 * there. */
struct gdn_cu_block_rows {
    struct gdn_cu_batch batch;
    struct gdn_rows     rows, dense;
    int64_t             n;
    int32_t             adds, pad;
};

/* Rows of n elements, `head` of them in a head of out. Rows of padding that keeps its output are
 * left out. gdn_step uses it too. */
struct gdn_cu_block_store {
    struct gdn_cu_batch batch;
    struct gdn_rows     out;
    const char         *from;
    int64_t             n, head;
};

/* The stages of the chunked form, and gdn_summary: one struct for all, of which each reads what it
 * has. rule: q k v g beta, out (of cumsum and output), the state that a sequence starts from and
 * the final one (U of a summary). */
enum { /* of shared memory: blocks that solve for columns, and those that have a strip of a state */
    GDN_CU_COLUMNS_BYTES = 85008,
    GDN_CU_STRIP_BYTES   = 81936
};
struct gdn_cu_stage {
    struct gdn_cu_rule   rule;
    struct gdn_rows      u, w, T;  /* data NULL: not wanted */
    struct gdn_pool_view states;   /* of chunks; */
    int64_t              n_states; /* so many are there */
    struct gdn_pool_view M;        /* of a summary: K columns */
    int64_t              C;
    int64_t              n_chunks; /* at most; with cu_seqlens enough beyond for the tokens that
                                      belong to no sequence */
    int32_t              n_strips, n_before; /* of columns; those of U before those of M */
};

/* S = M S + U of ranges in their order, for every slot and head; S and U: data NULL for zero. */
struct gdn_cu_product {
    struct gdn_pool_view M, S, U, out;
    struct gdn_cu_array  order; /* [slot][n]; data NULL: slot, slot + B, slot + 2 B, ... */
    int64_t              P, B;  /* ranges; others of the order are left out; slots */
    int32_t              H, K, V, n_strips, n, pad; /* n: ranges that a slot passes */
};

#ifdef __cplusplus
#define GDN_CU_ALIGNED(bytes) alignas(bytes)
#else
#define GDN_CU_ALIGNED(bytes) _Alignas(bytes)
#endif

/* CUtensorMap */
struct gdn_cu_map {
    GDN_CU_ALIGNED(64) uint64_t words[16];
};

/*
 * gdn_prefill_backward: backward/backward.cuh. It works on a window at a time, of which memory has
 * what the kernels hand on: the same few chunks of every sequence, or a few of all chunks, which
 * are numbered through the batch then.
 */
enum { GDN_CU_BACKWARD_CHUNK = 64, GDN_CU_REVERSE_BYTES = 91152, GDN_CU_GRADIENTS_BYTES = 77576 };
/* On tensor cores: bytes of a chunk and a state head in memory, and of the kernels' blocks. */
enum {
    GDN_CU_BACKWARD_SQUARES = 18464, /* and as many tiles as K and V need, */
    GDN_CU_BACKWARD_TILE    = 8192,
    GDN_CU_BACKWARD_NORMS   = 1024, /* of a key head, beside its tiles */
    GDN_CU_PREPARE_BYTES      = 50048,
    GDN_CU_PREPARE_DEEP_BYTES = 76672, /* K above 128 */
    GDN_CU_WALK_BYTES         = 225664,
    GDN_CU_HEADS_BYTES        = 227840,
    GDN_CU_HEADS_WIDE_BYTES   = 232000 /* K or V above 128 */
};
/* The same of those by mma.sync. There are one or two stages of walks, and one or two loads of
 * heads, after what they share. */
enum {
    GDN_CU_PORTABLE_WAY_BYTES    = 33280,
    GDN_CU_PORTABLE_STAGE_BYTES  = 59520,
    GDN_CU_PORTABLE_SHARED_BYTES = 26112,
    GDN_CU_PORTABLE_LOAD_BYTES   = 57344,
    GDN_CU_PORTABLE_WALK_LEAST   = GDN_CU_PORTABLE_WAY_BYTES + GDN_CU_PORTABLE_STAGE_BYTES,
    GDN_CU_PORTABLE_WALK_BYTES   = GDN_CU_PORTABLE_WALK_LEAST + GDN_CU_PORTABLE_STAGE_BYTES,
    GDN_CU_PORTABLE_HEADS_LEAST  = GDN_CU_PORTABLE_SHARED_BYTES + GDN_CU_PORTABLE_LOAD_BYTES,
    GDN_CU_PORTABLE_HEADS_BYTES  = GDN_CU_PORTABLE_HEADS_LEAST + GDN_CU_PORTABLE_LOAD_BYTES
};
enum { GDN_CU_WALK_FORWARD = 1, GDN_CU_WALK_REVERSE = 2 };

/* A sequence of more than `whole` tokens as segments (segments.cuh): the tokens of the first, and
 * of those after it, both multiples of 64; and the token where unit 1 begins: `first`, or 0
 * in gdn_summary and in gradients, where the first segment of a longer sequence is a unit too. */
struct gdn_cu_segments {
    int64_t   whole, first, each, start;
    float    *states, *M; /* [units][H][V][K], [units][H][K][K]; states NULL: there are none */
    uint32_t *marks;      /* [units][H][2]: GDN_SEGMENT_... of chunks that are even and odd */
    int32_t   later;      /* those after the first are the launch's */
    int32_t   units;      /* there is room for so many, whatever cu_seqlens says */
    float    *left;       /* [H][n_left]: with an early stop of those (left.cuh) */
    int64_t   n_left;
    int32_t  *stops;      /* [B][H]: so many first chunks count in a walk back; NULL: all do */
};

/* The place of a chunk's tokens in the tensors. */
struct gdn_cu_place {
    int64_t batch, first;
    int32_t n, pad;
};
struct gdn_cu_backward {
    struct gdn_cu_map    v_map, dout_map; /* on tensor cores */
    struct gdn_cu_rule   rule; /* q, k: of chunks, normalised and scaled; to: dstate */
    struct gdn_rows      q, k; /* as they were given */
    struct gdn_rows      dout, dq, dk, dv, dg, dbeta;
    struct gdn_cu_array  dA_log, ddt_bias;
    struct gdn_pool_view dstate_out;
    struct gdn_pool_view starts; /* [sequence and window]: states before a window; with a plan
                                    [window]; or checkpoints */
    struct gdn_pool_view carry;  /* [sequence]: the gradient of the state before the last window;
                                    with a plan [2]: before odd windows and even ones */
    struct gdn_pool_view S, J;   /* [chunk]: states before it, gradients of those after it; J on
                                    tensor cores: [unit]: gradients of their first states */
    struct gdn_rows      u, z, head_dq, head_dk; /* of chunks and state heads */
    double              *sums;     /* [chunk][H][2], of dA_log and ddt_bias */
    char                *records;  /* [chunk][H], on tensor cores; else NULL, as are */
    char                *keys;     /* [chunk][Hk], */
    char                *scratch;  /* of the kernels of gdn_prefill, and */
    struct gdn_cu_place *places;   /* [chunk] */
    int64_t             *plan;     /* of windows through the batch (backward/plan.cuh); else NULL */
    int64_t              n_chunks; /* of a window, at most; */
    int64_t              window_chunks; /* and of one sequence; 0: through the batch */
    int64_t              window, n_windows;
    int64_t              n_tokens; /* of the tensors */
    int32_t              n_strips; /* of a state's columns */
    int32_t              adds;     /* to what the gradients hold */
    int32_t              n_blocks; /* not 0: on tensor cores, by so many blocks at once; with
                                      walk_bytes by mma.sync, else by Hopper's products */
    int32_t              walks;    /* of those: the directions of this launch, bits */
    int32_t              starts_every; /* starts are checkpoints of gdn_prefill, after each so many
                                          tokens; the caller's if rule.batch has a pool. 0: they
                                          are of own walks */
    int32_t              record_bytes; /* from one record to the next */
    struct gdn_cu_segments cut; /* of the walk to dstate alone: backward/parts.cuh; */
    int64_t              n_parts; /* sequences and units in a window, at most */
    float                drop;    /* J and Z are 1 / drop times as large: a power of two */
    int32_t              key_bytes; /* the same of key heads */
    int32_t              walk_bytes, heads_bytes; /* shared memory of the kernels by mma.sync; 0:
                                         not by them */
    int32_t              pad[6];
};

#ifdef __cplusplus
#define GDN_CU_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), #type)
#else
#define GDN_CU_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#endif
GDN_CU_SIZE(gdn_cu_map, 128);
GDN_CU_SIZE(gdn_cu_array, 32);
GDN_CU_SIZE(gdn_cu_batch, 12 * 32 + 10 * 8 + 16);
GDN_CU_SIZE(gdn_cu_rule, 480 + 6 * 40 + 3 * 80 + 2 * 32 + 3 * 40 + 32 + 8 + 14 * 4);
GDN_CU_SIZE(gdn_cu_yardstick, 24);
GDN_CU_SIZE(gdn_cu_conv_backward, 480 + 3 * 40 + 7 * 48 + 40 + 16);
GDN_CU_SIZE(gdn_cu_conv, 480 + 2 * 40 + 5 * 48 + 56 + 32 + 8);
GDN_CU_SIZE(gdn_cu_copy_side, 80);
GDN_CU_SIZE(gdn_cu_copy, 2 * 80 + 2 * 32 + 6 * 8 + 8 + 24);
GDN_CU_SIZE(gdn_cu_leads, 48);
GDN_CU_SIZE(gdn_cu_lines, 64);
GDN_CU_SIZE(gdn_cu_gates, 48 + 4 * 64 + 2 * 32 + 16 + 24);
GDN_CU_SIZE(gdn_cu_gates_backward, 48 + 6 * 64 + 4 * 32 + 40 + 24);
GDN_CU_SIZE(gdn_cu_norm, 48 + 4 * 64 + 24 + 24);
GDN_CU_SIZE(gdn_cu_l2norm_backward, 48 + 3 * 64 + 16 + 16);
GDN_CU_SIZE(gdn_cu_rmsnorm_backward, 48 + 5 * 64 + 2 * 32 + 40 + 16);
GDN_CU_SIZE(gdn_cu_block_project, 3 * 40 + 48 + 8);
GDN_CU_SIZE(gdn_cu_block_weave, 2 * 40 + 8 + 6 * 4);
GDN_CU_SIZE(gdn_cu_block_rows, 480 + 2 * 40 + 16);
GDN_CU_SIZE(gdn_cu_block_store, 480 + 40 + 24);
GDN_CU_SIZE(gdn_cu_decode, 1240 + 4 * 4);
GDN_CU_SIZE(gdn_cu_near, 24);
GDN_CU_SIZE(gdn_cu_pool, 24);
GDN_CU_SIZE(gdn_cu_warp, 6 * 24 + 2 * 24 + 7 * 32 + 8 + 25 * 4 + 4);
GDN_CU_SIZE(gdn_cu_at, 16);
GDN_CU_SIZE(gdn_cu_one, 10 * 16 + 15 * 4 + 4 + 2 * 8 + 6 * 4);
GDN_CU_SIZE(gdn_cu_packed, 264 + 2 * 16 + 2 * 4);
GDN_CU_SIZE(gdn_cu_singles, 264 + 2 * 16 + 4 * 4);
GDN_CU_SIZE(gdn_cu_eight, 264 + 2 * 16 + 8 + 2 * 4);
GDN_CU_SIZE(gdn_cu_four, 264 + 10 * 4 + 8 + 4 * 4);
GDN_CU_SIZE(gdn_cu_taps, 24);
GDN_CU_SIZE(gdn_cu_step, 528 + 2 * 24 + 3 * 24 + 32 + 11 * 4 + 4);
GDN_CU_SIZE(gdn_cu_step_rows, 264 + 3 * 16 + 3 * 24 + 14 * 4);
GDN_CU_SIZE(gdn_cu_walk, 1256 + 4 * 8 + 4 * 4);
GDN_CU_SIZE(gdn_cu_record, 480 + 3 * 40 + 3 * 32 + 8 + 4 * 4);
GDN_CU_SIZE(gdn_cu_stage, 1240 + 3 * 40 + 2 * 80 + 3 * 8 + 2 * 4);
GDN_CU_SIZE(gdn_cu_product, 4 * 80 + 32 + 16 + 6 * 4);
GDN_CU_SIZE(gdn_cu_backward,
            2 * 128 + 1240 + 8 * 40 + 2 * 32 + 5 * 80 + 4 * 40 + 11 * 8 + 6 * 4 + 88 + 8 + 40);
GDN_CU_SIZE(gdn_cu_segments, 88);

#endif
