/* SPDX-License-Identifier: Apache-2.0 */
/* gdn check --backend cuda: gradients, against float64. See check_device.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "commands/check_device.h"
#include "core/os/program.h"
#include "oracle.h"

void check_family_gradients(struct check *k, const struct case_dims *d)
{
    static const int64_t lengths[] = { 131, 1, 0, 64 };
    struct gradient_case c;
    struct comparison found = { 0 };
    char name[64];
    snprintf(name, sizeof name, "%s prefill_backward %s %lldx%lld", case_rule_names[d->rule],
             check_device_dtypes[d->dtype], (long long)d->K, (long long)d->V);
    if (!check_device_wants(k, name)) return;
    int code = gradient_case_make(&c, d, lengths, 4);
    const bool refused =
        !code && gdn_supported(k->ctx, GDN_OP_PREFILL_BACKWARD, &c.args) == GDN_E_UNSUPPORTED;
    if (!code && !refused) code = gradient_case_check(&c, k->ctx, &found);
    memory_free(&c.rule.memory);
    if (refused)
        k->n_refused++;
    else
        check_device_judge(k, name, code, &found);
}

/* Checks four taps, and more. */
void check_conv_gradients(struct check *k)
{
    static const int64_t lengths[] = { 130, 1, 0, 65 };
    for (int i = 0; i < 9; i++) {
        const struct case_dims d = { .D = 300,
                                     .W = i < 3   ? 4
                                          : i < 6 ? 5 + i % 3
                                                  : 16,
                                     .dtype = i % 3,
                                     .state_dtype = i % 3 };
        struct conv_gradient_case c;
        struct comparison found = { 0 };
        char name[64];
        snprintf(name, sizeof name, "conv_backward %s W%lld", check_device_dtypes[d.dtype],
                 (long long)d.W);
        if (!check_device_wants(k, name)) continue;
        int code = conv_gradient_case_make(&c, &d, lengths, 4);
        if (!code) code = conv_gradient_case_check(&c, k->ctx, &found);
        memory_free(&c.conv.memory);
        check_device_judge(k, name, code, &found);
    }
}

/* The layer's, along a few directions of hidden. */
void check_layer_gradients(struct check *k)
{
    static const int64_t lengths[] = { 130, 1, 40 };
    for (int i = 0; i < 12; i++) {
        const struct case_dims d = { .Hq = 2,
                                     .Hv = 4,
                                     .K = 64,
                                     .V = i % 2 ? 51 : 64,
                                     .W = 4,
                                     .hidden = 256,
                                     .dtype = i % 3,
                                     .layer = i % 2 + i / 6 * 2,
                                     .lower_bound = i == 11 ? -5 : 0 };
        struct layer_gradient_case c;
        struct comparison found = { 0 };
        char name[64];
        snprintf(name, sizeof name, "layer_backward %s %s V%lld", case_layer_names[d.layer],
                 check_device_dtypes[d.dtype], (long long)d.V);
        if (!check_device_wants(k, name)) continue;
        int code = layer_gradient_case_make(&c, &d, lengths, 3);
        if (!code) code = layer_gradient_case_check(&c, k->ctx, &found);
        memory_free(&c.block.memory);
        check_device_judge(k, name, code, &found);
    }
}

/* Checks that ddt_bias is the sum of dg, as for raw gates. */
static int check_gate_sums(struct check *k, struct gradient_case *c, struct comparison *found)
{
    gdn_prefill_backward_args a = c->args;
    const int64_t H = a.dg.size[1];
    struct memory *m = &c->rule.memory;
    a.gate = GDN_GATE_RAW;
    a.A_log = case_tensor(m, GDN_F32, 1, &H, -1, 1);
    a.dA_log = memory_tensor(m, GDN_F32, 1, &H), a.ddt_bias = memory_tensor(m, GDN_F32, 1, &H);
    if (!a.A_log.data || !a.dA_log.data || !a.ddt_bias.data) return cli_bad("no memory for sums");
    const gdn_status status = cli_call(k->ctx, GDN_OP_PREFILL_BACKWARD, &a);
    if (status) return cli_failed(k->ctx, status);
    for (int64_t h = 0; h < H; h++) {
        double sum = 0, size = 0;
        for (int64_t t = 0; t < a.dg.size[0]; t++) {
            const double dg = oracle_load(a.dg.data, GDN_F32, t * H + h);
            sum += dg, size += fabs(dg);
        }
        found->ok &= fabs(oracle_load(a.ddt_bias.data, GDN_F32, h) - sum) <= 1e-6 * size;
    }
    return CLI_OK;
}

