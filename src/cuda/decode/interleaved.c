/* SPDX-License-Identifier: Apache-2.0 */
/* Runs interleaved heads as calls of grouped ones. State head h of H has head h mod n of q, k or v.
 * So each run of n state heads has all n heads, one to one. The general kernel, which takes the
 * whole call, needs two to six times as long as these calls together. */
#include "cuda/decode/select.h"

enum { MOST_RUNS = 8 };

/* Returns n; 0: tensors have other numbers of heads than H, n and 1. */
static int heads_of_run(const struct gdn_cu_rule *r)
{
    const int counts[] = { r->Hq, r->Hk, r->Hv };
    int n = 0;
    for (int i = 0; i < 3; i++)
        if (counts[i] < r->H && counts[i] > n) n = counts[i];
    for (int i = 0; i < 3; i++)
        if (counts[i] != 1 && counts[i] != n && counts[i] != r->H) return 0;
    return n;
}

static void cut_rows(struct gdn_rows *rows, int64_t first)
{
    if (rows->data) rows->data += first * rows->head;
}

/* Cuts a tensor to the heads of a run, if it has as many heads as the state. */
static void cut_heads(struct gdn_rows *rows, int32_t *n, const struct gdn_cu_rule *run,
                      int64_t first)
{
    if (*n <= run->H) return;
    cut_rows(rows, first);
    *n = run->H;
}

static void cut_vector(struct gdn_cu_array *a, int64_t first)
{
    if (!a->data) return;
    a->data = (const char *)a->data + first * a->stride[0] * (int64_t)gdn_dtype_bytes(a->dtype);
}

static void cut_pool(struct gdn_pool_view *p, int64_t first)
{
    if (p->data) p->data += first * p->head * (int64_t)gdn_dtype_bytes(p->dtype);
}

int gdn_decode_runs(const struct gdn_cu_rule *r)
{
    if (r->head_map == GDN_HEADS_GROUPED) return 1;
    const int n = heads_of_run(r);
    if (!n || r->H / n > MOST_RUNS) return 1;
    const struct gdn_cu_rule first = gdn_decode_run(r, r->H / n, 0);
    return gdn_cuda_takes_warps(&first) ? r->H / n : 1;
}

struct gdn_cu_rule gdn_decode_run(const struct gdn_cu_rule *r, int n_runs, int i)
{
    struct gdn_cu_rule run = *r;
    run.H = r->H / n_runs;
    run.head_map = GDN_HEADS_GROUPED;
    const int64_t first = (int64_t)i * run.H;
    cut_heads(&run.q, &run.Hq, &run, first);
    cut_heads(&run.k, &run.Hk, &run, first);
    cut_heads(&run.v, &run.Hv, &run, first);
    cut_rows(&run.g, first);
    cut_rows(&run.beta, first);
    cut_rows(&run.out, first);
    cut_pool(&run.from, first);
    cut_pool(&run.to, first);
    cut_vector(&run.A_log, first);
    cut_vector(&run.dt_bias, first);
    return run;
}
