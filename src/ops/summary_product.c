/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary_compose, gdn_summary_apply and gdn_summary_fold: S = M S + U, a strip of columns at a
 * time, for one range or for several in a given order. The transition of a composition is the same
 * with M1 for S and no U.
 */
#include <string.h>

#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "state/strip.h"

/* S through ranges, for every slot and head. */
struct affine {
    struct gdn_pool_view M, S, U, out; /* S and U: data NULL for zero */
    gdn_tensor           order;        /* [B][n] ranges; data NULL: range b alone */
    int64_t              B, P;         /* slots, ranges */
    int                  H, K, V, n_strips;
};

/* A checked call. */
struct call {
    const char   *op;
    void         *workspace, *stream;
    size_t        workspace_bytes, bytes;
    struct affine product[2];
    int           n;
};

/* ---- Running ------------------------------------------------------------------------------ */

/* Scratch of one thread; all 64-byte aligned. */
struct scratch {
    float *M;          /* [K][ld] */
    float *S, *U, *P;  /* strips */
    float *rows;       /* [strip][ld] */
    bool   is_zero;    /* M */
};

static size_t lay_out(struct scratch *c, const struct affine *a, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t K = (size_t)a->K, strip = (size_t)kr->strip, ld = (size_t)gdn_strip_ld(a->K);
    const struct gdn_part parts[] = { { &c->M, K * ld },
                  { &c->S, K * strip },
                  { &c->U, K * strip },
                  { &c->P, K * strip },
                  { &c->rows, strip * ld } };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

/* Rows x of M, dense in y. */
static void load_transition(struct scratch *c, const struct affine *a, const struct gdn_kernels *kr,
                            const char *from)
{
    const struct gdn_pool_view *view = &a->M;
    const int64_t   row = view->ld * (int64_t)gdn_dtype_bytes(view->dtype);
    const ptrdiff_t ld  = gdn_strip_ld(a->K);
    for (int y = 0; y < a->K; y += kr->strip) {
        const int n = a->K - y < kr->strip ? a->K - y : kr->strip;
        for (int i = y; i < y + n; i++) {
            float *to = view->k_first ? c->M + i * ld : c->rows + (i - y) * ld;
            kr->load_row[view->dtype](to, from + i * row, (size_t)a->K);
        }
        if (!view->k_first) kr->transpose(c->M + y, ld, c->rows, ld, n, a->K);
    }
    c->is_zero = true;
    for (int x = 0; x < a->K; x++)
        for (int y = 0; y < a->K; y++) c->is_zero &= c->M[x * ld + y] == 0;
}

struct run_arg {
    const struct affine      *product;
    const struct gdn_kernels *kr;
    char                     *scratch;
    size_t                    thread_bytes;
};

/* The range that slot b passes as the i-th; negative: none. */
static int64_t range_at(const struct affine *a, int64_t b, int64_t i)
{
    return a->order.data ? gdn_index2(&a->order, b, i) : b;
}

static int64_t n_ranges(const struct affine *a) { return a->order.data ? a->order.size[1] : 1; }

static void run_item(void *arg, int64_t item, int thread)
{
    const struct run_arg     *r  = arg;
    const struct affine      *a  = r->product;
    const struct gdn_kernels *kr = r->kr;
    const int64_t b = item / a->n_strips / a->H, h = item / a->n_strips % a->H;
    const int     col = (int)(item % a->n_strips) * kr->strip;
    const int     n   = a->V - col < kr->strip ? a->V - col : kr->strip;
    bool          is_known_zero = !a->S.data;
    struct scratch c;
    lay_out(&c, a, kr, r->scratch + (size_t)thread * r->thread_bytes);

    gdn_load_strip(c.S, kr, gdn_place_of(&a->S, b, h, 0), a->K, col, n, c.rows);
    for (int64_t i = 0; i < n_ranges(a); i++) {
        const int64_t range = range_at(a, b, i);
        if (range < 0) continue;
        gdn_load_strip(c.U, kr, gdn_place_of(&a->U, range, h, 0), a->K, col, n, c.rows);
        if (!is_known_zero) load_transition(&c, a, kr, gdn_place_of(&a->M, range, h, 0).data);
        if (!is_known_zero && !c.is_zero) { /* what is forgotten may be NaN (G7) */
            kr->strip_mul(c.P, kr->strip, c.M, gdn_strip_ld(a->K), c.S, a->K, a->K, kr->strip);
            for (int x = 0; x < a->K * kr->strip; x++) c.U[x] += c.P[x];
        }
        float *before = c.S;
        c.S = c.U, c.U = before;
        is_known_zero = false;
    }
    gdn_store_strip(c.S, kr, gdn_place_of(&a->out, b, h, 0), a->K, col, n, c.rows);
}

/* Every range of the order is there. */
static gdn_status check_order(gdn_ctx *ctx, const struct affine *a)
{
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t i = 0; i < n_ranges(a); i++)
            if (range_at(a, b, i) >= a->P)
                return gdn_fail(ctx, GDN_E_ARG, "order[%lld][%lld]: range %lld, wanted below %lld",
                                (long long)b, (long long)i, (long long)range_at(a, b, i),
                                (long long)a->P);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct call *c = call;
    void *memory;
    for (int i = 0; i < c->n; i++) TRY(check_order(ctx, &c->product[i]));
    TRY(gdn_get_workspace(ctx, c->workspace, c->workspace_bytes, c->bytes, &memory));
    for (int i = 0; i < c->n; i++) {
        const struct affine *a   = &c->product[i];
        struct run_arg       arg = { a, ctx->kr, memory,
                                     c->bytes / (size_t)gdn_pool_threads(ctx->pool) };
        gdn_parallel_for(ctx->pool, a->B * a->H * a->n_strips, run_item, &arg);
    }
    return GDN_OK;
}