/* Checks that dstate alone, which has its own kernels, is dstate among all gradients. */
static int check_state_alone(struct check *k, struct gradient_case *c, struct comparison *found)
{
    enum { ROUNDING = 10000 }; /* of the squares of bf16 numbers */
    gdn_prefill_backward_args a = c->args;
    const gdn_tensor d = a.dstate;
    const int64_t n = d.size[0] * d.size[1] * d.size[2] * d.size[3];
    double off = 0, all = 0, *want = malloc((size_t)n * sizeof *want);
    if (!want) return cli_bad("no memory for the check");
    a.norm = GDN_NORM_L2;
    gdn_status status = cli_call(k->ctx, GDN_OP_PREFILL_BACKWARD, &a);
    for (int64_t i = 0; i < n; i++) want[i] = oracle_load(d.data, d.dtype, i);
    a.dq = a.dk = a.dv = a.dg = a.dbeta = (gdn_tensor){ 0 };
    if (!status) status = cli_call(k->ctx, GDN_OP_PREFILL_BACKWARD, &a);
    check_device_mark(k);
    for (int64_t i = 0; i < n; i++) {
        const double x = oracle_load(d.data, d.dtype, i) - want[i];
        off += x * x, all += want[i] * want[i];
    }
    free(want);
    if (status) return cli_failed(k->ctx, status);
    found->ok &= off * ROUNDING <= all;
    return CLI_OK;
}

static void check_gradients_of(struct check *k, const struct case_dims *d, const int64_t *lengths,
                               const char *remark)
{
    struct gradient_case c;
    struct comparison found = { 0 };
    char name[96];
    snprintf(name, sizeof name, "prefill_backward %s state %s %lldx%lld heads %lld T%lld%s",
             check_device_dtypes[d->dtype], d->state_layout == GDN_STATE_KV ? "k_first" : "k_last",
             (long long)d->K, (long long)d->V, (long long)d->Hv, (long long)lengths[0], remark);
    if (!check_device_wants(k, name)) return;
    int code = gradient_case_make(&c, d, lengths, 4);
    if (!code) code = gradient_case_check(&c, k->ctx, &found);
    check_device_mark(k);
    if (!code) code = check_gate_sums(k, &c, &found);
    if (!code) code = check_state_alone(k, &c, &found);
    memory_free(&c.rule.memory);
    check_device_judge(k, name, code, &found);
}

/* Checks each dtype. The two of 16 bits are checked three more times: with heads that fill a
 * device, with more tokens than one window has, and with a long sequence, whose walk to dstate is
 * cut. */
void check_gradients(struct check *k)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 60, 100 }, { 256, 40 }, { 64, 72 } };
    static const int64_t few[] = { 131, 1, 0, 64 }, many[] = { 9800, 1, 0, 195 };
    for (int i = 0; i < 18; i++) {
        const bool fills = i == 12 || i == 13, has_windows = i == 14 || i == 15;
        const int64_t *const size = sizes[i < 12 ? i % 4 : 0];
        const struct case_dims d = { .Hq = 2,
                                     .Hv = fills         ? 36
                                           : has_windows ? 128
                                                         : 4,
                                     .K = size[0],
                                     .V = has_windows ? 8 : size[1],
                                     .dtype = i < 12 ? i / 4 : 1 + i % 2,
                                     .state_layout = (i / 4 + i) % 2 };
        check_gradients_of(k, &d, i < 14 ? few : many, "");
    }
}

/* Checks gradients by the portable kernels, which Hopper runs if it does without its own. */
int check_portable_gradients(struct check *k)
{
    static const int64_t lengths[] = { 131, 1, 0, 64 };
    struct cli_device device = { .backend = "cuda" };
    const char *name = "GDN_CUDA_WITHOUT", *before = getenv(name);
    gdn_ctx *own = k->ctx;
    if (before) return CLI_OK; /* the user said which kernels run */
    gdn_os_set_environment(name, "sm90 gradients");
    const int code = cli_open(&device, &k->ctx);
    gdn_os_set_environment(name, NULL);
    for (int i = 0; i < 2 && !code; i++) {
        const struct case_dims d = {
            .Hq = 2, .Hv = 4, .K = 128, .V = 128, .dtype = 1 + i, .state_layout = i
        };
        check_gradients_of(k, &d, lengths, " portable");
    }
    if (!code) gdn_ctx_destroy(k->ctx);
    k->ctx = own;
    return code;
}
