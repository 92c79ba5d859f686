/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_state_copy: a slot is a list of matrices, and every case (dtype, layout, channels first or
 * last) is the copy of one matrix with two strides to another. States of 8 bits go through
 * float32, some columns at a time, unless they keep their dtype.
 */
#include "calls/state_copy.h"

#include "calls/rule.h"
#include "core/tensor_check.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "state/matrix.h"

enum {
    COLUMNS  = 8,   /* of an 8-bit state that are converted at a time */
    CHANNELS = 1024 /* of a convolution's state in one item */
};

/* As many pairs as a call may have. */
#define MAX_PAIRS ((int64_t)1 << 31)

/* ---- Descriptors --------------------------------------------------------------------------- */

/* A dimension of one element may have any stride, which is never used. */
static int64_t step(const gdn_tensor *t, int i)
{
    return t->size[i] < 2 ? 0 : t->stride[i];
}

static struct gdn_state_side side_of(const gdn_tensor *t, const gdn_tensor *scales, int32_t layout)
{
    struct gdn_state_side s = { .data = t->data, .dtype = t->dtype };
    if (!t->data) return s;
    s.slot = step(t, 0);
    if (t->ndim == 3) {
        s.row    = step(t, 1);
        s.column = step(t, 2);
    } else {
        s.head   = step(t, 1);
        s.row    = step(t, layout == GDN_STATE_VK ? 2 : 3);
        s.column = step(t, layout == GDN_STATE_VK ? 3 : 2);
    }
    if (!scales->data) return s;
    s.scales      = scales->data;
    s.scales_slot = step(scales, 0);
    s.scales_head = step(scales, 1);
    return s;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_state_copy_args *a)
{
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    if (a->from_layout < GDN_STATE_VK || a->from_layout > GDN_STATE_KV)
        return gdn_fail(ctx, GDN_E_ARG, "from_layout: %d, wanted 0 or 1", (int)a->from_layout);
    if (a->to_layout < GDN_STATE_VK || a->to_layout > GDN_STATE_KV)
        return gdn_fail(ctx, GDN_E_ARG, "to_layout: %d, wanted 0 or 1", (int)a->to_layout);
    if (a->rounding < GDN_ROUND_NEAREST || a->rounding > GDN_ROUND_STOCHASTIC)
        return gdn_fail(ctx, GDN_E_ARG, "rounding: %d, wanted 0 or 1", (int)a->rounding);
    return GDN_OK;
}

static gdn_status check_pool(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS | (t->ndim == 3 ? 0 : GDN_EIGHTS)));
    if (t->ndim != 3 && t->ndim != 4)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "%s: %d dimensions, wanted 4 (of the rule) or 3 (of the convolution)", name,
                        (int)t->ndim);
    if (t->ndim == 3 && layout)
        return gdn_fail(ctx, GDN_E_ARG, "%s: layout %d, wanted 0 for 3 dimensions", name,
                        (int)layout);
    return GDN_OK;
}

static gdn_status check_pools(gdn_ctx *ctx, struct gdn_state_move *m)
{
    const gdn_state_copy_args *a = &m->args;
    const gdn_tensor          *to = &a->to_pool, *from = &a->from_pool;
    if (!to->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", m->to_name);
    TRY(check_pool(ctx, to, m->to_name, a->to_layout));
    TRY(check_pool(ctx, from, m->from_name, a->from_layout));
    TRY(gdn_check_injective(ctx, to, m->to_name));
    if (!from->data) return GDN_OK;
    const bool turn = a->from_layout != a->to_layout;
    if (to->ndim == 3)
        TRY(gdn_check_shape(ctx, from, m->from_name, 3, (int64_t[]){ -1, to->size[1], -1 }));
    else
        TRY(gdn_check_shape(
            ctx, from, m->from_name, 4,
            (int64_t[]){ -1, to->size[1], to->size[turn ? 3 : 2], to->size[turn ? 2 : 3] }));
    TRY(gdn_check_no_overlap(ctx, to, m->to_name, from, m->from_name, true));
    m->same_pool = to->data == from->data;
    if (m->same_pool && turn)
        return gdn_fail(ctx, GDN_E_ARG, "to_layout: %d, wanted %d as in %s, the same memory",
                        (int)a->to_layout, (int)a->from_layout, m->from_name);
    return GDN_OK;
}

static gdn_status check_list(gdn_ctx *ctx, const struct gdn_state_move *m, const gdn_tensor *t,
                             const char *name)
{
    static const int64_t any[] = { -1 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_INDICES));
    TRY(gdn_check_shape(ctx, t, name, 1, any));
    TRY(gdn_check_no_overlap(ctx, &m->args.to_scales, "to_scales", t, name, false));
    return gdn_check_no_overlap(ctx, &m->args.to_pool, m->to_name, t, name, false);
}

