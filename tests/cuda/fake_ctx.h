/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts on the driver of fake_cuda.c, and tests of them. */
#ifndef FAKE_CTX_H
#define FAKE_CTX_H

#include <dlfcn.h>
#include <stdio.h>

#include "cuda/driver/launch.h"
#include "fake_cuda.h"
#include "ring2.h"

static struct fake_cuda *fake;

static const struct fake_cuda hopper = { .n_devices = 1, .major = 9, .shared_bytes = 232448 };

/* Opens a context on the driver as it is now; text: its error. */
static inline gdn_status create(int device, gdn_ctx **ctx, char *text, size_t bytes)
{
    gdn_options o = gdn_options_init();
    o.backend = GDN_BACKEND_CUDA;
    o.device = device;
    o.error_text = text;
    o.error_text_bytes = bytes;
    return gdn_ctx_create(&o, ctx);
}

static inline gdn_ctx *hopper_ctx(void)
{
    char text[512] = "";
    gdn_ctx *ctx;
    *fake = hopper;
    ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
    if (!ctx) ring2_fail("%s", text);
    return ctx;
}

/* main() of a program with such tests. */
static inline int fake_main(int argc, char **argv, const struct ring2_test *tests, size_t n)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    fake = driver ? dlsym(driver, "fake_cuda") : NULL;
    if (!fake) {
        printf("the driver is not the fake one: run this by ctest\n");
        return 1;
    }
    return ring2_main(argc, argv, tests, n);
}

#endif
