/* SPDX-License-Identifier: Apache-2.0 */
/* gdn bench: ops timed through gdn.h, beside the machine's measured limits. */
#include "commands/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "device.h"
#include "internal.h"
#include "report.h"
#include "table.h"

static const char *const help[] = {
    "gdn bench prefill|decode|conv|block|gates|l2norm|rmsnorm|step|prefill_backward|\n"
    "          layer_backward [options]\n"
    "\n"
    "First a part of the result is compared with float64 (exit 1, and no times, if it is\n"
    "outside the limits of gdn run); then rounds of the op and of a yardstick follow each other,\n"
    "and the median is shown with its median absolute deviation (mad). The yardstick's best\n"
    "round is the limit.\n"
    "\n"
    "  --heads Q/V      heads of q and of v; k has the fewer (default 16/32). block: key/value\n"
    "  --dim K[/V]      head size (default 128)\n"
    "  --seqlens LIST   lengths of the sequences: LENGTH or LENGTHxCOUNT, comma-separated;\n"
    "                   1xLENGTH is one sequence (default 2048; block 512; not for decode, step)\n"
    "  --batch N        N sequences of --tokens each: decode, step (default 32), conv, block\n"
    "  --tokens N       tokens of each of those (default 1)\n"
    "  --dtype D        f32 (default), bf16, f16: activations, and the weights of block\n"
    "  --state D        f32 (default), bf16, f16; prefill and decode also i8, e4m3,\n"
    "                   e5m2: states\n"
    "  --layout L       k_last (default), k_first: of the rule's state\n"
    "  --exact          prefill, decode, block: with GDN_EXACT\n"
    "  --bf16-products  prefill, block of bf16: with GDN_BF16_PRODUCTS\n"
    "  --batch-invariant  prefill, block: with GDN_BATCH_INVARIANT\n"
    "  --no-early-stop  prefill, block: with GDN_NO_EARLY_STOP\n"
    "  --raw            prefill, decode: raw gates and the norms of q and k inside the call\n"
    "  --kda            prefill, decode: KDA, a gate per key channel: the kinds of gates are then\n"
    "                   those of channels, not of heads\n"
    "  --gates KIND     prefill, decode, block, step: recipe (default), none, model, strong, or\n"
    "                   all: a result for each. none: log gates 0. recipe: logsigmoid(x) / 16, x\n"
    "                   normal, and 0 in every fourth head. model: -A softplus(a + dt_bias), A\n"
    "                   uniform from 0.02 to 16, softplus(dt_bias) log-uniform from 0.001 to 0.1,\n"
    "                   a normal. strong: -2. With --raw, and in block and step, they are raw;\n"
    "                   the recipe's A_log then are uniform from 0 to 2.7, dt_bias from -7 to -2\n"
    "  --pool           prefill, decode: states in every other slot of a pool\n"
    "  --each           decode: the state after every token, in a slot of its own\n"
    "  --call KIND      decode: plain (default), packed (by cu_seqlens), counts (token_count),\n"
    "                   interleaved (heads), slots64 (int64 slots, with --pool or --each)\n"
    "  --gated          step: the gated norm too\n"
    "  --save-every N   prefill_backward: with states that prefill saves after each N tokens\n"
    "  --channels N     conv (default 8192); 4 taps, SiLU\n"
    "  --hidden N       block, layer_backward (default 2048)\n",

    "  --threads N --isa NAME --backend cpu|cuda    as for gdn run\n"
    "  --seconds S      about how long (default 2)\n"
    "  --json           one JSON line\n"
    "\n"
    "GFLOP/s counts 6 K V per token and state head, 2 W per channel and token of a convolution,\n"
    "2 per weight and token of a projection; it is not given for gates and norms. GB/s counts\n"
    "every tensor once, states twice. The share is that of the measured float32 multiply-add rate\n"
    "for prefill, block and the two of gradients, that of the measured in-place bandwidth on the\n"
    "same footprint (the states of decode, all tensors of conv, at most 256 MiB) for the others,\n"
    "with the same instruction set and threads.\n"
    "For prefill_backward, which counts 16 K V with what is computed again, prefill is timed too;\n"
    "for layer_backward, which counts projections of the input thrice, block is.\n"
    "For step, its convolution and its rule are also timed as calls of their own.\n"
    "For block, its rule and its convolution are also timed apart; what is left of its time is\n"
    "given as that of its projections.\n"
    "On a device times are those of the kernels, by events, with 256 MB written before each call;\n"
    "the limits are scaling in place and a bf16 matrix product (cuBLAS).\n",
};

