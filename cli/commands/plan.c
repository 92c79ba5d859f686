/* SPDX-License-Identifier: Apache-2.0 */
/* gdn plan: what the library does with a model, from its configuration alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "measure.h"
#include "plan/calls.h"
#include "plan/chip.h"
#include "plan/times.h"
#include "program/json_values.h"
#include "program/whole_file.h"
#include "report.h"
#include "table.h"

static const char help[] =
    "gdn plan CONFIG.json [options]\n"
    "\n"
    "Says what the library does with a model: which kernels its layers with a delta rule run, and\n"
    "why no faster ones; bytes of states, and how many sequences fit; workspace; times. It reads\n"
    "the model's configuration (of Hugging Face) and nothing else.\n"
    "\n"
    "  --gpu NAME       for this GPU, which need not be here; without it for this machine's CPU\n"
    "  --batch N        sequences (default 32)\n"
    "  --context N      tokens of each prompt (default 8192)\n"
    "  --tp N           ranks that divide the heads (default 1)\n"
    "  --dtype D        activations: f32, bf16, f16 (default: the configuration's, else bf16)\n"
    "  --state D        states: f32, bf16, f16, i8, e4m3, e5m2 (default: the configuration's,\n"
    "                   else f32)\n"
    "  --memory GIB     for states (default: all of the GPU's; 16)\n"
    "  --threads N --isa NAME    of the CPU, as for gdn run\n"
    "  --json           one JSON line\n"
    "\n"
    "A time is that of the nearest call among the kept measurements (bench/results), times the\n"
    "ratio of their work; the line says which, and on what machine. Projections, norms and other\n"
    "layers are not in it. Workspace and slots are those of one rank.\n";

enum { N_DTYPES = 6, HOPPER = 90 /* its compute capability */ };
static const char *const dtype_names[N_DTYPES] = { "f32", "bf16", "f16", "i8", "e4m3", "e5m2" };

struct plan {
    struct cli_device device;
    const char *gpu, *dtype, *state;
    int64_t batch, context, tp;
    double memory_gib;
    bool json, help;
    const struct plan_chip *chip; /* NULL: the CPU */
    char device_name[128], isa[32];
    int threads;
    struct plan_model model;
    struct plan_warnings warnings;
    struct plan_sizes sizes;
    struct plan_answer answers[PLAN_N_CALLS];
    struct plan_time times[PLAN_N_CALLS];
};

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* One layer's states of one sequence: of the rule, with scales, and of the convolution. */
static double slot_bytes(const struct plan *p, int32_t dtype)
{
    const struct plan_sizes *s = &p->sizes;
    const double state = (double)s->Hv * (double)(s->K * s->V) * (double)gdn_dtype_bytes(dtype);
    const double scales = dtype >= GDN_I8 ? 4.0 * (double)(s->Hv * s->V) : 0;
    const double conv = (double)plan_channels(&p->model, s) * (double)(s->W - 1) *
                        (double)gdn_dtype_bytes(s->dtype);
    return state + scales + conv;
}

static double slots_of(const struct plan *p, int32_t dtype)
{
    return floor(p->memory_gib * 0x1p30 / (slot_bytes(p, dtype) * p->model.n_linear));
}

/* ---- Warnings -------------------------------------------------------------------------------- */

/* Returns why Hopper's kernels do not take the call: the part of a choice behind "sm90: ", else
 * all of it. */
static void warn_no_hopper(struct plan *p, const struct plan_answer *a)
{
    const bool has_own = !strcmp(a->op, "gdn_prefill") || !strcmp(a->op, "gdn_prefill_backward");
    if (!has_own || a->status || strstr(a->kernels, "sm90")) return;
    plan_warn(&p->warnings, "%s: no kernel of Hopper takes these heads or dtypes (%s)", a->op,
              a->n_choices ? a->choices[0] : "no reason is known");
}

