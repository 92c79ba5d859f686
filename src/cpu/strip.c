/* SPDX-License-Identifier: Apache-2.0 */
/* See strip.h. States of the other orientation are transposed by the copy. */
#include "cpu/strip.h"

#include <string.h>

#include "cpu/loops/stream.h"

struct gdn_place gdn_place_of(const struct gdn_pool_view *view, int64_t slot, int64_t head,
                              int64_t n_tokens)
{
    struct gdn_place p = { .view = view };
    if (!view->data) return p;
    p.data = gdn_pool_at(view, slot, head);
    if (view->scales) p.scales = view->scales + slot * view->scales_slot + head * view->scales_head;
    if (view->random) p.noise = gdn_noise(view->seed, n_tokens, head);
    return p;
}

/* ---- Random rounding ------------------------------------------------------------------------ */

/* Returns one step of splitmix64. */
static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t gdn_noise(uint64_t seed, int64_t n_tokens, int64_t head)
{
    return mix(mix(seed + (uint64_t)n_tokens) + (uint64_t)head);
}

void gdn_noise_keys(uint32_t *keys, uint64_t noise, int64_t col, int n)
{
    for (int j = 0; j < n; j++) keys[j] = (uint32_t)(mix(noise + (uint64_t)(col + j)) >> 32);
}

/* ---- Columns -------------------------------------------------------------------------------- */

enum { TILE = 8 }; /* columns that are turned at a time */

/* The first of n columns in memory, and the shape of what lies there. */
struct part {
    char *at;
    int64_t row, step; /* bytes from row to row, from column to column */
    int rows, cols;
};

static struct part part_of(const struct gdn_place *p, int K, int col, int n)
{
    const struct gdn_pool_view *v = p->view;
    const int64_t elem = (int64_t)gdn_dtype_bytes(v->dtype), row = v->ld * elem;
    const int64_t step = (1 + v->gap) * elem;
    if (v->k_first) return (struct part){ p->data + col * step, row, step, K, n };
    return (struct part){ p->data + col * row, row, step, n, K };
}

static float *scales_at(const struct gdn_place *p, int col)
{
    return p->scales ? p->scales + col : NULL;
}

/* ---- Columns with gaps ---- */

/* Brings n elements of `unit` bytes together, and deals them out. */
static void gather(char *to, const char *from, int64_t step, int n, int64_t unit)
{
    for (int i = 0; i < n; i++) memcpy(to + i * unit, from + i * step, (size_t)unit);
}
static void scatter(char *to, int64_t step, const char *from, int n, int64_t unit)
{
    for (int i = 0; i < n; i++) memcpy(to + i * step, from + i * unit, (size_t)unit);
}

static void load_spread(float *S, ptrdiff_t ld, const struct gdn_kernels *kr,
                        const struct gdn_place *from, int K, int col, int n)
{
    const struct gdn_pool_view *v = from->view;
    const struct part p = part_of(from, K, col, n);
    const int64_t unit = (int64_t)gdn_dtype_bytes(v->dtype);
    char row[GDN_MAX_HEAD * sizeof(float)];
    for (int i = 0; i < p.rows; i++, S += ld) {
        gather(row, p.at + i * p.row, p.step, p.cols, unit);
        if (!gdn_is_q8(v->dtype))
            kr->load_row[v->dtype](S, row, (size_t)p.cols);
        else if (v->k_first)
            kr->load8_kv[v->dtype - GDN_I8](S, ld, row, 0, scales_at(from, col), 1, n);
        else
            kr->load8_vk[v->dtype - GDN_I8](S, ld, row, 0, scales_at(from, col + i), K, 1);
    }
}

/* Stores floats. */
static void store_spread(const float *S, ptrdiff_t ld, const struct gdn_kernels *kr,
                         const struct gdn_place *to, int K, int col, int n)
{
    const struct gdn_pool_view *v = to->view;
    const struct part p = part_of(to, K, col, n);
    const int64_t unit = (int64_t)gdn_dtype_bytes(v->dtype);
    char row[GDN_MAX_HEAD * sizeof(float)];
    for (int i = 0; i < p.rows; i++) {
        kr->store_row[v->dtype](row, S + i * ld, (size_t)p.cols);
        scatter(p.at + i * p.row, p.step, row, p.cols, unit);
    }
}

/* Stores states of 8 bits, some columns at a time: a column has one scale. */
static void store_spread8(const float *S, ptrdiff_t ld, const struct gdn_kernels *kr,
                          const struct gdn_place *to, const uint32_t *keys, int K, int col, int n)
{
    const struct gdn_pool_view *v = to->view;
    char codes[TILE * GDN_MAX_HEAD];
    for (int j = 0; j < n; j += TILE) {
        const int m = n - j < TILE ? n - j : TILE;
        const struct part p = part_of(to, K, col + j, m);
        (v->k_first ? kr->store8_kv : kr->store8_vk)[v->dtype - GDN_I8](
            codes, p.cols, scales_at(to, col + j), v->k_first ? S + j : S + j * ld, ld,
            keys ? keys + j : NULL, K, m);
        for (int i = 0; i < p.rows; i++)
            scatter(p.at + i * p.row, p.step, codes + i * p.cols, p.cols, 1);
    }
}

/* ---- As they lie in memory, rows ld floats apart ---- */

