/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * GDN_ZERO_AS_GIVEN: an eps of 0 has the bits of 2^-126, a row of zeros stays zero, and a scale of
 * 0 makes an output of zeros and leaves states as they are with any other scale.
 */
#include <math.h>

#include "gdn_research.h"
#include "gdn_train.h"
#include "ring2_rule.h"

enum { N = 5, D = 40 };
static const float least = 0x1p-126f;

/* Short rows, in which the default eps would be seen; the first is zero. */
static gdn_tensor short_rows(void)
{
    gdn_tensor t = ring2_new(GDN_F32, 0, 2, N, D, 0, 0), first;
    ring2_fill(&t, -1e-4, 1e-4);
    first = ring2_narrow(&t, 0, 0, 1);
    ring2_fill_value(&first, 0);
    return t;
}

#define RUN(call, args) ring2_status(ring2_ctx(1), #call, call(ring2_ctx(1), args), GDN_OK)

/* Row r has length 1, or root mean square 1. */
static void expect_length(const gdn_tensor *out, double wanted)
{
    for (int64_t r = 0; r < N; r++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++) sum += pow(ring2_get(out, r * D + d), 2);
        CHECK(fabs(sum - (r ? wanted : 0)) <= 1e-5 * wanted, "row %d: %g", (int)r, sum);
    }
}

static void norms(void)
{
    gdn_l2norm_args a = gdn_l2norm_args_init(), b;
    gdn_rmsnorm_gated_args m = gdn_rmsnorm_gated_args_init(), n;
    a.x = m.x = short_rows();
    a.out = ring2_clone(&a.x), a.flags = GDN_ZERO_AS_GIVEN;
    m.out = ring2_clone(&a.x), m.flags = GDN_ZERO_AS_GIVEN;
    b = a, b.out = ring2_clone(&a.x), b.eps = least, b.flags = 0;
    n = m, n.out = ring2_clone(&a.x), n.eps = least, n.flags = 0;
    RUN(gdn_l2norm, &a), RUN(gdn_l2norm, &b), RUN(gdn_rmsnorm_gated, &m);
    RUN(gdn_rmsnorm_gated, &n);
    ring2_expect_bits("l2norm", &a.out, &b.out);
    ring2_expect_bits("rmsnorm", &m.out, &n.out);
    expect_length(&a.out, 1), expect_length(&m.out, D);
}

static void gradients_of_norms(void)
{
    gdn_l2norm_backward_args a = gdn_l2norm_backward_args_init(), b;
    gdn_rmsnorm_gated_backward_args m = gdn_rmsnorm_gated_backward_args_init(), n;
    a.x = m.x = short_rows(), a.dout = m.dout = ring2_clone(&a.x);
    ring2_fill(&a.dout, -1, 1);
    a.dx = ring2_clone(&a.x), m.dx = ring2_clone(&a.x), a.flags = m.flags = GDN_ZERO_AS_GIVEN;
    b = a, b.dx = ring2_clone(&a.x), b.eps = least, b.flags = 0;
    n = m, n.dx = ring2_clone(&a.x), n.eps = least, n.flags = 0;
    RUN(gdn_l2norm_backward, &a), RUN(gdn_l2norm_backward, &b);
    RUN(gdn_rmsnorm_gated_backward, &m), RUN(gdn_rmsnorm_gated_backward, &n);
    ring2_expect_bits("l2norm_backward", &a.dx, &b.dx);
    ring2_expect_bits("rmsnorm_gated_backward", &m.dx, &n.dx);
}

static const int heads[3] = { 1, 1, 2 };

/* q and k so short that the default eps would be seen. */
static gdn_rule_args short_keys(int32_t dtype, int64_t tokens)
{
    gdn_rule_args a = ring2_rule_args(dtype, GDN_F32, tokens, tokens, heads, 32, 16);
    a.norm = GDN_NORM_L2;
    ring2_fill(&a.q, -1e-4, 1e-4), ring2_fill(&a.k, -1e-4, 1e-4);
    return a;
}

static gdn_status call(const gdn_rule_args *a, bool decode)
{
    return (decode ? gdn_decode : gdn_prefill)(ring2_ctx(2), a);
}

/* The default eps leaves keys much shorter. */
static void rule(int32_t dtype, bool decode)
{
    gdn_rule_args a = short_keys(dtype, decode ? 3 : 70), b = ring2_rule_clone(&a), c = b;
    a.flags = GDN_ZERO_AS_GIVEN, a.scale = 0.5f;
    b.norm_eps = least, b.scale = 0.5f;
    ring2_status(ring2_ctx(2), "0 as given", call(&a, decode), GDN_OK);
    ring2_status(ring2_ctx(2), "2^-126", call(&b, decode), GDN_OK);
    ring2_expect_bits("out", &a.out, &b.out);
    ring2_expect_bits("state", &a.state, &b.state);
    c = ring2_rule_clone(&a), c.scale = 0;
    ring2_copy(&c.state, &a.state), ring2_copy(&b.state, &a.state);
    b.flags = GDN_ZERO_AS_GIVEN;
    ring2_status(ring2_ctx(2), "scale 0", call(&c, decode), GDN_OK);
    ring2_status(ring2_ctx(2), "scale 1/2", call(&b, decode), GDN_OK);
    ring2_expect_bits("state, scale 0", &c.state, &b.state);
    for (int64_t i = 0; i < ring2_count(&c.out); i++)
        CHECK(ring2_get(&c.out, i) == 0, "out[%d]: %g", (int)i, ring2_get(&c.out, i));
}

static void rules(void)
{
    for (int i = 0; i < 6; i++) rule(i % 3, i / 3);
}

static void gradients_of_the_rule(void)
{
    const gdn_rule_args f = short_keys(GDN_F32, 40);
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init(), b;
    a.q = f.q, a.k = f.k, a.v = f.v, a.g = f.g, a.beta = f.beta, a.norm = f.norm;
    a.dout = ring2_clone(&f.out), ring2_fill(&a.dout, -1, 1);
    a.dk = ring2_clone(&f.k), a.dq = ring2_clone(&f.q), a.flags = GDN_ZERO_AS_GIVEN;
    b = a, b.dk = ring2_clone(&f.k), b.dq = ring2_clone(&f.q);
    RUN(gdn_prefill_backward, &a);
    for (int64_t i = 0; i < ring2_count(&a.dq); i++)
        CHECK(ring2_get(&a.dq, i) == 0, "dq[%d]: %g", (int)i, ring2_get(&a.dq, i));
    a.scale = b.scale = 0.5f, b.flags = 0, b.norm_eps = least;
    RUN(gdn_prefill_backward, &a), RUN(gdn_prefill_backward, &b);
    ring2_expect_bits("dq", &a.dq, &b.dq);
    ring2_expect_bits("dk", &a.dk, &b.dk);
}

static void sums(void)
{
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    a.g = ring2_new(GDN_F32, 0, 2, 9, 2, 0, 0), a.out = ring2_clone(&a.g);
    ring2_fill(&a.g, -1, 0), ring2_fill(&a.out, 1, 2);
    a.chunk_size = 4, a.flags = GDN_ZERO_AS_GIVEN;
    RUN(gdn_chunk_cumsum, &a);
    for (int64_t i = 0; i < 18; i++)
        CHECK(ring2_get(&a.out, i) == 0, "out[%d]: %g", (int)i, ring2_get(&a.out, i));
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "norms", norms },        { "gradients of norms", gradients_of_norms },
        { "the rule", rules },     { "gradients of the rule", gradients_of_the_rule },
        { "sums of gates", sums },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
