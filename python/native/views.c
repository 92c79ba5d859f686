/* SPDX-License-Identifier: Apache-2.0 */
#include "views.h"

#include "tensor.h"

static PyObject *kind_of, *bf16_type, *name_array;

void view_setup(PyObject *kinds, PyObject *bf16)
{
    kind_of = hold(kinds);
    bf16_type = hold(bf16);
    name_array = PyUnicode_InternFromString("array");
}

/* An address that is missing is that of a tensor without memory (fake, meta, freed). */
static int finish(gdn_tensor *t)
{
    tensor_settle_empty(t);
    return t->data != NULL;
}

/* ---- DLPack's C exchange table -------------------------------------------------------------- */

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

/* DLPackExchangeAPI of DLPack 1.3: header (version, previous table), then functions. */
struct dl_exchange {
    uint32_t major, minor;
    void *previous;
    void *(*managed_allocate)(void);
    int (*managed_from_object)(void *object, void **out);
    int (*managed_to_object)(void *tensor, void **out);
    int (*from_object)(void *object, struct dl_tensor *out); /* borrows */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
};

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

static int dtype_of_dl(const struct dl_tensor *d)
{
    if (d->lanes != 1) return -1;
    switch (d->code << 8 | d->bits) {
    case 0 << 8 | 8: return GDN_I8;
    case 0 << 8 | 32: return GDN_I32;
    case 0 << 8 | 64: return GDN_I64;
    case 1 << 8 | 8:
    case 6 << 8 | 8: return GDN_U8;
    case 2 << 8 | 16: return GDN_F16;
    case 2 << 8 | 32: return GDN_F32;
    case 4 << 8 | 16: return GDN_BF16;
    case 10 << 8 | 8: return GDN_E4M3;
    case 12 << 8 | 8: return GDN_E5M2;
    default: return -1;
    }
}

static int fill_exchange(const struct dl_exchange *api, PyObject *array, gdn_tensor *t,
                         int32_t *place)
{
    struct dl_tensor d;
    if (api->from_object(array, &d)) {
        PyErr_Clear();
        return 0;
    }
    int dtype = dtype_of_dl(&d);
    if (dtype < 0 || d.ndim > GDN_MAX_DIMS || !d.strides) return 0;
    if (d.device_type == DL_CUDA || d.device_type == DL_CUDA_MANAGED)
        *place = d.device_id;
    else if (d.device_type == DL_CPU || d.device_type == DL_CUDA_HOST)
        *place = PLACE_HOST;
    else
        return 0;
    t->data = d.data ? (char *)d.data + d.byte_offset : NULL;
    t->dtype = dtype;
    t->ndim = d.ndim;
    for (int i = 0; i < d.ndim; i++) {
        t->size[i] = d.shape[i];
        t->stride[i] = d.strides[i];
    }
    return finish(t);
}

/* ---- NumPy ---------------------------------------------------------------------------------- */

/* The public head of PyArrayObject, which extensions compiled for NumPy 1 and 2 read in place. */
struct numpy_descr {
    PyObject head;
    PyTypeObject *type;
    char kind, letter, byteorder, flags;
    int type_num;
};
struct numpy_array {
    PyObject head;
    char *data;
    int ndim;
    Py_ssize_t *size, *stride; /* strides in bytes */
    PyObject *base;
    struct numpy_descr *descr;
    int flags;
};

enum { NUMPY_C_CONTIGUOUS = 1, NUMPY_WRITEABLE = 0x400, NUMPY_USHORT = 4 };

static int dtype_of_numpy(int type_num)
{
    switch (type_num) {
    case 0:
    case 2: return GDN_U8; /* bool, ubyte */
    case 1: return GDN_I8;
    case 5: return GDN_I32;
    case 7: return sizeof(long) == 8 ? GDN_I64 : GDN_I32;
    case 9: return GDN_I64;
    case 11: return GDN_F32;
    case 23: return GDN_F16;
    default: return -1;
    }
}

static int fill_numpy(PyObject *array, bool is_bf16, bool is_output, gdn_tensor *t, int32_t *place)
{
    const struct numpy_array *a = (const struct numpy_array *)array;
    int dtype = dtype_of_numpy(a->descr->type_num);
    if (is_bf16) dtype = a->descr->type_num == NUMPY_USHORT ? GDN_BF16 : -1;
    if (dtype < 0 || a->descr->byteorder == '>' || a->ndim > GDN_MAX_DIMS) return 0;
    if (is_output && !(a->flags & NUMPY_WRITEABLE)) return 0;
    int shift = dtype == GDN_I64                        ? 3
                : dtype == GDN_F32 || dtype == GDN_I32  ? 2
                : dtype == GDN_F16 || dtype == GDN_BF16 ? 1
                                                        : 0;
    t->data = a->data;
    t->dtype = dtype;
    t->ndim = a->ndim;
    /* NumPy lets strides of contiguous arrays be anything where sizes are 0 or 1. */
    int64_t dense = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->stride[i] & ((1 << shift) - 1)) return 0;
        t->size[i] = a->size[i];
        t->stride[i] = a->flags & NUMPY_C_CONTIGUOUS ? dense : a->stride[i] >> shift;
        dense *= a->size[i];
    }
    *place = PLACE_HOST;
    return finish(t);
}

