/* Kernels on memory of Python's: NumPy arrays by their buffers, other arrays by their addresses.
 *
 * It is loaded into an interpreter that has started and declares what it uses of Python's stable interface (3.11) itself:
 * Python's own headers need not be installed.
 */
#include <string.h>

#include "deep5/kernel.h"

typedef struct _object PyObject;
typedef intptr_t Py_ssize_t;
typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void *internal;
} Py_buffer;
enum { SIMPLE = 0, STRIDES = 0x10 | 0x8 };
extern int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
extern void PyBuffer_Release(Py_buffer *view);
extern void PyErr_Clear(void);
extern PyObject *PyErr_Occurred(void);
extern PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t index);
extern void *PyLong_AsVoidPtr(PyObject *number);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *state);

/* A kernel for inputs of known shapes. */
typedef struct {
  deep5_kernel *kernel;
  int64_t itemsize[DEEP5_MAX_TENSORS];
  deep5_tensor tensors[DEEP5_MAX_TENSORS]; /* inputs, then outputs; data is the call's */
} deep5_plan;

enum { DONE, FAILED, NOT_SHARED };

static int run(const deep5_plan *plan, const deep5_tensor *tensors, void *stream) {
  deep5_kernel *kernel = plan->kernel;
  void *state = PyEval_SaveThread();
  int code = kernel->run(kernel, tensors, tensors + kernel->inputs, stream);
  PyEval_RestoreThread(state);
  return code ? FAILED : DONE;
}

/* On a tuple of objects with buffers, inputs and outputs; NOT_SHARED where the memory of one does not suit. */
int deep5_call_arrays(const deep5_plan *plan, PyObject *arrays) {
  int inputs = plan->kernel->inputs, count = inputs + plan->kernel->outputs, at = 0, code = DONE;
  deep5_tensor tensors[DEEP5_MAX_TENSORS];
  Py_buffer views[DEEP5_MAX_TENSORS];
  int64_t strides[DEEP5_MAX_TENSORS][DEEP5_MAX_RANK];
  memcpy(tensors, plan->tensors, count * sizeof *tensors);
  for (; at < count && code == DONE; ++at) {
    int strided = at < inputs && plan->kernel->strided[at];
    if (PyObject_GetBuffer(PyTuple_GetItem(arrays, at), &views[at], strided ? STRIDES : SIMPLE)) {
      PyErr_Clear();
      code = NOT_SHARED;
      break;
    }
    tensors[at].data = views[at].buf;
    if ((uintptr_t)views[at].buf % plan->itemsize[at]) code = NOT_SHARED;
    for (int axis = 0; strided && axis < tensors[at].rank; ++axis) {
      if (views[at].strides[axis] % plan->itemsize[at]) code = NOT_SHARED;
      strides[at][axis] = views[at].strides[axis] / plan->itemsize[at];
      tensors[at].strides = strides[at];
    }
  }
  if (code == DONE) code = run(plan, tensors, 0);
  for (int taken = 0; taken < at; ++taken) PyBuffer_Release(&views[taken]);
  return code;
}

/* On a tuple of addresses of C-contiguous memory. */
int deep5_call_addresses(const deep5_plan *plan, PyObject *addresses, void *stream) {
  int count = plan->kernel->inputs + plan->kernel->outputs;
  deep5_tensor tensors[DEEP5_MAX_TENSORS];
  memcpy(tensors, plan->tensors, count * sizeof *tensors);
  for (int at = 0; at < count; ++at) {
    tensors[at].data = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, at));
    if (tensors[at].data && (uintptr_t)tensors[at].data % plan->itemsize[at]) return NOT_SHARED;
  }
  return run(plan, tensors, stream);
}
