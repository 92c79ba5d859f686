/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution. A warp has 128 channels, a lane four of them, and walks down tokens with
 * the last inputs in registers. Four kinds of items:
 *
 *     walk   a sequence: its states first, from inputs that out may overwrite, then its outputs,
 *            if asked for. All that short sequences and trees need; else for states alone.
 *     tile   the outputs of some tokens, whatever sequences they belong to
 *     step   one token each of some sequences, and states of three entries, moved side by side
 *     edge   in place: the inputs before a tile and before a sequence, saved before out overwrites
 *            them, and a final state the first one
 *
 * A token's sum goes from the bias over the oldest tap to the newest, in every kind the same.
 * Shared memory of a warp (walk): rows of 128 floats, `kept` of the state that the sequence starts
 * from, its newest entries, and as many of the one that is written.
 */
#include "conv_step.cuh"

/* ---- Inputs before the first token --------------------------------------------------------- */

/* Input t of the state that s starts from, t < 0: -1 is the newest. */
GDN_DEVICE void load_entry(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const struct gdn_cu_seq &s, int64_t t)
{
    const struct gdn_conv_view &v = a.from;
    const int64_t               at = s.read * v.slot + (v.length + t) * v.entry;
    const bool                  is_there = v.data && s.read >= 0 && v.length + t >= 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        x[j] = is_there && j < l.n
                   ? load_float(v.data, at + (l.first + j * l.step) * v.channel, v.dtype)
                   : 0;
}

/* Input t of a sequence that is a chain. */
template <int dtype>
GDN_DEVICE void load_input(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const struct gdn_cu_seq &s, int64_t t)
{
    if (t >= 0) load_row<dtype>(x, a, l, row_at(a.x, s.batch, s.first + t));
    else load_entry(x, a, l, s, t);
}

/* Four floats of a row of a warp's shared memory. */
GDN_DEVICE void get_row(float (&x)[4], const float *row, const struct gdn_lane &l)
{
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = row[j * l.step];
}
GDN_DEVICE void put_row(float *row, const struct gdn_lane &l, const float (&x)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) row[j * l.step] = x[j];
}

/* ---- States -------------------------------------------------------------------------------- */

/* What a warp that walks a sequence has. */
struct gdn_walk {
    struct gdn_lane   lane;
    struct gdn_cu_seq seq;
    float            *old, *tile; /* [kept][CHANNELS] each */
    int               kept, n;    /* n: channels of the warp */
    int64_t           channel;    /* the first of them */
    bool              is_tree;
};

/* `count` entries from `first` on of all the warp's channels, between a state and rows of shared
 * memory; lanes that follow each other have elements that lie side by side. */
template <bool is_store>
GDN_DEVICE void move_entries(const struct gdn_walk &w, const struct gdn_conv_view &v, int64_t slot,
                             int64_t first, int count, float *rows)
{
    const bool    by_entry = (v.entry < 0 ? -v.entry : v.entry) <=
                          (v.channel < 0 ? -v.channel : v.channel);
    const int64_t base = slot * v.slot + w.channel * v.channel + first * v.entry;
    const int     inner = by_entry ? count : w.n, outer = by_entry ? w.n : count;
    const int64_t step = by_entry ? v.entry : v.channel, leap = by_entry ? v.channel : v.entry;
    const int     row_step = by_entry ? CHANNELS : 1, row_leap = by_entry ? 1 : CHANNELS;
    const int     lane = threadIdx.x % 32, more = 32 / inner, rest = 32 % inner;
    for (int o = lane / inner, i = lane % inner; o < outer;) {
        const int64_t at  = base + o * leap + i * step;
        float        *row = rows + o * row_leap + i * row_step;
        if (is_store) store_float(v.data, at, v.dtype, *row);
        else *row = load_float(v.data, at, v.dtype);
        o += more, i += rest;
        if (i >= inner) o++, i -= inner;
    }
}

/* Which input came n before that of token t, the t-th that is fed: back along its tree, its path
 * or the row. Below 0: before the sequence's tokens, the newest is -1. */
GDN_DEVICE int64_t earlier(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t t,
                           int64_t n)
{
    const struct gdn_cu_batch &b = a.batch;
    if (w.is_tree) {
        for (; n > 0 && t >= 0; n--) t = parent_of(b, w.seq, t);
        return t - n;
    }
    if (t < n || !b.path.data) return t - n;
    const int64_t last = w.seq.n_tokens - w.seq.n_before - 1;
    return t - n < b.path.n_columns ? clamp64(load_index(b.path, w.seq.row, t - n), 0, last) : 0;
}

/* Input t in the order of earlier(). */
GDN_DEVICE void load_any(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_walk &w,
                         int64_t t)
{
    if (t < 0 && t >= -w.kept) get_row(x, w.old + (w.kept + t) * CHANNELS + w.lane.place, w.lane);
    else load_input<floats>(x, a, w.lane, w.seq, t);
}

/*
 * The state after token `last` (-1: before all). Entries are written from the oldest up, so where
 * the slot is the one that the sequence starts from, what is still to be read lies ahead.
 */
