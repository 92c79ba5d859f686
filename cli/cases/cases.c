/* SPDX-License-Identifier: Apache-2.0 */
/* Batches, random tensors, and the rule. cases_layer.c has the convolution and the layer. */
#include "cases/cases.h"

#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "oracle.h"

/* ---- Batches ----------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct case_batch case_batch(struct memory *m, const int64_t *lengths, int64_t B)
{
    struct case_batch b = { .B = B };
    int64_t *ends = memory_get(m, (size_t)(B + 1) * sizeof *ends);
    for (int64_t i = 0; i < B; i++) {
        b.N += lengths[i];
        b.longest = larger(b.longest, lengths[i]);
        if (ends) ends[i + 1] = b.N;
    }
    b.cu_seqlens = ends;
    return b;
}

gdn_batch case_gdn_batch(const struct case_batch *tokens)
{
    gdn_batch b = gdn_batch_init();
    void *cu = (void *)(uintptr_t)tokens->cu_seqlens; /* the view's pointer is not const */
    b.cu_seqlens = gdn_dense(cu, GDN_I64, 1, tokens->B + 1, 0, 0, 0);
    b.max_seqlen = (int32_t)smaller(tokens->longest, INT32_MAX);
    return b;
}

/* ---- The rule ---------------------------------------------------------------------------- */

const char *const case_rule_names[CASE_RULES] = { "gdn", "kda", "gdn2", "product" };

const char *const case_call_names[CASE_CALL_KINDS] = { "plain", "packed", "counts", "interleaved",
                                                       "slots64" };

/* Returns slots of the pool. */
static int64_t n_slots(const struct rule_case *c)
{
    const int64_t B = c->tokens.B;
    return c->dims.each ? B + c->tokens.N : c->dims.pooled ? 2 * B : B;
}

int64_t rule_case_start(const struct rule_case *c, int64_t b)
{
    return c->dims.pooled && !c->dims.each ? 2 * (c->tokens.B - 1 - b) + 1 : b;
}

int64_t rule_case_end(const struct rule_case *c, int64_t b)
{
    return c->dims.each ? c->tokens.B + c->tokens.cu_seqlens[b + 1] - 1 : rule_case_start(c, b);
}

static void store_slot(gdn_tensor *slots, int64_t i, int64_t slot)
{
    if (slots->dtype == GDN_I64)
        ((int64_t *)slots->data)[i] = slot;
    else
        ((int32_t *)slots->data)[i] = (int32_t)slot;
}

/* Slots: with `each`, token t of the batch leaves its state in slot B + t. */
static bool make_slots(struct rule_case *c)
{
    const int32_t dtype = c->dims.call == CASE_CALL_SLOTS64 ? GDN_I64 : GDN_I32;
    const int64_t B = c->tokens.B, T = c->tokens.N / (B ? B : 1);
    gdn_batch *b = &c->batch;
    if (!c->dims.each && !c->dims.pooled) return true;
    b->read_slots = memory_tensor(&c->memory, dtype, 1, &B);
    if (!b->read_slots.data) return false;
    for (int64_t i = 0; i < B; i++) store_slot(&b->read_slots, i, rule_case_start(c, i));
    if (!c->dims.each) return true;
    const int64_t size[] = { B, T };
    b->write = GDN_WRITE_EACH;
    b->write_slots = memory_tensor(&c->memory, dtype, 2, size);
    if (!b->write_slots.data) return false;
    for (int64_t i = 0; i < B * T; i++) store_slot(&b->write_slots, i, B + i);
    return true;
}

/* Makes beta, of a head or of each channel of its keys, and the write gate of GDN-2. */
static bool make_betas(struct rule_case *c, const int64_t *v)
{
    const bool gdn2 = c->dims.rule == CASE_RULE_GDN2;
    const int64_t size[] = { v[0], c->args.g.size[1], c->dims.K };
    const int64_t write[] = { v[0], c->args.g.size[1], c->dims.V };
    c->args.beta = case_betas(&c->memory, &c->dims, gdn2 ? 3 : 2, size);
    if (gdn2) c->args.write_gate = case_betas(&c->memory, &c->dims, 3, write);
    return c->args.beta.data && (!gdn2 || c->args.write_gate.data);
}