/* ---- What memory holds ---------------------------------------------------------------------- */

static int64_t integer(PyObject *number)
{
    int64_t value = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return value;
}

/* Returns the C function of a method without arguments, which saves its look-up; NULL: none. */
static PyCFunction method_of(PyObject *array, const char *name)
{
    PyObject *bound = PyObject_GetAttrString(array, name);
    PyCFunction function = NULL;
    if (bound && PyCFunction_Check(bound) && PyCFunction_GetFlags(bound) == METH_NOARGS)
        function = PyCFunction_GetFunction(bound);
    Py_XDECREF(bound);
    PyErr_Clear();
    return function;
}

/* Returns true if the tensor has torch's negative bit: its memory holds the negatives of the
 * values. The question takes as long as half of all else that a call costs, but any tensor of
 * floats may have the bit. */
static bool is_negative(PyCFunction is_neg, PyObject *array, const gdn_tensor *t)
{
    PyObject *answer = is_neg && t->dtype <= GDN_F16 ? is_neg(array, NULL) : NULL;
    const bool is = answer == Py_True || PyErr_Occurred();
    Py_XDECREF(answer);
    PyErr_Clear();
    return is;
}

static int item_bytes(int32_t dtype)
{
    return dtype == GDN_I64                        ? 8
           : dtype == GDN_F32 || dtype == GDN_I32  ? 4
           : dtype == GDN_F16 || dtype == GDN_BF16 ? 2
                                                   : 1;
}

/* torch gives storage that was freed the address 0, so a tensor has its offset as address. */
static bool is_freed(PyCFunction storage_offset, PyObject *array, const gdn_tensor *t)
{
    const uint64_t address = (uintptr_t)t->data;
    if (!storage_offset || address >> 40 || tensor_is_empty(t)) return false;
    const int64_t offset = integer(storage_offset(array, NULL));
    PyErr_Clear();
    return (uint64_t)offset * (uint64_t)item_bytes(t->dtype) == address;
}

/* ---- Which of them -------------------------------------------------------------------------- */

enum { KIND_OTHER, KIND_NUMPY, KIND_EXCHANGE };

struct seen {
    PyTypeObject *type; /* referenced, so that no other type gets its address */
    int kind;
    const struct dl_exchange *api;
    PyCFunction is_neg, storage_offset; /* of torch's tensors; else NULL */
};

static const struct dl_exchange *exchange_of(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const struct dl_exchange *api = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear();
    return api && api->major == 1 && api->from_object ? api : NULL;
}

/* What arrays of this one's type are; the last few types are kept. */
static const struct seen *look(PyObject *array)
{
    static struct seen kept[16];
    static int next;
    PyTypeObject *type = Py_TYPE(array);
    for (int i = 0; i < 16; i++)
        if (kept[i].type == type) return &kept[i];
    struct seen s = { .type = type, .api = exchange_of(type) };
    if (s.api) {
        s.kind = KIND_EXCHANGE;
    } else {
        PyObject *kind = PyObject_CallFunctionObjArgs(kind_of, (PyObject *)type, NULL);
        s.kind = (int)integer(kind);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            s.kind = KIND_OTHER;
        }
    }
    if (s.api) {
        s.is_neg = method_of(array, "is_neg");
        s.storage_offset = method_of(array, "storage_offset");
    }
    struct seen *place = &kept[next++ & 15];
    PyTypeObject *old = place->type;
    Py_INCREF(type);
    *place = s;
    Py_XDECREF(old);
    return place;
}

bool view_moves(PyObject *array) { return look(array)->kind == KIND_EXCHANGE; }

int view_fill(PyObject *array, bool is_output, gdn_tensor *t, int32_t *place)
{
    PyTypeObject *type = Py_TYPE(array);
    if ((PyObject *)type == bf16_type) {
        PyObject *inner = PyObject_GetAttr(array, name_array);
        int ok = 0;
        if (inner && look(inner)->kind == KIND_NUMPY)
            ok = fill_numpy(inner, true, is_output, t, place);
        PyErr_Clear();
        Py_XDECREF(inner); /* `array` still holds it */
        return ok;
    }
    const struct seen *s = look(array);
    switch (s->kind) {
    case KIND_NUMPY: return fill_numpy(array, false, is_output, t, place);
    case KIND_EXCHANGE:
        if (!fill_exchange(s->api, array, t, place)) return 0;
        break;
    default: return 0;
    }
    return !is_negative(s->is_neg, array, t) && !is_freed(s->storage_offset, array, t);
}
