/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of Hugging Face: a folder of config.json and either model.safetensors or shards
 * with model.safetensors.index.json; or one safetensors file whose metadata has the text of
 * config.json under "config". Weights are mapped into memory, not read.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "program/safetensors.h"

/* A tensor of one of the files. */
struct checkpoint_tensor {
    const struct st_tensor *tensor;
    const char *path; /* of its file */
    bool is_used;     /* checkpoint_find() has returned it */
};

struct checkpoint {
    const char *path;
    bool is_folder;
    cJSON *config;
    struct st_file *files;
    int n_files;
    struct checkpoint_tensor *tensors; /* of all files, sorted by their names */
    int64_t n_tensors;
    struct memory memory;
};

/* CLI_OK, or CLI_BAD after one line. */
int checkpoint_open(struct checkpoint *c, const char *path);
void checkpoint_close(struct checkpoint *c); /* of a zeroed one too */

/* NULL: in none of the files. */
const struct st_tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* After all weights were found: refuses a tensor that none of them is, and that would change the
 * text. Those of pictures and of tokens guessed ahead are left. */
int checkpoint_check_rest(const struct checkpoint *c);

/* A folder with a file of this name. */
bool checkpoint_has(struct checkpoint *c, const char *name);
/* Reads such a file as JSON; *json NULL before. CLI_OK, or CLI_BAD after one line. */
int checkpoint_json(struct checkpoint *c, const char *name, cJSON **json);
/* "folder/name" in the checkpoint's memory; NULL: none left. */
const char *checkpoint_path(struct checkpoint *c, const char *name);

#endif
