/* SPDX-License-Identifier: Apache-2.0 */
#include "model/past_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "program/command_line.h"

/* ---- The tensors of a file ------------------------------------------------------------------- */

/* The tensors of a state's file, in order: logits, then two of each layer. */
struct list {
    struct st_tensor *tensors;
    int n;
    struct memory memory;
};

static void add(struct list *l, const char *name, int layer, int ndim, const int64_t *size)
{
    char *full = memory_get(&l->memory, 64);
    struct st_tensor *t = &l->tensors[l->n];
    if (!full) return;
    if (layer < 0)
        snprintf(full, 64, "%s", name);
    else
        snprintf(full, 64, "layers.%d.%s", layer, name);
    t->name = full;
    t->view.dtype = GDN_F32;
    t->view.ndim = ndim;
    memcpy(t->view.size, size, (size_t)ndim * sizeof *size);
    l->n++;
}

/* Names and sizes after n tokens. They have no data yet. */
static int make_list(struct list *l, const struct model *m, int64_t n)
{
    const struct config *c = &m->config;
    const struct past_sizes s = past_sizes(c);
    memset(l, 0, sizeof *l);
    const int wanted = 1 + 2 * c->n_layers;
    l->tensors = memory_get(&l->memory, (size_t)wanted * sizeof *l->tensors);
    if (!l->tensors) return cli_bad("no memory for the state's file");
    add(l, "logits", -1, 1, &c->vocab);
    for (int i = 0; i < c->n_layers; i++) {
        if (m->layers[i].is_full) {
            add(l, "keys", i, 3, (const int64_t[]){ n, c->n_kv_heads, c->head_dim });
            add(l, "values", i, 3, (const int64_t[]){ c->n_kv_heads, c->value_dim, n });
        } else {
            add(l, "conv_state", i, 3, s.conv_state);
            add(l, "state", i, 4, s.state);
        }
    }
    return l->n == wanted ? CLI_OK : cli_bad("no memory for the state's file");
}

/* A state's data, or memory for a copy of one that is on a GPU. */
static int take_state(struct list *l, const struct model *m, gdn_tensor *view, gdn_tensor state)
{
    *view = m->gpu ? memory_tensor(&l->memory, GDN_F32, state.ndim, state.size) : state;
    return view->data ? CLI_OK : cli_bad("no memory for the state's file");
}

/* The tensors get the data of the past; values are filled in by copies. */
static int take_data(struct list *l, const struct past *p, const struct model *m,
                     const float *logits)
{
    l->tensors[0].view.data = (void *)(uintptr_t)logits;
    for (int i = 0; i < m->config.n_layers; i++) {
        const struct past_layer *at = &p->layers[i];
        struct st_tensor *t = &l->tensors[1 + 2 * i];
        if (m->layers[i].is_full)
            t->view.data = at->keys;
        else if (take_state(l, m, &t[0].view, at->conv_state) ||
                 take_state(l, m, &t[1].view, at->state))
            return CLI_BAD;
    }
    return CLI_OK;
}

/* Copies states of GDN layers between a GPU and the list. */
static int copy_states(const struct list *l, const struct past *p, const struct model *m,
                       bool to_gpu)
{
    for (int i = 0; m->gpu && i < m->config.n_layers; i++) {
        const gdn_tensor *states[] = { &p->layers[i].conv_state, &p->layers[i].state };
        for (int j = 0; j < 2 && !m->layers[i].is_full; j++) {
            void *host = l->tensors[1 + 2 * i + j].view.data;
            if (to_gpu ? gpu_put(m->gpu, states[j], host) : gpu_get(m->gpu, states[j], host))
                return CLI_BAD;
        }
    }
    return CLI_OK;
}

/* Copies rows of values: `to` and `from` rows have different lengths. */
static void copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                      int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, (size_t)n * sizeof *to);
}

static int64_t elements(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

/* ---- Saving ---------------------------------------------------------------------------------- */

static int pack_values(struct list *l, const struct past *p, const struct model *m)
{
    const int64_t rows = (int64_t)m->config.n_kv_heads * m->config.value_dim;
    for (int i = 0; i < m->config.n_layers; i++) {
        if (!m->layers[i].is_full) continue;
        gdn_tensor *t = &l->tensors[2 + 2 * i].view;
        *t = memory_tensor(&l->memory, GDN_F32, t->ndim, t->size);
        if (!t->data) return cli_bad("no memory for the state's file");
        copy_rows(t->data, p->n, p->layers[i].values, p->capacity, rows, p->n);
    }
    return CLI_OK;
}

static void add_text(cJSON *to, const char *key, const char *format, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, format, value);
    cJSON_AddStringToObject(to, key, text);
}

