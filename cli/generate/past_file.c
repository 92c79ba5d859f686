/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/past_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli.h"

/* ---- The tensors of a file ------------------------------------------------------------------- */

/* The list that a file of this model has; data NULL for keys and values. */
struct list {
    struct st_tensor *tensors;
    int               n;
    struct memory     memory;
};

static void add(struct list *l, const char *name, int layer, gdn_tensor view)
{
    char *full = memory_get(&l->memory, 64);
    if (!full) return;
    if (layer < 0) snprintf(full, 64, "%s", name);
    else snprintf(full, 64, "layers.%d.%s", layer, name);
    l->tensors[l->n++] = (struct st_tensor){ full, view };
}

/* Returns a state's view, or memory for a copy of one that is on a GPU. */
static gdn_tensor on_host(struct list *l, const struct model *m, gdn_tensor state)
{
    return m->gpu ? memory_tensor(&l->memory, GDN_F32, state.ndim, state.size) : state;
}

/* Views of the past; those of keys and values are filled in by copies. */
static int make_list(struct list *l, const struct past *p, const struct model *m,
                     const float *logits)
{
    const struct config *c = &m->config;
    memset(l, 0, sizeof *l);
    const int wanted = 1 + 2 * c->n_layers;
    l->tensors       = memory_get(&l->memory, (size_t)wanted * sizeof *l->tensors);
    if (!l->tensors) return cli_bad("no memory for the state's file");
    add(l, "logits", -1, gdn_dense((void *)(uintptr_t)logits, GDN_F32, 1, c->vocab, 0, 0, 0));
    for (int i = 0; i < c->n_layers; i++) {
        const struct past_layer *at = &p->layers[i];
        if (m->layers[i].is_full) {
            add(l, "keys", i,
                gdn_dense(at->keys, GDN_F32, 3, p->n, c->n_kv_heads, c->head_dim, 0));
            add(l, "values", i,
                gdn_dense(NULL, GDN_F32, 3, c->n_kv_heads, c->head_dim, p->n, 0));
        } else {
            add(l, "conv_state", i, on_host(l, m, at->conv_state));
            add(l, "state", i, on_host(l, m, at->state));
            if (!l->tensors[l->n - 1].view.data || !l->tensors[l->n - 2].view.data)
                return cli_bad("no memory for the state's file");
        }
    }
    return l->n == wanted ? CLI_OK : cli_bad("no memory for the state's file");
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
    const int64_t rows = (int64_t)m->config.n_kv_heads * m->config.head_dim;
    for (int i = 0; i < m->config.n_layers; i++) {
        if (!m->layers[i].is_full) continue;
        gdn_tensor *t = &l->tensors[2 + 2 * i].view;
        *t            = memory_tensor(&l->memory, GDN_F32, t->ndim, t->size);
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
    char        temperature[32];
    cJSON      *metadata = cJSON_CreateObject();
    int         code     = make_list(&l, p, m, logits);
    snprintf(temperature, sizeof temperature, "%.17g", s->temperature);
    cJSON_AddStringToObject(metadata, "temperature", temperature);
    add_text(metadata, "tokens", "%" PRIu64, (uint64_t)p->n);
    add_text(metadata, "seed", "%" PRIu64, s->seed);
    add_text(metadata, "model", "%016" PRIx64, m->fingerprint);
    if (!code) code = pack_values(&l, p, m);
    if (!code) code = copy_states(&l, p, m, false);
    if (!code) code = st_write(path, l.tensors, l.n, metadata);
    cJSON_Delete(metadata);
    memory_free(&l.memory);
    return code;
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int read_metadata(const struct st_file *file, const struct model *m, struct past *p,
                         struct sampler *s)
{
    const char *tokens = st_metadata(file, "tokens"), *seed = st_metadata(file, "seed");
    const char *temperature = st_metadata(file, "temperature"), *model = st_metadata(file, "model");
    char        own[32];
    int64_t     number;
    snprintf(own, sizeof own, "%016" PRIx64, m->fingerprint);
    if (!tokens || !seed || !temperature || !model)
        return cli_bad("%s: not a state of gdn generate: no metadata tokens, seed, temperature, "
                       "model", file->path);
    if (strcmp(model, own))
        return cli_bad("%s: the state of another model (%.20s; this one is %s)", file->path, model,
                       own);
    if (!cli_integer(tokens, 1, INT32_MAX, &p->n) || !cli_integer(seed, 0, INT64_MAX, &number) ||
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
    const gdn_tensor       *w     = &wanted->view;
    bool same = found && found->view.dtype == GDN_F32 && found->view.ndim == w->ndim;
    for (int d = 0; same && d < w->ndim; d++) same = found->view.size[d] == w->size[d];
    if (same) return found->view.data;
    cli_bad("%s: tensor '%s' %s", file->path, wanted->name,
            found ? "has not the sizes that this model and the number of tokens want"
                  : "is absent");
    return NULL;
}

static int read_tensors(const struct st_file *file, const struct list *l, struct past *p)
{
    for (int i = 0; i < l->n; i++) {
        const gdn_tensor *t = &l->tensors[i].view;
        const float      *from = find(file, &l->tensors[i]);
        if (!from) return CLI_BAD;
        if (t->data) memcpy(t->data, from, (size_t)elements(t) * sizeof *from);
        else
            copy_rows(p->layers[(i - 1) / 2].values, p->capacity, from, p->n,
                      t->size[0] * t->size[1], p->n);
    }
    return CLI_OK;
}

static int read_file(const struct st_file *file, struct past *p, const struct model *m,
                     struct sampler *s, float *logits, int64_t more)
{
    struct past read = { 0 };
    struct list l;
    if (read_metadata(file, m, &read, s)) return CLI_BAD;
    if (past_make(p, m, read.n + more)) return CLI_BAD;
    p->n     = read.n;
    int code = make_list(&l, p, m, logits);
    if (!code) code = read_tensors(file, &l, p);
    if (!code) code = copy_states(&l, p, m, true);
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
