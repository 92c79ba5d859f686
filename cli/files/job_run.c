/* SPDX-License-Identifier: Apache-2.0 */
/* A file becomes a call of the op that it names: read, run and compared. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "files/job.h"
#include "measure.h"

static const struct job_kind *const kinds[] = {
    &job_prefill,        &job_decode, &job_layer,         &job_conv1d,
    &job_gates,          &job_l2norm, &job_rmsnorm_gated, &job_prefill_backward,
    &job_layer_backward,
};

/* Returns the kind of a file without the metadata `op`, from its tensors. */
static const struct job_kind *infer(const struct st_file *f)
{
    if (st_find(f, "hidden_states"))
        return st_find(f, "grad_output") ? &job_layer_backward : &job_layer;
    if (st_find(f, "grad_output")) return &job_prefill_backward;
    if (st_find(f, "q") && st_find(f, "k") && st_find(f, "v"))
        return st_find(f, "state") || st_find(f, "a") || st_find(f, "b") ? &job_decode
                                                                         : &job_prefill;
    if (st_find(f, "x")) {
        const struct st_tensor *weight = st_find(f, "weight");
        if (weight && weight->view.ndim > 1) return &job_conv1d;
        return st_find(f, "z") || weight ? &job_rmsnorm_gated : &job_l2norm;
    }
    return st_find(f, "a") || st_find(f, "b") ? &job_gates : NULL;
}

static int choose_kind(struct job *job)
{
    const char *name = st_metadata(&job->file, "op");
    if (!name) {
        job->kind = infer(&job->file);
        return job->kind
                   ? CLI_OK
                   : cli_bad("%s: no metadata 'op', and no op has these tensors", job->file.path);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(name, kinds[i]->name)) job->kind = kinds[i];
    return job->kind ? CLI_OK
                     : cli_bad("%s: metadata 'op': '%.40s', wanted prefill, decode, layer, conv1d, "
                               "gates, l2norm, rmsnorm_gated, prefill_backward or layer_backward",
                               job->file.path, name);
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name)) return true;
    return false;
}

/* Checks the names: a misspelt one would otherwise mean the default, silently. */
static int check_names(const struct job *job)
{
    const struct st_file *f = &job->file;
    const struct job_kind *kind = job->kind;
    const cJSON *item;
    for (int i = 0; i < f->n_tensors; i++)
        if (!listed(kind->tensors, f->tensors[i].name))
            return cli_bad("%s: tensor '%s': op %s has none of that name (gdn run --help)", f->path,
                           f->tensors[i].name, kind->name);
    cJSON_ArrayForEach(item, f->metadata)
    {
        if (strcmp(item->string, "op") && !listed(kind->metadata, item->string))
            return cli_bad("%s: metadata '%s': op %s has none of that name (gdn run --help)",
                           f->path, item->string, kind->name);
    }
    return CLI_OK;
}

static size_t bytes_of(const gdn_tensor *t)
{
    int64_t bytes = 0;
    memory_bytes(t->dtype, t->ndim, t->size, &bytes);
    return (size_t)bytes;
}

/* Before each run: states as the file says, outputs NaN, so that none passes unwritten. */
static void restore(struct job *job)
{
    for (int i = 0; i < job->n_outputs; i++)
        memset(job->outputs[i].got.data, job->keep ? 0 : 0xff, bytes_of(&job->outputs[i].got));
    if (!job->pool.data) return;
    if (job->pool_from)
        memcpy(job->pool.data, job->pool_from, bytes_of(&job->pool));
    else
        memset(job->pool.data, 0, bytes_of(&job->pool));
}

/* Computes the op in a few runs and keeps the fastest; all runs but the first find memory and
 * caches warm. */
static int compute(struct job *job, gdn_ctx *ctx)
{
    struct job_phase best[2] = { { .seconds = INFINITY }, { .seconds = INFINITY } };
    const double start = measure_clock();
    for (int run = 0; run < 5 && (run < 1 || measure_clock() - start < 0.05); run++) {
        restore(job);
        memset(job->phases, 0, sizeof job->phases);
        if (job->kind->compute(job, ctx)) return CLI_BAD;
        for (int i = 0; i < job->n_phases; i++)
            if (job->phases[i].seconds < best[i].seconds) best[i] = job->phases[i];
    }
    memcpy(job->phases, best, sizeof best);
    return CLI_OK;
}

int job_run(struct job *job, gdn_ctx *ctx, const char *path)
{
    bool ok = true;
    memset(job, 0, sizeof *job);
    if (st_open(&job->file, path) || choose_kind(job) || check_names(job) ||
        job->kind->prepare(job) || compute(job, ctx))
        return CLI_BAD;
    for (int i = 0; i < job->n_outputs; i++) {
        struct job_output *o = &job->outputs[i];
        if (o->want && o->is_gradient)
            o->judged = compare_gradient(&o->got, o->want, o->dtype, o->of_gate);
        else if (o->want)
            o->judged = compare(&o->got, o->want, job->precision);
        ok = ok && (!o->want || o->judged.ok);
    }
    return ok ? CLI_OK : CLI_OUTSIDE;
}

void job_close(struct job *job)
{
    st_close(&job->file);
    memory_free(&job->memory);
}
