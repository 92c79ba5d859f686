/* SPDX-License-Identifier: Apache-2.0 */
/* gdn state: files of state blobs (docs/start/state-blob.md). The library does the work. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "gdn_blob.h"
#include "program/whole_file.h"
#include "report.h"
#include "table.h"

static const char help[] =
    "gdn state inspect FILE\n"
    "gdn state convert FILE -o OUT [--dtype D] [--conv-dtype D] [--layout L] [--length S]\n"
    "gdn state slice FILE --rank R --of N -o OUT\n"
    "gdn state merge FILE... -o OUT\n"
    "gdn state diff A B\n"
    "\n"
    "Files of state blobs: the states of some sequences in one layer, as gdn_blob_save() writes\n"
    "them (docs/start/state-blob.md). A damaged file is refused whole; an output appears whole or\n"
    "not at all.\n"
    "\n"
    "  inspect   what a file holds\n"
    "  convert   other dtypes (f32, bf16, f16; of the state also i8, e4m3, e5m2, with scales),\n"
    "            another layout of the state (vk, kv), another length of the convolution's states\n"
    "            (the newest inputs are kept)\n"
    "  slice     what rank R of N holds of a whole layer, R from 0 (tensor parallelism); with\n"
    "            more ranks than key heads several ranks have a copy of the same head\n"
    "  merge     the whole layer from all its slices, in any order\n"
    "  diff      per part: equal, or the largest and the RMS difference. Values are compared,\n"
    "            not how they are stored (dtype, layout); of the convolution's states the newest\n"
    "            inputs, as many as both files have\n"
    "\n"
    "  -o OUT, --output OUT\n"
    "  --json        inspect and diff: one line of JSON\n"
    "  --threads N, --isa NAME\n"
    "\n"
    "Exit status: 0 good (diff: equal), 1 diff: different, 2 a bad file or bad arguments.\n";

/* A word for a value; the last name is NULL. */
struct word {
    const char *name;
    int32_t value;
};
static const struct word dtypes[] = { { "f32", GDN_F32 },   { "bf16", GDN_BF16 },
                                      { "f16", GDN_F16 },   { "i8", GDN_I8 },
                                      { "e4m3", GDN_E4M3 }, { "e5m2", GDN_E5M2 },
                                      { NULL, 0 } };
static const struct word floats[] = {
    { "f32", GDN_F32 }, { "bf16", GDN_BF16 }, { "f16", GDN_F16 }, { NULL, 0 }
};
static const struct word layouts[] = { { "vk", GDN_STATE_VK },
                                       { "kv", GDN_STATE_KV },
                                       { NULL, 0 } };
static const struct word maps[] = { { "grouped", GDN_HEADS_GROUPED },
                                    { "interleaved", GDN_HEADS_INTERLEAVED },
                                    { NULL, 0 } };
static const struct word answers[] = { { "no", 0 }, { "yes", 1 }, { NULL, 0 } };

static const char *word_of(const struct word *words, int32_t value)
{
    while (words->name && words->value != value) words++;
    return words->name ? words->name : "?";
}

/* text NULL leaves the value. */
static int read_word(const char *option, const struct word *words, const char *text, int32_t *value)
{
    char list[64] = "";
    if (!text) return CLI_OK;
    for (const struct word *w = words; w->name; w++) {
        const size_t used = strlen(list);
        if (!strcmp(w->name, text)) {
            *value = w->value;
            return CLI_OK;
        }
        snprintf(list + used, sizeof list - used, "%s%s",
                 w == words  ? ""
                 : w[1].name ? ", "
                             : " or ",
                 w->name);
    }
    return cli_bad("%s: '%s', wanted %s", option, text, list);
}

/* The options of the command line. */
struct state_call {
    gdn_ctx *ctx;
    struct memory memory;
    const char *output, *dtype, *conv_dtype, *layout;
    int64_t length, rank, n_ranks; /* -1: not given */
    bool json;
};

