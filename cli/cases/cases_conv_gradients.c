/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution's gradients; all of some channels are judged. */
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"

enum { CHECKED_CHANNELS = 16, MOST_TAPS = 16 };

int conv_gradient_case_make(struct conv_gradient_case *c, const struct case_dims *dims,
                            const int64_t *lengths, int64_t B)
{
    memset(c, 0, sizeof *c);
    if (conv_case_make(&c->conv, dims, lengths, B)) return CLI_BAD;
    struct memory *m = &c->conv.memory;
    const gdn_conv1d_args *f = &c->conv.args;
    gdn_conv1d_backward_args *a = &c->args;
    *a = gdn_conv1d_backward_args_init();
    a->x = f->x, a->weight = f->weight, a->state = f->state;
    a->batch = f->batch, a->activation = f->activation;
    a->dout = case_tensor(m, dims->dtype, f->x.ndim, f->x.size, -1, 1);
    a->dstate_out = case_tensor(m, GDN_F32, 3, f->state.size, -1, 1);
    a->dx = memory_tensor(m, dims->dtype, f->x.ndim, f->x.size);
    a->dweight = memory_tensor(m, GDN_F32, 2, f->weight.size);
    a->dbias = memory_tensor(m, GDN_F32, 1, &dims->D);
    a->dstate = memory_tensor(m, GDN_F32, 3, f->state.size);
    return a->dout.data && a->dstate_out.data && a->dx.data && a->dweight.data && a->dbias.data &&
                   a->dstate.data
               ? CLI_OK
               : cli_bad("no memory for the gradients of %lld tokens", (long long)c->conv.tokens.N);
}

/* ---- The judge --------------------------------------------------------------------------- */

static double at(const gdn_tensor *t, int64_t i, int64_t j, int64_t l)
{
    return oracle_load(t->data, t->dtype, i * t->stride[0] + j * t->stride[1] + l * t->stride[2]);
}

/* The gradients of one channel: [N] of x, [W] of its weights and the bias behind, [B][W - 1] of
 * states. */
struct channel {
    double *dx, sums[MOST_TAPS + 1], *dstate;
};

/* Returns the place of the gradient of input t of sequence b; t < 0: of its state. */
static double *input_of(const struct conv_gradient_case *c, const struct channel *to, int64_t b,
                        int64_t t)
{
    const int64_t S = c->conv.dims.W - 1;
    return t < 0 ? &to->dstate[b * S + S + t] : &to->dx[c->conv.tokens.cu_seqlens[b] + t];
}

static double input(const struct conv_gradient_case *c, int64_t b, int64_t t, int64_t d)
{
    return t < 0 ? at(&c->args.state, b, d, c->conv.dims.W - 1 + t)
                 : at(&c->args.x, c->conv.tokens.cu_seqlens[b] + t, d, 0);
}

static void follow_token(const struct conv_gradient_case *c, int64_t b, int64_t t, int64_t d,
                         struct channel *to)
{
    const int64_t W = c->conv.dims.W, first = t - W + 1;
    double z = 0;
    for (int64_t i = 0; i < W; i++) z += at(&c->args.weight, d, i, 0) * input(c, b, first + i, d);
    const double dz = at(&c->args.dout, c->conv.tokens.cu_seqlens[b] + t, d, 0) *
                      oracle_sigmoid(z) * (1 + z * oracle_sigmoid(-z));
    to->sums[W] += dz;
    for (int64_t i = 0; i < W; i++) {
        to->sums[i] += dz * input(c, b, first + i, d);
        *input_of(c, to, b, first + i) += dz * at(&c->args.weight, d, i, 0);
    }
}

/* Adds dstate_out to the gradients of the inputs that the final state holds. */
static void follow(const struct conv_gradient_case *c, int64_t d, struct channel *to)
{
    const int64_t S = c->conv.dims.W - 1, *cu = c->conv.tokens.cu_seqlens;
    for (int64_t b = 0; b < c->conv.tokens.B; b++) {
        const int64_t n = cu[b + 1] - cu[b];
        for (int64_t e = 0; e < S; e++)
            *input_of(c, to, b, n - S + e) += at(&c->args.dstate_out, b, d, e);
        for (int64_t t = 0; t < n; t++) follow_token(c, b, t, d, to);
    }
}

/* The worst of a tensor and of what was found so far. */
static void judge(struct comparison *worst, const double *got, const double *want, int64_t n,
                  int32_t dtype)
{
    const struct comparison c = compare_gradient_doubles(got, want, n, dtype, false);
    if (worst->ok && (!c.ok || c.max_error * worst->max_limit >= worst->max_error * c.max_limit))
        *worst = c;
}

/* got: room for the channel's gradients. */
static void judge_channel(const struct conv_gradient_case *c, int64_t d, const struct channel *want,
                          double *got, struct comparison *worst)
{
    const gdn_conv1d_backward_args *a = &c->args;
    const int64_t W = c->conv.dims.W, S = W - 1, N = c->conv.tokens.N, B = c->conv.tokens.B;
    for (int64_t t = 0; t < N; t++) got[t] = at(&a->dx, t, d, 0);
    judge(worst, got, want->dx, N, a->dx.dtype);
    for (int64_t i = 0; i < W; i++) got[i] = at(&a->dweight, d, i, 0);
    got[W] = at(&a->dbias, d, 0, 0);
    judge(worst, got, want->sums, W + 1, GDN_F32);
    for (int64_t i = 0; i < B * S; i++) got[i] = at(&a->dstate, i / S, d, i % S);
    judge(worst, got, want->dstate, B * S, GDN_F32);
}

int conv_gradient_case_check(struct conv_gradient_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t W = c->conv.dims.W, N = c->conv.tokens.N, D = c->conv.dims.D;
    const size_t n = (size_t)(N + c->conv.tokens.B * (W - 1) + W + 1);
    double *room = malloc(2 * n * sizeof *room), *got = room + n;
    if (!room) return cli_bad("no memory for the check");
    const gdn_status status = cli_call(ctx, GDN_OP_CONV1D_BACKWARD, &c->args);
    *found = (struct comparison){ .ok = true, .max_limit = 1 };
    for (int64_t i = 0; i < CHECKED_CHANNELS && !status; i++) {
        const int64_t d = i * (D - 1) / (CHECKED_CHANNELS - 1);
        struct channel want = { .dx = room, .dstate = room + N };
        memset(room, 0, n * sizeof *room);
        follow(c, d, &want);
        judge_channel(c, d, &want, got, found);
    }
    free(room);
    return status ? cli_failed(ctx, status) : CLI_OK;
}