/* check_order() of a call on a device, if the context checks contents. */
static gdn_status check_contents(gdn_ctx *ctx, const struct affine *a, void *stream)
{
    struct affine own   = *a;
    gdn_tensor   *order = &own.order;
    void         *memory;
    TRY(gdn_cuda_contents_open(ctx, stream, &order, 1, 0, &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = check_order(ctx, &own);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

/* The same on a device. */
static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct call *c = call;
    for (int i = 0; i < c->n; i++)
        if (c->product[i].order.data) TRY(check_contents(ctx, &c->product[i], c->stream));
    for (int i = 0; i < c->n; i++) {
        const struct affine  *x = &c->product[i];
        struct gdn_cu_product a = { .M = x->M, .S = x->S, .U = x->U, .out = x->out,
                                    .order = gdn_cuda_array(&x->order), .P = x->P,
                                    .H = x->H, .K = x->K, .V = x->V };
        TRY(gdn_cuda_product(ctx, c->op, &a, x->B, c->stream));
    }
    return GDN_OK;
}

/* ---- Descriptors -------------------------------------------------------------------------- */

/* A product whose views and sizes are set joins the call. */
static void add_product(gdn_ctx *ctx, struct call *c, const struct affine *a)
{
    struct scratch none;
    const size_t   threads = (size_t)gdn_pool_threads(ctx->pool);
    const size_t   bytes   = lay_out(&none, a, ctx->kr, NULL) * threads;
    c->product[c->n]          = *a;
    c->product[c->n].n_strips = (a->V + ctx->kr->strip - 1) / ctx->kr->strip;
    c->n++;
    if (bytes > c->bytes && !ctx->cuda) c->bytes = bytes; /* a device keeps it on the chip */
}

/* B, H, K of a transition; V of a state `like` (data NULL: none). */
static gdn_status read_sizes(gdn_ctx *ctx, const gdn_tensor *M, const char *name,
                             const gdn_tensor *like, const char *like_name, int32_t layout,
                             struct affine *a)
{
    static const int64_t any[] = { -1, -1, -1, -1 };
    if (!M->data) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", name);
    TRY(gdn_check_tensor(ctx, M, name));
    TRY(gdn_check_shape(ctx, M, name, 4, any));
    TRY(gdn_stage_head_size(ctx, M, name, &a->K));
    a->B = a->P = M->size[0];
    if (M->size[1] > INT32_MAX || M->size[1] > (INT64_MAX >> 8) / (a->B > 0 ? a->B : 1))
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld heads of %lld slots, too many", name,
                        (long long)M->size[1], (long long)a->B);
    a->H = (int)M->size[1];
    if (!like->data) return GDN_OK;
    gdn_tensor last = *like;
    TRY(gdn_check_tensor(ctx, like, like_name));
    TRY(gdn_check_shape(ctx, like, like_name, 4, any));
    if (layout == GDN_STATE_VK) last.size[3] = last.size[2];
    return gdn_stage_head_size(ctx, &last, like_name, &a->V);
}

static gdn_status check_fields(gdn_ctx *ctx, uint32_t flags, int32_t layout, int32_t reserved)
{
    if (flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)flags);
    if (reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)reserved);
    return gdn_stage_enum(ctx, "state_layout", layout, GDN_STATE_KV);
}

