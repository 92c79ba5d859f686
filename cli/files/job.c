/* SPDX-License-Identifier: Apache-2.0 */
#include "files/job.h"
#include "files/layer_weights.h"

#include <math.h>
#include <stdio.h>

#include "cli.h"

#define ALIAS(name, field) { #field, "layer." name },
/* The names that files have for arguments of the library, for errors. */
static const struct {
    const char *argument, *tensor;
} aliases[] = { { "g", "g_log" },
                { "g", "a" },
                { "beta", "b" },
                { "write_gate", "write" },
                { "state", "initial_state" },
                { "hidden", "hidden_states" },
                { "dout", "grad_output" },
                { "dstate_out", "grad_final_state" },
                LAYER_WEIGHTS(ALIAS) };

/* ---- Tensors and metadata ---------------------------------------------------------------- */

gdn_tensor job_tensor(const struct job *job, const char *name)
{
    const gdn_tensor absent = { NULL, 0, 0, { 0 }, { 0 } };
    const struct st_tensor *t = st_find(&job->file, name);
    return t ? t->view : absent;
}

int job_either(const struct job *job, const char *a, const char *b, gdn_tensor *found)
{
    if (st_find(&job->file, a) && st_find(&job->file, b))
        return cli_bad("%s: tensors '%s' and '%s': wanted one of them", job->file.path, a, b);
    *found = job_tensor(job, st_find(&job->file, a) ? a : b);
    return CLI_OK;
}

int job_need(const struct job *job, const gdn_tensor *t, const char *name)
{
    return t->data ? CLI_OK
                   : cli_bad("%s: tensor '%s': absent, op %s needs it", job->file.path, name,
                             job->kind->name);
}

int job_choice(const struct job *job, const char *key, const char *const *names, int32_t *value)
{
    char wanted[160] = "";
    const char *text = st_metadata(&job->file, key);
    if (!text) return CLI_OK;
    for (int32_t i = 0; names[i]; i++) {
        if (!strcmp(text, names[i])) {
            *value = i;
            return CLI_OK;
        }
        const size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? ", " : "", names[i]);
    }
    return cli_bad("%s: metadata '%s': '%.40s', wanted one of %s", job->file.path, key, text,
                   wanted);
}

int job_formula(const struct job *job, const char *key, const char *const *names, int32_t *value)
{
    int32_t i = *value - 1;
    if (job_choice(job, key, names, &i)) return CLI_BAD;
    *value = i + 1;
    return CLI_OK;
}

int job_number(const struct job *job, const char *key, float *value)
{
    const char *text = st_metadata(&job->file, key);
    double x;
    if (!text) return CLI_OK;
    if (!cli_real(text, &x) || !isfinite((float)x))
        return cli_bad("%s: metadata '%s': '%.40s', wanted a finite number", job->file.path, key,
                       text);
    *value = (float)x;
    return CLI_OK;
}

/* Reads a slot; absent: leaves it. */
static int read_slot(const struct job *job, const char *key, int64_t *slot)
{
    const char *text = st_metadata(&job->file, key);
    if (!text || cli_integer(text, 0, INT64_MAX, slot)) return CLI_OK;
    return cli_bad("%s: metadata '%s': '%.40s', wanted a slot", job->file.path, key, text);
}

int job_batch(struct job *job)
{
    static const char *const pads[] = { "zero", "keep", "sink", NULL };
    static const char *const writes[] = { "final", "each", "none", NULL };
    gdn_batch *b = &job->batch;
    *b = gdn_batch_init();
    b->cu_seqlens = job_tensor(job, "cu_seqlens");
    b->read_slots = job_tensor(job, "read_slots");
    b->write_slots = job_tensor(job, "write_slots");
    b->has_initial_state = job_tensor(job, "has_initial_state");
    b->num_accepted_tokens = job_tensor(job, "num_accepted_tokens");
    b->token_count = job_tensor(job, "token_count");
    if (job_choice(job, "pad_policy", pads, &b->pad_policy) ||
        job_choice(job, "write", writes, &b->write) || read_slot(job, "sink_slot", &b->sink_slot) ||
        read_slot(job, "first_slot", &b->first_slot))
        return CLI_BAD;
    job->keep = b->pad_policy == GDN_PAD_KEEP;
    return CLI_OK;
}

/* ---- Outputs ----------------------------------------------------------------------------- */

static void shape_text(const gdn_tensor *t, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < t->ndim && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", i ? "," : "",
                                 (long long)t->size[i]);
}

