/* SPDX-License-Identifier: Apache-2.0 */
/* Copies rows of tensors, of any alignment, into tiles of shared memory (mma.cuh). */
#ifndef GDN_CUDA_PREFILL_LOADS_CUH
#define GDN_CUDA_PREFILL_LOADS_CUH

#include "cuda/device/ptx_mma.cuh"

/* Loads n rows of `bytes` into a tile, and zeros into the rows after them. 2^log_lanes threads have
 * a row. n_threads threads call it and the functions below; the first one is a multiple of
 * n_threads. */
template <int wide, int n_threads>
GDN_DEVICE void load_rows(char *to, int to_row, const char *from, int64_t from_row, int rows, int n,
                          int bytes, int log_lanes)
{
    const int thread = threadIdx.x % n_threads;
    const uint32_t at = shared_address(to);
    for (int i = thread >> log_lanes; i < rows; i += n_threads >> log_lanes)
        for (int b = (thread & ((1 << log_lanes) - 1)) * wide; b < bytes; b += wide << log_lanes) {
            const char *x = i < n ? from + i * from_row + b : from;
            const int valid = i >= n ? 0 : bytes - b < wide ? bytes - b : wide;
            if constexpr (wide >= 4)
                copy_async<wide>(at + i * to_row + b, x, valid);
            else
                *(uint16_t *)(to + i * to_row + b) = valid ? *(const uint16_t *)x : 0;
        }
}

/* Loads whole rows, 16 bytes at a time. Their number and length are known when compiling. */
template <int rows, int bytes, int n_threads>
GDN_DEVICE void load_whole_rows(char *to, int to_row, const char *from, int64_t from_row, int n)
{
    enum { LANES = bytes / 16, AT_ONCE = n_threads / LANES };
    const int first = threadIdx.x % n_threads / LANES, at = threadIdx.x % LANES * 16;
    const uint32_t place = shared_address(to) + first * to_row + at;
    const char *x = from + first * from_row + at;
    const bool all = n >= rows; /* most chunks; then a copy takes half of the instructions */
#pragma unroll
    for (int i = 0; all && i < rows; i += AT_ONCE)
        copy_async<16>(place + i * to_row, x + i * from_row, 16);
#pragma unroll
    for (int i = 0; !all && i < rows; i += AT_ONCE) {
        const bool there = first + i < n;
        copy_async<16>(place + i * to_row, there ? x + i * from_row : from, there ? 16 : 0);
    }
}

template <int n_threads>
GDN_DEVICE void load_tile(char *to, int to_row, const char *from, int64_t from_row, int rows, int n,
                          int bytes, int wide, int log_lanes)
{
    switch (wide) {
    case 16: load_rows<16, n_threads>(to, to_row, from, from_row, rows, n, bytes, log_lanes); break;
    case 8: load_rows<8, n_threads>(to, to_row, from, from_row, rows, n, bytes, log_lanes); break;
    case 4: load_rows<4, n_threads>(to, to_row, from, from_row, rows, n, bytes, log_lanes); break;
    default: load_rows<2, n_threads>(to, to_row, from, from_row, rows, n, bytes, log_lanes); break;
    }
}

/* Loads keys or queries. If they fill the tile and are aligned, it takes the shorter code. */
template <int rows, int most, int n_threads>
GDN_DEVICE void load_keys(char *to, int to_row, const char *from, int64_t from_row, int n,
                          int bytes, int wide)
{
    if (most <= 512 && wide == 16 && bytes == most)
        load_whole_rows<rows, most, n_threads>(to, to_row, from, from_row, n);
    else
        load_tile<n_threads>(to, to_row, from, from_row, rows, n, bytes, wide,
                             most >= 512   ? 5
                             : most == 256 ? 4
                                           : 3);
}

#endif
