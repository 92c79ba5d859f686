/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/bench_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_op_names[N_BENCH_OPS] = { "prefill",       "decode", "conv",
                                                  "block",         "gates",  "l2norm",
                                                  "rmsnorm",       "step",   "prefill_backward",
                                                  "layer_backward" };

/* Reads "A" or "AxB" with a separator x. *b stays if there is no B. */
static bool parse_pair(const char *text, char separator, int64_t max, int64_t *a, int64_t *b)
{
    char first[24];
    const char *cut = strchr(text, separator);
    const size_t n = cut ? (size_t)(cut - text) : strlen(text);
    if (n >= sizeof first) return false;
    memcpy(first, text, n);
    first[n] = 0;
    return cli_integer(first, 1, max, a) && (!cut || cli_integer(cut + 1, 1, max, b));
}

static bool append_lengths(struct bench_options *o, int64_t length, int64_t count)
{
    int64_t *more = count > (1 << 20) - o->B
                        ? NULL
                        : realloc(o->lengths, (size_t)(o->B + count) * sizeof *more);
    if (!more) return false;
    o->lengths = more;
    for (int64_t i = 0; i < count; i++) more[o->B++] = length;
    return true;
}

static int parse_lengths(struct bench_options *o)
{
    char item[64];
    if (o->batch) {
        if (append_lengths(o, o->tokens ? o->tokens : 1, o->batch)) return CLI_OK;
        return cli_bad("--batch: no memory for %lld sequences", (long long)o->batch);
    }
    for (const char *text = o->seqlens; text;) {
        const size_t n = strcspn(text, ",");
        int64_t length = 0, count = 1;
        bool good = n < sizeof item;
        if (good) {
            memcpy(item, text, n);
            item[n] = 0;
            good = parse_pair(item, 'x', 1 << 24, &length, &count);
        }
        if (length == 1) { /* 1xLENGTH */
            length = count;
            count = 1;
        }
        if (!good || !append_lengths(o, length, count))
            return cli_bad("--seqlens: '%s', wanted LENGTH, LENGTHxCOUNT or 1xLENGTH, separated "
                           "by commas",
                           o->seqlens);
        text = text[n] ? text + n + 1 : NULL;
    }
    return CLI_OK;
}

/* Parses one of the first n names, which are in the order of gdn_dtype. */
static int parse_dtype(const char *option, const char *text, int n, int32_t *dtype)
{
    static const char *const names[] = { "f32", "bf16", "f16", "i8", "e4m3", "e5m2" };
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(text, names[i])) {
            *dtype = i;
            return CLI_OK;
        }
    return cli_bad("%s: '%s', wanted %s", option, text,
                   n > 3 ? "f32, bf16, f16, i8, e4m3 or e5m2" : "f32, bf16 or f16");
}

bool bench_is_backward(const struct bench_options *o)
{
    return o->op == BACKWARD || o->op == LAYER_BACKWARD;
}

bool bench_has_gates(const struct bench_options *o)
{
    return o->op == PREFILL || o->op == DECODE || o->op == BLOCK || o->op == STEP ||
           bench_is_backward(o);
}

bool bench_has_layer(const struct bench_options *o)
{
    return o->op == BLOCK || o->op == LAYER_BACKWARD;
}

bool bench_has_rule(const struct bench_options *o)
{
    return o->op == PREFILL || o->op == DECODE || o->op == STEP || o->op == BACKWARD;
}

/* Finds a name among n. Absent, *value stays. */
static int parse_name(const char *option, const char *text, const char *const *names, int n,
                      int *value)
{
    char wanted[160] = "";
    for (int i = 0; i < n && text; i++)
        if (!strcmp(text, names[i])) {
            *value = i;
            return CLI_OK;
        }
    if (!text) return CLI_OK;
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s%s",
                 !i          ? ""
                 : i < n - 1 ? ", "
                             : " or ",
                 names[i]);
    }
    return cli_bad("%s: '%s', wanted %s", option, text, wanted);
}

/* Parses the kinds to run, from *first to *last. */
static int parse_gates(const struct bench_options *o, int *first, int *last)
{
    *first = *last = CASE_GATES_RECIPE;
    if (!o->gates) return CLI_OK;
    if (!bench_has_gates(o)) return cli_bad("--gates: not for %s", bench_op_names[o->op]);
    if (!strcmp(o->gates, "all")) {
        *last = CASE_GATES_STRONG;
        return CLI_OK;
    }
    if (parse_name("--gates", o->gates, case_gates_names, CASE_GATES_KINDS, first)) return CLI_BAD;
    *last = *first;
    return CLI_OK;
}

static int parse_call(struct bench_options *o)
{
    if (o->call && o->op != DECODE) return cli_bad("--call: not for %s", bench_op_names[o->op]);
    return parse_name("--call", o->call, case_call_names, CASE_CALL_KINDS, &o->dims.call);
}

