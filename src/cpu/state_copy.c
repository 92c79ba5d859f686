/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_state_copy: a slot is a list of matrices, and every case (dtype, layout, channels first or
 * last) is the copy of one matrix with two strides to another. States of 8 bits go through
 * float32, some columns at a time, unless they keep their dtype.
 */
#include "calls/op_backends.h"
#include "calls/state_copy.h"
#include "core/tensor_check.h"
#include "cpu/matrix.h"
#include "cpu/strip.h"

enum { COLUMNS = 8 }; /* of an 8-bit state that are converted at a time */

static int64_t slot_of(const gdn_tensor *slots, int64_t pair)
{
    return slots->data ? gdn_index(slots, pair) : pair;
}

/* Returns rows and columns from (row, column) on of one head. */
static struct gdn_state_matrix matrix_of(const struct gdn_state_side *s, int64_t slot, int64_t head,
                                         int64_t row, int64_t column)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(s->dtype);
    const int64_t first = slot * s->slot + head * s->head + row * s->row + column * s->column;
    return (struct gdn_state_matrix){ .data = s->data + first * unit,
                                      .dtype = s->dtype,
                                      .unit = unit,
                                      .row = s->row * unit,
                                      .column = s->column * unit };
}

static float *scales_of(const struct gdn_state_side *s, int64_t slot, int64_t head, int64_t row)
{
    return s->scales ? s->scales + slot * s->scales_slot + head * s->scales_head + row : NULL;
}

/* Returns rows of float32 or of codes, side by side. */
static struct gdn_state_matrix dense(void *data, int32_t dtype, int64_t columns)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(dtype);
    return (struct gdn_state_matrix){ data, dtype, unit, columns * unit, unit };
}

/* n rows of float32 from or to a matrix of any dtype; scales: of 8-bit ones, NULL: none. */
static void load_rows(float *S, const struct gdn_kernels *kr, const struct gdn_state_matrix *from,
                      const float *scales, int n, int columns)
{
    _Alignas(64) uint8_t codes[COLUMNS * GDN_MAX_HEAD];
    const bool is_q8 = gdn_is_q8(from->dtype);
    const struct gdn_state_matrix to =
        is_q8 ? dense(codes, from->dtype, columns) : dense(S, GDN_F32, columns);
    gdn_state_matrix_copy(kr, &to, from, n, columns);
    if (is_q8) kr->load8_vk[from->dtype - GDN_I8](S, columns, codes, columns, scales, columns, n);
}

static void store_rows(float *S, const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                       float *scales, const uint32_t *keys, int n, int columns)
{
    _Alignas(64) uint8_t codes[COLUMNS * GDN_MAX_HEAD];
    const bool is_q8 = gdn_is_q8(to->dtype);
    const struct gdn_state_matrix from =
        is_q8 ? dense(codes, to->dtype, columns) : dense(S, GDN_F32, columns);
    if (is_q8)
        kr->store8_vk[to->dtype - GDN_I8](codes, columns, scales, S, columns, keys, columns, n);
    gdn_state_matrix_copy(kr, to, &from, n, columns);
}

/* Converts one head, of which one side is of 8 bits. */
static void convert_head(const struct gdn_state_move *m, int64_t from, int64_t to, int64_t head)
{
    const gdn_state_copy_args *a = &m->args;
    const uint64_t noise = gdn_noise(a->seed, 0, head);
    const int K = (int)m->columns;
    _Alignas(64) float S[COLUMNS * GDN_MAX_HEAD];
    uint32_t keys[COLUMNS];
    for (int64_t v = 0; v < m->rows; v += COLUMNS) {
        const int n = m->rows - v < COLUMNS ? (int)(m->rows - v) : COLUMNS;
        const struct gdn_state_matrix source = matrix_of(&m->from, from, head, v, 0);
        const struct gdn_state_matrix target = matrix_of(&m->to, to, head, v, 0);
        gdn_noise_keys(keys, noise, v, n);
        load_rows(S, m->kr, &source, scales_of(&m->from, from, head, v), n, K);
        store_rows(S, m->kr, &target, scales_of(&m->to, to, head, v),
                   a->rounding == GDN_ROUND_STOCHASTIC ? keys : NULL, n, K);
    }
}