/* ---- Files --------------------------------------------------------------------------------- */

/* A blob from a file. */
struct loaded {
    const char *path;
    void *data;
    size_t bytes;
    gdn_blob_info info;
};

static int open_blob(struct state_call *c, const char *path, struct loaded *b)
{
    b->path = path;
    b->info = gdn_blob_info_init();
    if (whole_file_read(path, &c->memory, &b->data, &b->bytes)) return CLI_BAD;
    if (gdn_blob_inspect(c->ctx, b->data, b->bytes, &b->info))
        return cli_bad("%s: %s", path, gdn_last_error(c->ctx));
    return CLI_OK;
}

static int write_blob(const char *path, const void *data, size_t bytes)
{
    struct whole_file file;
    if (whole_file_begin(&file, path)) return CLI_BAD;
    fwrite(data, 1, bytes, file.out);
    return whole_file_end(&file);
}

/* ---- inspect ------------------------------------------------------------------------------- */

static int64_t position_of(const gdn_blob_info *i, int64_t b)
{
    return ((const int64_t *)i->position.data)[b];
}

/* Finds channels of q, k, v: part i is ends[i]..ends[i + 1] - 1. */
static void find_channels(const gdn_blob_info *i, int64_t ends[4])
{
    ends[0] = 0;
    ends[1] = (int64_t)i->n_query_heads * i->key_head_dim;
    ends[2] = ends[1] + (int64_t)i->n_key_heads * i->key_head_dim;
    ends[3] = ends[2] + (int64_t)i->n_value_heads * i->value_head_dim;
}

static void print_shape(const char *name, const gdn_tensor *t, const char *layout)
{
    printf("  %-11s", name);
    if (!t->data) {
        printf("none\n");
        return;
    }
    printf("%s, %s", word_of(dtypes, t->dtype), layout);
    for (int i = 0; i < t->ndim; i++) printf("[%lld]", (long long)t->size[i]);
    printf("\n");
}

static void inspect_text(const struct loaded *b)
{
    const gdn_blob_info *i = &b->info;
    const int64_t n = i->position.size[0];
    printf("%s: state blob, version %u, %zu bytes, checksum %08x\n", b->path, (unsigned)i->version,
           b->bytes, (unsigned)i->checksum);
    printf("  sequences  %lld, positions", (long long)n);
    for (int64_t j = 0; j < n && j < 8; j++) printf(" %lld", (long long)position_of(i, j));
    printf("%s\n  heads      %d of q, %d of k, %d of v, %s; K %d, V %d\n", n > 8 ? " ..." : "",
           (int)i->n_query_heads, (int)i->n_key_heads, (int)i->n_value_heads,
           word_of(maps, i->head_map), (int)i->key_head_dim, (int)i->value_head_dim);
    if (i->n_ranks == 1)
        printf("  part       the whole layer\n");
    else
        printf("  part       rank %d of %d\n", (int)i->rank, (int)i->n_ranks);
    if (i->query_copies > 1 || i->key_copies > 1 || i->value_copies > 1)
        printf("  copies     %d ranks have the head of q, %d that of k, %d that of v\n",
               (int)i->query_copies, (int)i->key_copies, (int)i->value_copies);
    print_shape("state", &i->state, i->state_layout == GDN_STATE_VK ? "vk " : "kv ");
    print_shape("conv_state", &i->conv_state, "");
}

static void add_tensor(cJSON *line, const char *name, const gdn_tensor *t, const char *layout)
{
    if (!t->data) {
        cJSON_AddNullToObject(line, name);
        return;
    }
    cJSON *item = cJSON_AddObjectToObject(line, name);
    cJSON_AddStringToObject(item, "dtype", word_of(dtypes, t->dtype));
    if (layout) cJSON_AddStringToObject(item, "layout", layout);
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int i = 0; i < t->ndim; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->size[i]));
}

