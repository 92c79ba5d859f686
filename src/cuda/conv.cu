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
#include "batch.cuh"
#include "math.cuh"

enum { CHANNELS = 128, WARPS = 4, KEPT = 8 }; /* of a warp; of a block; entries, at most */
enum { floats = -1, f32 = GDN_F32, bf16 = GDN_BF16, f16 = GDN_F16 };

extern __shared__ float gdn_conv_shared[];

/* ---- Four channels of a row ---------------------------------------------------------------- */

/* The lane's channels: first + j step for j < n. Side by side if a.access. */
struct gdn_lane {
    int64_t first;
    int     step, n;
    int     place; /* of the first in a row of shared memory */
    int     shift; /* how much further it is in a row of x */
};

GDN_DEVICE int shift_of(const struct gdn_cu_conv &a, int64_t channel)
{
    if (!a.key_head || channel >= a.D) return 0;
    const int keys = a.Hk * a.K, c = (int)channel, part = c / keys < 2 ? c / keys : 2;
    const int size = part < 2 ? a.K : a.V;
    return (c - part * keys) / size * (a.key_head - size) + part * (a.K - keys);
}

GDN_DEVICE struct gdn_lane find_lane(const struct gdn_cu_conv &a, int64_t chunk)
{
    const int       lane = threadIdx.x % 32;
    struct gdn_lane l    = { chunk * CHANNELS + lane, 32, 4, lane };
    if (a.access) l.first = chunk * CHANNELS + 4 * lane, l.step = 1, l.place = 4 * lane;
    while (l.n > 0 && l.first + (l.n - 1) * l.step >= a.D) l.n--;
    l.shift = shift_of(a, l.first);
    return l;
}

/* Four elements as they lie in memory: float32, or the first two words with pairs. */
struct gdn_quad {
    uint32_t word[4];
};

/*
 * The dtype of x and out is known when compiling, and then a.access is set; or it is `floats`, and
 * everything is asked.
 */
GDN_DEVICE void load_asking(struct gdn_quad &q, const struct gdn_cu_conv &a,
                            const struct gdn_lane &l, const char *p)
{
    const bool is_wide = a.x.dtype == GDN_F32;
    if (a.access && l.n == 0) return;
    if (a.access && is_wide) *(uint4 *)q.word = *(const uint4 *)p;
    else if (a.access) *(uint2 *)q.word = *(const uint2 *)p;
    if (a.access) return;
    q = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= l.n) break;
        if (is_wide) q.word[j] = ((const uint32_t *)p)[j * 32];
        else q.word[j / 2] |= (uint32_t)((const uint16_t *)p)[j * 32] << j % 2 * 16;
    }
}

/* Where an element of a row of x or out is: the lane's begin at first + shift and at first. */
template <int dtype> GDN_DEVICE int64_t bytes_to(const struct gdn_cu_conv &a, int64_t element)
{
    return element << ((dtype == floats ? a.x.dtype : dtype) == GDN_F32 ? 2 : 1);
}

template <int dtype>
GDN_DEVICE void load_quad(struct gdn_quad &q, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                          const char *p)
{
    if (dtype == floats) load_asking(q, a, l, p);
    else if (dtype == GDN_F32 && l.n) *(uint4 *)q.word = *(const uint4 *)p;
    else if (l.n) *(uint2 *)q.word = *(const uint2 *)p;
}

template <int dtype>
GDN_DEVICE void unpack(float (&x)[4], const struct gdn_quad &q, const struct gdn_cu_conv &a)
{
    const int type = dtype == floats ? a.x.dtype : dtype;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint16_t half = (uint16_t)(q.word[j / 2] >> j % 2 * 16);
        x[j] = type == GDN_F32    ? __uint_as_float(q.word[j])
               : type == GDN_BF16 ? bf16_to_f32(half)
                                  : f16_to_f32(half);
    }
}

