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

/* Numbers of a head, `step` bytes from one channel to the next. data NULL: absent. */
struct family_row {
    const char *at;
    int64_t step;
    int dtype;
};

/* Return the numbers of a token: find_gate() a, or the raw gate; then the dt_bias of raw gates;
 * then b and w. */
GDN_DEVICE struct family_row find_gate(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s,
                                       int64_t t, int head)
{
    return { r.g.data ? row_at(r.g, s, t, head) : NULL, r.family.g_channel, r.g.dtype };
}
GDN_DEVICE struct family_row find_bias(const struct gdn_cu_rule &r, int head)
{
    const struct gdn_cu_array &v = r.dt_bias;
    const int bytes = v.dtype == GDN_F32 ? 4 : 2;
    const char *const data = (const char *)v.data;
    return { data ? data + head * v.stride[0] * bytes : NULL,
             r.family.g_rows ? v.stride[1] * bytes : 0, v.dtype };
}
GDN_DEVICE struct family_row find_b(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s,
                                    int64_t t, int head, int j)
{
    return { r.beta.data ? row_at(r.beta, s, t, head) + j * r.family.beta_update : NULL,
             r.family.beta_channel, r.beta.dtype };
}
GDN_DEVICE struct family_row find_w(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s,
                                    int64_t t, int head, int j)
{
    const struct gdn_rows &w = r.family.write;
    if (w.data)
        return { row_at(w, s, t, head) + j * r.family.write_update, w.dtype == GDN_F32 ? 4 : 2,
                 w.dtype };
    if (r.family.beta_rows) return { NULL, 0, w.dtype };
    return find_b(r, s, t, head, j);
}

GDN_DEVICE float load_number(const struct family_row &x, int channel)
{
    return x.at ? load_float(x.at + channel * x.step, 0, x.dtype) : 0;
}

/* Returns dt_bias of a head and channel; 0 if it is absent. */
GDN_DEVICE float load_bias(const struct gdn_cu_rule &r, int head, int channel)
{
    return load_number(find_bias(r, head), channel);
}

/* Return b and w from the numbers of the call. */
GDN_DEVICE float family_b_value(const struct gdn_cu_rule &r, float b)
{
    return r.beta.data ? beta_value(r, b) : 1;
}
GDN_DEVICE float family_w_value(const struct gdn_cu_rule &r, float w)
{
    if (!r.family.write.data) return r.family.beta_rows ? 1 : family_b_value(r, w);
    return r.beta_kind == GDN_NO_SIGMOID ? w : sigmoid(w);
}

/* Returns the gate of a token, as a or as its logarithm. If a head has one gate, all its channels
 * have the same. */
GDN_DEVICE float family_gate(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                             int head, int channel, bool linear)
{
    if (!r.g.data) return linear ? 1 : 0;
    return gate_value(r, load_number(find_gate(r, s, t, head), channel),
                      load_vector(r.A_log, head, 0), load_bias(r, head, channel), linear);
}

/* Returns b, the erase gate. Without rows of beta it is one number per head. */
GDN_DEVICE float family_b(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                          int head, int j, int channel)
{
    return family_b_value(r, load_number(find_b(r, s, t, head, j), channel));
}

/* Returns the write gate w. Without a tensor for it, w is beta if a head has one beta, else 1. */
GDN_DEVICE float family_w(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                          int head, int j, int column)
{
    return family_w_value(r, load_number(find_w(r, s, t, head, j), column));
}

/* Returns w v. If w is 0, v does not matter, even if it is NaN (G8). */
GDN_DEVICE float family_written(float w, float v) { return w == 0 ? 0 : w * v; }

#endif
