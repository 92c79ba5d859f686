/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution. A lane has some channels (gdn_width) and walks down tokens with the last
 * inputs in registers. Eight kinds of items, a warp each:
 *
 *     walk   a sequence: its states first, from inputs that out may overwrite, then its outputs:
 *            all that short sequences and trees need. Beside tiles only the first W - 1 of them, so
 *            that these, and they alone, need the state that it starts from.
 *     tile   the other outputs of some tokens, whatever sequences they belong to
 *     start, rows
 *            the same, of few tokens (conv_tiles.cuh)
 *     one    one token of a sequence, and a state of three or four entries (conv_one.cuh)
 *     edge   in place: the inputs before a tile, saved before out overwrites them
 *     turned outputs of some tokens whose channels do not lie side by side (conv_turned.cuh)
 *
 * A token's sum goes from the bias over the oldest tap to the newest, in every kind the same.
 * Shared memory of a warp (walk): rows of 128 floats, `kept` of the state that the sequence starts
 * from, its newest entries, and as many of the one that is written.
 */
#ifndef GDN_CUDA_CONV_WALK_CUH
#define GDN_CUDA_CONV_WALK_CUH

#include "cuda/conv/conv_one.cuh"
#include "cuda/conv/conv_turned.cuh"

/* ---- Inputs before the first token --------------------------------------------------------- */

/* Loads entry t of the state that s starts from; t < 0, and -1 is the newest entry. */
GDN_DEVICE void load_entry(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const struct gdn_cu_seq &s, int64_t t)
{
    const struct gdn_conv_view &v = a.from;
    const int64_t at = s.read * v.slot + (v.length + t) * v.entry;
    const bool is_there = v.data && s.read >= 0 && v.length + t >= 0;
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        bits[j] = load_bits(v.data, at + (l.first + j * l.step) * v.channel, v.dtype,
                            is_there && j < l.n);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = bits_to_f32(bits[j], v.dtype);
}

/* Loads input t of a sequence that is no tree. io: floats or apart. */
template <int io>
GDN_DEVICE void load_input(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const struct gdn_cu_seq &s, int64_t t)
{
    if (t >= 0)
        load_row<io>(x, a, l, row_at(a.x, s.batch, s.first + t));
    else
        load_entry(x, a, l, s, t);
}

/* Loads four floats of a row of a warp's shared memory. */
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

/* The variables of a warp that walks through a sequence. */
struct gdn_walk {
    struct gdn_lane lane;
    struct gdn_cu_seq seq;
    float *old, *tile; /* [kept][CHANNELS] each */
    int kept, n;       /* n: channels of the warp */
    int64_t channel;   /* the first channel of the warp */
    bool is_tree;
};

/* Moves entries [first, first + count) of all the warp's channels between a state and rows of
 * shared memory. Neighbouring lanes have elements that lie side by side. */
template <bool is_store>
GDN_DEVICE void move_entries(const struct gdn_walk &w, const struct gdn_conv_view &v, int64_t slot,
                             int64_t first, int count, float *rows)
{
    const bool by_entry =
        (v.entry < 0 ? -v.entry : v.entry) <= (v.channel < 0 ? -v.channel : v.channel);
    const int64_t base = slot * v.slot + w.channel * v.channel + first * v.entry;
    const int inner = by_entry ? count : w.n, outer = by_entry ? w.n : count;
    const int64_t step = by_entry ? v.entry : v.channel, leap = by_entry ? v.channel : v.entry;
    const int row_step = by_entry ? CHANNELS : 1, row_leap = by_entry ? 1 : CHANNELS;
    const int lane = threadIdx.x % 32, more = 32 / inner, rest = 32 % inner;
    for (int o = lane / inner, i = lane % inner; o < outer;) {
        const int64_t at = base + o * leap + i * step;
        float *row = rows + o * row_leap + i * row_step;
        if (is_store)
            store_float(v.data, at, v.dtype, *row);
        else
            *row = load_float(v.data, at, v.dtype);
        o += more, i += rest;
        if (i >= inner) o++, i -= inner;
    }
}

/* Returns the number of the input that is n before that of token t. In a tree it goes from parent
 * to parent, with a path by the path, else along the row. Numbers below 0 are entries of the state,
 * -1 the newest. */
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