/* Makes q, k, gates: as they are, or raw. */
static bool make_inputs(struct rule_case *c, const int64_t *q, const int64_t *k,
                        const int64_t *gate_size)
{
    gdn_rule_args *a = &c->args;
    const int64_t *H = &gate_size[1];
    a->updates = c->dims.rule == CASE_RULE_PRODUCT ? (int32_t)case_updates(&c->dims) : 0;
    if (!c->dims.raw) {
        a->q = case_unit_rows(&c->memory, c->dims.dtype, q);
        a->k = case_keys(&c->memory, &c->dims, k);
        a->g = case_log_gates(&c->memory, &c->dims, gate_size);
        return a->q.data && a->k.data && a->g.data && make_betas(c, k);
    }
    const bool alike = c->dims.gates == CASE_GATES_TRAINED;
    a->q = case_tensor(&c->memory, c->dims.dtype, 3, q, -1, 1);
    a->k = alike ? case_keys(&c->memory, &c->dims, k)
                 : case_tensor(&c->memory, c->dims.dtype, 3, k, -1, 1);
    a->g = case_raw_gates(&c->memory, &c->dims, 2, gate_size);
    const bool made = a->q.data && a->k.data && a->g.data && make_betas(c, k);
    case_gate_heads(&c->memory, &c->dims, H, &a->A_log, &a->dt_bias);
    a->gate = GDN_GATE_RAW;
    a->beta_kind = GDN_BETA_SIGMOID;
    a->norm = GDN_NORM_L2;
    return made && a->A_log.data && a->dt_bias.data;
}

/* Makes tokens, or updates, as rows of B sequences. */
static void make_rows(gdn_tensor *t, int64_t B)
{
    const int64_t T = t->size[0] / B;
    if (!t->data) return;
    for (int32_t i = t->ndim++; i > 0; i--) {
        t->size[i] = t->size[i - 1];
        t->stride[i] = t->stride[i - 1];
    }
    t->size[0] = B;
    t->size[1] = T;
    t->stride[0] = T * t->stride[1];
}

static bool make_counts(struct rule_case *c)
{
    const int64_t B = c->tokens.B;
    gdn_tensor *t = &c->batch.token_count;
    *t = memory_tensor(&c->memory, GDN_I32, 1, &B);
    for (int64_t i = 0; i < B && t->data; i++) ((int32_t *)t->data)[i] = (int32_t)(c->tokens.N / B);
    return t->data;
}

static bool make_call(struct rule_case *c)
{
    gdn_rule_args *a = &c->call;
    if (c->dims.call == CASE_CALL_INTERLEAVED) c->args.head_map = GDN_HEADS_INTERLEAVED;
    *a = c->args;
    if (!c->dims.rows || c->dims.call == CASE_CALL_PACKED) return true;
    gdn_tensor *const by_token[] = {
        &a->q, &a->k, &a->v, &a->g, &a->beta, &a->out, &a->write_gate
    };
    for (size_t i = 0; i < sizeof by_token / sizeof *by_token; i++)
        make_rows(by_token[i], c->tokens.B);
    memset(&c->batch.cu_seqlens, 0, sizeof c->batch.cu_seqlens);
    return c->dims.call != CASE_CALL_COUNTS || make_counts(c);
}

uint32_t case_flags(const struct case_dims *d)
{
    return (d->exact ? GDN_EXACT : 0u) | (d->bf16_products ? GDN_BF16_PRODUCTS : 0u) |
           (d->batch_invariant ? GDN_BATCH_INVARIANT : 0u) |
           (d->no_early_stop ? GDN_NO_EARLY_STOP : 0u);
}