/* The scales of both pools, which have been checked. */
static gdn_status check_scales(gdn_ctx *ctx, const struct gdn_state_move *m)
{
    const gdn_state_copy_args *a     = &m->args;
    const struct gdn_scaled    from  = { &a->from_pool, &a->from_scales, m->from_name,
                                         "from_scales" };
    const struct gdn_scaled    to    = { &a->to_pool, &a->to_scales, m->to_name, "to_scales" };
    const gdn_tensor          *t     = &a->to_pool;
    const bool                 vk    = a->to_layout == GDN_STATE_VK;
    const int64_t              V     = t->ndim == 4 ? t->size[vk ? 2 : 3] : 0;
    const int64_t              K     = t->ndim == 4 ? t->size[vk ? 3 : 2] : 0;
    TRY(gdn_check_scales(ctx, &from, t->size[1], V));
    TRY(gdn_check_scales(ctx, &to, t->size[1], V));
    if (K > GDN_MAX_HEAD && (a->from_scales.data || a->to_scales.data))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: head size %lld, the largest of 8 bits is %d",
                        m->to_name, (long long)K, GDN_MAX_HEAD);
    TRY(gdn_check_twins(ctx, &to, &from));
    TRY(gdn_check_no_overlap(ctx, t, m->to_name, from.scales, from.scales_name, false));
    TRY(gdn_check_no_overlap(ctx, t, m->to_name, to.scales, to.scales_name, false));
    if (!to.scales->data) return GDN_OK;
    TRY(gdn_check_injective(ctx, to.scales, to.scales_name));
    TRY(gdn_check_no_overlap(ctx, to.scales, to.scales_name, from.t, from.name, false));
    return gdn_check_no_overlap(ctx, to.scales, to.scales_name, from.scales, from.scales_name,
                                m->same_pool);
}

/* Without a list pair m has slot m. */
static gdn_status check_default(gdn_ctx *ctx, const gdn_tensor *list, const char *list_name,
                                const gdn_tensor *pool, const char *name, int64_t n)
{
    if (list->data || !pool->data || n <= pool->size[0]) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: absent, so %lld slots, but %s has %lld", list_name,
                    (long long)n, name, (long long)pool->size[0]);
}

static gdn_status check_lists(gdn_ctx *ctx, struct gdn_state_move *m)
{
    const gdn_state_copy_args *a    = &m->args;
    const gdn_tensor          *from = &a->from_slots, *to = &a->to_slots;
    TRY(check_list(ctx, m, from, m->from_slots_name));
    TRY(check_list(ctx, m, to, m->to_slots_name));
    if (from->data && to->data)
        TRY(gdn_check_shape(ctx, from, m->from_slots_name, 1, to->size));
    if (!from->data && !to->data && a->from_pool.data &&
        a->from_pool.size[0] != a->to_pool.size[0])
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld slots, but %s has %lld, wanted %s or %s",
                        m->from_name, (long long)a->from_pool.size[0], m->to_name,
                        (long long)a->to_pool.size[0], m->from_slots_name, m->to_slots_name);
    m->n_pairs = from->data ? from->size[0] : to->data ? to->size[0] : a->to_pool.size[0];
    if (m->n_pairs > MAX_PAIRS)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld pairs, at most 2^31",
                        from->data ? m->from_slots_name : m->to_slots_name, (long long)m->n_pairs);
    TRY(check_default(ctx, from, m->from_slots_name, &a->from_pool, m->from_name, m->n_pairs));
    return check_default(ctx, to, m->to_slots_name, &a->to_pool, m->to_name, m->n_pairs);
}

