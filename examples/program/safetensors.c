/* SPDX-License-Identifier: Apache-2.0 */
#include "program/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/command_line.h"
#include "program/input_file.h"
#include "program/whole_file.h"

enum { MAX_HEADER = 100 << 20 }; /* the format's own limit, bytes */

static const struct {
    const char *name;
    int32_t dtype;
} dtypes[] = {
    { "F32", GDN_F32 }, { "BF16", GDN_BF16 }, { "F16", GDN_F16 }, { "I32", GDN_I32 },
    { "I64", GDN_I64 }, { "U8", GDN_U8 },     { "BOOL", GDN_U8 },
};

const char *st_dtype_name(int32_t dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return "?";
}

/* ---- Reading ----------------------------------------------------------------------------- */

/* One file being read. */
struct reader {
    struct input_file input;
    const char *path;
    bool by_map;   /* the data is mapped, and tensors may be foreign */
    int64_t data;  /* where the data begins in the file */
    int64_t bytes; /* of data */
};

/* The place of a tensor's data, for checks of all of them. */
struct span {
    const char *name;
    int64_t begin, end;
};

/* A JSON number that is a whole number from 0 to 2^53. */
static bool whole(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item)) return false;
    const double x = item->valuedouble;
    if (!(x >= 0 && x <= 0x1p53) || x != floor(x)) return false;
    *value = (int64_t)x;
    return true;
}

static int parse_shape(const struct reader *r, const cJSON *item, gdn_tensor *t)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *size;
    if (!cJSON_IsArray(shape))
        return cli_bad("%s: tensor '%s': no shape array", r->path, item->string);
    cJSON_ArrayForEach(size, shape)
    {
        if (t->ndim == GDN_MAX_DIMS)
            return cli_bad("%s: tensor '%s': more than %d dimensions", r->path, item->string,
                           GDN_MAX_DIMS);
        if (!whole(size, &t->size[t->ndim]))
            return cli_bad("%s: tensor '%s': size of dimension %d is not a whole number from 0 "
                           "to 2^53",
                           r->path, item->string, t->ndim);
        t->ndim++;
    }
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = stride;
        if (t->size[i] && stride > INT64_MAX / t->size[i])
            return cli_bad("%s: tensor '%s': the shape has more elements than fit in 63 bits",
                           r->path, item->string);
        stride *= t->size[i] ? t->size[i] : 1;
    }
    return CLI_OK;
}

static int parse_dtype(const struct reader *r, const cJSON *item, gdn_tensor *t)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    if (!name) return cli_bad("%s: tensor '%s': no dtype", r->path, item->string);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(name, dtypes[i].name)) {
            t->dtype = dtypes[i].dtype;
            return CLI_OK;
        }
    return cli_bad("%s: tensor '%s': dtype %.16s, wanted F32, BF16, F16, I32, I64, U8 or BOOL",
                   r->path, item->string, name);
}

/* Returns the dtype that the reader has no tensors of; NULL: it has, or a rank is too large. */
static const char *foreign_dtype(const cJSON *item)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    for (size_t i = 0; name && i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(name, dtypes[i].name)) return NULL;
    return name;
}

static bool has_foreign_rank(const cJSON *item)
{
    return cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(item, "shape")) > GDN_MAX_DIMS;
}

/* Reads where the data begins and ends. */
static int parse_offsets(const struct reader *r, const cJSON *item, struct span *span)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    span->name = item->string;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole(cJSON_GetArrayItem(offsets, 0), &span->begin) ||
        !whole(cJSON_GetArrayItem(offsets, 1), &span->end) || span->begin > span->end)
        return cli_bad("%s: tensor '%s': data_offsets are not two whole numbers in order", r->path,
                       item->string);
    if (span->end > r->bytes)
        return cli_bad("%s: tensor '%s': data_offsets end at %lld, but the file holds %lld bytes "
                       "of data",
                       r->path, item->string, (long long)span->end, (long long)r->bytes);
    return CLI_OK;
}

static int check_bytes(const struct reader *r, const gdn_tensor *t, const struct span *span)
{
    int64_t bytes;
    if (!memory_bytes(t->dtype, t->ndim, t->size, &bytes))
        return cli_bad("%s: tensor '%s': the shape has more bytes than fit in 63 bits", r->path,
                       span->name);
    if (bytes != span->end - span->begin)
        return cli_bad("%s: tensor '%s': data_offsets span %lld bytes, but shape and dtype need "
                       "%lld",
                       r->path, span->name, (long long)(span->end - span->begin), (long long)bytes);
    return CLI_OK;
}

