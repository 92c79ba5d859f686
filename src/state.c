/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_state_copy: a slot is a list of matrices, and every case (dtype, layout, channels first or
 * last) is the copy of one matrix with two strides to another. Three forms of it are enough:
 * rows to rows, tiles through a transposition, and single elements for the rest. What keeps
 * its dtype never passes through arithmetic, so NaN payloads stay.
 */
#include "state.h"

#include "ops.h"
#include "tensor.h"

enum {
    ROW      = 256, /* floats between two 16-bit dtypes */
    TILE     = 32,  /* rows and columns of a transposed tile */
    CHANNELS = 1024 /* of a convolution's state in one item */
};

/* As many pairs as a call may have. */
#define MAX_PAIRS ((int64_t)1 << 31)

/* ---- Matrices ------------------------------------------------------------------------------ */

struct matrix {
    char   *data;
    int32_t dtype;
    int64_t unit, row, column; /* bytes of an element; strides in bytes */
};

static char *at(const struct matrix *m, int64_t row, int64_t column)
{
    return m->data + row * m->row + column * m->column;
}

static struct matrix turned(const struct matrix *m)
{
    struct matrix t = *m;
    t.row           = m->column;
    t.column        = m->row;
    return t;
}

/* n elements that lie side by side on both sides. */
static void copy_row(const struct gdn_kernels *kr, char *to, int32_t to_dtype, const char *from,
                     int32_t from_dtype, int64_t n)
{
    float         buffer[ROW];
    const int64_t to_unit = (int64_t)gdn_dtype_bytes(to_dtype);
    const int64_t unit    = (int64_t)gdn_dtype_bytes(from_dtype);
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)(n * unit));
    } else if (to_dtype == GDN_F32) {
        kr->load_row[from_dtype]((float *)(void *)to, from, (size_t)n);
    } else if (from_dtype == GDN_F32) {
        kr->store_row[to_dtype](to, (const float *)(const void *)from, (size_t)n);
    } else {
        for (int64_t i = 0; i < n; i += ROW) {
            const size_t some = (size_t)(n - i < ROW ? n - i : ROW);
            kr->load_row[from_dtype](buffer, from + i * unit, some);
            kr->store_row[to_dtype](to + i * to_unit, buffer, some);
        }
    }
}

/* n elements of 2 or 4 bytes, steps in bytes. */
static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                          int64_t unit)
{
    for (int64_t i = 0; i < n && unit == 2; i++) memcpy(to + i * to_step, from + i * from_step, 2);
    for (int64_t i = 0; i < n && unit == 4; i++) memcpy(to + i * to_step, from + i * from_step, 4);
}

/* A row with any steps: its elements are brought together, converted, and dealt out. */
static void copy_strided(const struct gdn_kernels *kr, const struct matrix *to,
                         const struct matrix *from, int64_t row, int64_t columns)
{
    float buffer[2][ROW];
    char *in = (char *)buffer[0], *out = (char *)buffer[1];
    if (to->dtype == from->dtype) {
        copy_elements(at(to, row, 0), to->column, at(from, row, 0), from->column, columns,
                      to->unit);
        return;
    }
    for (int64_t c = 0; c < columns; c += ROW) {
        const int64_t n = columns - c < ROW ? columns - c : ROW;
        copy_elements(in, from->unit, at(from, row, c), from->column, n, from->unit);
        copy_row(kr, out, to->dtype, in, from->dtype, n);
        copy_elements(at(to, row, c), to->column, out, to->unit, n, to->unit);
    }
}