/* Rows, columns and heads of a slot; of a convolution's states the newest entries of both. */
static void find_matrices(struct gdn_state_move *m)
{
    const gdn_state_copy_args *a = &m->args;
    const gdn_tensor          *t = &a->to_pool;
    m->from                      = side_of(&a->from_pool, &a->from_scales, a->from_layout);
    m->to                        = side_of(t, &a->to_scales, a->to_layout);
    if (t->ndim == 4) {
        const bool vk  = a->to_layout == GDN_STATE_VK;
        m->n_parts     = t->size[1];
        m->rows        = t->size[vk ? 2 : 3];
        m->columns     = t->size[vk ? 3 : 2];
    } else {
        const int64_t S = t->size[2], from_S = m->from.data ? a->from_pool.size[2] : S;
        m->rows         = t->size[1];
        m->n_parts      = m->rows / CHANNELS + (m->rows % CHANNELS != 0);
        m->columns      = S < from_S ? S : from_S;
        m->n_old        = S - m->columns;
        m->n_skipped    = from_S - m->columns;
    }
    if (gdn_count(t) == 0) m->n_parts = 0;
}

gdn_status gdn_state_describe(gdn_ctx *ctx, const gdn_state_copy_args *args,
                              struct gdn_state_move *m)
{
    int64_t n_items;
    m->kr        = ctx->kr;
    m->same_pool = false;
    m->n_old     = 0;
    m->n_skipped = 0;
    TRY(gdn_copy_args(ctx, &m->args, sizeof m->args, args, "gdn_state_copy_args"));
    TRY(check_fields(ctx, &m->args));
    TRY(check_pools(ctx, m));
    TRY(check_scales(ctx, m));
    TRY(check_lists(ctx, m));
    find_matrices(m);
    if (__builtin_mul_overflow(m->n_pairs, m->n_parts, &n_items))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld pairs of %lld heads", m->to_name,
                        (long long)m->n_pairs, (long long)m->n_parts);
    return GDN_OK;
}

/* ---- Slots --------------------------------------------------------------------------------- */

static int64_t slot_of(const gdn_tensor *slots, int64_t pair)
{
    return slots->data ? gdn_index(slots, pair) : pair;
}

size_t gdn_state_bytes(const struct gdn_state_move *m)
{
    return gdn_align64((size_t)m->args.to_pool.size[0] / 8 + 1);
}

static gdn_status check_below(gdn_ctx *ctx, const char *name, int64_t pair, int64_t slot,
                              int64_t end)
{
    if (slot < end) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, wanted below %lld", name, (long long)pair,
                    (long long)slot, (long long)end);
}

/* One bit per slot of the target: is it written? */
static bool is_written(const unsigned char *bits, int64_t slot)
{
    return bits[slot / 8] >> slot % 8 & 1;
}

gdn_status gdn_state_check_slots(gdn_ctx *ctx, const struct gdn_state_move *m, void *memory)
{
    const gdn_state_copy_args *a    = &m->args;
    unsigned char             *bits = memory;
    memset(bits, 0, gdn_state_bytes(m));
    for (int64_t i = 0; i < m->n_pairs; i++) {
        const int64_t from = slot_of(&a->from_slots, i), to = slot_of(&a->to_slots, i);
        if (to < 0) continue;
        TRY(check_below(ctx, m->to_slots_name, i, to, a->to_pool.size[0]));
        if (m->from.data)
            TRY(check_below(ctx, m->from_slots_name, i, from, a->from_pool.size[0]));
        if (is_written(bits, to))
            return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, which an earlier pair writes",
                            m->to_slots_name, (long long)i, (long long)to);
        bits[to / 8] |= (unsigned char)(1 << to % 8);
    }
    for (int64_t i = 0; i < m->n_pairs && m->same_pool; i++) {
        const int64_t from = slot_of(&a->from_slots, i), to = slot_of(&a->to_slots, i);
        if (to >= 0 && from >= 0 && from != to && is_written(bits, from))
            return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, which another pair writes",
                            m->from_slots_name, (long long)i, (long long)from);
    }
    return GDN_OK;
}

/* ---- Running ------------------------------------------------------------------------------- */

/* Rows and columns from (row, column) on of one head. */
static struct gdn_matrix matrix_of(const struct gdn_state_side *s, int64_t slot, int64_t head,
                               int64_t row, int64_t column)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(s->dtype);
    const int64_t first = slot * s->slot + head * s->head + row * s->row + column * s->column;
    return (struct gdn_matrix){ .data   = s->data + first * unit,
                            .dtype  = s->dtype,
                            .unit   = unit,
                            .row    = s->row * unit,
                            .column = s->column * unit };
}