GDN_DEVICE void store_state(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t last,
                            const struct gdn_conv_view &to, int64_t slot)
{
    for (int64_t first = 0; first < to.length; first += w.kept) {
        const int count = to.length - first < w.kept ? (int)(to.length - first) : w.kept;
        __syncwarp();
        for (int i = 0; i < count; i++) {
            float x[4];
            load_any(x, a, w, earlier(a, w, last, to.length - 1 - first - i));
            put_row(w.tile + i * CHANNELS + w.lane.place, w.lane, x);
        }
        __syncwarp();
        move_entries<true>(w, to, slot, first, count, w.tile);
    }
}

GDN_DEVICE bool is_start(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t slot)
{
    return a.from.data == a.to.data && w.seq.read == slot;
}

/*
 * Checkpoints, then the final state, or those after every token (GDN_WRITE_EACH); of these the one
 * whose slot the sequence starts from comes last, when nobody needs that any more.
 */
GDN_DEVICE void store_states(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const int64_t T = w.seq.n_valid;
    const bool    each = a.batch.write == GDN_WRITE_EACH;
    struct gdn_cu_checkpoints list = { 0, 0 };
    if (a.checkpoints.data) list = read_checkpoints(a.batch, w.seq);
    const int64_t n = list.end - list.first, end = n + (each ? T + 1 : 1);
    int64_t       late = -1;
#pragma unroll 1
    for (int64_t i = 0; i < end; i++) {
        int64_t last, slot;
        if (i < n) {
            last = checkpoint_at(a.batch, list, list.first + i, slot) - 1;
            if (last < 0 || last >= T) slot = -1;
        } else if (!each) {
            last = T - 1, slot = w.seq.write;
            if (T == 0 && is_start(a, w, slot)) slot = -1;
        } else if (i < n + T) {
            last = i - n, slot = each_slot(a.batch, w.seq, last);
            if (slot >= 0 && is_start(a, w, slot)) late = last, slot = -1;
        } else {
            last = late, slot = late < 0 ? -1 : w.seq.read;
        }
        if (slot >= 0) store_state(a, w, last, i < n ? a.checkpoints : a.to, slot);
    }
}

/* ---- Walks --------------------------------------------------------------------------------- */

/* Tokens [t, end) of a sequence, which follow each other. */
template <int TAPS>
GDN_DEVICE void convolve_from(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t t,
                              int64_t end)
{
    float past[TAPS - 1][4] = {}, *row = w.tile + w.lane.place;
#pragma unroll 1
    for (int n = 1; n < a.W; n++) {
        float x[4];
        load_any(x, a, w, earlier(a, w, t, n));
        put_row(row + (n - 1) * CHANNELS, w.lane, x);
    }
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        if (i + a.W >= TAPS) get_row(past[i], row + (TAPS - 2 - i) * CHANNELS, w.lane);
    convolve<floats, TAPS>(a, w.lane, w.seq, past, t, end);
}

/* A chain at once; a tree from the last token back: out may be x, and a token needs the inputs of
 * earlier ones only. */
template <int TAPS>
GDN_DEVICE void write_out(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const struct gdn_cu_seq &s = w.seq;
    if (!s.keep_out) {
        zero_rows(a, w.lane, s.batch, s.first - s.n_before, s.first);
        zero_rows(a, w.lane, s.batch, s.first + s.n_valid, s.first - s.n_before + s.n_tokens);
    }
    __syncwarp(); /* the tile has been read */
    if (s.n_valid == 0) return;
#pragma unroll 1
    for (int64_t t = w.is_tree ? s.n_valid - 1 : 0; t >= 0; t--)
        convolve_from<TAPS>(a, w, t, w.is_tree ? t + 1 : s.n_valid);
}

/* The newest entries of the state that the sequence starts from, or zeros. */
GDN_DEVICE void load_old(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const bool is_there = a.from.data && w.seq.read >= 0;
    for (int i = threadIdx.x % 32; i < w.kept * CHANNELS && !is_there; i += 32) w.old[i] = 0;
    if (is_there)
        move_entries<false>(w, a.from, w.seq.read, a.from.length - w.kept, w.kept, w.old);
    __syncwarp();
}

template <int dtype, int TAPS> GDN_DEVICE void conv_walk(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    if (item >= a.n_items) return;
    const int64_t row = item / chunks;
    struct gdn_walk w = {};
    w.lane            = find_lane(a, item % chunks);
    if (row == a.batch.B) { /* behind the last sequence */
        zero_rows(a, w.lane, 0, clamp64(load_index(a.batch.cu_seqlens, row), 0, a.batch.N),
                  a.batch.N);
        return;
    }
    w.seq = read_sequence(a.batch, row);
    if (w.seq.n_tokens == 0) return;
    w.channel = item % chunks * CHANNELS;
    w.n       = a.D - w.channel < CHANNELS ? (int)(a.D - w.channel) : CHANNELS;
    w.kept    = a.kept;
    w.is_tree = a.batch.parents.data && !a.batch.path.data;
    w.old     = gdn_conv_shared + threadIdx.x / 32 * 2 * w.kept * CHANNELS;
    w.tile    = w.old + w.kept * CHANNELS;
    load_old(a, w);
    store_states(a, w);
    if (a.out.data) write_out<TAPS>(a, w);
}

