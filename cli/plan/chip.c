/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/chip.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
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

/* ---- A driver that launches nothing ---------------------------------------------------------- */

static gdn_cu_result no_current(gdn_cu_context *context)
{
    *context = NULL; /* as the context's own, so none is pushed */
    return 0;
}

static gdn_cu_result no_launch(const struct gdn_cu_config *config, gdn_cu_kernel kernel,
                               void **parameters, void **extra)
{
    (void)config, (void)kernel, (void)parameters, (void)extra;
    return 0;
}

static gdn_cu_result no_map(void *map, int dtype, uint32_t rank, void *data, const uint64_t *sizes,
                            const uint64_t *steps, const uint32_t *box, const uint32_t *each,
                            int interleave, int swizzle, int l2, int fill)
{
    (void)map, (void)dtype, (void)rank, (void)data, (void)sizes, (void)steps, (void)box;
    (void)each, (void)interleave, (void)swizzle, (void)l2, (void)fill;
    return 0;
}

static gdn_cu_result no_error(gdn_cu_result result, const char **text)
{
    (void)result;
    *text = "none";
    return 0;
}

/* ---- The context ----------------------------------------------------------------------------- */

/* Choices are kept where there is a log. */
static void no_log(void *user, const char *line) { (void)user, (void)line; }

static void fill_device(struct gdn_cuda *c, const struct plan_chip *chip)
{
    c->api.cuCtxGetCurrent = no_current;
    c->api.cuLaunchKernelEx = no_launch;
    c->api.cuTensorMapEncodeTiled = no_map;
    c->api.cuGetErrorName = no_error;
    c->api.cuGetErrorString = no_error;
    c->capability = chip->capability;
    c->sm_count = chip->sm_count;
    c->shared_most = chip->shared_most;
    snprintf(c->name, sizeof c->name, "%s", chip->name);
    snprintf(c->isa, sizeof c->isa, "sm_%d", chip->capability);
}

/* Loads, in name, all images that have code for the chip, and their kernels. */
static void fill_kernels(gdn_ctx *ctx)
{
    struct gdn_cuda *c = ctx->cuda;
    const bool hopper = c->capability == GDN_CHIPS_sm_90a && !gdn_cuda_is_off(ctx, GDN_CUDA_SM90);
    c->chips = hopper ? GDN_CHIPS_sm_90a : GDN_CHIPS_all;
    for (int i = 0; i < GDN_N_IMAGES; i++)
        if (!gdn_images[i].only || gdn_images[i].only == c->chips) c->libraries[i] = c;
    for (int i = 0; i < GDN_N_KERNELS; i++)
        c->kernels[i] = c->libraries[gdn_cuda_kernel_image((enum gdn_kernel_id)i)];
}

/* Puts a device in place of the CPU. */
static gdn_status become_device(gdn_ctx *ctx, const struct plan_chip *chip)
{
    const gdn_options *o = &ctx->options;
    struct gdn_cuda *c = o->alloc(o->alloc_user, sizeof *c, 64);
    struct gdn_cuda_sm90 *sm90 = o->alloc(o->alloc_user, sizeof *sm90, 64);
    if (!c || !sm90) cli_no_memory();
    memset(c, 0, sizeof *c);
    memset(sm90, 0, sizeof *sm90);
    c->sm90 = sm90;
    fill_device(c, chip);
    ctx->cuda = c;
    ctx->backend = &gdn_cuda_backend;
    TRY(gdn_cuda_read_families(ctx));
    fill_kernels(ctx);
    return GDN_OK;
}

int plan_chip_open(const struct plan_chip *chip, gdn_ctx **ctx)
{
    gdn_options o = gdn_options_init();
    o.n_threads = 1;
    o.log = no_log;
    if (cli_open_with(&(struct cli_device){ NULL, NULL, 1 }, o, ctx)) return CLI_BAD;
    const gdn_status status = become_device(*ctx, chip);
    if (status == GDN_OK) return CLI_OK;
    cli_failed(*ctx, status);
    gdn_ctx_destroy(*ctx);
    return CLI_BAD;
}

const char *plan_chip_choice(const gdn_ctx *ctx, int i)
{
    for (int c = 0; c < GDN_CUDA_N_CHOICES; c++)
        if (*ctx->cuda->choices[c] && i-- == 0) return ctx->cuda->choices[c];
    return NULL;
}
