/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <dlfcn.h>

static int (*tensor_of)(void *object, void **handle);
static int (*data_of)(void *handle, void **data);
static int (*delete_tensor)(void *handle);
static PyObject *name_data_ptr;

/* Functions of torch's stable ABI; tensor_of may be missing. */
static void look_up(void)
{
    if (name_data_ptr) return;
    name_data_ptr = PyUnicode_InternFromString("data_ptr");
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu) return;
    *(void **)&data_of = dlsym(cpu, "aoti_torch_get_data_ptr");
    *(void **)&delete_tensor = dlsym(cpu, "aoti_torch_delete_tensor_object");
    if (data_of && delete_tensor) *(void **)&tensor_of = dlsym(cpu, "torch_tensor_from_pyobject");
}

void memory_note(struct memory *m, PyObject *array, const void *data)
{
    look_up();
    *m = (struct memory){ array, NULL, data };
    if (tensor_of && tensor_of(array, &m->handle)) m->handle = NULL;
}

void memory_drop(struct memory *m)
{
    if (m->handle) delete_tensor(m->handle);
}

bool memory_moved(const struct memory *m)
{
    void *data = NULL;
    if (m->handle) return data_of(m->handle, &data) || data != m->data;
    PyObject *number = PyObject_CallMethodObjArgs(m->array, name_data_ptr, NULL);
    if (number) data = PyLong_AsVoidPtr(number);
    Py_XDECREF(number);
    PyErr_Clear();
    return data != m->data;
}
