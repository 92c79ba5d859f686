/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn accuracy: what states of each dtype cost over long sequences. The rule runs token by token,
 * its state stored after each, and in calls of some tokens; beside it runs a float64 recurrence
 * of this file's own, on the same float32 inputs.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/cases.h"
#include "cli.h"
#include "report.h"
#include "table.h"

static const char help[] =
    "gdn accuracy [options]\n"
    "\n"
    "Errors of outputs and states against a float64 recurrence over one long sequence, for\n"
    "states of f32, bf16, f16, i8, e4m3 and e5m2 (8 bits to nearest and, \"i8 ~\", stochastic),\n"
    "stored after every token (gdn_decode) and after calls of several tokens (gdn_prefill).\n"
    "\n"
    "  --tokens T       length of the sequence (default 32768)\n"
    "  --call N         tokens of a prefill call (default 64; 0: no prefill)\n"
    "  --heads N        heads, each with its own inputs (default 1)\n"
    "  --dim K[/V]      head size (default 128)\n"
    "  --rule R         gdn (default), kda, gdn2 or product, which has two updates of a token\n"
    "  --record R       calls of one token with a record of R rows (lazy states)\n"
    "  --rows D         f32 (default), bf16, f16: of its keys and u\n"
    "  --layout L       k_last (default), k_first\n"
    "  --seed N         of the inputs and of stochastic rounding (default 1)\n"
    "  --threads N --isa NAME --backend cpu    as for gdn run; one thread is the default\n"
    "  --json           a JSON line per row and length\n"
    "\n"
    "Keys and queries have length 1, v is uniform in [-1, 1), beta in [0, 1); log gates are\n"
    "uniform in [-0.01, 0) (mild), [-1, 0) (strong) or 0 (none); slow: no gates, and beta in\n"
    "[0, 0.01), so that tokens change the state by less than its steps. Where the rule has\n"
    "gates per channel, each is drawn; a write gate is uniform in [0, 1). An error of the output\n"
    "is over the last 256 tokens before a length, one of the state right after it; both in units\n"
    "of the root mean square (RMS) of the float64 values. Exit status 1: float32 states are off\n"
    "by more than 1e-4 RMS, or with rows of 16 bits by more than 1e-2.\n";

enum { MAX_LENGTHS = 5, WINDOW = 256, LANES = 8 };

static const struct {
    const char *name;
    double low, beta; /* log gates from low to 0, beta from 0 */
} gates[] = { { "mild", -0.01, 1 }, { "strong", -1, 1 }, { "none", 0, 1 }, { "slow", 0, 0.01 } };

static const struct {
    const char *name, *dtype_name;
    int32_t dtype, rounding;
} states[] = {
    { "f32", "f32", GDN_F32, 0 },
    { "bf16", "bf16", GDN_BF16, 0 },
    { "f16", "f16", GDN_F16, 0 },
    { "i8", "i8", GDN_I8, GDN_ROUND_NEAREST },
    { "i8 ~", "i8", GDN_I8, GDN_ROUND_STOCHASTIC },
    { "e4m3", "e4m3", GDN_E4M3, GDN_ROUND_NEAREST },
    { "e4m3 ~", "e4m3", GDN_E4M3, GDN_ROUND_STOCHASTIC },
    { "e5m2", "e5m2", GDN_E5M2, GDN_ROUND_NEAREST },
    { "e5m2 ~", "e5m2", GDN_E5M2, GDN_ROUND_STOCHASTIC },
};

enum { N_GATES = sizeof gates / sizeof *gates, N_STATES = sizeof states / sizeof *states };

struct errors {
    double rms, max; /* of RMS */
};

struct study {
    struct cli_device device;
    int64_t T, call, H, K, V, seed;
    int64_t record; /* rows of a record, of calls of one token; 0: none */
    const char *dim, *layout, *rule_name, *rows;
    struct case_dims rule; /* the rule and its updates; other dimensions are not set */
    bool json, help;

