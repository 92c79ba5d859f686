/* SPDX-License-Identifier: Apache-2.0 */
/* gdn bench: ops timed through gdn.h, beside the machine's measured limits. */
#include "commands/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands/bench_options.h"
#include "device.h"
#include "internal/internal.h"
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
    "  --split          prefill, decode --record: with GDN_SPLIT_INVARIANT\n"
    "  --no-early-stop  prefill, block: with GDN_NO_EARLY_STOP\n"
    "  --raw            prefill, decode: raw gates and the norms of q and k inside the call\n"
    "  --rule R         prefill, decode, step, prefill_backward: gdn (default), kda (a decay for\n"
    "                   each key channel), gdn2 (kda, with an erase and a write gate; not step),\n"
    "                   product (Gated DeltaProduct; not step)\n"
    "  --layer MODEL    block, layer_backward: qwen3_5 (default), qwen3_next, olmo_hybrid,\n"
    "                   kimi_linear (KDA; the rank of its gates is K)\n"
    "  --updates N      updates of each token, product (default 2)\n"
    "  --gates KIND     prefill, decode, block, step, gradients: recipe (default), none, model,\n"
    "                   strong, trained, or all: a result for each of the first four.\n"
    "                   none: log gates 0. recipe: logsigmoid(x) / 16, x normal, and 0 in every\n"
    "                   fourth head. model: -A softplus(a + dt_bias), A uniform from 0.02 to 16,\n"
    "                   softplus(dt_bias) log-uniform from 0.001 to 0.1, a normal. strong: -2.\n"
    "                   trained: -0.02 exp(x), x normal, keys with a cosine of 0.93, beta near\n"
    "                   0.95. Where channels have gates, each is drawn. With --raw, and in block\n"
    "                   and step, they are raw; the recipe's A_log then are uniform from 0 to\n"
    "                   2.7, dt_bias from -7 to -2\n"
    "  --pool           prefill, decode: states in every other slot of a pool\n"
    "  --each           decode: the state after every token, in a slot of its own\n"
    "  --record R       decode: with records of R rows whose tokens are accepted at once; each\n"
    "                   slot folds at its own time. Plain decode, the judge, is beside it\n"
    "  --call KIND      decode: plain (default), packed (by cu_seqlens), counts (token_count),\n"
    "                   interleaved (heads), slots64 (int64 slots, with --pool or --each)\n"
    "  --gated          step: the gated norm too\n"
    "  --save-every N   prefill_backward: with states that prefill saves after each N tokens\n"
    "  --window-mib N   prefill_backward: memory of a window on a GPU (default 640)\n"
    "  --channels N     conv (default 8192); 4 taps, SiLU\n"
    "  --hidden N       block, layer_backward (default 2048)\n",

    "  --threads N --isa NAME --backend cpu|cuda    as for gdn run\n"
    "  --seconds S      about how long (default 2)\n"
    "  --json           one JSON line\n"
    "\n"
    "GFLOP/s counts 6 K V per token and state head (4 K V for each further update of product), 2\n"
    "W per channel and token of a convolution, 2 per weight and token of a projection. Gates and\n"
    "norms have none. GB/s counts every tensor once, states twice. The share is that of the\n"
    "measured float32 multiply-add rate\n"
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
    if (bench_has_layer(o)) cJSON_AddNumberToObject(line, "hidden", (double)o->dims.hidden);
    if (o->batch) {
        cJSON_AddNumberToObject(line, "batch", (double)o->batch);
        cJSON_AddNumberToObject(line, "tokens", (double)o->lengths[0]);
    } else {
        cJSON_AddStringToObject(line, "seqlens", o->seqlens);
    }
    cJSON_AddStringToObject(line, "dtype", o->dtype);
    cJSON_AddStringToObject(line, "state", o->state);
    if (bench_has_gates(o)) cJSON_AddStringToObject(line, "gates", case_gates_names[o->dims.gates]);
    if (o->dims.rule) cJSON_AddStringToObject(line, "rule", case_rule_names[o->dims.rule]);
    if (o->dims.layer) cJSON_AddStringToObject(line, "layer", case_layer_names[o->dims.layer]);
    if (o->dims.rule == CASE_RULE_PRODUCT)
        cJSON_AddNumberToObject(line, "updates", (double)case_updates(&o->dims));
    if (o->dims.exact) cJSON_AddBoolToObject(line, "exact", true);
    if (o->dims.bf16_products) cJSON_AddBoolToObject(line, "bf16_products", true);
    if (o->dims.batch_invariant) cJSON_AddBoolToObject(line, "batch_invariant", true);
    if (o->dims.split) cJSON_AddBoolToObject(line, "split", true);
    if (o->dims.no_early_stop) cJSON_AddBoolToObject(line, "no_early_stop", true);
    if (o->dims.raw) cJSON_AddBoolToObject(line, "raw", true);
    if (o->dims.pooled) cJSON_AddBoolToObject(line, "pool", true);
    if (o->dims.each) cJSON_AddBoolToObject(line, "each", true);
    if (o->dims.gated) cJSON_AddBoolToObject(line, "gated", true);
    if (o->save_every) cJSON_AddNumberToObject(line, "save_every", (double)o->save_every);
    if (o->window_mib) cJSON_AddNumberToObject(line, "window_mib", (double)o->window_mib);
    if (o->record) cJSON_AddNumberToObject(line, "record", (double)o->record);
    if (o->dims.call) cJSON_AddStringToObject(line, "call", case_call_names[o->dims.call]);
}