/* Rows of `to` and columns of `from` are dense, and the dtypes are not one of 16 bits. */
static void copy_tile(const struct gdn_kernels *kr, const struct matrix *to,
                      const struct matrix *from, int64_t row, int64_t column, int rows, int columns)
{
    float     in[TILE * TILE], out[TILE * TILE], *a = in, *b = out;
    ptrdiff_t lda = TILE, ldb = TILE;
    if (from->dtype == GDN_F32) {
        a   = (float *)(void *)at(from, row, column);
        lda = from->column / (ptrdiff_t)sizeof(float);
    }
    if (to->dtype == GDN_F32) {
        b   = (float *)(void *)at(to, row, column);
        ldb = to->row / (ptrdiff_t)sizeof(float);
    }
    for (int c = 0; c < columns && from->dtype != GDN_F32; c++)
        kr->load_row[from->dtype](in + c * TILE, at(from, row, column + c), (size_t)rows);
    kr->transpose(b, ldb, a, lda, columns, rows);
    for (int r = 0; r < rows && to->dtype != GDN_F32; r++)
        kr->store_row[to->dtype](at(to, row + r, column), out + r * TILE, (size_t)columns);
}

static void copy_transposed(const struct gdn_kernels *kr, const struct matrix *to,
                            const struct matrix *from, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            copy_tile(kr, to, from, r, c, rows - r < TILE ? (int)(rows - r) : TILE,
                      columns - c < TILE ? (int)(columns - c) : TILE);
}

static bool has_dense_rows(const struct matrix *m, int64_t columns)
{
    return columns < 2 || m->column == m->unit;
}

static bool has_dense_columns(const struct matrix *m, int64_t rows)
{
    return rows < 2 || m->row == m->unit;
}

static bool is_whole(const struct matrix *m, int64_t columns)
{
    return m->row == columns * m->unit;
}

enum form { ROWS, TILES, ELEMENTS };

/* How a matrix is copied whose target has its dense dimension, if it has one, as columns. */
static enum form form_of(const struct matrix *to, const struct matrix *from, int64_t rows,
                         int64_t columns)
{
    if (!has_dense_rows(to, columns)) return ELEMENTS;
    if (has_dense_rows(from, columns)) return ROWS;
    const bool same_half = to->dtype == from->dtype && to->unit == 2; /* bits, not floats */
    return has_dense_columns(from, rows) && !same_half ? TILES : ELEMENTS;
}

/* Is it the rows of the target that are columns for form_of()? */
static bool is_turned(const struct matrix *to, int64_t rows, int64_t columns)
{
    return !has_dense_rows(to, columns) && has_dense_columns(to, rows);
}

static void copy_matrix(const struct gdn_kernels *kr, const struct matrix *to,
                        const struct matrix *from, int64_t rows, int64_t columns)
{
    const enum form form = form_of(to, from, rows, columns);
    if (form == TILES) {
        copy_transposed(kr, to, from, rows, columns);
        return;
    }
    if (form == ROWS && is_whole(to, columns) && is_whole(from, columns)) columns *= rows, rows = 1;
    for (int64_t r = 0; r < rows; r++) {
        if (form == ROWS)
            copy_row(kr, at(to, r, 0), to->dtype, at(from, r, 0), from->dtype, columns);
        else
            copy_strided(kr, to, from, r, columns);
    }
}

static void zero_matrix(const struct matrix *m, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        if (has_dense_rows(m, columns)) {
            memset(at(m, r, 0), 0, (size_t)(columns * m->unit));
            continue;
        }
        for (int64_t c = 0; c < columns; c++) memset(at(m, r, c), 0, (size_t)m->unit);
    }
}

/* Both, with the dense dimension of the target as columns. */
static void copy_turned(const struct gdn_kernels *kr, const struct matrix *to,
                        const struct matrix *from, int64_t rows, int64_t columns)
{
    const struct matrix t = turned(to), f = turned(from);
    if (is_turned(to, rows, columns))
        copy_matrix(kr, &t, &f, columns, rows);
    else
        copy_matrix(kr, to, from, rows, columns);
}