    gdn_ctx *ctx;
    struct memory memory;
    int n_lengths;
    int64_t lengths[MAX_LENGTHS];
    float *q, *k, *v, *g, *beta, *write; /* [T][H][..], k, v, beta and write of each update */
    int64_t updates, of_g, of_beta;      /* of a token; values of a head */
    double *out, *state;                 /* [n_lengths]: [WINDOW][H][V], [H][K][V] of float64 */
    gdn_rule_args args;                  /* its pool: one slot */
    float *got, *read;                   /* [T][H][V], and the state as float32 [H][K][V] */
    double done, all;                    /* tokens, for the progress */

    struct errors of_out[MAX_LENGTHS], of_state[MAX_LENGTHS];
    bool bad;
};

/* ---- Inputs --------------------------------------------------------------------------------- */

static bool has_write(const struct study *s) { return s->rule.rule == CASE_RULE_GDN2; }

static void fill(float *x, int64_t n, double low, double high, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)(low + (high - low) * case_random(seed));
}

static void fill_unit(float *x, int64_t rows, int64_t n, uint64_t *seed)
{
    fill(x, rows * n, -1, 1, seed);
    for (; rows > 0; rows--, x += n) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
        for (int64_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sqrt(sum));
    }
}

static int make_room(struct study *s)
{
    const int64_t rows = s->T * s->H, updates = rows * s->updates;
    const int64_t n = s->n_lengths, KV = s->H * s->K * s->V;
    const int64_t floats = rows * (s->K + s->V + s->of_g) +
                           updates * (s->K + s->V + s->of_beta + (has_write(s) ? s->V : 0));
    uint64_t seed = (uint64_t)s->seed;
    float *f = memory_get(&s->memory, (size_t)(floats + KV) * sizeof *f);
    s->out = memory_get(&s->memory, (size_t)(n * WINDOW * s->H * s->V) * sizeof *s->out);
    s->state = memory_get(&s->memory, (size_t)((n + 1) * KV) * sizeof *s->state);
    if (!f || !s->out || !s->state)
        return cli_bad("accuracy: no memory for %lld tokens", (long long)s->T);
    s->q = f, s->k = s->q + rows * s->K, s->v = s->k + updates * s->K;
    s->got = s->v + updates * s->V, s->g = s->got + rows * s->V;
    s->beta = s->g + rows * s->of_g, s->write = s->beta + updates * s->of_beta;
    s->read = s->write + (has_write(s) ? updates * s->V : 0);
    fill_unit(s->q, rows, s->K, &seed);
    fill_unit(s->k, updates, s->K, &seed);
    fill(s->v, updates * s->V, -1, 1, &seed);
    return CLI_OK;
}

static void advance(struct study *s, int64_t tokens, const char *what)
{
    s->done += (double)tokens;
    progress(what, s->done / s->all);
}

/* ---- The recurrence in float64 -------------------------------------------------------------- */

/* A head's S is [K][V]. */
static void decay(const struct study *s, double *S, const float *g)
{
    for (int64_t x = 0; x < s->K; x++) {
        const double alpha = exp((double)g[s->of_g > 1 ? x : 0]);
        for (int64_t j = 0; j < s->V; j++) S[x * s->V + j] *= alpha;
    }
}

/* Computes update `row` of head h, columns in groups that compilers keep in registers. */
static void update(const struct study *s, double *S, int64_t row, int64_t h)
{
    const int64_t i = row * s->H + h, V = s->V;
    const float *k = s->k + i * s->K, *v = s->v + i * V, *b = s->beta + i * s->of_beta;
    for (int64_t j = 0; j < V; j += LANES) {
        const int64_t n = V - j < LANES ? V - j : LANES;
        double p[LANES] = { 0 }, u[LANES] = { 0 };
        for (int64_t x = 0; x < s->K; x++) {
            const double e = (double)k[x] * (double)b[s->of_beta > 1 ? x : 0];
            for (int64_t l = 0; l < n; l++) p[l] += S[x * V + j + l] * e;
        }
        for (int64_t l = 0; l < n; l++) {
            const double w = (double)(has_write(s) ? s->write[i * V + j + l] : b[0]);
            u[l] = w * (double)v[j + l] - p[l];
        }
        for (int64_t x = 0; x < s->K; x++)
            for (int64_t l = 0; l < n; l++) S[x * V + j + l] += (double)k[x] * u[l];
    }
}

