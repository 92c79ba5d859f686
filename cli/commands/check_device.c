/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn check --backend cuda: every kernel of the device, through the ops that run it, against
 * float64. A kernel that no case has run is a failure too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "cli.h"
#include "commands/check_device.h"
#include "core/os/program.h"
#include "internal/internal.h"
#include "oracle.h"

/* ---- Cases ------------------------------------------------------------------------------- */

/* Checks a batch of B sequences. */
static void check_batch(struct check *k, const struct case_dims *d, gdn_op op,
                        const int64_t *lengths, int B)
{
    const int64_t T = lengths[0];
    char name[128];
    struct rule_case c;
    struct comparison found = { 0 };
    snprintf(name, sizeof name, "%s%s%s %s state %s %s %lldx%lld heads %lld/%lld T%lld%s%s%s%s%s",
             d->rule ? case_rule_names[d->rule] : "", d->rule ? " " : "",
             op == GDN_OP_DECODE ? "decode" : "prefill", check_device_dtypes[d->dtype],
             check_device_dtypes[d->state_dtype],
             d->state_layout == GDN_STATE_KV ? "k_first" : "k_last", (long long)d->K,
             (long long)d->V, (long long)d->Hq, (long long)d->Hv, (long long)T,
             B == 1 ? " alone" : "", d->raw ? " raw" : "", d->pooled ? " pool" : "",
             d->each ? " each" : "",
             d->exact  ? " exact"
             : d->rows ? " rows"
                       : "");
    if (!check_device_wants(k, name)) return;
    int code = rule_case_make(&c, d, lengths, B);
    /* The device may refuse what gdn.h says it refuses. */
    const bool refused = !code && gdn_supported(k->ctx, op, &c.args) == GDN_E_UNSUPPORTED;
    if (!code && !refused) code = rule_case_check(&c, k->ctx, op, &found);
    memory_free(&c.memory);
    if (refused)
        k->n_refused++;
    else
        check_device_judge(k, name, code, &found);
}

/* Checks three sequences, of which the first has T tokens. */
static void check_rule(struct check *k, const struct case_dims *d, gdn_op op, int64_t T)
{
    const bool even = d->each || d->rows;
    const int64_t lengths[] = { T, even ? T : 1, even || T <= 70 ? T : 65 };
    check_batch(k, d, op, lengths, 3);
}

static void check_rules(struct check *k)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 64, 64 },  { 256, 256 }, { 60, 60 },
                                        { 100, 120 }, { 16, 200 }, { 192, 40 },  { 33, 17 },
                                        { 97, 31 },   { 130, 18 }, { 72, 88 } };
    for (int op = 0; op < 2; op++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
                for (int32_t state = GDN_F32; state <= GDN_E5M2; state++)
                    for (int32_t layout = GDN_STATE_VK; layout <= GDN_STATE_KV; layout++) {
                        struct case_dims d = { .Hq = 2,
                                               .Hv = s % 2 ? 2 : 4,
                                               .K = sizes[s][0],
                                               .V = sizes[s][1],
                                               .dtype = dtype,
                                               .state_dtype = state,
                                               .state_layout = layout };
                        d.raw = (s + (size_t)dtype) % 2, d.pooled = (state + layout) % 2;
                        check_rule(k, &d, op ? GDN_OP_DECODE : GDN_OP_PREFILL, op ? 3 : 131);
                        if (op) check_rule(k, &d, GDN_OP_DECODE, 1);
                        d.each = op;
                        check_rule(k, &d, op ? GDN_OP_DECODE : GDN_OP_PREFILL, op ? 3 : 64);
                        d.rows = op;
                        if (op) check_rule(k, &d, GDN_OP_DECODE, 2);
                        d.each = d.rows = false;
                        d.exact = true;
                        check_rule(k, &d, op ? GDN_OP_DECODE : GDN_OP_PREFILL, op ? 2 : 37);
                    }
}

