/* SPDX-License-Identifier: Apache-2.0 */
/* A token on states of 8 bits in one loop: the bits of loading, a token of float32, and storing. */
#include <string.h>

#include "check.h"

struct problem {
    int eight, K, n, ld;
    float *q, *k, *v, *scales;
    float alpha, beta, kq;
    uint8_t *codes; /* [n][K], ld apart */
    uint32_t *keys; /* NULL: to nearest */
};

static size_t code_bytes(const struct problem *p) { return (size_t)((p->n - 1) * p->ld + p->K); }

static struct problem make(int eight, int K, int n, bool random, bool wild)
{
    struct problem p = { .eight = eight, .K = K, .n = n, .ld = K + check_below(3) };
    p.q = check_floats((size_t)K, -0.2, 0.2);
    p.k = check_floats((size_t)K, -0.2, 0.2);
    p.v = check_floats((size_t)n, -4, 4);
    p.scales = check_floats((size_t)n, 0, 0.1);
    p.alpha = (float)check_uniform(0.3, 1);
    p.beta = (float)check_uniform(0.1, 1);
    p.kq = (float)check_uniform(-1, 1);
    p.codes = check_bytes(code_bytes(&p), 1);
    for (size_t i = 0; i < code_bytes(&p); i++) p.codes[i] = (uint8_t)check_below(256);
    for (size_t i = 0; i < code_bytes(&p) && !wild; i++)
        if ((p.codes[i] & 127) >= (eight < 2 ? 127 : 124)) p.codes[i] = 0; /* no numbers */
    if (random) p.keys = check_bytes((size_t)n * sizeof *p.keys, ELEMENT);
    for (int j = 0; j < n && random; j++)
        p.keys[j] = (uint32_t)check_below(65536) << 16 | (uint32_t)check_below(65536);
    for (int j = 0; j < n && wild; j++) {
        static const float some[] = { 0, NAN, INFINITY, 3e38f, 1e-38f, 1e-45f };
        if (check_below(2)) p.scales[j] = some[check_below(6)];
        if (check_below(4) == 0) p.v[j] = check_below(2) ? NAN : 3e38f;
    }
    return p;
}

static struct gdn_recur step_of(const struct problem *p, float *o, float *scratch, void **to)
{
    return (struct gdn_recur){
        .q = p->q,
        .k = p->k,
        .v = p->v,
        .o = o,
        .alpha = &p->alpha,
        .beta = &p->beta,
        .kq = &p->kq,
        .from = scratch,
        .to = to,
        .scratch = scratch,
        .ld_v = p->n,
        .ld_o = p->n,
        .ld_from = p->K,
        .ld_to = p->K,
        .T = 1,
        .K = p->K,
        .n = p->n,
    };
}

static void check_one(const struct gdn_kernels *kr, const struct problem *p)
{
    float *o = check_poison((size_t)p->n), *want_o = check_poison((size_t)p->n);
    float *scales = check_copy(p->scales, (size_t)p->n * sizeof *scales, ELEMENT);
    float *want_scales = check_copy(p->scales, (size_t)p->n * sizeof *scales, ELEMENT);
    uint8_t *codes = check_copy(p->codes, code_bytes(p), 1);
    uint8_t *want = check_copy(p->codes, code_bytes(p), 1);
    float *S = check_bytes((size_t)(p->n * p->K) * sizeof *S, LINE);
    void *to[] = { S };
    struct gdn_recur step = step_of(p, want_o, S, to);
    kr->load8_vk[p->eight](S, p->K, want, p->ld, want_scales, p->K, p->n);
    kr->recur_vk[GDN_F32](&step);
    kr->store8_vk[p->eight](want, p->ld, want_scales, S, p->K, p->keys, p->K, p->n);

    bool done;
    step.o = o;
    done = CALL(kr->recur8_vk[p->eight])(&step, codes, p->ld, scales, p->keys);
    if (!done) {
        check_same("codes of a call that did nothing", codes, p->codes, code_bytes(p));
        return;
    }
    check_same("codes", codes, want, code_bytes(p));
    check_same_numbers("scales", scales, want_scales, (size_t)p->n);
    check_same_numbers("o", o, want_o, (size_t)p->n);
}

void check_recur8_vk(const struct gdn_kernels *kr)
{
    static const int sizes[] = { 16, 32, 64, 96, 128, 256 }, columns[] = { 1, 2, 3, 4, 5, 17, 128 };
    for (int eight = 0; eight < GDN_N_Q8; eight++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
                for (int kind = 0; kind < 4; kind++) {
                    check_case("dtype %d, K %d, n %d, %s, %s", GDN_I8 + eight, sizes[i], columns[j],
                               kind & 1 ? "random" : "nearest", kind & 2 ? "wild" : "ordinary");
                    const struct problem p = make(eight, sizes[i], columns[j], kind & 1, kind & 2);
                    check_one(kr, &p);
                }
}