static void read_state(const struct study *s, const double *S, const float *q, double *o)
{
    memset(o, 0, (size_t)s->V * sizeof *o);
    for (int64_t x = 0; x < s->K; x++)
        for (int64_t j = 0; j < s->V; j++) o[j] += S[x * s->V + j] * (double)q[x];
    for (int64_t j = 0; j < s->V; j++) o[j] /= sqrt((double)s->K);
}

/* Keeps outputs of token t and head h, for the windows that it is in. */
static void keep(struct study *s, int64_t t, int64_t h, const double *o)
{
    for (int i = 0; i < s->n_lengths; i++) {
        const int64_t row = t - s->lengths[i] + WINDOW;
        if (row >= 0 && row < WINDOW)
            memcpy(s->out + ((i * WINDOW + row) * s->H + h) * s->V, o, (size_t)s->V * sizeof *o);
    }
}

/* Fills s->out and s->state. */
static void follow(struct study *s)
{
    const int64_t KV = s->K * s->V;
    double *S = s->state + s->n_lengths * s->H * KV, o[256];
    int next = 0;
    memset(S, 0, (size_t)(s->H * KV) * sizeof *S);
    for (int64_t t = 0; t < s->T; t++) {
        for (int64_t h = 0; h < s->H; h++) {
            const int64_t i = t * s->H + h;
            decay(s, S + h * KV, s->g + i * s->of_g);
            for (int64_t j = 0; j < s->updates; j++) update(s, S + h * KV, t * s->updates + j, h);
            read_state(s, S + h * KV, s->q + i * s->K, o);
            keep(s, t, h, o);
        }
        if (t + 1 == s->lengths[next])
            memcpy(s->state + next++ * s->H * KV, S, (size_t)(s->H * KV) * sizeof *S);
        if (t % 1024 == 1023) advance(s, 1024, "float64");
    }
}

/* ---- The library ---------------------------------------------------------------------------- */

static struct errors errors_of(const float *got, const double *want, int64_t n)
{
    double sum = 0, size = 0, max = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)got[i] - want[i]);
        sum += e * e;
        size += want[i] * want[i];
        max = e <= max ? max : e; /* a NaN stays */
    }
    const double rms = sqrt(size / (double)n);
    return (struct errors){ sqrt(sum / (double)n) / rms, max / rms };
}

/* Writes the state that a record is kept for. */
static gdn_status fold(struct study *s)
{
    const gdn_rule_args *a = &s->args;
    gdn_record_fold_args f = gdn_record_fold_args_init();
    if (!a->record_count.data) return GDN_OK;
    f.state = a->state, f.state_scales = a->state_scales, f.state_layout = a->state_layout;
    f.record_k = a->record_k, f.record_u = a->record_u, f.record_g = a->record_g;
    f.record_count = a->record_count;
    f.rounding = a->rounding, f.seed = a->seed;
    return cli_call(s->ctx, GDN_OP_RECORD_FOLD, &f);
}

/* Judges errors after lengths[i] tokens; s->args.state is the library's state. */
static int judge(struct study *s, int i)
{
    const gdn_status folded = fold(s);
    if (folded) return cli_failed(s->ctx, folded);
    const int64_t L = s->lengths[i], KV = s->H * s->K * s->V, n = L < WINDOW ? L : WINDOW;
    const int64_t row = s->H * s->V;
    gdn_state_copy_args copy = gdn_state_copy_args_init();
    copy.from_pool = s->args.state;
    copy.from_scales = s->args.state_scales;
    copy.from_layout = s->args.state_layout;
    copy.to_pool = gdn_dense(s->read, GDN_F32, 4, 1, s->H, s->K, s->V);
    copy.to_layout = GDN_STATE_KV;
    if (gdn_state_copy(s->ctx, &copy)) return cli_failed(s->ctx, GDN_E_ARG);
    s->of_state[i] = errors_of(s->read, s->state + i * KV, KV);
    s->of_out[i] =
        errors_of(s->got + (L - n) * row, s->out + (i * WINDOW + WINDOW - n) * row, n * row);
    return CLI_OK;
}

