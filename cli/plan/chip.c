/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/chip.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "internal/internal.h"
#include "program/command_line.h"

/* Multiprocessors, and the shared memory that a block may have, of NVIDIA's data sheets and the
 * table of compute capabilities. H100 and H200 are those with SXM. */
static const struct plan_chip chips[] = {
    { "H100", 90, 132, 232448, 80 },      { "H200", 90, 132, 232448, 141 },
    { "GH200", 90, 132, 232448, 96 },     { "H20", 90, 78, 232448, 96 },
    { "A100", 80, 108, 166912, 80 },      { "A10", 86, 72, 101376, 24 },
    { "L4", 89, 58, 101376, 24 },         { "L40S", 89, 142, 101376, 48 },
    { "RTX 4090", 89, 128, 101376, 24 },  { "B200", 100, 148, 232448, 180 },
    { "RTX 5090", 120, 170, 101376, 32 }, { "RTX PRO 6000", 120, 188, 101376, 96 },
    { "GB10", 121, 48, 101376, 128 },
};

enum { N_CHIPS = sizeof chips / sizeof *chips };

static const char *skip(const char *text)
{
    while (*text == ' ' || *text == '-' || *text == '_') text++;
    return text;
}

static bool is_name(const char *text, const char *name)
{
    for (text = skip(text), name = skip(name); *text && *name;
         text = skip(text + 1), name = skip(name + 1))
        if (tolower((unsigned char)*text) != tolower((unsigned char)*name)) return false;
    return *text == *name;
}

const struct plan_chip *plan_chip_find(const char *name)
{
    const bool has_maker = !strncmp(name, "NVIDIA ", 7);
    for (int i = 0; i < N_CHIPS; i++)
        if (is_name(has_maker ? name + 7 : name, chips[i].name)) return &chips[i];
    return NULL;
}

const char *plan_chip_names(char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < N_CHIPS && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", chips[i].name);
    return text;
}

/* ---- The context ----------------------------------------------------------------------------- */

/* A context that logs keeps the lines of its choices; this log prints none. */
static void no_log(void *user, const char *line) { (void)user, (void)line; }

int plan_chip_open(const struct plan_chip *chip, gdn_ctx **ctx)
{
    gdn_options o = gdn_options_init();
    o.n_threads = 1;
    o.log = no_log;
    if (cli_open_with(&(struct cli_device){ NULL, NULL, 1 }, o, ctx)) return CLI_BAD;
    const gdn_status status =
        gdn_internal_imagine(*ctx, chip->name, chip->capability, chip->sm_count, chip->shared_most);
    if (status == GDN_OK) return CLI_OK;
    cli_failed(*ctx, status);
    gdn_ctx_destroy(*ctx);
    return CLI_BAD;
}
