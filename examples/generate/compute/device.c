/* SPDX-License-Identifier: Apache-2.0 */
#include "compute/device.h"

#include <string.h>

#include "program/command_line.h"
#include "program/os.h"

enum { VERSION = 12000 }; /* of the calls that are asked for */

typedef int find_call(const char *name, void **call, int version, uint64_t flags, int *status);

static int find_calls(struct device *d, find_call *find)
{
    int device;
    int (*get)(int *, int);
    const struct {
        const char *name;
        void *call;
    } calls[] = {
        { "cuGetErrorName", &d->get_error_name },
        { "cuDeviceGet", &get },
        { "cuDevicePrimaryCtxRetain", &d->retain },
        { "cuDevicePrimaryCtxRelease", &d->release },
        { "cuCtxSetCurrent", &d->set_current },
        { "cuMemAlloc", &d->alloc },
        { "cuMemFree", &d->free },
        { "cuMemcpyHtoD", &d->copy_to },
        { "cuMemcpyDtoH", &d->copy_from },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = NULL;
        if (find(calls[i].name, &found, VERSION, 0, NULL) || !found)
            return cli_bad("libcuda.so.1: no %s in this version", calls[i].name);
        memcpy(calls[i].call, &found, sizeof found);
    }
    if (get(&device, d->number)) return cli_bad("cuDeviceGet: no device %d", d->number);
    d->number = device;
    return CLI_OK;
}

static int check(const struct device *d, int result, const char *call)
{
    const char *name = NULL;
    if (!result) return CLI_OK;
    d->get_error_name(result, &name);
    return cli_bad("%s: %s", call, name ? name : "an unknown error");
}

int device_open(struct device *d, int number)
{
    find_call *find = NULL;
    memset(d, 0, sizeof *d);
    d->number = number;
    d->library = os_library_open("libcuda.so.1");
    if (!d->library) return cli_bad("libcuda.so.1: not found");
    void *symbol = os_library_symbol(d->library, "cuGetProcAddress_v2");
    memcpy(&find, &symbol, sizeof find);
    if (!find) return cli_bad("libcuda.so.1: no cuGetProcAddress_v2 in this version");
    if (find_calls(d, find) ||
        check(d, d->retain(&d->context, d->number), "cuDevicePrimaryCtxRetain"))
        return CLI_BAD;
    return check(d, d->set_current(d->context), "cuCtxSetCurrent");
}

void device_close(struct device *d)
{
    if (d->context) d->release(d->number);
    if (d->library) os_library_close(d->library);
    memset(d, 0, sizeof *d);
}

/* ---- Memory: the driver has its addresses as numbers ----------------------------------------- */

int device_alloc(const struct device *d, void **memory, size_t bytes)
{
    uint64_t at = 0;
    const int result = d->alloc(&at, bytes);
    *memory = (void *)(uintptr_t)at;
    return check(d, result, "cuMemAlloc");
}

void device_free(const struct device *d, void *memory)
{
    if (memory) d->free((uint64_t)(uintptr_t)memory);
}

int device_put(const struct device *d, void *to, const void *from, size_t bytes)
{
    return check(d, d->copy_to((uint64_t)(uintptr_t)to, from, bytes), "cuMemcpyHtoD");
}

int device_get(const struct device *d, void *to, const void *from, size_t bytes)
{
    return check(d, d->copy_from(to, (uint64_t)(uintptr_t)from, bytes), "cuMemcpyDtoH");
}