static void inspect_json(gdn_ctx *ctx, const struct loaded *b)
{
    const gdn_blob_info *i = &b->info;
    cJSON *line = report_line(ctx);
    char sum[16];
    snprintf(sum, sizeof sum, "%08x", (unsigned)i->checksum);
    cJSON_AddStringToObject(line, "file", b->path);
    cJSON_AddNumberToObject(line, "format", i->version);
    cJSON_AddNumberToObject(line, "bytes", (double)b->bytes);
    cJSON_AddStringToObject(line, "checksum", sum);
    cJSON *positions = cJSON_AddArrayToObject(line, "positions");
    for (int64_t j = 0; j < i->position.size[0]; j++)
        cJSON_AddItemToArray(positions, cJSON_CreateNumber((double)position_of(i, j)));
    cJSON_AddStringToObject(line, "head_map", word_of(maps, i->head_map));
    cJSON_AddNumberToObject(line, "n_query_heads", i->n_query_heads);
    cJSON_AddNumberToObject(line, "n_key_heads", i->n_key_heads);
    cJSON_AddNumberToObject(line, "n_value_heads", i->n_value_heads);
    cJSON_AddNumberToObject(line, "key_head_dim", i->key_head_dim);
    cJSON_AddNumberToObject(line, "value_head_dim", i->value_head_dim);
    cJSON_AddNumberToObject(line, "rank", i->rank);
    cJSON_AddNumberToObject(line, "n_ranks", i->n_ranks);
    cJSON_AddNumberToObject(line, "query_copies", i->query_copies);
    cJSON_AddNumberToObject(line, "key_copies", i->key_copies);
    cJSON_AddNumberToObject(line, "value_copies", i->value_copies);
    add_tensor(line, "state", &i->state, word_of(layouts, i->state_layout));
    add_tensor(line, "conv_state", &i->conv_state, NULL);
    report_print(line);
}

static int inspect(struct state_call *c, const char **files, int n)
{
    struct loaded b;
    if (n != 1) return cli_bad("state inspect: %d files, wanted one", n);
    if (open_blob(c, files[0], &b)) return CLI_BAD;
    if (c->json)
        inspect_json(c->ctx, &b);
    else
        inspect_text(&b);
    return CLI_OK;
}

/* ---- convert ------------------------------------------------------------------------------- */

static gdn_blob_args args_of(const struct loaded *b)
{
    const gdn_blob_info *i = &b->info;
    gdn_blob_args a = gdn_blob_args_init();
    a.state_layout = i->state_layout;
    a.head_map = i->head_map;
    a.n_query_heads = i->n_query_heads;
    a.n_key_heads = i->n_key_heads;
    a.n_value_heads = i->n_value_heads;
    a.key_head_dim = i->key_head_dim;
    a.value_head_dim = i->value_head_dim;
    a.rank = i->rank;
    a.n_ranks = i->n_ranks;
    a.query_copies = i->query_copies;
    a.key_copies = i->key_copies;
    a.value_copies = i->value_copies;
    a.position = i->position;
    a.blob = b->data;
    a.blob_bytes = b->bytes;
    return a;
}

/* Loads a file into new tensors of these dtypes, this layout and this length. `a` then describes
 * the tensors, without the blob. */
