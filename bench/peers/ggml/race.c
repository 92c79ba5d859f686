/* SPDX-License-Identifier: Apache-2.0 */
/*
 * race_ggml - libgdn against ggml's GATED_DELTA_NET and SSM_CONV, in one process, on the same
 * inputs, round by round (../rounds.h). One JSON line per case.
 *
 *     race_ggml [--only prefill|decode|conv] [--seconds 2] [--clock wall|cpu]
 *
 * --clock cpu: one thread, by processor time; for a machine on which other programs run.
 *
 * What differs is named, not hidden: ggml's state input and output are two buffers, ours is one
 * in place; ggml's convolution takes channel-major inputs with the old ones in front and runs
 * SiLU as a second node, ours takes tokens and a state. The results of both are compared.
 */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "gdn.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "measure.h"
#include "rounds.h"

enum { D = 128, HK = 16, CHANNELS = 8192, TAPS = 4 };

struct race_case {
    const char *op; /* prefill, decode, conv */
    int Hv, T, B;
    bool bf16; /* ours with bf16 inputs and GDN_BF16_PRODUCTS; ggml's stay float32 */
    int threads;
};

static double seconds = 2;

static void fail(const char *what)
{
    fprintf(stderr, "race_ggml: %s\n", what);
    exit(2);
}

/* What measure.c reports by; the command has it in another file. */
int cli_bad(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "race_ggml: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return 2;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

static uint32_t state = 1;

static float uniform(void) /* [0, 1) */
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-24f;
}

static void fill(struct ggml_tensor *t, float low, float high)
{
    float *x = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++) x[i] = low + (high - low) * uniform();
}

/* Long memory for the most part, some strong gates. */
static void fill_gates(struct ggml_tensor *t)
{
    float *x = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++) x[i] = -0.001f - 0.5f * powf(uniform(), 4);
}

static void normalise(struct ggml_tensor *t)
{
    float *x = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i += D) {
        double sum = 1e-6;
        for (int j = 0; j < D; j++) sum += (double)x[i + j] * x[i + j];
        for (int j = 0; j < D; j++) x[i + j] = (float)(x[i + j] / sqrt(sum));
    }
}

/* ---- ggml ------------------------------------------------------------------------------------ */

struct peer {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer;
};

static struct peer peer_open(int threads)
{
    const struct ggml_init_params params = { ggml_tensor_overhead() * 16 + ggml_graph_overhead(),
                                             NULL, true };
    struct peer p = { ggml_init(params), NULL, ggml_backend_cpu_init(), NULL };
    if (!p.ctx || !p.backend) fail("ggml does not start");
    ggml_backend_cpu_set_n_threads(p.backend, threads);
    return p;
}

static void peer_plan(struct peer *p, struct ggml_tensor *out)
{
    p->graph = ggml_new_graph(p->ctx);
    ggml_build_forward_expand(p->graph, out);
    p->buffer = ggml_backend_alloc_ctx_tensors(p->ctx, p->backend);
    if (!p->buffer) fail("no memory for ggml's tensors");
}

static void peer_run(void *arg)
{
    struct peer *p = arg;
    if (ggml_backend_graph_compute(p->backend, p->graph) != GGML_STATUS_SUCCESS)
        fail("ggml does not compute");
}

static void peer_close(struct peer *p)
{
    ggml_backend_buffer_free(p->buffer);
    ggml_backend_free(p->backend);
    ggml_free(p->ctx);
}

/* ---- libgdn ---------------------------------------------------------------------------------- */

struct ours {
    gdn_ctx *ctx;
    gdn_op op;
    gdn_rule_args rule;
    gdn_conv1d_args conv;
};

static gdn_ctx *open_context(int threads)
{
    gdn_ctx *ctx;
    gdn_options options = gdn_options_init();
    char text[256];
    options.n_threads = threads;
    options.error_text = text;
    options.error_text_bytes = sizeof text;
    if (gdn_ctx_create(&options, &ctx)) fail(text);
    return ctx;
}

static void ours_run(void *arg)
{
    struct ours *o = arg;
    const gdn_status status = o->op == GDN_OP_PREFILL  ? gdn_prefill(o->ctx, &o->rule)
                              : o->op == GDN_OP_DECODE ? gdn_decode(o->ctx, &o->rule)
                                                       : gdn_conv1d(o->ctx, &o->conv);
    if (status) fail(gdn_last_error(o->ctx));
}

static float *floats(int64_t n)
{
    float *x = aligned_alloc(4096, ((size_t)n * sizeof *x + 4095) / 4096 * 4096);
    if (!x) fail("no memory");
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

/* The same values as far as bf16 holds them; to nearest even. */
static uint16_t *rounded(const struct ggml_tensor *t)
{
    const int64_t n = ggml_nelements(t);
    uint16_t *x = (uint16_t *)(void *)floats(n / 2 + 1);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)t->data + i, sizeof bits);
        x[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    return x;
}