enum bench_op {
    PREFILL,
    DECODE,
    CONV,
    BLOCK,
    GATES,
    L2NORM,
    RMSNORM,
    STEP,
    BACKWARD,
    LAYER_BACKWARD,
    N_BENCH_OPS
};
static const char *const op_names[] = { "prefill",       "decode", "conv",
                                        "block",         "gates",  "l2norm",
                                        "rmsnorm",       "step",   "prefill_backward",
                                        "layer_backward" };

struct bench_options {
    struct cli_device device;
    enum bench_op op;
    const char *heads, *dim, *seqlens, *dtype, *state, *layout, *gates, *call;
    int64_t batch, tokens, channels, hidden, save_every;
    double seconds;
    bool json, help;
    struct case_dims dims;
    int64_t *lengths; /* [B] */
    int64_t B;
};

/* ---- Options ----------------------------------------------------------------------------- */

/* "A" or "AxB" with a separator x; *b stays where it is missing. */
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

static bool is_backward(const struct bench_options *o)
{
    return o->op == BACKWARD || o->op == LAYER_BACKWARD;
}

static bool has_gates(const struct bench_options *o)
{
    return o->op == PREFILL || o->op == DECODE || o->op == BLOCK || o->op == STEP || is_backward(o);
}

/* Parses the kinds to run, from *first to *last. */
static int parse_gates(const struct bench_options *o, int *first, int *last)
{
    *first = *last = CASE_GATES_RECIPE;
    if (!o->gates) return CLI_OK;
    if (!has_gates(o)) return cli_bad("--gates: not for %s", op_names[o->op]);
    if (!strcmp(o->gates, "all")) {
        *last = CASE_GATES_KINDS - 1;
        return CLI_OK;
    }
    for (int i = 0; i < CASE_GATES_KINDS; i++)
        if (!strcmp(o->gates, case_gates_names[i])) {
            *first = *last = i;
            return CLI_OK;
        }
    return cli_bad("--gates: '%s', wanted none, recipe, model, strong or all", o->gates);
}

static int parse_call(struct bench_options *o)
{
    if (!o->call) return CLI_OK;
    if (o->op != DECODE) return cli_bad("--call: not for %s", op_names[o->op]);
    for (int i = 0; i < CASE_CALL_KINDS; i++)
        if (!strcmp(o->call, case_call_names[i])) {
            o->dims.call = i;
            return CLI_OK;
        }
    return cli_bad("--call: '%s', wanted plain, packed, counts, interleaved or slots64", o->call);
}

