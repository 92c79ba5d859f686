/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors files: 8 bytes of header length, a JSON header, the data. Reading believes
 * nothing: every size, offset and name is checked against the file before a byte of data is
 * touched. Writing goes to a temporary file beside the target, which appears whole or not at
 * all.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <cjson/cJSON.h>

#include "program/memory.h"

struct st_tensor {
    const char *name;
    gdn_tensor view;     /* dense; data is never NULL. st_open(): 64-byte aligned */
    const char *foreign; /* st_map(): why it has no view, its dtype or its rank; NULL: it has one */
};

struct st_file {
    const char *path;
    cJSON *header;
    const cJSON *metadata; /* an object of strings, or NULL */
    struct st_tensor *tensors;
    const struct st_tensor **by_name; /* sorted */
    int n_tensors;
    struct memory memory;
    void *map; /* the whole file; NULL: not mapped */
    size_t map_bytes;
};

/* CLI_OK, or CLI_BAD after one line that names the file and the tensor. */
int st_open(struct st_file *file, const char *path);
/* The same without reading the data: it is mapped, read-only, and copied only where the file does
 * not align it to its dtype. The file must not become shorter before st_close(). Tensors of other
 * dtypes, or of more dimensions than a gdn_tensor has, are foreign; st_open() refuses them. */
int st_map(struct st_file *file, const char *path);
void st_close(struct st_file *file); /* a zeroed one may be closed */

const struct st_tensor *st_find(const struct st_file *file, const char *name);
/* Returns the metadata's value, or NULL. */
const char *st_metadata(const struct st_file *file, const char *key);

/* Writes dense tensors and metadata (an object of strings, may be NULL). */
int st_write(const char *path, const struct st_tensor *tensors, int n, const cJSON *metadata);

/* "F32", "BF16", ... */
const char *st_dtype_name(int32_t dtype);

#endif
