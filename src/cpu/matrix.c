/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three forms of a copy are enough: rows to rows, tiles through a transposition, and single
 * elements for the rest. What keeps its dtype never passes through arithmetic, so NaN payloads
 * stay.
 */
#include "cpu/matrix.h"

#include <string.h>

enum {
    ROW = 256, /* floats between two 16-bit dtypes */
    TILE = 32  /* rows and columns of a transposed tile */
};

static char *at(const struct gdn_state_matrix *m, int64_t row, int64_t column)
{
    return m->data + row * m->row + column * m->column;
}

static struct gdn_state_matrix turned(const struct gdn_state_matrix *m)
{
    struct gdn_state_matrix t = *m;
    t.row = m->column;
    t.column = m->row;
    return t;
}

/* Copies n elements that are side by side in the source and in the target. */
static void copy_row(const struct gdn_kernels *kr, char *to, int32_t to_dtype, const char *from,
                     int32_t from_dtype, int64_t n)
{
    float buffer[ROW];
    const int64_t to_unit = (int64_t)gdn_dtype_bytes(to_dtype);
    const int64_t unit = (int64_t)gdn_dtype_bytes(from_dtype);
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

/* Copies n elements of 1, 2 or 4 bytes, steps in bytes. */
static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                          int64_t unit)
{
    for (int64_t i = 0; i < n && unit == 1; i++) to[i * to_step] = from[i * from_step];
    for (int64_t i = 0; i < n && unit == 2; i++) memcpy(to + i * to_step, from + i * from_step, 2);
    for (int64_t i = 0; i < n && unit == 4; i++) memcpy(to + i * to_step, from + i * from_step, 4);
}

/* Copies a row with any steps: its elements are brought together, converted, and dealt out. */
static void copy_strided(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                         const struct gdn_state_matrix *from, int64_t row, int64_t columns)
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

/* Copies a tile. Rows of `to` and columns of `from` are dense. If both sides have one dtype, it is
 * not one of 16 bits. */
static void copy_tile(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                      const struct gdn_state_matrix *from, int64_t row, int64_t column, int rows,
                      int columns)
{
    float in[TILE * TILE], out[TILE * TILE], *a = in, *b = out;
    ptrdiff_t lda = TILE, ldb = TILE;
    if (from->dtype == GDN_F32) {
        a = (float *)(void *)at(from, row, column);
        lda = from->column / (ptrdiff_t)sizeof(float);
    }
    if (to->dtype == GDN_F32) {
        b = (float *)(void *)at(to, row, column);
        ldb = to->row / (ptrdiff_t)sizeof(float);
    }
    for (int c = 0; c < columns && from->dtype != GDN_F32; c++)
        kr->load_row[from->dtype](in + c * TILE, at(from, row, column + c), (size_t)rows);
    kr->transpose(b, ldb, a, lda, columns, rows);
    for (int r = 0; r < rows && to->dtype != GDN_F32; r++)
        kr->store_row[to->dtype](at(to, row + r, column), out + r * TILE, (size_t)columns);
}

static void copy_transposed(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                            const struct gdn_state_matrix *from, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            copy_tile(kr, to, from, r, c, rows - r < TILE ? (int)(rows - r) : TILE,
                      columns - c < TILE ? (int)(columns - c) : TILE);
}

static bool has_dense_rows(const struct gdn_state_matrix *m, int64_t columns)
{
    return columns < 2 || m->column == m->unit;
}

static bool has_dense_columns(const struct gdn_state_matrix *m, int64_t rows)
{
    return rows < 2 || m->row == m->unit;
}

static bool is_whole(const struct gdn_state_matrix *m, int64_t columns)
{
    return m->row == columns * m->unit;
}

enum form { ROWS, TILES, ELEMENTS };

/* Returns how a matrix is copied. If the target has a dense dimension, that is its columns. */
static enum form form_of(const struct gdn_state_matrix *to, const struct gdn_state_matrix *from,
                         int64_t rows, int64_t columns)
{
    if (!has_dense_rows(to, columns)) return ELEMENTS;
    if (has_dense_rows(from, columns)) return ROWS;
    const bool bits = to->dtype == from->dtype && to->unit < 4; /* not floats */
    return has_dense_columns(from, rows) && !bits ? TILES : ELEMENTS;
}

/* Returns true if form_of() takes the rows of the target as columns. */
static bool is_turned(const struct gdn_state_matrix *to, int64_t rows, int64_t columns)
{
    return !has_dense_rows(to, columns) && has_dense_columns(to, rows);
}

static void copy_matrix(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                        const struct gdn_state_matrix *from, int64_t rows, int64_t columns)
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

static void zero_matrix(const struct gdn_state_matrix *m, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        if (has_dense_rows(m, columns)) {
            memset(at(m, r, 0), 0, (size_t)(columns * m->unit));
            continue;
        }
        for (int64_t c = 0; c < columns; c++) memset(at(m, r, c), 0, (size_t)m->unit);
    }
}

void gdn_state_matrix_copy(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                           const struct gdn_state_matrix *from, int64_t rows, int64_t columns)
{
    const struct gdn_state_matrix t = turned(to), f = turned(from);
    if (is_turned(to, rows, columns))
        copy_matrix(kr, &t, &f, columns, rows);
    else
        copy_matrix(kr, to, from, rows, columns);
}

void gdn_state_matrix_zero(const struct gdn_state_matrix *m, int64_t rows, int64_t columns)
{
    const struct gdn_state_matrix t = turned(m);
    if (is_turned(m, rows, columns))
        zero_matrix(&t, columns, rows);
    else
        zero_matrix(m, rows, columns);
}

bool gdn_state_matrix_is_tiled(const struct gdn_state_matrix *to,
                               const struct gdn_state_matrix *from, int64_t rows, int64_t columns)
{
    const struct gdn_state_matrix t = turned(to), f = turned(from);
    if (is_turned(to, rows, columns)) return form_of(&t, &f, columns, rows) == TILES;
    return form_of(to, from, rows, columns) == TILES;
}
