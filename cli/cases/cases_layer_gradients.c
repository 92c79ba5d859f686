/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a layer. Those of hidden are judged along a few directions. */
#include <math.h>
#include <stdlib.h>

#include "cases/layer.h"
#include "cli.h"
#include "internal/internal.h"

/* Makes a tensor with the sizes of a weight or an activation. */
static gdn_tensor like(struct layer_gradient_case *c, const gdn_tensor *t, int32_t dtype)
{
    return memory_tensor(&c->block.memory, dtype, t->ndim, t->size);
}

/* The gradients read what the layer reads. */
static void take_inputs(gdn_block_backward_args *a, const gdn_block_args *f)
{
    a->hidden = f->hidden, a->batch = f->batch, a->out_proj = f->out_proj;
    a->in_proj_qkv = f->in_proj_qkv, a->in_proj_z = f->in_proj_z;
    a->in_proj_b = f->in_proj_b, a->in_proj_a = f->in_proj_a;
    a->in_proj_qkvz = f->in_proj_qkvz, a->in_proj_ba = f->in_proj_ba;
    a->in_proj_q = f->in_proj_q, a->in_proj_k = f->in_proj_k, a->in_proj_v = f->in_proj_v;
    a->in_proj_z_down = f->in_proj_z_down, a->in_proj_a_down = f->in_proj_a_down;
    a->conv_weight = f->conv_weight, a->A_log = f->A_log, a->dt_bias = f->dt_bias;
    a->norm_weight = f->norm_weight, a->n_key_heads = f->n_key_heads;
    a->n_value_heads = f->n_value_heads, a->key_head_dim = f->key_head_dim;
    a->value_head_dim = f->value_head_dim, a->activation = f->activation;
    a->beta_kind = f->beta_kind, a->gate_lower_bound = f->gate_lower_bound;
}

int layer_gradient_case_make(struct layer_gradient_case *c, const struct case_dims *dims,
                             const int64_t *lengths, int64_t B)
{
    memset(c, 0, sizeof *c);
    if (block_case_make(&c->block, dims, lengths, B)) return CLI_BAD;
    const gdn_block_args *f = &c->block.args;
    gdn_block_backward_args *a = &c->args;
    *a = gdn_block_backward_args_init();
    take_inputs(a, f);
    a->dout = case_tensor(&c->block.memory, dims->dtype, 2, f->out.size, -1, 1);
    a->dhidden = like(c, &f->hidden, dims->dtype);
    const struct {
        gdn_tensor *to;
        const gdn_tensor *from;
    } weights[] = { { &a->din_proj_qkv, &f->in_proj_qkv },
                    { &a->din_proj_z, &f->in_proj_z },
                    { &a->din_proj_b, &f->in_proj_b },
                    { &a->din_proj_a, &f->in_proj_a },
                    { &a->din_proj_qkvz, &f->in_proj_qkvz },
                    { &a->din_proj_ba, &f->in_proj_ba },
                    { &a->din_proj_q, &f->in_proj_q },
                    { &a->din_proj_k, &f->in_proj_k },
                    { &a->din_proj_v, &f->in_proj_v },
                    { &a->din_proj_z_down, &f->in_proj_z_down },
                    { &a->din_proj_a_down, &f->in_proj_a_down },
                    { &a->dconv_weight, &f->conv_weight },
                    { &a->dA_log, &f->A_log },
                    { &a->ddt_bias, &f->dt_bias },
                    { &a->dnorm_weight, &f->norm_weight },
                    { &a->dout_proj, &f->out_proj } };
    bool there = a->dout.data && a->dhidden.data;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        if (!weights[i].from->data) continue; /* of the other kind */
        *weights[i].to = like(c, weights[i].from, GDN_F32);
        there = there && weights[i].to->data;
    }
    c->counts = memory_tensor(&c->block.memory, GDN_I64, 1, &B);
    if (there && c->counts.data) return CLI_OK;
    return cli_bad("no memory for the gradients of %lld tokens", (long long)c->block.tokens.N);
}

/* Returns the loss of the first T tokens where what is projected moves by h times `step`; NAN
 * without memory. */
static double loss_beside(const struct layer_gradient_case *c, const struct layer_projected *p,
                          const struct layer_projected *step, int64_t T, double h)
{
    const struct block_case *f = &c->block;
    const int64_t sizes[] = { T * f->qkv.size[0], T * f->z.size[0], T * f->b.size[0],
                              T * f->a.size[0] };
    const double *from[] = { p->mixed, p->z, p->b, p->a };
    const double *by[] = { step->mixed, step->z, step->b, step->a };
    double *x[4], sum = NAN;
    bool there = true;
    for (int i = 0; i < 4; i++) {
        x[i] = malloc((size_t)sizes[i] * sizeof *x[i]);
        there = there && x[i];
        for (int64_t j = 0; x[i] && j < sizes[i]; j++) x[i][j] = from[i][j] + h * by[i][j];
    }
    struct layer_projected moved = { x[0], x[1], x[2], x[3] };
    double *out = there ? layer_run(f, &moved, T, NULL) : NULL;
    if (out) sum = 0;
    for (int64_t i = 0; out && i < T * f->dims.hidden; i++)
        sum += out[i] * oracle_load(c->args.dout.data, c->args.dout.dtype, i);
    free(out);
    layer_free_projected(&moved);
    return sum;
}

