/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_ops.c - kernels for torch's dispatcher, in C: torch calls boxed kernels of its stable ABI
 * through a C function, and lists that ABI's functions in torch/csrc/inductor/aoti_torch/c/shim.h
 * and torch/csrc/stable/c/shim.h. They are looked up in the library that the process has loaded,
 * so one file serves every torch from 2.10 on. A kernel runs without the GIL.
 */
#include "torch_ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor.h"
#include "torch_pool.h"

/* An argument on torch's stack: a tensor handle that the kernel owns, the bits of a number, or, of
 * an optional, NULL or a pointer to one of these on the heap. */
typedef uint64_t value;
typedef void (*boxed)(value *stack, uint64_t n_in, uint64_t n_out);

static struct {
    /* From 2.10 on. */
    int (*library_init_impl)(const char *space, const char *key, const char *file, uint32_t line,
                             void **library);
    int (*library_impl)(void *library, const char *name, boxed kernel);
    int (*delete_tensor)(void *tensor);
    int (*get_data_ptr)(void *tensor, void **data);
    int (*get_dim)(void *tensor, int64_t *n);
    int (*get_sizes)(void *tensor, int64_t **sizes);
    int (*get_strides)(void *tensor, int64_t **strides);
    int (*get_dtype)(void *tensor, int32_t *dtype);
    int (*get_device_type)(void *tensor, int32_t *type);
    int (*get_device_index)(void *tensor, int32_t *index);
    int (*is_defined)(void *tensor, bool *is);
    int (*get_storage_size)(void *tensor, int64_t *bytes);
    int (*get_storage_offset)(void *tensor, int64_t *elements);
    int (*empty_strided)(int64_t n, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                         int32_t device_type, int32_t device_index, void **tensor);
    void (*check)(bool ok, const char *function, const char *file, uint32_t line,
                  const char *text); /* throws C++'s exception if not ok */
    /* What may be missing: of CUDA, and from 2.13 on. */
    int (*current_stream)(int32_t device, void **stream);
    int (*is_capturing)(void *stream, int *status); /* the driver's cuStreamIsCapturing */
    int (*delete_value)(value *v);
    void (*operator_delete)(void *memory); /* before 2.13, C++'s */
    int (*range_push)(const char *text);   /* NVTX */
    int (*range_pop)(void);
} torch;

/* torch's dtypes by their numbers in c10/core/ScalarType.h. */
enum { N_TORCH_DTYPES = 30 };
static const struct {
    const char *name;
    int8_t dtype, bytes; /* dtype -1: libgdn has none */
} dtypes[N_TORCH_DTYPES] = {
    [0] = { "uint8", GDN_U8, 1 },
    [1] = { "int8", GDN_I8, 1 },
    [2] = { "int16", -1, 2 },
    [3] = { "int32", GDN_I32, 4 },
    [4] = { "int64", GDN_I64, 8 },
    [5] = { "float16", GDN_F16, 2 },
    [6] = { "float32", GDN_F32, 4 },
    [7] = { "float64", -1, 8 },
    [8] = { "complex32", -1, 4 },
    [9] = { "complex64", -1, 8 },
    [10] = { "complex128", -1, 16 },
    [11] = { "bool", GDN_U8, 1 },
    [15] = { "bfloat16", GDN_BF16, 2 },
    [23] = { "float8_e5m2", GDN_E5M2, 1 },
    [24] = { "float8_e4m3fn", GDN_E4M3, 1 },
    [27] = { "uint16", -1, 2 },
    [28] = { "uint32", -1, 4 },
    [29] = { "uint64", -1, 8 },
};

enum { TORCH_UINT8 = 0, TORCH_CPU = 0, TORCH_CUDA = 1 };

/* ---- One call ------------------------------------------------------------------------------- */

/* The devices of a call's tensors: all are on that of `first`, or `other` is on another one. */
struct places {
    const struct field *first, *other; /* NULL: none yet */
    int32_t device, other_device;
    int32_t n_first, n_other; /* tensors on the device of `first`, and on others */
};

struct torch_call {
    const struct describe *d;
    struct places places;    /* places.device -1: CPU */
    const struct field *odd; /* its dtype is none of libgdn's; NULL: all are known */
    const char *odd_dtype;
    struct frame frame;
    char text[640]; /* of an error; empty: none */
};

static void fail(struct torch_call *c, const char *name, const char *what)
{
    if (!c->text[0]) snprintf(c->text, sizeof c->text, "gdn::%s: %s: %s", c->d->name, name, what);
}

