/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule at the size of one Qwen3-Next layer: 16 heads of q and k, 32 of v, K = V = 128,
 * float32. Four sequences of unequal length are prefilled, then decoded step by step from the
 * states that the prefill left. A few heads of each sequence are followed in float64.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "commands/run.h"
#include "files/job.h"
#include "measure.h"
#include "report.h"
#include "table.h"

enum { SEQUENCES = 4, STEPS = 128, RUNS = 3, FOLLOWED = 3, HEADS = 32, DIM = 128 };
enum { N_FOLLOWED = SEQUENCES * FOLLOWED };

static const int64_t lengths[SEQUENCES] = { 1500, 1100, 900, 596 };
static const int64_t steps[SEQUENCES] = { STEPS, STEPS, STEPS, STEPS };

/* One of the two phases, run and judged. */
struct phase {
    const char *name;
    double seconds;
    int64_t tokens;
    char kernel[640];
    struct comparison judged;
};

struct model {
    gdn_ctx *ctx;
    bool json;
    struct rule_case prefill, decode; /* decode continues in prefill's states */
    double *states;                   /* [SEQUENCES][FOLLOWED][DIM][DIM], float64 */
    double *want, *got;
    struct phase phases[2];
    double flops, in_place; /* measured limits */
};

static void show(const struct model *m, const char *what, double part)
{
    if (!m->json) progress(what, part);
}

/* ---- Running ----------------------------------------------------------------------------- */

static int finish(struct model *m, struct phase *p, const char *name, double seconds,
                  int64_t tokens)
{
    p->name = name;
    p->seconds = seconds;
    p->tokens = tokens;
    snprintf(p->kernel, sizeof p->kernel, "%s", gdn_last_kernel(m->ctx));
    return CLI_OK;
}

/* Runs a prefill a few times, each from the same states, and keeps the median. The states of the
 * last run are kept. */
static int run_prefill(struct model *m)
{
    const gdn_tensor *state = &m->prefill.args.state;
    const size_t bytes = (size_t)case_bytes(state);
    void *first = malloc(bytes);
    double times[RUNS];
    gdn_status status = GDN_OK;
    if (!first) return cli_bad("no memory for %zu bytes of states", bytes);
    memcpy(first, state->data, bytes);
    for (int run = -1; run < RUNS && !status; run++) { /* the first one warms up */
        show(m, "prefill", 0.1 * (run + 1) / RUNS);
        memcpy(state->data, first, bytes);
        double seconds = 0;
        status = cli_timed_call(m->ctx, GDN_OP_PREFILL, &m->prefill.args, &seconds);
        if (run >= 0) times[run] = seconds;
    }
    free(first);
    if (status) return cli_failed(m->ctx, status);
    return finish(m, &m->phases[0], "prefill", measure_summary(times, RUNS).median,
                  m->prefill.tokens.N);
}

/* Returns token t of every sequence of a packed tensor, as rows of one token: a view with
 * stride. */
static gdn_tensor step_of(const gdn_tensor *all, int64_t t)
{
    int64_t size[GDN_MAX_DIMS] = { SEQUENCES, 1 };
    int64_t stride[GDN_MAX_DIMS] = { STEPS * all->stride[0], all->stride[0] };
    for (int i = 1; i < all->ndim; i++) size[i + 1] = all->size[i], stride[i + 1] = all->stride[i];
    return gdn_strided((float *)all->data + t * all->stride[0], all->dtype, all->ndim + 1, size,
                       stride);
}

static int run_decode(struct model *m)
{
    const gdn_rule_args *all = &m->decode.args;
    gdn_rule_args a = *all;
    double times = 0;
    gdn_status status = GDN_OK;
    a.batch = NULL;
    for (int64_t t = 0; t < STEPS && !status; t++) {
        a.q = step_of(&all->q, t);
        a.k = step_of(&all->k, t);
        a.v = step_of(&all->v, t);
        a.g = step_of(&all->g, t);
        a.beta = step_of(&all->beta, t);
        a.out = step_of(&all->out, t);
        double seconds = 0;
        status = cli_timed_call(m->ctx, GDN_OP_DECODE, &a, &seconds);
        times += seconds;
        show(m, "decode", 0.15 + 0.1 * (double)t / STEPS);
    }
    if (status) return cli_failed(m->ctx, status);
    return finish(m, &m->phases[1], "decode", times, m->decode.tokens.N);
}