static float *scales_of(const struct gdn_state_side *s, int64_t slot, int64_t head, int64_t row)
{
    return s->scales ? s->scales + slot * s->scales_slot + head * s->scales_head + row : NULL;
}

/* Rows of float32 or of codes, side by side. */
static struct gdn_matrix dense(void *data, int32_t dtype, int64_t columns)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(dtype);
    return (struct gdn_matrix){ data, dtype, unit, columns * unit, unit };
}

/* n rows of float32 from or to a matrix of any dtype; scales: of 8-bit ones. */
static void load_rows(float *S, const struct gdn_kernels *kr, const struct gdn_matrix *from,
                      const float *scales, int n, int columns)
{
    uint8_t                 codes[COLUMNS * GDN_MAX_HEAD];
    const struct gdn_matrix to = scales ? dense(codes, from->dtype, columns)
                                        : dense(S, GDN_F32, columns);
    gdn_matrix_copy(kr, &to, from, n, columns);
    if (scales)
        kr->load8_vk[from->dtype - GDN_I8](S, columns, codes, columns, scales, columns, n);
}

static void store_rows(float *S, const struct gdn_kernels *kr, const struct gdn_matrix *to,
                       float *scales, const uint32_t *keys, int n, int columns)
{
    uint8_t                 codes[COLUMNS * GDN_MAX_HEAD];
    const struct gdn_matrix from = scales ? dense(codes, to->dtype, columns)
                                          : dense(S, GDN_F32, columns);
    if (scales)
        kr->store8_vk[to->dtype - GDN_I8](codes, columns, scales, S, columns, keys, columns, n);
    gdn_matrix_copy(kr, to, &from, n, columns);
}

/* One head, of which one side is of 8 bits. */
static void convert_head(const struct gdn_state_move *m, int64_t from, int64_t to, int64_t head)
{
    const gdn_state_copy_args *a = &m->args;
    const uint64_t noise = gdn_noise(a->seed, 0, head);
    const int      K     = (int)m->columns;
    float          S[COLUMNS * GDN_MAX_HEAD];
    uint32_t       keys[COLUMNS];
    for (int64_t v = 0; v < m->rows; v += COLUMNS) {
        const int n = m->rows - v < COLUMNS ? (int)(m->rows - v) : COLUMNS;
        const struct gdn_matrix source = matrix_of(&m->from, from, head, v, 0);
        const struct gdn_matrix target = matrix_of(&m->to, to, head, v, 0);
        gdn_noise_keys(keys, noise, v, n);
        load_rows(S, m->kr, &source, scales_of(&m->from, from, head, v), n, K);
        store_rows(S, m->kr, &target, scales_of(&m->to, to, head, v),
                   a->rounding == GDN_ROUND_STOCHASTIC ? keys : NULL, n, K);
    }
}

/* The scales of a head whose codes are copied, or zeroed (from below 0). */
static void copy_scales(const struct gdn_state_move *m, int64_t from, int64_t to, int64_t head)
{
    const size_t bytes = (size_t)m->rows * sizeof(float);
    float       *t     = scales_of(&m->to, to, head, 0);
    if (!t) return;
    if (from < 0)
        memset(t, 0, bytes);
    else
        memcpy(t, scales_of(&m->from, from, head, 0), bytes);
}

static bool converts(const struct gdn_state_move *m)
{
    return m->from.dtype != m->to.dtype && (m->from.scales || m->to.scales);
}

