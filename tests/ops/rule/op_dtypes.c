/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * The rule and its gradients, if q, k, v, g, beta and out have different dtypes, against float64.
 * The kernels of a device for several dtypes are also those of GDN_EXACT.
 */
#include <math.h>

#include "gdn_train.h"
#include "oracle.h"
#include "ring2_device.h"
#include "ring2_gradients.h"
#include "ring2_rule.h"

enum { N_SEQS = 4, N_CASES = 81 };

static const int64_t prompts[N_SEQS] = { 37, 0, 9, 70 }, drafts[N_SEQS] = { 3, 1, 2, 1 };
static const int heads[3] = { 1, 1, 2 };
static const int64_t sizes[][2] = { { 20, 24 }, { 128, 128 }, { 64, 48 }, { 33, 7 }, { 192, 40 } };

/* The same values in another dtype. */
static void convert(gdn_tensor *t, int32_t dtype)
{
    gdn_tensor to = *t;
    to = ring2_new(dtype, 0, t->ndim, t->size[0], t->size[1], t->ndim > 2 ? t->size[2] : 0, 0);
    ring2_copy(&to, t);
    *t = to;
}

/* Digits of the number to the base 3 are dtypes; g and beta have one of their own beside. */
static gdn_rule_args make_call(int number, const int64_t *lengths)
{
    const int64_t *d = sizes[number % 5];
    gdn_rule_args a = ring2_rule_packed(GDN_F32, number % 2 ? GDN_BF16 : GDN_F32, N_SEQS, lengths,
                                        heads, d[0], d[1], NULL);
    a.norm = GDN_NORM_L2;
    convert(&a.q, number % 3), convert(&a.k, number / 3 % 3), convert(&a.v, number / 9 % 3);
    convert(&a.out, number / 27 % 3);
    convert(&a.g, (number + 1) % 3), convert(&a.beta, (number / 3 + 2) % 3);
    return a;
}

static void prefill(int number)
{
    gdn_rule_args a = make_call(number, prompts);
    ring2_rule_check(ring2_ctx(2), &a, false);
}

static void decode(int number)
{
    gdn_rule_args a = make_call(number, drafts);
    ring2_rule_check(ring2_ctx(2), &a, true);
}

static void exact(int number)
{
    gdn_rule_args a = make_call(number, prompts);
    a.flags = GDN_EXACT;
    a.state = ring2_new(GDN_F32, 0, 4, a.state.size[0], a.state.size[1], a.state.size[2],
                        a.state.size[3]);
    ring2_fill(&a.state, -1, 1);
    ring2_rule_check(ring2_ctx(2), &a, number % 2);
}

/* All rows have one dtype, gates another one of 16 bits: kernels for chunks and for few tokens. */
static void gates_alone(int number)
{
    const int32_t dtype = number % 3, gate = 1 + number / 3 % 2;
    const int64_t *d = sizes[number / 6 % 5];
    gdn_rule_args a = ring2_rule_packed(dtype, GDN_F32, N_SEQS, number / 30 ? drafts : prompts,
                                        heads, d[0], d[1], NULL);
    ring2_rule_inputs(&a, true, -0.1);
    convert(&a.g, gate), convert(&a.beta, gate);
    ring2_rule_check(ring2_ctx(2), &a, number / 30);
}

static void gradients(int number)
{
    const gdn_rule_args f = make_call(number * 7 % N_CASES, prompts);
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = f.q, a.k = f.k, a.v = f.v, a.g = f.g, a.beta = f.beta, a.norm = f.norm;
    a.batch = f.batch;
    a.dout = ring2_clone(&f.out);
    ring2_fill(&a.dout, -1, 1);
    a.dk = ring2_clone(&f.k), a.dv = ring2_clone(&f.v);
    a.dq = ring2_new((number + 1) % 3, 0, 3, f.q.size[0], f.q.size[1], f.q.size[2], 0);
    a.dg = ring2_new(GDN_F32, 0, 2, f.g.size[0], f.g.size[1], 0, 0);
    a.dbeta = ring2_clone(&a.dg);
    ring2_gradients_check(ring2_ctx(2), &a);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "prefill", prefill, N_CASES }, { "decode", decode, N_CASES },  { "exact", exact, 9 },
        { "gates", gates_alone, 60 },    { "gradients", gradients, 24 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