/* Checks rules of the family: states of float32, of the dtype of tokens, and of 8 bits. */
static void check_family(struct check *k)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 64, 64 }, { 60, 100 }, { 256, 40 } };
    for (int i = 0; i < 72; i++) {
        struct case_dims d = { .Hq = 2,
                               .Hv = 4,
                               .K = sizes[i % 4][0],
                               .V = sizes[i % 4][1],
                               .rule = CASE_RULE_KDA + i / 4 % 3,
                               .dtype = i / 12 % 3,
                               .state_layout = i / 36,
                               .gates = i % 2 ? CASE_GATES_TRAINED : CASE_GATES_MODEL };
        if (d.state_layout) check_family_gradients(k, &d);
        d.raw = i % 2;
        for (int state = 0; state < 3; state++) {
            d.state_dtype = state == 0 ? GDN_F32 : state == 1 ? d.dtype : GDN_I8 + i % 3;
            check_rule(k, &d, GDN_OP_DECODE, 1);
            d.rows = true;
            check_rule(k, &d, GDN_OP_DECODE, 1);
            d.rows = false;
            if (state == i % 3) check_rule(k, &d, GDN_OP_DECODE, i % 4 + 2);
            if (state == i % 3) check_rule(k, &d, GDN_OP_PREFILL, 131);
        }
    }
}

/* Checks a call with so many heads that Hopper takes wide blocks for any lengths. */
static void check_many_heads(struct check *k)
{
    for (int i = 0; i < 8; i++) {
        const struct case_dims d = { .Hq = 36,
                                     .Hv = 72,
                                     .K = 64 << i / 4,
                                     .V = i / 4 ? 120 : 72,
                                     .dtype = i % 2 ? GDN_F16 : GDN_BF16,
                                     .raw = i / 2 % 2 };
        check_rule(k, &d, GDN_OP_PREFILL, 131);
    }
}

/* Checks long sequences, which Hopper cuts into segments: alone, where the host finds the cut, and
 * beside others, where a kernel does. All of the sequence is compared. */
static void check_segments(struct check *k)
{
    enum { LONG = 2560 };
    static const int64_t sizes[][2] = { { 72, 64 }, { 128, 128 }, { 72, 200 }, { 64, 48 } };
    for (int i = 0; i < 16; i++) {
        const struct case_dims d = { .Hq = 2,
                                     .Hv = 4,
                                     .K = sizes[i / 4][0],
                                     .V = sizes[i / 4][1],
                                     .dtype = i % 2 ? GDN_F16 : GDN_BF16,
                                     .raw = i / 2 % 2,
                                     .judge_all = true };
        check_batch(k, &d, GDN_OP_PREFILL, (int64_t[]){ LONG }, 1);
        if (!d.raw) check_rule(k, &d, GDN_OP_PREFILL, LONG);
    }
}

/* Checks decode of rows of given lengths: one token, a few, and more than a few; of states in
 * order, and in slots; and of more than a few, every state kept. */
static void check_decode_rows(struct check *k)
{
    static const int64_t sizes[] = { 64, 128, 256 }, tokens[] = { 1, 3, 6 };
    for (int i = 0; i < 18; i++)
        for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
            for (int32_t state = GDN_F32; state <= GDN_E5M2; state++)
                for (int32_t layout = GDN_STATE_VK; layout <= GDN_STATE_KV; layout++) {
                    struct case_dims d = { .Hq = 2,
                                           .Hv = 4,
                                           .K = sizes[i % 3],
                                           .V = sizes[i % 3],
                                           .dtype = dtype,
                                           .state_dtype = state,
                                           .state_layout = layout,
                                           .raw = dtype == GDN_BF16,
                                           .pooled = i / 9,
                                           .rows = true };
                    const int64_t T = tokens[i / 3 % 3];
                    check_rule(k, &d, GDN_OP_DECODE, T);
                    d.each = true; /* which makes slots of its own, pooled or not */
                    if (T > 4 && !d.pooled) check_rule(k, &d, GDN_OP_DECODE, T);
                }
}

/* Makes the tokens of a dense tensor lie side by side, and channels apart. */
static void turn(gdn_tensor *t)
{
    t->stride[t->ndim - 2] = 1;
    t->stride[t->ndim - 1] = t->size[t->ndim - 2];
}

enum conv_form { BY_ROWS, IN_PLACE, CHANNELS_FIRST };

static void check_conv(struct check *k, const struct case_dims *d, const int64_t *lengths,
                       enum conv_form form)
{
    static const char *const forms[] = { "", " in place", " channels first" };