static int parse_rule(struct bench_options *o)
{
    if (o->rule && !bench_has_rule(o)) return cli_bad("--rule: not for %s", bench_op_names[o->op]);
    if (parse_name("--rule", o->rule, case_rule_names, CASE_RULES, &o->dims.rule)) return CLI_BAD;
    const bool product = o->dims.rule == CASE_RULE_PRODUCT;
    if (o->dims.updates && !product) return cli_bad("--updates: for --rule product alone");
    if (o->dims.rule && o->dims.exact && strcmp(o->state, "f32"))
        return cli_bad("--exact: of --rule %s for states of f32 alone", o->rule);
    return CLI_OK;
}

/* The layer of a model has its rule. */
static int parse_layer(struct bench_options *o)
{
    struct case_dims *d = &o->dims;
    if (o->model && !bench_has_layer(o))
        return cli_bad("--layer: not for %s", bench_op_names[o->op]);
    if (parse_name("--layer", o->model, case_layer_names, CASE_LAYERS, &d->layer)) return CLI_BAD;
    if (bench_has_layer(o)) d->rule = case_layer_rule(d->layer);
    return CLI_OK;
}

static int parse_dims(struct bench_options *o)
{
    struct case_dims *d = &o->dims;
    if (!parse_pair(o->heads, '/', 1024, &d->Hq, &d->Hv) || !d->Hv)
        return cli_bad("--heads: '%s', wanted two numbers from 1 to 1024, Q/V", o->heads);
    const bool layer = o->op == STEP || bench_has_layer(o);
    /* a layer has no more key heads than value heads */
    if ((d->Hq > d->Hv ? d->Hq % d->Hv : d->Hv % d->Hq) || (layer && d->Hq > d->Hv))
        return cli_bad("--heads: '%s', wanted %s", o->heads,
                       layer ? "the second a multiple of the first"
                             : "one a multiple of the other");
    if (!parse_pair(o->dim, '/', 1024, &d->K, &d->V) || d->K > 256)
        return cli_bad("--dim: '%s', wanted K from 1 to 256, or K/V, V to 1024", o->dim);
    if (!d->V) d->V = d->K;
    if (strcmp(o->layout, "k_last") && strcmp(o->layout, "k_first"))
        return cli_bad("--layout: '%s', wanted k_last or k_first", o->layout);
    d->state_layout = strcmp(o->layout, "k_first") ? GDN_STATE_VK : GDN_STATE_KV;
    d->W = 4;
    d->D = o->channels;
    d->hidden = o->hidden;
    const bool rule = o->op == PREFILL || o->op == DECODE;
    return parse_dtype("--dtype", o->dtype, 3, &d->dtype) ||
           parse_dtype("--state", o->state, rule ? 6 : 3, &d->state_dtype);
}

int bench_settle(struct bench_options *o, int *first, int *last)
{
    if (parse_gates(o, first, last)) return CLI_BAD;
    if ((o->op == PREFILL || bench_is_backward(o)) && (o->batch || o->tokens))
        return cli_bad("--batch, --tokens: not for %s (--seqlens)", bench_op_names[o->op]);
    const bool rule = o->op == PREFILL || o->op == DECODE;
    if (o->dims.exact && !rule && o->op != BLOCK && o->op != STEP)
        return cli_bad("--exact: not for %s", bench_op_names[o->op]);
    if ((o->dims.raw || o->dims.pooled) && !rule)
        return cli_bad("--raw, --pool: not for %s", bench_op_names[o->op]);
    if (o->dims.each && o->op != DECODE)
        return cli_bad("--each: not for %s", bench_op_names[o->op]);
    if (o->record && (o->op != DECODE || o->dims.each))
        return cli_bad("--record: for decode alone, without --each");
    if (o->dims.bf16_products && ((o->op != PREFILL && o->op != BLOCK) || strcmp(o->dtype, "bf16")))
        return cli_bad("--bf16-products: for prefill and block of bf16 alone");
    if (o->dims.bf16_products && o->dims.exact) return cli_bad("--bf16-products: not with --exact");
    if (o->dims.batch_invariant && o->op != PREFILL && o->op != BLOCK)
        return cli_bad("--batch-invariant: not for %s", bench_op_names[o->op]);
    if (o->dims.split && o->op != PREFILL && !o->record)
        return cli_bad("--split: for prefill, and for decode with --record");
    if (o->dims.no_early_stop && o->op != PREFILL && o->op != BLOCK)
        return cli_bad("--no-early-stop: not for %s", bench_op_names[o->op]);
    if (o->dims.gated && o->op != STEP)
        return cli_bad("--gated: not for %s", bench_op_names[o->op]);
    if ((o->save_every || o->window_mib) && o->op != BACKWARD)
        return cli_bad("--save-every, --window-mib: not for %s", bench_op_names[o->op]);
    if ((o->op == DECODE || o->op == STEP) && o->seqlens)
        return cli_bad("--seqlens: not for %s (--batch, --tokens)", bench_op_names[o->op]);
    if (o->seqlens && (o->batch || o->tokens))
        return cli_bad("--seqlens and --batch or --tokens: wanted one of them");
    if ((o->op == DECODE || o->op == STEP || o->tokens) && !o->batch) o->batch = 32;
    if (!o->seqlens) o->seqlens = bench_has_layer(o) ? "512" : "2048";
    return parse_call(o) || parse_rule(o) || parse_layer(o) || parse_dims(o) || parse_lengths(o);
}
