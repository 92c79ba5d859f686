/* SPDX-License-Identifier: Apache-2.0 */
/* The units of a batch (segments.cuh, ranges.cuh): how many there are, and of which sequences. */
#ifndef GDN_CUDA_PREFILL_UNITS_CUH
#define GDN_CUDA_PREFILL_UNITS_CUH

#include "cuda/device/rule.cuh"
#include "cuda/prefill/args.h"

/* Returns the number of segments after the first one in n tokens. */
GDN_DEVICE int64_t later_segments(const struct gdn_cu_segments &cut, int64_t n)
{
    return n > cut.whole ? (n - cut.start + cut.each - 1) / cut.each : 0;
}

/* Returns the tokens of a sequence that count. */
GDN_DEVICE int64_t valid_tokens(const struct gdn_cu_batch &b, int64_t row)
{
    struct gdn_cu_seq s = {};
    if (row >= b.B) return 0;
    s.row = row;
    read_range(b, s);
    return s.n_valid;
}

GDN_DEVICE int64_t later_segments_of(const struct gdn_cu_batch &b,
                                     const struct gdn_cu_segments &cut, int64_t row)
{
    return later_segments(cut, valid_tokens(b, row));
}

/* Returns the units of the sequences before `row`. All threads of a warp call it. */
GDN_DEVICE int64_t units_before(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                                int64_t row)
{
    long long n = 0;
    for (int64_t i = threadIdx.x % 32; i < row; i += 32) n += later_segments_of(b, cut, i);
    for (int step = 16; step; step /= 2) n += __shfl_xor_sync(0xffffffff, n, step);
    return n;
}

/* Returns the sum over the lanes up to this one. */
GDN_DEVICE long long sum_up_to(long long x)
{
    for (int step = 1; step < 32; step *= 2) {
        const long long before = __shfl_up_sync(0xffffffff, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}

/* Returns the sequence of a unit, and sets `unit` to its number within that; B: there is no such
 * unit. All threads of a warp call it. */
GDN_DEVICE int64_t find_unit(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                             int64_t &unit)
{
    for (int64_t row = 0; row < b.B; row += 32) {
        const long long mine = later_segments_of(b, cut, row + threadIdx.x % 32);
        const long long end = sum_up_to(mine);
        const unsigned beyond = __ballot_sync(0xffffffff, unit < end);
        if (beyond) {
            const int at = __ffs((int)beyond) - 1;
            unit -= __shfl_sync(0xffffffff, end - mine, at);
            return row + at;
        }
        unit -= __shfl_sync(0xffffffff, end, 31);
    }
    return b.B;
}

/* Returns how many units the sequence has that is number `of` of those with two or more, the first of
 * them, and the sequence. 0: there is no such sequence. All threads of a warp call it. */
GDN_DEVICE int64_t find_units(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                              int64_t of, int64_t &first, int64_t &row)
{
    first = 0;
    for (row = 0; row < b.B; row += 32) {
        const long long mine = later_segments_of(b, cut, row + threadIdx.x % 32);
        const long long end = sum_up_to(mine);
        unsigned some = __ballot_sync(0xffffffff, mine > 1);
        for (; some && of; of--) some &= some - 1;
        if (some) {
            const int at = __ffs((int)some) - 1;
            first += __shfl_sync(0xffffffff, end - mine, at);
            row += at;
            return __shfl_sync(0xffffffff, mine, at);
        }
        first += __shfl_sync(0xffffffff, end, 31);
    }
    return 0;
}

#endif
