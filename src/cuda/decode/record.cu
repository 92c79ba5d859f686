/* SPDX-License-Identifier: Apache-2.0 */
/* Records of drafted tokens: accepted rows move up. Then another kernel changes the counters. */
#include "cuda/decode/args.h"
#include "cuda/device/batch.cuh"

/* Returns the slot of sequence `row`; negative: it has none. */
GDN_DEVICE int64_t record_slot(const struct gdn_cu_batch &b, int64_t row)
{
    const int64_t slot = read_start(b, row);
    return slot < b.read_pool ? slot : -1;
}

GDN_DEVICE int64_t record_count(const struct gdn_cu_record &a, int64_t slot)
{
    return clamp64(load_index(a.count, slot), 0, a.n_rows);
}

GDN_DEVICE int64_t n_accepted(const struct gdn_cu_record &a, int64_t row, int64_t count)
{
    const int64_t rest = a.n_rows - count, most = a.path.data ? a.path.n_columns : rest;
    return clamp64(load_index(a.n_accepted, row), 0, most < rest ? most : rest);
}

/* Moves row `from` of one head to row `to`, which is not below. A thread moves its own elements of
 * all rows, so it overwrites no element before that element has moved. */
GDN_DEVICE void move_head(const struct gdn_record_rows &r, int64_t slot, int64_t to, int64_t from,
                          int head, int n)
{
    char *const first = r.data + slot * r.slot + head * r.head;
    for (int x = threadIdx.x; x < n; x += blockDim.x) {
        const int64_t i = (int64_t)x * r.channel;
        if (r.dtype == GDN_F32)
            ((uint32_t *)(first + to * r.row))[i] = ((const uint32_t *)(first + from * r.row))[i];
        else
            ((uint16_t *)(first + to * r.row))[i] = ((const uint16_t *)(first + from * r.row))[i];
    }
}

/* Moves rows of a state head of a sequence, and those of a key head with it. A block has one pair
 * of heads. */
GDN_DEVICE void record_move(const struct gdn_cu_record &a)
{
    const int most = a.H > a.Hk ? a.H : a.Hk, h = blockIdx.x % most;
    const int64_t row = blockIdx.x / most, slot = row < a.batch.B ? record_slot(a.batch, row) : -1;
    if (slot < 0) return;
    const int64_t c = record_count(a, slot), n = n_accepted(a, row, c);
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = c + load_index(a.path, row, i);
        if (from <= c + i || from >= a.n_rows) continue;
        if (h < a.Hk) move_head(a.k, slot, c + i, from, h, a.K);
        if (h < a.H) move_head(a.u, slot, c + i, from, h, a.V);
        if (h < a.H) move_head(a.g, slot, c + i, from, h, a.n_gates);
    }
}

/* Adds the accepted rows to the count of a sequence; after a fold sets it to 0. A thread has a
 * sequence. */
GDN_DEVICE void record_count(const struct gdn_cu_record &a)
{
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t slot = row < a.batch.B ? record_slot(a.batch, row) : -1;
    if (slot < 0) return;
    const int64_t c = record_count(a, slot);
    store_count(a.count, slot, a.n_accepted.data ? c + n_accepted(a, row, c) : 0);
}

/* Empties the records of the slots of a sequence that gdn_prefill has computed. A warp has a
 * sequence. */
GDN_DEVICE void record_forget(const struct gdn_cu_record &a)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (row >= a.batch.B) return;
    const struct gdn_cu_seq s = read_sequence(a.batch, row);
    if (s.n_tokens == 0 || s.padding || s.sunk) return;
    const struct gdn_cu_checkpoints list = read_checkpoints(a.batch, s);
    for (int64_t i = list.first + lane, slot; i < list.end; i += 32) {
        checkpoint_at(a.batch, list, i, slot);
        if (slot >= 0) store_count(a.count, slot, 0);
    }
    if (lane > 0 || (s.read == s.write && s.n_valid == 0)) return;
    if (s.read >= 0) store_count(a.count, s.read, 0);
    if (s.write >= 0) store_count(a.count, s.write, 0);
}

#define GDN_IMAGE_decode_record GDN_THIS_IMAGE
#define GDN_KERNEL_decode_record(threads, shared, what)                          \
    extern "C" __global__ void __launch_bounds__(threads)                        \
        gdn_decode_record_##what(const __grid_constant__ struct gdn_cu_record a) \
    {                                                                            \
        record_##what(a);                                                        \
    }
#include "cuda/driver/kernels.cuh"
