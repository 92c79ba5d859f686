/* SPDX-License-Identifier: Apache-2.0 */
#include "program/command_line.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_bad(const char *format, ...)
{
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?'; /* names come from files */
    fprintf(stderr, "gdn: %s\n", line);
    return CLI_BAD;
}

int cli_failed(gdn_ctx *ctx, gdn_status status)
{
    return cli_bad("%s: %s", gdn_status_name(status), gdn_last_error(ctx));
}

void cli_no_memory(void)
{
    cli_bad("no memory");
    exit(CLI_BAD);
}

int cli_flush(void)
{
    errno = 0;
    if (fflush(stdout)) return cli_bad("standard output: %s", strerror(errno));
    return ferror(stdout) ? cli_bad("standard output: not all could be written") : CLI_OK;
}

static void *get_memory(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) cli_no_memory();
    return memory;
}

void cli_json_start(void) { cJSON_InitHooks(&(cJSON_Hooks){ get_memory, free }); }

bool cli_integer(const char *text, int64_t min, int64_t max, int64_t *value)
{
    char *end;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || n < min || n > max) return false;
    *value = n;
    return true;
}

bool cli_real(const char *text, double *value)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x)) return false;
    *value = x;
    return true;
}

static int store(const struct cli_option *o, const char *value)
{
    int64_t n;
    double x;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)o->to = true; return CLI_OK;
    case CLI_TEXT: *(const char **)o->to = value; return CLI_OK;
    case CLI_INT:
        if (!cli_integer(value, (int64_t)o->min, (int64_t)o->max, &n))
            return cli_bad("%s: '%s', wanted a whole number from %.0f to %.0f", o->name, value,
                           o->min, o->max);
        *(int64_t *)o->to = n;
        return CLI_OK;
    case CLI_REAL:
        if (!cli_real(value, &x) || x < o->min || x > o->max)
            return cli_bad("%s: '%s', wanted a number from %g to %g", o->name, value, o->min,
                           o->max);
        *(double *)o->to = x;
        return CLI_OK;
    }
    return CLI_OK;
}

static const struct cli_option *find(const struct cli_option *options, const char *arg, size_t n)
{
    for (; options->name; options++)
        if (strlen(options->name) == n && !memcmp(options->name, arg, n)) return options;
    return NULL;
}

int cli_parse(int argc, char **argv, const struct cli_option *options, const char **others,
              int *n_others)
{
    bool ended = false; /* by "--": what follows is no option */
    if (n_others) *n_others = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!ended && !strcmp(arg, "--")) {
            ended = true;
            continue;
        }
        if (ended || arg[0] != '-' || !arg[1]) {
            if (!others) return cli_bad("%s: unexpected argument '%s'", argv[0], arg);
            others[(*n_others)++] = arg;
            continue;
        }
        const char *equals = strchr(arg, '=');
        const size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
        const struct cli_option *o = find(options, arg, length);
        if (!o)
            return cli_bad("%s: unknown option '%s' (gdn %s --help lists them)", argv[0], arg,
                           argv[0]);
        if (o->kind == CLI_FLAG && equals) return cli_bad("%s: takes no value", o->name);
        const char *value = equals ? equals + 1 : NULL;
        if (o->kind != CLI_FLAG && !value) {
            if (i + 1 == argc) return cli_bad("%s: wanted a value after it", o->name);
            value = argv[++i];
        }
        if (store(o, value)) return CLI_BAD;
    }
    return CLI_OK;
}

static void log_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "gdn: %s\n", line);
}

int cli_open(const struct cli_device *device, gdn_ctx **ctx)
{
    return cli_open_with(device, gdn_options_init(), ctx);
}

int cli_open_with(const struct cli_device *device, gdn_options options, gdn_ctx **ctx)
{
    char error[512] = "";
    const char *log = getenv("GDN_LOG");
    const char *backend = device->backend ? device->backend : "cpu";
    *ctx = NULL;
    if (!strcmp(backend, "cuda"))
        options.backend = GDN_BACKEND_CUDA;
    else if (strcmp(backend, "cpu"))
        return cli_bad("--backend: '%s', wanted cpu or cuda", backend);
    options.n_threads = (int32_t)device->threads;
    options.isa = device->isa;
    options.error_text = error;
    options.error_text_bytes = sizeof error;
    if (log && *log && strcmp(log, "0")) options.log = log_line;
    const gdn_status status = gdn_ctx_create(&options, ctx);
    return status ? cli_bad("%s: %s", gdn_status_name(status), error) : CLI_OK;
}
