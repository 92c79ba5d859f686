/* SPDX-License-Identifier: Apache-2.0 */
/* python.h - Python's stable ABI as of 3.9, and what 3.9 has without saying so in that header. */
#ifndef GDN_PYTHON_PYTHON_H
#define GDN_PYTHON_PYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#ifndef METH_FASTCALL /* part of the stable ABI since 3.10, with this value since 3.7 */
#define METH_FASTCALL 0x0080
#endif

static inline PyObject *hold(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

#endif
