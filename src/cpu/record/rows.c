/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of records: applied to a state, or moved to another place of the record. */
#include <math.h>
#include <string.h>

#include "cpu/record/record.h"

/* Multiplies each channel of a state of n columns by its decay in the record. */
static void decay_channels(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t slot,
                           int64_t row, int head, int n, bool k_first, float *S)
{
    const struct gdn_record *rec = r->record;
    float a[GDN_MAX_HEAD];
    for (int x = 0; x < r->K; x++) a[x] = fabsf(*gdn_record_gate(rec, slot, row, head, x));
    for (int x = 0; x < r->K; x++)
        for (int i = 0; a[x] == 0 && i < n; i++) S[k_first ? x * n + i : i * r->K + x] = 0;
    for (int x = 0; k_first && x < r->K; x++)
        kr->norm_row(S + x * n, S + x * n, a[x], NULL, NULL, false, (size_t)n);
    for (int i = 0; !k_first && i < n; i++)
        kr->norm_row(S + i * r->K, S + i * r->K, 1, a, NULL, false, (size_t)r->K);
}

void gdn_record_apply(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t slot,
                      int head, int col, int n, bool k_first, float *S)
{
    const struct gdn_record *rec = r->record;
    const int64_t n_rows = gdn_record_count(rec, slot);
    const int64_t u_bytes = col * (int64_t)gdn_dtype_bytes(rec->u.dtype);
    const int hk = gdn_rule_source(r, head, r->Hk);
    float k[GDN_MAX_HEAD], u[GDN_RECUR_COLUMNS];
    for (int64_t row = 0; row < n_rows; row++) {
        const float g = *gdn_record_gate(rec, slot, row, head, 0);
        const bool writes = !signbit(g);
        const float alpha = rec->channels > 1 ? 1 : fabsf(g);
        if (rec->channels > 1) decay_channels(r, kr, slot, row, head, n, k_first, S);
        kr->load_row[rec->k.dtype](k, gdn_record_at(&rec->k, slot, row, hk), (size_t)r->K);
        kr->load_row[rec->u.dtype](u, (char *)gdn_record_at(&rec->u, slot, row, head) + u_bytes,
                                   (size_t)n);
        if (alpha == 0) memset(S, 0, (size_t)(r->K * n) * sizeof *S);
        if (k_first)
            kr->add_outer(S, r->K, n, alpha, k, writes ? u : NULL);
        else
            kr->add_outer(S, n, r->K, alpha, u, writes ? k : NULL);
    }
}

void gdn_record_move_row(const struct gdn_record_rows *r, int64_t slot, int64_t to, int64_t from,
                         int64_t head, int64_t n)
{
    memcpy(gdn_record_at(r, slot, to, head), gdn_record_at(r, slot, from, head),
           (size_t)n * gdn_dtype_bytes(r->dtype));
}

void gdn_record_move_gates(const struct gdn_record *rec, int64_t slot, int64_t to, int64_t from,
                           int64_t head)
{
    for (int64_t x = 0; x < rec->channels; x++)
        *gdn_record_gate(rec, slot, to, head, x) = *gdn_record_gate(rec, slot, from, head, x);
}
