/* SPDX-License-Identifier: Apache-2.0 */
#include "model/forward.h"

#include <math.h>

#include "model/rmsnorm.h"
#include "program/command_line.h"

enum { WINDOW = 256 }; /* tokens that attention and the MLP take together; bounds their memory */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

int forward_make(struct forward *f, const struct model *m, struct past *past, int64_t max_tokens)
{
    const size_t rows = (size_t)(max_tokens * m->config.hidden) * sizeof(float);
    const int64_t window = smaller(max_tokens, WINDOW);
    const size_t wide = (size_t)(window * m->config.intermediate) * sizeof(float);
    memset(f, 0, sizeof *f);
    f->m = m;
    f->past = past;
    f->x = memory_get(&f->memory, rows);
    f->y = memory_get(&f->memory, rows);
    f->z = memory_get(&f->memory, rows);
    f->gate = memory_get(&f->memory, wide);
    f->up = memory_get(&f->memory, wide);
    if (f->x && f->y && f->z && f->gate && f->up &&
        attention_make_room(&f->attention, &f->memory, m, window, past->capacity))
        return CLI_OK;
    return cli_bad("no memory for a call of %lld tokens", (long long)max_tokens);
}

void forward_free(struct forward *f) { memory_free(&f->memory); }

/* ---- Parts of a layer ------------------------------------------------------------------------ */

static void norm_rows(const struct forward *f, const float *x, const float *weight, float *y,
                      int64_t n)
{
    const int64_t width = f->m->config.hidden;
    for (int64_t t = 0; t < n; t++)
        rmsnorm(x + t * width, weight, y + t * width, width, f->m->config.eps,
                f->m->config.norm_center);
}

static void add_rows(const struct forward *f, float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n * f->m->config.hidden; i++) x[i] += y[i];
}

/* Parts go from y to z. Here all tokens in one call. */
static int run_gdn(struct forward *f, const struct layer *l, struct past_layer *past, int64_t n)
{
    gdn_block_args a = l->mixer.gdn;
    gdn_batch batch = gdn_batch_init();
    a.flags = f->flags;
    a.hidden = gdn_dense(f->y, GDN_F32, 2, n, f->m->config.hidden, 0, 0);
    a.out = gdn_dense(f->z, GDN_F32, 2, n, f->m->config.hidden, 0, 0);
    a.conv_state = past->conv_state;
    a.state = past->state;
    if (n <= f->past->n_steps) {
        batch.checkpoint_every = 1;
        a.batch = &batch;
        a.checkpoints = past->steps;
        a.conv_checkpoints = past->conv_steps;
    }
    if (f->m->gpu) return gpu_block(f->m->gpu, &a);
    if (gdn_block(f->m->ctx, &a)) return cli_bad("%s", gdn_last_error(f->m->ctx));
    return CLI_OK;
}

static int run_full(struct forward *f, const struct layer *l, struct past_layer *past, int64_t n)
{
    for (int64_t t = 0; t < n; t += WINDOW) {
        const int64_t at = t * f->m->config.hidden;
        if (attention(f->m, &l->mixer.full, f->past, past, &f->attention, f->past->n + t,
                      smaller(n - t, WINDOW), f->y + at, f->z + at))
            return CLI_BAD;
    }
    return CLI_OK;
}

/* Runs the MLP, SwiGLU. */
static int run_mlp(struct forward *f, const struct layer *l, struct past_layer *past, int64_t n)
{
    (void)past;
    for (int64_t t = 0; t < n; t += WINDOW) {
        const int64_t some = smaller(n - t, WINDOW), at = t * f->m->config.hidden;
        if (model_product(f->m, &l->gate_proj, f->y + at, f->gate, some) ||
            model_product(f->m, &l->up_proj, f->y + at, f->up, some))
            return CLI_BAD;
        for (int64_t i = 0; i < some * f->m->config.intermediate; i++)
            f->up[i] *= f->gate[i] / (1 + expf(-f->gate[i]));
        if (model_product(f->m, &l->down_proj, f->up, f->z + at, some)) return CLI_BAD;
    }
    return CLI_OK;
}

/* ---- All layers ------------------------------------------------------------------------------ */

typedef int run_part(struct forward *f, const struct layer *l, struct past_layer *past, int64_t n);

/* Adds a part of a layer to x. Its norm is of what it takes, or of what it gives. */
static int add_part(struct forward *f, int i, run_part *run, const float *norm, int64_t n)
{
    const struct layer *l = &f->m->layers[i];
    if (l->norms_after)
        memcpy(f->y, f->x, (size_t)(n * f->m->config.hidden) * sizeof *f->y);
    else
        norm_rows(f, f->x, norm, f->y, n);
    if (run(f, l, &f->past->layers[i], n)) return CLI_BAD;
    if (l->norms_after) norm_rows(f, f->z, norm, f->z, n);
    add_rows(f, f->x, f->z, n);
    return CLI_OK;
}

static int run_layer(struct forward *f, int i, int64_t n)
{
    const struct layer *l = &f->m->layers[i];
    return add_part(f, i, l->is_full ? run_full : run_gdn, l->input_norm, n) ||
                   add_part(f, i, run_mlp, l->post_norm, n)
               ? CLI_BAD
               : CLI_OK;
}

/* Rows of the embedding, as float32. */
static void embed(struct forward *f, const int32_t *tokens, int64_t n)
{
    const int64_t width = f->m->config.hidden;
    const gdn_tensor *e = &f->m->embedding;
    const int64_t bytes = width * (int64_t)gdn_dtype_bytes(e->dtype);
    for (int64_t t = 0; t < n; t++)
        matrix_widen(&f->m->matrix, f->x + t * width, (char *)e->data + tokens[t] * bytes, e->dtype,
                     width);
}

int forward_run(struct forward *f, const int32_t *tokens, int64_t n)
{
    embed(f, tokens, n);
    for (int i = 0; i < f->m->config.n_layers; i++)
        if (run_layer(f, i, n)) return CLI_BAD;
    norm_rows(f, f->x, f->m->norm, f->x, n);
    f->past->n += n;
    return CLI_OK;
}

int forward_logits(struct forward *f, int64_t first, int64_t n, float *logits)
{
    return model_product(f->m, &f->m->head, f->x + first * f->m->config.hidden, logits, n);
}