int past_save(const struct past *p, const struct model *m, const struct sampler *s,
              const float *logits, const char *path)
{
    struct list l;
    char temperature[32];
    cJSON *metadata = cJSON_CreateObject();
    int code = make_list(&l, m, p->n);
    snprintf(temperature, sizeof temperature, "%.17g", s->temperature);
    cJSON_AddStringToObject(metadata, "temperature", temperature);
    add_text(metadata, "tokens", "%" PRIu64, (uint64_t)p->n);
    add_text(metadata, "seed", "%" PRIu64, s->seed);
    add_text(metadata, "model", "%016" PRIx64, m->fingerprint);
    if (!code) code = take_data(&l, p, m, logits);
    if (!code) code = pack_values(&l, p, m);
    if (!code) code = copy_states(&l, p, m, false);
    if (!code) code = st_write(path, l.tensors, l.n, metadata);
    cJSON_Delete(metadata);
    memory_free(&l.memory);
    return code;
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int read_metadata(const struct st_file *file, const struct model *m, int64_t *n,
                         struct sampler *s)
{
    const char *tokens = st_metadata(file, "tokens"), *seed = st_metadata(file, "seed");
    const char *temperature = st_metadata(file, "temperature"), *model = st_metadata(file, "model");
    char own[32];
    int64_t number;
    snprintf(own, sizeof own, "%016" PRIx64, m->fingerprint);
    if (!tokens || !seed || !temperature || !model)
        return cli_bad("%s: not a state of gdn generate: no metadata tokens, seed, temperature, "
                       "model",
                       file->path);
    if (strcmp(model, own))
        return cli_bad("%s: the state of another model (%.20s; this one is %s)", file->path, model,
                       own);
    if (!cli_integer(tokens, 1, INT32_MAX, n) || !cli_integer(seed, 0, INT64_MAX, &number) ||
        !cli_real(temperature, &s->temperature) || s->temperature < 0)
        return cli_bad("%s: metadata tokens, seed or temperature is not a number in range",
                       file->path);
    s->seed = (uint64_t)number;
    return CLI_OK;
}

/* Returns the data of the file's tensor of this name and these sizes; NULL after one line. */
static const float *find(const struct st_file *file, const struct st_tensor *wanted)
{
    const struct st_tensor *found = st_find(file, wanted->name);
    const gdn_tensor *w = &wanted->view;
    bool same = found && found->view.dtype == GDN_F32 && found->view.ndim == w->ndim;
    for (int d = 0; same && d < w->ndim; d++) same = found->view.size[d] == w->size[d];
    if (same) return found->view.data;
    cli_bad("%s: tensor '%s' %s", file->path, wanted->name,
            found ? "has not the sizes that this model and the number of tokens want"
                  : "is absent");
    return NULL;
}

/* Reads the tensors, which find() has accepted. */
static void read_tensors(const struct st_file *file, const struct list *l, struct past *p)
{
    for (int i = 0; i < l->n; i++) {
        const gdn_tensor *t = &l->tensors[i].view;
        const float *from = find(file, &l->tensors[i]);
        if (t->data)
            memcpy(t->data, from, (size_t)elements(t) * sizeof *from);
        else
            copy_rows(p->layers[(i - 1) / 2].values, p->capacity, from, p->n,
                      t->size[0] * t->size[1], p->n);
    }
}

/* All is checked before there is memory for it: the number of tokens is the file's. */
static int read_file(const struct st_file *file, struct past *p, const struct model *m,
                     struct sampler *s, float *logits, int64_t more)
{
    struct list l = { .n = 0 };
    int64_t n;
    int code = read_metadata(file, m, &n, s);
    if (!code) code = make_list(&l, m, n);
    for (int i = 0; !code && i < l.n; i++)
        if (!find(file, &l.tensors[i])) code = CLI_BAD;
    if (!code) code = past_make(p, m, n + more);
    if (!code) {
        p->n = n;
        code = take_data(&l, p, m, logits);
    }
    if (!code) {
        read_tensors(file, &l, p);
        code = copy_states(&l, p, m, true);
    }
    memory_free(&l.memory);
    return code;
}

int past_load(struct past *p, const struct model *m, struct sampler *s, float *logits,
              const char *path, int64_t more)
{
    struct st_file file;
    memset(p, 0, sizeof *p);
    if (st_map(&file, path)) return CLI_BAD;
    const int code = read_file(&file, p, m, s, logits, more);
    st_close(&file);
    return code;
}