    struct conv_case c;
    struct comparison found = { 0 };
    char name[64];
    snprintf(name, sizeof name, "conv %s state %s W%lld D%lld T%lld%s%s",
             check_device_dtypes[d->dtype], check_device_dtypes[d->state_dtype], (long long)d->W,
             (long long)d->D, (long long)lengths[0], forms[form], d->entries ? " long states" : "");
    if (!check_device_wants(k, name)) return;
    int code = conv_case_make(&c, d, lengths, 4);
    if (form == IN_PLACE) c.args.out = c.args.x;
    if (form == CHANNELS_FIRST) turn(&c.args.x), turn(&c.args.out);
    if (!code) code = conv_case_check(&c, k->ctx, &found);
    memory_free(&c.memory);
    check_device_judge(k, name, code, &found);
}

/* Checks channels that move in fours and others; long sequences and short ones. */
static void check_convs(struct check *k)
{
    static const int64_t lengths[] = { 130, 1, 0, 65 }, few[] = { 1, 1, 1, 1 };
    static const int64_t channels[] = { 64, 997, 1000 };
    for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
        for (int64_t W = 2; W <= 16; W += W < 8 ? 1 : 8)
            for (int i = 0; i < 3; i++) {
                struct case_dims d = {
                    .D = channels[i], .W = W, .dtype = dtype, .state_dtype = dtype
                };
                check_conv(k, &d, lengths, BY_ROWS);
                check_conv(k, &d, lengths, IN_PLACE);
                check_conv(k, &d, few, BY_ROWS);
                if (i == 0) check_conv(k, &d, lengths, CHANNELS_FIRST);
                d.state_dtype = GDN_F32;
                if (dtype != GDN_F32) check_conv(k, &d, few, BY_ROWS);
                d.entries = W;
                check_conv(k, &d, few, BY_ROWS);
            }
}

/* ---- Steps ------------------------------------------------------------------------------- */

static void check_step(struct check *k, const struct case_dims *d, int64_t T)
{
    struct step_case c;
    struct comparison found = { 0 };
    char name[96];
    snprintf(name, sizeof name, "%s%sstep %s state %s %s %lldx%lld heads %lld/%lld T%lld%s",
             d->rule ? case_rule_names[d->rule] : "", d->rule ? " " : "",
             check_device_dtypes[d->dtype], check_device_dtypes[d->state_dtype],
             d->state_layout == GDN_STATE_KV ? "k_first" : "k_last", (long long)d->K,
             (long long)d->V, (long long)d->Hq, (long long)d->Hv, (long long)T,
             d->gated ? " gated" : "");
    if (!check_device_wants(k, name)) return;
    int code = step_case_make(&c, d, 3, T);
    if (!code) code = step_case_check(&c, k->ctx, &found);
    memory_free(&c.memory);
    check_device_judge(k, name, code, &found);
}

/* Checks steps that are one launch, and steps of several launches (33 x 17, other rules). */
static void check_steps(struct check *k)
{
    static const int64_t shapes[][4] = { { 2, 4, 128, 128 }, { 1, 3, 64, 96 }, { 2, 2, 33, 17 } };
    for (int s = 0; s < 3; s++)
        for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
            for (int32_t state = GDN_F32; state <= GDN_F16; state++)
                for (int32_t layout = GDN_STATE_VK; layout <= GDN_STATE_KV; layout++) {
                    struct case_dims d = { .Hq = shapes[s][0],
                                           .Hv = shapes[s][1],
                                           .K = shapes[s][2],
                                           .V = shapes[s][3],
                                           .W = 4,
                                           .dtype = dtype,
                                           .state_dtype = state,
                                           .state_layout = layout };
                    check_step(k, &d, 1);
                    d.gated = true;
                    check_step(k, &d, 5);
                    d.rule = 1 + (s + dtype + state + layout) % (CASE_RULES - 1);
                    check_step(k, &d, 1 + dtype);
                }
}

/* ---- State copies ------------------------------------------------------------------------ */

/* A pool [3][2][20][20] and the scales of one of 8 bits. */
struct pool {
    gdn_tensor t, scales;
};

static struct pool make_pool(struct memory *m, int32_t dtype)
{
    const int64_t size[] = { 3, 2, 20, 20 };
    struct pool p = { .t = memory_tensor(m, dtype, 4, size) };
    if (dtype > GDN_F16) p.scales = memory_tensor(m, GDN_F32, 3, size);
    return p;
}