static int parse_dims(struct bench_options *o)
{
    struct case_dims *d = &o->dims;
    if (!parse_pair(o->heads, '/', 1024, &d->Hq, &d->Hv) || !d->Hv)
        return cli_bad("--heads: '%s', wanted two numbers from 1 to 1024, Q/V", o->heads);
    const bool layer = o->op == BLOCK || o->op == STEP || o->op == LAYER_BACKWARD;
    /* which has fewer heads of keys */
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

/* Refuses what would be ignored, then fills the defaults that depend on the op. */
static int settle(struct bench_options *o)
{
    if ((o->op == PREFILL || is_backward(o)) && (o->batch || o->tokens))
        return cli_bad("--batch, --tokens: not for %s (--seqlens)", op_names[o->op]);
    const bool rule = o->op == PREFILL || o->op == DECODE;
    if (o->dims.exact && !rule && o->op != BLOCK && o->op != STEP)
        return cli_bad("--exact: not for %s", op_names[o->op]);
    if ((o->dims.raw || o->dims.pooled || o->dims.kda) && !rule)
        return cli_bad("--raw, --pool, --kda: not for %s", op_names[o->op]);
    if (o->dims.each && o->op != DECODE) return cli_bad("--each: not for %s", op_names[o->op]);
    if (o->dims.bf16_products && ((o->op != PREFILL && o->op != BLOCK) || strcmp(o->dtype, "bf16")))
        return cli_bad("--bf16-products: for prefill and block of bf16 alone");
    if (o->dims.bf16_products && o->dims.exact) return cli_bad("--bf16-products: not with --exact");
    if (o->dims.batch_invariant && o->op != PREFILL && o->op != BLOCK)
        return cli_bad("--batch-invariant: not for %s", op_names[o->op]);
    if (o->dims.no_early_stop && o->op != PREFILL && o->op != BLOCK)
        return cli_bad("--no-early-stop: not for %s", op_names[o->op]);
    if (o->dims.gated && o->op != STEP) return cli_bad("--gated: not for %s", op_names[o->op]);
    if (o->save_every && o->op != BACKWARD)
        return cli_bad("--save-every: not for %s", op_names[o->op]);
    if ((o->op == DECODE || o->op == STEP) && o->seqlens)
        return cli_bad("--seqlens: not for %s (--batch, --tokens)", op_names[o->op]);
    if (o->seqlens && (o->batch || o->tokens))
        return cli_bad("--seqlens and --batch or --tokens: wanted one of them");
    if ((o->op == DECODE || o->op == STEP || o->tokens) && !o->batch) o->batch = 32;
    if (!o->seqlens) o->seqlens = o->op == BLOCK || o->op == LAYER_BACKWARD ? "512" : "2048";
    return parse_call(o) || parse_dims(o) || parse_lengths(o);
}

/* ---- Output ------------------------------------------------------------------------------ */

static double per_second(double amount, const struct bench *b)
{
    return 1e-9 * amount / (1e-3 * b->calls[0].ms.median);
}

/* Time, rate and share of a block's projections: what its rule and convolution leave. */
struct projections {
    double part, gflops, share;
};

static struct projections projections_of(const struct bench *b, double flops)
{
    const double ms = b->calls[0].ms.median;
    const double left = fmax(ms - b->calls[1].ms.median - b->calls[2].ms.median, 1e-3 * ms);
    const double rate = flops / (1e-3 * left);
    return (struct projections){ left / ms, 1e-9 * rate, rate / b->peak };
}

static void add_case(cJSON *line, const struct bench_options *o)
{
    char heads[48];
    snprintf(heads, sizeof heads, "%lld/%lld", (long long)o->dims.Hq, (long long)o->dims.Hv);
    if (o->op == CONV)
        cJSON_AddNumberToObject(line, "channels", (double)o->dims.D);
    else {
        cJSON_AddStringToObject(line, "heads", heads);
        cJSON_AddNumberToObject(line, "dim", (double)o->dims.K);
        cJSON_AddNumberToObject(line, "value_dim", (double)o->dims.V);
        cJSON_AddStringToObject(line, "layout", o->layout);
    }
    if (o->op == BLOCK || o->op == LAYER_BACKWARD)
        cJSON_AddNumberToObject(line, "hidden", (double)o->dims.hidden);
    if (o->batch) {
        cJSON_AddNumberToObject(line, "batch", (double)o->batch);
        cJSON_AddNumberToObject(line, "tokens", (double)o->lengths[0]);
    } else {
        cJSON_AddStringToObject(line, "seqlens", o->seqlens);
    }
    cJSON_AddStringToObject(line, "dtype", o->dtype);
    cJSON_AddStringToObject(line, "state", o->state);
    if (has_gates(o)) cJSON_AddStringToObject(line, "gates", case_gates_names[o->dims.gates]);
    if (o->dims.exact) cJSON_AddBoolToObject(line, "exact", true);
    if (o->dims.bf16_products) cJSON_AddBoolToObject(line, "bf16_products", true);
    if (o->dims.batch_invariant) cJSON_AddBoolToObject(line, "batch_invariant", true);
    if (o->dims.no_early_stop) cJSON_AddBoolToObject(line, "no_early_stop", true);
    if (o->dims.raw) cJSON_AddBoolToObject(line, "raw", true);
    if (o->dims.kda) cJSON_AddBoolToObject(line, "kda", true);
    if (o->dims.pooled) cJSON_AddBoolToObject(line, "pool", true);
    if (o->dims.each) cJSON_AddBoolToObject(line, "each", true);
    if (o->dims.gated) cJSON_AddBoolToObject(line, "gated", true);
    if (o->save_every) cJSON_AddNumberToObject(line, "save_every", (double)o->save_every);
    if (o->dims.call) cJSON_AddStringToObject(line, "call", case_call_names[o->dims.call]);
}

static void print_json(const struct bench_options *o, const struct bench *b,
                       const struct projections *p)
{
    cJSON *line = report_line(b->ctx);
    cJSON_AddStringToObject(line, "op", op_names[o->op]);
    cJSON_AddStringToObject(line, "kernel", b->kernel);
    add_case(line, o);
    cJSON_AddNumberToObject(line, "ms", b->calls[0].ms.median);
    cJSON_AddNumberToObject(line, "ms_mad", b->calls[0].ms.mad);
    cJSON_AddNumberToObject(line, "rounds", b->n_rounds);
    if (b->flops > 0)
        cJSON_AddNumberToObject(line, "gflops", per_second(b->flops, b));
    else
        cJSON_AddNullToObject(line, "gflops"); /* nothing is counted */
    cJSON_AddNumberToObject(line, "gbs", per_second(b->bytes, b));
    cJSON_AddStringToObject(line, "bound", b->by_memory ? "memory" : "flops");
    cJSON_AddNumberToObject(line, b->by_memory ? "peak_gbs" : "peak_gflops", 1e-9 * b->peak);
    cJSON_AddNumberToObject(line, "share", bench_share(b));
    if (b->ctx->cuda) {
        cJSON_AddNumberToObject(line, "copy_gbs", 1e-9 * b->copy);
        cJSON_AddNumberToObject(line, "product_tflops", 1e-12 * b->product);
    }
    cJSON_AddNumberToObject(line, "error", compare_relative(b->judged.max_error, b->judged.rms));
    cJSON_AddNumberToObject(line, "rms_error",
                            compare_relative(b->judged.rms_error, b->judged.rms));
    if (o->op == STEP) {
        cJSON_AddNumberToObject(line, "conv_ms", b->calls[1].ms.median);
        cJSON_AddNumberToObject(line, "decode_ms", b->calls[2].ms.median);
    }
    if (is_backward(o)) cJSON_AddNumberToObject(line, "forward_ms", b->calls[1].ms.median);
    if (p) {
        cJSON *item = cJSON_AddObjectToObject(line, "projections");
        cJSON_AddNumberToObject(item, "part", p->part);
        cJSON_AddNumberToObject(item, "gflops", p->gflops);
        cJSON_AddNumberToObject(item, "share", p->share);
    }
    report_print(line);
}

static void print_text(const struct bench_options *o, const struct bench *b,
                       const struct projections *p)
{
    char a[24], c[24], d[24], e[24];
    const struct summary *ms = &b->calls[0].ms;
    report_heading(b->ctx);
    printf("  case      %s, ", op_names[o->op]);
    if (o->op == CONV)
        printf("%lld channels, ", (long long)o->dims.D);
    else
        printf("heads %s, dim %s, %s, ", o->heads, o->dim, o->layout);
    if (o->op == BLOCK || o->op == LAYER_BACKWARD)
        printf("hidden %lld, ", (long long)o->dims.hidden);
    if (o->batch)
        printf("batch %lld, tokens %lld, ", (long long)o->B, (long long)o->lengths[0]);
    else
        printf("sequences %s, ", o->seqlens);
    if (has_gates(o))
        printf("gates %s%s, ", case_gates_names[o->dims.gates], o->dims.kda ? " (KDA)" : "");
    printf("%s, state %s%s%s\n  kernel    %s\n", o->dtype, o->state,
           o->dims.exact           ? ", exact"
           : o->dims.bf16_products ? ", bf16 products"
           : o->dims.each          ? ", each state kept"
           : o->dims.gated         ? ", gated norm"
                                   : "",
           o->dims.batch_invariant ? ", batch invariant"
           : o->dims.no_early_stop ? ", no early stop"
                                   : "",
           b->kernel);
    printf("  time      %s ms, mad %s, %d rounds\n", table_number(a, ms->median),
           table_number(c, ms->mad), b->n_rounds);
    if (b->flops > 0)
        printf("  rate      %s GFLOP/s, %s GB/s\n", table_number(a, per_second(b->flops, b)),
               table_number(c, per_second(b->bytes, b)));
    else
        printf("  rate      %s GB/s\n", table_number(c, per_second(b->bytes, b)));
    printf("  share     %.1f %% of %s %s\n", 100 * bench_share(b), table_number(a, 1e-9 * b->peak),
           b->by_memory   ? "GB/s in place on the same footprint"
           : b->ctx->cuda ? "GFLOP/s bf16 matrix product"
                          : "GFLOP/s float32 multiply-add");
    if (b->ctx->cuda)
        printf("  beside    a copy at %s GB/s, a bf16 matrix product at %s TFLOP/s\n",
               table_number(a, 1e-9 * b->copy), table_number(c, 1e-12 * b->product));
    if (o->op == STEP)
        printf("  apart     convolution %s ms, rule %s ms\n",
               table_number(a, b->calls[1].ms.median), table_number(c, b->calls[2].ms.median));
    if (is_backward(o))
        printf("  forward   %s ms, of which this is %s times\n",
               table_number(a, b->calls[1].ms.median),
               table_number(c, ms->median / b->calls[1].ms.median));
    if (p)
        printf("  inside    rule %s ms, convolution %s ms, the rest %.0f %%: projections at %s "
               "GFLOP/s, %.1f %%\n",
               table_number(a, b->calls[1].ms.median), table_number(d, b->calls[2].ms.median),
               100 * p->part, table_number(e, p->gflops), 100 * p->share);
    printf("  error     %s of RMS (float64, a part of the first call)\n",
           table_number(a, compare_relative(b->judged.max_error, b->judged.rms)));
}

/* Judges what was checked, then times and prints. */
static int time_and_print(const struct bench_options *o, struct bench *b, double projections)
{
    snprintf(b->kernel, sizeof b->kernel, "%s", gdn_last_kernel(b->ctx));
    if (!b->judged.ok) {
        fprintf(stderr, "gdn: bench %s: wrong by %g (RMS %g, limit %g): not timed\n",
                op_names[o->op], b->judged.max_error, b->judged.rms, b->judged.max_limit);
        return CLI_OUTSIDE;
    }
    if ((b->ctx->cuda ? device_rounds : bench_rounds)(b)) return CLI_BAD;
    const bool inside = o->op == BLOCK;
    struct projections p = { 0, 0, 0 };
    if (inside) p = projections_of(b, projections);
    (o->json ? print_json : print_text)(o, b, inside ? &p : NULL);
    return CLI_OK;
}

/* ---- The four ops ------------------------------------------------------------------------ */

static int bench_rule(const struct bench_options *o, struct bench *b)
{
    struct rule_case c;
    const gdn_op op = o->op == DECODE ? GDN_OP_DECODE : GDN_OP_PREFILL;
    struct case_dims d = o->dims;
    d.rows = o->op == DECODE;
    int code = rule_case_make(&c, &d, o->lengths, o->B);
    if (!code) code = rule_case_check(&c, b->ctx, op, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = op, .args = &c.call };
        b->n_calls = 1;
        b->by_memory = o->op == DECODE;
        b->footprint = (size_t)rule_case_state_bytes(&c);
        b->flops = rule_case_flops(&c, b->ctx->cuda && !b->by_memory);
        b->bytes = rule_case_bytes(&c);
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    return code;
}

/* Measures the gradients; prefill beside them. */
static int bench_backward(const struct bench_options *o, struct bench *b)
{
    struct gradient_case c;
    int code = gradient_case_make(&c, &o->dims, o->lengths, o->B);
    if (!code) code = gradient_case_check(&c, b->ctx, &b->judged);
    if (!code) code = gradient_case_save(&c, b->ctx, o->save_every);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = GDN_OP_PREFILL_BACKWARD, .args = &c.args };
        b->calls[1] = (struct bench_call){ .op = GDN_OP_PREFILL, .args = &c.rule.call };
        b->n_calls = 2;
        b->flops = gradient_case_flops(&c);
        b->bytes = gradient_case_bytes(&c);
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.rule.memory);
    return code;
}