/* Loads input t, as numbered by earlier(). */
template <int io>
GDN_DEVICE void load_any(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_walk &w,
                         int64_t t)
{
    if (t < 0 && t >= -w.kept)
        get_row(x, w.old + (w.kept + t) * CHANNELS + w.lane.place, w.lane);
    else
        load_input<io>(x, a, w.lane, w.seq, t);
}

/* Stores the state after token `last`; -1: before all tokens. It writes the oldest entries first.
 * So if the sequence started from the same slot, the entries still to be read are not yet
 * overwritten. */
template <int io>
GDN_DEVICE void store_state(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t last,
                            const struct gdn_conv_view &to, int64_t slot)
{
    for (int64_t first = 0; first < to.length; first += w.kept) {
        const int count = to.length - first < w.kept ? (int)(to.length - first) : w.kept;
        __syncwarp();
        for (int i = 0; i < count; i++) {
            float x[4];
            load_any<io>(x, a, w, earlier(a, w, last, to.length - 1 - first - i));
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

/* Stores checkpoints, then the final state, or the state after every token (GDN_WRITE_EACH). The
 * state for the slot that the sequence starts from is stored last, because that slot is read until
 * then. */
template <int io>
GDN_DEVICE void store_states(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const int64_t T = w.seq.n_valid;
    const bool each = a.batch.write == GDN_WRITE_EACH;
    struct gdn_cu_checkpoints list = { 0, 0 };
    if (a.checkpoints.data) list = read_checkpoints(a.batch, w.seq);
    const int64_t n = list.end - list.first, end = n + (each ? T + 1 : 1);
    int64_t late = -1;
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
        if (slot >= 0) store_state<io>(a, w, last, i < n ? a.checkpoints : a.to, slot);
    }
}

/* ---- Walks --------------------------------------------------------------------------------- */

/* Returns where the outputs before token W - 1 of sequence `row` wait, for calls in place. */
GDN_DEVICE float *waiting_row(const struct gdn_cu_conv &a, int64_t row, int64_t t)
{
    return a.edges + ((a.n_tiles + row) * (a.W - 1) + t) * a.D;
}

/* Convolves tokens [t, end). `past` has the inputs before t, and the load of the next row is under
 * way. */
template <int io, int TAPS>
GDN_DEVICE void convolve(const struct gdn_cu_conv &a, const struct gdn_walk &w,
                         float (&past)[TAPS - 1][4], int64_t t, int64_t end)
{
    const struct gdn_lane &l = w.lane;
    struct gdn_taps<TAPS, 4> taps;
    struct gdn_quad next = {};
    const char *x =
        row_at(a.x, w.seq.batch, w.seq.first + t) + bytes_to<io>(a, a.x, l.first + l.shift);
    char *out = out_at<io>(a, l, w.seq.batch, w.seq.first + t);
    float y[4], xs[4];
    load_quad<io>(next, a, l, x);
    load_taps(taps, a, l);
#pragma unroll 1
    for (; t < end; t++, out += a.out.token) {
        unpack<io>(xs, next, a);
        x += a.x.token;
        if (t + 1 < end) load_quad<io>(next, a, l, x);
        sum_taps<TAPS>(y, xs, past, taps, a);
        if (!a.edges) {
            store_quad<io>(out, a, l, y);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < l.n) waiting_row(a, w.seq.row, t)[l.first + j * l.step] = y[j];
    }
}

/* Convolves tokens [t, end) of a sequence, which follow each other. */
template <int io, int TAPS>
GDN_DEVICE void convolve_from(const struct gdn_cu_conv &a, const struct gdn_walk &w, int64_t t,
                              int64_t end)
{
    float past[TAPS - 1][4] = {}, *row = w.tile + w.lane.place;
#pragma unroll 1
    for (int n = 1; n < a.W; n++) {
        float x[4];
        load_any<io>(x, a, w, earlier(a, w, t, n));
        put_row(row + (n - 1) * CHANNELS, w.lane, x);
    }
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        if (i + a.W >= TAPS) get_row(past[i], row + (TAPS - 2 - i) * CHANNELS, w.lane);
    convolve<io, TAPS>(a, w, past, t, end);
}

/* Walks through a sequence: a chain from the first token on, a tree from the last token back. In a
 * tree out may be x, and a token needs inputs of earlier tokens alone. Tiles write all other
 * outputs. */
template <int io, int TAPS>
GDN_DEVICE void write_out(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const struct gdn_cu_seq &s = w.seq;
    const int64_t end = a.n_tiles && a.W - 1 < s.n_valid ? a.W - 1 : s.n_valid;
    if (!s.keep_out && !a.n_tiles) {
        zero_rows<io>(a, w.lane, out_at<io>(a, w.lane, s.batch, s.first - s.n_before), s.n_before);
        zero_rows<io>(a, w.lane, out_at<io>(a, w.lane, s.batch, s.first + s.n_valid),
                      s.n_tokens - s.n_before - s.n_valid);
    }
    __syncwarp(); /* the tile has been read */
    if (end == 0) return;
#pragma unroll 1
    for (int64_t t = w.is_tree ? end - 1 : 0; t >= 0; t--)
        convolve_from<io, TAPS>(a, w, t, w.is_tree ? t + 1 : end);
}

/* Loads the newest entries of the initial state, or zeros. */
GDN_DEVICE void load_old(const struct gdn_cu_conv &a, const struct gdn_walk &w)
{
    const bool is_there = a.from.data && w.seq.read >= 0;
    for (int i = threadIdx.x % 32; i < w.kept * CHANNELS && !is_there; i += 32) w.old[i] = 0;
    if (is_there) move_entries<false>(w, a.from, w.seq.read, a.from.length - w.kept, w.kept, w.old);
    __syncwarp();
}

template <int io, int TAPS> GDN_DEVICE void walk_item(const struct gdn_cu_conv &a, int64_t item)
{
    const int64_t chunks = (a.D + CHANNELS - 1) / CHANNELS, row = item / chunks;
    struct gdn_walk w = {};
    w.channel = (item - row * chunks) * CHANNELS;
    w.lane = find_lane<io>(a, item - row * chunks);
    if (row == a.batch.B) { /* behind the last sequence */
        const int64_t end = clamp64(load_index(a.batch.cu_seqlens, row), 0, a.batch.N);
        zero_rows<io>(a, w.lane, out_at<io>(a, w.lane, 0, end), a.batch.N - end);
        return;
    }
    w.seq = read_sequence(a.batch, row);
    if (w.seq.n_tokens == 0) return;
    w.n = a.D - w.channel < CHANNELS ? (int)(a.D - w.channel) : CHANNELS;
    w.kept = a.kept;
    w.is_tree = a.batch.parents.data && !a.batch.path.data;
    w.old = gdn_conv_shared + threadIdx.x / 32 * 2 * w.kept * CHANNELS;
    w.tile = w.old + w.kept * CHANNELS;
    load_old(a, w);
    store_states<io>(a, w);
    if (a.out.data) write_out<io, TAPS>(a, w);
}

template <int dtype, int TAPS> GDN_DEVICE void conv_walk(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp();
    if (item < a.n_walks) walk_item<dtype, TAPS>(a, item);
}

/* ---- Tiles --------------------------------------------------------------------------------- */

/* Returns the row of an edge with the input that is n before the tile. */
GDN_DEVICE float *edge_row(const struct gdn_cu_conv &a, int64_t edge, int n)
{
    return a.edges + (edge * (a.W - 1) + a.W - 1 - n) * a.D;
}

/* Computes the warp's tile again, so that no registers keep it. */
GDN_DEVICE struct gdn_tile find_tile_again(const struct gdn_cu_conv &a, int64_t chunks)
{
    const int64_t item = (int64_t)blockIdx.x * WARPS + opaque((int)threadIdx.x) / 32 - a.n_walks;
    return find_tile(a, item / chunks);
}

/* Stores the first outputs of a sequence in place, tokens [t, end) of the tile, as the walk has
 * left them. */
template <int dtype>
GDN_DEVICE void move_waiting(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                             const struct gdn_run &r, int t, int end, char *out)
{
    enum { N = gdn_width<dtype>::LANE };
#pragma unroll 1
    for (; t < end; t++, out += a.out.token) {
        const float *from = waiting_row(a, r.sequence, t - r.first) + l.first;
        float y[N];
#pragma unroll
        for (int j = 0; j < N; j++) y[j] = j < l.n ? from[j * l.step] : 0;
        store_quad<dtype>(out, a, l, y);
    }
}

/* Returns a bit for each of the tokens [t, end) that the caller has to write. This function has
 * written the others, from `out` on: rows that are no tokens, and rows that waited. All inputs of
 * these rows have been read. */
template <int dtype>
GDN_DEVICE uint32_t ask_rows(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                             struct gdn_run &r, int64_t chunks, int t, int end, char *out)
{
    uint32_t mask = 0;
#pragma unroll 1
    for (int i = t > 0 ? t : 0; i < end;) {
        if (i >= r.end) r = find_run(a, find_tile_again(a, chunks), i);
        const int stop = r.end < end ? r.end : end;
        const int low = clamp(r.first, i, stop), high = clamp(r.to, low, stop);
        const int from = clamp(r.from, low, high);
        mask |= (1u << (high - t)) - (1u << (from - t));
        if (!r.keep) {
            zero_rows<dtype>(a, l, out + (i - t) * a.out.token, low - i);
            zero_rows<dtype>(a, l, out + (high - t) * a.out.token, stop - high);
        }
        if (a.edges) move_waiting<dtype>(a, l, r, low, from, out + (low - t) * a.out.token);
        i = stop;
    }
    return mask;
}

/* Walks through rows as they lie in memory, from W - 1 before the tile on. A sum that mixes two
 * sequences is not written. AHEAD rows are loaded in advance. */
template <int dtype, int TAPS> GDN_DEVICE void tile_item(const struct gdn_cu_conv &a, int64_t item)
{
    enum { N = gdn_width<dtype>::LANE, AHEAD = dtype < 0 ? 2 : 4, ALL = (1 << AHEAD) - 1 };
    const int64_t chunks = (a.D + 32 * N - 1) / (32 * N), index = item / chunks;
    const struct gdn_lane l = find_lane<dtype>(a, item - index * chunks);
    const struct gdn_tile tile = find_tile(a, index);
    const int back = tile.first < a.W - 1 ? (int)tile.first : a.W - 1;
    const int end = (int)(tile.end - tile.first);
    int t = a.edges ? 0 : -back;
    const char *x =
        row_at(a.x, tile.row, tile.first + t) + bytes_to<dtype>(a, a.x, l.first + l.shift);
    char *out = out_at<dtype>(a, l, tile.row, tile.first + t);
    struct gdn_taps<TAPS, N> taps;
    struct gdn_quad ring[AHEAD] = {};
    float past[TAPS - 1][N] = {}, y[N], xs[N];
#pragma unroll
    for (int u = 0; u < AHEAD; u++, x += a.x.token)
        if (t + u < end) load_quad<dtype>(ring[u], a, l, x);
    load_taps(taps, a, l);
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            if (a.edges && i + a.W >= TAPS && j < l.n)
                past[i][j] = edge_row(a, index, TAPS - 1 - i)[l.first + j * l.step];
    struct gdn_run run = find_run(a, find_tile_again(a, chunks), 0);
#pragma unroll 1
    for (; t < end; t += AHEAD) {
        uint32_t mask = ALL;
        if (t < run.from || t + AHEAD > run.to) {
            mask = ask_rows<dtype>(a, l, run, chunks, t, t + AHEAD < end ? t + AHEAD : end, out);
            if (run.to <= t && run.end == end) break;
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++, x += a.x.token, out += a.out.token) {
            unpack<dtype>(xs, ring[u], a);
            if (t + AHEAD + u < end) load_quad<dtype>(ring[u], a, l, x);
            sum_taps<TAPS>(y, xs, past, taps, a);
            if (mask >> u & 1) store_quad<dtype>(out, a, l, y);
        }
    }
    if (!run.keep) zero_rows<dtype>(a, l, out + AHEAD * a.out.token, end - t - AHEAD);
}

/* Items that walk come first, because they take longest to begin. */
template <int dtype, int TAPS> GDN_DEVICE void conv_tile(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp();
    if (item < a.n_walks)
        walk_item<dtype == apart ? apart : floats, TAPS>(a, item);
    else if (item < a.n_items)
        tile_item<dtype, TAPS>(a, item - a.n_walks);
}

/* ---- Edges --------------------------------------------------------------------------------- */

template <int dtype, int TAPS> GDN_DEVICE void conv_edge(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    const int64_t edge = item / chunks;
    if (item >= a.n_items) return;
    const struct gdn_lane l = find_lane<dtype>(a, item - edge * chunks);
    const struct gdn_tile tile = find_tile(a, edge);
#pragma unroll 1
    for (int n = 1; n < a.W && n <= tile.first; n++) {
        float x[4];
        load_row<dtype>(x, a, l, row_at(a.x, tile.row, tile.first - n));
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < l.n) edge_row(a, edge, n)[l.first + j * l.step] = x[j];
    }
}

#endif