static gdn_status copy(struct check *k, const struct pool *from, int32_t from_layout,
                       const struct pool *to, int32_t to_layout)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = from->t, a.from_scales = from->scales, a.from_layout = from_layout;
    a.to_pool = to->t, a.to_scales = to->scales, a.to_layout = to_layout;
    const gdn_status status = cli_call(k->ctx, GDN_OP_STATE_COPY, &a);
    if (status) cli_failed(k->ctx, status);
    check_device_mark(k);
    return status;
}

/* Copies from float32 through two dtypes and back. Their steps are at most these parts of the
 * largest value. */
static void check_copy(struct check *k, int32_t first, int32_t second, int32_t layout)
{
    static const double steps[] = { [GDN_BF16] = 1.0 / 256,
                                    [GDN_F16] = 1.0 / 2048,
                                    [GDN_I8] = 1.0 / 127,
                                    [GDN_E4M3] = 1.0 / 8,
                                    [GDN_E5M2] = 1.0 / 4 };
    struct memory m = { 0 };
    struct comparison found = { .ok = true };
    char name[64];
    const int64_t size[] = { 3, 2, 20, 20 };
    snprintf(name, sizeof name, "state_copy f32 %s %s f32 %s", check_device_dtypes[first],
             check_device_dtypes[second], layout ? "turned" : "");
    if (!check_device_wants(k, name)) return;
    const struct pool a = { .t = case_tensor(&m, GDN_F32, 4, size, -1, 1) };
    const struct pool b = make_pool(&m, first), c = make_pool(&m, second);
    const struct pool d = make_pool(&m, GDN_F32);
    const bool is_there = a.t.data && b.t.data && c.t.data && d.t.data;
    int code = !is_there || copy(k, &a, 0, &b, layout) || copy(k, &b, layout, &c, 0) ||
               copy(k, &c, 0, &d, 0);
    for (int i = 0; i < 3 * 2 * 20 * 20 && !code; i++) {
        const double x = oracle_load(a.t.data, GDN_F32, i), y = oracle_load(d.t.data, GDN_F32, i);
        found.ok &= fabs(x - y) <= steps[first] + steps[second];
        if (fabs(x - y) > found.max_error) found.max_error = fabs(x - y);
    }
    memory_free(&m);
    check_device_judge(k, name, code, &found);
}

static void check_copies(struct check *k)
{
    for (int32_t first = GDN_F32; first <= GDN_E5M2; first++)
        for (int32_t second = GDN_F32; second <= GDN_E5M2; second++)
            for (int32_t layout = GDN_STATE_VK; layout <= GDN_STATE_KV; layout++)
                check_copy(k, first, second, layout);
}

/* ---- Rows -------------------------------------------------------------------------------- */

static void check_rows(struct check *k)
{
    static const int64_t sizes[] = { 7, 128, 256, 1000, 3000 };
    const char *op_name;
    gdn_op op;
    for (int i = 0; (op_name = rows_case_op(i, &op)); i++)
        for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
            for (int s = 0; s < 5; s++) {
                const int64_t D = sizes[s];
                struct case_dims d = {
                    .Hq = 3, .Hv = D == 128 ? 32 : 5, .K = D, .V = D, .dtype = dtype
                };
                struct rows_case c;
                struct comparison found = { 0 };
                char name[64];
                snprintf(name, sizeof name, "%s %s D%lld", op_name, check_device_dtypes[dtype],
                         (long long)D);
                if (!check_device_wants(k, name)) continue;
                int code = rows_case_make(&c, &d, op, 200);
                if (!code) code = rows_case_check(&c, k->ctx, &found);
                memory_free(&c.memory);
                check_device_judge(k, name, code, &found);
            }
}

