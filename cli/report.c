/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <math.h>
#include <stdio.h>

#include "cli.h"
#include "internal/internal.h"
#include "measure.h"
#include "table.h"

/* ---- JSON -------------------------------------------------------------------------------- */

/* Returns the name of the device that computes. */
static const char *device_name(const gdn_ctx *ctx, char *text, size_t bytes)
{
    const char *device = gdn_internal_device(ctx);
    return device ? device : measure_cpu(text, bytes);
}

cJSON *report_line(gdn_ctx *ctx)
{
    char cpu[128];
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "version", cli_version());
    cJSON_AddStringToObject(line, "backend", gdn_internal_device(ctx) ? "cuda" : "cpu");
    cJSON_AddStringToObject(line, "device", device_name(ctx, cpu, sizeof cpu));
    cJSON_AddStringToObject(line, "isa", gdn_isa(ctx));
    cJSON_AddNumberToObject(line, "threads", gdn_n_threads(ctx));
    return line;
}

void report_print(cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    printf("%s\n", text);
    cJSON_free(text);
    cJSON_Delete(line);
}

void report_comparison(cJSON *item, const struct comparison *c)
{
    cJSON_AddNumberToObject(item, "max_error", c->max_error);
    cJSON_AddNumberToObject(item, "max_limit", c->max_limit);
    cJSON_AddNumberToObject(item, "rms", c->rms);
    cJSON_AddNumberToObject(item, "relative_error", compare_relative(c->max_error, c->rms));
    cJSON_AddNumberToObject(item, "rms_error", c->rms_error);
    if (isfinite(c->rms_limit))
        cJSON_AddNumberToObject(item, "rms_limit", c->rms_limit);
    else
        cJSON_AddNullToObject(item, "rms_limit");
    cJSON_AddBoolToObject(item, "ok", c->ok);
}

static void add_outputs(cJSON *line, const struct job *job)
{
    bool ok = true, compared = false;
    cJSON *outputs = cJSON_AddArrayToObject(line, "outputs");
    for (int i = 0; i < job->n_outputs; i++) {
        const struct job_output *o = &job->outputs[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", o->name);
        cJSON_AddStringToObject(item, "dtype", st_dtype_name(o->got.dtype));
        cJSON_AddBoolToObject(item, "compared", o->want != NULL);
        if (o->want) report_comparison(item, &o->judged);
        ok = ok && (!o->want || o->judged.ok);
        compared = compared || o->want != NULL;
        cJSON_AddItemToArray(outputs, item);
    }
    cJSON_AddBoolToObject(line, "compared", compared);
    cJSON_AddBoolToObject(line, "ok", ok);
}

void report_json(const struct job *job, gdn_ctx *ctx)
{
    double seconds = 0;
    cJSON *line = report_line(ctx);
    cJSON_AddStringToObject(line, "file", job->file.path);
    cJSON_AddStringToObject(line, "op", job->kind->name);
    cJSON_AddStringToObject(line, "kernel", job->n_phases ? job->phases[0].kernel : "");
    cJSON *phases = cJSON_AddArrayToObject(line, "phases");
    for (int i = 0; i < job->n_phases; i++) {
        const struct job_phase *p = &job->phases[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", p->name);
        cJSON_AddNumberToObject(item, "tokens", (double)p->tokens);
        cJSON_AddNumberToObject(item, "ms", 1e3 * p->seconds);
        cJSON_AddStringToObject(item, "kernel", p->kernel);
        cJSON_AddItemToArray(phases, item);
        seconds += p->seconds;
    }
    cJSON_AddNumberToObject(line, "ms", 1e3 * seconds);
    if (job->prompt[0]) cJSON_AddStringToObject(line, "prompt", job->prompt);
    add_outputs(line, job);
    report_print(line);
}

/* ---- Text -------------------------------------------------------------------------------- */

static void print_output(const struct job_output *o)
{
    char a[24], b[24], c[24], d[24];
    const struct comparison *j = &o->judged;
    if (!o->want) {
        printf("  %-14s no expected.%s in the file: not compared\n", o->name, o->name);
        return;
    }
    printf("  %-14s max error %s (limit %s), %s of RMS", o->name, table_number(a, j->max_error),
           table_number(b, j->max_limit), table_number(c, compare_relative(j->max_error, j->rms)));
    if (isfinite(j->rms_limit))
        printf("; RMS error %s of RMS (limit %s)",
               table_number(a, compare_relative(j->rms_error, j->rms)),
               table_number(d, compare_relative(j->rms_limit, j->rms)));
    printf("   %s\n", j->ok ? "ok" : "FAIL");
}

void report_heading(gdn_ctx *ctx)
{
    char cpu[128];
    const int n = gdn_n_threads(ctx);
    printf("gdn %s, %s, %s, %d thread%s\n", cli_version(), device_name(ctx, cpu, sizeof cpu),
           gdn_isa(ctx), n, n == 1 ? "" : "s");
}

void report_text(const struct job *job, gdn_ctx *ctx)
{
    char a[24], b[24];
    printf("%s: %s, %s, %d thread%s\n", job->file.path, job->kind->name, gdn_isa(ctx),
           (int)gdn_n_threads(ctx), gdn_n_threads(ctx) == 1 ? "" : "s");
    if (job->prompt[0]) printf("  %-14s \"%s\"\n", "prompt", job->prompt);
    for (int i = 0; i < job->n_phases; i++) {
        const struct job_phase *p = &job->phases[i];
        printf("  %-14s %lld tokens in %s ms, %s tokens/s   [%s]\n", p->name, (long long)p->tokens,
               table_number(a, 1e3 * p->seconds), table_number(b, (double)p->tokens / p->seconds),
               p->kernel);
    }
    for (int i = 0; i < job->n_outputs; i++) print_output(&job->outputs[i]);
}

/* ---- A file ------------------------------------------------------------------------------ */

int report_write(const struct job *job, const char *path)
{
    struct st_tensor tensors[JOB_OUTPUTS];
    char producer[32];
    cJSON *metadata = cJSON_CreateObject();
    snprintf(producer, sizeof producer, "gdn %s", cli_version());
    cJSON_AddStringToObject(metadata, "op", job->kind->name);
    cJSON_AddStringToObject(metadata, "producer", producer);
    for (int i = 0; i < job->n_outputs; i++)
        tensors[i] =
            (struct st_tensor){ .name = job->outputs[i].name, .view = job->outputs[i].got };
    const int code = st_write(path, tensors, job->n_outputs, metadata);
    cJSON_Delete(metadata);
    return code;
}