template <int dtype>
GDN_DEVICE void store_quad(char *p, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const float (&y)[4])
{
    const int type = dtype == floats ? a.x.dtype : dtype;
    if (dtype == floats && !a.access) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < l.n) store_float(p, j * 32, type, y[j]);
    } else if (l.n == 0) {
        return;
    } else if (type == GDN_F32) {
        *(float4 *)p = make_float4(y[0], y[1], y[2], y[3]);
    } else if (type == GDN_BF16) {
        *(uint2 *)p = make_uint2(f32_to_bf16x2(y[0], y[1]), f32_to_bf16x2(y[2], y[3]));
    } else {
        *(uint2 *)p = make_uint2(f32_to_f16x2(y[0], y[1]), f32_to_f16x2(y[2], y[3]));
    }
}

template <int dtype>
GDN_DEVICE void load_row(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                         const char *row)
{
    struct gdn_quad q = {};
    load_quad<dtype>(q, a, l, row + bytes_to<dtype>(a, l.first + l.shift));
    unpack<dtype>(x, q, a);
}

/* Token t of a tensor, counted from the start of a packed tensor or of a row of a padded one. */
GDN_DEVICE char *row_at(const struct gdn_rows &r, int64_t batch, int64_t t)
{
    return r.data + batch * r.batch + t * r.token;
}

GDN_DEVICE void zero_rows(const struct gdn_cu_conv &a, const struct gdn_lane &l, int64_t batch,
                          int64_t t, int64_t end)
{
    const float zeros[4] = { 0, 0, 0, 0 };
#pragma unroll 1
    for (; t < end; t++)
        store_quad<floats>(row_at(a.out, batch, t) + bytes_to<floats>(a, l.first), a, l, zeros);
}

/* ---- The sum ------------------------------------------------------------------------------- */

/* Weights and earlier inputs, aligned to the newest: of TAPS the last a.W count. */
template <int TAPS> struct gdn_taps {
    float weight[TAPS][4], bias[4];
};

template <int TAPS>
GDN_DEVICE void load_taps(struct gdn_taps<TAPS> &t, const struct gdn_cu_conv &a,
                          const struct gdn_lane &l)
{
    const struct gdn_conv_view &w = a.weight;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int64_t channel = l.first + j * l.step;
        t.bias[j]             = 0;
        if (a.bias.data && j < l.n)
            t.bias[j] = load_float(a.bias.data, channel * a.bias.channel, a.bias.dtype);
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const int tap = i - (TAPS - a.W);
            t.weight[i][j] = 0;
            if (tap >= 0 && j < l.n)
                t.weight[i][j] = load_float(w.data, channel * w.channel + tap * w.entry, w.dtype);
        }
    }
}

/* One token: y from x; x joins the past. Four taps are all there. */
template <int TAPS>
GDN_DEVICE void sum_taps(float (&y)[4], const float (&x)[4], float (&past)[TAPS - 1][4],
                         const struct gdn_taps<TAPS> &t, const struct gdn_cu_conv &a)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        y[j] = t.bias[j];
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) {
            if (TAPS == 4 || i + a.W >= TAPS) y[j] = fmaf(t.weight[i][j], past[i][j], y[j]);
            past[i][j] = i < TAPS - 2 ? past[i + 1][j] : x[j];
        }
        y[j] = fmaf(t.weight[TAPS - 1][j], x[j], y[j]);
    }
    if (a.silu) quick_silu(y);
}

/* Tokens [t, end) after those of the past. A row is on its way while the AHEAD ones before it are
 * computed. */
template <int dtype, int TAPS>
GDN_DEVICE void convolve(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                         const struct gdn_cu_seq &s, float (&past)[TAPS - 1][4], int64_t t,
                         int64_t end)
{
    enum { AHEAD = dtype == floats ? 2 : dtype == GDN_F32 ? 4 : 8 };
    struct gdn_taps<TAPS> taps;
    struct gdn_quad       ring[AHEAD] = {};
    const char *x = row_at(a.x, s.batch, s.first + t) + bytes_to<dtype>(a, l.first + l.shift);
    char       *out = row_at(a.out, s.batch, s.first + t) + bytes_to<dtype>(a, l.first);
    int64_t               left = end - t;
    float                 y[4], xs[4];
#pragma unroll
    for (int u = 0; u < AHEAD; u++, x += a.x.token)
        if (u < left) load_quad<dtype>(ring[u], a, l, x);
    load_taps(taps, a, l);
#pragma unroll 1
    for (; left >= AHEAD; left -= AHEAD)
#pragma unroll
        for (int u = 0; u < AHEAD; u++, x += a.x.token, out += a.out.token) {
            unpack<dtype>(xs, ring[u], a);
            if (u + AHEAD < left) load_quad<dtype>(ring[u], a, l, x);
            sum_taps<TAPS>(y, xs, past, taps, a);
            store_quad<dtype>(out, a, l, y);
        }
#pragma unroll
    for (int u = 0; u < AHEAD - 1; u++, out += a.out.token) {
        if (u >= left) break;
        unpack<dtype>(xs, ring[u], a);
        sum_taps<TAPS>(y, xs, past, taps, a);
        store_quad<dtype>(out, a, l, y);
    }
}

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