static void take_device(struct torch_call *c, const struct field *field, void *tensor)
{
    struct places *p = &c->places;
    int32_t type = 0, index = 0;
    torch.get_device_type(tensor, &type);
    if (type == TORCH_CUDA) torch.get_device_index(tensor, &index);
    if (type != TORCH_CPU && type != TORCH_CUDA)
        fail(c, field->name, "on a device that is neither cpu nor cuda");
    const int32_t device = type == TORCH_CPU ? -1 : index;
    if (!p->first) {
        p->first = field;
        p->device = device;
    }
    if (device == p->device) {
        p->n_first++;
    } else {
        if (!p->other) p->other = field, p->other_device = device;
        p->n_other++;
    }
}

static const char *name_device(int32_t device, char name[24])
{
    snprintf(name, 24, device < 0 ? "cpu" : "cuda:%d", (int)device);
    return name;
}

/* Names the tensor that is apart: the first one, if it alone is. */
static void check_places(struct torch_call *c)
{
    const struct places *p = &c->places;
    if (!p->other) return;
    char a[24], b[24], what[128];
    const bool is_first = p->n_first < p->n_other;
    name_device(is_first ? p->device : p->other_device, a);
    name_device(is_first ? p->other_device : p->device, b);
    snprintf(what, sizeof what, "on %s, but %s is on %s", a,
             is_first ? p->other->name : p->first->name, b);
    fail(c, is_first ? p->first->name : p->other->name, what);
}

static void take_shape(struct torch_call *c, const struct field *field, void *tensor, gdn_tensor *t)
{
    int64_t n = 0, *size = NULL, *stride = NULL;
    if (torch.get_dim(tensor, &n) || torch.get_sizes(tensor, &size) ||
        torch.get_strides(tensor, &stride)) {
        fail(c, field->name, "no sizes and strides");
        return;
    }
    if (n > GDN_MAX_DIMS) {
        fail(c, field->name, "too many dimensions");
        return;
    }
    t->ndim = (int32_t)n;
    for (int i = 0; i < n; i++) {
        t->size[i] = size[i];
        t->stride[i] = stride[i];
    }
    tensor_settle_empty(t);
}

static void take_dtype(struct torch_call *c, const struct field *field, void *tensor, gdn_tensor *t,
                       int64_t *bytes)
{
    int32_t n = -1;
    if (torch.get_dtype(tensor, &n)) fail(c, field->name, "no dtype");
    const bool is_named = n >= 0 && n < N_TORCH_DTYPES && dtypes[n].name;
    *bytes = is_named ? dtypes[n].bytes : 0;
    t->dtype = is_named ? dtypes[n].dtype : -1;
    if (t->dtype >= 0) return;
    t->dtype = field->is_in_batch ? GDN_E5M2 : GDN_U8; /* which the library refuses there */
    if (!c->odd) {
        c->odd = field;
        c->odd_dtype = is_named ? dtypes[n].name : "a dtype that libgdn does not know";
    }
}

/* Storage can be freed while tensors show it: untyped_storage().resize_(0). */
static void take_memory(struct torch_call *c, const struct field *field, void *tensor,
                        gdn_tensor *t, int64_t item)
{
    int64_t last = 0, offset = 0, bytes = 0;
    for (int i = 0; i < t->ndim; i++) last += (t->size[i] - 1) * t->stride[i];
    if (torch.get_data_ptr(tensor, &t->data) || torch.get_storage_size(tensor, &bytes) ||
        torch.get_storage_offset(tensor, &offset) || (offset + last + 1) * item > bytes)
        fail(c, field->name, "its storage is shorter than the tensor; was it freed?");
}

static void take_tensor(struct torch_call *c, const struct field *field, void *tensor)
{
    bool is_defined = false;
    int64_t item = 0;
    if (torch.is_defined(tensor, &is_defined) || !is_defined) {
        fail(c, field->name, "None, wanted a tensor");
        return;
    }
    gdn_tensor *t = frame_at(&c->frame, c->d, field);
    take_device(c, field, tensor);
    take_dtype(c, field, tensor, t, &item);
    take_shape(c, field, tensor, t);
    if (!tensor_is_empty(t)) take_memory(c, field, tensor, t, item);
}

static void delete_optional(value v)
{
    if (torch.delete_value)
        torch.delete_value((value *)v);
    else
        torch.operator_delete((void *)v);
}

