/* SPDX-License-Identifier: Apache-2.0 */
/* Turns dg of log alpha, and dbeta, into the gradients of the caller's gates, and into the sums
 * that are the gradients of A_log and dt_bias. */
#ifndef GDN_CUDA_BACKWARD_GATES_CUH
#define GDN_CUDA_BACKWARD_GATES_CUH

#include "cuda/backward/backward.cuh"

struct gate_gradient {
    float g, A_log, dt_bias;
};

/* Returns the gradient of a raw gate. With x = a + dt_bias, log alpha is -A softplus(x), or bound
 * sigmoid(A x). */
GDN_DEVICE struct gate_gradient through_raw(const struct gdn_cu_rule &r, int head, float dt_bias,
                                            float given, float dg)
{
    const float x = given + dt_bias;
    const float A = expf(load_vector(r.A_log, head, 0));
    float slope = -A * sigmoid(x), by_A = -A * softplus(x);
    if (r.bound < 0) {
        slope = r.bound * sigmoid(A * x) * sigmoid(-A * x) * A;
        by_A = slope * x;
    }
    return { dg * slope, dg * by_A, dg * slope };
}

/* Returns the gradient of a gate. A dg of 0 stays 0, because the gate may be infinite. */
GDN_DEVICE struct gate_gradient through_gate(const struct gdn_cu_rule &r,
                                             const struct stage_chunk &c, int t, int head, float dg)
{
    if (!r.g.data || r.gate == GDN_GATE_LOG || dg == 0) return { dg, 0, 0 };
    const float given = load_float(row_at(r.g, c.seq, c.t0 + t, head), 0, r.g.dtype);
    if (r.gate == GDN_GATE_LINEAR) return { dg / given, 0, 0 };
    return through_raw(r, head, load_vector(r.dt_bias, head, 0), given, dg);
}

GDN_DEVICE float through_beta(const struct gdn_cu_rule &r, const struct stage_chunk &c, int t,
                              int head, float dbeta)
{
    if (r.beta_kind == GDN_NO_SIGMOID) return dbeta;
    const float b = load_float(row_at(r.beta, c.seq, c.t0 + t, head), 0, r.beta.dtype);
    return dbeta * (beta_value(r, b) * sigmoid(-b));
}

GDN_DEVICE void store_gradient_of(const struct gdn_rows &to, const struct stage_chunk &c, int t,
                                  int head, float x, bool adds)
{
    float *at = (float *)row_at(to, c.seq, c.t0 + t, head);
    if (to.data) *at = adds ? *at + x : x;
}

/* ---- Sums ---------------------------------------------------------------------------------- */

/* Adds a chunk's sums to those of the same number in earlier windows. One thread calls it.
 * `parts` has one entry for each of n tokens. */
GDN_DEVICE void keep_sums(const struct gdn_cu_backward &a, int64_t number, int head,
                          const double (*parts)[2], int n)
{
    if (!a.sums) return;
    double *to = a.sums + 2 * (number * a.rule.H + head);
    for (int i = 0; i < 2; i++) {
        double sum = a.window == a.n_windows - 1 ? 0 : to[i];
        for (int t = 0; t < n; t++) sum += parts[t][i];
        to[i] = sum;
    }
}

GDN_DEVICE void store_sum(const struct gdn_cu_array &to, int head, double sum, bool adds)
{
    if (!to.data) return;
    float *at = (float *)to.data + head * to.stride[0];
    *at = (float)(adds ? sum + (double)*at : sum);
}

/* Computes dA_log and ddt_bias of a head: each thread adds some chunks, then one thread adds the
 * threads' sums. */
GDN_DEVICE void backward_sums(const struct gdn_cu_backward &a)
{
    __shared__ double parts[THREADS][2];
    const int head = (int)blockIdx.x;
    double sum[2] = {};
    for (int64_t i = threadIdx.x; i < a.n_chunks; i += THREADS)
        for (int j = 0; j < 2; j++) sum[j] += a.sums[2 * (i * a.rule.H + head) + j];
    for (int j = 0; j < 2; j++) parts[threadIdx.x][j] = sum[j];
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < THREADS; i++)
        for (int j = 0; j < 2; j++) sum[j] += parts[i][j];
    store_sum(a.dA_log, head, sum[0], a.adds);
    store_sum(a.ddt_bias, head, sum[1], a.adds);
}

#endif