/* Measures the gradients of a layer; block beside them. */
static int bench_layer_backward(const struct bench_options *o, struct bench *b)
{
    struct layer_gradient_case c;
    int code = layer_gradient_case_make(&c, &o->dims, o->lengths, o->B);
    if (!code) code = layer_gradient_case_check(&c, b->ctx, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = GDN_OP_BLOCK_BACKWARD, .args = &c.args };
        b->calls[1] = (struct bench_call){ .op = GDN_OP_BLOCK, .args = &c.block.args };
        b->n_calls = 2;
        b->flops = layer_gradient_case_flops(&c);
        b->bytes = layer_gradient_case_bytes(&c);
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.block.memory);
    return code;
}

static int bench_conv(const struct bench_options *o, struct bench *b)
{
    struct conv_case c;
    int code = conv_case_make(&c, &o->dims, o->lengths, o->B);
    if (!code) code = conv_case_check(&c, b->ctx, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = GDN_OP_CONV1D, .args = &c.args };
        b->n_calls = 1;
        b->by_memory = true;
        b->flops = conv_case_flops(&c);
        b->bytes = conv_case_bytes(&c);
        b->footprint = (size_t)(case_bytes(&c.args.x) + case_bytes(&c.args.out) +
                                case_bytes(&c.args.state) + case_bytes(&c.args.weight));
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    return code;
}

