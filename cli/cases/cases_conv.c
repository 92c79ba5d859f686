/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution, with random inputs and a float64 judge. */
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"

enum { CHECKED_CHANNELS = 16, CHECKED_TOKENS = 512 };

/* Returns element [i][j][l] of a dense tensor of up to three dimensions. */
static double at(const gdn_tensor *t, int64_t i, int64_t j, int64_t l)
{
    return oracle_load(t->data, t->dtype, i * t->stride[0] + j * t->stride[1] + l * t->stride[2]);
}

/* Returns true for several sequences of one length. */
static bool is_even(const struct case_batch *b)
{
    if (b->B < 2 || !b->cu_seqlens) return false;
    for (int64_t i = 0; i < b->B; i++)
        if (b->cu_seqlens[i] * b->B != i * b->N) return false;
    return b->N > 0;
}

/* Returns channel d of token t of sequence 0. */
static double token_at(const gdn_tensor *x, int64_t t, int64_t d)
{
    return x->ndim == 3 ? at(x, 0, t, d) : at(x, t, d, 0);
}

int conv_case_make(struct conv_case *c, const struct case_dims *dims, const int64_t *lengths,
                   int64_t B)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->tokens = case_batch(&c->memory, lengths, B);
    c->batch = case_gdn_batch(&c->tokens);
    gdn_conv1d_args *a = &c->args;
    *a = gdn_conv1d_args_init();
    const bool even = is_even(&c->tokens); /* then padded, as an engine's decode step is */
    const int64_t first = even ? B : c->tokens.N;
    const int64_t x[] = { first, even ? c->tokens.N / B : dims->D, dims->D };
    const int64_t weight[] = { dims->D, dims->W };
    const int64_t state[] = { B, dims->D, dims->entries ? dims->entries : dims->W - 1 };
    if (even) c->batch = gdn_batch_init();
    a->x = case_tensor(&c->memory, dims->dtype, 2 + even, x, -1, 1);
    a->weight = case_tensor(&c->memory, dims->dtype, 2, weight, -0.5, 0.5);
    a->state = case_tensor(&c->memory, dims->state_dtype, 3, state, -1, 1);
    a->out = memory_tensor(&c->memory, dims->dtype, 2 + even, x);
    a->activation = GDN_ACT_SILU;
    a->batch = &c->batch;
    return c->tokens.cu_seqlens && a->x.data && a->weight.data && a->state.data && a->out.data
               ? CLI_OK
               : cli_bad("no memory for %lld tokens", (long long)c->tokens.N);
}

/* Returns some channels, spread over all, of the first tokens of sequence 0. */
static int64_t channel(const struct conv_case *c, int64_t i)
{
    return i * (c->dims.D - 1) / (CHECKED_CHANNELS - 1);
}

/* Loads history and weights of the checked channels, before the call. */
static void load_channels(const struct conv_case *c, double *history, double *weight)
{
    const int64_t W = c->dims.W, older = c->args.state.size[2] - (W - 1);
    for (int64_t i = 0; i < CHECKED_CHANNELS; i++) {
        const int64_t d = channel(c, i);
        for (int64_t w = 0; w < W; w++) weight[i * W + w] = at(&c->args.weight, d, w, 0);
        for (int64_t w = 0; w < W - 1; w++)
            history[w * CHECKED_CHANNELS + i] = at(&c->args.state, 0, d, older + w);
    }
}

int conv_case_check(struct conv_case *c, gdn_ctx *ctx, struct comparison *found)
{
    enum { C = CHECKED_CHANNELS };
    const int64_t T = c->tokens.cu_seqlens[1], W = c->dims.W;
    const int64_t n = T < CHECKED_TOKENS ? T : CHECKED_TOKENS;
    double *x = malloc((size_t)(C * (3 * n + 2 * W)) * sizeof *x);
    if (!x) return cli_bad("no memory for the check");
    double *want = x + n * C, *got = want + n * C, *weight = got + n * C, *history = weight + W * C;
    load_channels(c, history, weight);
    for (int64_t i = 0; i < n * C; i++) x[i] = token_at(&c->args.x, i / C, channel(c, i % C));
    const gdn_status status = cli_call(ctx, GDN_OP_CONV1D, &c->args);
    for (int64_t i = 0; i < n * C && !status; i++)
        got[i] = token_at(&c->args.out, i / C, channel(c, i % C));
    if (!status) {
        oracle_conv(want, NULL, x, history, weight, NULL, true, n, C, (int)W);
        *found = compare_doubles(got, want, n * C,
                                 compare_precision(c->dims.dtype, c->dims.state_dtype));
    }
    free(x);
    return status ? cli_failed(ctx, status) : CLI_OK;
}

/* Returns a multiplication and an addition per tap. */
double conv_case_flops(const struct conv_case *c)
{
    return 2.0 * (double)(c->tokens.N * c->dims.D) * (double)c->dims.W;
}

double conv_case_bytes(const struct conv_case *c)
{
    return case_bytes(&c->args.x) + case_bytes(&c->args.out) + case_bytes(&c->args.weight) +
           2 * case_bytes(&c->args.state);
}
