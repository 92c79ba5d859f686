/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A panel of weight rows is converted to float32 piece by piece, and each piece meets all tokens
 * before the next one: a weight is read once per call, and 16-bit weights are never copied whole.
 * One token alone reads 16-bit weights as they are.
 */
#include "compute/matrix.h"

#include "compute/lanes.h"

enum {
    PANEL = 48,       /* weight rows of an item: a multiple of the tiles, 6, 3 and 2 */
    FEW = 8,          /* tokens for which the time is that of reading weights, so their rows are */
    SLICE = 6,        /* converted few at a time: what is converted stays in the L1 cache */
    DEPTH = 1024,     /* summed elements of a piece: tokens and weights fit the L1 cache */
    AHEAD = 16 << 10, /* bytes: one token's rows are requested ahead, past the page */
};

/* Some rows of w, and some of their elements, times all tokens. */
struct piece {
    float *y;                 /* [tokens][rows] */
    const float *x;           /* [tokens][depth] */
    const void *w;            /* [rows][depth] */
    int64_t ld_y, ld_x, ld_w; /* elements between rows */
    int64_t tokens, rows, depth;
    bool add; /* to what is in y */
};

struct matrix_loops {
    void (*rows)(const struct piece *p);         /* of float32 */
    void (*rows_of_bf16)(const struct piece *p); /* these times one token */
    void (*rows_of_f16)(const struct piece *p);
    void (*widen)(float *to, const void *from, int32_t dtype, int64_t n);
};

#ifdef __x86_64__
#define ISA avx2
#define LANES 8
#define TILE 3
#include "compute/matrix_loops.inc"
#define ISA avx512
#define LANES 16
#define TILE 6
#include "compute/matrix_loops.inc"
#endif
#ifdef __aarch64__
#define ISA neon
#define LANES 8
#define TILE 2
#include "compute/matrix_loops.inc"
#endif
#define ISA plain
#define LANES 8
#define TILE 2
#include "compute/matrix_loops.inc"

static const struct matrix_loops *select_loops(const char *isa)
{
#ifdef __x86_64__
    if (!strcmp(isa, "avx512")) return &matrix_avx512;
    if (!strcmp(isa, "avx2")) return &matrix_avx2;
#endif
#ifdef __aarch64__
    if (!strcmp(isa, "neon")) return &matrix_neon;
#endif
    (void)isa;
    return &matrix_plain;
}

bool matrix_open(struct matrix *m, const char *isa, struct threads *threads, int n_threads,
                 struct memory *memory)
{
    m->loops = select_loops(isa);
    m->threads = threads;
    m->scratch = memory_get(memory, (size_t)n_threads * PANEL * DEPTH * sizeof *m->scratch);
    return m->scratch != NULL;
}

void matrix_widen(const struct matrix *m, float *to, const void *from, int32_t dtype, int64_t n)
{
    m->loops->widen(to, from, dtype, n);
}

/* ---- Products -------------------------------------------------------------------------------- */

struct product_of_matrix {
    const struct matrix *m;
    const gdn_tensor *w;
    const float *x;
    float *y;
    int64_t tokens;
};

/* Rows of the weight from `first`, and their elements from `k`, as they are stored. */
static struct piece piece_of(const struct product_of_matrix *p, int64_t first, int64_t rows,
                             int64_t k)
{
    const int64_t out = p->w->size[0], in = p->w->size[1];
    const int64_t at = (first * in + k) * (int64_t)gdn_dtype_bytes(p->w->dtype);
    return (struct piece){ .y = p->y + first,
                           .x = p->x + k,
                           .w = (const char *)p->w->data + at,
                           .ld_y = out,
                           .ld_x = in,
                           .ld_w = in,
                           .tokens = p->tokens,
                           .rows = rows,
                           .depth = in - k < DEPTH ? in - k : DEPTH,
                           .add = k > 0 };
}

static void widen_piece(const struct product_of_matrix *p, struct piece *piece, float *panel)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(p->w->dtype);
    for (int64_t i = 0; i < piece->rows; i++)
        matrix_widen(p->m, panel + i * DEPTH, (const char *)piece->w + i * piece->ld_w * bytes,
                     p->w->dtype, piece->depth);
    piece->w = panel;
    piece->ld_w = DEPTH;
}

static void multiply_rows(const struct product_of_matrix *p, int64_t first, int64_t rows,
                          float *panel)
{
    const struct matrix_loops *loops = p->m->loops;
    for (int64_t k = 0; k < p->w->size[1]; k += DEPTH) {
        struct piece piece = piece_of(p, first, rows, k);
        if (p->w->dtype != GDN_F32 && p->tokens > 1) widen_piece(p, &piece, panel);
        if (p->w->dtype == GDN_F32 || p->tokens > 1)
            loops->rows(&piece);
        else
            (p->w->dtype == GDN_BF16 ? loops->rows_of_bf16 : loops->rows_of_f16)(&piece);
    }
}

static void multiply_panel(void *arg, int64_t item, int32_t thread)
{
    const struct product_of_matrix *p = arg;
    const int64_t first = item * PANEL, left = p->w->size[0] - first;
    const int64_t rows = left < PANEL ? left : PANEL;
    const bool few = p->tokens <= FEW && p->tokens > 1 && p->w->dtype != GDN_F32;
    const int64_t most = few ? SLICE : PANEL;
    float *panel = p->m->scratch + (int64_t)thread * PANEL * DEPTH;
    for (int64_t i = 0; i < rows; i += most)
        multiply_rows(p, first + i, rows - i < most ? rows - i : most, panel);
}

void matrix_product(const struct matrix *m, const gdn_tensor *w, const float *x, float *y,
                    int64_t tokens)
{
    struct product_of_matrix p = { m, w, x, y, tokens };
    threads_for(m->threads, (w->size[0] + PANEL - 1) / PANEL, multiply_panel, &p);
}