/* Copies the scales of a head whose codes are copied, or zeroed (from below 0). */
static void copy_scales(const struct gdn_state_move *m, int64_t from, int64_t to, int64_t head)
{
    const size_t bytes = (size_t)m->rows * sizeof(float);
    float *t = scales_of(&m->to, to, head, 0);
    if (!t) return;
    if (from < 0)
        memset(t, 0, bytes);
    else
        memcpy(t, scales_of(&m->from, from, head, 0), bytes);
}

/* Runs an item: one head, or GDN_STATE_CHANNELS channels. */
static void run_state_copy_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_state_move *m = arg;
    const int64_t pair = item / m->n_parts, part = item % m->n_parts;
    const int64_t from = slot_of(&m->args.from_slots, pair), to = slot_of(&m->args.to_slots, pair);
    const bool is_conv = m->args.to_pool.ndim == 3, is_zero = !m->from.data || from < 0;
    const int64_t head = is_conv ? 0 : part, row = is_conv ? part * GDN_STATE_CHANNELS : 0;
    const int64_t n_zero = is_zero ? m->n_old + m->columns : m->n_old;
    int64_t rows = m->rows - row;
    if (to < 0 || (m->same_pool && from == to)) return;
    if (is_conv && rows > GDN_STATE_CHANNELS) rows = GDN_STATE_CHANNELS;

    if (n_zero > 0) {
        const struct gdn_state_matrix old = matrix_of(&m->to, to, head, row, 0);
        gdn_state_matrix_zero(&old, rows, n_zero);
    }
    if (!is_zero && gdn_state_converts_q8(&m->to, &m->from)) {
        convert_head(m, from, to, head);
        return;
    }
    copy_scales(m, is_zero ? -1 : from, to, head);
    if (is_zero || m->columns == 0) return;
    const struct gdn_state_matrix target = matrix_of(&m->to, to, head, row, m->n_old);
    const struct gdn_state_matrix source = matrix_of(&m->from, from, head, row, m->n_skipped);
    gdn_state_matrix_copy(m->kr, &target, &source, rows, m->columns);
}

static const char *loops_of(const struct gdn_state_move *m)
{
    static const char *const names[2][4] = {
        { "", "load_row", "store_row", "load_row store_row" },
        { "transpose", "load_row transpose", "transpose store_row",
          "load_row transpose store_row" },
    };
    if (!m->from.data || m->n_pairs * m->n_parts == 0 || m->columns == 0) return "";
    if (gdn_state_converts_q8(&m->to, &m->from))
        return !gdn_is_q8(m->to.dtype)     ? "load8_vk"
               : !gdn_is_q8(m->from.dtype) ? "store8_vk"
                                           : "load8_vk store8_vk";
    const struct gdn_state_matrix to = matrix_of(&m->to, 0, 0, 0, 0);
    const struct gdn_state_matrix from = matrix_of(&m->from, 0, 0, 0, 0);
    const bool tiled = gdn_state_matrix_is_tiled(&to, &from, m->rows, m->columns);
    const bool other = to.dtype != from.dtype;
    return names[tiled][(other && from.dtype != GDN_F32) + 2 * (other && to.dtype != GDN_F32)];
}

static gdn_status plan_state_copy(gdn_ctx *ctx, void *call)
{
    struct gdn_state_call *c = call;
    c->move.kr = ctx->kr;
    c->base.bytes = gdn_state_bytes(&c->move);
    return GDN_OK;
}

static gdn_status run_state_copy(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_state_call *c = call;
    TRY(gdn_state_check_slots(ctx, &c->move, memory));
    gdn_parallel_for(ctx->threads, c->move.n_pairs * c->move.n_parts, run_state_copy_item,
                     &c->move);
    return gdn_note_kernel(ctx, c->base.op, loops_of(&c->move));
}

const struct gdn_op_backend gdn_cpu_op_state_copy = { plan_state_copy, run_state_copy };
