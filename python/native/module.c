/* SPDX-License-Identifier: Apache-2.0 */
/*
 * _native - the calls of gdn.Context with the common kinds of arguments, in about a microsecond.
 * What is not common (other arrays, other numbers, every mistake) goes to the Python function
 * `slow`, with the same arguments. One file for every Python from 3.9 on (the limited API).
 */
#include "python.h"

#include <pthread.h>
#include <stdlib.h>

#include "memory.h"
#include "tensor.h"
#include "torch_ops.h"
#include "views.h"

struct library gdn_library;

/* ---- Contexts ------------------------------------------------------------------------------- */

struct handle {
    gdn_ctx *ctx; /* NULL: closed */
    int32_t place;
    pthread_mutex_t lock;
};

static const char handle_name[] = "gdn.handle", bound_name[] = "gdn.bound",
                  describe_name[] = "gdn.describe";

static void handle_free(PyObject *capsule)
{
    struct handle *h = PyCapsule_GetPointer(capsule, handle_name);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static PyObject *new_handle(PyObject *self, PyObject *args)
{
    unsigned long long address;
    int place;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ki", &address, &place)) return NULL;
    struct handle *h = calloc(1, sizeof *h);
    if (!h) return PyErr_NoMemory();
    h->ctx = (gdn_ctx *)(uintptr_t)address;
    h->place = place;
    pthread_mutex_init(&h->lock, NULL);
    return PyCapsule_New(h, handle_name, handle_free);
}

/* The lock of a context is taken without the GIL: its owner may be in a long call. */
static PyObject *acquire(PyObject *self, PyObject *capsule)
{
    struct handle *h = PyCapsule_GetPointer(capsule, handle_name);
    (void)self;
    if (!h) return NULL;
    Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&h->lock);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong((uintptr_t)h->ctx);
}

static PyObject *release(PyObject *self, PyObject *capsule)
{
    struct handle *h = PyCapsule_GetPointer(capsule, handle_name);
    (void)self;
    if (!h) return NULL;
    pthread_mutex_unlock(&h->lock);
    Py_RETURN_NONE;
}

/* Called between acquire() and release(). */
static PyObject *forget(PyObject *self, PyObject *capsule)
{
    struct handle *h = PyCapsule_GetPointer(capsule, handle_name);
    (void)self;
    if (!h) return NULL;
    h->ctx = NULL;
    Py_RETURN_NONE;
}

/* ---- Ops ------------------------------------------------------------------------------------ */

static void describe_free(PyObject *capsule)
{
    struct describe *d = PyCapsule_GetPointer(capsule, describe_name);
    for (int i = 0; i < d->n_fields; i++) free((void *)d->fields[i].name);
    free((void *)d->name);
    free(d);
}

static int describe_fields(struct describe *d, PyObject *fields)
{
    Py_ssize_t n = PyList_Size(fields);
    if (n < 0 || n > MAX_FIELDS) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        const char *name;
        int kind, is_output, is_needed, is_in_batch;
        unsigned offset;
        struct field *f = &d->fields[i];
        if (!PyArg_ParseTuple(PyList_GetItem(fields, i), "siIppp", &name, &kind, &offset,
                              &is_output, &is_needed, &is_in_batch))
            return -1;
        *f = (struct field){
            strdup(name), offset, (uint8_t)kind, is_output, is_needed, is_in_batch
        };
        d->n_fields++;
    }
    return 0;
}

/* describe(name, op, address of the function, bytes of the struct, bytes of gdn_batch, offsets of
 * batch, workspace, workspace_bytes and stream, fields) */
static PyObject *describe(PyObject *self, PyObject *args)
{
    const char *name;
    int op;
    unsigned long long address;
    unsigned n[6];
    PyObject *fields;
    (void)self;
    if (!PyArg_ParseTuple(args, "siKIIIIIIO", &name, &op, &address, &n[0], &n[1], &n[2], &n[3],
                          &n[4], &n[5], &fields))
        return NULL;
    if (n[0] > MAX_ARGS || n[1] > MAX_BATCH)
        return PyErr_Format(PyExc_ValueError, "%s: structs of %u and %u bytes", name, n[0], n[1]);
    struct describe *d = calloc(1, sizeof *d);
    if (!d) return PyErr_NoMemory();
    d->name = strdup(name);
    d->op = (gdn_op)op;
    d->call = (gdn_call)(uintptr_t)address;
    d->args_bytes = n[0], d->batch_bytes = n[1], d->batch_offset = n[2];
    d->workspace_offset = n[3], d->workspace_bytes_offset = n[4], d->stream_offset = n[5];
    PyObject *capsule = PyCapsule_New(d, describe_name, describe_free);
    if (!capsule || describe_fields(d, fields)) {
        Py_XDECREF(capsule);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "%s: fields", name);
    }
    return capsule;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