static int unpack(struct state_call *c, const struct loaded *b, int32_t dtype, int32_t layout,
                  int32_t conv_dtype, int64_t length, gdn_blob_args *a)
{
    const gdn_blob_info *i = &b->info;
    const bool turned = layout != i->state_layout;
    const int64_t *s = i->state.size, *d = i->conv_state.size;
    *a = args_of(b);
    a->state_layout = layout;
    if (i->state.data)
        a->state = memory_tensor(&c->memory, dtype, 4,
                                 (int64_t[]){ s[0], s[1], s[turned ? 3 : 2], s[turned ? 2 : 3] });
    const bool has_scales =
        dtype > GDN_F16 && (dtype != i->state.dtype || i->state_scales.data); /* or keeps none */
    if (i->state.data && has_scales)
        a->state_scales =
            memory_tensor(&c->memory, GDN_F32, 3, (int64_t[]){ s[0], s[1], i->value_head_dim });
    if (i->conv_state.data)
        a->conv_state = memory_tensor(&c->memory, conv_dtype, 3, (int64_t[]){ d[0], d[1], length });
    if ((i->state.data && (!a->state.data || (has_scales && !a->state_scales.data))) ||
        (i->conv_state.data && !a->conv_state.data))
        return cli_bad("%s: no memory for its states", b->path);
    a->position.data = NULL;
    if (gdn_blob_load(c->ctx, a)) return cli_bad("%s: %s", b->path, gdn_last_error(c->ctx));
    a->position = i->position;
    a->blob = NULL;
    return CLI_OK;
}

static int convert(struct state_call *c, const char **files, int n)
{
    struct loaded b;
    gdn_blob_args a;
    if (n != 1) return cli_bad("state convert: %d files, wanted one", n);
    if (open_blob(c, files[0], &b)) return CLI_BAD;
    const gdn_blob_info *i = &b.info;
    int32_t dtype = i->state.dtype, layout = i->state_layout, conv_dtype = i->conv_state.dtype;
    if ((c->dtype || c->layout) && !i->state.data)
        return cli_bad("%s: %s: it has no state", b.path, c->dtype ? "--dtype" : "--layout");
    if ((c->conv_dtype || c->length > 0) && !i->conv_state.data)
        return cli_bad("%s: %s: it has no conv_state", b.path,
                       c->conv_dtype ? "--conv-dtype" : "--length");
    if (read_word("--dtype", dtypes, c->dtype, &dtype) ||
        read_word("--conv-dtype", floats, c->conv_dtype, &conv_dtype) ||
        read_word("--layout", layouts, c->layout, &layout))
        return CLI_BAD;
    if (unpack(c, &b, dtype, layout, conv_dtype, c->length > 0 ? c->length : i->conv_state.size[2],
               &a))
        return CLI_BAD;
    if (gdn_blob_bytes(c->ctx, &a, &a.blob_bytes))
        return cli_bad("%s: %s", b.path, gdn_last_error(c->ctx));
    a.blob = memory_get(&c->memory, a.blob_bytes);
    if (!a.blob) return cli_bad("%s: no memory for %zu bytes", c->output, a.blob_bytes);
    if (gdn_blob_save(c->ctx, &a)) return cli_bad("%s: %s", b.path, gdn_last_error(c->ctx));
    return write_blob(c->output, a.blob, a.blob_bytes);
}

/* ---- slice and merge ----------------------------------------------------------------------- */

static int slice(struct state_call *c, const char **files, int n)
{
    struct loaded b;
    size_t bytes;
    if (n != 1) return cli_bad("state slice: %d files, wanted one", n);
    if (c->rank < 0) return cli_bad("--rank: wanted, from 0");
    if (c->n_ranks < 0) return cli_bad("--of: wanted, how many ranks there are");
    if (open_blob(c, files[0], &b)) return CLI_BAD;
    const int32_t rank = (int32_t)c->rank, of = (int32_t)c->n_ranks;
    if (gdn_blob_slice(c->ctx, b.data, b.bytes, rank, of, NULL, 0, &bytes))
        return cli_bad("%s: %s", b.path, gdn_last_error(c->ctx));
    void *out = memory_get(&c->memory, bytes);
    if (!out) return cli_bad("%s: no memory for %zu bytes", c->output, bytes);
    if (gdn_blob_slice(c->ctx, b.data, b.bytes, rank, of, out, bytes, NULL))
        return cli_bad("%s: %s", b.path, gdn_last_error(c->ctx));
    return write_blob(c->output, out, bytes);
}

