/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence of a batch, by the rules of plan.c on the host. A kernel cannot refuse what is out of
 * range: it cuts lengths to those that fit, and skips a sequence whose slot does not exist, like
 * padding. So nothing outside the tensors is read or written. Every thread of a warp has the same
 * result. Functions that loop over the batch are for whole warps. */
#ifndef GDN_CUDA_BATCH_CUH
#define GDN_CUDA_BATCH_CUH

#include "cuda/device/io.cuh"

struct gdn_cu_seq {
    int64_t row, batch, first; /* as in struct gdn_seq */
    int64_t n_before, n_tokens, n_valid;
    int64_t read, write; /* slots; -1: starts from zero, or writes nothing */
    bool padding;        /* skipped: its state is not read and not written */
    bool sunk;           /* a row of padding with the sink's slot */
    bool keep_out;
};

GDN_DEVICE int64_t clamp64(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Finds the tokens of sequence b, and which of them are valid. plain, here and below: the batch has
 * no arrays of indices but slots, and no sink. The code is then shorter. */
template <bool plain = false>
GDN_DEVICE void read_range(const struct gdn_cu_batch &b, struct gdn_cu_seq &s)
{
    if (!plain && b.cu_seqlens.data) {
        s.first = clamp64(load_index(b.cu_seqlens, s.row), 0, b.N);
        s.n_tokens = clamp64(load_index(b.cu_seqlens, s.row + 1), s.first, b.N) - s.first;
    } else {
        s.batch = b.padded ? s.row : 0;
        s.n_tokens = b.T;
    }
    if (!plain && b.token_start.data)
        s.n_before = clamp64(load_index(b.token_start, s.row), 0, s.n_tokens);
    s.first += s.n_before;
    s.n_valid = s.n_tokens - s.n_before;
    if (!plain && b.token_count.data)
        s.n_valid = clamp64(load_index(b.token_count, s.row), 0, s.n_valid);
}

/* Returns the slot that an array names; -1: it names none. */
GDN_DEVICE int64_t named_slot(const struct gdn_cu_batch &b, int64_t slot)
{
    return slot < b.first_slot ? -1 : slot;
}

/* Returns the slot of a sequence's initial state; negative: the sequence is padding. */
template <bool plain = false>
GDN_DEVICE int64_t read_start(const struct gdn_cu_batch &b, int64_t row)
{
    if (!b.read_slots.data) return row;
    if (plain || !b.num_accepted_tokens.data) return named_slot(b, load_index(b.read_slots, row));
    const int64_t n = load_index(b.num_accepted_tokens, row);
    return named_slot(b, load_index(b.read_slots, row, clamp64(n, 1, b.read_slots.n_columns) - 1));
}

/* Returns true if an earlier row of padding that has tokens uses the sink. All threads of a warp
 * call it. */
GDN_DEVICE bool sink_is_taken(const struct gdn_cu_batch &b, int64_t row)
{
    bool taken = false;
    for (int64_t i = threadIdx.x % 32; i < row && !taken; i += 32) {
        struct gdn_cu_seq s = {};
        s.row = i;
        read_range(b, s);
        taken = s.n_tokens > 0 && read_start(b, i) < 0;
    }
    return __any_sync(0xffffffff, taken);
}

/* Returns sequence `row`. All threads of a warp call it. */
template <bool plain = false>
GDN_DEVICE struct gdn_cu_seq read_sequence(const struct gdn_cu_batch &b, int64_t row)
{
    struct gdn_cu_seq s = {};
    s.row = row;
    s.read = s.write = -1;
    read_range<plain>(b, s);
    if (s.n_tokens == 0) return s;

    int64_t start = read_start<plain>(b, row);
    s.padding = start < 0;
    if (!plain && s.padding && b.pad_policy == GDN_PAD_SINK && !sink_is_taken(b, row)) {
        s.padding = false;
        s.sunk = true;
        start = b.sink_slot;
    }
    const bool initial =
        plain || !b.has_initial_state.data || load_index(b.has_initial_state, row) != 0;
    if (!s.padding && b.read_pool >= 0 && initial) {
        s.read = start;
        s.padding |= start >= b.read_pool;
    }
    if (!s.padding && b.write_pool >= 0 &&
        (b.write == GDN_WRITE_FINAL || (b.write == GDN_WRITE_EACH && s.sunk))) {
        const bool own = !s.sunk && b.write_slots.data;
        s.write = own ? named_slot(b, load_index(b.write_slots, row)) : start;
        s.padding |= s.write >= b.write_pool;
    }
    if (s.padding) {
        s.read = s.write = -1;
        s.n_valid = 0;
        s.keep_out = b.pad_policy == GDN_PAD_KEEP;
    }
    return s;
}

/* Returns the tokens after the last sequence, as a sequence without valid tokens. */
GDN_DEVICE struct gdn_cu_seq read_rest(const struct gdn_cu_batch &b)
{
    struct gdn_cu_seq s = {};
    s.first = clamp64(load_index(b.cu_seqlens, b.B), 0, b.N);
    s.n_tokens = b.N - s.first;
    s.read = s.write = -1;
    s.padding = true;
    return s;
}

/* Returns the slot of the state after token t with GDN_WRITE_EACH; -1: that state is dropped. */
GDN_DEVICE int64_t each_slot(const struct gdn_cu_batch &b, const struct gdn_cu_seq &s, int64_t t)
{
    if (s.sunk) return t == s.n_valid - 1 ? s.write : -1;
    if (t >= b.write_slots.n_columns) return -1;
    const int64_t slot = named_slot(b, load_index(b.write_slots, s.row, t));
    return slot < b.write_pool ? slot : -1;
}

/* Returns the last sequence of packed tensors that begins at token t or before; -1: there is none.
 * All threads of a warp call it. */
GDN_DEVICE int64_t find_sequence(const struct gdn_cu_batch &b, int64_t t)
{
    int64_t found = -1, low = 0, n = b.B; /* the result is `found` or one of n from `low` on */
    if (!b.cu_seqlens.data) return 0;
    while (n > 0) {
        const int64_t step = (n + 31) / 32, i = threadIdx.x % 32 * step;
        const bool before = i < n && load_index(b.cu_seqlens, low + i) <= t;
        const int count = __popc(__ballot_sync(0xffffffff, before));
        if (count == 0) break;
        found = low + (count - 1) * step;
        n = low + n - found - 1 < step - 1 ? low + n - found - 1 : step - 1;
        low = found + 1;
    }
    return found;
}

/* Returns the parent of token t in a tree, -1: the initial state. */
GDN_DEVICE int64_t parent_of(const struct gdn_cu_batch &b, const struct gdn_cu_seq &s, int64_t t)
{
    if (t >= b.parents.n_columns) return t - 1;
    return clamp64(load_index(b.parents, s.row, t), -1, t - 1);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

/* The checkpoints of a sequence: numbers from first to end - 1. */
struct gdn_cu_checkpoints {
    int64_t first, end;
};

/* Reads the checkpoints of a sequence. All threads of a warp call it. */
GDN_DEVICE struct gdn_cu_checkpoints read_checkpoints(const struct gdn_cu_batch &b,
                                                      const struct gdn_cu_seq &s)
{
    struct gdn_cu_checkpoints c = { 0, 0 };
    if (b.checkpoint_pool < 0 || s.padding || s.sunk) return c;
    if (b.checkpoint_starts.data) {
        c.first = clamp64(load_index(b.checkpoint_starts, s.row), 0, b.n_checkpoints);
        c.end = clamp64(load_index(b.checkpoint_starts, s.row + 1), c.first, b.n_checkpoints);
        return c;
    }
    long long before = 0;
    for (int64_t i = threadIdx.x % 32; i < s.row; i += 32) {
        struct gdn_cu_seq other = {};
        other.row = i;
        read_range(b, other);
        before += other.n_valid / b.checkpoint_every;
    }
    for (int step = 16; step; step /= 2) before += __shfl_xor_sync(0xffffffff, before, step);
    c.first = before;
    c.end = clamp64(before + s.n_valid / b.checkpoint_every, before, b.n_checkpoints);
    return c;
}

/* Returns after how many tokens checkpoint c is, and its slot; -1: it is not wanted. */
GDN_DEVICE int64_t checkpoint_at(const struct gdn_cu_batch &b,
                                 const struct gdn_cu_checkpoints &list, int64_t c, int64_t &slot)
{
    slot = b.checkpoint_slots.data ? named_slot(b, load_index(b.checkpoint_slots, c)) : c;
    if (slot >= b.checkpoint_pool) slot = -1;
    return b.checkpoint_starts.data ? load_index(b.checkpoint_positions, c)
                                    : (c - list.first + 1) * b.checkpoint_every;
}

#endif