/* Directions of a check. If a GPU rounds, the RMS of the errors is judged, which needs more. */
enum { DIRECTIONS = 3, ROUNDED_DIRECTIONS = 12 };

/* Computes the slope of the loss along a direction of ones and minus ones: `want` by differences,
 * `got` by dhidden. */
static bool judge_direction(const struct layer_gradient_case *c, const struct layer_projected *p,
                            int64_t T, uint64_t *seed, double *want, double *got)
{
    const double h = 1e-4;
    const int64_t n = T * c->block.dims.hidden;
    double *x = malloc((size_t)n * sizeof *x);
    struct layer_projected step = { NULL, NULL, NULL, NULL };
    *got = 0;
    for (int64_t i = 0; x && i < n; i++) {
        x[i] = case_random(seed) < 0.5 ? -1 : 1;
        *got += x[i] * oracle_load(c->args.dhidden.data, c->args.dhidden.dtype, i);
    }
    const bool there = x && layer_project_rows(&c->block, x, T, &step);
    if (there) *want = (loss_beside(c, p, &step, T, h) - loss_beside(c, p, &step, T, -h)) / (2 * h);
    free(x);
    layer_free_projected(&step);
    return there && !isnan(*want);
}

/* Checks a call in which no more tokens count than the judge follows. If a GPU rounds, a dozen
 * roundings follow each other. The usual size of a sum along a direction is the length of dhidden,
 * so the error is relative to that. */
int layer_gradient_case_check(struct layer_gradient_case *c, gdn_ctx *ctx, struct comparison *found)
{
    const int64_t *cu = c->block.tokens.cu_seqlens, B = c->block.tokens.B;
    const int64_t T = layer_tokens(cu[1]);
    const int32_t dtype = c->block.dims.dtype;
    gdn_block_backward_args cut = c->args;
    gdn_batch batch = *c->args.batch;
    int64_t *count = c->counts.data;
    const bool rounds = gdn_internal_device(ctx) && dtype != GDN_F32;
    const int n = rounds ? ROUNDED_DIRECTIONS : DIRECTIONS;
    double want[ROUNDED_DIRECTIONS], got[ROUNDED_DIRECTIONS], noise[ROUNDED_DIRECTIONS], size = 0;
    uint64_t seed = 35;
    for (int64_t b = 0; b < B; b++) count[b] = layer_tokens(cu[b + 1] - cu[b]);
    batch.token_count = c->counts;
    cut.batch = &batch;
    const gdn_status status = cli_call(ctx, GDN_OP_BLOCK_BACKWARD, &cut);
    if (status) return cli_failed(ctx, status);
    struct layer_projected p = { NULL, NULL, NULL, NULL };
    bool done = layer_project(&c->block, T, &p);
    for (int i = 0; i < n && done; i++) done = judge_direction(c, &p, T, &seed, &want[i], &got[i]);
    for (int64_t i = 0; i < T * c->block.dims.hidden; i++)
        size = hypot(size, oracle_load(c->args.dhidden.data, c->args.dhidden.dtype, i));
    layer_free_projected(&p);
    if (!done) return cli_bad("no memory for the check");
    for (int i = 0; i < n; i++) noise[i] = size * sqrt(12) * (dtype == GDN_BF16 ? 0x1p-9 : 0x1p-12);
    *found = rounds ? compare_noisy(got, want, noise, n) : compare_doubles(got, want, n, dtype);
    return CLI_OK;
}

/* Returns the input projections thrice, that of the output twice; 16 K V and two convolutions. */
double layer_gradient_case_flops(const struct layer_gradient_case *c)
{
    const struct case_dims *d = &c->block.dims;
    const double N = (double)c->block.tokens.N, in = block_case_weights(&c->block);
    const int64_t out = d->hidden * d->Hv * d->V;
    return N *
           (6 * in + (double)(4 * out + 16 * d->Hv * d->K * d->V + 6 * layer_channels(d) * d->W));
}

/* Counts a weight and its gradient, in float32. */
double layer_gradient_case_bytes(const struct layer_gradient_case *c)
{
    const gdn_block_backward_args *a = &c->args;
    const gdn_tensor *const all[] = { &a->hidden,    &a->dout,        &a->dhidden,     &a->out_proj,
                                      &a->dout_proj, &a->conv_weight, &a->dconv_weight };
    const size_t each = gdn_dtype_bytes(c->block.dims.dtype) + sizeof(float);
    double bytes = block_case_weights(&c->block) * (double)each;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bytes += case_bytes(all[i]);
    return bytes;
}