static int parse_tensor(const struct reader *r, const cJSON *item, struct st_tensor *t,
                        struct span *span)
{
    t->name = item->string;
    if (!cJSON_IsObject(item))
        return cli_bad("%s: tensor '%s': not described by an object", r->path, item->string);
    if (parse_offsets(r, item, span)) return CLI_BAD;
    t->foreign = r->by_map ? foreign_dtype(item) : NULL;
    if (r->by_map && !t->foreign && has_foreign_rank(item)) t->foreign = "of more dimensions";
    if (t->foreign) return CLI_OK;
    if (parse_dtype(r, item, &t->view) || parse_shape(r, item, &t->view)) return CLI_BAD;
    return check_bytes(r, &t->view, span);
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fills the list that st_find() searches. */
static int sort_names(const struct reader *r, struct st_file *file)
{
    const size_t n = (size_t)file->n_tensors;
    for (size_t i = 0; i < n; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, n, sizeof *file->by_name, by_name);
    for (size_t i = 1; i < n; i++)
        if (!by_name(&file->by_name[i - 1], &file->by_name[i]))
            return cli_bad("%s: tensor '%s': named twice in the header", r->path,
                           file->by_name[i]->name);
    return CLI_OK;
}

/* Checks that the data is covered once, without a hole. */
static int check_spans(const struct reader *r, struct span *spans, int n)
{
    int64_t end = 0;
    qsort(spans, (size_t)n, sizeof *spans, by_place);
    for (int i = 0; i < n; i++) {
        if (spans[i].begin != end)
            return cli_bad("%s: tensor '%s': data begins at %lld, but the data before it ends at "
                           "%lld (%s)",
                           r->path, spans[i].name, (long long)spans[i].begin, (long long)end,
                           spans[i].begin < end ? "an overlap" : "a hole");
        end = spans[i].end;
    }
    if (end != r->bytes)
        return cli_bad("%s: the file holds %lld bytes of data, but its tensors end at %lld",
                       r->path, (long long)r->bytes, (long long)end);
    return CLI_OK;
}

static int check_metadata(const struct reader *r, struct st_file *file, const cJSON *metadata)
{
    const cJSON *item;
    if (!cJSON_IsObject(metadata)) return cli_bad("%s: __metadata__ is not an object", r->path);
    const size_t n = (size_t)cJSON_GetArraySize(metadata);
    const char **keys = memory_get(&file->memory, n * sizeof *keys), **key = keys;
    if (!keys) return cli_bad("%s: no memory for the metadata", r->path);
    cJSON_ArrayForEach(item, metadata)
    {
        if (!cJSON_IsString(item))
            return cli_bad("%s: metadata '%s': not a string", r->path, item->string);
        *key++ = item->string;
    }
    qsort(keys, n, sizeof *keys, by_text);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(keys[i - 1], keys[i]))
            return cli_bad("%s: metadata '%s': given twice", r->path, keys[i]);
    return CLI_OK;
}

/* Reads the length, then the header; leaves r->data and r->bytes set. */
static int read_header(struct reader *r, struct st_file *file)
{
    const int64_t size = r->input.bytes;
    unsigned char prefix[8];
    uint64_t length = 0;
    if (size < 8)
        return cli_bad("%s: %lld bytes, too short for a safetensors file", r->path,
                       (long long)size);
    if (input_read(&r->input, prefix, 8, 0)) return CLI_BAD;
    for (int i = 0; i < 8; i++) length |= (uint64_t)prefix[i] << 8 * i;
    if (length > MAX_HEADER || (int64_t)length > size - 8)
        return cli_bad("%s: header of %llu bytes announced, but the file has %lld bytes and the "
                       "format allows %d",
                       r->path, (unsigned long long)length, (long long)size, MAX_HEADER);
    r->data = 8 + (int64_t)length;
    r->bytes = size - r->data;

    char *text = memory_get(&file->memory, (size_t)length + 1);
    if (!text) return cli_bad("%s: no memory for the header", r->path);
    if (input_read(&r->input, text, (int64_t)length, 8)) return CLI_BAD;
    const char *end = text;
    file->header = cJSON_ParseWithLengthOpts(text, (size_t)length + 1, &end, false);
    while (file->header && end < text + length && *end == ' ') end++;
    if (!file->header || end != text + length)
        return cli_bad("%s: the header is not JSON (at byte %lld of it)", r->path,
                       (long long)(end - text));
    if (!cJSON_IsObject(file->header)) return cli_bad("%s: the header is not an object", r->path);
    return CLI_OK;
}

/* Parses every tensor's descriptor, all checked before the first one is read. */
static int parse_tensors(const struct reader *r, struct st_file *file, struct span *spans)
{
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach(item, file->header)
    {
        if (!strcmp(item->string, "__metadata__")) {
            if (file->metadata) return cli_bad("%s: __metadata__ given twice", r->path);
            file->metadata = item;
            if (check_metadata(r, file, item)) return CLI_BAD;
            continue;
        }
        if (parse_tensor(r, item, &file->tensors[n], &spans[n])) return CLI_BAD;
        n++;
    }
    file->n_tensors = n;
    return CLI_OK;
}

/* Returns the data as it lies in the mapped file; NULL: it has to be copied. */
static void *mapped(const struct reader *r, const struct st_file *file, const struct span *span,
                    int32_t dtype)
{
    const int64_t offset = r->data + span->begin;
    return file->map && offset % (int64_t)gdn_dtype_bytes(dtype) == 0 ? (char *)file->map + offset
                                                                      : NULL;
}

