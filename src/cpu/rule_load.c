/* SPDX-License-Identifier: Apache-2.0 */
/* Loads rows of q and k, and gates, for an item, whatever its form (prefill.c, decode.c,
 * decode_exact.c). */
#include <math.h>
#include <string.h>

#include "calls/record.h"
#include "core/tensor_check.h"
#include "cpu/rows.h"
#include "cpu/rule.h"

float gdn_rule_inverse_length(float sum_of_squares, int norm, float eps)
{
    switch (norm) {
    case GDN_NORM_L2: return 1.0f / sqrtf(sum_of_squares + eps);
    case GDN_NORM_L2_ADD: return 1.0f / (sqrtf(sum_of_squares) + eps);
    case GDN_NORM_L2_MAX: return 1.0f / fmaxf(sqrtf(sum_of_squares), eps);
    default: return 1.0f;
    }
}

void gdn_rule_load_rows(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, const struct gdn_rows *rows, int head,
                        int64_t t0, int n, float scale, float *to, ptrdiff_t ld)
{
    const size_t K = (size_t)r->K;
    for (int t = 0; t < n; t++, to += ld) {
        float by = scale;
        kr->load_row[rows->dtype](to, gdn_row(rows, seq, t0 + t, head), K);
        if (r->norm != GDN_NO_NORM)
            by *= gdn_rule_inverse_length(kr->dot(to, to, K), r->norm, r->norm_eps);
        if (by != 1) kr->norm_row(to, to, by, NULL, NULL, false, K);
    }
}

void gdn_rule_load_keys(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *to,
                        ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r);
    struct gdn_rows rows = r->k;
    for (int j = 0; j < u; j++, rows.data += r->family.k_update)
        gdn_rule_load_rows(r, kr, seq, &rows, head, t0, n, 1, to + j * ld, u * ld);
}

void gdn_rule_load_kq(const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, int64_t t0, int n, float *kq, ptrdiff_t ld,
                      int q_row)
{
    const int head = gdn_rule_head(r, item->group, 0);
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    const int u = gdn_rule_updates(r);
    float *q = kq + q_row * ld;
    gdn_rule_load_keys(r, kr, item->seq, hk, t0, n, kq, ld);
    for (int i = 0; u > 1 && i < n * u; i++) memset(q + i * ld, 0, (size_t)r->K * sizeof *q);
    gdn_rule_load_rows(r, kr, item->seq, &r->q, hq, t0, n, r->scale, q + (u - 1) * ld, u * ld);
}

void gdn_rule_prefetch(const struct gdn_rows *rows, const struct gdn_seq *seq, int64_t t, int head,
                       int col, int n)
{
    if (!rows->data || t >= seq->n_valid) return;
    const size_t elem = gdn_dtype_bytes(rows->dtype);
    const char *at = (const char *)gdn_row(rows, seq, t, head) + (size_t)col * elem;
    const char *line = at - (uintptr_t)at % 64, *end = at + (size_t)n * elem;
    for (; line < end; line += 64) __builtin_prefetch(line, 0, 2);
}

void gdn_rule_load_numbers(float *to, const struct gdn_kernels *kr, int32_t dtype, const char *from,
                           int64_t step, int n)
{
    if (step == (int64_t)gdn_dtype_bytes(dtype))
        kr->load_row[dtype](to, from, (size_t)n);
    else if (dtype == GDN_F32)
        for (int i = 0; i < n; i++) memcpy(to + i, from + i * step, sizeof *to);
    else
        for (int i = 0; i < n; i++) kr->load_row[dtype](to + i, from + i * step, 1);
}

/* Gathers n values of a [tokens][H] tensor for one head. */
static void gather(float *dst, const struct gdn_kernels *kr, const struct gdn_rows *rows,
                   const struct gdn_seq *seq, int head, int64_t t0, int n)
{
    gdn_rule_load_numbers(dst, kr, rows->dtype, gdn_row(rows, seq, t0, head), rows->token, n);
}

void gdn_rule_load_decay(float *A, float *dt, const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                         int64_t H, int64_t channels, float bound)
{
    gdn_tensor row = *dt_bias; /* of one head */
    gdn_load_vector(A, A_log, H, 0);
    if (row.ndim == 2) {
        row.ndim = 1, row.size[0] = row.size[1], row.stride[0] = row.stride[1];
        for (int64_t h = 0; h < H; h++) {
            row.data = row.data ? gdn_at(dt_bias, h * dt_bias->stride[0]) : NULL;
            gdn_load_vector(dt + h * channels, &row, channels, 0);
        }
    } else {
        gdn_load_vector(dt, dt_bias, H * channels, 0); /* or zeros */
    }
    for (int64_t h = 0; h < H; h++) A[h] = gdn_raw_factor(A[h], bound);
}

/* Raw gates of n tokens of a head become log gates. */
static void raw_gates(const struct gdn_rule *r, const struct gdn_kernels *kr, int head, float *g,
                      int n)
{
    float A[GDN_CHUNK], dt[GDN_CHUNK];
    for (int t = 0; t < n; t++) {
        A[t] = r->A[head];
        dt[t] = r->dt[head];
    }
    gdn_raw_gates(kr, g, A, dt, r->bound, (size_t)n);
}

void gdn_rule_load_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t0, int n, bool linear,
                         float *g, float *beta)
{
    const size_t len = (size_t)n;
    if (r->g.data) gather(g, kr, &r->g, seq, head, t0, n);
    for (int t = 0; !r->g.data && t < n; t++) g[t] = linear ? 1 : 0;
    if (r->gate == GDN_GATE_RAW) raw_gates(r, kr, head, g, n);
    if (r->g.data && linear && r->gate != GDN_GATE_LINEAR) kr->exp_row(g, g, len);
    if (r->g.data && !linear && r->gate == GDN_GATE_LINEAR)
        for (int t = 0; t < n; t++) g[t] = logf(g[t]);

    if (r->beta.data) gather(beta, kr, &r->beta, seq, head, t0, n);
    for (int t = 0; !r->beta.data && t < n; t++) beta[t] = 1;
    if (r->beta_kind != GDN_NO_SIGMOID)
        kr->sigmoid_row(beta, beta, r->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f, len);
}