/* Same sizes and a float dtype. */
static int check_want(const struct job *job, const char *name, const gdn_tensor *want,
                      const gdn_tensor *got)
{
    char found[128] = "", wanted[128] = "";
    if (want->dtype > GDN_F16)
        return cli_bad("%s: tensor '%s': dtype %s, wanted F32, BF16 or F16", job->file.path, name,
                       st_dtype_name(want->dtype));
    if (want->ndim == got->ndim &&
        !memcmp(want->size, got->size, (size_t)got->ndim * sizeof *got->size))
        return CLI_OK;
    shape_text(want, found, sizeof found);
    shape_text(got, wanted, sizeof wanted);
    return cli_bad("%s: tensor '%s': shape [%s], but the op gives [%s]", job->file.path, name,
                   found, wanted);
}

int job_output(struct job *job, const char *name, const char *alias, gdn_tensor got)
{
    char expected[64];
    const struct st_tensor *want = NULL;
    struct job_output *o = &job->outputs[job->n_outputs++];
    snprintf(expected, sizeof expected, "expected.%s", name);
    want = st_find(&job->file, expected);
    if (alias) {
        snprintf(expected, sizeof expected, "expected.%s", alias);
        const struct st_tensor *other = st_find(&job->file, expected);
        if (want && other)
            return cli_bad("%s: tensors '%s' and '%s': wanted one of them", job->file.path,
                           want->name, other->name);
        if (other) name = alias;
        want = want ? want : other;
    }
    *o = (struct job_output){ .name = name, .got = got, .want = want ? &want->view : NULL };
    return want ? check_want(job, want->name, &want->view, &got) : CLI_OK;
}

int job_new_output(struct job *job, const char *name, int32_t dtype, int ndim, const int64_t *size,
                   gdn_tensor *made)
{
    *made = memory_tensor(&job->memory, dtype, ndim, size);
    if (!made->data) return cli_bad("%s: no memory for the %s", job->file.path, name);
    return job_output(job, name, NULL, *made);
}

/* Marks the last output. */
static int mark_gradient(struct job *job, bool of_gate, int32_t A)
{
    struct job_output *o = &job->outputs[job->n_outputs - 1];
    o->is_gradient = true, o->of_gate = of_gate, o->dtype = A;
    return CLI_OK;
}

int job_gradient_at(struct job *job, const char *name, gdn_tensor at, bool of_gate, int32_t A)
{
    return job_output(job, name, NULL, at) ? CLI_BAD : mark_gradient(job, of_gate, A);
}

int job_gradient(struct job *job, const char *name, int32_t dtype, const gdn_tensor *of,
                 bool of_gate, int32_t A, gdn_tensor *made)
{
    if (!of->data) return CLI_OK;
    if (job_new_output(job, name, dtype, of->ndim, of->size, made)) return CLI_BAD;
    return mark_gradient(job, of_gate, A);
}

int job_pool(struct job *job, const char *name, const char *alias, const gdn_tensor *from, int ndim,
             const int64_t *size)
{
    if (from->data && from->ndim != ndim)
        return cli_bad("%s: tensor '%s': %d dimensions, wanted %d", job->file.path,
                       st_find(&job->file, "state") ? "state" : "initial_state", (int)from->ndim,
                       ndim);
    job->pool = from->data ? memory_tensor(&job->memory, from->dtype, from->ndim, from->size)
                           : memory_tensor(&job->memory, GDN_F32, ndim, size);
    job->pool_from = from->data;
    if (!job->pool.data) return cli_bad("%s: no memory for the %s", job->file.path, name);
    return job_output(job, name, alias, job->pool);
}

/* ---- Running ----------------------------------------------------------------------------- */

/* The library's error names its argument; the file may call that tensor something else. */
static int refused(const struct job *job, gdn_ctx *ctx, gdn_status status)
{
    const char *text = gdn_last_error(ctx);
    const size_t n = strcspn(text, ":[ ");
    char note[64] = "";
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strlen(aliases[i].argument) == n && !memcmp(text, aliases[i].argument, n) &&
            !st_find(&job->file, aliases[i].argument) && st_find(&job->file, aliases[i].tensor))
            snprintf(note, sizeof note, " (%s is tensor '%s')", aliases[i].argument,
                     aliases[i].tensor);
    return cli_bad("%s: %s: %s%s", job->file.path, gdn_status_name(status), text, note);
}

int job_call(struct job *job, gdn_ctx *ctx, struct job_phase *phase, const char *name,
             int64_t tokens)
{
    return job_call_op(job, ctx, job->kind->op, &job->args, phase, name, tokens);
}

int job_call_op(struct job *job, gdn_ctx *ctx, gdn_op op, const void *args, struct job_phase *phase,
                const char *name, int64_t tokens)
{
    double seconds;
    const gdn_status status = cli_timed_call(ctx, op, args, &seconds);
    if (status) return refused(job, ctx, status);
    phase->name = name;
    phase->tokens = tokens;
    phase->seconds += seconds;
    snprintf(phase->kernel, sizeof phase->kernel, "%s", gdn_last_kernel(ctx));
    return CLI_OK;
}