/* Checks the layers of models, prefill and decode, cuBLAS's projections and our own. */
static void check_blocks(struct check *k)
{
    static const int64_t lengths[][3] = { { 130, 1, 40 }, { 1, 1, 1 } };
    for (int32_t dtype = GDN_F32; dtype <= GDN_F16; dtype++)
        for (int i = 0; i < 16; i++) {
            struct case_dims d = { .Hq = 2,
                                   .Hv = 4,
                                   .K = 64,
                                   .V = i & 4 ? 51 : 64,
                                   .W = 4,
                                   .hidden = 256,
                                   .dtype = dtype,
                                   .layer = i % 2 + i / 8 * 2,
                                   .lower_bound = i == 13 ? -5 : 0,
                                   .exact = i % 3 == 2,
                                   .keep = i == 3 };
            struct block_case c;
            struct comparison found = { 0 };
            char name[64];
            snprintf(name, sizeof name, "layer %s %s V%lld %s%s%s", case_layer_names[d.layer],
                     check_device_dtypes[dtype], (long long)d.V, i & 2 ? "decode" : "prefill",
                     d.exact ? " exact" : "", d.keep ? " keep" : "");
            if (!check_device_wants(k, name)) continue;
            int code = block_case_make(&c, &d, lengths[i / 2 % 2], 3);
            if (!code) code = block_case_check(&c, k->ctx, &found);
            memory_free(&c.memory);
            check_device_judge(k, name, code, &found);
        }
}

static void mark_call(void *check) { check_device_mark(check); }

/* Checks the stages of the chunked form, and summaries. */
static void check_stages(struct check *k)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 60, 100 }, { 256, 40 }, { 1, 3 } };
    static const int64_t lengths[] = { 131, 1, 0, 64 };
    for (int i = 0; i < 24; i++) {
        struct case_dims d = { .Hq = 2,
                               .Hv = 4,
                               .K = sizes[i % 4][0],
                               .V = sizes[i % 4][1],
                               .dtype = i / 4 % 3,
                               .state_layout = i / 12 };
        struct stages_case s = { .each = { mark_call, k } };
        struct rule_case c;
        struct comparison found = { 0 };
        char name[64];
        snprintf(name, sizeof name, "stages %s state %s %lldx%lld", check_device_dtypes[d.dtype],
                 d.state_layout == GDN_STATE_KV ? "k_first" : "k_last", (long long)d.K,
                 (long long)d.V);
        if (!check_device_wants(k, name)) continue;
        int code = rule_case_make(&c, &d, lengths, 4);
        if (!code) code = rule_case_check_by(&c, k->ctx, stages_case_run, &s, &found);
        memory_free(&c.memory);
        check_device_judge(k, name, code, s.sums.ok ? &found : &s.sums);
    }
}

/* Checks drafted tokens by a record. */
static void check_records(struct check *k)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 60, 100 }, { 200, 17 } };
    static const int64_t lengths[] = { 5, 1, 3 };
    for (int i = 0; i < 24; i++) {
        struct case_dims d = { .Hq = 2,
                               .Hv = 4,
                               .K = sizes[i % 3][0],
                               .V = sizes[i % 3][1],
                               .rule = i < 12  ? CASE_RULE_GDN
                                       : i % 2 ? CASE_RULE_GDN2
                                               : CASE_RULE_KDA,
                               .dtype = i % 3,
                               .state_dtype = i / 6 % 2,
                               .state_layout = i / 3 % 2,
                               .raw = i % 2,
                               .pooled = i / 3 % 2 };
        struct case_called each = { mark_call, k };
        struct rule_case c;
        struct comparison found = { 0 };
        char name[80];
        snprintf(name, sizeof name, "%s%srecord %s state %s %s %lldx%lld",
                 d.rule ? case_rule_names[d.rule] : "", d.rule ? " " : "",
                 check_device_dtypes[d.dtype], check_device_dtypes[d.state_dtype],
                 d.state_layout == GDN_STATE_KV ? "k_first" : "k_last", (long long)d.K,
                 (long long)d.V);
        if (!check_device_wants(k, name)) continue;
        int code = rule_case_make(&c, &d, lengths, 3);
        if (!code) code = rule_case_check_by(&c, k->ctx, record_case_run, &each, &found);
        memory_free(&c.memory);
        check_device_judge(k, name, code, &found);
    }
}

/* Checks tokens that records accept: of a few sequences, which fold at once, of many, and two of
 * each of many. Others have a K that has no kernel, or are a prompt. MANY is enough for 148
 * multiprocessors. */