/* An op of a context, as a Python function. */
struct bound {
    PyMethodDef method;
    struct describe *d;
    struct handle *h;
    PyObject *d_capsule, *h_capsule, *slow, *fail, *stream_of, *keep;
    struct frame *plan;                      /* what a call starts from; NULL: defaults */
    struct memory moving[MAX_FIELDS];        /* of arrays of the plan */
    uint8_t moving_at[MAX_FIELDS], n_moving; /* their fields */
    PyObject *names[MAX_FIELDS];             /* interned names of the fields */
    PyObject *last[MAX_FIELDS];              /* the i-th keyword of the last call, and its field */
    uint8_t at[MAX_FIELDS];
};

static void bound_free(PyObject *capsule)
{
    struct bound *b = PyCapsule_GetPointer(capsule, bound_name);
    for (int i = 0; i < b->d->n_fields; i++) Py_XDECREF(b->names[i]);
    for (int i = 0; i < MAX_FIELDS; i++) Py_XDECREF(b->last[i]);
    for (int i = 0; i < b->n_moving; i++) memory_drop(&b->moving[i]);
    Py_XDECREF(b->d_capsule);
    Py_XDECREF(b->h_capsule);
    Py_XDECREF(b->slow);
    Py_XDECREF(b->fail);
    Py_XDECREF(b->stream_of);
    Py_XDECREF(b->keep);
    free(b->plan);
    free((void *)b->method.ml_name);
    free(b);
}

/* The field that the i-th keyword names, or -1. */
static int field_of(struct bound *b, Py_ssize_t i, PyObject *name)
{
    if (b->last[i] == name) return b->at[i];
    int n = b->d->n_fields;
    for (int f = 0; f < n; f++) {
        if (b->names[f] == name || !PyUnicode_Compare(b->names[f], name)) {
            PyObject *old = b->last[i];
            b->at[i] = (uint8_t)f;
            b->last[i] = hold(name);
            Py_XDECREF(old);
            return f;
        }
    }
    return -1;
}

static int set_integer(PyObject *value, const struct field *field, void *to)
{
    if (!PyLong_Check(value)) return 0;
    int overflow;
    long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return 0;
    if (field->kind == FIELD_INT64) {
        memcpy(to, &n, 8);
        return 1;
    }
    bool is_unsigned = field->kind == FIELD_UINT32;
    if (n < (is_unsigned ? 0 : INT32_MIN) || n > (is_unsigned ? (long long)UINT32_MAX : INT32_MAX))
        return 0;
    int32_t narrow = (int32_t)(uint32_t)n;
    memcpy(to, &narrow, 4);
    return 1;
}

