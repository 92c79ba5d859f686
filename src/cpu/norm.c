/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_l2norm and gdn_rmsnorm_gated: both scale a row by a number made of its sum of squares
 * and multiply it by what they have of weight and gate. Long rows pass through in pieces; the
 * sums of the pieces are added in float64, in an order that depends on D alone.
 */
#include <math.h>

#include "calls/op_backends.h"
#include "cpu/norm.h"
#include "cpu/rows.h"

static size_t piece_size(const struct gdn_norm_job *s, int64_t first)
{
    return (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
}

/* Sets *x to the last piece: the whole row if D is at most GDN_PIECE. */
static double sum_of_squares(const struct gdn_norm_job *s, int64_t row, float *buffer,
                             const float **x)
{
    double sum = 0;
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        *x = gdn_row_floats(s->kr, &s->x, row, first, n, buffer);
        sum += (double)s->kr->dot(*x, *x, n);
    }
    return sum;
}

static float row_scale(const struct gdn_norm_job *s, double sum)
{
    const double eps = (double)s->eps;
    switch (s->formula) {
    case GDN_NORM_L2: return (float)(1 / sqrt(sum + eps));
    case GDN_NORM_L2_ADD: return (float)(1 / (sqrt(sum) + eps));
    case GDN_NORM_L2_MAX: return (float)(1 / fmax(sqrt(sum), eps));
    default: return (float)(1 / sqrt(sum / (double)s->D + eps));
    }
}

static void scale_row(const struct gdn_norm_job *s, int64_t row, float scale, const float *x,
                      float *buffer, float *weight)
{
    _Alignas(64) float z_buffer[GDN_PIECE];
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        if (s->D > GDN_PIECE) {
            x = gdn_row_floats(s->kr, &s->x, row, first, n, buffer);
            if (s->weight.data) gdn_load_piece(weight, &s->weight, first, (int64_t)n, 1);
        }
        const float *z = s->z.data ? gdn_row_floats(s->kr, &s->z, row, first, n, z_buffer) : NULL;
        void *const out = gdn_row_at(&s->out, row, first);
        float *const y = s->out.dtype == GDN_F32 ? out : buffer;
        s->kr->norm_row(y, x, scale, s->weight.data ? weight : NULL, z, s->sigmoid, n);
        if (s->out.dtype != GDN_F32) s->kr->store_row[s->out.dtype](out, y, n);
    }
}

void gdn_norm_rows(const struct gdn_norm_job *s, int64_t first, int64_t end)
{
    _Alignas(64) float buffer[GDN_PIECE], weight[GDN_PIECE];
    const float *x = buffer;
    if (s->weight.data && s->D <= GDN_PIECE) gdn_load_piece(weight, &s->weight, 0, s->D, 1);
    for (int64_t row = first; row < end; row++) {
        const float scale = row_scale(s, sum_of_squares(s, row, buffer, &x));
        scale_row(s, row, scale, x, buffer, weight);
    }
}

static void run_norm_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_norm_job *s = arg;
    const int64_t first = item * s->rows_per_item, end = first + s->rows_per_item;
    gdn_norm_rows(s, first, end < s->n_rows ? end : s->n_rows);
}

static gdn_status run_norm(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_norm_call *c = call;
    struct gdn_norm_job *s = &c->job;
    (void)memory;
    s->kr = ctx->kr;
    gdn_merge_rows(&s->x);
    if (s->z.data) gdn_merge_rows(&s->z);
    gdn_merge_rows(&s->out);
    gdn_parallel_for(ctx->threads, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item,
                     run_norm_item, s);
    return gdn_note_kernel(ctx, c->base.op, "dot norm_row");
}

const struct gdn_op_backend gdn_cpu_op_l2norm = { .run = run_norm };
const struct gdn_op_backend gdn_cpu_op_rmsnorm_gated = { .run = run_norm };
