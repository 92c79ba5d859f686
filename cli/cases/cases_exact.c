/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GDN_EXACT with states of less than float32, which are rounded after each token. Float64 may round
 * a value to the other side, and all later states then differ. So sequence 0 is computed once more,
 * token by token. Float64 starts each token from the state that the library had there. The call to
 * be judged must have the results of these tokens, bit for bit (G17).
 */
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "cli.h"

/* Sequence 0 token by token: each call has its token t alone, and the sequence has a slot of its
 * own. */
struct walk {
    const struct rule_case *whole;
    struct rule_case one;
    gdn_tensor out;      /* [T][H][V] */
    int64_t T, H, state; /* elements of a head's */
    double *states, *want, *got;
};

static gdn_tensor rows_of(const gdn_tensor *t, int64_t first, int64_t n)
{
    gdn_tensor rows = *t;
    if (!t->data) return rows;
    rows.size[0] = n;
    rows.data = (char *)t->data + (size_t)(first * t->stride[0]) * gdn_dtype_bytes(t->dtype);
    return rows;
}

/* Copies a slot, as a pool of one. */
static gdn_tensor copy_slot(struct memory *m, const gdn_tensor *pool, int64_t slot)
{
    if (!pool->data) return *pool;
    const gdn_tensor from = rows_of(pool, slot, 1);
    const gdn_tensor to = memory_tensor(m, pool->dtype, pool->ndim, from.size);
    if (to.data) memcpy(to.data, from.data, (size_t)from.stride[0] * gdn_dtype_bytes(from.dtype));
    return to;
}

static bool begin(struct walk *w, struct rule_case *c)
{
    static const int64_t cu_seqlens[] = { 0, 1 };
    const int64_t first = rule_case_start(c, 0), H = c->args.out.size[1];
    const int64_t all = c->tokens.cu_seqlens[1], T = all < RULE_TOKENS ? all : RULE_TOKENS;
    const int64_t V = c->dims.V, n = RULE_HEADS * T * V;
    *w = (struct walk){ .whole = c, .one = *c, .T = T, .H = H, .state = c->dims.K * V };
    w->one.args.state = copy_slot(&c->memory, &c->args.state, first);
    w->one.args.state_scales = copy_slot(&c->memory, &c->args.state_scales, first);
    w->one.args.batch = NULL;
    w->one.tokens.cu_seqlens = cu_seqlens;
    w->out = memory_tensor(&c->memory, c->args.out.dtype, 3, (int64_t[]){ T, H, V });
    w->states = memory_get(&c->memory, 2 * RULE_HEADS * (size_t)w->state * sizeof *w->states);
    w->want = memory_get(&c->memory, 2 * (size_t)n * sizeof *w->want);
    w->got = w->want ? w->want + n : NULL;
    return w->one.args.state.data && w->out.data && w->states && w->want &&
           (!c->args.state_scales.data || w->one.args.state_scales.data);
}

static void load_states(const struct walk *w, const struct rule_case *c, int64_t slot, double *to)
{
    for (int i = 0; i < RULE_HEADS; i++)
        rule_case_state(c, slot, rule_case_head(i, w->H), to + i * w->state);
}

/* Computes token t: a call of it alone, and float64 from the state before. */
static gdn_status step(struct walk *w, gdn_ctx *ctx, int64_t t, bool *there)
{
    const gdn_rule_args *from = &w->whole->args;
    gdn_rule_args *a = &w->one.args;
    a->q = rows_of(&from->q, t, 1), a->k = rows_of(&from->k, t, 1);
    a->v = rows_of(&from->v, t, 1), a->g = rows_of(&from->g, t, 1);
    a->beta = rows_of(&from->beta, t, 1), a->out = rows_of(&w->out, t, 1);
    load_states(w, &w->one, 0, w->states);
    const gdn_status status = cli_call(ctx, GDN_OP_DECODE, a);
    for (int i = 0; i < RULE_HEADS && !status && *there; i++) {
        const int64_t at = (t * RULE_HEADS + i) * w->whole->dims.V;
        *there = rule_case_follow(&w->one, 0, rule_case_head(i, w->H), 1, w->states + i * w->state,
                                  w->want + at, w->got + at);
    }
    return status;
}

static void must_be_same(struct comparison c, struct comparison *found)
{
    if (c.max_error == 0 || !found->ok) return;
    *found = c;
    found->max_limit = 0;
    found->ok = false;
}

/* Compares outputs of tokens, and the final state if the sequence was followed to its end;
 * checks that the call has both. */
static struct comparison judge(const struct walk *w)
{
    const struct rule_case *c = w->whole;
    const int32_t dtype = c->dims.dtype, state = c->dims.state_dtype;
    const gdn_tensor out = rows_of(&c->args.out, 0, w->T);
    const int64_t n = RULE_HEADS * w->state;
    double *got = w->states + n;
    struct comparison found =
        compare_doubles(w->got, w->want, RULE_HEADS * w->T * c->dims.V, dtype);
    must_be_same(compare(&out, &w->out, dtype), &found);
    if (w->T < c->tokens.cu_seqlens[1] || w->T == 0) return found;
    load_states(w, &w->one, 0, got);
    if (state <= GDN_F16 && found.ok) {
        const struct comparison s = compare_doubles(got, w->states, n, state);
        if (!s.ok) found = s;
    }
    load_states(w, c, rule_case_end(c, 0), w->states);
    must_be_same(compare_doubles(w->states, got, n, state), &found);
    return found;
}

int rule_case_check_tokens(struct rule_case *c, gdn_ctx *ctx, gdn_op op, struct comparison *found)
{
    struct walk w;
    bool there = begin(&w, c);
    gdn_status status = GDN_OK;
    for (int64_t t = 0; t < w.T && there && !status; t++) status = step(&w, ctx, t, &there);
    if (!there) return cli_bad("no memory for the check");
    if (!status) status = cli_call(ctx, op, &c->call);
    if (status) return cli_failed(ctx, status);
    *found = judge(&w);
    return CLI_OK;
}