static int set_float(PyObject *value, void *to)
{
    if (!PyFloat_Check(value) && !PyLong_Check(value)) return 0;
    float x = (float)PyFloat_AsDouble(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    memcpy(to, &x, sizeof x);
    return 1;
}

static int set_pointer(struct bound *b, PyObject *value, void *to)
{
    PyObject *number =
        PyLong_Check(value) ? hold(value) : PyObject_CallFunctionObjArgs(b->stream_of, value, NULL);
    if (!number) {
        PyErr_Clear();
        return 0;
    }
    unsigned long long n = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    memcpy(to, &n, 8);
    return 1;
}

/* A gdn.Batch: its struct, which lies where Python made it. Batch._place is the place of all its
 * arrays: PLACE_HOST - 1 for none, PLACE_HOST - 2 for arrays in several places. */
static int set_batch(struct bound *b, PyObject *value, struct frame *f)
{
    static PyObject *name_address, *name_place;
    if (!name_address) {
        name_address = PyUnicode_InternFromString("_address");
        name_place = PyUnicode_InternFromString("_place");
    }
    int ok = 0;
    PyObject *address = PyObject_GetAttr(value, name_address);
    PyObject *place = address ? PyObject_GetAttr(value, name_place) : NULL;
    if (place) {
        void *at = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
        long where = PyLong_AsLong(place);
        if (!PyErr_Occurred() && (where == b->h->place || where == PLACE_HOST - 1)) {
            frame_set_pointer(f, b->d->batch_offset, at);
            f->is_outer = true;
            ok = 1;
        }
    }
    PyErr_Clear();
    Py_XDECREF(address);
    Py_XDECREF(place);
    return ok;
}

/* One argument into the frame: 1, or 0 for the slow path. */
static int set(struct bound *b, struct frame *f, int at, PyObject *value)
{
    const struct field *field = &b->d->fields[at];
    if (value == Py_None) return 1;
    if (field->kind == FIELD_BATCH) return !f->has_batch && set_batch(b, value, f);
    if (field->is_in_batch && f->is_outer) return 0;
    void *to = frame_at(f, b->d, field);
    switch (field->kind) {
    case FIELD_TENSOR: {
        int32_t place;
        return view_fill(value, field->is_output, to, &place) && place == b->h->place;
    }
    case FIELD_FLOAT: return set_float(value, to);
    case FIELD_POINTER: return set_pointer(b, value, to);
    default: return set_integer(value, field, to);
    }
}

static PyObject *take_slow_path(struct bound *b, PyObject *const *args, Py_ssize_t n,
                                PyObject *names)
{
    PyObject *fields = PyDict_New(), *empty = PyTuple_New(0), *result = NULL;
    Py_ssize_t n_names = names ? PyTuple_Size(names) : 0;
    int failed = !fields || !empty;
    if (n) {
        PyErr_Format(PyExc_TypeError, "%s() takes keyword arguments only", b->d->name);
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < n_names; i++)
        failed = PyDict_SetItem(fields, PyTuple_GetItem(names, i), args[i]);
    if (!failed) result = PyObject_Call(b->slow, empty, fields);
    Py_XDECREF(fields);
    Py_XDECREF(empty);
    return result;
}

static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    struct bound *b = PyCapsule_GetPointer(self, bound_name);
    Py_ssize_t n_names = names ? PyTuple_Size(names) : 0;
    struct frame f;
    if (!b) return NULL;
    const struct describe *d = b->d;
    if (n_names > MAX_FIELDS || n) goto slow;

    if (b->plan) {
        memcpy(f.args, b->plan->args, d->args_bytes);
        f.has_batch = b->plan->has_batch, f.is_outer = b->plan->is_outer;
        if (f.has_batch) {
            memcpy(f.batch, b->plan->batch, d->batch_bytes);
            frame_set_pointer(&f, d->batch_offset, f.batch);
        }
    } else {
        frame_clear(&f, d);
    }
    for (int i = 0; i < b->n_moving; i++)
        if (memory_moved(&b->moving[i]) && !set(b, &f, b->moving_at[i], b->moving[i].array))
            goto slow;
    for (Py_ssize_t i = 0; i < n_names; i++) {
        int at = field_of(b, i, PyTuple_GetItem(names, i));
        if (at < 0 || !set(b, &f, at, args[i])) goto slow;
    }

    gdn_status status = GDN_OK;
    bool closed = false;
    char text[512];
    Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&b->h->lock);
    closed = !b->h->ctx;
    if (!closed) status = d->call(b->h->ctx, f.args);
    if (status) {
        strncpy(text, gdn_library.last_error(b->h->ctx), sizeof text - 1);
        text[sizeof text - 1] = 0;
    }
    pthread_mutex_unlock(&b->h->lock);
    Py_END_ALLOW_THREADS if (closed) goto slow;
    if (status) return PyObject_CallFunction(b->fail, "is", (int)status, text);
    Py_RETURN_NONE;
slow:
    return take_slow_path(b, args, n, names);
}

/* An argument that every call begins with: 1, or 0 if it is not of the common kinds. */
static int set_plan(struct bound *b, PyObject *key, PyObject *value)
{
    int field = field_of(b, 0, key);
    if (field < 0 || !set(b, b->plan, field, value)) return 0;
    if (b->d->fields[field].kind == FIELD_TENSOR && value != Py_None && view_moves(value)) {
        const gdn_tensor *t = frame_at(b->plan, b->d, &b->d->fields[field]);
        if (tensor_is_empty(t)) return 1;
        memory_note(&b->moving[b->n_moving], value, t->data);
        b->moving_at[b->n_moving++] = (uint8_t)field;
    }
    return 1;
}

/* bind(describe, handle, slow, fail, stream_of, plan): a function of Python.
 * plan: a dict of arguments that every call begins with, or None. If one of them is not of the
 * common kinds, the result is None. */