static void take(struct torch_call *c, const struct field *field, value v)
{
    if (field->kind == FIELD_TENSOR) {
        if (!field->is_needed && !v) return;
        void *tensor = (void *)(field->is_needed ? v : *(value *)v);
        take_tensor(c, field, tensor);
        torch.delete_tensor(tensor); /* the caller holds it until the kernel returns */
        if (!field->is_needed) delete_optional(v);
        return;
    }
    if (v == 0) return; /* the default */
    void *to = frame_at(&c->frame, c->d, field);
    if (field->kind == FIELD_FLOAT) {
        double x;
        memcpy(&x, &v, sizeof x);
        float narrow = (float)x;
        memcpy(to, &narrow, sizeof narrow);
    } else if (field->kind == FIELD_INT64) {
        memcpy(to, &v, 8);
    } else {
        int64_t n = (int64_t)v;
        int32_t narrow = (int32_t)(uint32_t)v;
        if (field->kind == FIELD_UINT32 ? n != (uint32_t)v : n != narrow)
            fail(c, field->name, "does not fit");
        memcpy(to, &narrow, sizeof narrow);
    }
}

/* Memory for scratch from torch's allocator, which knows streams and graphs. A call that needs none
 * runs at once; of one that does, the first try is refused before anything was launched (G1). */
static gdn_status run_on_device(struct torch_call *c, gdn_ctx *ctx)
{
    static _Alignas(64) char nothing[64];
    const struct describe *d = c->d;
    void *stream = NULL, *scratch = NULL, *memory = NULL;
    size_t bytes = 0;
    if (torch.current_stream(c->places.device, &stream)) return GDN_E_CUDA;
    frame_set_pointer(&c->frame, d->stream_offset, stream);
    frame_set_pointer(&c->frame, d->workspace_offset, nothing);
    gdn_status status = d->call(ctx, c->frame.args);
    if (status != GDN_E_MEMORY) return status;
    status = gdn_library.workspace_bytes(ctx, d->op, c->frame.args, &bytes);
    if (status || !bytes) return status ? status : GDN_E_MEMORY;
    int64_t size = (int64_t)bytes, stride = 1;
    if (torch.empty_strided(1, &size, &stride, TORCH_UINT8, TORCH_CUDA, c->places.device, &scratch))
        return GDN_E_MEMORY;
    torch.get_data_ptr(scratch, &memory);
    frame_set_pointer(&c->frame, d->workspace_offset, memory);
    memcpy(c->frame.args + d->workspace_bytes_offset, &bytes, sizeof bytes);
    status = d->call(ctx, c->frame.args);
    torch.delete_tensor(scratch);
    return status;
}

/* A context cannot be made while the current stream is captured. */
static bool is_captured(int32_t device)
{
    void *stream = NULL;
    int status = 0;
    return torch.is_capturing && !torch.current_stream(device, &stream) &&
           !torch.is_capturing(stream, &status) && status != 0;
}

/* Reports a dtype that the library does not have, with the words of the library for the dtypes
 * that it wants. Nothing is computed. */
static void refuse_dtype(struct torch_call *c, gdn_ctx *ctx)
{
    const char *name = c->odd->name, *text, *wanted;
    size_t bytes, length = strlen(name);
    char what[256];
    gdn_status status = gdn_library.workspace_bytes(ctx, c->d->op, c->frame.args, &bytes);
    text = status ? gdn_library.last_error(ctx) : "";
    const bool is_it = !strncmp(text, name, length) && text[length] == ':';
    wanted = is_it ? strstr(text, ", wanted") : NULL;
    snprintf(what, sizeof what, "%s%s", c->odd_dtype, wanted ? wanted : "");
    fail(c, name, what);
}

static void run(struct torch_call *c)
{
    const struct describe *d = c->d;
    const int32_t device = c->places.device;
    if (device >= 0 && !torch_pool_has(device) && is_captured(device)) {
        snprintf(c->text, sizeof c->text,
                 "gdn::%s: the first call on this GPU, and a CUDA graph is captured; call "
                 "gdn.torch.warm_up() before the capture",
                 d->name);
        return;
    }
    gdn_ctx *ctx = torch_pool_take(device, c->text, sizeof c->text);
    if (!ctx) return;
    gdn_status status = GDN_OK;
    if (c->odd) {
        refuse_dtype(c, ctx);
    } else if (device < 0) {
        status = d->call(ctx, c->frame.args);
    } else {
        if (torch.range_push) torch.range_push(d->name);
        status = run_on_device(c, ctx);
        if (torch.range_push) torch.range_pop();
    }
    if (status)
        snprintf(c->text, sizeof c->text, "gdn::%s: %s", d->name, gdn_library.last_error(ctx));
    torch_pool_give(device, ctx);
}

