/* SPDX-License-Identifier: Apache-2.0 */
#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

#include "program/command_line.h"
#include "program/os.h"
#include "program/whole_file.h"

enum { MAX_SHARDS = 4096 };

const char *checkpoint_path(struct checkpoint *c, const char *name)
{
    const size_t bytes = strlen(c->path) + strlen(name) + 2;
    char *path = memory_get(&c->memory, bytes);
    if (path) snprintf(path, bytes, "%s/%s", c->path, name);
    return path;
}

bool checkpoint_has(struct checkpoint *c, const char *name)
{
    bool is_folder;
    if (!c->is_folder) return false;
    const char *path = checkpoint_path(c, name);
    return path && !os_is_folder(path, &is_folder);
}

int checkpoint_json(struct checkpoint *c, const char *name, cJSON **json)
{
    const char *path = checkpoint_path(c, name);
    void *text;
    size_t bytes;
    if (!path) return cli_bad("%s: no memory", c->path);
    if (whole_file_read(path, &c->memory, &text, &bytes)) return CLI_BAD;
    *json = cJSON_ParseWithLength(text, bytes);
    return *json ? CLI_OK : cli_bad("%s: not JSON", path);
}

/* ---- Files of weights ------------------------------------------------------------------------ */

static int open_file(struct checkpoint *c, const char *path)
{
    if (st_map(&c->files[c->n_files], path)) return CLI_BAD;
    c->n_files++;
    return CLI_OK;
}

static int open_named(struct checkpoint *c, const char *name)
{
    const char *path = checkpoint_path(c, name);
    return path ? open_file(c, path) : cli_bad("%s: no memory", c->path);
}

/* Checks the name of a shard, which comes from a file: it stays in the folder. */
static int check_name(const char *index, const cJSON *item)
{
    const char *name = cJSON_GetStringValue(item);
    if (!name || !*name || strpbrk(name, "/\\:"))
        return cli_bad("%s: tensor '%s': '%.100s' is not the name of a file in this folder", index,
                       item->string, name ? name : "no text");
    return CLI_OK;
}

static struct st_file *find_file(struct checkpoint *c, const char *name)
{
    const size_t folder = strlen(c->path) + 1;
    for (int i = 0; i < c->n_files; i++)
        if (!strcmp(c->files[i].path + folder, name)) return &c->files[i];
    return NULL;
}

/* Opens the shards, and checks that every tensor of the map is in the file that the map says. */
static int open_shards(struct checkpoint *c, const cJSON *index, const char *path)
{
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *item;
    if (!cJSON_IsObject(map)) return cli_bad("%s: no object 'weight_map'", path);
    cJSON_ArrayForEach(item, map)
    {
        if (check_name(path, item)) return CLI_BAD;
        struct st_file *file = find_file(c, item->valuestring);
        if (!file) {
            if (c->n_files == MAX_SHARDS)
                return cli_bad("%s: more than %d files", path, MAX_SHARDS);
            if (open_named(c, item->valuestring)) return CLI_BAD;
            file = &c->files[c->n_files - 1];
        }
        if (!st_find(file, item->string))
            return cli_bad("%s: tensor '%s' is not in %s", path, item->string, file->path);
    }
    return CLI_OK;
}

static int open_folder(struct checkpoint *c)
{
    static const char index_name[] = "model.safetensors.index.json";
    cJSON *index = NULL;
    if (checkpoint_json(c, "config.json", &c->config)) return CLI_BAD;
    if (checkpoint_has(c, "adapter_config.json"))
        return cli_bad("%s: an adapter (adapter_config.json), which is not supported; merge it "
                       "into the weights",
                       c->path);
    if (checkpoint_has(c, "model.safetensors")) return open_named(c, "model.safetensors");
    if (!checkpoint_has(c, index_name))
        return cli_bad("%s: neither model.safetensors nor %s is there", c->path, index_name);
    int code = checkpoint_json(c, index_name, &index);
    if (!code) code = open_shards(c, index, checkpoint_path(c, index_name));
    cJSON_Delete(index);
    return code;
}

static int open_single(struct checkpoint *c)
{
    if (open_file(c, c->path)) return CLI_BAD;
    const char *text = st_metadata(&c->files[0], "config");
    if (!text) return cli_bad("%s: no metadata 'config' (the text of config.json)", c->path);
    c->config = cJSON_Parse(text);
    return c->config ? CLI_OK : cli_bad("%s: metadata 'config': not JSON", c->path);
}

/* ---- Tensors of all files -------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int list_tensors(struct checkpoint *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_files; i++) n += c->files[i].n_tensors;
    c->tensors = memory_get(&c->memory, (size_t)n * sizeof *c->tensors);
    if (!c->tensors) return cli_bad("%s: no memory for %lld tensors", c->path, (long long)n);
    for (int i = 0; i < c->n_files; i++)
        for (int j = 0; j < c->files[i].n_tensors; j++)
            c->tensors[c->n_tensors++] =
                (struct checkpoint_tensor){ .tensor = &c->files[i].tensors[j],
                                            .path = c->files[i].path };
    qsort(c->tensors, (size_t)n, sizeof *c->tensors, by_name);
    for (int64_t i = 1; i < n; i++)
        if (!by_name(&c->tensors[i - 1], &c->tensors[i]))
            return cli_bad("%s: tensor '%s' is in %s too", c->tensors[i].path,
                           c->tensors[i].tensor->name, c->tensors[i - 1].path);
    return CLI_OK;
}

const struct st_tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    const struct st_tensor wanted = { .name = name };
    const struct checkpoint_tensor key = { .tensor = &wanted };
    struct checkpoint_tensor *found =
        c->n_tensors ? bsearch(&key, c->tensors, (size_t)c->n_tensors, sizeof key, by_name) : NULL;
    if (!found) return NULL;
    found->is_used = true;
    return found->tensor;
}

/* Returns true if the text of a prompt does not depend on the tensor. */
static bool is_apart(const char *name)
{
    static const char *const prefixes[] = { "model.visual.", "visual.", "mtp.", "model.mtp." };
    static const char angles[] = "rotary_emb.inv_freq"; /* they follow from the config */
    const size_t n = strlen(name), n_angles = sizeof angles - 1;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
    return n >= n_angles && !strcmp(name + n - n_angles, angles);
}

int checkpoint_check_rest(const struct checkpoint *c)
{
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const struct checkpoint_tensor *t = &c->tensors[i];
        if (!t->is_used && !is_apart(t->tensor->name))
            return cli_bad("%s: tensor '%s': this model has none of that name; it may change the "
                           "text",
                           t->path, t->tensor->name);
    }
    return CLI_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

int checkpoint_open(struct checkpoint *c, const char *path)
{
    memset(c, 0, sizeof *c);
    c->path = path;
    const int error = os_is_folder(path, &c->is_folder);
    if (error) return cli_bad("%s: %s", path, strerror(error));
    c->files = memory_get(&c->memory, MAX_SHARDS * sizeof *c->files);
    if (!c->files) return cli_bad("%s: no memory", path);
    return (c->is_folder ? open_folder(c) : open_single(c)) || list_tensors(c) ? CLI_BAD : CLI_OK;
}

void checkpoint_close(struct checkpoint *c)
{
    for (int i = 0; i < c->n_files; i++) st_close(&c->files[i]);
    cJSON_Delete(c->config);
    memory_free(&c->memory);
    memset(c, 0, sizeof *c);
}