/* ---- Judging ----------------------------------------------------------------------------- */

static int64_t followed_head(int i) { return i * (HEADS - 1) / (FOLLOWED - 1); }

static double *state_of(const struct model *m, int64_t b, int i)
{
    return m->states + (b * FOLLOWED + i) * DIM * DIM;
}

/* Judges all tokens of the followed heads. */
static bool judge(struct model *m, const struct rule_case *c, struct phase *p, double part,
                  double share)
{
    int64_t used = 0;
    for (int64_t b = 0; b < SEQUENCES; b++)
        for (int i = 0; i < FOLLOWED; i++) {
            const int64_t n = c->tokens.cu_seqlens[b + 1] - c->tokens.cu_seqlens[b];
            show(m, "float64 recurrence", part + share * (double)(b * FOLLOWED + i) / N_FOLLOWED);
            if (!rule_case_follow(c, b, followed_head(i), n, state_of(m, b, i), m->want + used,
                                  m->got + used))
                return false;
            used += n * DIM;
        }
    p->judged = compare_doubles(m->got, m->want, used, GDN_F32);
    return true;
}

/* Measures the best of several looks: a limit is what the machine can do. */
static void measure_limits(struct model *m, const struct measure *yardstick)
{
    for (int i = 0; i < 3; i++) {
        m->flops = fmax(m->flops, measure_flops(yardstick, 0.01));
        m->in_place = fmax(m->in_place, measure_in_place(yardstick, 0.01));
    }
}

/* Runs and judges prefill and decode, and measures the machine between both. */
static int run_phases(struct model *m)
{
    struct measure yardstick;
    const size_t states = (size_t)case_bytes(&m->prefill.args.state);
    for (int64_t b = 0; b < SEQUENCES; b++)
        for (int i = 0; i < FOLLOWED; i++)
            rule_case_state(&m->prefill, b, followed_head(i), state_of(m, b, i));
    if (measure_open(&yardstick, gdn_isa(m->ctx), gdn_n_threads(m->ctx), states)) return CLI_BAD;
    measure_limits(m, &yardstick);
    int code = run_prefill(m);
    measure_limits(m, &yardstick);
    if (!code) code = run_decode(m);
    measure_limits(m, &yardstick);
    measure_close(&yardstick);
    if (!code && !(judge(m, &m->prefill, &m->phases[0], 0.25, 0.65) &&
                   judge(m, &m->decode, &m->phases[1], 0.9, 0.1)))
        code = cli_bad("no memory for the float64 recurrence");
    progress_done();
    return code;
}

/* ---- Reporting --------------------------------------------------------------------------- */

/* Returns the rate of a phase: flops of the rule; bytes of the states and the rest, per second. */
static double flop_rate(const struct phase *p)
{
    return 6.0 * DIM * DIM * HEADS * (double)p->tokens / p->seconds;
}

static double byte_rate(const struct model *m)
{
    const double state = case_bytes(&m->decode.args.state);
    const double rest = rule_case_bytes(&m->decode) - 2 * state;
    return (STEPS * 2 * state + rest) / m->phases[1].seconds;
}