static int merge(struct state_call *c, const char **files, int n)
{
    struct loaded b;
    size_t needed;
    if (n < 1) return cli_bad("state merge: no files");
    const void **blobs = memory_get(&c->memory, (size_t)n * sizeof *blobs);
    size_t *bytes = memory_get(&c->memory, (size_t)n * sizeof *bytes);
    if (!blobs || !bytes) return cli_bad("state merge: no memory");
    for (int i = 0; i < n; i++) {
        if (open_blob(c, files[i], &b)) return CLI_BAD;
        blobs[i] = b.data;
        bytes[i] = b.bytes;
    }
    if (gdn_blob_merge(c->ctx, blobs, bytes, n, NULL, 0, &needed))
        return cli_bad("state merge: %s", gdn_last_error(c->ctx));
    void *out = memory_get(&c->memory, needed);
    if (!out) return cli_bad("%s: no memory for %zu bytes", c->output, needed);
    if (gdn_blob_merge(c->ctx, blobs, bytes, n, out, needed, NULL))
        return cli_bad("state merge: %s", gdn_last_error(c->ctx));
    return write_blob(c->output, out, needed);
}

/* ---- diff ---------------------------------------------------------------------------------- */

/* The differences of one part of two blobs, over pairs of values. */
struct difference {
    const char *name;
    int64_t n, n_different; /* by their bits */
    double max, sum2;
};

static void compare_floats(struct difference *d, const float *a, const float *b, int64_t n)
{
    d->n += n;
    for (int64_t i = 0; i < n; i++) {
        if (!memcmp(&a[i], &b[i], sizeof *a)) continue;
        d->n_different++;
        if (isnan(a[i]) && isnan(b[i])) continue;
        const double x = fabs((double)a[i] - (double)b[i]);
        d->max = isnan(x) ? (double)INFINITY : fmax(d->max, x);
        d->sum2 += x * x;
    }
}

static void compare_positions(struct difference *d, const gdn_blob_info *a, const gdn_blob_info *b)
{
    d->n = a->position.size[0];
    for (int64_t i = 0; i < d->n; i++) {
        const double x = fabs((double)position_of(a, i) - (double)position_of(b, i));
        d->n_different += position_of(a, i) != position_of(b, i);
        d->max = fmax(d->max, x);
        d->sum2 += x * x;
    }
}

/* A field in which two files differ so that their states cannot be compared; its two values. */
struct other_field {
    const char *name; /* NULL: the files can be compared */
    char a[24], b[24];
};

static void write_value(char text[24], const struct word *words, int64_t value)
{
    if (words)
        snprintf(text, 24, "%s", word_of(words, (int32_t)value));
    else
        snprintf(text, 24, "%lld", (long long)value);
}

static struct other_field find_other_field(const gdn_blob_info *a, const gdn_blob_info *b)
{
    const struct {
        const char *name;
        int64_t a, b;
        const struct word *words; /* NULL: numbers */
    } fields[] = {
        { "n_sequences", a->position.size[0], b->position.size[0], NULL },
        { "head_map", a->head_map, b->head_map, maps },
        { "n_query_heads", a->n_query_heads, b->n_query_heads, NULL },
        { "n_key_heads", a->n_key_heads, b->n_key_heads, NULL },
        { "n_value_heads", a->n_value_heads, b->n_value_heads, NULL },
        { "key_head_dim", a->key_head_dim, b->key_head_dim, NULL },
        { "value_head_dim", a->value_head_dim, b->value_head_dim, NULL },
        { "n_ranks", a->n_ranks, b->n_ranks, NULL },
        { "rank", a->rank, b->rank, NULL },
        { "has state", a->state.data != NULL, b->state.data != NULL, answers },
        { "has conv_state", a->conv_state.data != NULL, b->conv_state.data != NULL, answers },
    };
    struct other_field f = { NULL, "", "" };
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !f.name; i++)
        if (fields[i].a != fields[i].b) {
            f.name = fields[i].name;
            write_value(f.a, fields[i].words, fields[i].a);
            write_value(f.b, fields[i].words, fields[i].b);
        }
    return f;
}

