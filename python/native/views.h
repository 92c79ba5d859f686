/* SPDX-License-Identifier: Apache-2.0 */
/* views.h - arrays of Python as gdn_tensor, for the common kinds of arrays. */
#ifndef GDN_PYTHON_VIEWS_H
#define GDN_PYTHON_VIEWS_H

#include "python.h"

#include "describe.h"

#define PLACE_HOST (-1) /* else the number of a CUDA device */

/*
 * view_fill - describes an array: 1. 0: the kind of array or its dtype is not among the common
 * ones, the array may not be written, or memory does not hold its values; no exception is set, and
 * the caller takes the slow path.
 *
 * Arrays are those of numpy.ndarray itself and tensors with the DLPack C exchange table (torch from
 * 2.10 on). gdn.bf16(array of uint16) is bfloat16.
 */
int view_fill(PyObject *array, bool is_output, gdn_tensor *tensor, int32_t *place);

/* Whether the memory of an array can move or be freed while the array is kept: torch's can. */
bool view_moves(PyObject *array);

/* The Python helpers of gdn/_fast.py: kind_of(type) -> 0, or 1 for numpy.ndarray, and the class
 * bf16. */
void view_setup(PyObject *kind_of, PyObject *bf16);

#endif