static void widen(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* ---- One case -------------------------------------------------------------------------------- */

static void scale_in_place(void *arg)
{
    struct measure *m = arg;
    measure_in_place(m, 0.005);
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

/* Times both and prints the line. footprint: bytes that decode must read and write. */
static void race(const struct race_case *c, struct peer *p, struct ours *o, double difference,
                 size_t footprint)
{
    struct contender by[2] = { { .run = peer_run, .arg = p }, { .run = ours_run, .arg = o } };
    const struct rounds r = rounds_run(by, 2, seconds);
    if (r.kept == 0) {
        fprintf(stderr, "race_ggml: %s, T = %d, B = %d: no quiet round\n", c->op, c->T, c->B);
        return;
    }
    const double peer = 1e3 * rounds_median(&by[0], &r);
    const double own = 1e3 * rounds_median(&by[1], &r);
    struct measure m;
    char device[128];
    if (measure_open(&m, gdn_isa(o->ctx), c->threads, footprint)) fail("no memory");
    double limit = 0;
    for (int i = 0; i < 10; i++) limit = fmax(limit, measure_in_place(&m, 0.01));
    const double flops = measure_flops(&m, 0.1);
    measure_close(&m);
    printf("{\"op\": \"%s\", \"peer\": \"ggml\", \"peer_commit\": \"%s\", \"device\": \"%s\", "
           "\"isa\": \"%s\", \"threads\": %d, ",
           c->op, GGML_COMMIT, measure_cpu(device, sizeof device), gdn_isa(o->ctx), c->threads);
    if (strcmp(c->op, "conv"))
        printf("\"heads\": \"%d/%d\", \"dim\": %d, ", HK, c->Hv, D);
    else
        printf("\"channels\": %d, ", CHANNELS);
    printf("\"T\": %d, \"B\": %d, \"dtype\": \"%s\", \"rounds\": %d, \"dropped\": %d, "
           "\"difference\": %.3g, \"peer_ms\": %.6g, \"ms\": %.6g, \"speedup\": %.4g",
           c->T, c->B, c->bf16 ? "bf16" : "f32", r.kept, r.dropped, difference, peer, own,
           peer / own);
    if (c->bf16) printf(", \"bf16_products\": true");
    if (rounds_cpu_time) printf(", \"clock\": \"cpu\"");
    if (!strcmp(c->op, "prefill"))
        printf(", \"share\": %.4g", 6.0 * D * D * c->T * c->B * c->Hv / (1e-3 * own) / flops);
    if (!strcmp(c->op, "decode") && !rounds_cpu_time) /* the limit is measured by wall time */
        printf(", \"share\": %.4g", 2.0 * (double)footprint / (1e-3 * own) / limit);
    printf("}\n");
    fflush(stdout);
}

static void race_rule(const struct race_case *c)
{
    struct peer p = peer_open(c->threads);
    const int64_t n = (int64_t)c->B * c->T;
    struct ggml_tensor *q = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, D, HK, c->T, c->B);
    struct ggml_tensor *k = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, D, HK, c->T, c->B);
    struct ggml_tensor *v = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, D, c->Hv, c->T, c->B);
    struct ggml_tensor *g = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, 1, c->Hv, c->T, c->B);
    struct ggml_tensor *beta = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, 1, c->Hv, c->T, c->B);
    struct ggml_tensor *S = ggml_new_tensor_4d(p.ctx, GGML_TYPE_F32, D, D, c->Hv, c->B);
    struct ggml_tensor *out = ggml_gated_delta_net(p.ctx, q, k, v, g, beta, S, 1);
    peer_plan(&p, out);
    fill(q, -0.5f, 0.5f), fill(k, -0.3f, 0.7f), normalise(q), normalise(k);
    fill(v, -1, 1), fill_gates(g), fill(beta, 0, 1), fill(S, -0.1f, 0.1f);

    const int64_t n_state = (int64_t)c->B * c->Hv * D * D, n_out = n * c->Hv * D;
    float *own_S = floats(n_state), *own_out = floats(n_out);
    struct ours o = { open_context(c->threads),
                      strcmp(c->op, "prefill") ? GDN_OP_DECODE : GDN_OP_PREFILL,
                      gdn_rule_args_init(), gdn_conv1d_args_init() };
    memcpy(own_S, S->data, (size_t)n_state * sizeof *own_S);
    o.rule.q = gdn_dense(q->data, GDN_F32, 4, c->B, c->T, HK, D);
    o.rule.k = gdn_dense(k->data, GDN_F32, 4, c->B, c->T, HK, D);
    o.rule.v = gdn_dense(v->data, GDN_F32, 4, c->B, c->T, c->Hv, D);
    o.rule.g = gdn_dense(g->data, GDN_F32, 3, c->B, c->T, c->Hv, 0);
    o.rule.beta = gdn_dense(beta->data, GDN_F32, 3, c->B, c->T, c->Hv, 0);
    o.rule.state = gdn_dense(own_S, GDN_F32, 4, c->B, c->Hv, D, D);
    o.rule.out = gdn_dense(own_out, GDN_F32, 4, c->B, c->T, c->Hv, D);
    o.rule.head_map = GDN_HEADS_INTERLEAVED;
    uint16_t *half[3] = { NULL, NULL, NULL };
    if (c->bf16) {
        struct ggml_tensor *from[] = { q, k, v };
        gdn_tensor *to[] = { &o.rule.q, &o.rule.k, &o.rule.v };
        for (int i = 0; i < 3; i++) {
            to[i]->data = half[i] = rounded(from[i]);
            to[i]->dtype = GDN_BF16;
        }
        o.rule.out.dtype = GDN_BF16;
        o.rule.flags = GDN_BF16_PRODUCTS;
    }

    peer_run(&p), ours_run(&o);
    if (c->bf16) widen(own_out, (const uint16_t *)(const void *)own_out, n_out);
    const float *result = out->data;
    const double difference = fmax(largest_difference(result, own_out, n_out),
                                   largest_difference(result + n_out, own_S, n_state));
    race(c, &p, &o, difference, (size_t)n_state * sizeof *own_S);
    gdn_ctx_destroy(o.ctx);
    free(own_S), free(own_out);
    for (int i = 0; i < 3; i++) free(half[i]);
    peer_close(&p);
}