static int read_tensors(const struct reader *r, struct st_file *file, const struct span *spans)
{
    for (int i = 0; i < file->n_tensors; i++) {
        const int64_t bytes = spans[i].end - spans[i].begin;
        gdn_tensor *view = &file->tensors[i].view;
        if (file->tensors[i].foreign) continue;
        view->data = mapped(r, file, &spans[i], view->dtype);
        if (view->data) continue;
        void *data = memory_get(&file->memory, (size_t)bytes);
        if (!data)
            return cli_bad("%s: tensor '%s': no memory for %lld bytes", r->path, spans[i].name,
                           (long long)bytes);
        if (input_read(&r->input, data, bytes, r->data + spans[i].begin)) return CLI_BAD;
        view->data = data;
    }
    return CLI_OK;
}

static int read_file(struct reader *r, struct st_file *file)
{
    if (read_header(r, file)) return CLI_BAD;
    file->map_bytes = (size_t)r->input.bytes;
    if (r->by_map && input_map(&r->input, &file->map)) return CLI_BAD;
    const size_t n = (size_t)cJSON_GetArraySize(file->header);
    file->tensors = memory_get(&file->memory, n * sizeof *file->tensors);
    file->by_name = memory_get(&file->memory, n * sizeof *file->by_name);
    struct span *at = memory_get(&file->memory, n * sizeof *at);
    struct span *in_order = memory_get(&file->memory, n * sizeof *in_order);
    if (!file->tensors || !file->by_name || !at || !in_order)
        return cli_bad("%s: no memory for %zu tensors", r->path, n);
    if (parse_tensors(r, file, at) || sort_names(r, file)) return CLI_BAD;
    memcpy(in_order, at, n * sizeof *at);
    if (check_spans(r, in_order, file->n_tensors)) return CLI_BAD;
    return read_tensors(r, file, at);
}

static int open_file(struct st_file *file, const char *path, bool by_map)
{
    struct reader r = { .path = path, .by_map = by_map };
    memset(file, 0, sizeof *file);
    file->path = path;
    if (input_open(&r.input, path)) return CLI_BAD;
    const int code = read_file(&r, file);
    input_close(&r.input);
    if (code) st_close(file);
    return code;
}

int st_open(struct st_file *file, const char *path) { return open_file(file, path, false); }

int st_map(struct st_file *file, const char *path) { return open_file(file, path, true); }

void st_close(struct st_file *file)
{
    input_unmap(file->map, file->map_bytes);
    cJSON_Delete(file->header);
    memory_free(&file->memory);
    memset(file, 0, sizeof *file);
}

const struct st_tensor *st_find(const struct st_file *file, const char *name)
{
    const struct st_tensor key = { .name = name }, *at = &key;
    const struct st_tensor *const *found =
        file->n_tensors
            ? bsearch(&at, file->by_name, (size_t)file->n_tensors, sizeof *file->by_name, by_name)
            : NULL;
    return found ? *found : NULL;
}

const char *st_metadata(const struct st_file *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}

/* ---- Writing ----------------------------------------------------------------------------- */

static cJSON *describe(const struct st_tensor *tensors, int n, const cJSON *metadata)
{
    cJSON *header = cJSON_CreateObject();
    int64_t offset = 0;
    if (metadata) cJSON_AddItemToObject(header, "__metadata__", cJSON_Duplicate(metadata, true));
    for (int i = 0; i < n; i++) {
        const gdn_tensor *t = &tensors[i].view;
        int64_t bytes;
        if (!memory_bytes(t->dtype, t->ndim, t->size, &bytes)) bytes = 0;
        cJSON *item = cJSON_AddObjectToObject(header, tensors[i].name);
        cJSON *shape = cJSON_CreateArray();
        cJSON *offsets = cJSON_CreateArray();
        for (int d = 0; d < t->ndim; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->size[d]));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(offset + bytes)));
        cJSON_AddStringToObject(item, "dtype", st_dtype_name(t->dtype));
        cJSON_AddItemToObject(item, "shape", shape);
        cJSON_AddItemToObject(item, "data_offsets", offsets);
        offset += bytes;
    }
    return header;
}

static void write_all(FILE *out, const char *header, const struct st_tensor *tensors, int n)
{
    const size_t text = strlen(header), pad = (8 - text % 8) % 8;
    const uint64_t length = text + pad;
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 255), out);
    fprintf(out, "%s%*s", header, (int)pad, "");
    for (int i = 0; i < n; i++) {
        const gdn_tensor *t = &tensors[i].view;
        int64_t bytes;
        if (memory_bytes(t->dtype, t->ndim, t->size, &bytes) && bytes)
            fwrite(t->data, 1, (size_t)bytes, out);
    }
}

int st_write(const char *path, const struct st_tensor *tensors, int n, const cJSON *metadata)
{
    struct whole_file file;
    cJSON *header = describe(tensors, n, metadata);
    char *text = cJSON_PrintUnformatted(header);
    int code = whole_file_begin(&file, path);
    if (!code) {
        write_all(file.out, text, tensors, n);
        code = whole_file_end(&file);
    }
    cJSON_free(text);
    cJSON_Delete(header);
    return code;
}