int rule_case_make(struct rule_case *c, const struct case_dims *dims, const int64_t *lengths,
                   int64_t B)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->tokens = case_batch(&c->memory, lengths, B);
    c->batch = case_gdn_batch(&c->tokens);
    gdn_rule_args *a = &c->args;
    *a = gdn_rule_args_init();

    const int64_t N = c->tokens.N, Hk = smaller(dims->Hq, dims->Hv), H = larger(dims->Hq, dims->Hv);
    const bool kv = dims->state_layout == GDN_STATE_KV;
    const int64_t P = n_slots(c), rows = N * case_updates(dims);
    const int64_t q[] = { N, dims->Hq, dims->K };
    const int64_t k[] = { rows, Hk, dims->K };
    const int64_t v[] = { rows, dims->Hv, dims->V };
    const int64_t out[] = { N, H, dims->V };
    const int64_t gate[] = { N, H };
    const int64_t state[] = { P, H, kv ? dims->K : dims->V, kv ? dims->V : dims->K };
    const int64_t scales[] = { P, H, dims->V };
    const bool eight = case_is_q8(dims->state_dtype);
    const bool made = make_inputs(c, q, k, gate) && make_slots(c);
    a->v = case_tensor(&c->memory, dims->dtype, 3, v, -1, 1);
    a->state = eight ? case_codes(&c->memory, dims->state_dtype, state)
                     : case_tensor(&c->memory, dims->state_dtype, 4, state, -0.1, 0.1);
    if (eight) a->state_scales = case_tensor(&c->memory, GDN_F32, 3, scales, 0.0005, 0.001);
    a->out = memory_tensor(&c->memory, dims->dtype, 3, out);
    a->state_layout = dims->state_layout;
    a->flags = case_flags(dims) | (dims->split && !dims->rows ? GDN_SPLIT_INVARIANT : 0u);
    a->batch = &c->batch;
    if (made && make_call(c) && c->tokens.cu_seqlens && a->v.data && a->state.data && a->out.data &&
        (!eight || a->state_scales.data))
        return CLI_OK;
    return cli_bad("no memory for %lld tokens and %lld sequences", (long long)N, (long long)B);
}

/* Returns the value of a code of 8 bits, of a sign, an exponent and a mantissa. NaN and infinity do
 * not occur in states. */
static double code_value(int32_t dtype, uint8_t code)
{
    const int bits = dtype == GDN_E4M3 ? 3 : 2, bias = dtype == GDN_E4M3 ? 7 : 15;
    const int exponent = code >> bits & (0x7f >> bits), mantissa = code & ((1 << bits) - 1);
    if (dtype == GDN_I8) return (int8_t)code;
    const double size = exponent ? ldexp((1 << bits) + mantissa, exponent - bias - bits)
                                 : ldexp(mantissa, 1 - bias - bits);
    return code & 0x80 ? -size : size;
}

static void read_codes(const struct rule_case *c, int64_t b, int64_t h, double *state)
{
    const gdn_tensor *t = &c->args.state, *s = &c->args.state_scales;
    const int64_t K = c->dims.K, V = c->dims.V;
    const bool kv = c->dims.state_layout == GDN_STATE_KV;
    const uint8_t *codes = (const uint8_t *)t->data + b * t->stride[0] + h * t->stride[1];
    const float *scale = (const float *)s->data + b * s->stride[0] + h * s->stride[1];
    for (int64_t j = 0; j < V; j++)
        for (int64_t i = 0; i < K; i++)
            state[j * K + i] =
                (double)((float)code_value(t->dtype, codes[kv ? i * V + j : j * K + i]) * scale[j]);
}