/* Calls tokens [t, t + n) of the whole sequence. */
static gdn_status call(struct study *s, int64_t t, int64_t n, bool decode)
{
    const int64_t H = s->H, at = t * H, u = s->updates, row = at * u;
    gdn_rule_args *a = &s->args;
    a->q = gdn_dense(s->q + at * s->K, GDN_F32, 3, n, H, s->K, 0);
    a->k = gdn_dense(s->k + row * s->K, GDN_F32, 3, n * u, H, s->K, 0);
    a->v = gdn_dense(s->v + row * s->V, GDN_F32, 3, n * u, H, s->V, 0);
    a->out = gdn_dense(s->got + at * s->V, GDN_F32, 3, n, H, s->V, 0);
    a->g = gdn_dense(s->g + at * s->of_g, GDN_F32, 3, n, H, s->of_g, 0);
    a->beta = gdn_dense(s->beta + row * s->of_beta, GDN_F32, 3, n * u, H, s->of_beta, 0);
    if (has_write(s))
        a->write_gate = gdn_dense(s->write + row * s->V, GDN_F32, 3, n * u, H, s->V, 0);
    a->updates = u > 1 ? (int32_t)u : 0;
    a->seed = (uint64_t)(s->seed + t);
    return cli_call(s->ctx, decode ? GDN_OP_DECODE : GDN_OP_PREFILL, a);
}

/* Makes a zero state of that dtype in fresh memory. */
static int make_pool(struct study *s, struct memory *m, int state)
{
    const bool kv = !strcmp(s->layout, "k_first");
    const int64_t size[] = { 1, s->H, kv ? s->K : s->V, kv ? s->V : s->K };
    const int64_t scales[] = { 1, s->H, s->V };
    s->args = gdn_rule_args_init();
    s->args.state = memory_tensor(m, states[state].dtype, 4, size);
    s->args.state_layout = kv ? GDN_STATE_KV : GDN_STATE_VK;
    s->args.rounding = states[state].rounding;
    const bool eight = states[state].dtype >= GDN_I8;
    if (eight) s->args.state_scales = memory_tensor(m, GDN_F32, 3, scales);
    const bool made = s->args.state.data && (!eight || s->args.state_scales.data);
    return made ? CLI_OK : cli_bad("accuracy: no memory for the state");
}

/* Gives the calls an empty record, if they have one. */
static int make_record(struct study *s, struct memory *m)
{
    const int64_t k[] = { 1, s->record, s->H, s->K }, u[] = { 1, s->record, s->H, s->V };
    const int32_t dtype = !strcmp(s->rows, "f32")    ? GDN_F32
                          : !strcmp(s->rows, "bf16") ? GDN_BF16
                                                     : GDN_F16;
    gdn_rule_args *a = &s->args;
    if (!s->record) return CLI_OK;
    a->record_k = memory_tensor(m, dtype, 4, k);
    a->record_u = memory_tensor(m, dtype, 4, u);
    a->record_g = memory_tensor(m, GDN_F32, s->of_g > 1 ? 4 : 3, k);
    a->record_count = memory_tensor(m, GDN_I32, 1, k);
    const bool made =
        a->record_k.data && a->record_u.data && a->record_g.data && a->record_count.data;
    return made ? CLI_OK : cli_bad("accuracy: no memory for %lld rows", (long long)s->record);
}

/* Runs the whole sequence in calls of n tokens. */
static int run(struct study *s, int state, int64_t n, bool decode)
{
    struct memory memory = { 0 };
    int code = make_pool(s, &memory, state);
    if (!code && decode) code = make_record(s, &memory);
    int64_t t = 0, some, told = 0;
    for (int i = 0; i < s->n_lengths && !code; i++) {
        for (; t < s->lengths[i] && !code; t += some) {
            some = s->lengths[i] - t < n ? s->lengths[i] - t : n;
            const gdn_status status = call(s, t, some, decode);
            if (status) code = cli_failed(s->ctx, status);
            if (t + some - told < 1024) continue;
            advance(s, t + some - told, states[state].name);
            told = t + some;
        }
        if (!code) code = judge(s, i);
        const bool rounded = s->args.record_k.data && s->args.record_k.dtype != GDN_F32;
        const double most = rounded ? 1e-2 : 1e-4;
        if (states[state].dtype == GDN_F32 && !(s->of_out[i].rms < most)) s->bad = true;
    }
    memory_free(&memory);
    return code;
}