static void race_conv(const struct race_case *c)
{
    struct peer p = peer_open(c->threads);
    const int64_t row = c->T + TAPS - 1, n = (int64_t)c->B * c->T * CHANNELS;
    struct ggml_tensor *x = ggml_new_tensor_3d(p.ctx, GGML_TYPE_F32, row, CHANNELS, c->B);
    struct ggml_tensor *w = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, TAPS, CHANNELS);
    struct ggml_tensor *out = ggml_silu(p.ctx, ggml_ssm_conv(p.ctx, x, w));
    peer_plan(&p, out);
    fill(x, -1, 1), fill(w, -0.5f, 0.5f);

    float *own_x = floats(n), *own_out = floats(n);
    float *own_S = floats((int64_t)c->B * CHANNELS * (TAPS - 1));
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t d = 0; d < CHANNELS; d++) {
            const float *from = (const float *)x->data + (b * CHANNELS + d) * row;
            for (int i = 0; i < TAPS - 1; i++) own_S[(b * CHANNELS + d) * (TAPS - 1) + i] = from[i];
            for (int64_t t = 0; t < c->T; t++)
                own_x[(b * c->T + t) * CHANNELS + d] = from[TAPS - 1 + t];
        }
    struct ours o = { open_context(c->threads), GDN_OP_CONV1D, gdn_rule_args_init(),
                      gdn_conv1d_args_init() };
    o.conv.x = gdn_dense(own_x, GDN_F32, 3, c->B, c->T, CHANNELS, 0);
    o.conv.weight = gdn_dense(w->data, GDN_F32, 2, CHANNELS, TAPS, 0, 0);
    o.conv.state = gdn_dense(own_S, GDN_F32, 3, c->B, CHANNELS, TAPS - 1, 0);
    o.conv.out = gdn_dense(own_out, GDN_F32, 3, c->B, c->T, CHANNELS, 0);
    o.conv.activation = GDN_ACT_SILU;

    peer_run(&p), ours_run(&o);
    race(c, &p, &o, largest_difference(out->data, own_out, n), 0);
    gdn_ctx_destroy(o.ctx);
    free(own_x), free(own_out), free(own_S);
    peer_close(&p);
}

int main(int argc, char **argv)
{
    static const struct race_case cases[] = {
        { "prefill", 32, 512, 1, false, 0 },  { "prefill", 32, 2048, 1, false, 0 },
        { "prefill", 32, 8192, 1, false, 0 }, { "prefill", 48, 512, 1, false, 0 },
        { "prefill", 48, 2048, 1, false, 0 }, { "prefill", 48, 8192, 1, false, 0 },
        { "prefill", 32, 512, 1, true, 0 },   { "prefill", 32, 2048, 1, true, 0 },
        { "prefill", 32, 8192, 1, true, 0 },  { "prefill", 48, 2048, 1, true, 0 },
        { "decode", 32, 1, 1, false, 0 },     { "decode", 32, 1, 8, false, 0 },
        { "decode", 32, 1, 32, false, 0 },    { "decode", 48, 1, 1, false, 0 },
        { "decode", 48, 1, 8, false, 0 },     { "decode", 48, 1, 32, false, 0 },
        { "conv", 0, 1, 1, false, 0 },        { "conv", 0, 1, 8, false, 0 },
        { "conv", 0, 1, 32, false, 0 },       { "conv", 0, 512, 1, false, 0 },
        { "conv", 0, 2048, 1, false, 0 },
    };
    static const char usage[] =
        "usage: race_ggml [--only prefill|decode|conv] [--seconds 2] [--clock wall|cpu]";
    const char *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--clock"))
            rounds_cpu_time = !strcmp(argv[i + 1], "cpu");
        else
            fail(usage);
    }
    if (argc % 2 == 0) fail(usage);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int threads = 1; threads <= (rounds_cpu_time ? 1 : 2); threads++) {
            struct race_case c = cases[i];
            c.threads = threads;
            if (only && strcmp(only, c.op)) continue;
            if (strcmp(c.op, "conv"))
                race_rule(&c);
            else
                race_conv(&c);
        }
    return 0;
}
