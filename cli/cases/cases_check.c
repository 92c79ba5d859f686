/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the rule, beside float64. */
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Returns how many tokens of sequence 0 are followed by the judge. */
static int64_t judged(const struct rule_case *c)
{
    const int64_t T = c->tokens.cu_seqlens[1];
    return c->dims.judge_all ? T : smaller(T, RULE_TOKENS);
}

/* Compares three heads of sequence 0; its final state too if it is short enough to be followed. */
static bool compare_heads(const struct rule_case *c, double *state, double *want, double *got,
                          struct comparison *found)
{
    const int64_t K = c->dims.K, V = c->dims.V, H = c->args.out.size[1];
    const int64_t T = c->tokens.cu_seqlens[1], n = judged(c);
    int64_t used = 0;
    for (int i = 0; i < RULE_HEADS; i++) {
        const int64_t h = rule_case_head(i, H);
        if (!rule_case_follow(c, 0, h, n, state + i * V * K, want + used, got + used)) return false;
        used += n * V;
    }
    *found =
        compare_doubles(got, want, used, compare_precision(c->dims.dtype, c->dims.state_dtype));
    if (n < T || case_is_q8(c->dims.state_dtype)) return true; /* a rounded state is far off */
    for (int i = 0; i < RULE_HEADS; i++)
        rule_case_state(c, rule_case_end(c, 0), rule_case_head(i, H), got + i * V * K);
    const struct comparison s = compare_doubles(
        got, state, RULE_HEADS * V * K, compare_precision(c->dims.dtype, c->dims.state_dtype));
    if (!s.ok) *found = s;
    return true;
}

int rule_case_check_by(struct rule_case *c, gdn_ctx *ctx, rule_case_run run, void *arg,
                       struct comparison *found)
{
    const int64_t K = c->dims.K, V = c->dims.V, H = c->args.out.size[1];
    const size_t rows = (size_t)larger(judged(c), K);
    const size_t n = RULE_HEADS * (size_t)V * rows;
    double *state = malloc(RULE_HEADS * (size_t)(K * V) * sizeof *state);
    double *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    int code = CLI_OK;
    if (!state || !want || !got) code = cli_bad("no memory for the check");
    for (int i = 0; i < RULE_HEADS && !code; i++)
        rule_case_state(c, rule_case_start(c, 0), rule_case_head(i, H), state + i * V * K);
    const gdn_status status = code ? GDN_OK : run(c, ctx, arg);
    if (status) code = cli_failed(ctx, status);
    if (!code && !compare_heads(c, state, want, got, found))
        code = cli_bad("no memory for the check");
    free(state);
    free(want);
    free(got);
    return code;
}

static gdn_status run_op(struct rule_case *c, gdn_ctx *ctx, void *op)
{
    return cli_call(ctx, *(const gdn_op *)op, &c->call);
}

int rule_case_check(struct rule_case *c, gdn_ctx *ctx, gdn_op op, struct comparison *found)
{
    if (c->dims.exact && c->dims.state_dtype != GDN_F32)
        return rule_case_check_tokens(c, ctx, op, found);
    return rule_case_check_by(c, ctx, run_op, &op, found);
}