enum { N_PARTS = 5 };

static int compare_parts(struct state_call *c, const struct loaded *b, struct difference *parts)
{
    gdn_blob_args a[2];
    int64_t ends[4], lengths[2];
    for (int i = 0; i < 2; i++) lengths[i] = b[i].info.conv_state.size[2];
    for (int i = 0; i < 2; i++)
        if (unpack(c, &b[i], GDN_F32, GDN_STATE_VK, GDN_F32,
                   lengths[0] < lengths[1] ? lengths[0] : lengths[1], &a[i]))
            return CLI_BAD;
    compare_positions(&parts[0], &b[0].info, &b[1].info);
    if (a[0].state.data) {
        const int64_t n = b[0].info.position.size[0] * a[0].state.stride[0];
        compare_floats(&parts[1], a[0].state.data, a[1].state.data, n);
    }
    find_channels(&b[0].info, ends);
    const int64_t length = a[0].conv_state.size[2], row = ends[3] * length;
    const float *x = a[0].conv_state.data, *y = a[1].conv_state.data;
    for (int64_t s = 0; x && s < a[0].conv_state.size[0]; s++)
        for (int i = 0; i < 3; i++)
            compare_floats(&parts[2 + i], x + s * row + ends[i] * length,
                           y + s * row + ends[i] * length, (ends[i + 1] - ends[i]) * length);
    return CLI_OK;
}

static double rms_of(const struct difference *d) { return d->n ? sqrt(d->sum2 / (double)d->n) : 0; }

static void diff_text(const struct difference *parts)
{
    static const char *const titles[] = { "<part", "values", "different", "max abs", "RMS", NULL };
    struct table t;
    char x[24], y[24];
    table_start(&t, titles);
    for (int i = 0; i < N_PARTS; i++) {
        if (!parts[i].n) continue;
        table_cell(&t, "%s", parts[i].name);
        table_cell(&t, "%lld", (long long)parts[i].n);
        table_cell(&t, "%lld", (long long)parts[i].n_different);
        table_cell(&t, "%s", table_number(x, parts[i].max));
        table_cell(&t, "%s", table_number(y, rms_of(&parts[i])));
    }
    table_print(&t);
}

static void diff_json(gdn_ctx *ctx, const struct difference *parts, const struct other_field *field,
                      bool equal)
{
    cJSON *line = report_line(ctx);
    cJSON_AddBoolToObject(line, "equal", equal);
    if (field->name) {
        cJSON_AddStringToObject(line, "field", field->name);
        cJSON_AddStringToObject(line, "a", field->a);
        cJSON_AddStringToObject(line, "b", field->b);
    }
    cJSON *list = cJSON_AddArrayToObject(line, "parts");
    for (int i = 0; i < N_PARTS && !field->name; i++) {
        if (!parts[i].n) continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", parts[i].name);
        cJSON_AddNumberToObject(item, "values", (double)parts[i].n);
        cJSON_AddNumberToObject(item, "different", (double)parts[i].n_different);
        cJSON_AddNumberToObject(item, "max_abs", parts[i].max);
        cJSON_AddNumberToObject(item, "rms", rms_of(&parts[i]));
        cJSON_AddItemToArray(list, item);
    }
    report_print(line);
}

static int diff(struct state_call *c, const char **files, int n)
{
    struct difference parts[N_PARTS] = { { .name = "position" },
                                         { .name = "state" },
                                         { .name = "conv q" },
                                         { .name = "conv k" },
                                         { .name = "conv v" } };
    struct loaded b[2];
    if (n != 2) return cli_bad("state diff: %d files, wanted two", n);
    if (open_blob(c, files[0], &b[0]) || open_blob(c, files[1], &b[1])) return CLI_BAD;
    const struct other_field field = find_other_field(&b[0].info, &b[1].info);
    if (!field.name && compare_parts(c, b, parts)) return CLI_BAD;
    bool equal = !field.name;
    for (int i = 0; i < N_PARTS; i++) equal = equal && !parts[i].n_different;
    if (c->json) {
        diff_json(c->ctx, parts, &field, equal);
    } else {
        if (field.name)
            printf("  %s: %s, %s\n", field.name, field.a, field.b);
        else
            diff_text(parts);
        printf("%s\n", equal ? "equal" : "different");
    }
    return equal ? CLI_OK : CLI_OUTSIDE;
}

