/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of Hugging Face: a folder of config.json and either model.safetensors or shards
 * with model.safetensors.index.json; or one safetensors file whose metadata has the text of
 * config.json under "config". Weights are mapped into memory, not read.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "files/safetensors.h"

struct checkpoint {
    const char     *path;
    bool            is_folder;
    cJSON          *config;
    struct st_file *files;
    int             n_files;
    struct memory   memory;
};

/* CLI_OK, or CLI_BAD after one line. */
int  checkpoint_open(struct checkpoint *c, const char *path);
void checkpoint_close(struct checkpoint *c); /* of a zeroed one too */

/* NULL: in none of the files. */
const struct st_tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* A folder with a file of this name. */
bool checkpoint_has(struct checkpoint *c, const char *name);
/* "folder/name" in the checkpoint's memory; NULL: none left. */
const char *checkpoint_path(struct checkpoint *c, const char *name);

#endif
