/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend as ggml loads it: one accelerator "GDN" that works on tensors in host memory, as
 * ggml's BLAS backend does. ggml's scheduler gives it the nodes that it takes.
 */
#include "backend.h"

#include <stdlib.h>
#include <string.h>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

static const struct {
    enum ggml_op op;
    bool (*takes)(const struct ggml_tensor *node);
    gdn_status (*run)(struct gdn_ggml *backend, const struct ggml_tensor *node);
} ops[] = {
    { GGML_OP_GATED_DELTA_NET, gdn_ggml_takes_rule, gdn_ggml_rule },
    { GGML_OP_SSM_CONV, gdn_ggml_takes_conv, gdn_ggml_conv },
    { GGML_OP_L2_NORM, gdn_ggml_takes_norm, gdn_ggml_norm },
};

static int find_op(enum ggml_op op)
{
    int i = (int)(sizeof ops / sizeof *ops) - 1;
    while (i >= 0 && ops[i].op != op) i--;
    return i;
}

/* Nodes that name memory and compute nothing. */
static bool is_view(enum ggml_op op)
{
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW ||
           op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

/* ---- The backend ------------------------------------------------------------------------- */

void *gdn_ggml_room(struct gdn_ggml *backend, size_t bytes)
{
    if (bytes <= backend->room_bytes) return backend->room;
    free(backend->room);
    backend->room = malloc(bytes);
    backend->room_bytes = backend->room ? bytes : 0;
    return backend->room;
}

static bool make_context(struct gdn_ggml *backend)
{
    char error[256] = "";
    gdn_options options = gdn_options_init();
    options.n_threads = backend->n_threads;
    options.error_text = error;
    options.error_text_bytes = sizeof error;
    if (gdn_ctx_create(&options, &backend->ctx) == GDN_OK) return true;
    GGML_LOG_ERROR("GDN: %s\n", error);
    return false;
}

static bool run_node(struct gdn_ggml *backend, const struct ggml_tensor *node)
{
    const int i = find_op(node->op);
    if (i < 0) {
        GGML_LOG_ERROR("GDN: %s: an op that this backend does not have\n", ggml_op_desc(node));
        return false;
    }
    const gdn_status status = ops[i].run(backend, node);
    if (status == GDN_OK) return true;
    GGML_LOG_ERROR("GDN: %s: %s: %s\n", ggml_op_desc(node), gdn_status_name(status),
                   gdn_last_error(backend->ctx));
    return false;
}

static enum ggml_status compute(ggml_backend_t self, struct ggml_cgraph *graph)
{
    struct gdn_ggml *backend = self->context;
    if (!backend->ctx && !make_context(backend)) return GGML_STATUS_FAILED;
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor *node = graph->nodes[i];
        const bool idle = is_view(node->op) || !(node->flags & GGML_TENSOR_FLAG_COMPUTE);
        if (!idle && !run_node(backend, node)) return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

static const char *backend_name(ggml_backend_t self)
{
    (void)self;
    return "GDN";
}

static void free_backend(ggml_backend_t self)
{
    struct gdn_ggml *backend = self->context;
    gdn_ctx_destroy(backend->ctx);
    free(backend->room);
    free(backend);
    free(self);
}

/* ggml asks for it by name. The threads are made with the next graph. */
static void set_n_threads(ggml_backend_t self, int n_threads)
{
    struct gdn_ggml *backend = self->context;
    if (n_threads == backend->n_threads) return;
    gdn_ctx_destroy(backend->ctx);
    backend->ctx = NULL;
    backend->n_threads = n_threads;
}

static ggml_guid id = { 0x0d, 0x2c, 0x61, 0xa7, 0x5e, 0x93, 0x4b, 0x18,
                        0xb4, 0x76, 0xe1, 0x3f, 0x82, 0xc9, 0x50, 0x6a };

static ggml_backend_t make_backend(ggml_backend_dev_t device, const char *params)
{
    (void)params;
    ggml_backend_t self = calloc(1, sizeof *self);
    struct gdn_ggml *backend = calloc(1, sizeof *backend);
    if (!self || !backend || !make_context(backend)) {
        free(self);
        free(backend);
        return NULL;
    }
    self->guid = &id;
    self->device = device;
    self->context = backend;
    self->iface = (struct ggml_backend_i){ .get_name = backend_name,
                                           .free = free_backend,
                                           .graph_compute = compute };
    return self;
}

/* ---- The device -------------------------------------------------------------------------- */

static const char *device_name(ggml_backend_dev_t device)
{
    (void)device;
    return "GDN";
}

static const char *device_text(ggml_backend_dev_t device)
{
    (void)device;
    return "Gated DeltaNet by libgdn";
}

/* The host's memory is the CPU backend's to report. */
static void device_memory(ggml_backend_dev_t device, size_t *unused, size_t *total)
{
    (void)device;
    *unused = *total = 0;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device)
{
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props)
{
    memset(props, 0, sizeof *props);
    props->name = device_name(device);
    props->description = device_text(device);
    props->type = device_type(device);
    props->caps.buffer_from_host_ptr = true;
}

static ggml_backend_buffer_type_t device_memory_type(ggml_backend_dev_t device)
{
    (void)device;
    return ggml_backend_cpu_buffer_type();
}

static ggml_backend_buffer_t from_host(ggml_backend_dev_t device, void *memory, size_t bytes,
                                       size_t largest)
{
    (void)device;
    (void)largest;
    return ggml_backend_cpu_buffer_from_ptr(memory, bytes);
}

static bool takes(ggml_backend_dev_t device, const struct ggml_tensor *node)
{
    (void)device;
    const int i = find_op(node->op);
    return is_view(node->op) || (i >= 0 && ops[i].takes(node));
}

static bool takes_memory(ggml_backend_dev_t device, ggml_backend_buffer_type_t type)
{
    (void)device;
    return ggml_backend_buft_is_host(type);
}

/* ---- What ggml finds --------------------------------------------------------------------- */

static const char *registry_name(ggml_backend_reg_t registry)
{
    (void)registry;
    return "GDN";
}

static size_t count_devices(ggml_backend_reg_t registry)
{
    (void)registry;
    return 1;
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t registry, size_t index);

static void *get_function(ggml_backend_reg_t registry, const char *name)
{
    (void)registry;
    void (*function)(ggml_backend_t, int) = set_n_threads;
    void *address = NULL;
    if (strcmp(name, "ggml_backend_set_n_threads") == 0)
        memcpy(&address, &function, sizeof address);
    return address;
}

/* ggml takes pointers to non-const structs, and changes none of them. */
static struct ggml_backend_reg registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface = { registry_name, count_devices, get_device, get_function },
};

static struct ggml_backend_device accelerator = {
    .iface = { .get_name = device_name,
               .get_description = device_text,
               .get_memory = device_memory,
               .get_type = device_type,
               .get_props = device_props,
               .init_backend = make_backend,
               .get_buffer_type = device_memory_type,
               .buffer_from_host_ptr = from_host,
               .supports_op = takes,
               .supports_buft = takes_memory },
    .reg = &registry,
};

static ggml_backend_dev_t get_device(ggml_backend_reg_t from, size_t index)
{
    (void)from;
    (void)index;
    return &accelerator;
}

static ggml_backend_reg_t get_registry(void) { return &registry; }

GGML_BACKEND_DL_IMPL(get_registry)
