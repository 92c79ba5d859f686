/* SPDX-License-Identifier: Apache-2.0 */
/* Names of loops, features and kernels: of the build, and of this machine. */
#include <stdio.h>
#include <string.h>

#include "cpu/loops/kernels.h"
#include "cuda/driver/images.h"
#include "cuda/driver/launch.h"
#include "internal/internal.h"
#include "ops/op_table.h"

/* gdn_last_kernel() has "<loop>.<isa>". */
static const char *const loops[] = {
#define GDN_LOOP(field) #field,
#include "internal/loops.def"
};

enum {
    LISTED_BYTES = 0
#define GDN_LOOP(field) +sizeof((struct gdn_kernels *)0)->field
#include "internal/loops.def"
};
_Static_assert(offsetof(struct gdn_kernels, load_row) + LISTED_BYTES == sizeof(struct gdn_kernels),
               "every loop is listed, once");

static const struct {
    uint32_t flag;
    const char *name;
} features[] = { { GDN_CPU_AVX2, "avx2+fma+f16c" },
                 { GDN_CPU_AVX512, "avx512f+bw+dq+vl" },
                 { GDN_CPU_AVX512_BF16, "avx512bf16" },
                 { GDN_CPU_AMX, "amx" },
                 { GDN_CPU_NEON, "neon" } };

const char *gdn_internal_op(int i) { return i < GDN_N_OPS ? gdn_op_shapes[i].name : NULL; }

const char *gdn_internal_feature(int i, bool *is_here)
{
    if ((size_t)i >= sizeof features / sizeof *features) return NULL;
    *is_here = gdn_cpu_detect() & features[i].flag;
    return features[i].name;
}

/* Returns a table once for each instruction set. Some sets have two tables, which are
 * neighbours. */
const char *gdn_internal_table(int i, bool *runs)
{
    const char *name = "";
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; name = (*t++)->name)
        if (strcmp((*t)->name, name) && i-- == 0) {
            *runs = !((*t)->needs & ~gdn_cpu_detect());
            return (*t)->name;
        }
    return NULL;
}

const char *gdn_internal_loop(int i)
{
    return (size_t)i < sizeof loops / sizeof *loops ? loops[i] : NULL;
}

const char *gdn_internal_kernel(int i)
{
    return gdn_images[0].fatbin && i < GDN_N_KERNELS ? gdn_cuda_kernel_name((enum gdn_kernel_id)i)
                                                     : NULL;
}

int gdn_internal_images(void) { return gdn_images[0].fatbin ? GDN_N_IMAGES : 0; }

bool gdn_internal_runs_kernel(const gdn_ctx *ctx, int i)
{
    return ctx->cuda && gdn_cuda_has_kernel(ctx, (enum gdn_kernel_id)i);
}

const char *gdn_internal_device(const gdn_ctx *ctx) { return ctx->cuda ? ctx->cuda->name : NULL; }

const char *gdn_internal_devices(char *text, size_t bytes)
{
    struct gdn_cu_api api;
    const char *missing;
    int n = 0;
    if (!gdn_images[0].fatbin) return "no device code in this build";
    if (gdn_cu_open(&api, &missing) != 0) {
        snprintf(text, bytes, "device code for %s; no %s here", gdn_image_chips, missing);
        return text;
    }
    if (api.cuInit(0) != 0 || api.cuDeviceGetCount(&n) != 0) n = 0;
    int used = snprintf(text, bytes, "device code for %s; %d devices here", gdn_image_chips, n);
    for (int i = 0; i < n && used < (int)bytes; i++) {
        char name[64] = "";
        int major = 0, minor = 0;
        api.cuDeviceGetName(name, (int)sizeof name, i);
        api.cuDeviceGetAttribute(&major, GDN_CU_MAJOR, i);
        api.cuDeviceGetAttribute(&minor, GDN_CU_MINOR, i);
        const char *code = gdn_cuda_code_text(10 * major + minor);
        used += snprintf(text + used, bytes - (size_t)used, "%s%s (sm_%d%s%s)", i ? ", " : ": ",
                         name, 10 * major + minor, *code ? ", " : "", code);
    }
    gdn_cu_close(&api);
    return text;
}
