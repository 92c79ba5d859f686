/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/api.h"

#include <string.h>

#include "core/os/os.h"

typedef gdn_cu_result (*get_proc)(const char *, void **, int, uint64_t, int *);

/* Casts a pointer to an object to a pointer to a function. POSIX allows that, ISO C has no cast
 * for it. */
static get_proc find_get_proc(void *library)
{
    void *symbol = gdn_os_library_symbol(library, "cuGetProcAddress_v2");
    get_proc found;
    memcpy(&found, &symbol, sizeof found);
    return found;
}

int gdn_cu_open(struct gdn_cu_api *api, const char **missing)
{
    memset(api, 0, sizeof *api);
    *missing = "libcuda.so.1";
    api->library = gdn_os_library_open("libcuda.so.1");
    if (!api->library) return -1;
    *missing = "cuGetProcAddress_v2";
    const get_proc get = find_get_proc(api->library);
    if (!get) return gdn_cu_close(api), -1;

#define FIND(name, parameters)                                          \
    {                                                                   \
        void *found = NULL;                                             \
        *missing = #name;                                               \
        if (get(#name, &found, GDN_CU_VERSION, 0, NULL) != 0 || !found) \
            return gdn_cu_close(api), -1;                               \
        memcpy(&api->name, &found, sizeof found);                       \
    }
    GDN_CU_CALLS(FIND)
#undef FIND
    *missing = NULL;
    return 0;
}

void gdn_cu_close(struct gdn_cu_api *api)
{
    if (api->library) gdn_os_library_close(api->library);
    memset(api, 0, sizeof *api);
}