/* ---- Tiles --------------------------------------------------------------------------------- */

/* Where a tile of tokens begins and ends; in a row of a padded batch, or packed. */
struct gdn_tile {
    int64_t row, first, end;
};

GDN_DEVICE struct gdn_tile find_tile(const struct gdn_cu_conv &a, int64_t tile)
{
    const struct gdn_cu_batch &b = a.batch;
    struct gdn_tile            t = { 0, tile * a.tile, 0 };
    if (b.padded) {
        t.row   = tile / a.row_tiles;
        t.first = tile % a.row_tiles * a.tile;
    }
    t.end = t.first + a.tile < b.T ? t.first + a.tile : b.T;
    return t;
}

/* The row of an edge that has the input n before it. */
GDN_DEVICE float *edge_row(const struct gdn_cu_conv &a, const struct gdn_lane &l, int64_t edge,
                           int n)
{
    return a.edges + (edge * (a.W - 1) + a.W - 1 - n) * a.D + l.first;
}

template <int dtype, int TAPS>
GDN_DEVICE void load_past(float (&past)[TAPS - 1][4], const struct gdn_cu_conv &a,
                          const struct gdn_lane &l, const struct gdn_cu_seq &s, int64_t t,
                          int64_t tile)
{
    const int64_t edge = t > 0 ? tile : a.n_tiles + s.row;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) {
        if (i + a.W < TAPS) continue;
        if (!a.edges) {
            load_input<dtype>(past[i], a, l, s, t - (TAPS - 1 - i));
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < l.n) past[i][j] = edge_row(a, l, edge, TAPS - 1 - i)[j * l.step];
    }
}

/* The tokens of one sequence from t on that are in the tile. Returns the first one behind. */
template <int dtype, int TAPS>
GDN_DEVICE int64_t convolve_run(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                                const struct gdn_cu_seq &s, int64_t t, int64_t end, int64_t tile)
{
    const int64_t stop = s.first - s.n_before + s.n_tokens < end
                             ? s.first - s.n_before + s.n_tokens : end;
    const int64_t from = clamp64(s.first, t, stop), to = clamp64(s.first + s.n_valid, from, stop);
    if (from < to) {
        float past[TAPS - 1][4] = {};
        load_past<dtype, TAPS>(past, a, l, s, from - s.first, tile);
        convolve<dtype, TAPS>(a, l, s, past, from - s.first, to - s.first);
    }
    if (!s.keep_out) {
        zero_rows(a, l, s.batch, t, from);
        zero_rows(a, l, s.batch, to, stop);
    }
    return stop;
}

template <int dtype, int TAPS> GDN_DEVICE void conv_tile(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    if (item >= a.n_items) return;
    const struct gdn_lane l    = find_lane(a, item % chunks);
    const struct gdn_tile tile = find_tile(a, item / chunks);
    for (int64_t t = tile.first; t < tile.end;) {
        const int64_t row = a.batch.padded ? tile.row : find_sequence(a.batch, t);
        struct gdn_cu_seq s = {};
        if (row >= 0) s = read_sequence(a.batch, row);
        if (row < 0 || s.first - s.n_before + s.n_tokens <= t) { /* of no sequence */
            zero_rows(a, l, tile.row, t, tile.end);
            return;
        }
        t = convolve_run<dtype, TAPS>(a, l, s, t, tile.end, item / chunks);
    }
}

/* ---- Edges --------------------------------------------------------------------------------- */

template <int dtype, int TAPS> GDN_DEVICE void conv_edge(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    const int64_t edge = item / chunks;
    if (item >= a.n_items) return;
    const bool            is_tile = edge < a.n_tiles;
    const struct gdn_lane l       = find_lane(a, item % chunks);
    const struct gdn_tile tile    = find_tile(a, is_tile ? edge : 0);
    int64_t               row     = is_tile ? tile.row : edge - a.n_tiles;
    if (is_tile && !a.batch.padded) row = find_sequence(a.batch, tile.first);
    if (row < 0) return;
    const struct gdn_cu_seq s = read_sequence(a.batch, row);
    const int64_t           t = is_tile ? tile.first - s.first : 0;
    if (t >= s.n_valid || (is_tile && t <= 0)) return;
    for (int n = a.W - 1; n > 0; n--) {
        float x[4];
        load_input<dtype>(x, a, l, s, t - n);
        for (int j = 0; j < l.n; j++) edge_row(a, l, edge, n)[j * l.step] = x[j];
    }
}

#define GDN_IMAGE_conv GDN_THIS_IMAGE
#define GDN_KERNEL_conv(threads, shared, kind, dtype, taps)                                   \
    extern "C" __global__ void __launch_bounds__(threads, taps == 4 ? 5 : 3)                  \
        gdn_conv_##kind##_##dtype##_##taps(const __grid_constant__ struct gdn_cu_conv a)      \
    {                                                                                         \
        conv_##kind<dtype, taps>(a);                                                          \
    }
#include "kernels.cuh"
