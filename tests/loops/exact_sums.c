/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of what calls with GDN_EXACT give, and of the ops around them that go element by
 * element: a line per call. Two machines whose tables have FMA print the same (G17), which
 * tools/emulate_arm.sh looks at.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ring2.h"
#include "ring2_rule.h"

enum { N_RULES = 36, T = 40 };

/* FNV-1a over the elements in row-major order. */
static void print_sum(const char *what, const gdn_tensor *t)
{
    const size_t size = gdn_dtype_bytes(t->dtype);
    uint64_t h = 0xcbf29ce484222325;
    for (int64_t i = 0; i < ring2_count(t); i++) {
        const unsigned char *at = ring2_element(t, i);
        for (size_t b = 0; b < size; b++) h = (h ^ at[b]) * 0x100000001b3;
    }
    printf("  %-5s %016" PRIx64 "\n", what, h);
}

static void rule(int number)
{
    static const int heads[][3] = { { 2, 2, 4 }, { 4, 2, 2 }, { 1, 1, 3 } };
    static const int64_t dims[][2] = {
        { 128, 128 }, { 33, 130 }, { 7, 31 }, { 60, 60 }, { 256, 40 }
    };
    const int64_t *KV = dims[number % 5];
    const bool decode = number % 2;
    gdn_rule_args a =
        ring2_rule_args(number % 3, number / 3 % 3, T, 1, heads[number / 2 % 3], KV[0], KV[1]);
    a.flags = GDN_EXACT;
    a.norm = number % 4;
    if (number % 4 == 1) {
        a.gate = GDN_GATE_RAW;
        a.beta_kind = GDN_BETA_SIGMOID;
        a.A_log = ring2_new(GDN_F32, 0, 1, a.g.size[1], 0, 0, 0);
        a.dt_bias = ring2_new(GDN_F32, 0, 1, a.g.size[1], 0, 0, 0);
        ring2_fill(&a.A_log, -1, 1);
        ring2_fill(&a.dt_bias, -1, 1);
        ring2_fill(&a.g, -4, 4);
        ring2_fill(&a.beta, -4, 4);
    }
    if (number % 7 == 3) {
        const gdn_tensor turned = ring2_swap(&a.state, 2, 3);
        a.state = ring2_new(turned.dtype, 0, 4, 1, turned.size[1], KV[0], KV[1]);
        a.state_layout = GDN_STATE_KV;
        ring2_copy(&a.state, &turned);
    }
    if (decode) { /* one sequence of T tokens */
        gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
        for (int i = 0; i < 6; i++) {
            for (int d = rows[i]->ndim++; d > 0; d--) {
                rows[i]->size[d] = rows[i]->size[d - 1];
                rows[i]->stride[d] = rows[i]->stride[d - 1];
            }
            rows[i]->size[0] = 1;
        }
    }
    ring2_status(ring2_ctx(2), "rule", ring2_rule_call(ring2_ctx(2), &a, decode), GDN_OK);
    print_sum("out", &a.out);
    print_sum("state", &a.state);
}

static void conv(int dtype)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = ring2_new(dtype, 0, 2, T, 77, 0, 0);
    a.out = ring2_new(dtype, 0, 2, T, 77, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, 77, 2 + dtype, 0, 0);
    a.bias = ring2_new(GDN_F32, 0, 1, 77, 0, 0, 0);
    a.activation = GDN_ACT_SILU;
    ring2_fill(&a.x, -20, 20);
    ring2_fill(&a.weight, -1, 1);
    ring2_fill(&a.bias, -1, 1);
    ring2_status(ring2_ctx(2), "conv1d", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
    print_sum("out", &a.out);
}

static void norm(int dtype)
{
    gdn_rmsnorm_gated_args a = gdn_rmsnorm_gated_args_init();
    a.x = ring2_new(dtype, 0, 2, T, 131, 0, 0);
    a.z = ring2_new(dtype, 0, 2, T, 131, 0, 0);
    a.out = ring2_new(dtype, 0, 2, T, 131, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 1, 131, 0, 0, 0);
    a.activation = dtype ? GDN_ACT_SILU : GDN_ACT_SIGMOID;
    a.eps = 1e-6f;
    ring2_fill(&a.x, -20, 20);
    ring2_fill(&a.z, -100, 100);
    ring2_fill(&a.weight, -1, 1);
    ring2_status(ring2_ctx(2), "norm", gdn_rmsnorm_gated(ring2_ctx(2), &a), GDN_OK);
    print_sum("out", &a.out);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = { { "rule", rule, N_RULES },
                                                { "conv1d", conv, 3 },
                                                { "rmsnorm_gated", norm, 3 } };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