/* ---- Output --------------------------------------------------------------------------------- */

static void print_json(const struct study *s, int gate, int state, int64_t n)
{
    for (int i = 0; i < s->n_lengths; i++) {
        cJSON *line = report_line(s->ctx);
        if (s->rule.rule) cJSON_AddStringToObject(line, "rule", case_rule_names[s->rule.rule]);
        cJSON_AddStringToObject(line, "gates", gates[gate].name);
        cJSON_AddNumberToObject(line, "tokens_per_call", (double)n);
        cJSON_AddStringToObject(line, "state", states[state].dtype_name);
        cJSON_AddStringToObject(line, "rounding",
                                states[state].rounding ? "stochastic" : "nearest");
        if (s->record && n == 1) cJSON_AddNumberToObject(line, "record", (double)s->record);
        if (s->record && n == 1) cJSON_AddStringToObject(line, "rows", s->rows);
        cJSON_AddNumberToObject(line, "heads", (double)s->H);
        cJSON_AddNumberToObject(line, "dim", (double)s->K);
        cJSON_AddNumberToObject(line, "value_dim", (double)s->V);
        cJSON_AddNumberToObject(line, "tokens", (double)s->lengths[i]);
        cJSON_AddNumberToObject(line, "out_rms_error", s->of_out[i].rms);
        cJSON_AddNumberToObject(line, "out_max_error", s->of_out[i].max);
        cJSON_AddNumberToObject(line, "state_rms_error", s->of_state[i].rms);
        cJSON_AddNumberToObject(line, "state_max_error", s->of_state[i].max);
        report_print(line);
    }
}

static void add_row(const struct study *s, struct table t[2], int gate, int state, int64_t n)
{
    for (int which = 0; which < 2; which++) {
        const struct errors *e = which ? s->of_state : s->of_out;
        table_cell(&t[which], "%s", gates[gate].name);
        table_cell(&t[which], "%lld", (long long)n);
        table_cell(&t[which], "%s", states[state].name);
        for (int i = 0; i < s->n_lengths; i++) table_cell(&t[which], "%.1e", e[i].rms);
        table_cell(&t[which], "%.1e", e[s->n_lengths - 1].max);
    }
}

static int one_row(struct study *s, struct table t[2], int gate, int state, int64_t n)
{
    const int code = run(s, state, n, n == 1);
    if (code) return code;
    if (s->json) {
        progress_done();
        print_json(s, gate, state, n);
    } else {
        add_row(s, t, gate, state, n);
    }
    return CLI_OK;
}

static int study_all(struct study *s, struct table t[2])
{
    const int n_calls = s->call ? 2 : 1;
    s->all = (double)s->T * N_GATES * (2 + n_calls * N_STATES);
    for (int gate = 0; gate < N_GATES; gate++) {
        uint64_t seed = (uint64_t)s->seed + 1;
        const int64_t rows = s->T * s->H, updates = rows * s->updates;
        fill(s->g, rows * s->of_g, gates[gate].low, 0, &seed);
        fill(s->beta, updates * s->of_beta, 0, gates[gate].beta, &seed);
        if (has_write(s)) fill(s->write, updates * s->V, 0, 1, &seed);
        follow(s);
        for (int i = 0; i < n_calls * N_STATES; i++)
            if (one_row(s, t, gate, i % N_STATES, i < N_STATES ? 1 : s->call)) return CLI_BAD;
    }
    progress_done();
    return CLI_OK;
}

static int study_and_print(struct study *s)
{
    char names[MAX_LENGTHS][24];
    const char *titles[TABLE_MAX_COLUMNS] = { "<gates", "tokens/call", "<state" };
    struct table t[2];
    for (int i = 0; i < s->n_lengths; i++) {
        snprintf(names[i], sizeof names[i], "%lld", (long long)s->lengths[i]);
        titles[3 + i] = names[i];
    }
    titles[3 + s->n_lengths] = "largest";
    for (int i = 0; i < 2; i++) table_start(&t[i], titles);
    const int code = study_all(s, t);
    if (code || s->json) return code;
    report_heading(s->ctx);
    printf("  case      %s, %lld heads of %lld x %lld, %s, inputs of seed %lld\n",
           case_rule_names[s->rule.rule], (long long)s->H, (long long)s->K, (long long)s->V,
           s->layout, (long long)s->seed);
    for (int i = 0; i < 2; i++) {
        printf("\n%s: RMS of the error after so many tokens, and the largest one after the last\n",
               i ? "State" : "Output");
        table_print(&t[i]);
    }
    return CLI_OK;
}

