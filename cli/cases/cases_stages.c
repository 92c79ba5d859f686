/* SPDX-License-Identifier: Apache-2.0 */
/* A case of the rule by the stages of the chunked form and by summaries. */
#include <string.h>

#include "cases/cases.h"
#include "cli.h"
#include "gdn_research.h"
#include "oracle.h"

enum { C = 64 };

/* The tensors that the calls of a case share. */
struct chain {
    struct stages_case *s;
    struct rule_case *c;
    gdn_ctx *ctx;
    gdn_batch batch;
    gdn_tensor u, w, states, M, U, M2, U2;
    gdn_status status;
};

static gdn_tensor make(struct rule_case *c, int ndim, int64_t a, int64_t b, int64_t d, int64_t e)
{
    return case_tensor(&c->memory, GDN_F32, ndim, (const int64_t[]){ a, b, d, e }, 0, 1);
}

static void call(struct chain *x, gdn_op op, const void *args)
{
    if (x->status) return;
    x->status = cli_call(x->ctx, op, args);
    x->s->each.called(x->s->each.arg);
}

/* Checks sums of gates against float64. */
static void check_sums(struct chain *x)
{
    const gdn_rule_args *r = &x->c->args;
    const int64_t H = r->g.size[1], N = x->c->tokens.N;
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    double *want = memory_get(&x->c->memory, (size_t)(H * N) * sizeof *want);
    double *got = memory_get(&x->c->memory, (size_t)(H * N) * sizeof *got);
    a.g = r->g, a.out = make(x->c, 2, N, H, 0, 0), a.batch = &x->batch, a.chunk_size = 7;
    if (!want || !got || !a.out.data) x->status = GDN_E_MEMORY;
    call(x, GDN_OP_CHUNK_CUMSUM, &a);
    if (x->status) return;
    for (int64_t b = 0; b < x->c->tokens.B; b++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t first = x->c->tokens.cu_seqlens[b];
            for (int64_t t = first; t < x->c->tokens.cu_seqlens[b + 1]; t++) {
                const int64_t at = t * H + h, g = t * r->g.stride[0] + h * r->g.stride[1];
                want[at] = oracle_load(r->g.data, r->g.dtype, g);
                if ((t - first) % 7) want[at] += want[at - H];
                got[at] = oracle_load(a.out.data, GDN_F32, at);
            }
        }
    x->s->sums = compare_doubles(got, want, H * N, GDN_F32);
}

static void run_stages(struct chain *x)
{
    const gdn_rule_args *r = &x->c->args;
    gdn_chunk_uw_args uw = gdn_chunk_uw_args_init();
    gdn_chunk_states_args st = gdn_chunk_states_args_init();
    gdn_chunk_output_args o = gdn_chunk_output_args_init();
    uw.k = st.k = o.k = r->k, uw.g = st.g = o.g = r->g, uw.v = r->v, uw.beta = r->beta, o.q = r->q;
    uw.u = st.u = o.u = x->u, uw.w = st.w = o.w = x->w, st.states = o.states = x->states;
    st.state = r->state, o.out = r->out;
    uw.batch = st.batch = o.batch = &x->batch;
    uw.chunk_size = st.chunk_size = o.chunk_size = C;
    uw.head_map = st.head_map = o.head_map = r->head_map;
    st.state_layout = o.state_layout = r->state_layout;
    call(x, GDN_OP_CHUNK_UW, &uw);
    call(x, GDN_OP_CHUNK_STATES, &st);
    call(x, GDN_OP_CHUNK_OUTPUT, &o);
}

/* Runs the whole after a range without effect, so that the composition is the whole. */
static void run_summaries(struct chain *x)
{
    const gdn_rule_args *r = &x->c->args;
    gdn_summary_args s = gdn_summary_args_init();
    gdn_summary_compose_args m = gdn_summary_compose_args_init();
    gdn_summary_apply_args p = gdn_summary_apply_args_init();
    const int64_t K = x->c->dims.K, n = x->M2.size[0] * x->M2.size[1] * K * K;
    s.k = r->k, s.v = r->v, s.g = r->g, s.beta = r->beta, s.M = x->M, s.U = x->U;
    s.batch = &x->batch, s.head_map = r->head_map;
    s.norm = GDN_NORM_L2; /* keys have a length of 1 */
    s.state_layout = m.state_layout = p.state_layout = r->state_layout;
    for (int64_t i = 0; i < n; i++) ((float *)x->M2.data)[i] = i / K % K == i % K;
    memset(x->U2.data, 0, (size_t)case_bytes(&x->U2));
    m.M1 = x->M2, m.U1 = x->U2, m.M2 = x->M, m.U2 = x->U, m.M = x->M2, m.U = x->U2;
    p.M = x->M2, p.U = x->U2, p.state = p.state_out = r->state;
    call(x, GDN_OP_SUMMARY, &s);
    call(x, GDN_OP_SUMMARY_COMPOSE, &m);
    call(x, GDN_OP_SUMMARY_APPLY, &p);
}

gdn_status stages_case_run(struct rule_case *c, gdn_ctx *ctx, void *stages_case)
{
    const gdn_tensor *S = &c->args.state;
    const int64_t B = c->tokens.B, N = c->tokens.N, H = c->args.out.size[1], K = c->dims.K;
    struct chain x = { .s = stages_case, .c = c, .ctx = ctx };
    int64_t NC = 0;
    for (int64_t b = 0; b < B; b++)
        NC += (c->tokens.cu_seqlens[b + 1] - c->tokens.cu_seqlens[b] + C - 1) / C;
    x.batch = case_gdn_batch(&c->tokens);
    x.u = make(c, 3, N, H, c->dims.V, 0), x.w = make(c, 3, N, H, K, 0);
    x.states = make(c, 4, NC, H, S->size[2], S->size[3]);
    x.M = make(c, 4, B, H, K, K), x.M2 = make(c, 4, B, H, K, K);
    x.U = make(c, 4, B, H, S->size[2], S->size[3]), x.U2 = make(c, 4, B, H, S->size[2], S->size[3]);
    if (!x.u.data || !x.w.data || !x.states.data || !x.M.data || !x.M2.data || !x.U.data ||
        !x.U2.data)
        return GDN_E_MEMORY;
    check_sums(&x);
    run_stages(&x);
    run_summaries(&x);
    return x.status;
}