static void load_rows(float *S, ptrdiff_t ld, const struct gdn_kernels *kr,
                      const struct gdn_place *from, int K, int col, int n)
{
    const struct gdn_pool_view *v = from->view;
    const struct part p = part_of(from, K, col, n);
    if (v->gap) {
        load_spread(S, ld, kr, from, K, col, n);
        return;
    }
    if (gdn_is_q8(v->dtype)) {
        (v->k_first ? kr->load8_kv : kr->load8_vk)[v->dtype - GDN_I8](S, ld, p.at, p.row,
                                                                      scales_at(from, col), K, n);
        return;
    }
    for (int i = 0; i < p.rows; i++)
        kr->load_row[v->dtype](S + i * ld, p.at + i * p.row, (size_t)p.cols);
}

static void store_rows(const float *S, ptrdiff_t ld, const struct gdn_kernels *kr,
                       const struct gdn_place *to, int K, int col, int n)
{
    const struct gdn_pool_view *v = to->view;
    const struct part p = part_of(to, K, col, n);
    if (gdn_is_q8(v->dtype)) {
        uint32_t keys[GDN_MAX_HEAD];
        if (v->random) gdn_noise_keys(keys, to->noise, col, n);
        if (v->gap) {
            store_spread8(S, ld, kr, to, v->random ? keys : NULL, K, col, n);
            return;
        }
        (v->k_first ? kr->store8_kv : kr->store8_vk)[v->dtype - GDN_I8](
            p.at, p.row, scales_at(to, col), S, ld, v->random ? keys : NULL, K, n);
        return;
    }
    if (v->gap) {
        store_spread(S, ld, kr, to, K, col, n);
        return;
    }
    for (int i = 0; i < p.rows && v->streamed; i++)
        gdn_stream_row(kr, v->dtype, p.at + i * p.row, S + i * ld, p.cols);
    for (int i = 0; i < p.rows && !v->streamed; i++)
        kr->store_row[v->dtype](p.at + i * p.row, S + i * ld, (size_t)p.cols);
}

void gdn_load_columns(float *S, bool k_first, const struct gdn_kernels *kr, struct gdn_place from,
                      int K, int col, int n)
{
    float tile[TILE * GDN_MAX_HEAD];
    if (!from.data) {
        memset(S, 0, (size_t)(K * n) * sizeof *S);
        return;
    }
    if (from.view->k_first == k_first) {
        load_rows(S, k_first ? n : K, kr, &from, K, col, n);
        return;
    }
    for (int j = 0; j < n; j += TILE) {
        const int m = n - j < TILE ? n - j : TILE;
        load_rows(tile, k_first ? K : m, kr, &from, K, col + j, m);
        if (k_first)
            kr->transpose(S + j, n, tile, K, m, K);
        else
            kr->transpose(S + j * K, K, tile, m, K, m);
    }
}

void gdn_store_columns(const float *S, bool k_first, const struct gdn_kernels *kr,
                       struct gdn_place to, int K, int col, int n)
{
    float tile[TILE * GDN_MAX_HEAD];
    if (to.view->k_first == k_first) {
        store_rows(S, k_first ? n : K, kr, &to, K, col, n);
        return;
    }
    for (int j = 0; j < n; j += TILE) {
        const int m = n - j < TILE ? n - j : TILE;
        if (k_first)
            kr->transpose(tile, K, S + j, n, K, m);
        else
            kr->transpose(tile, m, S + j * K, K, m, K);
        store_rows(tile, k_first ? K : m, kr, &to, K, col + j, m);
    }
}

void gdn_copy_columns(struct gdn_place to, int to_col, struct gdn_place from, int from_col, int K,
                      int n)
{
    const struct part t = part_of(&to, K, to_col, n), f = part_of(&from, K, from_col, n);
    const bool turn = to.view->k_first != from.view->k_first;
    if (to.scales)
        memmove(to.scales + to_col, from.scales + from_col, (size_t)n * sizeof *to.scales);
    for (int i = 0; i < t.rows; i++) {
        char *row = t.at + i * t.row;
        const char *from_row = f.at + i * (turn ? f.step : f.row);
        const int64_t step = turn ? f.row : f.step;
        if (t.step == 1 && step == 1) memmove(row, from_row, (size_t)t.cols);
        for (int j = 0; (t.step != 1 || step != 1) && j < t.cols; j++)
            row[j * t.step] = from_row[j * step];
    }
}

/* ---- Strips --------------------------------------------------------------------------------- */

void gdn_load_strip(float *S, const struct gdn_kernels *kr, struct gdn_place from, int K, int col,
                    int n, float *rows)
{
    const int strip = kr->strip;
    const ptrdiff_t ld = gdn_strip_ld(K);
    if (!from.data || n < strip) memset(S, 0, (size_t)(K * strip) * sizeof *S);
    if (!from.data) return;
    if (from.view->k_first) {
        load_rows(S, strip, kr, &from, K, col, n);
        return;
    }
    load_rows(rows, ld, kr, &from, K, col, n);
    kr->transpose(S, strip, rows, ld, n, K);
}

void gdn_store_strip(const float *S, const struct gdn_kernels *kr, struct gdn_place to, int K,
                     int col, int n, float *rows)
{
    const int strip = kr->strip;
    const ptrdiff_t ld = gdn_strip_ld(K);
    if (to.view->k_first) {
        store_rows(S, strip, kr, &to, K, col, n);
        return;
    }
    kr->transpose(rows, ld, S, strip, K, n);
    store_rows(rows, ld, kr, &to, K, col, n);
}
