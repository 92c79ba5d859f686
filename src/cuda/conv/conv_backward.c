/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/conv.h"
#include "calls/conv_backward.h"
#include "calls/op_backends.h"
#include "cuda/conv/args.h"
#include "cuda/driver/contents.h"
#include "cuda/driver/launch.h"

enum { WIDE = 128 }; /* channels of a block; as in conv_backward.cu */
/* Tokens of a block, at least; blocks, at most: each has sums in memory. */
enum { LEAST_ROWS = 64, MOST_BLOCKS = 256 };

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

_Static_assert(sizeof(struct gdn_cu_conv_backward) <= GDN_PLAN_ROOM, "a plan has room");

/* Returns the rows with the step of channels, in elements, in the place of the head's. */
static struct gdn_rows by_elements(const struct gdn_rows *rows, int64_t D)
{
    struct gdn_rows r = *rows;
    r.head = gdn_is_strided(rows, D) ? r.head / (int64_t)gdn_dtype_bytes(r.dtype) : 1;
    return r;
}

static gdn_status plan_conv1d_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_conv_backward_call *c = call;
    const struct gdn_conv_backward *w = &c->work;
    const int64_t N = c->tokens.padded ? c->tokens.B * c->tokens.T : c->tokens.N;
    const int64_t rows =
        divide_up(N, MOST_BLOCKS) < LEAST_ROWS ? LEAST_ROWS : divide_up(N, MOST_BLOCKS);
    struct gdn_cu_conv_backward *args = GDN_PLANNED(struct gdn_cu_conv_backward, &c->base);
    (void)ctx;
    *args = (struct gdn_cu_conv_backward){
        .x = by_elements(&w->x, w->D),
        .dout = by_elements(&w->dout, w->D),
        .dx = by_elements(&w->dx, w->D),
        .weight = w->weight,
        .bias = w->bias,
        .dweight = w->dweight,
        .dbias = w->dbias,
        .state = w->state,
        .dstate_out = w->dstate_out,
        .dstate = w->dstate,
        .D = w->D,
        .N = N,
        .rows = rows,
        .n_blocks = divide_up(N, rows),
        .W = w->W,
        .silu = w->silu,
        .adds = w->adds,
    };
    gdn_cuda_fill_batch(&args->batch, &c->plan, &c->tokens, &c->pools);
    if (w->dweight.data || w->dbias.data)
        c->base.bytes = (size_t)(args->n_blocks * (w->W + 1) * w->D) * sizeof(float);
    return GDN_OK;
}

static gdn_status launch(gdn_ctx *ctx, const struct gdn_cu_conv_backward *args, void *stream)
{
    static const enum gdn_kernel_id kernels[2][3] = {
        { GDN_CU_conv_backward_tokens_4, GDN_CU_conv_backward_tokens_8,
          GDN_CU_conv_backward_tokens_16 },
        { GDN_CU_conv_backward_states_4, GDN_CU_conv_backward_states_8,
          GDN_CU_conv_backward_states_16 },
    };
    const int taps = (args->W > 4) + (args->W > 8);
    const struct gdn_cuda_call tokens = {
        .kernel = kernels[0][taps],
        .grid = { args->n_blocks, divide_up(args->D, WIDE), 1 },
        .stream = stream,
        .args = args,
    };
    const struct gdn_cuda_call states = {
        .kernel = kernels[1][taps],
        .grid = { args->batch.B, divide_up(args->D, WIDE), 1 },
        .stream = stream,
        .args = args,
    };
    const struct gdn_cuda_call sums = {
        .kernel = GDN_CU_conv_backward_sums_0,
        .grid = { divide_up((args->W + 1) * args->D, WIDE), 1, 1 },
        .stream = stream,
        .args = args,
    };
    struct gdn_cuda_ran ran = { .n = 1, .kernels = { tokens.kernel } };
    TRY(gdn_cuda_launch(ctx, &tokens));
    if (args->dstate.data) {
        TRY(gdn_cuda_launch(ctx, &states));
        gdn_cuda_ran_add(&ran, states.kernel);
    }
    if (args->dweight.data || args->dbias.data) {
        TRY(gdn_cuda_launch(ctx, &sums));
        gdn_cuda_ran_add(&ran, sums.kernel);
    }
    return gdn_cuda_note_all(ctx, "conv1d_backward", ran.kernels, ran.n);
}

static gdn_status run_conv1d_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_conv_backward_call *c = call;
    struct gdn_cu_conv_backward *args = GDN_PLANNED(struct gdn_cu_conv_backward, &c->base);
    args->sums = c->base.bytes ? memory : NULL;
    TRY(gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools, c->base.stream));
    return launch(ctx, args, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_conv1d_backward = { plan_conv1d_backward,
                                                            run_conv1d_backward };
