/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of every kernel of the rule: heads, rows, gates. The formulas are those of gdn.h. */
#ifndef GDN_CUDA_RULE_CUH
#define GDN_CUDA_RULE_CUH

#include "cuda/device/batch.cuh"
#include "cuda/device/math.cuh"

/* Returns true if exp(g) is 0 in float32: the state is then not multiplied but zeroed (G7). */
GDN_DEVICE bool gate_forgets(float g) { return g < -104.0f; }

/* Returns x / n, given n's inverse (gdn_cuda_inverse()). */
GDN_DEVICE int by(int x, uint32_t inverse) { return inverse ? (int)__umulhi(x, inverse) : x; }

/* Returns the head, of a tensor of n_heads, that state head `head` reads. */
GDN_DEVICE int source_head(const struct gdn_cu_rule &r, int head, int n_heads)
{
    return r.head_map == GDN_HEADS_GROUPED ? head / (r.H / n_heads) : head % n_heads;
}

/* Returns row of token t (counted from s.first) and head, in bytes from r.data. */
GDN_DEVICE char *row_at(const struct gdn_rows &r, const struct gdn_cu_seq &s, int64_t t, int head)
{
    return r.data + s.batch * r.batch + (s.first + t) * r.token + head * r.head;
}

/* Returns one head's state in a slot of a pool, in elements from view.data. */
GDN_DEVICE int64_t pool_at(const struct gdn_pool_view &view, int64_t slot, int64_t head)
{
    return slot * view.slot + head * view.head;
}

/* Return the divisor of x in the formula of `norm`, or 1 if there is no norm; and 1 / that
 * divisor. */
GDN_DEVICE float norm_length(float sum_of_squares, int norm, float eps)
{
    const float length = sqrtf(norm == GDN_NORM_L2 ? sum_of_squares + eps : sum_of_squares);
    return norm == GDN_NORM_L2_ADD   ? length + eps
           : norm == GDN_NORM_L2_MAX ? fmaxf(length, eps)
                                     : length;
}
GDN_DEVICE float inverse_length(float sum_of_squares, int norm, float eps)
{
    return norm == GDN_NO_NORM ? 1 : 1 / norm_length(sum_of_squares, norm, eps);
}

/* Returns log alpha of a raw gate a. */
GDN_DEVICE float raw_gate(float a, float A_log, float dt_bias, float bound)
{
    const float A = expf(A_log);
    return bound < 0 ? bound * sigmoid(A * (a + dt_bias)) : -A * softplus(a + dt_bias);
}

/* Returns a gate as log alpha, or as alpha itself if `linear`. A_log, dt_bias: of the head, for raw
 * gates. */
template <class Rule>
GDN_DEVICE float gate_value(const Rule &r, float g, float A_log, float dt_bias, bool linear)
{
    if (r.gate == GDN_GATE_LINEAR) return linear ? g : logf(g);
    if (r.gate == GDN_GATE_RAW) g = raw_gate(g, A_log, dt_bias, r.bound);
    return linear ? expf(g) : g;
}

template <class Rule> GDN_DEVICE float beta_value(const Rule &r, float b)
{
    if (r.beta_kind == GDN_NO_SIGMOID) return b;
    return (r.beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1) * sigmoid(b);
}

/* Returns the gate of token t of a state head; that of no decay if g is absent. */
GDN_DEVICE float load_gate(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                           int head, bool linear)
{
    if (!r.g.data) return linear ? 1 : 0;
    return gate_value(r, load_float(row_at(r.g, s, t, head), 0, r.g.dtype),
                      load_vector(r.A_log, head, 0), load_vector(r.dt_bias, head, 0), linear);
}

GDN_DEVICE float load_beta(const struct gdn_cu_rule &r, const struct gdn_cu_seq &s, int64_t t,
                           int head)
{
    if (!r.beta.data) return 1;
    return beta_value(r, load_float(row_at(r.beta, s, t, head), 0, r.beta.dtype));
}

/* Return u and o of one column, from the sums p = S^T k and z = S^T q of the decayed state. */
GDN_DEVICE float rule_u(float beta, float v, float p) { return beta == 0 ? 0 : beta * (v - p); }
GDN_DEVICE float rule_o(float kq, float z, float u) { return fmaf(kq, u, z); }

#endif