static void kernel(const struct describe *d, value *stack)
{
    struct torch_call c;
    c.d = d;
    c.places = (struct places){ .first = NULL };
    c.odd = NULL;
    c.text[0] = 0;
    frame_clear(&c.frame, d);
    for (int i = 0; i < d->n_fields; i++) take(&c, &d->fields[i], stack[i]);
    check_places(&c);
    if (!c.text[0]) run(&c);
    if (c.text[0]) torch.check(false, d->name, "gdn", 0, c.text);
}

/* ---- Registration --------------------------------------------------------------------------- */

/* The dispatcher hands a kernel the stack alone, so every operator has a function of its own. */
static const struct describe *described[MAX_TORCH_OPS];
#define KERNEL(i)                                                       \
    static void kernel_##i(value *stack, uint64_t n_in, uint64_t n_out) \
    {                                                                   \
        (void)n_in, (void)n_out;                                        \
        kernel(described[i], stack);                                    \
    }
/* clang-format off */
#define EACH(X)                                                                        \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)    \
    X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27)      \
    X(28) X(29) X(30) X(31) X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41)
/* clang-format on */
EACH(KERNEL)
#define NAME(i) kernel_##i,
static const boxed kernels[MAX_TORCH_OPS] = { EACH(NAME) };

static const char *look_up(void)
{
    static const struct {
        void *to;
        const char *name;
    } wanted[] = {
        { &torch.library_init_impl, "aoti_torch_library_init_impl" },
        { &torch.library_impl, "aoti_torch_library_impl" },
        { &torch.delete_tensor, "aoti_torch_delete_tensor_object" },
        { &torch.get_data_ptr, "aoti_torch_get_data_ptr" },
        { &torch.get_dim, "aoti_torch_get_dim" },
        { &torch.get_sizes, "aoti_torch_get_sizes" },
        { &torch.get_strides, "aoti_torch_get_strides" },
        { &torch.get_dtype, "aoti_torch_get_dtype" },
        { &torch.get_device_type, "aoti_torch_get_device_type" },
        { &torch.get_device_index, "aoti_torch_get_device_index" },
        { &torch.is_defined, "aoti_torch_is_defined" },
        { &torch.get_storage_size, "aoti_torch_get_storage_size" },
        { &torch.get_storage_offset, "aoti_torch_get_storage_offset" },
        { &torch.empty_strided, "aoti_torch_empty_strided" },
        { &torch.check, "aoti_torch_check" },
    };
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu) return "libtorch_cpu.so is not loaded";
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(cpu, wanted[i].name);
        if (!symbol) return wanted[i].name;
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    const char *lack = torch_pool_look_up(cpu);
    if (lack) return lack;
    *(void **)&torch.delete_value = dlsym(cpu, "torch_delete_stable_ivalue");
    *(void **)&torch.operator_delete = dlsym(cpu, "_ZdlPv");
    if (!torch.delete_value && !torch.operator_delete) return "operator delete";

    void *cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (cuda) *(void **)&torch.current_stream = dlsym(cuda, "aoti_torch_get_current_cuda_stream");
    void *driver = cuda ? dlopen("libcuda.so.1", RTLD_LAZY) : NULL;
    if (driver) *(void **)&torch.is_capturing = dlsym(driver, "cuStreamIsCapturing");
    void *nvtx = dlopen("libnvtx3interop.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (!nvtx) nvtx = dlopen("libnvToolsExt.so.1", RTLD_LAZY);
    if (nvtx) {
        *(void **)&torch.range_push = dlsym(nvtx, "nvtxRangePushA");
        *(void **)&torch.range_pop = dlsym(nvtx, "nvtxRangePop");
        if (!torch.range_pop) torch.range_push = NULL;
    }
    return NULL;
}

const char *torch_ops_register(const char *space, const char *key, const struct describe **d, int n)
{
    void *library;
    const char *lack = look_up();
    if (lack) return lack;
    if (!strcmp(key, "CUDA") && !torch.current_stream) return "aoti_torch_get_current_cuda_stream";
    if (torch.library_init_impl(space, key, "gdn", 0, &library)) return "a library";
    for (int i = 0; i < n; i++) {
        described[i] = d[i];
        if (torch.library_impl(library, d[i]->name, kernels[i])) return d[i]->name;
    }
    return NULL; /* the library is never deleted: torch has no safe function for that at exit */
}

int torch_ops_warm_up(int device, char *text, size_t text_bytes)
{
    gdn_ctx *ctx = torch_pool_take(device, text, text_bytes);
    if (!ctx) return 1;
    torch_pool_give(device, ctx);
    return 0;
}