static void zero_turned(const struct matrix *m, int64_t rows, int64_t columns)
{
    const struct matrix t = turned(m);
    if (is_turned(m, rows, columns))
        zero_matrix(&t, columns, rows);
    else
        zero_matrix(m, rows, columns);
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* A dimension of one element may have any stride, which is never used. */
static int64_t step(const gdn_tensor *t, int i)
{
    return t->size[i] < 2 ? 0 : t->stride[i];
}

static struct gdn_state_side side_of(const gdn_tensor *t, int32_t layout)
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
    return s;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_state_copy_args *a)
{
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->from_layout < GDN_STATE_VK || a->from_layout > GDN_STATE_KV)
        return gdn_fail(ctx, GDN_E_ARG, "from_layout: %d, wanted 0 or 1", (int)a->from_layout);
    if (a->to_layout < GDN_STATE_VK || a->to_layout > GDN_STATE_KV)
        return gdn_fail(ctx, GDN_E_ARG, "to_layout: %d, wanted 0 or 1", (int)a->to_layout);
    return GDN_OK;
}

static gdn_status check_pool(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
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
    return gdn_check_no_overlap(ctx, &m->args.to_pool, m->to_name, t, name, false);
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
    m->from                      = side_of(&a->from_pool, a->from_layout);
    m->to                        = side_of(t, a->to_layout);
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
static struct matrix matrix_of(const struct gdn_state_side *s, int64_t slot, int64_t head,
                               int64_t row, int64_t column)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(s->dtype);
    const int64_t first = slot * s->slot + head * s->head + row * s->row + column * s->column;
    return (struct matrix){ .data   = s->data + first * unit,
                            .dtype  = s->dtype,
                            .unit   = unit,
                            .row    = s->row * unit,
                            .column = s->column * unit };
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
        const struct matrix old = matrix_of(&m->to, to, head, row, 0);
        zero_turned(&old, rows, n_zero);
    }
    if (is_zero || m->columns == 0) return;
    const struct matrix target = matrix_of(&m->to, to, head, row, m->n_old);
    const struct matrix source = matrix_of(&m->from, from, head, row, m->n_skipped);
    copy_turned(m->kr, &target, &source, rows, m->columns);
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

static const char *loops(const struct gdn_state_move *m)
{
    static const char *const names[2][4] = {
        { "", "load_row", "store_row", "load_row store_row" },
        { "transpose", "load_row transpose", "transpose store_row",
          "load_row transpose store_row" },
    };
    if (!m->from.data || m->n_pairs * m->n_parts == 0 || m->columns == 0) return "";
    const struct matrix to = matrix_of(&m->to, 0, 0, 0, 0), from = matrix_of(&m->from, 0, 0, 0, 0);
    const struct matrix t = turned(&to), f = turned(&from);
    const bool          turn     = is_turned(&to, m->rows, m->columns);
    const enum form     form     = turn ? form_of(&t, &f, m->columns, m->rows)
                                        : form_of(&to, &from, m->rows, m->columns);
    const bool          converts = to.dtype != from.dtype;
    return names[form == TILES][(converts && from.dtype != GDN_F32) +
                                2 * (converts && to.dtype != GDN_F32)];
}

gdn_status gdn_state_copy_check(gdn_ctx *ctx, const gdn_state_copy_args *args, size_t *bytes)
{
    struct gdn_state_move m = named();
    TRY(gdn_state_describe(ctx, args, &m));
    *bytes = gdn_state_bytes(&m);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, const gdn_state_copy_args *args)
{
    struct gdn_state_move m = named();
    void                 *memory;
    TRY(gdn_state_describe(ctx, args, &m));
    TRY(gdn_get_workspace(ctx, m.args.workspace, m.args.workspace_bytes, gdn_state_bytes(&m),
                          &memory));
    TRY(gdn_state_check_slots(ctx, &m, memory));
    gdn_state_run(ctx, &m);
    return gdn_note_kernel(ctx, "state_copy", loops(&m));
}

gdn_status gdn_state_copy(gdn_ctx *ctx, const gdn_state_copy_args *args)
{
    if (!ctx) return GDN_E_ARG;
    const uint32_t   fp     = gdn_fp_enter();
    const gdn_status status = run(ctx, args);
    gdn_fp_leave(fp);
    return status;
}