GDN_DEVICE int64_t item_of_warp(void)
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
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

/* ---- Steps --------------------------------------------------------------------------------- */

/* The four taps of the lane's channels, side by side in memory. */
GDN_DEVICE void load_taps_at_once(struct gdn_taps<4> &t, const struct gdn_cu_conv &a,
                                  const struct gdn_lane &l)
{
    const struct gdn_conv_view &w = a.weight;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int64_t   channel = l.first + j;
        struct gdn_quad q       = {};
        float           x[4];
        t.bias[j] = 0;
        if (a.bias.data && l.n)
            t.bias[j] = load_float(a.bias.data, channel * a.bias.channel, a.bias.dtype);
        const char *p = w.data + (channel * w.channel << (w.dtype == GDN_F32 ? 2 : 1));
        if (w.dtype == GDN_F32) load_quad<f32>(q, a, l, p), unpack<f32>(x, q, a);
        else if (w.dtype == GDN_BF16) load_quad<bf16>(q, a, l, p), unpack<bf16>(x, q, a);
        else load_quad<f16>(q, a, l, p), unpack<f16>(x, q, a);
#pragma unroll
        for (int i = 0; i < 4; i++) t.weight[i][j] = x[i];
    }
}

/* What a warp that steps has: its channels, and in shared memory their states, a quad's bytes
 * apart. */
struct gdn_step {
    struct gdn_lane lane;
    int64_t         channel; /* the first of the warp's n, */
    int             n, unit; /* unit: bytes of a quad */
    char           *quads;
};

/* Quad i of the warp's part of a state, i < 3 x 32, in the order of memory if its entries lie side
 * by side, else by entries; NULL: beyond it. */
GDN_DEVICE char *quad_at(const struct gdn_step &w, const struct gdn_conv_view &v, int64_t slot,
                         int i)
{
    const bool by_entry = v.entry == 1;
    if (by_entry ? 4 * i >= 3 * w.n : i % 32 * 4 >= w.n) return NULL;
    const int64_t at = by_entry ? w.channel * 3 + 4 * i
                                : w.channel + i % 32 * 4 + i / 32 * v.entry;
    return v.data + (slot * v.slot + at) * (w.unit / 4);
}

template <int dtype> GDN_DEVICE void put_quad(char *p, const struct gdn_quad &q)
{
    if (dtype == GDN_F32) *(uint4 *)p = *(const uint4 *)q.word;
    else *(uint2 *)p = *(const uint2 *)q.word;
}

/* The state as it lies in memory, three quads of a lane. */
template <int dtype>
GDN_DEVICE void load_step(struct gdn_quad (&q)[3], const struct gdn_cu_conv &a,
                          const struct gdn_step &w, int64_t slot)
{
    struct gdn_lane all = w.lane;
    all.n               = 4;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        q[j] = {};
        const char *p = a.from.data && slot >= 0
                            ? quad_at(w, a.from, slot, j * 32 + threadIdx.x % 32) : NULL;
        if (p) load_quad<dtype>(q[j], a, all, p);
    }
}