/* ---- The command --------------------------------------------------------------------------- */

/* The options of an action that are not for all. */
enum { WRITES = 1, CONVERTS = 2, CUTS = 4, TELLS = 8 };

static const struct action {
    const char *name;
    int (*run)(struct state_call *c, const char **files, int n);
    unsigned takes;
} actions[] = { { "inspect", inspect, TELLS },
                { "convert", convert, WRITES | CONVERTS },
                { "slice", slice, WRITES | CUTS },
                { "merge", merge, WRITES },
                { "diff", diff, TELLS } };

/* Refuses what would be ignored. */
static int check_options(const struct state_call *c, const struct action *a)
{
    const struct {
        const char *name;
        bool given;
        unsigned kind;
    } options[] = {
        { "-o", c->output, WRITES },
        { "--dtype", c->dtype, CONVERTS },
        { "--conv-dtype", c->conv_dtype, CONVERTS },
        { "--layout", c->layout, CONVERTS },
        { "--length", c->length >= 0, CONVERTS },
        { "--rank", c->rank >= 0, CUTS },
        { "--of", c->n_ranks >= 0, CUTS },
        { "--json", c->json, TELLS },
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !(a->takes & options[i].kind))
            return cli_bad("%s: not for state %s", options[i].name, a->name);
    return a->takes & WRITES && !c->output ? cli_bad("-o: wanted, where to write") : CLI_OK;
}

static int dispatch(struct state_call *c, const char **words, int n)
{
    if (n == 0) return cli_bad("state: no action (gdn state --help lists them)");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (!strcmp(words[0], actions[i].name))
            return check_options(c, &actions[i]) ? CLI_BAD : actions[i].run(c, words + 1, n - 1);
    return cli_bad("state: unknown action '%s' (gdn state --help lists them)", words[0]);
}

int state_main(int argc, char **argv)
{
    struct cli_device device = { NULL, NULL, 0 };
    struct state_call c = { .length = -1, .rank = -1, .n_ranks = -1 };
    bool want_help = false;
    const struct cli_option options[] = {
        { "-o", CLI_TEXT, &c.output, 0, 0 },
        { "--output", CLI_TEXT, &c.output, 0, 0 },
        { "--dtype", CLI_TEXT, &c.dtype, 0, 0 },
        { "--conv-dtype", CLI_TEXT, &c.conv_dtype, 0, 0 },
        { "--layout", CLI_TEXT, &c.layout, 0, 0 },
        { "--length", CLI_INT, &c.length, 1, INT32_MAX },
        { "--rank", CLI_INT, &c.rank, 0, INT32_MAX },
        { "--of", CLI_INT, &c.n_ranks, 1, INT32_MAX },
        { "--json", CLI_FLAG, &c.json, 0, 0 },
        { "--threads", CLI_INT, &device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &device.isa, 0, 0 },
        { "--help", CLI_FLAG, &want_help, 0, 0 },
        { "-h", CLI_FLAG, &want_help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    int n;
    const char **words = memory_get(&c.memory, (size_t)argc * sizeof *words);
    if (!words) return cli_bad("state: no memory");
    int code = cli_parse(argc, argv, options, words, &n);
    if (!code && want_help) {
        fputs(help, stdout);
    } else if (!code) {
        code = cli_open(&device, &c.ctx);
        if (!code) code = dispatch(&c, words, n);
        gdn_ctx_destroy(c.ctx);
    }
    memory_free(&c.memory);
    return code;
}