/* Measures an op of rows. */
static int bench_rows(const struct bench_options *o, struct bench *b)
{
    static const gdn_op ops[] = { GDN_OP_GATES, GDN_OP_L2NORM, GDN_OP_RMSNORM_GATED };
    struct rows_case c;
    int64_t n = 0;
    for (int64_t i = 0; i < o->B; i++) n += o->lengths[i];
    int code = rows_case_make(&c, &o->dims, ops[o->op - GATES], n);
    if (!code) code = rows_case_check(&c, b->ctx, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = c.op, .args = &c.args };
        b->n_calls = 1;
        b->by_memory = true;
        b->bytes = rows_case_bytes(&c);
        b->footprint = (size_t)b->bytes;
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    return code;
}

/* Measures the layer; its rule and its convolution apart, float32 as they are inside it. */
static int bench_block(const struct bench_options *o, struct bench *b)
{
    struct block_case c;
    struct rule_case rule;
    struct conv_case conv;
    struct case_dims inner = o->dims;
    double projections;
    inner.dtype = GDN_F32;
    inner.D = 2 * inner.Hq * inner.K + inner.Hv * inner.V;
    int code = block_case_make(&c, &o->dims, o->lengths, o->B);
    code = rule_case_make(&rule, &inner, o->lengths, o->B) || code;
    code = conv_case_make(&conv, &inner, o->lengths, o->B) || code;
    code = code ? CLI_BAD : block_case_check(&c, b->ctx, &b->judged);
    if (!code) {
        const gdn_op op = o->batch && o->lengths[0] <= 8 ? GDN_OP_DECODE : GDN_OP_PREFILL;
        b->calls[0] = (struct bench_call){ .op = GDN_OP_BLOCK, .args = &c.args };
        b->calls[1] = (struct bench_call){ .op = op, .args = &rule.call };
        b->calls[2] = (struct bench_call){ .op = GDN_OP_CONV1D, .args = &conv.args };
        b->n_calls = 3;
        b->flops = block_case_flops(&c, &projections);
        b->bytes = block_case_bytes(&c);
        code = time_and_print(o, b, projections);
    }
    memory_free(&c.memory);
    memory_free(&rule.memory);
    memory_free(&conv.memory);
    return code;
}

