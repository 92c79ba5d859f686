/* SPDX-License-Identifier: Apache-2.0 */
/* The general kernels of chunks (general.cuh): how a call is cut into blocks. */
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

/* COLUMNS: of a warp. AUX_WARPS: for T and P. */
enum { COLUMNS = 16, AUX_WARPS = 4 };

/* A kernel: deep is the largest K, warps the most of a block. */
struct form {
    enum gdn_kernel_id kernel;
    int dtype, deep, warps;
};

static struct form find_form(int dtype, int K)
{
#define DEPTHS(family)                                                     \
    {                                                                      \
        GDN_CU_##family##_64, GDN_CU_##family##_128, GDN_CU_##family##_256 \
    }
    static const enum gdn_kernel_id kernels[][3] = {
        [GDN_F32] = DEPTHS(prefill_general_f32),
        [GDN_BF16] = DEPTHS(prefill_general_bf16),
        [GDN_F16] = DEPTHS(prefill_general_f16),
    };
    const int size = K <= 64 ? 0 : K <= 128 ? 1 : 2;
    const enum gdn_kernel_id kernel = kernels[dtype][size];
    return (struct form){ kernel, dtype, 64 << size, gdn_cuda_kernel_threads(kernel) / 32 };
}

/* Chooses the warps with the state. Fewer warps make more blocks, and each of these computes T and
 * P once more. The costs of a chunk by that number are estimates. The best number has the least sum
 * over the waves of blocks. */
static void cut_columns(struct gdn_cu_prefill *p, const struct form *f, int64_t n_heads,
                        int sm_count)
{
    static const int cost[] = { 0, 10, 10, 12, 13, 16, 19, 21, 24 };
    const int groups = (p->rule.V + COLUMNS - 1) / COLUMNS, most = f->warps - AUX_WARPS;
    int64_t best = INT64_MAX;
    for (int n = most < 8 ? most : 8; n > 0; n /= 2) {
        const int slices = (groups + n - 1) / n;
        const int64_t waves = (n_heads * slices + sm_count - 1) / sm_count;
        if (waves * cost[n] >= best) continue;
        best = waves * cost[n];
        p->n_state = n;
        p->n_slices = slices;
    }
    if (p->n_state > groups) p->n_state = groups;
    p->n_aux = p->n_state + 2 * AUX_WARPS <= f->warps ? 2 * AUX_WARPS : AUX_WARPS;
}

/* Chooses the most stages that fit, and slots with them. Returns the bytes of shared memory; 0:
 * none fits. */
static size_t cut_memory(struct gdn_cu_prefill *p, const struct form *f, int shared_most)
{
    static const struct {
        int stages, slots;
    } rings[] = { { 3, 2 }, { 2, 2 }, { 2, 1 }, { 1, 1 } };
    const int bytes = (int)gdn_dtype_bytes(f->dtype), chunk = GDN_PREFILL_CHUNK(bytes, f->deep);
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        const int needed =
            GDN_PREFILL_HEAD_BYTES + GDN_PREFILL_SOLVE_BYTES(chunk) +
            rings[i].slots * GDN_PREFILL_SLOT_BYTES(chunk, bytes) +
            rings[i].stages * GDN_PREFILL_STAGE_BYTES(chunk, bytes, f->deep, p->n_state);
        p->n_stages = rings[i].stages;
        p->n_slots = rings[i].slots;
        if (needed <= shared_most) return (size_t)needed;
    }
    return 0;
}

gdn_status gdn_cuda_prefill_general(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                    const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                    void *stream)
{
    const struct form f = find_form(rule->q.dtype, rule->K);
    struct gdn_cu_prefill p = { .rule = *rule, .by_number = how->by_number };
    p.q_wide = gdn_cuda_rows_wide(&rule->q);
    p.k_wide = gdn_cuda_rows_wide(&rule->k);
    p.v_wide = gdn_cuda_rows_wide(&rule->v);
    p.out_wide = gdn_cuda_rows_wide(&rule->out);
    cut_columns(&p, &f, rule->batch.B * rule->H, ctx->cuda->sm_count);
    size_t shared = cut_memory(&p, &f, ctx->cuda->shared_most);
    while (!shared && p.n_state > 1) {
        p.n_state /= 2;
        p.n_slices = (rule->V + COLUMNS * p.n_state - 1) / (COLUMNS * p.n_state);
        shared = cut_memory(&p, &f, ctx->cuda->shared_most);
    }
    const struct gdn_cuda_call call = {
        .kernel = f.kernel,
        .grid = { (rule->batch.B + (rule->out.data && rule->batch.cu_seqlens.data)) * rule->H *
                      p.n_slices,
                  1, 1 },
        .n_threads = 32 * (p.n_aux + p.n_state),
        .shared_bytes = shared,
        .stream = stream,
        .args = &p,
    };
    gdn_cuda_ran_add(ran, call.kernel);
    return gdn_cuda_launch(ctx, &call);
}
