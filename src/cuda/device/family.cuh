/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inputs of kernels of the family (gdn.h): a, b and w of an update, in any shape that a call
 * may give them. t is a token, counted from s.first; j an update of it; channel one of K or of V.
 *
 *     S <- diag(a) S, once a token;   u = w v - S^T (b k);   S <- S + k u^T;   o = S^T q
 */
#ifndef GDN_CUDA_FAMILY_CUH
#define GDN_CUDA_FAMILY_CUH

#include "cuda/device/rule.cuh"

/* Returns dt_bias of a head and channel; absent: 0. */
GDN_DEVICE float load_bias(const struct gdn_cu_rule &r, int head, int channel)
{
    if (!r.dt_bias.data) return 0;
    const int64_t at = head * r.dt_bias.stride[0] + channel * r.dt_bias.stride[1];
    return load_float(r.dt_bias.data, at, r.dt_bias.dtype);
}

/* Returns the gate of a token, as a, or as its logarithm. If gates are one number per head, every
 * channel has the same. */
GDN_DEVICE float family_gate(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                             int head, int channel, bool linear)
{
    if (!r.g.data) return linear ? 1 : 0;
    if (!r.family.g_rows) channel = 0;
    const char *at = row_at(r.g, s, t, head) + channel * r.family.g_channel;
    return gate_value(r, load_float(at, 0, r.g.dtype), load_vector(r.A_log, head, 0),
                      load_bias(r, head, channel), linear);
}

/* Returns b, the erase gate; without rows of beta it is one number per head. */
GDN_DEVICE float family_b(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                          int head, int j, int channel)
{
    if (!r.beta.data) return 1;
    const char *at = row_at(r.beta, s, t, head) + j * r.family.beta_update +
                     (r.family.beta_rows ? channel * r.family.beta_channel : 0);
    return beta_value(r, load_float(at, 0, r.beta.dtype));
}

/* Returns w, the write gate; absent: beta if that is one number per head, else 1. */
GDN_DEVICE float family_w(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                          int head, int j, int column)
{
    const struct gdn_rows &rows = r.family.write;
    if (!rows.data) return r.family.beta_rows ? 1 : family_b(r, s, t, head, j, 0);
    const float w =
        load_float(row_at(rows, s, t, head) + j * r.family.write_update, column, rows.dtype);
    return r.beta_kind == GDN_NO_SIGMOID ? w : sigmoid(w);
}

/* Returns w v. If w is 0, v counts for nothing, a NaN neither (G8). */
GDN_DEVICE float family_written(float w, float v) { return w == 0 ? 0 : w * v; }

#endif