/* A part is one head, or CHANNELS channels. */
static void run_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_state_move *m    = arg;
    const int64_t                pair = item / m->n_parts, part = item % m->n_parts;
    const int64_t from = slot_of(&m->args.from_slots, pair), to = slot_of(&m->args.to_slots, pair);
    const bool    is_conv = m->args.to_pool.ndim == 3, is_zero = !m->from.data || from < 0;
    const int64_t head = is_conv ? 0 : part, row = is_conv ? part * CHANNELS : 0;
    const int64_t n_zero = is_zero ? m->n_old + m->columns : m->n_old;
    int64_t       rows   = m->rows - row;
    if (to < 0 || (m->same_pool && from == to)) return;
    if (is_conv && rows > CHANNELS) rows = CHANNELS;

    if (n_zero > 0) {
        const struct gdn_matrix old = matrix_of(&m->to, to, head, row, 0);
        gdn_matrix_zero(&old, rows, n_zero);
    }
    if (!is_zero && converts(m)) {
        convert_head(m, from, to, head);
        return;
    }
    copy_scales(m, is_zero ? -1 : from, to, head);
    if (is_zero || m->columns == 0) return;
    const struct gdn_matrix target = matrix_of(&m->to, to, head, row, m->n_old);
    const struct gdn_matrix source = matrix_of(&m->from, from, head, row, m->n_skipped);
    gdn_matrix_copy(m->kr, &target, &source, rows, m->columns);
}

void gdn_state_run(gdn_ctx *ctx, struct gdn_state_move *m)
{
    gdn_parallel_for(ctx->pool, m->n_pairs * m->n_parts, run_item, m);
}

/* ---- The call ------------------------------------------------------------------------------ */

static struct gdn_state_move named(void)
{
    return (struct gdn_state_move){ .from_name       = "from_pool",
                                    .to_name         = "to_pool",
                                    .from_slots_name = "from_slots",
                                    .to_slots_name   = "to_slots" };
}

static const char *loops_of(const struct gdn_state_move *m)
{
    static const char *const names[2][4] = {
        { "", "load_row", "store_row", "load_row store_row" },
        { "transpose", "load_row transpose", "transpose store_row",
          "load_row transpose store_row" },
    };
    if (!m->from.data || m->n_pairs * m->n_parts == 0 || m->columns == 0) return "";
    if (converts(m))
        return !m->to.scales     ? "load8_vk"
               : !m->from.scales ? "store8_vk"
                                 : "load8_vk store8_vk";
    const struct gdn_matrix to   = matrix_of(&m->to, 0, 0, 0, 0);
    const struct gdn_matrix from = matrix_of(&m->from, 0, 0, 0, 0);
    const bool              tiled = gdn_matrix_is_tiled(&to, &from, m->rows, m->columns);
    const bool              other = to.dtype != from.dtype;
    return names[tiled][(other && from.dtype != GDN_F32) + 2 * (other && to.dtype != GDN_F32)];
}

/* A checked call. */
struct call {
    struct gdn_state_move move;
    size_t                bytes;
};

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct call *c = call;
    c->move        = named();
    TRY(gdn_state_describe(ctx, args, &c->move));
    c->bytes = ctx->cuda ? 0 : gdn_state_bytes(&c->move);
    return GDN_OK;
}

/* Of a call on a device, if the context does that. */
static gdn_status check_contents(gdn_ctx *ctx, const struct gdn_state_move *m)
{
    struct gdn_state_move own      = *m;
    gdn_tensor           *arrays[] = { &own.args.from_slots, &own.args.to_slots };
    void                 *memory;
    TRY(gdn_cuda_contents_open(ctx, m->args.stream, arrays, 2, gdn_state_bytes(m), &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = gdn_state_check_slots(ctx, &own, memory);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct call           *c = call;
    struct gdn_state_move *m = &c->move;
    void                  *memory;
    TRY(gdn_get_workspace(ctx, m->args.workspace, m->args.workspace_bytes, c->bytes, &memory));
    TRY(gdn_state_check_slots(ctx, m, memory));
    gdn_state_run(ctx, m);
    return GDN_OK;
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    struct gdn_state_move *m = &((struct call *)call)->move;
    void                  *none;
    TRY(gdn_get_workspace(ctx, m->args.workspace, m->args.workspace_bytes, 0, &none));
    TRY(check_contents(ctx, m));
    return gdn_cuda_state_copy(ctx, m);
}

static const char *find_loops(void *call, char text[GDN_LOOPS_BYTES])
{
    (void)text;
    return loops_of(&((const struct call *)call)->move);
}

static const struct gdn_frame frame = {
    .describe   = describe,
    .run        = run,
    .enqueue    = enqueue,
    .bytes_at   = offsetof(struct call, bytes),
    .find_loops = find_loops,
};
GDN_OP_ENTRY(state_copy, gdn_state_copy_args, frame, struct call)
