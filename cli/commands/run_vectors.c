/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "program/os.h"
#include "commands/run.h"
#include "report.h"
#include "table.h"

static const char suffix[] = ".safetensors";

/* The names of a folder's vectors. */
struct names {
    struct memory memory;
    const char *name[1024];
    int n;
};

static void add_vector(void *user, const char *name)
{
    struct names *names = user;
    const size_t n = strlen(name), end = sizeof suffix - 1;
    if (n <= end || strcmp(name + n - end, suffix)) return;
    char *own = names->n < 1024 ? memory_get(&names->memory, n + 1) : NULL;
    if (!own) cli_no_memory();
    names->name[names->n++] = memcpy(own, name, n + 1);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The table that a file belongs to. */
enum group { LAYERS, RULES, GRADIENTS, N_GROUPS };

static bool begins(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

static enum group group_of(const char *name)
{
    return begins(name, "layer_") ? LAYERS : begins(name, "backward_") ? GRADIENTS : RULES;
}

/* Adds the largest error of an output, its share of the RMS, and its limit. */
static void add_comparison(struct table *t, const struct job_output *o)
{
    char a[24], b[24], c[24];
    if (!o->want) {
        for (int i = 0; i < 3; i++) table_cell(t, "-");
        return;
    }
    table_cell(t, "%s", table_number(a, o->judged.max_error));
    table_cell(t, "%s", table_number(b, compare_relative(o->judged.max_error, o->judged.rms)));
    table_cell(t, "%s", table_number(c, o->judged.max_limit));
}

static void add_name(struct table *t, const char *name)
{
    table_cell(t, "%.*s", (int)(strlen(name) - (sizeof suffix - 1)), name);
}

static void add_layer(struct table *t, const char *name, const struct job *job, int code)
{
    char a[24];
    add_name(t, name);
    for (int i = 0; i < 2; i++) {
        const struct job_phase *p = &job->phases[i];
        const bool is = i < job->n_phases;
        table_cell(t, "%lld", is ? (long long)p->tokens : 0);
        table_cell(t, "%s", is ? table_number(a, 1e3 * p->seconds) : "-");
        table_cell(t, "%s", is ? table_number(a, (double)p->tokens / p->seconds) : "-");
    }
    add_comparison(t, &job->outputs[0]);
    table_cell(t, "%s", code ? "FAIL" : "ok");
}

static void add_rule(struct table *t, const char *name, const struct job *job, int code)
{
    char a[24];
    add_name(t, name);
    table_cell(t, "%lld", (long long)job->phases[0].tokens);
    table_cell(t, "%s", table_number(a, 1e3 * job->phases[0].seconds));
    add_comparison(t, &job->outputs[0]);
    add_comparison(t, &job->outputs[1]);
    table_cell(t, "%s", code ? "FAIL" : "ok");
    table_cell(t, "%s", job->phases[0].kernel);
}

/* Returns the nearest to its limit. */
static const struct job_output *worst_output(const struct job *job)
{
    const struct job_output *worst = &job->outputs[0];
    double most = -1;
    for (int i = 0; i < job->n_outputs; i++) {
        const struct job_output *o = &job->outputs[i];
        const double share = fmax(o->judged.max_error / o->judged.max_limit,
                                  o->judged.rms_error / o->judged.rms_limit);
        if (o->want && share > most) most = share, worst = o;
    }
    return worst;
}

static void add_gradients(struct table *t, const char *name, const struct job *job, int code)
{
    char a[24];
    const struct job_output *worst = worst_output(job);
    add_name(t, name);
    table_cell(t, "%lld", (long long)job->phases[0].tokens);
    for (int i = 0; i < 2; i++) table_cell(t, "%s", table_number(a, 1e3 * job->phases[i].seconds));
    table_cell(t, "%s", worst->name);
    add_comparison(t, worst);
    table_cell(t, "%s", code ? "FAIL" : "ok");
    table_cell(t, "%s", job->phases[1].kernel);
}

static const char *const layer_titles[] = {
    "<layer", "prefill tokens", "ms", "tokens/s", "decode tokens", "ms", "tokens/s", "max error",
    "of RMS", "limit",          "<",  NULL
};
static const char *const rule_titles[] = { "<op",    "tokens", "ms",          "output error",
                                           "of RMS", "limit",  "state error", "of RMS",
                                           "limit",  "<",      "<kernel",     NULL };
static const char *const gradient_titles[] = { "<op",    "tokens",  "forward ms", "backward ms",
                                               "<worst", "error",   "of RMS",     "limit",
                                               "<",      "<kernel", NULL };
static const struct {
    const char *heading; /* with the folder */
    const char *const *titles;
    void (*add)(struct table *t, const char *name, const struct job *job, int code);
} groups[N_GROUPS] = {
    { "Whole layers, prefill then token by token, beside Hugging Face", layer_titles, add_layer },
    { "The rule, beside float64", rule_titles, add_rule },
    { "Gradients, beside float64", gradient_titles, add_gradients },
};

/* Runs one group of files as a table. */
static int run_group(gdn_ctx *ctx, const char *folder, const struct names *names, enum group group,
                     bool json)
{
    struct table t;
    char path[4096], prompt[80] = "";
    int worst = CLI_OK;
    table_start(&t, groups[group].titles);
    for (int i = 0; i < names->n; i++) {
        const char *name = names->name[i];
        if (group_of(name) != group) continue;
        struct job job;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!json) progress(name, (double)i / names->n);
        const int code = job_run(&job, ctx, path);
        if (code > worst) worst = code;
        if (code != CLI_BAD && json)
            report_json(&job, ctx);
        else if (code != CLI_BAD)
            groups[group].add(&t, name, &job, code);
        if (code != CLI_BAD && job.prompt[0]) snprintf(prompt, sizeof prompt, "%s", job.prompt);
        job_close(&job);
    }
    progress_done();
    if (json) return worst;
    if (prompt[0]) printf("  prompt \"%s\"\n", prompt);
    table_print(&t);
    return worst;
}

static int run_names(gdn_ctx *ctx, const char *folder, const struct names *names, bool json)
{
    int members[N_GROUPS] = { 0 };
    for (int i = 0; i < names->n; i++) members[group_of(names->name[i])]++;
    int code = names->n ? CLI_OK : cli_bad("%s: no *.safetensors in it", folder);
    if (names->n && !json) report_heading(ctx);
    for (enum group g = 0; g < N_GROUPS && code != CLI_BAD; g++) {
        if (!members[g]) continue;
        if (!json) printf("\n%s (%s)\n", groups[g].heading, folder);
        const int found = run_group(ctx, folder, names, g, json);
        if (found > code) code = found;
    }
    return code;
}

int run_vectors(gdn_ctx *ctx, const char *folder, bool json)
{
    struct names names = { .n = 0 };
    const int error = os_list(folder, add_vector, &names);
    if (error)
        return cli_bad("%s: %s (--vectors DIR names another folder)", folder, strerror(error));
    qsort(names.name, (size_t)names.n, sizeof *names.name, by_text);
    const int code = run_names(ctx, folder, &names, json);
    memory_free(&names.memory);
    return code;
}