void rule_case_state(const struct rule_case *c, int64_t slot, int64_t h, double *state)
{
    const gdn_tensor *t = &c->args.state;
    const int64_t K = c->dims.K, V = c->dims.V;
    const int64_t at = slot * t->stride[0] + h * t->stride[1];
    const bool kv = c->dims.state_layout == GDN_STATE_KV;
    if (case_is_q8(t->dtype)) {
        read_codes(c, slot, h, state);
        return;
    }
    for (int64_t j = 0; j < V; j++)
        for (int64_t i = 0; i < K; i++)
            state[j * K + i] = oracle_load(t->data, t->dtype, at + (kv ? i * V + j : j * K + i));
}

/* Applies norms and gates, if the call does. */
static void cook(const struct rule_case *c, int64_t h, int64_t n, double *q, double *k, double *g,
                 double *beta)
{
    const gdn_rule_args *a = &c->args;
    const int64_t K = c->dims.K;
    for (int64_t t = 0; t < n; t++) {
        oracle_l2norm(q + t * K, q + t * K, K, a->norm, 1e-6);
        oracle_l2norm(k + t * K, k + t * K, K, a->norm, 1e-6);
        g[t] = oracle_gate(g[t], oracle_load(a->A_log.data, GDN_F32, h),
                           oracle_load(a->dt_bias.data, GDN_F32, h), 0);
        beta[t] = oracle_sigmoid(beta[t]);
    }
}

bool rule_case_follow(const struct rule_case *c, int64_t b, int64_t h, int64_t n, double *state,
                      double *want, double *got)
{
    const gdn_rule_args *a = &c->args;
    const int64_t K = c->dims.K, V = c->dims.V;
    const int64_t first = c->tokens.cu_seqlens[b];
    if (c->dims.rule != CASE_RULE_GDN) return family_case_follow(c, b, h, n, state, want, got);
    double *q = malloc((size_t)n * (size_t)(2 * K + V + 2) * sizeof *q);
    if (!q) return false;
    double *k = q + n * K, *v = k + n * K, *alpha = v + n * V, *beta = alpha + n;
    case_load_head(q, &a->q, first, n, rule_case_head_of(c, a->q.size[1], h));
    case_load_head(k, &a->k, first, n, rule_case_head_of(c, a->k.size[1], h));
    case_load_head(v, &a->v, first, n, rule_case_head_of(c, a->v.size[1], h));
    case_load_head(alpha, &a->g, first, n, h);
    case_load_head(beta, &a->beta, first, n, h);
    if (c->dims.raw) cook(c, h, n, q, k, alpha, beta);
    for (int64_t t = 0; t < n; t++) alpha[t] = exp(alpha[t]);
    case_load_head(got, &a->out, first, n, h);
    const struct oracle_rule r = { .T = n,
                                   .K = (int)K,
                                   .V = (int)V,
                                   .scale = 1 / sqrt((double)K),
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .state = state,
                                   .o = want };
    oracle_rule(&r);
    free(q);
    return true;
}

double rule_case_flops(const struct rule_case *c, bool in_chunks)
{
    const double K = (double)c->dims.K, V = (double)c->dims.V;
    const double inside = in_chunks ? 4.0 * 64 * (K + V) : 0;
    const double more = 4 * K * V * (double)(case_updates(&c->dims) - 1);
    return (6 * K * V + more + inside) * (double)(c->tokens.N * c->args.out.size[1]);
}

double rule_case_state_bytes(const struct rule_case *c)
{
    const double all = case_bytes(&c->args.state) + case_bytes(&c->args.state_scales);
    return all * (double)c->tokens.B / (double)n_slots(c);
}

double rule_case_bytes(const struct rule_case *c)
{
    const gdn_rule_args *a = &c->args;
    const double state = rule_case_state_bytes(c) / (double)c->tokens.B;
    const double moved = (double)(c->tokens.B + (c->dims.each ? c->tokens.N : c->tokens.B));
    return case_bytes(&a->q) + case_bytes(&a->k) + case_bytes(&a->v) + case_bytes(&a->g) +
           case_bytes(&a->beta) + case_bytes(&a->write_gate) + case_bytes(&a->out) + moved * state;
}