static void print_table(const struct model *m)
{
    static const char *const titles[] = { "<phase",    "tokens",  "ms",   "tokens/s",
                                          "GFLOP/s",   "of peak", "GB/s", "of limit",
                                          "max error", "of RMS",  "<",    NULL };
    struct table t;
    char a[24];
    table_start(&t, titles);
    for (int i = 0; i < 2; i++) {
        const struct phase *p = &m->phases[i];
        table_cell(&t, "%s", p->name);
        table_cell(&t, "%lld", (long long)p->tokens);
        table_cell(&t, "%s", table_number(a, 1e3 * p->seconds));
        table_cell(&t, "%s", table_number(a, (double)p->tokens / p->seconds));
        table_cell(&t, "%s", table_number(a, 1e-9 * flop_rate(p)));
        table_cell(&t, "%.0f %%", 100 * flop_rate(p) / m->flops);
        table_cell(&t, "%s", i ? table_number(a, 1e-9 * byte_rate(m)) : "-");
        if (i)
            table_cell(&t, "%.0f %%", 100 * byte_rate(m) / m->in_place);
        else
            table_cell(&t, "-");
        table_cell(&t, "%s", table_number(a, p->judged.max_error));
        table_cell(&t, "%s", table_number(a, compare_relative(p->judged.max_error, p->judged.rms)));
        table_cell(&t, "%s", p->judged.ok ? "ok" : "FAIL");
    }
    table_print(&t);
    for (int i = 0; i < 2; i++) printf("  %-8s %s\n", m->phases[i].name, m->phases[i].kernel);
    printf("  peak %.0f GFLOP/s (float32 multiply-add), limit %.0f GB/s (in place, on the same "
           "%.0f MiB), both measured now\n",
           1e-9 * m->flops, 1e-9 * m->in_place, case_bytes(&m->prefill.args.state) / (1 << 20));
}

static void print_json(const struct model *m)
{
    for (int i = 0; i < 2; i++) {
        const struct phase *p = &m->phases[i];
        cJSON *line = report_line(m->ctx);
        cJSON_AddStringToObject(line, "case", "qwen3_next");
        cJSON_AddStringToObject(line, "op", p->name);
        cJSON_AddStringToObject(line, "kernel", p->kernel);
        cJSON_AddNumberToObject(line, "tokens", (double)p->tokens);
        cJSON_AddNumberToObject(line, "ms", 1e3 * p->seconds);
        cJSON_AddNumberToObject(line, "gflops", 1e-9 * flop_rate(p));
        cJSON_AddNumberToObject(line, "peak_gflops", 1e-9 * m->flops);
        if (i) cJSON_AddNumberToObject(line, "gbs", 1e-9 * byte_rate(m));
        if (i) cJSON_AddNumberToObject(line, "peak_gbs", 1e-9 * m->in_place);
        cJSON_AddNumberToObject(line, "share",
                                i ? byte_rate(m) / m->in_place : flop_rate(p) / m->flops);
        report_comparison(line, &p->judged);
        report_print(line);
    }
}

static int run_cases(struct model *m)
{
    const size_t n = (size_t)m->prefill.tokens.N * FOLLOWED * DIM;
    m->states = malloc(N_FOLLOWED * DIM * DIM * sizeof *m->states);
    m->want = malloc(n * sizeof *m->want);
    m->got = malloc(n * sizeof *m->got);
    if (!m->states || !m->want || !m->got) return cli_bad("no memory for the float64 recurrence");
    m->decode.args.state = m->prefill.args.state;
    if (run_phases(m)) return CLI_BAD;
    (m->json ? print_json : print_table)(m);
    return m->phases[0].judged.ok && m->phases[1].judged.ok ? CLI_OK : CLI_OUTSIDE;
}

int run_model(gdn_ctx *ctx, bool json)
{
    const struct case_dims dims = { .Hq = HEADS / 2, .Hv = HEADS, .K = DIM, .V = DIM };
    struct model m = { .ctx = ctx, .json = json };
    if (!json)
        printf("\nA layer's rule at the size of Qwen3-Next: 16 q/k heads, 32 v heads of 128, f32, "
               "%d sequences\n",
               SEQUENCES);
    show(&m, "making the inputs", 0);
    int code = rule_case_make(&m.prefill, &dims, lengths, SEQUENCES);
    if (!code) code = rule_case_make(&m.decode, &dims, steps, SEQUENCES);
    if (!code) code = run_cases(&m);
    free(m.states);
    free(m.want);
    free(m.got);
    memory_free(&m.prefill.memory);
    memory_free(&m.decode.memory);
    return code;
}