/* Measures the step; its convolution and its rule apart, as separate calls. */
static int bench_step(const struct bench_options *o, struct bench *b)
{
    struct step_case c;
    struct rule_case rule;
    struct conv_case conv;
    struct case_dims inner = o->dims;
    inner.raw = true;
    inner.rows = true;
    inner.D = 2 * inner.Hq * inner.K + inner.Hv * inner.V;
    int code = step_case_make(&c, &o->dims, o->B, o->lengths[0]);
    code = rule_case_make(&rule, &inner, o->lengths, o->B) || code;
    inner.state_dtype = inner.dtype;
    code = conv_case_make(&conv, &inner, o->lengths, o->B) || code;
    code = code ? CLI_BAD : step_case_check(&c, b->ctx, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = GDN_OP_STEP, .args = &c.args };
        b->calls[1] = (struct bench_call){ .op = GDN_OP_CONV1D, .args = &conv.args };
        b->calls[2] = (struct bench_call){ .op = GDN_OP_DECODE, .args = &rule.call };
        b->n_calls = 3;
        b->by_memory = true;
        b->footprint = (size_t)step_case_state_bytes(&c);
        b->flops = step_case_flops(&c);
        b->bytes = step_case_bytes(&c);
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    memory_free(&rule.memory);
    memory_free(&conv.memory);
    return code;
}