static gdn_status view_state(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout,
                             const struct affine *a, struct gdn_pool_view *view)
{
    return gdn_state_view(ctx, t, name, layout, a->H, a->K, a->V, view);
}

static gdn_status view_transition(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                  const struct affine *a, struct gdn_pool_view *view)
{
    return gdn_state_view(ctx, t, name, GDN_STATE_KV, a->H, a->K, a->K, view);
}

enum { M1, U1, M2, U2, M, U, N_COMPOSE };

static gdn_status check_presence(gdn_ctx *ctx, const gdn_summary_compose_args *a)
{
    if (!a->M1.data != !a->M.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", a->M.data ? "M1" : "M",
                        a->M.data ? "M" : "M1");
    if (!a->U1.data != !a->U.data || !a->U2.data != !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "U1 U2 U: some absent, some given, wanted all or none");
    if (!a->M.data && !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "M: absent, and U too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe_compose(gdn_ctx *ctx, const void *args, void *call)
{
    struct call             *c = call;
    gdn_summary_compose_args own, *a = &own;
    struct affine            x = { 0 }, y;
    *c = (struct call){ .op = "summary_compose" };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_compose_args"));
    TRY(check_fields(ctx, a->flags, a->state_layout, a->reserved));
    TRY(check_presence(ctx, a));
    TRY(read_sizes(ctx, &a->M2, "M2", &a->U, "U", a->state_layout, &x));
    const bool    kv = a->state_layout == GDN_STATE_KV;
    const int64_t H = x.H, K = x.K, r = kv ? x.K : x.V, s = kv ? x.V : x.K;
    const struct gdn_stage_tensor list[N_COMPOSE] = {
        [M1] = { &a->M1, "M1", false, false, false, 4, { x.B, H, K, K }, 0 },
        [U1] = { &a->U1, "U1", false, false, false, 4, { x.B, H, r, s }, 0 },
        [M2] = { &a->M2, "M2", true, false, false, 4, { x.B, H, K, K }, 0 },
        [U2] = { &a->U2, "U2", false, false, false, 4, { x.B, H, r, s }, 0 },
        [M]  = { &a->M, "M", false, true, false, 4, { x.B, H, K, K }, 1u << M1 },
        [U]  = { &a->U, "U", false, true, false, 4, { x.B, H, r, s }, 1u << U1 | 1u << U2 },
    };
    TRY(gdn_stage_check(ctx, list, N_COMPOSE, NULL, NULL));
    TRY(view_transition(ctx, &a->M2, "M2", &x, &x.M));
    y = x;
    TRY(view_state(ctx, &a->U1, "U1", a->state_layout, &x, &x.S));
    TRY(view_state(ctx, &a->U2, "U2", a->state_layout, &x, &x.U));
    TRY(view_state(ctx, &a->U, "U", a->state_layout, &x, &x.out));
    if (a->U.data) add_product(ctx, c, &x);
    y.V = y.K;
    TRY(view_transition(ctx, &a->M1, "M1", &y, &y.S));
    TRY(view_transition(ctx, &a->M, "M", &y, &y.out));
    if (a->M.data) add_product(ctx, c, &y);
    c->workspace = a->workspace, c->workspace_bytes = a->workspace_bytes, c->stream = a->stream;
    return GDN_OK;
}

enum { APPLY_M, APPLY_U, STATE, STATE_OUT, N_APPLY };

static gdn_status describe_apply(gdn_ctx *ctx, const void *args, void *call)
{
    struct call           *c = call;
    gdn_summary_apply_args own, *a = &own;
    struct affine          x = { 0 };
    *c = (struct call){ .op = "summary_apply" };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_apply_args"));
    TRY(check_fields(ctx, a->flags, a->state_layout, a->reserved));
    if (!a->state_out.data) return gdn_fail(ctx, GDN_E_ARG, "state_out: absent");
    TRY(read_sizes(ctx, &a->M, "M", &a->state_out, "state_out", a->state_layout, &x));
    const bool    kv = a->state_layout == GDN_STATE_KV;
    const int64_t H = x.H, K = x.K, r = kv ? x.K : x.V, s = kv ? x.V : x.K;
    const struct gdn_stage_tensor list[N_APPLY] = {
        [APPLY_M]   = { &a->M, "M", true, false, false, 4, { x.B, H, K, K }, 0 },
        [APPLY_U]   = { &a->U, "U", false, false, false, 4, { x.B, H, r, s }, 0 },
        [STATE]     = { &a->state, "state", false, false, false, 4, { x.B, H, r, s }, 0 },
        [STATE_OUT] = { &a->state_out, "state_out", true, true, false, 4, { x.B, H, r, s },
                        1u << STATE | 1u << APPLY_U },
    };
    TRY(gdn_stage_check(ctx, list, N_APPLY, NULL, NULL));
    TRY(view_transition(ctx, &a->M, "M", &x, &x.M));
    TRY(view_state(ctx, &a->U, "U", a->state_layout, &x, &x.U));
    TRY(view_state(ctx, &a->state, "state", a->state_layout, &x, &x.S));
    TRY(view_state(ctx, &a->state_out, "state_out", a->state_layout, &x, &x.out));
    add_product(ctx, c, &x);
    c->workspace = a->workspace, c->workspace_bytes = a->workspace_bytes, c->stream = a->stream;
    return GDN_OK;
}

/* order, [B][n], which sets B. */
static gdn_status describe_order(gdn_ctx *ctx, const gdn_summary_fold_args *a, struct affine *x)
{
    static const int64_t any[] = { -1, -1 };
    x->order = a->order;
    if (!a->order.data) return gdn_fail(ctx, GDN_E_ARG, "order: absent");
    TRY(gdn_check_tensor(ctx, &a->order, "order"));
    TRY(gdn_check_dtype(ctx, &a->order, "order", GDN_INDICES));
    TRY(gdn_check_shape(ctx, &a->order, "order", 2, any));
    TRY(gdn_check_no_overlap(ctx, &a->state_out, "state_out", &a->order, "order", false));
    x->B = a->order.size[0];
    if (x->H > (INT64_MAX >> 8) / (x->B > 0 ? x->B : 1) || a->order.size[1] > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "order: %lld x %lld, too many", (long long)x->B,
                        (long long)a->order.size[1]);
    return GDN_OK;
}

enum { FOLD_M, FOLD_U, FOLD_STATE, FOLD_STATE_OUT, N_FOLD };

static gdn_status describe_fold(gdn_ctx *ctx, const void *args, void *call)
{
    struct call          *c = call;
    gdn_summary_fold_args own, *a = &own;
    struct affine         x = { 0 };
    *c = (struct call){ .op = "summary_fold" };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_summary_fold_args"));
    TRY(check_fields(ctx, a->flags, a->state_layout, a->reserved));
    if (!a->state_out.data) return gdn_fail(ctx, GDN_E_ARG, "state_out: absent");
    TRY(read_sizes(ctx, &a->M, "M", &a->state_out, "state_out", a->state_layout, &x));
    TRY(describe_order(ctx, a, &x));
    const bool    kv = a->state_layout == GDN_STATE_KV;
    const int64_t H = x.H, K = x.K, r = kv ? x.K : x.V, s = kv ? x.V : x.K;
    const struct gdn_stage_tensor list[N_FOLD] = {
        [FOLD_M]         = { &a->M, "M", true, false, false, 4, { x.P, H, K, K }, 0 },
        [FOLD_U]         = { &a->U, "U", true, false, false, 4, { x.P, H, r, s }, 0 },
        [FOLD_STATE]     = { &a->state, "state", false, false, false, 4, { x.B, H, r, s }, 0 },
        [FOLD_STATE_OUT] = { &a->state_out, "state_out", true, true, false, 4, { x.B, H, r, s },
                             1u << FOLD_STATE },
    };
    TRY(gdn_stage_check(ctx, list, N_FOLD, NULL, NULL));
    TRY(view_transition(ctx, &a->M, "M", &x, &x.M));
    TRY(view_state(ctx, &a->U, "U", a->state_layout, &x, &x.U));
    TRY(view_state(ctx, &a->state, "state", a->state_layout, &x, &x.S));
    TRY(view_state(ctx, &a->state_out, "state_out", a->state_layout, &x, &x.out));
    add_product(ctx, c, &x);
    c->workspace = a->workspace, c->workspace_bytes = a->workspace_bytes, c->stream = a->stream;
    return GDN_OK;
}

static const struct gdn_frame compose = {
    .describe = describe_compose,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "strip_mul",
};
static const struct gdn_frame apply = {
    .describe = describe_apply,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "strip_mul",
};
static const struct gdn_frame fold = {
    .describe = describe_fold,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "strip_mul",
};
GDN_OP_ENTRY(summary_compose, gdn_summary_compose_args, compose, struct call)
GDN_OP_ENTRY(summary_apply, gdn_summary_apply_args, apply, struct call)
GDN_OP_ENTRY(summary_fold, gdn_summary_fold_args, fold, struct call)