/* ---- Options -------------------------------------------------------------------------------- */

static int find_rule(struct study *s)
{
    int i = 0;
    while (i < CASE_RULES && strcmp(s->rule_name, case_rule_names[i])) i++;
    if (i == CASE_RULES)
        return cli_bad("--rule: '%s', wanted gdn, kda, gdn2 or product", s->rule_name);
    s->rule.rule = i;
    s->updates = case_updates(&s->rule);
    s->of_g = case_has_channels(&s->rule) ? s->K : 1;
    s->of_beta = has_write(s) ? s->K : 1;
    return CLI_OK;
}

static int settle(struct study *s)
{
    static const int64_t lengths[] = { 1024, 4096, 16384, 32768 };
    int used = 0;
    long long K = 0, V = 0;
    const int n = sscanf(s->dim, "%lld/%lld%n", &K, &V, &used);
    if (n == 1) sscanf(s->dim, "%lld%n", &K, &used), V = K;
    if (n < 1 || s->dim[used] || K < 1 || K > 256 || V < 1 || V > 256)
        return cli_bad("--dim: '%s', wanted K or K/V from 1 to 256", s->dim);
    if (strcmp(s->layout, "k_last") && strcmp(s->layout, "k_first"))
        return cli_bad("--layout: '%s', wanted k_last or k_first", s->layout);
    if (strcmp(s->rows, "f32") && strcmp(s->rows, "bf16") && strcmp(s->rows, "f16"))
        return cli_bad("--rows: '%s', wanted f32, bf16 or f16", s->rows);
    s->K = K, s->V = V;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (lengths[i] < s->T) s->lengths[s->n_lengths++] = lengths[i];
    s->lengths[s->n_lengths++] = s->T;
    return find_rule(s);
}

int accuracy_main(int argc, char **argv)
{
    struct study s = { .device = { .threads = 1 },
                       .T = 32768,
                       .call = 64,
                       .H = 1,
                       .seed = 1,
                       .dim = "128",
                       .layout = "k_last",
                       .rows = "f32",
                       .rule_name = "gdn" };
    const struct cli_option options[] = {
        { "--tokens", CLI_INT, &s.T, 1, 1 << 24 },
        { "--call", CLI_INT, &s.call, 0, 1 << 20 },
        { "--heads", CLI_INT, &s.H, 1, 1024 },
        { "--dim", CLI_TEXT, &s.dim, 0, 0 },
        { "--layout", CLI_TEXT, &s.layout, 0, 0 },
        { "--rule", CLI_TEXT, &s.rule_name, 0, 0 },
        { "--record", CLI_INT, &s.record, 1, 1 << 16 },
        { "--rows", CLI_TEXT, &s.rows, 0, 0 },
        { "--seed", CLI_INT, &s.seed, 0, 1 << 30 },
        { "--threads", CLI_INT, &s.device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &s.device.isa, 0, 0 },
        { "--backend", CLI_TEXT, &s.device.backend, 0, 0 },
        { "--json", CLI_FLAG, &s.json, 0, 0 },
        { "--help", CLI_FLAG, &s.help, 0, 0 },
        { "-h", CLI_FLAG, &s.help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    if (cli_parse(argc, argv, options, NULL, NULL)) return CLI_BAD;
    if (s.help) {
        fputs(help, stdout);
        return CLI_OK;
    }
    if (settle(&s) || cli_open(&s.device, &s.ctx)) return CLI_BAD;
    int code = make_room(&s);
    if (!code) code = study_and_print(&s);
    memory_free(&s.memory);
    gdn_ctx_destroy(s.ctx);
    return code ? code : s.bad ? CLI_OUTSIDE : CLI_OK;
}