static void warn_layouts(struct plan *p)
{
    const struct plan_model *m = &p->model;
    if (m->key_dim == m->value_dim)
        plan_warn(&p->warnings,
                  "K is V: a state [K][V] (Hugging Face, FLA) has the sizes of a state [V][K] "
                  "(vLLM, SGLang, ggml), so no check finds a pool of the other layout");
    if (m->key_heads != m->value_heads)
        plan_warn(&p->warnings,
                  "%d value heads share each key head: ggml's files have them "
                  "interleaved (GDN_HEADS_INTERLEAVED), all others grouped",
                  m->value_heads / m->key_heads);
    if (m->woven)
        plan_warn(&p->warnings, "in_proj_qkvz and in_proj_ba have their rows by key head; "
                                "Qwen3.5's projections do not");
}

static void warn_gates(struct plan *p)
{
    const struct plan_model *m = &p->model;
    if (m->twice_beta)
        plan_warn(&p->warnings, "beta is 2 sigmoid(b) (allow_neg_eigval): set beta_kind to "
                                "GDN_BETA_TWICE_SIGMOID");
    if (m->lower_bound < 0)
        plan_warn(&p->warnings, "the decay has a bound: set gate_lower_bound to %g",
                  m->lower_bound);
    if (m->sigmoid_gate)
        plan_warn(&p->warnings, "the output gate is a sigmoid: set activation of gdn_step and "
                                "gdn_rmsnorm_gated to GDN_ACT_SIGMOID");
}

static void warn_rule(struct plan *p)
{
    const struct plan_model *m = &p->model;
    if (m->updates > 1)
        plan_warn(&p->warnings, "k, v and beta have %d rows for each token: set updates",
                  m->updates);
    if (m->erases || m->updates > 1)
        plan_warn(&p->warnings, "gdn_block has no %s", plan_rule_name(m));
    if (!plan_has_step(m))
        plan_warn(&p->warnings, "gdn_step needs a decay, which the model has not: a token is "
                                "gdn_conv1d, gdn_decode and gdn_rmsnorm_gated");
}

/* Names the calls whose times are of another GPU, and that GPU. */
static void warn_times(struct plan *p)
{
    char calls[PLAN_WARNING] = "";
    for (int i = 0; i < PLAN_N_CALLS; i++) {
        const struct plan_time *t = &p->times[i];
        const size_t used = strlen(calls);
        if (t->elsewhere)
            snprintf(calls + used, sizeof calls - used, "%s%s on %s", used ? ", " : "",
                     p->answers[i].op, t->machine);
    }
    if (*calls) plan_warn(&p->warnings, "times are not of %s: %s", p->device_name, calls);
}