static void check_lazy(struct check *k)
{
    enum { FEW = 3, MANY = 601, KINDS = 4, TWO = 2 * KINDS, OTHER = 3 * KINDS, PROMPT };
    int64_t lengths[MANY];
    for (int i = 0; i <= PROMPT; i++) {
        const int n = i >= KINDS && i < OTHER ? MANY : FEW;
        const bool two = i >= TWO && i < OTHER;
        struct case_dims d = { .Hq = 2,
                               .Hv = 4,
                               .K = i == OTHER ? 60 : 128,
                               .V = 128,
                               .dtype = i % 2 ? GDN_F16 : GDN_BF16,
                               .state_dtype = i % KINDS < 2 ? GDN_F32
                                              : i % 2       ? GDN_F16
                                                            : GDN_BF16,
                               .rows = true,
                               .pooled = n == FEW };
        struct case_called each = { mark_call, k };
        struct rule_case c;
        struct comparison found = { 0 };
        char name[80];
        for (int b = 0; b < n; b++) lengths[b] = two ? 2 : 1;
        snprintf(name, sizeof name, "lazy %s%s %s state %s %lldx%lld of %d",
                 i == PROMPT ? "prefill" : "decode", two ? " of two" : "",
                 check_device_dtypes[d.dtype], check_device_dtypes[d.state_dtype], (long long)d.K,
                 (long long)d.V, n);
        if (!check_device_wants(k, name)) continue;
        int code = rule_case_make(&c, &d, lengths, n);
        if (!code)
            code = rule_case_check_by(
                &c, k->ctx, i == PROMPT ? lazy_prompt_case_run : lazy_case_run, &each, &found);
        memory_free(&c.memory);
        check_device_judge(k, name, code, &found);
    }
}

/* ---- All --------------------------------------------------------------------------------- */

/* The yardsticks are no op's. */
static void report_idle(struct check *k)
{
    const char *name;
    for (int i = 0; !k->pattern && (name = gdn_internal_kernel(i)); i++) {
        if (k->has_run[i] || !gdn_internal_runs_kernel(k->ctx, i)) continue;
        if (strstr(name, "yardstick")) continue;
        printf("%-64s FAILED: no case has run it\n", name);
        k->n_failed++;
    }
}

/* Runs all cases. CLI_OK, or CLI_BAD after one line. */
static int check_all(struct check *k)
{
    check_rows(k);
    check_convs(k);
    check_conv_gradients(k);
    check_steps(k);
    check_copies(k);
    check_rules(k);
    check_family(k);
    check_many_heads(k);
    check_segments(k);
    check_decode_rows(k);
    check_stages(k);
    check_gradients(k);
    if (check_portable_gradients(k)) return CLI_BAD;
    check_records(k);
    check_lazy(k);
    check_blocks(k);
    check_layer_gradients(k);
    report_idle(k);
    return CLI_OK;
}

int check_device(int argc, char **argv)
{
    struct check k = { .n_cases = 0 };
    struct cli_device device = { .backend = "cuda" };
    int n_kernels = 0;
    const struct cli_option options[] = {
        { "--backend", CLI_TEXT, &device.backend, 0, 0 },
        { "--function", CLI_TEXT, &k.pattern, 0, 0 },
        { "--verbose", CLI_FLAG, &k.verbose, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    if (cli_parse(argc, argv, options, NULL, NULL) || cli_open(&device, &k.ctx)) return CLI_BAD;
    if (!gdn_internal_device(k.ctx)) {
        gdn_ctx_destroy(k.ctx);
        return cli_bad("--backend: wanted cuda; without it, gdn check tests this CPU's loops");
    }
    while (gdn_internal_kernel(n_kernels)) n_kernels++;
    k.has_run = calloc((size_t)n_kernels + 1, sizeof *k.has_run);
    if (!k.has_run) cli_no_memory();
    const int code = check_all(&k);
    free(k.has_run);
    gdn_ctx_destroy(k.ctx);
    if (code) return code;
    if (!k.n_cases && !k.n_refused)
        return cli_bad("--function: no case is called '%s' (without it, --verbose names them)",
                       k.pattern ? k.pattern : "");
    printf("%d cases, %d failed, %d not supported\n", k.n_cases, k.n_failed, k.n_refused);
    return k.n_failed || !k.n_cases ? CLI_OUTSIDE : CLI_OK;
}