/* From there to the past of the lane's channels. */
template <int dtype>
GDN_DEVICE void turn_in(float (&past)[3][4], const struct gdn_quad (&q)[3],
                        const struct gdn_cu_conv &a, const struct gdn_step &w)
{
    const int lane = threadIdx.x % 32;
    float     x[12];
#pragma unroll
    for (int j = 0; j < 3; j++) put_quad<dtype>(w.quads + (j * 32 + lane) * w.unit, q[j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 3; j++) {
        struct gdn_quad own = {};
        struct gdn_lane all = w.lane;
        float           y[4];
        all.n               = 4;
        const int i         = a.from.entry == 1 ? lane * 3 + j : j * 32 + lane;
        load_quad<dtype>(own, a, all, w.quads + i * w.unit);
        unpack<dtype>(y, own, a);
#pragma unroll
        for (int c = 0; c < 4; c++) x[j * 4 + c] = y[c];
    }
    const bool by_entry = a.from.entry == 1;
#pragma unroll
    for (int i = 0; i < 3; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) past[i][c] = by_entry ? x[c * 3 + i] : x[i * 4 + c];
    __syncwarp();
}

/* And back, to a slot. */
template <int dtype>
GDN_DEVICE void store_step(const struct gdn_cu_conv &a, const struct gdn_step &w,
                           const float (&past)[3][4], int64_t slot)
{
    const int       lane = threadIdx.x % 32;
    const bool      by_entry = a.to.entry == 1;
    struct gdn_lane all = w.lane;
    all.n               = 4;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        float y[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            y[c] = by_entry ? past[(j * 4 + c) % 3][(j * 4 + c) / 3] : past[j][c];
        store_quad<dtype>(w.quads + (by_entry ? lane * 3 + j : j * 32 + lane) * w.unit, a, all, y);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 3; j++) {
        struct gdn_quad q;
        char           *p = quad_at(w, a.to, slot, j * 32 + lane);
        load_quad<dtype>(q, a, all, w.quads + (j * 32 + lane) * w.unit);
        if (p) put_quad<dtype>(p, q);
    }
}

template <int dtype>
GDN_DEVICE void step_row(const struct gdn_cu_conv &a, const struct gdn_step &w,
                         const struct gdn_taps<4> &taps, int64_t row)
{
    const struct gdn_cu_seq s = read_sequence(a.batch, row);
    struct gdn_quad         q[3];
    float                   past[3][4], x[4] = {}, y[4];
    const bool writes = s.write >= 0 && a.to.data &&
                        (s.n_valid || a.from.data != a.to.data || s.read != s.write);
    if (s.n_tokens == 0) return;
    if (s.n_valid) load_row<dtype>(x, a, w.lane, row_at(a.x, s.batch, s.first));
    load_step<dtype>(q, a, w, s.read);
    turn_in<dtype>(past, q, a, w);
    if (s.n_valid) {
        sum_taps<4>(y, x, past, taps, a);
        store_quad<dtype>(row_at(a.out, s.batch, s.first) + bytes_to<dtype>(a, w.lane.first), a,
                          w.lane, y);
    } else if (!s.keep_out) {
        zero_rows(a, w.lane, s.batch, s.first - s.n_before, s.first - s.n_before + s.n_tokens);
    }
    if (writes) store_step<dtype>(a, w, past, s.write);
}

template <int dtype, int TAPS> GDN_DEVICE void conv_step(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    if (item >= a.n_items) return;
    struct gdn_taps<4> taps;
    struct gdn_step    w = {};
    w.lane    = find_lane(a, item % chunks);
    w.channel = item % chunks * CHANNELS;
    w.n       = a.D - w.channel < CHANNELS ? (int)(a.D - w.channel) : CHANNELS;
    w.unit    = dtype == GDN_F32 ? 16 : 8;
    w.quads   = (char *)gdn_conv_shared + threadIdx.x / 32 * 3 * 32 * w.unit;
    load_taps_at_once(taps, a, w.lane);
    const int64_t first = item / chunks * a.n_steps;
#pragma unroll 1
    for (int64_t row = first; row < first + a.n_steps && row < a.batch.B; row++)
        step_row<dtype>(a, w, taps, row);
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

#define GDN_KERNEL_conv(threads, shared, kind, dtype, taps)                                   \
    extern "C" __global__ void __launch_bounds__(threads, taps == 4 ? 5 : 3)                  \
        gdn_conv_##kind##_##dtype##_##taps(const __grid_constant__ struct gdn_cu_conv a)      \
    {                                                                                         \
        conv_##kind<dtype, taps>(a);                                                          \
    }
#include "kernels.def"