static PyObject *bind(PyObject *self, PyObject *args)
{
    PyObject *d, *h, *slow, *fail, *stream_of, *plan, *function = NULL, *capsule, *key, *value;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO", &d, &h, &slow, &fail, &stream_of, &plan)) return NULL;
    struct bound *b = calloc(1, sizeof *b);
    if (!b) return PyErr_NoMemory();
    b->d = PyCapsule_GetPointer(d, describe_name);
    b->h = b->d ? PyCapsule_GetPointer(h, handle_name) : NULL;
    if (!b->h || !(capsule = PyCapsule_New(b, bound_name, bound_free))) {
        free(b);
        return NULL;
    }
    b->d_capsule = hold(d), b->h_capsule = hold(h), b->slow = hold(slow);
    b->fail = hold(fail), b->stream_of = hold(stream_of), b->keep = hold(plan);
    for (int i = 0; i < b->d->n_fields; i++)
        b->names[i] = PyUnicode_InternFromString(b->d->fields[i].name);
    if (plan != Py_None) {
        Py_ssize_t at = 0;
        int ok = 1;
        b->plan = malloc(sizeof *b->plan);
        if (!b->plan) goto done;
        frame_clear(b->plan, b->d);
        while (ok && PyDict_Next(plan, &at, &key, &value)) ok = set_plan(b, key, value);
        if (!ok) {
            function = hold(Py_None);
            goto done;
        }
    }
    b->method.ml_name = strdup(b->d->name);
    b->method.ml_meth = (PyCFunction)(void (*)(void))call;
    b->method.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    function = PyCFunction_NewEx(&b->method, capsule, NULL);
done:
    Py_DECREF(capsule);
    return function;
}

/* ---- The module ----------------------------------------------------------------------------- */

/* setup(kind_of, bf16, addresses of gdn_ctx_create, gdn_ctx_destroy, gdn_last_error and
 * gdn_workspace_bytes) */
static PyObject *setup(PyObject *self, PyObject *args)
{
    PyObject *kind_of, *bf16;
    unsigned long long a[4];
    (void)self;
    if (!PyArg_ParseTuple(args, "OOKKKK", &kind_of, &bf16, &a[0], &a[1], &a[2], &a[3])) return NULL;
    view_setup(kind_of, bf16);
    memcpy(&gdn_library.ctx_create, &a[0], sizeof a[0]);
    memcpy(&gdn_library.ctx_destroy, &a[1], sizeof a[1]);
    memcpy(&gdn_library.last_error, &a[2], sizeof a[2]);
    memcpy(&gdn_library.workspace_bytes, &a[3], sizeof a[3]);
    Py_RETURN_NONE;
}

/* torch_register(namespace, key, describes): gives the operators their kernels at a dispatch
 * key. Returns None, or the name of a function that this torch lacks. */
static PyObject *torch_register(PyObject *self, PyObject *args)
{
    const char *space, *key;
    PyObject *describes;
    (void)self;
    if (!PyArg_ParseTuple(args, "ssO", &space, &key, &describes)) return NULL;
    Py_ssize_t n = PyList_Size(describes);
    const struct describe *d[MAX_TORCH_OPS];
    if (n < 0 || n > MAX_TORCH_OPS) return PyErr_Format(PyExc_ValueError, "too many operators");
    for (Py_ssize_t i = 0; i < n; i++) {
        d[i] = PyCapsule_GetPointer(hold(PyList_GetItem(describes, i)), describe_name);
        if (!d[i]) return NULL;
    }
    const char *lack = torch_ops_register(space, key, d, (int)n);
    if (lack) return PyUnicode_FromString(lack);
    Py_RETURN_NONE;
}

/* torch_warm_up(device): makes a context for the pool of the device, -1 being the CPU. */
static PyObject *torch_warm_up(PyObject *self, PyObject *args)
{
    int device, failed;
    char text[512];
    (void)self;
    if (!PyArg_ParseTuple(args, "i", &device)) return NULL;
    Py_BEGIN_ALLOW_THREADS failed = torch_ops_warm_up(device, text, sizeof text);
    Py_END_ALLOW_THREADS if (failed) return PyErr_Format(PyExc_RuntimeError, "%s", text);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    { "setup", setup, METH_VARARGS, NULL },
    { "handle", new_handle, METH_VARARGS, NULL },
    { "acquire", acquire, METH_O, NULL },
    { "release", release, METH_O, NULL },
    { "forget", forget, METH_O, NULL },
    { "describe", describe, METH_VARARGS, NULL },
    { "bind", bind, METH_VARARGS, NULL },
    { "torch_register", torch_register, METH_VARARGS, NULL },
    { "torch_warm_up", torch_warm_up, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
