/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers of the block. A panel of weight rows is converted to float32 piece by piece,
 * and each piece meets all tokens before the next one: a weight is read once per call, and
 * 16-bit weights are never copied whole.
 */
#include "cpu/project.h"

#include "core/tensor_check.h"

enum {
    PANEL = 48,  /* weight rows of an item: a multiple of the register tiles, 6 and 3 */
    FEW = 8,     /* tokens for which the time is that of reading weights, so their rows are */
    SLICE = 6,   /* converted few at a time: what is converted stays in the L1 cache */
    DEPTH = 1024 /* summed elements of a piece: tokens and weights of a tile fit the L1 cache */
};

struct project {
    const struct gdn_kernels *kr;
    float *y;
    const float *x;
    int64_t ld_y, n_tokens, in;
    const struct gdn_segment *segments;
    int n_segments;
    char *scratch;
};

size_t gdn_project_scratch(void) { return PANEL * DEPTH * sizeof(float); }

static int64_t n_panels(const struct gdn_segment *s) { return (s->n + PANEL - 1) / PANEL; }

/* Projects weight rows [first, first + n) of one segment against all tokens. */
static void project_rows(const struct project *p, const struct gdn_segment *s, int64_t first, int n,
                         float *panel)
{
    const gdn_tensor *w = s->weight;
    for (int64_t k = 0; k < p->in; k += DEPTH) {
        const int depth = p->in - k < DEPTH ? (int)(p->in - k) : DEPTH;
        const float *b = w->dtype == GDN_F32
                             ? (const float *)w->data + (s->row + first) * w->stride[0] + k
                             : panel;
        for (int i = 0; b == panel && i < n; i++) {
            const int64_t row = s->row + first + i;
            p->kr->load_row[w->dtype](panel + i * DEPTH, gdn_at(w, row * w->stride[0] + k),
                                      (size_t)depth);
        }
        p->kr->gemm_nt(p->y + s->column + first, p->ld_y, p->x + k, p->in, b,
                       b == panel ? DEPTH : w->stride[0], (int)p->n_tokens, n, depth, k > 0);
    }
}

/* Multiplies rows of 16 bits with one token, and converts them in registers. */
static void project_alone(const struct project *p, const struct gdn_segment *s, int64_t first,
                          int n)
{
    const gdn_tensor *w = s->weight;
    for (int64_t k = 0; k < p->in; k += DEPTH) {
        const int depth = p->in - k < DEPTH ? (int)(p->in - k) : DEPTH;
        const void *rows = gdn_at(w, (s->row + first) * w->stride[0] + k);
        p->kr->gemv[w->dtype](p->y + s->column + first, p->x + k, rows, w->stride[0], n, depth,
                              k > 0);
    }
}

static void project_panel(const struct project *p, const struct gdn_segment *s, int64_t first,
                          int n, float *panel)
{
    if (p->n_tokens == 1 && s->weight->dtype != GDN_F32) {
        project_alone(p, s, first, n);
        return;
    }
    const int most = p->n_tokens <= FEW && s->weight->dtype != GDN_F32 ? SLICE : PANEL;
    for (int i = 0; i < n; i += most)
        project_rows(p, s, first + i, n - i < most ? n - i : most, panel);
}

static void project_item(void *arg, int64_t item, int thread)
{
    const struct project *p = arg;
    const struct gdn_segment *s = p->segments;
    for (; item >= n_panels(s); s++) item -= n_panels(s);
    const int64_t first = item * PANEL;
    const int n = s->n - first < PANEL ? (int)(s->n - first) : PANEL;
    project_panel(p, s, first, n, (float *)(p->scratch + (size_t)thread * gdn_project_scratch()));
}

void gdn_project(gdn_ctx *ctx, float *y, int64_t ld_y, const float *x, int64_t n_tokens, int64_t in,
                 const struct gdn_segment *segments, int n_segments, void *scratch)
{
    struct project p = { ctx->kr, y, x, ld_y, n_tokens, in, segments, n_segments, scratch };
    int64_t items = 0;
    for (int i = 0; i < n_segments; i++) items += n_panels(&segments[i]);
    gdn_parallel_for(ctx->threads, items, project_item, &p);
}
