/* SPDX-License-Identifier: Apache-2.0 */
/* A warp's walk through the chunks of a sequence (general_state.cuh computes one chunk). A Block
 * has the arguments a and r, the sequence s and its checkpoints, the head, its columns from
 * first_column on, v_row, and tokens(). */
#ifndef GDN_CUDA_PREFILL_WALK_CUH
#define GDN_CUDA_PREFILL_WALK_CUH

#include "cuda/prefill/general_state.cuh"

/* Sets v of tokens with beta 0 to zero, because it may be NaN (G8). n is of the tokens. n_threads
 * threads, a multiple of 8, call it after they have waited for the tile. */
template <int n_threads, int chunk>
GDN_DEVICE void drop_rows(char *v, int v_row, const chunk_gates<chunk> &gates, int n)
{
    const token_mask writers = tokens_of(gates.writers);
    const int i = threadIdx.x % n_threads;
    if ((writers & tokens_below(n)) == tokens_below(n)) return;
    for (int t = i / 8; t < n; t += n_threads / 8) {
        if (writers >> t & 1) continue;
        for (int x = i % 8 * 16; x < v_row; x += 128)
            *(uint4 *)(v + t * v_row + x) = make_uint4(0, 0, 0, 0);
    }
}

/* Stores the output of a chunk, which is in the place of V. A warp calls it. */
template <class Block>
GDN_DEVICE void store_output(const Block &b, const char *from, char *to, int64_t c, int n_columns)
{
    constexpr int bytes = Block::tiles::bytes; /* also the number of 16 bytes of a row */
    const int lane = threadIdx.x % 32, part = lane % bytes, n = b.tokens(c);
    const int rest = n_columns * bytes - 16 * part;
    to += c * b.chunk * b.r.out.token + 16 * part;
    for (int t = lane / bytes; t < n; t += 32 / bytes)
        if (rest > 0)
            copy_out(to + t * b.r.out.token, from + t * b.v_row + 16 * part, min(rest, 16),
                     b.a.out_wide);
}

/* The values that a warp of the state keeps from chunk to chunk. It has n blocks of keys. */
template <class Block, int n = Block::deep / 16> struct state_warp {
    const Block &b;
    struct prefill_cursor &cursor;
    struct state_part part;
    char *out;     /* its columns of token 0; NULL: no output */
    int64_t start; /* tokens of the sequence before the block's */
    mma_block S[n];
};

/* Returns true if the next checkpoint comes after a token of chunk c. */
template <class Block, int n>
GDN_DEVICE bool has_checkpoint(const state_warp<Block, n> &w, int64_t c)
{
    return w.cursor.at <= w.start + c * Block::work::chunk + w.b.tokens(c);
}

/* Stores checkpoints after tokens of chunk c. */
template <class Block, int n_blocks>
GDN_DEVICE void leave_checkpoints(state_warp<Block, n_blocks> &w, const typename Block::work &work,
                                  const typename Block::work::tokens &U, int64_t c)
{
    const struct gdn_cu_rule &r = w.b.r;
    const int64_t before = w.start + c * work.chunk;
    while (has_checkpoint(w, c)) {
        const int64_t n = w.cursor.at - before;
        if (n > 0 && w.cursor.slot >= 0)
            work.leave(
                w.S, U, (int)n,
                place_of(r.checkpoints,
                         w.b.a.by_number & GDN_PREFILL_CHECKPOINTS ? w.cursor.c : w.cursor.slot,
                         w.b.head),
                w.part);
        set_cursor(w.cursor, w.cursor.c + 1, r.batch, w.b.shared.checkpoints);
    }
}

/* Computes U^T of a chunk from R^T, both in u, and (to_end U)^T. careful: also stores checkpoints,
 * and mends R. is_finite: all of R is finite. Returns true if the output must be mended too. For
 * that, mends: spoilt has the tokens that are not finite, and u has zeros there. */
template <bool careful, bool mends, class Block, int n>
GDN_DEVICE bool make_u_rows(state_warp<Block, n> &w, const typename Block::work &work,
                            typename Block::work::operands &u,
                            typename Block::work::operands &weighed, struct spoilt_rows &spoilt,
                            bool is_finite, int64_t c)
{
    typedef typename Block::tiles tiles;
    typename Block::work::tokens U;
    bool slow = careful && (!is_finite || tokens_of(work.vectors->dead) != 0);
    if (slow) {
        spoilt = work.mend_r(u);
        renew(w.S);
    }
    work.make_u(U, u);
    if (slow) spoil(U, spoilt, tokens_of(work.vectors->resets));
    if (careful) leave_checkpoints(w, work, U, c);
    work.weigh_u(weighed, U, 0);
#pragma unroll
    for (int j = 0; j < work.blocks; j++) tiles::pack(u[j], U[j]);
    if (!are_finite<tiles>(u) || slow) {
        slow = true;
        if (mends) spoilt = work.mend_u(u);
    }
    return slow;
}

/* Computes S after a chunk. mends: leaves out keys that are forgotten. */
template <bool careful, class Block, int n>
GDN_DEVICE void update_state(state_warp<Block, n> &w, const typename Block::work &work,
                             const typename Block::work::operands &weighed, bool mends)
{
    if (careful && mends && tokens_of(work.vectors->resets))
        work.template update<true>(w.S, weighed);
    else
        work.template update<false>(w.S, weighed);
}

template <class Block>
GDN_DEVICE void run_chunk(state_warp<Block> &w, const typename Block::work &work, int64_t c)
{
    typename Block::work::operands u, weighed;
    struct spoilt_rows spoilt;
    const bool is_finite = work.make_r(u, w.S);
    const bool slow = make_u_rows<true, true>(w, work, u, weighed, spoilt, is_finite, c);
    if (w.out) {
        __syncwarp(); /* all lanes have read V */
        work.make_o(w.S, u, slow ? &spoilt : NULL);
    }
    update_state<true>(w, work, weighed, slow);
    __syncwarp(); /* all lanes have written their output in the place of V */
    if (w.out) store_output(w.b, work.out, w.out, c, w.part.V - w.part.v);
}

/* Returns the place of the sequence's state in a pool. pool: GDN_PREFILL_... */
template <class Block>
GDN_DEVICE struct state_place sequence_place(const Block &b, const struct gdn_pool_view &view,
                                             int64_t slot, int pool)
{
    return place_of(view, slot >= 0 && b.a.by_number & pool ? b.s.row : slot, b.head);
}

/* Writes zeros to the block's columns of tokens [from, to), counted as row_at() does. */
template <class Block> GDN_DEVICE void zero_tokens(const Block &b, int64_t from, int64_t to)
{
    typedef typename gdn_io<Block::io>::type element;
    const int n = min(16 * b.a.n_state, b.r.V - b.first_column);
    for (int64_t t = from + threadIdx.x / 32; t < to; t += blockDim.x / 32) {
        element *row = (element *)row_at(b.r.out, b.s, t, b.head) + b.first_column;
        for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = 0;
    }
}

#endif