static void warn(struct plan *p)
{
    const bool hopper = p->chip && p->chip->capability == HOPPER;
    if (p->chip && !hopper)
        plan_warn(&p->warnings, "%s: portable kernels, which never ran on such a GPU",
                  p->chip->name);
    warn_rule(p);
    warn_gates(p);
    warn_layouts(p);
    for (int i = 0; i < PLAN_N_CALLS; i++) {
        const struct plan_answer *a = &p->answers[i];
        if (a->status)
            plan_warn(&p->warnings, "%s refuses these layers: %s", a->op, a->refused);
        else if (hopper)
            warn_no_hopper(p, a);
    }
    warn_times(p);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static int parse_dtype(const char *option, const char *text, int n, int32_t *dtype)
{
    for (int32_t i = 0; i < n && text; i++)
        if (!strcmp(text, dtype_names[i])) {
            *dtype = i;
            return CLI_OK;
        }
    if (!text) return CLI_OK;
    return cli_bad("%s: '%s', wanted f32, bf16%s", option, text,
                   n > 3 ? ", f16, i8, e4m3 or e5m2" : " or f16");
}

static int find_chip(struct plan *p)
{
    char names[256];
    if (!p->gpu) return CLI_OK;
    if (p->device.isa || p->device.threads)
        return cli_bad("--isa, --threads: of a CPU, not with --gpu");
    p->chip = plan_chip_find(p->gpu);
    return p->chip ? CLI_OK
                   : cli_bad("--gpu: '%s', wanted one of: %s", p->gpu,
                             plan_chip_names(names, sizeof names));
}

static int settle_sizes(struct plan *p)
{
    const struct plan_model *m = &p->model;
    struct plan_sizes *s = &p->sizes;
    if (m->key_heads % p->tp || m->value_heads % p->tp)
        return cli_bad("--tp: %lld, wanted a divisor of the %d key heads and the %d value heads",
                       (long long)p->tp, m->key_heads, m->value_heads);
    *s = (struct plan_sizes){ .B = p->batch,
                              .T = p->context,
                              .Hk = m->key_heads / p->tp,
                              .Hv = m->value_heads / p->tp,
                              .K = m->key_dim,
                              .V = m->value_dim,
                              .W = m->taps,
                              .dtype = m->dtype,
                              .state_dtype = m->state_dtype };
    if (p->memory_gib <= 0) p->memory_gib = p->chip ? p->chip->memory_gib : 16;
    return parse_dtype("--dtype", p->dtype, 3, &s->dtype) ||
           parse_dtype("--state", p->state, N_DTYPES, &s->state_dtype);
}

/* Each call has a context of its own, so that the log's lines are those of the call. */
static int ask(struct plan *p)
{
    for (int i = 0; i < PLAN_N_CALLS; i++) {
        gdn_ctx *ctx;
        if (p->chip ? plan_chip_open(p->chip, &ctx) : cli_open(&p->device, &ctx)) return CLI_BAD;
        p->threads = (int)gdn_n_threads(ctx);
        snprintf(p->isa, sizeof p->isa, "%s", gdn_isa(ctx));
        const int code =
            plan_ask(ctx, &p->model, &p->sizes, (enum plan_call_kind)i, &p->answers[i]);
        gdn_ctx_destroy(ctx);
        if (code) return code;
        p->times[i] = plan_time_of(p->device_name, p->chip != NULL, p->threads, &p->model,
                                   &p->sizes, (enum plan_call_kind)i, &p->answers[i]);
    }
    return CLI_OK;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* "0-2, 4-6": the layers with a delta rule. */
static void print_layers(const struct plan_model *m)
{
    const char *comma = "";
    for (int32_t i = 0; i < m->n_layers; i++) {
        int32_t end = i;
        if (!plan_is_linear(m, i)) continue;
        while (end + 1 < m->n_layers && plan_is_linear(m, end + 1)) end++;
        printf(end > i ? "%s%d-%d" : "%s%d", comma, i, end);
        comma = ", ";
        i = end;
    }
}

static void print_heading(const struct plan *p)
{
    const struct plan_model *m = &p->model;
    const struct plan_sizes *s = &p->sizes;
    printf("%s, %d layers\n", m->type, m->n_layers);
    printf("  %-9s %d layers: ", plan_rule_name(m), m->n_linear);
    print_layers(m);
    printf("\n  heads     %lld of keys, %lld of values%s, K %lld, V %lld, %lld taps\n",
           (long long)s->Hk, (long long)s->Hv, p->tp > 1 ? " on a rank" : "", (long long)s->K,
           (long long)s->V, (long long)s->W);
    printf("  on        %s (%s", p->device_name, p->isa);
    if (!p->chip) printf(", %d threads", p->threads);
    printf("), batch %lld, context %lld, tp %lld, %s, states %s\n\n", (long long)p->batch,
           (long long)p->context, (long long)p->tp, dtype_names[s->dtype],
           dtype_names[s->state_dtype]);
}

static void print_bytes(char text[32], double bytes)
{
    char number[24];
    const int unit = bytes >= 0x1p30 ? 2 : bytes >= 0x1p20 ? 1 : 0;
    static const char *const units[] = { "KiB", "MiB", "GiB" };
    snprintf(text, 32, "%s %s", table_number(number, ldexp(bytes, -10 * (unit + 1))), units[unit]);
}

/* One call: kernels, choices, memory and time. */
static void print_call(const struct plan *p, int i)
{
    char text[32], a[24], b[24], f[24];
    const struct plan_answer *q = &p->answers[i];
    const struct plan_time *t = &p->times[i];
    printf("%s: %s\n", q->use, q->op);
    if (q->status) {
        printf("  refused   %s\n", q->refused);
        return;
    }
    printf("  kernels   %s\n", q->kernels);
    for (int j = 0; j < q->n_choices; j++) printf("  why       %s\n", q->choices[j]);
    print_bytes(text, (double)q->workspace);
    printf("  workspace %s\n", q->workspace ? text : "none");
    if (t->us <= 0) {
        printf("  time      nothing like it was measured\n");
        return;
    }
    printf("  time      %s ms a layer, %s ms all %d%s\n", table_number(a, 1e-3 * t->us),
           table_number(b, 1e-3 * t->us * p->model.n_linear), p->model.n_linear,
           t->rule_only ? ", the rule alone" : "");
    printf("            measured: %s; times %s\n", t->what, table_number(f, t->factor));
}

static void print_slots(const struct plan *p)
{
    static const char *const titles[] = { "<states", "a layer", "a sequence", "sequences", NULL };
    struct table t;
    char text[32];
    printf("\nslots in %g GiB\n", p->memory_gib);
    table_start(&t, titles);
    for (int32_t i = 0; i < N_DTYPES; i++) {
        const double bytes = slot_bytes(p, i);
        table_cell(&t, "%s", dtype_names[i]);
        print_bytes(text, bytes);
        table_cell(&t, "%s", text);
        print_bytes(text, bytes * p->model.n_linear);
        table_cell(&t, "%s", text);
        table_cell(&t, "%.0f", slots_of(p, i));
    }
    table_print(&t);
}

static void print_text(const struct plan *p)
{
    print_heading(p);
    for (int i = 0; i < PLAN_N_CALLS; i++) print_call(p, i);
    print_slots(p);
    if (p->warnings.n) printf("\n");
    for (int i = 0; i < p->warnings.n; i++) printf("warning: %s\n", p->warnings.text[i]);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_words(cJSON *item, const char *key, const char *text)
{
    cJSON *list = cJSON_AddArrayToObject(item, key);
    char word[128];
    for (size_t n; *text; text += n + (text[n] == ' ')) {
        n = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        cJSON_AddItemToArray(list, cJSON_CreateString(word));
    }
}

static void add_call(cJSON *list, const struct plan *p, int i)
{
    const struct plan_answer *q = &p->answers[i];
    const struct plan_time *t = &p->times[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    cJSON_AddStringToObject(item, "for", q->use);
    cJSON_AddStringToObject(item, "op", q->op);
    if (q->status) {
        cJSON_AddStringToObject(item, "refused", q->refused);
        return;
    }
    add_words(item, "kernels", q->kernels);
    cJSON *why = cJSON_AddArrayToObject(item, "why");
    for (int j = 0; j < q->n_choices; j++)
        cJSON_AddItemToArray(why, cJSON_CreateString(q->choices[j]));
    cJSON_AddNumberToObject(item, "workspace_bytes", (double)q->workspace);
    if (t->us <= 0) return;
    cJSON_AddNumberToObject(item, "layer_ms", 1e-3 * t->us);
    cJSON_AddNumberToObject(item, "layers_ms", 1e-3 * t->us * p->model.n_linear);
    cJSON_AddStringToObject(item, "measured_on", t->machine);
    cJSON_AddStringToObject(item, "measured", t->what);
    cJSON_AddNumberToObject(item, "factor", t->factor);
    if (t->rule_only) cJSON_AddBoolToObject(item, "rule_only", true);
}

static void add_model(cJSON *line, const struct plan *p)
{
    const struct plan_model *m = &p->model;
    const struct plan_sizes *s = &p->sizes;
    cJSON_AddStringToObject(line, "model_type", m->type);
    cJSON_AddStringToObject(line, "rule", plan_rule_name(m));
    cJSON *layers = cJSON_AddArrayToObject(line, "layer_types");
    for (int32_t i = 0; i < m->n_layers; i++)
        cJSON_AddItemToArray(layers, cJSON_CreateString(m->layers[i]));
    cJSON_AddNumberToObject(line, "key_heads", (double)s->Hk);
    cJSON_AddNumberToObject(line, "value_heads", (double)s->Hv);
    cJSON_AddNumberToObject(line, "key_dim", (double)s->K);
    cJSON_AddNumberToObject(line, "value_dim", (double)s->V);
    cJSON_AddNumberToObject(line, "taps", (double)s->W);
    cJSON_AddStringToObject(line, "dtype", dtype_names[s->dtype]);
    cJSON_AddStringToObject(line, "state", dtype_names[s->state_dtype]);
}

static void print_json(const struct plan *p)
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "version", cli_version());
    add_model(line, p);
    cJSON_AddStringToObject(line, "device", p->device_name);
    cJSON_AddStringToObject(line, "isa", p->isa);
    if (!p->chip) cJSON_AddNumberToObject(line, "threads", p->threads);
    cJSON_AddNumberToObject(line, "batch", (double)p->batch);
    cJSON_AddNumberToObject(line, "context", (double)p->context);
    cJSON_AddNumberToObject(line, "tp", (double)p->tp);
    cJSON *list = cJSON_AddArrayToObject(line, "calls");
    for (int i = 0; i < PLAN_N_CALLS; i++) add_call(list, p, i);
    cJSON_AddNumberToObject(line, "memory_gib", p->memory_gib);
    list = cJSON_AddArrayToObject(line, "slots");
    for (int32_t i = 0; i < N_DTYPES; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(list, item);
        cJSON_AddStringToObject(item, "state", dtype_names[i]);
        cJSON_AddNumberToObject(item, "layer_bytes", slot_bytes(p, i));
        cJSON_AddNumberToObject(item, "bytes", slot_bytes(p, i) * p->model.n_linear);
        cJSON_AddNumberToObject(item, "slots", slots_of(p, i));
    }
    list = cJSON_AddArrayToObject(line, "warnings");
    for (int i = 0; i < p->warnings.n; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(p->warnings.text[i]));
    report_print(line);
}

/* ---- The command ----------------------------------------------------------------------------- */

static int plan_json(struct plan *p, const cJSON *json, const char *path)
{
    if (plan_model_read(&p->model, &p->warnings, json, path) || settle_sizes(p)) return CLI_BAD;
    if (p->chip)
        snprintf(p->device_name, sizeof p->device_name, "%s", p->chip->name);
    else
        measure_cpu(p->device_name, sizeof p->device_name);
    if (ask(p)) return CLI_BAD;
    warn(p);
    (p->json ? print_json : print_text)(p);
    return CLI_OK;
}

static int plan_file(struct plan *p, const char *path)
{
    struct memory memory = { NULL, 0, 0 };
    void *text;
    size_t bytes;
    int code = find_chip(p) || whole_file_read(path, &memory, &text, &bytes) ? CLI_BAD : CLI_OK;
    cJSON *json = code ? NULL : cJSON_ParseWithLength(text, bytes);
    if (!code) code = json ? plan_json(p, json, path) : cli_bad("%s: not JSON", path);
    cJSON_Delete(json);
    memory_free(&memory);
    return code;
}

int plan_main(int argc, char **argv)
{
    struct plan p = { .batch = 32, .context = 8192, .tp = 1 };
    const struct cli_option options[] = {
        { "--gpu", CLI_TEXT, &p.gpu, 0, 0 },
        { "--batch", CLI_INT, &p.batch, 1, 1 << 16 },
        { "--context", CLI_INT, &p.context, 1, 1 << 24 },
        { "--tp", CLI_INT, &p.tp, 1, 1024 },
        { "--dtype", CLI_TEXT, &p.dtype, 0, 0 },
        { "--state", CLI_TEXT, &p.state, 0, 0 },
        { "--memory", CLI_REAL, &p.memory_gib, 1e-3, 1e6 },
        { "--threads", CLI_INT, &p.device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &p.device.isa, 0, 0 },
        { "--json", CLI_FLAG, &p.json, 0, 0 },
        { "--help", CLI_FLAG, &p.help, 0, 0 },
        { "-h", CLI_FLAG, &p.help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    const char **names = malloc((size_t)argc * sizeof *names);
    int n, code;
    if (!names) return cli_bad("no memory");
    code = cli_parse(argc, argv, options, names, &n);
    if (!code && p.help)
        fputs(help, stdout);
    else if (!code)
        code = n == 1 ? plan_file(&p, names[0])
                      : cli_bad("plan: %d files, wanted one (gdn plan --help)", n);
    free(names);
    return code;
}