static int run_one(struct bench_options *o)
{
    struct bench b = { .seconds = o->seconds };
    if (cli_open(&o->device, &b.ctx)) return CLI_BAD;
    const int code = o->op == CONV             ? bench_conv(o, &b)
                     : o->op == BLOCK          ? bench_block(o, &b)
                     : o->op == STEP           ? bench_step(o, &b)
                     : o->op == BACKWARD       ? bench_backward(o, &b)
                     : o->op == LAYER_BACKWARD ? bench_layer_backward(o, &b)
                     : o->op >= GATES          ? bench_rows(o, &b)
                                               : bench_rule(o, &b);
    gdn_ctx_destroy(b.ctx);
    return code;
}

/* Runs one result, or one for each kind of gates. */
static int run_bench(struct bench_options *o)
{
    int first, last, code = CLI_OK;
    if (parse_gates(o, &first, &last) || settle(o)) return CLI_BAD;
    for (o->dims.gates = first; o->dims.gates <= last && !code; o->dims.gates++) code = run_one(o);
    return code;
}

static int dispatch(struct bench_options *o, const char *const *names, int n)
{
    if (o->help) {
        for (size_t i = 0; i < sizeof help / sizeof *help; i++) fputs(help[i], stdout);
        return CLI_OK;
    }
    for (int i = 0; i < N_BENCH_OPS && n == 1; i++)
        if (!strcmp(names[0], op_names[i])) {
            o->op = (enum bench_op)i;
            return run_bench(o);
        }
    if (n == 1) return cli_bad("bench: '%s', wanted an op (gdn bench --help)", names[0]);
    return cli_bad("bench: %d ops, wanted one (gdn bench --help)", n);
}

int bench_main(int argc, char **argv)
{
    struct bench_options o = { .heads = "16/32",
                               .dim = "128",
                               .dtype = "f32",
                               .state = "f32",
                               .layout = "k_last",
                               .channels = 8192,
                               .hidden = 2048,
                               .seconds = 2 };
    const struct cli_option options[] = {
        { "--heads", CLI_TEXT, &o.heads, 0, 0 },
        { "--dim", CLI_TEXT, &o.dim, 0, 0 },
        { "--seqlens", CLI_TEXT, &o.seqlens, 0, 0 },
        { "--dtype", CLI_TEXT, &o.dtype, 0, 0 },
        { "--state", CLI_TEXT, &o.state, 0, 0 },
        { "--layout", CLI_TEXT, &o.layout, 0, 0 },
        { "--gates", CLI_TEXT, &o.gates, 0, 0 },
        { "--call", CLI_TEXT, &o.call, 0, 0 },
        { "--batch", CLI_INT, &o.batch, 1, 1 << 20 },
        { "--tokens", CLI_INT, &o.tokens, 1, 1 << 20 },
        { "--channels", CLI_INT, &o.channels, 1, 1 << 20 },
        { "--hidden", CLI_INT, &o.hidden, 1, 1 << 16 },
        { "--seconds", CLI_REAL, &o.seconds, 0.001, 3600 },
        { "--threads", CLI_INT, &o.device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &o.device.isa, 0, 0 },
        { "--backend", CLI_TEXT, &o.device.backend, 0, 0 },
        { "--exact", CLI_FLAG, &o.dims.exact, 0, 0 },
        { "--raw", CLI_FLAG, &o.dims.raw, 0, 0 },
        { "--kda", CLI_FLAG, &o.dims.kda, 0, 0 },
        { "--pool", CLI_FLAG, &o.dims.pooled, 0, 0 },
        { "--each", CLI_FLAG, &o.dims.each, 0, 0 },
        { "--gated", CLI_FLAG, &o.dims.gated, 0, 0 },
        { "--save-every", CLI_INT, &o.save_every, 64, 1 << 30 },
        { "--bf16-products", CLI_FLAG, &o.dims.bf16_products, 0, 0 },
        { "--batch-invariant", CLI_FLAG, &o.dims.batch_invariant, 0, 0 },
        { "--no-early-stop", CLI_FLAG, &o.dims.no_early_stop, 0, 0 },
        { "--json", CLI_FLAG, &o.json, 0, 0 },
        { "--help", CLI_FLAG, &o.help, 0, 0 },
        { "-h", CLI_FLAG, &o.help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    const char **names = malloc((size_t)argc * sizeof *names);
    int n, code;
    if (!names) return cli_bad("no memory");
    code = cli_parse(argc, argv, options, names, &n);
    if (!code) code = dispatch(&o, names, n);
    free(names);
    free(o.lengths);
    return code;
}
