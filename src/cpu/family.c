/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a call of the family (gdn.h): a, b and w of each update, keys, queries and what is to
 * be written. */
#include <math.h>
#include <string.h>

#include "cpu/rows.h"
#include "cpu/rule.h"

static void fill(float *to, float x, int n)
{
    for (int i = 0; i < n; i++) to[i] = x;
}

/* Raw numbers of a token and head become log gates. */
static void raw_row(const struct gdn_rule *r, const struct gdn_kernels *kr, int head, float *g)
{
    const int n = (int)gdn_rule_channels(r);
    float A[GDN_MAX_HEAD];
    fill(A, r->A[head], n);
    gdn_raw_gates(kr, g, A, r->dt + (ptrdiff_t)head * n, r->bound, (size_t)n);
}

/* Loads a of one token and head. */
static void load_a(const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, int head, int64_t t, float *a)
{
    const int n = (int)gdn_rule_channels(r);
    if (!r->g.data) {
        fill(a, 1, r->K);
        return;
    }
    const char *g = gdn_row(&r->g, seq, t, head);
    if (r->gate == GDN_GATE_LOG && r->g.dtype == GDN_F32 &&
        r->family.g_channel == (int64_t)sizeof *a) {
        kr->exp_row(a, (const float *)(const void *)g, (size_t)n);
    } else {
        gdn_rule_load_numbers(a, kr, r->g.dtype, g, r->family.g_channel, n);
        if (r->gate == GDN_GATE_RAW) raw_row(r, kr, head, a);
        if (r->gate != GDN_GATE_LINEAR) kr->exp_row(a, a, (size_t)n);
    }
    if (n == 1) fill(a, a[0], r->K);
}

/* Numbers of beta become what the rule takes. */
static void make_betas(const struct gdn_rule *r, const struct gdn_kernels *kr, float *beta, int n)
{
    if (r->beta.data && r->beta_kind != GDN_NO_SIGMOID)
        kr->sigmoid_row(beta, beta, r->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
                        (size_t)n);
}

/* Loads one or n numbers of beta of update j of a token. */
static void load_beta(const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_seq *seq, int head, int64_t t, int j, float *to, int n)
{
    const struct gdn_family *f = &r->family;
    const int some = f->beta_rows ? n : 1;
    to[0] = 1;
    if (r->beta.data) {
        const char *from = (const char *)gdn_row(&r->beta, seq, t, head) + j * f->beta_update;
        gdn_rule_load_numbers(to, kr, r->beta.dtype, from, f->beta_channel, some);
    }
    make_betas(r, kr, to, some);
    if (some < n) fill(to, to[0], n);
}

/* Loads w of columns [col, col + n). */
static void load_w(const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, int head, int64_t t, int j, int col, int n, float *w)
{
    const struct gdn_family *f = &r->family;
    if (!f->write.data) {
        fill(w, 1, n);
        if (!f->beta_rows) load_beta(r, kr, seq, head, t, j, w, n);
        return;
    }
    const char *from = (const char *)gdn_row(&f->write, seq, t, head) + j * f->write_update;
    kr->load_row[f->write.dtype](w, from + (size_t)col * gdn_dtype_bytes(f->write.dtype),
                                 (size_t)n);
    if (r->beta_kind != GDN_NO_SIGMOID) kr->sigmoid_row(w, w, 1, (size_t)n);
}

static bool are_all(const float *x, float what, int n)
{
    for (int i = 0; i < n; i++)
        if (x[i] != what) return false;
    return true;
}

/* Returns true if the update writes something: not all b and w are 0. */
static bool writes_any(const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, int64_t t, int j, const float *b)
{
    float w[GDN_MAX_VALUE];
    if (b[0] != 0 || !are_all(b, 0, r->K)) return true;
    load_w(r, kr, seq, head, t, j, 0, r->V, w);
    return !are_all(w, 0, r->V);
}

void gdn_family_load_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct gdn_seq *seq, int head, int64_t t0, int n, float *a,
                           float *b, ptrdiff_t ld, float *alpha, float *beta)
{
    const int u = gdn_rule_updates(r);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < u; j++, a += ld, b += ld, alpha++, beta++) {
            if (j)
                fill(a, 1, r->K);
            else
                load_a(r, kr, seq, head, t0 + t, a);
            load_beta(r, kr, seq, head, t0 + t, j, b, r->K);
            *alpha = kr->decay_kind(a, (size_t)r->K);
            *beta = writes_any(r, kr, seq, head, t0 + t, j, b) ? 1 : 0;
        }
}

void gdn_family_load_decays(const struct gdn_rule *r, const struct gdn_kernels *kr,
                            const struct gdn_seq *seq, int head, int64_t t0, int n, float *a,
                            ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r);
    for (int i = 0; i < n * u; i++, a += ld)
        if (i % u)
            fill(a, 1, r->K);
        else
            load_a(r, kr, seq, head, t0 + i / u, a);
}

void gdn_family_load_betas(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct gdn_seq *seq, int head, int64_t t0, int n, float *beta)
{
    const int u = gdn_rule_updates(r);
    float some[GDN_CHUNK]; /* of one update of each token */
    for (int j = 0; j < u; j++) {
        const char *from = gdn_row(&r->beta, seq, t0, head);
        fill(some, 1, n);
        if (r->beta.data)
            gdn_rule_load_numbers(some, kr, r->beta.dtype, from + j * r->family.beta_update,
                                  r->beta.token, n);
        make_betas(r, kr, some, n);
        for (int t = 0; t < n; t++) beta[t * u + j] = some[t];
    }
}

void gdn_family_load_w(const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, int64_t t0, int n, int col, int cols,
                       float *w, ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < u; j++, w += ld) load_w(r, kr, seq, head, t0 + t, j, col, cols, w);
}

void gdn_family_load_v(const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, int64_t t0, int n, int col, int cols,
                       float *v, ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r), hv = gdn_rule_source(r, head, r->Hv);
    const size_t at = (size_t)col * gdn_dtype_bytes(r->v.dtype);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < u; j++, v += ld) {
            const char *from = (const char *)gdn_row(&r->v, seq, t0 + t, hv);
            kr->load_row[r->v.dtype](v, from + j * r->family.v_update + at, (size_t)cols);
        }
}

void gdn_family_load_written(const struct gdn_rule *r, const struct gdn_kernels *kr,
                             const struct gdn_seq *seq, int head, int64_t t0, int n, int col,
                             int cols, float *v, ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r);
    float w[GDN_MAX_VALUE];
    gdn_family_load_v(r, kr, seq, head, t0, n, col, cols, v, ld);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < u; j++, v += ld) {
            if (!r->family.write.data && !r->family.beta_rows) { /* one number */
                load_beta(r, kr, seq, head, t0 + t, j, w, 1);
                if (w[0] == 0)
                    memset(v, 0, (size_t)cols * sizeof *v);
                else
                    kr->norm_row(v, v, w[0], NULL, NULL, false, (size_t)cols);
                continue;
            }
            load_w(r, kr, seq, head, t0 + t, j, col, cols, w);
            for (int i = 0; i < cols; i++) v[i] = w[i] == 0 ? 0 : w[i] * v[i];
        }
}
