/* SPDX-License-Identifier: Apache-2.0 */
#include "model/weights.h"

#include <stdio.h>

#include "program/command_line.h"

enum { NAME = 256 };

/* Writes the full name of the first of names. Returns the others, or NULL. */
static const char *full_name(const struct place *at, const char *names, char *to)
{
    const char *end = strchr(names, '|');
    const int n = end ? (int)(end - names) : (int)strlen(names);
    if (at->layer < 0)
        snprintf(to, NAME, "%s%.*s", at->prefix, n, names);
    else
        snprintf(to, NAME, "%slayers.%d.%.*s", at->prefix, at->layer, n, names);
    return end ? end + 1 : NULL;
}

/* Returns the first tensor that is there, and its name; or NULL, and the first name. */
static const struct st_tensor *look_up(const struct place *at, const char *names, char *full)
{
    const char *next = full_name(at, names, full);
    const struct st_tensor *found = checkpoint_find(&at->m->checkpoint, full);
    while (!found && next) {
        next = full_name(at, next, full);
        found = checkpoint_find(&at->m->checkpoint, full);
    }
    if (!found) full_name(at, names, full);
    return found;
}

/* Drops sizes of 1, from the last but one to the first, until ndim are left. */
static void squeeze(gdn_tensor *t, int ndim)
{
    for (int i = t->ndim - 1; i >= 0 && t->ndim > ndim; i--) {
        if (t->size[i] != 1) continue;
        t->ndim--;
        for (int j = i; j < t->ndim; j++) {
            t->size[j] = t->size[j + 1];
            t->stride[j] = t->stride[j + 1];
        }
    }
}

int weights_find(const struct place *at, const char *names, int64_t rows, int64_t columns,
                 gdn_tensor *to)
{
    char full[NAME];
    const int ndim = columns ? 2 : 1;
    const char *path = at->m->checkpoint.path;
    const struct st_tensor *found = look_up(at, names, full);
    if (!found) return cli_bad("%s: no tensor '%s'", path, full);
    *to = found->view;
    if (found->foreign)
        return cli_bad("%s: tensor '%s': %s, wanted F32, BF16 or F16 and %d dimensions", path, full,
                       found->foreign, ndim);
    if (to->dtype > GDN_F16)
        return cli_bad("%s: tensor '%s': dtype %s, wanted F32, BF16 or F16", path, full,
                       st_dtype_name(to->dtype));
    squeeze(to, ndim);
    if (to->ndim != ndim || to->size[0] != rows || (columns && to->size[1] != columns))
        return cli_bad("%s: tensor '%s': the config wants [%lld]%s%.0lld%s", path, full,
                       (long long)rows, columns ? "[" : "", (long long)columns, columns ? "]" : "");
    return CLI_OK;
}

/* A copy in f32, of 16 bits or not. */
static int widen(struct model *m, gdn_tensor *t)
{
    gdn_tensor wide = memory_tensor(&m->memory, GDN_F32, t->ndim, t->size);
    const int64_t n = t->size[0] * (t->ndim == 2 ? t->size[1] : 1);
    if (!wide.data) return cli_bad("%s: no memory for the weights", m->checkpoint.path);
    matrix_widen(&m->matrix, wide.data, t->data, t->dtype, n);
    *t = wide;
    return CLI_OK;
}

int weights_find_vector(const struct place *at, const char *names, int64_t n, const float **to)
{
    gdn_tensor t;
    if (weights_find(at, names, n, 0, &t) || widen(at->m, &t)) return CLI_BAD;
    *to = t.data;
    return CLI_OK;
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* Channels of one of three convolutions; a file may cut them at other places than q, k and v. */
static int find_part(const struct place *at, const char *name, int64_t most, gdn_tensor *to)
{
    char full[NAME];
    const struct st_tensor *found = look_up(at, name, full);
    int64_t rows = most;
    if (found && found->view.ndim > 0 && found->view.size[0] <= most) rows = found->view.size[0];
    return weights_find(at, name, rows, at->m->config.taps, to);
}

static int join(const struct place *at, const char *prefix, int64_t channels, gdn_tensor *to)
{
    struct model *m = at->m;
    const int64_t taps = m->config.taps, size[] = { channels, taps };
    int64_t first = 0;
    *to = memory_tensor(&m->memory, GDN_F32, 2, size);
    if (!to->data) return cli_bad("%s: no memory for the weights", m->checkpoint.path);
    for (const char *letter = "qkv"; *letter; letter++) {
        char name[NAME];
        gdn_tensor part;
        snprintf(name, sizeof name, "%s%c_conv1d.weight", prefix, *letter);
        const int64_t left = channels - first;
        if (find_part(at, name, left, &part)) return CLI_BAD;
        if (*letter == 'v' && part.size[0] != left)
            return cli_bad("%s: layer %d: q_conv1d, k_conv1d and v_conv1d have %lld channels, "
                           "the config wants %lld",
                           m->checkpoint.path, at->layer, (long long)(first + part.size[0]),
                           (long long)channels);
        matrix_widen(&m->matrix, (float *)to->data + first * taps, part.data, part.dtype,
                     part.size[0] * taps);
        first += part.size[0];
    }
    return CLI_OK;
}

int weights_find_conv(const struct place *at, const char *prefix, int64_t channels, gdn_tensor *to)
{
    char name[NAME], full[NAME];
    snprintf(name, sizeof name, "%sq_conv1d.weight", prefix);
    if (look_up(at, name, full)) return join(at, prefix, channels, to);
    snprintf(name, sizeof name, "%sconv1d.weight", prefix);
    return weights_find(at, name, channels, at->m->config.taps, to);
}
