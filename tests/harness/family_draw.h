/* SPDX-License-Identifier: Apache-2.0 */
/* Packed calls of the family in float32, of two sequences. */
#ifndef FAMILY_DRAW_H
#define FAMILY_DRAW_H

#include "family_calls.h"
#include "family_judge.h"

enum { N_SEQS = 2 };

static const int64_t sizes[][2] = { { 40, 24 }, { 128, 48 }, { 16, 96 } };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Sequences of T and T / 2 tokens. */
static inline gdn_rule_args draw(const struct rule *f, int gate, int size, int64_t T)
{
    const int64_t K = sizes[size][0], V = sizes[size][1], N = T + T / 2, n = f->updates;
    const int64_t starts[] = { 0, T, N };
    gdn_rule_args a = gdn_rule_args_init();
    gdn_batch *batch = ring2_heap(sizeof *batch);
    *batch = gdn_batch_init();
    batch->cu_seqlens = ring2_indices(GDN_I64, N_SEQS + 1, starts);
    a.batch = batch;
    a.q = ring2_new(GDN_F32, 3, 3, N, HK, K, 0);
    a.k = ring2_new(GDN_F32, 0, 3, n * N, HK, K, 0);
    a.v = ring2_new(GDN_F32, 1, 3, n * N, HV, V, 0);
    a.g = f->g_rows ? ring2_new(GDN_F32, 2, 3, N, HV, K, 0) : ring2_new(GDN_F32, 0, 2, N, HV, 0, 0);
    a.beta = f->beta_rows ? ring2_new(GDN_F32, 0, 3, n * N, HV, K, 0)
                          : ring2_new(GDN_F32, 1, 2, n * N, HV, 0, 0);
    if (f->write) a.write_gate = ring2_new(GDN_F32, 2, 3, n * N, HV, V, 0);
    a.state = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, V, K);
    a.out = ring2_new(GDN_F32, 1, 3, N, HV, V, 0);
    a.norm = GDN_NORM_L2;
    a.updates = f->updates;
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.beta, 0, 1), ring2_fill(&a.state, -1, 1);
    if (f->write) ring2_fill(&a.write_gate, -1, 1);
    for (int64_t i = 0; i < ring2_count(&a.g); i++) {
        const int64_t row = f->g_rows ? i / K : i, t = row / HV;
        ring2_set(&a.g, i, gates[gate](t < T ? t : t - T, f->g_rows ? i % K : row % HV));
    }
    return a;
}

static inline gdn_rule_args clone(const gdn_rule_args *a)
{
    gdn_rule_args b = *a;
    gdn_tensor *all[] = { &b.q, &b.k, &b.v, &b.g, &b.beta, &b.write_gate, &b.state, &b.out };
    for (int i = 0; i < 8; i++) *all[i] = ring2_clone(all[i]);
    return b;
}

/* Tokens [first, first + n) of sequence 0, one sequence. */
static inline gdn_rule_args part(const gdn_rule_args *a, int64_t first, int64_t n)
{
    const int64_t u = a->updates;
    gdn_rule_args b = *a;
    gdn_tensor *tokens[] = { &b.q, &b.g, &b.out };
    gdn_tensor *rows[] = { &b.k, &b.v, &b.beta, &b.write_gate };
    for (int i = 0; i < 3; i++) *tokens[i] = ring2_narrow(tokens[i], 0, first, n);
    for (int i = 0; i < 4; i++)
        if (rows[i]->data) *rows[i] = ring2_narrow(rows[i], 0, first * u, n * u);
    b.state = ring2_narrow(&b.state, 0, 0, 1);
    b.batch = NULL;
    return b;
}

#endif
