/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The most that tokens leave of a state before them (early_stop.cuh), and sums of its logarithm
 * over chunks, for gdn_summary (ranges.cuh). A warp has a chunk, and each lane a head, because
 * gates of heads lie side by side.
 *
 * A transposed map has the same norm, so the tokens leave as much of the gradient of a later state.
 * A walk back through a sequence may begin after the first chunks that leave tail_left:
 * run_stops().
 */
#ifndef GDN_CUDA_PREFILL_LEFT_CUH
#define GDN_CUDA_PREFILL_LEFT_CUH

#include "cuda/device/quad.cuh"
#include "cuda/prefill/sm90/segments.cuh"

/* tail_left: log2 of what may be left at the end of a segment. tail_longest: the square of the
 * longest key, which is 1 + 2^-8 long. */
constexpr float tail_left = -25, tail_longest = 257 * 257 / 65536.0f;

/* Returns log2 of what a token may leave. gate, beta: as they lie in memory. */
GDN_DEVICE float log_left(const struct gdn_cu_rule &r, uint32_t gate, uint32_t given, float A_log,
                          float dt_bias)
{
    float g = 0, beta = 1;
    if (r.g.data) g = gate_value(r, bits_to_f32(gate, r.g.dtype), A_log, dt_bias, false);
    if (r.beta.data) beta = beta_value(r, bits_to_f32(given, r.beta.dtype));
    const float reach = fabsf(1 - beta * tail_longest);
    return g * 1.44269504f + (reach <= 1 ? 0 : log2f(reach));
}

/* Returns the place of the sum of the first chunk of a sequence, which begins at token `first` of its
 * row. The places of a head are those of the batch, and a sequence has one more than it needs. */
GDN_DEVICE int64_t left_place(const struct gdn_cu_batch &b, int64_t row, int64_t first)
{
    return (b.padded ? row * b.T : first) / 64 + row;
}

/* Returns the sum of n tokens from token t on. Loads of LOADS tokens are under way at a time. */
GDN_DEVICE float sum_chunk_left(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                                int n, int head)
{
    enum { LOADS = 16 };
    const float A_log = load_vector(r.A_log, head, 0), dt_bias = load_vector(r.dt_bias, head, 0);
    float sum = 0;
#pragma unroll 1
    for (int first = 0; first < n; first += LOADS) {
        uint32_t g[LOADS], beta[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const bool there = first + i < n;
            const int64_t at = t + first + i;
            g[i] = load_parts(row_at(r.g, s, at, head), 0, r.g.dtype, there && r.g.data);
            beta[i] =
                load_parts(row_at(r.beta, s, at, head), 0, r.beta.dtype, there && r.beta.data);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (first + i < n) sum += log_left(r, g[i], beta[i], A_log, dt_bias);
    }
    return sum;
}

/* Sums chunks. Warps are numbered by groups of 32 heads, then chunks of the batch. */
GDN_DEVICE void run_left(const struct gdn_cu_prefill_sm90 &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const struct gdn_cu_segments chunks = { .first = 0, .each = 64, .start = 0 };
    const int64_t groups = (r.H + 31) / 32, warps = blockDim.x / 32;
    const int64_t item = blockIdx.x * warps + threadIdx.x / 32;
    const int head = (int)(item % groups) * 32 + (int)threadIdx.x % 32;
    int64_t i = item / groups;
    struct gdn_cu_seq s = {};
    griddepcontrol_launch_dependents();
    s.row = find_unit(r.batch, chunks, i);
    if (s.row >= r.batch.B) return;
    read_range(r.batch, s);
    const int64_t left = s.n_valid - i * 64, at = left_place(r.batch, s.row, s.first) + i;
    if (head >= r.H || at >= a.cut.n_left) return;
    a.cut.left[head * a.cut.n_left + at] =
        sum_chunk_left(r, s, i * 64, left < 64 ? (int)left : 64, head);
}

/* The memory by which the warps of a block exchange sums and votes. */
struct left_sums {
    float totals[32];
    uint32_t votes[32];
};

/* Returns the sum of the numbers of threads up to this one, and the sum of all. All threads call
 * it. */
GDN_DEVICE float2 sum_threads(struct left_sums &sh, float x)
{
    const int warp = threadIdx.x / 32, n = blockDim.x / 32;
    float2 sum = make_float2(scan_lanes(x), 0);
    __syncthreads(); /* all threads have read the sums before */
    if (threadIdx.x % 32 == 31) sh.totals[warp] = sum.x;
    __syncthreads();
    for (int i = 0; i < n; i++) {
        if (i < warp) sum.x += sh.totals[i];
        sum.y += sh.totals[i];
    }
    return sum;
}

/* Returns the first thread whose `yes` is true; -1: there is none. All threads call it. */
GDN_DEVICE int first_thread(struct left_sums &sh, bool yes)
{
    const unsigned mine = __ballot_sync(0xffffffff, yes);
    if (threadIdx.x % 32 == 0) sh.votes[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        if (sh.votes[i]) return 32 * i + __ffs((int)sh.votes[i]) - 1;
    return -1;
}

/* Finds the stops. Blocks are numbered by heads, then sequences. */
GDN_DEVICE void run_stops(const struct gdn_cu_prefill_sm90 &a)
{
    __shared__ struct left_sums sh;
    const int head = (int)(blockIdx.x % a.rule.H);
    struct gdn_cu_seq s = {};
    float sum = 0;
    int stop = INT32_MAX;
    s.row = blockIdx.x / a.rule.H;
    read_range(a.rule.batch, s);
    const float *left = a.cut.left + head * a.cut.n_left + left_place(a.rule.batch, s.row, s.first);
    const int n = (int)((s.n_valid + 63) / 64);
    for (int first = 0; first < n && stop == INT32_MAX; first += blockDim.x) {
        const int c = first + (int)threadIdx.x;
        const float2 here = sum_threads(sh, c < n ? left[c] : 0);
        const int at = first_thread(sh, sum + here.x <= tail_left);
        if (at >= 0) stop = first + at + 1;
        sum += here.y;
    }
    /* A stop behind the last chunk would leave out dstate_out alone. */
    if (stop >= n) stop = INT32_MAX;
    if (threadIdx.x == 0) a.cut.stops[s.row * a.rule.H + head] = stop;
}

#endif