static void print_json(const struct bench_options *o, const struct bench *b,
                       const struct projections *p)
{
    cJSON *line = report_line(b->ctx);
    cJSON_AddStringToObject(line, "op", bench_op_names[o->op]);
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
    if (gdn_internal_device(b->ctx)) {
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
    if (o->record) cJSON_AddNumberToObject(line, "plain_ms", b->calls[1].ms.median);
    if (bench_is_backward(o)) cJSON_AddNumberToObject(line, "forward_ms", b->calls[1].ms.median);
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
    printf("  case      %s, ", bench_op_names[o->op]);
    if (o->op == CONV)
        printf("%lld channels, ", (long long)o->dims.D);
    else
        printf("heads %s, dim %s, %s, ", o->heads, o->dim, o->layout);
    if (bench_has_layer(o)) printf("hidden %lld, ", (long long)o->dims.hidden);
    if (o->batch)
        printf("batch %lld, tokens %lld, ", (long long)o->B, (long long)o->lengths[0]);
    else
        printf("sequences %s, ", o->seqlens);
    if (bench_has_gates(o)) printf("gates %s, ", case_gates_names[o->dims.gates]);
    if (o->dims.rule) printf("rule %s, ", case_rule_names[o->dims.rule]);
    if (o->dims.layer) printf("layer of %s, ", case_layer_names[o->dims.layer]);
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
           b->by_memory                  ? "GB/s in place on the same footprint"
           : gdn_internal_device(b->ctx) ? "GFLOP/s bf16 matrix product"
                                         : "GFLOP/s float32 multiply-add");
    if (gdn_internal_device(b->ctx))
        printf("  beside    a copy at %s GB/s, a bf16 matrix product at %s TFLOP/s\n",
               table_number(a, 1e-9 * b->copy), table_number(c, 1e-12 * b->product));
    if (o->op == STEP)
        printf("  apart     convolution %s ms, rule %s ms\n",
               table_number(a, b->calls[1].ms.median), table_number(c, b->calls[2].ms.median));
    if (o->record)
        printf("  plain     %s ms, %s times this\n", table_number(a, b->calls[1].ms.median),
               table_number(c, b->calls[1].ms.median / ms->median));
    if (bench_is_backward(o))
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

/* Judges the check, then times and prints. */
static int time_and_print(const struct bench_options *o, struct bench *b, double projections)
{
    if (!b->judged.ok) {
        fprintf(stderr, "gdn: bench %s: wrong by %g (RMS %g, limit %g): not timed\n",
                bench_op_names[o->op], b->judged.max_error, b->judged.rms, b->judged.max_limit);
        return CLI_OUTSIDE;
    }
    /* With --record the judged call has no record, so it is not the timed one. */
    const gdn_status status = cli_call(b->ctx, b->calls[0].op, b->calls[0].args);
    if (status) return cli_failed(b->ctx, status);
    snprintf(b->kernel, sizeof b->kernel, "%s", gdn_last_kernel(b->ctx));
    if ((gdn_internal_device(b->ctx) ? device_rounds : bench_rounds)(b)) return CLI_BAD;
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
    gdn_rule_args lazy;
    const gdn_op op = o->op == DECODE ? GDN_OP_DECODE : GDN_OP_PREFILL;
    struct case_dims d = o->dims;
    d.rows = o->op == DECODE;
    int code = rule_case_make(&c, &d, o->lengths, o->B);
    if (!code) code = rule_case_check(&c, b->ctx, op, &b->judged);
    if (!code) {
        b->calls[0] = (struct bench_call){ .op = op, .args = &c.call };
        b->n_calls = 1;
        if (o->record && !rule_case_lazy(&c, o->record, &lazy))
            code = cli_bad("bench: no memory for %lld rows", (long long)o->record);
        if (o->record) b->calls[b->n_calls++] = b->calls[0], b->calls[0].args = &lazy;
        b->by_memory = o->op == DECODE;
        b->footprint = (size_t)rule_case_state_bytes(&c);
        b->flops = rule_case_flops(&c, gdn_internal_device(b->ctx) && !b->by_memory);
        b->bytes = rule_case_bytes(&c);
        if (!code) code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    return code;
}

/* Measures the gradients; prefill beside them. */
static int bench_backward(const struct bench_options *o, struct bench *b)
{
    struct gradient_case c;
    int code = gradient_case_make(&c, &o->dims, o->lengths, o->B);
    c.args.window_mib = (uint32_t)o->window_mib;
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
        b->calls[0] = (struct bench_call){ .op = c.op, .args = c.args };
        b->n_calls = 1;
        b->by_memory = true;
        b->bytes = rows_case_bytes(&c);
        b->footprint = (size_t)b->bytes;
        code = time_and_print(o, b, 0);
    }
    memory_free(&c.memory);
    return code;
}

/* Measures the layer, then its rule and its convolution apart, in float32 as inside the layer. */
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

/* Measures the step, then its convolution and its rule as separate calls. */
static int bench_step(const struct bench_options *o, struct bench *b)
{
    struct step_case c;
    struct rule_case rule;
    struct conv_case conv;
    struct case_dims inner = o->dims;
    inner.raw = true;
    inner.rows = true;
    inner.D = step_case_channels(&inner);
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
    if (bench_settle(o, &first, &last)) return CLI_BAD;
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
        if (!strcmp(names[0], bench_op_names[i])) {
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
        { "--rule", CLI_TEXT, &o.rule, 0, 0 },
        { "--layer", CLI_TEXT, &o.model, 0, 0 },
        { "--updates", CLI_INT, &o.dims.updates, 1, 8 },
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
        { "--pool", CLI_FLAG, &o.dims.pooled, 0, 0 },
        { "--each", CLI_FLAG, &o.dims.each, 0, 0 },
        { "--gated", CLI_FLAG, &o.dims.gated, 0, 0 },
        { "--record", CLI_INT, &o.record, 1, 1 << 16 },
        { "--save-every", CLI_INT, &o.save_every, 64, 1 << 30 },
        { "--window-mib", CLI_INT, &o.window_mib, 1, 1 << 20 },
        { "--bf16-products", CLI_FLAG, &o.dims.bf16_products, 0, 0 },
        { "--batch-invariant", CLI_FLAG, &o.dims.batch_invariant, 0, 0 },
        { "--split", CLI_FLAG, &o.dims.split, 0, 0 },
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
